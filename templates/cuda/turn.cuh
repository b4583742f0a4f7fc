// turn.cuh -- what keys have by their positions: R_t m of gen/parts/rotating-mean.lua, or RoPE as a
// whole, which gen/parts/pre_rope.lua takes off.

//% if kernel.writes or kernel.name == "restore_rows" then
// Sine and cosine of x, |x| < 2^31, within 2^-50: Taylor's series about the nearest quarter of a
// turn.
INLINE void $(s "sine_cosine")(double x, double* sine, double* cosine)
{
    const double quarters = x * 0.63661977236758134308;
    const int64_t nearest = (int64_t)(quarters + (quarters < 0.0 ? -0.5 : 0.5));
    const double n = (double)nearest;
    double r = __fma_rn(n, -1.57079632679489661923, x);
    r = __fma_rn(n, -6.12323399573676588613e-17, r);
    const double z = r * r;
    double s = 1.0 / 355687428096000.0, c = 1.0 / 20922789888000.0;
    //% local function inverse(n)
    //%     local product = 1
    //%     for i = 2, n do product = product * i end
    //%     return ("%s1.0 / %d.0"):format(n % 4 > 1 and "-" or "", product)
    //% end
    //% for n = 15, 3, -2 do
    s = __fma_rn(s, z, $(inverse(n)));
    c = __fma_rn(c, z, $(inverse(n - 1)));
    //% end
    s = __fma_rn(s * z, r, r);
    c = __fma_rn(c, z, 1.0);
    const double turned_s = nearest & 1 ? c : s, turned_c = nearest & 1 ? s : c;
    *sine = nearest & 2 ? -turned_s : turned_s;
    *cosine = (nearest + 1) & 2 ? -turned_c : turned_c;
}

//% if codec.unrotated then
// turns  double: 1 for pairs (i, i + dims / 2), 0 for (2 i, 2 i + 1); angles of pairs, [dim / 2];
//        how many channels turn, dims

// The number of channel i's pair, of those that turn.  other: the pair's other channel.
INLINE int $(s "pair_of")(const double* turns, int i, int* other)
{
    const int half = (int)turns[1 + $(codec.head_dim // 2)] / 2;
    const bool halves = turns[0] != 0.0;
    *other = halves ? (i < half ? i + half : i - half) : i ^ 1;
    return halves ? i % half : i / 2;
}

// A channel that is turned by an angle, x, of a pair whose other one is y; is_first: of the two.
INLINE float $(s "turned_by")(double sine, double cosine, bool is_first, float x, float y)
{
    return (float)(is_first ? (double)x * cosine - (double)y * sine
                            : (double)x * cosine + (double)y * sine);
}

// Channel i of a row turned to a position, with direction -1 back from it: x is it, y the other one
// of its pair.
INLINE float $(s "turned")(const double* turns, int64_t position, double direction, int i, float x,
                      float y)
{
    int other;
    double s, c;
    const int pair = $(s "pair_of")(turns, i, &other);
    $(s "sine_cosine")((double)position * turns[1 + pair], &s, &c);
    return $(s "turned_by")(s * direction, c, i < other, x, y);
}

INLINE bool $(s "does_turn")(const double* turns, int i)
{
    return i < (int)turns[1 + $(codec.head_dim // 2)];
}

// x [dim] in shared memory, turned to a position.
INLINE void $(s "turn_row")(const double* turns, int64_t position, float* x)
{
    __shared__ float y[$(codec.head_dim)];
    __syncthreads();
    for (int i = threadIdx.x; i < $(codec.head_dim); i += cta_threads) {
        int other;
        if ($(s "does_turn")(turns, i)) $(s "pair_of")(turns, i, &other);
        y[i] = $(s "does_turn")(turns, i)
            ? $(s "turned")(turns, position, 1.0, i, x[i], x[other]) : x[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < $(codec.head_dim); i += cta_threads) x[i] = y[i];
    __syncthreads();
}

//% else
// Channel i of R_t m.
INLINE float $(s "turned_mean")(const float* record, int64_t position, int i)
{
    enum { dim = $(codec.head_dim) };
    const float* mean = record + $(codec.table_at("rotating_mean"));
    double s, c;
    $(s "sine_cosine")((double)position * (double)mean[2 * dim + i], &s, &c);
    return (float)((double)mean[i] * c + (double)mean[dim + i] * s);
}
//% end
//% end
//% if kernel.name == "prepare_query" and codec.by_position then
// q . R_t m = sum over angles of A cos(t angle) + B sin(t angle), of the one or two channels that
// turn by the angle.  To `to`: pairs of A and B, [dim], angles as parts of 2^64 of a turn, [dim],
// and how many there are.  q is in the original basis.
INLINE void $(s "turn_scores")(const float* q, const float* record, float* to)
{
    enum { dim = $(codec.head_dim) };
    __shared__ int count[cta_warps];
    const float* mean = record + $(codec.table_at("rotating_mean"));
    const float *side = mean + dim, *angle = side + dim, *partner = angle + dim;
    const uint32_t before = (1u << threadIdx.x % 32) - 1u;
    int num = 0;
#pragma unroll 1
    for (int from = 0; from < dim; from += cta_threads) {
        const int i = from + threadIdx.x, at = least_of(i, dim - 1);
        int other = partner[at] >= 0.0f && partner[at] < (float)dim ? (int)partner[at] : at;
        if (partner[other] != (float)at || angle[other] != angle[at]) other = at;
        const bool first = i < dim && at <= other;
        const uint32_t firsts = __ballot_sync(0xffffffffu, first);
        __syncthreads();
        if (threadIdx.x % 32 == 0) count[threadIdx.x / 32] = __popc(firsts);
        __syncthreads();
        int place = num + __popc(firsts & before);
        for (int w = 0; w < cta_warps; ++w) {
            if (w < (int)threadIdx.x / 32) place += count[w];
            num += count[w];
        }
        if (!first) continue;
        to[2 * place] = q[at] * mean[at] + (other != at ? q[other] * mean[other] : 0.0f);
        to[2 * place + 1] = q[at] * side[at] + (other != at ? q[other] * side[other] : 0.0f);
        double turns = (double)angle[at] * 0.15915494309189533577;
        turns -= (double)(int64_t)turns;
        if (turns < 0.0) turns += 1.0;
        ((uint64_t*)(to + 2 * dim))[place] = (uint64_t)(turns * 0x1p64);
    }
    if (threadIdx.x == 0) ((int*)to)[4 * dim] = num;
}
//% end
//% if kernel.scores then
// Sine and cosine of parts of 2^32 of a turn, within 1e-7: as above, in float.
INLINE void $(s "turn_of")(uint32_t part, float* sine, float* cosine)
{
    const uint32_t quarter = (part + 0x20000000u) >> 30;
    const float x = (float)(int32_t)(part - (quarter << 30)) * 1.4629180792671596e-9f;
    const float z = x * x;
    float s = mul_add(z, 2.7557319e-6f, -1.98412698e-4f);
    float c = mul_add(z, 2.48015873e-5f, -1.38888889e-3f);
    s = mul_add(s, z, 8.3333333e-3f);
    c = mul_add(c, z, 4.1666667e-2f);
    s = mul_add(s, z, -1.6666667e-1f);
    c = mul_add(c, z, -0.5f);
    s = mul_add(s * z, x, x);
    c = mul_add(c, z, 1.0f);
    const float turned_s = quarter & 1u ? c : s, turned_c = quarter & 1u ? s : c;
    *sine = quarter & 2u ? -turned_s : turned_s;
    *cosine = (quarter + 1u) & 2u ? -turned_c : turned_c;
}

//% if codec.by_position then
// Adds to this thread's scores, of a row of pages, what its key lost by its position.
INLINE void $(s "add_turned")(const kvl__device_attend& a, int head, int row, bool is_visible,
                         float (*scores)[cta_threads])
{
    enum { dim = $(codec.head_dim), heads = $(plan.turn_heads) };       // that a pass serves
    const int64_t first = (blockIdx.z * (int64_t)gridDim.y + head) * num_heads;
    const uint32_t position = (uint32_t)(row + a.windows.sink_len);
#pragma unroll 1
    for (int h = 0; is_visible && h < num_heads; h += heads) {
        const float* turns = (const float*)a.prepared + (first + h) * a.query_floats + 2 * dim;
        const uint64_t* angles = (const uint64_t*)(turns + 2 * dim);
        const int num = ((const int*)turns)[4 * dim];
        float sums[heads] = { 0.0f };
#pragma unroll 1
        for (int i = 0; i < num; ++i) {
            float s, c;
            $(s "turn_of")((uint32_t)(angles[i] * position >> 32), &s, &c);
#pragma unroll
            for (int k = 0; k < heads; ++k) {
                const float2 of = *(const float2*)(turns + k * (int64_t)a.query_floats + 2 * i);
                sums[k] = mul_add(of.x, c, mul_add(of.y, s, sums[k]));
            }
        }
#pragma unroll
        for (int k = 0; k < heads; ++k) scores[h + k][threadIdx.x] += sums[k];
    }
}
//% end
//% end
