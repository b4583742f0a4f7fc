// kvl_prefill.h -- rows of a call that its own queries read in 16 bits, whatever becomes of them.
//
// For the time of one kvl_append_attend each sequence that gets rows has a second one beside it: of
// the same pages, with windows of its own that have room for all of the call's rows and that
// nothing leaves.  The queries attend to that one; the rows are appended to the other as ever.

#ifndef KVL_PREFILL_H
#define KVL_PREFILL_H

#include "kvl_device.h"
#include "kvl_ops.h"

typedef struct kvl__prefill {
    kvl__append_job        append;         // first, so that one pointer is both: to the second ones
    const kvl__append_job* from;
    kvl__layer             layer;          // as the layer is, but for its windows
    kvl__append_seq**      origins;        // [append.num_seqs] of from
    kvl__seq_layer*        seqs;           // [append.num_seqs]
    unsigned char*         windows;        // [append.num_seqs], on the host
    void*                  memory;
    uint64_t               memory_bytes;
    uint64_t               device;         // records, and windows from device_windows on
    uint64_t               device_windows, device_bytes;
} kvl__prefill;

// Makes the layer of the second sequences, and counts them.
KVL__FN void kvl__prefill_layer(kvl__prefill* p, const kvl__append_job* from)
{
    const kvl__config* c = &from->l->config;
    kvl__layer* l = &p->layer;
    p->from = from;
    p->append = *from;
    p->append.l = l;
    p->append.num_seqs = 0;
    *l = *from->l;
    l->keep_rows = 0;
    l->tail_rows = 1;
    l->config.recent_len = INT32_MAX - c->sink_len;          // what no row grows older than
    for (int i = 0; i < from->num_seqs; ++i) {
        const kvl__append_seq* a = &from->seqs[i];
        if (a->num_rows == 0) continue;
        ++p->append.num_seqs;
        l->tail_rows = kvl__max_i64(l->tail_rows, a->s->now.rows + a->num_rows - c->sink_len -
                                                  kvl__settled(c, &a->s->now).quantized);
    }
    l->window_bytes = kvl__window_bytes(l);
}

KVL__FN void kvl__prefill_free(kvl__prefill* p)
{
    kvl__cache_give_device(p->append.cache, p->device, p->device_bytes);
    kvl__cache_release(p->append.cache, p->memory, p->memory_bytes);
}

// All memory, before anything changes.
KVL__FN kvl_status kvl__prefill_make(kvl__prefill* p, const kvl__append_job* from)
{
    kvl_cache* cache = from->cache;
    memset(p, 0, sizeof *p);
    kvl__prefill_layer(p, from);
    const uint64_t num = (uint64_t)p->append.num_seqs;
    const uint64_t each = sizeof *p->append.seqs + sizeof *p->seqs + sizeof *p->origins;
    const uint64_t windows = num * p->layer.window_bytes;
    p->memory_bytes = num * each + (kvl__on_device(cache) ? 0u : windows + 63u);
    p->memory = kvl__cache_take(cache, p->memory_bytes);
    if (!p->memory) return KVL_NO_MEMORY;
    memset(p->memory, 0, (size_t)(num * each));
    p->append.seqs = (kvl__append_seq*)p->memory;
    p->seqs = (kvl__seq_layer*)(void*)(p->append.seqs + num);
    p->origins = (kvl__append_seq**)(void*)(p->seqs + num);
    for (int i = 0, at = 0; i < from->num_seqs; ++i)
        if (from->seqs[i].num_rows > 0) p->origins[at++] = &from->seqs[i];
    if (!kvl__on_device(cache)) {
        p->windows = (unsigned char*)(((uintptr_t)(p->origins + num) + 63) & ~(uintptr_t)63);
        return KVL_OK;
    }
    p->device_windows = (num * sizeof(kvl__device_seq) + 255) / 256 * 256;
    p->device_bytes = p->device_windows + windows;
    p->device = kvl__cache_take_device(cache, p->device_bytes);
    if (p->device) return KVL_OK;
    kvl__prefill_free(p);
    return KVL_NO_MEMORY;
}

// Item i: second sequence i / num_kv_heads, head i % num_kv_heads.
KVL__FN void kvl__prefill_item(void* arg, int64_t item, int thread)
{
    const kvl__prefill* p = (const kvl__prefill*)arg;
    const kvl__config* c = &p->layer.config;
    const int head = (int)(item % c->num_kv_heads);
    const kvl__seq_layer* from = p->origins[item / c->num_kv_heads]->s;
    const kvl__windows a = kvl__windows_of(p->from->l, from, head);
    const kvl__windows b = kvl__windows_of(&p->layer, &p->seqs[item / c->num_kv_heads], head);
    const int64_t sink = kvl__min_i64(from->now.rows, c->sink_len);
    const int64_t tail = from->now.rows - sink - from->now.quantized;
    for (int side = 0; side < c->num_stored; ++side) {
        const size_t row_bytes = 2u * (size_t)c->side[side].head_dim;
        memcpy(b.sink[side], a.sink[side], (size_t)sink * row_bytes);
        memcpy(b.tail[side], a.tail[side], (size_t)tail * row_bytes);
        memcpy(b.kept[side], a.kept[side], (size_t)from->now.kept * row_bytes);
    }
    if (from->now.kept > 0 && head == 0)
        memcpy(kvl__kept_positions(&p->layer, &p->seqs[item / c->num_kv_heads]),
               kvl__kept_positions(p->from->l, from), (size_t)from->now.kept * sizeof(int64_t));
    kvl__append_item(arg, item, thread);
}

// Sink and tail of a sequence into the windows of its second one.
KVL__FN void kvl__device_prefill_windows(const kvl__prefill* p, int i)
{
    const kvl__seq_layer* from = p->origins[i]->s;
    const int64_t sink = kvl__min_i64(from->now.rows, p->layer.config.sink_len);
    kvl__ring_copy copy;
    copy.from = p->from->l;
    copy.to = &p->layer;
    copy.seq = from;
    copy.window = (uintptr_t)p->seqs[i].window;
    copy.row = from->now.quantized;
    copy.num = from->now.rows - sink - from->now.quantized;
    kvl__device_copy_sink(p->append.cache, &copy, sink);
    kvl__device_copy_ring(p->append.cache, &copy);
}

// Makes the second sequences, and appends the rows of the call to them.  The pages of that call are
// there.
KVL__FN void kvl__prefill_start(kvl__prefill* p, int64_t num_rows)
{
    kvl_cache* cache = p->append.cache;
    const int on_device = kvl__on_device(cache);
    for (int i = 0; i < p->append.num_seqs; ++i) {
        const kvl__append_seq* from = p->origins[i];
        const uint64_t at = (uint64_t)i * p->layer.window_bytes;
        kvl__seq_layer* s = &p->seqs[i];
        s->owner = from->s->owner;
        s->now = from->s->now;
        s->table = from->s->table;
        s->window = on_device ? (unsigned char*)(uintptr_t)(p->device + p->device_windows + at)
                              : p->windows + at;
        if (on_device) s->record = p->device + (uint64_t)i * sizeof(kvl__device_seq);
        kvl__record_update(cache, s, 1);
        p->append.seqs[i].s = s;
        p->append.seqs[i].first_row = from->first_row;
        p->append.seqs[i].num_rows = from->num_rows;
        if (on_device) kvl__device_prefill_windows(p, i);
    }
    if (on_device) kvl__device_append_rows(&p->append);
    else kvl__append_each(&p->append, num_rows, kvl__prefill_item);
    for (int i = 0; i < p->append.num_seqs; ++i) {
        kvl__extent* now = &p->seqs[i].now;
        *now = kvl__grown(&p->layer.config, now, p->append.seqs[i].num_rows, 0);
    }
}

#endif
