// softmax.cuh -- online softmax of a strip of scores, one warp a head.
//
// The empty set is max = -inf, sum = 0, o = 0.  Every value is shared by the CTA.

enum { strip_rows = cta_threads };

typedef struct softmax {
    alignas(16) float scores[num_heads][strip_rows];     // of a strip, products alone; then weights
    int   distance[strip_rows];                // position of a key, counted from the query's
    float slopes[num_heads];                   // ALiBi's, times distance; 0: none
    float max[num_heads], sum[num_heads];
    float shrink[num_heads];                   // what the output so far is multiplied with
} softmax;

INLINE float hidden_score() { return -__int_as_float(0x7f800000); }

INLINE void softmax_start(softmax* s)
{
#pragma unroll 1
    for (int head = threadIdx.x; head < num_heads; head += cta_threads) {
        s->max[head] = hidden_score();
        s->sum[head] = 0.0f;
    }
}

// Scores [num_heads, rows], -inf where not visible, are capped, cap * tanh(score / cap), and become
// weights.
INLINE void softmax_add(softmax* s, int rows, float cap)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
#pragma unroll 1
    for (int head = warp; head < num_heads; head += cta_warps) {
        float top = s->max[head], sum = 0.0f;
#pragma unroll 1
        for (int i = lane; i < rows; i += 32) {
            float score = s->scores[head][i];
            if (score == hidden_score()) continue;
            if (cap > 0.0f) score = cap * tanhf(__fdividef(score, cap));
            score = mul_add(s->slopes[head], (float)s->distance[i], score);
            s->scores[head][i] = score;
            top = most(top, score);
        }
        top = warp_most(top);
        const bool any = top > hidden_score();
#pragma unroll 1
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
