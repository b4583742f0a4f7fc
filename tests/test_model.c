// test_model.c -- examples/decode: the forward pass of each family, what it refuses, and its parts.
//
// The models are those of tests/oracles/tiny_models.py: random weights from a generator that both
// know, written here as GGUF. Expected logits are tests/oracles/forward.py's, in float64, which
// make_tiny_models.py --llama compares with llama.cpp (largest difference 2e-3, where its GELU is a
// table of f16 values).

#include "cache_specs.h"
#include "conversation.h"
#include "model.h"
#include "sampler.h"
#include "text_stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <criterion/criterion.h>

// THE TINY MODELS

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

static void put(text_bytes* out, const void* data, size_t bytes)
{
    cr_assert(text_bytes_add(out, data, bytes));
}

static void put_u32(text_bytes* out, uint32_t value) { put(out, &value, sizeof value); }
static void put_u64(text_bytes* out, uint64_t value) { put(out, &value, sizeof value); }

static void put_string(text_bytes* out, const char* text)
{
    put_u64(out, strlen(text));
    put(out, text, strlen(text));
}

// Begins an entry; false if the damage leaves it out.
static bool begin_entry(writer* w, const char* key, uint32_t type)
{
    if (w->wrong->unset != NULL && strcmp(key, w->wrong->unset) == 0) { return false; }
    put_string(&w->head, key);
    put_u32(&w->head, type);
    w->num_entries++;
    return true;
}

static void entry_string(writer* w, const char* key, const char* text)
{
    if (begin_entry(w, key, GGUF_STRING)) { put_string(&w->head, text); }
}

static void entry_u32(writer* w, const char* key, uint32_t value)
{
    if (begin_entry(w, key, GGUF_U32)) { put_u32(&w->head, value); }
}

// Keys of the architecture; `value` gives way to the damage's.
static void arch_u32(writer* w, const char* suffix, uint32_t value)
{
    char key[96];
    const damage* wrong = w->wrong;
    snprintf(key, sizeof key, "%s.%s", w->m->arch, suffix);
    const bool replaced = wrong->key != NULL && strcmp(wrong->key, suffix) == 0;
    entry_u32(w, key, replaced ? wrong->value : value);
}

static void arch_f32(writer* w, const char* suffix, float value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", w->m->arch, suffix);
    if (begin_entry(w, key, GGUF_F32)) { put(&w->head, &value, sizeof value); }
}

static void arch_string(writer* w, const char* suffix, const char* text)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", w->m->arch, suffix);
    entry_string(w, key, text);
}

static bool is_named(const char* name, const char* wanted)
{
    return wanted != NULL && strcmp(name, wanted) == 0;
}

static void write_geometry(writer* w)
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

static void write_vocabulary(writer* w)
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

static bool ends_with(const char* text, const char* end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

// The generator of tiny_models.py.
static float weight_of(const char* name, uint64_t* state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    const float value = (float)((int)(*state >> 48) - 32768) / 32768.0f;
    if (strcmp(name, "rope_freqs.weight") == 0) { return 1.5f + value / 2; }
    if (ends_with(name, "norm.weight")) { return 1.0f + value / 4; }
    if (ends_with(name, "bias") || strcmp(name, "token_embd.weight") == 0) { return value; }
    return value / 2;
}

// A tensor of `rows` rows; rows = 0: one dim.
static void write_tensor(writer* w, const char* name, int64_t cols, int64_t rows)
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

static void write_layer(writer* w, int layer)
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
static char* write_model(const tiny* m, const damage* wrong)
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

static model* open_model(const tiny* m, const damage* wrong)
{
    char message[512] = "";
    model* opened = NULL;
    char* path = write_model(m, wrong);
    cr_assert_eq(model_open(path, NULL, &opened, message, sizeof message), 0, "%s", message);
    unlink(path);
    free(path);
    return opened;
}

static kvl_context* open_context(void)
{
    kvl_context_desc desc = { .target = KVL_TARGET_REFERENCE, .num_threads = 2, .cache_dir = "" };
    kvl_context* ctx = NULL;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    return ctx;
}

static model_session* open_session(const model* m, model_session_desc desc)
{
    char message[512] = "";
    model_session* s = NULL;
    cr_assert_eq(model_session_create(m, &desc, &s, message, sizeof message), 0, "%s", message);
    return s;
}

static void fill_tokens(int32_t ids[NUM_TOKENS])
{
    ids[0] = 1;
    for (int i = 1; i < NUM_TOKENS; i++) { ids[i] = 3 + ((i - 1) * 37 + 11) % 256; }
}

// FORWARD PASS

static void read_expected(const char* arch, double expected[VOCAB])
{
    FILE* file = fopen(KVLOOM_TEST_ROOT "/tests/fixtures/model_logits.txt", "r");
    char name[16];
    int index = 0, count = 0;
    double value = 0.0;
    cr_assert_not_null(file);
    while (fscanf(file, "%15s %d %lf", name, &index, &value) == 3) {
        if (strcmp(name, arch) != 0) { continue; }
        cr_assert(index >= 0 && index < VOCAB);
        expected[index] = value;
        count++;
    }
    fclose(file);
    cr_assert_eq(count, VOCAB);
}

static void check_logits(const char* arch, const float* logits, double bound, const char* what)
{
    double expected[VOCAB], worst = 0.0;
    read_expected(arch, expected);
    for (int i = 0; i < VOCAB; i++) {
        const double error = fabs((double)logits[i] - expected[i]);
        worst = error > worst || isnan(error) ? error : worst;
    }
    cr_expect(worst <= bound, "%s, %s: logits are off by %g: at most %g", arch, what, worst, bound);
}

// Breaks when a family's arithmetic changes: norms, biases, RoPE order, base and scale, windows.
// Within one batch nothing is rounded below float32: 32 sums of 100 terms leave about 1e-5.
Test(model, one_batch_is_the_forward_pass)
{
    int32_t ids[NUM_TOKENS];
    float logits[VOCAB];
    fill_tokens(ids);
    for (int i = 0; i < NUM_MODELS; i++) {
        kvl_context* ctx = open_context();
        model* m = open_model(&models[i], NULL);
        model_session* s = open_session(m, (model_session_desc){ .ctx = ctx });
        cr_assert_eq(model_prefill(s, ids, NUM_TOKENS, logits), MODEL_OK);
        cr_expect_eq(model_session_length(s), NUM_TOKENS);
        check_logits(models[i].arch, logits, 2e-4, "one batch");
        model_session_free(s);
        model_close(m);
        kvl_context_destroy(ctx);
    }
}

// Breaks when a way through the cache is wrong: restored past, attended past, single steps. Rows
// are then f16: with scores that reach 20, their last bit moves a logit by some hundredths.
Test(model, every_split_is_the_same_pass)
{
    static const struct {
        const char* what;
        int batch_len, steps;
        bool through_cache;
    } ways[] = {
        { "past restored", 40, 0, false },
        { "past attended", 20, 0, false },
        { "ends in steps", 64, 9, false },
        { "rows through the cache", 0, 0, true },
    };
    int32_t ids[NUM_TOKENS];
    float logits[VOCAB];
    fill_tokens(ids);
    kvl_context* ctx = open_context();
    for (int i = 0; i < NUM_MODELS; i++) {
        model* m = open_model(&models[i], NULL);
        for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
            model_session* s = open_session(
                m, (model_session_desc){ .ctx = ctx, .batch_len = ways[way].batch_len });
            const model_run run = { .ids = ids,
                                    .count = NUM_TOKENS - ways[way].steps,
                                    .logits = logits,
                                    .rows_through_cache = ways[way].through_cache };
            cr_assert_eq(model_run_tokens(s, &run), MODEL_OK);
            for (int64_t at = run.count; at < NUM_TOKENS; at++) {
                cr_assert_eq(model_step(s, ids[at], logits), MODEL_OK);
            }
            check_logits(models[i].arch, logits, 0.08, ways[way].what);
            model_session_free(s);
        }
        model_close(m);
    }
    kvl_context_destroy(ctx);
}

// Breaks when logits_of_all mixes up rows or batches.
Test(model, logits_of_all_rows)
{
    int32_t ids[NUM_TOKENS];
    float last[VOCAB];
    float* all = calloc((size_t)NUM_TOKENS * VOCAB, sizeof *all);
    cr_assert_not_null(all);
    fill_tokens(ids);
    kvl_context* ctx = open_context();
    model* m = open_model(&models[2], NULL);
    model_session* s = open_session(m, (model_session_desc){ .ctx = ctx, .batch_len = 50 });
    const model_run run = { .ids = ids, .count = NUM_TOKENS, .logits = all, .logits_of_all = true };
    cr_assert_eq(model_run_tokens(s, &run), MODEL_OK);
    for (int count = 3; count <= NUM_TOKENS; count += 46) {  // within and after the first batch
        cr_assert_eq(model_session_reset(s), MODEL_OK);
        cr_assert_eq(model_prefill(s, ids, count, last), MODEL_OK);
        for (int i = 0; i < VOCAB; i++) {
            cr_expect_float_eq(all[(count - 1) * VOCAB + i], last[i], 1e-3);
        }
    }
    free(all);
    model_session_free(s);
    model_close(m);
    kvl_context_destroy(ctx);
}

// Breaks when a fallback or a per-layer rule of the geometry changes.
Test(model, geometry)
{
    const damage no_dims = { .unset = "llama.attention.key_length" };
    model* m = open_model(&models[3], NULL);
    const model_geometry* g = model_get_geometry(m);
    cr_expect_str_eq(g->architecture, "gemma3");
    cr_expect(g->num_layers == 7 && g->hidden_len == HIDDEN && g->vocab_size == VOCAB);
    for (int layer = 0; layer < 7; layer++) {
        cr_expect_eq(g->layers[layer].window_len, layer == 5 ? 0 : 8);
        cr_expect_float_eq(g->layers[layer].rope_base, layer == 5 ? 1e6 : 1e4, 1e-3);
        cr_expect_float_eq(g->layers[layer].rope_scale, layer == 5 ? 0.125 : 1.0, 1e-9);
    }
    model_close(m);
    m = open_model(&models[0], &no_dims);  // hidden_len / num_q_heads = 32
    cr_expect_eq(model_get_geometry(m)->layers[0].head_dim, 32);
    model_close(m);
}

typedef struct seen_rows {
    int64_t calls, rows[2];
    bool ordered;
} seen_rows;

static void see_rows(void* user, const model_rows* rows)
{
    seen_rows* seen = user;
    seen->ordered = seen->ordered && rows->layer == seen->calls % 2 &&
                    rows->first_position == seen->rows[rows->layer] && isfinite(rows->q[0]) &&
                    isfinite(rows->k[0]) && isfinite(rows->v[0]);
    seen->rows[rows->layer] += rows->num_rows;
    seen->calls++;
}

// Breaks when calibration would miss rows or see them under another position.
Test(model, hook_sees_every_row)
{
    int32_t ids[NUM_TOKENS];
    seen_rows seen = { .ordered = true };
    fill_tokens(ids);
    kvl_context* ctx = open_context();
    model* m = open_model(&models[0], NULL);
    model_session* s = open_session(
        m, (model_session_desc){ .ctx = ctx, .batch_len = 32, .on_rows = see_rows, .user = &seen });
    cr_assert_eq(model_prefill(s, ids, NUM_TOKENS - 1, NULL), MODEL_OK);
    cr_assert_eq(model_step(s, 5, NULL), MODEL_OK);
    cr_expect(seen.ordered && seen.rows[0] == NUM_TOKENS && seen.rows[1] == NUM_TOKENS);
    cr_expect_eq(seen.calls, 8);  // batches of 32, 32, 15 and 1
    model_session_free(s);
    model_close(m);
    kvl_context_destroy(ctx);
}

// WHAT IS REFUSED

// Breaks when a call that cannot be served changes the session.
Test(model, bad_calls_leave_the_session)
{
    const int32_t ids[5] = { 1, 20, 30, 40, VOCAB };
    float before[VOCAB], after[VOCAB];
    kvl_context* ctx = open_context();
    model* m = open_model(&models[1], NULL);
    model_session* s = open_session(m, (model_session_desc){ .ctx = ctx, .context_len = 4 });
    cr_assert_eq(model_prefill(s, ids, 3, before), MODEL_OK);
    cr_expect_eq(model_run_tokens(s, &(model_run){ .ids = ids + 4, .count = 1 }), MODEL_FAILED);
    cr_expect(strstr(model_session_message(s), "259: must be from 0 to 258") != NULL);
    cr_expect_eq(model_prefill(s, ids, 2, NULL), MODEL_FULL);
    cr_expect(strstr(model_session_message(s), "context of 4 tokens") != NULL);
    cr_expect_eq(model_session_length(s), 3);
    cr_assert_eq(model_step(s, 40, after), MODEL_OK);
    cr_assert_eq(model_session_reset(s), MODEL_OK);
    cr_assert_eq(model_prefill(s, ids, 3, before), MODEL_OK);
    cr_assert_eq(model_step(s, 40, before), MODEL_OK);
    cr_expect_arr_eq(before, after, sizeof before);
    model_session_free(s);
    model_close(m);
    kvl_context_destroy(ctx);
}

// Breaks when values that are not finite pass for a model's answer.
Test(model, weights_that_are_not_finite)
{
    static const char* const poisoned[] = { "blk.1.attn_k.weight", "blk.1.attn_q.weight",
                                            "output_norm.weight" };
    const int32_t ids[3] = { 1, 20, 30 };
    float logits[VOCAB];
    kvl_context* ctx = open_context();
    for (size_t i = 0; i < sizeof poisoned / sizeof poisoned[0]; i++) {
        const damage wrong = { .poisoned = poisoned[i] };
        model* m = open_model(&models[0], &wrong);
        model_session* s = open_session(m, (model_session_desc){ .ctx = ctx });
        cr_expect_eq(model_prefill(s, ids, 3, logits), MODEL_FAILED);
        cr_expect(strstr(model_session_message(s), "finite") != NULL, "%s",
                  model_session_message(s));
        cr_expect_eq(model_step(s, 7, logits), MODEL_FAILED);
        cr_expect(strstr(model_session_message(s), "must be reset") != NULL);
        cr_expect_eq(model_session_reset(s), MODEL_OK);
        cr_expect_eq(model_session_length(s), 0);
        model_session_free(s);
        model_close(m);
    }
    kvl_context_destroy(ctx);
}

// Breaks when a file that cannot be served opens, or the message does not name the trouble.
Test(model, files_that_are_refused)
{
    static const struct {
        damage wrong;
        const char* said;
    } cases[] = {
        { { .arch = "mamba" }, "architecture 'mamba' is not supported; supported are llama" },
        { { .arch = "a\nb" }, "architecture 'a?b'" },
        { { .missing = "blk.1.ffn_up.weight" }, "blk.1.ffn_up.weight" },
        { { .missing = "output_norm.weight" }, "output_norm.weight" },
        { { .reshaped = "blk.0.attn_k.weight" }, "blk.0.attn_k.weight" },
        { { .reshaped = "blk.1.ffn_norm.weight" }, "blk.1.ffn_norm.weight" },
        { { .reshaped = "token_embd.weight" }, "258 rows: must be the 259 tokens" },
        { { .retyped = "blk.0.attn_q.weight", .type = 16 }, "blk.0.attn_q.weight" },
        { { .added = "blk.0.attn_sinks" }, "'blk.0.attn_sinks' is not part of" },
        { { .key = "block_count", .value = 0 }, "block_count = 0: must be from 1" },
        { { .key = "block_count", .value = 3 }, "blk.2.attn_norm.weight" },
        { { .key = "block_count", .value = 4000000000u }, "block_count" },
        { { .key = "embedding_length", .value = 128 }, "token_embd.weight" },
        { { .key = "attention.head_count", .value = 0 }, "attention.head_count of layer 0 = 0" },
        { { .key = "attention.head_count_kv", .value = 0 }, "head_count_kv of layer 0 = 0" },
        { { .key = "attention.key_length", .value = 31 }, "must be even" },
        { { .key = "expert_count", .value = 8 }, "expert_count = 8 is not supported" },
        { { .text_key = "rope.freq_base", .text = "x" }, "rope.freq_base" },
        { { .unset = "llama.context_length" }, "llama.context_length" },
        { { .unset = "llama.attention.head_count" }, "llama.attention.head_count" },
        { { .unset = "general.architecture" }, "general.architecture" },
        { { .unset = "tokenizer.ggml.model" }, "tokenizer.ggml.model" },
        { { .cut = 1000 }, "blk.1" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char message[512] = "";
        model* m = NULL;
        char* path = write_model(&models[0], &cases[i].wrong);
        cr_expect_neq(model_open(path, NULL, &m, message, sizeof message), 0, "%s", cases[i].said);
        cr_expect_null(m);
        cr_expect(strstr(message, cases[i].said) != NULL && strchr(message, '\n') == NULL,
                  "'%s' is not in '%s'", cases[i].said, message);
        model_close(m);
        unlink(path);
        free(path);
    }
}

// Breaks when a scaling of RoPE that nothing computes is taken for none.
Test(model, rope_scaling_is_named)
{
    const damage yarn = { .text_key = "rope.scaling.type", .text = "yarn" };
    char message[512] = "";
    model* m = NULL;
    char* path = write_model(&models[1], &yarn);
    cr_expect_neq(model_open(path, NULL, &m, message, sizeof message), 0);
    cr_expect(strstr(message, "'yarn' is not supported; supported are none, linear") != NULL, "%s",
              message);
    unlink(path);
    free(path);
}

// Breaks when a spec that does not fit does not say in which layer.
Test(model, spec_that_does_not_fit)
{
    const char* specs[2] = { NULL, "nonsense:k2" };
    char message[512] = "";
    kvl_context* ctx = open_context();
    model* m = open_model(&models[0], NULL);
    model_session* s = NULL;
    const model_session_desc desc = { .ctx = ctx, .specs = specs };
    cr_expect_neq(model_session_create(m, &desc, &s, message, sizeof message), 0);
    cr_expect_null(s);
    cr_expect(strstr(message, "layer 1") != NULL && strstr(message, "nonsense") != NULL, "%s",
              message);
    model_close(m);
    kvl_context_destroy(ctx);
}

// PARTS OF THE PROGRAM

// Breaks when --cache arguments are joined differently than the help says.
Test(decode_parts, cache_specs)
{
    static const struct {
        const char* args[3];
        const char* first;  // of layer 0
        const char* last;   // of layer 3
    } cases[] = {
        { { NULL }, "f16", "f16" },
        { { "kivi:k2,v2,g32" }, "kivi:k2,v2,g32", "kivi:k2,v2,g32" },
        { { "0-1:q8_0" }, "q8_0", "f16" },
        { { "q4_0", "3:f16" }, "q4_0", "f16" },
        { { "v=rtn:b4,g32" }, "f16/rtn:v4,vg32", "f16/rtn:v4,vg32" },
        { { "kivi:b2,g32,sink=4", "k=q8_0" }, "q8_0/kivi:v2,vg32,sink=4",
          "q8_0/kivi:v2,vg32,sink=4" },
        { { "kivi:k3,v2,k.meta=f16,meta=8bit", "0-2:v=f16" }, "kivi/f16:k3,k.meta=f16,k.meta=8bit",
          "kivi:k3,v2,k.meta=f16,meta=8bit" },
        { { "k=kivi:k2,sink=4", "v=rtn:v4,sink=8" }, "kivi/rtn:k2,v4,sink=8",
          "kivi/rtn:k2,v4,sink=8" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char message[256] = "";
        cache_specs specs;
        int count = 0;
        while (count < 3 && cases[i].args[count] != NULL) { count++; }
        cr_assert_eq(cache_specs_create(cases[i].args, count, 4, &specs, message, sizeof message),
                     0, "%s", message);
        cr_expect_str_eq(specs.specs[0], cases[i].first);
        cr_expect_str_eq(specs.specs[3], cases[i].last);
        cache_specs_free(&specs);
    }
}

// Breaks when a wrong --cache argument is taken, or its message does not name it.
Test(decode_parts, cache_specs_that_are_refused)
{
    static const char* const wrong[] = { "2-9:f16", "4:f16", "3-1:f16", "2f16", "", "k=", "0:" };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char message[256] = "";
        cache_specs specs;
        cr_expect_neq(cache_specs_create(&wrong[i], 1, 4, &specs, message, sizeof message), 0);
        cr_expect(strstr(message, wrong[i]) != NULL, "%s", message);
        cr_expect_null(specs.specs);
    }
}

static sampler* open_sampler(sampler_options options, int vocab_size)
{
    sampler* s = sampler_create(&options, vocab_size);
    cr_assert_not_null(s);
    return s;
}

// Breaks when ties, bounds or values that are not finite are treated otherwise.
Test(decode_parts, sampler_by_hand)
{
    float tie[5] = { 1.0f, 3.0f, 2.0f, 3.0f, 0.0f };
    float broken[5] = { 1.0f, NAN, 2.0f, 3.0f, 0.0f };
    sampler* s = open_sampler((sampler_options){ 0.0f, 40, 0.95f, 1.0f, 1 }, 5);
    cr_expect_eq(sampler_pick(s, tie), 1);
    cr_expect_eq(sampler_pick(s, broken), -1);
    sampler_destroy(s);
    // The best token is taken back to 3 / 2 by the penalty, once although it came twice.
    float recent[5] = { 1.0f, 3.0f, 2.0f, -1.0f, 0.0f };
    s = open_sampler((sampler_options){ 0.0f, 0, 1.0f, 2.0f, 1 }, 5);
    sampler_accept(s, 1);
    sampler_accept(s, 3);
    sampler_accept(s, 1);
    cr_expect_eq(sampler_pick(s, recent), 2);
    cr_expect_float_eq(recent[1], 1.5f, 1e-6);
    cr_expect_float_eq(recent[3], -2.0f, 1e-6);
    sampler_destroy(s);
    // Probabilities 4/7, 2/7, 1/7: 0.8 of them are in the first two.
    for (uint64_t seed = 0; seed < 200; seed++) {
        float logits[3] = { 0.0f, 2 * 0.69314718f, 0.69314718f };
        s = open_sampler((sampler_options){ 1.0f, 0, 0.8f, 1.0f, seed }, 3);
        cr_expect_neq(sampler_pick(s, logits), 0);
        sampler_destroy(s);
        s = open_sampler((sampler_options){ 1.0f, 1, 1.0f, 1.0f, seed }, 3);
        cr_expect_eq(sampler_pick(s, logits), 1);
        sampler_destroy(s);
    }
}

// Breaks when draws do not follow the probabilities, or a seed does not repeat. 30000 draws of
// probability 1/4: the standard deviation is 75.
Test(decode_parts, sampler_follows_probabilities)
{
    int counts[2][2] = { { 0, 0 }, { 0, 0 } };
    for (int round = 0; round < 2; round++) {
        sampler* s = open_sampler((sampler_options){ 0.5f, 40, 1.0f, 1.0f, 42 }, 2);
        for (int i = 0; i < 30000; i++) {
            float logits[2] = { 0.0f, 0.5f * 1.0986123f };  // at temperature 0.5: odds 1 to 3
            counts[round][sampler_pick(s, logits)]++;
        }
        sampler_destroy(s);
    }
    cr_expect(abs(counts[0][0] - 7500) < 5 * 75, "%d", counts[0][0]);
    cr_expect_eq(counts[0][0], counts[1][0]);
}

// Breaks when a character is split, or bytes that are none pass.
Test(decode_parts, text_stream)
{
    static const struct {
        const char* parts[4];
        const char* out;
    } cases[] = {
        { { "a\xc3", "\xa9", "b" }, "a\xc3\xa9" "b" },
        { { "\xf0\x9f", "\x98", "\x80" }, "\xf0\x9f\x98\x80" },
        { { "\xf0\x9f", "x" }, "\xef\xbf\xbd\xef\xbf\xbdx" },
        { { "\xff" }, "\xef\xbf\xbd" },
        { { "\xed\xa0\x80" }, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },  // a surrogate
        { { "\xc0\xaf" }, "\xef\xbf\xbd\xef\xbf\xbd" },                  // overlong
        { { "\xe2\x82" }, "\xef\xbf\xbd\xef\xbf\xbd" },                  // ends too early
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        text_stream stream = { .out = NULL };
        for (int part = 0; part < 4 && cases[i].parts[part] != NULL; part++) {
            cr_assert(text_stream_add(&stream, cases[i].parts[part],
                                      strlen(cases[i].parts[part])));
        }
        cr_assert(text_stream_end(&stream));
        cr_expect_str_eq(stream.text.data, cases[i].out);
        text_bytes_free(&stream.text);
    }
}

// Breaks when a turn repeats or drops text that the session has run.
Test(decode_parts, conversation)
{
    conversation talk = { .chat = { .family = CHAT_CHATML } };
    char message[256] = "";
    char* text = NULL;
    bool restart = true;
    text_bytes answer = { NULL, 0, 0 };
    cr_assert_eq(conversation_ask(&talk, "Hi", &text, &restart, message, sizeof message), 0);
    cr_expect_not(restart);
    cr_expect_str_eq(text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    free(text);
    cr_assert(text_bytes_add(&answer, "Yes?", 4));
    cr_assert(conversation_answer(&talk, &answer));
    cr_assert_eq(conversation_ask(&talk, "No", &text, &restart, message, sizeof message), 0);
    cr_expect_not(restart);
    cr_expect_str_eq(text, "<|im_end|>\n<|im_start|>user\nNo<|im_end|>\n<|im_start|>assistant\n");
    free(text);
    text_bytes_free(&answer);
    conversation_free(&talk);
}
