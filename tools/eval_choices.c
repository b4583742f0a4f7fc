// eval_choices.c -- counts choices, by kvl_read_codes and the rows that a probe has kept.

#include "eval_choices.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE_BIT = 31 };  // of kvl_codes.choices

// One layer of a pass.
typedef struct choices_job {
    const model_layer_geometry* shape;
    const float* k;          // [rows, num_kv_heads, head_dim] as they came
    int64_t first, num;      // quantized rows, by position
    int piece;
    eval_choices* out;
} choices_job;

static double peak_ratio(const float* x, int n)
{
    double most = 0.0, sum = 0.0;
    for (int i = 0; i < n; i++) {
        const double a = fabs((double)x[i]);
        most = a > most ? a : most;
        sum += a * a;
    }
    return sum > 0.0 ? most / sqrt(sum / n) : 1.0;
}

// In place, not scaled: a ratio does not need it. n is a power of two.
static void hadamard(float* x, int n)
{
    for (int step = 1; step < n; step *= 2) {
        for (int i = 0; i < n; i++) {
            if (i & step) { continue; }
            const float a = x[i], b = x[i + step];
            x[i] = a + b;
            x[i + step] = a - b;
        }
    }
}

static void count_row(const choices_job* job, int head, int64_t row, uint32_t choice)
{
    const model_layer_geometry* g = job->shape;
    const float* k = job->k + ((job->first + row) * g->num_kv_heads + head) * g->head_dim;
    float turned[512];
    for (int p = 0; p < g->head_dim / job->piece; p++) {
        const int state = choice >> WHOLE_BIT & 1u ? 2 : (int)(choice >> p & 1u);
        memcpy(turned, k + p * job->piece, (size_t)job->piece * sizeof *turned);
        hadamard(turned, job->piece);
        job->out->num_pieces++;
        job->out->count[state]++;
        job->out->peak[state] += peak_ratio(k + p * job->piece, job->piece);
        job->out->peak_rotated[state] += peak_ratio(turned, job->piece);
    }
}

static bool count_head(const choices_job* job, kvl_cache* cache, int layer, kvl_seq seq, int head)
{
    kvl_codes codes = { .num_groups = 0 };
    if (kvl_read_codes(cache, layer, seq, head, 0, 0, job->num, &codes) != KVL_OK) { return false; }
    if (codes.num_choices == 0) { return true; }
    const int64_t unit = job->num / codes.num_choices;
    uint32_t* choices = malloc((size_t)codes.num_choices * sizeof *choices);
    if (choices == NULL) { return false; }
    codes.choices = choices;
    const bool ok = kvl_read_codes(cache, layer, seq, head, 0, 0, job->num, &codes) == KVL_OK;
    for (int64_t row = 0; ok && row < job->num; row++) {
        count_row(job, head, row, choices[row / unit]);
    }
    free(choices);
    return ok;
}

// The piece of "k.choose=unit32"; 0: the side chooses nothing for each unit.
static int piece_of(const char* spec)
{
    const char* at = strstr(spec, "k.choose=unit");
    return at != NULL ? atoi(at + strlen("k.choose=unit")) : 0;
}

bool eval_choices_measure(const eval_layers_probe* probe, const model* m, model_session* s,
                          eval_cache* cache, char* message, size_t message_bytes)
{
    kvl_cache* held = model_session_cache(s);
    const kvl_seq seq = model_session_seq(s);
    eval_choices* out = &cache->choices;
    *out = (eval_choices){ .num_pieces = 0 };
    for (int layer = 0; layer < model_get_geometry(m)->num_layers; layer++) {
        kvl_layer_info info;
        kvl_seq_rows rows;
        choices_job job = { .shape = &model_get_geometry(m)->layers[layer], .out = out };
        job.k = eval_layers_keys(probe, layer);
        bool ok = job.k != NULL && kvl_cache_layer_info(held, layer, &info) == KVL_OK &&
                  kvl_seq_get_rows(held, layer, seq, &rows) == KVL_OK;
        if (ok) {
            job.piece = piece_of(info.spec);
            job.first = rows.sink;
            job.num = rows.quantized;
        }
        for (int h = 0; ok && job.piece > 0 && job.num > 0 && h < job.shape->num_kv_heads; h++) {
            ok = count_head(&job, held, layer, seq, h);
        }
        if (!ok) {
            snprintf(message, message_bytes, "layer %d: choices cannot be read", layer);
            return false;
        }
    }
    for (int i = 0; i < 3; i++) {
        if (out->count[i] == 0) { continue; }
        out->peak[i] /= (double)out->count[i];
        out->peak_rotated[i] /= (double)out->count[i];
    }
    return true;
}
