// unit_use.c -- appends to and attends over a cache that another unit made.
#include "units.h"

#include <math.h>

static void count_entry(const kvl_disk_entry* entry, void* user)
{
    (void)entry;
    ++*(int*)user;
}

// Kernels on disk; -1 where there is no folder.
static int count_kernels(kvl_context* ctx)
{
    int count = 0;
    return kvl_disk(ctx, KVL_DISK_LIST, 0, count_entry, &count) == KVL_OK ? count : -1;
}

// A second cache of the same shape, made here, needs no second compilation.
static int check_second_cache(unit_objects* objects)
{
    const int before = count_kernels(objects->ctx);
    kvl_layer_desc layer = { 0 };
    kvl_cache_desc desc = { 0 };
    kvl_cache* second = NULL;
    layer.num_q_heads = UNIT_Q_HEADS;
    layer.num_kv_heads = 1;
    layer.head_dim = UNIT_HEAD_DIM;
    layer.spec = UNIT_SPEC;
    desc.num_layers = 1;
    desc.layers = &layer;
    if (kvl_cache_create(objects->ctx, &desc, &second)) return unit_fail(objects, "second cache");
    kvl_cache_free(second);
    if (count_kernels(objects->ctx) != before) return unit_fail(objects, "compiled twice");
    return 0;
}

int unit_use(unit_objects* objects)
{
    static float k[UNIT_ROWS * UNIT_HEAD_DIM], v[UNIT_ROWS * UNIT_HEAD_DIM];
    float q[UNIT_Q_HEADS * UNIT_HEAD_DIM], o[UNIT_Q_HEADS * UNIT_HEAD_DIM], lse[UNIT_Q_HEADS];
    const int32_t num_rows = UNIT_ROWS;
    kvl_append_desc append = { 0 };
    kvl_attend_desc attend = { 0 };
    int i;
    for (i = 0; i < UNIT_ROWS * UNIT_HEAD_DIM; ++i) {
        k[i] = (float)(i % 7) - 3.0f;
        v[i] = 1.0f;
    }
    for (i = 0; i < UNIT_Q_HEADS * UNIT_HEAD_DIM; ++i) q[i] = (float)(i % 5) * 0.1f;
    append.num_seqs = 1;
    append.seqs = &objects->seq;
    append.num_rows = &num_rows;
    append.k.data = k;
    append.v.data = v;
    if (kvl_append(objects->cache, &append)) return unit_fail(objects, "append");
    attend.num_seqs = 1;
    attend.seqs = &objects->seq;
    attend.q.data = q;
    attend.o.data = o;
    attend.lse = lse;
    if (kvl_attend(objects->cache, &attend)) return unit_fail(objects, "attend");
    for (i = 0; i < UNIT_Q_HEADS * UNIT_HEAD_DIM; ++i)
        if (!(fabsf(o[i] - 1.0f) < 1e-5f)) return unit_fail(objects, "values of 1 are not 1");
    for (i = 0; i < UNIT_Q_HEADS; ++i)
        if (!(fabsf(lse[i]) < 1e3f)) return unit_fail(objects, "lse");
    return check_second_cache(objects);
}
