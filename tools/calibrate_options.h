// calibrate_options.h -- the command line of kvloom-calibrate.

#ifndef KVLOOM_CALIBRATE_OPTIONS_H
#define KVLOOM_CALIBRATE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "calibrate_learn.h"

enum { CALIBRATE_RUN = -1 };


typedef struct calibrate_options {
    const char *model, *text, *out;
    char** specs;            // [num_specs] as kvloom-eval's --cache; borrowed from argv
    int num_specs;
    char** merge;            // [num_merge] files of statistics; borrowed from argv
    int num_merge;
    int64_t context;         // 0: 2048, or less where the model was trained for less
    int windows;
    int num_threads, num_queries, num_key_runs;
    uint64_t seed;
    int learn, learn_steps;  // CALIBRATE_LEARN_NOTHING ...; steps a head, 0: 8 head_dim
    const char* report;      // NULL: none
    bool resume, no_statistics, pre_rope, verbose;
} calibrate_options;

// Returns CALIBRATE_RUN, or the exit status: 0 after --help, 2 for a wrong command line.
int calibrate_options_read(int argc, char** argv, calibrate_options* out);
void calibrate_options_free(calibrate_options* options);

#endif
