// sparse.h -- values of a row that are stored as they are: $(codec.slots) of the $(codec.title).
//
// A slot is the 16 bits of the value and its channel; gen/parts/sparse.lua says which values have
// one.

enum { $(s "row_slots") = $(codec.slots), $(s "slot_bytes") = 3 };

INLINE const unsigned char* $(s "slot")(const unsigned char* page, int row, int slot)
{
    return page + $(codec.layout.slots_at) +
           (row * (int64_t)$(s "row_slots") + slot) * $(s "slot_bytes");
}

INLINE float $(s "slot_value")(const unsigned char* slot)
{
    return $("f32_of_" .. config.rows)(read_u16(slot));
}

// Puts the farthest values of x [dim] into the slots of a row, as `from` has them; others of their
// groups take their place.
static void $(s "fill_slots")(const uint16_t* from, float* x, unsigned char* page, int row)
{
    unsigned char taken[$(s "dim")] = { 0 };
    for (int slot = 0; slot < $(s "row_slots"); ++slot) {
        unsigned char* at = (unsigned char*)(uintptr_t)$(s "slot")(page, row, slot);
        int best = -1;
        for (int i = 0; i < $(s "dim"); ++i)
            if (!taken[i] && (best < 0 || absolute(x[i]) > absolute(x[best]))) best = i;
        taken[best] = 1;
        write_u16(at, from[best]);
        at[2] = (unsigned char)best;
    }
    for (int first = 0; first < $(s "dim"); first += $(s "group_size")) {
        int last = first;
        while (taken[last]) ++last;
        for (int i = first; i < first + $(s "group_size"); ++i) {
            if (taken[i]) x[i] = x[last];
            else last = i;
        }
    }
}
//% if not codec.is_key then

// What the slots of rows [first, end) have beside their codes joins o, times weights
// [num_heads, strip_words] of a strip that begins at row `base`.
static void $(s "add_slots")(const unsigned char* page, const float* weights, int base, int first,
                             int end, float* o)
{
    for (int row = first; row < end; ++row)
        for (int slot = 0; slot < $(s "row_slots"); ++slot) {
            const unsigned char* at = $(s "slot")(page, row, slot);
            //% if codec.head_dim < 256 then
            if (at[2] >= $(s "dim")) continue;           // a file can say any channel
            //% end
            const float left = $(s "slot_value")(at) - $(s "read_value")(page, row, at[2]);
            for (int head = 0; head < num_heads; ++head)
                o[head * $(s "dim") + at[2]] += weights[head * strip_words + row - base] * left;
        }
}
//% end
