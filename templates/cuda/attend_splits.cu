// attend_splits.cu -- attention of a query row over one part of the rows that it sees.
//
//   grid  parts, num_kv_heads, num_queries: pages of a split; the last part is the windows
//   a.o_part    [num_queries, num_q_heads, parts, head_dim_v]  f32, normalised; of pages in the
//               basis of the values' codec
//   a.lse_part  [num_queries, num_q_heads, parts]  natural log; nothing visible: -inf and o = 0
//
// A strip of rows at a time, for the num_heads query heads of a KV head: a thread scores a token,
// then adds up a channel.  Rows that are not visible are not read: whatever their memory holds.

#include "visible.cuh"
#include "softmax.cuh"

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
    for (int i = threadIdx.x; i < num_heads; i += cta_threads)
        w->state.slopes[i] = a.slopes ? ((const float*)a.slopes)[head * num_heads + i] : 0.0f;
    //% if sides[1].shift then
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

// PAGES

// Scores of this thread's row of a strip.
INLINE void score_token(const kvl__device_seq* s, int head, int row, bool is_visible, int distance,
                        const float* q, workspace* w)
{
    enum { heads = $(plan.score_heads) };        // that a pass over the row serves
    w->state.distance[threadIdx.x] = distance;
#pragma unroll 1
    for (int first = 0; first < num_heads; first += heads) {
        float sums[heads];
#pragma unroll
        for (int h = 0; h < heads; ++h) sums[h] = 0.0f;
        if (is_visible) {
            const unsigned char* keys = page_at(s, row / page_size, head, 0);
            const int lane = row % page_size;
            //% if copies > 1 then
            const uint32_t choice = k_read_choice(keys, lane);
            //% end
#pragma unroll 1
            for (int at = 0; at < head_dim_k / 16; ++at) {
                float x[16];
                k_read_lane(keys, lane, at, x);
                //% local basis = copies > 1 and "k_basis_of(choice, at * 16) * head_dim_k" or "0"
                const float* of = q + first * q_floats + $(basis) + at * 16;
#pragma unroll
                for (int h = 0; h < heads; ++h) sums[h] = dot<16>(of + h * q_floats, x, sums[h]);
            }
        }
#pragma unroll
        for (int h = 0; h < heads; ++h) {
            //% if sides[1].shift then
            sums[h] += w->bias[first + h];
            //% end
            w->state.scores[first + h][threadIdx.x] = is_visible ? sums[h] : hidden_score();
        }
    }
}

// Values of the strip's rows [begin, end) join the outputs; rows are counted from its first.
INLINE void add_values(const kvl__device_seq* s, int head, int strip, int begin, int end,
                       const workspace* w, outputs* o)
{
#pragma unroll 1
    for (int tile = slice_of(); tile * 16 < end; tile += slices) {
        const int row = strip + tile * 16;
        if (slice_of() >= slices || tile * 16 + 16 <= begin) continue;
        const unsigned char* values = page_at(s, row / page_size, head, 1);
#pragma unroll
        for (int i = 0; i < each; ++i) {
            float x[16];
            if (channel_of(i) >= head_dim_v) continue;
            $(sides[2].in_keys and "v_read_column" or "v_read_lane")(values, channel_of(i),
                                                                row % page_size / 16, x);
#pragma unroll
            for (int t = 0; t < 16; ++t) {
                const int at = tile * 16 + t;
                if (at < begin || at >= end) x[t] = 0.0f;
            }
#pragma unroll
            for (int h = 0; h < num_heads; ++h)
                o->of[i][h] = dot<16>(w->state.scores[h] + tile * 16, x, o->of[i][h]);
        }
    }
}

INLINE void attend_pages(const kvl__device_attend& a, const kvl__device_seq* s, int head,
                         int begin, int end, int64_t position, const float* q, workspace* w,
                         outputs* o)
{
#pragma unroll 1
    for (int strip = begin / 16 * 16; strip < end; strip += strip_rows) {
        const int row = strip + threadIdx.x;
        score_token(s, head, row, row >= begin && row < end,
                    (int)(row + a.windows.sink_len - position), q, w);
        softmax_add(&w->state, strip_rows, a.soft_cap);
        shrink_outputs(w->state, o);
        add_values(s, head, strip, most_of(0, begin - strip), least_of(strip_rows, end - strip), w,
                   o);
        __syncthreads();
    }
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
    for (int h = 0; h < num_heads; ++h)
        for (int i = 0; i < each; ++i)
            if (channel_of(i) < head_dim_v)
                to[h * stride + channel_of(i)] = o.of[i][h] * w->state.shrink[h];
    //% end
}

KERNEL attend_splits(const __grid_constant__ kvl__device_attend a)
{
    __shared__ workspace w;
    const int part = blockIdx.x, head = blockIdx.y, query = blockIdx.z;
    const kvl__device_seq* s = (const kvl__device_seq*)a.queries[query].seq;
    const visible v = see(a, query);
    const bool is_window = part == a.parts - 1;
    outputs o;
    if (!is_window && part >= v.num_splits) return;        // merge_splits does not read it
    start_outputs(&o);
    const int copy = is_window ? 0 : $(sides[1].turns and 1 or 0);
    const float* q = load_queries(a, query, head, copy, &w);
    if (is_window) {
        attend_windows(a, windows_of(s, a.windows, head), v, q, &w, &o);
    } else {
        const int first = (v.first_page + part * v.pages_per_split) * page_size;
        attend_pages(a, s, head, most_of(v.page_begin, first),
                     least_of(v.page_end, first + v.pages_per_split * page_size), v.position, q,
                     &w, &o);
    }
    store_part(a, query, head, part, &w, o);
}
