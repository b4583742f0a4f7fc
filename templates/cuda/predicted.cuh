// predicted.cuh -- restored rows, and what they say of rows of the $(codec.title).
//
// gen/parts/predicted.lua has the definition.  `restored` of a sequence's record is
//     i32 [num_kv_heads, restored_rows]      the layer that a head's row is restored in, 1 + its
//                                            number; 0: none
//     u16 [2, restored_rows, row_dims]       rows: keys of all heads before RoPE, then values
// A layer writes into one half what follows from the other half, which is of the layer below.

//% local dim = codec.head_dim
//% local width = dim < 128 and (dim + 31) // 32 * 32 or 128        -- threads of a row
//% local teams = 128 // width

INLINE int $(s "restored_dims")(const kvl__device_windows& w)
{
    return w.num_kv_heads * (head_dim_k + head_dim_v);
}

// Row 0 of a half.
INLINE uint16_t* $(s "half_of")(const kvl__device_seq* s, const kvl__device_windows& w, int half)
{
    return (uint16_t*)(s->restored + 4 * w.num_kv_heads * s->restored_rows)
           + half * s->restored_rows * $(s "restored_dims")(w);
}

// This side of a head's rows, in the layer's half.
typedef struct $(s "restored") {
    uint16_t* rows;
    int       row_dims;
} $(s "restored");

INLINE $(s "restored") $(s "restored_of")(const kvl__device_seq* s, const kvl__device_windows& w,
                               int head)
{
    //% local before = codec.is_key and "0" or "w.num_kv_heads * head_dim_k"
    $(s "restored") of;
    of.rows = $(s "half_of")(s, w, w.half) + $(before) + head * $(dim);
    of.row_dims = $(s "restored_dims")(w);
    return of;
}

INLINE float $(s "restored_value")(const $(s "restored")& of, int64_t row, int channel)
{
    return f32_of_row(of.rows[row * of.row_dims + channel]);
}

//% if kernel.writes or kernel.predicts then
// Where a head's predictions come from.
typedef struct $(s "predictor") {
    const float*    table;         // [counts[0] + counts[1] + 1, dim]; the last row is w
    const uint16_t* from[2];       // row 0 of keys and of values that predict
    int             counts[2];
    bool            is_known[2];   // false: what they say is 0
    int             row_dims;
} $(s "predictor");

INLINE $(s "predictor") $(s "predictor_of")(const kvl__device_seq* s, const kvl__device_windows& w,
                                 int head)
{
    //% local side = codec.is_key and 0 or 1
    const int keys = w.num_kv_heads * head_dim_k, values = w.num_kv_heads * head_dim_v;
    const uint16_t* below = $(s "half_of")(s, w, 1 - w.half);
    $(s "predictor") p;
    p.row_dims = keys + values;
    p.counts[0] = keys;
    //% if codec.is_key then
    p.from[0] = p.from[1] = below;
    p.counts[1] = 0;
    p.is_known[0] = p.is_known[1] = !w.is_lowest;
    //% else
    p.from[0] = $(s "half_of")(s, w, w.half);
    p.from[1] = below + keys;
    p.counts[1] = values;
    p.is_known[0] = true;
    p.is_known[1] = !w.is_lowest;
    //% end
    p.table = (const float*)w.predictors[$(side)]
              + head * (int64_t)(p.counts[0] + p.counts[1] + 1) * $(dim);
    return p;
}

// x [rows, row_stride] in shared memory, of rows from `row` on, gets sign times what is predicted
// of them and is rounded as a window holds it.  wanted: bit r for row r; others get any number.  A
// thread has a channel of rows / $(teams) of them; sums are in double, in the order of what
// predicts.
template <int rows>
INLINE void $(s "add_predicted")(const $(s "predictor")& p, int64_t row, uint32_t wanted,
                            float sign, int row_stride, float* x)
{
    enum { inputs = 32 };                                    // that are in shared memory
    enum { width = $(width), own = rows / $(teams) };
    __shared__ double staged[rows * inputs];
    const int team = threadIdx.x / width, first_row = team < $(teams) ? team * own : 0;
    double sums[own];
    __syncthreads();
#pragma unroll 1
    for (int first = 0; first < $(dim); first += width) {
        const int at = first + threadIdx.x % width, channel = least_of(at, $(dim - 1));
        const float* weights = p.table + channel;
        const double w = (double)weights[(p.counts[0] + p.counts[1]) * (int64_t)$(dim)];
        for (int r = 0; r < own; ++r) sums[r] = w;
#pragma unroll 1
        for (int part = 0; part < 2; ++part) {
#pragma unroll 1
            for (int from = 0; from < p.counts[part] && p.is_known[part]; from += inputs) {
                __syncthreads();
                for (int i = threadIdx.x; i < rows * inputs; i += cta_threads) {
                    const int r = i / inputs, n = from + i % inputs;
                    const bool is_there = wanted >> r & 1 && n < p.counts[part];
                    staged[i] = is_there
                        ? (double)f32_of_row(p.from[part][(row + r) * p.row_dims + n]) : 0.0;
                }
                __syncthreads();
                const int num = least_of(p.counts[part] - from, inputs);
                const double* of = staged + first_row * inputs;
#pragma unroll 4
                for (int n = 0; n < num; ++n) {
                    const double weight = (double)weights[(from + n) * (int64_t)$(dim)];
                    for (int r = 0; r < own; ++r)
                        sums[r] = __fma_rn(of[r * inputs + n], weight, sums[r]);
                }
            }
            weights += p.counts[part] * (int64_t)$(dim);
        }
        for (int r = 0; r < own && team < $(teams) && at < $(dim); ++r) {
            float* to = x + (first_row + r) * row_stride + at;
            *to = f32_of_row(row_of_f32(*to + sign * (float)sums[r]));
        }
    }
    __syncthreads();
}
//% end
