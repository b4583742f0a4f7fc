// restored_keys.cuh -- scores of keys that queries do not meet as codes: before RoPE, with values
// that are stored as they are, with levels of a calibrated book, with channels that have bits of
// their own or more, or with sketches that have channels apart.
//
// A key is restored to the original basis and, where it is stored before RoPE
// (gen/parts/pre_rope.lua), turned to its position; the query stays as it is.
//% local n, dim = codec.read_words, codec.head_dim
//% local visible = "row + i % 16 >= begin && row + i % 16 < end"

#include "restored_rows.cuh"

enum { $(s "restored_stride") = $(dim + 1) };

// 16 rows [16, restored_stride] in their basis, of a page from row `at` on: those that are not
// visible are zeros.  choices [16]: their bases, where they have several, or their norms' codes.
//% if codec.across then
// page: of head 0.  The rows are before RoPE.
INLINE void $(s "read_rows")(const unsigned char* page, int at, int row, int begin, int end,
                        const $(s "mixture")& m, float* x)
{
    __syncthreads();
    for (int i = threadIdx.x; i < $(16 * dim); i += cta_threads)
        x[i % 16 * $(s "restored_stride") + i / 16] =
            $(visible) ? $(s "read_mixed")(m, page, at + i % 16, i / 16) : 0.0f;
    $(s "turn_pieces")(m, 16, $(s "restored_stride"), x);
}
//% elseif codec.predicted then
// The rows are as they are restored, before RoPE.
INLINE void $(s "read_rows")(const unsigned char*, int, int row, int begin, int end,
                        const $(s "restored")& of, float* x)
{
    __syncthreads();
    for (int i = threadIdx.x; i < $(16 * dim); i += cta_threads)
        x[i / $(dim) * $(s "restored_stride") + i % $(dim)] =
            row + i / $(dim) >= begin && row + i / $(dim) < end
                ? $(s "restored_value")(of, row + i / $(dim), i % $(dim)) : 0.0f;
    __syncthreads();
}
//% elseif codec.widths then
// begins: where channels begin in a row's string.
INLINE void $(s "read_rows")(const unsigned char* page, int at, int row, int begin, int end,
                        const int* begins, float* x)
{
    __syncthreads();
    for (int i = threadIdx.x; i < $(16 * dim); i += cta_threads) {
        uint32_t code;
        float value = 0.0f;
        if ($(visible)) value = $(s "read_level")(page, at + i % 16, i / 16, begins, &code);
        x[i % 16 * $(s "restored_stride") + i / 16] = value;
    }
    __syncthreads();
}
//% else
INLINE void $(s "read_rows")(const unsigned char* page, int at, int row, int begin, int end,
                        uint32_t* choices, float* x)
{
    __syncthreads();
    for (int i = threadIdx.x; i < $(16 * dim // n); i += cta_threads) {
        float values[$(n)];
        for (int k = 0; k < $(n); ++k) values[k] = 0.0f;
        if ($(visible)) $(s "read_words")(page, at + i % 16, i / 16 * $(n), values);
        for (int k = 0; k < $(n); ++k)
            x[i % 16 * $(s "restored_stride") + i / 16 * $(n) + k] = values[k];
    }
    //% if codec.flagged then
    for (int i = threadIdx.x; i < 16; i += cta_threads)
        choices[i] = $(visible) ? $(s "read_choice")(page, at + i) : 0;
    //% elseif codec.norms then
    for (int i = threadIdx.x; i < 16; i += cta_threads)
        choices[i] = $(visible) ? page[$(codec.layout.slots_at) + at + i] : 0;
    //% end
    //% if codec.promoted > 0 then
    $(s "add_planes")(page, at, 16, begin - row, end - row, $(s "restored_stride"), x);
    //% end
    __syncthreads();
}
//% end

//% if codec.unrotated then
// Angles of pairs as parts of 2^64 of a turn.
INLINE void $(s "load_angles")(const double* turns, uint64_t* angles)
{
    for (int i = threadIdx.x; i < $(dim // 2); i += cta_threads) {
        double part = turns[1 + i] * 0.15915494309189533577;
        part -= (double)(int64_t)part;
        angles[i] = (uint64_t)((part < 0.0 ? part + 1.0 : part) * 0x1p64);
    }
}

// The scores of one row, turned to its position, which eight threads share, by all queries
// q [num_heads, dim].
INLINE void $(s "score_turned")(const float* x, const double* turns, const uint64_t* angles,
                           uint32_t position, const float* q, float* sums)
{
    const int dims = (int)turns[$(1 + dim // 2)];
    const bool halves = turns[0] != 0.0;
    for (int h = 0; h < num_heads; ++h) sums[h] = 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x % 8; i < $(dim // 2); i += 8) {
        const bool turning = 2 * i < dims;
        const int a = turning && halves ? i : 2 * i;
        const int b = turning && halves ? i + dims / 2 : 2 * i + 1;
        float s = 0.0f, c = 1.0f;
        if (turning) $(s "turn_of")((uint32_t)(angles[i] * position >> 32), &s, &c);
        const float first = x[a] * c - x[b] * s, second = x[b] * c + x[a] * s;
#pragma unroll
        for (int h = 0; h < num_heads; ++h) {
            const float* of = q + h * $(dim);
            sums[h] = mul_add(of[a], first, mul_add(of[b], second, sums[h]));
        }
    }
    for (int h = 0; h < num_heads; ++h)
        for (int d = 1; d < 8; d *= 2) sums[h] += __shfl_xor_sync(0xffffffffu, sums[h], d);
}

//% else
// The scores of one row, which eight threads share, by all queries q [num_heads, dim].
INLINE void $(s "score_restored")(const float* x, const float* q, float* sums)
{
    for (int h = 0; h < num_heads; ++h) sums[h] = 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x % 8; i < $(dim); i += 8) {
#pragma unroll
        for (int h = 0; h < num_heads; ++h) sums[h] = mul_add(q[h * $(dim) + i], x[i], sums[h]);
    }
    for (int h = 0; h < num_heads; ++h)
        for (int d = 1; d < 8; d *= 2) sums[h] += __shfl_xor_sync(0xffffffffu, sums[h], d);
}

//% end
// Scores [num_heads, cta_threads] of a strip's rows [begin, end).
INLINE void $(s "score_strip")(const kvl__device_attend& a, const kvl__device_seq* s, int head,
                          int strip, int begin, int end, const float* q,
                          float (*scores)[cta_threads])
{
    __shared__ float x[16 * $(s "restored_stride")];
    //% if codec.unrotated then
    __shared__ uint64_t angles[$(dim // 2)];
    const double* turns = (const double*)a.windows.turns;
    $(s "load_angles")(turns, angles);
    //% end
    //% if not codec.predicted then
    __shared__ uint32_t choices[16];
    //% end
    const float* record = record_of(a.tables, a.table_floats, 0, head);
    //% local kept = codec.predicted and "of" or codec.widths and "begins" or "choices"
    //% if codec.across then
    //% kept = "m"
    //% elseif codec.predicted then
    const $(s "restored") of = $(s "restored_of")(s, a.windows, head);
    //% end
    //% if codec.across then
    const $(s "mixture") m = $(s "mixture_of")(a.windows, head);
    //% end
    //% if kept == "begins" then
    __shared__ int begins[$(dim + 1)];
    $(s "find_begins")(record, begins);
    //% end
    const int own = threadIdx.x / 8;
    float sums[num_heads];
#pragma unroll 1
    for (int h = 0; h < num_heads; ++h)
        scores[h][threadIdx.x] = -__int_as_float(0x7f800000);
#pragma unroll 1
    for (int row = strip; row < end && row < strip + cta_threads; row += 16) {
        //% local of = codec.across and "0" or "head"
        unsigned char* page = page_at(s, row / page_size, $(of), $(codec.is_key and 0 or 1));
        $(s "read_rows")(page, row % page_size, row, begin, end, $(kept), x);
        //% if not codec.predicted then
        $(s "out_of_basis")<16>(record, choices, $(s "restored_stride"), x);
        //% end
        //% if codec.slots > 0 then
        $(s "put_slots")(page, row % page_size, 16, begin - row, end - row,
                    $(s "restored_stride"), x);
        //% end
        //% if codec.sketches > 0 then
        $(s "add_sketches")(page, row % page_size, 16, begin - row, end - row,
                       $(s "restored_stride"), x);
        //% end
        //% if codec.unrotated then
        $(s "score_turned")(x + own * $(s "restored_stride"), turns, angles,
                       (uint32_t)(row + own + a.windows.sink_len), q, sums);
        //% else
        $(s "score_restored")(x + own * $(s "restored_stride"), q, sums);
        //% end
        if (threadIdx.x % 8 != 0 || row + own < begin || row + own >= end) continue;
        for (int h = 0; h < num_heads; ++h) scores[h][row - strip + own] = sums[h];
    }
    //% if codec.by_position then
    __syncthreads();                   // a thread adds to its row's scores
    //% end
}
