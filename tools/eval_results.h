// eval_results.h -- what an evaluation measured: the table, the JSON file and the HTML report are
// made from this, and from nothing else.
//
// Numbers are plain: a KL divergence is in nats (reports multiply by 1000), an error is relative,
// a share is from 0 to 1. What was not measured is NaN, an empty array (count 0) or NULL. Strings
// are UTF-8, terminated, never NULL unless said. Everything is owned by the eval_results.

#ifndef KVLOOM_EVAL_RESULTS_H
#define KVLOOM_EVAL_RESULTS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    EVAL_TOP = 5,            // tokens in a list of the most probable
    EVAL_WORST = 20,         // tokens in a cache's list of the worst
    EVAL_DEPTHS = 10,        // places of a needle, from 0 (the beginning) in tenths of the text
    EVAL_MAX_LENGTHS = 4,    // lengths of a needle's text
    EVAL_MAX_SPEEDS = 4,     // lengths at which decoding is timed
    EVAL_MODULE_MODES = 3    // keys alone, values alone, both
};

typedef struct eval_candidate {
    int32_t id;
    double probability;
    char text[32];           // of the token; "" where it has none
} eval_candidate;

// A position where the cache's distribution is far from the base's.
typedef struct eval_worst {
    int window;
    int64_t position;                // in the window, of the newest token that is seen
    double kl;
    int32_t target;                  // the token that follows in the text
    char target_text[32];
    char before[320];                // the text up to the position, its last tokens
    eval_candidate base[EVAL_TOP];   // most probable first
    eval_candidate cache[EVAL_TOP];
} eval_worst;

// One cache on one window. Arrays are by position, from `skip` on: entry i is position skip + i.
typedef struct eval_window {
    bool done;               // false: not run, for example after Ctrl-C; arrays are NULL then
    float* kl;               // [num_positions] KL(base || cache) of the next token's distribution
    float* nll;              // [num_positions] -log probability of the text's next token
    unsigned char* top1;     // [num_positions] 1: both have the same most probable token
    int num_worst;
    eval_worst worst[EVAL_WORST];  // of this window, worst first
    double seconds;
} eval_window;

// Retrieval of a hidden fact: hits of trials by length and depth.
typedef struct eval_needle {
    int num_lengths;                         // 0: not measured
    int64_t lengths[EVAL_MAX_LENGTHS];       // tokens of the whole prompt
    int trials;                              // of each cell
    int hits[EVAL_MAX_LENGTHS][EVAL_DEPTHS];
} eval_needle;

// A greedy generation from one prompt.
typedef struct eval_generation {
    int num_tokens;          // generated
    int32_t* ids;            // [num_tokens]
    int first_divergence;    // first index that differs from the base's text; -1: none; base: -1
    float* kl;               // [num_tokens] along the base's text; NULL for the base
} eval_generation;

typedef struct eval_speed {
    int64_t rows;            // tokens in the cache
    double tokens_per_second;
} eval_speed;

// Relative error of the scores q.k and of the attention outputs that a head has with the rows as
// the cache holds them, against the same rows as floats; over the last positions of window 0.
typedef struct eval_layer {
    int num_q_heads;
    double* score_error;     // [num_q_heads] |s' - s| / |s|
    double* output_error;    // [num_q_heads] |o' - o| / |o|
} eval_layer;

// What pieces of keys are where a key chooses its rotations: as they are, rotated by themselves,
// with the whole head. Over the quantized keys of window 0.
typedef struct eval_choices {
    int64_t num_pieces;      // 0: nothing is chosen, or nobody has counted
    int64_t count[3];
    double peak[3];          // mean of max |x| / rms of the pieces as they came
    double peak_rotated[3];  // the same after a Hadamard of the piece
} eval_choices;

// Relative error of attention modules' outputs, one layer's cache at a time: see eval_module.h.
typedef struct eval_module {
    int num_layers;                          // 0: not measured
    double* error[EVAL_MODULE_MODES];        // [num_layers]
    double* square;                          // [num_layers] sums of squares of exact outputs
    double geometric[EVAL_MODULE_MODES];     // means over layers
    double mean[EVAL_MODULE_MODES];
} eval_module;

// One cache. The summary is over all windows that are done.
typedef struct eval_cache {
    char* cache;             // the spec as given
    char* canonical;         // what the library made of it, in layer 0
    char* description;       // of the whole cache: kvl_describe; several lines
    bool generated;          // true: generated kernels; false: the reference
    char error[512];         // "" or why this cache could not be run; nothing else is filled then

    int num_done;            // windows
    eval_window* windows;    // [results.num_windows]

    double kl, kl_se;        // mean, and its standard error over windows (NaN below two)
    double kl_median, kl_p99;
    eval_worst worst[EVAL_WORST];  // of all windows, worst first
    int num_worst;
    double top1;             // share of positions
    double perplexity;
    double perplexity_diff, perplexity_diff_se;  // minus the base's, on the same windows; paired

    double bits_key, bits_value;  // of a value in pages, mean over layers
    double bits_body;        // of both
    double bits_total;       // at this context, with all that the cache has allocated
    double compression;      // bytes of the same rows as f16, over cache_bytes
    uint64_t cache_bytes;    // after one window of `context` tokens
    double bytes_per_token;
    int64_t rows_quantized, rows_total;  // rows x layers at the end of a window

    double tokens_per_second;  // decoding at the end of the context
    int num_speeds;
    eval_speed speeds[EVAL_MAX_SPEEDS];

    int num_layers;          // 0: errors of layers were not measured
    eval_layer* layers;      // [num_layers]
    eval_choices choices;
    eval_module module;
    eval_needle needle;
    int num_generations;
    eval_generation* generations;  // [num_generations]
} eval_cache;

typedef struct eval_results {
    const char* version;     // of kvloom
    char* command;           // the command line, to repeat the run
    char* model;             // path
    char model_name[128];    // general.name; "" if the file has none
    char architecture[64];
    char model_fingerprint[65];  // of the model file, hexadecimal
    char* calibration;       // path; NULL: none
    char calibration_hash[65];   // of what caches read of it; "" without one
    char* text;              // path
    char text_sha256[65];
    int64_t text_tokens;
    int vocab_size, num_layers;
    int threads;
    uint64_t seed;
    char target[16];         // reference or host
    char date[32];           // ISO 8601, UTC, of the end of the run

    int64_t context;         // tokens of a window
    int64_t skip;            // positions of each window that are not measured
    int64_t num_positions;   // measured in each window: context - 1 - skip
    int num_windows;
    int num_windows_asked;   // more than num_windows where the text is too short for them
    bool interrupted;        // some windows are not done
    bool counts_choices;     // window 0 of each cache counts what was chosen

    // The full-precision cache, f16.
    float** base_nll;        // [num_windows], entries [num_positions]; NULL: not done
    double base_perplexity;  // over the windows that are done
    eval_cache base;         // bits, bytes, speed, needle and generations; cache is "f16"

    int num_caches;
    eval_cache* caches;      // [num_caches], in the order given
} eval_results;

void eval_results_free(eval_results* results);  // leaves it zeroed

#endif
