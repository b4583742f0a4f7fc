// eval_options.c -- reads the command line of kvloom-eval.

#include "eval_options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "option_value.h"

// Options without a letter.
enum {
    OPTION_CACHE = 256,
    OPTION_CALIBRATION,
    OPTION_WINDOWS,
    OPTION_SKIP,
    OPTION_TARGET,
    OPTION_EXACT,
    OPTION_JSON,
    OPTION_HTML,
    OPTION_RESUME,
    OPTION_DUMP_LOGITS,
    OPTION_NEEDLE,
    OPTION_SPEED,
    OPTION_CHOICES,
    OPTION_MODULE,
    OPTION_GENERATE,
    OPTION_SEED,
    OPTION_MARKDOWN,
    OPTION_LIST_CACHES,
    OPTION_VERBOSE,
    OPTION_VERSION
};

static const struct option long_options[] = {
    { "model", required_argument, NULL, 'm' },
    { "file", required_argument, NULL, 'f' },
    { "ctx-size", required_argument, NULL, 'c' },
    { "threads", required_argument, NULL, 't' },
    { "jobs", required_argument, NULL, 'j' },
    { "cache", required_argument, NULL, OPTION_CACHE },
    { "calibration", required_argument, NULL, OPTION_CALIBRATION },
    { "windows", required_argument, NULL, OPTION_WINDOWS },
    { "skip", required_argument, NULL, OPTION_SKIP },
    { "target", required_argument, NULL, OPTION_TARGET },
    { "exact", no_argument, NULL, OPTION_EXACT },
    { "json", required_argument, NULL, OPTION_JSON },
    { "html", required_argument, NULL, OPTION_HTML },
    { "resume", required_argument, NULL, OPTION_RESUME },
    { "dump-logits", required_argument, NULL, OPTION_DUMP_LOGITS },
    { "needle", no_argument, NULL, OPTION_NEEDLE },
    { "speed", no_argument, NULL, OPTION_SPEED },
    { "choices", no_argument, NULL, OPTION_CHOICES },
    { "module", no_argument, NULL, OPTION_MODULE },
    { "generate", required_argument, NULL, OPTION_GENERATE },
    { "seed", required_argument, NULL, OPTION_SEED },
    { "markdown", no_argument, NULL, OPTION_MARKDOWN },
    { "list-caches", no_argument, NULL, OPTION_LIST_CACHES },
    { "verbose", no_argument, NULL, OPTION_VERBOSE },
    { "help", no_argument, NULL, 'h' },
    { "version", no_argument, NULL, OPTION_VERSION },
    { NULL, 0, NULL, 0 },
};

// In parts: C99 promises 4095 characters of a literal.
static const char* const help[] = {
    "usage: kvloom-eval -m MODEL.gguf -f TEXT --cache SPEC [--cache SPEC ...] [options]\n"
    "Measures what caches cost against the full-precision one, as decoding would see it.\n"
    "The table goes to stdout, everything else to stderr. Ctrl-C prints what is finished.\n\n",
    "  -m, --model FILE         a GGUF file; families: ",
    "\n"
    "  -f, --file FILE          the text; windows are taken from its beginning\n"
    "      --cache SPEC         a cache to measure. Can be repeated. Arguments as decode takes\n"
    "                           them are separated by blanks: \"kivi:k2,v2 0-1:q8_0\"\n"
    "      --calibration FILE   for caches that need one: a file of kvloom-calibrate\n"
    "      --list-caches        prints what specs are made of\n"
    "  -c, --ctx-size N         tokens of a window (2048, or what the model allows)\n"
    "      --windows N          (8)\n"
    "      --skip N             positions of each window that are not measured (256, or a quarter\n"
    "                           of the context where that is less): the prompt, for kept=\n"
    "  -t, --threads N          (0: one a processor); changes no number but speed\n"
    "  -j, --jobs N             after the first one, so many windows side by side, each with its\n"
    "                           share of the threads and logits of its own in memory (1)\n"
    "      --target NAME        auto, reference or host (auto)\n"
    "      --exact              attention in float32 throughout, without integer products\n"
    "      --seed N             of the needles (1)\n",
    "      --speed              also times decoding at 4096, 16384 and 32768 tokens\n"
    "      --choices            also counts what keys choose that choose their rotations\n"
    "      --module             instead of all this, errors of attention modules with one layer's\n"
    "                           cache at a time: keys, values, both\n"
    "      --needle             also hides facts in the text and asks for them\n"
    "      --generate N         also generates N tokens greedily with each cache\n"
    "      --markdown           the table as Markdown\n"
    "      --json FILE          writes the results; the schema is in docs/accuracy.md\n"
    "      --html FILE          writes a report that opens in any browser\n"
    "      --resume FILE        keeps finished windows in FILE, and takes them from there\n"
    "      --dump-logits DIR    writes all logits there, for tests/oracles/kl.py\n"
    "      --verbose            describes each cache, and prints log messages\n"
    "  -h, --help\n"
    "      --version\n\n"
    "Exit status: 0, 1 after an error, 2 for a wrong command line, 130 after Ctrl-C.\n",
};

static const char program[] = "kvloom-eval";

static int usage(const char* what, const char* value, const char* rule)
{
    return option_wrong(program, what, value, rule);
}

static int read_number_option(int option, const char* text, eval_options* out)
{
    int64_t value = 0;
    int status = EVAL_RUN;
    switch (option) {
    case 'c': return option_whole(program, "-c", text, 2, 1 << 24, &out->context);
    case 't':
        status = option_whole(program, "-t", text, 0, 256, &value);
        out->num_threads = (int)value;
        return status;
    case 'j':
        status = option_whole(program, "-j", text, 1, 256, &value);
        out->jobs = (int)value;
        return status;
    case OPTION_WINDOWS:
        status = option_whole(program, "--windows", text, 1, 1 << 20, &value);
        out->windows = (int)value;
        return status;
    case OPTION_SKIP: return option_whole(program, "--skip", text, 0, 1 << 24, &out->skip);
    case OPTION_GENERATE:
        return option_whole(program, "--generate", text, 1, 1 << 20, &out->generate);
    default: break;
    }
    // 2^53: what a number in JSON holds exactly.
    status = option_whole(program, "--seed", text, 0, (int64_t)1 << 53, &value);
    out->seed = (uint64_t)value;
    return status;
}

static int read_option(int option, char* text, eval_options* out)
{
    switch (option) {
    case 'm': out->model = text; break;
    case 'f': out->text = text; break;
    case OPTION_CACHE: out->caches[out->num_caches++] = text; break;
    case OPTION_CALIBRATION: out->calibration = text; break;
    case OPTION_TARGET:
        if (strcmp(text, "cuda") == 0) {
            return option_wrong(program, "--target", text, "must be auto, reference or host: the "
                                "statistics of layers read rows on the host");
        }
        return option_target(program, text, &out->target, NULL);
    case OPTION_EXACT: out->exact = true; break;
    case OPTION_JSON: out->json = text; break;
    case OPTION_HTML: out->html = text; break;
    case OPTION_RESUME: out->resume = text; break;
    case OPTION_DUMP_LOGITS: out->dump_folder = text; break;
    case OPTION_NEEDLE: out->needle = true; break;
    case OPTION_SPEED: out->speed = true; break;
    case OPTION_CHOICES: out->choices = true; break;
    case OPTION_MODULE: out->module = true; break;
    case OPTION_MARKDOWN: out->markdown = true; break;
    case OPTION_VERBOSE: out->verbose = true; break;
    case OPTION_VERSION: puts("kvloom-eval, kvloom " KVLOOM_VERSION); return 0;
    case OPTION_LIST_CACHES: fputs(kvl_spec_help(), stdout); return 0;
    case 'h':
        printf("%s%s%s%s%s", help[0], help[1], model_architectures(), help[2], help[3]);
        return 0;
    default: return read_number_option(option, text, out);
    }
    return EVAL_RUN;
}

static int check(const eval_options* o, int argc, char** argv, int rest)
{
    if (rest < argc) { return usage("argument", argv[rest], "options only; see --help"); }
    if (o->model == NULL) { return usage("-m", NULL, "a model file must be named; see --help"); }
    if (o->text == NULL) { return usage("-f", NULL, "a text file must be named; see --help"); }
    if (o->num_caches == 0) {
        return usage("--cache", NULL, "a cache must be named; see --list-caches");
    }
    for (int i = 0; i < o->num_caches; i++) {
        if (o->caches[i][strspn(o->caches[i], " \t")] == 0) {
            return usage("--cache", "''", "must name a cache");
        }
    }
    if (o->module && (o->html != NULL || o->resume != NULL || o->dump_folder != NULL ||
                      o->speed || o->choices || o->needle || o->generate > 0 || o->jobs > 1)) {
        return usage("--module", NULL, "goes with --json and --markdown alone");
    }
    if (o->resume != NULL && o->dump_folder != NULL) {
        return usage("--resume and --dump-logits", NULL,
                     "only one of them: windows from a file have no logits");
    }
    return EVAL_RUN;
}

// An argument as a shell takes it back.
static char* quote_arg(char* to, const char* arg)
{
    const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
    const bool is_plain = arg[0] != 0 && arg[strspn(arg, plain)] == 0;
    if (!is_plain) { *to++ = '\''; }
    for (; *arg != 0; arg++) {
        if (*arg == '\'') {
            memcpy(to, "'\\'", 3);
            to += 3;
        }
        *to++ = *arg;
    }
    if (!is_plain) { *to++ = '\''; }
    *to = 0;
    return to;
}

static char* join_command(int argc, char** argv)
{
    size_t bytes = 32;
    for (int i = 0; i < argc; i++) { bytes += 4 * strlen(argv[i]) + 3; }
    char* command = malloc(bytes);
    if (command == NULL) { return NULL; }
    char* at = command + sprintf(command, "kvloom-eval");
    for (int i = 1; i < argc; i++) {
        *at++ = ' ';
        at = quote_arg(at, argv[i]);
    }
    return command;
}

int eval_options_read(int argc, char** argv, eval_options* out)
{
    *out = (eval_options){ .windows = 8, .skip = -1, .seed = 1,
                           .products = MODEL_PRODUCTS_FLOAT };
    out->caches = calloc((size_t)argc + 1, sizeof *out->caches);
    out->command = join_command(argc, argv);  // before getopt moves arguments
    if (out->caches == NULL || out->command == NULL) {
        fputs("kvloom-eval: out of memory\n", stderr);
        return 1;
    }
    opterr = 0;  // getopt's own messages would not begin with the program's name
    optind = 1;
    for (;;) {
        const int at = optind;
        const int option = getopt_long(argc, argv, ":m:f:c:t:j:h", long_options, NULL);
        if (option == -1) { break; }
        if (option == '?' || option == ':') {
            return usage("option", argv[at], option == ':' ? "a value must follow"
                                                           : "not known; see --help");
        }
        const int status = read_option(option, optarg, out);
        if (status != EVAL_RUN) { return status; }
    }
    return check(out, argc, argv, optind);
}

void eval_options_free(eval_options* options)
{
    free(options->caches);
    free(options->command);
    *options = (eval_options){ .model = NULL };
}
