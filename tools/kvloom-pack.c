// kvloom-pack.c -- a kernel pack: the kernels of a list of configurations, as a header.
//
//     kvloom-pack -o FILE --config "SPEC Q_HEADS KV_HEADS HEAD_DIM [HEAD_DIM_V]" ...
//
// Goes the library's own way, with nothing kept on disk: the configurations' kernels are made, and
// what generator and compiler were asked for and gave is noted.  Equal inputs give equal bytes.
//
// Exit status: 0 written; 1 a failure; 2 a wrong command line.

#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

enum { max_configs = 1024, max_archs = 32, max_entries = 1 << 16, config_bytes = 512 };

typedef struct options {
    const char *out, *name;
    kvl_target  target;
    int         exact, threads;
    bool        no_texts;
    char        archs[max_archs][16];
    int         num_archs;
    char        configs[max_configs][config_bytes];
    int         num_configs;
} options;

static const char usage[] =
    "usage: kvloom-pack -o FILE --config CONFIG ... [options]\n"
    "  -o FILE            the header to write\n"
    "  --config CONFIG    \"SPEC Q_HEADS KV_HEADS HEAD_DIM [HEAD_DIM_V]\", repeatable:\n"
    "                     \"kivi:k2,v2,g32 32 8 128\"\n"
    "  --list FILE        more of them, one a line; # begins a comment\n"
    "  --name NAME        of the table in the header (kernel_pack)\n"
    "  --target NAME      host or cuda (host)\n"
    "  --arch LIST        host: of avx512, avx512bw, avxvnni, avx2, neondot, neon, portable\n"
    "                     (avx512,avx2,portable, or neon,portable, as this machine is); for\n"
    "                     another processor KVLOOM_CC names a compiler\n"
    "                     cuda: sm_XX for a device, compute_XX for PTX, which later devices take\n"
    "                     (sm_75,sm_80,sm_86,sm_89,sm_90,sm_100,sm_120,compute_75)\n"
    "  --exact            host: kernels of contexts with `exact`\n"
    "  --no-texts         binaries alone: half the size, and other architectures are a miss\n"
    "  --threads N        compilers at a time (0: one a processor)\n"
    "  --help             this text\n"
    "  --version          the version\n"
    "Specs of calibrated caches need no calibration here: kernels do not depend on its numbers,\n"
    "but for the bits that it chooses (loom:2.25): name those of each layer, which\n"
    "decode --verbose prints, as loom:k3,v2,g64.\n"
    "Exit status: 0, 1 after a failure, 2 for a wrong command line.\n";

static int fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
static int fail(const char* format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "kvloom-pack: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    return 1;
}

static int wrong(const char* format, ...) __attribute__((format(printf, 1, 2)));
static int wrong(const char* format, ...)
{
    va_list args;
    fprintf(stderr, "kvloom-pack: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "; see --help\n");
    return 2;
}

// WHAT WAS MADE

typedef struct entry {
    kvl__hash      config;
    char           name[160], arch[16];
    unsigned char* bytes;
    size_t         num_bytes;
    char*          text;
    size_t         text_bytes;
} entry;

typedef struct asked {
    const char* text;            // the generator's answer, as long as it lives
    kvl__hash   config;
} asked;

static struct {
    pthread_mutex_t lock;
    entry           entries[max_entries];
    asked           open[KVL__MAX_THREADS];
    int             num_entries, num_open;
    kvl_status (*generate)(kvl_context*, const kvl__field*, int, char**, size_t*);
    kvl_status (*compile)(kvl_context*, const kvl__compile_job*, unsigned char**, size_t*);
    bool            foreign;             // the last binary is for another processor
} made = { .lock = PTHREAD_MUTEX_INITIALIZER };

// The configuration of a text; it is forgotten, since the text's address will be another's.
static kvl__hash take_config(const char* text)
{
    kvl__hash config = { 0, 0 };
    for (int i = 0; i < made.num_open; ++i) {
        if (made.open[i].text != text) continue;
        config = made.open[i].config;
        made.open[i] = made.open[--made.num_open];
        break;
    }
    return config;
}

// Notes of which configuration a text is.
static kvl_status note_generate(kvl_context* ctx, const kvl__field* fields, int num_fields,
                                char** text, size_t* text_bytes)
{
    const kvl_status status = made.generate(ctx, fields, num_fields, text, text_bytes);
    if (status != KVL_OK) return status;
    pthread_mutex_lock(&made.lock);
    take_config(*text);                  // of a text that lay here before and was not compiled
    const int room = made.num_open < KVL__MAX_THREADS;
    if (room) made.open[made.num_open++] = (asked){ *text, kvl__config_hash(fields, num_fields) };
    pthread_mutex_unlock(&made.lock);
    if (room) return KVL_OK;
    kvl__free(ctx, *text, *text_bytes + 1);
    *text = NULL;
    return kvl__fail(ctx, KVL_NO_MEMORY, "too many threads");
}

static void* copy_bytes(const void* bytes, size_t num)
{
    void* copy = malloc(num + 1);
    if (!copy) exit(fail("out of memory"));
    memcpy(copy, bytes, num);
    ((char*)copy)[num] = '\0';
    return copy;
}

static void add_entry(const kvl__compile_job* job, const unsigned char* binary, size_t num_bytes)
{
    pthread_mutex_lock(&made.lock);
    if (made.num_entries == max_entries) exit(fail("more than %d kernels", max_entries));
    entry* e = &made.entries[made.num_entries++];
    memset(e, 0, sizeof *e);
    e->config = take_config(job->text);
    snprintf(e->name, sizeof e->name, "%s", job->name);
    snprintf(e->arch, sizeof e->arch, "%s", job->arch);
    e->bytes = copy_bytes(binary, num_bytes);
    e->num_bytes = num_bytes;
    e->text = copy_bytes(job->text, job->text_bytes);
    e->text_bytes = job->text_bytes;
    pthread_mutex_unlock(&made.lock);
}

// Whether a binary is an ELF file for another processor than this program's: the number is at byte
// 18, low byte first in both.
static bool is_foreign(const unsigned char* binary, size_t num_bytes)
{
#if defined(__x86_64__)
    const int own = 62;
#elif defined(__aarch64__)
    const int own = 183;
#else
    const int own = -1;
#endif
    if (own < 0 || num_bytes < 20 || memcmp(binary, "\177ELF", 4) != 0) return false;
    return (binary[18] | binary[19] << 8) != own;
}

static kvl_status note_compile(kvl_context* ctx, const kvl__compile_job* job,
                               unsigned char** binary, size_t* num_bytes)
{
    const kvl_status status = made.compile(ctx, job, binary, num_bytes);
    if (status != KVL_OK) return status;
    add_entry(job, *binary, *num_bytes);
    made.foreign = is_foreign(*binary, *num_bytes);
    return KVL_OK;
}

// MAKING

static int read_config(const char* text, char* spec, kvl_layer_desc* layer)
{
    int length = 0;
    memset(layer, 0, sizeof *layer);
    const int n = sscanf(text, "%447s %d %d %d%n %d%n", spec, &layer->num_q_heads,
                         &layer->num_kv_heads, &layer->head_dim, &length, &layer->head_dim_v,
                         &length);
    if (n < 4 || text[length + (int)strspn(text + length, " \t\r\n")] != '\0')
        return wrong("configuration '%s': must be SPEC Q_HEADS KV_HEADS HEAD_DIM [HEAD_DIM_V]",
                     text);
    layer->spec = spec;
    return 0;
}

static void say(kvl_log_level level, const char* message, void* user)
{
    (void)user;
    if (level != KVL_LOG_INFO) fprintf(stderr, "kvloom-pack: %s\n", message);
}

// Makes one configuration's kernels.
static int make_config(kvl_context* ctx, const char* text)
{
    char spec[448];
    kvl_layer_desc layer;
    kvl__layer made_layer;
    const int before = made.num_entries;
    const int status = read_config(text, spec, &layer);
    if (status) return status;
    made.foreign = false;
    const kvl_status made_status = kvl__make_kernels(ctx, &layer, &made_layer);
    // What is for another processor is compiled, and cannot be loaded here.
    if (made_status == KVL_OK || (made_status == KVL_COMPILE && made.foreign)) {
        fprintf(stderr, "%-8s %-40s %d programs\n",
                made.num_entries > before ? made.entries[before].arch : "", text,
                made.num_entries - before);
        return 0;
    }
    if (made_status == KVL_COMPILE && kvl_context_log(ctx)[0])
        fprintf(stderr, "%s\n", kvl_context_log(ctx));
    return fail("%s: %s", text, kvl_context_message(ctx));
}

// The kernel of kvl_merge, which every pack for a device has.
static int make_merge(kvl_context* ctx)
{
    kvl__cu_function none;
    return kvl__device_merge_kernel(ctx, &none) ? fail("%s", kvl_context_message(ctx)) : 0;
}

static int make_arch(const options* o, const char* arch)
{
    const bool cuda = o->target == KVL_TARGET_CUDA;
    const kvl_context_desc desc = { .target = o->target, .num_threads = o->threads,
                                    .cache_dir = "", .exact = o->exact, .log = { say, NULL },
                                    .arch = cuda ? arch : NULL };
    kvl_context* ctx;
    int status = 0;
    if (kvl_context_create(&desc, &ctx)) {
        status = fail("%s", kvl_context_message(ctx));
    } else {
        // Programs of other processors are compiled and loaded here, never called.
        if (!cuda) snprintf(ctx->isa, sizeof ctx->isa, "%s", arch);
        made.generate = ctx->programs->generate;
        made.compile = ctx->programs->compile;
        ctx->programs->generate = note_generate;
        ctx->programs->compile = note_compile;
        for (int i = 0; i < o->num_configs && !status; ++i)
            status = make_config(ctx, o->configs[i]);
        if (cuda && !status) status = make_merge(ctx);
    }
    kvl_context_destroy(ctx);
    return status;
}

// WRITING

static int compare_entries(const void* a, const void* b)
{
    const entry *x = a, *y = b;
    const int names = strcmp(x->name, y->name);
    if (names) return names;
    if (x->config.high != y->config.high) return x->config.high < y->config.high ? -1 : 1;
    if (x->config.low != y->config.low) return x->config.low < y->config.low ? -1 : 1;
    return strcmp(x->arch, y->arch);
}

static void write_bytes(FILE* out, const char* name, int i, const entry* e)
{
    fprintf(out, "\n// %s for %s\nstatic const unsigned char %s_bytes_%d[] = {", e->name, e->arch,
            name, i);
    for (size_t k = 0; k < e->num_bytes; ++k)
        fprintf(out, "%s%u,", k % 24 ? "" : "\n", (unsigned)e->bytes[k]);
    fprintf(out, "\n};\n");
}

// A C string.  Question marks are escaped, since C99 reads trigraphs in literals too.
static void write_string(FILE* out, const char* text, size_t num)
{
    fputc('"', out);
    for (size_t i = 0; i < num; ++i) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '\n') fputs("\\n", out);
        else if (c == '"' || c == '\\' || c == '?') fprintf(out, "\\%c", c);
        else if (c >= 32 && c < 127) fputc(c, out);
        else fprintf(out, "\\%03o", (unsigned)c);
    }
    fputc('"', out);
}

static size_t line_bytes(const char* at)
{
    const size_t n = strcspn(at, "\n");
    return n + (at[n] == '\n');
}

static kvl__hash text_hash(const char* text)
{
    kvl__hash hash = kvl__hash_bytes(NULL, 0);
    for (size_t n; *text; text += n) {
        n = line_bytes(text);
        hash = kvl__hash_join(hash, text, n);
    }
    return hash;
}

static void write_text(FILE* out, const char* name, int i, const entry* e)
{
    fprintf(out, "\n// %s\nstatic const char* const %s_lines_%d[] = {\n", e->name, name, i);
    for (const char* at = e->text; *at; at += line_bytes(at)) {
        fputs("    ", out);
        write_string(out, at, line_bytes(at));
        fputs(",\n", out);
    }
    fprintf(out, "    NULL\n};\n");
}

static void write_words(FILE* out, kvl__hash hash)
{
    fprintf(out, "{ 0x%016llxu, 0x%016llxu }", (unsigned long long)hash.low,
            (unsigned long long)hash.high);
}

// Entries of one configuration follow each other: the first has the text.
static bool has_text(int i)
{
    return i == 0 || !kvl__hash_equal(made.entries[i].config, made.entries[i - 1].config);
}

static void write_row(FILE* out, const char* name, int i, bool text)
{
    const entry* e = &made.entries[i];
    fprintf(out, "    { ");
    write_words(out, e->config);
    fprintf(out, ", ");
    write_words(out, text ? text_hash(e->text) : kvl__hash_bytes(e->bytes, e->num_bytes));
    fprintf(out, ",\n      \"%s\", ", e->name);
    if (text) fprintf(out, "\"\", NULL, 0, %s_lines_%d },\n", name, i);
    else fprintf(out, "\"%s\", %s_bytes_%d, %zu, NULL },\n", e->arch, name, i, e->num_bytes);
}

static void write_table(FILE* out, const options* o)
{
    int rows = made.num_entries;
    fprintf(out, "\nstatic const kvl_pack_entry %s_entries[] = {\n", o->name);
    for (int i = 0; i < made.num_entries; ++i) {
        write_row(out, o->name, i, false);
        if (o->no_texts || !has_text(i)) continue;
        write_row(out, o->name, i, true);
        ++rows;
    }
    fprintf(out, "};\n\nstatic const kvl_pack %s = {\n    %d, %d, %d, \"%s\",\n    ", o->name,
            KVL_PACK_FORMAT, KVL__ABI, KVL__DEVICE_ABI, KVLOOM_VERSION);
    write_words(out, kvl__generator_hash());
    fprintf(out, ",\n    %d, %s_entries\n};\n", rows, o->name);
}

static bool write_all(FILE* out, const options* o)
{
    const char* slash = strrchr(o->out, '/');
    fprintf(out, "// %s -- kernel pack %s of kvloom %s.  Generated by kvloom-pack:\n//\n",
            slash ? slash + 1 : o->out, o->name, KVLOOM_VERSION);
    for (int i = 0; i < o->num_configs; ++i) fprintf(out, "//     %s\n", o->configs[i]);
    fprintf(out, "//\n// for");
    for (int i = 0; i < o->num_archs; ++i) fprintf(out, " %s", o->archs[i]);
    fprintf(out, ".\n\n#ifndef KVLOOM_PACK_%s\n#define KVLOOM_PACK_%s\n\n#include \"kvloom.h\"\n",
            o->name, o->name);
    for (int i = 0; i < made.num_entries; ++i) {
        write_bytes(out, o->name, i, &made.entries[i]);
        if (!o->no_texts && has_text(i)) write_text(out, o->name, i, &made.entries[i]);
    }
    write_table(out, o);
    fprintf(out, "\n#endif\n");
    return ferror(out) == 0;
}

// Where the header is written first: one that was there stays until the new one is whole.  What is
// no file is written as it is.
static int part_path(const options* o, char* part)
{
    struct stat st;
    const bool direct = stat(o->out, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
    if (snprintf(part, KVL__PATH_BYTES, "%s%s", o->out, direct ? "" : ".part") >= KVL__PATH_BYTES)
        return fail("-o: the path is too long");
    return 0;
}

static int not_written(const options* o)
{
    return fail("%s: cannot be written: %s", o->out, strerror(errno));
}

// Before the work: a path that cannot be written is known at once.
static int check_path(const options* o)
{
    char part[KVL__PATH_BYTES];
    struct stat st;
    if (part_path(o, part)) return 1;
    if (stat(o->out, &st) == 0 && S_ISDIR(st.st_mode)) {
        errno = EISDIR;
        return not_written(o);
    }
    if (strcmp(part, o->out) == 0) return 0;
    FILE* out = fopen(part, "w");
    if (!out) return not_written(o);
    fclose(out);
    unlink(part);
    return 0;
}

static int write_header(const options* o)
{
    char part[KVL__PATH_BYTES];
    if (part_path(o, part)) return 1;
    FILE* out = fopen(part, "w");
    if (!out) return not_written(o);
    bool good = write_all(out, o);
    good = fclose(out) == 0 && good;
    const bool direct = strcmp(part, o->out) == 0;
    if (good && !direct) good = rename(part, o->out) == 0;
    if (good) return 0;
    const int status = not_written(o);
    if (!direct) unlink(part);
    return status;
}

// OPTIONS

enum { opt_config = 1, opt_list, opt_name, opt_target, opt_arch, opt_exact, opt_no_texts,
       opt_threads, opt_help, opt_version };

static const struct option long_options[] = {
    { "config", required_argument, NULL, opt_config },
    { "list", required_argument, NULL, opt_list },
    { "name", required_argument, NULL, opt_name },
    { "target", required_argument, NULL, opt_target },
    { "arch", required_argument, NULL, opt_arch },
    { "exact", no_argument, NULL, opt_exact },
    { "no-texts", no_argument, NULL, opt_no_texts },
    { "threads", required_argument, NULL, opt_threads },
    { "help", no_argument, NULL, opt_help },
    { "version", no_argument, NULL, opt_version },
    { NULL, 0, NULL, 0 } };

static int add_config(options* o, const char* text)
{
    const size_t first = strspn(text, " \t");
    if (text[first] == '\0' || text[first] == '#' || text[first] == '\n') return 0;
    if (o->num_configs == max_configs) return wrong("more than %d configurations", max_configs);
    char* to = o->configs[o->num_configs];
    if (strlen(text + first) >= config_bytes)
        return wrong("--config: longer than %d letters", config_bytes - 1);
    strcpy(to, text + first);
    to[strcspn(to, "#\r\n")] = '\0';
    ++o->num_configs;
    return 0;
}

static int add_list(options* o, const char* path)
{
    char line[config_bytes];
    FILE* in = fopen(path, "r");
    int status = 0;
    if (!in) return fail("--list %s: %s", path, strerror(errno));
    while (!status && fgets(line, sizeof line, in)) status = add_config(o, line);
    fclose(in);
    return status;
}

static int add_archs(options* o, const char* list)
{
    o->num_archs = 0;
    while (*list) {
        const size_t n = strcspn(list, ",");
        if (n == 0 || n >= sizeof o->archs[0]) return wrong("--arch %s: not a list of names", list);
        if (o->num_archs == max_archs) return wrong("--arch: more than %d", max_archs);
        snprintf(o->archs[o->num_archs++], sizeof o->archs[0], "%.*s", (int)n, list);
        list += n + (list[n] == ',');
    }
    return 0;
}

static int read_option(options* o, int c)
{
    char* end;
    switch (c) {
    case 'o': o->out = optarg; return 0;
    case opt_config: return add_config(o, optarg);
    case opt_list: return add_list(o, optarg);
    case opt_name: o->name = optarg; return 0;
    case opt_target:
        if (strcmp(optarg, "host") != 0 && strcmp(optarg, "cuda") != 0)
            return wrong("--target %s: must be host or cuda", optarg);
        o->target = optarg[0] == 'c' ? KVL_TARGET_CUDA : KVL_TARGET_HOST;
        return 0;
    case opt_arch: return add_archs(o, optarg);
    case opt_exact: o->exact = 1; return 0;
    case opt_no_texts: o->no_texts = true; return 0;
    case opt_threads:
        o->threads = (int)strtol(optarg, &end, 10);
        if (end == optarg || *end || o->threads < 0 || o->threads > KVL__MAX_THREADS)
            return wrong("--threads %s: must be 0 to %d", optarg, KVL__MAX_THREADS);
        return 0;
    default: return 2;
    }
}

static int check_options(options* o)
{
    char names[96];
    if (!o->out) return wrong("-o FILE is needed");
    if (!o->name[0]) return wrong("--name: is empty");
    if (!o->num_configs) return wrong("no --config: nothing to pack");
    for (const char* c = o->name; *c; ++c)
        if (!(*c == '_' || (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z')
              || (*c >= '0' && *c <= '9' && c > o->name)))
            return wrong("--name %s: must be a C name", o->name);
    if (o->num_archs == 0 && o->target == KVL_TARGET_CUDA)
        add_archs(o, "sm_75,sm_80,sm_86,sm_89,sm_90,sm_100,sm_120,compute_75");
#if defined(__x86_64__)
    else if (o->num_archs == 0) add_archs(o, "avx512,avx2,portable");
#elif defined(__aarch64__)
    else if (o->num_archs == 0) add_archs(o, "neon,portable");
#else
    else if (o->num_archs == 0) add_archs(o, "portable");
#endif
    for (int i = 0; i < o->num_archs && o->target == KVL_TARGET_HOST; ++i)
        if (!kvl__isa_find(o->archs[i])) {
            kvl__isa_list(names, sizeof names, 0);
            return wrong("--arch %s: must be one of %s", o->archs[i], names);
        }
    return 0;
}

int main(int argc, char** argv)
{
    static options o;
    int c, status = 0, at = 1;
    opterr = 0;
    o.name = "kernel_pack";
    o.target = KVL_TARGET_HOST;
    while (!status && (c = getopt_long(argc, argv, ":o:h", long_options, NULL)) != -1) {
        if (c == opt_help || c == 'h') {
            fputs(usage, stdout);
            return 0;
        }
        if (c == opt_version) {
            puts("kvloom-pack " KVLOOM_VERSION);
            return 0;
        }
        if (c == '?') status = wrong("%s: an unknown option", argv[at]);
        else if (c == ':') status = wrong("%s: needs a value", argv[at]);
        else status = read_option(&o, c);
        at = optind;
    }
    if (!status && optind < argc) status = wrong("%s: a word too many", argv[optind]);
    if (!status) status = check_options(&o);
    if (!status) status = check_path(&o);
    for (int i = 0; i < o.num_archs && !status; ++i) status = make_arch(&o, o.archs[i]);
    if (status) return status;
    qsort(made.entries, (size_t)made.num_entries, sizeof made.entries[0], compare_entries);
    status = write_header(&o);
    for (int i = 0; i < made.num_entries; ++i) {
        free(made.entries[i].bytes);
        free(made.entries[i].text);
    }
    return status;
}
