// eval_dump.h -- logits as NumPy files, for an independent computation of what is reported.
//
// In the folder, for window W and cache C (both from 0):
//
//     base-wW.npy        [num_positions, vocab_size] f32 logits of the base
//     cC-wW.npy          the same of the cache
//     targets-wW.npy     [num_positions] i32, the text's next tokens
//     kl-cC-wW.npy       [num_positions] f32, as it enters the results

#ifndef KVLOOM_EVAL_DUMP_H
#define KVLOOM_EVAL_DUMP_H

#include <stddef.h>
#include <stdio.h>

#include "eval_results.h"

typedef struct eval_dump {
    const char* folder;      // NULL: nothing is dumped
    FILE *base, *cache;      // open for logits; base is NULL after the first cache of a window
    int cache_index, window;
} eval_dump;

// Returns 0, or another value with one line in message. folder can be NULL.
int eval_dump_open(const char* folder, const eval_results* results, int cache, int window,
                   eval_dump* out, char* message, size_t message_bytes);

// Closes the logits, and writes targets and KL if the window is done. ids [context].
int eval_dump_close(eval_dump* dump, const int32_t* ids, const eval_results* results,
                    const eval_window* window, char* message, size_t message_bytes);

#endif
