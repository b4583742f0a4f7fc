// test_tensor.c -- attention over pages by tensor cores against the kernels in floats.
//
// The device is the stand-in of tests/ptxsim, or with KVLOOM_TEST_GPU=1 the machine's own.  A
// context with `exact` has the kernels in floats: both must be within their bounds of float64
// over the rows that are read back.

#include "test_support.h"

#include "sim_library.h"

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
    { "kv-int4", 6, 1, 64, 128, 190, 0, 0, 0 },
    { "kivi:fit=span,round=nearest_up,meta=f16_point,kg64,sink=0,recent=64", 8, 1, 64, 64, 200, 0,
      0, 0 },
};
enum { NUM_SHAPES = sizeof shapes / sizeof shapes[0] };

// The greatest difference in shares of what 1e-3 of the reference's output allows, and of lse.
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
            off = fmax(off, fabs((double)o[i * dim + c] - (double)wanted_o[i * dim + c]));
        }
        d.o = fmax(d.o, off / most / 1e-3);
        d.lse = fmax(d.lse, fabs((double)lse[i] - (double)wanted_lse[i]) / 1e-3);
    }
    return d;
}

static test_cache open_shape(const test_target* target, const shape* s, const float* slopes)
{
    kvl_layer_desc layer = test_layer(s->spec, s->q_heads, s->kv_heads, s->dk, s->dv);
    layer.soft_cap = (float)s->soft_cap;
    layer.window_len = s->window_len;
    layer.alibi_slopes = s->slopes ? slopes : NULL;
    return test_open(target, &layer);
}

static void check_shape(const shape* s)
{
    enum { QUERIES = 3 };
    static const float slopes[16] = { 0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.0f, 0.1f, 0.2f,
                                      0.3f, 0.4f, 0.01f, 0.02f, 0.03f, 0.04f, 0.05f, 0.06f };
    const test_target cuda = test_cuda_target();
    const test_target exact = { "cuda exact", KVL_TARGET_CUDA, NULL };
    test_cache fast = open_shape(&cuda, s, slopes), plain = open_shape(&exact, s, slopes);
    const kvl_seq a = test_seq(&fast), b = test_seq(&plain);
    const int outputs = QUERIES * s->q_heads;
    float* k = test_floats((int64_t)s->rows * s->kv_heads * s->dk);
    float* v = test_floats((int64_t)s->rows * s->kv_heads * s->dv);
    float* q = test_floats((int64_t)outputs * s->dk);
    float *o = test_floats((int64_t)2 * outputs * s->dv), *lse = test_floats(2 * outputs);
    test_rows(5, s->rows, s->kv_heads, s->dk, k);
    test_rows(6, s->rows, s->kv_heads, s->dv, v);
    test_queries(7, QUERIES, s->q_heads, s->dk, q);
    test_append(&fast, a, k, v, 0, s->rows);
    test_append(&plain, b, k, v, 0, s->rows);
    for (int at = 0; at < 2; ++at) {
        const int64_t middle = s->rows / 2 + 1;
        const int64_t positions[QUERIES] = { middle, middle + 1, middle + 2 };
        test_attend(&fast, a, q, QUERIES, at ? positions : NULL, o, lse);
        test_attend(&plain, b, q, QUERIES, at ? positions : NULL, o + outputs * s->dv,
                    lse + outputs);
        const difference d = compare(o, lse, o + outputs * s->dv, lse + outputs, outputs, s->dv);
        cr_log_info("%s: o differs by %.4f of what is allowed, lse by %.4f", s->spec, d.o, d.lse);
        cr_assert(d.o > 0, "%s: the same kernel twice", s->spec);
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

static void check_shapes(int first, int step)
{
    for (int i = first; i < NUM_SHAPES; i += step) check_shape(&shapes[i]);
}

// Broken by a token, a channel or a head that is taken for another one, a bit that is read at a
// wrong place, a mask, a scale, a zero, or a maximum that is not of all lanes.
Test(tensor, shapes_0) { check_shapes(0, 4); }
Test(tensor, shapes_1) { check_shapes(1, 4); }
Test(tensor, shapes_2) { check_shapes(2, 4); }
Test(tensor, shapes_3) { check_shapes(3, 4); }
