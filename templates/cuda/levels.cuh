// levels.cuh -- what the codes of $(codec.title) mean: of a path, a level of one bit more.
//
// gen/paths.lua says how levels come out of the words of a lane.
//% local path = codec.path

// The cell before a cell on the path, of those that a group has.
INLINE const unsigned char* $(s "before")(const unsigned char* page, int lane16, int word16)
{
    enum { cells = $(codec.group_size // 16) };
    //% local at = path.along_lanes and "lane16" or "word16"
    const int before = $(at) / cells * cells + ($(at) + cells - 1) % cells;
    return page + $(s "cell_at")($(path.along_lanes and "before, word16" or "lane16, before"));
}

INLINE void $(s "get_levels")(const unsigned char* page, int of, int word16, uint32_t* q)
{
    const int lane16 = of / 16, lane = of % 16;
    const unsigned char* cell = page + $(s "cell_at")(lane16, word16);
    //% for _, read in ipairs(codec.reads("word16")) do
    const $(read.type) $(read.name) = $(read.expr);
    //% end
    //% for i = 0, 15 do
    q[$(i)] = $(codec.code[i + 1]);
    //% end
}

// Bit 0 of the code that is `delay` places before one on its path.
INLINE uint32_t $(s "bit_before")(const unsigned char* page, int lane, int word, int delay)
{
    //% local plane, at = codec.planes[1], path.along_lanes and "lane" or "word"
    enum { n = $(codec.group_size), each = $(16 // plane.width) };
    $(at) = $(at) / n * n + ($(at) % n + n - delay) % n;
    const unsigned char* cell = page + $(s "cell_at")(lane / 16, word / 16);
    const int i = word % 16, bit = i % 2 * 16 + i / 2 % each * $(plane.width);
    //% if plane.width == 1 then
    return load_narrow(cell + $(plane.at), lane % 16) >> bit & 1u;
    //% else
    return load_u32(cell + $(plane.at) + i / 2 / each * 64 + lane % 16 * 4) >> bit & 1u;
    //% end
}

// The level of one code.
INLINE uint32_t $(s "level_of")(const unsigned char* page, int lane, int word, uint32_t code)
{
    uint32_t s1 = 0, s0 = 0;
    //% for _, one in ipairs { { "s1", path.s1 }, { "s0", path.s0 } } do
    //% for _, delay in ipairs(one[2]) do
    $(one[1]) ^= $(s "bit_before")(page, lane, word, $(delay));
    //% end
    //% end
    return code >> 1 << 2 | s1 << 1 | s0;
}
