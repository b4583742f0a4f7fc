// eval_module.h -- how far the output of attention modules is off when one layer's cache replaces
// the full-precision one, everything else being exact.
//
// The model runs a window in floats. The queries, keys and values of each layer, as attention takes
// them, go to the same layer of other caches: quantized keys beside values in 16 bits, values
// alone, both. Each row attends to what the cache holds when it is the newest. With
// y = W_o attend(q, k, v) and y' the same through a cache,
//
//     error = |y' - y| / |y|                  over positions from `skip` on, of all windows
//
// for each layer; caches are compared by the geometric mean over layers, as arXiv:2609.38121 does.

#ifndef KVLOOM_EVAL_MODULE_H
#define KVLOOM_EVAL_MODULE_H

#include <stdio.h>

#include "eval_engine.h"

// Begins a window: ids [count] are run once for each cache. Sums are added to cache->module.
// Returns MODEL_OK, MODEL_STOPPED or MODEL_FAILED with engine->message.
typedef struct eval_module_window {
    const int32_t* ids;
    int64_t count, skip;
} eval_module_window;

int eval_module_measure(eval_engine* engine, const eval_module_window* window, eval_cache* cache);

// After the last window: errors from sums.
void eval_module_finish(eval_cache* cache);

// The spec of one side alone: a canonical spec's keys (side 0) or values (side 1) beside f16 on the
// other side, with the windows of the whole. Returns false where it does not fit.
bool eval_module_side(const char* canonical, int side, char* out, size_t bytes);

void eval_module_print(FILE* out, const eval_results* results, bool markdown);

#endif
