// matrix_layer.c -- the steps of a transformer between the products, on plain floats.
//
// Loops that a compiler turns into vectors as they stand: sums have eight lanes, written out,
// since C99 fixes the order of additions; exp is a polynomial without branches. Those with exp are
// compiled a second time for AVX2 where the build is for plain x86-64.
#include "matrix.h"

#include <math.h>
#include <string.h>

enum { LANES = 8 };

// Inlined, so that the caller's instruction set decides the vectors.
#define EXP_LOOP static inline __attribute__((always_inline))

static float sum_of_lanes(const float lanes[LANES])
{
    return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
           ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

EXP_LOOP float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

EXP_LOOP uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// exp(x) = 2^k exp(r), with k the nearest integer to x / ln 2 and |r| <= ln 2 / 2. r is found with
// ln 2 in two parts, the first of which has few enough bits for k times it to be exact.
// Coefficients are 1/n!: at |r| = 0.35 the first omitted term, r^7 / 5040, is 1.2e-7 of the
// result. 2^k is made in two halves, for k from -150 to 150 exceeds the exponents of one float.
// Below -104 the result is 0, above 88.73 it is infinity, and NaN stays NaN. One condition bounds
// both sides: a compiler makes branches of two, and then no vectors.
EXP_LOOP float exp_of(float x)
{
    const uint32_t sign = bits_of_float(x) & 0x80000000u;
    const float limit = float_of_bits(sign | bits_of_float(104.0f));
    const float bounded = fabsf(x) > 104.0f ? limit : x;
    const float shifted = bounded * 1.44269504f + 12582912.0f; // 1.5 * 2^23: k in the low bits
    const float k = shifted - 12582912.0f;
    const float r = (bounded - k * 0.693359375f) + k * 2.12194440e-4f;
    float p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = (p * r + 1.0f) * r + 1.0f;
    const uint32_t raised = (bits_of_float(shifted) ^ 256u) & 511u; // k + 256
    const uint32_t half = raised / 2;                               // floor(k / 2) + 128
    return p * float_of_bits((half - 1) << 23) * float_of_bits((raised - half - 1) << 23);
}

void matrix_rms_norm(const matrix_norm* norm, const float* x, int64_t n, float* out)
{
    float lanes[LANES] = { 0 };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) { lanes[lane] += x[i + lane] * x[i + lane]; }
    }
    for (; i < n; i++) { lanes[0] += x[i] * x[i]; }
    const float factor = 1.0f / sqrtf(sum_of_lanes(lanes) / (float)n + norm->eps);
    if (norm->weight == NULL) {
        for (i = 0; i < n; i++) { out[i] = x[i] * factor; }
        return;
    }
    for (i = 0; i < n; i++) { out[i] = x[i] * factor * norm->weight[i]; }
}

static int64_t rotated_dims(const matrix_rope* rope)
{
    return rope->dims > 0 ? rope->dims : rope->head_dim;
}

// In double: at position 100000 a float angle is off by 4e-3.
void matrix_rope_table(const matrix_rope* rope, int64_t position, float* table)
{
    const int64_t dims = rotated_dims(rope);
    const double scale = rope->linear_scale != 0.0 ? rope->linear_scale : 1.0;
    for (int64_t i = 0; i < dims / 2; i++) {
        const double frequency = pow(rope->base, -2.0 * (double)i / (double)dims);
        const double factor = rope->factors != NULL ? (double)rope->factors[i] : 1.0;
        const double angle = (double)position * scale * frequency / factor;
        table[2 * i] = (float)cos(angle);
        table[2 * i + 1] = (float)sin(angle);
    }
}

void matrix_rope_apply(const matrix_rope* rope, const float* table, float* x, int64_t num_heads)
{
    const int64_t half = rotated_dims(rope) / 2;
    const int64_t step = rope->split_halves ? 1 : 2;     // from one pair to the next
    const int64_t other = rope->split_halves ? half : 1; // from the first of a pair to the second
    for (int64_t head = 0; head < num_heads; head++) {
        float* channels = x + head * rope->head_dim;
        for (int64_t i = 0; i < half; i++) {
            const float cosine = table[2 * i], sine = table[2 * i + 1];
            const float a = channels[i * step], b = channels[i * step + other];
            channels[i * step] = a * cosine - b * sine;
            channels[i * step + other] = a * sine + b * cosine;
        }
    }
}

// The division comes last: exp may be infinite, and g / infinity is the right limit, 0.
EXP_LOOP void silu_mul(const float* gate, const float* up, int64_t n, float* out)
{
    for (int64_t i = 0; i < n; i++) { out[i] = gate[i] / (1.0f + exp_of(-gate[i])) * up[i]; }
}

// 1/2 (1 + tanh(u)) = 1 / (1 + exp(-2u)).
EXP_LOOP void gelu_mul(const float* gate, const float* up, int64_t n, float* out)
{
    const float twice = 1.59576912f; // 2 sqrt(2 / pi)
    for (int64_t i = 0; i < n; i++) {
        const float g = gate[i];
        const float u = twice * (g + 0.044715f * g * g * g);
        out[i] = g / (1.0f + exp_of(-u)) * up[i];
    }
}

// x[i] = exp(x[i] - largest).
EXP_LOOP void exp_less(float* x, int64_t n, float largest)
{
    for (int64_t i = 0; i < n; i++) { x[i] = exp_of(x[i] - largest); }
}

#if defined(__x86_64__) && !defined(__AVX2__)

#define AVX2 __attribute__((target("avx2"))) static

AVX2 void silu_mul_avx2(const float* gate, const float* up, int64_t n, float* out)
{
    silu_mul(gate, up, n, out);
}

AVX2 void gelu_mul_avx2(const float* gate, const float* up, int64_t n, float* out)
{
    gelu_mul(gate, up, n, out);
}

AVX2 void exp_less_avx2(float* x, int64_t n, float largest) { exp_less(x, n, largest); }

#define EXP_CALL(name, ...)                                                                        \
    (matrix_has_level(MATRIX_AVX2) ? name##_avx2(__VA_ARGS__) : name(__VA_ARGS__))
#else
#define EXP_CALL(name, ...) name(__VA_ARGS__)
#endif

void matrix_silu_mul(const float* gate, const float* up, int64_t n, float* out)
{
    EXP_CALL(silu_mul, gate, up, n, out);
}

void matrix_gelu_mul(const float* gate, const float* up, int64_t n, float* out)
{
    EXP_CALL(gelu_mul, gate, up, n, out);
}

static float largest_of(const float* x, int64_t n)
{
    float lanes[LANES];
    for (int lane = 0; lane < LANES; lane++) { lanes[lane] = -INFINITY; }
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
        }
    }
    for (; i < n; i++) { lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0]; }
    for (int lane = 1; lane < LANES; lane++) {
        lanes[0] = lanes[lane] > lanes[0] ? lanes[lane] : lanes[0];
    }
    return lanes[0];
}

void matrix_softmax(float* x, int64_t n)
{
    const float largest = largest_of(x, n);
    if (largest == -INFINITY) {
        memset(x, 0, (size_t)n * sizeof *x);
        return;
    }
    EXP_CALL(exp_less, x, n, largest);
    float lanes[LANES] = { 0 };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) { lanes[lane] += x[i + lane]; }
    }
    for (; i < n; i++) { lanes[0] += x[i]; }
    matrix_scale(x, n, 1.0f / sum_of_lanes(lanes));
}

void matrix_add(const float* a, const float* b, int64_t n, float* out)
{
    for (int64_t i = 0; i < n; i++) { out[i] = a[i] + b[i]; }
}

void matrix_scale(float* x, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i++) { x[i] *= factor; }
}
