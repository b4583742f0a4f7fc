// test_numerics.c -- what an engine adds to plain attention: sink logits, ALiBi, ranges of rows,
// parts.  Against float64 over the rows that kvl_restore gives.

#include "test_support.h"

enum { Q_HEADS = 6, HEADS = 2, DIM = 32, ROW = HEADS * DIM, ROWS = 300, NUM_Q = 3 };

static const float sinks[Q_HEADS] = { 0.5f, -INFINITY, 3.0f, -2.0f, 8.0f, 1.0f };
static const float slopes[Q_HEADS] = { 0.5f, 0.25f, 0.0f, 0.0625f, 0.03125f, 0.015625f };

typedef struct want {
    const float *sinks, *slopes;
    int64_t      begin, end;
    float        soft_cap;
    int          window_len;
} want;

// o [Q_HEADS, DIM] and lse [Q_HEADS] of a query at a position.
static void attend_f64(const want* w, const float* q, const float* k, const float* v,
                       int64_t position, double* o, double* lse)
{
    for (int h = 0; h < Q_HEADS; ++h) {
        double scores[ROWS], most = w->sinks ? (double)w->sinks[h] : -INFINITY, sum = 0;
        const int kv = h / (Q_HEADS / HEADS);
        for (int r = 0; r < ROWS; ++r) {
            double dot = 0;
            for (int i = 0; i < DIM; ++i)
                dot += (double)q[h * DIM + i] * (double)k[r * ROW + kv * DIM + i];
            dot /= sqrt(DIM);
            if (w->soft_cap > 0) dot = (double)w->soft_cap * tanh(dot / (double)w->soft_cap);
            if (w->slopes) dot += (double)w->slopes[h] * (double)(r - position);
            const int seen = r <= position && r >= w->begin && r < w->end &&
                             (!w->window_len || r > position - w->window_len);
            scores[r] = seen ? dot : -INFINITY;
            if (scores[r] > most) most = scores[r];
        }
        if (w->sinks && w->sinks[h] > -INFINITY) sum = exp((double)w->sinks[h] - most);
        for (int i = 0; i < DIM; ++i) o[h * DIM + i] = 0;
        for (int r = 0; r < ROWS; ++r) {
            if (scores[r] == -INFINITY) continue;
            const double p = exp(scores[r] - most);
            sum += p;
            for (int i = 0; i < DIM; ++i)
                o[h * DIM + i] += p * (double)v[r * ROW + kv * DIM + i];
        }
        lse[h] = sum > 0 ? most + log(sum) : -INFINITY;
        for (int i = 0; i < DIM && sum > 0; ++i) o[h * DIM + i] /= sum;
    }
}

static void near(const float* got, const double* expected, int num, double bound, const char* what)
{
    for (int i = 0; i < num; ++i) {
        if (expected[i] == -INFINITY) cr_assert(got[i] == -INFINITY, "%s: [%d] = %g", what, i,
                                                (double)got[i]);
        else cr_assert(fabs((double)got[i] - expected[i]) <= bound, "%s: [%d] = %g, expected %g",
                       what, i, (double)got[i], expected[i]);
    }
}

typedef struct rows {
    float *q, *k, *v, *restored_k, *restored_v;
} rows;

static rows rows_create(void)
{
    rows r = { test_floats(NUM_Q * Q_HEADS * DIM), test_floats(ROWS * ROW),
               test_floats(ROWS * ROW), test_floats(ROWS * ROW), test_floats(ROWS * ROW) };
    test_queries(3, NUM_Q, Q_HEADS, DIM, r.q);
    test_rows(1, ROWS, HEADS, DIM, r.k);
    test_rows(2, ROWS, HEADS, DIM, r.v);
    return r;
}

static void rows_free(rows* r)
{
    free(r->q);
    free(r->k);
    free(r->v);
    free(r->restored_k);
    free(r->restored_v);
}

static void attend_range(test_cache* c, kvl_seq seq, const float* q, const want* w, int partial,
                         const int64_t* position, float* o, float* lse)
{
    const int32_t one = 1;
    kvl_attend_desc d = { .num_seqs = 1, .seqs = &seq, .q_lens = &one, .q_positions = position,
                          .row_begins = &w->begin, .row_ends = &w->end, .partial = partial,
                          .q.data = q, .o.data = o, .lse = lse };
    test_ok(c->ctx, kvl_attend(c->cache, &d), "kvl_attend");
}

static const want wants[] = {
    { NULL, NULL, 0, ROWS, 0, 0 },
    { sinks, NULL, 0, ROWS, 0, 0 },
    { NULL, slopes, 0, ROWS, 0, 0 },
    { sinks, slopes, 17, 203, 5, 0 },
    { sinks, slopes, 0, 3, 0, 0 },
    { sinks, NULL, 250, 250, 0, 0 },
    { NULL, slopes, 100, 290, 0, 50 },
};

Test(numerics, every_kernel)
{
    static const char* const specs[] = { "f16", "kivi:recent=20", "rtn:b3,recent=5,rows=bf16" };
    static const int64_t positions[NUM_Q] = { ROWS - 1, 220, 40 };
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_attend_targets(targets);
    rows r = rows_create();
    for (int t = 0; t < num_targets; ++t) {
        for (size_t i = 0; i < 3 * sizeof wants / sizeof *wants; ++i) {
            const want* w = &wants[i / 3];
            char what[160];
            kvl_layer_desc layer = test_layer(specs[i % 3], Q_HEADS, HEADS, DIM, DIM);
            layer.sink_logits = w->sinks;
            layer.alibi_slopes = w->slopes;
            layer.soft_cap = w->soft_cap;
            layer.window_len = w->window_len;
            test_cache c = test_open(&targets[t], &layer);
            const kvl_seq seq = test_seq(&c);
            test_append(&c, seq, r.k, r.v, 0, ROWS);
            test_restore(&c, seq, 0, ROWS, r.restored_k, r.restored_v);
            // 16-bit weights: 1e-3 of the outputs' range, which is about 2.
            const int floats = targets[t].target == KVL_TARGET_REFERENCE ||
                               test_is_exact(&targets[t]);
            const double bound = floats ? 2e-5 : 2e-3;
            for (int j = 0; j < NUM_Q; ++j) {
                float o[Q_HEADS * DIM], lse[Q_HEADS];
                double expected[Q_HEADS * DIM], expected_lse[Q_HEADS];
                const float* q = r.q + j * Q_HEADS * DIM;
                snprintf(what, sizeof what, "%s on %s, case %zu, query %d", specs[i % 3],
                         targets[t].name, i / 3, j);
                attend_range(&c, seq, q, w, 0, &positions[j], o, lse);
                attend_f64(w, q, r.restored_k, r.restored_v, positions[j], expected, expected_lse);
                near(o, expected, Q_HEADS * DIM, bound, what);
                near(lse, expected_lse, Q_HEADS, floats ? 1e-4 : 3e-3, what);
            }
            test_close(&c);
        }
    }
    rows_free(&r);
}

// Two ranges as parts, and their merge with the sinks, are the whole.
Test(numerics, parts_make_the_whole)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    rows r = rows_create();
    kvl_layer_desc layer = test_layer("kivi:recent=20", Q_HEADS, HEADS, DIM, DIM);
    layer.sink_logits = sinks;
    layer.alibi_slopes = slopes;
    test_cache c = test_open(&target, &layer);
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, r.k, r.v, 0, ROWS);
    test_restore(&c, seq, 0, ROWS, r.restored_k, r.restored_v);
    const want whole = { sinks, slopes, 0, ROWS, 0, 0 };
    for (int64_t cut = 0; cut <= ROWS; cut += 75) {
        const want first = { NULL, slopes, 0, cut, 0, 0 };
        const want second = { NULL, slopes, cut, ROWS, 0, 0 };
        float o[3][Q_HEADS * DIM], lse[3][Q_HEADS];
        double expected[Q_HEADS * DIM], expected_lse[Q_HEADS];
        const int64_t position = ROWS - 1;
        attend_range(&c, seq, r.q, &first, 1, &position, o[0], lse[0]);
        attend_range(&c, seq, r.q, &second, 1, &position, o[1], lse[1]);
        attend_f64(&first, r.q, r.restored_k, r.restored_v, position, expected, expected_lse);
        near(o[0], expected, Q_HEADS * DIM, 2e-5, "a part has no sink");
        kvl_merge_desc d = { .num_rows = Q_HEADS, .head_dim = DIM, .o_a = o[0], .lse_a = lse[0],
                             .o_b = o[1], .lse_b = lse[1], .o = o[2], .lse = lse[2],
                             .sink_logits = sinks, .num_heads = Q_HEADS };
        test_ok(c.ctx, kvl_merge(c.ctx, &d), "kvl_merge");
        attend_f64(&whole, r.q, r.restored_k, r.restored_v, position, expected, expected_lse);
        near(o[2], expected, Q_HEADS * DIM, 2e-5, "merged");
        near(lse[2], expected_lse, Q_HEADS, 1e-4, "merged lse");
        d.num_heads = 0;
        cr_assert_eq(kvl_merge(c.ctx, &d), KVL_BAD_ARGUMENT);
        cr_assert(strstr(kvl_context_message(c.ctx), "num_heads = 0"));
    }
    test_close(&c);
    rows_free(&r);
}

static void refused(kvl_context* ctx, kvl_status status, const char* words)
{
    cr_assert(status == KVL_BAD_ARGUMENT && strstr(kvl_context_message(ctx), words), "%s: %s",
              words, kvl_context_message(ctx));
}

Test(numerics, refusals_and_memory)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    kvl_layer_desc layer = test_layer("f16", Q_HEADS, HEADS, DIM, DIM);
    float own[Q_HEADS];
    memcpy(own, sinks, sizeof own);
    layer.sink_logits = own;
    layer.alibi_slopes = slopes;
    test_cache c = test_open(&target, &layer);
    kvl_cache_desc desc = { .num_layers = 1, .layers = &layer };
    kvl_cache* cache;
    kvl_stats stats;
    uint64_t bytes;
    test_ok(c.ctx, kvl_estimate(c.ctx, &desc, 0, 0, &bytes), "estimate");
    test_ok(c.ctx, kvl_cache_stats(c.cache, &stats), "stats");
    cr_assert_eq(stats.bytes, bytes);
    own[2] = NAN;
    refused(c.ctx, kvl_cache_create(c.ctx, &desc, &cache), "layer 0: sink_logits[2] = nan");
    own[2] = INFINITY;
    refused(c.ctx, kvl_cache_create(c.ctx, &desc, &cache), "sink_logits[2] = inf");
    own[2] = 0;
    layer.alibi_slopes = sinks;
    refused(c.ctx, kvl_cache_create(c.ctx, &desc, &cache), "alibi_slopes[1] = -inf");
    const kvl_seq seq = test_seq(&c);
    const int64_t two = 2, one = 1, below = -1;
    float q[Q_HEADS * DIM] = { 0 }, o[Q_HEADS * DIM];
    kvl_attend_desc d = { .num_seqs = 1, .seqs = &seq, .row_begins = &two, .row_ends = &one,
                          .q.data = q, .o.data = o };
    refused(c.ctx, kvl_attend(c.cache, &d), "row_begins[0] = 2, row_ends[0] = 1");
    d.row_begins = &below;
    refused(c.ctx, kvl_attend(c.cache, &d), "row_begins[0] = -1");
    d.row_begins = NULL;
    d.partial = 2;
    refused(c.ctx, kvl_attend(c.cache, &d), "partial = 2");
    d.partial = 0;
    kvl_append_desc a = { .num_seqs = 1, .seqs = &seq, .k.data = q, .v.data = q };
    refused(c.ctx, kvl_append_attend(c.cache, &a, &d), "row_begins, row_ends: must be NULL");
    test_close(&c);
}
