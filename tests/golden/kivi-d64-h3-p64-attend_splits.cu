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
#line 87 "templates/cuda/codec.cuh"
    return meta_e5m3(bits);
#line 89 "templates/cuda/codec.cuh"
}

INLINE float k_offset_of(float scale, uint32_t zero_bits)
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
#line 95 "templates/cuda/codec.cuh"
    const float zero = meta_i8(zero_bits);
#line 97 "templates/cuda/codec.cuh"
    return scale * (zero * ((float)(1 << bits) / 32.0f) - 0.5f * (float)code_max);
}

INLINE float k_read_scale(const unsigned char* page, int group)
{
#line 107 "templates/cuda/codec.cuh"
    const unsigned char* at = page + k_scales_at + group * 1;
    return k_scale_of(read_u8(at));
#line 110 "templates/cuda/codec.cuh"
}

INLINE float k_read_offset(const unsigned char* page, int group, float scale)
{
    uint32_t zero = 0;
#line 116 "templates/cuda/codec.cuh"
    zero = read_u8(page + k_zeros_at + group * 1);
#line 118 "templates/cuda/codec.cuh"
    return k_offset_of(scale, zero);
}

#line 238 "templates/cuda/codec.cuh"

#line 287 "templates/cuda/codec.cuh"
// What is stored of the 16 words of a lane of the page from `word` on.
INLINE void k_get_words(const unsigned char* page, int lane, int word, uint32_t* q)
{
#line 293 "templates/cuda/codec.cuh"
    k_get_codes(page + k_cell_at(lane / 16, word / 16), lane % 16, q);
#line 322 "templates/cuda/codec.cuh"
}

// Values, in the codec's basis, of these words.
INLINE void k_read_words(const unsigned char* page, int lane, int word, float* x)
{
    uint32_t q[16];
    k_get_words(page, lane, word, q);
#line 347 "templates/cuda/codec.cuh"
    // Words side by side have scales side by side.
    const int group = k_group(word, lane);
    uint32_t scales[16], zeros[16] = { 0 };
#line 351 "templates/cuda/codec.cuh"
    read_16_u8(page + k_scales_at + group * 1,
                                        scales);
#line 358 "templates/cuda/codec.cuh"
    read_16_u8(page + k_zeros_at + group * 1, zeros);
#line 360 "templates/cuda/codec.cuh"
    for (int i = 0; i < 16; ++i) {
        const float scale = k_scale_of(scales[i]);
        x[i] = scale * to_float(q[i]) + k_offset_of(scale, zeros[i]);
    }
#line 376 "templates/cuda/codec.cuh"
}

#line 382 "templates/cuda/codec.cuh"
// What scales are multiplied with, of one value.
#line 384 "templates/cuda/codec.cuh"
INLINE uint32_t k_get_code(const unsigned char* page,
                                                         int lane, int word)
{
    const unsigned char* cell = page + k_cell_at(lane / 16, word / 16);
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
INLINE float k_read_value(const unsigned char* page, int row, int channel, uint32_t* code)
{
#line 426 "templates/cuda/codec.cuh"
    const int lane = row, word = channel;
#line 430 "templates/cuda/codec.cuh"
    *code = k_get_code(page, lane, word);
#line 434 "templates/cuda/codec.cuh"
    const int group = k_group(word, lane);
    const float scale = k_read_scale(page, group);
    return scale * to_float(*code) + k_read_offset(page, group, scale);
#line 438 "templates/cuda/codec.cuh"
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

#line 238 "templates/cuda/codec.cuh"

#line 287 "templates/cuda/codec.cuh"
// What is stored of the 16 words of a lane of the page from `word` on.
INLINE void v_get_words(const unsigned char* page, int lane, int word, uint32_t* q)
{
#line 293 "templates/cuda/codec.cuh"
    v_get_codes(page + v_cell_at(lane / 16, word / 16), lane % 16, q);
#line 322 "templates/cuda/codec.cuh"
}

// Values, in the codec's basis, of these words.
INLINE void v_read_words(const unsigned char* page, int lane, int word, float* x)
{
    uint32_t q[16];
    v_get_words(page, lane, word, q);
#line 347 "templates/cuda/codec.cuh"
    // Words side by side have scales side by side.
    const int group = v_group(word, lane);
    uint32_t scales[16], zeros[16] = { 0 };
#line 351 "templates/cuda/codec.cuh"
    read_16_u8(page + v_scales_at + group * 1,
                                        scales);
#line 358 "templates/cuda/codec.cuh"
    read_16_u8(page + v_zeros_at + group * 1, zeros);
#line 360 "templates/cuda/codec.cuh"
    for (int i = 0; i < 16; ++i) {
        const float scale = v_scale_of(scales[i]);
        x[i] = scale * to_float(q[i]) + v_offset_of(scale, zeros[i]);
    }
#line 376 "templates/cuda/codec.cuh"
}

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


#line 64 "templates/cuda/program.cu"
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
#pragma unroll 1
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
#pragma unroll 1
    for (int i = threadIdx.x; i < num_heads; i += cta_threads)
        w->state.slopes[i] = a.slopes ? ((const float*)a.slopes)[head * num_heads + i] : 0.0f;
#line 60 "templates/cuda/windows.cuh"
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
#line 100 "templates/cuda/windows.cuh"
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
#pragma unroll 1
    for (int h = threadIdx.x; h < num_heads; h += cta_threads) {
        const float sum = w->state.sum[h];
        ((float*)a.lse_part)[first + h * a.parts] =
            sum > 0.0f ? w->state.max[h] + logf(sum) : hidden_score();
        w->state.shrink[h] = sum > 0.0f ? __fdividef(1.0f, sum) : 0.0f;
    }
    __syncthreads();
#line 179 "templates/cuda/windows.cuh"
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
#line 199 "templates/cuda/windows.cuh"
}

#line 12 "templates/cuda/attend_splits.cu"
#line 1 "templates/cuda/tensor_pages.cuh"
// tensor_pages.cuh -- attention over the rows of pages by tensor cores.
//
// A warp has every fourth part of a split, 32 tokens a step: copies of them arrive in its ring in
// shared memory while it works on earlier ones.  Where a lane's numbers are, and in which bits, is
// in gen/tensor.lua and docs/cuda.md.  Scores are sums of products of codes with
//     query * scale      in two parts of f16 whose sum has 17 bits or more, of keys per channel
//     query              the same, of keys per token, whose scales meet sums of a group in float32
// and outputs are sums of products of codes with
//     weight * scale     rounded to f16 twice
// in float32, but that each product is cut at 2^-14 of the greatest of these numbers beside it or
// finer (multiply).
// Offsets of groups are f16 too: scale times zero, of which 11 bits or fewer are seldom cut.  They
// are multiplied by queries and weights without scales.  Weights are 2^lift times what they are, so
// that few are below the least normal f16, scales of values 2^(3 - bit) times, bit that of the
// codes that they are for, and offsets of values 2^3 times.  Scores are counted in eights, before
// their factor.  A result that is not finite is made again with a lift that nothing exceeds, then
// in floats.

#line 1 "templates/cuda/tensor.cuh"
// tensor.cuh -- instructions of tensor cores, pairs of f16, and copies that a thread need not wait
// for.  The one place that asks for the architecture: sm_75 has smaller products, and no copies.

// c += a b, fragments of m16n8k16: lane 4 g + t has of a the rows g, g + 8 (a0, a1) at columns
// 2 t, 2 t + 1, then (a2, a3) at 8 more; of b column g at those rows; of c rows g (c[0], c[1]) and
// g + 8 at columns 2 t, 2 t + 1.  Products are exact.  Of 8 of them (from sm_90 on 16) and the sum
// so far, the bits 24 (25) or more below the greatest exponent are cut before they are added, and a
// code below the least normal f16 has the exponent of that one: beside the greatest factor x that
// meets a code, each product is cut at x 2^-14 (2^-15) or finer.
INLINE void multiply(float* c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                     uint32_t b1)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%8}, "
        "{%0, %1, %2, %3};\n\t"
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%6, %7}, {%9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

// Lane 4 g + t: row g of an 8 x 8 matrix of f16, columns 2 t and 2 t + 1; becomes the transpose's.
INLINE uint32_t transposed(uint32_t x)
{
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

INLINE uint32_t pair_of(float low, float high)
{
    uint32_t x;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
#else
    asm("{\n\t.reg .b16 l, h;\n\tcvt.rn.f16.f32 l, %2;\n\tcvt.rn.f16.f32 h, %1;\n\t"
        "mov.b32 %0, {l, h};\n\t}" : "=r"(x) : "f"(high), "f"(low));
#endif
    return x;
}

INLINE uint32_t pair_mul(uint32_t a, uint32_t b)
{
    uint32_t x;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
    return x;
}

INLINE uint32_t pair_add(uint32_t a, uint32_t b)
{
    uint32_t x;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
    return x;
}

// a b + c, rounded once.
INLINE uint32_t pair_mul_add(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t x;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(a), "r"(b), "r"(c));
    return x;
}

// a b - c
INLINE uint32_t pair_mul_sub(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t x;
    asm("{\n\t.reg .b32 n;\n\tneg.f16x2 n, %3;\n\tfma.rn.f16x2 %0, %1, %2, n;\n\t}"
        : "=r"(x) : "r"(a), "r"(b), "r"(c));
    return x;
}

INLINE float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// COPIES.  16 bytes into shared memory, of which a thread sees what it has waited for.

INLINE uint32_t shared_address(const void* at) { return (uint32_t)__cvta_generic_to_shared(at); }

template <int to_offset, int from_offset>
INLINE void copy_16(uint32_t to, const unsigned char* from)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;"
                 : : "r"(to), "l"(from), "n"(to_offset), "n"(from_offset) : "memory");
#else
    const uint4 x = *(const uint4*)(from + from_offset);
    asm volatile("st.shared.v4.u32 [%0 + %5], {%1, %2, %3, %4};"
                 : : "r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "n"(to_offset) : "memory");
#endif
}

// What was asked for since the last of these is a group.
INLINE void copies_end()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}

// Waits until at most `left` groups are under way.
template <int left>
INLINE void copies_wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" : : "n"(left) : "memory");
#endif
}

// SHARED MEMORY, by addresses of its own: what is constant in one is part of the instruction.

INLINE uint32_t shared_4(uint32_t at)
{
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}

INLINE uint2 shared_8(uint32_t at)
{
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at) : "memory");
    return x;
}

INLINE uint4 shared_16(uint32_t at)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
    return x;
}

INLINE void store_shared_8(uint32_t at, uint2 x)
{
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" : : "r"(at), "r"(x.x), "r"(x.y) : "memory");
}

INLINE void store_shared_16(uint32_t at, uint4 x)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 : : "r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

// x, which all lanes of a warp agree on: the compiler then knows that they do.
INLINE int uniform(int x)
{
#if __CUDA_ARCH__ >= 800
    uint32_t y;
    asm volatile("redux.sync.or.b32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
    return (int)y;
#else
    return __shfl_sync(0xffffffffu, x, 0);
#endif
}

// METADATA AS PAIRS OF F16: of four bytes two, which a selector names.

// Of bytes 2 pair and 2 pair + 1.
INLINE uint32_t high_selector(int pair) { return 0x1404 + pair * 0x2020; }
INLINE uint32_t low_selector(int pair) { return 0x4140 + pair * 0x0202; }

// (0, byte) in both halves.
INLINE uint32_t high_bytes(uint32_t word, uint32_t selector)
{
    return __byte_perm(word, 0, selector);
}

// (byte, 0x64) in both halves: 1024 + byte.
INLINE uint32_t low_bytes(uint32_t word, uint32_t selector)
{
    return __byte_perm(word, 0x64646464u, selector);
}

// The exponent of e5m3 is that of f16.
INLINE uint32_t pair_of_e5m3(uint32_t word, uint32_t selector)
{
    return high_bytes(word, selector) >> 1;
}

// Without the sign; the exponent of e4m3 is 7 less.
INLINE uint32_t pair_of_e4m3(uint32_t word, uint32_t selector)
{
    return pair_mul(high_bytes(word, selector) >> 1 & 0x3f803f80u, 0x58005800u);
}

// 2^((c - 8) / 4), c the high four bits: the root by its bytes, c / 4 in the exponent.
INLINE uint32_t pair_of_log4(uint32_t word, uint32_t selector)
{
    const uint32_t high = high_bytes(word, selector), c = high >> 12 & 0x00030003u;
    const uint32_t root = __byte_perm(0xbaa8c200u, 0x36353434u, (c | c >> 8) * 17u + 0x4040u);
    return root + (high >> 4 & 0x0c000c00u);
}

// 1024 + 128 + z
INLINE uint32_t pair_of_i8(uint32_t word, uint32_t selector)
{
    return low_bytes(word ^ 0x80808080u, selector);
}

// 1024 + 8 + z
INLINE uint32_t pair_of_low4(uint32_t word, uint32_t selector)
{
    return low_bytes(word & 0x0f0f0f0fu, selector);
}

#line 20 "templates/cuda/tensor_pages.cuh"

#line 24 "templates/cuda/tensor_pages.cuh"
enum { step_rows = 32, columns = 1, spans = 1, outs = 2 };
enum { value_groups = 2, num_stages = 4, stage_bytes = 1312 };
enum { k_codes = 512, v_codes = 512, meta_pieces = 16 };
enum { meta_rounds = (meta_pieces + 31) / 32 };
enum { v_numbers = 64, numbers_bytes = 736 };
enum { k_rounds = 1, v_rounds = (v_numbers + 127) / 128 };
enum { zero_tiles = value_groups / 8 + 1, scores = 4 };
// Numbers of a warp: of keys; scales and offsets of values; ones.
enum { v_at = 416, ones_at = v_at + 4 * v_numbers };
#line 38 "templates/cuda/tensor_pages.cuh"
// Of keys: scales, offsets, what those lack.
enum { k_numbers = 64, k_low_at = 4 * k_numbers + 16 };
#line 41 "templates/cuda/tensor_pages.cuh"
enum { quads = 2 };
enum { k_cell = 64, v_cell = 64, k_cells = 4 };
enum { v_cells = 4, tensor_bytes = 23936, v_tile = v_cells * 4 };
#line 45 "templates/cuda/tensor_pages.cuh"
enum { v_pad = 32, codes_bytes = k_codes + v_codes + v_pad };      // of a stage, then metadata

// Where lane 4 g + t is in a fragment; g = 4 a + 2 b + e, t = 2 va + vb.  Addresses are of shared
// memory: with the ring's offset of a stage, or of the numbers of the warp.
typedef struct place {
    int lane, g, t, a, b, e, va, vb;
    uint32_t key[4][1];            // of its words of keys, fragments 2 i + h
    uint32_t value, value_mask[2][2];  // of its words of values; bits of them
    uint32_t k_meta[k_rounds], v_meta[v_rounds];     // metadata that it reads, four numbers,
    uint32_t k_to[k_rounds], v_to[v_rounds];         // and where they go as pairs
    uint32_t k_scales, k_offsets, v_scales, v_offsets[zero_tiles];   // that its products take
    uint32_t k_into, v_into[1], meta_into;     // copies
    // For two pairs of its numbers: which bytes; what makes numbers of them.
    uint32_t v_scale[2], v_zero[2], v_weight[2], v_shift;
#line 62 "templates/cuda/tensor_pages.cuh"
    uint32_t k_step[2], k_bias[2];
#line 64 "templates/cuda/tensor_pages.cuh"
} place;

// What a shuffle gives back is kept in registers, and not made again at each use.
INLINE int kept(int x) { return __shfl_sync(0xffffffffu, x, threadIdx.x % 32); }

// The same where registers are left: beside two tiles of heads, or more than four groups of a key,
// sm_75, whose products take more of them, would spill.
INLINE int kept_if_room(int x)
{
#line 80 "templates/cuda/tensor_pages.cuh"
    return kept(x);
#line 82 "templates/cuda/tensor_pages.cuh"
}

// Of a query head of a lane: the token of the step that its score x is of.
INLINE int token_of(const place& p, int x)
{
#line 90 "templates/cuda/tensor_pages.cuh"
    return 16 * p.a + 8 * p.b + p.e + 2 * (x ^ p.a);
#line 92 "templates/cuda/tensor_pages.cuh"
}

// The query head of a lane's scores, of those of a pass: of the fragment's rows g, or of its pairs
// of columns t.
INLINE int head_of(const place& p, int column) { return p.t; }

// The bit at which the code of a lane's pair j = 2 i + (h ^ a) of values is.
INLINE int value_bit(int a, int i, int h) { return 2 * (2 * i + (h ^ a)) & 7; }

// Where 16 bytes of codes go, so that the lanes of a load meet all banks.
INLINE int k_piece(int piece)
{
    const int cell = piece / 4;
#line 108 "templates/cuda/tensor_pages.cuh"
    return (piece ) ^ (cell >> 1 & 1);
#line 110 "templates/cuda/tensor_pages.cuh"
}

INLINE int v_byte(int piece) { return piece * 16 + piece / v_tile * v_pad; }

#line 119 "templates/cuda/tensor_pages.cuh"
// The addresses of a lane, of a warp whose ring and numbers are at `ring` and `numbers`: of the
// numbers of keys, of which a lane makes four at a time.
INLINE void place_keys(uint32_t ring, uint32_t numbers, place* p)
{
#pragma unroll
    for (int r = 0; r < k_rounds; ++r) {
#line 133 "templates/cuda/tensor_pages.cuh"
        const int word = (p->lane + 32 * r) % (k_numbers / 4);
        p->k_meta[r] = kept(ring + codes_bytes + word * 4);
        p->k_to[r] = kept(numbers + word * 8);
#line 137 "templates/cuda/tensor_pages.cuh"
    }
#line 143 "templates/cuda/tensor_pages.cuh"
    p->k_scales = kept_if_room(numbers + p->t * 32);
    p->k_offsets = kept_if_room(numbers + p->t * 32 + (p->g % 2 ? k_low_at : 2 * k_numbers));
#line 146 "templates/cuda/tensor_pages.cuh"
}

// Of copies and of the numbers of values.
INLINE void place_copies(uint32_t ring, uint32_t numbers, place* p)
{
    enum { k_meta_bytes = 128 };
    p->k_into = kept(ring + k_piece(p->lane) * 16);
    for (int i = 0; i < 1; ++i)
        p->v_into[i] = kept(ring + k_codes + v_byte(p->lane + i * 32));
#line 156 "templates/cuda/tensor_pages.cuh"
    p->meta_into = kept(ring + codes_bytes + p->lane * 16);
#line 160 "templates/cuda/tensor_pages.cuh"
    place_keys(ring, numbers, p);
#pragma unroll
    for (int r = 0; r < v_rounds; ++r) {
#line 164 "templates/cuda/tensor_pages.cuh"
        p->v_meta[r] = p->k_meta[r] + k_meta_bytes;
        p->v_to[r] = p->k_to[r] + v_at;
#line 171 "templates/cuda/tensor_pages.cuh"
    }
    p->v_scales = kept_if_room(numbers + v_at + p->t * 16);
#pragma unroll
    for (int i = 0; i < zero_tiles; ++i)
        p->v_offsets[i] = kept_if_room(numbers + v_at + 2 * v_numbers + p->t * 16
                                      + least_of(8 * i + p->g, value_groups) * 64);
    const uint4 ones = { 0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u };
    if (p->lane < 4) store_shared_16(numbers + ones_at + p->lane * 16, ones);
}

INLINE place place_of(uint32_t ring, uint32_t numbers)
{
    const int lane = kept(threadIdx.x % 32);
    place p = { lane, lane / 4, lane % 4, lane / 16, lane / 8 % 2, lane / 4 % 2, lane / 2 % 2,
                lane % 2 };
    place_copies(ring, numbers, &p);
#line 190 "templates/cuda/tensor_pages.cuh"
#pragma unroll
    for (int i = 0; i < 2; ++i)
        for (int h = 0; h < 2; ++h) {
            const int key = (p.a * k_cells + p.t) * k_cell + p.e * 4 + (h ^ p.a) * 8
                            + ((2 * p.b + i) ^ p.t / 2) * 16 + 0;
            for (int w = 0; w < 1; ++w) p.key[2 * i + h][w] = kept(ring + (key ^ w * 64));
            p.value_mask[i][h] = kept(0x00030003u << value_bit(p.va, i, h));
        }
#line 199 "templates/cuda/tensor_pages.cuh"
    const int value = p.g / 4 * 4 + 0 + p.g % 4;
    p.value = kept(ring + k_codes + v_byte(p.va * v_tile + value));
    p.v_shift = kept(p.vb * 8);
#line 210 "templates/cuda/tensor_pages.cuh"
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#line 213 "templates/cuda/tensor_pages.cuh"
        const uint32_t k_up = (2 * (2 * (lane % 2) + h) & 7) * 0x04000400u;
        p.k_step[h] = kept(0x24002400u + k_up);
        p.k_bias[h] = kept(0xcc8ccc8cu + k_up);
#line 217 "templates/cuda/tensor_pages.cuh"
        const int a = lane / 4 % 2, i = lane % 2;
        p.v_scale[h] = kept(high_selector(h ^ a));
        p.v_zero[h] = kept(low_selector(h ^ a));
        p.v_weight[h] = kept((15 + 3 - value_bit(a, i, h)) * 0x04000400);
    }
    return p;
}

// COPIES

// What was asked for last: rows of a page, counted as they are there.
typedef struct feed {
    const unsigned char* codes;            // of keys, middle_at after the lane's piece
    const unsigned char* meta[meta_rounds];
    const uint64_t*      table;            // at the page that comes after, if one does
    uint64_t next;
    int left;                              // steps of this page, or that are left at all
    int row, end;                          // the first row; after the last
    int codes_at, meta_at[meta_rounds], meta_step[meta_rounds];      // in a page; a step on
} feed;

#line 240 "templates/cuda/tensor_pages.cuh"
// So that offsets of all copies are small.
enum { middle_at = 896 };

// The lane's place before row `row` of the page f->next, `in_page` of it.
INLINE void enter_page(feed* f, int lane, int row, int in_page)
{
    f->codes = (const unsigned char*)f->next + (f->codes_at + in_page / step_rows * k_codes);
    for (int r = 0; r < meta_rounds; ++r) {
#line 249 "templates/cuda/tensor_pages.cuh"
        const int at = in_page / step_rows * f->meta_step[r];
#line 255 "templates/cuda/tensor_pages.cuh"
        f->meta[r] = (const unsigned char*)f->next + (f->meta_at[r] + at);
    }
    const int rows = f->end - row;
    f->left = least_of(page_size - in_page, rows) / step_rows;
    f->table += rows > page_size - in_page;
    f->next = *f->table;
}

INLINE void start_feed(feed* f, const kvl__device_seq* s, int head, int row, int end, int lane)
{
    const int at = head * (keys_bytes + values_bytes);
    f->row = row;
    f->end = end;
    f->codes_at = kept(at + middle_at + lane * 16 - k_codes);
    for (int r = 0; r < meta_rounds; ++r) {
        enum { ks = 4, kz = 4, vs = 4 };
        const int piece = lane + 32 * r, of_k = piece < ks + kz;
        const int is_zero = of_k ? piece >= ks : piece >= ks + kz + vs;
        const int i = piece - (of_k ? is_zero * ks : ks + kz + is_zero * vs);
#line 279 "templates/cuda/tensor_pages.cuh"
        enum { k_step_bytes = 64 };
        const int k_meta = (is_zero ? k_zeros_at : k_scales_at) + i * 16;
#line 282 "templates/cuda/tensor_pages.cuh"
        enum { of_group = 2 };          // of values, a step
        const int v_meta = (is_zero ? v_zeros_at : v_scales_at)
                           + i / of_group * (page_size * 1) + i % of_group * 16;
        f->meta_step[r] = kept(of_k ? k_step_bytes : 32);
        const int before = f->meta_step[r];
        f->meta_at[r] = kept(at + (of_k ? k_meta : keys_bytes + v_meta) - before);
    }
    f->left = 0;
    if (row >= end) return;
    f->table = (const uint64_t*)s->table + (row / page_size - (int)s->first_page);
    f->next = *f->table;
    enter_page(f, lane, row, row % page_size);
}

// Whether the group of keys that a row is in has not been read by this warp.
INLINE bool is_fresh(int row, int first) { return row == first || row % 32 == 0; }

// Asks for the bytes of the step at `row`, into the stage at offset `to`.
INLINE void ask(feed* f, const place& p, int head, int row, uint32_t to)
{
    if (f->left == 0) {
        if (row >= f->end) return;
        enter_page(f, p.lane, row, 0);
    }
    --f->left;
    f->codes += k_codes;
#line 316 "templates/cuda/tensor_pages.cuh"
    copy_16<0, -896>(p.k_into + to, f->codes);
#line 321 "templates/cuda/tensor_pages.cuh"
    copy_16<0, 384>(p.v_into[0] + to, f->codes);
#line 323 "templates/cuda/tensor_pages.cuh"
#pragma unroll
    for (int r = 0; r < meta_rounds; ++r) {
        const int piece = p.lane + 32 * r;
        bool wanted = meta_pieces % 32 == 0 || piece < meta_pieces;
#line 331 "templates/cuda/tensor_pages.cuh"
        f->meta[r] += f->meta_step[r];
#line 333 "templates/cuda/tensor_pages.cuh"
        if (wanted) copy_16<0, 0>(p.meta_into + 512 * r + to, f->meta[r]);
#line 338 "templates/cuda/tensor_pages.cuh"
    }
}

// NUMBERS: scales, and offsets: scales times zeros, which are in units of the scale.  Those of keys
// are 2^(bit - 3) times, bit that of the code that they are for, in the exponents of step and bias.

#line 347 "templates/cuda/tensor_pages.cuh"
INLINE uint32_t k_zeros(uint32_t word, uint32_t selector, uint32_t step,
                                      uint32_t bias)
{
    const uint32_t x = pair_of_i8(word, selector);
#line 354 "templates/cuda/tensor_pages.cuh"
    return pair_mul_add(x, step, bias);
#line 356 "templates/cuda/tensor_pages.cuh"
}

#line 347 "templates/cuda/tensor_pages.cuh"
INLINE uint32_t v_zeros(uint32_t word, uint32_t selector, uint32_t step,
                                      uint32_t bias)
{
    const uint32_t x = pair_of_i8(word, selector);
#line 354 "templates/cuda/tensor_pages.cuh"
    return pair_mul_add(x, step, bias);
#line 356 "templates/cuda/tensor_pages.cuh"
}

#line 360 "templates/cuda/tensor_pages.cuh"
// A mask of two tokens of a step: which of them are in [begin, end).
INLINE uint32_t seen_pair(int token, int begin, int end)
{
    return (token >= begin && token < end ? 0xffffu : 0u)
           | (token + 1 >= begin && token + 1 < end ? 0xffff0000u : 0u);
}

// Of the values of a step [group][token], those of tokens 8 b ... of a 16 as pairs in the order of
// 2 i + h, j = 2 i + (h ^ a): scales, then offsets.  Of rows that are not visible they are 0.
INLINE void read_value_numbers(const place& p, uint32_t stage, bool inside, int begin, int end)
{
#pragma unroll
    for (int r = 0; r < v_rounds; ++r) {
#line 377 "templates/cuda/tensor_pages.cuh"
        const uint32_t at = p.v_meta[r] + stage;
        const int a = p.lane / 4 % 2, token = p.lane % 8 * 4;
#line 388 "templates/cuda/tensor_pages.cuh"
        const uint32_t word = shared_4(at);
#line 390 "templates/cuda/tensor_pages.cuh"
        const uint32_t zeros = shared_4(at + v_numbers);
#line 393 "templates/cuda/tensor_pages.cuh"
        uint2 both = { pair_of_e5m3(word, p.v_scale[0]), pair_of_e5m3(word, p.v_scale[1]) };
#line 395 "templates/cuda/tensor_pages.cuh"
        if (!inside) {
            const uint32_t first = seen_pair(token + 2 * a, begin, end);
            const uint32_t second = seen_pair(token + 2 * (1 ^ a), begin, end);
            both.x &= first;
            both.y &= second;
#line 404 "templates/cuda/tensor_pages.cuh"
        }
        const uint2 scales = { pair_mul(both.x, p.v_weight[0]), pair_mul(both.y, p.v_weight[1]) };
        store_shared_8(p.v_to[r], scales);
#line 415 "templates/cuda/tensor_pages.cuh"
        const uint32_t step = 0x3c003c00u, bias = 0xe48ce48cu;
        const uint2 z = { v_zeros(zeros, p.v_zero[0], step, bias),
                          v_zeros(zeros, p.v_zero[1], step, bias) };
#line 419 "templates/cuda/tensor_pages.cuh"
        const uint2 offsets = { pair_mul(both.x, z.x), pair_mul(both.y, z.y) };
        store_shared_8(p.v_to[r] + 2 * v_numbers, offsets);
    }
}

// Four registers of a lane.
typedef struct pair4 {
    uint32_t of[4];
} pair4;

INLINE pair4 pairs_of(uint4 x)
{
    const pair4 p = { { x.x, x.y, x.z, x.w } };
    return p;
}

INLINE pair4 load_pairs(uint32_t at) { return pairs_of(shared_16(at)); }

// QUERIES

// Of each head at most 1 in magnitude, times 2^-bit of the codes that they meet, in two parts of
// which the first has 7 bits.  Where heads are rows a lane has both parts of head 8 c + g, in rows
// g and g + 8: of pairs 2 m and 2 m + 1 four registers, first factors.  Else part g % 2 of head
// g / 2, in column g: of pairs 4 m, 4 m + 2, then 4 m + 1, 4 m + 3 two registers, second factors.
#line 447 "templates/cuda/tensor_pages.cuh"
typedef struct queries {
#line 449 "templates/cuda/tensor_pages.cuh"
    uint4 of[columns][spans][quads];
#line 451 "templates/cuda/tensor_pages.cuh"
    uint32_t shared[columns];                  // of the lane, else
#line 455 "templates/cuda/tensor_pages.cuh"
    float up[columns];                         // what a head's were divided by
} queries;

// The 16 bytes of a lane, behind those that it has of other copies and spans.
INLINE int query_at(int copy, int span, int quad)
{
    return ((copy * spans + span) * quads + quad) * 512;
}

// Rounds a lane's channels of a span times `down` to two parts, in the order of fragments.  Returns
// the sum of what is rounded.
INLINE float split_queries(const float* from, float down, const place& p, uint4* to)
{
    uint32_t high[8], low[8];
    float sum = 0.0f;
#pragma unroll
    for (int m = 0; m < 8; ++m) {
        const float by = down * float_of((uint32_t)(127 - (2 * m & 7)) << 23);
        const float2 two = *(const float2*)(from + 2 * m);
        const float y = two.x * by, z = two.y * by;
        sum += two.x * down + two.y * down;
        high[m] = pair_of(float_of(bits_of(y) & 0xfffe0000u), float_of(bits_of(z) & 0xfffe0000u));
        low[m] = pair_of(y - f32_of_f16(high[m] & 0xffffu), z - f32_of_f16(high[m] >> 16));
#line 479 "templates/cuda/tensor_pages.cuh"
        if (p.g % 2) high[m] = low[m];
#line 481 "templates/cuda/tensor_pages.cuh"
    }
#pragma unroll
    for (int m = 0; m < quads; ++m) {
#line 487 "templates/cuda/tensor_pages.cuh"
        const uint4 quad = { high[4 * m], high[4 * m + 2], high[4 * m + 1], high[4 * m + 3] };
#line 489 "templates/cuda/tensor_pages.cuh"
        to[m] = quad;
    }
    return sum;
}

#line 519 "templates/cuda/tensor_pages.cuh"

INLINE void load_fragments(const kvl__device_attend& a, int query, int head, int first_head,
                           const place& p, unsigned char* shared, queries* q)
{
    enum { copies = 1, plain = 0 };
#pragma unroll
    for (int column = 0; column < columns; ++column) {
        const int h = first_head + p.g / 2;
        const int of = least_of(h, num_heads - 1);
        const int64_t row = (query * (int64_t)gridDim.y + head) * num_heads + of;
        const float* from = (const float*)a.prepared + row * a.query_floats + plain * head_dim_k;
#line 531 "templates/cuda/tensor_pages.cuh"
        q->shared[column] = shared_address(shared) + p.g * 64 + p.t * 16;
        float top = 0.0f;
#pragma unroll 1
        for (int i = p.t * 4; i < copies * head_dim_k; i += 16) {
            const float4 x = *(const float4*)(from + i);
            top = most(top, most(most(absolute(x.x), absolute(x.y)),
                                 most(absolute(x.z), absolute(x.w))));
        }
        top = most(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = most(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const uint32_t exponent = bits_of(top) >> 23;
        // Beyond 2^125 no power of two does: the result is not finite, and is made in floats.
        const float down = h >= num_heads ? 0.0f : exponent < 2u ? 1.0f
                           : float_of(exponent < 252u ? (253u - exponent) << 23 : 0x7fc00000u);
        q->up[column] = exponent < 2u ? 1.0f : float_of((exponent + 1u) << 23);
#line 550 "templates/cuda/tensor_pages.cuh"
#pragma unroll
        for (int copy = 0; copy < copies; ++copy)
#pragma unroll
            for (int y = 0; y < spans; ++y) {
                uint4 to[quads];
                const float sum = split_queries(from + copy * head_dim_k + y * 64 + p.t * 16, down, p, to);
#line 559 "templates/cuda/tensor_pages.cuh"
                (void)sum;
#line 562 "templates/cuda/tensor_pages.cuh"
                // Through shared memory they come to registers that lie side by side.
                for (int m = 0; m < quads; ++m) {
                    const uint32_t at = p.k_into - k_piece(p.lane) * 16 + p.lane * 16;
                    store_shared_16(at, to[m]);
                    q->of[column][y][m] = shared_16(at);
                }
#line 574 "templates/cuda/tensor_pages.cuh"
            }
#line 578 "templates/cuda/tensor_pages.cuh"
    }
}

INLINE pair4 query_pairs(const queries& q, int copy, int column, int span, int quad)
{
#line 584 "templates/cuda/tensor_pages.cuh"
    return pairs_of(q.of[column][span][quad]);
#line 588 "templates/cuda/tensor_pages.cuh"
}

// STEPS

// The pair m of 8 of the channels of a lane's words, in the low bits of halves.
INLINE uint32_t k_pick(const uint32_t* word, int m)
{
#line 596 "templates/cuda/tensor_pages.cuh"
    return word[0] >> m / 4 * 8 & 0x00030003u << m % 4 * 2;
#line 600 "templates/cuda/tensor_pages.cuh"
}

// The pairs j = 2 i + (h ^ va) of tokens of a lane's word.
INLINE uint32_t v_pick(uint32_t word, const place& p, int i, int h)
{
#line 606 "templates/cuda/tensor_pages.cuh"
    return word >> p.v_shift & p.value_mask[i][h];
#line 610 "templates/cuda/tensor_pages.cuh"
}

#line 615 "templates/cuda/tensor_pages.cuh"
#line 1 "templates/cuda/tensor_channel_keys.cuh"
// tensor_channel_keys.cuh -- numbers and scores of keys whose groups are tokens of a channel.
//
// Scales multiply the query's fragment: the product of its first part with a scale of 4 significant
// bits is exact.  Offsets are first factors of products of their own, with queries as they are.

#line 8 "templates/cuda/tensor_channel_keys.cuh"

// Of a group of keys: scales as pairs [channel], offsets, and what offsets lack for being f16.
INLINE void read_key_numbers(const place& p, uint32_t stage)
{
#pragma unroll
    for (int r = 0; r < k_rounds; ++r) {
#line 18 "templates/cuda/tensor_channel_keys.cuh"
        const uint32_t at = p.k_meta[r] + stage;
#line 22 "templates/cuda/tensor_channel_keys.cuh"
        const uint32_t word = shared_4(at);
#line 24 "templates/cuda/tensor_channel_keys.cuh"
        const uint2 both = { pair_of_e5m3(word, high_selector(0)), pair_of_e5m3(word, high_selector(1)) };
#line 26 "templates/cuda/tensor_channel_keys.cuh"
        store_shared_8(p.k_to[r], both);
#line 37 "templates/cuda/tensor_channel_keys.cuh"
        const uint32_t zeros = shared_4(at + k_numbers);
        const uint2 z = { k_zeros(zeros, low_selector(0), p.k_step[0], p.k_bias[0]),
                          k_zeros(zeros, low_selector(1), p.k_step[1], p.k_bias[1]) };
#line 41 "templates/cuda/tensor_channel_keys.cuh"
        const uint2 offsets = { pair_mul(both.x, z.x), pair_mul(both.y, z.y) };
        const uint2 low = { pair_mul_sub(both.x, z.x, offsets.x),
                            pair_mul_sub(both.y, z.y, offsets.y) };
        store_shared_8(p.k_to[r] + 2 * k_numbers, offsets);
        store_shared_8(p.k_to[r] + k_low_at, low);
    }
}

// The bases that a lane's channels 64 y + 16 t ... of a group are in.
INLINE void read_basis(const unsigned char* meta, const place& p, int* basis)
{
    for (int y = 0; y < spans; ++y) basis[y] = 0;
#line 62 "templates/cuda/tensor_channel_keys.cuh"
}

// The products of 16 channels of a group, 64 y + 16 t ..., with codes and with offsets.
#line 87 "templates/cuda/tensor_channel_keys.cuh"
// Offsets are right in rows g for pairs 0 and 2 of four, in rows g + 8 for pairs 1 and 3; in even
// rows, and what they lack in odd ones.
INLINE void multiply_keys(const uint32_t (*word)[1], int m, pair4 q, const pair4* scales,
                          const pair4* offsets, float (*s)[4], float (*zero)[4])
{
    const pair4 z = offsets[m];
#pragma unroll
    for (int v = 0; v < 2; ++v) {
        const int first = 4 * m + v, second = first + 2;
        const uint32_t b0 = pair_mul(q.of[2 * v], scales[m].of[v]);
        const uint32_t b1 = pair_mul(q.of[2 * v + 1], scales[m].of[v + 2]);
        multiply(zero[v], z.of[0], z.of[1], z.of[2], z.of[3], q.of[2 * v], q.of[2 * v + 1]);
#pragma unroll
        for (int i = 0; i < 2; ++i)
            multiply(s[i], k_pick(word[2 * i], first), k_pick(word[2 * i + 1], first),
                     k_pick(word[2 * i], second), k_pick(word[2 * i + 1], second), b0, b1);
    }
}
#line 106 "templates/cuda/tensor_channel_keys.cuh"

// The scores of a step, without softmax's factors: 2^21 s + zero.
INLINE void score_step(const place& p, uint32_t stage, const queries& q, const int* basis,
                       float (*s)[scores], float* zero)
{
    float sums[columns][scores / 2][4], zeros[columns][2][4];
    for (int c = 0; c < columns; ++c)
        for (int r = 0; r < 4; ++r) {
            zeros[c][0][r] = zeros[c][1][r] = 0.0f;
            for (int f = 0; f < scores / 2; ++f) sums[c][f][r] = 0.0f;
        }
#pragma unroll
    for (int y = 0; y < spans; ++y) {
        const uint32_t at = p.k_scales + y * 128, offset = p.k_offsets + y * 128;
        const pair4 scales[2] = { load_pairs(at), load_pairs(at + 16) };
        const pair4 offsets[2] = { load_pairs(offset), load_pairs(offset + 16) };
        uint32_t word[4][1];
#pragma unroll
        for (int f = 0; f < 4; ++f)
            for (int w = 0; w < 1; ++w)
                word[f][w] = shared_4(p.key[f][w] + stage + y * 4 * k_cell);
#pragma unroll
        for (int c = 0; c < columns; ++c)
#pragma unroll
            for (int m = 0; m < quads; ++m)
                multiply_keys(word, m, query_pairs(q, basis[y], c, y, m), scales, offsets, sums[c],
                              zeros[c]);
    }
    // Parts are in rows g and g + 8, or in columns 2 t and 2 t + 1.
#line 137 "templates/cuda/tensor_channel_keys.cuh"
#pragma unroll
    for (int c = 0; c < columns; ++c) {
        for (int x = 0; x < scores; ++x) s[c][x] = sums[c][x / 2][x % 2 * 2] + sums[c][x / 2][x % 2 * 2 + 1];
#line 143 "templates/cuda/tensor_channel_keys.cuh"
        zero[c] = zeros[c][0][0] + zeros[c][0][1] + (zeros[c][1][2] + zeros[c][1][3]);
        zero[c] += __shfl_xor_sync(0xffffffffu, zero[c], 4);
#line 146 "templates/cuda/tensor_channel_keys.cuh"
    }
}

#line 617 "templates/cuda/tensor_pages.cuh"

// What a warp has: of the lane's query heads head_of(p, c), and outputs of heads 8 c + 2 t + r, or
// of head t, r = 0.
typedef struct partial {
    float top[columns];                // log2; of all keys of the warp
    float base[columns];               // lift - top
    uint32_t reach;                    // added to a pair of weights: signs if top is to be raised
    float out[columns][2 * outs][4];   // [r], [2 + r]: times 2^(lift + 3 - 24)
    // Of group 8 i + g, times 2^(lift + 3): [0][r] and [1][2 + r]; the sums of weights, times
    // 2^lift, in the place of group 8 i + 7 of the last i.
    float zero[columns][zero_tiles][2][4];
    float lift;
} partial;

// A score in eighths, before its factor.
INLINE float eighths_of(float s, float zero)
{
    return mul_add(s, 0x1p21f, zero);
}

// Rows outside of [begin, end) of the step are not seen.
INLINE void hide_scores(const place& p, int begin, int end, float (*s)[scores])
{
#pragma unroll
    for (int c = 0; c < columns; ++c)
        for (int i = 0; i < scores; ++i) {
            const int at = token_of(p, i);
            s[c][i] = at >= begin && at < end ? s[c][i] : hidden_score();
        }
}

// A key's score is further beyond the top so far than weights allow: a greater top.
INLINE void raise_top(const place& p, const float (*s)[scores], const float* zero,
                      const float* factor, partial* o)
{
    enum { least_apart = 4, most_apart = 16 };
#pragma unroll
    for (int c = 0; c < columns; ++c) {
        float top = s[c][0];
        for (int i = 1; i < scores; ++i) top = fmaxf(top, s[c][i]);
        top = fmaxf(o->top[c], eighths_of(top, zero[c]) * factor[c]);
        for (int d = least_apart; d <= most_apart; d *= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
        const float shrink = power_of_two(o->top[c] - top);
        o->top[c] = top;
        o->base[c] = o->lift - top;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#line 666 "templates/cuda/tensor_pages.cuh"
            const float by = __shfl_sync(0xffffffffu, shrink, p.t);
            for (int i = 0; i < 2 * outs; ++i) o->out[c][i][r] *= by;
            for (int i = 0; i < 2 * zero_tiles; ++i) o->zero[c][i / 2][i % 2][r] *= by;
        }
    }
}

// Weights of a step's scores as pairs.  Returns whether the sign bits of a pair say that one of the
// lane is too great.
INLINE bool weigh_scores(const float* factor, const float (*s)[scores], const float* zero,
                         const partial& o, uint32_t (*weights)[4])
{
    uint32_t beyond = 0;
#pragma unroll
    for (int c = 0; c < columns; ++c) {
#line 682 "templates/cuda/tensor_pages.cuh"
        const float by = factor[c] * 0x1p21f, from = mul_add(zero[c], factor[c], o.base[c]);
        float e[scores];
        for (int i = 0; i < scores; ++i) e[i] = power_of_two(mul_add(s[c][i], by, from));
        for (int f = 0; f < 4; ++f) {
#line 687 "templates/cuda/tensor_pages.cuh"
            weights[c][f] = pair_of(e[f], 0.0f);
            beyond |= weights[c][f] + o.reach;
        }
    }
    return (beyond & 0x80008000u) != 0;
}

// Second factors: of columns 8 c + g, or g / 2 for even g.
INLINE void weigh_step(const place& p, const float* factor, const float (*s)[scores],
                       const float* zero, partial* o, uint32_t (*weights)[4])
{
    if (__any_sync(0xffffffffu, weigh_scores(factor, s, zero, *o, weights))) {
        raise_top(p, s, zero, factor, o);
        weigh_scores(factor, s, zero, *o, weights);
    }
#line 703 "templates/cuda/tensor_pages.cuh"
#pragma unroll
    for (int f = 0; f < 4; ++f) weights[0][f] = transposed(weights[0][f]);
#line 706 "templates/cuda/tensor_pages.cuh"
}

// Values of a step join the outputs.
INLINE void add_step(const place& p, uint32_t stage, const uint32_t (*weights)[4], partial* o)
{
    enum { wide = outs / value_groups };
#pragma unroll
    for (int tile = 0; tile < zero_tiles; ++tile) {
        const pair4 z = load_pairs(p.v_offsets[tile]);
        for (int c = 0; c < columns; ++c)
            for (int h = 0; h < 2; ++h)
                multiply(o->zero[c][tile][h], z.of[0], z.of[1], z.of[2], z.of[3], weights[c][h],
                         weights[c][2 + h]);
    }
    uint32_t b[columns][4];
#pragma unroll
    for (int x = 0; x < outs; ++x) {
        if (x % wide == 0) {
            const pair4 scales = load_pairs(p.v_scales + x / wide * 64);
            for (int c = 0; c < columns; ++c)
                for (int f = 0; f < 4; ++f) b[c][f] = pair_mul(weights[c][f], scales.of[f]);
        }
        const pair4 word = load_pairs(p.value + stage + x * 2 * v_cell);
#pragma unroll
        for (int u = 0; u < 2; ++u)
            for (int h = 0; h < 2; ++h) {
                const uint32_t a0 = v_pick(word.of[2 * u], p, 0, h);
                const uint32_t a1 = v_pick(word.of[2 * u + 1], p, 0, h);
                const uint32_t a2 = v_pick(word.of[2 * u], p, 1, h);
                const uint32_t a3 = v_pick(word.of[2 * u + 1], p, 1, h);
                for (int c = 0; c < columns; ++c)
                    multiply(o->out[c][2 * x + u], a0, a1, a2, a3, b[c][h], b[c][2 + h]);
            }
    }
}

// RESULTS

// Whether all that a lane has is finite, a top too.  That alone may tell: of scores beyond float32
// the top is +inf, and each weight is 0.
INLINE bool is_finite(const partial& o)
{
    float size = 0.0f;                 // infinite or no number if one of them is: 0 x + size
#pragma unroll
    for (int c = 0; c < columns; ++c) {
        size = mul_add(0.0f, o.top[c], size);
        for (int r = 0; r < 4; ++r) {
            for (int i = 0; i < 2 * outs; ++i) size = mul_add(0.0f, o.out[c][i][r], size);
            for (int i = 0; i < zero_tiles; ++i)
                size = mul_add(0.0f, o.zero[c][i][r / 2][r], size);
        }
    }
    return size == 0.0f;
}

// The sum of a head's weights, times 2^lift, in the lanes of g = 7.
INLINE float sum_of_weights(const partial& o, int c, int r)
{
    return o.zero[c][zero_tiles - 1][0][r] + o.zero[c][zero_tiles - 1][1][r + 2];
}

// Whether each head of a lane has the weight of its top.  A top beyond 2^23 is rounded by more than
// a weight can be off, and all of them may be 0.
INLINE bool has_top(const partial& o, const place& p)
{
    float least = 1e30f;
#pragma unroll
    for (int c = 0; c < columns; ++c)
        for (int r = 0; r < 1; ++r)
            least = fminf(least, sum_of_weights(o, c, r));
    return p.g != 7 || least >= power_of_two(o.lift - 1.0f);
}

// Of each warp and head.  Rows begin four banks apart.
typedef struct results {
    float top[cta_warps][8 * columns], sum[cta_warps][8 * columns];
    alignas(16) float out[cta_warps][8 * columns][head_dim_v + 4];
} results;

INLINE void store_partial(const partial& o, const place& p, results* w)
{
    const int warp = threadIdx.x / 32;
#line 789 "templates/cuda/tensor_pages.cuh"
#pragma unroll
    for (int c = 0; c < columns; ++c) {
        if (p.g == 0) w->top[warp][head_of(p, c)] = o.top[c];
#pragma unroll
        for (int r = 0; r < 1; ++r) {
            const int h = p.t;
            if (p.g == 7) w->sum[warp][h] = sum_of_weights(o, c, r);
#pragma unroll
            for (int x = 0; x < outs; ++x) {
                const int group = x / (outs / value_groups);
                const float (*zero)[4] = o.zero[c][group / 8];
                const float z = __shfl_sync(0xffffffffu, zero[0][r] + zero[1][r + 2],
                                            group % 8 * 4 + p.t);
                const float4 four = { mul_add(o.out[c][2 * x][r], 0x1p24f, z),
                                      mul_add(o.out[c][2 * x][r + 2], 0x1p24f, z),
                                      mul_add(o.out[c][2 * x + 1][r], 0x1p24f, z),
                                      mul_add(o.out[c][2 * x + 1][r + 2], 0x1p24f, z) };
                *(float4*)&w->out[warp][h][x * 32 + p.g * 4] = four;
            }
        }
    }
}

// The part's result, of all warps: of query heads from first_head on.
INLINE void store_results(const kvl__device_attend& a, int query, int head, int first_head,
                          int part, float lift, const results& w)
{
    const int64_t first = (query * (int64_t)gridDim.y + head) * num_heads + first_head;
    const int heads = least_of(num_heads - first_head, 3);
    float* to = (float*)a.o_part + (first * a.parts + part) * head_dim_v;
#pragma unroll 1
    for (int i = threadIdx.x; i < heads * head_dim_v; i += cta_threads) {
        const int h = i / head_dim_v, channel = i % head_dim_v;
        float top = w.top[0][h], sum = 0.0f, out = 0.0f;
        for (int warp = 1; warp < cta_warps; ++warp) top = most(top, w.top[warp][h]);
        for (int warp = 0; warp < cta_warps; ++warp) {
            const float share = power_of_two(w.top[warp][h] - top);
            sum = mul_add(share, w.sum[warp][h], sum);
            out = mul_add(share, w.out[warp][h][channel], out);
        }
        to[h * (int64_t)a.parts * head_dim_v + channel] = __fdividef(out, sum * 8.0f);
        if (channel > 0) continue;
        float lse = (top - lift) * 0.693147181f + logf(sum);
#line 835 "templates/cuda/tensor_pages.cuh"
        ((float*)a.lse_part)[(first + h) * a.parts + part] = lse;
    }
}

// IN FLOATS, a query head and a value after the other: whatever 16 bits cannot hold.  It is seldom
// wanted, so that little code matters more than time.

INLINE float score_by_floats(const kvl__device_attend& a, const unsigned char* keys, int lane,
                             const float* q, float bias, float slope, int distance)
{
    float sum = 0.0f;
#line 849 "templates/cuda/tensor_pages.cuh"
#pragma unroll 1
    for (int at = 0; at < head_dim_k; ++at) {
        uint32_t code;
#line 853 "templates/cuda/tensor_pages.cuh"
        sum = mul_add(q[0 + at], k_read_value(keys, lane, at, &code), sum);
    }
    sum += bias;
    if (a.soft_cap > 0.0f) sum = a.soft_cap * tanhf(__fdividef(sum, a.soft_cap));
    return mul_add(slope, (float)distance, sum);
}

INLINE void add_by_floats(const kvl__device_seq* s, int head, int strip, int begin, int end,
                          const float* weights, float* out)
{
#pragma unroll 1
    for (int row = most_of(strip, begin); row < strip + cta_threads && row < end; ++row)
#pragma unroll
        for (int i = 0; i < each; ++i) {
            uint32_t code;
            const int channel = i * cta_threads + threadIdx.x;
            if (channel >= head_dim_v) continue;
            const float x = v_read_value(page_at(s, row / page_size, head, 1), row % page_size,
                                         channel, &code);
            out[i] = mul_add(weights[row - strip], x, out[i]);
        }
}

INLINE void attend_by_floats(const kvl__device_attend& a, const kvl__device_seq* s, int query,
                             int head, int part, int begin, int end, int64_t position,
                             float* scores)
{
    const int64_t first = (query * (int64_t)gridDim.y + head) * num_heads;
#pragma unroll 1
    for (int h = 0; h < num_heads; ++h) {
        const float* q = (const float*)a.prepared + (first + h) * a.query_floats
                         + 0 * head_dim_k;
        const float bias = 0.0f;
        const float slope = a.slopes ? ((const float*)a.slopes)[head * num_heads + h] : 0.0f;
        float top = hidden_score(), sum = 0.0f, out[each] = { 0.0f };
#pragma unroll 1
        for (int strip = begin / 16 * 16; strip < end; strip += cta_threads) {
            const int row = strip + threadIdx.x;
            const float score = row < begin || row >= end ? hidden_score()
                : score_by_floats(a, page_at(s, row / page_size, head, 0), row % page_size, q, bias,
                                  slope, (int)(row + a.windows.sink_len - position));
            float higher = top, more = 0.0f;
            scores[threadIdx.x] = score;
            __syncthreads();
#pragma unroll 1
            for (int i = 0; i < cta_threads; ++i) higher = most(higher, scores[i]);
            __syncthreads();
            scores[threadIdx.x] = expf(score - higher);
            __syncthreads();
#pragma unroll 1
            for (int i = 0; i < cta_threads; ++i) more += scores[i];
            const float shrink = expf(top - higher);
            sum = mul_add(sum, shrink, more);
            top = higher;
            for (int i = 0; i < each; ++i) out[i] *= shrink;
            add_by_floats(s, head, strip, begin, end, scores, out);
            __syncthreads();
        }
        const int64_t at = (first + h) * a.parts + part;
        for (int i = 0; i < each; ++i)
            if (i * cta_threads + threadIdx.x < head_dim_v)
                ((float*)a.o_part)[at * head_dim_v + i * cta_threads + threadIdx.x] = out[i] / sum;
        if (threadIdx.x == 0) ((float*)a.lse_part)[at] = top + logf(sum);
    }
}

// A SPLIT

INLINE void start_partial(float lift, partial* o)
{
    // 2^(lift + 4), above which a weight is not let, is 2^15 less this as f16.
    o->lift = lift;
    o->reach = (0x8000u - ((uint32_t)(int)(lift + 4 + 15) << 10)) * 0x10001u;
    for (int c = 0; c < columns; ++c) {
        o->top[c] = hidden_score();
        o->base[c] = 1e30f;            // so that the first score that is seen raises it
        for (int r = 0; r < 4; ++r) {
            for (int i = 0; i < 2 * outs; ++i) o->out[c][i][r] = 0.0f;
            for (int i = 0; i < 2 * zero_tiles; ++i) o->zero[c][i / 2][i % 2][r] = 0.0f;
        }
    }
}

// What the steps of a warp have in common.
typedef struct warp_task {
    const kvl__device_attend* a;
    int query, head, first_head, begin, end;         // rows that are seen
    int first, plain;                  // the warp's first row; whether scores are products alone
    int64_t position;
    float factor[columns];
} warp_task;

// The soft cap and ALiBi.
INLINE void bend_scores(const warp_task& w, const place& p, int row, float (*s)[scores],
                        float* zero)
{
    const kvl__device_attend& a = *w.a;
    const float log2_e = 1.44269504f;
#line 954 "templates/cuda/tensor_pages.cuh"
#pragma unroll
    for (int c = 0; c < columns; ++c)
        for (int i = 0; i < scores; ++i) {
            const int h = least_of(w.first_head + head_of(p, c), num_heads - 1);
            const float by = w.factor[c];
            float x = eighths_of(s[c][i], zero[c]) * by * (1.0f / log2_e);
            if (a.soft_cap > 0.0f) {
#line 964 "templates/cuda/tensor_pages.cuh"
                // tanh y = 1 - 2 / (e^(2 y) + 1)
                const float e = power_of_two(x * (2.0f * log2_e / a.soft_cap));
                x = a.soft_cap - __fdividef(2.0f * a.soft_cap, e + 1.0f);
            }
            const int at = row + token_of(p, i) + a.windows.sink_len;
            if (a.slopes)
                x = mul_add(((const float*)a.slopes)[w.head * num_heads + h],
                            (float)(int)(at - w.position), x);
            s[c][i] = __fdividef(x * log2_e, by * 0x1p21f);
        }
    for (int c = 0; c < columns; ++c) zero[c] = 0.0f;
}

// The numbers of a step in a stage, as pairs.
INLINE void read_numbers(const warp_task& w, const unsigned char* ring, const place& p,
                         uint32_t stage, int row, bool inside, int* basis)
{
    if (true) {
        read_key_numbers(p, stage);
#line 984 "templates/cuda/tensor_pages.cuh"
        read_basis(ring + stage + codes_bytes, p, basis);
#line 986 "templates/cuda/tensor_pages.cuh"
    }
    read_value_numbers(p, stage, inside, w.begin - row, w.end - row);
}

// One step of 32 rows, whose numbers are read.
INLINE void take_step(const warp_task& w, const place& p, uint32_t stage, const queries& q,
                      const int* basis, int row, bool inside, partial* o)
{
    float s[columns][scores], zero[columns];
    uint32_t weights[columns][4];
    score_step(p, stage, q, basis, s, zero);
    if (!inside) {
        if (!w.plain) bend_scores(w, p, row, s, zero);
        hide_scores(p, w.begin - row, w.end - row, s);
    }
    weigh_step(p, w.factor, s, zero, o, weights);
    add_step(p, stage, weights, o);
}

// This warp's share of the steps of a split.  Returns whether it has any.
INLINE bool attend_steps(warp_task* w, const kvl__device_seq* s, const place& p, const queries& q,
                         const unsigned char* ring, partial* o)
{
    const int before = w->begin / step_rows;
    const int steps = (w->end + step_rows - 1) / step_rows - before;
    const int share = (steps + cta_warps - 1) / cta_warps, warp = threadIdx.x / 32;
    const int after = uniform((before + least_of(steps, (warp + 1) * share)) * step_rows);
    uint32_t stage = 0, stage_before = (num_stages - 1) * stage_bytes;
    int basis[spans] = { 0 };
    feed f;
    w->first = uniform((before + least_of(steps, warp * share)) * step_rows);
    // Rows of steps that are seen whole, as products alone: none where scores are bent.
    const bool some = w->plain && w->end - w->begin >= step_rows;
    const int whole = uniform(some ? w->begin : 0x40000000);
    const int last = uniform(some ? w->end - step_rows - w->begin : 0);
    start_feed(&f, s, w->head, w->first, after, p.lane);
    for (int i = 0; i < num_stages - 1; ++i) {
        ask(&f, p, w->head, w->first + i * step_rows, i * stage_bytes);
        copies_end();
    }
#pragma unroll 1
    for (int row = w->first; row < after; row += step_rows) {
        const bool inside = (uint32_t)(row - whole) <= (uint32_t)last;
        copies_wait<num_stages - 2>();
        __syncwarp();
        read_numbers(*w, ring, p, stage, row, inside, basis);
        ask(&f, p, w->head, row + (num_stages - 1) * step_rows, stage_before);
        copies_end();
        __syncwarp();
        take_step(*w, p, stage, q, basis, row, inside, o);
        stage_before = stage;
        stage = stage == (num_stages - 1) * stage_bytes ? 0 : stage + stage_bytes;
    }
    copies_wait<0>();
    return w->first < after;
}

// The query heads of a pass, those from first_head on.  Returns whether 16 bits hold them: if not,
// nothing is stored.
INLINE bool attend_heads(const kvl__device_attend& a, const kvl__device_seq* s, int query, int head,
                         int first_head, int part, int begin, int end, int64_t position,
                         const place& p, unsigned char* room)
{
    enum { of_warp = num_stages * stage_bytes + numbers_bytes };
    __shared__ int is_odd[cta_warps];
    const unsigned char* ring = room + threadIdx.x / 32 * of_warp;
    queries q;
#pragma unroll 1
    for (int attempt = 0; attempt < 2; ++attempt) {
        partial o;
        start_partial(attempt ? -7.0f : 6.0f, &o);
        load_fragments(a, query, head, first_head, p, room + cta_warps * of_warp, &q);
        __syncthreads();
        warp_task w;
        w.a = &a;
        w.query = query;
        w.head = head;
        w.first_head = first_head;
        w.begin = begin;
        w.end = end;
        w.plain = !(a.soft_cap > 0.0f || a.slopes);
        w.position = position;
#pragma unroll
        for (int c = 0; c < columns; ++c)
            w.factor[c] = 8 * 1.44269504f
                * __shfl_sync(0xffffffffu, q.up[c], p.t * 8);
        // A warp without steps has no top.  One with steps and no top has no number but NaN, or
        // scores below what a first top is raised from.
        const bool some = attend_steps(&w, s, p, q, ring, &o);
        const bool odd = __any_sync(0xffffffffu, some && !(is_finite(o) && has_top(o, p)));
        if (p.lane == 0) is_odd[threadIdx.x / 32] = odd;
        __syncthreads();
        if (!(is_odd[0] | is_odd[1] | is_odd[2] | is_odd[3])) {
            store_partial(o, p, (results*)room);
            __syncthreads();
            store_results(a, query, head, first_head, part, o.lift, *(const results*)room);
            return true;
        }
    }
    return false;
}

INLINE void attend_split(const kvl__device_attend& a, const kvl__device_seq* s, int query, int head,
                         int part, int begin, int end, int64_t position, unsigned char* room)
{
    enum { of_warp = num_stages * stage_bytes + numbers_bytes };
    const uint32_t ring_at = shared_address(room + threadIdx.x / 32 * of_warp);
#line 1104 "templates/cuda/tensor_pages.cuh"
    const place p = place_of(ring_at, ring_at + num_stages * stage_bytes);
    if (!attend_heads(a, s, query, head, 0, part, begin, end, position, p, room))
        attend_by_floats(a, s, query, head, part, begin, end, position, (float*)room);
#line 1108 "templates/cuda/tensor_pages.cuh"
}

#line 16 "templates/cuda/attend_splits.cu"

KERNEL attend_splits(const __grid_constant__ kvl__device_attend a)
{
#line 20 "templates/cuda/attend_splits.cu"
    enum { bytes = (int)sizeof(workspace) > tensor_bytes ? (int)sizeof(workspace) : tensor_bytes };
    __shared__ alignas(16) unsigned char room[bytes];
    workspace* w = (workspace*)room;
#line 27 "templates/cuda/attend_splits.cu"
    const int part = blockIdx.x, head = blockIdx.y, query = blockIdx.z;
    const kvl__device_seq* s = (const kvl__device_seq*)a.queries[query].seq;
    const visible v = see(a, query);
    const bool in_windows = part == a.parts - 1;
    const int first = (v.first_page + part * v.pages_per_split) * page_size;
    const int begin = most_of(v.page_begin, first);
    const int end = least_of(v.page_end, first + v.pages_per_split * page_size);
    if (!in_windows && part >= v.num_splits) return;       // merge_splits does not read it
#line 36 "templates/cuda/attend_splits.cu"
    if (!in_windows) {
        attend_split(a, s, query, head, part, begin, end, v.position, room);
        return;
    }
#line 42 "templates/cuda/attend_splits.cu"
    outputs o;
    start_outputs(&o);
    const float* q = load_queries(a, query, head, 0, w);
#line 46 "templates/cuda/attend_splits.cu"
    attend_windows(a, windows_of(s, a.windows, head), v, q, w, &o);
#line 51 "templates/cuda/attend_splits.cu"
    store_part(a, query, head, part, w, o);
}

