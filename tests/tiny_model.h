// tiny_model.h -- tiny random models of each architecture as GGUF files, for tests.
//
// The models are those of tests/oracles/tiny_models.py: random weights from a generator that both
// know. A damage says what is wrong with a file.

#ifndef KVLOOM_TESTS_TINY_MODEL_H
#define KVLOOM_TESTS_TINY_MODEL_H

#include "model.h"
#include "text_stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <criterion/criterion.h>

enum { VOCAB = 259, HIDDEN = 64, FFN = 48, CONTEXT = 256, NUM_TOKENS = 80 };

typedef struct tiny {
    const char* arch;
    int layers, q_heads, kv_heads, dim;
    float base, scale;
    bool factors, bias, qk_norm, gemma, output;
    int window;
} tiny;

static const tiny models[] = {
    { "llama", 2, 2, 1, 32, 1e4f, 0.5f, true, false, false, false, true, 0 },
    { "qwen2", 2, 2, 2, 32, 1e6f, 1.0f, false, true, false, false, false, 0 },
    { "qwen3", 2, 3, 1, 48, 1e6f, 1.0f, false, false, true, false, true, 0 },
    { "gemma3", 7, 4, 1, 32, 1e6f, 0.125f, false, false, true, true, false, 8 },
};
enum { NUM_MODELS = 4 };

// What is wrong with a file. Zero: nothing.
typedef struct damage {
    const char* arch;       // general.architecture
    const char* missing;    // a tensor
    const char* reshaped;   // a tensor whose last dim is one less
    const char* retyped;    // a tensor
    int type;               // of `retyped`, by its number
    const char* added;      // a tensor that nobody asks for
    const char* poisoned;   // a tensor whose first value is NaN
    const char* key;        // integer metadata, after the architecture: replaced or added
    uint32_t value;
    const char* text_key;   // string metadata, after the architecture
    const char* text;
    const char* unset;      // metadata that is left out
    int cut;                // bytes that are missing at the end
} damage;

typedef struct writer {
    text_bytes head, data;
    const tiny* m;
    const damage* wrong;
    uint64_t num_entries, num_tensors;
    text_bytes infos;
} writer;

static inline void put(text_bytes* out, const void* data, size_t bytes)
{
    cr_assert(text_bytes_add(out, data, bytes));
}

static inline void put_u32(text_bytes* out, uint32_t value) { put(out, &value, sizeof value); }
static inline void put_u64(text_bytes* out, uint64_t value) { put(out, &value, sizeof value); }

static inline void put_string(text_bytes* out, const char* text)
{
    put_u64(out, strlen(text));
    put(out, text, strlen(text));
}

// Begins an entry; false if the damage leaves it out.
static inline bool begin_entry(writer* w, const char* key, uint32_t type)
{
    if (w->wrong->unset != NULL && strcmp(key, w->wrong->unset) == 0) { return false; }
    put_string(&w->head, key);
    put_u32(&w->head, type);
    w->num_entries++;
    return true;
}

static inline void entry_string(writer* w, const char* key, const char* text)
{
    if (begin_entry(w, key, GGUF_STRING)) { put_string(&w->head, text); }
}

static inline void entry_u32(writer* w, const char* key, uint32_t value)
{
    if (begin_entry(w, key, GGUF_U32)) { put_u32(&w->head, value); }
}

// Keys of the architecture; `value` gives way to the damage's.
static inline void arch_u32(writer* w, const char* suffix, uint32_t value)
{
    char key[96];
    const damage* wrong = w->wrong;
    snprintf(key, sizeof key, "%s.%s", w->m->arch, suffix);
    const bool replaced = wrong->key != NULL && strcmp(wrong->key, suffix) == 0;
    entry_u32(w, key, replaced ? wrong->value : value);
}

static inline void arch_f32(writer* w, const char* suffix, float value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", w->m->arch, suffix);
    if (begin_entry(w, key, GGUF_F32)) { put(&w->head, &value, sizeof value); }
}

static inline void arch_string(writer* w, const char* suffix, const char* text)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", w->m->arch, suffix);
    entry_string(w, key, text);
}

static inline bool is_named(const char* name, const char* wanted)
{
    return wanted != NULL && strcmp(name, wanted) == 0;
}

static inline void write_geometry(writer* w)
{
    const tiny* m = w->m;
    const damage* wrong = w->wrong;
    entry_string(w, "general.architecture", wrong->arch != NULL ? wrong->arch : m->arch);
    arch_u32(w, "block_count", (uint32_t)m->layers);
    arch_u32(w, "context_length", CONTEXT);
    arch_u32(w, "embedding_length", HIDDEN);
    arch_u32(w, "feed_forward_length", FFN);
    arch_u32(w, "attention.head_count", (uint32_t)m->q_heads);
    arch_u32(w, "attention.head_count_kv", (uint32_t)m->kv_heads);
    arch_u32(w, "attention.key_length", (uint32_t)m->dim);
    arch_u32(w, "attention.value_length", (uint32_t)m->dim);
    arch_f32(w, "attention.layer_norm_rms_epsilon", 1.0f / 131072.0f);
    arch_f32(w, "rope.freq_base", m->base);
    if (m->scale != 1.0f) {
        arch_string(w, "rope.scaling.type", "linear");
        arch_f32(w, "rope.scaling.factor", 1.0f / m->scale);
    }
    if (m->window > 0) { arch_u32(w, "attention.sliding_window", (uint32_t)m->window); }
    if (is_named("expert_count", wrong->key)) { arch_u32(w, wrong->key, 0); }
    if (wrong->text_key != NULL) { arch_string(w, wrong->text_key, wrong->text); }
}

static inline void write_vocabulary(writer* w)
{
    const int32_t types[3] = { 2, 3, 3 }, byte_type = 6;
    entry_string(w, "tokenizer.ggml.model", "llama");
    entry_u32(w, "tokenizer.ggml.bos_token_id", 1);
    entry_u32(w, "tokenizer.ggml.eos_token_id", 2);
    entry_u32(w, "tokenizer.ggml.unknown_token_id", 0);
    begin_entry(w, "tokenizer.ggml.tokens", GGUF_ARRAY);
    put_u32(&w->head, GGUF_STRING);
    put_u64(&w->head, VOCAB);
    put_string(&w->head, "<unk>");
    put_string(&w->head, "<s>");
    put_string(&w->head, "</s>");
    for (unsigned i = 0; i < 256; i++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", i);
        put_string(&w->head, text);
    }
    begin_entry(w, "tokenizer.ggml.scores", GGUF_ARRAY);
    put_u32(&w->head, GGUF_F32);
    put_u64(&w->head, VOCAB);
    for (int i = 0; i < VOCAB; i++) { put_u32(&w->head, 0); }
    begin_entry(w, "tokenizer.ggml.token_type", GGUF_ARRAY);
    put_u32(&w->head, GGUF_I32);
    put_u64(&w->head, VOCAB);
    put(&w->head, types, sizeof types);
    for (int i = 0; i < 256; i++) { put(&w->head, &byte_type, sizeof byte_type); }
}

static inline bool ends_with(const char* text, const char* end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

// The generator of tiny_models.py.
static inline float weight_of(const char* name, uint64_t* state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    const float value = (float)((int)(*state >> 48) - 32768) / 32768.0f;
    if (strcmp(name, "rope_freqs.weight") == 0) { return 1.5f + value / 2; }
    if (ends_with(name, "norm.weight")) { return 1.0f + value / 4; }
    if (ends_with(name, "bias") || strcmp(name, "token_embd.weight") == 0) { return value; }
    return value / 2;
}

// A tensor of `rows` rows; rows = 0: one dim.
static inline void write_tensor(writer* w, const char* name, int64_t cols, int64_t rows)
{
    const damage* wrong = w->wrong;
    uint64_t state = 14695981039346656037u;
    if (is_named(name, wrong->missing)) { return; }
    const int64_t less = is_named(name, wrong->reshaped) ? 1 : 0;
    put_string(&w->infos, name);
    put_u32(&w->infos, rows > 0 ? 2 : 1);
    put_u64(&w->infos, (uint64_t)(rows > 0 ? cols : cols - less));
    if (rows > 0) { put_u64(&w->infos, (uint64_t)(rows - less)); }
    put_u32(&w->infos, is_named(name, wrong->retyped) ? (uint32_t)wrong->type : GGUF_TENSOR_F32);
    put_u64(&w->infos, w->data.count);
    w->num_tensors++;
    for (const char* c = name; *c != 0; c++) {
        state = (state ^ (unsigned char)*c) * 1099511628211u;
    }
    for (int64_t i = 0; i < cols * (rows > 0 ? rows : 1); i++) {
        float value = weight_of(name, &state);
        if (i == 0 && is_named(name, wrong->poisoned)) { value = NAN; }
        put(&w->data, &value, sizeof value);
    }
    while (w->data.count % 32 != 0) { put(&w->data, "", 1); }
}

static inline void write_layer(writer* w, int layer)
{
    const tiny* m = w->m;
    const int q = m->q_heads * m->dim, kv = m->kv_heads * m->dim;
    const struct {
        const char* name;
        int cols, rows;
        bool there;
    } tensors[] = {
        { "attn_norm.weight", HIDDEN, 0, true },
        { "attn_q.weight", HIDDEN, q, true },
        { "attn_k.weight", HIDDEN, kv, true },
        { "attn_v.weight", HIDDEN, kv, true },
        { "attn_output.weight", q, HIDDEN, true },
        { "ffn_norm.weight", HIDDEN, 0, true },
        { "ffn_gate.weight", HIDDEN, FFN, true },
        { "ffn_up.weight", HIDDEN, FFN, true },
        { "ffn_down.weight", FFN, HIDDEN, true },
        { "attn_q.bias", q, 0, m->bias },
        { "attn_k.bias", kv, 0, m->bias },
        { "attn_v.bias", kv, 0, m->bias },
        { "attn_q_norm.weight", m->dim, 0, m->qk_norm },
        { "attn_k_norm.weight", m->dim, 0, m->qk_norm },
        { "post_attention_norm.weight", HIDDEN, 0, m->gemma },
        { "post_ffw_norm.weight", HIDDEN, 0, m->gemma },
    };
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s", layer, tensors[i].name);
        if (tensors[i].there) { write_tensor(w, name, tensors[i].cols, tensors[i].rows); }
    }
}

// Writes a model and returns its path, which the caller frees after removing the file.
static inline char* write_model(const tiny* m, const damage* wrong)
{
    static const damage nothing;
    writer w = { .m = m, .wrong = wrong != NULL ? wrong : &nothing };
    write_geometry(&w);
    write_vocabulary(&w);
    write_tensor(&w, "token_embd.weight", HIDDEN, VOCAB);
    write_tensor(&w, "output_norm.weight", HIDDEN, 0);
    if (m->output) { write_tensor(&w, "output.weight", HIDDEN, VOCAB); }
    if (m->factors) { write_tensor(&w, "rope_freqs.weight", m->dim / 2, 0); }
    for (int layer = 0; layer < m->layers; layer++) { write_layer(&w, layer); }
    if (w.wrong->added != NULL) { write_tensor(&w, w.wrong->added, HIDDEN, 0); }
    char* path = strdup(KVLOOM_TEST_SCRATCH "/model-XXXXXX");
    const int handle = mkstemp(path);
    FILE* file = handle >= 0 ? fdopen(handle, "wb") : NULL;
    cr_assert_not_null(file);
    text_bytes all = { NULL, 0, 0 };
    put(&all, "GGUF", 4);
    put_u32(&all, 3);
    put_u64(&all, w.num_tensors);
    put_u64(&all, w.num_entries);
    put(&all, w.head.data, w.head.count);
    put(&all, w.infos.data, w.infos.count);
    while (all.count % 32 != 0) { put(&all, "", 1); }
    put(&all, w.data.data, w.data.count);
    const size_t bytes = all.count - (size_t)w.wrong->cut;
    cr_assert_eq(fwrite(all.data, 1, bytes, file), bytes);
    cr_assert_eq(fclose(file), 0);
    text_bytes_free(&all);
    text_bytes_free(&w.head);
    text_bytes_free(&w.infos);
    text_bytes_free(&w.data);
    return path;
}

static inline model* open_model(const tiny* m, const damage* wrong)
{
    char message[512] = "";
    model* opened = NULL;
    char* path = write_model(m, wrong);
    cr_assert_eq(model_open(path, NULL, &opened, message, sizeof message), 0, "%s", message);
    unlink(path);
    free(path);
    return opened;
}

static inline kvl_context* open_context(void)
{
    kvl_context_desc desc = { .target = KVL_TARGET_REFERENCE, .num_threads = 2, .cache_dir = "" };
    kvl_context* ctx = NULL;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    return ctx;
}

static inline model_session* open_session(const model* m, model_session_desc desc)
{
    char message[512] = "";
    model_session* s = NULL;
    cr_assert_eq(model_session_create(m, &desc, &s, message, sizeof message), 0, "%s", message);
    return s;
}

static inline void fill_tokens(int32_t ids[NUM_TOKENS])
{
    ids[0] = 1;
    for (int i = 1; i < NUM_TOKENS; i++) { ids[i] = 3 + ((i - 1) * 37 + 11) % 256; }
}

#endif
