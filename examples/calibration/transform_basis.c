// transform_basis.c -- T of each kind, its inverse transpose, and the factor of feedback rounding.

#include "transform_basis.h"

#include "transform_matrix.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RETRIES = 40 };

static const double spectrum_floor = 1e-12;    // of the largest eigenvalue, in powers
static const double nothing = 1e-10;           // of an average channel: a direction without rows
static const double worst_condition = 1e6;     // of T in float32: scores keep 5 digits

static const struct {
    const char* name;
    double      power, price_damping;
} kinds[TRANSFORM_NUM_KINDS] = {
    { "balance", 0.25, 0.01 }, { "eigen", 0, 0.01 }, { "whiten", 0.5, 0.01 }, { "flat", 0.4, 0.05 }
};

// Room of one transform: M and A as they are used, and what is on the way to T.
typedef struct work {
    const transform_desc* desc;
    transform_basis*      out;
    char*                 message;
    size_t                size;
    double                power;
    double*               moment;
    double*               price;
    double*               m[4];
} work;

const char* transform_kind_name(transform_kind kind) { return kinds[kind].name; }

__attribute__((format(printf, 3, 4)))
static int fail(char* message, size_t size, const char* format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, size, format, args);
    va_end(args);
    return 0;
}

__attribute__((format(printf, 2, 3)))
static void add_note(char* note, const char* format, ...)
{
    const size_t used = strlen(note), room = sizeof((transform_basis*)0)->note;
    va_list args;
    va_start(args, format);
    if (used && used + 3 < room) memcpy(note + used, "; ", 3);
    vsnprintf(note + strlen(note), room - strlen(note), format, args);
    va_end(args);
}

// out = a, symmetric, of trace dim.  Zeros become the identity.
static int normalise(const char* name, int dim, const double* a, double* out, char* note,
                     char* message, size_t size)
{
    double top = 0;
    for (int i = 0; i < dim * dim; ++i) {
        if (!isfinite(a[i]))
            return fail(message, size, "%s[%d][%d] = %g: must be finite", name, i / dim, i % dim,
                        a[i]);
        if (fabs(a[i]) > top) top = fabs(a[i]);
    }
    for (int i = 0; i < dim; ++i)
        if (a[i * dim + i] < 0)
            return fail(message, size, "%s[%d][%d] = %g: a second moment is not negative", name, i,
                        i, a[i * dim + i]);
    memset(out, 0, (size_t)(dim * dim) * sizeof *out);
    double trace = 0;
    for (int i = 0; i < dim && top > 0; ++i) trace += a[i * dim + i] / top;
    if (!(trace > 0)) {
        add_note(note, "%s is zero: the identity is used", name);
        for (int i = 0; i < dim; ++i) out[i * dim + i] = 1;
        return 1;
    }
    for (int i = 0; i < dim; ++i)
        for (int j = 0; j < dim; ++j)
            out[i * dim + j] = (0.5 * (a[i * dim + j] / top) + 0.5 * (a[j * dim + i] / top))
                               * (dim / trace);
    return 1;
}

// Fewer rows than channels, dead channels, rows that are all alike: damping is all that is known of
// some directions.
static int note_rank(const char* name, int dim, const double* a, double damping, char* note,
                     char* message, size_t size)
{
    const int rank = square_rank(dim, a, nothing);
    if (rank < 0) return fail(message, size, "no memory for a transform");
    if (rank < dim)
        add_note(note, "%s has rank %d of %d: the rest has its damping of %g alone", name, rank,
                 dim, damping);
    return 1;
}

static void add_diagonal(int dim, double* a, double x)
{
    for (int i = 0; i < dim; ++i) a[i * dim + i] += x;
}

static double chosen(double given, double usual)
{
    return given < 0 ? 0 : given > 0 ? given : usual;
}

// Cholesky of a, whose damping is doubled until it succeeds; *damping is what it has, of a trace of
// dim.
static int robust_cholesky(const char* name, int dim, double* a, double* damping, double* lower,
                           char* note, char* message, size_t size)
{
    for (int i = 0; i <= MOST_RETRIES; ++i) {
        if (square_cholesky(dim, a, lower) == 0) {
            if (i) add_note(note, "%s needed a damping of %.3g", name, *damping);
            return 1;
        }
        const double more = *damping > 0 ? *damping : 1e-12;
        add_diagonal(dim, a, more);
        *damping += more;
    }
    return fail(message, size, "%s: not positive definite even with a damping of %.3g", name,
                *damping);
}

// THE KINDS: T, unscaled, from w->moment and w->price to out->forward

static int make_balance(work* w)
{
    const int n = w->desc->dim;
    double values[MATRIX_DIM_MAX];
    double* lower = w->m[0];
    if (!robust_cholesky("price", n, w->price, &w->out->price_damping, lower, w->out->note,
                         w->message, w->size)) return 0;
    square_multiply_tn(n, lower, w->moment, w->m[1]);
    square_multiply(n, w->m[1], lower, w->m[2]);
    if (square_eigen(n, w->m[2], values, w->m[1]) != 0 || !(values[0] > 0))
        return fail(w->message, w->size, "moment: its eigenvalues cannot be found");
    // Rows k of U^T L^T times Lambda_k^-p.
    square_multiply(n, lower, w->m[1], w->m[2]);
    for (int k = 0; k < n; ++k) {
        const double least = spectrum_floor * values[0];
        const double factor = pow(values[k] > least ? values[k] : least, -w->power);
        for (int i = 0; i < n; ++i) w->m[1][k * n + i] = w->m[2][i * n + k] * factor;
    }
    square_hadamard(n, w->m[0]);
    square_multiply(n, w->m[0], w->m[1], w->out->forward);
    return 1;
}

static int bits_of_dim(int dim)
{
    int bits = 0;
    while (1 << (bits + 1) <= dim) ++bits;
    return bits;
}

// Row r of the result is row (r with its bits reversed) where dim is a power of two.
static int make_eigen(work* w)
{
    const int n = w->desc->dim, bits = bits_of_dim(n);
    double values[MATRIX_DIM_MAX];
    if (square_eigen(n, w->price, values, w->m[0]) != 0)
        return fail(w->message, w->size, "price: its eigenvectors cannot be found");
    square_hadamard(n, w->m[1]);
    square_multiply_nt(n, w->m[1], w->m[0], w->m[2]);
    for (int r = 0; r < n; ++r) {
        int from = 0;
        for (int bit = 0; bit < bits; ++bit) from |= (r >> bit & 1) << (bits - 1 - bit);
        memcpy(w->out->forward + r * n, w->m[2] + (1 << bits == n ? from : r) * n,
               (size_t)n * sizeof(double));
    }
    return 1;
}

static int make_whiten(work* w)
{
    const int n = w->desc->dim;
    if (square_power(n, w->moment, -w->power, spectrum_floor, w->m[0]) != 0)
        return fail(w->message, w->size, "moment: its eigenvalues cannot be found");
    square_hadamard(n, w->m[1]);
    square_multiply(n, w->m[1], w->m[0], w->out->forward);
    return 1;
}

static void swap_columns(int n, double* s, double* p, int a, int b)
{
    const double x = s[a];
    s[a] = s[b];
    s[b] = x;
    for (int i = 0; i < n; ++i) {
        const double y = p[i * n + a];
        p[i * n + a] = p[i * n + b];
        p[i * n + b] = y;
    }
}

// Square roots s of a spectrum, descending, with their vectors in the columns of p: after it column
// k costs the geometric mean, whichever was rounded after it, and the columns are reversed.
// (Geometric-mean decomposition by plane rotations: Jiang, Hager, Li, 2005.)
static void equalise(int n, double* s, double* p)
{
    double log_sum = 0;
    for (int k = 0; k < n; ++k) log_sum += log(s[k]);
    const double mean = exp(log_sum / n);
    for (int k = 0; k < n - 1; ++k) {
        int other = k + 1;
        for (int i = k + 2; i < n; ++i)
            if (s[k] >= mean ? s[i] < s[other] : s[i] > s[other]) other = i;
        swap_columns(n, s, p, k + 1, other);
        const double a = s[k], b = s[k + 1], gap = a * a - b * b;
        double c = 1;
        if (fabs(gap) > 1e-15 * a * a) {
            const double square = (mean * mean - b * b) / gap;
            c = sqrt(square < 0 ? 0 : square > 1 ? 1 : square);
        }
        const double t = sqrt(1 - c * c);
        for (int i = 0; i < n; ++i) {
            const double x = p[i * n + k], y = p[i * n + k + 1];
            p[i * n + k] = c * x + t * y;
            p[i * n + k + 1] = c * y - t * x;
        }
        s[k] = mean;
        s[k + 1] = a * b / mean;
    }
    for (int k = 0; k < n / 2; ++k) swap_columns(n, s, p, k, n - 1 - k);
}

static int make_flat(work* w)
{
    const int n = w->desc->dim;
    const double damping = chosen(w->desc->flat_damping, 0.03);
    double values[MATRIX_DIM_MAX], log_sum = 0;
    double *whiten = w->m[0], *back = w->m[1], *a0 = w->m[2], *p = w->m[3];
    if (square_power(n, w->moment, -w->power, spectrum_floor, whiten) != 0
        || square_power(n, w->moment, w->power, spectrum_floor, back) != 0)
        return fail(w->message, w->size, "moment: its eigenvalues cannot be found");
    square_sandwich(n, back, w->price, a0);
    add_diagonal(n, a0, damping * square_trace(n, a0) / n);
    // What feedback is priced with has the same damping: A = W A0 W.
    square_sandwich(n, whiten, a0, w->price);
    if (square_eigen(n, a0, values, p) != 0 || !(values[0] > 0))
        return fail(w->message, w->size, "price: its eigenvalues cannot be found");
    for (int k = 0; k < n; ++k) {
        const double least = spectrum_floor * values[0];
        values[k] = sqrt(values[k] > least ? values[k] : least);
        log_sum += log(values[k]);
    }
    w->out->flat_ratio = exp(log_sum / n) / values[n - 1];
    if (w->out->flat_ratio > 6)
        add_note(w->out->note, "directions that nothing asks for: geometric mean / minimum of the "
                 "flattened price is %.3g", w->out->flat_ratio);
    equalise(n, values, p);
    square_multiply_tn(n, p, whiten, w->out->forward);
    return 1;
}

// WHAT HOLDS FOR ALL

static double column_product(int n, const double* a, const double* b)
{
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += a[i * n + i] * b[i * n + i];
    return sum;
}

// Errors against those of a rotation that makes all channels alike.
static int predict(work* w)
{
    const int n = w->desc->dim;
    transform_basis* out = w->out;
    transform_feedback feedback;
    double* stored = w->m[0];
    out->price = square_new(n);
    if (!out->price) return fail(w->message, w->size, "no memory for a transform");
    square_sandwich(n, out->inverse_transpose, w->price, out->price);
    square_sandwich(n, out->forward, w->moment, stored);
    const double unit = square_trace(n, w->moment) * square_trace(n, w->price);
    out->error_token = square_trace(n, stored) * square_trace(n, out->price) / unit;
    out->error_channel = n * column_product(n, stored, out->price) / unit;
    if (!transform_feedback_make(n, out->price, 0, 0, &feedback, w->message, w->size)) return 0;
    double sum = 0;
    for (int k = 0; k < n; ++k) sum += stored[k * n + k] * feedback.spread[k];
    out->error_feedback = n * sum / unit;
    transform_feedback_free(&feedback);
    return 1;
}

// Inverse transpose, and the condition of forward, which is there.
static int invert(int n, transform_basis* out, double* room, char* message, size_t size)
{
    double values[MATRIX_DIM_MAX];
    for (int i = 0; i < n * n; ++i)
        if (!isfinite(out->forward[i]))
            return fail(message, size, "transform[%d][%d] = %g: must be finite", i / n, i % n,
                        out->forward[i]);
    if (square_singular_values(n, out->forward, values) != 0)
        return fail(message, size, "transform: its singular values cannot be found");
    out->condition = values[0] / values[n - 1];
    if (!(out->condition <= worst_condition))
        return fail(message, size, "transform: its condition is %.3g: must be at most %g",
                    out->condition, worst_condition);
    if (square_inverse(n, out->forward, room) != 0)
        return fail(message, size, "transform: is singular");
    square_transpose(n, room, out->inverse_transpose);
    return 1;
}

static int make_with(work* w)
{
    static int (*const makers[TRANSFORM_NUM_KINDS])(work*) = {
        make_balance, make_eigen, make_whiten, make_flat
    };
    const transform_desc* desc = w->desc;
    transform_basis* out = w->out;
    const int n = desc->dim;
    if (!normalise("moment", n, desc->moment, w->moment, out->note, w->message, w->size)) return 0;
    if (!desc->price)
        for (int i = 0; i < n; ++i) w->price[i * n + i] = 1;
    else if (!normalise("price", n, desc->price, w->price, out->note, w->message, w->size))
        return 0;
    out->moment_damping = chosen(desc->moment_damping, 0.01);
    out->price_damping = chosen(desc->price_damping, kinds[desc->kind].price_damping);
    if (!note_rank("moment", n, w->moment, out->moment_damping, out->note, w->message, w->size)
        || !note_rank("price", n, w->price, out->price_damping, out->note, w->message, w->size))
        return 0;
    add_diagonal(n, w->moment, out->moment_damping);
    add_diagonal(n, w->price, out->price_damping);
    w->power = desc->power > 0 ? desc->power : kinds[desc->kind].power;
    if (!makers[desc->kind](w)) return 0;
    if (desc->kind != TRANSFORM_EIGEN) {
        square_sandwich(n, out->forward, w->moment, w->m[0]);
        const double scale = sqrt(square_trace(n, w->moment) / square_trace(n, w->m[0]));
        for (int i = 0; i < n * n; ++i) out->forward[i] *= scale;
    }
    if (!invert(n, out, w->m[0], w->message, w->size)) return 0;
    return !desc->price || predict(w);
}

static int begin(int dim, transform_basis* out, char* message, size_t size)
{
    memset(out, 0, sizeof *out);
    if (dim < 16 || dim > MATRIX_DIM_MAX || dim % 16)
        return fail(message, size, "dim = %d: must be 16 to %d in steps of 16", dim,
                    MATRIX_DIM_MAX);
    out->dim = dim;
    out->forward = square_new(dim);
    out->inverse_transpose = square_new(dim);
    if (!out->forward || !out->inverse_transpose)
        return fail(message, size, "no memory for a transform");
    return 1;
}

int transform_make(const transform_desc* desc, transform_basis* out, char* message, size_t size)
{
    work w;
    memset(&w, 0, sizeof w);
    w.desc = desc;
    w.out = out;
    w.message = message;
    w.size = size;
    int ok = begin(desc->dim, out, message, size);
    if (ok && (!desc->moment || (!desc->price && desc->kind != TRANSFORM_WHITEN)))
        ok = fail(message, size, "%s needs a %s", kinds[desc->kind].name,
                  desc->moment ? "price" : "moment");
    if (ok) {
        w.moment = square_new(desc->dim);
        w.price = square_new(desc->dim);
        for (int i = 0; i < 4; ++i) w.m[i] = square_new(desc->dim);
        ok = w.moment && w.price && w.m[0] && w.m[1] && w.m[2] && w.m[3];
        if (!ok) fail(message, size, "no memory for a transform");
    }
    ok = ok && make_with(&w);
    free(w.moment);
    free(w.price);
    for (int i = 0; i < 4; ++i) free(w.m[i]);
    if (!ok) transform_basis_free(out);
    return ok;
}

void transform_basis_free(transform_basis* basis)
{
    free(basis->forward);
    free(basis->inverse_transpose);
    free(basis->price);
    memset(basis, 0, sizeof *basis);
}

int transform_adopt(int dim, const double* forward, transform_basis* out, char* message,
                    size_t size)
{
    int ok = begin(dim, out, message, size);
    double* room = ok ? square_new(dim) : NULL;
    if (ok && !room) ok = fail(message, size, "no memory for a transform");
    if (ok) {
        square_copy(dim, forward, out->forward);
        ok = invert(dim, out, room, message, size);
    }
    free(room);
    if (!ok) transform_basis_free(out);
    return ok;
}

// FEEDBACK

static void order_channels(int dim, const double* price, int sorted, int* order)
{
    for (int i = 0; i < dim; ++i) order[i] = i;
    for (int i = 1; sorted && i < dim; ++i) {          // insertion: equal prices keep their order
        const int channel = order[i];
        int at = i;
        for (; at > 0 && price[order[at - 1] * dim + order[at - 1]] <
                         price[channel * dim + channel]; --at) order[at] = order[at - 1];
        order[at] = channel;
    }
}

// out = a with rows and columns in reverse.
static void reverse(int dim, const double* a, double* out)
{
    for (int i = 0; i < dim; ++i)
        for (int j = 0; j < dim; ++j) out[i * dim + j] = a[(dim - 1 - i) * dim + dim - 1 - j];
}

static int factorise(int dim, const double* price, transform_feedback* out, double* m[2],
                     char* message, size_t size)
{
    if (!normalise("price", dim, price, m[0], out->note, message, size)) return 0;
    const double unit = square_trace(dim, price) / dim;
    add_diagonal(dim, m[0], out->damping);
    for (int i = 0; i < dim; ++i)
        for (int j = 0; j < dim; ++j)
            m[1][i * dim + j] = m[0][out->order[i] * dim + out->order[j]];
    reverse(dim, m[1], m[0]);
    if (!robust_cholesky("price", dim, m[0], &out->damping, m[1], out->note, message, size))
        return 0;
    reverse(dim, m[1], out->factor);                   // upper triangular, with sqrt(D)
    for (int j = 0; j < dim; ++j) {
        const double root = out->factor[j * dim + j];
        out->spread[j] = root * root * (unit > 0 ? unit : 1);
        for (int i = 0; i <= j; ++i) out->factor[i * dim + j] /= root;
    }
    return 1;
}

int transform_feedback_make(int dim, const double* price, double damping, int sorted,
                            transform_feedback* out, char* message, size_t size)
{
    memset(out, 0, sizeof *out);
    if (dim < 16 || dim > MATRIX_DIM_MAX)
        return fail(message, size, "dim = %d: must be 16 to %d", dim, MATRIX_DIM_MAX);
    double* m[2] = { square_new(dim), square_new(dim) };
    out->dim = dim;
    out->damping = damping > 0 ? damping : 0;
    out->order = (int*)calloc((size_t)dim, sizeof *out->order);
    out->factor = square_new(dim);
    out->spread = (double*)calloc((size_t)dim, sizeof *out->spread);
    int ok = m[0] && m[1] && out->order && out->factor && out->spread;
    if (!ok) fail(message, size, "no memory for a factor");
    if (ok) {
        order_channels(dim, price, sorted, out->order);
        ok = factorise(dim, price, out, m, message, size);
    }
    free(m[0]);
    free(m[1]);
    if (!ok) transform_feedback_free(out);
    return ok;
}

void transform_feedback_free(transform_feedback* feedback)
{
    free(feedback->order);
    free(feedback->factor);
    free(feedback->spread);
    memset(feedback, 0, sizeof *feedback);
}
