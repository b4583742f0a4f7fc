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
//   k_predict_rows  tiles of 16 rows, num_kv_heads, items    kvl__device_predict
//   v_predict_rows  tiles of 16 rows, num_kv_heads, items    kvl__device_predict
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
    KVL__DEVICE_ABI = 4,
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
    uint64_t restored;                     // of rows that are predicted: see predicted.cuh
    int64_t  restored_rows;                // that it has room for, after the sink
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
    uint64_t places;                       // const int32_t* [num_kv_heads, dim] of keys across
                                           // heads: where channel n of the layer is stored, as
                                           // head dim + channel; or 0
    uint64_t predictors[2];                // const float* [num_kv_heads, inputs, dim] of keys, of
                                           // values; or 0
    int32_t  half, is_lowest;              // of restored rows; of layers that are predicted
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

// Rows of a sequence that are restored in a layer: those in pages from first_row on, or, as
// `appends` says, those that num_rows rows to come bring into pages.
typedef struct kvl__device_predict_item {
    uint64_t seq;                          // kvl__device_seq* of the layer that is to be read
    uint64_t pages;                        // the one of this layer
    int32_t  first_row, num_rows;
} kvl__device_predict_item;

// Layers are 1 + their numbers.  A row goes on from the layer below; in the lowest layer one starts
// that is in no layer up to the target.  appends: 0, 1, or 2 where rows get their codes: whatever
// has been restored of them is of others.
typedef struct kvl__device_predict {
    kvl__device_windows windows;
    uint64_t            tables[2];
    int32_t             table_floats[2];
    int32_t             layer, below, target, appends;
    kvl__device_predict_item items[KVL__BATCH];
} kvl__device_predict;

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

#line 25 "templates/cuda/program.cu"
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
#line 87 "templates/cuda/codec.cuh"
    return meta_e5m3(bits);
#line 89 "templates/cuda/codec.cuh"
}

INLINE float v_offset_of(float scale, uint32_t zero_bits)
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
#line 95 "templates/cuda/codec.cuh"
    const float zero = meta_i8(zero_bits);
#line 97 "templates/cuda/codec.cuh"
    return scale * (zero * ((float)(1 << bits) / 32.0f) - 0.5f * (float)code_max);
}

INLINE float v_read_scale(const unsigned char* page, int group)
{
#line 107 "templates/cuda/codec.cuh"
    const unsigned char* at = page + v_scales_at + group * 1;
    return v_scale_of(read_u8(at));
#line 110 "templates/cuda/codec.cuh"
}

INLINE float v_read_offset(const unsigned char* page, int group, float scale)
{
    uint32_t zero = 0;
#line 116 "templates/cuda/codec.cuh"
    zero = read_u8(page + v_zeros_at + group * 1);
#line 118 "templates/cuda/codec.cuh"
    return v_offset_of(scale, zero);
}

#line 122 "templates/cuda/codec.cuh"
// The numbers that turn a value into its code: round((x - offset) * inverse).
typedef struct v_grid {
    float offset, inverse;
} v_grid;

INLINE void v_put_pair(unsigned char* page, int group, uint32_t scale_code, uint32_t zero_code)
{
    (void)zero_code;
#line 135 "templates/cuda/codec.cuh"
    page[v_scales_at + group] = (unsigned char)scale_code;
#line 135 "templates/cuda/codec.cuh"
    page[v_zeros_at + group] = (unsigned char)zero_code;
#line 140 "templates/cuda/codec.cuh"
}

// What is stored for a group, and the scale that it decodes to.
typedef struct v_pair {
    uint32_t scale_code, zero_code;
    float    scale;
} v_pair;

#line 149 "templates/cuda/codec.cuh"
// Fits a group.  flag: the lowest bit of its zero; < 0: any.
INLINE v_grid v_fit_grid(v_pair* pair, int flag, float lo, float hi)
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
    enum { group_size = 32 };
    v_grid grid = { 0.0f, 0.0f };
    uint32_t scale_code;
    float scale;
    (void)flag;
#line 159 "templates/cuda/codec.cuh"
    uint32_t zero_code;
    lo += 0.0f;                      // -0 becomes 0: one spelling of a stored zero
    hi += 0.0f;
#line 166 "templates/cuda/codec.cuh"
    const float unit = (float)(1 << bits) / 32.0f;
    const float range = least(hi - lo, float_max), mid = 0.5f * lo + 0.5f * hi;
    const float wanted = most(range / (float)code_max, absolute(mid) / (127.0f * unit));
    float zero;
    scale_code = e5m3_of_f32(wanted);
    if (wanted > 0.0f && scale_code == 0) scale_code = 1;
    for (;; ++scale_code) {
        scale = f32_of_e5m3(scale_code);
        const float step = scale * unit;
        zero = scale > 0.0f ? nearest_even(clamp(mid / step, -127.0f, 127.0f)) : 0.0f;
        if (scale_code == 255) break;
        if (0.5f * range + absolute(mid - zero * step) <= scale * (float)half_codes) break;
    }
    zero_code = (uint32_t)(int32_t)zero & 255u;
    grid.offset = scale * (zero * unit - 0.5f * (float)code_max);
    grid.inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
#line 167 "templates/cuda/codec.cuh"
    pair->zero_code = zero_code;
#line 179 "templates/cuda/codec.cuh"
    pair->scale_code = scale_code;
    pair->scale = scale;
    return grid;
}

#line 221 "templates/cuda/codec.cuh"
// The code of a value: round((x - offset) * inverse) within the range of codes.  What is not a
// number, 0 times an infinite inverse, gets the lowest code.
INLINE uint32_t v_code_of(float x, v_grid grid)
{
#line 228 "templates/cuda/codec.cuh"
    const float zero_point = 0.0f, code_max = 3.0f;
    float y = (x - grid.offset) * grid.inverse;
    y = most(y, -zero_point);
    y = least(y, code_max - zero_point);
    return (uint32_t)(int32_t)least(round_even(y) + zero_point, code_max);
#line 234 "templates/cuda/codec.cuh"
}
#line 238 "templates/cuda/codec.cuh"

#line 382 "templates/cuda/codec.cuh"
// What scales are multiplied with, of one value.
#line 384 "templates/cuda/codec.cuh"
INLINE uint32_t v_get_code(const unsigned char* page,
                                                         int lane, int word)
{
    const unsigned char* cell = page + v_cell_at(lane / 16, word / 16);
    const int of = lane % 16, i = word % 16;
#line 392 "templates/cuda/codec.cuh"
    uint32_t code = 0;
#line 394 "templates/cuda/codec.cuh"
    {
        enum { each = 8, mask = 3 };
        const int bit = i % 2 * 16 + i / 2 % each * 2;
#line 400 "templates/cuda/codec.cuh"
        const uint32_t bits = load_u32(cell + 0 + i / 2 / each * 64 + of * 4);
#line 402 "templates/cuda/codec.cuh"
        code |= (bits >> bit & mask) << 0;
    }
#line 405 "templates/cuda/codec.cuh"
    return code;
#line 407 "templates/cuda/codec.cuh"
}

#line 421 "templates/cuda/codec.cuh"

// One value.
INLINE float v_read_value(const unsigned char* page, int row, int channel, uint32_t* code)
{
#line 428 "templates/cuda/codec.cuh"
    const int lane = channel, word = row;
#line 430 "templates/cuda/codec.cuh"
    *code = v_get_code(page, lane, word);
#line 434 "templates/cuda/codec.cuh"
    const int group = v_group(word, lane);
    const float scale = v_read_scale(page, group);
    return scale * to_float(*code) + v_read_offset(page, group, scale);
#line 438 "templates/cuda/codec.cuh"
}


#line 39 "templates/cuda/program.cu"
#line 1 "templates/cuda/transform.cuh"
// transform.cuh -- rows into the basis of the values' codec, and out of it.
//
//   x       [num_rows, row_stride]  f32 in shared memory, in place; all threads take part
//   record  of the head, of calibrated numbers
//
// to_basis is for rows that are encoded, turn_query for queries, from_basis for outputs and rows
// that are read back.

#line 160 "templates/cuda/transform.cuh"
// Into the basis that all rows are in.
template <int num_rows>
INLINE void v_to_basis(float* x, int row_stride, const float* record)
{
    (void)record;
#line 174 "templates/cuda/transform.cuh"
    (void)x;
    (void)row_stride;
    __syncthreads();
#line 178 "templates/cuda/transform.cuh"
}

INLINE void v_turn_query(float* x, const float* record) { v_to_basis<1>(x, 0, record); }

// Out of it.
template <int num_rows>
INLINE void v_turn_back(float* x, int row_stride, const float* record)
{
#line 191 "templates/cuda/transform.cuh"
    v_to_basis<num_rows>(x, row_stride, record);
#line 193 "templates/cuda/transform.cuh"
}

INLINE void v_from_basis(float* x, const float* record) { v_turn_back<1>(x, 0, record); }

#line 58 "templates/cuda/program.cu"
#line 1 "templates/cuda/encode_rows.cu"
// encode_rows.cu -- rows of rings become codes of pages: transform, fit, round, pack.
//
//   grid  units, num_kv_heads, num_seqs: 16 rows of a page at most
//
// Rows that are due when a.items are appended, and not encoded before.  A unit shares neither words
// nor groups with others.  Nothing in here may be fused or reordered where it decides a code: every
// target gets the same bits.

#line 11 "templates/cuda/encode_rows.cu"
enum { v_unit_rows = 16 };
enum { v_row_stride = 65 };          // + 1: rows begin in different banks

// One unit of one sequence and head.
typedef struct v_unit {
    const uint16_t* ring;
    int32_t         row;           // the first row of the page, counted after the sink
    int32_t         ring_rows, sink_len;
    unsigned char*  page;
    const float*    record;
#line 31 "templates/cuda/encode_rows.cu"
} v_unit;

#line 65 "templates/cuda/encode_rows.cu"
// A value of a row of the page as the row is stored: of keys before RoPE turned back, without what
// its position gave it, as the window would hold it.
INLINE float v_stored_value(const v_unit& u, int row, int channel)
{
    const uint16_t* of = u.ring + (u.row + row) % u.ring_rows * (int64_t)v_dim;
    float value = f32_of_row(of[channel]);
#line 86 "templates/cuda/encode_rows.cu"
    return value;
}

#line 139 "templates/cuda/encode_rows.cu"
// Rows [from, from + rows) of the page in the codec's basis; of them [first, end) are read.
template <int rows>
INLINE void v_load_rows(const v_unit& u, int from, int first, int end, float* x)
{
    __syncthreads();
#line 148 "templates/cuda/encode_rows.cu"
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * v_dim; i += cta_threads) {
        const int row = from + i / v_dim, channel = i % v_dim;
        float value = 0.0f;
        if (row >= first && row < end) value = v_stored_value(u, row, channel);
#line 159 "templates/cuda/encode_rows.cu"
        x[i / v_dim * v_row_stride + channel] = value;
    }
#line 171 "templates/cuda/encode_rows.cu"
    v_to_basis<rows>(x, v_row_stride, u.record);
#line 182 "templates/cuda/encode_rows.cu"
}

INLINE void v_load_tile(const v_unit& u, int tile, int first, int end, float* x)
{
    v_load_rows<16>(u, tile * 16, first, end, x);
#line 190 "templates/cuda/encode_rows.cu"
}

#line 193 "templates/cuda/encode_rows.cu"
#line 1 "templates/cuda/put_cells.cuh"
// put_cells.cuh -- codes of the values take their place in a page.

// Codes of `channels` channels from `channel` on take their place in the page: of the rows [first,
// end) of a tile, bits of x [16, stride], whose first is that of the first channel.
INLINE void v_put_cells(unsigned char* page, int tile, int first, int end, const float* x,
                        int stride, int channel, int channels)
{
    const bool whole = first <= tile * 16 && end >= tile * 16 + 16;
    for (int from = 0; from < channels; from += cta_threads) {
        const int item = from + threadIdx.x, at = (channel + item) / 16, lane = item % 16;
        const bool write = item < channels;
        uint32_t q[16];
        for (int i = 0; i < 16; ++i) q[i] = 0;
#line 17 "templates/cuda/put_cells.cuh"
        unsigned char* cell = page + v_cell_at(write ? at : 0, tile);
#line 19 "templates/cuda/put_cells.cuh"
        if (write && !whole) v_get_codes(cell, lane, q);
        for (int i = 0; i < 16; ++i) {
#line 24 "templates/cuda/put_cells.cuh"
            const int row = i, place = item;
#line 26 "templates/cuda/put_cells.cuh"
            if (write && tile * 16 + row >= first && tile * 16 + row < end)
                q[i] = bits_of(x[row * stride + place]);
        }
        v_put_codes(cell, lane, q, write);
    }
}

#line 194 "templates/cuda/encode_rows.cu"

INLINE void v_put_tile(const v_unit& u, int tile, int first, int end, const float* x)
{
    v_put_cells(u.page, tile, first, end, x, v_row_stride, 0, v_dim);
}

#line 228 "templates/cuda/encode_rows.cu"
#line 1 "templates/cuda/token_groups.cuh"
// token_groups.cuh -- groups along the channels of a row: values are fitted and rounded.

#line 9 "templates/cuda/token_groups.cuh"
// The grid of a group whose values lie side by side.
INLINE v_grid v_fit_values(v_pair* pair, const float* of)
{
    enum { group_size = 32 };
#line 14 "templates/cuda/token_groups.cuh"
    float lo;
#line 14 "templates/cuda/token_groups.cuh"
    float hi;
#line 16 "templates/cuda/token_groups.cuh"
    {
        const float x = of[0];
#line 19 "templates/cuda/token_groups.cuh"
        lo = x;
#line 19 "templates/cuda/token_groups.cuh"
        hi = x;
#line 21 "templates/cuda/token_groups.cuh"
    }
    for (int i = 1; i < group_size; ++i) {
        const float x = of[i];
#line 25 "templates/cuda/token_groups.cuh"
        lo = x < lo ? x : lo;
#line 25 "templates/cuda/token_groups.cuh"
        hi = x > hi ? x : hi;
#line 27 "templates/cuda/token_groups.cuh"
    }
    const v_grid grid = v_fit_grid(pair, -1, lo, hi);
#line 32 "templates/cuda/token_groups.cuh"
    return grid;
}

#line 51 "templates/cuda/token_groups.cuh"
// Of the rows [first, end) of a tile, x [16, row_stride], metadata takes its place in the page, and
// values become bits of what is stored as codes.
INLINE void v_encode_groups(unsigned char* page, const float* record, int tile, int first,
                            int end, int row_stride, float* x)
{
    enum { group_size = 32, groups = v_dim / group_size };
    (void)record;
#line 78 "templates/cuda/token_groups.cuh"
    // A thread has one group of one row.
    for (int item = threadIdx.x; item < 16 * groups; item += cta_threads) {
        const int row = tile * 16 + item % 16, channel = item / 16 * group_size;
        if (row < first || row >= end) continue;
        float* of = x + item % 16 * row_stride + channel;
#line 86 "templates/cuda/token_groups.cuh"
        const int group = v_group(row, channel);
        v_pair pair;
        const v_grid grid = v_fit_values(&pair, of);
        v_put_pair(page, group, pair.scale_code, pair.zero_code);
#line 97 "templates/cuda/token_groups.cuh"
        for (int i = 0; i < group_size; ++i) of[i] = float_of(v_code_of(of[i], grid));
#line 100 "templates/cuda/token_groups.cuh"
    }
#line 110 "templates/cuda/token_groups.cuh"
}

#line 229 "templates/cuda/encode_rows.cu"

#line 231 "templates/cuda/encode_rows.cu"
// Groups along the channels of a row, of each set of channels.
INLINE void v_encode_unit(const v_unit& u, int first, int end)
{
    __shared__ float x[16 * v_row_stride];
#pragma unroll 1
    for (int tile = first / 16; tile * 16 < end; ++tile) {
        v_load_tile(u, tile, first, end, x);
#line 239 "templates/cuda/encode_rows.cu"
        v_encode_groups(u.page + 0, u.record, tile, first, end,
                                        v_row_stride, x + 0);
#line 242 "templates/cuda/encode_rows.cu"
        __syncthreads();
#line 244 "templates/cuda/encode_rows.cu"
        v_put_cells(u.page + 0, tile, first, end, x + 0,
                                    v_row_stride, 0, 64);
#line 247 "templates/cuda/encode_rows.cu"
    }
}
#line 502 "templates/cuda/encode_rows.cu"

KERNEL v_encode_rows(const __grid_constant__ kvl__device_append a)
{
    const int head = blockIdx.y;
    const kvl__device_item& item = a.items[blockIdx.z];
    const kvl__device_seq* s = (const kvl__device_seq*)item.seq;
    const int due = quantized_rows(s, a.windows, (int)s->rows + item.num_rows);
    const int unit = (int)s->quantized / v_unit_rows + blockIdx.x;
    const int first = most_of((int)s->quantized, unit * v_unit_rows);
    const int end = least_of(due, (unit + 1) * v_unit_rows), page = first / page_size;
    if (first >= end || page < s->first_page) return;
    const head_windows w = windows_of(s, a.windows, head);
    v_unit u;
    u.ring = w.ring[1];
    u.row = page * page_size;
    u.ring_rows = a.windows.ring_rows;
    u.sink_len = a.windows.sink_len;
    u.page = page_at(s, page, head, 1);
    u.record = record_of(a.tables, a.table_floats, 1, head);
#line 532 "templates/cuda/encode_rows.cu"
    v_encode_unit(u, first - u.row, end - u.row);
#line 536 "templates/cuda/encode_rows.cu"
}

