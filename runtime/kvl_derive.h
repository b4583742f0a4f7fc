// kvl_derive.h -- from statistics to a calibration: statistics as arrays, tables made of them.
//
// What a table is made of is said by a derivation, found by the word that asks and the table's
// name: those of kvloom.h, then those here, which are plain arithmetic.

#ifndef KVL_DERIVE_H
#define KVL_DERIVE_H

#include "kvl_across.h"
#include "kvl_calibration.h"
#include "kvl_pairs.h"
#include "kvl_ranges.h"
#include "kvl_statistics.h"

// STATISTICS AS ARRAYS

// Where a call is: writing arrays, or adding up from arrays.
typedef struct kvl__exchange {
    kvl_statistics* s;
    kvl__tensors*   t;
    const char*     name;              // of the file, for messages; NULL: writing
    int             layer;
} kvl__exchange;

// An array that a file must have, of this shape; < 0: of any size.
KVL__FN kvl_status kvl__file_array(const kvl__tensors* t, const char* path, const char* full,
                                   kvl__tensor_type type, const int64_t* shape, int rank,
                                   kvl__tensor** out)
{
    *out = kvl__tensors_find(t, full);
    KVL__REQUIRE(t->ctx, *out && (*out)->data && (*out)->type == type, KVL_FILE,
                 "%s: '%s' is missing, or of another type: the file has no statistics to go on "
                 "with", path, full);
    int same = (*out)->rank == rank;
    for (int i = 0; same && i < rank; ++i)
        same = (*out)->shape[i] == shape[i] || shape[i] < 0;
    KVL__REQUIRE(t->ctx, same, KVL_FILE, "%s: damaged: '%s' has another shape than the "
                 "model's", path, full);
    return KVL_OK;
}

// What attention gives may overflow; all else that rows add up to is finite, as rows are.
KVL__FN int kvl__is_of_attention(const char* name)
{
    return strncmp(name, "query_seen", 10) == 0 || strncmp(name, "query_output", 12) == 0 ||
           strcmp(name, "attended_outer") == 0 || strcmp(name, "query_sample") == 0;
}

// Numbers of a file's array.
KVL__FN kvl_status kvl__check_statistic(const kvl__exchange* x, const char* name,
                                        const kvl__tensor* one)
{
    const int64_t num = (int64_t)(one->bytes / kvl__tensor_size(one->type));
    const int is_start = strcmp(name, "key_sample_first") == 0;
    for (int64_t i = 0; i < num && !kvl__is_of_attention(name); ++i) {
        const double number = one->type == KVL__TENSOR_F64 ? ((const double*)one->data)[i]
                                                           : (double)((const float*)one->data)[i];
        KVL__REQUIRE(x->s->ctx, fabs(number) <= DBL_MAX, KVL_FILE,
                     "%s: damaged: '%s', number %lld, is %g: must be finite", x->name, one->name,
                     (long long)i, number);
        KVL__REQUIRE(x->s->ctx, !is_start || (number >= -1.0 && number <= 16777216.0), KVL_FILE,
                     "%s: damaged: '%s', number %lld, is %g: must be a position, or -1", x->name,
                     one->name, (long long)i, number);
    }
    return KVL_OK;
}

// The array of a statistic, of this shape: made, or found.
KVL__FN kvl_status kvl__exchange_array(const kvl__exchange* x, const char* name,
                                       kvl__tensor_type type, const int64_t* shape, int rank,
                                       kvl__tensor** out)
{
    char full[KVL__TENSOR_NAME];
    snprintf(full, sizeof full, "layer.%d.stat.%s", x->layer, name);
    if (!x->name) return kvl__tensors_add(x->t, full, type, shape, rank, out);
    KVL__TRY(kvl__file_array(x->t, x->name, full, type, shape, rank, out));
    return kvl__check_statistic(x, name, *out);
}

KVL__FN void kvl__exchange_doubles(const kvl__exchange* x, double* ours, double* theirs,
                                   int64_t num)
{
    if (!x->name) memcpy(theirs, ours, (size_t)num * sizeof *ours);
    else for (int64_t i = 0; i < num; ++i) ours[i] += theirs[i];
}

KVL__FN kvl_status kvl__exchange_sums(const kvl__exchange* x)
{
    kvl__layer_statistics* l = &x->s->layers[x->layer];
    kvl__tensor* to = NULL;
    int64_t shape[3] = { 1, 0, 0 };
    for (int i = 0; i < KVL__NUM_COUNTS; ++i) {
        KVL__TRY(kvl__exchange_array(x, kvl__count_names[i], KVL__TENSOR_F64, shape, 1, &to));
        kvl__exchange_doubles(x, &l->counts[i], (double*)to->data, 1);
    }
    shape[0] = l->num_kv_heads;
    for (int i = 0; i < 2; ++i) {
        KVL__TRY(kvl__exchange_array(x, kvl__weight_names[i], KVL__TENSOR_F64, shape, 1, &to));
        for (int h = 0; h < l->num_kv_heads; ++h)
            kvl__exchange_doubles(x, &l->heads[h].weights[i], (double*)to->data + h, 1);
    }
    for (int i = 0; i < KVL__NUM_SUMS; ++i) {
        if (i == KVL__SUM_KEY_UNROTATED && !l->turns) continue;
        shape[1] = kvl__sums[i].is_value ? l->dv : l->dk;
        KVL__TRY(kvl__exchange_array(x, kvl__sums[i].name, KVL__TENSOR_F64, shape, 2, &to));
        for (int h = 0; h < l->num_kv_heads; ++h)
            kvl__exchange_doubles(x, l->heads[h].sums[i], (double*)to->data + h * shape[1],
                                  shape[1]);
    }
    return KVL_OK;
}

KVL__FN int kvl__exchange_has(const kvl__exchange* x, const char* name)
{
    char full[KVL__TENSOR_NAME];
    snprintf(full, sizeof full, "layer.%d.stat.%s", x->layer, name);
    return kvl__tensors_find(x->t, full) != NULL;
}

// A file without them serves all the same.
KVL__FN kvl_status kvl__exchange_mosts(const kvl__exchange* x)
{
    kvl__layer_statistics* l = &x->s->layers[x->layer];
    kvl__tensor* to = NULL;
    if (x->name && !kvl__exchange_has(x, kvl__mosts[0].name)) l->lacks_mosts = 1;
    for (int i = 0; i < 2 && !l->lacks_mosts; ++i) {
        const int64_t dim = kvl__mosts[i].is_value ? l->dv : l->dk;
        const int64_t shape[3] = { l->num_kv_heads, dim, 0 };
        KVL__TRY(kvl__exchange_array(x, kvl__mosts[i].name, KVL__TENSOR_F64, shape, 2, &to));
        for (int h = 0; h < l->num_kv_heads; ++h)
            for (int64_t c = 0; c < dim; ++c) {
                double *ours = &l->heads[h].mosts[i][c], *theirs = (double*)to->data + h * dim + c;
                if (x->name) *ours = fmax(*ours, *theirs);
                else *theirs = *ours;
            }
    }
    return KVL_OK;
}

KVL__FN kvl_status kvl__exchange_moments(const kvl__exchange* x)
{
    kvl__layer_statistics* l = &x->s->layers[x->layer];
    kvl__tensor* to = NULL;
    for (int i = 0; i < KVL__NUM_MOMENTS; ++i) {
        const int64_t dim = kvl__moments[i].is_value ? l->dv : l->dk;
        const int64_t shape[3] = { l->num_kv_heads, dim, dim };
        if (x->name && i == KVL__MOMENT_KEY_TURN && !kvl__exchange_has(x, kvl__moments[i].name))
            l->has_turns = 0;                          // a file without them serves all the same
        if (!kvl__moment_is_known(l, i)) continue;
        KVL__TRY(kvl__exchange_array(x, kvl__moments[i].name, KVL__TENSOR_F64, shape, 3, &to));
        for (int h = 0; h < l->num_kv_heads; ++h) {
            double* ours = l->heads[h].moments[i];
            double* theirs = (double*)to->data + h * dim * dim;
            // Of the model, not of rows: the same in every file.
            if (i == KVL__MOMENT_OUTPUT && x->name)
                memcpy(ours, theirs, (size_t)(dim * dim) * sizeof *ours);
            else kvl__exchange_doubles(x, ours, theirs, dim * dim);
        }
    }
    return KVL_OK;
}

KVL__FN int kvl__compare_priorities(const void* a, const void* b)
{
    const double x = **(const double* const*)a, y = **(const double* const*)b;
    return x > y ? -1 : x < y;
}

// Writes the samples of a head, the largest priority first: any number of the first ones is a
// sample too.  first: NULL where nobody asks.
KVL__FN kvl_status kvl__sample_sort(kvl_context* ctx, const kvl__sample* sample, float* items,
                                    double* priority, double* first)
{
    const size_t bytes = (size_t)sample->num * sizeof(double*);
    const double** order = (const double**)kvl__alloc(ctx, bytes);
    if (!order) return kvl__statistics_no_memory(ctx);
    for (int i = 0; i < sample->num; ++i) order[i] = &sample->priority[i];
    qsort(order, (size_t)sample->num, sizeof *order, kvl__compare_priorities);
    for (int i = 0; i < sample->num; ++i) {
        memcpy(items + i * sample->floats, sample->items +
               (order[i] - sample->priority) * sample->floats,
               (size_t)sample->floats * sizeof *items);
        priority[i] = *order[i];
        if (first) first[i] = sample->first[order[i] - sample->priority];
    }
    kvl__free(ctx, order, bytes);
    return KVL_OK;
}

// Room for as many samples as a layer's file has; there are none yet.
KVL__FN kvl_status kvl__samples_make_room(kvl_statistics* s, kvl__layer_statistics* l, int keys,
                                          int num)
{
    for (int h = 0; h < l->num_kv_heads; ++h) {
        kvl__sample* sample = keys ? &l->heads[h].keys : &l->heads[h].queries;
        if (num > sample->most && !kvl__sample_create(s, sample, num, sample->floats))
            return kvl__statistics_no_memory(s->ctx);
    }
    return KVL_OK;
}

// Samples [num_kv_heads, num, floats]; keys: which of the two.
KVL__FN kvl_status kvl__exchange_samples(const kvl__exchange* x, int keys)
{
    kvl__layer_statistics* l = &x->s->layers[x->layer];
    const kvl__sample* first = keys ? &l->heads[0].keys : &l->heads[0].queries;
    const int64_t width = keys ? l->dk : first->floats;
    int64_t shape[4] = { l->num_kv_heads, x->name ? -1 : first->num, KVL__RUN_ROWS, width };
    if (!keys) shape[2] = width;
    kvl__tensor* listed = NULL;
    KVL__TRY(kvl__exchange_array(x, keys ? "key_sample" : "query_sample", KVL__TENSOR_F32, shape,
                                 keys ? 4 : 3, &listed));
    const kvl__tensor items = *listed;          // the list moves when it grows
    KVL__TRY(kvl__exchange_array(x, keys ? "key_sample_priority" : "query_sample_priority",
                                 KVL__TENSOR_F64, shape, 2, &listed));
    const kvl__tensor priority = *listed;
    const int64_t num = items.shape[1];
    double* starts = NULL;                      // a file without them serves all the same
    KVL__REQUIRE(x->s->ctx, priority.shape[1] == num &&
                 num <= (keys ? (int)KVL__MOST_RUNS : (int)KVL__MOST_QUERIES), KVL_FILE,
                 "%s: damaged: %lld samples and %lld priorities", x->name, (long long)num,
                 (long long)priority.shape[1]);
    KVL__TRY(kvl__samples_make_room(x->s, l, keys, (int)num));
    shape[1] = num;
    if (keys && (!x->name || kvl__exchange_has(x, "key_sample_first"))) {
        KVL__TRY(kvl__exchange_array(x, "key_sample_first", KVL__TENSOR_F64, shape, 2, &listed));
        starts = (double*)listed->data;
    }
    for (int h = 0; h < l->num_kv_heads; ++h) {
        kvl__sample* ours = keys ? &l->heads[h].keys : &l->heads[h].queries;
        kvl__sample theirs = *ours;
        theirs.items = (float*)items.data + h * num * ours->floats;
        theirs.priority = (double*)priority.data + h * num;
        theirs.first = starts ? starts + h * num : NULL;
        theirs.num = (int)num;
        if (x->name) kvl__sample_merge(ours, &theirs);
        else KVL__TRY(kvl__sample_sort(x->s->ctx, ours, theirs.items, theirs.priority,
                                       theirs.first));
    }
    return KVL_OK;
}

KVL__FN kvl_status kvl__exchange_layers(kvl__exchange* x)
{
    for (x->layer = 0; x->layer < x->s->num_layers; ++x->layer) {
        if (x->s->layers[x->layer].num_kv_heads == 0) continue;
        KVL__TRY(kvl__exchange_sums(x));
        KVL__TRY(kvl__exchange_mosts(x));
        KVL__TRY(kvl__exchange_moments(x));
        KVL__TRY(kvl__exchange_samples(x, 0));
        KVL__TRY(kvl__exchange_samples(x, 1));
    }
    return KVL_OK;
}

KVL__FN void kvl__shapes_of_layer(const kvl__layer_statistics* l, double row[KVL__NUM_SHAPES])
{
    row[KVL__SHAPE_Q_HEADS] = l->num_q_heads;
    row[KVL__SHAPE_KV_HEADS] = l->num_kv_heads;
    row[KVL__SHAPE_DK] = l->dk;
    row[KVL__SHAPE_DV] = l->dv;
    row[KVL__SHAPE_SCALE] = (double)l->softmax_scale;
    row[KVL__SHAPE_CAP] = (double)l->soft_cap;
    row[KVL__SHAPE_WINDOW] = l->window_len;
}

// The model's shapes, which caches check.
KVL__FN kvl_status kvl__store_shapes(const kvl_statistics* s, kvl__tensors* t)
{
    const int64_t shape[2] = { s->num_layers, KVL__NUM_SHAPES };
    kvl__tensor* to = NULL;
    char name[64];
    KVL__TRY(kvl__tensors_set_text(t, "format", KVL__CALIBRATION_FORMAT));
    if (s->unrotated) KVL__TRY(kvl__tensors_set_text(t, "statistics_of", "keys before RoPE"));
    KVL__TRY(kvl__tensors_add(t, "layers", KVL__TENSOR_F64, shape, 2, &to));
    for (int i = 0; i < s->num_layers; ++i)
        kvl__shapes_of_layer(&s->layers[i], (double*)to->data + i * KVL__NUM_SHAPES);
    for (int i = 0; i < s->num_layers; ++i) {
        const kvl__layer_statistics* l = &s->layers[i];
        const int64_t turns = 1 + l->dk / 2;
        if (!l->turns) continue;
        snprintf(name, sizeof name, "layer.%d.rope", i);
        KVL__TRY(kvl__tensors_add(t, name, KVL__TENSOR_F64, &turns, 1, &to));
        memcpy(to->data, l->turns, (size_t)turns * sizeof(double));
    }
    return KVL_OK;
}

// Shapes of a file as a desc has them; layers [num_layers] are filled from its arrays.  Samples up
// to the usual number: a layer that has more of them gets more room (kvl__samples_make_room).
KVL__FN void kvl__shapes_of_file(const kvl__tensors* t, kvl_layer_desc* layers,
                                 kvl_statistics_desc* desc)
{
    const kvl__tensor* shapes = kvl__tensors_find(t, "layers");
    const double* row = (const double*)shapes->data;
    char name[64];
    desc->layers = layers;
    desc->num_layers = (int)shapes->shape[0];
    for (int i = 0; i < desc->num_layers; ++i, row += KVL__NUM_SHAPES) {
        layers[i].num_q_heads = (int)row[KVL__SHAPE_Q_HEADS];
        layers[i].num_kv_heads = (int)row[KVL__SHAPE_KV_HEADS];
        layers[i].head_dim = (int)row[KVL__SHAPE_DK];
        layers[i].head_dim_v = (int)row[KVL__SHAPE_DV];
        layers[i].softmax_scale = (float)row[KVL__SHAPE_SCALE];
        layers[i].soft_cap = (float)row[KVL__SHAPE_CAP];
        layers[i].window_len = (int)row[KVL__SHAPE_WINDOW];
        snprintf(name, sizeof name, "layer.%d.stat.query_sample", i);
        const kvl__tensor* sample = kvl__tensors_find(t, name);
        if (sample && sample->rank == 3 && sample->shape[1] > desc->num_queries)
            desc->num_queries = (int)kvl__min_i64(sample->shape[1], KVL__USUAL_QUERIES);
        snprintf(name, sizeof name, "layer.%d.stat.key_sample", i);
        sample = kvl__tensors_find(t, name);
        if (sample && sample->rank == 4 && sample->shape[1] > desc->num_key_runs)
            desc->num_key_runs = (int)kvl__min_i64(sample->shape[1], KVL__USUAL_RUNS);
    }
}

// Statistics are as large as the layers say: a file must have one array of that size in each, so
// that a small file takes little memory.
KVL__FN kvl_status kvl__check_outers(const kvl__tensors* t, const char* path,
                                     const kvl_statistics_desc* desc)
{
    for (int i = 0; i < desc->num_layers; ++i) {
        const kvl_layer_desc* l = &desc->layers[i];
        const int64_t shape[3] = { l->num_kv_heads, l->head_dim, l->head_dim };
        char full[KVL__TENSOR_NAME];
        kvl__tensor* found = NULL;
        if (l->num_kv_heads == 0) continue;
        snprintf(full, sizeof full, "layer.%d.stat.%s", i, kvl__moments[KVL__MOMENT_KEY].name);
        KVL__TRY(kvl__file_array(t, path, full, KVL__TENSOR_F64, shape, 3, &found));
    }
    return KVL_OK;
}

// What a file knows of a layer beside its sums.
KVL__FN kvl_status kvl__facts_of_file(kvl_statistics* s, const kvl__tensors* t, const char* path,
                                      int layer)
{
    kvl__layer_statistics* l = &s->layers[layer];
    const int64_t turns = 1 + l->dk / 2;
    char name[64];
    snprintf(name, sizeof name, "layer.%d.stat.output_outer", layer);
    l->has_output = kvl__tensors_find(t, name) != NULL;
    snprintf(name, sizeof name, "layer.%d.rope", layer);
    const kvl__tensor* rope = kvl__tensors_find(t, name);
    if (!rope) return KVL_OK;
    KVL__REQUIRE(s->ctx, rope->type == KVL__TENSOR_F64 && rope->data && rope->rank == 1 &&
                 rope->shape[0] == turns, KVL_FILE, "%s: damaged: '%s' must be F64 [%lld]",
                 path, name, (long long)turns);
    for (int64_t i = 0; i < turns; ++i)
        KVL__REQUIRE(s->ctx, fabs(((const double*)rope->data)[i]) <= DBL_MAX, KVL_FILE,
                     "%s: damaged: '%s', number %lld, is not finite", path, name, (long long)i);
    l->turns = (double*)kvl__list_alloc(s->ctx, &s->chunks, (size_t)turns, sizeof(double));
    if (!l->turns) return kvl__statistics_no_memory(s->ctx);
    memcpy(l->turns, rope->data, (size_t)turns * sizeof(double));
    l->has_turns = 1;
    return KVL_OK;
}

// What is wrong with an argument is wrong with the file that it was read from.
KVL__FN kvl_status kvl__file_fail(kvl_context* ctx, const char* path)
{
    char message[KVL__MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", ctx->message);
    return kvl__fail(ctx, KVL_FILE, "%s: damaged: %s", path, message);
}

KVL__FN kvl_status kvl__statistics_of_file(kvl_context* ctx, kvl__tensors* t, const char* path,
                                           kvl_statistics** out)
{
    kvl_statistics_desc desc;
    void* scratch = NULL;
    memset(&desc, 0, sizeof desc);
    const int num = (int)kvl__tensors_find(t, "layers")->shape[0];
    kvl_layer_desc* l = (kvl_layer_desc*)kvl__list_alloc(ctx, &scratch, (size_t)num, sizeof *l);
    if (!l) return kvl__statistics_no_memory(ctx);
    kvl__shapes_of_file(t, l, &desc);
    kvl_status status = kvl__check_outers(t, path, &desc);
    if (status == KVL_OK) {
        status = kvl_statistics_create(ctx, &desc, out);
        if (status == KVL_BAD_ARGUMENT) status = kvl__file_fail(ctx, path);
    }
    if (status == KVL_OK) (*out)->unrotated = kvl__tensors_text(t, "statistics_of")[0] != 0;
    kvl__list_free(ctx, &scratch);
    for (int i = 0; status == KVL_OK && i < num; ++i)
        if ((*out)->layers[i].num_kv_heads) status = kvl__facts_of_file(*out, t, path, i);
    if (status == KVL_OK) {
        kvl__exchange x = { *out, t, path, 0 };
        status = kvl__exchange_layers(&x);
    }
    if (status != KVL_OK) {
        kvl_statistics_free(*out);
        *out = NULL;
    }
    return status;
}

KVL__PUBLIC kvl_status kvl_statistics_load(kvl_context* ctx, const char* path,
                                           kvl_statistics** out)
{
    if (out) *out = NULL;
    KVL__TRY(kvl__check_context(ctx));
    KVL__REQUIRE(ctx, path && out, KVL_BAD_ARGUMENT, "path or out = NULL: must be given");
    kvl__tensors t;
    KVL__TRY(kvl__tensors_read(ctx, path, NULL, &t));
    kvl_status status = kvl__calibration_check_file(ctx, &t, path);
    if (status == KVL_OK) status = kvl__calibration_check_hash(ctx, &t, path, 1);
    if (status == KVL_OK) status = kvl__statistics_of_file(ctx, &t, path, out);
    kvl__tensors_free(&t);
    return status;
}

// DERIVATIONS

KVL__FN kvl_status kvl__derive_fail(const kvl_derive_args* a, const char* what)
{
    snprintf(a->message, a->message_bytes, "%s", what);
    return KVL_BAD_ARGUMENT;
}

// Whether the table is of keys before RoPE; losses are of the output.
KVL__FN int kvl__derives_unrotated(const kvl_derive_args* a)
{
    return !a->is_value && a->codec && strcmp(a->stage, "bits") != 0 &&
           kvl__is_unrotated((const kvl__codec*)a->codec);
}

// Whether keys of the statistics are to be turned back for it.
KVL__FN int kvl__turns_back(const kvl_derive_args* a)
{
    return kvl__derives_unrotated(a) && !a->stats->unrotated;
}

KVL__FN kvl_status kvl__derive_mean(const kvl_derive_args* a, float* out)
{
    const double* rows = kvl_statistics_get(a->stats, a->layer, 0, "rows", NULL);
    if (!(*rows > 0.0)) return kvl__derive_fail(a, "the statistics have no rows");
    const int unrotated = kvl__turns_back(a);
    if (unrotated && !a->stats->layers[a->layer].turns)
        return kvl__derive_fail(a, "needs to know how keys turn: kvl_layer_desc.rope");
    for (int h = 0; h < a->num_kv_heads; ++h) {
        const double* sum = kvl_statistics_get(a->stats, a->layer, h, a->is_value ? "value_sum"
                                               : unrotated ? "key_unrotated_sum" : "key_sum", NULL);
        for (int c = 0; c < a->head_dim; ++c) out[h * a->head_dim + c] = (float)(sum[c] / *rows);
    }
    return KVL_OK;
}

typedef struct kvl__ordered {
    float sum;
    int   channel;
} kvl__ordered;

KVL__FN int kvl__compare_ordered(const void* a, const void* b)
{
    const kvl__ordered *x = (const kvl__ordered*)a, *y = (const kvl__ordered*)b;
    if (x->sum != y->sum) return x->sum < y->sum ? -1 : 1;
    return x->channel < y->channel ? -1 : x->channel > y->channel;
}

// Channels of all heads in the order of the means that they have once heads are mixed: the mean of
// mixed rows is the mixed mean.
KVL__FN kvl_status kvl__derive_order(const kvl_derive_args* a, float* out)
{
    const kvl__layer_statistics* l = &a->stats->layers[a->layer];
    const int dim = a->head_dim, num = a->num_kv_heads * dim;
    if (a->is_value || !l->turns)
        return kvl__derive_fail(a, "needs to know how keys turn: kvl_layer_desc.rope");
    if (!(l->counts[KVL__COUNT_ROWS] > 0.0))
        return kvl__derive_fail(a, "the statistics have no rows");
    const size_t bytes = (size_t)num * (sizeof(kvl__ordered) + sizeof(float));
    kvl__ordered* order = (kvl__ordered*)kvl__alloc(a->stats->ctx, bytes);
    if (!order) return kvl__statistics_no_memory(a->stats->ctx);
    float* means = (float*)(void*)(order + num);
    for (int i = 0; i < num; ++i) {
        const int sum = a->stats->unrotated ? KVL__SUM_KEY : KVL__SUM_KEY_UNROTATED;
        means[i] = (float)(l->heads[i / dim].sums[sum][i % dim] / l->counts[KVL__COUNT_ROWS]);
    }
    kvl__across_mix(means, a->num_kv_heads, dim, kvl__across_heads((const kvl__codec*)a->codec,
                                                                   a->num_kv_heads));
    for (int i = 0; i < num; ++i) {
        order[i].sum = means[i];
        order[i].channel = i;
    }
    qsort(order, (size_t)num, sizeof *order, kvl__compare_ordered);
    for (int i = 0; i < num; ++i) out[i] = (float)order[i].channel;
    kvl__free(a->stats->ctx, order, bytes);
    return KVL_OK;
}

// Channels of a head in falling order of their mean squares, in each set dealt to its pieces:
// gen/parts/outliers.lua.
KVL__FN kvl_status kvl__derive_outliers(const kvl_derive_args* a, float* out)
{
    const kvl__layer_statistics* l = &a->stats->layers[a->layer];
    const kvl__codec* c = (const kvl__codec*)a->codec;
    const int dim = a->head_dim, has_shift = c->words[KVL__STAGE_SHIFT] != KVL__SHIFT_NONE;
    const double rows = l->counts[KVL__COUNT_ROWS];
    kvl__ordered order[KVL__MAX_STORED_DIM];
    if (!(rows > 0.0)) return kvl__derive_fail(a, "the statistics have no rows");
    for (int h = 0; h < a->num_kv_heads; ++h) {
        const double* sum = l->heads[h].sums[a->is_value ? KVL__SUM_VALUE : KVL__SUM_KEY];
        const double* moment =
            l->heads[h].moments[a->is_value ? KVL__MOMENT_VALUE : KVL__MOMENT_KEY];
        for (int i = 0; i < dim; ++i) {
            const double mean = has_shift ? sum[i] / rows : 0.0;
            order[i].sum = (float)(mean * mean - moment[i * dim + i] / rows);
            order[i].channel = i;
        }
        qsort(order, (size_t)dim, sizeof *order, kvl__compare_ordered);
        const kvl__ordered* from = order;
        for (int set = 0; set < kvl__num_sets(c); ++set) {
            const int count = kvl__set_of(c, set).head_dim, piece = count & -count;
            for (int r = 0; r < count; ++r)
                out[r % (count / piece) * piece + r / (count / piece)] = (float)from[r].channel;
            from += count;
            out += count;
        }
    }
    return KVL_OK;
}

// Ranges of channels, and levels for what is in them.
KVL__FN kvl_status kvl__derive_range(const kvl_derive_args* a, float* out)
{
    const kvl__layer_statistics* l = &a->stats->layers[a->layer];
    const int unrotated = kvl__turns_back(a);
    const char* lack = kvl__ranges_lack(l, unrotated);
    if (lack) return kvl__derive_fail(a, lack);
    const int is_half = strcmp(a->table, "static_half") == 0;
    return kvl__ranges_derive(a->stats->ctx, l, unrotated, is_half ? NULL : out,
                              is_half ? out : NULL);
}

KVL__FN kvl_status kvl__derive_book(const kvl_derive_args* a, float* out)
{
    const kvl__layer_statistics* l = &a->stats->layers[a->layer];
    const int unrotated = kvl__turns_back(a);
    const char* lack = kvl__ranges_lack(l, unrotated);
    if (lack) return kvl__derive_fail(a, lack);
    return kvl__book_derive(a->stats->ctx, l, unrotated, ((const kvl__codec*)a->codec)->bits, out);
}

// Bits of RoPE pairs, or the sizes that they are in units of.
KVL__FN kvl_status kvl__derive_pairs(const kvl_derive_args* a, float* out)
{
    const kvl__layer_statistics* l = &a->stats->layers[a->layer];
    const char* lack = kvl__pairs_lack(l);
    const int is_size = strcmp(a->table, "pair_size") == 0;
    if (lack) return kvl__derive_fail(a, lack);
    kvl__pairs_derive(l, (const kvl__codec*)a->codec, a->stats->unrotated, is_size ? NULL : out,
                      is_size ? out : NULL);
    return KVL_OK;
}

// Scales that the greatest value of calibration is the greatest level by, of a head or of all:
// gen/parts/meta_tensor.lua.
KVL__FN kvl_status kvl__derive_scale(const kvl_derive_args* a, float* out)
{
    const kvl__layer_statistics* l = &a->stats->layers[a->layer];
    const kvl__codec* c = (const kvl__codec*)a->codec;
    const kvl__book* book = kvl__book_of(c);
    const int per_head = strcmp(a->table, "head_scale") == 0;
    double top = book ? (double)book->top : 1.0, all = 0, most[1024];
    if (l->lacks_mosts)
        return kvl__derive_fail(a, "the statistics are of an older library, without the greatest "
                                "magnitudes (key_most, value_most): they must be taken again");
    if (kvl__transform_of(c) != KVL__TRANSFORM_NONE || c->words[KVL__STAGE_SHIFT] != 0)
        return kvl__derive_fail(a, "the greatest values are known of rows as they are: needs "
                                "transform = none, shift = none");
    if (c->words[KVL__STAGE_META] == KVL__META_E4M3FN_TENSOR) top *= 448.0;
    for (int h = 0; h < a->num_kv_heads; ++h) {
        most[h] = 0;
        for (int i = 0; i < a->head_dim; ++i)
            most[h] = fmax(most[h], l->heads[h].mosts[a->is_value][i]);
        all = fmax(all, most[h]);
    }
    for (int h = 0; h < a->num_kv_heads; ++h) {
        const float scale = (float)((per_head ? most[h] : all) / top);
        for (int i = 0; i < a->head_dim; ++i)
            out[h * a->head_dim + i] = scale > 0.0f ? scale : 1.0f;
    }
    return KVL_OK;
}

// Mean of keys before RoPE, its partner in each pair, angle, number of the partner.
KVL__FN kvl_status kvl__derive_rotating_mean(const kvl_derive_args* a, float* out)
{
    const kvl__layer_statistics* l = &a->stats->layers[a->layer];
    const int d = a->head_dim;
    if (!l->turns || a->is_value)
        return kvl__derive_fail(a, "needs to know how keys turn: kvl_layer_desc.rope");
    if (!(l->counts[KVL__COUNT_ROWS] > 0.0))
        return kvl__derive_fail(a, "the statistics have no rows");
    const int dims = kvl__turning_dims(l->turns, d);
    for (int h = 0; h < a->num_kv_heads; ++h, out += 4 * d) {
        const double* sum = l->heads[h].sums[KVL__SUM_KEY_UNROTATED];
        for (int c = 0; c < d; ++c) {
            out[c] = (float)(sum[c] / l->counts[KVL__COUNT_ROWS]);
            out[d + c] = out[2 * d + c] = 0.0f;
            out[3 * d + c] = (float)c;
        }
        for (int i = 0; i < dims / 2; ++i) {
            int first, second;
            kvl__pair_of(l->turns, dims, i, &first, &second);
            out[d + first] = -out[second];
            out[d + second] = out[first];
            out[2 * d + first] = out[2 * d + second] = (float)l->turns[1 + i];
            out[3 * d + first] = (float)second;
            out[3 * d + second] = (float)first;
        }
    }
    return KVL_OK;
}

// Queries by priority, in front what any codec takes; lse: their last number, else the others.
KVL__FN kvl_status kvl__derive_samples(const kvl_derive_args* a, int lse, float* out)
{
    const kvl__layer_statistics* l = &a->stats->layers[a->layer];
    kvl_context* ctx = a->stats->ctx;
    const int64_t num = a->shape[0], width = l->dk + 1;
    const int has = l->heads[0].queries.num;
    if (has < num) {
        snprintf(a->message, a->message_bytes, "the codec needs %lld queries: the statistics have "
                 "a sample of %d", (long long)num, has);
        return KVL_BAD_ARGUMENT;
    }
    const size_t bytes = (size_t)has * ((size_t)width * sizeof(float) + sizeof(double));
    double* priority = (double*)kvl__alloc(ctx, bytes);
    if (!priority) return kvl__statistics_no_memory(ctx);
    float* items = (float*)(void*)(priority + has);
    kvl_status status = KVL_OK;
    for (int h = 0; h < l->num_kv_heads && status == KVL_OK; ++h) {
        status = kvl__sample_sort(ctx, &l->heads[h].queries, items, priority, NULL);
        for (int64_t i = 0; i < num; ++i) {
            if (lse) out[h * num + i] = items[i * width + l->dk];
            else memcpy(out + (h * num + i) * l->dk, items + i * width,
                        (size_t)l->dk * sizeof *out);
        }
    }
    kvl__free(ctx, priority, bytes);
    return status;
}

KVL__FN kvl_status kvl__derive_queries(const kvl_derive_args* a, float* out)
{
    return kvl__derive_samples(a, 0, out);
}

KVL__FN kvl_status kvl__derive_query_lse(const kvl_derive_args* a, float* out)
{
    return kvl__derive_samples(a, 1, out);
}

// The mean of scaled q q^T over rows and query heads.
KVL__FN kvl_status kvl__derive_query_moment(const kvl_derive_args* a, float* out)
{
    const kvl__layer_statistics* l = &a->stats->layers[a->layer];
    const int64_t square = (int64_t)l->dk * l->dk, group = l->num_q_heads / l->num_kv_heads;
    const double rows = l->counts[KVL__COUNT_QUERIES] * (double)group;
    if (!(rows > 0.0)) return kvl__derive_fail(a, "the statistics have no queries");
    const double scale = (double)l->softmax_scale * (double)l->softmax_scale / rows;
    for (int h = 0; h < l->num_kv_heads; ++h)
        for (int64_t i = 0; i < square; ++i)
            out[h * square + i] = (float)(scale * l->heads[h].moments[KVL__MOMENT_QUERY][i]);
    return KVL_OK;
}

// CHOICES: what sampled runs of keys choose together, with the scores of the codec that chooses for
// each unit.

typedef struct kvl__choice_job {
    kvl_context*      ctx;
    const kvl__codec* fixed;
    const kvl__layer_statistics* l;
    const float*      records;         // of the codec that chooses, [num_kv_heads, stride]
    int64_t           stride;
    uint16_t*         rows;            // [num_kv_heads, KVL__RUN_ROWS, head_dim]
    int64_t           width;           // of out
    float*            out;
    kvl_status*       status;          // [num_kv_heads]
} kvl__choice_job;

KVL__FN void kvl__choice_head(void* arg, int64_t h, int thread)
{
    const kvl__choice_job* job = (const kvl__choice_job*)arg;
    const kvl__sample* keys = &job->l->heads[h].keys;
    uint16_t* rows = job->rows + h * keys->floats;
    kvl__choose_sums sums;
    uint32_t choice = 0;
    (void)thread;
    memset(&sums, 0, sizeof sums);
    for (int pass = 0; pass < 2; ++pass) {
        for (int run = 0; run < keys->num && job->status[h] == KVL_OK; ++run) {
            const float* from = keys->items + run * keys->floats;
            for (int64_t i = 0; i < keys->floats; ++i)
                rows[i] = job->fixed->rows ? kvl__f32_to_bf16_finite(from[i])
                                           : kvl__f32_to_f16_finite(from[i]);
            job->status[h] = kvl__choose_add(job->ctx, job->fixed, job->records + h * job->stride,
                                             rows, job->fixed->head_dim, KVL__RUN_ROWS,
                                             pass ? &choice : NULL, &sums);
        }
        choice = kvl__choose_pieces(job->fixed, &sums);
    }
    kvl__choose_fix(job->fixed, &sums, job->out + h * job->width);
}

KVL__FN kvl_status kvl__derive_layer(kvl_calibration* cal, const kvl_derive_desc* desc, int layer,
                                     const kvl__config* config);

KVL__FN kvl_status kvl__choose_heads(const kvl_derive_args* a, const kvl__config* config,
                                     const kvl_calibration* tables, float* out)
{
    kvl_context* ctx = a->stats->ctx;
    kvl__choice_job job;
    void* list = NULL;
    kvl_status status = KVL_OK;
    memset(&job, 0, sizeof job);
    job.ctx = ctx;
    job.fixed = (const kvl__codec*)a->codec;
    job.l = &a->stats->layers[a->layer];
    job.stride = kvl__record_floats(&config->side[0]);
    job.width = a->shape[0];
    job.out = out;
    const size_t heads = (size_t)a->num_kv_heads;
    float* records = (float*)kvl__list_alloc(ctx, &list, heads * (size_t)job.stride + 1,
                                             sizeof(float));
    job.rows = (uint16_t*)kvl__list_alloc(ctx, &list, heads * (size_t)job.l->heads[0].keys.floats,
                                          sizeof(uint16_t));
    job.status = (kvl_status*)kvl__list_alloc(ctx, &list, heads, sizeof *job.status);
    job.records = records;
    if (!records || !job.rows || !job.status) status = kvl__statistics_no_memory(ctx);
    if (status == KVL_OK)
        status = kvl__record_fill(ctx, &tables->source, a->layer, config, 0, records);
    if (status == KVL_OK) kvl__parallel(ctx, a->num_kv_heads, kvl__choice_head, &job);
    for (size_t h = 0; h < heads && status == KVL_OK; ++h) status = job.status[h];
    kvl__list_free(ctx, &list);
    return status;
}

KVL__FN kvl_status kvl__derive_choice(const kvl_derive_args* a, float* out)
{
    const kvl__layer_statistics* l = &a->stats->layers[a->layer];
    if (a->is_value || l->heads[0].keys.num == 0)
        return kvl__derive_fail(a, "the statistics have no run of 128 keys of one sequence");
    kvl__config config;
    memset(&config, 0, sizeof config);
    config.side[0] = kvl__choose_codec((const kvl__codec*)a->codec);
    config.num_stored = 1;
    config.num_kv_heads = a->num_kv_heads;
    config.num_heads = a->num_q_heads / a->num_kv_heads;
    kvl_calibration* tables = kvl__calibration_new(a->stats->ctx, "choice");
    if (!tables) return kvl__statistics_no_memory(a->stats->ctx);
    kvl_status status = kvl__derive_layer(tables, a->desc, a->layer, &config);
    if (status == KVL_OK) status = kvl__choose_heads(a, &config, tables, out);
    kvl_calibration_free(tables);
    return status;
}

static __attribute__((unused)) const kvl_derivation kvl__own_derivations[] = {
    { NULL, NULL, "mean", kvl__derive_mean, NULL },
    { NULL, NULL, "grouped_order", kvl__derive_order, NULL },
    { NULL, NULL, "outlier_order", kvl__derive_outliers, NULL },
    { NULL, NULL, "static_middle", kvl__derive_range, NULL },
    { NULL, NULL, "static_half", kvl__derive_range, NULL },
    { NULL, NULL, "kmeans_book", kvl__derive_book, NULL },
    { NULL, NULL, "pair_bits", kvl__derive_pairs, NULL },
    { NULL, NULL, "pair_size", kvl__derive_pairs, NULL },
    { NULL, NULL, "tensor_scale", kvl__derive_scale, NULL },
    { NULL, NULL, "head_scale", kvl__derive_scale, NULL },
    { NULL, NULL, "rotating_mean", kvl__derive_rotating_mean, NULL },
    { NULL, NULL, "queries", kvl__derive_queries, NULL },
    { NULL, NULL, "query_lse", kvl__derive_query_lse, NULL },
    { NULL, NULL, "query_moment", kvl__derive_query_moment, NULL },
    { NULL, NULL, "choice", kvl__derive_choice, NULL },
};

KVL__FN const kvl_derivation* kvl__derivation_find(const kvl_derive_desc* desc,
                                                   const kvl_derive_args* a)
{
    const int num_own = (int)(sizeof kvl__own_derivations / sizeof kvl__own_derivations[0]);
    for (int i = 0; i < desc->num_derivations + num_own; ++i) {
        const kvl_derivation* d = i < desc->num_derivations
            ? &desc->derivations[i] : &kvl__own_derivations[i - desc->num_derivations];
        if ((!d->stage || strcmp(d->stage, a->stage) == 0) &&
            (!d->word || strcmp(d->word, a->word) == 0) && strcmp(d->table, a->table) == 0)
            return d;
    }
    return NULL;
}

// Statistics are of keys before RoPE or of keys after it, and so are tables.  Some can be made of
// either: those that know where a key stood.
KVL__FN kvl_status kvl__check_unrotated(kvl_context* ctx, const kvl_derive_args* a,
                                        const kvl_derivation* d)
{
    const int wanted = kvl__derives_unrotated(a), has = a->stats->unrotated;
    const int either = d->derive == kvl__derive_mean || d->derive == kvl__derive_range ||
                       d->derive == kvl__derive_book || d->derive == kvl__derive_order ||
                       d->derive == kvl__derive_pairs;
    if (a->is_value || strcmp(a->stage, "bits") == 0 || wanted == has) return KVL_OK;
    KVL__REQUIRE(ctx, !wanted || either, KVL_UNSUPPORTED, "layer %d: k.%s = %s: its table '%s' of "
                 "keys before RoPE needs statistics of such keys: kvloom-calibrate --pre-rope, "
                 "kvl_statistics_desc.unrotated", a->layer, a->stage, a->word, a->table);
    KVL__REQUIRE(ctx, wanted, KVL_UNSUPPORTED, "layer %d: k.%s = %s: the statistics are of keys "
                 "before RoPE (kvloom-calibrate --pre-rope), and its table '%s' is of keys after "
                 "it", a->layer, a->stage, a->word, a->table);
    return KVL_OK;
}

// Makes one table, unless it is there.
KVL__FN kvl_status kvl__derive_table(kvl_calibration* cal, const kvl_derive_desc* desc,
                                     kvl_derive_args* a, const kvl__wanted_table* w)
{
    kvl_context* ctx = cal->ctx;
    const char side = w->side ? 'v' : 'k';
    const float* found = NULL;
    KVL__TRY(kvl__calibration_table(ctx, &cal->source, w, &found));
    if (found) return KVL_OK;
    char name[KVL__TENSOR_NAME], message[512] = "";
    const kvl_derivation* d = kvl__derivation_find(desc, a);
    KVL__REQUIRE(ctx, d, KVL_UNSUPPORTED, "layer %d: %c.%s = %s: nothing here makes its table '%s' "
                 "from statistics", w->layer, side, a->stage, a->word, a->table);
    if (!w->of_layer) KVL__TRY(kvl__check_unrotated(ctx, a, d));    // else rows are not theirs
    // The whole sample: another codec may ask for more of it.
    const int num_samples = a->stats->layers[w->layer].heads[0].queries.num;
    if (kvl__is_sample_table(w->name) && a->shape[0] < num_samples) a->shape[0] = num_samples;
    const int64_t shape[1 + KVL__TABLE_RANK] = { w->num_kv_heads, a->shape[0], a->shape[1] };
    snprintf(name, sizeof name, "layer.%d.%c.%s", w->layer, side, w->name);
    kvl__tensor* one = NULL;
    KVL__TRY(kvl__tensors_add(&cal->tensors, name, KVL__TENSOR_F32, shape, 1 + w->rank, &one));
    a->depends = w->name + strcspn(w->name, "@");
    a->depends += *a->depends == '@';
    a->message = message;
    a->message_bytes = sizeof message;
    a->user = d->user;
    const kvl_status status = d->derive(a, (float*)one->data);
    if (status == KVL_OK) return KVL_OK;
    kvl__tensors_remove(&cal->tensors, name);
    return message[0] ? kvl__fail(ctx, status, "layer %d: %c.%s = %s: table '%s': %s", w->layer,
                                  side, a->stage, a->word, a->table, message) : status;
}

KVL__FN kvl_status kvl__derive_layer(kvl_calibration* cal, const kvl_derive_desc* desc, int layer,
                                     const kvl__config* config)
{
    char text[KVL__SIDE_BYTES];
    kvl__wanted_table wanted;
    kvl_derive_args a;
    memset(&a, 0, sizeof a);
    a.desc = desc;
    a.stats = desc->stats;
    a.calibration = cal;
    a.layer = layer;
    a.num_q_heads = config->num_heads * config->num_kv_heads;
    a.num_kv_heads = config->num_kv_heads;
    a.side = text;
    for (int side = 0; side < config->num_stored; ++side) {
        const kvl__codec* c = &config->side[side];
        kvl__side_text(c, text, sizeof text);
        a.is_value = side;
        a.head_dim = c->head_dim;
        a.codec = c;
        for (int stage = 0; stage < KVL__NUM_STAGES; ++stage) {
            const kvl__word* word = kvl__word_of(c, stage);
            a.stage = kvl__stages[stage].name;
            a.word = word->name;
            a.number = c->numbers[stage];
            for (int i = 0; i < word->num_tables; ++i) {
                if (!kvl__table_is_needed(c, &word->tables[i])) continue;
                kvl__table_want(config, layer, side, stage, &word->tables[i], &wanted);
                a.table = word->tables[i].name;
                a.rank = wanted.rank;
                for (int j = 0; j < KVL__TABLE_RANK; ++j) a.shape[j] = wanted.shape[j];
                KVL__TRY(kvl__derive_table(cal, desc, &a, &wanted));
            }
        }
    }
    return KVL_OK;
}

// BITS OF LAYERS
//
// bits=auto: a table `bit_losses` [2] of each layer and side, the same in all heads, says what the
// output loses with that side of that layer alone at 1 bit and at 2.  Losses add up; beyond 2 bits
// they fall as they do for rows in a flat basis that are rounded with feedback
// (docs/transforms.md), and by how much a second bit helps, layers differ.  From the fewest bits
// on, the bit that takes most off for its place is given, until no other fits the budget.

typedef struct kvl__bits_item {
    double  losses[2];
    double  values;                    // of a row: head_dim times KV heads
    int32_t bits;
    const kvl__codec* codec;
} kvl__bits_item;

KVL__FN double kvl__loss_of_bits(const kvl__bits_item* item, int is_value, int bits)
{
    static const double shares[2][5] = { { 0, 0, 1, 0.27, 0.075 }, { 0, 0, 1, 0.25, 0.07 } };
    if (bits == 1) return item->losses[0];
    double loss = item->losses[1] * shares[is_value][bits < 4 ? bits : 4];
    for (int b = 4; b < bits; ++b) loss *= 0.26;
    return loss;
}

// The next width of a codec; 0: none.
KVL__FN int kvl__more_bits(const kvl__codec* c, int bits)
{
    for (int b = bits + 1; b <= 16; ++b)
        if (kvl__has_bits(c, b)) return b;
    return 0;
}

// items [2 num_layers], keys and values of each layer; NULL codecs are left out.
KVL__FN void kvl__bits_allocate(kvl__bits_item* items, int num, double budget)
{
    double left = 0;
    for (int i = 0; i < num; ++i) {
        if (!items[i].codec) continue;
        const kvl__codec* c = items[i].codec;
        items[i].bits = kvl__more_bits(c, 0);
        left += items[i].values * (budget - (kvl__codec_bits(c) - c->bits) - items[i].bits);
    }
    for (;;) {
        int best = -1;
        double most = -1;
        for (int i = 0; i < num; ++i) {
            const int more = items[i].codec ? kvl__more_bits(items[i].codec, items[i].bits) : 0;
            const double cost = items[i].values * (more - items[i].bits);
            if (!more || cost > left + 1e-6) continue;
            const double gain = (kvl__loss_of_bits(&items[i], i & 1, items[i].bits) -
                                 kvl__loss_of_bits(&items[i], i & 1, more)) / cost;
            if (gain > most) {
                most = gain;
                best = i;
            }
        }
        if (best < 0) return;
        const int more = kvl__more_bits(items[best].codec, items[best].bits);
        left -= items[best].values * (more - items[best].bits);
        items[best].bits = more;
    }
}

// Sets *item from the losses of a side, which are made where they are not there.
KVL__FN kvl_status kvl__derive_bit_losses(kvl_calibration* cal, const kvl_derive_desc* desc,
                                          kvl_derive_args* a, const kvl__config* config,
                                          kvl__bits_item* item)
{
    char text[KVL__SIDE_BYTES];
    kvl__wanted_table w;
    const float* found = NULL;
    a->stage = "bits";
    a->word = "auto";
    a->number = config->auto_bits;
    a->table = "bit_losses";
    a->rank = 1;
    a->side = text;
    a->shape[0] = 2;
    kvl__bit_losses_want(config, a->layer, a->is_value, &w);
    kvl__side_text(&config->side[a->is_value], text, sizeof text);
    KVL__TRY(kvl__derive_table(cal, desc, a, &w));
    KVL__TRY(kvl__calibration_table(cal->ctx, &cal->source, &w, &found));
    for (int i = 0; i < 2; ++i) {
        KVL__REQUIRE(cal->ctx, found && kvl__is_finite(found[i]) && found[i] >= 0,
                     KVL_BAD_ARGUMENT, "layer %d: %s = %g: must be finite and not negative",
                     a->layer, w.name, found ? (double)found[i] : 0.0);
        item->losses[i] = (double)found[i];
    }
    // What is measured has noise; a bit never harms.
    if (item->losses[0] < item->losses[1]) item->losses[0] = item->losses[1];
    item->values = (double)config->side[a->is_value].head_dim * config->num_kv_heads;
    item->codec = &config->side[a->is_value];
    return KVL_OK;
}

// The tables `bits` of one group of layers that have one budget: those like configs[first].
KVL__FN kvl_status kvl__derive_bits(kvl_calibration* cal, const kvl_derive_desc* desc,
                                    kvl__config* configs, kvl__bits_item* items, int num_layers)
{
    kvl_derive_args a;
    int32_t budget = 0;
    memset(&a, 0, sizeof a);
    memset(items, 0, 2 * (size_t)num_layers * sizeof *items);
    a.desc = desc;
    a.stats = desc->stats;
    a.calibration = cal;
    for (int i = 0; i < num_layers; ++i) {
        kvl__config* c = &configs[i];
        if (!c->auto_bits) continue;
        KVL__REQUIRE(cal->ctx, !budget || budget == c->auto_bits, KVL_UNSUPPORTED,
                     "layer %d: bits = auto:%g: layers before it have auto:%g; a budget is of all "
                     "layers that leave their bits open", i, c->auto_bits / 1000.0,
                     budget / 1000.0);
        budget = c->auto_bits;
        a.layer = i;
        a.num_q_heads = c->num_heads * c->num_kv_heads;
        a.num_kv_heads = c->num_kv_heads;
        for (int side = 0; side < c->num_stored; ++side) {
            a.is_value = side;
            a.head_dim = c->side[side].head_dim;
            a.codec = &c->side[side];
            KVL__TRY(kvl__derive_bit_losses(cal, desc, &a, c, &items[2 * i + side]));
        }
    }
    kvl__bits_allocate(items, 2 * num_layers, budget / 1000.0);
    for (int i = 0; i < 2 * num_layers; ++i) {
        kvl__wanted_table w;
        char name[KVL__TENSOR_NAME];
        if (!items[i].codec) continue;
        const int64_t shape[2] = { configs[i / 2].num_kv_heads, 1 };
        kvl__tensor* one = NULL;
        kvl__bits_want(&configs[i / 2], i / 2, i & 1, &w);
        snprintf(name, sizeof name, "layer.%d.%c.%s", i / 2, i & 1 ? 'v' : 'k', w.name);
        KVL__TRY(kvl__tensors_add(&cal->tensors, name, KVL__TENSOR_F32, shape, 2, &one));
        for (int h = 0; h < shape[0]; ++h) ((float*)one->data)[h] = (float)items[i].bits;
    }
    for (int i = 0; i < num_layers; ++i)
        if (configs[i].auto_bits)
            KVL__TRY(kvl__bits_choose(cal->ctx, &cal->source, i, &configs[i]));
    return KVL_OK;
}

KVL__FN kvl_status kvl__derive_layers(kvl_calibration* cal, const kvl_derive_desc* desc,
                                      const kvl_cache_desc* cache, kvl__config* configs,
                                      kvl__bits_item* items)
{
    int open = 0;
    for (int i = 0; i < cache->num_layers; ++i) {
        configs[i].auto_bits = 0;
        if (cache->layers[i].num_kv_heads == 0) continue;
        KVL__TRY(kvl__config_parse(cal->ctx, i, &cache->layers[i], cache->spec, &configs[i]));
        open += configs[i].auto_bits != 0;
    }
    if (open) KVL__TRY(kvl__derive_bits(cal, desc, configs, items, cache->num_layers));
    for (int i = 0; i < cache->num_layers; ++i)
        if (cache->layers[i].num_kv_heads)
            KVL__TRY(kvl__derive_layer(cal, desc, i, &configs[i]));
    return KVL_OK;
}

// Whether a layer of statistics turns as the calibration says.  saves: it must say so.
KVL__FN kvl_status kvl__check_turns_of(const kvl_calibration* cal, const kvl__layer_statistics* l,
                                       int layer, int saves)
{
    char name[64];
    snprintf(name, sizeof name, "layer.%d.rope", layer);
    const kvl__tensor* one = kvl__calibration_find(cal, name, KVL__TENSOR_F64);
    if (!one && !l->turns) return KVL_OK;
    int same = one && l->turns ? one->rank == 1 && one->shape[0] == 1 + l->dk / 2 : !saves;
    for (int i = 0; same && one && l->turns && i < 1 + l->dk / 2; ++i)
        same = fabs(((const double*)one->data)[i] - l->turns[i]) <= 1e-5 * fabs(l->turns[i]);
    KVL__REQUIRE(cal->ctx, same, KVL_BAD_ARGUMENT, "%s: layer %d: calibrated with another RoPE "
                 "setting than that of the statistics", cal->name, layer);
    return KVL_OK;
}

// Whether statistics are of the layers that the calibration is of.
KVL__FN kvl_status kvl__check_layers_of(const kvl_calibration* cal, const kvl_statistics* stats,
                                        int saves)
{
    const kvl__tensor* layers = kvl__calibration_find(cal, "layers", KVL__TENSOR_F64);
    const double* shape = (const double*)layers->data;
    KVL__REQUIRE(cal->ctx, layers->shape[0] == stats->num_layers, KVL_BAD_ARGUMENT,
                 "%s: calibrated for a model of %lld layers: the statistics have %d", cal->name,
                 (long long)layers->shape[0], stats->num_layers);
    for (int i = 0; i < stats->num_layers; ++i, shape += KVL__NUM_SHAPES) {
        double has[KVL__NUM_SHAPES];
        kvl__shapes_of_layer(&stats->layers[i], has);
        if (has[KVL__SHAPE_KV_HEADS] == 0.0 && shape[KVL__SHAPE_KV_HEADS] == 0.0) continue;
        // Heads first: a layer without them has no other number.
        for (int j = 0; j < KVL__NUM_SHAPES; ++j) {
            const int at = j < 2 ? 1 - j : j;
            KVL__REQUIRE(cal->ctx, fabs(shape[at] - has[at]) <= 1e-6 * has[at], KVL_BAD_ARGUMENT,
                         "%s: layer %d: calibrated with %s = %.7g: the statistics have %.7g",
                         cal->name, i, kvl__shape_names[at], shape[at], has[at]);
        }
        KVL__TRY(kvl__check_turns_of(cal, &stats->layers[i], i, saves));
    }
    return KVL_OK;
}

KVL__FN kvl_status kvl__check_derivations(kvl_context* ctx, const kvl_derive_desc* desc)
{
    KVL__REQUIRE(ctx, desc->num_derivations >= 0 && (desc->derivations || !desc->num_derivations),
                 KVL_BAD_ARGUMENT, "num_derivations = %d: must not be negative, and 0 with "
                 "derivations = NULL", desc->num_derivations);
    for (int i = 0; i < desc->num_derivations; ++i)
        KVL__REQUIRE(ctx, desc->derivations[i].table && desc->derivations[i].derive,
                     KVL_BAD_ARGUMENT, "derivations[%d].table or derive = NULL: must be given", i);
    return KVL_OK;
}

KVL__PUBLIC kvl_status kvl_calibration_derive(kvl_calibration* cal, const kvl_derive_desc* desc)
{
    if (!cal) return KVL_BAD_ARGUMENT;
    kvl_context* ctx = cal->ctx;
    KVL__REQUIRE(ctx, desc && desc->stats && desc->cache, KVL_BAD_ARGUMENT,
                 "desc, its stats or its cache = NULL: must be given");
    KVL__REQUIRE(ctx, desc->end == 0, KVL_BAD_ARGUMENT,
                 "kvl_derive_desc.end = %u: must be 0: zero the whole desc first", desc->end);
    KVL__TRY(kvl__check_derivations(ctx, desc));
    KVL__TRY(kvl__check_layers_of(cal, desc->stats, 0));
    kvl_cache_desc cache = *desc->cache;
    cache.calibration = cal;
    KVL__TRY(kvl__check_cache_desc(ctx, &cache));      // of the calibration's layers as well
    void* list = NULL;
    const size_t num = (size_t)cache.num_layers;
    kvl__config* configs = (kvl__config*)kvl__list_alloc(ctx, &list, num, sizeof *configs);
    kvl__bits_item* items = (kvl__bits_item*)kvl__list_alloc(ctx, &list, 2 * num, sizeof *items);
    const kvl_status status = configs && items
        ? kvl__derive_layers(cal, desc, &cache, configs, items) : kvl__tensors_no_memory(ctx);
    kvl__list_free(ctx, &list);
    return status;
}

KVL__PUBLIC kvl_status kvl_calibration_create(const kvl_statistics* stats,
                                              const kvl_cache_desc* cache, kvl_calibration** out)
{
    if (out) *out = NULL;
    if (!stats) return KVL_BAD_ARGUMENT;
    kvl_context* ctx = stats->ctx;
    KVL__REQUIRE(ctx, out, KVL_BAD_ARGUMENT, "out = NULL: must be given");
    kvl_calibration* cal = kvl__calibration_new(ctx, "calibration");
    if (!cal) return kvl__tensors_no_memory(ctx);
    kvl_status status = kvl__store_shapes(stats, &cal->tensors);
    if (status == KVL_OK && cache && cache->model_identity)
        status = kvl__tensors_set_text(&cal->tensors, "model", cache->model_identity);
    if (status == KVL_OK && cache) {
        kvl_derive_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.stats = stats;
        desc.cache = cache;
        status = kvl_calibration_derive(cal, &desc);
    }
    if (status != KVL_OK) {
        kvl_calibration_free(cal);
        return status;
    }
    *out = cal;
    return KVL_OK;
}

// Whether a file of the calibration can have these statistics.
KVL__FN kvl_status kvl__check_saved(const kvl_calibration* cal, const kvl_statistics* stats)
{
    const char* of = kvl__tensors_text(&cal->tensors, "statistics_of");
    KVL__REQUIRE(cal->ctx, stats->unrotated == (of[0] != 0), KVL_BAD_ARGUMENT,
                 "%s: statistics_of = '%.40s': the statistics have unrotated = %d: must be of keys "
                 "before RoPE, or after it, as those that the calibration was created from",
                 cal->name, of, stats->unrotated);
    return kvl__check_layers_of(cal, stats, 1);
}

KVL__PUBLIC kvl_status kvl_calibration_save(kvl_calibration* cal, const kvl_statistics* stats,
                                            const char* path)
{
    if (!cal) return KVL_BAD_ARGUMENT;
    kvl_context* ctx = cal->ctx;
    KVL__REQUIRE(ctx, path, KVL_BAD_ARGUMENT, "path = NULL: must be given");
    kvl_status status = KVL_OK;
    if (stats) {
        KVL__TRY(kvl__check_saved(cal, stats));
        kvl__exchange x = { (kvl_statistics*)(void*)(uintptr_t)stats, &cal->tensors, NULL, 0 };
        status = kvl__exchange_layers(&x);             // writes: reads stats alone
    }
    for (int i = 0; i < 2 && status == KVL_OK; ++i) {
        char hex[33];
        kvl__calibration_hash(&cal->tensors, i, hex);
        status = kvl__tensors_set_text(&cal->tensors, kvl__hash_name(i), i && !stats ? "" : hex);
    }
    if (status == KVL_OK) status = kvl__tensors_write(&cal->tensors, path);
    kvl__calibration_drop_statistics(&cal->tensors);
    return status;
}

#endif
