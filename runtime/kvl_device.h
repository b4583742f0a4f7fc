// kvl_device.h -- operations of a cache on a device: what kvl_ops.h has checked, as launches.
//
// The host's counts of a sequence and the device's record of it advance side by side: the host's
// when a call is made, the record's when its kernels run.  A call that is captured into a graph
// runs no kernel, so it changes neither; each launch of the graph is announced by an append with
// `replay`, which changes the host's counts, makes pages ready, and launches nothing.

#ifndef KVL_DEVICE_H
#define KVL_DEVICE_H

#include "kvl_ops.h"

// KERNELS

typedef struct kvl__kernel_name {
    const char* program;               // of gen/kernels.lua
    const char* name;
    size_t      at;                    // in kvl__device_kernels
} kvl__kernel_name;

#define KVL__KERNEL_AT(field) offsetof(kvl__device_kernels, field)

static __attribute__((unused)) const kvl__kernel_name kvl__kernel_names[] = {
    { "append_rows", "append_rows", KVL__KERNEL_AT(append_rows) },
    { "k_encode_rows", "k_encode_rows", KVL__KERNEL_AT(encode_rows[0]) },
    { "v_encode_rows", "v_encode_rows", KVL__KERNEL_AT(encode_rows[1]) },
    { "k_predict_rows", "k_predict_rows", KVL__KERNEL_AT(predict_rows[0]) },
    { "v_predict_rows", "v_predict_rows", KVL__KERNEL_AT(predict_rows[1]) },
    { "advance_rows", "advance_rows", KVL__KERNEL_AT(advance_rows) },
    { "prepare_query", "prepare_query", KVL__KERNEL_AT(prepare_query) },
    { "attend_splits", "attend_splits", KVL__KERNEL_AT(attend_splits) },
    { "merge_splits", "merge_splits", KVL__KERNEL_AT(merge_splits) },
    { "restore_rows", "k_restore_rows", KVL__KERNEL_AT(restore_rows[0]) },
    { "restore_rows", "v_restore_rows", KVL__KERNEL_AT(restore_rows[1]) },
};

enum { KVL__NUM_KERNELS = (int)(sizeof kvl__kernel_names / sizeof kvl__kernel_names[0]) };

// Values that are in the keys are not written; rows of few codecs are predicted.
KVL__FN int kvl__needs_kernel(const kvl__layer* l, const kvl__kernel_name* name)
{
    if (name->at == KVL__KERNEL_AT(predict_rows[0]) || name->at == KVL__KERNEL_AT(predict_rows[1]))
        return kvl__predicts(&l->config);
    return l->config.num_stored == 2 || name->at != KVL__KERNEL_AT(encode_rows[1]);
}

// The kernels of a layer.  The layer is unchanged after a failure.
KVL__FN kvl_status kvl__device_layer_kernels(kvl_context* ctx, kvl__layer* l)
{
    kvl__kernel_request requests[KVL__NUM_KERNELS];
    const size_t bytes = KVL__NUM_KERNELS * sizeof(kvl__config_text);
    kvl__config_text* texts = (kvl__config_text*)kvl__alloc(ctx, bytes);
    KVL__REQUIRE(ctx, texts, KVL_NO_MEMORY, "%zu bytes for configurations", bytes);
    int num = 0;
    memset(requests, 0, sizeof requests);
    for (int i = 0; i < KVL__NUM_KERNELS; ++i) {
        if (!kvl__needs_kernel(l, &kvl__kernel_names[i])) continue;
        kvl__config_to_text(ctx, &l->config, kvl__kernel_names[i].program, &texts[num]);
        requests[num].name = texts[num].name;
        requests[num].entry = kvl__kernel_names[i].name;
        requests[num].fields = texts[num].fields;
        requests[num].num_fields = texts[num].num_fields;
        ++num;
    }
    const kvl_status status = kvl__kernels_get(ctx, requests, num);
    kvl__free(ctx, texts, bytes);
    if (status != KVL_OK) return status;
    for (int i = 0, at = 0; i < KVL__NUM_KERNELS; ++i)
        if (kvl__needs_kernel(l, &kvl__kernel_names[i]))
            memcpy((char*)&l->kernels + kvl__kernel_names[i].at, &requests[at++].function,
                   sizeof requests[0].function);
    l->generated = 1;
    l->from = requests[0].where;
    return KVL_OK;
}

// STREAMS AND LAUNCHES

// Makes `stream` the cache's: what it does comes after all that the cache has done before.
// *captured: the stream is being captured, and the work before it is not of this graph.
KVL__FN kvl_status kvl__device_begin(kvl_cache* cache, void* handle, int* captured)
{
    kvl_context* ctx = cache->ctx;
    const kvl__driver* d = &ctx->gpu->driver;
    kvl__cu_stream stream = (kvl__cu_stream)handle;
    int capturing = 0;
    KVL__TRY(kvl__gpu_enter(ctx));
    int result = stream ? d->stream_is_capturing(stream, &capturing) : KVL__CU_OK;
    if (result == KVL__CU_OK && !capturing && stream != cache->device.stream) {
        result = d->event_record(cache->device.event, cache->device.stream);
        if (result == KVL__CU_OK) result = d->stream_wait_event(stream, cache->device.event, 0);
    }
    kvl__gpu_leave(ctx);
    KVL__TRY(kvl__cu_check(ctx, result, "beginning work on a stream"));
    if (!capturing) cache->device.stream = stream;
    *captured = capturing;
    cache->device.launches_on = stream;
    return KVL_OK;
}

// What could not be reported where it happened.
KVL__FN kvl_status kvl__device_end(kvl_cache* cache)
{
    const kvl_status status = cache->device.status;
    cache->device.status = KVL_OK;
    return status;
}

// The end of a call whose changes stand.  What the device could not be told it is told before the
// next call that needs it: kvl__device_refresh.
KVL__FN kvl_status kvl__device_done(kvl_cache* cache)
{
    const kvl_status status = kvl__device_end(cache);
    return kvl__on_device(cache) && cache->ctx->gpu->lost ? status : KVL_OK;
}

typedef struct kvl__grid3 { int64_t x, y, z; } kvl__grid3;

// The context is entered.
KVL__FN int kvl__launch(kvl_cache* cache, kvl__cu_function function, kvl__grid3 grid,
                        const void* args)
{
    void* params[1];
    params[0] = (void*)(uintptr_t)args;
    return cache->ctx->gpu->driver.launch(function, (unsigned)grid.x, (unsigned)grid.y,
                                          (unsigned)grid.z, KVL__CTA_THREADS, 1, 1, 0,
                                          cache->device.launches_on, params, NULL);
}

KVL__FN kvl__device_windows kvl__device_windows_of(const kvl__layer* l)
{
    kvl__device_windows w;
    memset(&w, 0, sizeof w);
    w.num_kv_heads = l->config.num_kv_heads;
    w.sink_len = l->config.sink_len;
    w.recent_len = l->config.recent_len;
    w.chunk_len = l->config.chunk_len;
    w.ring_rows = (int32_t)(l->keep_rows + l->tail_rows);
    w.turns = l->device_turns;
    w.places = l->device_places;
    for (int side = 0; side < 2; ++side) w.predictors[side] = l->device_predictors[side];
    w.half = l->depth % 2;
    w.is_lowest = l->below < 0;
    return w;
}

KVL__FN kvl__device_rows kvl__device_rows_of(const kvl__view* v)
{
    kvl__device_rows rows;
    memset(&rows, 0, sizeof rows);
    rows.data = (uintptr_t)v->data;
    rows.row_stride = v->row_bytes / kvl__type_bytes(v->type);
    rows.head_stride = v->head_bytes / kvl__type_bytes(v->type);
    rows.type = (int32_t)v->type;
    return rows;
}

// RESTORED ROWS
//
// A row goes through the layers from the lowest one on, a kernel for keys and one for values each;
// what it is restored in is known to the device alone, and kernels pass over rows that need
// nothing.  The host knows between which layers all rows are, so that it launches no more than has
// work; where a graph may have been launched it does not, and launches all.

typedef struct kvl__device_reach {
    const kvl__seq_layer* of[KVL__BATCH];  // in the layer that is to be read, or grows
    kvl__device_predict   a;
    int                   num;
    int64_t               tiles;           // of 16 rows, the most of an item
} kvl__device_reach;

// Restores rows in layer m, keys [0] or values [1].
KVL__FN int kvl__launch_predict(kvl_cache* cache, int m, int side, kvl__device_reach* r)
{
    const kvl__layer* l = &cache->layers[m];
    kvl__device_predict* a = &r->a;
    kvl__grid3 grid;
    grid.x = r->tiles;
    grid.y = l->config.num_kv_heads;
    grid.z = r->num;
    a->windows = kvl__device_windows_of(l);
    a->layer = m + 1;
    a->below = l->below + 1;
    for (int i = 0; i < 2; ++i) {
        a->tables[i] = l->device_tables[i];
        a->table_floats[i] = (int32_t)l->record_floats[i];
    }
    for (int i = 0; i < r->num; ++i)
        a->items[i].pages = r->of[i]->owner->layers[m].record;
    return kvl__launch(cache, l->kernels.predict_rows[side], grid, a);
}

// The first layer that rows of a sequence from `first` on may need on their way to layer `to`; -1:
// they are there.
KVL__FN int kvl__reach_from(const kvl_cache* cache, const kvl__seq* seq, int64_t first, int to)
{
    const kvl__restored* r = &seq->restored;
    if (r->captured || !r->is_known || first < r->first || r->high > to)
        return cache->layers[to].lowest;
    return r->low == to ? -1 : cache->layers[r->low].above;
}

// Rows [first, end) are restored in layer l.
KVL__FN void kvl__reach_note(const kvl_cache* cache, kvl__seq* seq, int64_t first, int64_t end,
                             int l)
{
    kvl__restored* r = &seq->restored;
    if (end >= seq->layers[cache->layers[l].lowest].now.quantized) {
        r->is_known = 1;
        r->first = first;
        r->low = r->high = l;
    } else {
        r->low = l < r->low ? l : r->low;
        r->high = l > r->high ? l : r->high;
    }
}

// Brings the rows of all items into layer `to`; < 0: there is nothing to bring.
KVL__FN int kvl__launch_reach(kvl_cache* cache, int to, kvl__device_reach* r)
{
    int result = KVL__CU_OK, from = -1;
    if (to < 0 || r->tiles <= 0) return result;
    for (int i = 0; i < r->num; ++i) {
        const int own = kvl__reach_from(cache, r->of[i]->owner, r->a.items[i].first_row, to);
        if (own >= 0 && (from < 0 || own < from)) from = own;
    }
    r->a.target = to + 1;
    for (int m = from; m >= 0 && m <= to && result == KVL__CU_OK; m = cache->layers[m].above)
        for (int side = 0; side < 2 && result == KVL__CU_OK; ++side)
            result = kvl__launch_predict(cache, m, side, r);
    for (int i = 0; i < r->num && result != KVL__CU_OK; ++i)
        r->of[i]->owner->restored.is_known = 0;
    return result;
}

// APPEND

// Rows of a page that one CTA encodes; gen/codec.lua says the same.
KVL__FN int64_t kvl__cta_rows(const kvl__codec* c)
{
    const int along = !kvl__is_raw(c) && c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL;
    return along ? kvl__lcm(16, c->group_size) : 16;
}

// A captured attend has room for the rows that kvl_prepare was told of.
KVL__FN kvl_status kvl__device_check_append(const kvl__append_job* job)
{
    const int64_t prepared = job->cache->device.prepared_rows;
    for (int i = 0; i < job->num_seqs; ++i) {
        const int64_t rows = job->seqs[i].s->now.rows + job->seqs[i].num_rows;
        KVL__REQUIRE(job->cache->ctx, rows <= KVL__DEVICE_ROWS_MAX, KVL_UNSUPPORTED,
                     "seqs[%d]: %lld rows: a device takes at most 2^31 - 1 of a sequence", i,
                     (long long)rows);
        KVL__REQUIRE(job->cache->ctx, !job->replay || rows <= prepared, KVL_UNSUPPORTED,
                     "seqs[%d]: %lld rows: kvl_prepare made ready %lld; graphs that were captured "
                     "serve no more", i, (long long)rows, (long long)prepared);
    }
    return KVL_OK;
}

typedef struct kvl__append_wave {
    kvl__device_append a;
    int64_t max_rows, units[2];        // the most that a sequence appends, and encodes of a side
    int     first;                     // of the job's sequences
    int     wrote;                     // rows were written
} kvl__append_wave;

// Launches the kernels that make codes of rows that are predicted: keys, which are restored at
// once, and values, which they predict.
KVL__FN int kvl__launch_predicted(const kvl__append_job* job, const kvl__append_wave* w,
                                  kvl__device_reach* r)
{
    kvl_cache* cache = job->cache;
    const kvl__layer* l = job->l;
    kvl__grid3 grid;
    memset(r, 0, sizeof *r);
    r->num = w->a.num_seqs;
    r->tiles = w->units[0];
    r->a.appends = 1;
    for (int i = 0; i < r->num; ++i) {
        r->of[i] = job->seqs[w->first + i].s;
        r->a.items[i].seq = w->a.items[i].seq;
        r->a.items[i].first_row = (int32_t)r->of[i]->now.quantized;
        r->a.items[i].num_rows = w->a.items[i].num_rows;
        r->of[i]->owner->restored.captured |= job->captured;
    }
    int result = kvl__launch_reach(cache, l->below, r);
    r->a.appends = 2;
    grid.y = l->config.num_kv_heads;
    grid.z = w->a.num_seqs;
    for (int side = 0; side < 2 && result == KVL__CU_OK; ++side) {
        grid.x = w->units[side];
        result = kvl__launch(cache, l->kernels.encode_rows[side], grid, &w->a);
        if (result == KVL__CU_OK) result = kvl__launch_predict(cache, l->number, side, r);
    }
    for (int i = 0; i < r->num && result == KVL__CU_OK; ++i)
        kvl__reach_note(cache, r->of[i]->owner, 0, 0, l->number);
    return result;
}

KVL__FN int kvl__launch_encode(const kvl__append_job* job, const kvl__append_wave* w)
{
    kvl__grid3 grid;
    int result = KVL__CU_OK;
    grid.y = job->l->config.num_kv_heads;
    grid.z = w->a.num_seqs;
    if (kvl__predicts(&job->l->config)) {
        kvl__device_reach r;
        return w->units[0] > 0 ? kvl__launch_predicted(job, w, &r) : result;
    }
    for (int side = 0; side < 2 && result == KVL__CU_OK; ++side) {
        grid.x = w->units[side];
        if (grid.x > 0)
            result = kvl__launch(job->cache, job->l->kernels.encode_rows[side], grid, &w->a);
    }
    return result;
}

// Launches the kernels of one wave.
KVL__FN int kvl__launch_append(const kvl__append_job* job, kvl__append_wave* w)
{
    kvl_cache* cache = job->cache;
    const kvl__layer* l = job->l;
    kvl__grid3 grid;
    grid.x = w->max_rows;
    grid.y = l->config.num_kv_heads;
    grid.z = w->a.num_seqs;
    int result = kvl__launch(cache, l->kernels.append_rows, grid, &w->a);
    w->wrote = result == KVL__CU_OK;
    if (result == KVL__CU_OK) result = kvl__launch_encode(job, w);
    grid.x = grid.y = grid.z = 1;
    if (result == KVL__CU_OK) result = kvl__launch(cache, l->kernels.advance_rows, grid, &w->a);
    return result;
}

KVL__FN void kvl__device_append_args(const kvl__append_job* job, kvl__device_append* a)
{
    memset(a, 0, sizeof *a);
    a->windows = kvl__device_windows_of(job->l);
    for (int side = 0; side < 2; ++side) a->side[side] = kvl__device_rows_of(&job->side[side]);
    a->faults = job->cache->device.faults;
    for (int side = 0; side < 2; ++side) {
        a->tables[side] = job->l->device_tables[side];
        a->table_floats[side] = (int32_t)job->l->record_floats[side];
    }
}

// One wave: of each of the sequences [first, first + num) as many rows as its ring has room for.
// now: their extents before and after it.  Returns the number of rows.
KVL__FN int64_t kvl__plan_append(const kvl__append_job* job, int first, int num, kvl__extent* now,
                                 kvl__append_wave* w)
{
    const kvl__config* c = &job->l->config;
    kvl__device_append* a = &w->a;
    int64_t all = 0;
    a->num_seqs = num;
    w->first = first;
    w->max_rows = w->units[0] = w->units[1] = 0;
    for (int i = 0; i < num; ++i) {
        const kvl__append_seq* from = &job->seqs[first + i];
        const int64_t done = now[i].rows - from->s->now.rows;
        const int64_t behind = now[i].rows - c->sink_len - now[i].quantized;     // < 0: in the sink
        const int64_t rows = kvl__min_i64(from->num_rows - done, job->l->tail_rows - behind);
        const kvl__extent to = kvl__grown(c, &now[i], rows, job->l->keep_rows);
        a->items[i].seq = from->s->record;
        a->items[i].first_row = (int32_t)(from->first_row + done);
        a->items[i].num_rows = (int32_t)rows;
        for (int side = 0; side < c->num_stored && to.quantized > now[i].quantized; ++side) {
            const int64_t unit = kvl__cta_rows(&c->side[side]);
            w->units[side] = kvl__max_i64(w->units[side], (to.quantized - 1) / unit -
                                                          now[i].quantized / unit + 1);
        }
        w->max_rows = kvl__max_i64(w->max_rows, rows);
        now[i] = to;
        all += rows;
    }
    return all;
}

// Notes a failure, after which nothing more is launched; the rest is kvl__append_undo's.
KVL__FN void kvl__device_append_rows(kvl__append_job* job)
{
    kvl_context* ctx = job->cache->ctx;
    kvl__extent now[KVL__BATCH];
    kvl__append_wave w;
    int result = KVL__CU_OK;
    if (job->cache->device.status != KVL_OK) return;
    const kvl_status entered = kvl__gpu_enter(ctx);
    if (entered != KVL_OK) {
        kvl__device_note(job->cache, entered);
        return;
    }
    kvl__device_append_args(job, &w.a);
    for (int first = 0; first < job->num_seqs; first += KVL__BATCH) {
        const int num = (int)kvl__min_i64(job->num_seqs - first, KVL__BATCH);
        for (int i = 0; i < num; ++i) now[i] = job->seqs[first + i].s->now;
        while (result == KVL__CU_OK && kvl__plan_append(job, first, num, now, &w) > 0) {
            result = kvl__launch_append(job, &w);
            for (int i = 0; i < num && w.wrote; ++i)
                job->seqs[first + i].num_waves += w.a.items[i].num_rows > 0;
        }
    }
    kvl__gpu_leave(ctx);
    kvl__device_note(job->cache, kvl__cu_check(ctx, result, "appending rows"));
}

// Records an append in the graph that is being captured: nothing runs, and no count changes.
KVL__FN kvl_status kvl__device_capture_append(kvl__append_job* job, int64_t num_rows)
{
    const kvl__config* c = &job->l->config;
    kvl_context* ctx = job->cache->ctx;
    kvl__append_wave w;
    kvl__device_append* a = &w.a;
    int result = KVL__CU_OK;
    const int64_t room = job->l->tail_rows - c->recent_len - c->chunk_len + 1;
    (void)num_rows;
    w.max_rows = w.units[1] = 0;
    for (int i = 0; i < job->num_seqs; ++i)
        w.max_rows = kvl__max_i64(w.max_rows, job->seqs[i].num_rows);
    KVL__REQUIRE(ctx, job->cache->device.prepared_rows > 0, KVL_UNSUPPORTED,
                 "the stream is being captured: call kvl_prepare before");
    KVL__REQUIRE(ctx, w.max_rows <= room, KVL_UNSUPPORTED, "num_rows: %lld rows of one sequence in "
                 "a captured append: at most %lld", (long long)w.max_rows, (long long)room);
    for (int side = 0; side < c->num_stored; ++side) {
        const int64_t due = (w.max_rows + c->chunk_len - 1) / c->chunk_len * c->chunk_len;
        w.units[side] = due / kvl__cta_rows(&c->side[side]) + 2;        // it may begin inside one
    }
    KVL__TRY(kvl__gpu_enter(ctx));
    kvl__device_append_args(job, a);
    for (int first = 0; first < job->num_seqs && result == KVL__CU_OK; first += KVL__BATCH) {
        a->num_seqs = (int32_t)kvl__min_i64(job->num_seqs - first, KVL__BATCH);
        w.first = first;
        for (int i = 0; i < a->num_seqs; ++i) {
            a->items[i].seq = job->seqs[first + i].s->record;
            a->items[i].first_row = (int32_t)job->seqs[first + i].first_row;
            a->items[i].num_rows = (int32_t)job->seqs[first + i].num_rows;
        }
        result = kvl__launch_append(job, &w);
    }
    kvl__gpu_leave(ctx);
    return kvl__cu_check(ctx, result, "recording an append");
}

// ATTEND

// A query's copies: plain, and in each basis that keys may be in.  Then, where keys are shifted by
// their positions, two floats and an angle of 64 bits a channel, and a count; where they have
// sketches, a copy in each rotation.
KVL__FN int64_t kvl__query_floats(const kvl__codec* c)
{
    const int64_t copies =
        (kvl__max_i64(2, kvl__query_copies(c)) + kvl__sketches(c)) * c->head_dim;
    return copies + (kvl__shifts_by_position(c) ? 4 * c->head_dim + 4 : 0);
}

// Bytes of workspace that query rows of a layer take.
KVL__FN uint64_t kvl__device_wave_bytes(const kvl__layer* l, int64_t num_queries, int64_t parts)
{
    const int64_t q_heads = (int64_t)l->config.num_heads * l->config.num_kv_heads;
    const int64_t floats = 1 + kvl__query_floats(&l->config.side[0]) +
                           parts * (l->config.side[1].head_dim + 1);
    return 4u * (uint64_t)(num_queries * q_heads * floats);
}

// Room for one query of any length, and for a launch of short ones.
KVL__FN uint64_t kvl__device_workspace_bytes(const kvl_cache* cache)
{
    uint64_t bytes = 0;
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__layer* l = &cache->layers[i];
        if (!l->active) continue;
        const uint64_t one = kvl__device_wave_bytes(l, 1, KVL__MAX_SPLITS + 1);
        const uint64_t many = kvl__device_wave_bytes(l, KVL__BATCH, 2);
        if (one > bytes) bytes = one;
        if (many > bytes) bytes = many;
    }
    return bytes;
}

KVL__FN void kvl__device_attend_args(const kvl__attend_job* job, int64_t parts,
                                     kvl__device_attend* a)
{
    const kvl_cache* cache = job->cache;
    const kvl__config* c = &job->l->config;
    const int64_t rows = job->num_queries * c->num_heads * c->num_kv_heads;
    memset(a, 0, sizeof *a);
    a->windows = kvl__device_windows_of(job->l);
    a->q = kvl__device_rows_of(&job->q);
    a->o = kvl__device_rows_of(&job->o);
    a->lse = (uintptr_t)job->lse;
    a->query_floats = (int32_t)kvl__query_floats(&c->side[0]);
    a->value_dim = c->value_dim;
    a->prepared = cache->device.workspace;
    a->o_part = a->prepared + 4u * (uint64_t)(rows * a->query_floats);
    a->lse_part = a->o_part + 4u * (uint64_t)(rows * parts * c->side[1].head_dim);
    a->bias = a->lse_part + 4u * (uint64_t)(rows * parts);
    for (int side = 0; side < 2; ++side) {
        a->tables[side] = job->l->device_tables[side];
        a->table_floats[side] = (int32_t)job->l->record_floats[side];
    }
    a->sink_logits = job->partial ? 0 : job->l->device_sinks;
    a->slopes = job->l->device_slopes;
    a->softmax_scale = job->l->softmax_scale;
    a->soft_cap = job->l->desc.soft_cap;
    a->window_len = job->l->desc.window_len;
    a->split_rows = KVL__DEVICE_SPLIT_ROWS;
    a->max_splits = (int32_t)kvl__device_splits_in(parts);
    a->parts = (int32_t)parts;
    a->num_queries = (int32_t)job->num_queries;
    for (int64_t i = 0; i < job->num_queries; ++i) {
        a->queries[i].seq = cache->wave[i].s->record;
        a->queries[i].position = cache->wave[i].position;
        a->queries[i].row = (int32_t)cache->wave[i].row;
        a->queries[i].begin = cache->wave[i].begin;
        a->queries[i].end = cache->wave[i].end;
    }
}

// Restores the rows that the queries of a wave see.
KVL__FN int kvl__reach_wave(const kvl__attend_job* job)
{
    kvl_cache* cache = job->cache;
    const kvl__layer* l = job->l;
    const int64_t prepared = kvl__quantized_rows(&l->config, cache->device.prepared_rows);
    kvl__device_reach r;
    memset(&r, 0, sizeof r);
    for (int64_t i = 0; i < job->num_queries; ++i) {
        const kvl__query* query = &cache->wave[i];
        const int64_t begin = job->captured ? 0 : query->v.page_begin;
        const int64_t end = job->captured ? prepared : query->s->now.quantized;
        if (begin >= (job->captured ? prepared : query->v.page_end)) continue;
        int at = 0;
        while (at < r.num && r.of[at] != query->s) ++at;
        kvl__device_predict_item* item = &r.a.items[at];
        if (at == r.num) {
            r.of[r.num++] = query->s;
            item->seq = query->s->record;
            item->first_row = (int32_t)begin;
        }
        item->first_row = (int32_t)kvl__min_i64(item->first_row, begin);
        r.tiles = kvl__max_i64(r.tiles, (end - 1) / 16 - item->first_row / 16 + 1);
        query->s->owner->restored.captured |= job->captured;
    }
    const int result = kvl__launch_reach(cache, l->number, &r);
    for (int i = 0; i < r.num && result == KVL__CU_OK; ++i)
        kvl__reach_note(cache, r.of[i]->owner, r.a.items[i].first_row, r.of[i]->now.quantized,
                        l->number);
    return result;
}

// Launches the kernels of one wave.
KVL__FN kvl_status kvl__launch_attend(const kvl__attend_job* job)
{
    kvl_context* ctx = job->cache->ctx;
    const kvl__config* c = &job->l->config;
    kvl__device_attend a;
    kvl__grid3 grid;
    const int64_t parts = job->max_parts;
    KVL__TRY(kvl__gpu_enter(ctx));
    kvl__device_attend_args(job, parts, &a);
    grid.x = (int64_t)c->num_heads * c->num_kv_heads;
    grid.y = job->num_queries;
    grid.z = 1;
    int result = kvl__predicts(c) ? kvl__reach_wave(job) : KVL__CU_OK;
    if (result == KVL__CU_OK)
        result = kvl__launch(job->cache, job->l->kernels.prepare_query, grid, &a);
    grid.x = parts;
    grid.y = c->num_kv_heads;
    grid.z = job->num_queries;
    if (result == KVL__CU_OK)
        result = kvl__launch(job->cache, job->l->kernels.attend_splits, grid, &a);
    grid.x = (int64_t)c->num_heads * c->num_kv_heads;
    grid.y = job->num_queries;
    grid.z = 1;
    if (result == KVL__CU_OK)
        result = kvl__launch(job->cache, job->l->kernels.merge_splits, grid, &a);
    kvl__gpu_leave(ctx);
    return kvl__cu_check(ctx, result, "attending");
}

// The wave is empty afterwards, whatever has failed: then nothing more is launched.
KVL__FN void kvl__device_attend_wave(kvl__attend_job* job)
{
    kvl_cache* cache = job->cache;
    if (job->num_queries > 0 && cache->device.status == KVL_OK)
        kvl__device_note(cache, kvl__launch_attend(job));
    job->num_queries = 0;
    job->max_parts = 1;
}

// Captured attends serve sequences of as many rows as kvl_prepare was told of.
KVL__FN kvl_status kvl__device_check_capture(const kvl_cache* cache, const kvl_attend_desc* d)
{
    const int64_t prepared = cache->device.prepared_rows;
    KVL__REQUIRE(cache->ctx, prepared > 0, KVL_UNSUPPORTED,
                 "the stream is being captured: call kvl_prepare before");
    for (int i = 0; i < d->num_seqs; ++i) {
        const int64_t rows = kvl__seq_find(cache, d->seqs[i])->layers[d->layer].now.rows;
        KVL__REQUIRE(cache->ctx, rows <= prepared, KVL_UNSUPPORTED, "seqs[%d]: %lld rows: "
                     "kvl_prepare made ready %lld; a captured attend serves no more", i,
                     (long long)rows, (long long)prepared);
    }
    return KVL_OK;
}

// Adds a query row; full waves run.  A position within the sequence is counted from its end, which
// is where it is when the kernels run; in a captured call the sequence may have grown by then, to
// prepared_rows at most.
KVL__FN void kvl__device_attend_add(kvl__attend_job* job, const kvl__query* asked)
{
    kvl_cache* cache = job->cache;
    const kvl__config* c = &job->l->config;
    const int64_t window = job->l->desc.window_len;
    const int64_t end = kvl__min_i64(asked->end, asked->position + 1);
    const int64_t begin = window ? kvl__max_i64(asked->begin, asked->position + 1 - window)
                                 : asked->begin;
    const kvl__visible v = kvl__see(c, &asked->s->now, begin, end);
    int64_t pages = v.page_end > v.page_begin
        ? (v.page_end - 1) / c->page_size - v.first_page + 1 : 0;
    if (job->captured) pages = kvl__num_pages(c, cache->device.prepared_rows);
    const int64_t own = 1 + (job->captured ? kvl__device_most_splits(c, pages)
                                           : kvl__device_splits(c, pages, KVL__MAX_SPLITS));
    int64_t parts = kvl__max_i64(job->max_parts, own);
    const int64_t num = job->num_queries + 1;
    if (num > 1 && (num > KVL__BATCH || kvl__device_wave_bytes(job->l, num, parts) >
                    cache->device.workspace_bytes)) {
        kvl__device_attend_wave(job);
        parts = own;
    }
    kvl__query* query = &cache->wave[job->num_queries++];
    *query = *asked;
    query->v = v;
    job->max_parts = parts;
    if (!job->absolute) query->position -= asked->s->now.rows;
}

// READING BACK

KVL__FN void kvl__device_restore_args(const kvl__layer* l, const kvl__seq_layer* s, int side,
                                      int64_t first, kvl__device_restore* a)
{
    memset(a, 0, sizeof *a);
    a->windows = kvl__device_windows_of(l);
    a->seq = s->record;
    a->only_head = -1;
    a->row_dim = side ? l->config.value_dim : l->config.side[0].head_dim;
    a->first = first;
    for (int i = 0; i < 2; ++i) {
        a->tables[i] = l->device_tables[i];
        a->table_floats[i] = (int32_t)l->record_floats[i];
    }
}

KVL__FN kvl_status kvl__launch_restore(kvl_cache* cache, const kvl__layer* l, int side,
                                       int64_t num, const kvl__device_restore* a)
{
    kvl__grid3 grid;
    grid.x = num;
    grid.y = a->only_head < 0 ? l->config.num_kv_heads : 1;
    grid.z = 1;
    if (num == 0) return KVL_OK;
    cache->device.launches_on = cache->device.stream;
    KVL__TRY(kvl__gpu_enter(cache->ctx));
    const int result = kvl__launch(cache, l->kernels.restore_rows[side], grid, a);
    kvl__gpu_leave(cache->ctx);
    return kvl__cu_check(cache->ctx, result, "restoring rows");
}

// Restores the rows from `first` of a sequence on in the job's layer.
KVL__FN kvl_status kvl__device_reach_rows(kvl_cache* cache, const kvl__restore_job* job)
{
    const kvl__seq_layer* s = job->s;
    const int64_t after = kvl__max_i64(job->first - job->l->config.sink_len, s->now.dropped);
    kvl__device_reach r;
    if (!kvl__predicts(&job->l->config) || after >= s->now.quantized) return KVL_OK;
    memset(&r, 0, sizeof r);
    r.num = 1;
    r.of[0] = s;
    r.tiles = (s->now.quantized - 1) / 16 - after / 16 + 1;
    r.a.items[0].seq = s->record;
    r.a.items[0].first_row = (int32_t)after;
    cache->device.launches_on = cache->device.stream;
    KVL__TRY(kvl__gpu_enter(cache->ctx));
    const int result = kvl__launch_reach(cache, job->l->number, &r);
    kvl__gpu_leave(cache->ctx);
    if (result == KVL__CU_OK)
        kvl__reach_note(cache, s->owner, after, s->now.quantized, job->l->number);
    return kvl__cu_check(cache->ctx, result, "restoring rows");
}

KVL__FN kvl_status kvl__device_restore_side(kvl_cache* cache, const kvl__restore_job* job)
{
    kvl__device_restore a;
    KVL__TRY(kvl__device_reach_rows(cache, job));
    kvl__device_restore_args(job->l, job->s, job->side, job->first, &a);
    a.rows = kvl__device_rows_of(&job->out);
    return kvl__launch_restore(cache, job->l, job->side, job->num, &a);
}

// Rows of a sequence that are written into windows of 16-bit rows, of a layer like its own but for
// the length of the ring.
typedef struct kvl__ring_copy {
    const kvl__layer *from, *to;
    const kvl__seq_layer* seq;         // of from
    uint64_t window;                   // of to
    int64_t  row, num;                 // after the sink
} kvl__ring_copy;

// num rows of a side from `first` on, to the place `at` of each head's windows, in numbers.
KVL__FN void kvl__device_copy_rows(kvl_cache* cache, const kvl__ring_copy* copy, int side,
                                   int64_t first, int64_t num, int64_t at)
{
    const kvl__layer* to = copy->to;
    kvl__device_restore a;
    if (cache->device.status != KVL_OK) return;
    kvl__device_restore_args(copy->from, copy->seq, side, first, &a);
    a.rows.data = copy->window + 2u * (uint64_t)at;
    a.rows.row_stride = to->config.side[side].head_dim;
    a.rows.head_stride =
        (to->sink_rows + to->keep_rows + to->tail_rows) * kvl__stored_dims(&to->config);
    a.rows.type = to->config.side[side].rows ? KVL_BF16 : KVL_F16;
    kvl__device_note(cache, kvl__launch_restore(cache, copy->from, side, num, &a));
}

// The first num rows, which the sink has.
KVL__FN void kvl__device_copy_sink(kvl_cache* cache, const kvl__ring_copy* copy, int64_t num)
{
    const kvl__config* c = &copy->to->config;
    for (int side = 0; side < c->num_stored; ++side)
        kvl__device_copy_rows(cache, copy, side, 0, num,
                              side ? copy->to->sink_rows * c->side[0].head_dim : 0);
}

// Rows after the sink become ring rows in their own places.
KVL__FN void kvl__device_copy_ring(kvl_cache* cache, const kvl__ring_copy* copy)
{
    const kvl__layer* to = copy->to;
    const int64_t ring_rows = to->keep_rows + to->tail_rows, dk = to->config.side[0].head_dim;
    for (int side = 0; side < to->config.num_stored; ++side) {
        const int64_t ring = to->sink_rows * kvl__stored_dims(&to->config) +
                             (side ? ring_rows * dk : 0);
        for (int64_t done = 0; done < copy->num;) {
            const int64_t slot = (copy->row + done) % ring_rows;
            const int64_t count = kvl__min_i64(copy->num - done, ring_rows - slot);
            kvl__device_copy_rows(cache, copy, side, to->config.sink_len + copy->row + done, count,
                                  ring + slot * to->config.side[side].head_dim);
            done += count;
        }
    }
}

// Rows [row, row + num) after the sink, in pages, become ring rows in their own places.
KVL__FN void kvl__device_restore_tail(kvl_cache* cache, const kvl__layer* l,
                                      const kvl__seq_layer* s, int64_t row, int64_t num)
{
    kvl__ring_copy copy;
    copy.from = copy.to = l;
    copy.seq = s;
    copy.window = (uintptr_t)s->window;
    copy.row = row;
    copy.num = num;
    kvl__device_copy_ring(cache, &copy);
}

// Codes and grids of one side of one head, to arrays of the host: through memory of the device.
KVL__FN kvl_status kvl__device_read_codes(kvl_cache* cache, const kvl__restore_job* job, int head,
                                          kvl_codes* out)
{
    kvl_context* ctx = cache->ctx;
    const kvl__codec* c = &job->l->config.side[job->side];
    const uint64_t code_bytes = 2u * (uint64_t)(job->num * c->head_dim);
    const uint64_t grid_bytes = 4u * (uint64_t)out->num_groups;
    const uint64_t scales_at = (code_bytes + 255) & ~(uint64_t)255;
    const uint64_t offsets_at = scales_at + ((grid_bytes + 255) & ~(uint64_t)255);
    kvl__cu_stream stream = cache->device.stream;
    uint64_t memory;
    kvl__device_restore a;
    if (job->num == 0) return KVL_OK;
    const uint64_t choice_bytes = 4u * (uint64_t)out->num_choices;
    const uint64_t choices_at = offsets_at + ((grid_bytes + 255) & ~(uint64_t)255);
    const uint64_t all = choices_at + choice_bytes + 256;
    KVL__TRY(kvl__device_take(ctx, stream, all, &memory));
    kvl__device_restore_args(job->l, job->s, job->side, job->l->config.sink_len + job->first, &a);
    a.only_head = head;
    a.codes = memory;
    if (grid_bytes) {
        a.scales = memory + scales_at;
        a.offsets = memory + offsets_at;
    }
    if (choice_bytes) a.choices = memory + choices_at;
    kvl_status status = kvl__launch_restore(cache, job->l, job->side, job->num, &a);
    if (status == KVL_OK && out->codes)
        status = kvl__device_download(ctx, stream, out->codes, a.codes, code_bytes);
    if (status == KVL_OK && out->scales && grid_bytes)
        status = kvl__device_download(ctx, stream, out->scales, a.scales, grid_bytes);
    if (status == KVL_OK && out->offsets && grid_bytes)
        status = kvl__device_download(ctx, stream, out->offsets, a.offsets, grid_bytes);
    if (status == KVL_OK && out->choices && choice_bytes)
        status = kvl__device_download(ctx, stream, out->choices, a.choices, choice_bytes);
    kvl__device_give(ctx, stream, memory, all);
    return status;
}

// THE CACHE

// Of where keys across heads are stored; 0 where they are not.
KVL__FN uint64_t kvl__places_bytes(const kvl__config* c)
{
    return kvl__is_across(&c->side[0])
        ? 4u * (uint64_t)(c->num_kv_heads * c->side[0].head_dim) : 0;
}

// Bytes of the calibrated records of a layer on the device, of how its keys turn: what the host
// has, and the number of channels that turn; of where they are; and of what predicts rows.
KVL__FN uint64_t kvl__device_records_bytes(const kvl__layer* l)
{
    const int64_t values = l->config.num_stored == 2 ? l->record_floats[1] : 0;
    return 4u * (uint64_t)((l->record_floats[0] + values) * l->config.num_kv_heads) +
           (l->turns_bytes ? l->turns_bytes + sizeof *l->turns : 0) +
           kvl__places_bytes(&l->config) + l->predictor_bytes;
}

// Where keys across heads are stored, to the device.
KVL__FN kvl_status kvl__device_places(kvl_cache* cache, kvl__layer* l, uint64_t at)
{
    const uint64_t bytes = kvl__places_bytes(&l->config);
    const int64_t order = kvl__table_at(&l->config.side[0], "grouped_order");
    const int dim = l->config.side[0].head_dim;
    if (bytes == 0) return KVL_OK;
    int32_t* places = (int32_t*)kvl__alloc(cache->ctx, (size_t)bytes);
    KVL__REQUIRE(cache->ctx, places, KVL_NO_MEMORY, "the allocator has no %llu bytes",
                 (unsigned long long)bytes);
    for (int i = 0; i < l->config.num_kv_heads * dim; ++i)
        places[(int)kvl__record_of(l, 0, i / dim)[order + i % dim]] = i;
    l->device_places = at;
    const kvl_status status =
        kvl__device_upload(cache->ctx, cache->device.stream, at, places, bytes);
    kvl__free(cache->ctx, places, (size_t)bytes);
    return status;
}

KVL__FN kvl_status kvl__device_records(kvl_cache* cache, kvl__layer* l)
{
    const uint64_t bytes = kvl__device_records_bytes(l);
    if (bytes == 0) return KVL_OK;
    uint64_t at = kvl__cache_take_device(cache, bytes);
    if (!at) return KVL_NO_MEMORY;
    l->device_records = at;
    for (int side = 0; side < l->config.num_stored; ++side) {
        const uint64_t part = 4u * (uint64_t)(l->record_floats[side] * l->config.num_kv_heads);
        l->device_tables[side] = at;
        if (part) KVL__TRY(kvl__device_upload(cache->ctx, cache->device.stream, at,
                                              l->tables[side], part));
        at += part;
    }
    if (l->config.num_stored == 1) l->device_tables[1] = l->device_tables[0];
    if (!l->turns) return KVL_OK;
    const double dims = kvl__turning_dims(l->turns, l->config.side[0].head_dim);
    l->device_turns = at;
    KVL__TRY(kvl__device_upload(cache->ctx, cache->device.stream, at, l->turns, l->turns_bytes));
    at += l->turns_bytes;
    KVL__TRY(kvl__device_upload(cache->ctx, cache->device.stream, at, &dims, sizeof dims));
    at += sizeof dims;
    KVL__TRY(kvl__device_places(cache, l, at));
    at += kvl__places_bytes(&l->config);
    if (l->predictor_bytes == 0) return KVL_OK;
    l->device_predictors[0] = at;
    l->device_predictors[1] = at + 4u * (uint64_t)(l->predictors[1] - l->predictors[0]);
    return kvl__device_upload(cache->ctx, cache->device.stream, at, l->predictors[0],
                              l->predictor_bytes);
}

// Numbers of query heads: sink logits and slopes, at their places in head_numbers.
KVL__FN kvl_status kvl__device_numbers(kvl_cache* cache, kvl__layer* l)
{
    if (l->head_bytes == 0) return KVL_OK;
    l->device_numbers = kvl__cache_take_device(cache, l->head_bytes);
    if (!l->device_numbers) return KVL_NO_MEMORY;
    const kvl_layer_desc* d = &l->desc;
    if (d->sink_logits)
        l->device_sinks = l->device_numbers + 4u * (uint64_t)(d->sink_logits - l->head_numbers);
    if (d->alibi_slopes)
        l->device_slopes = l->device_numbers + 4u * (uint64_t)(d->alibi_slopes - l->head_numbers);
    return kvl__device_upload(cache->ctx, cache->device.stream, l->device_numbers,
                              l->head_numbers, l->head_bytes);
}

KVL__FN kvl_status kvl__device_cache_build(kvl_cache* cache)
{
    kvl_context* ctx = cache->ctx;
    kvl__device_state* d = &cache->device;
    KVL__TRY(kvl__gpu_enter(ctx));
    const int result = ctx->gpu->driver.event_create(&d->event, KVL__EVENT_NO_TIMING);
    kvl__gpu_leave(ctx);
    KVL__TRY(kvl__cu_check(ctx, result, "making an event"));
    for (int i = 0; i < cache->num_layers; ++i)
        KVL__TRY(kvl__device_records(cache, &cache->layers[i]));
    for (int i = 0; i < cache->num_layers; ++i)
        KVL__TRY(kvl__device_numbers(cache, &cache->layers[i]));
    for (int i = 0; i < cache->num_layers; ++i) {
        kvl__layer* l = &cache->layers[i];
        if (l->pool_device_bytes == 0) continue;
        l->pool_device = kvl__cache_take_device(cache, l->pool_device_bytes);
        if (!l->pool_device) return KVL_NO_MEMORY;
    }
    d->workspace_bytes = kvl__device_workspace_bytes(cache);
    if (d->workspace_bytes) {
        d->workspace = kvl__cache_take_device(cache, d->workspace_bytes);
        if (!d->workspace) return KVL_NO_MEMORY;
    }
    d->faults = kvl__cache_take_device(cache, KVL__FAULTS_BYTES);
    if (!d->faults) return KVL_NO_MEMORY;
    return kvl__device_zero(ctx, d->stream, d->faults, KVL__FAULTS_BYTES);
}

KVL__FN void kvl__device_cache_free(kvl_cache* cache)
{
    kvl__device_state* d = &cache->device;
    for (int i = 0; i < cache->num_layers; ++i) {
        kvl__layer* l = &cache->layers[i];
        kvl__cache_give_device(cache, l->device_records, kvl__device_records_bytes(l));
        kvl__cache_give_device(cache, l->device_numbers, l->head_bytes);
        kvl__cache_give_device(cache, l->pool_device, l->pool_device_bytes);
        while (l->spare) {
            kvl__page* page = l->spare;
            l->spare = page->next;
            kvl__device_page_free(cache, l, page);
        }
    }
    kvl__cache_give_device(cache, d->workspace, d->workspace_bytes);
    kvl__cache_give_device(cache, d->faults, KVL__FAULTS_BYTES);
    if (d->event && kvl__gpu_enter(cache->ctx) == KVL_OK) {
        cache->ctx->gpu->driver.event_destroy(d->event);
        kvl__gpu_leave(cache->ctx);
    }
}

KVL__FN kvl_status kvl__device_merge_kernel(kvl_context* ctx, kvl__cu_function* out);

KVL__PUBLIC kvl_status kvl_prepare(kvl_cache* cache, const kvl_prepare_desc* d)
{
    KVL__USE_CACHE(cache);
    kvl_context* ctx = cache->ctx;
    KVL__REQUIRE(ctx, d, KVL_BAD_ARGUMENT, "kvl_prepare_desc = NULL: must be given");
    KVL__REQUIRE(ctx, d->end == 0, KVL_BAD_ARGUMENT,
                 "kvl_prepare_desc.end = %u: must be 0: zero the whole desc first", d->end);
    KVL__REQUIRE(ctx, kvl__on_device(cache), KVL_UNSUPPORTED,
                 "kvl_prepare: the cache is not of target cuda");
    KVL__REQUIRE(ctx, d->num_seqs >= 1 && d->num_seqs <= 1 << 20, KVL_BAD_ARGUMENT,
                 "num_seqs = %d: must be 1 to %d", d->num_seqs, 1 << 20);
    KVL__REQUIRE(ctx, d->num_rows >= 1 && d->num_rows < KVL__DEVICE_ROWS_MAX, KVL_BAD_ARGUMENT,
                 "num_rows = %lld: must be 1 to 2^31 - 1", (long long)d->num_rows);
    if (!kvl__slots_grow(cache, d->num_seqs)) return KVL_NO_MEMORY;
    for (int i = 0; i < cache->num_layers; ++i) {
        kvl__layer* l = &cache->layers[i];
        if (!l->active) continue;
        const int64_t quantized = kvl__quantized_rows(&l->config, d->num_rows);
        int64_t missing =
            cache->num_pages ? 0 : d->num_seqs * kvl__num_pages(&l->config, quantized);
        for (const kvl__page* page = l->spare; page; page = page->next) --missing;
        for (; missing > 0; --missing) {
            kvl__page* page = kvl__device_page_make(cache, l);
            if (!page) return kvl__cache_failure(cache);
            page->next = l->spare;
            l->spare = page;
        }
    }
    for (int slot = 0; slot < cache->capacity; ++slot) {
        kvl__seq* seq = cache->slots[slot];
        if (!seq || seq->away || seq->restored.rows >= kvl__restored_most(cache, d->num_rows))
            continue;
        KVL__TRY(kvl__restored_room_device(cache, seq, kvl__restored_most(cache, d->num_rows)));
    }
    kvl__cu_function merge;                  // for captures; who merges nothing needs none
    const kvl_status status = kvl__device_merge_kernel(ctx, &merge);
    if (status == KVL_NO_MEMORY || status == KVL_DEVICE) return status;
    cache->device.prepared_rows = kvl__max_i64(cache->device.prepared_rows, d->num_rows);
    return KVL_OK;
}

KVL__PUBLIC kvl_status kvl_cache_check(kvl_cache* cache)
{
    uint32_t faults = 0;
    KVL__USE_CACHE(cache);
    if (!kvl__on_device(cache)) return KVL_OK;
    kvl_context* ctx = cache->ctx;
    kvl__cu_stream stream = cache->device.stream;
    KVL__TRY(kvl__device_download(ctx, stream, &faults, cache->device.faults, sizeof faults));
    cache->device.stream = NULL;                       // it has nothing left, and may be destroyed
    if (faults == 0) return KVL_OK;
    KVL__TRY(kvl__device_zero(ctx, NULL, cache->device.faults, KVL__FAULTS_BYTES));
    if ((faults & KVL__FAULT_SATURATED) && kvl__first_time(ctx, &ctx->said_saturated))
        kvl__say(ctx, KVL_LOG_WARNING, "a value beyond the range of f16 is kept as 65504 with its "
                 "sign; rows=bf16 in the spec has the range of float");
    KVL__REQUIRE(ctx, !(faults & KVL__FAULT_NOT_FINITE), KVL_BAD_ARGUMENT, "rows must be finite: "
                 "some that were appended were not, and are kept as the nearest finite numbers");
    return KVL_OK;
}

// MERGE

KVL__FN kvl_status kvl__device_merge_kernel(kvl_context* ctx, kvl__cu_function* out)
{
    kvl__kernel_request request;
    kvl_layer_desc layer;
    kvl__config config;
    memset(&layer, 0, sizeof layer);
    memset(&request, 0, sizeof request);
    layer.num_q_heads = layer.num_kv_heads = 1;
    layer.head_dim = 32;
    KVL__TRY(kvl__config_create(ctx, -1, &layer, NULL, NULL, &config));
    kvl__config_text* t = (kvl__config_text*)kvl__alloc(ctx, sizeof *t);
    KVL__REQUIRE(ctx, t, KVL_NO_MEMORY, "%zu bytes for a configuration", sizeof *t);
    kvl__config_to_text(ctx, &config, "merge_results", t);
    snprintf(t->name, sizeof t->name, "merge_results");
    request.name = t->name;
    request.entry = "merge_results";
    request.fields = t->fields;
    request.num_fields = t->num_fields;
    const kvl_status status = kvl__kernels_get(ctx, &request, 1);
    kvl__free(ctx, t, sizeof *t);
    KVL__TRY(status);
    *out = request.function;
    if (ctx->gpu) __atomic_store_n(&ctx->gpu->merge_results, request.function, __ATOMIC_RELEASE);
    return KVL_OK;
}

// The kernel, made and loaded at its first use, which a capture must not contain.
KVL__FN kvl_status kvl__device_merge_ready(kvl_context* ctx, kvl__cu_stream stream,
                                           kvl__cu_function* out)
{
    int capturing = 0;
    *out = __atomic_load_n(&ctx->gpu->merge_results, __ATOMIC_ACQUIRE);
    if (*out) return KVL_OK;
    KVL__TRY(kvl__gpu_enter(ctx));
    const int result =
        stream ? ctx->gpu->driver.stream_is_capturing(stream, &capturing) : KVL__CU_OK;
    kvl__gpu_leave(ctx);
    KVL__TRY(kvl__cu_check(ctx, result, "merging results"));
    KVL__REQUIRE(ctx, !capturing, KVL_UNSUPPORTED, "the stream is being captured, and the kernel "
                 "of kvl_merge is not loaded: call kvl_prepare before, or kvl_merge once");
    return kvl__device_merge_kernel(ctx, out);
}

KVL__FN kvl_status kvl__device_merge_results(kvl_context* ctx, const kvl_merge_desc* d)
{
    kvl__cu_function kernel = NULL;
    kvl__device_merge m;
    void* params[1] = { &m };
    KVL__REQUIRE(ctx, d->num_rows <= INT32_MAX, KVL_BAD_ARGUMENT,
                 "num_rows = %lld: at most 2^31 - 1 on a device", (long long)d->num_rows);
    if (d->num_rows == 0) return KVL_OK;
    KVL__TRY(kvl__device_merge_ready(ctx, (kvl__cu_stream)d->stream, &kernel));
    m.o_a = (uintptr_t)d->o_a;
    m.lse_a = (uintptr_t)d->lse_a;
    m.o_b = (uintptr_t)d->o_b;
    m.lse_b = (uintptr_t)d->lse_b;
    m.o = (uintptr_t)d->o;
    m.lse = (uintptr_t)d->lse;
    m.sink_logits = (uintptr_t)d->sink_logits;
    m.head_dim = d->head_dim;
    m.num_heads = d->num_heads;
    KVL__TRY(kvl__gpu_enter(ctx));
    const int result = ctx->gpu->driver.launch(kernel, (unsigned)d->num_rows, 1, 1,
                                               KVL__CTA_THREADS, 1, 1, 0,
                                               (kvl__cu_stream)d->stream, params, NULL);
    kvl__gpu_leave(ctx);
    return kvl__cu_check(ctx, result, "merging results");
}

// MEMORY FOR THE CALLER

KVL__PUBLIC int kvl_context_has_device(const kvl_context* ctx) { return ctx && ctx->gpu; }

KVL__FN kvl_status kvl__check_device(kvl_context* ctx)
{
    KVL__TRY(kvl__check_context(ctx));
    KVL__REQUIRE(ctx, ctx->gpu, KVL_UNSUPPORTED, "the context has no device: target = cuda opens "
                 "one");
    return KVL_OK;
}

KVL__PUBLIC kvl_status kvl_device_alloc(kvl_context* ctx, uint64_t bytes, void** out)
{
    uint64_t address;
    if (out) *out = NULL;
    KVL__TRY(kvl__check_device(ctx));
    KVL__REQUIRE(ctx, out, KVL_BAD_ARGUMENT, "out = NULL: must be given");
    KVL__TRY(kvl__device_take(ctx, NULL, bytes ? bytes : 1, &address));
    *out = (void*)(uintptr_t)address;
    return KVL_OK;
}

KVL__PUBLIC void kvl_device_free(kvl_context* ctx, void* ptr, uint64_t bytes)
{
    if (kvl__check_device(ctx) == KVL_OK)
        kvl__device_give(ctx, NULL, (uintptr_t)ptr, bytes ? bytes : 1);
}

KVL__PUBLIC kvl_status kvl_device_write(kvl_context* ctx, void* to, const void* from,
                                        uint64_t bytes)
{
    KVL__TRY(kvl__check_device(ctx));
    KVL__REQUIRE(ctx, (to && from) || bytes == 0, KVL_BAD_ARGUMENT, "to, from: must be given");
    return bytes ? kvl__device_upload(ctx, NULL, (uintptr_t)to, from, bytes) : KVL_OK;
}

KVL__PUBLIC kvl_status kvl_device_read(kvl_context* ctx, void* to, const void* from,
                                       uint64_t bytes)
{
    KVL__TRY(kvl__check_device(ctx));
    KVL__REQUIRE(ctx, (to && from) || bytes == 0, KVL_BAD_ARGUMENT, "to, from: must be given");
    return bytes ? kvl__device_download(ctx, NULL, to, (uintptr_t)from, bytes) : KVL_OK;
}

#endif
