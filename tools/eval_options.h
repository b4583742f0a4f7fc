// eval_options.h -- the command line of kvloom-eval.

#ifndef KVLOOM_EVAL_OPTIONS_H
#define KVLOOM_EVAL_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "kvloom.h"

enum { EVAL_RUN = -1 };

typedef struct eval_options {
    const char *model, *text;
    char** caches;           // [num_caches] borrowed from argv
    int num_caches;
    int64_t context;         // 0: 2048, or less where the model was trained for less
    int windows;
    int64_t skip;            // -1: 256, or an eighth of a short context
    int num_threads;
    int jobs;                // windows side by side; 0, 1: one after the other
    kvl_target target;
    const char* calibration;  // NULL: none
    const char *json, *html, *resume, *dump_folder;
    bool needle, speed, markdown, choices, module;
    int64_t generate;        // tokens; 0: none
    uint64_t seed;
    bool exact, verbose;
    int products;            // MODEL_PRODUCTS_FLOAT; others for tests
    char* command;           // the whole command line, for the report
} eval_options;

// Returns EVAL_RUN, or the exit status: 0 after --help, 2 for a wrong command line.
int eval_options_read(int argc, char** argv, eval_options* out);
void eval_options_free(eval_options* options);

#endif
