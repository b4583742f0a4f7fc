// batch.c -- continuous batching: requests join when a place is free and leave when they are done.
// Their prompts begin alike; what one has computed, the next ones begin with.  Every one ends as if
// it had been alone.
//
//     cc -std=c99 batch.c $(pkg-config --cflags --libs kvloom)

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { num_requests = 16, num_places = 4, common_len = 700, prompt_len = 720, max_len = 850 };
enum { num_q_heads = 8, num_kv_heads = 2, head_dim = 64 };
enum { kv_row = num_kv_heads * head_dim, q_row = num_q_heads * head_dim };

typedef struct request {
    int     number, position, length;   // of the next token; of prompt and answer
    kvl_seq seq;
    int32_t tokens[max_len];
} request;

static kvl_context* ctx;

static void must(kvl_status status)
{
    if (status == KVL_OK) return;
    fprintf(stderr, "batch: %s\n", ctx ? kvl_context_message(ctx) : kvl_status_text(status));
    exit(1);
}

// Stands for the model: rows that depend on the token and its position alone.
static void make_row(int32_t token, int position, int kind, int num, float* x)
{
    uint32_t state = (uint32_t)(token * 7919 + position * 31 + kind) * 2654435761u + 1u;
    for (int i = 0; i < num; ++i) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
}

static request make_request(int number)
{
    request r = { .number = number, .length = prompt_len + 40 + number * 37 % 90 };
    for (int i = 0; i < r.length; ++i) r.tokens[i] = i < common_len ? i % 97 : number + i % 97;
    return r;
}

// Appends the next row of each request and attends to it, all of them in one call.
static void step(kvl_cache* cache, request* requests, int n, float* o)
{
    float k[num_places * kv_row], v[num_places * kv_row], q[num_places * q_row];
    kvl_seq seqs[num_places];
    for (int i = 0; i < n; ++i) {
        request* r = &requests[i];
        const int position = r->position++;
        seqs[i] = r->seq;
        make_row(r->tokens[position], position, 0, kv_row, k + i * kv_row);
        make_row(r->tokens[position], position, 1, kv_row, v + i * kv_row);
        make_row(r->tokens[position], position, 2, q_row, q + i * q_row);
    }
    must(kvl_append_attend(cache,
                           &(kvl_append_desc){ .num_seqs = n, .seqs = seqs, .k = { .data = k },
                                               .v = { .data = v } },
                           &(kvl_attend_desc){ .num_seqs = n, .seqs = seqs, .q = { .data = q },
                                               .o = { .data = o } }));
}

// The last output of a request in a cache that remembers nothing.
static void run_alone(kvl_cache* cache, int number, float* o)
{
    request r = make_request(number);
    must(kvl_seq_create(cache, &r.seq));
    while (r.position < r.length) step(cache, &r, 1, o);
    must(kvl_seq_free(cache, r.seq));
}

int main(void)
{
    static float last[num_requests][q_row];
    static request places[num_places];
    float o[num_places * q_row];
    int n = 0, next = 0, steps = 0, different = 0;
    int64_t taken = 0;
    uint64_t saved = 0;
    kvl_cache *cache, *plain;
    must(kvl_context_create(&(kvl_context_desc){ 0 }, &ctx));
    const kvl_layer_desc layer = { .num_q_heads = num_q_heads, .num_kv_heads = num_kv_heads,
                                   .head_dim = head_dim, .spec = "kivi:k4,v4,g32,recent=64" };
    kvl_cache_desc desc = { .num_layers = 1, .layers = &layer };
    must(kvl_cache_create(ctx, &desc, &plain));
    desc.prefix_bytes = 1 << 20;
    must(kvl_cache_create(ctx, &desc, &cache));
    for (; n > 0 || next < num_requests; ++steps) {
        if (n < num_places && next < num_requests) {        // one joins
            request* r = &places[n++];
            int64_t num_rows;
            *r = make_request(next++);
            must(kvl_seq_begin(cache, &(kvl_prompt){ r->tokens, prompt_len, 0, 0 }, &r->seq,
                               &num_rows));
            r->position = (int)num_rows;                    // the rows before it are there
            taken += num_rows;
        }
        step(cache, places, n, o);
        kvl_stats stats;
        must(kvl_cache_stats(cache, &stats));
        if (stats.saved_bytes > saved) saved = stats.saved_bytes;
        for (int i = n - 1; i >= 0; --i) {
            request* r = &places[i];
            if (r->position == prompt_len)
                must(kvl_seq_remember(cache, r->seq,
                                      &(kvl_prompt){ r->tokens, prompt_len, 0, 0 }));
            if (r->position < r->length) continue;
            memcpy(last[r->number], o + i * q_row, sizeof last[0]);
            must(kvl_seq_free(cache, r->seq));              // those that are done leave
            places[i] = places[--n];
            memmove(o + i * q_row, o + n * q_row, sizeof last[0]);
        }
    }
    for (int number = 0; number < num_requests; ++number) {
        run_alone(plain, number, o);
        different += memcmp(o, last[number], sizeof last[0]) != 0;
    }
    printf("%d requests in %d steps of up to %d; %lld of %d prompt rows were there, %d KB shared; "
           "%d requests differ from running alone\n", num_requests, steps, num_places,
           (long long)taken, num_requests * prompt_len, (int)(saved / 1024), different);
    kvl_cache_free(cache);
    kvl_cache_free(plain);
    kvl_context_destroy(ctx);
    return different != 0 || taken == 0;
}
