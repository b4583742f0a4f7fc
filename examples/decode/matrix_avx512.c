// matrix_avx512.c -- the kernels for x86-64 with AVX-512 VL, BW and VNNI, on 256-bit registers.
//
// A group of 32 codes fills 256 bits. What this level adds to AVX2 is the dot product in one
// instruction, with a term to start from, and bits that become bytes through a mask.
#include "matrix_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define MATRIX_TARGET __attribute__((target("avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512vnni")))
#define MATRIX_PRIMITIVE static inline __attribute__((always_inline)) MATRIX_TARGET

// less is kept negated: the dot product starts from it.
MATRIX_PRIMITIVE __m256i offset_dot(__m256i offset, __m256i x)
{
    const __m256i zero = _mm256_setzero_si256();
    return _mm256_sub_epi32(zero, _mm256_dpbusd_epi32(zero, offset, x));
}

MATRIX_PRIMITIVE __m256i unsigned_dot(__m256i codes, __m256i x, __m256i less)
{
    return _mm256_dpbusd_epi32(less, codes, x);
}

// The instruction wants one unsigned operand: q + 128, which flips the top bit.
MATRIX_PRIMITIVE __m256i signed_offset(__m256i x)
{
    return offset_dot(_mm256_set1_epi8((char)-128), x);
}

MATRIX_PRIMITIVE __m256i signed_dot(__m256i codes, __m256i x, __m256i less)
{
    const __m256i raised = _mm256_xor_si256(codes, _mm256_set1_epi8((char)-128));
    return _mm256_dpbusd_epi32(less, raised, x);
}

MATRIX_PRIMITIVE __m256i high_bits(uint32_t bits) { return _mm256_maskz_set1_epi8(bits, 16); }

#include "matrix_x86.h"

const matrix_kernels matrix_kernels_avx512 = MATRIX_X86_KERNELS;

#endif
