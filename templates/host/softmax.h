// softmax.h -- online softmax of num_heads heads.  The empty set is max = -inf, sum = 0, o = 0.

// Sums are kept lane by lane until the end.
typedef struct softmax {
    float max[num_heads], sum[num_heads][lanes];
} softmax;

// e^x for x <= 0, relative error below 3e-7; 0 below -87.
//     x = n ln 2 + r, |r| <= ln 2 / 2:   e^x = 2^n (1 + r + r^2/2 + ... + r^6/720)
// ln 2 is split so that n times its first part is exact.
INLINE vf exp_negative(vf x)
{
    const vi visible = x > -87.0f;
    const vf n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    const vf r = mul_add(n, repeat(2.12194440e-4f), mul_add(n, repeat(-0.693359375f), x));
    vf y = repeat(1.0f / 720.0f);
    y = times_plus(y, r, repeat(1.0f / 120.0f));
    y = times_plus(y, r, repeat(1.0f / 24.0f));
    y = times_plus(y, r, repeat(1.0f / 6.0f));
    y = times_plus(y, r, repeat(0.5f));
    y = times_plus(y, r, repeat(1.0f));
    y = times_plus(y, r, repeat(1.0f));
    const vi exponent = (vi)(n + 12582912.0f) << 23;        // n is in the low bits of the sum
    return (vf)(((vi)y + exponent) & visible);
}

// cap * tanh(s / cap), absolute error of tanh below 2e-7.
//     |y| < 0.3: y - y^3/3 + 2y^5/15 - 17y^7/315 + 62y^9/2835;   else (1 - e^-2|y|) / (1 + e^-2|y|)
INLINE vf soft_cap(vf s, float cap)
{
    const vf y = s / cap, a = (vf)((vi)y & 0x7fffffff), yy = y * y;
    const vf e = exp_negative(a * -2.0f), far = (1.0f - e) / (1.0f + e);
    const vf near = a * (1.0f + yy * (-0.333333333f + yy * (0.133333333f
                     + yy * (-0.053968254f + yy * 0.021869489f))));
    const vf t = select(a < 0.3f, near, far);
    return cap * (vf)((vi)t | ((vi)y & (vi)repeat(-0.0f)));
}

// ln x of a normal x > 0:  x = 2^n m, sqrt(1/2) <= m < sqrt(2),  ln m = 2 artanh(s),
// s = (m - 1) / (m + 1).
static float natural_log(float x)
{
    const uint32_t u = bits_of(x) - 0x3f3504f3u;            // sqrt(1/2)
    const float n = (float)((int32_t)u >> 23);
    const float m = float_of((u & 0x7fffffu) + 0x3f3504f3u);
    const float s = (m - 1.0f) / (m + 1.0f), ss = s * s;
    const float tail = ss * (0.333333333f + ss * (0.2f + ss * (0.142857143f + ss * 0.111111111f)));
    return n * 0.693147181f + 2.0f * (s + s * tail);
}

INLINE void softmax_start(softmax* s, float* o)
{
    for (int head = 0; head < num_heads; ++head) {
        s->max[head] = -__builtin_inff();
        store(s->sum[head], repeat(0.0f));
    }
    for (int i = 0; i < num_heads * head_dim_v; ++i) o[i] = 0.0f;
}

// A head's scores [count], of which [first, end) are visible, become weights, 0 where they are not.
// count is a multiple of the vector's width; the first score is of the row at `position`, counted
// from the query's.  o [head_dim_v] is brought to the greatest score so far.
INLINE void softmax_add(softmax* s, const kvl__attend_args* a, int head, float* scores, int count,
                         int first, int end, int64_t position)
{
    const float hidden = -__builtin_inff();
    float* o = a->o + head * head_dim_v;
    if (a->soft_cap > 0.0f)
        for (int i = 0; i < count; i += lanes)
            store(scores + i, soft_cap(load(scores + i), a->soft_cap));
    if (a->slopes)
        for (int i = 0; i < count; ++i) scores[i] += a->slopes[head] * (float)(position + i);
    for (int i = 0; i < first; ++i) scores[i] = hidden;
    for (int i = end; i < count; ++i) scores[i] = hidden;

    vf top = repeat(s->max[head]);
    for (int i = 0; i < count; i += lanes) top = greater(load(scores + i), top);
    const float max = greatest_lane(top);
    if (max > s->max[head]) {
        const float shrink = exp_negative(repeat(s->max[head] - max))[0];
        s->max[head] = max;
        store(s->sum[head], load(s->sum[head]) * shrink);
        for (int i = 0; i < head_dim_v; i += lanes) store(o + i, load(o + i) * shrink);
    }
    vf sum = load(s->sum[head]);
    for (int i = 0; i < count; i += lanes) {
        const vf weight = exp_negative(load(scores + i) - max);
        store(scores + i, weight);
        sum += weight;
    }
    store(s->sum[head], sum);
}

INLINE void softmax_finish(const softmax* s, float* o, float* lse)
{
    for (int head = 0; head < num_heads; ++head, o += head_dim_v) {
        lse[head] = -__builtin_inff();
        const float sum = sum_lanes(load(s->sum[head]));
        if (!(sum > 0.0f)) continue;
        lse[head] = s->max[head] + natural_log(sum);
        const float share = 1.0f / sum;
        for (int i = 0; i < head_dim_v; i += lanes) store(o + i, load(o + i) * share);
    }
}
