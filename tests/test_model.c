// test_model.c -- examples/decode: the forward pass of each family, what it refuses, and its parts.
//
// The models are those of tiny_model.h. Expected logits are tests/oracles/forward.py's, in float64,
// which make_tiny_models.py --llama compares with llama.cpp (largest difference 2e-3, where its
// GELU is a table of f16 values).

#include "cache_specs.h"
#include "conversation.h"
#include "model.h"
#include "sampler.h"
#include "text_stream.h"
#include "tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <criterion/criterion.h>

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

// ROWS OF A PROMPT THAT ARE KEPT

enum { PROMPT = 60, SUNK = 2, KEPT = 5, MOST_LAYERS = 7, MOST_ROW = 64 };

typedef struct seen_keys {
    int row;                                            // floats of one
    float k[MOST_LAYERS][NUM_TOKENS * MOST_ROW];
} seen_keys;

static void see_keys(void* user, const model_rows* rows)
{
    seen_keys* seen = user;
    memcpy(seen->k[rows->layer] + rows->first_position * seen->row, rows->k,
           (size_t)(rows->num_rows * seen->row) * sizeof(float));
}

// The rows that a layer is to keep of a prompt whose numbers x [PROMPT, HIDDEN] come in batches:
// the largest are looked for one by one.
static void expect_kept(const float* x, int batch_len, bool kept[NUM_TOKENS])
{
    int num = 0;
    memset(kept, 0, NUM_TOKENS * sizeof *kept);
    for (int first = 0; first < PROMPT; first += batch_len) {
        static bool taken[PROMPT * HIDDEN];
        const int end = first + batch_len < PROMPT ? first + batch_len : PROMPT;
        memset(taken, 0, sizeof taken);
        for (int i = 0; i < KEPT; i++) {
            int largest = -1;
            for (int at = 0; at < end * HIDDEN; at++) {
                if (taken[at]) { continue; }
                if (largest < 0 || fabsf(x[at]) > fabsf(x[largest])) { largest = at; }
            }
            taken[largest] = true;
            const int row = largest / HIDDEN;
            if (row < first || row < SUNK || kept[row] || num == KEPT) { continue; }
            kept[row] = true;
            num++;
        }
    }
}

// Which rows a layer gives back as they came.
static void check_kept(model_session* s, const seen_keys* seen, int layer,
                       const bool kept[NUM_TOKENS])
{
    static float k[NUM_TOKENS * MOST_ROW], v[NUM_TOKENS * MOST_ROW];
    const kvl_rows to_k = { .data = k }, to_v = { .data = v };
    kvl_seq_rows rows;
    int num = 0;
    cr_assert_eq(kvl_restore(model_session_cache(s), layer, model_session_seq(s), 0, NUM_TOKENS,
                             &to_k, &to_v), KVL_OK);
    for (int row = SUNK; row < NUM_TOKENS; row++) {
        bool exact = true;
        for (int i = row * seen->row; i < (row + 1) * seen->row; i++) {
            exact = exact && fabsf(k[i] - seen->k[layer][i]) <= 1e-3f * fabsf(k[i]) + 1e-6f;
        }
        cr_expect_eq(exact, kept[row], "layer %d, row %d", layer, row);
        num += kept[row];
    }
    cr_assert_eq(kvl_seq_get_rows(model_session_cache(s), layer, model_session_seq(s), &rows),
                 KVL_OK);
    cr_expect_eq(rows.kept, num);
}

// Breaks when a prompt's largest numbers are others, or rows after it are looked at.
Test(model, rows_of_a_prompt_with_the_largest_numbers_are_kept)
{
    static const struct { int batch_len; bool through_cache; } ways[] = {
        { NUM_TOKENS, false }, { NUM_TOKENS, true }, { 25, false }, { 25, true }, { 7, false },
    };
    int32_t ids[NUM_TOKENS];
    static seen_keys seen;
    kvl_context* ctx = open_context();
    fill_tokens(ids);
    for (int i = 0; i < NUM_MODELS; i++) {
        model* m = open_model(&models[i], NULL);
        const int num_layers = models[i].layers;
        float* x = malloc((size_t)(num_layers * NUM_TOKENS * HIDDEN) * sizeof *x);
        seen.row = models[i].kv_heads * models[i].dim;
        for (size_t way = 0; x != NULL && way < sizeof ways / sizeof ways[0]; way++) {
            const model_session_desc desc = {
                .ctx = ctx, .spec = "rtn:b2,g16,sink=2,recent=0,kept=5",
                .batch_len = ways[way].batch_len, .on_rows = see_keys, .user = &seen };
            model_session* s = open_session(m, desc);
            const model_run run = { .ids = ids, .count = NUM_TOKENS, .prompt_len = PROMPT,
                                    .rows_through_cache = ways[way].through_cache, .entering = x };
            cr_assert_eq(model_run_tokens(s, &run), MODEL_OK, "%s", model_session_message(s));
            for (int layer = 0; layer < num_layers; layer++) {
                bool kept[NUM_TOKENS];
                expect_kept(x + layer * NUM_TOKENS * HIDDEN, ways[way].batch_len, kept);
                check_kept(s, &seen, layer, kept);
            }
            model_session_free(s);
        }
        free(x);
        model_close(m);
    }
    kvl_context_destroy(ctx);
}

// Breaks when single steps name rows, or a later prompt finds no room where there is some.
Test(model, steps_name_no_rows_and_prompts_share_the_room)
{
    int32_t ids[NUM_TOKENS];
    kvl_seq_rows rows;
    kvl_context* ctx = open_context();
    model* m = open_model(&models[0], NULL);
    model_session* s = open_session(
        m, (model_session_desc){ .ctx = ctx, .spec = "rtn:b2,g16,sink=0,recent=0,kept=8" });
    fill_tokens(ids);
    for (int i = 0; i < 4; i++) { cr_assert_eq(model_step(s, ids[i], NULL), MODEL_OK); }
    kvl_seq_get_rows(model_session_cache(s), 0, model_session_seq(s), &rows);
    cr_expect_eq(rows.kept, 0);
    for (int i = 0; i < 12; i++) {
        cr_assert_eq(model_prefill(s, ids + 4 + 3 * i, 3, NULL), MODEL_OK);
    }
    kvl_seq_get_rows(model_session_cache(s), 0, model_session_seq(s), &rows);
    cr_expect_eq(rows.kept, 8);
    model_session_free(s);
    model_close(m);
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
