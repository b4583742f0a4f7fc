// kvloom-bench.c -- measures append, encode and attend for shapes, lengths and cache specs.
//
//     kvloom-bench --rows 4096,65536 --cache q8_0 --cache kivi:k2,v2,g32 --json bench.json
//     kvloom-bench --startup
//     kvloom-bench --ops --cache kivi:k2,v2,g32
//
// For each head dim and length, one cache a spec is filled, checked and then timed:
//
//   check    kvl_attend against attention in float64 over the rows that kvl_restore reads back, for
//            the first and the last sequence: output and lse of each query head within 1e-3.
//            kvl_cache_stats against kvl_estimate: the same bytes.  A failure ends the program.
//   attend   one query row of one sequence, all heads.  A cache holds so many sequences that their
//            rows are twice the processor's last-level cache, and calls go through them in turn, so
//            that rows come from memory, as they do in decoding with many layers.
//   append   one row of one sequence, all KV heads, that completes no chunk.
//   encode   the time of an append that completes a chunk less one that does not, divided by the
//            rows of the chunk: what encoding costs for each appended row.  Where each row is
//            encoded at once, append is the f16 cache's and encode is the rest.
//   copy     memcpy by all threads through two buffers of four last-level caches or more, counted
//            as bytes read plus bytes written; read is a sum over the same memory.
//
// Rounds go through copy, read and all caches in turn, starting with another one each time, so that
// noise hits all alike.  Figures are medians over rounds, the best round stands beside them, and
// "x f16" is the median of the rounds' own ratios to the f16 cache, which is always measured.

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

#include "bench_ops.h"

#include <cjson/cJSON.h>

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    max_list = 32,       // of --rows, --head-dim and --cache
    max_args = 256,      // words of a command line with --startup
    max_seqs = 1024,     // sequences of a cache that is timed
    max_samples = 1000,  // rounds of one length
    min_rounds = 5,
    num_sources = 2048,  // different rows that caches are filled with, over and over
    num_queries = 16,
    fill_rows = 512,     // rows of one call while a cache is filled
    check_rows = 512,    // rows restored at a time
    max_appends = 8192   // rows of the sequence that grows, before it starts again
};

static const double check_bound = 1e-3;
static const double first_use_target_ms = 1500.0, warm_start_target_ms = 5.0;
static const double change_target_us = 20.0, step_target = 0.02, batch_target = 1.0;
static const double file_target = 0.5;

// OPTIONS

typedef struct options {
    int64_t     head_dims[max_list], rows[max_list];
    const char* specs[max_list];
    int         num_head_dims, num_rows, num_specs;
    int         head_dim_v, num_kv_heads, num_q_heads, num_threads;
    kvl_target  target;
    const char* arch;             // of kernels for a device; NULL: the device's
    double      seconds;
    const char* json;
    const char* calibration;      // NULL: calibrated caches are calibrated on random rows
    bool        startup, ops;
    const char* startup_folder;   // set in the processes that --startup starts
} options;

static const char usage[] =
    "usage: kvloom-bench [options]\n"
    "  --head-dim LIST    head dims of keys and values (128)\n"
    "  --head-dim-v N     head dim of values where it differs\n"
    "  --kv-heads N       KV heads (8)\n"
    "  --q-heads N        query heads (32)\n"
    "  --rows LIST        lengths of a sequence (4096,16384,65536)\n"
    "  --threads N        threads (0: one a processor)\n"
    "  --cache SPEC       a cache to measure, repeatable (f16, q8_0, q4_0, kivi:k2,v2,g32)\n"
    "  --calibration FILE of kvloom-calibrate, for caches that need one: its layer 0, which must\n"
    "                     have this shape (without: calibrated on random rows)\n"
    "  --target NAME      auto, reference or host (auto); cuda with --startup\n"
    "  --arch NAME        of target cuda: for it, without a device (the device's, or sm_90)\n"
    "  --seconds S        measuring time of each head dim and length (2)\n"
    "  --json FILE        writes the results\n"
    "  --startup          measures first use of a shape and warm start instead\n"
    "  --ops              measures fork, truncate, drop, append, batches and files instead: of a\n"
    "                     sequence of the last length of --rows; files go to TMPDIR, or /tmp\n"
    "  --help             this text\n"
    "Checks values before it times.  Ratios: above 1 is faster.\n";

// Prints one line and returns the exit status of a failure.
__attribute__((format(printf, 1, 2))) static int fail(const char* format, ...)
{
    va_list args;
    fputs("kvloom-bench: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return 1;
}

// Reads "a,b,c" with each number in [low, high]; returns how many, 0 if the text is anything else.
static int read_list(const char* text, int64_t low, int64_t high, int64_t* list)
{
    for (int num = 0; num < max_list;) {
        char* end;
        errno = 0;
        const long long value = strtoll(text, &end, 10);
        if (end == text || errno || value < low || value > high) return 0;
        list[num++] = value;
        if (*end == '\0') return num;
        if (*end != ',') return 0;
        text = end + 1;
    }
    return 0;
}

static int read_numbers(const char* name, const char* text, int64_t low, int64_t high,
                        int64_t* list, int* num)
{
    *num = read_list(text, low, high, list);
    if (*num) return 0;
    return fail("--%s %s: must be at most %d numbers from %lld to %lld, with commas between them",
                name, text, max_list, (long long)low, (long long)high);
}

static int read_number(const char* name, const char* text, int64_t low, int64_t high, int* out)
{
    int64_t list[max_list];
    if (read_list(text, low, high, list) != 1)
        return fail("--%s %s: must be a number from %lld to %lld", name, text, (long long)low,
                    (long long)high);
    *out = (int)list[0];
    return 0;
}

static int read_seconds(const char* text, double* out)
{
    char* end;
    *out = strtod(text, &end);
    if (end == text || *end || !(*out >= 0.0 && *out <= 3600.0))
        return fail("--seconds %s: must be a number from 0 to 3600", text);
    return 0;
}

static int read_target(const char* text, kvl_target* out)
{
    static const char* const names[] = { "auto", "reference", "host", "cuda" };
    for (int i = 0; i < 4; ++i) {
        if (strcmp(text, names[i])) continue;
        *out = (kvl_target)i;
        return 0;
    }
    return fail("--target %s: must be auto, reference, host or cuda", text);
}

enum {
    opt_head_dim = 256, opt_head_dim_v, opt_kv_heads, opt_q_heads, opt_rows, opt_threads,
    opt_cache, opt_target, opt_arch, opt_seconds, opt_json, opt_calibration, opt_startup,
    opt_startup_folder, opt_ops, opt_help
};

static const struct option long_options[] = {
    { "head-dim", required_argument, NULL, opt_head_dim },
    { "head-dim-v", required_argument, NULL, opt_head_dim_v },
    { "kv-heads", required_argument, NULL, opt_kv_heads },
    { "q-heads", required_argument, NULL, opt_q_heads },
    { "rows", required_argument, NULL, opt_rows },
    { "threads", required_argument, NULL, opt_threads },
    { "cache", required_argument, NULL, opt_cache },
    { "target", required_argument, NULL, opt_target },
    { "arch", required_argument, NULL, opt_arch },
    { "seconds", required_argument, NULL, opt_seconds },
    { "json", required_argument, NULL, opt_json },
    { "calibration", required_argument, NULL, opt_calibration },
    { "startup", no_argument, NULL, opt_startup },
    { "startup-folder", required_argument, NULL, opt_startup_folder },
    { "ops", no_argument, NULL, opt_ops },
    { "help", no_argument, NULL, opt_help },
    { NULL, 0, NULL, 0 }
};

static int read_option(options* o, int option)
{
    switch (option) {
    case opt_head_dim:
        return read_numbers("head-dim", optarg, 1, 4096, o->head_dims, &o->num_head_dims);
    case opt_head_dim_v: return read_number("head-dim-v", optarg, 0, 4096, &o->head_dim_v);
    case opt_kv_heads: return read_number("kv-heads", optarg, 1, 1024, &o->num_kv_heads);
    case opt_q_heads: return read_number("q-heads", optarg, 1, 4096, &o->num_q_heads);
    case opt_rows: return read_numbers("rows", optarg, 1, 1 << 24, o->rows, &o->num_rows);
    case opt_threads: return read_number("threads", optarg, 0, 256, &o->num_threads);
    case opt_target: return read_target(optarg, &o->target);
    case opt_arch: o->arch = optarg; return 0;
    case opt_seconds: return read_seconds(optarg, &o->seconds);
    case opt_json: o->json = optarg; return 0;
    case opt_calibration: o->calibration = optarg; return 0;
    case opt_startup: o->startup = true; return 0;
    case opt_ops: o->ops = true; return 0;
    case opt_startup_folder: o->startup_folder = optarg; return 0;
    default: break;
    }
    if (o->startup_folder && o->num_specs) return 0;   // the process has one spec, the first
    if (o->num_specs == max_list)
        return fail("--cache %s: at most %d are measured", optarg, max_list);
    o->specs[o->num_specs++] = optarg;
    return 0;
}

// Returns 0 to go on, a positive exit status, or -1 after --help.
static int read_options(int argc, char** argv, options* o)
{
    static const char* const specs[] = { "f16", "q8_0", "q4_0", "kivi:k2,v2,g32" };
    *o = (options){ .head_dims = { 128 }, .num_head_dims = 1, .rows = { 4096, 16384, 65536 },
                    .num_rows = 3, .num_kv_heads = 8, .num_q_heads = 32, .seconds = 2.0 };
    opterr = 0;
    for (;;) {
        const int at = optind;
        const int option = getopt_long(argc, argv, ":", long_options, NULL);
        if (option == -1) break;
        if (option == opt_help) return fputs(usage, stdout), -1;
        if (option == ':') return fail("%s needs a value; --help lists the options", argv[at]), 2;
        if (option == '?') return fail("%s: unknown option; --help lists them", argv[at]), 2;
        if (read_option(o, option)) return 2;
    }
    if (optind < argc) return fail("%s: unknown word; --help lists the options", argv[optind]), 2;
    for (int i = 0; i < 4 && (i || !o->num_specs); ++i) o->specs[o->num_specs++] = specs[i];
    if (o->target == KVL_TARGET_CUDA && !o->startup && !o->startup_folder)
        return fail("--target cuda: needs --startup; kvloom-bench-gpu measures the rest"), 2;
    if (o->startup && o->ops) return fail("--startup, --ops: one of them at a time"), 2;
    if (o->arch && o->target != KVL_TARGET_CUDA)
        return fail("--arch %s: needs --target cuda", o->arch), 2;
    return 0;
}

// MACHINE

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static void read_cpu_name(char* name, size_t size)
{
    snprintf(name, size, "unknown");
    FILE* file = fopen("/proc/cpuinfo", "r");
    if (!file) return;
    char line[512];
    while (fgets(line, sizeof line, file)) {
        const char* colon = strchr(line, ':');
        if (!colon || strncmp(line, "model name", 10)) continue;
        snprintf(name, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    fclose(file);
}

// Bytes of the last-level cache; 32 MiB where the system does not tell.
static int64_t last_level_bytes(void)
{
    int64_t bytes = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return bytes > 0 ? bytes : 32 << 20;
}

static int64_t available_bytes(void)
{
    return (int64_t)sysconf(_SC_AVPHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
}

// Normal numbers: equal seeds give equal numbers on every machine, with cuRAND or without.
static float* make_numbers(int64_t num, uint64_t seed)
{
    kvl__random random;
    float* x = malloc((size_t)num * sizeof(float));
    if (!x) return NULL;
    kvl__random_open(&random, seed, 1);
    kvl__random_normal(&random, 0, x, (size_t)num);
    kvl__random_close(&random);
    return x;
}

// SAMPLES

typedef struct samples {
    double at[max_samples];
    int    num;
} samples;

static void add_sample(samples* s, double value)
{
    if (s->num < max_samples) s->at[s->num++] = value;
}

static int compare_numbers(const void* a, const void* b)
{
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static double median(const samples* s)
{
    if (!s->num) return 0.0;
    double sorted[max_samples];
    memcpy(sorted, s->at, (size_t)s->num * sizeof(double));
    qsort(sorted, (size_t)s->num, sizeof(double), compare_numbers);
    return 0.5 * (sorted[s->num / 2] + sorted[(s->num - 1) / 2]);
}

static double smallest(const samples* s)
{
    double best = s->num ? s->at[0] : 0.0;
    for (int i = 1; i < s->num; ++i) best = fmin(best, s->at[i]);
    return best;
}

// COPY RATE

// Two buffers; a round copies one slice of the first into the second, and sums another slice.
typedef struct mover {
    unsigned char* from;
    unsigned char* to;
    int64_t        bytes, slice_bytes, at;   // of each buffer; of a slice, a whole number of parts
    int            num_parts;
    uint64_t       sums[256];                // one a part: what is read is used
    samples        copy, read;               // GB/s
} mover;

static void copy_part(void* arg, int64_t part)
{
    const mover* m = arg;
    const int64_t bytes = m->slice_bytes / m->num_parts, at = m->at + part * bytes;
    memcpy(m->to + at, m->from + at, (size_t)bytes);
}

static void read_part(void* arg, int64_t part)
{
    mover* m = arg;
    const int64_t bytes = m->slice_bytes / m->num_parts;
    const uint64_t* x = (const void*)(m->to + m->at + part * bytes);
    uint64_t sums[8] = { 0 };
    for (int64_t i = 0; i < bytes / 64; ++i)
        for (int j = 0; j < 8; ++j) sums[j] += x[8 * i + j];
    m->sums[part] = sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

static int open_mover(mover* m, int num_threads)
{
    *m = (mover){ .num_parts = num_threads };
    // A part is a whole number of 4096 bytes; a slice is about half a last-level cache.
    const int64_t unit = 4096 * (int64_t)num_threads, last = last_level_bytes();
    m->slice_bytes = (last / 2 / unit + 1) * unit;
    m->bytes = 8 * m->slice_bytes;
    m->from = aligned_alloc(4096, (size_t)m->bytes);
    m->to = aligned_alloc(4096, (size_t)m->bytes);
    if (!m->from || !m->to) return fail("out of memory: two buffers of %lld bytes",
                                        (long long)m->bytes);
    memset(m->from, 1, (size_t)m->bytes);
    memset(m->to, 2, (size_t)m->bytes);
    return 0;
}

static void close_mover(mover* m)
{
    free(m->from);
    free(m->to);
}

static void measure_mover(mover* m, kvl_context* ctx)
{
    m->at = (m->at + m->slice_bytes) % m->bytes;
    const double start = now_ns();
    kvl_parallel_for(ctx, m->num_parts, copy_part, m);
    add_sample(&m->copy, 2.0 * (double)m->slice_bytes / (now_ns() - start));
    // The slice that was copied longest ago.
    const int64_t copied = m->at;
    m->at = (m->at + m->slice_bytes) % m->bytes;
    const double middle = now_ns();
    kvl_parallel_for(ctx, m->num_parts, read_part, m);
    add_sample(&m->read, (double)m->slice_bytes / (now_ns() - middle));
    m->at = copied;
}

// SUBJECTS

// One cache that is measured.
typedef struct subject {
    const char*    spec;
    kvl_cache*     cache;
    kvl_layer_info info;
    kvl_seq*       seqs;           // [num_seqs], all of the same length
    int            num_seqs, next_seq, calls;
    kvl_seq        growing;        // the one that append is timed on
    int64_t        read_bytes;     // that one attend reads
    uint64_t       bytes;          // of a cache with one such sequence
    samples        attend, append, encode, ratio_f16, ratio_copy;
} subject;

// One head dim and length, and the caches that are measured there.
typedef struct bench {
    const options* options;
    kvl_context*   ctx;
    mover*         mover;
    int            head_dim, head_dim_v;
    int64_t        rows;
    float*         k;              // [num_sources, num_kv_heads, head_dim]
    float*         v;              // [num_sources, num_kv_heads, head_dim_v]
    float*         q;              // [num_queries, num_q_heads, head_dim]
    float*         o;              // [num_q_heads, head_dim_v]
    float*         lse;            // [num_q_heads]
    int            next_query, next_source, num_subjects;
    subject        subjects[max_list + 1];   // the first is f16
} bench;

static int fail_call(const bench* b, const subject* s)
{
    return fail("%s: head dim %d, %lld rows: %s", s->spec, b->head_dim, (long long)b->rows,
                kvl_context_message(b->ctx));
}

// How keys turn, for codecs that have them before RoPE; a calibration file's model has its own.
static const kvl_rope* rope_of(const options* o)
{
    static const kvl_rope usual = { .split_halves = 1 };
    return o->calibration ? NULL : &usual;
}

static kvl_layer_desc layer_of(const bench* b, const subject* s)
{
    return (kvl_layer_desc){ .num_q_heads = b->options->num_q_heads,
                             .num_kv_heads = b->options->num_kv_heads, .head_dim = b->head_dim,
                             .head_dim_v = b->head_dim_v, .spec = s->spec,
                             .rope = rope_of(b->options) };
}

// CALIBRATION

enum { calibration_rows = 256 };

// Layer 0 of a file as the calibration of a model of one layer.
static kvl_status first_layer(kvl_context* ctx, const char* path, kvl_calibration** out)
{
    kvl_calibration* cal = NULL;
    KVL__TRY(kvl_calibration_load(ctx, path, &cal));
    kvl__tensors* t = &cal->tensors;
    for (int i = t->num - 1; i >= 0; --i) {
        kvl__tensor* one = &t->list[i];
        if (strcmp(one->name, "layers") == 0) one->shape[0] = 1;
        else if (strncmp(one->name, "layer.0.", 8)) kvl__tensors_remove(t, one->name);
    }
    *out = cal;
    return KVL_OK;
}

// Of random rows, as those that are appended.
static kvl_status random_calibration(kvl_context* ctx, const kvl_cache_desc* cache,
                                     kvl_calibration** out)
{
    const kvl_layer_desc* l = cache->layers;
    const int dv = l->head_dim_v ? l->head_dim_v : l->head_dim;
    float* k = make_numbers((int64_t)calibration_rows * l->num_kv_heads * l->head_dim, 1);
    float* v = make_numbers((int64_t)calibration_rows * l->num_kv_heads * dv, 2);
    float* q = make_numbers((int64_t)calibration_rows * l->num_q_heads * l->head_dim, 3);
    const kvl_statistics_desc sd = { .num_layers = 1, .layers = l, .num_queries = 512,
                                     .unrotated = strstr(l->spec, "pre_rope") != NULL };
    kvl_statistics_rows rows = { .num_keys = calibration_rows, .num_rows = calibration_rows };
    kvl_statistics* stats = NULL;
    rows.k.data = k;
    rows.v.data = v;
    rows.q.data = q;
    kvl_status status = k && v && q ? kvl_statistics_create(ctx, &sd, &stats) : KVL_NO_MEMORY;
    if (!status) status = kvl_statistics_add(stats, &rows);
    if (!status) status = kvl_calibration_create(stats, cache, out);
    kvl_statistics_free(stats);
    free(k);
    free(v);
    free(q);
    return status;
}

// What a cache of one layer needs; NULL: nothing.
static kvl_status calibrate(kvl_context* ctx, const options* o, const kvl_cache_desc* cache,
                            kvl_calibration** out)
{
    kvl_layer_info info;
    *out = NULL;
    KVL__TRY(kvl_spec_check(ctx, cache->layers, &info));
    if (!info.needs_calibration) return KVL_OK;
    return o->calibration ? first_layer(ctx, o->calibration, out)
                          : random_calibration(ctx, cache, out);
}

// Creates a cache of one layer, calibrated where its spec needs it; *ms (may be NULL): how long the
// creation alone takes.
static kvl_status create_cache(kvl_context* ctx, const options* o, const kvl_layer_desc* layer,
                               kvl_cache** out, double* ms)
{
    kvl_calibration* cal = NULL;
    kvl_cache_desc desc = { .num_layers = 1, .layers = layer };
    KVL__TRY(calibrate(ctx, o, &desc, &cal));
    desc.calibration = cal;
    const double start = now_ns();
    const kvl_status status = kvl_cache_create(ctx, &desc, out);
    if (ms) *ms = 1e-6 * (now_ns() - start);
    kvl_calibration_free(cal);
    return status;
}

static kvl_status append_rows(bench* b, subject* s, kvl_seq seq, int32_t num)
{
    if (b->next_source + num > num_sources) b->next_source = 0;
    const int64_t at = (int64_t)b->next_source * b->options->num_kv_heads;
    kvl_append_desc a = { .num_seqs = 1, .seqs = &seq, .num_rows = &num };
    a.k.data = b->k + at * b->head_dim;
    a.v.data = b->v + at * b->head_dim_v;
    b->next_source += num;
    return kvl_append(s->cache, &a);
}

static kvl_status attend(bench* b, const subject* s, kvl_seq seq)
{
    kvl_attend_desc t = { .num_seqs = 1, .seqs = &seq, .lse = b->lse };
    t.q.data = b->q + (int64_t)b->next_query * b->options->num_q_heads * b->head_dim;
    t.o.data = b->o;
    return kvl_attend(s->cache, &t);
}

// Sets the bytes that one attend reads, and from them how many sequences the cache has.
static int size_subject(bench* b, subject* s)
{
    const kvl_layer_desc layer = layer_of(b, s);
    const kvl_cache_desc desc = { .num_layers = 1, .layers = &layer };
    if (kvl_spec_check(b->ctx, &layer, &s->info)) return fail_call(b, s);
    if (kvl_estimate(b->ctx, &desc, 1, b->rows, &s->bytes)) return fail_call(b, s);
    const kvl_layer_info* i = &s->info;
    int64_t quantized = b->rows - i->sink_len - i->recent_len;
    quantized = quantized < 0 ? 0 : quantized / i->chunk_len * i->chunk_len;
    const double plain = (double)(b->rows - quantized) * 16.0 * (b->head_dim + b->head_dim_v);
    const double coded = (double)quantized * (i->k_bits * b->head_dim + i->v_bits * b->head_dim_v);
    s->read_bytes = (int64_t)((plain + coded) * b->options->num_kv_heads / 8.0);
    const int64_t num = 2 * last_level_bytes() / s->read_bytes + 1;
    s->num_seqs = num < max_seqs ? (int)num : max_seqs;
    return 0;
}

// Creates and fills the cache, and compares its bytes with the estimate.
static int fill_subject(bench* b, subject* s)
{
    const kvl_layer_desc layer = layer_of(b, s);
    const kvl_cache_desc desc = { .num_layers = 1, .layers = &layer };
    uint64_t estimate;
    kvl_stats stats;
    if (kvl_estimate(b->ctx, &desc, s->num_seqs, b->rows, &estimate)) return fail_call(b, s);
    if (create_cache(b->ctx, b->options, &layer, &s->cache, NULL)) return fail_call(b, s);
    if (kvl_cache_layer_info(s->cache, 0, &s->info)) return fail_call(b, s);
    s->seqs = calloc((size_t)s->num_seqs, sizeof(kvl_seq));
    if (!s->seqs) return fail("out of memory");
    for (int i = 0; i < s->num_seqs; ++i) {
        if (kvl_seq_create(s->cache, &s->seqs[i])) return fail_call(b, s);
        for (int64_t row = 0; row < b->rows; row += fill_rows) {
            const int64_t left = b->rows - row;
            const int32_t num = left < fill_rows ? (int32_t)left : fill_rows;
            if (append_rows(b, s, s->seqs[i], num)) return fail_call(b, s);
        }
    }
    if (kvl_cache_stats(s->cache, &stats)) return fail_call(b, s);
    if (stats.bytes != estimate)
        return fail("%s: head dim %d, %lld rows: kvl_cache_stats says %llu bytes, kvl_estimate "
                    "%llu", s->spec, b->head_dim, (long long)b->rows,
                    (unsigned long long)stats.bytes, (unsigned long long)estimate);
    return 0;
}

static void close_bench(bench* b)
{
    for (int i = 0; i < b->num_subjects; ++i) {
        kvl_cache_free(b->subjects[i].cache);
        free(b->subjects[i].seqs);
    }
    free(b->k);
    free(b->v);
    free(b->q);
    free(b->o);
    free(b->lse);
}

static int open_bench(bench* b)
{
    const options* o = b->options;
    b->k = make_numbers((int64_t)num_sources * o->num_kv_heads * b->head_dim, 1);
    b->v = make_numbers((int64_t)num_sources * o->num_kv_heads * b->head_dim_v, 2);
    b->q = make_numbers((int64_t)num_queries * o->num_q_heads * b->head_dim, 3);
    b->o = calloc((size_t)o->num_q_heads * (size_t)b->head_dim_v, sizeof(float));
    b->lse = calloc((size_t)o->num_q_heads, sizeof(float));
    if (!b->k || !b->v || !b->q || !b->o || !b->lse) return fail("out of memory");
    double needed = 0.0;
    b->subjects[b->num_subjects++].spec = "f16";
    for (int i = 0; i < o->num_specs; ++i)
        if (strcmp(o->specs[i], "f16")) b->subjects[b->num_subjects++].spec = o->specs[i];
    for (int i = 0; i < b->num_subjects; ++i) {
        if (size_subject(b, &b->subjects[i])) return 1;
        needed += (double)b->subjects[i].bytes * b->subjects[i].num_seqs;
    }
    if (needed > 0.9 * (double)available_bytes())
        return fail("%lld rows: the caches need %.1f GB together, %.1f GB are available",
                    (long long)b->rows, needed * 1e-9, (double)available_bytes() * 1e-9);
    for (int i = 0; i < b->num_subjects; ++i)
        if (fill_subject(b, &b->subjects[i])) return 1;
    return 0;
}

// CHECK

// Attention in float64 over restored rows, a stretch at a time, as an online softmax.
typedef struct check {
    const bench* bench;
    const float* q;      // [num_q_heads, head_dim]
    float*       k;      // [check_rows, num_kv_heads, head_dim]
    float*       v;      // [check_rows, num_kv_heads, head_dim_v]
    int64_t      num;    // rows in k and v
    double*      o;      // [num_q_heads, head_dim_v]: sum of exp(score - top) v
    double*      sum;    // [num_q_heads]: sum of exp(score - top)
    double*      top;    // [num_q_heads]
} check;

static double dot(const float* a, const float* b, int num)
{
    double sums[8] = { 0.0 };
    int i = 0;
    for (; i + 8 <= num; i += 8)
        for (int j = 0; j < 8; ++j) sums[j] += (double)a[i + j] * (double)b[i + j];
    for (; i < num; ++i) sums[0] += (double)a[i] * (double)b[i];
    return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

static void check_head(void* arg, int64_t head)
{
    check* c = arg;
    const bench* b = c->bench;
    const int64_t num_kv_heads = b->options->num_kv_heads;
    const int64_t kv_head = head / (b->options->num_q_heads / num_kv_heads);
    const double scale = 1.0 / sqrt(b->head_dim);
    double* o = c->o + head * b->head_dim_v;
    for (int64_t row = 0; row < c->num; ++row) {
        const float* v = c->v + (row * num_kv_heads + kv_head) * b->head_dim_v;
        const double score = scale * dot(c->q + head * b->head_dim,
                                         c->k + (row * num_kv_heads + kv_head) * b->head_dim,
                                         b->head_dim);
        if (score > c->top[head]) {
            const double factor = exp(c->top[head] - score);
            for (int i = 0; i < b->head_dim_v; ++i) o[i] *= factor;
            c->sum[head] *= factor;
            c->top[head] = score;
        }
        const double weight = exp(score - c->top[head]);
        for (int i = 0; i < b->head_dim_v; ++i) o[i] += weight * (double)v[i];
        c->sum[head] += weight;
    }
}

// Compares b->o and b->lse with what was summed up.
static int compare_heads(const check* c, const subject* s)
{
    const bench* b = c->bench;
    for (int head = 0; head < b->options->num_q_heads; ++head) {
        double error = 0.0, length = 0.0;
        for (int i = 0; i < b->head_dim_v; ++i) {
            const double expected = c->o[head * b->head_dim_v + i] / c->sum[head];
            error += pow((double)b->o[head * b->head_dim_v + i] - expected, 2.0);
            length += expected * expected;
        }
        error = sqrt(error / length);
        const double lse_error = fabs((double)b->lse[head] - c->top[head] - log(c->sum[head]));
        if (error <= check_bound && lse_error <= check_bound) continue;
        return fail("%s: head dim %d, %lld rows: query head %d: attention differs from float64 by "
                    "%.2g of its length, lse by %.2g; the bound is %g", s->spec, b->head_dim,
                    (long long)b->rows, head, error, lse_error, check_bound);
    }
    return 0;
}

static int check_seq(bench* b, const subject* s, check* c, kvl_seq seq)
{
    const int num_q_heads = b->options->num_q_heads;
    b->next_query = (b->next_query + 1) % num_queries;
    c->q = b->q + (int64_t)b->next_query * num_q_heads * b->head_dim;
    for (int i = 0; i < num_q_heads; ++i) c->top[i] = -INFINITY;
    memset(c->sum, 0, (size_t)num_q_heads * sizeof(double));
    memset(c->o, 0, (size_t)num_q_heads * (size_t)b->head_dim_v * sizeof(double));
    if (attend(b, s, seq)) return fail_call(b, s);
    const kvl_rows k = { .data = c->k }, v = { .data = c->v };
    for (int64_t row = 0; row < b->rows; row += c->num) {
        c->num = b->rows - row < check_rows ? b->rows - row : check_rows;
        if (kvl_restore(s->cache, 0, seq, row, c->num, &k, &v)) return fail_call(b, s);
        kvl_parallel_for(b->ctx, num_q_heads, check_head, c);
    }
    return compare_heads(c, s);
}

static int check_subject(bench* b, const subject* s)
{
    const size_t num_q_heads = (size_t)b->options->num_q_heads;
    const size_t num_rows = (size_t)check_rows * (size_t)b->options->num_kv_heads;
    check c = { .bench = b };
    c.k = malloc(num_rows * (size_t)b->head_dim * sizeof(float));
    c.v = malloc(num_rows * (size_t)b->head_dim_v * sizeof(float));
    c.o = malloc(num_q_heads * (size_t)b->head_dim_v * sizeof(double));
    c.sum = malloc(num_q_heads * sizeof(double));
    c.top = malloc(num_q_heads * sizeof(double));
    int status = 0;
    if (!c.k || !c.v || !c.o || !c.sum || !c.top) status = fail("out of memory");
    if (!status) status = check_seq(b, s, &c, s->seqs[0]);
    if (!status && s->num_seqs > 1) status = check_seq(b, s, &c, s->seqs[s->num_seqs - 1]);
    free(c.k);
    free(c.v);
    free(c.o);
    free(c.sum);
    free(c.top);
    return status;
}

// MEASURE

// Sets *ns to the time of one call, over s->calls of them.
static int time_attend(bench* b, subject* s, double* ns)
{
    const double start = now_ns();
    for (int i = 0; i < s->calls; ++i) {
        if (attend(b, s, s->seqs[s->next_seq])) return fail_call(b, s);
        s->next_seq = (s->next_seq + 1) % s->num_seqs;
        b->next_query = (b->next_query + 1) % num_queries;
    }
    *ns = (now_ns() - start) / s->calls;
    return 0;
}

// Makes the sequence that grows, as long as a chunk and its windows: what comes next is ordinary.
static int renew_growing(bench* b, subject* s)
{
    if (s->growing && kvl_seq_free(s->cache, s->growing)) return fail_call(b, s);
    if (kvl_seq_create(s->cache, &s->growing)) return fail_call(b, s);
    int64_t left = s->info.sink_len + s->info.recent_len + s->info.chunk_len;
    for (int32_t num; left > 0; left -= num) {
        num = left < fill_rows ? (int32_t)left : fill_rows;
        if (append_rows(b, s, s->growing, num)) return fail_call(b, s);
    }
    return 0;
}

// Times one append; *encoded is how many rows it encoded.
static int time_append(bench* b, subject* s, double* ns, int64_t* encoded)
{
    kvl_seq_rows before, after;
    if (kvl_seq_get_rows(s->cache, 0, s->growing, &before)) return fail_call(b, s);
    const double start = now_ns();
    if (append_rows(b, s, s->growing, 1)) return fail_call(b, s);
    *ns = now_ns() - start;
    if (kvl_seq_get_rows(s->cache, 0, s->growing, &after)) return fail_call(b, s);
    *encoded = after.quantized - before.quantized;
    const bool long_enough = after.rows > max_appends + s->info.sink_len + s->info.recent_len;
    return long_enough ? renew_growing(b, s) : 0;
}

// Appends rows one by one until some have been encoded.  A cache whose chunks are single rows has
// no append without encoding: what the f16 cache takes counts as append, the rest as encode.
static int measure_append(bench* b, subject* s)
{
    static samples rows;
    const bool single = s->info.chunk_len == 1;
    const int num = single ? 16 : s->info.chunk_len;
    double ns = 0.0;
    int64_t encoded = 0;
    rows.num = 0;
    if (!s->growing && renew_growing(b, s)) return 1;
    for (int i = 0; i < num && (single || !encoded); ++i) {
        if (time_append(b, s, &ns, &encoded)) return 1;
        if (single || !encoded) add_sample(&rows, ns);
    }
    const double plain = median(&rows);
    if (single) {
        const double f16 = s == b->subjects ? plain : median(&b->subjects[0].append);
        const double copied = fmin(plain, f16);
        add_sample(&s->append, copied);
        add_sample(&s->encode, plain - copied);
        return 0;
    }
    if (rows.num) add_sample(&s->append, plain);
    if (encoded) add_sample(&s->encode, fmax(0.0, ns - plain) / (double)encoded);
    return 0;
}

static int measure_round(bench* b, int round)
{
    double ns[max_list + 1];
    measure_mover(b->mover, b->ctx);
    const double gbps = b->mover->copy.at[b->mover->copy.num - 1];
    for (int i = 0; i < b->num_subjects; ++i) {
        const int at = (round + i) % b->num_subjects;
        subject* s = &b->subjects[at];
        if (time_attend(b, s, &ns[at])) return 1;
        add_sample(&s->attend, ns[at]);
        add_sample(&s->ratio_copy, (double)s->read_bytes / ns[at] / gbps);
        if (measure_append(b, s)) return 1;
    }
    for (int i = 0; i < b->num_subjects; ++i) add_sample(&b->subjects[i].ratio_f16, ns[0] / ns[i]);
    return 0;
}

static int measure(bench* b)
{
    // First calls warm up, and say how many of them fill a millisecond.
    for (int i = 0; i < b->num_subjects; ++i) {
        subject* s = &b->subjects[i];
        double ns;
        s->calls = s->num_seqs < 4 ? 1 : 4;
        if (time_attend(b, s, &ns)) return 1;
        const double calls = fmax(1.0, fmin(1e6 / ns, s->num_seqs));
        s->calls = (int)calls;
        if (measure_append(b, s)) return 1;
        s->append.num = s->encode.num = 0;
    }
    b->mover->copy.num = b->mover->read.num = 0;
    const double end = now_ns() + 1e9 * b->options->seconds;
    for (int round = 0; round < max_samples && (round < min_rounds || now_ns() < end); ++round)
        if (measure_round(b, round)) return 1;
    return 0;
}

// REPORT

// The instruction set of a cache's kernels; "none" for the reference path.
static void read_isa(const kvl_cache* cache, const kvl_layer_info* info, char* isa, size_t size)
{
    snprintf(isa, size, "%s", info->uses_generated ? cache->ctx->isa : "none");
}

static double bits_of(const bench* b, const subject* s)
{
    return 8.0 * (double)s->read_bytes /
           ((double)b->rows * b->options->num_kv_heads * (b->head_dim + b->head_dim_v));
}

static void print_bench(const bench* b)
{
    const options* o = b->options;
    printf("\nhead dim %d", b->head_dim);
    if (b->head_dim_v != b->head_dim) printf(" and %d", b->head_dim_v);
    printf(", %d KV heads, %d query heads, %lld rows: copy %.1f GB/s, read %.1f GB/s, %d rounds\n",
           o->num_kv_heads, o->num_q_heads, (long long)b->rows, median(&b->mover->copy),
           median(&b->mover->read), b->mover->copy.num);
    printf("%-32s %6s %9s %10s %10s %7s %6s %6s %9s %9s\n", "cache", "bits", "MB", "attend us",
           "best us", "GB/s", "x f16", "x copy", "append ns", "encode ns");
    for (int i = 0; i < b->num_subjects; ++i) {
        const subject* s = &b->subjects[i];
        const double ns = median(&s->attend);
        printf("%-32s %6.2f %9.2f %10.1f %10.1f %7.2f %6.2f %6.2f %9.0f %9.0f\n", s->spec,
               bits_of(b, s), (double)s->bytes * 1e-6, ns * 1e-3, smallest(&s->attend) * 1e-3,
               (double)s->read_bytes / ns, median(&s->ratio_f16), median(&s->ratio_copy),
               median(&s->append), median(&s->encode));
    }
    fflush(stdout);
}

static void add_result(cJSON* results, const bench* b, const subject* s)
{
    const double ns = median(&s->attend);
    cJSON* r = cJSON_CreateObject();
    cJSON_AddStringToObject(r, "cache", s->spec);
    cJSON_AddStringToObject(r, "spec", s->info.spec);
    cJSON_AddNumberToObject(r, "rows", (double)b->rows);
    cJSON_AddNumberToObject(r, "head_dim", b->head_dim);
    cJSON_AddNumberToObject(r, "head_dim_v", b->head_dim_v);
    cJSON_AddNumberToObject(r, "q_heads", b->options->num_q_heads);
    cJSON_AddNumberToObject(r, "kv_heads", b->options->num_kv_heads);
    cJSON_AddNumberToObject(r, "threads", kvl_context_threads(b->ctx));
    cJSON_AddNumberToObject(r, "sequences", s->num_seqs);
    cJSON_AddNumberToObject(r, "attend_ns", ns);
    cJSON_AddNumberToObject(r, "attend_best_ns", smallest(&s->attend));
    cJSON_AddNumberToObject(r, "encode_ns", median(&s->encode));
    cJSON_AddNumberToObject(r, "append_ns", median(&s->append));
    cJSON_AddNumberToObject(r, "gbps", (double)s->read_bytes / ns);
    cJSON_AddNumberToObject(r, "ratio_f16", median(&s->ratio_f16));
    cJSON_AddNumberToObject(r, "ratio_copy", median(&s->ratio_copy));
    cJSON_AddNumberToObject(r, "bits", bits_of(b, s));
    cJSON_AddNumberToObject(r, "bytes", (double)s->bytes);
    cJSON_AddNumberToObject(r, "read_bytes", (double)s->read_bytes);
    cJSON_AddBoolToObject(r, "generated", s->info.uses_generated);
    cJSON_AddItemToArray(results, r);
}

// Opens the file before anything is measured: a path that cannot be written costs no time.
static int open_json(const options* o, FILE** file)
{
    *file = NULL;
    if (!o->json) return 0;
    *file = fopen(o->json, "w");
    return *file ? 0 : fail("--json %s: %s", o->json, strerror(errno));
}

static int write_json(const options* o, FILE* file, const cJSON* root)
{
    char* text = cJSON_Print(root);
    if (!text) return fail("--json %s: out of memory", o->json);
    const bool ok = fprintf(file, "%s\n", text) > 0 && fflush(file) == 0;
    cJSON_free(text);
    return ok ? 0 : fail("--json %s: %s", o->json, strerror(errno));
}

static void say(kvl_log_level level, const char* message, void* user)
{
    (void)user;
    if (level != KVL_LOG_INFO) fail("%s", message);
}

static int open_context(const options* o, const char* cache_dir, kvl_context** ctx)
{
    const kvl_context_desc desc = { .target = o->target, .num_threads = o->num_threads,
                                    .cache_dir = cache_dir, .log = { .call = say },
                                    .arch = o->arch };
    if (kvl_context_create(&desc, ctx) == KVL_OK) return 0;
    return fail("%s", *ctx ? kvl_context_message(*ctx) : "out of memory");
}

typedef struct report {
    cJSON*  root;
    cJSON*  results;
    samples copy;     // of all lengths, GB/s
    samples read;
    char    cpu[256], isa[32];
    bool    host;
} report;

static int run_length(const options* o, kvl_context* ctx, mover* m, int64_t head_dim, int64_t rows,
                      report* r)
{
    bench* b = calloc(1, sizeof *b);
    if (!b) return fail("out of memory");
    b->options = o;
    b->ctx = ctx;
    b->mover = m;
    b->head_dim = (int)head_dim;
    b->head_dim_v = o->head_dim_v ? o->head_dim_v : (int)head_dim;
    b->rows = rows;
    int status = open_bench(b);
    for (int i = 0; i < b->num_subjects && !status; ++i) status = check_subject(b, &b->subjects[i]);
    if (!status) status = measure(b);
    if (!status) {
        const subject* s = &b->subjects[0];
        if (!r->isa[0]) {
            read_isa(s->cache, &s->info, r->isa, sizeof r->isa);
            r->host = s->info.uses_generated;
            printf("kvloom-bench %s: %s, %d threads, %s target, isa %s\n", KVLOOM_VERSION, r->cpu,
                   kvl_context_threads(ctx), r->host ? "host" : "reference", r->isa);
        }
        print_bench(b);
        add_sample(&r->copy, median(&m->copy));
        add_sample(&r->read, median(&m->read));
        for (int i = 0; i < b->num_subjects; ++i) add_result(r->results, b, &b->subjects[i]);
    }
    close_bench(b);
    free(b);
    return status;
}

static int run_bench(const options* o, report* r)
{
    static mover m;
    kvl_context* ctx;
    int status = open_context(o, NULL, &ctx);
    if (!status) status = open_mover(&m, kvl_context_threads(ctx));
    for (int d = 0; d < o->num_head_dims && !status; ++d)
        for (int i = 0; i < o->num_rows && !status; ++i)
            status = run_length(o, ctx, &m, o->head_dims[d], o->rows[i], r);
    if (!status) {
        cJSON_AddNumberToObject(r->root, "threads", kvl_context_threads(ctx));
        cJSON_AddNumberToObject(r->root, "copy_gbps", median(&r->copy));
        cJSON_AddNumberToObject(r->root, "read_gbps", median(&r->read));
        cJSON_AddStringToObject(r->root, "isa", r->isa);
        cJSON_AddStringToObject(r->root, "target", r->host ? "host" : "reference");
    }
    close_mover(&m);
    kvl_context_destroy(ctx);
    return status;
}

// STARTUP

// What a process of --startup writes to the pipe.
typedef struct startup_times {
    double context_ms, cache_ms;
    double processor_ms;             // of this process and its compilers, while the cache is made
    int    generated;
    int    num_compiled, slowest_ms;     // programs
} startup_times;

// From the log: the library says what each program took.
static void hear(kvl_log_level level, const char* message, void* user)
{
    startup_times* t = user;
    const char* at = strstr(message, ": compiled in ");
    int ms;
    if (!at || sscanf(at, ": compiled in %d", &ms) != 1) {
        say(level, message, NULL);
        return;
    }
    __atomic_fetch_add(&t->num_compiled, 1, __ATOMIC_RELAXED);
    int most = __atomic_load_n(&t->slowest_ms, __ATOMIC_RELAXED);
    while (ms > most && !__atomic_compare_exchange_n(&t->slowest_ms, &most, ms, 0,
                                                     __ATOMIC_RELAXED, __ATOMIC_RELAXED)) { }
}

static double processor_ms(void)
{
    struct rusage own, others;
    getrusage(RUSAGE_SELF, &own);
    getrusage(RUSAGE_CHILDREN, &others);
    return 1e3 * (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec + others.ru_utime.tv_sec +
                          others.ru_stime.tv_sec) +
           1e-3 * (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec + others.ru_utime.tv_usec +
                           others.ru_stime.tv_usec);
}

static int run_startup_child(const options* o)
{
    kvl_context* ctx;
    kvl_cache* cache = NULL;
    kvl_layer_info info;
    startup_times t = { .generated = 1 };
    const kvl_layer_desc layer = { .num_q_heads = o->num_q_heads, .num_kv_heads = o->num_kv_heads,
                                   .head_dim = (int)o->head_dims[0], .head_dim_v = o->head_dim_v,
                                   .spec = o->specs[0], .rope = rope_of(o) };
    const kvl_context_desc context = { .target = o->target, .num_threads = o->num_threads,
                                       .cache_dir = o->startup_folder, .arch = o->arch,
                                       .log = { hear, &t } };
    int status = 0;
    const double start = now_ns();
    if (kvl_context_create(&context, &ctx))
        status = fail("%s", ctx ? kvl_context_message(ctx) : "out of memory");
    t.context_ms = 1e-6 * (now_ns() - start);
    const double before_ms = processor_ms();
    kvl_status made = KVL_OK;
    if (!status && o->arch) {                  // no cache without the device
        kvl__layer kernels;
        const double begin = now_ns();
        made = kvl__make_kernels(ctx, &layer, &kernels);
        t.cache_ms = 1e-6 * (now_ns() - begin);
    } else if (!status) {
        made = create_cache(ctx, o, &layer, &cache, &t.cache_ms);
    }
    t.processor_ms = processor_ms() - before_ms;
    if (made)
        status = fail("%s: %s", o->specs[0], kvl_context_message(ctx));
    if (cache && kvl_cache_layer_info(cache, 0, &info)) status = fail("%s", "no layer info");
    if (!status) {
        if (cache) t.generated = info.uses_generated;
        if (write(STDOUT_FILENO, &t, sizeof t) != (ssize_t)sizeof t) status = 1;
    }
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
    return status;
}

// Starts this program again, with one spec and a kernel cache folder, and reads its times.
static int start_child(const options* o, char** argv, const char* folder, const char* spec,
                       startup_times* out)
{
    char* args[max_args + 8];
    int num = 0, ends[2], state;
    args[num++] = argv[0];
    args[num++] = "--startup-folder";
    args[num++] = (char*)(uintptr_t)folder;
    args[num++] = "--cache";
    args[num++] = (char*)(uintptr_t)spec;
    for (int i = 1; argv[i] && i <= max_args; ++i) args[num++] = argv[i];
    if (o->arch) {
        args[num++] = "--arch";
        args[num++] = (char*)(uintptr_t)o->arch;
    }
    args[num] = NULL;
    if (pipe(ends)) return fail("pipe: %s", strerror(errno));
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execv("/proc/self/exe", args);
        _exit(127);
    }
    close(ends[1]);
    const bool complete = child > 0 && read(ends[0], out, sizeof *out) == (ssize_t)sizeof *out;
    close(ends[0]);
    if (child < 0) return fail("fork: %s", strerror(errno));
    if (waitpid(child, &state, 0) != child || !WIFEXITED(state) || WEXITSTATUS(state) || !complete)
        return fail("%s: the process that measures its start failed", spec);
    return 0;
}

static int clear_folder(const char* folder)
{
    const kvl_context_desc desc = { .target = KVL_TARGET_REFERENCE, .num_threads = 1,
                                    .cache_dir = folder };
    kvl_context* ctx;
    int status = kvl_context_create(&desc, &ctx) != KVL_OK;
    if (!status) kvl_disk(ctx, KVL_DISK_CLEAR, 0, NULL, NULL);
    kvl_context_destroy(ctx);
    return status;
}

static int measure_startup(const options* o, char** argv, const char* folder, const char* spec,
                           cJSON* results)
{
    static samples first, processor, warm, load, slowest;
    startup_times t;
    int generated = 0, programs = 0;
    first.num = processor.num = warm.num = load.num = slowest.num = 0;
    for (int i = 0; i < 3; ++i) {
        if (clear_folder(folder)) return fail("%s: cannot be used", folder);
        if (start_child(o, argv, folder, spec, &t)) return 1;
        add_sample(&first, t.cache_ms);
        add_sample(&processor, t.processor_ms);
        add_sample(&slowest, t.slowest_ms);
        programs = t.num_compiled;
    }
    for (int i = 0; i < 15; ++i) {
        if (start_child(o, argv, folder, spec, &t)) return 1;
        add_sample(&warm, t.context_ms + t.cache_ms);
        add_sample(&load, t.cache_ms);
        generated = t.generated;
    }
    const bool met = median(&first) <= first_use_target_ms && median(&warm) <= warm_start_target_ms;
    printf("%-32s %14.1f %12.0f %8d %11.0f %14.2f %9.2f  %s%s\n", spec, median(&first),
           median(&processor), programs, median(&slowest), median(&warm), median(&load),
           met ? "yes" : "no", generated ? "" : " (reference: no kernels)");
    fflush(stdout);
    cJSON* r = cJSON_CreateObject();
    cJSON_AddStringToObject(r, "cache", spec);
    cJSON_AddNumberToObject(r, "first_use_ms", median(&first));
    cJSON_AddNumberToObject(r, "processor_ms", median(&processor));
    cJSON_AddNumberToObject(r, "programs", programs);
    cJSON_AddNumberToObject(r, "slowest_program_ms", median(&slowest));
    cJSON_AddNumberToObject(r, "warm_start_ms", median(&warm));
    cJSON_AddNumberToObject(r, "load_ms", median(&load));
    cJSON_AddBoolToObject(r, "generated", generated);
    cJSON_AddItemToArray(results, r);
    return 0;
}

// Without a device, kernels are compiled and read for an architecture, and not loaded.
static int choose_arch(options* o, char* name, size_t size)
{
    const kvl_context_desc desc = { .target = KVL_TARGET_CUDA, .num_threads = 1, .cache_dir = "",
                                    .arch = o->arch };
    kvl_context* ctx;
    name[0] = '\0';
    if (o->target != KVL_TARGET_CUDA) return 0;
    const kvl_status status = kvl_context_create(&desc, &ctx);
    int failed = 0;
    if (status == KVL_NO_DRIVER) o->arch = "sm_90";
    else if (status) failed = fail("%s", ctx ? kvl_context_message(ctx) : "out of memory");
    else if (!o->arch) snprintf(name, size, ", sm_%d", ctx->sm);
    if (o->arch) snprintf(name, size, ", %s without a device", o->arch);
    kvl_context_destroy(ctx);
    return failed;
}

// First use: cache creation in a process that finds an empty folder.  Warm start: context and cache
// creation in a process that finds the kernels there; load is the cache's part of it.
static int run_startup(options* o, char** argv, report* r)
{
    char folder[256], arch[64];
    const char* place = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/kvloom-bench-XXXXXX", place && *place ? place : "/tmp");
    if (choose_arch(o, arch, sizeof arch)) return 1;
    if (!mkdtemp(folder)) return fail("%s: %s", folder, strerror(errno));
    printf("kvloom-bench %s: %s%s, first use and warm start, medians of 3 and 15 processes\n",
           KVLOOM_VERSION, r->cpu, arch);
    printf("%-32s %14s %12s %8s %11s %14s %9s  %s\n", "cache", "first use ms", "processor ms",
           "programs", "slowest ms", "warm start ms", "load ms", "within targets");
    printf("%-32s %14.0f %12s %8s %11s %14.0f\n", "targets", first_use_target_ms, "", "", "",
           warm_start_target_ms);
    int status = 0;
    for (int i = 0; i < o->num_specs && !status; ++i)
        status = measure_startup(o, argv, folder, o->specs[i], r->results);
    clear_folder(folder);
    if (rmdir(folder) && !status) status = fail("%s: not empty after clearing", folder);
    if (o->arch) cJSON_AddStringToObject(r->root, "arch", o->arch);
    cJSON_AddNumberToObject(r->root, "first_use_target_ms", first_use_target_ms);
    cJSON_AddNumberToObject(r->root, "warm_start_target_ms", warm_start_target_ms);
    return status;
}

// OPERATIONS ON SEQUENCES

static const char* within(bool met) { return met ? "yes" : "no"; }

static void print_ops(const char* spec, const bench_ops* ops, const bench_ops_result* r)
{
    static const char* const names[] = { "fork", "truncate", "drop", "truncate a fork",
                                         "drop from a fork" };
    const bench_ops_time* const times[] = { r->fork, r->truncate, r->drop, r->fork_truncate,
                                            r->fork_drop };
    printf("\n%s\n", spec);
    for (int i = 0; i < 5; ++i)
        printf("  %-18s %9.2f us (best %.2f) at %lld rows, %9.2f us (best %.2f) at %lld; at most "
               "%.0f: %s\n", names[i], times[i][0].median, times[i][0].best,
               (long long)ops->num_rows / 16, times[i][1].median, times[i][1].best,
               (long long)ops->num_rows, change_target_us,
               within(times[i][1].median <= change_target_us));
    printf("  %-18s %9.2f us a row with encode, attend %.2f us: %.2f %%, at most %.0f %%: %s\n",
           "append", r->step_us, r->attend_us, 100 * r->step_part, 100 * step_target,
           within(r->step_part <= step_target));
    printf("  %-18s %9.2f us, one sequence of %lld rows %.2f us: x %.2f, at least %.2f: %s\n",
           "batch of 16", r->batch_us, (long long)ops->num_rows, r->long_us, r->batch_ratio,
           batch_target, within(r->batch_ratio >= batch_target));
    printf("  %-18s %9.1f MB/s of %.1f MB, a copy %.1f: x %.2f, at least %.2f: %s\n", "save",
           r->save_mbps, r->file_mb, r->copy_mbps, r->save_ratio, file_target,
           within(r->save_ratio >= file_target));
    printf("  %-18s %9.1f MB/s, reading alone %.1f: x %.2f of a copy, at least %.2f: %s\n", "load",
           r->load_mbps, r->read_mbps, r->load_ratio, file_target,
           within(r->load_ratio >= file_target));
    fflush(stdout);
}

static void add_ops_result(cJSON* results, const char* spec, const bench_ops_result* r)
{
    cJSON* j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "cache", spec);
    cJSON_AddNumberToObject(j, "fork_us", r->fork[1].median);
    cJSON_AddNumberToObject(j, "truncate_us", r->truncate[1].median);
    cJSON_AddNumberToObject(j, "drop_us", r->drop[1].median);
    cJSON_AddNumberToObject(j, "fork_truncate_us", r->fork_truncate[1].median);
    cJSON_AddNumberToObject(j, "fork_drop_us", r->fork_drop[1].median);
    cJSON_AddNumberToObject(j, "append_us", r->step_us);
    cJSON_AddNumberToObject(j, "append_part", r->step_part);
    cJSON_AddNumberToObject(j, "batch_ratio", r->batch_ratio);
    cJSON_AddNumberToObject(j, "save_mbps", r->save_mbps);
    cJSON_AddNumberToObject(j, "load_mbps", r->load_mbps);
    cJSON_AddNumberToObject(j, "copy_mbps", r->copy_mbps);
    cJSON_AddNumberToObject(j, "save_ratio", r->save_ratio);
    cJSON_AddNumberToObject(j, "load_ratio", r->load_ratio);
    cJSON_AddItemToArray(results, j);
}

static int run_ops_spec(const options* o, bench_ops* ops, const char* spec, report* r)
{
    char message[1024];
    bench_ops_result result;
    kvl_calibration* cal;
    kvl_layer_desc layer = *ops->layer;
    layer.spec = spec;
    ops->layer = &layer;
    const kvl_cache_desc desc = { .num_layers = 1, .layers = &layer };
    if (calibrate(ops->ctx, o, &desc, &cal)) return fail("%s", kvl_context_message(ops->ctx));
    ops->calibration = cal;
    const int failed = bench_ops_run(ops, &result, message, (int)sizeof message);
    kvl_calibration_free(cal);
    if (failed) return fail("%s: %s", spec, message);
    print_ops(spec, ops, &result);
    add_ops_result(r->results, spec, &result);
    return 0;
}

static int run_ops(const options* o, report* r)
{
    const char* place = getenv("TMPDIR");
    const int head_dim = (int)o->head_dims[0];
    const int head_dim_v = o->head_dim_v ? o->head_dim_v : head_dim;
    const kvl_layer_desc layer = { .num_q_heads = o->num_q_heads, .num_kv_heads = o->num_kv_heads,
                                   .head_dim = head_dim, .head_dim_v = head_dim_v,
                                   .rope = rope_of(o) };
    float* k = make_numbers((int64_t)num_sources * o->num_kv_heads * head_dim, 1);
    float* v = make_numbers((int64_t)num_sources * o->num_kv_heads * head_dim_v, 2);
    float* q = make_numbers((int64_t)o->num_q_heads * head_dim, 3);
    bench_ops ops = { .num_rows = o->rows[o->num_rows - 1] / 16 * 16, .step_rows = 8192,
                      .k = k, .v = v, .q = q, .num_sources = num_sources, .seconds = o->seconds,
                      .folder = place && *place ? place : "/tmp" };
    int status = k && v && q ? open_context(o, NULL, &ops.ctx) : fail("out of memory");
    if (!status)
        printf("kvloom-bench %s: %s, %d threads: operations on sequences\n", KVLOOM_VERSION, r->cpu,
               kvl_context_threads(ops.ctx));
    for (int i = 0; i < o->num_specs && !status; ++i) {
        ops.layer = &layer;
        status = run_ops_spec(o, &ops, o->specs[i], r);
    }
    kvl_context_destroy(ops.ctx);
    free(k);
    free(v);
    free(q);
    return status;
}

int main(int argc, char** argv)
{
    static options o;
    static report r;
    FILE* json;
    int status = read_options(argc, argv, &o);
    if (status) return status < 0 ? 0 : status;
    if (o.startup_folder) return run_startup_child(&o);
    if (open_json(&o, &json)) return 1;
    read_cpu_name(r.cpu, sizeof r.cpu);
    r.root = cJSON_CreateObject();
    cJSON_AddStringToObject(r.root, "version", KVLOOM_VERSION);
    cJSON_AddStringToObject(r.root, "cpu", r.cpu);
    r.results = cJSON_AddArrayToObject(r.root, o.startup ? "startup" : o.ops ? "operations"
                                                                             : "results");
    status = o.startup ? run_startup(&o, argv, &r) : o.ops ? run_ops(&o, &r) : run_bench(&o, &r);
    if (!status && json) status = write_json(&o, json, r.root);
    if (json) fclose(json);
    // A file without results helps nobody.
    if (json && status) remove(o.json);
    cJSON_Delete(r.root);
    return status;
}
