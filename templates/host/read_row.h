// read_row.h -- rows of a page of the $(codec.title) in the basis of their codec.

// The codes of 16 channels, from channel16 * 16 on, of a row.
INLINE void $(s "get_codes")(const unsigned char* page, int row, int channel16, uint32_t* q)
{
    //% if codec.is_key then
    const unsigned char* cell = $(s "cell")(page, row / 16, channel16);
    const int lane = row % 16;
    //% else
    const unsigned char* cell = $(s "cell")(page, channel16, row / 16);
    const int i = row % 16;
    //% end
    for (int n = 0; n < 16; ++n) q[n] = 0;
    //% for _, plane in ipairs(codec.planes) do
    {
        enum { width = $(plane.width), each = 16 / width, mask = (1 << width) - 1 };
        //% local to = "(words[n] >> bit[n] & mask) << " .. plane.low
        uint32_t words[16], bit[16];
        //% if plane.width == 1 and codec.is_key then
        const u32_at* from = (const u32_at*)(cell + $(plane.at)) + lane % 8;
        for (int n = 0; n < 16; ++n) words[n] = *from;
        for (int n = 0; n < 16; ++n) bit[n] = (uint32_t)(n % 2 * 16 + n / 2 + lane / 8 * 8);
        //% elseif plane.width == 1 then
        const u32_at* from = (const u32_at*)(cell + $(plane.at));
        for (int n = 0; n < 16; ++n) words[n] = from[n % 8];
        for (int n = 0; n < 16; ++n) bit[n] = (uint32_t)(i % 2 * 16 + i / 2 + n / 8 * 8);
        //% elseif codec.is_key then
        const u32_at* from = (const u32_at*)(cell + $(plane.at)) + lane;
        for (int n = 0; n < 16; ++n) words[n] = from[n / 2 / each * 16];
        for (int n = 0; n < 16; ++n) bit[n] = (uint32_t)(n % 2 * 16 + n / 2 % each * width);
        //% else
        const u32_at* from = (const u32_at*)(cell + $(plane.at)) + i / 2 / each * 16;
        for (int n = 0; n < 16; ++n) words[n] = from[n];
        for (int n = 0; n < 16; ++n) bit[n] = (uint32_t)(i % 2 * 16 + i / 2 % each * width);
        //% end
        for (int n = 0; n < 16; ++n) q[n] |= $(to);
    }
    //% end
}

// A row in the codec's basis: to the bit what read_value gives.
static void $(s "read_row")(const unsigned char* page, int row, float* x)
{
    for (int at = 0; at < $(s "dim"); at += 16, x += 16) {
        uint32_t q[16];
        $(s "get_codes")(page, row, at / 16, q);
        const int group = $(s "group")($(codec.word_lane("row", "at")));
        //% if codec.axis == "per_token" then
        const float one = $(s "read_scale")(page, group);
        const vf scale = repeat(one), offset = repeat($(s "read_offset")(page, group, one));
        //% end
        for (int n = 0; n < 16; n += lanes) {
            //% if codec.axis ~= "per_token" then
            const vf scale = $(s "load_scale")(page, group + n);
            const vf offset = $(s "load_offset")(page, group + n, scale);
            //% end
            //% local codes = "load_u32((const unsigned char*)(q + n))"
            const vu code = $(codec.plane and s "numbers(" .. codes .. ")" or codes);
            store(x + n, scale * $(codec.book and s "level(code)" or "to_float(code)") + offset);
        }
    }
}
