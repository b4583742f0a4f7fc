// eval_text.h -- the text that a model is measured on: its tokens, its hash, its windows.

#ifndef KVLOOM_EVAL_TEXT_H
#define KVLOOM_EVAL_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "tokenizer.h"

typedef struct eval_text {
    int32_t* ids;            // [count] without special tokens
    int64_t count;
    int32_t bos;             // the token that the model wants before a text; -1: none
    char sha256[65];         // of the file's bytes
} eval_text;

// Returns 0, or another value with one line in message; out is then empty.
int eval_text_read(const char* path, const tokenizer* tok, eval_text* out, char* message,
                   size_t message_bytes);
void eval_text_free(eval_text* text);

// Windows follow each other and share no token. Each begins with bos where the model has one.
int64_t eval_text_num_windows(const eval_text* text, int64_t context);
void eval_text_window(const eval_text* text, int64_t context, int64_t window, int32_t* ids);

// Copies the text of tokens, as valid UTF-8 that fits; what does not fit is left out in front.
void eval_text_show(const tokenizer* tok, const int32_t* ids, int64_t count, char* out,
                    size_t out_bytes);

// hex [65] of bytes.
void eval_sha256(const void* data, size_t bytes, char* hex);

// A fingerprint of a file that may be many gigabytes: the hash of its size and of 64 stretches of
// 64 KB, the first and the last among them. Returns 0, or another value with message.
int eval_fingerprint(const char* path, char* hex, char* message, size_t message_bytes);

#endif
