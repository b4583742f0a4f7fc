// main.c -- decode: a language model writes text with its keys and values in a kvloom cache.
//
// stdout has the generated text alone. A session may have several turns (-i): each adds tokens to
// the same sequence. Statistics are of the whole session.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "cache_specs.h"
#include "chat.h"
#include "conversation.h"
#include "decode_options.h"
#include "follow.h"
#include "model.h"
#include "model_statistics.h"
#include "sampler.h"
#include "saved_session.h"
#include "text_stream.h"
#include "usual_cache.h"

#ifdef DECODE_HAS_LAPACK
#include "calibrate_tables.h"
#endif

enum { PREFILL_ROWS = 512, PROGRESS_TOKENS = 1024 };

// What happened so far.
typedef struct statistics {
    int64_t prompt_tokens, generated_tokens, num_steps;
    int64_t loaded_tokens;     // of a file, and not run
    double prefill_seconds, step_seconds;
} statistics;

typedef struct id_list {
    int32_t* ids;          // [count]
    int64_t count, capacity;
} id_list;

typedef struct decoder {
    decode_options options;
    model* m;
    kvl_context* ctx;
    model_session* session;
    sampler* picker;
    float* logits;         // [vocab_size]
    conversation talk;
    bool chat;             // --chat, or what was loaded is one
    bool has_logits;       // logits are those of the session's last row
    bool keeps_cache;      // the prompt cache has more of another prompt than this one's
    bool cut_short;        // Ctrl-C has ended a prompt: the conversation says more than was run
    text_stream text;
    id_list run;           // a row of the session each
    id_list generated;
    statistics stats;
    follow lead;           // --follow
    FILE* json;            // NULL: none
    char message[1024];
} decoder;

static volatile sig_atomic_t interrupted;

// The second signal before the program has come round ends it.
static void on_interrupt(int number)
{
    (void)number;
    if (interrupted) { _exit(130); }
    interrupted = 1;
}

static int fail(const char* message)
{
    fprintf(stderr, "decode: %s\n", message);
    return 1;
}

static double seconds(void)
{
    struct timespec now = { 0, 0 };
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void on_log(kvl_log_level level, const char* message, void* user)
{
    const decoder* d = user;
    if (level != KVL_LOG_INFO || d->options.verbose) { fprintf(stderr, "decode: %s\n", message); }
}

// SETTING UP

// The statistics of count tokens.
static int gather(decoder* d, const int32_t* ids, int64_t count, model_gather* g)
{
    model_session* s = NULL;
    const model_session_desc desc = { .ctx = d->ctx, .context_len = count, .user = g,
                                      .on_rows = model_gather_see, .batch_len = PREFILL_ROWS };
    if (model_session_create(d->m, &desc, &s, d->message, sizeof d->message)) { return 1; }
    int status = model_prefill(s, ids, count, NULL);
    if (status != MODEL_OK) {
        snprintf(d->message, sizeof d->message, "%s", model_session_message(s));
    } else if (model_gather_end(g) != MODEL_OK) {
        snprintf(d->message, sizeof d->message, "%s", model_gather_message(g));
        status = 1;
    }
    model_session_free(s);
    return status;
}

// Runs the first tokens of the prompt by themselves, for what the caches need to know of the model.
static int calibrate(decoder* d, const char* const* specs, const int32_t* ids, int64_t count,
                     kvl_calibration** out)
{
    const double start = seconds();
    model_gather* g = NULL;
    const model_gather_desc desc = { .ctx = d->ctx, .context_len = count };
    int status = model_gather_create(d->m, &desc, &g, d->message, sizeof d->message);
    if (status == 0) { status = gather(d, ids, count, g); }
    if (status == 0) {
        model_calibrate_desc tables = { .specs = specs };
#ifdef DECODE_HAS_LAPACK
        tables.derivations = calibrate_derivations(&tables.num_derivations);
#endif
        status = model_gather_calibrate(g, &tables, out, d->message, sizeof d->message);
    }
    model_gather_free(g);
    if (status == 0) {
        fprintf(stderr, "decode: calibrated on %lld tokens in %.1f s\n", (long long)count,
                seconds() - start);
    }
    return status;
}

// Specs whose values have a basis get v.place=folded, and the model's weights the basis.
static int fold(decoder* d, cache_specs* specs, const kvl_calibration* calibration)
{
    const int num_layers = specs->num_layers;
    kvl_layer_desc* layers = calloc((size_t)num_layers, sizeof *layers);
    kvl_layer_info info;
    int count = 0, failed = layers == NULL;
    snprintf(d->message, sizeof d->message, "out of memory");
    if (!failed) { model_describe_layers(d->m, specs->specs, layers); }
    for (int i = 0; !failed && i < num_layers; i++) {
        if (layers[i].num_kv_heads == 0) { continue; }
        failed = kvl_spec_check(d->ctx, &layers[i], &info) != KVL_OK;
        if (failed) { snprintf(d->message, sizeof d->message, "%s", kvl_context_message(d->ctx)); }
        if (failed || info.value_basis != KVL_BASIS_OF_CACHE) { continue; }
        snprintf(specs->text[i], sizeof specs->text[i], "%s,v.place=folded", info.spec);
        count++;
    }
    free(layers);
    if (failed) { return 1; }
    if (count == 0) {
        snprintf(d->message, sizeof d->message, "--fold: values of no --cache have a transform");
        return 1;
    }
    const model_fold_desc desc = { .ctx = d->ctx, .specs = specs->specs,
                                   .calibration = calibration };
    return model_fold(d->m, &desc, d->message, sizeof d->message);
}

// Where the cache and its tables come from.
typedef struct cache_choice {
    const char* const* args;    // of --cache, or what is usual
    int num_args;
    const char* path;       // of a calibration; NULL: none
    int64_t rows;           // of the prompt, to calibrate on
    const char* usual;      // the spec that nobody has named; NULL: none
    char usual_path[4096];
} cache_choice;

static bool names_cache(const decode_options* o)
{
    return o->num_cache_args > 0 || o->calibration != NULL || o->calibrate_rows > 0;
}

// Rows of a file need the calibration that they were saved with.
static bool can_use_prompt(const decoder* d)
{
    const decode_options* o = &d->options;
#ifdef DECODE_HAS_LAPACK
    const bool has_lapack = true;
#else
    const bool has_lapack = false;
#endif
    return has_lapack && (o->prompt != NULL || o->prompt_file != NULL) && o->load_path == NULL &&
           o->save_path == NULL && o->prompt_cache == NULL && !o->fold;
}

// count: tokens of the prompt; 0: not known yet.
static void choose_cache(const decoder* d, int64_t count, cache_choice* c)
{
    static const char* const usual[] = { USUAL_SPEC };
    static const char* const usual_of_prompt[] = { USUAL_PROMPT_SPEC };
    const decode_options* o = &d->options;
    *c = (cache_choice){ .args = o->cache_args, .num_args = o->num_cache_args,
                         .path = o->calibration, .rows = o->calibrate_rows };
    if (names_cache(o) || kvl_context_has_device(d->ctx)) { return; }
    if (usual_calibration(o->model, c->usual_path, sizeof c->usual_path)) {
        c->path = c->usual_path;
        c->args = usual;
    } else if (count >= USUAL_PROMPT_LEN && can_use_prompt(d)) {
        c->rows = DECODE_CALIBRATE_ROWS;
        c->args = usual_of_prompt;
    } else {
        return;
    }
    c->num_args = 1;
    c->usual = c->args[0];
}

// Whether the session can only be opened with the prompt.
static bool waits_for_prompt(const decoder* d)
{
    cache_choice c;
    choose_cache(d, USUAL_PROMPT_LEN, &c);
    return c.rows > 0;
}

// What a cache that nobody has named came to.
static void say_usual(decoder* d, const cache_choice* c, bool failed)
{
    if (!failed && c->path != NULL) {
        fprintf(stderr, "decode: %s with %s\n", c->usual, c->path);
    } else if (!failed) {
        fprintf(stderr, "decode: %s, calibrated on the prompt: --cache f16 does without\n",
                c->usual);
    } else {
        const size_t used = strlen(d->message);
        snprintf(d->message + used, sizeof d->message - used, "; the usual %s, with %.200s, cannot "
                 "be had: --cache f16 does without", c->usual,
                 c->path != NULL ? c->path : "the prompt");
    }
}

// ids [count]: of the prompt, where the session waits for it. Returns 0, or 1 with d->message.
static int open_session(decoder* d, const int32_t* ids, int64_t count)
{
    const decode_options* o = &d->options;
    kvl_calibration* calibration = NULL;
    cache_specs specs;
    cache_choice c;
    choose_cache(d, count, &c);
    if (cache_specs_create(c.args, c.num_args, model_get_geometry(d->m)->num_layers, &specs,
                           d->message, sizeof d->message) != 0) {
        return 1;
    }
    int failed = 0;
    if (c.path != NULL) {
        failed = kvl_calibration_load(d->ctx, c.path, &calibration) != KVL_OK;
        if (failed) {
            snprintf(d->message, sizeof d->message, "%s", kvl_context_message(d->ctx));
        }
    } else if (c.rows > 0) {
        failed = calibrate(d, specs.specs, ids, count < c.rows ? count : c.rows, &calibration);
    }
    if (!failed && o->fold) { failed = fold(d, &specs, calibration); }
    if (!failed) {
        const model_session_desc desc = { .ctx = d->ctx,
                                          .specs = specs.specs,
                                          .calibration = calibration,
                                          .context_len = o->context_len,
                                          .batch_len = PREFILL_ROWS };
        failed = model_session_create(d->m, &desc, &d->session, d->message, sizeof d->message);
    }
    kvl_calibration_free(calibration);
    cache_specs_free(&specs);
    if (c.usual != NULL) { say_usual(d, &c, failed != 0); }
    return failed != 0;
}

// The context, and the session where the prompt is not needed for it. Returns 0, or 1 with
// d->message; *status is what the context's creation came to.
static int open_target(decoder* d, kvl_target target, kvl_status* status)
{
    kvl_context_desc desc = { .target = target, .num_threads = d->options.num_threads };
    desc.log.call = on_log;
    desc.log.user = d;
    *status = kvl_context_create(&desc, &d->ctx);
    if (*status != KVL_OK) {
        snprintf(d->message, sizeof d->message, "%s",
                 d->ctx != NULL ? kvl_context_message(d->ctx) : "out of memory");
        return 1;
    }
    return waits_for_prompt(d) ? 0 : open_session(d, NULL, 0);
}

// auto is a device where one can serve, else the host. Why not is said once: that there is no
// device at all only to who asks.
static int open_auto(decoder* d)
{
    kvl_status status = KVL_OK;
    const decode_options* o = &d->options;
    if (open_target(d, KVL_TARGET_CUDA, &status) == 0) { return 0; }
    if (status != KVL_NO_DRIVER || o->target_given || o->verbose) {
        fprintf(stderr, "decode: target auto: the host is used: %s\n", d->message);
    }
    kvl_context_destroy(d->ctx);
    d->ctx = NULL;
    return open_target(d, KVL_TARGET_AUTO, &status);
}

static int open_context(decoder* d)
{
    kvl_status status = KVL_OK;
    const decode_options* o = &d->options;
    // A model is calibrated on, or folded, once.
    const bool is_auto = o->target == KVL_TARGET_AUTO && o->calibrate_rows == 0 && !o->fold;
    return is_auto ? open_auto(d) : open_target(d, o->target, &status);
}

static int describe(decoder* d)
{
    size_t needed = 0;
    kvl_describe(model_session_cache(d->session), NULL, 0, &needed);
    char* text = malloc(needed + 1);
    if (text == NULL) { return fail("out of memory"); }
    text[0] = 0;
    if (kvl_describe(model_session_cache(d->session), text, needed + 1, NULL) == KVL_OK) {
        const size_t bytes = strlen(text);
        fprintf(stderr, "%s%s", text, bytes > 0 && text[bytes - 1] == '\n' ? "" : "\n");
    }
    free(text);
    return 0;
}

static int open_json(decoder* d)
{
    const char* path = d->options.json_path;
    if (path == NULL) { return 0; }
    // What is there stays until there is something to write.
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0) { d->json = fdopen(fd, "w"); }
    if (d->json == NULL) {
        snprintf(d->message, sizeof d->message, "%s: %s", path, strerror(errno));
        return fail(d->message);
    }
    return 0;
}

// Files that are written at the end: a path that does not serve is known before the work.
static int check_paths(decoder* d)
{
    const char* const paths[] = { d->options.save_path, d->options.prompt_cache };
    for (int i = 0; i < 2; i++) {
        if (paths[i] != NULL &&
            saved_session_check_path(paths[i], d->message, sizeof d->message) != 0) {
            return fail(d->message);
        }
    }
    return open_json(d);
}

static int set_up(decoder* d)
{
    const decode_options* o = &d->options;
    if (check_paths(d) != 0) { return 1; }
    if (model_open(o->model, NULL, &d->m, d->message, sizeof d->message) != 0) {
        return fail(d->message);
    }
    d->chat = o->chat;
    if (o->chat && chat_detect(model_file(d->m), &d->talk.chat, d->message, sizeof d->message)) {
        return fail(d->message);
    }
    if (open_context(d) != 0) { return fail(d->message); }
    const int64_t trained_len = model_get_geometry(d->m)->context_len;
    if (o->context_len > trained_len) {
        fprintf(stderr, "decode: -c %lld: the model was trained for %lld tokens: what it writes "
                "beyond them is likely to be of no use\n", (long long)o->context_len,
                (long long)trained_len);
    }
    const int vocab_size = model_get_geometry(d->m)->vocab_size;
    d->picker = sampler_create(&o->sampling, vocab_size);
    d->logits = malloc((size_t)vocab_size * sizeof *d->logits);
    if (d->picker == NULL || d->logits == NULL) { return fail("out of memory"); }
    d->text.out = stdout;
    if (o->follow_path != NULL &&
        follow_read(o->follow_path, vocab_size, &d->lead, d->message, sizeof d->message) != 0) {
        return fail(d->message);
    }
    return o->verbose && d->session != NULL ? describe(d) : 0;
}

static void take_down(decoder* d)
{
    if (d->json != NULL) { fclose(d->json); }
    text_bytes_free(&d->text.text);
    free(d->run.ids);
    free(d->generated.ids);
    follow_free(&d->lead);
    free(d->logits);
    sampler_destroy(d->picker);
    conversation_free(&d->talk);
    model_session_free(d->session);
    kvl_context_destroy(d->ctx);
    model_close(d->m);
    decode_options_free(&d->options);
}

// RUNNING

static bool show_progress(void* user, int64_t done, int64_t count)
{
    (void)user;
    if (count >= PROGRESS_TOKENS) {
        fprintf(stderr, "\rprompt: %lld of %lld tokens%s", (long long)done, (long long)count,
                done == count ? "\n" : "");
    }
    return interrupted != 0;
}

// Explains a status of the session. Returns the exit status, 0 for what is no error.
static int explain(decoder* d, int status)
{
    if (status == MODEL_STOPPED) {
        fputs("\n", stderr);
        return 0;
    }
    if (status == MODEL_FULL) {
        snprintf(d->message, sizeof d->message, "%s: -c sets the size",
                 model_session_message(d->session));
        return fail(d->message);
    }
    return fail(model_session_message(d->session));
}

static bool keep_ids(id_list* list, const int32_t* ids, int64_t count)
{
    if (list->count + count > list->capacity) {
        const int64_t more = 2 * (list->count + count) + 256;
        int32_t* larger = realloc(list->ids, (size_t)more * sizeof *larger);
        if (larger == NULL) { return false; }
        list->ids = larger;
        list->capacity = more;
    }
    if (count > 0) { memcpy(list->ids + list->count, ids, (size_t)count * sizeof *ids); }
    list->count += count;
    return true;
}

// SAVED SESSIONS

// Reads what a file has beside its rows; ids become d->run, and d->logits is filled if it has any.
static int read_saved(decoder* d, const char* path, conversation* talk, bool* is_chat)
{
    saved_session_reading saved = { .logits = d->logits, .talk = talk };
    const int failed = saved_session_read(path, d->session, &saved, d->message, sizeof d->message);
    if (failed) {
        free(saved.ids);
        return fail(d->message);
    }
    d->run = (id_list){ saved.ids, saved.num_ids, saved.num_ids };
    d->has_logits = saved.has_logits;
    *is_chat = saved.is_chat;
    return 0;
}

static int take_rows(decoder* d, const char* path)
{
    const int failed = saved_session_take_rows(path, d->session, d->options.recode, d->message,
                                               sizeof d->message);
    if (failed) { return fail(d->message); }
    d->stats.loaded_tokens = d->run.count;
    for (int64_t i = 0; i < d->run.count; i++) { sampler_accept(d->picker, d->run.ids[i]); }
    return 0;
}

static int load_session(decoder* d)
{
    const decode_options* o = &d->options;
    bool is_chat = false;
    if (read_saved(d, o->load_path, &d->talk, &is_chat) != 0) { return 1; }
    if (o->chat && !is_chat) {
        snprintf(d->message, sizeof d->message, "%s: saved without --chat", o->load_path);
        return fail(d->message);
    }
    if (is_chat && !o->chat &&
        chat_detect(model_file(d->m), &d->talk.chat, d->message, sizeof d->message)) {
        return fail(d->message);
    }
    d->chat = is_chat;
    return take_rows(d, o->load_path);
}

static int save_session(decoder* d, const char* path, const conversation* talk)
{
    const saved_session saved = { .ids = d->run.ids, .num_ids = d->run.count,
                                  .logits = d->has_logits ? d->logits : NULL, .talk = talk };
    if (talk != NULL && d->cut_short) {
        snprintf(d->message, sizeof d->message, "%s: not written: the prompt was cut short", path);
        return fail(d->message);
    }
    return saved_session_write(path, d->session, &saved, d->message, sizeof d->message)
        ? fail(d->message) : 0;
}

// Begins with the rows that the prompt cache has of the prompt's first tokens: *taken. Without a
// file, none. The last token is always run, for its logits, unless the file is the prompt.
static int take_prefix(decoder* d, const int32_t* ids, int64_t count, int64_t* taken)
{
    const char* path = d->options.prompt_cache;
    conversation none = { .messages = NULL };
    bool is_chat = false, exact = true;
    *taken = 0;
    if (access(path, F_OK) != 0) { return 0; }
    const int failed = read_saved(d, path, &none, &is_chat);
    conversation_free(&none);
    if (failed) { return 1; }
    const int64_t saved = d->run.count;
    while (*taken < count && *taken < saved && d->run.ids[*taken] == ids[*taken]) { ++*taken; }
    d->keeps_cache = *taken < saved && saved >= count;
    if (*taken == count && !(saved == count && d->has_logits)) { --*taken; }
    d->run.count = *taken;
    d->has_logits = d->has_logits && *taken == saved;
    if (*taken > 0) {
        d->run.count = saved;
        if (take_rows(d, path) != 0) { return 1; }
        d->run.count = d->stats.loaded_tokens = *taken;
        if (*taken < saved &&
            model_session_truncate(d->session, *taken, &exact) != MODEL_OK) {
            return fail(model_session_message(d->session));
        }
    }
    fprintf(stderr, "decode: %s: %lld of its %lld tokens begin the prompt of %lld%s\n", path,
            (long long)*taken, (long long)saved, (long long)count,
            exact ? "" : "; rows stay quantized that without it would be in 16 bits for longer");
    if (d->keeps_cache) {
        fprintf(stderr, "decode: %s: stays as it is: it has %lld tokens of another prompt\n", path,
                (long long)saved);
    }
    return 0;
}

// *stopped: Ctrl-C has cut it short.
static int run_ids(decoder* d, const int32_t* ids, int64_t count, bool* stopped)
{
    for (int64_t i = 0; i < count; i++) { sampler_accept(d->picker, ids[i]); }
    const model_run run = { .ids = ids, .count = count, .logits = d->logits,
                            .prompt_len = count, .progress = show_progress };
    const double start = seconds();
    const int64_t before = model_session_length(d->session);
    const int status = count > 0 ? model_run_tokens(d->session, &run) : MODEL_OK;
    const int64_t done = model_session_length(d->session) - before;
    d->stats.prefill_seconds += seconds() - start;
    d->stats.prompt_tokens += done;
    if (!keep_ids(&d->run, ids, done)) { return fail("out of memory"); }
    if (count > 0) { d->has_logits = status == MODEL_OK; }
    d->cut_short = status == MODEL_STOPPED;
    *stopped = status == MODEL_STOPPED || interrupted;
    return status == MODEL_OK ? 0 : explain(d, status);
}

// Encodes text and runs it. The sequence is empty at its first turn: special tokens are added then.
// *stopped: Ctrl-C has cut it short.
static int run_prompt(decoder* d, const char* text, size_t bytes, bool* stopped)
{
    const tokenizer* tok = model_tokenizer(d->m);
    const bool first = d->session == NULL || model_session_length(d->session) == 0;
    const char* cached = first ? d->options.prompt_cache : NULL;
    const int flags = TOKENIZER_PARSE_SPECIAL | (first ? TOKENIZER_ADD_SPECIAL : 0);
    int32_t* ids = NULL;
    size_t count = 0;
    int64_t taken = 0;
    const int encoded = tokenizer_encode(tok, text, bytes, flags, &ids, &count);
    if (encoded != TOKENIZER_OK) { return fail(tokenizer_status_text(encoded)); }
    if (count == 0 && first) {
        free(ids);
        return fail("the prompt is empty, and the model has no token to begin with");
    }
    if (d->session == NULL) {
        int failed = open_session(d, ids, (int64_t)count) != 0 ? fail(d->message) : 0;
        if (!failed && d->options.verbose) { failed = describe(d); }
        if (failed) {
            free(ids);
            return 1;
        }
    }
    int status = cached != NULL ? take_prefix(d, ids, (int64_t)count, &taken) : 0;
    if (status == 0) { status = run_ids(d, ids + taken, (int64_t)count - taken, stopped); }
    free(ids);
    if (status == 0 && cached != NULL && !*stopped && taken < (int64_t)count && !d->keeps_cache) {
        return save_session(d, cached, NULL);
    }
    return status;
}

// Puts out the text of a token; answer gets its bytes as they are.
static int put_token(decoder* d, int32_t id, text_bytes* answer)
{
    char piece[1024];
    const int64_t bytes = tokenizer_piece(model_tokenizer(d->m), id, false, piece, sizeof piece);
    const size_t whole = bytes < 0 ? 0 : (size_t)bytes;
    const size_t kept = whole < sizeof piece ? whole : sizeof piece;
    errno = 0;
    if (!keep_ids(&d->generated, &id, 1) || !text_bytes_add(answer, piece, kept)) {
        return fail("out of memory");
    }
    d->stats.generated_tokens++;
    if (!text_stream_add(&d->text, piece, kept)) {
        snprintf(d->message, sizeof d->message, "stdout: %s", strerror(errno));
        return fail(d->message);
    }
    return 0;
}

// The next token: what is followed, or what the sampler picks. Less than 0: none; *status is the
// program's.
static int32_t next_token(decoder* d, int* status)
{
    *status = 0;
    if (d->lead.ids != NULL) {
        return follow_next(&d->lead, d->logits, model_get_geometry(d->m)->vocab_size);
    }
    const int32_t id = sampler_pick(d->picker, d->logits);
    if (id < 0) { *status = fail("the logits are not finite"); }
    return id >= 0 && tokenizer_is_eog(model_tokenizer(d->m), id) ? -1 : id;
}

// Generates from d->logits on until the model ends, the bound, or Ctrl-C.
static int generate(decoder* d, text_bytes* answer)
{
    const int64_t most = d->options.num_predict;
    for (int64_t n = 0; (most < 0 || n < most) && !interrupted; n++) {
        const double start = seconds();
        int none;
        const int32_t id = next_token(d, &none);
        if (id < 0) {
            // The penalty has changed the logits in place.
            d->has_logits = d->options.sampling.repeat_penalty == 1.0f;
            return none;
        }
        sampler_accept(d->picker, id);
        if (put_token(d, id, answer) != 0) { return 1; }
        // The last token is run as well where something may follow it.
        d->has_logits = false;
        if (n + 1 == most && !d->options.interactive && d->options.save_path == NULL) { return 0; }
        const int status = model_step(d->session, id, d->logits);
        if (status == MODEL_FULL) {
            fprintf(stderr, "\ndecode: the context of %lld tokens is full\n",
                    (long long)model_session_context(d->session));
            return 0;
        }
        if (status != MODEL_OK) { return explain(d, status); }
        if (!keep_ids(&d->run, &id, 1)) { return fail("out of memory"); }
        d->has_logits = true;
        d->stats.step_seconds += seconds() - start;
        d->stats.num_steps++;
    }
    return 0;
}

// Between turns stdout has a line end; a single answer stands as the model wrote it.
static bool end_answer(const decoder* d)
{
    return !d->options.interactive || (fputc('\n', stdout) != EOF && fflush(stdout) == 0);
}

// The answer to what has been run.
static int answer(decoder* d)
{
    text_bytes text = { NULL, 0, 0 };
    int status = generate(d, &text);
    if (status == 0 && !(text_stream_end(&d->text) && end_answer(d))) {
        snprintf(d->message, sizeof d->message, "stdout: %s", strerror(errno));
        status = fail(d->message);
    }
    if (status == 0 && d->chat && !conversation_answer(&d->talk, &text)) {
        status = fail("out of memory");
    }
    text_bytes_free(&text);
    return status;
}

static int start_over(decoder* d)
{
    if (d->session != NULL && model_session_reset(d->session) != MODEL_OK) {
        return fail(model_session_message(d->session));
    }
    d->run.count = 0;
    d->has_logits = false;
    return 0;
}

// A message, rendered with what of the conversation is not yet in the session.
static int run_message(decoder* d, const char* text, bool* stopped)
{
    char* rendered = NULL;
    bool restart = false;
    if (d->cut_short) {
        text_bytes_free(&d->talk.run);
        if (start_over(d) != 0) { return 1; }
    }
    if (conversation_ask(&d->talk, text, &rendered, &restart, d->message, sizeof d->message)) {
        return fail(d->message);
    }
    int status = restart ? start_over(d) : 0;
    if (status == 0) { status = run_prompt(d, rendered, strlen(rendered), stopped); }
    free(rendered);
    return status;
}

// One turn: text is a message in a chat, else as it is.
static int run_turn(decoder* d, const char* text, size_t bytes)
{
    bool stopped = false;
    const int status = d->chat ? run_message(d, text, &stopped)
                               : run_prompt(d, text, bytes, &stopped);
    return status != 0 || stopped ? status : answer(d);
}

// The text of what was loaded goes on without a prompt.
static int go_on(decoder* d)
{
    if (!d->has_logits) {
        snprintf(d->message, sizeof d->message, "%s: does not say how its text goes on: -p, -f or "
                 "-i must be there", d->options.load_path);
        return fail(d->message);
    }
    return answer(d);
}

// Reads a line into *line, without its end. False at the end of the input, or at Ctrl-C.
static bool read_line(char** line, size_t* capacity, size_t* bytes)
{
    fputs("> ", stderr);
    const ssize_t count = getline(line, capacity, stdin);
    if (count < 0) { return false; }
    *bytes = (size_t)count;
    while (*bytes > 0 && ((*line)[*bytes - 1] == '\n' || (*line)[*bytes - 1] == '\r')) {
        (*line)[--*bytes] = 0;
    }
    return true;
}

static int talk(decoder* d)
{
    char* line = NULL;
    size_t capacity = 0, bytes = 0;
    int status = 0;
    while (status == 0) {
        interrupted = 0;
        if (!read_line(&line, &capacity, &bytes)) { break; }
        if (bytes == 0) { continue; }
        // Without a template the line's end stands between the line and the answer.
        if (!d->chat) { line[bytes++] = '\n'; }
        status = run_turn(d, line, bytes);
    }
    fputs("\n", stderr);
    free(line);
    return status;
}

static int read_prompt(decoder* d, text_bytes* prompt)
{
    const decode_options* o = &d->options;
    if (o->prompt != NULL) {
        return text_bytes_add(prompt, o->prompt, strlen(o->prompt)) ? 0 : fail("out of memory");
    }
    const bool is_stdin = strcmp(o->prompt_file, "-") == 0;
    FILE* file = is_stdin ? stdin : fopen(o->prompt_file, "rb");
    bool ok = file != NULL;
    char part[4096];
    errno = ok ? 0 : errno;
    for (size_t count = 1; ok && count > 0;) {
        count = fread(part, 1, sizeof part, file);
        ok = !ferror(file) && text_bytes_add(prompt, part, count);
    }
    if (!ok) {
        snprintf(d->message, sizeof d->message, "%s: %s", o->prompt_file,
                 strerror(errno != 0 ? errno : ENOMEM));
    }
    if (file != NULL && !is_stdin) { fclose(file); }
    if (!ok) { return fail(d->message); }
    if (prompt->count > 0 && prompt->data[prompt->count - 1] == '\n') {
        prompt->data[--prompt->count] = 0;
    }
    return 0;
}

static int run(decoder* d)
{
    const decode_options* o = &d->options;
    int status = o->load_path != NULL ? load_session(d) : 0;
    if (status == 0 && (o->prompt != NULL || o->prompt_file != NULL)) {
        text_bytes prompt = { NULL, 0, 0 };
        status = read_prompt(d, &prompt);
        if (status == 0) { status = run_turn(d, prompt.data, prompt.count); }
        text_bytes_free(&prompt);
    } else if (status == 0 && !o->interactive) {
        status = go_on(d);
    }
    if (status == 0 && o->interactive) { status = talk(d); }
    if (status == 0 && d->session == NULL) { return fail("there was no prompt to calibrate on"); }
    return status == 0 && o->save_path != NULL
        ? save_session(d, o->save_path, d->chat ? &d->talk : NULL) : status;
}

// STATISTICS

typedef struct cache_summary {
    kvl_stats stats;
    double bits_in_pages;  // a value: keys and values averaged by their number
    double bits_total;     // of the whole cache, windows and tables included
    bool generated;        // by kernels made for this shape, in all layers
    char* spec;            // one spec, or ranges of layers with theirs; freed by the caller
} cache_summary;

// Whose kernels attend.
static const char* kernels_of(const decoder* d, const cache_summary* c)
{
    if (kvl_context_has_device(d->ctx)) { return "cuda"; }
    return c->generated ? "host" : "reference";
}

static int summarize_specs(const decoder* d, cache_summary* out)
{
    const int num_layers = model_get_geometry(d->m)->num_layers;
    text_bytes text = { NULL, 0, 0 };
    kvl_layer_info info, next;
    for (int first = 0, end; first < num_layers; first = end) {
        char range[32] = "";
        if (kvl_cache_layer_info(model_session_cache(d->session), first, &info)) { break; }
        for (end = first + 1; end < num_layers; end++) {
            if (kvl_cache_layer_info(model_session_cache(d->session), end, &next) ||
                strcmp(next.spec, info.spec) != 0) {
                break;
            }
        }
        if (end - first < num_layers) {
            snprintf(range, sizeof range, "%s%d-%d:", first > 0 ? " " : "", first, end - 1);
        }
        if (!text_bytes_add(&text, range, strlen(range)) ||
            !text_bytes_add(&text, info.spec, strlen(info.spec))) {
            text_bytes_free(&text);
            return fail("out of memory");
        }
    }
    out->spec = text.data;
    return out->spec == NULL ? fail(kvl_context_message(d->ctx)) : 0;
}

static int summarize(const decoder* d, cache_summary* out)
{
    const model_geometry* g = model_get_geometry(d->m);
    const double rows = (double)model_session_length(d->session);
    double values = 0.0, bits = 0.0;
    kvl_cache* cache = model_session_cache(d->session);
    memset(out, 0, sizeof *out);
    out->generated = true;
    if (kvl_cache_stats(cache, &out->stats) != KVL_OK) { return fail(kvl_context_message(d->ctx)); }
    for (int i = 0; i < g->num_layers; i++) {
        kvl_layer_info info;
        if (kvl_cache_layer_info(cache, i, &info)) { return fail(kvl_context_message(d->ctx)); }
        const double k = (double)g->layers[i].num_kv_heads * g->layers[i].head_dim;
        const double v = (double)g->layers[i].num_kv_heads * g->layers[i].head_dim_v;
        values += k + v;
        bits += k * info.k_bits + v * info.v_bits;
        out->generated = out->generated && info.uses_generated;
    }
    out->bits_in_pages = bits / values;
    out->bits_total = rows > 0.0 ? 8.0 * (double)out->stats.bytes / (values * rows) : 0.0;
    return summarize_specs(d, out);
}

static double rate(int64_t count, double time) { return time > 0.0 ? (double)count / time : 0.0; }

static void print_statistics(const decoder* d, const cache_summary* c)
{
    const statistics* s = &d->stats;
    const uint64_t bytes = c->stats.bytes, f16_bytes = c->stats.f16_bytes;
    const int64_t tokens = model_session_length(d->session);
    const int64_t quantized = c->stats.num_rows > 0
        ? c->stats.num_quantized * tokens / c->stats.num_rows : 0;
    fputs("\n", stderr);
    if (s->loaded_tokens > 0) {
        fprintf(stderr, "loaded     %lld tokens\n", (long long)s->loaded_tokens);
    }
    fprintf(stderr, "prompt     %lld tokens, %.1f tokens/s\n", (long long)s->prompt_tokens,
            rate(s->prompt_tokens, s->prefill_seconds));
    fprintf(stderr, "generated  %lld tokens, %.1f tokens/s, %d threads, seed %llu\n",
            (long long)s->generated_tokens, rate(s->num_steps, s->step_seconds),
            kvl_context_threads(d->ctx), (unsigned long long)d->options.sampling.seed);
    if (d->lead.asked > 0) {
        fprintf(stderr, "followed   %lld tokens; this cache's best token is the same at %lld "
                "(%.1f%%)\n", (long long)d->lead.asked, (long long)d->lead.agreed,
                100.0 * (double)d->lead.agreed / (double)d->lead.asked);
    }
    fprintf(stderr, "cache      %s, %s kernels\n", c->spec, kernels_of(d, c));
    fprintf(stderr, "           %.2f bits a value in pages (%lld of %lld tokens)\n",
            c->bits_in_pages, (long long)quantized, (long long)tokens);
    fprintf(stderr, "           %.2f MB with windows and tables, %.2f of the %.2f MB of f16 rows\n",
            1e-6 * (double)bytes, f16_bytes > 0 ? (double)bytes / (double)f16_bytes : 0.0,
            1e-6 * (double)f16_bytes);
}

static bool add_layers(const decoder* d, cJSON* root)
{
    cJSON* layers = cJSON_AddArrayToObject(root, "layers");
    for (int i = 0; layers != NULL && i < model_get_geometry(d->m)->num_layers; i++) {
        kvl_layer_info info;
        if (kvl_cache_layer_info(model_session_cache(d->session), i, &info)) { return false; }
        cJSON* layer = cJSON_CreateObject();
        if (layer == NULL || !cJSON_AddItemToArray(layers, layer)) { return false; }
        if (!cJSON_AddStringToObject(layer, "cache", info.spec) ||
            !cJSON_AddNumberToObject(layer, "k_bits", info.k_bits) ||
            !cJSON_AddNumberToObject(layer, "v_bits", info.v_bits)) {
            return false;
        }
    }
    return layers != NULL;
}

static bool fill_json(const decoder* d, const cache_summary* c, cJSON* root)
{
    const statistics* s = &d->stats;
    const struct {
        const char* name;
        double value;
    } numbers[] = {
        { "loaded_tokens", (double)s->loaded_tokens },
        { "prompt_tokens", (double)s->prompt_tokens },
        { "generated_tokens", (double)s->generated_tokens },
        { "prefill_tokens_per_second", rate(s->prompt_tokens, s->prefill_seconds) },
        { "tokens_per_second", rate(s->num_steps, s->step_seconds) },
        { "cache_bytes", (double)c->stats.bytes },
        { "cache_f16_bytes", (double)c->stats.f16_bytes },
        { "bits_per_value", c->bits_in_pages },
        { "bits_total", c->bits_total },
        { "threads", kvl_context_threads(d->ctx) },
        { "seed", (double)d->options.sampling.seed },
        { "followed_tokens", (double)d->lead.asked },
        { "agreed_tokens", (double)d->lead.agreed },
    };
    const char* architecture = model_get_geometry(d->m)->architecture;
    bool ok = cJSON_AddStringToObject(root, "model", d->options.model) &&
              cJSON_AddStringToObject(root, "architecture", architecture) &&
              cJSON_AddStringToObject(root, "cache", c->spec) &&
              cJSON_AddStringToObject(root, "target", kernels_of(d, c));
    for (size_t i = 0; ok && i < sizeof numbers / sizeof numbers[0]; i++) {
        ok = cJSON_AddNumberToObject(root, numbers[i].name, numbers[i].value) != NULL;
    }
    const char* text = d->text.text.data;
    ok = ok && cJSON_AddStringToObject(root, "text", text != NULL ? text : "");
    const int none = 0;  // cJSON takes no NULL, not even for no numbers
    cJSON* ids = ok ? cJSON_CreateIntArray(d->generated.ids != NULL ? d->generated.ids : &none,
                                           (int)d->generated.count)
                    : NULL;
    if (ids == NULL || !cJSON_AddItemToObject(root, "token_ids", ids)) { return false; }
    return !d->options.verbose || add_layers(d, root);
}

static int write_json(decoder* d, const cache_summary* c)
{
    cJSON* root = cJSON_CreateObject();
    char* text = root != NULL && fill_json(d, c, root) ? cJSON_Print(root) : NULL;
    cJSON_Delete(root);
    if (text == NULL) { return fail("out of memory"); }
    // A pipe or a device has no length.
    const bool emptied = ftruncate(fileno(d->json), 0) == 0 || errno == EINVAL;
    const bool written = emptied && fprintf(d->json, "%s\n", text) > 0;
    const bool closed = fclose(d->json) == 0;
    d->json = NULL;
    cJSON_free(text);
    if (written && closed) { return 0; }
    snprintf(d->message, sizeof d->message, "%s: %s", d->options.json_path, strerror(errno));
    return fail(d->message);
}

static int report(decoder* d)
{
    cache_summary summary;
    if (summarize(d, &summary) != 0) { return 1; }
    print_statistics(d, &summary);
    const int status = d->json != NULL ? write_json(d, &summary) : 0;
    free(summary.spec);
    return status;
}

int main(int argc, char** argv)
{
    decoder d;
    memset(&d, 0, sizeof d);
    int status = decode_options_read(argc, argv, &d.options);
    if (status == DECODE_RUN) {
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_handler = on_interrupt;  // without SA_RESTART: a read at the prompt ends
        sigemptyset(&action.sa_mask);
        sigaction(SIGINT, &action, NULL);
        status = set_up(&d);
        if (status == 0) {
            status = run(&d);
            if (status == 0) { status = report(&d); }
        }
    }
    take_down(&d);
    return status;
}
