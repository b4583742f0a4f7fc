// test_trellis.c -- paths: the best one, what a reader makes of it, and groups at their edges.
//
// The definition stands here once more: polynomials as printed, in octal.  Codes on random rows are
// compared with NumPy's in test_codecs.c.

#include "test_support.h"

enum { NUM_STATES = 5 };

static const int all_states[NUM_STATES] = { 4, 8, 16, 32, 64 };
static const unsigned all_h1[NUM_STATES] = { 02, 04, 04, 010, 024 };
static const unsigned all_h0[NUM_STATES] = { 05, 013, 023, 045, 0103 };

// The level of code t of a group of n codes, `step` apart.
static int level_of(int which, const uint16_t* codes, int n, int step, int t)
{
    int s1 = 0, s0 = 0;
    for (int i = 0; i < 7; ++i) {
        const int x = codes[(t + 2 * n - i) % n * step] & 1;
        if (all_h0[which] >> i & 1u) s1 ^= x;
        if (all_h1[which] >> i & 1u) s0 ^= x;
    }
    return 4 * (codes[t * step] >> 1) + 2 * s1 + s0;
}

static double cost_of(const float* y, const uint16_t* levels, int n)
{
    double sum = 0;
    for (int t = 0; t < n; ++t) sum += ((double)y[t] - levels[t]) * ((double)y[t] - levels[t]);
    return sum;
}

// The least cost of all ways to choose the x of n codes, the nearest high bits each.
static double least_cost(int which, const float* y, int n, int bits)
{
    double best = INFINITY;
    for (int all = 0; all < 1 << n; ++all) {
        uint16_t codes[16], levels[16];
        for (int t = 0; t < n; ++t) codes[t] = (uint16_t)(all >> t & 1);
        for (int t = 0; t < n; ++t) {
            const int low = level_of(which, codes, n, 1, t);
            double least = INFINITY;
            for (int high = 0; high < 1 << (bits - 1); ++high) {
                const double e = (double)y[t] - (4 * high + low);
                if (e * e < least) levels[t] = (uint16_t)(4 * high + low);
                if (e * e < least) least = e * e;
            }
        }
        best = fmin(best, cost_of(y, levels, n));
    }
    return best;
}

Test(trellis, paths_are_the_best_of_all)
{
    // Broken by a survivor that is dropped, an end that is not the beginning, or a start state that
    // is not tried: every path of 8 values with 4 states, of 12 with each of the others.
    test_lcg lcg = { 5 };
    for (int which = 0; which < NUM_STATES; ++which)
        for (int trial = 0; trial < (which ? 12 : 150); ++trial) {
            const int n = which ? 12 : 8, bits = 1 + trial % 4, top = (2 << bits) - 1;
            float y[12];
            uint16_t codes[12], levels[12];
            for (int t = 0; t < n; ++t)
                y[t] = 0.5f * (float)top + (float)top * (float)test_bell(&lcg) / 8192.0f;
            test_walk(y, n, bits, all_states[which], codes, levels);
            for (int t = 0; t < n; ++t)
                cr_assert(levels[t] == level_of(which, codes, n, 1, t),
                          "%d states, %d bits: code %d stands for %d, expected %d",
                          all_states[which], bits, t, levels[t], level_of(which, codes, n, 1, t));
            const double found = cost_of(y, levels, n), least = least_cost(which, y, n, bits);
            cr_assert(found <= least * (1 + 1e-5), "%d states, %d bits, trial %d: a path costs "
                      "%.9g, the best %.9g", all_states[which], bits, trial, found, least);
        }
}

enum { PAGE = 64, MOST_DIM = 128 };

// Codes of any bits, in the linear order, through a page.
static void check_reader(const test_target* target, int which, int bits, int dim, int group,
                         int along)
{
    char spec[160];
    static uint16_t codes[PAGE * MOST_DIM], got[PAGE * MOST_DIM];
    static unsigned char linear[PAGE * MOST_DIM];
    test_lcg lcg = { (uint64_t)(which * 16 + bits) };
    snprintf(spec, sizeof spec, "rtn:b%d,g%d,round=trellis%d,axis=%s,page=%d,sink=0,recent=0", bits,
             group, all_states[which], along ? "per_channel" : "per_token", PAGE);
    const kvl_layer_desc layer = test_layer(spec, 1, 1, dim, dim);
    test_cache c = test_open(target, &layer);
    memset(linear, 0, sizeof linear);
    for (int i = 0; i < PAGE * dim; ++i) {
        codes[i] = (uint16_t)test_uniform(&lcg, 1 << bits);
        for (int b = 0; b < bits; ++b)
            linear[(i * bits + b) / 8] |= (unsigned char)((codes[i] >> b & 1)
                                                          << (i * bits + b) % 8);
    }
    for (int side = 0; side < 2; ++side) {
        test_read_linear(&c, side, linear, PAGE, got);
        for (int i = 0; i < PAGE * dim; ++i) {
            const int row = i / dim, channel = i % dim, t = (along ? row : channel) % group;
            const uint16_t* first = codes + i - t * (along ? dim : 1);
            const int want = level_of(which, first, group, along ? dim : 1, t);
            cr_assert(got[i] == want, "%s on %s: side %d row %d channel %d: %d, expected %d", spec,
                      target->name, side, row, channel, got[i], want);
        }
    }
    test_close(&c);
}

Test(trellis, readers_follow_the_definition)
{
    // Broken by a delay of the wrong direction, a group that is not closed, or a plane of bits that
    // is mistaken: pages of random codes, each polynomial and each width.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int which = 0; which < NUM_STATES; ++which)
        for (int bits = 1; bits <= 4; ++bits)
            check_reader(&targets[0], which, bits, 64, 32, bits % 2);
    check_reader(&targets[0], 1, 2, 80, 16, 1);
    for (int which = 0; which < NUM_STATES && n > 1; ++which)
        check_reader(&targets[1], which, 1 + which % 4, 64, which % 2 ? 16 : 64, which % 2);
}

// Attention and restored rows of a cache against float64 over the rows as restored.
static void check_cache(const test_target* target, const char* spec, int dk, int dv)
{
    enum { ROWS = 150, HEADS = 3 };
    const kvl_layer_desc layer = test_layer(spec, HEADS, 1, dk, dv);
    test_cache c = test_open(target, &layer);
    const kvl_seq seq = test_seq(&c);
    float* k = test_floats(ROWS * dk);
    float* v = test_floats(ROWS * dv);
    float* q = test_floats(HEADS * dk);
    float* o = test_floats(HEADS * dv);
    float lse[HEADS];
    const int64_t position = ROWS - 1;
    test_attention a;
    char what[256];
    test_rows(11, ROWS, 1, dk, k);
    test_rows(22, ROWS, 1, dv, v);
    test_queries(33, 1, HEADS, dk, q);
    test_append(&c, seq, k, v, 0, ROWS);
    test_restore(&c, seq, 0, ROWS, k, v);
    memset(&a, 0, sizeof a);
    a.q = q;
    a.k = k;
    a.v = v;
    a.positions = &position;
    a.num_q = 1;
    a.q_heads = HEADS;
    a.kv_heads = 1;
    a.dk = dk;
    a.dv = dv;
    a.kv_len = ROWS;
    a.transformed = strstr(spec, "transform") != NULL || strstr(spec, "loom") != NULL ||
                    strstr(spec, "wush") != NULL;
    a.rounds = c.rounds;
    test_attention_run(&a);
    test_attend(&c, seq, q, 1, NULL, o, lse);
    snprintf(what, sizeof what, "%s, %d and %d, on %s", spec, dk, dv, target->name);
    test_attention_check(&a, o, lse, what);
    test_attention_free(&a);
    test_close(&c);
    free(k);
    free(v);
    free(q);
    free(o);
}

typedef struct shape_case {
    const char* spec;
    int         dk, dv;
} shape_case;

static const shape_case shapes[] = {
    { "kivi:round=trellis8,sink=0,recent=0", 64, 128 },
    { "kivi:b1,round=trellis16,vg16,sink=4,recent=16", 80, 80 },
    { "kivi:k3,v4,round=trellis64,kg64,vg96,sink=0,recent=8", 96, 96 },
    { "wush:round=trellis4,sink=0,recent=8,chunk=2", 128, 256 },
    { "rtn:k4,v3,k.round=trellis64,v.round=trellis32,v.axis=per_channel,sink=0,recent=0", 256, 64 },
    { "loom:round=feedback_trellis8,sink=4,recent=16", 64, 64 },
    { "loom:b1,g16,round=feedback_trellis4,sink=0,recent=0", 80, 96 },
    { "kivi:k.axis=per_token,v.axis=per_channel,round=feedback_trellis8,k.fit=search,sink=0,"
      "recent=0", 64, 64 },
};
enum { NUM_SHAPES = (int)(sizeof shapes / sizeof shapes[0]) };

Test(trellis, attention_reads_what_restore_reads)
{
    // Broken by a vector path that takes another neighbour than one value's: head dims 64 to 256,
    // groups along either direction of a cell, partly visible pages.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int i = 0; i < NUM_SHAPES; ++i)
        for (int t = 0; t < (i == 1 ? n : n > 1 ? 2 : 1); ++t)
            check_cache(&targets[t], shapes[i].spec, shapes[i].dk, shapes[i].dv);
}

// Groups of 32: equal values, zeros, the limits of f16 and of its denormals, one outlier.
static float edge(int which, int i)
{
    static const float constants[] = { 0.0f, 1.0f, -0.1f, 65504.0f, -65504.0f, 5.9604645e-8f };
    if (which < 6) return constants[which];
    switch (which) {
    case 6: return i % 2 ? 65504.0f : -65504.0f;
    case 7: return (float)i * 5.9604645e-8f;
    case 8: return i == 9 ? 30000.0f : 0.25f * (float)(i % 5);
    case 9: return 1000.0f + 0.5f * (float)(i % 4);
    case 10: return i == 3 ? 5.9604645e-8f : 0.0f;
    default: return (float)((i * 37) % 101) / 64.0f;
    }
}

enum { NUM_EDGES = 12, GROUP = 32 };

// What a group of the path without any x costs: levels 0, 4, ... alone, the nearest each.
static double plain_cost(const float* x, int bits, double scale, double offset)
{
    double sum = 0;
    for (int i = 0; i < GROUP; ++i) {
        double least = INFINITY;
        for (int high = 0; high < 1 << (bits - 1); ++high)
            least = fmin(least, fabs((double)x[i] - (scale * 4 * high + offset)));
        sum += least * least;
    }
    return sum;
}

static void check_edges(const test_target* target, const char* spec, test_state* state)
{
    const kvl_layer_desc layer = test_layer(spec, 1, 1, GROUP, GROUP);
    const int f16 = strstr(spec, "meta=f16") != NULL;
    float rows[GROUP * GROUP], k[GROUP * GROUP], v[GROUP * GROUP];
    test_cache c = test_open(target, &layer);
    const kvl_seq seq = test_seq(&c);
    for (int i = 0; i < GROUP * GROUP; ++i)
        rows[i] = test_round_f16(edge(i / GROUP % NUM_EDGES, i % GROUP));
    test_append(&c, seq, rows, rows, 0, GROUP);
    test_restore(&c, seq, 0, GROUP, k, v);
    test_codes codes = test_read_codes(&c, seq, 0, 1);
    for (int i = 0; i < GROUP * GROUP; ++i) {
        cr_assert(isfinite(k[i]) && isfinite(v[i]), "%s on %s: element %d: %g and %g", spec,
                  target->name, i, (double)k[i], (double)v[i]);
        if (f16 && i / GROUP % NUM_EDGES < 6)
            cr_assert(v[i] == rows[i], "%s on %s: the constant %g is restored as %g", spec,
                      target->name, (double)rows[i], (double)v[i]);
    }
    for (int g = 0; g < GROUP && strstr(spec, "minmax"); ++g) {
        const double scale = (double)codes.c.scales[g], offset = (double)codes.c.offsets[g];
        const double most = plain_cost(rows + g * GROUP, strstr(spec, "b1") ? 1
                                       : strstr(spec, "b2") ? 2 : 4, scale, offset);
        double sum = 0;
        for (int i = g * GROUP; i < g * GROUP + GROUP; ++i)
            sum += pow((double)v[i] - (double)rows[i], 2);
        cr_assert(sum <= most * 1.0001 + pow(ldexp(fabs(offset) + 16 * scale, -20), 2),
                  "%s on %s: pattern %d: squared error %.9g, without a path %.9g", spec,
                  target->name, g % NUM_EDGES, sum, most);
    }
    test_codes_free(&codes);
    *state = test_snapshot(&c, seq);
    test_close(&c);
}

Test(trellis, edges)
{
    // Broken by a target that is no number, a cost that is infinite, or an outlier that leaves its
    // group; and by any difference of codes and metadata between reference and host.
    static const char* const specs[] = {
        "kivi:b2,fit=minmax,round=trellis8,sink=0,recent=0",
        "rtn:b1,fit=minmax,meta=f16,round=trellis4,sink=0,recent=0",
        "rtn:b4,fit=minmax,meta=f16,round=trellis16,axis=per_token,sink=0,recent=0",
        "rtn:b3,fit=search,round=trellis8,sink=0,recent=0",
        "kivi:b2,fit=search,round=feedback_trellis8,sink=0,recent=0",
        "loom:round=feedback_trellis8,sink=0,recent=0",
    };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int s = 0; s < 6; ++s) {
        test_state first, other;
        check_edges(&targets[0], specs[s], &first);
        if (n < 2 || s == 2 || s == 3) continue;
        check_edges(&targets[1], specs[s], &other);
        cr_assert(first.codes == other.codes && first.meta == other.meta,
                  "%s: reference and host differ", specs[s]);
    }
}

Test(trellis, rows_are_nearer_than_with_nearest_levels)
{
    // Broken by paths that gain nothing: of normal values, search and 8 bits of metadata, the
    // squared error at 2 bits falls by 17 to 20 percent (.0891 to .0728 of the variance with exact
    // metadata), at 1 bit from .331 to .276.
    enum { DIM = 64, ROWS = 256 };
    static const char* const rounds[] = { "nearest", "trellis8" };
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    for (int bits = 1; bits <= 2; ++bits) {
        double error[2] = { 0, 0 };
        for (int r = 0; r < 2; ++r) {
            char spec[128];
            float* k = test_floats(ROWS * DIM);
            float* v = test_floats(ROWS * DIM);
            float* rows = test_floats(ROWS * DIM);
            test_lcg lcg = { 3 };
            snprintf(spec, sizeof spec, "kivi:b%d,meta=f16,fit=search,round=%s,sink=0,recent=0",
                     bits, rounds[r]);
            const kvl_layer_desc layer = test_layer(spec, 1, 1, DIM, DIM);
            test_cache c = test_open(&reference, &layer);
            const kvl_seq seq = test_seq(&c);
            for (int i = 0; i < ROWS * DIM; ++i) {
                int sum = 0;
                for (int j = 0; j < 3; ++j) sum += test_bell(&lcg);
                rows[i] = test_round_f16((float)sum / 4096.0f);
            }
            test_append(&c, seq, rows, rows, 0, ROWS);
            test_restore(&c, seq, 0, ROWS, k, v);
            for (int i = 0; i < ROWS * DIM; ++i)
                error[r] += pow((double)rows[i] - (double)k[i], 2)
                            + pow((double)rows[i] - (double)v[i], 2);
            test_close(&c);
            free(k);
            free(v);
            free(rows);
        }
        cr_assert(error[1] < 0.86 * error[0], "%d bits: a path leaves %.3f of the squared error",
                  bits, error[1] / error[0]);
    }
}

typedef struct refusal {
    const char *spec, *words[2];
} refusal;

Test(trellis, what_cannot_be_a_path_is_refused)
{
    // Broken by a combination that is stored in a way that no reader undoes.
    static const refusal refusals[] = {
        { "kivi:b5,round=trellis8", { "k5", "1, 2, 3, 4" } },
        { "kivi:round=trellis2", { "trellis2", "4 to 64" } },
        { "kivi:round=trellis128", { "trellis128", "4 to 64" } },
        { "kivi:v.round=trellis12", { "v.round = trellis12", "power of two" } },
        { "kivi:kg24,round=trellis8", { "kg24", "multiple of 16" } },
        { "kivi:vg8,round=trellis8", { "vg8", "multiple of 16" } },
        { "kivi:kg512,round=trellis8", { "kg512", "at most 256" } },
        { "kivi:kg128,k.round=feedback_trellis8", { "kg128", "2 to 64" } },
        { "loom:vg64,v.round=feedback_trellis64", { "v.round", "at most 32 states" } },
        { "q8_0:b4,round=trellis8", { "round = trellis", "affine" } },
        { "flagrot-kivi:k.round=trellis8", { "k.round = trellis", "choose = none" } },
    };
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    kvl_context* ctx = test_context(&reference, 1);
    for (int i = 0; i < (int)(sizeof refusals / sizeof refusals[0]); ++i) {
        const kvl_layer_desc layer = test_layer(refusals[i].spec, 1, 1, 64, 64);
        const kvl_status status = kvl_spec_check(ctx, &layer, NULL);
        const char* message = kvl_context_message(ctx);
        cr_assert(status == KVL_BAD_ARGUMENT, "%s: %s", refusals[i].spec, kvl_status_text(status));
        for (int j = 0; j < 2; ++j)
            cr_assert(strstr(message, refusals[i].words[j]) != NULL, "%s: '%s' lacks '%s'",
                      refusals[i].spec, message, refusals[i].words[j]);
    }
    kvl_context_destroy(ctx);
}
