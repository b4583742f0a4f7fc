// option_value.c -- values of command-line options; a wrong one is one line on stderr.

#include "option_value.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int option_wrong(const char* program, const char* name, const char* value, const char* rule)
{
    fprintf(stderr, "%s: %s%s%s: %s\n", program, name, value != NULL ? " " : "",
            value != NULL ? value : "", rule);
    return OPTION_WRONG;
}

int option_whole(const char* program, const char* name, const char* text, int64_t least,
                 int64_t most, int64_t* out)
{
    char rule[96];
    char* end = NULL;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != 0 || value < least || value > most) {
        snprintf(rule, sizeof rule, "must be a whole number from %lld to %lld", (long long)least,
                 (long long)most);
        return option_wrong(program, name, text, rule);
    }
    *out = value;
    return OPTION_OK;
}

int option_real(const char* program, const char* name, const char* text, double most, float* out)
{
    char rule[96];
    char* end = NULL;
    const double value = strtod(text, &end);
    if (end == text || *end != 0 || !(value >= 0.0 && value <= most)) {
        snprintf(rule, sizeof rule, "must be a number from 0 to %g", most);
        return option_wrong(program, name, text, rule);
    }
    *out = (float)value;
    return OPTION_OK;
}

int option_target(const char* program, const char* text, kvl_target* out, const char** name)
{
    static const char* const names[] = { "auto", "reference", "host", "cuda" };
    static const kvl_target targets[] = { KVL_TARGET_AUTO, KVL_TARGET_REFERENCE, KVL_TARGET_HOST,
                                          KVL_TARGET_CUDA };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i]) != 0) { continue; }
        *out = targets[i];
        if (name != NULL) { *name = names[i]; }
        return OPTION_OK;
    }
    return option_wrong(program, "--target", text, "must be auto, reference, host or cuda");
}
