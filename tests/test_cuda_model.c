// test_cuda_model.c -- a whole model on a device: weights, rows, cache and attention.
//
// The models are those of tiny_model.h, the device is the stand-in of tests/ptxsim or, with
// KVLOOM_TEST_GPU=1, the machine's own.  Logits are compared with those of the same model on the
// reference, which test_model compares with an independent forward pass.

#include "model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <unistd.h>

#include "device_args.h"
#include "matrix.h"
#include "model_text.h"
#include "tiny_model.h"

#include "sim_library.h"

enum { STEPS = 16 };

static int best_of(const float* logits)
{
    int best = 0;
    for (int i = 1; i < VOCAB; ++i)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static model_session* open_on(const model* m, kvl_target target, const char* spec, int batch_len,
                              kvl_context** ctx)
{
    kvl_context_desc desc = { .target = target, .num_threads = 2 };
    cr_assert_eq(kvl_context_create(&desc, ctx), KVL_OK, "%s", kvl_context_message(*ctx));
    return open_session(m, (model_session_desc){ .ctx = *ctx, .spec = spec,
                                                 .batch_len = batch_len });
}

// Attention in float32 differs by rounding, 1e-5 of outputs of size 1; a row of the cache that lies
// between two f16 may become either, which are 2^-11 of it apart.  Both grow with the logits.
static void same_floats(const float* x, const float* y, size_t num, const char* what)
{
    double worst = 0, largest = 1;
    for (size_t i = 0; i < num; ++i) {
        worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
        largest = fmax(largest, fabs((double)y[i]));
    }
    cr_assert(worst <= 1e-3 * largest, "%s: numbers of up to %g differ by %g", what, largest,
              worst);
}

static void same_logits(const float* x, const float* y, int num_rows, const char* what)
{
    same_floats(x, y, (size_t)num_rows * VOCAB, what);
}

// Both sessions are given the device's tokens.  Weights and activations are floats on both.
static void check_model(const tiny* which, const char* spec)
{
    kvl_context *cuda, *reference;
    model* m = open_model(which, NULL);
    model_session* a = open_on(m, KVL_TARGET_CUDA, spec, 7, &cuda);
    model_session* b = open_on(m, KVL_TARGET_REFERENCE, spec, 7, &reference);
    int32_t ids[NUM_TOKENS];
    float x[VOCAB], y[VOCAB];
    fill_tokens(ids);
    cr_assert_eq(model_prefill(a, ids, NUM_TOKENS, x), MODEL_OK, "%s", model_session_message(a));
    cr_assert_eq(model_prefill(b, ids, NUM_TOKENS, y), MODEL_OK, "%s", model_session_message(b));
    for (int step = 0; step < STEPS; ++step) {
        char what[128];
        snprintf(what, sizeof what, "%s, %s, step %d", which->arch, spec, step);
        same_logits(x, y, 1, what);
        const int32_t id = best_of(x);
        cr_assert_eq(id, best_of(y), "%s, %s, step %d: another token", which->arch, spec, step);
        cr_assert_eq(model_step(a, id, x), MODEL_OK, "%s", model_session_message(a));
        cr_assert_eq(model_step(b, id, y), MODEL_OK, "%s", model_session_message(b));
    }
    model_session_free(a);
    model_session_free(b);
    model_close(m);
    kvl_context_destroy(cuda);
    kvl_context_destroy(reference);
}

// Skips the test where nothing can make kernels.
static void need_nvrtc(void)
{
    char message[512] = "";
    kvl_context_desc desc = { .target = KVL_TARGET_CUDA, .num_threads = 1 };
    kvl_layer_desc layer = { .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 32 };
    kvl_cache_desc caches = { .num_layers = 1, .layers = &layer };
    kvl_context* ctx = NULL;
    kvl_cache* cache = NULL;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK, "%s", kvl_context_message(ctx));
    if (kvl_cache_create(ctx, &caches, &cache) != KVL_OK)
        snprintf(message, sizeof message, "%s", kvl_context_message(ctx));
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
    if (strncmp(message, "no NVRTC", 8) == 0) cr_skip_test("no NVRTC");
    cr_assert(message[0] == '\0', "%s", message);
}

// Broken by a row that is copied to the wrong place, or a call that is out of order.
Test(cuda_model, sixteen_tokens_of_two_layers)
{
    if (sim_is_wanted()) sim_load("sm_99");
    need_nvrtc();
    check_model(&models[0], "kivi:k4,v4,g16,sink=2,recent=4");
    check_model(&models[2], "f16");
}

// Batches of many rows, with and without the cache between them, all logits, and the hidden rows.
static void check_batches(const tiny* which, const char* spec)
{
    enum { ROWS = 60 };
    kvl_context* ctx[2];
    model_session* s[2];
    model* m = open_model(which, NULL);
    float* logits[2];
    float* hidden[2];
    float* entering[2];
    const size_t all = (size_t)which->layers * ROWS * HIDDEN;
    int32_t ids[NUM_TOKENS];
    fill_tokens(ids);
    for (int i = 0; i < 2; ++i) {
        s[i] = open_on(m, i ? KVL_TARGET_REFERENCE : KVL_TARGET_CUDA, spec, 40, &ctx[i]);
        logits[i] = calloc((size_t)ROWS * VOCAB, sizeof(float));
        hidden[i] = calloc((size_t)ROWS * HIDDEN, sizeof(float));
        entering[i] = calloc(all, sizeof(float));
        cr_assert(logits[i] && hidden[i] && entering[i]);
    }
    for (int through = 0; through < 2; ++through) {
        for (int i = 0; i < 2; ++i) {
            const model_run run = { .ids = ids, .count = ROWS, .logits = logits[i],
                                    .logits_of_all = true, .hidden = hidden[i],
                                    .entering = entering[i],
                                    .rows_through_cache = through };
            cr_assert_eq(model_session_reset(s[i]), MODEL_OK);
            cr_assert_eq(model_run_tokens(s[i], &run), MODEL_OK, "%s", model_session_message(s[i]));
        }
        same_logits(logits[0], logits[1], ROWS, which->arch);
        same_floats(entering[0], entering[1], all, "rows that enter layers");
    }
    for (int i = 0; i < 2; ++i)
        cr_assert_eq(model_output_logits(s[i], hidden[i], ROWS, MODEL_PRODUCTS_FLOAT, logits[i]),
                     MODEL_OK, "%s", model_session_message(s[i]));
    same_logits(logits[0], logits[1], ROWS, "logits of hidden rows");
    for (int i = 0; i < 2; ++i) {
        model_session_free(s[i]);
        kvl_context_destroy(ctx[i]);
        free(logits[i]);
        free(hidden[i]);
        free(entering[i]);
    }
    model_close(m);
}

// Broken by a family's own step (bias, norm of heads, window, GELU, norms behind), or by a tile
// that is cut at an edge.
Test(cuda_model, families_in_batches)
{
    if (sim_is_wanted()) sim_load("sm_99");
    need_nvrtc();
    check_batches(&models[1], "f16");
    check_batches(&models[3], "f16");
}

// PRODUCTS

enum { W_ROWS = 70, W_COLS = 512, X_ROWS = 37 };

static const int types[] = { MATRIX_F32, MATRIX_F16, MATRIX_BF16, MATRIX_Q4_0, MATRIX_Q4_1,
                             MATRIX_Q5_0, MATRIX_Q5_1, MATRIX_Q8_0, MATRIX_Q4_K, MATRIX_Q5_K,
                             MATRIX_Q6_K };
enum { NUM_TYPES = sizeof types / sizeof types[0] };

static uint32_t next(uint32_t* state) { return *state = *state * 1664525u + 1013904223u; }

// Bytes of any codes, with scales and offsets of f16 that are small: at `at` of each group.
static void fill_weights(int type, unsigned char* w)
{
    uint32_t state = (uint32_t)type + 1;
    const size_t bytes = (size_t)(W_ROWS * matrix_row_bytes(type, W_COLS));
    for (size_t i = 0; i < bytes; ++i) w[i] = (unsigned char)(next(&state) >> 24);
    const size_t width = type == MATRIX_F32 ? 4 : 2;
    size_t group = (size_t)matrix_row_bytes(type, 256), first = 0;
    if (type == MATRIX_F32 || type == MATRIX_F16 || type == MATRIX_BF16) group = width;
    else if (type < MATRIX_Q4_K) group = (size_t)matrix_row_bytes(type, 32);
    if (type == MATRIX_F32 || type == MATRIX_BF16) first = width - 2;
    if (type == MATRIX_Q6_K) first = 208;
    const int pairs = type == MATRIX_Q4_1 || type == MATRIX_Q5_1 || type == MATRIX_Q4_K ||
                      type == MATRIX_Q5_K;
    for (size_t i = first; i < bytes; i += group) {
        for (size_t k = 0; k <= (size_t)pairs; ++k) {      // below 1, either sign
            const int wide = type == MATRIX_F32 || type == MATRIX_BF16;
            w[i + 2 * k + 1] = (unsigned char)((w[i + 2 * k + 1] & 0x80) | (wide ? 0x3e : 0x2c));
        }
    }
}

static char* product_text(int type)
{
    static const char* const paths[] = { "types.cu", "device_args.h", "products.cu" };
    char* text = calloc(1, 1 << 16);
    cr_assert(text);
    for (int i = 0; i < 3; ++i) {
        char path[64];
        snprintf(path, sizeof path, "examples/decode/%s", paths[i]);
        const char* const* line = model_text_find(path);
        cr_assert(line, "%s", path);
        if (i == 2) sprintf(text + strlen(text), "enum { weight_type = %d };\n", type);
        for (; *line; ++line) strcat(text, *line);
    }
    return text;
}

// y of either kernel against float64 over the host's weights.  A float32 sum of n products is
// within n 2^-24 of the sum of their sizes, in any order; half of that more for the weights.
static void check_products(kvl_context* ctx, int type)
{
    const int64_t row_bytes = matrix_row_bytes(type, W_COLS);
    unsigned char* w = calloc(W_ROWS, (size_t)row_bytes);
    float* x = calloc((size_t)X_ROWS * W_COLS, sizeof *x);
    float* y = calloc((size_t)X_ROWS * W_ROWS, sizeof *y);
    char* text = product_text(type);
    const uint64_t w_bytes = (uint64_t)(W_ROWS * row_bytes), x_bytes = X_ROWS * W_COLS * 4u;
    const uint64_t y_bytes = X_ROWS * W_ROWS * 4u;
    void *dw, *dx, *dy;
    uint32_t state = 99;
    fill_weights(type, w);
    for (int i = 0; i < X_ROWS * W_COLS; ++i)
        x[i] = (float)((int)(next(&state) >> 20) - 2048) / 512;
    cr_assert_eq(kvl_device_alloc(ctx, w_bytes, &dw), KVL_OK);
    cr_assert_eq(kvl_device_alloc(ctx, x_bytes, &dx), KVL_OK);
    cr_assert_eq(kvl_device_alloc(ctx, y_bytes, &dy), KVL_OK);
    cr_assert_eq(kvl_device_write(ctx, dw, w, w_bytes), KVL_OK);
    cr_assert_eq(kvl_device_write(ctx, dx, x, x_bytes), KVL_OK);
    for (int many = 0; many < 2; ++many) {
        const int num_rows = many ? X_ROWS : 5;
        const device_product args = { dw, dx, dy, row_bytes, W_ROWS, W_COLS, num_rows };
        kvl_kernel_desc d = { .name = "products-test", .text = text };
        kvl_launch_desc launch = { .args = &args };
        d.entry = many ? "multiply_many" : "multiply_few";
        launch.grid[0] = many ? (W_ROWS + 63) / 64 : (W_ROWS + 3) / 4;
        launch.grid[1] = (unsigned)(many ? (num_rows + 31) / 32 : (num_rows + 3) / 4);
        cr_assert_eq(kvl_device_kernel(ctx, &d, &launch.kernel), KVL_OK, "%s",
                     kvl_context_message(ctx));
        cr_assert_eq(kvl_device_launch(ctx, &launch), KVL_OK, "%s", kvl_context_message(ctx));
        cr_assert_eq(kvl_device_read(ctx, y, dy, (uint64_t)num_rows * W_ROWS * 4u), KVL_OK);
        for (int m = 0; m < W_ROWS; ++m) {
            float row[W_COLS];
            matrix_dequantize_row(type, w + m * row_bytes, W_COLS, row);
            for (int r = 0; r < num_rows; ++r) {
                double sum = 0, size = 0;
                for (int n = 0; n < W_COLS; ++n) {
                    const double product = (double)row[n] * (double)x[r * W_COLS + n];
                    sum += product;
                    size += fabs(product);
                }
                cr_assert(fabs((double)y[r * W_ROWS + m] - sum) <= 1.5 * W_COLS * size / (1 << 24),
                          "%s %s: y[%d, %d] = %g, expected %g", matrix_type_name(type), d.entry, r,
                          m, (double)y[r * W_ROWS + m], sum);
            }
        }
    }
    kvl_device_free(ctx, dw, w_bytes);
    kvl_device_free(ctx, dx, x_bytes);
    kvl_device_free(ctx, dy, y_bytes);
    free(text);
    free(w);
    free(x);
    free(y);
}

// Broken by a code, scale or offset of a format that is read from the wrong place.
Test(cuda_model, products_of_every_type)
{
    if (sim_is_wanted()) sim_load("sm_99");
    need_nvrtc();
    kvl_context_desc desc = { .target = KVL_TARGET_CUDA, .num_threads = 1 };
    kvl_context* ctx = NULL;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    for (int i = 0; i < NUM_TYPES; ++i) check_products(ctx, types[i]);
    kvl_context_destroy(ctx);
}

// What a caller's kernel can be refused for.
Test(cuda_model, kernels_that_are_refused)
{
    static const char good[] = "struct args { int* at; };\n"
                               "extern \"C\" __global__ void set(const __grid_constant__ args a)\n"
                               "{ if (threadIdx.x == 0) a.at[blockIdx.x] = 7 + blockIdx.x; }\n";
    if (sim_is_wanted()) sim_load("sm_99");
    need_nvrtc();
    kvl_context_desc desc = { .target = KVL_TARGET_CUDA, .num_threads = 1 };
    kvl_context *ctx = NULL, *host = NULL;
    void *kernel = &desc, *at = NULL;
    int32_t got[2] = { 0, 0 };
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    kvl_kernel_desc d = { .name = "set", .text = good, .entry = "get" };
    cr_assert_eq(kvl_device_kernel(ctx, &d, &kernel), KVL_BAD_ARGUMENT);
    cr_assert(kernel == NULL && strstr(kvl_context_message(ctx), "entry = get: set has no kernel"));
    d.name = "a name";
    cr_assert_eq(kvl_device_kernel(ctx, &d, &kernel), KVL_BAD_ARGUMENT);
    cr_assert(strstr(kvl_context_message(ctx), "name = 'a name': must be"));
    d.name = "wrong";
    d.text = "extern \"C\" __global__ void set() { nothing = 1; }\n";
    cr_assert_eq(kvl_device_kernel(ctx, &d, &kernel), KVL_COMPILE);
    cr_assert(strstr(kvl_context_message(ctx), "wrong.cu(1)"), "%s", kvl_context_message(ctx));
    cr_assert(strstr(kvl_context_log(ctx), "nothing"));
    d = (kvl_kernel_desc){ .name = "set", .text = good, .entry = "set" };
    cr_assert_eq(kvl_device_kernel(ctx, &d, &kernel), KVL_OK, "%s", kvl_context_message(ctx));
    cr_assert_eq(kvl_device_alloc(ctx, sizeof got, &at), KVL_OK);
    kvl_launch_desc launch = { .kernel = kernel, .grid = { 2 }, .args = &at, .threads = 2000 };
    cr_assert_eq(kvl_device_launch(ctx, &launch), KVL_BAD_ARGUMENT);
    launch.threads = 32;
    cr_assert_eq(kvl_device_launch(ctx, &launch), KVL_OK, "%s", kvl_context_message(ctx));
    cr_assert_eq(kvl_device_read(ctx, got, at, sizeof got), KVL_OK);
    cr_assert(got[0] == 7 && got[1] == 8);
    kvl_device_free(ctx, at, sizeof got);
    desc.target = KVL_TARGET_REFERENCE;
    cr_assert_eq(kvl_context_create(&desc, &host), KVL_OK);
    cr_assert_eq(kvl_device_kernel(host, &d, &kernel), KVL_UNSUPPORTED);
    kvl_context_destroy(host);
    kvl_context_destroy(ctx);
}

// THE PROGRAM

// How often a file has a line with these words.
static int lines_with(const char* path, const char* words, char* first, size_t room)
{
    char line[1024];
    int num = 0;
    FILE* file = fopen(path, "r");
    cr_assert(file, "%s", path);
    while (fgets(line, sizeof line, file))
        if (strstr(line, words) && num++ == 0) snprintf(first, room, "%s", line);
    fclose(file);
    return num;
}

// decode, for which libcuda.so.1 is the one in `folder`: how often it says that the host serves in
// the device's place, and why.
static int times_said(const char* folder, const char* arch, const char* options, char* why,
                      size_t room)
{
    char command[4096], err[] = "/tmp/kvl_decode_XXXXXX";
    char* model_path = write_model(&models[0], NULL);
    const int fd = mkstemp(err);
    cr_assert(fd >= 0);
    close(fd);
    why[0] = '\0';
    snprintf(command, sizeof command,
             "LD_LIBRARY_PATH='%s' PTXSIM_ARCH=%s '%s/decode' -m '%s' -p ab -n 2 %s "
             ">/dev/null 2>'%s'", folder, arch, getenv("KVLOOM_TEST_BIN"), model_path, options,
             err);
    const int status = system(command);
    const int num = lines_with(err, "the host is used", why, room);
    cr_assert(status == 0, "%s: status %d", command, status);
    unlink(err);
    unlink(model_path);
    free(model_path);
    return num;
}

// Broken where target auto fails without a device, hides that the host serves, or repeats it.
Test(cuda_model, auto_says_once_that_the_host_serves)
{
    static const char none[] = KVLOOM_TEST_SCRATCH "/no_driver";
    static const char sim[] = KVLOOM_TEST_SCRATCH "/ptxsim";
    char why[1024], command[2600];
    if (!getenv("KVLOOM_TEST_BIN")) cr_skip_test("no KVLOOM_TEST_BIN");
    // A driver that cannot be opened, on machines that have one too; and one whose device is old.
    snprintf(command, sizeof command, "mkdir -p '%s' && : >'%s/libcuda.so.1' && sh '%s' '%s'", none,
             none, KVLOOM_TEST_ROOT "/tests/ptxsim/build.sh", sim);
    cr_assert_eq(system(command), 0, "%s", command);
    cr_expect_eq(times_said(none, "sm_90", "", why, sizeof why), 0, "unasked: %s", why);
    cr_expect_eq(times_said(none, "sm_90", "--target auto", why, sizeof why), 1);
    cr_expect(strstr(why, "libcuda.so.1"), "%s", why);
    cr_expect_eq(times_said(sim, "sm_70", "", why, sizeof why), 1);
    cr_expect(strstr(why, "sm_70"), "%s", why);
    cr_expect_eq(times_said(none, "sm_90", "--target host", why, sizeof why), 0, "host: %s", why);
}
