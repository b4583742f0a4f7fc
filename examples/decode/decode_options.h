// decode_options.h -- the command line of decode.

#ifndef KVLOOM_DECODE_OPTIONS_H
#define KVLOOM_DECODE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "kvloom.h"
#include "sampler.h"

typedef struct decode_options {
    const char* model;
    const char* prompt;       // -p; NULL: none
    const char* prompt_file;  // -f; NULL: none
    int64_t num_predict;      // -1: until the model ends or the context is full
    int64_t context_len;      // 0: the model's
    int num_threads;          // 0: all
    sampler_options sampling;
    bool interactive, chat, verbose;
    const char* calibration;  // NULL: none
    int64_t calibrate_rows;   // of the prompt, to calibrate on; 0: not on the prompt
    const char** cache_args;  // [num_cache_args]
    int num_cache_args;
    bool target_given;     // --target was on the command line
    kvl_target target;
    const char* target_name;
    const char* json_path;    // NULL: none
    const char* follow_path;  // NULL: none
    const char* load_path;    // NULL: none; so the next two
    const char* save_path;
    const char* prompt_cache;
    bool recode;
    bool fold;
} decode_options;

// Tokens of a prompt that are calibrated on: seconds of work; see docs/transforms.md for what more
// would give.
enum { DECODE_CALIBRATE_ROWS = 512 };

enum { DECODE_RUN = -1 };  // what decode_options_read answers when there is something to run

// Reads the command line; writes help to stdout and errors to stderr. Returns DECODE_RUN, or the
// exit status. decode_options_free comes after it in either case.
int decode_options_read(int argc, char** argv, decode_options* out);
void decode_options_free(decode_options* options);

#endif
