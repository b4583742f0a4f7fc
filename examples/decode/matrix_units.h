// matrix_units.h -- the quantised formats in plain C, once: any type, 32 weights at a time.
//
// Inline, so that each instruction set compiles its own copy. The faster kernels unpack the same
// bytes with their own instructions; tests compare them with what is here.
//
// Groups of 32 hold codes as follows; nibble j of codes [16] is the low half of byte j for j < 16
// and the high half of byte j - 16 above, and bit j of high [4] is the fifth bit of code j.
//
//   Q4_0  | scale: f16 | codes: 16 |
//   Q4_1  | scale: f16 | offset: f16 | codes: 16 |
//   Q5_0  | scale: f16 | high: 4 | codes: 16 |
//   Q5_1  | scale: f16 | offset: f16 | high: 4 | codes: 16 |
//   Q8_0  | scale: f16 | codes: 32 x i8 |
//
// Groups of 256 hold eight units of 32, or sixteen of 16 for Q6_K.
//
//   Q4_K  | scale: f16 | offset: f16 | scales: 12 | codes: 128 |
//   Q5_K  | scale: f16 | offset: f16 | scales: 12 | high: 32 | codes: 128 |
//           unit u has the low (u even) or high nibbles of codes[32 (u / 2) ..]; bit u of high[j]
//           is the fifth bit of its code j; weight = scale s_u q - offset o_u
//   Q6_K  | codes: 128 | high: 64 | scales: 16 x i8 | scale: f16 |
//           see matrix_unit_q6_k; weight = scale s (q - 32)
#ifndef KVLOOM_DECODE_MATRIX_UNITS_H
#define KVLOOM_DECODE_MATRIX_UNITS_H

#include "matrix_kernels.h"

#include <string.h>

// weight[i] = scale[i / 16] codes[i] + offset.
typedef struct matrix_unit {
    int8_t codes[MATRIX_UNIT];
    float scale[2];
    float offset;
} matrix_unit;

static inline float matrix_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t matrix_bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// f16 -> f32. The exponent is moved up by a product, which is right for subnormals too; infinity
// and NaN get the largest exponent back.
static inline float matrix_float_of_half(uint32_t half)
{
    const float moved = matrix_float_of_bits((half & 0x7fffu) << 13) * 0x1p112f;
    const uint32_t top = (half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0;
    return matrix_float_of_bits(matrix_bits_of_float(moved) | top | (half & 0x8000u) << 16);
}

static inline uint32_t matrix_load_16(const uint8_t* bytes)
{
    uint16_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static inline uint32_t matrix_load_32(const uint8_t* bytes)
{
    uint32_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static inline float matrix_load_half(const uint8_t* bytes)
{
    return matrix_float_of_half(matrix_load_16(bytes));
}

// Weights and bytes of one group of a type.
static inline int64_t matrix_group_size(int type)
{
    switch (type) {
    case MATRIX_F32:
    case MATRIX_F16:
    case MATRIX_BF16: return 1;
    case MATRIX_Q4_K:
    case MATRIX_Q5_K:
    case MATRIX_Q6_K: return 256;
    default: return MATRIX_UNIT;
    }
}

static inline int64_t matrix_group_bytes(int type)
{
    switch (type) {
    case MATRIX_F32: return 4;
    case MATRIX_F16: return 2;
    case MATRIX_BF16: return 2;
    case MATRIX_Q4_0: return 18;
    case MATRIX_Q4_1: return 20;
    case MATRIX_Q5_0: return 22;
    case MATRIX_Q5_1: return 24;
    case MATRIX_Q8_0: return 34;
    case MATRIX_Q4_K: return 144;
    case MATRIX_Q5_K: return 176;
    case MATRIX_Q6_K: return 210;
    default: return 0;
    }
}

static inline int matrix_is_float(int type)
{
    return type == MATRIX_F32 || type == MATRIX_F16 || type == MATRIX_BF16;
}

// codes[i] = nibble i - bias.
static inline void matrix_unpack_nibbles(const uint8_t* nibbles, int bias, int8_t* codes)
{
    for (int i = 0; i < 16; i++) {
        codes[i] = (int8_t)((nibbles[i] & 15) - bias);
        codes[i + 16] = (int8_t)((nibbles[i] >> 4) - bias);
    }
}

// codes[i] += 16 where bit i is set.
static inline void matrix_add_high_bits(uint32_t high, int8_t* codes)
{
    for (int i = 0; i < MATRIX_UNIT; i++) {
        codes[i] = (int8_t)(codes[i] + (int)((high >> i & 1u) << 4));
    }
}

// The 6-bit scales and offsets of Q4_K and Q5_K as bytes: eight scales in words 0 and 1, eight
// offsets in words 2 and 3, lowest byte first. Units 0-3 have theirs in the low 6 bits of bytes 0-3
// and 4-7; units 4-7 have the low 4 bits in the halves of bytes 8-11 and two top bits above the
// others.
static inline void matrix_unpack_scales(const uint8_t* packed, uint32_t words[4])
{
    const uint32_t scales = matrix_load_32(packed);
    const uint32_t offsets = matrix_load_32(packed + 4);
    const uint32_t rest = matrix_load_32(packed + 8);
    words[0] = scales & 0x3f3f3f3fu;
    words[1] = (rest & 0x0f0f0f0fu) | (scales >> 2 & 0x30303030u);
    words[2] = offsets & 0x3f3f3f3fu;
    words[3] = (rest >> 4 & 0x0f0f0f0fu) | (offsets >> 2 & 0x30303030u);
}

// Units of types with groups of 32.
static inline void matrix_unit_simple(int type, const uint8_t* group, matrix_unit* unit)
{
    const int has_offset = type == MATRIX_Q4_1 || type == MATRIX_Q5_1;
    unit->scale[0] = unit->scale[1] = matrix_load_half(group);
    unit->offset = has_offset ? matrix_load_half(group + 2) : 0.0f;
    const uint8_t* rest = group + (has_offset ? 4 : 2);
    switch (type) {
    case MATRIX_Q4_0: matrix_unpack_nibbles(rest, 8, unit->codes); break;
    case MATRIX_Q4_1: matrix_unpack_nibbles(rest, 0, unit->codes); break;
    case MATRIX_Q5_0:
    case MATRIX_Q5_1:
        matrix_unpack_nibbles(rest + 4, has_offset ? 0 : 16, unit->codes);
        matrix_add_high_bits(matrix_load_32(rest), unit->codes);
        break;
    default: memcpy(unit->codes, rest, MATRIX_UNIT); break;
    }
}

static inline void matrix_unit_q45_k(int type, const uint8_t* group, int index, matrix_unit* unit)
{
    uint32_t words[4];
    matrix_unpack_scales(group + 4, words);
    const uint32_t scale = words[index / 4] >> index % 4 * 8 & 255;
    const uint32_t offset = words[2 + index / 4] >> index % 4 * 8 & 255;
    unit->scale[0] = unit->scale[1] = matrix_load_half(group) * (float)scale;
    unit->offset = -(matrix_load_half(group + 2) * (float)offset);
    const uint8_t* high = group + 16;
    const uint8_t* codes = group + (type == MATRIX_Q5_K ? 48 : 16) + index / 2 * 32;
    const int shift = index % 2 * 4;
    for (int i = 0; i < MATRIX_UNIT; i++) { unit->codes[i] = (int8_t)(codes[i] >> shift & 15); }
    if (type == MATRIX_Q5_K) {
        for (int i = 0; i < MATRIX_UNIT; i++) {
            unit->codes[i] = (int8_t)(unit->codes[i] + ((high[i] >> index & 1) << 4));
        }
    }
}

// Half h = index / 4 of the group has codes[64 h ..] and high[32 h ..]. Quarter k = index % 4 of it
// has the low (k < 2) or high nibbles of the 32 bytes k % 2, and bits 2k, 2k + 1 of the high bytes.
static inline void matrix_unit_q6_k(const uint8_t* group, int index, matrix_unit* unit)
{
    const int half = index / 4, quarter = index % 4;
    const uint8_t* codes = group + half * 64 + quarter % 2 * 32;
    const uint8_t* high = group + 128 + half * 32;
    const float scale = matrix_load_half(group + 208);
    unit->scale[0] = scale * (float)(int8_t)group[192 + 2 * index];
    unit->scale[1] = scale * (float)(int8_t)group[193 + 2 * index];
    unit->offset = 0.0f;
    for (int i = 0; i < MATRIX_UNIT; i++) {
        const int low = codes[i] >> quarter / 2 * 4 & 15;
        unit->codes[i] = (int8_t)((low | (high[i] >> 2 * quarter & 3) << 4) - 32);
    }
}

// Unit index of a row, of any quantised type.
static inline void matrix_unpack_unit(int type, const uint8_t* row, int64_t index,
                                      matrix_unit* unit)
{
    if (matrix_group_size(type) == MATRIX_UNIT) {
        matrix_unit_simple(type, row + index * matrix_group_bytes(type), unit);
        return;
    }
    const uint8_t* group = row + index / 8 * matrix_group_bytes(type);
    if (type == MATRIX_Q6_K) {
        matrix_unit_q6_k(group, (int)(index % 8), unit);
    } else {
        matrix_unit_q45_k(type, group, (int)(index % 8), unit);
    }
}

static inline void matrix_dequantize_floats(int type, const uint8_t* row, int64_t n, float* out)
{
    if (type == MATRIX_F32) {
        memcpy(out, row, (size_t)n * sizeof *out);
    } else if (type == MATRIX_F16) {
        for (int64_t i = 0; i < n; i++) { out[i] = matrix_load_half(row + 2 * i); }
    } else {
        for (int64_t i = 0; i < n; i++) {
            out[i] = matrix_float_of_bits(matrix_load_16(row + 2 * i) << 16);
        }
    }
}

// type is a constant where this is inlined.
static inline void matrix_dequantize_units(int type, const uint8_t* row, int64_t n, float* out)
{
    for (int64_t u = 0; u < n / MATRIX_UNIT; u++) {
        matrix_unit unit;
        matrix_unpack_unit(type, row, u, &unit);
        for (int i = 0; i < MATRIX_UNIT; i++) {
            out[u * MATRIX_UNIT + i] = unit.scale[i / 16] * (float)unit.codes[i] + unit.offset;
        }
    }
}

static inline void matrix_dequantize_any(int type, const uint8_t* row, int64_t n, float* out)
{
    switch (type) {
    case MATRIX_Q4_0: matrix_dequantize_units(MATRIX_Q4_0, row, n, out); break;
    case MATRIX_Q4_1: matrix_dequantize_units(MATRIX_Q4_1, row, n, out); break;
    case MATRIX_Q5_0: matrix_dequantize_units(MATRIX_Q5_0, row, n, out); break;
    case MATRIX_Q5_1: matrix_dequantize_units(MATRIX_Q5_1, row, n, out); break;
    case MATRIX_Q8_0: matrix_dequantize_units(MATRIX_Q8_0, row, n, out); break;
    case MATRIX_Q4_K: matrix_dequantize_units(MATRIX_Q4_K, row, n, out); break;
    case MATRIX_Q5_K: matrix_dequantize_units(MATRIX_Q5_K, row, n, out); break;
    case MATRIX_Q6_K: matrix_dequantize_units(MATRIX_Q6_K, row, n, out); break;
    default: matrix_dequantize_floats(type, row, n, out); break;
    }
}

static inline float matrix_max_magnitude(const float* x)
{
    float largest[8] = { 0 };
    for (int i = 0; i < MATRIX_UNIT; i += 8) {
        for (int lane = 0; lane < 8; lane++) {
            const float magnitude = x[i + lane] < 0.0f ? -x[i + lane] : x[i + lane];
            largest[lane] = magnitude > largest[lane] ? magnitude : largest[lane];
        }
    }
    for (int width = 4; width > 0; width /= 2) {
        for (int lane = 0; lane < width; lane++) {
            const float other = largest[lane + width];
            largest[lane] = other > largest[lane] ? other : largest[lane];
        }
    }
    return largest[0];
}

// Rounds x [n] to 8 bits, a scale for each 32. Magnitudes below 1e-32 become zero: their inverse
// would overflow. Adding 1.5 * 2^23 leaves the nearest integer in the low bits of a float.
static inline void matrix_quantize_units(const float* x, int64_t n, int8_t* codes, float* scales,
                                         float* sums)
{
    for (int64_t u = 0; u < n / MATRIX_UNIT; u++) {
        const float* values = x + u * MATRIX_UNIT;
        int8_t* out = codes + u * MATRIX_UNIT;
        const float largest = matrix_max_magnitude(values);
        const float inverse = largest < 1e-32f ? 0.0f : 127.0f / largest;
        int32_t sum = 0;
        for (int i = 0; i < MATRIX_UNIT; i++) {
            const uint32_t bits = matrix_bits_of_float(values[i] * inverse + 12582912.0f);
            const int32_t code = (int32_t)((bits & 0xffu) ^ 0x80u) - 128;
            out[i] = (int8_t)code;
            sum += code;
        }
        scales[u] = largest < 1e-32f ? 0.0f : largest / 127.0f;
        sums[u] = scales[u] * (float)sum;
    }
}

#endif
