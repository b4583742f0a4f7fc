// kvloom.h -- a low-bit KV cache for inference engines: the public API and its manual.
//
// WHAT IT IS
//
// An engine hands kvloom the key and value rows of each token.  kvloom stores them at 1 to 8 bits a
// value with the method that the engine names, and computes decode attention directly on the codes.
// Kernels are written by Lua generators for one head dimension, group size, bit width and codec,
// compiled at first use by the system's C compiler, and kept on disk by configuration.  Where there
// is no compiler, everything still works on a plain C path that needs none.
//
// WHAT IT IS NOT
//
// It does not run models, rotate queries, or attend within a prompt for you: keys arrive as they
// will be dotted with queries (after RoPE), and a prompt's own attention is the engine's
// (kvl_append_attend can do it too).  It does not choose positions, schedule sequences or own
// threads beyond one pool a context.
//
// QUICK START
//
//     #define KVLOOM_IMPLEMENTATION            // in exactly one C file of the program
//     #include "kvloom.h"
//
//     kvl_context_desc cd = {0};               // zero is the default, everywhere
//     kvl_context* ctx;
//     if (kvl_context_create(&cd, &ctx)) puts(kvl_context_message(ctx));
//
//     kvl_layer_desc layer = {0};
//     layer.num_q_heads = 9;  layer.num_kv_heads = 3;  layer.head_dim = 64;
//     layer.spec = "kivi:k2,v2,g32,sink=4,recent=128";
//     kvl_cache_desc kd = {0};
//     kd.num_layers = 1;  kd.layers = &layer;
//     kvl_cache* cache;
//     kvl_cache_create(ctx, &kd, &cache);
//
//     kvl_seq seq;
//     kvl_seq_create(cache, &seq);
//     kvl_append_desc a = {0};                 // one new row of sequence `seq` in layer 0
//     a.num_seqs = 1;  a.seqs = &seq;  a.k.data = k;  a.v.data = v;
//     kvl_append(cache, &a);
//     kvl_attend_desc t = {0};
//     t.num_seqs = 1;  t.seqs = &seq;  t.q.data = q;  t.o.data = o;
//     kvl_attend(cache, &t);
//
// Needs the headers of Lua 5.4 and xxHash (liblua5.4-dev, libxxhash-dev).  Link with: -llua5.4 -lm
// -ldl -lpthread.  examples/hello.c is the same as a whole program.
//
// Before the include, in the file that defines KVLOOM_IMPLEMENTATION:
//     KVLOOM_STATIC    every function static: several copies can live in one program
//     KVLOOM_NO_LUA    no generator: liblua is not needed, generated kernels are not made
//     KVLOOM_DEBUG     checks kvloom's own invariants as well, and refuses a cache that two threads
//                      are in at once
//
// WORDS
//
//   row        the key or the value of one token in one KV head: head_dim numbers
//   group      values that share one scale (and one offset)
//   page       the unit of allocation: page_size tokens of one layer, all its KV heads
//   sink       the first sink_len tokens of a sequence, kept in 16 bits
//   tail       16-bit rows after the last quantized page: the newest recent_len tokens and the
//              unfinished chunk
//   kept row   one that was named at its append: it stays in 16 bits wherever it is
//   chunk      rows that are encoded together, when all of them have left the recent window
//   split      a part of one sequence's rows that one thread attends to
//   spec       the text that names a cache: preset and overrides (see SPECS)
//
// A sequence in one layer is [sink | quantized pages | tail].  Which rows are where depends on the
// number of tokens alone, never on how they were split into calls: with n tokens,
//
//     num_quantized = floor(max(0, n - sink_len - recent_len) / chunk_len) * chunk_len.
//
// A truncation may leave more rows quantized than that; see SEQUENCES IN AN ENGINE.
//
// SPECS
//
//     spec   = preset [ "/" preset ] [ ":" item { "," item } ]
//     item   = "k" bits | "v" bits | "b" bits | "g" size | "kg" size | "vg" size
//            | [ "k." | "v." ] stage "=" word | "sink=" n | "recent=" n | "kept=" n | "chunk=" n
//            | "page=" n | "rows=" ( "f16" | "bf16" ) | "bits=auto:" mean | size
//
// "a/b" takes the key codec of a, the value codec of b, and the longer windows of the two.  An
// item is given once; without k or v it means both sides, and a later item beats an earlier one.
// Bits are 1, 2, 3, 4, 5, 6 or 8, as far as the codec has them.  Stages, their words and the
// presets are printed by kvl_spec_help(), from the same tables that the parser reads.  A size, as
// in "loom:2.5", stands for the items that the preset has for it, at its place: items behind it may
// change them.  A page has a multiple of 16 tokens and of the chunk, at most 4096.
// bits=auto:2.25 leaves the bits of keys and values in each layer to a calibration, which chose
// them for a mean of 2.25 bits a value, metadata included (docs/transforms.md).
// Words that need calibrated numbers of the model (kvl_layer_info.needs_calibration) ask for
// kvl_cache_desc.calibration.
// Examples: "f16", "q8_0/q4_0", "kivi:k2,v2,g32", "rtn:b4,meta=f16,transform=hadamard",
// "kivi:k2,v4,v.transform=hadamard32,sink=64,recent=256".
//
// SEQUENCES IN AN ENGINE
//
// Positions are counts of rows from the beginning, and never change: what is dropped keeps its
// positions, and windows and q_positions count it.
//
// Fork.  kvl_seq_fork makes a second sequence of the same rows.  The two share everything until one
// of them writes: a page that is partly filled is then copied by whoever appends into it, and so
// are sink and tail (on a device they are copied at once), and the page table by whoever changes it
// first.  The cost does not depend on the length.  A common prefix of many prompts is one sequence
// that is forked.
//
// Truncate.  kvl_truncate(cache, seq, t) goes back to t rows, with 0 to an empty sequence.  A row
// that has left the tail keeps its code:
//   - Rows that are left and quantized stay quantized, even where a sequence that has just come to
//     t rows would have them in 16 bits.  Appending goes on after them, and the next chunk is
//     encoded when the rule above asks for more rows than are quantized.
//   - Where groups run along tokens and t cuts one, what is left of it (fewer rows than a group)
//     returns to the tail when rows follow: as kvl_restore gives it, rounded to 16 bits.  It is
//     encoded again later.
//   - kvl_cache_desc.keep_len = N holds the 16-bit rows of the newest quantized chunks beside their
//     codes, N rows rounded up to chunks.  Rows that are not due at t then return to the tail as
//     they were: every truncation down to N rows below the greatest length so far is exact.
// kvl_truncate_check says beforehand whether a truncation is exact: whether all that follows gives
// the bits of a cache that never saw the removed rows.  It is so without keep_len too, if no chunk
// was encoded since the sequence had t rows, or t <= sink_len.  `recent` alone is no slack in this
// sense: whatever it is, a chunk that has just been encoded is not undone.
//
// Prompts that begin alike.  With kvl_cache_desc.prefix_bytes, kvl_seq_remember keeps the pages of
// a prompt by its token ids, after the sequence has gone as well, and kvl_seq_begin makes a
// sequence of the longest beginning that is known: its rows need not be computed again.  Pages are
// known by all tokens before them and a salt, compared in full, not by a hash alone.  By passing
// ids, an engine says that rows of equal tokens after equal tokens are equal.
//
// Kept rows.  With kept=N in a spec, an append may name rows (kvl_append_desc.kept), at most N of a
// sequence and layer, whose keys and values stay in 16 bits: for tokens that attention leans on and
// that are no sink, as an engine finds them in a prompt.  They are encoded as all rows are, so that
// pages and row numbers do not depend on them; queries and kvl_restore read the 16-bit rows, of
// which there is room for N from the beginning.  A cut forgets those that it takes away; those that
// are dropped or released make room for others.  kvl_copy_rows keeps in its copy what was kept, if
// the spec there has kept= too.  Not with prefix_bytes, and not on target cuda.
//
// Page tables of the engine's.  With kvl_cache_desc.num_pages, every layer has so many pages from
// the beginning, and no other; an engine that has a scheduler of its own says with
// kvl_seq_set_pages which of them a sequence uses.  A page has the same number in every layer.
// kvl_pages_needed tells how many a length takes, kvl_page_uses whether one is free again.  Forks
// share pages by their numbers; before one of two appends into the page that both have as their
// last, partly filled one, it gets another number there, and kvloom copies the rows.
//
// Drop.  kvl_drop_oldest forgets the oldest rows behind the sink: no query sees them, and pages
// that hold nothing else are freed.  With a sink and a call for each appended row, text without an
// end stays within a budget.  Truncating to a row among the dropped ones is refused.
//
// Sliding windows.  A layer with a window_len keeps every row, so that a query may ask for the
// past.  With kvl_cache_desc.release_windows, pages are freed when the newest query sees none of
// their rows, nor would if keep_len rows were taken back.  A query that would see what was freed is
// refused.
//
// Several query rows.  kvl_append_attend gives each row the cache as it was at its age, equal bit
// for bit to appending and attending row by row: verification of drafts, and prefill as decoding
// would have it.
//
// Prefill in 16 bits.  With kvl_attend_desc.prefill, the queries of a kvl_append_attend read the
// rows of that call as windows hold them, in 16 bits, though they are encoded in the same call; of
// the rows before it they read what the cache held before the call, codes and windows.  A prompt
// goes in as chunks of any size: what is stored does not depend on them, nor on prefill, and
// outputs are those of attention over full rows as far back as the chunk begins.  A prompt in one
// call is read in 16 bits throughout.  The call needs memory for its rows (2 bytes a number), which
// it gives back.
//
// CALIBRATED CODECS
//
// Some words of a spec read numbers that depend on the model: kvl_layer_info.needs_calibration says
// so, and kvl_cache_create refuses them without kvl_cache_desc.calibration.  A calibration comes
// from a file that kvloom-calibrate has made (kvl_calibration_load), or from statistics of rows
// that the engine hands over, as the first rows of a prompt:
//
//     kvl_statistics* stats;                   // kvl_statistics_desc: the layers, as for the cache
//     kvl_statistics_create(ctx, &sd, &stats);
//     kvl_statistics_set_output(stats, layer, w_o, hidden_len);    // optional, before the rows
//     kvl_statistics_add(stats, &rows);        // each layer: keys, values, queries of a sequence
//     kvl_calibration* cal;
//     kvl_calibration_create(stats, &kd, &cal);    // for what the specs of a kvl_cache_desc need
//     kd.calibration = cal;
//     kvl_cache_create(ctx, &kd, &cache);      // copies what it needs
//     kvl_calibration_free(cal);  kvl_statistics_free(stats);
//
// The same rows are then appended as any others.  Some hundred rows give a mean and the scores of
// choices; transforms and feedback need linear algebra, and come from a file of kvloom-calibrate or
// from a kvl_derivation of the engine's (docs/calibration.md).  Rows are those that attention
// takes: after RoPE.  A calibration fits one model with one RoPE setting;
// it says at which context length it was made, and serves one far longer less well, which the log
// says once when a sequence has more than twice as many rows.  Shapes are
// always checked, RoPE where kvl_layer_desc.rope says it, the model where model_identity names it.
//
// NUMERICS
//
// Scores: softmax_scale * q.k, then the soft cap c * tanh(s / c), ALiBi, the mask.  lse is the
// natural logarithm of the sum of exp(score), a sink logit among the scores.  Over no rows the
// output is 0 and lse is -inf (or the sink logit), which is neutral in a merge.  Accumulation is
// float32.  Rows and queries must be finite.  Rows enter a 16-bit window first (rows=f16 by
// default): a value beyond the range of f16 is kept as the nearest finite f16 (once said through
// the log; rows=bf16 has the range of float), and codes are computed from rows as
// the window holds them.  Outputs in f16 or bf16 saturate likewise.  A group of equal values is
// exact with meta=f16.
//
// MEMORY
//
// Everything comes from the context's allocator.  kvl_estimate says beforehand, and
// kvl_cache_stats at any time, how many bytes a cache holds; the two agree to the byte.
//
// ERRORS
//
// Every function that can fail returns kvl_status; kvl_context_message(ctx) then says what, with
// the name, the value and the rule.  A call that fails leaves every object as it was.  Nothing is
// printed, nothing aborts.  Passing NULL for a context, a cache or a desc is KVL_BAD_ARGUMENT.
//
// THREADS
//
// Threads may share a context.  A cache is used by one thread at a time; different caches of one
// context may be used at once.  The message is the context's: with several threads, the last one.
// After fork() a child must not use its parent's contexts.
//
// A context starts its threads once and no call starts one.  An engine that has threads of its own
// hands them in as kvl_context_desc.parallel.  What is computed does not depend on their number.
//
// CUDA
//
// KVL_TARGET_CUDA works on one device a context; several contexts, on several devices, can live in
// one process.  libcuda is opened at run time: without it, or without a device, creation fails with
// KVL_NO_DRIVER, and a program that can do without falls back to another target by itself, since
// rows are then host memory again.  The device's primary context is used, so pointers and streams
// of the CUDA runtime are valid here; the caller's current context is as before after every call.
// After an error of a kernel (KVL_DEVICE, "lost") the process cannot use that device any more.
// Where the driver refuses a launch or a copy (KVL_NO_MEMORY, KVL_DEVICE), nothing has changed and
// the call may be repeated.  Only a call of so many rows that it takes several launches, or that
// pass a sliding window at once, may lose a sequence: that one is then refused by name, until it is
// freed.
//
// Kernels are compiled by NVRTC (CUDA 12 or later, at most the driver's major version), which is
// opened when something has to be compiled: from LD_LIBRARY_PATH, a toolkit (CUDA_PATH, CUDA_HOME,
// /usr/local/cuda), the system's folders, or the wheel nvidia-cuda-nvrtc of a Python environment.
//
// Rows k, v, q, o and lse are memory of the device; what kvl_read_codes fills is the host's.  A
// call does its work on the stream of its desc and returns at once: KVL_OK means that the work is
// in the stream.  What a cache does is in the order of its calls, whatever their streams; calls
// without a desc use the stream of the call before, or the default stream after kvl_cache_check.  A
// stream must not be destroyed before the cache's next call on another stream has returned, or
// kvl_cache_check, or kvl_cache_free.  Rows and queries must be finite, which kernels do not
// refuse: a row that is not is kept as the nearest finite one, and kvl_cache_check says so.  A
// sequence has at most 2^31 - 1 rows there.
//
// Graphs.  After kvl_prepare, kvl_append and kvl_attend can be called on a stream that is being
// captured.  They then only record their kernels, and change no count; nothing else may be called
// on the cache meanwhile.  Before each launch of the graph, every append in it is announced by the
// same desc with replay = 1 (k and v are not read) on the stream of the launch:
//
//     cuStreamBeginCapture(stream, ...);
//     kvl_append(cache, &a);  kvl_attend(cache, &t);          // of each layer
//     cuStreamEndCapture(stream, &graph);  ...
//     a.replay = 1;
//     for (each token) { kvl_append(cache, &a);  cuGraphLaunch(exec, stream); }
//
// A captured query without q_positions is the newest row at each launch.  A captured attend is
// divided into parts for as many rows as kvl_prepare was told of; sequences that have more are
// refused.  After a kvl_prepare of more rows, graphs that were captured before go on serving, up to
// the new number, in as many parts as before: one that is captured again has more of them.
// kvl_merge can be captured too, once kvl_prepare or a call of it has loaded its kernel.
//
// THE KERNEL CACHE
//
// Compiled kernels are kept in context_desc.cache_dir; NULL means KVLOOM_CACHE_DIR, else
// XDG_CACHE_HOME/kvloom, else HOME/.cache/kvloom, else memory only; "" means memory only.  The
// folder is private to the user (mode 0700), bounded in size, and may be deleted at any time.  A
// damaged entry is a miss.  The folder never fails an operation.
//
// KERNEL PACKS
//
// A deployment can do without Lua, compilers and NVRTC: kvloom-pack makes the kernels of a list of
// configurations ahead of time, for the architectures that are named, and writes them as a header,
//
//     kvloom-pack -o my_pack.h --name my_pack --target host --config "kivi:k2,v2,g32 32 8 128"
//
// whose table is given to contexts:
//
//     #include "my_pack.h"
//     const kvl_pack* packs[] = { &my_pack };
//     desc.packs = packs;  desc.num_packs = 1;
//
// Packs are looked at first, then the kernel cache, then what can make a kernel.  A pack serves the
// version of kvloom that made it; another one, a damaged entry or an architecture that it lacks are
// a miss, which the log tells.  Where nothing can make a host's kernel, a pack's one for the next
// lower instruction set takes its place, and the log says so.  A pack has the programs' texts as
// well, so that NVRTC or a compiler alone, without Lua, can serve an architecture that came later.
// examples/kernel_pack.c shows it.
//
// Environment, read once a context: KVLOOM_CACHE_DIR, KVLOOM_CACHE_MAX_MB, KVLOOM_CC (the C
// compiler), KVLOOM_ISA (forces avx512, avx512bw, avxvnni, avx2, neondot, neon or portable; avx512
// has VNNI, avx512bw has none), KVLOOM_NVRTC.  A field of the desc beats the variable.

#ifndef KVLOOM_H
#define KVLOOM_H

// The implementation needs more of the C library than ISO C: with -std=c99 this file must come
// before the library's own headers, or -D_GNU_SOURCE be given.
#if defined(KVLOOM_IMPLEMENTATION) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif

#include <stddef.h>
#include <stdint.h>

#define KVLOOM_VERSION_MAJOR 0
#define KVLOOM_VERSION_MINOR 1
#define KVLOOM_VERSION_PATCH 0
#define KVLOOM_VERSION "0.1.0"

#ifdef KVLOOM_STATIC
#if defined(__GNUC__)
#define KVL_API __attribute__((unused)) static
#else
#define KVL_API static
#endif
#else
#define KVL_API extern
#endif

#ifdef __cplusplus
extern "C" {
#endif

// STATUS

// Every status and its text, once.
#define KVL_STATUS_LIST(X) \
    X(OK,           0, "no error") \
    X(BAD_ARGUMENT, 1, "an argument is out of its range") \
    X(UNSUPPORTED,  2, "valid, but this combination cannot be served") \
    X(NO_MEMORY,    3, "the allocator returned NULL, or a byte budget is used up") \
    X(NO_DRIVER,    4, "no CUDA driver that can be used, or no device") \
    X(NO_KERNEL,    5, "no kernel for this configuration, and nothing here can make it") \
    X(GENERATE,     6, "the generator failed: a bug in it or in a codec") \
    X(COMPILE,      7, "the compiler is missing, failed or took too long") \
    X(DEVICE,       8, "the device reported an error") \
    X(FILE,         9, "a file is damaged, of another kind, or cannot be read or written")

typedef enum kvl_status {
#define KVL__STATUS_ENUM(name, value, text) KVL_##name = value,
    KVL_STATUS_LIST(KVL__STATUS_ENUM)
#undef KVL__STATUS_ENUM
    KVL__STATUS_END
} kvl_status;

// The text of a status; "unknown status" for a value that is none.
KVL_API const char* kvl_status_text(kvl_status status);

// CONTEXT

typedef struct kvl_context kvl_context;

// Both functions or neither.  alloc returns memory aligned as malloc's, or NULL; free gets the size
// that was asked for.  Called from any thread that uses the context.
typedef struct kvl_allocator {
    void* (*alloc)(size_t bytes, void* user);
    void  (*free)(void* ptr, size_t bytes, void* user);
    void*  user;
} kvl_allocator;

// Memory of a device, in the order of a stream (a CUstream).  Both functions or neither.  alloc
// returns an address that is a multiple of 256, or 0.
typedef struct kvl_device_allocator {
    uint64_t (*alloc)(size_t bytes, void* stream, void* user);
    void     (*free)(uint64_t address, size_t bytes, void* stream, void* user);
    void*    user;
} kvl_device_allocator;

typedef enum kvl_log_level { KVL_LOG_ERROR, KVL_LOG_WARNING, KVL_LOG_INFO } kvl_log_level;

// message is borrowed until the call returns; called from any thread that uses the context.
typedef struct kvl_log {
    void (*call)(kvl_log_level level, const char* message, void* user);
    void*  user;
} kvl_log;

// What runs the kernels.
typedef enum kvl_target {
    KVL_TARGET_AUTO,        // host where its kernels can be had, else reference, said to the log
    KVL_TARGET_REFERENCE,   // plain C, any shape, no generator and no compiler
    KVL_TARGET_HOST,        // generated for this processor; an error where they cannot be had
    KVL_TARGET_CUDA         // generated for an NVIDIA device; see CUDA
} kvl_target;

// A kernel pack, as kvloom-pack writes it.
enum { KVL_PACK_FORMAT = 1 };

typedef struct kvl_pack_entry {
    uint64_t             config[2];   // hash of the configuration
    uint64_t             check[2];    // hash of the bytes or the lines
    const char*          name;        // for people
    const char*          arch;        // "avx2", "sm_90", "compute_90"; "": the program's text
    const unsigned char* bytes;       // [num_bytes], of a binary
    size_t               num_bytes;
    const char* const*   lines;       // of a text; ends with NULL
} kvl_pack_entry;

typedef struct kvl_pack {
    uint32_t              format;     // KVL_PACK_FORMAT
    int32_t               host_abi, device_abi;
    const char*           version;    // KVLOOM_VERSION
    uint64_t              generator[2];
    int                   num_entries;
    const kvl_pack_entry* entries;
} kvl_pack;

// The engine's threads, in the place of a pool of the context's own.
typedef struct kvl_parallel {
    // Calls body(arg, i, thread) once for each i in [0, n), in any order, and returns when all
    // calls have; the caller sees their writes then.  thread is from 0 to num_threads - 1, and no
    // two calls at one time have the same.  One run at a time is asked for, by any thread.
    void (*run)(void* user, int64_t n, void (*body)(void* arg, int64_t i, int thread), void* arg);
    void* user;
} kvl_parallel;

typedef struct kvl_context_desc {
    kvl_target    target;
    int           num_threads;       // 0: one a processor that this process may run on; at most 256
    kvl_parallel  parallel;          // zero: the context starts num_threads - 1 threads; else
                                     // num_threads must be given
    const char*   cache_dir;         // see THE KERNEL CACHE
    uint64_t      cache_max_bytes;   // of cache_dir; 0: KVLOOM_CACHE_MAX_MB, else 256 MB
    const char*   compiler;          // NULL: KVLOOM_CC, else cc, gcc or clang on PATH
    int           compile_seconds;   // a compiler that runs longer is stopped; 0: 60
    const char*   isa;               // NULL: KVLOOM_ISA, else the best that this processor has
    int           device;            // of KVL_TARGET_CUDA: ordinal, 0 is the first
    const char*   arch;              // of KVL_TARGET_CUDA: make kernels for it without a device:
                                     // "sm_90", or PTX for "compute_90"; NULL: the device's
    const kvl_pack* const* packs;    // [num_packs], borrowed until the context is destroyed
    int           num_packs;
    const char*   nvrtc;             // NVRTC's file or folder; NULL: KVLOOM_NVRTC, else see CUDA
    int           exact;             // 1: attention in float32 throughout; 0: integer dot products
                                     // or tensor cores where kernels have them, within 1e-3 of it
    kvl_allocator allocator;         // zero: malloc and free
    kvl_device_allocator device_allocator;   // zero: the driver's own
    kvl_log       log;               // zero: silent
    uint32_t      end;               // must be 0: catches a desc that was not zeroed
} kvl_context_desc;

// Creates a context.  After a failure *out is a context that can only be asked for its message and
// destroyed, except after KVL_NO_MEMORY, where it is NULL.
// - desc is copied, strings included; the log's and the allocator's user pointers are kept.
KVL_API kvl_status kvl_context_create(const kvl_context_desc* desc, kvl_context** out);

// Frees a context.  NULL is allowed.  Its caches, statistics, calibrations and loads must be freed
// before.
KVL_API void kvl_context_destroy(kvl_context* ctx);

// The message of the last failure; "" if there was none.  Owned by the context, valid until its
// next call.
KVL_API const char* kvl_context_message(const kvl_context* ctx);

// The compiler's whole output of the last KVL_COMPILE; "" if there was none.  Owned by the context.
KVL_API const char* kvl_context_log(const kvl_context* ctx);

// Calls body(arg, i) for each i in [0, n) on the context's threads, the caller included; returns
// when all are done.  Calls from inside a body run in the calling thread.
KVL_API void kvl_parallel_for(kvl_context* ctx, int64_t n, void (*body)(void* arg, int64_t i),
                              void* arg);

KVL_API int kvl_context_threads(const kvl_context* ctx);

// CACHE

typedef struct kvl_cache kvl_cache;
typedef struct kvl_calibration kvl_calibration;     // what codecs need to know of a model

// How keys were turned before they came: position p turns pair i by p * scale * base^(-2 i / dims)
// / factors[i].
typedef struct kvl_rope {
    int          dims;          // channels that turn; 0: head_dim
    int          split_halves;  // pairs: 1: (i, i + dims / 2); 0: (2 i, 2 i + 1)
    double       base;          // 0: 10000
    double       scale;         // of positions; 0: 1
    const float* factors;       // [dims / 2]; NULL: 1
} kvl_rope;

typedef struct kvl_layer_desc {
    int         num_q_heads;     // a multiple of num_kv_heads, at most 16 times it
    int         num_kv_heads;    // 0: the layer has no cache; every other field is then ignored
    int         head_dim;        // of keys and values; 32 to 256 in steps of 16
    int         head_dim_v;      // of values where they differ; 0: head_dim
    int         values_in_keys;  // 1: a value is the first head_dim_v channels of its key, as in a
                                 // latent that both share (MLA): only keys are appended and stored,
                                 // by the spec's codec for keys; head_dim then goes up to 576
    const char* spec;            // NULL: kvl_cache_desc.spec
    float       softmax_scale;   // 0: 1 / sqrt(head_dim)
    float       soft_cap;        // 0: none
    int         window_len;      // a query sees the newest window_len rows, its own among them
    const kvl_rope* rope;        // for calibration and k.place=pre_rope; NULL: not said
    const float* sink_logits;    // [num_q_heads] a learned logit that takes its share of a head's
                                 // softmax and has no value; -inf: none.  NULL: no head has one
    const float* alibi_slopes;   // [num_q_heads] slope * (position of key - position of query) is
                                 // added to a score, after the soft cap; NULL: none
} kvl_layer_desc;

typedef struct kvl_cache_desc {
    int                   num_layers;
    const kvl_layer_desc* layers;       // [num_layers]
    const char*           spec;         // of layers that name none; NULL: "f16"
    int                   max_seqs;     // sequences at a time; 0: no bound
    int                   keep_len;     // rows that kvl_truncate takes back exactly; 0 to 65536
    int                   release_windows;  // 1: layers with a window_len free pages out of sight
    uint64_t              max_bytes;    // budget of the whole cache; 0: no bound
    uint64_t              prefix_bytes; // of these, for remembered prompts; 0: none are
    int64_t               num_pages;    // of each layer, made at creation, for page tables that the
                                        // engine hands in; 0: page tables are kvloom's own
    const kvl_calibration* calibration; // for specs with calibrated words; NULL: none.  Borrowed
                                        // until the call returns
    const char*           model_identity;   // what the calibration must say of its model, in its
                                        // text "model"; NULL: not checked
    uint32_t              end;          // must be 0
} kvl_cache_desc;

// Creates a cache: parses the specs, checks them against the shapes, makes or loads the kernels.
// - desc is copied.  *out is NULL after a failure.
// - errors: KVL_BAD_ARGUMENT (layer, field, value and rule), KVL_UNSUPPORTED, KVL_NO_MEMORY; with
//   generated kernels also KVL_NO_KERNEL, KVL_GENERATE, KVL_COMPILE; with KVL_TARGET_CUDA
//   KVL_DEVICE, and KVL_NO_DRIVER in a context of an `arch` without a device.
KVL_API kvl_status kvl_cache_create(kvl_context* ctx, const kvl_cache_desc* desc, kvl_cache** out);

// Frees a cache and its sequences.  NULL is allowed.
KVL_API void kvl_cache_free(kvl_cache* cache);

// SEQUENCES

// A sequence of one cache.  Zero is no sequence.  A freed handle is recognised and refused.
typedef uint64_t kvl_seq;

// - errors: KVL_NO_MEMORY (also: max_seqs or max_bytes is reached).
KVL_API kvl_status kvl_seq_create(kvl_cache* cache, kvl_seq* out);

// Frees a sequence's rows in all layers; pages that a fork shares stay with it.
KVL_API kvl_status kvl_seq_free(kvl_cache* cache, kvl_seq seq);

// Makes a sequence that begins with all rows of `seq`, in all layers.  Pages are shared.
// - *out is the caller's, to be freed as any sequence; 0 after a failure.
// - errors: KVL_BAD_ARGUMENT (a freed handle), KVL_NO_MEMORY (also: max_seqs or max_bytes is
//   reached); nothing has changed then.
KVL_API kvl_status kvl_seq_fork(kvl_cache* cache, kvl_seq seq, kvl_seq* out);

// PAGES OF THE ENGINE'S CHOICE

// How many pages a sequence of num_rows rows takes that was appended to only.
KVL_API kvl_status kvl_pages_needed(const kvl_cache* cache, int64_t num_rows, int64_t* num_pages);

// Hands in the page table of a sequence: page i, of its quantized rows [i * page_size, (i + 1) *
// page_size), is number pages[i] of the cache's, in every layer; -1 is none yet.  A page is taken
// when rows come to it.  An append for which there is none, or one that another sequence uses, is
// KVL_NO_MEMORY, and the message names the place.
// - pages is copied.  Pages that have rows of the sequence must be named as they are, but for a
//   partly filled last one that is shared: rows go on in a copy.  Forks begin with the same table.
// - errors: KVL_BAD_ARGUMENT, KVL_NO_MEMORY; the table is as it was then.
KVL_API kvl_status kvl_seq_set_pages(kvl_cache* cache, kvl_seq seq, const int32_t* pages,
                                     int64_t num_pages);

// How many page tables have a page with rows in it: the most of any layer.  0: it is free.
KVL_API kvl_status kvl_page_uses(const kvl_cache* cache, int32_t page, int* num);

// PROMPTS THAT BEGIN ALIKE

// Token ids, for rows that depend on them alone.
typedef struct kvl_prompt {
    const int32_t* tokens;      // [num_tokens] of rows 0, 1, ...; borrowed until the call returns
    int64_t        num_tokens;
    uint64_t       salt;        // what else rows depend on: an adapter, a picture, whose they are
    uint32_t       end;         // must be 0
} kvl_prompt;

// Makes a sequence that begins with as many rows of a prompt as are remembered: *num_rows, at most
// num_tokens - 1; 0 without prefix_bytes.  When the rest of the prompt has been appended, the
// sequence is to the bit what it would be if all of it had been, but for the rows that keep_len
// holds twice: rows that the whole prompt has in 16 bits behind its sink are not taken.
// - *out is the caller's, to be freed as any sequence; 0 after a failure.
// - errors: KVL_BAD_ARGUMENT, KVL_NO_MEMORY (also: max_seqs or max_bytes is reached); nothing has
//   changed then but what is remembered.
KVL_API kvl_status kvl_seq_begin(kvl_cache* cache, const kvl_prompt* prompt, kvl_seq* out,
                                 int64_t* num_rows);

// Remembers the first rows of a sequence, in whole pages, as those of a prompt's tokens: pages are
// shared, sinks are copied.  Pages that are remembered already replace the sequence's own.  What is
// beyond prefix_bytes, or for what there is no memory, is not remembered; what was used least
// recently is forgotten first, also when max_bytes leaves no room otherwise.
// - num_tokens: at most the rows that each layer has.
// - errors: KVL_BAD_ARGUMENT, KVL_UNSUPPORTED (rows were dropped or released).
KVL_API kvl_status kvl_seq_remember(kvl_cache* cache, kvl_seq seq, const kvl_prompt* prompt);

// CHANGES OF A SEQUENCE

// Goes back to num_rows rows in every layer; what stays quantized is told in SEQUENCES IN AN
// ENGINE.  num_rows = 0 empties the sequence.
// - errors: KVL_BAD_ARGUMENT (more rows than a layer has), KVL_UNSUPPORTED (a row among dropped
//   ones; the message has the lengths that are possible), KVL_NO_MEMORY (a page that is cut, or a
//   table that a fork shares, has to be copied); nothing has changed then.
KVL_API kvl_status kvl_truncate(kvl_cache* cache, kvl_seq seq, int64_t num_rows);

// Says what kvl_truncate to num_rows would do, and changes nothing: *exact is 1 if later appends
// and attends of the newest rows give the bits of a cache that never saw the removed rows (but
// dropped the same ones), else 0.  With num_rows = the present rows it tells the same of the
// sequence as it is.
// - errors: as kvl_truncate, but for KVL_NO_MEMORY.
KVL_API kvl_status kvl_truncate_check(const kvl_cache* cache, kvl_seq seq, int64_t num_rows,
                                      int* exact);

// Forgets num_rows more of the oldest rows after the sink, in every layer.
// - errors: KVL_BAD_ARGUMENT (a layer has fewer rows that are left after its sink), KVL_NO_MEMORY
//   (a table that a fork shares has to be copied); nothing has changed then.
KVL_API kvl_status kvl_drop_oldest(kvl_cache* cache, kvl_seq seq, int64_t num_rows);

// Where the rows of a sequence are, in one layer: rows = sink + quantized + tail.
typedef struct kvl_seq_rows {
    int64_t rows, sink, quantized, tail;
    int64_t kept;               // that stay in 16 bits because they were named, dropped ones apart
    int64_t dropped;            // the first so many after the sink are dropped or released; they
                                // count in rows, and in quantized and tail
} kvl_seq_rows;

KVL_API kvl_status kvl_seq_get_rows(const kvl_cache* cache, int layer, kvl_seq seq,
                                    kvl_seq_rows* out);

// APPEND AND ATTEND

typedef enum kvl_type { KVL_F32, KVL_F16, KVL_BF16 } kvl_type;

// A view of rows [num_rows, num_heads, head_dim] in the caller's memory; strides in elements of
// `type`, 0 meaning contiguous: head_stride = head_dim, row_stride = num_heads * head_stride.
typedef struct kvl_const_rows {
    const void* data;
    kvl_type    type;
    int64_t     row_stride, head_stride;
} kvl_const_rows;

typedef struct kvl_rows {
    void*    data;
    kvl_type type;
    int64_t  row_stride, head_stride;
} kvl_rows;

typedef struct kvl_append_desc {
    int            layer;
    int            num_seqs;
    const kvl_seq* seqs;        // [num_seqs], all different
    const int32_t* num_rows;    // [num_seqs] new rows of each sequence, 0 allowed; NULL: one each
    kvl_const_rows k;           // [sum of num_rows, num_kv_heads, head_dim], sequence by sequence
    kvl_const_rows v;           // [sum of num_rows, num_kv_heads, head_dim_v]; data NULL where
                                // values are in the keys
    const int32_t* num_kept;    // [num_seqs] how many of the new rows stay in 16 bits; NULL: none
    const int32_t* kept;        // [sum of num_kept] which, sequence by sequence: 0 is the first new
                                // row; rising; none in the sink
    void*          stream;      // of KVL_TARGET_CUDA: a CUstream; NULL: the default stream
    int            replay;      // 1: a captured append is about to be launched again; see CUDA
    uint32_t       end;         // must be 0
} kvl_append_desc;

// Appends rows to one layer of a batch of sequences, and encodes every chunk that is complete.
// - k and v are borrowed until the call returns; on target cuda until the stream has done its work.
// - errors: KVL_BAD_ARGUMENT (also: a row that is not finite, with sequence, row, head, channel; a
//   row that is kept and is none of the new ones, named twice, in the sink, or one too many; a
//   row that shift=predicted predicts from one that the layer below has not yet), KVL_NO_MEMORY,
//   KVL_DEVICE; no sequence has changed then (on target cuda see CUDA; there what is left of a
//   group that kvl_truncate has cut may be in the tail).
KVL_API kvl_status kvl_append(kvl_cache* cache, const kvl_append_desc* desc);

typedef struct kvl_attend_desc {
    int            layer;
    int            num_seqs;
    const kvl_seq* seqs;          // [num_seqs]
    const int32_t* q_lens;        // [num_seqs] query rows of each sequence, or 0; NULL: one each
    const int64_t* q_positions;   // [num_seqs] position of a sequence's first query row; NULL: its
                                  // rows are the newest, kv_len - q_len
    const int64_t* row_begins;    // [num_seqs] of the rows that a query sees by its position, only
    const int64_t* row_ends;      // those in [begin, end); NULL: all of them
    int            partial;       // 1: the result is a part, for kvl_merge: sink logits are left
                                  // out of it
    int            prefill;       // 1, of kvl_append_attend: queries read the rows of the call in
                                  // 16 bits; see SEQUENCES IN AN ENGINE
    kvl_const_rows q;             // [sum of q_lens, num_q_heads, head_dim]
    kvl_rows       o;             // [sum of q_lens, num_q_heads, head_dim_v]
    float*         lse;           // [sum of q_lens, num_q_heads], natural log; may be NULL
    void*          stream;        // of KVL_TARGET_CUDA: a CUstream; NULL: the default stream
    uint32_t       end;           // must be 0
} kvl_attend_desc;

// Attention of query rows over the rows that the cache holds.  The query row at position p sees the
// rows 0 .. min(p, kv_len - 1), and of these the newest window_len counted from p where the layer
// has a window; dropped rows it does not see.  Several query rows of one sequence read the cache as
// it is, not as it was at their age; kvl_append_attend does that.  q_positions = kv_len, before the
// append, gives attention over the past alone, to be merged with the engine's own attention within
// the new rows: kvl_merge.
// - o must not overlap q.  q, o and lse are borrowed until the call returns; on target cuda until
//   the stream has done its work.
// - errors: KVL_BAD_ARGUMENT (also: a query that would see released rows), KVL_NO_MEMORY; o and lse
//   are untouched then.
KVL_API kvl_status kvl_attend(kvl_cache* cache, const kvl_attend_desc* desc);

// For each row j: appends row j of every sequence that has one, then attends row j.  Equal bit for
// bit to those calls, without their overhead: rows between two encoded chunks go together.  With
// attend->prefill, row j sees the rows of the call up to its own in 16 bits instead, and those
// before the call as they were then.
// - attend has the append's layer, num_seqs and seqs, q_lens equal to num_rows (NULL: one each),
//   and no q_positions, row_begins or row_ends; the stream is the append's.
// - o and lse must not overlap k, v and q.
// - errors: as kvl_append and kvl_attend; no sequence has changed then, o and lse are untouched
//   unless the device has failed.
KVL_API kvl_status kvl_append_attend(kvl_cache* cache, const kvl_append_desc* append,
                                     const kvl_attend_desc* attend);

// Two results of the same queries over different rows, each o [num_rows, head_dim] f32, normalised,
// and lse [num_rows], natural log; a row is one query row of one query head.
typedef struct kvl_merge_desc {
    int64_t      num_rows;
    int          head_dim;     // of values
    const float* o_a;
    const float* lse_a;
    const float* o_b;
    const float* lse_b;
    float*       o;            // [num_rows, head_dim]; may be o_a or o_b
    float*       lse;          // [num_rows]; may be lse_a or lse_b
    const float* sink_logits;  // [num_heads] take their share of the result: given once, with the
    int          num_heads;    // last merge.  Row r belongs to head r % num_heads.  NULL: none
    void*        stream;       // of KVL_TARGET_CUDA: a CUstream; NULL: the default stream
    uint32_t     end;          // must be 0
} kvl_merge_desc;

// Joins the two into the result over all of the rows: those of two ranges, of two caches, of two
// processes.  A part with lse = -inf is empty: its o is
// not read, and the other part is copied bit for bit; two empty parts give o = 0, lse = -inf.
// - all arrays are borrowed until the call returns; on target cuda they are memory of the device,
//   borrowed until the stream has done its work, and an lse that is NaN or +inf is not noticed.
// - errors: KVL_BAD_ARGUMENT (also: an lse that is NaN or +inf), KVL_UNSUPPORTED (the stream is
//   being captured, and the kernel is not loaded: see CUDA); o and lse are untouched then.
KVL_API kvl_status kvl_merge(kvl_context* ctx, const kvl_merge_desc* desc);

// Writes rows [first, first + num) of a sequence as the cache holds them, in the original basis:
// k [num, num_kv_heads, head_dim], v [num, num_kv_heads, head_dim_v]; either data may be NULL.
// Dropped rows are refused.
KVL_API kvl_status kvl_restore(kvl_cache* cache, int layer, kvl_seq seq, int64_t first, int64_t num,
                               const kvl_rows* k, const kvl_rows* v);

// Appends rows [first, first + num) of `from_seq`, as kvl_restore gives them, to `to_seq` in every
// layer.  The two caches may be one, or have different specs and contexts; layers and shapes are
// the same.  Keys keep the positions that were rotated into them.  max_seqs counts no sequence for
// it.
// - errors: KVL_BAD_ARGUMENT (shapes that differ, rows that are not there or dropped, more rows
//   that are kept than the spec of `to` has room for), KVL_NO_MEMORY, KVL_UNSUPPORTED (keys shifted
//   by their positions, and first is not what to_seq has); to_seq is then as it was.  The message
//   is in the context of `to`.
KVL_API kvl_status kvl_copy_rows(kvl_cache* to, kvl_seq to_seq, kvl_cache* from, kvl_seq from_seq,
                                 int64_t first, int64_t num);

// FILES

// What is saved with a sequence: all borrowed until the call returns, none needed.
typedef struct kvl_save_seq {
    kvl_seq        seq;
    const int32_t* tokens;      // [num_tokens] the token ids of its rows, or what the engine wants
    int64_t        num_tokens;
    const void*    data;        // [data_bytes] the engine's own
    uint64_t       data_bytes;
} kvl_save_seq;

typedef struct kvl_save_desc {
    int                 num_seqs;   // 1 to 2^20
    const kvl_save_seq* seqs;   // [num_seqs] of one cache; pages that they share are written once
    const char*         path;   // replaced when the new file is whole; or:
    int               (*write)(const void* bytes, size_t num_bytes, void* user);  // 0: go on
    void*               user;
    uint32_t            end;    // must be 0
} kvl_save_desc;

// Writes sequences with all that the cache holds of them: codes and 16-bit rows, bit for bit.  The
// file has version, shapes and specs, and a checksum a section; any target reads it.
// - errors: KVL_BAD_ARGUMENT, KVL_NO_MEMORY, KVL_FILE (the path, and what the system says); a file
//   that was at path is untouched then.
KVL_API kvl_status kvl_save(kvl_cache* cache, const kvl_save_desc* desc);

typedef struct kvl_load_desc {
    const char* path;           // or:
    int       (*read)(void* bytes, size_t num_bytes, void* user);   // all of num_bytes: 0
    void*       user;
    int         recode;         // 1: a file of other specs is taken by way of full rows
    const int32_t* pages;       // [num_pages] free ones, taken in order, where page tables are the
    int64_t     num_pages;      // engine's; pages that sequences shared become one each
    uint32_t    end;            // must be 0
} kvl_load_desc;

typedef struct kvl_loaded_seq {
    kvl_seq  seq;               // the caller's, to be freed as any sequence
    int32_t* tokens;            // [num_tokens]
    int64_t  num_tokens;
    void*    data;              // [data_bytes]
    uint64_t data_bytes;
} kvl_loaded_seq;

// Makes sequences of a file's: they go on as the saved ones would.  *out [*num_seqs] is freed by
// kvl_loaded_free; its sequences stay.
// - with recode, rows are decoded and appended again; 16-bit rows stay what they are, quantized
//   ones are quantized a second time.
// - errors: KVL_BAD_ARGUMENT (layers, shape or spec differ from the cache's: the message has both),
//   KVL_UNSUPPORTED (another version; recoding of dropped or calibrated rows), KVL_NO_MEMORY,
//   KVL_FILE (damage, with the section); the cache is as it was then.
KVL_API kvl_status kvl_load(kvl_cache* cache, const kvl_load_desc* desc, kvl_loaded_seq** out,
                            int* num_seqs);

// As kvl_save, and then frees the rows: pages that no other sequence has, windows and tables.  The
// handles stay; until kvl_reload they can only be freed.
// - seqs: all different.  errors: as kvl_save; nothing has changed then.
KVL_API kvl_status kvl_offload(kvl_cache* cache, const kvl_save_desc* desc);

// Brings back the rows of sequences, bit for bit, from what kvl_offload wrote: all of that call's,
// in its order.  Pages that only they shared are shared again; keep_len's rows return as well.
// - on target cuda, graphs that were captured with a sequence before it left serve it no more.
// - errors: as kvl_load, KVL_BAD_ARGUMENT (another file, another order); nothing has changed then.
KVL_API kvl_status kvl_reload(kvl_cache* cache, const kvl_load_desc* desc, const kvl_seq* seqs,
                              int num_seqs);

// Frees the arrays of a load, not its sequences.  NULL is allowed.
KVL_API void kvl_loaded_free(kvl_context* ctx, kvl_loaded_seq* seqs, int num_seqs);

typedef struct kvl_file_info {
    int      version, num_layers, num_seqs;
    int64_t  num_tokens;        // of all sequences
    uint64_t data_bytes;
    char     spec[448];         // of the first layer with KV heads, canonical
} kvl_file_info;

// Says what a file holds; its rows are not read.
KVL_API kvl_status kvl_file_read_info(kvl_context* ctx, const char* path, kvl_file_info* out);

// Reads tokens and data of a file's sequences, with seq = 0, and not their rows: to choose among
// files, or to refuse one, before any memory of a cache is used.  Freed by kvl_loaded_free.
KVL_API kvl_status kvl_file_read_seqs(kvl_context* ctx, const char* path, kvl_loaded_seq** out,
                                      int* num_seqs);

// One side of the quantized rows of one KV head, by token and channel, the same on every target.
typedef struct kvl_codes {
    int       num_groups;       // pairs of scale and offset: groups of all rows asked for
    uint16_t* codes;            // [num, head_dim]; 16-bit levels: the f16 or bf16 bits; of a
                                // trellis, whose codes mean something together: the levels; of
                                // levels=pairs as many bits as the channel has; of
                                // extra=outliers channels are in the order of the sets, whose
                                // groups are two a row
                                // A value is scale * code + offset; of levels that are a codebook
                                // or small floats, scale * level
    float*    scales;           // [num_groups] as decoding uses them; per token: [num, groups of a
    float*    offsets;          // row], per channel: [num / group_size, head_dim]
    int       num_choices;      // of stage choose: units of all rows, 0 where it is none
    uint32_t* choices;          // [num_choices], a unit being group_size rows where groups run
                                // along tokens, else 1: bit p is 1 where piece p is rotated, bit 31
                                // where the whole head is
} kvl_codes;

// Reads the codes of quantized rows [first, first + num), counted from the first quantized row.
// first and num must be multiples of group_size for a side whose groups run along tokens; rows that
// end with the last quantized one may cut a group, as a truncation does, and have its scale.
// Pass out with NULL arrays to learn num_groups; arrays are the caller's.
KVL_API kvl_status kvl_read_codes(kvl_cache* cache, int layer, kvl_seq seq, int kv_head,
                                  int is_value, int64_t first, int64_t num, kvl_codes* out);

// CALIBRATION

// What is known of a model's rows: see CALIBRATED CODECS.
typedef struct kvl_statistics kvl_statistics;

typedef struct kvl_statistics_desc {
    int                   num_layers;
    const kvl_layer_desc* layers;       // [num_layers] as for a cache, and checked as there; head
                                        // dims up to 256; specs are not read
    int                   num_queries;  // sampled for each KV head; 0: 64; at most 4096
    int                   num_key_runs; // sampled runs of 128 keys; 0: 8; at most 1024
    uint64_t              seed;         // of the samples
    int                   unrotated;    // 1: keys and queries as keys before RoPE meet them, for
                                        // calibrations of k.place=pre_rope; layers must say rope
    uint32_t              end;          // must be 0
} kvl_statistics_desc;

// - desc is copied.  *out is NULL after a failure.
KVL_API kvl_status kvl_statistics_create(kvl_context* ctx, const kvl_statistics_desc* desc,
                                         kvl_statistics** out);
KVL_API void kvl_statistics_free(kvl_statistics* stats);       // NULL is allowed

// Tells the matrix that takes a layer's heads to the residual stream: w_o [output_len, num_q_heads,
// head_dim_v].  Without it, prices of errors by their effect on the output are not known.
// - w_o is borrowed until the call returns; it must come before the layer's rows.
KVL_API kvl_status kvl_statistics_set_output(kvl_statistics* stats, int layer, const float* w_o,
                                             int64_t output_len);

typedef struct kvl_statistics_rows {
    int            layer;
    uint64_t       sequence;    // a number of the caller's, another for each sequence
    int64_t        num_keys;    // rows of the sequence so far
    int64_t        num_rows;    // the newest of them, which are added; the others were, before
    kvl_const_rows k;           // [num_keys, num_kv_heads, head_dim]
    kvl_const_rows v;           // [num_keys, num_kv_heads, head_dim_v]
    kvl_const_rows q;           // [num_rows, num_q_heads, head_dim], not scaled
    uint32_t       end;         // must be 0
} kvl_statistics_rows;

// Adds rows of one layer, on the context's threads: a sequence in one call, or in several in order.
// - statistics that were loaded take no rows where they know of an output matrix, which is not in
//   the file: add rows to others, and merge those.
// - errors: KVL_BAD_ARGUMENT (also: a row that is not finite), KVL_NO_MEMORY; nothing has changed
//   then.
KVL_API kvl_status kvl_statistics_add(kvl_statistics* stats, const kvl_statistics_rows* rows);

// into += from, of the same shapes: sums add up, samples are drawn from both.  Bit for bit the same
// in every process, whatever the number of threads.
KVL_API kvl_status kvl_statistics_merge(kvl_statistics* into, const kvl_statistics* from);

// One statistic of a KV head by its name in docs/calibration.md, without "layer.<L>.stat.": *num
// numbers, matrices row by row.  NULL: no such statistic, or it is not known.  Owned by stats.
KVL_API const double* kvl_statistics_get(const kvl_statistics* stats, int layer, int kv_head,
                                         const char* name, int64_t* num);

// Samples of a KV head, in no order.  keys = 0: *num queries [head_dim + 1], times softmax_scale,
// the natural log-sum-exp of their scores behind them; keys = 1: *num runs of keys [128, head_dim].
KVL_API const float* kvl_statistics_sample(const kvl_statistics* stats, int layer, int kv_head,
                                           int keys, int* num);

// Reads the statistics of a calibration file.  Memory is in proportion to the file.
// - errors: KVL_FILE (not such a file, damaged, or saved without statistics), KVL_NO_MEMORY.
KVL_API kvl_status kvl_statistics_load(kvl_context* ctx, const char* path, kvl_statistics** out);

// Makes a calibration with the tables that the specs of a cache need (NULL: none yet), as far as
// plain arithmetic makes them; cache->model_identity becomes its text "model".
// - errors: also KVL_UNSUPPORTED (a table that needs a derivation of the caller's).
KVL_API kvl_status kvl_calibration_create(const kvl_statistics* stats, const kvl_cache_desc* cache,
                                          kvl_calibration** out);

// Reads a calibration file, but for its statistics: saved again, it has those of that call alone.
// - errors: KVL_FILE (not such a file, cut off, damaged), KVL_UNSUPPORTED (another version),
//   KVL_NO_MEMORY.
KVL_API kvl_status kvl_calibration_load(kvl_context* ctx, const char* path, kvl_calibration** out);

// NULL is allowed.  Caches that were made with it do not need it any more.
KVL_API void kvl_calibration_free(kvl_calibration* calibration);

// Writes a file, with statistics where stats is given: what was at path stays until it is whole.
// - stats must be of the layers that the calibration is of, and of keys before RoPE where those it
//   was created from were.
// - errors: KVL_BAD_ARGUMENT, KVL_FILE (cannot be written), KVL_NO_MEMORY.
KVL_API kvl_status kvl_calibration_save(kvl_calibration* calibration, const kvl_statistics* stats,
                                        const char* path);

// Texts that go along in the file, as "model".  "" where there is none of that name; valid until
// the text is set again.  "format", "statistics_of" and "hash_..." are the library's: they are not
// set.
KVL_API const char* kvl_calibration_text(const kvl_calibration* calibration, const char* name);
KVL_API kvl_status kvl_calibration_set_text(kvl_calibration* calibration, const char* name,
                                            const char* text);

// What a derivation gets: whose table, of which layer and side.
typedef struct kvl_derive_args {
    const struct kvl_derive_desc* desc;   // of the call that it is part of
    const kvl_statistics*  stats;
    const kvl_calibration* calibration;   // with the tables of earlier stages
    int         layer, is_value, num_q_heads, num_kv_heads, head_dim;
    const char* stage;          // "shift"
    const char* word;           // "mean"
    int         number;         // the word's
    const char* table;          // "mean"
    int         rank;           // of the table of one KV head: 1 or 2
    int64_t     shape[2];
    const char* side;           // the whole side as text
    const char* depends;        // what the table's name says of it: two sides that agree in this
                                // share the table, so that it may depend on nothing else
    const void* codec;          // the library's own description of it
    char*       message;        // for what is wrong, [message_bytes]
    size_t      message_bytes;
    void*       user;
} kvl_derive_args;

// How a table is made.
typedef struct kvl_derivation {
    const char* stage;          // NULL: whatever stage asks
    const char* word;           // NULL: whatever word asks
    const char* table;          // must be given, as derive
    kvl_status (*derive)(const kvl_derive_args* args, float* out);   // out [num_kv_heads, shape]
    void*       user;
} kvl_derivation;

typedef struct kvl_derive_desc {
    const kvl_statistics* stats;
    const kvl_cache_desc* cache;          // its specs say what is needed
    const kvl_derivation* derivations;    // [num_derivations] before the library's own; NULL: none
    int                   num_derivations;
    uint32_t              end;            // must be 0
} kvl_derive_desc;

// Adds the tables that the specs of a cache need and the calibration lacks.  The first derivation
// that fits makes a table.
// - stats and cache must be of the layers that the calibration is of.
// - errors: as kvl_calibration_create; tables made before the failure stay.
KVL_API kvl_status kvl_calibration_derive(kvl_calibration* calibration,
                                          const kvl_derive_desc* desc);

// A table that is there: *num numbers, [num_kv_heads, ...].  NULL: none of that name.  Valid until
// the next kvl_calibration_derive, or the calibration is freed.
KVL_API const float* kvl_calibration_table(const kvl_calibration* calibration, int layer,
                                           int is_value, const char* name, int64_t* num);

// The basis of a layer's values, for an engine that folds it into its weights.  With the spec's
// v.place=folded a cache leaves the values' transform to the model, at no cost at run time: with
// F = forward[h] and Q = query[h] of each KV head h, F Q^T = 1,
//     W_V of head h  <-  F^T W_V      (a bias b of it, as a row: b F)
//     W_O of each query head of h, [output_len, head_dim_v]  <-  W_O Q
// Values are then appended as v F, and outputs are those that the new W_O takes.  Exact; restored
// rows are v F.  Without a transform both are the identity.
// - layer: its index in the calibration; desc.spec must be given where it is not the default.
// - calibration: NULL where the transform needs none.
// - forward, query [num_kv_heads, head_dim_v, head_dim_v]: either may be NULL.
// - errors: KVL_BAD_ARGUMENT (also: the calibration has no such basis), KVL_UNSUPPORTED (values in
//   keys).
KVL_API kvl_status kvl_value_basis(kvl_context* ctx, const kvl_calibration* calibration, int layer,
                                   const kvl_layer_desc* desc, float* forward, float* query);

// ON A DEVICE

typedef struct kvl_prepare_desc {
    int      num_seqs;          // sequences at a time
    int64_t  num_rows;          // rows of each, in every layer
    uint32_t end;               // must be 0
} kvl_prepare_desc;

// Makes pages ready for num_seqs sequences of num_rows rows.  Appends and attends of sequences that
// are created afterwards take no memory up to there, and can be captured into a graph; see CUDA.
// Call it again for more.  Loads the kernel of kvl_merge as well, where one can be had.
// - errors: KVL_BAD_ARGUMENT, KVL_NO_MEMORY, KVL_DEVICE, KVL_UNSUPPORTED (the cache is not of
//   target cuda).
KVL_API kvl_status kvl_prepare(kvl_cache* cache, const kvl_prepare_desc* desc);

// Waits for what the cache has on its stream, and says what kernels found: KVL_BAD_ARGUMENT if rows
// that were appended since the last check were not finite, KVL_DEVICE after an error of a kernel.
// On targets without a device there is nothing to check.  Streams of earlier calls may be destroyed
// afterwards.
KVL_API kvl_status kvl_cache_check(kvl_cache* cache);

// 1: the context is of target cuda and has its device.
KVL_API int kvl_context_has_device(const kvl_context* ctx);

// Memory of the device, for programs without CUDA of their own.
// - errors: KVL_UNSUPPORTED (the context has no device), KVL_NO_MEMORY, KVL_DEVICE.
KVL_API kvl_status kvl_device_alloc(kvl_context* ctx, uint64_t bytes, void** out);

// Frees it after what the default stream has to do.  NULL is allowed.
KVL_API void kvl_device_free(kvl_context* ctx, void* ptr, uint64_t bytes);

// Copies from the host to the device, or back, in the order of the default stream.  Both wait for
// the device: after a write `from` may be changed at once, page-locked or not.
KVL_API kvl_status kvl_device_write(kvl_context* ctx, void* to, const void* from, uint64_t bytes);
KVL_API kvl_status kvl_device_read(kvl_context* ctx, void* to, const void* from, uint64_t bytes);

// KERNELS OF THE CALLER'S OWN
//
// What an engine does beside its cache can be compiled as the library's kernels are: no toolkit is
// needed, and the kernel cache keeps it.

typedef struct kvl_kernel_desc {
    const char* name;           // of the program, for people and entries of the kernel cache:
                                // a to z, 0 to 9, - and _
    const char* text;           // CUDA C++17 that includes nothing; a * b + c is not fused unless
                                // it is written so; borrowed until the call returns
    const char* entry;          // of the kernel: extern "C" __global__ void entry(const
                                // __grid_constant__ args a)
    uint32_t    end;            // must be 0
} kvl_kernel_desc;

// A kernel (a CUfunction) of a text, compiled at first use.  It lives as long as the context.
// - errors: KVL_BAD_ARGUMENT, KVL_UNSUPPORTED (no device), KVL_COMPILE (kvl_context_log has the
//   compiler's words), KVL_NO_MEMORY, KVL_DEVICE.
KVL_API kvl_status kvl_device_kernel(kvl_context* ctx, const kvl_kernel_desc* desc, void** kernel);

typedef struct kvl_launch_desc {
    void*       kernel;
    unsigned    grid[3];        // CTAs; 0: 1
    unsigned    threads;        // of a CTA; 0: 128
    const void* args;           // the kernel's one parameter; copied
    void*       stream;         // a CUstream; NULL: the default stream
    uint32_t    end;            // must be 0
} kvl_launch_desc;

// Puts a launch into a stream.
KVL_API kvl_status kvl_device_launch(kvl_context* ctx, const kvl_launch_desc* desc);

// MEMORY AND DESCRIPTION

typedef struct kvl_stats {
    uint64_t bytes;             // held by the cache, everything included
    uint64_t peak_bytes;
    uint64_t page_bytes;        // of quantized pages in use
    uint64_t window_bytes;      // of sink and tail buffers, kept rows among them
    uint64_t other_bytes;       // tables, scratch, descriptions
    uint64_t f16_bytes;         // what the same rows take as f16, without tables
    int64_t  num_rows;          // rows x layers, without dropped ones
    int64_t  num_quantized;     // of these, in pages
    int      num_seqs;
    uint64_t saved_bytes;       // that pages would take in addition if no sequence shared any
    uint64_t prefix_bytes;      // of page_bytes: pages of remembered prompts that no sequence has
} kvl_stats;

KVL_API kvl_status kvl_cache_stats(const kvl_cache* cache, kvl_stats* out);

// The bytes that a cache of this desc holds with num_seqs sequences of num_rows rows in every
// layer, none of them forked, cut or dropped from: what kvl_cache_stats reports then.  Creates
// nothing that stays.
KVL_API kvl_status kvl_estimate(kvl_context* ctx, const kvl_cache_desc* desc, int num_seqs,
                                int64_t num_rows, uint64_t* bytes);

// Writes text that says what is active: target and why, kernels and where they came from, and for
// each layer spec, stages, bits a value of keys and values, windows, page.  Writes at most `size`
// bytes, terminated; *needed (may be NULL) is the whole length with its terminator.
KVL_API kvl_status kvl_describe(const kvl_cache* cache, char* text, size_t size, size_t* needed);

// Who brings values into the basis of stage transform, and outputs out of it.
typedef enum kvl_basis {
    KVL_BASIS_NONE,             // there is none
    KVL_BASIS_OF_CACHE,         // the cache, at each row and each output
    KVL_BASIS_FOLDED            // the model's weights: v.place=folded; see kvl_value_basis
} kvl_basis;

// What one layer's spec came to.
typedef struct kvl_layer_info {
    char   spec[448];                 // canonical: parses to the same cache
    double k_bits, v_bits;            // a value in pages: codes and metadata
    double auto_bits;                 // budget of bits=auto, where a calibration is still to choose
                                      // the bits; else 0
    int    sink_len, recent_len, kept_len, chunk_len, page_size;
    int    uses_generated;            // 1: generated kernels; 0: reference
    int    needs_calibration;         // 1: kvl_cache_desc.calibration must be given
    int    value_basis;               // a kvl_basis
} kvl_layer_info;

KVL_API kvl_status kvl_cache_layer_info(const kvl_cache* cache, int layer, kvl_layer_info* out);

// The presets, stages and words that specs are made of, as text for people.  Static.
KVL_API const char* kvl_spec_help(void);

// Checks a layer's spec against its shape without making anything.
KVL_API kvl_status kvl_spec_check(kvl_context* ctx, const kvl_layer_desc* layer,
                                  kvl_layer_info* out);

// THE KERNEL CACHE ON DISK

typedef struct kvl_disk_entry {
    char     name[160];         // readable part and hash
    uint64_t bytes;
    int64_t  age_seconds;       // since last use
    int      ok;                // 1: complete, its checksum holds
} kvl_disk_entry;

typedef enum kvl_disk_action {
    KVL_DISK_LIST,      // visits every entry; its contents are checked
    KVL_DISK_PRUNE,     // removes what is damaged or foreign; beyond max_bytes, the longest unused
    KVL_DISK_CLEAR      // removes every entry
} kvl_disk_action;

// Looks through or cleans the context's kernel cache folder.  visit (may be NULL) sees each entry
// that is listed or removed.  KVL_UNSUPPORTED where there is no folder.
KVL_API kvl_status kvl_disk(kvl_context* ctx, kvl_disk_action action, uint64_t max_bytes,
                            void (*visit)(const kvl_disk_entry* entry, void* user), void* user);

// The folder in use; "" if kernels are kept in memory only.  Owned by the context.
KVL_API const char* kvl_disk_folder(const kvl_context* ctx);

#ifdef __cplusplus
}
#endif

#endif  // KVLOOM_H

#ifdef KVLOOM_IMPLEMENTATION
#ifndef KVLOOM_IMPLEMENTATION_DONE
#define KVLOOM_IMPLEMENTATION_DONE
#include "kvl_base.h"
#include "kvl_threads.h"
#include "kvl_table.h"
#include "kvl_config.h"
#include "kvl_layout.h"
#include "kvl_record.h"
#include "kvl_trellis.h"
#include "kvl_args.h"
#include "kvl_device_args.h"
#include "kvl_ref.h"
#include "kvl_shift.h"
#include "kvl_sketch.h"
#include "kvl_turn.h"
#include "kvl_text.h"
#include "kvl_lua.h"
#include "kvl_isa.h"
#include "kvl_disk.h"
#include "kvl_pack.h"
#include "kvl_driver.h"
#include "kvl_random.h"
#include "kvl_compile.h"
#include "kvl_nvrtc.h"
#include "kvl_kernels.h"
#include "kvl_context.h"
#include "kvl_plan.h"
#include "kvl_device_memory.h"
#include "kvl_store.h"
#include "kvl_kept.h"
#include "kvl_prefix.h"
#include "kvl_settle.h"
#include "kvl_predict.h"
#include "kvl_ops.h"
#include "kvl_rope.h"
#include "kvl_tiles.h"
#include "kvl_statistics.h"
#include "kvl_pairs.h"
#include "kvl_ranges.h"
#include "kvl_tensors.h"
#include "kvl_calibration.h"
#include "kvl_derive.h"
#include "kvl_device.h"
#include "kvl_launch.h"
#include "kvl_prefill.h"
#include "kvl_sequence.h"
#include "kvl_staging.h"
#include "kvl_file.h"
#include "kvl_describe.h"
#endif
#endif
