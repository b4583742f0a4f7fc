// sampler.h -- picks the next token from logits: repeat penalty, top-k, top-p, temperature, in this
// order, as llama.cpp chains them.
//
// The same seed and the same logits give the same tokens, on every machine.

#ifndef KVLOOM_DECODE_SAMPLER_H
#define KVLOOM_DECODE_SAMPLER_H

#include <stdint.h>

typedef struct sampler sampler;

typedef struct sampler_options {
    float temperature;     // 0 or less: the best token; of equal ones, the lowest id
    int top_k;             // the most tokens to choose from; 0 or less: all
    float top_p;           // the best tokens that have this probability together; 1 or more: all
    float repeat_penalty;  // divides positive logits of recent tokens, multiplies others; 1: none
    uint64_t seed;
} sampler_options;

enum { SAMPLER_RECENT = 64 };  // tokens that the penalty looks back

// Returns NULL when memory is out.
sampler* sampler_create(const sampler_options* options, int vocab_size);
void sampler_destroy(sampler* s);  // can be NULL

// Tells of a token of the text, prompt included.
void sampler_accept(sampler* s, int32_t id);

// logits [vocab_size] are changed by the penalty. Returns -1 if one is not finite.
int32_t sampler_pick(sampler* s, float* logits);

#endif
