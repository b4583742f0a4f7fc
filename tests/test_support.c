// test_support.c -- the helpers of test_support.h, and the implementation of kvloom for the tests.

#define KVLOOM_IMPLEMENTATION
#include "test_support.h"

#include "sim_library.h"

// Targets

// Levels that differ from another one in their integer products alone: test_isa.c tests them.
static bool test_is_variant(const char* isa)
{
    return strcmp(isa, "avx512bw") == 0 || strcmp(isa, "avxvnni") == 0;
}

int test_targets(test_target targets[TEST_MAX_TARGETS])
{
    const char* only = getenv("KVLOOM_TEST_TARGET");
    int n = 0;
    targets[n++] = (test_target){ "reference", KVL_TARGET_REFERENCE, NULL };
    if (only && strcmp(only, "cuda") == 0) {
        targets[n++] = test_cuda_target();
        return n;
    }
#ifdef KVLOOM_NO_LUA
    return n;                    // nothing can make the host's kernels
#endif
    for (int i = 0; i < KVL__NUM_ISAS; ++i)
        if (kvl__isas[i].detect() && !test_is_variant(kvl__isas[i].name))
            targets[n++] = (test_target){ kvl__isas[i].name, KVL_TARGET_HOST, kvl__isas[i].name };
    return n;
}

test_target test_cuda_target_of(const char* arch)
{
    static int loaded;
    kvl_context_desc desc = { 0 };
    kvl_context* ctx = NULL;
    const char* path = NULL;
    if (sim_is_wanted() && !loaded) sim_load(arch);
    loaded = 1;
    desc.target = KVL_TARGET_CUDA;
    cr_assert(kvl_context_create(&desc, &ctx) == KVL_OK, "%s", kvl_context_message(ctx));
    const int has_nvrtc = kvl__nvrtc_path(ctx, &path) == KVL_OK;
    kvl_context_destroy(ctx);
    if (!has_nvrtc) cr_skip_test("no NVRTC");
    return (test_target){ "cuda", KVL_TARGET_CUDA, NULL };
}

test_target test_cuda_target(void) { return test_cuda_target_of("sm_99"); }

int test_attend_targets(test_target targets[TEST_MAX_TARGETS])
{
    static const char* const exact[] = { "avx512 exact", "avx2 exact", "neon exact",
                                         "portable exact" };
    const int num_levels = test_targets(targets);
    int n = num_levels;
    for (int i = 1; i < num_levels; ++i)
        for (int j = 0; j < 4 && targets[i].isa; ++j)
            if (strncmp(exact[j], targets[i].isa, strlen(targets[i].isa)) == 0)
                targets[n++] = (test_target){ exact[j], KVL_TARGET_HOST, targets[i].isa };
    return n;
}

int test_is_exact(const test_target* target) { return strstr(target->name, " exact") != NULL; }

void test_elsewhere(void* (*function)(void*), void* arg)
{
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, function, arg), 0, "a thread");
    pthread_join(thread, NULL);
}

void test_ok(kvl_context* ctx, kvl_status status, const char* what)
{
    cr_assert(status == KVL_OK, "%s: %s: %s", what, kvl_status_text(status),
              kvl_context_message(ctx));
}

kvl_context* test_context(const test_target* target, int num_threads)
{
    kvl_context_desc desc = { 0 };
    kvl_context* ctx = NULL;
    desc.target = target->target;
    desc.isa = target->isa;
    desc.exact = test_is_exact(target);
    desc.num_threads = num_threads;
    const kvl_status status = kvl_context_create(&desc, &ctx);
    test_ok(ctx, status, target->name);
    return ctx;
}

// Inputs

static void lcg_next(test_lcg* lcg, int four[4])
{
    lcg->state = lcg->state * 6364136223846793005u + 1442695040888963407u;
    for (int i = 0; i < 4; ++i) four[i] = (int)(lcg->state >> (52 - 12 * i) & 4095u);
}

int test_bell(test_lcg* lcg)
{
    int f[4];
    lcg_next(lcg, f);
    return f[0] + f[1] + f[2] + f[3] - 8192;
}

int test_uniform(test_lcg* lcg, int n)
{
    int f[4];
    lcg_next(lcg, f);
    return f[0] * n / 4096;
}

// Channels with means and spreads of their own; every 16th is an outlier.
void test_rows(uint64_t seed, int64_t num_rows, int heads, int dim, float* out)
{
    test_lcg lcg = { seed };
    const int64_t row = (int64_t)heads * dim;
    int* mean = (int*)test_alloc((size_t)row, sizeof *mean);
    int* spread = (int*)test_alloc((size_t)row, sizeof *spread);
    for (int64_t i = 0; i < row; ++i) {
        const int c = (int)(i % dim), wide = c % 16 == 5 ? 4 : 1;
        int f[4];
        lcg_next(&lcg, f);
        mean[i] = c % 7 == 3 || wide == 4 ? (f[0] % 513 - 256) * wide : f[0] % 129 - 48;
        spread[i] = (8 + f[1] % 24) * wide;
    }
    for (int64_t i = 0; i < num_rows * row; ++i) {
        const int64_t at = i % row;
        out[i] = (float)(mean[at] * 8192 + spread[at] * test_bell(&lcg)) / 262144.0f;
    }
    free(mean);
    free(spread);
}

void test_queries(uint64_t seed, int64_t num_rows, int heads, int dim, float* out)
{
    test_lcg lcg = { seed };
    for (int64_t i = 0; i < num_rows * heads * dim; ++i)
        out[i] = (float)test_bell(&lcg) / 4096.0f;
}

void* test_alloc(size_t count, size_t size)
{
    void* ptr = calloc(count ? count : 1, size);
    cr_assert(ptr != NULL, "the test itself is out of memory");
    return ptr;
}

float* test_floats(int64_t count) { return (float*)test_alloc((size_t)count, sizeof(float)); }

// 16-bit types

// x to a float of `digits` significant bits, least exponent `least` of the last place.
static float round_to(float x, int digits, int least, double most)
{
    int e;
    if (x == 0) return x;
    (void)frexp((double)x, &e);
    const int place = e - digits > least ? e - digits : least;
    double y = ldexp(nearbyint(ldexp((double)x, -place)), place);
    if (y > most) y = most;
    if (y < -most) y = -most;
    return (float)y;
}

float test_round_f16(float x) { return round_to(x, 11, -24, 65504.0); }

float test_round_bf16(float x)
{
    return round_to(x, 8, -133, ldexp(255.0, 120));
}

uint16_t test_bits_f16(float x)
{
    int e;
    const unsigned sign = signbit(x) ? 0x8000u : 0;
    const double a = fabs((double)x);
    if (a == 0) return (uint16_t)sign;
    (void)frexp(a, &e);
    if (e < -13) return (uint16_t)(sign | (unsigned)ldexp(a, 24));
    return (uint16_t)(sign | (((unsigned)(e + 13) << 10) + (unsigned)ldexp(a, 11 - e)));
}

uint16_t test_bits_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)(u >> 16);
}

float test_value_f16(uint16_t bits)
{
    const int e = bits >> 10 & 31, m = bits & 1023;
    const double a = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return (float)(bits & 0x8000u ? -a : a);
}

float test_value_bf16(uint16_t bits)
{
    const uint32_t u = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

// Calibrated tables

enum { TABLE_FLOATS = 1 << 20, NUM_TABLES = 1024 };

typedef struct tables {
    kvl__table_source source;            // first: a kvl_calibration begins with it
    test_tables       kind;
} tables;

// Numbers that were asked for: they stay.  A test's process is small and short.
static struct { char name[512]; float* x; } kept[NUM_TABLES];
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t seed_of(const char* name)
{
    uint32_t hash = 2166136261u;
    for (; *name; ++name) hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash;
}

static int is_table(const kvl__wanted_table* w, const char* name)
{
    return strncmp(w->name, name, strlen(name)) == 0;
}

// A A^T of integers a, times 2^-30: a second moment.
static void make_moment(int dim, test_lcg* lcg, float* x)
{
    int* a = (int*)test_alloc((size_t)(dim * dim), sizeof *a);
    for (int i = 0; i < dim * dim; ++i) a[i] = test_bell(lcg);
    for (int i = 0; i < dim; ++i)
        for (int j = 0; j < dim; ++j) {
            int64_t sum = 0;
            for (int k = 0; k < dim; ++k) sum += (int64_t)a[i * dim + k] * a[j * dim + k];
            x[i * dim + j] = (float)sum / 1073741824.0f;
        }
    free(a);
}

// Row `of` of a Sylvester matrix of pieces of 16, whose entries are exact.
static void add_hadamard_row(int64_t dim, int64_t of, float factor, float* row)
{
    for (int64_t j = of / 16 * 16; j < of / 16 * 16 + 16 && j < dim; ++j)
        row[j] += __builtin_parityll((unsigned long long)(of & j & 15)) ? -0.25f * factor
                                                                       : 0.25f * factor;
}

// F = S P H of a dense transform, or Q = F^-T = S^-T P H: H a Hadamard of pieces of 16, P the
// permutation i -> (17 i + 3) mod dim, S shears pairs [[s, 1/2], [0, t]], s and t 1 or 2.
static void make_transform(int head, int64_t dim, int is_query, float* x)
{
    memset(x, 0, (size_t)(dim * dim) * sizeof *x);
    for (int64_t i = 0; i < dim; i += 2) {
        const int64_t a = (17 * i + 3) % dim, b = (17 * (i + 1) + 3) % dim;
        const float s = (i / 2 + head) % 3 == 0 ? 2.0f : 1.0f, t = i / 2 % 5 == 1 ? 2.0f : 1.0f;
        float *first = x + i * dim, *second = x + (i + 1) * dim;
        add_hadamard_row(dim, a, is_query ? 1.0f / s : s, first);
        if (is_query) add_hadamard_row(dim, a, -0.5f / (s * t), second);
        else add_hadamard_row(dim, b, 0.5f, first);
        add_hadamard_row(dim, b, is_query ? 1.0f / t : t, second);
    }
}

// An order of channels; numbers within 1/16 below the diagonal, or beside it.
static void make_feedback(const kvl__wanted_table* w, test_lcg* lcg, int64_t count, float* x)
{
    const int64_t dim = w->shape[0];
    for (int64_t i = 0; i < count; ++i) {
        const int64_t row = i / dim, column = i % dim;
        const int used = is_table(w, "feedback_price") ? row != column : column < row;
        const int bell = test_bell(lcg);
        x[i] = used ? (float)bell / 131072.0f : 0.0f;
        if (w->rank == 1) x[i] = (float)((17 * i + 5) % dim);
    }
}

// Bits of pairs: one has as many more than the mean as the next one has less, up to 6.
static void make_pair_bits(const kvl__wanted_table* w, test_lcg* lcg, int64_t count, float* x)
{
    const int mean = w->name[strlen("pair_bits@b")] - '0', most = mean < 6 - mean ? mean : 6 - mean;
    for (int64_t i = 0; i < count; i += 4) {
        const int more = (test_bell(lcg) & 255) % (most + 1);
        x[i] = x[i + 1] = (float)(mean + more);
        x[i + 2] = x[i + 3] = (float)(mean - more);
    }
}

// One head's table, from a generator of its own.
static void make_table(const kvl__wanted_table* w, int head, test_lcg* lcg, int64_t count, float* x)
{
    if (strstr(w->name, "_forward") || strstr(w->name, "_query")) {
        make_transform(head, w->shape[0], strstr(w->name, "_query") != NULL, x);
        return;
    }
    if (is_table(w, "log4_base") || is_table(w, "feedback_cost") || is_table(w, "static_half") ||
        is_table(w, "pair_size") || is_table(w, "tensor_scale") || is_table(w, "head_scale")) {
        for (int64_t i = 0; i < count; ++i) x[i] = (float)(128 + (test_bell(lcg) & 255)) / 256.0f;
        return;
    }
    if (is_table(w, "kmeans_book")) {
        for (int64_t i = 0; i < count; ++i)
            x[i] = (float)(512 * i - 2048 + (test_bell(lcg) & 255)) / 2048.0f;
        return;
    }
    if (is_table(w, "pair_bits")) {
        make_pair_bits(w, lcg, count, x);
        return;
    }
    if (is_table(w, "grouped_order") || is_table(w, "outlier_order")) {
        const int64_t all = is_table(w, "outlier_order") ? count : count * w->num_kv_heads;
        for (int64_t i = 0; i < count; ++i) x[i] = (float)((17 * (head * count + i) + 5) % all);
        return;
    }
    if (is_table(w, "feedback_")) {
        make_feedback(w, lcg, count, x);
        return;
    }
    if (is_table(w, "query_moment")) {
        make_moment((int)w->shape[0], lcg, x);
        return;
    }
    for (int64_t i = 0; i < count; ++i) {
        const int bell = test_bell(lcg);
        x[i] = (float)bell / 4096.0f;
        if (is_table(w, "queries")) x[i] /= 8.0f;
        else if (is_table(w, "predicted")) x[i] /= 32.0f;
        else if (is_table(w, "query_lse")) x[i] += 4.0f;
        else if (is_table(w, "choice")) x[i] = bell > (i + 1 < count ? 0 : 2048) ? 1.0f : 0.0f;
    }
}

static float* keep_table(const char* name, const kvl__wanted_table* w, int64_t count)
{
    int at = 0;
    while (at < NUM_TABLES && kept[at].x && strcmp(kept[at].name, name) != 0) ++at;
    cr_assert(at < NUM_TABLES && count <= TABLE_FLOATS, "the test's own limit of tables");
    if (!kept[at].x) {
        test_lcg lcg = { seed_of(name) };
        snprintf(kept[at].name, sizeof kept[at].name, "%s", name);
        kept[at].x = test_floats(count * w->num_kv_heads);
        for (int head = 0; head < w->num_kv_heads; ++head)
            make_table(w, head, &lcg, count, kept[at].x + head * count);
    }
    return kept[at].x;
}

static kvl_status find_table(kvl_context* ctx, const kvl__table_source* source,
                             const kvl__wanted_table* w, const float** out)
{
    static const float spoilt[TABLE_FLOATS] = { INFINITY };
    const tables* t = (const tables*)(const void*)source;
    char name[512];
    int64_t count = 1;
    (void)ctx;
    *out = NULL;
    for (int i = 0; i < w->rank; ++i) count *= w->shape[i];
    if (t->kind == TEST_TABLES_SPOILT) *out = spoilt;
    if (t->kind != TEST_TABLES) return KVL_OK;
    // Of a table of one composition, the name alone; of bits, how many in the mean.
    const char* end = is_table(w, "pair_bits") ? "," : "@";
    snprintf(name, sizeof name, "%d.%d.%d %d.%c.%.*s", w->num_kv_heads, (int)w->shape[0],
             w->rank > 1 ? (int)w->shape[1] : 1, w->layer, w->side ? 'v' : 'k',
             (int)strcspn(w->name, end), w->name);
    pthread_mutex_lock(&kept_lock);
    *out = keep_table(name, w, count);
    pthread_mutex_unlock(&kept_lock);
    return KVL_OK;
}

const kvl_calibration* test_calibration(test_tables kind)
{
    static const tables sources[] = { { { find_table, NULL, 0 }, TEST_TABLES },
                                      { { find_table, NULL, 0 }, TEST_TABLES_EMPTY },
                                      { { find_table, NULL, 0 }, TEST_TABLES_SPOILT } };
    return (const kvl_calibration*)(const void*)&sources[kind];
}

// Files in memory

int test_put_bytes(const void* from, size_t num, void* user)
{
    test_bytes* b = (test_bytes*)user;
    if (b->limit && b->size + num > b->limit) return 1;
    if (b->size + num > b->room) {
        b->room = 2 * (b->size + num);
        b->data = (unsigned char*)realloc(b->data, b->room);
        cr_assert(b->data);
    }
    memcpy(b->data + b->size, from, num);
    b->size += num;
    return 0;
}

int test_take_bytes(void* to, size_t num, void* user)
{
    test_bytes* b = (test_bytes*)user;
    if (num > b->size - b->at) return 1;
    memcpy(to, b->data + b->at, num);
    b->at += num;
    return 0;
}

// Rows of a model

#ifndef KVLOOM_TEST_ROOT
#define KVLOOM_TEST_ROOT "."
#endif

enum { RECORDED_BYTES = 1 << 17 };

typedef struct recorded {
    kvl__table_source source;            // first: a kvl_calibration begins with it
    float*            queries;
    float*            query_lse;
    float*            mean;
    int               num_queries;       // of each head in the file
    float*            part[2];           // as many of queries and query_lse as were asked for
} recorded;

// The first `count` numbers of each head's `all`.
static float* part_of(float** part, const float* x, int heads, int64_t count, int64_t all)
{
    if (!*part) *part = test_floats(heads * all);
    for (int head = 0; head < heads; ++head)
        memcpy(*part + head * count, x + head * all, (size_t)count * sizeof *x);
    return *part;
}

static kvl_status find_recorded(kvl_context* ctx, const kvl__table_source* source,
                                const kvl__wanted_table* w, const float** out)
{
    recorded* r = (recorded*)(uintptr_t)(const void*)source;
    const int heads = w->num_kv_heads;
    const int64_t number = w->shape[0];
    (void)ctx;
    *out = NULL;
    if (is_table(w, "mean")) *out = r->mean;
    if (!is_table(w, "quer") || number > r->num_queries) return KVL_OK;
    if (is_table(w, "queries"))
        *out = part_of(&r->part[0], r->queries, heads, number * w->shape[1],
                       r->num_queries * w->shape[1]);
    if (is_table(w, "query_lse"))
        *out = part_of(&r->part[1], r->query_lse, heads, number, r->num_queries);
    return KVL_OK;
}

// `count` numbers at *at as floats: f32, or f16 if is_half.
static float* take(const unsigned char** at, int64_t count, int is_half)
{
    float* x = test_floats(count);
    for (int64_t i = 0; i < count; ++i, *at += is_half ? 2 : 4) {
        uint16_t half;
        memcpy(&half, *at, 2);
        if (is_half) x[i] = test_value_f16(half);
        else memcpy(&x[i], *at, 4);
    }
    return x;
}

test_recorded test_recorded_rows(const char* name)
{
    static recorded tables;
    static test_recorded rows;
    char path[512];
    if (rows.k) return rows;
    snprintf(path, sizeof path, "%s/tests/fixtures/rows_%s.bin", KVLOOM_TEST_ROOT, name);
    unsigned char* data = (unsigned char*)test_alloc(RECORDED_BYTES, 1);
    FILE* file = fopen(path, "rb");
    cr_assert(file != NULL, "%s cannot be opened", path);
    const size_t bytes = fread(data, 1, RECORDED_BYTES - 1, file);
    fclose(file);
    int header = 0;
    cr_assert(sscanf((const char*)data, "kvloom_rows 1\nrows %d heads %d dim %d queries %d%n",
                     &rows.num_rows, &rows.heads, &rows.dim, &tables.num_queries, &header) == 4,
              "%s: not recorded rows", path);
    const int64_t row = (int64_t)rows.heads * rows.dim, q = tables.num_queries;
    cr_assert((int64_t)bytes == header + 1 + 4 * rows.num_rows * row + 2 * q * row +
                                4 * q * rows.heads + 4 * row, "%s: %zu bytes", path, bytes);
    const unsigned char* at = data + header + 1;
    rows.k = take(&at, rows.num_rows * row, 1);
    rows.v = take(&at, rows.num_rows * row, 1);
    tables.queries = take(&at, q * row, 1);
    tables.query_lse = take(&at, q * rows.heads, 0);
    tables.mean = take(&at, row, 0);
    tables.source.find = find_recorded;
    rows.calibration = (const kvl_calibration*)(const void*)&tables;
    free(data);
    return rows;
}

// Calls

// Bytes of a view of rows.
static size_t view_bytes(const kvl_const_rows* rows, int64_t num_rows, int heads, int dim)
{
    const int64_t head = rows->head_stride ? rows->head_stride : dim;
    const int64_t row = rows->row_stride ? rows->row_stride : head * heads;
    const int64_t size = rows->type == KVL_F32 ? 4 : 2;
    return num_rows > 0 ? (size_t)(((num_rows - 1) * row + (heads - 1) * head + dim) * size) : 0;
}

typedef struct device_copy {
    uint64_t address;
    void*    host;
    size_t   bytes;
} device_copy;

// What the host has at `host`; NULL stays NULL.
static device_copy copy_in(kvl_cache* cache, const void* host, size_t bytes)
{
    device_copy c = { 0, (void*)(uintptr_t)host, bytes };
    const kvl__driver* d = &cache->ctx->gpu->driver;
    if (!host || bytes == 0) return c;
    cr_assert(d->ctx_push(cache->ctx->gpu->primary) == 0 && d->mem_alloc(&c.address, bytes) == 0,
              "device memory of the test itself");
    cr_assert(d->copy_to_device(c.address, host, bytes) == 0, "copy to the device");
    kvl__gpu_leave(cache->ctx);
    return c;
}

static void copy_out(kvl_cache* cache, device_copy* c, int wanted)
{
    if (!c->address) return;
    if (wanted)
        test_ok(cache->ctx, kvl__device_download(cache->ctx, cache->device.stream, c->host,
                                                 c->address, c->bytes), "copy from the device");
    const kvl__driver* d = &cache->ctx->gpu->driver;
    if (d->ctx_push(cache->ctx->gpu->primary) != 0) return;
    d->mem_free(c->address);
    kvl__gpu_leave(cache->ctx);
}

static const kvl__config* config_of(const kvl_cache* cache, int layer)
{
    return layer >= 0 && layer < cache->num_layers ? &cache->layers[layer].config : NULL;
}

static int64_t rows_of(const int32_t* num_rows, int num_seqs)
{
    int64_t all = num_rows ? 0 : num_seqs;
    for (int i = 0; num_rows && i < num_seqs; ++i) all += num_rows[i] > 0 ? num_rows[i] : 0;
    return all;
}

// The desc with rows on the device, and their copies.
static kvl_append_desc append_in(kvl_cache* cache, const kvl_append_desc* d, device_copy copies[2])
{
    const kvl__config* c = config_of(cache, d->layer);
    const int64_t rows = rows_of(d->num_rows, d->num_seqs);
    kvl_append_desc to = *d;
    kvl_const_rows* views[2] = { &to.k, &to.v };
    memset(copies, 0, 2 * sizeof copies[0]);
    for (int side = 0; side < 2 && c; ++side) {
        const size_t bytes = view_bytes(views[side], rows, c->num_kv_heads, c->side[side].head_dim);
        copies[side] = copy_in(cache, views[side]->data, bytes);
        if (copies[side].address) views[side]->data = (void*)(uintptr_t)copies[side].address;
    }
    return to;
}

static kvl_attend_desc attend_in(kvl_cache* cache, const kvl_attend_desc* d, device_copy copies[3])
{
    const kvl__config* c = config_of(cache, d->layer);
    const int64_t rows = rows_of(d->q_lens, d->num_seqs);
    kvl_attend_desc to = *d;
    memset(copies, 0, 3 * sizeof copies[0]);
    if (!c || d->o.data == d->q.data) return to;
    const int heads = c->num_heads * c->num_kv_heads;
    const kvl_const_rows o = { d->o.data, d->o.type, d->o.row_stride, d->o.head_stride };
    copies[0] = copy_in(cache, d->q.data, view_bytes(&d->q, rows, heads, c->side[0].head_dim));
    copies[1] = copy_in(cache, d->o.data, view_bytes(&o, rows, heads, c->value_dim));
    copies[2] = copy_in(cache, d->lse, (size_t)(rows * heads) * sizeof(float));
    if (copies[0].address) to.q.data = (void*)(uintptr_t)copies[0].address;
    if (copies[1].address) to.o.data = (void*)(uintptr_t)copies[1].address;
    if (copies[2].address) to.lse = (float*)(uintptr_t)copies[2].address;
    return to;
}

static int has_device(const kvl_cache* cache) { return cache && cache->ctx->gpu; }

kvl_status test_call_append(kvl_cache* cache, const kvl_append_desc* desc)
{
    device_copy copies[2];
    if (!has_device(cache) || !desc || desc->replay) return kvl_append(cache, desc);
    const kvl_append_desc on_device = append_in(cache, desc, copies);
    const kvl_status status = kvl_append(cache, &on_device);
    for (int i = 0; i < 2; ++i) copy_out(cache, &copies[i], 0);
    return status;
}

kvl_status test_call_attend(kvl_cache* cache, const kvl_attend_desc* desc)
{
    device_copy copies[3];
    if (!has_device(cache) || !desc) return kvl_attend(cache, desc);
    const kvl_attend_desc on_device = attend_in(cache, desc, copies);
    const kvl_status status = kvl_attend(cache, &on_device);
    for (int i = 0; i < 3; ++i) copy_out(cache, &copies[i], i > 0 && status == KVL_OK);
    return status;
}

kvl_status test_call_append_attend(kvl_cache* cache, const kvl_append_desc* append,
                                   const kvl_attend_desc* attend)
{
    device_copy rows[2], results[3];
    if (!has_device(cache) || !append || !attend) return kvl_append_attend(cache, append, attend);
    const kvl_append_desc a = append_in(cache, append, rows);
    const kvl_attend_desc t = attend_in(cache, attend, results);
    const kvl_status status = kvl_append_attend(cache, &a, &t);
    for (int i = 0; i < 2; ++i) copy_out(cache, &rows[i], 0);
    for (int i = 0; i < 3; ++i) copy_out(cache, &results[i], i > 0 && status == KVL_OK);
    return status;
}

kvl_status test_call_restore(kvl_cache* cache, int layer, kvl_seq seq, int64_t first, int64_t num,
                             const kvl_rows* k, const kvl_rows* v)
{
    const kvl__config* c = has_device(cache) ? config_of(cache, layer) : NULL;
    const kvl_rows* const rows[2] = { k, v };
    kvl_rows on_device[2];
    device_copy copies[2];
    if (!c || num < 0 || num > 1 << 20) return kvl_restore(cache, layer, seq, first, num, k, v);
    memset(copies, 0, sizeof copies);
    memset(on_device, 0, sizeof on_device);
    for (int side = 0; side < 2; ++side) {
        if (!rows[side]) continue;
        const kvl_const_rows view = { rows[side]->data, rows[side]->type, rows[side]->row_stride,
                                      rows[side]->head_stride };
        on_device[side] = *rows[side];
        const int dim = side ? c->value_dim : c->side[0].head_dim;
        copies[side] = copy_in(cache, view.data, view_bytes(&view, num, c->num_kv_heads, dim));
        if (copies[side].address) on_device[side].data = (void*)(uintptr_t)copies[side].address;
    }
    const kvl_status status = kvl_restore(cache, layer, seq, first, num, k ? &on_device[0] : NULL,
                                          v ? &on_device[1] : NULL);
    for (int side = 0; side < 2; ++side) copy_out(cache, &copies[side], status == KVL_OK);
    return status;
}

// A cache of one layer

kvl_layer_desc test_layer(const char* spec, int q_heads, int kv_heads, int dk, int dv)
{
    kvl_layer_desc layer = { 0 };
    layer.spec = spec;
    layer.num_q_heads = q_heads;
    layer.num_kv_heads = kv_heads;
    layer.head_dim = dk;
    layer.head_dim_v = dv;
    return layer;
}

static test_cache open_cache(const test_target* target, const kvl_layer_desc* layer, int threads,
                             const kvl_calibration* calibration)
{
    test_cache c;
    memset(&c, 0, sizeof c);
    kvl_cache_desc desc = { 0 };
    desc.num_layers = 1;
    desc.layers = layer;
    desc.calibration = calibration;
    c.ctx = test_context(target, threads);
    c.layer = *layer;
    c.dv = layer->head_dim_v ? layer->head_dim_v : layer->head_dim;
    const kvl_status status = kvl_cache_create(c.ctx, &desc, &c.cache);
    cr_assert(status == KVL_OK, "%s: %s head_dim %d, %d: %s", target->name, layer->spec,
              layer->head_dim, c.dv, kvl_context_message(c.ctx));
    test_ok(c.ctx, kvl_cache_layer_info(c.cache, 0, &c.info), layer->spec);
    cr_assert(c.info.uses_generated == (target->target != KVL_TARGET_REFERENCE),
              "%s: uses_generated = %d", target->name, c.info.uses_generated);
    // 16-bit rows are floats at every level; two levels have no integer sums.
    const char* isa = target->target == KVL_TARGET_CUDA ? "tensor" : target->isa;
    c.rounds = isa && !test_is_exact(target) && strcmp(isa, "neon") != 0 &&
               strcmp(isa, "portable") != 0 &&
               (c.info.k_bits < 16.0f || c.info.v_bits < 16.0f);
    return c;
}

test_cache test_open_calibrated(const test_target* target, const kvl_layer_desc* layer,
                                const kvl_calibration* calibration)
{
    return open_cache(target, layer, 0, calibration);
}

test_cache test_open_threads(const test_target* target, const kvl_layer_desc* layer, int threads)
{
    return open_cache(target, layer, threads, test_calibration(TEST_TABLES));
}

test_cache test_open(const test_target* target, const kvl_layer_desc* layer)
{
    return test_open_threads(target, layer, 0);
}

void test_close(test_cache* c)
{
    kvl_cache_free(c->cache);
    kvl_context_destroy(c->ctx);
}

kvl_seq test_seq(test_cache* c)
{
    kvl_seq seq = 0;
    test_ok(c->ctx, kvl_seq_create(c->cache, &seq), "kvl_seq_create");
    cr_assert(seq != 0, "zero is no sequence");
    return seq;
}

void test_append(test_cache* c, kvl_seq seq, const float* k, const float* v, int64_t first,
                 int num)
{
    kvl_append_desc desc = { 0 };
    const int32_t num_rows = num;
    desc.num_seqs = 1;
    desc.seqs = &seq;
    desc.num_rows = &num_rows;
    desc.k.data = k + first * c->layer.num_kv_heads * c->layer.head_dim;
    desc.v.data = v + first * c->layer.num_kv_heads * c->dv;
    test_ok(c->ctx, test_call_append(c->cache, &desc), "kvl_append");
}

void test_fitted_open(test_fitted* b, const test_target* target, const kvl_layer_desc* layer,
                      const kvl_statistics_rows* rows, const kvl_derivation* own, int num_own)
{
    kvl_statistics_desc desc = { 0 };
    kvl_statistics* stats = NULL;
    kvl_cache_desc cache = { 0 };
    kvl_derive_desc derive = { 0 };
    memset(b, 0, sizeof *b);
    b->c.layer = *layer;
    b->c.dv = layer->head_dim_v;
    b->c.ctx = test_context(target, 1);
    desc.num_layers = cache.num_layers = 1;
    desc.layers = cache.layers = &b->c.layer;
    test_ok(b->c.ctx, kvl_statistics_create(b->c.ctx, &desc, &stats), "statistics");
    test_ok(b->c.ctx, kvl_statistics_add(stats, rows), "rows");
    test_ok(b->c.ctx, kvl_calibration_create(stats, NULL, &b->calibration), layer->spec);
    derive.stats = stats;
    derive.cache = &cache;
    derive.derivations = own;
    derive.num_derivations = num_own;
    test_ok(b->c.ctx, kvl_calibration_derive(b->calibration, &derive), layer->spec);
    cache.calibration = b->calibration;
    test_ok(b->c.ctx, kvl_cache_create(b->c.ctx, &cache, &b->c.cache), layer->spec);
    test_ok(b->c.ctx, kvl_cache_layer_info(b->c.cache, 0, &b->c.info), layer->spec);
    b->seq = test_seq(&b->c);
    test_append(&b->c, b->seq, (const float*)rows->k.data, (const float*)rows->v.data, 0,
                (int)rows->num_keys);
    kvl_statistics_free(stats);
}

void test_fitted_close(test_fitted* b)
{
    kvl_cache_free(b->c.cache);
    kvl_calibration_free(b->calibration);
    kvl_context_destroy(b->c.ctx);
}

void test_attend(test_cache* c, kvl_seq seq, const float* q, int num_q, const int64_t* positions,
                 float* o, float* lse)
{
    kvl_attend_desc desc = { 0 };
    const int32_t q_len = num_q;
    desc.num_seqs = 1;
    desc.seqs = &seq;
    desc.q_lens = &q_len;
    desc.q_positions = positions;
    desc.q.data = q;
    desc.o.data = o;
    desc.lse = lse;
    test_ok(c->ctx, test_call_attend(c->cache, &desc), "kvl_attend");
}

void test_restore(test_cache* c, kvl_seq seq, int64_t first, int64_t num, float* k, float* v)
{
    kvl_rows rows[2];
    memset(rows, 0, sizeof rows);
    rows[0].data = k;
    rows[1].data = v;
    test_ok(c->ctx, test_call_restore(c->cache, 0, seq, first, num, &rows[0], &rows[1]),
            "kvl_restore");
}

test_codes test_read_codes(test_cache* c, kvl_seq seq, int head, int is_value)
{
    test_codes out;
    kvl_seq_rows rows = { 0 };
    memset(&out, 0, sizeof out);
    test_ok(c->ctx, kvl_seq_get_rows(c->cache, 0, seq, &rows), "kvl_seq_get_rows");
    out.num = rows.quantized;
    out.num_codes = rows.quantized * (is_value ? c->dv : c->layer.head_dim);
    test_ok(c->ctx, kvl_read_codes(c->cache, 0, seq, head, is_value, 0, out.num, &out.c),
            "kvl_read_codes, sizes");
    out.c.codes = (uint16_t*)test_alloc((size_t)out.num_codes, sizeof(uint16_t));
    if (out.c.num_groups > 0) {
        out.c.scales = test_floats(out.c.num_groups);
        out.c.offsets = test_floats(out.c.num_groups);
    }
    if (out.c.num_choices > 0)
        out.c.choices = (uint32_t*)test_alloc((size_t)out.c.num_choices, sizeof(uint32_t));
    test_ok(c->ctx, kvl_read_codes(c->cache, 0, seq, head, is_value, 0, out.num, &out.c),
            "kvl_read_codes");
    return out;
}

void test_codes_free(test_codes* codes)
{
    free(codes->c.codes);
    free(codes->c.scales);
    free(codes->c.offsets);
    free(codes->c.choices);
}

static uint64_t hash_bytes(uint64_t h, const void* data, size_t bytes)
{
    const unsigned char* p = (const unsigned char*)data;
    for (size_t i = 0; i < bytes; ++i) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

// A device reads pages of sequences alone: one is made of any rows, and its codes are replaced.
static void read_linear_on_device(test_cache* c, int is_value, const unsigned char* linear,
                                  int num_rows, uint16_t* codes)
{
    const kvl__layer* l = &c->cache->layers[0];
    const kvl__codec* codec = &l->config.side[is_value];
    const size_t bytes = (size_t)kvl__layout_of(codec, l->config.page_size).bytes;
    const int64_t most = (int64_t)num_rows * (codec->head_dim > c->dv ? codec->head_dim : c->dv);
    unsigned char* page = (unsigned char*)test_alloc(bytes, 1);
    unsigned char* file = (unsigned char*)test_alloc(bytes, 1);
    float* rows = test_floats(most);
    kvl__linear_args to = { codec, page, file, l->config.page_size, num_rows, 1 };
    const kvl_seq seq = test_seq(c);
    memset(rows, 0, (size_t)most * sizeof *rows);
    test_append(c, seq, rows, rows, 0, num_rows);
    memcpy(file, linear, (size_t)num_rows * (size_t)codec->head_dim * (size_t)codec->bits / 8);
    (is_value ? l->program.linear_values : l->program.linear_keys)(&to);
    unsigned char* at = kvl__page_at(&kvl__seq_find(c->cache, seq)->layers[0], 0);
    test_ok(c->ctx, kvl__device_upload(c->ctx, c->cache->device.stream, kvl__page_of(at)->device +
                                       (uint64_t)kvl__side_at(l, 0, is_value), page, bytes),
            "a page of codes");
    test_codes got = test_read_codes(c, seq, 0, is_value);
    memcpy(codes, got.c.codes, (size_t)got.num_codes * sizeof *codes);
    test_codes_free(&got);
    test_ok(c->ctx, kvl_seq_free(c->cache, seq), "a sequence");
    free(page);
    free(file);
    free(rows);
}

void test_read_linear(test_cache* c, int is_value, const unsigned char* linear, int num_rows,
                      uint16_t* codes)
{
    const kvl__layer* l = &c->cache->layers[0];
    const kvl__codec* codec = &l->config.side[is_value];
    const kvl__side_layout layout = kvl__layout_of(codec, l->config.page_size);
    const size_t code_bytes = (size_t)num_rows * (size_t)codec->head_dim * (size_t)codec->bits / 8;
    unsigned char* page = (unsigned char*)test_alloc((size_t)layout.bytes, 1);
    unsigned char* file = (unsigned char*)test_alloc((size_t)layout.bytes, 1);
    kvl__linear_args to = { codec, page, file, l->config.page_size, num_rows, 1 };
    if (kvl__on_device(c->cache)) {
        read_linear_on_device(c, is_value, linear, num_rows, codes);
        free(page);
        free(file);
        return;
    }
    kvl__decode_args from = { codec, NULL, page, l->config.page_size, 0, num_rows, NULL, codes,
                              NULL, NULL, NULL };
    memcpy(file, linear, code_bytes);
    (is_value ? l->program.linear_values : l->program.linear_keys)(&to);
    (is_value ? l->program.decode_values : l->program.decode_keys)(&from);
    free(page);
    free(file);
}

void test_walk(const float* y, int n, int bits, int states, uint16_t* codes, uint16_t* levels)
{
    const kvl__trellis trellis = kvl__trellis_of(states, bits);
    kvl__trellis_walk(&trellis, y, n, codes, levels);
}

void test_no_cache(kvl_context* ctx, const kvl_cache_desc* desc, const char* words)
{
    kvl_cache* none = NULL;
    const kvl_status status = kvl_cache_create(ctx, desc, &none);
    cr_expect(status == KVL_BAD_ARGUMENT && !none && strstr(kvl_context_message(ctx), words),
              "'%s', expected '%s'", kvl_context_message(ctx), words);
    kvl_cache_free(none);
}

test_state test_snapshot(test_cache* c, kvl_seq seq)
{
    test_state s;
    memset(&s, 0, sizeof s);
    s.codes = s.meta = s.restored = 14695981039346656037u;
    test_ok(c->ctx, kvl_seq_get_rows(c->cache, 0, seq, &s.rows), "kvl_seq_get_rows");
    for (int head = 0; head < c->layer.num_kv_heads; ++head) {
        for (int side = 0; side < 2; ++side) {
            test_codes codes = test_read_codes(c, seq, head, side);
            const size_t meta_bytes = (size_t)codes.c.num_groups * sizeof(float);
            s.codes = hash_bytes(s.codes, codes.c.codes, (size_t)codes.num_codes * 2);
            if (meta_bytes) {
                s.meta = hash_bytes(s.meta, codes.c.scales, meta_bytes);
                s.meta = hash_bytes(s.meta, codes.c.offsets, meta_bytes);
            }
            test_codes_free(&codes);
        }
    }
    const int64_t nk = s.rows.rows * c->layer.num_kv_heads * c->layer.head_dim;
    const int64_t nv = s.rows.rows * c->layer.num_kv_heads * c->dv;
    float* k = test_floats(nk);
    float* v = test_floats(nv);
    test_restore(c, seq, 0, s.rows.rows, k, v);
    s.restored = hash_bytes(hash_bytes(s.restored, k, (size_t)nk * 4), v, (size_t)nv * 4);
    free(k);
    free(v);
    return s;
}

void test_same_state(const test_state* a, const test_state* b, const char* what)
{
    cr_assert(a->rows.rows == b->rows.rows && a->rows.sink == b->rows.sink &&
              a->rows.quantized == b->rows.quantized && a->rows.tail == b->rows.tail,
              "%s: rows %lld = %lld + %lld + %lld, expected %lld = %lld + %lld + %lld", what,
              (long long)b->rows.rows, (long long)b->rows.sink, (long long)b->rows.quantized,
              (long long)b->rows.tail, (long long)a->rows.rows, (long long)a->rows.sink,
              (long long)a->rows.quantized, (long long)a->rows.tail);
    cr_assert(a->codes == b->codes, "%s: codes differ", what);
    cr_assert(a->meta == b->meta, "%s: scales or offsets differ", what);
    cr_assert(a->restored == b->restored, "%s: restored rows differ", what);
}

// Attention in float64

enum { SCORE_CAPACITY = 1 << 16 };

static double norm2(const float* x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

// sqrt of the sum over channels of the largest square: no row is longer, whichever basis.
static double envelope(const float* rows, int64_t num_rows, int64_t stride, int dim)
{
    double sum = 0;
    for (int c = 0; c < dim; ++c) {
        double most = 0;
        for (int64_t t = 0; t < num_rows; ++t)
            most = fmax(most, fabs((double)rows[t * stride + c]));
        sum += most * most;
    }
    return sqrt(sum);
}

static double largest(const float* rows, int64_t num_rows, int64_t stride, int dim, int as_norm)
{
    double most = 0;
    for (int64_t t = 0; t < num_rows; ++t) {
        if (as_norm) most = fmax(most, norm2(rows + t * stride, dim));
        else for (int c = 0; c < dim; ++c) most = fmax(most, fabs((double)rows[t * stride + c]));
    }
    return most;
}

// What float32 may be off by.  u = 2^-24.  A dot product of n terms errs by about sqrt(n) u times
// the product of the norms, four times that with all but certainty; codes split a row into scale *
// code and offset, each at most three times the row.  exp of x errs by u |x| and its own few u.
static void attention_bounds(test_attention* a, int i, int h, const double* s, int64_t n)
{
    const double u = ldexp(1, -24);
    const int64_t at = (int64_t)i * a->q_heads + h;
    const int head = h / (a->q_heads / a->kv_heads);
    const double q_norm = norm2(a->q + at * a->dk, a->dk);
    const double k_norm = envelope(a->k + (int64_t)head * a->dk, a->kv_len,
                                   (int64_t)a->kv_heads * a->dk, a->dk);
    const double v_size = largest(a->v + (int64_t)head * a->dv, a->kv_len,
                                  (int64_t)a->kv_heads * a->dv, a->dv, a->transformed);
    double top = s[0], bottom = s[0], size = 0;
    for (int64_t t = 0; t < n; ++t) {
        top = fmax(top, s[t]);
        bottom = fmin(bottom, s[t]);
        size = fmax(size, fabs(s[t]));
    }
    double score = 12 * (sqrt(a->dk) + 4) * u * a->softmax_scale * q_norm * k_norm + 2 * u * size;
    if (a->soft_cap > 0) score += 8 * u * a->soft_cap;
    const double exponent = u * (2 * fmin(top - bottom, 100) + 16);
    const double sum = u * (4 * sqrt((double)n) + 16);
    a->lse_bound[at] = score + exponent + sum + u * fabs(a->lse[at]);
    a->o_bound[at] = (2 * (score + exponent) + 2 * sum + 4 * u * sqrt(a->dv)) *
                     (a->transformed ? v_size : 3 * v_size);
    if (!a->rounds) return;
    double most = 0;
    for (int c = 0; c < a->dv; ++c) most = fmax(most, fabs(a->o[at * a->dv + c]));
    a->lse_bound[at] += 1e-3;
    a->o_bound[at] += 1e-3 * most;
}

static void attention_head(test_attention* a, int i, int h, double* s)
{
    const int64_t at = (int64_t)i * a->q_heads + h, p = a->positions[i];
    const int64_t last = p < a->kv_len - 1 ? p : a->kv_len - 1;
    const int64_t first = a->window_len && p - a->window_len + 1 > 0 ? p - a->window_len + 1 : 0;
    const int head = h / (a->q_heads / a->kv_heads);
    double top = -INFINITY, sum = 0;
    double* o = a->o + at * a->dv;
    a->lse[at] = -INFINITY;
    if (first > last) return;
    for (int64_t t = first; t <= last; ++t) {
        const float* k = a->k + (t * a->kv_heads + head) * a->dk;
        double dot = 0;
        for (int c = 0; c < a->dk; ++c) dot += (double)a->q[at * a->dk + c] * (double)k[c];
        dot *= a->softmax_scale;
        if (a->soft_cap > 0) dot = a->soft_cap * tanh(dot / a->soft_cap);
        s[t - first] = dot;
        top = fmax(top, dot);
    }
    for (int64_t t = first; t <= last; ++t) {
        const float* v = a->v + (t * a->kv_heads + head) * a->dv;
        const double w = exp(s[t - first] - top);
        sum += w;
        for (int c = 0; c < a->dv; ++c) o[c] += w * (double)v[c];
    }
    for (int c = 0; c < a->dv; ++c) o[c] /= sum;
    a->lse[at] = top + log(sum);
    attention_bounds(a, i, h, s, last - first + 1);
}

void test_attention_run(test_attention* a)
{
    const size_t n = (size_t)a->num_q * (size_t)a->q_heads;
    double* s = (double*)test_alloc(SCORE_CAPACITY, sizeof *s);
    cr_assert(a->kv_len <= SCORE_CAPACITY, "the test's own limit");
    if (a->softmax_scale == 0) a->softmax_scale = (double)(float)(1.0 / sqrt(a->dk));
    a->o = (double*)test_alloc(n * (size_t)a->dv, sizeof(double));
    a->lse = (double*)test_alloc(n, sizeof(double));
    a->o_bound = (double*)test_alloc(n, sizeof(double));
    a->lse_bound = (double*)test_alloc(n, sizeof(double));
    for (int i = 0; i < a->num_q; ++i)
        for (int h = 0; h < a->q_heads; ++h) attention_head(a, i, h, s);
    free(s);
}

void test_attention_free(test_attention* a)
{
    free(a->o);
    free(a->lse);
    free(a->o_bound);
    free(a->lse_bound);
}

void test_attention_check(const test_attention* a, const float* o, const float* lse,
                          const char* what)
{
    for (int64_t at = 0; at < (int64_t)a->num_q * a->q_heads; ++at) {
        const int i = (int)(at / a->q_heads), h = (int)(at % a->q_heads);
        if (isinf(a->lse[at]))
            cr_assert(isinf(lse[at]) && lse[at] < 0, "%s: query %d head %d sees no row, lse = %g",
                      what, i, h, (double)lse[at]);
        else
            cr_assert(fabs((double)lse[at] - a->lse[at]) <= a->lse_bound[at],
                      "%s: query %d head %d: lse = %.9g, expected %.9g within %.3g", what, i, h,
                      (double)lse[at], a->lse[at], a->lse_bound[at]);
        for (int c = 0; c < a->dv; ++c) {
            const double got = (double)o[at * a->dv + c], expected = a->o[at * a->dv + c];
            cr_assert(fabs(got - expected) <= a->o_bound[at],
                      "%s: query %d head %d channel %d: o = %.9g, expected %.9g within %.3g", what,
                      i, h, c, got, expected, a->o_bound[at]);
        }
    }
}

static test_attention attention_of(const test_cache* c)
{
    test_attention a;
    memset(&a, 0, sizeof a);
    a.q_heads = c->layer.num_q_heads;
    a.kv_heads = c->layer.num_kv_heads;
    a.dk = c->layer.head_dim;
    a.dv = c->dv;
    a.softmax_scale = (double)c->layer.softmax_scale;
    a.soft_cap = (double)c->layer.soft_cap;
    a.window_len = c->layer.window_len;
    a.transformed = strstr(c->info.spec, "hadamard") != NULL ||
                    strstr(c->info.spec, "mean") != NULL ||
                    strstr(c->info.spec, "flagrot") != NULL ||
                    strstr(c->info.spec, "choose") != NULL ||
                    strstr(c->info.spec, "pre_rope") != NULL ||
                    strstr(c->info.spec, "sparse") != NULL ||
                    strstr(c->info.spec, "static") != NULL ||
                    strstr(c->info.spec, "transform=") != NULL;
    a.rounds = c->rounds;
    return a;
}

void test_attend_check(test_cache* c, kvl_seq seq, const float* q, int num_q,
                       const int64_t* position, const char* what)
{
    test_attention a = attention_of(c);
    kvl_seq_rows rows = { 0 };
    test_ok(c->ctx, kvl_seq_get_rows(c->cache, 0, seq, &rows), what);
    float* k = test_floats(rows.rows * a.kv_heads * a.dk);
    float* v = test_floats(rows.rows * a.kv_heads * a.dv);
    float* o = test_floats((int64_t)num_q * a.q_heads * a.dv);
    float* lse = test_floats((int64_t)num_q * a.q_heads);
    int64_t* positions = (int64_t*)test_alloc((size_t)num_q, sizeof *positions);
    for (int i = 0; i < num_q; ++i) positions[i] = (position ? *position : rows.rows - num_q) + i;
    test_restore(c, seq, 0, rows.rows, k, v);
    test_attend(c, seq, q, num_q, position, o, lse);
    a.q = q;
    a.k = k;
    a.v = v;
    a.positions = positions;
    a.num_q = num_q;
    a.kv_len = rows.rows;
    test_attention_run(&a);
    test_attention_check(&a, o, lse, what);
    test_attention_free(&a);
    free(k);
    free(v);
    free(o);
    free(lse);
    free(positions);
}

// Memory and log

enum { MEMORY_HEADER = 64 };     // keeps the alignment of malloc

static void* memory_alloc(size_t bytes, void* user)
{
    test_memory* m = (test_memory*)user;
    pthread_mutex_lock(&m->lock);
    const int fails = ++m->calls == m->fail_at;
    unsigned char* base = fails ? NULL : (unsigned char*)malloc(bytes + MEMORY_HEADER);
    if (base) {
        memcpy(base, &bytes, sizeof bytes);
        memset(base + MEMORY_HEADER, 0xff, bytes);
        m->live += bytes;
        if (m->live > m->peak) m->peak = m->live;
    }
    pthread_mutex_unlock(&m->lock);
    return base ? base + MEMORY_HEADER : NULL;
}

static void memory_free(void* ptr, size_t bytes, void* user)
{
    test_memory* m = (test_memory*)user;
    unsigned char* base = (unsigned char*)ptr - MEMORY_HEADER;
    size_t had;
    pthread_mutex_lock(&m->lock);
    memcpy(&had, base, sizeof had);
    if (had != bytes) ++m->wrong_sizes;
    m->live -= had;
    memset(base, 0xff, had + MEMORY_HEADER);
    free(base);
    pthread_mutex_unlock(&m->lock);
}

void test_memory_init(test_memory* m)
{
    memset(m, 0, sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
}

kvl_allocator test_memory_allocator(test_memory* m)
{
    kvl_allocator a;
    a.alloc = memory_alloc;
    a.free = memory_free;
    a.user = m;
    return a;
}

// Memory of the device, counted as the host's is; the size goes back on free as well.
static uint64_t device_alloc(size_t bytes, void* stream, void* user)
{
    test_memory* m = (test_memory*)user;
    int (*alloc)(uint64_t*, size_t);
    uint64_t address = 0;
    (void)stream;
    *(void**)&alloc = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
    pthread_mutex_lock(&m->lock);
    if (++m->calls != m->fail_at && alloc(&address, bytes) == 0) {
        m->live += bytes;
        if (m->live > m->peak) m->peak = m->live;
    }
    pthread_mutex_unlock(&m->lock);
    return address;
}

static void device_free(uint64_t address, size_t bytes, void* stream, void* user)
{
    test_memory* m = (test_memory*)user;
    int (*release)(uint64_t);
    (void)stream;
    *(void**)&release = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemFree_v2");
    pthread_mutex_lock(&m->lock);
    m->live -= bytes;
    if (release(address) != 0) ++m->wrong_sizes;
    pthread_mutex_unlock(&m->lock);
}

kvl_device_allocator test_memory_device_allocator(test_memory* m)
{
    const kvl_device_allocator a = { device_alloc, device_free, m };
    return a;
}

static void log_call(kvl_log_level level, const char* message, void* user)
{
    test_log* log = (test_log*)user;
    const size_t used = strlen(log->text);
    ++log->count;
    log->warnings += level == KVL_LOG_WARNING;
    log->errors += level == KVL_LOG_ERROR;
    snprintf(log->text + used, sizeof log->text - used, "%s\n", message);
}

kvl_log test_log_hook(test_log* log)
{
    kvl_log hook;
    memset(log, 0, sizeof *log);
    hook.call = log_call;
    hook.user = log;
    return hook;
}

int test_count(const char* text, const char* needle)
{
    int n = 0;
    for (const char* at = text; (at = strstr(at, needle)) != NULL; ++at) ++n;
    return n;
}
