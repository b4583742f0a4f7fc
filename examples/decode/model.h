// model.h -- runs a language model out of a GGUF file on a kvloom cache.
//
// The library behind `decode`, for programs that calibrate and evaluate as well. Families: llama,
// qwen2, qwen3 and gemma3. A model is weights and geometry: immutable, shared by sessions. A
// session is one sequence of tokens: a kvl_cache, buffers, and the rows that have been run.
//
//     model_open(path, NULL, &m, message, sizeof message);
//     model_session_desc sd = { .ctx = ctx, .spec = "kivi:k2,v2,g32" };
//     model_session_create(m, &sd, &s, message, sizeof message);
//     model_prefill(s, ids, count, logits);            // the prompt, in batches
//     while (...) { id = best_of(logits); model_step(s, id, logits); }
//
// Two ways through the same layers: prefill multiplies matrices by BLAS and attends within a batch
// on float rows, and to the past as the cache holds it; a step multiplies vectors by the quantized
// weights, appends one row and attends through the cache. Memory is bounded by the batch, not by
// the prompt.
//
// Where the context has a device (KVL_TARGET_CUDA), each session has the weights in its memory, and
// layers run there in floats; embeddings are looked up by the host.
//
// A session is used by one thread at a time; the work runs on the threads of its context. Sessions
// of one model may run at once.

#ifndef KVLOOM_DECODE_MODEL_H
#define KVLOOM_DECODE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gguf.h"
#include "kvloom.h"
#include "tokenizer.h"

typedef struct model model;
typedef struct model_session model_session;

// What the functions of a session answer. MODEL_OK is 0.
enum {
    MODEL_OK = 0,
    MODEL_FAILED,  // model_session_message says why
    MODEL_FULL,    // the context has no room for the tokens; nothing has been run
    MODEL_STOPPED  // the progress callback asked for it; whole batches have been run
};

// GEOMETRY

// Metadata first, then the fallback in parentheses; ARCH is general.architecture.
typedef struct model_layer_geometry {
    int num_q_heads;      // ARCH.attention.head_count, one value or one a layer
    int num_kv_heads;     // ARCH.attention.head_count_kv, one value or one a layer (num_q_heads)
    int head_dim;         // ARCH.attention.key_length (hidden_len / num_q_heads)
    int head_dim_v;       // ARCH.attention.value_length (hidden_len / num_q_heads)
    int ffn_len;          // ARCH.feed_forward_length, one value or one a layer
    int window_len;       // gemma3: ARCH.attention.sliding_window on all layers but each 6th, or as
                          // ARCH.attention.sliding_window_pattern says; elsewhere 0: all rows
    float softmax_scale;  // ARCH.attention.scale (1 / sqrt(head_dim))
    double rope_base;     // ARCH.rope.freq_base (10000); with a window: rope.freq_base_swa (10000)
    double rope_scale;    // of positions; 1 / ARCH.rope.scaling.factor (1); with a window: 1
} model_layer_geometry;

typedef struct model_geometry {
    const char* architecture;
    char name[128];       // general.name; "" if the file has none
    int num_layers;
    int hidden_len;
    int vocab_size;
    int rope_dims;        // channels that turn: ARCH.rope.dimension_count (head_dim)
    bool rope_halves;     // pairs (i, i + rope_dims / 2) rather than (2i, 2i + 1)
    int64_t context_len;  // that the model was trained for
    const model_layer_geometry* layers;  // [num_layers]
} model_geometry;

// MODEL

// Zero is the default.
typedef struct model_options {
    int matrix_level;  // MATRIX_BEST, or a lower instruction set, for tests
} model_options;

// Opens a file, checks that it holds what the family needs in the right shapes, and makes its
// tokenizer. Returns 0, or another value with one line in message. *out is NULL after a failure.
// options can be NULL.
int model_open(const char* path, const model_options* options, model** out, char* message,
               size_t message_bytes);
void model_close(model* m);  // can be NULL; after the last session of it

// Folds the transforms of values of some caches into a model's weights: see kvl_value_basis.
typedef struct model_fold_desc {
    kvl_context* ctx;
    const char* spec;                    // of layers that have none
    const char* const* specs;            // [num_layers], as of a session; those with v.place=folded
                                         // are folded
    const kvl_calibration* calibration;  // NULL: none
} model_fold_desc;

// Replaces W_V and W_O of those layers by matrices of floats; their sessions need the same specs
// and calibration, which is checked. Once a model, before its first session. Returns 0, or another
// value with one line in message, and the model as it was.
int model_fold(model* m, const model_fold_desc* desc, char* message, size_t message_bytes);

const model_geometry* model_get_geometry(const model* m);
const tokenizer* model_tokenizer(const model* m);
const gguf* model_file(const model* m);
const char* model_architectures(void);  // the families, as text for people

enum { MODEL_IDENTITY_BYTES = 160 };

// Names a model by "ARCHITECTURE/NAME/HASH": of its tensors' names, types, shapes and first bytes,
// and of how its positions turn.  What was saved with one identity is of no use with another.
void model_identity(const model* m, char out[MODEL_IDENTITY_BYTES]);

// Fills layers [num_layers] as a kvl_cache of this model has them, with the spec of each.
// - specs [num_layers]: borrowed; it and its entries can be NULL for the cache's default.
// - layers borrow from the model.
void model_describe_layers(const model* m, const char* const* specs, kvl_layer_desc* layers);

// SESSION

// Rows of one layer as attention takes them: after norms and RoPE, before the cache.
typedef struct model_rows {
    int layer;
    int64_t first_position;
    int64_t num_rows;
    const float* q;  // [num_rows, num_q_heads, head_dim]
    const float* k;  // [num_rows, num_kv_heads, head_dim]
    const float* v;  // [num_rows, num_kv_heads, head_dim_v]
} model_rows;

// Zero is the default. Strings and arrays are borrowed until model_session_create returns.
typedef struct model_session_desc {
    kvl_context* ctx;          // kept until model_session_free
    const char* spec;          // of layers that have none; NULL: "f16"
    const char* const* specs;  // [num_layers], entries may be NULL; NULL: spec for all
    int64_t context_len;       // the most tokens; 0: what the model was trained for
    uint64_t max_bytes;        // budget of the cache; 0: none
    const kvl_calibration* calibration;  // for specs that need one; of this model; NULL: none
    int batch_len;             // rows at a time in prefill; 0: as many as fit 64 MB, 32 to 2048
    // Sees the rows of each layer and batch, layers in order. Borrowed until the call returns.
    void (*on_rows)(void* user, const model_rows* rows);
    void* user;
} model_session_desc;

// Returns 0, or another value with one line in message. *out is NULL after a failure.
int model_session_create(const model* m, const model_session_desc* desc, model_session** out,
                         char* message, size_t message_bytes);
void model_session_free(model_session* s);  // can be NULL

// How rows are multiplied by matrices.
enum {
    MODEL_PRODUCTS_AUTO = 0,  // few rows: rounded to 8 bits, by the quantized weights; many: floats
    MODEL_PRODUCTS_FLOAT,     // floats, through BLAS, however many rows
    MODEL_PRODUCTS_BY_ROW     // floats, each row by itself in one fixed order: rows in a batch and
                              // rows one by one give the same bits. Slow: for tests
};

typedef struct model_run {
    const int32_t* ids;     // [count]
    int64_t count;
    float* logits;          // of the last row [vocab_size], or of all rows; can be NULL
    bool logits_of_all;     // logits is [count, vocab_size]
    float* hidden;          // [count, hidden_len] for model_output_logits; can be NULL
    bool rows_through_cache;  // each row attends to the cache as it is when that row is its newest,
                              // as in decoding: slower; what an evaluation of the cache measures.
                              // Apart from attention, rows are still multiplied in batches.
    int64_t prompt_len;     // the first so many tokens are a prompt: of their rows, caches with
                            // kept= keep those that are largest at a layer's input: model_kept.c
    int products;           // MODEL_PRODUCTS_AUTO ...
    float* entering;        // [num_layers, count, hidden_len] rows as they enter each layer; can be
                            // NULL
    const float* rows;      // [count, hidden_len] in the place of embeddings, as they enter
    int first_layer;        // first_layer, where the run begins.  rows_through_cache is then of
                            // that layer alone, and the session must be reset.  NULL: all layers
    // Called after each batch; true stops, unless it was the last. Can be NULL.
    bool (*progress)(void* user, int64_t done, int64_t count);
    void* user;
} model_run;

// Runs tokens and appends their rows.
// - After MODEL_FAILED the rows of the layers may differ in number: the session refuses everything
//   until model_session_reset. An id outside the vocabulary leaves it as it was.
int model_run_tokens(model_session* s, const model_run* run);

// The same for a prompt, all of it: logits [vocab_size] of its last row, can be NULL.
int model_prefill(model_session* s, const int32_t* ids, int64_t count, float* logits);

// Runs one token as decoding does. logits [vocab_size], can be NULL.
int model_step(model_session* s, int32_t id, float* logits);

// The logits [num_rows, vocab_size] of rows of model_run.hidden: what model_run.logits gets, for
// programs that cannot hold those of all rows at once. products: as in model_run.
int model_output_logits(model_session* s, const float* hidden, int64_t num_rows, int products,
                        float* logits);

// What the attention module of one layer makes of rows as on_rows sees them: W_o attend(q, k, v)
// without norms and bias, out [num_rows, hidden_len]. The rows are appended to the layer; through
// the cache or not, as in model_run, and kept= keeps none of them, since what enters the layer is
// not known. Other layers are left alone. Rows of a layer come in order
// from position 0 on, at most the batch of the session at a time. Nothing else can be run until
// model_session_reset.
int model_attention_output(model_session* s, const model_rows* rows, bool through_cache,
                           float* out);

// Lengthens the sequence to num_rows by appending its rows over again, as the cache holds them: for
// measurements of speed at a length that nobody wants to wait for. The sequence must not be empty.
int model_session_repeat(model_session* s, int64_t num_rows);

// Empties the session.
int model_session_reset(model_session* s);

// Takes a sequence of the session's cache, with num_rows rows in every layer, in the place of its
// own, which is freed.
int model_session_take(model_session* s, kvl_seq seq, int64_t num_rows);

// Goes back to num_rows rows; *exact (can be NULL): whether the rest of the session is as if the
// removed rows had never been, see kvl_truncate_check.
int model_session_truncate(model_session* s, int64_t num_rows, bool* exact);

const char* model_session_message(const model_session* s);  // of the last failure; "" if none
int64_t model_session_length(const model_session* s);       // rows that have been run
int64_t model_session_context(const model_session* s);      // the most
const model* model_session_model(const model_session* s);
kvl_cache* model_session_cache(const model_session* s);     // for kvl_cache_stats and its like
kvl_seq model_session_seq(const model_session* s);
kvl_context* model_session_kvl(const model_session* s);

#endif
