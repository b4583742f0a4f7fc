// usual_cache.h -- the cache of a model that is decoded without naming one.
//
// A model's usual calibration lies beside it, MODEL.kvloom.safetensors for MODEL.gguf, or under the
// same name in the user's data folder: XDG_DATA_HOME/kvloom, else HOME/.local/share/kvloom.  Where
// there is one, USUAL_SPEC is the cache.  Else a prompt of USUAL_PROMPT_LEN tokens or more
// calibrates USUAL_PROMPT_SPEC by its first ones; below that, tables would be larger than what they
// save, and the cache is f16.

#ifndef KVLOOM_DECODE_USUAL_CACHE_H
#define KVLOOM_DECODE_USUAL_CACHE_H

#include <stddef.h>

#define USUAL_SPEC "loom:2.25"
#define USUAL_PROMPT_SPEC "loom"    // the same bits in all layers: to choose them takes passes
enum { USUAL_PROMPT_LEN = 1024 };

// Writes the path of the calibration that is there, or the first one looked at; returns whether a
// file is there.
int usual_calibration(const char* model, char* path, size_t path_bytes);

#endif
