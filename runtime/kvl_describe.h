// kvl_describe.h -- what a cache is and what it takes: statistics, estimate, description.

#ifndef KVL_DESCRIBE_H
#define KVL_DESCRIBE_H

#include "kvl_device.h"
#include "kvl_ops.h"

// STATISTICS

KVL__PUBLIC kvl_status kvl_cache_stats(const kvl_cache* cache, kvl_stats* out)
{
    KVL__USE_CACHE(cache);
    KVL__REQUIRE(cache->ctx, out, KVL_BAD_ARGUMENT, "out = NULL: must be given");
    memset(out, 0, sizeof *out);
    out->bytes = cache->bytes;
    out->peak_bytes = cache->peak_bytes;
    out->page_bytes = cache->page_bytes;
    out->window_bytes = cache->window_bytes;
    out->other_bytes = cache->bytes - cache->page_bytes - cache->window_bytes;
    out->num_seqs = cache->num_seqs;
    for (int slot = 0; slot < cache->capacity; ++slot) {
        const kvl__seq* seq = cache->slots[slot];
        for (int i = 0; seq && i < cache->num_layers; ++i) {
            const kvl__layer* l = &cache->layers[i];
            if (!l->active) continue;
            const int64_t dims = kvl__stored_dims(&l->config);
            const kvl__seq_layer* s = &seq->layers[i];
            const int64_t gone = kvl__gone_rows(&s->now);
            out->num_rows += s->now.rows - gone;
            out->num_quantized += kvl__max_i64(0, s->now.quantized - gone);
            out->f16_bytes +=
                (uint64_t)((s->now.rows - gone) * dims * l->config.num_kv_heads * 2);
            if (s->table) out->saved_bytes += (uint64_t)s->table->num * l->page_bytes;
        }
    }
    // What sequences use, less what is there for them.
    out->prefix_bytes = cache->prefix.alone_bytes;
    out->saved_bytes -= cache->page_bytes - cache->prefix.alone_bytes;
    return KVL_OK;
}

// Pages of a sequence of num_rows rows, and of these the ones that it still has.
KVL__FN int64_t kvl__estimate_pages(const kvl__layer* l, int64_t num_rows, int64_t* left)
{
    const int64_t quantized = kvl__quantized_rows(&l->config, num_rows);
    const int64_t pages = kvl__num_pages(&l->config, quantized);
    const int64_t released = kvl__released_rows(&l->config, num_rows, quantized,
                                                l->desc.window_len, l->release_slack);
    *left = pages - released / l->config.page_size;
    return pages;
}

// Bytes of the lists of uses of all sequences' pages.
KVL__FN uint64_t kvl__estimate_uses(const kvl_cache* cache, int num_seqs, int64_t num_rows)
{
    uint64_t bytes = 0;
    for (int i = 0; i < cache->num_layers && !cache->num_pages; ++i) {
        int64_t left = 0;
        if (cache->layers[i].active) kvl__estimate_pages(&cache->layers[i], num_rows, &left);
        bytes += ((uint64_t)num_seqs * (uint64_t)left + KVL__USES - 1) / KVL__USES *
                 sizeof(kvl__uses_list);
    }
    return bytes;
}

// Bytes of one sequence of num_rows rows in every layer.
KVL__FN uint64_t kvl__estimate_seq(const kvl_cache* cache, int64_t num_rows)
{
    uint64_t bytes = kvl__seq_bytes(cache) + kvl__records_of_seq_bytes(cache);
    int64_t list = 0;                                     // of pages that are handed in
    for (int i = 0; i < cache->num_layers; ++i) {
        const kvl__layer* l = &cache->layers[i];
        int64_t left;
        if (!l->active) continue;
        const int64_t pages = kvl__estimate_pages(l, num_rows, &left);
        bytes += kvl__window_alloc_bytes(cache, l);
        if (cache->num_pages) list = kvl__max_i64(list, pages);
        else bytes += (uint64_t)left * kvl__page_alloc_bytes(l);
        const int64_t entries = kvl__table_entries(left);
        bytes += kvl__table_bytes(entries) + kvl__device_table_bytes(cache, entries);
    }
    bytes += (uint64_t)list * sizeof(int32_t);
    return bytes + kvl__restored_bytes(cache, kvl__restored_most(cache, num_rows));
}

KVL__FN kvl_status kvl__estimate_cache(kvl_cache* cache, const kvl_cache_desc* desc, int num_seqs,
                                       int64_t num_rows, uint64_t* bytes)
{
    cache->num_layers = desc->num_layers;
    KVL__TRY(kvl__layers_configure(cache, desc));
    *bytes = sizeof *cache + (uint64_t)cache->num_layers * sizeof *cache->layers;
    for (int i = 0; i < cache->num_layers; ++i)
        *bytes += cache->layers[i].record_bytes + cache->layers[i].head_bytes +
                  cache->layers[i].turns_bytes + cache->layers[i].pool_bytes +
                  cache->layers[i].pool_device_bytes + cache->layers[i].predictor_bytes;
    *bytes += kvl__scratch_sizes(cache, kvl_context_threads(cache->ctx));
    *bytes += (uint64_t)kvl__slots_for(num_seqs) * sizeof *cache->slots;
    const uint64_t seq_bytes = kvl__estimate_seq(cache, num_rows);
    KVL__REQUIRE(cache->ctx, num_seqs == 0 || seq_bytes < (UINT64_MAX >> 1) / (uint64_t)num_seqs,
                 KVL_BAD_ARGUMENT, "num_seqs = %d, num_rows = %lld: their bytes are no number of "
                 "64 bits", num_seqs, (long long)num_rows);
    *bytes += (uint64_t)num_seqs * seq_bytes + kvl__estimate_uses(cache, num_seqs, num_rows);
    if (!kvl__on_device(cache)) return KVL_OK;
    for (int i = 0; i < cache->num_layers; ++i)
        *bytes += kvl__device_records_bytes(&cache->layers[i]) + cache->layers[i].head_bytes;
    *bytes += kvl__device_workspace_bytes(cache) + KVL__FAULTS_BYTES;
    return KVL_OK;
}

KVL__PUBLIC kvl_status kvl_estimate(kvl_context* ctx, const kvl_cache_desc* desc, int num_seqs,
                                    int64_t num_rows, uint64_t* bytes)
{
    kvl_cache cache;
    KVL__TRY(kvl__check_context(ctx));
    KVL__TRY(kvl__check_cache_desc(ctx, desc));
    KVL__REQUIRE(ctx, bytes, KVL_BAD_ARGUMENT, "bytes = NULL: must be given");
    KVL__REQUIRE(ctx, num_seqs >= 0 && num_seqs <= 1 << 20, KVL_BAD_ARGUMENT,
                 "num_seqs = %d: must be 0 to %d", num_seqs, 1 << 20);
    KVL__REQUIRE(ctx, num_rows >= 0 && num_rows < (int64_t)1 << 40, KVL_BAD_ARGUMENT,
                 "num_rows = %lld: must be at least 0 and below 2^40", (long long)num_rows);
    memset(&cache, 0, sizeof cache);
    cache.ctx = ctx;
    const size_t layer_bytes = (size_t)desc->num_layers * sizeof *cache.layers;
    cache.layers = (kvl__layer*)kvl__alloc_zeroed(ctx, layer_bytes);
    KVL__REQUIRE(ctx, cache.layers, KVL_NO_MEMORY, "the allocator has no %zu bytes", layer_bytes);
    const kvl_status status = kvl__estimate_cache(&cache, desc, num_seqs, num_rows, bytes);
    kvl__free(ctx, cache.layers, layer_bytes);
    return status;
}

// DESCRIPTION

KVL__FN void kvl__layer_info_of(const kvl__config* c, int generated, kvl_layer_info* out)
{
    memset(out, 0, sizeof *out);
    kvl__canonical_spec(c, out->spec, sizeof out->spec);
    out->k_bits = kvl__codec_bits(&c->side[0]);
    out->v_bits = c->num_stored == 2 ? kvl__codec_bits(&c->side[1]) : 0.0;
    out->auto_bits = c->auto_bits / 1000.0;
    if (c->auto_bits) {
        out->k_bits = out->auto_bits;
        out->v_bits = c->num_stored == 2 ? out->auto_bits : 0.0;
    }
    out->sink_len = c->sink_len;
    out->recent_len = c->recent_len;
    out->kept_len = c->kept_len;
    out->chunk_len = c->chunk_len;
    out->page_size = c->page_size;
    out->uses_generated = generated;
    out->needs_calibration = c->auto_bits || kvl__records_bytes(c) > 0 || kvl__predicts(c) ||
                             (c->num_stored == 2 && kvl__folds_tables(&c->side[1]));
    if (c->num_stored == 2 && c->side[1].words[KVL__STAGE_TRANSFORM] != KVL__TRANSFORM_NONE)
        out->value_basis = kvl__is_folded(&c->side[1]) ? KVL_BASIS_FOLDED : KVL_BASIS_OF_CACHE;
}

KVL__PUBLIC kvl_status kvl_cache_layer_info(const kvl_cache* cache, int layer, kvl_layer_info* out)
{
    const kvl__layer* l;
    KVL__USE_CACHE(cache);
    KVL__REQUIRE(cache->ctx, out, KVL_BAD_ARGUMENT, "out = NULL: must be given");
    KVL__TRY(kvl__need_layer(cache, layer, &l));
    kvl__layer_info_of(&l->config, l->generated, out);
    return KVL_OK;
}

KVL__PUBLIC kvl_status kvl_spec_check(kvl_context* ctx, const kvl_layer_desc* layer,
                                      kvl_layer_info* out)
{
    kvl__config config;
    KVL__TRY(kvl__check_context(ctx));
    KVL__REQUIRE(ctx, layer, KVL_BAD_ARGUMENT, "layer = NULL: must be given");
    KVL__TRY(kvl__config_parse(ctx, -1, layer, NULL, &config));
    if (out) kvl__layer_info_of(&config, 0, out);
    return KVL_OK;
}

// Text that is counted beyond the end of its buffer.
typedef struct kvl__writer {
    char*  text;
    size_t size, length;
} kvl__writer;

__attribute__((format(printf, 2, 3)))
KVL__FN void kvl__write(kvl__writer* w, const char* format, ...)
{
    const size_t at = w->length < w->size ? w->length : w->size;
    va_list args;
    va_start(args, format);
    const int n =
        vsnprintf(w->text ? w->text + at : NULL, w->text ? w->size - at : 0, format, args);
    va_end(args);
    if (n > 0) w->length += (size_t)n;
}

KVL__FN void kvl__write_stages(kvl__writer* w, const kvl__codec* c, const char* name)
{
    kvl__write(w, "  %-6s %g bits a value:", name, kvl__codec_bits(c));
    for (int i = 0; i < KVL__NUM_STAGES; ++i) {
        if (strcmp(kvl__word_of(c, i)->name, "none") == 0) continue;
        kvl__write(w, " %s=%s", kvl__stages[i].name, kvl__word_of(c, i)->name);
        if (c->numbers[i]) kvl__write(w, "%d", c->numbers[i]);
    }
    if (c->group_size) kvl__write(w, " group=%d", c->group_size);
    kvl__write(w, " code=%d\n", c->bits);
}

KVL__FN void kvl__write_layer(kvl__writer* w, const kvl__layer* l)
{
    const kvl__config* c = &l->config;
    char spec[KVL__SPEC_BYTES];
    kvl__canonical_spec(c, spec, sizeof spec);
    kvl__write(w, " %s\n", spec);
    kvl__write(w, "  heads  %d query, %d KV, head_dim %d, %d; softmax_scale %g", c->num_heads *
               c->num_kv_heads, c->num_kv_heads, c->side[0].head_dim, c->value_dim,
               (double)l->softmax_scale);
    if (l->desc.soft_cap > 0) kvl__write(w, "; soft_cap %g", (double)l->desc.soft_cap);
    if (l->desc.window_len > 0) kvl__write(w, "; sliding window %d", l->desc.window_len);
    if (l->release_slack > 0) kvl__write(w, ", the past is released");
    kvl__write(w, "\n");
    kvl__write_stages(w, &c->side[0], "keys");
    if (c->num_stored == 2) kvl__write_stages(w, &c->side[1], "values");
    else kvl__write(w, "  values  the first %d channels of the keys\n", c->value_dim);
    kvl__write(w, "  rows   sink %d and recent %d in %s, chunk %d, page %d of %llu bytes",
               c->sink_len, c->recent_len, c->side[0].rows ? "bf16" : "f16", c->chunk_len,
               c->page_size, (unsigned long long)l->page_bytes);
    if (c->kept_len > 0) kvl__write(w, "; up to %d named rows stay in 16 bits", c->kept_len);
    if (l->keep_rows > 0)
        kvl__write(w, "; %lld quantized rows are kept in both forms", (long long)l->keep_rows);
    kvl__write(w, "\n");
    kvl__write(w, "  runs   %s kernels (%s)", l->generated ? "generated" : "reference", l->from);
    if (l->why[0]) kvl__write(w, ": %s", l->why);
    kvl__write(w, "\n");
}

KVL__FN int kvl__same_layer(const kvl__layer* a, const kvl__layer* b)
{
    return a->active == b->active && a->generated == b->generated &&
           memcmp(&a->config, &b->config, sizeof a->config) == 0 &&
           a->desc.soft_cap == b->desc.soft_cap && a->desc.window_len == b->desc.window_len &&
           a->softmax_scale == b->softmax_scale;
}

KVL__PUBLIC kvl_status kvl_describe(const kvl_cache* cache, char* text, size_t size, size_t* needed)
{
    static const char* const targets[] = { "auto", "reference", "host", "cuda" };
    kvl__writer w;
    KVL__USE_CACHE(cache);
    KVL__REQUIRE(cache->ctx, text || size == 0, KVL_BAD_ARGUMENT, "text = NULL: must be given");
    w.text = text;
    w.size = size;
    w.length = 0;
    const kvl_context* ctx = cache->ctx;
    kvl__write(&w, "kvloom %s, target %s, %s, %d threads, kernels in %s\n", KVLOOM_VERSION,
               targets[ctx->target], ctx->isa, kvl_context_threads(ctx),
               *kvl_disk_folder(ctx) ? kvl_disk_folder(ctx) : "memory");
    for (int i = 0; i < cache->num_layers;) {
        int end = i + 1;
        while (end < cache->num_layers && kvl__same_layer(&cache->layers[i], &cache->layers[end]))
            ++end;
        if (end - i == 1) kvl__write(&w, "layer %d:", i);
        else kvl__write(&w, "layers %d to %d:", i, end - 1);
        if (cache->layers[i].active) kvl__write_layer(&w, &cache->layers[i]);
        else kvl__write(&w, " no cache\n");
        i = end;
    }
    kvl__write(&w, "%d sequences; %llu bytes: %llu pages, %llu windows, %llu other\n",
               cache->num_seqs, (unsigned long long)cache->bytes,
               (unsigned long long)cache->page_bytes, (unsigned long long)cache->window_bytes,
               (unsigned long long)(cache->bytes - cache->page_bytes - cache->window_bytes));
    if (cache->prefix.max_bytes)
        kvl__write(&w, "prompts are remembered in units of %lld tokens after the first %lld: %lld "
                   "units, %llu of %llu bytes\n", (long long)cache->prefix.unit,
                   (long long)cache->prefix.sink_len, (long long)cache->prefix.num_nodes,
                   (unsigned long long)cache->prefix.bytes,
                   (unsigned long long)cache->prefix.max_bytes);
    if (needed) *needed = w.length + 1;
    return KVL_OK;
}

#endif
