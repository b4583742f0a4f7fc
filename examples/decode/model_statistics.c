// model_statistics.c -- rows of a session's layers into kvl_statistics.
//
// A batch that is not the first of its sequence needs the keys and values before it: they are kept,
// layer by layer, as long as more batches may come.

#include "model_statistics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_internal.h"

// Rows of one layer so far.
typedef struct kept_rows {
    float *k, *v;            // [context_len, heads, head_dim]; NULL: none
    int64_t count;
} kept_rows;

struct model_gather {
    const model* m;
    model_gather_desc desc;
    kvl_statistics* stats;
    kept_rows* layers;       // [num_layers]
    uint64_t sequence;
    char message[512];       // of the sequence in progress; "": nothing is wrong
};

static void* fail(char* message, size_t message_bytes, const char* what)
{
    snprintf(message, message_bytes, "%s", what);
    return NULL;
}

// The matrix that takes a layer's heads to the residual stream, as floats.
static bool set_output(const model* m, int layer, kvl_statistics* stats)
{
    const matrix* o = &m->layers[layer].o;
    float* w = malloc((size_t)(o->rows * o->cols) * sizeof *w);
    if (w == NULL) { return false; }
    for (int64_t row = 0; row < o->rows; row++) {
        const char* data = o->data;
        matrix_dequantize_row(o->type, data + row * o->row_bytes, o->cols, w + row * o->cols);
    }
    const kvl_status status = kvl_statistics_set_output(stats, layer, w, o->rows);
    free(w);
    return status == KVL_OK;
}

kvl_statistics* model_empty_statistics(const model* m, const model_gather_desc* desc,
                                       char* message, size_t message_bytes)
{
    const int num_layers = m->geometry.num_layers;
    kvl_statistics* stats = NULL;
    kvl_layer_desc* layers = calloc((size_t)num_layers, sizeof *layers);
    if (layers == NULL) { return fail(message, message_bytes, "out of memory"); }
    model_describe_layers(m, NULL, layers);
    const kvl_statistics_desc sd = { .num_layers = num_layers, .layers = layers,
                                     .num_queries = desc->num_queries,
                                     .num_key_runs = desc->num_key_runs, .seed = desc->seed,
                                     .unrotated = desc->unrotated };
    bool ok = kvl_statistics_create(desc->ctx, &sd, &stats) == KVL_OK;
    for (int layer = 0; ok && layer < num_layers; layer++) { ok = set_output(m, layer, stats); }
    free(layers);
    if (ok) { return stats; }
    const char* what = kvl_context_message(desc->ctx);
    kvl_statistics_free(stats);
    return fail(message, message_bytes, what[0] != 0 ? what : "out of memory");
}

int model_gather_create(const model* m, const model_gather_desc* desc, model_gather** out,
                        char* message, size_t message_bytes)
{
    *out = NULL;
    model_gather* g = calloc(1, sizeof *g);
    if (g != NULL) { g->layers = calloc((size_t)m->geometry.num_layers, sizeof *g->layers); }
    if (g == NULL || g->layers == NULL) {
        free(g);
        fail(message, message_bytes, "out of memory");
        return 1;
    }
    g->m = m;
    g->desc = *desc;
    if (desc->context_len <= 0) { g->desc.context_len = m->geometry.context_len; }
    if (desc->max_rows > 0 && desc->max_rows < g->desc.context_len) {
        g->desc.context_len = desc->max_rows;
    }
    g->stats = model_empty_statistics(m, desc, message, message_bytes);
    if (g->stats == NULL) {
        model_gather_free(g);
        return 1;
    }
    *out = g;
    return 0;
}

static void forget_rows(model_gather* g)
{
    for (int layer = 0; layer < g->m->geometry.num_layers; layer++) {
        free(g->layers[layer].k);
        free(g->layers[layer].v);
        g->layers[layer] = (kept_rows){ .k = NULL };
    }
}

void model_gather_free(model_gather* g)
{
    if (g == NULL) { return; }
    forget_rows(g);
    free(g->layers);
    kvl_statistics_free(g->stats);
    free(g);
}

// Appends rows to those that are kept.
static bool keep_rows(model_gather* g, const model_rows* rows, int64_t num)
{
    const model_layer_geometry* shape = &g->m->layer_geometry[rows->layer];
    kept_rows* kept = &g->layers[rows->layer];
    const size_t k = (size_t)shape->num_kv_heads * (size_t)shape->head_dim;
    const size_t v = (size_t)shape->num_kv_heads * (size_t)shape->head_dim_v;
    const size_t most = (size_t)g->desc.context_len;
    if (kept->k == NULL) { kept->k = malloc(most * k * sizeof(float)); }
    if (kept->v == NULL) { kept->v = malloc(most * v * sizeof(float)); }
    if (kept->k == NULL || kept->v == NULL) { return false; }
    memcpy(kept->k + (size_t)kept->count * k, rows->k, (size_t)num * k * sizeof(float));
    memcpy(kept->v + (size_t)kept->count * v, rows->v, (size_t)num * v * sizeof(float));
    kept->count += num;
    return true;
}

void model_gather_see(void* user, const model_rows* rows)
{
    model_gather* g = user;
    kept_rows* kept = &g->layers[rows->layer];
    const int64_t left = g->desc.context_len - rows->first_position;
    const int64_t num = rows->num_rows < left ? rows->num_rows : left;
    const bool whole = rows->first_position == 0 && num == g->desc.context_len;
    if (g->message[0] != 0 || num <= 0) { return; }
    if (rows->first_position != kept->count) {
        snprintf(g->message, sizeof g->message, "layer %d: rows from position %lld on after %lld",
                 rows->layer, (long long)rows->first_position, (long long)kept->count);
        return;
    }
    if (!whole && !keep_rows(g, rows, num)) {
        fail(g->message, sizeof g->message, "out of memory: keys and values of a sequence");
        return;
    }
    kvl_statistics_rows add = { .layer = rows->layer, .sequence = g->sequence,
                                .num_keys = rows->first_position + num, .num_rows = num };
    add.k.data = whole ? rows->k : kept->k;
    add.v.data = whole ? rows->v : kept->v;
    add.q.data = rows->q;
    if (kvl_statistics_add(g->stats, &add) != KVL_OK) {
        snprintf(g->message, sizeof g->message, "layer %d: %.400s", rows->layer,
                 kvl_context_message(g->desc.ctx));
    }
}

void model_gather_begin(model_gather* g, uint64_t sequence)
{
    forget_rows(g);
    g->sequence = sequence;
    g->message[0] = 0;
}

int model_gather_end(model_gather* g)
{
    forget_rows(g);
    return g->message[0] != 0 ? MODEL_FAILED : MODEL_OK;
}

const char* model_gather_message(const model_gather* g) { return g->message; }
kvl_statistics* model_gather_statistics(model_gather* g) { return g->stats; }

int model_gather_calibrate(const model_gather* g, const model_calibrate_desc* desc,
                           kvl_calibration** out, char* message, size_t message_bytes)
{
    char identity[MODEL_IDENTITY_BYTES];
    const int num_layers = g->m->geometry.num_layers;
    *out = NULL;
    kvl_layer_desc* layers = calloc((size_t)num_layers, sizeof *layers);
    if (layers == NULL) {
        fail(message, message_bytes, "out of memory");
        return 1;
    }
    model_describe_layers(g->m, desc->specs, layers);
    model_identity(g->m, identity);
    const kvl_cache_desc cache = { .num_layers = num_layers, .layers = layers };
    const kvl_derive_desc derive = { .stats = g->stats, .cache = &cache,
                                     .derivations = desc->derivations,
                                     .num_derivations = desc->num_derivations };
    kvl_status status = kvl_calibration_create(g->stats, NULL, out);
    if (status == KVL_OK) { status = kvl_calibration_set_text(*out, "model", identity); }
    if (status == KVL_OK) { status = kvl_calibration_derive(*out, &derive); }
    free(layers);
    if (status == KVL_OK) { return 0; }
    fail(message, message_bytes, kvl_context_message(g->desc.ctx));
    kvl_calibration_free(*out);
    *out = NULL;
    return 1;
}
