// model_statistics.h -- gathers what calibration needs to know of a model while it runs.
//
//     model_gather_create(m, &gd, &g, message, sizeof message);
//     model_session_desc sd = { .ctx = ctx, .on_rows = model_gather_see, .user = g };
//     ...                                       // a session runs tokens: one sequence
//     if (model_gather_end(g) == MODEL_OK) ...  // its rows are in model_gather_statistics(g)
//
// Attention of a sequence's first rows is computed again from the rows themselves, in floats: what
// the session's cache holds does not matter, but for the rows of later layers.

#ifndef KVLOOM_DECODE_MODEL_STATISTICS_H
#define KVLOOM_DECODE_MODEL_STATISTICS_H

#include "model.h"

typedef struct model_gather model_gather;

// Zero is the default.
typedef struct model_gather_desc {
    kvl_context* ctx;        // kept until model_gather_free
    int64_t context_len;     // the most rows of a sequence; 0: what the model was trained for
    int64_t max_rows;        // rows of a sequence that count, from the first on; 0: all
    int num_queries, num_key_runs;  // of samples; see kvl_statistics_desc
    uint64_t seed;
    bool unrotated;          // of keys before RoPE
} model_gather_desc;

// Returns 0, or another value with one line in message. *out is NULL after a failure.
int model_gather_create(const model* m, const model_gather_desc* desc, model_gather** out,
                        char* message, size_t message_bytes);
void model_gather_free(model_gather* g);  // can be NULL

// model_session_desc.on_rows
void model_gather_see(void* gather, const model_rows* rows);

// Ends a sequence. MODEL_FAILED: something of it could not be gathered; model_gather_message says
// what.
int model_gather_end(model_gather* g);
const char* model_gather_message(const model_gather* g);

// Begins a sequence, of this number; the first one has 0.
void model_gather_begin(model_gather* g, uint64_t sequence);

kvl_statistics* model_gather_statistics(model_gather* g);  // owned by g

typedef struct model_calibrate_desc {
    const char* const* specs;              // [num_layers], see model_session_desc
    const kvl_derivation* derivations;     // [num_derivations] for tables that need more than sums
    int num_derivations;
} model_calibrate_desc;

// Makes a cache's calibration of what was gathered; to be freed by the caller. Returns 0, or
// another value with one line in message.
int model_gather_calibrate(const model_gather* g, const model_calibrate_desc* desc,
                           kvl_calibration** out, char* message, size_t message_bytes);

// Statistics of this model without rows; to be freed by the caller. NULL after a failure, with one
// line in message.
kvl_statistics* model_empty_statistics(const model* m, const model_gather_desc* desc,
                                       char* message, size_t message_bytes);

#endif
