// calibrate_run.c -- runs a model over windows of a text, adds up what it sees, writes a file.
//
// Each window has statistics of its own, which are added to the total when it is finished: a run
// that is interrupted and resumed makes the same bytes as one that is not. The file itself is the
// state of a run: its texts say which windows it has.

#include "calibrate_run.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache_specs.h"
#include "calibrate_bits.h"
#include "calibrate_report.h"
#include "calibrate_rows.h"
#include "calibrate_tables.h"
#include "eval_engine.h"
#include "eval_progress.h"
#include "eval_text.h"
#include "model_statistics.h"

enum {
    DEFAULT_CONTEXT = 2048,
    SAVE_SECONDS = 60,           // between files of a run in progress
    MAX_CACHE_ARGS = 64,
    MAX_FOR_BYTES = 3900,        // of the text "for": see kvl_calibration_set_text
    NUM_FACTS = 6,
    BITS_CONTEXT = 1024,         // the most tokens that losses of layers are measured on
    INTERRUPTED = 130
};

volatile sig_atomic_t calibrate_interrupted;

// What a file must have been made with to be gone on with.
typedef struct fact {
    const char* name;
    char value[MODEL_IDENTITY_BYTES];
} fact;

typedef struct calibrator {
    const calibrate_options* o;
    model* m;
    kvl_context* ctx;
    eval_text text;
    eval_progress progress;
    model_gather_desc gather;
    kvl_statistics* total;
    kvl_calibration* before;         // the file, where its statistics are whole
    fact facts[NUM_FACTS];
    calibrate_learn learn;           // used where o->learn asks for it
    calibrate_rows rows;             // where tables are fitted on rows of all layers
    char specs[MAX_FOR_BYTES + 1];   // what tables are made for, separated by "; "
    int64_t context;
    int windows, done;
    double saved;                    // when
    char* message;
    size_t message_bytes;
} calibrator;

static int fail(calibrator* c, const char* format, ...) __attribute__((format(printf, 2, 3)));
static int fail(calibrator* c, const char* format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->message, c->message_bytes, format, args);
    va_end(args);
    return 1;
}

static int failed(calibrator* c, kvl_status status)
{
    return status == KVL_OK ? 0 : fail(c, "%s", kvl_context_message(c->ctx));
}

// SETTING UP

static void on_log(kvl_log_level level, const char* message, void* user)
{
    calibrator* c = user;
    if (level != KVL_LOG_INFO || c->o->verbose) {
        eval_progress_clear(&c->progress);
        fprintf(stderr, "kvloom-calibrate: %s\n", message);
    }
}

static int open_context(calibrator* c)
{
    kvl_context_desc desc = { .target = KVL_TARGET_REFERENCE, .num_threads = c->o->num_threads };
    desc.log.call = on_log;
    desc.log.user = c;
    if (kvl_context_create(&desc, &c->ctx) == KVL_OK) {
        c->learn.ctx = c->ctx;
        return 0;
    }
    return fail(c, "%s", c->ctx != NULL ? kvl_context_message(c->ctx) : "out of memory");
}

static void set_fact(calibrator* c, int i, const char* name, const char* value)
{
    c->facts[i].name = name;
    snprintf(c->facts[i].value, sizeof c->facts[i].value, "%s", value);
}

static void set_number(calibrator* c, int i, const char* name, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    set_fact(c, i, name, text);
}

static int choose_sizes(calibrator* c)
{
    const calibrate_options* o = c->o;
    const int64_t trained = model_get_geometry(c->m)->context_len;
    c->context = o->context > 0 ? o->context : trained < DEFAULT_CONTEXT ? trained
                                                                         : DEFAULT_CONTEXT;
    if (c->context > trained) {
        fprintf(stderr, "kvloom-calibrate: -c %lld is more than the %lld tokens that the model was "
                "trained for\n", (long long)c->context, (long long)trained);
    }
    const int64_t windows = eval_text_num_windows(&c->text, c->context);
    if (windows < 1) {
        return fail(c, "%s: %lld tokens: a window has %lld", o->text, (long long)c->text.count,
                    (long long)c->context);
    }
    c->windows = windows < o->windows ? (int)windows : o->windows;
    if (c->windows < o->windows) {
        fprintf(stderr, "kvloom-calibrate: %s has %d windows of %lld tokens, not %d\n", o->text,
                c->windows, (long long)c->context, o->windows);
    }
    return 0;
}

static int open_inputs(calibrator* c)
{
    const calibrate_options* o = c->o;
    char identity[MODEL_IDENTITY_BYTES];
    if (eval_text_read(o->text, model_tokenizer(c->m), &c->text, c->message,
                       c->message_bytes) != 0 || choose_sizes(c) != 0) {
        return 1;
    }
    model_identity(c->m, identity);
    set_fact(c, 0, "model", identity);
    set_fact(c, 1, "text_sha256", c->text.sha256);
    set_number(c, 2, "context", (uint64_t)c->context);
    set_number(c, 3, "seed", o->seed);
    set_number(c, 4, "queries", (uint64_t)o->num_queries);
    set_number(c, 5, "key_runs", (uint64_t)o->num_key_runs);
    // Samples of two texts must not be drawn alike.
    uint64_t of_text = strtoull(c->text.sha256 + 48, NULL, 16);
    c->gather = (model_gather_desc){ .ctx = c->ctx, .context_len = c->context,
                                     .num_queries = o->num_queries,
                                     .num_key_runs = o->num_key_runs, .seed = o->seed ^ of_text,
                                     .unrotated = o->pre_rope };
    return 0;
}

// A file that cannot be written is known before the work.
static int check_output(calibrator* c)
{
    const char* path = c->o->out;
    const char* slash = strrchr(path, '/');
    char folder[4096] = ".";
    if (slash != NULL) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - path) + 1, path);
    }
    if (access(folder, W_OK) == 0) { return 0; }
    return fail(c, "-o %s: %s", path, strerror(errno));
}

// SPECS

static int add_spec(calibrator* c, const char* spec)
{
    char wanted[MAX_FOR_BYTES + 8], has[MAX_FOR_BYTES + 8];
    const size_t used = strlen(c->specs), more = strlen(spec);
    if (used + more + 2 > MAX_FOR_BYTES) {
        return fail(c, "--for %.100s: all specs together take more than %d bytes", spec,
                    (int)MAX_FOR_BYTES);
    }
    snprintf(wanted, sizeof wanted, "; %s; ", spec);
    snprintf(has, sizeof has, "; %s; ", c->specs);
    if (strstr(has, wanted) == NULL) {
        snprintf(c->specs + used, sizeof c->specs - used, "%s%s", used > 0 ? "; " : "", spec);
    }
    return 0;
}

// Specs of all layers from one --for.
static int read_specs(calibrator* c, const char* text, cache_specs* out)
{
    const char* args[MAX_CACHE_ARGS];
    char* copy = strdup(text);
    int count = 0;
    if (copy == NULL) { return fail(c, "out of memory"); }
    for (char* at = strtok(copy, " \t"); at != NULL && count < MAX_CACHE_ARGS;
         at = strtok(NULL, " \t")) {
        args[count++] = at;
    }
    const int status = cache_specs_create(args, count, model_get_geometry(c->m)->num_layers, out,
                                          c->message, c->message_bytes);
    free(copy);
    return status;
}

// BITS OF LAYERS

// Losses of one composition, measured when the first of them is asked for.
enum { MEASURED_BITS = 2 };          // with 1 bit, and with 2

typedef struct measured_bits {
    calibrator* c;
    char spec[MEASURED_BITS][CACHE_SPEC_BYTES];    // with these bits; "": the codec has them not
    double* losses[MEASURED_BITS];   // [num_layers, 2]; NULL: not yet
    bool said;                       // that those of the file are kept
} measured_bits;

static bool on_bits(void* user, int done, int total)
{
    calibrator* c = user;
    eval_progress_layer(&c->progress, done, total);
    return calibrate_interrupted != 0;
}

static int measure_bits(measured_bits* bits, int which, const kvl_calibration* cal)
{
    calibrator* c = bits->c;
    const int64_t context = c->context < BITS_CONTEXT ? c->context : BITS_CONTEXT;
    if (c->text.count == 0) {
        return fail(c, "losses of layers are measured on the text, which --merge does not run; "
                    "--resume does");
    }
    // Behind the windows of the statistics where the text is long enough.
    const int64_t after = (c->windows * c->context + context - 1) / context;
    const int64_t windows = eval_text_num_windows(&c->text, context);
    int32_t* ids = malloc((size_t)context * sizeof *ids);
    double* losses = calloc(2 * (size_t)model_get_geometry(c->m)->num_layers, sizeof(double));
    bits->losses[which] = losses;
    int status = ids != NULL && losses != NULL ? 0 : fail(c, "out of memory");
    if (status == 0) {
        eval_text_window(&c->text, context, after < windows ? after : windows - 1, ids);
        const calibrate_bits_desc desc = { .m = c->m, .calibration = cal,
                                           .spec = bits->spec[which],
                                           .ids = ids, .count = context,
                                           .num_threads = c->o->num_threads, .tick = on_bits,
                                           .user = c };
        eval_progress_start(&c->progress, c->progress.quiet, 1);
        eval_progress_step(&c->progress, which == 0 ? "losses of layers with 1 bit"
                                                    : "losses of layers with 2 bits");
        status = calibrate_bits_measure(&desc, losses, c->message, c->message_bytes);
        eval_progress_clear(&c->progress);
    }
    free(ids);
    return status;
}

// What the file has, measured on the same text beside the same statistics. Returns whether it has.
static bool keep_losses(measured_bits* bits, const kvl_derive_args* a, float* out)
{
    const calibrator* c = bits->c;
    char name[CACHE_SPEC_BYTES + 16];
    int64_t num = 0;
    if (c->before == NULL) { return false; }
    snprintf(name, sizeof name, "%s@%s", a->table, a->depends);
    const float* before = kvl_calibration_table(c->before, a->layer, a->is_value, name, &num);
    if (before == NULL || num != MEASURED_BITS * a->num_kv_heads) { return false; }
    if (!bits->said && !c->progress.quiet) {
        fprintf(stderr, "kvloom-calibrate: %s: its losses of layers are kept\n", c->o->out);
    }
    bits->said = true;
    memcpy(out, before, (size_t)num * sizeof *out);
    return true;
}

static kvl_status derive_losses(const kvl_derive_args* a, float* out)
{
    measured_bits* bits = a->user;
    if (keep_losses(bits, a, out)) { return KVL_OK; }
    for (int i = 0; i < MEASURED_BITS; i++) {
        if (bits->spec[i][0] != 0 && bits->losses[i] == NULL &&
            measure_bits(bits, i, a->calibration) != 0) {
            snprintf(a->message, a->message_bytes, "%s", bits->c->message);
            return KVL_UNSUPPORTED;
        }
    }
    // A codec without 1 bit is never asked for what it loses there.
    const int fewest = bits->spec[0][0] != 0 ? 0 : 1;
    for (int h = 0; h < a->num_kv_heads; h++) {
        for (int i = 0; i < MEASURED_BITS; i++) {
            out[MEASURED_BITS * h + i] =
                (float)bits->losses[i < fewest ? fewest : i][2 * a->layer + a->is_value];
        }
    }
    return KVL_OK;
}

// "bits=auto:MEAN" of a canonical spec replaced by these bits.
static void fix_bits(const char* spec, int num_bits, char* out, size_t bytes)
{
    const char* at = strstr(spec, "bits=auto:");
    const char* rest = at != NULL ? at + strcspn(at, ",") : spec;
    char fixed[32] = "";
    if (at != NULL) { snprintf(fixed, sizeof fixed, "k%d,v%d", num_bits, num_bits); }
    snprintf(out, bytes, "%.*s%s%s", (int)(at != NULL ? at - spec : 0), spec, fixed, rest);
}

// TABLES

static bool on_rows(void* user, int layer)
{
    calibrator* c = user;
    eval_progress_layer(&c->progress, layer, model_get_geometry(c->m)->num_layers);
    return calibrate_interrupted != 0;
}

static kvl_status derive_predicted(const kvl_derive_args* a, float* out)
{
    calibrator* c = a->user;
    kvl_derive_args args = *a;
    if (c->rows.m == NULL) {
        c->rows.m = c->m;
        c->rows.ctx = c->ctx;
        c->rows.text = &c->text;
        c->rows.context = c->context;
        c->rows.windows = c->windows;
        c->rows.tick = on_rows;
        c->rows.user = c;
        eval_progress_start(&c->progress, c->progress.quiet, 1);
        eval_progress_step(&c->progress, "rows of all layers");
    }
    args.user = &c->rows;
    const kvl_status status = calibrate_rows_derive(&args, out);
    eval_progress_clear(&c->progress);
    return status;
}

static int derive_layers(calibrator* c, kvl_calibration* cal, const kvl_statistics* stats,
                         const kvl_layer_desc* layers, measured_bits* bits)
{
    const kvl_cache_desc cache = { .num_layers = model_get_geometry(c->m)->num_layers,
                                   .layers = layers };
    kvl_derive_desc desc = { .stats = stats, .cache = &cache };
    kvl_derivation all[CALIBRATE_MOST_DERIVATIONS + 2];
    const int num = calibrate_learning_derivations(&c->learn, all);
    all[num] = (kvl_derivation){ "bits", "auto", "bit_losses", derive_losses, bits };
    all[num + 1] = (kvl_derivation){ "shift", "predicted", "predicted", derive_predicted, c };
    desc.derivations = all;
    desc.num_derivations = num + 2;
    return failed(c, kvl_calibration_derive(cal, &desc));
}

// The specs of layers with bits=auto, with these bits; *found: one of them, "" where there is none.
static int fix_layers(calibrator* c, const kvl_layer_desc* layers, int num_bits,
                      char (*fixed)[CACHE_SPEC_BYTES], char* found)
{
    int status = 0;
    found[0] = 0;
    for (int i = 0; i < model_get_geometry(c->m)->num_layers && status == 0; i++) {
        kvl_layer_info info;
        if (layers[i].num_kv_heads == 0) { continue; }
        status = failed(c, kvl_spec_check(c->ctx, &layers[i], &info));
        fix_bits(info.spec, num_bits, fixed[i], sizeof fixed[i]);
        if (status != 0 || info.auto_bits <= 0.0) { continue; }
        if (found[0] != 0 && strcmp(found, fixed[i]) != 0) {
            status = fail(c, "layer %d: bits=auto in layers of several specs", i);
        }
        memcpy(found, fixed[i], sizeof fixed[i]);
    }
    return status;
}

// Whether all layers can have their specs with 1 bit.
static bool have_one_bit(calibrator* c, const kvl_layer_desc* layers,
                         char (*fixed)[CACHE_SPEC_BYTES])
{
    for (int i = 0; i < model_get_geometry(c->m)->num_layers; i++) {
        kvl_layer_desc layer = layers[i];
        kvl_layer_info info;
        layer.spec = fixed[i];
        if (layer.num_kv_heads != 0 && kvl_spec_check(c->ctx, &layer, &info) != KVL_OK) {
            return false;
        }
    }
    return true;
}

// What bits=auto measures needs the tables of the same specs with 1 bit and with 2.
static int derive_fixed(calibrator* c, kvl_calibration* cal, const kvl_statistics* stats,
                        kvl_layer_desc* layers, measured_bits* bits)
{
    const int num_layers = model_get_geometry(c->m)->num_layers;
    const char** specs = malloc((size_t)num_layers * sizeof *specs);
    char (*fixed)[CACHE_SPEC_BYTES] = calloc((size_t)num_layers, sizeof *fixed);
    int status = specs != NULL && fixed != NULL ? 0 : fail(c, "out of memory");
    for (int b = MEASURED_BITS; b > 0 && status == 0; b--) {
        char* found = bits->spec[b - 1];
        status = fix_layers(c, layers, b, fixed, found);
        if (status != 0 || found[0] == 0 || stats == NULL) { break; }
        if (b == 1 && !have_one_bit(c, layers, fixed)) {
            found[0] = 0;
            break;
        }
        for (int i = 0; i < num_layers; i++) {
            specs[i] = layers[i].spec;
            layers[i].spec = fixed[i];
        }
        status = derive_layers(c, cal, stats, layers, bits);
        for (int i = 0; i < num_layers; i++) { layers[i].spec = specs[i]; }
    }
    free(fixed);
    free(specs);
    return status;
}

// Tables of the layers' specs.
static int derive_tables(calibrator* c, kvl_calibration* cal, const kvl_statistics* stats,
                         kvl_layer_desc* layers)
{
    measured_bits bits = { .c = c };
    int status = derive_fixed(c, cal, stats, layers, &bits);
    if (status == 0 && stats != NULL) { status = derive_layers(c, cal, stats, layers, &bits); }
    for (int i = 0; i < MEASURED_BITS; i++) { free(bits.losses[i]); }
    return status;
}

// With stats NULL: only whether the spec is one that this model can have.
static int derive(calibrator* c, kvl_calibration* cal, const kvl_statistics* stats,
                  const char* text)
{
    cache_specs specs = { .num_layers = 0 };
    const int num_layers = model_get_geometry(c->m)->num_layers;
    int status = read_specs(c, text, &specs);
    kvl_layer_desc* layers = status == 0 ? calloc((size_t)num_layers, sizeof *layers) : NULL;
    if (status == 0 && layers == NULL) { status = fail(c, "out of memory"); }
    if (status == 0) {
        model_describe_layers(c->m, specs.specs, layers);
        status = derive_tables(c, cal, stats, layers);
    }
    if (status != 0) {
        char what[512];
        snprintf(what, sizeof what, "%.500s", c->message);
        fail(c, "--for '%.200s': %s", text, what);
    }
    free(layers);
    cache_specs_free(&specs);
    return status;
}

// Calls derive for each spec; the first failure ends it.
static int derive_all(calibrator* c, kvl_calibration* cal, const kvl_statistics* stats)
{
    char text[MAX_FOR_BYTES + 1];
    const char* at = c->specs;
    while (*at != 0) {
        const char* end = strstr(at, "; ");
        const size_t bytes = end != NULL ? (size_t)(end - at) : strlen(at);
        memcpy(text, at, bytes);
        text[bytes] = 0;
        if (derive(c, cal, stats, text) != 0) { return 1; }
        at += bytes + (end != NULL ? 2 : 0);
    }
    return 0;
}

// THE FILE

static int set_texts(calibrator* c, kvl_calibration* cal)
{
    char number[32];
    kvl_status status = kvl_calibration_set_text(cal, "kvloom", KVLOOM_VERSION);
    for (int i = 0; i < NUM_FACTS && status == KVL_OK; i++) {
        status = kvl_calibration_set_text(cal, c->facts[i].name, c->facts[i].value);
    }
    snprintf(number, sizeof number, "%d", c->done);
    if (status == KVL_OK) { status = kvl_calibration_set_text(cal, "windows", number); }
    snprintf(number, sizeof number, "%lld", (long long)(c->done * c->context));
    if (status == KVL_OK) { status = kvl_calibration_set_text(cal, "tokens", number); }
    if (status == KVL_OK) { status = kvl_calibration_set_text(cal, "for", c->specs); }
    return failed(c, status);
}

// A table that cannot be made costs no windows: the file gets what there is, for --resume with
// other caches.
static void save_without(calibrator* c, kvl_calibration* cal)
{
    const size_t used = strlen(c->message);
    if (kvl_calibration_set_text(cal, "for", "") != KVL_OK ||
        kvl_calibration_save(cal, c->total, c->o->out) != KVL_OK) {
        return;
    }
    snprintf(c->message + used, c->message_bytes - used,
             "; %s has the statistics, and --resume with other caches goes on with them",
             c->o->out);
}

// The page of --report, and what is to be said of the tables.
static int report(calibrator* c, const kvl_calibration* cal)
{
    const int num_layers = model_get_geometry(c->m)->num_layers;
    kvl_layer_desc* layers = calloc((size_t)num_layers, sizeof *layers);
    if (layers == NULL) { return fail(c, "out of memory"); }
    model_describe_layers(c->m, NULL, layers);
    const calibrate_report_desc desc = { .stats = c->total, .calibration = cal, .layers = layers,
                                         .num_layers = num_layers, .path = c->o->report,
                                         .model = c->facts[0].value,
                                         .text = c->o->text != NULL ? c->o->text : "several texts",
                                         .summary = stderr };
    const int status = calibrate_report_write(&desc, c->message, c->message_bytes);
    free(layers);
    return status;
}

// finished: with the tables.
static int save(calibrator* c, bool finished)
{
    kvl_calibration* cal = NULL;
    const bool keep = !(finished && c->o->no_statistics);
    int status = failed(c, kvl_calibration_create(c->total, NULL, &cal));
    if (status == 0) { status = set_texts(c, cal); }
    if (status == 0 && finished) {
        status = derive_all(c, cal, c->total);
        if (status != 0 && keep) { save_without(c, cal); }
    }
    if (status == 0) {
        status = failed(c, kvl_calibration_save(cal, keep ? c->total : NULL, c->o->out));
    }
    if (status == 0 && finished && c->o->report != NULL) { status = report(c, cal); }
    kvl_calibration_free(cal);
    c->saved = eval_seconds();
    return status;
}

static int check_facts(calibrator* c, const kvl_calibration* cal)
{
    for (int i = 0; i < NUM_FACTS; i++) {
        const char* has = kvl_calibration_text(cal, c->facts[i].name);
        if (strcmp(has, c->facts[i].value) != 0) {
            return fail(c, "--resume: %s: %s = %.150s: this run has %.150s", c->o->out,
                        c->facts[i].name, has[0] != 0 ? has : "(nothing)", c->facts[i].value);
        }
    }
    c->done = atoi(kvl_calibration_text(cal, "windows"));
    if (c->done < 1 || c->done > c->windows) {
        return fail(c, "--resume: %s: windows = %d: this run has %d", c->o->out, c->done,
                    c->windows);
    }
    const char* specs = kvl_calibration_text(cal, "for");
    return specs[0] != 0 ? add_spec(c, specs) : 0;
}

// Takes what the output file has. Where there is none, everything is still to be done.
static int take_file(calibrator* c)
{
    kvl_calibration* cal = NULL;
    kvl_statistics* stats = NULL;
    if (access(c->o->out, F_OK) != 0) { return 0; }
    int status = failed(c, kvl_calibration_load(c->ctx, c->o->out, &cal));
    if (status == 0) { status = check_facts(c, cal); }
    if (status == 0) { status = failed(c, kvl_statistics_load(c->ctx, c->o->out, &stats)); }
    if (status == 0) { status = failed(c, kvl_statistics_merge(c->total, stats)); }
    kvl_statistics_free(stats);
    if (status == 0 && c->done == c->windows &&
        strcmp(kvl_calibration_text(cal, "kvloom"), KVLOOM_VERSION) == 0) {
        c->before = cal;
    } else {
        kvl_calibration_free(cal);
    }
    return status;
}

// WINDOWS

typedef struct window_run {
    calibrator* c;
    model_gather* gather;
} window_run;

static void see_rows(void* user, const model_rows* rows)
{
    window_run* run = user;
    model_gather_see(run->gather, rows);
    eval_progress_layer(&run->c->progress, rows->layer,
                        model_get_geometry(run->c->m)->num_layers);
}

static bool is_stopped(void* user, int64_t done, int64_t count)
{
    const window_run* run = user;
    return done < count && (calibrate_interrupted || model_gather_message(run->gather)[0] != 0);
}

static int run_tokens(window_run* run, const int32_t* ids)
{
    calibrator* c = run->c;
    model_session* s = NULL;
    const model_session_desc desc = { .ctx = c->ctx, .context_len = c->context,
                                      .on_rows = see_rows, .user = run };
    if (model_session_create(c->m, &desc, &s, c->message, c->message_bytes) != 0) {
        return MODEL_FAILED;
    }
    const model_run tokens = { .ids = ids, .count = c->context, .progress = is_stopped,
                               .products = MODEL_PRODUCTS_FLOAT, .user = run };
    int status = model_run_tokens(s, &tokens);
    if (status == MODEL_FAILED) { fail(c, "%s", model_session_message(s)); }
    model_session_free(s);
    if (model_gather_end(run->gather) != MODEL_OK) {
        fail(c, "%s", model_gather_message(run->gather));
        status = MODEL_FAILED;
    }
    return status;
}

static int run_window(calibrator* c)
{
    window_run run = { .c = c };
    char what[64];
    snprintf(what, sizeof what, "window %d of %d", c->done + 1, c->windows);
    eval_progress_step(&c->progress, what);
    int32_t* ids = malloc((size_t)c->context * sizeof *ids);
    if (ids == NULL) {
        fail(c, "out of memory");
        return MODEL_FAILED;
    }
    int status = MODEL_FAILED;
    if (model_gather_create(c->m, &c->gather, &run.gather, c->message, c->message_bytes) == 0) {
        model_gather_begin(run.gather, (uint64_t)c->done);
        eval_text_window(&c->text, c->context, c->done, ids);
        status = run_tokens(&run, ids);
    }
    if (status == MODEL_OK &&
        failed(c, kvl_statistics_merge(c->total, model_gather_statistics(run.gather))) != 0) {
        status = MODEL_FAILED;
    }
    if (status == MODEL_OK) {
        c->done++;
        eval_progress_done(&c->progress, what, "");
    }
    model_gather_free(run.gather);
    free(ids);
    return status;
}

// What was repaired, and what a search was worth.
static void say_learned(const calibrator* c)
{
    const int kept = c->learn.num_notes < CALIBRATE_NOTES ? c->learn.num_notes : CALIBRATE_NOTES;
    for (int i = 0; i < kept; i++) {
        fprintf(stderr, "kvloom-calibrate: %s\n", c->learn.notes[i]);
    }
    if (kept < c->learn.num_notes) {
        fprintf(stderr, "kvloom-calibrate: and %d more such heads\n", c->learn.num_notes - kept);
    }
    if (!(c->learn.before > 0.0)) { return; }
    fprintf(stderr, "kvloom-calibrate: --learn: the cost of sampled rows is %.4f of that of the "
            "start\n", c->learn.after / c->learn.before);
}

static int run_windows(calibrator* c, bool quiet)
{
    eval_progress_start(&c->progress, quiet, c->windows - c->done);
    c->saved = eval_seconds();
    while (c->done < c->windows && !calibrate_interrupted) {
        const int status = run_window(c);
        if (status == MODEL_FAILED) { return 1; }
        const bool more = c->done < c->windows;
        if (status == MODEL_OK && more && eval_seconds() - c->saved > SAVE_SECONDS &&
            save(c, false) != 0) {
            return 1;
        }
    }
    eval_progress_clear(&c->progress);
    if (c->done == c->windows) {
        const int status = save(c, true);
        say_learned(c);
        return status;
    }
    if (c->done == 0) {
        fail(c, "interrupted before a window was finished");
        return INTERRUPTED;
    }
    if (save(c, false) != 0) { return 1; }
    fail(c, "interrupted: %s has %d of %d windows; --resume goes on", c->o->out, c->done,
         c->windows);
    return INTERRUPTED;
}

static int run_text(calibrator* c, bool quiet)
{
    if (open_inputs(c) != 0) { return 1; }
    for (int i = 0; i < c->o->num_specs; i++) {
        if (add_spec(c, c->o->specs[i]) != 0) { return 1; }
    }
    c->total = model_empty_statistics(c->m, &c->gather, c->message, c->message_bytes);
    if (c->total == NULL) { return 1; }
    if (c->o->resume && take_file(c) != 0) { return 1; }
    // A spec that cannot be served ends the run before any work.
    if (derive_all(c, NULL, NULL) != 0) { return 1; }
    return run_windows(c, quiet);
}

// MERGING

// The facts of the first file; those of the others must not contradict them.
static int merge_facts(calibrator* c, const kvl_calibration* cal, const char* path, bool first)
{
    static const char* const names[NUM_FACTS] = { "model", "text_sha256", "context", "seed",
                                                  "queries", "key_runs" };
    c->done += atoi(kvl_calibration_text(cal, "windows"));
    for (int i = 0; i < NUM_FACTS; i++) {
        const char* has = kvl_calibration_text(cal, names[i]);
        if (first) { set_fact(c, i, names[i], has); }
        if (strcmp(has, c->facts[i].value) == 0) { continue; }
        if (i == 0 || i == 2) {
            return fail(c, "--merge: %s: %s = %.150s: %s has %.150s", path, names[i], has,
                        c->o->merge[0], c->facts[i].value);
        }
        set_fact(c, i, names[i], "several");
    }
    return 0;
}

static int merge_file(calibrator* c, int i)
{
    const char* path = c->o->merge[i];
    kvl_calibration* cal = NULL;
    kvl_statistics* stats = NULL;
    int status = failed(c, kvl_calibration_load(c->ctx, path, &cal));
    if (status == 0) { status = merge_facts(c, cal, path, i == 0); }
    if (status == 0) { status = failed(c, kvl_statistics_load(c->ctx, path, &stats)); }
    if (status == 0 && c->total != NULL) {
        status = failed(c, kvl_statistics_merge(c->total, stats));
    } else if (status == 0) {
        c->total = stats;
        stats = NULL;
    }
    kvl_statistics_free(stats);
    kvl_calibration_free(cal);
    return status;
}

// Its rows would count twice.
static int check_merge(calibrator* c)
{
    for (int i = 0; i < c->o->num_merge; i++) {
        struct stat one, other;
        if (stat(c->o->merge[i], &one) != 0) { continue; }      // reading it says why
        for (int j = 0; j < i; j++) {
            if (stat(c->o->merge[j], &other) == 0 && one.st_dev == other.st_dev &&
                one.st_ino == other.st_ino) {
                return fail(c, "--merge: %s: named twice: its rows would count double",
                            c->o->merge[i]);
            }
        }
    }
    return 0;
}

static int run_merge(calibrator* c)
{
    if (check_merge(c) != 0) { return 1; }
    char identity[MODEL_IDENTITY_BYTES];
    for (int i = 0; i < c->o->num_merge; i++) {
        if (merge_file(c, i) != 0) { return 1; }
    }
    c->context = atoll(c->facts[2].value);
    if (c->m != NULL) {
        model_identity(c->m, identity);
        if (strcmp(identity, c->facts[0].value) != 0) {
            return fail(c, "--merge: the files are of another model: '%s', not '%s'",
                        c->facts[0].value, identity);
        }
    }
    for (int i = 0; i < c->o->num_specs; i++) {
        if (add_spec(c, c->o->specs[i]) != 0) { return 1; }
    }
    return save(c, true);
}

int calibrate_run(const calibrate_options* options, bool quiet, char* message,
                  size_t message_bytes)
{
    calibrator c = { .o = options, .message = message, .message_bytes = message_bytes };
    const char* path = options->model;
    message[0] = 0;
    c.learn.what = options->learn;
    c.learn.steps = options->learn_steps;
    int status = check_output(&c) != 0 || open_context(&c) != 0 ||
                 (path != NULL && model_open(path, NULL, &c.m, message, message_bytes) != 0);
    if (status == 0) {
        status = options->num_merge > 0 ? run_merge(&c) : run_text(&c, quiet);
    }
    calibrate_rows_free(&c.rows);
    eval_text_free(&c.text);
    kvl_calibration_free(c.before);
    kvl_statistics_free(c.total);
    kvl_context_destroy(c.ctx);
    model_close(c.m);
    return status;
}
