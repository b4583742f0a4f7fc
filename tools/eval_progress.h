// eval_progress.h -- where a run is, and how long it still takes, on stderr.

#ifndef KVLOOM_EVAL_PROGRESS_H
#define KVLOOM_EVAL_PROGRESS_H

#include <stdbool.h>

typedef struct eval_progress {
    bool quiet;
    bool is_terminal;        // one line that is written over; else a line for each finished step
    double start, shown;     // seconds
    int done, total;         // steps: a pass of a cache on a window
    char what[160];          // of the step in progress
    int columns;             // on the line
} eval_progress;

void eval_progress_start(eval_progress* p, bool quiet, int total);
void eval_progress_step(eval_progress* p, const char* what);   // begins a step
void eval_progress_layer(eval_progress* p, int layer, int num_layers);
// Ends a step: what it was, and its result, which can be "".
void eval_progress_done(eval_progress* p, const char* what, const char* result);
void eval_progress_clear(eval_progress* p);                     // before other lines

#endif
