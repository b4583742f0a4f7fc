// matrix_portable.c -- the kernels in plain C: every type, any machine.
#include "matrix_units.h"

// y[m] = sum over units u of x.scales[u] (scale . integer dot) + offset x.sums[u]. Integer dot
// products of 16 weights are exact: |sum| <= 16 * 128 * 127.
static inline void dot_units(int type, const matrix_rows* rows, const matrix_activation* x)
{
    for (int64_t m = 0; m < rows->num_rows; m++) {
        const uint8_t* row = rows->data + m * rows->row_bytes;
        float total = 0.0f;
        for (int64_t u = 0; u < rows->cols / MATRIX_UNIT; u++) {
            const int8_t* codes = x->codes + u * MATRIX_UNIT;
            matrix_unit unit;
            matrix_unpack_unit(type, row, u, &unit);
            int32_t dots[2] = { 0, 0 };
            for (int i = 0; i < 16; i++) {
                dots[0] += unit.codes[i] * codes[i];
                dots[1] += unit.codes[i + 16] * codes[i + 16];
            }
            const float dot = unit.scale[0] * (float)dots[0] + unit.scale[1] * (float)dots[1];
            total += x->scales[u] * dot + unit.offset * x->sums[u];
        }
        rows->y[m] = total;
    }
}

static void dot_q4_0(const matrix_rows* rows, const matrix_activation* x)
{
    dot_units(MATRIX_Q4_0, rows, x);
}

static void dot_q4_1(const matrix_rows* rows, const matrix_activation* x)
{
    dot_units(MATRIX_Q4_1, rows, x);
}

static void dot_q5_0(const matrix_rows* rows, const matrix_activation* x)
{
    dot_units(MATRIX_Q5_0, rows, x);
}

static void dot_q5_1(const matrix_rows* rows, const matrix_activation* x)
{
    dot_units(MATRIX_Q5_1, rows, x);
}

static void dot_q8_0(const matrix_rows* rows, const matrix_activation* x)
{
    dot_units(MATRIX_Q8_0, rows, x);
}

static void dot_q4_k(const matrix_rows* rows, const matrix_activation* x)
{
    dot_units(MATRIX_Q4_K, rows, x);
}

static void dot_q5_k(const matrix_rows* rows, const matrix_activation* x)
{
    dot_units(MATRIX_Q5_K, rows, x);
}

static void dot_q6_k(const matrix_rows* rows, const matrix_activation* x)
{
    dot_units(MATRIX_Q6_K, rows, x);
}

// Rows of floats, 64 at a time so that the compiler's vectors convert them; 8 partial sums.
static inline void dot_floats(int type, const matrix_rows* rows, const matrix_activation* x)
{
    enum { chunk = 64 };
    const int64_t weight_bytes = matrix_group_bytes(type);
    for (int64_t m = 0; m < rows->num_rows; m++) {
        const uint8_t* row = rows->data + m * rows->row_bytes;
        float sums[8] = { 0 };
        for (int64_t n = 0; n < rows->cols; n += chunk) {
            const int64_t left = rows->cols - n < chunk ? rows->cols - n : chunk;
            float weights[chunk] = { 0 };
            matrix_dequantize_floats(type, row + n * weight_bytes, left, weights);
            for (int64_t i = 0; i < left; i++) { sums[i % 8] += weights[i] * x->values[n + i]; }
        }
        rows->y[m] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                     ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
}

static void dot_f32(const matrix_rows* rows, const matrix_activation* x)
{
    dot_floats(MATRIX_F32, rows, x);
}

static void dot_f16(const matrix_rows* rows, const matrix_activation* x)
{
    dot_floats(MATRIX_F16, rows, x);
}

static void dot_bf16(const matrix_rows* rows, const matrix_activation* x)
{
    dot_floats(MATRIX_BF16, rows, x);
}

static void quantize(const float* x, int64_t n, int8_t* codes, float* scales, float* sums)
{
    matrix_quantize_units(x, n, codes, scales, sums);
}

static void dequantize(int type, const uint8_t* row, int64_t n, float* out)
{
    matrix_dequantize_any(type, row, n, out);
}

const matrix_kernels matrix_kernels_portable = {
    .dot = { [MATRIX_F32] = dot_f32,
             [MATRIX_F16] = dot_f16,
             [MATRIX_Q4_0] = dot_q4_0,
             [MATRIX_Q4_1] = dot_q4_1,
             [MATRIX_Q5_0] = dot_q5_0,
             [MATRIX_Q5_1] = dot_q5_1,
             [MATRIX_Q8_0] = dot_q8_0,
             [MATRIX_Q4_K] = dot_q4_k,
             [MATRIX_Q5_K] = dot_q5_k,
             [MATRIX_Q6_K] = dot_q6_k,
             [MATRIX_BF16] = dot_bf16 },
    .quantize = quantize,
    .dequantize = dequantize,
};
