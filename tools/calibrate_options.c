// calibrate_options.c -- reads the command line of kvloom-calibrate.

#include "calibrate_options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "option_value.h"

// Options without a letter.
enum {
    OPTION_FOR = 256,
    OPTION_WINDOWS,
    OPTION_RESUME,
    OPTION_MERGE,
    OPTION_QUERIES,
    OPTION_KEY_RUNS,
    OPTION_SEED,
    OPTION_PRE_ROPE,
    OPTION_NO_STATISTICS,
    OPTION_LEARN,
    OPTION_LEARN_STEPS,
    OPTION_REPORT,
    OPTION_LIST_CACHES,
    OPTION_VERBOSE,
    OPTION_VERSION
};

static const struct option long_options[] = {
    { "model", required_argument, NULL, 'm' },
    { "file", required_argument, NULL, 'f' },
    { "output", required_argument, NULL, 'o' },
    { "ctx-size", required_argument, NULL, 'c' },
    { "threads", required_argument, NULL, 't' },
    { "for", required_argument, NULL, OPTION_FOR },
    { "windows", required_argument, NULL, OPTION_WINDOWS },
    { "resume", no_argument, NULL, OPTION_RESUME },
    { "merge", no_argument, NULL, OPTION_MERGE },
    { "queries", required_argument, NULL, OPTION_QUERIES },
    { "key-runs", required_argument, NULL, OPTION_KEY_RUNS },
    { "pre-rope", no_argument, NULL, OPTION_PRE_ROPE },
    { "seed", required_argument, NULL, OPTION_SEED },
    { "no-statistics", no_argument, NULL, OPTION_NO_STATISTICS },
    { "learn", required_argument, NULL, OPTION_LEARN },
    { "learn-steps", required_argument, NULL, OPTION_LEARN_STEPS },
    { "report", required_argument, NULL, OPTION_REPORT },
    { "list-caches", no_argument, NULL, OPTION_LIST_CACHES },
    { "verbose", no_argument, NULL, OPTION_VERBOSE },
    { "help", no_argument, NULL, 'h' },
    { "version", no_argument, NULL, OPTION_VERSION },
    { NULL, 0, NULL, 0 },
};

static const char* const help[] = {
    "usage: kvloom-calibrate -m MODEL.gguf -f TEXT -o FILE.safetensors [--for SPEC ...] [options]\n"
    "       kvloom-calibrate --merge FILE FILE [FILE ...] -o FILE [-m MODEL.gguf --for SPEC ...]\n"
    "Runs a model over a text and writes what calibrated caches need to know of it.\n"
    "Messages go to stderr. Ctrl-C keeps the windows that are finished.\n\n",
    "  -m, --model FILE         a GGUF file; families: ",
    "\n"
    "  -f, --file FILE          the text; not the one that caches are measured on\n"
    "  -o, --output FILE        written under another name, then renamed\n"
    "      --for SPEC           makes the tables of this cache. Can be repeated. Arguments as\n"
    "                           decode takes them are separated by blanks. Without it the file\n"
    "                           has statistics alone\n"
    "      --list-caches        prints what specs are made of\n"
    "  -c, --ctx-size N         tokens of a window (2048, or what the model allows): moments are\n"
    "                           weighted by attention, so calibrate at the length you serve\n"
    "      --windows N          (4)\n"
    "      --resume             goes on with FILE: runs the windows that it lacks, and makes the\n"
    "                           tables of its caches and of --for\n"
    "      --merge              adds up the statistics of files of one model; runs nothing.\n"
    "                           Their names are the arguments without an option\n"
    "      --queries N          sampled for each KV head (64)\n"
    "      --key-runs N         sampled runs of 128 keys for each KV head (8)\n"
    "      --seed N             of the samples (1)\n"
    "      --pre-rope           statistics of keys before RoPE, for caches with k.place=pre_rope\n"
    "      --learn WHAT         searches for the matrices of transform=file, where the file has\n"
    "                           none: rotation (from a Hadamard on) or affine (from balance on)\n"
    "      --learn-steps N      that are tried for each head (8 times head_dim)\n"
    "      --report FILE.html   spectra, conditions, damping and predicted errors of each head,\n"
    "                           of the bases in the file; a summary goes to stderr\n"
    "      --no-statistics      writes tables alone: a smaller file, which cannot be resumed\n"
    "  -t, --threads N          (0: one a processor); changes no number\n"
    "      --verbose            prints log messages\n"
    "  -h, --help\n"
    "      --version\n\n"
    "Exit status: 0, 1 after an error, 2 for a wrong command line, 130 after Ctrl-C.\n",
};

static const char program[] = "kvloom-calibrate";

static int usage(const char* what, const char* value, const char* rule)
{
    return option_wrong(program, what, value, rule);
}

static int read_int(const char* name, const char* text, int64_t least, int64_t most, int* out)
{
    int64_t value = 0;
    const int status = option_whole(program, name, text, least, most, &value);
    if (status == OPTION_OK) { *out = (int)value; }
    return status;
}

static int read_learn(const char* text, calibrate_options* out)
{
    if (strcmp(text, "rotation") == 0) {
        out->learn = CALIBRATE_LEARN_ROTATION;
    } else if (strcmp(text, "affine") == 0) {
        out->learn = CALIBRATE_LEARN_AFFINE;
    } else {
        return usage("--learn", text, "must be rotation or affine");
    }
    return CALIBRATE_RUN;
}

static int read_option(int option, char* text, calibrate_options* out)
{
    int64_t value = 0;
    int status = CALIBRATE_RUN;
    switch (option) {
    case 'm': out->model = text; break;
    case 'f': out->text = text; break;
    case 'o': out->out = text; break;
    case 'c': return option_whole(program, "-c", text, 64, 1 << 20, &out->context);
    case 't': return read_int("-t", text, 0, 256, &out->num_threads);
    case OPTION_FOR: out->specs[out->num_specs++] = text; break;
    case OPTION_WINDOWS: return read_int("--windows", text, 1, 1 << 20, &out->windows);
    case OPTION_QUERIES: return read_int("--queries", text, 1, 4096, &out->num_queries);
    case OPTION_KEY_RUNS: return read_int("--key-runs", text, 1, 1024, &out->num_key_runs);
    case OPTION_SEED:
        status = option_whole(program, "--seed", text, 0, (int64_t)1 << 53, &value);
        out->seed = (uint64_t)value;
        return status;
    case OPTION_PRE_ROPE: out->pre_rope = true; break;
    case OPTION_LEARN: return read_learn(text, out);
    case OPTION_LEARN_STEPS: return read_int("--learn-steps", text, 1, 1 << 20, &out->learn_steps);
    case OPTION_REPORT: out->report = text; break;
    case OPTION_RESUME: out->resume = true; break;
    case OPTION_MERGE: out->num_merge = -1; break;
    case OPTION_NO_STATISTICS: out->no_statistics = true; break;
    case OPTION_VERBOSE: out->verbose = true; break;
    case OPTION_VERSION: puts("kvloom-calibrate, kvloom " KVLOOM_VERSION); return 0;
    case OPTION_LIST_CACHES: fputs(kvl_spec_help(), stdout); return 0;
    default:
        printf("%s%s%s%s", help[0], help[1], model_architectures(), help[2]);
        return 0;
    }
    return CALIBRATE_RUN;
}

static int check(calibrate_options* o, int argc, char** argv, int rest)
{
    const bool merges = o->num_merge != 0;
    if (o->out == NULL) { return usage("-o", NULL, "an output file must be named; see --help"); }
    if (merges) {
        o->merge = argv + rest;
        o->num_merge = argc - rest;
        if (o->num_merge < 2) { return usage("--merge", NULL, "two files or more must be named"); }
        if (o->text != NULL || o->resume) {
            return usage("--merge", NULL, "runs no text: -f and --resume do not go with it");
        }
        if (o->report != NULL && o->model == NULL) {
            return usage("-m", NULL, "--report with --merge needs the model's shapes");
        }
        if (o->num_specs > 0 && o->model == NULL) {
            return usage("-m", NULL, "--for with --merge needs the model's shapes");
        }
        return CALIBRATE_RUN;
    }
    if (rest < argc) { return usage("argument", argv[rest], "options only; see --help"); }
    if (o->model == NULL) { return usage("-m", NULL, "a model file must be named; see --help"); }
    if (o->text == NULL) { return usage("-f", NULL, "a text file must be named; see --help"); }
    for (int i = 0; i < o->num_specs; i++) {
        if (o->specs[i][strspn(o->specs[i], " \t")] == 0) {
            return usage("--for", "''", "must name a cache");
        }
    }
    if (o->no_statistics && o->num_specs == 0 && !o->resume) {
        return usage("--no-statistics", NULL, "without --for nothing is left to write");
    }
    return CALIBRATE_RUN;
}

int calibrate_options_read(int argc, char** argv, calibrate_options* out)
{
    *out = (calibrate_options){ .windows = 4, .num_queries = 64, .num_key_runs = 8, .seed = 1 };
    out->specs = calloc((size_t)argc + 1, sizeof *out->specs);
    if (out->specs == NULL) {
        fputs("kvloom-calibrate: out of memory\n", stderr);
        return 1;
    }
    opterr = 0;  // getopt's own messages would not begin with the program's name
    optind = 1;
    for (;;) {
        const int at = optind;
        const int option = getopt_long(argc, argv, ":m:f:o:c:t:h", long_options, NULL);
        if (option == -1) { break; }
        if (option == '?' || option == ':') {
            return usage("option", argv[at], option == ':' ? "a value must follow"
                                                           : "not known; see --help");
        }
        const int status = read_option(option, optarg, out);
        if (status != CALIBRATE_RUN) { return status; }
    }
    return check(out, argc, argv, optind);
}

void calibrate_options_free(calibrate_options* options)
{
    free(options->specs);
    *options = (calibrate_options){ .model = NULL };
}
