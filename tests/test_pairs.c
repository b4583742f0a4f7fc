// test_pairs.c -- levels=pairs: bits that calibration gives RoPE pairs, and keys that have them.

#include "test_support.h"

#ifndef KVLOOM_TEST_ROOT
#define KVLOOM_TEST_ROOT "."
#define KVLOOM_TEST_SCRATCH "/tmp"
#endif

enum { ROWS = 96, Q_HEADS = 4, HEADS = 2, DIM = 64, MOST_DIM = 128 };

static const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };

typedef struct inputs {
    float k[ROWS * HEADS * MOST_DIM], v[ROWS * HEADS * MOST_DIM], q[ROWS * Q_HEADS * MOST_DIM];
} inputs;

static kvl_statistics_rows rows_of(const inputs* in)
{
    kvl_statistics_rows rows = { 0 };
    rows.num_keys = rows.num_rows = ROWS;
    rows.k.data = in->k;
    rows.v.data = in->v;
    rows.q.data = in->q;
    return rows;
}

// Rows of seeds of their own; queries an eighth of such.
static inputs* make_inputs(int number, int dim)
{
    inputs* in = (inputs*)test_alloc(1, sizeof *in);
    test_rows(40 + (uint64_t)number, ROWS, HEADS, dim, in->k);
    test_rows(80 + (uint64_t)number, ROWS, Q_HEADS, dim, in->q);
    test_rows(6, ROWS, HEADS, dim, in->v);
    for (int i = 0; i < ROWS * Q_HEADS * dim; ++i) in->q[i] /= 8.0f;
    return in;
}

// A case of tests/fixtures/pairs.txt.
typedef struct expected {
    int      dim, bits;
    kvl_rope rope;
    char     shift[32];
    double   n[HEADS][MOST_DIM], size[HEADS][MOST_DIM];
} expected;

static int read_case(FILE* file, expected* e)
{
    memset(e, 0, sizeof *e);
    if (fscanf(file, " case %d %d %d %lf %d %31s", &e->dim, &e->rope.split_halves, &e->rope.dims,
               &e->rope.base, &e->bits, e->shift) != 6) return 0;
    for (int h = 0; h < HEADS; ++h)
        for (int i = 0; i < 2 * e->dim; ++i)
            cr_assert(fscanf(file, "%lf", i < e->dim ? &e->n[h][i] : &e->size[h][i - e->dim]) == 1);
    return 1;
}

static void check_case(const expected* e, int number)
{
    char spec[128], names[2][64];
    int64_t num = 0;
    test_fitted b;
    inputs* in = make_inputs(number, e->dim);
    const kvl_statistics_rows rows = rows_of(in);
    const int plain = strcmp(e->shift, "none") == 0;
    snprintf(spec, sizeof spec, "block-gtq:k%d,k.shift=%s,sink=0,recent=0", e->bits, e->shift);
    snprintf(names[0], sizeof names[0], "pair_bits@b%d%s%s", e->bits, plain ? "" : ",",
             plain ? "" : e->shift);
    snprintf(names[1], sizeof names[1], "pair_size%s%s", plain ? "" : "@", plain ? "" : e->shift);
    kvl_layer_desc layer = test_layer(spec, Q_HEADS, HEADS, e->dim, e->dim);
    layer.rope = &e->rope;
    test_fitted_open(&b, &reference, &layer, &rows, NULL, 0);
    const float* bits = kvl_calibration_table(b.calibration, 0, 0, names[0], &num);
    const float* size = kvl_calibration_table(b.calibration, 0, 0, names[1], &num);
    cr_assert(bits && size && num == HEADS * e->dim, "case %d: no %s", number, names[0]);
    for (int h = 0; h < HEADS; ++h)
        for (int i = 0; i < e->dim; ++i) {
            const double n = (double)bits[h * e->dim + i], x = (double)size[h * e->dim + i];
            cr_assert(n == e->n[h][i], "case %d head %d channel %d: %g bits, expected %g", number,
                      h, i, n, e->n[h][i]);
            cr_assert(fabs(x - e->size[h][i]) <= 1e-5 * e->size[h][i],
                      "case %d head %d channel %d: size %.9g, expected %.9g", number, h, i, x,
                      e->size[h][i]);
        }
    test_fitted_close(&b);
    free(in);
}

// Breaks when a pair is of other channels than RoPE turns together, its energy is of one of queries
// and keys alone or has the mean in it that keys are stored without, or a bit goes to another pair.
Test(pairs, maps_are_those_of_the_oracle)
{
    FILE* file = fopen(KVLOOM_TEST_ROOT "/tests/fixtures/pairs.txt", "r");
    expected e;
    int number = 0;
    cr_assert(file);
    while (read_case(file, &e)) check_case(&e, number++);
    fclose(file);
    cr_expect(number == 10, "%d cases", number);
}

// Pairs (i, i + 16) whose keys have the energies `of`, the same in all rows; no queries.
static void fill_energies(inputs* in, const double of[16])
{
    memset(in, 0, sizeof *in);
    for (int r = 0; r < ROWS * HEADS; ++r)
        for (int i = 0; i < 16; ++i) in->k[r * 32 + i + (r % 4 > 1 ? 16 : 0)] = (float)sqrt(of[i]);
}

static void expect_bits(inputs* in, const char* spec, const double of[16], const int want[16])
{
    static const kvl_rope rope = { 0, 1, 10000, 0, NULL };
    kvl_layer_desc layer = test_layer(spec, Q_HEADS, HEADS, 32, 32);
    int64_t num = 0;
    test_fitted b;
    fill_energies(in, of);
    const kvl_statistics_rows rows = rows_of(in);
    layer.rope = &rope;
    test_fitted_open(&b, &reference, &layer, &rows, NULL, 0);
    const float* bits = kvl_calibration_table(b.calibration, 0, 0, "pair_bits@b1", &num);
    const float* size = kvl_calibration_table(b.calibration, 0, 0, "pair_size", &num);
    cr_assert(bits && size && num == HEADS * 32);
    for (int i = 0; i < HEADS * 32; ++i) {
        cr_expect((int)bits[i] == want[i % 16], "channel %d: %g bits, expected %d", i,
                  (double)bits[i], want[i % 16]);
        const double root = of[i % 16] > 0 ? sqrt(of[i % 16] / 2) : 1;
        cr_expect(fabs((double)size[i] - root) < 1e-6 * root, "channel %d: size %g, expected %g",
                  i, (double)size[i], root);
    }
    test_fitted_close(&b);
}

// Breaks when bits are given in another order.  By hand, 16 bits for 16 pairs: 256 falls to 16 with
// two bits; then 16, 16 (lower first) to 4, 4; then 4, 4, 4, 4 to 1 each; these once more; and of
// the equal rest the first four.  Of one pair with all the energy 6 bits are the most, and pairs
// without any get theirs from the first on; what has no energy has the size 1.
Test(pairs, bits_are_given_one_by_one)
{
    inputs* in = (inputs*)test_alloc(1, sizeof *in);
    const double steps[16] = { 256, 16, 4, 4, .5, .5, .5, .5, .5, .5, .5, .5, .5, .5, .5, .5 };
    const double one[16] = { 0, 0, 0, 1e6 };
    expect_bits(in, "block-gtq:k1", steps, (const int[16]) { 5, 3, 2, 2, 1, 1, 1, 1 });
    expect_bits(in, "block-gtq:k1", one, (const int[16]) { 6, 4, 0, 6 });
    free(in);
}

// Breaks when a page has other bytes than the mean bits and a norm a token, or keys come back with
// an error that their bits do not have.  Of a row whose values are all of its sizes' magnitude the
// scale is near 1, and a value is off by at most the distance of 1 from the levels of its bits.
Test(pairs, values_are_as_near_as_their_levels)
{
    static const double nearest[7] = { 1, .2021, .5104, .2440, .0577, .0488, .0257 };
    static float k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM];
    static const kvl_rope rope = { 0, 1, 10000, 0, NULL };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int mean = 1; mean <= 4; ++mean)
        for (int t = 0; t < n && t < 2; ++t) {
            char spec[64], name[32];
            int64_t num = 0;
            inputs* in = make_inputs(3, DIM);
            test_fitted b;
            snprintf(spec, sizeof spec, "block-gtq:k%d,sink=0,recent=0", mean);
            snprintf(name, sizeof name, "pair_bits@b%d", mean);
            for (int i = 0; i < ROWS * HEADS * DIM; ++i)
                in->k[i] = ldexpf(i % 5 % 2 ? 1.0f : -1.0f, i % (DIM / 2) % 9 - 3);
            const kvl_statistics_rows rows = rows_of(in);
            kvl_layer_desc layer = test_layer(spec, Q_HEADS, HEADS, DIM, DIM);
            layer.rope = &rope;
            test_fitted_open(&b, &targets[t], &layer, &rows, NULL, 0);
            cr_expect(b.c.info.k_bits == mean + 16.0 / DIM, "%s: %g bits", spec, b.c.info.k_bits);
            const float* bits = kvl_calibration_table(b.calibration, 0, 0, name, &num);
            test_restore(&b.c, b.seq, 0, ROWS, k, v);
            for (int i = 0; i < ROWS * HEADS * DIM; ++i) {
                const double x = (double)in->k[i], off = fabs((double)k[i] - x) / fabs(x);
                const int of = (int)bits[i % (HEADS * DIM)];
                cr_assert(fabs(off - nearest[of]) < 1e-3, "%s on %s: value %d of %d bits is off by "
                          "%g of it, expected %g", spec, targets[t].name, i, of, off, nearest[of]);
            }
            test_fitted_close(&b);
            free(in);
        }
}

// Breaks when a score is not that of the restored key, whatever it is composed with; or rows differ
// by how they came, on the way through a file, or by the target.
Test(pairs, every_composition_is_served)
{
    static float k[3][ROWS * HEADS * MOST_DIM], v[3][ROWS * HEADS * MOST_DIM];
    static const struct { const char* spec; int dim; kvl_rope rope; } cases[] = {
        { "block-gtq:sink=0,recent=0", 64, { 64, 1, 10000, 0, NULL } },
        { "block-gtq:k1,k.shift=mean,rows=bf16,sink=2,recent=5", 80, { 80, 0, 1000, 0, NULL } },
        { "block-gtq:k3,k.shift=rotating-mean,k.meta=8bit,recent=3", 96, { 64, 1, 500, 0, NULL } },
        { "block-gtq:k4,kg32,k.meta=e4m3,k.extra=sparse2,recent=1", 128,
          { 96, 0, 10000, 0, NULL } },
        { "block-gtq/kivi:k2,v2,k.place=pre_rope,k.shift=mean,recent=1", 64,
          { 48, 0, 10000, 0, NULL } },
        { "block-gtq:k2,k.extra=sketch,k.meta=one,kg8,recent=1", 64, { 64, 1, 10000, 0, NULL } },
        { "block-gtq:k2,kg6,recent=1", 96, { 64, 1, 10000, 0, NULL } },
        { "block-gtq:k3,kg40,k.meta=e4m3,recent=1", 80, { 80, 0, 10000, 0, NULL } },
    };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
        for (int t = 0; t < n && t < 2; ++t) {
            test_fitted b;
            test_bytes bytes = { 0 };
            kvl_loaded_seq* loaded = NULL;
            int num = 0;
            kvl_seq fork = 0;
            inputs* in = make_inputs((int)i, cases[i].dim);
            const char* spec = cases[i].spec;
            const kvl_statistics_rows rows = rows_of(in);
            kvl_layer_desc layer = test_layer(spec, Q_HEADS, HEADS, cases[i].dim, cases[i].dim);
            const size_t size = sizeof(float) * ROWS * HEADS * (size_t)cases[i].dim;
            layer.rope = &cases[i].rope;
            test_fitted_open(&b, &targets[t], &layer, &rows, NULL, 0);
            test_attend_check(&b.c, b.seq, in->q, 2, NULL, spec);
            const kvl_seq parts = test_seq(&b.c);
            test_append(&b.c, parts, in->k, in->v, 0, 41);
            test_ok(b.c.ctx, kvl_seq_fork(b.c.cache, parts, &fork), spec);
            test_append(&b.c, fork, in->k, in->v, 41, ROWS - 41);
            kvl_save_seq one = { 0 };
            one.seq = fork;
            const kvl_save_desc save = { .num_seqs = 1, .seqs = &one, .write = test_put_bytes,
                                         .user = &bytes };
            const kvl_load_desc load = { .read = test_take_bytes, .user = &bytes };
            test_ok(b.c.ctx, kvl_save(b.c.cache, &save), spec);
            test_ok(b.c.ctx, kvl_load(b.c.cache, &load, &loaded, &num), spec);
            test_restore(&b.c, b.seq, 0, ROWS, k[t], v[t]);
            test_restore(&b.c, loaded[0].seq, 0, ROWS, k[2], v[2]);
            cr_expect(memcmp(k[t], k[2], size) == 0 && memcmp(v[t], v[2], size) == 0,
                      "%s on %s: rows differ", spec, targets[t].name);
            for (size_t j = 0; t == 1 && j < size / sizeof(float); ++j)
                cr_assert(fabs((double)k[0][j] - (double)k[1][j]) <= 1e-5 * fabs((double)k[0][j]) +
                          1e-5, "%s: value %zu is %g and %g", spec, j, (double)k[0][j],
                          (double)k[1][j]);
            kvl_loaded_free(b.c.ctx, loaded, num);
            free(bytes.data);
            test_fitted_close(&b);
            free(in);
        }
}

Test(pairs, what_they_cannot_serve_is_refused)
{
    static const struct { const char *spec, *words; } bad[] = {
        { "block-gtq:k5", "must be one of 1, 2, 3, 4" },
        { "block-gtq:k.fit=matched", "k.fit = matched: is for levels = e2m1, e2m3, e3m2, e4m3, "
          "e5m2, lloyd, nl4, signs, not pairs" },
        { "block-gtq:k.fit=minmax", "k.fit = minmax: is for levels = affine" },
        { "block-gtq:k.transform=hadamard", "k.levels = pairs: needs k.transform = none, not" },
        { "block-gtq:k.axis=per_channel,kg32", "k.levels = pairs: needs k.axis = per_token" },
        { "block-gtq:k.shift=middle", "needs k.shift = none, mean or rotating-mean" },
        { "block-gtq:k.meta=head", "needs k.meta without a base, not head" },
        { "block-gtq:k.round=feedback2", "k.round = feedback: is for levels = affine" },
        { "block-gtq:k.extra=promote4", "k.extra = promote: needs k.axis = per_channel" },
        { "block-gtq:v.levels=pairs,v.fit=norm", "v.levels = pairs: is for keys alone" },
    };
    kvl_context* ctx = test_context(&reference, 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        const kvl_layer_desc layer = test_layer(bad[i].spec, Q_HEADS, HEADS, DIM, DIM);
        cr_expect(kvl_spec_check(ctx, &layer, NULL) == KVL_BAD_ARGUMENT &&
                  strstr(kvl_context_message(ctx), bad[i].words), "%s: %s", bad[i].spec,
                  kvl_context_message(ctx));
    }
    kvl_context_destroy(ctx);
}

// Statistics of one layer of rows.
static kvl_statistics* gather(kvl_context* ctx, const kvl_layer_desc* layer, const inputs* in)
{
    kvl_statistics_desc desc = { 0 };
    kvl_statistics* stats = NULL;
    const kvl_statistics_rows rows = rows_of(in);
    desc.num_layers = 1;
    desc.layers = layer;
    test_ok(ctx, kvl_statistics_create(ctx, &desc, &stats), "statistics");
    test_ok(ctx, kvl_statistics_add(stats, &rows), "rows");
    return stats;
}

// Breaks when a map is taken that a page has no room for, or that a kernel would read beyond; or
// what is missing is not told.
Test(pairs, maps_that_do_not_fit_are_refused)
{
    static const kvl_rope rope = { 0, 1, 10000, 0, NULL };
    kvl_context* ctx = test_context(&reference, 1);
    inputs* in = make_inputs(0, DIM);
    kvl_layer_desc layer = test_layer("block-gtq", Q_HEADS, HEADS, DIM, DIM);
    kvl_cache_desc cache = { 0 };
    kvl_calibration* calibration = NULL;
    int64_t num = 0;
    cache.num_layers = 1;
    cache.layers = &layer;
    test_no_cache(ctx, &cache, "needs a calibration with layer.0.k.pair_bits@b2; make it with "
                  "kvloom-calibrate -m MODEL -f TEXT -o FILE --for 'block-gtq");
    kvl_statistics* stats = gather(ctx, &layer, in);
    cr_expect(kvl_calibration_create(stats, &cache, &calibration) == KVL_BAD_ARGUMENT &&
              strstr(kvl_context_message(ctx), "layer 0: k.levels = pairs: table 'pair_bits': "
                     "needs to know how keys turn: kvl_layer_desc.rope"), "%s",
              kvl_context_message(ctx));
    kvl_statistics_free(stats);
    layer.rope = &rope;
    stats = gather(ctx, &layer, in);
    test_ok(ctx, kvl_calibration_create(stats, &cache, &calibration), "with RoPE");
    cache.calibration = calibration;
    float* bits = (float*)(uintptr_t)kvl_calibration_table(calibration, 0, 0, "pair_bits@b2", &num);
    float* size = (float*)(uintptr_t)kvl_calibration_table(calibration, 0, 0, "pair_size", &num);
    cr_assert(bits && size);
    const float was = bits[70];
    bits[70] = was == 6.0f ? 5.0f : was + 1.0f;
    test_no_cache(ctx, &cache, was == 6.0f ? "of head 1 add up to 127: must be 128"
                                             : "layer.0.k.pair_bits of head 1 add up to 129: must "
                                             "be 128, 2 for each of 64 channels");
    static const float wrong[] = { 7.0f, -1.0f, 1.5f, NAN };
    for (int i = 0; i < 4; ++i) {
        bits[70] = wrong[i];
        test_no_cache(ctx, &cache, i == 3 ? "must be finite" : "in head 1, number 6: must be a "
                                            "whole number from 0 to 6");
    }
    bits[70] = was;
    size[3] = 0.0f;
    test_no_cache(ctx, &cache, "layer.0.k.pair_size = 0 in head 0, number 3: must be above 0");
    kvl_statistics_free(stats);
    kvl_calibration_free(calibration);
    kvl_context_destroy(ctx);
    free(in);
}
