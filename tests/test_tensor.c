// test_tensor.c -- attention over pages by tensor cores against the kernels in floats.
//
// The device is the stand-in of tests/ptxsim, or with KVLOOM_TEST_GPU=1 the machine's own.  A
// context with `exact` has the kernels in floats: both must be within their bounds of float64
// over the rows that are read back.  What 16 bits do not hold, and what an older architecture has
// of its own, is compared with the reference.

#include "test_support.h"

#include "sim_library.h"

#include <float.h>
#include <math.h>

typedef struct shape {
    const char* spec;
    int         q_heads, kv_heads, dk, dv, rows, soft_cap, window_len, slopes;
} shape;

// Query heads a KV head, head dims, groups, lengths that end in a step and before one, windows.
static const shape shapes[] = {
    { "kivi:sink=4,recent=40", 8, 2, 64, 64, 300, 0, 0, 0 },
    { "kivi:sink=4,recent=32", 8, 1, 128, 128, 500, 0, 0, 0 },
    { "kivi:sink=1,recent=32", 1, 1, 128, 128, 229, 0, 0, 0 },
    { "kivi:sink=0,recent=0", 7, 1, 64, 128, 390, 0, 100, 0 },
    { "kivi:g64,sink=4,recent=64", 16, 1, 64, 64, 420, 30, 0, 0 },
    { "kivi:kg64,vg32,sink=2,recent=64,page=128,rows=bf16", 4, 1, 128, 64, 520, 0, 150, 1 },
    { "loom:sink=1,recent=32", 4, 1, 64, 64, 200, 0, 0, 0 },
    { "loom:kg64,sink=1,recent=32", 8, 1, 128, 128, 300, 20, 0, 0 },
    { "flagrot-kivi:sink=1,recent=32", 5, 1, 64, 64, 200, 0, 0, 0 },
    { "flagrot-kivi:kg64,sink=1,recent=32", 12, 1, 128, 128, 260, 0, 70, 1 },
    { "kivi:k4,v4,sink=1,recent=32", 4, 1, 128, 128, 200, 0, 0, 0 },
    { "kivi:k4,v2,meta=e4m3,sink=1,recent=32", 8, 1, 64, 64, 200, 0, 0, 0 },
    { "loom:b4,sink=1,recent=32", 2, 1, 64, 64, 200, 0, 0, 0 },
    { "kivi:k.levels=midpoint,k.fit=rms,v.levels=symmetric,v.fit=absmax,sink=1,recent=32", 4, 1, 64,
      64, 200, 0, 0, 0 },
    { "kivi:meta=f16,kg64,vg32,sink=1,recent=64", 6, 1, 128, 64, 230, 0, 0, 0 },
    { "rtn:k2,v2,sink=4,recent=37", 3, 1, 128, 128, 300, 0, 0, 0 },
    { "rtn:k2,v2,sink=1,recent=32", 4, 1, 64, 64, 201, 20, 0, 1 },
    { "rtn:k4,v2,kg64,vg32,meta=e4m3,sink=1,recent=32,chunk=8", 13, 1, 128, 64, 230, 0, 100,
      0 },
    { "rtn:b4,transform=hadamard,kg64,vg32,rows=bf16", 3, 1, 64, 128, 300, 0, 0, 0 },
    { "rtn:k4,v4,meta=f16,sink=1,recent=32", 2, 1, 128, 128, 140, 0, 0, 0 },
    { "rtn:k2,v2,kg32,vg32,sink=1,recent=32", 4, 1, 256, 64, 190, 0, 0, 0 },
    { "rtn:k2,v4,kg64,meta=f16,sink=1,recent=32", 6, 1, 192, 64, 170, 0, 0, 0 },
    { "q4_0", 3, 1, 128, 128, 190, 0, 0, 0 },
    { "q4_0", 4, 1, 64, 64, 190, 0, 80, 0 },
    { "quest:sink=1,recent=32", 8, 1, 128, 128, 230, 0, 0, 0 },
    { "quarot:k2,v2,sink=1,recent=32", 4, 1, 128, 128, 230, 0, 0, 0 },
    { "rtn:k2,v2,kg64,vg32,sink=1,recent=32", 16, 1, 128, 128, 200, 20, 0, 1 },
    { "flagrot-kivi:sink=1,recent=32", 2, 1, 192, 192, 140, 0, 0, 0 },
    { "rtn:k2,v2,kg32,vg32,sink=1,recent=32", 3, 1, 192, 64, 140, 0, 0, 0 },
    { "kv-int4", 6, 1, 64, 128, 190, 0, 0, 0 },
    { "kivi:fit=span,round=nearest_up,meta=f16_point,kg64,sink=0,recent=64", 8, 1, 64, 64, 200, 0,
      0, 0 },
};
enum { NUM_SHAPES = sizeof shapes / sizeof shapes[0] };

// Rows that 16 bits do not hold.
typedef struct beyond {
    shape s;
    float keys, values;         // times the rows of test_rows
    int   channel;              // of every KV head
    float key, query;           // added to a key's, in place of a query's
    int   head;                 // the query head whose queries are
    float times;                //     times this
    float softmax_scale;
} beyond;

static const beyond beyond_16_bits[] = {
    // An offset at bit 6, in which the exponent of f16 ends at 8188; at bit 4, at 32752.
    { { "kivi:sink=1,recent=32", 4, 1, 64, 64, 140, 0, 0, 0 }, 1, 1, 6, 1e4f, 1e-4f, 0, 1, 0 },
    { { "kivi:meta=f16,kg64,vg32,sink=1,recent=64", 6, 1, 64, 64, 230, 0, 0, 0 }, 1, 1, 15, -1e4f,
      1e-4f, 0, 1, 0 },
    { { "kivi:k4,v4,sink=0,recent=0", 8, 1, 64, 64, 140, 0, 100, 0 }, 30, 1, 7, 4e4f, 1e-5f, 0,
      1e-2f, 0 },
    // One head's scores are beyond what a score is multiplied by.
    { { "kivi:sink=1,recent=32", 4, 2, 64, 64, 140, 0, 0, 0 }, 1, 1, 0, 0, 1, 3, 0x1p108f, 0 },
    { { "rtn:k2,v2,kg64,vg32,sink=1,recent=32", 8, 1, 64, 64, 140, 0, 0, 0 }, 0x1p-8f, 1, 0, 0, 1,
      5, 0x1p126f, 1 },
    // Scores of 1.6 2^127, which times log2 e are infinite: finite sums with an infinite top.
    { { "rtn:k2,v2,kg64,vg32,sink=1,recent=32", 8, 1, 64, 64, 140, 0, 0, 0 }, 0x1p-8f, 1, 0, 112,
      0.9f, 5, 0x1p121f, 1 },
    // One head's scores are all below -1e30, from which a first one is told.
    { { "kivi:sink=0,recent=0", 6, 1, 64, 64, 140, 0, 0, 0 }, 1, 1, 1, 20, -4, 2, 0x1p100f, 0 },
    // One head of one, and one of six, whose scores are near -1e31: a top is rounded by 2^79.
    { { "kivi:sink=0,recent=0", 1, 1, 64, 64, 140, 0, 0, 0 }, 1, 1, 1, 20, -4, 0, 0x1p97f, 0 },
    { { "rtn:k2,v2,kg64,vg32,sink=1,recent=32", 6, 1, 64, 64, 140, 0, 0, 0 }, 0x1p-8f, 1, 0, 112,
      -0.9f, 5, 0x1p97f, 1 },
    // Scales of keys, then of values, beyond 65504.
    { { "kivi:sink=1,recent=32,rows=bf16", 4, 1, 64, 64, 140, 0, 0, 0 }, 4e5f, 1, 5, 0, 1e-6f, 0, 0,
      0 },
    { { "kivi:sink=1,recent=32,rows=bf16", 8, 1, 64, 64, 140, 0, 0, 0 }, 1, 4e5f, 0, 0, 1, 0, 1,
      0 },
};
enum { NUM_BEYOND = sizeof beyond_16_bits / sizeof beyond_16_bits[0] };

// The greatest difference in shares of what 1e-3 of the reference's output allows, and of lse, or
// of what it is beyond 1.  Infinite where something is no number.
typedef struct difference {
    double o, lse;
} difference;

static difference compare(const float* o, const float* lse, const float* wanted_o,
                          const float* wanted_lse, int rows, int dim)
{
    difference d = { 0, 0 };
    for (int i = 0; i < rows; ++i) {
        double most = 0, off = 0;
        for (int c = 0; c < dim; ++c) {
            most = fmax(most, fabs((double)wanted_o[i * dim + c]));
            const double one = fabs((double)o[i * dim + c] - (double)wanted_o[i * dim + c]);
            off = one <= DBL_MAX ? fmax(off, one) : INFINITY;
        }
        const double one = fabs((double)lse[i] - (double)wanted_lse[i]);
        d.o = fmax(d.o, off / most / 1e-3);
        d.lse = one <= DBL_MAX ? fmax(d.lse, one / fmax(1, fabs((double)wanted_lse[i])) / 1e-3)
                               : INFINITY;
    }
    return d;
}

static test_cache open_shape(const test_target* target, const beyond* b, const float* slopes)
{
    const shape* s = &b->s;
    kvl_layer_desc layer = test_layer(s->spec, s->q_heads, s->kv_heads, s->dk, s->dv);
    layer.soft_cap = (float)s->soft_cap;
    layer.window_len = s->window_len;
    layer.alibi_slopes = s->slopes ? slopes : NULL;
    layer.softmax_scale = b->softmax_scale;
    return test_open(target, &layer);
}

enum { QUERIES = 3 };

static void fill_rows(const beyond* b, float* k, float* v, float* q)
{
    const shape* s = &b->s;
    test_rows(5, s->rows, s->kv_heads, s->dk, k);
    test_rows(6, s->rows, s->kv_heads, s->dv, v);
    test_queries(7, QUERIES, s->q_heads, s->dk, q);
    for (int i = 0; i < s->rows * s->kv_heads * s->dk; ++i) {
        k[i] *= b->keys;
        if (i % s->dk == b->channel) k[i] += b->key;
    }
    for (int i = 0; i < s->rows * s->kv_heads * s->dv; ++i) v[i] *= b->values;
    for (int i = 0; i < QUERIES * s->q_heads * s->dk; ++i) {
        if (i % s->dk == b->channel && b->query != 1) q[i] = b->query;
        if (i / s->dk % s->q_heads == b->head) q[i] *= b->times;
    }
}

// Attention of the device within 1e-3 of another target's.
static void check_beyond(const beyond* b, const test_target* cuda, const test_target* other)
{
    static const float slopes[16] = { 0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.0f, 0.1f, 0.2f,
                                      0.3f, 0.4f, 0.01f, 0.02f, 0.03f, 0.04f, 0.05f, 0.06f };
    const shape* s = &b->s;
    test_cache fast = open_shape(cuda, b, slopes), plain = open_shape(other, b, slopes);
    const kvl_seq at_fast = test_seq(&fast), at_plain = test_seq(&plain);
    const int outputs = QUERIES * s->q_heads;
    float* k = test_floats((int64_t)s->rows * s->kv_heads * s->dk);
    float* v = test_floats((int64_t)s->rows * s->kv_heads * s->dv);
    float* q = test_floats((int64_t)outputs * s->dk);
    float *o = test_floats((int64_t)2 * outputs * s->dv), *lse = test_floats(2 * outputs);
    fill_rows(b, k, v, q);
    test_append(&fast, at_fast, k, v, 0, s->rows);
    test_append(&plain, at_plain, k, v, 0, s->rows);
    for (int at = 0; at < 2; ++at) {
        const int64_t middle = s->rows / 2 + 1;
        const int64_t positions[QUERIES] = { middle, middle + 1, middle + 2 };
        test_attend(&fast, at_fast, q, QUERIES, at ? positions : NULL, o, lse);
        test_attend(&plain, at_plain, q, QUERIES, at ? positions : NULL, o + outputs * s->dv,
                    lse + outputs);
        const difference d = compare(o, lse, o + outputs * s->dv, lse + outputs, outputs, s->dv);
        cr_log_info("%s: o differs by %.4f of what is allowed, lse by %.4f", s->spec, d.o, d.lse);
        cr_assert(d.o > 0 || other->target != KVL_TARGET_CUDA, "%s: the same kernel twice",
                  s->spec);
        cr_assert(d.o <= 1 && d.lse <= 1, "%s, %d heads, %d channels: o %.3f, lse %.3f of 1e-3",
                  s->spec, s->q_heads, s->dk, d.o, d.lse);
    }
    test_close(&fast);
    test_close(&plain);
    free(k);
    free(v);
    free(q);
    free(o);
    free(lse);
}

static void check_shape(const shape* s, const test_target* cuda, const test_target* other)
{
    const beyond b = { *s, 1, 1, 0, 0, 1, 0, 1, 0 };
    check_beyond(&b, cuda, other);
}

static void check_shapes(int first, int step)
{
    const test_target cuda = test_cuda_target();
    const test_target exact = { "cuda exact", KVL_TARGET_CUDA, NULL };
    for (int i = first; i < NUM_SHAPES; i += step) check_shape(&shapes[i], &cuda, &exact);
}

// Broken by a token, a channel or a head that is taken for another one, a bit that is read at a
// wrong place, a mask, a scale, a zero, or a maximum that is not of all lanes.
Test(tensor, shapes_0) { check_shapes(0, 4); }
Test(tensor, shapes_1) { check_shapes(1, 4); }
Test(tensor, shapes_2) { check_shapes(2, 4); }
Test(tensor, shapes_3) { check_shapes(3, 4); }

static const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };

Test(tensor, what_16_bits_do_not_hold)
{
    // Broken by a result that is no number and is stored, not made again in floats.
    const test_target cuda = test_cuda_target();
    for (int i = 0; i < NUM_BEYOND; ++i) check_beyond(&beyond_16_bits[i], &cuda, &reference);
}

// Query heads as rows, in one tile and in two, and as columns; keys per channel and per token;
// words of 2 and of 4 bits.
static void check_arch(const char* arch)
{
    static const int some[] = { 0, 4, 10, 18, 22 };
    if (!sim_is_wanted()) cr_skip_test("a device has one architecture");
    const test_target cuda = test_cuda_target_of(arch);
    for (int i = 0; i < 5; ++i) check_shape(&shapes[some[i]], &cuda, &reference);
}

// Presets by head shape, and the bytes that their pages hold of a row: by hand, from bits a value.
// Rows: of each warp's one step, or of two, which then share the numbers of 64 keys.
static const struct { const char* spec; int heads, dim, bytes, rows; } traffic[] = {
    { "kivi:k2,v2,g32", 1, 128, 80, 128 },     { "kivi:k2,v2,g32", 4, 128, 80, 128 },
    { "kivi:k2,v2,g32", 8, 128, 80, 128 },     { "kivi:k2,v2,g32", 16, 128, 80, 128 },
    { "kivi:k2,v2,g32", 8, 64, 40, 128 },      { "kivi:k2,v2,g64,page=512", 8, 128, 72, 256 },
    { "kivi:k4,v4,g32", 8, 128, 144, 128 },    { "kivi:k2,v2,g32,meta=f16", 8, 128, 96, 128 },
    { "loom", 4, 128, 72, 128 },               { "flagrot-kivi:k2,v2,g32", 4, 128, 80, 128 },
    { "flagrot-kivi:k2,v2,g32", 8, 128, 80, 128 }, { "rtn:k2,v2,g32", 4, 128, 80, 128 },
    { "quest", 4, 128, 68, 128 },              { "quest", 8, 128, 68, 128 },
    { "wush", 4, 128, 72, 128 },               { "wush", 8, 128, 72, 128 },
};

// What it costs to see twice the rows, in the same CTA: counters less those of the rows alone.
static void count_traffic(const test_cache* c, kvl_seq seq, int rows, const float* q, float* o,
                          ptxsim_stats* more)
{
    void (*reset)(void);
    void (*totals)(ptxsim_stats*);
    ptxsim_stats few;
    *(void**)&reset = dlsym(RTLD_DEFAULT, "ptxsim_reset");
    *(void**)&totals = dlsym(RTLD_DEFAULT, "ptxsim_totals");
    for (int64_t end = rows; end <= 2 * rows; end += rows) {
        kvl_attend_desc attend = { .num_seqs = 1, .seqs = &seq, .row_ends = &end };
        attend.q.data = q;
        attend.o.data = o;
        reset();
        cr_assert_eq(kvl_attend(c->cache, &attend), KVL_OK, "%s", kvl_context_message(c->ctx));
        totals(end == rows ? &few : more);
    }
    more->global_load_sectors -= few.global_load_sectors;
    more->global_load_bytes -= few.global_load_bytes;
    more->shared_accesses -= few.shared_accesses;
    more->shared_conflicts -= few.shared_conflicts;
}

// Broken by a copy of which parts of sectors are not wanted, by bytes that are read twice, by
// lanes that wait for one bank.
Test(tensor, reads_what_pages_hold_and_no_more)
{
    if (!sim_is_wanted()) cr_skip_test("a device has no such counters");
    const test_target cuda = test_cuda_target();
    for (size_t i = 0; i < sizeof traffic / sizeof traffic[0]; ++i) {
        const int heads = traffic[i].heads, dim = traffic[i].dim, rows = traffic[i].rows;
        char spec[128];
        snprintf(spec, sizeof spec, "%s%ssink=0,recent=0", traffic[i].spec,
                 strchr(traffic[i].spec, ':') ? "," : ":");
        const kvl_layer_desc layer = test_layer(spec, heads, 1, dim, dim);
        test_cache c = test_open(&cuda, &layer);
        const kvl_seq seq = test_seq(&c);
        float *k = test_floats(2 * rows * dim), *v = test_floats(2 * rows * dim);
        float *q = test_floats(heads * dim), *o = test_floats(heads * dim);
        ptxsim_stats more;
        test_rows(1, 2 * rows, 1, dim, k);
        test_rows(2, 2 * rows, 1, dim, v);
        test_queries(3, 1, heads, dim, q);
        test_append(&c, seq, k, v, 0, 2 * rows);
        count_traffic(&c, seq, rows, q, o, &more);
        const double held = (double)rows * traffic[i].bytes;
        const double moved = 32.0 * (double)more.global_load_sectors;
        const double waits = (double)more.shared_conflicts / (double)more.shared_accesses;
        cr_log_info("%s, %d heads: %.3f of the bytes held are moved, %.3f asked for; %.4f waits",
                    spec, heads, moved / held, (double)more.global_load_bytes / held, waits);
        cr_assert(moved >= held && moved <= 1.05 * held, "%s, %d heads: %.0f bytes moved of %.0f",
                  spec, heads, moved, held);
        cr_assert(waits <= 0.05, "%s, %d heads: %.4f waits an access", spec, heads, waits);
        test_close(&c);
        free(k);
        free(v);
        free(q);
        free(o);
    }
}

Test(tensor, sm_75)
{
    // Broken by what takes the place of products of 16 channels, of copies that nobody waits for,
    // of conversions of pairs, and of a reduction, which no other architecture compiles.
    check_arch("sm_76");
}

Test(tensor, sm_80) { check_arch("sm_81"); }       // sums are another's than those of sm_90
