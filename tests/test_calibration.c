// test_calibration.c -- statistics of rows, calibration files, and caches that read them.
//
// Statistics are compared with tests/oracles/statistics.py (NumPy, float64) on rows that both make.

#include "test_support.h"

#include <float.h>

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
                              strcmp(name, "key_group_outer") == 0 ? 1e-7 : 1e-12) * want.size;
        cr_expect(fabs(has.sum - want.sum) <= bound && fabs(has.wave - want.wave) <= bound &&
                  fabs(has.steps - want.steps) <= bound && fabs(has.size - want.size) <= bound,
                  "%s, case %d, head %d, %s: %.12g %.12g %.12g, not %.12g %.12g %.12g (+- %g)",
                  target->name, number, h, name, has.sum, has.wave, has.steps, want.sum, want.wave,
                  want.steps, bound);
        count++;
    }
    cr_expect_eq(count, 3 * KV_HEADS * 15);
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
    "key_unrotated_sum", "query_sum", "value_sum", "key_outer", "key_group_outer", "query_outer",
    "query_seen_outer", "query_output_outer", "value_outer", "attended_outer", "output_outer",
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
