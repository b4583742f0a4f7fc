// decode_options.c -- the command line of decode.

#include "decode_options.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model.h"
#include "option_value.h"

// Options without a letter.
enum {
    OPTION_TEMPERATURE = 256,
    OPTION_TOP_K,
    OPTION_TOP_P,
    OPTION_REPEAT_PENALTY,
    OPTION_CHAT,
    OPTION_CACHE,
    OPTION_CALIBRATION,
    OPTION_CALIBRATE_ON_PROMPT,
    OPTION_TARGET,
    OPTION_JSON,
    OPTION_FOLLOW,
    OPTION_LOAD,
    OPTION_SAVE,
    OPTION_PROMPT_CACHE,
    OPTION_RECODE,
    OPTION_FOLD,
    OPTION_LIST_CACHES,
    OPTION_VERBOSE,
    OPTION_VERSION
};

static const struct option long_options[] = {
    { "model", required_argument, NULL, 'm' },
    { "prompt", required_argument, NULL, 'p' },
    { "file", required_argument, NULL, 'f' },
    { "predict", required_argument, NULL, 'n' },
    { "n-predict", required_argument, NULL, 'n' },
    { "ctx-size", required_argument, NULL, 'c' },
    { "threads", required_argument, NULL, 't' },
    { "seed", required_argument, NULL, 's' },
    { "temp", required_argument, NULL, OPTION_TEMPERATURE },
    { "top-k", required_argument, NULL, OPTION_TOP_K },
    { "top-p", required_argument, NULL, OPTION_TOP_P },
    { "repeat-penalty", required_argument, NULL, OPTION_REPEAT_PENALTY },
    { "interactive", no_argument, NULL, 'i' },
    { "chat", no_argument, NULL, OPTION_CHAT },
    { "cache", required_argument, NULL, OPTION_CACHE },
    { "calibration", required_argument, NULL, OPTION_CALIBRATION },
    { "calibrate-on-prompt", optional_argument, NULL, OPTION_CALIBRATE_ON_PROMPT },
    { "target", required_argument, NULL, OPTION_TARGET },
    { "json", required_argument, NULL, OPTION_JSON },
    { "follow", required_argument, NULL, OPTION_FOLLOW },
    { "load", required_argument, NULL, OPTION_LOAD },
    { "save", required_argument, NULL, OPTION_SAVE },
    { "prompt-cache", required_argument, NULL, OPTION_PROMPT_CACHE },
    { "recode", no_argument, NULL, OPTION_RECODE },
    { "fold", no_argument, NULL, OPTION_FOLD },
    { "list-caches", no_argument, NULL, OPTION_LIST_CACHES },
    { "verbose", no_argument, NULL, OPTION_VERBOSE },
    { "help", no_argument, NULL, 'h' },
    { "version", no_argument, NULL, OPTION_VERSION },
    { NULL, 0, NULL, 0 },
};

// In parts: C99 promises 4095 characters of a literal.
static const char* const help[] = {
    "usage: decode -m MODEL.gguf (-p PROMPT | -f FILE | -i) [options]\n"
    "Decodes a language model with its keys and values in a kvloom cache.\n"
    "Text goes to stdout, everything else to stderr.\n\n",
    "  -m, --model FILE         a GGUF file; families: ",
    "\n"
    "  -p, --prompt TEXT        the prompt, as it is\n"
    "  -f, --file FILE          the prompt from a file (-: stdin), without its last line end\n"
    "  -n, --predict N          (or --n-predict) tokens to generate, in each turn of -i\n"
    "                           (256; -1: no bound)\n"
    "  -c, --ctx-size N         the most tokens, prompt included (0: what the model allows)\n"
    "  -t, --threads N          (0: one a processor)\n"
    "  -s, --seed N             (-1: from the clock); the same seed gives the same text\n"
    "      --temp X             temperature (0.8); 0: always the best token\n"
    "      --top-k N            choose from the N best tokens (40; 0: all)\n"
    "      --top-p X            choose from the best that have probability X (0.95; 1: all)\n"
    "      --repeat-penalty X   weakens tokens of the last 64 (1: off)\n"
    "  -i, --interactive        reads a line, answers, reads the next; ends with the input.\n"
    "                           Ctrl-C ends an answer\n"
    "      --chat               the prompt is a message: applies the model's chat template\n",
    "      --cache SPEC         how keys and values are held (loom:2.25 where MODEL.gguf has a\n"
    "                           MODEL.kvloom.safetensors of kvloom-calibrate beside it or in\n"
    "                           ~/.local/share/kvloom; else loom, calibrated on a prompt of\n"
    "                           1024 tokens or more; on a device, and in all other cases, f16).\n"
    "                           Can be repeated:\n"
    "                             SPEC            both, in all layers\n"
    "                             k=SPEC, v=SPEC  the keys or the values\n"
    "                             0-3:SPEC, 7:SPEC, 7:k=SPEC  in these layers only\n"
    "      --calibration FILE   for caches that need one: a file of kvloom-calibrate\n"
    "      --fold               folds the transforms of values into the model's weights: nothing\n"
    "                           is left of them at run time, W_V and W_O are held as floats\n"
    "      --calibrate-on-prompt[=N]  instead of a file: by the prompt's first N tokens (512)\n"
    "      --list-caches        prints what specs are made of\n"
    "      --target NAME        auto, reference, host or cuda (auto: cuda where a device can\n"
    "                           serve, else the host)\n"
    "      --json FILE          writes the text and the statistics\n"
    "      --follow FILE        instead of choosing tokens, takes those of a run with FILE\n"
    "                           (--json); says how often its best token is the same\n"
    "      --save FILE          writes the session when it ends: tokens, cache, turns of --chat\n"
    "      --load FILE          goes on with a saved session: with -p, -f or -i, or where its\n"
    "                           text ended. A chat stays a chat\n"
    "      --prompt-cache FILE  begins with the rows of the tokens that prompt and FILE have in\n"
    "                           common; writes FILE after a prompt that has more than it.\n"
    "                           One of another prompt that has as much stays\n"
    "      --recode             takes files of another --cache too, by way of full rows\n"
    "                           A file of another model is refused in any case\n"
    "      --verbose            describes the cache, and prints log messages\n"
    "  -h, --help\n"
    "      --version\n\n"
    "Exit status: 0, 1 after an error, 2 for a wrong command line.\n",
};

static const char program[] = "decode";


static int usage(const char* what, const char* value, const char* rule)
{
    return option_wrong(program, what, value, rule);
}

static int read_number_option(int option, const char* text, decode_options* out)
{
    sampler_options* sampling = &out->sampling;
    int64_t value = 0;
    int status = DECODE_RUN;
    switch (option) {
    case 'n': return option_whole(program, "-n", text, -1, INT32_MAX, &out->num_predict);
    case 'c': return option_whole(program, "-c", text, 0, INT32_MAX, &out->context_len);
    case 't':
        status = option_whole(program, "-t", text, 0, 256, &value);
        out->num_threads = (int)value;
        return status;
    case 's':
        // 2^53: what a number in JSON holds exactly.
        status = option_whole(program, "-s", text, -1, (int64_t)1 << 53, &value);
        if (value >= 0) { sampling->seed = (uint64_t)value; }
        return status;
    case OPTION_TEMPERATURE:
        return option_real(program, "--temp", text, 1000.0, &sampling->temperature);
    case OPTION_TOP_K:
        status = option_whole(program, "--top-k", text, 0, INT32_MAX, &value);
        sampling->top_k = (int)value;
        return status;
    case OPTION_TOP_P: return option_real(program, "--top-p", text, 1.0, &sampling->top_p);
    default: break;
    }
    status = option_real(program, "--repeat-penalty", text, 1000.0, &sampling->repeat_penalty);
    if (status == DECODE_RUN && sampling->repeat_penalty <= 0.0f) {
        return usage("--repeat-penalty", text, "must be more than 0");
    }
    return status;
}

// Options whose value is kept, or that have none.
static int read_option(int option, char* text, decode_options* out)
{
    switch (option) {
    case 'm': out->model = text; break;
    case 'p': out->prompt = text; break;
    case 'f': out->prompt_file = text; break;
    case 'i': out->interactive = true; break;
    case OPTION_CHAT: out->chat = true; break;
    case OPTION_CACHE: out->cache_args[out->num_cache_args++] = text; break;
    case OPTION_CALIBRATION: out->calibration = text; break;
    case OPTION_CALIBRATE_ON_PROMPT:
        out->calibrate_rows = DECODE_CALIBRATE_ROWS;
        if (text == NULL) { break; }
        return option_whole(program, "--calibrate-on-prompt", text, 1, 1 << 24,
                            &out->calibrate_rows);
    case OPTION_TARGET:
        out->target_given = true;
        return option_target(program, text, &out->target, &out->target_name);
    case OPTION_JSON: out->json_path = text; break;
    case OPTION_FOLLOW: out->follow_path = text; break;
    case OPTION_LOAD: out->load_path = text; break;
    case OPTION_SAVE: out->save_path = text; break;
    case OPTION_PROMPT_CACHE: out->prompt_cache = text; break;
    case OPTION_RECODE: out->recode = true; break;
    case OPTION_FOLD: out->fold = true; break;
    case OPTION_VERBOSE: out->verbose = true; break;
    case OPTION_VERSION: puts("decode, kvloom " KVLOOM_VERSION); return 0;
    case OPTION_LIST_CACHES: fputs(kvl_spec_help(), stdout); return 0;
    case 'h':
        printf("%s%s%s%s%s", help[0], help[1], model_architectures(), help[2], help[3]);
        return 0;
    default: return read_number_option(option, text, out);
    }
    return DECODE_RUN;
}

static int check(const decode_options* o, int argc, char** argv, int rest)
{
    if (rest < argc) { return usage("argument", argv[rest], "options only; see --help"); }
    if (o->model == NULL) { return usage("-m", NULL, "a model file must be named; see --help"); }
    if (o->prompt != NULL && o->prompt_file != NULL) {
        return usage("-p and -f", NULL, "only one of them");
    }
    const bool prompted = o->prompt != NULL || o->prompt_file != NULL;
    if (!prompted && !o->interactive && o->load_path == NULL) {
        return usage("-p, -f or -i", NULL, "one of them must be there; see --help");
    }
    if (o->prompt_cache != NULL && !prompted) {
        return usage("--prompt-cache", NULL, "is for a prompt: -p or -f must be there");
    }
    if (o->prompt_cache != NULL && o->load_path != NULL) {
        return usage("--prompt-cache and --load", NULL, "only one of them");
    }
    if (o->recode && o->prompt_cache == NULL && o->load_path == NULL) {
        return usage("--recode", NULL, "is for --load and --prompt-cache");
    }
    if (o->calibration != NULL && o->calibrate_rows > 0) {
        return usage("--calibration and --calibrate-on-prompt", NULL, "only one of them");
    }
    if (o->calibrate_rows > 0 && (o->load_path != NULL || o->save_path != NULL ||
                                  o->prompt_cache != NULL)) {
        return usage("--calibrate-on-prompt", NULL, "does not go with --load, --save and "
                     "--prompt-cache: their rows need the same calibration, which no file has");
    }
    if (o->follow_path != NULL && o->interactive) {
        return usage("--follow and -i", NULL, "only one of them");
    }
    return DECODE_RUN;
}

static uint64_t seed_of_clock(void)
{
    struct timespec now = { 0, 0 };
    clock_gettime(CLOCK_REALTIME, &now);
    return ((uint64_t)now.tv_sec * 1000003u ^ (uint64_t)now.tv_nsec) & 0xffffffffu;
}

int decode_options_read(int argc, char** argv, decode_options* out)
{
    *out = (decode_options){ .num_predict = 256, .target_name = "auto" };
    out->sampling = (sampler_options){ 0.8f, 40, 0.95f, 1.0f, seed_of_clock() };
    out->cache_args = calloc((size_t)argc + 1, sizeof *out->cache_args);
    if (out->cache_args == NULL) {
        fputs("decode: out of memory\n", stderr);
        return 1;
    }
    opterr = 0;  // getopt's own messages would not begin with the program's name
    for (;;) {
        const int at = optind;
        const int option = getopt_long(argc, argv, ":m:p:f:n:c:t:s:ih", long_options, NULL);
        if (option == -1) { break; }
        if (option == '?' || option == ':') {
            return usage("option", argv[at], option == ':' ? "a value must follow"
                                                           : "not known; see --help");
        }
        const int status = read_option(option, optarg, out);
        if (status != DECODE_RUN) { return status; }
    }
    return check(out, argc, argv, optind);
}

void decode_options_free(decode_options* options)
{
    free(options->cache_args);
    options->cache_args = NULL;
}
