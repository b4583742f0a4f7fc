// kvloom-cache.c -- list, verify, prune, clear and warm the folder of compiled kernels.
//
// Exit status: 0 done; 1 a damaged entry (verify) or a failure; 2 wrong usage.

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

#include <getopt.h>

static const char help[] =
    "usage: kvloom-cache [options] command\n"
    "\n"
    "commands:\n"
    "  list              print each compiled kernel: size, time since last use, state, name\n"
    "  verify            check each entry; the exit status is 1 if one is damaged\n"
    "  prune             remove damaged entries and leftovers, then the longest unused ones\n"
    "                    beyond the bound of --max-mb\n"
    "  clear             remove every entry\n"
    "  warm SPEC...      compile the kernels of each spec, for the shape that options give\n"
    "  path              print the folder\n"
    "\n"
    "options:\n"
    "  --dir DIR         the folder; else KVLOOM_CACHE_DIR, XDG_CACHE_HOME/kvloom or\n"
    "                    ~/.cache/kvloom\n"
    "  --max-mb N        bound of prune, in MB (256)\n"
    "  --head-dim N      of warm (64)\n"
    "  --head-dim-v N    of warm, where values differ from keys (as --head-dim)\n"
    "  --q-heads N       of warm (9)\n"
    "  --kv-heads N      of warm (3)\n"
    "  --compiler PATH   of warm; else KVLOOM_CC, cc, gcc or clang\n"
    "  --isa NAME        of warm: avx512, avx2, neon or portable; else KVLOOM_ISA, else the best\n"
    "  --help            this text\n"
    "  --version         the version\n";

typedef struct options {
    const char *dir, *compiler, *isa, *command;
    char**      args;                     // of the command
    int         num_args;
    int         max_mb, head_dim, head_dim_v, q_heads, kv_heads;
} options;

typedef struct tally {
    uint64_t bytes;
    int      num, num_bad;
    int      print;
} tally;

static int usage(const char* what, const char* value)
{
    fprintf(stderr, "kvloom-cache: %s%s%s; see kvloom-cache --help\n", what, value ? ": " : "",
            value ? value : "");
    return 2;
}

static int failed(kvl_context* ctx, const char* what, kvl_status status)
{
    const char* message = kvl_context_message(ctx);
    const char* log = kvl_context_log(ctx);
    fprintf(stderr, "kvloom-cache: %s: %s\n", what,
            message[0] ? message : kvl_status_text(status));
    if (status == KVL_COMPILE && log[0]) fprintf(stderr, "%s\n", log);
    return 1;
}

static int parse_int(const char* text, int* out)
{
    char* end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < 1 || value > 1 << 20) return 0;
    *out = (int)value;
    return 1;
}

// Returns -1 to go on, else the exit status.
static int parse(int argc, char** argv, options* o)
{
    enum { DIR_ = 1, MAX_MB, HEAD_DIM, HEAD_DIM_V, Q_HEADS, KV_HEADS, COMPILER, ISA, VERSION };
    static const struct option table[] = {
        { "dir", required_argument, NULL, DIR_ },
        { "max-mb", required_argument, NULL, MAX_MB },
        { "head-dim", required_argument, NULL, HEAD_DIM },
        { "head-dim-v", required_argument, NULL, HEAD_DIM_V },
        { "q-heads", required_argument, NULL, Q_HEADS },
        { "kv-heads", required_argument, NULL, KV_HEADS },
        { "compiler", required_argument, NULL, COMPILER },
        { "isa", required_argument, NULL, ISA },
        { "version", no_argument, NULL, VERSION },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    int* numbers[16] = { NULL };
    opterr = 0;                     // usage() says it in one line
    numbers[MAX_MB] = &o->max_mb;
    numbers[HEAD_DIM] = &o->head_dim;
    numbers[HEAD_DIM_V] = &o->head_dim_v;
    numbers[Q_HEADS] = &o->q_heads;
    numbers[KV_HEADS] = &o->kv_heads;
    for (int at, c; at = 0, (c = getopt_long(argc, argv, "h", table, &at)) != -1;) {
        if (c == '?') return usage("unknown option, or one without its value", argv[optind - 1]);
        if (c == 'h') return fputs(help, stdout), 0;
        if (c == VERSION) return puts("kvloom-cache " KVLOOM_VERSION), 0;
        if (c == DIR_) o->dir = optarg;
        else if (c == COMPILER) o->compiler = optarg;
        else if (c == ISA) o->isa = optarg;
        else if (!parse_int(optarg, numbers[c]))
            return fprintf(stderr, "kvloom-cache: --%s %s: must be a whole number above 0\n",
                           table[at].name, optarg), 2;
    }
    if (optind == argc) return usage("no command", NULL);
    o->command = argv[optind];
    o->args = argv + optind + 1;
    o->num_args = argc - optind - 1;
    if (o->dir && !o->dir[0]) return usage("--dir is empty", NULL);
    return -1;
}

static void print_age(int64_t seconds)
{
    if (seconds < 120) printf("%5d s  ", (int)seconds);
    else if (seconds < 2 * 3600) printf("%5d min", (int)(seconds / 60));
    else if (seconds < 2 * 86400) printf("%5d h  ", (int)(seconds / 3600));
    else printf("%5d d  ", (int)(seconds / 86400));
}

static void visit(const kvl_disk_entry* entry, void* user)
{
    tally* t = (tally*)user;
    ++t->num;
    t->num_bad += !entry->ok;
    t->bytes += entry->bytes;
    if (!t->print && entry->ok) return;
    printf("%8.1f KB ", (double)entry->bytes / 1024);
    print_age(entry->age_seconds);
    printf("  %-7s  %s\n", entry->ok ? "ok" : "damaged", entry->name);
}

static int run_disk(kvl_context* ctx, const options* o, kvl_disk_action action, int print,
                    const char* done)
{
    tally t = { 0, 0, 0, 0 };
    t.print = print;
    const kvl_status status = kvl_disk(ctx, action, (uint64_t)o->max_mb << 20, visit, &t);
    if (status != KVL_OK) return failed(ctx, o->command, status);
    printf("%s: %d %s, %.1f KB, %d damaged\n", kvl_disk_folder(ctx), t.num, done,
           (double)t.bytes / 1024, t.num_bad);
    return strcmp(o->command, "verify") == 0 && t.num_bad > 0;
}

static int warm_one(kvl_context* ctx, const options* o, const char* spec)
{
    kvl_layer_desc layer;
    kvl_cache_desc desc;
    kvl_layer_info info;
    kvl_cache* cache;
    memset(&layer, 0, sizeof layer);
    memset(&desc, 0, sizeof desc);
    layer.num_q_heads = o->q_heads;
    layer.num_kv_heads = o->kv_heads;
    layer.head_dim = o->head_dim;
    layer.head_dim_v = o->head_dim_v;
    layer.spec = spec;
    desc.num_layers = 1;
    desc.layers = &layer;
    const int64_t start = kvl__now_ms();
    kvl_status status = kvl_cache_create(ctx, &desc, &cache);
    if (status != KVL_OK) return failed(ctx, spec, status);
    status = kvl_cache_layer_info(cache, 0, &info);
    kvl_cache_free(cache);
    if (status != KVL_OK) return failed(ctx, spec, status);
    printf("%6d ms  %s\n", (int)(kvl__now_ms() - start), info.spec);
    return 0;
}

static int run_warm(kvl_context* ctx, const options* o)
{
    int result = 0;
    if (o->num_args == 0) return usage("warm: no spec", NULL);
    if (!kvl_disk_folder(ctx)[0]) {
        fprintf(stderr, "kvloom-cache: warm: there is no folder to keep kernels in\n");
        return 1;
    }
    for (int i = 0; i < o->num_args; ++i) result |= warm_one(ctx, o, o->args[i]);
    return result;
}

static void say(kvl_log_level level, const char* message, void* user)
{
    (void)user;
    if (level != KVL_LOG_INFO) fprintf(stderr, "kvloom-cache: %s\n", message);
}

static int run(kvl_context* ctx, const options* o)
{
    if (strcmp(o->command, "warm") == 0) return run_warm(ctx, o);
    if (o->num_args) return usage("one argument too many", o->args[0]);
    if (strcmp(o->command, "list") == 0) return run_disk(ctx, o, KVL_DISK_LIST, 1, "kernels");
    if (strcmp(o->command, "verify") == 0) return run_disk(ctx, o, KVL_DISK_LIST, 0, "kernels");
    if (strcmp(o->command, "prune") == 0) return run_disk(ctx, o, KVL_DISK_PRUNE, 1, "removed");
    if (strcmp(o->command, "clear") == 0) return run_disk(ctx, o, KVL_DISK_CLEAR, 1, "removed");
    if (strcmp(o->command, "path") != 0) return usage("unknown command", o->command);
    if (!kvl_disk_folder(ctx)[0]) {
        fprintf(stderr, "kvloom-cache: no folder: kernels are kept in memory only\n");
        return 1;
    }
    puts(kvl_disk_folder(ctx));
    return 0;
}

int main(int argc, char** argv)
{
    options o;
    kvl_context_desc desc;
    kvl_context* ctx;
    memset(&o, 0, sizeof o);
    o.head_dim = 64;
    o.q_heads = 9;
    o.kv_heads = 3;
    int result = parse(argc, argv, &o);
    if (result >= 0) return result;
    memset(&desc, 0, sizeof desc);
    desc.target = strcmp(o.command, "warm") == 0 ? KVL_TARGET_HOST : KVL_TARGET_REFERENCE;
    desc.num_threads = 1;
    desc.cache_dir = o.dir;
    desc.compiler = o.compiler;
    desc.isa = o.isa;
    desc.log.call = say;
    const kvl_status status = kvl_context_create(&desc, &ctx);
    result = status == KVL_OK ? run(ctx, &o) : failed(ctx, "no context", status);
    kvl_context_destroy(ctx);
    if (fflush(stdout) != 0 && result == 0) {
        perror("kvloom-cache: standard output");
        result = 1;
    }
    return result;
}
