// transform_predict.c -- normal equations of each layer's inputs, and rows through a codec.

#include "transform_predict.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// LAPACK's own interface: matrices by columns, every argument an address, lengths of texts last.
void dposv_(const char* uplo, const int* n, const int* nrhs, double* a, const int* lda, double* b,
            const int* ldb, int* info, size_t);

enum { CHUNK = 256, SPEC = 512 };

static const double ridge = 1e-3;      // of the mean square of an input, for each row

// One side of one layer.
typedef struct fit {
    transform_predict*     p;
    const kvl_derive_args* a;
    const kvl_layer_desc*  layer;
    const float*           rows;       // as they come
    int     number, side, heads, dim, dk, dv, sink;
    int     n, m;                      // inputs, outputs: channels of all heads
    double* x;                         // [CHUNK, n] a row's inputs
    double* y;                         // [CHUNK, m] and what it has
    double* gram;                      // [n, n]
    double* w;                         // [m, n]
    float*  predicted;                 // [num_rows, m]
    float*  left;                      // [num_rows, m], then what comes back of it
} fit;

static kvl_status fail(const fit* f, kvl_status status, const char* what)
{
    snprintf(f->a->message, f->a->message_bytes, "%s", what);
    return status;
}

// x [head_dim] turned back from a position.
static void turn_back(const kvl_rope* rope, int head_dim, int64_t position, double* x)
{
    const int dims = rope->dims ? rope->dims : head_dim;
    const double base = rope->base > 0 ? rope->base : 10000, scale = rope->scale;
    for (int i = 0; i < dims / 2; ++i) {
        const double factor = rope->factors ? (double)rope->factors[i] : 1;
        const double turn = (scale > 0 ? scale : 1) * pow(base, -2.0 * i / dims) / factor;
        const double c = cos((double)position * turn), s = sin((double)position * turn);
        double* a = x + (rope->split_halves ? i : 2 * i);
        double* b = x + (rope->split_halves ? i + dims / 2 : 2 * i + 1);
        const double first = *a * c + *b * s;
        *b = *b * c - *a * s;
        *a = first;
    }
}

// Rows [first, first + num) and their inputs.
static void load(const fit* f, int64_t first, int num)
{
    const int64_t keys = f->heads * f->dk, values = f->heads * f->dv;
    for (int r = 0; r < num; ++r) {
        double *x = f->x + r * f->n, *y = f->y + r * f->m;
        for (int64_t i = 0; i < keys; ++i)
            x[i] = (double)f->p->restored[0][(first + r) * keys + i];
        for (int64_t i = 0; f->side && i < values; ++i)
            x[keys + i] = (double)f->p->restored[1][(first + r) * values + i];
        x[f->n - 1] = 1;
        for (int i = 0; i < f->m; ++i) y[i] = (double)f->rows[(first + r) * f->m + i];
        for (int h = 0; f->side == 0 && f->layer->rope && h < f->heads; ++h)
            turn_back(f->layer->rope, f->dk, f->p->positions[first + r], y + h * f->dk);
    }
}

static int chunk_at(const fit* f, int64_t first)
{
    return f->p->num_rows - first < CHUNK ? (int)(f->p->num_rows - first) : CHUNK;
}

// Sums over rows that are not kept in 16 bits, and the table that they ask for.
static kvl_status solve(const fit* f)
{
    const int n = f->n, m = f->m;
    double trace = 0, count = 0;
    int info = 0;
    for (int64_t first = 0; first < f->p->num_rows; first += CHUNK) {
        const int num = chunk_at(f, first);
        load(f, first, num);
        for (int r = 0; r < num; ++r) {
            if (f->p->positions[first + r] >= f->sink) {
                ++count;
                continue;
            }
            memset(f->x + r * n, 0, (size_t)n * sizeof *f->x);
            memset(f->y + r * m, 0, (size_t)m * sizeof *f->y);
        }
        cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, n, num, 1, f->x, n, 1, f->gram, n);
        cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, m, n, num, 1, f->y, m, f->x, n, 1,
                    f->w, n);
    }
    if (!(count > 0)) return fail(f, KVL_UNSUPPORTED, "there are no rows beyond the sink");
    for (int i = 0; i < n - 1; ++i) trace += f->gram[(int64_t)i * n + i];
    // The constant is not held back; what no layer says counts nothing.
    for (int i = 0; i < n - 1; ++i)
        f->gram[(int64_t)i * n + i] += trace > 0 ? ridge * trace / (n - 1) : 1;
    dposv_("L", &n, &m, f->gram, &n, f->w, &n, &info, 1);
    return info == 0 ? KVL_OK : fail(f, KVL_UNSUPPORTED, "LAPACK cannot solve for a table: dposv");
}

// As floats, which is what the cache will have.
static void keep_table(const fit* f)
{
    for (int o = 0; o < f->m; ++o)
        for (int i = 0; i < f->n; ++i) {
            const float w = (float)f->w[(int64_t)o * f->n + i];
            f->p->table[((int64_t)(o / f->dim) * f->n + i) * f->dim + o % f->dim] = w;
            f->w[(int64_t)o * f->n + i] = (double)w;
        }
}

static void predict(const fit* f)
{
    double* p = f->gram;                   // which solve has used up: [CHUNK, m]
    for (int64_t first = 0; first < f->p->num_rows; first += CHUNK) {
        const int num = chunk_at(f, first);
        load(f, first, num);
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, num, f->m, f->n, 1, f->x, f->n, f->w,
                    f->n, 0, p, f->m);
        for (int64_t i = 0; i < (int64_t)num * f->m; ++i) {
            f->predicted[first * f->m + i] = (float)p[i];
            f->left[first * f->m + i] = (float)f->y[i] - (float)p[i];
        }
    }
}

// The layer's spec for rows from which the prediction is taken already, all of which are encoded.
static kvl_status spec_of_rest(const fit* f, char spec[SPEC])
{
    static const char* const others[] = { "k.shift=", "v.shift=", "k.place=", "sink=", "recent=",
                                          "chunk=", "page=" };
    kvl_layer_desc layer = *f->layer;
    kvl_layer_info info;
    if (!layer.spec) layer.spec = f->a->desc->cache->spec;
    const kvl_status status = kvl_spec_check(f->p->ctx, &layer, &info);
    if (status != KVL_OK) return fail(f, status, kvl_context_message(f->p->ctx));
    const char* at = info.spec + strcspn(info.spec, ":");
    int used = snprintf(spec, SPEC, "%.*s:", (int)(at - info.spec), info.spec);
    for (at += *at == ':'; *at; at += strspn(at, ",")) {
        const int length = (int)strcspn(at, ",");
        int kept = 1;
        for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i)
            kept = kept && strncmp(at, others[i], strlen(others[i])) != 0;
        if (kept) used += snprintf(spec + used, (size_t)(SPEC - used), "%.*s,", length, at);
        at += length;
    }
    snprintf(spec + used, (size_t)(SPEC - used),
             "k.shift=none,v.shift=none,k.place=post_rope,sink=0,recent=0");
    return KVL_OK;
}

// left becomes what the side's codec makes of it: the other side's rows are zeros.
static kvl_status pass_codec(const fit* f)
{
    char spec[SPEC];
    const int other = f->heads * (f->side ? f->dk : f->dv);
    const int32_t num = (int32_t)f->p->num_rows;
    kvl_layer_desc layer = *f->layer;
    kvl_cache_desc desc;
    kvl_append_desc a;
    kvl_rows out;
    kvl_seq seq = 0;
    kvl_cache* cache = NULL;
    float* zeros = (float*)calloc((size_t)num * (size_t)other, sizeof *zeros);
    kvl_status status = zeros ? spec_of_rest(f, spec) : fail(f, KVL_NO_MEMORY, "out of memory");
    memset(&desc, 0, sizeof desc);
    memset(&a, 0, sizeof a);
    memset(&out, 0, sizeof out);
    layer.spec = spec;
    layer.window_len = 0;
    desc.num_layers = 1;
    desc.layers = &layer;
    a.num_seqs = 1;
    a.seqs = &seq;
    a.num_rows = &num;
    a.k.data = f->side ? zeros : f->left;
    a.v.data = f->side ? f->left : zeros;
    out.data = f->left;
    if (status == KVL_OK) {
        status = kvl_cache_create(f->p->ctx, &desc, &cache);
        if (status == KVL_OK) status = kvl_seq_create(cache, &seq);
        if (status == KVL_OK) status = kvl_append(cache, &a);
        if (status == KVL_OK)
            status = kvl_restore(cache, 0, seq, 0, num, f->side ? NULL : &out,
                                 f->side ? &out : NULL);
        if (status != KVL_OK) fail(f, status, kvl_context_message(f->p->ctx));
    }
    kvl_cache_free(cache);
    free(zeros);
    return status;
}

static int allocate(fit* f)
{
    const size_t rows = (size_t)f->p->num_rows, n = (size_t)f->n, m = (size_t)f->m;
    const size_t keys = rows * (size_t)(f->heads * f->dk), square = n > CHUNK ? n : CHUNK;
    const size_t values = rows * (size_t)(f->heads * f->dv), width = n > m ? n : m;
    f->x = (double*)malloc(CHUNK * n * sizeof *f->x);
    f->y = (double*)malloc(CHUNK * m * sizeof *f->y);
    f->gram = (double*)calloc(square * width, sizeof *f->gram);
    f->w = (double*)calloc(n * m, sizeof *f->w);
    f->predicted = (float*)malloc(rows * m * sizeof(float));
    f->left = (float*)malloc(rows * m * sizeof(float));
    free(f->p->table);
    f->p->width[0] = f->heads * f->dk;
    f->p->width[1] = f->heads * f->dv;
    f->p->table = (float*)malloc(n * m * sizeof(float));
    if (!f->p->restored[0]) f->p->restored[0] = (float*)calloc(keys, sizeof(float));
    if (!f->p->restored[1]) f->p->restored[1] = (float*)calloc(values, sizeof(float));
    return f->x && f->y && f->gram && f->w && f->predicted && f->left && f->p->table &&
           f->p->restored[0] && f->p->restored[1];
}

static kvl_status run(fit* f)
{
    float* to = f->p->restored[f->side];
    kvl_status status = solve(f);
    if (status != KVL_OK) return status;
    keep_table(f);
    predict(f);
    status = pass_codec(f);
    for (int64_t i = 0; status == KVL_OK && i < f->p->num_rows * f->m; ++i)
        to[i] = f->predicted[i] + f->left[i];
    return status;
}

// Fits one side of a layer, and restores its rows.
static kvl_status fit_side(transform_predict* p, const kvl_derive_args* a, int number, int side)
{
    kvl_layer_info info;
    fit f;
    memset(&f, 0, sizeof f);
    f.p = p;
    f.a = a;
    f.layer = &a->desc->cache->layers[number];
    if (f.layer->num_kv_heads == 0) return KVL_OK;
    kvl_layer_desc layer = *f.layer;
    if (!layer.spec) layer.spec = a->desc->cache->spec;
    kvl_status status = kvl_spec_check(p->ctx, &layer, &info);
    if (status != KVL_OK) return fail(&f, status, kvl_context_message(p->ctx));
    f.sink = info.sink_len;
    f.number = number;
    f.side = side;
    f.heads = f.layer->num_kv_heads;
    f.dk = f.layer->head_dim;
    f.dv = f.layer->head_dim_v ? f.layer->head_dim_v : f.dk;
    f.dim = side ? f.dv : f.dk;
    f.n = f.heads * (f.dk + (side ? f.dv : 0)) + 1;
    f.m = f.heads * f.dim;
    f.rows = p->rows[side][number];
    if (p->restored[0] && (p->width[0] != f.heads * f.dk || p->width[1] != f.heads * f.dv))
        return fail(&f, KVL_UNSUPPORTED, "the layer below has other heads");
    status = allocate(&f) ? run(&f) : fail(&f, KVL_NO_MEMORY, "out of memory: rows of all layers");
    free(f.x);
    free(f.y);
    free(f.gram);
    free(f.w);
    free(f.predicted);
    free(f.left);
    return status;
}

void transform_predict_end(transform_predict* p)
{
    for (int side = 0; side < 2; ++side) free(p->restored[side]);
    free(p->table);
    p->restored[0] = p->restored[1] = p->table = NULL;
    p->next = 0;
}

kvl_status transform_predicted(const kvl_derive_args* args, float* out)
{
    transform_predict* p = (transform_predict*)args->user;
    const int wanted = 2 * args->layer + args->is_value;
    if (wanted < p->next) transform_predict_end(p);
    for (; p->next <= wanted; ++p->next) {
        const kvl_status status = fit_side(p, args, p->next / 2, p->next % 2);
        if (status != KVL_OK) return status;
    }
    memcpy(out, p->table, (size_t)(args->num_kv_heads * args->shape[0] * args->shape[1]) *
                          sizeof *out);
    return KVL_OK;
}
