// test_outliers.c -- extra=outliers: channels in two sets, each a codec of its own.

#include "test_support.h"

#ifndef KVLOOM_TEST_ROOT
#define KVLOOM_TEST_ROOT "."
#endif

enum { ROWS = 96, Q_HEADS = 4, HEADS = 2, MOST_DIM = 256 };

static const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };

typedef struct inputs {
    float k[ROWS * HEADS * MOST_DIM], v[ROWS * HEADS * MOST_DIM], q[ROWS * Q_HEADS * MOST_DIM];
} inputs;

static inputs* make_inputs(int number, int dim)
{
    inputs* in = (inputs*)test_alloc(1, sizeof *in);
    test_rows(40 + (uint64_t)number, ROWS, HEADS, dim, in->k);
    test_rows(60 + (uint64_t)number, ROWS, HEADS, dim, in->v);
    test_queries(7, ROWS, Q_HEADS, dim, in->q);
    return in;
}

static kvl_statistics_rows rows_of(const inputs* in)
{
    kvl_statistics_rows rows = { 0 };
    rows.num_keys = rows.num_rows = ROWS;
    rows.k.data = in->k;
    rows.v.data = in->v;
    rows.q.data = in->q;
    return rows;
}

static void check_orders(FILE* file, int number, int dim, int outliers, const char* shift)
{
    char spec[128], word[16] = "", name[64];
    test_fitted b;
    inputs* in = make_inputs(number, dim);
    const kvl_statistics_rows rows = rows_of(in);
    if (outliers) snprintf(word, sizeof word, "%d", outliers);
    snprintf(spec, sizeof spec, "turboquant-split:shift=%s,extra=outliers%s,sink=0,recent=0", shift,
             word);
    const kvl_layer_desc layer = test_layer(spec, Q_HEADS, HEADS, dim, dim);
    test_fitted_open(&b, &reference, &layer, &rows, NULL, 0);
    const int usual = dim < 128 ? 16 : dim / 4;
    snprintf(name, sizeof name, "outlier_order@%soutliers%d", *shift == 'm' ? "mean," : "",
             outliers ? outliers : usual);
    for (int side = 0; side < 2; ++side) {
        int64_t num = 0;
        const float* order = kvl_calibration_table(b.calibration, 0, side, name, &num);
        cr_assert(order && num == HEADS * dim, "case %d: no %s", number, name);
        for (int i = 0; i < HEADS * dim; ++i) {
            int want = -1;
            cr_assert(fscanf(file, "%d", &want) == 1);
            cr_assert((int)order[i] == want, "case %d side %d head %d place %d: %g, expected %d",
                      number, side, i / dim, i % dim, (double)order[i], want);
        }
    }
    test_fitted_close(&b);
    free(in);
}

// Breaks when the first set has others than the strongest channels, the mean that rows are stored
// without counts, or a piece of a Hadamard gets stronger channels than the next one.
Test(outliers, orders_are_those_of_the_oracle)
{
    FILE* file = fopen(KVLOOM_TEST_ROOT "/tests/fixtures/outliers.txt", "r");
    int number = 0, dim, outliers;
    char shift[8];
    cr_assert(file);
    while (fscanf(file, " case %d %d %7s", &dim, &outliers, shift) == 3)
        check_orders(file, number++, dim, outliers, shift);
    fclose(file);
    cr_expect(number == 9, "%d cases", number);
}

// Breaks when a page has other bytes than the bits that the source counts, and two norms a token:
// (32 3 + 96 2 + 2 16) / 128 = 2.5 is its 2.5 bits, with b = 3 its 3.5.  (A program with pages of
// another size is refused when it is loaded.)
Test(outliers, pages_have_the_bits_that_are_claimed)
{
    static const struct { const char* spec; int dim; double bits; const char* page; } cases[] = {
        { "turboquant-split", 128, 2.5, "page 64 of 10240 bytes" },
        { "turboquant-split:b3", 128, 3.5, "page 64 of 14336 bytes" },
        { "turboquant-split:b1", 64, 1.75, "page 64 of 3584 bytes" },
        { "turboquant-split", 80, 2.6, "page 64 of 6656 bytes" },
        { "turboquant-split", 96, 2.5, "page 64 of 7680 bytes" },
        { "turboquant-split", 256, 2.375, "page 64 of 19456 bytes" },
        { "turboquant-split:extra=outliers96,meta=8bit", 128, 2.875, "page 64 of 11776 bytes" },
        { "rtn:b4,g64,extra=outliers16,meta=f16", 64, 5.25, "page 64 of 10752 bytes" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char text[2048];
        const kvl_layer_desc layer =
            test_layer(cases[i].spec, Q_HEADS, HEADS, cases[i].dim, cases[i].dim);
        test_cache c = test_open_calibrated(&reference, &layer, test_calibration(TEST_TABLES));
        test_ok(c.ctx, kvl_describe(c.cache, text, sizeof text, NULL), cases[i].spec);
        cr_expect(fabs(c.info.k_bits - cases[i].bits) < 1e-9 &&
                  fabs(c.info.v_bits - cases[i].bits) < 1e-9 && strstr(text, cases[i].page),
                  "%s: %g and %g bits, expected %g; '%s' in:\n%s", cases[i].spec, c.info.k_bits,
                  c.info.v_bits, cases[i].bits, cases[i].page, text);
        test_close(&c);
    }
}

// Rows of a bell curve whose channels 3, 7, 11, ... are 64 times larger: a quarter of the head.
static void make_bell(uint64_t seed, int dim, float* x)
{
    test_lcg lcg = { seed };
    for (int i = 0; i < ROWS * HEADS * dim; ++i)
        x[i] = (float)test_bell(&lcg) / (i % 4 == 3 ? 32.0f : 2048.0f);
}

// The sum of squared errors over that of the rows, of strong channels or of the others.
static double distortion(const float* x, const float* back, int dim, int strong)
{
    double error = 0, all = 0;
    for (int i = 0; i < ROWS * HEADS * dim; ++i) {
        if ((i % 4 == 3) != strong) continue;
        error += pow((double)back[i] - (double)x[i], 2);
        all += pow((double)x[i], 2);
    }
    return error / all;
}

// Breaks when a set has another norm, rotation or number of bits than its own.  Distortions of the
// paper's levels for a normal distribution: 0.363 at 1 bit, 0.1175 at 2, 0.0345 at 3, 0.0095 at 4;
// rows of norm 1 have shorter tails, and a little less.  With one norm the other channels, 64 times
// smaller, would all be lost.
Test(outliers, each_set_has_the_error_of_its_bits)
{
    static const double of[5] = { 1, .363, .1175, .0345, .0095 };
    static float k[ROWS * HEADS * 128], v[ROWS * HEADS * 128];
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets), dim = 128;
    inputs* in = make_inputs(0, dim);
    make_bell(5, dim, in->k);
    make_bell(6, dim, in->v);
    const kvl_statistics_rows rows = rows_of(in);
    for (int bits = 1; bits <= 3; ++bits)
        for (int t = 0; t < n && t < (bits == 2 ? 2 : 1); ++t) {
            char spec[64];
            test_fitted b;
            snprintf(spec, sizeof spec, "turboquant-split:b%d,fit=norm,sink=0,recent=0", bits);
            const kvl_layer_desc layer = test_layer(spec, Q_HEADS, HEADS, dim, dim);
            test_fitted_open(&b, &targets[t], &layer, &rows, NULL, 0);
            test_restore(&b.c, b.seq, 0, ROWS, k, v);
            for (int strong = 0; strong < 2; ++strong) {
                const double want = of[bits + strong];
                const double got[2] = { distortion(in->k, k, dim, strong),
                                        distortion(in->v, v, dim, strong) };
                for (int side = 0; side < 2; ++side)
                    cr_expect(got[side] < 1.02 * want && got[side] > 0.85 * want,
                              "%s on %s, side %d, strong %d: %g, expected %g", spec,
                              targets[t].name, side, strong, got[side], want);
            }
            test_fitted_close(&b);
        }
    free(in);
}

// A row through append in two calls, a fork, a file: what comes back, beside the cache's own rows.
static void check_ways(test_fitted* b, const inputs* in, const char* what, float* k, float* v)
{
    test_bytes bytes = { 0 };
    kvl_loaded_seq* loaded = NULL;
    int num = 0;
    kvl_seq fork = 0;
    const kvl_seq parts = test_seq(&b->c);
    test_append(&b->c, parts, in->k, in->v, 0, 41);
    test_ok(b->c.ctx, kvl_seq_fork(b->c.cache, parts, &fork), what);
    test_append(&b->c, fork, in->k, in->v, 41, ROWS - 41);
    kvl_save_seq one = { 0 };
    one.seq = fork;
    const kvl_save_desc save = { .num_seqs = 1, .seqs = &one, .write = test_put_bytes,
                                 .user = &bytes };
    const kvl_load_desc load = { .read = test_take_bytes, .user = &bytes };
    test_ok(b->c.ctx, kvl_save(b->c.cache, &save), what);
    test_ok(b->c.ctx, kvl_load(b->c.cache, &load, &loaded, &num), what);
    test_restore(&b->c, loaded[0].seq, 0, ROWS, k, v);
    kvl_loaded_free(b->c.ctx, loaded, num);
    free(bytes.data);
}

// Breaks when a score is not that of the restored key, or an output not of the restored values,
// whatever sets are composed with; or rows differ by how they came, on the way through a file, or
// by the target.
Test(outliers, every_composition_is_served)
{
    static float k[3][ROWS * HEADS * MOST_DIM], v[3][ROWS * HEADS * MOST_DIM];
    static const struct { const char* spec; int dim; } cases[] = {
        { "turboquant-split:sink=0,recent=0", 128 },
        { "turboquant-split:k1,v3,shift=mean,rows=bf16,sink=2,recent=5", 80 },
        { "turboquant-split:fit=norm,k.transform=hadamard8,v.transform=none,meta=e4m3,recent=3",
          96 },
        { "turboquant-split:b3,k.extra=outliers16,v.extra=outliers240,recent=1", 256 },
        { "rtn:k2,v4,g64,extra=outliers48,k.fit=search,v.transform=hadamard,recent=1", 64 },
    };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
        for (int t = 0; t < n && t < 2; ++t) {
            test_fitted b;
            inputs* in = make_inputs((int)i, cases[i].dim);
            const char* spec = cases[i].spec;
            const kvl_statistics_rows rows = rows_of(in);
            const kvl_layer_desc layer =
                test_layer(spec, Q_HEADS, HEADS, cases[i].dim, cases[i].dim);
            const size_t size = sizeof(float) * ROWS * HEADS * (size_t)cases[i].dim;
            test_fitted_open(&b, &targets[t], &layer, &rows, NULL, 0);
            test_attend_check(&b.c, b.seq, in->q, 2, NULL, spec);
            test_restore(&b.c, b.seq, 0, ROWS, k[t], v[t]);
            check_ways(&b, in, spec, k[2], v[2]);
            cr_expect(memcmp(k[t], k[2], size) == 0 && memcmp(v[t], v[2], size) == 0,
                      "%s on %s: rows differ", spec, targets[t].name);
            for (size_t j = 0; t == 1 && j < size / sizeof(float); ++j)
                cr_assert(fabs((double)k[0][j] - (double)k[1][j]) <= 1e-4 &&
                          fabs((double)v[0][j] - (double)v[1][j]) <= 1e-4,
                          "%s: value %zu is %g and %g, %g and %g", spec, j, (double)k[0][j],
                          (double)k[1][j], (double)v[0][j], (double)v[1][j]);
            test_fitted_close(&b);
            free(in);
        }
}

Test(outliers, what_they_cannot_serve_is_refused)
{
    static const struct { const char *spec, *words; } bad[] = {
        { "turboquant-split:b4", "with levels = lloyd, fit = matched must be one of 1, 2, 3" },
        { "iq4_nl:g64,v.extra=outliers", "v.extra = outliers: levels = nl4 have no codes of one" },
        { "turboquant-split:k.extra=outliers24", "k.extra = outliers24: the number must be a "
          "multiple of 16 below head_dim = 64" },
        { "turboquant-split:v.extra=outliers64", "v.extra = outliers64: the number must be" },
        { "turboquant-split:k.transform=hadamard32", "k.extra = outliers16, k.transform = "
          "hadamard32: needs a Hadamard of each set, in pieces that divide it" },
        { "turboquant-split:k.transform=flat", "k.transform = flat: needs a Hadamard of each set" },
        { "turboquant-split:v.place=folded", "v.transform = signed_hadamard: needs a Hadamard" },
        { "turboquant-split:kg32", "needs k.axis = per_token and kg64, the head" },
        { "turboquant-split:v.axis=per_channel", "needs v.axis = per_token and vg64" },
        { "turboquant-split:k.shift=rotating-mean", "needs k.shift = none or mean, not rotating" },
        { "turboquant-split:v.meta=head", "v.extra = outliers: needs v.meta without a base" },
        { "rtn:g64,extra=outliers,k.fit=clip", "needs a fit that does not clip" },
        { "rtn:g64,extra=outliers,k.round=trellis4", "values rounded one by one, not minmax and" },
        { "rtn:g64,extra=outliers,v.levels=f16,v16", "v.extra = outliers: needs v.levels of one" },
        { "block-gtq:k.extra=outliers", "k.extra = outliers: needs k.levels of one width" },
        { "kivi:kg64,k.axis=per_token,k.extra=outliers,k.choose=fixed,k.score=reconstruction",
          "k.extra = outliers: needs k.choose = none, not fixed" },
    };
    kvl_context* ctx = test_context(&reference, 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        const kvl_layer_desc layer = test_layer(bad[i].spec, Q_HEADS, HEADS, 64, 64);
        cr_expect(kvl_spec_check(ctx, &layer, NULL) == KVL_BAD_ARGUMENT &&
                  strstr(kvl_context_message(ctx), bad[i].words), "%s: %s", bad[i].spec,
                  kvl_context_message(ctx));
    }
    kvl_layer_desc latent = test_layer("turboquant-split", Q_HEADS, 1, 64, 64);
    latent.values_in_keys = 1;
    cr_expect(kvl_spec_check(ctx, &latent, NULL) == KVL_BAD_ARGUMENT &&
              strstr(kvl_context_message(ctx), "k.extra = outliers, k.levels = lloyd: values that "
                     "are in the keys"), "%s", kvl_context_message(ctx));
    kvl_context_destroy(ctx);
}

// Breaks when an order that names a channel twice, or none, is taken: what reads rows by it would
// read beside them.
Test(outliers, orders_that_are_none_are_refused)
{
    static const float wrong[] = { 64.0f, -1.0f, 1.5f, NAN };
    int64_t num = 0;
    test_fitted b;
    inputs* in = make_inputs(0, 64);
    kvl_layer_desc layer = test_layer("turboquant-split:sink=0,recent=0", Q_HEADS, HEADS, 64, 64);
    kvl_cache_desc cache = { 0 };
    const kvl_statistics_rows rows = rows_of(in);
    cache.num_layers = 1;
    cache.layers = &layer;
    test_fitted_open(&b, &reference, &layer, &rows, NULL, 0);
    test_no_cache(b.c.ctx, &cache, "layer 0: k.extra = outliers: needs a calibration with "
                  "layer.0.k.outlier_order@outliers16; make it with kvloom-calibrate -m MODEL -f "
                  "TEXT -o FILE --for 'turboquant-split");
    cache.calibration = b.calibration;
    float* order = (float*)(uintptr_t)kvl_calibration_table(b.calibration, 0, 1,
                                                            "outlier_order@outliers16", &num);
    cr_assert(order && num == HEADS * 64);
    const float was = order[64 + 5];
    for (int i = 0; i < 4; ++i) {
        order[64 + 5] = wrong[i];
        test_no_cache(b.c.ctx, &cache, i == 3 ? "must be finite" : "in head 1, number 5: must "
                                              "name each of the head's 64 channels once");
    }
    order[64 + 5] = order[64 + 6];
    test_no_cache(b.c.ctx, &cache, "layer.0.v.outlier_order = ");
    order[64 + 5] = was;
    test_fitted_close(&b);
    free(in);
}
