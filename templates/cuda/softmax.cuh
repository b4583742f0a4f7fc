// softmax.cuh -- online softmax of a strip of scores, one warp a head.
//
// The empty set is max = -inf, sum = 0, o = 0.  Every value is shared by the CTA.

enum { strip_rows = cta_threads };

typedef struct softmax {
    float scores[num_heads][strip_rows];       // of a strip; then weights
    float max[num_heads], sum[num_heads];
    float shrink[num_heads];                   // what the output so far is multiplied with
} softmax;

INLINE float hidden_score() { return -__int_as_float(0x7f800000); }

INLINE void softmax_start(softmax* s)
{
    for (int head = threadIdx.x; head < num_heads; head += cta_threads) {
        s->max[head] = hidden_score();
        s->sum[head] = 0.0f;
    }
}

// cap * tanh(s / cap)
INLINE float capped(float score, float cap)
{
    return cap > 0.0f ? cap * tanhf(score / cap) : score;
}

// Scores [num_heads, rows], capped, -inf where not visible, become weights.
INLINE void softmax_add(softmax* s, int rows)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
    for (int head = warp; head < num_heads; head += cta_warps) {
        float top = s->max[head], sum = 0.0f;
        for (int i = lane; i < rows; i += 32) top = most(top, s->scores[head][i]);
        top = warp_most(top);
        const bool any = top > hidden_score();
        for (int i = lane; i < rows; i += 32) {
            const float weight = any ? expf(s->scores[head][i] - top) : 0.0f;
            s->scores[head][i] = weight;
            sum += weight;
        }
        sum = warp_sum(sum);
        const float shrink = any ? expf(s->max[head] - top) : 1.0f;
        __syncwarp();
        if (lane == 0) {
            s->shrink[head] = shrink;
            s->sum[head] = s->sum[head] * shrink + sum;
            s->max[head] = top;
        }
    }
    __syncthreads();
}
