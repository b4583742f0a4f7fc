// promote.cuh -- channels of a group of tokens that have 2 bits more: $(codec.promoted) of the
// $(codec.title).
//
// gen/parts/promote.lua says which they are, and what is stored.

enum { $(s "promoted") = $(codec.promoted), $(s "plane_bytes") = ($(codec.group_size) + 3) / 4 };

// What the group of a row has beside its codes: channels, then planes.
INLINE unsigned char* $(s "beside")(const unsigned char* page, int row)
{
    return (unsigned char*)page + $(codec.layout.slots_at)
           + row / $(codec.group_size) * (int64_t)$(codec.layout.extra_bytes);
}

//% if kernel.writes then
// The greatest value that a promoted channel's grid is fitted to.
INLINE float $(s "strong_end")(float lo, float hi)
{
    //% local most = codec.code_max
    return lo < hi ? lo * $(f32(0.75 / (most + 0.75))) + hi * $(f32(most / (most + 0.75))) : hi;
}

// The level of a value in steps of a quarter of the scale.
INLINE uint32_t $(s "fine_level")(float x, $(s "grid") grid)
{
    const float y = clamp((x - grid.offset) * grid.inverse * 4.0f, 0.0f,
                          $(4 * codec.code_max + 3).0f);
    return (uint32_t)(int32_t)nearest_even(y);
}
//% else
// What rows have in the planes beside their codes joins them: x [num_rows, row_stride], of a page
// from row `row` on, of them [begin, end).
INLINE void $(s "add_planes")(const unsigned char* page, int row, int num_rows, int begin, int end,
                         int row_stride, float* x)
{
    __syncthreads();
    for (int i = threadIdx.x; i < num_rows * $(s "promoted"); i += cta_threads) {
        const int of = i / $(s "promoted"), n = i % $(s "promoted"), at = row + of;
        if (of < begin || of >= end) continue;
        const unsigned char* beside = $(s "beside")(page, at);
        const int channel = beside[n], t = at % $(codec.group_size);
        const int low = beside[$(s "promoted") + n * $(s "plane_bytes") + t / 4] >> t % 4 * 2 & 3;
        if (channel >= $(s "dim")) continue;           // a file can say any channel
        x[of * row_stride + channel] +=
            $(s "read_scale")(page, $(s "group")($(codec.word_lane("at", "channel"))))
            * (0.25f * (float)low);
    }
    __syncthreads();
}
//% end
