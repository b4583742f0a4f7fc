// calibrate_run.h -- a run of kvloom-calibrate: windows of a text, or files to merge.

#ifndef KVLOOM_CALIBRATE_RUN_H
#define KVLOOM_CALIBRATE_RUN_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#include "calibrate_options.h"

extern volatile sig_atomic_t calibrate_interrupted;  // set by the program's signal handler

// Returns 0, 1 with message, or 130 after an interruption, with message too.
int calibrate_run(const calibrate_options* options, bool quiet, char* message,
                  size_t message_bytes);

#endif
