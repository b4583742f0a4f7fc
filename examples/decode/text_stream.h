// text_stream.h -- bytes of tokens in, whole characters out.
//
// A token may end inside a UTF-8 character: such bytes wait for the rest. What is not UTF-8 becomes
// U+FFFD, a byte at a time, so that what comes out is always valid.

#ifndef KVLOOM_DECODE_TEXT_STREAM_H
#define KVLOOM_DECODE_TEXT_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

// A string that grows; zero is empty. data is terminated once something has been added.
typedef struct text_bytes {
    char* data;
    size_t count, capacity;
} text_bytes;

bool text_bytes_add(text_bytes* text, const char* data, size_t count);  // false: out of memory
void text_bytes_free(text_bytes* text);                                 // leaves it empty

// Zero is an empty stream that writes to no file.
typedef struct text_stream {
    FILE* out;              // NULL: none
    text_bytes text;        // all that came out
    unsigned char waiting[4];
    size_t num_waiting;
} text_stream;

// Returns false when memory is out or out cannot be written.
bool text_stream_add(text_stream* stream, const char* data, size_t count);
bool text_stream_end(text_stream* stream);  // what still waits will not be completed

#endif
