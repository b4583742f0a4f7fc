// test_calibrate.c -- kvloom-calibrate: what it gathers, resuming, merging, and what it refuses.
//
// Statistics of the tiny models are compared with tests/oracles/statistics.py, on the rows of its
// own forward pass in float64.

#include "cache_specs.h"
#include "calibrate_bits.h"
#include "calibrate_run.h"
#include "model_statistics.h"
#include "tiny_model.h"

static const char* const scratch = KVLOOM_TEST_SCRATCH;

// STATISTICS OF A MODEL

static void digest(const double* x, int64_t num, double out[4])
{
    memset(out, 0, 4 * sizeof *out);
    for (int64_t i = 0; i < num; i++) {
        out[0] += x[i];
        out[1] += x[i] * cos(0.37 * (double)i);
        out[2] += x[i] * (double)(i * 7919 % 97 - 48) / 48.0;
        out[3] += fabs(x[i]);
    }
}

// Rows of a session's batches into a gatherer.
static model_gather* gather_tokens(const model* m, kvl_context* ctx, int batch_len)
{
    char message[512];
    int32_t ids[NUM_TOKENS];
    model_gather* g = NULL;
    const model_gather_desc gd = { .ctx = ctx, .context_len = NUM_TOKENS };
    cr_assert_eq(model_gather_create(m, &gd, &g, message, sizeof message), 0, "%s", message);
    const model_session_desc sd = { .ctx = ctx, .batch_len = batch_len, .user = g,
                                    .on_rows = model_gather_see };
    model_session* s = open_session(m, sd);
    fill_tokens(ids);
    cr_assert_eq(model_prefill(s, ids, NUM_TOKENS, NULL), MODEL_OK);
    cr_assert_eq(model_gather_end(g), MODEL_OK, "%s", model_gather_message(g));
    model_session_free(s);
    return g;
}

static void check_model(int number, int batch_len)
{
    FILE* file = fopen(KVLOOM_TEST_ROOT "/tests/fixtures/statistics_models.txt", "r");
    model* m = open_model(&models[number], NULL);
    kvl_context* ctx = open_context();
    model_gather* g = gather_tokens(m, ctx, batch_len);
    char arch[16], name[64];
    double want[4], has[4];
    int layer = 0, h = 0, count = 0;
    cr_assert_not_null(file);
    while (fscanf(file, "%15s %d %d %63s %lf %lf %lf %lf", arch, &layer, &h, name, &want[0],
                  &want[1], &want[2], &want[3]) == 8) {
        int64_t num = 0;
        if (strcmp(arch, models[number].arch) != 0) { continue; }
        const double* x = kvl_statistics_get(model_gather_statistics(g), layer, h, name, &num);
        cr_assert_not_null(x, "%s", name);
        digest(x, num, has);
        // The forward pass is in floats, and past batches come from 16-bit rows.
        const double bound = (batch_len < NUM_TOKENS ? 2e-3 : 2e-5) * want[3] + 1e-9;
        for (int i = 0; i < 4; i++) {
            cr_expect(fabs(has[i] - want[i]) <= bound, "%s, layer %d, head %d, %s: %.9g, not %.9g",
                      arch, layer, h, name, has[i], want[i]);
        }
        count++;
    }
    cr_expect_eq(count, 13 * models[number].layers * models[number].kv_heads);
    fclose(file);
    model_gather_free(g);
    kvl_context_destroy(ctx);
    model_close(m);
}

// Breaks when the rows of a model are not those that attention takes, or W_O is read in another
// order: against NumPy, every family, sliding windows and biases among them.
Test(calibrate, a_model_agrees_with_numpy)
{
    for (int i = 0; i < NUM_MODELS; i++) { check_model(i, NUM_TOKENS); }
}

// Breaks when a batch does not see the keys of those before it.
Test(calibrate, batches_add_up)
{
    check_model(0, 23);
    check_model(3, 23);
}

// RUNS

typedef struct files { char *model, *text, *other, *out; } files;

static char* write_text(const char* name, uint64_t seed, int num_letters)
{
    char* path = malloc(512);
    cr_assert_not_null(path);
    snprintf(path, 512, "%s/%s-%d.txt", scratch, name, (int)getpid());
    FILE* file = fopen(path, "w");
    cr_assert_not_null(file);
    for (int i = 0; i < num_letters; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        fputc('a' + (int)((seed >> 48) % 26), file);
    }
    cr_assert_eq(fclose(file), 0);
    return path;
}

static files make_files(void)
{
    files f = { write_model(&models[0], NULL), write_text("calibrate-a", 1, 700),
                write_text("calibrate-b", 2, 700), malloc(512) };
    cr_assert_not_null(f.out);
    snprintf(f.out, 512, "%s/calibrate-%d.safetensors", scratch, (int)getpid());
    remove(f.out);
    return f;
}

static void remove_files(files* f)
{
    char* const all[] = { f->model, f->text, f->other, f->out };
    for (int i = 0; i < 4; i++) {
        unlink(all[i]);
        free(all[i]);
    }
}

static char centred[] = "rtn:k4,v4,k.shift=mean";

static calibrate_options options_for(const files* f, char** specs, int num_specs)
{
    return (calibrate_options){ .model = f->model, .text = f->text, .out = f->out, .specs = specs,
                                .num_specs = num_specs, .context = 160, .windows = 3,
                                .num_threads = 2, .num_queries = 16, .num_key_runs = 2, .seed = 1 };
}

static void run_ok(const calibrate_options* o)
{
    char message[1024];
    const int status = calibrate_run(o, true, message, sizeof message);
    cr_assert_eq(status, 0, "%s", message);
}

static int count_of(const char* text, const char* what)
{
    int count = 0;
    for (; (text = strstr(text, what)) != NULL; text += strlen(what)) { count++; }
    return count;
}

static void run_fails(const calibrate_options* o, const char* what)
{
    char message[1024];
    cr_expect_eq(calibrate_run(o, true, message, sizeof message), 1);
    cr_expect(strstr(message, what), "'%s' does not say '%s'", message, what);
}

static char* read_bytes(const char* path, size_t* bytes)
{
    FILE* file = fopen(path, "rb");
    cr_assert_not_null(file, "%s", path);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char* data = malloc(*bytes + 1);
    cr_assert(data != NULL && fread(data, 1, *bytes, file) == *bytes);
    fclose(file);
    return data;
}

// What a run says to people.
static char* run_heard(const calibrate_options* o, const files* f)
{
    char message[1024], path[600];
    size_t bytes;
    snprintf(path, sizeof path, "%s.said", f->out);
    const int before = dup(2);
    cr_assert(before >= 0 && freopen(path, "w", stderr) != NULL);
    const int status = calibrate_run(o, false, message, sizeof message);
    fflush(stderr);
    dup2(before, 2);
    close(before);
    cr_assert_eq(status, 0, "%s", message);
    char* read = read_bytes(path, &bytes);
    remove(path);
    char* said = realloc(read, bytes + 1);
    cr_assert_not_null(said);
    said[bytes] = 0;
    return said;
}

// Breaks when a run that goes on differs in a bit from one in a single go, with other threads too.
Test(calibrate, resume_makes_the_same_file)
{
    files f = make_files();
    char* specs[] = { centred };
    size_t whole_bytes = 0, bytes = 0;
    calibrate_options o = options_for(&f, specs, 1);
    run_ok(&o);
    char* whole = read_bytes(f.out, &whole_bytes);
    remove(f.out);
    o.windows = 1;
    o.num_threads = 1;
    run_ok(&o);
    o.windows = 3;
    o.num_specs = 0;                       // the file knows for what it is
    o.resume = true;
    o.num_threads = 3;
    run_ok(&o);
    char* resumed = read_bytes(f.out, &bytes);
    cr_expect(bytes == whole_bytes && memcmp(whole, resumed, bytes) == 0,
              "%zu bytes after resuming, %zu in one go", bytes, whole_bytes);
    free(resumed);
    free(whole);
    remove_files(&f);
}

// Breaks when a file of other circumstances is gone on with, or the message does not name them.
Test(calibrate, resume_refuses_another_run)
{
    files f = make_files();
    char* specs[] = { centred };
    calibrate_options o = options_for(&f, specs, 1);
    run_ok(&o);
    o.resume = true;
    calibrate_options wrong = o;
    wrong.text = f.other;
    run_fails(&wrong, "text_sha256 = ");
    wrong = o;
    wrong.context = 128;
    run_fails(&wrong, "context = 160: this run has 128");
    wrong = o;
    wrong.seed = 2;
    run_fails(&wrong, "seed = 1: this run has 2");
    wrong = o;
    wrong.num_queries = 8;
    run_fails(&wrong, "queries = 16: this run has 8");
    wrong = o;
    wrong.windows = 2;
    run_fails(&wrong, "windows = 3: this run has 2");
    char* other = write_model(&models[1], NULL);
    wrong = o;
    wrong.model = other;
    run_fails(&wrong, "model = llama/");
    unlink(other);
    free(other);
    FILE* file = fopen(f.out, "r+b");
    cr_assert(file != NULL && fseek(file, -5, SEEK_END) == 0 && fputc('x', file) == 'x');
    fclose(file);
    run_fails(&o, "damaged");
    remove_files(&f);
}

// Breaks when merging two texts is not what both give together, or other models are merged.
Test(calibrate, merge_adds_up)
{
    files f = make_files();
    char* specs[] = { centred };
    char a[600], b[600], message[512];
    kvl_context* ctx = open_context();
    kvl_statistics *one = NULL, *two = NULL, *sum = NULL;
    snprintf(a, sizeof a, "%s.a", f.out);
    snprintf(b, sizeof b, "%s.b", f.out);
    calibrate_options o = options_for(&f, specs, 1);
    o.out = a;
    run_ok(&o);
    o.text = f.other;
    o.out = b;
    o.windows = 2;
    run_ok(&o);
    char* merged[] = { a, b };
    calibrate_options m = options_for(&f, specs, 1);
    m.text = NULL;
    m.merge = merged;
    m.num_merge = 2;
    run_ok(&m);
    cr_assert_eq((int)kvl_statistics_load(ctx, a, &one), (int)KVL_OK);
    cr_assert_eq((int)kvl_statistics_load(ctx, b, &two), (int)KVL_OK);
    cr_assert_eq((int)kvl_statistics_load(ctx, f.out, &sum), (int)KVL_OK);
    const double* rows = kvl_statistics_get(sum, 1, 0, "rows", NULL);
    cr_expect(*rows == 5.0 * 160.0, "%g rows", *rows);
    int64_t num = 0;
    const double* x = kvl_statistics_get(one, 1, 0, "query_output_outer", &num);
    const double* y = kvl_statistics_get(two, 1, 0, "query_output_outer", NULL);
    const double* z = kvl_statistics_get(sum, 1, 0, "query_output_outer", NULL);
    cr_assert(num == 32 * 32 && z[0] > 0.0);
    for (int64_t i = 0; i < num; i++) { cr_expect_eq(z[i], x[i] + y[i]); }
    // A cache takes it: the mean is there, and the model is named.
    kvl_calibration* cal = NULL;
    model* loaded = open_model(&models[0], NULL);
    model_session* s = NULL;
    cr_assert_eq((int)kvl_calibration_load(ctx, f.out, &cal), (int)KVL_OK);
    model_session_desc sd = { .ctx = ctx, .spec = centred, .calibration = cal };
    cr_expect_eq(model_session_create(loaded, &sd, &s, message, sizeof message), 0, "%s", message);
    model_session_free(s);
    sd.calibration = NULL;
    cr_expect(model_session_create(loaded, &sd, &s, message, sizeof message) != 0 &&
              strstr(message, "kvloom-calibrate"), "%s", message);
    model* another = open_model(&models[1], NULL);
    sd.calibration = cal;
    cr_expect(model_session_create(another, &sd, &s, message, sizeof message) != 0 &&
              strstr(message, "another model: 'llama/"), "%s", message);
    kvl_calibration_free(cal);
    model_close(another);
    model_close(loaded);
    kvl_statistics_free(one);
    kvl_statistics_free(two);
    kvl_statistics_free(sum);
    kvl_context_destroy(ctx);
    unlink(a);
    unlink(b);
    remove_files(&f);
}

// Breaks when rows of all layers are not kept for shift=predicted, when a cache does not find its
// tables, or when a file of sums alone makes some.
Test(calibrate, layers_are_predicted)
{
    static char spec[] = "aqua-kv:sink=4,recent=8 0:aqua-kv:b4,sink=4,recent=8";
    static char later[] = "aqua-kv:b3,sink=4,recent=8";
    files f = make_files();
    char* specs[] = { spec };
    char* more[] = { later };
    char* merged[] = { f.out };
    char message[512];
    int32_t ids[NUM_TOKENS];
    kvl_context* ctx = open_context();
    kvl_calibration* cal = NULL;
    cache_specs of_layers;
    const char* args[] = { "aqua-kv:sink=4,recent=8", "0:aqua-kv:b4,sink=4,recent=8" };
    calibrate_options o = options_for(&f, specs, 1);
    run_ok(&o);
    model* m = open_model(&models[0], NULL);
    cr_assert_eq((int)kvl_calibration_load(ctx, f.out, &cal), (int)KVL_OK);
    cr_assert_eq(cache_specs_create(args, 2, model_get_geometry(m)->num_layers, &of_layers, message,
                                    sizeof message), 0, "%s", message);
    const model_session_desc sd = { .ctx = ctx, .specs = of_layers.specs, .calibration = cal };
    model_session* s = open_session(m, sd);
    fill_tokens(ids);
    cr_expect_eq(model_prefill(s, ids, NUM_TOKENS, NULL), MODEL_OK, "%s",
                 model_session_message(s));
    model_session_free(s);
    cache_specs_free(&of_layers);
    kvl_calibration_free(cal);
    model_close(m);
    o.specs = more;
    o.resume = true;
    run_ok(&o);
    calibrate_options merge = o;
    later[9] = '2';
    merge.resume = false;
    merge.text = NULL;
    merge.merge = merged;
    merge.num_merge = 1;
    merge.out = f.other;
    run_fails(&merge, "table 'predicted': is fitted on rows of the text, which --merge does not");
    kvl_context_destroy(ctx);
    remove_files(&f);
}

// The damped price of errors of stored values, Q^T A Q, as docs/transforms.md has it.
static void stored_price(const kvl_statistics* stats, const float* q, int n, double* out)
{
    int64_t num = 0;
    const double* a = kvl_statistics_get(stats, 1, 0, "output_outer", &num);
    double trace = 0;
    cr_assert(a != NULL && num == (int64_t)n * n);
    for (int i = 0; i < n; i++) { trace += a[i * n + i]; }
    for (int i = 0; i < n * n; i++) {
        out[i] = 0;
        for (int j = 0; j < n * n; j++) {
            const double damped = a[j] * n / trace + (j / n == j % n ? 0.02 : 0.0);
            out[i] += (double)q[j / n * n + i / n] * damped * (double)q[j % n * n + i % n];
        }
    }
}

static const float* table_of(const kvl_calibration* cal, const char* name, int64_t least)
{
    int64_t num = 0;
    const float* x = kvl_calibration_table(cal, 1, 1, name, &num);
    cr_assert(x != NULL && num >= least, "%s: %lld numbers", name, (long long)num);
    return x;
}

// Breaks when a run makes no order of channels for a cache that sets some apart, or one that is not
// of the text's values.  Both sets of 16 are one piece of a Hadamard: squares fall all the way.
Test(calibrate, outliers_are_the_strongest_channels)
{
    enum { DIM = 32 };
    files f = make_files();
    char spec[] = "turboquant-split";
    char* specs[] = { spec };
    calibrate_options o = options_for(&f, specs, 1);
    kvl_context* ctx = open_context();
    kvl_statistics* stats = NULL;
    kvl_calibration* cal = NULL;
    int64_t num = 0;
    run_ok(&o);
    cr_assert_eq((int)kvl_statistics_load(ctx, f.out, &stats), (int)KVL_OK);
    cr_assert_eq((int)kvl_calibration_load(ctx, f.out, &cal), (int)KVL_OK);
    const float* order = table_of(cal, "outlier_order@outliers16", DIM);
    const double* squares = kvl_statistics_get(stats, 1, 0, "value_outer", &num);
    cr_assert(squares != NULL && num == DIM * DIM);
    for (int i = 1; i < DIM; i++) {
        const double before = squares[(int)order[i - 1] * (DIM + 1)];
        const double here = squares[(int)order[i] * (DIM + 1)];
        cr_expect(before >= here * (1 - 1e-6), "place %d has %g, the one before it %g", i, here,
                  before);
    }
    kvl_calibration_free(cal);
    kvl_statistics_free(stats);
    kvl_context_destroy(ctx);
    remove_files(&f);
}

// Breaks when feedback moves errors by the price of another basis or another order of channels: a
// path takes channels as they lie, and has no table of an order.
Test(calibrate, feedback_has_the_price_of_the_stored_basis)
{
    enum { DIM = 32 };
    static const char* const names[] = { "feedback_price@whiten", "feedback_price@path,whiten" };
    files f = make_files();
    char* specs[] = { "rtn:v.transform=whiten,v.round=feedback",
                      "rtn:v.transform=whiten,v.round=feedback_trellis" };
    calibrate_options o = options_for(&f, specs, 2);
    kvl_context* ctx = open_context();
    kvl_statistics* stats = NULL;
    kvl_calibration* cal = NULL;
    double price[DIM * DIM];
    run_ok(&o);
    cr_assert_eq((int)kvl_statistics_load(ctx, f.out, &stats), (int)KVL_OK);
    cr_assert_eq((int)kvl_calibration_load(ctx, f.out, &cal), (int)KVL_OK);
    stored_price(stats, table_of(cal, "whiten_query", DIM * DIM), DIM, price);
    const float* order = table_of(cal, "feedback_order@whiten", DIM);
    int moved = 0;
    for (int i = 0; i < DIM; i++) { moved += (int)order[i] != i; }
    cr_assert(moved > DIM / 2, "%d channels moved: the test sees nothing", moved);
    for (int path = 0; path < 2; path++) {
        const float* got = table_of(cal, names[path], DIM * DIM);
        for (int i = 0; i < DIM * DIM; i++) {
            const int j = path ? i / DIM : (int)order[i / DIM];
            const int p = path ? i % DIM : (int)order[i % DIM];
            const double want = j == p ? 0 : price[j * DIM + p] / price[j * DIM + j];
            cr_expect(fabs((double)got[i] - want) <= 1e-4, "%s: [%d] = %g, not %g", names[path], i,
                      (double)got[i], want);
        }
    }
    kvl_calibration_free(cal);
    kvl_statistics_free(stats);
    kvl_context_destroy(ctx);
    remove_files(&f);
}

// Logits of all tokens with the cache of these arguments, each row through the cache.
static float* logits_with(const model* m, kvl_context* ctx, const char* arg, const int32_t* ids)
{
    char message[512];
    const char* args[] = { "f16", arg };
    const model_geometry* g = model_get_geometry(m);
    cache_specs specs;
    cr_assert_eq(cache_specs_create(args, arg != NULL ? 2 : 1, g->num_layers, &specs, message,
                                    sizeof message), 0, "%s", message);
    const model_session_desc sd = { .ctx = ctx, .specs = specs.specs };
    model_session* s = open_session(m, sd);
    float* logits = malloc((size_t)(NUM_TOKENS * g->vocab_size) * sizeof *logits);
    cr_assert_not_null(logits);
    const model_run run = { .ids = ids, .count = NUM_TOKENS, .logits = logits,
                            .logits_of_all = true, .rows_through_cache = true,
                            .products = MODEL_PRODUCTS_FLOAT };
    cr_assert_eq(model_run_tokens(s, &run), MODEL_OK, "%s", model_session_message(s));
    model_session_free(s);
    cache_specs_free(&specs);
    return logits;
}

static double kl_of(const float* base, const float* cache, int n)
{
    double sum[2] = { 0, 0 }, kl = 0;
    for (int i = 0; i < n; i++) {
        sum[0] += exp((double)base[i]);
        sum[1] += exp((double)cache[i]);
    }
    for (int i = 0; i < n; i++) {
        const double p = exp((double)base[i]) / sum[0];
        kl += p * (log(p) - ((double)cache[i] - log(sum[1])));
    }
    return kl;
}

// Breaks when a loss is not that of its layer and side: against whole passes, each with a cache of
// its own.  There the other layers' rows are in 16 bits as well, and losses have 3 digits.
Test(calibrate, losses_are_those_of_whole_passes)
{
    model* m = open_model(&models[0], NULL);
    kvl_context* ctx = open_context();
    const model_geometry* g = model_get_geometry(m);
    const char spec[] = "kivi:k2,v2,g16,sink=4,recent=8";
    char message[512], arg[64];
    int32_t ids[NUM_TOKENS];
    double* losses = calloc(2 * (size_t)g->num_layers, sizeof *losses);
    fill_tokens(ids);
    const calibrate_bits_desc desc = { .m = m, .spec = spec, .ids = ids, .count = NUM_TOKENS,
                                       .num_threads = 2 };
    cr_assert_eq(calibrate_bits_measure(&desc, losses, message, sizeof message), 0, "%s", message);
    float* base = logits_with(m, ctx, NULL, ids);
    const int first = NUM_TOKENS / 4, num = NUM_TOKENS - 1 - first;
    for (int i = 0; i < 2 * g->num_layers; i++) {
        snprintf(arg, sizeof arg, "%d:%c=%s", i / 2, i % 2 ? 'v' : 'k', spec);
        float* cache = logits_with(m, ctx, arg, ids);
        double want = 0;
        for (int t = first; t < first + num; t++) {
            want += kl_of(base + t * g->vocab_size, cache + t * g->vocab_size, g->vocab_size) / num;
        }
        cr_expect(want > 0 && fabs(losses[i] - want) <= 0.02 * want, "%s: %g, not %g", arg,
                  losses[i], want);
        free(cache);
    }
    free(base);
    free(losses);
    kvl_context_destroy(ctx);
    model_close(m);
}

// Breaks when bits=auto is not measured, not kept, or not what a cache of the file gets.
Test(calibrate, chooses_bits_of_layers)
{
    files f = make_files();
    char spec[] = "kivi:bits=auto:2.75,g16,sink=4,recent=16", message[512];
    char other[] = "kivi:bits=auto:3.25,g16,sink=4,recent=16";
    char* specs[] = { spec };
    calibrate_options o = options_for(&f, specs, 1);
    run_ok(&o);
    o.resume = true;
    specs[0] = other;
    run_ok(&o);
    kvl_context* ctx = open_context();
    kvl_calibration* cal = NULL;
    model* m = open_model(&models[0], NULL);
    cr_assert_eq((int)kvl_calibration_load(ctx, f.out, &cal), (int)KVL_OK);
    for (int i = 0; i < 2; i++) {
        model_session* s = NULL;
        kvl_layer_info info;
        double bits = 0;
        model_session_desc sd = { .ctx = ctx, .spec = i ? other : spec, .calibration = cal };
        cr_assert_eq(model_session_create(m, &sd, &s, message, sizeof message), 0, "%s", message);
        const int num_layers = model_get_geometry(m)->num_layers;
        for (int layer = 0; layer < num_layers; layer++) {
            kvl_cache_layer_info(model_session_cache(s), layer, &info);
            bits += (info.k_bits + info.v_bits) / (2 * num_layers);
        }
        // A bit of one side is a quarter of the mean: the last one did not fit.
        cr_expect(bits <= 2.75 + 0.5 * i && bits > 2.5 + 0.5 * i, "%g bits", bits);
        model_session_free(s);
    }
    kvl_calibration_free(cal);
    kvl_context_destroy(ctx);
    model_close(m);
    remove_files(&f);
}

// Breaks when --resume measures what the file has, or takes what is of another composition.
Test(calibrate, resume_keeps_losses_of_layers)
{
    files f = make_files();
    char spec[] = "kivi:bits=auto:2.75,g16", other[] = "kivi:bits=auto:3.25,g16";
    char third[] = "kivi:bits=auto:3.25,g32";
    char* specs[] = { spec };
    calibrate_options o = options_for(&f, specs, 1);
    char* said = run_heard(&o, &f);
    cr_expect_eq(count_of(said, "losses of layers are kept"), 0, "%s", said);
    free(said);
    o.resume = true;
    specs[0] = other;
    said = run_heard(&o, &f);
    cr_expect_eq(count_of(said, "losses of layers are kept"), 1, "%s", said);
    free(said);
    specs[0] = third;
    said = run_heard(&o, &f);
    cr_expect_eq(count_of(said, "losses of layers are kept"), 1, "%s", said);
    free(said);
    remove_files(&f);
}

// Breaks when the page lacks a layer, a side, a head or a basis, or has a number that is none.
Test(calibrate, the_report_shows_every_head)
{
    files f = make_files();
    char path[600], spec[] = "wush", other[] = "loom:g16";
    char* specs[] = { spec, other };
    snprintf(path, sizeof path, "%s/report-%d.html", scratch, (int)getpid());
    calibrate_options o = options_for(&f, specs, 2);
    o.report = path;
    run_ok(&o);
    size_t bytes = 0;
    char* page = read_bytes(path, &bytes);
    page[bytes] = 0;
    // 2 layers of 1 head: keys balance and flat, values balance and whiten.
    cr_expect_eq(count_of(page, "<h2>Layer "), 2);
    cr_expect_eq(count_of(page, "<tr><th class=\"name\">keys, head 0, balance<"), 2);
    cr_expect_eq(count_of(page, "<tr><th class=\"name\">keys, head 0, flat<"), 2);
    cr_expect_eq(count_of(page, "<tr><th class=\"name\">values, head 0, balance<"), 2);
    cr_expect_eq(count_of(page, "<tr><th class=\"name\">values, head 0, whiten<"), 2);
    cr_expect_eq(count_of(page, "<svg"), 2 + 2 * 2);
    cr_expect_eq(count_of(page, "nan") + count_of(page, "inf"), 0);
    cr_expect_eq(count_of(page, "http"), 0);
    free(page);
    unlink(path);
    remove_files(&f);
}

// Breaks when a bad input is found only after the work, or is not named.
Test(calibrate, bad_input_is_refused_before_the_work)
{
    files f = make_files();
    char missing[] = "/nowhere/at.all", bad[] = "rtn:k4,k.shift=median", range[] = "7:f16";
    char* specs[] = { bad };
    calibrate_options o = options_for(&f, specs, 1);
    run_fails(&o, "--for 'rtn:k4,k.shift=median'");
    specs[0] = range;
    run_fails(&o, "--for '7:f16'");
    specs[0] = centred;
    calibrate_options wrong = o;
    wrong.model = missing;
    run_fails(&wrong, missing);
    wrong = o;
    wrong.text = missing;
    run_fails(&wrong, missing);
    wrong = o;
    wrong.out = missing;
    run_fails(&wrong, "-o /nowhere/at.all");
    wrong = o;
    wrong.context = 4096;
    run_fails(&wrong, "a window has 4096");
    char* merged[] = { f.text, f.other };
    wrong = o;
    wrong.merge = merged;
    wrong.num_merge = 2;
    run_fails(&wrong, "not a safetensors file");
    cr_expect(access(f.out, F_OK) != 0, "nothing was written");
    remove_files(&f);
}

// Breaks when an interruption loses finished windows or leaves half a file.
Test(calibrate, an_interruption_before_the_first_window_writes_nothing)
{
    files f = make_files();
    char message[1024];
    calibrate_options o = options_for(&f, NULL, 0);
    calibrate_interrupted = 1;
    cr_expect_eq(calibrate_run(&o, true, message, sizeof message), 130);
    calibrate_interrupted = 0;
    cr_expect(strstr(message, "before a window was finished"), "%s", message);
    cr_expect(access(f.out, F_OK) != 0);
    remove_files(&f);
}
