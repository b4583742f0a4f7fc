// prelude.cuh -- what NVRTC lacks without the toolkit's headers: types, number formats, reductions.
//
// One thread has one float where a host's program has a vector of them: names that parts use mean
// the same on both.  Programs are compiled with --fmad=false, so that arithmetic that decides codes
// is never fused; only mul_add is.

typedef signed char        int8_t;
typedef unsigned char      uint8_t;
typedef short              int16_t;
typedef unsigned short     uint16_t;
typedef int                int32_t;
typedef unsigned           uint32_t;
typedef long long          int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;

#include "kvl_device_args.h"

#define INLINE static __device__ __forceinline__
// One CTA a multiprocessor is enough: registers are not traded for more.
#define KERNEL extern "C" __global__ void __launch_bounds__(KVL__CTA_THREADS, 1)

enum { cta_threads = KVL__CTA_THREADS, cta_warps = KVL__CTA_THREADS / 32 };

__device__ const float float_max = 3.402823466e38f;

INLINE float absolute(float x) { return fabsf(x); }
INLINE float least(float a, float b) { return a < b ? a : b; }
INLINE float most(float a, float b) { return a > b ? a : b; }
INLINE float squared(float x) { return x * x; }
INLINE float square_root(float x) { return __fsqrt_rn(x); }
INLINE float clamp(float x, float lo, float hi) { return x < lo ? lo : x > hi ? hi : x; }
INLINE int least_of(int a, int b) { return a < b ? a : b; }
INLINE int most_of(int a, int b) { return a > b ? a : b; }
INLINE uint32_t bits_of(float x) { return __float_as_uint(x); }
INLINE float float_of(uint32_t u) { return __uint_as_float(u); }

// Returns a * b + c, rounded once.
INLINE float mul_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }

// To the nearest integer, ties to even, of |x| < 2^22: x + 1.5 * 2^23 has no bits below 1.
INLINE float nearest_even(float x) { return (x + 12582912.0f) - 12582912.0f; }
INLINE float round_even(float x) { return nearest_even(x); }
INLINE float truncated(float x) { return (float)(int32_t)x; }

INLINE float round_down(float x)
{
    const float t = truncated(x);
    return t > x ? t - 1.0f : t;
}

INLINE float round_away(float x)
{
    const float t = truncated(x), rest = x - t;
    return t + (rest <= -0.5f ? -1.0f : rest >= 0.5f ? 1.0f : 0.0f);
}

INLINE float to_float(uint32_t x) { return (float)(int32_t)x; }

// NUMBER FORMATS

INLINE float f32_of_f16(uint32_t h)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((uint16_t)h));
    return x;
}

// Nearest, ties to even; beyond the range the greatest finite one, as for what is no number.
INLINE uint32_t f16_of_f32(float x)
{
    const float a = float_of(bits_of(least(absolute(x), 65504.0f)) | (bits_of(x) & 0x80000000u));
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(a));
    return h;
}

#define CONSTANT __device__ const
#include "formats.h"

// What the bits of stored metadata mean.
INLINE float meta_f16(uint32_t bits) { return f32_of_f16(bits); }
INLINE float meta_e5m3(uint32_t bits) { return f32_of_e5m3(bits); }
INLINE float meta_e4m3(uint32_t bits) { return f32_of_e4m3(bits); }
INLINE float meta_e4m3fn(uint32_t bits) { return f32_of_e4m3fn(bits); }
INLINE float meta_e8m0(uint32_t bits) { return f32_of_e8m0(bits); }
INLINE float meta_one(uint32_t bits) { return (void)bits, 1.0f; }
INLINE float meta_i8(uint32_t bits) { return (float)(int8_t)bits; }
INLINE float meta_log4(uint32_t bits) { return f32_of_log4(bits >> 4); }
INLINE float meta_low4(uint32_t bits) { return to_float(bits & 15u) - 8.0f; }

// MEMORY.  Addresses are multiples of what is read.

INLINE uint32_t read_u16(const unsigned char* at) { return *(const uint16_t*)at; }
INLINE void write_u16(unsigned char* at, uint32_t x) { *(uint16_t*)at = (uint16_t)x; }
INLINE uint32_t read_u8(const unsigned char* at) { return *at; }
INLINE uint32_t load_u32(const unsigned char* at) { return *(const uint32_t*)at; }

// 16 numbers side by side.
INLINE void read_16_u8(const unsigned char* at, uint32_t* x)
{
    const uint4 v = *(const uint4*)at;
    const uint32_t words[4] = { v.x, v.y, v.z, v.w };
    for (int i = 0; i < 16; ++i) x[i] = words[i / 4] >> i % 4 * 8 & 255u;
}

INLINE void read_16_u16(const unsigned char* at, uint32_t* x)
{
    const uint4 v = *(const uint4*)at, u = *(const uint4*)(at + 16);
    const uint32_t words[8] = { v.x, v.y, v.z, v.w, u.x, u.y, u.z, u.w };
    for (int i = 0; i < 16; ++i) x[i] = words[i / 2] >> i % 2 * 16 & 0xffffu;
}

// Likewise 8.
INLINE void read_8_u8(const unsigned char* at, uint32_t* x)
{
    const uint2 v = *(const uint2*)at;
    for (int i = 0; i < 8; ++i) x[i] = (i < 4 ? v.x : v.y) >> i % 4 * 8 & 255u;
}

INLINE void read_8_u16(const unsigned char* at, uint32_t* x)
{
    const uint4 v = *(const uint4*)at;
    const uint32_t words[4] = { v.x, v.y, v.z, v.w };
    for (int i = 0; i < 8; ++i) x[i] = words[i / 2] >> i % 2 * 16 & 0xffffu;
}

// The half of a word that lanes l and l + 8 share: bits 8 and up of its halves are lane l + 8's.
INLINE uint32_t load_narrow(const unsigned char* at, int lane)
{
    return load_u32(at + lane % 8 * 4) >> lane / 8 * 8;
}

// Value i of a row whose type is a kvl_type: f32, f16, bf16.
INLINE float load_value(uint64_t row, int32_t type, int i)
{
    if (type == 0) return ((const float*)row)[i];
    const uint32_t h = ((const uint16_t*)row)[i];
    return type == 1 ? f32_of_f16(h) : f32_of_bf16(h);
}

INLINE void store_value(uint64_t row, int32_t type, int i, float x)
{
    if (type == 0) ((float*)row)[i] = x;
    else ((uint16_t*)row)[i] = (uint16_t)(type == 1 ? f16_of_f32(x) : bf16_of_f32(x));
}

// Address of a row of one head in a view.
INLINE uint64_t row_at(const kvl__device_rows& rows, int64_t row, int head)
{
    return rows.data + (uint64_t)(row * rows.row_stride + head * rows.head_stride)
                       * (rows.type == 0 ? 4 : 2);
}

// WARPS

INLINE float warp_sum(float x)
{
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

INLINE float warp_most(float x)
{
    for (int d = 16; d > 0; d /= 2) x = most(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}
