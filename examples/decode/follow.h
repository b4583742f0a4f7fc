// follow.h -- the token ids of an earlier run, to be followed by another cache.
//
// Two greedy texts part at the first close decision, and from there on say nothing about each
// other. Following one text, a cache is asked at every token what it would have written next.

#ifndef KVLOOM_DECODE_FOLLOW_H
#define KVLOOM_DECODE_FOLLOW_H

#include <stddef.h>
#include <stdint.h>

typedef struct follow {
    int32_t* ids;      // [count]; NULL: nothing is followed
    int64_t count;
    int64_t asked;     // ids that logits were compared with
    int64_t agreed;    // of these, ids that had the greatest logit
} follow;

// Reads token_ids of a file that decode --json wrote; every id must be 0 to vocab_size - 1. Returns
// 0, or another value with one line in message.
int follow_read(const char* path, int vocab_size, follow* out, char* message, size_t message_bytes);
void follow_free(follow* f);

// The next id, compared with logits [vocab_size]; -1 at the end.
int32_t follow_next(follow* f, const float* logits, int vocab_size);

#endif
