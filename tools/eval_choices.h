// eval_choices.h -- what keys with a choice of rotations have chosen, and how spiky they were.
//
// Counted over all pieces of all quantized keys of a pass. The peak ratio of a piece of a key is
// max |x| / rms: 1 where all channels are alike, sqrt(n) where one of n is alone.

#ifndef KVLOOM_EVAL_CHOICES_H
#define KVLOOM_EVAL_CHOICES_H

#include "eval_layers.h"

// After a pass that the probe has seen. Fills cache->choices; num_pieces stays 0 for a cache that
// chooses nothing. Returns false with one line in message.
bool eval_choices_measure(const eval_layers_probe* probe, const model* m, model_session* s,
                          eval_cache* cache, char* message, size_t message_bytes);

#endif
