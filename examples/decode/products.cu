// products.cu -- y = x W^T for weights as a GGUF file has them; `weight_type` is declared before
// this text.  The formats are those of matrix_units.h.

enum {
    type_f32 = 0, type_f16 = 1, type_q4_0 = 2, type_q4_1 = 3, type_q5_0 = 6, type_q5_1 = 7,
    type_q8_0 = 8, type_q4_k = 12, type_q5_k = 13, type_q6_k = 14, type_bf16 = 30
};

__device__ __forceinline__ uint32_t load_u16(const uint8_t* at) { return *(const uint16_t*)at; }

__device__ __forceinline__ uint32_t load_u32(const uint8_t* at)
{
    return load_u16(at) | load_u16(at + 2) << 16;
}

__device__ __forceinline__ float load_half(const uint8_t* at)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((uint16_t)load_u16(at)));
    return x;
}

// One weight of a float type.
__device__ __forceinline__ float float_at(const uint8_t* row, int64_t n)
{
    if (weight_type == type_f32) return ((const float*)row)[n];
    if (weight_type == type_f16) return load_half(row + 2 * n);
    return __uint_as_float(load_u16(row + 2 * n) << 16);
}

// Weights of a group of 32, from code `first` on.
__device__ __forceinline__ void unpack_32(const uint8_t* group, int first, float* w)
{
    const bool has_offset = weight_type == type_q4_1 || weight_type == type_q5_1;
    const bool fifth = weight_type == type_q5_0 || weight_type == type_q5_1;
    const int bias = weight_type == type_q4_0 ? 8 : weight_type == type_q5_0 ? 16 : 0;
    const float scale = load_half(group);
    const float offset = has_offset ? load_half(group + 2) : 0.0f;
    group += has_offset ? 4 : 2;
    if (weight_type == type_q8_0) {
        for (int j = 0; j < 8; ++j) w[j] = scale * (float)(int8_t)group[first + j];
        return;
    }
    const uint32_t high = fifth ? load_u32(group) >> first : 0;
    group += (fifth ? 4 : 0) + first % 16;
    for (int j = 0; j < 8; ++j) {
        const int code = (group[j] >> first / 16 * 4 & 15) | (int)(high >> j & 1) << 4;
        w[j] = __fmaf_rn(scale, (float)(code - bias), offset);
    }
}

// A 6-bit scale (kind 0) or offset (kind 1) of a unit.
__device__ __forceinline__ float scale_6_bit(const uint8_t* packed, int unit, int kind)
{
    const uint8_t low = packed[4 * kind + unit % 4];
    if (unit < 4) return (float)(low & 63);
    return (float)((packed[4 + unit] >> 4 * kind & 15) | low >> 6 << 4);
}

// Weights of a group of 256, from code `first` on.
__device__ __forceinline__ void unpack_256(const uint8_t* group, int first, float* w)
{
    const int unit = first / 32, in_unit = first % 32;
    if (weight_type == type_q6_k) {
        const int half = unit / 4, quarter = unit % 4;
        const uint8_t* codes = group + half * 64 + quarter % 2 * 32 + in_unit;
        const uint8_t* high = group + 128 + half * 32 + in_unit;
        const float scale =
            load_half(group + 208) * (float)(int8_t)group[192 + 2 * unit + in_unit / 16];
        for (int j = 0; j < 8; ++j) {
            const int low = codes[j] >> quarter / 2 * 4 & 15;
            w[j] = scale * (float)((low | (high[j] >> 2 * quarter & 3) << 4) - 32);
        }
        return;
    }
    const bool fifth = weight_type == type_q5_k;
    const float scale = load_half(group) * scale_6_bit(group + 4, unit, 0);
    const float offset = -(load_half(group + 2) * scale_6_bit(group + 4, unit, 1));
    const uint8_t* codes = group + (fifth ? 48 : 16) + unit / 2 * 32 + in_unit;
    for (int j = 0; j < 8; ++j) {
        int code = codes[j] >> unit % 2 * 4 & 15;
        if (fifth) code |= (group[16 + in_unit + j] >> unit & 1) << 4;
        w[j] = __fmaf_rn(scale, (float)code, offset);
    }
}

// Weights n to n + 7 of a row; n is a multiple of 8.
__device__ __forceinline__ void unpack(const uint8_t* row, int64_t n, float* w)
{
    switch ((int)weight_type) {
    case type_f32: case type_f16: case type_bf16:
        for (int j = 0; j < 8; ++j) w[j] = float_at(row, n + j);
        return;
    case type_q4_0: unpack_32(row + n / 32 * 18, n % 32, w); return;
    case type_q4_1: unpack_32(row + n / 32 * 20, n % 32, w); return;
    case type_q5_0: unpack_32(row + n / 32 * 22, n % 32, w); return;
    case type_q5_1: unpack_32(row + n / 32 * 24, n % 32, w); return;
    case type_q8_0: unpack_32(row + n / 32 * 34, n % 32, w); return;
    case type_q4_k: unpack_256(row + n / 256 * 144, n % 256, w); return;
    case type_q5_k: unpack_256(row + n / 256 * 176, n % 256, w); return;
    default: unpack_256(row + n / 256 * 210, n % 256, w); return;
    }
}

// A warp has a row of W, whose bytes are read once for four rows of x.
enum { few = 4 };

extern "C" __global__ void multiply_few(const __grid_constant__ device_product a)
{
    const int lane = threadIdx.x % 32, m = blockIdx.x * cta_warps + threadIdx.x / 32;
    if (m >= a.rows) return;
    const int first = blockIdx.y * few, num = min((int)few, a.num_rows - first);
    const uint8_t* row = (const uint8_t*)a.w + m * a.row_bytes;
    const float* x = a.x + first * (int64_t)a.cols;
    const int whole = a.cols / 8 * 8;
    float sum[few] = { 0.0f, 0.0f, 0.0f, 0.0f };
    for (int n = lane * 8; n < whole; n += 256) {
        float w[8];
        unpack(row, n, w);
        for (int r = 0; r < few; ++r) {
            const float* at = x + r * (int64_t)a.cols + n;
            for (int j = 0; r < num && j < 8; ++j) sum[r] = __fmaf_rn(w[j], at[j], sum[r]);
        }
    }
    for (int n = whole + lane; n < a.cols; n += 32)
        for (int r = 0; r < num; ++r)
            sum[r] = __fmaf_rn(float_at(row, n), x[r * (int64_t)a.cols + n], sum[r]);
    for (int r = 0; r < few; ++r) {
        const float y = warp_sum(sum[r]);
        if (lane == 0 && r < num) a.y[(first + r) * (int64_t)a.rows + m] = y;
    }
}

// A CTA has 64 rows of W and 32 of x, a thread 4 of each.
enum { tile_m = 64, tile_r = 32, tile_n = 32 };

__device__ __forceinline__ void load_tile(const device_product& a, int n0, float (*w)[tile_m + 1],
                                          float (*x)[tile_r + 1])
{
    for (int i = threadIdx.x; i < tile_m * tile_n / 8; i += cta_threads) {
        const int m = blockIdx.x * tile_m + i % tile_m, n = n0 + i / tile_m * 8;
        const uint8_t* row = (const uint8_t*)a.w + m * a.row_bytes;
        float eight[8] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
        if (m < a.rows && n + 8 <= a.cols) unpack(row, n, eight);
        else for (int j = 0; m < a.rows && n + j < a.cols; ++j) eight[j] = float_at(row, n + j);
        for (int j = 0; j < 8; ++j) w[n - n0 + j][i % tile_m] = eight[j];
    }
    for (int i = threadIdx.x; i < tile_r * tile_n; i += cta_threads) {
        const int r = blockIdx.y * tile_r + i / tile_n, n = n0 + i % tile_n;
        x[i % tile_n][i / tile_n] =
            r < a.num_rows && n < a.cols ? a.x[r * (int64_t)a.cols + n] : 0.0f;
    }
}

extern "C" __global__ void multiply_many(const __grid_constant__ device_product a)
{
    __shared__ float w[tile_n][tile_m + 1], x[tile_n][tile_r + 1];
    const int m0 = threadIdx.x % 16, r0 = threadIdx.x / 16;
    float sum[4][4];
    for (int i = 0; i < 16; ++i) sum[i / 4][i % 4] = 0.0f;
    for (int n0 = 0; n0 < a.cols; n0 += tile_n) {
        load_tile(a, n0, w, x);
        __syncthreads();
        for (int n = 0; n < tile_n; ++n)
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j)
                    sum[i][j] = __fmaf_rn(w[n][m0 + 16 * i], x[n][r0 + 8 * j], sum[i][j]);
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 4; ++j) {
            const int m = blockIdx.x * tile_m + m0 + 16 * i;
            const int r = blockIdx.y * tile_r + r0 + 8 * j;
            if (m < a.rows && r < a.num_rows) a.y[r * (int64_t)a.rows + m] = sum[i][j];
        }
    }
}
