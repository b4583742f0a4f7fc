// eval_module.c -- the table of errors of attention modules.

#include "eval_module.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cache_specs.h"

enum {
    MODES = EVAL_MODULE_MODES,   // keys alone, values alone, both
    MAX_CACHE_ARGS = 64,
    MOST_BATCH = 1024            // as the engine's passes
};

static const char* const mode_names[MODES] = { "keys", "values", "both" };

// A window of one cache: the exact rows' outputs, and those of each mode.
typedef struct module_pass {
    eval_engine* engine;
    const eval_module_window* window;
    eval_cache* cache;
    model_session* sessions[MODES + 1];   // the last one: f16
    float *exact, *held;                  // [rows of a batch, hidden_len]
    bool failed;
} module_pass;

static int fail(eval_engine* engine, const char* message)
{
    snprintf(engine->message, sizeof engine->message, "%s", message);
    return MODEL_FAILED;
}

// SPECS

bool eval_module_side(const char* canonical, int side, char* out, size_t bytes)
{
    const char* items = strchr(canonical, ':');
    const char* slash = strchr(canonical, '/');
    const size_t head = items != NULL ? (size_t)(items - canonical) : strlen(canonical);
    const bool two = slash != NULL && slash < canonical + head;
    const size_t first = two ? (size_t)(slash - canonical) : head;
    const char* preset = side == 1 && two ? slash + 1 : canonical;
    const int length = (int)(side == 1 && two ? head - first - 1 : first);
    int used = snprintf(out, bytes, side == 0 ? "%.*s/f16" : "f16/%.*s", length, preset);
    char join = ':';
    for (const char* at = items; at != NULL && *at != 0 && used >= 0 && (size_t)used < bytes;) {
        const char* item = at + 1;
        const int span = (int)strcspn(item, ",");
        // Items of a side begin with its letter; windows have whole words.
        const bool of_window = memchr(item, '=', (size_t)span) != NULL && item[1] != '.';
        if (of_window || item[0] == "kv"[side]) {
            used += snprintf(out + used, bytes - (size_t)used, "%c%.*s", join, span, item);
            join = ',';
        }
        at = item + span;
    }
    return used >= 0 && (size_t)used < bytes;
}

// The specs of all layers, from a cache's arguments. NULL after a failure.
static bool read_specs(eval_engine* engine, const char* cache, cache_specs* out)
{
    const char* args[MAX_CACHE_ARGS];
    char* copy = strdup(cache);
    int count = 0;
    if (copy == NULL) { return false; }
    for (char* at = strtok(copy, " \t"); at != NULL && count < MAX_CACHE_ARGS;
         at = strtok(NULL, " \t")) {
        args[count++] = at;
    }
    const int failed = cache_specs_create(args, count, engine->geometry->num_layers, out,
                                          engine->message, sizeof engine->message);
    free(copy);
    return !failed;
}

// Brings the spec of each layer to its canonical form, of one side alone in modes 0 and 1.
static bool narrow(eval_engine* engine, cache_specs* specs, int mode)
{
    const int num_layers = engine->geometry->num_layers;
    kvl_layer_desc* layers = calloc((size_t)num_layers, sizeof *layers);
    kvl_layer_info info;
    bool ok = layers != NULL;
    if (ok) { model_describe_layers(engine->desc.m, specs->specs, layers); }
    for (int i = 0; ok && i < num_layers; i++) {
        ok = kvl_spec_check(engine->desc.ctx, &layers[i], &info) == KVL_OK;
        if (!ok) { fail(engine, kvl_context_message(engine->desc.ctx)); }
        if (ok && mode < 2) {
            ok = eval_module_side(info.spec, mode, specs->text[i], sizeof specs->text[i]);
            if (!ok) { fail(engine, "a spec of one side is too long"); }
        }
    }
    free(layers);
    return ok;
}

static int open_session(module_pass* pass, const char* cache, int mode)
{
    eval_engine* engine = pass->engine;
    cache_specs specs;
    if (!read_specs(engine, cache, &specs)) { return MODEL_FAILED; }
    int status = narrow(engine, &specs, mode) ? MODEL_OK : MODEL_FAILED;
    if (status == MODEL_OK) {
        const int64_t context = engine->desc.context;
        const model_session_desc desc = {
            .ctx = engine->desc.ctx, .specs = specs.specs, .context_len = context,
            .calibration = engine->desc.calibration,
            .batch_len = (int)(context < MOST_BATCH ? context : MOST_BATCH),
        };
        status = model_session_create(engine->desc.m, &desc, &pass->sessions[mode],
                                      engine->message, sizeof engine->message) == 0
                     ? MODEL_OK : MODEL_FAILED;
    }
    cache_specs_free(&specs);
    return status;
}

// A PASS

// Adds |held - exact|^2 and, where squares is not NULL, |exact|^2 of the measured positions.
static void add_errors(const module_pass* pass, const model_rows* rows, double* errors,
                       double* squares)
{
    const int64_t hidden = pass->engine->geometry->hidden_len;
    for (int64_t row = 0; row < rows->num_rows; row++) {
        if (rows->first_position + row < pass->window->skip) { continue; }
        const float *x = pass->exact + row * hidden, *y = pass->held + row * hidden;
        double error = 0.0, square = 0.0;
        for (int64_t i = 0; i < hidden; i++) {
            const double e = (double)y[i] - (double)x[i];
            error += e * e;
            square += (double)x[i] * (double)x[i];
        }
        errors[rows->layer] += error;
        if (squares != NULL) { squares[rows->layer] += square; }
    }
}

static void see_rows(void* user, const model_rows* rows)
{
    module_pass* pass = user;
    eval_module* sums = &pass->cache->module;
    for (int i = MODES; i >= 0 && !pass->failed; i--) {
        float* out = i == MODES ? pass->exact : pass->held;
        if (model_attention_output(pass->sessions[i], rows, i < MODES, out) != MODEL_OK) {
            fail(pass->engine, model_session_message(pass->sessions[i]));
            pass->failed = pass->engine->stopped = true;
            return;
        }
        if (i < MODES) {
            add_errors(pass, rows, sums->error[i], i == 0 ? sums->square : NULL);
        }
    }
}

static bool allocate_sums(const eval_engine* engine, eval_module* sums)
{
    const size_t n = (size_t)engine->geometry->num_layers;
    if (sums->num_layers > 0) { return true; }
    bool ok = true;
    for (int i = 0; i < MODES; i++) {
        sums->error[i] = calloc(n, sizeof *sums->error[i]);
        ok = ok && sums->error[i] != NULL;
    }
    sums->square = calloc(n, sizeof *sums->square);
    sums->num_layers = (int)n;
    return ok && sums->square != NULL;
}

static bool is_stopped(void* user, int64_t done, int64_t count)
{
    const eval_engine* engine = user;
    (void)done;
    (void)count;
    return engine->stopped;
}

// The model in floats: rows attend to each other as they are.
static int run_base(eval_engine* engine, model_session* base, const eval_module_window* window)
{
    engine->stopped = false;
    const model_run run = { .ids = window->ids, .count = window->count,
                            .products = MODEL_PRODUCTS_FLOAT, .progress = is_stopped,
                            .user = engine };
    const int status = model_run_tokens(base, &run);
    if (status == MODEL_FAILED) { return fail(engine, model_session_message(base)); }
    return engine->stopped ? MODEL_STOPPED : status;
}

int eval_module_measure(eval_engine* engine, const eval_module_window* window, eval_cache* cache)
{
    module_pass pass = { .engine = engine, .window = window, .cache = cache };
    const int64_t batch = engine->desc.context < MOST_BATCH ? engine->desc.context : MOST_BATCH;
    const size_t floats = (size_t)(batch * engine->geometry->hidden_len);
    model_session* base = NULL;
    pass.exact = malloc(floats * sizeof(float));
    pass.held = malloc(floats * sizeof(float));
    int status = pass.exact != NULL && pass.held != NULL && allocate_sums(engine, &cache->module)
                     ? MODEL_OK : fail(engine, "out of memory");
    for (int i = 0; i <= MODES && status == MODEL_OK; i++) {
        status = open_session(&pass, i == MODES ? "f16" : cache->cache, i);
    }
    if (status == MODEL_OK) { status = eval_engine_open(engine, "f16", 0, &base); }
    if (status == MODEL_OK) {
        engine->on_rows = see_rows;
        engine->on_rows_user = &pass;
        status = run_base(engine, base, window);
        engine->on_rows = NULL;
    }
    if (pass.failed) { status = MODEL_FAILED; }
    model_session_free(base);
    for (int i = 0; i <= MODES; i++) { model_session_free(pass.sessions[i]); }
    free(pass.exact);
    free(pass.held);
    return status;
}

void eval_module_finish(eval_cache* cache)
{
    eval_module* m = &cache->module;
    for (int mode = 0; mode < MODES; mode++) {
        double logs = 0.0, sum = 0.0;
        for (int i = 0; i < m->num_layers; i++) {
            double* error = &m->error[mode][i];
            *error = m->square[i] > 0.0 ? sqrt(*error / m->square[i]) : 0.0;
            logs += log(*error);
            sum += *error;
        }
        m->geometric[mode] = m->num_layers > 0 ? exp(logs / m->num_layers) : (double)NAN;
        m->mean[mode] = m->num_layers > 0 ? sum / m->num_layers : (double)NAN;
    }
}

// THE TABLE

void eval_module_print(FILE* out, const eval_results* results, bool markdown)
{
    int width = 5;
    for (int i = 0; i < results->num_caches; i++) {
        const int length = (int)strlen(results->caches[i].cache);
        if (length > width) { width = length; }
    }
    const char* bar = markdown ? "| " : "";
    fprintf(out, "%s%-*s", bar, width + (markdown ? 2 : 0), "cache");
    fprintf(out, " %s %6s", bar, "bits");
    for (int i = 0; i < MODES; i++) { fprintf(out, " %s%6s", bar, mode_names[i]); }
    for (int i = 0; i < MODES; i++) { fprintf(out, " %s%5s %s", bar, "mean", mode_names[i]); }
    fputs(markdown ? " |\n" : "\n", out);
    if (markdown) {
        fputs("|---", out);
        for (int i = 0; i <= 2 * MODES; i++) { fputs("|---:", out); }
        fputs("|\n", out);
    }
    for (int i = 0; i < results->num_caches; i++) {
        const eval_cache* c = &results->caches[i];
        if (markdown) {
            fprintf(out, "| `%s`%*s", c->cache, width - (int)strlen(c->cache), "");
        } else {
            fprintf(out, "%-*s", width, c->cache);
        }
        fprintf(out, " %s %6.3f", bar, c->bits_body);
        for (int j = 0; j < MODES; j++) { fprintf(out, " %s%6.4f", bar, c->module.geometric[j]); }
        for (int j = 0; j < MODES; j++) {
            fprintf(out, " %s%*.4f", bar, 6 + (int)strlen(mode_names[j]), c->module.mean[j]);
        }
        fputs(markdown ? " |\n" : "\n", out);
    }
}
