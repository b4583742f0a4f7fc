// eval_engine.c -- passes over a window, and their comparison.

#include "eval_engine.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache_specs.h"
#include "eval_statistics.h"
#include "eval_text.h"

enum {
    PASS_ROWS = 1024,          // a batch; large enough for BLAS, and Ctrl-C is heard between two
    SLICE_BYTES = 128 << 20,   // of logits at a time
    BEFORE_TOKENS = 32,        // shown before a bad token
    MAX_CACHE_ARGS = 64
};

#define ENGINE_PRINTF(n) __attribute__((format(printf, n, (n) + 1)))

static int fail(eval_engine* engine, const char* format, ...) ENGINE_PRINTF(2);
static int fail(eval_engine* engine, const char* format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(engine->message, sizeof engine->message, format, args);
    va_end(args);
    return MODEL_FAILED;
}

double eval_seconds(void)
{
    struct timespec now = { 0, 0 };
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int64_t clamp(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : x > most ? most : x;
}

int eval_engine_create(eval_engine* engine, const eval_engine_desc* desc)
{
    *engine = (eval_engine){ .desc = *desc, .geometry = model_get_geometry(desc->m) };
    const uint64_t row_bytes = (uint64_t)engine->geometry->vocab_size * sizeof(float);
    const uint64_t kept_bytes = row_bytes * (uint64_t)desc->context;
    const uint64_t most = desc->max_logits_bytes > 0 ? desc->max_logits_bytes : 512u << 20;
    const size_t hidden = (size_t)desc->context * (size_t)engine->geometry->hidden_len;
    engine->slice_rows = clamp((int64_t)(SLICE_BYTES / row_bytes), 16, 512);
    bool ok = true;
    for (int side = 0; side < 2; side++) {
        engine->hidden[side] = malloc(hidden * sizeof(float));
        engine->slices[side] = malloc((size_t)engine->slice_rows * row_bytes);
        ok = ok && engine->hidden[side] != NULL && engine->slices[side] != NULL;
    }
    if (kept_bytes <= most) { engine->base_logits = malloc(kept_bytes); }
    if (ok) { return MODEL_OK; }
    eval_engine_free(engine);
    return fail(engine, "out of memory: logits of %lld positions", (long long)desc->context);
}

void eval_engine_free(eval_engine* engine)
{
    for (int side = 0; side < 2; side++) {
        free(engine->hidden[side]);
        free(engine->slices[side]);
        engine->hidden[side] = engine->slices[side] = NULL;
    }
    free(engine->base_logits);
    engine->base_logits = NULL;
}

// SESSIONS

static void see_rows(void* user, const model_rows* rows)
{
    eval_engine* engine = user;
    const eval_engine_desc* d = &engine->desc;
    if (engine->on_rows != NULL) { engine->on_rows(engine->on_rows_user, rows); }
    if (d->tick != NULL && d->tick(d->user, rows->layer, engine->geometry->num_layers)) {
        engine->stopped = true;
    }
}

// Takes text apart at blanks, in place. Returns the number of parts.
static int split(char* text, const char** parts, int most)
{
    int count = 0;
    for (char* at = strtok(text, " \t"); at != NULL && count < most; at = strtok(NULL, " \t")) {
        parts[count++] = at;
    }
    return count;
}

int eval_engine_open(eval_engine* engine, const char* cache, int64_t room, model_session** out)
{
    const char* args[MAX_CACHE_ARGS];
    cache_specs specs;
    *out = NULL;
    char* text = strdup(cache);
    if (text == NULL) { return fail(engine, "out of memory"); }
    const int count = split(text, args, MAX_CACHE_ARGS);
    char* message = engine->message;
    int failed = cache_specs_create(args, count, engine->geometry->num_layers, &specs, message,
                                    sizeof engine->message);
    if (!failed) {
        const int64_t context = engine->desc.context;
        const model_session_desc desc = {
            .ctx = engine->desc.ctx,
            .specs = specs.specs,
            .calibration = engine->desc.calibration,
            .context_len = context + room,
            .batch_len = (int)(context < PASS_ROWS ? context : PASS_ROWS),
            .on_rows = see_rows,
            .user = engine,
        };
        failed = model_session_create(engine->desc.m, &desc, out, message, sizeof engine->message);
        cache_specs_free(&specs);
    }
    free(text);
    return failed ? MODEL_FAILED : MODEL_OK;
}

static bool is_stopped(void* user, int64_t done, int64_t count)
{
    const eval_engine* engine = user;
    (void)done;
    (void)count;
    return engine->stopped;
}

int eval_engine_pass(eval_engine* engine, model_session* s, const int32_t* ids, int64_t count,
                     int side)
{
    if (count > engine->desc.context) {
        return fail(engine, "a pass of %lld tokens: at most %lld", (long long)count,
                    (long long)engine->desc.context);
    }
    if (side == 0) { engine->kept_rows = 0; }
    engine->stopped = false;
    const model_run run = { .ids = ids,
                            .count = count,
                            .hidden = engine->hidden[side],
                            .rows_through_cache = true,
                            .prompt_len = engine->prompt_len,
                            .products = engine->desc.products,
                            .progress = is_stopped,
                            .user = engine };
    const int status = model_run_tokens(s, &run);
    if (status == MODEL_FAILED) { return fail(engine, "%s", model_session_message(s)); }
    return engine->stopped ? MODEL_STOPPED : status;
}

// COMPARISON

typedef struct compare_job {
    eval_engine* engine;
    const eval_comparison* comparison;
    const float *base, *cache;   // [num, vocab_size] logits of a slice
    int64_t at;                  // its first position
    eval_window* out;
    float* nll_base;
} compare_job;

static void compare_row(void* arg, int64_t row)
{
    const compare_job* job = arg;
    const int64_t vocab_size = job->engine->geometry->vocab_size;
    const int64_t position = job->at + row, i = position - job->comparison->first;
    const eval_pair pair =
        eval_compare(job->base + row * vocab_size, job->cache + row * vocab_size, vocab_size,
                     job->comparison->ids[position + 1]);
    job->out->kl[i] = (float)pair.kl;
    job->out->nll[i] = (float)pair.nll;
    job->out->top1[i] = pair.top_base == pair.top;
    if (job->nll_base != NULL) { job->nll_base[i] = (float)pair.nll_base; }
}

// The EVAL_TOP most probable tokens, by insertion.
static void find_top(const eval_engine* engine, const float* logits, eval_candidate* top)
{
    const int64_t vocab_size = engine->geometry->vocab_size;
    const double z = eval_log_sum_exp(logits, vocab_size);
    float best[EVAL_TOP];
    for (int i = 0; i < EVAL_TOP; i++) {
        best[i] = -INFINITY;
        top[i] = (eval_candidate){ .id = -1 };
    }
    for (int32_t id = 0; id < vocab_size; id++) {
        if (!(logits[id] > best[EVAL_TOP - 1])) { continue; }
        int at = EVAL_TOP - 1;
        for (; at > 0 && logits[id] > best[at - 1]; at--) {
            best[at] = best[at - 1];
            top[at] = top[at - 1];
        }
        best[at] = logits[id];
        top[at].id = id;
    }
    for (int i = 0; i < EVAL_TOP && top[i].id >= 0; i++) {
        top[i].probability = exp((double)best[i] - z);
        eval_text_show(model_tokenizer(engine->desc.m), &top[i].id, 1, top[i].text,
                       sizeof top[i].text);
    }
}

void eval_worst_add(eval_worst* list, int* count, const eval_worst* entry)
{
    int at = *count;
    while (at > 0 && entry->kl > list[at - 1].kl) { at--; }
    if (at >= EVAL_WORST) { return; }
    const int moved = (*count < EVAL_WORST ? *count : EVAL_WORST - 1) - at;
    memmove(list + at + 1, list + at, (size_t)moved * sizeof *list);
    list[at] = *entry;
    if (*count < EVAL_WORST) { ++*count; }
}

static void keep_worst(const compare_job* job, int64_t num)
{
    const eval_comparison* c = job->comparison;
    const tokenizer* tok = model_tokenizer(job->engine->desc.m);
    const int64_t vocab_size = job->engine->geometry->vocab_size;
    eval_window* out = job->out;
    for (int64_t row = 0; row < num; row++) {
        const int64_t position = job->at + row;
        const double kl = (double)out->kl[position - c->first];
        if (out->num_worst == EVAL_WORST && !(kl > out->worst[EVAL_WORST - 1].kl)) { continue; }
        const int64_t seen = position + 1;
        const int64_t shown = seen < BEFORE_TOKENS ? seen : BEFORE_TOKENS;
        eval_worst entry = { .window = c->window, .position = position, .kl = kl,
                             .target = c->ids[position + 1] };
        eval_text_show(tok, &entry.target, 1, entry.target_text, sizeof entry.target_text);
        eval_text_show(tok, c->ids + seen - shown, shown, entry.before, sizeof entry.before);
        find_top(job->engine, job->base + row * vocab_size, entry.base);
        find_top(job->engine, job->cache + row * vocab_size, entry.cache);
        eval_worst_add(out->worst, &out->num_worst, &entry);
    }
}

// Logits of positions [at, at + num) of a side; NULL after a failure. Rows of the base that are
// kept were computed in the same slices.
static const float* slice_of(eval_engine* engine, model_session* s, int side, int64_t at,
                             int64_t num)
{
    const int64_t vocab_size = engine->geometry->vocab_size;
    const float* hidden = engine->hidden[side] + at * engine->geometry->hidden_len;
    float* out = engine->slices[side];
    if (side == 0 && engine->base_logits != NULL) {
        out = engine->base_logits + at * vocab_size;
        if (at + num <= engine->kept_rows) { return out; }
        engine->kept_rows = at + num;
    }
    if (model_output_logits(s, hidden, num, engine->desc.products, out) != MODEL_OK) {
        engine->kept_rows = 0;
        fail(engine, "%s", model_session_message(s));
        return NULL;
    }
    return out;
}

static int write_slice(eval_engine* engine, FILE* file, const float* logits, int64_t num)
{
    const size_t floats = (size_t)(num * engine->geometry->vocab_size);
    if (file == NULL || fwrite(logits, sizeof *logits, floats, file) == floats) { return MODEL_OK; }
    return fail(engine, "the logits cannot be written: %s", strerror(errno));
}

static int compare_slices(compare_job* job)
{
    eval_engine* engine = job->engine;
    const eval_comparison* c = job->comparison;
    model_session* s = c->session;
    for (job->at = c->first; job->at < c->count - 1; job->at += engine->slice_rows) {
        const int64_t left = c->count - 1 - job->at;
        const int64_t num = left < engine->slice_rows ? left : engine->slice_rows;
        job->base = slice_of(engine, s, 0, job->at, num);
        job->cache = job->base != NULL ? slice_of(engine, s, 1, job->at, num) : NULL;
        if (job->cache == NULL || write_slice(engine, c->dump_base, job->base, num) != MODEL_OK ||
            write_slice(engine, c->dump_cache, job->cache, num) != MODEL_OK) {
            return MODEL_FAILED;
        }
        kvl_parallel_for(engine->desc.ctx, num, compare_row, job);
        keep_worst(job, num);
    }
    return MODEL_OK;
}

int eval_engine_compare(eval_engine* engine, const eval_comparison* comparison, eval_window* out,
                        float* nll_base)
{
    const size_t num = (size_t)(comparison->count - 1 - comparison->first);
    compare_job job = { .engine = engine, .comparison = comparison, .out = out,
                        .nll_base = nll_base };
    out->kl = malloc(num * sizeof *out->kl);
    out->nll = malloc(num * sizeof *out->nll);
    out->top1 = malloc(num * sizeof *out->top1);
    const int status = out->kl != NULL && out->nll != NULL && out->top1 != NULL
                           ? compare_slices(&job)
                           : fail(engine, "out of memory");
    out->done = status == MODEL_OK;
    if (!out->done) { eval_window_free(out); }
    return status;
}

void eval_window_free(eval_window* window)
{
    free(window->kl);
    free(window->nll);
    free(window->top1);
    window->kl = window->nll = NULL;
    window->top1 = NULL;
    window->done = false;
}

int eval_engine_best(eval_engine* engine, model_session* s, int side, int64_t first, int64_t num,
                     int32_t* ids)
{
    const int64_t vocab_size = engine->geometry->vocab_size;
    for (int64_t done = 0; done < num; done += engine->slice_rows) {
        const int64_t left = num - done;
        const int64_t rows = left < engine->slice_rows ? left : engine->slice_rows;
        const float* hidden = engine->hidden[side] + (first + done) * engine->geometry->hidden_len;
        if (model_output_logits(s, hidden, rows, engine->desc.products, engine->slices[side])) {
            return fail(engine, "%s", model_session_message(s));
        }
        for (int64_t row = 0; row < rows; row++) {
            const float* logits = engine->slices[side] + row * vocab_size;
            ids[done + row] = (int32_t)eval_best(logits, vocab_size);
        }
    }
    return MODEL_OK;
}
