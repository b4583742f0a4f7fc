// kvl_store.h -- what a cache is made of: layers, sequences, window buffers, pages, and their
// bytes.
//
//   cache -> layers [num_layers]                  config, kernels, page size
//         -> slots [capacity]                     sequences by the low half of their handle
//            seq -> seq_layer [num_layers]        extent, window buffer
//                   table                         shared by forks until one of them changes it
//                   pages [entries]               contents; a page's header lies before them
//                   uses [entries]                who refers to them
//
// Counts of references lie together, apart from the pages: a fork that goes its own way refers to
// each page of a long sequence, which lie anywhere.
//
// A window buffer is [num_kv_heads] x { sink keys, sink values, tail keys, tail values, kept keys,
// kept values }, 16-bit rows of one head contiguous, and behind them the positions of kept rows
// (kvl_kept.h); forks share it until one of them writes.  A tail has keep_rows of
// history before its first row: the newest quantized rows as they were, for a truncation that takes
// them back.  Sizes come from one place, so that kvl_estimate and what is allocated cannot differ.
//
// On a device (KVL_TARGET_CUDA) the same tables and counts hold, and what they count lies there: a
// page is a header that has an address, a window buffer is { sink keys, sink values, ring of keys,
// ring of values } of each head, and each sequence has a record a layer that kernels read
// (kvl_device_args.h).  A ring of keep_rows + tail_rows rows is tail and history at once: row r
// after the sink is its row r mod that many, and never moves.
//
// A page is changed by a sequence that alone refers to it, through a table that is its own; else
// the page or the table is copied first.  Bits of rows that a page does not hold may be anything:
// rows that come take their place.

#ifndef KVL_STORE_H
#define KVL_STORE_H

#include "kvl_device_args.h"
#include "kvl_device_memory.h"
#include "kvl_kernels.h"
#include "kvl_plan.h"
#include "kvl_ref.h"
#include "kvl_threads.h"

enum { KVL__FAULTS_BYTES = 256, KVL__DEVICE_ROWS_MAX = INT32_MAX };
enum { KVL__PAGE_HEADER = 64, KVL__WINDOW_HEADER = 16, KVL__SEQS_MIN = 8, KVL__WAVE_ROWS = 256 };
enum { KVL__WAVE_PARTS = 2 * (KVL__MAX_SPLITS + 1) };      // of a head

// Who refers to a page.
typedef struct kvl__uses {
    uint32_t refs;
    uint32_t remembered;           // of refs: those of remembered prompts, see kvl_prefix.h
} kvl__uses;

// The counts of KVL__USES pages; debug builds have small lists, so that tests meet many.
#ifdef KVLOOM_DEBUG
enum { KVL__USES = 4 };
#else
enum { KVL__USES = 256 };
#endif

typedef struct kvl__uses_list {
    struct kvl__uses_list *next, *prev;    // of the layer's that have room
    int32_t   num, free;           // taken places; the first free one, whose refs are the next
    kvl__uses of[KVL__USES];
} kvl__uses_list;

typedef struct kvl__page {         // at contents - KVL__PAGE_HEADER
    void*      memory;             // as it was allocated
    kvl__uses* uses;
    kvl__uses_list* list;          // that it is in; NULL: the pool's
    int32_t    file_number, file_rows;     // while it is saved: see kvl_file.h
    uint64_t   device;             // address of the contents; 0: they follow
    struct kvl__page* next;        // of the layer's spare ones
    int32_t    number;             // in the layer's pool
} kvl__page;

// Followed by entries pointers to the contents of pages, and as many to their uses.
typedef struct kvl__table {
    int64_t refs, entries;
    int64_t first, num;            // pages [first, first + num) of a sequence are in it
    uint64_t device;               // [entries] addresses of contents; 0: not on a device
    int      is_stale;             // the device could not be told of all of them
} kvl__table;

// The functions of a layer's kernels on a device.
typedef struct kvl__device_kernels {
    kvl__cu_function append_rows, encode_rows[2], advance_rows, prepare_query, attend_splits;
    kvl__cu_function merge_splits, restore_rows[2], predict_rows[2];
} kvl__device_kernels;

typedef struct kvl__layer {
    kvl_layer_desc       desc;     // spec is not kept here: config has it
    kvl__config          config;
    int                  active;   // has KV heads
    int                  generated;
    kvl__program         program;
    const char*          from;     // where the kernels came from
    char                 why[256]; // why the reference runs, if it was not asked for
    float                softmax_scale;
    int64_t              release_slack;       // see kvl__released_rows; 0: nothing is released
    int64_t              k_bytes, v_bytes;    // of one head in a page
    uint64_t             page_bytes;          // contents, all heads
    int64_t              sink_rows, keep_rows, tail_rows;
    uint64_t             window_bytes;        // of one sequence
    void*                records;             // calibrated tables, as allocated; NULL: none
    uint64_t             record_bytes;
    uint64_t             fold_hash;           // of the basis that values come in; 0: none, or one
                                              // that follows from the spec
    const float*         tables[2];           // of a side, [num_kv_heads, record_floats]
    int64_t              record_floats[2];
    float*               head_numbers;        // what desc.sink_logits and alibi_slopes point at
    uint64_t             head_bytes;
    int                  number;              // of the layer
    int                  below, above;        // that it is predicted from, and from it; < 0: none
    int                  lowest, depth;       // of those below, or itself; how many are below
    float*               predictors[2];       // [num_kv_heads, inputs, head_dim] of a side
    uint64_t             predictor_bytes;     // of both, allocated as one
    double*              turns;               // of keys that are scored restored, see kvl_rope.h
    uint64_t             turns_bytes;
    uint64_t             device_tables[2];    // the same on a device
    uint64_t             device_records, device_turns, device_places, device_predictors[2];
    uint64_t             device_numbers;      // head_numbers on a device, and what is in them
    uint64_t             device_sinks, device_slopes;
    kvl__device_kernels  kernels;
    kvl__page*           spare;               // pages that kvl_prepare made, out of use
    kvl__uses_list*      uses;                // with room
    int64_t              num_uses, num_uses_lists;     // pages, and all lists of their counts
    void*                pool;                // as allocated, where page tables are the engine's:
    uint64_t             pool_bytes;          // num_pages pages with their headers, after
    uint64_t             pool_uses_bytes;     // their uses
    uint64_t             pool_device;         // on a device: the pages; pool has the headers
    uint64_t             pool_device_bytes;
} kvl__layer;

typedef struct kvl__seq_layer {
    struct kvl__seq* owner;        // whose part it is
    kvl__extent    now;
    unsigned char* window;         // window_bytes; on the host a count of sequences before them
    kvl__table*    table;          // NULL: no pages
    uint64_t       record;         // kvl__device_seq on the device; 0: not on a device
    int            is_stale;       // the record is not what the host has
    // Between reserve and keep or drop of a change:
    kvl__table*    grown;          // takes the place of table
    unsigned char* copied;         // takes the place of the page that is written
    int64_t        num_reserved;   // pages behind those that stay
    unsigned char* own_window;     // takes the place of window
} kvl__seq_layer;

// What is restored of rows that are predicted from other layers', see kvl_predict.h.
typedef struct kvl__restored {
    int64_t   rows, dims;          // that there is room for; values of a row
    int32_t*  layers;              // [rows] 1 + the layer that a row is restored in; 0: none
    uint16_t* values;              // [rows, dims] keys of all heads before RoPE, then values
    // On a device layers and values are NULL, and its kernels know what a row is restored in.
    uint64_t  device;              // templates/cuda/predicted.cuh
    int64_t   first;               // where is_known: rows from there on are restored in one of
    int       is_known, low, high; // the layers from low to high
    int       captured;            // graphs restore rows as well: never known
} kvl__restored;

typedef struct kvl__seq {
    uint32_t        generation;    // high half of its handle
    uint64_t        away;          // what kvl_reload compares; 0: the rows are here
    int             broken;        // an append failed on the device when rows had been overwritten
    kvl__seq_layer* layers;        // [num_layers], behind this struct
    uint64_t        records;       // of the layers, on a device
    int32_t*        pages;         // [num_pages] as the engine handed them in; < 0: none
    int64_t         num_pages;
    kvl__restored   restored;
} kvl__seq;

// One query row of a wave.
typedef struct kvl__query {
    const kvl__seq_layer* s;
    kvl__visible          v;
    int64_t               row;          // in the caller's q, o, lse
    int64_t               position;     // on a device < 0: from the sequence's end
    int64_t               begin, end;   // of rows, as the caller bounds them, on a device
    int64_t               first_item;   // parts of heads that earlier rows have
} kvl__query;

// Whose queries a thread has ready in its scratch: the parts of a query and head that it takes one
// after the other read them as they are.
typedef struct kvl__prepared {
    uint64_t wave;                     // of those that the cache has run, from 1; 0: none are ready
    int64_t  query;                    // of the wave
    int      head;
    float    bias[KVL__MAX_HEADS];     // [num_heads]
} kvl__prepared;

enum { KVL__PREPARED_BYTES = 128 };    // of a kvl__prepared, and no cache line of anything else

// What a cache has on a device.
typedef struct kvl__device_state {
    kvl__cu_stream stream;              // of the last call; what follows is in its order
    kvl__cu_event  event;
    kvl_status     status;              // of what could not be reported where it failed
    int            is_stale;            // so is a record or a table: see kvl__device_refresh
    uint64_t       workspace, workspace_bytes;
    uint64_t       faults;              // uint32_t: bits KVL__FAULT_*
    kvl__cu_stream launches_on;         // of the call at hand
    int64_t        prepared_rows;       // of kvl_prepare; 0: none
} kvl__device_state;

// Remembered prompts: see kvl_prefix.h.
typedef struct kvl__prefix_node kvl__prefix_node;

typedef struct kvl__prefix {
    uint64_t max_bytes, bytes;          // 0: nothing is remembered
    uint64_t alone_bytes;               // of pages that no sequence has
    int64_t  sink_len, unit;            // tokens of a root, of every other node
    int64_t  num_nodes, num_buckets;    // buckets: a power of two, or 0
    kvl__prefix_node** buckets;
    kvl__prefix_node *newest, *oldest;  // by use
} kvl__prefix;

struct kvl_cache {
    kvl_context* ctx;
    kvl__prefix  prefix;
    int        (*make_room)(kvl_cache* cache);  // gives memory up that no sequence has; 0: none
    kvl__device_state device;
    kvl__layer*  layers;
    int          num_layers, max_seqs;
    uint64_t     max_bytes;
    int64_t      num_pages;             // of each layer's pool; 0: page tables are kvloom's own
    kvl__seq**   slots;
    int          capacity, num_seqs;
    uint32_t     next_generation;
    int64_t      calibrated_rows;       // of a sequence, that tables are good for; 0: not known
    // Scratch of attend, made at creation for the largest layer.
    unsigned char* scratch;
    uint64_t     scratch_bytes;
    int64_t      max_parts;             // of a wave, per head
    kvl__query*  wave;                  // [KVL__WAVE_ROWS]
    float*       o_part;                // [max_parts, num_heads * head_dim_v]
    float*       lse_part;              // [max_parts, num_heads]
    int32_t*     done;                  // [KVL__WAVE_ROWS * max_kv_heads] parts that are finished
    unsigned char* thread_scratch;      // [threads, thread_bytes], each begins with kvl__prepared
    uint64_t     num_waves;             // that have run
    int64_t      part_floats, thread_bytes, q_floats, acc_floats;
    uintptr_t    user;                  // of KVLOOM_DEBUG: the thread that is in a call; 0: none
    int          user_depth;            // calls on the cache that are within each other
    int          is_loose;              // kvl_settle.h has work
    int64_t      restored_dims;         // of kvl__restored; 0: no rows are predicted
    int          restored_heads;        // of the layers that are
    uint64_t     bytes, peak_bytes, page_bytes, window_bytes;
};

// MEMORY OF A CACHE

KVL__FN int kvl__over_budget(const kvl_cache* cache, uint64_t bytes)
{
    return cache->max_bytes &&
           (bytes > cache->max_bytes || cache->bytes > cache->max_bytes - bytes);
}

// Memory as the allocator gives it.
KVL__FN void* kvl__cache_take(kvl_cache* cache, uint64_t bytes)
{
    while (kvl__over_budget(cache, bytes) && cache->make_room && cache->make_room(cache)) continue;
    if (kvl__over_budget(cache, bytes)) {
        kvl__fail(cache->ctx, KVL_NO_MEMORY, "max_bytes = %llu: %llu are in use and %llu more are "
                  "needed", (unsigned long long)cache->max_bytes, (unsigned long long)cache->bytes,
                  (unsigned long long)bytes);
        return NULL;
    }
    void* ptr = kvl__alloc(cache->ctx, (size_t)bytes);
    while (!ptr && cache->make_room && cache->make_room(cache))
        ptr = kvl__alloc(cache->ctx, (size_t)bytes);
    if (!ptr) {
        kvl__fail(cache->ctx, KVL_NO_MEMORY, "the allocator has no %llu bytes",
                  (unsigned long long)bytes);
        return NULL;
    }
    cache->bytes += bytes;
    if (cache->bytes > cache->peak_bytes) cache->peak_bytes = cache->bytes;
    return ptr;
}

KVL__FN void* kvl__cache_alloc(kvl_cache* cache, uint64_t bytes)
{
    void* ptr = kvl__cache_take(cache, bytes);
    if (ptr) memset(ptr, 0, (size_t)bytes);
    return ptr;
}

KVL__FN void kvl__cache_release(kvl_cache* cache, void* ptr, uint64_t bytes)
{
    if (!ptr) return;
    kvl__free(cache->ctx, ptr, (size_t)bytes);
    cache->bytes -= bytes;
}

// Notes a failure where none can be returned: the operation at hand does.
KVL__FN void kvl__device_note(kvl_cache* cache, kvl_status status)
{
    if (cache->device.status == KVL_OK) cache->device.status = status;
}

// The status where a function could only say that it has failed: what the device has said, or that
// there is no memory.
KVL__FN kvl_status kvl__cache_failure(const kvl_cache* cache)
{
    return cache->device.status != KVL_OK ? cache->device.status : KVL_NO_MEMORY;
}

// Memory of the device; 0 after a failure.
KVL__FN uint64_t kvl__cache_take_device(kvl_cache* cache, uint64_t bytes)
{
    uint64_t address;
    while (kvl__over_budget(cache, bytes) && cache->make_room && cache->make_room(cache)) continue;
    if (kvl__over_budget(cache, bytes)) {
        kvl__fail(cache->ctx, KVL_NO_MEMORY, "max_bytes = %llu: %llu are in use and %llu more are "
                  "needed", (unsigned long long)cache->max_bytes, (unsigned long long)cache->bytes,
                  (unsigned long long)bytes);
        return 0;
    }
    kvl__cu_stream stream = cache->device.stream;
    kvl_status status = kvl__device_take(cache->ctx, stream, bytes, &address);
    while (status == KVL_NO_MEMORY && cache->make_room && cache->make_room(cache))
        status = kvl__device_take(cache->ctx, stream, bytes, &address);
    if (status == KVL_DEVICE) kvl__device_note(cache, status);
    if (status != KVL_OK) return 0;
    cache->bytes += bytes;
    if (cache->bytes > cache->peak_bytes) cache->peak_bytes = cache->bytes;
    return address;
}

KVL__FN void kvl__cache_give_device(kvl_cache* cache, uint64_t address, uint64_t bytes)
{
    if (!address) return;
    kvl__device_give(cache->ctx, cache->device.stream, address, bytes);
    cache->bytes -= bytes;
}

KVL__FN int kvl__on_device(const kvl_cache* cache) { return cache->ctx->gpu != NULL; }

// A page as it is allocated: contents aligned to 64 bytes, header before them.
KVL__FN uint64_t kvl__page_alloc_bytes(const kvl__layer* l)
{
    return l->page_bytes + KVL__PAGE_HEADER + 63;
}

KVL__FN kvl__page* kvl__page_of(unsigned char* contents)
{
    return (kvl__page*)(void*)(contents - KVL__PAGE_HEADER);
}

// Makes a list of counts for a layer that has none with room.  Where that forgets a prompt, counts
// of its pages may leave room, and no list is needed: l->uses is asked again.
KVL__FN void kvl__uses_make(kvl_cache* cache, kvl__layer* l)
{
    kvl__uses_list* list = (kvl__uses_list*)kvl__cache_take(cache, sizeof *list);
    if (list && l->uses) kvl__cache_release(cache, list, sizeof *list);
    if (!list || l->uses) return;
    memset(list, 0, sizeof *list);
    for (uint32_t i = 0; i < KVL__USES; ++i) list->of[i].refs = i + 1;
    l->uses = list;
    ++l->num_uses_lists;
}

// Takes a place for the uses of a page, and says in which list: the first one of the list that has
// been free last.  NULL: there is no memory.
KVL__FN kvl__uses* kvl__uses_take(kvl_cache* cache, kvl__layer* l, kvl__uses_list** in)
{
    if (!l->uses) kvl__uses_make(cache, l);
    kvl__uses_list* list = l->uses;
    if (!list) return NULL;
    kvl__uses* uses = &list->of[list->free];
    list->free = (int32_t)uses->refs;
    uses->refs = uses->remembered = 0;
    *in = list;
    ++l->num_uses;
    if (++list->num < KVL__USES) return uses;
    l->uses = list->next;
    if (list->next) list->next->prev = NULL;
    list->next = NULL;
    return uses;
}

KVL__FN int kvl__page_count(kvl_cache* cache, const kvl__layer* l, kvl__page* page)
{
    page->uses = kvl__uses_take(cache, &cache->layers[l - cache->layers], &page->list);
    return page->uses != NULL;
}

// Whether a layer has more lists than its pages need.
KVL__FN int kvl__uses_fit_fewer(const kvl__layer* l)
{
    return l->num_uses <= (l->num_uses_lists - 1) * KVL__USES;
}

KVL__FN void kvl__uses_give(kvl_cache* cache, const kvl__layer* l, kvl__page* page)
{
    kvl__layer* owner = &cache->layers[l - cache->layers];
    kvl__uses_list* list = page->list;
    page->uses->refs = (uint32_t)list->free;
    list->free = (int32_t)(page->uses - list->of);
    if (list->num-- == KVL__USES) {
        list->next = owner->uses;
        if (list->next) list->next->prev = list;
        owner->uses = list;
    }
    --owner->num_uses;
    if (list->num == 0) {
        if (list->next) list->next->prev = list->prev;
        *(list->prev ? &list->prev->next : &owner->uses) = list->next;
        --owner->num_uses_lists;
        kvl__cache_release(cache, list, sizeof *list);
    }
    if (kvl__uses_fit_fewer(owner)) cache->is_loose = 1;
}

// A page's header, with memory of the device.
KVL__FN kvl__page* kvl__device_page_make(kvl_cache* cache, const kvl__layer* l)
{
    const uint64_t header_bytes = kvl__page_alloc_bytes(l) - l->page_bytes;
    void* memory = kvl__cache_take(cache, header_bytes);
    if (!memory) return NULL;
    kvl__page* page = (kvl__page*)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
    memset(page, 0, sizeof *page);
    page->memory = memory;
    if (kvl__page_count(cache, l, page)) {
        page->device = kvl__cache_take_device(cache, l->page_bytes);
        if (page->device) return page;
        kvl__uses_give(cache, l, page);
    }
    kvl__cache_release(cache, memory, header_bytes);
    return NULL;
}

KVL__FN void kvl__device_page_free(kvl_cache* cache, const kvl__layer* l, kvl__page* page)
{
    kvl__cache_give_device(cache, page->device, l->page_bytes);
    kvl__uses_give(cache, l, page);
    kvl__cache_release(cache, page->memory, kvl__page_alloc_bytes(l) - l->page_bytes);
}

// The first contents of a page: zeros, or a copy of `from`.
KVL__FN void kvl__page_fill(kvl_cache* cache, const kvl__layer* l, unsigned char* contents,
                            unsigned char* from)
{
    kvl__cu_stream stream = cache->device.stream;
    const uint64_t to = kvl__page_of(contents)->device;
    cache->page_bytes += l->page_bytes;
    if (kvl__on_device(cache))
        kvl__device_note(cache, from
            ? kvl__device_copy(cache->ctx, stream, to, kvl__page_of(from)->device, l->page_bytes)
            : kvl__device_zero(cache->ctx, stream, to, l->page_bytes));
    else if (from) memcpy(contents, from, (size_t)l->page_bytes);
    else memset(contents, 0, (size_t)l->page_bytes);
}

// A spare page, or one that is made.  What gives memory up may give a page of the layer, which is
// then a spare one.
KVL__FN kvl__page* kvl__device_page_ready(kvl_cache* cache, kvl__layer* l)
{
    int (*make_room)(kvl_cache*) = cache->make_room;
    kvl__page* page;
    cache->make_room = NULL;
    do {
        page = l->spare;
        if (page) l->spare = page->next;
        else page = kvl__device_page_make(cache, l);
    } while (!page && cache->device.status == KVL_OK && make_room && make_room(cache));
    cache->make_room = make_room;
    return page;
}

KVL__FN unsigned char* kvl__device_page_create(kvl_cache* cache, const kvl__layer* l,
                                               unsigned char* from)
{
    kvl__page* page = kvl__device_page_ready(cache, &cache->layers[l - cache->layers]);
    if (!page) return NULL;
    page->uses->refs = 1;
    page->next = NULL;
    kvl__page_fill(cache, l, (unsigned char*)page + KVL__PAGE_HEADER, from);
    return (unsigned char*)page + KVL__PAGE_HEADER;
}

// A page of zeros, or a copy of `from`.
KVL__FN unsigned char* kvl__page_create(kvl_cache* cache, const kvl__layer* l, unsigned char* from)
{
    if (kvl__on_device(cache)) return kvl__device_page_create(cache, l, from);
    void* memory = kvl__cache_take(cache, kvl__page_alloc_bytes(l));
    if (!memory) return NULL;
    const uintptr_t at = ((uintptr_t)memory + KVL__PAGE_HEADER + 63) & ~(uintptr_t)63;
    kvl__page* page = (kvl__page*)(at - KVL__PAGE_HEADER);
    memset(page, 0, sizeof *page);
    page->memory = memory;
    if (!kvl__page_count(cache, l, page)) {
        kvl__cache_release(cache, memory, kvl__page_alloc_bytes(l));
        return NULL;
    }
    page->uses->refs = 1;
    kvl__page_fill(cache, l, (unsigned char*)at, from);
    return (unsigned char*)at;
}

// Gives up a reference to a page, whose uses these are.
KVL__FN void kvl__page_leave(kvl_cache* cache, const kvl__layer* l, unsigned char* contents,
                             kvl__uses* uses)
{
    kvl__page* page = kvl__page_of(contents);
    KVL_ASSERT(uses->refs > 0 && uses == page->uses);
    if (--uses->refs > 0) {
        if (uses->refs == uses->remembered) cache->prefix.alone_bytes += l->page_bytes;
        return;
    }
    cache->page_bytes -= l->page_bytes;
    if (cache->num_pages) {
#ifdef KVLOOM_DEBUG
        if (!l->pool_device) memset(contents, 0xff, (size_t)l->page_bytes);
#endif
        return;
    }
    if (kvl__on_device(cache)) {
        kvl__layer* owner = &cache->layers[l - cache->layers];
        if (cache->device.prepared_rows == 0) {
            kvl__device_page_free(cache, l, page);
            return;
        }
        page->next = owner->spare;
        owner->spare = page;
        return;
    }
#ifdef KVLOOM_DEBUG
    memset(contents, 0xff, (size_t)l->page_bytes);       // a reader that is left over shows
#endif
    kvl__uses_give(cache, l, page);
    kvl__cache_release(cache, page->memory, kvl__page_alloc_bytes(l));
}

KVL__FN void kvl__page_release(kvl_cache* cache, const kvl__layer* l, unsigned char* contents)
{
    kvl__page_leave(cache, l, contents, kvl__page_of(contents)->uses);
}

// WINDOWS

typedef struct kvl__windows {
    uint16_t* sink[2];             // keys, values: [sink_rows, head_dim]
    uint16_t* tail[2];             // [tail_rows, head_dim], keep_rows of history before it
    uint16_t* kept[2];             // [kept_len, head_dim]
} kvl__windows;

KVL__FN kvl__windows kvl__windows_of(const kvl__layer* l, const kvl__seq_layer* s, int head)
{
    const int64_t dk = l->config.side[0].head_dim;
    const int64_t dv = l->config.num_stored == 2 ? l->config.side[1].head_dim : 0;
    const int64_t rows = l->sink_rows + l->keep_rows + l->tail_rows + l->config.kept_len;
    uint16_t* at = (uint16_t*)(void*)s->window + head * rows * (dk + dv);
    kvl__windows w;
    w.sink[0] = at;
    w.sink[1] = w.sink[0] + l->sink_rows * dk;
    w.tail[0] = w.sink[1] + l->sink_rows * dv + l->keep_rows * dk;
    w.tail[1] = w.tail[0] + l->tail_rows * dk + l->keep_rows * dv;
    w.kept[0] = w.tail[1] + l->tail_rows * dv;
    w.kept[1] = w.kept[0] + l->config.kept_len * dk;
    if (l->config.num_stored == 1) {
        w.sink[1] = w.sink[0];
        w.tail[1] = w.tail[0];
        w.kept[1] = w.kept[0];
    }
    return w;
}

// Bytes of a window buffer.
KVL__FN uint64_t kvl__window_bytes(const kvl__layer* l)
{
    const kvl__config* c = &l->config;
    const int64_t rows = l->sink_rows + l->keep_rows + l->tail_rows + c->kept_len;
    const int64_t dims = c->side[0].head_dim + (c->num_stored == 2 ? c->side[1].head_dim : 0);
    return (uint64_t)c->num_kv_heads * 2u * (uint64_t)(rows * dims) +
           (uint64_t)c->kept_len * sizeof(int64_t);
}

// Positions of kept rows [kept_len], the first now.kept of them in use, rising.
KVL__FN int64_t* kvl__kept_positions(const kvl__layer* l, const kvl__seq_layer* s)
{
    const uint64_t at = kvl__window_bytes(l) - (uint64_t)l->config.kept_len * sizeof(int64_t);
    return (int64_t*)(void*)(s->window + at);
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

KVL__FN uint64_t kvl__table_bytes(int64_t entries)
{
    return entries ? sizeof(kvl__table) + (uint64_t)entries * 2u * sizeof(unsigned char*) : 0;
}

// Entries of a table as the device has them.
KVL__FN uint64_t kvl__device_table_bytes(const kvl_cache* cache, int64_t entries)
{
    return kvl__on_device(cache) ? (uint64_t)entries * sizeof(uint64_t) : 0;
}

KVL__FN void kvl__table_free(kvl_cache* cache, kvl__table* table)
{
    if (!table) return;
    kvl__cache_give_device(cache, table->device, kvl__device_table_bytes(cache, table->entries));
    kvl__cache_release(cache, table, kvl__table_bytes(table->entries));
}

KVL__FN kvl__table* kvl__table_create(kvl_cache* cache, int64_t entries)
{
    kvl__table* table = (kvl__table*)kvl__cache_alloc(cache, kvl__table_bytes(entries));
    if (!table) return NULL;
    table->refs = 1;
    table->entries = entries;
    if (!kvl__on_device(cache)) return table;
    table->device = kvl__cache_take_device(cache, kvl__device_table_bytes(cache, entries));
    if (table->device) return table;
    kvl__table_free(cache, table);
    return NULL;
}

KVL__FN unsigned char** kvl__table_pages(kvl__table* table) { return (unsigned char**)(table + 1); }

KVL__FN kvl__uses** kvl__table_uses(kvl__table* table)
{
    return (kvl__uses**)(void*)(kvl__table_pages(table) + table->entries);
}

KVL__FN void kvl__table_put(kvl__table* table, int64_t entry, unsigned char* page)
{
    kvl__table_pages(table)[entry] = page;
    kvl__table_uses(table)[entry] = kvl__page_of(page)->uses;
}

// num entries of a table from `from` on, to those from `at` on of another one or the same.
KVL__FN void kvl__table_move(kvl__table* to, int64_t at, kvl__table* table, int64_t from,
                             int64_t num)
{
    if (num <= 0) return;
    memmove(kvl__table_pages(to) + at, kvl__table_pages(table) + from,
            (size_t)num * sizeof(unsigned char*));
    memmove(kvl__table_uses(to) + at, kvl__table_uses(table) + from,
            (size_t)num * sizeof(kvl__uses*));
}

// Contents of a page of a sequence that is in its table.
KVL__FN unsigned char* kvl__page_at(const kvl__seq_layer* s, int64_t page)
{
    return kvl__table_pages(s->table)[page - s->table->first];
}

// Gives up a sequence's part in its table.
KVL__FN void kvl__table_leave(kvl_cache* cache, const kvl__layer* l, kvl__table* table)
{
    if (!table || --table->refs > 0) return;
    for (int64_t i = 0; i < table->num; ++i)
        kvl__page_leave(cache, l, kvl__table_pages(table)[i], kvl__table_uses(table)[i]);
    kvl__table_free(cache, table);
}

// WINDOWS AND RECORDS OF A SEQUENCE

// A window buffer as it is allocated.
KVL__FN uint64_t kvl__window_alloc_bytes(const kvl_cache* cache, const kvl__layer* l)
{
    if (l->window_bytes == 0) return 0;
    return l->window_bytes + (kvl__on_device(cache) ? 0u : (uint64_t)KVL__WINDOW_HEADER);
}

// Sequences that have the window buffer; not on a device.
KVL__FN int64_t* kvl__window_refs(unsigned char* window)
{
    return (int64_t*)(void*)(window - KVL__WINDOW_HEADER);
}

// A window buffer whose bits may be anything; NULL: no memory.
KVL__FN unsigned char* kvl__window_create(kvl_cache* cache, const kvl__layer* l)
{
    unsigned char* at =
        (unsigned char*)kvl__cache_take(cache, kvl__window_alloc_bytes(cache, l));
    if (!at) return NULL;
    at += KVL__WINDOW_HEADER;
    *kvl__window_refs(at) = 1;
    cache->window_bytes += kvl__window_alloc_bytes(cache, l);
    return at;
}

// The window buffer of a sequence, zeros or `from`'s, which on a device is copied at once.  0 after
// a failure, which kvl__cache_failure tells.
KVL__FN int kvl__window_make(kvl_cache* cache, const kvl__layer* l, kvl__seq_layer* s,
                             const kvl__seq_layer* from)
{
    if (kvl__on_device(cache)) {
        const uint64_t at = kvl__cache_take_device(cache, l->window_bytes);
        if (!at) return 0;
        kvl__cu_stream stream = cache->device.stream;
        const kvl_status status = from
            ? kvl__device_copy(cache->ctx, stream, at, (uintptr_t)from->window, l->window_bytes)
            : kvl__device_zero(cache->ctx, stream, at, l->window_bytes);
        kvl__device_note(cache, status);
        if (status != KVL_OK) {
            kvl__cache_give_device(cache, at, l->window_bytes);
            return 0;
        }
        s->window = (unsigned char*)(uintptr_t)at;
        cache->window_bytes += l->window_bytes;
    } else if (from) {
        s->window = from->window;
        ++*kvl__window_refs(s->window);
    } else {
        s->window = kvl__window_create(cache, l);
        if (s->window) memset(s->window, 0, (size_t)l->window_bytes);
    }
    return s->window != NULL;
}

KVL__FN void kvl__window_free(kvl_cache* cache, const kvl__layer* l, kvl__seq_layer* s)
{
    if (!s->window) return;
    const uint64_t bytes = kvl__window_alloc_bytes(cache, l);
    if (kvl__on_device(cache)) {
        kvl__cache_give_device(cache, (uintptr_t)s->window, bytes);
    } else {
        if (--*kvl__window_refs(s->window) > 0) return;
        kvl__cache_release(cache, s->window - KVL__WINDOW_HEADER, bytes);
    }
    cache->window_bytes -= bytes;
}

// Copies the rows of a sequence's window buffer: of its sink, history and tail, and kept ones.
KVL__FN void kvl__window_copy(const kvl__layer* l, const kvl__seq_layer* from, unsigned char* to)
{
    const int64_t sink = kvl__min_i64(from->now.rows, l->config.sink_len);
    const int64_t rows = from->now.rows - sink - from->now.quantized + from->now.history;
    kvl__seq_layer copy = *from;
    copy.window = to;
    for (int head = 0; head < l->config.num_kv_heads; ++head) {
        const kvl__windows a = kvl__windows_of(l, from, head), b = kvl__windows_of(l, &copy, head);
        for (int side = 0; side < l->config.num_stored; ++side) {
            const size_t row_bytes = 2u * (size_t)l->config.side[side].head_dim;
            const int64_t history = from->now.history * l->config.side[side].head_dim;
            memcpy(b.sink[side], a.sink[side], (size_t)sink * row_bytes);
            memcpy(b.tail[side] - history, a.tail[side] - history, (size_t)rows * row_bytes);
            memcpy(b.kept[side], a.kept[side], (size_t)from->now.kept * row_bytes);
        }
    }
    if (from->now.kept > 0)
        memcpy(kvl__kept_positions(l, &copy), kvl__kept_positions(l, from),
               (size_t)from->now.kept * sizeof(int64_t));
}

// A window buffer of its own for a sequence that is about to write; it is taken by
// kvl__window_keep.  Returns whether there is memory.
KVL__FN int kvl__window_reserve(kvl_cache* cache, const kvl__layer* l, kvl__seq_layer* s)
{
    if (!s->window || kvl__on_device(cache) || *kvl__window_refs(s->window) == 1) return 1;
    s->own_window = kvl__window_create(cache, l);
    if (s->own_window) kvl__window_copy(l, s, s->own_window);
    return s->own_window != NULL;
}

KVL__FN void kvl__window_keep(kvl_cache* cache, const kvl__layer* l, kvl__seq_layer* s)
{
    if (!s->own_window) return;
    kvl__window_free(cache, l, s);
    s->window = s->own_window;
    s->own_window = NULL;
}

KVL__FN void kvl__window_drop(kvl_cache* cache, const kvl__layer* l, kvl__seq_layer* s)
{
    if (!s->own_window) return;
    const uint64_t bytes = kvl__window_alloc_bytes(cache, l);
    kvl__cache_release(cache, s->own_window - KVL__WINDOW_HEADER, bytes);
    cache->window_bytes -= bytes;
    s->own_window = NULL;
}

KVL__FN uint64_t kvl__records_of_seq_bytes(const kvl_cache* cache)
{
    return kvl__on_device(cache) ? (uint64_t)cache->num_layers * sizeof(kvl__device_seq) : 0;
}

// Notes whether the device was told of a record or a table.
KVL__FN void kvl__device_told(kvl_cache* cache, kvl_status status, int* is_stale)
{
    if (status == KVL_OK) return;
    *is_stale = cache->device.is_stale = 1;
    kvl__device_note(cache, status);
}

// Brings a sequence's record up to date.  counts: rows and quantized rows too, which kernels
// advance by themselves.
KVL__FN void kvl__record_update(kvl_cache* cache, kvl__seq_layer* s, int counts)
{
    kvl__device_seq record;
    if (!s->record) return;
    memset(&record, 0, sizeof record);
    record.rows = s->now.rows;
    record.quantized = s->now.quantized;
    record.dropped = s->now.dropped;
    record.window = (uintptr_t)s->window;
    record.table = s->table ? s->table->device : 0;
    record.first_page = s->table ? s->table->first : INT32_MAX;
    record.restored = s->owner->restored.device;
    record.restored_rows = s->owner->restored.rows;
    const size_t from = counts ? 0 : offsetof(kvl__device_seq, dropped);
    kvl__device_told(cache, kvl__device_send(cache->ctx, cache->device.stream, s->record + from,
                                             (const char*)&record + from, sizeof record - from),
                     &s->is_stale);
}

// Rows that a sequence with so many quantized rows has room for.
KVL__FN int64_t kvl__restored_rows(const kvl__layer* l, int64_t quantized)
{
    return kvl__table_entries(kvl__num_pages(&l->config, quantized)) * l->config.page_size;
}

// A device has two layers' rows, and a layer's number for each head.
KVL__FN uint64_t kvl__restored_bytes(const kvl_cache* cache, int64_t rows)
{
    const uint64_t dims = (uint64_t)cache->restored_dims;
    return (uint64_t)rows * (kvl__on_device(cache) ? 4u * (dims + (uint64_t)cache->restored_heads)
                                                   : sizeof(int32_t) + 2u * dims);
}

KVL__FN void kvl__restored_free(kvl_cache* cache, kvl__seq* seq)
{
    const uint64_t bytes = kvl__restored_bytes(cache, seq->restored.rows);
    const int captured = seq->restored.captured;
    kvl__cache_release(cache, seq->restored.layers, bytes);
    kvl__cache_give_device(cache, seq->restored.device, bytes);
    memset(&seq->restored, 0, sizeof seq->restored);
    seq->restored.captured = captured;
}

// Room on a device for restored rows in place of what there is.  Returns 0 after a failure, which
// kvl__cache_failure tells.
KVL__FN int kvl__restored_make(kvl_cache* cache, kvl__seq* seq, int64_t rows)
{
    const uint64_t bytes = kvl__restored_bytes(cache, rows);
    const uint64_t at = kvl__cache_take_device(cache, bytes);
    if (!at) return 0;
    const kvl_status status = kvl__device_zero(cache->ctx, cache->device.stream, at,
                                               4u * (uint64_t)(rows * cache->restored_heads));
    kvl__device_note(cache, status);
    if (status != KVL_OK) {
        kvl__cache_give_device(cache, at, bytes);
        return 0;
    }
    kvl__restored_free(cache, seq);
    seq->restored.device = at;
    seq->restored.rows = rows;
    seq->restored.dims = cache->restored_dims;
    return 1;
}

// Rows that a sequence restores when it has `num_rows` rows in every layer.
KVL__FN int64_t kvl__restored_most(const kvl_cache* cache, int64_t num_rows)
{
    int64_t most = 0;
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__layer* l = &cache->layers[i];
        if (l->active && kvl__predicts(&l->config))
            most = kvl__max_i64(most, kvl__restored_rows(
                                          l, kvl__quantized_rows(&l->config, num_rows)));
    }
    return most;
}

// As kvl__restored_make, where that has more room; records are told by the caller.
KVL__FN int kvl__restored_prepare(kvl_cache* cache, kvl__seq* seq, int64_t num_rows)
{
    const int64_t rows = kvl__restored_most(cache, num_rows);
    return rows <= seq->restored.rows || kvl__restored_make(cache, seq, rows);
}

KVL__FN void kvl__seq_release(kvl_cache* cache, kvl__seq* seq)
{
    kvl__restored_free(cache, seq);
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__layer* l = &cache->layers[i];
        kvl__seq_layer* s = &seq->layers[i];
        kvl__table_leave(cache, l, s->table);
        kvl__window_free(cache, l, s);
    }
    kvl__cache_give_device(cache, seq->records, kvl__records_of_seq_bytes(cache));
    kvl__cache_release(cache, seq->pages, (uint64_t)seq->num_pages * sizeof *seq->pages);
    kvl__cache_release(cache, seq, kvl__seq_bytes(cache));
}

// PAGES OF THE ENGINE'S CHOICE

// Bytes that the contents of a page take in a pool.
KVL__FN uint64_t kvl__pool_contents(const kvl__layer* l)
{
    return (l->page_bytes + 255) / 256 * 256;
}

// Bytes from the header of one page of a pool to the next.
KVL__FN uint64_t kvl__pool_stride(const kvl__layer* l)
{
    return KVL__PAGE_HEADER + (l->pool_device_bytes ? 0 : kvl__pool_contents(l));
}

KVL__FN uint64_t kvl__pool_uses_bytes(int64_t num_pages)
{
    return ((uint64_t)num_pages * sizeof(kvl__uses) + 63) / 64 * 64;
}

KVL__FN kvl__uses* kvl__pool_uses(const kvl__layer* l, int64_t number)
{
    return (kvl__uses*)(((uintptr_t)l->pool + 63) & ~(uintptr_t)63) + number;
}

KVL__FN kvl__page* kvl__pool_at(const kvl__layer* l, int64_t number)
{
    const uintptr_t first = (uintptr_t)kvl__pool_uses(l, 0) + (uintptr_t)l->pool_uses_bytes;
    return (kvl__page*)(first + (uintptr_t)number * (uintptr_t)kvl__pool_stride(l));
}

// Gives a sequence a list of its own of num pages.
KVL__FN int kvl__seq_list_pages(kvl_cache* cache, kvl__seq* seq, const int32_t* pages, int64_t num)
{
    int32_t* list = NULL;
    if (num > 0) {
        list = (int32_t*)kvl__cache_take(cache, (uint64_t)num * sizeof *list);
        if (!list) return 0;
        memcpy(list, pages, (size_t)num * sizeof *list);
    }
    kvl__cache_release(cache, seq->pages, (uint64_t)seq->num_pages * sizeof *seq->pages);
    seq->pages = list;
    seq->num_pages = num;
    return 1;
}

// The sequence that a layer's part belongs to: it lies before its layers.
KVL__FN kvl__seq* kvl__seq_of(const kvl_cache* cache, const kvl__layer* l, kvl__seq_layer* s)
{
    return (kvl__seq*)(void*)(s - (l - cache->layers)) - 1;
}

// Contents for page `place` of a sequence, zeros or a copy of `from`; NULL: no memory, or the
// engine has handed in no page for it that can be taken.
KVL__FN unsigned char* kvl__page_for(kvl_cache* cache, const kvl__layer* l, kvl__seq_layer* s,
                                     int64_t place, unsigned char* from)
{
    if (cache->num_pages == 0) return kvl__page_create(cache, l, from);
    const kvl__seq* seq = kvl__seq_of(cache, l, s);
    const int32_t number = place < seq->num_pages ? seq->pages[place] : -1;
    if (number < 0) {
        kvl__fail(cache->ctx, KVL_NO_MEMORY, "pages[%lld] of the sequence: kvl_seq_set_pages has "
                  "given none, %lld in all", (long long)place, (long long)seq->num_pages);
        return NULL;
    }
    kvl__page* page = kvl__pool_at(l, number);
    kvl__uses* uses = kvl__pool_uses(l, number);
    if (uses->refs > 0) {
        kvl__fail(cache->ctx, KVL_NO_MEMORY, "pages[%lld] = %d of the sequence: is in use; another "
                  "one must be given there (kvl_seq_set_pages)", (long long)place, (int)number);
        return NULL;
    }
    unsigned char* contents = (unsigned char*)page + KVL__PAGE_HEADER;
    memset(page, 0, sizeof *page);
    page->uses = uses;
    uses->refs = 1;
    page->number = number;
    if (l->pool_device) page->device = l->pool_device + (uint64_t)number * kvl__pool_contents(l);
    kvl__page_fill(cache, l, contents, from);
    return contents;
}

// An empty sequence, or one that begins as `from` is: windows and tables are shared.
KVL__FN kvl__seq* kvl__seq_make(kvl_cache* cache, const kvl__seq* from)
{
    kvl__seq* seq = (kvl__seq*)kvl__cache_alloc(cache, kvl__seq_bytes(cache));
    if (!seq) return NULL;
    seq->layers = (kvl__seq_layer*)(void*)(seq + 1);
    if (kvl__on_device(cache)) {
        seq->records = kvl__cache_take_device(cache, kvl__records_of_seq_bytes(cache));
        if (!seq->records) {
            kvl__seq_release(cache, seq);
            return NULL;
        }
    }
    if (from && from->num_pages && !kvl__seq_list_pages(cache, seq, from->pages, from->num_pages)) {
        kvl__seq_release(cache, seq);
        return NULL;
    }
    if (!kvl__restored_prepare(cache, seq, cache->device.prepared_rows)) {
        kvl__seq_release(cache, seq);
        return NULL;
    }
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__layer* l = &cache->layers[i];
        kvl__seq_layer* s = &seq->layers[i];
        s->owner = seq;
        if (from) {
            s->now = from->layers[i].now;
            s->table = from->layers[i].table;
            if (s->table) ++s->table->refs;
        }
        if (!l->active) continue;
        if (l->window_bytes > 0 && !kvl__window_make(cache, l, s, from ? &from->layers[i] : NULL)) {
            kvl__seq_release(cache, seq);
            return NULL;
        }
        if (cache->device.prepared_rows > 0 && !s->table) {
            const int64_t rows = kvl__quantized_rows(&l->config, cache->device.prepared_rows);
            const int64_t pages = kvl__num_pages(&l->config, rows);
            if (pages > 0) s->table = kvl__table_create(cache, kvl__table_entries(pages));
            if (pages > 0 && !s->table) {
                kvl__seq_release(cache, seq);
                return NULL;
            }
        }
        if (seq->records) s->record = seq->records + (uint64_t)i * sizeof(kvl__device_seq);
        kvl__record_update(cache, s, 1);
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

// CHANGES OF PAGES
//
// A change has two steps, so that a batch gets all of its memory or none: reserve for every
// sequence, then keep or drop for every sequence.

// In rows after the sink; now.quantized is as before the change until it is kept.
typedef struct kvl__change {
    int64_t kept;                  // quantized rows that stay; the page behind them is written if
                                   // it is there, and rows are to come
    int64_t wanted;                // quantized rows to have pages for
    int64_t gone;                  // whole pages of these are released
    int     own;                   // the table is the sequence's own afterwards
    int     window;                // the window buffer is written
} kvl__change;

// A change in pages [first, end) of a sequence.
typedef struct kvl__repaging {
    int     none;                  // nothing changes
    int     shared;                // the table is another sequence's as well
    int64_t old_first, old_end;    // pages that the table has
    int64_t first, end;            // pages afterwards
    int64_t kept_first, kept_end;  // of these, from the table
    int64_t written;               // page that is written; < 0: none
} kvl__repaging;

KVL__FN kvl__repaging kvl__repage(const kvl__layer* l, const kvl__seq_layer* s,
                                  const kvl__change* c)
{
    const int64_t page_size = l->config.page_size, old = s->now.quantized;
    kvl__repaging r;
    memset(&r, 0, sizeof r);
    r.shared = s->table && s->table->refs > 1;
    r.old_first = s->table ? s->table->first : 0;
    r.old_end = s->table ? s->table->first + s->table->num : 0;
    r.end = kvl__num_pages(&l->config, c->wanted);
    r.first = kvl__min_i64(r.end, kvl__max_i64(r.old_first, c->gone / page_size));
    r.kept_first = kvl__max_i64(r.first, r.old_first);
    r.kept_end = kvl__num_pages(&l->config, kvl__min_i64(old, c->wanted));
    r.kept_end = kvl__min_i64(r.old_end, r.kept_end);
    r.kept_end = kvl__max_i64(r.kept_first, r.kept_end);
    r.written = c->wanted > c->kept ? c->kept / page_size : -1;
    if (r.written < r.kept_first || r.written >= r.kept_end) r.written = -1;
    r.none = c->kept == old && c->wanted == old && !(c->own && r.shared) &&
             (!s->table || r.first == r.old_first);
    return r;
}

KVL__FN void kvl__pages_drop(kvl_cache* cache, const kvl__layer* l, kvl__seq_layer* s,
                             const kvl__change* c)
{
    const kvl__repaging r = kvl__repage(l, s, c);
    kvl__table* table = s->grown ? s->grown : s->table;
    kvl__window_drop(cache, l, s);
    while (s->num_reserved > 0)
        kvl__page_release(cache, l, kvl__table_pages(table)[r.kept_end + --s->num_reserved -
                                                            table->first]);
    kvl__table_free(cache, s->grown);
    if (s->copied) kvl__page_release(cache, l, s->copied);
    s->grown = NULL;
    s->copied = NULL;
}

// 0 after a failure, with what was reserved left to kvl__pages_drop.
KVL__FN int kvl__pages_reserve(kvl_cache* cache, const kvl__layer* l, kvl__seq_layer* s,
                               const kvl__change* c)
{
    const kvl__repaging r = kvl__repage(l, s, c);
    if (c->window && !kvl__window_reserve(cache, l, s)) return 0;
    if (r.none || r.first == r.end) return 1;
    if (!s->table || r.shared || r.end - r.old_first > s->table->entries) {
        const int64_t entries = kvl__table_entries(r.end - r.first);
        s->grown = kvl__table_create(cache, entries);
        if (!s->grown) return 0;
        s->grown->first = r.first;
        if (s->table)
            kvl__table_move(s->grown, r.kept_first - r.first, s->table, r.kept_first - r.old_first,
                            r.kept_end - r.kept_first);
    }
    kvl__table* table = s->grown ? s->grown : s->table;
    if (r.written >= 0) {
        unsigned char* page = kvl__table_pages(table)[r.written - table->first];
        if (r.shared || kvl__page_of(page)->uses->refs > 1) {
            s->copied = kvl__page_for(cache, l, s, r.written, page);
            if (!s->copied) return 0;
        }
    }
    while (r.kept_end + s->num_reserved < r.end) {
        unsigned char* page = kvl__page_for(cache, l, s, r.kept_end + s->num_reserved, NULL);
        if (!page) return 0;
        kvl__table_put(table, r.kept_end + s->num_reserved++ - table->first, page);
    }
    return 1;
}

// The pages of the table that the sequence leaves or goes on with: kept ones gain a reference in a
// shared table, the others lose one in its own.
KVL__FN void kvl__pages_hand_over(kvl_cache* cache, const kvl__layer* l, const kvl__repaging* r,
                                  kvl__table* table)
{
    unsigned char** pages = kvl__table_pages(table);
    if (r->shared) {
        kvl__uses** uses = kvl__table_uses(table);
        for (int64_t p = r->kept_first; p < r->kept_end; ++p) ++uses[p - r->old_first]->refs;
        --table->refs;
        return;
    }
    for (int64_t p = r->old_first; p < kvl__min_i64(r->kept_first, r->old_end); ++p)
        kvl__page_release(cache, l, pages[p - r->old_first]);
    for (int64_t p = r->kept_end; p < r->old_end; ++p)
        kvl__page_release(cache, l, pages[p - r->old_first]);
}

// Brings the device's table up to date after a change: from entry `from` on.
KVL__FN void kvl__table_update(kvl_cache* cache, kvl__table* table, int64_t from)
{
    uint64_t addresses[64];
    unsigned char* const* pages = (unsigned char* const*)(table + 1);
    while (from < table->num) {
        const int64_t num = kvl__min_i64(table->num - from, 64);
        for (int64_t i = 0; i < num; ++i) addresses[i] = kvl__page_of(pages[from + i])->device;
        kvl__device_told(cache, kvl__device_send(
            cache->ctx, cache->device.stream, table->device + (uint64_t)from * sizeof addresses[0],
            addresses, (uint64_t)num * sizeof addresses[0]), &table->is_stale);
        from += num;
    }
}

// Tells the device what it could not be told when it changed, of all sequences that have handles.
KVL__FN kvl_status kvl__device_refresh(kvl_cache* cache)
{
    const kvl_status noted = cache->device.status;
    cache->device.status = KVL_OK;
    cache->device.is_stale = 0;
    for (int slot = 0; slot < cache->capacity; ++slot) {
        kvl__seq* seq = cache->slots[slot];
        for (int i = 0; seq && !seq->broken && i < cache->num_layers; ++i) {
            kvl__seq_layer* s = &seq->layers[i];
            const int of_table = s->table && s->table->is_stale, of_record = s->is_stale;
            if (of_table) s->table->is_stale = 0;
            s->is_stale = 0;
            if (of_table) kvl__table_update(cache, s->table, 0);
            if (of_record) kvl__record_update(cache, s, 1);
        }
    }
    const kvl_status status = cache->device.status;
    cache->device.status = noted;
    return status;
}

KVL__FN void kvl__pages_keep(kvl_cache* cache, const kvl__layer* l, kvl__seq_layer* s,
                             const kvl__change* c)
{
    const kvl__repaging r = kvl__repage(l, s, c);
    kvl__table* old = s->table;
    kvl__window_keep(cache, l, s);
    if (r.none) return;
    if (old) kvl__pages_hand_over(cache, l, &r, old);
    if (s->grown || r.first == r.end) {
        if (old && !r.shared) kvl__table_free(cache, old);
        s->table = s->grown;
    } else if (r.first > r.old_first) {
        kvl__table_move(old, 0, old, r.first - r.old_first, r.end - r.first);
    }
    if (s->table) {
        s->table->first = r.first;
        s->table->num = r.end - r.first;
        if (l->release_slack && kvl__table_entries(s->table->num) < s->table->entries)
            cache->is_loose = 1;
    }
    if (s->copied) {
        kvl__page_release(cache, l, kvl__table_pages(s->table)[r.written - r.first]);
        kvl__table_put(s->table, r.written - r.first, s->copied);
    }
    if (kvl__on_device(cache) && s->table)
        kvl__table_update(cache, s->table, s->grown || r.first > r.old_first ? 0 : s->copied
                          ? r.written - r.first : r.kept_end - r.first);
    kvl__record_update(cache, s, 0);
    s->grown = NULL;
    s->copied = NULL;
    s->num_reserved = 0;
}

// Whether a sequence is in order between two calls.
KVL__FN int kvl__seq_layer_holds(const kvl__layer* l, const kvl__seq_layer* s)
{
    const kvl__extent* e = &s->now;
    const int64_t behind = kvl__max_i64(0, e->rows - l->config.sink_len);
    const int64_t end = kvl__num_pages(&l->config, e->quantized);
    const int64_t first = kvl__min_i64(end, kvl__gone_rows(e) / l->config.page_size);
    if (s->grown || s->copied || s->num_reserved || s->own_window) return 0;
    if (e->quantized < kvl__quantized_rows(&l->config, e->rows) || e->quantized > behind) return 0;
    if (behind - e->quantized > l->tail_rows || kvl__gone_rows(e) > behind) return 0;
    if (e->history < 0 || e->history > kvl__min_i64(l->keep_rows, e->quantized)) return 0;
    if (e->altered < 0 || e->altered > e->rows) return 0;
    if (e->kept < 0 || e->kept > l->config.kept_len) return 0;
    for (int64_t i = 0; i < e->kept; ++i) {
        const int64_t* positions = kvl__kept_positions(l, s);
        if (positions[i] < (i ? positions[i - 1] + 1 : l->config.sink_len)) return 0;
        if (positions[i] >= e->rows) return 0;
    }
    if (!s->table) return first == end;
    for (int64_t i = 0; i < s->table->num; ++i)
        if (kvl__table_uses(s->table)[i] != kvl__page_of(kvl__table_pages(s->table)[i])->uses ||
            kvl__table_uses(s->table)[i]->refs < 1) return 0;
    return s->table->refs >= 1 && s->table->num <= s->table->entries &&
           s->table->first == first && s->table->first + s->table->num == end;
}

// LAYERS AND SCRATCH

// The calibrated record of a side of a head; NULL: its codec has none.
KVL__FN const float* kvl__record_of(const kvl__layer* l, int side, int head)
{
    return l->record_floats[side] ? l->tables[side] + head * l->record_floats[side] : NULL;
}

// Values in a calibrated basis are of use with that basis alone: its hash goes with them.
KVL__FN kvl_status kvl__fold_hash(kvl_context* ctx, const kvl__table_source* source, int layer,
                                  const kvl__config* config, uint64_t* hash)
{
    const kvl__codec* c = &config->side[1];
    const float* forward = NULL;
    *hash = 0;
    if (config->num_stored != 2 || !kvl__folds_tables(c)) return KVL_OK;
    KVL__TRY(kvl__basis_table(ctx, source, layer, config, 1, 0, &forward));
    const size_t count = (size_t)config->num_kv_heads * (size_t)(c->head_dim * c->head_dim);
    *hash = XXH3_64bits(forward, count * sizeof *forward);
    return KVL_OK;
}

// Copies what the layer's codecs need of a calibration.
KVL__FN kvl_status kvl__layer_records(kvl_cache* cache, kvl__layer* l,
                                      const kvl_calibration* calibration)
{
    const kvl__table_source* source = (const kvl__table_source*)(const void*)calibration;
    KVL__TRY(kvl__fold_hash(cache->ctx, source, (int)(l - cache->layers), &l->config,
                            &l->fold_hash));
    if (l->record_bytes == 0) return KVL_OK;
    l->records = kvl__cache_alloc(cache, l->record_bytes);
    if (!l->records) return KVL_NO_MEMORY;
    float* at = (float*)(((uintptr_t)l->records + 63) & ~(uintptr_t)63);
    for (int side = 0; side < l->config.num_stored; ++side) {
        KVL__TRY(kvl__record_fill(cache->ctx, source, (int)(l - cache->layers), &l->config, side,
                                  at));
        l->tables[side] = at;
        at += l->record_floats[side] * l->config.num_kv_heads;
    }
    if (l->config.num_stored == 1) l->tables[1] = l->tables[0];
    return KVL_OK;
}

// Channels of a key and a value that take memory.
KVL__FN int64_t kvl__stored_dims(const kvl__config* c)
{
    return c->side[0].head_dim + (c->num_stored == 2 ? c->side[1].head_dim : 0);
}

// Where a side of a head begins in a page.
KVL__FN int64_t kvl__side_at(const kvl__layer* l, int head, int side)
{
    const int64_t at = head * (l->k_bytes + l->v_bytes);
    return side < l->config.num_stored && side ? at + l->k_bytes : at;
}

KVL__FN void kvl__layer_sizes(kvl__layer* l, int64_t keep_len)
{
    const kvl__config* c = &l->config;
    l->k_bytes = kvl__layout_of(&c->side[0], c->page_size).bytes;
    l->v_bytes = c->num_stored == 2 ? kvl__layout_of(&c->side[1], c->page_size).bytes : 0;
    l->page_bytes = (uint64_t)c->num_kv_heads * (uint64_t)(l->k_bytes + l->v_bytes);
    l->sink_rows = c->sink_len;
    l->keep_rows = kvl__keep_rows(c, keep_len);
    l->tail_rows = kvl__tail_rows(c);
    l->record_bytes = kvl__records_bytes(c);
    for (int side = 0; side < 2; ++side)
        l->record_floats[side] = kvl__record_floats(&c->side[side]);
    l->window_bytes = kvl__window_bytes(l);
    l->head_bytes = (uint64_t)((l->desc.sink_logits != NULL) + (l->desc.alibi_slopes != NULL)) *
                    (uint64_t)l->desc.num_q_heads * sizeof(float);
}

// Copies of a query that keys of this side are scored with.
KVL__FN int64_t kvl__query_copies(const kvl__codec* c)
{
    return kvl__max_i64(1, kvl__word_of(c, KVL__STAGE_CHOOSE)->copies);
}

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
        cache->q_floats = kvl__max_i64(cache->q_floats, kvl__query_copies(&l->config.side[0]) *
                                       heads * l->config.side[0].head_dim);
        cache->acc_floats = kvl__max_i64(cache->acc_floats, heads * l->config.side[1].head_dim);
    }
    if (kvl__on_device(cache))
        return (uint64_t)(64 + kvl__round_up((int64_t)sizeof(kvl__query) * KVL__WAVE_ROWS, 64));
    cache->part_floats = cache->acc_floats;
    cache->max_parts = kv_heads * KVL__WAVE_PARTS;
    cache->thread_bytes = KVL__PREPARED_BYTES + kvl__round_up(4 * cache->q_floats, 64) +
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
