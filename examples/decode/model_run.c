// model_run.c -- the transformer: tokens through all layers, in batches of rows.
//
//     x = embedding[id] * embedding_scale
//     each layer:  h = norm(x);  q, k, v = W h + bias, [norm of heads], RoPE
//                  x += [norm](W_o attend(q, k, v) + bias)
//                  h = norm(x);  x += [norm](W_down (act(W_gate h) * (W_up h)))
//     logits = W_output norm(x)
//
// In brackets: what some families do. One row and a few use the quantized weights (matrix_vectors),
// more rows BLAS (matrix_multiply); model_run.products can ask otherwise. Work on rows is spread
// over the threads by the row. Where the context has a device, model_device.c runs the layers.

#include "model_internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { ROWS_OF_TASK = 8 };

// Work on each row of a batch, for the threads.
typedef struct row_job {
    model_session* s;
    int layer;                     // -1: none
    int64_t num_rows;
    const int32_t* ids;            // [num_rows]
    const float* norm;             // [hidden_len]
    const float* bias;             // [hidden_len]; NULL: none
    void (*run)(const struct row_job* job, int64_t row);
} row_job;

static void run_task(void* arg, int64_t task)
{
    const row_job* job = arg;
    const int64_t first = task * ROWS_OF_TASK;
    const int64_t end = first + ROWS_OF_TASK < job->num_rows ? first + ROWS_OF_TASK : job->num_rows;
    for (int64_t row = first; row < end; row++) { job->run(job, row); }
}

static void for_rows(row_job* job, void (*run)(const row_job* job, int64_t row))
{
    const int64_t tasks = (job->num_rows + ROWS_OF_TASK - 1) / ROWS_OF_TASK;
    job->run = run;
    if (tasks == 1) {
        run_task(job, 0);
        return;
    }
    kvl_parallel_for(job->s->ctx, tasks, run_task, job);
}

// y = W x for each row of x [num_rows, cols], for matrices that share their input.
static void project(model_session* s, const matrix_product* products, int count, const float* x,
                    int64_t num_rows)
{
    if (s->products == MODEL_PRODUCTS_BY_ROW) {
        const model_product_rows rows = { products, count, x, num_rows };
        model_multiply_by_row(s, &rows);
        return;
    }
    if (s->products == MODEL_PRODUCTS_AUTO && num_rows <= MATRIX_MAX_BATCH) {
        const matrix_input input = { x, num_rows, s->buffers.scratch };
        matrix_vectors(&s->pool, products, count, &input);
        return;
    }
    for (int i = 0; i < count; i++) {
        const matrix_batch batch = { x, num_rows, products[i].y, s->buffers.scratch,
                                     s->buffers.scratch_bytes };
        matrix_multiply(&s->pool, products[i].w, &batch);
    }
}

static void embed_row(const row_job* job, int64_t row)
{
    const model* m = job->s->m;
    const int64_t hidden = m->geometry.hidden_len;
    float* x = job->s->buffers.x + row * hidden;
    const char* data = m->embedding.data;
    matrix_dequantize_row(m->embedding.type, data + job->ids[row] * m->embedding.row_bytes, hidden,
                          x);
    if (m->embedding_scale != 1.0f) { matrix_scale(x, hidden, m->embedding_scale); }
}

static matrix_rope rope_of(const model* m, const model_layer_geometry* g)
{
    const matrix_rope rope = {
        .head_dim = g->head_dim,
        .dims = m->geometry.rope_dims,
        .split_halves = m->geometry.rope_halves,
        .base = g->rope_base,
        .linear_scale = g->rope_scale,
        .factors = m->rope_factors,
    };
    return rope;
}

// Base and scale differ between layers with and without a window, and not among those.
static void rope_row(const row_job* job, int64_t row)
{
    const model_session* s = job->s;
    const model* m = s->m;
    bool filled[2] = { false, false };
    for (int layer = 0; layer < m->geometry.num_layers && !(filled[0] && filled[1]); layer++) {
        const model_layer_geometry* g = &m->layer_geometry[layer];
        const int windowed = g->window_len > 0;
        if (filled[windowed]) { continue; }
        const matrix_rope rope = rope_of(m, g);
        filled[windowed] = true;
        matrix_rope_table(&rope, s->length + row,
                          s->buffers.rope[windowed] + row * m->geometry.rope_dims);
    }
}

static void norm_row(const row_job* job, int64_t row)
{
    const int64_t hidden = job->s->m->geometry.hidden_len;
    const matrix_norm norm = { job->norm, job->s->m->norm_eps };
    matrix_rms_norm(&norm, job->s->buffers.x + row * hidden, hidden,
                    job->s->buffers.h + row * hidden);
}

static void norm_heads(const model* m, const float* weight, int dim, float* x, int num_heads)
{
    const matrix_norm norm = { weight, m->norm_eps };
    for (int head = 0; head < num_heads; head++, x += dim) { matrix_rms_norm(&norm, x, dim, x); }
}

// Bias, norm of heads and RoPE of one row of q, k and v.
static void finish_heads(const row_job* job, int64_t row)
{
    const model* m = job->s->m;
    const model_buffers* b = &job->s->buffers;
    const model_layer* w = &m->layers[job->layer];
    const model_layer_geometry* g = &m->layer_geometry[job->layer];
    const float* table = b->rope[g->window_len > 0] + row * m->geometry.rope_dims;
    const matrix_rope rope = rope_of(m, g);
    float* q = b->q + row * w->q.rows;
    float* k = b->k + row * w->k.rows;
    float* v = b->v + row * w->v.rows;
    if (w->q_bias != NULL) { matrix_add(q, w->q_bias, w->q.rows, q); }
    if (w->k_bias != NULL) { matrix_add(k, w->k_bias, w->k.rows, k); }
    if (w->v_bias != NULL) { matrix_add(v, w->v_bias, w->v.rows, v); }
    if (w->q_norm != NULL) { norm_heads(m, w->q_norm, g->head_dim, q, g->num_q_heads); }
    if (w->k_norm != NULL) { norm_heads(m, w->k_norm, g->head_dim, k, g->num_kv_heads); }
    matrix_rope_apply(&rope, table, q, g->num_q_heads);
    matrix_rope_apply(&rope, table, k, g->num_kv_heads);
}

// x += [norm](added + bias)
static void add_row(const row_job* job, int64_t row)
{
    const int64_t hidden = job->s->m->geometry.hidden_len;
    float* added = job->s->buffers.added + row * hidden;
    float* x = job->s->buffers.x + row * hidden;
    if (job->bias != NULL) { matrix_add(added, job->bias, hidden, added); }
    if (job->norm != NULL) {
        const matrix_norm norm = { job->norm, job->s->m->norm_eps };
        matrix_rms_norm(&norm, added, hidden, added);
    }
    matrix_add(x, added, hidden, x);
}

static void gate_row(const row_job* job, int64_t row)
{
    const model* m = job->s->m;
    const int64_t n = m->layers[job->layer].gate.rows;
    float* gate = job->s->buffers.gate + row * n;
    const float* up = job->s->buffers.up + row * n;
    if (m->family->gelu) {
        matrix_gelu_mul(gate, up, n, gate);
    } else {
        matrix_silu_mul(gate, up, n, gate);
    }
}

static int run_attention(model_session* s, row_job* job, const model_span* span)
{
    const model_layer* w = &s->m->layers[span->layer];
    model_buffers* b = &s->buffers;
    if (model_kept_find(s, span->layer, span->prompt_rows) != KVL_OK) {
        return model_session_fail(s, MODEL_FAILED, "%s", kvl_context_message(s->ctx));
    }
    job->norm = w->attention_norm;
    for_rows(job, norm_row);
    const matrix_product qkv[] = { { &w->q, b->q }, { &w->k, b->k }, { &w->v, b->v } };
    project(s, qkv, 3, b->h, span->num_rows);
    for_rows(job, finish_heads);
    if (s->on_rows != NULL) {
        const model_rows rows = { span->layer, s->length, span->num_rows, b->q, b->k, b->v };
        s->on_rows(s->user, &rows);
    }
    const int status = model_attend(s, span);
    if (status != MODEL_OK) { return status; }
    const matrix_product output[] = { { &w->o, b->added } };
    project(s, output, 1, b->o, span->num_rows);
    job->norm = w->post_attention_norm;
    job->bias = w->o_bias;
    for_rows(job, add_row);
    return MODEL_OK;
}

int model_attention_output(model_session* s, const model_rows* rows, bool through_cache, float* out)
{
    const model_layer* w = &s->m->layers[rows->layer];
    s->kept.num = 0;  // what enters the layer is not known
    const model_span span = { rows->layer, rows->num_rows, through_cache, 0 };
    if (rows->num_rows > s->batch_len) {
        return model_session_fail(s, MODEL_FAILED, "%lld rows: the session's batch has %d",
                                  (long long)rows->num_rows, s->batch_len);
    }
    s->products = MODEL_PRODUCTS_FLOAT;
    s->length = rows->first_position;
    s->broken = true;
    if (s->device != NULL) { return model_device_output(s, rows, through_cache, out); }
    const size_t num = (size_t)rows->num_rows;
    memcpy(s->buffers.q, rows->q, num * (size_t)w->q.rows * sizeof(float));
    memcpy(s->buffers.k, rows->k, num * (size_t)w->k.rows * sizeof(float));
    memcpy(s->buffers.v, rows->v, num * (size_t)w->v.rows * sizeof(float));
    const int status = model_attend(s, &span);
    if (status != MODEL_OK) { return status; }
    const matrix_product output[] = { { &w->o, out } };
    project(s, output, 1, s->buffers.o, rows->num_rows);
    return MODEL_OK;
}

static void run_ffn(model_session* s, row_job* job)
{
    const model_layer* w = &s->m->layers[job->layer];
    model_buffers* b = &s->buffers;
    job->norm = w->ffn_norm;
    job->bias = NULL;
    for_rows(job, norm_row);
    const matrix_product gate_up[] = { { &w->gate, b->gate }, { &w->up, b->up } };
    project(s, gate_up, 2, b->h, job->num_rows);
    for_rows(job, gate_row);
    const matrix_product down[] = { { &w->down, b->added } };
    project(s, down, 1, b->gate, job->num_rows);
    job->norm = w->post_ffn_norm;
    for_rows(job, add_row);
}

static bool all_finite(const float* x, int n)
{
    int wrong = 0;
    for (int i = 0; i < n; i++) { wrong |= !(fabsf(x[i]) <= FLT_MAX); }
    return !wrong;
}

// Refuses logits [num_rows, vocab_size] that are not finite; `position` of the first.
static int check_logits(model_session* s, const float* logits, int64_t num_rows, int64_t position)
{
    const model* m = s->m;
    for (int64_t row = 0; row < num_rows; row++) {
        const float* of_row = logits + row * m->geometry.vocab_size;
        if (!all_finite(of_row, m->geometry.vocab_size)) {
            return model_session_fail(s, MODEL_FAILED, "the logits at position %lld are not "
                                      "finite: the model file is damaged, or a variant that is "
                                      "not supported", (long long)(position + row));
        }
    }
    return MODEL_OK;
}

int model_output_logits(model_session* s, const float* hidden, int64_t num_rows, int products,
                        float* logits)
{
    const matrix_product output[] = { { &s->m->output, logits } };
    int status = MODEL_OK;
    s->products = products;
    if (s->device != NULL) {
        status = model_device_logits(s, hidden, 0, num_rows, logits);
    } else {
        project(s, output, 1, hidden, num_rows);
    }
    return status == MODEL_OK ? check_logits(s, logits, num_rows, 0) : status;
}

// The last norm of a batch's rows, for who asked for them.
static int norm_output(model_session* s, row_job* job, float* hidden)
{
    if (s->device != NULL) { return model_device_norm(s, job->num_rows, hidden); }
    job->norm = s->m->output_norm;
    for_rows(job, norm_row);
    if (hidden != NULL) {
        memcpy(hidden, s->buffers.h,
               (size_t)(job->num_rows * s->m->geometry.hidden_len) * sizeof(float));
    }
    return MODEL_OK;
}

// What a run asks for of the last layer's rows. first: of the batch, in the run.
static int run_output(model_session* s, row_job* job, const model_run* run, int64_t first)
{
    const model_geometry* g = &s->m->geometry;
    const bool is_last = first + job->num_rows == run->count;
    const bool wants_logits = run->logits != NULL && (run->logits_of_all || is_last);
    if (!wants_logits && run->hidden == NULL) { return MODEL_OK; }
    float* hidden = run->hidden != NULL ? run->hidden + first * g->hidden_len : NULL;
    int status = norm_output(s, job, hidden);
    if (!wants_logits || status != MODEL_OK) { return status; }
    const int64_t skipped = run->logits_of_all ? 0 : job->num_rows - 1;
    const int64_t num = job->num_rows - skipped;
    float* logits = run->logits_of_all ? run->logits + first * g->vocab_size : run->logits;
    const matrix_product output[] = { { &s->m->output, logits } };
    if (s->device != NULL) {
        status = model_device_logits(s, NULL, skipped, num, logits);
    } else {
        project(s, output, 1, s->buffers.h + skipped * g->hidden_len, num);
    }
    return status == MODEL_OK ? check_logits(s, logits, num, s->length + skipped) : status;
}

static int run_layer(model_session* s, row_job* job, const model_span* span)
{
    if (s->device != NULL) { return model_device_layer(s, span); }
    job->layer = span->layer;
    const int status = run_attention(s, job, span);
    if (status == MODEL_OK) { run_ffn(s, job); }
    return status;
}

// The rows of a batch, as they are now.
static int copy_rows(model_session* s, int64_t num_rows, float* out)
{
    if (s->device != NULL) { return model_device_rows(s, num_rows, out); }
    memcpy(out, s->buffers.x, (size_t)(num_rows * s->m->geometry.hidden_len) * sizeof(float));
    return MODEL_OK;
}

// One batch: tokens [first, first + num_rows) of the run.
static int run_batch(model_session* s, const model_run* run, int64_t first, int64_t num_rows)
{
    const int num_layers = s->m->geometry.num_layers;
    const int begin = run->rows != NULL ? run->first_layer : 0;
    const int64_t hidden = s->m->geometry.hidden_len;
    const size_t bytes = (size_t)(num_rows * hidden) * sizeof(float);
    const int64_t left = run->prompt_len > first ? run->prompt_len - first : 0;
    const int64_t prompt_rows = left < num_rows ? left : num_rows;
    row_job job = { .s = s, .layer = -1, .num_rows = num_rows, .ids = run->ids + first };
    if (run->rows != NULL) {
        memcpy(s->buffers.x, run->rows + first * hidden, bytes);
    } else {
        for_rows(&job, embed_row);
    }
    for_rows(&job, rope_row);
    int status = s->device != NULL ? model_device_begin(s, num_rows) : MODEL_OK;
    for (int layer = begin; layer < num_layers && status == MODEL_OK; layer++) {
        const bool through = run->rows_through_cache && (run->rows == NULL || layer == begin);
        const model_span span = { layer, num_rows, through, prompt_rows };
        if (run->entering != NULL) {
            status = copy_rows(s, num_rows, run->entering + (layer * run->count + first) * hidden);
        }
        if (status == MODEL_OK) { status = run_layer(s, &job, &span); }
    }
    if (status == MODEL_OK && s->device != NULL) { status = model_device_end(s); }
    if (status == MODEL_OK) { status = run_output(s, &job, run, first); }
    if (status == MODEL_OK) { s->length += num_rows; }
    s->broken = status != MODEL_OK;
    return status;
}

int model_run_tokens(model_session* s, const model_run* run)
{
    if (s->broken) {
        return model_session_fail(s, MODEL_FAILED, "an earlier failure has left the sequence "
                                  "incomplete: it must be reset");
    }
    for (int64_t i = 0; i < run->count; i++) {
        if (run->ids[i] < 0 || run->ids[i] >= s->m->geometry.vocab_size) {
            return model_session_fail(s, MODEL_FAILED, "token %lld is %d: must be from 0 to %d",
                                      (long long)i, (int)run->ids[i],
                                      s->m->geometry.vocab_size - 1);
        }
    }
    if (run->rows != NULL &&
        (run->first_layer < 0 || run->first_layer >= s->m->geometry.num_layers)) {
        return model_session_fail(s, MODEL_FAILED, "first_layer = %d: must be from 0 to %d",
                                  run->first_layer, s->m->geometry.num_layers - 1);
    }
    if (run->count > s->context_len - s->length) {
        return model_session_fail(s, MODEL_FULL, "the context of %lld tokens holds %lld and has no "
                                  "room for %lld more", (long long)s->context_len,
                                  (long long)s->length, (long long)run->count);
    }
    s->products = run->products;
    model_kept_begin(s);
    for (int64_t first = 0; first < run->count; first += s->batch_len) {
        const int64_t left = run->count - first;
        const int64_t num_rows = left < s->batch_len ? left : s->batch_len;
        const int status = run_batch(s, run, first, num_rows);
        if (status != MODEL_OK) { return status; }
        s->broken = run->rows != NULL && run->first_layer > 0 && first + num_rows == run->count;
        const bool stop =
            run->progress != NULL && run->progress(run->user, first + num_rows, run->count);
        if (stop && first + num_rows < run->count) {
            return model_session_fail(s, MODEL_STOPPED, "stopped after %lld of %lld tokens",
                                      (long long)(first + num_rows), (long long)run->count);
        }
    }
    return MODEL_OK;
}

int model_prefill(model_session* s, const int32_t* ids, int64_t count, float* logits)
{
    const model_run run = { .ids = ids, .count = count, .logits = logits, .prompt_len = count };
    return model_run_tokens(s, &run);
}

int model_step(model_session* s, int32_t id, float* logits)
{
    const model_run run = { .ids = &id, .count = 1, .logits = logits };
    return model_run_tokens(s, &run);
}
