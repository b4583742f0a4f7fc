// types.cu -- what NVRTC lacks without the toolkit's headers.

typedef signed char        int8_t;
typedef unsigned char      uint8_t;
typedef short              int16_t;
typedef unsigned short     uint16_t;
typedef int                int32_t;
typedef unsigned           uint32_t;
typedef long long          int64_t;
typedef unsigned long long uint64_t;

enum { cta_threads = 128, cta_warps = 4 };

__device__ __forceinline__ float warp_sum(float x)
{
    for (int stride = 16; stride > 0; stride /= 2) x += __shfl_xor_sync(0xffffffffu, x, stride);
    return x;
}
