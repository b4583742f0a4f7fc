// test_support.h -- what the tests of the cache share: inputs, targets, memory, float64 attention.
//
// test_support.c is the one implementation unit of a test program.  Helpers assert: a test that
// uses them reads as the sequence of what it does.  Bounds are derived where they are computed.

#ifndef TEST_SUPPORT_H
#define TEST_SUPPORT_H

#include "kvloom.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

// What runs the kernels in one pass of a test: the reference, the host at one level, or a device.
typedef struct test_target {
    const char* name;
    kvl_target  target;
    const char* isa;            // NULL: the reference
} test_target;

enum { TEST_MAX_TARGETS = 9 };

// The reference, then the levels that this processor has, best first; with KVLOOM_TEST_TARGET=cuda
// the reference, then a device.  Returns how many.
int test_targets(test_target targets[TEST_MAX_TARGETS]);

// A device: the stand-in of tests/ptxsim, or with KVLOOM_TEST_GPU=1 the machine's own.  Skips the
// test where there is no NVRTC.  `arch`, of the stand-in that a test's first call loads, is one
// that NVRTC does not know, so that PTX of the one before is made at once: sm_76, sm_81, or sm_99.
test_target test_cuda_target(void);
test_target test_cuda_target_of(const char* arch);

// The same, then each level again with kvl_context_desc.exact: their names end in " exact".
int test_attend_targets(test_target targets[TEST_MAX_TARGETS]);
int test_is_exact(const test_target* target);

// A context of a target, with num_threads threads (0: the default), asserted.
// Calls with rows in the host's memory, whatever the target: a device gets copies.
kvl_status test_call_append(kvl_cache* cache, const kvl_append_desc* desc);
kvl_status test_call_attend(kvl_cache* cache, const kvl_attend_desc* desc);
kvl_status test_call_append_attend(kvl_cache* cache, const kvl_append_desc* append,
                                   const kvl_attend_desc* attend);
kvl_status test_call_restore(kvl_cache* cache, int layer, kvl_seq seq, int64_t first, int64_t num,
                             const kvl_rows* k, const kvl_rows* v);

#ifndef KVLOOM_IMPLEMENTATION
#define kvl_append        test_call_append
#define kvl_attend        test_call_attend
#define kvl_append_attend test_call_append_attend
#define kvl_restore       test_call_restore
#endif

kvl_context* test_context(const test_target* target, int num_threads);

// Runs a function in a thread of its own, and waits for it.
void test_elsewhere(void* (*function)(void*), void* arg);

void test_ok(kvl_context* ctx, kvl_status status, const char* what);

// Inputs.  The generator and test_rows are those of tests/oracles/make_fixtures.py: integers times
// a power of two, the same in every language.
typedef struct test_lcg { uint64_t state; } test_lcg;

int  test_bell(test_lcg* lcg);                  // roughly normal, -8192 .. 8188
int  test_uniform(test_lcg* lcg, int n);        // 0 .. n - 1, n <= 4096
void test_rows(uint64_t seed, int64_t num_rows, int heads, int dim, float* out);
void test_queries(uint64_t seed, int64_t num_rows, int heads, int dim, float* out);

void* test_alloc(size_t count, size_t size);    // zeroed; asserts
float*  test_floats(int64_t count);

// 16-bit types by arithmetic, nearest ties to even, finite in finite out: not the library's code.
float    test_round_f16(float x);
float    test_round_bf16(float x);
uint16_t test_bits_f16(float x);                // x is exactly an f16
uint16_t test_bits_bf16(float x);
float    test_value_f16(uint16_t bits);
float    test_value_bf16(uint16_t bits);

// Calibrated tables without a model: any that a spec asks for, the same in every process and in
// tests/oracles/make_fixtures.py.  EMPTY has none, SPOILT has a number that is not finite in each.
typedef enum test_tables { TEST_TABLES, TEST_TABLES_EMPTY, TEST_TABLES_SPOILT } test_tables;

const kvl_calibration* test_calibration(test_tables kind);

// Rows of a model, tests/fixtures/rows_NAME.bin: k and v [num_rows, heads, dim], and the tables of
// its calibration.  They stay.
typedef struct test_recorded {
    int                    num_rows, heads, dim;
    float*                 k;
    float*                 v;
    const kvl_calibration* calibration;
} test_recorded;

test_recorded test_recorded_rows(const char* name);

// A cache of one layer, calibrated with TEST_TABLES, and a context of its own.
typedef struct test_cache {
    kvl_context*   ctx;
    kvl_cache*     cache;
    kvl_layer_desc layer;
    kvl_layer_info info;
    int            dv;          // head_dim_v, resolved
    int            rounds;      // attention may round queries and weights to 16 bits
} test_cache;

kvl_layer_desc test_layer(const char* spec, int q_heads, int kv_heads, int dk, int dv);
test_cache test_open(const test_target* target, const kvl_layer_desc* layer);
test_cache test_open_calibrated(const test_target* target, const kvl_layer_desc* layer,
                                const kvl_calibration* calibration);
test_cache test_open_threads(const test_target* target, const kvl_layer_desc* layer, int threads);
void       test_close(test_cache* c);
kvl_seq    test_seq(test_cache* c);

// A cache of one layer, calibrated on the rows that one sequence of it then holds.
typedef struct test_fitted {
    test_cache       c;
    kvl_calibration* calibration;
    kvl_seq          seq;
} test_fitted;

// rows: of one sequence, keys as many as queries; own [num_own]: derivations before the library's.
void test_fitted_open(test_fitted* b, const test_target* target, const kvl_layer_desc* layer,
                      const kvl_statistics_rows* rows, const kvl_derivation* own, int num_own);
void test_fitted_close(test_fitted* b);

// Appends rows [first, first + num) of k [*, kv_heads, dk] and v [*, kv_heads, dv].
void test_append(test_cache* c, kvl_seq seq, const float* k, const float* v, int64_t first,
                 int num);

// num_q queries at `positions` (NULL: the newest); lse may be NULL.
void test_attend(test_cache* c, kvl_seq seq, const float* q, int num_q, const int64_t* positions,
                 float* o, float* lse);

void test_restore(test_cache* c, kvl_seq seq, int64_t first, int64_t num, float* k, float* v);

// Everything that a sequence stores, as bytes: equal caches have equal hashes.
typedef struct test_state {
    kvl_seq_rows rows;
    uint64_t     codes, meta, restored;
} test_state;

test_state test_snapshot(test_cache* c, kvl_seq seq);
void test_same_state(const test_state* a, const test_state* b, const char* what);

// A cache that is refused as a bad argument, by a message with these words.
void test_no_cache(kvl_context* ctx, const kvl_cache_desc* desc, const char* words);

// What the target reads from a page of one side and one head whose first rows have these codes, in
// the linear order of files: codes [num_rows, head_dim] as kvl_read_codes has them.
void test_read_linear(test_cache* c, int is_value, const unsigned char* linear, int num_rows,
                      uint16_t* codes);

// The reference's path for y [n]: codes as they are stored, and levels.
void test_walk(const float* y, int n, int bits, int states, uint16_t* codes, uint16_t* levels);

// A file in memory, for kvl_save and kvl_load; free its data.  Stops taking bytes at `limit`, where
// that is not 0.
typedef struct test_bytes {
    unsigned char* data;
    size_t         size, room, at, limit;
} test_bytes;

int test_put_bytes(const void* from, size_t num, void* user);      // user: test_bytes*
int test_take_bytes(void* to, size_t num, void* user);

// Codes of one side of one head; free with test_codes_free.
typedef struct test_codes {
    int64_t  num, num_codes;
    kvl_codes c;
} test_codes;

test_codes test_read_codes(test_cache* c, kvl_seq seq, int head, int is_value);
void       test_codes_free(test_codes* codes);

// Attention in float64 over float rows, and how far float32 arithmetic may be from it.
typedef struct test_attention {
    const float*   q;           // [num_q, q_heads, dk]
    const float*   k;           // [kv_len, kv_heads, dk]
    const float*   v;           // [kv_len, kv_heads, dv]
    const int64_t* positions;   // [num_q]
    int            num_q, q_heads, kv_heads, dk, dv;
    int64_t        kv_len;
    double         softmax_scale, soft_cap;
    int            window_len;
    int            transformed; // some side is stored in another basis
    int            rounds;      // the bounds of 16-bit weights, 1e-3, instead of those of floats
    double*        o;           // [num_q, q_heads, dv]
    double*        lse;         // [num_q, q_heads]
    double*        o_bound;     // [num_q, q_heads] absolute
    double*        lse_bound;   // [num_q, q_heads]
} test_attention;

void test_attention_run(test_attention* a);     // allocates o, lse and the bounds
void test_attention_free(test_attention* a);
void test_attention_check(const test_attention* a, const float* o, const float* lse,
                          const char* what);

// Attends with the cache and compares with float64 over what kvl_restore returns.
void test_attend_check(test_cache* c, kvl_seq seq, const float* q, int num_q,
                       const int64_t* positions, const char* what);

// An allocator that counts, checks sizes on free, fills with 0xff and fails on request.
typedef struct test_memory {
    pthread_mutex_t lock;
    uint64_t        live, peak;         // bytes
    int64_t         calls, fail_at;     // the call that fails, counted from 1; 0: none
    int             wrong_sizes;
} test_memory;

void          test_memory_init(test_memory* m);
kvl_allocator test_memory_allocator(test_memory* m);
kvl_device_allocator test_memory_device_allocator(test_memory* m);

typedef struct test_log {
    int  count, warnings, errors;
    char text[8192];                    // all messages, one a line
} test_log;

kvl_log test_log_hook(test_log* log);

// How often `needle` is in `text`.
int test_count(const char* text, const char* needle);

#endif
