// test_bases.c -- calibrated bases and feedback, from statistics of rows to restored rows.

#include "calibrate_tables.h"
#include "test_support.h"

enum { DIM = 64, ROWS = 512, OUT = 96, SINK = 4 };

// Correlated rows: a random mixture of channels with a spread of sizes.
typedef struct inputs {
    float k[ROWS * DIM], v[ROWS * DIM], q[ROWS * DIM], w_o[OUT * DIM];
} inputs;

static void mix(uint64_t seed, int power, int num, float* x)
{
    test_lcg lcg = { seed };
    static float mixture[DIM * DIM];
    for (int i = 0; i < DIM * DIM; ++i) mixture[i] = (float)test_bell(&lcg) / 8192.0f;
    for (int t = 0; t < num; ++t) {
        float z[DIM];
        for (int i = 0; i < DIM; ++i)
            z[i] = (float)test_bell(&lcg) / 2365.0f / powf((float)(i + 1), 0.5f * (float)power);
        for (int j = 0; j < DIM; ++j) {
            x[t * DIM + j] = 0;
            for (int i = 0; i < DIM; ++i) x[t * DIM + j] += z[i] * mixture[i * DIM + j];
        }
    }
}

static inputs* make_inputs(void)
{
    inputs* in = (inputs*)test_alloc(1, sizeof *in);
    mix(1, 2, ROWS, in->k);
    mix(2, 1, ROWS, in->v);
    mix(3, 2, ROWS, in->q);
    mix(4, 1, OUT, in->w_o);
    return in;
}

static kvl_statistics* make_statistics(kvl_context* ctx, const kvl_layer_desc* layer,
                                       const inputs* in)
{
    kvl_statistics_desc desc = { 0 };
    kvl_statistics_rows rows = { 0 };
    kvl_statistics* stats = NULL;
    desc.num_layers = 1;
    desc.layers = layer;
    test_ok(ctx, kvl_statistics_create(ctx, &desc, &stats), "statistics");
    test_ok(ctx, kvl_statistics_set_output(stats, 0, in->w_o, OUT), "output");
    rows.num_keys = rows.num_rows = ROWS;
    rows.k.data = in->k;
    rows.v.data = in->v;
    rows.q.data = in->q;
    test_ok(ctx, kvl_statistics_add(stats, &rows), "rows");
    return stats;
}

// Restored rows of a cache that is calibrated on them.
static void pass_through(const test_target* target, const char* spec, const inputs* in, float* k,
                         float* v)
{
    const kvl_layer_desc layer = test_layer(spec, 1, 1, DIM, DIM);
    kvl_context* ctx = test_context(target, 1);
    kvl_statistics* stats = make_statistics(ctx, &layer, in);
    kvl_calibration* calibration = NULL;
    kvl_cache_desc desc = { 0 };
    kvl_derive_desc derive = { 0 };
    test_cache c;
    memset(&c, 0, sizeof c);
    desc.num_layers = 1;
    desc.layers = &layer;
    test_ok(ctx, kvl_calibration_create(stats, NULL, &calibration), spec);
    derive.stats = stats;
    derive.cache = &desc;
    kvl_derivation list[CALIBRATE_MOST_DERIVATIONS];
    calibrate_learn learn = { .ctx = ctx, .what = CALIBRATE_LEARN_AFFINE, .steps = 32 };
    derive.num_derivations = calibrate_learning_derivations(&learn, list);
    derive.derivations = list;
    test_ok(ctx, kvl_calibration_derive(calibration, &derive), spec);
    desc.calibration = calibration;
    c.ctx = ctx;
    c.layer = layer;
    c.dv = DIM;
    test_ok(ctx, kvl_cache_create(ctx, &desc, &c.cache), spec);
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, in->k, in->v, 0, ROWS);
    test_restore(&c, seq, 0, ROWS, k, v);
    kvl_cache_free(c.cache);
    kvl_calibration_free(calibration);
    kvl_statistics_free(stats);
    kvl_context_destroy(ctx);
}

// sum_t e^T A e of rows beyond the sink, A the second moment of queries; price NULL: plain.
static double priced(const float* x, const float* back, const float* queries)
{
    double total = 0;
    for (int t = SINK; t < ROWS; ++t) {
        for (int i = 0; queries && i < ROWS; ++i) {
            double dot = 0;
            for (int j = 0; j < DIM; ++j)
                dot += (double)queries[i * DIM + j]
                       * ((double)x[t * DIM + j] - (double)back[t * DIM + j]);
            total += dot * dot / ROWS;
        }
        for (int j = 0; !queries && j < DIM; ++j) {
            const double e = (double)x[t * DIM + j] - (double)back[t * DIM + j];
            total += e * e;
        }
    }
    return total;
}

static const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };

// Priced error of keys under a spec, over that of another.
static double ratio(const test_target* target, const char* spec, const char* other)
{
    inputs* in = make_inputs();
    float* k[2] = { test_floats(ROWS * DIM), test_floats(ROWS * DIM) };
    float* v = test_floats(ROWS * DIM);
    pass_through(target, spec, in, k[0], v);
    pass_through(target, other, in, k[1], v);
    const double x = priced(in->k, k[0], in->q) / priced(in->k, k[1], in->q);
    free(in);
    free(k[0]);
    free(k[1]);
    free(v);
    return x;
}

Test(bases, feedback_lowers_the_priced_error_of_keys)
{
    // Broken by a factor of the wrong side, order or basis, or by errors of the wrong sign: nearest
    // rounding in the same basis, the same fit and metadata.
    static const char* const bases[] = { "none", "hadamard", "balance", "whiten", "flat" };
    for (int i = 0; i < 5; ++i) {
        char spec[2][192];
        for (int j = 0; j < 2; ++j)
            snprintf(spec[j], sizeof spec[j], "kivi:k2,v8,k.transform=%s,k.fit=search,"
                     "k.meta=e4m3,k.round=%s,sink=4,recent=0", bases[i],
                     j ? "nearest" : "feedback");
        const double x = ratio(&reference, spec[0], spec[1]);
        cr_assert(x < 0.8, "%s: feedback has %.3f of nearest's priced error", bases[i], x);
    }
}

Test(bases, bases_lower_the_priced_error_of_keys)
{
    // Broken by a basis that is transposed, or whose query table is not its inverse's: each against
    // the Hadamard, per token, one scale a head.
    static const char* const presets[] = { "wush", "wush_a" };
    for (int i = 0; i < 2; ++i) {
        char spec[160];
        snprintf(spec, sizeof spec, "%s:k4,v8,sink=4,recent=0,chunk=8", presets[i]);
        const double x = ratio(&reference, spec, "quarot:k4,v8,sink=4,recent=0,chunk=8,fit=clip96");
        cr_assert(x < 0.75, "%s has %.3f of a Hadamard's priced error", presets[i], x);
    }
}

Test(bases, rows_come_back_out_of_every_basis)
{
    // Broken by F and Q that are no pair: 8 bits leave less than 2% of a row in any basis.
    static const char* const bases[] = { "balance", "balance_output", "eigen", "eigen_layer",
                                         "whiten", "flat", "file" };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    inputs* in = make_inputs();
    float* k = test_floats(ROWS * DIM);
    float* v = test_floats(ROWS * DIM);
    for (int target = 0; target < (n > 1 ? 2 : 1); ++target)
        for (int i = 0; i < 7; ++i) {
            char spec[160];
            snprintf(spec, sizeof spec, "kivi:b8,transform=%s,k.shift=mean,sink=4,recent=0",
                     bases[i]);
            pass_through(&targets[target], spec, in, k, v);
            const float* const rows[2] = { in->k, in->v };
            float zero[ROWS * DIM] = { 0 };
            for (int side = 0; side < 2; ++side) {
                const double error = priced(rows[side], side ? v : k, NULL);
                const double size = priced(rows[side], zero, NULL);
                cr_assert(error < 4e-4 * size, "%s on %s, side %d: error %.3g of %.3g", spec,
                          targets[target].name, side, error, size);
            }
        }
    free(in);
    free(k);
    free(v);
}

Test(bases, one_rotation_of_a_layer)
{
    // Broken by moments of one head alone, or by a basis for each: two heads whose keys and queries
    // differ. B H V^T makes the diagonal of its moment constant, of the sum and of no head.
    inputs* in = make_inputs();
    float* q = test_floats(ROWS * 2 * DIM);
    for (int t = 0; t < ROWS; ++t)
        for (int i = 0; i < DIM; ++i) {
            q[(t * 2 + 0) * DIM + i] = in->q[t * DIM + i];
            q[(t * 2 + 1) * DIM + i] = in->k[t * DIM + (i * 5 + 3) % DIM];
        }
    const kvl_layer_desc layer = test_layer("oscar_v1", 2, 2, DIM, DIM);
    kvl_context* ctx = test_context(&reference, 1);
    kvl_statistics_desc desc = { 0 };
    kvl_statistics_rows rows = { 0 };
    kvl_statistics* stats = NULL;
    kvl_calibration* calibration = NULL;
    kvl_cache_desc cache = { 0 };
    kvl_derive_desc derive = { 0 };
    desc.num_layers = cache.num_layers = 1;
    desc.layers = cache.layers = &layer;
    test_ok(ctx, kvl_statistics_create(ctx, &desc, &stats), "statistics");
    rows.num_keys = rows.num_rows = ROWS;
    rows.k.data = rows.v.data = rows.q.data = q;
    test_ok(ctx, kvl_statistics_add(stats, &rows), "rows");
    test_ok(ctx, kvl_calibration_create(stats, NULL, &calibration), "calibration");
    derive.stats = stats;
    derive.cache = &cache;
    derive.derivations = calibrate_derivations(&derive.num_derivations);
    test_ok(ctx, kvl_calibration_derive(calibration, &derive), "derive");
    int64_t num = 0;
    const float* f = kvl_calibration_table(calibration, 0, 0, "eigen_layer_forward", &num);
    cr_assert(f && num == 2 * DIM * DIM);
    cr_expect_eq(memcmp(f, f + DIM * DIM, DIM * DIM * sizeof *f), 0);
    double spread[3] = { 0, 0, 0 };                    // of head 0, of head 1, of both
    for (int of = 0; of < 3; ++of) {
        double diagonal[DIM] = { 0 }, mean = 0;
        for (int t = 0; t < 2 * ROWS; ++t) {
            if (of < 2 && t % 2 != of) continue;
            for (int j = 0; j < DIM; ++j) {
                double y = 0;
                for (int i = 0; i < DIM; ++i) y += (double)q[t * DIM + i] * (double)f[i * DIM + j];
                diagonal[j] += y * y;
            }
        }
        for (int j = 0; j < DIM; ++j) mean += diagonal[j] / DIM;
        for (int j = 0; j < DIM; ++j) spread[of] = fmax(spread[of], fabs(diagonal[j] / mean - 1));
    }
    cr_expect(spread[2] < 1e-4 && spread[0] > 0.01 && spread[1] > 0.01,
              "diagonals differ by %.3g, %.3g and, of the sum, %.3g", spread[0], spread[1],
              spread[2]);
    kvl_calibration_free(calibration);
    kvl_statistics_free(stats);
    kvl_context_destroy(ctx);
    free(in);
    free(q);
}

// Every F and Q that a calibration has is finite, and they are inverses: F Q^T = 1.
static void check_pairs(const kvl_calibration* calibration, const char* word, const char* what)
{
    for (int side = 0; side < 2; ++side) {
        const float* table[2];
        for (int i = 0; i < 2; ++i) {
            char name[64];
            int64_t num = 0;
            snprintf(name, sizeof name, "%s_%s", word, i ? "query" : "forward");
            table[i] = kvl_calibration_table(calibration, 0, side, name, &num);
            cr_assert(table[i] && num == DIM * DIM, "%s, %s", what, name);
        }
        double off = 0;
        for (int i = 0; i < DIM * DIM; ++i) {
            double sum = i / DIM == i % DIM ? -1 : 0;
            for (int k = 0; k < DIM; ++k)
                sum += (double)table[0][i / DIM * DIM + k] * (double)table[1][i % DIM * DIM + k];
            if (!(fabs(sum) <= off)) off = fabs(sum);
        }
        cr_expect(off < 1e-4, "%s, %s, side %d: F Q^T is off by %g", what, word, side, off);
    }
}

Test(bases, poor_statistics_are_damped)
{
    // Broken by a moment without rank that becomes a NaN, or a basis that does not come back: one
    // token, the same token over and over, dead channels and keys that never change.
    static const char* const cases[] = { "one token", "identical tokens", "dead channels" };
    static const char* const bases[] = { "balance", "balance_output", "eigen", "eigen_layer",
                                         "whiten", "flat" };
    for (int number = 0; number < 3; ++number) {
        inputs* in = make_inputs();
        kvl_context* ctx = test_context(&reference, 1);
        kvl_statistics* stats = NULL;
        kvl_statistics_desc sd = { 0 };
        kvl_statistics_rows rows = { 0 };
        const kvl_layer_desc plain = test_layer("f16", 1, 1, DIM, DIM);
        for (int i = 0; i < ROWS * DIM; ++i) {
            if (number == 1) in->k[i] = in->k[i % DIM];
            if (number == 1) in->v[i] = in->v[i % DIM];
            if (number == 1) in->q[i] = in->q[i % DIM];
            if (number == 2 && i % DIM < 8) in->k[i] = in->v[i] = in->q[i] = 0;
        }
        for (int i = 0; i < 6; ++i) {
            char spec[64];
            snprintf(spec, sizeof spec, "rtn:transform=%s", bases[i]);
            const kvl_layer_desc layer = test_layer(spec, 1, 1, DIM, DIM);
            kvl_calibration* calibration = NULL;
            kvl_cache_desc desc = { 0 };
            kvl_derive_desc derive = { 0 };
            kvl_derivation list[CALIBRATE_MOST_DERIVATIONS];
            calibrate_learn learn = { .ctx = ctx };
            desc.num_layers = sd.num_layers = 1;
            desc.layers = sd.layers = &layer;
            test_ok(ctx, kvl_statistics_create(ctx, &sd, &stats), "statistics");
            test_ok(ctx, kvl_statistics_set_output(stats, 0, in->w_o, OUT), "output");
            rows.num_keys = rows.num_rows = number == 0 ? 1 : ROWS;
            rows.k.data = in->k;
            rows.v.data = in->v;
            rows.q.data = in->q;
            test_ok(ctx, kvl_statistics_add(stats, &rows), "rows");
            test_ok(ctx, kvl_calibration_create(stats, NULL, &calibration), spec);
            derive.stats = stats;
            derive.cache = &desc;
            derive.num_derivations = calibrate_learning_derivations(&learn, list);
            derive.derivations = list;
            test_ok(ctx, kvl_calibration_derive(calibration, &derive), spec);
            check_pairs(calibration, bases[i], cases[number]);
            cr_expect(learn.num_notes > 0 && (strstr(learn.notes[0], "has rank") ||
                      strstr(learn.notes[0], "is zero")), "%s, %s: not said: %s", cases[number],
                      bases[i], learn.notes[0]);
            // Keys less the mean of their group are zeros, which counts as nothing known.
            if (number == 1 && strcmp(bases[i], "whiten") == 0)
                cr_expect(learn.num_notes > 0 && strstr(learn.notes[0], "moment is zero"), "%s",
                          learn.notes[0]);
            kvl_calibration_free(calibration);
            kvl_statistics_free(stats);
        }
        in->k[5] = (float)NAN;
        kvl_statistics* more = NULL;
        sd.layers = &plain;
        test_ok(ctx, kvl_statistics_create(ctx, &sd, &more), "statistics");
        cr_expect_eq(kvl_statistics_add(more, &rows), KVL_BAD_ARGUMENT, "NaN");
        cr_expect(strstr(kvl_context_message(ctx), "finite") != NULL, "%s",
                  kvl_context_message(ctx));
        kvl_statistics_free(more);
        kvl_context_destroy(ctx);
        free(in);
    }
}

// Partners that no channel has.
static kvl_status lone_partners(const kvl_derive_args* a, float* out)
{
    for (int i = 0; i < a->num_kv_heads * 4 * DIM; ++i) out[i] = i / DIM % 4 == 3 ? -5.0f : 0.5f;
    out[3 * DIM + 1] = 1e9f;
    return KVL_OK;
}

// Breaks when a basis reads or writes beside a matrix where a table of the calibration, which may
// be of a file, says nonsense.
Test(bases, of_a_mean_without_partners)
{
    inputs* in = make_inputs();
    const kvl_rope rope = { .base = 1000 };
    kvl_layer_desc layer = test_layer("kivi:k.shift=rotating-mean,k.transform=whiten", 1, 1, DIM,
                                      DIM);
    kvl_context* ctx = test_context(&reference, 1);
    kvl_derivation list[CALIBRATE_MOST_DERIVATIONS + 1];
    calibrate_learn learn = { .ctx = ctx };
    kvl_calibration* calibration = NULL;
    kvl_cache_desc cache = { .num_layers = 1, .layers = &layer };
    layer.rope = &rope;
    kvl_statistics* stats = make_statistics(ctx, &layer, in);
    list[0] = (kvl_derivation){ "shift", NULL, "rotating_mean", lone_partners, NULL };
    const int num = calibrate_learning_derivations(&learn, list + 1);
    const kvl_derive_desc derive = { .stats = stats, .cache = &cache, .derivations = list,
                                     .num_derivations = 1 + num };
    test_ok(ctx, kvl_calibration_create(stats, NULL, &calibration), "calibration");
    test_ok(ctx, kvl_calibration_derive(calibration, &derive), layer.spec);
    cr_expect_not_null(kvl_calibration_table(calibration, 0, 0, "whiten_forward@rotating-mean",
                                             NULL));
    kvl_calibration_free(calibration);
    kvl_statistics_free(stats);
    kvl_context_destroy(ctx);
    free(in);
}
