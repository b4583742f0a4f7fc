// test_sketch.c -- extra=sketch, extra=sketch_apart, levels=nothing: signs of rotations beside the
// codes of keys, or instead of them.
//
// Bits against the NumPy oracle are in test_codecs (fixtures qjl, turbo_prod, sketch_...).

#include "test_support.h"

enum { DIM = 128, HEADS = 2, Q_HEADS = 4, ROWS = 2048 };

typedef struct inputs {
    float k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM], q[4 * Q_HEADS * DIM];
} inputs;

// Keys in random directions: each channel is a sum of four uniform numbers.
static inputs* make_inputs(void)
{
    inputs* in = (inputs*)test_alloc(1, sizeof *in);
    test_lcg lcg = { 17 };
    for (int i = 0; i < ROWS * HEADS * DIM; ++i) in->k[i] = (float)test_bell(&lcg) / 2365.0f;
    for (int i = 0; i < ROWS * HEADS * DIM; ++i) in->v[i] = (float)test_bell(&lcg) / 2365.0f;
    for (int i = 0; i < 4 * Q_HEADS * DIM; ++i) in->q[i] = (float)test_bell(&lcg) / 9000.0f;
    return in;
}

static const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };

// What scores are off: how much of them it is, and its mean square.
typedef struct errors {
    double slope, slope_error, square, score_square;
} errors;

static errors errors_of(const test_target* target, const inputs* in, const char* spec)
{
    static float k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM];
    const kvl_layer_desc layer = test_layer(spec, Q_HEADS, HEADS, DIM, DIM);
    test_cache c = test_open(target, &layer);
    const kvl_seq seq = test_seq(&c);
    errors e = { 0, 0, 0, 0 };
    int num = 0;
    test_append(&c, seq, in->k, in->v, 0, ROWS);
    test_restore(&c, seq, 0, ROWS, k, v);
    for (int t = 0; t < ROWS; ++t)
        for (int h = 0; h < HEADS; ++h, ++num) {
            const float* q = in->q + (t + h) % (4 * Q_HEADS) * DIM;
            double score = 0, error = 0;
            for (int i = 0; i < DIM; ++i) {
                const int at = (t * HEADS + h) * DIM + i;
                score += (double)q[i] * (double)test_round_f16(in->k[at]);
                error += (double)q[i] * ((double)k[at] - (double)test_round_f16(in->k[at]));
            }
            e.slope += error * score;
            e.slope_error += error * error * score * score;
            e.square += error * error / ROWS / HEADS;
            e.score_square += score * score;
        }
    e.slope /= e.score_square;
    e.slope_error = sqrt(e.slope_error) / e.score_square;
    e.score_square /= num;
    test_close(&c);
    return e;
}

// Breaks when the estimate has too much or too little of the score, 4 standard errors of 4096
// keys: a factor of sqrt(pi / 2) / sqrt(d) and not g, another norm, a part that is left out.  The
// mean square of what is off is (g^2 d - 1) / rotations of the squared score, of rows in random
// directions: g^2 d = 1.5769 for 128 channels, by the definition of g in gen/parts/sketch.lua.
Test(sketch, scores_are_right_in_the_mean)
{
    static const struct { const char* spec; double square; } cases[] = {
        { "qjl:k.extra=sketch1,sink=0,recent=0", 0.5769 },
        { "qjl:k.extra=sketch4,sink=0,recent=0", 0.5769 / 4 },
        { "qjl:sink=0,recent=0", 0 },
        { "turboquant-prod:k1,sink=0,recent=0", 0 },
        { "kivi:k2,k.extra=sketch2,sink=0,recent=0", 0 },
    };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    inputs* in = make_inputs();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const errors e = errors_of(&targets[i % 2 && n > 1 ? 1 : 0], in, cases[i].spec);
        cr_log_info("%s: slope %.4f +- %.4f, mean square %.4f of the score's\n", cases[i].spec,
                    e.slope, e.slope_error, e.square / e.score_square);
        cr_expect(fabs(e.slope) < 4 * e.slope_error, "%s: %g +- %g of the score", cases[i].spec,
                  e.slope, e.slope_error);
        if (cases[i].square > 0)
            cr_expect(fabs(e.square / e.score_square / cases[i].square - 1) < 0.1,
                      "%s: mean square %g of the score's, expected %g", cases[i].spec,
                      e.square / e.score_square, cases[i].square);
    }
    // Lloyd-Max levels alone take 1 - 2 / pi of a score away, and their own mean square is less.
    const errors plain =
        errors_of(&reference, in, "turboquant-prod:k1,k.extra=none,sink=0,recent=0");
    cr_expect(fabs(plain.slope + 1 - 2 / 3.14159265) < 0.02, "without: %g", plain.slope);
    free(in);
}

// Breaks when a score is not that of the restored key, at any place of a page, a unit or a split,
// with any codes: against float64 over restored rows.
Test(sketch, scores_are_those_of_restored_rows)
{
    static const char* const specs[] = { "qjl:recent=32", "turboquant-prod", "f16:k.extra=sketch",
        "flagrot-kivi:k.extra=sketch_apart1,recent=0", "kivi:k.extra=sketch2,k.round=trellis8",
        "rtn:k3,k.extra=sketch_apart4,k.shift=mean,page=160" };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    inputs* in = make_inputs();
    for (int t = 0; t < n && t < 2; ++t)
        for (size_t i = (size_t)t; i < sizeof specs / sizeof specs[0]; i += (size_t)t + 1) {
            const kvl_layer_desc layer = test_layer(specs[i], Q_HEADS, HEADS, DIM, DIM);
            test_cache c = test_open_calibrated(&targets[t], &layer, test_calibration(TEST_TABLES));
            const kvl_seq seq = test_seq(&c);
            test_append(&c, seq, in->k, in->v, 0, 700 + (int)i);
            test_attend_check(&c, seq, in->q, 3, NULL, specs[i]);
            test_close(&c);
        }
    free(in);
}

// Breaks when signs are lost on the way through a file, between sequences that share pages, or
// where a cut goes through a unit of 32 rows and others follow.
Test(sketch, signs_go_with_their_rows)
{
    static float k[2][ROWS * HEADS * DIM], v[2][ROWS * HEADS * DIM];
    static const char* const specs[] = { "qjl:recent=0,sink=4", "rtn:k3,k.extra=sketch2,recent=9" };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    inputs* in = make_inputs();
    for (int i = 0; i < 2 * n && i < 4; ++i) {
        const test_target* target = &targets[i / 2];
        test_bytes bytes = { 0 };
        kvl_save_seq one = { 0 };
        kvl_save_desc save = { .num_seqs = 1, .seqs = &one, .write = test_put_bytes,
                               .user = &bytes };
        kvl_load_desc load = { .read = test_take_bytes, .user = &bytes };
        kvl_loaded_seq* loaded = NULL;
        int num = 0;
        const kvl_layer_desc layer = test_layer(specs[i % 2], Q_HEADS, HEADS, DIM, DIM);
        test_cache c = test_open(target, &layer), other = test_open(&reference, &layer);
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
            cr_assert(fabs((double)k[0][j] - (double)k[1][j]) < 1e-5, "%s on %s: row %d: %g, %g",
                      specs[i % 2], target->name, j / (HEADS * DIM), (double)k[0][j],
                      (double)k[1][j]);
        test_restore(&c, fork, 0, 300, k[1], v[1]);
        cr_expect(memcmp(k[0], k[1], 256 * HEADS * DIM * sizeof(float)) == 0, "the fork's keys");
        test_ok(c.ctx, kvl_truncate(c.cache, fork, 150), "truncate");
        test_append(&c, fork, in->k, in->v, 150, 150);
        test_attend_check(&c, fork, in->q, 1, NULL, specs[i % 2]);
        test_restore(&c, fork, 0, 128, k[1], v[1]);
        cr_expect(memcmp(k[0], k[1], 128 * HEADS * DIM * sizeof(float)) == 0, "before the cut");
        kvl_loaded_free(other.ctx, loaded, num);
        test_close(&c);
        test_close(&other);
        free(bytes.data);
    }
    free(in);
}

// Breaks when rows of zeros, or of the greatest numbers, give a key that is not finite.
Test(sketch, edges_are_finite)
{
    static const float sizes[] = { 0.0f, 65504.0f, 3e38f, 1e-38f };
    static const char* const specs[] = { "qjl:rows=bf16,sink=0,recent=0",
                                         "turboquant-prod:rows=bf16,sink=0,recent=0" };
    float rows[32 * DIM], k[32 * DIM], v[32 * DIM];
    for (int s = 0; s < 2; ++s) {
        const kvl_layer_desc layer = test_layer(specs[s], 1, 1, DIM, DIM);
        test_cache c = test_open(&reference, &layer);
        for (int i = 0; i < 4; ++i) {
            const kvl_seq seq = test_seq(&c);
            for (int j = 0; j < 32 * DIM; ++j) rows[j] = sizes[i] * ((float)(j % 7 - 3) / 3.0f);
            test_append(&c, seq, rows, rows, 0, 32);
            test_restore(&c, seq, 0, 32, k, v);
            for (int j = 0; j < 32 * DIM; ++j)
                cr_assert(isfinite(k[j]) && (i > 0 || k[j] == 0.0f), "%s: rows of %g: %g", specs[s],
                          (double)sizes[i], (double)k[j]);
        }
        test_close(&c);
    }
}

// Breaks when the rows that are encoded together are not whole units, or none: an append of keys
// before RoPE would not end.
Test(sketch, units_of_keys_before_rope)
{
    static const kvl_rope rope = { 0, 1, 10000, 0, NULL };
    kvl_layer_desc layer = test_layer("rtn:k.place=pre_rope,k.axis=per_channel,kg64,"
                                      "k.extra=sketch_apart1,sink=0,recent=0", Q_HEADS, HEADS, DIM,
                                      DIM);
    layer.rope = &rope;
    test_cache c = test_open(&reference, &layer);
    inputs* in = make_inputs();
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, in->k, in->v, 0, 300);
    test_attend_check(&c, seq, in->q, 3, NULL, layer.spec);
    test_close(&c);
    free(in);
}

// Breaks when a spec that cannot be served is taken, or bits are not those that pages have.
Test(sketch, what_they_cannot_serve_is_refused)
{
    static const struct { const char *spec, *words; } bad[] = {
        { "rtn:k.extra=sketch5", "sketch5: the number must be 1 to 4" },
        { "rtn:extra=sketch", "v.extra = sketch: is for keys alone" },
        { "rtn:k0,k.levels=nothing", "k.levels = nothing: needs k.extra = sketch or sketch_apart" },
        { "qjl:k1", "k1: bits with levels = nothing, fit = none must be one of 0" },
        { "qjl:k.transform=hadamard", "levels = nothing: needs k.transform = none, not hadamard" },
        { "rtn:k.extra=sketch,k.shift=rotating-mean", "needs k.shift = none or mean" },
        { "qjl:chunk=16", "chunk = 16: must be a multiple of 32" },
        { "rtn:k.place=pre_rope,k.axis=per_channel,kg50,k.extra=sketch_apart1",
          "kg50, k.extra = sketch_apart: with k.place = pre_rope 800 rows" },
        { "rtn:k0", "k0: bits with levels = affine, fit = minmax must be one of 1," },
    };
    kvl_context* ctx = test_context(&reference, 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        const kvl_layer_desc layer = test_layer(bad[i].spec, Q_HEADS, HEADS, DIM, DIM);
        const kvl_status status = kvl_spec_check(ctx, &layer, NULL);
        cr_expect(status == KVL_BAD_ARGUMENT && strstr(kvl_context_message(ctx), bad[i].words),
                  "%s: %s", bad[i].spec, kvl_context_message(ctx));
    }
    kvl_layer_info info;
    const kvl_layer_desc layer = test_layer("qjl", Q_HEADS, HEADS, DIM, DIM);
    test_ok(ctx, kvl_spec_check(ctx, &layer, &info), "qjl");
    // 3 signs a channel, two norms a token, 8 channels of 32 tokens.
    const double bits = 3 + 32.0 / DIM + 64.0 / 32 / DIM;
    cr_expect(fabs(info.k_bits - bits) < 1e-12, "%g bits, expected %g", info.k_bits, bits);
    kvl_context_destroy(ctx);
}
