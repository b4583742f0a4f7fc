// test_driver.c -- the door to the CUDA driver: what is missing, which device, whose context.
//
// Breaks when a missing piece gets no clear status, when the caller's current context changes, or
// when a function of the table has other arguments than the library's.  A table of fakes plays the
// drivers that this machine does not have; the rest runs on the stand-in of tests/ptxsim.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "kvl_context.h"
#include "sim_library.h"

#include <sys/wait.h>

static char said[8][KVL__MESSAGE_BYTES];
static int num_said;

static void say(kvl_log_level level, const char* message, void* user)
{
    (void)user;
    if (level != KVL_LOG_INFO && num_said < 8)
        snprintf(said[num_said++], KVL__MESSAGE_BYTES, "%s", message);
}

static kvl_context_desc cuda_desc(int device)
{
    kvl_context_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.target = KVL_TARGET_CUDA;
    desc.device = device;
    desc.num_threads = 1;
    desc.cache_dir = "";
    desc.log.call = say;
    return desc;
}

// A context without a device, for tables of fakes.
static kvl_context* plain_context(void)
{
    kvl_context_desc desc = cuda_desc(0);
    kvl_context* ctx;
    desc.target = KVL_TARGET_REFERENCE;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK, "%s", kvl_context_message(ctx));
    return ctx;
}

static void says(const kvl_context* ctx, const char* words)
{
    cr_assert(strstr(kvl_context_message(ctx), words), "'%s' lacks '%s'", kvl_context_message(ctx),
              words);
}

// FAKES: a driver of two devices

static struct {
    int init, version, count, major, retain, push;
    int retained, pushed;
} fake;

static int fake_init(unsigned flags) { return flags ? 1 : fake.init; }
static int fake_version(int* version) { return *version = fake.version, 0; }
static int fake_count(int* count) { return *count = fake.count, 0; }
static int fake_device(int* device, int ordinal) { return *device = 40 + ordinal, 0; }
static int fake_error_name(int error, const char** text)
{
    return *text = error == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : NULL, *text ? 0 : 1;
}
static int fake_error_string(int error, const char** text)
{
    return *text = error == 719 ? "unspecified launch failure" : NULL, *text ? 0 : 1;
}

static int fake_name(char* name, int size, int device)
{
    snprintf(name, (size_t)size, "Fake %d", device);
    return 0;
}

static int fake_attribute(int* value, int attribute, int device)
{
    (void)device;
    *value = attribute == 75 ? fake.major : attribute == 76 ? 6 : attribute == 16 ? 12 : 99;
    return 0;
}

static int fake_retain(kvl__cu_context* context, int device)
{
    if (fake.retain) return fake.retain;
    cr_assert_eq(device, 41);
    *context = (kvl__cu_context)(void*)&fake;
    ++fake.retained;
    return 0;
}

static int fake_release(int device)
{
    cr_assert_eq(device, 41);
    --fake.retained;
    return 0;
}

static int fake_push(kvl__cu_context context)
{
    if (fake.push) return fake.push;
    cr_assert_eq((void*)context, (void*)&fake);
    ++fake.pushed;
    return 0;
}

static int fake_pop(kvl__cu_context* context)
{
    *context = NULL;
    --fake.pushed;
    return 0;
}

static kvl__driver fake_driver(void)
{
    kvl__driver d;
    memset(&d, 0, sizeof d);
    memset(&fake, 0, sizeof fake);
    fake.version = 12040;
    fake.count = 2;
    fake.major = 8;
    d.init = fake_init;
    d.get_version = fake_version;
    d.get_error_name = fake_error_name;
    d.get_error_string = fake_error_string;
    d.device_get_count = fake_count;
    d.device_get = fake_device;
    d.device_get_name = fake_name;
    d.device_get_attribute = fake_attribute;
    d.primary_retain = fake_retain;
    d.primary_release = fake_release;
    d.ctx_push = fake_push;
    d.ctx_pop = fake_pop;
    return d;
}

Test(driver, a_fake_table_gives_a_device)
{
    const kvl__driver d = fake_driver();
    kvl_context* ctx = plain_context();
    cr_assert_eq(kvl__gpu_create(ctx, 1, &d), KVL_OK, "%s", kvl_context_message(ctx));
    cr_assert_eq(ctx->gpu->sm, 86);
    cr_assert_eq(ctx->gpu->num_sms, 12);
    cr_assert_eq(ctx->gpu->driver.version, 12040);
    cr_assert_str_eq(ctx->gpu->name, "Fake 41");
    cr_assert_eq(fake.retained, 1);
    cr_assert_eq(kvl__gpu_enter(ctx), KVL_OK);
    cr_assert_eq(fake.pushed, 1);
    kvl__gpu_leave(ctx);
    cr_assert_eq(fake.pushed, 0);
    kvl_context_destroy(ctx);
    cr_assert_eq(fake.retained, 0);
}

Test(driver, what_is_missing_has_a_status_and_a_message)
{
    static const struct {
        int init, version, count, major, retain, ordinal;
        kvl_status status;
        const char* words;
    } cases[] = {
        { 0, 11080, 2, 8, 0, 1, KVL_NO_DRIVER, "serves CUDA 11.8, needed is 12.0 or later" },
        { 100, 13000, 0, 8, 0, 1, KVL_NO_DRIVER, "no CUDA device: the driver (CUDA 13.0)" },
        { 3, 13000, 2, 8, 0, 1, KVL_NO_DRIVER, "forked" },
        { 804, 13000, 2, 8, 0, 1, KVL_NO_DRIVER, "starting the CUDA driver: an error without a "
          "name (804)" },
        { 0, 13000, 0, 8, 0, 0, KVL_NO_DRIVER, "no CUDA device" },
        { 0, 13000, 2, 8, 0, 2, KVL_BAD_ARGUMENT, "device = 2: must be 0 to 1" },
        { 0, 13000, 2, 6, 0, 1, KVL_UNSUPPORTED, "device 1, Fake 41, is sm_66: must be sm_75" },
        { 0, 13000, 2, 8, 2, 1, KVL_NO_MEMORY, "device 1 is out of memory" },
        { 0, 13000, 2, 8, 719, 1, KVL_DEVICE, "CUDA_ERROR_LAUNCH_FAILED (719): unspecified" },
    };
    const kvl__driver d = fake_driver();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        kvl_context* ctx = plain_context();
        fake.init = cases[i].init;
        fake.version = cases[i].version;
        fake.count = cases[i].count;
        fake.major = cases[i].major;
        fake.retain = cases[i].retain;
        cr_assert_eq(kvl__gpu_create(ctx, cases[i].ordinal, &d), cases[i].status, "case %zu: %s", i,
                     kvl_context_message(ctx));
        says(ctx, cases[i].words);
        cr_assert_null(ctx->gpu);
        cr_assert_eq(fake.retained, 0);
        kvl_context_destroy(ctx);
    }
}

Test(driver, a_lost_context_stays_lost)
{
    const kvl__driver d = fake_driver();
    kvl_context* ctx = plain_context();
    cr_assert_eq(kvl__gpu_create(ctx, 1, &d), KVL_OK);
    cr_assert_eq(kvl__cu_check(ctx, 0, "nothing"), KVL_OK);
    cr_assert_eq(kvl__cu_check(ctx, 2, "allocating %d bytes", 77), KVL_NO_MEMORY);
    says(ctx, "allocating 77 bytes: device 1 is out of memory");
    cr_assert_eq(ctx->gpu->lost, 0);
    cr_assert_eq(kvl__gpu_enter(ctx), KVL_OK);
    kvl__gpu_leave(ctx);
    cr_assert_eq(kvl__cu_check(ctx, 719, "attending"), KVL_DEVICE);
    says(ctx, "attending: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure; the device's "
              "context is lost");
    cr_assert_eq(kvl__gpu_enter(ctx), KVL_DEVICE);
    says(ctx, "device 1: its context is lost");
    cr_assert_eq(fake.pushed, 0);
    kvl_context_destroy(ctx);
    cr_assert_eq(fake.retained, 0);
}

Test(driver, a_context_without_a_device_enters_none)
{
    kvl_context* ctx = plain_context();
    cr_assert_eq(kvl__gpu_enter(ctx), KVL_NO_DRIVER);
    kvl_context_destroy(ctx);
}

// Not on a machine that has a driver.
Test(driver, without_a_library)
{
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) cr_skip_test("there is a driver");
    const kvl_context_desc desc = cuda_desc(0);
    kvl_context* ctx;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_NO_DRIVER);
    says(ctx, "no CUDA driver");
    says(ctx, "libcuda.so.1");
    kvl_context_destroy(ctx);
}

// A library that is no driver: the message names what it lacks.
Test(driver, a_library_that_lacks_a_function)
{
    char path[1024], command[2600];
    snprintf(path, sizeof path, "%s/driver-%d.so", KVLOOM_TEST_SCRATCH, (int)getpid());
    snprintf(command, sizeof command,
             "echo 'int cuInit(unsigned f) { return (int)f; }' | cc -shared -fPIC -x c - -o '%s' "
             "-Wl,-soname,libcuda.so.1", path);
    cr_assert_eq(system(command), 0);
    cr_assert(dlopen(path, RTLD_NOW | RTLD_LOCAL), "%s", dlerror());
    unlink(path);
    const kvl_context_desc desc = cuda_desc(0);
    kvl_context* ctx;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_NO_DRIVER);
    says(ctx, "the CUDA driver is too old: it lacks cuDriverGetVersion");
    kvl_context_destroy(ctx);
}

// ON THE STAND-IN

static kvl_context* sim_context(int device)
{
    const kvl_context_desc desc = cuda_desc(device);
    kvl_context* ctx;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK, "%s", kvl_context_message(ctx));
    return ctx;
}

static kvl__cu_context current_of(const kvl__driver* d)
{
    kvl__cu_context now = NULL;
    d->ctx_get_current(&now);
    return now;
}

Test(driver, the_callers_context_is_left_as_found)
{
    setenv("PTXSIM_DEVICES", "2", 1);
    sim_load("sm_86");
    kvl_context *a = sim_context(0), *b = sim_context(1), *again = sim_context(0);
    const kvl__driver* d = &a->gpu->driver;
    cr_assert_eq(a->gpu->sm, 86);
    cr_assert_null(current_of(d));
    cr_assert_eq(kvl__gpu_enter(a), KVL_OK);
    cr_assert_eq(current_of(d), a->gpu->primary);
    cr_assert_eq(kvl__gpu_enter(b), KVL_OK);
    cr_assert_eq(current_of(d), b->gpu->primary);
    cr_assert_neq(a->gpu->primary, b->gpu->primary);
    cr_assert_eq(a->gpu->primary, again->gpu->primary);
    kvl__gpu_leave(b);
    cr_assert_eq(current_of(d), a->gpu->primary);
    kvl__gpu_leave(a);
    cr_assert_null(current_of(d));
    kvl_context_destroy(again);
    cr_assert_eq(kvl__gpu_enter(a), KVL_OK);      // still retained by a
    kvl__gpu_leave(a);
    kvl_context_destroy(b);
    kvl_context_destroy(a);
}

Test(driver, a_device_that_is_not_there)
{
    sim_load("sm_90");
    const kvl_context_desc desc = cuda_desc(3);
    kvl_context* ctx;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_BAD_ARGUMENT);
    says(ctx, "device = 3: must be 0 to 0");
    kvl_context_destroy(ctx);
}

Test(driver, no_device_at_all)
{
    setenv("PTXSIM_DEVICES", "0", 1);
    sim_load("sm_90");
    const kvl_context_desc desc = cuda_desc(0);
    kvl_context* ctx;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_NO_DRIVER);
    says(ctx, "no CUDA device");
    kvl_context_destroy(ctx);
}

// The child of a process that uses the driver: refused without touching it, and a context of its
// own does not start either.
Test(driver, after_fork)
{
    sim_load("sm_90");
    kvl_context* ctx = sim_context(0);
    const pid_t child = fork();
    if (child == 0) {
        kvl_context* own;
        const kvl_context_desc desc = cuda_desc(0);
        int ok = kvl__gpu_enter(ctx) == KVL_BAD_ARGUMENT
            && strstr(kvl_context_message(ctx), "after fork()");
        ok = ok && kvl_context_create(&desc, &own) == KVL_NO_DRIVER
            && strstr(kvl_context_message(own), "forked");
        _exit(ok ? 0 : 1);
    }
    int state = 1;
    waitpid(child, &state, 0);
    cr_assert_eq(state, 0);
    cr_assert_eq(kvl__gpu_enter(ctx), KVL_OK);
    kvl__gpu_leave(ctx);
    kvl_context_destroy(ctx);
}

// Adds 1000 * ctaid + value to each word of its thread, in PTX written by hand.
static const char add_ptx[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry add(.param .u64 words, .param .u32 value) {\n"
    "  .reg .b64 %rd<4>; .reg .b32 %r<8>;\n"
    "  ld.param.u64 %rd1, [words]; ld.param.u32 %r1, [value];\n"
    "  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n"
    "  mad.lo.s32 %r5, %r2, %r3, %r4; mul.wide.u32 %rd2, %r5, 4; add.s64 %rd3, %rd1, %rd2;\n"
    "  ld.global.u32 %r6, [%rd3]; mad.lo.s32 %r6, %r2, 1000, %r6; add.s32 %r6, %r6, %r1;\n"
    "  st.global.u32 [%rd3], %r6; ret; }\n";

static void step(const kvl__driver* d, kvl__cu_function add, kvl__cu_address words, int32_t value,
                 kvl__cu_stream stream)
{
    void* params[2];
    params[0] = &words;
    params[1] = &value;
    cr_assert_eq(d->launch(add, 2, 1, 1, 32, 1, 1, 0, stream, params, NULL), 0);
}

typedef struct bench {
    const kvl__driver* d;
    kvl__cu_module module;
    kvl__cu_function add;
    kvl__cu_stream stream;
    kvl__cu_address at, other;
    void* pinned;
} bench;

static void bench_make(bench* t, size_t bytes)
{
    const kvl__driver* d = t->d;
    int number = -1;
    size_t bytes_free, bytes_total;
    cr_assert_eq(d->module_load(&t->module, add_ptx, 0, NULL, NULL), 0);
    cr_assert_eq(d->module_get_function(&t->add, t->module, "subtract"), KVL__CU_NOT_FOUND);
    cr_assert_eq(d->module_get_function(&t->add, t->module, "add"), 0);
    cr_assert_eq(d->func_get_attribute(&number, KVL__FUNC_LOCAL_BYTES, t->add), 0);
    cr_assert_eq(number, 0);
    cr_assert_eq(d->func_set_attribute(t->add, KVL__FUNC_DYNAMIC_SHARED_BYTES, 65536), 0);
    cr_assert_eq(d->func_occupancy(&number, t->add, 32, 0), 0);
    cr_assert_geq(number, 1);
    cr_assert_eq(d->stream_create(&t->stream, KVL__STREAM_INDEPENDENT), 0);
    cr_assert_eq(d->mem_get_info(&bytes_free, &bytes_total), 0);
    cr_assert_leq(bytes_free, bytes_total);
    cr_assert_eq(d->mem_alloc(&t->at, bytes), 0);
    cr_assert_eq(d->mem_alloc_async(&t->other, bytes, t->stream), 0);
    cr_assert_eq(d->mem_host_alloc(&t->pinned, bytes, 0), 0);
    cr_assert_eq(d->pointer_get_attribute(&number, KVL__POINTER_MEMORY_TYPE, t->at), 0);
    cr_assert_eq(number, KVL__MEMORY_OF_DEVICE);
}

static void bench_free(const bench* t)
{
    const kvl__driver* d = t->d;
    cr_assert_eq(d->mem_free_async(t->other, t->stream), 0);
    cr_assert_eq(d->ctx_synchronize(), 0);
    cr_assert_eq(d->stream_destroy(t->stream), 0);
    cr_assert_eq(d->mem_free(t->at), 0);
    cr_assert_eq(d->mem_free_host(t->pinned), 0);
    cr_assert_eq(d->module_unload(t->module), 0);
}

// Captures a step and runs it twice.
static void graph_steps(const bench* t, int32_t value)
{
    const kvl__driver* d = t->d;
    kvl__cu_graph graph;
    kvl__cu_graph_exec exec;
    int capturing = 0;
    cr_assert_eq(d->stream_begin_capture(t->stream, KVL__CAPTURE_RELAXED), 0);
    step(d, t->add, t->at, value, t->stream);
    cr_assert_eq(d->stream_is_capturing(t->stream, &capturing), 0);
    cr_assert_eq(capturing, 1);
    cr_assert_eq(d->stream_end_capture(t->stream, &graph), 0);
    cr_assert_eq(d->graph_instantiate(&exec, graph, 0), 0);
    cr_assert_eq(d->graph_launch(exec, t->stream), 0);
    cr_assert_eq(d->graph_launch(exec, t->stream), 0);
    cr_assert_eq(d->stream_synchronize(t->stream), 0);
    cr_assert_eq(d->graph_exec_destroy(exec), 0);
    cr_assert_eq(d->graph_destroy(graph), 0);
}

// A step between two events.
static void timed_step(const bench* t, int32_t value)
{
    const kvl__driver* d = t->d;
    kvl__cu_event before, after;
    float ms = -1.0f;
    cr_assert_eq(d->event_create(&before, 0), 0);
    cr_assert_eq(d->event_create(&after, 0), 0);
    cr_assert_eq(d->event_record(before, t->stream), 0);
    step(d, t->add, t->at, value, t->stream);
    cr_assert_eq(d->event_record(after, t->stream), 0);
    cr_assert_eq(d->stream_wait_event(t->stream, after, 0), 0);
    cr_assert_eq(d->event_synchronize(after), 0);
    cr_assert_eq(d->event_query(after), 0);
    cr_assert_eq(d->event_elapsed(&ms, before, after), 0);
    cr_assert_geq(ms, 0.0f);
    cr_assert_eq(d->event_destroy(before), 0);
    cr_assert_eq(d->event_destroy(after), 0);
}

// Functions of the table with the arguments that they are declared with: memory, streams, events, a
// kernel, a graph.
Test(driver, the_table_works)
{
    size_t (*live)(void);
    *(void**)&live = dlsym(sim_load("sm_90"), "ptxsim_live_allocations");
    kvl_context* ctx = sim_context(0);
    uint32_t words[64];
    bench t;
    t.d = &ctx->gpu->driver;
    cr_assert_eq(kvl__gpu_enter(ctx), KVL_OK);
    bench_make(&t, sizeof words);
    memset(t.pinned, 2, sizeof words);
    cr_assert_eq(t.d->fill_bytes_async(t.other, 3, sizeof words, t.stream), 0);
    cr_assert_eq(t.d->fill_words_async(t.at, 0x04040404, 64, t.stream), 0);
    cr_assert_eq(t.d->copy_to_device_async(t.at, t.pinned, 16, t.stream), 0);
    cr_assert_eq(t.d->copy_async(t.at + 16, t.other, 16, t.stream), 0);
    timed_step(&t, 5);
    graph_steps(&t, 7);
    cr_assert_eq(t.d->copy_to_host_async(t.pinned, t.at, sizeof words, t.stream), 0);
    cr_assert_eq(t.d->stream_synchronize(t.stream), 0);
    cr_assert_eq(t.d->stream_query(t.stream), 0);
    cr_assert_eq(t.d->copy_to_host(words, t.at, sizeof words), 0);
    for (uint32_t i = 0; i < 64; ++i) {
        const uint32_t first = i < 4 ? 0x02020202 : i < 8 ? 0x03030303 : 0x04040404;
        cr_assert_eq(words[i], first + 3 * 1000 * (i / 32) + 5 + 7 + 7, "word %u", i);
    }
    cr_assert_eq(memcmp(words, t.pinned, sizeof words), 0);
    cr_assert_eq(t.d->copy_to_device(t.at, words, sizeof words), 0);
    bench_free(&t);
    kvl__gpu_leave(ctx);
    kvl_context_destroy(ctx);
    cr_assert_eq(live(), 0);
}

Test(driver, a_context_knows_its_device)
{
    sim_load("sm_90");
    kvl_context* ctx = sim_context(0);
    cr_assert_eq(ctx->target, KVL_TARGET_CUDA);
    cr_assert_eq(ctx->gpu->num_sms, 4);
    cr_assert_eq(ctx->gpu->shared_bytes_most, 227 * 1024);
    kvl_context_destroy(ctx);
}
