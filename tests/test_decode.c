// test_decode.c -- a real model on a kvloom cache against what llama.cpp recorded for its file.
//
// Fixtures llama_*.txt hold greedy tokens and their logits (oracles/record_llama.py).  A test feeds
// llama.cpp's own tokens and compares the best one of each step, wherever llama.cpp's two best
// logits are further apart than the two programs' rounding.  Models are named by
// KVLOOM_TEST_MODEL_SMOLLM2 and KVLOOM_TEST_MODEL_GEMMA3; without them the tests are skipped.

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

enum { max_prompts = 4, max_ids = 256, max_steps = 64, context_len = 512 };

static const double clear_margin = 0.1;

// Both programs multiply with activations of 8 bits.  Against float activations the gap of the two
// best logits is off by 0.1 to 0.2 in each (root mean square), and llama.cpp's batches differ from
// its own single steps by as much.
static const double gap_bound = 0.35;

typedef struct recorded_step {
    int32_t best, second;
    double  best_logit, second_logit;
} recorded_step;

typedef struct recorded_prompt {
    char          name[32], kind[16];
    int32_t       ids[max_ids];
    int           num_ids, num_steps;
    recorded_step steps[max_steps];
} recorded_prompt;

typedef struct recording {
    recorded_prompt prompts[max_prompts];
    int             num_prompts;
} recording;

// READING

static void read_ids(recorded_prompt* p, const char* text)
{
    char* at;
    p->num_ids = (int)strtol(text, &at, 10);
    cr_assert(p->num_ids > 0 && p->num_ids <= max_ids, "ids: %d", p->num_ids);
    for (int i = 0; i < p->num_ids; ++i) p->ids[i] = (int32_t)strtol(at, &at, 10);
}

static void read_step(recorded_prompt* p, const char* text)
{
    cr_assert(p->num_steps < max_steps);
    recorded_step* s = &p->steps[p->num_steps++];
    char* at;
    s->best = (int32_t)strtol(text, &at, 10);
    s->best_logit = strtod(at, &at);
    s->second = (int32_t)strtol(at, &at, 10);
    s->second_logit = strtod(at, &at);
    cr_assert(s->best_logit >= s->second_logit, "step: %s", text);
}

static void read_recording(const char* name, recording* r)
{
    char path[512];
    char* line = NULL;
    size_t room = 0;
    snprintf(path, sizeof path, "%s/tests/fixtures/%s", KVLOOM_TEST_ROOT, name);
    FILE* file = fopen(path, "r");
    cr_assert(file, "%s: cannot be read", path);
    memset(r, 0, sizeof *r);
    while (getline(&line, &room, file) > 0) {
        if (line[0] == '#') continue;
        if (!strncmp(line, "prompt ", 7)) {
            cr_assert(r->num_prompts < max_prompts);
            recorded_prompt* p = &r->prompts[r->num_prompts++];
            cr_assert(sscanf(line, "prompt %31s %15s", p->name, p->kind) == 2);
            continue;
        }
        cr_assert(r->num_prompts > 0, "%s: starts with %s", path, line);
        recorded_prompt* p = &r->prompts[r->num_prompts - 1];
        if (!strncmp(line, "ids ", 4)) read_ids(p, line + 4);
        else if (!strncmp(line, "step ", 5)) read_step(p, line + 5);
        else cr_assert_fail("%s: %s", path, line);
    }
    free(line);
    fclose(file);
}

// RUNNING

// A model, a context and a session of one cache spec.
typedef struct run {
    kvl_context*   ctx;
    model*         model;
    model_session* session;
    float*         logits;
    int            vocab_size;
} run;

static run open_run(const char* path, const char* spec, kvl_target target)
{
    run r = { 0 };
    char message[512] = "";
    const kvl_context_desc desc = { .target = target };
    cr_assert(kvl_context_create(&desc, &r.ctx) == KVL_OK, "%s", kvl_context_message(r.ctx));
    cr_assert(model_open(path, NULL, &r.model, message, sizeof message) == 0, "%s", message);
    const model_session_desc sd = { .ctx = r.ctx, .spec = spec, .context_len = context_len };
    cr_assert(model_session_create(r.model, &sd, &r.session, message, sizeof message) == 0, "%s",
              message);
    r.vocab_size = model_get_geometry(r.model)->vocab_size;
    r.logits = calloc((size_t)r.vocab_size, sizeof(float));
    cr_assert(r.logits);
    return r;
}

static void close_run(run* r)
{
    free(r->logits);
    model_session_free(r->session);
    model_close(r->model);
    kvl_context_destroy(r->ctx);
}

static int32_t best_of(const run* r)
{
    int32_t best = 0;
    for (int32_t i = 0; i < r->vocab_size; ++i) {
        cr_assert(isfinite(r->logits[i]), "logit of token %d is %g", (int)i, (double)r->logits[i]);
        if (r->logits[i] > r->logits[best]) best = i;
    }
    return best;
}

// How many steps are clear, in how many of these another token is best, and how far the gap of
// the two recorded tokens is off over all steps.
typedef struct agreement {
    int    clear, wrong, num_steps;
    double gap_errors;   // sum of squares
} agreement;

static double gap_error(const agreement* a) { return sqrt(a->gap_errors / a->num_steps); }

static agreement replay(run* r, const recorded_prompt* p)
{
    agreement a = { 0 };
    cr_assert(model_session_reset(r->session) == MODEL_OK);
    cr_assert(model_prefill(r->session, p->ids, p->num_ids, r->logits) == MODEL_OK, "%s",
              model_session_message(r->session));
    for (int i = 0; i < p->num_steps; ++i) {
        const recorded_step* s = &p->steps[i];
        const int32_t best = best_of(r);
        const double gap = (double)r->logits[s->best] - (double)r->logits[s->second];
        a.gap_errors += pow(gap - (s->best_logit - s->second_logit), 2.0);
        a.num_steps += 1;
        if (s->best_logit - s->second_logit > clear_margin) {
            a.clear += 1;
            a.wrong += best != s->best;
            if (best != s->best)
                cr_log_info("%s, step %d: token %d (%.3f), llama.cpp says %d (here %.3f, there "
                            "%.3f before %d with %.3f)", p->name, i, (int)best,
                            (double)r->logits[best], (int)s->best, (double)r->logits[s->best],
                            s->best_logit, (int)s->second, s->second_logit);
        }
        cr_assert(model_step(r->session, s->best, r->logits) == MODEL_OK, "%s",
                  model_session_message(r->session));
    }
    return a;
}

// Replays every prompt of a fixture and returns the sum.
static agreement replay_all(const char* path, const char* fixture, const char* spec,
                            kvl_target target)
{
    static recording recorded;
    agreement sum = { 0 };
    read_recording(fixture, &recorded);
    run r = open_run(path, spec, target);
    for (int i = 0; i < recorded.num_prompts; ++i) {
        const recorded_prompt* p = &recorded.prompts[i];
        cr_assert(p->num_steps == max_steps, "%s: %d steps", p->name, p->num_steps);
        const agreement a = replay(&r, p);
        sum.clear += a.clear;
        sum.wrong += a.wrong;
        sum.num_steps += a.num_steps;
        sum.gap_errors += a.gap_errors;
    }
    close_run(&r);
    return sum;
}

// Fails or is skipped where the variable names no model.
static const char* model_path(const char* variable)
{
    const char* path = getenv(variable);
    if (!path || !*path) cr_skip_test("%s is not set", variable);
    return path;
}

// TESTS

// Breaks with any error in reading, tokens' order, RoPE, norms, GQA mapping, windows or attention.
Test(decode, smollm2_f16_is_llama_cpp)
{
    const char* path = model_path("KVLOOM_TEST_MODEL_SMOLLM2");
    const agreement a = replay_all(path, "llama_smollm2.txt", "f16", KVL_TARGET_AUTO);
    cr_assert(a.clear > 150, "%d clear steps of 192", a.clear);
    cr_assert(a.wrong == 0, "%d of %d clear steps differ", a.wrong, a.clear);
    cr_assert(gap_error(&a) < gap_bound, "gaps are off by %.3f", gap_error(&a));
}

// Breaks where reference and generated kernels part.
Test(decode, smollm2_f16_reference_is_llama_cpp)
{
    const char* path = model_path("KVLOOM_TEST_MODEL_SMOLLM2");
    const agreement a = replay_all(path, "llama_smollm2.txt", "f16", KVL_TARGET_REFERENCE);
    cr_assert(a.clear > 150, "%d clear steps of 192", a.clear);
    cr_assert(a.wrong == 0, "%d of %d clear steps differ", a.wrong, a.clear);
    cr_assert(gap_error(&a) < gap_bound, "gaps are off by %.3f", gap_error(&a));
}

// Breaks with the family's own parts: embedding scale, two norms a layer, sliding windows, head dim
// 256.
Test(decode, gemma3_f16_is_llama_cpp)
{
    const char* path = model_path("KVLOOM_TEST_MODEL_GEMMA3");
    const agreement a = replay_all(path, "llama_gemma3.txt", "f16", KVL_TARGET_AUTO);
    cr_assert(a.clear > 50, "%d clear steps of 64", a.clear);
    cr_assert(a.wrong == 0, "%d of %d clear steps differ", a.wrong, a.clear);
    cr_assert(gap_error(&a) < gap_bound, "gaps are off by %.3f", gap_error(&a));
}

// 8 bits a value are below the rounding of 8-bit activations: one step in thirty may turn over.
Test(decode, smollm2_8_bits_agree)
{
    const char* path = model_path("KVLOOM_TEST_MODEL_SMOLLM2");
    const char* spec = "rtn:b8,meta=f16,sink=0,recent=0";
    const agreement a = replay_all(path, "llama_smollm2.txt", spec, KVL_TARGET_AUTO);
    cr_assert(a.clear > 150, "%d clear steps of 192", a.clear);
    cr_assert(30 * a.wrong <= a.clear, "%d of %d clear steps differ", a.wrong, a.clear);
}

// Breaks where a low-bit cache keeps its rows in 16 bits after all, or yields what is no number.
Test(decode, smollm2_quantizes_at_2_5_bits)
{
    static recording recorded;
    const char* path = model_path("KVLOOM_TEST_MODEL_SMOLLM2");
    read_recording("llama_smollm2.txt", &recorded);
    const recorded_prompt* p = &recorded.prompts[0];
    run r = open_run(path, "kivi:k2,v2,g32,sink=4,recent=16,chunk=32", KVL_TARGET_AUTO);
    const agreement a = replay(&r, p);
    const kvl_cache* cache = model_session_cache(r.session);
    const int num_layers = model_get_geometry(r.model)->num_layers;
    kvl_layer_info info;
    kvl_stats stats;
    kvl_seq_rows rows;
    cr_assert(kvl_cache_layer_info(cache, 0, &info) == KVL_OK);
    cr_assert(kvl_cache_stats(cache, &stats) == KVL_OK);
    cr_assert(kvl_seq_get_rows(cache, 0, model_session_seq(r.session), &rows) == KVL_OK);
    cr_assert_float_eq(info.k_bits, 2.5, 1e-9);
    cr_assert_float_eq(info.v_bits, 2.5, 1e-9);
    // All but the 4 first and the 16 newest rows, in whole chunks of 32.
    const int64_t quantized = (p->num_ids + p->num_steps - 4 - 16) / 32 * 32;
    cr_assert(rows.rows == p->num_ids + p->num_steps);
    cr_assert(rows.quantized == quantized, "%lld rows in pages", (long long)rows.quantized);
    cr_assert(stats.num_quantized == quantized * num_layers);
    // Far from chance, one token of 49152: what is read back belongs to what was written.
    cr_assert(2 * a.wrong < a.clear, "%d of %d clear steps differ", a.wrong, a.clear);
    close_run(&r);
}
