// row_codes.h -- the stored numbers of a row of a page of the $(codec.title).

// Those of 16 channels, from channel16 * 16 on.
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
