// test_prefill.c -- queries that read rows of their own call in 16 bits while those are encoded.
//
// Expected outputs are float64 attention over rows that the test puts together by itself: what
// kvl_restore gave before the call, and the call's rows rounded to the windows' type.  What is
// stored must be, to the bit, what kvl_append of all rows at once stores.

#include "test_support.h"

enum { ROWS = 130, STARTED = 61, SEQS = 2 };

typedef struct shape {
    const char* spec;
    int         q_heads, heads, dk, dv, window_len;
    float       soft_cap;
    int         values_in_keys;
} shape;

static const shape shapes[] = {
    { "kivi:k2,v2,kg16,vg16,sink=4,recent=24,chunk=16", 6, 2, 64, 64, 0, 0, 0 },
    { "kivi:k2,v4,g32,sink=4,recent=8", 6, 2, 64, 96, 0, 0, 0 },
    { "rtn:b2,g32,recent=0,sink=3,rows=bf16", 4, 2, 64, 64, 40, 0, 0 },
    { "f16", 6, 2, 64, 64, 0, 9, 0 },
    { "rtn:k3,kg16,k.transform=hadamard,recent=9", 8, 2, 128, 64, 0, 0, 1 },
    { "flagrot-kivi:sink=4,recent=8", 6, 2, 64, 64, 0, 0, 0 },
    { "kivi:k4,v4,kg16,vg16,k.shift=rotating-mean,sink=4,recent=24", 4, 2, 64, 64, 0, 0, 0 },
    { "kivi:k4,v4,kg16,vg16,k.place=pre_rope,sink=4,recent=24", 4, 2, 64, 64, 0, 0, 0 },
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const kvl_rope rope = { .base = 10000, .split_halves = 1 };

// A batch: a sequence that is empty, and a fork of one that has rows.
typedef struct batch {
    const shape*       s;
    const test_target* target;
    test_cache         c;
    float             *k, *v, *q, *o, *lse;          // of ROWS rows
    kvl_seq            seqs[SEQS], source;
    int                len[SEQS];
} batch;

static int k_row(const shape* s) { return s->heads * s->dk; }
static int v_row(const shape* s) { return s->heads * s->dv; }

static void append(batch* b, kvl_seq seq, int first, int num)
{
    const int32_t rows = num;
    kvl_append_desc a = { .num_seqs = 1, .seqs = &seq, .num_rows = &rows };
    a.k.data = b->k + first * k_row(b->s);
    a.v.data = b->s->values_in_keys ? NULL : b->v + first * v_row(b->s);
    test_ok(b->c.ctx, kvl_append(b->c.cache, &a), b->s->spec);
}

static batch batch_create(const test_target* target, const shape* s)
{
    batch b = { .s = s, .target = target };
    kvl_layer_desc layer = test_layer(s->spec, s->q_heads, s->heads, s->dk, s->dv);
    layer.window_len = s->window_len;
    layer.soft_cap = s->soft_cap;
    layer.values_in_keys = s->values_in_keys;
    if (strstr(s->spec, "pre_rope")) layer.rope = &rope;
    b.c = test_open(target, &layer);
    b.k = test_floats(ROWS * k_row(s));
    b.v = test_floats(ROWS * v_row(s));
    b.q = test_floats(SEQS * ROWS * s->q_heads * s->dk);
    b.o = test_floats(SEQS * ROWS * s->q_heads * s->dv);
    b.lse = test_floats(SEQS * ROWS * s->q_heads);
    test_rows(31, ROWS, s->heads, s->dk, b.k);
    test_rows(32, ROWS, s->heads, s->dv, b.v);
    test_queries(33, SEQS * ROWS, s->q_heads, s->dk, b.q);
    b.seqs[0] = test_seq(&b.c);
    b.source = test_seq(&b.c);
    append(&b, b.source, 0, STARTED);
    test_ok(b.c.ctx, kvl_seq_fork(b.c.cache, b.source, &b.seqs[1]), "kvl_seq_fork");
    b.len[1] = STARTED;
    return b;
}

static void batch_free(batch* b)
{
    free(b->k);
    free(b->v);
    free(b->q);
    free(b->o);
    free(b->lse);
    test_close(&b->c);
}

// What queries must read: the cache's rows before the call, then the call's.
static test_attention expected_of(batch* b, int i, int num)
{
    const shape* s = b->s;
    const int all = b->len[i] + num, bf16 = strstr(s->spec, "rows=bf16") != NULL;
    float* k = test_floats(all * k_row(s));
    float* v = test_floats(all * v_row(s));
    int64_t* positions = (int64_t*)test_alloc((size_t)num, sizeof *positions);
    kvl_rows rows[2] = { { .data = k }, { .data = v } };
    test_ok(b->c.ctx, kvl_restore(b->c.cache, 0, b->seqs[i], 0, b->len[i], &rows[0], &rows[1]),
            s->spec);
    for (int at = b->len[i] * k_row(s); at < all * k_row(s); ++at)
        k[at] = bf16 ? test_round_bf16(b->k[at]) : test_round_f16(b->k[at]);
    for (int at = b->len[i] * v_row(s); at < all * v_row(s); ++at) {
        const int row = at / v_row(s), head = at % v_row(s) / s->dv, channel = at % s->dv;
        const float x = s->values_in_keys ? b->k[row * k_row(s) + head * s->dk + channel]
                                          : b->v[at];
        v[at] = bf16 ? test_round_bf16(x) : test_round_f16(x);
    }
    for (int r = 0; r < num; ++r) positions[r] = b->len[i] + r;
    test_attention a = { .k = k, .v = v, .positions = positions };
    a.num_q = num;
    a.q_heads = s->q_heads;
    a.kv_heads = s->heads;
    a.dk = s->dk;
    a.dv = s->dv;
    a.kv_len = all;
    a.soft_cap = (double)s->soft_cap;
    a.window_len = s->window_len;
    a.transformed = 1;
    a.rounds = b->target->target != KVL_TARGET_REFERENCE && !test_is_exact(b->target);
    return a;
}

static kvl_status prefill(batch* b, const int32_t* num, int prefill)
{
    kvl_append_desc a = { .num_seqs = SEQS, .seqs = b->seqs, .num_rows = num };
    kvl_attend_desc t = { .num_seqs = SEQS, .seqs = b->seqs, .q_lens = num, .prefill = prefill };
    float* k = test_floats((num[0] + num[1]) * k_row(b->s));
    float* v = test_floats((num[0] + num[1]) * v_row(b->s));
    for (int i = 0, at = 0; i < SEQS; at += num[i++]) {
        memcpy(k + at * k_row(b->s), b->k + b->len[i] * k_row(b->s),
               (size_t)(num[i] * k_row(b->s)) * sizeof *k);
        memcpy(v + at * v_row(b->s), b->v + b->len[i] * v_row(b->s),
               (size_t)(num[i] * v_row(b->s)) * sizeof *v);
    }
    a.k.data = k;
    a.v.data = b->s->values_in_keys ? NULL : v;
    t.q.data = b->q;
    t.o.data = b->o;
    t.lse = b->lse;
    const kvl_status status = kvl_append_attend(b->c.cache, &a, &t);
    free(k);
    free(v);
    return status;
}

static void check_chunk(batch* b, int chunk)
{
    const shape* s = b->s;
    char what[200];
    int32_t num[SEQS];
    test_attention expected[SEQS];
    for (int i = 0, at = 0; i < SEQS; at += num[i++]) {
        num[i] = ROWS - b->len[i] < chunk + i ? ROWS - b->len[i] : chunk + i;
        expected[i] = expected_of(b, i, num[i]);
        expected[i].q = b->q + at * s->q_heads * s->dk;
    }
    snprintf(what, sizeof what, "%s on %s, %d and %d rows behind %d and %d", s->spec,
             b->target->name, (int)num[0], (int)num[1], b->len[0], b->len[1]);
    test_ok(b->c.ctx, prefill(b, num, 1), what);
    for (int i = 0, at = 0; i < SEQS; at += num[i++]) {
        test_attention_run(&expected[i]);
        test_attention_check(&expected[i], b->o + at * s->q_heads * s->dv,
                             b->lse + at * s->q_heads, what);
        test_attention_free(&expected[i]);
        free((void*)(uintptr_t)expected[i].k);
        free((void*)(uintptr_t)expected[i].v);
        free((void*)(uintptr_t)expected[i].positions);
        b->len[i] += num[i];
    }
}

// A sequence is to the bit what another one is.
static void same_rows(batch* b, kvl_seq plain, kvl_seq seq)
{
    const size_t floats = (size_t)(ROWS * k_row(b->s));
    float* k[2] = { test_floats((int64_t)floats), test_floats((int64_t)floats) };
    kvl_rows rows[2] = { { .data = k[0] }, { .data = k[1] } };
    const kvl_seq seqs[2] = { plain, seq };
    for (int i = 0; i < 2 && b->s->values_in_keys; ++i)
        test_ok(b->c.ctx, kvl_restore(b->c.cache, 0, seqs[i], 0, ROWS, &rows[i], NULL), b->s->spec);
    cr_assert(memcmp(k[0], k[1], floats * sizeof *k[0]) == 0, "%s: keys differ", b->s->spec);
    free(k[0]);
    free(k[1]);
    if (b->s->values_in_keys) return;
    const test_state expected = test_snapshot(&b->c, plain), got = test_snapshot(&b->c, seq);
    test_same_state(&expected, &got, b->s->spec);
}

static void check_chunks(const test_target* target, const shape* s, int chunk)
{
    batch b = batch_create(target, s);
    while (b.len[0] < ROWS || b.len[1] < ROWS) check_chunk(&b, chunk);
    const kvl_seq plain = test_seq(&b.c);
    append(&b, plain, 0, ROWS);
    for (int i = 0; i < SEQS; ++i) same_rows(&b, plain, b.seqs[i]);
    append(&b, b.source, STARTED, ROWS - STARTED);
    same_rows(&b, plain, b.source);
    batch_free(&b);
}

Test(prefill, rows_of_the_call_are_read_in_16_bits_and_stored_as_ever)
{
    // Broken by a query that sees a code of its own call, or the 16-bit rows of an earlier one, or
    // a row younger than itself; by a chunk that is encoded from other rows; by a fork's windows or
    // pages written.
    static const int chunks[] = { ROWS, 33, 7, 1 };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    for (int t = 0; t < n; ++t)
        for (int i = 0; i < SHAPES; ++i) {
            const int on_device = targets[t].target == KVL_TARGET_CUDA;
            const int num = on_device ? 1 + (i == 0) : t < 2 ? 4 - 2 * (i > 0) : 1;
            if (test_is_exact(&targets[t]) && i > 0) continue;
            for (int j = 0; j < num; ++j) check_chunks(&targets[t], &shapes[i], chunks[j]);
        }
}

Test(prefill, is_as_without_it_where_nothing_is_encoded)
{
    // Broken by another order of parts: such a call must be the same to the bit.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    const int32_t num[SEQS] = { 19, 7 };             // none of 61 + 7 rows completes a chunk of 16
    for (int t = 0; t < n; ++t) {
        batch a = batch_create(&targets[t], &shapes[0]), b = batch_create(&targets[t], &shapes[0]);
        const size_t bytes = (size_t)(26 * a.s->q_heads * a.s->dv) * sizeof *a.o;
        test_ok(a.c.ctx, prefill(&a, num, 0), "without prefill");
        test_ok(b.c.ctx, prefill(&b, num, 1), "prefill");
        cr_assert(memcmp(a.o, b.o, bytes) == 0, "outputs differ on %s", targets[t].name);
        cr_assert(memcmp(a.lse, b.lse, (size_t)(26 * a.s->q_heads) * sizeof *a.lse) == 0);
        batch_free(&a);
        batch_free(&b);
    }
}

Test(prefill, takes_what_memory_there_is_or_changes_nothing)
{
    // Broken by rows that are appended when there is no room for the call's, or by room that is not
    // in the cache's bytes or not given back.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    const int32_t num[SEQS] = { 80, 60 };
    batch b = batch_create(&reference, &shapes[0]);
    kvl_stats first, last;
    const test_state before[SEQS] = { test_snapshot(&b.c, b.seqs[0]),
                                      test_snapshot(&b.c, b.seqs[1]) };
    test_ok(b.c.ctx, kvl_cache_stats(b.c.cache, &first), "kvl_cache_stats");
    test_ok(b.c.ctx, prefill(&b, num, 1), "with all memory");
    test_ok(b.c.ctx, kvl_cache_stats(b.c.cache, &last), "kvl_cache_stats");
    // Keys and values of 140 rows of 2 heads of 64 channels, 2 bytes each, are there for a while.
    cr_assert(last.peak_bytes >= last.bytes + 140 * 2 * 2 * 64 * 2, "peak %llu of %llu bytes",
              (unsigned long long)last.peak_bytes, (unsigned long long)last.bytes);
    const uint64_t peak = last.peak_bytes;
    batch_free(&b);
    for (int enough = 0; enough < 2; ++enough) {
        kvl_cache_desc desc = { .num_layers = 1 };
        b = batch_create(&reference, &shapes[0]);
        kvl_cache_free(b.c.cache);
        desc.layers = &b.c.layer;
        desc.max_bytes = peak - !enough;
        test_ok(b.c.ctx, kvl_cache_create(b.c.ctx, &desc, &b.c.cache), "kvl_cache_create");
        b.seqs[0] = test_seq(&b.c);
        b.source = test_seq(&b.c);
        append(&b, b.source, 0, STARTED);
        test_ok(b.c.ctx, kvl_seq_fork(b.c.cache, b.source, &b.seqs[1]), "kvl_seq_fork");
        const kvl_status status = prefill(&b, num, 1);
        cr_assert(status == (enough ? KVL_OK : KVL_NO_MEMORY), "%s", kvl_context_message(b.c.ctx));
        for (int i = 0; i < SEQS && !enough; ++i) {
            const test_state after = test_snapshot(&b.c, b.seqs[i]);
            test_same_state(&before[i], &after, "after a refusal");
        }
        test_ok(b.c.ctx, kvl_cache_stats(b.c.cache, &last), "kvl_cache_stats");
        cr_assert(enough || last.bytes == first.bytes, "%llu bytes, were %llu",
                  (unsigned long long)last.bytes, (unsigned long long)first.bytes);
        batch_free(&b);
    }
}

Test(prefill, is_of_append_attend_alone)
{
    // Broken by an attend that takes the word and reads codes.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    batch b = batch_create(&reference, &shapes[0]);
    const int32_t num[SEQS] = { 2, 3 };
    kvl_attend_desc t = { .num_seqs = 1, .seqs = &b.source, .prefill = 1 };
    t.q.data = b.q;
    t.o.data = b.o;
    cr_assert(kvl_attend(b.c.cache, &t) == KVL_BAD_ARGUMENT);
    cr_assert(strstr(kvl_context_message(b.c.ctx), "prefill = 1: must be 0"), "%s",
              kvl_context_message(b.c.ctx));
    cr_assert(prefill(&b, num, 2) == KVL_BAD_ARGUMENT);
    cr_assert(strstr(kvl_context_message(b.c.ctx), "prefill = 2: must be 0 or 1"), "%s",
              kvl_context_message(b.c.ctx));
    batch_free(&b);
}
