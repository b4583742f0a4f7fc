// calibrate_transforms.c -- which moments a basis, a feedback factor and a base are made of.
//
//     word             keys: moment, price       values: moment, price
//     balance          key, query                value, output
//     balance_output   key, query_output         value, output
//     eigen            key, query                value, attended (the moment of what is attended)
//     eigen_layer      the same, summed over the heads of a layer
//     whiten           key_group                 value
//     flat             key_group, query_output   value, output
//
// With shift=rotating-mean the moment of keys is key_group of what is left.
//
// The price of feedback is query_output of keys, damped by 0.05 of an average channel, and output
// of values, damped by 0.02; of `flat` it is the one that the basis was made for.  Where a model's
// output matrix was not known, query_seen takes the place of query_output, and values have no
// price but the identity.

#include "calibrate_transforms.h"

#include "calibrate_learn.h"
#include "calibrate_side.h"
#include "transform_basis.h"
#include "transform_matrix.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct source {
    const char*    word;
    transform_kind kind;
    const char*    moment[2];          // of keys, of values
    const char*    price[2];
    int            of_layer;           // 1: one basis, from the sums over heads
} source;

static const source sources[] = {
    { "balance", TRANSFORM_BALANCE, { "key_outer", "value_outer" },
      { "query_outer", "output_outer" }, 0 },
    { "balance_output", TRANSFORM_BALANCE, { "key_outer", "value_outer" },
      { "query_output_outer", "output_outer" }, 0 },
    { "eigen", TRANSFORM_EIGEN, { "key_outer", "value_outer" },
      { "query_outer", "attended_outer" }, 0 },
    { "eigen_layer", TRANSFORM_EIGEN, { "key_outer", "value_outer" },
      { "query_outer", "attended_outer" }, 1 },
    { "whiten", TRANSFORM_WHITEN, { "key_group_outer", "value_outer" },
      { "query_output_outer", "output_outer" }, 0 },
    { "flat", TRANSFORM_FLAT, { "key_group_outer", "value_outer" },
      { "query_output_outer", "output_outer" }, 0 },
};
enum { NUM_SOURCES = (int)(sizeof sources / sizeof sources[0]) };

__attribute__((format(printf, 2, 3)))
static kvl_status fail(const kvl_derive_args* a, const char* format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(a->message, a->message_bytes, format, args);
    va_end(args);
    return KVL_BAD_ARGUMENT;
}

static const double* moment_of(const kvl_derive_args* a, int head, const char* name)
{
    int64_t num = 0;
    const double* m = kvl_statistics_get(a->stats, a->layer, head, name, &num);
    return m && num == (int64_t)a->head_dim * a->head_dim ? m : NULL;
}

// Of a price that the statistics lack, what takes its place; NULL: nothing does.
static const double* price_of(const kvl_derive_args* a, int head, const char* name)
{
    const double* price = moment_of(a, head, name);
    if (!price && strcmp(name, "query_output_outer") == 0)
        price = moment_of(a, head, "query_seen_outer");
    return price;
}

// B of R_t m = B z, z as in key_turn_outer, from the table of a shift by position.
static void spread_mean(const float* table, int n, double* b)
{
    const float *side = table + n, *partner = table + 3 * n;
    memset(b, 0, (size_t)(n * n) * sizeof *b);
    for (int c = 0; c < n; ++c) {
        const int known = partner[c] >= 0.0f && partner[c] < (float)n;
        const int other = known ? (int)partner[c] : c, first = c < other ? c : other;
        if (other == c) continue;
        const int pair = abs(c - other) == 1 ? first / 2 : first;
        b[c * n + pair] = (double)table[c];
        b[c * n + n / 2 + pair] = (double)side[c];
    }
}

// The moment of keys within groups, less R_t m: E (k - B z)(k - B z)^T.
static kvl_status shifted_moment(const kvl_derive_args* a, int head, double* out)
{
    const int n = a->head_dim;
    int64_t num = 0;
    const float* table = kvl_calibration_table(a->calibration, a->layer, 0, "rotating_mean", &num);
    const double* keys = moment_of(a, head, "key_group_outer");
    const double* cross = moment_of(a, head, "key_turn_outer");
    const double* turns = moment_of(a, head, "turn_outer");
    double* b = square_new(n);
    double* room = square_new(n);
    kvl_status status = KVL_OK;
    if (!b || !room) status = KVL_NO_MEMORY;
    else if (!keys || !cross || !turns || !table || num != (int64_t)a->num_kv_heads * 4 * n)
        status = fail(a, "the statistics have no key_turn_outer: they are of an older version, or "
                      "do not know how keys turn");
    if (status == KVL_OK) {
        spread_mean(table + (int64_t)head * 4 * n, n, b);
        square_sandwich(n, b, turns, out);
        square_multiply_nt(n, cross, b, room);
        for (int i = 0; i < n; ++i)
            for (int j = 0; j < n; ++j)
                out[i * n + j] += keys[i * n + j] - room[i * n + j] - room[j * n + i];
        // What rounding leaves below zero is nothing.
        for (int i = 0; i < n; ++i) if (out[i * n + i] < 0) out[i * n + i] = 0;
    }
    free(b);
    free(room);
    return status;
}

// The second moment of what is stored.  Of keys that are shifted by their position it is the one
// within groups, whatever moment is asked for.
static kvl_status stored_moment(const kvl_derive_args* a, int head, const char* name, double* out)
{
    const double* moment = moment_of(a, head, name);
    if (!a->is_value && calibrate_has_word(a->depends, "rotating-mean"))
        return shifted_moment(a, head, out);
    if (!moment) return fail(a, "the statistics have no %s", name);
    square_copy(a->head_dim, moment, out);
    return KVL_OK;
}

static const source* find_source(const char* word, size_t length)
{
    for (int i = 0; i < NUM_SOURCES; ++i)
        if (strlen(sources[i].word) == length && strncmp(sources[i].word, word, length) == 0)
            return &sources[i];
    return NULL;
}

// A moment of all heads of the layer together, in memory of its own; NULL: a head has none.
static double* sum_of_heads(const kvl_derive_args* a, const char* name, int is_price)
{
    const int n = a->head_dim;
    double* sum = square_new(n);
    for (int head = 0; sum && head < a->num_kv_heads; ++head) {
        const double* m = is_price ? price_of(a, head, name) : moment_of(a, head, name);
        if (!m) {
            free(sum);
            return NULL;
        }
        for (int i = 0; i < n * n; ++i) sum[i] += m[i];
    }
    return sum;
}

static kvl_status make_basis(const kvl_derive_args* a, const source* s, int head,
                             transform_basis* basis)
{
    char message[256] = "";
    const char *moment = s->moment[a->is_value], *price = s->price[a->is_value];
    double* sums[2] = { NULL, NULL };
    transform_desc desc;
    double* own = square_new(a->head_dim);
    kvl_status status = own ? KVL_OK : KVL_NO_MEMORY;
    memset(&desc, 0, sizeof desc);
    desc.kind = s->kind;
    desc.dim = a->head_dim;
    if (s->of_layer) {
        desc.moment = sums[0] = sum_of_heads(a, moment, 0);
        desc.price = sums[1] = sum_of_heads(a, price, 1);
        if (status == KVL_OK && !desc.moment)
            status = fail(a, "the statistics have no %s", moment);
    } else {
        if (status == KVL_OK) status = stored_moment(a, head, moment, own);
        desc.moment = own;
        desc.price = price_of(a, head, price);
    }
    if (status == KVL_OK && !desc.price && s->kind != TRANSFORM_WHITEN)
        status = fail(a, "the statistics have no %s: the model's output matrix was not given",
                      price);
    if (status == KVL_OK && !transform_make(&desc, basis, message, sizeof message))
        status = fail(a, "head %d: %s", head, message);
    free(own);
    free(sums[0]);
    free(sums[1]);
    return status;
}

kvl_status calibrate_make_basis(const kvl_derive_args* a, const char* word, int head,
                                struct transform_basis* out)
{
    const source* s = find_source(word, strlen(word));
    return s ? make_basis(a, s, head, out) : fail(a, "nothing here makes it");
}

// What was repaired, to whoever listens.
static void say_note(const kvl_derive_args* a, int head, const char* note)
{
    calibrate_learn* learn = (calibrate_learn*)a->user;
    if (!learn || !note[0] || learn->num_notes++ >= CALIBRATE_NOTES) return;
    snprintf(learn->notes[learn->num_notes - 1], sizeof learn->notes[0],
             "layer %d, %s, head %d, %s: %s", a->layer, a->is_value ? "values" : "keys", head,
             a->word, note);
}

kvl_status calibrate_basis(const kvl_derive_args* a, float* out)
{
    const source* s = find_source(a->word, strlen(a->word));
    const int n = a->head_dim;
    const size_t length = strlen(a->table);
    const int is_query = length > 6 && strcmp(a->table + length - 6, "_query") == 0;
    if (!s) return fail(a, "nothing here makes it");
    for (int head = 0; head < a->num_kv_heads; ++head) {
        transform_basis basis;
        float* to = out + (int64_t)head * n * n;
        const kvl_status status = make_basis(a, s, head, &basis);
        if (status != KVL_OK) return status;
        if (!is_query) say_note(a, head, basis.note);
        // F = T^T and Q = T^-1: both are transposes of what is held.
        const double* from = is_query ? basis.inverse_transpose : basis.forward;
        for (int i = 0; i < n; ++i)
            for (int j = 0; j < n; ++j) to[i * n + j] = (float)from[j * n + i];
        transform_basis_free(&basis);
    }
    return KVL_OK;
}

// THE STORED BASIS, as the table's name says it

// Q = T^-1 of a head in the side's basis: the identity, a Hadamard of pieces, or a table's.
static kvl_status read_query(const kvl_derive_args* a, int head, double* q)
{
    const int n = a->head_dim;
    const char* side = a->depends;
    for (int i = 0; i < n; ++i) q[i * n + i] = 1;
    for (size_t length; (length = calibrate_word_at(&side)) > 0; side += length) {
        char name[96];
        int64_t num = 0;
        if (length > 8 && strncmp(side, "hadamard", 8) == 0) {
            const int piece = atoi(side + 8);
            for (int i = 0; i < n * n; ++i) {
                const int row = i / n, column = i % n;
                const unsigned both = (unsigned)(row % piece) & (unsigned)(column % piece);
                q[i] = row / piece != column / piece ? 0
                     : (__builtin_parity(both) ? -1 : 1) / sqrt((double)piece);
            }
            return KVL_OK;
        }
        // Bases of another moment have another name; those that use none are the same.
        const float* table = NULL;
        const int before = !a->is_value && calibrate_has_word(a->depends, "pre_rope");
        const int first = before || calibrate_has_word(a->depends, "rotating-mean") ? 0 : 1;
        for (int i = first; i < (before ? 1 : 2) && !table; ++i) {
            snprintf(name, sizeof name, "%.*s_query%s", (int)(length < 64 ? length : 64), side,
                     i ? "" : before ? "@pre_rope" : "@rotating-mean");
            table = kvl_calibration_table(a->calibration, a->layer, a->is_value, name, &num);
        }
        if (!table) continue;
        if (num != (int64_t)a->num_kv_heads * n * n)
            return fail(a, "%s has %lld numbers", name, (long long)num);
        for (int i = 0; i < n * n; ++i) q[i] = (double)table[(int64_t)head * n * n + i];
        return KVL_OK;
    }
    return KVL_OK;
}

// out = Q^T A Q of the damped price; of `flat` as it was made.
static kvl_status stored_price(const kvl_derive_args* a, int head, const double* q, double* out)
{
    const int n = a->head_dim;
    const double damping = a->is_value ? 0.02 : 0.05;
    const double* price = price_of(a, head, a->is_value ? "output_outer" : "query_output_outer");
    if (calibrate_has_word(a->depends, "flat") && price) {
        transform_basis basis;
        const kvl_status status = make_basis(a, find_source("flat", 4), head, &basis);
        if (status != KVL_OK) return status;
        square_copy(n, basis.price, out);
        transform_basis_free(&basis);
        return KVL_OK;
    }
    double* damped = square_new(n);
    double* turned = square_new(n);
    if (damped && turned) {
        const double trace = price ? square_trace(n, price) : 0;
        for (int i = 0; i < n * n; ++i) damped[i] = trace > 0 ? price[i] * (n / trace) : 0;
        for (int i = 0; i < n; ++i) damped[i * n + i] += trace > 0 ? damping : 1;
        square_multiply_tn(n, q, damped, turned);
        square_multiply(n, turned, q, out);
    }
    const int ok = damped && turned;
    free(damped);
    free(turned);
    return ok ? KVL_OK : KVL_NO_MEMORY;
}

// What channels are divided by: the best step, at so many bits, of their rms in the stored basis;
// of groups along channels the group's.  bits = 0: that rms.
static kvl_status stored_base(const kvl_derive_args* a, int head, const double* q, int bits,
                              double* base)
{
    static const double steps[5] = { 1, 1.6, 0.996, 0.586, 0.335 };
    const int n = a->head_dim, group = calibrate_number_of(a->depends, "g");
    const int along = calibrate_has_word(a->depends, "per_channel");
    int64_t num = 0;
    const double* rows = kvl_statistics_get(a->stats, a->layer, head,
                                            a->is_value ? "rows" : "grouped_rows", &num);
    if (!rows || num != 1 || !(rows[0] > 0))
        return fail(a, "the statistics have no %s", a->is_value ? "values" : "groups of keys");
    double* forward = square_new(n);
    double* stored = square_new(n);
    double* moment = square_new(n);
    kvl_status status = KVL_NO_MEMORY;
    if (forward && stored && moment)
        status = stored_moment(a, head, a->is_value ? "value_outer" : "key_group_outer", moment);
    const int ok = status == KVL_OK && square_inverse(n, q, forward) == 0;
    if (ok) square_sandwich(n, forward, moment, stored);
    for (int i = 0; ok && i < n; ++i) {
        const int first = along ? i : i / group * group, end = along ? i + 1 : first + group;
        double sum = 0;
        for (int j = first; j < end; ++j) sum += stored[j * n + j];
        base[i] = steps[bits < 4 ? bits : 4] * sqrt(sum / (end - first) / rows[0]);
        if (bits > 4) base[i] *= ldexp(1, 4 - bits);
        if (bits > 0 && calibrate_has_word(a->depends, "path")) base[i] *= 0.45;    // half as wide
        if (!(base[i] > 1e-6)) base[i] = 1e-6;         // a dead channel has some step
        base[i] = (double)(float)base[i];
    }
    free(forward);
    free(stored);
    free(moment);
    if (status != KVL_OK) return status;
    return ok ? KVL_OK : fail(a, "head %d: the basis cannot be inverted", head);
}

// FEEDBACK

// One table of one head, from the factor and the price in the stored basis.  Costs are relative:
// 1 on average.
static void write_feedback(const kvl_derive_args* a, const transform_feedback* f,
                           const double* price, float* to)
{
    const int n = a->head_dim, costs = strcmp(a->table, "feedback_cost") == 0;
    double sum = 0;
    for (int j = 0; j < n; ++j) sum += f->spread[j];
    for (int j = 0; j < n; ++j) {
        if (a->rank == 1) {
            to[j] = costs ? (float)(f->spread[j] * n / sum) : (float)f->order[j];
            continue;
        }
        for (int i = 0; i < n; ++i) {
            const int from = f->order[j], other = f->order[i];
            double x = i < j ? f->factor[i * n + j] : 0;
            if (strcmp(a->table, "feedback_price") == 0)
                x = i == j ? 0 : price[from * n + other] / price[from * n + from];
            to[j * n + i] = (float)x;
        }
    }
}

static kvl_status feedback_head(const kvl_derive_args* a, int head, double* q, double* price,
                                float* to)
{
    const int n = a->head_dim;
    double base[MATRIX_DIM_MAX];
    char message[256] = "";
    transform_feedback f;
    kvl_status status = read_query(a, head, q);
    if (status == KVL_OK) status = stored_price(a, head, q, price);
    if (status == KVL_OK && calibrate_has_word(a->depends, "log4")) {
        // The step is a factor of all channels, which changes neither order nor ratios.
        status = stored_base(a, head, q, 0, base);
        for (int i = 0; status == KVL_OK && i < n * n; ++i) price[i] *= base[i / n] * base[i % n];
    }
    if (status != KVL_OK) return status;
    // A path takes channels as they come.
    const int sorted = !calibrate_has_word(a->depends, "flat") &&
                       !calibrate_has_word(a->depends, "path");
    if (!transform_feedback_make(n, price, 0, sorted, &f, message, sizeof message))
        return fail(a, "head %d: %s", head, message);
    write_feedback(a, &f, price, to);
    transform_feedback_free(&f);
    return KVL_OK;
}

kvl_status calibrate_feedback(const kvl_derive_args* a, float* out)
{
    const int n = a->head_dim;
    const int64_t count = a->rank == 1 ? n : (int64_t)n * n;
    kvl_status status = KVL_OK;
    for (int head = 0; head < a->num_kv_heads && status == KVL_OK; ++head) {
        double* q = square_new(n);
        double* price = square_new(n);
        status = q && price ? feedback_head(a, head, q, price, out + head * count) : KVL_NO_MEMORY;
        free(q);
        free(price);
    }
    return status;
}

kvl_status calibrate_base(const kvl_derive_args* a, float* out)
{
    const int n = a->head_dim;
    kvl_status status = KVL_OK;
    for (int head = 0; head < a->num_kv_heads && status == KVL_OK; ++head) {
        double base[MATRIX_DIM_MAX];
        double* q = square_new(n);
        status = q ? read_query(a, head, q) : KVL_NO_MEMORY;
        if (status == KVL_OK)
            status = stored_base(a, head, q, calibrate_number_of(a->depends, "b"), base);
        for (int i = 0; i < n && status == KVL_OK; ++i) out[head * n + i] = (float)base[i];
        free(q);
    }
    return status;
}
