// eval_layers.h -- how far the scores and outputs of each head are off, with the rows as a cache
// holds them.
//
// For the last positions of a pass, with q, k, v the rows as attention takes them and k', v' what
// the cache gives back (all three computed under that same cache):
//
//     score_error  = |q.k' - q.k| / |q.k|     over positions and the rows that they see
//     output_error = |o' - o| / |o|           o = softmax(scale q.k) v, in floats

#ifndef KVLOOM_EVAL_LAYERS_H
#define KVLOOM_EVAL_LAYERS_H

#include "eval_results.h"
#include "model.h"

typedef struct eval_layers_probe eval_layers_probe;

// For a pass of `count` tokens. NULL: out of memory.
eval_layers_probe* eval_layers_create(const model* m, kvl_context* ctx, int64_t count);
void eval_layers_free(eval_layers_probe* probe);  // can be NULL

// The hook of a session during the pass.
void eval_layers_see(void* probe, const model_rows* rows);

// The keys of a layer that the probe has seen: [count, num_kv_heads, head_dim]; NULL: none.
const float* eval_layers_keys(const eval_layers_probe* probe, int layer);

// After the pass: fills cache->layers. Returns false when memory is out or a row cannot be read.
bool eval_layers_measure(eval_layers_probe* probe, model_session* s, eval_cache* cache);

#endif
