// test_ranges.c -- fit=static, levels=kmeans, extra=sparse: ranges and books that calibration makes
// of keys before RoPE, and values that are kept as they are.

#include "calibrate_tables.h"
#include "test_support.h"

enum { DIM = 64, HEADS = 2, Q_HEADS = 4, ROWS = 1024, SINK = 4, LEVELS = 8, OUTLIERS = 40 };

// Where values of a channel lie within its range: 8 clusters.
static const double clusters[LEVELS] = { -0.98, -0.7, -0.45, -0.2, 0.1, 0.3, 0.66, 0.98 };

typedef struct inputs {
    kvl_rope rope;
    double   before[ROWS][HEADS][DIM];                 // keys before RoPE
    float    k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM], q[ROWS * Q_HEADS * DIM];
} inputs;

static double middle_of(int head, int c) { return 0.5 * ((7 * c + 3 * head) % 9) - 2; }

static double half_of(int head, int c) { return 0.25 + 0.125 * ((5 * c + head) % 8); }

// Keys whose channels are in clusters before RoPE; every 40th row has an outlier.
static inputs* make_inputs(void)
{
    inputs* in = (inputs*)test_alloc(1, sizeof *in);
    test_lcg lcg = { 5 };
    in->rope.split_halves = 1;
    for (int t = 0; t < ROWS; ++t)
        for (int h = 0; h < HEADS; ++h) {
            double* x = in->before[t][h];
            float* k = in->k + (t * HEADS + h) * DIM;
            for (int c = 0; c < DIM; ++c) {
                const int at = (int)(((unsigned)test_bell(&lcg) >> 3) % LEVELS);
                x[c] = middle_of(h, c) +
                       half_of(h, c) * (clusters[at] + 0.01 * (double)test_bell(&lcg) / 8192.0);
            }
            if (t % OUTLIERS == 7) x[(t + 11 * h) % DIM] += t % 2 ? 9 : -9;
            for (int i = 0; i < DIM / 2; ++i) {
                const double angle = t * pow(10000, -2.0 * i / DIM), a = x[i], b = x[i + DIM / 2];
                k[i] = (float)(a * cos(angle) - b * sin(angle));
                k[i + DIM / 2] = (float)(a * sin(angle) + b * cos(angle));
            }
        }
    for (int i = 0; i < ROWS * HEADS * DIM; ++i)
        in->v[i] = (float)test_bell(&lcg) / 2365.0f + (i % 577 ? 0.0f : 11.0f);
    for (int i = 0; i < ROWS * Q_HEADS * DIM; ++i) in->q[i] = (float)test_bell(&lcg) / 9000.0f;
    return in;
}

static void open_bench(test_fitted* b, const test_target* target, const inputs* in,
                       const char* spec)
{
    kvl_layer_desc layer = test_layer(spec, Q_HEADS, HEADS, DIM, DIM);
    kvl_statistics_rows rows = { 0 };
    layer.rope = &in->rope;
    rows.num_keys = rows.num_rows = ROWS;
    rows.k.data = in->k;
    rows.v.data = in->v;
    rows.q.data = in->q;
    test_fitted_open(b, target, &layer, &rows, NULL, 0);
}

static const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };

static int compare(const void* a, const void* b)
{
    const double x = *(const double*)a, y = *(const double*)b;
    return x < y ? -1 : x > y;
}

// Breaks when a range is of keys after RoPE, of other quantiles, or has the first rows in it: all
// rows are sampled (8 runs of 128), so that quantiles are those of all but the first 4.
Test(ranges, are_quantiles_of_keys_before_rope)
{
    double x[ROWS];
    int64_t num = 0;
    inputs* in = make_inputs();
    test_fitted b;
    open_bench(&b, &reference, in, "kvquant");
    const float* middle =
        kvl_calibration_table(b.calibration, 0, 0, "static_middle@pre_rope", &num);
    const float* half = kvl_calibration_table(b.calibration, 0, 0, "static_half@pre_rope", &num);
    cr_assert(middle && half && num == HEADS * DIM);
    for (int h = 0; h < HEADS; ++h)
        for (int c = 0; c < DIM; ++c) {
            for (int t = SINK; t < ROWS; ++t) x[t - SINK] = in->before[t][h][c];
            qsort(x, ROWS - SINK, sizeof *x, compare);
            const int out = (ROWS - SINK) / 200;
            const double lo = x[out], hi = x[ROWS - SINK - 1 - out];
            cr_expect(fabs((double)middle[h * DIM + c] - 0.5 * (lo + hi)) < 1e-5 &&
                      fabs((double)half[h * DIM + c] - 0.5 * (hi - lo)) < 1e-5,
                      "head %d channel %d: %g +- %g, expected %g to %g", h, c,
                      (double)middle[h * DIM + c], (double)half[h * DIM + c], lo, hi);
        }
    test_fitted_close(&b);
    free(in);
}

// Breaks when levels are not the means of clusters: values lie in 8 of them, each within 0.01 of
// its place in a range that reaches 0.98 to 0.99 about its middle.
Test(ranges, levels_are_means_of_clusters)
{
    int64_t num = 0;
    inputs* in = make_inputs();
    test_fitted b;
    open_bench(&b, &reference, in, "kvquant");
    const float* book = kvl_calibration_table(b.calibration, 0, 0, "kmeans_book@b3,pre_rope", &num);
    cr_assert(book && num == HEADS * 16);
    for (int h = 0; h < HEADS; ++h)
        for (int i = 0; i < 16; ++i) {
            const double expected = clusters[i < LEVELS ? i : LEVELS - 1] / 0.985;
            cr_expect(fabs((double)book[h * 16 + i] - expected) < 0.012,
                      "head %d: level %d is %g, expected %g", h, i, (double)book[h * 16 + i],
                      expected);
        }
    test_fitted_close(&b);
    free(in);
}

// Breaks when a value with a slot does not come back as it was, or another is off by more than a
// cluster is wide: values of v bit for bit, keys but for being turned twice in f16.
Test(ranges, outliers_are_restored)
{
    static float k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM];
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    inputs* in = make_inputs();
    for (int i = 0; i < n && i < 2; ++i) {
        test_fitted b;
        open_bench(&b, &targets[i], in, "kvquant");
        test_restore(&b.c, b.seq, 0, ROWS, k, v);
        for (int j = 0; j < ROWS * HEADS * DIM; ++j) {
            cr_assert(fabs((double)k[j] - (double)in->k[j]) < 0.08, "%s: row %d: key %g, not %g",
                      targets[i].name, j / (HEADS * DIM), (double)k[j], (double)in->k[j]);
            if (j % 577 == 0 && fabsf(in->v[j]) > 6.0f)
                cr_assert(v[j] == test_round_f16(in->v[j]), "%s: row %d: value %g, not %g",
                          targets[i].name, j / (HEADS * DIM), (double)v[j], (double)in->v[j]);
        }
        test_attend_check(&b.c, b.seq, in->q, 2, NULL, "kvquant");
        test_fitted_close(&b);
    }
    free(in);
}

// Breaks when slots are lost on the way through a file, or between sequences that share pages.
Test(ranges, slots_go_with_their_rows)
{
    static float k[2][ROWS * HEADS * DIM], v[2][ROWS * HEADS * DIM];
    static const char spec[] = "rtn:k3,v2,extra=sparse2,recent=0,sink=4";
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    inputs* in = make_inputs();
    for (int i = 0; i < n && i < 2; ++i) {
        test_bytes bytes = { 0 };
        kvl_save_seq one = { 0 };
        kvl_save_desc save = { .num_seqs = 1, .seqs = &one, .write = test_put_bytes,
                               .user = &bytes };
        kvl_load_desc load = { .read = test_take_bytes, .user = &bytes };
        kvl_loaded_seq* loaded = NULL;
        int num = 0;
        const kvl_layer_desc layer = test_layer(spec, Q_HEADS, HEADS, DIM, DIM);
        test_cache c = test_open(&targets[i], &layer), other = test_open(&reference, &layer);
        one.seq = test_seq(&c);
        test_append(&c, one.seq, in->k, in->v, 0, 300);
        kvl_seq fork = 0;
        test_ok(c.ctx, kvl_seq_fork(c.cache, one.seq, &fork), "fork");
        test_append(&c, fork, in->v, in->k, 300, 100);
        test_restore(&c, one.seq, 0, 300, k[0], v[0]);
        test_ok(c.ctx, kvl_save(c.cache, &save), "save");
        test_ok(other.ctx, kvl_load(other.cache, &load, &loaded, &num), "load");
        test_restore(&other, loaded[0].seq, 0, 300, k[1], v[1]);
        for (int j = 0; j < 300 * HEADS * DIM; ++j)
            cr_assert(k[0][j] == k[1][j] && v[0][j] == v[1][j], "%s: row %d", targets[i].name,
                      j / (HEADS * DIM));
        test_restore(&c, fork, 0, 300, k[1], v[1]);
        cr_expect(memcmp(k[0], k[1], 300 * HEADS * DIM * sizeof(float)) == 0, "the fork's keys");
        kvl_loaded_free(other.ctx, loaded, num);
        test_close(&c);
        test_close(&other);
        free(bytes.data);
    }
    free(in);
}

// Breaks when a spec that cannot be served is taken, or a cache is made without its tables.
Test(ranges, what_they_cannot_serve_is_refused)
{
    static const struct { const char *spec, *words; } bad[] = {
        { "rtn:extra=sparse17", "sparse17: the number must be 1 to 16" },
        { "kivi:k.extra=sparse", "k.extra = sparse: needs k.axis = per_token" },
        { "rtn:extra=sparse,transform=hadamard", "needs k.transform = none, not hadamard" },
        { "rtn:v.extra=sparse,v.shift=mean", "v.extra = sparse: needs v.shift = none" },
        { "f16:extra=sparse", "k.levels = f16 store all values as they are" },
        { "rtn:extra=sparse8,g8", "sparse8: the group size, 8, must be more" },
        { "rtn:k.fit=static", "k.fit = static, k.meta = 8bit: static goes with static" },
        { "kvquant:v.fit=static,v.meta=static", "v.fit = static: is for keys alone" },
        { "kvquant:k.fit=minmax,k.meta=f16", "k.fit = minmax: is for levels = affine, not" },
        { "kvquant:k5", "must be one of 1, 2, 3, 4" },
        { "kvquant:k.transform=hadamard", "needs k.transform = none" },
    };
    kvl_context* ctx = test_context(&reference, 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        const kvl_layer_desc layer = test_layer(bad[i].spec, Q_HEADS, HEADS, DIM, DIM);
        const kvl_status status = kvl_spec_check(ctx, &layer, NULL);
        cr_expect(status == KVL_BAD_ARGUMENT && strstr(kvl_context_message(ctx), bad[i].words),
                  "%s: %s", bad[i].spec, kvl_context_message(ctx));
    }
    const kvl_rope rope = { 0 };
    kvl_layer_desc layer = test_layer("kvquant", Q_HEADS, HEADS, DIM, DIM);
    kvl_cache_desc desc = { 0 };
    kvl_cache* none = NULL;
    layer.rope = &rope;
    desc.num_layers = 1;
    desc.layers = &layer;
    const kvl_status status = kvl_cache_create(ctx, &desc, &none);
    cr_expect(status == KVL_BAD_ARGUMENT && !none &&
              strstr(kvl_context_message(ctx), "needs a calibration with layer.0.k.static_middle@"),
              "%s", kvl_context_message(ctx));
    kvl_context_destroy(ctx);
}
