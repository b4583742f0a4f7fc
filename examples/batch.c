// batch.c -- continuous batching: requests share a system prompt by fork, join when a place is
// free, leave when they are done; every one ends as if it had been alone.
//
//     cc -std=c99 batch.c $(pkg-config --cflags --libs kvloom)

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { num_requests = 16, num_places = 4, prefix_len = 700, num_q_heads = 8, num_kv_heads = 2 };
enum { head_dim = 64, kv_row = num_kv_heads * head_dim, q_row = num_q_heads * head_dim };

static kvl_context* ctx;
static kvl_cache* cache;

static void must(kvl_status status)
{
    if (status == KVL_OK) return;
    fprintf(stderr, "batch: %s\n", ctx ? kvl_context_message(ctx) : kvl_status_text(status));
    exit(1);
}

// Stands for the model: rows that depend on the request and the position alone.
static void make_row(int request, int position, int kind, int num, float* x)
{
    uint32_t state = (uint32_t)(request * 7919 + position * 31 + kind) * 2654435761u + 1u;
    for (int i = 0; i < num; ++i) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
}

static int length_of(int request) { return prefix_len + 60 + request * 37 % 90; }

// Appends the row at `position` to each sequence and attends to it, all of them in one call.
static void step(int n, const kvl_seq* seqs, const int* requests, const int* positions, float* o)
{
    float k[num_places * kv_row], v[num_places * kv_row], q[num_places * q_row];
    for (int i = 0; i < n; ++i) {
        const int from = positions[i] < prefix_len ? -1 : requests[i];
        make_row(from, positions[i], 0, kv_row, k + i * kv_row);
        make_row(from, positions[i], 1, kv_row, v + i * kv_row);
        make_row(from, positions[i], 2, q_row, q + i * q_row);
    }
    must(kvl_append_attend(cache,
                           &(kvl_append_desc){ .num_seqs = n, .seqs = seqs, .k = { .data = k },
                                               .v = { .data = v } },
                           &(kvl_attend_desc){ .num_seqs = n, .seqs = seqs, .q = { .data = q },
                                               .o = { .data = o } }));
}

// The last output of a request that has the cache to itself.
static void run_alone(int request, float* o)
{
    kvl_seq seq;
    must(kvl_seq_create(cache, &seq));
    for (int p = 0; p < length_of(request); ++p) step(1, &seq, &request, &p, o);
    must(kvl_seq_free(cache, seq));
}

int main(void)
{
    static float last[num_requests][q_row];
    must(kvl_context_create(&(kvl_context_desc){ 0 }, &ctx));
    const kvl_layer_desc layer = { .num_q_heads = num_q_heads, .num_kv_heads = num_kv_heads,
                                   .head_dim = head_dim, .spec = "kivi:k4,v4,g32,recent=64" };
    must(kvl_cache_create(ctx, &(kvl_cache_desc){ .num_layers = 1, .layers = &layer }, &cache));
    kvl_seq prefix, seqs[num_places];
    int requests[num_places], positions[num_places], n = 0, next = 0, steps = 0;
    uint64_t saved = 0;
    float o[num_places * q_row];
    must(kvl_seq_create(cache, &prefix));
    for (int p = 0; p < prefix_len; ++p) step(1, &prefix, &(int){ 0 }, &p, o);
    for (; n > 0 || next < num_requests; ++steps) {
        if (n < num_places && next < num_requests) {        // one joins: the prompt costs nothing
            must(kvl_seq_fork(cache, prefix, &seqs[n]));
            requests[n] = next++;
            positions[n++] = prefix_len;
        }
        step(n, seqs, requests, positions, o);
        kvl_stats stats;
        must(kvl_cache_stats(cache, &stats));
        if (stats.saved_bytes > saved) saved = stats.saved_bytes;
        for (int i = n - 1; i >= 0; --i) {                  // those that are done leave
            if (++positions[i] < length_of(requests[i])) continue;
            memcpy(last[requests[i]], o + i * q_row, sizeof last[0]);
            must(kvl_seq_free(cache, seqs[i]));
            --n;
            seqs[i] = seqs[n];
            requests[i] = requests[n];
            positions[i] = positions[n];
            memcpy(o + i * q_row, o + n * q_row, sizeof last[0]);
        }
    }
    int different = 0;
    for (int request = 0; request < num_requests; ++request) {
        run_alone(request, o);
        different += memcmp(o, last[request], sizeof last[0]) != 0;
    }
    printf("%d requests in %d steps of up to %d; forks saved %d KB; %d of them differ from running "
           "alone\n", num_requests, steps, num_places, (int)(saved / 1024), different);
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
    return different != 0;
}
