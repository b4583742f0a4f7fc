// test_bits.c -- bits=auto and sizes: what a calibration chooses, and what a cache makes of it.

#include "test_support.h"

enum { LAYERS = 2, DIM = 64 };

static const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };

typedef struct bench {
    kvl_context*     ctx;
    kvl_statistics*  stats;
    kvl_calibration* calibration;
    kvl_layer_desc   layers[LAYERS];
    kvl_cache_desc   cache;
    const kvl_derivation* own;       // NULL: say_loss
} bench;

static int num_asked;

// What keys and values of each layer lose with 2 bits; with 1, keys 4.5 times that, values 9 times.
static const float losses[LAYERS][2] = { { 8, 1 }, { 1, 0.1f } };

static kvl_status say_loss(const kvl_derive_args* a, float* out)
{
    const float with_2 = losses[a->layer][a->is_value];
    for (int h = 0; h < a->num_kv_heads; ++h) {
        out[2 * h] = with_2 * (a->is_value ? 9.0f : 4.5f);
        out[2 * h + 1] = with_2;
    }
    ++num_asked;
    return KVL_OK;
}

static void open_bench(bench* b, const char* spec)
{
    kvl_statistics_desc desc = { 0 };
    memset(b, 0, sizeof *b);
    b->ctx = test_context(&reference, 1);
    for (int i = 0; i < LAYERS; ++i) b->layers[i] = test_layer(spec, 4, 2, DIM, DIM);
    desc.num_layers = b->cache.num_layers = LAYERS;
    desc.layers = b->cache.layers = b->layers;
    num_asked = 0;
    test_ok(b->ctx, kvl_statistics_create(b->ctx, &desc, &b->stats), "statistics");
    test_ok(b->ctx, kvl_calibration_create(b->stats, NULL, &b->calibration), "calibration");
    b->cache.calibration = b->calibration;
}

static void close_bench(bench* b)
{
    kvl_calibration_free(b->calibration);
    kvl_statistics_free(b->stats);
    kvl_context_destroy(b->ctx);
}

static kvl_status derive(bench* b, const char* spec)
{
    static const kvl_derivation own = { "bits", "auto", "bit_losses", say_loss, NULL };
    kvl_derive_desc desc = { 0 };
    for (int i = 0; i < LAYERS; ++i) b->layers[i].spec = spec;
    desc.stats = b->stats;
    desc.cache = &b->cache;
    desc.derivations = b->own ? b->own : &own;
    desc.num_derivations = 1;
    return kvl_calibration_derive(b->calibration, &desc);
}

// Bits of codes that a cache of the spec has: keys and values of each layer.
static void expect_bits(bench* b, const char* spec, double meta_bits, const int want[LAYERS][2])
{
    kvl_cache* cache = NULL;
    kvl_layer_info info;
    kvl_stats stats;
    uint64_t estimate = 0;
    test_ok(b->ctx, derive(b, spec), spec);
    test_ok(b->ctx, kvl_cache_create(b->ctx, &b->cache, &cache), spec);
    for (int i = 0; i < LAYERS; ++i) {
        test_ok(b->ctx, kvl_cache_layer_info(cache, i, &info), spec);
        cr_assert(info.k_bits == want[i][0] + meta_bits && info.v_bits == want[i][1] + meta_bits,
                  "%s: layer %d has %g and %g bits, not %d and %d", spec, i, info.k_bits,
                  info.v_bits, want[i][0], want[i][1]);
        cr_assert(info.auto_bits == 0 && !strstr(info.spec, "auto"), "%s: %s", spec, info.spec);
    }
    test_ok(b->ctx, kvl_cache_stats(cache, &stats), spec);
    test_ok(b->ctx, kvl_estimate(b->ctx, &b->cache, 0, 0, &estimate), spec);
    cr_assert(estimate == stats.bytes, "%s: estimate %llu, held %llu", spec,
              (unsigned long long)estimate, (unsigned long long)stats.bytes);
    kvl_cache_free(cache);
}

// Breaks when a bit goes to another layer than the one that gains most by it.  By hand, one bit of
// any item having the same place: keys gain 3.5, 0.73, 0.195 of their loss by their second, third
// and fourth bit, values 8, 0.75, 0.18.
//     layer 0: keys 28, 5.84, 1.56, values 8, 0.75      layer 1: keys 3.5, 0.73, values 0.8, 0.075
Test(bits, go_where_they_take_most_off)
{
    static const int of_2[LAYERS][2] = { { 3, 2 }, { 2, 1 } };        // 28, 8, 5.84, 3.5
    static const int of_2_25[LAYERS][2] = { { 4, 2 }, { 2, 1 } };     // and 1.56
    static const int of_2_75[LAYERS][2] = { { 4, 3 }, { 2, 2 } };     // and 0.8, 0.75
    static const int of_1[LAYERS][2] = { { 1, 1 }, { 1, 1 } };
    bench b;
    open_bench(&b, "kivi");
    expect_bits(&b, "kivi:bits=auto:2.5", 0.5, of_2);
    cr_assert(num_asked == 2 * LAYERS, "%d losses were asked for", num_asked);
    expect_bits(&b, "kivi:bits=auto:2.75", 0.5, of_2_25);
    expect_bits(&b, "kivi:bits=auto:3.25", 0.5, of_2_75);
    expect_bits(&b, "kivi:bits=auto:1.5", 0.5, of_1);
    expect_bits(&b, "kivi:bits=auto:1.74", 0.5, of_1);      // a bit of one item is 0.25 of the mean
    cr_assert(num_asked == 2 * LAYERS, "what is in the calibration was asked for again");
    close_bench(&b);
}

static kvl_status say_one_bit(const kvl_derive_args* a, float* out)
{
    static const float with_1[LAYERS][2] = { { 1, 3 }, { 5, 9 } };
    for (int h = 0; h < a->num_kv_heads; ++h) {
        out[2 * h] = with_1[a->layer][a->is_value];
        out[2 * h + 1] = 1;
    }
    return KVL_OK;
}

// Breaks when a second bit is given by a rule and not by what 1 bit was found to cost.  By hand:
// second bits gain 0, 2, 4, 8, third ones 0.73 or 0.75.
Test(bits, follow_what_one_bit_costs)
{
    static const kvl_derivation own = { "bits", "auto", "bit_losses", say_one_bit, NULL };
    static const int of_2[LAYERS][2] = { { 1, 1 }, { 2, 2 } };
    static const int of_2_25[LAYERS][2] = { { 1, 2 }, { 2, 2 } };
    bench b;
    open_bench(&b, "kivi");
    b.own = &own;
    expect_bits(&b, "kivi:bits=auto:2", 0.5, of_2);
    expect_bits(&b, "kivi:bits=auto:2.25", 0.5, of_2_25);
    close_bench(&b);
}

// Breaks when what was chosen for one setting serves another, or when nothing was chosen.
Test(bits, of_another_setting_are_refused_with_the_command)
{
    static const char* const others[] = {
        "kivi:bits=auto:2.25", "kivi:bits=auto:2.5,sink=8", "kivi:bits=auto:2.5,recent=64",
        "kivi:bits=auto:2.5,v.meta=e4m3", "kivi:bits=auto:2.5,k.fit=search",
    };
    bench b;
    kvl_cache* cache = NULL;
    open_bench(&b, "kivi");
    test_ok(b.ctx, derive(&b, "kivi:bits=auto:2.5"), "2.5");
    for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
        b.layers[0].spec = b.layers[1].spec = others[i];
        const kvl_status status = kvl_cache_create(b.ctx, &b.cache, &cache);
        cr_assert(status == KVL_BAD_ARGUMENT &&
                  strstr(kvl_context_message(b.ctx), "layer 0: bits = auto: the calibration has no "
                         "layer.0.k.bits@") &&
                  strstr(kvl_context_message(b.ctx), "--resume --for 'kivi:bits=auto:2"),
                  "%s: %s", others[i], kvl_context_message(b.ctx));
    }
    b.layers[0].spec = b.layers[1].spec = "kivi:bits=auto:2.5";
    b.cache.calibration = NULL;
    cr_assert(kvl_cache_create(b.ctx, &b.cache, &cache) == KVL_BAD_ARGUMENT &&
              strstr(kvl_context_message(b.ctx), "needs a calibration with layer.0.k.bits@"));
    b.cache.calibration = test_calibration(TEST_TABLES);
    cr_assert(kvl_cache_create(b.ctx, &b.cache, &cache) == KVL_BAD_ARGUMENT &&
              strstr(kvl_context_message(b.ctx), "must be bits that the codec has"), "%s",
              kvl_context_message(b.ctx));
    b.layers[1].spec = "kivi:bits=auto:3";
    cr_assert(kvl_calibration_derive(b.calibration, &(kvl_derive_desc){ .stats = b.stats,
              .cache = &b.cache }) == KVL_UNSUPPORTED, "two budgets, or no derivation");
    close_bench(&b);
}

// Breaks when a check leaves the budget open, or the text of one parses to another.
Test(bits, a_check_knows_the_budget)
{
    bench b;
    kvl_layer_info info, again;
    open_bench(&b, "rtn:bits=auto:3.125,kg16,v.fit=search");
    test_ok(b.ctx, kvl_spec_check(b.ctx, &b.layers[0], &info), "check");
    cr_assert(info.auto_bits == 3.125 && info.k_bits == 3.125 && info.v_bits == 3.125 &&
              info.needs_calibration && strstr(info.spec, "bits=auto:3.125"), "%s", info.spec);
    b.layers[0].spec = info.spec;
    test_ok(b.ctx, kvl_spec_check(b.ctx, &b.layers[0], &again), info.spec);
    cr_assert_str_eq(info.spec, again.spec);
    close_bench(&b);
}

// Breaks when a size is not what its items are, or when items behind it do not change it.
Test(bits, a_size_stands_for_its_items)
{
    static const struct { const char *size, *same; } pairs[] = {
        { "loom:1.5", "loom:bits=auto:1.5,g64" },
        { "loom:2.125", "loom:g64,bits=auto:2.125" },
        { "loom:2.25", "loom:bits=auto:2.25,g64" },
        { "loom:2.5,meta=e4m3", "loom:bits=auto:2.5,g64,meta=e4m3" },
        { "loom:sink=8,3.25,kg32", "loom:bits=auto:3.25,kg32,vg64,meta=e4m3,sink=8" },
        { "loom:4.25", "loom:bits=auto:4.25,g64,meta=e4m3" },
    };
    bench b;
    open_bench(&b, "loom");
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; ++i) {
        kvl_layer_info one, other;
        b.layers[0].spec = pairs[i].size;
        test_ok(b.ctx, kvl_spec_check(b.ctx, &b.layers[0], &one), pairs[i].size);
        b.layers[0].spec = pairs[i].same;
        test_ok(b.ctx, kvl_spec_check(b.ctx, &b.layers[0], &other), pairs[i].same);
        cr_assert_str_eq(one.spec, other.spec);
    }
    close_bench(&b);
}

// A CALIBRATION AT WORK

enum { MOST_LAYERS = 4, ROWS = 160 };

typedef struct worked {
    kvl_context*     ctx;
    kvl_statistics*  stats;
    kvl_layer_desc   layers[MOST_LAYERS];
    kvl_cache_desc   cache;
    float*           k;                // [ROWS, 2, DIM], and as many more to begin elsewhere
    float*           q;
} worked;

static kvl_status lose_alike(const kvl_derive_args* a, float* out)
{
    for (int h = 0; h < a->num_kv_heads; ++h) {
        out[2 * h] = 4;
        out[2 * h + 1] = 1;
    }
    return KVL_OK;
}

static void open_worked(worked* w, int num_layers, const char* spec)
{
    kvl_statistics_desc desc = { 0 };
    memset(w, 0, sizeof *w);
    w->ctx = test_context(&reference, 1);
    w->k = test_floats(2 * ROWS * 2 * DIM);
    w->q = test_floats(2 * ROWS * 4 * DIM);
    test_rows(11, 2 * ROWS, 2, DIM, w->k);
    test_queries(12, 2 * ROWS, 4, DIM, w->q);
    for (int i = 0; i < num_layers; ++i) w->layers[i] = test_layer(spec, 4, 2, DIM, DIM);
    desc.num_layers = w->cache.num_layers = num_layers;
    desc.layers = w->cache.layers = w->layers;
    test_ok(w->ctx, kvl_statistics_create(w->ctx, &desc, &w->stats), "statistics");
    for (int i = 0; i < num_layers; ++i) {
        kvl_statistics_rows rows = { 0 };
        rows.layer = i;
        rows.num_keys = rows.num_rows = ROWS;
        rows.k.data = rows.v.data = w->k + i * 8 * 2 * DIM;
        rows.q.data = w->q + i * 32 * 4 * DIM;
        test_ok(w->ctx, kvl_statistics_add(w->stats, &rows), "rows");
    }
}

static void close_worked(worked* w)
{
    kvl_statistics_free(w->stats);
    kvl_context_destroy(w->ctx);
    free(w->k);
    free(w->q);
}

// Derives the tables of a calibration, then restores what a cache with them makes of keys: [layers,
// ROWS, 2, DIM].
static void derive_and_use(worked* w, kvl_calibration* cal, float* out)
{
    static const kvl_derivation own = { "bits", "auto", "bit_losses", lose_alike, NULL };
    const int num_layers = w->cache.num_layers;
    const int32_t num_rows = ROWS;
    kvl_derive_desc desc = { 0 };
    kvl_cache* cache = NULL;
    kvl_seq seq = 0;
    desc.stats = w->stats;
    desc.cache = &w->cache;
    desc.derivations = &own;
    desc.num_derivations = 1;
    test_ok(w->ctx, kvl_calibration_derive(cal, &desc), "derive");
    w->cache.calibration = cal;
    test_ok(w->ctx, kvl_cache_create(w->ctx, &w->cache, &cache), "cache");
    w->cache.calibration = NULL;
    test_ok(w->ctx, kvl_seq_create(cache, &seq), "sequence");
    for (int i = 0; i < num_layers; ++i) {
        kvl_append_desc a = { 0 };
        kvl_rows k = { 0 }, v = { 0 };
        a.layer = i;
        a.num_seqs = 1;
        a.seqs = &seq;
        a.num_rows = &num_rows;
        a.k.data = a.v.data = w->k + (ROWS - i) * 2 * DIM;
        test_ok(w->ctx, kvl_append(cache, &a), "append");
        k.data = out + (int64_t)i * ROWS * 2 * DIM;
        test_ok(w->ctx, kvl_restore(cache, i, seq, 0, ROWS, &k, &v), "restore");
    }
    kvl_cache_free(cache);
}

// Breaks when caches of a calibration that goes on being derived read the samples of another layer,
// or beyond them: a codec takes the first ones, and those are kept.
Test(bits, a_calibration_serves_again_after_more_was_derived)
{
    for (int num_layers = 3; num_layers <= MOST_LAYERS; ++num_layers) {
        const int64_t count = (int64_t)num_layers * ROWS * 2 * DIM;
        worked w;
        open_worked(&w, num_layers, "flagrot-auto:bits=auto:3,recent=0");
        float *fresh = test_floats(count), *again = test_floats(count);
        kvl_calibration *cal = NULL, *other = NULL;
        test_ok(w.ctx, kvl_calibration_create(w.stats, NULL, &cal), "calibration");
        test_ok(w.ctx, kvl_calibration_create(w.stats, NULL, &other), "calibration");
        derive_and_use(&w, other, fresh);
        for (int i = 0; i < 3; ++i) {
            derive_and_use(&w, cal, again);
            cr_expect_eq(memcmp(fresh, again, (size_t)count * sizeof *again), 0,
                         "%d layers, cache %d", num_layers, i);
        }
        kvl_calibration_free(cal);
        kvl_calibration_free(other);
        free(fresh);
        free(again);
        close_worked(&w);
    }
}
