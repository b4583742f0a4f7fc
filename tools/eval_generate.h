// eval_generate.h -- long greedy generation with both caches, where errors compound.

#ifndef KVLOOM_EVAL_GENERATE_H
#define KVLOOM_EVAL_GENERATE_H

#include "eval_engine.h"

typedef struct eval_prompt {
    const int32_t* ids;      // [count]
    int64_t count;
    int64_t num_tokens;      // to generate
} eval_prompt;

// Each generates greedily, step by step; the engine must have room for prompt and text. The base
// comes first: its text stays in the engine as the base's pass. A cache's generation then also has
// the KL along the base's text, which is run on it as a window is.
int eval_generate_base(eval_engine* engine, const eval_prompt* prompt, eval_generation* out);
int eval_generate(eval_engine* engine, const char* cache, const eval_prompt* prompt,
                  const eval_generation* base, eval_generation* out);

#endif
