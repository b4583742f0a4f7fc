// own_allocator.c -- a cache in the program's own memory: an arena that hands out powers of two,
// counts, and says no when it is used up.
//
//     cc -std=c99 own_allocator.c $(pkg-config --cflags --libs kvloom)

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

#include <stdio.h>
#include <stdlib.h>

enum { arena_bytes = 24 << 20, num_classes = 25, head_dim = 64 };     // powers of two, to 16 MB

typedef struct arena {
    unsigned char* bytes;              // [arena_bytes]
    size_t used;                       // of them, that were ever handed out
    void*  free[num_classes];          // lists of pieces that came back
    size_t live;                       // bytes asked for and not returned
} arena;

static int class_of(size_t bytes)
{
    int c = 6;                         // 64 bytes at least
    while (((size_t)1 << c) < bytes) ++c;
    return c;
}

// The hooks are called from any thread that uses the context; this program has one.
static void* arena_alloc(size_t bytes, void* user)
{
    arena* a = user;
    const int c = class_of(bytes);
    if (c >= num_classes) return NULL;
    void* piece = a->free[c];
    if (piece) {
        a->free[c] = *(void**)piece;
    } else {
        if (((size_t)1 << c) > arena_bytes - a->used) return NULL;
        piece = a->bytes + a->used;
        a->used += (size_t)1 << c;
    }
    a->live += bytes;
    return piece;
}

static void arena_free(void* piece, size_t bytes, void* user)
{
    arena* a = user;
    const int c = class_of(bytes);     // the size comes back: pieces need no headers
    *(void**)piece = a->free[c];
    a->free[c] = piece;
    a->live -= bytes;
}

int main(void)
{
    arena a = { .bytes = malloc(arena_bytes) };
    kvl_context* ctx;
    kvl_cache* cache;
    if (!a.bytes) return 1;
    const kvl_context_desc context = { .num_threads = 1,
                                       .allocator = { arena_alloc, arena_free, &a } };
    const kvl_layer_desc layer = { .num_q_heads = 4, .num_kv_heads = 4, .head_dim = head_dim,
                                   .spec = "q8_0" };
    if (kvl_context_create(&context, &ctx) != KVL_OK) return 1;
    if (kvl_cache_create(ctx, &(kvl_cache_desc){ .num_layers = 1, .layers = &layer }, &cache)) {
        fprintf(stderr, "own_allocator: %s\n", kvl_context_message(ctx));
        return 1;
    }
    // Appends until the arena is used up.  The call that fails changes nothing.
    static float rows[1000 * 4 * head_dim];
    kvl_seq seq;
    kvl_seq_rows held = { 0 };
    kvl_status status = kvl_seq_create(cache, &seq);
    while (status == KVL_OK)
        status = kvl_append(cache, &(kvl_append_desc){ .num_seqs = 1, .seqs = &seq,
                                                       .num_rows = (int32_t[]){ 1000 },
                                                       .k = { .data = rows },
                                                       .v = { .data = rows } });
    printf("in the end: %s: %s\n", kvl_status_text(status), kvl_context_message(ctx));
    kvl_stats stats;
    if (kvl_seq_get_rows(cache, 0, seq, &held) != KVL_OK) return 1;
    if (kvl_cache_stats(cache, &stats) != KVL_OK) return 1;
    printf("%d rows in a cache of %d bytes; %d with the context\n", (int)held.rows,
           (int)stats.bytes, (int)a.live);
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
    printf("%d bytes left\n", (int)a.live);
    free(a.bytes);
    const int whole = held.rows >= 1000 && held.rows % 1000 == 0;
    return a.live != 0 || status != KVL_NO_MEMORY || !whole;
}
