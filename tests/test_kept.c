// test_kept.c -- rows that are named at their append: 16 bits beside codes, read once.
//
// What is expected of a sequence with kept rows is put together from one without: its codes, and
// what kvl_restore gives of it, but for the kept rows, which are the input's rounded to f16.
// Attention is float64 over those rows.  Where pages hold 16 bits themselves, keeping a row must
// change nothing but the order of sums.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "test_support.h"

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

enum { HEADS = 4, Q_HEADS = 8, DIM = 64, ROWS = 150, NAMED = 6 };

static const int32_t named[NAMED] = { 5, 17, 18, 63, 64, 131 };
static const kvl_rope rope = { .base = 10000, .split_halves = 1 };

static const char* const specs[] = {
    "kivi:k2,v2,kg16,vg16,sink=4,recent=24,chunk=16,kept=6",
    "rtn:b3,g32,recent=0,kept=6",
    "flagrot-auto:sink=2,recent=8,kept=6",
    "kivi:k4,v4,kg16,vg16,k.shift=rotating-mean,recent=20,kept=6",
    "kivi:k4,v4,kg16,vg16,k.place=pre_rope,v.transform=hadamard,recent=20,kept=6",
    "qjl:recent=8,kept=6",
    "rotatekv:kept=6",
    "aqua-kv:recent=8,kept=6",
};
enum { SPECS = sizeof specs / sizeof *specs };

typedef struct bench {
    test_cache c;
    float *k, *v, *q;
} bench;

static kvl_layer_desc layer_of(const char* spec)
{
    kvl_layer_desc layer = test_layer(spec, Q_HEADS, HEADS, DIM, DIM);
    layer.rope = &rope;
    return layer;
}

static bench open_layer(const test_target* target, const kvl_layer_desc* layer)
{
    bench b = { .c = test_open(target, layer) };
    b.k = test_floats(ROWS * HEADS * DIM);
    b.v = test_floats(ROWS * HEADS * DIM);
    b.q = test_floats(ROWS * Q_HEADS * DIM);
    test_rows(71, ROWS, HEADS, DIM, b.k);
    test_rows(72, ROWS, HEADS, DIM, b.v);
    test_queries(73, ROWS, Q_HEADS, DIM, b.q);
    return b;
}

static bench open_bench(const test_target* target, const char* spec)
{
    const kvl_layer_desc layer = layer_of(spec);
    return open_layer(target, &layer);
}

static void close_bench(bench* b)
{
    free(b->k);
    free(b->v);
    free(b->q);
    test_close(&b->c);
}

// Rows [first, first + num) of the input, with the given names.
static kvl_status append_named(bench* b, kvl_seq seq, int first, int32_t num, const int32_t* names,
                               int32_t num_names)
{
    kvl_append_desc a = { .num_seqs = 1, .seqs = &seq, .num_rows = &num };
    a.k.data = b->k + first * HEADS * DIM;
    a.v.data = b->c.layer.values_in_keys ? NULL : b->v + first * HEADS * DIM;
    a.num_kept = &num_names;
    a.kept = names;
    return kvl_append(b->c.cache, &a);
}

// The names among rows [first, first + num), counted from the first.
static int32_t names_of(int first, int num, int32_t out[NAMED])
{
    int32_t count = 0;
    for (int i = 0; i < NAMED; ++i)
        if (named[i] >= first && named[i] < first + num) out[count++] = named[i] - first;
    return count;
}

static void append(bench* b, kvl_seq seq, int first, int num)
{
    int32_t names[NAMED];
    const int32_t count = names_of(first, num, names);
    test_ok(b->c.ctx, append_named(b, seq, first, num, names, count), "kvl_append");
}

static int64_t num_kept(bench* b, kvl_seq seq)
{
    kvl_seq_rows rows;
    test_ok(b->c.ctx, kvl_seq_get_rows(b->c.cache, 0, seq, &rows), "kvl_seq_get_rows");
    return rows.kept;
}

// Restored rows of a sequence that keeps the first `kept` named ones, against another of as many
// rows that keeps none.
static void check_restored(bench* b, kvl_seq seq, kvl_seq plain, int rows, int kept,
                           const char* what)
{
    enum { ROW = HEADS * DIM };
    float* x[4];
    for (int i = 0; i < 4; ++i) x[i] = test_floats(ROWS * ROW);
    test_restore(&b->c, seq, 0, rows, x[0], x[1]);
    test_restore(&b->c, plain, 0, rows, x[2], x[3]);
    for (int i = 0; i < kept; ++i)
        for (int j = named[i] * ROW; j < (named[i] + 1) * ROW; ++j) {
            x[2][j] = test_round_f16(b->k[j]);
            x[3][j] = test_round_f16(b->v[j]);
        }
    cr_assert_eq(num_kept(b, seq), kept, "%s", what);
    for (int side = 0; side < 2; ++side)
        for (int j = 0; j < rows * ROW; ++j)
            cr_assert(x[side][j] == x[2 + side][j], "%s: row %d, side %d: %g, expected %g", what,
                      j / ROW, side, (double)x[side][j], (double)x[2 + side][j]);
    for (int i = 0; i < 4; ++i) free(x[i]);
}

// Breaks when a kept row is read from its codes, twice, not at all, or others are not as ever.
Test(kept, kept_rows_are_exact_and_the_others_as_ever)
{
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_attend_targets(targets);
    for (int t = 0; t < num_targets; ++t) {
        if (targets[t].target == KVL_TARGET_CUDA) continue;
        for (int i = 0; i < SPECS; ++i) {
            bench b = open_bench(&targets[t], specs[i]);
            const kvl_seq seq = test_seq(&b.c), plain = test_seq(&b.c);
            append(&b, seq, 0, ROWS);
            test_append(&b.c, plain, b.k, b.v, 0, ROWS);
            test_state one = test_snapshot(&b.c, seq), other = test_snapshot(&b.c, plain);
            cr_assert(one.codes == other.codes && one.meta == other.meta, "%s", specs[i]);
            check_restored(&b, seq, plain, ROWS, NAMED, specs[i]);
            const int64_t early = 40;
            test_attend_check(&b.c, seq, b.q, 3, NULL, specs[i]);
            test_attend_check(&b.c, seq, b.q, 30, &early, specs[i]);
            close_bench(&b);
        }
    }
}

// Breaks when a kept row out of a sliding window is seen, or windows lose one.
Test(kept, sliding_windows_see_the_kept_rows_in_them)
{
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_targets(targets);
    for (int t = 0; t < num_targets; ++t) {
        if (targets[t].target == KVL_TARGET_CUDA) continue;
        kvl_layer_desc layer = layer_of("rtn:b2,g32,kept=6");
        layer.window_len = 70;
        bench b = open_layer(&targets[t], &layer);
        const kvl_seq seq = test_seq(&b.c);
        append(&b, seq, 0, ROWS);
        const int64_t early = 80;
        test_attend_check(&b.c, seq, b.q, 2, NULL, "newest");
        test_attend_check(&b.c, seq, b.q, 70, &early, "all");
        close_bench(&b);
    }
}

static void same_floats(const float* a, const float* b, int64_t num, const char* what)
{
    for (int64_t i = 0; i < num; ++i)
        cr_assert(fabsf(a[i] - b[i]) < 2e-5f * (1 + fabsf(b[i])), "%s: %lld: %g, expected %g",
                  what, (long long)i, (double)a[i], (double)b[i]);
}

// Breaks when a kept row has another position, cap, range or value than its code has.
Test(kept, where_pages_are_16_bits_keeping_a_row_changes_nothing)
{
    static const float slopes[Q_HEADS] = { 0.5f, 0.25f, 0.125f, 0.06f, 0.03f, 0.02f, 0.01f, 0.3f };
    enum { NUM = Q_HEADS * DIM };
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_targets(targets);
    for (int t = 0; t < num_targets; ++t) {
        if (targets[t].target == KVL_TARGET_CUDA) continue;
        for (int kind = 0; kind < 4; ++kind) {
            kvl_layer_desc layer = layer_of("f16:kept=6");
            if (kind == 1) layer.alibi_slopes = slopes;
            if (kind == 2) layer.soft_cap = 8;
            layer.values_in_keys = kind == 3;
            bench b = open_layer(&targets[t], &layer);
            const kvl_seq seqs[2] = { test_seq(&b.c), test_seq(&b.c) };
            float *o = test_floats(2 * NUM), *lse = test_floats(2 * Q_HEADS);
            append(&b, seqs[0], 0, ROWS);
            test_ok(b.c.ctx, append_named(&b, seqs[1], 0, ROWS, NULL, 0), "kvl_append");
            for (int range = 0; range < 4; ++range) {
                static const int64_t begins[][2] = { {0, 0}, {17, 17}, {18, 18}, {63, 63} };
                static const int64_t ends[][2] = { {150, 150}, {19, 19}, {19, 19}, {66, 66} };
                kvl_attend_desc a = { .num_seqs = 2, .seqs = seqs, .partial = range > 0 };
                a.q.row_stride = 0;
                float* q = test_floats(2 * NUM);
                memcpy(q, b.q, NUM * sizeof *q);
                memcpy(q + NUM, b.q, NUM * sizeof *q);
                a.q.data = q;
                a.o.data = o;
                a.lse = lse;
                a.row_begins = begins[range];
                a.row_ends = ends[range];
                test_ok(b.c.ctx, kvl_attend(b.c.cache, &a), "kvl_attend");
                same_floats(o, o + NUM, NUM, "o");
                same_floats(lse, lse + Q_HEADS, Q_HEADS, "lse");
                free(q);
            }
            free(o);
            free(lse);
            close_bench(&b);
        }
    }
}

// Breaks when what is kept depends on how rows were split into calls.
Test(kept, rows_in_calls_of_any_size_are_rows_one_by_one)
{
    enum { NUM = ROWS * Q_HEADS * DIM };
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_targets(targets);
    for (int t = 0; t < num_targets; ++t) {
        if (targets[t].target == KVL_TARGET_CUDA) continue;
        for (int i = 0; i < SPECS; ++i) {
            bench b = open_bench(&targets[t], specs[i]);
            const kvl_seq one = test_seq(&b.c), all = test_seq(&b.c), parts = test_seq(&b.c);
            float *o = test_floats(NUM), *expected = test_floats(NUM);
            for (int r = 0; r < ROWS; ++r) {
                append(&b, one, r, 1);
                test_attend(&b.c, one, b.q + r * Q_HEADS * DIM, 1, NULL,
                            expected + r * Q_HEADS * DIM, NULL);
            }
            const int32_t num = ROWS, count = NAMED;
            kvl_append_desc a = { .num_seqs = 1, .seqs = &all, .num_rows = &num };
            kvl_attend_desc d = { .num_seqs = 1, .seqs = &all, .q_lens = &num };
            a.k.data = b.k;
            a.v.data = b.v;
            a.num_kept = &count;
            a.kept = named;
            d.q.data = b.q;
            d.o.data = o;
            test_ok(b.c.ctx, kvl_append_attend(b.c.cache, &a, &d), specs[i]);
            cr_assert(memcmp(o, expected, NUM * sizeof *o) == 0, "%s: outputs differ", specs[i]);
            for (int r = 0; r < ROWS; r += 50) append(&b, parts, r, 50);
            const test_state state = test_snapshot(&b.c, one);
            const test_state of_all = test_snapshot(&b.c, all);
            const test_state of_parts = test_snapshot(&b.c, parts);
            test_same_state(&state, &of_all, specs[i]);
            test_same_state(&state, &of_parts, specs[i]);
            free(o);
            free(expected);
            close_bench(&b);
        }
    }
}

// Breaks when a prompt that is read in 16 bits loses rows that were kept before it.
Test(kept, a_prefill_reads_rows_that_were_kept_before)
{
    const char* spec = "rtn:b2,g32,kept=6";
    enum { BEFORE = 100, NEW = ROWS - BEFORE, NUM = NEW * Q_HEADS * DIM };
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_targets(targets);
    for (int t = 0; t < num_targets; ++t) {
        if (targets[t].target == KVL_TARGET_CUDA) continue;
        bench b = open_bench(&targets[t], spec);
        bench wide = open_bench(&targets[t], "f16:recent=0");
        const kvl_seq seq = test_seq(&b.c), full = test_seq(&wide.c), plain = test_seq(&b.c);
        float *o = test_floats(NUM), *expected = test_floats(NUM);
        float *k = test_floats(ROWS * HEADS * DIM), *v = test_floats(ROWS * HEADS * DIM);
        int32_t names[NAMED];
        const int32_t num = NEW, count = names_of(BEFORE, NEW, names);
        append(&b, seq, 0, BEFORE);
        test_append(&b.c, plain, b.k, b.v, 0, ROWS);
        test_restore(&b.c, seq, 0, BEFORE, k, v);
        test_append(&wide.c, full, k, v, 0, BEFORE);
        kvl_append_desc a = { .num_seqs = 1, .seqs = &seq, .num_rows = &num };
        kvl_attend_desc d = { .num_seqs = 1, .seqs = &seq, .q_lens = &num, .prefill = 1 };
        a.k.data = b.k + BEFORE * HEADS * DIM;
        a.v.data = b.v + BEFORE * HEADS * DIM;
        d.q.data = b.q;
        d.o.data = expected;
        a.seqs = d.seqs = &full;
        test_ok(wide.c.ctx, kvl_append_attend(wide.c.cache, &a, &d), "f16");
        a.seqs = d.seqs = &seq;
        a.num_kept = &count;
        a.kept = names;
        d.o.data = o;
        test_ok(b.c.ctx, kvl_append_attend(b.c.cache, &a, &d), spec);
        for (int i = 0; i < NUM; ++i)
            cr_assert(fabsf(o[i] - expected[i]) < 4e-3f, "%d: %g, expected %g", i, (double)o[i],
                      (double)expected[i]);
        check_restored(&b, seq, plain, ROWS, NAMED, "prefill");
        free(o);
        free(expected);
        free(k);
        free(v);
        close_bench(&b);
        close_bench(&wide);
    }
}

static void truncate(bench* b, kvl_seq seq, int rows)
{
    test_ok(b->c.ctx, kvl_truncate(b->c.cache, seq, rows), "kvl_truncate");
}

// Breaks when a fork's or a cut sequence's kept rows are another's, or a cut one goes on as rows
// that were read back from codes.
Test(kept, forks_and_cuts_have_their_own)
{
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_targets(targets);
    for (int t = 0; t < num_targets; ++t) {
        if (targets[t].target == KVL_TARGET_CUDA) continue;
        for (int i = 0; i < SPECS; ++i) {
            bench b = open_bench(&targets[t], specs[i]);
            const kvl_seq seq = test_seq(&b.c), plain = test_seq(&b.c);
            kvl_seq fork = 0;
            append(&b, seq, 0, ROWS);
            test_append(&b.c, plain, b.k, b.v, 0, ROWS);
            test_ok(b.c.ctx, kvl_seq_fork(b.c.cache, seq, &fork), "kvl_seq_fork");
            truncate(&b, fork, 64);
            truncate(&b, plain, 64);
            check_restored(&b, fork, plain, 64, 4, "cut before row 64");
            // 18 cuts a group along tokens: its rows come back, one of them kept, and are encoded
            // again with what follows.
            truncate(&b, fork, 18);
            truncate(&b, plain, 18);
            append(&b, fork, 18, 80);
            test_append(&b.c, plain, b.k, b.v, 18, 80);
            if (strncmp(specs[i], "rtn", 3) == 0 || strncmp(specs[i], "rotatekv", 8) == 0)
                check_restored(&b, fork, plain, 98, 5, "after a cut");
            cr_assert_eq(num_kept(&b, fork), 5);
            cr_assert_eq(num_kept(&b, seq), NAMED, "the fork's change is its own");
            float *k = test_floats(HEADS * DIM), *v = test_floats(HEADS * DIM);
            test_restore(&b.c, fork, 17, 1, k, v);
            for (int j = 0; j < HEADS * DIM; ++j)
                cr_assert(k[j] == test_round_f16(b.k[17 * HEADS * DIM + j]), "%s", specs[i]);
            free(k);
            free(v);
            test_attend_check(&b.c, fork, b.q, 2, NULL, specs[i]);
            test_attend_check(&b.c, seq, b.q, 2, NULL, specs[i]);
            close_bench(&b);
        }
    }
}

// Breaks when rows that are gone keep their places, or a dropped row is seen.
Test(kept, dropped_rows_make_room)
{
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_targets(targets);
    const int32_t first = 0;
    for (int t = 0; t < num_targets; ++t) {
        if (targets[t].target == KVL_TARGET_CUDA) continue;
        bench b = open_bench(&targets[t], "rtn:b2,g32,sink=0,kept=6");
        const kvl_seq seq = test_seq(&b.c);
        append(&b, seq, 0, ROWS - 1);
        cr_assert_eq(append_named(&b, seq, ROWS - 1, 1, &first, 1), KVL_BAD_ARGUMENT);
        test_ok(b.c.ctx, kvl_drop_oldest(b.c.cache, seq, 18), "kvl_drop_oldest");
        cr_assert_eq(num_kept(&b, seq), 4);
        test_ok(b.c.ctx, append_named(&b, seq, ROWS - 1, 1, &first, 1), "kvl_append");
        cr_assert_eq(num_kept(&b, seq), 5);
        float *k = test_floats(HEADS * DIM), *v = test_floats(HEADS * DIM);
        static const int there[] = { 18, 63, 64, 131, ROWS - 1 };
        for (int i = 0; i < 5; ++i) {
            test_restore(&b.c, seq, there[i], 1, k, v);
            for (int j = 0; j < HEADS * DIM; ++j)
                cr_assert(v[j] == test_round_f16(b.v[there[i] * HEADS * DIM + j]), "%d", there[i]);
        }
        free(k);
        free(v);
        close_bench(&b);
    }
}

static test_bytes save(bench* b, kvl_seq seq, int offload)
{
    test_bytes bytes = { 0 };
    kvl_save_seq one = { .seq = seq };
    kvl_save_desc d = { .num_seqs = 1, .seqs = &one, .write = test_put_bytes, .user = &bytes };
    test_ok(b->c.ctx, offload ? kvl_offload(b->c.cache, &d) : kvl_save(b->c.cache, &d), "save");
    return bytes;
}

static kvl_status load(bench* b, test_bytes* bytes, int recode, kvl_seq* seq)
{
    kvl_load_desc d = { .read = test_take_bytes, .user = bytes, .recode = recode };
    kvl_loaded_seq* out = NULL;
    int num = 0;
    bytes->at = 0;
    const kvl_status status = kvl_load(b->c.cache, &d, &out, &num);
    *seq = num ? out->seq : 0;
    kvl_loaded_free(b->c.ctx, out, num);
    return status;
}

// Breaks when a file lacks a kept row or its place, or is another sequence's afterwards.
Test(kept, files_hold_them)
{
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_targets(targets);
    for (int t = 0; t < num_targets; ++t) {
        if (targets[t].target == KVL_TARGET_CUDA) continue;
        const char* spec = "kivi:k2,v2,kg16,vg16,sink=4,recent=24,chunk=16,kept=6";
        bench b = open_bench(&targets[t], spec), other = open_bench(&targets[0], spec);
        const kvl_seq seq = test_seq(&b.c);
        kvl_seq loaded;
        append(&b, seq, 0, ROWS);
        const test_state state = test_snapshot(&b.c, seq);
        test_bytes bytes = save(&b, seq, 0);
        test_ok(other.c.ctx, load(&other, &bytes, 0, &loaded), "kvl_load");
        cr_assert_eq(bytes.at, bytes.size, "the whole file is read");
        const test_state there = test_snapshot(&other.c, loaded);
        test_same_state(&state, &there, "loaded");
        cr_assert_eq(num_kept(&other, loaded), NAMED);
        free(bytes.data);
        bytes = save(&b, seq, 1);
        kvl_load_desc d = { .read = test_take_bytes, .user = &bytes };
        test_ok(b.c.ctx, kvl_reload(b.c.cache, &d, &seq, 1), "kvl_reload");
        const test_state back = test_snapshot(&b.c, seq);
        test_same_state(&state, &back, "reloaded");
        test_attend_check(&b.c, seq, b.q, 2, NULL, "reloaded");
        free(bytes.data);
        close_bench(&other);
        close_bench(&b);
    }
}

// Breaks when files without kept rows change, or the two kinds are taken for each other.
Test(kept, files_without_them_are_as_ever)
{
    test_target targets[TEST_MAX_TARGETS];
    test_targets(targets);
    const char* const with = "rtn:b4,g32,kept=6";
    bench none = open_bench(&targets[0], "rtn:b4,g32"), zero = open_bench(&targets[0],
                                                                       "rtn:b4,g32,kept=0");
    bench some = open_bench(&targets[0], with), few = open_bench(&targets[0], "rtn:b2,g32,kept=5");
    const kvl_seq seqs[3] = { test_seq(&none.c), test_seq(&zero.c), test_seq(&some.c) };
    kvl_seq out;
    cr_assert_str_eq(none.c.info.spec, zero.c.info.spec);
    test_append(&none.c, seqs[0], none.k, none.v, 0, ROWS);
    test_append(&zero.c, seqs[1], none.k, none.v, 0, ROWS);
    append(&some, seqs[2], 0, ROWS);
    test_bytes a = save(&none, seqs[0], 0), b = save(&zero, seqs[1], 0);
    test_bytes c = save(&some, seqs[2], 0);
    cr_assert(a.size == b.size && memcmp(a.data, b.data, a.size) == 0, "equal files");
    cr_assert_eq(load(&some, &a, 0, &out), KVL_BAD_ARGUMENT, "another spec");
    cr_assert_eq(load(&none, &c, 0, &out), KVL_BAD_ARGUMENT, "another spec");
    test_ok(some.c.ctx, load(&some, &a, 1, &out), "recode");
    cr_assert_eq(num_kept(&some, out), 0);
    test_ok(none.c.ctx, load(&none, &c, 1, &out), "recode");
    cr_assert_eq(load(&few, &c, 1, &out), KVL_BAD_ARGUMENT, "six rows are kept");
    cr_assert(strstr(kvl_context_message(few.c.ctx), "kept = 5 in the spec"), "%s",
              kvl_context_message(few.c.ctx));
    test_bytes* const files[] = { &a, &b, &c };
    for (int i = 0; i < 3; ++i) free(files[i]->data);
    close_bench(&none);
    close_bench(&zero);
    close_bench(&some);
    close_bench(&few);
}

// Breaks when a file from before kept= cannot be read by a preset that has it.
Test(kept, a_preset_that_keeps_rows_reads_files_without)
{
    test_target targets[TEST_MAX_TARGETS];
    test_targets(targets);
    bench b = open_bench(&targets[0], "rotatekv:sink=20,kept=0");
    const kvl_seq seq = test_seq(&b.c);
    kvl_seq loaded;
    test_append(&b.c, seq, b.k, b.v, 0, ROWS);
    const test_state state = test_snapshot(&b.c, seq);
    test_bytes bytes = save(&b, seq, 0);
    static const char tail[] = ",kept=0";
    unsigned char* at = (unsigned char*)memmem(bytes.data, bytes.size, tail, sizeof tail - 1);
    cr_assert(at, "the preset's own number is overruled in the file's spec: %s", b.c.info.spec);
    // The header of 24 bytes, then the first section: tag, index, length, contents, checksum.
    unsigned char* section = bytes.data + 24;
    uint64_t length;
    memcpy(&length, section + 8, 8);
    unsigned char* end = section + 16 + length;
    memmove(at, at + sizeof tail - 1, (size_t)(bytes.data + bytes.size - at) - sizeof tail + 1);
    bytes.size -= sizeof tail - 1;
    end -= sizeof tail - 1;
    length -= sizeof tail - 1;
    memcpy(section + 8, &length, 8);
    const uint64_t sum = XXH3_64bits(section, (size_t)(end - section));
    memcpy(end, &sum, 8);
    test_ok(b.c.ctx, load(&b, &bytes, 0, &loaded), "kvl_load");
    const test_state there = test_snapshot(&b.c, loaded);
    test_same_state(&state, &there, "an old file");
    free(bytes.data);
    close_bench(&b);
}

// Breaks when copied rows lose what was kept of them.
Test(kept, copies_keep_what_was_kept)
{
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_targets(targets);
    for (int t = 0; t < num_targets; ++t) {
        if (targets[t].target == KVL_TARGET_CUDA) continue;
        bench b = open_bench(&targets[t], "rtn:b2,g32,kept=6");
        bench to = open_bench(&targets[t], "rtn:b3,g32,sink=9,kept=4");
        const kvl_seq seq = test_seq(&b.c), copy = test_seq(&to.c), plain = test_seq(&to.c);
        append(&b, seq, 0, ROWS);
        test_ok(to.c.ctx, kvl_copy_rows(to.c.cache, copy, b.c.cache, seq, 10, 100), "copy");
        cr_assert_eq(num_kept(&to, copy), 2, "17 and 18 are in the sink, 131 is not copied");
        float *k = test_floats(2 * HEADS * DIM), *v = test_floats(2 * HEADS * DIM);
        test_restore(&to.c, copy, 53, 2, k, v);
        for (int j = 0; j < 2 * HEADS * DIM; ++j)
            cr_assert(k[j] == test_round_f16(b.k[63 * HEADS * DIM + j]), "%d", j);
        cr_assert_eq(kvl_copy_rows(to.c.cache, plain, b.c.cache, seq, 0, ROWS), KVL_BAD_ARGUMENT);
        kvl_seq_rows rows;
        test_ok(to.c.ctx, kvl_seq_get_rows(to.c.cache, 0, plain, &rows), "rows");
        cr_assert(rows.rows == 0 && rows.kept == 0, "as it was");
        free(k);
        free(v);
        close_bench(&b);
        close_bench(&to);
    }
}

// Breaks when a batch's names are taken for another sequence's.
Test(kept, a_batch_names_rows_of_each_sequence)
{
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_targets(targets);
    static const int32_t lens[3] = { 40, 0, 70 }, counts[3] = { 1, 0, 3 };
    static const int32_t names[4] = { 39, 0, 41, 69 };
    for (int t = 0; t < num_targets; ++t) {
        if (targets[t].target == KVL_TARGET_CUDA) continue;
        bench b = open_bench(&targets[t], "rtn:b2,g32,sink=0,kept=3");
        const kvl_seq seqs[3] = { test_seq(&b.c), test_seq(&b.c), test_seq(&b.c) };
        kvl_append_desc a = { .num_seqs = 3, .seqs = seqs, .num_rows = lens };
        float *k = test_floats(HEADS * DIM), *v = test_floats(HEADS * DIM);
        a.k.data = b.k;
        a.v.data = b.v;
        a.num_kept = counts;
        a.kept = names;
        test_ok(b.c.ctx, kvl_append(b.c.cache, &a), "kvl_append");
        for (int i = 0; i < 4; ++i) {
            test_restore(&b.c, seqs[i ? 2 : 0], names[i], 1, k, v);
            const float* from = b.k + ((i ? 40 : 0) + names[i]) * HEADS * DIM;
            for (int j = 0; j < HEADS * DIM; ++j)
                cr_assert(k[j] == test_round_f16(from[j]), "%d", names[i]);
        }
        cr_assert(num_kept(&b, seqs[0]) == 1 && num_kept(&b, seqs[1]) == 0 &&
                  num_kept(&b, seqs[2]) == 3);
        free(k);
        free(v);
        close_bench(&b);
    }
}

// Breaks when a wrong name is taken, or leaves a trace.
Test(kept, wrong_names_are_refused)
{
    static const struct { int32_t num, names[4]; const char* words; } bad[] = {
        { 1, { 20 }, "kept: row 20 of sequence 0 of the batch: 20 rows come" },
        { 1, { -1 }, "kept: row -1" },
        { 2, { 7, 7 }, "kept: row 7 of sequence 0 of the batch comes after row 7: they must rise" },
        { 2, { 9, 8 }, "kept: row 8 of sequence 0 of the batch comes after row 9" },
        { 1, { 3 }, "kept: row 3 of sequence 0 of the batch is in the sink of 4 rows" },
        { 4, { 5, 6, 7, 8 }, "num_kept[0] = 4: kept = 3 in the spec, and the sequence has 0" },
        { -1, { 0 }, "num_kept[0] = -1" },
    };
    test_target targets[TEST_MAX_TARGETS];
    test_targets(targets);
    bench b = open_bench(&targets[0], "rtn:b2,g32,sink=4,kept=3");
    bench none = open_bench(&targets[0], "rtn:b2,g32");
    const kvl_seq seq = test_seq(&b.c), other = test_seq(&none.c);
    const int32_t one = 1, name = 6;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        cr_expect_eq(append_named(&b, seq, 0, 20, bad[i].names, bad[i].num), KVL_BAD_ARGUMENT);
        cr_expect(strstr(kvl_context_message(b.c.ctx), bad[i].words), "'%s', expected '%s'",
                  kvl_context_message(b.c.ctx), bad[i].words);
    }
    cr_expect_eq(num_kept(&b, seq), 0);
    cr_expect_eq(append_named(&b, seq, 0, 20, NULL, 1), KVL_BAD_ARGUMENT);
    cr_expect_eq(append_named(&b, seq, 0, 0, &name, 1), KVL_BAD_ARGUMENT, "no row comes");
    cr_expect_eq(append_named(&none, other, 0, 20, &name, 1), KVL_BAD_ARGUMENT);
    cr_expect(strstr(kvl_context_message(none.c.ctx), "kept = 0 in the spec"));
    kvl_append_desc a = { .num_seqs = 1, .seqs = &seq, .num_rows = &one, .kept = &name };
    a.k.data = b.k;
    a.v.data = b.v;
    cr_expect_eq(kvl_append(b.c.cache, &a), KVL_BAD_ARGUMENT, "num_kept = NULL");
    close_bench(&none);
    close_bench(&b);
}

// Breaks when a cache that cannot keep rows is made, or one that can is not.
Test(kept, caches_say_what_they_keep)
{
    test_target targets[TEST_MAX_TARGETS];
    test_targets(targets);
    kvl_context* ctx = test_context(&targets[0], 1);
    kvl_layer_desc layer = layer_of("kivi:k2,v2,g32,kept=7");
    kvl_cache_desc d = { .num_layers = 1, .layers = &layer };
    kvl_cache* cache = NULL;
    kvl_layer_info info;
    uint64_t bytes[2];
    char text[4096];
    test_ok(ctx, kvl_cache_create(ctx, &d, &cache), "create");
    test_ok(ctx, kvl_cache_layer_info(cache, 0, &info), "info");
    cr_expect(info.kept_len == 7 && strstr(info.spec, ",kept=7"), "%s", info.spec);
    test_ok(ctx, kvl_describe(cache, text, sizeof text, NULL), "describe");
    cr_expect(strstr(text, "up to 7 named rows stay in 16 bits"), "%s", text);
    kvl_cache_free(cache);
    test_ok(ctx, kvl_estimate(ctx, &d, 2, 100, &bytes[0]), "estimate");
    layer.spec = "kivi:k2,v2,g32";
    test_ok(ctx, kvl_estimate(ctx, &d, 2, 100, &bytes[1]), "estimate");
    // Two sequences, keys and values of 16 bits, and a position of 8 bytes each.
    cr_expect_eq(bytes[0] - bytes[1], 2u * 7u * (HEADS * 2u * DIM * 2u + 8u));
    layer.spec = "kivi/f16:kept=257";
    test_no_cache(ctx, &d, "kept = '257': must be a number of tokens from 0 to 256");
    layer.spec = "kivi:k2,v2,g32,kept=7";
    d.prefix_bytes = 1 << 20;
    cr_expect_eq(kvl_cache_create(ctx, &d, &cache), KVL_UNSUPPORTED);
    cr_expect(strstr(kvl_context_message(ctx), "kept = 7: must be 0 with prefix_bytes"), "%s",
              kvl_context_message(ctx));
    kvl_context_destroy(ctx);
}

// Breaks when a device takes a spec that its kernels cannot serve.
Test(kept, a_device_refuses_them_by_name)
{
    const kvl_context_desc cd = { .target = KVL_TARGET_CUDA, .arch = "sm_80", .cache_dir = "" };
    const kvl_layer_desc layer = layer_of("kivi:k2,v2,g32,kept=7");
    const kvl_cache_desc d = { .num_layers = 1, .layers = &layer };
    kvl_context* ctx = NULL;
    kvl_cache* cache = NULL;
    if (kvl_context_create(&cd, &ctx) == KVL_OK) {
        cr_expect_eq(kvl_cache_create(ctx, &d, &cache), KVL_UNSUPPORTED);
        cr_expect(strstr(kvl_context_message(ctx), "kept = 7: must be 0 on target cuda"), "%s",
                  kvl_context_message(ctx));
    }
    kvl_context_destroy(ctx);
}
