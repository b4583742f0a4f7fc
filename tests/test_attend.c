// test_attend.c -- decode attention against float64: shapes, strides, masks, merges, threads.

#include "test_support.h"

// A cache with one sequence of test_rows, and queries for it.
typedef struct scene {
    test_cache c;
    kvl_seq    seq;
    float*     k;
    float*     v;
    float*     q;               // [num_q, q_heads, dk]
    int        num_rows, num_q;
} scene;

static scene scene_open(const test_target* target, const kvl_layer_desc* layer, int num_rows,
                        int num_q, int threads)
{
    scene s;
    memset(&s, 0, sizeof s);
    s.c = test_open_threads(target, layer, threads);
    s.seq = test_seq(&s.c);
    s.num_rows = num_rows;
    s.num_q = num_q;
    s.k = test_floats((int64_t)num_rows * layer->num_kv_heads * layer->head_dim);
    s.v = test_floats((int64_t)num_rows * layer->num_kv_heads * s.c.dv);
    s.q = test_floats((int64_t)num_q * layer->num_q_heads * layer->head_dim);
    test_rows(41, num_rows, layer->num_kv_heads, layer->head_dim, s.k);
    test_rows(42, num_rows, layer->num_kv_heads, s.c.dv, s.v);
    test_queries(43, num_q, layer->num_q_heads, layer->head_dim, s.q);
    return s;
}

static void scene_fill(scene* s)
{
    if (s->num_rows) test_append(&s->c, s->seq, s->k, s->v, 0, s->num_rows);
}

static void scene_close(scene* s)
{
    test_close(&s->c);
    free(s->k);
    free(s->v);
    free(s->q);
}

// SHAPES

static const char* const shape_specs[] = {
    "kivi:k2,v2,g16,sink=3,recent=5,page=16",
    "rtn:b4,g16,sink=3,recent=5,page=16",
    "kivi:k3,v4,g16,meta=f16,transform=hadamard16,sink=3,recent=5,page=16",
    "q8_0:g16,sink=1,page=16",
    "f16:page=16",
    "kivi:k1,v8,g16,v.transform=hadamard,sink=0,recent=2,page=16",
    "q4_0/bf16:g16,rows=bf16,sink=2,recent=1,page=16",
    "rtn:k4,v4,g16,shift=mean,sink=3,recent=5,page=16",
    "kivi:k2,v3,g16,shift=mean,transform=hadamard16,meta=f16,sink=3,recent=5,page=16",
    "f16/bf16:shift=mean,rows=bf16,sink=2,recent=1,page=16",
    "flagrot-kivi:k2,v2,g16,sink=3,recent=5,page=16",
    "flagrot-auto:k3,v4,g16,k.meta=f16,k.score=channel,sink=3,recent=5,page=16",
    "flagrot-auto:k4,v2,g16,k.choose=fixed,sink=0,recent=1,page=16",
    "kivi:k4,v4,g16,k.shift=rotating-mean,k.transform=hadamard,meta=f16,sink=3,recent=5,page=16"
};
enum { NUM_SHAPE_SPECS = 14 };

static void check_shape(const test_target* target, int dk, int dv, int share, int which)
{
    static const int lengths[] = { 0, 1, 15, 16, 17, 71 };
    const kvl_layer_desc layer = test_layer(shape_specs[which], 2 * share, 2, dk, dv);
    scene s = scene_open(target, &layer, 71, 2, 0);
    char what[256];
    for (int i = 0, done = 0; i < 6; ++i) {
        if (lengths[i] > done)
            test_append(&s.c, s.seq, s.k, s.v, done, lengths[i] - done);
        done = lengths[i];
        snprintf(what, sizeof what, "%s on %s, head dims %d and %d, %d query heads a KV head, %d "
                 "rows",
                 shape_specs[which], target->name, dk, dv, share, done);
        if (done >= 2) test_attend_check(&s.c, s.seq, s.q, 2, NULL, what);
        else test_attend_check(&s.c, s.seq, s.q, 1, NULL, what);
    }
    scene_close(&s);
}

Test(attend, every_shape_on_the_reference)
{
    // Broken by a head size that is no power of two, a ratio that is none, or dims that differ.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    for (int i = 0; i < 15; ++i)
        for (int share = 1; share <= 16; ++share)
            check_shape(&reference, 32 + 16 * i, 32 + 16 * ((i * 4 + share) % 15), share,
                        (i + share) % NUM_SHAPE_SPECS);
}

Test(attend, shapes_on_the_host)
{
    // Broken by a vector tail: every head dim as keys, every ratio, dims of values that differ.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    for (int i = 0; n > 1 && i < 16; ++i)
        check_shape(&targets[1], 32 + 16 * (i % 15), 32 + 16 * ((i * 4 + 3) % 15), i + 1,
                    i % NUM_SHAPE_SPECS);
}

Test(attend, shapes_at_each_level)
{
    // Broken by one instruction set alone.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    for (int i = 2; i < n; ++i)
        for (int which = 0; which < NUM_SHAPE_SPECS; which += which == 9 ? 1 : 3)
            check_shape(&targets[i], 80, 112, 3, which);
}

// DECODING

Test(attend, decoding_step_by_step_past_several_flushes)
{
    // Broken where a chunk, a page or a window begins: each length from 1 to 230 is attended.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    for (int i = 0; i < n; ++i) {
        const kvl_layer_desc layer =
            test_layer("kivi:k2,v2,kg16,vg16,sink=4,recent=24,chunk=16", 6, 2, 64, 64);
        scene s = scene_open(&targets[i], &layer, 230, 1, 0);
        char what[64];
        for (int t = 0; t < s.num_rows; ++t) {
            test_append(&s.c, s.seq, s.k, s.v, t, 1);
            snprintf(what, sizeof what, "%s, %d rows", targets[i].name, t + 1);
            test_attend_check(&s.c, s.seq, s.q, 1, NULL, what);
        }
        scene_close(&s);
    }
}

Test(attend, thread_counts_give_the_same_bytes)
{
    // Broken by splits that follow the number of threads, or by threads that share scratch.
    static const int threads[] = { 1, 2, 3, 7 };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    enum { ROWS = 3000, FLOATS = 2 * 6 * 64 };
    for (int i = 0; i < n; ++i) {
        float first_o[FLOATS], first_lse[12], o[FLOATS], lse[12];
        for (int j = 0; j < 8; ++j) {
            const kvl_layer_desc layer =
                test_layer("kivi:k2,v2,kg16,vg16,sink=4,recent=24,chunk=16", 6, 2, 64, 64);
            scene s = scene_open(&targets[i], &layer, ROWS, 2, threads[j % 4]);
            scene_fill(&s);
            test_attend(&s.c, s.seq, s.q, 2, NULL, j ? o : first_o, j ? lse : first_lse);
            if (j == 0) test_attend_check(&s.c, s.seq, s.q, 2, NULL, targets[i].name);
            else cr_assert(memcmp(o, first_o, sizeof o) == 0 &&
                           memcmp(lse, first_lse, sizeof lse) == 0,
                           "%s: %d threads give other bytes than 1", targets[i].name,
                           threads[j % 4]);
            scene_close(&s);
        }
    }
}

Test(attend, rows_that_name_their_position)
{
    // Broken by a row that is read twice, skipped or swapped: the answer is a mean of positions.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    for (int i = 0; i < n; ++i) {
        const kvl_layer_desc layer = test_layer("f16:sink=2,recent=7,page=16", 4, 2, 32, 32);
        scene s = scene_open(&targets[i], &layer, 1000, 1, 0);
        float o[4 * 32], lse[4];
        for (int t = 0; t < s.num_rows; ++t)
            for (int c = 0; c < 64; ++c) s.v[t * 64 + c] = (float)t;
        for (int c = 0; c < 4 * 32; ++c) s.q[c] = 0;
        scene_fill(&s);
        test_attend(&s.c, s.seq, s.q, 1, NULL, o, lse);
        // The mean of 0 .. 999; f32 sums of 1000 terms are within 1000 * 2^-24 of their size.
        for (int c = 0; c < 4 * 32; ++c)
            cr_assert(fabs((double)o[c] - 499.5) <= 999 * 1000 * ldexp(1, -24),
                      "%s: channel %d: %.9g, expected 499.5", targets[i].name, c, (double)o[c]);
        cr_assert(fabs((double)lse[0] - log(1000)) <= 1e-5, "%s: lse %.9g", targets[i].name,
                  (double)lse[0]);
        test_attend_check(&s.c, s.seq, s.q, 1, NULL, targets[i].name);
        scene_close(&s);
    }
}

Test(attend, query_heads_map_to_their_kv_head)
{
    // Broken by a wrong divisor: KV head h holds h + 1 in every value.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    static const int heads[][2] = { { 3, 3 }, { 12, 4 }, { 35, 5 }, { 32, 2 } };
    for (int i = 0; i < (n > 1 ? 2 : 1); ++i)
        for (int j = 0; j < 4; j += i ? 2 : 1) {
            const int hq = heads[j][0], hkv = heads[j][1];
            const kvl_layer_desc layer = test_layer("f16:page=16", hq, hkv, 32, 32);
            scene s = scene_open(&targets[i], &layer, 40, 1, 0);
            float* o = test_floats(hq * 32);
            for (int t = 0; t < 40 * hkv * 32; ++t) s.v[t] = (float)(t / 32 % hkv + 1);
            scene_fill(&s);
            test_attend(&s.c, s.seq, s.q, 1, NULL, o, NULL);
            for (int c = 0; c < hq * 32; ++c) {
                const double want = c / 32 / (hq / hkv) + 1;
                cr_assert(fabs((double)o[c] - want) <= want * 1e-5, "%s: %d of %d heads: query "
                          "head %d reads %.6g, expected %g", targets[i].name, hq, hkv, c / 32,
                          (double)o[c], want);
            }
            free(o);
            scene_close(&s);
        }
}

// STRIDES AND TYPES

Test(attend, slices_of_a_fused_buffer)
{
    // Broken by a stride that is derived from a shape, or from the other side's.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    enum { HQ = 6, HKV = 2, DK = 48, DV = 80, ROWS = 90, FUSED = HQ * DK + HKV * DK + HKV * DV + 5,
           O_HEAD = DV + 3, O_ROW = HQ * O_HEAD + 7 };
    for (int i = 0; i < (n > 1 ? 2 : 1); ++i) {
        const kvl_layer_desc layer =
            test_layer("kivi:k2,v4,g16,sink=4,recent=8,page=16", HQ, HKV, DK, DV);
        scene s = scene_open(&targets[i], &layer, ROWS, 1, 0);
        float* fused = test_floats(ROWS * FUSED);
        float o[2 * O_ROW], expected[2 * HQ * DV], q[2 * HQ * DK];
        scene_fill(&s);
        const kvl_seq other = test_seq(&s.c);
        test_queries(3, 2, HQ, DK, q);
        for (int t = 0; t < ROWS; ++t) {
            float* row = fused + t * FUSED;
            memcpy(row, q + t % 2 * HQ * DK, HQ * DK * sizeof(float));
            memcpy(row + HQ * DK, s.k + t * HKV * DK, HKV * DK * sizeof(float));
            memcpy(row + HQ * DK + HKV * DK, s.v + t * HKV * DV, HKV * DV * sizeof(float));
        }
        kvl_append_desc a = { 0 };
        const int32_t num_rows = ROWS, q_len = 2;
        a.num_seqs = 1;
        a.seqs = &other;
        a.num_rows = &num_rows;
        a.k = (kvl_const_rows){ fused + HQ * DK, KVL_F32, FUSED, DK };
        a.v = (kvl_const_rows){ fused + HQ * DK + HKV * DK, KVL_F32, FUSED, 0 };
        test_ok(s.c.ctx, kvl_append(s.c.cache, &a), "an append of slices");
        const test_state x = test_snapshot(&s.c, s.seq), y = test_snapshot(&s.c, other);
        test_same_state(&x, &y, "slices");
        for (int j = 0; j < 2 * O_ROW; ++j) o[j] = -12345;
        kvl_attend_desc t = { 0 };
        t.num_seqs = 1;
        t.seqs = &other;
        t.q_lens = &q_len;
        t.q = (kvl_const_rows){ fused, KVL_F32, FUSED, DK };
        t.o = (kvl_rows){ o, KVL_F32, O_ROW, O_HEAD };
        test_ok(s.c.ctx, kvl_attend(s.c.cache, &t), "attention of slices");
        test_attend(&s.c, s.seq, q, 2, NULL, expected, NULL);
        for (int j = 0; j < 2 * O_ROW; ++j) {
            const int row = j / O_ROW, head = j % O_ROW / O_HEAD, c = j % O_ROW % O_HEAD;
            const int inside = head < HQ && c < DV;
            cr_assert(o[j] == (inside ? expected[(row * HQ + head) * DV + c] : -12345.0f),
                      "%s: row %d head %d channel %d: %.9g", targets[i].name, row, head, c,
                      (double)o[j]);
        }
        free(fused);
        scene_close(&s);
    }
}

static void to_bits(const float* x, int64_t n, kvl_type type, uint16_t* out)
{
    for (int64_t i = 0; i < n; ++i)
        out[i] = type == KVL_F16 ? test_bits_f16(test_round_f16(x[i]))
                                 : test_bits_bf16(test_round_bf16(x[i]));
}

static void check_types(const test_target* target, const char* spec, kvl_type type)
{
    enum { HQ = 4, HKV = 2, D = 48, ROWS = 60 };
    const kvl_layer_desc layer = test_layer(spec, HQ, HKV, D, D);
    scene s = scene_open(target, &layer, ROWS, 1, 0);
    uint16_t* k = (uint16_t*)test_alloc(ROWS * HKV * D, 2);
    uint16_t* v = (uint16_t*)test_alloc(ROWS * HKV * D, 2);
    uint16_t q[HQ * D], o[HQ * D];
    float plain[HQ * D], restored[HKV * D];
    uint16_t restored_bits[HKV * D];
    for (int i = 0; i < ROWS * HKV * D; ++i) {
        s.k[i] = type == KVL_F16 ? test_round_f16(s.k[i]) : test_round_bf16(s.k[i]);
        s.v[i] = type == KVL_F16 ? test_round_f16(s.v[i]) : test_round_bf16(s.v[i]);
    }
    for (int i = 0; i < HQ * D; ++i)
        s.q[i] = type == KVL_F16 ? test_round_f16(s.q[i]) : test_round_bf16(s.q[i]);
    to_bits(s.k, ROWS * HKV * D, type, k);
    to_bits(s.v, ROWS * HKV * D, type, v);
    to_bits(s.q, HQ * D, type, q);
    scene_fill(&s);
    const kvl_seq other = test_seq(&s.c);
    kvl_append_desc a = { 0 };
    const int32_t num_rows = ROWS;
    a.num_seqs = 1;
    a.seqs = &other;
    a.num_rows = &num_rows;
    a.k = (kvl_const_rows){ k, type, 0, 0 };
    a.v = (kvl_const_rows){ v, type, 0, 0 };
    test_ok(s.c.ctx, kvl_append(s.c.cache, &a), "an append of 16-bit rows");
    const test_state x = test_snapshot(&s.c, s.seq), y = test_snapshot(&s.c, other);
    test_same_state(&x, &y, spec);
    kvl_attend_desc t = { 0 };
    t.num_seqs = 1;
    t.seqs = &other;
    t.q = (kvl_const_rows){ q, type, 0, 0 };
    t.o = (kvl_rows){ o, type, 0, 0 };
    test_ok(s.c.ctx, kvl_attend(s.c.cache, &t), "attention with 16-bit queries");
    test_attend(&s.c, s.seq, s.q, 1, NULL, plain, NULL);
    for (int i = 0; i < HQ * D; ++i) {
        const float want = type == KVL_F16 ? test_round_f16(plain[i]) : test_round_bf16(plain[i]);
        const float got = type == KVL_F16 ? test_value_f16(o[i]) : test_value_bf16(o[i]);
        cr_assert(got == want, "%s on %s: output %d is %.9g, expected %.9g", spec, target->name, i,
                  (double)got, (double)want);
    }
    test_restore(&s.c, s.seq, 20, 1, restored, NULL);
    const kvl_rows as_bits = { restored_bits, type, 0, 0 }, none = { NULL, KVL_F32, 0, 0 };
    test_ok(s.c.ctx, kvl_restore(s.c.cache, 0, s.seq, 20, 1, &as_bits, &none), "16-bit rows");
    for (int i = 0; i < HKV * D; ++i) {
        const float want = type == KVL_F16 ? test_round_f16(restored[i])
                                           : test_round_bf16(restored[i]);
        const float got = type == KVL_F16 ? test_value_f16(restored_bits[i])
                                          : test_value_bf16(restored_bits[i]);
        cr_assert(got == want, "%s: restored channel %d is %.9g, expected %.9g", spec, i,
                  (double)got, (double)want);
    }
    free(k);
    free(v);
    scene_close(&s);
}

Test(attend, types_of_rows_and_outputs)
{
    // Broken by a type that is converted twice, truncated, or taken for another.
    const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };
    static const char* const specs[] = { "kivi:k2,v4,g16,sink=4,recent=8,page=16",
                                         "f16:page=16", "rtn:b4,g16,rows=bf16,sink=4,recent=8" };
    for (int i = 0; i < 3; ++i) {
        check_types(&reference, specs[i], KVL_F16);
        check_types(&reference, specs[i], KVL_BF16);
    }
}

// EMPTY SETS, MASKS, WINDOWS

Test(attend, nothing_visible_is_zero_and_minus_infinity)
{
    // Broken by a division by an empty sum, or by an output that is left as it was.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    for (int i = 0; i < n; ++i) {
        kvl_layer_desc layer = test_layer("rtn:b4,g16,sink=2,recent=3,page=16", 4, 2, 32, 48);
        layer.window_len = 10;
        scene s = scene_open(&targets[i], &layer, 60, 1, 0);
        float o[4 * 48], lse[4];
        for (int pass = 0; pass < 2; ++pass) {
            // First no rows; then 60 rows and a query at 69, whose window is 60 .. 69.
            const int64_t position = pass ? 69 : 0;
            if (pass) scene_fill(&s);
            for (int c = 0; c < 4 * 48; ++c) o[c] = 7;
            lse[0] = lse[1] = lse[2] = lse[3] = 7;
            test_attend(&s.c, s.seq, s.q, 1, &position, o, lse);
            for (int c = 0; c < 4 * 48; ++c)
                cr_assert(o[c] == 0, "%s: output %d is %g", targets[i].name, c, (double)o[c]);
            for (int h = 0; h < 4; ++h)
                cr_assert(isinf(lse[h]) && lse[h] < 0, "%s: lse %g", targets[i].name,
                          (double)lse[h]);
        }
        const int64_t edge = 68;                  // sees row 59 alone
        test_attend_check(&s.c, s.seq, s.q, 1, &edge, targets[i].name);
        scene_close(&s);
    }
}

// V of row t is one-hot at t, every score is 0: the output lists who was seen, with what weight.
static void check_one_hot(const test_target* target, int window_len)
{
    enum { D = 96, ROWS = 90, HQ = 2 };
    kvl_layer_desc layer = test_layer("f16:sink=2,recent=3,chunk=16,page=16", HQ, 1, 32, D);
    layer.window_len = window_len;
    scene s = scene_open(target, &layer, ROWS, 1, 0);
    float o[HQ * D], lse[HQ];
    memset(s.v, 0, sizeof(float) * ROWS * D);
    for (int t = 0; t < ROWS; ++t) s.v[t * D + t] = 1;
    for (int c = 0; c < HQ * 32; ++c) s.q[c] = 0;
    for (int len = 1; len <= ROWS; ++len) {
        test_append(&s.c, s.seq, s.k, s.v, len - 1, 1);
        for (int64_t p = len - 1; p >= 0; p -= len == ROWS ? 1 : len) {
            const int64_t first = window_len && p - window_len + 1 > 0 ? p - window_len + 1 : 0;
            const double weight = 1.0 / (double)(p - first + 1);
            test_attend(&s.c, s.seq, s.q, 1, &p, o, lse);
            for (int c = 0; c < HQ * D; ++c) {
                const int t = c % D;
                const double want = t >= first && t <= p ? weight : 0;
                // A masked row is exactly absent; 1 / n is right within a few roundings.
                cr_assert(want == 0 ? o[c] == 0 : fabs((double)o[c] - want) <= 1e-5 * want,
                          "%s, window %d, %d rows, position %lld: row %d has weight %.9g, expected "
                          "%.9g", target->name, window_len, len, (long long)p, t, (double)o[c],
                          want);
            }
            cr_assert(fabs((double)lse[0] + log(weight)) <= 1e-5, "%s: lse %.9g, expected %.9g",
                      target->name, (double)lse[0], -log(weight));
        }
    }
    scene_close(&s);
}

Test(attend, one_hot_values_list_who_is_seen)
{
    // Broken by a mask or a window that is off by one, in any of the three regions.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    static const int windows[] = { 0, 1, 2, 3, 15, 16, 17, 33, 64, 90, 1000 };
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < 11; j += i == 0 ? 1 : 3) check_one_hot(&targets[i], windows[j]);
}

Test(attend, soft_cap_and_scale_and_window)
{
    // Broken by a cap before the scale, a cap after the mask, or one that a path forgets.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    static const float caps[] = { 0.5f, 5, 30, 1000 };
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < 4; ++j)
            for (int window = 0; window <= 50; window += 50) {
                kvl_layer_desc layer =
                    test_layer("kivi:k2,v2,kg16,vg16,sink=4,recent=24,chunk=16", 6, 2, 64, 64);
                layer.soft_cap = caps[j];
                layer.softmax_scale = 0.3f;
                layer.window_len = window;
                scene s = scene_open(&targets[i], &layer, 150, 3, 0);
                char what[64];
                scene_fill(&s);
                snprintf(what, sizeof what, "%s, cap %g, window %d", targets[i].name,
                         (double)caps[j], window);
                test_attend_check(&s.c, s.seq, s.q, 3, NULL, what);
                scene_close(&s);
            }
}

Test(attend, scores_of_a_hundred_thousand)
{
    // Broken by scores in half precision, a finite minus infinity, or exp of a positive number.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    for (int i = 0; i < n; ++i)
        for (int sign = -1; sign <= 1; sign += 2) {
            kvl_layer_desc layer = test_layer("f16:sink=2,recent=3,chunk=16,page=16", 2, 1, 32, 96);
            layer.softmax_scale = 1;
            scene s = scene_open(&targets[i], &layer, 80, 1, 0);
            float o[2 * 96], lse[2];
            // Scores are sign * 1e5 + t / 8 at even rows and 0.125 less at odd ones: all but equal.
            for (int t = 0; t < 80; ++t)
                for (int c = 0; c < 32; ++c) s.k[t * 32 + c] = c == 0 ? (float)sign * 1000 :
                                                           c == 1 ? (float)(t % 2) : 0;
            for (int c = 0; c < 64; ++c) s.q[c] = c % 32 == 0 ? 100 : c % 32 == 1 ? -0.125f : 0;
            scene_fill(&s);
            test_attend(&s.c, s.seq, s.q, 1, NULL, o, lse);
            for (int c = 0; c < 2 * 96; ++c)
                cr_assert(isfinite(o[c]), "%s: output %d is not finite", targets[i].name, c);
            cr_assert(isfinite(lse[0]) && isfinite(lse[1]), "%s: lse is not finite",
                      targets[i].name);
            test_attend_check(&s.c, s.seq, s.q, 1, NULL, targets[i].name);
            scene_close(&s);
        }
}

// INTEGER SUMS

static const char* const integer_specs[] = {
    "kivi:k2,v2,g32,sink=0,recent=0", "kivi:k4,v4,g32,sink=0,recent=0",
    "kivi:k3,v5,g16,meta=f16,sink=0,recent=0", "rtn:b4,g32,sink=0,recent=0",
    "rtn:k8,v1,g16,sink=0,recent=0", "q8_0", "q4_0", "kivi:k6,v8,g64,sink=0,recent=0,page=192"
};
enum { NUM_INTEGER_SPECS = 8 };

Test(attend, integer_sums_are_taken_unless_floats_are_asked_for)
{
    // Broken by a generator that falls back to floats for a preset, or ignores `exact`.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    enum { HQ = 4, D = 64, ROWS = 256 };
    for (int i = 1; i < n; ++i)
        for (int j = 0; j < NUM_INTEGER_SPECS && targets[i].target == KVL_TARGET_HOST; ++j) {
            char name[32];
            snprintf(name, sizeof name, "%s exact", targets[i].name);
            const test_target floats = { name, KVL_TARGET_HOST, targets[i].isa };
            const kvl_layer_desc layer = test_layer(integer_specs[j], HQ, 1, D, D);
            scene a = scene_open(&targets[i], &layer, ROWS, 1, 1);
            scene b = scene_open(&floats, &layer, ROWS, 1, 1);
            float oa[HQ * D], ob[HQ * D];
            scene_fill(&a);
            scene_fill(&b);
            test_attend(&a.c, a.seq, a.q, 1, NULL, oa, NULL);
            test_attend(&b.c, b.seq, b.q, 1, NULL, ob, NULL);
            cr_assert((memcmp(oa, ob, sizeof oa) != 0) == a.c.rounds, "%s on %s: exact gives %s",
                      integer_specs[j], targets[i].name, a.c.rounds ? "the same" : "other bytes");
            test_attend_check(&a.c, a.seq, a.q, 1, NULL, integer_specs[j]);
            test_attend_check(&b.c, b.seq, b.q, 1, NULL, integer_specs[j]);
            scene_close(&a);
            scene_close(&b);
        }
}

// Keys are +-1 in channel 0 and equal otherwise; the query is 1 there and 1e5 in channel 1, so that
// scores are sign * 1e5 +- 1 and 16 bits of the query alone do not tell the rows apart.
static void check_large_scores(const test_target* target, const char* spec, float sign)
{
    enum { D = 64, ROWS = 192 };
    kvl_layer_desc layer = test_layer(spec, 2, 1, D, D);
    layer.softmax_scale = 1;
    scene s = scene_open(target, &layer, ROWS, 1, 0);
    float o[2 * D], lse[2], k[ROWS * D], v[ROWS * D];
    for (int t = 0; t < ROWS; ++t) {
        for (int c = 0; c < D; ++c) s.k[t * D + c] = (float)(c % 5 - 2) / 2;
        s.k[t * D] = t % 2 ? -1.0f : 1.0f;
        s.k[t * D + 1] = sign;
        for (int c = 0; c < D; ++c) s.v[t * D + c] = t % 2 ? -1.0f : (float)(c % 3);
    }
    for (int c = 0; c < 2 * D; ++c) s.q[c] = c % D == 0 ? 1 : c % D == 1 ? 1e5f : 0;
    scene_fill(&s);
    test_attend(&s.c, s.seq, s.q, 1, NULL, o, lse);
    test_restore(&s.c, s.seq, 0, ROWS, k, v);
    for (int c = 0; c < D; ++c) {
        double top = -INFINITY, sum = 0, want = 0;
        for (int t = 0; t < ROWS; ++t) {
            const double score = (double)k[t * D] + 1e5 * (double)k[t * D + 1];
            top = fmax(top, score);
        }
        for (int t = 0; t < ROWS; ++t) {
            const double w = exp((double)k[t * D] + 1e5 * (double)k[t * D + 1] - top);
            sum += w;
            want += w * (double)v[t * D + c];
        }
        // Scores near 1e5 are multiples of 2^-7 and sums of a few roundings.
        cr_assert(fabs((double)o[c] - want / sum) <= 0.06, "%s on %s, sign %g: channel %d: %.6g, "
                  "expected %.6g", spec, target->name, (double)sign, c, (double)o[c], want / sum);
    }
    scene_close(&s);
}

Test(attend, codes_with_scores_of_a_hundred_thousand_keep_their_order)
{
    // Broken by queries that are rounded to fewer bits than their largest channel needs.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < NUM_INTEGER_SPECS; ++j) {
            check_large_scores(&targets[i], integer_specs[j], 1);
            check_large_scores(&targets[i], integer_specs[j], -1);
        }
}

// Rows whose sizes differ by powers of two from token to token and from channel to channel, with
// channels that are zero for a while, and queries that are largest where keys are smallest.
static void make_hostile(scene* s, int dim, int seed)
{
    test_lcg lcg = { (uint64_t)seed };
    for (int t = 0; t < s->num_rows; ++t) {
        const int row = test_uniform(&lcg, 21) - 10, epoch = t / 32;
        for (int c = 0; c < dim; ++c) {
            const int wide = (c * 7 + epoch * (seed % 3)) % 13 - 6;
            const int silent = (c + epoch) % 11 == 0;
            const float x = (float)test_bell(&lcg) / 8192, y = (float)test_bell(&lcg) / 8192;
            s->k[t * dim + c] = silent ? 0 : ldexpf(x + (float)(c % 3), wide);
            s->v[t * dim + c] = ldexpf(y + (float)(c % 4 == 1), seed % 2 ? row : wide);
        }
    }
    for (int i = 0; i < s->num_q * s->c.layer.num_q_heads * dim; ++i)
        s->q[i] = ldexpf(s->q[i], 6 - (i % dim * 7) % 13) / 4;
}

Test(attend, rows_of_very_different_sizes)
{
    // Broken by weights that share a unit with ones they are far below, or scales that are compared
    // with those of a group long past.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    enum { D = 64, ROWS = 384 };
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < NUM_INTEGER_SPECS; ++j)
            for (int seed = 1; seed <= 6; ++seed) {
                const kvl_layer_desc layer = test_layer(integer_specs[j], 3, 1, D, D);
                scene s = scene_open(&targets[i], &layer, ROWS, 2, 0);
                char what[96];
                make_hostile(&s, D, seed);
                scene_fill(&s);
                snprintf(what, sizeof what, "%s on %s, hostile rows %d", integer_specs[j],
                         targets[i].name, seed);
                test_attend_check(&s.c, s.seq, s.q, 2, NULL, what);
                scene_close(&s);
            }
}

Test(attend, heads_and_dims_of_integer_sums)
{
    // Broken by a vector that is half full, heads that do not fill a tile, or a strip's remainder.
    static const char* const specs[] = { "kivi:k2,v2,g16,sink=1,recent=2,page=16",
                                         "kivi:k1,v3,g16,sink=1,recent=2,page=144",
                                         "rtn:k3,v1,g16,sink=1,recent=2,page=48",
                                         "kivi:k5,v2,kg48,vg16,sink=1,recent=2,page=48",
                                         "rtn:k4,v4,g8,sink=0,recent=1",
                                         "kivi:k2,v2,kg20,vg20,sink=0,recent=1" };
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int i = 1; i < n; ++i)
        for (int j = 0; j < 6; ++j)
            for (int share = 1 + j % 3; share <= 16; share += 7 + j) {
                const int dk = j == 5 ? 80 : 48 + 32 * (share % 4), dv = j == 5 ? 160 : 112;
                const kvl_layer_desc layer = test_layer(specs[j], share, 1, dk, dv);
                scene s = scene_open(&targets[i], &layer, 333, 1, 0);
                char what[96];
                snprintf(what, sizeof what, "%s on %s, %d heads", specs[j], targets[i].name, share);
                scene_fill(&s);
                test_attend_check(&s.c, s.seq, s.q, 1, NULL, what);
                const int64_t middle = 151;
                test_attend_check(&s.c, s.seq, s.q, 1, &middle, what);
                scene_close(&s);
            }
}

// MERGES, BATCHES, QUERY ROWS

Test(attend, merging_by_lse_outside_equals_one_shot)
{
    // Broken by an lse of another base, or a past that already holds the new rows.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    enum { HQ = 4, HKV = 2, D = 48, PAST = 83, MORE = 5, ROWS = PAST + MORE };
    for (int i = 0; i < n; ++i) {
        const kvl_layer_desc layer =
            test_layer("f16:sink=2,recent=3,chunk=16,page=16", HQ, HKV, D, D);
        scene s = scene_open(&targets[i], &layer, ROWS, MORE, 0);
        float past_o[MORE * HQ * D], past_lse[MORE * HQ];
        int64_t positions[MORE];
        for (int j = 0; j < ROWS * HKV * D; ++j) {
            s.k[j] = test_round_f16(s.k[j]);
            s.v[j] = test_round_f16(s.v[j]);
        }
        for (int j = 0; j < MORE; ++j) positions[j] = PAST + j;
        test_append(&s.c, s.seq, s.k, s.v, 0, PAST);
        test_attend(&s.c, s.seq, s.q, MORE, positions, past_o, past_lse);
        test_attention fresh, whole;
        memset(&whole, 0, sizeof whole);
        whole.q = s.q;
        whole.k = s.k;
        whole.v = s.v;
        whole.num_q = MORE;
        whole.q_heads = HQ;
        whole.kv_heads = HKV;
        whole.dk = whole.dv = D;
        whole.kv_len = ROWS;
        whole.positions = positions;
        fresh = whole;
        fresh.k += PAST * HKV * D;
        fresh.v += PAST * HKV * D;
        fresh.kv_len = MORE;
        const int64_t fresh_positions[MORE] = { 0, 1, 2, 3, 4 };
        fresh.positions = fresh_positions;
        test_attention_run(&whole);
        test_attention_run(&fresh);
        float merged_o[MORE * HQ * D], merged_lse[MORE * HQ];
        for (int at = 0; at < MORE * HQ; ++at) {
            const double a = (double)past_lse[at], b = fresh.lse[at];
            const double top = fmax(a, b), sum = exp(a - top) + exp(b - top);
            merged_lse[at] = (float)(top + log(sum));
            for (int c = 0; c < D; ++c)
                merged_o[at * D + c] = (float)((exp(a - top) * (double)past_o[at * D + c] +
                                                exp(b - top) * fresh.o[at * D + c]) / sum);
        }
        test_attention_check(&whole, merged_o, merged_lse, targets[i].name);
        test_attention_free(&whole);
        test_attention_free(&fresh);
        scene_close(&s);
    }
}

Test(attend, a_ragged_batch_equals_its_sequences_alone)
{
    // Broken by a batch index that is used as a length, or by a result that depends on neighbours.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    enum { SEQS = 4, HQ = 6, HKV = 2, D = 64, NUM_Q = 3 + 0 + 1 + 2 };
    static const int lengths[SEQS] = { 150, 40, 0, 77 };
    static const int32_t q_lens[SEQS] = { 3, 0, 1, 2 };
    for (int i = 0; i < n; ++i) {
        const kvl_layer_desc layer =
            test_layer("kivi:k2,v2,kg16,vg16,sink=4,recent=24,chunk=16", HQ, HKV, D, D);
        scene s = scene_open(&targets[i], &layer, 300, NUM_Q, 0);
        kvl_seq seqs[SEQS];
        float o[NUM_Q * HQ * D], lse[NUM_Q * HQ], one_o[3 * HQ * D], one_lse[3 * HQ];
        for (int j = 0, first = 0; j < SEQS; first += lengths[j++]) {
            seqs[j] = test_seq(&s.c);
            if (lengths[j]) test_append(&s.c, seqs[j], s.k, s.v, first, lengths[j]);
        }
        kvl_attend_desc t = { 0 };
        t.num_seqs = SEQS;
        t.seqs = seqs;
        t.q_lens = q_lens;
        t.q.data = s.q;
        t.o.data = o;
        t.lse = lse;
        test_ok(s.c.ctx, kvl_attend(s.c.cache, &t), "a ragged kvl_attend");
        for (int j = 0, first = 0; j < SEQS; first += q_lens[j++]) {
            const int64_t position = lengths[j] ? lengths[j] - q_lens[j] : 0;
            if (q_lens[j] == 0) continue;
            const size_t bytes = (size_t)(q_lens[j] * HQ) * sizeof(float);
            test_attend(&s.c, seqs[j], s.q + first * HQ * D, q_lens[j],
                        lengths[j] ? &position : NULL, one_o, one_lse);
            cr_assert(memcmp(one_o, o + first * HQ * D, bytes * D) == 0,
                      "%s: sequence %d has another output in a batch", targets[i].name, j);
            cr_assert(memcmp(one_lse, lse + first * HQ, bytes) == 0,
                      "%s: sequence %d has another lse in a batch", targets[i].name, j);
            test_attend_check(&s.c, seqs[j], s.q + first * HQ * D, q_lens[j],
                              lengths[j] ? &position : NULL, targets[i].name);
        }
        test_attend(&s.c, seqs[0], s.q, 3, NULL, one_o, NULL);
        cr_assert(memcmp(one_o, o, sizeof one_o) == 0, "%s: o depends on whether lse is asked for",
                  targets[i].name);
        scene_close(&s);
    }
}

Test(attend, query_rows_are_causal)
{
    // Broken by query rows that see each other's newest row, over more rows than one wave holds.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    for (int i = 0; i < (n > 1 ? 2 : 1); ++i) {
        const kvl_layer_desc layer =
            test_layer("f16:sink=2,recent=3,chunk=16,page=16", 4, 2, 48, 48);
        scene s = scene_open(&targets[i], &layer, 300, 300, 0);
        const int64_t all = 0, beyond = 250;
        scene_fill(&s);
        test_attend_check(&s.c, s.seq, s.q, 300, NULL, "all rows of a prompt");
        test_attend_check(&s.c, s.seq, s.q, 7, &all, "the first rows");
        test_attend_check(&s.c, s.seq, s.q, 100, &beyond, "rows before and after the end");
        scene_close(&s);
    }
}

Test(attend, poisoned_memory_changes_nothing)
{
    // Broken by a read of memory that nobody wrote: weight zero times NaN is NaN.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    enum { HQ = 6, HKV = 2, D = 64, ROWS = 139 };
    for (int i = 0; i < n; ++i) {
        const kvl_layer_desc layer =
            test_layer("kivi:k2,v2,kg16,vg16,sink=4,recent=24,chunk=16", HQ, HKV, D, D);
        scene s = scene_open(&targets[i], &layer, ROWS, 1, 0);
        test_memory memory;
        kvl_context_desc cd = { 0 };
        kvl_cache_desc kd = { 0 };
        test_cache c = s.c;
        float o[HQ * D], lse[HQ], poisoned_o[HQ * D], poisoned_lse[HQ];
        test_memory_init(&memory);
        cd.target = targets[i].target;
        cd.isa = targets[i].isa;
        cd.exact = test_is_exact(&targets[i]);
        cd.allocator = test_memory_allocator(&memory);
        const kvl_status status = kvl_context_create(&cd, &c.ctx);
        test_ok(c.ctx, status, "a context with an allocator");
        kd.num_layers = 1;
        kd.layers = &layer;
        test_ok(c.ctx, kvl_cache_create(c.ctx, &kd, &c.cache), "kvl_cache_create");
        const kvl_seq seq = test_seq(&c);
        for (int t = 0; t < ROWS; ++t) {
            test_append(&s.c, s.seq, s.k, s.v, t, 1);
            test_append(&c, seq, s.k, s.v, t, 1);
            test_attend(&s.c, s.seq, s.q, 1, NULL, o, lse);
            test_attend(&c, seq, s.q, 1, NULL, poisoned_o, poisoned_lse);
            cr_assert(memcmp(o, poisoned_o, sizeof o) == 0 &&
                      memcmp(lse, poisoned_lse, sizeof lse) == 0,
                      "%s: %d rows: poisoned memory shows", targets[i].name, t + 1);
        }
        test_close(&c);
        cr_assert(memory.live == 0 && memory.wrong_sizes == 0,
                  "%s: %llu bytes are left, %d frees with another size", targets[i].name,
                  (unsigned long long)memory.live, memory.wrong_sizes);
        scene_close(&s);
    }
}

Test(attend, the_same_call_gives_the_same_bytes)
{
    // Broken by a merge in the order in which threads finish.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_attend_targets(targets);
    for (int i = 0; i < n; ++i) {
        const kvl_layer_desc layer =
            test_layer("kivi:k2,v2,kg16,vg16,sink=4,recent=24,chunk=16", 6, 2, 64, 64);
        scene s = scene_open(&targets[i], &layer, 2500, 1, 5);
        float first[6 * 64], o[6 * 64];
        scene_fill(&s);
        test_attend(&s.c, s.seq, s.q, 1, NULL, first, NULL);
        for (int j = 0; j < 200; ++j) {
            test_attend(&s.c, s.seq, s.q, 1, NULL, o, NULL);
            cr_assert(memcmp(o, first, sizeof o) == 0, "%s: call %d differs", targets[i].name, j);
        }
        scene_close(&s);
    }
}
