// steps.cu -- the steps of a transformer between its products with matrices, on rows of floats.

extern "C" __global__ void norm_rows(const __grid_constant__ device_norm a)
{
    __shared__ float parts[cta_warps];
    const float* x = a.x + blockIdx.x * a.n;
    float* out = a.out + blockIdx.x * a.n;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < a.n; i += cta_threads) sum = __fmaf_rn(x[i], x[i], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = parts[0] + parts[1] + parts[2] + parts[3];
    const float scale = 1.0f / __fsqrt_rn(sum / (float)a.n + a.eps);
    for (int64_t i = threadIdx.x; i < a.n; i += cta_threads) out[i] = x[i] * scale * a.weight[i];
}

extern "C" __global__ void add_rows(const __grid_constant__ device_add a)
{
    for (int64_t i = threadIdx.x; i < a.n; i += cta_threads)
        a.out[blockIdx.x * a.n + i] = a.a[blockIdx.x * a.n + i] + a.b[blockIdx.x * a.b_stride + i];
}

extern "C" __global__ void rotate_rows(const __grid_constant__ device_rotate a)
{
    const float* table = a.table + blockIdx.x * (int64_t)a.dims;
    float* x = a.x + blockIdx.x * (int64_t)a.num_heads * a.head_dim;
    const int pairs = a.dims / 2;
    for (int i = threadIdx.x; i < a.num_heads * pairs; i += cta_threads) {
        const int pair = i % pairs;
        float* head = x + i / pairs * (int64_t)a.head_dim;
        float* first = head + (a.split_halves ? pair : 2 * pair);
        float* second = a.split_halves ? first + pairs : first + 1;
        const float u = *first, w = *second, c = table[2 * pair], s = table[2 * pair + 1];
        *first = u * c - w * s;
        *second = u * s + w * c;
    }
}

extern "C" __global__ void gate_rows(const __grid_constant__ device_gate a)
{
    float* gate = a.gate + blockIdx.x * a.n;
    const float* up = a.up + blockIdx.x * a.n;
    for (int64_t i = threadIdx.x; i < a.n; i += cta_threads) {
        const float g = gate[i];
        const float t = tanhf(0.7978845608f * (g + 0.044715f * g * g * g));
        gate[i] = (a.gelu ? 0.5f * g * (1.0f + t) : g / (1.0f + expf(-g))) * up[i];
    }
}

// ATTENTION WITHIN A BATCH
//
// A warp takes every fourth visible key; a lane has every 32nd channel.  The softmax of a warp is
// online: weights are relative to its largest score so far.

enum { lane_channels = 18 };           // of up to 576

// Joins the warps and what was before them: one part each, o relative to its largest score.
__device__ __forceinline__ void join_parts(const device_attend& a, int64_t at, const float* largest,
                                           const float* sums, const float (*parts)[576])
{
    const float before = a.lse[at];
    float top = before;
    for (int w = 0; w < cta_warps; ++w) top = fmaxf(top, largest[w]);
    float sum = expf(before - top), weight[cta_warps];
    const float kept = sum;
    for (int w = 0; w < cta_warps; ++w) {
        weight[w] = expf(largest[w] - top);
        sum += weight[w] * sums[w];
    }
    float* o = a.o + at * a.head_dim_v;
    for (int i = threadIdx.x; i < a.head_dim_v; i += cta_threads) {
        float x = kept * o[i];
        for (int w = 0; w < cta_warps; ++w) x += weight[w] * parts[w][i];
        o[i] = x / sum;
    }
    __syncthreads();                   // every thread has read what was before
    if (threadIdx.x == 0) a.lse[at] = top + logf(sum);
}

extern "C" __global__ void attend_rows(const __grid_constant__ device_attend a)
{
    __shared__ float parts[cta_warps][576], largest[cta_warps], sums[cta_warps];
    const int row = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int kv_head = head / (a.num_q_heads / a.num_kv_heads);
    const int64_t at = row * (int64_t)a.num_q_heads + head;
    const float* q = a.q + at * a.head_dim;
    const int oldest = a.window_len > 0 && row >= a.window_len ? row - a.window_len + 1 : 0;
    float o[lane_channels], top = -__int_as_float(0x7f800000), sum = 0.0f;
    for (int c = 0; c < lane_channels; ++c) o[c] = 0.0f;
    for (int key = oldest + warp; key <= row; key += cta_warps) {
        const int64_t at_key = key * (int64_t)a.num_kv_heads + kv_head;
        const float *k = a.k + at_key * a.head_dim, *v = a.v + at_key * a.head_dim_v;
        float score = 0.0f;
        for (int i = lane; i < a.head_dim; i += 32) score = __fmaf_rn(q[i], k[i], score);
        score = warp_sum(score) * a.softmax_scale;
        const float next = fmaxf(top, score), shrink = expf(top - next), w = expf(score - next);
        sum = sum * shrink + w;
        for (int c = 0; c < lane_channels; ++c)
            if (lane + 32 * c < a.head_dim_v) o[c] = o[c] * shrink + w * v[lane + 32 * c];
        top = next;
    }
    for (int c = 0; c < lane_channels; ++c)
        if (lane + 32 * c < a.head_dim_v) parts[warp][lane + 32 * c] = o[c];
    if (lane == 0) {
        largest[warp] = top;
        sums[warp] = sum;
    }
    __syncthreads();
    join_parts(a, at, largest, sums, parts);
}
