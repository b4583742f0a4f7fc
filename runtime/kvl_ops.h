// kvl_ops.h -- the public operations on caches: check, reserve, then call kernels.
//
// Every operation checks all of its arguments and reserves all of its memory before it changes
// anything.

#ifndef KVL_OPS_H
#define KVL_OPS_H

#include "kvl_kept.h"
#include "kvl_predict.h"
#include "kvl_settle.h"
#include "kvl_shift.h"
#include "kvl_sketch.h"
#include "kvl_turn.h"

// CREATION

enum { KVL__CONFIG_FIELDS = 7 + 2 * (3 + 2 * KVL__NUM_STAGES) };

typedef struct kvl__config_text {
    char       names[2 * (3 + 2 * KVL__NUM_STAGES)][32];
    kvl__field fields[KVL__CONFIG_FIELDS];
    int        num_fields;
    char       name[128];              // the readable part of a kernel's key
} kvl__config_text;

KVL__FN void kvl__add_field(kvl__config_text* t, const char* name, const char* text, int64_t value)
{
    KVL_ASSERT(t->num_fields < KVL__CONFIG_FIELDS);
    kvl__field* f = &t->fields[t->num_fields++];
    f->name = name;
    f->text = text;
    f->value = value;
}

KVL__FN void kvl__add_side_field(kvl__config_text* t, int* at, char side, const char* name,
                                 const char* suffix, const char* text, int64_t value)
{
    char* to = t->names[(*at)++];
    snprintf(to, sizeof t->names[0], "%c.%s%s", side, name, suffix);
    kvl__add_field(t, to, text, value);
}

// What decides a program's text, as fields for the generator.  kernel: of target cuda; NULL: all of
// the host's.
KVL__FN void kvl__config_to_text(const kvl_context* ctx, const kvl__config* c, const char* kernel,
                                 kvl__config_text* t)
{
    int at = 0;
    memset(t, 0, sizeof *t);
    if (kernel) kvl__append_text(t->name, sizeof t->name, "%s-", kernel);
    kvl__add_field(t, kernel ? "target" : "isa", kernel ? "cuda" : ctx->isa, 0);
    kvl__add_field(t, "num_heads", NULL, c->num_heads);
    kvl__add_field(t, "page_size", NULL, c->page_size);
    kvl__add_field(t, "num_stored", NULL, c->num_stored);
    kvl__add_field(t, "rows", c->side[0].rows ? "bf16" : "f16", 0);
    if (kernel) kvl__add_field(t, "kernel", kernel, 0);
    if (kernel && c->num_stored == 1) kvl__add_field(t, "value_dim", NULL, c->value_dim);
    else kvl__add_field(t, "math", ctx->exact ? "f32" : "int8", 0);
    for (int side = 0; side < 2; ++side) {
        const kvl__codec* s = &c->side[side];
        const char letter = side ? 'v' : 'k';
        kvl__add_side_field(t, &at, letter, "bits", "", NULL, s->bits);
        kvl__add_side_field(t, &at, letter, "head_dim", "", NULL, s->head_dim);
        kvl__add_side_field(t, &at, letter, "group_size", "", NULL, s->group_size);
        for (int i = 0; i < KVL__NUM_STAGES; ++i) {
            const char* stage = kvl__stages[i].name;
            kvl__add_side_field(t, &at, letter, stage, "", kvl__word_of(s, i)->name, 0);
            kvl__add_side_field(t, &at, letter, stage, "_number", NULL, s->numbers[i]);
        }
        kvl__append_text(t->name, sizeof t->name, "%c%d%c%d-d%d-", letter, s->bits,
                         s->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL ? 'c' : 't',
                         s->group_size, s->head_dim);
    }
    kvl__append_text(t->name, sizeof t->name, "h%d-p%d", c->num_heads, c->page_size);
    if (!kernel)
        kvl__append_text(t->name, sizeof t->name, "-%s%s", ctx->isa, ctx->exact ? "-exact" : "");
}

// Operations on a device: kvl_device.h.
typedef struct kvl__append_job  kvl__append_job;
typedef struct kvl__attend_job  kvl__attend_job;
typedef struct kvl__restore_job kvl__restore_job;
KVL__FN kvl_status kvl__device_layer_kernels(kvl_context* ctx, kvl__layer* l);
KVL__FN kvl_status kvl__device_cache_build(kvl_cache* cache);
KVL__FN void       kvl__device_cache_free(kvl_cache* cache);
KVL__FN kvl_status kvl__device_begin(kvl_cache* cache, void* handle, int* captured);
KVL__FN kvl_status kvl__device_end(kvl_cache* cache);
KVL__FN kvl_status kvl__device_done(kvl_cache* cache);
KVL__FN kvl_status kvl__device_check_append(const kvl__append_job* job);
KVL__FN void       kvl__device_append_rows(kvl__append_job* job);
KVL__FN kvl_status kvl__device_capture_append(kvl__append_job* job, int64_t num_rows);
KVL__FN kvl_status kvl__device_check_capture(const kvl_cache* cache, const kvl_attend_desc* d);
KVL__FN void       kvl__device_attend_wave(kvl__attend_job* job);
KVL__FN void       kvl__device_attend_add(kvl__attend_job* job, const kvl__query* query);
KVL__FN kvl_status kvl__device_restore_side(kvl_cache* cache, const kvl__restore_job* job);
KVL__FN void       kvl__restore_tail(kvl_cache* cache, const kvl__layer* l,
                                     const kvl__seq_layer* s, int64_t row, int64_t num);
KVL__FN void       kvl__device_restore_tail(kvl_cache* cache, const kvl__layer* l,
                                            const kvl__seq_layer* s, int64_t row, int64_t num);
KVL__FN kvl_status kvl__device_read_codes(kvl_cache* cache, const kvl__restore_job* job, int head,
                                          kvl_codes* out);

// A generated program for the layer.  The layer is unchanged after a failure.
KVL__FN kvl_status kvl__layer_generate(kvl_context* ctx, kvl__layer* l)
{
    const kvl__program* program = NULL;
    const char* from = NULL;
    kvl__config_text* t = (kvl__config_text*)kvl__alloc(ctx, sizeof *t);
    KVL__REQUIRE(ctx, t, KVL_NO_MEMORY, "%zu bytes for a configuration", sizeof *t);
    kvl__config_to_text(ctx, &l->config, NULL, t);
    const kvl_status status =
        kvl__program_get(ctx, t->name, t->fields, t->num_fields, &program, &from);
    kvl__free(ctx, t, sizeof *t);
    if (status != KVL_OK) return status;
    KVL__REQUIRE(ctx, program->k_page_bytes == l->k_bytes && program->v_page_bytes == l->v_bytes,
                 KVL_GENERATE, "a page's keys and values are %lld and %lld bytes in the program, "
                 "%lld and %lld in the runtime", (long long)program->k_page_bytes,
                 (long long)program->v_page_bytes, (long long)l->k_bytes, (long long)l->v_bytes);
    KVL__REQUIRE(ctx, program->scratch_bytes <= KVL__SCRATCH_BYTES, KVL_GENERATE,
                 "scratch_bytes = %lld: must be at most %d", (long long)program->scratch_bytes,
                 KVL__SCRATCH_BYTES);
    l->program = *program;
    l->generated = 1;
    l->from = from;
    return KVL_OK;
}

KVL__FN kvl_status kvl__layer_kernels(kvl_context* ctx, kvl__layer* l)
{
    l->program = kvl__ref_program(&l->config);
    l->from = "reference";
    if (ctx->target == KVL_TARGET_REFERENCE) return KVL_OK;
    if (ctx->target == KVL_TARGET_CUDA) {
        l->program.linear_keys = kvl__tile_linear_keys;
        l->program.linear_values = kvl__tile_linear_values;
        return kvl__device_layer_kernels(ctx, l);
    }
    const kvl_status status = kvl__layer_generate(ctx, l);
    if (status == KVL_OK || status == KVL_NO_MEMORY) return status;
    if (ctx->target == KVL_TARGET_HOST) return status;
    snprintf(l->why, sizeof l->why, "%.255s", kvl_context_message(ctx));
    if (kvl__first_time(ctx, &ctx->said_reference))
        kvl__say(ctx, status == KVL_GENERATE ? KVL_LOG_ERROR : KVL_LOG_WARNING,
                 "the reference path is in use, which is slower: %s", l->why);
    return KVL_OK;
}

// Makes the kernels of a layer without a cache: none depends on calibrated numbers.
KVL__FN kvl_status kvl__make_kernels(kvl_context* ctx, const kvl_layer_desc* desc, kvl__layer* l)
{
    memset(l, 0, sizeof *l);
    KVL__TRY(kvl__config_parse(ctx, 0, desc, NULL, &l->config));
    KVL__REQUIRE(ctx, !l->config.auto_bits, KVL_UNSUPPORTED, "%s: bits = auto: kernels are made of "
                 "the bits that a calibration has chosen: name them, as k2,v3", desc->spec);
    kvl__layer_sizes(l, 0);
    return kvl__layer_kernels(ctx, l);
}

KVL__FN kvl_status kvl__check_context(kvl_context* ctx)
{
    if (!ctx) return KVL_BAD_ARGUMENT;
    if (ctx->broken) return KVL_BAD_ARGUMENT;      // its message says why it could not be created
    return kvl__check_process(ctx);
}

KVL__FN kvl_status kvl__check_cache_desc(kvl_context* ctx, const kvl_cache_desc* desc)
{
    KVL__REQUIRE(ctx, desc, KVL_BAD_ARGUMENT, "kvl_cache_desc = NULL: must be given");
    KVL__REQUIRE(ctx, desc->end == 0, KVL_BAD_ARGUMENT,
                 "kvl_cache_desc.end = %u: must be 0: zero the whole desc first", desc->end);
    KVL__REQUIRE(ctx, desc->num_layers >= 1 && desc->num_layers <= 4096, KVL_BAD_ARGUMENT,
                 "num_layers = %d: must be 1 to 4096", desc->num_layers);
    KVL__REQUIRE(ctx, desc->layers, KVL_BAD_ARGUMENT, "layers = NULL: must be given");
    KVL__REQUIRE(ctx, desc->max_seqs >= 0, KVL_BAD_ARGUMENT,
                 "max_seqs = %d: must not be negative", desc->max_seqs);
    KVL__REQUIRE(ctx, desc->release_windows == 0 || desc->release_windows == 1, KVL_BAD_ARGUMENT,
                 "release_windows = %d: must be 0 or 1", desc->release_windows);
    KVL__REQUIRE(ctx, desc->num_pages >= 0 && desc->num_pages <= INT32_MAX, KVL_BAD_ARGUMENT,
                 "num_pages = %lld: must be 0 to 2^31 - 1", (long long)desc->num_pages);
    KVL__REQUIRE(ctx, !desc->num_pages || !desc->prefix_bytes, KVL_BAD_ARGUMENT, "prefix_bytes = "
                 "%llu: must be 0 with num_pages: what pages are shared is the engine's choice",
                 (unsigned long long)desc->prefix_bytes);
    KVL__REQUIRE(ctx, desc->keep_len >= 0 && desc->keep_len <= 1 << 16, KVL_BAD_ARGUMENT,
                 "keep_len = %d: must be 0 to %d", desc->keep_len, 1 << 16);
    const kvl__table_source* source = (const kvl__table_source*)(const void*)desc->calibration;
    return source && source->check ? source->check(ctx, source, desc) : KVL_OK;
}

// Sizes of the layers' pools: a page of the engine's is one of the same rows in each.
KVL__FN kvl_status kvl__pools_configure(kvl_cache* cache, int64_t num_pages)
{
    int first = -1;
    cache->num_pages = num_pages;
    for (int i = 0; i < cache->num_layers; ++i) {
        kvl__layer* l = &cache->layers[i];
        if (!l->active) continue;
        if (first < 0) first = i;
        const int page_size = cache->layers[first].config.page_size;
        KVL__REQUIRE(cache->ctx, l->config.page_size == page_size, KVL_UNSUPPORTED,
                     "num_pages: layer %d has pages of %d rows, layer %d of %d: page= in the specs "
                     "makes them equal", i, l->config.page_size, first, page_size);
        KVL__REQUIRE(cache->ctx, (uint64_t)num_pages <= (UINT64_MAX >> 3) / kvl__pool_contents(l),
                     KVL_BAD_ARGUMENT, "num_pages = %lld: their bytes are no number of 64 bits",
                     (long long)num_pages);
        if (kvl__on_device(cache))
            l->pool_device_bytes = (uint64_t)num_pages * kvl__pool_contents(l);
        l->pool_uses_bytes = kvl__pool_uses_bytes(num_pages);
        l->pool_bytes = (uint64_t)num_pages * kvl__pool_stride(l) + l->pool_uses_bytes + 63;
    }
    return KVL_OK;
}

// Keys before RoPE need to know of it; others that are scored as restored rows do not turn.
KVL__FN kvl_status kvl__layer_needs_turns(kvl_context* ctx, int layer, const kvl_rope* rope,
                                          kvl__layer* l)
{
    const kvl__codec* c = &l->config.side[0];
    if (!kvl__is_restored(c)) return KVL_OK;
    l->turns_bytes = (uint64_t)(1 + c->head_dim / 2) * sizeof *l->turns;
    if (!kvl__is_unrotated(c)) return KVL_OK;
    KVL__REQUIRE(ctx, rope, KVL_BAD_ARGUMENT, "layer %d: k.place = %s: needs to know how keys "
                 "turn: kvl_layer_desc.rope = NULL", layer, kvl__position_word(c));
    return kvl__check_rope(ctx, layer, rope, c->head_dim);
}

KVL__FN kvl_status kvl__layer_turns(kvl_cache* cache, kvl__layer* l, const kvl_rope* rope)
{
    if (l->turns_bytes == 0) return KVL_OK;
    l->turns = (double*)kvl__cache_alloc(cache, l->turns_bytes);
    if (!l->turns) return KVL_NO_MEMORY;
    memset(l->turns, 0, (size_t)l->turns_bytes);
    if (kvl__is_unrotated(&l->config.side[0]))
        kvl__rope_turns(rope, l->config.side[0].head_dim, l->turns);
    return KVL_OK;
}

// Which rows of a prompt are kept depends on all of it, what begins alike shares its beginning.
KVL__FN kvl_status kvl__check_kept_layer(kvl_context* ctx, int layer, const kvl_cache_desc* desc,
                                         const kvl__config* c)
{
    KVL__REQUIRE(ctx, !c->kept_len || ctx->target != KVL_TARGET_CUDA, KVL_UNSUPPORTED,
                 "layer %d: kept = %d: must be 0 on target cuda, whose kernels read no kept rows",
                 layer, c->kept_len);
    KVL__REQUIRE(ctx, !c->kept_len || !desc->prefix_bytes, KVL_UNSUPPORTED,
                 "layer %d: kept = %d: must be 0 with prefix_bytes: which rows are kept is the "
                 "choice of a whole prompt, and its beginning would be shared", layer, c->kept_len);
    return KVL_OK;
}

// Fills the layers of a cache that has none of its kernels yet.
KVL__FN kvl_status kvl__layers_configure(kvl_cache* cache, const kvl_cache_desc* desc)
{
    for (int i = 0; i < desc->num_layers; ++i) {
        kvl__layer* l = &cache->layers[i];
        l->desc = desc->layers[i];
        l->desc.spec = NULL;
        l->desc.rope = NULL;
        l->from = "none";
        if (l->desc.num_kv_heads == 0) continue;
        KVL__TRY(kvl__config_create(cache->ctx, i, &desc->layers[i], desc->spec,
                                    desc->calibration, &l->config));
        l->active = 1;
        KVL__TRY(kvl__check_kept_layer(cache->ctx, i, desc, &l->config));
        KVL__TRY(kvl__layer_needs_turns(cache->ctx, i, desc->layers[i].rope, l));
        l->softmax_scale = l->desc.softmax_scale > 0.0f
            ? l->desc.softmax_scale : 1.0f / sqrtf((float)l->desc.head_dim);
        kvl__layer_sizes(l, desc->keep_len);
        l->release_slack = desc->release_windows && l->desc.window_len ? desc->keep_len + 1 : 0;
    }
    KVL__TRY(kvl__layers_predict(cache, desc->release_windows));
    return desc->num_pages ? kvl__pools_configure(cache, desc->num_pages) : KVL_OK;
}

// Layers of equal configuration share a program: the first asks, the others copy.
KVL__FN kvl_status kvl__layers_kernels(kvl_cache* cache)
{
    for (int i = 0; i < cache->num_layers; ++i) {
        kvl__layer* l = &cache->layers[i];
        int same = -1;
        for (int j = 0; l->active && j < i && same < 0; ++j)
            if (cache->layers[j].active &&
                memcmp(&cache->layers[j].config, &l->config, sizeof l->config) == 0) same = j;
        if (same >= 0) {
            l->program = cache->layers[same].program;
            l->kernels = cache->layers[same].kernels;
            l->generated = cache->layers[same].generated;
            l->from = cache->layers[same].from;
            memcpy(l->why, cache->layers[same].why, sizeof l->why);
        } else if (l->active) {
            KVL__TRY(kvl__layer_kernels(cache->ctx, l));
        }
    }
    return KVL_OK;
}

KVL__PUBLIC void kvl_cache_free(kvl_cache* cache)
{
    if (!cache) return;
    kvl_context* ctx = cache->ctx;
    for (int i = 0; i < cache->capacity; ++i)
        if (cache->slots[i]) kvl__seq_release(cache, cache->slots[i]);
    kvl__prefix_free(cache);
    if (kvl__on_device(cache)) kvl__device_cache_free(cache);
    kvl__cache_release(cache, cache->slots, (uint64_t)cache->capacity * sizeof *cache->slots);
    kvl__cache_release(cache, cache->scratch, cache->scratch_bytes);
    for (int i = 0; i < cache->num_layers; ++i) {
        kvl__cache_release(cache, cache->layers[i].pool, cache->layers[i].pool_bytes);
        kvl__cache_release(cache, cache->layers[i].records, cache->layers[i].record_bytes);
        kvl__cache_release(cache, cache->layers[i].head_numbers, cache->layers[i].head_bytes);
        kvl__cache_release(cache, cache->layers[i].turns, cache->layers[i].turns_bytes);
        kvl__cache_release(cache, cache->layers[i].predictors[0], cache->layers[i].predictor_bytes);
    }
    kvl__cache_release(cache, cache->layers, (uint64_t)cache->num_layers * sizeof *cache->layers);
    KVL_ASSERT(cache->bytes == sizeof *cache);
    kvl__free(ctx, cache, sizeof *cache);
}

// A layer's own copy of what its desc has for each query head.
KVL__FN kvl_status kvl__layer_heads(kvl_cache* cache, kvl__layer* l)
{
    const float** const lists[] = { &l->desc.sink_logits, &l->desc.alibi_slopes };
    if (!l->active || l->head_bytes == 0) return KVL_OK;
    float* at = (float*)kvl__cache_alloc(cache, l->head_bytes);
    if (!at) return KVL_NO_MEMORY;
    l->head_numbers = at;
    for (int i = 0; i < 2; ++i) {
        if (!*lists[i]) continue;
        memcpy(at, *lists[i], (size_t)l->desc.num_q_heads * sizeof *at);
        *lists[i] = at;
        at += l->desc.num_q_heads;
    }
    return KVL_OK;
}

KVL__FN kvl_status kvl__cache_build(kvl_cache* cache, const kvl_cache_desc* desc)
{
    cache->max_seqs = desc->max_seqs;
    cache->max_bytes = desc->max_bytes;
    const kvl__table_source* source = (const kvl__table_source*)(const void*)desc->calibration;
    if (source) cache->calibrated_rows = source->context;
    cache->layers = (kvl__layer*)kvl__cache_alloc(
        cache, (uint64_t)desc->num_layers * sizeof *cache->layers);
    if (!cache->layers) return KVL_NO_MEMORY;
    cache->num_layers = desc->num_layers;
    KVL__TRY(kvl__layers_configure(cache, desc));
    for (int i = 0; i < cache->num_layers; ++i) {
        KVL__TRY(kvl__layer_heads(cache, &cache->layers[i]));
        KVL__TRY(kvl__layer_turns(cache, &cache->layers[i], desc->layers[i].rope));
        KVL__TRY(kvl__layer_records(cache, &cache->layers[i], desc->calibration));
        KVL__TRY(kvl__layer_predictors(cache, &cache->layers[i], desc->calibration));
    }
    for (int i = 0; cache->num_pages && i < cache->num_layers; ++i) {
        kvl__layer* l = &cache->layers[i];
        if (!l->active) continue;
        l->pool = kvl__cache_take(cache, l->pool_bytes);
        if (!l->pool) return KVL_NO_MEMORY;
        if (cache->ctx->allocator.alloc == kvl__default_alloc)
            kvl__advise_huge(l->pool, l->pool_bytes);
        memset(l->pool, 0, (size_t)l->pool_bytes);
    }
    KVL__TRY(kvl__prefix_configure(cache, desc->prefix_bytes));
    if (cache->prefix.max_bytes) cache->make_room = kvl__prefix_make_room;
    KVL__TRY(kvl__layers_kernels(cache));
    KVL__REQUIRE(cache->ctx, cache->ctx->target != KVL_TARGET_CUDA || cache->ctx->gpu,
                 KVL_NO_DRIVER, "arch = sm_%d: the kernels are made; a cache needs the device",
                 cache->ctx->sm);
    cache->scratch_bytes = kvl__scratch_sizes(cache, kvl_context_threads(cache->ctx));
    cache->scratch = (unsigned char*)kvl__cache_alloc(cache, cache->scratch_bytes);
    if (!cache->scratch) return KVL_NO_MEMORY;
    kvl__scratch_lay_out(cache);
    if (kvl__on_device(cache)) KVL__TRY(kvl__device_cache_build(cache));
    return kvl__slots_grow(cache, 1) ? KVL_OK : KVL_NO_MEMORY;
}

KVL__PUBLIC kvl_status kvl_cache_create(kvl_context* ctx, const kvl_cache_desc* desc,
                                        kvl_cache** out)
{
    if (out) *out = NULL;
    KVL__TRY(kvl__check_context(ctx));
    KVL__REQUIRE(ctx, out, KVL_BAD_ARGUMENT, "out = NULL: must be given");
    KVL__TRY(kvl__check_cache_desc(ctx, desc));
    kvl_cache* cache = (kvl_cache*)kvl__alloc_zeroed(ctx, sizeof *cache);
    KVL__REQUIRE(ctx, cache, KVL_NO_MEMORY, "the allocator has no %zu bytes", sizeof *cache);
    cache->ctx = ctx;
    cache->bytes = cache->peak_bytes = sizeof *cache;
    // Handles of different caches differ, so that a foreign one is seldom taken for one's own.
    cache->next_generation = (uint32_t)((uintptr_t)cache >> 4) * 2654435761u | 1u;
    const kvl_status status = kvl__cache_build(cache, desc);
    if (status != KVL_OK) {
        kvl_cache_free(cache);
        return status;
    }
    *out = cache;
    return KVL_OK;
}

// SEQUENCES

KVL__FN kvl_status kvl__check_cache(const kvl_cache* cache)
{
    return cache ? kvl__check_context(cache->ctx) : KVL_BAD_ARGUMENT;
}

// Every call on a cache begins with this, and what belongs to its end follows by itself.  Debug
// builds also see a second thread in it.
typedef struct kvl__use {
    kvl_cache* cache;              // NULL: nothing to give back
    kvl_status status;
} kvl__use;

KVL__FN kvl__use kvl__use_begin(const kvl_cache* cache)
{
    kvl__use use;
    use.cache = NULL;
    use.status = kvl__check_cache(cache);
    if (use.status != KVL_OK) return use;
    kvl_cache* used = (kvl_cache*)(uintptr_t)cache;
#ifdef KVLOOM_DEBUG
    uintptr_t self = (uintptr_t)pthread_self(), found = 0;
    if (!__atomic_compare_exchange_n(&used->user, &found, self, 0, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED) && found != self) {
        use.status = kvl__fail(cache->ctx, KVL_BAD_ARGUMENT, "cache: two threads are in calls on "
                               "it at once; a cache is used by one at a time");
        return use;
    }
#endif
    if (used->user_depth++ == 0) used->device.status = KVL_OK;     // is_stale has what is left
    use.cache = used;
    return use;
}

KVL__FN void kvl__use_end(kvl__use* use)
{
    if (!use->cache || --use->cache->user_depth > 0) return;
    kvl__settle(use->cache);
#ifdef KVLOOM_DEBUG
    __atomic_store_n(&use->cache->user, 0, __ATOMIC_RELEASE);
#endif
}

#define KVL__USE_CACHE(cache) \
    kvl__use kvl__used __attribute__((cleanup(kvl__use_end))) = kvl__use_begin(cache); \
    KVL__TRY(kvl__used.status)

// Gives a sequence its handle; there is a slot for it.
KVL__FN kvl_seq kvl__seq_enter(kvl_cache* cache, kvl__seq* seq)
{
    int slot = 0;
    while (cache->slots[slot]) ++slot;
    seq->generation = cache->next_generation++;
    cache->slots[slot] = seq;
    ++cache->num_seqs;
    return (uint64_t)seq->generation << 32 | (uint64_t)(slot + 1);
}

KVL__FN kvl_status kvl__seq_check_room(const kvl_cache* cache)
{
    KVL__REQUIRE(cache->ctx, !cache->max_seqs || cache->num_seqs < cache->max_seqs, KVL_NO_MEMORY,
                 "max_seqs = %d: that many sequences exist", cache->max_seqs);
    return KVL_OK;
}

// A handle for a sequence that has none; it is released where there is no memory.  NULL: there was
// none for it.
KVL__FN kvl_status kvl__seq_add_made(kvl_cache* cache, kvl__seq* seq, kvl_seq* out)
{
    if (!seq) return kvl__cache_failure(cache);
    if (!kvl__slots_grow(cache, cache->num_seqs + 1)) {
        kvl__seq_release(cache, seq);
        return KVL_NO_MEMORY;
    }
    *out = kvl__seq_enter(cache, seq);
    return KVL_OK;
}

// A sequence with a handle: empty, or as `from` is.
KVL__FN kvl_status kvl__seq_add(kvl_cache* cache, const kvl__seq* from, kvl_seq* out)
{
    KVL__TRY(kvl__seq_check_room(cache));
    return kvl__seq_add_made(cache, kvl__seq_make(cache, from), out);
}

KVL__PUBLIC kvl_status kvl_seq_create(kvl_cache* cache, kvl_seq* out)
{
    KVL__USE_CACHE(cache);
    KVL__REQUIRE(cache->ctx, out, KVL_BAD_ARGUMENT, "out = NULL: must be given");
    *out = 0;
    return kvl__seq_add(cache, NULL, out);
}

KVL__FN kvl_status kvl__need_seq(const kvl_cache* cache, kvl_seq handle, kvl__seq** out)
{
    *out = kvl__seq_find(cache, handle);
    KVL__REQUIRE(cache->ctx, *out, KVL_BAD_ARGUMENT,
                 "seq = %#llx: no sequence of this cache, or one that was freed",
                 (unsigned long long)handle);
    KVL__REQUIRE(cache->ctx, !(*out)->away, KVL_BAD_ARGUMENT,
                 "seq = %#llx: its rows are offloaded: kvl_reload brings them back",
                 (unsigned long long)handle);
    KVL__REQUIRE(cache->ctx, !(*out)->broken, KVL_DEVICE,
                 "seq = %#llx: an append to it failed on the device when rows that it had were "
                 "overwritten: it can only be freed", (unsigned long long)handle);
    return cache->device.is_stale ? kvl__device_refresh((kvl_cache*)(uintptr_t)cache) : KVL_OK;
}

KVL__FN kvl_status kvl__need_layer(const kvl_cache* cache, int layer, const kvl__layer** out)
{
    *out = NULL;
    KVL__REQUIRE(cache->ctx, layer >= 0 && layer < cache->num_layers, KVL_BAD_ARGUMENT,
                 "layer = %d: must be 0 to %d", layer, cache->num_layers - 1);
    *out = &cache->layers[layer];
    KVL__REQUIRE(cache->ctx, (*out)->active, KVL_BAD_ARGUMENT,
                 "layer = %d: it has no KV heads, hence no cache", layer);
    return KVL_OK;
}

KVL__PUBLIC kvl_status kvl_seq_free(kvl_cache* cache, kvl_seq handle)
{
    kvl__seq* seq;
    KVL__USE_CACHE(cache);
    seq = kvl__seq_find(cache, handle);
    if (!seq) return kvl__need_seq(cache, handle, &seq);
    cache->slots[(handle & 0xffffffffu) - 1] = NULL;
    --cache->num_seqs;
    kvl__seq_release(cache, seq);
    return KVL_OK;
}

KVL__PUBLIC kvl_status kvl_seq_get_rows(const kvl_cache* cache, int layer, kvl_seq handle,
                                        kvl_seq_rows* out)
{
    const kvl__layer* l;
    kvl__seq* seq;
    KVL__USE_CACHE(cache);
    KVL__REQUIRE(cache->ctx, out, KVL_BAD_ARGUMENT, "out = NULL: must be given");
    KVL__TRY(kvl__need_layer(cache, layer, &l));
    KVL__TRY(kvl__need_seq(cache, handle, &seq));
    const kvl__extent* now = &seq->layers[layer].now;
    out->rows = now->rows;
    out->sink = kvl__min_i64(now->rows, l->config.sink_len);
    out->quantized = now->quantized;
    out->tail = out->rows - out->sink - out->quantized;
    out->kept = now->kept > 0 ? now->kept - kvl__kept_gone(l, &seq->layers[layer]) : 0;
    out->dropped = kvl__gone_rows(now);
    return KVL_OK;
}

// VIEWS OF THE CALLER'S ROWS

typedef struct kvl__view {
    const unsigned char* data;
    kvl_type type;
    int64_t  row_bytes, head_bytes;
} kvl__view;

KVL__FN int64_t kvl__type_bytes(kvl_type type) { return type == KVL_F32 ? 4 : 2; }

KVL__FN kvl_status kvl__view_of(kvl_context* ctx, const char* name, const kvl_const_rows* rows,
                                int num_heads, int head_dim, kvl__view* out)
{
    KVL__REQUIRE(ctx, rows->data, KVL_BAD_ARGUMENT, "%s.data = NULL: must be given", name);
    KVL__REQUIRE(ctx, rows->type == KVL_F32 || rows->type == KVL_F16 || rows->type == KVL_BF16,
                 KVL_BAD_ARGUMENT, "%s.type = %d: must be KVL_F32, KVL_F16 or KVL_BF16", name,
                 (int)rows->type);
    const int64_t bytes = kvl__type_bytes(rows->type);
    KVL__REQUIRE(ctx, !ctx->gpu || (uintptr_t)rows->data % (uintptr_t)bytes == 0, KVL_BAD_ARGUMENT,
                 "%s.data = %p: on a device it must be a multiple of %lld, the size of a value",
                 name, rows->data, (long long)bytes);
    const int64_t head = rows->head_stride ? rows->head_stride : head_dim;
    const int64_t row = rows->row_stride ? rows->row_stride : head * num_heads;
    const int64_t most = (int64_t)1 << 40;
    KVL__REQUIRE(ctx, head >= (num_heads > 1 ? head_dim : 0) && head <= most, KVL_BAD_ARGUMENT,
                 "%s.head_stride = %lld: must be 0 or at least head_dim = %d", name,
                 (long long)rows->head_stride, head_dim);
    KVL__REQUIRE(ctx, row >= head_dim && row <= most, KVL_BAD_ARGUMENT,
                 "%s.row_stride = %lld: must be 0 or at least head_dim = %d", name,
                 (long long)rows->row_stride, head_dim);
    out->data = (const unsigned char*)rows->data;
    out->type = rows->type;
    out->head_bytes = head * bytes;
    out->row_bytes = row * bytes;
    return KVL_OK;
}

KVL__FN float kvl__load_value(const unsigned char* from, kvl_type type, int64_t i)
{
    uint16_t h;
    float x;
    if (type == KVL_F32) {
        memcpy(&x, from + 4 * i, 4);
        return x;
    }
    memcpy(&h, from + 2 * i, 2);
    return type == KVL_F16 ? kvl__f16_to_f32(h) : kvl__bf16_to_f32(h);
}

KVL__FN void kvl__store_value(unsigned char* to, kvl_type type, int64_t i, float x)
{
    if (type == KVL_F32) {
        memcpy(to + 4 * i, &x, 4);
        return;
    }
    const uint16_t h = type == KVL_F16 ? kvl__f32_to_f16_finite(x) : kvl__f32_to_bf16_finite(x);
    memcpy(to + 2 * i, &h, 2);
}

// APPEND

typedef struct kvl__append_seq {
    kvl__seq_layer* s;
    int64_t         first_row, num_rows;   // in the caller's rows
    int64_t         start;                 // first_row of the call: kept rows are counted from it
    const int32_t*  kept;                  // [num_kept] rows from first_row on that are kept
    int32_t         num_kept;
    int64_t         left;                  // rows behind these that wait for a later step
    kvl__change     change;
    kvl__extent     was;                   // when its pages were there and no row had come
    int             num_waves;             // launches on a device that have written rows of it
} kvl__append_seq;

struct kvl__append_job {
    kvl_cache*       cache;
    const kvl__layer* l;
    kvl__append_seq* seqs;
    int              num_seqs;
    kvl__view        side[2];
    int64_t          bad;                  // atomic: 1 + the first place that is not finite, or 0
    int              saturated;            // atomic
    int              captured;             // into a graph: nothing runs
    int              replay;               // nothing is launched
};

// The greatest magnitude of a row as bits, which order as magnitudes do: of sixteen channels each,
// in loops of a known length and without branches.
KVL__FN uint32_t kvl__row_most(const unsigned char* row, kvl_type type, int dim)
{
    int32_t most = 0, mosts[16] = { 0 };
    int16_t narrow[16] = { 0 };
    for (int at = 0; at < dim && type == KVL_F32; at += 16) {
        int32_t u[16];
        memcpy(u, row + 4 * at, sizeof u);
        for (int i = 0; i < 16; ++i) u[i] &= 0x7fffffff;
        for (int i = 0; i < 16; ++i) mosts[i] = u[i] > mosts[i] ? u[i] : mosts[i];
    }
    for (int at = 0; at < dim && type != KVL_F32; at += 16) {
        int16_t h[16];
        memcpy(h, row + 2 * at, sizeof h);
        for (int i = 0; i < 16; ++i) h[i] = (int16_t)(h[i] & 0x7fff);
        for (int i = 0; i < 16; ++i) narrow[i] = h[i] > narrow[i] ? h[i] : narrow[i];
    }
    for (int i = 0; i < 16; ++i) {
        most = mosts[i] > most ? mosts[i] : most;
        most = narrow[i] > most ? narrow[i] : most;
    }
    return (uint32_t)most;
}

// The first channel of a row that is not finite, or -1; notes values beyond the window's range.
KVL__FN int kvl__row_check(const unsigned char* row, kvl_type type, int dim, int bf16, int* beyond)
{
    const uint32_t infinity = type == KVL_F32 ? 0x7f800000u : type == KVL_F16 ? 0x7c00u : 0x7f80u;
    const uint32_t too_large = type == KVL_F32 ? 0x477ff000u : 0x4780u;          // 65520, 65536
    const uint32_t most = kvl__row_most(row, type, dim);
    if (type != KVL_F16 && !bf16 && most >= too_large) *beyond = 1;
    if (most < infinity) return -1;
    int i = 0;
    while (kvl__is_finite(kvl__load_value(row, type, i))) ++i;
    return i;
}

// Item i: sequence i / num_kv_heads, head i % num_kv_heads.
KVL__FN void kvl__append_check_item(void* arg, int64_t item, int thread)
{
    kvl__append_job* job = (kvl__append_job*)arg;
    const int heads = job->l->config.num_kv_heads, head = (int)(item % heads);
    const kvl__append_seq* a = &job->seqs[item / heads];
    int beyond = 0;
    (void)thread;
    for (int side = 0; side < job->l->config.num_stored; ++side) {
        const kvl__codec* c = &job->l->config.side[side];
        const kvl__view* v = &job->side[side];
        for (int64_t r = 0; r < a->num_rows; ++r) {
            const unsigned char* row =
                v->data + (a->first_row + r) * v->row_bytes + head * v->head_bytes;
            const int channel = kvl__row_check(row, v->type, c->head_dim, c->rows, &beyond);
            if (channel < 0) continue;
            const int64_t place =
                1 + (((a->first_row + r) * 2 + side) * heads + head) * KVL__MAX_HEAD_DIM + channel;
            int64_t seen = __atomic_load_n(&job->bad, __ATOMIC_RELAXED);
            while ((seen == 0 || place < seen) &&
                   !__atomic_compare_exchange_n(&job->bad, &seen, place, 0, __ATOMIC_RELAXED,
                                                __ATOMIC_RELAXED)) { }
            break;
        }
    }
    if (beyond) __atomic_store_n(&job->saturated, 1, __ATOMIC_RELAXED);
}

KVL__FN kvl_status kvl__append_bad_row(const kvl__append_job* job)
{
    const int64_t place = job->bad - 1, heads = job->l->config.num_kv_heads;
    const int channel = (int)(place % KVL__MAX_HEAD_DIM);
    const int head = (int)(place / KVL__MAX_HEAD_DIM % heads);
    const int side = (int)(place / KVL__MAX_HEAD_DIM / heads % 2);
    const int64_t row = place / KVL__MAX_HEAD_DIM / heads / 2;
    int seq = 0;
    while (row >= job->seqs[seq].first_row + job->seqs[seq].num_rows) ++seq;
    const kvl__view* v = &job->side[side];
    const float x = kvl__load_value(v->data + row * v->row_bytes + head * v->head_bytes, v->type,
                                    channel);
    return kvl__fail(job->cache->ctx, KVL_BAD_ARGUMENT,
                     "layer %d: %c = %g in sequence %d of the batch, row %lld, head %d, channel "
                     "%d: rows must be finite",
                     (int)(job->l - job->cache->layers), side ? 'v' : 'k',
                     (double)x, seq, (long long)(row - job->seqs[seq].first_row), head, channel);
}

// Where row r of a sequence is kept; < 0: it is not named.  *next: of a->kept, the first that it
// may be.
KVL__FN int64_t kvl__append_kept(const kvl__append_seq* a, int64_t r, int32_t* next)
{
    if (*next == a->num_kept || a->kept[*next] != a->first_row + r - a->start) return -1;
    return a->s->now.kept + (*next)++;
}

// One row of one head into a window, as 16 bits.
KVL__FN void kvl__store_window_row(const kvl__codec* c, const kvl__view* v, int64_t row, int head,
                                   uint16_t* to)
{
    const unsigned char* from = v->data + row * v->row_bytes + head * v->head_bytes;
    if (v->type == (c->rows ? KVL_BF16 : KVL_F16)) {
        memcpy(to, from, 2 * (size_t)c->head_dim);
        return;
    }
    if (v->type == KVL_F32) {
        kvl__f32_to_rows(from, c->head_dim, c->rows, to);
        return;
    }
    for (int i = 0; i < c->head_dim; ++i) {
        const float x = kvl__load_value(from, v->type, i);
        to[i] = c->rows ? kvl__f32_to_bf16_finite(x) : kvl__f32_to_f16_finite(x);
    }
}

// Codes of keys, and what is stored beside them.
KVL__FN void kvl__encode_keys(const kvl__layer* l, const kvl__encode_args* a)
{
    l->program.encode_keys(a);
    if (kvl__sketches((const kvl__codec*)a->codec)) kvl__sketch_encode(a, l->program.decode_keys);
}

// Encodes rows of a tail, of one page, that are stored without what they have by their positions:
// as many at a time as a thread's scratch holds.
KVL__FN void kvl__encode_by_position(const kvl__append_job* job, int thread, int64_t position,
                                     kvl__encode_args* a)
{
    const kvl__layer* l = job->l;
    const kvl__codec* c = &l->config.side[0];
    const kvl_cache* cache = job->cache;
    const int along = kvl__unit_along(c);
    const int32_t room = KVL__SCRATCH_BYTES / (2 * c->head_dim) / along * along;
    const int32_t num_rows = a->num_rows, first_row = a->first_row;
    const uint16_t* rows = a->rows;
    uint16_t* shifted = (uint16_t*)(void*)(cache->thread_scratch +
        (thread + 1) * cache->thread_bytes - KVL__SCRATCH_BYTES);
    a->rows = shifted;
    for (int32_t done = 0; done < num_rows; done += a->num_rows) {
        a->num_rows = num_rows - done < room ? num_rows - done : room;
        a->first_row = first_row + done;
        const uint16_t* from = rows + (int64_t)done * c->head_dim;
        if (kvl__is_unrotated(c))
            kvl__turn_rows_back(c, l->turns, position + done, from, a->num_rows, shifted);
        else kvl__shift_rows(c, a->tables, position + done, from, a->num_rows, shifted);
        kvl__encode_keys(l, a);
    }
    a->num_rows = num_rows;
}

// Encodes the oldest num_rows rows of a side of a tail as rows `at` and on of the pages, but those
// whose pages are gone.
KVL__FN void kvl__encode_tail(const kvl__append_job* job, const kvl__seq_layer* s, int head,
                              int side, int thread, const kvl__windows* w, int64_t at,
                              int64_t num_rows)
{
    const kvl__layer* l = job->l;
    const int64_t page_size = l->config.page_size;
    const kvl__codec* c = &l->config.side[side];
    kvl__encode_args a;
    a.codec = c;
    a.tables = kvl__record_of(l, side, head);
    a.row_stride = c->head_dim;
    a.page_size = l->config.page_size;
    for (int64_t done = 0; done < num_rows; done += a.num_rows) {
        const int64_t row = at + done, in_page = row % page_size;
        a.num_rows = (int32_t)kvl__min_i64(num_rows - done, page_size - in_page);
        if (!s->table || row / page_size < s->table->first) continue;
        a.rows = w->tail[side] + done * c->head_dim;
        a.page = kvl__page_at(s, row / page_size) + kvl__side_at(l, head, side);
        a.first_row = (int32_t)in_page;
        if (kvl__is_by_position(c))
            kvl__encode_by_position(job, thread, l->config.sink_len + row, &a);
        else if (side) l->program.encode_values(&a);
        else kvl__encode_keys(l, &a);
    }
}

// Moves the rows of a tail behind its first num_rows down; these become history.
KVL__FN void kvl__move_tail(const kvl__layer* l, const kvl__windows* w, int64_t num_rows,
                            int64_t tail_len)
{
    for (int side = 0; side < l->config.num_stored; ++side) {
        const int64_t dim = l->config.side[side].head_dim;
        uint16_t* to = w->tail[side] - l->keep_rows * dim;
        memmove(to, to + num_rows * dim,
                (size_t)((l->keep_rows + tail_len - num_rows) * dim) * sizeof *to);
    }
}

KVL__FN void kvl__flush_tail(const kvl__append_job* job, const kvl__seq_layer* s, int head,
                             int thread, const kvl__windows* w, int64_t at, int64_t num_rows,
                             int64_t tail_len)
{
    for (int side = 0; side < job->l->config.num_stored; ++side)
        kvl__encode_tail(job, s, head, side, thread, w, at, num_rows);
    kvl__move_tail(job->l, w, num_rows, tail_len);
}

// Rows [done, done + num) of the tails of all heads as keys are stored across heads, to
// out [num, num_kv_heads, head_dim]; the first at `position`.  x: room for a row of all heads.
KVL__FN void kvl__across_rows(const kvl__layer* l, const kvl__seq_layer* s, int64_t position,
                              int64_t done, int64_t num, float* x, uint16_t* out)
{
    const kvl__codec* c = &l->config.side[0];
    const int heads = l->config.num_kv_heads, dim = c->head_dim;
    const int64_t order = kvl__table_at(c, "grouped_order");
    for (int64_t r = 0; r < num; ++r, out += heads * dim) {
        for (int h = 0; h < heads; ++h) {
            const uint16_t* from = kvl__windows_of(l, s, h).tail[0] + (done + r) * dim;
            for (int i = 0; i < dim; ++i) x[h * dim + i] = kvl__row_to_f32(from[i], c->rows);
            kvl__turn_row(l->turns, dim, position + r, -1, x + h * dim);
        }
        kvl__across_mix(x, heads, dim, kvl__across_heads(c, heads));
        for (int i = 0; i < heads * dim; ++i) {
            const float y = x[(int)kvl__record_of(l, 0, i / dim)[order + i % dim]];
            out[i] = c->rows ? kvl__f32_to_bf16_finite(y) : kvl__f32_to_f16_finite(y);
        }
    }
}

// Encodes the oldest num_rows keys of the tails of all heads, as many at a time as a thread's
// scratch holds.
KVL__FN void kvl__encode_across(const kvl__append_job* job, const kvl__seq_layer* s, int thread,
                                int64_t at, int64_t num_rows)
{
    const kvl__layer* l = job->l;
    const kvl__codec* c = &l->config.side[0];
    const int64_t page_size = l->config.page_size, width = l->config.num_kv_heads * c->head_dim;
    const int64_t room = (KVL__SCRATCH_BYTES - 4 * width) / (2 * width);
    unsigned char* scratch = job->cache->thread_scratch +
        (thread + 1) * job->cache->thread_bytes - KVL__SCRATCH_BYTES;
    float* x = (float*)(void*)scratch;
    uint16_t* rows = (uint16_t*)(void*)(x + width);
    kvl__encode_args a;
    a.codec = c;
    a.row_stride = width;
    a.page_size = l->config.page_size;
    for (int64_t done = 0; done < num_rows; done += a.num_rows) {
        const int64_t row = at + done, in_page = row % page_size;
        const int64_t most = kvl__min_i64(num_rows - done, page_size - in_page);
        a.num_rows = (int32_t)kvl__min_i64(most, room);
        if (!s->table || row / page_size < s->table->first) continue;
        kvl__across_rows(l, s, l->config.sink_len + row, done, a.num_rows, x, rows);
        a.first_row = (int32_t)in_page;
        for (int h = 0; h < l->config.num_kv_heads; ++h) {
            a.tables = kvl__record_of(l, 0, h);
            a.rows = rows + h * c->head_dim;
            a.page = kvl__page_at(s, row / page_size) + kvl__side_at(l, h, 0);
            l->program.encode_keys(&a);
        }
    }
}

// Encodes the oldest num_rows rows of the tails of all heads, which are predicted from other rows.
KVL__FN void kvl__encode_predicted(const kvl__append_job* job, kvl__seq_layer* s, int64_t at,
                                   int64_t num_rows)
{
    const int64_t first = s->table ? s->table->first * job->l->config.page_size : INT64_MAX;
    const int64_t skipped = kvl__max_i64(0, first - at);
    kvl__restored_encode(job->cache, job->l, s->owner, at + skipped, at + num_rows, skipped);
}

// Encodes the oldest num_rows rows of the tails of all heads.
KVL__FN void kvl__encode_together(const kvl__append_job* job, kvl__seq_layer* s, int thread,
                                  int64_t at, int64_t num_rows)
{
    if (kvl__predicts(&job->l->config)) {
        kvl__encode_predicted(job, s, at, num_rows);
        return;
    }
    kvl__encode_across(job, s, thread, at, num_rows);
    for (int head = 0; head < job->l->config.num_kv_heads; ++head) {
        const kvl__windows w = kvl__windows_of(job->l, s, head);
        kvl__encode_tail(job, s, head, 1, thread, &w, at, num_rows);
    }
}

// A sequence whose rows are encoded with those of all heads: one item has all its heads.
KVL__FN void kvl__append_together(const kvl__append_job* job, const kvl__append_seq* a, int thread)
{
    const kvl__layer* l = job->l;
    const kvl__config* c = &l->config;
    int64_t rows = a->s->now.rows, quantized = a->s->now.quantized;
    int32_t next = 0;
    for (int64_t r = 0; r < a->num_rows; ++r, ++rows) {
        const int64_t tail_at = rows - c->sink_len - quantized;
        const int64_t kept = kvl__append_kept(a, r, &next);
        for (int i = 0; i < 2 * c->num_kv_heads; ++i) {
            const int side = i % 2, dim = c->side[side].head_dim;
            const kvl__windows w = kvl__windows_of(l, a->s, i / 2);
            uint16_t* to = tail_at < 0 ? w.sink[side] + rows * dim : w.tail[side] + tail_at * dim;
            kvl__store_window_row(&c->side[side], &job->side[side], a->first_row + r, i / 2, to);
            if (kept >= 0) memcpy(w.kept[side] + kept * dim, to, (size_t)dim * sizeof *to);
        }
        if (tail_at + 1 < l->tail_rows && r + 1 < a->num_rows) continue;
        const int64_t due = kvl__quantized_rows(c, rows + 1) - quantized;
        if (due <= 0) continue;
        kvl__encode_together(job, a->s, thread, quantized, due);
        for (int head = 0; head < c->num_kv_heads; ++head) {
            const kvl__windows w = kvl__windows_of(l, a->s, head);
            kvl__move_tail(l, &w, due, tail_at + 1);
        }
        quantized += due;
    }
}

KVL__FN void kvl__append_item(void* arg, int64_t item, int thread)
{
    const kvl__append_job* job = (const kvl__append_job*)arg;
    const kvl__layer* l = job->l;
    const kvl__config* c = &l->config;
    const int head = (int)(item % c->num_kv_heads);
    const kvl__append_seq* a = &job->seqs[item / c->num_kv_heads];
    if (kvl__is_across(&c->side[0]) || kvl__predicts(c)) {
        if (head == 0) kvl__append_together(job, a, thread);
        return;
    }
    const kvl__windows w = kvl__windows_of(l, a->s, head);
    int64_t rows = a->s->now.rows, quantized = a->s->now.quantized;
    int32_t next = 0;
    for (int64_t r = 0; r < a->num_rows; ++r, ++rows) {
        const int64_t tail_at = rows - c->sink_len - quantized;
        const int64_t kept = kvl__append_kept(a, r, &next);
        for (int side = 0; side < c->num_stored; ++side) {
            const int64_t dim = c->side[side].head_dim;
            uint16_t* to = tail_at < 0 ? w.sink[side] + rows * dim : w.tail[side] + tail_at * dim;
            kvl__store_window_row(&c->side[side], &job->side[side], a->first_row + r, head, to);
            if (kept >= 0) memcpy(w.kept[side] + kept * dim, to, (size_t)dim * sizeof *to);
        }
        if (tail_at + 1 < l->tail_rows && r + 1 < a->num_rows) continue;
        const int64_t due = kvl__quantized_rows(c, rows + 1) - quantized;
        if (due <= 0) continue;
        kvl__flush_tail(job, a->s, head, thread, &w, quantized, due, tail_at + 1);
        quantized += due;
    }
}

KVL__FN kvl_status kvl__check_batch(const kvl_cache* cache, int num_seqs, const kvl_seq* seqs)
{
    KVL__REQUIRE(cache->ctx, num_seqs >= 0 && num_seqs <= 1 << 20, KVL_BAD_ARGUMENT,
                 "num_seqs = %d: must be 0 to %d", num_seqs, 1 << 20);
    KVL__REQUIRE(cache->ctx, seqs || num_seqs == 0, KVL_BAD_ARGUMENT,
                 "seqs = NULL: must be given");
    return KVL_OK;
}

KVL__FN int64_t kvl__append_len(const kvl_append_desc* d, int i)
{
    return d->num_rows ? d->num_rows[i] : 1;
}

KVL__FN kvl_status kvl__append_seqs(kvl__append_job* job, const kvl_append_desc* d,
                                    int64_t* num_rows)
{
    kvl_context* ctx = job->cache->ctx;
    *num_rows = 0;
    memset(job->seqs, 0, (size_t)d->num_seqs * sizeof *job->seqs);
    for (int i = 0; i < d->num_seqs; ++i) {
        kvl__seq* seq;
        const int64_t rows = kvl__append_len(d, i);
        KVL__TRY(kvl__need_seq(job->cache, d->seqs[i], &seq));
        KVL__REQUIRE(ctx, rows >= 0, KVL_BAD_ARGUMENT,
                     "num_rows[%d] = %lld: must not be negative", i, (long long)rows);
        job->seqs[i].s = &seq->layers[d->layer];
        job->seqs[i].first_row = job->seqs[i].start = *num_rows;
        job->seqs[i].num_rows = rows;
        *num_rows += rows;
        KVL__REQUIRE(ctx, *num_rows < (int64_t)1 << 31, KVL_BAD_ARGUMENT,
                     "num_rows: more than 2^31 rows in one call");
        for (int j = 0; j < i; ++j)
            KVL__REQUIRE(ctx, d->seqs[j] != d->seqs[i], KVL_BAD_ARGUMENT,
                         "seqs[%d] = %#llx: is seqs[%d] as well", i,
                         (unsigned long long)d->seqs[i], j);
    }
    return KVL_OK;
}

// The rows that are named to be kept, sequence by sequence.
KVL__FN kvl_status kvl__append_names(kvl__append_job* job, const kvl_append_desc* d)
{
    const int32_t* rows = d->kept;
    KVL__REQUIRE(job->cache->ctx, !rows || d->num_kept, KVL_BAD_ARGUMENT,
                 "num_kept = NULL: must be given with kept");
    for (int i = 0; d->num_kept && i < d->num_seqs; ++i) {
        kvl__append_seq* a = &job->seqs[i];
        const kvl__kept_names names = { job->l, a->s, i, a->num_rows, rows, d->num_kept[i] };
        KVL__REQUIRE(job->cache->ctx, rows || d->num_kept[i] == 0, KVL_BAD_ARGUMENT,
                     "kept = NULL: must be given, num_kept[%d] = %d", i, (int)d->num_kept[i]);
        KVL__TRY(kvl__check_kept(job->cache->ctx, &names));
        a->kept = rows;
        a->num_kept = d->num_kept[i];
        if (rows) rows += d->num_kept[i];
    }
    return KVL_OK;
}

// What the rows that follow change in the pages.  Pages that leave the sliding window are released
// at once, or, where rows in between are attended to, by kvl__append_release at the end.  So are
// those that are there already on a device, where what follows may fail.
KVL__FN void kvl__append_change(const kvl__append_job* job, kvl__append_seq* a, int stepwise)
{
    const kvl__layer* l = job->l;
    const kvl__extent now = a->num_rows > 0 ? kvl__settled(&l->config, &a->s->now) : a->s->now;
    const kvl__extent to = kvl__grown(&l->config, &now, a->num_rows, l->keep_rows);
    const int64_t released = kvl__released_rows(&l->config, to.rows, to.quantized,
                                                l->desc.window_len, l->release_slack);
    a->change.kept = now.quantized;
    a->change.wanted = to.quantized;
    a->change.gone = kvl__gone_rows(&now);
    a->change.window = a->num_rows > 0;
    const int there = kvl__on_device(job->cache) && released <= now.quantized;
    if (stepwise || there) a->change.own = released > a->change.gone;
    else a->change.gone = kvl__max_i64(a->change.gone, released);
}

// How many pages a batch lacks, before the reason: reserve has failed, nothing is dropped yet.
KVL__FN void kvl__say_missing(const kvl__append_job* job)
{
    int64_t needed = 0, there = 0;
    char why[KVL__MESSAGE_BYTES];
    for (int i = 0; i < job->num_seqs; ++i) {
        const kvl__append_seq* a = &job->seqs[i];
        const kvl__repaging r = kvl__repage(job->l, a->s, &a->change);
        if (r.none) continue;
        needed += r.end - r.kept_end;
        there += a->s->num_reserved;
    }
    if (there >= needed) return;
    memcpy(why, job->cache->ctx->message, sizeof why);
    why[sizeof why - 1] = 0;
    kvl__fail(job->cache->ctx, KVL_NO_MEMORY, "layer %d: %lld of %lld pages are missing: %.800s",
              (int)(job->l - job->cache->layers), (long long)(needed - there), (long long)needed,
              why);
}

// What is left of a cut group goes to the tail, which has no other rows.
KVL__FN void kvl__append_return(const kvl__append_job* job, const kvl__append_seq* a)
{
    const int64_t left = a->s->now.quantized - a->change.kept;
    if (left == 0) return;
    kvl__window_keep(job->cache, job->l, a->s);
    kvl__restore_tail(job->cache, job->l, a->s, a->change.kept, left);
}

// Pages as the rows need them.
KVL__FN void kvl__append_keep(const kvl__append_job* job, kvl__append_seq* a)
{
    kvl__seq_layer* s = a->s;
    const int64_t left = s->now.quantized - a->change.kept;
    kvl__pages_keep(job->cache, job->l, s, &a->change);
    if (a->num_kept > 0) kvl__kept_forget(job->l, s);
    if (left > 0) {
        s->now.quantized = a->change.kept;
        kvl__record_update(job->cache, s, 1);
    }
    a->was = s->now;
}

KVL__FN kvl_status kvl__append_reserve(kvl__append_job* job, int stepwise)
{
    int lacking = 0;
    for (int i = 0; i < job->num_seqs; ++i)
        kvl__append_change(job, &job->seqs[i], stepwise);
    for (int i = 0; i < job->num_seqs && !lacking; ++i)
        lacking = !kvl__pages_reserve(job->cache, job->l, job->seqs[i].s, &job->seqs[i].change);
    if (lacking && job->cache->device.status == KVL_OK) kvl__say_missing(job);
    for (int i = 0; i < job->num_seqs && !lacking; ++i)
        kvl__append_return(job, &job->seqs[i]);
    const int failed = lacking || job->cache->device.status != KVL_OK;
    for (int i = 0; i < job->num_seqs; ++i) {
        kvl__append_seq* a = &job->seqs[i];
        if (failed) kvl__pages_drop(job->cache, job->l, a->s, &a->change);
        else kvl__append_keep(job, a);
    }
    return failed ? kvl__cache_failure(job->cache) : KVL_OK;
}

// Lets go what has left the sliding windows.  Needs no memory: reserve made the tables their own.
KVL__FN void kvl__append_release(kvl__append_job* job)
{
    const kvl__layer* l = job->l;
    for (int i = 0; i < job->num_seqs; ++i) {
        kvl__seq_layer* s = job->seqs[i].s;
        kvl__change change;
        memset(&change, 0, sizeof change);
        s->now.released = kvl__max_i64(s->now.released, kvl__released_rows(
            &l->config, s->now.rows, s->now.quantized, l->desc.window_len, l->release_slack));
        change.kept = change.wanted = s->now.quantized;
        change.gone = kvl__gone_rows(&s->now);
        kvl__pages_keep(job->cache, l, s, &change);
        KVL_ASSERT(kvl__seq_layer_holds(l, s));
    }
}

// After a failure on a device: pages that no row has come to go, and counts are as before the rows.
// What a wave of rows writes is where none is that a sequence has; a second wave takes the places
// of rows that the first one has encoded, and a sequence that had it is broken.  So is one whose
// pages left the sliding window before the rows came.
KVL__FN void kvl__append_undo(kvl__append_job* job)
{
    kvl_cache* cache = job->cache;
    for (int i = 0; i < job->num_seqs; ++i) {
        kvl__append_seq* a = &job->seqs[i];
        kvl__seq_layer* s = a->s;
        kvl__table* table = s->table;
        const int64_t end = kvl__num_pages(&job->l->config, a->was.quantized);
        const int64_t first =
            kvl__min_i64(end, kvl__gone_rows(&a->was) / job->l->config.page_size);
        const int gone = table && table->first > first;
        s->now = a->was;
        s->owner->restored.is_known = 0;
        while (table && table->num > 0 && table->first + table->num > end)
            kvl__page_release(cache, job->l, kvl__table_pages(table)[--table->num]);
        if (table && table->num == 0 && cache->device.prepared_rows == 0) {
            kvl__table_free(cache, table);
            s->table = NULL;
            s->is_stale = cache->device.is_stale = 1;
        }
        if (a->num_waves > 1 || gone) kvl__seq_of(cache, job->l, s)->broken = 1;
        KVL_ASSERT(a->num_waves > 1 || gone || kvl__seq_layer_holds(job->l, s));
        if (a->num_waves > 0) s->is_stale = cache->device.is_stale = 1;
    }
    if (cache->device.is_stale) kvl__device_refresh(cache);      // or before the next call
}

KVL__FN void kvl__append_each(kvl__append_job* job, int64_t num_rows, kvl__body body)
{
    const int64_t items = (int64_t)job->num_seqs * job->l->config.num_kv_heads;
    if (num_rows * job->l->config.num_kv_heads < 64)        // less work than waking a thread
        for (int64_t i = 0; i < items; ++i) body(job, i, 0);
    else
        kvl__parallel(job->cache->ctx, items, body, job);
}

// Rows that are predicted from the layer below come when they have come there.
KVL__FN kvl_status kvl__append_check_below(const kvl__append_job* job)
{
    kvl_cache* cache = job->cache;
    const kvl__layer* l = job->l;
    for (int i = 0; kvl__predicts(&l->config) && i < job->num_seqs; ++i) {
        const kvl__append_seq* a = &job->seqs[i];
        const int64_t rows = a->s->now.rows + a->num_rows;
        const int64_t below = l->below < 0 ? rows : a->s->owner->layers[l->below].now.rows;
        if (a->num_rows == 0) continue;
        KVL__REQUIRE(cache->ctx, below >= rows, KVL_BAD_ARGUMENT, "layer %d: k.shift = predicted: "
                     "sequence %d of the batch would have %lld rows, which are predicted from "
                     "those of layer %d: it has %lld: append to it first", l->number, i,
                     (long long)rows, l->below, (long long)below);
        KVL__TRY(kvl__restored_room(cache, l, a->s->owner, kvl__grown(
            &l->config, &a->s->now, a->num_rows, l->keep_rows).quantized));
    }
    return KVL_OK;
}

KVL__FN kvl_status kvl__append_check(kvl__append_job* job, const kvl_append_desc* d,
                                     int64_t* num_rows)
{
    const kvl__config* c = &job->l->config;
    kvl_context* ctx = job->cache->ctx;
    KVL__TRY(kvl__append_seqs(job, d, num_rows));
    KVL__TRY(kvl__append_names(job, d));
    if (*num_rows == 0) return KVL_OK;
    if (ctx->gpu) KVL__TRY(kvl__device_check_append(job));
    if (job->replay) return kvl__append_check_below(job);
    KVL__TRY(kvl__view_of(ctx, "k", &d->k, c->num_kv_heads, c->side[0].head_dim, &job->side[0]));
    KVL__REQUIRE(ctx, c->num_stored == 2 || !d->v.data, KVL_BAD_ARGUMENT,
                 "v.data: must be NULL: values are in the keys (values_in_keys)");
    if (c->num_stored == 2)
        KVL__TRY(kvl__view_of(ctx, "v", &d->v, c->num_kv_heads, c->side[1].head_dim,
                              &job->side[1]));
    if (job->captured) return KVL_OK;
    if (ctx->gpu) return kvl__append_check_below(job);  // kernels note what is not finite
    kvl__append_each(job, *num_rows, kvl__append_check_item);
    return job->bad ? kvl__append_bad_row(job) : kvl__append_check_below(job);
}

// Moments are weighted by attention, which looks further back in a longer text.
KVL__FN void kvl__warn_of_context(const kvl__append_job* job)
{
    const int64_t most = 2 * job->cache->calibrated_rows;
    for (int i = 0; most > 0 && i < job->num_seqs; ++i) {
        const int64_t rows = job->seqs[i].s->now.rows;
        if (rows <= most || !kvl__records_bytes(&job->l->config) ||
            !kvl__first_time(job->cache->ctx, &job->cache->ctx->said_context)) continue;
        kvl__say(job->cache->ctx, KVL_LOG_WARNING, "a sequence has %lld rows: its codec is "
                 "calibrated on texts of %lld tokens, and serves one of more than twice that less "
                 "well", (long long)rows, (long long)(most / 2));
    }
}

// Named rows that have come have their positions.
KVL__FN void kvl__append_keep_named(const kvl__layer* l, kvl__append_seq* a)
{
    const int64_t done = a->first_row - a->start;
    while (a->num_kept > 0 && *a->kept < done + a->num_rows) {
        kvl__kept_positions(l, a->s)[a->s->now.kept++] = a->s->now.rows + *a->kept++ - done;
        --a->num_kept;
    }
}

// Appends num_rows of each sequence; their pages are there.  Nothing grows after a failure.
KVL__FN void kvl__append_rows(kvl__append_job* job, int64_t num_rows)
{
    kvl_context* ctx = job->cache->ctx;
    if (!ctx->gpu) kvl__append_each(job, num_rows, kvl__append_item);
    else if (!job->replay) kvl__device_append_rows(job);
    if (job->cache->device.status != KVL_OK) return;
    for (int i = 0; i < job->num_seqs; ++i) {
        kvl__append_seq* a = &job->seqs[i];
        kvl__append_keep_named(job->l, a);
        a->s->now = kvl__grown(&job->l->config, &a->s->now, a->num_rows, job->l->keep_rows);
    }
    kvl__warn_of_context(job);
    if (job->saturated && kvl__first_time(ctx, &ctx->said_saturated))
        kvl__say(ctx, KVL_LOG_WARNING, "layer %d: a value beyond the range of f16 is kept as 65504 "
                 "with its sign; rows=bf16 in the spec has the range of float",
                 (int)(job->l - job->cache->layers));
}

// All rows have come, or none has.
KVL__FN kvl_status kvl__append_end(kvl__append_job* job)
{
    if (job->cache->device.status != KVL_OK) {
        kvl__append_undo(job);
        return kvl__device_end(job->cache);
    }
    kvl__append_release(job);
    return kvl__device_done(job->cache);
}

KVL__FN kvl_status kvl__append_checked(kvl__append_job* job, const kvl_append_desc* d)
{
    int64_t num_rows;
    KVL__TRY(kvl__append_check(job, d, &num_rows));
    if (num_rows == 0) return KVL_OK;
    if (job->captured) return kvl__device_capture_append(job, num_rows);
    KVL__TRY(kvl__append_reserve(job, 0));
    kvl__append_rows(job, num_rows);
    return kvl__append_end(job);
}

KVL__FN kvl_status kvl__check_append_desc(const kvl_cache* cache, const kvl_append_desc* d,
                                          const kvl__layer** l)
{
    KVL__REQUIRE(cache->ctx, d, KVL_BAD_ARGUMENT, "kvl_append_desc = NULL: must be given");
    KVL__REQUIRE(cache->ctx, d->end == 0, KVL_BAD_ARGUMENT,
                 "kvl_append_desc.end = %u: must be 0: zero the whole desc first", d->end);
    KVL__REQUIRE(cache->ctx, d->replay == 0 || (d->replay == 1 && kvl__on_device(cache)),
                 KVL_BAD_ARGUMENT, "replay = %d: must be 0, or 1 on target cuda", d->replay);
    KVL__TRY(kvl__need_layer(cache, d->layer, l));
    return kvl__check_batch(cache, d->num_seqs, d->seqs);
}

// Calls work(job, d) with a job for d and room for its sequences.
KVL__FN kvl_status kvl__append_run(kvl__append_job* job, kvl_cache* cache,
                                   const kvl_append_desc* d,
                                   kvl_status (*work)(kvl__append_job*, const kvl_append_desc*))
{
    kvl__append_seq few[8];
    const size_t bytes = (size_t)d->num_seqs * sizeof few[0];
    job->cache = cache;
    job->replay = d->replay;
    job->num_seqs = d->num_seqs;
    job->seqs = few;
    if (kvl__on_device(cache)) KVL__TRY(kvl__device_begin(cache, d->stream, &job->captured));
    if (d->num_seqs > 8) {
        job->seqs = (kvl__append_seq*)kvl__alloc(cache->ctx, bytes);
        KVL__REQUIRE(cache->ctx, job->seqs, KVL_NO_MEMORY, "the allocator has no %zu bytes", bytes);
    }
    const kvl_status status = work(job, d);
    if (job->seqs != few) kvl__free(cache->ctx, job->seqs, bytes);
    return status;
}

KVL__PUBLIC kvl_status kvl_append(kvl_cache* cache, const kvl_append_desc* d)
{
    kvl__append_job job;
    memset(&job, 0, sizeof job);
    KVL__USE_CACHE(cache);
    KVL__TRY(kvl__check_append_desc(cache, d, &job.l));
    return kvl__append_run(&job, cache, d, kvl__append_checked);
}

// ATTEND

struct kvl__attend_job {
    kvl_cache*        cache;
    const kvl__layer* l;
    kvl__view         q, o;
    float*            lse;
    int               partial;
    int64_t           num_queries, num_items, rows_read;     // of the wave
    int64_t           max_parts;                             // of the wave, on a device
    int               captured;                              // into a graph: nothing runs
    int               absolute;                              // the caller gave positions
};

KVL__FN void kvl__attend_args_of(const kvl__attend_job* job, const kvl__query* query, int head,
                                 int part, kvl__attend_args* a)
{
    const kvl__layer* l = job->l;
    const kvl__config* c = &l->config;
    memset(a, 0, sizeof *a);
    a->k_codec = &c->side[0];
    a->v_codec = &c->side[1];
    a->num_heads = c->num_heads;
    a->page_size = c->page_size;
    a->soft_cap = l->desc.soft_cap;
    if (l->desc.alibi_slopes) a->slopes = l->desc.alibi_slopes + head * c->num_heads;
    if (part < query->v.num_splits) {
        const int64_t page = query->v.first_page + part * query->v.pages_per_split;
        const int64_t row = page * c->page_size;
        const int64_t end = row + query->v.pages_per_split * c->page_size;
        a->pages = (const unsigned char* const*)kvl__table_pages(query->s->table) + page -
                   query->s->table->first;
        a->k_offset = kvl__side_at(l, head, 0);
        a->v_offset = kvl__side_at(l, head, 1);
        a->first_row = kvl__max_i64(query->v.page_begin, row) - row;
        a->end_row = kvl__min_i64(query->v.page_end, end) - row;
        a->position = c->sink_len + row - query->position;
        return;
    }
    const kvl__windows w = kvl__windows_of(l, query->s, head);
    a->windows[0].k = w.sink[0] + query->v.sink_begin * c->side[0].head_dim;
    a->windows[0].v = w.sink[1] + query->v.sink_begin * c->side[1].head_dim;
    a->windows[0].num_rows = query->v.sink_end - query->v.sink_begin;
    a->windows[0].position = query->v.sink_begin - query->position;
    a->windows[1].k = w.tail[0] + query->v.tail_begin * c->side[0].head_dim;
    a->windows[1].v = w.tail[1] + query->v.tail_begin * c->side[1].head_dim;
    a->windows[1].num_rows = query->v.tail_end - query->v.tail_begin;
    a->windows[1].position = c->sink_len + query->s->now.quantized + query->v.tail_begin -
                             query->position;
}

// Adds exp(lse - most) times the parts [first, last) to acc [num_heads, head_dim_v].
KVL__FN void kvl__add_parts(const kvl__attend_job* job, int64_t item, int first, int last,
                            const float* most, float* acc)
{
    const int heads = job->l->config.num_heads, dim = job->l->config.side[1].head_dim;
    for (int part = first; part < last; ++part) {
        const float* o = job->cache->o_part + (item + part) * job->cache->part_floats;
        const float* lse = job->cache->lse_part + (item + part) * heads;
        for (int h = 0; h < heads; ++h) {
            if (lse[h] == -INFINITY) continue;
            const float weight = expf(lse[h] - most[h]);
            for (int i = 0; i < dim; ++i) acc[h * dim + i] += weight * o[h * dim + i];
        }
    }
}

// Joins the parts of one query row and KV head: pages first, out of their basis, then the windows.
KVL__FN void kvl__merge(const kvl__attend_job* job, const kvl__query* query, int head, int64_t item,
                        float* acc)
{
    const kvl__layer* l = job->l;
    const int heads = l->config.num_heads, dim = l->config.side[1].head_dim;
    const int num_parts = query->v.num_splits + 1;
    float most[KVL__MAX_HEADS], sum[KVL__MAX_HEADS], mass[KVL__MAX_HEADS];
    for (int h = 0; h < heads; ++h) {
        const float sink = l->desc.sink_logits && !job->partial
            ? l->desc.sink_logits[head * heads + h] : -INFINITY;
        most[h] = sink;
        sum[h] = mass[h] = 0.0f;
        for (int part = 0; part < num_parts; ++part)
            most[h] = fmaxf(most[h], job->cache->lse_part[(item + part) * heads + h]);
        for (int part = 0; most[h] != -INFINITY && part < num_parts; ++part) {
            mass[h] = sum[h];                            // the last part is not of pages
            sum[h] += expf(job->cache->lse_part[(item + part) * heads + h] - most[h]);
        }
        if (sink != -INFINITY) sum[h] += expf(sink - most[h]);
    }
    memset(acc, 0, (size_t)(heads * dim) * sizeof *acc);
    kvl__add_parts(job, item, 0, num_parts - 1, most, acc);
    if (num_parts > 1 && !kvl__predicts(&l->config)) {
        kvl__basis_args basis;
        basis.codec = &l->config.side[1];
        basis.tables = kvl__record_of(l, 1, head);
        basis.x = acc;
        basis.bias = NULL;
        basis.mass = mass;
        basis.num_heads = heads;
        l->program.finish_output(&basis);
    }
    kvl__add_parts(job, item, num_parts - 1, num_parts, most, acc);
    for (int h = 0; h < heads; ++h) {
        unsigned char* o = (unsigned char*)(uintptr_t)job->o.data + query->row * job->o.row_bytes +
                           (head * heads + h) * job->o.head_bytes;
        const float factor = sum[h] > 0.0f ? 1.0f / sum[h] : 0.0f;
        for (int i = 0; i < l->config.value_dim; ++i)
            kvl__store_value(o, job->o.type, i, acc[h * dim + i] * factor);
        if (job->lse)
            job->lse[query->row * heads * l->config.num_kv_heads + head * heads + h] =
                sum[h] > 0.0f ? most[h] + logf(sum[h]) : -INFINITY;
    }
}

KVL__FN const kvl__query* kvl__query_of_item(const kvl__attend_job* job, int64_t item)
{
    int64_t lo = 0, hi = job->num_queries - 1;
    while (lo < hi) {
        const int64_t mid = (lo + hi + 1) / 2;
        if (job->cache->wave[mid].first_item <= item) lo = mid;
        else hi = mid - 1;
    }
    return &job->cache->wave[lo];
}

// One row: o = (exp(lse_a) o_a + exp(lse_b) o_b) / (exp(lse_a) + exp(lse_b)).  An empty part is not
// read, and leaves the other one's bits as they are.
KVL__FN void kvl__merge_row(const kvl_merge_desc* d, int64_t row)
{
    const float a = d->lse_a[row], b = d->lse_b[row], most = fmaxf(a, b);
    const float* o_a = d->o_a + row * d->head_dim;
    const float* o_b = d->o_b + row * d->head_dim;
    float* o = d->o + row * d->head_dim;
    const size_t bytes = (size_t)d->head_dim * sizeof *o;
    if (most == -INFINITY) {
        memset(o, 0, bytes);
    } else if (a == -INFINITY || b == -INFINITY) {
        memmove(o, a == -INFINITY ? o_b : o_a, bytes);
    } else {
        const float weight_a = expf(a - most), weight_b = expf(b - most);
        const float sum = weight_a + weight_b;
        for (int i = 0; i < d->head_dim; ++i) o[i] = (weight_a * o_a[i] + weight_b * o_b[i]) / sum;
        d->lse[row] = most + logf(sum);
        return;
    }
    d->lse[row] = most;
}

// What reads the keys of all heads at once, where a layer's are stored so.
KVL__FN kvl__across kvl__across_of(const kvl__layer* l)
{
    kvl__across s;
    memset(&s, 0, sizeof s);
    if (!kvl__is_across(&l->config.side[0])) return s;
    s.decode = l->program.decode_keys;
    s.codec = &l->config.side[0];
    s.tables = kvl__record_of(l, 0, 0);
    s.record_floats = l->record_floats[0];
    s.head_bytes = kvl__side_at(l, 1, 0);
    s.num_heads = l->config.num_kv_heads;
    return s;
}

// Pages whose keys are scored as restored rows, turned to their positions: the query stays as it
// is.
KVL__FN void kvl__attend_restored(const kvl__attend_job* job, const kvl__query* query, int head,
                                  const kvl__basis_args* basis, kvl__attend_args* a)
{
    const kvl__layer* l = job->l;
    kvl__turn_scores turns;
    turns.across = kvl__across_of(l);
    turns.head = head;
    turns.decode = l->program.decode_keys;
    turns.tables = basis->tables;
    kvl__turn_scores_start(a, l->turns, l->config.side[0].head_dim,
                           a->position + query->position, &turns);
    a->add_shifts = kvl__turn_scores_add;
    a->shifts = &turns;
    l->program.attend_pages(a);
}

// Pages whose keys are stored without what they have by their positions.
KVL__FN void kvl__attend_by_position(const kvl__attend_job* job, const kvl__query* query,
                                     kvl__basis_args* basis, kvl__attend_args* a)
{
    const kvl__layer* l = job->l;
    kvl__shift_scores shifts;
    kvl__shift_scores_start(&l->config.side[0], basis->tables, basis->x, basis->num_heads,
                            a->position + query->position, &shifts);
    a->add_shifts = kvl__shift_scores_add;
    a->shifts = &shifts;
    l->program.prepare_query(basis);
    l->program.attend_pages(a);
}

// Pages whose keys have signs beside their codes, or instead of them.
KVL__FN void kvl__attend_sketched(const kvl__attend_job* job, kvl__basis_args* basis,
                                  kvl__attend_args* a)
{
    const kvl__layer* l = job->l;
    kvl__sketch_scores sketch;
    kvl__sketch_scores_start(a, basis->x, &sketch);
    a->add_shifts = kvl__sketch_scores_add;
    a->shifts = &sketch;
    l->program.prepare_query(basis);
    l->program.attend_pages(a);
}

// Loads the queries of a head in float32, times softmax_scale, to q [num_heads, head_dim].
KVL__FN void kvl__load_queries(const kvl__attend_job* job, const kvl__query* query, int head,
                               float* q)
{
    const kvl__layer* l = job->l;
    const int heads = l->config.num_heads, dim = l->config.side[0].head_dim;
    for (int h = 0; h < heads; ++h) {
        const unsigned char* from = job->q.data + query->row * job->q.row_bytes +
                                    (head * heads + h) * job->q.head_bytes;
        for (int i = 0; i < dim; ++i)
            q[h * dim + i] = kvl__load_value(from, job->q.type, i) * l->softmax_scale;
    }
}

// Pages of a part, with the queries in `basis`; ready: they are as prepare_query leaves them.
KVL__FN void kvl__attend_pages(const kvl__attend_job* job, const kvl__query* query, int head,
                               kvl__basis_args* basis, int ready, kvl__attend_args* a)
{
    const kvl__layer* l = job->l;
    if (kvl__predicts(&l->config)) {
        kvl__attend_restored_rows(l, query->s, head, a->position + query->position, a);
    } else if (l->turns) {
        kvl__attend_restored(job, query, head, basis, a);
    } else if (kvl__is_by_position(&l->config.side[0])) {
        kvl__attend_by_position(job, query, basis, a);
    } else if (kvl__sketches(&l->config.side[0])) {
        kvl__attend_sketched(job, basis, a);
    } else {
        if (!ready) l->program.prepare_query(basis);
        l->program.attend_pages(a);
    }
}

// Whether all parts of pages read a query as prepare_query alone leaves it.
KVL__FN int kvl__keeps_queries(const kvl__layer* l)
{
    const kvl__codec* c = &l->config.side[0];
    return !l->turns && !kvl__is_by_position(c) && !kvl__sketches(c);
}

// One part of one query row and KV head, at a thread.
typedef struct kvl__part {
    const kvl__attend_job* job;
    const kvl__query*      query;
    int                    head;
    kvl__prepared*         prepared;
    float*                 q;           // [num_heads, head_dim_k]
    float*                 o;           // [num_heads, head_dim_v] for a further stretch
} kvl__part;

// One stretch of a part's rows: what one call of a kernel reads.
KVL__FN void kvl__attend_stretch(const kvl__part* part, kvl__attend_args* a)
{
    const kvl__attend_job* job = part->job;
    const kvl__layer* l = job->l;
    const int64_t number = part->query - job->cache->wave;
    kvl__prepared* p = part->prepared;
    const int ready = a->pages && p->wave == job->cache->num_waves && p->query == number &&
                      p->head == part->head;
    if (!ready) {
        kvl__load_queries(job, part->query, part->head, part->q);
        memset(p->bias, 0, sizeof p->bias);
        p->wave = a->pages && kvl__keeps_queries(l) ? job->cache->num_waves : 0;
        p->query = number;
        p->head = part->head;
    }
    a->q = part->q;
    a->bias = p->bias;
    if (!a->pages) {
        l->program.attend_windows(a);
        return;
    }
    kvl__basis_args basis;
    basis.codec = &l->config.side[0];
    basis.tables = kvl__record_of(l, 0, part->head);
    basis.x = part->q;
    basis.bias = p->bias;
    basis.mass = NULL;
    basis.num_heads = l->config.num_heads;
    kvl__attend_pages(job, part->query, part->head, &basis, ready, a);
}

// A further stretch, joined to the result of those before it.
KVL__FN void kvl__attend_further(const kvl__part* part, const kvl__attend_args* a)
{
    float lse[KVL__MAX_HEADS];
    kvl__attend_args further = *a;
    kvl_merge_desc d;
    further.o = part->o;
    further.lse = lse;
    kvl__attend_stretch(part, &further);
    memset(&d, 0, sizeof d);
    d.head_dim = part->job->l->config.side[1].head_dim;
    d.o_a = d.o = a->o;
    d.lse_a = d.lse = a->lse;
    d.o_b = part->o;
    d.lse_b = lse;
    for (int h = 0; h < a->num_heads; ++h) kvl__merge_row(&d, h);
}

// A part of pages but for the codes of kept rows: the stretches between these.
KVL__FN void kvl__attend_between_kept(const kvl__part* part, const kvl__attend_args* a)
{
    const kvl__layer* l = part->job->l;
    const kvl__seq_layer* s = part->query->s;
    const int64_t* kept = kvl__kept_positions(l, s);
    const int64_t first = a->position + part->query->position;       // of the sequence, in pages[0]
    int64_t i = kvl__kept_before(l, s, first + a->first_row);
    int num = 0;
    for (int64_t at = a->first_row; at < a->end_row; ++i) {
        kvl__attend_args stretch = *a;
        stretch.first_row = at;
        if (i < s->now.kept) stretch.end_row = kvl__min_i64(a->end_row, kept[i] - first);
        at = stretch.end_row + 1;
        if (stretch.first_row == stretch.end_row) continue;
        if (num++ == 0) kvl__attend_stretch(part, &stretch);
        else kvl__attend_further(part, &stretch);
    }
    for (int h = 0; num == 0 && h < a->num_heads; ++h) a->lse[h] = -INFINITY;
    if (num == 0)
        memset(a->o, 0, (size_t)(a->num_heads * l->config.side[1].head_dim) * sizeof *a->o);
}

// Sink and tail, and the kept rows whose codes the query would see: all at once, where a score does
// not depend on its row's position.
KVL__FN void kvl__attend_windows_and_kept(const kvl__part* part, kvl__attend_args* a)
{
    const kvl__config* c = &part->job->l->config;
    const kvl__query* query = part->query;
    const kvl__windows w = kvl__windows_of(part->job->l, query->s, part->head);
    kvl__attend_stretch(part, a);
    int64_t i = kvl__kept_before(part->job->l, query->s, c->sink_len + query->v.page_begin);
    const int64_t end =
        kvl__kept_before(part->job->l, query->s, c->sink_len + query->v.page_end);
    const int64_t* positions = kvl__kept_positions(part->job->l, query->s);
    for (int64_t num; i < end; i += num) {
        num = a->slopes ? 1 : end - i;
        memset(a->windows, 0, sizeof a->windows);
        a->windows[0].k = w.kept[0] + i * c->side[0].head_dim;
        a->windows[0].v = w.kept[1] + i * c->side[1].head_dim;
        a->windows[0].num_rows = num;
        a->windows[0].position = positions[i] - query->position;
        kvl__attend_further(part, a);
    }
}

// One part of one query row and KV head; whoever finishes the last part merges.
KVL__FN void kvl__attend_item(void* arg, int64_t item, int thread)
{
    const kvl__attend_job* job = (const kvl__attend_job*)arg;
    kvl_cache* cache = job->cache;
    const kvl__config* c = &job->l->config;
    const kvl__query* query = kvl__query_of_item(job, item);
    const int num_parts = query->v.num_splits + 1;
    const int64_t local = item - query->first_item, number = query - cache->wave;
    const int head = (int)(local / num_parts), number_of_part = (int)(local % num_parts);
    unsigned char* scratch = cache->thread_scratch + thread * cache->thread_bytes;
    float* q = (float*)(void*)(scratch + KVL__PREPARED_BYTES);
    float* acc = (float*)(void*)((unsigned char*)q + kvl__round_up(4 * cache->q_floats, 64));
    const kvl__part part = { job, query, head, (kvl__prepared*)(void*)scratch, q, acc };
    kvl__attend_args a;
    kvl__attend_args_of(job, query, head, number_of_part, &a);
    a.o = cache->o_part + item * cache->part_floats;
    a.lse = cache->lse_part + item * c->num_heads;
    a.scratch = (unsigned char*)acc + kvl__round_up(4 * cache->acc_floats, 64);
    if (query->s->now.kept == 0) kvl__attend_stretch(&part, &a);
    else if (a.pages) kvl__attend_between_kept(&part, &a);
    else kvl__attend_windows_and_kept(&part, &a);
    int32_t* done = &cache->done[number * c->num_kv_heads + head];
    if (__atomic_add_fetch(done, 1, __ATOMIC_ACQ_REL) == num_parts)
        kvl__merge(job, query, head, item - number_of_part, acc);
}

// Small waves are not worth waking a thread for.
KVL__FN void kvl__attend_wave(kvl__attend_job* job)
{
    const int64_t heads = job->l->config.num_kv_heads, items = job->num_items;
    if (kvl__on_device(job->cache)) {
        kvl__device_attend_wave(job);
        return;
    }
    if (job->num_queries == 0) return;
    memset(job->cache->done, 0, (size_t)(job->num_queries * heads) * sizeof(int32_t));
    ++job->cache->num_waves;
    if (job->rows_read * heads < 64)
        for (int64_t i = 0; i < items; ++i) kvl__attend_item(job, i, 0);
    else
        kvl__parallel(job->cache->ctx, items, kvl__attend_item, job);
    job->num_queries = job->num_items = job->rows_read = 0;
}

// Adds the query row `row` at a position of a sequence, which sees rows of [begin, end); full waves
// run.
KVL__FN void kvl__attend_add(kvl__attend_job* job, const kvl__seq_layer* s, int64_t position,
                             int64_t begin, int64_t end, int64_t row)
{
    kvl_cache* cache = job->cache;
    if (kvl__on_device(cache)) {
        kvl__query query;
        memset(&query, 0, sizeof query);
        query.s = s;
        query.row = row;
        query.position = position;
        query.begin = begin;
        query.end = end;
        kvl__device_attend_add(job, &query);
        return;
    }
    const int64_t window = job->l->desc.window_len;
    end = kvl__min_i64(end, position + 1);
    if (window) begin = kvl__max_i64(begin, position + 1 - window);
    const kvl__visible v = kvl__see(&job->l->config, &s->now, begin, end);
    const int64_t parts = job->l->config.num_kv_heads * (v.num_splits + 1);
    if (job->num_queries == KVL__WAVE_ROWS || job->num_items + parts > cache->max_parts)
        kvl__attend_wave(job);
    kvl__query* query = &cache->wave[job->num_queries++];
    kvl__restored_reach(cache, job->l, s, v.page_begin, v.page_end);
    query->s = s;
    query->v = v;
    query->row = row;
    query->position = position;
    query->first_item = job->num_items;
    job->num_items += parts;
    job->rows_read += kvl__max_i64(0, kvl__min_i64(end, s->now.rows) - begin);
}

KVL__FN int64_t kvl__q_len(const kvl_attend_desc* d, int i) { return d->q_lens ? d->q_lens[i] : 1; }

KVL__FN void kvl__attend_all(kvl__attend_job* job, const kvl_attend_desc* d)
{
    int64_t row = 0;
    for (int i = 0; i < d->num_seqs; ++i) {
        const kvl__seq_layer* s = &kvl__seq_find(job->cache, d->seqs[i])->layers[d->layer];
        const int64_t q_len = kvl__q_len(d, i);
        const int64_t first = d->q_positions ? d->q_positions[i] : s->now.rows - q_len;
        const int64_t begin = d->row_begins ? d->row_begins[i] : 0;
        const int64_t end = d->row_ends ? d->row_ends[i] : INT64_MAX;
        for (int64_t j = 0; j < q_len; ++j, ++row)
            kvl__attend_add(job, s, first + j, begin, end, row);
    }
    kvl__attend_wave(job);
}

// Refuses queries at positions [position, position + q_len) whose window reaches into rows that
// were released.  The first one that sees any row after the sink sees the most of them.
KVL__FN kvl_status kvl__check_released(const kvl_cache* cache, const kvl__layer* l,
                                       const kvl__extent* now, int i, int64_t position,
                                       int64_t q_len)
{
    const int64_t sink = l->config.sink_len, last = position + q_len - 1;
    position = kvl__min_i64(last, kvl__max_i64(position, sink + now->dropped));
    const int64_t end = kvl__min_i64(position + 1, now->rows);
    const int64_t first = kvl__max_i64(position + 1 - l->desc.window_len, sink + now->dropped);
    KVL__REQUIRE(cache->ctx, now->released == 0 || first >= end || first >= sink + now->released,
                 KVL_BAD_ARGUMENT, "seqs[%d]: the query at position %lld sees rows from %lld on, "
                 "and those before %lld were released (release_windows)", i,
                 (long long)position, (long long)first, (long long)(sink + now->released));
    return KVL_OK;
}

KVL__FN kvl_status kvl__check_attend_seqs(const kvl_cache* cache, const kvl_attend_desc* d,
                                          int64_t* num_rows)
{
    *num_rows = 0;
    for (int i = 0; i < d->num_seqs; ++i) {
        kvl__seq* seq;
        const int64_t q_len = kvl__q_len(d, i);
        KVL__TRY(kvl__need_seq(cache, d->seqs[i], &seq));
        KVL__REQUIRE(cache->ctx, q_len >= 0, KVL_BAD_ARGUMENT,
                     "q_lens[%d] = %lld: must not be negative", i, (long long)q_len);
        const kvl__extent* now = &seq->layers[d->layer].now;
        const int64_t rows = now->rows;
        KVL__REQUIRE(cache->ctx, d->q_positions || q_len <= rows || (rows == 0 && q_len == 1),
                     KVL_BAD_ARGUMENT, "q_lens[%d] = %lld: the sequence has %lld rows; give "
                     "q_positions to query beyond them", i, (long long)q_len, (long long)rows);
        KVL__REQUIRE(cache->ctx, !d->q_positions || (d->q_positions[i] >= 0 &&
                     d->q_positions[i] < (int64_t)1 << 40), KVL_BAD_ARGUMENT,
                     "q_positions[%d] = %lld: must be 0 to 2^40", i,
                     (long long)(d->q_positions ? d->q_positions[i] : 0));
        const int64_t begin = d->row_begins ? d->row_begins[i] : 0;
        const int64_t end = d->row_ends ? d->row_ends[i] : INT64_MAX;
        KVL__REQUIRE(cache->ctx, begin >= 0 && end >= begin, KVL_BAD_ARGUMENT,
                     "row_begins[%d] = %lld, row_ends[%d] = %lld: must be a range of rows", i,
                     (long long)begin, i, (long long)end);
        KVL__TRY(kvl__restored_room((kvl_cache*)(uintptr_t)cache, &cache->layers[d->layer], seq,
                                    now->quantized));
        if (q_len > 0)
            KVL__TRY(kvl__check_released(cache, &cache->layers[d->layer], now, i, d->q_positions
                                         ? d->q_positions[i] : rows - q_len, q_len));
        *num_rows += q_len;
    }
    return KVL_OK;
}

KVL__FN kvl_status kvl__check_attend_desc(const kvl_cache* cache, const kvl_attend_desc* d,
                                          const kvl__layer** l)
{
    KVL__REQUIRE(cache->ctx, d, KVL_BAD_ARGUMENT, "kvl_attend_desc = NULL: must be given");
    KVL__REQUIRE(cache->ctx, d->end == 0, KVL_BAD_ARGUMENT,
                 "kvl_attend_desc.end = %u: must be 0: zero the whole desc first", d->end);
    KVL__TRY(kvl__need_layer(cache, d->layer, l));
    KVL__REQUIRE(cache->ctx, d->partial == 0 || d->partial == 1, KVL_BAD_ARGUMENT,
                 "partial = %d: must be 0 or 1", d->partial);
    KVL__REQUIRE(cache->ctx, d->prefill == 0 || d->prefill == 1, KVL_BAD_ARGUMENT,
                 "prefill = %d: must be 0 or 1", d->prefill);
    return kvl__check_batch(cache, d->num_seqs, d->seqs);
}

// A query that is no number would come out as no rows: o = 0, lse = -inf.
KVL__FN kvl_status kvl__check_queries(const kvl__attend_job* job, int64_t num_rows, int q_heads)
{
    const int dim = job->l->config.side[0].head_dim;
    int beyond = 0;
    for (int64_t row = 0; row < num_rows; ++row) {
        for (int head = 0; head < q_heads; ++head) {
            const unsigned char* q =
                job->q.data + row * job->q.row_bytes + head * job->q.head_bytes;
            const int channel = kvl__row_check(q, job->q.type, dim, 1, &beyond);
            KVL__REQUIRE(job->cache->ctx, channel < 0, KVL_BAD_ARGUMENT,
                         "layer %d: q = %g in query row %lld of the batch, head %d, channel %d: "
                         "queries must be finite", (int)(job->l - job->cache->layers),
                         (double)kvl__load_value(q, job->q.type, channel < 0 ? 0 : channel),
                         (long long)row, head, channel);
        }
    }
    return KVL_OK;
}

// Fills a job whose layer is set; num_rows: query rows.
KVL__FN kvl_status kvl__attend_job_of(kvl_cache* cache, const kvl_attend_desc* d,
                                      int64_t num_rows, kvl__attend_job* job)
{
    const kvl__config* c = &job->l->config;
    const int q_heads = c->num_heads * c->num_kv_heads;
    kvl_const_rows o;
    o.data = d->o.data;
    o.type = d->o.type;
    o.row_stride = d->o.row_stride;
    o.head_stride = d->o.head_stride;
    KVL__TRY(kvl__view_of(cache->ctx, "q", &d->q, q_heads, c->side[0].head_dim, &job->q));
    KVL__TRY(kvl__view_of(cache->ctx, "o", &o, q_heads, c->value_dim, &job->o));
    KVL__REQUIRE(cache->ctx, d->o.data != d->q.data, KVL_BAD_ARGUMENT,
                 "o.data = q.data: the output must not overlap the queries");
    job->cache = cache;
    job->lse = d->lse;
    job->partial = d->partial;
    job->max_parts = 1;
    job->absolute = d->q_positions != NULL;
    if (kvl__on_device(cache)) return KVL_OK;
    return kvl__check_queries(job, num_rows, q_heads);
}

KVL__PUBLIC kvl_status kvl_attend(kvl_cache* cache, const kvl_attend_desc* d)
{
    kvl__attend_job job;
    int64_t num_rows;
    memset(&job, 0, sizeof job);
    KVL__USE_CACHE(cache);
    KVL__TRY(kvl__check_attend_desc(cache, d, &job.l));
    KVL__REQUIRE(cache->ctx, !d->prefill, KVL_BAD_ARGUMENT,
                 "prefill = 1: must be 0: is of kvl_append_attend, with which rows come");
    KVL__TRY(kvl__check_attend_seqs(cache, d, &num_rows));
    if (num_rows == 0) return KVL_OK;
    KVL__TRY(kvl__attend_job_of(cache, d, num_rows, &job));
    if (kvl__on_device(cache)) KVL__TRY(kvl__device_begin(cache, d->stream, &job.captured));
    if (job.captured) KVL__TRY(kvl__device_check_capture(cache, d));
    kvl__attend_all(&job, d);
    return kvl__device_end(cache);
}

// READING BACK

struct kvl__restore_job {
    const kvl_cache*     cache;
    const kvl__layer*    l;
    const kvl__seq_layer* s;
    kvl__view            out;
    int                  side;
    int64_t              first, num;
};

// Rows [row, row + num) after the sink, of one page.
KVL__FN void kvl__decode_side(const kvl__layer* l, const kvl__seq_layer* s, int side, int head,
                              int64_t row, int num, kvl__decode_args* a)
{
    const int64_t page_size = l->config.page_size;
    a->codec = &l->config.side[side];
    a->tables = kvl__record_of(l, side, head);
    a->page = kvl__page_at(s, row / page_size) + kvl__side_at(l, head, side);
    a->page_size = l->config.page_size;
    a->first_row = (int32_t)(row % page_size);
    a->num_rows = num;
    const kvl__codec* c = &l->config.side[side];
    float* rows = a->rows;
    if (kvl__is_across(c) || kvl__is_predicted(c)) a->rows = NULL;
    (side ? l->program.decode_values : l->program.decode_keys)(a);
    a->rows = rows;
    if (rows && kvl__is_across(c)) {
        const kvl__across all = kvl__across_of(l);
        kvl__across_decode(&all, kvl__page_at(s, row / page_size), a->page_size, head,
                           a->first_row, num, rows);
    }
    for (int r = 0; rows && kvl__is_predicted(c) && r < num; ++r)
        kvl__restored_row(l, s, side, head, row + r, rows + r * c->head_dim);
    if (kvl__sketches(c)) kvl__sketch_restore(a);
    for (int r = 0; a->rows && kvl__is_unrotated(c) && r < num; ++r)
        kvl__turn_row(l->turns, c->head_dim, l->config.sink_len + row + r, 1,
                      a->rows + r * c->head_dim);
    for (int r = 0; a->rows && kvl__shifts_by_position(c) && r < num; ++r) {
        float shift[KVL__MAX_HEAD_DIM];
        kvl__shift_at(c, a->tables, l->config.sink_len + row + r, shift);
        for (int i = 0; i < c->head_dim; ++i) a->rows[r * c->head_dim + i] += shift[i];
    }
}

enum { KVL__DECODE_ROWS = 8 };     // at a time, on the stack

// The rows [row, row + num) of one page and head as 16 bits.
KVL__FN void kvl__restore_rows(const kvl__layer* l, const kvl__seq_layer* s, int side, int head,
                               int64_t row, int num, uint16_t* to)
{
    const kvl__codec* c = &l->config.side[side];
    float x[KVL__DECODE_ROWS * KVL__MAX_HEAD_DIM];
    kvl__decode_args a;
    memset(&a, 0, sizeof a);
    a.rows = x;
    kvl__decode_side(l, s, side, head, row, num, &a);
    kvl__f32_to_rows((const unsigned char*)x, num * c->head_dim, c->rows, to);
}

// Rows of the pages that become a tail's first ones.
typedef struct kvl__restored_tail {
    const kvl__layer*     l;
    const kvl__seq_layer* s;
    int64_t               row, num;
} kvl__restored_tail;

// Item: one head.
KVL__FN void kvl__restore_tail_item(void* arg, int64_t item, int thread)
{
    const kvl__restored_tail* t = (const kvl__restored_tail*)arg;
    const kvl__layer* l = t->l;
    const kvl__windows w = kvl__windows_of(l, t->s, (int)item);
    (void)thread;
    for (int side = 0; side < l->config.num_stored; ++side)
        for (int64_t done = 0, some; done < t->num; done += some) {
            const int64_t in_page = (t->row + done) % l->config.page_size;
            some = kvl__min_i64(KVL__DECODE_ROWS, l->config.page_size - in_page);
            some = kvl__min_i64(some, t->num - done);
            kvl__restore_rows(l, t->s, side, (int)item, t->row + done, (int)some,
                              w.tail[side] + done * l->config.side[side].head_dim);
        }
    kvl__kept_return(l, t->s, (int)item, t->row, t->num);
}

// The rows [row, row + num) of the pages, of one group along tokens, become the tail's first ones.
KVL__FN void kvl__restore_tail(kvl_cache* cache, const kvl__layer* l, const kvl__seq_layer* s,
                               int64_t row, int64_t num)
{
    if (kvl__on_device(cache)) {
        kvl__device_restore_tail(cache, l, s, row, num);
        return;
    }
    kvl__restored_tail tail = { l, s, row, num };
    const int heads = l->config.num_kv_heads;
    if (num * heads < 64)                                   // less work than waking a thread
        for (int head = 0; head < heads; ++head) kvl__restore_tail_item(&tail, head, 0);
    else
        kvl__parallel(cache->ctx, heads, kvl__restore_tail_item, &tail);
}

// Item: one row and head.
KVL__FN void kvl__restore_row(const kvl__restore_job* job, int64_t row, int head)
{
    const kvl__config* c = &job->l->config;
    const kvl__codec* codec = &c->side[job->side];
    const int dim = job->side ? c->value_dim : codec->head_dim;
    const int64_t sink = kvl__min_i64(job->s->now.rows, c->sink_len);
    const int64_t quantized = job->s->now.quantized;
    unsigned char* to = (unsigned char*)(uintptr_t)job->out.data +
                        (row - job->first) * job->out.row_bytes + head * job->out.head_bytes;
    const int64_t kept = kvl__kept_at(job->l, job->s, row);
    float x[KVL__MAX_HEAD_DIM];
    if (row >= sink && row < sink + quantized && kept < 0) {
        kvl__decode_args a;
        memset(&a, 0, sizeof a);
        a.rows = x;
        kvl__decode_side(job->l, job->s, job->side, head, row - sink, 1, &a);
    } else {
        const kvl__windows w = kvl__windows_of(job->l, job->s, head);
        const uint16_t* from = kept >= 0
            ? w.kept[job->side] + kept * codec->head_dim : row < sink
            ? w.sink[job->side] + row * codec->head_dim
            : w.tail[job->side] + (row - sink - quantized) * codec->head_dim;
        for (int i = 0; i < dim; ++i) x[i] = kvl__row_to_f32(from[i], codec->rows);
    }
    for (int i = 0; i < dim; ++i) kvl__store_value(to, job->out.type, i, x[i]);
}

KVL__FN void kvl__restore_item(void* arg, int64_t item, int thread)
{
    const kvl__restore_job* job = (const kvl__restore_job*)arg;
    (void)thread;
    for (int head = 0; head < job->l->config.num_kv_heads; ++head)
        kvl__restore_row(job, job->first + item, head);
}

KVL__PUBLIC kvl_status kvl_restore(kvl_cache* cache, int layer, kvl_seq handle, int64_t first,
                                   int64_t num, const kvl_rows* k, const kvl_rows* v)
{
    kvl__restore_job jobs[2];
    kvl__seq* seq;
    const kvl_rows* const rows[2] = { k, v };
    KVL__USE_CACHE(cache);
    memset(jobs, 0, sizeof jobs);
    KVL__TRY(kvl__need_layer(cache, layer, &jobs[0].l));
    KVL__TRY(kvl__need_seq(cache, handle, &seq));
    const kvl__seq_layer* s = &seq->layers[layer];
    const int64_t rows_in = s->now.rows, gone = kvl__gone_rows(&s->now);
    const int64_t sink = jobs[0].l->config.sink_len;
    KVL__REQUIRE(cache->ctx, first >= 0 && num >= 0 && first <= rows_in && num <= rows_in - first,
                 KVL_BAD_ARGUMENT, "rows %lld and %lld more: the sequence has %lld",
                 (long long)first, (long long)num, (long long)rows_in);
    KVL__REQUIRE(cache->ctx, gone == 0 || first >= sink + gone || first + num <= sink || num == 0,
                 KVL_BAD_ARGUMENT, "rows %lld and %lld more: those from %lld to %lld are dropped",
                 (long long)first, (long long)num, (long long)sink, (long long)(sink + gone - 1));
    for (int side = 0; side < 2; ++side) {
        kvl_const_rows out;
        jobs[side].cache = cache;
        jobs[side].l = jobs[0].l;
        jobs[side].s = s;
        jobs[side].side = side;
        jobs[side].first = first;
        jobs[side].num = num;
        if (!rows[side] || !rows[side]->data) continue;
        out.data = rows[side]->data;
        out.type = rows[side]->type;
        out.row_stride = rows[side]->row_stride;
        out.head_stride = rows[side]->head_stride;
        const kvl__config* c = &jobs[0].l->config;
        KVL__TRY(kvl__view_of(cache->ctx, side ? "v" : "k", &out, c->num_kv_heads,
                              side ? c->value_dim : c->side[0].head_dim, &jobs[side].out));
    }
    KVL__TRY(kvl__restored_room(cache, jobs[0].l, seq, s->now.quantized));
    kvl__restored_reach(cache, jobs[0].l, s, kvl__max_i64(first - sink, gone),
                        kvl__min_i64(first + num - sink, s->now.quantized));
    for (int side = 0; side < 2; ++side) {
        if (!jobs[side].out.data) continue;
        if (kvl__on_device(cache)) KVL__TRY(kvl__device_restore_side(cache, &jobs[side]));
        else kvl__parallel(cache->ctx, num, kvl__restore_item, &jobs[side]);
    }
    return KVL_OK;
}

KVL__FN void kvl__read_all_codes(const kvl__restore_job* job, int head, kvl_codes* out)
{
    const kvl__codec* c = &job->l->config.side[job->side];
    const int64_t page_size = job->l->config.page_size;
    int64_t groups = 0;
    for (int64_t done = 0; done < job->num;) {
        const int64_t row = job->first + done;
        const int num = (int)kvl__min_i64(job->num - done, page_size - row % page_size);
        kvl__decode_args a;
        memset(&a, 0, sizeof a);
        if (out->codes) a.codes = out->codes + done * c->head_dim;
        if (out->scales) a.scales = out->scales + groups;
        if (out->offsets) a.offsets = out->offsets + groups;
        if (out->choices && out->num_choices) a.choices = out->choices + done / kvl__unit_rows(c);
        kvl__decode_side(job->l, job->s, job->side, head, row, num, &a);
        if (c->group_size) groups += kvl__num_groups(c, num);
        done += num;
    }
}

KVL__PUBLIC kvl_status kvl_read_codes(kvl_cache* cache, int layer, kvl_seq handle, int kv_head,
                                      int is_value, int64_t first, int64_t num, kvl_codes* out)
{
    kvl__restore_job job;
    kvl__seq* seq;
    KVL__USE_CACHE(cache);
    memset(&job, 0, sizeof job);
    KVL__TRY(kvl__need_layer(cache, layer, &job.l));
    KVL__TRY(kvl__need_seq(cache, handle, &seq));
    KVL__REQUIRE(cache->ctx, out, KVL_BAD_ARGUMENT, "out = NULL: must be given");
    KVL__REQUIRE(cache->ctx, kv_head >= 0 && kv_head < job.l->config.num_kv_heads, KVL_BAD_ARGUMENT,
                 "kv_head = %d: must be 0 to %d", kv_head, job.l->config.num_kv_heads - 1);
    KVL__REQUIRE(cache->ctx, !is_value || job.l->config.num_stored == 2, KVL_BAD_ARGUMENT,
                 "is_value = %d: values are in the keys (values_in_keys)", is_value);
    job.cache = cache;
    job.s = &seq->layers[layer];
    job.side = is_value != 0;
    job.first = first;
    job.num = num;
    const kvl__codec* c = &job.l->config.side[job.side];
    const int64_t quantized = job.s->now.quantized, gone = kvl__gone_rows(&job.s->now);
    KVL__REQUIRE(cache->ctx,
                 first >= 0 && num >= 0 && first <= quantized && num <= quantized - first,
                 KVL_BAD_ARGUMENT, "rows %lld and %lld more: %lld are quantized", (long long)first,
                 (long long)num, (long long)quantized);
    KVL__REQUIRE(cache->ctx, first >= gone || num == 0, KVL_BAD_ARGUMENT,
                 "rows %lld and %lld more: the first %lld are dropped", (long long)first,
                 (long long)num, (long long)gone);
    const int64_t unit = c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL ? c->group_size : 1;
    KVL__REQUIRE(cache->ctx, first % unit == 0 && (num % unit == 0 || first + num == quantized),
                 KVL_BAD_ARGUMENT, "rows %lld and %lld more: must be multiples of %lld, a group "
                 "along tokens, or end with the last one", (long long)first, (long long)num,
                 (long long)unit);
    const int64_t groups = kvl__num_groups(c, num);
    KVL__REQUIRE(cache->ctx, groups <= INT_MAX, KVL_BAD_ARGUMENT,
                 "rows %lld and %lld more: too many groups for one call", (long long)first,
                 (long long)num);
    out->num_groups = (int)groups;
    out->num_choices =
        c->words[KVL__STAGE_CHOOSE] == KVL__CHOOSE_NONE ? 0 : (int)((num + unit - 1) / unit);
    if (kvl__on_device(cache)) return kvl__device_read_codes(cache, &job, kv_head, out);
    kvl__read_all_codes(&job, kv_head, out);
    return KVL_OK;
}

// What is declared above for a device.
#include "kvl_device.h"

#endif
