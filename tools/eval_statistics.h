// eval_statistics.h -- the numbers of an evaluation: two distributions at one position, and what
// many positions and windows come to.

#ifndef KVLOOM_EVAL_STATISTICS_H
#define KVLOOM_EVAL_STATISTICS_H

#include <stdint.h>

// Next-token distributions p (base) and q (cache) at one position, from finite logits.
typedef struct eval_pair {
    double kl;                 // KL(p || q), nats
    double nll_base, nll;      // -log p(target), -log q(target)
    int64_t top_base, top;     // the most probable token; the first of equals
} eval_pair;

// With a = base logits, b = cache logits, z = log sum exp, everything in double:
//
//     KL(p || q) = sum_i p_i (a_i - b_i) - (z_a - z_b),   p_i = exp(a_i - z_a)
//
// No probability is rounded up and no term is left out. Where a = b every term is 0, so that KL is
// exactly 0; rounding can leave a KL that is 0 at some -1e-16.
eval_pair eval_compare(const float* base, const float* cache, int64_t vocab_size, int64_t target);

int64_t eval_best(const float* logits, int64_t n);  // index of the largest; the first of equals
double eval_log_sum_exp(const float* logits, int64_t n);

// exp of x <= 0 with a relative error below 4e-16; 0 below -708.
double eval_exp(double x);

typedef struct eval_mean {
    double mean;               // NaN for no values
    double standard_error;     // sqrt(sum (x - mean)^2 / (n - 1) / n); NaN below two values
} eval_mean;

eval_mean eval_mean_of(const double* x, int64_t n);

// Sorts x in place and returns its quantile, interpolated between neighbours; NaN for no values.
double eval_quantile(float* x, int64_t n, double share);

// Perplexity exp(mean nll) of windows with means nll and nll_base [n]: the difference, and its
// standard error from the windows' paired differences, to first order:
// e_w = ppl (nll_w - mean) - ppl_base (nll_base_w - mean_base).
typedef struct eval_perplexity {
    double cache, base, diff, diff_se;
} eval_perplexity;

eval_perplexity eval_perplexity_of(const double* nll, const double* nll_base, int64_t n);

#endif
