// linear_rows.c -- the first rows of a page in the linear order of files (runtime/kvl_layout.h), or
// from it.

INLINE void $(s "get_row")(const unsigned char* page, int row, uint16_t* q)
{
    const int i = row % 16;
    for (int at = 0; at < $(s "dim") / 16; ++at, q += 16) {
        //% if codec.raw ~= "none" and codec.is_key then
        const u16_at* from = (const u16_at*)$(s "cell")(page, row / 16, at) + i;
        for (int word = 0; word < 16; ++word) q[word] = from[word * 16];
        //% elseif codec.raw ~= "none" then
        const u16_at* from = (const u16_at*)$(s "cell")(page, at, row / 16) + i * 16;
        for (int lane = 0; lane < 16; ++lane) q[lane] = from[lane];
        //% elseif codec.is_key then
        const u32_at* from = (const u32_at*)$(s "cell")(page, row / 16, at);
        //% for _, w in ipairs(codec.words) do
        //% if w.narrow then
        const uint32_t $(w.name) = from[$(w.at // 4) + i % 8] >> i / 8 * 8;
        //% else
        const uint32_t $(w.name) = from[$(w.at // 4) + i];
        //% end
        //% end
        //% for k = 0, 15 do
        q[$(k)] = (uint16_t)($(codec.code[k + 1]));
        //% end
        //% else
        const u32_at* from = (const u32_at*)$(s "cell")(page, at, row / 16);
        for (int lane = 0; lane < 16; ++lane) q[lane] = 0;
        //% for _, plane in ipairs(codec.planes) do
        {
            enum { each = $(16 // plane.width), mask = $((1 << plane.width) - 1) };
            const u32_at* words = from + $(plane.at // 4) + i / 2 / each * 16;
            const int left = i % 2 * 16 + i / 2 % each * $(plane.width);
            for (int lane = 0; lane < 16; ++lane) {
                //% if plane.width == 1 then
                const uint32_t code = words[lane % 8] >> (left + lane / 8 * 8) & mask;
                //% else
                const uint32_t code = words[lane] >> left & mask;
                //% end
                q[lane] = (uint16_t)(q[lane] | code << $(plane.low));
            }
        }
        //% end
        //% end
    }
}

// Codes q [dim] of a row are `bits` bits each in the linear order, low bits first.
INLINE void $(s "pack_row")(const uint16_t* q, unsigned char* to)
{
    //% if codec.raw ~= "none" then
    for (int i = 0; i < $(s "dim"); ++i) write_u16(to + 2 * i, q[i]);
    //% else
    enum { bits = $(codec.bits) };
    for (int i = 0; i < $(s "dim"); i += 8, to += bits) {
        uint64_t all = 0;
        for (int j = 0; j < 8; ++j) all |= (uint64_t)q[i + j] << j * bits;
        for (int j = 0; j < bits; ++j) to[j] = (unsigned char)(all >> 8 * j);
    }
    //% end
}

INLINE void $(s "unpack_row")(const unsigned char* from, uint16_t* q)
{
    //% if codec.raw ~= "none" then
    for (int i = 0; i < $(s "dim"); ++i) q[i] = (uint16_t)read_u16(from + 2 * i);
    //% else
    enum { bits = $(codec.bits), mask = (1 << bits) - 1 };
    for (int i = 0; i < $(s "dim"); i += 8, from += bits) {
        uint64_t all = 0;
        for (int j = 0; j < bits; ++j) all |= (uint64_t)from[j] << 8 * j;
        for (int j = 0; j < 8; ++j) q[i + j] = (uint16_t)(all >> j * bits & mask);
    }
    //% end
}

//% if codec.raw == "none" then
INLINE void $(s "copy_meta")(const kvl__linear_args* a, int group, int linear)
{
    //% for _, one in ipairs { { "scales_at", codec.scale_bytes },
    //%                         { "zeros_at", codec.zero_bytes } } do
    for (int j = 0; j < $(one[2]); ++j) {
        unsigned char* page = a->page + $(s(one[1])) + group * (int64_t)$(one[2]) + j;
        unsigned char* file = a->linear + $(s(one[1])) + linear * (int64_t)$(one[2]) + j;
        if (a->into_page) *page = *file; else *file = *page;
    }
    //% end
}
//% end

static void $(s "linear_rows")(const kvl__linear_args* a)
{
    enum { row_bytes = $(codec.head_dim * codec.bits // 8) };
    for (int32_t row = 0; row < a->num_rows; ++row) {
        uint16_t q[$(s "dim")];
        unsigned char* linear = a->linear + row * (int64_t)row_bytes;
        if (a->into_page) {
            $(s "unpack_row")(linear, q);
            $(s "put_row")(a->page, row, q);
        } else {
            $(s "get_row")(a->page, row, q);
            $(s "pack_row")(q, linear);
        }
    }
    //% if codec.raw == "none" then
    int at = 0;
    //% if codec.axis == "per_token" then
    for (int32_t row = 0; row < a->num_rows; ++row) {
        for (int i = 0; i < $(s "dim"); i += $(s "group_size"), ++at)
    //% else
    for (int32_t row = 0; row < a->num_rows; row += $(s "group_size")) {
        for (int i = 0; i < $(s "dim"); ++i, ++at)
    //% end
            $(s "copy_meta")(a, $(s "group")($(codec.word_lane("row", "i"))), at);
    }
    //% end
}
