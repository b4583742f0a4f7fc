// device_args.h -- what the model's kernels are given: steps.cu and products.cu.
//
// This file is part of their text as well; NVRTC has no <stdint.h>, types.cu stands in for it.
// Every kernel has one argument, one of these structs, and CTAs of 128 threads.

#ifndef KVLOOM_DECODE_DEVICE_ARGS_H
#define KVLOOM_DECODE_DEVICE_ARGS_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

// norm_rows, grid num_rows: out = x / sqrt(mean(x^2) + eps) * weight
typedef struct device_norm {
    const float* x;          // [num_rows, n]
    const float* weight;     // [n]
    float*       out;        // may be x
    int64_t      n;
    float        eps;
} device_norm;

// add_rows, grid num_rows: out = a + b
typedef struct device_add {
    const float* a;          // [num_rows, n]
    const float* b;          // [num_rows, n], or [n] for all of them
    float*       out;        // may be a
    int64_t      n, b_stride;    // 0: b is one row
} device_add;

// rotate_rows, grid num_rows: turns pairs of channels
typedef struct device_rotate {
    float*       x;          // [num_rows, num_heads, head_dim]
    const float* table;      // [num_rows, dims] of matrix_rope_table
    int32_t      num_heads, head_dim, dims, split_halves;
} device_rotate;

// gate_rows, grid num_rows: gate = act(gate) up
typedef struct device_gate {
    float*       gate;       // [num_rows, n]
    const float* up;
    int64_t      n;
    int32_t      gelu;       // else SiLU
} device_gate;

// attend_rows, grid num_rows, num_q_heads: rows attend to those of their own batch, as floats, and
// join what o and lse have of the rows before it
typedef struct device_attend {
    const float *q, *k, *v;  // [num_rows, heads, head_dim], of v head_dim_v
    float *o, *lse;          // [num_rows, num_q_heads, head_dim_v], [num_rows, num_q_heads]
    float   softmax_scale;
    int32_t num_q_heads, num_kv_heads, head_dim, head_dim_v;
    int32_t window_len;      // 0: all
} device_attend;

// multiply_few, grid (rows + 3) / 4, (num_rows + 3) / 4; multiply_many, grid (rows + 63) / 64,
// (num_rows + 31) / 32: y = x W^T
typedef struct device_product {
    const void*  w;          // [rows] rows of row_bytes, of the program's type
    const float* x;          // [num_rows, cols]
    float*       y;          // [num_rows, rows]
    int64_t      row_bytes;
    int32_t      rows, cols, num_rows;
} device_product;

#endif
