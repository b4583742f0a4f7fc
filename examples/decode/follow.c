// follow.c -- the token ids of an earlier run, to be followed by another cache.

#include "follow.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

// The file's text, terminated; NULL with errno.
static char* read_text(const char* path)
{
    FILE* file = fopen(path, "rb");
    char* text = NULL;
    size_t bytes = 0, capacity = 0, count = 1;
    while (file != NULL && count > 0) {
        if (capacity - bytes < 65536) {
            capacity = 2 * capacity + 131072;
            char* larger = realloc(text, capacity);
            if (larger == NULL) { break; }
            text = larger;
        }
        count = fread(text + bytes, 1, capacity - bytes - 1, file);
        bytes += count;
    }
    if (file == NULL || count > 0 || ferror(file)) {
        free(text);
        text = NULL;
    } else {
        text[bytes] = 0;
    }
    if (file != NULL) { fclose(file); }
    return text;
}

static int take_ids(const cJSON* list, int vocab_size, follow* out)
{
    const int count = cJSON_GetArraySize(list);
    out->ids = count > 0 ? malloc((size_t)count * sizeof *out->ids) : NULL;
    if (out->ids == NULL) { return 1; }
    const cJSON* item = NULL;
    cJSON_ArrayForEach(item, list) {
        if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble >= vocab_size) {
            return 1;
        }
        out->ids[out->count++] = (int32_t)item->valuedouble;
    }
    return 0;
}

int follow_read(const char* path, int vocab_size, follow* out, char* message, size_t message_bytes)
{
    memset(out, 0, sizeof *out);
    errno = ENOMEM;
    char* text = read_text(path);
    if (text == NULL) {
        snprintf(message, message_bytes, "--follow %s: %s", path, strerror(errno));
        return 1;
    }
    cJSON* root = cJSON_Parse(text);
    free(text);
    const cJSON* ids = cJSON_GetObjectItemCaseSensitive(root, "token_ids");
    const int failed = take_ids(ids, vocab_size, out);
    cJSON_Delete(root);
    if (failed) {
        snprintf(message, message_bytes, "--follow %s: token_ids must be a list of ids from 0 to "
                 "%d, as --json writes it", path, vocab_size - 1);
        follow_free(out);
    }
    return failed;
}

void follow_free(follow* f)
{
    free(f->ids);
    memset(f, 0, sizeof *f);
}

int32_t follow_next(follow* f, const float* logits, int vocab_size)
{
    int32_t best = 0;
    if (f->asked == f->count) { return -1; }
    for (int32_t i = 1; i < vocab_size; i++) {
        if (logits[i] > logits[best]) { best = i; }
    }
    const int32_t id = f->ids[f->asked++];
    f->agreed += best == id;
    return id;
}
