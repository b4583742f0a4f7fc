#line 1 "templates/cuda/program.cu"
// program.cu -- one kernel of a layer configuration, with what it is made of.

#line 1 "templates/cuda/prelude.cuh"
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

#line 1 "runtime/kvl_device_args.h"
// kvl_device_args.h -- the interface between the runtime and its CUDA kernels.
//
// This file is part of every generated CUDA program as well: an edit here changes the text of all
// of them, and with it their keys on disk.  NVRTC has no <stdint.h>: there the prelude declares the
// types of fixed width.
//
// Every kernel has one argument, one of the structs below by value, and CTAs of KVL__CTA_THREADS
// threads.  Addresses of device memory are uint64_t.  What a kernel must know of a sequence is in
// its record, which kernels read and advance: a launch holds no length, so that a captured graph
// that is launched again goes on where the last launch has ended.
//
//   kernel          grid                                     argument
//   append_rows     rows, num_kv_heads, num_seqs             kvl__device_append
//   k_encode_rows   units, num_kv_heads, num_seqs            kvl__device_append
//   v_encode_rows   units, num_kv_heads, num_seqs            kvl__device_append
//   advance_rows    1                                        kvl__device_append
//   prepare_query   num_q_heads, num_queries                 kvl__device_attend
//   attend_splits   parts, num_kv_heads, num_queries         kvl__device_attend
//   merge_splits    num_q_heads, num_queries                 kvl__device_attend
//   k_restore_rows  rows, num_kv_heads                       kvl__device_restore
//   v_restore_rows  rows, num_kv_heads                       kvl__device_restore
//   merge_results   rows                                     kvl__device_merge

#ifndef KVL_DEVICE_ARGS_H
#define KVL_DEVICE_ARGS_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

enum {
    KVL__DEVICE_ABI = 3,
    KVL__CTA_THREADS = 128,
    KVL__BATCH = 64                // sequences or query rows of one launch
};

// Bits of kvl__device_append.faults.
enum { KVL__FAULT_NOT_FINITE = 1, KVL__FAULT_SATURATED = 2 };

// A sequence in one layer, in device memory.  Its window is
//     [num_kv_heads] x { sink keys, sink values, ring of keys, ring of values },
// 16-bit rows of one head contiguous.  Row r after the sink is in the ring at r mod ring_rows.
typedef struct kvl__device_seq {
    int64_t  rows, quantized, dropped;     // as in kvl__extent
    uint64_t window;
    uint64_t table;                        // [.] addresses of pages
    int64_t  first_page;                   // the page that table[0] is
} kvl__device_seq;

// A view of rows [., num_heads, head_dim]; strides in elements of `type`, a kvl_type.
typedef struct kvl__device_rows {
    uint64_t data;
    int64_t  row_stride, head_stride;
    int32_t  type, pad;
} kvl__device_rows;

// Where the rows of a layer are.
typedef struct kvl__device_windows {
    int32_t  num_kv_heads, sink_len, recent_len, chunk_len, ring_rows, pad;
    uint64_t turns;                        // const double* [2 + dim / 2] of keys before RoPE, or 0
} kvl__device_windows;

// num_rows rows of the caller, from first_row on, that join a sequence.
typedef struct kvl__device_item {
    uint64_t seq;                          // kvl__device_seq*
    int32_t  first_row, num_rows;
} kvl__device_item;

typedef struct kvl__device_append {
    kvl__device_windows windows;
    kvl__device_rows    side[2];           // keys, values
    uint64_t            faults;            // uint32_t*
    uint64_t            tables[2];         // const float*, records [num_kv_heads, table_floats]
    int32_t             table_floats[2];
    int32_t             num_seqs, pad;
    kvl__device_item    items[KVL__BATCH];
} kvl__device_append;

// One query row.
typedef struct kvl__device_query {
    uint64_t seq;
    int64_t  position;                     // < 0: rows of the sequence + position
    int64_t  begin, end;                   // of what it sees by its position, rows of [begin, end)
    int32_t  row, pad;                     // in the caller's q, o and lse
} kvl__device_query;

// Splits: the pages that a query sees are divided into at most max_splits parts of whole pages, of
// at least split_rows rows.  A launch has room for `parts` parts, the last of which is the windows.
typedef struct kvl__device_attend {
    kvl__device_windows windows;
    kvl__device_rows    q, o;
    uint64_t            lse;               // float* [rows, num_q_heads], or 0
    uint64_t            prepared;          // float* [num_queries, num_q_heads, query_floats]
    uint64_t            bias;              // float* [num_queries, num_q_heads], of pages' scores
    uint64_t            o_part;            // float* [num_queries, num_q_heads, parts, dim]
    uint64_t            lse_part;          // float* [num_queries, num_q_heads, parts]
    uint64_t            tables[2];
    int32_t             table_floats[2];
    uint64_t            sink_logits;       // const float* [num_q_heads], or 0
    uint64_t            slopes;            // const float* [num_q_heads], ALiBi's, or 0
    float               softmax_scale, soft_cap;
    int32_t             window_len, split_rows, max_splits, parts;
    int32_t             num_queries;
    int32_t             query_floats;      // copies of a query [., head_dim_k]: plain, in bases
    int32_t             value_dim, pad;    // channels of an output, the first ones of a value
    kvl__device_query   queries[KVL__BATCH];
} kvl__device_attend;

// Rows [first, first + num) of a sequence, counted from its beginning: num, one a CTA of grid x.
// Of quantized rows also codes, scales and offsets, as in kvl__decode_args.
typedef struct kvl__device_restore {
    kvl__device_windows windows;
    kvl__device_rows    rows;              // data 0: not asked
    uint64_t            seq;
    uint64_t            tables[2];
    int32_t             table_floats[2];
    int32_t             only_head;         // < 0: all of grid y
    int32_t             row_dim;           // channels of `rows`, the first ones
    int64_t             first;
    uint64_t            codes, scales, offsets;     // uint16_t*, float*, float*; 0: not asked
    uint64_t            choices;           // uint32_t* [units of the rows], or 0
} kvl__device_restore;

// As kvl_merge_desc: float arrays of rows [num_rows, head_dim] and [num_rows].
typedef struct kvl__device_merge {
    uint64_t o_a, lse_a, o_b, lse_b, o, lse;
    uint64_t sink_logits;                  // [num_heads], or 0
    int32_t  head_dim, num_heads;
} kvl__device_merge;

#endif

#line 18 "templates/cuda/prelude.cuh"

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
#line 1 "templates/formats.h"
// formats.h -- number formats that every target computes alike: integer arithmetic, one value.

INLINE float f32_of_bf16(uint32_t h) { return float_of(h << 16); }

INLINE uint32_t bf16_of_f32(float x)
{
    const uint32_t u = bits_of(x), h = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    return (h & 0x7fffu) >= 0x7f80u ? (h & 0x8000u) | 0x7f7fu : h;
}

// e5m3: (8 + m) 2^(e - 18), or m 2^-17 at e = 0.
INLINE float f32_of_e5m3(uint32_t c)
{
    return c < 8u ? (float)(int32_t)c * 7.62939453125e-6f : float_of((c << 20) + (112u << 23));
}

// x >= 0; nearest, ties to even; the greatest is 255.
INLINE uint32_t e5m3_of_f32(float x)
{
    if (x < 6.103515625e-5f) return (uint32_t)(int32_t)nearest_even(x * 131072.0f);
    const uint32_t u = bits_of(x) - (112u << 23), c = (u + 0x7ffffu + (u >> 20 & 1u)) >> 20;
    return c > 255u ? 255u : c;
}

// e4m3: (8 + m) 2^(e - 11), or m 2^-10 at e = 0; the sign is left out.
INLINE float f32_of_e4m3(uint32_t c)
{
    c &= 127u;
    return c < 8u ? (float)(int32_t)c * 9.765625e-4f : float_of((c << 20) + (119u << 23));
}

// x >= 0; nearest, ties to even; the greatest is 127.
INLINE uint32_t e4m3_of_f32(float x)
{
    if (x < 7.8125e-3f) return (uint32_t)(int32_t)nearest_even(x * 1024.0f);
    const uint32_t u = bits_of(x) - (119u << 23), c = (u + 0x7ffffu + (u >> 20 & 1u)) >> 20;
    return c > 127u ? 127u : c;
}

// The same with bias 7, up to 448, as OCP has it: (8 + m) 2^(e - 10), or m 2^-9 at e = 0.
INLINE float f32_of_e4m3fn(uint32_t c)
{
    c &= 127u;
    return c < 8u ? (float)(int32_t)c * 1.953125e-3f : float_of((c << 20) + (120u << 23));
}

INLINE uint32_t e4m3fn_of_f32(float x)
{
    if (x < 1.5625e-2f) return (uint32_t)(int32_t)nearest_even(x * 512.0f);
    const uint32_t u = bits_of(x) - (120u << 23), c = (u + 0x7ffffu + (u >> 20 & 1u)) >> 20;
    return c > 126u ? 126u : c;
}

// e8m0: 2^(c - 127).
INLINE float f32_of_e8m0(uint32_t c) { return float_of(c > 0u ? c << 23 : 0x400000u); }

// x >= 0; the nearer power of two, the greater one in the middle.
INLINE uint32_t e8m0_of_f32(float x)
{
    const uint32_t c = (bits_of(x) + 0x400000u) >> 23;
    return c > 254u ? 254u : c;
}

// log4: 2^((c - 8) / 4) of c = 0 .. 15, whose nearest exponent these bounds part.
CONSTANT float log4_bounds[15] = {
    0.272626936f, 0.324209899f, 0.385552704f, 0.458502024f, 0.545253873f,
    0.648419797f, 0.771105409f, 0.917004049f, 1.09050775f, 1.29683959f,
    1.54221082f, 1.8340081f, 2.18101549f, 2.59367919f, 3.08442163f
};

INLINE float f32_of_log4(uint32_t c)
{
    const float root = c & 2u ? (c & 1u ? 1.68179286f : 1.41421354f)
                              : (c & 1u ? 1.18920708f : 1.0f);
    return root * float_of((125u + (c >> 2)) << 23);
}

INLINE uint32_t log4_of_f32(float x)
{
    uint32_t c = 0;
    for (int i = 0; i < 15; ++i) c += x >= log4_bounds[i];
    return c;
}

// The nearest integer to y, |y| <= 127; with a flag of 0 or 1 the nearest whose lowest bit it is.
INLINE float nearest_flagged(float y, int flag)
{
    if (flag < 0) return nearest_even(y);
    const float bit = (float)flag;
    return 2.0f * clamp(nearest_even((y - bit) * 0.5f), -63.0f - bit, 63.0f) + bit;
}

// h, or with a flag of 0 or 1, where h has the other lowest bit, the f16 below it; above the least.
INLINE uint32_t flagged_f16(uint32_t h, int flag)
{
    if (flag < 0 || (h & 1u) == (uint32_t)flag) return h;
    return h == 0u ? 0x8001u : h > 0x8000u && h < 0xfbffu ? h + 1u : h - 1u;
}

#line 80 "templates/cuda/prelude.cuh"

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

#line 4 "templates/cuda/program.cu"
#line 1 "templates/cuda/config.cuh"
// config.cuh -- the shape that this program is for, and where the rows of a sequence are.

enum { head_dim_k = 64, head_dim_v = 64 };
enum { num_heads = 3, page_size = 64 };    // of a KV head

// One KV head's part of a page: its keys, then its values.
#line 8 "templates/cuda/config.cuh"
enum { keys_bytes = 1280 };
enum { values_bytes = 1280 };

INLINE float f32_of_row(uint32_t h) { return f32_of_f16(h); }
INLINE uint32_t row_of_f32(float x) { return f16_of_f32(x); }

// The 16-bit rows of one KV head: keys [0], values [1].
typedef struct head_windows {
    uint16_t* sink[2];
    uint16_t* ring[2];
} head_windows;

INLINE head_windows windows_of(const kvl__device_seq* s, const kvl__device_windows& w, int head)
{
    const int64_t rows = w.sink_len + w.ring_rows;
    head_windows h;
#line 25 "templates/cuda/config.cuh"
    h.sink[0] = (uint16_t*)s->window + head * rows * (head_dim_k + head_dim_v);
    h.sink[1] = h.sink[0] + w.sink_len * (int64_t)head_dim_k;
    h.ring[0] = h.sink[1] + w.sink_len * (int64_t)head_dim_v;
    h.ring[1] = h.ring[0] + w.ring_rows * (int64_t)head_dim_k;
#line 33 "templates/cuda/config.cuh"
    return h;
}

// The record of calibrated numbers of a head: keys' [0], values' [1].
INLINE const float* record_of(const uint64_t* tables, const int32_t* floats, int side, int head)
{
    return (const float*)tables[side] + head * (int64_t)floats[side];
}

// Rows in pages when a sequence has `rows` rows.
INLINE int quantized_rows(const kvl__device_seq* s, const kvl__device_windows& w, int rows)
{
    const int aged = rows - w.sink_len - w.recent_len;
    return most_of((int)s->quantized, aged > 0 ? aged / w.chunk_len * w.chunk_len : 0);
}

// Keys [0] or values [1] of one head in a page that is in the table.
INLINE unsigned char* page_at(const kvl__device_seq* s, int page, int head, int side)
{
    enum { values_at = keys_bytes };
    return (unsigned char*)((const uint64_t*)s->table)[page - (int)s->first_page]
           + head * (int64_t)(keys_bytes + values_bytes) + (side ? values_at : 0);
}

#line 15 "templates/cuda/program.cu"
#line 1 "templates/cuda/codec.cuh"
// codec.cuh -- keys at 2 bits:  | codes: 4096 x u2 | scales: 128 x 1 bytes | zeros: 128 x 1 bytes |
//
// The order of codes and metadata in a page is the host's, gen/layout.lua.  A cell has 16 lanes and
// 16 words: channels are lanes, tokens are words.
// A thread works on one lane of a cell: its 16 words.

#line 8 "templates/cuda/codec.cuh"
// Where zeros are, and what metadata is made of.
#line 13 "templates/cuda/codec.cuh"
enum { k_dim = 64, k_lane_extent = 64 };
enum { k_word_extent = 64, k_cell_bytes = 64 };
enum { k_scales_at = 1024, k_zeros_at = 1152 };
enum { k_page_bytes = 1280, k_group_size = 32 };

INLINE int64_t k_cell_at(int lane16, int word16)
{
#line 21 "templates/cuda/codec.cuh"
    return (lane16 * (k_dim / 16) + word16) * (int64_t)k_cell_bytes;
#line 25 "templates/cuda/codec.cuh"
}

// Codes of the words of a lane, lane % 16 of a cell.
INLINE void k_get_codes(const unsigned char* cell, int lane, uint32_t* q)
{
#line 31 "templates/cuda/codec.cuh"
    const uint32_t word_0_0 = load_u32(cell + 0 + lane * 4);
#line 37 "templates/cuda/codec.cuh"
    q[0] = (word_0_0 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[1] = (word_0_0 >> 16 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[2] = (word_0_0 >> 2 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[3] = (word_0_0 >> 18 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[4] = (word_0_0 >> 4 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[5] = (word_0_0 >> 20 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[6] = (word_0_0 >> 6 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[7] = (word_0_0 >> 22 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[8] = (word_0_0 >> 8 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[9] = (word_0_0 >> 24 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[10] = (word_0_0 >> 10 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[11] = (word_0_0 >> 26 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[12] = (word_0_0 >> 12 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[13] = (word_0_0 >> 28 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[14] = (word_0_0 >> 14 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[15] = word_0_0 >> 30;
#line 40 "templates/cuda/codec.cuh"
}

// The inverse.  All lanes of a warp take part, since lanes l and l + 8 may share words; `write`
// says whether this one has a lane.
INLINE void k_put_codes(unsigned char* cell, int lane, const uint32_t* q, bool write)
{
#line 47 "templates/cuda/codec.cuh"
    {
        const uint32_t word = ((uint32_t)q[0] & 3u) | ((uint32_t)q[1] & 3u) << 16 | ((uint32_t)q[2] & 3u) << 2 | ((uint32_t)q[3] & 3u) << 18 | ((uint32_t)q[4] & 3u) << 4 | ((uint32_t)q[5] & 3u) << 20 | ((uint32_t)q[6] & 3u) << 6 | ((uint32_t)q[7] & 3u) << 22 | ((uint32_t)q[8] & 3u) << 8 | ((uint32_t)q[9] & 3u) << 24 | ((uint32_t)q[10] & 3u) << 10 | ((uint32_t)q[11] & 3u) << 26 | ((uint32_t)q[12] & 3u) << 12 | ((uint32_t)q[13] & 3u) << 28 | ((uint32_t)q[14] & 3u) << 14 | ((uint32_t)q[15] & 3u) << 30;
#line 53 "templates/cuda/codec.cuh"
        if (write) *(uint32_t*)(cell + 0 + lane * 4) = word;
#line 55 "templates/cuda/codec.cuh"
    }
#line 61 "templates/cuda/codec.cuh"
}

#line 66 "templates/cuda/codec.cuh"
// METADATA

// Index of the scale of a word and a lane.
INLINE int k_group(int word, int lane)
{
#line 72 "templates/cuda/codec.cuh"
    return lane / k_group_size * k_word_extent + word;
#line 76 "templates/cuda/codec.cuh"
}

INLINE float k_scale_of(uint32_t bits)
{
#line 83 "templates/cuda/codec.cuh"
    return meta_e5m3(bits);
#line 85 "templates/cuda/codec.cuh"
}

INLINE float k_offset_of(float scale, uint32_t zero_bits)
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
#line 91 "templates/cuda/codec.cuh"
    const float zero = meta_i8(zero_bits);
#line 93 "templates/cuda/codec.cuh"
    return scale * (zero * ((float)(1 << bits) / 32.0f) - 0.5f * (float)code_max);
}

INLINE float k_read_scale(const unsigned char* page, int group)
{
#line 103 "templates/cuda/codec.cuh"
    const unsigned char* at = page + k_scales_at + group * 1;
    return k_scale_of(read_u8(at));
#line 106 "templates/cuda/codec.cuh"
}

INLINE float k_read_offset(const unsigned char* page, int group, float scale)
{
    uint32_t zero = 0;
#line 112 "templates/cuda/codec.cuh"
    zero = read_u8(page + k_zeros_at + group * 1);
#line 114 "templates/cuda/codec.cuh"
    return k_offset_of(scale, zero);
}

#line 203 "templates/cuda/codec.cuh"

#line 230 "templates/cuda/codec.cuh"
// Values, in the codec's basis, of the 16 words of a lane of the page from `word` on.
INLINE void k_read_words(const unsigned char* page, int lane, int word, float* x)
{
    uint32_t q[16];
#line 237 "templates/cuda/codec.cuh"
    k_get_codes(page + k_cell_at(lane / 16, word / 16), lane % 16, q);
#line 269 "templates/cuda/codec.cuh"
    // Words side by side have scales side by side.
    const int group = k_group(word, lane);
    uint32_t scales[16], zeros[16] = { 0 };
#line 273 "templates/cuda/codec.cuh"
    read_16_u8(page + k_scales_at + group * 1,
                                        scales);
#line 280 "templates/cuda/codec.cuh"
    read_16_u8(page + k_zeros_at + group * 1, zeros);
#line 282 "templates/cuda/codec.cuh"
    for (int i = 0; i < 16; ++i) {
        const float scale = k_scale_of(scales[i]);
        x[i] = scale * to_float(q[i]) + k_offset_of(scale, zeros[i]);
    }
#line 298 "templates/cuda/codec.cuh"
}

#line 301 "templates/cuda/codec.cuh"
// What scales are multiplied with, of one value.
INLINE uint32_t k_get_code(const unsigned char* page, int lane, int word)
{
    const unsigned char* cell = page + k_cell_at(lane / 16, word / 16);
    const int of = lane % 16, i = word % 16;
#line 309 "templates/cuda/codec.cuh"
    uint32_t code = 0;
#line 311 "templates/cuda/codec.cuh"
    {
        enum { each = 8, mask = 3 };
        const int bit = i % 2 * 16 + i / 2 % each * 2;
#line 317 "templates/cuda/codec.cuh"
        const uint32_t bits = load_u32(cell + 0 + i / 2 / each * 64 + of * 4);
#line 319 "templates/cuda/codec.cuh"
        code |= (bits >> bit & mask) << 0;
    }
#line 322 "templates/cuda/codec.cuh"
    return code;
#line 324 "templates/cuda/codec.cuh"
}

// One value.
INLINE float k_read_value(const unsigned char* page, int row, int channel, uint32_t* code)
{
#line 330 "templates/cuda/codec.cuh"
    const int lane = row, word = channel;
#line 334 "templates/cuda/codec.cuh"
    *code = k_get_code(page, lane, word);
#line 338 "templates/cuda/codec.cuh"
    const int group = k_group(word, lane);
    const float scale = k_read_scale(page, group);
    return scale * to_float(*code) + k_read_offset(page, group, scale);
#line 342 "templates/cuda/codec.cuh"
}


#line 15 "templates/cuda/program.cu"
#line 1 "templates/cuda/codec.cuh"
// codec.cuh -- values at 2 bits:  | codes: 4096 x u2 | scales: 128 x 1 bytes | zeros: 128 x 1 bytes |
//
// The order of codes and metadata in a page is the host's, gen/layout.lua.  A cell has 16 lanes and
// 16 words: tokens are words, channels are lanes.
// A thread works on one lane of a cell: its 16 words.

#line 8 "templates/cuda/codec.cuh"
// Where zeros are, and what metadata is made of.
#line 13 "templates/cuda/codec.cuh"
enum { v_dim = 64, v_lane_extent = 64 };
enum { v_word_extent = 64, v_cell_bytes = 64 };
enum { v_scales_at = 1024, v_zeros_at = 1152 };
enum { v_page_bytes = 1280, v_group_size = 32 };

INLINE int64_t v_cell_at(int lane16, int word16)
{
#line 23 "templates/cuda/codec.cuh"
    return (word16 * (v_dim / 16) + lane16) * (int64_t)v_cell_bytes;
#line 25 "templates/cuda/codec.cuh"
}

// Codes of the words of a lane, lane % 16 of a cell.
INLINE void v_get_codes(const unsigned char* cell, int lane, uint32_t* q)
{
#line 31 "templates/cuda/codec.cuh"
    const uint32_t word_0_0 = load_u32(cell + 0 + lane * 4);
#line 37 "templates/cuda/codec.cuh"
    q[0] = (word_0_0 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[1] = (word_0_0 >> 16 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[2] = (word_0_0 >> 2 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[3] = (word_0_0 >> 18 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[4] = (word_0_0 >> 4 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[5] = (word_0_0 >> 20 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[6] = (word_0_0 >> 6 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[7] = (word_0_0 >> 22 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[8] = (word_0_0 >> 8 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[9] = (word_0_0 >> 24 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[10] = (word_0_0 >> 10 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[11] = (word_0_0 >> 26 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[12] = (word_0_0 >> 12 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[13] = (word_0_0 >> 28 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[14] = (word_0_0 >> 14 & 3u);
#line 37 "templates/cuda/codec.cuh"
    q[15] = word_0_0 >> 30;
#line 40 "templates/cuda/codec.cuh"
}

// The inverse.  All lanes of a warp take part, since lanes l and l + 8 may share words; `write`
// says whether this one has a lane.
INLINE void v_put_codes(unsigned char* cell, int lane, const uint32_t* q, bool write)
{
#line 47 "templates/cuda/codec.cuh"
    {
        const uint32_t word = ((uint32_t)q[0] & 3u) | ((uint32_t)q[1] & 3u) << 16 | ((uint32_t)q[2] & 3u) << 2 | ((uint32_t)q[3] & 3u) << 18 | ((uint32_t)q[4] & 3u) << 4 | ((uint32_t)q[5] & 3u) << 20 | ((uint32_t)q[6] & 3u) << 6 | ((uint32_t)q[7] & 3u) << 22 | ((uint32_t)q[8] & 3u) << 8 | ((uint32_t)q[9] & 3u) << 24 | ((uint32_t)q[10] & 3u) << 10 | ((uint32_t)q[11] & 3u) << 26 | ((uint32_t)q[12] & 3u) << 12 | ((uint32_t)q[13] & 3u) << 28 | ((uint32_t)q[14] & 3u) << 14 | ((uint32_t)q[15] & 3u) << 30;
#line 53 "templates/cuda/codec.cuh"
        if (write) *(uint32_t*)(cell + 0 + lane * 4) = word;
#line 55 "templates/cuda/codec.cuh"
    }
#line 61 "templates/cuda/codec.cuh"
}

#line 66 "templates/cuda/codec.cuh"
// METADATA

// Index of the scale of a word and a lane.
INLINE int v_group(int word, int lane)
{
#line 72 "templates/cuda/codec.cuh"
    return lane / v_group_size * v_word_extent + word;
#line 76 "templates/cuda/codec.cuh"
}

INLINE float v_scale_of(uint32_t bits)
{
#line 83 "templates/cuda/codec.cuh"
    return meta_e5m3(bits);
#line 85 "templates/cuda/codec.cuh"
}

INLINE float v_offset_of(float scale, uint32_t zero_bits)
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
#line 91 "templates/cuda/codec.cuh"
    const float zero = meta_i8(zero_bits);
#line 93 "templates/cuda/codec.cuh"
    return scale * (zero * ((float)(1 << bits) / 32.0f) - 0.5f * (float)code_max);
}

INLINE float v_read_scale(const unsigned char* page, int group)
{
#line 103 "templates/cuda/codec.cuh"
    const unsigned char* at = page + v_scales_at + group * 1;
    return v_scale_of(read_u8(at));
#line 106 "templates/cuda/codec.cuh"
}

INLINE float v_read_offset(const unsigned char* page, int group, float scale)
{
    uint32_t zero = 0;
#line 112 "templates/cuda/codec.cuh"
    zero = read_u8(page + v_zeros_at + group * 1);
#line 114 "templates/cuda/codec.cuh"
    return v_offset_of(scale, zero);
}

#line 203 "templates/cuda/codec.cuh"

#line 230 "templates/cuda/codec.cuh"
// Values, in the codec's basis, of the 16 words of a lane of the page from `word` on.
INLINE void v_read_words(const unsigned char* page, int lane, int word, float* x)
{
    uint32_t q[16];
#line 237 "templates/cuda/codec.cuh"
    v_get_codes(page + v_cell_at(lane / 16, word / 16), lane % 16, q);
#line 269 "templates/cuda/codec.cuh"
    // Words side by side have scales side by side.
    const int group = v_group(word, lane);
    uint32_t scales[16], zeros[16] = { 0 };
#line 273 "templates/cuda/codec.cuh"
    read_16_u8(page + v_scales_at + group * 1,
                                        scales);
#line 280 "templates/cuda/codec.cuh"
    read_16_u8(page + v_zeros_at + group * 1, zeros);
#line 282 "templates/cuda/codec.cuh"
    for (int i = 0; i < 16; ++i) {
        const float scale = v_scale_of(scales[i]);
        x[i] = scale * to_float(q[i]) + v_offset_of(scale, zeros[i]);
    }
#line 298 "templates/cuda/codec.cuh"
}

#line 301 "templates/cuda/codec.cuh"
// What scales are multiplied with, of one value.
INLINE uint32_t v_get_code(const unsigned char* page, int lane, int word)
{
    const unsigned char* cell = page + v_cell_at(lane / 16, word / 16);
    const int of = lane % 16, i = word % 16;
#line 309 "templates/cuda/codec.cuh"
    uint32_t code = 0;
#line 311 "templates/cuda/codec.cuh"
    {
        enum { each = 8, mask = 3 };
        const int bit = i % 2 * 16 + i / 2 % each * 2;
#line 317 "templates/cuda/codec.cuh"
        const uint32_t bits = load_u32(cell + 0 + i / 2 / each * 64 + of * 4);
#line 319 "templates/cuda/codec.cuh"
        code |= (bits >> bit & mask) << 0;
    }
#line 322 "templates/cuda/codec.cuh"
    return code;
#line 324 "templates/cuda/codec.cuh"
}

// One value.
INLINE float v_read_value(const unsigned char* page, int row, int channel, uint32_t* code)
{
#line 332 "templates/cuda/codec.cuh"
    const int lane = channel, word = row;
#line 334 "templates/cuda/codec.cuh"
    *code = v_get_code(page, lane, word);
#line 338 "templates/cuda/codec.cuh"
    const int group = v_group(word, lane);
    const float scale = v_read_scale(page, group);
    return scale * to_float(*code) + v_read_offset(page, group, scale);
#line 342 "templates/cuda/codec.cuh"
}


#line 36 "templates/cuda/program.cu"
#line 1 "templates/cuda/attend_splits.cu"
// attend_splits.cu -- attention of a query row over one part of the rows that it sees.
//
//   grid  parts, num_kv_heads, num_queries: pages of a split; the last part is the windows
//   a.o_part    [num_queries, num_q_heads, parts, head_dim_v]  f32, normalised; of pages in the
//               basis of the values' codec
//   a.lse_part  [num_queries, num_q_heads, parts]  natural log; nothing visible: -inf and o = 0

#line 1 "templates/cuda/visible.cuh"
// visible.cuh -- which rows a query sees, and in which parts they are read.

// Ranges [begin, end) of rows: of the sink; in pages and in the ring, counted after the sink.
typedef struct visible {
    int sink_begin, sink_end, page_begin, page_end, tail_begin, tail_end;
    int first_page, pages_per_split, num_splits;
    int64_t position;              // of the query
} visible;

// The rows before query row `query`, itself included, of these the newest window_len, and of these
// the ones that the caller asks for.
INLINE visible see(const kvl__device_attend& a, int query)
{
    const kvl__device_seq* s = (const kvl__device_seq*)a.queries[query].seq;
    const int64_t asked = a.queries[query].position;
    const int64_t position = asked < 0 ? s->rows + asked : asked;
    const int rows = (int)s->rows, quantized = (int)s->quantized;
    const int64_t after = position + 1 < a.queries[query].end ? position + 1 : a.queries[query].end;
    const int end = after < rows ? (int)after : rows;
    const int64_t newest = a.window_len > 0 ? position + 1 - a.window_len : 0;
    const int64_t oldest = newest > a.queries[query].begin ? newest : a.queries[query].begin;
    const int begin = oldest < end ? (int)oldest : end;
    const int sink = least_of(rows, a.windows.sink_len);
    visible v = { 0, 0, 0, 0, 0, 0, 0, 1, 0, position };
    if (begin >= end) return v;
    v.sink_begin = least_of(begin, sink);
    v.sink_end = least_of(end, sink);
    const int last = most_of(0, end - sink);
    const int first = least_of(last, most_of(begin - sink, (int)s->dropped));
    v.page_begin = least_of(first, quantized);
    v.page_end = least_of(last, quantized);
    v.tail_begin = most_of(first, quantized);
    v.tail_end = most_of(last, quantized);
    if (v.page_begin >= v.page_end) return v;
    v.first_page = v.page_begin / page_size;
    const int pages = (v.page_end - 1) / page_size - v.first_page + 1;
    const int fewest = (a.split_rows + page_size - 1) / page_size;
    v.pages_per_split = most_of(fewest, (pages + a.max_splits - 1) / a.max_splits);
    v.num_splits = (pages + v.pages_per_split - 1) / v.pages_per_split;
    return v;
}

#line 9 "templates/cuda/attend_splits.cu"
#line 1 "templates/cuda/softmax.cuh"
// softmax.cuh -- online softmax of a strip of scores, one warp a head.
//
// The empty set is max = -inf, sum = 0, o = 0.  Every value is shared by the CTA.

enum { strip_rows = cta_threads };

typedef struct softmax {
    alignas(16) float scores[num_heads][strip_rows];     // of a strip, products alone; then weights
    int   distance[strip_rows];                // position of a key, counted from the query's
    float slopes[num_heads];                   // ALiBi's, times distance; 0: none
    float max[num_heads], sum[num_heads];
    float shrink[num_heads];                   // what the output so far is multiplied with
} softmax;

INLINE float hidden_score() { return -__int_as_float(0x7f800000); }

INLINE void softmax_start(softmax* s)
{
    for (int head = threadIdx.x; head < num_heads; head += cta_threads) {
        s->max[head] = hidden_score();
        s->sum[head] = 0.0f;
    }
}

// Scores [num_heads, rows], -inf where not visible, are capped, cap * tanh(score / cap), and become
// weights.
INLINE void softmax_add(softmax* s, int rows, float cap)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
#pragma unroll 1
    for (int head = warp; head < num_heads; head += cta_warps) {
        float top = s->max[head], sum = 0.0f;
#pragma unroll 1
        for (int i = lane; i < rows; i += 32) {
            float score = s->scores[head][i];
            if (score == hidden_score()) continue;
            if (cap > 0.0f) score = cap * tanhf(__fdividef(score, cap));
            score = mul_add(s->slopes[head], (float)s->distance[i], score);
            s->scores[head][i] = score;
            top = most(top, score);
        }
        top = warp_most(top);
        const bool any = top > hidden_score();
#pragma unroll 1
        for (int i = lane; i < rows; i += 32) {
            const float weight = any ? expf(s->scores[head][i] - top) : 0.0f;
            s->scores[head][i] = weight;
            sum += weight;
        }
        sum = warp_sum(sum);
        const float shrink = any ? expf(s->max[head] - top) : 1.0f;
        __syncwarp();
        if (lane == 0) {
            s->shrink[head] = shrink;
            s->sum[head] = s->sum[head] * shrink + sum;
            s->max[head] = top;
        }
    }
    __syncthreads();
}

#line 10 "templates/cuda/attend_splits.cu"
#line 1 "templates/cuda/windows.cuh"
// windows.cuh -- attention over the 16-bit rows of a sequence, and what every part needs.
//
// A strip of rows at a time, for the num_heads query heads of a KV head: two threads score a row,
// then each adds up a channel.

#line 7 "templates/cuda/windows.cuh"
enum { each = 1 };             // channels of a thread
enum { slices = 2 };     // threads of a channel: tiles in turn

#line 11 "templates/cuda/windows.cuh"
// Floats of a query: one copy, or as many as keys may need.
enum { q_floats = 1 * head_dim_k };

typedef struct workspace {
#line 16 "templates/cuda/windows.cuh"
    alignas(16) float q[num_heads][q_floats];
#line 18 "templates/cuda/windows.cuh"
    float bias[4];       // of pages; read by fours
    softmax state;
} workspace;

// Outputs of this thread's channels.
typedef struct outputs {
    float of[each][num_heads];
} outputs;

INLINE int channel_of(int i)
{
    return slices > 1 ? threadIdx.x % head_dim_v : i * cta_threads + threadIdx.x;
}

INLINE int slice_of() { return slices > 1 ? threadIdx.x / head_dim_v : 0; }

// The queries [num_heads, q_floats] that a part is scored with: where keys are all in one basis, a
// copy of them; else all copies.
INLINE const float* load_queries(const kvl__device_attend& a, int query, int head, int copy,
                                 workspace* w)
{
    const int64_t row = (query * (int64_t)gridDim.y + head) * num_heads;
    const float* from = (const float*)a.prepared + row * a.query_floats;
#line 42 "templates/cuda/windows.cuh"
    from += copy * head_dim_k;
#line 45 "templates/cuda/windows.cuh"
    float* q = w->q[0];
#pragma unroll 1
    for (int i = threadIdx.x; i < num_heads * q_floats; i += cta_threads)
        q[i] = from[i / q_floats * (int64_t)a.query_floats + i % q_floats];
#line 52 "templates/cuda/windows.cuh"
    for (int i = threadIdx.x; i < num_heads; i += cta_threads)
        w->state.slopes[i] = a.slopes ? ((const float*)a.slopes)[head * num_heads + i] : 0.0f;
#line 58 "templates/cuda/windows.cuh"
    softmax_start(&w->state);
    __syncthreads();
    return q;
}

INLINE void start_outputs(outputs* o)
{
    for (int i = 0; i < each; ++i)
        for (int head = 0; head < num_heads; ++head) o->of[i][head] = 0.0f;
}

INLINE void shrink_outputs(const softmax& state, outputs* o)
{
    for (int i = 0; i < each; ++i)
        for (int head = 0; head < num_heads; ++head) o->of[i][head] *= state.shrink[head];
}

// sum + a . x of n numbers, a at a multiple of four: four are read at a time.
template <int n>
INLINE float dot(const float* a, const float* x, float sum)
{
#pragma unroll
    for (int i = 0; i < n; i += 4) {
        const float4 four = *(const float4*)(a + i);
        sum = mul_add(four.x, x[i], sum);
        sum = mul_add(four.y, x[i + 1], sum);
        sum = mul_add(four.z, x[i + 2], sum);
        sum = mul_add(four.w, x[i + 3], sum);
    }
    return sum;
}

// WINDOWS

// Row `at` of the visible rows of the sink, then of the ring.
INLINE const uint16_t* window_row(const kvl__device_attend& a, const head_windows& h,
                                  const visible& v, int side, int at)
{
    const int in_sink = v.sink_end - v.sink_begin;
#line 98 "templates/cuda/windows.cuh"
    const int64_t dim = side ? head_dim_v : head_dim_k;
    if (at < in_sink) return h.sink[side] + (v.sink_begin + at) * dim;
    return h.ring[side] + (v.tail_begin + at - in_sink) % a.windows.ring_rows * dim;
}

// Two threads a row: neighbours read 32 bytes together.
INLINE void score_row(const uint16_t* row, bool is_visible, int distance, const float* q,
                      workspace* w)
{
    float sums[num_heads];
    for (int h = 0; h < num_heads; ++h) sums[h] = 0.0f;
#pragma unroll 1
    for (int at = threadIdx.x % 2 * 8; is_visible && at < head_dim_k; at += 16) {
        const uint4 part = *(const uint4*)(row + at);
        const uint32_t pairs[4] = { part.x, part.y, part.z, part.w };
        float x[8];
        for (int i = 0; i < 8; ++i) x[i] = f32_of_row(pairs[i / 2] >> i % 2 * 16 & 0xffffu);
        for (int h = 0; h < num_heads; ++h) sums[h] = dot<8>(q + h * q_floats + at, x, sums[h]);
    }
    if (threadIdx.x % 2 == 0) w->state.distance[threadIdx.x / 2] = distance;
    for (int h = 0; h < num_heads; ++h) {
        const float sum = sums[h] + __shfl_xor_sync(0xffffffffu, sums[h], 1);
        if (threadIdx.x % 2 == 0)
            w->state.scores[h][threadIdx.x / 2] = is_visible ? sum : hidden_score();
    }
}

// Its position.
INLINE int window_position(const kvl__device_attend& a, const visible& v, int at)
{
    const int in_sink = v.sink_end - v.sink_begin;
    return at < in_sink ? v.sink_begin + at : a.windows.sink_len + v.tail_begin + at - in_sink;
}

INLINE void attend_windows(const kvl__device_attend& a, const head_windows& windows,
                           const visible& v, const float* q, workspace* w, outputs* o)
{
    enum { rows = strip_rows / 2 };
    const int count = v.sink_end - v.sink_begin + v.tail_end - v.tail_begin;
#pragma unroll 1
    for (int strip = 0; strip < count; strip += rows) {
        const int at = strip + threadIdx.x / 2;
        score_row(window_row(a, windows, v, 0, least_of(at, count - 1)), at < count,
                  (int)(window_position(a, v, at) - v.position), q, w);
        softmax_add(&w->state, rows, a.soft_cap);
        shrink_outputs(w->state, o);
        const int end = least_of(rows, count - strip);
#pragma unroll 1
        for (int i = slice_of(); i < end && slice_of() < slices; i += slices) {
            const uint16_t* row = window_row(a, windows, v, 1, strip + i);
#pragma unroll
            for (int k = 0; k < each; ++k) {
                if (channel_of(k) >= head_dim_v) continue;
                const float x = f32_of_row(row[channel_of(k)]);
#pragma unroll
                for (int h = 0; h < num_heads; ++h)
                    o->of[k][h] = mul_add(w->state.scores[h][i], x, o->of[k][h]);
            }
        }
        __syncthreads();
    }
}

// The part's result: slices join in shared memory, where scores were.
INLINE void store_part(const kvl__device_attend& a, int query, int head, int part, workspace* w,
                       const outputs& o)
{
    const int64_t first = (query * (int64_t)gridDim.y + head) * num_heads * a.parts + part;
    float* to = (float*)a.o_part + first * head_dim_v;
    const int64_t stride = a.parts * (int64_t)head_dim_v;
    for (int h = threadIdx.x; h < num_heads; h += cta_threads) {
        const float sum = w->state.sum[h];
        ((float*)a.lse_part)[first + h * a.parts] =
            sum > 0.0f ? w->state.max[h] + logf(sum) : hidden_score();
        w->state.shrink[h] = sum > 0.0f ? __fdividef(1.0f, sum) : 0.0f;
    }
    __syncthreads();
#line 176 "templates/cuda/windows.cuh"
#pragma unroll
    for (int h = 0; h < num_heads; ++h) w->state.scores[h][threadIdx.x] = o.of[0][h];
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < num_heads * head_dim_v; i += cta_threads) {
        const int h = i / head_dim_v, channel = i % head_dim_v;
        float all = 0.0f;
        for (int slice = 0; slice < slices; ++slice)
            all += w->state.scores[h][slice * head_dim_v + channel];
        to[h * stride + channel] = all * w->state.shrink[h];
    }
#line 194 "templates/cuda/windows.cuh"
}

#line 11 "templates/cuda/attend_splits.cu"
#line 1 "templates/cuda/float_pages.cuh"
// float_pages.cuh -- attention over the rows of pages, in floats.
//
// A strip of rows at a time, for the num_heads query heads of a KV head: a thread scores a token,
// then adds up a channel.  Rows that are not visible are not read: whatever their memory holds.

#line 7 "templates/cuda/float_pages.cuh"

#line 9 "templates/cuda/float_pages.cuh"
// Scores of this thread's row of a strip.
INLINE void score_token(const kvl__device_seq* s, int head, int row, bool is_visible, int distance,
                        const float* q, workspace* w)
{
    enum { heads = 3 };        // that a pass over the row serves
    w->state.distance[threadIdx.x] = distance;
#pragma unroll 1
    for (int first = 0; first < num_heads; first += heads) {
        float sums[heads];
#pragma unroll
        for (int h = 0; h < heads; ++h) sums[h] = 0.0f;
        if (is_visible) {
            const unsigned char* keys = page_at(s, row / page_size, head, 0);
            const int lane = row % page_size;
#line 26 "templates/cuda/float_pages.cuh"
#pragma unroll 1
            for (int at = 0; at < head_dim_k; at += 16) {
                float x[16];
                k_read_words(keys, lane, at, x);
#line 31 "templates/cuda/float_pages.cuh"
                const float* of = q + first * q_floats + 0 + at;
#pragma unroll
                for (int h = 0; h < heads; ++h)
                    sums[h] = dot<16>(of + h * q_floats, x, sums[h]);
            }
        }
#pragma unroll
        for (int h = 0; h < heads; ++h) {
#line 42 "templates/cuda/float_pages.cuh"
            w->state.scores[first + h][threadIdx.x] = is_visible ? sums[h] : hidden_score();
        }
    }
}

#line 48 "templates/cuda/float_pages.cuh"
// Values of the strip's rows [begin, end) join the outputs; rows are counted from its first.
INLINE void add_values(const kvl__device_seq* s, int head, int strip, int begin, int end,
                       const workspace* w, outputs* o)
{
    enum { tokens = 16 };        // that are read at once
#pragma unroll 1
    for (int first = slice_of() * tokens; first < end; first += slices * tokens) {
        const int row = strip + first;
        if (slice_of() >= slices || first + tokens <= begin) continue;
        const unsigned char* values = page_at(s, row / page_size, head, 1);
#pragma unroll
        for (int i = 0; i < each; ++i) {
            float x[tokens];
            if (channel_of(i) >= head_dim_v) continue;
            v_read_words(values, channel_of(i),
                                                                 row % page_size, x);
#pragma unroll
            for (int t = 0; t < tokens; ++t)
                if (first + t < begin || first + t >= end) x[t] = 0.0f;
#pragma unroll
            for (int h = 0; h < num_heads; ++h)
                o->of[i][h] = dot<tokens>(w->state.scores[h] + first, x, o->of[i][h]);
        }
    }
}

INLINE void attend_pages(const kvl__device_attend& a, const kvl__device_seq* s, int head,
                         int begin, int end, int64_t position, const float* q, workspace* w,
                         outputs* o)
{
#pragma unroll 1
    for (int strip = begin / 16 * 16; strip < end; strip += strip_rows) {
        const int row = strip + threadIdx.x;
#line 85 "templates/cuda/float_pages.cuh"
        score_token(s, head, row, row >= begin && row < end,
                    (int)(row + a.windows.sink_len - position), q, w);
#line 91 "templates/cuda/float_pages.cuh"
        softmax_add(&w->state, strip_rows, a.soft_cap);
        shrink_outputs(w->state, o);
        add_values(s, head, strip, most_of(0, begin - strip), least_of(strip_rows, end - strip), w,
                   o);
        __syncthreads();
    }
}

#line 12 "templates/cuda/attend_splits.cu"

KERNEL attend_splits(const __grid_constant__ kvl__device_attend a)
{
    __shared__ workspace w;
    const int part = blockIdx.x, head = blockIdx.y, query = blockIdx.z;
    const kvl__device_seq* s = (const kvl__device_seq*)a.queries[query].seq;
    const visible v = see(a, query);
    const bool is_window = part == a.parts - 1;
    outputs o;
    if (!is_window && part >= v.num_splits) return;        // merge_splits does not read it
    start_outputs(&o);
    const int copy = is_window ? 0 : 0;
    const float* q = load_queries(a, query, head, copy, &w);
    if (is_window) {
        attend_windows(a, windows_of(s, a.windows, head), v, q, &w, &o);
    } else {
        const int first = (v.first_page + part * v.pages_per_split) * page_size;
        attend_pages(a, s, head, most_of(v.page_begin, first),
                     least_of(v.page_end, first + v.pages_per_split * page_size), v.position, q,
                     &w, &o);
    }
    store_part(a, query, head, part, &w, o);
}

