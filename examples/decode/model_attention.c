// model_attention.c -- attention of a stretch of rows, over the past in the cache and themselves.
//
// One row, and rows that are to go through the cache one by one: append, then kvl_attend. Rows
// between which the cache encodes nothing that one of them sees are appended and attend together.
// More rows: softmax is taken apart by keys. A part gives an output o (normalised) and the
// logarithm lse of its sum; two parts join as
//
//     lse = log(exp(a.lse) + exp(b.lse)),   o = exp(a.lse - lse) a.o + exp(b.lse - lse) b.o,
//
// and the empty part is o = 0, lse = -inf. The first part is the past, the others are tiles of the
// rows themselves, as floats: scores and weighted sums are products of matrices. The past comes
// from kvl_attend for a few rows, and as tiles of restored rows for many: a restored row then
// serves every query of the batch. On a device the past comes from kvl_attend.

#include "model_internal.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

enum { ATTEND_MAX_ROWS = 32 };  // from about here on restoring the past is cheaper

// Queries of a layer against a stretch of keys, both by position.
typedef struct attention_job {
    const model_layer_geometry* shape;
    const model_buffers* buffers;  // q; o and lse, which hold the part so far
    const float *k, *v;            // [num_keys, num_kv_heads, head_dim], head_dim_v
    int64_t first_query, num_queries;
    int64_t first_key, num_keys;
    int num_slots;
} attention_job;

// Queries [row, row + num_rows) of one head against keys [key, key + num_keys), by index.
typedef struct attention_tile {
    int64_t head, row, num_rows, key, num_keys;
} attention_tile;

// Turns one row of scores into weights and joins it to the part so far. Keys [from, to) of the tile
// are visible.
static void join_row(const attention_job* job, const attention_tile* tile, int64_t r, float* scores)
{
    const model_layer_geometry* shape = job->shape;
    const int64_t position = job->first_query + tile->row + r;
    const int64_t first = job->first_key + tile->key;
    const int64_t oldest = shape->window_len > 0 ? position - shape->window_len + 1 : 0;
    int64_t from = oldest > first ? oldest - first : 0;
    int64_t to = position + 1 - first;
    if (to > tile->num_keys) { to = tile->num_keys; }
    if (from >= to) {
        memset(scores, 0, (size_t)tile->num_keys * sizeof *scores);
        return;
    }
    int64_t largest = from;
    for (int64_t i = from + 1; i < to; i++) {
        if (scores[i] > scores[largest]) { largest = i; }
    }
    const float max = scores[largest];
    memset(scores, 0, (size_t)from * sizeof *scores);
    memset(scores + to, 0, (size_t)(tile->num_keys - to) * sizeof *scores);
    matrix_softmax(scores + from, to - from);
    // The largest weight is exp(0) over the sum.
    const float part = max - logf(scores[largest]);
    const int64_t at = (tile->row + r) * shape->num_q_heads + tile->head;
    float* lse = &job->buffers->lse[at];
    const float top = part > *lse ? part : *lse;
    const float joined = top + logf(expf(part - top) + expf(*lse - top));
    matrix_scale(scores + from, to - from, expf(part - joined));
    matrix_scale(job->buffers->o + at * shape->head_dim_v, shape->head_dim_v, expf(*lse - joined));
    *lse = joined;
}

static void attend_tile(const attention_job* job, const attention_tile* tile, float* scores)
{
    const model_layer_geometry* shape = job->shape;
    const int64_t q_stride = (int64_t)shape->num_q_heads * shape->head_dim;
    const int64_t o_stride = (int64_t)shape->num_q_heads * shape->head_dim_v;
    const int64_t k_stride = (int64_t)shape->num_kv_heads * shape->head_dim;
    const int64_t v_stride = (int64_t)shape->num_kv_heads * shape->head_dim_v;
    const int64_t kv_head = tile->head / (shape->num_q_heads / shape->num_kv_heads);
    const float* q = job->buffers->q + tile->row * q_stride + tile->head * shape->head_dim;
    const float* k = job->k + tile->key * k_stride + kv_head * shape->head_dim;
    const float* v = job->v + tile->key * v_stride + kv_head * shape->head_dim_v;
    float* o = job->buffers->o + tile->row * o_stride + tile->head * shape->head_dim_v;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)tile->num_rows, (int)tile->num_keys,
                shape->head_dim, shape->softmax_scale, q, (int)q_stride, k, (int)k_stride, 0.0f,
                scores, MODEL_KEY_TILE);
    for (int64_t r = 0; r < tile->num_rows; r++) {
        join_row(job, tile, r, scores + r * MODEL_KEY_TILE);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)tile->num_rows,
                shape->head_dim_v, (int)tile->num_keys, 1.0f, scores, MODEL_KEY_TILE, v,
                (int)v_stride, 1.0f, o, (int)o_stride);
}

// Slot i takes every num_slots-th pair of head and query tile: later tiles see more keys, so
// neighbours in the count are alike.
static void attend_slot(void* arg, int64_t slot)
{
    const attention_job* job = arg;
    const int64_t num_heads = job->shape->num_q_heads;
    const int64_t num_tiles = (job->num_queries + MODEL_QUERY_TILE - 1) / MODEL_QUERY_TILE;
    float* scores = job->buffers->scores + slot * MODEL_QUERY_TILE * MODEL_KEY_TILE;
    for (int64_t i = slot; i < num_heads * num_tiles; i += job->num_slots) {
        attention_tile tile = { .head = i % num_heads, .row = i / num_heads * MODEL_QUERY_TILE };
        const int64_t left = job->num_queries - tile.row;
        tile.num_rows = left < MODEL_QUERY_TILE ? left : MODEL_QUERY_TILE;
        const int64_t position = job->first_query + tile.row;
        const int64_t oldest = job->shape->window_len > 0
                                   ? position - job->shape->window_len + 1 - job->first_key
                                   : 0;
        int64_t end = position + tile.num_rows - job->first_key;
        if (end > job->num_keys) { end = job->num_keys; }
        for (tile.key = oldest > 0 ? oldest : 0; tile.key < end; tile.key += MODEL_KEY_TILE) {
            tile.num_keys = end - tile.key < MODEL_KEY_TILE ? end - tile.key : MODEL_KEY_TILE;
            attend_tile(job, &tile, scores);
        }
    }
}

static int cache_failed(model_session* s, int layer)
{
    return model_session_fail(s, MODEL_FAILED, "layer %d, from position %lld on: %s", layer,
                              (long long)s->length, kvl_context_message(s->ctx));
}

static kvl_status append_rows(model_session* s, int layer, int64_t first, int64_t num_rows)
{
    const model_layer_geometry* shape = &s->m->layer_geometry[layer];
    const int32_t count = (int32_t)num_rows;
    kvl_append_desc append = { .layer = layer, .num_seqs = 1, .seqs = &s->seq };
    append.num_rows = &count;
    int32_t kept[MODEL_MAX_KEPT], num_kept = 0;
    for (int i = 0; i < s->kept.num; i++) {
        const int64_t row = s->kept.rows[i] - first;
        if (row >= 0 && row < num_rows) { kept[num_kept++] = (int32_t)row; }
    }
    append.num_kept = &num_kept;
    append.kept = kept;
    append.k.data = model_rows_of(s)->k + first * shape->num_kv_heads * shape->head_dim;
    append.v.data = model_rows_of(s)->v + first * shape->num_kv_heads * shape->head_dim_v;
    return kvl_append(s->cache, &append);
}

// positions NULL: the newest rows.
static kvl_status attend_rows(model_session* s, int layer, int64_t first, int64_t num_rows,
                              const int64_t* positions)
{
    const model_layer_geometry* shape = &s->m->layer_geometry[layer];
    const int32_t count = (int32_t)num_rows;
    kvl_attend_desc attend = { .layer = layer, .num_seqs = 1, .seqs = &s->seq };
    attend.q_lens = &count;
    attend.q_positions = positions;
    const model_buffers* b = model_rows_of(s);
    attend.q.data = b->q + first * shape->num_q_heads * shape->head_dim;
    attend.o.data = b->o + first * shape->num_q_heads * shape->head_dim_v;
    attend.lse = b->lse + first * shape->num_q_heads;
    return kvl_attend(s->cache, &attend);
}

// The past as tiles of restored rows, oldest first.
static kvl_status attend_restored(model_session* s, int layer, attention_job job)
{
    const model_layer_geometry* shape = job.shape;
    const int64_t k_floats = (int64_t)shape->num_kv_heads * shape->head_dim;
    const int64_t outputs = job.num_queries * shape->num_q_heads;
    memset(s->buffers.o, 0, (size_t)(outputs * shape->head_dim_v) * sizeof(float));
    for (int64_t i = 0; i < outputs; i++) { s->buffers.lse[i] = -INFINITY; }
    int64_t first = 0;
    if (shape->window_len > 0 && s->length > shape->window_len - 1) {
        first = s->length - shape->window_len + 1;
    }
    for (; first < s->length; first += MODEL_PAST_ROWS) {
        const int64_t left = s->length - first;
        const int64_t num = left < MODEL_PAST_ROWS ? left : MODEL_PAST_ROWS;
        float *k = s->buffers.past, *v = k + num * k_floats;
        const kvl_status status =
            model_restore(s, layer, &(model_stretch){ first, num }, k, v);
        if (status != KVL_OK) { return status; }
        job.k = k;
        job.v = v;
        job.first_key = first;
        job.num_keys = num;
        kvl_parallel_for(s->ctx, job.num_slots, attend_slot, &job);
    }
    return KVL_OK;
}

static int attend_batch_on_device(model_session* s, int layer, int64_t num_rows)
{
    if (attend_rows(s, layer, 0, num_rows, &s->length) != KVL_OK ||
        model_device_attend(s, layer, num_rows) != KVL_OK ||
        append_rows(s, layer, 0, num_rows) != KVL_OK) {
        return cache_failed(s, layer);
    }
    return MODEL_OK;
}

static int attend_batch(model_session* s, int layer, int64_t num_rows)
{
    if (s->device != NULL) { return attend_batch_on_device(s, layer, num_rows); }
    attention_job job = { .shape = &s->m->layer_geometry[layer], .buffers = &s->buffers };
    job.first_query = s->length;
    job.num_queries = num_rows;
    job.num_slots = s->num_threads;
    const int before = matrix_blas_threads(1);
    const kvl_status past = num_rows <= ATTEND_MAX_ROWS
                                ? attend_rows(s, layer, 0, num_rows, &s->length)
                                : attend_restored(s, layer, job);
    if (past == KVL_OK) {
        job.k = s->buffers.k;
        job.v = s->buffers.v;
        job.first_key = s->length;
        job.num_keys = num_rows;
        kvl_parallel_for(s->ctx, job.num_slots, attend_slot, &job);
    }
    matrix_blas_threads(before);
    if (past != KVL_OK || append_rows(s, layer, 0, num_rows) != KVL_OK) {
        return cache_failed(s, layer);
    }
    return MODEL_OK;
}

// How many rows from position `first` on, at most `most`, see the cache alike whether they are
// appended one by one or together: those between two completed chunks. Where every row is encoded
// at once, a row sees all rows before it encoded either way.
static int64_t count_alike(const model_windows* w, int64_t first, int64_t most)
{
    if (w->chunk_len == 1 && w->recent_len == 0) { return most; }
    const int64_t past_windows = first + 1 - w->sink_len - w->recent_len;
    const int64_t chunks = past_windows > 0 ? past_windows / w->chunk_len : 0;
    const int64_t next = w->sink_len + w->recent_len + (chunks + 1) * w->chunk_len;
    const int64_t alike = next - 1 - first;
    return alike < most ? alike : most;
}

static int attend_through_cache(model_session* s, const model_span* span)
{
    int64_t row = 0;
    while (row < span->num_rows) {
        const int64_t position = s->length + row;
        const int64_t num =
            count_alike(&s->windows[span->layer], position, span->num_rows - row);
        if (append_rows(s, span->layer, row, num) != KVL_OK ||
            attend_rows(s, span->layer, row, num, NULL) != KVL_OK) {
            return cache_failed(s, span->layer);
        }
        row += num;
    }
    return MODEL_OK;
}

int model_attend(model_session* s, const model_span* span)
{
    if (span->num_rows > 1 && !span->rows_through_cache) {
        return attend_batch(s, span->layer, span->num_rows);
    }
    return attend_through_cache(s, span);
}
