// unit_create.c -- makes a context, a cache and a sequence for the other units.
#include "units.h"

#include <stdio.h>

int unit_fail(const unit_objects* objects, const char* what)
{
    const char* message = objects->ctx ? kvl_context_message(objects->ctx) : "";
    fprintf(stderr, "%s: %s\n", what, message);
    return 1;
}

int unit_create(unit_objects* objects, const char* cache_dir)
{
    kvl_context_desc context = { 0 };
    kvl_layer_desc layer = { 0 };
    kvl_cache_desc cache = { 0 };
    objects->ctx = NULL;
    objects->cache = NULL;
    context.cache_dir = cache_dir;
    context.num_threads = 2;
    if (kvl_context_create(&context, &objects->ctx)) return unit_fail(objects, "context");
    layer.num_q_heads = UNIT_Q_HEADS;
    layer.num_kv_heads = 1;
    layer.head_dim = UNIT_HEAD_DIM;
    layer.spec = UNIT_SPEC;
    cache.num_layers = 1;
    cache.layers = &layer;
    if (kvl_cache_create(objects->ctx, &cache, &objects->cache)) return unit_fail(objects, "cache");
    if (kvl_seq_create(objects->cache, &objects->seq)) return unit_fail(objects, "sequence");
    return 0;
}
