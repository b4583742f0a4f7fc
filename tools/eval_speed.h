// eval_speed.h -- decoding speed with a cache, at the end of a window and at larger lengths.

#ifndef KVLOOM_EVAL_SPEED_H
#define KVLOOM_EVAL_SPEED_H

#include "eval_results.h"
#include "model.h"

enum {
    EVAL_SPEED_ROOM = 128,           // tokens that are decoded at most, at all lengths together
    EVAL_SPEED_MOST_ROWS = 32768
};

// Times model_step, as decode runs it, on what the session holds: fills tokens_per_second. lengths:
// also at 4096, 16384 and 32768 tokens, reached by repeating rows of the cache; fills speeds.
// logits [vocab_size]: scratch. Returns what the session says.
int eval_speed_measure(model_session* s, float* logits, bool lengths, eval_cache* cache);

#endif
