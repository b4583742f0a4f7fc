// model_internal.h -- what the files of the model library share; programs include model.h.

#ifndef KVLOOM_DECODE_MODEL_INTERNAL_H
#define KVLOOM_DECODE_MODEL_INTERNAL_H

#include "matrix.h"
#include "model.h"

#if defined(__GNUC__)
#define MODEL_LIKE_PRINTF(n) __attribute__((format(printf, n, (n) + 1)))
#else
#define MODEL_LIKE_PRINTF(n)
#endif

// What sets one architecture apart from another. The rest is metadata.
typedef struct model_family {
    const char* name;         // general.architecture, and the prefix of its keys
    bool rope_halves;         // the converter keeps split halves; else it permutes to pairs
    bool qk_norm;             // RMS norm of each query and key head before RoPE
    bool post_norms;          // RMS norm of what attention and FFN add
    bool gelu;                // the gate is GELU (tanh form); else SiLU
    bool scaled_embedding;    // by sqrt(hidden_len)
    bool windows;             // layers with a sliding window
    int wide_scale_layers;    // a model of so many layers scales scores by
                              // 1 / sqrt(hidden_len / num_q_heads); 0: none does
} model_family;

typedef struct model_layer {
    matrix q, k, v;                                    // [heads * head_dim, hidden_len]
    matrix o;                                          // [hidden_len, num_q_heads * head_dim_v]
    matrix gate, up;                                   // [ffn_len, hidden_len]
    matrix down;                                       // [hidden_len, ffn_len]
    const float *q_bias, *k_bias, *v_bias, *o_bias;    // [rows of the matrix]; NULL: none
    const float *attention_norm, *ffn_norm;            // [hidden_len]
    const float *q_norm, *k_norm;                      // [head_dim]; NULL: none
    const float *post_attention_norm, *post_ffn_norm;  // [hidden_len]; NULL: none
    kvl_rope rope;                                     // how its keys turn
    uint64_t folded;                                   // hash of the basis that v and o have; 0: of
                                                       // none
} model_layer;

typedef struct model_floats model_floats;  // a list of small tensors, as floats

struct model {
    gguf* file;
    tokenizer* tok;
    const model_family* family;
    model_options options;
    model_geometry geometry;
    model_layer_geometry* layer_geometry;  // [num_layers]
    model_layer* layers;                   // [num_layers]
    matrix embedding, output;              // [vocab_size, hidden_len]; may be the same tensor
    const float* output_norm;              // [hidden_len]
    const float* rope_factors;             // [rope_dims / 2]; NULL: none
    float norm_eps;
    float embedding_scale;
    model_floats* floats;
};

// Where a loading function writes its message.
typedef struct model_report {
    char* text;
    size_t bytes;
} model_report;

// Writes a message; returns false.
bool model_fail(const model_report* report, const char* format, ...) MODEL_LIKE_PRINTF(2);

// Copies a string of the file for a message: what is not printable ASCII becomes '?'. Returns out.
const char* model_printable(const char* data, size_t bytes, char out[64]);

// Floats that live as long as the model; NULL: no memory.
float* model_keep_floats(model* m, int64_t count);

// model_fold.c: whether the weights have the bases that a session's caches leave to them.
bool model_check_fold(const model* m, const model_fold_desc* desc, const model_report* report);

// model_geometry.c: fills family, geometry, layer_geometry and norm_eps from the metadata.
bool model_read_geometry(model* m, const model_report* report);

// Buffers of a session, for batch_len rows.
typedef struct model_buffers {
    float* x;            // [batch_len, hidden_len] the residual stream
    float* h;            // [batch_len, hidden_len] its norm
    float *q, *k, *v;    // [batch_len, heads, head_dim] of the layer with the most
    float* o;            // [batch_len, num_q_heads, head_dim_v]
    float* lse;          // [batch_len, num_q_heads]
    float* added;        // [batch_len, hidden_len] what attention or FFN adds to x
    float *gate, *up;    // [batch_len, ffn_len]
    float* rope[2];      // [batch_len, rope_dims]: of layers without and with a window
    float* past;         // restored keys and values, MODEL_PAST_ROWS of them
    float* scores;       // [num_threads, MODEL_QUERY_TILE, MODEL_KEY_TILE]
    void* scratch;       // of the matrix functions
    size_t scratch_bytes;
    float* all;          // the allocation that the floats are in
} model_buffers;

enum {
    MODEL_MAX_KEPT = 256,    // of kept= in a spec
    MODEL_QUERY_TILE = 128,  // with 256 keys: 128 KB of scores, which stay in the second cache
    MODEL_KEY_TILE = 256,
    MODEL_PAST_ROWS = 1024
};

// What decides which rows of a layer are quantized when it has n of them; see kvloom.h, WORDS.
typedef struct model_windows {
    int64_t sink_len, recent_len, chunk_len;
    int kept_len;
} model_windows;

// model_kept.c: a number at a layer's input, and its row in the batch; < 0: in an earlier one.
typedef struct model_largest {
    float x;
    int32_t row;
} model_largest;

typedef struct model_kept {
    model_largest* largest;  // [num_layers, most] of the run's prompt so far, the largest first
    int32_t* rows;           // [num] of the batch and the layer at hand that are kept, rising
    int num;
    int most;                // kept=N of the layer with the most; 0: none
} model_kept;

typedef struct model_device model_device;  // model_device.c

struct model_session {
    const model* m;
    model_windows* windows;  // [num_layers]
    model_kept kept;
    kvl_context* ctx;
    kvl_cache* cache;
    kvl_seq seq;
    int64_t length, context_len;
    int batch_len, num_threads;
    int products;        // of the run in progress: MODEL_PRODUCTS_AUTO ...
    bool broken;         // a failure has left layers with different numbers of rows
    void (*on_rows)(void* user, const model_rows* rows);
    void* user;
    matrix_pool pool;
    model_buffers buffers;
    model_device* device;  // NULL: weights, rows and cache are in the host's memory
    char message[512];
};

// Matrices that share their input, by rows in one fixed order: MODEL_PRODUCTS_BY_ROW.
typedef struct model_product_rows {
    const matrix_product* products;  // [count]
    int count;
    const float* x;                  // [num_rows, cols]
    int64_t num_rows;
} model_product_rows;

// model_product.c
void model_multiply_by_row(model_session* s, const model_product_rows* rows);

// Rows [first, first + num) of a sequence.
typedef struct model_stretch {
    int64_t first, num;
} model_stretch;

// A stretch of the rows of one layer: q, k, v of the buffers, from position session->length on.
typedef struct model_span {
    int layer;
    int64_t num_rows;
    bool rows_through_cache;
    int64_t prompt_rows;  // the first so many are of a prompt
} model_span;

// model_session.c: gives the parts of `b` that hold rows their places in `all` (NULL: only counts).
// Returns how many floats they take.
uint64_t model_lay_out_rows(const model_session* s, float* all, model_buffers* b);

// model_device.c: weights, buffers and kernels on the context's device, where it has one.
bool model_device_create(model_session* s);
void model_device_free(model_session* s);

// Where the session's rows are: its own buffers, or the device's.
const model_buffers* model_rows_of(const model_session* s);

// A batch: what is in buffers.x and buffers.rope goes to the device; a layer at a time; what its
// kernels found; the rows as they are now, out [num_rows, hidden_len].
int model_device_begin(model_session* s, int64_t num_rows);
int model_device_layer(model_session* s, const model_span* span);
int model_device_end(model_session* s);
int model_device_rows(model_session* s, int64_t num_rows, float* out);

// As model_attention_output.
int model_device_output(model_session* s, const model_rows* rows, bool through_cache, float* out);

// Rows attend to those of their own batch, and join what o and lse have of the past.
kvl_status model_device_attend(model_session* s, int layer, int64_t num_rows);

// The last norm of the batch's rows; hidden [num_rows, hidden_len] gets them, can be NULL.
int model_device_norm(model_session* s, int64_t num_rows, float* hidden);

// logits [num_rows, vocab_size] of rows of the batch from `first` on, or of hidden [num_rows, ...].
int model_device_logits(model_session* s, const float* hidden, int64_t first, int64_t num_rows,
                        float* logits);

// Calls on the cache with rows in the host's memory, on every target; at most MODEL_PAST_ROWS.
kvl_status model_append(model_session* s, const kvl_append_desc* desc);
kvl_status model_restore(model_session* s, int layer, const model_stretch* rows, float* k,
                         float* v);

// Writes the session's message; returns status.
int model_session_fail(model_session* s, int status, const char* format, ...) MODEL_LIKE_PRINTF(3);

// model_kept.c: a run begins; which of the first num_rows rows of buffers.x, as they enter a layer,
// its cache is asked to keep.
bool model_kept_create(model_session* s);
void model_kept_free(model_session* s);
void model_kept_begin(model_session* s);
kvl_status model_kept_find(model_session* s, int layer, int64_t num_rows);

// model_attention.c: appends the span's rows to the cache and writes what its queries attend to
// into o of model_rows_of. Returns MODEL_OK or MODEL_FAILED.
int model_attend(model_session* s, const model_span* span);

#endif
