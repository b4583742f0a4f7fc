// windows.cuh -- attention over the 16-bit rows of a sequence, and what every part needs.
//
// A strip of rows at a time, for the num_heads query heads of a KV head: two threads score a row,
// then each adds up a channel.

//% local v_dim = sides[2].outputs
enum { each = $((v_dim + 127) // 128) };             // channels of a thread
enum { slices = $(v_dim < 128 and 128 // v_dim or 1) };     // threads of a channel: tiles in turn

//% local copies = sides[1].copies
// Floats of a query: one copy, or as many as keys may need.
enum { q_floats = $(copies) * head_dim_k };

typedef struct workspace {
    //% if plan.shares_queries then
    alignas(16) float q[num_heads][q_floats];
    //% end
    float bias[$((config.num_heads + 3) // 4 * 4)];       // of pages; read by fours
    softmax state;
} workspace;

// Outputs of this thread's channels.
typedef struct outputs {
    float of[each][num_heads];
} outputs;

INLINE int channel_of(int i)
{
    return slices > 1 ? threadIdx.x % head_dim_v : i * cta_threads + threadIdx.x;
}

INLINE int slice_of() { return slices > 1 ? threadIdx.x / head_dim_v : 0; }

// The queries [num_heads, q_floats] that a part is scored with: where keys are all in one basis, a
// copy of them; else all copies.
INLINE const float* load_queries(const kvl__device_attend& a, int query, int head, int copy,
                                 workspace* w)
{
    const int64_t row = (query * (int64_t)gridDim.y + head) * num_heads;
    const float* from = (const float*)a.prepared + row * a.query_floats;
    //% if copies == 1 then
    from += copy * head_dim_k;
    //% end
    //% if plan.shares_queries then
    float* q = w->q[0];
#pragma unroll 1
    for (int i = threadIdx.x; i < num_heads * q_floats; i += cta_threads)
        q[i] = from[i / q_floats * (int64_t)a.query_floats + i % q_floats];
    //% else
    const float* q = from;
    //% end
#pragma unroll 1
    for (int i = threadIdx.x; i < num_heads; i += cta_threads)
        w->state.slopes[i] = a.slopes ? ((const float*)a.slopes)[head * num_heads + i] : 0.0f;
    //% if sides[1].bias then
#pragma unroll 1
    for (int i = threadIdx.x; i < (int)(sizeof w->bias / sizeof w->bias[0]); i += cta_threads)
        w->bias[i] = i < num_heads ? ((const float*)a.bias)[row + i] : 0.0f;
    //% end
    softmax_start(&w->state);
    __syncthreads();
    return q;
}

INLINE void start_outputs(outputs* o)
{
    for (int i = 0; i < each; ++i)
        for (int head = 0; head < num_heads; ++head) o->of[i][head] = 0.0f;
}

INLINE void shrink_outputs(const softmax& state, outputs* o)
{
    for (int i = 0; i < each; ++i)
        for (int head = 0; head < num_heads; ++head) o->of[i][head] *= state.shrink[head];
}

// sum + a . x of n numbers, a at a multiple of four: four are read at a time.
template <int n>
INLINE float dot(const float* a, const float* x, float sum)
{
#pragma unroll
    for (int i = 0; i < n; i += 4) {
        const float4 four = *(const float4*)(a + i);
        sum = mul_add(four.x, x[i], sum);
        sum = mul_add(four.y, x[i + 1], sum);
        sum = mul_add(four.z, x[i + 2], sum);
        sum = mul_add(four.w, x[i + 3], sum);
    }
    return sum;
}

// WINDOWS

// Row `at` of the visible rows of the sink, then of the ring.
INLINE const uint16_t* window_row(const kvl__device_attend& a, const head_windows& h,
                                  const visible& v, int side, int at)
{
    const int in_sink = v.sink_end - v.sink_begin;
    //% local values = config.num_stored ~= 1 and "head_dim_v" or "head_dim_k"
    const int64_t dim = side ? $(values) : head_dim_k;
    if (at < in_sink) return h.sink[side] + (v.sink_begin + at) * dim;
    return h.ring[side] + (v.tail_begin + at - in_sink) % a.windows.ring_rows * dim;
}

// Two threads a row: neighbours read 32 bytes together.
INLINE void score_row(const uint16_t* row, bool is_visible, int distance, const float* q,
                      workspace* w)
{
    float sums[num_heads];
    for (int h = 0; h < num_heads; ++h) sums[h] = 0.0f;
#pragma unroll 1
    for (int at = threadIdx.x % 2 * 8; is_visible && at < head_dim_k; at += 16) {
        const uint4 part = *(const uint4*)(row + at);
        const uint32_t pairs[4] = { part.x, part.y, part.z, part.w };
        float x[8];
        for (int i = 0; i < 8; ++i) x[i] = f32_of_row(pairs[i / 2] >> i % 2 * 16 & 0xffffu);
        for (int h = 0; h < num_heads; ++h) sums[h] = dot<8>(q + h * q_floats + at, x, sums[h]);
    }
    if (threadIdx.x % 2 == 0) w->state.distance[threadIdx.x / 2] = distance;
    for (int h = 0; h < num_heads; ++h) {
        const float sum = sums[h] + __shfl_xor_sync(0xffffffffu, sums[h], 1);
        if (threadIdx.x % 2 == 0)
            w->state.scores[h][threadIdx.x / 2] = is_visible ? sum : hidden_score();
    }
}

// Its position.
INLINE int window_position(const kvl__device_attend& a, const visible& v, int at)
{
    const int in_sink = v.sink_end - v.sink_begin;
    return at < in_sink ? v.sink_begin + at : a.windows.sink_len + v.tail_begin + at - in_sink;
}

INLINE void attend_windows(const kvl__device_attend& a, const head_windows& windows,
                           const visible& v, const float* q, workspace* w, outputs* o)
{
    enum { rows = strip_rows / 2 };
    const int count = v.sink_end - v.sink_begin + v.tail_end - v.tail_begin;
#pragma unroll 1
    for (int strip = 0; strip < count; strip += rows) {
        const int at = strip + threadIdx.x / 2;
        score_row(window_row(a, windows, v, 0, least_of(at, count - 1)), at < count,
                  (int)(window_position(a, v, at) - v.position), q, w);
        softmax_add(&w->state, rows, a.soft_cap);
        shrink_outputs(w->state, o);
        const int end = least_of(rows, count - strip);
#pragma unroll 1
        for (int i = slice_of(); i < end && slice_of() < slices; i += slices) {
            const uint16_t* row = window_row(a, windows, v, 1, strip + i);
#pragma unroll
            for (int k = 0; k < each; ++k) {
                if (channel_of(k) >= head_dim_v) continue;
                const float x = f32_of_row(row[channel_of(k)]);
#pragma unroll
                for (int h = 0; h < num_heads; ++h)
                    o->of[k][h] = mul_add(w->state.scores[h][i], x, o->of[k][h]);
            }
        }
        __syncthreads();
    }
}

// The part's result: slices join in shared memory, where scores were.
INLINE void store_part(const kvl__device_attend& a, int query, int head, int part, workspace* w,
                       const outputs& o)
{
    const int64_t first = (query * (int64_t)gridDim.y + head) * num_heads * a.parts + part;
    float* to = (float*)a.o_part + first * head_dim_v;
    const int64_t stride = a.parts * (int64_t)head_dim_v;
#pragma unroll 1
    for (int h = threadIdx.x; h < num_heads; h += cta_threads) {
        const float sum = w->state.sum[h];
        ((float*)a.lse_part)[first + h * a.parts] =
            sum > 0.0f ? w->state.max[h] + logf(sum) : hidden_score();
        w->state.shrink[h] = sum > 0.0f ? __fdividef(1.0f, sum) : 0.0f;
    }
    __syncthreads();
    //% if v_dim < 128 and 128 // v_dim > 1 then
#pragma unroll
    for (int h = 0; h < num_heads; ++h) w->state.scores[h][threadIdx.x] = o.of[0][h];
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < num_heads * head_dim_v; i += cta_threads) {
        const int h = i / head_dim_v, channel = i % head_dim_v;
        float all = 0.0f;
        for (int slice = 0; slice < slices; ++slice)
            all += w->state.scores[h][slice * head_dim_v + channel];
        to[h * stride + channel] = all * w->state.shrink[h];
    }
    //% else
#pragma unroll
    for (int i = 0; i < each; ++i) {
        if (channel_of(i) >= head_dim_v) continue;
        float* at = to + channel_of(i);
#pragma unroll
        for (int h = 0; h < num_heads; ++h, at += stride) *at = o.of[i][h] * w->state.shrink[h];
    }
    //% end
}
