// width_rows.h -- rows of the $(codec.title) whose channels have bits of their own.
//
// gen/parts/pairs.lua says how a row's codes are one string, which is cut into numbers of
// $(codec.bits) bits.

#include "widths.h"
#include "row_codes.h"

// The numbers q [dim] that the codes of a row x [dim] are stored as.
static void $(s "round_widths")(const float* x, const float* inverse, const float* tables,
                                uint16_t* q)
{
    const float* bits = tables + $(codec.table_at(codec.parts.levels.tables[1].name));
    uint32_t held = 0;
    for (int i = 0, filled = 0; i < $(s "dim"); ++i) {
        const int n = (int)bits[i];
        held |= $(s "code_of_width")(x[i] * inverse[i], n) << filled;
        filled += n;
        for (; filled >= $(codec.bits); filled -= $(codec.bits), held >>= $(codec.bits))
            *q++ = (uint16_t)(held & $((1 << codec.bits) - 1));
    }
}

// The codes q [dim] of a row of a page.
static void $(s "read_widths")(const unsigned char* page, int row, const float* tables, uint16_t* q)
{
    //% local each = 2 * codec.bits
    const float* bits = tables + $(codec.table_at(codec.parts.levels.tables[1].name));
    // 16 numbers are $(each) bytes; what is read of a code may reach behind the last.
    unsigned char string[$(s "dim") / 16 * $(each) + 8];
    for (int at = 0; at < $(s "dim") / 16; ++at) {
        uint32_t numbers[16];
        uint64_t joined = 0;
        $(s "get_codes")(page, row, at, numbers);
        for (int n = 0; n < 16; ++n) joined |= (uint64_t)numbers[n] << n * $(codec.bits);
        __builtin_memcpy(string + at * $(each), &joined, sizeof joined);
    }
    for (int i = 0, at = 0; i < $(s "dim"); ++i) {
        const int n = (int)bits[i];
        q[i] = (uint16_t)(*(const u32_at*)(string + at / 8) >> at % 8 & ((1u << n) - 1u));
        at += n;
    }
}

// A row of a page in units of the sizes, x [dim].
static void $(s "read_levels")(const unsigned char* page, int row, const float* tables, float* x)
{
    const float* bits = tables + $(codec.table_at(codec.parts.levels.tables[1].name));
    uint16_t q[$(s "dim")];
    $(s "read_widths")(page, row, tables, q);
    for (int at = 0; at < $(s "dim"); at += $(s "group_size")) {
        const float scale = $(s "read_scale")(page, $(s "group")($(codec.word_lane("row", "at"))));
        for (int i = at; i < at + $(s "group_size"); ++i)
            x[i] = scale * $(s "width_values")[(1 << (int)bits[i]) - 1 + q[i]];
    }
}
