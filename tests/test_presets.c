// test_presets.c -- every preset through what an engine does with a sequence, beside the reference.
//
// Appended in parts, forked, cut, grown again, offloaded, saved and loaded by the other target,
// copied to it: rows, extents and attention stay those of the reference.  Breaks where a part does
// one of these for its codes and not for what it stores beside them.  With KVLOOM_TEST_TARGET=cuda
// a device; of the stand-in every third preset, unless KVLOOM_TEST_ALL=1.

#include "test_support.h"

#include <glob.h>

enum { DIM = 64, HEADS = 2, Q_HEADS = 6, ROW = HEADS * DIM, ROWS = 330, QUERIES = 2 };

// Beside the presets: parts that none of them has.
static const char* const compositions[] = {
    "kivi:k2,v2,round=trellis,sink=1,recent=4", "kivi:k4,k.shift=rotating-mean,sink=1,recent=4",
    "loom:g64,round=feedback_trellis4,sink=1,recent=9", "f16:k.transform=hadamard",
    "kivi:k4,k.place=pre_rope,k.shift=mean,sink=1,recent=4",
    "rtn:k5,v3,g16,meta=f16,extra=sparse3,sink=1,recent=4",
    "kivi:k3,k.extra=token_norm,k.place=pre_rope,sink=2,recent=3",
};
enum { NUM_COMPOSITIONS = sizeof compositions / sizeof compositions[0] };

typedef struct input {
    float k[ROWS * ROW], v[ROWS * ROW], q[QUERIES * Q_HEADS * DIM];
    float rows[2][2][ROWS * ROW];          // that two caches give back
} input;

static test_cache open_spec(const test_target* target, const char* spec)
{
    static const kvl_rope rope = { DIM, 1, 10000, 0, NULL };
    kvl_context_desc cd = { .target = target->target, .isa = target->isa, .num_threads = 2,
                            .exact = 1 };
    test_cache c = { .layer = test_layer(spec, Q_HEADS, HEADS, DIM, DIM), .dv = DIM };
    kvl_cache_desc desc = { .num_layers = 1, .layers = &c.layer, .keep_len = 20,
                            .calibration = test_calibration(TEST_TABLES) };
    c.layer.rope = &rope;
    test_ok(c.ctx, kvl_context_create(&cd, &c.ctx), target->name);
    test_ok(c.ctx, kvl_cache_create(c.ctx, &desc, &c.cache), spec);
    test_ok(c.ctx, kvl_cache_layer_info(c.cache, 0, &c.info), spec);
    return c;
}

// The worst difference of a row, in shares of the greatest value of the row that is wanted.
static double worst_of(const float* got, const float* want, int64_t num_rows)
{
    double worst = 0;
    for (int64_t i = 0; i < num_rows * HEADS; ++i) {
        double most = 1e-9, off = 0;
        for (int j = 0; j < DIM; ++j) {
            const double x = (double)want[i * DIM + j];
            const double one = fabs((double)got[i * DIM + j] - x);
            most = fmax(most, fabs(x));
            off = isfinite(one) ? fmax(off, one) : INFINITY;
        }
        worst = fmax(worst, off / most);
    }
    return worst;
}

// Two sequences have the same extents and, but for what products of a dense basis are rounded by,
// the same rows.
static void same_rows(input* in, test_cache* a, kvl_seq one, test_cache* b, kvl_seq other,
                      const char* what)
{
    kvl_seq_rows x = { 0 }, y = { 0 };
    test_ok(a->ctx, kvl_seq_get_rows(a->cache, 0, one, &x), what);
    test_ok(b->ctx, kvl_seq_get_rows(b->cache, 0, other, &y), what);
    cr_assert(memcmp(&x, &y, sizeof x) == 0, "%s, %s: %lld rows, %lld in codes; wanted %lld, %lld",
              a->layer.spec, what, (long long)x.rows, (long long)x.quantized, (long long)y.rows,
              (long long)y.quantized);
    test_restore(a, one, 0, x.rows, in->rows[0][0], in->rows[0][1]);
    test_restore(b, other, 0, x.rows, in->rows[1][0], in->rows[1][1]);
    for (int side = 0; side < 2; ++side) {
        const double worst = worst_of(in->rows[0][side], in->rows[1][side], x.rows);
        cr_assert(worst < 1e-4, "%s, %s: %s differ by %g of a row", a->layer.spec, what,
                  side ? "values" : "keys", worst);
    }
}

static test_bytes save_seq(test_cache* c, kvl_seq seq)
{
    test_bytes bytes = { 0 };
    kvl_save_seq list = { .seq = seq };
    const kvl_save_desc d = { .num_seqs = 1, .seqs = &list, .write = test_put_bytes,
                              .user = &bytes };
    test_ok(c->ctx, kvl_save(c->cache, &d), c->layer.spec);
    return bytes;
}

static kvl_seq load_seq(test_cache* c, test_bytes* bytes)
{
    const kvl_load_desc d = { .read = test_take_bytes, .user = bytes };
    kvl_loaded_seq* out = NULL;
    int num = 0;
    bytes->at = 0;
    test_ok(c->ctx, kvl_load(c->cache, &d, &out, &num), c->layer.spec);
    const kvl_seq seq = out->seq;
    kvl_loaded_free(c->ctx, out, num);
    return seq;
}

// Out of memory and back.
static void offload_and_reload(test_cache* c, kvl_seq seq)
{
    test_bytes bytes = { 0 };
    kvl_save_seq list = { .seq = seq };
    const kvl_save_desc away = { .num_seqs = 1, .seqs = &list, .write = test_put_bytes,
                                 .user = &bytes };
    const kvl_load_desc back = { .read = test_take_bytes, .user = &bytes };
    const test_state before = test_snapshot(c, seq);
    test_ok(c->ctx, kvl_offload(c->cache, &away), c->layer.spec);
    test_ok(c->ctx, kvl_reload(c->cache, &back, &seq, 1), c->layer.spec);
    const test_state after = test_snapshot(c, seq);
    test_same_state(&after, &before, c->layer.spec);
    free(bytes.data);
}

// The same history in the cache of a target [0] and in that of the reference [1].
static void check_history(input* in, test_cache* caches)
{
    kvl_seq seqs[2], forks[2] = { 0 }, loaded[2], copy;
    for (int i = 0; i < 2; ++i) {
        test_cache* c = &caches[i];
        seqs[i] = test_seq(c);
        test_append(c, seqs[i], in->k, in->v, 0, 37);
        test_append(c, seqs[i], in->k, in->v, 37, 150);
        test_ok(c->ctx, kvl_seq_fork(c->cache, seqs[i], &forks[i]), c->layer.spec);
        test_ok(c->ctx, kvl_truncate(c->cache, forks[i], 141), c->layer.spec);
        test_append(c, forks[i], in->k, in->v, 187, 100);
        test_append(c, seqs[i], in->k, in->v, 187, 1);
    }
    same_rows(in, &caches[0], seqs[0], &caches[1], seqs[1], "appended");
    same_rows(in, &caches[0], forks[0], &caches[1], forks[1], "forked and cut");
    test_attend_check(&caches[0], forks[0], in->q, QUERIES, NULL, "forked and cut");
    for (int i = 0; i < 2; ++i) {
        test_bytes file = save_seq(&caches[i], forks[i]);
        loaded[1 - i] = load_seq(&caches[1 - i], &file);
        free(file.data);
    }
    same_rows(in, &caches[0], loaded[0], &caches[1], forks[1], "loaded from the reference");
    same_rows(in, &caches[1], loaded[1], &caches[0], forks[0], "loaded by the reference");
    for (int i = 0; i < 2; ++i) test_append(&caches[i], loaded[i], in->k, in->v, 287, 43);
    same_rows(in, &caches[0], loaded[0], &caches[1], loaded[1], "loaded and grown");
    test_attend_check(&caches[0], loaded[0], in->q, QUERIES, NULL, "loaded and grown");
    offload_and_reload(&caches[0], forks[0]);
    copy = test_seq(&caches[1]);
    test_ok(caches[1].ctx, kvl_copy_rows(caches[1].cache, copy, caches[0].cache, seqs[0], 0, 188),
            caches[1].layer.spec);
}

static void check_spec(input* in, const test_target* targets, const char* spec)
{
    test_cache caches[2];
    caches[0] = open_spec(&targets[1], spec);
    caches[1] = open_spec(&targets[0], spec);
    check_history(in, caches);
    test_close(&caches[0]);
    test_close(&caches[1]);
}

// Every step-th from the first on.
static void check_presets(int first, int step)
{
    test_target targets[TEST_MAX_TARGETS];
    const char* all = getenv("KVLOOM_TEST_ALL");
    glob_t found;
    if (test_targets(targets) < 2) cr_skip_test("the reference alone");
    const int few = targets[1].target == KVL_TARGET_CUDA && !(all && strcmp(all, "1") == 0);
    cr_assert(glob(KVLOOM_TEST_ROOT "/gen/codecs/*.lua", 0, NULL, &found) == 0);
    input* in = (input*)test_alloc(1, sizeof *in);
    test_rows(1, ROWS, HEADS, DIM, in->k);
    test_rows(2, ROWS, HEADS, DIM, in->v);
    test_queries(3, QUERIES, Q_HEADS, DIM, in->q);
    for (int i = first; i < (int)found.gl_pathc + NUM_COMPOSITIONS; i += step) {
        char line[256], name[64] = "", spec[128];
        if (i < NUM_COMPOSITIONS) {
            check_spec(in, targets, compositions[i]);
            continue;
        }
        if (few && i / step % 3 != 0) continue;
        FILE* file = fopen(found.gl_pathv[i - NUM_COMPOSITIONS], "r");
        cr_assert(file, "%s", found.gl_pathv[i - NUM_COMPOSITIONS]);
        while (!name[0] && fgets(line, sizeof line, file)) sscanf(line, " name = \"%63[^\"]", name);
        fclose(file);
        cr_assert(name[0], "%s: no name", found.gl_pathv[i - NUM_COMPOSITIONS]);
        snprintf(spec, sizeof spec, "%s:sink=3,recent=21,kept=0", name);
        check_spec(in, targets, spec);
    }
    globfree(&found);
    free(in);
}

Test(presets, every_fourth) { check_presets(0, 4); }
Test(presets, and_the_next) { check_presets(1, 4); }
Test(presets, and_the_third) { check_presets(2, 4); }
Test(presets, and_the_rest) { check_presets(3, 4); }
