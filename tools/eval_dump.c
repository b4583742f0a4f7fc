// eval_dump.c -- writes .npy files, version 1.0 of the format.

#include "eval_dump.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int fail(char* message, size_t message_bytes, const char* path)
{
    snprintf(message, message_bytes, "%s: %s", path, strerror(errno));
    return 1;
}

// Opens a file and writes its header. cols 0: one dim. type: "<f4" or "<i4".
static FILE* open_npy(const char* path, const char* type, int64_t rows, int64_t cols)
{
    char header[118], shape[64];
    FILE* file = fopen(path, "wb");
    if (file == NULL) { return NULL; }
    if (cols > 0) {
        snprintf(shape, sizeof shape, "(%lld, %lld)", (long long)rows, (long long)cols);
    } else {
        snprintf(shape, sizeof shape, "(%lld,)", (long long)rows);
    }
    // 10 bytes of magic, version and length, and 118 of text: data begins at 128.
    memset(header, ' ', sizeof header);
    const int bytes = snprintf(header, sizeof header,
                               "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", type,
                               shape);
    header[bytes] = ' ';
    header[sizeof header - 1] = '\n';
    if (fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, file) != 10 ||
        fwrite(header, 1, sizeof header, file) != sizeof header) {
        fclose(file);
        return NULL;
    }
    return file;
}

int eval_dump_open(const char* folder, const eval_results* r, int cache, int window, eval_dump* out,
                   char* message, size_t message_bytes)
{
    char path[1024];
    *out = (eval_dump){ .folder = folder, .cache_index = cache, .window = window };
    if (folder == NULL) { return 0; }
    if (r->base_nll[window] == NULL) {
        snprintf(path, sizeof path, "%s/base-w%d.npy", folder, window);
        out->base = open_npy(path, "<f4", r->num_positions, r->vocab_size);
        if (out->base == NULL) { return fail(message, message_bytes, path); }
    }
    snprintf(path, sizeof path, "%s/c%d-w%d.npy", folder, cache, window);
    out->cache = open_npy(path, "<f4", r->num_positions, r->vocab_size);
    if (out->cache != NULL) { return 0; }
    const int failed = fail(message, message_bytes, path);
    if (out->base != NULL) { fclose(out->base); }
    return failed;
}

static int write_npy(const char* path, const char* type, const void* data, int64_t count,
                     char* message, size_t message_bytes)
{
    FILE* file = open_npy(path, type, count, 0);
    bool ok = file != NULL && fwrite(data, 4, (size_t)count, file) == (size_t)count;
    if (file != NULL) { ok = fclose(file) == 0 && ok; }
    return ok ? 0 : fail(message, message_bytes, path);
}

int eval_dump_close(eval_dump* dump, const int32_t* ids, const eval_results* r,
                    const eval_window* window, char* message, size_t message_bytes)
{
    char path[1024];
    if (dump->folder == NULL) { return 0; }
    snprintf(path, sizeof path, "%s/c%d-w%d.npy", dump->folder, dump->cache_index, dump->window);
    const bool base_closed = dump->base == NULL || fclose(dump->base) == 0;
    if (fclose(dump->cache) != 0 || !base_closed) { return fail(message, message_bytes, path); }
    if (!window->done) { return 0; }
    snprintf(path, sizeof path, "%s/targets-w%d.npy", dump->folder, dump->window);
    if (write_npy(path, "<i4", ids + r->skip + 1, r->num_positions, message, message_bytes) != 0) {
        return 1;
    }
    snprintf(path, sizeof path, "%s/kl-c%d-w%d.npy", dump->folder, dump->cache_index, dump->window);
    return write_npy(path, "<f4", window->kl, r->num_positions, message, message_bytes);
}
