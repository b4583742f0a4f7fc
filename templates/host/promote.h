// promote.h -- channels of a group of tokens that have 2 bits more: $(codec.promoted) of the
// $(codec.title).
//
// gen/parts/promote.lua says which they are, and what is stored.

enum { $(s "promoted") = $(codec.promoted), $(s "plane_bytes") = ($(codec.group_size) + 3) / 4 };

// What a group of tokens has beside its codes: channels, then planes.
INLINE unsigned char* $(s "beside")(const unsigned char* page, int row)
{
    return (unsigned char*)(uintptr_t)page + $(codec.layout.slots_at) +
           row / $(codec.group_size) * (int64_t)$(codec.layout.extra_bytes);
}

// The channels of rows [group_size, dim] whose magnitudes have the greatest sums, rising.
static void $(s "find_strong")(const float* rows, unsigned char* strong)
{
    float sums[$(s "dim")] = { 0 };
    unsigned char taken[$(s "dim")] = { 0 };
    for (int t = 0; t < $(codec.group_size); ++t)
        for (int i = 0; i < $(s "dim"); ++i) sums[i] += absolute(rows[t * $(s "dim") + i]);
    for (int n = 0; n < $(s "promoted"); ++n) {
        int best = -1;
        for (int i = 0; i < $(s "dim"); ++i)
            if (!taken[i] && (best < 0 || sums[i] > sums[best])) best = i;
        taken[best] = 1;
    }
    for (int i = 0, n = 0; i < $(s "dim"); ++i)
        if (taken[i]) strong[n++] = (unsigned char)i;
}

// The greatest value that a promoted channel's grid is fitted to.
INLINE float $(s "strong_end")(float lo, float hi)
{
    //% local most = codec.code_max
    return lo < hi ? lo * $(f32(0.75 / (most + 0.75))) + hi * $(f32(most / (most + 0.75))) : hi;
}

// Codes q [dim] of row t of a group, and its bits in the planes, where channels are promoted.
INLINE void $(s "promote_row")(const float* x, const float* offset, const float* inverse, int t,
                               unsigned char* beside, uint16_t* q)
{
    for (int n = 0; n < $(s "promoted"); ++n) {
        const int i = beside[n];
        const float y = clamp((x[i] - offset[i]) * inverse[i] * 4.0f, 0.0f,
                              $(4 * codec.code_max + 3).0f);
        const uint32_t level = (uint32_t)(int32_t)nearest_even(y);
        unsigned char* at = beside + $(s "promoted") + n * $(s "plane_bytes") + t / 4;
        q[i] = (uint16_t)(level >> 2);
        *at = (unsigned char)((*at & ~(3u << t % 4 * 2)) | (level & 3u) << t % 4 * 2);
    }
}

// What a row of a page, x [dim], has in the planes beside its codes joins it.
static void $(s "add_planes")(const unsigned char* page, int row, float* x)
{
    const unsigned char* beside = $(s "beside")(page, row);
    const int t = row % $(codec.group_size);
    for (int n = 0; n < $(s "promoted"); ++n) {
        const int i = beside[n];
        const int low = beside[$(s "promoted") + n * $(s "plane_bytes") + t / 4] >> t % 4 * 2 & 3;
        if (i >= $(s "dim")) continue;
        x[i] += $(s "read_scale")(page, $(s "group")($(codec.word_lane("row", "i")))) *
                (0.25f * (float)low);
    }
}
