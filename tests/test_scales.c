// test_scales.c -- meta=tensor, head, e4m3fn_tensor: scales that calibration finds.
//
// Bits against the NumPy oracle are in test_codecs (fixtures fp8_scaled, nvfp4_two).

#include "test_support.h"

enum { DIM = 64, HEADS = 2, Q_HEADS = 4, ROWS = 256 };

typedef struct inputs {
    float k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM], q[ROWS * Q_HEADS * DIM];
} inputs;

// The greatest magnitudes: of keys 12 and 28, of values 0.015625 and 0.00390625, of single rows.
static const double mosts[2][HEADS] = { { 12, 28 }, { 0.015625, 0.00390625 } };

static inputs* make_inputs(void)
{
    inputs* in = (inputs*)test_alloc(1, sizeof *in);
    test_lcg lcg = { 9 };
    for (int i = 0; i < ROWS * HEADS * DIM; ++i) {
        const int head = i / DIM % HEADS;
        in->k[i] = (float)(mosts[0][head] * test_bell(&lcg) / 16384.0);
        in->v[i] = (float)(mosts[1][head] * test_bell(&lcg) / 16384.0);
    }
    for (int i = 0; i < ROWS * Q_HEADS * DIM; ++i) in->q[i] = (float)test_bell(&lcg) / 9000.0f;
    for (int head = 0; head < HEADS; ++head) {
        in->k[(1 * HEADS + head) * DIM + 5 * head] = (float)-mosts[0][head];     // in the sink too
        in->v[(200 * HEADS + head) * DIM + 7] = (float)mosts[1][head];
    }
    return in;
}

static void open_bench(test_fitted* b, const test_target* target, const inputs* in,
                       const char* spec)
{
    const kvl_layer_desc layer = test_layer(spec, Q_HEADS, HEADS, DIM, DIM);
    kvl_statistics_rows rows = { 0 };
    rows.num_keys = rows.num_rows = ROWS;
    rows.k.data = in->k;
    rows.v.data = in->v;
    rows.q.data = in->q;
    test_fitted_open(b, target, &layer, &rows, NULL, 0);
}

static const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };

static void expect_table(const test_fitted* b, int side, const char* name, const double* scales)
{
    int64_t num = 0;
    const float* table = kvl_calibration_table(b->calibration, 0, side, name, &num);
    cr_assert(table && num == HEADS * DIM, "%s of side %d", name, side);
    for (int i = 0; i < HEADS * DIM; ++i)
        cr_assert(fabs((double)table[i] / scales[i / DIM] - 1) < 1e-6,
                  "%s of side %d, head %d: %g, expected %g", name, side, i / DIM, (double)table[i],
                  scales[i / DIM]);
}

// Breaks when a scale is not max|x| over the greatest level, of the head or of all heads.
Test(scales, are_the_greatest_value_over_the_greatest_level)
{
    static const double tensor[] = { 28 / 448.0, 28 / 448.0 };
    static const double heads[] = { 0.015625 / 57344, 0.00390625 / 57344 };
    static const double second[] = { 28 / 6.0 / 448, 28 / 6.0 / 448 };
    inputs* in = make_inputs();
    test_fitted b;
    open_bench(&b, &reference, in, "fp8-tensor:v.meta=head,v.levels=e5m2");
    expect_table(&b, 0, "tensor_scale@b8,e4m3,tensor", tensor);
    expect_table(&b, 1, "head_scale@b8,e5m2,head", heads);
    test_fitted_close(&b);
    open_bench(&b, &reference, in, "nvfp4-tensor");
    expect_table(&b, 0, "tensor_scale@b4,e2m1,e4m3fn_tensor", second);
    test_fitted_close(&b);
    free(in);
}

// The e4m3 nearest to x, ties to even: 3 bits behind the leading one, steps of 2^-9 at the least.
static double round_e4m3(double x)
{
    int exponent;
    frexp(x, &exponent);
    const double step = ldexp(1, (exponent > -5 ? exponent : -5) - 4);
    return fmin(fmax(rint(x / step) * step, -448), 448);
}

// Breaks when rows are not scale * e4m3(row / scale): by hand from the greatest value.
Test(scales, rows_are_floats_of_their_scale)
{
    static float k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM];
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    inputs* in = make_inputs();
    for (int t = 0; t < n && t < 2; ++t) {
        test_fitted b;
        open_bench(&b, &targets[t], in, "fp8-tensor:v.meta=head");
        test_restore(&b.c, b.seq, 0, ROWS, k, v);
        for (int i = 0; i < ROWS * HEADS * DIM; ++i) {
            const double scale = (double)(float)(28 / 448.0);
            const double of_head = (double)(float)(mosts[1][i / DIM % HEADS] / 448.0);
            const double want = scale * round_e4m3((double)test_round_f16(in->k[i]) / scale);
            const double value = of_head * round_e4m3((double)(float)(
                (double)test_round_f16(in->v[i]) / of_head));
            cr_assert(fabs((double)k[i] - want) <= 1e-6 * fabs(want), "%s: key %g is %g, not %g",
                      targets[t].name, (double)in->k[i], (double)k[i], want);
            cr_assert(fabs((double)v[i] - value) <= 1e-6 * fabs(value), "%s: value %g is %g, not "
                      "%g", targets[t].name, (double)in->v[i], (double)v[i], value);
        }
        test_attend_check(&b.c, b.seq, in->q, 2, NULL, "fp8-tensor");
        test_fitted_close(&b);
    }
    free(in);
}

// Breaks when the second scale does not help where e4m3 alone falls below its least normal: values
// of a thousandth have scales near 2^-12.
Test(scales, a_second_scale_keeps_small_rows)
{
    static const char* const specs[] = { "nvfp4-tensor", "nvfp4" };
    static float k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM];
    double errors[2] = { 0, 0 }, squares = 0;
    inputs* in = make_inputs();
    for (int s = 0; s < 2; ++s) {
        test_fitted b;
        open_bench(&b, &reference, in, specs[s]);
        test_restore(&b.c, b.seq, 0, ROWS, k, v);
        for (int i = 0; i < ROWS * HEADS * DIM; ++i) {
            errors[s] += pow((double)v[i] - (double)in->v[i], 2);
            squares += s ? 0 : pow((double)in->v[i], 2);
        }
        test_fitted_close(&b);
    }
    cr_log_info("of the squares %.4f, with e4m3 alone %.4f\n", errors[0] / squares,
                errors[1] / squares);
    cr_expect(errors[0] < 0.02 * squares && errors[1] > 2 * errors[0], "%g and %g of %g",
              errors[0], errors[1], squares);
    free(in);
}

// Breaks when scales of rotated rows are made up, or a cache is made without its scales.
Test(scales, what_is_not_known_is_refused)
{
    const kvl_layer_desc layer = test_layer("fp8-tensor", Q_HEADS, HEADS, DIM, DIM);
    kvl_context* ctx = test_context(&reference, 1);
    kvl_cache_desc desc = { 0 };
    kvl_cache* none = NULL;
    desc.num_layers = 1;
    desc.layers = &layer;
    const kvl_status status = kvl_cache_create(ctx, &desc, &none);
    cr_expect(status == KVL_BAD_ARGUMENT && !none && strstr(kvl_context_message(ctx),
              "needs a calibration with layer.0.k.tensor_scale@b8,e4m3,tensor"), "%s",
              kvl_context_message(ctx));
    kvl_context_destroy(ctx);
}
