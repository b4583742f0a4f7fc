// test_fold.c -- values' bases that the model's weights have, and matrices of the user's.
//
// What folding must equal is the same model and the same cache without it.

#include "calibrate_tables.h"
#include "matrix.h"
#include "model_statistics.h"
#include "tiny_model.h"

enum { DIM = 32, HEADS = 2, ROWS = 96 };

// A calibration of a tiny model for a spec, on its own tokens.
static kvl_calibration* calibrate(const model* m, kvl_context* ctx, const char* spec)
{
    char message[512];
    int32_t ids[NUM_TOKENS];
    model_gather* g = NULL;
    kvl_calibration* cal = NULL;
    const int num_layers = model_get_geometry(m)->num_layers;
    const model_gather_desc gd = { .ctx = ctx, .context_len = NUM_TOKENS };
    cr_assert_eq(model_gather_create(m, &gd, &g, message, sizeof message), 0, "%s", message);
    model_session* s = open_session(m, (model_session_desc){ .ctx = ctx, .user = g,
                                                             .on_rows = model_gather_see });
    fill_tokens(ids);
    cr_assert_eq(model_prefill(s, ids, NUM_TOKENS, NULL), MODEL_OK);
    cr_assert_eq(model_gather_end(g), MODEL_OK);
    model_session_free(s);
    const char* specs[8];
    kvl_layer_desc layers[8];
    for (int i = 0; i < 8; i++) { specs[i] = spec; }
    model_describe_layers(m, specs, layers);
    const kvl_cache_desc cache = { .num_layers = num_layers, .layers = layers };
    kvl_derive_desc derive = { .stats = model_gather_statistics(g), .cache = &cache };
    derive.derivations = calibrate_derivations(&derive.num_derivations);
    char identity[MODEL_IDENTITY_BYTES];
    model_identity(m, identity);
    cr_assert_eq(kvl_calibration_create(derive.stats, NULL, &cal), KVL_OK);
    cr_assert_eq(kvl_calibration_set_text(cal, "model", identity), KVL_OK);
    cr_assert_eq(kvl_calibration_derive(cal, &derive), KVL_OK, "%s", kvl_context_message(ctx));
    model_gather_free(g);
    return cal;
}

// Logits of all rows of a prompt. steps: one by one, through the cache.
static float* run_model(const model* m, kvl_context* ctx, const char* spec,
                        const kvl_calibration* cal, bool steps)
{
    int32_t ids[NUM_TOKENS];
    float* logits = calloc(NUM_TOKENS * VOCAB, sizeof *logits);
    model_session* s = open_session(m, (model_session_desc){ .ctx = ctx, .spec = spec,
                                                             .calibration = cal });
    fill_tokens(ids);
    const model_run run = { .ids = ids, .count = NUM_TOKENS, .logits = logits,
                            .logits_of_all = true, .products = MODEL_PRODUCTS_FLOAT,
                            .rows_through_cache = steps };
    cr_assert_eq(model_run_tokens(s, &run), MODEL_OK, "%s", model_session_message(s));
    model_session_free(s);
    return logits;
}

static double greatest_difference(const float* a, const float* b)
{
    double most = 0.0;
    for (int i = 0; i < NUM_TOKENS * VOCAB; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    }
    return most;
}

// Breaks when F or Q is transposed, is of another head, misses a bias, or is left out on one side.
// A prompt attends to its rows as floats: there folding is exact. Row by row, the cache rounds
// other numbers.
Test(fold, the_model_is_the_same)
{
    static const char* const words[] = { "balance", "hadamard", "whiten" };
    for (int number = 0; number < NUM_MODELS; number++) {
        for (int i = 0; i < (number < 2 ? 3 : 1); i++) {
            char message[512], spec[96], folded[128];
            snprintf(spec, sizeof spec, "rtn:b8,g16,v.transform=%s,sink=0,recent=0", words[i]);
            snprintf(folded, sizeof folded, "%s,v.place=folded", spec);
            kvl_context* ctx = open_context();
            model* m = open_model(&models[number], NULL);
            kvl_calibration* cal = calibrate(m, ctx, spec);
            float* plain = run_model(m, ctx, spec, cal, false);
            float* steps = run_model(m, ctx, spec, cal, true);
            const model_fold_desc fold = { .ctx = ctx, .spec = folded, .calibration = cal };
            cr_assert_eq(model_fold(m, &fold, message, sizeof message), 0, "%s", message);
            float* same = run_model(m, ctx, folded, cal, false);
            float* near = run_model(m, ctx, folded, cal, true);
            const double size = greatest_difference(plain, steps);
            cr_expect(greatest_difference(plain, same) < 1e-4, "%s, %s: logits differ by %g",
                      models[number].arch, spec, greatest_difference(plain, same));
            // What 8 bits change is of a size; folding may draw other roundings, not more.
            cr_expect(greatest_difference(steps, near) < 3.0 * size + 1e-3,
                      "%s, %s: %g where the cache itself costs %g", models[number].arch, spec,
                      greatest_difference(steps, near), size);
            free(plain);
            free(steps);
            free(same);
            free(near);
            kvl_calibration_free(cal);
            model_close(m);
            kvl_context_destroy(ctx);
        }
    }
}

static void expect_refused(const model* m, kvl_context* ctx, const char* spec,
                           const kvl_calibration* cal, const char* words)
{
    char message[512] = "";
    model_session* s = NULL;
    const model_session_desc desc = { .ctx = ctx, .spec = spec, .calibration = cal };
    cr_expect_neq(model_session_create(m, &desc, &s, message, sizeof message), 0, "%s", spec);
    cr_expect(strstr(message, words) != NULL, "%s: '%s', not '%s'", spec, message, words);
    model_session_free(s);
}

// Breaks when a cache and weights of different bases go together in silence.
Test(fold, cache_and_weights_must_agree)
{
    static const char* const balanced = "rtn:b4,v.transform=balance,v.place=folded";
    static const char* const rotated = "rtn:b4,v.transform=hadamard,v.place=folded";
    char message[512];
    kvl_context* ctx = open_context();
    model* m = open_model(&models[0], NULL);
    kvl_calibration* cal = calibrate(m, ctx, "rtn:b4,v.transform=balance");
    expect_refused(m, ctx, rotated, NULL, "the weights have no basis folded in");
    expect_refused(m, ctx, balanced, NULL, "needs a calibration with layer.0.v.balance_forward");
    expect_refused(m, ctx, "rtn:v.place=folded", NULL, "needs a v.transform");
    expect_refused(m, ctx, "rtn:k.transform=hadamard,k.place=folded", NULL, "for values alone");
    expect_refused(m, ctx, "rtn:v.transform=hadamard,v.place=folded,v.shift=mean", NULL,
                   "needs v.shift = none, not mean");
    const model_fold_desc fold = { .ctx = ctx, .spec = balanced, .calibration = cal };
    const model_fold_desc without = { .ctx = ctx, .spec = balanced };
    cr_expect_neq(model_fold(m, &without, message, sizeof message), 0);
    cr_expect(strstr(message, "needs a calibration") != NULL, "%s", message);
    cr_assert_eq(model_fold(m, &fold, message, sizeof message), 0, "%s", message);
    expect_refused(m, ctx, "f16", NULL, "v.place must be folded");
    expect_refused(m, ctx, rotated, NULL, "another basis folded in");
    model_session_free(open_session(m, (model_session_desc){ .ctx = ctx, .spec = balanced,
                                                             .calibration = cal }));
    cr_expect_neq(model_fold(m, &fold, message, sizeof message), 0);
    cr_expect(strstr(message, "folded in already") != NULL, "%s", message);
    kvl_calibration_free(cal);
    model_close(m);
    kvl_context_destroy(ctx);
}

// ONE LAYER

static kvl_layer_desc layer_of(const char* spec)
{
    return (kvl_layer_desc){ .num_q_heads = HEADS, .num_kv_heads = HEADS, .head_dim = DIM,
                             .spec = spec };
}

static kvl_cache* open_cache(kvl_context* ctx, const kvl_layer_desc* layer,
                             const kvl_calibration* cal, kvl_seq* seq)
{
    kvl_cache* cache = NULL;
    const kvl_cache_desc desc = { .num_layers = 1, .layers = layer, .calibration = cal };
    cr_assert_eq(kvl_cache_create(ctx, &desc, &cache), KVL_OK, "%s", kvl_context_message(ctx));
    cr_assert_eq(kvl_seq_create(cache, seq), KVL_OK);
    return cache;
}

static void fill_rows(float* x)
{
    uint64_t state = 9;
    for (int i = 0; i < ROWS * HEADS * DIM; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((int)(state >> 48) - 32768) / 8192.0f / (float)(1 + i % DIM);
    }
}

// Breaks when a folded cache still transforms something: it is to the bit one without a transform,
// on every target, and keeps no table of it.
Test(fold, nothing_is_left_at_run_time)
{
    static const kvl_target targets[] = { KVL_TARGET_REFERENCE, KVL_TARGET_HOST };
    static float rows[ROWS * HEADS * DIM], out[2][ROWS * HEADS * DIM];
    fill_rows(rows);
    for (int t = 0; t < 2; t++) {
        kvl_stats stats[2];
        for (int i = 0; i < 2; i++) {
            const kvl_layer_desc layer =
                layer_of(i ? "rtn:b3,g16,v.transform=hadamard,v.place=folded,sink=4,recent=8"
                           : "rtn:b3,g16,sink=4,recent=8");
            const kvl_context_desc desc = { .target = targets[t], .num_threads = 1 };
            kvl_context* ctx = NULL;
            kvl_seq seq = 0;
            cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
            kvl_cache* cache = open_cache(ctx, &layer, NULL, &seq);
            const int32_t count = ROWS;
            const kvl_append_desc append = { .num_seqs = 1, .seqs = &seq, .num_rows = &count,
                                             .k.data = rows, .v.data = rows };
            kvl_attend_desc attend = { .num_seqs = 1, .seqs = &seq, .q_lens = &count,
                                       .q.data = rows, .o.data = out[i] };
            cr_assert_eq(kvl_append(cache, &append), KVL_OK);
            cr_assert_eq(kvl_attend(cache, &attend), KVL_OK);
            cr_assert_eq(kvl_cache_stats(cache, &stats[i]), KVL_OK);
            kvl_cache_free(cache);
            kvl_context_destroy(ctx);
        }
        cr_expect_eq(memcmp(out[0], out[1], sizeof out[0]), 0, "target %d", (int)targets[t]);
        cr_expect(stats[0].bytes == stats[1].bytes);
    }
}

// Breaks when rows in one basis are copied where another one is meant.
Test(fold, rows_stay_in_their_basis)
{
    static const char* const specs[] = { "rtn:b4", "rtn:b4,v.transform=hadamard,v.place=folded",
                                         "rtn:b4,v.transform=hadamard16,v.place=folded" };
    kvl_context* ctx = open_context();
    kvl_cache* caches[3];
    kvl_seq seqs[3];
    for (int i = 0; i < 3; i++) {
        const kvl_layer_desc layer = layer_of(specs[i]);
        caches[i] = open_cache(ctx, &layer, NULL, &seqs[i]);
    }
    for (int i = 0; i < 9; i++) {
        const kvl_status status = kvl_copy_rows(caches[i / 3], seqs[i / 3], caches[i % 3],
                                                seqs[i % 3], 0, 0);
        cr_expect_eq(status, i / 3 == i % 3 ? KVL_OK : KVL_UNSUPPORTED, "%s from %s: %d, %s",
                     specs[i / 3], specs[i % 3], (int)status, kvl_context_message(ctx));
    }
    for (int i = 0; i < 3; i++) { kvl_cache_free(caches[i]); }
    kvl_context_destroy(ctx);
}

// A MATRIX OF THE USER'S

// F and Q of transform=file, spoilt in some way.
typedef struct given {
    float forward[HEADS * DIM * DIM], query[HEADS * DIM * DIM];
} given;

static kvl_status take_given(const kvl_derive_args* a, float* out)
{
    const given* g = a->user;
    memcpy(out, strcmp(a->table, "file_query") == 0 ? g->query : g->forward, sizeof g->query);
    return KVL_OK;
}

// A rotation of neighbours by an angle of each pair, and channel sizes.
static void make_given(given* g)
{
    memset(g, 0, sizeof *g);
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < DIM; i += 2) {
            const float c = cosf((float)(h + i)), s = sinf((float)(h + i)), size = 1.0f + (float)i;
            float* f = g->forward + (h * DIM + i) * DIM + i;
            float* q = g->query + (h * DIM + i) * DIM + i;
            f[0] = q[0] = f[DIM + 1] = q[DIM + 1] = c;
            f[1] = q[1] = -s;
            f[DIM] = q[DIM] = s;
            for (int j = 0; j < 2; j++) {
                f[j * DIM] *= size;
                q[j * DIM] /= size;
            }
        }
    }
}

static kvl_status open_given(kvl_context* ctx, const given* g, const char* spec,
                             kvl_calibration** cal, kvl_cache** out)
{
    static float rows[ROWS * HEADS * DIM];
    const kvl_layer_desc layer = layer_of(spec);
    const kvl_derivation own[] = {
        { "transform", "file", "file_forward", take_given, (void*)(uintptr_t)g },
        { "transform", "file", "file_query", take_given, (void*)(uintptr_t)g },
    };
    const kvl_statistics_desc sd = { .num_layers = 1, .layers = &layer };
    kvl_cache_desc cache = { .num_layers = 1, .layers = &layer };
    kvl_statistics* stats = NULL;
    fill_rows(rows);
    const kvl_statistics_rows sr = { .num_keys = ROWS, .num_rows = ROWS, .k.data = rows,
                                     .v.data = rows, .q.data = rows };
    cr_assert_eq(kvl_statistics_create(ctx, &sd, &stats), KVL_OK);
    cr_assert_eq(kvl_statistics_add(stats, &sr), KVL_OK);
    cr_assert_eq(kvl_calibration_create(stats, NULL, cal), KVL_OK);
    const kvl_derive_desc derive = { .stats = stats, .cache = &cache, .derivations = own,
                                     .num_derivations = 2 };
    cr_assert_eq(kvl_calibration_derive(*cal, &derive), KVL_OK);
    kvl_statistics_free(stats);
    cache.calibration = *cal;
    *out = NULL;
    return kvl_cache_create(ctx, &cache, out);
}

// Breaks when a singular matrix, a wrong inverse or a number that is none makes a cache that gives
// numbers without meaning.
Test(fold, matrices_of_the_user_are_checked)
{
    static const struct { int head, row, column; float forward, query; const char* words; } bad[] =
    {
        { 0, 0, 0, 1.0f, 1.0f, NULL },                                  // as it is
        { 1, 6, 7, 3.0f, 0.0f, "head 1: row 6" },                       // no inverse of the other
        { 0, 4, 4, (float)NAN, 0.0f, "must be finite" },
        { 1, 2, 2, 0.0f, (float)INFINITY, "must be finite" },
    };
    for (int i = 0; i < 4; i++) {
        given g;
        kvl_calibration* cal = NULL;
        kvl_cache* cache = NULL;
        kvl_context* ctx = open_context();
        make_given(&g);
        if (bad[i].words != NULL) {
            const int at = (bad[i].head * DIM + bad[i].row) * DIM + bad[i].column;
            g.forward[at] = bad[i].forward;
            g.query[at] = bad[i].query;
        }
        const kvl_status status = open_given(ctx, &g, "rtn:b4,transform=file", &cal, &cache);
        cr_expect_eq(status, bad[i].words == NULL ? KVL_OK : KVL_BAD_ARGUMENT, "case %d: %d, %s", i,
                     (int)status, kvl_context_message(ctx));
        cr_expect(bad[i].words == NULL || strstr(kvl_context_message(ctx), bad[i].words) != NULL,
                  "case %d: '%s', not '%s'", i, kvl_context_message(ctx), bad[i].words);
        kvl_cache_free(cache);
        kvl_calibration_free(cal);
        kvl_context_destroy(ctx);
    }
}

// Breaks when a matrix of rank DIM - 1 passes with the pseudo-inverse that a program may give for
// it.
Test(fold, a_singular_matrix_is_refused)
{
    given g;
    kvl_calibration* cal = NULL;
    kvl_cache* cache = NULL;
    kvl_context* ctx = open_context();
    make_given(&g);
    for (int j = 0; j < DIM; j++) { g.forward[5 * DIM + j] = g.query[5 * DIM + j] = 0.0f; }
    cr_expect_eq(open_given(ctx, &g, "rtn:b4,k.transform=file", &cal, &cache), KVL_BAD_ARGUMENT);
    cr_expect(strstr(kvl_context_message(ctx), "singular") != NULL, "%s", kvl_context_message(ctx));
    kvl_calibration_free(cal);
    kvl_context_destroy(ctx);
}

// Breaks when a matrix of another shape is read as if it were of this one: a file as another
// program writes it, of 32 x 16 numbers a head.
Test(fold, a_matrix_of_another_shape_is_refused)
{
    static const double shapes[7] = { HEADS, HEADS, DIM, DIM, 0.17677669529663687, 0, 0 };
    static const float numbers[HEADS * DIM * 16] = { 1.0f };
    char path[] = KVLOOM_TEST_SCRATCH "/fold-XXXXXX", head[512];
    const int bytes = snprintf(head, sizeof head,
                               "{\"__metadata__\":{\"format\":\"kvloom calibration 1\"},"
                               "\"layers\":{\"dtype\":\"F64\",\"shape\":[1,7],"
                               "\"data_offsets\":[0,56]},"
                               "\"layer.0.k.file_forward\":{\"dtype\":\"F32\","
                               "\"shape\":[2,32,16],\"data_offsets\":[56,%d]}}",
                               56 + (int)sizeof numbers);
    const uint64_t length = (uint64_t)(bytes + 7) / 8 * 8;
    memset(head + bytes, ' ', 8);
    const int handle = mkstemp(path);
    FILE* file = handle >= 0 ? fdopen(handle, "wb") : NULL;
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(&length, 8, 1, file), 1);
    cr_assert_eq(fwrite(head, 1, (size_t)length, file), length);
    cr_assert_eq(fwrite(shapes, sizeof shapes, 1, file), 1);
    cr_assert_eq(fwrite(numbers, sizeof numbers, 1, file), 1);
    cr_assert_eq(fclose(file), 0);
    kvl_context* ctx = open_context();
    kvl_calibration* cal = NULL;
    kvl_cache* cache = NULL;
    cr_assert_eq(kvl_calibration_load(ctx, path, &cal), KVL_OK, "%s", kvl_context_message(ctx));
    const kvl_layer_desc layer = layer_of("rtn:b4,k.transform=file");
    const kvl_cache_desc desc = { .num_layers = 1, .layers = &layer, .calibration = cal };
    cr_expect_eq(kvl_cache_create(ctx, &desc, &cache), KVL_BAD_ARGUMENT);
    cr_expect(strstr(kvl_context_message(ctx), "layer.0.k.file_forward has the shape [2, 32, 16]: "
                     "the cache needs [2, 32, 32]") != NULL, "%s", kvl_context_message(ctx));
    kvl_calibration_free(cal);
    kvl_context_destroy(ctx);
    unlink(path);
}

// Breaks when kvl_value_basis gives another matrix than the cache computes with: restored rows of a
// cache that is not folded are F of it, coded, and back.
Test(fold, the_basis_that_an_engine_gets)
{
    given g;
    static float forward[HEADS * DIM * DIM], query[HEADS * DIM * DIM];
    kvl_calibration* cal = NULL;
    kvl_cache* cache = NULL;
    kvl_context* ctx = open_context();
    make_given(&g);
    cr_assert_eq(open_given(ctx, &g, "rtn:b4,v.transform=file", &cal, &cache), KVL_OK);
    kvl_layer_desc layer = layer_of("rtn:b4,v.transform=file,v.place=folded");
    cr_assert_eq(kvl_value_basis(ctx, cal, 0, &layer, forward, query), KVL_OK);
    cr_expect_eq(memcmp(forward, g.forward, sizeof forward), 0);
    cr_expect_eq(memcmp(query, g.query, sizeof query), 0);
    // A Hadamard of 2 x 2 pieces, by hand; nothing is the identity.
    layer.spec = "rtn:b4,v.transform=hadamard2";
    cr_assert_eq(kvl_value_basis(ctx, NULL, 0, &layer, forward, query), KVL_OK);
    for (int i = 0; i < HEADS * DIM * DIM; i++) {
        const int row = i / DIM % DIM, column = i % DIM;
        const float want = row / 2 != column / 2 ? 0.0f
                           : row % 2 == 1 && column % 2 == 1 ? -0.70710678f : 0.70710678f;
        cr_assert(fabsf(forward[i] - want) < 1e-6f && forward[i] == query[i]);
    }
    layer.spec = "rtn:b4";
    cr_assert_eq(kvl_value_basis(ctx, NULL, 0, &layer, forward, NULL), KVL_OK);
    for (int i = 0; i < HEADS * DIM * DIM; i++) {
        cr_assert(forward[i] == (i / DIM % DIM == i % DIM ? 1.0f : 0.0f));
    }
    layer.spec = "rtn:b4,v.transform=file";
    cr_expect_eq(kvl_value_basis(ctx, NULL, 0, &layer, forward, NULL), KVL_BAD_ARGUMENT);
    layer.spec = "rtn:b4";
    layer.values_in_keys = 1;
    cr_expect_eq(kvl_value_basis(ctx, NULL, 0, &layer, forward, NULL), KVL_UNSUPPORTED);
    cr_expect_eq(kvl_value_basis(ctx, NULL, -1, &layer, forward, NULL), KVL_BAD_ARGUMENT);
    kvl_cache_free(cache);
    kvl_calibration_free(cal);
    kvl_context_destroy(ctx);
}
