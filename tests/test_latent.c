// test_latent.c -- values that are in the keys: what is stored, what attention gives, what is
// refused.  Against float64 over the rows that kvl_restore gives.

#include "test_support.h"

enum { DK = 576, DV = 512, ROWS = 150, Q_HEADS = 16 };

typedef struct shape { const char* spec; int q_heads, kv_heads, dk, dv; } shape;

static const shape shapes[] = {
    { "f16:sink=4,recent=20", 16, 1, 576, 512 },
    { "kivi:k2,sink=4,recent=20", 16, 1, 576, 512 },
    { "rtn:k4,sink=0,recent=0", 3, 1, 320, 256 },
    { "rtn:k3,kg16,k.transform=hadamard,recent=9", 8, 2, 128, 64 },
    { "q4_0:sink=1,recent=7,rows=bf16", 5, 1, 96, 96 },
    { "kivi:k5,kg8,chunk=16,sink=0,recent=0,meta=f16", 4, 1, 64, 48 },
};

static void attend_f64(const shape* s, const float* q, const float* k, int64_t rows, double* o)
{
    for (int h = 0; h < s->q_heads; ++h) {
        const int kv = h / (s->q_heads / s->kv_heads);
        double scores[ROWS], most = -INFINITY, sum = 0;
        for (int r = 0; r < rows; ++r) {
            scores[r] = 0;
            const float* key = k + (r * s->kv_heads + kv) * s->dk;
            for (int i = 0; i < s->dk; ++i)
                scores[r] += (double)q[h * s->dk + i] * (double)key[i];
            scores[r] /= sqrt(s->dk);
            if (scores[r] > most) most = scores[r];
        }
        for (int i = 0; i < s->dv; ++i) o[h * s->dv + i] = 0;
        for (int r = 0; r < rows; ++r) {
            const double p = exp(scores[r] - most);
            sum += p;
            for (int i = 0; i < s->dv; ++i)
                o[h * s->dv + i] += p * (double)k[(r * s->kv_heads + kv) * s->dk + i];
        }
        for (int i = 0; i < s->dv; ++i) o[h * s->dv + i] /= sum;
    }
}

static kvl_layer_desc layer_of(const shape* s)
{
    kvl_layer_desc layer = test_layer(s->spec, s->q_heads, s->kv_heads, s->dk, s->dv);
    layer.values_in_keys = 1;
    return layer;
}

static void append_keys(test_cache* c, kvl_seq seq, const float* k, int first, int num)
{
    const int32_t n = num;
    const int64_t row = (int64_t)c->layer.num_kv_heads * c->layer.head_dim;
    kvl_append_desc d = { .num_seqs = 1, .seqs = &seq, .num_rows = &n, .k.data = k + first * row };
    test_ok(c->ctx, kvl_append(c->cache, &d), "kvl_append");
}

// By hand: the quantized keys of a head are bits * dk / 8 bytes a row and the metadata; no values.
Test(latent, memory)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    const kvl_layer_desc layer = layer_of(&shapes[1]);
    test_cache c = test_open(&target, &layer);
    cr_assert(c.info.k_bits == 2.5 && c.info.v_bits == 0.0);
    kvl_cache_desc desc = { .num_layers = 1, .layers = &layer };
    const kvl_seq seq = test_seq(&c);
    float* k = test_floats(84 * DK);
    kvl_stats stats;
    uint64_t bytes;
    // 84 rows: 4 + 20 in 16 bits, 60 after them: one chunk of 32, in one page of 64 rows of 2.5
    // bits a channel.
    append_keys(&c, seq, k, 0, 84);
    test_ok(c.ctx, kvl_cache_stats(c.cache, &stats), "stats");
    cr_assert_eq(stats.page_bytes, 64 * DK * 5 / 16);
    cr_assert_eq(stats.f16_bytes, 84 * DK * 2);
    test_ok(c.ctx, kvl_estimate(c.ctx, &desc, 1, 84, &bytes), "estimate");
    cr_assert_eq(stats.bytes, bytes);
    free(k);
    test_close(&c);
}

Test(latent, attention_reads_values_out_of_keys)
{
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_attend_targets(targets);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
        const shape* s = &shapes[i];
        const int64_t row = (int64_t)s->kv_heads * s->dk;
        float* k = test_floats(ROWS * row);
        float* restored = test_floats(ROWS * row);
        float* values = test_floats(ROWS * (int64_t)s->kv_heads * s->dv);
        float* q = test_floats((int64_t)s->q_heads * s->dk);
        float* o = test_floats((int64_t)s->q_heads * s->dv);
        double* expected = (double*)test_alloc((size_t)(s->q_heads * s->dv), sizeof *expected);
        test_rows(21 + i, ROWS, s->kv_heads, s->dk, k);
        test_queries(31 + i, 1, s->q_heads, s->dk, q);
        for (int t = 0; t < num_targets; ++t) {
            const kvl_layer_desc layer = layer_of(s);
            test_cache c = test_open(&targets[t], &layer);
            kvl_seq seq = test_seq(&c);
            const int floats = targets[t].target == KVL_TARGET_REFERENCE ||
                               test_is_exact(&targets[t]);
            for (int rows = 3, first = 0; first < ROWS; first = rows, rows = first + 49) {
                append_keys(&c, seq, k, first, rows - first);
                kvl_rows kr = { .data = restored }, vr = { .data = values };
                test_ok(c.ctx, kvl_restore(c.cache, 0, seq, 0, rows, &kr, &vr), "restore");
                for (int64_t r = 0; r < (int64_t)rows * s->kv_heads; ++r)
                    cr_assert(memcmp(values + r * s->dv, restored + r * s->dk,
                                     (size_t)s->dv * sizeof(float)) == 0);
                kvl_attend_desc d = { .num_seqs = 1, .seqs = &seq, .q.data = q, .o.data = o };
                test_ok(c.ctx, kvl_attend(c.cache, &d), "kvl_attend");
                attend_f64(s, q, restored, rows, expected);
                for (int j = 0; j < s->q_heads * s->dv; ++j)
                    cr_assert(fabs((double)o[j] - expected[j]) <= (floats ? 2e-5 : 2e-3),
                              "%s on %s, %d rows: o[%d] = %g, expected %g", s->spec,
                              targets[t].name, rows, j, (double)o[j], expected[j]);
                // A fork that is cut goes on with the same keys.
                kvl_seq fork;
                test_ok(c.ctx, kvl_seq_fork(c.cache, seq, &fork), "fork");
                test_ok(c.ctx, kvl_truncate(c.cache, fork, rows / 2), "truncate");
                test_ok(c.ctx, kvl_seq_free(c.cache, fork), "free");
            }
            test_close(&c);
        }
        free(k);
        free(restored);
        free(values);
        free(q);
        free(o);
        free(expected);
    }
}

static void refused(kvl_context* ctx, kvl_status status, const char* words)
{
    cr_assert(status == KVL_BAD_ARGUMENT && strstr(kvl_context_message(ctx), words), "%s: %s",
              words, kvl_context_message(ctx));
}

Test(latent, refusals)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    kvl_layer_desc layer = layer_of(&shapes[1]);
    test_cache c = test_open(&target, &layer);
    const kvl_seq seq = test_seq(&c);
    float row[DK] = { 0 };
    kvl_append_desc a = { .num_seqs = 1, .seqs = &seq, .k.data = row, .v.data = row };
    refused(c.ctx, kvl_append(c.cache, &a), "v.data: must be NULL");
    kvl_codes codes = { 0 };
    refused(c.ctx, kvl_read_codes(c.cache, 0, seq, 0, 1, 0, 0, &codes), "values are in the keys");
    layer.spec = "kivi:k2,v2";
    refused(c.ctx, kvl_spec_check(c.ctx, &layer, NULL), "'v': is for values");
    layer.spec = "kivi:v.transform=hadamard";
    refused(c.ctx, kvl_spec_check(c.ctx, &layer, NULL), "'v.transform': is for values");
    layer.spec = "rtn:k.extra=sparse1,k.meta=f16";
    refused(c.ctx, kvl_spec_check(c.ctx, &layer, NULL), "head_dim = 576: must be at most 256");
    layer.spec = "kivi";
    layer.head_dim_v = 592;
    refused(c.ctx, kvl_spec_check(c.ctx, &layer, NULL), "head_dim_v = 592: must be 32 to 576");
    layer.head_dim_v = 512;
    layer.head_dim = 592;
    refused(c.ctx, kvl_spec_check(c.ctx, &layer, NULL), "head_dim = 592: must be 32 to 576");
    layer.values_in_keys = 0;
    layer.head_dim = 576;
    refused(c.ctx, kvl_spec_check(c.ctx, &layer, NULL), "head_dim = 576: must be 32 to 256");
    layer.values_in_keys = 2;
    refused(c.ctx, kvl_spec_check(c.ctx, &layer, NULL), "values_in_keys = 2");
    test_close(&c);
}

static int put(const void* from, size_t num, void* user)
{
    return fwrite(from, 1, num, (FILE*)user) != num;
}

static int take(void* to, size_t num, void* user)
{
    return fread(to, 1, num, (FILE*)user) != num;
}

// A file of such a cache, loaded as it is and into another spec.
Test(latent, files)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    const kvl_layer_desc layer = layer_of(&shapes[1]);
    kvl_layer_desc plain = layer;
    plain.spec = "f16:sink=4,recent=20";
    test_cache c = test_open(&target, &layer), d = test_open(&target, &plain);
    const kvl_seq seq = test_seq(&c);
    float* k = test_floats(ROWS * DK);
    float* got = test_floats(2 * ROWS * DK);
    test_rows(3, ROWS, 1, DK, k);
    append_keys(&c, seq, k, 0, ROWS);
    FILE* file = tmpfile();
    kvl_save_seq one = { .seq = seq };
    kvl_save_desc save = { .num_seqs = 1, .seqs = &one, .write = put, .user = file };
    test_ok(c.ctx, kvl_save(c.cache, &save), "save");
    for (int recode = 0; recode < 2; ++recode) {
        test_cache* to = recode ? &d : &c;
        kvl_load_desc load = { .read = take, .user = file, .recode = recode };
        kvl_loaded_seq* out;
        int num;
        rewind(file);
        test_ok(to->ctx, kvl_load(to->cache, &load, &out, &num), "load");
        kvl_rows from = { .data = got }, into = { .data = got + ROWS * DK };
        test_ok(c.ctx, kvl_restore(c.cache, 0, seq, 0, ROWS, &from, NULL), "restore");
        test_ok(to->ctx, kvl_restore(to->cache, 0, out->seq, 0, ROWS, &into, NULL), "restore");
        // f16 pages round the floats of 2-bit codes once more: half a step of 2^-10.
        for (int i = 0; i < ROWS * DK; ++i)
            cr_assert(recode ? fabsf(got[i] - got[ROWS * DK + i]) <= fabsf(got[i]) / 2048
                             : got[i] == got[ROWS * DK + i], "%d", i);
        kvl_loaded_free(to->ctx, out, num);
    }
    fclose(file);
    free(k);
    free(got);
    test_close(&c);
    test_close(&d);
}
