// test_turn.c -- place=pre_rope: keys stored before RoPE, turned when they are read.

#include "calibrate_tables.h"
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
        "rtn:k3,v4,k.place=pre_rope,k.transform=grouped,fit=shrink90,meta=f16,sink=2,recent=9",
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

// A sequence that comes at once against one that comes by parts, and its fork without old rows.
static void check_positions(const inputs* in, const char* spec)
{
    static float k[2][ROWS * HEADS * DIM], v[ROWS * HEADS * DIM];
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
                         (size_t)(num * HEADS * DIM) * sizeof(float)) == 0, "%s: sequence %d", spec,
                  i);
    }
    test_close(&c);
}

// Breaks when rows get other positions by how they came, or by what was done to the sequence: a
// row's is its number, whatever was cut off before or behind it.
Test(turn, positions_are_numbers_of_rows)
{
    static const char* const specs[] = {
        "rtn:k4,v4,k.place=pre_rope,sink=4,recent=8",
        "rtn:k4,v4,k.place=pre_rope,k.transform=grouped,sink=4,recent=8",
    };
    inputs* in = make_inputs(&ropes[1], 1, 0.5);
    for (int n = 0; n < 2; ++n) check_positions(in, specs[n]);
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

// STATISTICS OF KEYS BEFORE ROPE

typedef struct bench {
    kvl_context*     ctx;
    kvl_layer_desc   layer;
    kvl_statistics*  stats;
    kvl_calibration* calibration;
} bench;

static void open_bench(bench* b, const inputs* in, const char* spec, int unrotated, int window_len)
{
    kvl_statistics_desc desc = { 0 };
    kvl_statistics_rows rows = { 0 };
    memset(b, 0, sizeof *b);
    b->layer = test_layer(spec, Q_HEADS, HEADS, DIM, DIM);
    b->layer.rope = &in->rope;
    b->layer.window_len = window_len;
    b->ctx = test_context(&reference, 1);
    desc.num_layers = 1;
    desc.layers = &b->layer;
    desc.unrotated = unrotated;
    test_ok(b->ctx, kvl_statistics_create(b->ctx, &desc, &b->stats), "statistics");
    rows.num_keys = rows.num_rows = ROWS;
    rows.k.data = in->k;
    rows.v.data = in->v;
    rows.q.data = in->q;
    test_ok(b->ctx, kvl_statistics_add(b->stats, &rows), "rows");
    test_ok(b->ctx, kvl_calibration_create(b->stats, NULL, &b->calibration), spec);
}

static kvl_status derive(bench* b)
{
    kvl_cache_desc cache = { 0 };
    kvl_derive_desc desc = { 0 };
    cache.num_layers = 1;
    cache.layers = &b->layer;
    desc.stats = b->stats;
    desc.cache = &cache;
    desc.derivations = calibrate_derivations(&desc.num_derivations);
    return kvl_calibration_derive(b->calibration, &desc);
}

static void close_bench(bench* b)
{
    kvl_calibration_free(b->calibration);
    kvl_statistics_free(b->stats);
    kvl_context_destroy(b->ctx);
}

// Breaks when keys of the statistics are turned by another position than their own, or queries by
// one that they do not see: in a window of one row a query sees its own position alone.
Test(turn, statistics_are_of_keys_before_rope)
{
    inputs* in = make_inputs(&ropes[2], 1, 0.5);
    bench b;
    open_bench(&b, in, "kivi", 1, 1);
    const char* const names[2] = { "key_outer", "query_outer" };
    for (int what = 0; what < 2; ++what)
        for (int h = 0; h < HEADS; ++h) {
            static double moment[DIM][DIM];
            const int group = what ? Q_HEADS / HEADS : 1, heads = what ? Q_HEADS : HEADS;
            memset(moment, 0, sizeof moment);
            for (int t = 0; t < ROWS; ++t)
                for (int g = 0; g < group; ++g) {
                    const float* from = (what ? in->q : in->k) +
                                        (t * heads + h * group + g) * DIM;
                    double x[DIM], back[DIM];
                    for (int i = 0; i < DIM; ++i) x[i] = (double)from[i];
                    turn(&in->rope, -t, x, back);
                    for (int i = 0; i < DIM; ++i)
                        for (int j = 0; j < DIM; ++j) moment[i][j] += back[i] * back[j];
                }
            int64_t num = 0;
            const double* found = kvl_statistics_get(b.stats, 0, h, names[what], &num);
            cr_assert(found && num == DIM * DIM);
            for (int i = 0; i < DIM * DIM; ++i)
                cr_assert(fabs(found[i] - moment[i / DIM][i % DIM]) < 1e-3, "%s, head %d: %d, %d: "
                          "%g, expected %g", names[what], h, i / DIM, i % DIM, found[i],
                          moment[i / DIM][i % DIM]);
        }
    close_bench(&b);
    free(in);
}

// Breaks when turning a query by the position of a key that it sees changes its length, or all are
// turned alike: the trace stays, and pairs that turn fast have nothing in common with each other.
Test(turn, queries_are_those_that_keys_meet)
{
    inputs* in = make_inputs(&ropes[0], 1, 0.5);
    bench b;
    for (int i = 0; i < ROWS * Q_HEADS * DIM; ++i) in->q[i] = 1.0f + 0.1f * in->q[i];
    open_bench(&b, in, "kivi", 1, 0);
    const double* found = kvl_statistics_get(b.stats, 0, 0, "query_outer", NULL);
    double trace = 0, expected = 0;
    for (int i = 0; i < DIM; ++i) trace += found[i * DIM + i];
    for (int t = 0; t < ROWS; ++t)
        for (int i = 0; i < Q_HEADS / HEADS * DIM; ++i)
            expected += (double)in->q[t * Q_HEADS * DIM + i] * (double)in->q[t * Q_HEADS * DIM + i];
    cr_expect(fabs(trace / expected - 1) < 1e-6, "trace %g, expected %g", trace, expected);
    // Channels 0 and 1 turn by 1 and 0.8 a position, channel 31 by 0.001.
    cr_expect(fabs(found[1]) < 0.2 * found[0], "%g of %g", found[1], found[0]);
    cr_expect(found[30 * DIM + 31] > 0.8 * found[30 * DIM + 30], "%g of %g", found[30 * DIM + 31],
              found[30 * DIM + 30]);
    close_bench(&b);
    free(in);
}

// Breaks when a basis of keys before RoPE is made of others: what is stored must have one size in
// all its channels, within groups of 32 tokens, and none of them goes with another.
Test(turn, bases_are_of_keys_before_rope)
{
    static double y[ROWS][DIM], moment[DIM][DIM];
    enum { GROUPED = ROWS / 32 * 32 };
    inputs* in = make_inputs(&ropes[0], 1, 0.5);
    bench b;
    int64_t num = 0;
    open_bench(&b, in, "kivi:k.place=pre_rope,k.transform=whiten", 1, 0);
    test_ok(b.ctx, derive(&b), "derive");
    const float* forward =
        kvl_calibration_table(b.calibration, 0, 0, "whiten_forward@pre_rope", &num);
    cr_assert(forward && num == HEADS * DIM * DIM);
    for (int h = 0; h < HEADS; ++h) {
        memset(moment, 0, sizeof moment);
        for (int t = 0; t < GROUPED; ++t) {
            double x[DIM], back[DIM];
            for (int i = 0; i < DIM; ++i) x[i] = (double)in->k[(t * HEADS + h) * DIM + i];
            turn(&in->rope, -t, x, back);
            for (int j = 0; j < DIM; ++j) {
                y[t][j] = 0;
                for (int i = 0; i < DIM; ++i)
                    y[t][j] += back[i] * (double)forward[(h * DIM + i) * DIM + j];
            }
        }
        for (int t = 0; t < GROUPED; ++t) {
            double own[DIM];
            for (int j = 0; j < DIM; ++j) {
                own[j] = y[t][j];
                for (int r = 0; r < 32; ++r) own[j] -= y[t / 32 * 32 + r][j] / 32;
            }
            for (int i = 0; i < DIM; ++i)
                for (int j = 0; j < DIM; ++j) moment[i][j] += own[i] * own[j] / GROUPED;
        }
        // But for the damping of 1 percent.
        for (int i = 0; i < DIM; ++i)
            for (int j = 0; j < DIM; ++j)
                cr_expect(fabs(moment[i][j] / moment[0][0] - (i == j)) < 0.05, "%d, %d: %g", i, j,
                          moment[i][j] / moment[0][0]);
    }
    close_bench(&b);
    free(in);
}

// Breaks when the order of channels is not that of the means of mixed keys before RoPE: of both
// heads' channels, by the Hadamard's definition.
Test(turn, channels_are_ordered_by_their_means)
{
    inputs* in = make_inputs(&ropes[0], 1, 0.5);
    static double mean[HEADS * DIM], mixed[HEADS * DIM];
    for (int t = 0; t < ROWS; ++t)
        for (int h = 0; h < HEADS; ++h) {
            double x[DIM], back[DIM];
            for (int i = 0; i < DIM; ++i) x[i] = (double)in->k[(t * HEADS + h) * DIM + i];
            turn(&in->rope, -t, x, back);
            for (int i = 0; i < DIM; ++i) mean[h * DIM + i] += back[i] / ROWS;
        }
    for (int i = 0; i < HEADS * DIM; ++i)
        for (int j = 0; j < HEADS * DIM; ++j)
            mixed[i] += (__builtin_popcount((unsigned)(i & j)) % 2 ? -1 : 1) * mean[j] /
                        sqrt(HEADS * DIM);
    for (int unrotated = 0; unrotated < 2; ++unrotated) {
        bench b;
        int64_t num = 0;
        int seen[HEADS * DIM] = { 0 };
        open_bench(&b, in, "rotatekv", unrotated, 0);
        test_ok(b.ctx, derive(&b), "derive");
        const float* order =
            kvl_calibration_table(b.calibration, 0, 0, "grouped_order@pre_rope,grouped4", &num);
        cr_assert(order && num == HEADS * DIM, "%lld numbers", (long long)num);
        for (int i = 0; i < HEADS * DIM; ++i) {
            cr_assert(order[i] >= 0 && order[i] < HEADS * DIM && !seen[(int)order[i]]++);
            cr_expect(i == 0 || mixed[(int)order[i]] > mixed[(int)order[i - 1]] - 1e-4,
                      "%d: %g behind %g", i, mixed[(int)order[i]], mixed[(int)order[i - 1]]);
        }
        close_bench(&b);
    }
    free(in);
}

// Breaks when a table is made of statistics of the other kind, or they add up with those.
Test(turn, statistics_of_the_other_kind_are_refused)
{
    static const struct { const char* spec; int unrotated; const char* words; } bad[] = {
        { "kivi:k.place=pre_rope,k.transform=whiten", 0, "kvloom-calibrate --pre-rope" },
        { "flagrot-kivi:k.place=pre_rope", 0, "needs statistics of such keys" },
        { "kivi:k.transform=whiten", 1, "is of keys after it" },
        { "kivi:k.shift=mean", 1, "is of keys after it" },
    };
    static const char* const good[] = {
        "kvquant", "kivi:k.place=pre_rope,k.shift=mean", "flagrot-kivi:k.place=pre_rope",
        "loom:k.place=pre_rope", "kivi:v.transform=whiten" };
    inputs* in = make_inputs(&ropes[0], 1, 0.5);
    bench b, other;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        open_bench(&b, in, bad[i].spec, bad[i].unrotated, 0);
        cr_expect(derive(&b) == KVL_UNSUPPORTED &&
                  strstr(kvl_context_message(b.ctx), bad[i].words), "%s: %s", bad[i].spec,
                  kvl_context_message(b.ctx));
        close_bench(&b);
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; ++i) {
        open_bench(&b, in, good[i], 1, 0);
        test_ok(b.ctx, derive(&b), good[i]);
        close_bench(&b);
    }
    open_bench(&b, in, "kivi", 1, 0);
    open_bench(&other, in, "kivi", 0, 0);
    cr_expect(kvl_statistics_merge(b.stats, other.stats) == KVL_BAD_ARGUMENT &&
              strstr(kvl_context_message(b.ctx), "do not add up"), "%s",
              kvl_context_message(b.ctx));
    close_bench(&b);
    close_bench(&other);
    free(in);
}

// Breaks when a cache is made that does not know how keys turn, or a spec that cannot be served.
Test(turn, what_it_cannot_serve_is_refused)
{
    static const struct { const char *spec, *words; } bad[] = {
        { "kivi:place=pre_rope", "v.place = pre_rope: is for keys alone" },
        { "kivi:k.place=pre_rope,k.shift=rotating-mean", "k.shift = mean, not rotating-mean" },
        { "kivi:k.place=pre_rope,kg512", "at most 256" },
        { "rtn:k.transform=grouped", "k.transform = grouped: needs k.place = pre_rope" },
        { "rtn:v.transform=grouped", "v.transform = grouped: is for keys alone" },
        { "rotatekv:k.transform=grouped17", "k.transform = grouped17: the number must be 1 to 16" },
        { "rotatekv:k.shift=mean", "k.transform = grouped: needs k.shift = none, not mean" },
        { "rotatekv:k.axis=per_channel,kg32", "needs k.axis = per_token" },
        { "rotatekv:k.fit=minmax,k.meta=log4,kg32", "read no tables" },
        { "rotatekv:k.fit=shrink101", "k.fit = shrink101: the number must be 1 to 100" },
        { "rotatekv:k.meta=8bit", "k.meta = 8bit: cannot store what fit = shrink finds" },
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
