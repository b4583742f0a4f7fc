// test_prefix.c -- prompts that begin alike: a sequence of remembered pages is to the bit what it
// is without them, pages are there once, and what is forgotten is gone from every count.

#include "test_support.h"

enum { Q_HEADS = 4, HEADS = 2, DIM = 32, ROW = HEADS * DIM, TOKENS = 1000, VOCABULARY = 50 };

// Stands for a model: the rows of a token depend on it and its position.
typedef struct input { float *k, *v, *q; int32_t ids[TOKENS]; } input;

static void fill_rows(input* in, int first, int salt)
{
    for (int t = first; t < TOKENS; ++t) {
        const uint64_t seed = (uint64_t)(in->ids[t] * 1009 + t * 7 + salt * 100003);
        test_rows(seed, 1, HEADS, DIM, in->k + t * ROW);
        test_rows(seed + 500009, 1, HEADS, DIM, in->v + t * ROW);
    }
}

static input input_create(uint64_t seed)
{
    input in;
    test_lcg lcg = { seed };
    in.k = test_floats(TOKENS * ROW);
    in.v = test_floats(TOKENS * ROW);
    in.q = test_floats(Q_HEADS * DIM);
    test_queries(seed, 1, Q_HEADS, DIM, in.q);
    for (int t = 0; t < TOKENS; ++t) in.ids[t] = test_uniform(&lcg, VOCABULARY);
    fill_rows(&in, 0, 0);
    return in;
}

// The same tokens up to `common`, others after it.
static input input_fork(const input* from, int common, uint64_t seed)
{
    input in = input_create(seed);
    memcpy(in.ids, from->ids, (size_t)common * sizeof in.ids[0]);
    if (common < TOKENS && in.ids[common] == from->ids[common]) in.ids[common] ^= 1;
    fill_rows(&in, 0, 0);
    return in;
}

static void input_free(input* in)
{
    free(in->k);
    free(in->v);
    free(in->q);
}

// Two layers, which may have different specs and windows.
typedef struct world {
    kvl_context*   ctx;
    kvl_cache*     cache;
    kvl_layer_desc layers[2];
    test_memory    memory;
} world;

static void open_world(world* w, const test_target* target, const char* spec, const char* other,
                       const kvl_cache_desc* like)
{
    kvl_context_desc cd = { 0 };
    kvl_cache_desc desc = *like;
    memset(w, 0, sizeof *w);
    test_memory_init(&w->memory);
    cd.allocator = test_memory_allocator(&w->memory);
    cd.target = target->target;
    cd.isa = target->isa;
    cd.num_threads = 2;
    w->layers[0] = test_layer(spec, Q_HEADS, HEADS, DIM, DIM);
    w->layers[1] = test_layer(other, Q_HEADS, HEADS, DIM, DIM);
    desc.num_layers = 2;
    desc.layers = w->layers;
    desc.calibration = test_calibration(TEST_TABLES);
    const kvl_status status = kvl_context_create(&cd, &w->ctx);
    test_ok(w->ctx, status, target->name);
    test_ok(w->ctx, kvl_cache_create(w->ctx, &desc, &w->cache), spec);
}

static void close_world(world* w)
{
    kvl_cache_free(w->cache);
    kvl_context_destroy(w->ctx);
    cr_assert(w->memory.live == 0 && w->memory.wrong_sizes == 0, "%llu bytes are left",
              (unsigned long long)w->memory.live);
}

static kvl_stats stats_of(const world* w)
{
    kvl_stats stats;
    test_ok(w->ctx, kvl_cache_stats(w->cache, &stats), "stats");
    return stats;
}

static kvl_status append_to(world* w, kvl_seq seq, const input* in, int64_t first, int64_t end)
{
    kvl_status status = KVL_OK;
    const int32_t num = (int32_t)(end - first);
    for (int layer = 0; layer < 2 && status == KVL_OK; ++layer) {
        kvl_append_desc a = { .layer = layer, .num_seqs = 1, .seqs = &seq, .num_rows = &num };
        a.k.data = in->k + first * ROW;
        a.v.data = in->v + first * ROW;
        status = kvl_append(w->cache, &a);
    }
    return status;
}

static kvl_prompt prompt_of(const input* in, int64_t num)
{
    return (kvl_prompt){ in->ids, num, 0, 0 };
}

// A sequence of the prompt's first num tokens, of what is remembered as far as it goes.
static kvl_seq run_prompt(world* w, const input* in, int64_t num, int64_t* taken)
{
    const kvl_prompt prompt = prompt_of(in, num);
    kvl_seq seq;
    test_ok(w->ctx, kvl_seq_begin(w->cache, &prompt, &seq, taken), "begin");
    test_ok(w->ctx, append_to(w, seq, in, *taken, num), "append");
    return seq;
}

static void remember(world* w, kvl_seq seq, const input* in, int64_t num)
{
    const kvl_prompt prompt = prompt_of(in, num);
    test_ok(w->ctx, kvl_seq_remember(w->cache, seq, &prompt), "remember");
}

static void free_seq(world* w, kvl_seq seq)
{
    test_ok(w->ctx, kvl_seq_free(w->cache, seq), "free");
}

// Rows, codes and attention of both layers are equal to the bit.
static void same_sequence(world* a, kvl_seq one, world* b, kvl_seq other, const input* in)
{
    for (int layer = 0; layer < 2; ++layer) {
        kvl_seq_rows x, y;
        float o[2][Q_HEADS * DIM], lse[2][Q_HEADS];
        float* rows[4];
        test_ok(a->ctx, kvl_seq_get_rows(a->cache, layer, one, &x), "rows");
        test_ok(b->ctx, kvl_seq_get_rows(b->cache, layer, other, &y), "rows");
        cr_assert(memcmp(&x, &y, sizeof x) == 0, "%lld of %lld rows quantized, and %lld of %lld",
                  (long long)x.quantized, (long long)x.rows, (long long)y.quantized,
                  (long long)y.rows);
        for (int i = 0; i < 4; ++i) rows[i] = test_floats((x.rows + 1) * ROW);
        kvl_rows k = { .data = rows[0] }, v = { .data = rows[1] };
        test_ok(a->ctx, kvl_restore(a->cache, layer, one, 0, x.rows, &k, &v), "restore");
        k.data = rows[2];
        v.data = rows[3];
        test_ok(b->ctx, kvl_restore(b->cache, layer, other, 0, x.rows, &k, &v), "restore");
        const size_t bytes = (size_t)(x.rows * ROW) * sizeof(float);
        cr_assert(memcmp(rows[0], rows[2], bytes) == 0 && memcmp(rows[1], rows[3], bytes) == 0,
                  "restored rows of layer %d differ", layer);
        for (int i = 0; i < 4; ++i) free(rows[i]);
        kvl_attend_desc t = { .layer = layer, .num_seqs = 1, .seqs = &one, .lse = lse[0] };
        t.q.data = in->q;
        t.o.data = o[0];
        test_ok(a->ctx, kvl_attend(a->cache, &t), "attend");
        t.seqs = &other;
        t.lse = lse[1];
        t.o.data = o[1];
        test_ok(b->ctx, kvl_attend(b->cache, &t), "attend");
        cr_assert(memcmp(o[0], o[1], sizeof o[0]) == 0 &&
                  memcmp(lse[0], lse[1], sizeof lse[0]) == 0, "attention of layer %d", layer);
    }
}

typedef struct specs { const char *one, *other; int64_t root, unit, recent; } specs;

// Hand-counted: root = longest sink, unit = common multiple of the pages; `recent` of the layer
// with the most rows in 16 bits, chunks included.
static const specs all_specs[] = {
    { "kivi:k2,v2,g32,sink=4,recent=64", "kivi:k4,v4,g32,sink=4,recent=32", 4, 64, 64 },
    { "q8_0", "q4_0", 0, 64, 0 },
    { "f16", "kivi:k3,v3,g32,sink=32,recent=32", 32, 64, 32 },
    { "rtn:k4,v4,sink=3,recent=10,page=32", "rtn:k2,v2,sink=1,recent=0,page=96", 3, 96, 10 },
};

// A wrong page, a wrong count of rows, or a page that its owner changes later.
Test(prefix, a_begun_sequence_is_what_it_is_without, .timeout = 300)
{
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_targets(targets);
    const kvl_cache_desc plain = { 0 }, keeping = { .prefix_bytes = 1 << 24 };
    const input in = input_create(1);
    input near = input_fork(&in, 700, 2), far = input_fork(&in, 0, 3);
    for (int t = 0; t < num_targets; ++t) {
        for (size_t i = 0; i < sizeof all_specs / sizeof all_specs[0]; ++i) {
            const specs* s = &all_specs[i];
            world a, b;
            int64_t taken, none;
            open_world(&a, &targets[t], s->one, s->other, &keeping);
            open_world(&b, &targets[t], s->one, s->other, &plain);
            const kvl_seq first = run_prompt(&a, &in, TOKENS, &taken);
            cr_assert_eq(taken, 0);
            remember(&a, first, &in, TOKENS);
            const kvl_seq two = run_prompt(&a, &near, 900, &taken);
            // As many whole units as the 700 common tokens have.
            cr_assert_eq(taken, s->root + (700 - s->root) / s->unit * s->unit, "%s: %lld", s->one,
                         (long long)taken);
            const kvl_seq alone = run_prompt(&b, &near, 900, &none);
            cr_assert_eq(none, 0);
            same_sequence(&a, two, &b, alone, &in);
            // The first one goes on, its pages and those of the second stay what they are.
            test_ok(a.ctx, kvl_truncate(a.cache, first, 500), "truncate");
            test_ok(a.ctx, append_to(&a, first, &far, 500, 800), "append");
            same_sequence(&a, two, &b, alone, &in);
            free_seq(&a, first);
            const kvl_seq three = run_prompt(&a, &in, TOKENS, &taken);
            const kvl_seq whole = run_prompt(&b, &in, TOKENS, &none);
            cr_assert(taken > TOKENS - s->unit - s->recent - 128 && taken < TOKENS);
            same_sequence(&a, three, &b, whole, &in);
            const kvl_seq four = run_prompt(&a, &far, 600, &taken);
            cr_assert_eq(taken, 0, "nothing in common");
            free_seq(&a, four);
            close_world(&a);
            close_world(&b);
        }
    }
    input_free(&near);
    input_free(&far);
    input_free((input*)&in);
}

// Prompts that came at once, before any was remembered, hold their pages once; the count of what
// sharing saves is that of the pages.
Test(prefix, equal_pages_are_held_once)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    const kvl_cache_desc keeping = { .prefix_bytes = 1 << 24 };
    input in = input_create(11);
    world w;
    kvl_seq seqs[4];
    int64_t taken;
    open_world(&w, &target, "kivi:k2,v2,g32,sink=4,recent=32", "kivi:k2,v2,g32,sink=4,recent=32",
               &keeping);
    for (int i = 0; i < 4; ++i) seqs[i] = run_prompt(&w, &in, 700, &taken);
    // (700 - 4 - 32) / 32 = 20 chunks of 32 rows: 10 pages of 64 in each of two layers.
    const kvl_stats before = stats_of(&w);
    const uint64_t page_bytes = before.page_bytes / (4 * 10 * 2);
    cr_assert_eq(before.page_bytes, page_bytes * 80);
    for (int i = 0; i < 4; ++i) remember(&w, seqs[i], &in, 700);
    kvl_stats now = stats_of(&w);
    cr_assert_eq(now.page_bytes, page_bytes * 20, "%llu", (unsigned long long)now.page_bytes);
    cr_assert_eq(now.saved_bytes, page_bytes * 60);
    cr_assert_eq(now.prefix_bytes, 0);
    for (int i = 0; i < 4; ++i) free_seq(&w, seqs[i]);
    now = stats_of(&w);
    cr_assert_eq(now.page_bytes, page_bytes * 20, "they stay, remembered");
    cr_assert_eq(now.prefix_bytes, page_bytes * 20);
    cr_assert(now.saved_bytes == 0 && now.num_rows == 0 && now.num_seqs == 0);
    const kvl_seq again = run_prompt(&w, &in, 200, &taken);
    // 4 + 2 * 64: of 200 tokens (200 - 36) / 32 * 32 = 160 are quantized, two whole pages.
    cr_assert_eq(taken, 132);
    now = stats_of(&w);
    // Two pages of each layer are in use again; its third has 32 rows of its own.
    cr_assert_eq(now.prefix_bytes, page_bytes * 16);
    cr_assert_eq(now.page_bytes, page_bytes * 22);
    cr_assert_eq(now.saved_bytes, 0);
    cr_assert_eq(w.memory.live >= now.bytes, 1);
    free_seq(&w, again);
    close_world(&w);
    input_free(&in);
}

// Another salt is another prompt; altered rows are not remembered; what is wrong is refused.
Test(prefix, what_is_not_the_same_is_not_shared)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    const kvl_cache_desc keeping = { .prefix_bytes = 1 << 24 }, plain = { 0 };
    input in = input_create(21);
    world w;
    kvl_seq seq, none;
    int64_t taken;
    open_world(&w, &target, "kivi:k2,v2,g32,sink=4,recent=0", "kivi:k2,v2,g32,sink=4,recent=0",
               &keeping);
    const kvl_seq first = run_prompt(&w, &in, 500, &taken);
    kvl_prompt prompt = { in.ids, 500, 7, 0 };
    test_ok(w.ctx, kvl_seq_remember(w.cache, first, &prompt), "remember");
    test_ok(w.ctx, kvl_seq_begin(w.cache, &prompt, &seq, &taken), "begin");
    cr_assert_eq(taken, 4 + 7 * 64);
    free_seq(&w, seq);
    prompt.salt = 8;
    test_ok(w.ctx, kvl_seq_begin(w.cache, &prompt, &seq, &taken), "begin");
    cr_assert_eq(taken, 0);
    // Row 300 lies in a group of rows 292 to 323, which the cut reads back from its codes.
    test_ok(w.ctx, append_to(&w, seq, &in, 0, 500), "append");
    test_ok(w.ctx, kvl_truncate(w.cache, seq, 300), "truncate");
    test_ok(w.ctx, append_to(&w, seq, &in, 300, 500), "append");
    test_ok(w.ctx, kvl_seq_remember(w.cache, seq, &prompt), "remember");
    test_ok(w.ctx, kvl_seq_begin(w.cache, &prompt, &none, &taken), "begin");
    cr_assert_eq(taken, 4 + 4 * 64, "%lld", (long long)taken);
    prompt.num_tokens = 501;
    cr_assert_eq(kvl_seq_remember(w.cache, seq, &prompt), KVL_BAD_ARGUMENT);
    cr_assert(strstr(kvl_context_message(w.ctx), "num_tokens = 501: layer 0 has 500 rows"));
    prompt.num_tokens = -1;
    cr_assert_eq(kvl_seq_begin(w.cache, &prompt, &none, &taken), KVL_BAD_ARGUMENT);
    prompt.num_tokens = 500;
    prompt.end = 1;
    cr_assert_eq(kvl_seq_begin(w.cache, &prompt, &none, &taken), KVL_BAD_ARGUMENT);
    prompt.end = 0;
    prompt.tokens = NULL;
    cr_assert_eq(kvl_seq_begin(w.cache, &prompt, &none, &taken), KVL_BAD_ARGUMENT);
    prompt.num_tokens = 0;
    test_ok(w.ctx, kvl_seq_begin(w.cache, &prompt, &none, &taken), "of no tokens");
    test_ok(w.ctx, kvl_seq_remember(w.cache, none, &prompt), "of no tokens");
    cr_assert_eq(kvl_seq_begin(w.cache, NULL, &none, &taken), KVL_BAD_ARGUMENT);
    prompt = prompt_of(&in, 500);
    test_ok(w.ctx, kvl_drop_oldest(w.cache, first, 10), "drop");
    cr_assert_eq(kvl_seq_remember(w.cache, first, &prompt), KVL_UNSUPPORTED);
    close_world(&w);
    open_world(&w, &target, "kivi", "kivi", &plain);
    seq = run_prompt(&w, &in, 500, &taken);
    remember(&w, seq, &in, 500);
    cr_assert_eq(stats_of(&w).prefix_bytes, 0);
    run_prompt(&w, &in, 500, &taken);
    cr_assert_eq(taken, 0, "without a budget nothing is remembered");
    close_world(&w);
    input_free(&in);
}

// Layers whose rows do not end together in any number of tokens.
Test(prefix, windows_that_do_not_fit_together_are_refused)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    kvl_context* ctx = test_context(&target, 1);
    const kvl_layer_desc layers[2] = { test_layer("kivi:sink=4", 4, 2, 32, 32),
                                       test_layer("kivi:sink=5", 4, 2, 32, 32) };
    kvl_cache_desc desc = { .num_layers = 2, .layers = layers, .prefix_bytes = 1 };
    kvl_cache* cache;
    cr_assert_eq(kvl_cache_create(ctx, &desc, &cache), KVL_UNSUPPORTED);
    cr_assert(strstr(kvl_context_message(ctx), "longest sink is 5, layer 0 has sink = 4"), "%s",
              kvl_context_message(ctx));
    desc.prefix_bytes = 0;
    test_ok(ctx, kvl_cache_create(ctx, &desc, &cache), "without prefixes");
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
}

// The budget of what is remembered, and the cache's, which it must not stand in the way of.
Test(prefix, the_oldest_is_forgotten_first)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    input ins[4];
    world w;
    int64_t taken;
    kvl_cache_desc desc = { .prefix_bytes = 1 << 24 };
    for (int i = 0; i < 4; ++i) ins[i] = input_create(31 + (uint64_t)i);
    open_world(&w, &target, "rtn:k4,v4,sink=0,recent=0", "rtn:k4,v4,sink=0,recent=0", &desc);
    kvl_seq seq = run_prompt(&w, &ins[0], 641, &taken);
    remember(&w, seq, &ins[0], 641);
    const uint64_t page_bytes = stats_of(&w).page_bytes / 22;
    close_world(&w);
    // Room for about two prompts of 10 units.
    desc.prefix_bytes = 25 * 2 * page_bytes;
    open_world(&w, &target, "rtn:k4,v4,sink=0,recent=0", "rtn:k4,v4,sink=0,recent=0", &desc);
    for (int i = 0; i < 3; ++i) {
        seq = run_prompt(&w, &ins[i], 641, &taken);
        cr_assert_eq(taken, 0);
        remember(&w, seq, &ins[i], 641);
        free_seq(&w, seq);
        cr_assert(stats_of(&w).prefix_bytes <= desc.prefix_bytes);
        if (i != 1) continue;
        seq = run_prompt(&w, &ins[0], 641, &taken);       // used: the other one goes before it
        cr_assert_eq(taken, 640);
        free_seq(&w, seq);
    }
    seq = run_prompt(&w, &ins[0], 641, &taken);
    cr_assert_eq(taken, 640);
    free_seq(&w, seq);
    seq = run_prompt(&w, &ins[2], 641, &taken);
    cr_assert_eq(taken, 640);
    free_seq(&w, seq);
    seq = run_prompt(&w, &ins[1], 641, &taken);
    cr_assert(taken < 640, "%lld", (long long)taken);
    free_seq(&w, seq);
    const uint64_t bytes = stats_of(&w).bytes;
    close_world(&w);
    // A cache that is full of remembered pages has room for rows.
    desc.prefix_bytes = 1 << 24;
    desc.max_bytes = bytes;
    open_world(&w, &target, "rtn:k4,v4,sink=0,recent=0", "rtn:k4,v4,sink=0,recent=0", &desc);
    for (int round = 0; round < 12; ++round) {
        seq = run_prompt(&w, &ins[round % 4], 641, &taken);
        remember(&w, seq, &ins[round % 4], 641);
        cr_assert(stats_of(&w).bytes <= bytes);
        free_seq(&w, seq);
    }
    close_world(&w);
    for (int i = 0; i < 4; ++i) input_free(&ins[i]);
}

// Each allocation fails in turn: what is remembered may be less, everything else is as it was.
Test(prefix, each_failing_allocation, .timeout = 300)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    const kvl_cache_desc keeping = { .prefix_bytes = 1 << 24 };
    input in = input_create(41), near = input_fork(&in, 400, 42);
    for (int64_t at = 1, done = 0; !done; ++at) {
        world w;
        kvl_seq seqs[2] = { 0, 0 };
        int64_t taken = 0;
        open_world(&w, &target, "kivi:sink=4,recent=32", "f16", &keeping);
        w.memory.fail_at = w.memory.calls + at;
        const input* ins[2] = { &in, &near };
        for (int i = 0; i < 2; ++i) {
            const kvl_prompt prompt = prompt_of(ins[i], 500);
            kvl_status status = kvl_seq_begin(w.cache, &prompt, &seqs[i], &taken);
            if (status == KVL_NO_MEMORY) {
                cr_assert(seqs[i] == 0 && taken == 0);
                status = kvl_seq_begin(w.cache, &prompt, &seqs[i], &taken);
            }
            test_ok(w.ctx, status, "begin");
            for (int layer = 0; layer < 2; ++layer) {
                const int32_t num = (int32_t)(500 - taken);
                kvl_append_desc a = { .layer = layer, .num_seqs = 1, .seqs = &seqs[i],
                                      .num_rows = &num };
                a.k.data = ins[i]->k + taken * ROW;
                a.v.data = ins[i]->v + taken * ROW;
                if (kvl_append(w.cache, &a) != KVL_OK)
                    test_ok(w.ctx, kvl_append(w.cache, &a), "append");
            }
            test_ok(w.ctx, kvl_seq_remember(w.cache, seqs[i], &prompt), "remember");
        }
        done = w.memory.calls < w.memory.fail_at;
        w.memory.fail_at = 0;
        world b;
        int64_t none;
        const kvl_cache_desc plain = { 0 };
        open_world(&b, &target, "kivi:sink=4,recent=32", "f16", &plain);
        same_sequence(&w, seqs[1], &b, run_prompt(&b, &near, 500, &none), &in);
        close_world(&b);
        close_world(&w);
    }
    input_free(&in);
    input_free(&near);
}

// A budget for three pages a layer: what is needed beyond it is in the message.
Test(prefix, a_full_pool_says_how_many_pages_are_missing)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    const char* spec = "rtn:k4,v4,sink=0,recent=0,chunk=1,page=64";
    kvl_cache_desc desc = { 0 };
    input in = input_create(51);
    world w;
    int64_t taken;
    open_world(&w, &target, spec, "f16:page=64", &desc);
    kvl_seq seq = run_prompt(&w, &in, 3 * 64, &taken);
    desc.max_bytes = stats_of(&w).bytes;
    close_world(&w);
    open_world(&w, &target, spec, "f16:page=64", &desc);
    test_ok(w.ctx, kvl_seq_create(w.cache, &seq), "create");
    test_ok(w.ctx, append_to(&w, seq, &in, 0, 64), "append");
    test_ok(w.ctx, append_to(&w, seq, &in, 64, 192), "append");
    cr_assert_eq(stats_of(&w).bytes, desc.max_bytes);
    cr_assert_eq(append_to(&w, seq, &in, 192, 192 + 7 * 64), KVL_NO_MEMORY);
    cr_assert(strstr(kvl_context_message(w.ctx), "layer 0: 7 of 7 pages are missing: max_bytes"),
              "%s", kvl_context_message(w.ctx));
    kvl_seq_rows rows;
    test_ok(w.ctx, kvl_seq_get_rows(w.cache, 0, seq, &rows), "rows");
    cr_assert_eq(rows.rows, 192);
    test_ok(w.ctx, kvl_truncate(w.cache, seq, 0), "truncate");
    const int32_t num = 640;
    kvl_append_desc a = { .layer = 1, .num_seqs = 1, .seqs = &seq, .num_rows = &num };
    a.k.data = in.k;
    a.v.data = in.v;
    cr_assert_eq(kvl_append(w.cache, &a), KVL_NO_MEMORY);
    int missing = 0, needed = 0;
    cr_assert_eq(sscanf(kvl_context_message(w.ctx), "layer 1: %d of %d pages are missing",
                        &missing, &needed), 2);
    cr_assert(needed == 10 && missing >= 6 && missing <= 7, "%d of %d", missing, needed);
    close_world(&w);
    input_free(&in);
}
