// test_file.c -- saved sequences: a loaded one goes on as the saved one would, on every target;
// what is damaged or of another cache is refused and changes nothing.

#include "test_support.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

enum { Q_HEADS = 4, HEADS = 2, DIM = 32, ROW = HEADS * DIM, ROWS = 260 };

typedef struct input { float *k, *v, *q; } input;

static input input_create(uint64_t seed)
{
    input in = { test_floats(ROWS * ROW), test_floats(ROWS * ROW), test_floats(Q_HEADS * DIM) };
    test_rows(seed, ROWS, HEADS, DIM, in.k);
    test_rows(seed + 1, ROWS, HEADS, DIM, in.v);
    test_queries(seed + 2, 1, Q_HEADS, DIM, in.q);
    return in;
}

static void input_free(input* in)
{
    free(in->k);
    free(in->v);
    free(in->q);
}

// A cache of one layer with room for history; another context each.
static test_cache open_cache(const test_target* target, const char* spec, int keep_len,
                             const kvl_allocator* memory)
{
    kvl_context_desc cd = { 0 };
    kvl_cache_desc desc = { 0 };
    test_cache c;
    memset(&c, 0, sizeof c);
    c.layer = test_layer(spec, Q_HEADS, HEADS, DIM, DIM);
    c.dv = DIM;
    cd.target = target->target;
    cd.isa = target->isa;
    cd.num_threads = 2;
    if (memory) cd.allocator = *memory;
    desc.num_layers = 1;
    desc.layers = &c.layer;
    desc.keep_len = keep_len;
    desc.calibration = test_calibration(TEST_TABLES);
    const kvl_status status = kvl_context_create(&cd, &c.ctx);
    test_ok(c.ctx, status, target->name);
    test_ok(c.ctx, kvl_cache_create(c.ctx, &desc, &c.cache), spec);
    test_ok(c.ctx, kvl_cache_layer_info(c.cache, 0, &c.info), spec);
    return c;
}

static const int32_t token_ids[] = { 7, -1, 49151 };

static test_bytes save_seqs(test_cache* c, const kvl_seq* seqs, int num)
{
    test_bytes b = { 0 };
    kvl_save_seq list[4] = { { 0 } };
    kvl_save_desc d = { .num_seqs = num, .seqs = list, .write = test_put_bytes, .user = &b };
    for (int i = 0; i < num; ++i) list[i].seq = seqs[i];
    list[0].tokens = token_ids;
    list[0].num_tokens = 3;
    list[num - 1].data = "chat";
    list[num - 1].data_bytes = 5;
    test_ok(c->ctx, kvl_save(c->cache, &d), "kvl_save");
    return b;
}

static kvl_status load_bytes(test_cache* c, test_bytes* b, int recode, kvl_loaded_seq** out,
                             int* num)
{
    kvl_load_desc d = { .read = test_take_bytes, .user = b, .recode = recode };
    b->at = 0;
    return kvl_load(c->cache, &d, out, num);
}

static kvl_seq load_one(test_cache* c, test_bytes* b)
{
    kvl_loaded_seq* out;
    int num;
    test_ok(c->ctx, load_bytes(c, b, 0, &out, &num), "kvl_load");
    cr_assert_eq(num, 1);
    cr_assert_eq(b->at, b->size, "the whole file is read");
    cr_assert_eq(out->num_tokens, 3);
    cr_assert_eq(memcmp(out->tokens, token_ids, sizeof token_ids), 0);
    cr_assert_str_eq((const char*)out->data, "chat");
    const kvl_seq seq = out->seq;
    kvl_loaded_free(c->ctx, out, num);
    return seq;
}

// The same rows, and the same after the same appends; `same_kernels`: attention to the bit.
static void same_future(test_cache* a, kvl_seq one, test_cache* b, kvl_seq other, const input* in,
                        const char* what)
{
    const int same_kernels = strcmp(a->info.spec, b->info.spec) == 0 &&
                             a->info.uses_generated == b->info.uses_generated;
    for (int step = 0; step < 2; ++step) {
        const test_state x = test_snapshot(a, one), y = test_snapshot(b, other);
        float o[2][Q_HEADS * DIM], lse[2][Q_HEADS];
        test_same_state(&x, &y, what);
        test_attend(a, one, in->q, 1, NULL, o[0], lse[0]);
        test_attend(b, other, in->q, 1, NULL, o[1], lse[1]);
        if (same_kernels) cr_assert(memcmp(o[0], o[1], sizeof o[0]) == 0, "%s: o differs", what);
        test_append(a, one, in->k, in->v, ROWS - 60, 60);
        test_append(b, other, in->k, in->v, ROWS - 60, 60);
    }
}

static const char* const specs[] = {
    "f16", "kivi:k2,v2,sink=4,recent=40", "rtn:k3,v1,g16,sink=0,recent=0",
    "q4_0/rtn:v5,page=32", "kivi:k6,v8,meta=f16,rows=bf16,kg16,vg16,chunk=16,sink=3,recent=0",
    "rtn:b2,k.transform=hadamard,axis=per_channel,g32",
    "kivi:k2,v2,k.extra=token_norm,sink=4,recent=40", "kivi:k1,v2,kg18,k.extra=promote5,page=144",
    "rtn:k2,v3,extra=sparse2,sink=1,recent=9", "qjl:k.extra=sketch_apart1,sink=1,recent=9",
    "kivi:k2,v2,k.extra=sketch3,k.transform=signed_hadamard,recent=40",
    "block-gtq/rtn:k3,v2,sink=1,recent=9",
    "turboquant-split:k1,v3,recent=9",
};

enum { NUM_SPECS = sizeof specs / sizeof *specs };

// Every spec and target, with histories of operations: bytes, codes and what follows agree.
Test(file, a_loaded_sequence_goes_on)
{
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_targets(targets);
    input in = input_create(1);
    for (int i = 0; i < NUM_SPECS; ++i) {
        test_bytes first = { 0 };
        for (int t = 0; t < num_targets; ++t) {
            char what[256];
            snprintf(what, sizeof what, "%s on %s", specs[i], targets[t].name);
            test_cache c = open_cache(&targets[t], specs[i], 40, NULL);
            const kvl_seq seq = test_seq(&c);
            test_append(&c, seq, in.k, in.v, 0, 190);
            test_ok(c.ctx, kvl_truncate(c.cache, seq, 170), what);
            test_append(&c, seq, in.k, in.v, 170, 7);
            test_bytes b = save_seqs(&c, &seq, 1);
            if (t == 0) first = b;
            else cr_assert(b.size == first.size && memcmp(b.data, first.data, b.size) == 0,
                           "%s: the file differs from the reference's", what);
            const kvl_seq own = load_one(&c, &b), foreign = load_one(&c, &first);
            test_bytes again = save_seqs(&c, &foreign, 1);
            cr_assert(again.size == b.size && memcmp(again.data, b.data, b.size) == 0,
                      "%s: what was loaded is saved otherwise", what);
            // Rows that a truncation takes back are there as well.
            for (int k = 0; k < 3; ++k)
                test_ok(c.ctx, kvl_truncate(c.cache, k == 0 ? seq : k == 1 ? own : foreign, 150),
                        what);
            const test_state x = test_snapshot(&c, foreign), y = test_snapshot(&c, own);
            test_same_state(&x, &y, what);
            same_future(&c, seq, &c, own, &in, what);
            free(again.data);
            if (t > 0) free(b.data);
            test_close(&c);
        }
        free(first.data);
    }
    input_free(&in);
}

// What was dropped is not in the file, and is counted as before.
Test(file, dropped_rows)
{
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_targets(targets);
    input in = input_create(3);
    for (int t = 0; t < num_targets; ++t) {
        test_cache c = open_cache(&targets[t], "kivi:sink=4,recent=0,page=32", 0, NULL);
        const kvl_seq seq = test_seq(&c);
        test_append(&c, seq, in.k, in.v, 0, 250);
        test_bytes all = save_seqs(&c, &seq, 1);
        test_ok(c.ctx, kvl_drop_oldest(c.cache, seq, 170), "drop");
        test_bytes b = save_seqs(&c, &seq, 1);
        const kvl_seq loaded = load_one(&c, &b);
        kvl_seq_rows rows[2];
        test_ok(c.ctx, kvl_seq_get_rows(c.cache, 0, seq, &rows[0]), "rows");
        test_ok(c.ctx, kvl_seq_get_rows(c.cache, 0, loaded, &rows[1]), "rows");
        cr_assert(memcmp(&rows[0], &rows[1], sizeof rows[0]) == 0 && rows[1].dropped == 170);
        // A page: 2 heads, 2 sides, 32 x 32 codes of 2 bits, 32 scales and zeros; and its number.
        cr_assert_eq(all.size - b.size, 5 * (4 * (256 + 64) + 8));
        for (int step = 0; step < 3; ++step) {
            float o[2][Q_HEADS * DIM], lse[2][Q_HEADS];
            test_attend(&c, seq, in.q, 1, NULL, o[0], lse[0]);
            test_attend(&c, loaded, in.q, 1, NULL, o[1], lse[1]);
            cr_assert(memcmp(o[0], o[1], sizeof o[0]) == 0, "%s: step %d", targets[t].name, step);
            test_append(&c, seq, in.k, in.v, 0, 50);
            test_append(&c, loaded, in.k, in.v, 0, 50);
        }
        cr_assert_eq(kvl_truncate(c.cache, loaded, 100), KVL_UNSUPPORTED);
        free(all.data);
        free(b.data);
        test_close(&c);
    }
    input_free(&in);
}

static void check_shared_pages(const test_target* target)
{
    input in = input_create(5);
    test_cache c = open_cache(target, "kivi:k4,v4,recent=0,sink=0", 0, NULL);
    test_cache d = open_cache(target, "kivi:k4,v4,recent=0,sink=0", 0, NULL);
    kvl_seq seqs[3] = { test_seq(&c) };
    kvl_stats stats;
    test_append(&c, seqs[0], in.k, in.v, 0, 224);
    test_ok(c.ctx, kvl_seq_fork(c.cache, seqs[0], &seqs[1]), "fork");
    test_ok(c.ctx, kvl_seq_fork(c.cache, seqs[0], &seqs[2]), "fork");
    test_ok(c.ctx, kvl_truncate(c.cache, seqs[1], 160), "truncate");
    test_append(&c, seqs[2], in.k, in.v, 0, 64);
    test_bytes one = save_seqs(&c, seqs, 1), all = save_seqs(&c, seqs, 3);
    cr_assert_lt(all.size, 2 * one.size, "%zu bytes for three, %zu for one", all.size, one.size);
    // In the other order, the shorter one comes to a shared page first: its rows are all there.
    const kvl_seq reversed[3] = { seqs[1], seqs[2], seqs[0] };
    test_bytes other = save_seqs(&c, reversed, 3);
    for (int order = 0; order < 2; ++order) {
        kvl_loaded_seq* out;
        int num;
        test_ok(d.ctx, load_bytes(&d, order ? &other : &all, 0, &out, &num), "kvl_load");
        cr_assert_eq(num, 3);
        kvl_stats before;
        test_ok(c.ctx, kvl_cache_stats(c.cache, &before), "stats");
        test_ok(d.ctx, kvl_cache_stats(d.cache, &stats), "stats");
        cr_assert_eq(stats.page_bytes, before.page_bytes);
        for (int i = 0; i < 3; ++i) {
            const kvl_seq from = order ? reversed[i] : seqs[i];
            const test_state x = test_snapshot(&c, from), y = test_snapshot(&d, out[i].seq);
            test_same_state(&x, &y, "shared");
            test_append(&d, out[i].seq, in.k, in.v, 100, 40);
        }
        test_ok(d.ctx, kvl_cache_stats(d.cache, &stats), "stats");
        cr_assert_gt(stats.page_bytes, before.page_bytes, "a shared page was copied");
        for (int i = 0; i < 3; ++i) test_ok(d.ctx, kvl_seq_free(d.cache, out[i].seq), "free");
        kvl_loaded_free(d.ctx, out, num);
    }
    free(one.data);
    free(all.data);
    free(other.data);
    test_close(&c);
    test_close(&d);
    input_free(&in);
}

// Forks share pages in the file and after it.
Test(file, shared_pages_are_written_once)
{
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_targets(targets);
    check_shared_pages(&targets[0]);
    check_shared_pages(&targets[num_targets - 1]);
}

static uint64_t bytes_held(test_cache* c)
{
    kvl_stats stats;
    test_ok(c->ctx, kvl_cache_stats(c->cache, &stats), "stats");
    return stats.bytes;
}

static void refused(test_cache* c, test_bytes* b, kvl_status expected, const char* words)
{
    kvl_loaded_seq* out;
    int num;
    const uint64_t before = bytes_held(c);
    const kvl_status status = load_bytes(c, b, 0, &out, &num);
    cr_assert(status == expected && strstr(kvl_context_message(c->ctx), words),
              "%s expected with '%s': %s, %s", kvl_status_text(expected), words,
              kvl_status_text(status), kvl_context_message(c->ctx));
    cr_assert(!out && num == 0 && bytes_held(c) == before, "%s: something is left", words);
}

// No bit of a file can change unseen, and no length is taken for another.
Test(file, damage_is_seen)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    input in = input_create(9);
    test_cache c = open_cache(&target, "kivi:k2,v2,sink=2,recent=0,page=32", 0, NULL);
    kvl_seq seqs[2] = { test_seq(&c) };
    test_append(&c, seqs[0], in.k, in.v, 0, 40);
    test_ok(c.ctx, kvl_seq_fork(c.cache, seqs[0], &seqs[1]), "fork");
    test_bytes b = save_seqs(&c, seqs, 2);
    for (size_t at = 0; at < b.size; ++at) {
        kvl_loaded_seq* out;
        int num;
        b.data[at] ^= (unsigned char)(1u << at % 8);
        const kvl_status status = load_bytes(&c, &b, 0, &out, &num);
        cr_assert(status == KVL_FILE || status == KVL_UNSUPPORTED || status == KVL_BAD_ARGUMENT,
                  "byte %zu of %zu: %s", at, b.size, kvl_status_text(status));
        b.data[at] ^= (unsigned char)(1u << at % 8);
    }
    const size_t size = b.size;
    const uint64_t before = bytes_held(&c);
    for (b.size = 0; b.size < size; ++b.size) {
        kvl_loaded_seq* out;
        int num;
        const kvl_status status = load_bytes(&c, &b, 0, &out, &num);
        cr_assert_eq(status, KVL_FILE, "%zu of %zu bytes: %s", b.size, size,
                     kvl_status_text(status));
    }
    cr_assert_eq(bytes_held(&c), before);
    b.size = 4;
    refused(&c, &b, KVL_FILE, "the file ends");
    b.size = size;
    b.data[0] = 'K';
    refused(&c, &b, KVL_FILE, "not a file of saved sequences");
    b.data[0] = 'k';
    b.data[8] = 9;
    refused(&c, &b, KVL_UNSUPPORTED, "version 9");
    free(b.data);
    test_close(&c);
    input_free(&in);
}

// FILES WITH A LIE IN THEM: sums that hold over contents that nothing has written

static uint64_t number_at(const test_bytes* b, size_t at)
{
    uint64_t x;
    cr_assert(at + 8 <= b->size);
    memcpy(&x, b->data + at, 8);               // the tests run where bytes are in this order
    return x;
}

static void put_number(test_bytes* b, size_t at, uint64_t x)
{
    cr_assert(at + 8 <= b->size);
    memcpy(b->data + at, &x, 8);
}

// Where the n-th section of a tag begins: its payload is 16 bytes behind that.
static size_t section_at(const test_bytes* b, const char* tag, int n)
{
    size_t at = 24;
    while (memcmp(b->data + at, tag, 4) != 0 || n-- > 0)
        at += 16 + (size_t)number_at(b, at + 8) + 8;
    return at;
}

static void put_sum_right(test_bytes* b, size_t section)
{
    const size_t bytes = 16 + (size_t)number_at(b, section + 8);
    put_number(b, section + bytes, XXH3_64bits(b->data + section, bytes));
}

static void check_slots(const test_target* target, const char* spec)
{
    enum { N = 64, WIDE = 64, HQ = 2 };        // a page, and as many rows
    static const kvl_rope rope = { 0, 1, 10000, 0, NULL };
    kvl_layer_desc layer = test_layer(spec, HQ, 1, WIDE, WIDE);
    layer.rope = &rope;
    test_cache c = test_open(target, &layer);
    float *k = test_floats(N * WIDE), *v = test_floats(N * WIDE), q[2 * HQ * WIDE];
    float alone[HQ * WIDE], both[2][HQ * WIDE];
    test_rows(41, N, 1, WIDE, k);
    test_rows(42, N, 1, WIDE, v);
    test_queries(43, 2, HQ, WIDE, q);
    kvl_seq seqs[2] = { test_seq(&c), test_seq(&c) };
    for (int i = 0; i < 2; ++i) test_append(&c, seqs[i], k, v, 0, N);
    test_bytes b = { 0 };
    kvl_save_seq one = { .seq = seqs[0] };
    kvl_save_desc d = { .num_seqs = 1, .seqs = &one, .write = test_put_bytes, .user = &b };
    test_ok(c.ctx, kvl_save(c.cache, &d), spec);
    // The slots of values end the page, and those of keys what keys have of it: of the last rows
    // one byte each says channel 255 and 64.
    const size_t rows = section_at(&b, "ROWS", 0);
    const size_t end = rows + 16 + (size_t)number_at(&b, rows + 8);
    const size_t v_bytes = (size_t)(c.info.v_bits * N * WIDE / 8);
    for (size_t r = 0; r < 40; ++r) {
        const unsigned char lie = r % 2 ? 255 : WIDE;
        cr_assert(b.data[end - 1 - 3 * r] < WIDE && b.data[end - v_bytes - 1 - 3 * r] < WIDE);
        b.data[end - 1 - 3 * r] = b.data[end - v_bytes - 1 - 3 * r] = lie;
    }
    put_sum_right(&b, rows);
    kvl_load_desc from = { .read = test_take_bytes, .user = &b };
    kvl_loaded_seq* out;
    int num;
    test_ok(c.ctx, kvl_load(c.cache, &from, &out, &num), spec);
    seqs[0] = out->seq;
    kvl_loaded_free(c.ctx, out, num);
    test_attend(&c, seqs[1], q + HQ * WIDE, 1, NULL, alone, NULL);
    kvl_attend_desc t = { .num_seqs = 2, .seqs = seqs };
    t.q.data = q;
    t.o.data = both;
    test_ok(c.ctx, kvl_attend(c.cache, &t), spec);
    cr_assert(memcmp(both[1], alone, sizeof alone) == 0, "%s on %s: another sequence's output",
              spec, target->name);
    test_attend_check(&c, seqs[0], q, 1, NULL, spec);      // and no slot of no channel counts
    free(b.data);
    free(k);
    free(v);
    test_close(&c);
}

// Broken by a target that takes a value's channel from a file as it stands.
Test(file, channels_beyond_the_head_are_passed_over)
{
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_targets(targets);
    for (int t = 0; t < num_targets; ++t) {
        check_slots(&targets[t], "kvquant:sink=0,recent=0,page=64");
        check_slots(&targets[t], "rtn:b4,g32,extra=sparse1,sink=0,recent=0,page=64");
    }
}

// Broken by a file that has a page at two places: what is saved of it could not be read again.
Test(file, a_page_has_one_place)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    input in = input_create(31);
    test_cache c = open_cache(&target, "kivi:k4,v4,recent=0,sink=0,page=32", 0, NULL);
    kvl_seq seqs[2] = { test_seq(&c) };
    test_append(&c, seqs[0], in.k, in.v, 0, 96);
    test_ok(c.ctx, kvl_seq_fork(c.cache, seqs[0], &seqs[1]), "fork");
    test_bytes b = save_seqs(&c, seqs, 2);
    kvl_loaded_seq* out;
    int num;
    // The second sequence: pages 1, 2, 3 of the first one's.
    size_t rows = section_at(&b, "ROWS", 1);
    const size_t pages = rows + 16 + 56;
    cr_assert_eq(number_at(&b, rows + 8), 56 + 3 * 8);
    static const uint64_t lies[][3] = { { 1, 1, 3 }, { 2, 1, 3 }, { 1, 2, 1 }, { 1, 2, 2 } };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; ++i) {
        for (size_t p = 0; p < 3; ++p) put_number(&b, pages + 8 * p, lies[i][p]);
        put_sum_right(&b, rows);
        refused(&c, &b, KVL_FILE, "layer 0 has it at");
    }
    for (size_t p = 0; p < 3; ++p) put_number(&b, pages + 8 * p, 1 + p);
    put_sum_right(&b, rows);
    test_ok(c.ctx, load_bytes(&c, &b, 0, &out, &num), "as it was");
    for (int i = 0; i < num; ++i) test_ok(c.ctx, kvl_seq_free(c.cache, out[i].seq), "free");
    kvl_loaded_free(c.ctx, out, num);
    // The first sequence: its second page is its first once more.
    rows = section_at(&b, "ROWS", 0);
    const size_t bytes = (size_t)number_at(&b, rows + 8), page = (bytes - 56) / 3 - 8;
    const size_t second = rows + 16 + 56 + 8 + page;
    cr_assert_eq(number_at(&b, second), 0);
    put_number(&b, second, 1);
    memmove(b.data + second + 8, b.data + second + 8 + page, b.size - second - 8 - page);
    b.size -= page;
    put_number(&b, rows + 8, bytes - page);
    put_sum_right(&b, rows);
    refused(&c, &b, KVL_FILE, "page 1 of 1 at place 1");
    free(b.data);
    test_close(&c);
    input_free(&in);
}

// Broken by a kind of layer that there is not, which would be taken for another with recode.
Test(file, kinds_of_layers)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    test_cache c = open_cache(&target, "kivi", 0, NULL);
    const kvl_seq seq = test_seq(&c);
    test_bytes b = save_seqs(&c, &seq, 1);
    const size_t layer = section_at(&b, "LAYR", 0);
    static const unsigned char kinds[] = { 2, 4, 5, 7 };
    for (size_t i = 0; i < sizeof kinds; ++i) {
        kvl_loaded_seq* out;
        int num;
        cr_assert_eq(b.data[layer + 16], i ? kinds[i - 1] : 1);
        b.data[layer + 16] = kinds[i];
        put_sum_right(&b, layer);
        cr_assert_eq(load_bytes(&c, &b, 1, &out, &num), KVL_FILE);
        cr_assert(strstr(kvl_context_message(c.ctx), "layer 0 is of kind"), "%s",
                  kvl_context_message(c.ctx));
    }
    free(b.data);
    test_close(&c);
}

// Broken by memory that is taken because a file says so, before its rows are there.
Test(file, claimed_pages_take_no_memory)
{
    enum { CLAIM = 1 << 22, PAGES = 8, ROWS_OF_PAGE = 32 };
    static const int32_t free_pages[PAGES] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    const char* spec = "kivi:k4,v4,recent=0,sink=0,page=32";
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    input in = input_create(37);
    test_cache c = open_cache(&target, spec, 0, NULL);
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, in.k, in.v, 0, 4 * ROWS_OF_PAGE);
    test_bytes b = save_seqs(&c, &seq, 1);
    const size_t rows = section_at(&b, "ROWS", 0);
    const uint64_t bytes = number_at(&b, rows + 8), page = (bytes - 56) / 4 - 8;
    put_number(&b, rows + 8, 56 + CLAIM * (8 + page));
    put_number(&b, rows + 16, (uint64_t)CLAIM * ROWS_OF_PAGE);
    put_number(&b, rows + 24, (uint64_t)CLAIM * ROWS_OF_PAGE);
    put_number(&b, rows + 64, CLAIM);
    b.size = rows + 16 + bytes;                // all four pages, and nothing behind them
    for (int what = 0; what < 4; ++what) {
        const int pooled = what == 1 || what == 2;
        test_memory memory;
        test_memory_init(&memory);
        const kvl_allocator allocator = test_memory_allocator(&memory);
        kvl_context_desc cd = { .target = KVL_TARGET_REFERENCE, .num_threads = 1,
                                .allocator = allocator };
        const kvl_layer_desc layer = test_layer(spec, Q_HEADS, HEADS, DIM, DIM);
        kvl_cache_desc desc = { .num_layers = 1, .layers = &layer, .num_pages = pooled * PAGES };
        kvl_load_desc from = { .read = test_take_bytes, .user = &b };
        kvl_context* ctx;
        kvl_cache* cache;
        kvl_loaded_seq* out;
        int num;
        test_ok(NULL, kvl_context_create(&cd, &ctx), "context");
        test_ok(ctx, kvl_cache_create(ctx, &desc, &cache), spec);
        if (pooled) {
            from.pages = free_pages;
            from.num_pages = PAGES;
        }
        kvl_status expected = KVL_FILE;
        if (what == 2) {                       // one page, and all before it are gone
            put_number(&b, rows + 16, (uint64_t)1 << 40);
            put_number(&b, rows + 24, (uint64_t)1 << 40);
            put_number(&b, rows + 32, ((uint64_t)1 << 40) - ROWS_OF_PAGE);
            put_number(&b, rows + 64, 1);
            expected = KVL_UNSUPPORTED;
        }
        if (what == 3) {                       // sequences, the most there can be, and one
            const size_t seq = section_at(&b, "SEQU", 0);
            put_number(&b, 16, 1 << 20);
            b.size = seq + 16 + (size_t)number_at(&b, seq + 8) + 8;
        }
        b.at = 0;
        const uint64_t live = memory.live;
        cr_assert_eq(kvl_load(cache, &from, &out, &num), expected, "%s", kvl_context_message(ctx));
        cr_assert(strstr(kvl_context_message(ctx), what == 2 ? "34359738368 pages"
                                                             : "the file ends"), "%s",
                  kvl_context_message(ctx));
        cr_assert_eq(memory.live, live);
        cr_assert_lt(memory.peak - live, 2 << 20, "%llu bytes for %zu in the file",
                     (unsigned long long)(memory.peak - live), b.size);
        kvl_cache_free(cache);
        kvl_context_destroy(ctx);
    }
    free(b.data);
    test_close(&c);
    input_free(&in);
}

// Broken by a page table that grows while a file is read and loses a page or keeps too many bytes.
Test(file, long_tables_come_back)
{
    enum { PAGES = 4352, LONG = 16 * PAGES };      // fills 17 lists of 256 counts
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    test_cache c = open_cache(&target, "rtn:b1,g32,sink=0,recent=0,chunk=16,page=16", 0, NULL);
    float* k = test_floats((int64_t)LONG * ROW);
    for (int64_t i = 0; i < (int64_t)LONG * ROW; ++i) k[i] = (float)(i * 7919 % 1009) / 512.0f;
    const uint64_t empty = bytes_held(&c);
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, k, k, 0, LONG);
    const uint64_t bytes = bytes_held(&c) - empty;
    test_bytes b = save_seqs(&c, &seq, 1);
    const kvl_seq loaded = load_one(&c, &b);
    const test_state x = test_snapshot(&c, seq), y = test_snapshot(&c, loaded);
    test_same_state(&x, &y, "4352 pages");
    cr_assert_eq(bytes_held(&c) - empty, 2 * bytes);
    free(b.data);
    free(k);
    test_close(&c);
}

// Broken by a copy that needs a place among the sequences, or takes what is not there for nothing.
Test(file, copies_need_no_sequence_and_check_what_they_take)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    input in = input_create(43);
    test_cache c = open_cache(&target, "kivi:k2,v2", 0, NULL);
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, in.k, in.v, 0, 100);
    test_cache d = open_cache(&target, "rtn:k4,v3,sink=1,recent=8", 0, NULL);
    kvl_cache_desc desc = { .num_layers = 1, .layers = &d.layer, .max_seqs = 1 };
    kvl_cache_free(d.cache);
    test_ok(d.ctx, kvl_cache_create(d.ctx, &desc, &d.cache), "one sequence");
    kvl_seq to = test_seq(&d), other;
    test_ok(d.ctx, kvl_copy_rows(d.cache, to, c.cache, seq, 0, 60), "the only one");
    test_ok(d.ctx, kvl_copy_rows(d.cache, to, d.cache, to, 10, 40), "of its own");
    test_ok(d.ctx, kvl_copy_rows(d.cache, to, c.cache, seq, 60, 0), "nothing");
    cr_assert_eq(kvl_seq_create(d.cache, &other), KVL_NO_MEMORY, "max_seqs holds");
    const test_state before = test_snapshot(&d, to);
    cr_assert_eq(before.rows.rows, 100);
    static const struct { int64_t first, num; const char* words; } bad[] = {
        { 0, -5, "num = -5" }, { -1, 0, "first = -1" }, { -1, 2, "first = -1" },
        { 0, 101, "layer 0 has 100 rows" }, { 101, 0, "layer 0 has 100 rows" },
        { 100, 1, "layer 0 has 100 rows" }, { 1, INT64_MAX, "layer 0 has 100 rows" } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        cr_assert_eq(kvl_copy_rows(d.cache, to, c.cache, seq, bad[i].first, bad[i].num),
                     KVL_BAD_ARGUMENT, "%s", bad[i].words);
        cr_assert(strstr(kvl_context_message(d.ctx), bad[i].words), "%s: %s", bad[i].words,
                  kvl_context_message(d.ctx));
    }
    cr_assert_eq(kvl_copy_rows(d.cache, to, c.cache, 0xdead, 0, 0), KVL_BAD_ARGUMENT);
    cr_assert(strstr(kvl_context_message(d.ctx), "from_seq = 0xdead"), "%s",
              kvl_context_message(d.ctx));
    test_ok(c.ctx, kvl_drop_oldest(c.cache, seq, 32), "drop");
    cr_assert_eq(kvl_copy_rows(d.cache, to, c.cache, seq, 0, 10), KVL_BAD_ARGUMENT);
    cr_assert(strstr(kvl_context_message(d.ctx), "dropped"), "%s", kvl_context_message(d.ctx));
    const test_state after = test_snapshot(&d, to);
    test_same_state(&before, &after, "after refused copies");
    test_close(&c);
    test_close(&d);
    input_free(&in);
}

// What is of another cache is refused by name.
Test(file, another_cache_is_refused)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    input in = input_create(11);
    test_cache c = open_cache(&target, "kivi", 0, NULL);
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, in.k, in.v, 0, 200);
    test_bytes b = save_seqs(&c, &seq, 1);
    test_cache spec = open_cache(&target, "kivi:k3", 0, NULL);
    refused(&spec, &b, KVL_BAD_ARGUMENT, "layer 0: spec 'kivi:k2,");
    refused(&spec, &b, KVL_BAD_ARGUMENT, "in the file, 'kivi:k3,");
    refused(&spec, &b, KVL_BAD_ARGUMENT, "with recode it is loaded");
    const kvl_layer_desc heads = test_layer("kivi", 4, 4, DIM, DIM);
    test_cache other = test_open(&target, &heads);
    refused(&other, &b, KVL_BAD_ARGUMENT, "num_kv_heads = 2 in the file, 4 in the cache");
    test_close(&other);
    const kvl_layer_desc dims = test_layer("kivi", Q_HEADS, HEADS, 64, 32);
    other = test_open(&target, &dims);
    refused(&other, &b, KVL_BAD_ARGUMENT, "head_dim = 32 and 32 in the file, 64 and 32");
    test_close(&other);
    kvl_layer_desc layers[2] = { c.layer, c.layer };
    kvl_cache_desc two = { .num_layers = 2, .layers = layers };
    kvl_cache* cache;
    test_ok(c.ctx, kvl_cache_create(c.ctx, &two, &cache), "two layers");
    kvl_load_desc d = { .read = test_take_bytes, .user = &b };
    kvl_loaded_seq* out;
    int num;
    b.at = 0;
    cr_assert_eq(kvl_load(cache, &d, &out, &num), KVL_BAD_ARGUMENT);
    cr_assert(strstr(kvl_context_message(c.ctx), "num_layers = 1 in the file, 2 in the cache"));
    kvl_cache_free(cache);
    d.path = "x";
    cr_assert_eq(kvl_load(c.cache, &d, &out, &num), KVL_BAD_ARGUMENT);
    cr_assert(strstr(kvl_context_message(c.ctx), "exactly one"));
    d.read = NULL;
    d.path = "/nowhere/x";
    cr_assert_eq(kvl_load(c.cache, &d, &out, &num), KVL_FILE);
    cr_assert(strstr(kvl_context_message(c.ctx), "/nowhere/x: cannot be read: No such file"));
    free(b.data);
    test_close(&spec);
    test_close(&c);
    input_free(&in);
}

static void check_recoding(const test_target* from, const test_target* to)
{
    input in = input_create(13);
    test_cache c = open_cache(from, "kivi:k2,v2", 0, NULL);
    test_cache d = open_cache(to, "rtn:k4,v3,sink=1,recent=8", 0, NULL);
    const kvl_seq seq = test_seq(&c), expected = test_seq(&d), copied = test_seq(&d);
    float* k = test_floats(ROWS * ROW);
    float* v = test_floats(ROWS * ROW);
    test_append(&c, seq, in.k, in.v, 0, ROWS);
    test_restore(&c, seq, 0, ROWS, k, v);
    test_append(&d, expected, k, v, 0, ROWS);
    test_bytes b = save_seqs(&c, &seq, 1);
    kvl_loaded_seq* out;
    int num;
    test_ok(d.ctx, load_bytes(&d, &b, 1, &out, &num), "recode");
    const test_state x = test_snapshot(&d, expected), y = test_snapshot(&d, out->seq);
    test_same_state(&x, &y, "recoded");
    kvl_loaded_free(d.ctx, out, num);
    test_ok(d.ctx, kvl_copy_rows(d.cache, copied, c.cache, seq, 0, 100), "copy");
    test_ok(d.ctx, kvl_copy_rows(d.cache, copied, c.cache, seq, 100, ROWS - 100), "copy");
    const test_state z = test_snapshot(&d, copied);
    test_same_state(&x, &z, "copied");
    cr_assert_eq(kvl_copy_rows(d.cache, copied, c.cache, seq, 1, ROWS), KVL_BAD_ARGUMENT);
    const test_state same = test_snapshot(&d, copied);
    test_same_state(&z, &same, "after a refused copy");
    // Dropped rows have no full rows.
    test_ok(c.ctx, kvl_drop_oldest(c.cache, seq, 64), "drop");
    test_bytes dropped = save_seqs(&c, &seq, 1);
    const uint64_t before = bytes_held(&d);
    cr_assert_eq(load_bytes(&d, &dropped, 1, &out, &num), KVL_UNSUPPORTED);
    cr_assert(strstr(kvl_context_message(d.ctx), "dropped rows"));
    cr_assert_eq(bytes_held(&d), before);
    free(b.data);
    free(dropped.data);
    free(k);
    free(v);
    test_close(&c);
    test_close(&d);
    input_free(&in);
}

// By hand: the rows that kvl_restore gives of the saved sequence, appended to a cache of the other
// spec.  On a device, rows come from one context to another, to the host and back.
Test(file, recoding_appends_the_restored_rows)
{
    test_target targets[TEST_MAX_TARGETS];
    const int last = test_targets(targets) - 1;
    check_recoding(&targets[0], &targets[0]);
    check_recoding(&targets[0], &targets[last]);
    check_recoding(&targets[last], &targets[0]);
    check_recoding(&targets[last], &targets[last]);
}

// Within one cache, from a sequence to itself.
Test(file, rows_are_copied_within_a_cache)
{
    test_target targets[TEST_MAX_TARGETS];
    const int last = test_targets(targets) - 1;
    input in = input_create(29);
    test_cache c = open_cache(&targets[last], "kivi:k4,v4,recent=8", 0, NULL);
    const kvl_seq seq = test_seq(&c), expected = test_seq(&c);
    float* k = test_floats(100 * ROW);
    float* v = test_floats(100 * ROW);
    test_append(&c, seq, in.k, in.v, 0, 150);
    test_append(&c, expected, in.k, in.v, 0, 150);
    test_restore(&c, seq, 20, 100, k, v);
    test_append(&c, expected, k, v, 0, 100);
    test_ok(c.ctx, kvl_copy_rows(c.cache, seq, c.cache, seq, 20, 100), "copy");
    same_future(&c, seq, &c, expected, &in, "copied");
    free(k);
    free(v);
    test_close(&c);
    input_free(&in);
}

// A save that fails at any byte leaves the file that was there.
Test(file, a_failed_save_keeps_the_old_file)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    input in = input_create(17);
    char folder[] = "/tmp/kvloom-file.XXXXXX", path[64];
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/x", folder);
    test_cache c = open_cache(&target, "kivi", 0, NULL);
    const kvl_seq seq = test_seq(&c);
    kvl_save_seq one = { .seq = seq, .tokens = token_ids, .num_tokens = 3,
                         .data = "chat", .data_bytes = 5 };
    kvl_save_desc d = { .num_seqs = 1, .seqs = &one, .path = path };
    kvl_file_info info;
    test_ok(c.ctx, kvl_save(c.cache, &d), "an empty sequence");
    test_append(&c, seq, in.k, in.v, 0, 200);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 9000; limit += 1500) {
        const pid_t child = fork();
        if (child == 0) {
            const struct rlimit most = { limit, limit };
            // Contexts are not used after fork: this one is the child's own.
            test_cache own = open_cache(&target, "kivi", 0, NULL);
            kvl_save_seq mine = { .seq = test_seq(&own) };
            test_append(&own, mine.seq, in.k, in.v, 0, 200);
            kvl_save_desc to = { .num_seqs = 1, .seqs = &mine, .path = path };
            setrlimit(RLIMIT_FSIZE, &most);
            const kvl_status status = kvl_save(own.cache, &to);
            const int clear = strstr(kvl_context_message(own.ctx), "written") != NULL;
            _exit(status == KVL_FILE && clear ? 0 : 1);
        }
        int status = 1;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(status, 0, "limit %lld", (long long)limit);
        test_ok(c.ctx, kvl_file_read_info(c.ctx, path, &info), "info");
        cr_assert(info.num_tokens == 3 && info.num_seqs == 1 && info.num_layers == 1);
    }
    test_ok(c.ctx, kvl_save(c.cache, &d), "save");
    kvl_load_desc from = { .path = path };
    kvl_loaded_seq* out;
    int num;
    test_ok(c.ctx, kvl_load(c.cache, &from, &out, &num), "load");
    const test_state x = test_snapshot(&c, seq), y = test_snapshot(&c, out->seq);
    test_same_state(&x, &y, "by path");
    kvl_loaded_free(c.ctx, out, num);
    test_ok(c.ctx, kvl_file_read_seqs(c.ctx, path, &out, &num), "tokens and data alone");
    cr_assert(num == 1 && out->seq == 0 && out->num_tokens == 3 && out->data_bytes == 5);
    cr_assert(memcmp(out->tokens, token_ids, sizeof token_ids) == 0 &&
              strcmp((const char*)out->data, "chat") == 0);
    kvl_loaded_free(c.ctx, out, num);
    cr_assert_eq(kvl_file_read_seqs(c.ctx, "/nowhere/x", &out, &num), KVL_FILE);
    cr_assert(out == NULL && num == 0);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(rmdir(folder), 0, "a temporary file is left");
    d.path = "/nowhere/x";
    cr_assert_eq(kvl_save(c.cache, &d), KVL_FILE);
    cr_assert(strstr(kvl_context_message(c.ctx), "/nowhere/x: cannot be written: No such file"));
    test_close(&c);
    input_free(&in);
}

// A process that is killed at any write of a save leaves the file that was there; the next save is
// not disturbed by what is left beside it.
Test(file, a_killed_save_keeps_the_old_file)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    input in = input_create(29);
    char folder[] = "/tmp/kvloom-file.XXXXXX", path[64], command[96];
    int killed = 0;
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/x", folder);
    test_cache c = open_cache(&target, "kivi", 0, NULL);
    const kvl_seq seq = test_seq(&c);
    kvl_save_seq one = { .seq = seq, .tokens = token_ids, .num_tokens = 3 };
    kvl_save_desc d = { .num_seqs = 1, .seqs = &one, .path = path };
    kvl_file_info info;
    test_ok(c.ctx, kvl_save(c.cache, &d), "an empty sequence");
    test_append(&c, seq, in.k, in.v, 0, 200);
    for (rlim_t limit = 0, done = 0; !done; limit += 2048) {
        const pid_t child = fork();
        if (child == 0) {
            const struct rlimit most = { limit, limit }, none = { 0, 0 };
            test_cache own = open_cache(&target, "kivi", 0, NULL);
            kvl_save_seq mine = { .seq = test_seq(&own) };
            test_append(&own, mine.seq, in.k, in.v, 0, 200);
            kvl_save_desc to = { .num_seqs = 1, .seqs = &mine, .path = path };
            setrlimit(RLIMIT_CORE, &none);
            signal(SIGXFSZ, SIG_DFL);              // a write beyond the limit ends the process
            setrlimit(RLIMIT_FSIZE, &most);
            _exit(kvl_save(own.cache, &to) == KVL_OK ? 0 : 1);
        }
        int status = 1;
        cr_assert_eq(waitpid(child, &status, 0), child);
        done = WIFEXITED(status);
        cr_assert(!done || WEXITSTATUS(status) == 0, "limit %lld", (long long)limit);
        killed += !done;
        test_ok(c.ctx, kvl_file_read_info(c.ctx, path, &info), "info");
        cr_assert_eq(info.num_tokens, done ? 0 : 3, "limit %lld", (long long)limit);
    }
    cr_assert_gt(killed, 3);
    test_ok(c.ctx, kvl_save(c.cache, &d), "the next save");
    test_ok(c.ctx, kvl_file_read_info(c.ctx, path, &info), "info");
    cr_assert_eq(info.num_tokens, 3);
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
    test_close(&c);
    input_free(&in);
}

// Rows go to the caller and back while another sequence lives on; the count of bytes is that of the
// allocator at each step; a stream of other rows is refused.
Test(file, offloaded_rows_come_back)
{
    test_target targets[TEST_MAX_TARGETS];
    const int num_targets = test_targets(targets);
    input in = input_create(23);
    for (int t = 0; t < num_targets; ++t) {
        test_memory memory;
        test_memory_init(&memory);
        const kvl_allocator allocator = test_memory_allocator(&memory);
        test_cache c = open_cache(&targets[t], "kivi:k3,v2,g32,sink=4,recent=32", 32, &allocator);
        kvl_seq seqs[2] = { test_seq(&c), 0 }, other = test_seq(&c);
        kvl_stats before, away, after;
        test_append(&c, seqs[0], in.k, in.v, 0, 200);
        test_ok(c.ctx, kvl_seq_fork(c.cache, seqs[0], &seqs[1]), "fork");
        test_append(&c, seqs[1], in.k, in.v, 200, 30);
        test_append(&c, other, in.k, in.v, 0, 100);
        const test_state one = test_snapshot(&c, seqs[0]), two = test_snapshot(&c, seqs[1]);
        test_ok(c.ctx, kvl_cache_stats(c.cache, &before), "stats");
        const uint64_t live = memory.live;
        test_bytes b = { 0 };
        const kvl_save_seq list[2] = { { .seq = seqs[0] }, { .seq = seqs[1] } };
        kvl_save_desc d = { .num_seqs = 2, .seqs = list, .write = test_put_bytes, .user = &b };
        b.limit = 1000;
        cr_assert_eq(kvl_offload(c.cache, &d), KVL_FILE);
        const test_state same = test_snapshot(&c, seqs[0]);
        test_same_state(&one, &same, "a stream that stops");
        b.limit = b.size = 0;
        test_ok(c.ctx, kvl_offload(c.cache, &d), "offload");
        test_ok(c.ctx, kvl_cache_stats(c.cache, &away), "stats");
        cr_assert(away.bytes < before.bytes && away.num_seqs == 3 && away.num_rows == 100);
        if (targets[t].target != KVL_TARGET_CUDA)        // the device's is not the allocator's
            cr_assert_eq(before.bytes - away.bytes, live - memory.live);
        kvl_seq_rows rows;
        cr_assert_eq(kvl_seq_get_rows(c.cache, 0, seqs[0], &rows), KVL_BAD_ARGUMENT);
        cr_assert(strstr(kvl_context_message(c.ctx), "offloaded"));
        cr_assert_eq(kvl_offload(c.cache, &d), KVL_BAD_ARGUMENT);
        test_append(&c, other, in.k, in.v, 100, 100);
        test_ok(c.ctx, kvl_truncate(c.cache, other, 100), "truncate");
        const kvl_load_desc from = { .read = test_take_bytes, .user = &b };
        const kvl_seq swapped[2] = { seqs[1], seqs[0] };
        cr_assert_eq(kvl_reload(c.cache, &from, swapped, 2), KVL_BAD_ARGUMENT);
        cr_assert(strstr(kvl_context_message(c.ctx), "another file"));
        b.at = 0;
        cr_assert_eq(kvl_reload(c.cache, &from, seqs, 1), KVL_BAD_ARGUMENT);
        cr_assert_eq(kvl_reload(c.cache, &from, &other, 1), KVL_BAD_ARGUMENT);
        b.data[b.size / 2] ^= 1;
        b.at = 0;
        cr_assert_eq(kvl_reload(c.cache, &from, seqs, 2), KVL_FILE);
        b.data[b.size / 2] ^= 1;
        b.at = 0;
        test_ok(c.ctx, kvl_reload(c.cache, &from, seqs, 2), "reload");
        const test_state x = test_snapshot(&c, seqs[0]), y = test_snapshot(&c, seqs[1]);
        test_same_state(&one, &x, "the first one");
        test_same_state(&two, &y, "its fork");
        test_ok(c.ctx, kvl_seq_free(c.cache, other), "free");
        test_ok(c.ctx, kvl_cache_stats(c.cache, &after), "stats");
        cr_assert_eq(after.saved_bytes, before.saved_bytes, "the two share pages again");
        test_append(&c, seqs[1], in.k, in.v, 230, 30);
        b.size = 0;
        test_ok(c.ctx, kvl_offload(c.cache, &d), "offload");
        test_ok(c.ctx, kvl_seq_free(c.cache, seqs[0]), "an offloaded one is freed");
        test_close(&c);
        cr_assert_eq(memory.live, 0);
        free(b.data);
    }
    input_free(&in);
}

// A link stays one; what is no file, or holds something else, stays as it is.
Test(file, only_its_own_kind_is_replaced)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    char folder[] = "/tmp/kvloom-file.XXXXXX", path[64];
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/x", folder);
    test_cache c = open_cache(&target, "kivi", 0, NULL);
    kvl_save_seq one = { .seq = test_seq(&c) };
    kvl_save_desc d = { .num_seqs = 1, .seqs = &one, .path = path };
    test_ok(c.ctx, kvl_save(c.cache, &d), "save");
    char link[80], other[80];
    struct stat there;
    snprintf(link, sizeof link, "%s/link", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    cr_assert_eq(symlink(path, link), 0);
    d.path = link;
    test_ok(c.ctx, kvl_save(c.cache, &d), "through a link");
    cr_assert(lstat(link, &there) == 0 && S_ISLNK(there.st_mode));
    cr_assert_eq(unlink(link), 0);
    cr_assert_eq(mkfifo(other, 0600), 0);
    d.path = other;
    cr_assert_eq(kvl_save(c.cache, &d), KVL_FILE);
    cr_assert(strstr(kvl_context_message(c.ctx), "/other: is no plain file"), "%s",
              kvl_context_message(c.ctx));
    cr_assert_eq(unlink(other), 0);
    FILE* text = fopen(other, "w");
    cr_assert(text && fputs("a letter", text) > 0 && fclose(text) == 0);
    cr_assert_eq(kvl_save(c.cache, &d), KVL_FILE);
    cr_assert(strstr(kvl_context_message(c.ctx), "/other: holds something else"), "%s",
              kvl_context_message(c.ctx));
    cr_assert(stat(other, &there) == 0 && there.st_size == 8);
    cr_assert_eq(unlink(other), 0);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(rmdir(folder), 0, "a temporary file is left");
    test_close(&c);
}

// Each allocation of a save and of a load fails in turn.
Test(file, failing_memory)
{
    const test_target target = { "reference", KVL_TARGET_REFERENCE, NULL };
    input in = input_create(19);
    test_memory memory;
    test_memory_init(&memory);
    const kvl_allocator allocator = test_memory_allocator(&memory);
    test_cache c = open_cache(&target, "kivi:sink=2,recent=0,page=32", 0, &allocator);
    test_cache d = open_cache(&target, "rtn:sink=2,recent=0,page=32", 0, &allocator);
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, in.k, in.v, 0, 170);
    test_bytes b = save_seqs(&c, &seq, 1);
    for (int what = 0; what < 3; ++what) {
        int64_t at = 0, failures = 0;
        for (kvl_status status = KVL_NO_MEMORY; status != KVL_OK; ++at) {
            test_cache* into = what == 2 ? &d : &c;
            const uint64_t live = memory.live;
            kvl_loaded_seq* out = NULL;
            int num = 0;
            test_bytes again = { 0 };
            memory.fail_at = memory.calls + 1 + at;
            if (what == 0) {
                kvl_save_seq one = { .seq = seq };
                kvl_save_desc to = { .num_seqs = 1, .seqs = &one, .write = test_put_bytes,
                                     .user = &again };
                status = kvl_save(c.cache, &to);
            } else {
                status = load_bytes(into, &b, what == 2, &out, &num);
            }
            memory.fail_at = 0;
            cr_assert(status == KVL_OK || status == KVL_NO_MEMORY, "allocation %lld of %d: %s",
                      (long long)at, what, kvl_status_text(status));
            if (status == KVL_NO_MEMORY) {
                ++failures;
                cr_assert_eq(memory.live, live, "allocation %lld of %d: %lld bytes are left",
                             (long long)at, what, (long long)(memory.live - live));
            }
            kvl_loaded_free(into->ctx, out, num);
            free(again.data);
        }
        cr_assert_gt(failures, 1, "%d", what);
    }
    free(b.data);
    test_close(&c);
    test_close(&d);
    input_free(&in);
}
