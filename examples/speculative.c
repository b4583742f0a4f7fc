// speculative.c -- drafts are verified in one call and rejected ones taken back, exactly: what is
// left is bit for bit the sequence that never saw them.
//
//     cc -std=c99 speculative.c $(pkg-config --cflags --libs kvloom)

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { num_tokens = 600, draft_len = 5, num_heads = 4, head_dim = 64, dim = num_heads * head_dim };

static kvl_context* ctx;
static kvl_cache* cache;
static float k[draft_len * dim], v[draft_len * dim], q[draft_len * dim], o[draft_len * dim];

static void must(kvl_status status)
{
    if (status == KVL_OK) return;
    fprintf(stderr, "speculative: %s\n", ctx ? kvl_context_message(ctx) : kvl_status_text(status));
    exit(1);
}

// Stands for the model: rows that depend on the token and its position.
static void make_row(int token, int position, int kind, float* x)
{
    uint32_t state = (uint32_t)(token * 7919 + position * 31 + kind) * 2654435761u + 1u;
    for (int i = 0; i < dim; ++i) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
}

// The text, and a draft that is right two times in three.
static int token_at(int position) { return position * position % 97; }
static int drafted_at(int position) { return token_at(position) + (position % 3 == 2); }

// Appends the tokens at `position` and on, each attending to the cache as it is at its age.
static void decode(kvl_seq seq, const int* tokens, int num, int position)
{
    for (int i = 0; i < num; ++i) {
        make_row(tokens[i], position + i, 0, k + i * dim);
        make_row(tokens[i], position + i, 1, v + i * dim);
        make_row(tokens[i], position + i, 2, q + i * dim);
    }
    must(kvl_append_attend(cache,
                           &(kvl_append_desc){ .num_seqs = 1, .seqs = &seq,
                                               .num_rows = (int32_t[]){ num },
                                               .k = { .data = k }, .v = { .data = v } },
                           &(kvl_attend_desc){ .num_seqs = 1, .seqs = &seq,
                                               .q_lens = (int32_t[]){ num },
                                               .q = { .data = q }, .o = { .data = o } }));
}

int main(void)
{
    must(kvl_context_create(&(kvl_context_desc){ 0 }, &ctx));
    const kvl_layer_desc layer = { .num_q_heads = num_heads, .num_kv_heads = num_heads,
                                   .head_dim = head_dim,
                                   .spec = "kivi:k2,v2,g32,sink=4,recent=32" };
    must(kvl_cache_create(ctx, &(kvl_cache_desc){ .num_layers = 1, .layers = &layer,
                                                  .keep_len = draft_len }, &cache));
    kvl_seq drafted, plain;
    must(kvl_seq_create(cache, &drafted));
    must(kvl_seq_create(cache, &plain));
    int length = 0, calls = 0, inexact = 0;
    for (; length < num_tokens; ++calls) {
        int tokens[draft_len] = { token_at(length) };          // certain, and four guesses
        for (int i = 1; i < draft_len; ++i) tokens[i] = drafted_at(length + i);
        decode(drafted, tokens, draft_len, length);
        int right = 1, exact;
        while (right < draft_len && tokens[right] == token_at(length + right)) ++right;
        length += right;
        must(kvl_truncate_check(cache, drafted, length, &exact));
        must(kvl_truncate(cache, drafted, length));
        inexact += !exact;
    }
    for (int position = 0; position < length; ++position)
        decode(plain, &(int){ token_at(position) }, 1, position);
    decode(plain, &(int){ token_at(length) }, 1, length);
    float expected[dim];
    memcpy(expected, o, sizeof expected);
    decode(drafted, &(int){ token_at(length) }, 1, length);
    const int same = memcmp(expected, o, sizeof expected) == 0;
    printf("%d tokens in %d calls; the next output is %s that of plain decoding\n", length, calls,
           same ? "bit for bit" : "NOT");
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
    return !same || inexact > 0;
}
