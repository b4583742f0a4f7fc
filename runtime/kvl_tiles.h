// kvl_tiles.h -- the arithmetic of statistics: tiles of matrix products, and exp, in vectors.
//
// Two kernels, for one size of tile each, so that sums stay in registers:
//
//     product  c [6, 16]  = a [6, n] b [n, 16]             floats: scores, weighted sums of values
//     update   c [4, 8]  += sum over r of y[r, 4] x[r, 8]  doubles: second moments
//
// Each is written once in portable vectors and once for AVX2 with FMA, which rounds less.  The
// order of a sum does not depend on the number of threads.

#ifndef KVL_TILES_H
#define KVL_TILES_H

#include "kvl_isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { KVL__TILE_ROWS = 6, KVL__TILE_COLS = 16, KVL__UPDATE_ROWS = 4, KVL__UPDATE_COLS = 8 };

typedef struct kvl__product {
    const float* a;          // [6, n]
    int64_t      a_stride;
    const float* b;          // [n, 16]
    int64_t      n;
    float*       c;          // [6, 16]
    int64_t      c_stride;
} kvl__product;

typedef struct kvl__update {
    const double* y;         // [n, 4], rows y_stride apart
    const double* x;         // [n, 8], rows x_stride apart
    int64_t       y_stride, x_stride, n;
    double*       c;         // [4, 8]
    int64_t       c_stride;
} kvl__update;

typedef struct kvl__tiles {
    void (*product)(const kvl__product* p);
    void (*update)(const kvl__update* u);
} kvl__tiles;

typedef int32_t kvl__v4i __attribute__((vector_size(16)));
typedef float   kvl__v4f __attribute__((vector_size(16)));
typedef double  kvl__v2d __attribute__((vector_size(16)));

// Two rows at a time: what the registers of SSE2 and NEON hold.
KVL__FN void kvl__product_portable(const kvl__product* p)
{
    for (int r = 0; r < KVL__TILE_ROWS; r += 2) {
        const float* a = p->a + r * p->a_stride;
        const float* b = p->b;
        kvl__v4f sum[2][4], x[4];
        memset(sum, 0, sizeof sum);
        for (int64_t i = 0; i < p->n; ++i, b += KVL__TILE_COLS) {
            memcpy(x, b, sizeof x);
            const float a0 = a[i], a1 = a[p->a_stride + i];
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
                sum[0][k] += a0 * x[k];
                sum[1][k] += a1 * x[k];
            }
        }
#pragma GCC unroll 2
        for (int k = 0; k < 2; ++k) memcpy(p->c + (r + k) * p->c_stride, sum[k], sizeof sum[k]);
    }
}

KVL__FN void kvl__update_portable(const kvl__update* u)
{
    for (int r = 0; r < KVL__UPDATE_ROWS; r += 2) {
        const double* x = u->x;
        const double* y = u->y + r;
        kvl__v2d sum[2][4], v[4];
#pragma GCC unroll 2
        for (int k = 0; k < 2; ++k) memcpy(sum[k], u->c + (r + k) * u->c_stride, sizeof sum[k]);
        for (int64_t i = 0; i < u->n; ++i, x += u->x_stride, y += u->y_stride) {
            memcpy(v, x, sizeof v);
            const double y0 = y[0], y1 = y[1];
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
                sum[0][k] += y0 * v[k];
                sum[1][k] += y1 * v[k];
            }
        }
#pragma GCC unroll 2
        for (int k = 0; k < 2; ++k) memcpy(u->c + (r + k) * u->c_stride, sum[k], sizeof sum[k]);
    }
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma")))
KVL__FN void kvl__product_avx2(const kvl__product* p)
{
    const float* a = p->a;
    const float* b = p->b;
    __m256 sum[KVL__TILE_ROWS][2];
#pragma GCC unroll 6
    for (int r = 0; r < KVL__TILE_ROWS; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < p->n; ++i, b += KVL__TILE_COLS) {
        const __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
        for (int r = 0; r < KVL__TILE_ROWS; ++r) {
            const __m256 x = _mm256_broadcast_ss(a + r * p->a_stride + i);
            sum[r][0] = _mm256_fmadd_ps(x, b0, sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(x, b1, sum[r][1]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < KVL__TILE_ROWS; ++r) {
        _mm256_storeu_ps(p->c + r * p->c_stride, sum[r][0]);
        _mm256_storeu_ps(p->c + r * p->c_stride + 8, sum[r][1]);
    }
}

__attribute__((target("avx2,fma")))
KVL__FN void kvl__update_avx2(const kvl__update* u)
{
    const double* x = u->x;
    const double* y = u->y;
    __m256d sum[KVL__UPDATE_ROWS][2];
#pragma GCC unroll 4
    for (int r = 0; r < KVL__UPDATE_ROWS; ++r) {
        sum[r][0] = _mm256_loadu_pd(u->c + r * u->c_stride);
        sum[r][1] = _mm256_loadu_pd(u->c + r * u->c_stride + 4);
    }
    for (int64_t i = 0; i < u->n; ++i, x += u->x_stride, y += u->y_stride) {
        const __m256d x0 = _mm256_loadu_pd(x), x1 = _mm256_loadu_pd(x + 4);
#pragma GCC unroll 4
        for (int r = 0; r < KVL__UPDATE_ROWS; ++r) {
            const __m256d w = _mm256_broadcast_sd(y + r);
            sum[r][0] = _mm256_fmadd_pd(w, x0, sum[r][0]);
            sum[r][1] = _mm256_fmadd_pd(w, x1, sum[r][1]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < KVL__UPDATE_ROWS; ++r) {
        _mm256_storeu_pd(u->c + r * u->c_stride, sum[r][0]);
        _mm256_storeu_pd(u->c + r * u->c_stride + 4, sum[r][1]);
    }
}

#endif

// What serves a context's instruction set.
KVL__FN kvl__tiles kvl__tiles_of(const kvl_context* ctx)
{
    kvl__tiles tiles;
    tiles.product = kvl__product_portable;
    tiles.update = kvl__update_portable;
#if defined(__x86_64__)
    if (kvl__isa_rank("avx2", ctx->isa) > 0) {
        tiles.product = kvl__product_avx2;
        tiles.update = kvl__update_avx2;
    }
#endif
    (void)ctx;
    return tiles;
}

// x[i] = exp(x[i] - top) for n values, n a multiple of 4 and x[i] <= top.  Relative error below
// 2e-7; below exp(-87) the result is that of -87.  e^z = 2^k e^r, r = z - k log 2 in two parts;
// Taylor's polynomial of degree 7 on |r| <= log(2) / 2.  Returns the sum.
KVL__FN double kvl__exp_row(float* x, int64_t n, float top)
{
    const float round = 12582912.0f;               // 1.5 2^23: adding it rounds to whole numbers
    kvl__v4f sum, z, k, e;
    kvl__v4i bits, low;
    double total = 0.0;
    memset(&sum, 0, sizeof sum);
    for (int64_t i = 0; i < n; i += 4) {
        memcpy(&z, x + i, sizeof z);
        z -= top;
        low = z > -87.0f;                          // all ones where true
        memcpy(&bits, &z, sizeof bits);
        const float least = -87.0f;
        bits = (bits & low) | ((int32_t)kvl__bits_of(least) & ~low);
        memcpy(&z, &bits, sizeof z);
        k = (z * 1.44269504f + round) - round;
        z = (z - k * 0.693145752f) - k * 1.42860677e-6f;
        e = 1.0f + z * (1.0f + z * (0.5f + z * (0.166666667f + z * (0.0416666667f + z *
            (0.00833333333f + z * (0.00138888889f + z * 0.000198412698f))))));
        bits = (__builtin_convertvector(k, kvl__v4i) + 127) << 23;
        memcpy(&k, &bits, sizeof k);
        e *= k;
        memcpy(x + i, &e, sizeof e);
        sum += e;
        if (i % 256 == 252 || i + 4 == n) {
            for (int j = 0; j < 4; ++j) total += (double)sum[j];
            memset(&sum, 0, sizeof sum);
        }
    }
    return total;
}

// The largest of n values, n a multiple of 4.
KVL__FN float kvl__max_row(const float* x, int64_t n)
{
    kvl__v4i most, z, more;
    kvl__v4f a, b;
    float top = x[0];
    memcpy(&most, x, sizeof most);
    for (int64_t i = 4; i < n; i += 4) {
        memcpy(&z, x + i, sizeof z);
        memcpy(&a, &z, sizeof a);
        memcpy(&b, &most, sizeof b);
        more = a > b;
        most = (z & more) | (most & ~more);
    }
    memcpy(&a, &most, sizeof a);
    for (int j = 0; j < 4; ++j) top = a[j] > top ? a[j] : top;
    return top;
}

// Sums of x and of a b over n values: floats in fours, added up in double every 256.
KVL__FN double kvl__sum_row(const float* x, int64_t n)
{
    kvl__v4f sum, v;
    double total = 0.0;
    int64_t i = 0;
    memset(&sum, 0, sizeof sum);
    for (; i + 4 <= n; i += 4) {
        memcpy(&v, x + i, sizeof v);
        sum += v;
        if (i % 256 != 252) continue;
        for (int j = 0; j < 4; ++j) total += (double)sum[j];
        memset(&sum, 0, sizeof sum);
    }
    for (int j = 0; j < 4; ++j) total += (double)sum[j];
    for (; i < n; ++i) total += (double)x[i];
    return total;
}

KVL__FN double kvl__dot_row(const float* a, const float* b, int64_t n)
{
    kvl__v4f sum, v, w;
    double total = 0.0;
    int64_t i = 0;
    memset(&sum, 0, sizeof sum);
    for (; i + 4 <= n; i += 4) {
        memcpy(&v, a + i, sizeof v);
        memcpy(&w, b + i, sizeof w);
        sum += v * w;
        if (i % 256 != 252) continue;
        for (int j = 0; j < 4; ++j) total += (double)sum[j];
        memset(&sum, 0, sizeof sum);
    }
    for (int j = 0; j < 4; ++j) total += (double)sum[j];
    for (; i < n; ++i) total += (double)a[i] * (double)b[i];
    return total;
}

#endif
