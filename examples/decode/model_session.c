// model_session.c -- a sequence of tokens on a model: its cache, its buffers, its message.

#include "model_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BUFFER_BYTES = 64 << 20,  // what the batch of prefill is chosen for
    MIN_BATCH = 32,
    MAX_BATCH = 2048
};

int model_session_fail(model_session* s, int status, const char* format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(s->message, sizeof s->message, format, args);
    va_end(args);
    return status;
}

// The most floats that a row takes in each buffer, over the layers.
typedef struct row_floats {
    int64_t hidden, q, k, v, o, heads, ffn, rope;
} row_floats;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static row_floats measure_rows(const model* m)
{
    row_floats most = { .hidden = m->geometry.hidden_len, .rope = m->geometry.rope_dims };
    for (int i = 0; i < m->geometry.num_layers; i++) {
        const model_layer_geometry* g = &m->layer_geometry[i];
        most.q = larger(most.q, (int64_t)g->num_q_heads * g->head_dim);
        most.k = larger(most.k, (int64_t)g->num_kv_heads * g->head_dim);
        most.v = larger(most.v, (int64_t)g->num_kv_heads * g->head_dim_v);
        most.o = larger(most.o, (int64_t)g->num_q_heads * g->head_dim_v);
        most.heads = larger(most.heads, g->num_q_heads);
        most.ffn = larger(most.ffn, g->ffn_len);
    }
    return most;
}

// For the matrices of every layer and of the output, whichever function serves them.
static size_t measure_scratch(const model_session* s)
{
    const model* m = s->m;
    size_t most = matrix_multiply_scratch(&s->pool, &m->output);
    size_t vector = matrix_vector_scratch(m->output.cols, MATRIX_MAX_BATCH);
    for (int i = 0; i < m->geometry.num_layers; i++) {
        const model_layer* w = &m->layers[i];
        const matrix* all[] = { &w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down };
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++) {
            const size_t bytes = matrix_multiply_scratch(&s->pool, all[j]);
            const size_t of_vector = matrix_vector_scratch(all[j]->cols, MATRIX_MAX_BATCH);
            most = bytes > most ? bytes : most;
            vector = of_vector > vector ? of_vector : vector;
        }
    }
    return most > vector ? most : vector;
}

uint64_t model_lay_out_rows(const model_session* s, float* all, model_buffers* b)
{
    const row_floats row = measure_rows(s->m);
    const int64_t n = s->batch_len;
    struct {
        float** out;
        int64_t floats;
    } const parts[] = {
        { &b->x, n * row.hidden },
        { &b->h, n * row.hidden },
        { &b->added, n * row.hidden },
        { &b->q, n * row.q },
        { &b->k, n * row.k },
        { &b->v, n * row.v },
        { &b->o, n * row.o },
        { &b->lse, n * row.heads },
        { &b->gate, n * row.ffn },
        { &b->up, n * row.ffn },
        { &b->rope[0], n * row.rope },
        { &b->rope[1], n * row.rope },
    };
    uint64_t at = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (all != NULL) { *parts[i].out = all + at; }
        at += (uint64_t)(parts[i].floats + 15) / 16 * 16;  // each on a cache line of its own
    }
    return at;
}

static bool allocate_buffers(model_session* s)
{
    model_buffers* b = &s->buffers;
    const row_floats row = measure_rows(s->m);
    const uint64_t rows = model_lay_out_rows(s, NULL, b);
    const uint64_t past = (uint64_t)(MODEL_PAST_ROWS * (row.k + row.v) + 15) / 16 * 16;
    const uint64_t scores = (uint64_t)s->num_threads * MODEL_QUERY_TILE * MODEL_KEY_TILE;
    void* all = NULL;
    if (posix_memalign(&all, 64, (size_t)(rows + past + scores) * sizeof(float)) != 0) {
        return false;
    }
    b->all = all;
    model_lay_out_rows(s, b->all, b);
    b->past = b->all + rows;
    b->scores = b->past + past;
    b->scratch_bytes = measure_scratch(s);
    if (posix_memalign(&b->scratch, 64, b->scratch_bytes) != 0) {
        b->scratch = NULL;
        return false;
    }
    return true;
}

static int choose_batch(const model_session* s, int asked)
{
    const row_floats row = measure_rows(s->m);
    const int64_t floats = 3 * row.hidden + row.q + row.k + row.v + row.o + row.heads +
                           2 * row.ffn + 2 * row.rope;
    int64_t batch = asked > 0 ? asked : BUFFER_BYTES / (floats * (int64_t)sizeof(float));
    if (asked <= 0 && batch < MIN_BATCH) { batch = MIN_BATCH; }
    if (batch > MAX_BATCH) { batch = MAX_BATCH; }
    return (int)(batch < s->context_len ? batch : s->context_len);
}

static void run_on_context(void* user, int64_t n, void (*body)(void* arg, int64_t i), void* arg)
{
    kvl_parallel_for(user, n, body, arg);
}

static bool read_windows(model_session* s)
{
    bool ok = true;
    for (int layer = 0; ok && layer < s->m->geometry.num_layers; layer++) {
        kvl_layer_info info;
        ok = kvl_cache_layer_info(s->cache, layer, &info) == KVL_OK;
        if (ok) {
            s->windows[layer] = (model_windows){ info.sink_len, info.recent_len, info.chunk_len,
                                                 info.kept_len };
        }
    }
    return ok;
}

static bool create_cache(model_session* s, const model_session_desc* desc,
                         const model_report* report)
{
    const int num_layers = s->m->geometry.num_layers;
    kvl_layer_desc* layers = calloc((size_t)num_layers, sizeof *layers);
    s->windows = calloc((size_t)num_layers, sizeof *s->windows);
    if (layers == NULL || s->windows == NULL) {
        free(layers);
        return model_fail(report, "out of memory");
    }
    model_describe_layers(s->m, desc->specs, layers);
    kvl_cache_desc cache = { .num_layers = num_layers, .layers = layers, .spec = desc->spec };
    char identity[MODEL_IDENTITY_BYTES];
    cache.max_bytes = desc->max_bytes;
    if (desc->calibration != NULL) {
        model_identity(s->m, identity);
        cache.calibration = desc->calibration;
        cache.model_identity = identity;
    }
    const bool ok = kvl_cache_create(s->ctx, &cache, &s->cache) == KVL_OK &&
                    kvl_seq_create(s->cache, &s->seq) == KVL_OK && read_windows(s);
    const model_fold_desc fold = { s->ctx, desc->spec, desc->specs, desc->calibration };
    const bool fits = ok && model_check_fold(s->m, &fold, report);
    free(layers);
    if (ok) { return fits; }
    return model_fail(report, "%s", kvl_context_message(s->ctx));
}

int model_session_create(const model* m, const model_session_desc* desc, model_session** out,
                         char* message, size_t message_bytes)
{
    const model_report report = { message, message_bytes };
    *out = NULL;
    model_session* s = calloc(1, sizeof *s);
    if (s == NULL) {
        model_fail(&report, "out of memory");
        return 1;
    }
    s->m = m;
    s->ctx = desc->ctx;
    s->on_rows = desc->on_rows;
    s->user = desc->user;
    s->context_len = desc->context_len > 0 ? desc->context_len : m->geometry.context_len;
    s->num_threads = kvl_context_threads(s->ctx);
    s->pool = (matrix_pool){ run_on_context, s->ctx, s->num_threads, m->options.matrix_level };
    s->batch_len = choose_batch(s, desc->batch_len);
    bool ok = create_cache(s, desc, &report);
    if (ok && (!allocate_buffers(s) || !model_kept_create(s))) {
        ok = model_fail(&report, "out of memory: buffers of a batch of %d rows", s->batch_len);
    }
    if (ok && !model_device_create(s)) {
        ok = model_fail(&report, "weights and buffers on the device: %s",
                        kvl_context_message(s->ctx));
    }
    if (!ok) {
        model_session_free(s);
        return 1;
    }
    *out = s;
    return 0;
}

void model_session_free(model_session* s)
{
    if (s == NULL) { return; }
    kvl_cache_free(s->cache);
    model_device_free(s);
    free(s->buffers.all);
    free(s->buffers.scratch);
    free(s->windows);
    model_kept_free(s);
    free(s);
}

int model_session_reset(model_session* s)
{
    kvl_seq fresh = 0;
    if (s->seq != 0 && kvl_seq_free(s->cache, s->seq) != KVL_OK) {
        return model_session_fail(s, MODEL_FAILED, "%s", kvl_context_message(s->ctx));
    }
    s->seq = 0;
    s->length = 0;
    s->broken = true;
    if (kvl_seq_create(s->cache, &fresh) != KVL_OK) {
        return model_session_fail(s, MODEL_FAILED, "%s", kvl_context_message(s->ctx));
    }
    s->seq = fresh;
    s->broken = false;
    return MODEL_OK;
}

int model_session_take(model_session* s, kvl_seq seq, int64_t num_rows)
{
    if (num_rows > s->context_len) {
        return model_session_fail(s, MODEL_FULL, "%lld rows: the context has %lld",
                                  (long long)num_rows, (long long)s->context_len);
    }
    for (int layer = 0; layer < s->m->geometry.num_layers; layer++) {
        kvl_seq_rows rows;
        if (kvl_seq_get_rows(s->cache, layer, seq, &rows) != KVL_OK) {
            return model_session_fail(s, MODEL_FAILED, "%s", kvl_context_message(s->ctx));
        }
        if (rows.rows != num_rows) {
            return model_session_fail(s, MODEL_FAILED, "layer %d has %lld rows: must be %lld",
                                      layer, (long long)rows.rows, (long long)num_rows);
        }
    }
    if (s->seq != 0 && kvl_seq_free(s->cache, s->seq) != KVL_OK) {
        return model_session_fail(s, MODEL_FAILED, "%s", kvl_context_message(s->ctx));
    }
    s->seq = seq;
    s->length = num_rows;
    s->broken = false;
    return MODEL_OK;
}

int model_session_truncate(model_session* s, int64_t num_rows, bool* exact)
{
    int is_exact = 0;
    if (s->broken || kvl_truncate_check(s->cache, s->seq, num_rows, &is_exact) != KVL_OK ||
        kvl_truncate(s->cache, s->seq, num_rows) != KVL_OK) {
        return model_session_fail(s, MODEL_FAILED, "%s",
                                  s->broken ? "the session has failed before"
                                            : kvl_context_message(s->ctx));
    }
    s->length = num_rows;
    if (exact != NULL) { *exact = is_exact != 0; }
    return MODEL_OK;
}

// Appends rows [from, from + num) of one layer again; they lie in the buffer of the past.
static kvl_status repeat_rows(model_session* s, int layer, int64_t from, int64_t num)
{
    const model_layer_geometry* g = &s->m->layer_geometry[layer];
    const int32_t count = (int32_t)num;
    float *k = s->buffers.past, *v = k + num * g->num_kv_heads * g->head_dim;
    const kvl_status status = model_restore(s, layer, &(model_stretch){ from, num }, k, v);
    if (status != KVL_OK) { return status; }
    kvl_append_desc append = { .layer = layer, .num_seqs = 1, .seqs = &s->seq };
    append.num_rows = &count;
    append.k.data = k;
    append.v.data = v;
    return model_append(s, &append);
}

int model_session_repeat(model_session* s, int64_t num_rows)
{
    if (s->broken || s->length < 1 || num_rows < s->length || num_rows > s->context_len) {
        return model_session_fail(s, MODEL_FAILED, "repeat to %lld rows: must be from the %lld "
                                  "that there are, at least 1, to the context of %lld",
                                  (long long)num_rows, (long long)s->length,
                                  (long long)s->context_len);
    }
    const int64_t period = s->length < MODEL_PAST_ROWS ? s->length : MODEL_PAST_ROWS;
    while (s->length < num_rows) {
        const int64_t left = num_rows - s->length;
        const int64_t num = left < period ? left : period;
        for (int layer = 0; layer < s->m->geometry.num_layers; layer++) {
            if (repeat_rows(s, layer, 0, num) != KVL_OK) {
                s->broken = true;
                return model_session_fail(s, MODEL_FAILED, "layer %d: %s", layer,
                                          kvl_context_message(s->ctx));
            }
        }
        s->length += num;
    }
    return MODEL_OK;
}

const char* model_session_message(const model_session* s) { return s->message; }
int64_t model_session_length(const model_session* s) { return s->length; }
int64_t model_session_context(const model_session* s) { return s->context_len; }
const model* model_session_model(const model_session* s) { return s->m; }
kvl_cache* model_session_cache(const model_session* s) { return s->cache; }
kvl_seq model_session_seq(const model_session* s) { return s->seq; }
kvl_context* model_session_kvl(const model_session* s) { return s->ctx; }
