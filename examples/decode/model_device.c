// model_device.c -- a session whose context has a device: weights, rows and cache are there.
//
// The host looks up embeddings and fills tables of angles, uploads both for a batch, and gets
// logits back; between the two, layers are launches in one stream (steps.cu, products.cu), which
// the library compiles at first use. Activations and sums are floats.

#include "model_internal.h"

#include "device_args.h"
#include "model_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NUM_STEPS = 5,
    LOGIT_ROWS = 32,   // at a time
    FEW_ROWS = 16      // up to here a warp for each row of a matrix; beyond, tiles
};

static const char* const step_names[NUM_STEPS] = { "norm_rows", "add_rows", "rotate_rows",
                                                   "gate_rows", "attend_rows" };
enum { STEP_NORM, STEP_ADD, STEP_ROTATE, STEP_GATE, STEP_ATTEND };

struct model_device {
    model_buffers rows;            // as the session's, in memory of the device
    uint64_t rows_bytes;
    float* logits;                 // [LOGIT_ROWS, vocab_size]
    void* past;                    // of model_restore: MODEL_PAST_ROWS
    uint64_t past_bytes, logits_bytes;
    model_layer* layers;           // [num_layers] as the model's, with addresses of the device
    matrix output;
    const float* output_norm;
    void* weights;
    uint64_t weights_bytes;
    void* steps[NUM_STEPS];
    void* products[MATRIX_TYPE_END][2];    // multiply_few, multiply_many of each type in use
};

// KERNELS

// Texts one after the other, with `first` before the last; to be freed. NULL: no memory.
static char* join_texts(const char* const* paths, int count, const char* first)
{
    size_t bytes = strlen(first) + 1, at = 0;
    for (int i = 0; i < count; i++) {
        const char* const* line = model_text_find(paths[i]);
        for (; line != NULL && *line != NULL; line++) { bytes += strlen(*line); }
    }
    char* text = malloc(bytes);
    if (text == NULL) { return NULL; }
    for (int i = 0; i < count; i++) {
        if (i == count - 1) { at += (size_t)sprintf(text + at, "%s", first); }
        const char* const* line = model_text_find(paths[i]);
        for (; line != NULL && *line != NULL; line++) {
            const size_t n = strlen(*line);
            memcpy(text + at, *line, n);
            at += n;
        }
    }
    text[at] = '\0';
    return text;
}

// Kernels of one program.
static bool get_kernels(model_session* s, const char* name, const char* path, const char* first,
                        const char* const* entries, int count, void** out)
{
    const char* const paths[] = { "examples/decode/types.cu", "examples/decode/device_args.h",
                                  path };
    char* text = join_texts(paths, 3, first);
    bool ok = text != NULL;
    for (int i = 0; ok && i < count; i++) {
        const kvl_kernel_desc desc = { .name = name, .text = text, .entry = entries[i] };
        ok = kvl_device_kernel(s->ctx, &desc, &out[i]) == KVL_OK;
    }
    free(text);
    return ok;
}

static bool get_products(model_session* s, int type)
{
    static const char* const entries[] = { "multiply_few", "multiply_many" };
    void** out = s->device->products[type];
    char name[40], first[40];
    if (out[0] != NULL) { return true; }
    snprintf(name, sizeof name, "products-%d", type);
    snprintf(first, sizeof first, "enum { weight_type = %d };\n", type);
    return get_kernels(s, name, "examples/decode/products.cu", first, entries, 2, out);
}

static bool get_all_kernels(model_session* s)
{
    const model* m = s->m;
    bool ok = get_kernels(s, "steps", "examples/decode/steps.cu", "", step_names, NUM_STEPS,
                          s->device->steps) &&
              get_products(s, m->output.type);
    for (int i = 0; ok && i < m->geometry.num_layers; i++) {
        const model_layer* w = &m->layers[i];
        const matrix* all[] = { &w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down };
        for (size_t j = 0; ok && j < sizeof all / sizeof all[0]; j++) {
            ok = get_products(s, all[j]->type);
        }
    }
    return ok;
}

// WEIGHTS

// Gives every tensor its place in one allocation; the first time round it only counts.
typedef struct weight_loader {
    model_session* s;
    char* base;                    // NULL: counting
    uint64_t at;
    bool failed;
} weight_loader;

static const void* place(weight_loader* l, const void* data, int64_t bytes)
{
    char* to = l->base + l->at;
    if (data == NULL) { return NULL; }
    l->at += ((uint64_t)bytes + 255) / 256 * 256;
    if (l->base == NULL || l->failed) { return NULL; }
    l->failed = kvl_device_write(l->s->ctx, to, data, (uint64_t)bytes) != KVL_OK;
    return to;
}

static void place_floats(weight_loader* l, const float** floats, int64_t n)
{
    *floats = place(l, *floats, n * (int64_t)sizeof(float));
}

static void place_matrix(weight_loader* l, matrix* w)
{
    w->data = place(l, w->data, w->rows * w->row_bytes);
}

static void place_all(weight_loader* l)
{
    const model* m = l->s->m;
    model_device* d = l->s->device;
    const int64_t hidden = m->geometry.hidden_len;
    memcpy(d->layers, m->layers, (size_t)m->geometry.num_layers * sizeof *d->layers);
    d->output = m->output;
    d->output_norm = m->output_norm;
    place_matrix(l, &d->output);
    place_floats(l, &d->output_norm, hidden);
    for (int i = 0; i < m->geometry.num_layers; i++) {
        model_layer* w = &d->layers[i];
        matrix* const all[] = { &w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down };
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++) { place_matrix(l, all[j]); }
        place_floats(l, &w->q_bias, w->q.rows);
        place_floats(l, &w->k_bias, w->k.rows);
        place_floats(l, &w->v_bias, w->v.rows);
        place_floats(l, &w->o_bias, hidden);
        place_floats(l, &w->q_norm, m->layer_geometry[i].head_dim);
        place_floats(l, &w->k_norm, m->layer_geometry[i].head_dim);
        place_floats(l, &w->attention_norm, hidden);
        place_floats(l, &w->ffn_norm, hidden);
        place_floats(l, &w->post_attention_norm, hidden);
        place_floats(l, &w->post_ffn_norm, hidden);
    }
}

static bool load_weights(model_session* s)
{
    model_device* d = s->device;
    weight_loader l = { .s = s };
    d->layers = calloc((size_t)s->m->geometry.num_layers, sizeof *d->layers);
    if (d->layers == NULL) { return false; }
    place_all(&l);
    d->weights_bytes = l.at;
    if (kvl_device_alloc(s->ctx, l.at, &d->weights) != KVL_OK) { return false; }
    l.base = d->weights;
    l.at = 0;
    place_all(&l);
    return !l.failed;
}

// BUFFERS

bool model_device_create(model_session* s)
{
    if (!kvl_context_has_device(s->ctx)) { return true; }
    model_device* d = calloc(1, sizeof *d);
    s->device = d;
    if (d == NULL) { return false; }
    void *rows = NULL, *logits = NULL;
    const uint64_t floats = model_lay_out_rows(s, NULL, &d->rows);
    d->rows_bytes = floats * sizeof(float);
    d->logits_bytes = (uint64_t)LOGIT_ROWS * (uint64_t)s->m->geometry.vocab_size * sizeof(float);
    for (int i = 0; i < s->m->geometry.num_layers; i++) {
        const model_layer_geometry* g = &s->m->layer_geometry[i];
        const uint64_t bytes = (uint64_t)MODEL_PAST_ROWS * (uint64_t)g->num_kv_heads *
                               (uint64_t)(g->head_dim + g->head_dim_v) * sizeof(float);
        if (bytes > d->past_bytes) { d->past_bytes = bytes; }
    }
    if (kvl_device_alloc(s->ctx, d->rows_bytes, &rows) != KVL_OK) { return false; }
    d->rows.all = rows;
    model_lay_out_rows(s, d->rows.all, &d->rows);
    if (kvl_device_alloc(s->ctx, d->logits_bytes, &logits) != KVL_OK) { return false; }
    d->logits = logits;
    return kvl_device_alloc(s->ctx, d->past_bytes, &d->past) == KVL_OK && load_weights(s) &&
           get_all_kernels(s);
}

void model_device_free(model_session* s)
{
    model_device* d = s->device;
    if (d == NULL) { return; }
    kvl_device_free(s->ctx, d->rows.all, d->rows_bytes);
    kvl_device_free(s->ctx, d->logits, d->logits_bytes);
    kvl_device_free(s->ctx, d->past, d->past_bytes);
    kvl_device_free(s->ctx, d->weights, d->weights_bytes);
    free(d->layers);
    free(d);
    s->device = NULL;
}

const model_buffers* model_rows_of(const model_session* s)
{
    return s->device != NULL ? &s->device->rows : &s->buffers;
}

// LAUNCHES

// Launches do nothing after a failure, which is reported at the end of the batch.
typedef struct device_run {
    model_session* s;
    int64_t num_rows;
    kvl_status status;
} device_run;

static void launch(device_run* r, void* kernel, int64_t x, int64_t y, const void* args)
{
    const kvl_launch_desc desc = { .kernel = kernel, .args = args,
                                   .grid = { (unsigned)x, (unsigned)y, 1 } };
    if (r->status == KVL_OK) { r->status = kvl_device_launch(r->s->ctx, &desc); }
}

static void norm(device_run* r, const float* weight, const float* x, int64_t n, float* out,
                 int64_t num_rows)
{
    const device_norm a = { x, weight, out, n, r->s->m->norm_eps };
    launch(r, r->s->device->steps[STEP_NORM], num_rows, 1, &a);
}

static void add(device_run* r, float* x, const float* b, int64_t n, int64_t b_stride)
{
    const device_add a = { x, b, x, n, b_stride };
    launch(r, r->s->device->steps[STEP_ADD], r->num_rows, 1, &a);
}

static void multiply(device_run* r, const matrix* w, const float* x, float* y, int64_t num_rows)
{
    // The order of a row's sum must not depend on the batch where that is asked for.
    const bool many = num_rows > FEW_ROWS && r->s->products != MODEL_PRODUCTS_BY_ROW;
    const device_product a = { w->data, x, y, w->row_bytes, (int32_t)w->rows, (int32_t)w->cols,
                               (int32_t)num_rows };
    launch(r, r->s->device->products[w->type][many], many ? (w->rows + 63) / 64 : (w->rows + 3) / 4,
           many ? (num_rows + 31) / 32 : (num_rows + 3) / 4, &a);
}

static void rotate(device_run* r, const model_layer_geometry* g, float* x, int num_heads)
{
    const model_geometry* m = &r->s->m->geometry;
    const device_rotate a = { x, r->s->device->rows.rope[g->window_len > 0], num_heads,
                              g->head_dim, m->rope_dims, m->rope_halves };
    launch(r, r->s->device->steps[STEP_ROTATE], r->num_rows, 1, &a);
}

// LAYERS

static void project_heads(device_run* r, int layer)
{
    const model_buffers* b = &r->s->device->rows;
    const model_layer* w = &r->s->device->layers[layer];
    const model_layer_geometry* g = &r->s->m->layer_geometry[layer];
    const int64_t n = r->num_rows;
    norm(r, w->attention_norm, b->x, r->s->m->geometry.hidden_len, b->h, n);
    multiply(r, &w->q, b->h, b->q, n);
    multiply(r, &w->k, b->h, b->k, n);
    multiply(r, &w->v, b->h, b->v, n);
    if (w->q_bias != NULL) { add(r, b->q, w->q_bias, w->q.rows, 0); }
    if (w->k_bias != NULL) { add(r, b->k, w->k_bias, w->k.rows, 0); }
    if (w->v_bias != NULL) { add(r, b->v, w->v_bias, w->v.rows, 0); }
    if (w->q_norm != NULL) { norm(r, w->q_norm, b->q, g->head_dim, b->q, n * g->num_q_heads); }
    if (w->k_norm != NULL) { norm(r, w->k_norm, b->k, g->head_dim, b->k, n * g->num_kv_heads); }
    rotate(r, g, b->q, g->num_q_heads);
    rotate(r, g, b->k, g->num_kv_heads);
}

kvl_status model_device_attend(model_session* s, int layer, int64_t num_rows)
{
    const model_buffers* b = &s->device->rows;
    const model_layer_geometry* g = &s->m->layer_geometry[layer];
    device_run r = { s, num_rows, KVL_OK };
    const device_attend a = { b->q, b->k, b->v, b->o, b->lse, g->softmax_scale, g->num_q_heads,
                              g->num_kv_heads, g->head_dim, g->head_dim_v, g->window_len };
    launch(&r, s->device->steps[STEP_ATTEND], num_rows, g->num_q_heads, &a);
    return r.status;
}

// x += [norm](added + bias)
static void add_to_stream(device_run* r, const float* bias, const float* weight)
{
    const model_buffers* b = &r->s->device->rows;
    const int64_t hidden = r->s->m->geometry.hidden_len;
    if (bias != NULL) { add(r, b->added, bias, hidden, 0); }
    if (weight != NULL) { norm(r, weight, b->added, hidden, b->added, r->num_rows); }
    add(r, b->x, b->added, hidden, hidden);
}

static void run_ffn(device_run* r, int layer)
{
    const model_buffers* b = &r->s->device->rows;
    const model_layer* w = &r->s->device->layers[layer];
    norm(r, w->ffn_norm, b->x, r->s->m->geometry.hidden_len, b->h, r->num_rows);
    multiply(r, &w->gate, b->h, b->gate, r->num_rows);
    multiply(r, &w->up, b->h, b->up, r->num_rows);
    const device_gate a = { b->gate, b->up, w->gate.rows, r->s->m->family->gelu };
    launch(r, r->s->device->steps[STEP_GATE], r->num_rows, 1, &a);
    multiply(r, &w->down, b->gate, b->added, r->num_rows);
    add_to_stream(r, NULL, w->post_ffn_norm);
}

static int failed(model_session* s)
{
    return model_session_fail(s, MODEL_FAILED, "on the device, from position %lld on: %s",
                              (long long)s->length, kvl_context_message(s->ctx));
}

// Bytes of the rows of a layer's q, k and v, in this order.
static void heads_bytes(const model_session* s, int layer, int64_t num_rows, uint64_t bytes[3])
{
    const model_layer_geometry* g = &s->m->layer_geometry[layer];
    const uint64_t n = (uint64_t)num_rows * sizeof(float);
    bytes[0] = n * (uint64_t)g->num_q_heads * (uint64_t)g->head_dim;
    bytes[1] = n * (uint64_t)g->num_kv_heads * (uint64_t)g->head_dim;
    bytes[2] = n * (uint64_t)g->num_kv_heads * (uint64_t)g->head_dim_v;
}

// Rows of a layer for who asked to see them.
static kvl_status show_rows(model_session* s, const model_span* span)
{
    const model_buffers *b = &s->device->rows, *to = &s->buffers;
    uint64_t bytes[3];
    heads_bytes(s, span->layer, span->num_rows, bytes);
    kvl_status status = kvl_device_read(s->ctx, to->q, b->q, bytes[0]);
    if (status == KVL_OK) { status = kvl_device_read(s->ctx, to->k, b->k, bytes[1]); }
    if (status == KVL_OK) { status = kvl_device_read(s->ctx, to->v, b->v, bytes[2]); }
    if (status != KVL_OK) { return status; }
    const model_rows rows = { span->layer, s->length, span->num_rows, to->q, to->k, to->v };
    s->on_rows(s->user, &rows);
    return KVL_OK;
}

int model_device_begin(model_session* s, int64_t num_rows)
{
    const model_buffers *b = &s->device->rows, *from = &s->buffers;
    const uint64_t row = (uint64_t)num_rows * sizeof(float);
    const uint64_t table = row * (uint64_t)s->m->geometry.rope_dims;
    kvl_status status =
        kvl_device_write(s->ctx, b->x, from->x, row * (uint64_t)s->m->geometry.hidden_len);
    for (int i = 0; i < 2 && status == KVL_OK; i++) {
        status = kvl_device_write(s->ctx, b->rope[i], from->rope[i], table);
    }
    return status == KVL_OK ? MODEL_OK : failed(s);
}

int model_device_layer(model_session* s, const model_span* span)
{
    const model_layer* w = &s->device->layers[span->layer];
    device_run r = { s, span->num_rows, KVL_OK };
    project_heads(&r, span->layer);
    if (r.status == KVL_OK && s->on_rows != NULL) { r.status = show_rows(s, span); }
    if (r.status != KVL_OK) { return failed(s); }
    const int status = model_attend(s, span);
    if (status != MODEL_OK) { return status; }
    multiply(&r, &w->o, s->device->rows.o, s->device->rows.added, span->num_rows);
    add_to_stream(&r, w->o_bias, w->post_attention_norm);
    run_ffn(&r, span->layer);
    return r.status == KVL_OK ? MODEL_OK : failed(s);
}

int model_device_end(model_session* s)
{
    return kvl_cache_check(s->cache) == KVL_OK ? MODEL_OK : failed(s);
}

int model_device_rows(model_session* s, int64_t num_rows, float* out)
{
    const uint64_t bytes = (uint64_t)(num_rows * s->m->geometry.hidden_len) * sizeof(float);
    return kvl_device_read(s->ctx, out, s->device->rows.x, bytes) == KVL_OK ? MODEL_OK : failed(s);
}

int model_device_output(model_session* s, const model_rows* rows, bool through_cache, float* out)
{
    const model_buffers* b = &s->device->rows;
    const model_span span = { rows->layer, rows->num_rows, through_cache, 0 };
    device_run r = { s, rows->num_rows, KVL_OK };
    uint64_t bytes[3];
    heads_bytes(s, rows->layer, rows->num_rows, bytes);
    if (kvl_device_write(s->ctx, b->q, rows->q, bytes[0]) != KVL_OK ||
        kvl_device_write(s->ctx, b->k, rows->k, bytes[1]) != KVL_OK ||
        kvl_device_write(s->ctx, b->v, rows->v, bytes[2]) != KVL_OK) {
        return failed(s);
    }
    const int status = model_attend(s, &span);
    if (status != MODEL_OK) { return status; }
    multiply(&r, &s->device->layers[rows->layer].o, b->o, b->added, rows->num_rows);
    if (r.status == KVL_OK) { r.status = kvl_cache_check(s->cache); }
    if (r.status == KVL_OK) {
        const int64_t floats = rows->num_rows * s->m->geometry.hidden_len;
        r.status = kvl_device_read(s->ctx, out, b->added, (uint64_t)floats * sizeof(float));
    }
    return r.status == KVL_OK ? MODEL_OK : failed(s);
}

int model_device_norm(model_session* s, int64_t num_rows, float* hidden)
{
    const model_buffers* b = &s->device->rows;
    const int64_t n = s->m->geometry.hidden_len;
    device_run r = { s, num_rows, KVL_OK };
    norm(&r, s->device->output_norm, b->x, n, b->h, num_rows);
    if (r.status == KVL_OK && hidden != NULL) {
        r.status = kvl_device_read(s->ctx, hidden, b->h,
                                   (uint64_t)(num_rows * n) * sizeof(float));
    }
    return r.status == KVL_OK ? MODEL_OK : failed(s);
}

int model_device_logits(model_session* s, const float* hidden, int64_t first, int64_t num_rows,
                        float* logits)
{
    const model_buffers* b = &s->device->rows;
    const int64_t n = s->m->geometry.hidden_len, vocab = s->m->geometry.vocab_size;
    device_run r = { s, num_rows, KVL_OK };
    const int64_t most = hidden != NULL && s->batch_len < LOGIT_ROWS ? s->batch_len : LOGIT_ROWS;
    for (int64_t done = 0; done < num_rows && r.status == KVL_OK; done += most) {
        const int64_t num = num_rows - done < most ? num_rows - done : most;
        const float* from = b->h + (first + done) * n;
        if (hidden != NULL) {
            from = b->h;
            r.status = kvl_device_write(s->ctx, b->h, hidden + done * n,
                                        (uint64_t)(num * n) * sizeof(float));
        }
        multiply(&r, &s->device->output, from, s->device->logits, num);
        if (r.status == KVL_OK) {
            r.status = kvl_device_read(s->ctx, logits + done * vocab, s->device->logits,
                                       (uint64_t)(num * vocab) * sizeof(float));
        }
    }
    return r.status == KVL_OK ? MODEL_OK : failed(s);
}

// ROWS OF THE HOST

// Bytes of a layer's rows.
typedef struct row_bytes {
    uint64_t k, v;
} row_bytes;

static row_bytes bytes_of_row(const model_session* s, int layer)
{
    const model_layer_geometry* g = &s->m->layer_geometry[layer];
    const uint64_t heads = (uint64_t)g->num_kv_heads * sizeof(float);
    return (row_bytes){ heads * (uint64_t)g->head_dim, heads * (uint64_t)g->head_dim_v };
}

kvl_status model_append(model_session* s, const kvl_append_desc* desc)
{
    const model_device* d = s->device;
    if (d == NULL) { return kvl_append(s->cache, desc); }
    const row_bytes b = bytes_of_row(s, desc->layer);
    const uint64_t num = (uint64_t)desc->num_rows[0];
    kvl_append_desc on_device = *desc;
    on_device.k.data = d->past;
    on_device.v.data = (char*)d->past + num * b.k;
    kvl_status status = kvl_device_write(s->ctx, d->past, desc->k.data, num * b.k);
    if (status == KVL_OK) {
        status = kvl_device_write(s->ctx, (char*)d->past + num * b.k, desc->v.data, num * b.v);
    }
    if (status == KVL_OK) { status = kvl_append(s->cache, &on_device); }
    return status == KVL_OK ? kvl_cache_check(s->cache) : status;
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
