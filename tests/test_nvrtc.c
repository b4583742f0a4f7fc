// test_nvrtc.c -- kernels of a device: NVRTC found and named, cubins and PTX, disk, refusals.
//
// Breaks when a library is looked for elsewhere than promised, when a key misses a part, when a
// cubin that the driver refuses is not rebuilt once, or when a failure names no template line.  A
// table of fakes plays NVRTC where the subject is what happens around it; the rest runs the real
// one and the stand-in driver of tests/ptxsim, which takes only cubins that it was told of.
// threads: kernels of a configuration are compiled by several.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "kvl_context.h"
#include "sim_library.h"

#include <sys/wait.h>

static char scratch[512], folder[600], said[KVL__MESSAGE_BYTES];
static char real_nvrtc[1024];                 // as KVLOOM_NVRTC asks for the run
static int num_said;

static void say(kvl_log_level level, const char* message, void* user)
{
    (void)user;
    if (level == KVL_LOG_INFO) return;
    __atomic_fetch_add(&num_said, 1, __ATOMIC_SEQ_CST);
    snprintf(said, sizeof said, "%s", message);
}

static void set_up(void)
{
    static const char* const variables[] = { "KVLOOM_NVRTC", "CUDA_PATH", "CUDA_HOME",
        "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "KVLOOM_CACHE_DIR" };
    if (getenv("KVLOOM_NVRTC"))
        snprintf(real_nvrtc, sizeof real_nvrtc, "%s", getenv("KVLOOM_NVRTC"));
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; ++i) unsetenv(variables[i]);
    snprintf(scratch, sizeof scratch, "%s/nvrtc-XXXXXX", KVLOOM_TEST_SCRATCH);
    cr_assert(mkdtemp(scratch), "%s: %s", scratch, strerror(errno));
    snprintf(folder, sizeof folder, "%s/cache", scratch);
}

static void run(const char* format, const char* arg)
{
    char command[2048];
    snprintf(command, sizeof command, format, arg);
    cr_assert_eq(system(command), 0, "%s", command);
}

static void tear_down(void) { run("/bin/rm -rf '%s'", scratch); }

// Makes an empty file with its folders, in scratch, where there is none.
static const char* touch(const char* name)
{
    static char path[2][1200];
    static int at;
    at = !at;
    snprintf(path[at], sizeof path[at], "%s/%s", scratch, name);
    run("mkdir -p \"$(dirname '%s')\"", path[at]);
    run("f='%s'; test -e \"$f\" || touch \"$f\"", path[at]);
    return path[at];
}

static kvl_context_desc cuda_desc(const char* arch)
{
    kvl_context_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.target = KVL_TARGET_CUDA;
    desc.arch = arch;
    desc.num_threads = 2;
    desc.cache_dir = folder;
    desc.log.call = say;
    return desc;
}

static void says(const kvl_context* ctx, const char* words)
{
    cr_assert(strstr(kvl_context_message(ctx), words), "'%s' lacks '%s'", kvl_context_message(ctx),
              words);
}

// FINDING

TestSuite(nvrtc, .init = set_up, .fini = tear_down, .timeout = 120);

static void finds(const kvl__nvrtc_places* p, int most, const char* name)
{
    char path[KVL__PATH_BYTES] = "", expected[1200];
    snprintf(expected, sizeof expected, "%s/%s", scratch, name);
    cr_assert(kvl__nvrtc_find(p, most, path), "%s", name);
    cr_assert_str_eq(path, expected);
}

// Each place beats the ones after it, and in one place the latest version that is served wins.
Test(nvrtc, places_in_order)
{
    char list[1200], venv[700], conda[700], home[700], toolkit[700];
    kvl__nvrtc_places p;
    memset(&p, 0, sizeof p);
    snprintf(venv, sizeof venv, "%s/venv", scratch);
    snprintf(conda, sizeof conda, "%s/conda", scratch);
    snprintf(home, sizeof home, "%s/home", scratch);
    snprintf(toolkit, sizeof toolkit, "%s/toolkit", scratch);
    snprintf(list, sizeof list, "relative::%s/none:%s/lib", scratch, scratch);
    p.virtual_env = venv;
    p.conda_prefix = conda;
    p.home = home;
    p.cuda_path = toolkit;
    p.library_path = list;
    touch("lib/libnvrtc.so.12");
    touch("toolkit/lib64/libnvrtc.so.13");
    touch("venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
    finds(&p, 13, "lib/libnvrtc.so.12");
    touch("lib/libnvrtc.so.13");
    finds(&p, 13, "lib/libnvrtc.so.13");
    finds(&p, 12, "lib/libnvrtc.so.12");
    p.library_path = NULL;
    finds(&p, 13, "toolkit/lib64/libnvrtc.so.13");
    p.cuda_home = toolkit;
    p.cuda_path = NULL;
    finds(&p, 13, "toolkit/lib64/libnvrtc.so.13");
}

// Where neither system folders nor a toolkit have one of that version: made up, so that they do
// not.
Test(nvrtc, wheels)
{
    char path[KVL__PATH_BYTES], prefix[700];
    touch("venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    touch("debian/lib/python3/dist-packages/nvidia/cu13/lib/libnvrtc.so.13");
    snprintf(prefix, sizeof prefix, "%s/venv", scratch);
    cr_assert(kvl__nvrtc_in_wheels(prefix, 13, path));
    cr_assert(strstr(path, "cuda_nvrtc/lib/libnvrtc.so.12"), "%s", path);
    cr_assert_not(kvl__nvrtc_in_wheels(prefix, 11, path));
    snprintf(prefix, sizeof prefix, "%s/debian", scratch);
    cr_assert(kvl__nvrtc_in_wheels(prefix, 13, path));
    cr_assert_not(kvl__nvrtc_in_wheels(prefix, 12, path));
    cr_assert_not(kvl__nvrtc_in_wheels(scratch, 13, path));
}

Test(nvrtc, asked_for_is_a_file_or_a_folder_and_nothing_else)
{
    kvl__nvrtc_places p;
    char path[KVL__PATH_BYTES], asked[1200];
    memset(&p, 0, sizeof p);
    p.asked = asked;
    snprintf(asked, sizeof asked, "%s", touch("odd/name.so"));
    finds(&p, 13, "odd/name.so");
    snprintf(asked, sizeof asked, "%s/folder", scratch);
    touch("folder/libnvrtc.so.12");
    finds(&p, 13, "folder/libnvrtc.so.12");
    touch("folder/lib64/libnvrtc.so.13");
    finds(&p, 13, "folder/libnvrtc.so.12");
    cr_assert_eq(unlink(touch("folder/libnvrtc.so.12")), 0);
    finds(&p, 13, "folder/lib64/libnvrtc.so.13");
    snprintf(asked, sizeof asked, "%s/target", scratch);
    touch("target/nvidia/cu13/lib/libnvrtc.so.13");
    finds(&p, 13, "target/nvidia/cu13/lib/libnvrtc.so.13");
    p.library_path = folder;
    snprintf(asked, sizeof asked, "%s/nowhere", scratch);
    cr_assert_not(kvl__nvrtc_find(&p, 13, path));
}

// FAKES: what the compiler does is counted, and what it makes says what it was made from.

static struct {
    int compiles, fails, major, salt;
    char options[8][64];
    int num_options;
} fake;

static int fake_version(int* major, int* minor) { return *major = fake.major, *minor = 2, 0; }
static int fake_num_archs(int* count) { return *count = 3, 0; }
static int fake_archs(int* archs) { return archs[0] = 75, archs[1] = 90, archs[2] = 100, 0; }

static int fake_create(kvl__nvrtc_program* program, const char* text, const char* name, int n,
                       const char* const* headers, const char* const* names)
{
    (void)name, (void)n, (void)headers, (void)names;
    *program = (kvl__nvrtc_program)(void*)strdup(text);
    return 0;
}

static int fake_destroy(kvl__nvrtc_program* program)
{
    free((void*)*program);
    *program = NULL;
    return 0;
}

static int fake_compile(kvl__nvrtc_program program, int num_options, const char* const* options)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    (void)program;
    pthread_mutex_lock(&lock);
    ++fake.compiles;
    fake.num_options = num_options;
    for (int i = 0; i < num_options && i < 8; ++i)
        snprintf(fake.options[i], sizeof fake.options[i], "%s", options[i]);
    pthread_mutex_unlock(&lock);
    return fake.fails;
}

static const char fake_log_text[] =
    "templates/cuda/attend_splits.cu(3): warning #1: odd\n"
    "templates/cuda/attend_splits.cu(12): error: identifier \"x\" is undefined\n"
    "1 error detected\n";

static int fake_log_bytes(kvl__nvrtc_program p, size_t* n)
{
    (void)p;
    return *n = sizeof fake_log_text, 0;
}

static int fake_log(kvl__nvrtc_program p, char* log)
{
    (void)p;
    memcpy(log, fake_log_text, sizeof fake_log_text);
    return 0;
}

static int fake_bytes(kvl__nvrtc_program p, size_t* n)
{
    (void)p;
    return *n = 200, 0;
}

static int fake_cubin(kvl__nvrtc_program p, char* out)
{
    memset(out, 0, 200);
    snprintf(out, 200, "\177ELF%d %s", fake.salt, (const char*)p);
    return 0;
}

static int fake_ptx(kvl__nvrtc_program p, char* out)
{
    memset(out, 0, 200);
    snprintf(out, 200, ".version 1.0 %s", (const char*)p);
    return 0;
}

static void use_fake_nvrtc(kvl_context* ctx)
{
    kvl__nvrtc_table* t = &ctx->nvrtc->table;
    t->version = fake_version;
    t->num_archs = fake_num_archs;
    t->archs = fake_archs;
    t->create = fake_create;
    t->destroy = fake_destroy;
    t->compile = fake_compile;
    t->log_bytes = fake_log_bytes;
    t->log = fake_log;
    t->cubin_bytes = t->ptx_bytes = fake_bytes;
    t->cubin = fake_cubin;
    t->ptx = fake_ptx;
    ctx->nvrtc->is_open = 1;
}

// The configuration itself is the text.
static kvl_status fake_generate(kvl_context* ctx, const kvl__field* fields, int num_fields,
                                char** text, size_t* text_bytes)
{
    *text_bytes = num_fields ? strlen(fields[0].text) : 0;
    *text = (char*)kvl__alloc(ctx, *text_bytes + 1);
    if (!*text) return kvl__fail(ctx, KVL_NO_MEMORY, "fake generator");
    memcpy(*text, fields[0].text, *text_bytes + 1);
    return KVL_OK;
}

static kvl__kernel_request request_of(const kvl__field* field)
{
    kvl__kernel_request r;
    memset(&r, 0, sizeof r);
    r.name = "test_kernel";
    r.entry = "test_kernel";
    r.fields = field;
    r.num_fields = 1;
    return r;
}

static kvl_status ask(kvl_context* ctx, const char* text, const char** where)
{
    kvl__field field = { "text", text, 0 };
    kvl__kernel_request r = request_of(&field);
    const kvl_status status = kvl__kernels_get(ctx, &r, 1);
    if (where) *where = r.where;
    return status;
}

// A context for an architecture, without a device and with a compiler that is not real.
static kvl_context* offline(const char* arch)
{
    kvl_context_desc desc = cuda_desc(arch);
    kvl_context* ctx;
    desc.nvrtc = touch("libnvrtc.so.12");
    if (!fake.major) fake.major = 12;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK, "%s", kvl_context_message(ctx));
    use_fake_nvrtc(ctx);
    ctx->programs->generate = fake_generate;
    return ctx;
}

static int count_files(const char* suffix)
{
    char command[1500], text[32] = "";
    snprintf(command, sizeof command, "find '%s' -name '*%s' | wc -l", folder, suffix);
    FILE* pipe = popen(command, "r");
    if (!pipe || !fgets(text, sizeof text, pipe)) return -1;
    pclose(pipe);
    return atoi(text);
}

static int has_option(const char* option)
{
    for (int i = 0; i < fake.num_options; ++i)
        if (strcmp(fake.options[i], option) == 0) return 1;
    return 0;
}

// Cubins where NVRTC knows the architecture, else PTX for the latest that it knows.
Test(nvrtc, architectures)
{
    const char* where;
    kvl_context* ctx = offline("sm_90");
    cr_assert_eq(ask(ctx, "a", &where), KVL_OK, "%s", kvl_context_message(ctx));
    cr_assert_str_eq(where, "compiled");
    cr_assert(has_option("-arch=sm_90") && has_option("--fmad=false"));
    kvl_context_destroy(ctx);
    cr_assert_eq(count_files(".cubin"), 1);
    cr_assert_eq(count_files(".cu"), 1);
    ctx = offline("sm_103");
    cr_assert_eq(ask(ctx, "a", &where), KVL_OK);
    cr_assert(has_option("-arch=compute_100"));
    kvl_context_destroy(ctx);
    cr_assert_eq(count_files(".ptx"), 1);
    ctx = offline("sm_89");
    cr_assert_eq(ask(ctx, "a", &where), KVL_OK);
    cr_assert(has_option("-arch=compute_75"));
    kvl_context_destroy(ctx);
    ctx = offline("compute_90");
    cr_assert_eq(ask(ctx, "a", &where), KVL_OK);
    cr_assert(has_option("-arch=compute_90"));
    kvl_context_destroy(ctx);
    cr_assert_eq(fake.compiles, 4);
    ctx = offline("sm_90");
    cr_assert_eq(ask(ctx, "a", &where), KVL_OK);
    cr_assert_str_eq(where, "disk");
    kvl_context_destroy(ctx);
    cr_assert_eq(fake.compiles, 4);
    cr_assert_eq(num_said, 0, "%s", said);
}

// What CUDA 12 calls sm_101 is Jetson Thor, sm_110 from CUDA 13 on: PTX for it is for no other.
Test(nvrtc, an_architecture_under_two_names)
{
    static const char identity[] = "NVRTC 12.9, 1 bytes; sm 75 90 100 101 120";
    static const struct { const char *device, *arch; } cases[] = {
        { "sm_103", "compute_100" }, { "sm_101", "sm_101" }, { "sm_110", "compute_101" },
        { "sm_121", "compute_120" }, { "sm_100", "sm_100" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        kvl_context* ctx = offline(cases[i].device);
        char arch[16];
        cr_assert_eq(kvl__cuda_arch(ctx, identity, arch, sizeof arch), KVL_OK);
        cr_assert_str_eq(arch, cases[i].arch, "%s", cases[i].device);
        kvl_context_destroy(ctx);
    }
}

// By cuda.h: 221 is no compiler of PTX, 222 PTX of a later toolkit, 223 a compiler that is switched
// off; 225 is about calls that no kernel here makes, and out of memory is not about the image.
Test(nvrtc, results_that_refuse_an_image)
{
    static const int refusals[] = { 200, 209, 218, 221, 222, 223, 300 }, others[] = { 0, 2, 225 };
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; ++i)
        cr_assert(kvl__cu_is_refusal(refusals[i]), "%d", refusals[i]);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i)
        cr_assert(!kvl__cu_is_refusal(others[i]), "%d", others[i]);
}

Test(nvrtc, older_than_every_architecture)
{
    kvl_context* ctx = offline("sm_75");
    char arch[16];
    cr_assert_eq(kvl__cuda_arch(ctx, "NVRTC 14.0, 1 bytes; sm 80 90", arch, 16), KVL_UNSUPPORTED);
    says(ctx, "sm_75: this NVRTC knows sm_80 and later");
    kvl_context_destroy(ctx);
}

// Text, architecture and version are the key, each alone.
Test(nvrtc, keys)
{
    kvl_context* ctx = offline("sm_90");
    cr_assert_eq(ask(ctx, "a", NULL), KVL_OK);
    cr_assert_eq(ask(ctx, "b", NULL), KVL_OK);
    cr_assert_eq(ask(ctx, "a", NULL), KVL_OK);
    kvl_context_destroy(ctx);
    cr_assert_eq(fake.compiles, 2);
    fake.major = 13;                             // in a file of another stamp
    run("sleep 0.01; rm '%s'", touch("libnvrtc.so.12"));
    ctx = offline("sm_90");
    cr_assert_eq(ask(ctx, "a", NULL), KVL_OK, "%s", kvl_context_message(ctx));
    kvl_context_destroy(ctx);
    cr_assert_eq(fake.compiles, 3);
    cr_assert_eq(count_files(".cubin"), 3);
}

Test(nvrtc, of_another_major_version)
{
    fake.major = 11;
    kvl_context* ctx = offline("sm_90");
    cr_assert_eq(ask(ctx, "a", NULL), KVL_COMPILE);
    says(ctx, "libnvrtc.so.12 is of CUDA 11: must be 12 to 13");
    kvl_context_destroy(ctx);
    fake.major = 14;
    ctx = offline("sm_90");
    cr_assert_eq(ask(ctx, "a", NULL), KVL_COMPILE);
    says(ctx, "is of CUDA 11: must be");         // remembered by the file's stamp
    kvl_context_destroy(ctx);
}

Test(nvrtc, a_kernel_that_does_not_compile)
{
    kvl_context* ctx = offline("sm_90");
    fake.fails = 6;
    cr_assert_eq(ask(ctx, "a", NULL), KVL_COMPILE);
    says(ctx, "test_kernel: templates/cuda/attend_splits.cu(12): error: identifier \"x\" is "
              "undefined (NVRTC, result 6)");
    cr_assert_str_eq(kvl_context_log(ctx), fake_log_text);
    cr_assert_eq(count_files(".cubin"), 0);
    fake.fails = 0;
    cr_assert_eq(ask(ctx, "a", NULL), KVL_OK);   // a failure is not remembered
    kvl_context_destroy(ctx);
}

// Not there, not a library, a library of something else: found out when it is needed.
Test(nvrtc, missing)
{
    kvl_context_desc desc = cuda_desc("sm_90");
    kvl_context* ctx;
    char path[700];
    snprintf(path, sizeof path, "%s/none", scratch);
    desc.nvrtc = path;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    ctx->programs->generate = fake_generate;
    cr_assert_eq(ask(ctx, "a", NULL), KVL_COMPILE);
    says(ctx, "nvrtc = ");
    says(ctx, "none: no libnvrtc.so of CUDA 12 to 13 there");
    kvl_context_destroy(ctx);
    setenv("KVLOOM_NVRTC", touch("libnvrtc.so.13"), 1);
    desc.nvrtc = NULL;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    ctx->programs->generate = fake_generate;
    cr_assert_eq(ask(ctx, "a", NULL), KVL_COMPILE);
    says(ctx, "NVRTC cannot be opened");
    kvl_context_destroy(ctx);
    run("echo 'int nvrtcVersion(void);int nvrtcVersion(void){return 0;}' | cc -shared -fPIC -x c - "
        "-o '%s'", getenv("KVLOOM_NVRTC"));
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    ctx->programs->generate = fake_generate;
    cr_assert_eq(ask(ctx, "a", NULL), KVL_COMPILE);
    says(ctx, "it lacks nvrtcGetNumSupportedArchs");
    kvl_context_destroy(ctx);
}

Test(nvrtc, bad_architectures)
{
    static const char* const bad[] = { "90", "sm_", "sm_90a", "sm_70", "sm_1000", "compute_7" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        const kvl_context_desc desc = cuda_desc(bad[i]);
        kvl_context* ctx;
        cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_BAD_ARGUMENT, "%s", bad[i]);
        says(ctx, "must be sm_75 or later");
        kvl_context_destroy(ctx);
    }
}

// Kernels asked for together: each is made once, and one that fails does not hide the others.
Test(nvrtc, several_at_once_by_threads)
{
    kvl_context* ctx = offline("sm_90");
    kvl__field fields[6] = { { "text", "a", 0 }, { "text", "b", 0 }, { "text", "a", 0 },
                             { "text", "c", 0 }, { "text", "b", 0 }, { "text", "d", 0 } };
    kvl__kernel_request requests[6];
    for (int i = 0; i < 6; ++i) requests[i] = request_of(&fields[i]);
    cr_assert_eq(kvl__kernels_get(ctx, requests, 6), KVL_OK, "%s", kvl_context_message(ctx));
    cr_assert_eq(fake.compiles, 4);
    for (int i = 0; i < 6; ++i) cr_assert_null(requests[i].function);
    fake.fails = 6;
    fields[0].text = "e";
    cr_assert_eq(kvl__kernels_get(ctx, requests, 6), KVL_COMPILE);
    says(ctx, "attend_splits.cu(12)");
    kvl_context_destroy(ctx);
}

// THE REAL COMPILER, THE STAND-IN DRIVER

TestSuite(jit_cuda, .init = set_up, .fini = tear_down, .timeout = 240);

static const char add_cu[] =
    "#line 7 \"templates/cuda/test_kernel.cu\"\n"
    "extern \"C\" __global__ void test_kernel(int* words, int value)\n"
    "{\n"
    "    words[threadIdx.x] += value;\n"
    "}\n";

static const char broken_cu[] =
    "#line 7 \"templates/cuda/test_kernel.cu\"\n"
    "extern \"C\" __global__ void test_kernel(int* words)\n"
    "{\n"
    "    words[0] = undefined_name;\n"
    "}\n";

static kvl_context* sim_context(const char* arch)
{
    kvl_context_desc desc = cuda_desc(NULL);
    kvl_context* ctx;
    desc.nvrtc = real_nvrtc;
    sim_load(arch);
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK, "%s", kvl_context_message(ctx));
    ctx->programs->generate = fake_generate;
    if (!ctx->nvrtc->path) cr_skip_test("no NVRTC");
    return ctx;
}

// Runs test_kernel over 32 words.
static void run_add(kvl_context* ctx, kvl__cu_function add)
{
    const kvl__driver* d = &ctx->gpu->driver;
    int32_t words[32], value = 42;
    kvl__cu_address at;
    void* params[2];
    for (int i = 0; i < 32; ++i) words[i] = i;
    params[0] = &at;
    params[1] = &value;
    cr_assert_eq(kvl__gpu_enter(ctx), KVL_OK);
    cr_assert_eq(d->mem_alloc(&at, sizeof words), 0);
    cr_assert_eq(d->copy_to_device(at, words, sizeof words), 0);
    cr_assert_eq(d->launch(add, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL), 0);
    cr_assert_eq(d->copy_to_host(words, at, sizeof words), 0);
    for (int i = 0; i < 32; ++i) cr_assert_eq(words[i], i + 42);
    d->mem_free(at);
    kvl__gpu_leave(ctx);
}

static kvl__kernel_request get_add(kvl_context* ctx, const char* text)
{
    kvl__field field = { "text", text, 0 };
    kvl__kernel_request r = request_of(&field);
    cr_assert_eq(kvl__kernels_get(ctx, &r, 1), KVL_OK, "%s", kvl_context_message(ctx));
    r.fields = NULL;
    return r;
}

// The stand-in refuses cubins: PTX takes their place, said once, and is found on disk.
Test(jit_cuda, a_driver_that_refuses_cubins_gets_ptx)
{
    kvl_context* ctx = sim_context("sm_90");
    kvl__kernel_request r = get_add(ctx, add_cu);
    cr_assert_str_eq(r.where, "compiled");
    run_add(ctx, r.function);
    cr_assert_eq(num_said, 1);
    cr_assert(strstr(said, "CUDA_ERROR_NO_BINARY_FOR_GPU (209)") && strstr(said, "as PTX"), "%s",
              said);
    cr_assert_eq(ctx->programs->num_compiles, 2);
    kvl__kernel_request again = get_add(ctx, add_cu);
    cr_assert_str_eq(again.where, "memory");
    cr_assert_eq(again.function, r.function);
    char other[400];
    snprintf(other, sizeof other, "// other\n%s", add_cu);
    r = get_add(ctx, other);
    cr_assert_eq(ctx->programs->num_compiles, 3);
    cr_assert_eq(num_said, 1);
    kvl_context_destroy(ctx);
    cr_assert_eq(count_files(".ptx"), 2);
}

// An architecture that NVRTC does not know: PTX at once, and nothing is said.
Test(jit_cuda, a_newer_architecture_gets_ptx)
{
    kvl_context* ctx = sim_context("sm_130");
    const kvl__kernel_request r = get_add(ctx, add_cu);
    run_add(ctx, r.function);
    cr_assert_eq(ctx->programs->num_compiles, 1);
    cr_assert_eq(num_said, 0);
    kvl_context_destroy(ctx);
    ctx = sim_context("sm_130");
    const kvl__kernel_request warm = get_add(ctx, add_cu);
    cr_assert_str_eq(warm.where, "disk");
    cr_assert_eq(ctx->programs->num_compiles, 0);
    cr_assert_eq(ctx->nvrtc->is_open, 0);        // a warm start opens no compiler
    run_add(ctx, warm.function);
    kvl_context_destroy(ctx);
}

static const char add_ptx[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry test_kernel(.param .u64 words, .param .u32 value) {\n"
    "  .reg .b64 %rd<4>; .reg .b32 %r<4>;\n"
    "  ld.param.u64 %rd1, [words]; ld.param.u32 %r1, [value]; mov.u32 %r2, %tid.x;\n"
    "  mul.wide.u32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2;\n"
    "  ld.global.u32 %r3, [%rd3]; add.s32 %r3, %r3, %r1; st.global.u32 [%rd3], %r3; ret; }\n";

static kvl_context* fake_on_sim(void)
{
    kvl_context_desc desc = cuda_desc(NULL);
    kvl_context* ctx;
    sim_load("sm_90");
    desc.nvrtc = touch("libnvrtc.so.13");
    fake.major = 13;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK, "%s", kvl_context_message(ctx));
    use_fake_nvrtc(ctx);
    ctx->programs->generate = fake_generate;
    return ctx;
}

// A cubin on disk that the driver refuses is rebuilt once; the one that it takes is found later,
// and no compiler is opened for it.
Test(jit_cuda, a_cubin_on_disk_that_is_refused)
{
    void (*known)(const void*, size_t, const char*);
    char image[200] = "";
    fake.salt = 1;
    kvl_context* ctx = fake_on_sim();
    cr_assert_eq(ask(ctx, "a", NULL), KVL_COMPILE);
    cr_assert_eq(fake.compiles, 2);              // a cubin and PTX: the driver takes neither
    kvl_context_destroy(ctx);
    cr_assert_eq(count_files(".cubin"), 1);

    fake.salt = 2;
    fake_cubin((kvl__nvrtc_program)(void*)"a", image);
    *(void**)&known = dlsym(sim_load("sm_90"), "ptxsim_register");
    known(image, sizeof image, add_ptx);
    num_said = 0;
    ctx = fake_on_sim();
    kvl__kernel_request r = get_add(ctx, "a");
    cr_assert_str_eq(r.where, "compiled");
    cr_assert_eq(fake.compiles, 3);
    cr_assert_geq(num_said, 1);
    cr_assert(strstr(said, "kernel cache: ") && strstr(said, "refuses it"), "%s", said);
    cr_assert_eq(ctx->gpu->takes_ptx, 0);
    run_add(ctx, r.function);
    kvl_context_destroy(ctx);

    num_said = 0;
    ctx = fake_on_sim();
    r = get_add(ctx, "a");
    cr_assert_str_eq(r.where, "disk");
    cr_assert_eq(fake.compiles, 3);
    cr_assert_eq(num_said, 0, "%s", said);
    run_add(ctx, r.function);
    kvl_context_destroy(ctx);
}

// Neither cubin nor PTX is taken: one error, and the driver's own words.
Test(jit_cuda, a_driver_that_takes_nothing)
{
    setenv("PTXSIM_ACCEPT", "none", 1);
    kvl_context* ctx = sim_context("sm_90");
    cr_assert_eq(ask(ctx, add_cu, NULL), KVL_COMPILE);
    says(ctx, "the compiled program cannot be loaded: the driver (CUDA 13.0) refuses it: "
              "CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)");
    cr_assert_eq(ctx->programs->num_compiles, 2);
    cr_assert_eq(ask(ctx, add_cu, NULL), KVL_COMPILE);
    kvl_context_destroy(ctx);
}

// A driver of CUDA 12 beside an NVRTC of CUDA 13: the latter is not used.
Test(jit_cuda, nvrtc_is_no_newer_than_the_driver)
{
    setenv("PTXSIM_DRIVER", "12040", 1);
    kvl_context_desc desc = cuda_desc(NULL);
    kvl_context* ctx;
    sim_load("sm_90");
    desc.nvrtc = touch("libnvrtc.so.13");
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    use_fake_nvrtc(ctx);
    fake.major = 13;
    ctx->programs->generate = fake_generate;
    cr_assert_eq(ask(ctx, "a", NULL), KVL_COMPILE);
    says(ctx, "libnvrtc.so.13 is of CUDA 13: must be 12 to 12, which the driver serves");
    kvl_context_destroy(ctx);
}

Test(jit_cuda, an_error_names_the_template)
{
    kvl_context* ctx = sim_context("sm_90");
    cr_assert_eq(ask(ctx, broken_cu, NULL), KVL_COMPILE);
    says(ctx, "templates/cuda/test_kernel.cu(9): error: identifier \"undefined_name\" is "
              "undefined");
    cr_assert(strstr(kvl_context_log(ctx), "1 error detected"), "%s", kvl_context_log(ctx));
    kvl_context_destroy(ctx);
}

Test(jit_cuda, a_kernel_that_is_not_in_the_program)
{
    kvl_context* ctx = sim_context("sm_90");
    kvl__field field = { "text", add_cu, 0 };
    kvl__kernel_request r = request_of(&field);
    r.entry = "other_kernel";
    cr_assert_eq(kvl__kernels_get(ctx, &r, 1), KVL_GENERATE);
    says(ctx, "no kernel of the name other_kernel");
    kvl_context_destroy(ctx);
}

// Every architecture of the product, as a cubin, without a device.
Test(jit_cuda, every_architecture_compiles)
{
    static const char* const archs[] = { "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90",
                                         "sm_100", "sm_103", "sm_110", "sm_120", "sm_121" };
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; ++i) {
        kvl_context_desc desc = cuda_desc(archs[i]);
        kvl_context* ctx;
        desc.nvrtc = real_nvrtc;
        cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK, "%s", kvl_context_message(ctx));
        ctx->programs->generate = fake_generate;
        if (!ctx->nvrtc->path) cr_skip_test("no NVRTC");
        cr_assert_eq(ask(ctx, add_cu, NULL), KVL_OK, "%s", kvl_context_message(ctx));
        kvl_context_destroy(ctx);
    }
    cr_assert_eq(count_files(".cubin") + count_files(".ptx"), 11);
}
