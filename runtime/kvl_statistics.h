// kvl_statistics.h -- what calibration knows of a model's rows: sums in double, and samples.
//
// With k, v, q rows as attention takes them (after RoPE), G query heads g of a KV head, position i
// of a query, p_git = softmax of its visible scores, o_gi = sum_t p_git v_t, and W_g the columns of
// the output matrix that belong to a query head:
//
//     key             sum k k^T                 key_group   sum (k - m)(k - m)^T, m the mean of its
//     value           sum v v^T                             aligned group of 32 positions
//     query           sum_gi q q^T              query_seen    sum_gi (sum_t p (1 - p)) q q^T
//     attended        sum_gi o o^T              query_output  sum_gi w_gi q q^T
//     output          sum_g W_g^T W_g                           w_gi = sum_t p^2 |W_g (v_t - o)|^2
//
// The weights of query_seen and query_output count the rows t that a cache quantizes: outside the
// first KVL__SKIP_SINK positions and the newest KVL__SKIP_RECENT.  query_output is the second-order
// price of an error in a key, but for a factor: the attention-aware Hessian.
// |W_g (v - o)|^2 = |F^T v - F^T o|^2 with W_g^T W_g = F F^T, so that one product more serves it:
//     sum_t p^2 |v'_t - o'|^2 = sum_t p^2 |v'_t|^2 - 2 o'.(sum_t p^2 v'_t) + |o'|^2 sum_t p^2.
//
// With kvl_statistics_desc.unrotated attention is the same, and then keys are turned back by their
// positions t, and each query by the position of one of the keys that it sees, drawn alike from all
// of them: R_-t q is the query that a key before RoPE meets.
//
// Samples are those of the largest priorities, a hash of seed, sequence and position: the same
// whatever the order, and the sample of a union is taken from the union of samples.
//
// A call works on one layer, KV head by KV head: pack keys and values into panels; attention of
// tiles of query rows; second moments.  No sum depends on the number of threads.

#ifndef KVL_STATISTICS_H
#define KVL_STATISTICS_H

#include "kvl_ops.h"
#include "kvl_rope.h"
#include "kvl_tiles.h"

enum {
    KVL__SKIP_SINK = 4, KVL__SKIP_RECENT = 32,
    KVL__GROUP_ROWS = 32,              // of key_group
    KVL__RUN_ROWS = 128,               // of a sampled run of keys: the largest group
    KVL__QUERY_TILE = 24,              // rows, a multiple of KVL__TILE_ROWS
    KVL__MOMENT_ROWS = 64,             // rows that are turned into doubles at a time
    KVL__MOMENT_COLS = 32,             // columns of a moment that one task computes
    KVL__MAX_DIM = 256,
    KVL__USUAL_QUERIES = 64, KVL__USUAL_RUNS = 8,      // samples of a KV head
    KVL__MOST_QUERIES = 4096, KVL__MOST_RUNS = 1024
};

typedef enum kvl__moment {
    KVL__MOMENT_KEY, KVL__MOMENT_KEY_GROUP, KVL__MOMENT_QUERY, KVL__MOMENT_QUERY_SEEN,
    KVL__MOMENT_QUERY_OUTPUT, KVL__MOMENT_VALUE, KVL__MOMENT_ATTENDED, KVL__MOMENT_OUTPUT,
    KVL__MOMENT_KEY_TURN, KVL__MOMENT_TURN,
    KVL__NUM_MOMENTS
} kvl__moment;

typedef enum kvl__sum {
    KVL__SUM_KEY, KVL__SUM_KEY_UNROTATED, KVL__SUM_QUERY, KVL__SUM_VALUE, KVL__NUM_SUMS
} kvl__sum;

// Names in a file follow "layer.<L>.stat."; is_value: of head_dim_v.
typedef struct kvl__statistic { const char* name; int is_value; } kvl__statistic;

static __attribute__((unused)) const kvl__statistic kvl__moments[KVL__NUM_MOMENTS] = {
    { "key_outer", 0 }, { "key_group_outer", 0 }, { "query_outer", 0 }, { "query_seen_outer", 0 },
    { "query_output_outer", 0 }, { "value_outer", 1 }, { "attended_outer", 1 },
    { "output_outer", 1 }, { "key_turn_outer", 0 }, { "turn_outer", 0 },
};
static __attribute__((unused)) const kvl__statistic kvl__sums[KVL__NUM_SUMS] = {
    { "key_sum", 0 }, { "key_unrotated_sum", 0 }, { "query_sum", 0 }, { "value_sum", 1 },
};

static __attribute__((unused)) const kvl__statistic kvl__mosts[2] = {
    { "key_most", 0 }, { "value_most", 1 },
};

// How many: rows of keys, of them in whole groups, query rows of one head; the sum of weights.
enum { KVL__COUNT_ROWS, KVL__COUNT_GROUPED, KVL__COUNT_QUERIES, KVL__NUM_COUNTS };

static __attribute__((unused)) const char* const kvl__count_names[KVL__NUM_COUNTS] = {
    "rows", "grouped_rows", "query_rows",
};
static __attribute__((unused)) const char* const kvl__weight_names[2] = {
    "query_seen_weight", "query_output_weight",
};

typedef struct kvl__sample {           // the num items of the largest priorities, in no order
    int      num, most;
    int64_t  floats;                   // of an item
    float*   items;                    // [most, floats]
    double*  priority;                 // [most]
    double*  first;                    // [most] of runs: position of the first row; -1: not known
} kvl__sample;

typedef struct kvl__head_statistics {
    double*     sums[KVL__NUM_SUMS];         // [dim]
    double*     mosts[2];                    // [dim] greatest magnitudes
    double*     moments[KVL__NUM_MOMENTS];   // [dim, dim]
    double      weights[2];                  // of query_seen, query_output
    kvl__sample queries;                     // head_dim scaled numbers, then the log-sum-exp
    kvl__sample keys;                        // runs [KVL__RUN_ROWS, head_dim]
} kvl__head_statistics;

typedef struct kvl__layer_statistics {
    int     num_q_heads, num_kv_heads, dk, dv, window_len;     // 0 KV heads: nothing is kept
    float   softmax_scale, soft_cap;
    double* turns;                     // [1 + dk / 2] see kvl_rope.h; NULL: not known
    int     has_turns;                 // turn moments are known
    int     has_output;                // output moments are known
    int     lacks_mosts;               // 1: a file of an older library did not have them
    float*  factor;                    // [num_q_heads, dv / 16, dv, 16] F; NULL: not known
    double  counts[KVL__NUM_COUNTS];
    kvl__head_statistics* heads;       // [num_kv_heads]
} kvl__layer_statistics;

struct kvl_statistics {
    kvl_context* ctx;
    int          num_layers, max_queries, max_runs;
    uint64_t     seed;
    int          unrotated;            // 1: of keys before RoPE
    kvl__layer_statistics* layers;
    void*        chunks;               // every allocation, a list
};

KVL__FN int kvl__moment_is_known(const kvl__layer_statistics* l, int moment)
{
    if (moment == KVL__MOMENT_OUTPUT || moment == KVL__MOMENT_QUERY_OUTPUT) return l->has_output;
    if (moment == KVL__MOMENT_KEY_TURN || moment == KVL__MOMENT_TURN) return l->has_turns;
    return 1;
}

// MEMORY: one list, freed as a whole.

typedef struct kvl__memory_chunk {
    struct kvl__memory_chunk* next;
    size_t bytes, pad[2];              // 32 bytes: contents stay aligned
} kvl__memory_chunk;

KVL__FN void* kvl__list_alloc(kvl_context* ctx, void** list, size_t count, size_t size)
{
    const size_t bytes = sizeof(kvl__memory_chunk) + count * size;
    kvl__memory_chunk* m = (kvl__memory_chunk*)kvl__alloc_zeroed(ctx, bytes);
    if (!m) return NULL;
    m->next = (kvl__memory_chunk*)*list;
    m->bytes = bytes;
    *list = m;
    return m + 1;
}

KVL__FN void kvl__list_free(kvl_context* ctx, void** list)
{
    while (*list) {
        kvl__memory_chunk* m = (kvl__memory_chunk*)*list;
        *list = m->next;
        kvl__free(ctx, m, m->bytes);
    }
}

KVL__FN kvl_status kvl__statistics_no_memory(kvl_context* ctx)
{
    return kvl__fail(ctx, KVL_NO_MEMORY, "no memory for statistics");
}

// CREATION

KVL__FN int kvl__sample_create(kvl_statistics* s, kvl__sample* sample, int most, int64_t floats)
{
    sample->most = most;
    sample->floats = floats;
    sample->items = (float*)kvl__list_alloc(s->ctx, &s->chunks, (size_t)(most * floats),
                                            sizeof(float));
    sample->priority = (double*)kvl__list_alloc(s->ctx, &s->chunks, (size_t)most, sizeof(double));
    sample->first = (double*)kvl__list_alloc(s->ctx, &s->chunks, (size_t)most, sizeof(double));
    return sample->items && sample->priority && sample->first;
}

KVL__FN int kvl__head_statistics_create(kvl_statistics* s, const kvl__layer_statistics* l,
                                        kvl__head_statistics* h)
{
    int ok = kvl__sample_create(s, &h->queries, s->max_queries, l->dk + 1) &&
             kvl__sample_create(s, &h->keys, s->max_runs, (int64_t)KVL__RUN_ROWS * l->dk);
    for (int i = 0; i < KVL__NUM_SUMS && ok; ++i) {
        const size_t dim = (size_t)(kvl__sums[i].is_value ? l->dv : l->dk);
        h->sums[i] = (double*)kvl__list_alloc(s->ctx, &s->chunks, dim, sizeof(double));
        ok = h->sums[i] != NULL;
    }
    for (int i = 0; i < 2 && ok; ++i) {
        const size_t dim = (size_t)(kvl__mosts[i].is_value ? l->dv : l->dk);
        h->mosts[i] = (double*)kvl__list_alloc(s->ctx, &s->chunks, dim, sizeof(double));
        ok = h->mosts[i] != NULL;
    }
    for (int i = 0; i < KVL__NUM_MOMENTS && ok; ++i) {
        const size_t dim = (size_t)(kvl__moments[i].is_value ? l->dv : l->dk);
        h->moments[i] = (double*)kvl__list_alloc(s->ctx, &s->chunks, dim * dim, sizeof(double));
        ok = h->moments[i] != NULL;
    }
    return ok;
}

KVL__FN kvl_status kvl__layer_statistics_create(kvl_statistics* s, int layer,
                                                const kvl_layer_desc* desc)
{
    kvl_context* ctx = s->ctx;
    kvl__layer_statistics* l = &s->layers[layer];
    kvl__parse p;
    if (desc->num_kv_heads == 0) return KVL_OK;
    memset(&p, 0, sizeof p);
    p.ctx = ctx;
    snprintf(p.where, sizeof p.where, "layer %d: ", layer);
    KVL__TRY(kvl__check_layer(&p, desc));
    l->dk = desc->head_dim;
    l->dv = desc->head_dim_v ? desc->head_dim_v : desc->head_dim;
    KVL__TRY(kvl__check_head_dim(&p, "head_dim", l->dk, KVL__MAX_DIM));
    KVL__TRY(kvl__check_head_dim(&p, "head_dim_v", l->dv, KVL__MAX_DIM));
    l->num_q_heads = desc->num_q_heads;
    l->window_len = desc->window_len;
    l->soft_cap = desc->soft_cap;
    l->softmax_scale = desc->softmax_scale > 0.0f ? desc->softmax_scale
                                                  : 1.0f / sqrtf((float)l->dk);
    KVL__REQUIRE(ctx, desc->rope || !s->unrotated, KVL_BAD_ARGUMENT, "layer %d: unrotated = 1: "
                 "needs to know how keys turn: kvl_layer_desc.rope = NULL", layer);
    if (desc->rope) {
        KVL__TRY(kvl__check_rope(ctx, layer, desc->rope, l->dk));
        l->turns = (double*)kvl__list_alloc(ctx, &s->chunks, (size_t)(1 + l->dk / 2),
                                            sizeof(double));
        if (!l->turns) return kvl__statistics_no_memory(ctx);
        kvl__rope_turns(desc->rope, l->dk, l->turns);
        l->has_turns = 1;
    }
    l->heads = (kvl__head_statistics*)kvl__list_alloc(ctx, &s->chunks, (size_t)desc->num_kv_heads,
                                                      sizeof *l->heads);
    if (!l->heads) return kvl__statistics_no_memory(ctx);
    l->num_kv_heads = desc->num_kv_heads;
    for (int h = 0; h < l->num_kv_heads; ++h)
        if (!kvl__head_statistics_create(s, l, &l->heads[h])) return kvl__statistics_no_memory(ctx);
    return KVL_OK;
}

KVL__FN kvl_status kvl__statistics_build(kvl_statistics* s, const kvl_statistics_desc* desc)
{
    s->seed = desc->seed;
    s->unrotated = desc->unrotated;
    s->max_queries = desc->num_queries ? desc->num_queries : (int)KVL__USUAL_QUERIES;
    s->max_runs = desc->num_key_runs ? desc->num_key_runs : (int)KVL__USUAL_RUNS;
    s->layers = (kvl__layer_statistics*)kvl__list_alloc(s->ctx, &s->chunks,
                                                        (size_t)desc->num_layers,
                                                        sizeof *s->layers);
    if (!s->layers) return kvl__statistics_no_memory(s->ctx);
    s->num_layers = desc->num_layers;
    for (int i = 0; i < desc->num_layers; ++i)
        KVL__TRY(kvl__layer_statistics_create(s, i, &desc->layers[i]));
    return KVL_OK;
}

KVL__PUBLIC void kvl_statistics_free(kvl_statistics* stats)
{
    if (!stats) return;
    kvl__list_free(stats->ctx, &stats->chunks);
    kvl__free(stats->ctx, stats, sizeof *stats);
}

KVL__PUBLIC kvl_status kvl_statistics_create(kvl_context* ctx, const kvl_statistics_desc* desc,
                                             kvl_statistics** out)
{
    if (out) *out = NULL;
    KVL__TRY(kvl__check_context(ctx));
    KVL__REQUIRE(ctx, out && desc, KVL_BAD_ARGUMENT, "out or desc = NULL: must be given");
    KVL__REQUIRE(ctx, desc->end == 0, KVL_BAD_ARGUMENT,
                 "kvl_statistics_desc.end = %u: must be 0: zero the whole desc first", desc->end);
    KVL__REQUIRE(ctx, desc->num_layers >= 1 && desc->num_layers <= 4096 && desc->layers,
                 KVL_BAD_ARGUMENT, "num_layers = %d: must be 1 to 4096, with layers",
                 desc->num_layers);
    KVL__REQUIRE(ctx, desc->num_queries >= 0 && desc->num_queries <= KVL__MOST_QUERIES &&
                 desc->num_key_runs >= 0 && desc->num_key_runs <= KVL__MOST_RUNS, KVL_BAD_ARGUMENT,
                 "num_queries = %d, num_key_runs = %d: must be 0 to %d and 0 to %d",
                 desc->num_queries, desc->num_key_runs, KVL__MOST_QUERIES, KVL__MOST_RUNS);
    KVL__REQUIRE(ctx, desc->unrotated == 0 || desc->unrotated == 1, KVL_BAD_ARGUMENT,
                 "unrotated = %d: must be 0 or 1", desc->unrotated);
    kvl_statistics* s = (kvl_statistics*)kvl__alloc_zeroed(ctx, sizeof *s);
    if (!s) return kvl__statistics_no_memory(ctx);
    s->ctx = ctx;
    const kvl_status status = kvl__statistics_build(s, desc);
    if (status != KVL_OK) {
        kvl_statistics_free(s);
        return status;
    }
    *out = s;
    return KVL_OK;
}

// THE OUTPUT MATRIX

// a [n, n] = F F^T -> panels of F, by Cholesky.  A pivot within rounding of 0 gives zeros.
KVL__FN void kvl__factor(const double* a, int n, double* f, float* out)
{
    double most = 0.0;
    for (int i = 0; i < n; ++i) most = a[i * n + i] > most ? a[i * n + i] : most;
    memset(f, 0, (size_t)n * (size_t)n * sizeof *f);
    for (int j = 0; j < n; ++j) {
        double pivot = a[j * n + j];
        for (int k = 0; k < j; ++k) pivot -= f[j * n + k] * f[j * n + k];
        if (pivot <= 1e-12 * most) continue;
        f[j * n + j] = sqrt(pivot);
        for (int i = j + 1; i < n; ++i) {
            double x = a[i * n + j];
            for (int k = 0; k < j; ++k) x -= f[i * n + k] * f[j * n + k];
            f[i * n + j] = x / f[j * n + j];
        }
    }
    for (int j = 0; j < n; ++j)
        for (int i = 0; i < n; ++i)
            out[(j / KVL__TILE_COLS * n + i) * KVL__TILE_COLS + j % KVL__TILE_COLS] =
                (float)f[i * n + j];
}

typedef struct kvl__output_job {
    kvl__layer_statistics* l;
    const float* w;                    // [output_len, num_q_heads, dv]
    int64_t      output_len;
    double*      gram;                 // [num_q_heads, 2, dv, dv]
} kvl__output_job;

KVL__FN void kvl__output_head(void* arg, int64_t g, int thread)
{
    const kvl__output_job* job = (const kvl__output_job*)arg;
    const int n = job->l->dv;
    double* gram = job->gram + 2 * g * n * n;
    (void)thread;
    for (int64_t r = 0; r < job->output_len; ++r) {
        const float* w = job->w + (r * job->l->num_q_heads + g) * n;
        for (int i = 0; i < n; ++i)
            for (int j = 0; j < n; ++j) gram[i * n + j] += (double)w[i] * (double)w[j];
    }
    kvl__factor(gram, n, gram + n * n, job->l->factor + g * n * n);
}

KVL__PUBLIC kvl_status kvl_statistics_set_output(kvl_statistics* stats, int layer,
                                                 const float* w_o, int64_t output_len)
{
    if (!stats) return KVL_BAD_ARGUMENT;
    kvl_context* ctx = stats->ctx;
    KVL__REQUIRE(ctx, layer >= 0 && layer < stats->num_layers, KVL_BAD_ARGUMENT,
                 "layer = %d: must be 0 to %d", layer, stats->num_layers - 1);
    kvl__layer_statistics* l = &stats->layers[layer];
    KVL__REQUIRE(ctx, w_o && output_len >= 1 && l->num_kv_heads, KVL_BAD_ARGUMENT,
                 "layer %d: w_o must be given for a layer with KV heads, output_len = %lld at least"
                 " 1", layer, (long long)output_len);
    KVL__REQUIRE(ctx, l->counts[KVL__COUNT_ROWS] == 0.0, KVL_BAD_ARGUMENT,
                 "layer %d: w_o must be given before rows", layer);
    for (int64_t i = 0; i < output_len * l->num_q_heads * l->dv; ++i)
        KVL__REQUIRE(ctx, kvl__is_finite(w_o[i]), KVL_BAD_ARGUMENT,
                     "layer %d: w_o[%lld] is not finite", layer, (long long)i);
    const size_t square = (size_t)l->dv * (size_t)l->dv;
    void* scratch = NULL;
    double* gram = (double*)kvl__list_alloc(ctx, &scratch, 2 * square * (size_t)l->num_q_heads,
                                            sizeof *gram);
    if (gram && !l->factor)
        l->factor = (float*)kvl__list_alloc(ctx, &stats->chunks, square * (size_t)l->num_q_heads,
                                            sizeof *l->factor);
    if (!gram || !l->factor) {
        kvl__list_free(ctx, &scratch);
        return kvl__statistics_no_memory(ctx);
    }
    kvl__output_job job;
    job.l = l;
    job.w = w_o;
    job.output_len = output_len;
    job.gram = gram;
    kvl__parallel(ctx, l->num_q_heads, kvl__output_head, &job);
    l->has_output = 1;
    const int group = l->num_q_heads / l->num_kv_heads;
    for (int h = 0; h < l->num_kv_heads; ++h) {
        double* sum = l->heads[h].moments[KVL__MOMENT_OUTPUT];
        memset(sum, 0, square * sizeof *sum);
        for (int g = 0; g < group; ++g)
            for (size_t i = 0; i < square; ++i)
                sum[i] += gram[2 * (size_t)(h * group + g) * square + i];
    }
    kvl__list_free(ctx, &scratch);
    return KVL_OK;
}

// ADDING ROWS

// One KV head of one call.
typedef struct kvl__add_job {
    kvl_statistics*        s;
    kvl__layer_statistics* l;
    kvl__head_statistics*  head;
    kvl__tiles   tiles;
    int          kv_head, group;       // query heads of the KV head
    int64_t      num_keys, num_rows;   // of the sequence; the newest of them, which are added
    int64_t      first, padded;        // position of the first new row; num_keys in whole panels
    kvl__view    k, v, q;
    float*       keys;                 // [num_keys, dk]
    float*       values;               // [num_keys, dv]
    float*       queries;              // [group, num_rows, dk]
    float*       residuals;            // [num_keys, dk] within their groups
    int64_t      num_residuals;
    float*       key_panels;           // [padded / 16, dk, 16]
    float*       value_panels;         // [dv / 16, padded, 16]
    float*       priced;               // [group, dv / 16, padded, 16] F^T v less its mean
    float*       norms;                // [group, padded] |.|^2 of those
    float*       centres;              // [group, dv] the mean
    float*       attended;             // [group, num_rows, dv]
    float*       lse;                  // [group, num_rows]
    double*      weights[2];           // [group, num_rows] seen, output
    float*       thread_scratch;       // [threads, thread_floats]
    int64_t      thread_floats;
} kvl__add_job;

KVL__FN void kvl__load_head_row(const kvl__view* view, int64_t row, int64_t head, int dim,
                                float* out)
{
    const unsigned char* from = view->data + row * view->row_bytes + head * view->head_bytes;
    if (view->type == KVL_F32) memcpy(out, from, (size_t)dim * sizeof *out);
    else for (int i = 0; i < dim; ++i) out[i] = kvl__load_value(from, view->type, i);
}

// Values [num, dim] as panels of 16 columns.
KVL__FN void kvl__pack_columns(const float* x, int64_t num, int64_t padded, int dim, float* out)
{
    for (int c = 0; c < dim; c += KVL__TILE_COLS) {
        for (int64_t t = 0; t < num; ++t, out += KVL__TILE_COLS)
            memcpy(out, x + t * dim + c, KVL__TILE_COLS * sizeof *out);
        memset(out, 0, (size_t)((padded - num) * KVL__TILE_COLS) * sizeof *out);
        out += (padded - num) * KVL__TILE_COLS;
    }
}

// Groups whose last row is among the rows that are added; their other rows may be older.
KVL__FN void kvl__pack_residuals(kvl__add_job* job)
{
    const int d = job->l->dk;
    const int64_t from = (job->first + 1 + KVL__GROUP_ROWS - 1) / KVL__GROUP_ROWS - 1;
    job->num_residuals = 0;
    for (int64_t g = from; (g + 1) * KVL__GROUP_ROWS <= job->num_keys; ++g) {
        const float* x = job->keys + g * KVL__GROUP_ROWS * d;
        float* out = job->residuals + job->num_residuals * d;
        for (int c = 0; c < d; ++c) {
            double mean = 0.0;
            for (int r = 0; r < KVL__GROUP_ROWS; ++r) mean += (double)x[r * d + c];
            mean /= (double)KVL__GROUP_ROWS;
            for (int r = 0; r < KVL__GROUP_ROWS; ++r)
                out[r * d + c] = (float)((double)x[r * d + c] - mean);
        }
        job->num_residuals += KVL__GROUP_ROWS;
    }
}

KVL__FN void kvl__pack_keys(kvl__add_job* job)
{
    const int d = job->l->dk;
    for (int64_t t = 0; t < job->num_keys; ++t)
        kvl__load_head_row(&job->k, t, job->kv_head, d, job->keys + t * d);
    memset(job->key_panels, 0, (size_t)(job->padded * d) * sizeof(float));
    for (int64_t t = 0; t < job->num_keys; ++t) {
        float* panel = job->key_panels + t / KVL__TILE_COLS * KVL__TILE_COLS * d;
        for (int c = 0; c < d; ++c)
            panel[c * KVL__TILE_COLS + t % KVL__TILE_COLS] = job->keys[t * d + c];
    }
    kvl__pack_residuals(job);
}

// x [KVL__TILE_ROWS, dv] times F of a query head -> out, the same shape.
KVL__FN void kvl__price_rows(const kvl__add_job* job, int64_t g, const float* x, float* out)
{
    const int dv = job->l->dv;
    kvl__product p;
    p.a = x;
    p.a_stride = p.c_stride = p.n = dv;
    for (int c = 0; c < dv; c += KVL__TILE_COLS) {
        p.b = job->l->factor + ((job->kv_head * job->group + g) * dv + c) * dv;
        p.c = out + c;
        job->tiles.product(&p);
    }
}

// F^T v of every value, the mean of values taken off: |v' - o'|^2 then loses no digits to a common
// part.
KVL__FN void kvl__pack_priced(kvl__add_job* job, int64_t g)
{
    const int dv = job->l->dv;
    float* panels = job->priced + g * job->padded * dv;
    float* norms = job->norms + g * job->padded;
    float* centre = job->centres + g * dv;
    float x[KVL__TILE_ROWS * KVL__MAX_DIM], y[KVL__TILE_ROWS * KVL__MAX_DIM];
    double mean[KVL__MAX_DIM];
    memset(mean, 0, sizeof mean);
    for (int64_t t = 0; t < job->num_keys; ++t) {
        kvl__load_head_row(&job->v, t, job->kv_head, dv, x);
        for (int c = 0; c < dv; ++c) mean[c] += (double)x[c];
    }
    for (int c = 0; c < dv; ++c) centre[c] = (float)(mean[c] / (double)job->num_keys);
    memset(panels, 0, (size_t)(job->padded * dv) * sizeof *panels);
    memset(norms, 0, (size_t)job->padded * sizeof *norms);
    for (int64_t t = 0; t < job->num_keys; t += KVL__TILE_ROWS) {
        const int64_t num = kvl__min_i64(KVL__TILE_ROWS, job->num_keys - t);
        memset(x, 0, sizeof x);
        for (int64_t r = 0; r < num; ++r) {
            kvl__load_head_row(&job->v, t + r, job->kv_head, dv, x + r * dv);
            for (int c = 0; c < dv; ++c) x[r * dv + c] -= centre[c];
        }
        kvl__price_rows(job, g, x, y);
        for (int64_t r = 0; r < num; ++r) {
            norms[t + r] = (float)kvl__dot_row(y + r * dv, y + r * dv, dv);
            for (int c = 0; c < dv; c += KVL__TILE_COLS)
                memcpy(panels + c * job->padded + (t + r) * KVL__TILE_COLS, y + r * dv + c,
                       KVL__TILE_COLS * sizeof *panels);
        }
    }
}

// Task 0: keys; 1: values; then the query heads.
KVL__FN void kvl__pack_task(void* arg, int64_t task, int thread)
{
    kvl__add_job* job = (kvl__add_job*)arg;
    const int dk = job->l->dk, dv = job->l->dv;
    (void)thread;
    if (task == 0) {
        kvl__pack_keys(job);
        return;
    }
    if (task == 1) {
        for (int64_t t = 0; t < job->num_keys; ++t)
            kvl__load_head_row(&job->v, t, job->kv_head, dv, job->values + t * dv);
        kvl__pack_columns(job->values, job->num_keys, job->padded, dv, job->value_panels);
        return;
    }
    const int64_t g = task - 2;
    for (int64_t r = 0; r < job->num_rows; ++r)
        kvl__load_head_row(&job->q, r, job->kv_head * job->group + g, dk,
                           job->queries + (g * job->num_rows + r) * dk);
    if (job->l->factor) kvl__pack_priced(job, g);
}

// ATTENTION OF A TILE OF QUERY ROWS

typedef struct kvl__attention_tile {
    kvl__add_job* job;
    int64_t g, row, num_rows;          // of the call
    int64_t begin, end, stride;        // keys in whole panels: any row of the tile sees them
    float*  q;                         // [KVL__QUERY_TILE, dk] scaled
    float*  p;                         // [KVL__QUERY_TILE, stride] scores, probabilities, squares
    float*  o;                         // [KVL__QUERY_TILE, dv]
} kvl__attention_tile;

// c [QUERY_TILE, dv] = p [.., begin .. end) times panels.
KVL__FN void kvl__tile_weigh(const kvl__attention_tile* t, const float* panels)
{
    const kvl__add_job* job = t->job;
    kvl__product p;
    p.a_stride = t->stride;
    p.n = t->end - t->begin;
    p.c_stride = job->l->dv;
    for (int c = 0; c < job->l->dv; c += KVL__TILE_COLS) {
        p.b = panels + (c / KVL__TILE_COLS * job->padded + t->begin) * KVL__TILE_COLS;
        for (int r = 0; r < KVL__QUERY_TILE; r += KVL__TILE_ROWS) {
            p.a = t->p + r * t->stride;
            p.c = t->o + r * job->l->dv + c;
            job->tiles.product(&p);
        }
    }
}

KVL__FN void kvl__tile_scores(const kvl__attention_tile* t)
{
    const kvl__add_job* job = t->job;
    const int d = job->l->dk;
    kvl__product p;
    p.a_stride = d;
    p.n = d;
    p.c_stride = t->stride;
    for (int64_t key = t->begin; key < t->end; key += KVL__TILE_COLS) {
        p.b = job->key_panels + key * d;
        for (int r = 0; r < KVL__QUERY_TILE; r += KVL__TILE_ROWS) {
            p.a = t->q + r * d;
            p.c = t->p + r * t->stride + (key - t->begin);
            job->tiles.product(&p);
        }
    }
}

// Keys [*from, *to) that a row sees, counted from the tile's first.
KVL__FN void kvl__tile_visible(const kvl__attention_tile* t, int64_t r, int64_t* from, int64_t* to)
{
    const int64_t position = t->job->first + t->row + r;
    const int window = t->job->l->window_len;
    const int64_t oldest = window > 0 ? kvl__max_i64(0, position - window + 1) : 0;
    *from = oldest - t->begin;
    *to = position + 1 - t->begin;
}

// Scores of a row -> probabilities, zero where it does not see; its weight of query_seen.
KVL__FN void kvl__tile_softmax(const kvl__attention_tile* t, int64_t r)
{
    const kvl__add_job* job = t->job;
    const int64_t n = t->end - t->begin, at = t->g * job->num_rows + t->row + r;
    float* p = t->p + r * t->stride;
    int64_t from, to;
    kvl__tile_visible(t, r, &from, &to);
    if (job->l->soft_cap > 0.0f)
        for (int64_t i = from; i < to; ++i)
            p[i] = job->l->soft_cap * tanhf(p[i] / job->l->soft_cap);
    for (int64_t i = 0; i < from; ++i) p[i] = -FLT_MAX;
    for (int64_t i = to; i < n; ++i) p[i] = -FLT_MAX;
    const float top = kvl__max_row(p, n);
    const double sum = kvl__exp_row(p, n, top);
    const float scale = (float)(1.0 / sum);
    memset(p, 0, (size_t)from * sizeof *p);
    memset(p + to, 0, (size_t)(n - to) * sizeof *p);
    for (int64_t i = from; i < to; ++i) p[i] *= scale;
    job->lse[at] = (float)((double)top + log(sum));
    const int64_t first = kvl__max_i64(from, KVL__SKIP_SINK - t->begin);
    const int64_t num = to - KVL__SKIP_RECENT - first;
    const double seen = kvl__sum_row(p + first, num) - kvl__dot_row(p + first, p + first, num);
    job->weights[0][at] = seen > 0.0 ? seen : 0.0;
}

// Probabilities of a row -> their squares, where rows are quantized.
KVL__FN void kvl__tile_square(const kvl__attention_tile* t, int64_t r)
{
    float* p = t->p + r * t->stride;
    int64_t from, to;
    kvl__tile_visible(t, r, &from, &to);
    const int64_t n = t->end - t->begin;
    const int64_t first = kvl__min_i64(n, kvl__max_i64(from, KVL__SKIP_SINK - t->begin));
    const int64_t last = kvl__max_i64(first, to - KVL__SKIP_RECENT);
    memset(p, 0, (size_t)first * sizeof *p);
    memset(p + last, 0, (size_t)(n - last) * sizeof *p);
    for (int64_t i = first; i < last; ++i) p[i] *= p[i];
}

// Weights of query_output of KVL__TILE_ROWS rows from r on: t->o has their sums of p^2 v'.
KVL__FN void kvl__tile_price(const kvl__attention_tile* t, int64_t r)
{
    const kvl__add_job* job = t->job;
    const int dv = job->l->dv;
    const int64_t n = t->end - t->begin;
    const float* norms = job->norms + t->g * job->padded + t->begin;
    float x[KVL__TILE_ROWS * KVL__MAX_DIM], own[KVL__TILE_ROWS * KVL__MAX_DIM];
    const int64_t num = kvl__min_i64(KVL__TILE_ROWS, t->num_rows - r);
    memset(x, 0, sizeof x);
    for (int64_t i = 0; i < num; ++i) {
        const float* o = job->attended + (t->g * job->num_rows + t->row + r + i) * dv;
        for (int c = 0; c < dv; ++c) x[i * dv + c] = o[c] - job->centres[t->g * dv + c];
    }
    kvl__price_rows(job, t->g, x, own);
    for (int64_t i = 0; i < num; ++i) {
        const float* p = t->p + (r + i) * t->stride;
        const float* o = own + i * dv;
        const double price = kvl__dot_row(p, norms, n) -
                             2.0 * kvl__dot_row(o, t->o + (r + i) * dv, dv) +
                             kvl__dot_row(o, o, dv) * kvl__sum_row(p, n);
        job->weights[1][t->g * job->num_rows + t->row + r + i] = price > 0.0 ? price : 0.0;
    }
}

KVL__FN void kvl__attention_task(void* arg, int64_t task, int thread)
{
    kvl__add_job* job = (kvl__add_job*)arg;
    const int dk = job->l->dk, dv = job->l->dv;
    const int64_t num_tiles = (job->num_rows + KVL__QUERY_TILE - 1) / KVL__QUERY_TILE;
    kvl__attention_tile t;
    t.job = job;
    t.g = task % job->group;
    t.row = (num_tiles - 1 - task / job->group) * KVL__QUERY_TILE;     // the longest first
    t.num_rows = kvl__min_i64(KVL__QUERY_TILE, job->num_rows - t.row);
    const int64_t position = job->first + t.row, window = job->l->window_len;
    const int64_t oldest = window > 0 ? kvl__max_i64(0, position - window + 1) : 0;
    t.begin = oldest / KVL__TILE_COLS * KVL__TILE_COLS;
    t.end = (position + t.num_rows + KVL__TILE_COLS - 1) / KVL__TILE_COLS * KVL__TILE_COLS;
    t.stride = job->padded + KVL__TILE_COLS;
    t.q = job->thread_scratch + thread * job->thread_floats;
    t.o = t.q + KVL__QUERY_TILE * dk;
    t.p = t.o + KVL__QUERY_TILE * dv;
    memset(t.q, 0, (size_t)(KVL__QUERY_TILE * dk) * sizeof *t.q);
    const float* q = job->queries + (t.g * job->num_rows + t.row) * dk;
    for (int64_t i = 0; i < t.num_rows * dk; ++i) t.q[i] = q[i] * job->l->softmax_scale;
    kvl__tile_scores(&t);
    for (int64_t r = 0; r < t.num_rows; ++r) kvl__tile_softmax(&t, r);
    kvl__tile_weigh(&t, job->value_panels);
    memcpy(job->attended + (t.g * job->num_rows + t.row) * dv, t.o,
           (size_t)(t.num_rows * dv) * sizeof *t.o);
    if (!job->l->factor) return;
    for (int64_t r = 0; r < t.num_rows; ++r) kvl__tile_square(&t, r);
    kvl__tile_weigh(&t, job->priced + t.g * job->padded * dv);
    for (int64_t r = 0; r < t.num_rows; r += KVL__TILE_ROWS) kvl__tile_price(&t, r);
}

// SECOND MOMENTS

typedef struct kvl__moment_rows {
    const float*  x;                   // [num, dim]
    const double* weights;             // [num]; NULL: 1
    int64_t       num;
    int           dim;
} kvl__moment_rows;

KVL__FN kvl__moment_rows kvl__moment_rows_of(const kvl__add_job* job, int moment)
{
    const int64_t queries = job->group * job->num_rows;
    kvl__moment_rows m;
    m.dim = kvl__moments[moment].is_value ? job->l->dv : job->l->dk;
    m.weights = NULL;
    m.num = 0;
    m.x = job->queries;
    switch (moment) {
    case KVL__MOMENT_KEY: m.x = job->keys + job->first * m.dim; m.num = job->num_rows; break;
    case KVL__MOMENT_KEY_GROUP: m.x = job->residuals; m.num = job->num_residuals; break;
    case KVL__MOMENT_QUERY: m.num = queries; break;
    case KVL__MOMENT_QUERY_SEEN: m.num = queries; m.weights = job->weights[0]; break;
    case KVL__MOMENT_QUERY_OUTPUT:
        m.num = job->l->factor ? queries : 0;
        m.weights = job->weights[1];
        break;
    case KVL__MOMENT_VALUE: m.x = job->values + job->first * m.dim; m.num = job->num_rows; break;
    case KVL__MOMENT_ATTENDED: m.x = job->attended; m.num = queries; break;
    default: break;
    }
    return m;
}

// Keys turned back to position 0.
KVL__FN void kvl__add_unrotated(const kvl__add_job* job)
{
    const int d = job->l->dk;
    const double* turns = job->l->turns;
    double* sum = job->head->sums[KVL__SUM_KEY_UNROTATED];
    // With halves, pairs are (i, i + dims / 2); the channels behind them do not turn.
    const int dims = kvl__turning_dims(turns, d);
    for (int64_t r = 0; r < job->num_rows; ++r) {
        const float* k = job->keys + (job->first + r) * d;
        for (int i = 0; i < dims / 2; ++i) {
            const double angle = (double)(job->first + r) * turns[1 + i];
            const double c = cos(angle), s = sin(angle);
            int a, b;
            kvl__pair_of(turns, dims, i, &a, &b);
            sum[a] += c * (double)k[a] + s * (double)k[b];
            sum[b] += c * (double)k[b] - s * (double)k[a];
        }
        for (int c = dims; c < d; ++c) sum[c] += (double)k[c];
    }
}

// Moments of z = (cos(t a_i), i < d / 2; sin(t a_i)), t the position and a_i the angle of pair i:
// within groups of 32 positions, as key_group_outer, of keys with z and of z with itself.  With
// R_t m = B z they tell what keys without R_t m have there.
KVL__FN void kvl__add_turns(const kvl__add_job* job)
{
    const int d = job->l->dk, half = d / 2;
    const double* turns = job->l->turns;
    double z[KVL__GROUP_ROWS][KVL__MAX_DIM];
    double* of_keys = job->head->moments[KVL__MOMENT_KEY_TURN];
    double* own = job->head->moments[KVL__MOMENT_TURN];
    const int64_t from = (job->first + 1 + KVL__GROUP_ROWS - 1) / KVL__GROUP_ROWS - 1;
    for (int64_t g = 0; g < job->num_residuals / KVL__GROUP_ROWS; ++g) {
        const float* x = job->residuals + g * KVL__GROUP_ROWS * d;
        for (int i = 0; i < half; ++i) {
            double sums[2] = { 0, 0 };
            for (int r = 0; r < KVL__GROUP_ROWS; ++r) {
                const double angle = (double)((from + g) * KVL__GROUP_ROWS + r) * turns[1 + i];
                sums[0] += z[r][i] = cos(angle);
                sums[1] += z[r][half + i] = sin(angle);
            }
            for (int r = 0; r < KVL__GROUP_ROWS; ++r) {
                z[r][i] -= sums[0] / (double)KVL__GROUP_ROWS;
                z[r][half + i] -= sums[1] / (double)KVL__GROUP_ROWS;
            }
        }
        for (int r = 0; r < KVL__GROUP_ROWS; ++r)
            for (int a = 0; a < d; ++a)
                for (int b = 0; b < d; ++b) {
                    of_keys[a * d + b] += (double)x[r * d + a] * z[r][b];
                    own[a * d + b] += z[r][a] * z[r][b];
                }
    }
}

enum { KVL__MOMENT_TASKS = KVL__NUM_MOMENTS * (KVL__MAX_DIM / KVL__MOMENT_COLS) };

// A task is KVL__MOMENT_COLS rows of a moment's lower triangle; the last one is another sum.
KVL__FN void kvl__moment_task(void* arg, int64_t task, int thread)
{
    kvl__add_job* job = (kvl__add_job*)arg;
    if (task == KVL__MOMENT_TASKS) {
        if (job->s->unrotated) return;                 // key_sum is of keys before RoPE
        if (job->l->turns) kvl__add_unrotated(job);
        if (job->l->has_turns) kvl__add_turns(job);
        return;
    }
    const int moment = (int)(task % KVL__NUM_MOMENTS);
    const int first = (int)(task / KVL__NUM_MOMENTS) * KVL__MOMENT_COLS;
    const kvl__moment_rows m = kvl__moment_rows_of(job, moment);
    if (first >= m.dim) return;
    const int last = first + KVL__MOMENT_COLS < m.dim ? first + KVL__MOMENT_COLS : m.dim;
    double* x = (double*)(void*)(job->thread_scratch + thread * job->thread_floats);
    double* y = x + KVL__MOMENT_ROWS * KVL__MAX_DIM;
    kvl__update u;
    u.x_stride = last;
    u.y_stride = KVL__MOMENT_COLS;
    u.c_stride = m.dim;
    for (int64_t row = 0; row < m.num; row += KVL__MOMENT_ROWS) {
        u.n = kvl__min_i64(KVL__MOMENT_ROWS, m.num - row);
        for (int64_t r = 0; r < u.n; ++r) {
            const float* from = m.x + (row + r) * m.dim;
            const double weight = m.weights ? m.weights[row + r] : 1.0;
            for (int c = 0; c < last; ++c) x[r * last + c] = (double)from[c];
            for (int c = first; c < last; ++c)
                y[r * KVL__MOMENT_COLS + c - first] = weight * (double)from[c];
        }
        for (int a = first; a < last; a += KVL__UPDATE_ROWS) {
            for (int b = 0; b < a + KVL__UPDATE_ROWS; b += KVL__UPDATE_COLS) {
                u.y = y + a - first;
                u.x = x + b;
                u.c = job->head->moments[moment] + a * m.dim + b;
                job->tiles.update(&u);
            }
        }
    }
}

// What lies above the diagonal tiles is what lies below.
KVL__FN void kvl__mirror(double* a, int n)
{
    for (int i = 0; i < n; ++i)
        for (int j = i + 1; j < n; ++j) a[i * n + j] = a[j * n + i];
}

// SUMS AND SAMPLES

KVL__FN void kvl__add_sums(kvl__add_job* job)
{
    const int dk = job->l->dk, dv = job->l->dv;
    double* const* sums = job->head->sums;
    for (int64_t r = 0; r < job->num_rows; ++r) {
        const float* k = job->keys + (job->first + r) * dk;
        const float* v = job->values + (job->first + r) * dv;
        for (int c = 0; c < dk; ++c) sums[KVL__SUM_KEY][c] += (double)k[c];
        for (int c = 0; c < dv; ++c) sums[KVL__SUM_VALUE][c] += (double)v[c];
        double* const* most = job->head->mosts;
        for (int c = 0; c < dk; ++c) most[0][c] = fmax(most[0][c], fabs((double)k[c]));
        for (int c = 0; c < dv; ++c) most[1][c] = fmax(most[1][c], fabs((double)v[c]));
    }
    for (int64_t r = 0; r < job->group * job->num_rows; ++r)
        for (int c = 0; c < dk; ++c)
            sums[KVL__SUM_QUERY][c] += (double)job->queries[r * dk + c];
    for (int i = 0; i < 2; ++i)
        for (int64_t r = 0; r < job->group * job->num_rows; ++r)
            job->head->weights[i] += job->weights[i][r];
}

// A number from 0 to 1, of 53 bits (Steele and others, SplitMix64, as a hash of each word in turn).
KVL__FN double kvl__priority(const uint64_t* words, int num)
{
    uint64_t x = 0;
    for (int i = 0; i < num; ++i) {
        x = (x ^ words[i]) + 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        x ^= x >> 31;
    }
    return (double)(x >> 11) * 0x1p-53;
}

// Room for an item of this priority: its place, or NULL where it is not among the largest.
KVL__FN float* kvl__sample_place(kvl__sample* sample, double priority)
{
    int at = sample->num;
    if (at == sample->most) {
        at = 0;
        for (int i = 1; i < sample->num; ++i)
            if (sample->priority[i] < sample->priority[at]) at = i;
        if (sample->most == 0 || priority <= sample->priority[at]) return NULL;
    } else {
        sample->num++;
    }
    sample->priority[at] = priority;
    return sample->items + at * sample->floats;
}

KVL__FN void kvl__add_samples(kvl__add_job* job, int layer, uint64_t sequence)
{
    const int d = job->l->dk;
    uint64_t words[5] = { job->s->seed, (uint64_t)layer, sequence, 0, 0 };
    for (int g = 0; g < job->group; ++g) {
        words[4] = 1 + (uint64_t)(job->kv_head * job->group + g);
        for (int64_t r = 0; r < job->num_rows; ++r) {
            const int64_t at = g * job->num_rows + r;
            words[3] = (uint64_t)(job->first + r);
            float* item = kvl__sample_place(&job->head->queries, kvl__priority(words, 5));
            if (!item) continue;
            for (int c = 0; c < d; ++c) item[c] = job->queries[at * d + c] * job->l->softmax_scale;
            item[d] = job->lse[at];
        }
    }
    words[4] = 0;
    const int64_t from = (job->first + KVL__RUN_ROWS) / KVL__RUN_ROWS - 1;
    for (int64_t run = from; (run + 1) * KVL__RUN_ROWS <= job->num_keys; ++run) {
        words[3] = (uint64_t)run;
        kvl__sample* keys = &job->head->keys;
        float* item = kvl__sample_place(keys, kvl__priority(words, 5));
        if (!item) continue;
        memcpy(item, job->keys + run * KVL__RUN_ROWS * d, (size_t)keys->floats * sizeof *item);
        keys->first[(item - keys->items) / keys->floats] = (double)(run * KVL__RUN_ROWS);
    }
}

// KEYS BEFORE ROPE

// A word of SplitMix64.
KVL__FN uint64_t kvl__mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// Task 0: keys; else queries of head task - 1.
KVL__FN void kvl__unrotate_task(void* arg, int64_t task, int thread)
{
    kvl__add_job* job = (kvl__add_job*)arg;
    const kvl__layer_statistics* l = job->l;
    (void)thread;
    if (task == 0) {
        for (int64_t t = 0; t < job->num_keys; ++t)
            kvl__turn_row(l->turns, l->dk, t, -1, job->keys + t * l->dk);
        kvl__pack_residuals(job);
        return;
    }
    for (int64_t r = 0; r < job->num_rows; ++r) {
        const int64_t at = (task - 1) * job->num_rows + r, position = job->first + r;
        const int64_t seen = l->window_len > 0 && l->window_len <= position ? l->window_len
                                                                            : position + 1;
        const uint64_t word = kvl__mix(job->s->seed ^ (uint64_t)position * 64 ^ (uint64_t)task);
        kvl__turn_row(l->turns, l->dk, position - (int64_t)(word % (uint64_t)seen), -1,
                      job->queries + at * l->dk);
    }
}

// ONE CALL

KVL__FN int kvl__add_allocate(kvl__add_job* job, void** list)
{
    kvl_context* ctx = job->s->ctx;
    const int64_t dk = job->l->dk, dv = job->l->dv, n = job->num_keys, rows = job->num_rows;
    const int64_t group = job->group, padded = job->padded;
    const int64_t tile = KVL__QUERY_TILE * (dk + dv + padded + KVL__TILE_COLS);
    const int64_t moment = 2 * KVL__MOMENT_ROWS * (KVL__MAX_DIM + KVL__MOMENT_COLS);
    job->thread_floats = (kvl__max_i64(tile, moment) + 15) / 16 * 16;
    const int64_t floats[] = {
        n * dk, n * dv, group * rows * dk, (n + KVL__GROUP_ROWS) * dk, padded * dk, padded * dv,
        job->l->factor ? group * padded * dv : 1, group * padded, group * dv, group * rows * dv,
        group * rows, kvl_context_threads(ctx) * job->thread_floats,
    };
    float** const to[] = {
        &job->keys, &job->values, &job->queries, &job->residuals, &job->key_panels,
        &job->value_panels, &job->priced, &job->norms, &job->centres, &job->attended, &job->lse,
        &job->thread_scratch,
    };
    for (size_t i = 0; i < sizeof to / sizeof to[0]; ++i) {
        *to[i] = (float*)kvl__list_alloc(ctx, list, (size_t)floats[i], sizeof(float));
        if (!*to[i]) return 0;
    }
    for (int i = 0; i < 2; ++i) {
        job->weights[i] = (double*)kvl__list_alloc(ctx, list, (size_t)(group * rows),
                                                   sizeof(double));
        if (!job->weights[i]) return 0;
    }
    return 1;
}

KVL__FN void kvl__add_head(kvl__add_job* job, int layer, uint64_t sequence)
{
    kvl_context* ctx = job->s->ctx;
    const int64_t num_tiles = (job->num_rows + KVL__QUERY_TILE - 1) / KVL__QUERY_TILE;
    kvl__parallel(ctx, 2 + job->group, kvl__pack_task, job);
    kvl__parallel(ctx, job->group * num_tiles, kvl__attention_task, job);
    if (job->s->unrotated) kvl__parallel(ctx, 1 + job->group, kvl__unrotate_task, job);
    kvl__parallel(ctx, KVL__MOMENT_TASKS + 1, kvl__moment_task, job);
    for (int i = 0; i < KVL__NUM_MOMENTS; ++i)
        if (i != KVL__MOMENT_KEY_TURN)
            kvl__mirror(job->head->moments[i], kvl__moments[i].is_value ? job->l->dv : job->l->dk);
    kvl__add_sums(job);
    kvl__add_samples(job, layer, sequence);
}

KVL__FN kvl_status kvl__check_finite_rows(kvl_context* ctx, const char* name, const kvl__view* view,
                                          int64_t num_rows, int num_heads, int dim)
{
    float x[KVL__MAX_DIM];
    for (int64_t r = 0; r < num_rows; ++r) {
        for (int h = 0; h < num_heads; ++h) {
            kvl__load_head_row(view, r, h, dim, x);
            for (int c = 0; c < dim; ++c)
                KVL__REQUIRE(ctx, kvl__is_finite(x[c]), KVL_BAD_ARGUMENT, "%s: row %lld, head %d, "
                             "channel %d is not finite", name, (long long)r, h, c);
        }
    }
    return KVL_OK;
}

KVL__FN kvl_status kvl__check_statistics_rows(kvl_statistics* s, const kvl_statistics_rows* rows,
                                              kvl__add_job* job)
{
    kvl_context* ctx = s->ctx;
    KVL__REQUIRE(ctx, rows, KVL_BAD_ARGUMENT, "rows = NULL: must be given");
    KVL__REQUIRE(ctx, rows->end == 0, KVL_BAD_ARGUMENT,
                 "kvl_statistics_rows.end = %u: must be 0: zero the whole struct first", rows->end);
    KVL__REQUIRE(ctx, rows->layer >= 0 && rows->layer < s->num_layers, KVL_BAD_ARGUMENT,
                 "layer = %d: must be 0 to %d", rows->layer, s->num_layers - 1);
    kvl__layer_statistics* l = &s->layers[rows->layer];
    KVL__REQUIRE(ctx, l->num_kv_heads, KVL_BAD_ARGUMENT, "layer %d has no KV heads", rows->layer);
    // Files have what the output matrix made of earlier rows, and not the matrix.
    KVL__REQUIRE(ctx, !l->has_output || l->factor, KVL_BAD_ARGUMENT,
                 "layer %d: query_output_outer: the statistics were loaded, and rows need the "
                 "output matrix for it: add them to statistics of their own, with "
                 "kvl_statistics_set_output, and merge those", rows->layer);
    KVL__REQUIRE(ctx, rows->num_rows >= 1 && rows->num_rows <= rows->num_keys &&
                 rows->num_keys <= 1 << 24, KVL_BAD_ARGUMENT, "num_rows = %lld, num_keys = %lld: "
                 "must be at least 1 and at most num_keys, which is at most %d",
                 (long long)rows->num_rows, (long long)rows->num_keys, 1 << 24);
    job->s = s;
    job->l = l;
    job->group = l->num_q_heads / l->num_kv_heads;
    job->num_keys = rows->num_keys;
    job->num_rows = rows->num_rows;
    job->first = rows->num_keys - rows->num_rows;
    job->padded = (rows->num_keys + KVL__TILE_COLS - 1) / KVL__TILE_COLS * KVL__TILE_COLS;
    job->tiles = kvl__tiles_of(ctx);
    KVL__TRY(kvl__view_of(ctx, "k", &rows->k, l->num_kv_heads, l->dk, &job->k));
    KVL__TRY(kvl__view_of(ctx, "v", &rows->v, l->num_kv_heads, l->dv, &job->v));
    KVL__TRY(kvl__view_of(ctx, "q", &rows->q, l->num_q_heads, l->dk, &job->q));
    KVL__TRY(kvl__check_finite_rows(ctx, "k", &job->k, job->num_keys, l->num_kv_heads, l->dk));
    KVL__TRY(kvl__check_finite_rows(ctx, "v", &job->v, job->num_keys, l->num_kv_heads, l->dv));
    return kvl__check_finite_rows(ctx, "q", &job->q, job->num_rows, l->num_q_heads, l->dk);
}

KVL__PUBLIC kvl_status kvl_statistics_add(kvl_statistics* stats, const kvl_statistics_rows* rows)
{
    if (!stats) return KVL_BAD_ARGUMENT;
    kvl__add_job job;
    void* list = NULL;
    memset(&job, 0, sizeof job);
    KVL__TRY(kvl__check_statistics_rows(stats, rows, &job));
    if (!kvl__add_allocate(&job, &list)) {
        kvl__list_free(stats->ctx, &list);
        return kvl__statistics_no_memory(stats->ctx);
    }
    for (int h = 0; h < job.l->num_kv_heads; ++h) {
        job.kv_head = h;
        job.head = &job.l->heads[h];
        kvl__add_head(&job, rows->layer, rows->sequence);
    }
    job.l->counts[KVL__COUNT_ROWS] += (double)job.num_rows;
    job.l->counts[KVL__COUNT_GROUPED] += (double)job.num_residuals;
    job.l->counts[KVL__COUNT_QUERIES] += (double)job.num_rows;
    kvl__list_free(stats->ctx, &list);
    return KVL_OK;
}

// MERGING

KVL__FN void kvl__sample_merge(kvl__sample* into, const kvl__sample* from)
{
    for (int i = 0; i < from->num; ++i) {
        float* item = kvl__sample_place(into, from->priority[i]);
        if (!item) continue;
        memcpy(item, from->items + i * from->floats, (size_t)from->floats * sizeof *item);
        into->first[(item - into->items) / into->floats] = from->first ? from->first[i] : -1.0;
    }
}

// Statistics of one model's shapes.
KVL__FN kvl_status kvl__check_alike(const kvl_statistics* a, const kvl_statistics* b)
{
    kvl_context* ctx = a->ctx;
    KVL__REQUIRE(ctx, a->num_layers == b->num_layers, KVL_BAD_ARGUMENT,
                 "statistics of %d layers and of %d", a->num_layers, b->num_layers);
    KVL__REQUIRE(ctx, a->unrotated == b->unrotated, KVL_BAD_ARGUMENT, "unrotated = %d and %d: "
                 "statistics of keys before RoPE and after it do not add up", a->unrotated,
                 b->unrotated);
    for (int i = 0; i < a->num_layers; ++i) {
        const kvl__layer_statistics *x = &a->layers[i], *y = &b->layers[i];
        KVL__REQUIRE(ctx, x->num_q_heads == y->num_q_heads && x->num_kv_heads == y->num_kv_heads &&
                     x->dk == y->dk && x->dv == y->dv, KVL_BAD_ARGUMENT,
                     "layer %d: statistics of %d / %d heads of %d / %d channels, and of %d / %d of "
                     "%d / %d", i, x->num_q_heads, x->num_kv_heads, x->dk, x->dv, y->num_q_heads,
                     y->num_kv_heads, y->dk, y->dv);
        KVL__REQUIRE(ctx, x->softmax_scale == y->softmax_scale && x->soft_cap == y->soft_cap &&
                     x->window_len == y->window_len && x->has_output == y->has_output &&
                     !x->turns == !y->turns && (!x->turns ||
                     memcmp(x->turns, y->turns, (size_t)(1 + x->dk / 2) * sizeof(double)) == 0),
                     KVL_BAD_ARGUMENT, "layer %d: statistics with another softmax_scale, soft_cap, "
                     "window_len, rope, or with an output matrix and without", i);
    }
    return KVL_OK;
}

KVL__PUBLIC kvl_status kvl_statistics_merge(kvl_statistics* into, const kvl_statistics* from)
{
    if (!into) return KVL_BAD_ARGUMENT;
    KVL__REQUIRE(into->ctx, from && from != into, KVL_BAD_ARGUMENT,
                 "from = NULL or into: must be other statistics");
    KVL__TRY(kvl__check_alike(into, from));
    for (int layer = 0; layer < into->num_layers; ++layer) {
        kvl__layer_statistics* a = &into->layers[layer];
        const kvl__layer_statistics* b = &from->layers[layer];
        for (int i = 0; i < KVL__NUM_COUNTS; ++i) a->counts[i] += b->counts[i];
        a->has_turns = a->has_turns && b->has_turns;
        a->lacks_mosts = a->lacks_mosts || b->lacks_mosts;
        for (int h = 0; h < a->num_kv_heads; ++h) {
            for (int i = 0; i < KVL__NUM_SUMS; ++i)
                for (int c = 0; c < (kvl__sums[i].is_value ? a->dv : a->dk); ++c)
                    a->heads[h].sums[i][c] += b->heads[h].sums[i][c];
            for (int i = 0; i < 2; ++i)
                for (int c = 0; c < (kvl__mosts[i].is_value ? a->dv : a->dk); ++c)
                    a->heads[h].mosts[i][c] = fmax(a->heads[h].mosts[i][c],
                                                   b->heads[h].mosts[i][c]);
            for (int i = 0; i < KVL__NUM_MOMENTS; ++i) {
                const int n = kvl__moments[i].is_value ? a->dv : a->dk;
                if (i == KVL__MOMENT_OUTPUT) continue;         // of the model, not of rows
                for (int c = 0; c < n * n; ++c)
                    a->heads[h].moments[i][c] += b->heads[h].moments[i][c];
            }
            for (int i = 0; i < 2; ++i) a->heads[h].weights[i] += b->heads[h].weights[i];
            kvl__sample_merge(&a->heads[h].queries, &b->heads[h].queries);
            kvl__sample_merge(&a->heads[h].keys, &b->heads[h].keys);
        }
    }
    return KVL_OK;
}

// READING

KVL__PUBLIC const double* kvl_statistics_get(const kvl_statistics* stats, int layer, int kv_head,
                                             const char* name, int64_t* num)
{
    if (num) *num = 0;
    if (!stats || !name || layer < 0 || layer >= stats->num_layers) return NULL;
    const kvl__layer_statistics* l = &stats->layers[layer];
    if (kv_head < 0 || kv_head >= l->num_kv_heads) return NULL;
    const kvl__head_statistics* h = &l->heads[kv_head];
    const double* found = NULL;
    int64_t count = 1;
    for (int i = 0; i < KVL__NUM_COUNTS; ++i)
        if (strcmp(name, kvl__count_names[i]) == 0) found = &l->counts[i];
    for (int i = 0; i < 2; ++i)
        if (strcmp(name, kvl__weight_names[i]) == 0 && (i == 0 || l->has_output))
            found = &h->weights[i];
    for (int i = 0; i < KVL__NUM_SUMS; ++i) {
        if (strcmp(name, kvl__sums[i].name) != 0) continue;
        if (i == KVL__SUM_KEY_UNROTATED && !l->turns) return NULL;
        count = kvl__sums[i].is_value ? l->dv : l->dk;
        found = h->sums[i];
    }
    for (int i = 0; i < 2; ++i) {
        if (strcmp(name, kvl__mosts[i].name) != 0) continue;
        if (l->lacks_mosts) return NULL;
        count = kvl__mosts[i].is_value ? l->dv : l->dk;
        found = h->mosts[i];
    }
    for (int i = 0; i < KVL__NUM_MOMENTS; ++i) {
        if (strcmp(name, kvl__moments[i].name) != 0) continue;
        if (!kvl__moment_is_known(l, i)) return NULL;
        count = kvl__moments[i].is_value ? l->dv * l->dv : l->dk * l->dk;
        found = h->moments[i];
    }
    if (num && found) *num = count;
    return found;
}

KVL__PUBLIC const float* kvl_statistics_sample(const kvl_statistics* stats, int layer, int kv_head,
                                               int keys, int* num)
{
    if (num) *num = 0;
    if (!stats || layer < 0 || layer >= stats->num_layers) return NULL;
    const kvl__layer_statistics* l = &stats->layers[layer];
    if (kv_head < 0 || kv_head >= l->num_kv_heads) return NULL;
    const kvl__sample* sample = keys ? &l->heads[kv_head].keys : &l->heads[kv_head].queries;
    if (num) *num = sample->num;
    return sample->items;
}

#endif
