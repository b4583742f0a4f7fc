// model_device.c -- calls on the cache with rows in the host's memory, wherever the cache is.
//
// On target cuda the cache takes rows of the device: a session has a buffer there for each of its
// own, and rows are copied around each call. On every other target a call is passed on.

#include "model_internal.h"

#include <stdlib.h>
#include <string.h>

// Memory of the device beside a session's buffers; at NULL, none.
struct model_device {
    void *k, *v, *q, *o, *lse, *past;
    uint64_t k_bytes, v_bytes, q_bytes, o_bytes, lse_bytes, past_bytes;
};

// Bytes of a layer's rows; of o the output, of lse one number a query head.
typedef struct row_bytes {
    uint64_t k, v, q, o, lse;
} row_bytes;

static row_bytes bytes_of_row(const model_session* s, int layer)
{
    const model_layer_geometry* g = &s->m->layer_geometry[layer];
    row_bytes b = { .lse = (uint64_t)g->num_q_heads * sizeof(float) };
    b.k = (uint64_t)g->num_kv_heads * (uint64_t)g->head_dim * sizeof(float);
    b.v = (uint64_t)g->num_kv_heads * (uint64_t)g->head_dim_v * sizeof(float);
    b.q = b.lse * (uint64_t)g->head_dim;
    b.o = b.lse * (uint64_t)g->head_dim_v;
    return b;
}

static void grow(uint64_t* bytes, uint64_t wanted)
{
    if (wanted > *bytes) { *bytes = wanted; }
}

bool model_device_create(model_session* s)
{
    if (!kvl_context_has_device(s->ctx)) { return true; }
    model_device* d = calloc(1, sizeof *d);
    s->device = d;
    if (d == NULL) { return false; }
    for (int layer = 0; layer < s->m->geometry.num_layers; layer++) {
        const row_bytes b = bytes_of_row(s, layer);
        const uint64_t rows = (uint64_t)s->batch_len;
        grow(&d->k_bytes, rows * b.k);
        grow(&d->v_bytes, rows * b.v);
        grow(&d->q_bytes, rows * b.q);
        grow(&d->o_bytes, rows * b.o);
        grow(&d->lse_bytes, rows * b.lse);
        grow(&d->past_bytes, MODEL_PAST_ROWS * (b.k + b.v));
    }
    return kvl_device_alloc(s->ctx, d->k_bytes, &d->k) == KVL_OK &&
           kvl_device_alloc(s->ctx, d->v_bytes, &d->v) == KVL_OK &&
           kvl_device_alloc(s->ctx, d->q_bytes, &d->q) == KVL_OK &&
           kvl_device_alloc(s->ctx, d->o_bytes, &d->o) == KVL_OK &&
           kvl_device_alloc(s->ctx, d->lse_bytes, &d->lse) == KVL_OK &&
           kvl_device_alloc(s->ctx, d->past_bytes, &d->past) == KVL_OK;
}

void model_device_free(model_session* s)
{
    model_device* d = s->device;
    if (d == NULL) { return; }
    kvl_device_free(s->ctx, d->k, d->k_bytes);
    kvl_device_free(s->ctx, d->v, d->v_bytes);
    kvl_device_free(s->ctx, d->q, d->q_bytes);
    kvl_device_free(s->ctx, d->o, d->o_bytes);
    kvl_device_free(s->ctx, d->lse, d->lse_bytes);
    kvl_device_free(s->ctx, d->past, d->past_bytes);
    free(d);
    s->device = NULL;
}

// Through the buffers of the device a part at a time: kvl_append does not depend on the cuts.
kvl_status model_append(model_session* s, const kvl_append_desc* desc)
{
    const model_device* d = s->device;
    if (d == NULL) { return kvl_append(s->cache, desc); }
    const row_bytes b = bytes_of_row(s, desc->layer);
    int32_t left = desc->num_rows[0];
    const char *k = desc->k.data, *v = desc->v.data;
    while (left > 0) {
        const int32_t num = left < s->batch_len ? left : s->batch_len;
        kvl_append_desc part = *desc;
        part.num_rows = &num;
        part.k.data = d->k;
        part.v.data = d->v;
        kvl_status status = kvl_device_write(s->ctx, d->k, k, (uint64_t)num * b.k);
        if (status == KVL_OK) {
            status = kvl_device_write(s->ctx, d->v, v, (uint64_t)num * b.v);
        }
        if (status == KVL_OK) { status = kvl_append(s->cache, &part); }
        if (status == KVL_OK) { status = kvl_cache_check(s->cache); }
        if (status != KVL_OK) { return status; }
        k += (uint64_t)num * b.k;
        v += (uint64_t)num * b.v;
        left -= num;
    }
    return KVL_OK;
}

kvl_status model_attend_rows(model_session* s, const kvl_attend_desc* desc)
{
    const model_device* d = s->device;
    if (d == NULL) { return kvl_attend(s->cache, desc); }
    const row_bytes b = bytes_of_row(s, desc->layer);
    const uint64_t rows = (uint64_t)desc->q_lens[0];
    kvl_attend_desc on_device = *desc;
    on_device.q.data = d->q;
    on_device.o.data = d->o;
    on_device.lse = d->lse;
    kvl_status status = kvl_device_write(s->ctx, d->q, desc->q.data, rows * b.q);
    if (status == KVL_OK) { status = kvl_attend(s->cache, &on_device); }
    if (status == KVL_OK) { status = kvl_device_read(s->ctx, desc->o.data, d->o, rows * b.o); }
    if (status == KVL_OK) { status = kvl_device_read(s->ctx, desc->lse, d->lse, rows * b.lse); }
    return status;
}

kvl_status model_restore(model_session* s, int layer, const model_stretch* rows, float* k,
                         float* v)
{
    const model_device* d = s->device;
    kvl_rows to_k = { .data = k }, to_v = { .data = v };
    if (d == NULL) {
        return kvl_restore(s->cache, layer, s->seq, rows->first, rows->num, &to_k, &to_v);
    }
    const row_bytes b = bytes_of_row(s, layer);
    const uint64_t k_bytes = (uint64_t)rows->num * b.k, v_bytes = (uint64_t)rows->num * b.v;
    to_k.data = d->past;
    to_v.data = (char*)d->past + k_bytes;
    kvl_status status =
        kvl_restore(s->cache, layer, s->seq, rows->first, rows->num, &to_k, &to_v);
    if (status == KVL_OK) { status = kvl_device_read(s->ctx, k, to_k.data, k_bytes); }
    if (status == KVL_OK) { status = kvl_device_read(s->ctx, v, to_v.data, v_bytes); }
    return status;
}
