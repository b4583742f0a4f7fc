// eval_layers.c -- errors of scores and outputs by layer and head.

#include "eval_layers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PROBE_ROWS = 16 };  // query positions: enough for a heat map, and a second for 30 layers

// The rows of one layer.
typedef struct seen_layer {
    float* q;        // [PROBE_ROWS, num_q_heads, head_dim] of the last positions
    float *k, *v;    // [count, num_kv_heads, head_dim], head_dim_v
} seen_layer;

struct eval_layers_probe {
    const model_geometry* geometry;
    kvl_context* ctx;
    int64_t count;
    seen_layer* layers;      // [num_layers]
    bool failed;             // out of memory
};

eval_layers_probe* eval_layers_create(const model* m, kvl_context* ctx, int64_t count)
{
    eval_layers_probe* probe = calloc(1, sizeof *probe);
    if (probe == NULL) { return NULL; }
    probe->geometry = model_get_geometry(m);
    probe->ctx = ctx;
    probe->count = count;
    probe->layers = calloc((size_t)probe->geometry->num_layers, sizeof *probe->layers);
    if (probe->layers == NULL) {
        free(probe);
        return NULL;
    }
    return probe;
}

void eval_layers_free(eval_layers_probe* probe)
{
    if (probe == NULL) { return; }
    for (int i = 0; i < probe->geometry->num_layers; i++) {
        free(probe->layers[i].q);
        free(probe->layers[i].k);
        free(probe->layers[i].v);
    }
    free(probe->layers);
    free(probe);
}

static int64_t first_probed(const eval_layers_probe* probe)
{
    return probe->count > PROBE_ROWS ? probe->count - PROBE_ROWS : 0;
}

void eval_layers_see(void* user, const model_rows* rows)
{
    eval_layers_probe* probe = user;
    const model_layer_geometry* g = &probe->geometry->layers[rows->layer];
    seen_layer* seen = &probe->layers[rows->layer];
    const int64_t q = (int64_t)g->num_q_heads * g->head_dim;
    const int64_t k = (int64_t)g->num_kv_heads * g->head_dim;
    const int64_t v = (int64_t)g->num_kv_heads * g->head_dim_v;
    if (seen->q == NULL) {
        seen->q = malloc((size_t)(PROBE_ROWS * q) * sizeof(float));
        seen->k = malloc((size_t)(probe->count * k) * sizeof(float));
        seen->v = malloc((size_t)(probe->count * v) * sizeof(float));
    }
    if (seen->q == NULL || seen->k == NULL || seen->v == NULL) {
        probe->failed = true;
        return;
    }
    memcpy(seen->k + rows->first_position * k, rows->k,
           (size_t)(rows->num_rows * k) * sizeof(float));
    memcpy(seen->v + rows->first_position * v, rows->v,
           (size_t)(rows->num_rows * v) * sizeof(float));
    for (int64_t i = 0; i < rows->num_rows; i++) {
        const int64_t at = rows->first_position + i - first_probed(probe);
        if (at < 0) { continue; }
        memcpy(seen->q + at * q, rows->q + i * q, (size_t)q * sizeof(float));
    }
}

const float* eval_layers_keys(const eval_layers_probe* probe, int layer)
{
    return probe->failed ? NULL : probe->layers[layer].k;
}

// One layer with the rows that the cache gives back.
typedef struct layer_job {
    const eval_layers_probe* probe;
    const model_layer_geometry* shape;
    const seen_layer* seen;
    const float *k, *v;      // as the cache holds them
    float* scores;           // [num_q_heads, 2, count] a head's own
    eval_layer* out;
} layer_job;

// Scores of a query of head h over rows [first, end).
static void score(const layer_job* job, const float* k, int64_t at, int64_t h, int64_t first,
                  int64_t end, float* scores)
{
    const model_layer_geometry* g = job->shape;
    const int64_t kv_head = h / (g->num_q_heads / g->num_kv_heads);
    const float* q = job->seen->q + (at * g->num_q_heads + h) * g->head_dim;
    for (int64_t row = first; row < end; row++) {
        const float* of_row = k + (row * g->num_kv_heads + kv_head) * g->head_dim;
        float sum = 0.0f;
        for (int i = 0; i < g->head_dim; i++) { sum += q[i] * of_row[i]; }
        scores[row - first] = sum * g->softmax_scale;
    }
}

// out [head_dim_v]: softmax of scores [num] times rows of v from `first` on.
static void attend(const layer_job* job, const float* v, int64_t h, int64_t first, int64_t num,
                   const float* scores, double* out)
{
    const model_layer_geometry* g = job->shape;
    const int64_t kv_head = h / (g->num_q_heads / g->num_kv_heads);
    float max = scores[0];
    double sum = 0.0;
    for (int64_t i = 1; i < num; i++) { max = scores[i] > max ? scores[i] : max; }
    memset(out, 0, (size_t)g->head_dim_v * sizeof *out);
    for (int64_t i = 0; i < num; i++) {
        const float* row = v + ((first + i) * g->num_kv_heads + kv_head) * g->head_dim_v;
        const double weight = (double)expf(scores[i] - max);
        sum += weight;
        for (int c = 0; c < g->head_dim_v; c++) { out[c] += weight * (double)row[c]; }
    }
    for (int c = 0; c < g->head_dim_v; c++) { out[c] /= sum; }
}

static double ratio(double error, double whole)
{
    return whole > 0.0 ? sqrt(error / whole) : error > 0.0 ? (double)INFINITY : 0.0;
}

static void measure_head(void* arg, int64_t h)
{
    const layer_job* job = arg;
    const model_layer_geometry* g = job->shape;
    float* exact = job->scores + 2 * h * job->probe->count;
    float* held = exact + job->probe->count;
    double o_exact[512], o_held[512];  // the cache serves head_dim up to 256
    double score_error = 0.0, score_whole = 0.0, output_error = 0.0, output_whole = 0.0;
    for (int64_t position = first_probed(job->probe); position < job->probe->count; position++) {
        const int64_t at = position - first_probed(job->probe), end = position + 1;
        const int64_t first = g->window_len > 0 && end > g->window_len ? end - g->window_len : 0;
        score(job, job->seen->k, at, h, first, end, exact);
        score(job, job->k, at, h, first, end, held);
        for (int64_t i = 0; i < end - first; i++) {
            const double e = (double)held[i] - (double)exact[i];
            score_error += e * e;
            score_whole += (double)exact[i] * (double)exact[i];
        }
        attend(job, job->seen->v, h, first, end - first, exact, o_exact);
        attend(job, job->v, h, first, end - first, held, o_held);
        for (int c = 0; c < g->head_dim_v; c++) {
            output_error += (o_held[c] - o_exact[c]) * (o_held[c] - o_exact[c]);
            output_whole += o_exact[c] * o_exact[c];
        }
    }
    job->out->score_error[h] = ratio(score_error, score_whole);
    job->out->output_error[h] = ratio(output_error, output_whole);
}

static bool measure_layer(eval_layers_probe* probe, model_session* s, int layer, eval_layer* out)
{
    const model_layer_geometry* g = &probe->geometry->layers[layer];
    const int64_t count = probe->count;
    layer_job job = { .probe = probe, .shape = g, .seen = &probe->layers[layer], .out = out };
    float* k = malloc((size_t)(count * g->num_kv_heads * g->head_dim) * sizeof *k);
    float* v = malloc((size_t)(count * g->num_kv_heads * g->head_dim_v) * sizeof *v);
    job.scores = malloc((size_t)(2 * count * g->num_q_heads) * sizeof *job.scores);
    out->num_q_heads = g->num_q_heads;
    out->score_error = calloc((size_t)g->num_q_heads, sizeof *out->score_error);
    out->output_error = calloc((size_t)g->num_q_heads, sizeof *out->output_error);
    bool ok = k != NULL && v != NULL && job.scores != NULL && out->score_error != NULL &&
              out->output_error != NULL && job.seen->q != NULL && g->head_dim_v <= 512;
    if (ok) {
        const kvl_rows to_k = { .data = k }, to_v = { .data = v };
        ok = kvl_restore(model_session_cache(s), layer, model_session_seq(s), 0, count, &to_k,
                         &to_v) == KVL_OK;
    }
    if (ok) {
        job.k = k;
        job.v = v;
        kvl_parallel_for(probe->ctx, g->num_q_heads, measure_head, &job);
    }
    free(job.scores);
    free(v);
    free(k);
    return ok;
}

bool eval_layers_measure(eval_layers_probe* probe, model_session* s, eval_cache* cache)
{
    const int num_layers = probe->geometry->num_layers;
    cache->layers = calloc((size_t)num_layers, sizeof *cache->layers);
    if (probe->failed || cache->layers == NULL) { return false; }
    cache->num_layers = num_layers;
    for (int layer = 0; layer < num_layers; layer++) {
        if (!measure_layer(probe, s, layer, &cache->layers[layer])) { return false; }
    }
    return true;
}
