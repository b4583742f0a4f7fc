// width_rows.h -- rows of the $(codec.title) whose channels have bits of their own.
//
// gen/parts/pairs.lua says how a row's codes are one string, which is cut into numbers of
// $(codec.bits) bits.

#include "widths.h"

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
    const float* bits = tables + $(codec.table_at(codec.parts.levels.tables[1].name));
    uint32_t held = 0;
    for (int i = 0, filled = 0, at = 0; i < $(s "dim"); ++i) {
        const int n = (int)bits[i];
        for (; filled < n; filled += $(codec.bits))
            held |= $(s "get_code")(page, row, at++) << filled;
        q[i] = (uint16_t)(held & ((1u << n) - 1u));
        held >>= n;
        filled -= n;
    }
}

// A row of a page in units of the sizes, x [dim].
static void $(s "read_levels")(const unsigned char* page, int row, const float* tables, float* x)
{
    const float* bits = tables + $(codec.table_at(codec.parts.levels.tables[1].name));
    uint16_t q[$(s "dim")];
    $(s "read_widths")(page, row, tables, q);
    for (int i = 0; i < $(s "dim"); ++i) {
        const int group = $(s "group")($(codec.word_lane("row", "i")));
        const float level = $(s "width_values")[(1 << (int)bits[i]) - 1 + q[i]];
        x[i] = $(s "read_scale")(page, group) * level;
    }
}
