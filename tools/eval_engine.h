// eval_engine.h -- runs the same tokens on the full-precision cache and on another one, and
// compares the distributions of every next token.
//
// A pass is one sequence of tokens on a fresh session. Its rows go through the cache: each attends
// to what the cache holds when that row is the newest, as in decoding, and the codes come from keys
// and values that were computed under this same cache. Apart from attention, rows are multiplied
// in batches, in floats; base and cache have the same arithmetic, so that f16 against f16 gives 0.
//
// Rows that a spec with kept= keeps are found in the prompt alone, when all of it is known, as in
// decoding: the positions of a window that are not measured, a needle's haystack, the beginning of
// a text to go on with.  Rows that are measured name none.
//
// The base's pass is kept as the last layer's rows, and as logits where they fit; any number of
// caches is compared with it.

#ifndef KVLOOM_EVAL_ENGINE_H
#define KVLOOM_EVAL_ENGINE_H

#include <stdio.h>

#include "eval_results.h"
#include "model.h"

typedef struct eval_engine_desc {
    const model* m;
    kvl_context* ctx;
    const kvl_calibration* calibration;   // kept; NULL: none
    int64_t context;             // the most tokens of a pass
    int products;                // MODEL_PRODUCTS_FLOAT; others for tests
    uint64_t max_logits_bytes;   // that may be kept of the base; 0: 512 MB
    // Called at each layer of a pass; true stops the pass at its next batch. Can be NULL.
    bool (*tick)(void* user, int layer, int num_layers);
    void* user;
} eval_engine_desc;

typedef struct eval_engine {
    eval_engine_desc desc;
    const model_geometry* geometry;
    float* hidden[2];            // [context, hidden_len] of the base and of the cache
    float* base_logits;          // [rows of the pass, vocab_size]; NULL: do not fit
    int64_t kept_rows;           // of base_logits that are filled
    float* slices[2];            // [slice_rows, vocab_size]
    int64_t slice_rows;
    int64_t prompt_len;          // of the passes that follow: the first so many positions are a
                                 // prompt, of which kept= keeps rows
    bool stopped;                // tick has asked for it
    // Sees the rows of the pass in progress. NULL: nobody.
    void (*on_rows)(void* user, const model_rows* rows);
    void* on_rows_user;
    char message[1024];          // of the last failure
} eval_engine;

// Each returns MODEL_OK, MODEL_STOPPED, or MODEL_FAILED with engine->message.
int eval_engine_create(eval_engine* engine, const eval_engine_desc* desc);
void eval_engine_free(eval_engine* engine);

// A session for `context` tokens and `room` more. cache: --cache arguments, separated by blanks.
int eval_engine_open(eval_engine* engine, const char* cache, int64_t room, model_session** out);

// Runs a pass and keeps its rows: side 0 as the base, side 1 as the cache. The session must be
// empty and holds the tokens after it.
int eval_engine_pass(eval_engine* engine, model_session* s, const int32_t* ids, int64_t count,
                     int side);

typedef struct eval_comparison {
    const int32_t* ids;          // [count] of both passes
    int64_t count, first;        // positions first .. count - 2 are compared
    int window;                  // for the list of the worst
    model_session* session;      // any of the model: its threads and buffers are used
    FILE *dump_base, *dump_cache;  // get the logits as floats, row by row; NULL: none
} eval_comparison;

// Compares the passes. out gets arrays [count - 1 - first] and the list of the worst; nll_base
// [count - 1 - first] can be NULL. out must be zeroed; it is freed with eval_window_free.
int eval_engine_compare(eval_engine* engine, const eval_comparison* comparison, eval_window* out,
                        float* nll_base);
void eval_window_free(eval_window* window);

// The most probable tokens after positions [first, first + num) of a pass.
int eval_engine_best(eval_engine* engine, model_session* s, int side, int64_t first, int64_t num,
                     int32_t* ids);

// Puts an entry into a list of at most EVAL_WORST, worst first.
void eval_worst_add(eval_worst* list, int* count, const eval_worst* entry);

double eval_seconds(void);  // of a clock that only moves forward

#endif
