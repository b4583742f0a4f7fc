// kvl_predict.h -- rows without what the layer below and the key say of them, and rows restored.
//
// gen/parts/predicted.lua has the definition.  What is restored of a row of a layer follows from
// its codes there and from what is restored of it in the layer below.  A sequence keeps, row by
// row, the layer that it was restored in last and what that gave: the next layer goes on from it.

#ifndef KVL_PREDICT_H
#define KVL_PREDICT_H

#include "kvl_store.h"
#include "kvl_tiles.h"
#include "kvl_turn.h"

// CREATION

// A layer is predicted from the next lower one that has KV heads, which must be like it.
KVL__FN kvl_status kvl__check_below(kvl_context* ctx, const kvl__layer* l, const kvl__layer* below)
{
    const kvl__config *a = &l->config, *b = &below->config;
    for (int side = 0; side < 2; ++side)
        KVL__REQUIRE(ctx, kvl__is_predicted(&b->side[side]), KVL_BAD_ARGUMENT, "layer %d: "
                     "%c.shift = predicted: rows are predicted from layer %d, which has %c.shift = "
                     "%s: must be predicted too", l->number, side ? 'v' : 'k', below->number,
                     side ? 'v' : 'k', kvl__word_of(&b->side[side], KVL__STAGE_SHIFT)->name);
    KVL__REQUIRE(ctx, a->num_kv_heads == b->num_kv_heads &&
                 a->side[0].head_dim == b->side[0].head_dim &&
                 a->side[1].head_dim == b->side[1].head_dim, KVL_BAD_ARGUMENT, "layer %d: k.shift "
                 "= predicted: %d KV heads of %d and %d channels: layer %d, from which rows are "
                 "predicted, has %d of %d and %d", l->number, a->num_kv_heads, a->side[0].head_dim,
                 a->side[1].head_dim, below->number, b->num_kv_heads, b->side[0].head_dim,
                 b->side[1].head_dim);
    KVL__REQUIRE(ctx, a->sink_len == b->sink_len && a->recent_len == b->recent_len &&
                 a->chunk_len == b->chunk_len && a->side[0].rows == b->side[0].rows,
                 KVL_BAD_ARGUMENT, "layer %d: k.shift = predicted: sink = %d, recent = %d, chunk = "
                 "%d, rows = %s: must be those of layer %d, from which rows are predicted: %d, %d, "
                 "%d, %s", l->number, a->sink_len, a->recent_len, a->chunk_len,
                 a->side[0].rows ? "bf16" : "f16", below->number, b->sink_len, b->recent_len,
                 b->chunk_len, b->side[0].rows ? "bf16" : "f16");
    return KVL_OK;
}

// Sets what layers are predicted from; release: sliding windows let pages go.
KVL__FN kvl_status kvl__layers_predict(kvl_cache* cache, int release)
{
    int below = -1;
    for (int i = 0; i < cache->num_layers; ++i) {
        kvl__layer* l = &cache->layers[i];
        l->number = i;
        l->below = l->above = l->lowest = -1;
        if (!l->active) continue;
        if (kvl__predicts(&l->config)) {
            KVL__REQUIRE(cache->ctx, !release, KVL_UNSUPPORTED, "layer %d: k.shift = predicted: "
                         "release_windows = 1: layers above need the rows that a window lets go",
                         i);
            if (below >= 0) KVL__TRY(kvl__check_below(cache->ctx, l, &cache->layers[below]));
            l->below = below;
            l->lowest = below < 0 ? i : cache->layers[below].lowest;
            l->depth = below < 0 ? 0 : cache->layers[below].depth + 1;
            if (below >= 0) cache->layers[below].above = i;
            l->predictor_bytes = kvl__predictor_bytes(&l->config);
            cache->restored_dims = kvl__max_i64(cache->restored_dims, l->config.num_kv_heads *
                                                kvl__stored_dims(&l->config));
            cache->restored_heads = (int)kvl__max_i64(cache->restored_heads,
                                                      l->config.num_kv_heads);
        }
        below = i;
    }
    return KVL_OK;
}

// The layer's own copy of its tables, of keys and then of values.
KVL__FN kvl_status kvl__layer_predictors(kvl_cache* cache, kvl__layer* l,
                                         const kvl_calibration* calibration)
{
    const kvl__table_source* source = (const kvl__table_source*)(const void*)calibration;
    if (l->predictor_bytes == 0) return KVL_OK;
    float* at = (float*)kvl__cache_alloc(cache, l->predictor_bytes);
    if (!at) return KVL_NO_MEMORY;
    l->predictors[0] = at;
    for (int side = 0; side < 2; ++side) {
        const kvl__table_desc* table =
            &kvl__word_of(&l->config.side[side], KVL__STAGE_SHIFT)->tables[0];
        const float* found = NULL;
        kvl__wanted_table wanted;
        l->predictors[side] = at;
        kvl__table_want(&l->config, l->number, side, KVL__STAGE_SHIFT, table, &wanted);
        if (source) KVL__TRY(source->find(cache->ctx, source, &wanted, &found));
        if (!found)
            return kvl__table_missing(cache->ctx, &l->config, &wanted, KVL__STAGE_SHIFT, source);
        const int64_t count = wanted.shape[0] * wanted.shape[1];
        KVL__TRY(kvl__table_copy(cache->ctx, &wanted, 0, found, count, at));
        at += count * l->config.num_kv_heads;
    }
    return KVL_OK;
}

// RESTORED ROWS OF A SEQUENCE

KVL__FN uint16_t* kvl__restored_at(const kvl_cache* cache, const kvl__restored* r, int64_t row)
{
    return r->values + row * cache->restored_dims;
}

// Room on a device for restored rows of a sequence, whose records are told of it.
KVL__FN kvl_status kvl__restored_room_device(kvl_cache* cache, kvl__seq* seq, int64_t rows)
{
    if (!kvl__restored_make(cache, seq, rows)) return kvl__cache_failure(cache);
    for (int i = 0; i < cache->num_layers; ++i)
        if (cache->layers[i].active) kvl__record_update(cache, &seq->layers[i], 0);
    return KVL_OK;
}

// Room for the quantized rows of a layer, and whether the layers below have them.
KVL__FN kvl_status kvl__restored_room(kvl_cache* cache, const kvl__layer* l, kvl__seq* seq,
                                      int64_t quantized)
{
    const int64_t prepared = kvl__quantized_rows(&l->config, cache->device.prepared_rows);
    const int64_t rows = kvl__restored_rows(l, kvl__max_i64(quantized, prepared));
    if (!kvl__predicts(&l->config)) return KVL_OK;
    for (int m = l->below; m >= 0; m = cache->layers[m].below)
        KVL__REQUIRE(cache->ctx, seq->layers[m].now.quantized >= quantized, KVL_BAD_ARGUMENT,
                     "layer %d: k.shift = predicted: %lld rows in pages are predicted from those "
                     "of layer %d, which has %lld", l->number, (long long)quantized, m,
                     (long long)seq->layers[m].now.quantized);
    if (rows <= seq->restored.rows) return KVL_OK;
    if (kvl__on_device(cache)) return kvl__restored_room_device(cache, seq, rows);
    kvl__restored to;
    memset(&to, 0, sizeof to);
    to.rows = rows;
    to.dims = cache->restored_dims;
    to.layers = (int32_t*)kvl__cache_alloc(cache, kvl__restored_bytes(cache, rows));
    if (!to.layers) return KVL_NO_MEMORY;
    to.values = (uint16_t*)(void*)(to.layers + rows);
    if (seq->restored.rows) {
        memcpy(to.layers, seq->restored.layers, (size_t)seq->restored.rows * sizeof *to.layers);
        memcpy(to.values, seq->restored.values,
               2u * (size_t)(seq->restored.rows * cache->restored_dims));
    }
    kvl__restored_free(cache, seq);
    seq->restored = to;
    return KVL_OK;
}

// Rows from `quantized` on have no codes any more, or will have others.
KVL__FN void kvl__restored_cut(kvl__seq* seq, int64_t quantized)
{
    if (!seq->restored.layers) return;           // on a device rows that get codes start anew
    for (int64_t row = quantized; row < seq->restored.rows; ++row) seq->restored.layers[row] = 0;
}

KVL__FN uint16_t kvl__f32_to_row(float x, int rows)
{
    return rows ? kvl__f32_to_bf16_finite(x) : kvl__f32_to_f16_finite(x);
}

// Rows of a tile, inputs whose products are summed at a time.
enum { KVL__PREDICT_ROWS = 16, KVL__PREDICT_INPUTS = 128 };

// Rows of one page of a layer, all restored in the same one.
typedef struct kvl__predicted_rows {
    const kvl__layer*     l;
    const kvl__seq_layer* s;
    int64_t               row;         // the first, after the sink
    int                   num;         // at most KVL__PREDICT_ROWS
    int64_t               tail_at;     // of the first, where they are encoded
    uint16_t*             restored;    // [num, dims]
    int64_t               dims;
    kvl__tiles            tiles;
} kvl__predicted_rows;

// sums [KVL__PREDICT_ROWS, dim] of a head get the products of inputs [first, first + count).  That
// of a 16-bit number and a float is exact in double: all instruction sets give the same sums.
KVL__FN void kvl__predict_add(const kvl__predicted_rows* r, int side, const float* table,
                              int64_t first, int64_t count, double* sums)
{
    const kvl__config* c = &r->l->config;
    const int dim = c->side[side].head_dim;
    double y[KVL__PREDICT_INPUTS][KVL__PREDICT_ROWS], x[KVL__PREDICT_INPUTS][KVL__UPDATE_COLS];
    kvl__update u;
    memset(y, 0, sizeof y);
    for (int row = 0; row < r->num; ++row)
        for (int64_t n = 0; n < count; ++n)
            y[n][row] = (double)kvl__row_to_f32(r->restored[row * r->dims + first + n],
                                                c->side[0].rows);
    u.x = x[0];
    u.x_stride = KVL__UPDATE_COLS;
    u.y_stride = KVL__PREDICT_ROWS;
    u.n = count;
    u.c_stride = dim;
    for (int at = 0; at < dim; at += KVL__UPDATE_COLS) {
        for (int64_t n = 0; n < count; ++n)
            for (int i = 0; i < KVL__UPDATE_COLS; ++i)
                x[n][i] = (double)table[(first + n) * dim + at + i];
        for (int row = 0; row < r->num; row += KVL__UPDATE_ROWS) {
            u.y = y[0] + row;
            u.c = sums + row * dim + at;
            r->tiles.update(&u);
        }
    }
}

// p [num, dim] of a head, from the restored rows: keys of all heads, then values.
KVL__FN void kvl__predict(const kvl__predicted_rows* r, int side, int head, float* p)
{
    const kvl__config* c = &r->l->config;
    const int64_t dim = c->side[side].head_dim, inputs = kvl__num_inputs(c, side) - 1;
    const float* table = r->l->predictors[side] + head * (inputs + 1) * dim;
    double sums[KVL__PREDICT_ROWS * KVL__MAX_STORED_DIM];
    for (int64_t i = 0; i < KVL__PREDICT_ROWS * dim; ++i)
        sums[i] = (double)table[inputs * dim + i % dim];
    for (int64_t n = 0; n < inputs; n += KVL__PREDICT_INPUTS)
        kvl__predict_add(r, side, table, n, kvl__min_i64(inputs - n, KVL__PREDICT_INPUTS), sums);
    for (int64_t i = 0; i < r->num * dim; ++i) p[i] = (float)sums[i];
}

// The codes of the rows without p, of one head.
KVL__FN void kvl__predicted_encode(const kvl__predicted_rows* r, int side, int head, const float* p)
{
    const kvl__codec* c = &r->l->config.side[side];
    const int64_t page_size = r->l->config.page_size;
    const uint16_t* from =
        kvl__windows_of(r->l, r->s, head).tail[side] + r->tail_at * c->head_dim;
    float x[KVL__MAX_STORED_DIM];
    uint16_t y[KVL__PREDICT_ROWS * KVL__MAX_STORED_DIM];
    kvl__encode_args a;
    for (int64_t row = 0, at = 0; row < r->num; ++row, at += c->head_dim) {
        for (int i = 0; i < c->head_dim; ++i) x[i] = kvl__row_to_f32(from[at + i], c->rows);
        if (side == 0)
            kvl__turn_row(r->l->turns, c->head_dim, r->l->config.sink_len + r->row + row, -1, x);
        for (int i = 0; i < c->head_dim; ++i)
            y[at + i] = kvl__f32_to_row(x[i] - p[at + i], c->rows);
    }
    memset(&a, 0, sizeof a);
    a.codec = c;
    a.tables = kvl__record_of(r->l, side, head);
    a.rows = y;
    a.row_stride = c->head_dim;
    a.page = kvl__page_at(r->s, r->row / page_size) + kvl__side_at(r->l, head, side);
    a.page_size = r->l->config.page_size;
    a.first_row = (int32_t)(r->row % page_size);
    a.num_rows = r->num;
    (side ? r->l->program.encode_values : r->l->program.encode_keys)(&a);
}

// What is restored of the rows in the layer below becomes what is restored of them in this one;
// with `encodes` their codes are made first.
KVL__FN void kvl__predicted_step(const kvl__predicted_rows* r, int encodes)
{
    const kvl__config* c = &r->l->config;
    const int64_t page_size = c->page_size, keys = c->num_kv_heads * c->side[0].head_dim;
    uint16_t next[KVL__MAX_LAYER_CHANNELS];
    for (int side = 0; side < 2; ++side) {
        const int64_t dim = c->side[side].head_dim, channels = c->num_kv_heads * dim;
        for (int head = 0; head < c->num_kv_heads; ++head) {
            float p[KVL__PREDICT_ROWS * KVL__MAX_STORED_DIM];
            float y[KVL__PREDICT_ROWS * KVL__MAX_STORED_DIM];
            kvl__decode_args a;
            kvl__predict(r, side, head, p);
            if (encodes) kvl__predicted_encode(r, side, head, p);
            memset(&a, 0, sizeof a);
            a.codec = &c->side[side];
            a.tables = kvl__record_of(r->l, side, head);
            a.page = kvl__page_at(r->s, r->row / page_size) + kvl__side_at(r->l, head, side);
            a.page_size = c->page_size;
            a.first_row = (int32_t)(r->row % page_size);
            a.num_rows = r->num;
            a.rows = y;
            (side ? r->l->program.decode_values : r->l->program.decode_keys)(&a);
            for (int64_t i = 0; i < r->num * dim; ++i)
                next[i / dim * channels + head * dim + i % dim] =
                    kvl__f32_to_row(y[i] + p[i], c->side[side].rows);
        }
        for (int64_t row = 0; row < r->num; ++row)
            memcpy(r->restored + row * r->dims + (side ? keys : 0), next + row * channels,
                   2u * (size_t)channels);
    }
}

// How many rows from `row` on, before `end`, are taken together: of one page and one layer.
KVL__FN int kvl__predicted_run(const kvl__layer* l, const kvl__restored* r, int64_t row,
                               int64_t end)
{
    const kvl__config* c = &l->config;
    const int64_t dim = kvl__max_i64(c->side[0].head_dim, c->side[1].head_dim);
    int64_t most = kvl__min_i64(end - row, KVL__PREDICT_ROWS), num = 1;
    most = kvl__min_i64(most, c->page_size - row % c->page_size);
    most = kvl__min_i64(most, KVL__MAX_LAYER_CHANNELS / (c->num_kv_heads * dim));
    while (num < most && r->layers[row + num] == r->layers[row]) ++num;
    return (int)num;
}

KVL__FN kvl__predicted_rows kvl__predicted_rows_of(const kvl_cache* cache, kvl__seq* seq, int l,
                                                   int64_t row, int num)
{
    kvl__predicted_rows r;
    memset(&r, 0, sizeof r);
    r.l = &cache->layers[l];
    r.s = &seq->layers[l];
    r.row = row;
    r.num = num;
    r.restored = kvl__restored_at(cache, &seq->restored, row);
    r.dims = cache->restored_dims;
    r.tiles = kvl__tiles_of(cache->ctx);
    return r;
}

// Restores a run of rows in layer l, from the layer that they are restored in if that is l or
// below; -1: what no layer says of them.
KVL__FN void kvl__restored_reach_run(const kvl_cache* cache, kvl__seq* seq, int l, int64_t row,
                                     int num)
{
    const int has = seq->restored.layers[row] - 1;
    const int lowest = l < 0 ? -1 : cache->layers[l].lowest;
    const int goes_on = has >= 0 && has <= l && cache->layers[has].lowest == lowest;
    int m = goes_on ? cache->layers[has].above : lowest;
    if (has == l && l >= 0) return;
    if (!goes_on)
        memset(kvl__restored_at(cache, &seq->restored, row), 0,
               2u * (size_t)(num * cache->restored_dims));
    for (; m >= 0 && m <= l; m = cache->layers[m].above) {
        const kvl__predicted_rows r = kvl__predicted_rows_of(cache, seq, m, row, num);
        kvl__predicted_step(&r, 0);
    }
    for (int i = 0; i < num; ++i) seq->restored.layers[row + i] = l + 1;
}

typedef struct kvl__reach {
    const kvl_cache* cache;
    kvl__seq*        seq;
    int              layer;
    int64_t          first, end;
} kvl__reach;

KVL__FN void kvl__reach_item(void* arg, int64_t item, int thread)
{
    const kvl__reach* job = (const kvl__reach*)arg;
    int64_t row = job->first + item * KVL__PREDICT_ROWS;
    const int64_t end = kvl__min_i64(row + KVL__PREDICT_ROWS, job->end);
    (void)thread;
    while (row < end) {
        const int num = kvl__predicted_run(&job->cache->layers[job->layer], &job->seq->restored,
                                           row, end);
        kvl__restored_reach_run(job->cache, job->seq, job->layer, row, num);
        row += num;
    }
}

// Restores rows [first, end) after the sink in a layer that is predicted; there is room for them.
KVL__FN void kvl__restored_reach(const kvl_cache* cache, const kvl__layer* l,
                                 const kvl__seq_layer* s, int64_t first, int64_t end)
{
    kvl__reach job = { cache, s->owner, l->number, first, end };
    if (!kvl__predicts(&l->config) || first >= end || kvl__on_device(cache)) return;
    while (job.first < end && s->owner->restored.layers[job.first] == l->number + 1) ++job.first;
    if (job.first < end)
        kvl__parallel(cache->ctx, (end - job.first + KVL__PREDICT_ROWS - 1) / KVL__PREDICT_ROWS,
                      kvl__reach_item, &job);
}

// Makes the codes of rows [row, end), the first of which is `tail_at` in the tails.
KVL__FN void kvl__restored_encode(const kvl_cache* cache, const kvl__layer* l, kvl__seq* seq,
                                  int64_t row, int64_t end, int64_t tail_at)
{
    while (row < end) {
        const int num = kvl__predicted_run(l, &seq->restored, row, end);
        kvl__predicted_rows r;
        kvl__restored_reach_run(cache, seq, l->below, row, num);
        r = kvl__predicted_rows_of(cache, seq, l->number, row, num);
        r.tail_at = tail_at;
        kvl__predicted_step(&r, 1);
        for (int i = 0; i < num; ++i) seq->restored.layers[row + i] = l->number + 1;
        row += num;
        tail_at += num;
    }
}

// READING

// A row of one head as it is restored in the layer, before RoPE.
KVL__FN void kvl__restored_row(const kvl__layer* l, const kvl__seq_layer* s, int side, int head,
                               int64_t row, float* x)
{
    const kvl__config* c = &l->config;
    const int dim = c->side[side].head_dim;
    const uint16_t* from = s->owner->restored.values + row * s->owner->restored.dims +
        (side ? c->num_kv_heads * c->side[0].head_dim : 0) + head * dim;
    kvl__finite_to_f32(from, dim, c->side[side].rows, x);
}

// Scores [num_heads, KVL__TURN_ROWS] and values v [num, dim] of a tile join the sums.
KVL__FN void kvl__softmax_add_tile(kvl__softmax* s, const kvl__attend_args* a, int num,
                                   const float* scores, const float* v, int dim)
{
    for (int h = 0; h < a->num_heads; ++h, scores += KVL__TURN_ROWS) {
        float *o = a->o + (int64_t)h * dim, weights[KVL__TURN_ROWS], top = s->max[h];
        for (int r = 0; r < num; ++r) top = scores[r] > top ? scores[r] : top;
        if (top > s->max[h]) {
            const float shrink = expf(s->max[h] - top);
            s->max[h] = top;
            s->sum[h] *= shrink;
            for (int i = 0; i < dim; ++i) o[i] *= shrink;
        }
        for (int r = 0; r < num; ++r) {
            weights[r] = expf(scores[r] - top);
            s->sum[h] += weights[r];
        }
        for (int i = 0; i < dim; i += 16) {
            float sums[16];
            memcpy(sums, o + i, sizeof sums);
            for (int r = 0; r < num; ++r)
                for (int j = 0; j < 16; ++j) sums[j] += weights[r] * v[r * dim + i + j];
            memcpy(o + i, sums, sizeof sums);
        }
    }
}

// kvl__program.attend_pages, of restored rows; a->q as they are loaded, position of rows [0] of
// a->pages in the sequence.
KVL__FN void kvl__attend_restored_rows(const kvl__layer* l, const kvl__seq_layer* s, int head,
                                       int64_t position, const kvl__attend_args* a)
{
    const int dk = l->config.side[0].head_dim, dv = l->config.side[1].head_dim;
    float k[KVL__TURN_ROWS * KVL__MAX_STORED_DIM], v[KVL__TURN_ROWS * KVL__MAX_STORED_DIM];
    float row_scores[KVL__MAX_HEADS], scores[KVL__MAX_HEADS * KVL__TURN_ROWS];
    kvl__turn_scores turns;
    kvl__softmax softmax;
    kvl__turn_scores_start(a, l->turns, dk, position, &turns);
    kvl__softmax_start(&softmax, a, dv);
    for (int64_t first = a->first_row; first < a->end_row; first += KVL__TURN_ROWS) {
        const int n = (int)kvl__min_i64(a->end_row - first, KVL__TURN_ROWS);
        const int64_t row = position + first - l->config.sink_len;
        for (int r = 0; r < n; ++r) {
            kvl__restored_row(l, s, 0, head, row + r, k + r * dk);
            kvl__restored_row(l, s, 1, head, row + r, v + r * dv);
        }
        kvl__turn_queries(&turns, position + first);
        kvl__turn_rows_on(&turns, n, k);
        for (int r = 0; r < n; ++r) {
            for (int h = 0; h < a->num_heads; ++h)
                row_scores[h] = kvl__turn_dot(turns.turned[h], turns.rows[r], dk);
            kvl__scores_finish(a, a->position + first + r, row_scores);
            for (int h = 0; h < a->num_heads; ++h)
                scores[h * KVL__TURN_ROWS + r] = row_scores[h];
        }
        kvl__softmax_add_tile(&softmax, a, n, scores, v, dv);
    }
    kvl__softmax_finish(&softmax, a, dv);
}

#endif
