// eval_resume.h -- finished windows in a file of JSON lines, so that a run can go on.
//
// The first line says what was measured on what: model, text, context, skip, target and version
// must be the same when the file is read. The others are one window each: of the base
// {"window", "nll"}, or of a cache {"cache", "window", "kl", "nll", "top1", "worst", ...}. A last
// line that was not completed is dropped. Caches are known by the text of their --cache argument.

#ifndef KVLOOM_EVAL_RESUME_H
#define KVLOOM_EVAL_RESUME_H

#include <stddef.h>

#include "eval_results.h"

typedef struct eval_resume eval_resume;

// Opens or creates the file, and takes its windows into results, whose caches must have their
// arrays of windows. Returns 0, or another value with one line in message; *out is NULL then.
int eval_resume_open(const char* path, eval_results* results, eval_resume** out, char* message,
                     size_t message_bytes);

// Each adds a line. Returns 0, or another value with one line in message.
int eval_resume_add_base(eval_resume* resume, const eval_results* results, int window,
                         char* message, size_t message_bytes);
int eval_resume_add(eval_resume* resume, const eval_results* results, const eval_cache* cache,
                    int window, char* message, size_t message_bytes);

void eval_resume_close(eval_resume* resume);  // can be NULL

#endif
