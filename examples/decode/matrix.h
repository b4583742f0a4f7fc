// matrix.h -- the tensor arithmetic of the example decoder, on weights as a GGUF file stores them.
//
// A weight matrix [rows, cols] is used where it lies, usually in a mapped file, in three ways:
//
//   matrix_dequantize_row   one row as floats, for an embedding look-up
//   matrix_vector(s)        decode: y = W x for 1 to 8 vectors; integer dot products, bound by the
//                           bytes of W, which are read once
//   matrix_multiply         prefill: y = x W^T for many vectors, through CBLAS on tiles of floats
//
// and the steps of a transformer between them (norm, rotation, gates, softmax) on plain floats.
//
// What it does not do: allocate, start threads, keep state, check arguments beyond
// matrix_row_bytes. Threads are the caller's: a matrix_pool wraps whatever pool there is. Every
// function may run in several threads at once as long as outputs and scratch differ; for
// matrix_multiply, which gives OpenBLAS one thread while it runs, the caller has done so before.
#ifndef KVLOOM_DECODE_MATRIX_H
#define KVLOOM_DECODE_MATRIX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The tensor types that are known; the values are those of GGUF files.
// The comment gives weights in a group, bytes of a group, and what a code q means.
enum {
    MATRIX_F32 = 0,
    MATRIX_F16 = 1,
    MATRIX_Q4_0 = 2,  //  32 weights, 18 bytes: scale (q - 8)
    MATRIX_Q4_1 = 3,  //  32 weights, 20 bytes: scale q + offset
    MATRIX_Q5_0 = 6,  //  32 weights, 22 bytes: scale (q - 16)
    MATRIX_Q5_1 = 7,  //  32 weights, 24 bytes: scale q + offset
    MATRIX_Q8_0 = 8,  //  32 weights, 34 bytes: scale q
    MATRIX_Q4_K = 12, // 256 weights, 144 bytes: scale and offset for each 32, 6 bits each
    MATRIX_Q5_K = 13, // 256 weights, 176 bytes: the same with 5-bit codes
    MATRIX_Q6_K = 14, // 256 weights, 210 bytes: scale (q - 32), an 8-bit scale for each 16
    MATRIX_BF16 = 30,
    MATRIX_TYPE_END = 31
};

// Instruction sets. They differ in the last bits: integer sums are exact, float sums have an order.
enum {
    MATRIX_BEST = 0, // the highest level that this processor has
    MATRIX_PORTABLE, // plain C
    MATRIX_NEON,     // arm64 with dot products, when compiled for it
    MATRIX_AVX2,     // with FMA and F16C
    MATRIX_AVX512,   // VL, BW and VNNI, on 256-bit registers
    MATRIX_LEVEL_END
};

// The largest batch of matrix_vectors. More vectors can be taken eight at a time, or together by
// matrix_multiply, which keeps x in f32.
enum { MATRIX_MAX_BATCH = 8 };

// The most matrices in one call of matrix_vectors: q, k and v; gate and up.
enum { MATRIX_MAX_SHARED = 4 };

typedef struct matrix {
    int type; // MATRIX_Q4_0 ...
    int64_t rows, cols;
    const void* data;  // [rows] rows of row_bytes; borrowed; aligned to 4 if F32, else to 1
    int64_t row_bytes; // matrix_row_bytes(type, cols), or more
} matrix;

// How work is spread over threads. All zero, or a NULL pointer to it: the calling thread does it
// all. parallel_for must call body(arg, i) once for each i in 0 .. n-1, in any order and any
// threads, and return when all have returned.
typedef struct matrix_pool {
    void (*parallel_for)(void* user, int64_t n, void (*body)(void* arg, int64_t i), void* arg);
    void* user;
    int num_threads;
    int level; // MATRIX_BEST, or a lower one than the processor has, for tests
} matrix_pool;

// Whether this build and this processor have a level.
int matrix_has_level(int level);
const char* matrix_level_name(int level);

// The name of a type, as in "Q4_K"; NULL if the type is not known here.
const char* matrix_type_name(int type);

// Bytes of a row of cols weights; 0 if the type is not known or cols is no multiple of its group.
int64_t matrix_row_bytes(int type, int64_t cols);

// One row as floats: out [n]. n must be a multiple of the type's group.
void matrix_dequantize_row(int type, const void* row, int64_t n, float* out);

// ---- decode -----------------------------------------------------------------------------------

// x is rounded to 8 bits, in groups of 32 with a float scale each, unless W holds floats. Then
// every product is exact in integers and only the sum over groups rounds. The error of y[m] from
// the 8 bits is at most the sum over groups of max|x| / 254 * sum|w|.

typedef struct matrix_product {
    const matrix* w; // [rows, cols]
    float* y;        // [batch, rows]
} matrix_product;

typedef struct matrix_input {
    const float* x; // [batch, cols], finite
    int64_t batch;  // 1 .. MATRIX_MAX_BATCH
    void* scratch;  // matrix_vector_scratch(cols, batch) bytes, aligned to 4
} matrix_input;

size_t matrix_vector_scratch(int64_t cols, int64_t batch);

// y[m] = sum over n of W[m, n] x[n]. scratch: matrix_vector_scratch(w->cols, 1) bytes.
void matrix_vector(const matrix_pool* pool, const matrix* w, const float* x, float* y,
                   void* scratch);

// The same for up to MATRIX_MAX_SHARED matrices that share their input, as one parallel step.
// - all matrices must have the same cols; types and rows may differ
void matrix_vectors(const matrix_pool* pool, const matrix_product* products, int count,
                    const matrix_input* input);

// ---- prefill ----------------------------------------------------------------------------------

typedef struct matrix_batch {
    const float* x;       // [batch, cols]
    int64_t batch;        // any
    float* y;             // [batch, rows]
    void* scratch;        // aligned to 4; tiles of W as floats, split among the threads
    size_t scratch_bytes; // at least one row for each thread; see matrix_multiply_scratch
} matrix_batch;

// What serves well: rows for each thread so that packing x for BLAS is a small part of the work.
size_t matrix_multiply_scratch(const matrix_pool* pool, const matrix* w);

// y[b, m] = sum over n of x[b, n] W[m, n], in f32. Each thread turns tiles of rows of W into floats
// and multiplies them. F32 weights are used in place.
void matrix_multiply(const matrix_pool* pool, const matrix* w, const matrix_batch* batch);

// OpenBLAS has so many threads from here on (0: as before). Returns how many it had, 0 where CBLAS
// is another one.
int matrix_blas_threads(int num_threads);

// ---- the steps between ------------------------------------------------------------------------

// x, gate, up and out may be the same memory, but not overlap otherwise. exp is a polynomial: its
// relative error is below 3e-7.

// out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]. weight can be NULL for none.
typedef struct matrix_norm {
    const float* weight; // [n]
    float eps;
} matrix_norm;

void matrix_rms_norm(const matrix_norm* norm, const float* x, int64_t n, float* out);

typedef struct matrix_rope {
    int64_t head_dim;
    int64_t dims;         // channels that turn, even; the rest stay. 0: head_dim
    int split_halves;     // 0: pairs (2i, 2i+1), GGUF "norm"; 1: (i, i + dims/2), "neox"
    double base;          // 10000, ...
    double linear_scale;  // multiplies the position: 1/8 for a context 8 times as long. 0: 1
    const float* factors; // [dims/2] each frequency is divided by its own; NULL: none
} matrix_rope;

// table [dims]: cos and sin of position * linear_scale * base^(-2i/dims) / factors[i], interleaved.
void matrix_rope_table(const matrix_rope* rope, int64_t position, float* table);

// Turns x [num_heads, head_dim] in place by a table of matrix_rope_table.
void matrix_rope_apply(const matrix_rope* rope, const float* table, float* x, int64_t num_heads);

// out[i] = silu(gate[i]) up[i], with silu(g) = g / (1 + exp(-g)).
void matrix_silu_mul(const float* gate, const float* up, int64_t n, float* out);

// out[i] = gelu(gate[i]) up[i], with gelu(g) = g/2 (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))).
void matrix_gelu_mul(const float* gate, const float* up, int64_t n, float* out);

// x[i] = exp(x[i] - max) / sum. If every x[i] is -inf, the result is zeros.
void matrix_softmax(float* x, int64_t n);

void matrix_add(const float* a, const float* b, int64_t n, float* out); // out = a + b
void matrix_scale(float* x, int64_t n, float factor);                   // x = factor x

#ifdef __cplusplus
}
#endif

#endif
