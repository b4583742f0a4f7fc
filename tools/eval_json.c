// eval_json.c -- results to JSON, and parts of them back.

#include "eval_json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool add(cJSON* array, cJSON* item)
{
    if (item != NULL && cJSON_AddItemToArray(array, item)) { return true; }
    cJSON_Delete(item);
    return false;
}

bool eval_json_add_floats(cJSON* object, const char* name, const float* x, int64_t count)
{
    cJSON* array = cJSON_AddArrayToObject(object, name);
    bool ok = array != NULL;
    for (int64_t i = 0; ok && i < count; i++) {
        char text[32];
        snprintf(text, sizeof text, "%.9g", (double)x[i]);  // what a float needs to come back
        ok = add(array, isfinite(x[i]) ? cJSON_CreateRaw(text) : cJSON_CreateNull());
    }
    return ok;
}

bool eval_json_read_floats(const cJSON* object, const char* name, float* x, int64_t count)
{
    const cJSON* array = cJSON_GetObjectItemCaseSensitive(object, name);
    const cJSON* item = NULL;
    int64_t i = 0;
    if (!cJSON_IsArray(array)) { return false; }
    cJSON_ArrayForEach(item, array)
    {
        if (i == count || !cJSON_IsNumber(item)) { return false; }
        x[i++] = (float)item->valuedouble;
    }
    return i == count;
}

// WORST TOKENS

static bool add_candidates(cJSON* object, const char* name, const eval_candidate* list)
{
    cJSON* array = cJSON_AddArrayToObject(object, name);
    bool ok = array != NULL;
    for (int i = 0; ok && i < EVAL_TOP && list[i].id >= 0; i++) {
        cJSON* item = cJSON_CreateObject();
        ok = add(array, item) && cJSON_AddNumberToObject(item, "id", list[i].id) &&
             cJSON_AddStringToObject(item, "text", list[i].text) &&
             cJSON_AddNumberToObject(item, "probability", list[i].probability);
    }
    return ok;
}

bool eval_json_add_worst(cJSON* object, const eval_worst* worst, int count)
{
    cJSON* array = cJSON_AddArrayToObject(object, "worst");
    bool ok = array != NULL;
    for (int i = 0; ok && i < count; i++) {
        cJSON* item = cJSON_CreateObject();
        ok = add(array, item) && cJSON_AddNumberToObject(item, "window", worst[i].window) &&
             cJSON_AddNumberToObject(item, "position", (double)worst[i].position) &&
             cJSON_AddNumberToObject(item, "kl_x1000", 1000.0 * worst[i].kl) &&
             cJSON_AddNumberToObject(item, "target", worst[i].target) &&
             cJSON_AddStringToObject(item, "target_text", worst[i].target_text) &&
             cJSON_AddStringToObject(item, "before", worst[i].before) &&
             add_candidates(item, "base_top", worst[i].base) &&
             add_candidates(item, "cache_top", worst[i].cache);
    }
    return ok;
}

static double number_of(const cJSON* object, const char* name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(object, name));
}

static bool read_text(const cJSON* object, const char* name, char* out, size_t bytes)
{
    const char* text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    if (text == NULL || strlen(text) >= bytes) { return false; }
    memcpy(out, text, strlen(text) + 1);
    return true;
}

static bool read_candidates(const cJSON* object, const char* name, eval_candidate* list)
{
    const cJSON* array = cJSON_GetObjectItemCaseSensitive(object, name);
    const cJSON* item = NULL;
    int i = 0;
    for (int j = 0; j < EVAL_TOP; j++) { list[j] = (eval_candidate){ .id = -1 }; }
    if (!cJSON_IsArray(array)) { return false; }
    cJSON_ArrayForEach(item, array)
    {
        const double id = number_of(item, "id");
        if (i == EVAL_TOP || !(id >= 0.0 && id <= 2147483647.0)) { return false; }
        list[i].id = (int32_t)id;
        list[i].probability = number_of(item, "probability");
        if (!read_text(item, "text", list[i].text, sizeof list[i].text)) { return false; }
        i++;
    }
    return true;
}

bool eval_json_read_worst(const cJSON* object, int window, eval_worst* worst, int* count)
{
    const cJSON* array = cJSON_GetObjectItemCaseSensitive(object, "worst");
    const cJSON* item = NULL;
    *count = 0;
    if (!cJSON_IsArray(array)) { return false; }
    cJSON_ArrayForEach(item, array)
    {
        if (*count == EVAL_WORST) { return false; }
        const double position = number_of(item, "position"), target = number_of(item, "target");
        eval_worst* to = &worst[*count];
        if (!(position >= 0.0 && position < 1e9) || !(target >= 0.0 && target <= 2147483647.0)) {
            return false;
        }
        *to = (eval_worst){ .window = window, .position = (int64_t)position };
        to->target = (int32_t)target;
        to->kl = number_of(item, "kl_x1000") / 1000.0;
        if (!read_text(item, "target_text", to->target_text, sizeof to->target_text) ||
            !read_text(item, "before", to->before, sizeof to->before) ||
            !read_candidates(item, "base_top", to->base) ||
            !read_candidates(item, "cache_top", to->cache)) {
            return false;
        }
        ++*count;
    }
    return true;
}

// ERRORS OF LAYERS

static bool add_doubles(cJSON* object, const char* name, const double* x, int count)
{
    cJSON* array = cJSON_CreateDoubleArray(x, count);
    if (array == NULL) { return false; }
    if (cJSON_AddItemToObject(object, name, array)) { return true; }
    cJSON_Delete(array);
    return false;
}

bool eval_json_add_layers(cJSON* object, const eval_cache* cache)
{
    if (cache->num_layers == 0) { return true; }
    cJSON* array = cJSON_AddArrayToObject(object, "layers");
    bool ok = array != NULL;
    for (int i = 0; ok && i < cache->num_layers; i++) {
        const eval_layer* layer = &cache->layers[i];
        cJSON* item = cJSON_CreateObject();
        ok = add(array, item) &&
             add_doubles(item, "score_error", layer->score_error, layer->num_q_heads) &&
             add_doubles(item, "output_error", layer->output_error, layer->num_q_heads);
    }
    return ok;
}

static double* read_doubles(const cJSON* array, int count)
{
    const cJSON* item = NULL;
    double* out = calloc((size_t)count + 1, sizeof *out);
    int i = 0;
    if (out == NULL || !cJSON_IsArray(array) || cJSON_GetArraySize(array) != count) {
        free(out);
        return NULL;
    }
    cJSON_ArrayForEach(item, array)
    {
        out[i++] = cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
    }
    return out;
}

bool eval_json_read_layers(const cJSON* object, int num_layers, eval_cache* cache)
{
    const cJSON* array = cJSON_GetObjectItemCaseSensitive(object, "layers");
    const cJSON* item = NULL;
    if (array == NULL || cache->num_layers > 0) { return true; }
    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) != num_layers) { return false; }
    cache->layers = calloc((size_t)num_layers, sizeof *cache->layers);
    if (cache->layers == NULL) { return false; }
    cJSON_ArrayForEach(item, array)
    {
        const cJSON* score = cJSON_GetObjectItemCaseSensitive(item, "score_error");
        const cJSON* output = cJSON_GetObjectItemCaseSensitive(item, "output_error");
        eval_layer* layer = &cache->layers[cache->num_layers++];
        layer->num_q_heads = cJSON_GetArraySize(score);
        layer->score_error = read_doubles(score, layer->num_q_heads);
        layer->output_error = read_doubles(output, layer->num_q_heads);
        if (layer->score_error == NULL || layer->output_error == NULL) { return false; }
    }
    return true;
}

// CHOICES

static const char* const choice_names[] = { "plain", "rotated", "whole" };

bool eval_json_add_choices(cJSON* object, const eval_choices* c)
{
    cJSON* all = cJSON_AddObjectToObject(object, "choices");
    bool ok = all != NULL && cJSON_AddNumberToObject(all, "pieces", (double)c->num_pieces) != NULL;
    for (int i = 0; ok && c->num_pieces > 0 && i < 3; i++) {
        cJSON* item = cJSON_AddObjectToObject(all, choice_names[i]);
        const double share = (double)c->count[i] / (double)c->num_pieces;
        ok = item != NULL && cJSON_AddNumberToObject(item, "share", share) != NULL &&
             cJSON_AddNumberToObject(item, "peak", c->peak[i]) != NULL &&
             cJSON_AddNumberToObject(item, "peak_rotated", c->peak_rotated[i]) != NULL;
    }
    return ok;
}

static double number_in(const cJSON* object, const char* name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(object, name));
}

bool eval_json_read_choices(const cJSON* object, eval_choices* c)
{
    const cJSON* all = cJSON_GetObjectItemCaseSensitive(object, "choices");
    const double pieces = number_in(all, "pieces");
    eval_choices read = { .num_pieces = 0 };
    if (!(pieces >= 0.0 && pieces < 9e15)) { return false; }
    read.num_pieces = (int64_t)pieces;
    for (int i = 0; read.num_pieces > 0 && i < 3; i++) {
        const cJSON* item = cJSON_GetObjectItemCaseSensitive(all, choice_names[i]);
        const double share = number_in(item, "share");
        if (!(share >= 0.0 && share <= 1.0)) { return false; }
        read.count[i] = (int64_t)(share * pieces + 0.5);
        read.peak[i] = number_in(item, "peak");
        read.peak_rotated[i] = number_in(item, "peak_rotated");
    }
    *c = read;
    return true;
}

// THE RESULTS FILE

static bool add_number(cJSON* object, const char* name, double value)
{
    return cJSON_AddNumberToObject(object, name, value) != NULL;
}

static bool add_needle(cJSON* object, const eval_needle* needle)
{
    if (needle->num_lengths == 0) { return true; }
    cJSON* all = cJSON_AddArrayToObject(object, "needle");
    bool ok = all != NULL;
    for (int i = 0; ok && i < needle->num_lengths; i++) {
        cJSON* item = cJSON_CreateObject();
        cJSON* hits = cJSON_CreateIntArray(needle->hits[i], EVAL_DEPTHS);
        ok = add(all, item) && add_number(item, "tokens", (double)needle->lengths[i]) &&
             add_number(item, "trials", needle->trials) && hits != NULL &&
             cJSON_AddItemToObject(item, "hits_by_depth", hits);
    }
    return ok;
}

static bool add_generations(cJSON* object, const eval_cache* cache)
{
    if (cache->num_generations == 0) { return true; }
    cJSON* all = cJSON_AddArrayToObject(object, "generations");
    bool ok = all != NULL;
    for (int i = 0; ok && i < cache->num_generations; i++) {
        const eval_generation* g = &cache->generations[i];
        cJSON* item = cJSON_CreateObject();
        const int none = 0;  // cJSON takes no NULL, not even for no numbers
        cJSON* ids = cJSON_CreateIntArray(g->ids != NULL ? g->ids : &none, g->num_tokens);
        ok = add(all, item) && add_number(item, "first_divergence", g->first_divergence) &&
             ids != NULL && cJSON_AddItemToObject(item, "token_ids", ids);
        if (ok && g->kl != NULL) { ok = eval_json_add_floats(item, "kl", g->kl, g->num_tokens); }
    }
    return ok;
}

static bool add_speeds(cJSON* object, const eval_cache* cache)
{
    if (cache->num_speeds == 0) { return true; }
    cJSON* all = cJSON_AddArrayToObject(object, "speeds");
    bool ok = all != NULL;
    for (int i = 0; ok && i < cache->num_speeds; i++) {
        cJSON* item = cJSON_CreateObject();
        ok = add(all, item) && add_number(item, "rows", (double)cache->speeds[i].rows) &&
             add_number(item, "tokens_per_second", cache->speeds[i].tokens_per_second);
    }
    return ok;
}

// What base and caches have in common.
static bool add_cache(cJSON* object, const eval_cache* c)
{
    return cJSON_AddStringToObject(object, "cache", c->cache) &&
           cJSON_AddStringToObject(object, "canonical", c->canonical) &&
           (c->error[0] == 0 || cJSON_AddStringToObject(object, "error", c->error)) &&
           cJSON_AddStringToObject(object, "target", c->generated ? "host" : "reference") &&
           add_number(object, "bits_key", c->bits_key) &&
           add_number(object, "bits_value", c->bits_value) &&
           add_number(object, "bits_body", c->bits_body) &&
           add_number(object, "bits_total", c->bits_total) &&
           add_number(object, "compression", c->compression) &&
           add_number(object, "cache_bytes", (double)c->cache_bytes) &&
           add_number(object, "bytes_per_token", c->bytes_per_token) &&
           add_number(object, "rows_quantized", (double)c->rows_quantized) &&
           add_number(object, "rows_total", (double)c->rows_total) &&
           add_number(object, "tokens_per_second", c->tokens_per_second) &&
           add_speeds(object, c) &&
           (c->choices.num_pieces == 0 || eval_json_add_choices(object, &c->choices)) &&
           add_needle(object, &c->needle) && add_generations(object, c);
}

// Mean KL of each position over the windows that are done.
static bool add_position_kl(cJSON* object, const eval_results* r, const eval_cache* c)
{
    float* mean = calloc((size_t)r->num_positions, sizeof *mean);
    bool ok = mean != NULL;
    for (int64_t i = 0; ok && i < r->num_positions; i++) {
        double sum = 0.0;
        for (int w = 0; w < r->num_windows; w++) {
            if (c->windows[w].done) { sum += (double)c->windows[w].kl[i]; }
        }
        mean[i] = (float)(1000.0 * sum / c->num_done);
    }
    ok = ok && eval_json_add_floats(object, "kl_x1000_by_position", mean, r->num_positions);
    free(mean);
    return ok;
}

static bool add_module(cJSON* object, const eval_module* m)
{
    static const char* const names[EVAL_MODULE_MODES] = { "keys", "values", "both" };
    if (m->num_layers == 0) { return true; }
    cJSON* all = cJSON_AddObjectToObject(object, "module");
    bool ok = all != NULL;
    for (int i = 0; ok && i < EVAL_MODULE_MODES; i++) {
        cJSON* item = cJSON_AddObjectToObject(all, names[i]);
        ok = item != NULL && add_number(item, "geometric_mean", m->geometric[i]) &&
             add_number(item, "mean", m->mean[i]) &&
             add_doubles(item, "by_layer", m->error[i], m->num_layers);
    }
    return ok;
}

static bool add_result(cJSON* results, const eval_results* r, const eval_cache* c)
{
    cJSON* o = cJSON_CreateObject();
    cJSON* by_window = NULL;
    bool ok = add(results, o) && add_cache(o, c) && add_number(o, "windows", c->num_done) &&
              add_number(o, "kl_x1000", 1000.0 * c->kl) &&
              add_number(o, "kl_x1000_se", 1000.0 * c->kl_se) &&
              add_number(o, "kl_median_x1000", 1000.0 * c->kl_median) &&
              add_number(o, "kl_p99_x1000", 1000.0 * c->kl_p99) && add_number(o, "top1", c->top1) &&
              add_number(o, "perplexity", c->perplexity) &&
              add_number(o, "perplexity_base", c->perplexity - c->perplexity_diff) &&
              add_number(o, "perplexity_diff", c->perplexity_diff) &&
              add_number(o, "perplexity_diff_se", c->perplexity_diff_se);
    if (ok) { by_window = cJSON_AddArrayToObject(o, "kl_x1000_by_window"); }
    ok = ok && by_window != NULL;
    for (int w = 0; ok && w < r->num_windows; w++) {
        const eval_window* window = &c->windows[w];
        double sum = 0.0;
        for (int64_t i = 0; window->done && i < r->num_positions; i++) {
            sum += (double)window->kl[i];
        }
        ok = add(by_window, window->done
                                ? cJSON_CreateNumber(1000.0 * sum / (double)r->num_positions)
                                : cJSON_CreateNull());
    }
    if (ok && c->num_done > 0) { ok = add_position_kl(o, r, c); }
    return ok && eval_json_add_worst(o, c->worst, c->num_worst) && eval_json_add_layers(o, c) &&
           add_module(o, &c->module);
}

static bool fill(cJSON* root, const eval_results* r)
{
    bool ok = cJSON_AddStringToObject(root, "version", r->version) &&
              cJSON_AddStringToObject(root, "command", r->command) &&
              cJSON_AddStringToObject(root, "model", r->model) &&
              cJSON_AddStringToObject(root, "model_name", r->model_name) &&
              cJSON_AddStringToObject(root, "architecture", r->architecture) &&
              cJSON_AddStringToObject(root, "model_fingerprint", r->model_fingerprint) &&
              (r->calibration == NULL ||
               cJSON_AddStringToObject(root, "calibration", r->calibration)) &&
              cJSON_AddStringToObject(root, "calibration_hash", r->calibration_hash) &&
              cJSON_AddStringToObject(root, "text", r->text) &&
              cJSON_AddStringToObject(root, "text_sha256", r->text_sha256) &&
              cJSON_AddStringToObject(root, "target", r->target) &&
              cJSON_AddStringToObject(root, "date", r->date) &&
              add_number(root, "text_tokens", (double)r->text_tokens) &&
              add_number(root, "vocab_size", r->vocab_size) &&
              add_number(root, "num_layers", r->num_layers) &&
              add_number(root, "threads", r->threads) &&
              add_number(root, "seed", (double)r->seed) &&
              add_number(root, "context", (double)r->context) &&
              add_number(root, "skip", (double)r->skip) &&
              add_number(root, "windows", r->num_windows) &&
              cJSON_AddBoolToObject(root, "interrupted", r->interrupted) &&
              add_number(root, "perplexity_base", r->base_perplexity);
    cJSON* base = ok ? cJSON_AddObjectToObject(root, "base") : NULL;
    ok = base != NULL && add_cache(base, &r->base);
    cJSON* results = ok ? cJSON_AddArrayToObject(root, "results") : NULL;
    ok = results != NULL;
    for (int i = 0; ok && i < r->num_caches; i++) { ok = add_result(results, r, &r->caches[i]); }
    return ok;
}

int eval_json_write(const char* path, const eval_results* results, char* message,
                    size_t message_bytes)
{
    cJSON* root = cJSON_CreateObject();
    char* text = root != NULL && fill(root, results) ? cJSON_Print(root) : NULL;
    cJSON_Delete(root);
    if (text == NULL) {
        snprintf(message, message_bytes, "out of memory");
        return 1;
    }
    FILE* file = fopen(path, "w");
    bool ok = file != NULL && fprintf(file, "%s\n", text) > 0;
    if (file != NULL) { ok = fclose(file) == 0 && ok; }
    cJSON_free(text);
    if (!ok) { snprintf(message, message_bytes, "%s: %s", path, strerror(errno)); }
    return !ok;
}
