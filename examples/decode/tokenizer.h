// tokenizer.h -- text to token ids and back, from the vocabulary in a GGUF file.
//
// Two kinds: byte-level BPE (tokenizer.ggml.model = "gpt2", split into words by the regular
// expressions that tokenizer.ggml.pre names) and SentencePiece ("llama": greedy merging by score).
// Ids agree with llama.cpp on valid UTF-8. Invalid UTF-8 is accepted: a bad byte becomes its byte
// token where the vocabulary has one, else U+FFFD.
//
// A tokenizer is immutable: threads may share it. It borrows the file's strings: gguf_close comes
// after tokenizer_destroy.

#ifndef KVLOOM_DECODE_TOKENIZER_H
#define KVLOOM_DECODE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gguf.h"

typedef struct tokenizer tokenizer;

// Flags of tokenizer_encode.
enum {
    TOKENIZER_ADD_SPECIAL = 1,  // the begin and end tokens that the model asks for
    TOKENIZER_PARSE_SPECIAL = 2 // the text of a control token becomes that token, not its letters
};

// What tokenizer_encode answers. TOKENIZER_OK is 0.
enum {
    TOKENIZER_OK = 0,
    TOKENIZER_NO_MEMORY,
    TOKENIZER_TOO_LONG, // more than 2^28 bytes in one call
    TOKENIZER_REGEX     // PCRE2 gave up on the text
};

// Returns 0, or another value with one line in message. *out is NULL after a failure.
int tokenizer_create(const gguf* file, tokenizer** out, char* message, size_t message_bytes);
void tokenizer_destroy(tokenizer* tok); // tok can be NULL

// On TOKENIZER_OK *ids is an array of *count ids that the caller frees; never NULL.
int tokenizer_encode(const tokenizer* tok, const char* text, size_t bytes, int flags, int32_t** ids,
                     size_t* count);
const char* tokenizer_status_text(int status);

// Copies the bytes of one token, which may be a part of a character, and returns how many it has:
// if that is more than buffer_bytes, only the first ones are written. Control tokens have none
// unless show_special. Returns -1 for an id outside the vocabulary.
int64_t tokenizer_piece(const tokenizer* tok, int32_t id, bool show_special, char* buffer,
                        size_t buffer_bytes);

int32_t tokenizer_vocab_size(const tokenizer* tok);

// -1 where the model has none.
int32_t tokenizer_bos(const tokenizer* tok);
int32_t tokenizer_eos(const tokenizer* tok);
int32_t tokenizer_eot(const tokenizer* tok); // end of turn
int32_t tokenizer_unknown(const tokenizer* tok);

// The id of a token whose text in the vocabulary is exactly this, or -1.
int32_t tokenizer_find(const tokenizer* tok, const char* text);

// Tokens that end a generation: the file's end tokens, and those that are known by name.
bool tokenizer_is_eog(const tokenizer* tok, int32_t id);

#endif
