// linear_rows.c -- the first rows of a page in the linear order of files (runtime/kvl_layout.h), or
// from it.

//% if codec.is_split then
static void $(s "linear_rows")(const kvl__linear_args* a)
{
    kvl__linear_args of = *a;
    //% for _, set in ipairs(codec.sets) do
    of.page = a->page + $(set.at);
    of.linear = a->linear + $(set.at);
    $(set.side .. "_linear_rows")(&of);
    //% end
}
//% else
//% if codec.raw ~= "none" then
// Rows of 16-bit numbers.
INLINE void $(s "linear_codes")(const kvl__linear_args* a)
{
    for (int32_t row = 0; row < a->num_rows; ++row) {
        uint16_t q[$(s "dim")];
        unsigned char* linear = a->linear + row * (int64_t)(2 * $(s "dim"));
        if (a->into_page) {
            for (int i = 0; i < $(s "dim"); ++i) q[i] = (uint16_t)read_u16(linear + 2 * i);
            $(s "put_row")(a->page, row, q);
            continue;
        }
        for (int i = 0; i < $(s "dim"); ++i) {
            //% if codec.is_key then
            const unsigned char* at = $(s "cell")(a->page, row / 16, i / 16) + i % 16 * 32;
            write_u16(linear + 2 * i, read_u16(at + row % 16 * 2));
            //% else
            const unsigned char* at = $(s "cell")(a->page, i / 16, row / 16) + row % 16 * 32;
            write_u16(linear + 2 * i, read_u16(at + i % 16 * 2));
            //% end
        }
    }
}
//% else
// The codes of a cell, [word][lane].
INLINE void $(s "get_cell")(const unsigned char* cell, uint8_t q[16][16])
{
    __builtin_memset(q, 0, 256);
    //% for _, plane in ipairs(codec.planes) do
    for (int i = 0; i < 16; ++i) {
        enum { each = $(16 // plane.width), mask = $((1 << plane.width) - 1) };
        const u32_at* from = (const u32_at*)(cell + $(plane.at)) + i / 2 / each * 16;
        const int left = i % 2 * 16 + i / 2 % each * $(plane.width);
        //% if plane.width == 1 then
        for (int lane = 0; lane < 8; ++lane) {
            q[i][lane] = (uint8_t)(q[i][lane] | (from[lane] >> left & 1) << $(plane.low));
            q[i][lane + 8] =
                (uint8_t)(q[i][lane + 8] | (from[lane] >> (left + 8) & 1) << $(plane.low));
        }
        //% else
        for (int lane = 0; lane < 16; ++lane)
            q[i][lane] = (uint8_t)(q[i][lane] | (from[lane] >> left & mask) << $(plane.low));
        //% end
    }
    //% end
}

INLINE void $(s "put_cell")(unsigned char* cell, uint8_t q[16][16])
{
    __builtin_memset(cell, 0, $(32 * codec.bits));
    //% for _, plane in ipairs(codec.planes) do
    for (int i = 0; i < 16; ++i) {
        enum { each = $(16 // plane.width), mask = $((1 << plane.width) - 1) };
        u32_at* to = (u32_at*)(cell + $(plane.at)) + i / 2 / each * 16;
        const int left = i % 2 * 16 + i / 2 % each * $(plane.width);
        //% if plane.width == 1 then
        for (int lane = 0; lane < 8; ++lane)
            to[lane] |= (((uint32_t)q[i][lane] >> $(plane.low) & 1)
                         | ((uint32_t)q[i][lane + 8] >> $(plane.low) & 1) << 8) << left;
        //% else
        for (int lane = 0; lane < 16; ++lane)
            to[lane] |= ((uint32_t)q[i][lane] >> $(plane.low) & mask) << left;
        //% end
    }
    //% end
}

// The codes of 16 channels of a row are $(codec.bits) numbers of 16 bits, low bits first: those of
// 16 rows, [number][row], from codes [channel][row], and back.
INLINE void $(s "pack_codes")(uint8_t q[16][16], uint16_t packed[$(codec.bits)][16])
{
    __builtin_memset(packed, 0, $(32 * codec.bits));
    //% for k = 0, 15 do
    //% local at, left = k * codec.bits // 16, k * codec.bits % 16
    for (int row = 0; row < 16; ++row)
        packed[$(at)][row] = (uint16_t)(packed[$(at)][row] | q[$(k)][row] << $(left));
    //% if left + codec.bits > 16 then
    for (int row = 0; row < 16; ++row)
        packed[$(at + 1)][row] = (uint16_t)(q[$(k)][row] >> $(16 - left));
    //% end
    //% end
}

INLINE void $(s "unpack_codes")(uint16_t packed[$(codec.bits)][16], uint8_t q[16][16])
{
    enum { mask = $((1 << codec.bits) - 1) };
    //% for k = 0, 15 do
    //% local at, left = k * codec.bits // 16, k * codec.bits % 16
    for (int row = 0; row < 16; ++row)
        //% if left + codec.bits > 16 then
        q[$(k)][row] = (uint8_t)((packed[$(at)][row] >> $(left)
                                  | packed[$(at + 1)][row] << $(16 - left)) & mask);
        //% else
        q[$(k)][row] = (uint8_t)(packed[$(at)][row] >> $(left) & mask);
        //% end
    //% end
}
//% if not codec.is_key then

INLINE void $(s "turn_codes")(uint8_t from[16][16], uint8_t to[16][16])
{
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) to[i][j] = from[j][i];
}
//% end

// Rows [row, row + num) of the 16 channels from 16 * at on; row is a multiple of 16.
static void $(s "linear_cell")(const kvl__linear_args* a, int row, int num, int at)
{
    enum { bits = $(codec.bits), row_bytes = $(codec.head_dim * codec.bits // 8) };
    //% if codec.is_key then
    unsigned char* cell = (unsigned char*)(uintptr_t)$(s "cell")(a->page, row / 16, at);
    //% else
    unsigned char* cell = (unsigned char*)(uintptr_t)$(s "cell")(a->page, at, row / 16);
    LINE uint8_t turned[16][16];
    //% end
    LINE uint8_t q[16][16];
    LINE uint16_t packed[bits][16];
    unsigned char* linear = a->linear + row * (int64_t)row_bytes + at * 2 * bits;
    //% local codes = codec.is_key and "q" or "turned"
    $(s "get_cell")(cell, q);
    if (!a->into_page || num < 16) {
        //% if not codec.is_key then
        $(s "turn_codes")(q, turned);
        //% end
        $(s "pack_codes")($(codes), packed);
    }
    for (int t = 0; t < num; ++t)
        for (int i = 0; i < bits; ++i) {
            unsigned char* file = linear + t * (int64_t)row_bytes + 2 * i;
            if (a->into_page) packed[i][t] = (uint16_t)read_u16(file);
            else write_u16(file, packed[i][t]);
        }
    if (!a->into_page) return;
    $(s "unpack_codes")(packed, $(codes));
    //% if not codec.is_key then
    $(s "turn_codes")(turned, q);
    //% end
    $(s "put_cell")(cell, q);
}

INLINE void $(s "linear_codes")(const kvl__linear_args* a)
{
    for (int32_t row = 0; row < a->num_rows; row += 16)
        for (int at = 0; at < $(s "dim") / 16; ++at)
            $(s "linear_cell")(a, row, a->num_rows - row < 16 ? a->num_rows - row : 16, at);
}
//% end

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

//% if codec.layout.extra_bytes > 0 then
#include "extra_rows.h"

//% end
static void $(s "linear_rows")(const kvl__linear_args* a)
{
    $(s "linear_codes")(a);
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
    //% if codec.layout.extra_bytes > 0 then
    $(s "copy_extra")(a);
    //% end
}
//% end
