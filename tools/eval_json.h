// eval_json.h -- pieces of results as JSON, for the results file and for files of --resume.

#ifndef KVLOOM_EVAL_JSON_H
#define KVLOOM_EVAL_JSON_H

#include <cjson/cJSON.h>

#include "eval_results.h"

// Each adds to object and returns false when memory is out. A NaN becomes null.
bool eval_json_add_worst(cJSON* object, const eval_worst* worst, int count);
bool eval_json_add_layers(cJSON* object, const eval_cache* cache);
bool eval_json_add_floats(cJSON* object, const char* name, const float* x, int64_t count);

// Each reads what the functions above have written. Returns false for anything else.
bool eval_json_read_worst(const cJSON* object, int window, eval_worst* worst, int* count);
bool eval_json_read_layers(const cJSON* object, int num_layers, eval_cache* cache);

// Choices that were counted, also none. Reading fails where they were not.
bool eval_json_add_choices(cJSON* object, const eval_choices* c);
bool eval_json_read_choices(const cJSON* object, eval_choices* c);
bool eval_json_read_floats(const cJSON* object, const char* name, float* x, int64_t count);

// Writes the results. The schema is in docs/accuracy.md. Returns 0, or another value with one line
// in message.
int eval_json_write(const char* path, const eval_results* results, char* message,
                    size_t message_bytes);

#endif
