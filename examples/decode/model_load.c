// model_load.c -- opens a model: finds its tensors and holds each against the geometry.
//
// Matrices stay in the mapped file. Norms, biases and RoPE factors are copied as floats: the file
// may hold them in another type and at any alignment.

#include "model_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model_floats {
    model_floats* next;
    float data[];
};

// What a search for tensors knows.
typedef struct loader {
    model* m;
    model_report report;
    const gguf_tensor** used;  // [num_used] every tensor that was taken
    size_t num_used, max_used;
    int layer;                 // -1: not in a layer
    char name[96];
} loader;

// No fewer than load_layer and load_outside take.
enum { TENSORS_OF_LAYER = 24, TENSORS_OUTSIDE = 8 };

static const char* name_of(loader* l, const char* suffix)
{
    if (l->layer < 0) {
        snprintf(l->name, sizeof l->name, "%s", suffix);
    } else {
        snprintf(l->name, sizeof l->name, "blk.%d.%s", l->layer, suffix);
    }
    return l->name;
}

// A tensor whose shape must be [cols] (rows = 1 and one dim) or [cols, rows].
static const gguf_tensor* take(loader* l, const char* suffix, int64_t cols, int64_t rows)
{
    const char* path = gguf_path(l->m->file);
    const gguf_tensor* t = gguf_require(l->m->file, name_of(l, suffix), l->report.text,
                                        l->report.bytes);
    if (t == NULL) { return NULL; }
    if (t->dims[0] != cols || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1) {
        model_fail(&l->report, "%s: tensor '%s' is [%lld, %lld, %lld, %lld]: the metadata asks for "
                   "[%lld, %lld]", path, t->name, (long long)t->dims[0], (long long)t->dims[1],
                   (long long)t->dims[2], (long long)t->dims[3], (long long)cols, (long long)rows);
        return NULL;
    }
    const int64_t row_bytes = matrix_row_bytes(t->type, cols);
    if (row_bytes <= 0 || (uint64_t)row_bytes * (uint64_t)rows != t->bytes) {
        model_fail(&l->report, "%s: tensor '%s' of type %s has rows of %lld values: must be whole "
                   "groups of its type", path, t->name, gguf_type_name(t->type), (long long)cols);
        return NULL;
    }
    if (l->num_used < l->max_used) { l->used[l->num_used++] = t; }
    return t;
}

static bool take_matrix(loader* l, const char* suffix, int64_t rows, int64_t cols, matrix* out)
{
    const gguf_tensor* t = take(l, suffix, cols, rows);
    if (t == NULL) { return false; }
    *out = (matrix){ t->type, rows, cols, t->data, matrix_row_bytes(t->type, cols) };
    return true;
}

float* model_keep_floats(model* m, int64_t count)
{
    model_floats* node = malloc(sizeof *node + (size_t)count * sizeof(float));
    if (node == NULL) { return NULL; }
    node->next = m->floats;
    m->floats = node;
    return node->data;
}

static bool take_floats(loader* l, const char* suffix, int64_t n, const float** out)
{
    const gguf_tensor* t = take(l, suffix, n, 1);
    if (t == NULL) { return false; }
    float* data = model_keep_floats(l->m, n);
    if (data == NULL) { return model_fail(&l->report, "out of memory"); }
    matrix_dequantize_row(t->type, t->data, n, data);
    *out = data;
    return true;
}

static bool take_if_there(loader* l, const char* suffix, int64_t n, const float** out)
{
    *out = NULL;
    return gguf_find(l->m->file, name_of(l, suffix)) == NULL || take_floats(l, suffix, n, out);
}

static bool load_layer(loader* l, int layer)
{
    const model_layer_geometry* g = &l->m->layer_geometry[layer];
    const model_family* family = l->m->family;
    model_layer* w = &l->m->layers[layer];
    const int64_t hidden = l->m->geometry.hidden_len, ffn = g->ffn_len;
    const int64_t q_rows = (int64_t)g->num_q_heads * g->head_dim;
    const int64_t k_rows = (int64_t)g->num_kv_heads * g->head_dim;
    const int64_t v_rows = (int64_t)g->num_kv_heads * g->head_dim_v;
    const int64_t o_cols = (int64_t)g->num_q_heads * g->head_dim_v;
    l->layer = layer;
    return take_floats(l, "attn_norm.weight", hidden, &w->attention_norm) &&
           take_matrix(l, "attn_q.weight", q_rows, hidden, &w->q) &&
           take_matrix(l, "attn_k.weight", k_rows, hidden, &w->k) &&
           take_matrix(l, "attn_v.weight", v_rows, hidden, &w->v) &&
           take_matrix(l, "attn_output.weight", hidden, o_cols, &w->o) &&
           take_if_there(l, "attn_q.bias", q_rows, &w->q_bias) &&
           take_if_there(l, "attn_k.bias", k_rows, &w->k_bias) &&
           take_if_there(l, "attn_v.bias", v_rows, &w->v_bias) &&
           take_if_there(l, "attn_output.bias", hidden, &w->o_bias) &&
           (!family->qk_norm || (take_floats(l, "attn_q_norm.weight", g->head_dim, &w->q_norm) &&
                                 take_floats(l, "attn_k_norm.weight", g->head_dim, &w->k_norm))) &&
           (!family->post_norms ||
            (take_floats(l, "post_attention_norm.weight", hidden, &w->post_attention_norm) &&
             take_floats(l, "post_ffw_norm.weight", hidden, &w->post_ffn_norm))) &&
           take_floats(l, "ffn_norm.weight", hidden, &w->ffn_norm) &&
           take_matrix(l, "ffn_gate.weight", ffn, hidden, &w->gate) &&
           take_matrix(l, "ffn_up.weight", ffn, hidden, &w->up) &&
           take_matrix(l, "ffn_down.weight", hidden, ffn, &w->down);
}

static bool load_outside(loader* l)
{
    model* m = l->m;
    const int64_t vocab = m->geometry.vocab_size, hidden = m->geometry.hidden_len;
    l->layer = -1;
    if (!take_matrix(l, "token_embd.weight", vocab, hidden, &m->embedding) ||
        !take_floats(l, "output_norm.weight", hidden, &m->output_norm) ||
        !take_if_there(l, "rope_freqs.weight", m->geometry.rope_dims / 2, &m->rope_factors)) {
        return false;
    }
    for (int i = 0; m->rope_factors != NULL && i < m->geometry.rope_dims / 2; i++) {
        if (!(m->rope_factors[i] > 0.0f)) {
            return model_fail(&l->report, "%s: rope_freqs.weight[%d] = %g: must be positive",
                              gguf_path(m->file), i, (double)m->rope_factors[i]);
        }
    }
    m->output = m->embedding;
    return gguf_find(m->file, "output.weight") == NULL ||
           take_matrix(l, "output.weight", vocab, hidden, &m->output);
}

// A tensor that nothing takes belongs to a variant that nothing here computes.
static bool refuse_unused(loader* l)
{
    const gguf* file = l->m->file;
    if (gguf_num_tensors(file) == l->num_used) { return true; }
    for (uint64_t i = 0; i < gguf_num_tensors(file); i++) {
        const gguf_tensor* t = gguf_tensor_at(file, i);
        size_t at = 0;
        while (at < l->num_used && l->used[at] != t) { at++; }
        if (at == l->num_used) {
            char shown[64];
            return model_fail(&l->report, "%s: tensor '%s' is not part of the architecture %s as "
                              "it is supported", gguf_path(file),
                              model_printable(t->name, strlen(t->name), shown),
                              l->m->family->name);
        }
    }
    return true;
}

static bool load_tensors(model* m, const model_report* report)
{
    const size_t num_layers = (size_t)m->geometry.num_layers;
    loader l = { .m = m, .report = *report, .layer = -1 };
    l.max_used = num_layers * TENSORS_OF_LAYER + TENSORS_OUTSIDE;
    l.used = calloc(l.max_used, sizeof *l.used);
    m->layers = calloc(num_layers, sizeof *m->layers);
    bool ok = l.used != NULL && m->layers != NULL;
    if (!ok) { model_fail(report, "out of memory"); }
    ok = ok && load_outside(&l);
    for (int layer = 0; ok && layer < m->geometry.num_layers; layer++) {
        ok = load_layer(&l, layer);
    }
    ok = ok && refuse_unused(&l);
    free(l.used);
    return ok;
}

// The embedding has a row for each token of the tokenizer, neither more nor fewer.
static bool load_vocabulary(model* m, const model_report* report)
{
    if (tokenizer_create(m->file, &m->tok, report->text, report->bytes) != 0) { return false; }
    m->geometry.vocab_size = tokenizer_vocab_size(m->tok);
    const gguf_tensor* t = gguf_find(m->file, "token_embd.weight");
    if (t != NULL && t->dims[1] != m->geometry.vocab_size) {
        return model_fail(report, "%s: token_embd.weight has %lld rows: must be the %d tokens of "
                          "the tokenizer", gguf_path(m->file), (long long)t->dims[1],
                          m->geometry.vocab_size);
    }
    return true;
}

static void describe_ropes(model* m)
{
    for (int i = 0; i < m->geometry.num_layers; i++) {
        const model_layer_geometry* g = &m->layer_geometry[i];
        m->layers[i].rope = (kvl_rope){ .dims = m->geometry.rope_dims,
                                        .split_halves = m->geometry.rope_halves,
                                        .base = g->rope_base,
                                        .scale = g->rope_scale,
                                        .factors = m->rope_factors };
    }
}

int model_open(const char* path, const model_options* options, model** out, char* message,
               size_t message_bytes)
{
    const model_report report = { message, message_bytes };
    *out = NULL;
    model* m = calloc(1, sizeof *m);
    if (m == NULL) {
        model_fail(&report, "out of memory");
        return 1;
    }
    if (options != NULL) { m->options = *options; }
    if (gguf_open(path, &m->file, message, message_bytes) != 0 ||
        !model_read_geometry(m, &report) || !load_vocabulary(m, &report) ||
        !load_tensors(m, &report)) {
        model_close(m);
        return 1;
    }
    describe_ropes(m);
    *out = m;
    return 0;
}

void model_close(model* m)
{
    if (m == NULL) { return; }
    while (m->floats != NULL) {
        model_floats* next = m->floats->next;
        free(m->floats);
        m->floats = next;
    }
    free(m->layers);
    free(m->layer_geometry);
    tokenizer_destroy(m->tok);
    gguf_close(m->file);
    free(m);
}

const model_geometry* model_get_geometry(const model* m) { return &m->geometry; }
const tokenizer* model_tokenizer(const model* m) { return m->tok; }
const gguf* model_file(const model* m) { return m->file; }

void model_describe_layers(const model* m, const char* const* specs, kvl_layer_desc* layers)
{
    for (int i = 0; i < m->geometry.num_layers; i++) {
        const model_layer_geometry* g = &m->layer_geometry[i];
        memset(&layers[i], 0, sizeof layers[i]);
        layers[i].num_q_heads = g->num_q_heads;
        layers[i].num_kv_heads = g->num_kv_heads;
        layers[i].head_dim = g->head_dim;
        layers[i].head_dim_v = g->head_dim_v;
        layers[i].spec = specs != NULL ? specs[i] : NULL;
        layers[i].softmax_scale = g->softmax_scale;
        layers[i].window_len = g->window_len;
        layers[i].rope = &m->layers[i].rope;
    }
}
