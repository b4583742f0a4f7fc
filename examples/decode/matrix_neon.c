// matrix_neon.c -- the kernels for arm64 with dot products (armv8.2-a+dotprod and later).
//
// Codes become signed bytes, so that one kind of dot product serves every type:
//
//   y = sum over units of x.scales[u] (scale . integer dot) + offset x.sums[u]
//
// Types with groups of 256 are unpacked by the plain code, which the compiler turns into vectors.
#include "matrix_units.h"

#if defined(MATRIX_HAVE_NEON)

#include <arm_neon.h>

// 32 codes in two registers, and w[i] = scale[i / 16] codes[i] + offset.
typedef struct unit_vectors {
    int8x16_t codes[2];
    float scale[2];
    float offset;
} unit_vectors;

// 16 where bit i of bits is set, for the 16 bytes i.
static inline uint8x16_t high_bits(uint32_t bits)
{
    static const uint8_t masks[16] = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
    const uint8x16_t bytes =
        vcombine_u8(vdup_n_u8((uint8_t)(bits & 255)), vdup_n_u8((uint8_t)(bits >> 8 & 255)));
    return vandq_u8(vtstq_u8(bytes, vld1q_u8(masks)), vdupq_n_u8(16));
}

static inline float load_half(const uint8_t* bytes)
{
    __fp16 half;
    memcpy(&half, bytes, sizeof half);
    return (float)half;
}

// Types with groups of 32.
static inline void load_simple(int type, const uint8_t* group, unit_vectors* unit)
{
    const int has_offset = type == MATRIX_Q4_1 || type == MATRIX_Q5_1;
    const int has_high = type == MATRIX_Q5_0 || type == MATRIX_Q5_1;
    const int bias = type == MATRIX_Q4_0 ? 8 : (type == MATRIX_Q5_0 ? 16 : 0);
    unit->scale[0] = unit->scale[1] = load_half(group);
    unit->offset = has_offset ? load_half(group + 2) : 0.0f;
    const uint8_t* rest = group + (has_offset ? 4 : 2);
    if (type == MATRIX_Q8_0) {
        unit->codes[0] = vld1q_s8((const int8_t*)rest);
        unit->codes[1] = vld1q_s8((const int8_t*)rest + 16);
        return;
    }
    const uint8x16_t packed = vld1q_u8(rest + (has_high ? 4 : 0));
    uint8x16_t low = vandq_u8(packed, vdupq_n_u8(15));
    uint8x16_t high = vshrq_n_u8(packed, 4);
    if (has_high) {
        const uint32_t bits = matrix_load_32(rest);
        low = vorrq_u8(low, high_bits(bits & 0xffffu));
        high = vorrq_u8(high, high_bits(bits >> 16));
    }
    const int8x16_t less = vdupq_n_s8((int8_t)bias);
    unit->codes[0] = vsubq_s8(vreinterpretq_s8_u8(low), less);
    unit->codes[1] = vsubq_s8(vreinterpretq_s8_u8(high), less);
}

static inline void load_unit(int type, const uint8_t* row, int64_t index, unit_vectors* unit)
{
    if (matrix_group_size(type) == MATRIX_UNIT) {
        load_simple(type, row + index * matrix_group_bytes(type), unit);
        return;
    }
    matrix_unit plain;
    matrix_unpack_unit(type, row, index, &plain);
    unit->codes[0] = vld1q_s8(plain.codes);
    unit->codes[1] = vld1q_s8(plain.codes + 16);
    unit->scale[0] = plain.scale[0];
    unit->scale[1] = plain.scale[1];
    unit->offset = plain.offset;
}

static inline float32x4_t dot_unit(int type, const unit_vectors* unit, const int8_t* x, float scale,
                                   float32x4_t sum)
{
    const int32x4_t zero = vdupq_n_s32(0);
    const int8x16_t x0 = vld1q_s8(x), x1 = vld1q_s8(x + 16);
    if (type == MATRIX_Q6_K) {
        const int32x4_t first = vdotq_s32(zero, unit->codes[0], x0);
        const int32x4_t second = vdotq_s32(zero, unit->codes[1], x1);
        sum = vfmaq_n_f32(sum, vcvtq_f32_s32(first), unit->scale[0] * scale);
        return vfmaq_n_f32(sum, vcvtq_f32_s32(second), unit->scale[1] * scale);
    }
    const int32x4_t both = vdotq_s32(vdotq_s32(zero, unit->codes[0], x0), unit->codes[1], x1);
    return vfmaq_n_f32(sum, vcvtq_f32_s32(both), unit->scale[0] * scale);
}

// num_rows rows at once; type and num_rows are constants where it is inlined.
static inline void dot_tile(int type, int num_rows, const matrix_rows* rows, int64_t first,
                            const matrix_activation* x)
{
    const uint8_t* data = rows->data + first * rows->row_bytes;
    float32x4_t sums[MATRIX_TILE];
    float offsets[MATRIX_TILE] = { 0 };
    for (int r = 0; r < num_rows; r++) { sums[r] = vdupq_n_f32(0.0f); }
    for (int64_t u = 0; u < rows->cols / MATRIX_UNIT; u++) {
        for (int r = 0; r < num_rows; r++) {
            unit_vectors unit;
            load_unit(type, data + r * rows->row_bytes, u, &unit);
            sums[r] = dot_unit(type, &unit, x->codes + u * MATRIX_UNIT, x->scales[u], sums[r]);
            offsets[r] += unit.offset * x->sums[u];
        }
    }
    for (int r = 0; r < num_rows; r++) { rows->y[first + r] = vaddvq_f32(sums[r]) + offsets[r]; }
}

static inline void dot_units(int type, const matrix_rows* rows, const matrix_activation* x)
{
    int64_t m = 0;
    for (; m + MATRIX_TILE <= rows->num_rows; m += MATRIX_TILE) {
        dot_tile(type, MATRIX_TILE, rows, m, x);
    }
    for (; m < rows->num_rows; m++) { dot_tile(type, 1, rows, m, x); }
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

// ---- floats -----------------------------------------------------------------------------------

static inline float32x4_t load_floats(int type, const uint8_t* bytes)
{
    if (type == MATRIX_F16) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(bytes))); }
    if (type == MATRIX_BF16) {
        return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(bytes)), 16));
    }
    return vreinterpretq_f32_u8(vld1q_u8(bytes));
}

static inline void dot_floats(int type, const matrix_rows* rows, const matrix_activation* x)
{
    const int64_t bytes = matrix_group_bytes(type);
    for (int64_t m = 0; m < rows->num_rows; m++) {
        const uint8_t* row = rows->data + m * rows->row_bytes;
        float32x4_t sums[2] = { vdupq_n_f32(0.0f), vdupq_n_f32(0.0f) };
        float rest = 0.0f;
        int64_t n = 0;
        for (; n + 8 <= rows->cols; n += 8) {
            for (int i = 0; i < 2; i++) {
                const float32x4_t weights = load_floats(type, row + (n + 4 * i) * bytes);
                sums[i] = vfmaq_f32(sums[i], weights, vld1q_f32(x->values + n + 4 * i));
            }
        }
        for (; n < rows->cols; n++) {
            float weight;
            matrix_dequantize_floats(type, row + n * bytes, 1, &weight);
            rest += weight * x->values[n];
        }
        rows->y[m] = vaddvq_f32(vaddq_f32(sums[0], sums[1])) + rest;
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

const matrix_kernels matrix_kernels_neon = {
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

#endif
