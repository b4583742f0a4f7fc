// transform_learn.c -- coordinate descent over Cayley rotations of planes.

#include "transform_learn.h"

#include "transform_matrix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CLIPPED = 32 };

typedef struct work {
    const learn_desc* desc;
    float*  rows;                      // [num_rows, dim] y
    float*  error;                     // [dim] of one row
    float*  moment;                    // [dim, dim] sum of e e^T
    double* price;                     // [dim, dim] B
    double* forward;                   // [dim, dim] T
    uint64_t state;
} work;

// A change of two channels: y_i, y_j become a y_i + b y_j and c y_i + d y_j.
typedef struct change {
    int    i, j;
    double a, b, c, d;
} change;

static uint64_t next_number(uint64_t* state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

// ROUNDING

// The magnitude that the `clipped` largest of a row are brought to.
static float find_bound(const float* y, int dim, int clipped)
{
    float top[MOST_CLIPPED + 1];
    int num = 0;
    for (int i = 0; i < dim; ++i) {
        const float x = fabsf(y[i]);
        if (num > clipped && x <= top[clipped]) continue;
        int at = num <= clipped ? num++ : clipped;
        for (; at > 0 && top[at - 1] < x; --at) top[at] = top[at - 1];
        top[at] = x;
    }
    return top[clipped];
}

static void round_affine(const float* y, int count, float bound, int code_max, float* error)
{
    float lo = y[0], hi = y[0];
    for (int i = 1; i < count; ++i) {
        lo = y[i] < lo ? y[i] : lo;
        hi = y[i] > hi ? y[i] : hi;
    }
    lo = lo < -bound ? -bound : lo;
    hi = hi > bound ? bound : hi;
    const float scale = (hi - lo) / (float)code_max, inverse = hi > lo ? 1.0f / scale : 0.0f;
    for (int i = 0; i < count; ++i) {
        float code = floorf((y[i] - lo) * inverse + 0.5f);
        code = code < 0.0f ? 0.0f : code > (float)code_max ? (float)code_max : code;
        error[i] = code * scale + lo - y[i];
    }
}

static void round_middle(const float* y, int count, float step, int code_max, float* error)
{
    float sum = 0.0f;
    for (int i = 0; i < count; ++i) sum += y[i] * y[i];
    const float scale = step * sqrtf(sum / (float)count), inverse = scale > 0.0f ? 1.0f / scale : 0;
    const float half = 0.5f * (float)(code_max + 1);
    for (int i = 0; i < count; ++i) {
        float code = floorf(y[i] * inverse);
        code = code < -half ? -half : code > half - 1.0f ? half - 1.0f : code;
        error[i] = (code + 0.5f) * scale - y[i];
    }
}

static void round_row(const learn_desc* desc, const float* y, float* error)
{
    const learn_grid* grid = &desc->grid;
    const int code_max = (1 << grid->bits) - 1;
    const float bound = grid->clipped ? find_bound(y, desc->dim, grid->clipped) : INFINITY;
    for (int at = 0; at < desc->dim; at += grid->group_size) {
        if (grid->rms_step > 0.0f)
            round_middle(y + at, grid->group_size, grid->rms_step, code_max, error + at);
        else
            round_affine(y + at, grid->group_size, bound, code_max, error + at);
    }
}

// COST

// y of a row after a change, or as it is.
static const float* changed_row(const work* w, int row, const change* c, float* room)
{
    const int n = w->desc->dim;
    const float* y = w->rows + (size_t)row * (size_t)n;
    if (!c) return y;
    memcpy(room, y, (size_t)n * sizeof *room);
    room[c->i] = (float)(c->a * (double)y[c->i] + c->b * (double)y[c->j]);
    room[c->j] = (float)(c->c * (double)y[c->i] + c->d * (double)y[c->j]);
    return room;
}

// Rows i and j of a symmetric matrix, then its columns, by the inverse transpose of a change.
static void change_price(int n, const change* c, double* price)
{
    const double det = c->a * c->d - c->b * c->c;
    const double a = c->d / det, b = -c->c / det, e = -c->b / det, d = c->a / det;
    for (int k = 0; k < n; ++k) {
        const double x = price[c->i * n + k], y = price[c->j * n + k];
        price[c->i * n + k] = a * x + b * y;
        price[c->j * n + k] = e * x + d * y;
    }
    for (int k = 0; k < n; ++k) {
        const double x = price[k * n + c->i], y = price[k * n + c->j];
        price[k * n + c->i] = a * x + b * y;
        price[k * n + c->j] = e * x + d * y;
    }
}

static double cost_after(work* w, const change* c, const double* price)
{
    const int n = w->desc->dim;
    float room[MATRIX_DIM_MAX];
    memset(w->moment, 0, (size_t)(n * n) * sizeof *w->moment);
    for (int row = 0; row < w->desc->num_rows; ++row) {
        round_row(w->desc, changed_row(w, row, c, room), w->error);
        for (int i = 0; i < n; ++i) {
            const float x = w->error[i];
            float* to = w->moment + i * n;
            for (int j = 0; j < n; ++j) to[j] += x * w->error[j];
        }
    }
    double sum = 0;
    for (int i = 0; i < n * n; ++i) sum += (double)w->moment[i] * price[i];
    return sum / w->desc->num_rows;
}

static void take(work* w, const change* c)
{
    const int n = w->desc->dim;
    for (int row = 0; row < w->desc->num_rows; ++row) {
        float room[MATRIX_DIM_MAX];
        changed_row(w, row, c, room);
        memcpy(w->rows + (size_t)row * (size_t)n, room, (size_t)n * sizeof *room);
    }
    for (int k = 0; k < n; ++k) {
        const double x = w->forward[c->i * n + k], y = w->forward[c->j * n + k];
        w->forward[c->i * n + k] = c->a * x + c->b * y;
        w->forward[c->j * n + k] = c->c * x + c->d * y;
    }
}

// STEPS

static change draw_change(work* w, int step, double size)
{
    const int n = w->desc->dim;
    change c = { (int)(next_number(&w->state) % (uint64_t)n), 0, 1, 0, 0, 1 };
    c.j = (c.i + 1 + (int)(next_number(&w->state) % (uint64_t)(n - 1))) % n;
    if (w->desc->affine && step % 3 == 2) {
        c.a = exp(size);
        return c;
    }
    const double t = 0.5 * size;
    c.a = c.d = (1 - t * t) / (1 + t * t);
    c.c = 2 * t / (1 + t * t);
    c.b = -c.c;
    return c;
}

// The other way round: by the angle -size, or by the factor exp(-size).
static change opposite(const change* c)
{
    change o = *c;
    if (c->c != 0) {
        o.b = c->c;
        o.c = c->b;
    } else {
        o.a = 1 / c->a;
    }
    return o;
}

static void descend(work* w, double* trial, learn_result* result)
{
    const int n = w->desc->dim;
    double size = 0.3;
    result->before = result->after = cost_after(w, NULL, w->price);
    for (int step = 0; step < w->desc->steps; ++step) {
        const change first = draw_change(w, step, size);
        const change tries[2] = { first, opposite(&first) };
        int better = 0;
        for (int i = 0; i < 2 && !better; ++i) {
            square_copy(n, w->price, trial);
            change_price(n, &tries[i], trial);
            const double cost = cost_after(w, &tries[i], trial);
            better = cost < result->after;
            if (!better) continue;
            take(w, &tries[i]);
            square_copy(n, trial, w->price);
            result->after = cost;
            ++result->taken;
        }
        size *= better ? 1.1 : 0.98;
        if (size > 0.8) size = 0.8;
        if (size < 0.01) size = 0.01;
    }
}

int transform_learn(const learn_desc* desc, double* out, learn_result* result)
{
    const int n = desc->dim;
    const size_t count = (size_t)desc->num_rows * (size_t)n;
    work w;
    memset(&w, 0, sizeof w);
    memset(result, 0, sizeof *result);
    w.desc = desc;
    w.state = desc->seed;
    w.rows = (float*)calloc(count, sizeof *w.rows);
    w.error = (float*)calloc((size_t)n, sizeof *w.error);
    w.moment = (float*)calloc((size_t)(n * n), sizeof *w.moment);
    w.price = square_new(n);
    w.forward = out;
    double* inverse = square_new(n);
    double* trial = square_new(n);
    int ok = w.rows && w.error && w.moment && w.price && inverse && trial &&
             desc->grid.clipped <= MOST_CLIPPED && square_inverse(n, desc->start, inverse) == 0;
    if (ok) {
        square_copy(n, desc->start, out);
        square_transpose(n, inverse, trial);
        square_sandwich(n, trial, desc->price, w.price);
        for (int row = 0; row < desc->num_rows; ++row)
            for (int i = 0; i < n; ++i) {
                double sum = 0;
                for (int k = 0; k < n; ++k) sum += out[i * n + k] * (double)desc->rows[row * n + k];
                w.rows[row * n + i] = (float)sum;
            }
        descend(&w, trial, result);
    }
    free(w.rows);
    free(w.error);
    free(w.moment);
    free(w.price);
    free(inverse);
    free(trial);
    return ok;
}

int transform_draw(int dim, const double* moment, uint64_t seed, int num_rows, float* rows)
{
    double z[MATRIX_DIM_MAX];
    uint64_t state = seed;
    double* lower = square_new(dim);
    double* damped = square_new(dim);
    int ok = lower && damped;
    if (ok) {
        square_copy(dim, moment, damped);
        const double more = 1e-6 * square_trace(dim, moment) / dim;
        for (int i = 0; i < dim; ++i) damped[i * dim + i] += more;
        ok = square_cholesky(dim, damped, lower) == 0;
    }
    for (int row = 0; ok && row < num_rows; ++row) {
        for (int i = 0; i < dim; ++i) {
            double sum = -6;                           // 12 of variance 1/12: bell-shaped
            for (int k = 0; k < 12; ++k) sum += (double)next_number(&state) / 2147483648.0;
            z[i] = sum;
        }
        for (int i = 0; i < dim; ++i) {
            double sum = 0;
            for (int k = 0; k <= i; ++k) sum += lower[i * dim + k] * z[k];
            rows[row * dim + i] = (float)sum;
        }
    }
    free(lower);
    free(damped);
    return ok;
}
