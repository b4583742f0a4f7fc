// matrix_avx2.c -- the kernels for x86-64 with AVX2, FMA and F16C.
#include "matrix_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define MATRIX_TARGET __attribute__((target("avx2,fma,f16c")))
#define MATRIX_PRIMITIVE static inline __attribute__((always_inline)) MATRIX_TARGET

// Products of pairs of bytes are added in 16 bits. They fit: codes are below 64, |x| <= 127, and
// 2 * 63 * 127 < 2^15; the difference to less too.
MATRIX_PRIMITIVE __m256i offset_dot(__m256i offset, __m256i x)
{
    return _mm256_maddubs_epi16(offset, x);
}

MATRIX_PRIMITIVE __m256i unsigned_dot(__m256i codes, __m256i x, __m256i less)
{
    const __m256i pairs = _mm256_sub_epi16(_mm256_maddubs_epi16(codes, x), less);
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

// |codes| and x with the sign of the code, since one operand must be unsigned. Pairs fit, too:
// 2 * 128 * 127 < 2^15.
MATRIX_PRIMITIVE __m256i signed_offset(__m256i x)
{
    (void)x;
    return _mm256_setzero_si256();
}

MATRIX_PRIMITIVE __m256i signed_dot(__m256i codes, __m256i x, __m256i less)
{
    return unsigned_dot(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes), less);
}

// Byte i / 8 of bits is brought to byte i; its bit i % 8 is tested.
MATRIX_PRIMITIVE __m256i high_bits(uint32_t bits)
{
    const __m256i where = _mm256_setr_epi64x(0x0000000000000000, 0x0101010101010101,
                                             0x0202020202020202, 0x0303030303030303);
    const __m256i which = _mm256_set1_epi64x((int64_t)0x8040201008040201u);
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), where);
    const __m256i found = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, which), which);
    return _mm256_and_si256(found, _mm256_set1_epi8(16));
}

#include "matrix_x86.h"

const matrix_kernels matrix_kernels_avx2 = MATRIX_X86_KERNELS;

#endif
