// matrix_x86.h -- row dot products on 256-bit registers; included once by each instruction set.
//
// The file that includes this one defines MATRIX_TARGET, the attribute of its instruction set, and
//
//   offset_dot(offset, x)            what unsigned_dot subtracts: offset . x, in its own form
//   unsigned_dot(codes, x, less)     u8 . i8 in 8 lanes of i32, each over 4 bytes, minus less
//   signed_offset(x)                 the same for signed_dot
//   signed_dot(codes, x, less)       i8 . i8
//   high_bits(bits)                  32 bytes that are 16 where the bit is set
//
// Per 32 weights and row: unpack, one dot, one conversion, one fused multiply-add by the product of
// the two scales; about 12 instructions or 4 cycles, in which 18 to 34 bytes of weights are used:
// near what one core gets from memory. Lanes are added once, at the end of a row.
#ifndef KVLOOM_DECODE_MATRIX_X86_H
#define KVLOOM_DECODE_MATRIX_X86_H

#include "matrix_units.h"

#define MATRIX_INLINE static inline __attribute__((always_inline)) MATRIX_TARGET

MATRIX_INLINE __m256i load_256(const void* bytes)
{
    return _mm256_loadu_si256((const __m256i*)bytes);
}

MATRIX_INLINE __m128i load_128(const void* bytes) { return _mm_loadu_si128((const __m128i*)bytes); }

MATRIX_INLINE float sum_lanes(__m256 v)
{
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

// Two f16 at bytes, as floats in lanes 0 and 1.
MATRIX_INLINE __m128 load_two_halves(const uint8_t* bytes)
{
    return _mm_cvtph_ps(_mm_cvtsi32_si128((int)matrix_load_32(bytes)));
}

// Rows side by side are too many short streams for the processor to foresee. Rows follow each
// other in memory, so each step asks for its share of what comes next, in the order of addresses.
// 4 kB is what arrives within the latency of memory. A prefetch of an address that is not mapped
// does nothing.
MATRIX_INLINE void fetch_ahead(const uint8_t* position)
{
    _mm_prefetch((const char*)((uintptr_t)position + 4096), _MM_HINT_T0);
}

// ---- types with groups of 32 ------------------------------------------------------------------

// 16 bytes -> 32 bytes: low nibbles, then high nibbles.
MATRIX_INLINE __m256i load_nibbles(const uint8_t* bytes)
{
    const __m128i packed = load_128(bytes);
    const __m256i both =
        _mm256_inserti128_si256(_mm256_castsi128_si256(packed), _mm_srli_epi16(packed, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

MATRIX_INLINE __m256i load_codes(int type, const uint8_t* group)
{
    switch (type) {
    case MATRIX_Q4_0: return load_nibbles(group + 2);
    case MATRIX_Q4_1: return load_nibbles(group + 4);
    case MATRIX_Q5_0:
        return _mm256_or_si256(load_nibbles(group + 6), high_bits(matrix_load_32(group + 2)));
    case MATRIX_Q5_1:
        return _mm256_or_si256(load_nibbles(group + 8), high_bits(matrix_load_32(group + 4)));
    default: return load_256(group + 2);
    }
}

// What dot_codes subtracts from each dot product: the same for all rows.
MATRIX_INLINE __m256i load_less(int type, __m256i x)
{
    switch (type) {
    case MATRIX_Q4_0: return offset_dot(_mm256_set1_epi8(8), x);
    case MATRIX_Q5_0: return offset_dot(_mm256_set1_epi8(16), x);
    case MATRIX_Q8_0: return signed_offset(x);
    default: return _mm256_setzero_si256();
    }
}

MATRIX_INLINE __m256 dot_codes(int type, __m256i codes, __m256i x, __m256i less)
{
    return _mm256_cvtepi32_ps(type == MATRIX_Q8_0 ? signed_dot(codes, x, less)
                                                  : unsigned_dot(codes, x, less));
}

// num_rows rows at once, at most MATRIX_TILE; type and num_rows are constants where it is inlined.
// Lane 1 of offsets[r] sums group offset * activation sum; lane 0 is not used.
MATRIX_INLINE void dot_tile(int type, int num_rows, const matrix_rows* rows, int64_t first,
                            const matrix_activation* x)
{
    const int64_t group_bytes = matrix_group_bytes(type);
    const int has_offset = type == MATRIX_Q4_1 || type == MATRIX_Q5_1;
    const uint8_t* data = rows->data + first * rows->row_bytes;
    __m256 sums[MATRIX_TILE];
    __m128 offsets[MATRIX_TILE];
    for (int r = 0; r < num_rows; r++) {
        sums[r] = _mm256_setzero_ps();
        offsets[r] = _mm_setzero_ps();
    }
    for (int64_t u = 0; u < rows->cols / MATRIX_UNIT; u++) {
        const __m256i codes = load_256(x->codes + u * MATRIX_UNIT);
        const __m256i less = load_less(type, codes);
        const __m128 x_scale = _mm_load_ss(&x->scales[u]);
        const __m128 x_both = _mm_unpacklo_ps(x_scale, _mm_load_ss(&x->sums[u]));
        for (int r = 0; r < num_rows; r++) {
            const uint8_t* group = data + r * rows->row_bytes + u * group_bytes;
            fetch_ahead(data + (u * num_rows + r) * group_bytes);
            const __m128 halves = load_two_halves(group);
            const __m128 scale = _mm_mul_ps(halves, has_offset ? x_both : x_scale);
            const __m256 dot = dot_codes(type, load_codes(type, group), codes, less);
            sums[r] = _mm256_fmadd_ps(dot, _mm256_broadcastss_ps(scale), sums[r]);
            offsets[r] = _mm_add_ps(offsets[r], scale);
        }
    }
    for (int r = 0; r < num_rows; r++) {
        const float offset = has_offset ? _mm_cvtss_f32(_mm_movehdup_ps(offsets[r])) : 0.0f;
        rows->y[first + r] = sum_lanes(sums[r]) + offset;
    }
}

MATRIX_INLINE void dot_simple(int type, const matrix_rows* rows, const matrix_activation* x)
{
    int64_t m = 0;
    for (; m + MATRIX_TILE <= rows->num_rows; m += MATRIX_TILE) {
        dot_tile(type, MATRIX_TILE, rows, m, x);
    }
    for (; m < rows->num_rows; m++) { dot_tile(type, 1, rows, m, x); }
}

MATRIX_TARGET static void dot_q4_0(const matrix_rows* rows, const matrix_activation* x)
{
    dot_simple(MATRIX_Q4_0, rows, x);
}

MATRIX_TARGET static void dot_q4_1(const matrix_rows* rows, const matrix_activation* x)
{
    dot_simple(MATRIX_Q4_1, rows, x);
}

MATRIX_TARGET static void dot_q5_0(const matrix_rows* rows, const matrix_activation* x)
{
    dot_simple(MATRIX_Q5_0, rows, x);
}

MATRIX_TARGET static void dot_q5_1(const matrix_rows* rows, const matrix_activation* x)
{
    dot_simple(MATRIX_Q5_1, rows, x);
}

MATRIX_TARGET static void dot_q8_0(const matrix_rows* rows, const matrix_activation* x)
{
    dot_simple(MATRIX_Q8_0, rows, x);
}

// ---- types with groups of 256 -----------------------------------------------------------------

// All lanes = lane index of v.
MATRIX_INLINE __m256 broadcast_lane(__m256 v, int index)
{
    return _mm256_permutevar8x32_ps(v, _mm256_set1_epi32(index));
}

// Bit index of every byte, moved to bit 4.
MATRIX_INLINE __m256i fifth_bit(__m256i high, int index)
{
    const __m256i moved =
        index < 4 ? _mm256_slli_epi16(high, 4 - index) : _mm256_srli_epi16(high, index - 4);
    return _mm256_and_si256(moved, _mm256_set1_epi8(16));
}

// Lane u is the scale and the offset of unit u, in units of the weights.
typedef struct k_scales {
    __m256 scales;
    __m256 offsets;
} k_scales;

MATRIX_INLINE k_scales load_k_scales(const uint8_t* group)
{
    const __m128 halves = load_two_halves(group);
    uint32_t words[4];
    matrix_unpack_scales(group + 4, words);
    const __m128i small =
        _mm_setr_epi32((int)words[0], (int)words[1], (int)words[2], (int)words[3]);
    const __m256i scales = _mm256_cvtepu8_epi32(small);
    const __m256i offsets = _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(small, small));
    const __m256 offset_scale = _mm256_broadcastss_ps(_mm_movehdup_ps(halves));
    k_scales k;
    k.scales = _mm256_mul_ps(_mm256_cvtepi32_ps(scales), _mm256_broadcastss_ps(halves));
    k.offsets = _mm256_mul_ps(_mm256_cvtepi32_ps(offsets), offset_scale);
    return k;
}

// Two running sums, for a group's eight additions in a row would be bound by their latency.
MATRIX_INLINE float dot_row_q45_k(int type, const uint8_t* row, int64_t num_groups,
                                  const matrix_activation* x)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i zero = _mm256_setzero_si256();
    __m256 sums[2] = { _mm256_setzero_ps(), _mm256_setzero_ps() };
    __m256 offsets = _mm256_setzero_ps();
    for (int64_t g = 0; g < num_groups; g++) {
        const uint8_t* group = row + g * matrix_group_bytes(type);
        const int8_t* x_codes = x->codes + g * 256;
        const k_scales k = load_k_scales(group);
        const __m256 scales = _mm256_mul_ps(k.scales, _mm256_loadu_ps(x->scales + g * 8));
        offsets = _mm256_fmadd_ps(k.offsets, _mm256_loadu_ps(x->sums + g * 8), offsets);
        const __m256i high = type == MATRIX_Q5_K ? load_256(group + 16) : zero;
        const uint8_t* codes = group + (type == MATRIX_Q5_K ? 48 : 16);
        for (int u = 0; u < 8; u += 2) {
            const __m256i packed = load_256(codes + u * 16);
            __m256i even = _mm256_and_si256(packed, nibble);
            __m256i odd = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
            if (type == MATRIX_Q5_K) {
                even = _mm256_or_si256(even, fifth_bit(high, u));
                odd = _mm256_or_si256(odd, fifth_bit(high, u + 1));
            }
            even = unsigned_dot(even, load_256(x_codes + u * 32), zero);
            odd = unsigned_dot(odd, load_256(x_codes + u * 32 + 32), zero);
            sums[0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(even), broadcast_lane(scales, u), sums[0]);
            sums[1] =
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(odd), broadcast_lane(scales, u + 1), sums[1]);
        }
    }
    return sum_lanes(_mm256_sub_ps(_mm256_add_ps(sums[0], sums[1]), offsets));
}

MATRIX_TARGET static void dot_q4_k(const matrix_rows* rows, const matrix_activation* x)
{
    for (int64_t m = 0; m < rows->num_rows; m++) {
        const uint8_t* row = rows->data + m * rows->row_bytes;
        rows->y[m] = dot_row_q45_k(MATRIX_Q4_K, row, rows->cols / 256, x);
    }
}

MATRIX_TARGET static void dot_q5_k(const matrix_rows* rows, const matrix_activation* x)
{
    for (int64_t m = 0; m < rows->num_rows; m++) {
        const uint8_t* row = rows->data + m * rows->row_bytes;
        rows->y[m] = dot_row_q45_k(MATRIX_Q5_K, row, rows->cols / 256, x);
    }
}

// Codes of unit k of a half: low or high nibbles, with two more bits at 4 and 5.
MATRIX_INLINE __m256i load_q6_codes(const uint8_t* group, int half, int k)
{
    const __m256i packed = load_256(group + half * 64 + k % 2 * 32);
    const __m256i high = load_256(group + 128 + half * 32);
    const __m256i shifted = k < 2 ? packed : _mm256_srli_epi16(packed, 4);
    const __m256i moved =
        k < 2 ? _mm256_slli_epi16(high, 4 - 2 * k) : _mm256_srli_epi16(high, 2 * k - 4);
    return _mm256_or_si256(_mm256_and_si256(shifted, _mm256_set1_epi8(15)),
                           _mm256_and_si256(moved, _mm256_set1_epi8(0x30)));
}

// Lanes 2k and 2k + 1 are the scales of the two sixteens of unit k of a half.
MATRIX_INLINE __m256 load_q6_scales(const uint8_t* group, int half)
{
    const __m128 scale = _mm_cvtph_ps(_mm_cvtsi32_si128((int)matrix_load_16(group + 208)));
    const __m128i small = _mm_loadl_epi64((const __m128i*)(const void*)(group + 192 + half * 8));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(small)),
                         _mm256_broadcastss_ps(scale));
}

// Lanes 0-3 of a dot product belong to the first sixteen and 4-7 to the second.
MATRIX_INLINE __m256 spread_q6_scales(__m256 scales, int k)
{
    const int a = 2 * k, b = 2 * k + 1;
    return _mm256_permutevar8x32_ps(scales, _mm256_setr_epi32(a, a, a, a, b, b, b, b));
}

MATRIX_TARGET static void dot_q6_k(const matrix_rows* rows, const matrix_activation* x)
{
    const __m256i middle = _mm256_set1_epi8(32);
    for (int64_t m = 0; m < rows->num_rows; m++) {
        const uint8_t* row = rows->data + m * rows->row_bytes;
        __m256 sums[2] = { _mm256_setzero_ps(), _mm256_setzero_ps() };
        for (int64_t h = 0; h < rows->cols / 128; h++) {
            const uint8_t* group = row + h / 2 * 210;
            const int half = (int)(h % 2);
            const __m256 scales = load_q6_scales(group, half);
            for (int k = 0; k < 4; k++) {
                const __m256i values = load_256(x->codes + h * 128 + k * 32);
                const __m256i dot =
                    unsigned_dot(load_q6_codes(group, half, k), values, offset_dot(middle, values));
                const __m256 scale = _mm256_mul_ps(spread_q6_scales(scales, k),
                                                   _mm256_broadcast_ss(x->scales + h * 4 + k));
                sums[k % 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sums[k % 2]);
            }
        }
        rows->y[m] = sum_lanes(_mm256_add_ps(sums[0], sums[1]));
    }
}

// ---- floats -----------------------------------------------------------------------------------

MATRIX_INLINE __m256 load_floats(int type, const uint8_t* bytes)
{
    switch (type) {
    case MATRIX_F16: return _mm256_cvtph_ps(load_128(bytes));
    case MATRIX_BF16:
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(bytes)), 16));
    default: return _mm256_castsi256_ps(load_256(bytes));
    }
}

MATRIX_INLINE void dot_float_tile(int type, int num_rows, const matrix_rows* rows, int64_t first,
                                  const matrix_activation* x)
{
    const int64_t bytes = matrix_group_bytes(type);
    const uint8_t* data = rows->data + first * rows->row_bytes;
    __m256 sums[MATRIX_TILE];
    float rest[MATRIX_TILE] = { 0 };
    for (int r = 0; r < num_rows; r++) { sums[r] = _mm256_setzero_ps(); }
    int64_t n = 0;
    for (; n + 8 <= rows->cols; n += 8) {
        const __m256 values = _mm256_loadu_ps(x->values + n);
        for (int r = 0; r < num_rows; r++) {
            const __m256 weights = load_floats(type, data + r * rows->row_bytes + n * bytes);
            fetch_ahead(data + (n * num_rows + 8 * r) * bytes);
            sums[r] = _mm256_fmadd_ps(weights, values, sums[r]);
        }
    }
    for (; n < rows->cols; n++) {
        for (int r = 0; r < num_rows; r++) {
            float weight;
            matrix_dequantize_floats(type, data + r * rows->row_bytes + n * bytes, 1, &weight);
            rest[r] += weight * x->values[n];
        }
    }
    for (int r = 0; r < num_rows; r++) { rows->y[first + r] = sum_lanes(sums[r]) + rest[r]; }
}

MATRIX_INLINE void dot_floats(int type, const matrix_rows* rows, const matrix_activation* x)
{
    int64_t m = 0;
    for (; m + MATRIX_TILE <= rows->num_rows; m += MATRIX_TILE) {
        dot_float_tile(type, MATRIX_TILE, rows, m, x);
    }
    for (; m < rows->num_rows; m++) { dot_float_tile(type, 1, rows, m, x); }
}

MATRIX_TARGET static void dot_f32(const matrix_rows* rows, const matrix_activation* x)
{
    dot_floats(MATRIX_F32, rows, x);
}

MATRIX_TARGET static void dot_f16(const matrix_rows* rows, const matrix_activation* x)
{
    dot_floats(MATRIX_F16, rows, x);
}

MATRIX_TARGET static void dot_bf16(const matrix_rows* rows, const matrix_activation* x)
{
    dot_floats(MATRIX_BF16, rows, x);
}

#include "matrix_x86_batch.h"

// ---- rows as floats ---------------------------------------------------------------------------

// out[i] = scales[i / 16] codes[i] + offset, for 32 signed bytes.
MATRIX_INLINE void store_unit(__m256i codes, __m256 first_scale, __m256 second_scale, __m256 offset,
                              float* out)
{
    const __m128i halves[2] = { _mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1) };
    for (int i = 0; i < 4; i++) {
        const __m128i bytes =
            i % 2 ? _mm_unpackhi_epi64(halves[i / 2], halves[i / 2]) : halves[i / 2];
        const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
        const __m256 scale = i < 2 ? first_scale : second_scale;
        _mm256_storeu_ps(out + 8 * i, _mm256_fmadd_ps(values, scale, offset));
    }
}

MATRIX_INLINE void dequantize_simple(int type, const uint8_t* row, int64_t n, float* out)
{
    const int has_offset = type == MATRIX_Q4_1 || type == MATRIX_Q5_1;
    const char bias = type == MATRIX_Q4_0 ? 8 : (type == MATRIX_Q5_0 ? 16 : 0);
    const int64_t group_bytes = matrix_group_bytes(type);
    for (int64_t u = 0; u < n / MATRIX_UNIT; u++) {
        const uint8_t* group = row + u * group_bytes;
        const __m128 halves = load_two_halves(group);
        const __m256 scale = _mm256_broadcastss_ps(halves);
        const __m256 offset =
            has_offset ? _mm256_broadcastss_ps(_mm_movehdup_ps(halves)) : _mm256_setzero_ps();
        const __m256i codes = _mm256_sub_epi8(load_codes(type, group), _mm256_set1_epi8(bias));
        store_unit(codes, scale, scale, offset, out + u * MATRIX_UNIT);
    }
}

// The plain unpacking makes the codes; the compiler has vectors for those loops.
MATRIX_INLINE void dequantize_large(int type, const uint8_t* row, int64_t n, float* out)
{
    for (int64_t u = 0; u < n / MATRIX_UNIT; u++) {
        matrix_unit unit;
        matrix_unpack_unit(type, row, u, &unit);
        store_unit(load_256(unit.codes), _mm256_set1_ps(unit.scale[0]),
                   _mm256_set1_ps(unit.scale[1]), _mm256_set1_ps(unit.offset),
                   out + u * MATRIX_UNIT);
    }
}

MATRIX_INLINE void dequantize_floats(int type, const uint8_t* row, int64_t n, float* out)
{
    const int64_t bytes = matrix_group_bytes(type);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) { _mm256_storeu_ps(out + i, load_floats(type, row + i * bytes)); }
    matrix_dequantize_floats(type, row + i * bytes, n - i, out + i);
}

MATRIX_TARGET static void dequantize(int type, const uint8_t* row, int64_t n, float* out)
{
    switch (type) {
    case MATRIX_F16: dequantize_floats(MATRIX_F16, row, n, out); break;
    case MATRIX_BF16: dequantize_floats(MATRIX_BF16, row, n, out); break;
    case MATRIX_Q4_0: dequantize_simple(MATRIX_Q4_0, row, n, out); break;
    case MATRIX_Q4_1: dequantize_simple(MATRIX_Q4_1, row, n, out); break;
    case MATRIX_Q5_0: dequantize_simple(MATRIX_Q5_0, row, n, out); break;
    case MATRIX_Q5_1: dequantize_simple(MATRIX_Q5_1, row, n, out); break;
    case MATRIX_Q8_0: dequantize_simple(MATRIX_Q8_0, row, n, out); break;
    case MATRIX_Q4_K: dequantize_large(MATRIX_Q4_K, row, n, out); break;
    case MATRIX_Q5_K: dequantize_large(MATRIX_Q5_K, row, n, out); break;
    case MATRIX_Q6_K: dequantize_large(MATRIX_Q6_K, row, n, out); break;
    default: matrix_dequantize_floats(type, row, n, out); break;
    }
}

// ---- the activation ---------------------------------------------------------------------------

MATRIX_INLINE float largest_lane(__m256 v)
{
    __m128 largest = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    largest = _mm_max_ps(largest, _mm_movehl_ps(largest, largest));
    return _mm_cvtss_f32(_mm_max_ss(largest, _mm_movehdup_ps(largest)));
}

// matrix_quantize_units for one unit. Packing works within halves of a register; the permutation
// brings the groups of four bytes back into order.
MATRIX_INLINE void quantize_unit(const float* x, int8_t* codes, float* scale, float* sum)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 values[4];
    __m256 largest = _mm256_setzero_ps();
    for (int i = 0; i < 4; i++) {
        values[i] = _mm256_loadu_ps(x + 8 * i);
        largest = _mm256_max_ps(largest, _mm256_and_ps(values[i], magnitude));
    }
    const float max = largest_lane(largest);
    const __m256 inverse = _mm256_set1_ps(max < 1e-32f ? 0.0f : 127.0f / max);
    __m256i rounded[4];
    for (int i = 0; i < 4; i++) {
        rounded[i] = _mm256_cvtps_epi32(_mm256_mul_ps(values[i], inverse));
    }
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(rounded[0], rounded[1]),
                                              _mm256_packs_epi32(rounded[2], rounded[3]));
    _mm256_storeu_si256(
        (__m256i*)(void*)codes,
        _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    const __m256i lanes = _mm256_add_epi32(_mm256_add_epi32(rounded[0], rounded[1]),
                                           _mm256_add_epi32(rounded[2], rounded[3]));
    *scale = max < 1e-32f ? 0.0f : max / 127.0f;
    *sum = *scale * sum_lanes(_mm256_cvtepi32_ps(lanes));
}

MATRIX_TARGET static void quantize(const float* x, int64_t n, int8_t* codes, float* scales,
                                   float* sums)
{
    for (int64_t u = 0; u < n / MATRIX_UNIT; u++) {
        quantize_unit(x + u * MATRIX_UNIT, codes + u * MATRIX_UNIT, scales + u, sums + u);
    }
}

#define MATRIX_X86_KERNELS                                                                         \
    {                                                                                              \
        .dot = { [MATRIX_F32] = dot_f32,   [MATRIX_F16] = dot_f16,   [MATRIX_Q4_0] = dot_q4_0,     \
                 [MATRIX_Q4_1] = dot_q4_1, [MATRIX_Q5_0] = dot_q5_0, [MATRIX_Q5_1] = dot_q5_1,     \
                 [MATRIX_Q8_0] = dot_q8_0, [MATRIX_Q4_K] = dot_q4_k, [MATRIX_Q5_K] = dot_q5_k,     \
                 [MATRIX_Q6_K] = dot_q6_k, [MATRIX_BF16] = dot_bf16 },                             \
        .gang = { [MATRIX_Q4_0] = gang_q4_0, [MATRIX_Q4_1] = gang_q4_1, [MATRIX_Q5_0] = gang_q5_0, \
                  [MATRIX_Q5_1] = gang_q5_1, [MATRIX_Q8_0] = gang_q8_0, [MATRIX_Q4_K] = gang_q4_k, \
                  [MATRIX_Q5_K] = gang_q5_k, [MATRIX_Q6_K] = gang_q6_k },                          \
        .quantize = quantize, .dequantize = dequantize,                                            \
    }

#endif
