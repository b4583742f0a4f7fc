// eval_run.c -- opens what a run needs, and runs it: windows, then needles, then generations.
//
// Windows are the outer loop and caches the inner one, so that the base's pass over a window is
// computed once and only one window of logits is held.  With --jobs N the first window is measured
// alone, since decoding is timed after it, and the others N at a time: what of a window several
// threads would share, the rows of one token, is little.

#include "eval_run.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "eval_choices.h"
#include "eval_dump.h"
#include "eval_engine.h"
#include "eval_generate.h"
#include "eval_layers.h"
#include "eval_module.h"
#include "eval_needle.h"
#include "eval_progress.h"
#include "eval_resume.h"
#include "eval_speed.h"
#include "eval_summary.h"
#include "eval_text.h"
#include "matrix.h"

enum {
    DEFAULT_CONTEXT = 2048,
    DEFAULT_SKIP = 256,
    PROMPT_TOKENS = 64,      // of a generation
    MAX_GENERATIONS = 4
};

volatile sig_atomic_t eval_interrupted;

// Runners side by side.  Who has the lock may change what they share: progress, the resume file,
// errors of caches and these.
typedef struct eval_shared {
    pthread_mutex_t lock;
    int next;                // window
    int status;              // not MODEL_OK: of the first runner that ended so
} eval_shared;

typedef struct runner {
    const eval_options* o;
    eval_results* r;
    model* m;
    kvl_context* ctx;
    kvl_calibration* calibration;  // NULL: none
    eval_text text;
    eval_engine engine;
    eval_resume* resume;     // NULL: none
    eval_progress* progress;
    int32_t* ids;            // [context]
    int num_threads;         // asked for
    eval_shared* shared;     // NULL: no other runner
    char* message;
    size_t message_bytes;
} runner;

static int fail(runner* run, const char* format, ...) __attribute__((format(printf, 2, 3)));
static int fail(runner* run, const char* format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(run->message, run->message_bytes, format, args);
    va_end(args);
    return 1;
}

static void take_turn(const runner* run)
{
    if (run->shared != NULL) { pthread_mutex_lock(&run->shared->lock); }
}

static void end_turn(const runner* run)
{
    if (run->shared != NULL) { pthread_mutex_unlock(&run->shared->lock); }
}

static void begin_step(const runner* run, const char* what)
{
    take_turn(run);
    eval_progress_step(run->progress, what);
    end_turn(run);
}

static void end_step(const runner* run, const char* what, const char* result)
{
    take_turn(run);
    eval_progress_done(run->progress, what, result);
    end_turn(run);
}

// SETTING UP

static void on_log(kvl_log_level level, const char* message, void* user)
{
    runner* run = user;
    if (level != KVL_LOG_INFO || run->o->verbose) {
        take_turn(run);
        eval_progress_clear(run->progress);
        fprintf(stderr, "kvloom-eval: %s\n", message);
        end_turn(run);
    }
}

static bool on_tick(void* user, int layer, int num_layers)
{
    runner* run = user;
    take_turn(run);
    eval_progress_layer(run->progress, layer, num_layers);
    end_turn(run);
    return eval_interrupted != 0;
}

static int choose_sizes(runner* run)
{
    const eval_options* o = run->o;
    eval_results* r = run->r;
    const int64_t trained = model_get_geometry(run->m)->context_len;
    r->context = o->context;
    if (r->context == 0) { r->context = trained < DEFAULT_CONTEXT ? trained : DEFAULT_CONTEXT; }
    r->skip = o->skip;
    if (r->skip < 0) { r->skip = r->context >= 4 * DEFAULT_SKIP ? DEFAULT_SKIP : r->context / 4; }
    if (r->skip > r->context - 2) {
        return fail(run, "--skip %lld: must be at most %lld, the context less 2",
                    (long long)r->skip, (long long)r->context - 2);
    }
    if (r->context > trained) {
        fprintf(stderr, "kvloom-eval: -c %lld is more than the %lld tokens that the model was "
                "trained for\n", (long long)r->context, (long long)trained);
    }
    r->num_positions = r->context - 1 - r->skip;
    const int64_t windows = eval_text_num_windows(&run->text, r->context);
    if (windows < 1) {
        return fail(run, "%s: %lld tokens: a window has %lld", o->text,
                    (long long)run->text.count, (long long)r->context);
    }
    r->num_windows_asked = o->windows;
    r->num_windows = windows < o->windows ? (int)windows : o->windows;
    if (r->num_windows < o->windows) {
        fprintf(stderr, "kvloom-eval: %s has %d windows of %lld tokens, not %d\n", o->text,
                r->num_windows, (long long)r->context, o->windows);
    }
    return 0;
}

static int open_inputs(runner* run)
{
    const eval_options* o = run->o;
    eval_results* r = run->r;
    if (model_open(o->model, NULL, &run->m, run->message, run->message_bytes) != 0 ||
        eval_fingerprint(o->model, r->model_fingerprint, run->message, run->message_bytes) != 0 ||
        eval_text_read(o->text, model_tokenizer(run->m), &run->text, run->message,
                       run->message_bytes) != 0) {
        return 1;
    }
    const model_geometry* g = model_get_geometry(run->m);
    snprintf(r->model_name, sizeof r->model_name, "%s", g->name);
    snprintf(r->architecture, sizeof r->architecture, "%s", g->architecture);
    memcpy(r->text_sha256, run->text.sha256, sizeof r->text_sha256);
    r->text_tokens = run->text.count;
    r->vocab_size = g->vocab_size;
    r->num_layers = g->num_layers;
    return choose_sizes(run);
}

static bool allocate_results(runner* run)
{
    const eval_options* o = run->o;
    eval_results* r = run->r;
    const size_t n = (size_t)r->num_windows;
    bool ok = (r->command = strdup(o->command)) != NULL && (r->model = strdup(o->model)) != NULL &&
              (r->text = strdup(o->text)) != NULL &&
              (o->calibration == NULL || (r->calibration = strdup(o->calibration)) != NULL);
    r->base_nll = calloc(n, sizeof *r->base_nll);
    r->caches = calloc((size_t)o->num_caches, sizeof *r->caches);
    run->ids = malloc((size_t)r->context * sizeof *run->ids);
    if (!ok || r->base_nll == NULL || r->caches == NULL || run->ids == NULL) { return false; }
    r->num_caches = o->num_caches;
    r->base.cache = strdup("f16");
    for (int i = 0; ok && i < o->num_caches; i++) {
        r->caches[i].cache = strdup(o->caches[i]);
        r->caches[i].windows = calloc(n, sizeof *r->caches[i].windows);
        ok = r->caches[i].cache != NULL && r->caches[i].windows != NULL;
    }
    return ok && r->base.cache != NULL;
}

static int open_calibration(runner* run)
{
    const char* path = run->o->calibration;
    eval_results* r = run->r;
    if (path == NULL) { return 0; }
    if (kvl_calibration_load(run->ctx, path, &run->calibration) != KVL_OK) {
        return fail(run, "--calibration %s", kvl_context_message(run->ctx));
    }
    // A file that others have edited may have no hash.
    const char* hash = kvl_calibration_text(run->calibration, "hash_tables");
    if (hash[0] == 0) {
        return eval_fingerprint(path, r->calibration_hash, run->message, run->message_bytes);
    }
    snprintf(r->calibration_hash, sizeof r->calibration_hash, "%s", hash);
    return 0;
}

static int open_engine(runner* run)
{
    const eval_options* o = run->o;
    kvl_context_desc desc = { .target = o->target, .num_threads = run->num_threads };
    desc.exact = o->exact;
    desc.log.call = on_log;
    desc.log.user = run;
    if (kvl_context_create(&desc, &run->ctx) != KVL_OK) {
        return fail(run, "%s", run->ctx != NULL ? kvl_context_message(run->ctx) : "out of memory");
    }
    if (run->shared == NULL) { run->r->threads = kvl_context_threads(run->ctx); }
    if (open_calibration(run) != 0) { return 1; }
    int64_t context = run->r->context;
    if (o->generate > 0 && context < PROMPT_TOKENS + o->generate) {
        context = PROMPT_TOKENS + o->generate;
    }
    const eval_engine_desc engine = { .m = run->m, .ctx = run->ctx, .context = context,
                                      .calibration = run->calibration,
                                      .products = o->products, .tick = on_tick, .user = run };
    if (eval_engine_create(&run->engine, &engine) != MODEL_OK) {
        return fail(run, "%s", run->engine.message);
    }
    return 0;
}

// A spec that cannot be served ends the run before any work.
static int probe_cache(runner* run, eval_cache* cache)
{
    model_session* s = NULL;
    kvl_layer_info info;
    size_t needed = 0;
    if (eval_engine_open(&run->engine, cache->cache, 0, &s) != MODEL_OK) {
        return fail(run, "--cache '%.200s': %s", cache->cache, run->engine.message);
    }
    const kvl_cache* held = model_session_cache(s);
    double bits[3] = { 0.0, 0.0, 0.0 }, values[2] = { 0.0, 0.0 };
    bool ok = true;
    cache->generated = true;
    for (int layer = 0; ok && layer < run->r->num_layers; layer++) {
        const model_layer_geometry* g = &model_get_geometry(run->m)->layers[layer];
        ok = kvl_cache_layer_info(held, layer, &info) == KVL_OK;
        if (!ok) { break; }
        if (layer == 0) { cache->canonical = strdup(info.spec); }
        cache->generated = cache->generated && info.uses_generated;
        bits[0] += info.k_bits / run->r->num_layers;
        bits[1] += info.v_bits / run->r->num_layers;
        bits[2] += info.k_bits * g->num_kv_heads * g->head_dim;
        bits[2] += info.v_bits * g->num_kv_heads * g->head_dim_v;
        values[0] += g->num_kv_heads * (g->head_dim + g->head_dim_v);
    }
    cache->bits_key = bits[0];
    cache->bits_value = bits[1];
    cache->bits_body = bits[2] / values[0];
    kvl_describe(held, NULL, 0, &needed);
    cache->description = calloc(needed + 1, 1);
    ok = ok && cache->canonical != NULL && cache->description != NULL &&
         kvl_describe(held, cache->description, needed + 1, NULL) == KVL_OK;
    model_session_free(s);
    if (ok && run->o->verbose) {
        fprintf(stderr, "--cache %s\n%s\n", cache->cache, cache->description);
    }
    cache->bits_total = cache->compression = cache->bytes_per_token = (double)NAN;
    cache->tokens_per_second = (double)NAN;
    return ok ? 0 : fail(run, "--cache '%.200s': out of memory", cache->cache);
}

static int set_up(runner* run)
{
    const eval_options* o = run->o;
    eval_results* r = run->r;
    if (open_inputs(run) != 0) { return 1; }
    if (!allocate_results(run)) { return fail(run, "out of memory"); }
    if (open_engine(run) != 0 || probe_cache(run, &r->base) != 0) { return 1; }
    if (o->jobs > 1 && o->jobs > r->threads) {
        return fail(run, "-j %d: must be at most %d, the number of threads (-t)", o->jobs,
                    r->threads);
    }
    for (int i = 0; i < r->num_caches; i++) {
        if (probe_cache(run, &r->caches[i]) != 0) { return 1; }
    }
    snprintf(r->target, sizeof r->target, "%s", r->base.generated ? "host" : "reference");
    if (o->resume == NULL) { return 0; }
    return eval_resume_open(o->resume, r, &run->resume, run->message, run->message_bytes);
}

// WINDOWS

// Side by side only with the turn.
static bool is_to_do(const eval_cache* cache, int w)
{
    return !cache->windows[w].done && cache->error[0] == 0;
}

static int count_to_do(const eval_results* r, int w)
{
    int count = 0;
    for (int i = 0; i < r->num_caches; i++) { count += is_to_do(&r->caches[i], w); }
    return count;
}

// What the cache has allocated for the window that the session holds.  Each thread has scratch
// memory there: side by side, what the first window gave stands.
static int read_stats(runner* run, model_session* s, eval_cache* cache)
{
    kvl_stats stats;
    double values = 0.0;
    if (run->shared != NULL) { return 0; }
    if (kvl_cache_stats(model_session_cache(s), &stats) != KVL_OK) {
        return fail(run, "%s", kvl_context_message(run->ctx));
    }
    for (int layer = 0; layer < run->r->num_layers; layer++) {
        const model_layer_geometry* g = &model_get_geometry(run->m)->layers[layer];
        values += g->num_kv_heads * (g->head_dim + g->head_dim_v);
    }
    const double rows = (double)model_session_length(s);
    cache->cache_bytes = stats.bytes;
    cache->bits_total = 8.0 * (double)stats.bytes / (values * rows);
    cache->compression = (double)stats.f16_bytes / (double)stats.bytes;
    cache->bytes_per_token = (double)stats.bytes / rows;
    cache->rows_quantized = stats.num_quantized;
    cache->rows_total = stats.num_rows;
    return 0;
}

static int64_t room_after(const runner* run)
{
    const int64_t most = run->o->speed ? EVAL_SPEED_MOST_ROWS : 0;
    return (most > run->r->context ? most - run->r->context : 0) + EVAL_SPEED_ROOM;
}

// Times decoding once a cache, after its first window in this run.
static int time_decoding(runner* run, model_session* s, eval_cache* cache)
{
    const bool wants_lengths = run->o->speed && cache->num_speeds == 0;
    if (run->shared != NULL) { return 0; }
    if (!isnan(cache->tokens_per_second) && !wants_lengths) { return 0; }
    float* logits = run->engine.slices[1];
    if (eval_speed_measure(s, logits, run->o->speed, cache) == MODEL_OK) { return 0; }
    return fail(run, "%s", model_session_message(s));
}

static int run_base(runner* run, int w)
{
    eval_cache* base = &run->r->base;
    model_session* s = NULL;
    char what[96];
    snprintf(what, sizeof what, "window %d of %d, f16", w + 1, run->r->num_windows);
    begin_step(run, what);
    run->engine.prompt_len = run->r->skip;
    int status = eval_engine_open(&run->engine, base->cache, room_after(run), &s);
    if (status == MODEL_OK) {
        status = eval_engine_pass(&run->engine, s, run->ids, run->r->context, 0);
    }
    if (status == MODEL_FAILED) { fail(run, "window %d, f16: %s", w, run->engine.message); }
    if (status == MODEL_OK && (read_stats(run, s, base) || time_decoding(run, s, base))) {
        status = MODEL_FAILED;
    }
    model_session_free(s);
    if (status == MODEL_OK) { end_step(run, what, ""); }
    return status;
}

// The base's numbers of a window come with its first comparison.
static float* begin_base_nll(runner* run, int w)
{
    if (run->r->base_nll[w] != NULL) { return NULL; }
    return malloc((size_t)run->r->num_positions * sizeof(float));
}

static int compare(runner* run, model_session* s, eval_cache* cache, int w, double start)
{
    eval_results* r = run->r;
    eval_window* window = &cache->windows[w];
    float* base_nll = begin_base_nll(run, w);
    eval_dump dump;
    eval_comparison c = { .ids = run->ids, .count = r->context, .first = r->skip, .window = w,
                          .session = s };
    if (eval_dump_open(run->o->dump_folder, r, (int)(cache - r->caches), w, &dump, run->message,
                       run->message_bytes) != 0) {
        free(base_nll);
        return 1;
    }
    c.dump_base = dump.base;
    c.dump_cache = dump.cache;
    const int status = eval_engine_compare(&run->engine, &c, window, base_nll);
    window->seconds = eval_seconds() - start;
    if (eval_dump_close(&dump, run->ids, r, window, run->message, run->message_bytes) != 0 ||
        status != MODEL_OK) {
        free(base_nll);
        return status != MODEL_OK ? fail(run, "%s", run->engine.message) : 1;
    }
    if (base_nll == NULL) { return 0; }
    r->base_nll[w] = base_nll;
    if (run->resume == NULL) { return 0; }
    take_turn(run);
    const int failed = eval_resume_add_base(run->resume, r, w, run->message, run->message_bytes);
    end_turn(run);
    return failed;
}

// One cache on one window. Returns MODEL_OK, MODEL_STOPPED, or MODEL_FAILED with a message.
static int run_window(runner* run, eval_cache* cache, int w)
{
    model_session* s = NULL;
    char what[160], result[64];
    const double start = eval_seconds();
    eval_engine* engine = &run->engine;
    snprintf(what, sizeof what, "window %d of %d, %.100s", w + 1, run->r->num_windows,
             cache->cache);
    begin_step(run, what);
    eval_layers_probe* probe =
        w == 0 && cache->num_layers == 0 ? eval_layers_create(run->m, run->ctx, run->r->context)
                                         : NULL;
    engine->on_rows = probe != NULL ? eval_layers_see : NULL;
    engine->on_rows_user = probe;
    engine->prompt_len = run->r->skip;
    int status = eval_engine_open(engine, cache->cache, room_after(run), &s);
    if (status == MODEL_OK) { status = eval_engine_pass(engine, s, run->ids, run->r->context, 1); }
    engine->on_rows = NULL;
    if (status == MODEL_FAILED) { fail(run, "%s", engine->message); }
    if (status == MODEL_OK &&
        (read_stats(run, s, cache) || compare(run, s, cache, w, start))) {
        status = MODEL_FAILED;
    }
    if (status == MODEL_OK && probe != NULL && !eval_layers_measure(probe, s, cache)) {
        fail(run, "errors of layers: out of memory, or a row cannot be read back");
        status = MODEL_FAILED;
    }
    if (status == MODEL_OK && probe != NULL && run->o->choices &&
        !eval_choices_measure(probe, run->m, s, cache, run->message, run->message_bytes)) {
        status = MODEL_FAILED;
    }
    if (status == MODEL_OK && time_decoding(run, s, cache)) { status = MODEL_FAILED; }
    eval_layers_free(probe);
    model_session_free(s);
    if (status != MODEL_OK) { return status; }
    double sum = 0.0;
    const int64_t n = run->r->num_positions;
    for (int64_t i = 0; i < n; i++) { sum += (double)cache->windows[w].kl[i]; }
    snprintf(result, sizeof result, ": KL x1000 %.4g", 1000.0 * sum / (double)n);
    end_step(run, what, result);
    return MODEL_OK;
}

// Keeps what a cache gave on a window. Returns 0, or another value with a message.
static int keep_window(runner* run, eval_cache* cache, int w, int status)
{
    int failed = 0;
    take_turn(run);
    if (status == MODEL_FAILED) {
        eval_window_free(&cache->windows[w]);
        snprintf(cache->error, sizeof cache->error, "window %d: %.440s", w, run->message);
        eval_progress_clear(run->progress);
        fprintf(stderr, "kvloom-eval: %s: %s\n", cache->cache, cache->error);
    } else if (run->resume != NULL) {
        failed = eval_resume_add(run->resume, run->r, cache, w, run->message, run->message_bytes);
    }
    end_turn(run);
    return failed;
}

static int run_caches(runner* run, int w)
{
    eval_results* r = run->r;
    for (int i = 0; i < r->num_caches; i++) {
        eval_cache* cache = &r->caches[i];
        take_turn(run);
        const bool to_do = is_to_do(cache, w);
        end_turn(run);
        if (!to_do) { continue; }
        const int status = run_window(run, cache, w);
        if (status == MODEL_STOPPED) { return status; }
        if (keep_window(run, cache, w, status) != 0) { return MODEL_FAILED; }
    }
    return MODEL_OK;
}

static int run_base_and_caches(runner* run, int w)
{
    eval_text_window(&run->text, run->r->context, w, run->ids);
    const int status = run_base(run, w);
    return status == MODEL_OK ? run_caches(run, w) : status;
}

// SIDE BY SIDE

static void close_worker(runner* worker)
{
    eval_engine_free(&worker->engine);
    kvl_calibration_free(worker->calibration);
    kvl_context_destroy(worker->ctx);
    free(worker->ids);
    free(worker->message);
}

// A runner with a share of the threads, and buffers of its own.
static int open_worker(runner* worker, const runner* run, eval_shared* shared)
{
    *worker = *run;
    worker->shared = shared;
    worker->ctx = NULL;
    worker->calibration = NULL;
    memset(&worker->engine, 0, sizeof worker->engine);
    worker->num_threads = run->r->threads / run->o->jobs;
    worker->ids = malloc((size_t)run->r->context * sizeof *worker->ids);
    worker->message = calloc(1, run->message_bytes);
    if (worker->message == NULL) { return 1; }
    return worker->ids != NULL ? open_engine(worker) : fail(worker, "out of memory");
}

// The next window to do; -1: none, or another runner has failed.
static int take_window(runner* run)
{
    int w = -1;
    take_turn(run);
    for (; w < 0 && run->shared->status == MODEL_OK && run->shared->next < run->r->num_windows;
         run->shared->next++) {
        if (count_to_do(run->r, run->shared->next) > 0) { w = run->shared->next; }
    }
    end_turn(run);
    return w;
}

static void* work(void* arg)
{
    runner* run = arg;
    int status = MODEL_OK;
    while (status == MODEL_OK && !eval_interrupted) {
        const int w = take_window(run);
        if (w < 0) { break; }
        status = run_base_and_caches(run, w);
    }
    take_turn(run);
    const bool first = run->shared->status == MODEL_OK;
    if (first) { run->shared->status = status; }
    if (!first || status != MODEL_FAILED) { run->message[0] = 0; }
    end_turn(run);
    return NULL;
}

typedef struct crew {
    runner* workers;         // [opened]
    pthread_t* threads;      // [started]
    int opened, started;
} crew;

static int open_workers(runner* run, eval_shared* shared, crew* c)
{
    const int jobs = run->o->jobs;
    c->workers = calloc((size_t)jobs, sizeof *c->workers);
    c->threads = calloc((size_t)jobs, sizeof *c->threads);
    if (c->workers == NULL || c->threads == NULL) { return fail(run, "out of memory"); }
    while (c->opened < jobs) {
        runner* worker = &c->workers[c->opened++];
        if (open_worker(worker, run, shared) != 0) {
            return fail(run, "-j %d: %.900s", jobs,
                        worker->message != NULL ? worker->message : "out of memory");
        }
    }
    return 0;
}

static int start_workers(runner* run, eval_shared* shared, crew* c)
{
    while (c->started < c->opened && pthread_create(&c->threads[c->started], NULL, work,
                                                    &c->workers[c->started]) == 0) {
        c->started++;
    }
    if (c->started == c->opened) { return 0; }
    pthread_mutex_lock(&shared->lock);
    shared->status = MODEL_FAILED;             // the others stop
    pthread_mutex_unlock(&shared->lock);
    return fail(run, "-j %d: a thread cannot be started", run->o->jobs);
}

// Windows from `first` on; one at least is to do.
static int run_side_by_side(runner* run, int first)
{
    eval_shared shared = { .lock = PTHREAD_MUTEX_INITIALIZER, .next = first };
    crew c = { .opened = 0 };
    // Each worker multiplies for itself: nobody else may set this meanwhile.
    const int before = matrix_blas_threads(1);
    int failed = open_workers(run, &shared, &c);
    if (!failed) { failed = start_workers(run, &shared, &c); }
    for (int i = 0; i < c.started; i++) { pthread_join(c.threads[i], NULL); }
    for (int i = 0; i < c.opened; i++) {
        const char* text = c.workers[i].message;
        if (!failed && text[0] != 0) { failed = fail(run, "%s", text); }
        close_worker(&c.workers[i]);
    }
    matrix_blas_threads(before);
    free(c.workers);
    free(c.threads);
    pthread_mutex_destroy(&shared.lock);
    return failed ? MODEL_FAILED : shared.status;
}

static int run_windows(runner* run, bool quiet)
{
    eval_results* r = run->r;
    int total = 0;
    for (int w = 0; w < r->num_windows; w++) {
        const int count = count_to_do(r, w);
        total += count > 0 ? count + 1 : 0;
    }
    eval_progress_start(run->progress, quiet, total);
    int status = MODEL_OK, w = 0;
    bool alone = true;
    for (; w < r->num_windows && alone && status == MODEL_OK && !eval_interrupted; w++) {
        if (count_to_do(r, w) == 0) { continue; }
        status = run_base_and_caches(run, w);
        alone = run->o->jobs <= 1;
    }
    while (w < r->num_windows && count_to_do(r, w) == 0) { w++; }
    if (w < r->num_windows && status == MODEL_OK && !eval_interrupted) {
        status = run_side_by_side(run, w);
    }
    eval_progress_clear(run->progress);
    return status;
}

// NEEDLES AND GENERATIONS

static int run_needle(runner* run, const eval_needle_plan* plan, const eval_needle_prompt* prompt,
                      int length, int depth, int trial)
{
    eval_results* r = run->r;
    for (int i = -1; i < r->num_caches; i++) {
        eval_cache* cache = i < 0 ? &r->base : &r->caches[i];
        char what[160];
        bool hit = false;
        if (cache->error[0] != 0) { continue; }
        snprintf(what, sizeof what, "needle in %lld tokens, depth %d, %.80s",
                 (long long)plan->lengths[length], depth, cache->cache);
        begin_step(run, what);
        const int status = eval_needle_run(&run->engine, cache->cache, prompt, &hit);
        if (status == MODEL_FAILED) { fail(run, "%s: %s", cache->cache, run->engine.message); }
        if (status != MODEL_OK) { return status; }
        cache->needle.num_lengths = plan->num_lengths;
        memcpy(cache->needle.lengths, plan->lengths, sizeof plan->lengths);
        cache->needle.trials = trial + 1;
        cache->needle.hits[length][depth] += hit;
        end_step(run, what, hit ? ": found" : ": not found");
    }
    return MODEL_OK;
}

static int run_needles(runner* run, bool quiet)
{
    const eval_needle_plan plan = eval_needle_plan_for(run->r->context, run->o->seed);
    const int cells = plan.num_lengths * EVAL_DEPTHS * plan.trials;
    int status = MODEL_OK;
    if (plan.num_lengths == 0) {
        fail(run, "--needle: a context of %lld tokens is too short", (long long)run->r->context);
        return MODEL_FAILED;
    }
    eval_progress_start(run->progress, quiet, cells * (run->r->num_caches + 1));
    for (int cell = 0; cell < cells && status == MODEL_OK && !eval_interrupted; cell++) {
        const int trial = cell / (plan.num_lengths * EVAL_DEPTHS);
        const int length = cell / EVAL_DEPTHS % plan.num_lengths, depth = cell % EVAL_DEPTHS;
        eval_needle_prompt prompt;
        status = eval_needle_make(&plan, &run->text, model_tokenizer(run->m), length, depth, trial,
                                  &prompt, run->message, run->message_bytes);
        if (status == MODEL_OK) { status = run_needle(run, &plan, &prompt, length, depth, trial); }
        free(prompt.ids);
    }
    eval_progress_clear(run->progress);
    return status;
}

static int run_generation(runner* run, int index, const eval_prompt* prompt)
{
    eval_results* r = run->r;
    for (int i = -1; i < r->num_caches; i++) {
        eval_cache* cache = i < 0 ? &r->base : &r->caches[i];
        char what[160];
        if (cache->error[0] != 0) { continue; }
        snprintf(what, sizeof what, "generation %d, %.100s", index + 1, cache->cache);
        begin_step(run, what);
        eval_generation* out = &cache->generations[index];
        const int status =
            i < 0 ? eval_generate_base(&run->engine, prompt, out)
                  : eval_generate(&run->engine, cache->cache, prompt, &r->base.generations[index],
                                  out);
        if (status == MODEL_FAILED) { fail(run, "%s: %s", cache->cache, run->engine.message); }
        if (status != MODEL_OK) { return status; }
        cache->num_generations = index + 1;
        end_step(run, what, "");
    }
    return MODEL_OK;
}

static int run_generations(runner* run, bool quiet)
{
    eval_results* r = run->r;
    const int count = r->num_windows < MAX_GENERATIONS ? r->num_windows : MAX_GENERATIONS;
    const int64_t prompt_tokens = r->context < PROMPT_TOKENS ? r->context : PROMPT_TOKENS;
    int status = MODEL_OK;
    for (int i = -1; i < r->num_caches; i++) {
        eval_cache* cache = i < 0 ? &r->base : &r->caches[i];
        cache->generations = calloc((size_t)count, sizeof *cache->generations);
        if (cache->generations == NULL) { return fail(run, "out of memory"); }
    }
    eval_progress_start(run->progress, quiet, count * (r->num_caches + 1));
    for (int i = 0; i < count && status == MODEL_OK && !eval_interrupted; i++) {
        eval_text_window(&run->text, r->context, i, run->ids);
        const eval_prompt prompt = { run->ids, prompt_tokens, run->o->generate };
        status = run_generation(run, i, &prompt);
    }
    eval_progress_clear(run->progress);
    return status;
}

// MODULES

static int run_modules(runner* run, bool quiet)
{
    eval_results* r = run->r;
    int status = MODEL_OK;
    eval_progress_start(run->progress, quiet, r->num_windows * r->num_caches);
    for (int w = 0; w < r->num_windows && status == MODEL_OK; w++) {
        eval_text_window(&run->text, r->context, w, run->ids);
        const eval_module_window window = { run->ids, r->context, r->skip };
        for (int i = 0; i < r->num_caches && status == MODEL_OK; i++) {
            char what[160];
            snprintf(what, sizeof what, "modules, window %d of %d, %.100s", w + 1, r->num_windows,
                     r->caches[i].cache);
            begin_step(run, what);
            status = eval_module_measure(&run->engine, &window, &r->caches[i]);
            if (status == MODEL_FAILED) {
                fail(run, "%s: %.500s", r->caches[i].cache, run->engine.message);
            }
            if (status == MODEL_OK) { end_step(run, what, ""); }
        }
    }
    eval_progress_clear(run->progress);
    // Sums over windows of which one is cut are of no use.
    for (int i = 0; i < r->num_caches && status == MODEL_OK; i++) {
        eval_module_finish(&r->caches[i]);
    }
    return status;
}

static void take_down(runner* run)
{
    eval_resume_close(run->resume);
    eval_engine_free(&run->engine);
    free(run->ids);
    eval_text_free(&run->text);
    kvl_calibration_free(run->calibration);
    kvl_context_destroy(run->ctx);
    model_close(run->m);
}

int eval_run(const eval_options* options, bool quiet, eval_results* out, char* message,
             size_t message_bytes)
{
    memset(out, 0, sizeof *out);
    eval_progress progress = { .quiet = quiet };
    runner run = { .o = options, .r = out, .progress = &progress,
                   .num_threads = options->num_threads, .message = message,
                   .message_bytes = message_bytes };
    out->version = KVLOOM_VERSION;
    out->seed = options->seed;
    out->counts_choices = options->choices;
    message[0] = 0;
    int status = set_up(&run) == 0 ? MODEL_OK : MODEL_FAILED;
    const bool ready = status == MODEL_OK;
    if (ready) {
        status = options->module ? run_modules(&run, quiet) : run_windows(&run, quiet);
    }
    if (status == MODEL_OK && options->needle && !eval_interrupted) {
        status = run_needles(&run, quiet);
    }
    if (status == MODEL_OK && options->generate > 0 && !eval_interrupted) {
        status = run_generations(&run, quiet);
    }
    if (ready && !options->module && !eval_summarise(out)) { status = fail(&run, "out of memory"); }
    if (status == MODEL_STOPPED || eval_interrupted) { out->interrupted = true; }
    for (int i = 0; ready && status == MODEL_OK && i < out->num_caches; i++) {
        if (out->caches[i].error[0] == 0) { continue; }
        status = fail(&run, "%s: %.400s", out->caches[i].cache, out->caches[i].error);
    }
    const time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc) != NULL) {
        strftime(out->date, sizeof out->date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    }
    take_down(&run);
    return status == MODEL_FAILED ? 1 : 0;
}
