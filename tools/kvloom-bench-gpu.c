// kvloom-bench-gpu.c -- decode attention on a device: values first, then time against a copy.
//
// For each length one cache a spec is filled; its attention is compared with the reference's over
// the first rows, then timed with events in the device's own clock.  Bandwidth is what pages and
// windows hold over the time of one kvl_attend, beside a copy of device memory: bytes read and
// written over its time.

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

#include <cJSON.h>

enum { max_list = 16, source_rows = 512, check_rows = 512, max_samples = 64 };

typedef struct options {
    const char* specs[max_list];
    long long   rows[max_list];
    int         num_specs, num_rows, q_heads, kv_heads, head_dim, device, repeats;
    long long   copy_bytes;
    const char* json;
} options;

typedef struct bench {
    const options*   o;
    kvl_context*     ctx;
    kvl_context*     reference;
    kvl__cu_event    begin, end;
    float *          k, *v, *q;               // on the host
    void *           dk, *dv, *dq, *dout;     // on the device
    double           copy_gbps, f16_us;
    cJSON*           results;
} bench;

static int fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
static int fail(const char* format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "kvloom-bench-gpu: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    return 1;
}

static int failed(const kvl_context* ctx, const char* what)
{
    return fail("%s: %s", what, kvl_context_message(ctx));
}

// TIME

static int compare_doubles(const void* a, const void* b)
{
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// The median time of `call`, in microseconds; negative after a failure.
static double measure(bench* b, int (*call)(void*), void* arg)
{
    const kvl__driver* d = &b->ctx->gpu->driver;
    double samples[max_samples];
    for (int i = -1; i < b->o->repeats; ++i) {        // the first warms up
        float ms = -1.0f;
        if (kvl__gpu_enter(b->ctx) != KVL_OK) return -1.0;
        int bad = d->event_record(b->begin, NULL);
        kvl__gpu_leave(b->ctx);
        bad |= call(arg);
        if (kvl__gpu_enter(b->ctx) != KVL_OK) return -1.0;
        bad |= d->event_record(b->end, NULL) | d->event_synchronize(b->end);
        bad |= d->event_elapsed(&ms, b->begin, b->end);
        kvl__gpu_leave(b->ctx);
        if (bad || ms < 0.0f) return -1.0;
        if (i >= 0) samples[i] = 1e3 * (double)ms;
    }
    qsort(samples, (size_t)b->o->repeats, sizeof samples[0], compare_doubles);
    return samples[b->o->repeats / 2];
}

typedef struct copy_call { bench* b; kvl__cu_address from, to; size_t bytes; } copy_call;

static int call_copy(void* arg)
{
    const copy_call* c = arg;
    if (kvl__gpu_enter(c->b->ctx) != KVL_OK) return 1;
    const int bad = c->b->ctx->gpu->driver.copy_async(c->to, c->from, c->bytes, NULL);
    kvl__gpu_leave(c->b->ctx);
    return bad;
}

static int measure_copy(bench* b)
{
    copy_call c = { .b = b, .bytes = (size_t)b->o->copy_bytes };
    void *from = NULL, *to = NULL;
    int status = 0;
    if (kvl_device_alloc(b->ctx, c.bytes, &from) || kvl_device_alloc(b->ctx, c.bytes, &to))
        status = failed(b->ctx, "memory for a copy");
    c.from = (kvl__cu_address)(uintptr_t)from;
    c.to = (kvl__cu_address)(uintptr_t)to;
    if (!status && kvl__gpu_enter(b->ctx) == KVL_OK) {
        b->ctx->gpu->driver.fill_bytes_async(c.from, 1, c.bytes, NULL);
        kvl__gpu_leave(b->ctx);
    }
    const double us = status ? -1.0 : measure(b, call_copy, &c);
    if (!status && us <= 0.0) status = fail("a copy of device memory cannot be timed");
    b->copy_gbps = 2e-3 * (double)c.bytes / us;
    kvl_device_free(b->ctx, from, c.bytes);
    kvl_device_free(b->ctx, to, c.bytes);
    return status;
}

// CACHES

static int make_cache(kvl_context* ctx, const options* o, const char* spec, kvl_cache** cache,
                      kvl_seq* seq)
{
    const kvl_layer_desc layer = { .num_q_heads = o->q_heads, .num_kv_heads = o->kv_heads,
                                   .head_dim = o->head_dim, .spec = spec };
    const kvl_cache_desc desc = { .num_layers = 1, .layers = &layer };
    const int bad = kvl_cache_create(ctx, &desc, cache) || kvl_seq_create(*cache, seq);
    return bad ? failed(ctx, spec) : 0;
}

static int fill(kvl_cache* cache, kvl_context* ctx, kvl_seq seq, const void* k, const void* v,
                long long rows)
{
    for (long long at = 0; at < rows; at += source_rows) {
        const int32_t num = (int32_t)(rows - at < source_rows ? rows - at : source_rows);
        const kvl_append_desc a = { .num_seqs = 1, .seqs = &seq, .num_rows = &num,
                                    .k = { .data = k }, .v = { .data = v } };
        if (kvl_append(cache, &a)) return failed(ctx, "append");
    }
    return 0;
}

// The relative error of the device's attention over check_rows rows, against the reference.
static int check_values(bench* b, const char* spec, double* error)
{
    const options* o = b->o;
    const size_t num = (size_t)(o->q_heads * o->head_dim), bytes = num * sizeof(float);
    kvl_cache *own = NULL, *other = NULL;
    kvl_seq seq, twin;
    float *got = calloc(2, bytes), *expected = got ? got + num : NULL;
    double sum = 0.0, length = 0.0;
    int status = !got || make_cache(b->ctx, o, spec, &own, &seq)
        || make_cache(b->reference, o, spec, &other, &twin)
        || fill(own, b->ctx, seq, b->dk, b->dv, check_rows)
        || fill(other, b->reference, twin, b->k, b->v, check_rows);
    const kvl_attend_desc t = { .num_seqs = 1, .seqs = &seq, .q = { .data = b->dq },
                                .o = { .data = b->dout } };
    const kvl_attend_desc u = { .num_seqs = 1, .seqs = &twin, .q = { .data = b->q },
                                .o = { .data = expected } };
    if (!status && (kvl_attend(own, &t) || kvl_cache_check(own)
                    || kvl_device_read(b->ctx, got, b->dout, bytes)))
        status = failed(b->ctx, spec);
    if (!status && kvl_attend(other, &u)) status = failed(b->reference, spec);
    for (size_t i = 0; i < num && !status; ++i) {
        sum += pow((double)got[i] - (double)expected[i], 2.0);
        length += pow((double)expected[i], 2.0);
    }
    *error = sqrt(sum / length);
    kvl_cache_free(own);
    kvl_cache_free(other);
    free(got);
    // The bound of exact = 0.
    if (!status && !(*error < 1e-3))
        status = fail("%s: attention is %g from the reference", spec, *error);
    return status;
}

typedef struct attend_call { kvl_cache* cache; kvl_attend_desc desc; } attend_call;

static int call_attend(void* arg)
{
    attend_call* c = arg;
    return kvl_attend(c->cache, &c->desc) != KVL_OK;
}

typedef struct append_call { kvl_cache* cache; kvl_append_desc desc; } append_call;

static int call_append(void* arg)
{
    append_call* c = arg;
    return kvl_append(c->cache, &c->desc) != KVL_OK;
}

static int run_spec(bench* b, const char* spec, long long rows)
{
    kvl_cache* cache = NULL;
    kvl_seq seq;
    kvl_stats stats;
    double error = 0.0;
    int status = check_values(b, spec, &error) || make_cache(b->ctx, b->o, spec, &cache, &seq)
        || fill(cache, b->ctx, seq, b->dk, b->dv, rows);
    if (!status && (kvl_cache_check(cache) || kvl_cache_stats(cache, &stats)))
        status = failed(b->ctx, spec);
    if (!status) {
        attend_call c = { cache, { .num_seqs = 1, .seqs = &seq, .q = { .data = b->dq },
                                   .o = { .data = b->dout } } };
        append_call a = { cache, { .num_seqs = 1, .seqs = &seq, .k = { .data = b->dk },
                                   .v = { .data = b->dv } } };
        const double us = measure(b, call_attend, &c), append_us = measure(b, call_append, &a);
        if (us <= 0.0 || append_us <= 0.0) status = failed(b->ctx, spec);
        const double gbps = 1e-3 * (double)(stats.page_bytes + stats.window_bytes) / us;
        if (strcmp(spec, "f16") == 0) b->f16_us = us;
        printf("%-28s %10lld %10.2f %10.1f %8.1f %7.2f %7.2f %10.1f\n", spec, rows,
               1e-6 * (double)(stats.page_bytes + stats.window_bytes), us, gbps,
               b->f16_us / us, gbps / b->copy_gbps, append_us);
        fflush(stdout);
        cJSON* r = cJSON_CreateObject();
        cJSON_AddStringToObject(r, "cache", spec);
        cJSON_AddNumberToObject(r, "rows", (double)rows);
        cJSON_AddNumberToObject(r, "bytes", (double)(stats.page_bytes + stats.window_bytes));
        cJSON_AddNumberToObject(r, "attend_us", us);
        cJSON_AddNumberToObject(r, "gbps", gbps);
        cJSON_AddNumberToObject(r, "times_f16", b->f16_us / us);
        cJSON_AddNumberToObject(r, "of_copy", gbps / b->copy_gbps);
        cJSON_AddNumberToObject(r, "append_us", append_us);
        cJSON_AddNumberToObject(r, "error", error);
        cJSON_AddItemToArray(b->results, r);
    }
    kvl_cache_free(cache);
    return status;
}

// THE BENCH

static size_t row_bytes(const options* o)
{
    return (size_t)source_rows * (size_t)(o->kv_heads * o->head_dim) * sizeof(float);
}

static size_t q_bytes(const options* o)
{
    return (size_t)(o->q_heads * o->head_dim) * sizeof(float);
}

static int fill_rows(bench* b)
{
    const size_t num = row_bytes(b->o) / sizeof(float), num_q = q_bytes(b->o) / sizeof(float);
    kvl__random random;
    b->k = malloc((2 * num + num_q) * sizeof(float));
    if (!b->k) return fail("out of memory");
    b->v = b->k + num;
    b->q = b->v + num;
    kvl__random_open(&random, 1, 1);
    kvl__random_normal(&random, 0, b->k, 2 * num + num_q);
    kvl__random_close(&random);
    if (kvl_device_alloc(b->ctx, row_bytes(b->o), &b->dk)
        || kvl_device_alloc(b->ctx, row_bytes(b->o), &b->dv)
        || kvl_device_alloc(b->ctx, q_bytes(b->o), &b->dq)
        || kvl_device_alloc(b->ctx, q_bytes(b->o), &b->dout)
        || kvl_device_write(b->ctx, b->dk, b->k, row_bytes(b->o))
        || kvl_device_write(b->ctx, b->dv, b->v, row_bytes(b->o))
        || kvl_device_write(b->ctx, b->dq, b->q, q_bytes(b->o)))
        return failed(b->ctx, "rows");
    return 0;
}

static int open_bench(bench* b, const options* o)
{
    const kvl_context_desc desc = { .target = KVL_TARGET_CUDA, .device = o->device };
    const kvl_context_desc plain = { .target = KVL_TARGET_REFERENCE, .cache_dir = "" };
    b->o = o;
    if (kvl_context_create(&plain, &b->reference)) return failed(b->reference, "reference");
    if (kvl_context_create(&desc, &b->ctx)) return failed(b->ctx, "device");
    if (kvl__gpu_enter(b->ctx)) return failed(b->ctx, "device");
    const int bad = b->ctx->gpu->driver.event_create(&b->begin, 0)
        | b->ctx->gpu->driver.event_create(&b->end, 0);
    kvl__gpu_leave(b->ctx);
    return bad ? fail("no events") : fill_rows(b);
}

static void close_bench(bench* b)
{
    if (b->ctx && b->ctx->gpu && kvl__gpu_enter(b->ctx) == KVL_OK) {
        if (b->begin) b->ctx->gpu->driver.event_destroy(b->begin);
        if (b->end) b->ctx->gpu->driver.event_destroy(b->end);
        kvl__gpu_leave(b->ctx);
        kvl_device_free(b->ctx, b->dk, row_bytes(b->o));
        kvl_device_free(b->ctx, b->dv, row_bytes(b->o));
        kvl_device_free(b->ctx, b->dq, q_bytes(b->o));
        kvl_device_free(b->ctx, b->dout, q_bytes(b->o));
    }
    free(b->k);
    kvl_context_destroy(b->ctx);
    kvl_context_destroy(b->reference);
}

static int run(bench* b, cJSON* root)
{
    const kvl__gpu* gpu = b->ctx->gpu;
    int status = measure_copy(b);
    if (status) return status;
    printf("kvloom-bench-gpu %s: %s, sm_%d, driver CUDA %d.%d, copy %.1f GB/s\n", KVLOOM_VERSION,
           gpu->name, gpu->sm, gpu->driver.version / 1000, gpu->driver.version % 1000 / 10,
           b->copy_gbps);
    printf("%-28s %10s %10s %10s %8s %7s %7s %10s\n", "cache", "rows", "MB", "attend us", "GB/s",
           "x f16", "x copy", "append us");
    cJSON_AddStringToObject(root, "version", KVLOOM_VERSION);
    cJSON_AddStringToObject(root, "device", gpu->name);
    cJSON_AddNumberToObject(root, "sm", gpu->sm);
    cJSON_AddNumberToObject(root, "driver", gpu->driver.version);
    cJSON_AddNumberToObject(root, "copy_gbps", b->copy_gbps);
    b->results = cJSON_AddArrayToObject(root, "results");
    for (int r = 0; r < b->o->num_rows && !status; ++r) {
        b->f16_us = NAN;
        for (int i = 0; i < b->o->num_specs && !status; ++i)
            status = run_spec(b, b->o->specs[i], b->o->rows[r]);
    }
    return status;
}

static int write_json(const char* path, const cJSON* root)
{
    char* text = cJSON_Print(root);
    FILE* out = text ? fopen(path, "w") : NULL;
    if (!out) return fail("%s: %s", path, strerror(errno));
    fprintf(out, "%s\n", text);
    free(text);
    return fclose(out) ? fail("%s: %s", path, strerror(errno)) : 0;
}

// OPTIONS

static const char usage[] =
    "usage: kvloom-bench-gpu [options]\n"
    "  --cache SPEC     a cache to measure, repeatable (f16, q8_0, q4_0, kivi:k2,v2,g32)\n"
    "  --rows N         a length of a sequence, repeatable (4096, 32768, 131072)\n"
    "  --q-heads N      query heads (32)      --kv-heads N   KV heads (8)\n"
    "  --head-dim N     head dim (128)        --device N     ordinal (0)\n"
    "  --repeats N      samples of each time, at most 64 (21)\n"
    "  --copy-bytes N   of the copy that bandwidth is compared with (268435456)\n"
    "  --json FILE      writes the results\n"
    "  --help           this text\n"
    "Values are compared with the reference before anything is timed.\n";

enum { opt_cache = 1, opt_rows, opt_q, opt_kv, opt_dim, opt_device, opt_repeats, opt_copy, opt_json,
       opt_help };

static const struct option long_options[] = {
    { "cache", required_argument, NULL, opt_cache }, { "rows", required_argument, NULL, opt_rows },
    { "q-heads", required_argument, NULL, opt_q }, { "kv-heads", required_argument, NULL, opt_kv },
    { "head-dim", required_argument, NULL, opt_dim },
    { "device", required_argument, NULL, opt_device },
    { "repeats", required_argument, NULL, opt_repeats },
    { "copy-bytes", required_argument, NULL, opt_copy },
    { "json", required_argument, NULL, opt_json }, { "help", no_argument, NULL, opt_help },
    { NULL, 0, NULL, 0 } };

static int read_number(long long low, long long high, long long* out)
{
    char* end;
    errno = 0;
    *out = strtoll(optarg, &end, 10);
    if (end != optarg && *end == '\0' && !errno && *out >= low && *out <= high) return 0;
    return fail("%s: must be a number from %lld to %lld", optarg, low, high);
}

static int read_int(int low, int high, int* out)
{
    long long value;
    if (read_number(low, high, &value)) return 1;
    *out = (int)value;
    return 0;
}

static int read_option(options* o, int c)
{
    switch (c) {
    case opt_cache:
        if (o->num_specs == max_list) return fail("--cache: at most %d", max_list);
        o->specs[o->num_specs++] = optarg;
        return 0;
    case opt_rows:
        if (o->num_rows == max_list) return fail("--rows: at most %d", max_list);
        return read_number(1, 1 << 24, &o->rows[o->num_rows++]);
    case opt_q: return read_int(1, 4096, &o->q_heads);
    case opt_kv: return read_int(1, 1024, &o->kv_heads);
    case opt_dim: return read_int(32, 256, &o->head_dim);
    case opt_device: return read_int(0, 1024, &o->device);
    case opt_repeats: return read_int(1, max_samples, &o->repeats);
    case opt_copy: return read_number(1 << 10, (long long)1 << 34, &o->copy_bytes);
    case opt_json: o->json = optarg; return 0;
    default: return fail("%s: unknown, or it lacks its value; --help tells more", optarg ? optarg
                         : "an option");
    }
}

int main(int argc, char** argv)
{
    static const char* const specs[] = { "f16", "q8_0", "q4_0", "kivi:k2,v2,g32" };
    static const long long lengths[] = { 4096, 32768, 131072 };
    static options o = { .q_heads = 32, .kv_heads = 8, .head_dim = 128, .repeats = 21,
                         .copy_bytes = 256 << 20 };
    static bench b;
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        if (c == opt_help) return fputs(usage, stdout), 0;
        if (c == '?') return fail("%s: unknown, or it lacks its value; --help tells more",
                                  argv[optind - 1]), 2;
        if (read_option(&o, c)) return 2;
    }
    if (optind < argc) return fail("%s: what is this?", argv[optind]), 2;
    if (!o.num_specs) memcpy(o.specs, specs, sizeof specs), o.num_specs = 4;
    if (!o.num_rows) memcpy(o.rows, lengths, sizeof lengths), o.num_rows = 3;
    cJSON* root = cJSON_CreateObject();
    int status = open_bench(&b, &o) || run(&b, root);
    if (!status && o.json) status = write_json(o.json, root);
    cJSON_Delete(root);
    close_bench(&b);
    return status;
}
