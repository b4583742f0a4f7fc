// test_beside.c -- extra=token_norm and extra=promote: what tokens have beside their codes.

#include "test_support.h"

enum { DIM = 64, HEADS = 2, Q_HEADS = 6, ROWS = 192, GROUP = 32 };

typedef struct input {
    float k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM], q[4 * Q_HEADS * DIM];
} input;

static input* make_input(void)
{
    input* in = (input*)test_alloc(1, sizeof *in);
    test_rows(5, ROWS, HEADS, DIM, in->k);
    test_rows(6, ROWS, HEADS, DIM, in->v);
    test_queries(7, 4, Q_HEADS, DIM, in->q);
    return in;
}

// Keys of the pages as they come back.
static void restore_keys(const test_target* target, const char* spec, const input* in, float* k)
{
    static float v[ROWS * HEADS * DIM];
    const kvl_layer_desc layer = test_layer(spec, Q_HEADS, HEADS, DIM, DIM);
    test_cache c = test_open_calibrated(target, &layer, test_calibration(TEST_TABLES));
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, in->k, in->v, 0, ROWS);
    test_restore(&c, seq, 0, ROWS, k, v);
    test_close(&c);
}

// The worst of a row's errors, relative to the greatest of its values; of all rows.
static double worst_of(const float* k, const float* want)
{
    double worst = 0;
    for (int r = 0; r < ROWS * HEADS; ++r) {
        double most = 0, error = 0;
        for (int i = 0; i < DIM; ++i) {
            const double x = (double)want[r * DIM + i];
            most = fmax(most, fabs(x));
            error = fmax(error, fabs((double)k[r * DIM + i] - x));
        }
        if (most > 0) worst = fmax(worst, error / most);
    }
    return worst;
}

// Breaks when a token is divided by another number than it is multiplied by, or by none.  Rows that
// are multiples of one, from 1/64 to 64 times it: divided by their size, which is exact to the
// rounding of e5m3, 1/16, they differ by 2/17 of themselves, a group spans that, and 2 bits are off
// by a sixth of it, 0.02.  Undivided, the range is 4096 times the smallest row, of which nothing is
// left.
Test(beside, tokens_of_any_size_are_kept)
{
    static float k[ROWS * HEADS * DIM];
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    input* in = make_input();
    for (int r = 0; r < ROWS * HEADS; ++r)
        for (int i = 0; i < DIM; ++i)
            in->k[r * DIM + i] = ldexpf((float)(1 + (i * 37 + 11) % 64) *
                                        (r % 5 == 4 ? 1.25f : 1.0f), r * 7 % 13 - 12);
    for (int t = 0; t < n && t < 2; ++t) {
        static const char* const specs[] = {
            "kivi:recent=0,sink=0,meta=f16", "kivi:recent=0,sink=0,meta=f16,k.extra=token_norm" };
        restore_keys(&targets[t], specs[0], in, k);
        const double without = worst_of(k, in->k);
        restore_keys(&targets[t], specs[1], in, k);
        const double with = worst_of(k, in->k);
        cr_expect(with < 0.022 && without > 0.9, "%s: off by %g of a row, without norms by %g",
                  targets[t].name, with, without);
    }
    free(in);
}

// Breaks when a row of zeros is divided by its size, or is read as what its group has.
Test(beside, a_row_of_zeros_stays_so)
{
    static float k[ROWS * HEADS * DIM];
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    input* in = make_input();
    memset(in->k + 9 * HEADS * DIM, 0, HEADS * DIM * sizeof(float));
    for (int t = 0; t < n && t < 2; ++t) {
        restore_keys(&targets[t], "kivi:recent=0,sink=0,k.extra=token_norm", in, k);
        for (int i = 0; i < HEADS * DIM; ++i)
            cr_assert(k[9 * HEADS * DIM + i] == 0, "%s: channel %d is %g", targets[t].name, i,
                      (double)k[9 * HEADS * DIM + i]);
    }
    free(in);
}

// Breaks when another channel is promoted, or its second plane is read as another's.  Channels 3,
// 20, 21 and 63 are the strong ones: their values are within half a step of 4 bits, and 2^-10 of
// their range that f16 pairs cost; the others within half a step of 2 bits.
Test(beside, strong_channels_have_their_bits)
{
    static float k[ROWS * HEADS * DIM];
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    input* in = make_input();
    for (int r = 0; r < ROWS * HEADS; ++r)
        for (int i = 0; i < DIM; ++i) {
            const int strong = i == 3 || i == 20 || i == 21 || i == 63;
            in->k[r * DIM + i] = (float)((r * 29 + i * 7) % 64 - 20) / 16.0f + (strong ? 9.0f : 0);
        }
    for (int t = 0; t < n && t < 2; ++t) {
        restore_keys(&targets[t], "kivi:k2,recent=0,sink=0,meta=f16,k.extra=promote4", in, k);
        for (int h = 0; h < HEADS; ++h)
            for (int i = 0; i < DIM; ++i)
                for (int first = 0; first < ROWS; first += GROUP) {
                    double lo = 1e9, hi = -1e9, error = 0;
                    for (int r = first; r < first + GROUP; ++r) {
                        const double x = (double)in->k[(r * HEADS + h) * DIM + i];
                        lo = fmin(lo, x);
                        hi = fmax(hi, x);
                        error = fmax(error, fabs((double)k[(r * HEADS + h) * DIM + i] - x));
                    }
                    const int strong = i == 3 || i == 20 || i == 21 || i == 63;
                    const double step = (hi - lo) / (strong ? 15 : 3);
                    cr_assert(error <= 0.5 * step + ldexp(hi - lo, -10) + ldexp(12, -11),
                              "%s: head %d channel %d: off by %g, steps of %g", targets[t].name, h,
                              i, error, step);
                }
    }
    free(in);
}

// Breaks when a score is not that of the restored key, whatever it is composed with; or rows differ
// by how they came.
Test(beside, every_codec_of_groups_along_tokens_is_served)
{
    static float k[2][ROWS * HEADS * DIM], v[ROWS * HEADS * DIM];
    static const char* const specs[] = {
        "oscar-norm:recent=9",
        "kivi:k4,v2,k.extra=token_norm,k.shift=rotating-mean,sink=3,recent=5",
        "kivi:k2,v2,k.extra=token_norm,k.round=trellis8,rows=bf16,sink=0,recent=0",
        "flagrot-kivi:k.choose=fixed,k.extra=token_norm,sink=1,recent=2",
        "kivi:k3,v3,k.extra=token_norm,k.fit=search,k.transform=whiten,shift=mean,sink=1,recent=2",
        "kivi:k2,v2,levels=lloyd,fit=norm,meta=f16,k.extra=token_norm,sink=0,recent=7",
        "kitty:kg64,sink=2,recent=1", "rtn:k3,v4,k.extra=sparse2,k.shift=rotating-mean,recent=6",
        "kivi:k4,v2,k.extra=promote60,k.shift=rotating-mean,recent=3",
    };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    input* in = make_input();
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; ++i)
        for (int t = 0; t < n && t < 2; ++t) {
            const kvl_layer_desc layer = test_layer(specs[i], Q_HEADS, HEADS, DIM, DIM);
            test_cache c = test_open_calibrated(&targets[t], &layer, test_calibration(TEST_TABLES));
            const kvl_seq seq = test_seq(&c), parts = test_seq(&c);
            kvl_seq fork = 0;
            test_append(&c, seq, in->k, in->v, 0, ROWS);
            test_attend_check(&c, seq, in->q, 4, NULL, specs[i]);
            test_append(&c, parts, in->k, in->v, 0, 50);
            test_ok(c.ctx, kvl_seq_fork(c.cache, parts, &fork), specs[i]);
            test_append(&c, fork, in->k, in->v, 50, ROWS - 50);
            test_restore(&c, seq, 0, ROWS, k[0], v);
            test_restore(&c, fork, 0, ROWS, k[1], v);
            cr_expect(memcmp(k[0], k[1], sizeof k[0]) == 0, "%s on %s: rows differ", specs[i],
                      targets[t].name);
            test_close(&c);
        }
    free(in);
}

Test(beside, what_it_cannot_serve_is_refused)
{
    static const struct { const char *spec, *words; } bad[] = {
        { "rtn:k.extra=token_norm", "k.extra = token_norm: needs k.axis = per_channel" },
        { "kivi:v.extra=token_norm", "v.extra = token_norm: is for keys alone" },
        { "flagrot-kivi:k.extra=token_norm", "needs k.choose = none or fixed, not unit" },
        { "loom:k.extra=token_norm", "needs k.meta without a base, not log4" },
        { "f16:k.extra=token_norm", "k.extra = token_norm: needs k.axis = per_channel" },
        { "kitty:k.axis=per_token,kg64", "k.extra = promote: needs k.axis = per_channel" },
        { "kitty:k.fit=search", "needs k.levels = affine, k.fit = minmax and k.round = nearest" },
        { "kitty:k.round=trellis4", "needs k.levels = affine, k.fit = minmax" },
        { "kitty:k.extra=promote64", "k.extra = promote64: must be fewer than head_dim = 64" },
        { "kitty:k.extra=promote129", "the number must be 1 to 128" },
    };
    static const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    kvl_context* ctx = test_context(&reference, 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        const kvl_layer_desc layer = test_layer(bad[i].spec, Q_HEADS, HEADS, DIM, DIM);
        cr_expect(kvl_spec_check(ctx, &layer, NULL) == KVL_BAD_ARGUMENT &&
                  strstr(kvl_context_message(ctx), bad[i].words), "%s: %s", bad[i].spec,
                  kvl_context_message(ctx));
    }
    kvl_context_destroy(ctx);
}
