// kvloom-resources.c -- what kernels of a device take, without one: registers, memory, spills.
//
// NVRTC compiles the shape table for every architecture; ptxas says what each kernel takes.  The
// table is committed (tests/golden/resources.txt), and a test compares some of it.  A kernel that
// spills registers, has a stack or takes more shared memory than every device gives is an error.

#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

enum {
    max_rows = 16384, num_archs = 11, key_bytes = 160, shared_bytes_max = 48 * 1024,
    registers_max = 255,     // of a thread; two CTAs of 128 on a multiprocessor of 65536
    registers_unit = 8,      // what devices give out to a thread
    no_nvrtc = 77            // a status that ctest takes for a skipped test
};

static const int archs[num_archs] = { 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121 };

// THE SHAPE TABLE: "spec q_heads kv_heads head_dim", or head_dim/head_dim_v of values in the keys

// Compared by the test, for sm_75, sm_90 and sm_120.
static const char* const quick[] = {
    "kivi:k2,v2,g32 32 8 128", "f16 9 3 64", "rtn:k3,v8,g32,transform=hadamard,rows=bf16 16 1 96",
    NULL };

// The committed table: each word of a codec, bits, head dim, number of heads and type of rows.
static const char* const table[] = {
    "kivi:k2,v2,g32,rows=bf16 32 8 128", "kivi:k3,v3,g32 4 1 256", "kivi:k4,v4,g64 28 4 128",
    "kivi:k8,v8,g32 8 8 64", "kivi:k2,v2,g16 16 1 80", "kivi:k2,v2,g32,meta=f16 7 1 192",
    "q8_0 32 8 128", "q4_0 32 8 128", "bf16 32 8 128", "f16 16 1 256",
    "rtn:b4,transform=hadamard 32 8 128", "rtn:k1,v5,g32 32 8 128", "rtn:k6,v2,g32 16 1 256",
    "q8_0/q4_0 8 1 192", "flagrot-kivi:k2,v2,g32 32 8 128", "flagrot-auto:k2,v2,g32 16 1 256",
    "flagrot-auto:k4,v4,k.score=channel 4 1 96",
    "flagrot-kivi:k3,k.choose=fixed,fit=search 8 1 192",
    "loom 32 8 128", "loom:b4,meta=e4m3 16 1 256", "loom:kg64,b3 7 1 64", "wush 16 1 128",
    "oscar:b4 8 1 256", "quest 4 1 64", "kivi:k2,g32 16 1 576/512", "f16 16 1 576/512",
    "kivi:k2,v3,g32,round=trellis 32 8 128", "wush:b4,round=trellis64,fit=search 8 1 256",
    "loom:round=feedback_trellis 4 1 128", "loom:k.shift=rotating-mean 7 1 64",
    "kivi:k2,v2,g32 16 1 128", "kvquant 32 8 128", "oscar-norm 32 8 128", "kitty 16 1 256",
    "qjl 8 1 128", "turboquant-prod 32 8 128", "block-gtq 4 1 128", NULL };

// With --all: the product, as far as a codec goes.
static const char* const all_specs[] = {
    "f16", "bf16", "q8_0", "q4_0", "kivi:k2,v2,g32", "kivi:k3,v3,g32", "kivi:k4,v4,g32",
    "kivi:k8,v8,g32", "rtn:b2,g32", "rtn:b3,g32", "rtn:b4,g32", "rtn:b8,g32", "quarot:k2,v2",
    "quarot:k4,v4", "quest:k2,v2", "quest:k4,v4", "flagrot-kivi:k2,v2,g32",
    "flagrot-kivi:k4,v4,g32", "flagrot-auto:k2,v2,g32", "oscar:k2,v2", "wush:k2,v2", "wush:k4,v4",
    "loom:k2,v2", "loom:k4,v4", "kivi:k2,v2,g32,round=trellis",
    "loom:k2,v2,k.shift=rotating-mean,round=feedback_trellis", NULL };
static const int all_dims[] = { 64, 80, 96, 128, 192, 256, 0 };
static const int all_heads[] = { 1, 4, 7, 8, 16, 0 };

// ROWS

// One kernel of one configuration; -1: not compiled.
typedef struct row {
    char key[key_bytes];
    int  registers[num_archs];
    int  shared, stack, spill;       // bytes, the most of all architectures
    int  spill_sm;                   // which has them
    int  ms;                         // processor time of NVRTC for the program, the most
} row;

static struct {
    pthread_mutex_t lock;
    row             rows[max_rows];
    int             num_rows, arch;
    const char*     config;
    int             nvrtc[2];
} result = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
static int fail(const char* format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "kvloom-resources: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    return 1;
}

static row* find_row(row* rows, int num, const char* key)
{
    for (int i = 0; i < num; ++i)
        if (strcmp(rows[i].key, key) == 0) return &rows[i];
    return NULL;
}

static row* add_row(const char* key)
{
    row* r = find_row(result.rows, result.num_rows, key);
    if (r) return r;
    if (result.num_rows == max_rows) exit(fail("more than %d kernels", max_rows));
    r = &result.rows[result.num_rows++];
    memset(r, 0, sizeof *r);
    snprintf(r->key, sizeof r->key, "%s", key);
    for (int i = 0; i < num_archs; ++i) r->registers[i] = -1;
    return r;
}

static void most(int* to, int value) { if (value > *to) *to = value; }

// Reads what ptxas says of each kernel.
static void read_log(const char* log, int ms)
{
    static const char entry[] = "Compiling entry function '";
    for (const char* at = strstr(log, entry); at; at = strstr(at, entry)) {
        char key[key_bytes];
        int stack = 0, stores = 0, loads = 0, registers = 0, shared = 0;
        at += sizeof entry - 1;
        const char* end = strstr(at, entry);
        snprintf(key, sizeof key, "%.*s | %s", (int)strcspn(at, "'"), at, result.config);
        const char* frame = strstr(at, "bytes stack frame");
        const char* used = strstr(at, "Used ");
        if (!frame || !used || (end && (frame > end || used > end))) continue;
        while (frame[-1] == ' ' || (frame[-1] >= '0' && frame[-1] <= '9')) --frame;
        sscanf(frame, "%d bytes stack frame, %d bytes spill stores, %d bytes spill loads", &stack,
               &stores, &loads);
        sscanf(used, "Used %d registers", &registers);
        const char* smem = strstr(used, " bytes smem");
        if (smem && smem < used + strcspn(used, "\n")) {
            while (smem[-1] >= '0' && smem[-1] <= '9') --smem;
            shared = atoi(smem);
        }
        pthread_mutex_lock(&result.lock);
        row* r = add_row(key);
        r->registers[result.arch] = registers;
        most(&r->shared, shared);
        if (stores + loads + stack > r->spill + r->stack) r->spill_sm = archs[result.arch];
        most(&r->stack, stack);
        most(&r->spill, stores + loads);
        most(&r->ms, ms);
        pthread_mutex_unlock(&result.lock);
    }
}

// COMPILING

static double thread_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

// As the library compiles, with one option more, and with the log of a success as well.
static kvl_status compile_aloud(kvl_context* ctx, const kvl__compile_job* job,
                                unsigned char** binary, size_t* num_bytes)
{
    const char* options[KVL__OPTIONS_MAX + 1];
    const kvl__nvrtc_table* t;
    kvl__nvrtc_program program = NULL;
    kvl__compile_job aloud = *job;
    size_t log_bytes = 0;
    *binary = NULL;
    *num_bytes = 0;
    for (int i = 0; i < job->num_options; ++i) options[i] = job->options[i];
    options[aloud.num_options++] = "--ptxas-options=-v";
    aloud.options = options;
    KVL__TRY(kvl__nvrtc_get(ctx, &t));
    const double start = thread_ms();
    int failed = t->create(&program, job->text, job->name, 0, NULL, NULL);
    if (!failed) failed = t->compile(program, aloud.num_options, aloud.options);
    const int ms = (int)(thread_ms() - start + 0.5);
    if (!failed && t->log_bytes(program, &log_bytes) == 0) {
        char* log = calloc(1, log_bytes + 1);
        if (log && t->log(program, log) == 0) read_log(log, ms);
        free(log);
    }
    if (failed) kvl__nvrtc_keep_log(ctx, t, program);
    const kvl_status status = failed ? kvl__nvrtc_failed(ctx, job, failed)
                                     : kvl__nvrtc_take(ctx, t, program, job, binary, num_bytes);
    t->destroy(&program);
    return status;
}

// Compiles the kernels of one configuration.  One that the target refuses is passed over.
static int run_config(kvl_context* ctx, const char* config, bool product)
{
    char spec[448];
    kvl_layer_desc desc;
    kvl__layer layer;
    memset(&desc, 0, sizeof desc);
    memset(&layer, 0, sizeof layer);
    const int num = sscanf(config, "%447s %d %d %d/%d", spec, &desc.num_q_heads,
                           &desc.num_kv_heads, &desc.head_dim, &desc.head_dim_v);
    if (num < 4) return fail("'%s' is no configuration", config);
    desc.spec = spec;
    desc.values_in_keys = num == 5;
    result.config = config;
    kvl_status status = kvl__config_create(ctx, -1, &desc, NULL, NULL, &layer.config);
    if (status == KVL_OK) status = kvl__device_layer_kernels(ctx, &layer);
    if (status == KVL_OK || (product && status != KVL_COMPILE)) return 0;
    if (status == KVL_COMPILE) fprintf(stderr, "%s\n", kvl_context_log(ctx));
    return fail("sm_%d: %s: %s", ctx->sm, config, kvl_context_message(ctx));
}

static int run_list(kvl_context* ctx, const char* const* list)
{
    int status = 0;
    for (int i = 0; list[i] && !status; ++i) status = run_config(ctx, list[i], false);
    return status;
}

static int run_product(kvl_context* ctx)
{
    char config[key_bytes];
    int status = 0;
    for (int s = 0; all_specs[s]; ++s)
        for (int d = 0; all_dims[d]; ++d)
            for (int h = 0; all_heads[h]; ++h)
                for (int rows = 0; rows < 2 && !status; ++rows) {
                    snprintf(config, sizeof config, "%s%s %d 1 %d", all_specs[s],
                             !rows ? "" : strchr(all_specs[s], ':') ? ",rows=bf16" : ":rows=bf16",
                             all_heads[h], all_dims[d]);
                    status = run_config(ctx, config, true);
                }
    return status;
}

typedef struct options {
    bool        quick, all;
    int         only;              // architecture; 0: all of them
    int         threads;
    const char *out, *compare;
} options;

static int run_arch(const options* o, int arch)
{
    char name[16];
    const kvl_context_desc desc = { .target = KVL_TARGET_CUDA, .arch = name, .cache_dir = "",
                                    .num_threads = o->threads };
    kvl_context* ctx;
    snprintf(name, sizeof name, "sm_%d", archs[arch]);
    result.arch = arch;
    int status = kvl_context_create(&desc, &ctx) ? fail("%s", kvl_context_message(ctx)) : 0;
    if (!status) {
        const kvl__nvrtc_table* t;
        ctx->programs->compile = compile_aloud;
        if (kvl__nvrtc_get(ctx, &t)) status = no_nvrtc * fail("%s", kvl_context_message(ctx));
        else t->version(&result.nvrtc[0], &result.nvrtc[1]);
        if (!status) status = run_list(ctx, quick);
        if (!status && !o->quick) status = run_list(ctx, table);
        if (!status && o->all) status = run_product(ctx);
        fprintf(stderr, "%s: %d programs\n", name, ctx->programs->num_compiles);
    }
    kvl_context_destroy(ctx);
    return status;
}

// THE TABLE AS TEXT

static int compare_rows(const void* a, const void* b)
{
    return strcmp(((const row*)a)->key, ((const row*)b)->key);
}

static void write_table(FILE* out)
{
    fprintf(out, "# resources.txt -- written by kvloom-resources with NVRTC %d.%d: registers of"
            " each kernel\n# for sm_XX; the most bytes of shared memory, stack and spills, and the"
            " most processor time in\n# ms of NVRTC for its program, of all of them.  A program"
            " that several configurations share is\n# in the first one's row.\n",
            result.nvrtc[0], result.nvrtc[1]);
    fprintf(out, "#");
    for (int i = 0; i < num_archs; ++i) fprintf(out, " %4d", archs[i]);
    fprintf(out, " %7s %5s %5s %5s  kernel | configuration\n", "shared", "stack", "spill", "ms");
    for (int i = 0; i < result.num_rows; ++i) {
        const row* r = &result.rows[i];
        fprintf(out, " ");
        for (int k = 0; k < num_archs; ++k) {
            if (r->registers[k] < 0) fprintf(out, "    -");
            else fprintf(out, " %4d", r->registers[k]);
        }
        fprintf(out, " %7d %5d %5d %5d  %s\n", r->shared, r->stack, r->spill, r->ms, r->key);
    }
}

// Budgets that hold whatever the compiler.
static int check_budgets(void)
{
    int bad = 0;
    for (int i = 0; i < result.num_rows; ++i) {
        const row* r = &result.rows[i];
        int registers = 0;
        for (int k = 0; k < num_archs; ++k) most(&registers, r->registers[k]);
        if (r->spill || r->stack)
            bad = fail("%s: %d bytes of spills, %d of stack (sm_%d)", r->key, r->spill, r->stack,
                       r->spill_sm);
        if (r->shared > shared_bytes_max)
            bad = fail("%s: %d bytes of shared memory, at most %d", r->key, r->shared,
                       shared_bytes_max);
        if (registers > registers_max)
            bad = fail("%s: %d registers, at most %d", r->key, registers, registers_max);
    }
    return bad;
}

static int read_row(const char* line, row* r)
{
    int at = 0, used = 0;
    char word[16];
    for (int k = 0; k < num_archs; ++k, at += used) {
        if (sscanf(line + at, "%15s%n", word, &used) != 1) return 0;
        r->registers[k] = strcmp(word, "-") == 0 ? -1 : atoi(word);
    }
    if (sscanf(line + at, "%d %d %d %d  %n", &r->shared, &r->stack, &r->spill, &r->ms, &used) != 4)
        return 0;
    snprintf(r->key, sizeof r->key, "%s", line + at + used);
    r->key[strcspn(r->key, "\n")] = '\0';
    return 1;
}

// With the NVRTC that wrote the table, no kernel may take more than it says by more than a unit;
// another one's numbers are another compiler's.
static int compare_table(const char* path)
{
    static row known[max_rows];
    char line[512];
    int num = 0, major = 0, minor = 0, bad = 0;
    FILE* in = fopen(path, "r");
    if (!in) return fail("%s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, in)) {
        const char* at = strstr(line, "NVRTC ");
        if (line[0] == '#' && at) sscanf(at, "NVRTC %d.%d", &major, &minor);
        if (line[0] != '#' && num < max_rows && read_row(line, &known[num])) ++num;
    }
    fclose(in);
    if (major != result.nvrtc[0] || minor != result.nvrtc[1]) {
        printf("%s is of NVRTC %d.%d, this is %d.%d: budgets alone are checked\n", path, major,
               minor, result.nvrtc[0], result.nvrtc[1]);
        return 0;
    }
    for (int i = 0; i < result.num_rows; ++i) {
        const row* r = &result.rows[i];
        const row* other = find_row(known, num, r->key);
        if (!other) bad = fail("%s lacks '%s'", path, r->key);
        for (int k = 0; other && k < num_archs; ++k)
            if (r->registers[k] > other->registers[k] + registers_unit)
                bad = fail("sm_%d: %s: %d registers, %d in %s", archs[k], r->key, r->registers[k],
                           other->registers[k], path);
        if (other && r->shared > other->shared)
            bad = fail("%s: %d bytes of shared memory, %d in %s", r->key, r->shared, other->shared,
                       path);
    }
    if (bad) fail("kvloom-resources -o %s writes it again: look at the change", path);
    return bad;
}

// OPTIONS

static const char usage[] =
    "usage: kvloom-resources [options]\n"
    "  -o FILE          writes the table (standard output)\n"
    "  --quick          a few configurations for sm_75, sm_90 and sm_120\n"
    "  --all            the product of codecs, head dims, heads and rows as well: hours\n"
    "  --arch N         one architecture, as 90\n"
    "  --compare FILE   against a table that is committed\n"
    "  --threads N      compilers at a time (0: one a processor)\n"
    "  --help           this text\n"
    "Status 1 if a kernel spills, has a stack, is beyond a budget or is not as the table says; 77\n"
    "without NVRTC.\n";

enum { opt_quick = 1, opt_all, opt_arch, opt_compare, opt_threads, opt_help };

static const struct option long_options[] = {
    { "quick", no_argument, NULL, opt_quick }, { "all", no_argument, NULL, opt_all },
    { "arch", required_argument, NULL, opt_arch },
    { "compare", required_argument, NULL, opt_compare },
    { "threads", required_argument, NULL, opt_threads }, { "help", no_argument, NULL, opt_help },
    { NULL, 0, NULL, 0 } };

static int read_options(int argc, char** argv, options* o)
{
    int c, known = 0;
    opterr = 0;
    while ((c = getopt_long(argc, argv, "o:", long_options, NULL)) != -1) {
        switch (c) {
        case 'o': o->out = optarg; break;
        case opt_quick: o->quick = true; break;
        case opt_all: o->all = true; break;
        case opt_arch: o->only = atoi(optarg); break;
        case opt_compare: o->compare = optarg; break;
        case opt_threads: o->threads = atoi(optarg); break;
        case opt_help: fputs(usage, stdout); return -1;
        default: return fail("%s: unknown, or it lacks its value; --help tells more",
                             argv[optind - 1]);
        }
    }
    for (int i = 0; i < num_archs; ++i) known |= o->only == archs[i];
    if (o->only && !known) return fail("--arch %d: must be 75, 80 ... 121", o->only);
    if (o->threads < 0 || o->threads > KVL__MAX_THREADS)
        return fail("--threads %d: must be 0 to %d", o->threads, KVL__MAX_THREADS);
    return optind < argc ? fail("%s: what is this?", argv[optind]) : 0;
}

int main(int argc, char** argv)
{
    static options o;
    int status = read_options(argc, argv, &o);
    if (status) return status < 0 ? 0 : 2;
    for (int i = 0; i < num_archs && !status; ++i) {
        const bool few = archs[i] == 75 || archs[i] == 90 || archs[i] == 120;
        if (o.only ? archs[i] == o.only : few || !o.quick) status = run_arch(&o, i);
    }
    if (status) return status;
    qsort(result.rows, (size_t)result.num_rows, sizeof result.rows[0], compare_rows);
    FILE* out = o.out ? fopen(o.out, "w") : stdout;
    if (!out) return fail("%s: %s", o.out, strerror(errno));
    if (!o.compare || o.out) write_table(out);
    if (o.out && fclose(out)) return fail("%s: %s", o.out, strerror(errno));
    status = check_budgets();
    if (o.compare) status |= compare_table(o.compare);
    if (o.compare && !status) printf("%d kernels are as %s says\n", result.num_rows, o.compare);
    return status;
}
