// eval_resume.c -- reads and writes files of --resume.

#include "eval_resume.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "eval_engine.h"
#include "eval_json.h"

struct eval_resume {
    FILE* file;
    char* path;
};

typedef struct resume_report {
    const char* path;
    char* text;
    size_t bytes;
} resume_report;

static int fail(const resume_report* report, const char* what)
{
    snprintf(report->text, report->bytes, "%s: %s", report->path, what);
    return 1;
}

// THE FIRST LINE

static cJSON* make_header(const eval_results* r)
{
    cJSON* o = cJSON_CreateObject();
    const bool ok = o != NULL && cJSON_AddNumberToObject(o, "kvloom_eval", 1) &&
                    cJSON_AddStringToObject(o, "version", r->version) &&
                    cJSON_AddStringToObject(o, "model_fingerprint", r->model_fingerprint) &&
                    cJSON_AddNumberToObject(o, "vocab_size", r->vocab_size) &&
                    cJSON_AddStringToObject(o, "text_sha256", r->text_sha256) &&
                    cJSON_AddStringToObject(o, "calibration_hash", r->calibration_hash) &&
                    cJSON_AddNumberToObject(o, "context", (double)r->context) &&
                    cJSON_AddNumberToObject(o, "skip", (double)r->skip) &&
                    cJSON_AddStringToObject(o, "target", r->target);
    if (ok) { return o; }
    cJSON_Delete(o);
    return NULL;
}

// Every field must be there with the same value; the message names the first that is not.
static int check_header(const cJSON* found, const eval_results* r, const resume_report* report)
{
    cJSON* wanted = make_header(r);
    const cJSON* field = NULL;
    int failed = wanted == NULL ? fail(report, "out of memory") : 0;
    cJSON_ArrayForEach(field, wanted)
    {
        const cJSON* other = cJSON_GetObjectItemCaseSensitive(found, field->string);
        if (failed || cJSON_Compare(field, other, true)) { continue; }
        char* has = other != NULL ? cJSON_PrintUnformatted(other) : NULL;
        char* needs = cJSON_PrintUnformatted(field);
        snprintf(report->text, report->bytes, "%s: %s = %.80s: this run has %.80s", report->path,
                 field->string, has != NULL ? has : "absent", needs != NULL ? needs : "another");
        cJSON_free(has);
        cJSON_free(needs);
        failed = 1;
    }
    cJSON_Delete(wanted);
    return failed;
}

// WINDOWS

static double read_number(const cJSON* line, const char* name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(line, name));
}

static uint64_t read_count(const cJSON* line, const char* name)
{
    const double x = read_number(line, name);
    return x >= 0.0 && x < 9e15 ? (uint64_t)x : 0;
}

// What add_stats has written.
static void read_stats(const cJSON* line, const eval_results* r, eval_cache* cache)
{
    const double speed = read_number(line, "tokens_per_second");
    cache->cache_bytes = read_count(line, "cache_bytes");
    cache->compression = read_number(line, "compression");
    cache->bits_total = read_number(line, "bits_total");
    cache->rows_quantized = (int64_t)read_count(line, "rows_quantized");
    cache->rows_total = (int64_t)read_count(line, "rows_total");
    cache->bytes_per_token = (double)cache->cache_bytes / (double)r->context;
    if (!isnan(speed)) { cache->tokens_per_second = speed; }
}

static bool add_stats(cJSON* line, const eval_cache* cache)
{
    return cJSON_AddNumberToObject(line, "cache_bytes", (double)cache->cache_bytes) &&
           cJSON_AddNumberToObject(line, "compression", cache->compression) &&
           cJSON_AddNumberToObject(line, "bits_total", cache->bits_total) &&
           cJSON_AddNumberToObject(line, "rows_quantized", (double)cache->rows_quantized) &&
           cJSON_AddNumberToObject(line, "rows_total", (double)cache->rows_total) &&
           cJSON_AddNumberToObject(line, "tokens_per_second", cache->tokens_per_second);
}

static bool read_base(const cJSON* line, eval_results* r, int w)
{
    float* nll = malloc((size_t)r->num_positions * sizeof *nll);
    if (nll == NULL || !eval_json_read_floats(line, "nll", nll, r->num_positions)) {
        free(nll);
        return false;
    }
    free(r->base_nll[w]);
    r->base_nll[w] = nll;
    read_stats(line, r, &r->base);
    return true;
}

static bool read_flags(const cJSON* line, unsigned char* out, int64_t count)
{
    const char* text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(line, "top1"));
    if (text == NULL || strlen(text) != (size_t)count) { return false; }
    for (int64_t i = 0; i < count; i++) { out[i] = text[i] == '1'; }
    return true;
}

static bool read_cache(const cJSON* line, const eval_results* r, eval_cache* cache, int w)
{
    const size_t n = (size_t)r->num_positions;
    eval_window* window = &cache->windows[w];
    eval_window_free(window);
    // Of a run that did not count choices: the window is measured again.
    if (w == 0 && r->counts_choices && !eval_json_read_choices(line, &cache->choices)) {
        return true;
    }
    window->kl = malloc(n * sizeof *window->kl);
    window->nll = malloc(n * sizeof *window->nll);
    window->top1 = malloc(n);
    window->done = window->kl != NULL && window->nll != NULL && window->top1 != NULL &&
                   eval_json_read_floats(line, "kl", window->kl, r->num_positions) &&
                   eval_json_read_floats(line, "nll", window->nll, r->num_positions) &&
                   read_flags(line, window->top1, r->num_positions) &&
                   eval_json_read_worst(line, w, window->worst, &window->num_worst) &&
                   eval_json_read_layers(line, r->num_layers, cache);
    if (!window->done) {
        eval_window_free(window);
        return false;
    }
    window->seconds = read_number(line, "seconds");
    read_stats(line, r, cache);
    return true;
}

// Lines of caches and windows that this run does not have are left alone.
static bool read_window(const cJSON* line, eval_results* r)
{
    const cJSON* name = cJSON_GetObjectItemCaseSensitive(line, "cache");
    const cJSON* window = cJSON_GetObjectItemCaseSensitive(line, "window");
    if (!cJSON_IsNumber(window) || window->valuedouble < 0) { return false; }
    if (window->valuedouble >= r->num_windows) { return true; }
    const int w = window->valueint;
    if (name == NULL) { return read_base(line, r, w); }
    bool ok = cJSON_IsString(name);
    for (int i = 0; ok && i < r->num_caches; i++) {
        if (strcmp(r->caches[i].cache, name->valuestring) == 0) {
            ok = read_cache(line, r, &r->caches[i], w);
        }
    }
    return ok;
}

// Reads all lines; *good is the length of those that are complete.
static int read_lines(FILE* file, eval_results* r, const resume_report* report, off_t* good)
{
    char* text = NULL;
    size_t capacity = 0;
    int failed = 0;
    int64_t number = 0;
    for (ssize_t bytes; !failed && (bytes = getline(&text, &capacity, file)) > 0;) {
        if (text[bytes - 1] != '\n') { break; }  // the run ended while it was written
        cJSON* line = cJSON_Parse(text);
        const bool ok = cJSON_IsObject(line);
        if (ok && number == 0) {
            failed = check_header(line, r, report);
        } else if (!ok || !read_window(line, r)) {
            snprintf(report->text, report->bytes, "%s: line %lld is not a window of this program",
                     report->path, (long long)number + 1);
            failed = 1;
        }
        cJSON_Delete(line);
        *good += bytes;
        number++;
    }
    free(text);
    return failed;
}

static int write_line(FILE* file, cJSON* line, const resume_report* report)
{
    char* text = line != NULL ? cJSON_PrintUnformatted(line) : NULL;
    cJSON_Delete(line);
    if (text == NULL) { return fail(report, "out of memory"); }
    const bool ok = fprintf(file, "%s\n", text) > 0 && fflush(file) == 0;
    cJSON_free(text);
    return ok ? 0 : fail(report, strerror(errno));
}

int eval_resume_open(const char* path, eval_results* results, eval_resume** out, char* message,
                     size_t message_bytes)
{
    const resume_report report = { path, message, message_bytes };
    off_t good = 0;
    *out = NULL;
    FILE* file = fopen(path, "a+");
    if (file == NULL) { return fail(&report, strerror(errno)); }
    rewind(file);
    int failed = read_lines(file, results, &report, &good);
    if (!failed && (fflush(file) != 0 || ftruncate(fileno(file), good) != 0)) {
        failed = fail(&report, strerror(errno));
    }
    if (!failed && good == 0) { failed = write_line(file, make_header(results), &report); }
    eval_resume* resume = failed ? NULL : calloc(1, sizeof *resume);
    if (resume != NULL) { resume->path = strdup(path); }
    if (resume == NULL || resume->path == NULL) {
        fclose(file);
        free(resume);
        return failed ? failed : fail(&report, "out of memory");
    }
    resume->file = file;
    *out = resume;
    return 0;
}

int eval_resume_add_base(eval_resume* resume, const eval_results* r, int w, char* message,
                         size_t message_bytes)
{
    const resume_report report = { resume->path, message, message_bytes };
    cJSON* o = cJSON_CreateObject();
    if (o == NULL || !cJSON_AddNumberToObject(o, "window", w) ||
        !eval_json_add_floats(o, "nll", r->base_nll[w], r->num_positions) ||
        !add_stats(o, &r->base)) {
        cJSON_Delete(o);
        return fail(&report, "out of memory");
    }
    return write_line(resume->file, o, &report);
}

int eval_resume_add(eval_resume* resume, const eval_results* r, const eval_cache* cache, int w,
                    char* message, size_t message_bytes)
{
    const resume_report report = { resume->path, message, message_bytes };
    const eval_window* window = &cache->windows[w];
    char* flags = calloc((size_t)r->num_positions + 1, 1);
    cJSON* o = cJSON_CreateObject();
    for (int64_t i = 0; flags != NULL && i < r->num_positions; i++) {
        flags[i] = window->top1[i] ? '1' : '0';
    }
    const bool ok = flags != NULL && o != NULL &&
                    cJSON_AddStringToObject(o, "cache", cache->cache) &&
                    cJSON_AddNumberToObject(o, "window", w) &&
                    eval_json_add_floats(o, "kl", window->kl, r->num_positions) &&
                    eval_json_add_floats(o, "nll", window->nll, r->num_positions) &&
                    cJSON_AddStringToObject(o, "top1", flags) &&
                    eval_json_add_worst(o, window->worst, window->num_worst) &&
                    (w > 0 || eval_json_add_layers(o, cache)) &&
                    (w > 0 || !r->counts_choices || eval_json_add_choices(o, &cache->choices)) &&
                    cJSON_AddNumberToObject(o, "seconds", window->seconds) &&
                    add_stats(o, cache);
    free(flags);
    if (!ok) {
        cJSON_Delete(o);
        return fail(&report, "out of memory");
    }
    return write_line(resume->file, o, &report);
}

void eval_resume_close(eval_resume* resume)
{
    if (resume == NULL) { return; }
    fclose(resume->file);
    free(resume->path);
    free(resume);
}
