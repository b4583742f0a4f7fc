// kvl_sketch.h -- norms and signs of random rotations of what the codes of keys leave.
//
// gen/parts/sketch.lua and sketch_apart.lua have the definition.  Here are all three uses: what is
// stored after rows are encoded, rows after they are decoded, and scores, as what kernels call
// (kvl__attend_args.add_shifts).  Nothing of it depends on the codec: residuals are of rows as
// windows have them.

#ifndef KVL_SKETCH_H
#define KVL_SKETCH_H

#include "kvl_args.h"
#include "kvl_ref.h"

enum { KVL__SKETCHES_MOST = 4, KVL__SKETCH_ROUNDS = 3 };

// A * b + c must not be fused where signs are decided.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif

// What a side's sketches are: rotations of a row, with those of channels apart; where the parts of
// a row begin in a unit; the signs of the rotations' rounds.
typedef struct kvl__sketch_shape {
    int32_t dim, number, apart, total;     // apart: 1 if there are channels apart
    int32_t unit_rows, row_bytes, bytes;   // of a unit
    int32_t head_bytes;                    // before its rows
    float   gain;
    float   flips[KVL__SKETCHES_MOST * KVL__SKETCH_ROUNDS][KVL__MAX_STORED_DIM];
} kvl__sketch_shape;

// ROTATIONS

KVL__FN float kvl__sketch_flip(int32_t channel, int round)
{
    uint32_t h = ((uint32_t)(channel + 1) + 1024u * (uint32_t)(round + 1)) * 2654435761u;
    h = (h ^ h >> 15) * 2246822519u;
    h ^= h >> 13;
    return h & 1u ? -1.0f : 1.0f;
}

// x [rows, columns] becomes [columns, rows].
KVL__FN void kvl__sketch_transpose(int32_t rows, int32_t columns, float* x)
{
    float y[KVL__MAX_STORED_DIM];
    if (rows == 1 || columns == 1) return;
    for (int32_t a = 0; a < rows; ++a)
        for (int32_t b = 0; b < columns; ++b) y[b * rows + a] = x[a * columns + b];
    memcpy(x, y, (size_t)(rows * columns) * sizeof *x);
}

// x [dim] in place becomes Q_which x.
KVL__FN void kvl__sketch_turn(const kvl__sketch_shape* s, int which, float* x)
{
    const int32_t dim = s->dim, piece = dim & -dim;
    for (int i = 0; i < KVL__SKETCH_ROUNDS; ++i) {
        const float* flips = s->flips[which * KVL__SKETCH_ROUNDS + i];
        for (int32_t c = 0; c < dim; ++c) x[c] *= flips[c];
        kvl__hadamard(x, dim, piece);
        kvl__sketch_transpose(dim / piece, piece, x);
    }
}

KVL__FN void kvl__sketch_turn_back(const kvl__sketch_shape* s, int which, float* x)
{
    const int32_t dim = s->dim, piece = dim & -dim;
    for (int i = KVL__SKETCH_ROUNDS - 1; i >= 0; --i) {
        const float* flips = s->flips[which * KVL__SKETCH_ROUNDS + i];
        kvl__sketch_transpose(piece, dim / piece, x);
        kvl__hadamard(x, dim, piece);
        for (int32_t c = 0; c < dim; ++c) x[c] *= flips[c];
    }
}

// sqrt(pi) G((d + 1) / 2) / (d G(d / 2)): for even d a product.
KVL__FN float kvl__sketch_gain(int32_t dim)
{
    double product = 1.5707963267948966 / dim;
    for (int i = 1; i < dim / 2; ++i) product *= 1.0 + 0.5 / i;
    return (float)product;
}

// STORED

KVL__FN void kvl__sketch_shape_of(const kvl__codec* c, kvl__sketch_shape* s)
{
    s->dim = c->head_dim;
    s->number = kvl__sketches(c);
    s->apart = kvl__keeps_apart(c);
    s->total = s->number + s->apart;
    s->unit_rows = kvl__extra_rows(c);
    s->bytes = kvl__extra_bytes(c);
    s->head_bytes = s->apart ? KVL__APART_CHANNELS : 0;
    s->row_bytes = (s->bytes - s->head_bytes) / s->unit_rows;
    s->gain = kvl__sketch_gain(s->dim);
    for (int i = 0; i < s->number * KVL__SKETCH_ROUNDS; ++i)
        for (int32_t channel = 0; channel < s->dim; ++channel)
            s->flips[i][channel] = kvl__sketch_flip(channel, i);
}

// The unit of a row of a page, and the row in it.
KVL__FN unsigned char* kvl__sketch_unit(const kvl__codec* c, const kvl__sketch_shape* s,
                                        int32_t page_size, const unsigned char* page, int64_t row)
{
    const kvl__side_layout l = kvl__layout_of(c, page_size);
    return (unsigned char*)(uintptr_t)page + l.extra_at + row / s->unit_rows * s->bytes;
}

KVL__FN unsigned char* kvl__sketch_row(const kvl__sketch_shape* s, unsigned char* unit, int64_t row)
{
    return unit + s->head_bytes + row % s->unit_rows * s->row_bytes;
}

// The signs of rotation `which` of part p (0, or 1 for channels apart) of a stored row.
KVL__FN unsigned char* kvl__sketch_signs(const kvl__sketch_shape* s, unsigned char* row, int p,
                                         int which)
{
    return row + 2 + 2 * s->apart + (p ? s->number : which) * (s->dim / 8);
}

// The channels that rows r [num, dim] of a unit keep apart, rising.
KVL__FN void kvl__sketch_choose(const kvl__sketch_shape* s, const float* r, int32_t num,
                                unsigned char* channels)
{
    float sums[KVL__MAX_STORED_DIM];
    unsigned char taken[KVL__MAX_STORED_DIM] = { 0 };
    for (int32_t i = 0; i < s->dim; ++i) sums[i] = 0.0f;
    for (int32_t t = 0; t < num; ++t)
        for (int32_t i = 0; i < s->dim; ++i) sums[i] += r[t * s->dim + i] * r[t * s->dim + i];
    for (int n = 0; n < KVL__APART_CHANNELS; ++n) {
        int32_t best = -1;
        for (int32_t i = 0; i < s->dim; ++i)
            if (!taken[i] && (best < 0 || sums[i] > sums[best])) best = i;
        taken[best] = 1;
    }
    for (int32_t i = 0; i < s->dim; ++i)
        if (taken[i]) *channels++ = (unsigned char)i;
}

// Takes the channels apart out of x [dim]: they are all that out [dim] has.
KVL__FN void kvl__sketch_part(const kvl__sketch_shape* s, const unsigned char* channels, float* x,
                              float* out)
{
    memset(out, 0, (size_t)s->dim * sizeof *out);
    for (int n = 0; s->apart && n < KVL__APART_CHANNELS; ++n) {
        if (channels[n] >= s->dim) continue;
        out[channels[n]] = x[channels[n]];
        x[channels[n]] = 0.0f;
    }
}

// Part p of a row, x [dim], becomes its norm and signs.
KVL__FN void kvl__sketch_store(const kvl__sketch_shape* s, int p, const float* x,
                               unsigned char* row)
{
    float sum = 0.0f, y[KVL__MAX_STORED_DIM];
    for (int32_t i = 0; i < s->dim; ++i) sum += x[i] * x[i];
    kvl__put_u16(row + 2 * p, kvl__f32_to_f16_finite(sqrtf(sum)));
    for (int which = 0; which < (p ? 1 : s->number); ++which) {
        unsigned char* signs = kvl__sketch_signs(s, row, p, which);
        memset(signs, 0, (size_t)(s->dim / 8));
        memcpy(y, x, (size_t)s->dim * sizeof *x);
        kvl__sketch_turn(s, which, y);
        for (int32_t i = 0; i < s->dim; ++i)
            if (!(y[i] < 0.0f)) signs[i / 8] = (unsigned char)(signs[i / 8] | 1u << i % 8);
    }
}

// Beside the codes of rows that are encoded: whole units.  decode: of the program's keys.
KVL__FN void kvl__sketch_encode(const kvl__encode_args* a, void (*decode)(const kvl__decode_args*))
{
    enum { ROWS = KVL__APART_ROWS };
    const kvl__codec* c = (const kvl__codec*)a->codec;
    kvl__sketch_shape s;
    kvl__sketch_shape_of(c, &s);
    const float most = ldexpf(1.0f, 56);           // squares of 256 have a sum
    float r[ROWS * KVL__MAX_STORED_DIM], out[KVL__MAX_STORED_DIM];
    kvl__decode_args d;
    memset(&d, 0, sizeof d);
    d.codec = c;
    d.tables = a->tables;
    d.page = a->page;
    d.page_size = a->page_size;
    d.rows = r;
    for (int32_t done = 0; done < a->num_rows; done += d.num_rows) {
        d.first_row = a->first_row + done;
        d.num_rows = a->num_rows - done < s.unit_rows ? a->num_rows - done : s.unit_rows;
        decode(&d);
        unsigned char* unit = kvl__sketch_unit(c, &s, a->page_size, a->page, d.first_row);
        for (int32_t t = 0; t < d.num_rows; ++t)
            for (int32_t i = 0; i < s.dim; ++i) {
                const float x = kvl__row_to_f32(a->rows[(done + t) * a->row_stride + i], c->rows);
                r[t * s.dim + i] = kvl__clamp(x - r[t * s.dim + i], -most, most);
            }
        if (s.apart) kvl__sketch_choose(&s, r, d.num_rows, unit);
        for (int32_t t = 0; t < d.num_rows; ++t) {
            unsigned char* row = kvl__sketch_row(&s, unit, d.first_row + t);
            kvl__sketch_part(&s, unit, r + t * s.dim, out);
            kvl__sketch_store(&s, 0, r + t * s.dim, row);
            if (s.apart) kvl__sketch_store(&s, 1, out, row);
        }
    }
}

#if !defined(__clang__) && defined(__GNUC__)
#pragma GCC pop_options
#endif

// READ

// Signs as 1 and -1: four bits at a time are looked up.
KVL__FN void kvl__sketch_spread(const unsigned char* signs, int32_t dim, float* x)
{
#define KVL__SIGN(n, bit) (((n) & (bit)) ? 1.0f : -1.0f)
#define KVL__SIGNS(n) { KVL__SIGN(n, 1), KVL__SIGN(n, 2), KVL__SIGN(n, 4), KVL__SIGN(n, 8) }
    static const float four[16][4] = {
        KVL__SIGNS(0),  KVL__SIGNS(1),  KVL__SIGNS(2),  KVL__SIGNS(3),
        KVL__SIGNS(4),  KVL__SIGNS(5),  KVL__SIGNS(6),  KVL__SIGNS(7),
        KVL__SIGNS(8),  KVL__SIGNS(9),  KVL__SIGNS(10), KVL__SIGNS(11),
        KVL__SIGNS(12), KVL__SIGNS(13), KVL__SIGNS(14), KVL__SIGNS(15) };
#undef KVL__SIGNS
#undef KVL__SIGN
    for (int32_t i = 0; i < dim; i += 8, ++signs) {
        memcpy(x + i, four[*signs & 15], sizeof four[0]);
        memcpy(x + i + 4, four[*signs >> 4], sizeof four[0]);
    }
}

// What part p of a stored row adds, joins x [dim].
KVL__FN void kvl__sketch_read(const kvl__sketch_shape* s, int p, unsigned char* row,
                              const unsigned char* channels, float* x)
{
    const int number = p ? 1 : s->number;
    const float scale = s->gain * kvl__f16_to_f32(kvl__get_u16(row + 2 * p)) / (float)number;
    float sum[KVL__MAX_STORED_DIM], out[KVL__MAX_STORED_DIM], y[KVL__MAX_STORED_DIM];
    memset(sum, 0, sizeof sum);
    for (int which = 0; which < number; ++which) {
        kvl__sketch_spread(kvl__sketch_signs(s, row, p, which), s->dim, y);
        kvl__sketch_turn_back(s, which, y);
        for (int32_t i = 0; i < s->dim; ++i) sum[i] += y[i];
    }
    kvl__sketch_part(s, channels, sum, out);           // each part has its channels alone
    for (int32_t i = 0; i < s->dim; ++i) x[i] += scale * (p ? out[i] : sum[i]);
}

// Adds to restored rows what their sketches have.
KVL__FN void kvl__sketch_restore(const kvl__decode_args* a)
{
    const kvl__codec* c = (const kvl__codec*)a->codec;
    kvl__sketch_shape s;
    kvl__sketch_shape_of(c, &s);
    for (int32_t t = 0; a->rows && t < a->num_rows; ++t) {
        unsigned char* unit = kvl__sketch_unit(c, &s, a->page_size, a->page, a->first_row + t);
        unsigned char* row = kvl__sketch_row(&s, unit, a->first_row + t);
        for (int p = 0; p <= s.apart; ++p)
            kvl__sketch_read(&s, p, row, unit, a->rows + (int64_t)t * s.dim);
    }
}

// SCORES

typedef struct kvl__sketch_scores {
    const kvl__attend_args* args;
    const kvl__codec*       codec;
    kvl__sketch_shape       shape;
    const unsigned char*    unit;                      // that turned queries are for; NULL: any
    float                   q[KVL__MAX_HEADS][KVL__MAX_STORED_DIM];
    // Queries in each rotation, then those of channels apart.
    float turned[KVL__MAX_HEADS][(KVL__SKETCHES_MOST + 1) * KVL__MAX_STORED_DIM];
} kvl__sketch_scores;

// Queries for the rows of a unit.
KVL__FN void kvl__sketch_queries(kvl__sketch_scores* w, const unsigned char* unit)
{
    const kvl__sketch_shape* s = &w->shape;
    const size_t bytes = (size_t)s->dim * sizeof(float);
    float in[KVL__MAX_STORED_DIM], out[KVL__MAX_STORED_DIM];
    for (int h = 0; h < w->args->num_heads; ++h) {
        memcpy(in, w->q[h], bytes);
        kvl__sketch_part(s, unit, in, out);
        for (int which = 0; which < s->total; ++which) {
            const int apart = which == s->number;
            float* to = w->turned[h] + which * s->dim;
            memcpy(to, apart ? out : in, bytes);
            kvl__sketch_turn(s, apart ? 0 : which, to);
        }
    }
    w->unit = unit;
}

// q [num_heads, dim]: plain queries, before they change their basis.
KVL__FN void kvl__sketch_scores_start(const kvl__attend_args* args, const float* q,
                                      kvl__sketch_scores* w)
{
    w->args = args;
    w->codec = (const kvl__codec*)args->k_codec;
    kvl__sketch_shape_of(w->codec, &w->shape);
    w->unit = NULL;
    for (int h = 0; h < args->num_heads; ++h)
        memcpy(w->q[h], q + h * w->shape.dim, (size_t)w->shape.dim * sizeof(float));
    if (!w->shape.apart) kvl__sketch_queries(w, NULL);
}

// a . b, dim a multiple of 16.
KVL__FN float kvl__sketch_dot(const float* a, const float* b, int dim)
{
    float sums[16] = { 0 }, sum = 0;
    for (int i = 0; i < dim; i += 16)
        for (int j = 0; j < 16; ++j) sums[j] += a[i + j] * b[i + j];
    for (int j = 0; j < 16; ++j) sum += sums[j];
    return sum;
}

// kvl__attend_args.add_shifts: rows [row, row + num) lie in one page.
KVL__FN void kvl__sketch_scores_add(void* state, int64_t row, int32_t num, float* scores,
                                    int64_t stride)
{
    kvl__sketch_scores* w = (kvl__sketch_scores*)state;
    const kvl__sketch_shape* s = &w->shape;
    const int32_t page_size = w->args->page_size;
    float signs[(KVL__SKETCHES_MOST + 1) * KVL__MAX_STORED_DIM];
    for (int32_t t = 0; t < num; ++t, ++row) {
        const unsigned char* page = w->args->pages[row / page_size] + w->args->k_offset;
        unsigned char* unit =
            kvl__sketch_unit(w->codec, s, page_size, page, row % page_size);
        unsigned char* at = kvl__sketch_row(s, unit, row % page_size);
        if (s->apart && unit != w->unit) kvl__sketch_queries(w, unit);
        const float factor = s->gain * kvl__f16_to_f32(kvl__get_u16(at)) / (float)s->number;
        const float apart = s->gain * kvl__f16_to_f32(kvl__get_u16(at + 2));
        kvl__sketch_spread(kvl__sketch_signs(s, at, 0, 0), s->total * s->dim, signs);
        for (int h = 0; h < w->args->num_heads; ++h) {
            const float* q = w->turned[h];
            const int all = s->number * s->dim;
            scores[h * stride + t] += factor * kvl__sketch_dot(q, signs, all);
            if (s->apart)
                scores[h * stride + t] += apart * kvl__sketch_dot(q + all, signs + all, s->dim);
        }
    }
}

#endif
