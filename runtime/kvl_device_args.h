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
