// sparse.cuh -- values of a row that are stored as they are: $(codec.slots) of the $(codec.title).
//
// A slot is the 16 bits of the value and its channel; gen/parts/sparse.lua says which values have
// one.  Slots lie at any byte.

enum { $(s "row_slots") = $(codec.slots), $(s "slot_bytes") = 3 };

INLINE unsigned char* $(s "slot")(unsigned char* page, int row, int slot)
{
    return page + $(codec.layout.slots_at)
           + (row * (int64_t)$(s "row_slots") + slot) * $(s "slot_bytes");
}

//% if kernel.writes then
// Puts the farthest values of 16 rows x [16, row_stride] into their slots, as the window has them;
// others of their groups take their place.  Rows [first, end) of the page, x's first of which is
// `from`, have slots.  A warp has a row: of the values that have none yet each lane finds the
// farthest of its channels, then the warp that of all, of equal ones the lowest channel.
INLINE void $(s "fill_slots")(const $(s "unit")& u, int from, int first, int end, float* x)
{
    __shared__ bool is_taken[cta_warps][$(s "dim")];
    const int lane = threadIdx.x % 32;
    bool* taken = is_taken[threadIdx.x / 32];
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < 16; i += cta_warps) {
        const int row = from + i;
        float* of = x + i * $(s "row_stride");
        int own = 0;
        if (row < first || row >= end) continue;
        __syncwarp();                  // the row before is done with
        for (int k = lane; k < $(s "dim"); k += 32) taken[k] = false;
#pragma unroll 1
        for (int slot = 0; slot < $(s "row_slots"); ++slot) {
            uint32_t far = 0;          // 1 + the magnitude's bits; 0: all of the lane have slots
            int best = 0;
            for (int k = lane; k < $(s "dim"); k += 32) {
                const uint32_t size = taken[k] ? 0u : (bits_of(of[k]) & 0x7fffffffu) + 1u;
                if (size > far) best = k;
                far = size > far ? size : far;
            }
#pragma unroll
            for (int d = 1; d < 32; d *= 2) {
                const uint32_t size = __shfl_xor_sync(0xffffffffu, far, d);
                const int other = __shfl_xor_sync(0xffffffffu, best, d);
                const bool wins = size > far || (size == far && other < best);
                best = wins ? other : best;
                far = wins ? size : far;
            }
            if (best % 32 == lane) taken[best] = true;
            if (slot == lane) own = best;
            __syncwarp();
        }
        if (lane >= $(s "row_slots")) continue;
        const uint32_t bits = row_of_f32($(s "stored_value")(u, row, own));
        unsigned char* at = $(s "slot")(u.page, row, lane);
        at[0] = (unsigned char)bits;
        at[1] = (unsigned char)(bits >> 8);
        at[2] = (unsigned char)own;
        const int group = own / $(s "group_size") * $(s "group_size");
        int near = own;
        while (near > group && taken[near]) --near;
        while (taken[near]) ++near;
        of[own] = of[near];
    }
    __syncthreads();
}
//% else
INLINE float $(s "slot_value")(const unsigned char* slot)
{
    return f32_of_row(slot[0] | (uint32_t)slot[1] << 8);
}

// What has a slot takes its place in x [num_rows, row_stride]: rows of a page from `row` on, of
// which [begin, end) are read.
INLINE void $(s "put_slots")(unsigned char* page, int row, int num_rows, int begin, int end,
                        int row_stride, float* x)
{
    __syncthreads();
    for (int i = threadIdx.x; i < num_rows * $(s "row_slots"); i += cta_threads) {
        const int of = i / $(s "row_slots");
        if (of < begin || of >= end) continue;
        const unsigned char* slot = $(s "slot")(page, row + of, i % $(s "row_slots"));
        if (slot[2] < $(s "dim")) x[of * row_stride + slot[2]] = $(s "slot_value")(slot);
    }
    __syncthreads();
}
//% end
//% if kernel.name == "attend_splits" and not codec.is_key then
//% local n = codec.read_words

// The same for x [$(n)], a channel of rows from `row` on.
INLINE void $(s "put_column_slots")(unsigned char* page, int channel, int row, int begin, int end,
                               float* x)
{
#pragma unroll 1
    for (int slot = 0; slot < $(s "row_slots"); ++slot) {
#pragma unroll
        for (int i = 0; i < $(n); ++i) {
            if (i < begin || i >= end) continue;
            const unsigned char* at = $(s "slot")(page, row + i, slot);
            if (at[2] == channel) x[i] = $(s "slot_value")(at);
        }
    }
}
//% end
