// eval_statistics.c -- KL divergence, means, quantiles, perplexity.

#include "eval_statistics.h"

#include "matrix.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LANES = 8,      // partial sums: one order on every processor, which compilers can vectorise
    CHUNK = 512     // values at a time: their exponentials stay in the first cache
};

// Loops that a function for wider vectors has too. Without fused multiply-adds, which it has not
// either, both have the same bits.
#define WIDE_LOOP static inline __attribute__((always_inline))

// exp(x) = 2^k exp(r), k = round(x / ln 2), |r| <= ln 2 / 2; exp(r) by Taylor's series up to
// r^13 / 13! (the next term is below 5e-18). Adding 1.5 2^52 rounds to a whole number, in the low
// bits. At -709 k is -1023, which makes the scale 0.
WIDE_LOOP double exp_of(double x)
{
    const double shift = 6755399441055744.0;
    const double y = x < -709.0 ? -709.0 : x;
    const double shifted = y * 1.4426950408889634 + shift;
    const double k = shifted - shift;
    // ln 2 in two parts: k times the first is exact.
    const double r = (y - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023u) << 52;  // the shift's own bits fall out at the top
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

double eval_exp(double x) { return exp_of(x); }

WIDE_LOOP int64_t best_of(const float* logits, int64_t n)
{
    const float* x = logits;
    float lanes[LANES];
    float max = x[0];
    int64_t i = 0;
    for (int lane = 0; lane < LANES; lane++) { lanes[lane] = x[0]; }
    for (; i + LANES <= n; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
        }
    }
    for (; i < n; i++) { max = x[i] > max ? x[i] : max; }
    for (int lane = 0; lane < LANES; lane++) { max = lanes[lane] > max ? lanes[lane] : max; }
    for (i = 0; x[i] != max; i++) { }
    return i;
}

int64_t eval_best(const float* logits, int64_t n) { return best_of(logits, n); }

WIDE_LOOP double add_lanes(const double lanes[LANES])
{
    double sum = 0.0;
    for (int lane = 0; lane < LANES; lane++) { sum += lanes[lane]; }
    return sum;
}

// Adds exp(x[i] - max) to lanes; e gets the terms. n is a multiple of LANES.
WIDE_LOOP void add_exps(const float* x, int64_t n, double max, double* e, double* lanes)
{
    for (int64_t i = 0; i < n; i++) { e[i] = exp_of((double)x[i] - max); }
    for (int64_t i = 0; i < n; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) { lanes[lane] += e[i + lane]; }
    }
}

WIDE_LOOP void add_products(const double* e, const float* a, const float* b, int64_t n,
                            double lanes[LANES])
{
    for (int64_t i = 0; i < n; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            lanes[lane] += e[i + lane] * ((double)a[i + lane] - (double)b[i + lane]);
        }
    }
}

WIDE_LOOP eval_pair compare(const float* base, const float* cache, int64_t vocab_size,
                            int64_t target)
{
    eval_pair out = { .kl = 0.0 };
    out.top_base = best_of(base, vocab_size);
    out.top = best_of(cache, vocab_size);
    const double max_a = (double)base[out.top_base], max_b = (double)cache[out.top];
    double sum_a[LANES] = { 0.0 }, sum_b[LANES] = { 0.0 }, dot[LANES] = { 0.0 };
    double e[CHUNK];
    const int64_t whole = vocab_size / LANES * LANES;
    for (int64_t at = 0; at < whole; at += CHUNK) {
        const int64_t n = whole - at < CHUNK ? whole - at : CHUNK;
        add_exps(base + at, n, max_a, e, sum_a);
        add_products(e, base + at, cache + at, n, dot);
        add_exps(cache + at, n, max_b, e, sum_b);
    }
    for (int64_t i = whole; i < vocab_size; i++) {
        const double p = exp_of((double)base[i] - max_a);
        sum_a[i % LANES] += p;
        dot[i % LANES] += p * ((double)base[i] - (double)cache[i]);
        sum_b[i % LANES] += exp_of((double)cache[i] - max_b);
    }
    const double a = add_lanes(sum_a);
    const double z_a = max_a + log(a), z_b = max_b + log(add_lanes(sum_b));
    out.kl = add_lanes(dot) / a - (z_a - z_b);
    out.nll_base = z_a - (double)base[target];
    out.nll = z_b - (double)cache[target];
    return out;
}

#if defined(__x86_64__) && !defined(__AVX2__)
__attribute__((target("avx2"))) static eval_pair compare_avx2(const float* base,
                                                              const float* cache,
                                                              int64_t vocab_size, int64_t target)
{
    return compare(base, cache, vocab_size, target);
}
#endif

eval_pair eval_compare(const float* base, const float* cache, int64_t vocab_size, int64_t target)
{
#if defined(__x86_64__) && !defined(__AVX2__)
    if (matrix_has_level(MATRIX_AVX2)) { return compare_avx2(base, cache, vocab_size, target); }
#endif
    return compare(base, cache, vocab_size, target);
}

double eval_log_sum_exp(const float* logits, int64_t n)
{
    const double max = (double)logits[eval_best(logits, n)];
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) { sum += exp_of((double)logits[i] - max); }
    return max + log(sum);
}

eval_mean eval_mean_of(const double* x, int64_t n)
{
    eval_mean out = { (double)NAN, (double)NAN };
    double sum = 0.0, squares = 0.0;
    if (n < 1) { return out; }
    for (int64_t i = 0; i < n; i++) { sum += x[i]; }
    out.mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) { squares += (x[i] - out.mean) * (x[i] - out.mean); }
    if (n > 1) { out.standard_error = sqrt(squares / (double)(n - 1) / (double)n); }
    return out;
}

static int compare_floats(const void* a, const void* b)
{
    const float x = *(const float*)a, y = *(const float*)b;
    return (x > y) - (x < y);
}

double eval_quantile(float* x, int64_t n, double share)
{
    if (n < 1) { return (double)NAN; }
    qsort(x, (size_t)n, sizeof *x, compare_floats);
    const double at = share * (double)(n - 1);
    const int64_t low = (int64_t)at;
    const int64_t high = low + 1 < n ? low + 1 : low;
    return (double)x[low] + (at - (double)low) * ((double)x[high] - (double)x[low]);
}

eval_perplexity eval_perplexity_of(const double* nll, const double* nll_base, int64_t n)
{
    const double mean = eval_mean_of(nll, n).mean, mean_base = eval_mean_of(nll_base, n).mean;
    eval_perplexity out = { exp(mean), exp(mean_base), 0.0, (double)NAN };
    double squares = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double e = out.cache * (nll[i] - mean) - out.base * (nll_base[i] - mean_base);
        squares += e * e;
    }
    out.diff = out.cache - out.base;
    if (n > 1) { out.diff_se = sqrt(squares / (double)(n - 1) / (double)n); }
    return out;
}
