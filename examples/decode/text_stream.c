// text_stream.c -- bytes of tokens in, whole characters out.

#include "text_stream.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bool text_bytes_add(text_bytes* text, const char* data, size_t count)
{
    if (count >= SIZE_MAX / 4 - text->count) { return false; }
    if (text->count + count + 1 > text->capacity) {
        const size_t capacity = 2 * (text->count + count) + 64;
        char* larger = realloc(text->data, capacity);
        if (larger == NULL) { return false; }
        text->data = larger;
        text->capacity = capacity;
    }
    if (count > 0) { memcpy(text->data + text->count, data, count); }
    text->count += count;
    text->data[text->count] = 0;
    return true;
}

void text_bytes_free(text_bytes* text)
{
    free(text->data);
    *text = (text_bytes){ NULL, 0, 0 };
}

static bool put(text_stream* stream, const void* data, size_t count)
{
    if (!text_bytes_add(&stream->text, data, count)) { return false; }
    return stream->out == NULL || fwrite(data, 1, count, stream->out) == count;
}

static bool put_replacement(text_stream* stream) { return put(stream, "\xef\xbf\xbd", 3); }

// The bytes of the character that begins with c; 0 if none does. C0, C1 and F5 on begin none.
static size_t length_of(unsigned char c)
{
    if (c < 0x80) { return 1; }
    if (c >= 0xc2 && c <= 0xdf) { return 2; }
    if (c >= 0xe0 && c <= 0xef) { return 3; }
    return c >= 0xf0 && c <= 0xf4 ? 4 : 0;
}

// Whether c can stand at `index` of a character that begins with `first`: overlong forms,
// surrogates and what lies beyond U+10FFFF are excluded by the second byte.
static bool continues(unsigned char first, size_t index, unsigned char c)
{
    unsigned char least = 0x80, most = 0xbf;
    if (index == 1 && first == 0xe0) { least = 0xa0; }
    if (index == 1 && first == 0xed) { most = 0x9f; }
    if (index == 1 && first == 0xf0) { least = 0x90; }
    if (index == 1 && first == 0xf4) { most = 0x8f; }
    return c >= least && c <= most;
}

static bool drop_waiting(text_stream* stream)
{
    const size_t count = stream->num_waiting;
    stream->num_waiting = 0;
    for (size_t i = 0; i < count; i++) {
        if (!put_replacement(stream)) { return false; }
    }
    return true;
}

bool text_stream_add(text_stream* stream, const char* data, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const unsigned char c = (unsigned char)data[i];
        if (stream->num_waiting > 0 && !continues(stream->waiting[0], stream->num_waiting, c) &&
            !drop_waiting(stream)) {
            return false;
        }
        if (stream->num_waiting == 0 && length_of(c) == 0) {
            if (!put_replacement(stream)) { return false; }
            continue;
        }
        stream->waiting[stream->num_waiting++] = c;
        if (stream->num_waiting == length_of(stream->waiting[0])) {
            const size_t bytes = stream->num_waiting;
            stream->num_waiting = 0;
            if (!put(stream, stream->waiting, bytes)) { return false; }
        }
    }
    return stream->out == NULL || fflush(stream->out) == 0;
}

bool text_stream_end(text_stream* stream)
{
    return drop_waiting(stream) && (stream->out == NULL || fflush(stream->out) == 0);
}
