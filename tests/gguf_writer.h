// gguf_writer.h -- writes small GGUF files for tests; any of their fields can be made wrong.
//
// A buffer of fixed size: a test that outgrows it fails. All numbers are little endian.

#ifndef KVLOOM_TESTS_GGUF_WRITER_H
#define KVLOOM_TESTS_GGUF_WRITER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct gguf_writer {
    uint8_t data[1 << 16];
    size_t bytes;
    bool overflow;
} gguf_writer;

static inline void put_bytes(gguf_writer* w, const void* data, size_t bytes)
{
    if (bytes > sizeof w->data - w->bytes) {
        w->overflow = true;
        return;
    }
    if (bytes > 0) { memcpy(w->data + w->bytes, data, bytes); }
    w->bytes += bytes;
}

// Overwrites `bytes` bytes at an offset.
static inline void patch_uint(gguf_writer* w, size_t at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes && at + i < sizeof w->data; i++) {
        w->data[at + i] = (uint8_t)(value >> (8 * i));
    }
}

// Returns where the number lies, for patch_uint.
static inline size_t put_uint(gguf_writer* w, uint64_t value, size_t bytes)
{
    uint8_t little[8];
    for (size_t i = 0; i < bytes; i++) { little[i] = (uint8_t)(value >> (8 * i)); }
    put_bytes(w, little, bytes);
    return w->bytes - bytes;
}

static inline size_t put_u32(gguf_writer* w, uint32_t value) { return put_uint(w, value, 4); }
static inline size_t put_u64(gguf_writer* w, uint64_t value) { return put_uint(w, value, 8); }

static inline void put_f32(gguf_writer* w, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_u32(w, bits);
}

// Returns where the length lies.
static inline size_t put_string(gguf_writer* w, const char* text)
{
    const size_t at = put_u64(w, strlen(text));
    put_bytes(w, text, strlen(text));
    return at;
}

// Key and type of a metadata entry; the value follows. Returns where the type lies.
static inline size_t put_key(gguf_writer* w, const char* key, uint32_t type)
{
    put_string(w, key);
    return put_u32(w, type);
}

// Element type and count of an array; the elements follow. Returns where the type lies.
static inline size_t put_array(gguf_writer* w, const char* key, uint32_t type, uint64_t count)
{
    put_key(w, key, 9);
    const size_t at = put_u32(w, type);
    put_u64(w, count);
    return at;
}

// "GGUF", version 3, counts. The counts lie at bytes 8 and 16.
static inline void put_header(gguf_writer* w, uint64_t num_tensors, uint64_t num_entries)
{
    memset(w, 0, sizeof *w);
    put_bytes(w, "GGUF", 4);
    put_u32(w, 3);
    put_u64(w, num_tensors);
    put_u64(w, num_entries);
}

static inline void put_padding(gguf_writer* w, size_t alignment)
{
    while (w->bytes % alignment != 0 && !w->overflow) { put_uint(w, 0, 1); }
}

// Writes the first `bytes` bytes to a file.
static inline bool save_bytes(const gguf_writer* w, size_t bytes, const char* path)
{
    remove(path); // some file systems flush a file that is truncated and written again
    FILE* const file = fopen(path, "wb");
    if (!file) { return false; }
    const bool ok = fwrite(w->data, 1, bytes, file) == bytes;
    return fclose(file) == 0 && ok && !w->overflow;
}

#endif
