// eval_needle.h -- facts hidden in text, and whether the model still finds them.
//
// A prompt is a stretch of the text with the sentence "The secret number of NAME is DIGITS." at one
// of EVAL_DEPTHS depths, and at the end the question for it. It is a hit if greedy decoding of the
// answer gives DIGITS, token by token.

#ifndef KVLOOM_EVAL_NEEDLE_H
#define KVLOOM_EVAL_NEEDLE_H

#include "eval_engine.h"
#include "eval_text.h"

typedef struct eval_needle_plan {
    int num_lengths;
    int64_t lengths[EVAL_MAX_LENGTHS];
    int trials;
    uint64_t seed;
} eval_needle_plan;

// Lengths: the context, its half and its quarter, as far as a needle fits.
eval_needle_plan eval_needle_plan_for(int64_t context, uint64_t seed);

typedef struct eval_needle_prompt {
    int32_t* ids;            // [count] prompt and answer; the caller frees it
    int64_t count, answer;   // the answer is the last `answer` tokens
} eval_needle_prompt;

// One prompt of the plan: the same for every cache. Returns MODEL_OK or MODEL_FAILED with message.
int eval_needle_make(const eval_needle_plan* plan, const eval_text* text, const tokenizer* tok,
                     int length, int depth, int trial, eval_needle_prompt* out, char* message,
                     size_t message_bytes);

// Runs one prompt on a cache. *hit: whether every token of the answer is the most probable one.
int eval_needle_run(eval_engine* engine, const char* cache, const eval_needle_prompt* prompt,
                    bool* hit);

#endif
