// option_value.h -- values of command-line options; a wrong one is one line on stderr.
//
// The line is "PROGRAM: NAME VALUE: RULE". Every function returns OPTION_OK, or the exit status of
// a wrong command line.

#ifndef KVLOOM_DECODE_OPTION_VALUE_H
#define KVLOOM_DECODE_OPTION_VALUE_H

#include <stdint.h>

#include "kvloom.h"

enum { OPTION_OK = -1, OPTION_WRONG = 2 };

// Says what is wrong; value can be NULL. Returns OPTION_WRONG.
int option_wrong(const char* program, const char* name, const char* value, const char* rule);

int option_whole(const char* program, const char* name, const char* text, int64_t least,
                 int64_t most, int64_t* out);

// From 0 to most.
int option_real(const char* program, const char* name, const char* text, double most, float* out);

// auto, reference or host; *name (can be NULL) is the word, static.
int option_target(const char* program, const char* text, kvl_target* out, const char** name);

#endif
