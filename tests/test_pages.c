// test_pages.c -- page tables that the engine hands in: rows are where it says, what it does not
// give is not taken, and every operation gives the bits of a cache that has tables of its own.
// With KVLOOM_TEST_TARGET=cuda on a device, else on the reference.

#include "test_support.h"

enum { Q_HEADS = 4, HEADS = 2, DIM = 32, ROW = HEADS * DIM, ROWS = 500, PAGES = 40 };

static const char* const spec = "kivi:k2,v2,g32,sink=4,recent=16,chunk=32,page=64";

typedef struct caches {
    kvl_context* ctx;
    kvl_cache*   own;              // with tables of kvloom's
    kvl_cache*   pool;             // with the engine's
    test_memory  memory;
    float       *k, *v, *q;
} caches;

static kvl_cache* create(caches* c, int64_t num_pages)
{
    static const kvl_layer_desc none;
    kvl_layer_desc layers[3] = { test_layer(spec, Q_HEADS, HEADS, DIM, DIM), none,
                                 test_layer("kivi:k4,v4,g32,sink=0,recent=0,page=64,chunk=32",
                                            Q_HEADS, HEADS, DIM, DIM) };
    kvl_cache_desc desc = { .num_layers = 3, .layers = layers, .num_pages = num_pages };
    kvl_cache* cache;
    test_ok(c->ctx, kvl_cache_create(c->ctx, &desc, &cache), "create");
    return cache;
}

static caches* open_caches(void)
{
    caches* c = (caches*)test_alloc(1, sizeof *c);
    kvl_context_desc cd = { .target = KVL_TARGET_REFERENCE, .num_threads = 2 };
    test_target targets[TEST_MAX_TARGETS];
    const int num = test_targets(targets);
    if (targets[num - 1].target == KVL_TARGET_CUDA) cd.target = KVL_TARGET_CUDA;
    test_memory_init(&c->memory);
    cd.allocator = test_memory_allocator(&c->memory);
    cd.device_allocator = test_memory_device_allocator(&c->memory);
    const kvl_status status = kvl_context_create(&cd, &c->ctx);
    test_ok(c->ctx, status, "context");
    c->own = create(c, 0);
    c->pool = create(c, PAGES);
    c->k = test_floats(ROWS * ROW);
    c->v = test_floats(ROWS * ROW);
    c->q = test_floats(Q_HEADS * DIM);
    test_rows(5, ROWS, HEADS, DIM, c->k);
    test_rows(6, ROWS, HEADS, DIM, c->v);
    test_queries(7, 1, Q_HEADS, DIM, c->q);
    return c;
}

static void close_caches(caches* c)
{
    kvl_cache_free(c->own);
    kvl_cache_free(c->pool);
    kvl_context_destroy(c->ctx);
    cr_assert_eq(c->memory.live, 0);
    free(c->k);
    free(c->v);
    free(c->q);
    free(c);
}

static kvl_status append(caches* c, kvl_cache* cache, kvl_seq seq, int first, int num)
{
    const int32_t rows = num;
    kvl_append_desc a = { .num_seqs = 1, .seqs = &seq, .num_rows = &rows };
    a.k.data = c->k + first * ROW;
    a.v.data = c->v + first * ROW;
    for (int layer = 0; layer < 3; layer += 2) {
        a.layer = layer;
        const kvl_status status = kvl_append(cache, &a);
        if (status != KVL_OK) return status;
    }
    return KVL_OK;
}

// Two sequences attend to the bit alike in both layers.
static void same(caches* c, kvl_seq one, kvl_seq other, const char* what)
{
    for (int layer = 0; layer < 3; layer += 2) {
        float o[2][Q_HEADS * DIM];
        for (int i = 0; i < 2; ++i) {
            kvl_attend_desc t = { .layer = layer, .num_seqs = 1, .seqs = i ? &other : &one };
            t.q.data = c->q;
            t.o.data = o[i];
            test_ok(c->ctx, kvl_attend(i ? c->pool : c->own, &t), what);
        }
        cr_assert(memcmp(o[0], o[1], sizeof o[0]) == 0, "%s: layer %d differs", what, layer);
    }
}

static kvl_seq seq_of(caches* c, kvl_cache* cache)
{
    kvl_seq seq;
    test_ok(c->ctx, kvl_seq_create(cache, &seq), "seq");
    return seq;
}

static int uses(caches* c, int32_t page)
{
    int num = -1;
    test_ok(c->ctx, kvl_page_uses(c->pool, page, &num), "uses");
    return num;
}

// Broken by pages taken in another order than the table's, or beyond it.
Test(pages, rows_go_where_the_table_says)
{
    caches* c = open_caches();
    const kvl_seq own = seq_of(c, c->own), seq = seq_of(c, c->pool);
    static const int32_t table[] = { 31, 2, 17, 0, 39, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    int64_t needed;
    test_ok(c->ctx, append(c, c->own, own, 0, 300), "own");
    cr_assert_eq(append(c, c->pool, seq, 0, 300), KVL_NO_MEMORY);
    cr_assert(strstr(kvl_context_message(c->ctx), "pages[0] of the sequence"), "%s",
              kvl_context_message(c->ctx));
    // 300 rows: 300 - 4 - 16 = 280 are old enough in layer 0, 8 chunks of 32, in 4 pages of 64; 9
    // chunks in layer 2, in 5 pages.
    test_ok(c->ctx, kvl_pages_needed(c->pool, 300, &needed), "needed");
    cr_assert_eq(needed, 5);
    // No window in layer 2: its rows are all of the greatest number there is, in pages of 64.
    test_ok(c->ctx, kvl_pages_needed(c->pool, INT64_MAX, &needed), "needed");
    cr_assert_eq(needed, (int64_t)1 << 57);
    test_ok(c->ctx, kvl_seq_set_pages(c->pool, seq, table, 4), "4 pages");
    cr_assert_eq(append(c, c->pool, seq, 0, 300), KVL_NO_MEMORY, "the second layer needs 5");
    cr_assert(strstr(kvl_context_message(c->ctx), "layer 2: 1 of 5 pages are missing"), "%s",
              kvl_context_message(c->ctx));
    test_ok(c->ctx, kvl_truncate(c->pool, seq, 0), "empty again");
    test_ok(c->ctx, kvl_seq_set_pages(c->pool, seq, table, 5), "5 pages");
    const uint64_t live = c->memory.live;
    test_ok(c->ctx, append(c, c->pool, seq, 0, 300), "append");
    // Growth takes no pages of the allocator's: the two tables of pointers alone.
    cr_assert_lt(c->memory.live - live, 1000);
    same(c, own, seq, "after the append");
    for (int32_t page = 0; page < PAGES; ++page) {
        int in_table = 0;
        for (int i = 0; i < 5; ++i) in_table |= table[i] == page;
        cr_assert_eq(uses(c, page), in_table, "page %d", page);
    }
    kvl_stats stats;
    uint64_t bytes;
    test_ok(c->ctx, kvl_cache_stats(c->pool, &stats), "stats");
    static const kvl_layer_desc none;
    kvl_layer_desc layers[3] = { test_layer(spec, Q_HEADS, HEADS, DIM, DIM), none,
                                 test_layer("kivi:k4,v4,g32,sink=0,recent=0,page=64,chunk=32",
                                            Q_HEADS, HEADS, DIM, DIM) };
    kvl_cache_desc desc = { .num_layers = 3, .layers = layers, .num_pages = PAGES };
    test_ok(c->ctx, kvl_estimate(c->ctx, &desc, 1, 300, &bytes), "estimate");
    cr_assert_eq(stats.bytes, bytes, "%llu bytes, estimated %llu", (unsigned long long)stats.bytes,
                 (unsigned long long)bytes);
    test_ok(c->ctx, kvl_drop_oldest(c->pool, seq, 100), "drop");
    cr_assert_eq(uses(c, 31), 0, "a page of dropped rows is free");
    close_caches(c);
}

// Broken by a fork that writes what both see, or takes a page that is in use.
Test(pages, forks_share_until_the_engine_gives_another)
{
    caches* c = open_caches();
    const kvl_seq own = seq_of(c, c->own), seq = seq_of(c, c->pool);
    int32_t table[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    kvl_seq own_fork, fork;
    test_ok(c->ctx, kvl_seq_set_pages(c->pool, seq, table, 16), "table");
    test_ok(c->ctx, append(c, c->own, own, 0, 300), "own");
    test_ok(c->ctx, append(c, c->pool, seq, 0, 300), "append");
    test_ok(c->ctx, kvl_seq_fork(c->own, own, &own_fork), "fork");
    test_ok(c->ctx, kvl_seq_fork(c->pool, seq, &fork), "fork");
    same(c, own_fork, fork, "a fork");
    const int32_t more = 60;
    kvl_append_desc a = { .layer = 2, .num_seqs = 1, .seqs = &fork, .num_rows = &more };
    a.k.data = a.v.data = c->k;
    cr_assert_eq(kvl_append(c->pool, &a), KVL_NO_MEMORY, "page 4 is half full and shared");
    cr_assert(strstr(kvl_context_message(c->ctx), "pages[4] = 4 of the sequence: is in use"), "%s",
              kvl_context_message(c->ctx));
    same(c, own_fork, fork, "nothing has changed");
    cr_assert_eq(kvl_seq_set_pages(c->pool, fork, table, 4), KVL_BAD_ARGUMENT, "too short");
    table[3] = 33;
    cr_assert_eq(kvl_seq_set_pages(c->pool, fork, table, 16), KVL_BAD_ARGUMENT);
    cr_assert(strstr(kvl_context_message(c->ctx), "has the sequence's rows in page 3"), "%s",
              kvl_context_message(c->ctx));
    table[3] = 3;
    table[9] = PAGES;
    cr_assert_eq(kvl_seq_set_pages(c->pool, fork, table, 16), KVL_BAD_ARGUMENT, "no such page");
    for (int i = 4; i < 16; ++i) table[i] = 20 + i;
    test_ok(c->ctx, kvl_seq_set_pages(c->pool, fork, table, 16), "others");
    cr_assert_eq(uses(c, 4), 1, "a table that both have");
    test_ok(c->ctx, append(c, c->pool, fork, 300, 60), "the fork goes on in a copy");
    test_ok(c->ctx, append(c, c->own, own_fork, 300, 60), "own fork");
    same(c, own_fork, fork, "the fork went on");
    same(c, own, seq, "the other one is as it was");
    cr_assert(uses(c, 3) == 2 && uses(c, 4) == 1 && uses(c, 24) == 1);
    test_ok(c->ctx, append(c, c->pool, seq, 360, 60), "append");
    test_ok(c->ctx, append(c, c->own, own, 360, 60), "append");
    same(c, own, seq, "it went on");
    same(c, own_fork, fork, "the fork is as it was");
    test_ok(c->ctx, kvl_seq_free(c->pool, seq), "free");
    test_ok(c->ctx, kvl_seq_free(c->pool, fork), "free");
    for (int32_t page = 0; page < PAGES; ++page) cr_assert_eq(uses(c, page), 0, "page %d", page);
    close_caches(c);
}

// Files of the other kind are loaded into pages that the engine gives; offloaded rows come back
// into their own.
Test(pages, files)
{
    caches* c = open_caches();
    test_bytes b = { 0 };
    const kvl_seq own = seq_of(c, c->own);
    kvl_seq own_fork;
    test_ok(c->ctx, append(c, c->own, own, 0, 300), "own");
    test_ok(c->ctx, kvl_seq_fork(c->own, own, &own_fork), "fork");
    test_ok(c->ctx, append(c, c->own, own_fork, 300, 40), "fork");
    const kvl_save_seq list[2] = { { .seq = own }, { .seq = own_fork } };
    kvl_save_desc d = { .num_seqs = 2, .seqs = list, .write = test_put_bytes, .user = &b };
    test_ok(c->ctx, kvl_save(c->own, &d), "save");
    int32_t free_pages[PAGES];
    for (int i = 0; i < PAGES; ++i) free_pages[i] = PAGES - 1 - i;
    kvl_load_desc from = { .read = test_take_bytes, .user = &b, .pages = free_pages,
                           .num_pages = 9 };
    kvl_loaded_seq* out;
    int num;
    const uint64_t live = c->memory.live;
    cr_assert_eq(kvl_load(c->pool, &from, &out, &num), KVL_NO_MEMORY, "5 pages each");
    cr_assert_eq(c->memory.live, live);
    from.num_pages = PAGES;
    b.at = 0;
    test_ok(c->ctx, kvl_load(c->pool, &from, &out, &num), "load");
    same(c, own, out[0].seq, "the first");
    same(c, own_fork, out[1].seq, "the second");
    const kvl_seq loaded[2] = { out[0].seq, out[1].seq };
    kvl_loaded_free(c->ctx, out, num);
    const kvl_save_seq away[1] = { { .seq = loaded[1] } };
    d.num_seqs = 1;
    d.seqs = away;
    b.size = 0;
    test_ok(c->ctx, kvl_offload(c->pool, &d), "offload");
    int in_use = 0;
    for (int32_t page = 0; page < PAGES; ++page) in_use += uses(c, page);
    cr_assert_eq(in_use, 5);
    b.at = 0;
    test_ok(c->ctx, kvl_reload(c->pool, &from, &loaded[1], 1), "reload");
    same(c, own_fork, loaded[1], "it is back");
    cr_assert_eq(kvl_copy_rows(c->pool, loaded[0], c->own, own, 0, 10), KVL_UNSUPPORTED);
    free(b.data);
    close_caches(c);
}

// Broken by an allocation whose failure leaves a page taken or a table changed.
Test(pages, each_failing_allocation)
{
    caches* c = open_caches();
    const kvl_seq own = seq_of(c, c->own), seq = seq_of(c, c->pool);
    int32_t table[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    int failures = 0;
    for (int64_t at = 1;; ++at) {
        c->memory.fail_at = c->memory.calls + at;
        kvl_status status = kvl_seq_set_pages(c->pool, seq, table, 16);
        if (status == KVL_OK) status = append(c, c->pool, seq, 0, 300);
        c->memory.fail_at = 0;
        if (status == KVL_OK) break;
        ++failures;
        cr_assert_eq(status, KVL_NO_MEMORY);
        test_ok(c->ctx, kvl_truncate(c->pool, seq, 0), "empty");
        for (int32_t page = 0; page < PAGES; ++page) cr_assert_eq(uses(c, page), 0);
    }
    cr_assert_geq(failures, 3);
    test_ok(c->ctx, append(c, c->own, own, 0, 300), "own");
    same(c, own, seq, "in the end");
    close_caches(c);
}

Test(pages, refusals)
{
    caches* c = open_caches();
    int num;
    const kvl_seq own = seq_of(c, c->own);
    static const int32_t table[1] = { 0 };
    cr_assert_eq(kvl_seq_set_pages(c->own, own, table, 1), KVL_BAD_ARGUMENT);
    cr_assert(strstr(kvl_context_message(c->ctx), "kvloom's own"));
    cr_assert_eq(kvl_page_uses(c->pool, PAGES, &num), KVL_BAD_ARGUMENT);
    kvl_layer_desc layers[2] = { test_layer(spec, Q_HEADS, HEADS, DIM, DIM),
                                 test_layer("f16:page=32", Q_HEADS, HEADS, DIM, DIM) };
    kvl_cache_desc desc = { .num_layers = 2, .layers = layers, .num_pages = 10 };
    kvl_cache* cache;
    cr_assert_eq(kvl_cache_create(c->ctx, &desc, &cache), KVL_UNSUPPORTED);
    cr_assert(strstr(kvl_context_message(c->ctx), "layer 1 has pages of 32 rows, layer 0 of 64"),
              "%s", kvl_context_message(c->ctx));
    desc.num_layers = 1;
    desc.prefix_bytes = 1000;
    cr_assert_eq(kvl_cache_create(c->ctx, &desc, &cache), KVL_BAD_ARGUMENT);
    desc.prefix_bytes = 0;
    desc.num_pages = -1;
    cr_assert_eq(kvl_cache_create(c->ctx, &desc, &cache), KVL_BAD_ARGUMENT);
    close_caches(c);
}
