// test_calibration.c -- statistics of rows, calibration files, and caches that read them.
//
// Statistics are compared with tests/oracles/statistics.py (NumPy, float64) on rows that both make.

#include "test_support.h"

#include <float.h>
#include <limits.h>
#include <unistd.h>

#ifndef KVLOOM_TEST_ROOT
#define KVLOOM_TEST_ROOT "."
#define KVLOOM_TEST_SCRATCH "/tmp"
#endif

// The model of the oracle.
enum { ROWS = 150, Q_HEADS = 4, KV_HEADS = 2, DK = 32, DV = 48, OUT = 40, GROUP = 2 };

typedef struct inputs {
    float *k, *v, *q, *w_o;
} inputs;

static float* oracle_rows(uint64_t seed, int64_t count, float scale, float shift)
{
    float* x = test_floats(count);
    uint64_t state = seed;
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((double)(state >> 48) - 32768.0) * 0x1p-13f * scale + shift;
    }
    return x;
}

static inputs make_inputs(void)
{
    const inputs in = { oracle_rows(1, ROWS * KV_HEADS * DK, 1.0f, 0.0f),
                        oracle_rows(2, ROWS * KV_HEADS * DV, 1.0f, 2.0f),
                        oracle_rows(3, ROWS * Q_HEADS * DK, 0.25f, 0.0f),
                        oracle_rows(4, OUT * Q_HEADS * DV, 0.25f, 0.0f) };
    return in;
}

static void free_inputs(inputs* in)
{
    free(in->k);
    free(in->v);
    free(in->q);
    free(in->w_o);
}

static kvl_layer_desc shape_of(int window, float cap, const kvl_rope* rope)
{
    kvl_layer_desc l = { .num_q_heads = Q_HEADS, .num_kv_heads = KV_HEADS, .head_dim = DK,
                         .head_dim_v = DV, .window_len = window, .soft_cap = cap, .rope = rope };
    return l;
}

static kvl_statistics* create(kvl_context* ctx, const kvl_layer_desc* layer, int queries)
{
    kvl_statistics* s = NULL;
    kvl_statistics_desc desc = { .num_layers = 1, .layers = layer, .num_queries = queries,
                                 .num_key_runs = 1, .seed = 7 };
    test_ok(ctx, kvl_statistics_create(ctx, &desc, &s), "kvl_statistics_create");
    return s;
}

// Rows [first, end) of the oracle's sequence.
static kvl_statistics_rows rows_of(const inputs* in, int64_t first, int64_t end)
{
    kvl_statistics_rows r = { .num_keys = end, .num_rows = end - first };
    r.k.data = in->k;
    r.v.data = in->v;
    r.q.data = in->q + first * Q_HEADS * DK;
    return r;
}

static void add(kvl_context* ctx, kvl_statistics* s, const inputs* in, int64_t first, int64_t end)
{
    const kvl_statistics_rows r = rows_of(in, first, end);
    test_ok(ctx, kvl_statistics_add(s, &r), "kvl_statistics_add");
}

// STATISTICS

typedef struct digest { double sum, wave, steps, size; } digest;

static digest digest_of(const double* x, int64_t num)
{
    digest d = { 0.0, 0.0, 0.0, 0.0 };
    for (int64_t i = 0; i < num; i++) {
        d.sum += x[i];
        d.wave += x[i] * cos(0.37 * (double)i);
        d.steps += x[i] * (double)(i * 7919 % 97 - 48) / 48.0;
        d.size += fabs(x[i]);
    }
    return d;
}

static kvl_statistics* oracle_statistics(kvl_context* ctx, const inputs* in, int number, int step)
{
    static const int windows[] = { 0, 70, 0 };
    static const float caps[] = { 0.0f, 0.0f, 2.0f };
    const kvl_rope rope = { .dims = 24, .base = 1000.0, .split_halves = number == 1 };
    const kvl_layer_desc layer = shape_of(windows[number], caps[number], &rope);
    kvl_statistics* s = create(ctx, &layer, GROUP * ROWS);
    test_ok(ctx, kvl_statistics_set_output(s, 0, in->w_o, OUT), "kvl_statistics_set_output");
    for (int64_t first = 0; first < ROWS; first += step) {
        add(ctx, s, in, first, first + step < ROWS ? first + step : ROWS);
    }
    return s;
}

// Of a sample that holds every query, in the order of the oracle: head, then position.
static void read_lse(const inputs* in, const kvl_statistics* s, int h, double* lse)
{
    int num = 0;
    const float* sample = kvl_statistics_sample(s, 0, h, 0, &num);
    const float scale = 1.0f / sqrtf((float)DK);
    cr_assert_eq(num, GROUP * ROWS);
    for (int i = 0; i < GROUP * ROWS; i++) {
        const float* q = in->q + ((i % ROWS) * Q_HEADS + h * GROUP + i / ROWS) * DK;
        float scaled[DK];
        int at = 0;
        for (int c = 0; c < DK; c++) { scaled[c] = q[c] * scale; }
        while (at < num && memcmp(sample + at * (DK + 1), scaled, sizeof scaled) != 0) { at++; }
        cr_assert(at < num, "query %d of head %d is not in the sample", i, h);
        lse[i] = (double)sample[at * (DK + 1) + DK];
    }
}

static void check_oracle(const test_target* target, int step, int threads)
{
    kvl_context* ctx = test_context(target, threads);
    inputs in = make_inputs();
    FILE* file = fopen(KVLOOM_TEST_ROOT "/tests/fixtures/statistics.txt", "r");
    int number = 0, h = 0, count = 0, current = -1;
    char name[64];
    digest want;
    double lse[GROUP * ROWS];
    kvl_statistics* s = NULL;
    cr_assert_not_null(file);
    while (fscanf(file, "%d %d %63s %lf %lf %lf %lf", &number, &h, name, &want.sum, &want.wave,
                  &want.steps, &want.size) == 7) {
        if (number != current) {
            kvl_statistics_free(s);
            s = oracle_statistics(ctx, &in, current = number, step);
        }
        int64_t num = GROUP * ROWS;
        const double* x = lse;
        if (strcmp(name, "lse") == 0) { read_lse(&in, s, h, lse); }
        else { x = kvl_statistics_get(s, 0, h, name, &num); }
        cr_assert_not_null(x, "%s", name);
        const digest has = digest_of(x, num);
        // Rows are floats and sums are doubles; attention is computed in floats.
        const bool attends = strstr(name, "seen") || strstr(name, "output_") || strstr(name, "att");
        const double bound = (attends && strcmp(name, "output_outer") != 0 ? 1e-5 :
                              strcmp(name, "lse") == 0 ? 1e-6 :
                              strcmp(name, "key_group_outer") == 0 ||
                              strcmp(name, "key_turn_outer") == 0 ? 1e-7 : 1e-12) * want.size;
        cr_expect(fabs(has.sum - want.sum) <= bound && fabs(has.wave - want.wave) <= bound &&
                  fabs(has.steps - want.steps) <= bound && fabs(has.size - want.size) <= bound,
                  "%s, case %d, head %d, %s: %.12g %.12g %.12g, not %.12g %.12g %.12g (+- %g)",
                  target->name, number, h, name, has.sum, has.wave, has.steps, want.sum, want.wave,
                  want.steps, bound);
        count++;
    }
    cr_expect_eq(count, 3 * KV_HEADS * 17);
    fclose(file);
    kvl_statistics_free(s);
    free_inputs(&in);
    kvl_context_destroy(ctx);
}

// Breaks when a statistic is another quantity than its definition, counts a row twice, or sees rows
// that a window hides: against NumPy, with and without a window, a soft cap and both RoPE forms.
Test(statistics, agree_with_numpy)
{
    test_target targets[TEST_MAX_TARGETS];
    const int num = test_targets(targets);
    for (int i = 0; i < num; i++) { check_oracle(&targets[i], ROWS, 2); }
}

// Breaks when rows that come in several calls are not those of one.
Test(statistics, parts_of_a_sequence_add_up)
{
    const test_target target = { "host", KVL_TARGET_AUTO, NULL };
    check_oracle(&target, 1, 1);
    check_oracle(&target, 37, 3);
}

static const char* const names[] = {
    "rows", "grouped_rows", "query_rows", "query_seen_weight", "query_output_weight", "key_sum",
    "key_unrotated_sum", "query_sum", "value_sum", "key_outer", "key_group_outer",
    "key_turn_outer", "turn_outer", "query_outer",
    "query_seen_outer", "query_output_outer", "value_outer", "attended_outer", "output_outer",
    "key_most", "value_most",
};
enum { NUM_NAMES = sizeof names / sizeof names[0] };

static void expect_equal(const kvl_statistics* a, const kvl_statistics* b, const char* what)
{
    for (int h = 0; h < KV_HEADS; h++) {
        for (int i = 0; i < NUM_NAMES; i++) {
            int64_t na = 0, nb = 0;
            const double* x = kvl_statistics_get(a, 0, h, names[i], &na);
            const double* y = kvl_statistics_get(b, 0, h, names[i], &nb);
            cr_assert_eq(na, nb, "%s: %s", what, names[i]);
            cr_expect(na == 0 || memcmp(x, y, (size_t)na * sizeof *x) == 0, "%s: %s of head %d",
                      what, names[i], h);
        }
        int na = 0, nb = 0;
        kvl_statistics_sample(a, 0, h, 0, &na);
        kvl_statistics_sample(b, 0, h, 0, &nb);
        cr_expect_eq(na, nb);
    }
}

// Breaks when a sum depends on how many threads compute it.
Test(statistics, threads_change_no_bit)
{
    const test_target target = { "host", KVL_TARGET_AUTO, NULL };
    inputs in = make_inputs();
    kvl_context* one = test_context(&target, 1);
    kvl_context* three = test_context(&target, 3);
    kvl_statistics* a = oracle_statistics(one, &in, 0, ROWS);
    kvl_statistics* b = oracle_statistics(three, &in, 0, ROWS);
    expect_equal(a, b, "1 and 3 threads");
    kvl_statistics_free(a);
    kvl_statistics_free(b);
    kvl_context_destroy(one);
    kvl_context_destroy(three);
    free_inputs(&in);
}

// Breaks when a row's other types or strides are read differently.
Test(statistics, rows_of_any_type_and_stride)
{
    const test_target target = { "host", KVL_TARGET_AUTO, NULL };
    inputs in = make_inputs();
    kvl_context* ctx = test_context(&target, 2);
    const kvl_layer_desc layer = shape_of(0, 0.0f, NULL);
    const int64_t head_stride = DV + 3, row_stride = KV_HEADS * head_stride + 5;
    uint16_t* k = test_alloc(ROWS * KV_HEADS * DK, sizeof *k);
    float* plain = test_floats(ROWS * KV_HEADS * DK);
    float* v = test_floats(ROWS * row_stride);
    for (int i = 0; i < ROWS * KV_HEADS * DK; i++) {
        plain[i] = test_round_f16(in.k[i]);
        k[i] = test_bits_f16(plain[i]);
    }
    for (int r = 0; r < ROWS; r++) {
        for (int h = 0; h < KV_HEADS; h++) {
            memcpy(v + r * row_stride + h * head_stride, in.v + (r * KV_HEADS + h) * DV,
                   DV * sizeof *v);
        }
    }
    kvl_statistics* a = create(ctx, &layer, 4);
    kvl_statistics* b = create(ctx, &layer, 4);
    kvl_statistics_rows r = rows_of(&in, 0, ROWS);
    r.k.data = plain;
    test_ok(ctx, kvl_statistics_add(a, &r), "plain");
    r.k.data = k;
    r.k.type = KVL_F16;
    r.v = (kvl_const_rows){ v, KVL_F32, row_stride, head_stride };
    test_ok(ctx, kvl_statistics_add(b, &r), "f16 and strides");
    expect_equal(a, b, "types and strides");
    kvl_statistics_free(a);
    kvl_statistics_free(b);
    free(k);
    free(plain);
    free(v);
    kvl_context_destroy(ctx);
    free_inputs(&in);
}

// Breaks when merging is not adding, or when the sample of a union is not that of its parts.
Test(statistics, merge_is_exact)
{
    const test_target target = { "host", KVL_TARGET_AUTO, NULL };
    inputs in = make_inputs();
    kvl_context* ctx = test_context(&target, 2);
    const kvl_layer_desc layer = shape_of(0, 0.0f, NULL);
    kvl_statistics *all = create(ctx, &layer, 8), *a = create(ctx, &layer, 8);
    kvl_statistics *b = create(ctx, &layer, 8);
    int na = 0, nb = 0;
    kvl_statistics_rows r = rows_of(&in, 0, ROWS);
    for (int sequence = 0; sequence < 2; sequence++) {
        r.sequence = (uint64_t)sequence;
        test_ok(ctx, kvl_statistics_add(all, &r), "all");
        test_ok(ctx, kvl_statistics_add(sequence ? b : a, &r), "part");
    }
    test_ok(ctx, kvl_statistics_merge(a, b), "kvl_statistics_merge");
    for (int h = 0; h < KV_HEADS; h++) {
        for (int i = 0; i < NUM_NAMES; i++) {
            int64_t num = 0;
            const double* x = kvl_statistics_get(all, 0, h, names[i], &num);
            const double* y = kvl_statistics_get(a, 0, h, names[i], NULL);
            const digest one = digest_of(x, num), other = digest_of(y, num);
            cr_expect(num == 0 || fabs(one.wave - other.wave) <= 1e-13 * one.size, "%s", names[i]);
        }
        const float* x = kvl_statistics_sample(all, 0, h, 0, &na);
        const float* y = kvl_statistics_sample(a, 0, h, 0, &nb);
        cr_assert(na == 8 && nb == 8);
        for (int i = 0; i < na; i++) {
            int at = 0;
            while (at < nb && memcmp(x + i * (DK + 1), y + at * (DK + 1), DK * 4) != 0) { at++; }
            cr_expect(at < nb, "sample %d of head %d is not among those merged", i, h);
        }
    }
    kvl_statistics_free(all);
    kvl_statistics_free(a);
    kvl_statistics_free(b);
    kvl_context_destroy(ctx);
    free_inputs(&in);
}

// Breaks when a bad row or shape is taken, or a refused call changes something.
Test(statistics, bad_input_is_refused_by_name)
{
    const test_target target = { "host", KVL_TARGET_AUTO, NULL };
    inputs in = make_inputs();
    kvl_context* ctx = test_context(&target, 1);
    kvl_layer_desc layer = shape_of(0, 0.0f, NULL);
    kvl_statistics *s = create(ctx, &layer, 4), *same = create(ctx, &layer, 4), *bad = NULL;
    kvl_statistics_rows r = rows_of(&in, 0, ROWS);
    add(ctx, s, &in, 0, ROWS);
    add(ctx, same, &in, 0, ROWS);
    in.q[5 * Q_HEADS * DK + 2 * DK + 7] = NAN;
    cr_expect_eq((int)kvl_statistics_add(s, &r), (int)KVL_BAD_ARGUMENT);
    cr_expect_str_eq(kvl_context_message(ctx), "q: row 5, head 2, channel 7 is not finite");
    r.num_rows = ROWS + 1;
    cr_expect_eq((int)kvl_statistics_add(s, &r), (int)KVL_BAD_ARGUMENT);
    r = rows_of(&in, 0, 5);
    r.layer = 1;
    cr_expect_eq((int)kvl_statistics_add(s, &r), (int)KVL_BAD_ARGUMENT);
    r.layer = 0;
    r.v.data = NULL;
    cr_expect_eq((int)kvl_statistics_add(s, &r), (int)KVL_BAD_ARGUMENT);
    cr_expect_eq((int)kvl_statistics_set_output(s, 0, in.w_o, OUT), (int)KVL_BAD_ARGUMENT);
    expect_equal(s, same, "after refused calls");
    layer.head_dim = 24;
    kvl_statistics_desc desc = { .num_layers = 1, .layers = &layer };
    cr_expect_eq((int)kvl_statistics_create(ctx, &desc, &bad), (int)KVL_BAD_ARGUMENT);
    cr_expect(bad == NULL && strstr(kvl_context_message(ctx), "head_dim = 24"));
    layer.head_dim = 64;
    test_ok(ctx, kvl_statistics_create(ctx, &desc, &bad), "head_dim 64");
    cr_expect_eq((int)kvl_statistics_merge(s, bad), (int)KVL_BAD_ARGUMENT);
    cr_expect_null(kvl_statistics_get(s, 0, 0, "query_output_outer", NULL), "no w_o was given");
    cr_expect_null(kvl_statistics_get(s, 0, 0, "nothing", NULL));
    kvl_statistics_free(bad);
    kvl_statistics_free(s);
    kvl_statistics_free(same);
    kvl_context_destroy(ctx);
    free_inputs(&in);
}

// Breaks when statistics are taken of a layer that no cache can have, or a number out of its range
// becomes the default.
Test(statistics, a_layer_that_no_cache_has_is_refused)
{
    static const kvl_rope fast = { .base = 1e-300, .scale = 1e300 };
    static const struct { kvl_layer_desc layer; const char* words; } bad[] = {
        { { 4, 2, 64, .window_len = -1 }, "layer 0: window_len = -1: must not be negative" },
        { { 4, 2, 64, .soft_cap = -1.0f }, "layer 0: soft_cap = -1: must be finite" },
        { { 4, 2, 64, .soft_cap = NAN }, "layer 0: soft_cap = nan: must be finite" },
        { { 4, 2, 64, .soft_cap = INFINITY }, "layer 0: soft_cap = inf: must be finite" },
        { { 4, 2, 64, .softmax_scale = -1.0f }, "layer 0: softmax_scale = -1: must be finite" },
        { { 4, 2, 64, .softmax_scale = NAN }, "layer 0: softmax_scale = nan: must be finite" },
        { { 2048, 2048, 64, .spec = NULL }, "layer 0: num_kv_heads = 2048: must be 1 to 1024" },
        { { 4, -2, 64, .spec = NULL }, "layer 0: num_kv_heads = -2: must be 1 to 1024" },
        { { 34, 2, 64, .spec = NULL }, "layer 0: num_q_heads = 34: must be 1 to 16 times" },
        { { 5, 2, 64, .spec = NULL }, "layer 0: num_q_heads = 5: must be 1 to 16 times" },
        { { 4, 2, 272, .spec = NULL }, "layer 0: head_dim = 272: must be 32 to 256" },
        { { 4, 2, 576, 64, .values_in_keys = 1 }, "layer 0: head_dim = 576: must be 32 to 256" },
        { { 4, 2, 64, 24, .spec = NULL }, "layer 0: head_dim_v = 24: must be 32 to 256" },
        { { 4, 2, 64, .rope = &fast }, "layer 0: rope.base = 1e-300, rope.scale = 1e+300: pair 1 "
          "turns by inf a position" },
    };
    const test_target target = { "host", KVL_TARGET_AUTO, NULL };
    kvl_context* ctx = test_context(&target, 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const kvl_statistics_desc desc = { .num_layers = 1, .layers = &bad[i].layer };
        kvl_statistics* s = NULL;
        cr_expect_eq((int)kvl_statistics_create(ctx, &desc, &s), (int)KVL_BAD_ARGUMENT, "%s",
                     bad[i].words);
        cr_expect(s == NULL && strstr(kvl_context_message(ctx), bad[i].words), "'%s', not '%s'",
                  kvl_context_message(ctx), bad[i].words);
        kvl_statistics_free(s);
    }
    kvl_context_destroy(ctx);
}

// CALIBRATIONS

// A file of this process: tests run beside each other.
static char scratch[512];

static void __attribute__((constructor)) name_scratch(void)
{
    snprintf(scratch, sizeof scratch, "%s/calibration-%d", KVLOOM_TEST_SCRATCH, (int)getpid());
}
static const char* const centred = "rtn:k4,v4,g16,k.shift=mean";

static const kvl_rope rope_pairs = { .dims = 24, .base = 1000.0 };

typedef struct calibrated {
    kvl_context*     ctx;
    kvl_layer_desc   layer;
    kvl_cache_desc   cache;
    kvl_statistics*  stats;
    kvl_calibration* cal;
} calibrated;

static void open_calibrated(calibrated* c, const kvl_context_desc* desc)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    inputs in = make_inputs();
    *c = (calibrated){ .ctx = NULL };
    if (desc == NULL) { c->ctx = test_context(&target, 1); }
    else { cr_assert_eq((int)kvl_context_create(desc, &c->ctx), (int)KVL_OK); }
    c->layer = shape_of(0, 0.0f, &rope_pairs);
    c->layer.spec = centred;
    c->cache = (kvl_cache_desc){ .num_layers = 1, .layers = &c->layer, .model_identity = "m 1" };
    c->stats = create(c->ctx, &c->layer, 8);
    test_ok(c->ctx, kvl_statistics_set_output(c->stats, 0, in.w_o, OUT), "set_output");
    add(c->ctx, c->stats, &in, 0, ROWS);
    test_ok(c->ctx, kvl_calibration_create(c->stats, &c->cache, &c->cal), "create");
    free_inputs(&in);
}

static void close_calibrated(calibrated* c)
{
    kvl_calibration_free(c->cal);
    kvl_statistics_free(c->stats);
    kvl_context_destroy(c->ctx);
}

static void expect_status(const calibrated* c, kvl_status status, kvl_status want, const char* what)
{
    cr_expect_eq((int)status, (int)want, "status %d, not %d", (int)status, (int)want);
    cr_expect(strstr(kvl_context_message(c->ctx), what), "'%s' does not say '%s'",
              kvl_context_message(c->ctx), what);
}

static void expect_refused(const calibrated* c, kvl_status status, const char* what)
{
    expect_status(c, status, KVL_BAD_ARGUMENT, what);
}

static void expect_no_cache(const calibrated* c, const kvl_cache_desc* desc, const char* what)
{
    kvl_cache* cache = NULL;
    expect_refused(c, kvl_cache_create(c->ctx, desc, &cache), what);
    cr_expect_null(cache);
}

// Breaks when a table is not what statistics say, or a file gives back something else than what
// was saved: the mean of keys by hand, then everything bit for bit.
Test(calibration, survives_a_file)
{
    calibrated c;
    open_calibrated(&c, NULL);
    inputs in = make_inputs();
    int64_t num = 0;
    const float* mean = kvl_calibration_table(c.cal, 0, 0, "mean", &num);
    cr_assert(mean != NULL && num == KV_HEADS * DK);
    for (int i = 0; i < KV_HEADS * DK; i++) {
        double sum = 0.0;
        for (int r = 0; r < ROWS; r++) { sum += (double)in.k[r * KV_HEADS * DK + i]; }
        cr_expect_eq((double)mean[i], (double)(float)(sum / ROWS));
    }
    const char* note = "a \"quoted\"\\ line\n\x01 and \xc3\xa9";
    test_ok(c.ctx, kvl_calibration_set_text(c.cal, "note", note), "set_text");
    test_ok(c.ctx, kvl_calibration_save(c.cal, c.stats, scratch), "save");
    kvl_calibration* cal = NULL;
    kvl_statistics* stats = NULL;
    kvl_cache* cache = NULL;
    test_ok(c.ctx, kvl_calibration_load(c.ctx, scratch, &cal), "load");
    test_ok(c.ctx, kvl_statistics_load(c.ctx, scratch, &stats), "statistics");
    cr_expect_str_eq(kvl_calibration_text(cal, "model"), "m 1");
    cr_expect_str_eq(kvl_calibration_text(cal, "note"), note);
    cr_expect_str_eq(kvl_calibration_text(cal, "absent"), "");
    const float* loaded = kvl_calibration_table(cal, 0, 0, "mean", &num);
    cr_assert(loaded != NULL && num == KV_HEADS * DK);
    cr_expect_eq(memcmp(loaded, mean, (size_t)num * sizeof *mean), 0);
    expect_equal(stats, c.stats, "a file");
    c.cache.calibration = cal;
    test_ok(c.ctx, kvl_cache_create(c.ctx, &c.cache, &cache), "kvl_cache_create");
    kvl_cache_free(cache);
    kvl_statistics_free(stats);
    kvl_calibration_free(cal);
    test_ok(c.ctx, kvl_calibration_save(c.cal, NULL, scratch), "save without statistics");
    expect_status(&c, kvl_statistics_load(c.ctx, scratch, &stats), KVL_FILE, "no statistics");
    close_calibrated(&c);
    free_inputs(&in);
    remove(scratch);
}

// Breaks when a layer that statistics and caches take makes a file that no one can read.
Test(calibration, of_any_layer_survives_a_file)
{
    calibrated c;
    open_calibrated(&c, NULL);
    inputs in = make_inputs();
    kvl_layer_desc layer = shape_of(INT_MAX, 1e20f, &rope_pairs);
    kvl_calibration *cal = NULL, *loaded = NULL;
    kvl_statistics* stats = NULL;
    layer.softmax_scale = 1e9f;
    kvl_statistics* s = create(c.ctx, &layer, 8);
    add(c.ctx, s, &in, 0, ROWS);
    test_ok(c.ctx, kvl_calibration_create(s, NULL, &cal), "create");
    test_ok(c.ctx, kvl_calibration_save(cal, s, scratch), "save");
    test_ok(c.ctx, kvl_calibration_load(c.ctx, scratch, &loaded), "load");
    test_ok(c.ctx, kvl_statistics_load(c.ctx, scratch, &stats), "statistics");
    expect_equal(stats, s, "a file");
    test_ok(c.ctx, kvl_statistics_merge(stats, s), "of the same window, cap and scale");
    kvl_statistics_free(stats);
    kvl_statistics_free(s);
    kvl_calibration_free(loaded);
    kvl_calibration_free(cal);
    close_calibrated(&c);
    free_inputs(&in);
    remove(scratch);
}

static unsigned char* read_file(const char* path, size_t* bytes)
{
    FILE* file = fopen(path, "rb");
    cr_assert_not_null(file, "%s", path);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    unsigned char* data = test_alloc(*bytes, 1);
    cr_assert_eq(fread(data, 1, *bytes, file), *bytes);
    fclose(file);
    return data;
}

// Breaks when a calibration that was loaded cannot be saved, or only at the second time, or another
// time otherwise: its statistics are not part of it.
Test(calibration, that_was_loaded_can_be_saved)
{
    calibrated c;
    kvl_calibration* cal = NULL;
    kvl_statistics* stats = NULL;
    char copies[2][600];
    unsigned char* data[2];
    size_t bytes[2];
    open_calibrated(&c, NULL);
    test_ok(c.ctx, kvl_calibration_save(c.cal, c.stats, scratch), "save");
    test_ok(c.ctx, kvl_calibration_load(c.ctx, scratch, &cal), "load");
    test_ok(c.ctx, kvl_calibration_set_text(cal, "note", "another"), "set_text");
    for (int i = 0; i < 2; i++) {
        snprintf(copies[i], sizeof copies[i], "%s-%d", scratch, i);
        test_ok(c.ctx, kvl_calibration_save(cal, NULL, copies[i]), copies[i]);
        data[i] = read_file(copies[i], &bytes[i]);
    }
    cr_expect(bytes[0] == bytes[1] && memcmp(data[0], data[1], bytes[0]) == 0);
    expect_status(&c, kvl_statistics_load(c.ctx, copies[0], &stats), KVL_FILE, "no statistics");
    test_ok(c.ctx, kvl_statistics_load(c.ctx, scratch, &stats), "the first file is as it was");
    test_ok(c.ctx, kvl_calibration_save(cal, stats, copies[0]), "save with statistics again");
    kvl_statistics_free(stats);
    test_ok(c.ctx, kvl_statistics_load(c.ctx, copies[0], &stats), "statistics");
    expect_equal(stats, c.stats, "two files");
    for (int i = 0; i < 2; i++) {
        free(data[i]);
        remove(copies[i]);
    }
    kvl_statistics_free(stats);
    kvl_calibration_free(cal);
    close_calibrated(&c);
    remove(scratch);
}

// Breaks when rows that are added to statistics of a file do not count in each of them: what an
// output matrix makes of rows needs the matrix, which files have not.
Test(calibration, rows_after_a_file_count_in_all_or_are_refused)
{
    calibrated c;
    inputs in = make_inputs();
    kvl_calibration* cal = NULL;
    kvl_statistics *loaded = NULL, *same = NULL;
    open_calibrated(&c, NULL);
    test_ok(c.ctx, kvl_calibration_save(c.cal, c.stats, scratch), "save");
    test_ok(c.ctx, kvl_statistics_load(c.ctx, scratch, &loaded), "load");
    const kvl_statistics_rows r = rows_of(&in, 0, ROWS);
    expect_refused(&c, kvl_statistics_add(loaded, &r), "layer 0: query_output_outer: ");
    expect_equal(loaded, c.stats, "after a refused call");
    kvl_statistics_free(loaded);
    kvl_statistics* plain = create(c.ctx, &c.layer, 8);
    add(c.ctx, plain, &in, 0, 90);
    test_ok(c.ctx, kvl_calibration_create(plain, NULL, &cal), "without an output matrix");
    test_ok(c.ctx, kvl_calibration_save(cal, plain, scratch), "save");
    test_ok(c.ctx, kvl_statistics_load(c.ctx, scratch, &same), "load");
    add(c.ctx, same, &in, 90, ROWS);
    add(c.ctx, plain, &in, 90, ROWS);
    expect_equal(same, plain, "a file in between");
    kvl_statistics_free(same);
    kvl_statistics_free(plain);
    kvl_calibration_free(cal);
    close_calibrated(&c);
    free_inputs(&in);
    remove(scratch);
}

typedef struct said_lines { int num; char last[512]; } said_lines;

static void note_line(kvl_log_level level, const char* message, void* user)
{
    said_lines* said = user;
    if (level != KVL_LOG_WARNING || strstr(message, "calibrated on texts") == NULL) { return; }
    said->num++;
    snprintf(said->last, sizeof said->last, "%s", message);
}

// Breaks when a sequence that outgrows its calibration is not told of, or one that does not is:
// twice the length is the last without a word.
Test(calibration, of_a_shorter_context_is_told)
{
    calibrated c;
    said_lines said = { 0, "" };
    kvl_context_desc desc = { .target = KVL_TARGET_REFERENCE, .num_threads = 1 };
    inputs in = make_inputs();
    kvl_calibration* cal = NULL;
    kvl_cache* cache = NULL;
    kvl_seq seq = 0;
    desc.log.call = note_line;
    desc.log.user = &said;
    open_calibrated(&c, &desc);
    test_ok(c.ctx, kvl_calibration_set_text(c.cal, "context", "40"), "set_text");
    test_ok(c.ctx, kvl_calibration_save(c.cal, NULL, scratch), "save");
    test_ok(c.ctx, kvl_calibration_load(c.ctx, scratch, &cal), "load");
    c.cache.calibration = cal;
    test_ok(c.ctx, kvl_cache_create(c.ctx, &c.cache, &cache), "kvl_cache_create");
    test_ok(c.ctx, kvl_seq_create(cache, &seq), "sequence");
    for (int32_t row = 0; row < 90; row++) {
        kvl_append_desc a = { .num_seqs = 1, .seqs = &seq };
        a.k.data = in.k + row * KV_HEADS * DK;
        a.v.data = in.v + row * KV_HEADS * DV;
        test_ok(c.ctx, kvl_append(cache, &a), "append");
        cr_expect_eq(said.num, row >= 80, "%d lines at row %d", said.num, row);
    }
    cr_expect(strstr(said.last, "81 rows") && strstr(said.last, "40 tokens"), "%s", said.last);
    kvl_cache_free(cache);
    kvl_calibration_free(cal);
    close_calibrated(&c);
    free_inputs(&in);
    remove(scratch);
}

// Breaks when statistics that went through a file differ from those that did not: what a run that
// is resumed stands on.
Test(calibration, a_file_in_between_changes_no_bit)
{
    calibrated c;
    open_calibrated(&c, NULL);
    inputs in = make_inputs();
    kvl_statistics* loaded = NULL;
    kvl_statistics *direct = create(c.ctx, &c.layer, 8), *more = create(c.ctx, &c.layer, 8);
    test_ok(c.ctx, kvl_statistics_set_output(direct, 0, in.w_o, OUT), "set_output");
    test_ok(c.ctx, kvl_statistics_set_output(more, 0, in.w_o, OUT), "set_output");
    kvl_statistics_rows r = rows_of(&in, 0, 90);
    r.sequence = 1;
    test_ok(c.ctx, kvl_statistics_add(more, &r), "add");
    test_ok(c.ctx, kvl_statistics_merge(direct, c.stats), "merge");
    test_ok(c.ctx, kvl_statistics_merge(direct, more), "merge");
    test_ok(c.ctx, kvl_calibration_save(c.cal, c.stats, scratch), "save");
    test_ok(c.ctx, kvl_statistics_load(c.ctx, scratch, &loaded), "load");
    test_ok(c.ctx, kvl_statistics_merge(loaded, more), "merge");
    expect_equal(loaded, direct, "through a file");
    kvl_statistics_free(direct);
    kvl_statistics_free(more);
    kvl_statistics_free(loaded);
    close_calibrated(&c);
    free_inputs(&in);
    remove(scratch);
}

// Breaks when a cache takes a calibration of another model, or does not say what is different.
Test(calibration, of_another_model_is_refused_by_name)
{
    calibrated c;
    open_calibrated(&c, NULL);
    c.cache.calibration = c.cal;
    kvl_cache_desc d = c.cache;
    d.model_identity = "m 2";
    expect_no_cache(&c, &d, "calibrated for another model: 'm 1', not 'm 2'");
    d = c.cache;
    const kvl_layer_desc two[2] = { c.layer, c.layer };
    d.layers = two;
    d.num_layers = 2;
    expect_no_cache(&c, &d, "a model of 1 layers: the cache has 2");
    kvl_layer_desc l = c.layer;
    d = c.cache;
    d.layers = &l;
    l.num_kv_heads = 4;
    expect_no_cache(&c, &d, "num_kv_heads = 2: the cache has 4");
    l = c.layer;
    l.num_q_heads = 8;
    expect_no_cache(&c, &d, "num_q_heads = 4: the cache has 8");
    l = c.layer;
    l.head_dim = 64;
    l.rope = NULL;
    expect_no_cache(&c, &d, "head_dim = 32: the cache has 64");
    l = c.layer;
    l.head_dim_v = 64;
    expect_no_cache(&c, &d, "head_dim_v = 48: the cache has 64");
    l = c.layer;
    l.softmax_scale = 0.3f;
    expect_no_cache(&c, &d, "calibrated with softmax_scale = ");
    expect_no_cache(&c, &d, "the cache has 0.3");
    l = c.layer;
    kvl_rope rope = rope_pairs;
    l.rope = &rope;
    rope.base = 10000.0;
    expect_no_cache(&c, &d, "another RoPE setting: pair 1");
    rope = rope_pairs;
    rope.split_halves = 1;
    expect_no_cache(&c, &d, "another RoPE setting: split_halves");
    rope = rope_pairs;
    rope.scale = 0.25;
    expect_no_cache(&c, &d, "another RoPE setting");
    rope = rope_pairs;
    rope.dims = 33;
    expect_no_cache(&c, &d, "rope.dims = 33");
    l.rope = NULL;
    d.model_identity = NULL;
    kvl_cache* cache = NULL;
    test_ok(c.ctx, kvl_cache_create(c.ctx, &d, &cache), "nothing said of model and RoPE");
    kvl_cache_free(cache);
    close_calibrated(&c);
}

// Breaks when a cache that needs a table is made without it, or the user is not told the command.
Test(calibration, what_is_missing_is_told_with_the_command)
{
    calibrated c;
    open_calibrated(&c, NULL);
    kvl_calibration* empty = NULL;
    expect_no_cache(&c, &c.cache, "kvloom-calibrate -m MODEL -f TEXT -o FILE --for '");
    test_ok(c.ctx, kvl_calibration_create(c.stats, NULL, &empty), "without a cache");
    c.cache.calibration = empty;
    c.cache.model_identity = NULL;
    expect_no_cache(&c, &c.cache, "kvloom-calibrate -m MODEL -f TEXT -o FILE --resume --for '");
    kvl_calibration_free(empty);
    close_calibrated(&c);
}

static kvl_status double_mean(const kvl_derive_args* a, float* out)
{
    if (a->user == NULL) {
        snprintf(a->message, a->message_bytes, "no factor was given");
        return KVL_BAD_ARGUMENT;
    }
    const double* rows = kvl_statistics_get(a->stats, a->layer, 0, "rows", NULL);
    cr_assert(a->rank == 1 && a->shape[0] == DK && a->num_kv_heads == KV_HEADS && !a->is_value);
    cr_expect(strcmp(a->stage, "shift") == 0 && strcmp(a->word, "mean") == 0);
    for (int h = 0; h < KV_HEADS; h++) {
        const double* sum = kvl_statistics_get(a->stats, a->layer, h, "key_sum", NULL);
        for (int i = 0; i < DK; i++) {
            out[h * DK + i] = (float)(*(const double*)a->user * sum[i] / *rows);
        }
    }
    return KVL_OK;
}

// Breaks when a caller's derivation does not come before the library's, its failure is not told, or
// what failed stays as a table.
Test(calibration, takes_derivations_of_the_caller)
{
    calibrated c;
    open_calibrated(&c, NULL);
    double factor = 2.0;
    kvl_derivation own = { "shift", "mean", "mean", double_mean, NULL };
    const kvl_derive_desc d = { .stats = c.stats, .cache = &c.cache, .derivations = &own,
                                .num_derivations = 1 };
    kvl_calibration* cal = NULL;
    c.cache.model_identity = NULL;
    test_ok(c.ctx, kvl_calibration_create(c.stats, NULL, &cal), "create");
    expect_refused(&c, kvl_calibration_derive(cal, &d), "table 'mean': no factor was given");
    cr_expect_null(kvl_calibration_table(cal, 0, 0, "mean", NULL));
    own.user = &factor;
    test_ok(c.ctx, kvl_calibration_derive(cal, &d), "derive");
    const float* twice = kvl_calibration_table(cal, 0, 0, "mean", NULL);
    const float* mean = kvl_calibration_table(c.cal, 0, 0, "mean", NULL);
    for (int i = 0; i < KV_HEADS * DK; i++) {
        cr_expect_float_eq((double)twice[i], 2.0 * (double)mean[i], 1e-6);
    }
    kvl_calibration_free(cal);
    close_calibrated(&c);
}

// STATISTICS OF OTHER LAYERS

enum { PAIR = 2 };                     // layers of the next tests

static kvl_statistics* pair_statistics(kvl_context* ctx, const kvl_layer_desc* layers, int num,
                                       int unrotated)
{
    kvl_statistics* s = NULL;
    const kvl_statistics_desc desc = { .num_layers = num, .layers = layers,
                                       .unrotated = unrotated };
    float* rows = oracle_rows(5, 4 * 4 * 64, 1.0f, 0.0f);
    test_ok(ctx, kvl_statistics_create(ctx, &desc, &s), "kvl_statistics_create");
    for (int layer = 0; layer < num; layer++) {
        kvl_statistics_rows r = { .layer = layer, .num_keys = 4, .num_rows = 4 };
        r.k.data = r.v.data = r.q.data = rows;
        if (layers[layer].num_kv_heads > 0) {
            test_ok(ctx, kvl_statistics_add(s, &r), "kvl_statistics_add");
        }
    }
    free(rows);
    return s;
}

static void expect_others(const calibrated* c, const kvl_layer_desc* layers, int num,
                          const char* derived, const char* saved)
{
    kvl_statistics* other = pair_statistics(c->ctx, layers, num, 0);
    const kvl_derive_desc d = { .stats = other, .cache = &c->cache };
    if (derived != NULL) { expect_refused(c, kvl_calibration_derive(c->cal, &d), derived); }
    expect_refused(c, kvl_calibration_save(c->cal, other, scratch), saved);
    cr_expect(access(scratch, F_OK) != 0, "%s: a file was written", saved);
    cr_expect_null(kvl_calibration_table(c->cal, 0, 0, "mean", NULL));
    kvl_statistics_free(other);
}

// Breaks when tables are made from, or saved beside, statistics of other heads, dimensions, scales
// or turns than the calibration's, which are then read beyond their end.
Test(calibration, statistics_of_other_layers_are_refused_by_name)
{
    static const kvl_rope halves = { .dims = 24, .base = 1000.0, .split_halves = 1 };
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    calibrated c = { .ctx = test_context(&target, 1) };
    const kvl_layer_desc one = { 4, 4, 64, .rope = &rope_pairs, .spec = "rtn:g16,shift=mean" };
    const kvl_layer_desc layers[PAIR] = { one, one };
    c.cache = (kvl_cache_desc){ .num_layers = PAIR, .layers = layers };
    c.stats = pair_statistics(c.ctx, layers, PAIR, 0);
    test_ok(c.ctx, kvl_calibration_create(c.stats, NULL, &c.cal), "create");
    kvl_layer_desc other[PAIR] = { one, one };
    other[1].num_kv_heads = 2;
    const char* words = "layer 1: calibrated with num_kv_heads = 4: the statistics have 2";
    expect_others(&c, other, PAIR, words, words);
    other[1] = one;
    other[1].head_dim = 32;
    words = "layer 1: calibrated with head_dim = 64: the statistics have 32";
    expect_others(&c, other, PAIR, words, words);
    other[1] = (kvl_layer_desc){ .num_kv_heads = 0 };
    words = "layer 1: calibrated with num_kv_heads = 4: the statistics have 0";
    expect_others(&c, other, PAIR, words, words);
    other[1] = one;
    other[1].head_dim_v = 32;
    words = "layer 1: calibrated with head_dim_v = 64: the statistics have 32";
    expect_others(&c, other, PAIR, words, words);
    other[1] = one;
    other[1].softmax_scale = 0.5f;
    words = "layer 1: calibrated with softmax_scale = 0.125: the statistics have 0.5";
    expect_others(&c, other, PAIR, words, words);
    other[1] = one;
    other[1].window_len = 9;
    words = "layer 1: calibrated with window_len = 0: the statistics have 9";
    expect_others(&c, other, PAIR, words, words);
    other[1] = one;
    other[1].rope = &halves;
    words = "layer 1: calibrated with another RoPE setting than that of the statistics";
    expect_others(&c, other, PAIR, words, words);
    other[1].rope = NULL;
    expect_others(&c, other, PAIR, NULL, words);
    words = "calibrated for a model of 2 layers: the statistics have 1";
    expect_others(&c, other, 1, words, words);
    test_ok(c.ctx, kvl_calibration_save(c.cal, c.stats, scratch), "its own");
    close_calibrated(&c);
    remove(scratch);
}

// Breaks when statistics of keys before RoPE are saved in a file that says that they are of keys
// after it, or the other way round.
Test(calibration, statistics_of_the_other_kind_are_not_saved)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    const kvl_layer_desc layer = { 4, 4, 64, .rope = &rope_pairs };
    kvl_context* ctx = test_context(&target, 1);
    kvl_statistics* stats[2];
    for (int i = 0; i < 2; i++) { stats[i] = pair_statistics(ctx, &layer, 1, i); }
    for (int i = 0; i < 2; i++) {
        calibrated c = { .ctx = ctx };
        test_ok(ctx, kvl_calibration_create(stats[i], NULL, &c.cal), "create");
        expect_refused(&c, kvl_calibration_save(c.cal, stats[!i], scratch), i
                       ? "statistics_of = 'keys before RoPE': the statistics have unrotated = 0"
                       : "statistics_of = '': the statistics have unrotated = 1");
        expect_refused(&c, kvl_calibration_set_text(c.cal, "statistics_of", i ? "" : "keys"),
                       "is the library's");
        test_ok(ctx, kvl_calibration_save(c.cal, stats[i], scratch), "its own");
        kvl_calibration_free(c.cal);
    }
    for (int i = 0; i < 2; i++) { kvl_statistics_free(stats[i]); }
    kvl_context_destroy(ctx);
    remove(scratch);
}

// Breaks when a list of derivations that is not there is read.
Test(calibration, bad_derivations_are_refused_by_name)
{
    calibrated c;
    open_calibrated(&c, NULL);
    kvl_derivation own = { "shift", "mean", NULL, double_mean, NULL };
    kvl_derive_desc d = { .stats = c.stats, .cache = &c.cache, .num_derivations = 1 };
    c.cache.model_identity = NULL;
    expect_refused(&c, kvl_calibration_derive(c.cal, &d), "num_derivations = 1: ");
    d.derivations = &own;
    expect_refused(&c, kvl_calibration_derive(c.cal, &d), "derivations[0].table or derive = NULL");
    own.table = "mean";
    own.derive = NULL;
    expect_refused(&c, kvl_calibration_derive(c.cal, &d), "derivations[0].table or derive = NULL");
    d.num_derivations = -1;
    expect_refused(&c, kvl_calibration_derive(c.cal, &d), "num_derivations = -1: ");
    close_calibrated(&c);
}

// Breaks when values that are in the keys get tables of their own, which nothing reads: those of
// head_dim channels, read from statistics of head_dim_v.
Test(calibration, values_in_keys_need_no_tables)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    const kvl_layer_desc layer = { 4, 4, 64, 32, .values_in_keys = 1,
                                   .spec = "rtn:g16,k.shift=mean" };
    calibrated c = { .ctx = test_context(&target, 1) };
    kvl_cache* cache = NULL;
    c.cache = (kvl_cache_desc){ .num_layers = 1, .layers = &layer };
    c.stats = pair_statistics(c.ctx, &layer, 1, 0);
    test_ok(c.ctx, kvl_calibration_create(c.stats, &c.cache, &c.cal), "create");
    cr_expect_not_null(kvl_calibration_table(c.cal, 0, 0, "mean", NULL));
    cr_expect_null(kvl_calibration_table(c.cal, 0, 1, "mean", NULL));
    c.cache.calibration = c.cal;
    test_ok(c.ctx, kvl_cache_create(c.ctx, &c.cache, &cache), "kvl_cache_create");
    kvl_cache_free(cache);
    close_calibrated(&c);
}

// FILES THAT ARE WRONG

static void write_file(const void* data, size_t bytes)
{
    FILE* file = fopen(scratch, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

static void write_text_header(const char* header, size_t data_bytes)
{
    unsigned char bytes[4096] = { 0 };
    const size_t n = strlen(header);
    cr_assert(n + data_bytes + 8 <= sizeof bytes);
    bytes[0] = (unsigned char)(n & 255);
    bytes[1] = (unsigned char)(n >> 8);
    memcpy(bytes + 8, header, n);
    write_file(bytes, 8 + n + data_bytes);
}

typedef struct wrong_file { const char* header; size_t data; const char* message; } wrong_file;

static const wrong_file wrong_files[] = {
    { "{}", 0, "has no 'format'" },
    { "{\"__metadata__\":{\"format\":\"pt\"}}", 0, "format = 'pt': this version reads" },
    { "{\"__metadata__\":{\"format\":\"kvloom calibration 1\"}}", 0, "'layers' must be F64" },
    { "{\"layers\":{\"dtype\":\"F32\",\"shape\":[1,7],\"data_offsets\":[0,28]},"
      "\"__metadata__\":{\"format\":\"kvloom calibration 1\"}}", 28, "'layers' must be F64" },
    { "", 0, "not a safetensors file" },
    { "[]", 0, "'{' is missing" },
    { "{} x", 0, "more after the end" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},", 8, "'\"' is missing" },
    { "{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype 'F33'" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "whole number" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "has 12 bytes" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "has 8 bytes" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "has 2 numbers" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "is missing" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"size\":4,\"data_offsets\":[0,8]}}", 8, "'size'" },
    { "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
      "'dtype' is not known, or twice" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8,
      "more than 8 numbers" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[4294967296,4294967296,16],\"data_offsets\":[0,8]}}", 8,
      "2^53" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}", 8,
      "2^53" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
      "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", 16,
      "'a' is there twice" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
      "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, "must be 8" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
      "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]}}", 20, "must be 8" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "cut off" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "damaged" },
    { "{\"__metadata__\":{\"a\":1}}", 0, "'\"' is missing" },
    { "{\"__metadata__\":{\"a\":\"\\q\"}}", 0, "a wrong escape" },
    { "{\"__metadata__\":{\"a\":\"\\ud800x\"}}", 0, "surrogate" },
    { "{\"__metadata__\":{\"a\":\"\\u00zz\"}}", 0, "hex" },
    { "{\"__metadata__\":{\"a\":\"\\u0000\"}}", 0, "code point" },
    { "{\"__metadata__\":{\"a\":\"x", 0, "has no end" },
};

// Breaks when a header that the format does not allow is taken, or is not told by what is wrong.
Test(calibration, wrong_headers_are_refused)
{
    calibrated c;
    kvl_calibration* cal = NULL;
    open_calibrated(&c, NULL);
    for (size_t i = 0; i < sizeof wrong_files / sizeof wrong_files[0]; i++) {
        write_text_header(wrong_files[i].header, wrong_files[i].data);
        const kvl_status status = kvl_calibration_load(c.ctx, scratch, &cal);
        expect_status(&c, status, i == 1 ? KVL_UNSUPPORTED : KVL_FILE, wrong_files[i].message);
        cr_expect(cal == NULL && strstr(kvl_context_message(c.ctx), scratch), "case %zu", i);
    }
    expect_status(&c, kvl_calibration_load(c.ctx, "/nowhere/at all", &cal), KVL_FILE,
                  "/nowhere/at all: ");
    expect_status(&c, kvl_calibration_load(c.ctx, KVLOOM_TEST_SCRATCH, &cal), KVL_FILE,
                  "regular file");
    close_calibrated(&c);
    remove(scratch);
}

typedef struct small_file {
    double      layer[7];
    const char* more;                  // entries of the header
    size_t      more_bytes;
    const char* message;
} small_file;

static const small_file small_files[] = {
    { { 16777216, 16777216, 256, 0, 1 }, "", 0, "layers[0][0] = 1.67772e+07: must be" },
    { { 16384, 1024, 256, 256, 1 }, "", 0, "'layer.0.stat.key_outer' is missing" },
    { { 16384, 1024, 256, 256, 1 },
      ",\"layer.0.stat.key_outer\":{\"dtype\":\"F64\",\"shape\":[1024,0,256],"
      "\"data_offsets\":[56,56]}", 0, "'layer.0.stat.key_outer' has another shape" },
    { { 4, 2, 32, 32, 1 },
      ",\"layer.0.stat.key_outer\":{\"dtype\":\"F32\",\"shape\":[2,32,32],"
      "\"data_offsets\":[56,8248]}", 8192, "'layer.0.stat.key_outer' is missing, or of another" },
    { { 4, 2.5, 32, 32, 1 }, "", 0, "layers[0][1] = 2.5: must be whole" },
    { { 4, 2, 32, 32, 1, 0, 2147483648.0 }, "", 0, "layers[0][6] = 2.14748e+09: must be" },
    { { 4, 2, 32, 32, -1 }, "", 0, "layers[0][4] = -1: must be" },
    { { 4, 2, 32, 32, 1, 1e39 }, "", 0, "layers[0][5] = 1e+39: must be" },
    { { 5, 2, 32, 32, 1 }, "", 0, "'layer.0.stat.key_outer' is missing" },
    { { 4, 2, 24, 32, 1 },
      ",\"layer.0.stat.key_outer\":{\"dtype\":\"F64\",\"shape\":[2,24,24],"
      "\"data_offsets\":[56,9272]}", 9216, "damaged: layer 0: head_dim = 24: must be" },
};

// Breaks when a small file makes statistics of a large model, or a layer that no model has.
Test(calibration, a_small_file_takes_little_memory)
{
    test_memory memory;
    calibrated c = { .ctx = NULL };
    kvl_statistics* stats = NULL;
    test_memory_init(&memory);
    kvl_context_desc desc = { .target = KVL_TARGET_REFERENCE, .num_threads = 1, .cache_dir = "" };
    desc.allocator = test_memory_allocator(&memory);
    cr_assert_eq((int)kvl_context_create(&desc, &c.ctx), (int)KVL_OK);
    for (size_t i = 0; i < sizeof small_files / sizeof small_files[0]; i++) {
        const small_file* f = &small_files[i];
        unsigned char bytes[16384] = { 0 };
        char header[1024];
        const int n = snprintf(header, sizeof header, "{\"__metadata__\":{\"format\":\"kvloom "
                               "calibration 1\"},\"layers\":{\"dtype\":\"F64\",\"shape\":"
                               "[1,7],\"data_offsets\":[0,56]}%s}", f->more);
        bytes[0] = (unsigned char)(n & 255);
        bytes[1] = (unsigned char)(n >> 8);
        memcpy(bytes + 8, header, (size_t)n);
        memcpy(bytes + 8 + n, f->layer, sizeof f->layer);
        write_file(bytes, 8 + (size_t)n + sizeof f->layer + f->more_bytes);
        memory.peak = memory.live;
        const uint64_t before = memory.live;
        expect_status(&c, kvl_statistics_load(c.ctx, scratch, &stats), KVL_FILE, f->message);
        cr_expect_null(stats);
        cr_expect(memory.peak - before <= 65536, "case %zu: %llu bytes", i,
                  (unsigned long long)(memory.peak - before));
        cr_expect_eq(memory.live, before);
    }
    kvl_context_destroy(c.ctx);
    remove(scratch);
}

// Breaks when a file that is cut anywhere, or has a flipped bit, is read beyond its end, crashes,
// or leaks: a cut file and a bit in an array are refused; one in the header may change a text.
Test(calibration, damaged_files_are_refused)
{
    calibrated c;
    size_t bytes = 0;
    kvl_calibration* cal = NULL;
    kvl_statistics* stats = NULL;
    open_calibrated(&c, NULL);
    test_ok(c.ctx, kvl_calibration_save(c.cal, c.stats, scratch), "save");
    unsigned char* data = read_file(scratch, &bytes);
    const size_t header = 8 + data[0] + 256u * data[1];
    for (size_t cut = 0; cut < bytes; cut += cut < header + 16 ? 1 : 4097) {
        write_file(data, cut);
        cr_expect_eq((int)kvl_calibration_load(c.ctx, scratch, &cal), (int)KVL_FILE,
                     "%zu of %zu bytes", cut, bytes);
        cr_expect_null(cal);
    }
    for (size_t bit = 0; bit < 8 * header; bit += 5) {
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        write_file(data, bytes);
        if (kvl_calibration_load(c.ctx, scratch, &cal) == KVL_OK) { kvl_calibration_free(cal); }
        if (kvl_statistics_load(c.ctx, scratch, &stats) == KVL_OK) { kvl_statistics_free(stats); }
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    for (size_t at = header; at < bytes; at += 499) {
        data[at] ^= 4;
        write_file(data, bytes);
        const bool any = kvl_calibration_load(c.ctx, scratch, &cal) == KVL_OK &&
                         kvl_statistics_load(c.ctx, scratch, &stats) == KVL_OK;
        cr_expect(!any && strstr(kvl_context_message(c.ctx), "damaged: "), "byte %zu", at);
        kvl_calibration_free(cal);
        data[at] ^= 4;
    }
    free(data);
    close_calibrated(&c);
    remove(scratch);
}

// Sets a number of an array in the scratch file, and takes its hashes away.
static void spoil(const char* name, size_t at, double number)
{
    size_t bytes = 0;
    char entry[96];
    unsigned char* data = read_file(scratch, &bytes);
    const size_t header = 8 + data[0] + 256u * data[1];
    char* text = (char*)test_alloc(header + 1, 1);
    memcpy(text, data + 8, header - 8);
    for (char* hash = text; (hash = strstr(hash, "\"hash_")) != NULL; hash++) {
        data[8 + (hash - text) + 1] = 'x';
    }
    snprintf(entry, sizeof entry, "\"layer.0.stat.%s\":{\"dtype\":\"F", name);
    const char* found = strstr(text, entry);
    cr_assert_not_null(found, "%s", name);
    const bool is_double = found[strlen(entry)] == '6';
    const long begin = strtol(strstr(found, "data_offsets\":[") + 15, NULL, 10);
    const float small = (float)number;
    if (is_double) { memcpy(data + header + begin + at * sizeof number, &number, sizeof number); }
    else { memcpy(data + header + begin + at * sizeof small, &small, sizeof small); }
    write_file(data, bytes);
    free(text);
    free(data);
}

// Breaks when numbers that no rows add up to are taken, and then put in an order or converted: a
// file without hashes may have any.
Test(calibration, numbers_of_no_rows_are_refused)
{
    static const struct { const char* name; double number; const char* words; } bad[] = {
        { "rows", NAN, "'layer.0.stat.rows', number 0, is " },
        { "key_sum", INFINITY, "'layer.0.stat.key_sum', number 0, is inf: must be finite" },
        { "key_outer", NAN, "'layer.0.stat.key_outer', number 0, is " },
        { "key_sample", NAN, "'layer.0.stat.key_sample', number 0, is " },
        { "key_sample_first", 1e300, "'layer.0.stat.key_sample_first', number 0, is 1e+300: must" },
        { "query_sample_priority", NAN, "'layer.0.stat.query_sample_priority', number 0, is " },
        { "query_seen_outer", INFINITY, NULL },
    };
    calibrated c;
    open_calibrated(&c, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvl_statistics* stats = NULL;
        test_ok(c.ctx, kvl_calibration_save(c.cal, c.stats, scratch), "save");
        spoil(bad[i].name, 0, bad[i].number);
        const kvl_status status = kvl_statistics_load(c.ctx, scratch, &stats);
        if (bad[i].words != NULL) { expect_status(&c, status, KVL_FILE, bad[i].words); }
        else { test_ok(c.ctx, status, "what attention gave"); }
        kvl_statistics_free(stats);
    }
    close_calibrated(&c);
    remove(scratch);
}

// Breaks when a write that fails takes the old file with it, or leaves a part behind.
Test(calibration, a_failed_write_leaves_the_old_file)
{
    calibrated c;
    open_calibrated(&c, NULL);
    expect_status(&c, kvl_calibration_save(c.cal, NULL, "/nowhere/x.safetensors"), KVL_FILE,
                  "/nowhere/x.safetensors: cannot be written");
    expect_refused(&c, kvl_calibration_set_text(c.cal, "format", "x"), "is the library's");
    close_calibrated(&c);
}

// Breaks when a failed allocation leaks or is not told: each of a save and two loads in turn.
Test(calibration, out_of_memory_is_told)
{
    test_memory memory;
    calibrated c;
    kvl_calibration* cal = NULL;
    kvl_statistics* stats = NULL;
    test_memory_init(&memory);
    kvl_context_desc desc = { .target = KVL_TARGET_REFERENCE, .num_threads = 1, .cache_dir = "" };
    desc.allocator = test_memory_allocator(&memory);
    open_calibrated(&c, &desc);
    const uint64_t before = memory.live;
    bool failed = true;
    for (int64_t n = 1; failed; n += n < 40 ? 1 : 7) {
        memory.fail_at = memory.calls + n;
        kvl_status status = kvl_calibration_save(c.cal, c.stats, scratch);
        if (status == KVL_OK) { status = kvl_calibration_load(c.ctx, scratch, &cal); }
        if (status == KVL_OK) { status = kvl_statistics_load(c.ctx, scratch, &stats); }
        failed = memory.fail_at <= memory.calls;
        memory.fail_at = 0;
        cr_expect_eq((int)status, failed ? (int)KVL_NO_MEMORY : (int)KVL_OK, "allocation %d",
                     (int)n);
        kvl_calibration_free(cal);
        kvl_statistics_free(stats);
        cal = NULL;
        stats = NULL;
    }
    // The first save made room in the lists of the calibration, which stays.
    cr_expect(memory.live <= before + 65536, "%llu bytes are left",
              (unsigned long long)(memory.live - before));
    close_calibrated(&c);
    cr_expect(memory.live == 0 && memory.wrong_sizes == 0);
    remove(scratch);
}

enum { WRITERS = 4, SAVES = 40 };

// Saves a calibration of its own context to the same path, again and again.
static void* save_often(void* arg)
{
    const calibrated* c = arg;
    int failed = 0;
    for (int i = 0; i < SAVES; i++) {
        failed += kvl_calibration_save(c->cal, i % 2 ? c->stats : NULL, scratch) != KVL_OK;
    }
    return failed > 0 ? arg : NULL;
}

// Breaks when two writers of one process meet under one private name: the file is of one of them.
Test(calibration, writers_of_one_file_do_not_meet)
{
    calibrated all[WRITERS];
    pthread_t threads[WRITERS];
    kvl_calibration* cal = NULL;
    for (int i = 0; i < WRITERS; i++) { open_calibrated(&all[i], NULL); }
    for (int i = 0; i < WRITERS; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, save_often, &all[i]), 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        void* failed = NULL;
        pthread_join(threads[i], &failed);
        cr_expect_null(failed, "%s", kvl_context_message(all[i].ctx));
    }
    test_ok(all[0].ctx, kvl_calibration_load(all[0].ctx, scratch, &cal), "load");
    kvl_calibration_free(cal);
    for (int i = 0; i < WRITERS; i++) { close_calibrated(&all[i]); }
    remove(scratch);
}

// SAVED ROWS

static kvl_cache* open_with(const calibrated* c, const kvl_calibration* cal)
{
    kvl_cache* cache = NULL;
    kvl_cache_desc d = c->cache;
    d.calibration = cal;
    test_ok(c->ctx, kvl_cache_create(c->ctx, &d, &cache), "kvl_cache_create");
    return cache;
}

// Breaks when rows in codes are read with other tables than they were encoded with.
Test(calibration, saved_rows_need_their_own_calibration)
{
    const char* path = scratch;
    calibrated c;
    inputs in = make_inputs();
    kvl_calibration* other = NULL;
    kvl_seq seq = 0;
    kvl_loaded_seq* loaded = NULL;
    int num = 0;
    open_calibrated(&c, NULL);
    kvl_statistics* stats = create(c.ctx, &c.layer, 8);
    add(c.ctx, stats, &in, 0, 40);
    test_ok(c.ctx, kvl_calibration_create(stats, &c.cache, &other), "of other rows");
    kvl_cache* from = open_with(&c, c.cal);
    kvl_cache* same = open_with(&c, c.cal);
    kvl_cache* differs = open_with(&c, other);
    const int32_t rows = ROWS;
    test_ok(c.ctx, kvl_seq_create(from, &seq), "kvl_seq_create");
    kvl_append_desc a = { .num_seqs = 1, .seqs = &seq, .num_rows = &rows };
    a.k.data = in.k;
    a.v.data = in.v;
    test_ok(c.ctx, kvl_append(from, &a), "kvl_append");
    const kvl_save_seq one = { .seq = seq };
    const kvl_save_desc save = { .path = path, .num_seqs = 1, .seqs = &one };
    kvl_load_desc load = { .path = path };
    test_ok(c.ctx, kvl_save(from, &save), "kvl_save");
    test_ok(c.ctx, kvl_load(same, &load, &loaded, &num), "kvl_load");
    cr_expect_eq(num, 1);
    kvl_loaded_free(c.ctx, loaded, num);
    expect_refused(&c, kvl_load(differs, &load, &loaded, &num), "another calibration");
    load.recode = 1;
    c.cache.calibration = NULL;
    c.layer.spec = "f16";
    kvl_cache* plain = open_with(&c, NULL);
    expect_status(&c, kvl_load(plain, &load, &loaded, &num), KVL_UNSUPPORTED, "calibration");
    kvl_cache_free(plain);
    kvl_cache_free(from);
    kvl_cache_free(same);
    kvl_cache_free(differs);
    kvl_calibration_free(other);
    kvl_statistics_free(stats);
    close_calibrated(&c);
    free_inputs(&in);
    remove(path);
}
