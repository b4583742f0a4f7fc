// stream.c -- text without an end in a fixed budget: the first rows and the newest stay, the middle
// is dropped.  Positions go on counting, so keys keep the rotation that they came with.
//
//     cc -std=c99 stream.c $(pkg-config --cflags --libs kvloom)

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

#include <stdio.h>
#include <stdlib.h>

enum { num_rows = 20000, sink_len = 4, seen_len = 512, num_heads = 4, head_dim = 64 };

static kvl_context* ctx;

static void must(kvl_status status)
{
    if (status == KVL_OK) return;
    fprintf(stderr, "stream: %s\n", ctx ? kvl_context_message(ctx) : kvl_status_text(status));
    exit(1);
}

static void fill(float* x, int num)
{
    for (int i = 0; i < num; ++i) x[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
}

int main(void)
{
    must(kvl_context_create(&(kvl_context_desc){ 0 }, &ctx));
    const kvl_layer_desc layer = { .num_q_heads = num_heads, .num_kv_heads = num_heads,
                                   .head_dim = head_dim,
                                   .spec = "kivi:k2,v2,g32,sink=4,recent=64" };
    const kvl_cache_desc desc = { .num_layers = 1, .layers = &layer };
    kvl_cache* cache;
    must(kvl_cache_create(ctx, &desc, &cache));
    uint64_t budget = 0;     // of what is seen, and a page of 64 rows that empties
    must(kvl_estimate(ctx, &desc, 1, sink_len + seen_len + 64, &budget));
    kvl_seq seq;
    must(kvl_seq_create(cache, &seq));
    float k[num_heads * head_dim], v[num_heads * head_dim], q[num_heads * head_dim];
    float o[num_heads * head_dim];
    int over = 0;
    for (int row = 0; row < num_rows; ++row) {
        fill(k, num_heads * head_dim);
        fill(v, num_heads * head_dim);
        fill(q, num_heads * head_dim);
        must(kvl_append(cache, &(kvl_append_desc){ .num_seqs = 1, .seqs = &seq, .k = { .data = k },
                                                   .v = { .data = v } }));
        must(kvl_attend(cache, &(kvl_attend_desc){ .num_seqs = 1, .seqs = &seq, .q = { .data = q },
                                                   .o = { .data = o } }));
        if (row >= sink_len + seen_len) must(kvl_drop_oldest(cache, seq, 1));
        kvl_stats stats;
        must(kvl_cache_stats(cache, &stats));
        over += stats.bytes > budget;
    }
    kvl_seq_rows rows;
    kvl_stats stats;
    must(kvl_seq_get_rows(cache, 0, seq, &rows));
    must(kvl_cache_stats(cache, &stats));
    printf("row %d sees rows 0 to %d and %d to %d; %d bytes held, at most %d in all\n",
           (int)rows.rows - 1, sink_len - 1, (int)(sink_len + rows.dropped), (int)rows.rows - 1,
           (int)stats.bytes, (int)stats.peak_bytes);
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
    return over > 0 || rows.rows != num_rows || rows.rows - rows.dropped != sink_len + seen_len;
}
