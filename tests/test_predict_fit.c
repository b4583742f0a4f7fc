// test_predict_fit.c -- tables of shift=predicted: normal equations on rows that a cache restores.

#include "test_support.h"
#include "transform_predict.h"

enum { LAYERS = 3, HEADS = 2, DK = 32, DV = 48, ROWS = 500, SINK = 4 };
enum { K_WIDTH = HEADS * DK, V_WIDTH = HEADS * DV, MOST = K_WIDTH + V_WIDTH + 1 };

static const char spec[] = "higgs:b2,k.place=pre_rope,shift=predicted,sink=4,recent=0";
static const char alone[] = "higgs:b2,k.place=pre_rope,sink=4,recent=0";
static kvl_rope rope = { 24, 1, 1000.0, 0, NULL };

// Rows of layers: before RoPE, and keys after it; and what a cache restores of them, before RoPE.
typedef struct rows {
    float k[ROWS * K_WIDTH], v[ROWS * V_WIDTH], turned[ROWS * K_WIDTH];
    float kr[ROWS * K_WIDTH], vr[ROWS * V_WIDTH];
} rows;

static rows layers_of[LAYERS];
static int64_t positions[ROWS];

static void turn(float* x, int64_t position, double direction)
{
    for (int i = 0; i < rope.dims / 2; ++i) {
        const double scale = rope.scale > 0 ? rope.scale : 1;
        const double angle = (double)position * scale * pow(rope.base, -2.0 * i / rope.dims);
        const double c = cos(angle), s = direction * sin(angle);
        const double a = (double)x[i], b = (double)x[i + rope.dims / 2];
        x[i] = (float)(a * c - b * s);
        x[i + rope.dims / 2] = (float)(b * c + a * s);
    }
}

static void turn_all(const float* from, double direction, float* to)
{
    memcpy(to, from, ROWS * K_WIDTH * sizeof *to);
    for (int r = 0; r < ROWS; ++r)
        for (int h = 0; h < HEADS; ++h) turn(to + r * K_WIDTH + h * DK, r, direction);
}

// y = 0.9 times channels of the layer below in another order, and noise.
static void mix(const float* below, int width, int stride, test_lcg* lcg, float* y)
{
    for (int r = 0; r < ROWS; ++r)
        for (int i = 0; i < width; ++i)
            y[r * width + i] = test_round_f16(0.9f * below[r * width + (stride * i + 5) % width] +
                                              0.3f * (float)test_bell(lcg) / 2048.0f);
}

static void make_rows(void)
{
    test_lcg lcg = { 77 };
    for (int r = 0; r < ROWS; ++r) positions[r] = r;
    for (int l = 0; l < LAYERS; ++l) {
        rows* at = &layers_of[l];
        for (int i = 0; l == 0 && i < ROWS * K_WIDTH; ++i)
            at->k[i] = test_round_f16((float)test_bell(&lcg) / 2048.0f);
        for (int i = 0; l == 0 && i < ROWS * V_WIDTH; ++i)
            at->v[i] = test_round_f16(0.7f * at->k[i / V_WIDTH * K_WIDTH + i % K_WIDTH] +
                                      (float)test_bell(&lcg) / 4096.0f);
        if (l > 0) {
            mix(layers_of[l - 1].k, K_WIDTH, 17, &lcg, at->k);
            mix(layers_of[l - 1].v, V_WIDTH, 17, &lcg, at->v);
        }
        turn_all(at->k, 1, at->turned);
    }
}

static void describe(const char* text, kvl_layer_desc layers[LAYERS])
{
    for (int l = 0; l < LAYERS; ++l) {
        layers[l] = test_layer(text, HEADS, HEADS, DK, DV);
        layers[l].rope = &rope;
    }
}

static kvl_calibration* derive(kvl_context* ctx)
{
    static const float* k[LAYERS];
    static const float* v[LAYERS];
    kvl_layer_desc layers[LAYERS];
    kvl_statistics_desc sd = { 0 };
    kvl_cache_desc cache = { 0 };
    kvl_derive_desc dd = { 0 };
    kvl_statistics* stats = NULL;
    kvl_calibration* calibration = NULL;
    transform_predict p = { .ctx = ctx, .num_rows = ROWS, .positions = positions,
                            .rows = { k, v } };
    const kvl_derivation own = { "shift", "predicted", "predicted", transform_predicted, &p };
    describe(spec, layers);
    for (int l = 0; l < LAYERS; ++l) {
        k[l] = layers_of[l].turned;
        v[l] = layers_of[l].v;
    }
    sd.num_layers = cache.num_layers = LAYERS;
    sd.layers = cache.layers = layers;
    test_ok(ctx, kvl_statistics_create(ctx, &sd, &stats), "statistics");
    test_ok(ctx, kvl_calibration_create(stats, NULL, &calibration), "calibration");
    dd.stats = stats;
    dd.cache = &cache;
    dd.derivations = &own;
    dd.num_derivations = 1;
    test_ok(ctx, kvl_calibration_derive(calibration, &dd), "derive");
    kvl_statistics_free(stats);
    transform_predict_end(&p);
    return calibration;
}

// Appends the rows to a cache, and takes what it restores.
static void restore(kvl_context* ctx, const char* text, const kvl_calibration* calibration)
{
    kvl_layer_desc layers[LAYERS];
    kvl_cache_desc desc = { 0 };
    kvl_cache* cache = NULL;
    kvl_seq seq = 0;
    const int32_t num = ROWS;
    static float turned[ROWS * K_WIDTH];
    describe(text, layers);
    desc.num_layers = LAYERS;
    desc.layers = layers;
    desc.calibration = calibration;
    test_ok(ctx, kvl_cache_create(ctx, &desc, &cache), text);
    test_ok(ctx, kvl_seq_create(cache, &seq), text);
    for (int l = 0; l < LAYERS; ++l) {
        kvl_append_desc a = { .layer = l, .num_seqs = 1, .seqs = &seq, .num_rows = &num };
        const kvl_rows k = { .data = turned }, v = { .data = layers_of[l].vr };
        a.k.data = layers_of[l].turned;
        a.v.data = layers_of[l].v;
        test_ok(ctx, kvl_append(cache, &a), text);
        test_ok(ctx, kvl_restore(cache, l, seq, 0, ROWS, &k, &v), text);
        turn_all(turned, -1, layers_of[l].kr);
    }
    kvl_cache_free(cache);
}

// The inputs of a row of layer l; exact: as they come, not as they are restored.
static void inputs_of(int l, int side, int r, int exact, double* x)
{
    memset(x, 0, MOST * sizeof *x);
    const int of = side ? l : l - 1, n = side ? K_WIDTH + V_WIDTH : K_WIDTH;
    for (int i = 0; of >= 0 && i < K_WIDTH; ++i)
        x[i] = (double)(exact ? layers_of[of].k : layers_of[of].kr)[r * K_WIDTH + i];
    for (int i = 0; side && l > 0 && i < V_WIDTH; ++i)
        x[K_WIDTH + i] = (double)(exact ? layers_of[l - 1].v : layers_of[l - 1].vr)[r * V_WIDTH +
                                                                                     i];
    x[n] = 1;
}

// |X'(Y - X W) - lambda W| of the normal equations, as a share of |X' Y|.
static double off_normal(int l, int side, int exact, const float* table)
{
    static double x[ROWS][MOST];
    const int n = (side ? K_WIDTH + V_WIDTH : K_WIDTH) + 1, dim = side ? DV : DK;
    double trace = 0, off = 0, size = 0;
    for (int r = SINK; r < ROWS; ++r) {
        inputs_of(l, side, r, exact, x[r]);
        for (int i = 0; i < n - 1; ++i) trace += x[r][i] * x[r][i];
    }
    for (int o = 0; o < HEADS * dim; ++o) {
        const float* w = table + (o / dim) * n * dim + o % dim;
        double got[MOST] = { 0 }, all[MOST] = { 0 };
        for (int r = SINK; r < ROWS; ++r) {
            const double y = (double)(side ? layers_of[l].v : layers_of[l].k)[r * HEADS * dim + o];
            double left = y;
            for (int i = 0; i < n; ++i) left -= x[r][i] * (double)w[i * dim];
            for (int i = 0; i < n; ++i) {
                got[i] += x[r][i] * left;
                all[i] += x[r][i] * y;
            }
        }
        for (int i = 0; i < n; ++i) {
            if (i < n - 1) got[i] -= 1e-3 * trace / (n - 1) * (double)w[i * dim];
            off += got[i] * got[i];
            size += all[i] * all[i];
        }
    }
    return sqrt(off / size);
}

static double error_of(const float* x, const float* y, int width)
{
    double off = 0, size = 0;
    for (int i = SINK * width; i < ROWS * width; ++i) {
        off += pow((double)x[i] - (double)y[i], 2);
        size += pow((double)x[i], 2);
    }
    return off / size;
}

// Both sides of a layer.
static void check_tables(int l, const kvl_calibration* calibration)
{
    for (int side = 0; side < 2; ++side) {
        char name[256];
        int64_t num = 0;
        snprintf(name, sizeof name, "predicted@b2,g%d,%spredicted,signed_hadamard%d,norm,plane,f16",
                 side ? DV : DK, side ? "" : "pre_rope,", side ? 16 : 32);
        const float* table = kvl_calibration_table(calibration, l, side, name, &num);
        cr_assert(table, "layer %d: %s", l, name);
        const double off = off_normal(l, side, 0, table), exact = off_normal(l, side, 1, table);
        // A cache rounds keys, and what it restores, to 16 bits: few codes differ from the fit's.
        // Without turns none do, until rows are restored from rows that were rounded.
        const int same = rope.scale > 0 && l + side < 2;
        cr_assert(off < (same ? 5e-4 : 0.02), "layer %d, side %d: %g off", l, side, off);
        cr_assert(l + side == 0 || exact > 0.04, "layer %d, side %d: %g off on rows as they come",
                  l, side, exact);
    }
}

static void check_fits(double scale)
{
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    kvl_context* ctx = test_context(&reference, 1);
    double with[LAYERS][2];
    rope.scale = scale;
    make_rows();
    kvl_calibration* calibration = derive(ctx);
    restore(ctx, spec, calibration);
    for (int l = 0; l < LAYERS; ++l) {
        check_tables(l, calibration);
        with[l][0] = error_of(layers_of[l].k, layers_of[l].kr, K_WIDTH);
        with[l][1] = error_of(layers_of[l].v, layers_of[l].vr, V_WIDTH);
    }
    // What they are for: a layer above another loses less than by the same codec alone.
    restore(ctx, alone, NULL);
    for (int l = 1; l < LAYERS; ++l) {
        const double k = error_of(layers_of[l].k, layers_of[l].kr, K_WIDTH);
        const double v = error_of(layers_of[l].v, layers_of[l].vr, V_WIDTH);
        cr_assert(with[l][0] < 0.3 * k && with[l][1] < 0.3 * v,
                  "layer %d: %g and %g, alone %g and %g", l, with[l][0], with[l][1], k, v);
    }
    kvl_calibration_free(calibration);
    kvl_context_destroy(ctx);
}

Test(predict_fit, tables_solve_the_normal_equations_of_restored_rows)
{
    // Broken by a fit on rows as they come, by rows of another codec or layer, by a table whose
    // heads or inputs are in another order, or by rows of the sink that join it.
    check_fits(1e-30);
}

Test(predict_fit, keys_are_fitted_before_rope)
{
    // Broken by keys that are turned back by another angle, or from another row's position.
    check_fits(0);
}
