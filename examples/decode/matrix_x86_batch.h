// matrix_x86_batch.h -- row dot products with four vectors at once; a part of matrix_x86.h.
//
// Weights are unpacked once for four vectors. Per 32 weights and vector there remain a dot, a
// conversion, a product of the two scales and a fused multiply-add.
#ifndef KVLOOM_DECODE_MATRIX_X86_BATCH_H
#define KVLOOM_DECODE_MATRIX_X86_BATCH_H

// y of row m, for each vector b: the 8 lanes of sums[b] and lane b of offsets.
MATRIX_INLINE void store_vectors(const matrix_rows* rows, int64_t m, const __m256 sums[MATRIX_GANG],
                                 __m128 offsets)
{
    float values[MATRIX_GANG];
    _mm_storeu_ps(values, offsets);
    for (int b = 0; b < MATRIX_GANG; b++) {
        rows->y[b * rows->y_stride + m] = sum_lanes(sums[b]) + values[b];
    }
}

MATRIX_INLINE __m128 sums_of_unit(const matrix_activation* x, int64_t unit)
{
    return _mm_setr_ps(x[0].sums[unit], x[1].sums[unit], x[2].sums[unit], x[3].sums[unit]);
}

// ---- types with groups of 32 ------------------------------------------------------------------

// num_rows is 1 or 2: two rows share what is made of the vectors and fill the registers.
MATRIX_INLINE void gang_tile(int type, int num_rows, const matrix_rows* rows, int64_t first,
                             const matrix_activation* x)
{
    const int64_t group_bytes = matrix_group_bytes(type);
    const int has_offset = type == MATRIX_Q4_1 || type == MATRIX_Q5_1;
    const uint8_t* data = rows->data + first * rows->row_bytes;
    __m256 sums[2][MATRIX_GANG];
    __m128 offsets[2];
    for (int r = 0; r < num_rows; r++) {
        for (int b = 0; b < MATRIX_GANG; b++) { sums[r][b] = _mm256_setzero_ps(); }
        offsets[r] = _mm_setzero_ps();
    }
    for (int64_t u = 0; u < rows->cols / MATRIX_UNIT; u++) {
        const __m128 x_sums = has_offset ? sums_of_unit(x, u) : _mm_setzero_ps();
        __m256i codes[2];
        __m256 scale[2];
        for (int r = 0; r < num_rows; r++) {
            const uint8_t* group = data + r * rows->row_bytes + u * group_bytes;
            fetch_ahead(data + (u * num_rows + r) * group_bytes);
            const __m128 halves = load_two_halves(group);
            scale[r] = _mm256_broadcastss_ps(halves);
            codes[r] = load_codes(type, group);
            if (has_offset) {
                offsets[r] = _mm_fmadd_ps(_mm_shuffle_ps(halves, halves, 0x55), x_sums, offsets[r]);
            }
        }
        for (int b = 0; b < MATRIX_GANG; b++) {
            const __m256i values = load_256(x[b].codes + u * MATRIX_UNIT);
            const __m256i less = load_less(type, values);
            const __m256 x_scale = _mm256_broadcast_ss(&x[b].scales[u]);
            for (int r = 0; r < num_rows; r++) {
                const __m256 dot = dot_codes(type, codes[r], values, less);
                sums[r][b] = _mm256_fmadd_ps(dot, _mm256_mul_ps(scale[r], x_scale), sums[r][b]);
            }
        }
    }
    for (int r = 0; r < num_rows; r++) { store_vectors(rows, first + r, sums[r], offsets[r]); }
}

MATRIX_INLINE void gang_simple(int type, const matrix_rows* rows, const matrix_activation* x)
{
    int64_t m = 0;
    for (; m + 2 <= rows->num_rows; m += 2) { gang_tile(type, 2, rows, m, x); }
    if (m < rows->num_rows) { gang_tile(type, 1, rows, m, x); }
}

MATRIX_TARGET static void gang_q4_0(const matrix_rows* rows, const matrix_activation* x)
{
    gang_simple(MATRIX_Q4_0, rows, x);
}

MATRIX_TARGET static void gang_q4_1(const matrix_rows* rows, const matrix_activation* x)
{
    gang_simple(MATRIX_Q4_1, rows, x);
}

MATRIX_TARGET static void gang_q5_0(const matrix_rows* rows, const matrix_activation* x)
{
    gang_simple(MATRIX_Q5_0, rows, x);
}

MATRIX_TARGET static void gang_q5_1(const matrix_rows* rows, const matrix_activation* x)
{
    gang_simple(MATRIX_Q5_1, rows, x);
}

MATRIX_TARGET static void gang_q8_0(const matrix_rows* rows, const matrix_activation* x)
{
    gang_simple(MATRIX_Q8_0, rows, x);
}

// ---- types with groups of 256 -----------------------------------------------------------------

// sums[b] += scale x[b].scales[unit] (codes . x[b] - less), for one unit of 32.
MATRIX_INLINE void add_unit(__m256i codes, int offset, __m256 scale, const matrix_activation* x,
                            int64_t unit, __m256 sums[MATRIX_GANG])
{
    for (int b = 0; b < MATRIX_GANG; b++) {
        const __m256i values = load_256(x[b].codes + unit * MATRIX_UNIT);
        const __m256i less = offset != 0 ? offset_dot(_mm256_set1_epi8((char)offset), values)
                                         : _mm256_setzero_si256();
        const __m256 both = _mm256_mul_ps(scale, _mm256_broadcast_ss(&x[b].scales[unit]));
        const __m256 dot = _mm256_cvtepi32_ps(unsigned_dot(codes, values, less));
        sums[b] = _mm256_fmadd_ps(dot, both, sums[b]);
    }
}

MATRIX_INLINE void gang_group_q45_k(int type, const uint8_t* group, const matrix_activation* x,
                                    int64_t first_unit, __m256 sums[MATRIX_GANG])
{
    const __m256i nibble = _mm256_set1_epi8(15);
    const k_scales k = load_k_scales(group);
    const __m256i high = type == MATRIX_Q5_K ? load_256(group + 16) : nibble;
    const uint8_t* codes = group + (type == MATRIX_Q5_K ? 48 : 16);
    for (int b = 0; b < MATRIX_GANG; b++) {
        sums[b] = _mm256_fnmadd_ps(k.offsets, _mm256_loadu_ps(x[b].sums + first_unit), sums[b]);
    }
    for (int u = 0; u < 8; u += 2) {
        const __m256i packed = load_256(codes + u * 16);
        __m256i even = _mm256_and_si256(packed, nibble);
        __m256i odd = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
        if (type == MATRIX_Q5_K) {
            even = _mm256_or_si256(even, fifth_bit(high, u));
            odd = _mm256_or_si256(odd, fifth_bit(high, u + 1));
        }
        add_unit(even, 0, broadcast_lane(k.scales, u), x, first_unit + u, sums);
        add_unit(odd, 0, broadcast_lane(k.scales, u + 1), x, first_unit + u + 1, sums);
    }
}

MATRIX_INLINE void gang_group_q6_k(const uint8_t* group, const matrix_activation* x,
                                   int64_t first_unit, __m256 sums[MATRIX_GANG])
{
    for (int half = 0; half < 2; half++) {
        const __m256 scales = load_q6_scales(group, half);
        for (int k = 0; k < 4; k++) {
            const __m256i codes = load_q6_codes(group, half, k);
            add_unit(codes, 32, spread_q6_scales(scales, k), x, first_unit + half * 4 + k, sums);
        }
    }
}

MATRIX_INLINE void gang_large(int type, const matrix_rows* rows, const matrix_activation* x)
{
    for (int64_t m = 0; m < rows->num_rows; m++) {
        const uint8_t* row = rows->data + m * rows->row_bytes;
        __m256 sums[MATRIX_GANG];
        for (int b = 0; b < MATRIX_GANG; b++) { sums[b] = _mm256_setzero_ps(); }
        for (int64_t g = 0; g < rows->cols / 256; g++) {
            const uint8_t* group = row + g * matrix_group_bytes(type);
            if (type == MATRIX_Q6_K) {
                gang_group_q6_k(group, x, g * 8, sums);
            } else {
                gang_group_q45_k(type, group, x, g * 8, sums);
            }
        }
        store_vectors(rows, m, sums, _mm_setzero_ps());
    }
}

MATRIX_TARGET static void gang_q4_k(const matrix_rows* rows, const matrix_activation* x)
{
    gang_large(MATRIX_Q4_K, rows, x);
}

MATRIX_TARGET static void gang_q5_k(const matrix_rows* rows, const matrix_activation* x)
{
    gang_large(MATRIX_Q5_K, rows, x);
}

MATRIX_TARGET static void gang_q6_k(const matrix_rows* rows, const matrix_activation* x)
{
    gang_large(MATRIX_Q6_K, rows, x);
}

#endif
