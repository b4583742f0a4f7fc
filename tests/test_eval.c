// test_eval.c -- kvloom-eval: its numbers, its passes, and what it refuses.
//
// Expected values come from tests/oracles/kl.py (NumPy, float64, its own codecs) or are worked out
// here by hand. Models are those of tiny_model.h; texts are letters of a seeded generator.

#include "eval_engine.h"
#include "eval_generate.h"
#include "eval_json.h"
#include "eval_layers.h"
#include "eval_needle.h"
#include "eval_options.h"
#include "eval_run.h"
#include "eval_statistics.h"
#include "eval_table.h"
#include "eval_text.h"
#include "tiny_model.h"

#include <float.h>

// NUMBERS

// Breaks when KL is another quantity, is floored, or loses digits: against NumPy, on pairs of which
// some put all probability on one token.
Test(eval, pairs_agree_with_numpy)
{
    FILE* file = fopen(KVLOOM_TEST_ROOT "/tests/fixtures/eval_pairs.txt", "r");
    double kl = 0.0, nll_base = 0.0, nll = 0.0;
    int index = 0, count = 0;
    cr_assert_not_null(file);
    while (fscanf(file, "%d %lf %lf %lf", &index, &kl, &nll_base, &nll) == 4) {
        const int size = 5 + 37 * index;
        const double spread = ldexp(1.0, index % 8 - 1), change = ldexp(1.0, -(index % 6 * 3));
        uint64_t state = (uint64_t)index + 1;
        double base[5 + 37 * 24];
        float a[5 + 37 * 24], b[5 + 37 * 24];
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < size; i++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                const double value = ((double)(state >> 48) - 32768.0) / 32768.0;
                if (round == 0) { base[i] = value * spread; }
                a[i] = (float)base[i];
                b[i] = (float)(base[i] + value * change);
            }
        }
        state = state * 6364136223846793005u + 1442695040888963407u;
        const eval_pair pair = eval_compare(a, b, size, (int64_t)(state >> 48) % size);
        cr_expect_float_eq(pair.kl, kl, 1e-12 + 1e-10 * kl, "pair %d: %g, not %g", index, pair.kl,
                           kl);
        cr_expect_float_eq(pair.nll_base, nll_base, 1e-12 * (1.0 + nll_base));
        cr_expect_float_eq(pair.nll, nll, 1e-12 * (1.0 + nll));
        count++;
    }
    fclose(file);
    cr_expect_eq(count, 24);
}

// Breaks when a distribution is not itself: KL(x, x) is 0 however peaked x is.
Test(eval, a_distribution_is_itself)
{
    static const float peaks[] = { 0.0f, 1.0f, 30.0f, 1000.0f, 1e30f };
    float x[1003];
    for (size_t i = 0; i < sizeof peaks / sizeof peaks[0]; i++) {
        for (int j = 0; j < 1003; j++) { x[j] = (float)(j % 17) * 0.25f - 3.0f; }
        x[700] += peaks[i];
        const eval_pair pair = eval_compare(x, x, 1003, 5);
        cr_expect(fabs(pair.kl) <= 1e-15, "%g", pair.kl);
        cr_expect(pair.top_base == pair.top && pair.nll == pair.nll_base);
    }
}

// Breaks when a formula changes. p = (3/4, 1/4), q = (1/2, 1/2):
// KL = 3/4 log(3/2) + 1/4 log(1/2) = 0.130812035941137.
Test(eval, statistics_by_hand)
{
    const float p[2] = { 1.0986122886681098f, 0.0f }, q[2] = { 2.0f, 2.0f };
    const double x[4] = { 1.0, 2.0, 3.0, 6.0 };
    float unsorted[5] = { 4.0f, 1.0f, 3.0f, 2.0f, 10.0f };
    const eval_pair pair = eval_compare(p, q, 2, 1);
    cr_expect_float_eq(pair.kl, 0.130812035941137, 1e-7);  // log 3 as a float
    cr_expect_float_eq(pair.nll, 0.693147180559945, 1e-15);
    cr_expect(pair.top_base == 0 && pair.top == 0);
    // Squares about the mean 3: 4 + 1 + 0 + 9 = 14; sqrt(14 / 3 / 4).
    const eval_mean mean = eval_mean_of(x, 4);
    cr_expect_float_eq(mean.mean, 3.0, 1e-15);
    cr_expect_float_eq(mean.standard_error, 1.0801234497346435, 1e-15);
    cr_expect(isnan(eval_mean_of(x, 1).standard_error) && isnan(eval_mean_of(x, 0).mean));
    cr_expect_float_eq(eval_quantile(unsorted, 5, 0.5), 3.0, 1e-15);
    cr_expect_float_eq(eval_quantile(unsorted, 5, 0.9), 7.6, 1e-12);  // 4 + 0.6 (10 - 4)
    cr_expect(isnan(eval_quantile(unsorted, 0, 0.5)));
    // Both windows are worse by log 2: perplexity doubles, and the difference of a window is
    // 2 e^2 (w - 2) - e^2 (w - 2) = +- e^2, with w = 1, 3: its standard error is e^2.
    const double base[2] = { 1.0, 3.0 }, worse[2] = { 1.6931471805599453, 3.6931471805599453 };
    const eval_perplexity ppl = eval_perplexity_of(worse, base, 2);
    cr_expect_float_eq(ppl.base, 7.38905609893065, 1e-12);
    cr_expect_float_eq(ppl.diff, 7.38905609893065, 1e-12);
    cr_expect_float_eq(ppl.diff_se, 7.38905609893065, 1e-12);
}

// Breaks when the polynomial or its scaling does: against the C library.
Test(eval, exponential)
{
    double worst = 0.0;
    for (int i = 0; i < 700000; i++) {
        const double x = -0.001 * i - 1e-7 * (i % 997);
        worst = fmax(worst, fabs(eval_exp(x) / exp(x) - 1.0));
    }
    cr_expect(worst < 5e-16, "%g", worst);
    cr_expect(eval_exp(0.0) == 1.0 && eval_exp(-800.0) == 0.0 && eval_exp(-1e30) == 0.0);
}

// Breaks when the hash is not SHA-256: examples of FIPS 180-4, and one that fills a piece exactly.
Test(eval, sha256)
{
    static const struct {
        const char *text, *hex;
    } cases[] = {
        { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
        { "0123456701234567012345670123456701234567012345670123456701234567",
          "8182cadb21af0e37c06414ece08e19c65bdb22c396d48ba7341012eea9ffdfdd" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char hex[65];
        eval_sha256(cases[i].text, strlen(cases[i].text), hex);
        cr_expect_str_eq(hex, cases[i].hex);
    }
}

// PASSES

enum { WINDOW = 512 };

// The tokens of kl.py's windows.
static void fill_window(int window, int32_t ids[WINDOW])
{
    uint64_t state = 1000 + (uint64_t)window;
    ids[0] = 1;
    for (int i = 1; i < WINDOW; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = 3 + (int32_t)((state >> 48) % 256);
    }
}

static const tiny* find_tiny(const char* arch)
{
    for (int i = 0; i < NUM_MODELS; i++) {
        if (strcmp(models[i].arch, arch) == 0) { return &models[i]; }
    }
    return NULL;
}

static void open_engine(eval_engine* engine, const model* m, kvl_context* ctx, int products)
{
    const eval_engine_desc desc = { .m = m, .ctx = ctx, .context = WINDOW, .products = products };
    cr_assert_eq(eval_engine_create(engine, &desc), MODEL_OK, "%s", engine->message);
}

// Runs a pass; returns its session.
static model_session* run_pass(eval_engine* engine, const char* cache, const int32_t* ids,
                               int64_t count, int side)
{
    model_session* s = NULL;
    cr_assert_eq(eval_engine_open(engine, cache, 0, &s), MODEL_OK, "%s", engine->message);
    cr_assert_eq(eval_engine_pass(engine, s, ids, count, side), MODEL_OK, "%s", engine->message);
    return s;
}

// Compares a cache with the base's pass; nll_base may be NULL.
static eval_window run_compare(eval_engine* engine, const char* cache, const int32_t* ids,
                               int64_t count, float* nll_base)
{
    eval_window out = { .done = false };
    model_session* s = run_pass(engine, cache, ids, count, 1);
    const eval_comparison c = { .ids = ids, .count = count, .session = s };
    cr_assert_eq(eval_engine_compare(engine, &c, &out, nll_base), MODEL_OK, "%s", engine->message);
    model_session_free(s);
    return out;
}

static double mean_of(const float* x, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) { sum += (double)x[i]; }
    return sum / (double)n;
}

// Breaks when a position reads the cache otherwise than when it was the newest, or codes come from
// other rows. NumPy computes in float64, so that now and then a value on the edge of two codes gets
// the other one: at 2 bits this moves a mean of 511 positions by some thousandths.
Test(eval, windows_agree_with_numpy)
{
    FILE* file = fopen(KVLOOM_TEST_ROOT "/tests/fixtures/eval_windows.txt", "r");
    char arch[16], spec[64];
    double kl = 0.0, nll = 0.0, nll_base = 0.0;
    int window = 0, count = 0;
    int32_t ids[WINDOW];
    float base[WINDOW];
    cr_assert_not_null(file);
    kvl_context* ctx = open_context();
    while (fscanf(file, "%15s %63s %d %lf %lf %lf", arch, spec, &window, &kl, &nll, &nll_base) ==
           6) {
        eval_engine engine;
        model* m = open_model(find_tiny(arch), NULL);
        fill_window(window, ids);
        open_engine(&engine, m, ctx, MODEL_PRODUCTS_FLOAT);
        model_session_free(run_pass(&engine, "f16", ids, WINDOW, 0));
        eval_window out = run_compare(&engine, spec, ids, WINDOW, base);
        const double found = mean_of(out.kl, WINDOW - 1);
        cr_expect_float_eq(found, kl, 0.01 * kl, "%s %s window %d: KL %g, not %g", arch, spec,
                           window, found, kl);
        cr_expect_float_eq(mean_of(out.nll, WINDOW - 1), nll, 0.02);
        cr_expect_float_eq(mean_of(base, WINDOW - 1), nll_base, 0.01);
        eval_window_free(&out);
        eval_engine_free(&engine);
        model_close(m);
        count++;
    }
    fclose(file);
    cr_expect_eq(count, 8);
    kvl_context_destroy(ctx);
}

// The logits of every position, step by step as decoding goes.
static void run_steps(const model* m, kvl_context* ctx, const char* spec, const int32_t* ids,
                      int count, float* logits)
{
    model_session* s = open_session(m, (model_session_desc){ .ctx = ctx, .spec = spec,
                                                             .context_len = WINDOW });
    for (int i = 0; i < count; i++) {
        const model_run run = { .ids = ids + i, .count = 1, .logits = logits + (int64_t)i * VOCAB,
                                .products = MODEL_PRODUCTS_BY_ROW };
        cr_assert_eq(model_run_tokens(s, &run), MODEL_OK, "%s", model_session_message(s));
    }
    model_session_free(s);
}

static void run_rows(const model* m, kvl_context* ctx, const char* spec, const int32_t* ids,
                     int count, float* logits)
{
    // Batches of 100: their ends are no ends of chunks.
    model_session* s = open_session(m, (model_session_desc){ .ctx = ctx, .spec = spec,
                                                             .context_len = WINDOW,
                                                             .batch_len = 100 });
    const model_run run = { .ids = ids, .count = count, .logits = logits, .logits_of_all = true,
                            .rows_through_cache = true, .products = MODEL_PRODUCTS_BY_ROW };
    cr_assert_eq(model_run_tokens(s, &run), MODEL_OK, "%s", model_session_message(s));
    model_session_free(s);
}

static const char* const step_specs[] = {
    "f16", "q8_0:g16", "q4_0:g16,sink=3,recent=7", "kivi:k2,v2,g16,sink=4,recent=20",
    "kivi:k2,v2,g16,sink=0,recent=0", "rtn:k2,v3,g16,sink=0,recent=0",
    "kivi:k3,v3,g16,sink=1,recent=5,chunk=48",
};
enum { NUM_STEP_SPECS = sizeof step_specs / sizeof step_specs[0], STEP_TOKENS = 230 };

// Breaks when a row sees what it would not see in decoding, by a single bit: rows of a window that
// are appended and attend together, against one step after another.
Test(eval, windows_equal_steps_on_the_reference)
{
    int32_t ids[WINDOW];
    float* steps = malloc(sizeof(float) * STEP_TOKENS * VOCAB);
    float* rows = malloc(sizeof(float) * STEP_TOKENS * VOCAB);
    cr_assert(steps != NULL && rows != NULL);
    fill_window(0, ids);
    kvl_context* ctx = open_context();
    for (int i = 0; i < NUM_MODELS; i++) {
        model* m = open_model(&models[i], NULL);
        for (int j = 0; j < NUM_STEP_SPECS; j++) {
            run_steps(m, ctx, step_specs[j], ids, STEP_TOKENS, steps);
            run_rows(m, ctx, step_specs[j], ids, STEP_TOKENS, rows);
            cr_expect_eq(memcmp(steps, rows, sizeof(float) * STEP_TOKENS * VOCAB), 0, "%s %s",
                         models[i].arch, step_specs[j]);
        }
        model_close(m);
    }
    kvl_context_destroy(ctx);
    free(rows);
    free(steps);
}

// The same for generated kernels. Logits of these models reach 40.
Test(eval, windows_equal_steps_on_the_host)
{
    int32_t ids[WINDOW];
    kvl_context* ctx = NULL;
    const kvl_context_desc desc = { .target = KVL_TARGET_HOST, .num_threads = 2 };
    if (kvl_context_create(&desc, &ctx) != KVL_OK) {
        kvl_context_destroy(ctx);
        cr_skip_test("no generated kernels here");
    }
    float* steps = malloc(sizeof(float) * STEP_TOKENS * VOCAB);
    float* rows = malloc(sizeof(float) * STEP_TOKENS * VOCAB);
    cr_assert(steps != NULL && rows != NULL);
    fill_window(0, ids);
    model* m = open_model(&models[0], NULL);
    for (int j = 0; j < NUM_STEP_SPECS; j++) {
        double worst = 0.0;
        run_steps(m, ctx, step_specs[j], ids, STEP_TOKENS, steps);
        run_rows(m, ctx, step_specs[j], ids, STEP_TOKENS, rows);
        for (int i = 0; i < STEP_TOKENS * VOCAB; i++) {
            worst = fmax(worst, fabs((double)steps[i] - (double)rows[i]));
        }
        cr_expect(worst <= 1e-5, "%s: logits are off by %g", step_specs[j], worst);
    }
    model_close(m);
    kvl_context_destroy(ctx);
    free(rows);
    free(steps);
}

// Breaks when the full-precision cache differs from itself, or windows that cover the text are not
// read as they are: by a single bit, since the reference adds rows in one order wherever they lie.
Test(eval, what_loses_nothing_has_no_divergence)
{
    static const char* const specs[] = { "f16", "kivi:k2,v2,sink=0,recent=512",
                                         "rtn:k1,v1,sink=512,recent=0" };
    int32_t ids[WINDOW];
    eval_engine engine;
    kvl_context* ctx = open_context();
    model* m = open_model(&models[1], NULL);
    fill_window(1, ids);
    open_engine(&engine, m, ctx, MODEL_PRODUCTS_FLOAT);
    model_session_free(run_pass(&engine, "f16", ids, WINDOW, 0));
    for (int i = 0; i < 3; i++) {
        eval_window out = run_compare(&engine, specs[i], ids, WINDOW, NULL);
        for (int j = 0; j < WINDOW - 1; j++) {
            cr_expect(out.kl[j] == 0.0f, "%s, position %d: %g", specs[i], j, (double)out.kl[j]);
            cr_expect_eq(out.top1[j], 1);
        }
        eval_window_free(&out);
    }
    eval_engine_free(&engine);
    model_close(m);
    kvl_context_destroy(ctx);
}

// Breaks when the quantized rows are not read, or are read too early: a group of keys along 32
// tokens is complete with the row at position 31.
Test(eval, divergence_begins_with_the_first_group)
{
    int32_t ids[WINDOW];
    eval_engine engine;
    kvl_context* ctx = open_context();
    model* m = open_model(&models[0], NULL);
    fill_window(0, ids);
    open_engine(&engine, m, ctx, MODEL_PRODUCTS_FLOAT);
    model_session_free(run_pass(&engine, "f16", ids, WINDOW, 0));
    eval_window out = run_compare(&engine, "kivi:k2,v2,g32,sink=0,recent=0", ids, WINDOW, NULL);
    for (int j = 0; j < WINDOW - 1; j++) {
        const double kl = (double)out.kl[j];
        cr_expect(j < 31 ? fabs(kl) <= 1e-7 : kl > 1e-7, "position %d: %g", j, kl);
    }
    cr_expect(out.num_worst == EVAL_WORST && out.worst[0].position >= 31);
    for (int i = 1; i < EVAL_WORST; i++) { cr_expect(out.worst[i].kl <= out.worst[i - 1].kl); }
    cr_expect(out.worst[0].base[0].probability >= out.worst[0].base[1].probability);
    eval_window_free(&out);
    eval_engine_free(&engine);
    model_close(m);
    kvl_context_destroy(ctx);
}

// Breaks when more bits do not help, which is a bug behind "sensitivity".
Test(eval, more_bits_diverge_less)
{
    static const char* const specs[] = { "rtn:b2", "rtn:b3", "rtn:b4", "rtn:b6", "rtn:b8" };
    int32_t ids[WINDOW];
    double before = (double)INFINITY;
    eval_engine engine;
    kvl_context* ctx = open_context();
    model* m = open_model(&models[1], NULL);
    fill_window(0, ids);
    open_engine(&engine, m, ctx, MODEL_PRODUCTS_FLOAT);
    model_session_free(run_pass(&engine, "f16", ids, WINDOW, 0));
    for (int i = 0; i < 5; i++) {
        char spec[64];
        snprintf(spec, sizeof spec, "%s,sink=0,recent=0", specs[i]);
        eval_window out = run_compare(&engine, spec, ids, WINDOW, NULL);
        const double kl = mean_of(out.kl, WINDOW - 1);
        cr_expect(kl > 0.0 && kl < before, "%s: %g after %g", spec, kl, before);
        before = kl;
        eval_window_free(&out);
    }
    eval_engine_free(&engine);
    model_close(m);
    kvl_context_destroy(ctx);
}

// Breaks when logits that do not fit give other numbers than those that are kept.
Test(eval, base_logits_need_not_fit)
{
    int32_t ids[WINDOW];
    eval_engine kept, remade;
    kvl_context* ctx = open_context();
    model* m = open_model(&models[2], NULL);
    fill_window(0, ids);
    open_engine(&kept, m, ctx, MODEL_PRODUCTS_FLOAT);
    const eval_engine_desc desc = { .m = m, .ctx = ctx, .context = WINDOW,
                                    .products = MODEL_PRODUCTS_FLOAT, .max_logits_bytes = 1000 };
    cr_assert_eq(eval_engine_create(&remade, &desc), MODEL_OK);
    cr_assert(kept.base_logits != NULL && remade.base_logits == NULL);
    model_session_free(run_pass(&kept, "f16", ids, WINDOW, 0));
    model_session_free(run_pass(&remade, "f16", ids, WINDOW, 0));
    for (int round = 0; round < 2; round++) {
        eval_window a = run_compare(&kept, "rtn:b2,g16", ids, WINDOW, NULL);
        eval_window b = run_compare(&remade, "rtn:b2,g16", ids, WINDOW, NULL);
        cr_expect_eq(memcmp(a.kl, b.kl, sizeof(float) * (WINDOW - 1)), 0);
        eval_window_free(&a);
        eval_window_free(&b);
    }
    eval_engine_free(&kept);
    eval_engine_free(&remade);
    model_close(m);
    kvl_context_destroy(ctx);
}

// Breaks when errors of heads are of other rows: f16 rounds to 2^-11, 2 bits do not.
Test(eval, errors_of_layers)
{
    static const char* const specs[] = { "f16", "rtn:b2,sink=0,recent=0" };
    int32_t ids[WINDOW];
    eval_engine engine;
    kvl_context* ctx = open_context();
    model* m = open_model(&models[3], NULL);  // layers with and without a window
    fill_window(0, ids);
    open_engine(&engine, m, ctx, MODEL_PRODUCTS_FLOAT);
    for (int i = 0; i < 2; i++) {
        eval_cache cache = { .num_layers = 0 };
        eval_layers_probe* probe = eval_layers_create(m, ctx, WINDOW);
        cr_assert_not_null(probe);
        engine.on_rows = eval_layers_see;
        engine.on_rows_user = probe;
        model_session* s = run_pass(&engine, specs[i], ids, WINDOW, 1);
        cr_assert(eval_layers_measure(probe, s, &cache));
        cr_expect_eq(cache.num_layers, 7);
        for (int layer = 0; layer < cache.num_layers; layer++) {
            const eval_layer* l = &cache.layers[layer];
            cr_expect_eq(l->num_q_heads, 4);
            for (int h = 0; h < 4; h++) {
                const double errors[2] = { l->score_error[h], l->output_error[h] };
                for (int j = 0; j < 2; j++) {
                    cr_expect(i == 0 ? errors[j] < 2e-3 : errors[j] > 1e-2 && errors[j] < 2.0,
                              "%s layer %d head %d: %g", specs[i], layer, h, errors[j]);
                }
            }
            free(l->score_error);
            free(l->output_error);
        }
        free(cache.layers);
        eval_layers_free(probe);
        model_session_free(s);
    }
    eval_engine_free(&engine);
    model_close(m);
    kvl_context_destroy(ctx);
}

// Breaks when a sequence that is lengthened for a measurement of speed has other rows than its own.
Test(eval, a_sequence_repeats_its_rows)
{
    static float rows[2][300 * 32];
    int32_t ids[WINDOW];
    kvl_context* ctx = open_context();
    model* m = open_model(&models[0], NULL);
    model_session* s = open_session(m, (model_session_desc){ .ctx = ctx, .context_len = 301 });
    fill_window(0, ids);
    cr_expect_eq(model_session_repeat(s, 10), MODEL_FAILED);  // there is nothing to repeat
    cr_assert_eq(model_prefill(s, ids, 90, NULL), MODEL_OK);
    cr_expect_eq(model_session_repeat(s, 302), MODEL_FAILED);
    cr_assert_eq(model_session_repeat(s, 300), MODEL_OK, "%s", model_session_message(s));
    cr_expect_eq(model_session_length(s), 300);
    const kvl_rows k = { .data = rows[0] }, v = { .data = rows[1] };
    cr_assert_eq(kvl_restore(model_session_cache(s), 1, model_session_seq(s), 0, 300, &k, &v),
                 KVL_OK);
    for (int i = 90 * 32; i < 300 * 32; i++) {
        cr_assert(rows[0][i] == rows[0][i - 90 * 32] && rows[1][i] == rows[1][i - 90 * 32]);
    }
    cr_expect_eq(model_step(s, 5, NULL), MODEL_OK);
    model_session_free(s);
    model_close(m);
    kvl_context_destroy(ctx);
}

// WHOLE RUNS

enum { RUN_CONTEXT = 160, RUN_POSITIONS = RUN_CONTEXT - 1 - 40 };

// Writes letters and returns the path, which the caller frees after removing the file.
static char* write_text(int num_letters)
{
    char* path = strdup(KVLOOM_TEST_SCRATCH "/text-XXXXXX");
    const int handle = mkstemp(path);
    FILE* file = handle >= 0 ? fdopen(handle, "wb") : NULL;
    uint64_t state = 77;
    cr_assert_not_null(file);
    for (int i = 0; i < num_letters; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        fputc('a' + (int)((state >> 48) % 26), file);
    }
    cr_assert_eq(fclose(file), 0);
    return path;
}

typedef struct run_files {
    char *model, *text;
} run_files;

static run_files make_files(const tiny* m, int num_letters)
{
    return (run_files){ write_model(m, NULL), write_text(num_letters) };
}

static void remove_files(run_files* files)
{
    unlink(files->model);
    unlink(files->text);
    free(files->model);
    free(files->text);
}

static char command[] = "kvloom-eval";

static eval_options options_for(const run_files* files, char** caches, int num_caches)
{
    return (eval_options){ .model = files->model, .text = files->text, .caches = caches,
                           .num_caches = num_caches, .context = RUN_CONTEXT, .windows = 2,
                           .skip = 40, .num_threads = 2, .target = KVL_TARGET_REFERENCE,
                           .seed = 1, .products = MODEL_PRODUCTS_FLOAT, .command = command };
}

static eval_results run_ok(const eval_options* options)
{
    eval_results results;
    char message[1024];
    cr_assert_eq(eval_run(options, true, &results, message, sizeof message), 0, "%s", message);
    return results;
}

static char kivi[] = "kivi:k2,v2,sink=0,recent=32", q4[] = "q4_0 0:q8_0", f16[] = "f16";

static void expect_same(const eval_results* a, int cache_a, const eval_results* b, int cache_b)
{
    const eval_cache *x = &a->caches[cache_a], *y = &b->caches[cache_b];
    cr_assert(x->num_done == y->num_done && a->num_positions == b->num_positions);
    for (int w = 0; w < x->num_done; w++) {
        const size_t bytes = sizeof(float) * (size_t)a->num_positions;
        cr_expect_eq(memcmp(x->windows[w].kl, y->windows[w].kl, bytes), 0);
        cr_expect_eq(memcmp(x->windows[w].nll, y->windows[w].nll, bytes), 0);
        cr_expect_eq(memcmp(a->base_nll[w], b->base_nll[w], bytes), 0);
    }
    cr_expect(x->kl == y->kl && x->top1 == y->top1 && x->perplexity_diff == y->perplexity_diff);
    // Each thread has scratch memory in the cache.
    if (a->threads == b->threads) { cr_expect_eq(x->cache_bytes, y->cache_bytes); }
    cr_expect_eq(x->worst[0].position, y->worst[0].position);
}

// Breaks when a cache's numbers depend on what was measured before it, or on the threads.
Test(eval, order_and_threads_change_nothing)
{
    char* both[] = { kivi, f16, q4 };
    char* one[] = { q4 };
    run_files files = make_files(&models[1], 400);
    eval_options options = options_for(&files, both, 3);
    eval_results all = run_ok(&options);
    cr_expect(all.caches[0].kl > 0.0 && all.caches[1].kl == 0.0 && all.caches[2].kl > 0.0);
    cr_expect(all.caches[0].perplexity > 1.0 && !all.interrupted);
    cr_expect_float_eq(all.caches[0].bits_key, 2.5, 1e-9);
    cr_expect(all.caches[0].rows_quantized == 2 * 128 && all.caches[0].rows_total == 2 * 160);
    cr_expect_float_eq(all.caches[0].bits_total,
                       8.0 * (double)all.caches[0].cache_bytes / (160.0 * 2 * 2 * 2 * 32), 1e-9);
    for (int threads = 1; threads <= 3; threads++) {
        options = options_for(&files, one, 1);
        options.num_threads = threads;
        eval_results alone = run_ok(&options);
        expect_same(&alone, 0, &all, 2);
        eval_results_free(&alone);
    }
    eval_results_free(&all);
    remove_files(&files);
}

// Breaks when windows that are measured side by side get each other's rows, threads or logits.
Test(eval, windows_side_by_side)
{
    char* caches[] = { kivi, q4, f16 };
    char path[] = KVLOOM_TEST_SCRATCH "/side-XXXXXX";
    run_files files = make_files(&models[1], 900);
    eval_options options = options_for(&files, caches, 3);
    options.windows = 5;
    options.num_threads = 3;
    eval_results one = run_ok(&options);
    cr_assert_eq(one.num_windows, 5);
    const int handle = mkstemp(path);
    cr_assert(handle >= 0 && close(handle) == 0);
    for (int jobs = 2; jobs <= 3; jobs++) {
        options.jobs = jobs;
        eval_results many = run_ok(&options);
        for (int i = 0; i < 3; i++) { expect_same(&many, i, &one, i); }
        cr_expect(many.threads == 3 && many.caches[0].tokens_per_second > 0.0);
        eval_results_free(&many);
        options.resume = path;                 // which the second run writes
    }
    eval_results read = run_ok(&options);
    for (int i = 0; i < 3; i++) { expect_same(&read, i, &one, i); }
    eval_results_free(&read);
    char message[1024];
    options.jobs = 4;
    cr_expect_neq(eval_run(&options, true, &read, message, sizeof message), 0);
    cr_expect(strstr(message, "-j 4") != NULL && strstr(message, "3") != NULL, "%s", message);
    eval_results_free(&read);
    eval_results_free(&one);
    unlink(path);
    remove_files(&files);
}

// Breaks when a run that goes on differs from one in a single go, or a cut line spoils the file.
Test(eval, resume_goes_on)
{
    char* caches[] = { kivi, q4 };
    char path[] = KVLOOM_TEST_SCRATCH "/resume-XXXXXX";
    run_files files = make_files(&models[0], 400);
    const int handle = mkstemp(path);
    cr_assert(handle >= 0 && close(handle) == 0);
    eval_options options = options_for(&files, caches, 2);
    eval_results whole = run_ok(&options);
    options.resume = path;
    options.windows = 1;
    options.num_caches = 1;
    eval_results part = run_ok(&options);
    eval_results_free(&part);
    FILE* file = fopen(path, "a");
    cr_assert_not_null(file);
    fputs("{\"cache\":\"q4_0 0:q8_0\",\"window\":0,\"kl\":[0.1,0.", file);
    fclose(file);
    options.windows = 2;
    options.num_caches = 2;
    for (int round = 0; round < 2; round++) {  // the second run finds everything in the file
        eval_results resumed = run_ok(&options);
        expect_same(&resumed, 0, &whole, 0);
        expect_same(&resumed, 1, &whole, 1);
        cr_expect_eq(resumed.caches[1].num_layers, 2);
        eval_results_free(&resumed);
    }
    eval_results_free(&whole);
    remove_files(&files);
    unlink(path);
}

// Breaks when what was chosen is lost with a file, or a window that has not counted it counts.
Test(eval, resume_keeps_choices)
{
    static char flagged[] = "flagrot-kivi:k.score=reconstruction,sink=0,recent=0,g32";
    char* caches[] = { flagged, q4 };
    char path[] = KVLOOM_TEST_SCRATCH "/resume-XXXXXX";
    run_files files = make_files(&models[0], 400);
    const int handle = mkstemp(path);
    cr_assert(handle >= 0 && close(handle) == 0);
    eval_options options = options_for(&files, caches, 2);
    options.windows = 1;
    options.resume = path;
    eval_results without = run_ok(&options);
    cr_assert_eq(without.caches[0].choices.num_pieces, 0);
    options.choices = true;
    eval_results counted = run_ok(&options), read = run_ok(&options);
    const eval_choices *a = &counted.caches[0].choices, *b = &read.caches[0].choices;
    cr_assert(a->num_pieces > 0 && a->count[0] + a->count[1] + a->count[2] == a->num_pieces);
    cr_expect_eq(a->num_pieces, b->num_pieces);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(a->count[i], b->count[i]);
        cr_expect_float_eq(a->peak[i], b->peak[i], 1e-12);
        cr_expect_float_eq(a->peak_rotated[i], b->peak_rotated[i], 1e-12);
    }
    cr_expect_eq(read.caches[1].choices.num_pieces, 0);
    char* text = NULL;
    size_t len = 0;
    FILE* page = open_memstream(&text, &len);
    eval_table_print(page, &read, true);
    fclose(page);
    const char* row = strstr(text, "| `cache` | as they are | rotated | whole head |\n"
                                   "| --- | ---: | ---: | ---: |\n| `flagrot-kivi:");
    cr_expect(row != NULL, "%s", text);
    free(text);
    expect_same(&without, 0, &read, 0);
    eval_results_free(&read);
    eval_results_free(&counted);
    eval_results_free(&without);
    remove_files(&files);
    unlink(path);
}

static void expect_failure(const eval_options* options, const char* said)
{
    eval_results results;
    char message[1024] = "";
    cr_expect_neq(eval_run(options, true, &results, message, sizeof message), 0, "%s", said);
    cr_expect(strstr(message, said) != NULL && strchr(message, '\n') == NULL, "'%s' is not in '%s'",
              said, message);
    eval_results_free(&results);
}

// Breaks when windows of another model, text or size are taken from a file.
Test(eval, resume_of_another_run_is_refused)
{
    char* caches[] = { f16 };
    char path[] = KVLOOM_TEST_SCRATCH "/resume-XXXXXX";
    run_files files = make_files(&models[0], 400), other = make_files(&models[1], 401);
    const int handle = mkstemp(path);
    cr_assert(handle >= 0 && close(handle) == 0);
    eval_options options = options_for(&files, caches, 1);
    options.resume = path;
    eval_results results = run_ok(&options);
    eval_results_free(&results);
    eval_options wrong = options;
    wrong.model = other.model;
    expect_failure(&wrong, "model_fingerprint = ");
    wrong = options;
    wrong.text = other.text;
    expect_failure(&wrong, "text_sha256 = ");
    wrong = options;
    wrong.context = 120;
    expect_failure(&wrong, "context = 160: this run has 120");
    wrong = options;
    wrong.skip = 30;
    expect_failure(&wrong, "skip = 40: this run has 30");
    FILE* file = fopen(path, "w");
    cr_assert_not_null(file);
    fputs("{\"vocab_size\":5}\n", file);
    fclose(file);
    expect_failure(&options, "kvloom_eval = absent");
    remove_files(&files);
    remove_files(&other);
    unlink(path);
}

// Breaks when a run that means nothing gives numbers.
Test(eval, runs_that_are_refused)
{
    static char unknown[] = "nonsense:k2", layers[] = "f16 7:q8_0";
    char* caches[] = { f16 };
    char *bad[] = { unknown }, *bad_layers[] = { layers };
    run_files files = make_files(&models[0], 400);
    eval_options options = options_for(&files, caches, 1);
    options.context = 2000;
    expect_failure(&options, "tokens: a window has 2000");
    options = options_for(&files, caches, 1);
    options.skip = 159;
    expect_failure(&options, "--skip 159: must be at most 158");
    options = options_for(&files, bad, 1);
    expect_failure(&options, "nonsense");
    options = options_for(&files, bad_layers, 1);
    expect_failure(&options, "layers 0 to 1");
    options = options_for(&files, caches, 1);
    options.text = "/nowhere/text";
    expect_failure(&options, "/nowhere/text: No such file");
    remove_files(&files);
}

// Breaks when logits that are not finite become numbers.
Test(eval, a_model_that_is_not_finite)
{
    static const char* const poisoned[] = { "output_norm.weight", "blk.1.attn_k.weight" };
    char* caches[] = { kivi };
    for (int i = 0; i < 2; i++) {
        const damage wrong = { .poisoned = poisoned[i] };
        run_files files = { write_model(&models[0], &wrong), write_text(400) };
        eval_options options = options_for(&files, caches, 1);
        expect_failure(&options, "finite");
        remove_files(&files);
    }
}

static float* read_npy(const char* folder, const char* name, size_t count)
{
    char path[512];
    float* out = malloc(count * sizeof *out);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE* file = fopen(path, "rb");
    cr_assert(file != NULL && out != NULL, "%s", path);
    cr_assert_eq(fseek(file, 128, SEEK_SET), 0);
    cr_assert_eq(fread(out, sizeof *out, count, file), count, "%s", path);
    cr_assert_eq(fgetc(file), EOF, "%s", path);
    fclose(file);
    unlink(path);
    return out;
}

// Breaks when dumped logits are not those of the numbers: KL again, in long double, term by term.
Test(eval, dumped_logits_give_the_divergence)
{
    char folder[] = KVLOOM_TEST_SCRATCH "/dump-XXXXXX";
    char* caches[] = { f16, kivi };
    run_files files = make_files(&models[2], 200);
    cr_assert_not_null(mkdtemp(folder));
    eval_options options = options_for(&files, caches, 2);
    options.windows = 1;
    options.dump_folder = folder;
    static char small[] = "rtn:b2,g16,sink=0,recent=0";
    caches[1] = small;
    eval_results results = run_ok(&options);
    float* base = read_npy(folder, "base-w0.npy", (size_t)RUN_POSITIONS * VOCAB);
    float* cache = read_npy(folder, "c1-w0.npy", (size_t)RUN_POSITIONS * VOCAB);
    float* kl = read_npy(folder, "kl-c1-w0.npy", RUN_POSITIONS);
    free(read_npy(folder, "c0-w0.npy", (size_t)RUN_POSITIONS * VOCAB));
    free(read_npy(folder, "kl-c0-w0.npy", RUN_POSITIONS));
    free(read_npy(folder, "targets-w0.npy", RUN_POSITIONS));
    cr_expect_eq(rmdir(folder), 0);
    for (int i = 0; i < RUN_POSITIONS; i++) {
        const float *a = base + i * VOCAB, *b = cache + i * VOCAB;
        long double sum_a = 0.0L, sum_b = 0.0L, expected = 0.0L;
        for (int j = 0; j < VOCAB; j++) {
            sum_a += expl((long double)a[j]);
            sum_b += expl((long double)b[j]);
        }
        for (int j = 0; j < VOCAB; j++) {
            const long double p = (long double)a[j] - logl(sum_a);
            const long double q = (long double)b[j] - logl(sum_b);
            expected += expl(p) * (p - q);
        }
        const double bound = 1e-9 + 1e-6 * (double)expected;
        cr_expect_float_eq((double)kl[i], (double)expected, bound);
        cr_expect_float_eq((double)results.caches[1].windows[0].kl[i], (double)expected, bound);
    }
    free(base);
    free(cache);
    free(kl);
    eval_results_free(&results);
    remove_files(&files);
}

// Breaks when a result is missing in JSON, or a NaN makes it unreadable: one window has no error.
Test(eval, json_has_every_result)
{
    static const char* const top[] = { "version", "model", "text_sha256", "context", "windows" };
    static const char* const each[] = { "cache", "bits_key", "bits_value", "bits_body",
                                        "bits_total", "kl_x1000", "kl_x1000_se", "kl_median_x1000",
                                        "kl_p99_x1000", "top1", "perplexity", "perplexity_base",
                                        "tokens_per_second", "cache_bytes" };
    char* caches[] = { kivi };
    char path[] = KVLOOM_TEST_SCRATCH "/json-XXXXXX";
    char message[256] = "";
    run_files files = make_files(&models[0], 200);
    const int handle = mkstemp(path);
    cr_assert(handle >= 0 && close(handle) == 0);
    eval_options options = options_for(&files, caches, 1);
    options.windows = 1;
    options.generate = 8;
    eval_results results = run_ok(&options);
    cr_assert_eq(eval_json_write(path, &results, message, sizeof message), 0, "%s", message);
    FILE* file = fopen(path, "rb");
    static char text[1 << 20];
    cr_assert_not_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    cJSON* root = cJSON_Parse(text);
    cr_assert_not_null(root);
    for (size_t i = 0; i < sizeof top / sizeof top[0]; i++) {
        cr_expect(cJSON_HasObjectItem(root, top[i]), "%s", top[i]);
    }
    const cJSON* result = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "results"), 0);
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
        cr_expect(cJSON_HasObjectItem(result, each[i]), "%s", each[i]);
    }
    cr_expect(cJSON_IsNull(cJSON_GetObjectItem(result, "kl_x1000_se")));
    cr_expect_float_eq(cJSON_GetNumberValue(cJSON_GetObjectItem(result, "kl_x1000")),
                       1000.0 * results.caches[0].kl, 1e-6);
    cJSON_Delete(root);
    eval_results_free(&results);
    remove_files(&files);
    unlink(path);
}

// NEEDLES AND GENERATIONS

// The vocabulary of the tiny models has no blank: it comes back as the mark that stands for one.
static void put_blanks(char* text)
{
    for (char* mark = strstr(text, "\xe2\x96\x81"); mark != NULL;
         mark = strstr(text, "\xe2\x96\x81")) {
        *mark = ' ';
        memmove(mark + 1, mark + 3, strlen(mark + 3) + 1);
    }
}

// Breaks when a prompt is longer than told, loses its fact or its answer, or depends on more than
// the seed.
Test(eval, needle_prompts)
{
    char message[256] = "";
    eval_text text;
    eval_needle_prompt prompt, again;
    model* m = open_model(&models[0], NULL);
    const tokenizer* tok = model_tokenizer(m);
    char* path = write_text(2000);
    cr_assert_eq(eval_text_read(path, tok, &text, message, sizeof message), 0, "%s", message);
    // This vocabulary has a token a byte: 300 letters hold a fact, 100 do not.
    eval_needle_plan plan = { .num_lengths = 2, .lengths = { 100, 512 }, .trials = 1, .seed = 5 };
    cr_expect_neq(eval_needle_make(&plan, &text, tok, 0, 0, 0, &prompt, message, sizeof message),
                  0);
    cr_expect(strstr(message, "too short") != NULL);
    int64_t before = -1;
    for (int depth = 0; depth < EVAL_DEPTHS; depth++) {
        char shown[2048];
        cr_assert_eq(eval_needle_make(&plan, &text, tok, 1, depth, 0, &prompt, message,
                                      sizeof message), 0, "%s", message);
        cr_assert_eq(eval_needle_make(&plan, &text, tok, 1, depth, 0, &again, message,
                                      sizeof message), 0);
        cr_expect(prompt.count == again.count && prompt.count <= 512 && prompt.count > 500);
        cr_expect_eq(memcmp(prompt.ids, again.ids, (size_t)prompt.count * sizeof(int32_t)), 0);
        eval_text_show(tok, prompt.ids, prompt.count, shown, sizeof shown);
        put_blanks(shown);
        const char* fact = strstr(shown, "secret number of ");
        cr_assert_not_null(fact);
        const char* number = strstr(fact, " is ");
        cr_assert_not_null(number);
        cr_expect_eq(strncmp(shown + strlen(shown) - 5, number + 4, 5), 0);
        cr_expect(fact - shown > before);
        before = fact - shown;
        free(prompt.ids);
        free(again.ids);
    }
    eval_text_free(&text);
    unlink(path);
    free(path);
    model_close(m);
}

// Breaks when a generation with the same cache diverges, or KL is of other tokens than the base's.
Test(eval, generations)
{
    char* caches[] = { f16, kivi };
    run_files files = make_files(&models[1], 400);
    eval_options options = options_for(&files, caches, 2);
    options.generate = 120;
    eval_results results = run_ok(&options);
    cr_expect(results.base.num_generations == 2 && results.caches[0].num_generations == 2);
    for (int i = 0; i < 2; i++) {
        const eval_generation* same = &results.caches[0].generations[i];
        const eval_generation* other = &results.caches[1].generations[i];
        const eval_generation* base = &results.base.generations[i];
        cr_expect_eq(same->first_divergence, -1);
        cr_expect_eq(memcmp(same->ids, base->ids, 120 * sizeof(int32_t)), 0);
        cr_expect_eq(mean_of(same->kl, 120), 0.0);
        cr_expect(mean_of(other->kl, 120) > 1e-6);
        if (other->first_divergence >= 0) {
            const int at = other->first_divergence;
            cr_expect_eq(memcmp(other->ids, base->ids, (size_t)at * sizeof(int32_t)), 0);
            cr_expect_neq(other->ids[at], base->ids[at]);
        }
    }
    eval_results_free(&results);
    remove_files(&files);
}

// Breaks when windows overlap, skip tokens, or lose the token that the model begins with.
Test(eval, windows_of_a_text)
{
    char message[256] = "";
    int32_t first[50], second[50];
    eval_text text;
    model* m = open_model(&models[0], NULL);
    char* path = write_text(300);
    cr_assert_eq(eval_text_read(path, model_tokenizer(m), &text, message, sizeof message), 0);
    cr_expect_eq(text.bos, 1);
    cr_expect_eq(eval_text_num_windows(&text, 50), text.count / 49);
    eval_text_window(&text, 50, 0, first);
    eval_text_window(&text, 50, 1, second);
    cr_expect(first[0] == 1 && second[0] == 1);
    cr_expect_eq(memcmp(first + 1, text.ids, 49 * sizeof *first), 0);
    cr_expect_eq(memcmp(second + 1, text.ids + 49, 49 * sizeof *first), 0);
    eval_text_free(&text);
    unlink(path);
    free(path);
    model_close(m);
}
