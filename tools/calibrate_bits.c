// calibrate_bits.c -- passes with one side of one layer quantized.

#include "calibrate_bits.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache_specs.h"
#include "eval_statistics.h"

enum {
    LOGITS_BYTES = 256 << 20,    // of the base; fewer positions are compared where they do not fit
    SLICE_ROWS = 64,
    ALL = -1                     // layers
};

typedef struct measurement {
    const calibrate_bits_desc* d;
    const model_geometry* g;
    kvl_context* ctx;
    float* entering;             // [num_layers, count, hidden_len] of the base
    float* hidden;               // [count, hidden_len] of the pass in progress
    float* base;                 // [num_positions, vocab_size]
    float* slice;                // [SLICE_ROWS, vocab_size]
    float* picked;               // [SLICE_ROWS, hidden_len]
    double* kl;                  // [num_positions]
    int64_t first, num_positions;
    char* message;
    size_t message_bytes;
} measurement;

static int fail(measurement* m, const char* format, ...) __attribute__((format(printf, 2, 3)));
static int fail(measurement* m, const char* format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(m->message, m->message_bytes, format, args);
    va_end(args);
    return 1;
}

// Positions of the window, spread evenly.
static int64_t position_of(const measurement* m, int64_t i)
{
    return m->first + i * (m->d->count - 1 - m->first) / m->num_positions;
}

// A session with one side of a layer as the spec says and all else in full rows.
static int open_session(measurement* m, int layer, int side, model_session** out)
{
    char arg[CACHE_SPEC_BYTES + 16];
    const char* args[] = { "f16", arg };
    cache_specs specs;
    snprintf(arg, sizeof arg, "%d:%c=%s", layer, side ? 'v' : 'k', m->d->spec);
    if (cache_specs_create(args, layer == ALL ? 1 : 2, m->g->num_layers, &specs, m->message,
                           m->message_bytes) != 0) {
        return 1;
    }
    const model_session_desc desc = { .ctx = m->ctx, .specs = specs.specs,
                                      .calibration = m->d->calibration,
                                      .context_len = m->d->count,
                                      .batch_len = m->d->count < 1024 ? (int)m->d->count : 1024 };
    const int status = model_session_create(m->d->m, &desc, out, m->message, m->message_bytes);
    cache_specs_free(&specs);
    return status;
}

typedef struct slice_job {
    const measurement* m;
    int64_t at;
} slice_job;

static void compare(void* arg, int64_t row)
{
    const slice_job* job = arg;
    const measurement* m = job->m;
    const int64_t vocab = m->g->vocab_size, i = job->at + row;
    m->kl[i] = eval_compare(m->base + i * vocab, m->slice + row * vocab, vocab,
                            m->d->ids[position_of(m, i) + 1]).kl;
}

// The logits of the pass, kept as the base's or compared with them.
static int take_logits(measurement* m, model_session* s, bool is_base)
{
    const int64_t hidden = m->g->hidden_len, vocab = m->g->vocab_size;
    for (int64_t at = 0; at < m->num_positions; at += SLICE_ROWS) {
        const int64_t left = m->num_positions - at, num = left < SLICE_ROWS ? left : SLICE_ROWS;
        for (int64_t i = 0; i < num; i++) {
            memcpy(m->picked + i * hidden, m->hidden + position_of(m, at + i) * hidden,
                   (size_t)hidden * sizeof(float));
        }
        float* to = is_base ? m->base + at * vocab : m->slice;
        if (model_output_logits(s, m->picked, num, MODEL_PRODUCTS_FLOAT, to) != MODEL_OK) {
            return fail(m, "%s", model_session_message(s));
        }
        slice_job job = { m, at };
        if (!is_base) { kvl_parallel_for(m->ctx, num, compare, &job); }
    }
    return 0;
}

static int pass(measurement* m, int layer, int side)
{
    model_session* s = NULL;
    const bool is_base = layer == ALL;
    if (open_session(m, layer, side, &s) != 0) { return 1; }
    const int64_t floats = m->d->count * m->g->hidden_len;
    const model_run run = { .ids = m->d->ids, .count = m->d->count, .hidden = m->hidden,
                            .rows_through_cache = !is_base, .products = MODEL_PRODUCTS_FLOAT,
                            .entering = is_base ? m->entering : NULL,
                            .rows = is_base ? NULL : m->entering + layer * floats,
                            .first_layer = is_base ? 0 : layer };
    int status = model_run_tokens(s, &run) == MODEL_OK ? 0
                                                       : fail(m, "%s", model_session_message(s));
    if (status == 0) { status = take_logits(m, s, is_base); }
    model_session_free(s);
    return status;
}

// The mean, to 3 digits: what differs behind them is the order of sums.
static double loss_of(const measurement* m)
{
    double sum = 0.0;
    char digits[32];
    for (int64_t i = 0; i < m->num_positions; i++) { sum += m->kl[i]; }
    snprintf(digits, sizeof digits, "%.2e", sum > 0.0 ? sum / (double)m->num_positions : 0.0);
    return strtod(digits, NULL);
}

static int measure_all(measurement* m, double* losses)
{
    const int total = 2 * m->g->num_layers;
    if (pass(m, ALL, 0) != 0) { return 1; }
    for (int i = 0; i < total; i++) {
        if (m->d->tick != NULL && m->d->tick(m->d->user, i, total)) {
            return fail(m, "interrupted while losses of layers were measured");
        }
        losses[i] = 0.0;
        if (m->g->layers[i / 2].num_kv_heads == 0) { continue; }
        if (pass(m, i / 2, i % 2) != 0) { return 1; }
        losses[i] = loss_of(m);
    }
    return 0;
}

static bool allocate(measurement* m)
{
    const size_t hidden = (size_t)m->g->hidden_len, vocab = (size_t)m->g->vocab_size;
    const size_t count = (size_t)m->d->count;
    m->entering = malloc((size_t)m->g->num_layers * count * hidden * sizeof(float));
    m->hidden = malloc(count * hidden * sizeof(float));
    m->base = malloc((size_t)m->num_positions * vocab * sizeof(float));
    m->slice = malloc(SLICE_ROWS * vocab * sizeof(float));
    m->picked = malloc(SLICE_ROWS * hidden * sizeof(float));
    m->kl = malloc((size_t)m->num_positions * sizeof(double));
    return m->entering != NULL && m->hidden != NULL && m->base != NULL && m->slice != NULL &&
           m->picked != NULL && m->kl != NULL;
}

int calibrate_bits_measure(const calibrate_bits_desc* desc, double* losses, char* message,
                           size_t message_bytes)
{
    measurement m = { .d = desc, .g = model_get_geometry(desc->m), .message = message,
                      .message_bytes = message_bytes };
    const int64_t room = LOGITS_BYTES / ((int64_t)sizeof(float) * m.g->vocab_size);
    const kvl_context_desc cd = { .num_threads = desc->num_threads };
    m.first = desc->count / 4;
    m.num_positions = desc->count - 1 - m.first;
    if (m.num_positions > room) { m.num_positions = room > 16 ? room : 16; }
    int status = 0;
    if (desc->count < 64) { status = fail(&m, "losses of layers need a window of 64 tokens"); }
    if (status == 0 && kvl_context_create(&cd, &m.ctx) != KVL_OK) {
        status = fail(&m, "%s", m.ctx != NULL ? kvl_context_message(m.ctx) : "out of memory");
    }
    if (status == 0 && !allocate(&m)) {
        status = fail(&m, "out of memory: rows of %lld tokens in %d layers",
                      (long long)desc->count, m.g->num_layers);
    }
    if (status == 0) { status = measure_all(&m, losses); }
    free(m.entering);
    free(m.hidden);
    free(m.base);
    free(m.slice);
    free(m.picked);
    free(m.kl);
    kvl_context_destroy(m.ctx);
    return status;
}
