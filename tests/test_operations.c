// test_operations.c -- fork, truncate, drop, release, append with attend, merge: each against a
// cache that came to the same rows the plain way, or against the documented rule by hand.
//
// On the stand-in for a device (KVLOOM_TEST_TARGET=cuda) fewer lengths and specs are gone through,
// unless KVLOOM_TEST_ALL=1 asks for all of them.

#include "test_support.h"

#define SMALL_SPEC "kivi:k2,v2,kg16,vg16,sink=4,recent=24,chunk=16"

enum { Q_HEADS = 6, HEADS = 2, DIM = 64, ROW = HEADS * DIM, SINK = 4, RECENT = 24, CHUNK = 16 };

typedef struct input {
    float *k, *v, *q;
} input;

static input input_create(uint64_t seed, int rows)
{
    input in;
    in.k = test_floats((int64_t)rows * ROW);
    in.v = test_floats((int64_t)rows * ROW);
    in.q = test_floats((int64_t)rows * Q_HEADS * DIM);
    test_rows(seed, rows, HEADS, DIM, in.k);
    test_rows(seed + 1, rows, HEADS, DIM, in.v);
    test_queries(seed + 2, rows, Q_HEADS, DIM, in.q);
    return in;
}

static void input_free(input* in)
{
    free(in->k);
    free(in->v);
    free(in->q);
}

// The rows of `a` up to `cut`, those of `b` from there on.
static input input_join(const input* a, const input* b, int cut, int rows)
{
    input in = input_create(1, rows);
    memcpy(in.k, a->k, (size_t)(cut * ROW) * sizeof(float));
    memcpy(in.v, a->v, (size_t)(cut * ROW) * sizeof(float));
    memcpy(in.k + cut * ROW, b->k + cut * ROW, (size_t)((rows - cut) * ROW) * sizeof(float));
    memcpy(in.v + cut * ROW, b->v + cut * ROW, (size_t)((rows - cut) * ROW) * sizeof(float));
    memcpy(in.q, a->q, (size_t)(Q_HEADS * DIM) * sizeof(float));
    return in;
}

// n, but on the stand-in, which executes each instruction, `few`.
static int unless_simulated(int n, int few)
{
    const char *target = getenv("KVLOOM_TEST_TARGET"), *gpu = getenv("KVLOOM_TEST_GPU");
    const char* all = getenv("KVLOOM_TEST_ALL");
    if ((gpu && strcmp(gpu, "1") == 0) || (all && strcmp(all, "1") == 0)) return n;
    return target && strcmp(target, "cuda") == 0 ? few : n;
}

typedef struct setup {
    const char* spec;
    int         keep_len, window_len, release_windows;
} setup;

static test_cache open_with(const test_target* target, const setup* s, const kvl_allocator* memory)
{
    kvl_context_desc cd = { 0 };
    kvl_cache_desc desc = { 0 };
    test_cache c;
    memset(&c, 0, sizeof c);
    c.layer = test_layer(s->spec, Q_HEADS, HEADS, DIM, DIM);
    c.layer.window_len = s->window_len;
    c.dv = DIM;
    cd.target = target->target;
    cd.isa = target->isa;
    cd.exact = 1;                // results are compared with float64 within float32's bounds
    if (memory) cd.allocator = *memory;
    desc.num_layers = 1;
    desc.layers = &c.layer;
    desc.calibration = test_calibration(TEST_TABLES);
    desc.keep_len = s->keep_len;
    desc.release_windows = s->release_windows;
    const kvl_status status = kvl_context_create(&cd, &c.ctx);
    test_ok(c.ctx, status, target->name);
    test_ok(c.ctx, kvl_cache_create(c.ctx, &desc, &c.cache), s->spec);
    test_ok(c.ctx, kvl_cache_layer_info(c.cache, 0, &c.info), s->spec);
    return c;
}

static test_cache open_plain(const test_target* target, const char* spec)
{
    const setup s = { spec, 0, 0, 0 };
    return open_with(target, &s, NULL);
}

// State and attention of a sequence, as in test_windows.c.
typedef struct outcome {
    test_state state;
    float      o[Q_HEADS * DIM], lse[Q_HEADS];
} outcome;

static outcome outcome_of(test_cache* c, kvl_seq seq, const input* in)
{
    outcome out;
    memset(&out, 0, sizeof out);
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

static kvl_seq_rows rows_of(test_cache* c, kvl_seq seq)
{
    kvl_seq_rows rows = { 0 };
    test_ok(c->ctx, kvl_seq_get_rows(c->cache, 0, seq, &rows), "kvl_seq_get_rows");
    return rows;
}

static uint64_t bytes_of(test_cache* c)
{
    kvl_stats stats;
    test_ok(c->ctx, kvl_cache_stats(c->cache, &stats), "kvl_cache_stats");
    return stats.bytes;
}

static void refused(test_cache* c, kvl_status got, kvl_status expected, const char* words)
{
    cr_assert(got == expected, "%s: %s, expected %s", words, kvl_status_text(got),
              kvl_status_text(expected));
    cr_assert(strstr(kvl_context_message(c->ctx), words), "'%s' is not in: %s", words,
              kvl_context_message(c->ctx));
}

// A sequence of its own that got the rows in one call.
static outcome plain_outcome(test_cache* c, const input* in, int rows)
{
    const kvl_seq seq = test_seq(c);
    test_append(c, seq, in->k, in->v, 0, rows);
    const outcome out = outcome_of(c, seq, in);
    test_ok(c->ctx, kvl_seq_free(c->cache, seq), "kvl_seq_free");
    return out;
}

static int due(int rows)
{
    const int old = rows - SINK - RECENT;
    return old > 0 ? old / CHUNK * CHUNK : 0;
}

// TRUNCATE

// What the manual says of a cut of `n` rows at `t` without keep_len: rows that stay quantized.
static int stays(int n, int t)
{
    const int aged = t > SINK ? t - SINK : 0;
    return due(n) <= aged ? due(n) : aged;
}

// Rows of a truncated sequence: codes and windows as before, but when rows have followed for what
// is left of the group that was cut.
static void check_cut_rows(test_cache* c, kvl_seq seq, const float* k, const float* v, int n, int t,
                           int followed)
{
    const int first = SINK + stays(n, t) / CHUNK * CHUNK;
    const int end = followed && t < SINK + due(n) ? t : first;
    float* got_k = test_floats((int64_t)t * ROW);
    float* got_v = test_floats((int64_t)t * ROW);
    test_restore(c, seq, 0, t, got_k, got_v);
    for (int i = 0; i < t * ROW; ++i) {
        const int cut = i / ROW >= first && i / ROW < end;
        const float expected_k = cut ? test_round_f16(k[i]) : k[i];
        const float expected_v = cut ? test_round_f16(v[i]) : v[i];
        cr_assert(got_k[i] == expected_k && got_v[i] == expected_v,
                  "%d rows cut to %d: row %d is %g, %g, expected %g, %g", n, t, i / ROW,
                  (double)got_k[i], (double)got_v[i], (double)expected_k, (double)expected_v);
    }
    free(got_k);
    free(got_v);
}

static void check_cut(test_cache* c, const input* a, const input* b, int t, int keep_len)
{
    enum { N = 100, MORE = 30 };
    char what[512];
    int exact = -1;
    const kvl_seq source = test_seq(c);
    snprintf(what, sizeof what, "%s, keep_len %d, cut at %d", c->info.spec, keep_len, t);
    test_append(c, source, a->k, a->v, 0, N);
    const outcome before = outcome_of(c, source, a);
    float* k = test_floats(N * ROW);
    float* v = test_floats(N * ROW);
    test_restore(c, source, 0, N, k, v);
    kvl_seq seq = 0;
    test_ok(c->ctx, kvl_seq_fork(c->cache, source, &seq), what);
    test_ok(c->ctx, kvl_truncate_check(c->cache, seq, t, &exact), what);
    const outcome untouched = outcome_of(c, seq, a);
    same_outcome(&before, &untouched, what);
    test_ok(c->ctx, kvl_truncate(c->cache, seq, t), what);
    const int expected = keep_len >= N || t <= SINK || due(t) == due(N);
    cr_assert(exact == expected, "%s: exact = %d", what, exact);
    const kvl_seq_rows rows = rows_of(c, seq);
    cr_assert(rows.rows == t && rows.quantized == (exact ? due(t) : stays(N, t)),
              "%s: %lld rows, %lld quantized", what, (long long)rows.rows,
              (long long)rows.quantized);
    if (exact) {
        const outcome plain = plain_outcome(c, a, t), got = outcome_of(c, seq, a);
        same_outcome(&plain, &got, what);
    } else {
        check_cut_rows(c, seq, k, v, N, t, 0);
        kvl_seq fork;
        test_ok(c->ctx, kvl_seq_fork(c->cache, seq, &fork), what);
        test_append(c, fork, b->k, b->v, t, 1);
        check_cut_rows(c, fork, k, v, N, t, 1);
        cr_assert(rows_of(c, fork).quantized == stays(N, t) / CHUNK * CHUNK);
        test_ok(c->ctx, kvl_seq_free(c->cache, fork), what);
        check_cut_rows(c, seq, k, v, N, t, 0);
    }
    input in = input_join(a, b, t, t + MORE);
    test_append(c, seq, in.k, in.v, t, MORE);
    test_ok(c->ctx, kvl_truncate_check(c->cache, seq, t + MORE, &exact), what);
    if (exact) {
        const outcome plain = plain_outcome(c, &in, t + MORE), got = outcome_of(c, seq, &in);
        same_outcome(&plain, &got, what);
    } else {
        cr_assert(!expected, "%s: was exact before more rows came", what);
        test_attend_check(c, seq, a->q, 1, NULL, what);
    }
    const outcome after = outcome_of(c, source, a);
    same_outcome(&before, &after, what);
    test_ok(c->ctx, kvl_seq_free(c->cache, source), what);
    test_ok(c->ctx, kvl_seq_free(c->cache, seq), what);
    free(k);
    free(v);
    input_free(&in);
}

Test(operations, every_cut_equals_a_fresh_cache_or_is_said_to_differ)
{
    // Broken by a truncation of one of the two stores, or by one that changes its fork's pages.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    input a = input_create(100, 160), b = input_create(200, 160);
    for (int i = 0; i < n; ++i) {
        for (int keep_len = 0; keep_len <= 100; keep_len += 100) {
            const setup s = { SMALL_SPEC, keep_len, 0, 0 };
            test_cache c = open_with(&targets[i], &s, NULL);
            const int step = unless_simulated(i < 2 ? 1 : 7, 29);
            for (int t = 0; t <= 100; t += step) check_cut(&c, &a, &b, t, keep_len);
            test_close(&c);
        }
    }
    input_free(&a);
    input_free(&b);
}

// Rows that were quantized are cut, others take their places and are encoded: nothing of the old
// codes may be left in the page.  At `t` no group along tokens is cut.
static void check_places_taken(test_cache* c, const input* a, const input* b, int n, int t)
{
    char what[512];
    int exact = 0;
    input in = input_join(a, b, t, n);
    const kvl_seq seq = test_seq(c);
    snprintf(what, sizeof what, "%s, %d rows cut at %d", c->info.spec, n, t);
    test_append(c, seq, a->k, a->v, 0, n);
    test_ok(c->ctx, kvl_truncate(c->cache, seq, t), what);
    test_append(c, seq, in.k, in.v, t, n - t);
    test_ok(c->ctx, kvl_truncate_check(c->cache, seq, n, &exact), what);
    cr_assert(exact, "%s: all due rows are quantized, and not exact", what);
    const outcome plain = plain_outcome(c, &in, n), got = outcome_of(c, seq, &in);
    same_outcome(&plain, &got, what);
    test_ok(c->ctx, kvl_seq_free(c->cache, seq), what);
    input_free(&in);
}

Test(operations, rows_take_the_place_of_cut_ones)
{
    // Broken by codes that join the bits of rows that were cut: each width, axis, scale and target.
    static const struct { const char* spec; int sink, step; } cases[] = {
        { "f16:sink=1,recent=0", 1, 1 },         { "bf16:sink=0,recent=3", 0, 1 },
        { "q8_0:sink=2,recent=0", 2, 1 },        { "q4_0:sink=0,recent=1", 0, 1 },
        { "rtn:b1,g32,recent=2,sink=0", 0, 1 },  { "rtn:b2,g64,recent=0,sink=3", 3, 1 },
        { "rtn:b3,g32,recent=0,sink=0", 0, 1 },  { "rtn:b5,g16,recent=0,sink=0", 0, 1 },
        { "rtn:b6,g32,recent=0,sink=0", 0, 1 },  { "rtn:b8,g32,recent=0,sink=0", 0, 1 },
        { "rtn:b4,g32,meta=f16,transform=hadamard,recent=0,sink=0", 0, 1 },
        { "kivi:k2,v2,g32,sink=4,recent=8", 4, 32 },
        { "kivi:k3,v5,g16,sink=0,recent=0", 0, 16 },
        { "rtn:b4,g16,k.axis=per_channel,v.axis=per_channel,sink=1,recent=0", 1, 16 },
        { "flagrot-kivi:sink=4,recent=8", 4, 32 }, { "flagrot-auto:sink=1,recent=0", 1, 1 },
        { "loom:sink=2,recent=0", 2, 32 },
    };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    input a = input_create(300, 150), b = input_create(400, 150);
    for (int i = 0; i < n; ++i) {
        for (size_t j = 0; j < sizeof cases / sizeof *cases; j += (size_t)unless_simulated(1, 5)) {
            test_cache c = open_plain(&targets[i], cases[j].spec);
            const int step = cases[j].step == 1 ? unless_simulated(7, 63) : cases[j].step;
            for (int t = cases[j].sink; t < 130; t += step)
                check_places_taken(&c, &a, &b, 150, t);
            test_close(&c);
        }
    }
    input_free(&a);
    input_free(&b);
}

Test(operations, keep_len_takes_drafts_back_exactly)
{
    // Broken by a history that is shorter than said, that a fork lacks or a second cut empties:
    // drafts of random length, of which a random part is rejected.
    const setup s = { SMALL_SPEC, 8, 0, 0 };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    input a = input_create(500, 400), b = input_create(600, 400);
    for (int i = 0; i < n; ++i) {
        test_cache c = open_with(&targets[i], &s, NULL);
        test_lcg lcg = { 77 };
        kvl_seq seq = test_seq(&c), fork = 0;
        int len = 0, exact = 0;
        while (len < unless_simulated(300, 60)) {
            const int taken = test_uniform(&lcg, 9), wrong = test_uniform(&lcg, 9 - taken);
            test_append(&c, seq, a.k, a.v, len, taken);
            len += taken;
            test_append(&c, seq, b.k, b.v, len, wrong);
            if (test_uniform(&lcg, 4) == 0) {
                test_ok(c.ctx, kvl_seq_fork(c.cache, seq, &fork), "kvl_seq_fork");
                test_ok(c.ctx, kvl_seq_free(c.cache, seq), "kvl_seq_free");
                seq = fork;
            }
            test_ok(c.ctx, kvl_truncate_check(c.cache, seq, len, &exact), "kvl_truncate_check");
            cr_assert(exact, "%d of %d rows cannot be taken back", wrong, len + wrong);
            test_ok(c.ctx, kvl_truncate(c.cache, seq, len), "kvl_truncate");
        }
        const outcome plain = plain_outcome(&c, &a, len), got = outcome_of(&c, seq, &a);
        same_outcome(&plain, &got, targets[i].name);
        test_close(&c);
    }
    input_free(&a);
    input_free(&b);
}

// FORK

Test(operations, forks_share_pages_and_do_not_disturb_each_other)
{
    // Broken by an append into a page that a fork still reads, or a page freed under it.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    input a = input_create(700, 200), b = input_create(800, 200);
    for (int i = 0; i < n; ++i) {
        test_cache c = open_plain(&targets[i], SMALL_SPEC);
        const uint64_t empty = bytes_of(&c);
        for (int len = 0; len <= 130; len += unless_simulated(i < 2 ? 1 : 9, 43)) {
            const kvl_seq seq = test_seq(&c);
            kvl_seq fork = 0;
            kvl_stats stats;
            test_append(&c, seq, a.k, a.v, 0, len);
            test_ok(c.ctx, kvl_cache_stats(c.cache, &stats), "kvl_cache_stats");
            const uint64_t pages = stats.page_bytes;
            test_ok(c.ctx, kvl_seq_fork(c.cache, seq, &fork), "kvl_seq_fork");
            test_ok(c.ctx, kvl_cache_stats(c.cache, &stats), "kvl_cache_stats");
            cr_assert(stats.page_bytes == pages && stats.saved_bytes == pages,
                      "%d rows: a fork has %llu bytes of pages more", len,
                      (unsigned long long)(stats.page_bytes - pages));
            input in = input_join(&a, &b, len, len + 40);
            test_append(&c, fork, in.k, in.v, len, 40);
            test_append(&c, seq, a.k, a.v, len, 50);
            const outcome plain = plain_outcome(&c, &a, len + 50), got = outcome_of(&c, seq, &a);
            same_outcome(&plain, &got, "the sequence that was forked");
            if (len % 2) test_ok(c.ctx, kvl_seq_free(c.cache, seq), "kvl_seq_free");
            const outcome other = plain_outcome(&c, &in, len + 40), fork_got = outcome_of(&c, fork,
                                                                                         &in);
            same_outcome(&other, &fork_got, "the fork");
            if (len % 2 == 0) test_ok(c.ctx, kvl_seq_free(c.cache, seq), "kvl_seq_free");
            test_ok(c.ctx, kvl_seq_free(c.cache, fork), "kvl_seq_free");
            cr_assert(bytes_of(&c) == empty, "%d rows: bytes are left behind", len);
            input_free(&in);
        }
        test_close(&c);
    }
    input_free(&a);
    input_free(&b);
}

// DROP AND RELEASE

// Attention in float64 over the rows that are left; `dropped` are hidden behind the sink.
static void check_dropped(test_cache* c, kvl_seq seq, const input* in, const char* what)
{
    const kvl_seq_rows rows = rows_of(c, seq);
    const int64_t left = rows.rows - rows.dropped, behind = rows.sink + rows.dropped;
    float* k = test_floats(left * ROW);
    float* v = test_floats(left * ROW);
    float o[Q_HEADS * DIM], lse[Q_HEADS];
    const int64_t last = left - 1;
    test_attention a;
    memset(&a, 0, sizeof a);
    test_restore(c, seq, 0, rows.sink, k, v);
    test_restore(c, seq, behind, rows.rows - behind, k + rows.sink * ROW, v + rows.sink * ROW);
    test_attend(c, seq, in->q, 1, NULL, o, lse);
    a.q = in->q;
    a.k = k;
    a.v = v;
    a.positions = &last;
    a.num_q = 1;
    a.q_heads = Q_HEADS;
    a.kv_heads = HEADS;
    a.dk = a.dv = DIM;
    a.kv_len = left;
    test_attention_run(&a);
    test_attention_check(&a, o, lse, what);
    test_attention_free(&a);
    free(k);
    free(v);
}

Test(operations, dropped_rows_are_not_seen_and_their_pages_are_freed)
{
    // Broken by a mask that is off by one, a page freed too early or never, or positions that move.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    input in = input_create(900, 700);
    for (int i = 0; i < n; ++i) {
        test_cache c = open_plain(&targets[i], SMALL_SPEC);
        const kvl_seq seq = test_seq(&c);
        uint64_t most = 0;
        for (int t = 0; t < 600; ++t) {
            test_append(&c, seq, in.k, in.v, t, 1);
            if (t >= 90) test_ok(c.ctx, kvl_drop_oldest(c.cache, seq, 1), "kvl_drop_oldest");
            if (t == 150) most = bytes_of(&c);
            if (t > 150) cr_assert(bytes_of(&c) <= most + 10000,
                                   "%d rows take %llu bytes", t, (unsigned long long)bytes_of(&c));
            if (t % unless_simulated(10, 150) == 3 || t < unless_simulated(12, 2))
                check_dropped(&c, seq, &in, targets[i].name);
        }
        const kvl_seq_rows rows = rows_of(&c, seq);
        cr_assert(rows.rows == 600 && rows.dropped == 510 &&
                  rows.rows == rows.sink + rows.quantized + rows.tail, "%lld rows, %lld dropped",
                  (long long)rows.rows, (long long)rows.dropped);
        const kvl_seq plain = test_seq(&c);
        test_append(&c, plain, in.k, in.v, 0, 600);
        test_ok(c.ctx, kvl_drop_oldest(c.cache, plain, 510), "kvl_drop_oldest");
        float a[2][Q_HEADS * DIM];
        test_attend(&c, seq, in.q, 1, NULL, a[0], NULL);
        test_attend(&c, plain, in.q, 1, NULL, a[1], NULL);
        cr_assert(memcmp(a[0], a[1], sizeof a[0]) == 0, "drops by one and at once differ");
        // All of it goes, tail included, and rows follow.
        test_ok(c.ctx, kvl_drop_oldest(c.cache, plain, 600 - SINK - 510), "kvl_drop_oldest");
        check_dropped(&c, plain, &in, "only the sink is left");
        test_append(&c, plain, in.k, in.v, 600, 90);
        check_dropped(&c, plain, &in, "rows after all was dropped");
        test_close(&c);
    }
    input_free(&in);
}

Test(operations, drops_and_cuts_refuse_what_is_gone)
{
    // Broken by a truncation that brings dropped rows back, or a read of a page that is gone.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    test_cache c = open_plain(&reference, SMALL_SPEC);
    input in = input_create(1000, 200);
    const kvl_seq seq = test_seq(&c);
    int exact;
    float k[ROW];
    kvl_rows out = { k, KVL_F32, 0, 0 };
    kvl_codes codes = { 0 };
    test_append(&c, seq, in.k, in.v, 0, 150);
    refused(&c, kvl_drop_oldest(c.cache, seq, 147), KVL_BAD_ARGUMENT, "num_rows = 147");
    refused(&c, kvl_drop_oldest(c.cache, seq, -1), KVL_BAD_ARGUMENT, "num_rows = -1");
    refused(&c, kvl_truncate(c.cache, seq, 151), KVL_BAD_ARGUMENT, "num_rows = 151");
    refused(&c, kvl_truncate(c.cache, seq, -1), KVL_BAD_ARGUMENT, "num_rows = -1");
    test_ok(c.ctx, kvl_drop_oldest(c.cache, seq, 70), "kvl_drop_oldest");
    refused(&c, kvl_truncate(c.cache, seq, 73), KVL_UNSUPPORTED, "0 to 4 and 74 to 150");
    refused(&c, kvl_truncate_check(c.cache, seq, 5, &exact), KVL_UNSUPPORTED, "0 to 4");
    refused(&c, kvl_restore(c.cache, 0, seq, 73, 1, &out, NULL), KVL_BAD_ARGUMENT, "dropped");
    refused(&c, kvl_restore(c.cache, 0, seq, 3, 80, &out, NULL), KVL_BAD_ARGUMENT, "dropped");
    refused(&c, kvl_read_codes(c.cache, 0, seq, 0, 0, 64, 16, &codes), KVL_BAD_ARGUMENT, "dropped");
    test_ok(c.ctx, kvl_restore(c.cache, 0, seq, 74, 1, &out, NULL), "the first row that is left");
    test_ok(c.ctx, kvl_restore(c.cache, 0, seq, 3, 1, &out, NULL), "a row of the sink");
    check_dropped(&c, seq, &in, "after refusals");
    test_ok(c.ctx, kvl_truncate(c.cache, seq, 80), "a cut behind the dropped rows");
    check_dropped(&c, seq, &in, "a cut behind the dropped rows");
    test_append(&c, seq, in.k, in.v, 80, 100);
    check_dropped(&c, seq, &in, "rows after that");
    test_ok(c.ctx, kvl_truncate_check(c.cache, seq, 4, &exact), "back to the sink");
    cr_assert(exact, "nothing but the sink is left, and not exact");
    test_ok(c.ctx, kvl_truncate(c.cache, seq, 4), "back to the sink");
    test_append(&c, seq, in.k, in.v, 4, 140);
    const outcome plain = plain_outcome(&c, &in, 144), got = outcome_of(&c, seq, &in);
    same_outcome(&plain, &got, "rows after a cut to the sink");
    input_free(&in);
    test_close(&c);
}

Test(operations, windows_release_what_no_query_sees)
{
    // Broken by a release that a result depends on, or that frees nothing.
    const setup kept = { SMALL_SPEC, 12, 100, 0 }, released = { SMALL_SPEC, 12, 100, 1 };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    input in = input_create(1100, 600);
    for (int i = 0; i < n; ++i) {
        test_cache a = open_with(&targets[i], &kept, NULL);
        test_cache b = open_with(&targets[i], &released, NULL);
        const kvl_seq sa = test_seq(&a), sb = test_seq(&b);
        float oa[Q_HEADS * DIM], ob[Q_HEADS * DIM];
        kvl_stats stats;
        int len = 0, exact = 0;
        while (len < 560) {
            test_append(&a, sa, in.k, in.v, len, 13);
            test_append(&b, sb, in.k, in.v, len, 13);
            len += unless_simulated(1, 7);                 // the other rows are cut
            test_ok(b.ctx, kvl_truncate_check(b.cache, sb, len, &exact), "kvl_truncate_check");
            cr_assert(exact, "rows cannot be taken back at %d", len);
            test_ok(a.ctx, kvl_truncate(a.cache, sa, len), "kvl_truncate");
            test_ok(b.ctx, kvl_truncate(b.cache, sb, len), "kvl_truncate");
            test_attend(&a, sa, in.q, 1, NULL, oa, NULL);
            test_attend(&b, sb, in.q, 1, NULL, ob, NULL);
            cr_assert(memcmp(oa, ob, sizeof oa) == 0, "outputs differ at %d rows", len);
        }
        test_ok(b.ctx, kvl_cache_stats(b.cache, &stats), "kvl_cache_stats");
        cr_assert(stats.num_rows < 4 + 64 + 112 + CHUNK + RECENT, "%lld rows are held",
                  (long long)stats.num_rows);
        kvl_attend_desc past = { 0 };
        const int64_t position = 200;
        past.num_seqs = 1;
        past.seqs = &sb;
        past.q_positions = &position;
        past.q.data = in.q;
        past.o.data = ob;
        refused(&b, kvl_attend(b.cache, &past), KVL_BAD_ARGUMENT, "position 200");
        test_close(&a);
        test_close(&b);
    }
    input_free(&in);
}

// APPEND AND ATTEND

static void check_steps(const test_target* target, const setup* s)
{
    enum { SEQS = 3, MOST = 90 };
    static const int32_t starts[SEQS] = { 0, 61, 130 };
    const int32_t lens[SEQS] = { MOST, 1, 37 };
    test_cache c[2];
    kvl_seq seqs[2][SEQS];
    const int total = MOST + 1 + 37;
    input in = input_create(1200, 300);
    float* o[2] = { test_floats(total * Q_HEADS * DIM), test_floats(total * Q_HEADS * DIM) };
    float* lse[2] = { test_floats(total * Q_HEADS), test_floats(total * Q_HEADS) };
    for (int i = 0; i < 2; ++i) {
        c[i] = open_with(target, s, NULL);
        for (int j = 0; j < SEQS; ++j) {
            seqs[i][j] = test_seq(&c[i]);
            test_append(&c[i], seqs[i][j], in.k, in.v, 0, starts[j]);
        }
    }
    kvl_append_desc a = { 0 };
    kvl_attend_desc t = { 0 };
    a.num_seqs = t.num_seqs = SEQS;
    a.seqs = t.seqs = seqs[0];
    a.num_rows = t.q_lens = lens;
    a.k.data = in.k + 100 * ROW;
    a.v.data = in.v + 100 * ROW;
    t.q.data = in.q;
    t.o.data = o[0];
    t.lse = lse[0];
    test_ok(c[0].ctx, kvl_append_attend(c[0].cache, &a, &t), "kvl_append_attend");
    for (int j = 0, at = 0; j < SEQS; at += lens[j++])
        for (int r = at; r < at + lens[j]; ++r) {
            test_append(&c[1], seqs[1][j], in.k + 100 * ROW, in.v + 100 * ROW, r, 1);
            test_attend(&c[1], seqs[1][j], in.q + r * Q_HEADS * DIM, 1, NULL,
                        o[1] + r * Q_HEADS * DIM, lse[1] + r * Q_HEADS);
        }
    cr_assert(memcmp(o[0], o[1], (size_t)(total * Q_HEADS * DIM) * 4) == 0, "%s on %s: o", s->spec,
              target->name);
    cr_assert(memcmp(lse[0], lse[1], (size_t)(total * Q_HEADS) * 4) == 0, "%s on %s: lse", s->spec,
              target->name);
    for (int j = 0; j < SEQS && !s->release_windows; ++j) {
        const outcome x = outcome_of(&c[0], seqs[0][j], &in), y = outcome_of(&c[1], seqs[1][j],
                                                                             &in);
        same_outcome(&x, &y, s->spec);
    }
    cr_assert(bytes_of(&c[0]) == bytes_of(&c[1]), "%s: bytes differ", s->spec);
    for (int i = 0; i < 2; ++i) {
        free(o[i]);
        free(lse[i]);
        test_close(&c[i]);
    }
    input_free(&in);
}

Test(operations, append_attend_equals_row_by_row)
{
    // Broken by a query that sees rows younger than itself, or a chunk as it was not yet or no
    // longer: f16 encodes every row, kivi one in 16 or 32, the last ones with a window.
    static const setup setups[] = { { SMALL_SPEC, 0, 0, 0 }, { "f16", 0, 0, 0 },
        { "rtn:b4,recent=9,sink=3", 0, 0, 0 }, { "kivi:k2,v4,g32,sink=4,recent=8", 5, 0, 0 },
        { SMALL_SPEC, 0, 40, 0 }, { SMALL_SPEC, 3, 40, 1 },
        { "flagrot-kivi:sink=4,recent=8", 5, 0, 0 }, { "flagrot-auto:sink=1,recent=9", 0, 0, 0 },
        { "loom:sink=2,recent=8", 0, 0, 0 } };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int i = 0; i < n; ++i)
        for (size_t j = 0; j < sizeof setups / sizeof *setups; j += (size_t)unless_simulated(1, 5))
            check_steps(&targets[i], &setups[j]);
}

Test(operations, append_attend_refuses_descs_that_do_not_match)
{
    // Broken by an append that has happened when the attend is refused.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    test_cache c = open_plain(&reference, SMALL_SPEC);
    input in = input_create(1300, 50);
    float o[8 * Q_HEADS * DIM];
    kvl_seq seqs[2] = { test_seq(&c), test_seq(&c) }, swapped[2] = { seqs[1], seqs[0] };
    const int32_t lens[2] = { 3, 2 }, others[2] = { 2, 3 };
    const int64_t positions[2] = { 0, 0 };
    kvl_append_desc a = { 0 };
    kvl_attend_desc good = { 0 };
    a.num_seqs = good.num_seqs = 2;
    a.seqs = good.seqs = seqs;
    a.num_rows = good.q_lens = lens;
    a.k.data = in.k;
    a.v.data = in.v;
    good.q.data = in.q;
    good.o.data = o;
    kvl_attend_desc t = good;
    t.num_seqs = 1;
    refused(&c, kvl_append_attend(c.cache, &a, &t), KVL_BAD_ARGUMENT, "num_seqs = 1");
    t = good;
    t.seqs = swapped;
    refused(&c, kvl_append_attend(c.cache, &a, &t), KVL_BAD_ARGUMENT, "seqs[0]");
    t = good;
    t.q_lens = others;
    refused(&c, kvl_append_attend(c.cache, &a, &t), KVL_BAD_ARGUMENT, "q_lens[0] = 2");
    t = good;
    t.q_positions = positions;
    refused(&c, kvl_append_attend(c.cache, &a, &t), KVL_BAD_ARGUMENT, "q_positions");
    t = good;
    t.o.data = NULL;
    refused(&c, kvl_append_attend(c.cache, &a, &t), KVL_BAD_ARGUMENT, "o.data");
    t = good;
    t.end = 1;
    refused(&c, kvl_append_attend(c.cache, &a, &t), KVL_BAD_ARGUMENT, "end = 1");
    in.k[3 * ROW] = INFINITY;
    refused(&c, kvl_append_attend(c.cache, &a, &good), KVL_BAD_ARGUMENT, "finite");
    in.k[3 * ROW] = 0;
    cr_assert(kvl_append_attend(c.cache, &a, NULL) == KVL_BAD_ARGUMENT);
    cr_assert(kvl_append_attend(c.cache, NULL, &good) == KVL_BAD_ARGUMENT);
    cr_assert(kvl_append_attend(NULL, &a, &good) == KVL_BAD_ARGUMENT);
    cr_assert(rows_of(&c, seqs[0]).rows == 0 && rows_of(&c, seqs[1]).rows == 0, "rows were added");
    test_ok(c.ctx, kvl_append_attend(c.cache, &a, &good), "what does match");
    cr_assert(rows_of(&c, seqs[0]).rows == 3 && rows_of(&c, seqs[1]).rows == 2);
    input_free(&in);
    test_close(&c);
}

// MERGE

Test(operations, merge_joins_parts_and_empty_parts_are_neutral)
{
    // Broken by a base-2 lse, a floor instead of minus infinity, or 0 times what is no number.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    test_cache c = open_plain(&reference, "f16");
    input in = input_create(1400, 200);
    const kvl_seq whole = test_seq(&c), left = test_seq(&c), right = test_seq(&c);
    float o[3][Q_HEADS * DIM], lse[3][Q_HEADS], got[Q_HEADS * DIM], got_lse[Q_HEADS];
    test_append(&c, whole, in.k, in.v, 0, 200);
    test_append(&c, left, in.k, in.v, 0, 73);
    test_append(&c, right, in.k, in.v, 73, 127);
    test_attend(&c, whole, in.q, 1, NULL, o[0], lse[0]);
    test_attend(&c, left, in.q, 1, NULL, o[1], lse[1]);
    test_attend(&c, right, in.q, 1, NULL, o[2], lse[2]);
    kvl_merge_desc d = { Q_HEADS, DIM, o[1], lse[1], o[2], lse[2], got, got_lse, NULL, 0, NULL, 0 };
    test_ok(c.ctx, kvl_merge(c.ctx, &d), "kvl_merge");
    for (int i = 0; i < Q_HEADS * DIM; ++i)
        cr_assert(fabsf(got[i] - o[0][i]) < 1e-4f, "o[%d] = %g, expected %g", i, (double)got[i],
                  (double)o[0][i]);
    for (int h = 0; h < Q_HEADS; ++h) cr_assert(fabsf(got_lse[h] - lse[0][h]) < 1e-4f);
    float nothing[Q_HEADS * DIM], none[Q_HEADS];
    for (int i = 0; i < Q_HEADS * DIM; ++i) nothing[i] = NAN;
    for (int h = 0; h < Q_HEADS; ++h) none[h] = -INFINITY;
    const kvl_merge_desc empty_b = { Q_HEADS, DIM, o[1], lse[1], nothing, none, got, got_lse,
                                     NULL, 0, NULL, 0 };
    test_ok(c.ctx, kvl_merge(c.ctx, &empty_b), "an empty second part");
    cr_assert(memcmp(got, o[1], sizeof got) == 0 && memcmp(got_lse, lse[1], sizeof none) == 0);
    const kvl_merge_desc empty_a = { Q_HEADS, DIM, nothing, none, o[2], lse[2], o[2], lse[2],
                                     NULL, 0, NULL, 0 };
    memcpy(got, o[2], sizeof got);
    test_ok(c.ctx, kvl_merge(c.ctx, &empty_a), "an empty first part, in place");
    cr_assert(memcmp(got, o[2], sizeof got) == 0);
    const kvl_merge_desc both = { Q_HEADS, DIM, nothing, none, nothing, none, got, got_lse,
                                     NULL, 0, NULL, 0 };
    test_ok(c.ctx, kvl_merge(c.ctx, &both), "two empty parts");
    for (int i = 0; i < Q_HEADS * DIM; ++i) cr_assert(got[i] == 0);
    for (int h = 0; h < Q_HEADS; ++h) cr_assert(got_lse[h] == -INFINITY);
    none[1] = NAN;
    refused(&c, kvl_merge(c.ctx, &both), KVL_BAD_ARGUMENT, "row 1");
    none[1] = INFINITY;
    refused(&c, kvl_merge(c.ctx, &both), KVL_BAD_ARGUMENT, "row 1");
    d.o = NULL;
    refused(&c, kvl_merge(c.ctx, &d), KVL_BAD_ARGUMENT, "must all be given");
    d.head_dim = 0;
    refused(&c, kvl_merge(c.ctx, &d), KVL_BAD_ARGUMENT, "head_dim = 0");
    d.num_rows = -1;
    refused(&c, kvl_merge(c.ctx, &d), KVL_BAD_ARGUMENT, "num_rows = -1");
    input_free(&in);
    test_close(&c);
}

// MEMORY AND HANDLES

// One operation on a sequence and its fork, whose pages are shared and partly filled.
static kvl_status operate(test_cache* c, int operation, kvl_seq seq, const input* in, float* o)
{
    kvl_append_desc a = { 0 };
    kvl_attend_desc t = { 0 };
    const int32_t len = 70;
    kvl_seq fork = 0;
    a.num_seqs = t.num_seqs = 1;
    a.seqs = t.seqs = &seq;
    a.num_rows = t.q_lens = &len;
    a.k.data = in->k;
    a.v.data = in->v;
    t.q.data = in->q;
    t.o.data = o;
    t.prefill = operation == 5;
    switch (operation) {
    case 0: return kvl_seq_fork(c->cache, seq, &fork);
    case 1: return kvl_truncate(c->cache, seq, 60);
    case 2: return kvl_drop_oldest(c->cache, seq, 70);
    case 3: return kvl_append(c->cache, &a);
    default: return kvl_append_attend(c->cache, &a, &t);
    }
}

Test(operations, each_failing_allocation_leaves_everything_as_it_was)
{
    // Broken by a change before the last allocation, or by memory that a failure leaves behind.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    const setup plain = { SMALL_SPEC, 0, 0, 0 }, windows = { SMALL_SPEC, 0, 100, 1 };
    input in = input_create(1500, 200);
    float* o = test_floats(70 * Q_HEADS * DIM);
    for (int operation = 0; operation < 6; ++operation) {
        test_memory m;
        test_memory_init(&m);
        const kvl_allocator memory = test_memory_allocator(&m);
        for (int fail = 1, done = 0; !done; ++fail) {
            // 170 rows: two pages, the second in part; 105 with a window: none is released yet.
            test_cache c = open_with(&reference, operation >= 4 ? &windows : &plain, &memory);
            const kvl_seq seq = test_seq(&c);
            kvl_seq fork = 0;
            test_append(&c, seq, in.k, in.v, 0, operation >= 4 ? 105 : 170);
            test_ok(c.ctx, kvl_seq_fork(c.cache, seq, &fork), "kvl_seq_fork");
            const outcome before = outcome_of(&c, seq, &in);
            const uint64_t bytes = bytes_of(&c), live = m.live;
            m.calls = 0;
            m.fail_at = fail;
            const kvl_status status = operate(&c, operation, seq, &in, o);
            m.fail_at = 0;
            const outcome other = outcome_of(&c, fork, &in);
            same_outcome(&before, &other, "the fork");
            done = status == KVL_OK;
            cr_assert(done || status == KVL_NO_MEMORY, "operation %d: %s", operation,
                      kvl_context_message(c.ctx));
            if (!done) {
                const outcome after = outcome_of(&c, seq, &in);
                same_outcome(&before, &after, "after a failure");
                cr_assert(bytes_of(&c) == bytes && m.live == live, "operation %d, allocation %d: "
                          "bytes changed", operation, fail);
                test_ok(c.ctx, operate(&c, operation, seq, &in, o), "once more");
            }
            cr_assert(fail > 1 || !done, "operation %d allocates nothing", operation);
            test_close(&c);
        }
        cr_assert(m.live == 0 && m.wrong_sizes == 0, "operation %d: %llu bytes left", operation,
                  (unsigned long long)m.live);
    }
    free(o);
    input_free(&in);
}

static void append_to(kvl_context* ctx, kvl_cache* cache, int layer, kvl_seq seq, const input* in,
                      int32_t num)
{
    kvl_append_desc a = { 0 };
    a.layer = layer;
    a.num_seqs = 1;
    a.seqs = &seq;
    a.num_rows = &num;
    a.k.data = in->k;
    a.v.data = in->v;
    test_ok(ctx, kvl_append(cache, &a), "kvl_append");
}

Test(operations, every_layer_takes_part_or_none)
{
    // Broken by a loop that ends at the first layer, or at one without a cache, or that has changed
    // some layers when another refuses.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    kvl_context* ctx = test_context(&reference, 1);
    kvl_layer_desc layers[4];
    kvl_cache_desc desc = { 0 };
    kvl_cache* cache;
    kvl_seq seq, fork;
    kvl_seq_rows rows[4];
    int exact;
    static const int32_t lens[4] = { 100, 0, 90, 100 };
    input in = input_create(1700, 100);
    for (int i = 0; i < 4; ++i) layers[i] = test_layer(SMALL_SPEC, Q_HEADS, HEADS, DIM, DIM);
    layers[1].num_kv_heads = 0;
    layers[2].spec = "q4_0:sink=0,recent=0";
    layers[3].spec = "f16";
    desc.num_layers = 4;
    desc.layers = layers;
    test_ok(ctx, kvl_cache_create(ctx, &desc, &cache), "kvl_cache_create");
    test_ok(ctx, kvl_seq_create(cache, &seq), "kvl_seq_create");
    for (int i = 0; i < 4; ++i)
        if (i != 1) append_to(ctx, cache, i, seq, &in, lens[i]);
    cr_assert(kvl_truncate(cache, seq, 95) == KVL_BAD_ARGUMENT, "layer 2 has 90 rows");
    cr_assert(strstr(kvl_context_message(ctx), "layer 2 has 90 rows"), "%s",
              kvl_context_message(ctx));
    cr_assert(kvl_drop_oldest(cache, seq, 95) == KVL_BAD_ARGUMENT, "layer 2 has 90 rows");
    test_ok(ctx, kvl_seq_fork(cache, seq, &fork), "kvl_seq_fork");
    test_ok(ctx, kvl_truncate_check(cache, seq, 85, &exact), "kvl_truncate_check");
    cr_assert(!exact, "layer 0 has encoded a chunk since it had 85 rows");
    test_ok(ctx, kvl_truncate_check(cache, fork, 4, &exact), "kvl_truncate_check");
    cr_assert(exact, "only the sink of layer 0 is left");
    test_ok(ctx, kvl_truncate(cache, seq, 85), "kvl_truncate");
    test_ok(ctx, kvl_drop_oldest(cache, seq, 10), "kvl_drop_oldest");
    for (int i = 0; i < 4; ++i) {
        if (i == 1) continue;
        test_ok(ctx, kvl_seq_get_rows(cache, i, seq, &rows[0]), "kvl_seq_get_rows");
        test_ok(ctx, kvl_seq_get_rows(cache, i, fork, &rows[1]), "kvl_seq_get_rows");
        cr_assert(rows[0].rows == 85 && rows[0].dropped == 10, "layer %d", i);
        cr_assert(rows[1].rows == lens[i] && rows[1].dropped == 0, "layer %d of the fork", i);
    }
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
    input_free(&in);
}

Test(operations, freed_handles_and_null_are_refused)
{
    // Broken by an operation that does not look at the handle's generation.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    test_cache c = open_plain(&reference, SMALL_SPEC);
    const kvl_seq seq = test_seq(&c);
    kvl_seq out = 1;
    int exact;
    test_ok(c.ctx, kvl_seq_free(c.cache, seq), "kvl_seq_free");
    refused(&c, kvl_seq_fork(c.cache, seq, &out), KVL_BAD_ARGUMENT, "seq = ");
    cr_assert(out == 0);
    refused(&c, kvl_truncate(c.cache, seq, 0), KVL_BAD_ARGUMENT, "seq = ");
    refused(&c, kvl_truncate_check(c.cache, seq, 0, &exact), KVL_BAD_ARGUMENT, "seq = ");
    refused(&c, kvl_drop_oldest(c.cache, seq, 0), KVL_BAD_ARGUMENT, "seq = ");
    const kvl_seq live = test_seq(&c);
    refused(&c, kvl_seq_fork(c.cache, live, NULL), KVL_BAD_ARGUMENT, "out = NULL");
    refused(&c, kvl_truncate_check(c.cache, live, 0, NULL), KVL_BAD_ARGUMENT, "exact = NULL");
    cr_assert(kvl_seq_fork(NULL, live, &out) == KVL_BAD_ARGUMENT);
    cr_assert(kvl_truncate(NULL, live, 0) == KVL_BAD_ARGUMENT);
    cr_assert(kvl_truncate_check(NULL, live, 0, &exact) == KVL_BAD_ARGUMENT);
    cr_assert(kvl_drop_oldest(NULL, live, 0) == KVL_BAD_ARGUMENT);
    cr_assert(kvl_merge(NULL, NULL) == KVL_BAD_ARGUMENT);
    test_close(&c);
}

Test(operations, descs_of_keep_and_release_are_checked_and_estimated)
{
    // Broken by windows whose history is not in the estimate, or pages that are released and in it.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    const setup setups[] = { { SMALL_SPEC, 0, 0, 0 }, { SMALL_SPEC, 21, 0, 0 },
                             { SMALL_SPEC, 7, 90, 1 } };
    input in = input_create(1600, 500);
    for (int i = 0; i < 3; ++i) {
        test_cache c = open_with(&reference, &setups[i], NULL);
        kvl_cache_desc desc = { 0 };
        uint64_t bytes = 0;
        desc.num_layers = 1;
        desc.layers = &c.layer;
        desc.keep_len = setups[i].keep_len;
        desc.release_windows = setups[i].release_windows;
        test_append(&c, test_seq(&c), in.k, in.v, 0, 500);
        test_ok(c.ctx, kvl_estimate(c.ctx, &desc, 1, 500, &bytes), "kvl_estimate");
        cr_assert(bytes == bytes_of(&c), "%llu bytes estimated, %llu held",
                  (unsigned long long)bytes, (unsigned long long)bytes_of(&c));
        desc.keep_len = -1;
        refused(&c, kvl_estimate(c.ctx, &desc, 1, 500, &bytes), KVL_BAD_ARGUMENT, "keep_len = -1");
        desc.keep_len = 0;
        desc.release_windows = 2;
        refused(&c, kvl_estimate(c.ctx, &desc, 1, 500, &bytes), KVL_BAD_ARGUMENT,
                "release_windows = 2");
        test_close(&c);
    }
    input_free(&in);
}

// COUNTS OF PAGES

static uint64_t estimate_of(test_cache* c, const setup* s, int num_seqs, int64_t num_rows)
{
    kvl_cache_desc desc = { 0 };
    uint64_t bytes = 0;
    desc.num_layers = 1;
    desc.layers = &c->layer;
    desc.keep_len = s->keep_len;
    desc.release_windows = s->release_windows;
    test_ok(c->ctx, kvl_estimate(c->ctx, &desc, num_seqs, num_rows, &bytes), s->spec);
    return bytes;
}

Test(operations, released_pages_leave_no_holes)
{
    // Broken by counts that stay where they are when most pages have gone: one call makes 261
    // pages, 7 are left, whose counts are the last of one list and the first of another.
    enum { N = 261 * 16, MORE = 40 };
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    const setup s = { "rtn:b4,g32,sink=0,recent=0,chunk=1,page=16", 0, 100, 1 };
    test_cache c = open_with(&reference, &s, NULL);
    input in = input_create(1700, N + MORE);
    const kvl_seq seq = test_seq(&c);
    const int32_t num = N;
    float* o = test_floats((int64_t)N * Q_HEADS * DIM);
    kvl_append_desc a = { 0 };
    kvl_attend_desc t = { 0 };
    a.num_seqs = t.num_seqs = 1;
    a.seqs = t.seqs = &seq;
    a.num_rows = t.q_lens = &num;
    a.k.data = in.k;
    a.v.data = in.v;
    t.q.data = in.q;
    t.o.data = o;
    test_ok(c.ctx, kvl_append_attend(c.cache, &a, &t), "kvl_append_attend");
    for (int rows = N; rows <= N + MORE; ++rows) {
        cr_assert(bytes_of(&c) == estimate_of(&c, &s, 1, rows), "%d rows: %llu bytes, estimated "
                  "%llu", rows, (unsigned long long)bytes_of(&c),
                  (unsigned long long)estimate_of(&c, &s, 1, rows));
        if (rows < N + MORE) test_append(&c, seq, in.k, in.v, rows, 1);
    }
    free(o);
    input_free(&in);
    test_close(&c);
}

Test(operations, freed_sequences_leave_no_holes)
{
    // Broken by tables, forks or prompts that still point at counts which have moved: of three
    // sequences of 201 pages the second goes, the others and a fork's own page stay.
    enum { N = 200 * 16 + 5 };
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    const setup s = { "rtn:b4,g32,sink=0,recent=0,chunk=1,page=16", 0, 0, 0 };
    test_cache c = open_with(&reference, &s, NULL);
    input in = input_create(1800, N + 1);
    const uint64_t empty = bytes_of(&c);
    kvl_seq seqs[3], fork;
    for (int i = 0; i < 3; ++i) {
        seqs[i] = test_seq(&c);
        test_append(&c, seqs[i], in.k, in.v, 0, N);
    }
    test_ok(c.ctx, kvl_seq_fork(c.cache, seqs[2], &fork), "kvl_seq_fork");
    test_append(&c, fork, in.k, in.v, N, 1);
    const outcome before = outcome_of(&c, seqs[2], &in), forked = outcome_of(&c, fork, &in);
    test_ok(c.ctx, kvl_seq_free(c.cache, seqs[1]), "kvl_seq_free");
    outcome after = outcome_of(&c, fork, &in);
    same_outcome(&forked, &after, "the fork");
    test_ok(c.ctx, kvl_seq_free(c.cache, fork), "kvl_seq_free");
    cr_assert(bytes_of(&c) == estimate_of(&c, &s, 2, N), "%llu bytes, estimated %llu",
              (unsigned long long)bytes_of(&c), (unsigned long long)estimate_of(&c, &s, 2, N));
    after = outcome_of(&c, seqs[2], &in);
    same_outcome(&before, &after, "the sequence that was forked");
    test_append(&c, seqs[0], in.k, in.v, N, 1);
    test_append(&c, seqs[2], in.k, in.v, N, 1);
    cr_assert(bytes_of(&c) == estimate_of(&c, &s, 2, N + 1), "a row more");
    after = outcome_of(&c, seqs[2], &in);
    same_outcome(&forked, &after, "a row more is the fork's");
    test_ok(c.ctx, kvl_truncate(c.cache, seqs[0], 0), "kvl_truncate");
    test_ok(c.ctx, kvl_seq_free(c.cache, seqs[2]), "kvl_seq_free");
    test_ok(c.ctx, kvl_seq_free(c.cache, seqs[0]), "kvl_seq_free");
    cr_assert(bytes_of(&c) == empty, "%llu bytes are left",
              (unsigned long long)(bytes_of(&c) - empty));
    input_free(&in);
    test_close(&c);
}
