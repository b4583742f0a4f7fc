// test_turn.c -- place=pre_rope: keys stored before RoPE, turned when they are read.

#include "test_support.h"

enum { DIM = 64, HEADS = 2, Q_HEADS = 6, ROWS = 300, SINK = 4 };

static const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };

typedef struct inputs {
    kvl_rope rope;
    float    k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM], q[ROWS * Q_HEADS * DIM];
} inputs;

// Turns a row to position t, by the definition of RoPE; channels from rope.dims on do not turn.
static void turn(const kvl_rope* rope, int t, const double* x, double* out)
{
    memcpy(out, x, DIM * sizeof *x);
    for (int i = 0; i < rope->dims / 2; ++i) {
        const int a = rope->split_halves ? i : 2 * i;
        const int b = rope->split_halves ? i + rope->dims / 2 : 2 * i + 1;
        const double factor = rope->factors ? (double)rope->factors[i] : 1;
        const double angle = t * pow(rope->base, -2.0 * i / rope->dims) / factor;
        out[a] = x[a] * cos(angle) - x[b] * sin(angle);
        out[b] = x[a] * sin(angle) + x[b] * cos(angle);
    }
}

// Keys that are, before RoPE, `plain` times the same row of a head, and noise.
static inputs* make_inputs(const kvl_rope* rope, double plain, double noise)
{
    inputs* in = (inputs*)test_alloc(1, sizeof *in);
    test_lcg lcg = { 77 };
    double row[HEADS * DIM];
    in->rope = *rope;
    for (int i = 0; i < HEADS * DIM; ++i) row[i] = plain * (double)test_bell(&lcg) / 2365.0;
    for (int t = 0; t < ROWS; ++t)
        for (int h = 0; h < HEADS; ++h) {
            double x[DIM], out[DIM];
            for (int i = 0; i < DIM; ++i)
                x[i] = row[h * DIM + i] + noise * (double)test_bell(&lcg) / 2365.0;
            turn(rope, t, x, out);
            for (int i = 0; i < DIM; ++i) in->k[(t * HEADS + h) * DIM + i] = (float)out[i];
        }
    for (int i = 0; i < ROWS * HEADS * DIM; ++i) in->v[i] = (float)test_bell(&lcg) / 2365.0f;
    for (int i = 0; i < ROWS * Q_HEADS * DIM; ++i) in->q[i] = (float)test_bell(&lcg) / 9000.0f;
    return in;
}

static test_cache open_cache(const test_target* target, const inputs* in, const char* spec,
                             int window_len)
{
    kvl_layer_desc layer = test_layer(spec, Q_HEADS, HEADS, DIM, DIM);
    layer.rope = &in->rope;
    layer.window_len = window_len;
    return test_open(target, &layer);
}

static const float factors[DIM / 2] = {
    1, 1, 1, 1, 1.5f, 1.5f, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8,
    8, 8 };
static const kvl_rope ropes[] = {
    { DIM, 1, 1000, 0, NULL }, { DIM, 0, 10000, 0, NULL }, { 48, 1, 1000, 0, NULL },
    { 16, 0, 10000, 0, NULL }, { DIM, 1, 500000, 0, factors } };
enum { NUM_ROPES = 5 };

// Root mean square of what restored keys are off.
static double key_error(const test_target* target, const inputs* in, const char* spec)
{
    static float k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM];
    double sum = 0;
    test_cache c = open_cache(target, in, spec, 0);
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, in->k, in->v, 0, ROWS);
    test_restore(&c, seq, 0, ROWS, k, v);
    for (int i = 0; i < ROWS * HEADS * DIM; ++i)
        sum += ((double)k[i] - (double)in->k[i]) * ((double)k[i] - (double)in->k[i]);
    test_close(&c);
    return sqrt(sum / (ROWS * HEADS * DIM));
}

// Breaks when a row is turned by another position than its own, or pairs are others: before RoPE
// all keys of a head are one row, which 2 bits along 32 tokens hold but for the rounding of
// windows, 2^-11 of values up to 4; after RoPE they are off by a tenth.
Test(turn, keys_that_are_one_row_before_rope_are_kept)
{
    static const char spec[] = "kivi:k2,v2,meta=f16,recent=0,k.place=pre_rope";
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int r = 0; r < NUM_ROPES; ++r) {
        inputs* in = make_inputs(&ropes[r], 1, 0);
        for (int i = 0; i < n && i < 2; ++i) {
            const double after = key_error(&targets[i], in, "kivi:k2,v2,meta=f16,recent=0");
            const double before = key_error(&targets[i], in, spec);
            cr_expect(before < 0.01 && after > 5 * before, "%s, RoPE %d: off by %g, after RoPE %g",
                      targets[i].name, r, before, after);
        }
        free(in);
    }
}

// Breaks when a score is not that of the restored key, at any place of a page or of a split:
// against float64 over restored rows.
Test(turn, scores_are_those_of_restored_rows)
{
    static const char* const specs[] = {
        "kivi:k2,v4,k.place=pre_rope,sink=4,recent=40,chunk=32",
        "rtn:k4,v4,k.place=pre_rope,k.transform=hadamard,sink=3,recent=0",
        "kivi:k3,v2,k.place=pre_rope,k.shift=mean,sink=0,recent=0",
        "q8_0:k.place=pre_rope,sink=1,rows=bf16",
        "f16:k.place=pre_rope",
        "kivi:k2,v3,k.place=pre_rope,round=trellis8",
    };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; ++i) {
        inputs* in = make_inputs(&ropes[i % NUM_ROPES], 1, 0.5);
        for (int t = 0; t < n && t < 2; ++t) {
            kvl_layer_desc layer = test_layer(specs[i], Q_HEADS, HEADS, DIM, DIM);
            layer.rope = &in->rope;
            layer.window_len = i % 2 ? 90 : 0;
            layer.soft_cap = i % 3 ? 0.0f : 20.0f;
            test_cache c = test_open_calibrated(&targets[t], &layer, test_calibration(TEST_TABLES));
            const kvl_seq seq = test_seq(&c);
            test_append(&c, seq, in->k, in->v, 0, ROWS);
            test_attend_check(&c, seq, in->q, 3, NULL, specs[i]);
            test_close(&c);
        }
        free(in);
    }
}

// Breaks when a choice of bases is not undone before a key is turned.
Test(turn, chosen_bases_are_restored)
{
    static const char spec[] = "flagrot-kivi:k3,k.place=pre_rope,k.score=reconstruction,recent=0";
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    inputs* in = make_inputs(&ropes[0], 1, 0.5);
    for (int t = 0; t < n && t < 2; ++t) {
        test_cache c = open_cache(&targets[t], in, spec, 0);
        const kvl_seq seq = test_seq(&c);
        test_append(&c, seq, in->k, in->v, 0, ROWS);
        test_attend_check(&c, seq, in->q, 2, NULL, spec);
        test_close(&c);
        cr_expect(key_error(&targets[t], in, spec) < 0.3, "%s", targets[t].name);
    }
    free(in);
}

// Breaks when rows get other positions by how they came, or by what was done to the sequence: a
// row's is its number, whatever was cut off before or behind it.
Test(turn, positions_are_numbers_of_rows)
{
    static float k[2][ROWS * HEADS * DIM], v[ROWS * HEADS * DIM];
    static const char spec[] = "rtn:k4,v4,k.place=pre_rope,sink=4,recent=8";
    inputs* in = make_inputs(&ropes[1], 1, 0.5);
    test_cache c = open_cache(&reference, in, spec, 0);
    const kvl_seq at_once = test_seq(&c), by_parts = test_seq(&c);
    kvl_seq fork = 0;
    test_append(&c, at_once, in->k, in->v, 0, ROWS);
    test_restore(&c, at_once, 0, ROWS, k[0], v);
    for (int i = 0; i < ROWS; i += 75) test_append(&c, by_parts, in->k, in->v, i, 75);
    test_ok(c.ctx, kvl_seq_fork(c.cache, by_parts, &fork), "fork");
    test_ok(c.ctx, kvl_drop_oldest(c.cache, fork, 80), "drop");
    for (int i = 0; i < 2; ++i) {
        const int first = i ? 90 : 0, num = ROWS - first;
        test_restore(&c, i ? fork : by_parts, first, num, k[1], v);
        cr_expect(memcmp(k[1], k[0] + first * HEADS * DIM,
                         (size_t)(num * HEADS * DIM) * sizeof(float)) == 0, "sequence %d", i);
    }
    test_close(&c);
    free(in);
}

// Breaks when a file's keys are read with another RoPE than they were stored with.
Test(turn, files_are_of_one_rope)
{
    static const char spec[] = "kivi:k.place=pre_rope,recent=0";
    test_bytes b = { 0 };
    kvl_save_seq one = { 0 };
    kvl_save_desc save = { .num_seqs = 1, .seqs = &one, .write = test_put_bytes, .user = &b };
    kvl_load_desc load = { .read = test_take_bytes, .user = &b };
    inputs* in = make_inputs(&ropes[0], 1, 0.5);
    test_cache c = open_cache(&reference, in, spec, 0);
    one.seq = test_seq(&c);
    test_append(&c, one.seq, in->k, in->v, 0, ROWS);
    test_ok(c.ctx, kvl_save(c.cache, &save), "save");
    for (int i = 0; i < 2; ++i) {
        kvl_loaded_seq* loaded = NULL;
        int num = 0;
        if (i) in->rope.base = 2000;
        test_cache other = open_cache(&reference, in, spec, 0);
        b.at = 0;
        const kvl_status status = kvl_load(other.cache, &load, &loaded, &num);
        cr_expect(status == (i ? KVL_BAD_ARGUMENT : KVL_OK) &&
                  (!i || strstr(kvl_context_message(other.ctx), "RoPE")), "%d: %s", i,
                  kvl_context_message(other.ctx));
        if (loaded) kvl_loaded_free(other.ctx, loaded, num);
        test_close(&other);
    }
    test_close(&c);
    free(b.data);
    free(in);
}

// Breaks when a cache is made that does not know how keys turn, or a spec that cannot be served.
Test(turn, what_it_cannot_serve_is_refused)
{
    static const struct { const char *spec, *words; } bad[] = {
        { "kivi:place=pre_rope", "v.place = pre_rope: is for keys alone" },
        { "kivi:k.place=pre_rope,k.shift=rotating-mean", "k.shift = mean, not rotating-mean" },
        { "kivi:k.place=pre_rope,kg512", "at most 256" },
    };
    inputs* in = make_inputs(&ropes[0], 1, 0.5);
    test_cache c = open_cache(&reference, in, "kivi:k.place=pre_rope,recent=0", 0);
    const kvl_seq seq = test_seq(&c), other = test_seq(&c);
    test_append(&c, seq, in->k, in->v, 0, ROWS);
    kvl_status status = kvl_copy_rows(c.cache, other, c.cache, seq, 32, 40);
    cr_expect(status == KVL_UNSUPPORTED &&
              strstr(kvl_context_message(c.ctx), "k.place = pre_rope: row 32 would be row 0 here"),
              "%s", kvl_context_message(c.ctx));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        const kvl_layer_desc layer = test_layer(bad[i].spec, Q_HEADS, HEADS, DIM, DIM);
        status = kvl_spec_check(c.ctx, &layer, NULL);
        cr_expect(status == KVL_BAD_ARGUMENT && strstr(kvl_context_message(c.ctx), bad[i].words),
                  "%s: %s", bad[i].spec, kvl_context_message(c.ctx));
    }
    const kvl_layer_desc layer = test_layer("kivi:k.place=pre_rope", Q_HEADS, HEADS, DIM, DIM);
    kvl_cache_desc desc = { 0 };
    kvl_cache* none = NULL;
    desc.num_layers = 1;
    desc.layers = &layer;
    status = kvl_cache_create(c.ctx, &desc, &none);
    cr_expect(status == KVL_BAD_ARGUMENT && !none &&
              strstr(kvl_context_message(c.ctx), "kvl_layer_desc.rope = NULL"), "%s",
              kvl_context_message(c.ctx));
    test_close(&c);
    free(in);
}
