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

//% local v_dim = config.v.head_dim
enum { each = $((v_dim + 127) // 128) };             // channels of a thread
enum { slices = $(v_dim < 128 and 128 // v_dim or 1) };     // threads of a channel: tiles in turn

typedef struct workspace {
    float q[num_heads][head_dim_k];
    float bias[num_heads];         // of pages
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

// The copy of the queries that a part is scored with.
INLINE void load_queries(const kvl__device_attend& a, int query, int head, int copy, workspace* w)
{
    const int64_t row = (query * (int64_t)gridDim.y + head) * num_heads;
    const float* from = (const float*)a.prepared + row * a.query_floats + copy * head_dim_k;
    for (int i = threadIdx.x; i < num_heads * head_dim_k; i += cta_threads)
        w->q[i / head_dim_k][i % head_dim_k] =
            from[i / head_dim_k * (int64_t)a.query_floats + i % head_dim_k];
    for (int i = threadIdx.x; i < num_heads; i += cta_threads)
        w->state.slopes[i] = a.slopes ? ((const float*)a.slopes)[head * num_heads + i] : 0.0f;
    //% if sides[1].shift then
    for (int i = threadIdx.x; i < num_heads; i += cta_threads)
        w->bias[i] = ((const float*)a.bias)[row + i];
    //% end
    softmax_start(&w->state);
    __syncthreads();
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

// PAGES

// Scores of this thread's row of the strip that begins at `strip`.
INLINE void score_token(const kvl__device_attend& a, const kvl__device_seq* s, int head,
                        int row, bool is_visible, int distance,
                        workspace* w)
{
    float sums[num_heads];
    for (int h = 0; h < num_heads; ++h) sums[h] = 0.0f;
    if (is_visible) {
        const unsigned char* keys = page_at(s, row / page_size, head, 0);
        const int lane = row % page_size;
#pragma unroll 1
        for (int at = 0; at < head_dim_k / 16; ++at) {
            float x[16];
            k_read_lane(keys, lane, at, x);
            for (int h = 0; h < num_heads; ++h)
                for (int i = 0; i < 16; ++i) sums[h] = mul_add(w->q[h][at * 16 + i], x[i], sums[h]);
        }
    }
    //% if sides[1].shift then
    for (int h = 0; h < num_heads; ++h) sums[h] += w->bias[h];
    //% end
    w->state.distance[threadIdx.x] = distance;
    for (int h = 0; h < num_heads; ++h)
        w->state.scores[h][threadIdx.x] = is_visible ? sums[h] : hidden_score();
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
            v_read_lane(values, channel_of(i), row % page_size / 16, x);
#pragma unroll
            for (int t = 0; t < 16; ++t) {
                const int at = tile * 16 + t;
                if (at < begin || at >= end) x[t] = 0.0f;
            }
#pragma unroll
            for (int h = 0; h < num_heads; ++h)
#pragma unroll
                for (int t = 0; t < 16; ++t)
                    o->of[i][h] = mul_add(w->state.scores[h][tile * 16 + t], x[t], o->of[i][h]);
        }
    }
}

INLINE void attend_pages(const kvl__device_attend& a, const kvl__device_seq* s, int head,
                         int begin, int end, int64_t position, workspace* w, outputs* o)
{
#pragma unroll 1
    for (int strip = begin / 16 * 16; strip < end; strip += strip_rows) {
        const int row = strip + threadIdx.x;
        score_token(a, s, head, row, row >= begin && row < end,
                    (int)(row + a.windows.sink_len - position), w);
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
    const int64_t dim = side ? head_dim_v : head_dim_k;
    if (at < in_sink) return h.sink[side] + (v.sink_begin + at) * dim;
    return h.ring[side] + (v.tail_begin + at - in_sink) % a.windows.ring_rows * dim;
}

// Two threads a row: neighbours read 32 bytes together.
INLINE void score_row(const uint16_t* row, bool is_visible, int distance, workspace* w)
{
    float sums[num_heads];
    for (int h = 0; h < num_heads; ++h) sums[h] = 0.0f;
#pragma unroll 1
    for (int at = threadIdx.x % 2 * 8; is_visible && at < head_dim_k; at += 16) {
        const uint4 part = *(const uint4*)(row + at);
        const uint32_t pairs[4] = { part.x, part.y, part.z, part.w };
        for (int i = 0; i < 8; ++i) {
            const float x = f32_of_row(pairs[i / 2] >> i % 2 * 16 & 0xffffu);
            for (int h = 0; h < num_heads; ++h) sums[h] = mul_add(w->q[h][at + i], x, sums[h]);
        }
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
                           const visible& v, workspace* w, outputs* o)
{
    enum { rows = strip_rows / 2 };
    const int count = v.sink_end - v.sink_begin + v.tail_end - v.tail_begin;
#pragma unroll 1
    for (int strip = 0; strip < count; strip += rows) {
        const int at = strip + threadIdx.x / 2;
        score_row(window_row(a, windows, v, 0, least_of(at, count - 1)), at < count,
                  (int)(window_position(a, v, at) - v.position), w);
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
    const int64_t first = (query * (int64_t)gridDim.y + head) * num_heads;
    float* sums = w->state.scores[0];
#pragma unroll
    for (int h = 0; h < num_heads; ++h) {
        const int64_t at = (first + h) * a.parts + part;
        const float sum = w->state.sum[h], share = sum > 0.0f ? __fdividef(1.0f, sum) : 0.0f;
        float* to = (float*)a.o_part + at * head_dim_v;
        if (threadIdx.x == 0)
            ((float*)a.lse_part)[at] = sum > 0.0f ? w->state.max[h] + logf(sum) : hidden_score();
        //% if v_dim < 128 and 128 // v_dim > 1 then
        __syncthreads();
        sums[threadIdx.x] = o.of[0][h];
        __syncthreads();
        if (threadIdx.x >= head_dim_v) continue;
        float all = 0.0f;
        for (int slice = 0; slice < slices; ++slice) all += sums[slice * head_dim_v + threadIdx.x];
        to[threadIdx.x] = all * share;
        //% else
        (void)sums;
        for (int i = 0; i < each; ++i)
            if (channel_of(i) < head_dim_v) to[channel_of(i)] = o.of[i][h] * share;
        //% end
    }
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
    load_queries(a, query, head, is_window ? 0 : $(sides[1].turns and 1 or 0), &w);
    if (is_window) {
        attend_windows(a, windows_of(s, a.windows, head), v, &w, &o);
    } else {
        const int first = (v.first_page + part * v.pages_per_split) * page_size;
        attend_pages(a, s, head, most_of(v.page_begin, first),
                     least_of(v.page_end, first + v.pages_per_split * page_size), v.position, &w,
                     &o);
    }
    store_part(a, query, head, part, &w, o);
}
