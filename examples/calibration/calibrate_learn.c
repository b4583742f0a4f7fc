// calibrate_learn.c -- matrices of `file` from sampled rows.

#include "calibrate_learn.h"

#include "calibrate_side.h"
#include "transform_basis.h"
#include "transform_learn.h"
#include "transform_matrix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 256, STEPS_A_CHANNEL = 8 };

// One table: all heads, each in a thread of its own.
typedef struct job {
    const kvl_derive_args* a;
    const calibrate_learn* learn;
    float* out;                        // [num_kv_heads, dim, dim] F
    struct head { learn_result result; char message[128]; } *heads;
} job;

static const double* moment_of(const kvl_derive_args* a, int head, const char* name)
{
    int64_t num = 0;
    const double* m = kvl_statistics_get(a->stats, a->layer, head, name, &num);
    return m && num == (int64_t)a->head_dim * a->head_dim ? m : NULL;
}

// Sampled keys, spread over all runs, or drawn values. Returns their number; 0: there are none.
static int find_rows(const kvl_derive_args* a, int head, float* rows)
{
    const int n = a->head_dim;
    if (a->is_value) {
        const double* moment = moment_of(a, head, "value_outer");
        int64_t num = 0;
        const double* count = kvl_statistics_get(a->stats, a->layer, head, "rows", &num);
        const uint64_t seed = (uint64_t)(a->layer * 1024 + head + 1);
        return moment && count && num == 1 && count[0] > 0 &&
               transform_draw(n, moment, seed, MOST_ROWS, rows) ? MOST_ROWS : 0;
    }
    int runs = 0;
    const float* sample = kvl_statistics_sample(a->stats, a->layer, head, 1, &runs);
    const int has = 128 * runs, num = has < MOST_ROWS ? has : MOST_ROWS;
    for (int i = 0; i < num; ++i)
        memcpy(rows + i * n, sample + (int64_t)i * has / num * n, (size_t)n * sizeof *rows);
    return num;
}

// T to begin with, and the price: damped as bases are, so that both are invertible.
static int start(const job* j, int head, double* t, double* price, char* message, size_t size)
{
    const kvl_derive_args* a = j->a;
    const int n = a->head_dim;
    transform_basis basis;
    transform_desc desc;
    memset(&desc, 0, sizeof desc);
    double* identity = square_new(n);
    if (!identity) return 0;
    for (int i = 0; i < n; ++i) identity[i * n + i] = 1;
    desc.kind = TRANSFORM_BALANCE;
    desc.dim = n;
    desc.moment = moment_of(a, head, a->is_value ? "value_outer" : "key_outer");
    desc.price = moment_of(a, head, a->is_value ? "output_outer" : "query_outer");
    if (!desc.moment) desc.moment = identity;
    if (!desc.price) desc.price = identity;
    const int ok = transform_make(&desc, &basis, message, size);
    if (ok) {
        // A = T^T B T
        double* back = square_new(n);
        if (back) {
            square_transpose(n, basis.forward, back);
            square_sandwich(n, back, basis.price, price);
        }
        if (j->learn->what == CALIBRATE_LEARN_AFFINE) square_copy(n, basis.forward, t);
        else square_hadamard(n, t);
        free(back);
        transform_basis_free(&basis);
    }
    free(identity);
    return ok;
}

static learn_grid grid_of(const kvl_derive_args* a)
{
    static const float rms_steps[] = { 1.596f, 0.9957f, 0.586f, 0.3352f, 0.1881f, 0.104f, 0,
                                       0.0305f };
    const int n = a->head_dim, bits = calibrate_number_of(a->side, "b");
    const int clip = calibrate_number_of(a->side, "clip");
    const int group = calibrate_number_of(a->side, "g");
    learn_grid grid = { bits >= 1 && bits <= 8 ? bits : 8, n, 0, 0 };
    if (group > 0 && n % group == 0 && !calibrate_has_word(a->side, "per_channel"))
        grid.group_size = group;
    if (clip > 0 && clip < 100) grid.clipped = n - 1 - n * clip / 100;
    if (grid.clipped > 32) grid.clipped = 32;
    if (calibrate_has_word(a->side, "rms")) grid.rms_step = rms_steps[grid.bits - 1];
    return grid;
}

static void learn_head(void* arg, int64_t head)
{
    const job* j = arg;
    const kvl_derive_args* a = j->a;
    const int n = a->head_dim;
    struct head* h = &j->heads[head];
    learn_desc desc;
    memset(&desc, 0, sizeof desc);
    float* rows = calloc((size_t)(MOST_ROWS * n), sizeof *rows);
    double *t = square_new(n), *price = square_new(n), *out = square_new(n);
    int ok = rows && t && price && out;
    if (ok) {
        desc.num_rows = find_rows(a, (int)head, rows);
        ok = desc.num_rows > 0;
        if (!ok) snprintf(h->message, sizeof h->message, "the statistics have no sampled rows");
    }
    ok = ok && start(j, (int)head, t, price, h->message, sizeof h->message);
    if (ok) {
        desc.dim = n;
        desc.rows = rows;
        desc.price = price;
        desc.start = t;
        desc.affine = j->learn->what == CALIBRATE_LEARN_AFFINE;
        desc.steps = j->learn->steps > 0 ? j->learn->steps : STEPS_A_CHANNEL * n;
        desc.seed = (uint64_t)(a->layer * 2048 + a->is_value * 1024 + (int)head);
        desc.grid = grid_of(a);
        ok = transform_learn(&desc, out, &h->result);
    }
    if (!ok && !h->message[0]) snprintf(h->message, sizeof h->message, "out of memory");
    // F = T^T
    for (int i = 0; ok && i < n * n; ++i)
        j->out[head * n * n + i] = (float)out[i % n * n + i / n];
    free(rows);
    free(t);
    free(price);
    free(out);
}

static kvl_status learn_heads(const kvl_derive_args* a, calibrate_learn* learn, float* out)
{
    job j = { a, learn, out, calloc((size_t)a->num_kv_heads, sizeof *j.heads) };
    if (!j.heads) return KVL_NO_MEMORY;
    kvl_parallel_for(learn->ctx, a->num_kv_heads, learn_head, &j);
    kvl_status status = KVL_OK;
    for (int h = 0; h < a->num_kv_heads && status == KVL_OK; ++h) {
        learn->before += j.heads[h].result.before;
        learn->after += j.heads[h].result.after;
        if (!j.heads[h].message[0]) continue;
        snprintf(a->message, a->message_bytes, "head %d: %s", h, j.heads[h].message);
        status = KVL_BAD_ARGUMENT;
    }
    free(j.heads);
    return status;
}

// Q = F^-T of a file_forward that is there.
static kvl_status invert_heads(const kvl_derive_args* a, const float* forward, float* out)
{
    const int n = a->head_dim;
    transform_basis basis;
    double* t = square_new(n);
    if (!t) return KVL_NO_MEMORY;
    int ok = 1;
    for (int h = 0; h < a->num_kv_heads && ok; ++h) {
        char message[256] = "";
        for (int i = 0; i < n * n; ++i) t[i] = (double)forward[h * n * n + i % n * n + i / n];
        ok = transform_adopt(n, t, &basis, message, sizeof message);
        if (!ok) {
            snprintf(a->message, a->message_bytes, "head %d: %s", h, message);
            break;
        }
        for (int i = 0; i < n * n; ++i)
            out[h * n * n + i] = (float)basis.inverse_transpose[i % n * n + i / n];
        transform_basis_free(&basis);
    }
    free(t);
    return ok ? KVL_OK : KVL_BAD_ARGUMENT;
}

kvl_status calibrate_learned(const kvl_derive_args* a, float* out)
{
    int64_t num = 0;
    const float* forward = kvl_calibration_table(a->calibration, a->layer, a->is_value,
                                                 "file_forward", &num);
    if (strcmp(a->table, "file_query") == 0 && forward &&
        num == (int64_t)a->num_kv_heads * a->head_dim * a->head_dim)
        return invert_heads(a, forward, out);
    calibrate_learn* learn = (calibrate_learn*)a->user;
    if (learn && learn->what != CALIBRATE_LEARN_NOTHING && strcmp(a->table, "file_forward") == 0)
        return learn_heads(a, learn, out);
    snprintf(a->message, a->message_bytes, "is a matrix of yours: tools/file_basis.py puts it into "
             "a calibration file; --learn rotation or --learn affine searches for one");
    return KVL_BAD_ARGUMENT;
}
