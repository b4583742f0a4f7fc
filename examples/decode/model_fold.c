// model_fold.c -- the basis of values, folded into the weights of a model.
//
// With F and Q of a KV head (kvl_value_basis): W_V <- F^T W_V, its bias b <- b F, and of each query
// head W_O <- W_O Q. Products are summed in double, so that what comes out of the model differs by
// the rounding of floats alone.

#include "model_internal.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

// One layer: bases [num_kv_heads, dim, dim], and its new weights.
typedef struct fold {
    const model* m;
    const model_layer_geometry* g;
    const model_layer* layer;
    float *forward, *query;
    double *a, *b, *c;   // room: of a basis, of a head's weights and of their product
    float *v, *o, *v_bias;
} fold;

static void to_doubles(const float* x, int64_t count, double* out)
{
    for (int64_t i = 0; i < count; i++) { out[i] = (double)x[i]; }
}

static void to_floats(const double* x, int64_t count, float* out)
{
    for (int64_t i = 0; i < count; i++) { out[i] = (float)x[i]; }
}

static const void* row_of(const matrix* w, int64_t row)
{
    return (const char*)w->data + row * w->row_bytes;
}

// F^T W_V and b F of a KV head.
static void fold_values(const fold* f, int head)
{
    const int dim = f->g->head_dim_v, hidden = (int)f->layer->v.cols;
    const int64_t first = (int64_t)head * dim;
    float* rows = f->v + first * hidden;
    for (int i = 0; i < dim; i++) {
        matrix_dequantize_row(f->layer->v.type, row_of(&f->layer->v, first + i), hidden,
                              rows + (int64_t)i * hidden);
    }
    to_doubles(f->forward + first * dim, (int64_t)dim * dim, f->a);
    to_doubles(rows, (int64_t)dim * hidden, f->b);
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, dim, hidden, dim, 1.0, f->a, dim, f->b,
                hidden, 0.0, f->c, hidden);
    to_floats(f->c, (int64_t)dim * hidden, rows);
    for (int j = 0; f->v_bias != NULL && j < dim; j++) {
        double sum = 0.0;
        for (int i = 0; i < dim; i++) {
            sum += (double)f->layer->v_bias[first + i] * f->a[i * dim + j];
        }
        f->v_bias[first + j] = (float)sum;
    }
}

// W_O Q of a query head: its columns of W_O, which f->o has as floats.
static void fold_output(const fold* f, int head)
{
    const int dim = f->g->head_dim_v, hidden = (int)f->layer->o.rows;
    const int64_t cols = f->layer->o.cols, first = (int64_t)head * dim;
    const int kv_head = head / (f->g->num_q_heads / f->g->num_kv_heads);
    to_doubles(f->query + (int64_t)kv_head * dim * dim, (int64_t)dim * dim, f->a);
    for (int row = 0; row < hidden; row++) {
        to_doubles(f->o + row * cols + first, dim, f->b + (int64_t)row * dim);
    }
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, hidden, dim, dim, 1.0, f->b, dim, f->a,
                dim, 0.0, f->c, dim);
    for (int row = 0; row < hidden; row++) {
        to_floats(f->c + (int64_t)row * dim, dim, f->o + row * cols + first);
    }
}

static bool allocate(fold* f, model* m)
{
    const int64_t dim = f->g->head_dim_v, bases = f->g->num_kv_heads * dim * dim;
    const size_t room = (size_t)(dim * m->geometry.hidden_len);
    f->forward = malloc((size_t)bases * sizeof(float));
    f->query = malloc((size_t)bases * sizeof(float));
    f->a = malloc((size_t)(dim * dim) * sizeof(double));
    f->b = malloc(room * sizeof(double));
    f->c = malloc(room * sizeof(double));
    f->v = model_keep_floats(m, f->layer->v.rows * f->layer->v.cols);
    f->o = model_keep_floats(m, f->layer->o.rows * f->layer->o.cols);
    if (f->layer->v_bias != NULL) { f->v_bias = model_keep_floats(m, f->layer->v.rows); }
    return f->forward != NULL && f->query != NULL && f->a != NULL && f->b != NULL &&
           f->c != NULL && f->v != NULL && f->o != NULL &&
           (f->layer->v_bias == NULL || f->v_bias != NULL);
}

static void set_floats(matrix* w, const float* data)
{
    w->type = MATRIX_F32;
    w->data = data;
    w->row_bytes = w->cols * (int64_t)sizeof *data;
}

static uint64_t hash_of(const float* forward, const model_layer_geometry* g)
{
    const size_t count = (size_t)(g->num_kv_heads * g->head_dim_v * g->head_dim_v);
    const uint64_t hash = XXH3_64bits(forward, count * sizeof *forward);
    return hash != 0 ? hash : 1;
}

// Makes the new weights of a layer; *out is the layer with them.
static bool fold_layer(model* m, int layer, const model_fold_desc* desc,
                       const kvl_layer_desc* of_cache, model_layer* out,
                       const model_report* report)
{
    fold f = { .m = m, .g = &m->layer_geometry[layer], .layer = &m->layers[layer] };
    bool ok = allocate(&f, m) || model_fail(report, "out of memory");
    if (ok && kvl_value_basis(desc->ctx, desc->calibration, layer, of_cache, f.forward,
                              f.query) != KVL_OK) {
        ok = model_fail(report, "%s", kvl_context_message(desc->ctx));
    }
    if (ok) {
        const matrix* o = &f.layer->o;
        for (int64_t row = 0; row < o->rows; row++) {
            matrix_dequantize_row(o->type, row_of(o, row), o->cols, f.o + row * o->cols);
        }
        for (int head = 0; head < f.g->num_kv_heads; head++) { fold_values(&f, head); }
        for (int head = 0; head < f.g->num_q_heads; head++) { fold_output(&f, head); }
        *out = *f.layer;
        set_floats(&out->v, f.v);
        set_floats(&out->o, f.o);
        if (f.v_bias != NULL) { out->v_bias = f.v_bias; }
        out->folded = hash_of(f.forward, f.g);
    }
    free(f.forward);
    free(f.query);
    free(f.a);
    free(f.b);
    free(f.c);
    return ok;
}

static bool is_folded(kvl_context* ctx, const kvl_layer_desc* layer)
{
    kvl_layer_info info;
    return layer->num_kv_heads > 0 && kvl_spec_check(ctx, layer, &info) == KVL_OK &&
           info.value_basis == KVL_BASIS_FOLDED;
}

// Layers with their specs.
static void describe(const model* m, const model_fold_desc* desc, kvl_layer_desc* layers)
{
    model_describe_layers(m, desc->specs, layers);
    for (int i = 0; i < m->geometry.num_layers; i++) {
        if (layers[i].spec == NULL) { layers[i].spec = desc->spec; }
    }
}

int model_fold(model* m, const model_fold_desc* desc, char* message, size_t message_bytes)
{
    const model_report report = { message, message_bytes };
    const int num_layers = m->geometry.num_layers;
    kvl_layer_desc* layers = calloc((size_t)num_layers, sizeof *layers);
    model_layer* made = calloc((size_t)num_layers, sizeof *made);
    bool ok = (layers != NULL && made != NULL) || model_fail(&report, "out of memory");
    if (ok) {
        describe(m, desc, layers);
        memcpy(made, m->layers, (size_t)num_layers * sizeof *made);
    }
    for (int i = 0; ok && i < num_layers; i++) {
        if (m->layers[i].folded != 0) {
            ok = model_fail(&report, "layer %d: its weights have a basis folded in already", i);
        } else if (is_folded(desc->ctx, &layers[i])) {
            ok = fold_layer(m, i, desc, &layers[i], &made[i], &report);
        }
    }
    if (ok) { memcpy(m->layers, made, (size_t)num_layers * sizeof *made); }
    free(layers);
    free(made);
    return !ok;
}

static bool check_layer(const model* m, int layer, const model_fold_desc* desc,
                        const kvl_layer_desc* of_cache, const model_report* report)
{
    const model_layer_geometry* g = &m->layer_geometry[layer];
    const uint64_t has = m->layers[layer].folded;
    uint64_t wants = 0;
    if (is_folded(desc->ctx, of_cache)) {
        const size_t count = (size_t)(g->num_kv_heads * g->head_dim_v * g->head_dim_v);
        float* forward = malloc(count * sizeof *forward);
        if (forward == NULL) { return model_fail(report, "out of memory"); }
        const bool ok = kvl_value_basis(desc->ctx, desc->calibration, layer, of_cache, forward,
                                        NULL) == KVL_OK;
        wants = ok ? hash_of(forward, g) : 0;
        free(forward);
        if (!ok) { return model_fail(report, "%s", kvl_context_message(desc->ctx)); }
    }
    return has == wants ||
           model_fail(report, "layer %d: %s", layer,
                      has == 0 ? "v.place = folded: the weights have no basis folded in"
                      : wants == 0 ? "the weights have a basis folded in: v.place must be folded"
                                   : "the weights have another basis folded in");
}

bool model_check_fold(const model* m, const model_fold_desc* desc, const model_report* report)
{
    const int num_layers = m->geometry.num_layers;
    kvl_layer_desc* layers = calloc((size_t)num_layers, sizeof *layers);
    if (layers == NULL) { return model_fail(report, "out of memory"); }
    describe(m, desc, layers);
    bool ok = true;
    for (int i = 0; ok && i < num_layers; i++) {
        ok = check_layer(m, i, desc, &layers[i], report);
    }
    free(layers);
    return ok;
}
