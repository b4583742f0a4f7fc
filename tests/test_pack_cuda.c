// test_pack_cuda.c -- a pack of a device's kernels serves a whole cache: no generator, no NVRTC.
//
// Breaks when kvloom-pack names configurations otherwise than caches ask for them, or when a cubin
// or PTX of a pack is not what the device is given.  Runs on the stand-in of tests/ptxsim, which
// refuses the cubin, so that the pack's PTX is next.  Skipped without NVRTC, which makes the pack.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"
#include "sim_library.h"

enum { Q_HEADS = 2, KV_HEADS = 1, DIM = 64, ROWS = 200 };

static const char spec[] = "kivi:k2,v2,g32,recent=32";
static char said[KVL__MESSAGE_BYTES];

static void say(kvl_log_level level, const char* message, void* user)
{
    (void)user;
    if (level != KVL_LOG_INFO && !said[0]) snprintf(said, sizeof said, "%s", message);
}

// Writes a pack with the program, compiles it into a library and returns its table.
static const kvl_pack* make_pack(void)
{
    char folder[600], command[3000];
    const char* bin = getenv("KVLOOM_TEST_BIN");
    snprintf(folder, sizeof folder, "%s/pack-cuda-%d", KVLOOM_TEST_SCRATCH, (int)getpid());
    snprintf(command, sizeof command,
             "mkdir -p '%s' && cd '%s' && '%s/kvloom-pack' -o pack.h --target cuda "
             "--arch sm_90,compute_75 --config '%s %d %d %d' 2>log && "
             "echo '#include \"pack.h\"\nconst kvl_pack* the_pack(void);"
             "const kvl_pack* the_pack(void) { return &kernel_pack; }' >pack.c && "
             "cc -shared -fPIC -I'%s/include' pack.c -o pack.so", folder, folder,
             bin ? bin : "build/bin", spec, Q_HEADS, KV_HEADS, DIM, KVLOOM_TEST_ROOT);
    cr_assert_eq(system(command), 0, "%s", command);
    strcat(folder, "/pack.so");
    void* library = dlopen(folder, RTLD_NOW | RTLD_LOCAL);
    cr_assert(library, "%s", dlerror());
    *strrchr(folder, '/') = '\0';
    snprintf(command, sizeof command, "/bin/rm -rf '%s'", folder);
    cr_assert_eq(system(command), 0);
    const kvl_pack* (*the_pack)(void);
    *(void**)&the_pack = dlsym(library, "the_pack");
    cr_assert(the_pack);
    return the_pack();
}

static int has_nvrtc(void)
{
    kvl_context_desc desc;
    kvl_context* ctx;
    const kvl__nvrtc_table* table;
    memset(&desc, 0, sizeof desc);
    desc.target = KVL_TARGET_CUDA;
    desc.arch = "sm_90";
    desc.cache_dir = "";
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    const int has = kvl__nvrtc_get(ctx, &table) == KVL_OK;
    kvl_context_destroy(ctx);
    return has;
}

// Attention over ROWS rows; rows and results are the target's memory.
static void run_cache(kvl_context* ctx, const float* host_rows, float* out, const char* from)
{
    static char text[4096];
    const uint64_t row_bytes = ROWS * DIM * sizeof(float), q_bytes = Q_HEADS * DIM * sizeof(float);
    const int device = kvl_context_has_device(ctx);
    void *rows = (void*)(uintptr_t)host_rows, *o = out;
    const int32_t num = ROWS;
    kvl_layer_desc layer;
    kvl_cache_desc desc;
    kvl_append_desc a;
    kvl_attend_desc t;
    kvl_cache* cache;
    kvl_seq seq;
    memset(&layer, 0, sizeof layer);
    memset(&desc, 0, sizeof desc);
    memset(&a, 0, sizeof a);
    memset(&t, 0, sizeof t);
    layer.num_q_heads = Q_HEADS;
    layer.num_kv_heads = KV_HEADS;
    layer.head_dim = DIM;
    layer.spec = spec;
    desc.num_layers = 1;
    desc.layers = &layer;
    cr_assert_eq(kvl_cache_create(ctx, &desc, &cache), KVL_OK, "%s", kvl_context_message(ctx));
    cr_assert_eq(kvl_seq_create(cache, &seq), KVL_OK);
    if (device) {
        cr_assert_eq(kvl_device_alloc(ctx, row_bytes, &rows), KVL_OK);
        cr_assert_eq(kvl_device_alloc(ctx, q_bytes, &o), KVL_OK);
        cr_assert_eq(kvl_device_write(ctx, rows, host_rows, row_bytes), KVL_OK);
    }
    a.num_seqs = t.num_seqs = 1;
    a.seqs = t.seqs = &seq;
    a.num_rows = &num;
    a.k.data = a.v.data = t.q.data = rows;
    t.o.data = o;
    cr_assert_eq(kvl_append(cache, &a), KVL_OK, "%s", kvl_context_message(ctx));
    cr_assert_eq(kvl_attend(cache, &t), KVL_OK, "%s", kvl_context_message(ctx));
    cr_assert_eq(kvl_cache_check(cache), KVL_OK, "%s", kvl_context_message(ctx));
    cr_assert_eq(kvl_describe(cache, text, sizeof text, NULL), KVL_OK);
    cr_assert(strstr(text, from), "%s", text);
    if (device) {
        cr_assert_eq(kvl_device_read(ctx, out, o, q_bytes), KVL_OK);
        kvl_device_free(ctx, rows, row_bytes);
        kvl_device_free(ctx, o, q_bytes);
    }
    kvl_cache_free(cache);
}

// Two parts of equal weight: lse = ln 2 of each gives (a + b) / 2 and ln 4.
static void run_merge(kvl_context* ctx)
{
    const float host[2 * DIM] = { 3.0f };
    const float lse[2] = { 0.693147181f, 0.693147181f };
    float o[DIM], joined;
    void *rows, *parts;
    cr_assert_eq(kvl_device_alloc(ctx, sizeof host, &rows), KVL_OK);
    cr_assert_eq(kvl_device_alloc(ctx, sizeof lse, &parts), KVL_OK);
    cr_assert_eq(kvl_device_write(ctx, rows, host, sizeof host), KVL_OK);
    cr_assert_eq(kvl_device_write(ctx, parts, lse, sizeof lse), KVL_OK);
    float *a = (float*)rows, *a_lse = (float*)parts;
    const kvl_merge_desc desc = { .num_rows = 1, .head_dim = DIM, .o_a = a, .lse_a = a_lse,
                                  .o_b = a + DIM, .lse_b = a_lse + 1, .o = a, .lse = a_lse };
    cr_assert_eq(kvl_merge(ctx, &desc), KVL_OK, "%s", kvl_context_message(ctx));
    cr_assert_eq(kvl_device_read(ctx, o, rows, sizeof o), KVL_OK);
    cr_assert_eq(kvl_device_read(ctx, &joined, parts, sizeof joined), KVL_OK);
    cr_assert(fabs((double)o[0] - 1.5) < 1e-6 && o[1] == 0.0f);
    cr_assert_lt(fabs((double)joined - 1.386294361), 1e-6);
    kvl_device_free(ctx, rows, sizeof host);
    kvl_device_free(ctx, parts, sizeof lse);
}

static kvl_status no_generator(kvl_context* ctx, const kvl__field* fields, int num, char** text,
                               size_t* num_bytes)
{
    (void)fields, (void)num;
    *text = NULL;
    *num_bytes = 0;
    return kvl__fail(ctx, KVL_NO_KERNEL, "no generator");
}

Test(pack_cuda, a_cache_from_a_pack, .timeout = 240)
{
    static float rows[ROWS * DIM], got[Q_HEADS * DIM], expected[Q_HEADS * DIM];
    kvl_context_desc desc;
    kvl_context *ctx, *reference;
    kvl__random random;
    if (!has_nvrtc()) cr_skip_test("no NVRTC");
    const kvl_pack* pack = make_pack();
    kvl__random_open(&random, 3, 0);
    kvl__random_normal(&random, 0, rows, ROWS * DIM);
    memset(&desc, 0, sizeof desc);
    desc.target = KVL_TARGET_REFERENCE;
    desc.cache_dir = "";
    cr_assert_eq(kvl_context_create(&desc, &reference), KVL_OK);
    run_cache(reference, rows, expected, "reference");

    sim_load("sm_90");
    desc.target = KVL_TARGET_CUDA;
    desc.packs = &pack;
    desc.num_packs = 1;
    desc.nvrtc = "/there/is/none";
    desc.log.call = say;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK, "%s", kvl_context_message(ctx));
    ctx->programs->generate = no_generator;
    run_cache(ctx, rows, got, "(pack)");
    run_merge(ctx);
    cr_assert_eq(ctx->programs->num_compiles, 0);
    cr_assert(strstr(said, "kernel pack: ") && strstr(said, "for sm_90: the driver"), "%s", said);
    double error = 0.0, length = 0.0;
    for (int i = 0; i < Q_HEADS * DIM; ++i) {
        error += pow((double)got[i] - (double)expected[i], 2.0);
        length += pow((double)expected[i], 2.0);
    }
    // What the manual says of exact = 0: the attention is by tensor cores.
    cr_assert_lt(sqrt(error / length), 1e-3);
    kvl_context_destroy(ctx);
    kvl_context_destroy(reference);
}
