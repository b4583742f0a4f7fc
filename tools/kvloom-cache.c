// kvloom-cache.c -- list, verify, prune, clear and warm the folder of compiled kernels; show what
// files of saved sequences and of calibrations hold.
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
    "  show FILE...      print what a file of saved sequences, or a calibration file, holds\n"
    "\n"
    "options:\n"
    "  --dir DIR         the folder; else KVLOOM_CACHE_DIR, XDG_CACHE_HOME/kvloom or\n"
    "                    ~/.cache/kvloom\n"
    "  --max-mb N        bound of prune, in MB (KVLOOM_CACHE_MAX_MB, else 256)\n"
    "  --target NAME     of warm: host or cuda (host)\n"
    "  --arch NAME       of warm for cuda, where there is no device: sm_90, or compute_90 for PTX\n"
    "  --head-dim N      of warm (64)\n"
    "  --head-dim-v N    of warm, where values differ from keys (as --head-dim)\n"
    "  --q-heads N       of warm (9)\n"
    "  --kv-heads N      of warm (3)\n"
    "  --compiler PATH   of warm; else KVLOOM_CC, cc, gcc or clang\n"
    "  --isa NAME        of warm, as KVLOOM_ISA has them; else KVLOOM_ISA, else the best\n"
    "Specs of calibrated caches need no calibration here: kernels do not depend on its numbers,\n"
    "but for the bits that it chooses (loom:2.25): name those of each layer, which\n"
    "decode --verbose prints, as loom:k3,v2,g64.\n"
    "\n"
    "  --help            this text\n"
    "  --version         the version\n";

typedef struct options {
    const char *dir, *compiler, *isa, *arch, *command;
    kvl_target  target;                   // of warm
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
    enum { DIR_ = 1, MAX_MB, HEAD_DIM, HEAD_DIM_V, Q_HEADS, KV_HEADS, COMPILER, ISA, TARGET,
           ARCH, VERSION };
    static const struct option table[] = {
        { "dir", required_argument, NULL, DIR_ },
        { "max-mb", required_argument, NULL, MAX_MB },
        { "head-dim", required_argument, NULL, HEAD_DIM },
        { "head-dim-v", required_argument, NULL, HEAD_DIM_V },
        { "q-heads", required_argument, NULL, Q_HEADS },
        { "kv-heads", required_argument, NULL, KV_HEADS },
        { "compiler", required_argument, NULL, COMPILER },
        { "isa", required_argument, NULL, ISA },
        { "target", required_argument, NULL, TARGET },
        { "arch", required_argument, NULL, ARCH },
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
        else if (c == ARCH) o->arch = optarg;
        else if (c == TARGET) {
            if (strcmp(optarg, "host") != 0 && strcmp(optarg, "cuda") != 0)
                return usage("--target must be host or cuda", optarg);
            o->target = optarg[0] == 'c' ? KVL_TARGET_CUDA : KVL_TARGET_HOST;
        }
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
    kvl_layer_info info;
    kvl__layer made;
    memset(&layer, 0, sizeof layer);
    layer.num_q_heads = o->q_heads;
    layer.num_kv_heads = o->kv_heads;
    layer.head_dim = o->head_dim;
    layer.head_dim_v = o->head_dim_v;
    layer.spec = spec;
    const int64_t start = kvl__now_ms();
    kvl_status status = kvl__make_kernels(ctx, &layer, &made);
    if (status == KVL_OK) status = kvl_spec_check(ctx, &layer, &info);
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
    if (o->target == KVL_TARGET_CUDA && result == 0) {         // what kvl_merge takes
        kvl__cu_function none;
        const kvl_status status = kvl__device_merge_kernel(ctx, &none);
        if (status != KVL_OK) result = failed(ctx, "merge", status);
    }
    return result;
}

// WHAT FILES HOLD

static void print_layers(int first, int last, const kvl__file_layer* f)
{
    if (first == last) printf("  layer %-9d ", first);
    else printf("  layers %d-%-*d ", first, first < 10 ? 6 : 5, last);
    if (!f->active) {
        printf("no KV heads\n");
        return;
    }
    printf("%u KV heads, keys of %u, values of %u%s: %s%s\n", f->num_kv_heads, f->head_dim,
           f->head_dim_v, f->active == 3 ? " in the keys" : "", f->spec,
           f->calibration ? ", calibrated" : "");
}

// Layers that are alike in one line, then the sequences.
static kvl_status show_front(kvl__stream* s)
{
    kvl_file_info info;
    kvl__file_layer before, layer;
    int first = 0;
    KVL__TRY(kvl__read_header(s, &info));
    printf("  saved sequences, version %d\n", info.version);
    memset(&before, 0, sizeof before);
    for (int i = 0; i < info.num_layers; ++i) {
        KVL__TRY(kvl__file_read_layer(s, (uint32_t)i, &layer));
        const uint64_t own = layer.calibration;
        layer.calibration = own != 0;              // of each layer another one
        if (i > 0 && memcmp(&before, &layer, sizeof layer) != 0) {
            print_layers(first, i - 1, &before);
            first = i;
        }
        before = layer;
    }
    print_layers(first, info.num_layers - 1, &before);
    for (int i = 0; i < info.num_seqs; ++i) {
        kvl_loaded_seq seq;
        memset(&seq, 0, sizeof seq);
        const kvl_status status = kvl__file_read_seq(s, (uint32_t)i, &seq);
        if (status == KVL_OK)
            printf("  sequence %-6d %lld tokens, %llu bytes of its program's\n", i,
                   (long long)seq.num_tokens, (unsigned long long)seq.data_bytes);
        kvl__free(s->ctx, seq.tokens, 4u * (size_t)seq.num_tokens);
        kvl__free(s->ctx, seq.data, (size_t)seq.data_bytes);
        KVL__TRY(status);
    }
    return KVL_OK;
}

static kvl_status show_seqs(kvl_context* ctx, const char* path)
{
    kvl__stream s;
    FILE* file;
    memset(&s, 0, sizeof s);
    KVL__TRY(kvl__open_file(ctx, path, &file));
    s.ctx = ctx;
    s.read = kvl__file_read;
    s.user = file;
    const kvl_status status = show_front(&s);
    fclose(file);
    return status;
}

// A tensor's name behind its layer; whole where it has none.
static const char* behind_layer(const char* name)
{
    const char* at = strncmp(name, "layer.", 6) == 0 ? strchr(name + 6, '.') : NULL;
    return at ? at + 1 : name;
}

// Tables of all layers that have one name, at the first of them.
static void print_tensor(const kvl__tensors* t, int i)
{
    const char* name = behind_layer(t->list[i].name);
    int layers = 0;
    uint64_t bytes = 0;
    for (int k = 0; k < t->num; ++k) {
        if (strcmp(behind_layer(t->list[k].name), name) != 0) continue;
        if (k < i) return;
        ++layers;
        bytes += t->list[k].bytes;
    }
    printf("  %10.1f KB in %3d tensors  %s [", (double)bytes / 1024, layers, name);
    for (int k = 0; k < t->list[i].rank; ++k)
        printf("%s%lld", k ? ", " : "", (long long)t->list[i].shape[k]);
    printf("]\n");
}

static kvl_status show_calibration(kvl_context* ctx, const char* path)
{
    kvl_calibration* cal;
    KVL__TRY(kvl_calibration_load(ctx, path, &cal));
    const kvl__tensors* t = &cal->tensors;
    printf("  calibration\n");
    for (int i = 0; i < t->num_meta; ++i)
        printf("  %-20s %.160s%s\n", t->meta[i].name, t->meta[i].text,
               strlen(t->meta[i].text) > 160 ? " ..." : "");
    for (int i = 0; i < t->num; ++i) print_tensor(t, i);
    kvl_calibration_free(cal);
    return KVL_OK;
}

static int show(kvl_context* ctx, const char* path)
{
    char start[8] = "";
    FILE* file;
    kvl_status status = kvl__open_file(ctx, path, &file);
    if (status == KVL_OK) {
        const size_t bytes = fread(start, 1, sizeof start, file);
        fclose(file);
        printf("%s\n", path);
        status = bytes == sizeof start && memcmp(start, "kvlseqs\n", sizeof start) == 0
            ? show_seqs(ctx, path) : show_calibration(ctx, path);
    }
    return status == KVL_OK ? 0 : failed(ctx, "show", status);
}

static int run_show(kvl_context* ctx, const options* o)
{
    int result = 0;
    if (o->num_args == 0) return usage("show: no file", NULL);
    for (int i = 0; i < o->num_args; ++i) result |= show(ctx, o->args[i]);
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
    if (strcmp(o->command, "show") == 0) return run_show(ctx, o);
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
    o.target = KVL_TARGET_HOST;
    o.kv_heads = 3;
    int result = parse(argc, argv, &o);
    if (result >= 0) return result;
    memset(&desc, 0, sizeof desc);
    desc.target = strcmp(o.command, "warm") == 0 ? o.target : KVL_TARGET_REFERENCE;
    desc.arch = desc.target == KVL_TARGET_CUDA ? o.arch : NULL;
    desc.num_threads = 1;
    desc.cache_dir = o.dir;
    desc.compiler = o.compiler;
    desc.isa = o.isa;
    desc.log.call = say;
    const kvl_status status = kvl_context_create(&desc, &ctx);
    if (status == KVL_NO_DRIVER)
        result = failed(ctx, "--arch NAME makes kernels without a device", status);
    else
        result = status == KVL_OK ? run(ctx, &o) : failed(ctx, "no context", status);
    kvl_context_destroy(ctx);
    if (fflush(stdout) != 0 && result == 0) {
        perror("kvloom-cache: standard output");
        result = 1;
    }
    return result;
}
