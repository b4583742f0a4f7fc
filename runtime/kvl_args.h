// kvl_args.h -- the interface between the runtime and its kernels, generated or not.
//
// This file is part of every generated program as well: an edit here changes the text of all of
// them, and with it their keys on disk.  C99 that is also C++17.
//
// A kernel works on one KV head of one layer.  num_heads is the number of query heads that share
// it. 16-bit rows are f16 or bf16, as the program was made for; `page` points at one side (keys or
// values) of one KV head's part of a page.  `tables` is that head's record of calibrated numbers
// for the side: the tables of its parts, in stage order and as a part declares them, each from a
// multiple of 16 floats on; NULL where no part has tables.

#ifndef KVL_ARGS_H
#define KVL_ARGS_H

#include <stdint.h>

enum {
    KVL__ABI = 5,
    KVL__SCRATCH_BYTES = 131072    // the most that a program may ask for a thread
};

// Rows [num_rows, head_dim] in the window, 16 bits, become the page's rows first_row ...
// first_row and num_rows are multiples of the groups that run along tokens.
typedef struct kvl__encode_args {
    const void*     codec;        // of the reference; generated kernels know theirs
    const float*    tables;
    const uint16_t* rows;         // [num_rows, row_stride]
    int64_t         row_stride;   // elements
    unsigned char*  page;         // other rows keep their bits; these take theirs over
    int32_t         page_size, first_row, num_rows;
} kvl__encode_args;

// The inverse, for rows [first_row, first_row + num_rows) of a page.
typedef struct kvl__decode_args {
    const void*          codec;
    const float*         tables;
    const unsigned char* page;
    int32_t              page_size, first_row, num_rows;
    float*               rows;      // [num_rows, head_dim] in the original basis; NULL: not asked
    uint16_t*            codes;     // [num_rows, head_dim]; NULL: not asked
    uint32_t*            choices;   // [units of the rows]: of kvl_codes; NULL: not asked
    float*               scales;    // per token [num_rows, groups of a row], per channel
    float*               offsets;   // [num_rows / group_size, head_dim]
} kvl__decode_args;

// The first num_rows rows of a page in the linear order of files (kvl_layout.h), or from it: codes
// and metadata, bit for bit.
typedef struct kvl__linear_args {
    const void*    codec;
    unsigned char* page;
    unsigned char* linear;        // as many bytes as page
    int32_t        page_size, num_rows;
    int32_t        into_page;     // 1: page is written, its other rows keep their bits; 0: linear
} kvl__linear_args;

// A stretch of 16-bit rows of one KV head: sink or tail.
typedef struct kvl__window {
    const uint16_t* k;            // [num_rows, head_dim_k], contiguous
    const uint16_t* v;            // [num_rows, head_dim_v]
    int64_t         num_rows;     // visible ones
    int64_t         position;     // of the first row, counted from the query's
} kvl__window;

// One part of the rows that num_heads queries attend to: two windows, or rows of pages.
typedef struct kvl__attend_args {
    const void*                 k_codec;
    const void*                 v_codec;
    int32_t                     num_heads, page_size;
    const float*                q;            // [num_heads, head_dim_k], times softmax_scale; of
                                              // pages as prepare_query leaves it
    const float*                bias;         // [num_heads], joins scores of pages before the cap
    // Adds to scores [num_heads, stride], before the cap, what the shift of keys took from those of
    // num rows of a page, `row` counted as first_row.  Where keys are shifted by their positions;
    // the whole score where they are turned by them; else NULL.
    void                      (*add_shifts)(void* shifts, int64_t row, int32_t num, float* scores,
                                            int64_t stride);
    void*                       shifts;
    float                       soft_cap;     // 0: none
    const float*                slopes;       // [num_heads] ALiBi's, NULL: none; times the position
                                              // of a row, counted from the query's, they are added
    int64_t                     position;     // of the first row of pages[0], counted so
    kvl__window                 windows[2];   // used if pages is NULL
    const unsigned char* const* pages;        // page contents, all heads
    int64_t                     k_offset;     // of this KV head's keys and values in a page, bytes
    int64_t                     v_offset;
    int64_t                     first_row;    // visible rows [first_row, end_row), counted from the
    int64_t                     end_row;      // first row of pages[0]
    float*                      o;            // [num_heads, head_dim_v] of the part, normalised; of
                                              // pages in the value codec's basis
    float*                      lse;          // [num_heads]; nothing visible: -inf and o = 0
    void*                       scratch;      // scratch_bytes of the program, one thread's
} kvl__attend_args;

// In place: queries [num_heads, head_dim_k] into the key codec's basis, or, where keys are in one
// of several, followed by a copy of them all for each further one; outputs
// [num_heads, head_dim_v] out of the value codec's.
typedef struct kvl__basis_args {
    const void*  codec;
    const float* tables;
    float*       x;
    float*       bias;        // of queries [num_heads], zeros: gets what the shift of keys took
                              // from their scores
    const float* mass;        // of outputs [num_heads]: the sum of the weights in x
    int32_t      num_heads;
} kvl__basis_args;

// What a program exports, as `kvl__program`.
typedef struct kvl__program {
    int32_t abi, lanes;
    int64_t k_page_bytes, v_page_bytes;       // of one KV head and one page
    int64_t scratch_bytes;
    void (*encode_keys)(const kvl__encode_args*);
    void (*encode_values)(const kvl__encode_args*);
    void (*decode_keys)(const kvl__decode_args*);
    void (*decode_values)(const kvl__decode_args*);
    void (*linear_keys)(const kvl__linear_args*);
    void (*linear_values)(const kvl__linear_args*);
    void (*attend_windows)(const kvl__attend_args*);
    void (*attend_pages)(const kvl__attend_args*);
    void (*prepare_query)(const kvl__basis_args*);
    void (*finish_output)(const kvl__basis_args*);
} kvl__program;

#endif
