// kvl_staging.h -- pages and windows of a cache in the host's memory, wherever the cache is.
//
// On the host they are used where they lie.  What a device has goes through buffers: pages as they
// are, which stay in the tile order, and windows, whose rings are unrolled into tails with their
// history before them.

#ifndef KVL_STAGING_H
#define KVL_STAGING_H

#include "kvl_device.h"

enum { KVL__STAGED_PAGES = 32 };       // so that the threads have something to do

typedef struct kvl__staging {
    kvl_cache*     cache;
    unsigned char* linear;             // [KVL__STAGED_PAGES] pages, of the layer with the largest
    unsigned char* pages;              // as many; NULL: the cache is on the host
    unsigned char* ring;               // a window as the device has it
    unsigned char* window;             // the same as the host has it
    unsigned char* memory;             // what the four are in
    uint64_t       bytes;
} kvl__staging;

KVL__FN kvl_status kvl__staging_begin(kvl_cache* cache, kvl__staging* st)
{
    uint64_t page = 0, window = 0;
    memset(st, 0, sizeof *st);
    st->cache = cache;
    for (int i = 0; i < cache->num_layers; ++i) {
        if (cache->layers[i].page_bytes > page) page = cache->layers[i].page_bytes;
        if (cache->layers[i].window_bytes > window) window = cache->layers[i].window_bytes;
    }
    const uint64_t pages = page * KVL__STAGED_PAGES;
    st->bytes = kvl__on_device(cache) ? 2 * pages + 2 * window : pages;
    st->memory = (unsigned char*)kvl__alloc(cache->ctx, (size_t)st->bytes);
    KVL__REQUIRE(cache->ctx, st->memory, KVL_NO_MEMORY, "the allocator has no %llu bytes",
                 (unsigned long long)st->bytes);
    st->linear = st->memory;
    if (!kvl__on_device(cache)) return KVL_OK;
    st->pages = st->linear + pages;
    st->ring = st->pages + pages;
    st->window = st->ring + window;
    return KVL_OK;
}

KVL__FN void kvl__staging_end(kvl_context* ctx, kvl__staging* st)
{
    kvl__free(ctx, st->memory, (size_t)st->bytes);
    st->memory = NULL;
}

// WINDOWS

// Copies all rows of a window between its two orders; s has the host's, as kvl__windows_of reads
// it.  into_ring: from the host's to the device's.
KVL__FN void kvl__staging_turn(const kvl__staging* st, const kvl__layer* l,
                               const kvl__seq_layer* s, int into_ring)
{
    const kvl__config* c = &l->config;
    const int64_t ring_rows = l->keep_rows + l->tail_rows;
    const int64_t first = s->now.quantized - s->now.history;
    const int64_t num = s->now.rows - kvl__min_i64(s->now.rows, l->sink_rows) - first;
    uint16_t* at = (uint16_t*)(void*)st->ring;
    for (int head = 0; head < c->num_kv_heads; ++head) {
        const kvl__windows w = kvl__windows_of(l, s, head);
        uint16_t* sink = at;
        at += l->sink_rows * kvl__stored_dims(c);
        for (int side = 0; side < c->num_stored; ++side) {
            const int64_t dim = c->side[side].head_dim;
            const size_t sink_bytes = (size_t)(l->sink_rows * dim) * sizeof *at;
            memcpy(into_ring ? sink : w.sink[side], into_ring ? w.sink[side] : sink, sink_bytes);
            sink += l->sink_rows * dim;
            for (int64_t i = 0; i < num; ++i) {
                uint16_t* ring = at + (first + i) % ring_rows * dim;
                uint16_t* tail = w.tail[side] + (i - s->now.history) * dim;
                memcpy(into_ring ? ring : tail, into_ring ? tail : ring,
                       (size_t)dim * sizeof *at);
            }
            at += ring_rows * dim;
        }
    }
}

// *view: the sequence, with a window of the host's.
KVL__FN kvl_status kvl__staging_fetch(const kvl__staging* st, const kvl__layer* l,
                                      const kvl__seq_layer* s, kvl__seq_layer* view)
{
    *view = *s;
    if (!st->pages || !s->window) return KVL_OK;
    view->window = st->window;
    KVL__TRY(kvl__device_download(st->cache->ctx, st->cache->device.stream, st->ring,
                                  (uintptr_t)s->window, l->window_bytes));
    kvl__staging_turn(st, l, view, 0);
    return KVL_OK;
}

// A view to be filled; what is in it goes to the sequence by kvl__staging_store.
KVL__FN kvl__seq_layer kvl__staging_blank(const kvl__staging* st, const kvl__layer* l,
                                          const kvl__seq_layer* s)
{
    kvl__seq_layer view = *s;
    if (!st->pages || !s->window) return view;
    memset(st->window, 0, (size_t)l->window_bytes);
    memset(st->ring, 0, (size_t)l->window_bytes);
    view.window = st->window;
    return view;
}

KVL__FN kvl_status kvl__staging_store(const kvl__staging* st, const kvl__layer* l,
                                      const kvl__seq_layer* s, const kvl__seq_layer* view)
{
    if (!st->pages || !s->window) return KVL_OK;
    kvl__staging_turn(st, l, view, 1);
    return kvl__device_upload(st->cache->ctx, st->cache->device.stream, (uintptr_t)s->window,
                              st->ring, l->window_bytes);
}

// PAGES

typedef struct kvl__page_batch {
    const kvl__staging* st;
    const kvl__layer*   l;
    unsigned char*      contents[KVL__STAGED_PAGES];   // as tables have them
    int32_t             num_rows[KVL__STAGED_PAGES];
    int                 num, into_page;
} kvl__page_batch;

KVL__FN unsigned char* kvl__batch_page(const kvl__page_batch* b, int64_t item)
{
    return b->st->pages ? b->st->pages + (uint64_t)item * b->l->page_bytes : b->contents[item];
}

KVL__FN unsigned char* kvl__batch_linear(const kvl__page_batch* b, int64_t item)
{
    return b->st->linear + (uint64_t)item * b->l->page_bytes;
}

// Rows [0, num_rows) of all heads of a page, between its own order and the linear one.
KVL__FN void kvl__batch_item(void* arg, int64_t item, int thread)
{
    const kvl__page_batch* b = (const kvl__page_batch*)arg;
    const kvl__config* c = &b->l->config;
    unsigned char* linear = kvl__batch_linear(b, item);
    (void)thread;
    if (!b->into_page) memset(linear, 0, (size_t)b->l->page_bytes);
    for (int head = 0; head < c->num_kv_heads; ++head) {
        for (int side = 0; side < c->num_stored; ++side) {
            const int64_t at = kvl__side_at(b->l, head, side);
            kvl__linear_args a;
            memset(&a, 0, sizeof a);
            a.codec = &c->side[side];
            a.page = kvl__batch_page(b, item) + at;
            a.linear = linear + at;
            a.page_size = c->page_size;
            a.num_rows = b->num_rows[item];
            a.into_page = b->into_page;
            (side ? b->l->program.linear_values : b->l->program.linear_keys)(&a);
        }
    }
}

KVL__FN kvl_status kvl__batch_run(kvl__page_batch* b)
{
    kvl_cache* cache = b->st->cache;
    const uint64_t bytes = b->l->page_bytes;
    for (int i = 0; b->st->pages && i < b->num; ++i) {
        if (b->into_page) memset(kvl__batch_page(b, i), 0, (size_t)bytes);
        else KVL__TRY(kvl__device_download(cache->ctx, cache->device.stream, kvl__batch_page(b, i),
                                           kvl__page_of(b->contents[i])->device, bytes));
    }
    kvl__parallel(cache->ctx, b->num, kvl__batch_item, b);
    for (int i = 0; b->st->pages && b->into_page && i < b->num; ++i)
        KVL__TRY(kvl__device_upload(cache->ctx, cache->device.stream,
                                    kvl__page_of(b->contents[i])->device, kvl__batch_page(b, i),
                                    bytes));
    return KVL_OK;
}

// FULL ROWS

// Memory for rows on their way from one cache to another: of the host, or of each cache's device.
// A copy between the two is needed unless both caches have one context or are on the host.
typedef struct kvl__passage {
    kvl_cache* end[2];                 // the cache that is read, the one that is written
    void*      rows[2];
    void*      between;                // of the host, from one device to another; else NULL
    uint64_t   bytes;
} kvl__passage;

// The message is read in the context of the cache that is written.
KVL__FN kvl_status kvl__passage_failed(const kvl__passage* p, const kvl_cache* at,
                                       kvl_status status)
{
    if (status != KVL_OK && at->ctx != p->end[1]->ctx)
        kvl__fail(p->end[1]->ctx, status, "%s", kvl_context_message(at->ctx));
    return status;
}

KVL__FN kvl_status kvl__passage_host(const kvl__passage* p, void** rows)
{
    *rows = kvl__alloc(p->end[1]->ctx, (size_t)p->bytes);
    KVL__REQUIRE(p->end[1]->ctx, *rows, KVL_NO_MEMORY, "the allocator has no %llu bytes",
                 (unsigned long long)p->bytes);
    return KVL_OK;
}

KVL__FN kvl_status kvl__passage_take(kvl__passage* p, int end)
{
    kvl_cache* at = p->end[end];
    uint64_t address;
    if (!kvl__on_device(at)) return kvl__passage_host(p, &p->rows[end]);
    const kvl_status status =
        kvl__device_take(at->ctx, at->device.stream, p->bytes, &address);
    p->rows[end] = (void*)(uintptr_t)address;
    return kvl__passage_failed(p, at, status);
}

KVL__FN int kvl__passage_is_one(const kvl__passage* p)
{
    return p->end[0]->ctx == p->end[1]->ctx ||
           (!kvl__on_device(p->end[0]) && !kvl__on_device(p->end[1]));
}

// Ends with kvl__passage_end whatever the status.
KVL__FN kvl_status kvl__passage_begin(kvl__passage* p)
{
    KVL__TRY(kvl__passage_take(p, 0));
    if (kvl__passage_is_one(p)) {
        p->rows[1] = p->rows[0];
        return KVL_OK;
    }
    KVL__TRY(kvl__passage_take(p, 1));
    return kvl__on_device(p->end[0]) && kvl__on_device(p->end[1])
        ? kvl__passage_host(p, &p->between) : KVL_OK;
}

KVL__FN void kvl__passage_end(kvl__passage* p)
{
    if (p->rows[0] == p->rows[1]) p->rows[1] = NULL;
    for (int i = 0; i < 2; ++i) {
        kvl_cache* at = p->end[i];
        if (kvl__on_device(at))
            kvl__device_give(at->ctx, at->device.stream, (uintptr_t)p->rows[i], p->bytes);
        else
            kvl__free(p->end[1]->ctx, p->rows[i], (size_t)p->bytes);
    }
    kvl__free(p->end[1]->ctx, p->between, (size_t)p->bytes);
}

// Bytes from `at` on that were read come to where they are written from.
KVL__FN kvl_status kvl__passage_cross(const kvl__passage* p, uint64_t at, uint64_t bytes)
{
    kvl_cache *from = p->end[0], *to = p->end[1];
    char* rows[2];
    if (kvl__passage_is_one(p)) return KVL_OK;
    for (int i = 0; i < 2; ++i) rows[i] = (char*)p->rows[i] + at;
    char* between = p->between ? (char*)p->between + at : rows[kvl__on_device(to) ? 0 : 1];
    if (kvl__on_device(from)) {
        const kvl_status status = kvl__device_download(from->ctx, from->device.stream, between,
                                                       (uintptr_t)rows[0], bytes);
        KVL__TRY(kvl__passage_failed(p, from, status));
    }
    return kvl__on_device(to) ? kvl__device_upload(to->ctx, to->device.stream, (uintptr_t)rows[1],
                                                   between, bytes)
                              : KVL_OK;
}

#endif
