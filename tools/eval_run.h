// eval_run.h -- a whole evaluation: from options to results.

#ifndef KVLOOM_EVAL_RUN_H
#define KVLOOM_EVAL_RUN_H

#include <signal.h>
#include <stddef.h>

#include "eval_options.h"
#include "eval_results.h"

// Set by a signal handler: the run stops at the next batch and gives what is finished.
extern volatile sig_atomic_t eval_interrupted;

// Measures what the options ask for. quiet: no progress on stderr. Returns 0, also after
// eval_interrupted; or another value with one line in message. out is valid either way and must be
// freed; after a failure it has what is finished.
int eval_run(const eval_options* options, bool quiet, eval_results* out, char* message,
             size_t message_bytes);

#endif
