// test_shift.c -- shift=rotating-mean: keys whose mean before RoPE is most of them.

#include "calibrate_tables.h"
#include "test_support.h"

enum { DIM = 64, DIMS = 48, HEADS = 2, Q_HEADS = 4, ROWS = 512, SINK = 4, GROUP = 32 };

static const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };

typedef struct inputs {
    kvl_rope rope;
    float    mean[HEADS * DIM];                        // before RoPE
    float    k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM], q[ROWS * Q_HEADS * DIM];
} inputs;

// Turns a row to position t, by the definition of RoPE; channels from DIMS on do not turn.
static void turn(const inputs* in, int t, const double* x, double* out)
{
    memcpy(out, x, DIM * sizeof *x);
    for (int i = 0; i < DIMS / 2; ++i) {
        const int a = in->rope.split_halves ? i : 2 * i;
        const int b = in->rope.split_halves ? i + DIMS / 2 : 2 * i + 1;
        const double angle = t * pow(in->rope.base, -2.0 * i / DIMS);
        out[a] = x[a] * cos(angle) - x[b] * sin(angle);
        out[b] = x[a] * sin(angle) + x[b] * cos(angle);
    }
}

static inputs* make_inputs(int split_halves)
{
    inputs* in = (inputs*)test_alloc(1, sizeof *in);
    test_lcg lcg = { 77 };
    in->rope.dims = DIMS;
    in->rope.split_halves = split_halves;
    in->rope.base = 1000;
    for (int i = 0; i < HEADS * DIM; ++i) in->mean[i] = (float)test_bell(&lcg) / 200.0f;
    for (int t = 0; t < ROWS; ++t)
        for (int h = 0; h < HEADS; ++h) {
            double x[DIM], out[DIM];
            for (int i = 0; i < DIM; ++i)
                x[i] = (double)in->mean[h * DIM + i] + (double)test_bell(&lcg) / 2365.0;
            turn(in, t, x, out);
            for (int i = 0; i < DIM; ++i) in->k[(t * HEADS + h) * DIM + i] = (float)out[i];
        }
    for (int i = 0; i < ROWS * HEADS * DIM; ++i) in->v[i] = (float)test_bell(&lcg) / 2365.0f;
    for (int i = 0; i < ROWS * Q_HEADS * DIM; ++i) in->q[i] = (float)test_bell(&lcg) / 9000.0f;
    return in;
}

static void open_bench(test_fitted* b, const test_target* target, const inputs* in,
                       const char* spec)
{
    kvl_layer_desc layer = test_layer(spec, Q_HEADS, HEADS, DIM, DIM);
    kvl_statistics_rows rows = { 0 };
    int num_own = 0;
    const kvl_derivation* own = calibrate_derivations(&num_own);
    layer.rope = &in->rope;
    rows.num_keys = rows.num_rows = ROWS;
    rows.k.data = in->k;
    rows.v.data = in->v;
    rows.q.data = in->q;
    test_fitted_open(b, target, &layer, &rows, own, num_own);
}

// Root mean square of what restored keys are off.
static double key_error(const test_target* target, const inputs* in, const char* spec)
{
    static float k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM];
    double sum = 0;
    test_fitted b;
    open_bench(&b, target, in, spec);
    test_restore(&b.c, b.seq, 0, ROWS, k, v);
    for (int i = SINK * HEADS * DIM; i < ROWS * HEADS * DIM; ++i)
        sum += ((double)k[i] - (double)in->k[i]) * ((double)k[i] - (double)in->k[i]);
    test_fitted_close(&b);
    return sqrt(sum / ((ROWS - SINK) * HEADS * DIM));
}

// Breaks when a row is shifted by another position than it has, or the mean is not that before
// RoPE: noise of size 1 at 4 bits is off by some 0.1, the whole key, 10 times as large, by some 1.
Test(shift, takes_off_what_biases_add)
{
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    for (int halves = 0; halves < 2; ++halves) {
        inputs* in = make_inputs(halves);
        for (int i = 0; i < n && i < 2; ++i) {
            const double plain = key_error(&targets[i], in, "rtn:b4,transform=hadamard,sink=4,"
                                           "recent=0,k.shift=mean");
            const double shifted = key_error(&targets[i], in, "rtn:b4,transform=hadamard,sink=4,"
                                             "recent=0,k.shift=rotating-mean");
            cr_expect(shifted < 0.15 && plain > 4 * shifted, "%s: off by %g, without it by %g",
                      targets[i].name, shifted, plain);
        }
        free(in);
    }
}

// Breaks when a score does not get back what its key lost: against float64 over restored rows.
Test(shift, scores_are_those_of_restored_rows)
{
    static const char* const specs[] = {
        "kivi:k2,v4,k.shift=rotating-mean,sink=4,recent=40,chunk=32",
        "rtn:k4,v4,k.shift=rotating-mean,k.transform=hadamard,sink=3,recent=0",
        "loom:k.shift=rotating-mean,sink=0,recent=0",
    };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    inputs* in = make_inputs(1);
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; ++i)
        for (int t = 0; t < n && t < 2; ++t) {
            test_fitted b;
            open_bench(&b, &targets[t], in, specs[i]);
            test_attend_check(&b.c, b.seq, in->q, 2, NULL, specs[i]);
            test_fitted_close(&b);
        }
    free(in);
}

// Breaks when a basis is made for keys with what the shift takes: what is stored must have one size
// in all its channels, within groups of 32 tokens, and none of them goes with another.
Test(shift, bases_are_of_what_is_left)
{
    static double y[ROWS][DIM], moment[DIM][DIM];
    inputs* in = make_inputs(1);
    test_fitted b;
    int64_t num = 0;
    open_bench(&b, &reference, in, "kivi:k.shift=rotating-mean,k.transform=whiten,recent=0");
    const float* table = kvl_calibration_table(b.calibration, 0, 0, "rotating_mean", &num);
    const float* forward = kvl_calibration_table(b.calibration, 0, 0,
                                                 "whiten_forward@rotating-mean", NULL);
    cr_assert(table && forward && num == HEADS * 4 * DIM);
    for (int h = 0; h < HEADS; ++h) {
        double mean[DIM];
        memset(moment, 0, sizeof moment);
        for (int i = 0; i < DIM; ++i) {
            mean[i] = (double)table[h * 4 * DIM + i];
            cr_expect(fabs(mean[i] - (double)in->mean[h * DIM + i]) < 0.25, "channel %d: %g", i,
                      mean[i]);
        }
        for (int t = 0; t < ROWS; ++t) {
            double shift[DIM], x[DIM];
            turn(in, t, mean, shift);
            for (int i = 0; i < DIM; ++i)
                x[i] = (double)in->k[(t * HEADS + h) * DIM + i] - shift[i];
            for (int j = 0; j < DIM; ++j) {
                y[t][j] = 0;
                for (int i = 0; i < DIM; ++i)
                    y[t][j] += x[i] * (double)forward[(h * DIM + i) * DIM + j];
            }
        }
        for (int t = 0; t < ROWS; ++t) {
            double own[DIM];
            const int first = t / GROUP * GROUP;
            for (int j = 0; j < DIM; ++j) {
                own[j] = y[t][j];
                for (int r = 0; r < GROUP; ++r) own[j] -= y[first + r][j] / GROUP;
            }
            for (int i = 0; i < DIM; ++i)
                for (int j = 0; j < DIM; ++j) moment[i][j] += own[i] * own[j] / ROWS;
        }
        // But for the damping of 1 percent.
        for (int i = 0; i < DIM; ++i)
            for (int j = 0; j < DIM; ++j)
                cr_expect(fabs(moment[i][j] / moment[0][0] - (i == j)) < 0.03, "%d, %d: %g", i, j,
                          moment[i][j] / moment[0][0]);
    }
    test_fitted_close(&b);
    free(in);
}

// Breaks when rows that do not keep their numbers are taken, or a spec that cannot be served.
Test(shift, what_it_cannot_serve_is_refused)
{
    static const struct { const char *spec, *words; } bad[] = {
        { "kivi:v.shift=rotating-mean", "v.shift = rotating-mean: is for keys alone" },
        { "kivi:k.shift=rotating_mean", "must be one of none, mean, middle, predicted, "
                                        "rotating-mean" },
        { "flagrot-kivi:k.shift=rotating-mean", "needs k.choose = none" },
        { "kivi:k.shift=rotating-mean,kg512", "at most 256" },
    };
    inputs* in = make_inputs(0);
    test_fitted b;
    open_bench(&b, &reference, in, "kivi:k.shift=rotating-mean,recent=0");
    const kvl_seq other = test_seq(&b.c);
    kvl_status status = kvl_copy_rows(b.c.cache, other, b.c.cache, b.seq, 32, 40);
    cr_expect(status == KVL_UNSUPPORTED &&
              strstr(kvl_context_message(b.c.ctx), "row 32 would be row 0 here"), "%s",
              kvl_context_message(b.c.ctx));
    test_ok(b.c.ctx, kvl_copy_rows(b.c.cache, other, b.c.cache, b.seq, 0, 40), "from the first on");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        const kvl_layer_desc layer = test_layer(bad[i].spec, Q_HEADS, HEADS, DIM, DIM);
        status = kvl_spec_check(b.c.ctx, &layer, NULL);
        cr_expect(status == KVL_BAD_ARGUMENT && strstr(kvl_context_message(b.c.ctx), bad[i].words),
                  "%s: %s", bad[i].spec, kvl_context_message(b.c.ctx));
    }
    test_fitted_close(&b);
    free(in);
}
