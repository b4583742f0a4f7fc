// kvloom-count.c -- instructions of host kernels per key and value number: a measure without noise.
//
//     kvloom-count                                              # the table, of this processor
//     kvloom-count --compare tests/golden/instructions.txt      # against the committed one
//
// The processor stops after each instruction (the trap flag of x86-64) and a signal handler counts,
// so that every instruction set is counted, with no counters of the hardware and no emulator, and a
// busy machine gives the same figures.  Numbers of calibrated tables are made up: a reflection for
// a basis, small numbers for factors.
//
//   attend   one query row, by the difference of two lengths that lie in pages: what a KV number
//            costs, without what a call costs
//   encode   an append that completes a chunk, divided by the numbers that it encodes
//
// --split tells by function where the instructions of attend lie, and how many of them are integer
// dot products; of what compilers inline, the caller.

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#if defined(__x86_64__)
#include <immintrin.h>
#include <x86intrin.h>
#endif

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"
#include "count_split.h"

enum {
    max_rows = 256, key_bytes = 128, line_bytes = 512,
    least_rows = 256, more_rows = 512,       // in pages: what the two lengths have
    cannot_count = 77                        // a status that ctest takes for a skipped test
};

static const double tolerance = 0.05;

// THE TABLE OF SHAPES: "spec q_heads kv_heads head_dim"

static const char* const shapes[] = {
    "f16 4 1 128", "q8_0:chunk=16 4 1 128", "q4_0:chunk=16 4 1 128", "kivi:k2,v2,g32 4 1 128",
    "kivi:k2,v2,g32 1 1 128", "kivi:k2,v2,g32 3 1 64", "kivi:k4,v4,g32 4 1 128",
    "rtn:k2,v2,chunk=16 4 1 128", "quest:k4,v4,chunk=16 4 1 128",
    "flagrot-kivi 4 1 128", "flagrot-kivi:k.choose=fixed 4 1 128", "flagrot-auto:chunk=16 4 1 128",
    "loom 4 1 64", NULL };

// What `--quick` measures.
static const char* const quick[] = {
    "kivi:k2,v2,g32 4 1 128", "rtn:k2,v2,chunk=16 4 1 128", "flagrot-kivi 4 1 128",
    "flagrot-auto:chunk=16 4 1 128",
    NULL };

typedef struct row {
    char   key[key_bytes];       // "isa shape"
    double attend, encode;       // instructions a number
} row;

typedef struct options {
    const char* out;
    const char* compare;
    const char* isa;
    const char* only;
    bool        quick, split;
} options;

static struct {
    row rows[max_rows];
    int num_rows;
} result;

static int fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
static int fail(const char* format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "kvloom-count: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    return 1;
}

// COUNTING

#if defined(__x86_64__)
static volatile int64_t num_traps;
static volatile long long last_place;

// A repeated string instruction stops at each of its steps, at the same place: it counts once.
static void count_trap(int signal, siginfo_t* info, void* user)
{
    const ucontext_t* context = user;
    const long long place = context->uc_mcontext.gregs[REG_RIP];
    (void)signal;
    (void)info;
    num_traps += place != last_place;
    if (split.on && place != last_place) split_add((uint64_t)place);
    last_place = place;
}

static bool start_counter(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = count_trap;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGTRAP, &action, NULL) == 0;
}

static void trap_each(bool on)
{
    const unsigned long long trap_flag = 0x100, flags = __readeflags();
    __writeeflags(on ? flags | trap_flag : flags & ~trap_flag);
}

// From here on, instructions of attend are told apart; sign -1 takes them off.
static void split_from(bool on, int sign)
{
    split.on = on;
    split.sign = sign;
}
#else
static int64_t num_traps;
static void split_from(bool on, int sign) { (void)on, (void)sign; }
static void split_write(FILE* out, double numbers) { (void)out, (void)numbers; }
static bool start_counter(void) { return false; }
static void trap_each(bool on) { (void)on; }
#endif

// NUMBERS

// From -1 to 1, the same everywhere.
static float next_number(uint32_t* state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * 4.656612873e-10f;
}

static void fill_rows(float* x, int64_t count, uint32_t state)
{
    for (int64_t i = 0; i < count; ++i) {
        float sum = 0.0f;
        for (int k = 0; k < 6; ++k) sum += next_number(&state);
        x[i] = sum * 0.7071f;
    }
}

// Tables of any codec: kvl_record.h asks for them by name and shape.
typedef struct made_tables {
    kvl__table_source source;
    float*            list[32];
    int               num;
} made_tables;

static float made_number(const kvl__wanted_table* w, int64_t head, int64_t i, int64_t j,
                         uint32_t* state)
{
    const int64_t n = w->shape[0];
    const float wave = sinf((float)(i * 7 + j * 3));
    if (strncmp(w->name, "feedback_order", 14) == 0) return (float)(n - 1 - i);
    if (strncmp(w->name, "feedback_factor", 15) == 0) return j < i ? 0.1f * wave : 0.0f;
    if (strncmp(w->name, "feedback_price", 14) == 0) return j != i ? 0.02f * wave : 0.0f;
    if (strncmp(w->name, "choice", 6) == 0) return (float)(i % 2 == 0 && i + 1 < n);
    if (strncmp(w->name, "grouped_order", 13) == 0) return (float)(head * n + i);
    if (strncmp(w->name, "log4_base", 9) == 0) return 0.5f;
    if (strcmp(w->name, "query_lse") == 0) return 4.0f;
    if (strcmp(w->name, "queries") == 0) return 0.1f * next_number(state);
    if (w->rank == 1) return 0.1f * wave;
    return (float)(i == j) - 2.0f / (float)n;               // the reflection at (1, 1, ..., 1)
}

static kvl_status make_table(kvl_context* ctx, const kvl__table_source* source,
                             const kvl__wanted_table* w, const float** out)
{
    made_tables* made = (made_tables*)(void*)(uintptr_t)source;
    const int64_t columns = w->rank > 1 ? w->shape[1] : 1, count = w->shape[0] * columns;
    uint32_t state = 7;
    float* x = malloc((size_t)(count * w->num_kv_heads) * sizeof *x);
    if (!x || made->num == 32) {
        free(x);
        return kvl__fail(ctx, KVL_NO_MEMORY, "no memory for the table %s", w->name);
    }
    for (int64_t i = 0; i < count * w->num_kv_heads; ++i)
        x[i] = made_number(w, i / count, i % count / columns, i % columns, &state);
    made->list[made->num++] = x;
    *out = x;
    return KVL_OK;
}

// MEASURING

typedef struct subject {
    kvl_context*   ctx;
    kvl_cache*     cache;
    kvl_layer_info info;
    kvl_seq        seq;
    int            num_q_heads, num_kv_heads, head_dim;
    int64_t        num_rows;
    float*         k;
    float*         v;
    float*         q;
    float*         o;
} subject;

enum { num_sources = 256 };

static kvl_status append(subject* s, int32_t num, bool counted)
{
    const int64_t at = s->num_rows % num_sources * s->num_kv_heads * s->head_dim;
    kvl_append_desc a = { .num_seqs = 1, .seqs = &s->seq, .num_rows = &num };
    a.k.data = s->k + at;
    a.v.data = s->v + at;
    s->num_rows += num;
    if (counted) trap_each(true);
    const kvl_status status = kvl_append(s->cache, &a);
    if (counted) trap_each(false);
    return status;
}

// Appends until the sequence has num_rows rows.
static kvl_status grow(subject* s, int64_t num_rows)
{
    while (s->num_rows < num_rows) KVL__TRY(append(s, 1, false));
    return KVL_OK;
}

static kvl_status count_attend(subject* s, int64_t* count)
{
    kvl_attend_desc t = { .num_seqs = 1, .seqs = &s->seq };
    t.q.data = s->q;
    t.o.data = s->o;
    KVL__TRY(kvl_attend(s->cache, &t));
    num_traps = 0;
    trap_each(true);
    const kvl_status status = kvl_attend(s->cache, &t);
    trap_each(false);
    *count = num_traps;
    return status;
}

// Encode of the second chunk, so that the page is there.
static kvl_status measure(subject* s, row* r, bool splits)
{
    const kvl_layer_info* i = &s->info;
    const int64_t windows = i->sink_len + i->recent_len;
    const double numbers = 2.0 * (double)s->head_dim * s->num_kv_heads;
    kvl_seq_rows before, after;
    int64_t few, many;
    KVL__TRY(grow(s, windows + 2 * i->chunk_len - 1));
    KVL__TRY(kvl_seq_get_rows(s->cache, 0, s->seq, &before));
    num_traps = 0;
    KVL__TRY(append(s, 1, true));
    KVL__TRY(kvl_seq_get_rows(s->cache, 0, s->seq, &after));
    r->encode = (double)num_traps / (numbers * (double)(after.quantized - before.quantized));
    KVL__TRY(grow(s, windows + least_rows));
    split_from(splits, -1);
    KVL__TRY(count_attend(s, &few));
    KVL__TRY(grow(s, windows + more_rows));
    split_from(splits, 1);
    KVL__TRY(count_attend(s, &many));
    split_from(false, 0);
    r->attend = (double)(many - few) / (numbers * (more_rows - least_rows));
    if (splits) split_write(stdout, numbers * (more_rows - least_rows));
    return KVL_OK;
}

static kvl_status open_subject(subject* s, const char* spec, made_tables* made)
{
    const kvl_layer_desc layer = { .num_q_heads = s->num_q_heads, .num_kv_heads = s->num_kv_heads,
                                   .head_dim = s->head_dim, .spec = spec };
    kvl_cache_desc desc = { .num_layers = 1, .layers = &layer };
    const int64_t row_floats = (int64_t)s->num_kv_heads * s->head_dim;
    made->source.find = make_table;
    desc.calibration = (const kvl_calibration*)(const void*)made;
    KVL__TRY(kvl_cache_create(s->ctx, &desc, &s->cache));
    KVL__TRY(kvl_cache_layer_info(s->cache, 0, &s->info));
    KVL__TRY(kvl_seq_create(s->cache, &s->seq));
    s->k = malloc((size_t)(num_sources * row_floats) * sizeof *s->k);
    s->v = malloc((size_t)(num_sources * row_floats) * sizeof *s->v);
    s->q = malloc((size_t)s->num_q_heads * (size_t)s->head_dim * sizeof *s->q);
    s->o = malloc((size_t)s->num_q_heads * (size_t)s->head_dim * sizeof *s->o);
    if (!s->k || !s->v || !s->q || !s->o)
        return kvl__fail(s->ctx, KVL_NO_MEMORY, "no memory for rows");
    fill_rows(s->k, num_sources * row_floats, 1);
    fill_rows(s->v, num_sources * row_floats, 2);
    fill_rows(s->q, (int64_t)s->num_q_heads * s->head_dim, 3);
    return KVL_OK;
}

static int measure_shape(kvl_context* ctx, const char* isa, const char* shape, bool splits)
{
    made_tables made = { .num = 0 };
    subject s = { .ctx = ctx };
    char spec[key_bytes];
    row* r = &result.rows[result.num_rows];
    if (sscanf(shape, "%99s %d %d %d", spec, &s.num_q_heads, &s.num_kv_heads, &s.head_dim) != 4)
        return fail("%s: must be SPEC Q_HEADS KV_HEADS HEAD_DIM", shape);
    if (result.num_rows == max_rows) return fail("more than %d rows", max_rows);
    kvl_status status = open_subject(&s, spec, &made);
    if (!status && !s.info.uses_generated)
        status = kvl__fail(ctx, KVL_UNSUPPORTED, "has no generated kernels");
    if (splits) printf("#   attend     dots  function, of %s %s\n", isa, shape);
    if (!status) status = measure(&s, r, splits);
    if (status) fail("%s: %s", shape, kvl_context_message(ctx));
    kvl_cache_free(s.cache);
    for (int i = 0; i < made.num; ++i) free(made.list[i]);
    free(s.k);
    free(s.v);
    free(s.q);
    free(s.o);
    snprintf(r->key, sizeof r->key, "%s %s", isa, shape);
    result.num_rows += !status;
    return status != KVL_OK;
}

// Measures what this processor has; *compiler is the first word of who made the kernels.
static int measure_isa(const options* o, const kvl__isa* isa, char* compiler, size_t size)
{
    const kvl_context_desc desc = { .target = KVL_TARGET_HOST, .num_threads = 1, .isa = isa->name };
    kvl_context* ctx = NULL;
    const char* const* list = o->quick ? quick : shapes;
    const char* const one[] = { o->only, NULL };
    if (o->only) list = one;
    kvl_status status = kvl_context_create(&desc, &ctx);
    if (status == KVL_OK) status = kvl__compiler_identity(ctx, compiler, size);
    int bad = status != KVL_OK;
    if (bad) fail("%s", ctx ? kvl_context_message(ctx) : "out of memory");
    for (int i = 0; list[i] && !bad; ++i)
        bad = measure_shape(ctx, isa->name, list[i], o->split);
    kvl_context_destroy(ctx);
    return bad;
}

// THE TABLE

static void write_table(FILE* out, const char* compiler)
{
    fprintf(out, "# instructions.txt -- written by kvloom-count: instructions a key or value "
                 "number, of attend\n# and of encode.  Kernels of %s\n"
                 "#   attend   encode  isa | spec, query heads, KV heads, head dim\n", compiler);
    for (int i = 0; i < result.num_rows; ++i)
        fprintf(out, "%10.4f %8.2f  %s\n", result.rows[i].attend, result.rows[i].encode,
                result.rows[i].key);
}

static bool differs(double now, double was)
{
    return !(fabs(now - was) <= tolerance * was + 0.005 * (was > 1.0));
}

static int compare_row(const char* path, const char* line, bool* found)
{
    double attend, encode;
    int at = 0;
    if (line[0] == '#' || sscanf(line, "%lf %lf %n", &attend, &encode, &at) != 2 || at == 0)
        return 0;
    for (int i = 0; i < result.num_rows; ++i) {
        const row* r = &result.rows[i];
        if (strcmp(r->key, line + at) != 0) continue;
        found[i] = true;
        if (differs(r->attend, attend))
            return fail("%s: attend: %.4f instructions a number, %.4f in %s: more than 5 %% apart",
                        r->key, r->attend, attend, path);
        if (differs(r->encode, encode))
            return fail("%s: encode: %.2f instructions a number, %.2f in %s: more than 5 %% apart",
                        r->key, r->encode, encode, path);
    }
    return 0;
}

static int compare_table(const char* path, const char* compiler)
{
    FILE* file = fopen(path, "r");
    char line[line_bytes];
    bool found[max_rows] = { false }, same = false;
    int bad = 0;
    if (!file) return fail("%s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        const char* of = strstr(line, "Kernels of ");
        if (of && strcmp(of + 11, compiler) == 0) same = true;
        bad |= compare_row(path, line, found);
    }
    fclose(file);
    if (!same) {
        fail("%s is of another compiler than %s: not compared", path, compiler);
        return cannot_count;
    }
    for (int i = 0; i < result.num_rows; ++i)
        if (!found[i]) bad = fail("%s lacks '%s'", path, result.rows[i].key);
    if (bad) fail("kvloom-count -o %s writes it again: look at the change", path);
    return bad;
}

// OPTIONS

static const char usage[] =
    "usage: kvloom-count [options]\n"
    "  -o FILE          writes the table (standard output)\n"
    "  --quick          a few shapes\n"
    "  --shape TEXT     one, as 'kivi:k2,v2,g32 4 1 128': spec, query heads, KV heads, head dim\n"
    "  --isa NAME       one instruction set (each that this processor has but portable)\n"
    "  --split          where the instructions of attend lie, by function\n"
    "  --compare FILE   against a table that is committed, within 5 %\n"
    "  --help           this text\n"
    "Status 1 if a figure is not as the table says; 77 where instructions cannot be counted, or\n"
    "the table is of another compiler.\n";

enum { opt_quick = 1, opt_shape, opt_isa, opt_compare, opt_split, opt_help };

static const struct option long_options[] = {
    { "quick", no_argument, NULL, opt_quick }, { "shape", required_argument, NULL, opt_shape },
    { "isa", required_argument, NULL, opt_isa }, { "split", no_argument, NULL, opt_split },
    { "compare", required_argument, NULL, opt_compare }, { "help", no_argument, NULL, opt_help },
    { NULL, 0, NULL, 0 } };

static int read_options(int argc, char** argv, options* o)
{
    int c;
    opterr = 0;
    while ((c = getopt_long(argc, argv, "o:", long_options, NULL)) != -1) {
        switch (c) {
        case 'o': o->out = optarg; break;
        case opt_quick: o->quick = true; break;
        case opt_shape: o->only = optarg; break;
        case opt_isa: o->isa = optarg; break;
        case opt_split: o->split = true; break;
        case opt_compare: o->compare = optarg; break;
        case opt_help: fputs(usage, stdout); return -1;
        default: return fail("%s: unknown, or it lacks its value; --help tells more",
                             argv[optind - 1]);
        }
    }
    if (o->isa && !kvl__isa_find(o->isa)) return fail("--isa %s: unknown", o->isa);
    return optind < argc ? fail("%s: what is this?", argv[optind]) : 0;
}

// Whether an instruction set is in the table; in the quick one, those whose sums differ.
static bool is_counted(const options* o, const char* isa)
{
    if (o->quick && (strcmp(isa, "avx512bw") == 0 || strcmp(isa, "avxvnni") == 0)) return false;
    return strcmp(isa, "portable") != 0;
}

int main(int argc, char** argv)
{
    static options o;
    char compiler[KVL__IDENTITY_BYTES] = "";
    int status = read_options(argc, argv, &o);
    if (status) return status < 0 ? 0 : 2;
    if (!start_counter()) {
        fail("instructions can be counted on x86-64 alone");
        return cannot_count;
    }
    for (int i = 0; i < KVL__NUM_ISAS && !status; ++i) {
        const kvl__isa* isa = &kvl__isas[i];
        const bool wanted = o.isa ? strcmp(o.isa, isa->name) == 0 : is_counted(&o, isa->name);
        if (wanted && isa->detect())
            status = measure_isa(&o, isa, compiler, sizeof compiler);
    }
    if (status) return status;
    FILE* out = o.out ? fopen(o.out, "w") : stdout;
    if (!out) return fail("%s: %s", o.out, strerror(errno));
    if (!o.compare || o.out) write_table(out, compiler);
    if (o.out && fclose(out)) return fail("%s: %s", o.out, strerror(errno));
    if (o.compare) status = compare_table(o.compare, compiler);
    if (o.compare && !status)
        printf("%d shapes are as %s says\n", result.num_rows, o.compare);
    return status;
}
