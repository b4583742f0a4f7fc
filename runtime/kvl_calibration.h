// kvl_calibration.h -- a calibration: arrays in a file or in memory, and whether they fit a cache.
//
// Arrays, by name (docs/calibration.md):
//
//     layers                    f64 [num_layers, 7]: num_q_heads, num_kv_heads, head_dim,
//                               head_dim_v, softmax_scale, soft_cap, window_len
//     layer.<L>.rope            f64 [1 + head_dim / 2]: see kvl_rope.h
//     layer.<L>.k.<table>       f32 [num_kv_heads, ...]: what codecs read; v: of values
//     layer.<L>.stat.<name>     statistics (kvl_derive.h), which caches do not read
//
// A table of samples may have more of them than a codec asks for: the first ones serve.

#ifndef KVL_CALIBRATION_H
#define KVL_CALIBRATION_H

#include "kvl_disk.h"
#include "kvl_record.h"
#include "kvl_ref.h"
#include "kvl_rope.h"
#include "kvl_tensors.h"

#define KVL__CALIBRATION_FORMAT "kvloom calibration 1"

enum {
    KVL__SHAPE_Q_HEADS, KVL__SHAPE_KV_HEADS, KVL__SHAPE_DK, KVL__SHAPE_DV, KVL__SHAPE_SCALE,
    KVL__SHAPE_CAP, KVL__SHAPE_WINDOW, KVL__NUM_SHAPES
};

static __attribute__((unused)) const char* const kvl__shape_names[KVL__NUM_SHAPES] = {
    "num_q_heads", "num_kv_heads", "head_dim", "head_dim_v", "softmax_scale", "soft_cap",
    "window_len",
};

struct kvl_calibration {
    kvl__table_source source;          // first: see kvl_record.h
    kvl_context*      ctx;
    char*             name;            // path, or what it came from
    kvl__tensors      tensors;         // their parts are guarded by the context's lock
};

KVL__FN const kvl__tensor* kvl__calibration_find(const kvl_calibration* cal, const char* name,
                                                 kvl__tensor_type type)
{
    const kvl__tensor* one = kvl__tensors_find(&cal->tensors, name);
    return one && one->type == type && one->data ? one : NULL;
}

// TABLES

// [num_kv_heads, num, rest] of one [num_kv_heads, more, rest].
KVL__FN const float* kvl__calibration_part(kvl_calibration* cal, kvl__tensor* one, int64_t num)
{
    const int64_t heads = one->shape[0], all = one->shape[1];
    const int64_t rest = (int64_t)(one->bytes / sizeof(float)) / (heads * all);
    const size_t bytes = sizeof(kvl__tensor_part) + (size_t)(heads * num * rest) * sizeof(float);
    pthread_mutex_lock(&cal->ctx->lock);
    kvl__tensor_part* part = one->parts;
    while (part && part->num != num) part = part->next;
    if (!part) {
        part = (kvl__tensor_part*)kvl__alloc(cal->ctx, bytes);
        if (part) {
            float* to = (float*)(void*)(part + 1);
            for (int64_t h = 0; h < heads; ++h)
                memcpy(to + h * num * rest, (const float*)one->data + h * all * rest,
                       (size_t)(num * rest) * sizeof *to);
            part->next = one->parts;
            part->num = num;
            part->bytes = bytes;
            one->parts = part;
        }
    }
    pthread_mutex_unlock(&cal->ctx->lock);
    return part ? (const float*)(const void*)(part + 1) : NULL;
}

KVL__FN int kvl__is_sample_table(const char* name)
{
    return strcmp(name, "queries") == 0 || strcmp(name, "query_lse") == 0;
}

// kvl__table_source.find
KVL__FN kvl_status kvl__calibration_table(kvl_context* ctx, const kvl__table_source* source,
                                          const kvl__wanted_table* w, const float** out)
{
    kvl_calibration* cal = (kvl_calibration*)(void*)(uintptr_t)source;
    char name[KVL__TENSOR_NAME], has[96] = "", needs[96] = "";
    snprintf(name, sizeof name, "layer.%d.%c.%s", w->layer, w->side ? 'v' : 'k', w->name);
    kvl__tensor* one = kvl__tensors_find(&cal->tensors, name);
    *out = NULL;
    if (!one) return KVL_OK;
    KVL__REQUIRE(ctx, one->type == KVL__TENSOR_F32 && one->data, KVL_FILE,
                 "%s: %s: must be F32", cal->name, name);
    const int sample = kvl__is_sample_table(w->name);
    int same = one->rank == w->rank + 1 && one->shape[0] == w->num_kv_heads;
    for (int i = 0; same && i < w->rank; ++i)
        same = one->shape[1 + i] == w->shape[i] ||
               (sample && i == 0 && one->shape[1] > w->shape[0]);
    if (!same) {
        for (int i = 0; i < one->rank; ++i)
            kvl__append_text(has, sizeof has, "%s%lld", i ? ", " : "", (long long)one->shape[i]);
        kvl__append_text(needs, sizeof needs, "%d", w->num_kv_heads);
        for (int i = 0; i < w->rank; ++i)
            kvl__append_text(needs, sizeof needs, ", %lld", (long long)w->shape[i]);
        return kvl__fail(ctx, KVL_BAD_ARGUMENT, "%s: %s has the shape [%s]: the cache needs [%s]",
                         cal->name, name, has, needs);
    }
    *out = (const float*)one->data;
    if (one->shape[1] != w->shape[0])
        *out = kvl__calibration_part(cal, one, w->shape[0]);
    return *out ? KVL_OK : kvl__tensors_no_memory(ctx);
}

// CHECKS

KVL__FN kvl_status kvl__calibration_check_rope(kvl_context* ctx, const kvl_calibration* cal,
                                               int layer, const kvl_layer_desc* l)
{
    char name[64];
    double turns[1 + 128];
    if (!l->rope) return KVL_OK;
    KVL__TRY(kvl__check_rope(ctx, layer, l->rope, l->head_dim));
    snprintf(name, sizeof name, "layer.%d.rope", layer);
    const kvl__tensor* one = kvl__calibration_find(cal, name, KVL__TENSOR_F64);
    if (!one) return KVL_OK;
    KVL__REQUIRE(ctx, one->rank == 1 && one->shape[0] == 1 + l->head_dim / 2 &&
                 l->head_dim <= 256, KVL_FILE, "%s: damaged: %s has %lld numbers: must be "
                 "%d", cal->name, name, (long long)one->shape[0], 1 + l->head_dim / 2);
    kvl__rope_turns(l->rope, l->head_dim, turns);
    const double* has = (const double*)one->data;
    for (int i = 0; i < 1 + l->head_dim / 2; ++i)
        KVL__REQUIRE(ctx, fabs(has[i] - turns[i]) <= 1e-5 * fabs(turns[i]), KVL_BAD_ARGUMENT,
                     i ? "%s: layer %d: calibrated with another RoPE setting: pair %d turns by %g "
                         "a position there, by %g here"
                       : "%s: layer %d: calibrated with another RoPE setting: split_halves, "
                         "number %d, is %g there, %g here", cal->name, layer, i ? i - 1 : 0, has[i],
                     turns[i]);
    return KVL_OK;
}

// kvl__table_source.check: whether the calibration is of the model that a cache is made for.
KVL__FN kvl_status kvl__calibration_check(kvl_context* ctx, const kvl__table_source* source,
                                          const kvl_cache_desc* desc)
{
    const kvl_calibration* cal = (const kvl_calibration*)(const void*)source;
    const char* model = kvl__tensors_text(&cal->tensors, "model");
    KVL__REQUIRE(ctx, !desc->model_identity || strcmp(model, desc->model_identity) == 0,
                 KVL_BAD_ARGUMENT, "%s: calibrated for another model: '%.160s', not '%.160s'",
                 cal->name, model, desc->model_identity);
    const kvl__tensor* layers = kvl__calibration_find(cal, "layers", KVL__TENSOR_F64);
    const double* shape = (const double*)layers->data;
    KVL__REQUIRE(ctx, layers->shape[0] == desc->num_layers, KVL_BAD_ARGUMENT,
                 "%s: calibrated for a model of %lld layers: the cache has %d", cal->name,
                 (long long)layers->shape[0], desc->num_layers);
    for (int i = 0; i < desc->num_layers; ++i, shape += KVL__NUM_SHAPES) {
        const kvl_layer_desc* l = &desc->layers[i];
        if (l->num_kv_heads == 0) continue;
        const int has[] = { l->num_q_heads, l->num_kv_heads, l->head_dim,
                            l->head_dim_v ? l->head_dim_v : l->head_dim };
        for (int j = 0; j < 4; ++j)
            KVL__REQUIRE(ctx, shape[j] == (double)has[j], KVL_BAD_ARGUMENT, "%s: layer %d: "
                         "calibrated with %s = %g: the cache has %d", cal->name, i,
                         kvl__shape_names[j], shape[j], has[j]);
        const float scale = l->softmax_scale > 0.0f ? l->softmax_scale
                                                    : 1.0f / sqrtf((float)l->head_dim);
        KVL__REQUIRE(ctx, fabs(shape[KVL__SHAPE_SCALE] - (double)scale) <= 1e-6 * (double)scale,
                     KVL_BAD_ARGUMENT, "%s: layer %d: calibrated with softmax_scale = %g: the "
                     "cache has %g", cal->name, i, shape[KVL__SHAPE_SCALE], (double)scale);
        KVL__TRY(kvl__calibration_check_rope(ctx, cal, i, l));
    }
    return KVL_OK;
}

// CREATION

KVL__PUBLIC void kvl_calibration_free(kvl_calibration* cal)
{
    if (!cal) return;
    kvl_context* ctx = cal->ctx;
    kvl__tensors_free(&cal->tensors);
    kvl__free_text(ctx, cal->name);
    kvl__free(ctx, cal, sizeof *cal);
}

// An empty one.
KVL__FN kvl_calibration* kvl__calibration_new(kvl_context* ctx, const char* name)
{
    kvl_calibration* cal = (kvl_calibration*)kvl__alloc_zeroed(ctx, sizeof *cal);
    if (!cal) return NULL;
    cal->source.find = kvl__calibration_table;
    cal->source.check = kvl__calibration_check;
    cal->ctx = cal->tensors.ctx = ctx;
    cal->name = kvl__copy_text(ctx, name);
    if (cal->name) return cal;
    kvl_calibration_free(cal);
    return NULL;
}

// HASHES: of the arrays that caches read, and of statistics, in the order in which they are
// written.

KVL__FN int kvl__is_for_caches(const char* name)
{
    const char* at = strncmp(name, "layer.", 6) == 0 ? strchr(name + 6, '.') : NULL;
    return !at || strncmp(at, ".stat.", 6) != 0;
}

KVL__FN const char* kvl__hash_name(int statistics)
{
    return statistics ? "hash_statistics" : "hash_tables";
}

// Takes statistics out: they are part of a file, and not of a calibration.
KVL__FN void kvl__calibration_drop_statistics(kvl__tensors* t)
{
    for (int i = t->num - 1; i >= 0; --i)
        if (!kvl__is_for_caches(t->list[i].name)) kvl__tensors_remove(t, t->list[i].name);
}

// hex [33].
KVL__FN void kvl__calibration_hash(const kvl__tensors* t, int statistics, char* hex)
{
    kvl__hash hash = kvl__hash_bytes("", 0);
    for (int pass = 0; pass < 2; ++pass) {
        for (int i = 0; i < t->num; ++i) {
            const kvl__tensor* one = &t->list[i];
            if ((one->type == KVL__TENSOR_F64) == pass || !one->data ||
                kvl__is_for_caches(one->name) == statistics) continue;
            hash = kvl__hash_join(hash, one->data, (size_t)one->bytes);
        }
    }
    snprintf(hex, 33, "%016llx%016llx", (unsigned long long)hash.high,
             (unsigned long long)hash.low);
}

// A file that others have edited may have no hash.
KVL__FN kvl_status kvl__calibration_check_hash(kvl_context* ctx, const kvl__tensors* t,
                                               const char* path, int statistics)
{
    const char* has = kvl__tensors_text(t, kvl__hash_name(statistics));
    char hex[33];
    kvl__calibration_hash(t, statistics, hex);
    KVL__REQUIRE(ctx, !has[0] || strcmp(has, hex) == 0, KVL_FILE,
                 "%s: damaged: %s is %.40s, its arrays have %s", path, kvl__hash_name(statistics),
                 has, hex);
    return KVL_OK;
}

// A layer's numbers, as far as all that read them need: counts as a layer may have them, and no
// more than a float or an int holds.
KVL__FN kvl_status kvl__calibration_check_shapes(kvl_context* ctx, const kvl__tensor* layers,
                                                 const char* path)
{
    static const double most[KVL__NUM_SHAPES] = { 16384, 1024, 4096, 4096, (double)FLT_MAX,
                                                  (double)FLT_MAX, (double)INT_MAX };
    const double* shape = (const double*)layers->data;
    for (int64_t i = 0; i < layers->shape[0] * KVL__NUM_SHAPES; ++i) {
        const int column = (int)(i % KVL__NUM_SHAPES);
        const int is_real = column == KVL__SHAPE_SCALE || column == KVL__SHAPE_CAP;
        KVL__REQUIRE(ctx, shape[i] >= 0.0 && shape[i] <= most[column] &&
                     (is_real || shape[i] == floor(shape[i])), KVL_FILE,
                     "%s: damaged: layers[%lld][%d] = %g: must be %sfrom 0 to %g", path,
                     (long long)(i / KVL__NUM_SHAPES), column, shape[i], is_real ? "" : "whole, ",
                     most[column]);
    }
    return KVL_OK;
}

// What a file must have to be one of ours.
KVL__FN kvl_status kvl__calibration_check_file(kvl_context* ctx, const kvl__tensors* t,
                                               const char* path)
{
    const char* format = kvl__tensors_text(t, "format");
    KVL__REQUIRE(ctx, format[0], KVL_FILE, "%s: not a calibration: its metadata has no 'format'",
                 path);
    KVL__REQUIRE(ctx, strcmp(format, KVL__CALIBRATION_FORMAT) == 0, KVL_UNSUPPORTED,
                 "%s: format = '%.60s': this version reads '%s'", path, format,
                 KVL__CALIBRATION_FORMAT);
    const kvl__tensor* layers = kvl__tensors_find(t, "layers");
    KVL__REQUIRE(ctx, layers && layers->type == KVL__TENSOR_F64 && layers->data &&
                 layers->rank == 2 && layers->shape[0] >= 1 && layers->shape[0] <= 4096 &&
                 layers->shape[1] == KVL__NUM_SHAPES, KVL_FILE,
                 "%s: damaged: 'layers' must be F64 [num_layers, %d]", path, KVL__NUM_SHAPES);
    KVL__TRY(kvl__calibration_check_shapes(ctx, layers, path));
    return kvl__calibration_check_hash(ctx, t, path, 0);
}

KVL__PUBLIC kvl_status kvl_calibration_load(kvl_context* ctx, const char* path,
                                            kvl_calibration** out)
{
    if (out) *out = NULL;
    if (!ctx || ctx->broken) return KVL_BAD_ARGUMENT;
    KVL__REQUIRE(ctx, path && out, KVL_BAD_ARGUMENT, "path or out = NULL: must be given");
    kvl_calibration* cal = kvl__calibration_new(ctx, path);
    if (!cal) return kvl__tensors_no_memory(ctx);
    kvl_status status = kvl__tensors_read(ctx, path, kvl__is_for_caches, &cal->tensors);
    if (status == KVL_OK) status = kvl__calibration_check_file(ctx, &cal->tensors, path);
    kvl__calibration_drop_statistics(&cal->tensors);
    cal->source.context = atoll(kvl__tensors_text(&cal->tensors, "context"));
    if (status != KVL_OK) {
        kvl_calibration_free(cal);
        return status;
    }
    *out = cal;
    return KVL_OK;
}

KVL__PUBLIC kvl_status kvl_calibration_set_text(kvl_calibration* cal, const char* name,
                                                const char* text)
{
    if (!cal) return KVL_BAD_ARGUMENT;
    KVL__REQUIRE(cal->ctx, name && name[0] && strlen(name) < 120 && text && strlen(text) < 4000,
                 KVL_BAD_ARGUMENT, "name or text: must be given, of at most 119 and 3999 bytes");
    KVL__REQUIRE(cal->ctx, strcmp(name, "format") != 0 && strcmp(name, "statistics_of") != 0 &&
                 strncmp(name, "hash_", 5) != 0, KVL_BAD_ARGUMENT, "name = '%s': is the library's",
                 name);
    return kvl__tensors_set_text(&cal->tensors, name, text);
}

KVL__PUBLIC const char* kvl_calibration_text(const kvl_calibration* cal, const char* name)
{
    return cal && name ? kvl__tensors_text(&cal->tensors, name) : "";
}

// The rows of a Hadamard, with signs or without: it is its own inverse transpose.
KVL__FN void kvl__plain_basis(const kvl__codec* c, int num_kv_heads, float* out)
{
    const int n = c->head_dim, piece = c->numbers[KVL__STAGE_TRANSFORM];
    for (int i = 0; i < num_kv_heads * n; ++i) {
        float* row = out + (int64_t)i * n;
        memset(row, 0, (size_t)n * sizeof *row);
        row[i % n] = 1.0f;
        if (c->words[KVL__STAGE_TRANSFORM] == KVL__TRANSFORM_SIGNED_HADAMARD) kvl__flip(row, n);
        if (piece > 0) kvl__hadamard(row, n, piece);
    }
}

KVL__PUBLIC kvl_status kvl_value_basis(kvl_context* ctx, const kvl_calibration* cal, int layer,
                                       const kvl_layer_desc* desc, float* forward, float* query)
{
    const kvl__table_source* source = (const kvl__table_source*)(const void*)cal;
    float* const out[2] = { forward, query };
    const float* table[2] = { NULL, NULL };
    kvl__config config;
    if (!ctx || ctx->broken) return KVL_BAD_ARGUMENT;
    KVL__REQUIRE(ctx, desc, KVL_BAD_ARGUMENT, "desc = NULL: must be given");
    KVL__REQUIRE(ctx, layer >= 0 && layer < 4096, KVL_BAD_ARGUMENT,
                 "layer = %d: must be 0 to 4095", layer);
    KVL__TRY(kvl__config_parse(ctx, layer, desc, NULL, &config));
    KVL__REQUIRE(ctx, config.num_stored == 2, KVL_UNSUPPORTED,
                 "layer %d: values_in_keys = 1: values have no basis of their own", layer);
    const kvl__codec* c = &config.side[1];
    const int64_t count = (int64_t)c->head_dim * c->head_dim;
    const int calibrated = kvl__word_of(c, KVL__STAGE_TRANSFORM)->num_tables == 2;
    for (int i = 0; i < 2 && calibrated; ++i)
        KVL__TRY(kvl__basis_table(ctx, source, layer, &config, 1, i, &table[i]));
    for (int head = 0; head < config.num_kv_heads && calibrated; ++head)
        KVL__TRY(kvl__check_pair(ctx, layer, 1, c, head, table[0] + head * count,
                                 table[1] + head * count));
    for (int i = 0; i < 2; ++i) {
        if (!out[i]) continue;
        if (calibrated)
            memcpy(out[i], table[i], (size_t)(config.num_kv_heads * count) * sizeof(float));
        else
            kvl__plain_basis(c, config.num_kv_heads, out[i]);
    }
    return KVL_OK;
}

KVL__PUBLIC const float* kvl_calibration_table(const kvl_calibration* cal, int layer, int is_value,
                                               const char* name, int64_t* num)
{
    char full[KVL__TENSOR_NAME];
    if (num) *num = 0;
    if (!cal || !name) return NULL;
    snprintf(full, sizeof full, "layer.%d.%c.%s", layer, is_value ? 'v' : 'k', name);
    const kvl__tensor* one = kvl__calibration_find(cal, full, KVL__TENSOR_F32);
    if (num && one) *num = (int64_t)(one->bytes / sizeof(float));
    return one ? (const float*)one->data : NULL;
}

#endif
