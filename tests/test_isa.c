// test_isa.c -- instruction sets: their order, and levels that must give another one's bytes.
//
// avx512bw and avxvnni spell the integer products of avx512 and avx2 in other instructions.  Sums
// of integers are exact, so outputs are the same, bit for bit.

// An implementation of its own, since it looks into it.
#define KVLOOM_STATIC
#define KVLOOM_IMPLEMENTATION
#include "test_support.h"

// ORDER

Test(isa, the_list_is_best_first_and_ends_with_what_always_runs)
{
    // Broken by two rows of one name, or by a last row that some processor lacks.
    for (int i = 0; i < KVL__NUM_ISAS; ++i)
        cr_assert(kvl__isa_find(kvl__isas[i].name) == &kvl__isas[i], "%s twice", kvl__isas[i].name);
    cr_assert_str_eq(kvl__isas[KVL__NUM_ISAS - 1].name, "portable");
    cr_assert(kvl__isas[KVL__NUM_ISAS - 1].detect());
    cr_assert(kvl__isa_best()->detect());
}

Test(isa, lower_ones_take_the_place_of_higher_ones_and_never_the_reverse)
{
    // Broken by code that a processor lacks, or that is better than what was asked for.
    const int has_avx2 = kvl__isa_find("avx2")->detect();
    cr_assert((kvl__isa_rank("avx2", "avx512") > 0) == has_avx2);
    cr_assert((kvl__isa_rank("avx2", "avx512bw") > 0) == has_avx2);
    cr_assert((kvl__isa_rank("neon", "avx512") > 0) == kvl__isa_find("neon")->detect());
    cr_assert_eq(kvl__isa_rank("avx512", "avx2"), 0);
    cr_assert_eq(kvl__isa_rank("avx2", "portable"), 0);
    cr_assert_eq(kvl__isa_rank("avx2", "neon"), 0);
    cr_assert_eq(kvl__isa_rank("sse9", "avx2"), 0);
    cr_assert_eq(kvl__isa_rank("avx2", "sse9"), 0);
    cr_assert_gt(kvl__isa_rank("portable", "avx512"), 0);
    cr_assert_gt(kvl__isa_rank("avx512", "avx512"), kvl__isa_rank("portable", "avx512"));
}

// VARIANTS

// avxvnni on a processor that has its instructions in the encoding of AVX-512 alone: the same
// program, encoded so.
static int as_avx512(void) { return !kvl__has_avxvnni(); }

static kvl_status (*compile_text)(kvl_context*, const kvl__compile_job*, unsigned char**, size_t*);

static kvl_status compile_encoded(kvl_context* ctx, const kvl__compile_job* job,
                                  unsigned char** binary, size_t* bytes)
{
    kvl__compile_job other = *job;
    const char* options[KVL__OPTIONS_MAX];
    char* text = (char*)test_alloc(job->text_bytes + 1, 1);
    int n = 0;
    memcpy(text, job->text, job->text_bytes);
    for (char* at = text; (at = strstr(at, "%{vex%}")) != NULL;) memset(at, ' ', 7);
    for (int i = 0; i < job->num_options; ++i)
        if (strcmp(job->options[i], "-mavxvnni") != 0) options[n++] = job->options[i];
    options[n++] = "-mavx512vl";
    options[n++] = "-mavx512bw";
    options[n++] = "-mavx512vnni";
    other.text = text;
    other.options = options;
    other.num_options = n;
    const kvl_status status = compile_text(ctx, &other, binary, bytes);
    free(text);
    return status;
}

static kvl_context* context_of(const char* isa)
{
    const int encoded = strcmp(isa, "avxvnni") == 0 && as_avx512();
    kvl_context_desc desc = { 0 };
    kvl_context* ctx = NULL;
    desc.target = KVL_TARGET_HOST;
    desc.num_threads = 2;
    desc.isa = encoded ? "avx2" : isa;
    if (encoded) desc.cache_dir = "";
    cr_assert(kvl_context_create(&desc, &ctx) == KVL_OK, "%s", kvl_context_message(ctx));
    if (encoded) {
        snprintf(ctx->isa, sizeof ctx->isa, "%s", isa);
        compile_text = ctx->programs->compile;
        ctx->programs->compile = compile_encoded;
    }
    return ctx;
}

enum { HQ = 6, HKV = 2, D = 64, ROWS = 400, NUM_Q = 2 };

// o [NUM_Q, HQ, D] of a sequence of random rows.
static void attend_with(const char* isa, const char* spec, float* o)
{
    const kvl_layer_desc layer = test_layer(spec, HQ, HKV, D, D);
    kvl_cache_desc desc = { 0 };
    test_cache c = { 0 };
    float *k = test_floats(ROWS * HKV * D), *v = test_floats(ROWS * HKV * D);
    float* q = test_floats(NUM_Q * HQ * D);
    c.ctx = context_of(isa);
    c.layer = layer;
    c.dv = D;
    desc.num_layers = 1;
    desc.layers = &layer;
    desc.calibration = test_calibration(TEST_TABLES);
    test_ok(c.ctx, kvl_cache_create(c.ctx, &desc, &c.cache), spec);
    test_rows(11, ROWS, HKV, D, k);
    test_rows(12, ROWS, HKV, D, v);
    test_queries(13, NUM_Q, HQ, D, q);
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, k, v, 0, ROWS);
    test_attend(&c, seq, q, NUM_Q, NULL, o, NULL);
    test_close(&c);
    free(k);
    free(v);
    free(q);
}

static void check_variant(const char* isa, const char* of)
{
    static const char* const specs[] = {
        "kivi:k2,v2,kg32,vg32,sink=0,recent=0", "rtn:k3,v4,g32,sink=0,recent=0", "q8_0",
        "flagrot-auto:g32,sink=0,recent=0" };
    float a[NUM_Q * HQ * D], b[NUM_Q * HQ * D];
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; ++i) {
        attend_with(of, specs[i], a);
        attend_with(isa, specs[i], b);
        cr_assert(memcmp(a, b, sizeof a) == 0, "%s: %s and %s differ", specs[i], isa, of);
    }
}

Test(isa, avx512bw_gives_the_bytes_of_avx512)
{
    // Broken by products in 16 bits that saturate, or by sums in another order than that of floats.
    if (!kvl__has_avx512()) cr_skip_test("no AVX-512 with VNNI");
    check_variant("avx512bw", "avx512");
}

Test(isa, avxvnni_gives_the_bytes_of_avx2)
{
    // Broken like the one before.  Where AVX-VNNI is missing, its instructions are AVX-512's.
    if (!kvl__has_avxvnni() && !kvl__has_avx512()) cr_skip_test("neither AVX-VNNI nor AVX-512");
    check_variant("avxvnni", "avx2");
}

// THREADS OF THE ENGINE

typedef struct crew {
    int     num_threads, num_runs;
    int64_t next, n;
    void  (*body)(void* arg, int64_t i, int thread);
    void*   arg;
} crew;

typedef struct member {
    crew* of;
    int   thread;
} member;

static void* work(void* user)
{
    const member* m = (const member*)user;
    for (;;) {
        const int64_t i = __atomic_fetch_add(&m->of->next, 1, __ATOMIC_RELAXED);
        if (i >= m->of->n) return NULL;
        m->of->body(m->of->arg, m->of->n - 1 - i, m->thread);
    }
}

// Items from the last to the first, on threads that end with the run.
static void run_crew(void* user, int64_t n, void (*body)(void* arg, int64_t i, int thread),
                     void* arg)
{
    crew* c = (crew*)user;
    pthread_t threads[8];
    member members[8];
    c->next = 0;
    c->n = n;
    c->body = body;
    c->arg = arg;
    ++c->num_runs;
    for (int i = 0; i < c->num_threads; ++i) {
        members[i] = (member){ c, i };
        cr_assert_eq(pthread_create(&threads[i], NULL, work, &members[i]), 0);
    }
    for (int i = 0; i < c->num_threads; ++i) pthread_join(threads[i], NULL);
}

// o of 2500 rows on `num` threads, of the crew or of the context.
static void attend_on(int num, crew* c, float* o)
{
    enum { rows = 2500 };
    const kvl_layer_desc layer = test_layer("kivi:k2,v2,g32,sink=4,recent=32", HQ, HKV, D, D);
    kvl_context_desc desc = { 0 };
    kvl_cache_desc cd = { 0 };
    test_cache t = { 0 };
    float *k = test_floats(rows * HKV * D), *v = test_floats(rows * HKV * D);
    float* q = test_floats(HQ * D);
    desc.target = KVL_TARGET_AUTO;
    desc.num_threads = num;
    if (c) desc.parallel = (kvl_parallel){ run_crew, c };
    cr_assert(kvl_context_create(&desc, &t.ctx) == KVL_OK, "%s", kvl_context_message(t.ctx));
    cr_assert_eq(kvl_context_threads(t.ctx), num);
    cd.num_layers = 1;
    cd.layers = &layer;
    test_ok(t.ctx, kvl_cache_create(t.ctx, &cd, &t.cache), "kvl_cache_create");
    t.layer = layer;
    t.dv = D;
    test_rows(21, rows, HKV, D, k);
    test_rows(22, rows, HKV, D, v);
    test_queries(23, 1, HQ, D, q);
    const kvl_seq seq = test_seq(&t);
    test_append(&t, seq, k, v, 0, rows);
    test_attend(&t, seq, q, 1, NULL, o, NULL);
    test_close(&t);
    free(k);
    free(v);
    free(q);
}

Test(threads, the_engines_own_give_the_same_bytes)
{
    // Broken by scratch that two of the engine's threads share, or by a context that starts some.
    float first[HQ * D], o[HQ * D];
    attend_on(1, NULL, first);
    for (int num = 1; num <= 7; num += 3) {
        crew c = { .num_threads = num };
        attend_on(num, &c, o);
        cr_assert(memcmp(o, first, sizeof o) == 0, "%d threads of the engine differ", num);
        cr_assert_gt(c.num_runs, 0, "the engine's threads were not asked");
    }
}

static void count_visit(void* arg, int64_t i)
{
    __atomic_add_fetch((int*)arg + i, 1, __ATOMIC_RELAXED);
}

typedef struct nest {
    kvl_context* ctx;
    int*         counts;
} nest;

static void visit_ten(void* arg, int64_t i)
{
    const nest* n = (const nest*)arg;
    kvl_parallel_for(n->ctx, 10, count_visit, n->counts + 10 * i);
}

Test(threads, the_engines_own_are_asked_for_one_run_at_a_time)
{
    // Broken by a run that is asked for from inside a body: an engine's pool may wait for itself.
    crew c = { .num_threads = 3 };
    int counts[200] = { 0 };
    kvl_context_desc desc = { 0 };
    kvl_context* ctx = NULL;
    desc.target = KVL_TARGET_REFERENCE;
    desc.num_threads = 3;
    desc.parallel = (kvl_parallel){ run_crew, &c };
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_OK);
    nest n = { ctx, counts };
    kvl_parallel_for(ctx, 20, visit_ten, &n);
    for (int i = 0; i < 200; ++i) cr_assert_eq(counts[i], 1, "index %d: %d visits", i, counts[i]);
    cr_assert_eq(c.num_runs, 1);
    kvl_context_destroy(ctx);
}

Test(threads, bad_descs_of_the_engines_own)
{
    crew c = { .num_threads = 3 };
    kvl_context_desc desc = { 0 };
    kvl_context* ctx = NULL;
    desc.parallel = (kvl_parallel){ run_crew, &c };
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_BAD_ARGUMENT);
    cr_assert_str_eq(kvl_context_message(ctx),
                     "num_threads = 0: must say how many threads parallel.run has");
    kvl_context_destroy(ctx);
    desc.num_threads = 3;
    desc.parallel.run = NULL;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_BAD_ARGUMENT);
    cr_assert_str_eq(kvl_context_message(ctx), "parallel: has a user and no run");
    kvl_context_destroy(ctx);
}
