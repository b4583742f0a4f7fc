// model_geometry.c -- the shape of a model from the metadata of its file.
//
// Every number is bounded here, so that products of two of them fit 32 bits and nothing after this
// file has to check for overflow.

#include "model_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_LAYERS = 1024,
    MAX_HIDDEN = 1 << 16,
    MAX_FFN = 1 << 20,
    MAX_HEADS = 1024,
    MAX_HEAD_DIM = 1024,
    REQUIRED = -1
};

static const model_family families[] = {
    { .name = "llama" },
    { .name = "qwen2", .rope_halves = true },
    { .name = "qwen3", .rope_halves = true, .qk_norm = true },
    { .name = "gemma3",
      .rope_halves = true,
      .qk_norm = true,
      .post_norms = true,
      .gelu = true,
      .scaled_embedding = true,
      .windows = true,
      .wide_scale_layers = 62 },
};

const char* model_architectures(void) { return "llama, qwen2, qwen3, gemma3"; }

bool model_fail(const model_report* report, const char* format, ...)
{
    va_list args;
    va_start(args, format);
    if (report->bytes > 0) { vsnprintf(report->text, report->bytes, format, args); }
    va_end(args);
    return false;
}

const char* model_printable(const char* data, size_t bytes, char out[64])
{
    size_t n = 0;
    for (; n < bytes && n + 1 < 64; n++) {
        out[n] = data[n] >= 32 && data[n] < 127 ? data[n] : '?';
    }
    out[n] = 0;
    return out;
}

static void key_of(const model* m, const char* suffix, char key[128])
{
    snprintf(key, 128, "%s.%s", m->family->name, suffix);
}

// A whole number of the family's metadata. fallback REQUIRED: it must be there.
typedef struct number_rule {
    const char* suffix;
    int64_t fallback, least, most;
} number_rule;

// layer < 0: one value; else the value of that layer, which a scalar gives for all.
static bool read_number(const model* m, const number_rule* rule, int layer, int* out,
                        const model_report* report)
{
    char key[128];
    key_of(m, rule->suffix, key);
    int64_t value = rule->fallback;
    const int status = layer < 0 ? gguf_get_i64(m->file, key, &value)
                                 : gguf_get_i64_at(m->file, key, (uint64_t)layer, &value);
    const bool absent = status == GGUF_ABSENT && rule->fallback != REQUIRED;
    if (status != GGUF_OK && !absent) {
        gguf_explain(m->file, key, status, "a whole number", report->text, report->bytes);
        return false;
    }
    if (value < rule->least || value > rule->most) {
        char where[32] = "";
        if (layer >= 0) { snprintf(where, sizeof where, " of layer %d", layer); }
        return model_fail(report, "%s: %s%s = %lld: must be from %lld to %lld", gguf_path(m->file),
                          key, where, (long long)value, (long long)rule->least,
                          (long long)rule->most);
    }
    *out = (int)value;
    return true;
}

// A positive real number; absent: fallback, or a failure where that is 0.
static bool read_real(const model* m, const char* suffix, double fallback, double* out,
                      const model_report* report)
{
    char key[128];
    key_of(m, suffix, key);
    double value = fallback;
    const int status = gguf_get_f64(m->file, key, &value);
    if (status != GGUF_OK && (status != GGUF_ABSENT || fallback == 0.0)) {
        gguf_explain(m->file, key, status, "a positive number", report->text, report->bytes);
        return false;
    }
    if (!(value > 0.0) || !isfinite(value) || value > 1e12) {
        return model_fail(report, "%s: %s = %g: must be positive and at most 1e12",
                          gguf_path(m->file), key, value);
    }
    *out = value;
    return true;
}

static bool find_family(model* m, const model_report* report)
{
    gguf_string name;
    const int status = gguf_get_string(m->file, "general.architecture", &name);
    if (status != GGUF_OK) {
        gguf_explain(m->file, "general.architecture", status, "a string", report->text,
                     report->bytes);
        return false;
    }
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (name.bytes == strlen(families[i].name) &&
            memcmp(name.data, families[i].name, name.bytes) == 0) {
            m->family = &families[i];
            m->geometry.architecture = families[i].name;
            return true;
        }
    }
    char shown[64];
    return model_fail(report, "%s: architecture '%s' is not supported; supported are %s",
                      gguf_path(m->file), model_printable(name.data, name.bytes, shown),
                      model_architectures());
}

// Fields that change the arithmetic in a way that nothing here computes.
static bool refuse_unsupported(const model* m, const model_report* report)
{
    static const char* const must_be_zero[] = { "expert_count", "attn_logit_softcapping",
                                                "final_logit_softcapping" };
    for (size_t i = 0; i < sizeof must_be_zero / sizeof must_be_zero[0]; i++) {
        char key[128];
        key_of(m, must_be_zero[i], key);
        int64_t whole = 0;
        double real = 0.0;
        if (gguf_get_i64(m->file, key, &whole) != GGUF_OK) {
            gguf_get_f64(m->file, key, &real);
        }
        if (whole != 0 || real != 0.0) {
            return model_fail(report, "%s: %s = %g is not supported; supported is 0",
                              gguf_path(m->file), key, whole != 0 ? (double)whole : real);
        }
    }
    return true;
}

// rope.scaling: none or linear; scale is what positions are multiplied by.
static bool read_rope_scale(const model* m, double* scale, const model_report* report)
{
    char key[128];
    gguf_string type = { "none", 4 };
    key_of(m, "rope.scaling.type", key);
    const int status = gguf_get_string(m->file, key, &type);
    if (status != GGUF_OK && status != GGUF_ABSENT) {
        gguf_explain(m->file, key, status, "a string", report->text, report->bytes);
        return false;
    }
    const bool none = type.bytes == 4 && memcmp(type.data, "none", 4) == 0;
    const bool linear = type.bytes == 6 && memcmp(type.data, "linear", 6) == 0;
    if (!none && !linear) {
        char shown[64];
        return model_fail(report, "%s: %s = '%s' is not supported; supported are none, linear",
                          gguf_path(m->file), key, model_printable(type.data, type.bytes, shown));
    }
    double factor = 1.0;
    key_of(m, "rope.scale_linear", key);  // the name in older files
    if (gguf_get_f64(m->file, key, &factor) == GGUF_OK && factor == 0.0) { factor = 1.0; }
    if (linear && !read_real(m, "rope.scaling.factor", factor, &factor, report)) { return false; }
    if (!(factor > 0.0) || !isfinite(factor)) {
        return model_fail(report, "%s: %s = %g: must be positive", gguf_path(m->file), key, factor);
    }
    *scale = 1.0 / factor;
    return true;
}

// Whether a layer has the sliding window. The pattern is a period, whose last layer has none, or
// one flag a layer. Gemma 3 has period 6.
static bool read_windowed(const model* m, int layer, bool* windowed, const model_report* report)
{
    char key[128];
    key_of(m, "attention.sliding_window_pattern", key);
    int64_t period = 6;
    gguf_array array;
    if (gguf_get_array(m->file, key, &array) == GGUF_OK) {
        int64_t flag = 0;
        int status = gguf_get_bool_at(m->file, key, (uint64_t)layer, windowed);
        if (status == GGUF_WRONG_TYPE) {
            status = gguf_get_i64_at(m->file, key, (uint64_t)layer, &flag);
            *windowed = flag != 0;
        }
        if (status == GGUF_OK) { return true; }
        gguf_explain(m->file, key, status, "a flag for each layer", report->text, report->bytes);
        return false;
    }
    const int status = gguf_get_i64(m->file, key, &period);
    if ((status != GGUF_OK && status != GGUF_ABSENT) || period < 1) {
        gguf_explain(m->file, key, status == GGUF_OK ? GGUF_OUT_OF_RANGE : status,
                     "a positive period, or a flag for each layer", report->text, report->bytes);
        return false;
    }
    *windowed = layer % period < period - 1;
    return true;
}

static bool read_windows(const model* m, int layer, model_layer_geometry* g,
                         const model_report* report)
{
    bool windowed = false;
    const number_rule window = { "attention.sliding_window", 0, 0, INT32_MAX };
    if (!read_windowed(m, layer, &windowed, report) ||
        !read_number(m, &window, -1, &g->window_len, report)) {
        return false;
    }
    if (!windowed || g->window_len == 0) {
        g->window_len = 0;
        return true;
    }
    // Local layers turn by a base of their own, and a scaled context does not concern them.
    g->rope_scale = 1.0;
    return read_real(m, "rope.freq_base_swa", 10000.0, &g->rope_base, report);
}

static bool read_layer(const model* m, int layer, const model_report* report)
{
    model_layer_geometry* g = &m->layer_geometry[layer];
    const int hidden = m->geometry.hidden_len;
    const number_rule q_heads = { "attention.head_count", REQUIRED, 1, MAX_HEADS };
    const number_rule ffn = { "feed_forward_length", REQUIRED, 1, MAX_FFN };
    if (!read_number(m, &q_heads, layer, &g->num_q_heads, report) ||
        !read_number(m, &ffn, layer, &g->ffn_len, report)) {
        return false;
    }
    const int heads = g->num_q_heads;
    const number_rule kv_heads = { "attention.head_count_kv", heads, 1, heads };
    const number_rule dim_k = { "attention.key_length", hidden / heads, 1, MAX_HEAD_DIM };
    const number_rule dim_v = { "attention.value_length", hidden / heads, 1, MAX_HEAD_DIM };
    if (!read_number(m, &kv_heads, layer, &g->num_kv_heads, report) ||
        !read_number(m, &dim_k, -1, &g->head_dim, report) ||
        !read_number(m, &dim_v, -1, &g->head_dim_v, report)) {
        return false;
    }
    if (heads % g->num_kv_heads != 0) {
        return model_fail(report, "%s: layer %d has %d query heads: must be a multiple of its %d "
                          "key heads", gguf_path(m->file), layer, heads, g->num_kv_heads);
    }
    const bool wide = m->family->wide_scale_layers == m->geometry.num_layers;
    const double usual = 1.0 / sqrt(wide ? (double)hidden / heads : (double)g->head_dim);
    double softmax_scale;
    if (!read_real(m, "attention.scale", usual, &softmax_scale, report) ||
        !read_real(m, "rope.freq_base", 10000.0, &g->rope_base, report) ||
        !read_rope_scale(m, &g->rope_scale, report)) {
        return false;
    }
    g->softmax_scale = (float)softmax_scale;
    return !m->family->windows || read_windows(m, layer, g, report);
}

static void read_name(model* m)
{
    gguf_string name;
    char* out = m->geometry.name;
    if (gguf_get_string(m->file, "general.name", &name) != GGUF_OK) { return; }
    size_t n = 0;
    for (; n < name.bytes && n + 1 < sizeof m->geometry.name; n++) {
        out[n] = (unsigned char)name.data[n] < 32 || name.data[n] == 127 ? ' ' : name.data[n];
    }
    out[n] = 0;
}

static bool read_rope_dims(model* m, const model_report* report)
{
    model_geometry* g = &m->geometry;
    const number_rule dims = { "rope.dimension_count", g->layers[0].head_dim, 2, MAX_HEAD_DIM };
    if (!read_number(m, &dims, -1, &g->rope_dims, report)) { return false; }
    g->rope_halves = m->family->rope_halves;
    for (int layer = 0; layer < g->num_layers; layer++) {
        if (g->rope_dims % 2 != 0 || g->rope_dims > g->layers[layer].head_dim) {
            return model_fail(report, "%s: %s.rope.dimension_count = %d: must be even and at most "
                              "the head dim %d of layer %d", gguf_path(m->file), m->family->name,
                              g->rope_dims, g->layers[layer].head_dim, layer);
        }
    }
    return true;
}

bool model_read_geometry(model* m, const model_report* report)
{
    const number_rule num_layers = { "block_count", REQUIRED, 1, MAX_LAYERS };
    const number_rule hidden = { "embedding_length", REQUIRED, 1, MAX_HIDDEN };
    const number_rule context = { "context_length", REQUIRED, 1, INT32_MAX };
    model_geometry* g = &m->geometry;
    int context_len = 0;
    double eps = 0.0;
    if (!find_family(m, report) || !refuse_unsupported(m, report) ||
        !read_number(m, &num_layers, -1, &g->num_layers, report) ||
        !read_number(m, &hidden, -1, &g->hidden_len, report) ||
        !read_number(m, &context, -1, &context_len, report) ||
        !read_real(m, "attention.layer_norm_rms_epsilon", 0.0, &eps, report)) {
        return false;
    }
    read_name(m);
    g->context_len = context_len;
    m->norm_eps = (float)eps;
    m->embedding_scale = m->family->scaled_embedding ? sqrtf((float)g->hidden_len) : 1.0f;
    m->layer_geometry = calloc((size_t)g->num_layers, sizeof *m->layer_geometry);
    if (m->layer_geometry == NULL) { return model_fail(report, "out of memory"); }
    g->layers = m->layer_geometry;
    for (int layer = 0; layer < g->num_layers; layer++) {
        if (!read_layer(m, layer, report)) { return false; }
    }
    return read_rope_dims(m, report);
}
