// matrix_kernels.h -- what each instruction set provides to matrix.c: a table of functions.
#ifndef KVLOOM_DECODE_MATRIX_KERNELS_H
#define KVLOOM_DECODE_MATRIX_KERNELS_H

#include "matrix.h"

enum { MATRIX_UNIT = 32 }; // weights that share one scale of the activation

// One input vector, as it is and in 8 bits: x[i] ~ scales[i / 32] codes[i], |codes| <= 127.
typedef struct matrix_activation {
    const float* values; // [cols]
    const int8_t* codes; // [cols]
    const float* scales; // [cols / 32]
    const float* sums;   // [cols / 32] scale * sum of the codes: what an offset is multiplied by
} matrix_activation;

// Rows of one matrix, and where their dot products go.
typedef struct matrix_rows {
    const uint8_t* data;
    int64_t row_bytes;
    int64_t num_rows;
    int64_t cols;
    float* y;         // [num_rows], for each vector
    int64_t y_stride; // from one vector's results to the next one's
} matrix_rows;

// Rows that a kernel takes together, so that they share loads of the activation.
enum { MATRIX_TILE = 4 };

// Vectors that a gang kernel takes together, so that weights are unpacked once for all.
enum { MATRIX_GANG = 4 };

typedef void matrix_dot(const matrix_rows* rows, const matrix_activation* x);

typedef struct matrix_kernels {
    matrix_dot* dot[MATRIX_TYPE_END];  // x [1]
    matrix_dot* gang[MATRIX_TYPE_END]; // x [MATRIX_GANG]; NULL: one by one
    void (*quantize)(const float* x, int64_t n, int8_t* codes, float* scales, float* sums);
    void (*dequantize)(int type, const uint8_t* row, int64_t n, float* out);
} matrix_kernels;

extern const matrix_kernels matrix_kernels_portable;

#if defined(__x86_64__)
extern const matrix_kernels matrix_kernels_avx2;
extern const matrix_kernels matrix_kernels_avx512;
#endif

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define MATRIX_HAVE_NEON 1
extern const matrix_kernels matrix_kernels_neon;
#endif

// The table for a level, at most the best one that the processor has.
const matrix_kernels* matrix_find_kernels(int level);

// Runs body for i in 0 .. n-1, through the pool if there is one.
void matrix_parallel(const matrix_pool* pool, int64_t n, void (*body)(void* arg, int64_t i),
                     void* arg);

#endif
