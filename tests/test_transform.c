// test_transform.c -- changes of basis against the SciPy oracle, and what the papers say holds.
//
// Expected matrices come from tests/oracles/transforms.py.

#include "transform_basis.h"
#include "transform_learn.h"
#include "transform_matrix.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef KVLOOM_TEST_ROOT
#define KVLOOM_TEST_ROOT "."
#endif

enum { SAMPLES = 256, MOMENT_SEED = 101, PRICE_SEED = 202 };

static const char* const names[TRANSFORM_NUM_KINDS] = { "balance", "eigen", "whiten", "flat" };

// INPUTS

static int next_integer(uint64_t* state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int)(*state >> 40) % 2048 - 1024;
}

// The moment of the integers that the oracle draws.
static double* oracle_moment(int dim, uint64_t seed)
{
    double* m = square_new(dim);
    double* x = (double*)calloc((size_t)(SAMPLES * dim), sizeof *x);
    uint64_t state = seed;
    for (int i = 0; i < SAMPLES * dim; ++i) x[i] = next_integer(&state);
    for (int t = 0; t < SAMPLES; ++t) {
        double row[MATRIX_DIM_MAX];
        for (int i = 0; i < dim; ++i)
            row[i] = (x[t * dim + i] + 2 * x[t * dim + (i + dim - 1) % dim])
                     * (double)(1 + (i * 7 + (int)seed) % 13);
        for (int i = 0; i < dim; ++i)
            for (int j = 0; j < dim; ++j) m[i * dim + j] += row[i] * row[j];
    }
    free(x);
    return m;
}

// Uniform in -1 .. 1.
static double uniform(uint64_t* state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * ldexp(1, -52) - 1;
}

static double bell(uint64_t* state)
{
    double sum = 0;
    for (int i = 0; i < 6; ++i) sum += uniform(state);
    return sum * sqrt(0.5);                            // 6 of variance 1/3
}

// An orthogonal matrix: Gram-Schmidt of random rows.
static double* random_rotation(int dim, uint64_t seed)
{
    double* q = square_new(dim);
    uint64_t state = seed;
    for (int i = 0; i < dim; ++i) {
        double* row = q + i * dim;
        for (int j = 0; j < dim; ++j) row[j] = bell(&state);
        for (int pass = 0; pass < 2; ++pass) {
            for (int k = 0; k < i; ++k) {
                double dot = 0;
                for (int j = 0; j < dim; ++j) dot += row[j] * q[k * dim + j];
                for (int j = 0; j < dim; ++j) row[j] -= dot * q[k * dim + j];
            }
        }
        double norm = 0;
        for (int j = 0; j < dim; ++j) norm += row[j] * row[j];
        for (int j = 0; j < dim; ++j) row[j] /= sqrt(norm);
    }
    return q;
}

// Q diag(condition^(-i / (dim - 1))) Q^T.
static double* random_moment(int dim, double condition, uint64_t seed)
{
    double* q = random_rotation(dim, seed);
    double* m = square_new(dim);
    for (int k = 0; k < dim; ++k) {
        const double value = pow(condition, -(double)k / (dim - 1));
        for (int i = 0; i < dim; ++i)
            for (int j = 0; j < dim; ++j)
                m[i * dim + j] += value * q[k * dim + i] * q[k * dim + j];
    }
    free(q);
    return m;
}

static transform_basis make(transform_kind kind, int dim, const double* moment, const double* price,
                            double damping)
{
    transform_basis basis;
    char message[256] = "";
    transform_desc desc = { kind, dim, moment, price, 0, damping, damping, damping };
    const int ok = transform_make(&desc, &basis, message, sizeof message);
    cr_assert(ok, "%s, dim %d: %s", names[kind], dim, message);
    return basis;
}

static double greatest(int count, const double* a)
{
    double top = 0;
    for (int i = 0; i < count; ++i) if (fabs(a[i]) > top) top = fabs(a[i]);
    return top;
}

static double difference(int count, const double* a, const double* b)
{
    double top = 0;
    for (int i = 0; i < count; ++i) if (!(fabs(a[i] - b[i]) <= top)) top = fabs(a[i] - b[i]);
    return top;
}

// THE ORACLE

typedef struct expected {
    char   name[32];
    int    rows, columns;
    double x[64 * 64];
} expected;

static void read_expected(const char* name, expected* e)
{
    FILE* file = fopen(KVLOOM_TEST_ROOT "/tests/fixtures/transform_32.txt", "r");
    cr_assert(file != NULL, "transform_32.txt cannot be opened");
    while (fscanf(file, "%31s %d %d", e->name, &e->rows, &e->columns) == 3) {
        for (int i = 0; i < e->rows * e->columns; ++i) {
            const int got = fscanf(file, "%lf", &e->x[i]);
            cr_assert(got == 1, "transform_32.txt: %s ends at number %d", e->name, i);
        }
        if (strcmp(e->name, name) == 0) {
            fclose(file);
            return;
        }
    }
    cr_assert_fail("transform_32.txt has no %s", name);
}

Test(transform, equals_the_oracle)
{
    // Broken by another damping, exponent, scale, order of eigenvectors or side of a product.
    enum { DIM = 32 };
    static expected e;
    double* moment = oracle_moment(DIM, MOMENT_SEED);
    double* price = oracle_moment(DIM, PRICE_SEED);
    double* gram = square_new(DIM);
    for (int kind = 0; kind < TRANSFORM_FLAT; ++kind) {
        transform_basis basis = make((transform_kind)kind, DIM, moment, price, 0);
        read_expected(names[kind], &e);
        const double off = difference(DIM * DIM, basis.forward, e.x);
        cr_assert(off <= 2e-8 * greatest(DIM * DIM, e.x), "%s: off by %.3g of %.3g", names[kind],
                  off, greatest(DIM * DIM, e.x));
        transform_basis_free(&basis);
    }
    transform_basis basis = make(TRANSFORM_FLAT, DIM, moment, price, 0);
    transform_feedback feedback;
    char message[256];
    square_multiply_tn(DIM, basis.forward, basis.forward, gram);
    read_expected("flat_gram", &e);
    cr_assert(difference(DIM * DIM, gram, e.x) <= 2e-8 * greatest(DIM * DIM, e.x),
              "flat: T^T T is off by %.3g", difference(DIM * DIM, gram, e.x));
    const int ok = transform_feedback_make(DIM, basis.price, 0, 0, &feedback, message, 256);
    cr_assert(ok, "%s", message);
    read_expected("flat_constant", &e);
    for (int i = 0; i < DIM; ++i)
        cr_assert(fabs(feedback.spread[i] / e.x[0] - 1) < 1e-7, "flat: D[%d] = %.9g, expected %.9g",
                  i, feedback.spread[i], e.x[0]);
    transform_feedback_free(&feedback);
    transform_basis_free(&basis);
    free(moment);
    free(price);
    free(gram);
}

// PROPERTIES

static const int dims[] = { 16, 32, 48, 64, 80, 96, 112, 128, 192, 208, 240, 256 };
enum { NUM_DIMS = (int)(sizeof dims / sizeof dims[0]) };

Test(transform, hadamard_matrices_of_every_head)
{
    // Broken by an order that no construction serves, or by a row that is not orthogonal.
    double* h = square_new(MATRIX_DIM_MAX);
    double* product = square_new(MATRIX_DIM_MAX);
    for (int dim = 16; dim <= 256; dim += 16) {
        cr_assert(square_hadamard(dim, h), "dim %d: no matrix", dim);
        square_multiply_nt(dim, h, h, product);
        for (int i = 0; i < dim * dim; ++i) {
            cr_assert(fabs(fabs(h[i]) * sqrt(dim) - 1) < 1e-12, "dim %d: entry %d is %g", dim, i,
                      h[i]);
            cr_assert(fabs(product[i] - (i / dim == i % dim)) < 1e-12, "dim %d: H H^T[%d] = %g",
                      dim, i, product[i]);
        }
    }
    const int none = square_hadamard(18, h);
    cr_assert(none == 0, "there is no such matrix of order 18");
    free(h);
    free(product);
}

Test(transform, balance_makes_both_moments_equal)
{
    // Broken by a wrong exponent or side: T M T^T = c^2 H Lambda^1/2 H = c^4 T^-T A T^-1 and every
    // channel of both costs the same.
    for (int i = 0; i < NUM_DIMS; ++i) {
        const int n = dims[i];
        double* moment = random_moment(n, 1e4, 7);
        double* price = random_moment(n, 1e3, 8);
        double* stored = square_new(n);
        transform_basis basis = make(TRANSFORM_BALANCE, n, moment, price, -1);
        square_sandwich(n, basis.forward, moment, stored);
        const double ratio = square_trace(n, stored) / square_trace(n, basis.price);
        for (int j = 0; j < n * n; ++j) basis.price[j] *= ratio;
        const double unit = square_trace(n, stored) / n;
        cr_assert(difference(n * n, stored, basis.price) < 1e-8 * unit, "dim %d: moments differ "
                  "by %.3g", n, difference(n * n, stored, basis.price) / unit);
        for (int j = 0; j < n; ++j)
            cr_assert(fabs(stored[j * n + j] / unit - 1) < 1e-8, "dim %d: channel %d has %.9g of "
                      "the average", n, j, stored[j * n + j] / unit);
        cr_assert(fabs(square_trace(n, stored) / square_trace(n, moment) - 1) < 1e-9,
                  "dim %d: the trace changes", n);
        transform_basis_free(&basis);
        free(moment);
        free(price);
        free(stored);
    }
}

// Mean priced error of rows of a moment when noise of the row's rms, times 1 / sqrt(12), is added
// to each stored channel: one step for the row.
static double sampled_error(int n, const transform_basis* basis, const double* root,
                            const double* price, int rows)
{
    double x[MATRIX_DIM_MAX], y[MATRIX_DIM_MAX], e[MATRIX_DIM_MAX], total = 0;
    uint64_t state = 5;
    for (int t = 0; t < rows; ++t) {
        double norm = 0;
        for (int i = 0; i < n; ++i) y[i] = bell(&state);
        for (int i = 0; i < n; ++i) {
            x[i] = 0;
            for (int j = 0; j <= i; ++j) x[i] += root[i * n + j] * y[j];
        }
        for (int i = 0; i < n; ++i) {
            y[i] = 0;
            for (int j = 0; j < n; ++j) y[i] += basis->forward[i * n + j] * x[j];
            norm += y[i] * y[i];
        }
        for (int i = 0; i < n; ++i) y[i] = 0.5 * uniform(&state) * sqrt(norm / n);
        for (int i = 0; i < n; ++i) {
            e[i] = 0;
            for (int j = 0; j < n; ++j) e[i] += basis->inverse_transpose[j * n + i] * y[j];
        }
        for (int i = 0; i < n; ++i)
            for (int j = 0; j < n; ++j) total += e[i] * price[i * n + j] * e[j];
    }
    return total / rows;
}

Test(transform, loss_of_balance_is_the_squared_trace_over_dim)
{
    // Broken by an inverse transpose that is not one, or by a prediction that is not the loss:
    // (tr Lambda^1/2)^2 / d, of noise of 1/12 a squared step, to sampling error.
    enum { N = 32, ROWS = 4000 };
    double values[N];
    double* moment = random_moment(N, 1e3, 17);
    double* price = random_moment(N, 1e2, 18);
    double *root = square_new(N), *a = square_new(N), *b = square_new(N), *vectors = square_new(N);
    transform_basis basis = make(TRANSFORM_BALANCE, N, moment, price, -1);
    const int info = square_cholesky(N, moment, root);
    cr_assert(info == 0, "a moment of full rank has a root");
    // Lambda is the spectrum of root^T A root as well.
    square_multiply_tn(N, root, price, a);
    square_multiply(N, a, root, b);
    const int eigen = square_eigen(N, b, values, vectors);
    cr_assert(eigen == 0, "eigenvalues");
    double trace = 0;
    for (int i = 0; i < N; ++i) trace += sqrt(values[i]);
    const double loss = trace * trace / N / 12;
    const double sampled = sampled_error(N, &basis, root, price, ROWS);
    cr_assert(fabs(sampled / loss - 1) < 0.05, "loss %.6g, sampled %.6g", loss, sampled);
    const double unit = square_trace(N, moment) * square_trace(N, price) / N / 12;
    cr_assert(fabs(basis.error_token * unit / loss - 1) < 1e-9, "predicted %.9g of %.9g",
              basis.error_token * unit, loss);
    transform_basis_free(&basis);
    free(moment);
    free(price);
    free(root);
    free(a);
    free(b);
    free(vectors);
}

Test(transform, flat_prices_every_channel_alike)
{
    // Broken by a plane rotation of the wrong angle or by columns in the wrong order: D is constant
    // and P is orthogonal, at every head dim and at spectra of 1e6.
    char message[256];
    for (int i = 0; i < NUM_DIMS; ++i) {
        const int n = dims[i];
        double* moment = random_moment(n, i % 2 ? 1e6 : 30, 27);
        double* price = random_moment(n, i % 3 ? 1e6 : 10, 28);
        double* p = square_new(n);
        double* product = square_new(n);
        transform_feedback feedback;
        transform_basis basis = make(TRANSFORM_FLAT, n, moment, price, 0);
        const int ok = transform_feedback_make(n, basis.price, 0, 0, &feedback, message, 256);
        cr_assert(ok, "dim %d: %s", n, message);
        for (int j = 0; j < n; ++j)
            cr_assert(fabs(feedback.spread[j] / feedback.spread[0] - 1) < 1e-6,
                      "dim %d: D[%d] / D[0] = %.9g", n, j, feedback.spread[j] / feedback.spread[0]);
        cr_assert(basis.error_feedback <= basis.error_channel * (1 + 1e-9),
                  "dim %d: feedback %.6g, nearest %.6g", n, basis.error_feedback,
                  basis.error_channel);
        // T M_damped^(2 p) T^T is a multiple of P^T P.
        for (int j = 0; j < n * n; ++j) p[j] = moment[j] * (n / square_trace(n, moment));
        for (int j = 0; j < n; ++j) p[j * n + j] += 0.01;
        const int info = square_power(n, p, 0.8, 0, product);
        cr_assert(info == 0, "dim %d: power", n);
        square_sandwich(n, basis.forward, product, p);
        for (int j = 0; j < n * n; ++j)
            cr_assert(fabs(p[j] / p[0] - (j / n == j % n)) < 1e-8, "dim %d: P^T P[%d] = %g", n, j,
                      p[j] / p[0]);
        transform_feedback_free(&feedback);
        transform_basis_free(&basis);
        free(moment);
        free(price);
        free(p);
        free(product);
    }
}

Test(transform, factors_multiply_back)
{
    // Broken by an order that is applied to one side only, or by rows and columns exchanged.
    enum { N = 48 };
    char message[256];
    double* price = random_moment(N, 1e5, 37);
    for (int sorted = 0; sorted < 2; ++sorted) {
        transform_feedback f;
        const int ok = transform_feedback_make(N, price, 0.02, sorted, &f, message, 256);
        cr_assert(ok, "%s", message);
        const double damping = 0.02 * square_trace(N, price) / N;
        for (int i = 0; i < N; ++i) {
            for (int j = 0; j < N; ++j) {
                const double want = price[f.order[i] * N + f.order[j]] + (i == j ? damping : 0);
                double got = 0;
                for (int k = 0; k < N; ++k)
                    got += f.factor[i * N + k] * f.spread[k] * f.factor[j * N + k];
                cr_assert(fabs(got - want) < 1e-12, "U D U^T[%d][%d] = %.9g, expected %.9g", i, j,
                          got, want);
                cr_assert(j > i || f.factor[i * N + j] == (i == j), "U[%d][%d] = %g", i, j,
                          f.factor[i * N + j]);
            }
            cr_assert(!sorted || i == 0 || price[f.order[i] * (N + 1)] <=
                      price[f.order[i - 1] * (N + 1)], "channel %d is dearer than the one before",
                      f.order[i]);
        }
        transform_feedback_free(&f);
    }
    free(price);
}

// Largest error of float32 scores q . k through T and T^-T, over rms |q| |k|.
static double score_error(int n, const transform_basis* basis, const double* k_root,
                          const double* q_root)
{
    float* t = (float*)calloc((size_t)(2 * n * n), sizeof *t);
    double worst = 0, kk = 0, qq = 0;
    uint64_t state = 3;
    for (int i = 0; i < n * n; ++i) {
        t[i] = (float)basis->forward[i];
        t[n * n + i] = (float)basis->inverse_transpose[i];
    }
    for (int trial = 0; trial < 64; ++trial) {
        float x[2][MATRIX_DIM_MAX], y[2][MATRIX_DIM_MAX], score = 0;
        double exact = 0;
        for (int side = 0; side < 2; ++side) {
            const double* root = side ? q_root : k_root;
            double draw[MATRIX_DIM_MAX];
            for (int i = 0; i < n; ++i) draw[i] = bell(&state);
            for (int i = 0; i < n; ++i) {
                double sum = 0;
                for (int j = 0; j <= i; ++j) sum += root[i * n + j] * draw[j];
                x[side][i] = (float)sum;
            }
            for (int i = 0; i < n; ++i) {
                y[side][i] = 0;
                for (int j = 0; j < n; ++j)
                    y[side][i] += t[side * n * n + i * n + j] * x[side][j];
            }
        }
        for (int i = 0; i < n; ++i) {
            exact += (double)x[0][i] * (double)x[1][i];
            kk += (double)x[0][i] * (double)x[0][i];
            qq += (double)x[1][i] * (double)x[1][i];
            score += y[0][i] * y[1][i];
        }
        if (!(fabs((double)score - exact) <= worst)) worst = fabs((double)score - exact);
    }
    free(t);
    return worst / sqrt(kk / 64 * (qq / 64));
}

Test(transform, scores_survive_in_float32)
{
    // Broken by an inverse transpose that lost digits: moments of condition 1e6 and every kind.
    for (int i = 0; i < NUM_DIMS; i += 3) {
        const int n = dims[i];
        double* moment = random_moment(n, 1e6, 47);
        double* price = random_moment(n, 1e6, 48);
        double *k_root = square_new(n), *q_root = square_new(n);
        const int info = square_cholesky(n, moment, k_root) + square_cholesky(n, price, q_root);
        cr_assert(info == 0, "roots");
        for (int kind = 0; kind < TRANSFORM_NUM_KINDS; ++kind) {
            transform_basis basis = make((transform_kind)kind, n, moment, price, 0);
            const double error = score_error(n, &basis, k_root, q_root);
            cr_assert(error < 1e-5, "%s, dim %d: scores are off by %.3g", names[kind], n, error);
            transform_basis_free(&basis);
        }
        free(moment);
        free(price);
        free(k_root);
        free(q_root);
    }
}

// MOMENTS THAT SAY LITTLE

static void check_usable(const char* what, transform_kind kind, int n, const double* moment,
                         const double* price, const char* note)
{
    transform_basis basis = make(kind, n, moment, price, 0);
    double* product = square_new(n);
    square_multiply_nt(n, basis.forward, basis.inverse_transpose, product);
    for (int i = 0; i < n * n; ++i)
        cr_assert(fabs(product[i] - (i / n == i % n)) < 1e-9, "%s, %s: T T^-1[%d] = %g", what,
                  names[kind], i, product[i]);
    cr_assert(basis.condition >= 1 - 1e-9 && basis.condition < 1e4, "%s, %s: condition %g", what,
              names[kind], basis.condition);
    cr_assert(isfinite(basis.error_token) && isfinite(basis.error_feedback), "%s, %s: predicted %g",
              what, names[kind], basis.error_token);
    cr_assert(note[0] ? strstr(basis.note, note) != NULL : !strstr(basis.note, "rank"),
              "%s, %s: note '%s', expected '%s'", what, names[kind], basis.note, note);
    free(product);
    transform_basis_free(&basis);
}

Test(transform, poor_moments_are_damped)
{
    // Broken by a factorisation without damping, or by one that nobody hears of: one row, equal
    // rows, a dead channel, no rows.
    enum { N = 64 };
    double* good = random_moment(N, 100, 57);
    double* rank_one = square_new(N);
    double* dead = square_new(N);
    double* zero = square_new(N);
    double* huge = square_new(N);
    for (int i = 0; i < N * N; ++i) {
        rank_one[i] = (double)(i / N + 1) * (double)(i % N + 1);
        dead[i] = i / N == 5 || i % N == 5 ? 0 : good[i];
        huge[i] = good[i] * 1e300;
    }
    for (int kind = 0; kind < TRANSFORM_NUM_KINDS; ++kind) {
        const transform_kind k = (transform_kind)kind;
        check_usable("one row", k, N, rank_one, good, "moment has rank 1 of 64");
        check_usable("one query", k, N, good, rank_one, "price has rank 1 of 64");
        check_usable("both", k, N, rank_one, rank_one, "moment has rank 1 of 64");
        check_usable("a dead channel", k, N, dead, dead, "price has rank 63 of 64");
        check_usable("no rows", k, N, zero, good, "moment is zero");
        check_usable("no queries", k, N, good, zero, "price is zero");
        check_usable("huge", k, N, huge, huge, "");
    }
    free(good);
    free(rank_one);
    free(dead);
    free(zero);
    free(huge);
}

Test(transform, a_price_that_is_not_positive_is_damped_and_said)
{
    // Broken by a Cholesky without retries, or by damping that nobody hears of.
    enum { N = 32 };
    double* good = random_moment(N, 100, 67);
    double* price = random_moment(N, 100, 68);
    for (int i = 0; i < N; ++i) price[i * N + (i + 1) % N] += 0.4;
    for (int i = 0; i < N; ++i) price[(i + 1) % N * N + i] += 0.4;
    transform_basis basis = make(TRANSFORM_BALANCE, N, good, price, 0);
    cr_assert(strstr(basis.note, "price needed a damping of"), "note '%s'", basis.note);
    cr_assert(basis.price_damping > 0.01, "damping %g", basis.price_damping);
    transform_basis_free(&basis);
    free(good);
    free(price);
}

static void check_refused(const transform_desc* desc, const char* text)
{
    transform_basis basis;
    char message[256] = "";
    const int ok = transform_make(desc, &basis, message, sizeof message);
    cr_assert(!ok && strstr(message, text), "'%s' lacks '%s'", message, text);
    cr_assert(!basis.forward && !basis.inverse_transpose && !basis.price, "nothing is left");
}

Test(transform, bad_input_is_refused)
{
    // Broken by a NaN that passes, or by a message without the place.
    enum { N = 32 };
    double* good = random_moment(N, 100, 77);
    double* bad = random_moment(N, 100, 77);
    bad[3 * N + 4] = NAN;
    for (int kind = 0; kind < TRANSFORM_NUM_KINDS; ++kind) {
        transform_desc desc = { (transform_kind)kind, N, bad, good, 0, 0, 0, 0 };
        check_refused(&desc, "moment[3][4] = ");
        desc.moment = good;
        desc.price = bad;
        check_refused(&desc, "price[3][4] = ");
        desc.dim = 40;
        check_refused(&desc, "dim = 40: must be 16 to 256 in steps of 16");
        desc.dim = N;
        desc.moment = NULL;
        check_refused(&desc, "needs a moment");
    }
    bad[3 * N + 4] = good[3 * N + 4];
    bad[7 * N + 7] = -1;
    const transform_desc negative = { TRANSFORM_WHITEN, N, bad, NULL, 0, 0, 0, 0 };
    check_refused(&negative, "moment[7][7] = -1: a second moment is not negative");
    const transform_desc unpriced = { TRANSFORM_BALANCE, N, good, NULL, 0, 0, 0, 0 };
    check_refused(&unpriced, "balance needs a price");
    free(good);
    free(bad);
}

Test(transform, a_given_transform_is_checked)
{
    // Broken by a singular matrix that is taken, or by an inverse transpose of the wrong one.
    enum { N = 32 };
    char message[256] = "";
    double* t = random_rotation(N, 87);
    double* product = square_new(N);
    transform_basis basis;
    for (int i = 0; i < N; ++i) t[i] *= 1000;
    int ok = transform_adopt(N, t, &basis, message, sizeof message);
    cr_assert(ok, "%s", message);
    cr_assert(fabs(basis.condition - 1000) < 1e-6, "condition %g", basis.condition);
    square_multiply_nt(N, basis.forward, basis.inverse_transpose, product);
    for (int i = 0; i < N * N; ++i)
        cr_assert(fabs(product[i] - (i / N == i % N)) < 1e-9, "T T^-1[%d] = %g", i, product[i]);
    transform_basis_free(&basis);
    for (int i = 0; i < N; ++i) t[i] *= 2000;
    ok = transform_adopt(N, t, &basis, message, sizeof message);
    cr_assert(!ok && strstr(message, "its condition is 2e+06: must be at most 1e+06"), "%s",
              message);
    for (int i = 0; i < N; ++i) t[i] = t[N + i];
    ok = transform_adopt(N, t, &basis, message, sizeof message);
    cr_assert(!ok && strstr(message, "its condition is"), "%s", message);
    t[5] = INFINITY;
    ok = transform_adopt(N, t, &basis, message, sizeof message);
    cr_assert(!ok && strstr(message, "transform[0][5] = inf: must be finite"), "%s", message);
    free(t);
    free(product);
}

// A BASIS THAT IS SEARCHED FOR

enum { LEARN_DIM = 32, LEARN_ROWS = 96, LEARN_GROUP = 16 };

// Rows with two channels that are much larger than the others, and sizes that fall.
static void learn_rows(float* rows)
{
    uint64_t state = 5;
    for (int i = 0; i < LEARN_ROWS * LEARN_DIM; ++i) {
        const int channel = i % LEARN_DIM;
        const double size = channel == 3 || channel == 20 ? 12 : 1 / (1 + 0.1 * channel);
        rows[i] = (float)(size * bell(&state));
    }
}

// The mean cost of rows in the basis T: min/max codes of groups, errors priced by T^-T A T^-1.
static double cost_of(const float* rows, const double* price, const double* t, int bits)
{
    const int n = LEARN_DIM;
    double* inverse = square_new(n);
    double total = 0;
    cr_assert_eq(square_inverse(n, t, inverse), 0);
    for (int row = 0; row < LEARN_ROWS; ++row) {
        double y[LEARN_DIM], e[LEARN_DIM], x[LEARN_DIM];
        for (int i = 0; i < n; ++i) {
            y[i] = 0;
            for (int k = 0; k < n; ++k) y[i] += t[i * n + k] * (double)rows[row * n + k];
        }
        for (int first = 0; first < n; first += LEARN_GROUP) {
            double lo = y[first], hi = lo;
            for (int i = first; i < first + LEARN_GROUP; ++i) {
                lo = fmin(lo, y[i]);
                hi = fmax(hi, y[i]);
            }
            const double step = (hi - lo) / ((1 << bits) - 1);
            for (int i = first; i < first + LEARN_GROUP; ++i)
                e[i] = lo + step * floor((y[i] - lo) / step + 0.5) - y[i];
        }
        for (int i = 0; i < n; ++i) {
            x[i] = 0;
            for (int k = 0; k < n; ++k) x[i] += inverse[i * n + k] * e[k];
        }
        for (int i = 0; i < n; ++i)
            for (int k = 0; k < n; ++k) total += x[i] * price[i * n + k] * x[k];
    }
    free(inverse);
    return total / LEARN_ROWS;
}

Test(transform, a_search_lowers_the_cost_that_it_says)
{
    // Broken by a price that is not carried along with the rows, by a rotation that is none, by a
    // cost of other rows than those of the basis it returns: the cost is computed again from T
    // alone.
    const int n = LEARN_DIM;
    float* rows = (float*)calloc(LEARN_ROWS * LEARN_DIM, sizeof *rows);
    double* price = random_moment(n, 50, 9);
    double* begin = random_rotation(n, 4);
    double* t = square_new(n);
    double* gram = square_new(n);
    learn_rows(rows);
    for (int affine = 0; affine < 2; ++affine) {
        const learn_desc desc = { n, LEARN_ROWS, rows, price, begin, affine, 400, 7,
                                  { 2, LEARN_GROUP, 0, 0 } };
        learn_result result;
        cr_assert(transform_learn(&desc, t, &result));
        cr_expect(fabs(result.before / cost_of(rows, price, begin, 2) - 1) < 1e-3);
        cr_expect(fabs(result.after / cost_of(rows, price, t, 2) - 1) < 1e-3,
                  "says %.6g, is %.6g", result.after, cost_of(rows, price, t, 2));
        cr_expect(result.after < 0.8 * result.before, "%.4g of %.4g", result.after, result.before);
        square_multiply_nt(n, t, t, gram);
        double off = 0;
        for (int i = 0; i < n * n; ++i)
            off = fmax(off, fabs(gram[i] - (i / n == i % n ? 1 : 0)));
        cr_expect(affine ? off > 0.01 : off < 1e-10, "affine = %d: T T^T is off by %.3g", affine,
                  off);
    }
    free(rows);
    free(price);
    free(begin);
    free(t);
    free(gram);
}

Test(transform, drawn_rows_have_the_moment)
{
    // Broken by a factor that is transposed: 4096 rows give each entry to some percent of the
    // largest.
    enum { MANY = 4096 };
    const int n = LEARN_DIM;
    float* rows = (float*)calloc(MANY * LEARN_DIM, sizeof *rows);
    double* moment = random_moment(n, 100, 3);
    double* has = square_new(n);
    cr_assert(transform_draw(n, moment, 1, MANY, rows));
    for (int row = 0; row < MANY; ++row)
        for (int i = 0; i < n * n; ++i)
            has[i] += (double)rows[row * n + i / n] * (double)rows[row * n + i % n] / MANY;
    cr_expect(difference(n * n, has, moment) < 0.1 * greatest(n * n, moment));
    moment[0] = -1000;                                 // no second moment
    cr_expect(!transform_draw(n, moment, 1, MANY, rows));
    free(rows);
    free(moment);
    free(has);
}
