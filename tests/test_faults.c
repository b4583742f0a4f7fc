// test_faults.c -- caches on a device whose driver fails: a launch, a copy, memory, a stream.
//
// The stand-in of tests/ptxsim refuses what it is told to refuse.  Breaks when a failure leaves the
// host with other counts than the device, when a call changes a sequence and reports a failure, or
// when memory of the device is lost.

#include "test_support.h"

#include "sim_library.h"

#undef kvl_append
#undef kvl_attend
#undef kvl_append_attend

enum { HEADS = 2, DIM = 32, ROW = HEADS * DIM, ROWS = 160 };
enum { OUT_OF_MEMORY = 2, INVALID_VALUE = 1, LAUNCH_FAILED = 719 };

typedef struct handle* handle;

static struct {
    void (*refuse)(int, int, int);
    int (*asked)(void);
    size_t (*live)(void);
    int (*stream_create)(handle*, unsigned);
    int (*stream_destroy)(handle);
    int (*begin)(handle, int);
    int (*end)(handle, handle*);
    int (*instantiate)(handle*, handle, unsigned long long);
    int (*launch)(handle, handle);
    int (*destroy)(handle);
    int (*destroy_exec)(handle);
    int (*retain)(handle*, int);
    int (*set_current)(handle);
    int (*host_alloc)(void**, size_t, unsigned);
    int (*host_free)(void*);
} driver;

// The functions of the stand-in, with its device current.
static test_target open_driver(void)
{
    handle context;
    if (!sim_is_wanted()) cr_skip_test("a device does not fail when it is told to");
    const test_target cuda = test_cuda_target();
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    cr_assert(library, "%s", dlerror());
    *(void**)&driver.refuse = dlsym(library, "ptxsim_refuse");
    *(void**)&driver.asked = dlsym(library, "ptxsim_asked");
    *(void**)&driver.live = dlsym(library, "ptxsim_live_allocations");
    *(void**)&driver.stream_create = dlsym(library, "cuStreamCreate");
    *(void**)&driver.stream_destroy = dlsym(library, "cuStreamDestroy_v2");
    *(void**)&driver.begin = dlsym(library, "cuStreamBeginCapture_v2");
    *(void**)&driver.end = dlsym(library, "cuStreamEndCapture");
    *(void**)&driver.instantiate = dlsym(library, "cuGraphInstantiateWithFlags");
    *(void**)&driver.launch = dlsym(library, "cuGraphLaunch");
    *(void**)&driver.destroy = dlsym(library, "cuGraphDestroy");
    *(void**)&driver.destroy_exec = dlsym(library, "cuGraphExecDestroy");
    *(void**)&driver.retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void**)&driver.set_current = dlsym(library, "cuCtxSetCurrent");
    *(void**)&driver.host_alloc = dlsym(library, "cuMemHostAlloc");
    *(void**)&driver.host_free = dlsym(library, "cuMemFreeHost");
    cr_assert(driver.retain(&context, 0) == 0 && driver.set_current(context) == 0, "a context");
    return cuda;
}

static void expect(kvl_context* ctx, kvl_status got, kvl_status wanted, const char* text)
{
    cr_assert(got == wanted && strstr(kvl_context_message(ctx), text), "%s: %s, expected '%s'",
              kvl_status_text(got), kvl_context_message(ctx), text);
}

// A cache and rows for it in the device's memory.
typedef struct world {
    test_cache c;
    float*     host[2];            // keys, values [ROWS]
    char*      memory;             // the same, then queries, outputs
    char*      at[4];
    kvl_seq    base;               // of 60 rows
} world;

enum { BYTES = ROWS * ROW * 4 };

static void open_world(world* w, const test_target* cuda, const char* spec, int window_len)
{
    float* q = test_floats(ROWS * ROW);
    memset(w, 0, sizeof *w);
    w->c.layer = test_layer(spec, HEADS, HEADS, DIM, DIM);
    w->c.layer.window_len = window_len;
    w->c.dv = DIM;
    w->c.ctx = test_context(cuda, 1);
    kvl_cache_desc d = { 0 };
    d.num_layers = 1;
    d.layers = &w->c.layer;
    d.release_windows = window_len > 0;
    test_ok(w->c.ctx, kvl_cache_create(w->c.ctx, &d, &w->c.cache), spec);
    test_ok(w->c.ctx, kvl_device_alloc(w->c.ctx, 4 * BYTES, (void**)&w->memory), "memory");
    for (int i = 0; i < 4; ++i) w->at[i] = w->memory + i * BYTES;
    for (int i = 0; i < 2; ++i) {
        w->host[i] = test_floats(ROWS * ROW);
        test_rows((uint64_t)i + 1, ROWS, HEADS, DIM, w->host[i]);
        test_ok(w->c.ctx, kvl_device_write(w->c.ctx, w->at[i], w->host[i], BYTES), "rows");
    }
    test_queries(3, ROWS, HEADS, DIM, q);
    test_ok(w->c.ctx, kvl_device_write(w->c.ctx, w->at[2], q, BYTES), "queries");
    free(q);
}

static void close_world(world* w)
{
    kvl_device_free(w->c.ctx, w->memory, 4 * BYTES);
    for (int i = 0; i < 2; ++i) free(w->host[i]);
    test_close(&w->c);
}

// Rows [first, first + num), with or without their queries.
static kvl_status add_rows(world* w, kvl_seq seq, int first, int num, int queries)
{
    const int32_t num_rows = num;
    kvl_append_desc a = { 0 };
    kvl_attend_desc t = { 0 };
    a.num_seqs = t.num_seqs = 1;
    a.seqs = t.seqs = &seq;
    a.num_rows = t.q_lens = &num_rows;
    a.k.data = w->at[0] + (size_t)first * ROW * 4;
    a.v.data = w->at[1] + (size_t)first * ROW * 4;
    t.q.data = w->at[2] + (size_t)first * ROW * 4;
    t.o.data = w->at[3];
    t.prefill = queries == 2;
    return queries ? kvl_append_attend(w->c.cache, &a, &t) : kvl_append(w->c.cache, &a);
}

// What a sequence has: attention of its newest rows sees all that can be seen, and what it stores
// can be read where nothing was dropped.
typedef struct state {
    test_state stored;
    float      o[3 * ROW], lse[3 * HEADS];
} state;

static state state_of(world* w, kvl_seq seq)
{
    const int32_t q_len = w->c.layer.window_len ? 1 : 3;
    kvl_attend_desc t = { 0 };
    state s;
    memset(&s, 0, sizeof s);
    test_ok(w->c.ctx, kvl_seq_get_rows(w->c.cache, 0, seq, &s.stored.rows), "rows");
    if (s.stored.rows.dropped == 0) s.stored = test_snapshot(&w->c, seq);
    t.num_seqs = 1;
    t.seqs = &seq;
    t.q_lens = &q_len;
    t.q.data = w->at[2];
    t.o.data = w->at[3];
    t.lse = (float*)(void*)(w->at[3] + sizeof s.o);
    test_ok(w->c.ctx, kvl_attend(w->c.cache, &t), "attend");
    const size_t row_bytes = (size_t)q_len * HEADS * sizeof(float);
    test_ok(w->c.ctx, kvl_device_read(w->c.ctx, s.o, t.o.data, DIM * row_bytes), "o");
    test_ok(w->c.ctx, kvl_device_read(w->c.ctx, s.lse, t.lse, row_bytes), "lse");
    return s;
}

static void same_state(const state* a, const state* b, const char* what)
{
    test_same_state(&a->stored, &b->stored, what);
    cr_assert(memcmp(a->o, b->o, sizeof a->o) == 0 && memcmp(a->lse, b->lse, sizeof a->lse) == 0,
              "%s: attention differs", what);
}

// A sequence before an operation: as it came, forked or cut in a group along tokens.
static kvl_seq start(world* w, int kind)
{
    kvl_seq seq;
    test_ok(w->c.ctx, kvl_seq_create(w->c.cache, &seq), "create");
    test_ok(w->c.ctx, add_rows(w, seq, 0, 60, 0), "60 rows");
    if (kind == 1) {
        const kvl_seq from = seq;
        test_ok(w->c.ctx, kvl_seq_fork(w->c.cache, from, &seq), "fork");
        test_ok(w->c.ctx, kvl_seq_free(w->c.cache, from), "free");
    }
    if (kind == 2) test_ok(w->c.ctx, kvl_truncate(w->c.cache, seq, 44), "cut");
    if (kind == 3) w->base = seq;
    if (kind == 3) test_ok(w->c.ctx, kvl_seq_fork(w->c.cache, seq, &seq), "fork");
    return seq;
}

// What an operation leaves, other sequences too.
static void finish(world* w, kvl_seq seq)
{
    test_ok(w->c.ctx, kvl_seq_free(w->c.cache, seq), "free");
    if (w->base) test_ok(w->c.ctx, kvl_seq_free(w->c.cache, w->base), "free");
    w->base = 0;
}

enum { ONE, NINE, MANY, STEP, STEPS, PREFILL, TRUNCATE, DROP, FORK, NUM_OPERATIONS };

static const char* const operation_names[] = {
    "a row", "nine rows", "a hundred rows", "a row and its query", "nine rows and their queries",
    "prefill", "truncate", "drop", "fork"
};

static kvl_status operate(world* w, int operation, kvl_seq* seq)
{
    kvl_seq_rows rows;
    test_ok(w->c.ctx, kvl_seq_get_rows(w->c.cache, 0, *seq, &rows), "rows");
    const int at = (int)rows.rows;
    if (operation == ONE) return add_rows(w, *seq, at, 1, 0);
    if (operation == NINE) return add_rows(w, *seq, at, 9, 0);
    if (operation == MANY) return add_rows(w, *seq, at, 100, 0);
    if (operation == STEP) return add_rows(w, *seq, at, 1, 1);
    if (operation == STEPS) return add_rows(w, *seq, at, 9, 1);
    if (operation == PREFILL) return add_rows(w, *seq, at, 9, 2);
    if (operation == TRUNCATE) return kvl_truncate(w->c.cache, *seq, at - 20);
    if (operation == DROP) return kvl_drop_oldest(w->c.cache, *seq, 20);
    kvl_seq fork;
    const kvl_status status = kvl_seq_fork(w->c.cache, *seq, &fork);
    if (status != KVL_OK) return status;
    kvl_seq_free(w->c.cache, *seq);
    *seq = fork;
    return KVL_OK;
}

// A sequence that lost rows to a failure is refused by every call but the one that frees it.
static int is_broken(world* w, kvl_seq seq)
{
    kvl_seq_rows rows;
    kvl_seq fork;
    if (kvl_seq_get_rows(w->c.cache, 0, seq, &rows) == KVL_OK) return 0;
    expect(w->c.ctx, add_rows(w, seq, 0, 1, 0), KVL_DEVICE, "it can only be freed");
    expect(w->c.ctx, kvl_seq_fork(w->c.cache, seq, &fork), KVL_DEVICE, "it can only be freed");
    return 1;
}

// Fails each of the things that the operation puts into the stream, in turn: the sequence is as
// before, or broken where the operation may break it, or the operation is done; and when it is
// called again it gives what it gives without a failure.  Returns how often it was broken.
static int check_failures(world* w, int operation, int kind)
{
    char what[128];
    int broken = 0, reached = 1;
    kvl_seq seq = start(w, kind);
    const state before = state_of(w, seq);
    test_ok(w->c.ctx, operate(w, operation, &seq), operation_names[operation]);
    const state after = state_of(w, seq);
    finish(w, seq);
    for (int skip = 0; reached; skip += operation == MANY ? 3 : 1) {
        seq = start(w, kind);
        snprintf(what, sizeof what, "%s of kind %d, after %d", operation_names[operation], kind,
                 skip);
        const int result = (skip ^ kind) % 2 ? INVALID_VALUE : OUT_OF_MEMORY;
        driver.refuse(skip, 1, result);
        kvl_status status = operate(w, operation, &seq);
        reached = driver.asked() > skip;
        driver.refuse(0, 0, 0);
        if (status != KVL_OK && is_broken(w, seq)) {
            ++broken;
            finish(w, seq);
            continue;
        }
        if (status != KVL_OK) {
            cr_assert(status == (result == OUT_OF_MEMORY ? KVL_NO_MEMORY : KVL_DEVICE), "%s: %s",
                      what, kvl_status_text(status));
            // What is left of a cut group may be in the tail: the same rows.
            const state now = state_of(w, seq);
            if (kind != 2) same_state(&before, &now, what);
            cr_assert_eq(now.stored.rows.rows, before.stored.rows.rows, "%s", what);
            test_ok(w->c.ctx, operate(w, operation, &seq), what);
        }
        const state again = state_of(w, seq);
        same_state(&after, &again, what);
        test_ok(w->c.ctx, add_rows(w, seq, 0, 30, 0), what);
        finish(w, seq);
    }
    return broken;
}

static void check_operations(const char* spec, int window_len)
{
    const test_target cuda = open_driver();
    world w;
    int broken = 0;
    open_world(&w, &cuda, spec, window_len);
    for (int operation = 0; operation < NUM_OPERATIONS; ++operation) {
        for (int kind = 0; kind < 4; ++kind) {
            // What the window has let go does not come back.
            if (window_len && (kind == 2 || operation == TRUNCATE)) continue;
            if (operation == MANY && kind % 3 != 0) continue;             // the longest ones
            const int some = check_failures(&w, operation, kind);
            // Rows that were there are overwritten by a second wave alone.
            cr_assert(some == 0 || operation == MANY || operation == STEPS,
                      "%s of kind %d broke a sequence", operation_names[operation], kind);
            broken += some;
        }
    }
    cr_assert_gt(broken, 0, "no failure came between two waves");
    close_world(&w);
    cr_assert_eq(driver.live(), 0, "memory of the device is lost");
}

static const char along[] = "kivi:k2,v2,kg16,vg16,sink=2,recent=5,page=16";

Test(faults, what_fails_changes_nothing) { check_operations(along, 0); }
Test(faults, what_fails_changes_nothing_of_a_window) { check_operations(along, 40); }

// Of a batch the sequence that has come to a second wave is broken, the others are as before and go
// on: one row beside a hundred, the launches refused in turn.
Test(faults, a_batch_of_which_one_is_broken)
{
    enum { NUM = 3 };
    const test_target cuda = open_driver();
    const int32_t num_rows[NUM] = { 1, 100, 0 };
    world w;
    int broken = 0, reached = 1;
    open_world(&w, &cuda, along, 0);
    for (int skip = 0; reached; skip += 2) {
        kvl_seq seqs[NUM];
        state before[NUM];
        for (int i = 0; i < NUM; ++i) seqs[i] = start(&w, i == 2);
        for (int i = 0; i < NUM; ++i) before[i] = state_of(&w, seqs[i]);
        kvl_append_desc a = { 0 };
        a.num_seqs = NUM;
        a.seqs = seqs;
        a.num_rows = num_rows;
        a.k.data = w.at[0];
        a.v.data = w.at[1];
        driver.refuse(skip, 1, OUT_OF_MEMORY);
        const kvl_status status = kvl_append(w.c.cache, &a);
        reached = driver.asked() > skip;
        driver.refuse(0, 0, 0);
        for (int i = 0; i < NUM; ++i) {
            if (status != KVL_OK && is_broken(&w, seqs[i])) {
                cr_assert_eq(i, 1, "after %d: sequence %d", skip, i);
                ++broken;
            } else if (status != KVL_OK) {
                const state now = state_of(&w, seqs[i]);
                same_state(&before[i], &now, "a batch");
                test_ok(w.c.ctx, add_rows(&w, seqs[i], 60, 100, 0), "afterwards");
            }
            finish(&w, seqs[i]);
        }
    }
    cr_assert_gt(broken, 0, "no failure came between two waves");
    close_world(&w);
}

// After a failure that no call survives, in the first of several waves: every later call says so,
// and none writes where it has no room.  Broken by a wave that is not emptied.
Test(faults, a_context_that_is_lost_in_a_wave)
{
    enum { QUERIES = 600 };
    const test_target cuda = open_driver();
    world w;
    open_world(&w, &cuda, along, 0);
    const kvl_seq seq = start(&w, 0);
    const int32_t q_len = QUERIES;
    const int64_t position = 5;
    char* memory;
    test_ok(w.c.ctx, kvl_device_alloc(w.c.ctx, 2 * QUERIES * ROW * 4, (void**)&memory), "memory");
    kvl_attend_desc t = { 0 };
    t.num_seqs = 1;
    t.seqs = &seq;
    t.q_lens = &q_len;
    t.q_positions = &position;
    t.q.data = memory;
    t.o.data = memory + QUERIES * ROW * 4;
    driver.refuse(0, 1, LAUNCH_FAILED);
    expect(w.c.ctx, kvl_attend(w.c.cache, &t), KVL_DEVICE, "context is lost");
    driver.refuse(0, 0, 0);
    expect(w.c.ctx, kvl_attend(w.c.cache, &t), KVL_DEVICE, "context is lost");
    expect(w.c.ctx, add_rows(&w, seq, 60, 1, 0), KVL_DEVICE, "context is lost");
    expect(w.c.ctx, kvl_truncate(w.c.cache, seq, 10), KVL_DEVICE, "context is lost");
    close_world(&w);
}

// MEMORY

// Memory of the device by way of another context, as much as there is room for.
typedef struct budget {
    kvl_context* ctx;
    uint64_t     room, used;
} budget;

static uint64_t take_memory(size_t bytes, void* stream, void* user)
{
    budget* b = (budget*)user;
    void* at = NULL;
    (void)stream;
    if (bytes > b->room - b->used) return 0;
    if (kvl_device_alloc(b->ctx, bytes, &at) != KVL_OK) return 0;
    b->used += bytes;
    return (uintptr_t)at;
}

static void give_memory(uint64_t address, size_t bytes, void* stream, void* user)
{
    budget* b = (budget*)user;
    (void)stream;
    b->used -= bytes;
    kvl_device_free(b->ctx, (void*)(uintptr_t)address, bytes);
}

// A device that has no more memory: remembered prompts are given up for a sequence that needs some,
// one after another, and kvl_prepare's spare pages are taken as they come free.
static void check_forgetting(int prepared)
{
    enum { NUM = 150 };
    const test_target cuda = open_driver();
    budget b = { test_context(&cuda, 1), UINT64_MAX, 0 };
    kvl_context_desc desc = { .target = KVL_TARGET_CUDA, .num_threads = 1 };
    desc.device_allocator = (kvl_device_allocator){ take_memory, give_memory, &b };
    world w;
    int32_t tokens[NUM];
    kvl_stats stats;
    kvl_seq seq;
    memset(&w, 0, sizeof w);
    w.c.layer = test_layer(along, HEADS, HEADS, DIM, DIM);
    w.c.dv = DIM;
    test_ok(NULL, kvl_context_create(&desc, &w.c.ctx), "context");
    const kvl_cache_desc d = { .num_layers = 1, .layers = &w.c.layer, .prefix_bytes = 1 << 24 };
    test_ok(w.c.ctx, kvl_cache_create(w.c.ctx, &d, &w.c.cache), "cache");
    if (prepared) {
        const kvl_prepare_desc p = { .num_seqs = 1, .num_rows = NUM };
        test_ok(w.c.ctx, kvl_prepare(w.c.cache, &p), "prepare");
    }
    for (int i = 0; i < 2; ++i) {
        w.host[i] = test_floats(ROWS * ROW);
        test_rows((uint64_t)i + 1, ROWS, HEADS, DIM, w.host[i]);
    }
    for (int text = 0; text < 3; ++text) {
        for (int i = 0; i < NUM; ++i) tokens[i] = 1000 * text + i;
        const kvl_prompt prompt = { tokens, NUM, 0, 0 };
        test_ok(w.c.ctx, kvl_seq_create(w.c.cache, &seq), "create");
        test_append(&w.c, seq, w.host[0], w.host[1], 0, NUM);
        test_ok(w.c.ctx, kvl_seq_remember(w.c.cache, seq, &prompt), "remember");
        test_ok(w.c.ctx, kvl_seq_free(w.c.cache, seq), "free");
    }
    test_ok(w.c.ctx, kvl_cache_stats(w.c.cache, &stats), "stats");
    const uint64_t remembered = stats.prefix_bytes;
    cr_assert_gt(remembered, 0, "nothing is remembered");
    b.room = b.used;
    test_ok(w.c.ctx, kvl_seq_create(w.c.cache, &seq), "a sequence");
    test_append(&w.c, seq, w.host[0], w.host[1], 0, NUM);
    test_ok(w.c.ctx, kvl_cache_stats(w.c.cache, &stats), "stats");
    cr_assert(stats.prefix_bytes > 0 && stats.prefix_bytes < remembered,
              "%llu of %llu bytes are remembered", (unsigned long long)stats.prefix_bytes,
              (unsigned long long)remembered);
    for (int i = 0; i < 2; ++i) free(w.host[i]);
    test_close(&w.c);
    cr_assert_eq(b.used, 0);
    kvl_context_destroy(b.ctx);
}

Test(faults, prompts_are_forgotten_for_memory_of_a_device) { check_forgetting(0); }
Test(faults, prompts_are_forgotten_for_prepared_pages) { check_forgetting(1); }

// STREAMS

// The stream of the last call is destroyed: no memory of the device is lost with it; after
// kvl_cache_check it may go before the next call.
Test(faults, a_stream_that_is_destroyed)
{
    const test_target cuda = open_driver();
    const size_t before = driver.live();
    world w;
    handle stream[2];
    open_world(&w, &cuda, along, 0);
    const kvl_seq seq = start(&w, 0);
    for (int i = 0; i < 2; ++i) {
        kvl_append_desc a = { 0 };
        cr_assert_eq(driver.stream_create(&stream[i], 1), 0);
        a.num_seqs = 1;
        a.seqs = &seq;
        a.k.data = w.at[0];
        a.v.data = w.at[1];
        a.stream = stream[i];
        test_ok(w.c.ctx, kvl_append(w.c.cache, &a), "append");
        if (i == 0) test_ok(w.c.ctx, kvl_cache_check(w.c.cache), "check");
        cr_assert_eq(driver.stream_destroy(stream[i]), 0);
    }
    close_world(&w);
    cr_assert_eq(driver.live(), before, "memory of the device is lost");
}

// Page-locked memory is read when a copy is due: what is written may be changed at once all the
// same, and so may what a load reuses.
Test(faults, what_was_written_may_be_changed)
{
    setenv("PTXSIM_LATE", "1", 1);
    const test_target cuda = open_driver();
    kvl_context* ctx = test_context(&cuda, 1);
    int *numbers, *on_device, back[16];
    cr_assert_eq(driver.host_alloc((void**)&numbers, sizeof back, 0), 0);
    test_ok(ctx, kvl_device_alloc(ctx, sizeof back, (void**)&on_device), "memory");
    for (int i = 0; i < 16; ++i) numbers[i] = i;
    test_ok(ctx, kvl_device_write(ctx, on_device, numbers, sizeof back), "write");
    memset(numbers, 0, sizeof back);
    test_ok(ctx, kvl_device_read(ctx, back, on_device, sizeof back), "read");
    for (int i = 0; i < 16; ++i) cr_assert_eq(back[i], i);
    kvl_device_free(ctx, on_device, sizeof back);
    cr_assert_eq(driver.host_free(numbers), 0);
    kvl_context_destroy(ctx);
}

static void* take_locked(size_t bytes, void* user)
{
    void* at = NULL;
    (void)user;
    return driver.host_alloc(&at, bytes, 0) == 0 ? at : NULL;
}

static void give_locked(void* at, size_t bytes, void* user)
{
    (void)bytes;
    (void)user;
    cr_assert_eq(driver.host_free(at), 0);
}

// The windows of two sequences, and their pages, pass through the same memory of the allocator's.
Test(faults, a_load_through_page_locked_memory)
{
    setenv("PTXSIM_LATE", "1", 1);
    static const char path[] = KVLOOM_TEST_SCRATCH "/faults-locked";
    const test_target cuda = open_driver();
    world w;
    open_world(&w, &cuda, along, 0);
    const kvl_seq seqs[2] = { start(&w, 0), start(&w, 2) };
    const kvl_save_seq saved[2] = { { .seq = seqs[0] }, { .seq = seqs[1] } };
    const kvl_save_desc save = { .num_seqs = 2, .seqs = saved, .path = path };
    const kvl_load_desc load = { .path = path };
    test_ok(w.c.ctx, kvl_save(w.c.cache, &save), "save");
    kvl_context_desc desc = { .target = KVL_TARGET_CUDA, .num_threads = 1 };
    desc.allocator = (kvl_allocator){ take_locked, give_locked, NULL };
    test_cache c = w.c;
    const kvl_cache_desc d = { .num_layers = 1, .layers = &w.c.layer };
    test_ok(NULL, kvl_context_create(&desc, &c.ctx), "context");
    test_ok(c.ctx, kvl_cache_create(c.ctx, &d, &c.cache), "cache");
    kvl_loaded_seq* loaded = NULL;
    int num = 0;
    test_ok(c.ctx, kvl_load(c.cache, &load, &loaded, &num), "load");
    cr_assert_eq(num, 2);
    for (int i = 0; i < 2; ++i) {
        const test_state a = test_snapshot(&w.c, seqs[i]);
        const test_state b = test_snapshot(&c, loaded[i].seq);
        test_same_state(&a, &b, "loaded");
    }
    kvl_loaded_free(c.ctx, loaded, num);
    test_close(&c);
    close_world(&w);
    remove(path);
}

// GRAPHS

// One attend of a sequence in a graph.
static kvl_status capture(world* w, handle stream, const kvl_attend_desc* t, handle* exec)
{
    handle graph;
    cr_assert_eq(driver.begin(stream, 0), 0);
    const kvl_status status = kvl_attend(w->c.cache, t);
    cr_assert_eq(driver.end(stream, &graph), 0, "a call ended the capture");
    if (status == KVL_OK) cr_assert_eq(driver.instantiate(exec, graph, 0), 0);
    cr_assert_eq(driver.destroy(graph), 0);
    return status;
}

static kvl_attend_desc newest(world* w, const kvl_seq* seq, handle stream)
{
    kvl_attend_desc t = { 0 };
    t.num_seqs = 1;
    t.seqs = seq;
    t.q.data = w->at[2];
    t.o.data = w->at[3];
    t.stream = stream;
    return t;
}

// Grows a sequence to num rows, whatever they are.
static void grow(world* w, kvl_seq seq, int num)
{
    kvl_seq_rows rows;
    test_ok(w->c.ctx, kvl_seq_get_rows(w->c.cache, 0, seq, &rows), "rows");
    for (int some, at = (int)rows.rows; at < num; at += some) {
        some = num - at < ROWS ? num - at : ROWS;
        test_ok(w->c.ctx, add_rows(w, seq, 0, some, 0), "rows");
    }
}

// What a launch of the graph gives, and what a call gives.
static void launch_and_call(world* w, handle exec, handle stream, const kvl_attend_desc* t,
                            float o[2][ROW])
{
    for (int i = 0; i < 2; ++i) {
        test_ok(w->c.ctx, kvl_cache_check(w->c.cache), "before");
        if (i == 0) cr_assert_eq(driver.launch(exec, stream), 0);
        else test_ok(w->c.ctx, kvl_attend(w->c.cache, t), "attend");
        test_ok(w->c.ctx, kvl_device_read(w->c.ctx, o[i], t->o.data, sizeof o[i]), "o");
    }
}

// 252 pages have more splits than 256: a graph that was captured for those has the call's bytes.
Test(faults, a_captured_attend_of_fewer_pages)
{
    enum { PAGE = 64 };
    const test_target cuda = open_driver();
    world w;
    handle stream, exec;
    float o[2][ROW];
    open_world(&w, &cuda, "f16:sink=0,recent=0,page=64", 0);
    const kvl_prepare_desc p = { .num_seqs = 1, .num_rows = 256 * PAGE };
    const kvl_seq seq = test_seq(&w.c);
    cr_assert_eq(driver.stream_create(&stream, 0), 0);
    const kvl_attend_desc t = newest(&w, &seq, stream);
    expect(w.c.ctx, capture(&w, stream, &t, &exec), KVL_UNSUPPORTED, "call kvl_prepare before");
    test_ok(w.c.ctx, kvl_prepare(w.c.cache, &p), "prepare");
    grow(&w, seq, 252 * PAGE);
    test_ok(w.c.ctx, capture(&w, stream, &t, &exec), "capture");
    launch_and_call(&w, exec, stream, &t, o);
    cr_assert(memcmp(o[0], o[1], sizeof o[0]) == 0, "the launch gives other bytes");
    cr_assert_eq(driver.destroy_exec(exec), 0);
    close_world(&w);
}

// A graph goes on serving when more is prepared: it has fewer parts than a call, and room for them.
// An attend of more rows than were prepared is not captured.
Test(faults, a_captured_attend_of_more_rows)
{
    const test_target cuda = open_driver();
    world w;
    handle stream, exec;
    float o[2][ROW];
    open_world(&w, &cuda, along, 0);
    kvl_prepare_desc p = { .num_seqs = 1, .num_rows = 300 };
    test_ok(w.c.ctx, kvl_prepare(w.c.cache, &p), "prepare");
    const kvl_seq seq = test_seq(&w.c);
    cr_assert_eq(driver.stream_create(&stream, 0), 0);
    const kvl_attend_desc t = newest(&w, &seq, stream);
    grow(&w, seq, 200);
    test_ok(w.c.ctx, capture(&w, stream, &t, &exec), "capture");
    launch_and_call(&w, exec, stream, &t, o);
    cr_assert(memcmp(o[0], o[1], sizeof o[0]) == 0, "the launch gives other bytes");
    grow(&w, seq, 2500);
    handle none = NULL;
    expect(w.c.ctx, capture(&w, stream, &t, &none), KVL_UNSUPPORTED,
           "seqs[0]: 2500 rows: kvl_prepare made ready 300");
    p.num_rows = 3000;
    test_ok(w.c.ctx, kvl_prepare(w.c.cache, &p), "prepare");
    launch_and_call(&w, exec, stream, &t, o);
    for (int i = 0; i < ROW; ++i)
        cr_assert(fabsf(o[0][i] - o[1][i]) <= 1e-5f, "o[%d] = %g, expected %g", i, (double)o[0][i],
                  (double)o[1][i]);
    cr_assert_eq(driver.destroy_exec(exec), 0);
    close_world(&w);
}

// A kernel is not loaded while a stream is captured: refused, and the capture goes on; kvl_prepare
// loads it.
Test(faults, a_captured_merge)
{
    const test_target cuda = open_driver();
    handle stream, graph, exec;
    float rows[6] = { 1, 0, 3, 0, 0, 0 };            // o, lse of a and b, and of the result
    cr_assert_eq(driver.stream_create(&stream, 0), 0);
    for (int prepared = 0; prepared < 2; ++prepared) {
        world w;
        float* memory;
        open_world(&w, &cuda, along, 0);
        test_ok(w.c.ctx, kvl_device_alloc(w.c.ctx, sizeof rows, (void**)&memory), "memory");
        test_ok(w.c.ctx, kvl_device_write(w.c.ctx, memory, rows, sizeof rows), "rows");
        const kvl_prepare_desc p = { .num_seqs = 1, .num_rows = 30 };
        if (prepared) test_ok(w.c.ctx, kvl_prepare(w.c.cache, &p), "prepare");
        kvl_merge_desc m = { 0 };
        m.num_rows = m.head_dim = 1;
        m.o_a = memory;
        m.lse_a = memory + 1;
        m.o_b = memory + 2;
        m.lse_b = memory + 3;
        m.o = memory + 4;
        m.lse = memory + 5;
        m.stream = stream;
        cr_assert_eq(driver.begin(stream, 0), 0);
        if (prepared) test_ok(w.c.ctx, kvl_merge(w.c.ctx, &m), "captured merge");
        else expect(w.c.ctx, kvl_merge(w.c.ctx, &m), KVL_UNSUPPORTED, "kvl_merge is not loaded");
        cr_assert_eq(driver.end(stream, &graph), 0, "the capture is over");
        cr_assert_eq(driver.instantiate(&exec, graph, 0), 0);
        cr_assert_eq(driver.launch(exec, stream), 0);
        float o;
        test_ok(w.c.ctx, kvl_device_read(w.c.ctx, &o, m.o, sizeof o), "o");
        cr_assert(o == (prepared ? 2.0f : 0.0f), "o = %g", (double)o);
        cr_assert_eq(driver.destroy(graph), 0);
        cr_assert_eq(driver.destroy_exec(exec), 0);
        kvl_device_free(w.c.ctx, memory, sizeof rows);
        close_world(&w);
    }
}
