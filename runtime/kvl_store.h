// kvl_store.h -- what a cache is made of: layers, sequences, window buffers, pages, and their
// bytes.
//
//   cache -> layers [num_layers]                  config, kernels, page size
//         -> slots [capacity]                     sequences by the low half of their handle
//            seq -> seq_layer [num_layers]        rows, window buffer, page table
//                   pages [entries]               contents; a page's header lies before them
//
// A window buffer is [num_kv_heads] x { sink keys, sink values, tail keys, tail values }, 16-bit
// rows of one head contiguous.  Sizes come from one place, so that kvl_estimate and what is
// allocated cannot differ.

#ifndef KVL_STORE_H
#define KVL_STORE_H

#include "kvl_kernels.h"
#include "kvl_plan.h"
#include "kvl_ref.h"
#include "kvl_threads.h"

enum { KVL__PAGE_HEADER = 64, KVL__SEQS_MIN = 8, KVL__WAVE_ROWS = 256 };

typedef struct kvl__page {         // at contents - KVL__PAGE_HEADER
    void*    memory;               // as it was allocated
    uint32_t refs;
} kvl__page;

typedef struct kvl__layer {
    kvl_layer_desc       desc;     // spec is not kept here: config has it
    kvl__config          config;
    int                  active;   // has KV heads
    int                  generated;
    kvl__program         program;
    const char*          from;     // where the kernels came from
    char                 why[256]; // why the reference runs, if it was not asked for
    float                softmax_scale;
    int64_t              k_bytes, v_bytes;    // of one head in a page
    uint64_t             page_bytes;          // contents, all heads
    int64_t              sink_rows, tail_rows;
    uint64_t             window_bytes;        // of one sequence
} kvl__layer;

typedef struct kvl__seq_layer {
    int64_t         rows;
    unsigned char*  window;        // window_bytes
    unsigned char** pages;         // [entries]
    int64_t         num_pages, entries;
    unsigned char** grown;         // [grown_entries] a longer table, while pages are reserved
    int64_t         grown_entries, num_reserved;
} kvl__seq_layer;

typedef struct kvl__seq {
    uint32_t        generation;    // high half of its handle
    kvl__seq_layer* layers;        // [num_layers], behind this struct
} kvl__seq;

// One query row of a wave.
typedef struct kvl__query {
    const kvl__seq_layer* s;
    kvl__visible          v;
    int64_t               row;          // in the caller's q, o, lse
    int64_t               first_item;   // parts of heads that earlier rows have
} kvl__query;

struct kvl_cache {
    kvl_context* ctx;
    kvl__layer*  layers;
    int          num_layers, max_seqs;
    uint64_t     max_bytes;
    kvl__seq**   slots;
    int          capacity, num_seqs;
    uint32_t     next_generation;
    // Scratch of attend, made at creation for the largest layer.
    unsigned char* scratch;
    uint64_t     scratch_bytes;
    int64_t      max_parts;             // of a wave, per head
    kvl__query*  wave;                  // [KVL__WAVE_ROWS]
    float*       o_part;                // [max_parts, num_heads * head_dim_v]
    float*       lse_part;              // [max_parts, num_heads]
    int32_t*     done;                  // [KVL__WAVE_ROWS * max_kv_heads] parts that are finished
    unsigned char* thread_scratch;      // [threads, thread_bytes]
    int64_t      part_floats, thread_bytes, q_floats, acc_floats;
    uint64_t     bytes, peak_bytes, page_bytes, window_bytes;
};

// MEMORY OF A CACHE

KVL__FN void* kvl__cache_alloc(kvl_cache* cache, uint64_t bytes)
{
    if (cache->max_bytes && (bytes > cache->max_bytes || cache->bytes > cache->max_bytes - bytes)) {
        kvl__fail(cache->ctx, KVL_NO_MEMORY, "max_bytes = %llu: %llu are in use and %llu more are "
                  "needed", (unsigned long long)cache->max_bytes, (unsigned long long)cache->bytes,
                  (unsigned long long)bytes);
        return NULL;
    }
    void* ptr = kvl__alloc_zeroed(cache->ctx, (size_t)bytes);
    if (!ptr) {
        kvl__fail(cache->ctx, KVL_NO_MEMORY, "the allocator has no %llu bytes",
                  (unsigned long long)bytes);
        return NULL;
    }
    cache->bytes += bytes;
    if (cache->bytes > cache->peak_bytes) cache->peak_bytes = cache->bytes;
    return ptr;
}

KVL__FN void kvl__cache_release(kvl_cache* cache, void* ptr, uint64_t bytes)
{
    if (!ptr) return;
    kvl__free(cache->ctx, ptr, (size_t)bytes);
    cache->bytes -= bytes;
}

// A page as it is allocated: contents aligned to 64 bytes, header before them.
KVL__FN uint64_t kvl__page_alloc_bytes(const kvl__layer* l)
{
    return l->page_bytes + KVL__PAGE_HEADER + 63;
}

KVL__FN unsigned char* kvl__page_create(kvl_cache* cache, const kvl__layer* l)
{
    void* memory = kvl__cache_alloc(cache, kvl__page_alloc_bytes(l));
    if (!memory) return NULL;
    const uintptr_t at = ((uintptr_t)memory + KVL__PAGE_HEADER + 63) & ~(uintptr_t)63;
    kvl__page* page = (kvl__page*)(at - KVL__PAGE_HEADER);
    page->memory = memory;
    page->refs = 1;
    cache->page_bytes += l->page_bytes;
    return (unsigned char*)at;
}

KVL__FN void kvl__page_release(kvl_cache* cache, const kvl__layer* l, unsigned char* contents)
{
    kvl__page* page = (kvl__page*)(void*)(contents - KVL__PAGE_HEADER);
    if (--page->refs > 0) return;
    kvl__cache_release(cache, page->memory, kvl__page_alloc_bytes(l));
    cache->page_bytes -= l->page_bytes;
}

// WINDOWS

typedef struct kvl__windows {
    uint16_t* sink[2];             // keys, values: [sink_rows, head_dim]
    uint16_t* tail[2];             // [tail_rows, head_dim]
} kvl__windows;

KVL__FN kvl__windows kvl__windows_of(const kvl__layer* l, const kvl__seq_layer* s, int head)
{
    const int64_t dk = l->config.side[0].head_dim, dv = l->config.side[1].head_dim;
    uint16_t* at = (uint16_t*)(void*)s->window + head * (l->sink_rows + l->tail_rows) * (dk + dv);
    kvl__windows w;
    w.sink[0] = at;
    w.sink[1] = w.sink[0] + l->sink_rows * dk;
    w.tail[0] = w.sink[1] + l->sink_rows * dv;
    w.tail[1] = w.tail[0] + l->tail_rows * dk;
    return w;
}

// SEQUENCES

KVL__FN uint64_t kvl__seq_bytes(const kvl_cache* cache)
{
    return sizeof(kvl__seq) + (uint64_t)cache->num_layers * sizeof(kvl__seq_layer);
}

KVL__FN int kvl__slots_for(int num_seqs)
{
    int capacity = KVL__SEQS_MIN;
    while (capacity < num_seqs) capacity *= 2;
    return capacity;
}

// The sequence of a handle, or NULL.
KVL__FN kvl__seq* kvl__seq_find(const kvl_cache* cache, kvl_seq handle)
{
    const uint64_t slot = (handle & 0xffffffffu);
    if (slot == 0 || slot > (uint64_t)cache->capacity) return NULL;
    kvl__seq* seq = cache->slots[slot - 1];
    return seq && seq->generation == handle >> 32 ? seq : NULL;
}

KVL__FN void kvl__seq_release(kvl_cache* cache, kvl__seq* seq)
{
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__layer* l = &cache->layers[i];
        kvl__seq_layer* s = &seq->layers[i];
        for (int64_t p = 0; p < s->num_pages; ++p) kvl__page_release(cache, l, s->pages[p]);
        kvl__cache_release(cache, s->pages, (uint64_t)s->entries * sizeof(unsigned char*));
        if (s->window) cache->window_bytes -= l->window_bytes;
        kvl__cache_release(cache, s->window, l->window_bytes);
    }
    kvl__cache_release(cache, seq, kvl__seq_bytes(cache));
}

KVL__FN kvl__seq* kvl__seq_make(kvl_cache* cache)
{
    kvl__seq* seq = (kvl__seq*)kvl__cache_alloc(cache, kvl__seq_bytes(cache));
    if (!seq) return NULL;
    seq->layers = (kvl__seq_layer*)(void*)(seq + 1);
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__layer* l = &cache->layers[i];
        if (!l->active || l->window_bytes == 0) continue;
        seq->layers[i].window = (unsigned char*)kvl__cache_alloc(cache, l->window_bytes);
        if (!seq->layers[i].window) {
            kvl__seq_release(cache, seq);
            return NULL;
        }
        cache->window_bytes += l->window_bytes;
    }
    return seq;
}

KVL__FN int kvl__slots_grow(kvl_cache* cache, int num_seqs)
{
    const int capacity = kvl__slots_for(num_seqs);
    if (capacity <= cache->capacity) return 1;
    kvl__seq** slots = (kvl__seq**)kvl__cache_alloc(cache, (uint64_t)capacity * sizeof *slots);
    if (!slots) return 0;
    if (cache->slots) memcpy(slots, cache->slots, (size_t)cache->capacity * sizeof *slots);
    kvl__cache_release(cache, cache->slots, (uint64_t)cache->capacity * sizeof *slots);
    cache->slots = slots;
    cache->capacity = capacity;
    return 1;
}

// Reserving pages has two steps, so that a batch gets all of its pages or none: reserve for every
// sequence, then keep or drop for every sequence.

KVL__FN unsigned char** kvl__pages_table(kvl__seq_layer* s)
{
    return s->grown ? s->grown : s->pages;
}

KVL__FN void kvl__pages_drop(kvl_cache* cache, const kvl__layer* l, kvl__seq_layer* s)
{
    unsigned char** table = kvl__pages_table(s);
    while (s->num_reserved > 0)
        kvl__page_release(cache, l, table[s->num_pages + --s->num_reserved]);
    kvl__cache_release(cache, s->grown, (uint64_t)s->grown_entries * sizeof *s->grown);
    s->grown = NULL;
}

KVL__FN void kvl__pages_keep(kvl_cache* cache, kvl__seq_layer* s)
{
    s->num_pages += s->num_reserved;
    s->num_reserved = 0;
    if (!s->grown) return;
    kvl__cache_release(cache, s->pages, (uint64_t)s->entries * sizeof *s->pages);
    s->pages = s->grown;
    s->entries = s->grown_entries;
    s->grown = NULL;
}

// Pages for `rows` rows; 0 after a failure, with what was reserved left to kvl__pages_drop.
KVL__FN int kvl__pages_reserve(kvl_cache* cache, const kvl__layer* l, kvl__seq_layer* s,
                               int64_t rows)
{
    const int64_t num = kvl__num_pages(&l->config, rows), entries = kvl__table_entries(num);
    if (entries > s->entries) {
        s->grown = (unsigned char**)kvl__cache_alloc(cache, (uint64_t)entries * sizeof *s->grown);
        if (!s->grown) return 0;
        s->grown_entries = entries;
        if (s->pages) memcpy(s->grown, s->pages, (size_t)s->num_pages * sizeof *s->grown);
    }
    while (s->num_pages + s->num_reserved < num) {
        unsigned char* page = kvl__page_create(cache, l);
        if (!page) return 0;
        kvl__pages_table(s)[s->num_pages + s->num_reserved++] = page;
    }
    return 1;
}

// LAYERS AND SCRATCH

KVL__FN void kvl__layer_sizes(kvl__layer* l)
{
    const kvl__config* c = &l->config;
    const int64_t dims = c->side[0].head_dim + c->side[1].head_dim;
    l->k_bytes = kvl__layout_of(&c->side[0], c->page_size).bytes;
    l->v_bytes = kvl__layout_of(&c->side[1], c->page_size).bytes;
    l->page_bytes = (uint64_t)c->num_kv_heads * (uint64_t)(l->k_bytes + l->v_bytes);
    l->sink_rows = c->sink_len;
    l->tail_rows = kvl__tail_rows(c);
    l->window_bytes =
        (uint64_t)c->num_kv_heads * 2u * (uint64_t)((l->sink_rows + l->tail_rows) * dims);
}

KVL__FN int64_t kvl__round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// The sizes of attend's scratch, from the layers; returns its bytes.
KVL__FN uint64_t kvl__scratch_sizes(kvl_cache* cache, int num_threads)
{
    int64_t kv_heads = 1, lse = 0;
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__layer* l = &cache->layers[i];
        if (!l->active) continue;
        const int64_t heads = l->config.num_heads;
        kv_heads = kvl__max_i64(kv_heads, l->config.num_kv_heads);
        lse = kvl__max_i64(lse, heads);
        cache->q_floats = kvl__max_i64(cache->q_floats, heads * l->config.side[0].head_dim);
        cache->acc_floats = kvl__max_i64(cache->acc_floats, heads * l->config.side[1].head_dim);
    }
    cache->part_floats = cache->acc_floats;
    cache->max_parts = kv_heads * (KVL__MAX_SPLITS + 1);
    cache->thread_bytes = kvl__round_up(4 * cache->q_floats, 64) +
                          kvl__round_up(4 * cache->acc_floats, 64) + KVL__SCRATCH_BYTES;
    return (uint64_t)(64 + kvl__round_up((int64_t)sizeof(kvl__query) * KVL__WAVE_ROWS, 64) +
                      kvl__round_up(4 * cache->max_parts * cache->part_floats, 64) +
                      kvl__round_up(4 * cache->max_parts * lse, 64) +
                      kvl__round_up(4 * KVL__WAVE_ROWS * kv_heads, 64) +
                      num_threads * cache->thread_bytes);
}

KVL__FN void kvl__scratch_lay_out(kvl_cache* cache)
{
    int64_t kv_heads = 1, lse = 0;
    for (int i = 0; i < cache->num_layers; ++i) {
        if (!cache->layers[i].active) continue;
        kv_heads = kvl__max_i64(kv_heads, cache->layers[i].config.num_kv_heads);
        lse = kvl__max_i64(lse, cache->layers[i].config.num_heads);
    }
    uintptr_t at = ((uintptr_t)cache->scratch + 63) & ~(uintptr_t)63;
    cache->wave = (kvl__query*)at;
    at += (uintptr_t)kvl__round_up((int64_t)sizeof(kvl__query) * KVL__WAVE_ROWS, 64);
    cache->o_part = (float*)at;
    at += (uintptr_t)kvl__round_up(4 * cache->max_parts * cache->part_floats, 64);
    cache->lse_part = (float*)at;
    at += (uintptr_t)kvl__round_up(4 * cache->max_parts * lse, 64);
    cache->done = (int32_t*)at;
    at += (uintptr_t)kvl__round_up(4 * KVL__WAVE_ROWS * kv_heads, 64);
    cache->thread_scratch = (unsigned char*)at;
}

#endif
