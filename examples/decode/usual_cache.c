// usual_cache.c -- where a model's calibration is looked for.

#include "usual_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char ending[] = ".kvloom.safetensors";

// "MODEL" of a path that ends in MODEL.gguf, or the whole.
static int stem_bytes(const char* model)
{
    const size_t bytes = strlen(model);
    const int named = bytes > 5 && strcmp(model + bytes - 5, ".gguf") == 0;
    return (int)(bytes - (named ? 5 : 0));
}

static int is_there(const char* path) { return access(path, R_OK) == 0; }

int usual_calibration(const char* model, char* path, size_t path_bytes)
{
    const char* slash = strrchr(model, '/');
    const char* name = slash != NULL ? slash + 1 : model;
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    char other[4096] = "";
    snprintf(path, path_bytes, "%.*s%s", stem_bytes(model), model, ending);
    if (is_there(path)) { return 1; }
    if (data != NULL && data[0] == '/') {
        snprintf(other, sizeof other, "%s/kvloom/%.*s%s", data, stem_bytes(name), name, ending);
    } else if (home != NULL && home[0] == '/') {
        snprintf(other, sizeof other, "%s/.local/share/kvloom/%.*s%s", home, stem_bytes(name),
                 name, ending);
    }
    if (other[0] == 0 || !is_there(other)) { return 0; }
    snprintf(path, path_bytes, "%s", other);
    return 1;
}
