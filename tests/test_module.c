// test_module.c -- kvloom-eval --module: errors of attention modules, one layer's cache at a time.
//
// Expected errors are computed here in double, from rows that a cache of the same spec gives back,
// and from the output matrix as the model's file has it.

#include "eval_module.h"
#include "eval_options.h"
#include "eval_run.h"
#include "matrix.h"
#include "tiny_model.h"

enum { WINDOW = 64, SKIP = 20, MOST_LAYERS = 7, MOST_HEADS = 4, MOST_DIM = 48 };

// The rows of a pass.
typedef struct rows {
    float q[MOST_LAYERS][WINDOW * MOST_HEADS * MOST_DIM];
    float k[MOST_LAYERS][WINDOW * MOST_HEADS * MOST_DIM];
    float v[MOST_LAYERS][WINDOW * MOST_HEADS * MOST_DIM];
    const model_geometry* geometry;
} rows;

static void keep_rows(void* user, const model_rows* seen)
{
    rows* all = user;
    const model_layer_geometry* g = &all->geometry->layers[seen->layer];
    const size_t q = (size_t)(g->num_q_heads * g->head_dim);
    const size_t kv = (size_t)(g->num_kv_heads * g->head_dim);
    const size_t at = (size_t)seen->first_position, num = (size_t)seen->num_rows;
    memcpy(all->q[seen->layer] + at * q, seen->q, num * q * sizeof(float));
    memcpy(all->k[seen->layer] + at * kv, seen->k, num * kv * sizeof(float));
    memcpy(all->v[seen->layer] + at * kv, seen->v, num * kv * sizeof(float));
}

// y [HIDDEN] of one position.
static void module_output(const model* m, int layer, const rows* all, const float* k,
                          const float* v, int position, double* y)
{
    const model_layer_geometry* g = &all->geometry->layers[layer];
    const int dim = g->head_dim, width = g->num_q_heads * dim;
    double o[MOST_HEADS * MOST_DIM];
    for (int h = 0; h < g->num_q_heads; h++) {
        const int kv = h / (g->num_q_heads / g->num_kv_heads);
        const float* q = all->q[layer] + (position * g->num_q_heads + h) * dim;
        const int first = g->window_len > 0 && position >= g->window_len
                              ? position - g->window_len + 1 : 0;
        double sum = 0.0;
        for (int i = 0; i < dim; i++) { o[h * dim + i] = 0.0; }
        for (int t = first; t <= position; t++) {
            const float* key = k + (t * g->num_kv_heads + kv) * dim;
            const float* value = v + (t * g->num_kv_heads + kv) * dim;
            double score = 0.0;
            for (int i = 0; i < dim; i++) { score += (double)q[i] * (double)key[i]; }
            const double weight = exp(score * (double)g->softmax_scale);
            sum += weight;
            for (int i = 0; i < dim; i++) { o[h * dim + i] += weight * (double)value[i]; }
        }
        for (int i = 0; i < dim; i++) { o[h * dim + i] /= sum; }
    }
    char name[64];
    snprintf(name, sizeof name, "blk.%d.attn_output.weight", layer);
    const gguf_tensor* t = gguf_find(model_file(m), name);
    cr_assert_not_null(t);
    for (int row = 0; row < HIDDEN; row++) {
        float weights[MOST_HEADS * MOST_DIM];
        const char* at = (const char*)t->data + row * matrix_row_bytes(t->type, width);
        matrix_dequantize_row(t->type, at, width, weights);
        y[row] = 0.0;
        for (int i = 0; i < width; i++) { y[row] += (double)weights[i] * o[i]; }
    }
}

// Rows of a layer as a cache gives them back.
static void through_cache(kvl_context* ctx, const model* m, int layer, const char* spec,
                          const rows* all, float* k, float* v)
{
    const char* specs[MOST_LAYERS] = { NULL };
    kvl_layer_desc layers[MOST_LAYERS];
    kvl_cache* cache = NULL;
    kvl_seq seq = 0;
    const int32_t count = WINDOW;
    specs[layer] = spec;
    model_describe_layers(m, specs, layers);
    const kvl_cache_desc desc = { .num_layers = 1, .layers = &layers[layer] };
    cr_assert_eq(kvl_cache_create(ctx, &desc, &cache), KVL_OK, "%s", kvl_context_message(ctx));
    cr_assert_eq(kvl_seq_create(cache, &seq), KVL_OK);
    const kvl_append_desc append = { .num_seqs = 1, .seqs = &seq, .num_rows = &count,
                                     .k.data = all->k[layer], .v.data = all->v[layer] };
    const kvl_rows to_k = { .data = k }, to_v = { .data = v };
    cr_assert_eq(kvl_append(cache, &append), KVL_OK);
    cr_assert_eq(kvl_restore(cache, 0, seq, 0, WINDOW, &to_k, &to_v), KVL_OK);
    kvl_cache_free(cache);
}

static double expected_error(const model* m, int layer, const rows* all, const float* k,
                             const float* v)
{
    double error = 0.0, square = 0.0, exact[HIDDEN], held[HIDDEN];
    for (int position = SKIP; position < WINDOW; position++) {
        module_output(m, layer, all, all->k[layer], all->v[layer], position, exact);
        module_output(m, layer, all, k, v, position, held);
        for (int i = 0; i < HIDDEN; i++) {
            error += (held[i] - exact[i]) * (held[i] - exact[i]);
            square += exact[i] * exact[i];
        }
    }
    return sqrt(error / square);
}

static void check_model(int number)
{
    // Rows are encoded one by one as they come, so that a row meets itself in codes.
    static const char* const spec = "rtn:k2,v3,g16,sink=0,recent=0";
    static rows all;
    static float k[WINDOW * MOST_HEADS * MOST_DIM], v[WINDOW * MOST_HEADS * MOST_DIM];
    char name[64];
    int32_t ids[WINDOW];
    eval_engine engine;
    eval_cache cache = { .num_layers = 0 };
    snprintf(name, sizeof name, "%s", spec);
    cache.cache = name;
    kvl_context* ctx = open_context();
    model* m = open_model(&models[number], NULL);
    for (int i = 0; i < WINDOW; i++) { ids[i] = 3 + (i * 37 + i * i) % 250; }
    const eval_engine_desc desc = { .m = m, .ctx = ctx, .context = WINDOW,
                                    .products = MODEL_PRODUCTS_FLOAT };
    cr_assert_eq(eval_engine_create(&engine, &desc), MODEL_OK, "%s", engine.message);
    all.geometry = model_get_geometry(m);
    model_session* base = NULL;
    cr_assert_eq(eval_engine_open(&engine, "f16", 0, &base), MODEL_OK);
    engine.on_rows = keep_rows;
    engine.on_rows_user = &all;
    const model_run run = { .ids = ids, .count = WINDOW, .products = MODEL_PRODUCTS_FLOAT };
    cr_assert_eq(model_run_tokens(base, &run), MODEL_OK);
    model_session_free(base);
    const eval_module_window window = { ids, WINDOW, SKIP };
    cr_assert_eq(eval_module_measure(&engine, &window, &cache), MODEL_OK, "%s", engine.message);
    eval_module_finish(&cache);
    cr_assert_eq(cache.module.num_layers, all.geometry->num_layers);
    for (int layer = 0; layer < cache.module.num_layers; layer++) {
        through_cache(ctx, m, layer, spec, &all, k, v);
        const double want[3] = { expected_error(m, layer, &all, k, all.v[layer]),
                                 expected_error(m, layer, &all, all.k[layer], v),
                                 expected_error(m, layer, &all, k, v) };
        for (int mode = 0; mode < 3; mode++) {
            const double has = cache.module.error[mode][layer];
            // The side that is not quantized is f16: 2^-11 of a row.
            cr_expect(fabs(has - want[mode]) < 2e-4 + 1e-3 * want[mode],
                      "%s, layer %d, mode %d: %.6f, not %.6f", models[number].arch, layer, mode,
                      has, want[mode]);
        }
    }
    for (int mode = 0; mode < 3; mode++) { free(cache.module.error[mode]); }
    free(cache.module.square);
    eval_engine_free(&engine);
    model_close(m);
    kvl_context_destroy(ctx);
}

// Breaks when a layer gets rows that other quantized layers have changed, when the sides are
// mistaken, when heads are joined in another order, or when skipped positions count.
Test(module, errors_equal_a_calculation_from_restored_rows)
{
    check_model(0);
    check_model(3);  // sliding windows, norms behind the module
}

// Breaks when a side is measured with other windows or other words than the whole has.
Test(module, sides_of_a_spec)
{
    static const struct { const char *whole, *side[2]; } cases[] = {
        { "quarot:k2,kg64,v3,vg64,k.fit=clip96,sink=64,recent=256,chunk=8,page=64,rows=f16",
          { "quarot/f16:k2,kg64,k.fit=clip96,sink=64,recent=256,chunk=8,page=64,rows=f16",
            "f16/quarot:v3,vg64,sink=64,recent=256,chunk=8,page=64,rows=f16" } },
        { "kivi/q8_0:k2,kg32,v8,vg32,sink=0,recent=32,chunk=32,page=64,rows=bf16",
          { "kivi/f16:k2,kg32,sink=0,recent=32,chunk=32,page=64,rows=bf16",
            "f16/q8_0:v8,vg32,sink=0,recent=32,chunk=32,page=64,rows=bf16" } },
    };
    char side[256];
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 2; j++) {
            cr_assert(eval_module_side(cases[i].whole, j, side, sizeof side));
            cr_expect_str_eq(side, cases[i].side[j]);
        }
    }
    cr_expect(!eval_module_side(cases[0].whole, 0, side, 40));
}

// Breaks when a cache that loses nothing but f16's rounding, 2^-12 of a row, has an error.
Test(module, full_precision_has_no_error)
{
    char text[] = KVLOOM_TEST_SCRATCH "/module-XXXXXX", message[1024], spec[] = "f16";
    char* caches[] = { spec };
    const int handle = mkstemp(text);
    FILE* file = handle >= 0 ? fdopen(handle, "wb") : NULL;
    cr_assert_not_null(file);
    for (int i = 0; i < 300; i++) { fputc('a' + i * i % 26, file); }
    fclose(file);
    char* path = write_model(&models[0], NULL);
    static char command[] = "kvloom-eval";
    eval_options options = { .model = path, .text = text, .caches = caches, .num_caches = 1,
                             .context = 100, .windows = 2, .skip = 10, .num_threads = 2,
                             .target = KVL_TARGET_REFERENCE, .module = true,
                             .products = MODEL_PRODUCTS_FLOAT, .command = command };
    eval_results results;
    cr_assert_eq(eval_run(&options, true, &results, message, sizeof message), 0, "%s", message);
    cr_expect_eq(results.caches[0].module.num_layers, 2);
    for (int mode = 0; mode < 3; mode++) {
        const double error = results.caches[0].module.mean[mode];
        cr_expect(error > 0.0 && error < 5e-4, "mode %d: %g", mode, error);
    }
    eval_results_free(&results);
    unlink(text);
    unlink(path);
    free(path);
}
