// test_windows.c -- what a sequence stores depends on its rows alone, never on how they arrived.

#include "test_support.h"

// The configuration that the reports behind these tests have in common: two KV heads, groups of 16
// along tokens, windows that are no multiple of them, 150 rows, so that seven chunks are encoded.
#define SMALL_SPEC "kivi:k2,v2,kg16,vg16,sink=4,recent=24,chunk=16"

enum { HEADS = 2, DIM = 64, ROWS = 150, SINK = 4, RECENT = 24, CHUNK = 16 };

typedef struct input {
    float* k;
    float* v;
    float* q;
} input;

static input input_create(uint64_t seed, int rows)
{
    input in;
    in.k = test_floats((int64_t)rows * HEADS * DIM);
    in.v = test_floats((int64_t)rows * HEADS * DIM);
    in.q = test_floats(6 * DIM);
    test_rows(seed, rows, HEADS, DIM, in.k);
    test_rows(seed + 1, rows, HEADS, DIM, in.v);
    test_queries(seed + 2, 1, 6, DIM, in.q);
    return in;
}

static void input_free(input* in)
{
    free(in->k);
    free(in->v);
    free(in->q);
}

static kvl_layer_desc small_layer(const char* spec) { return test_layer(spec, 6, HEADS, DIM, DIM); }

// State and attention output of a sequence: what must not depend on the route.
typedef struct outcome {
    test_state state;
    float      o[6 * DIM], lse[6];
} outcome;

static outcome outcome_of(test_cache* c, kvl_seq seq, const input* in)
{
    outcome out;
    out.state = test_snapshot(c, seq);
    test_attend(c, seq, in->q, 1, NULL, out.o, out.lse);
    return out;
}

static void same_outcome(const outcome* a, const outcome* b, const char* what)
{
    test_same_state(&a->state, &b->state, what);
    cr_assert(memcmp(a->o, b->o, sizeof a->o) == 0, "%s: attention output differs", what);
    cr_assert(memcmp(a->lse, b->lse, sizeof a->lse) == 0, "%s: lse differs", what);
}

static void check_splits(const test_target* target, const char* spec, int num_rows, int step)
{
    const kvl_layer_desc layer = small_layer(spec);
    test_cache c = test_open(target, &layer);
    input in = input_create(100, num_rows);
    char what[256];
    const kvl_seq whole = test_seq(&c), single = test_seq(&c);
    test_append(&c, whole, in.k, in.v, 0, num_rows);
    const outcome expected = outcome_of(&c, whole, &in);
    for (int t = 0; t < num_rows; ++t) test_append(&c, single, in.k, in.v, t, 1);
    const outcome by_row = outcome_of(&c, single, &in);
    snprintf(what, sizeof what, "%s on %s, row by row", spec, target->name);
    same_outcome(&expected, &by_row, what);
    for (int cut = 1; cut < num_rows; cut += step) {
        const kvl_seq seq = test_seq(&c);
        test_append(&c, seq, in.k, in.v, 0, cut);
        test_append(&c, seq, in.k, in.v, cut, num_rows - cut);
        const outcome got = outcome_of(&c, seq, &in);
        snprintf(what, sizeof what, "%s on %s, cut at %d", spec, target->name, cut);
        same_outcome(&expected, &got, what);
        test_ok(c.ctx, kvl_seq_free(c.cache, seq), what);
    }
    for (int piece = 2; piece <= 37; piece += 5) {
        const kvl_seq seq = test_seq(&c);
        for (int t = 0; t < num_rows; t += piece)
            test_append(&c, seq, in.k, in.v, t, t + piece < num_rows ? piece : num_rows - t);
        const outcome got = outcome_of(&c, seq, &in);
        snprintf(what, sizeof what, "%s on %s, pieces of %d", spec, target->name, piece);
        same_outcome(&expected, &got, what);
        test_ok(c.ctx, kvl_seq_free(c.cache, seq), what);
    }
    input_free(&in);
    test_close(&c);
}

Test(windows, one_call_row_by_row_and_every_cut_are_equal)
{
    // Broken by a flush that looks at the size of a call, or by groups aligned to its first row.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int i = 0; i < n; ++i) check_splits(&targets[i], SMALL_SPEC, ROWS, i == 0 ? 1 : 7);
}

Test(windows, other_specs_do_not_depend_on_cuts_either)
{
    // Broken by a layout of windows that only one preset has: no sink, no recent rows, big chunks.
    static const char* const specs[] = { "f16", "q8_0", "q4_0:sink=3,recent=5", "rtn:b4,recent=9",
        "kivi:sink=0,recent=0", "kivi:sink=0,recent=0,chunk=128", "rtn:b3,sink=1,recent=0,chunk=48",
        "bf16:sink=2,recent=1,chunk=1",
        "kivi:k2,v4,transform=hadamard,sink=64,recent=17,chunk=32" };
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    for (int i = 0; i < 9; ++i) check_splits(&reference, specs[i], 260, 23);
}

Test(windows, rows_are_where_the_rule_says_at_every_length)
{
    // Broken by an age that is decided from the current call, or a tail that grows without end.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int i = 0; i < n; ++i) {
        const kvl_layer_desc layer = small_layer(SMALL_SPEC);
        test_cache c = test_open(&targets[i], &layer);
        input in = input_create(7, ROWS);
        const kvl_seq seq = test_seq(&c);
        cr_assert(c.info.sink_len == SINK && c.info.recent_len == RECENT &&
                  c.info.chunk_len == CHUNK, "windows of %s: sink %d recent %d chunk %d",
                  c.info.spec, c.info.sink_len, c.info.recent_len, c.info.chunk_len);
        for (int64_t len = 0; len <= ROWS; ++len) {
            kvl_seq_rows rows;
            test_ok(c.ctx, kvl_seq_get_rows(c.cache, 0, seq, &rows), "kvl_seq_get_rows");
            const int64_t old = len - SINK - RECENT;
            const int64_t quantized = old > 0 ? old / CHUNK * CHUNK : 0;
            const int64_t sink = len < SINK ? len : SINK;
            cr_assert(rows.rows == len && rows.sink == sink && rows.quantized == quantized &&
                      rows.tail == len - sink - quantized,
                      "%s, %lld rows: sink %lld quantized %lld tail %lld", targets[i].name,
                      (long long)len, (long long)rows.sink, (long long)rows.quantized,
                      (long long)rows.tail);
            cr_assert(rows.tail <= RECENT + CHUNK - 1, "a tail of %lld rows",
                      (long long)rows.tail);
            if (len < ROWS) test_append(&c, seq, in.k, in.v, len, 1);
        }
        input_free(&in);
        test_close(&c);
    }
}

// Windows hold f16 of the input; a quantized row of 64 varied channels at 2 bits is never exact.
Test(windows, window_rows_are_exact_and_the_others_are_not)
{
    // Broken by a window that slides by whole chunks, or by groups of one row, which lose nothing.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int i = 0; i < n; ++i) {
        const kvl_layer_desc layer = small_layer(SMALL_SPEC);
        test_cache c = test_open(&targets[i], &layer);
        input in = input_create(9, ROWS);
        const kvl_seq seq = test_seq(&c);
        float k[HEADS * DIM], v[HEADS * DIM];
        test_append(&c, seq, in.k, in.v, 0, ROWS);
        for (int t = 0; t < ROWS; ++t) {
            int wrong[2] = { 0, 0 };
            const int quantized = t >= SINK && t < SINK + (ROWS - SINK - RECENT) / CHUNK * CHUNK;
            test_restore(&c, seq, t, 1, k, v);
            for (int j = 0; j < HEADS * DIM; ++j) {
                wrong[0] += k[j] != test_round_f16(in.k[t * HEADS * DIM + j]);
                wrong[1] += v[j] != test_round_f16(in.v[t * HEADS * DIM + j]);
            }
            for (int side = 0; side < 2; ++side)
                cr_assert(quantized ? wrong[side] > 0 : wrong[side] == 0,
                          "%s: row %d, side %d: %d of %d values are not exact", targets[i].name, t,
                          side, wrong[side], HEADS * DIM);
        }
        input_free(&in);
        test_close(&c);
    }
}

// Three sequences of different lengths, appended together call by call, in ragged batches.
static void check_ragged(const test_target* target, const char* spec)
{
    static const int32_t calls[][3] = { { 70, 0, 33 }, { 1, 1, 1 }, { 0, 90, 2 }, { 17, 0, 0 },
                                        { 1, 5, 64 }, { 33, 16, 1 } };
    enum { CALLS = 6, SEQS = 3 };
    const kvl_layer_desc layer = small_layer(spec);
    test_cache c = test_open(target, &layer);
    input in[SEQS];
    kvl_seq seqs[SEQS];
    int done[SEQS] = { 0, 0, 0 };
    const int64_t row = HEADS * DIM;
    for (int s = 0; s < SEQS; ++s) {
        in[s] = input_create(1000 + 10 * (uint64_t)s, 200);
        seqs[s] = test_seq(&c);
    }
    float* k = test_floats(200 * row);
    float* v = test_floats(200 * row);
    for (int call = 0; call < CALLS; ++call) {
        kvl_append_desc a = { 0 };
        int64_t at = 0;
        for (int s = 0; s < SEQS; ++s) {
            const size_t bytes = (size_t)(calls[call][s] * row) * sizeof(float);
            memcpy(k + at * row, in[s].k + done[s] * row, bytes);
            memcpy(v + at * row, in[s].v + done[s] * row, bytes);
            at += calls[call][s];
            done[s] += calls[call][s];
        }
        a.num_seqs = SEQS;
        a.seqs = seqs;
        a.num_rows = calls[call];
        a.k.data = k;
        a.v.data = v;
        test_ok(c.ctx, kvl_append(c.cache, &a), "a ragged kvl_append");
    }
    for (int s = 0; s < SEQS; ++s) {
        char what[256];
        test_cache alone = test_open(target, &layer);
        const kvl_seq seq = test_seq(&alone);
        test_append(&alone, seq, in[s].k, in[s].v, 0, done[s]);
        const outcome a = outcome_of(&alone, seq, &in[s]), b = outcome_of(&c, seqs[s], &in[s]);
        snprintf(what, sizeof what, "%s on %s, sequence %d of a batch", spec, target->name, s);
        same_outcome(&a, &b, what);
        test_close(&alone);
    }
    for (int s = 0; s < SEQS; ++s) input_free(&in[s]);
    free(k);
    free(v);
    test_close(&c);
}

Test(windows, a_sequence_in_a_batch_equals_itself_alone)
{
    // Broken by groups that span sequences, by positions taken from sequence 0, or by padding.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int i = 0; i < n; ++i) check_ragged(&targets[i], SMALL_SPEC);
    check_ragged(&targets[0], "rtn:b4,recent=9");
    check_ragged(&targets[0], "q4_0");
    check_ragged(&targets[0], "f16");
}

Test(windows, neighbours_do_not_disturb_a_sequence)
{
    // Broken by a page that two sequences share: one with huge rows grows and is freed in between.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    const kvl_layer_desc layer = small_layer(SMALL_SPEC);
    for (int i = 0; i < n; ++i) {
        test_cache c = test_open(&targets[i], &layer);
        input in = input_create(55, ROWS), loud = input_create(56, ROWS);
        for (int j = 0; j < ROWS * HEADS * DIM; ++j) {
            loud.k[j] *= 1000;
            loud.v[j] *= 1000;
        }
        const kvl_seq seq = test_seq(&c);
        kvl_seq other = test_seq(&c);
        for (int t = 0; t < ROWS; ++t) {
            test_append(&c, other, loud.k, loud.v, t, 1);
            test_append(&c, seq, in.k, in.v, t, 1);
            if (t % 60 != 59) continue;
            test_ok(c.ctx, kvl_seq_free(c.cache, other), "kvl_seq_free");
            other = test_seq(&c);
        }
        const outcome got = outcome_of(&c, seq, &in);
        test_cache alone = test_open(&targets[i], &layer);
        const kvl_seq one = test_seq(&alone);
        test_append(&alone, one, in.k, in.v, 0, ROWS);
        const outcome expected = outcome_of(&alone, one, &in);
        same_outcome(&expected, &got, targets[i].name);
        test_close(&alone);
        input_free(&in);
        input_free(&loud);
        test_close(&c);
    }
}

Test(windows, a_sink_outlier_does_not_reach_the_groups)
{
    // Broken by a first token that takes part in a fit: its outliers would widen every range.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    const kvl_layer_desc layer = small_layer(SMALL_SPEC);
    test_cache c = test_open(&reference, &layer);
    input in = input_create(77, ROWS);
    const kvl_seq plain = test_seq(&c), loud = test_seq(&c);
    test_append(&c, plain, in.k, in.v, 0, ROWS);
    for (int i = 0; i < SINK * HEADS * DIM; ++i) in.k[i] = in.v[i] = 30000;
    test_append(&c, loud, in.k, in.v, 0, ROWS);
    const test_state a = test_snapshot(&c, plain), b = test_snapshot(&c, loud);
    cr_assert(a.codes == b.codes && a.meta == b.meta, "codes changed with the sink's rows");
    cr_assert(a.restored != b.restored, "the sink's rows did not change");
    input_free(&in);
    test_close(&c);
}

Test(windows, quantized_rows_never_change)
{
    // Broken by encoding again what was encoded: codes of the first chunks are the same ever after.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int i = 0; i < (n > 1 ? 2 : 1); ++i) {
        const kvl_layer_desc layer = small_layer(SMALL_SPEC);
        test_cache c = test_open(&targets[i], &layer);
        input in = input_create(31, ROWS);
        const kvl_seq seq = test_seq(&c);
        test_codes before = { 0, 0, { 0, NULL, NULL, NULL, 0, NULL } };
        for (int t = 0; t < ROWS; ++t) {
            test_append(&c, seq, in.k, in.v, t, 1);
            test_codes after = test_read_codes(&c, seq, 1, 0);
            cr_assert(after.num >= before.num, "quantized rows became fewer");
            if (before.num_codes)
                cr_assert(memcmp(before.c.codes, after.c.codes, (size_t)before.num_codes * 2) == 0,
                          "%s: codes changed when row %d was appended", targets[i].name, t);
            test_codes_free(&before);
            before = after;
        }
        test_codes_free(&before);
        input_free(&in);
        test_close(&c);
    }
}

Test(windows, parts_of_codes_equal_the_whole)
{
    // Broken by an offset within a page: reads that start and end anywhere, over several pages.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int i = 0; i < n; ++i) {
        const kvl_layer_desc layer = small_layer(SMALL_SPEC);
        test_cache c = test_open(&targets[i], &layer);
        input in = input_create(32, ROWS);
        const kvl_seq seq = test_seq(&c);
        test_append(&c, seq, in.k, in.v, 0, ROWS);
        test_codes all = test_read_codes(&c, seq, 1, 0);
        for (int64_t first = 0; first < all.num; first += CHUNK) {
            uint16_t codes[CHUNK * DIM];
            float scales[DIM], offsets[DIM];
            kvl_codes part = { 0, codes, scales, offsets, 0, NULL };
            test_ok(c.ctx, kvl_read_codes(c.cache, 0, seq, 1, 0, first, CHUNK, &part), "a part");
            cr_assert(part.num_groups == DIM, "%d groups in a part", part.num_groups);
            cr_assert(memcmp(codes, all.c.codes + first * DIM, sizeof codes) == 0,
                      "codes of rows %lld on differ", (long long)first);
            cr_assert(memcmp(scales, all.c.scales + first / CHUNK * DIM, sizeof scales) == 0 &&
                      memcmp(offsets, all.c.offsets + first / CHUNK * DIM, sizeof offsets) == 0,
                      "metadata of rows %lld on differs", (long long)first);
        }
        test_codes_free(&all);
        input_free(&in);
        test_close(&c);
    }
}

Test(windows, a_cut_group_has_all_its_scales)
{
    // Broken by a count of groups that follows from the rows left: 18 of 32 have a scale of every
    // channel, and it is the one that the whole group had.
    enum { WIDE = 64, G = 32, LEFT = 18 };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    float k[2 * G * WIDE];
    test_rows(51, 2 * G, 1, WIDE, k);
    for (int t = 0; t < n; ++t) {
        const kvl_layer_desc layer = test_layer("kivi:k2,v2,g32,sink=0,recent=0", 2, 1, WIDE, WIDE);
        test_cache c = test_open(&targets[t], &layer);
        const kvl_seq seq = test_seq(&c);
        test_append(&c, seq, k, k, 0, 2 * G);
        for (int side = 0; side < 2; ++side) {
            float grids[2][2][G * WIDE / G * 2];
            int num[2];
            for (int cut = 0; cut < 2; ++cut) {
                kvl_codes part = { 0, NULL, grids[cut][0], grids[cut][1], 0, NULL };
                for (size_t i = 0; i < sizeof grids[0][0] / sizeof(float); ++i)
                    grids[cut][0][i] = grids[cut][1][i] = NAN;
                if (cut) test_ok(c.ctx, kvl_truncate(c.cache, seq, G + LEFT), "truncate");
                test_ok(c.ctx, kvl_read_codes(c.cache, 0, seq, 0, side, G, cut ? LEFT : G, &part),
                        "kvl_read_codes");
                num[cut] = part.num_groups;
                for (int i = 0; i < num[cut]; ++i)
                    cr_assert(grids[cut][0][i] == grids[0][0][i] &&
                              grids[cut][1][i] == grids[0][1][i], "%s: side %d, group %d of %d: "
                              "%g and %g", targets[t].name, side, i, num[cut],
                              (double)grids[cut][0][i], (double)grids[cut][1][i]);
            }
            if (side == 0) test_append(&c, seq, k, k, G + LEFT, G - LEFT);
            cr_assert_eq(num[1], side ? LEFT * WIDE / G : WIDE, "side %d", side);
        }
        test_close(&c);
    }
}
