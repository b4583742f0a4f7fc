// kvl_turn.h -- keys before RoPE: turned back before they are encoded, turned again when read.
//
// gen/parts/pre_rope.lua has the definition.  Here are all three uses: rows before they are
// encoded, rows after they are decoded, and scores, as what kernels call
// (kvl__attend_args.add_shifts).

#ifndef KVL_TURN_H
#define KVL_TURN_H

#include "kvl_across.h"
#include "kvl_args.h"
#include "kvl_ref.h"
#include "kvl_rope.h"
#include "kvl_shift.h"
#include "kvl_sketch.h"

enum { KVL__TURN_ROWS = 16, KVL__TURN_FRESH = 64 };      // of a tile; tiles between fresh angles

// x [head_dim] turned to `position`; back from it with direction -1.
KVL__FN void kvl__turn_row(const double* turns, int head_dim, int64_t position, int direction,
                           float* x)
{
    const int dims = kvl__turning_dims(turns, head_dim);
    for (int i = 0; i < dims / 2; ++i) {
        const double angle = (double)position * turns[1 + i];
        const double c = cos(angle), s = direction * sin(angle);
        int a, b;
        kvl__pair_of(turns, dims, i, &a, &b);
        const double first = (double)x[a], second = (double)x[b];
        x[a] = (float)(first * c - second * s);
        x[b] = (float)(second * c + first * s);
    }
}

// Window rows [num, head_dim], contiguous, the first at `position`, to rows before RoPE.
KVL__FN void kvl__turn_rows_back(const kvl__codec* c, const double* turns, int64_t position,
                                 const uint16_t* rows, int64_t num, uint16_t* out)
{
    float x[KVL__MAX_HEAD_DIM];
    for (int64_t r = 0; r < num; ++r, rows += c->head_dim, out += c->head_dim) {
        for (int i = 0; i < c->head_dim; ++i) x[i] = kvl__row_to_f32(rows[i], c->rows);
        kvl__turn_row(turns, c->head_dim, position + r, -1, x);
        for (int i = 0; i < c->head_dim; ++i)
            out[i] = c->rows ? kvl__f32_to_bf16_finite(x[i]) : kvl__f32_to_f16_finite(x[i]);
    }
}

// SCORES
//
// q . R_t k = R_-t0 q . R_r k with t = t0 + r, r < KVL__TURN_ROWS: queries are turned once a tile,
// restored keys by cosines and sines that are a table, whatever tile it is.

typedef struct kvl__turn_scores {
    const kvl__attend_args* args;
    void      (*decode)(const kvl__decode_args*);
    const void* codec;                         // of keys
    const float*  tables;
    kvl__across   across;                      // where heads are read together; of these `head`
    int           head;
    const double* turns;
    const float*  q;                           // [num_heads, dim], plain
    int       dim, dims, pairs;
    int64_t   first;                           // position of row 0 of pages[0]
    int64_t   next;                            // position that c and s are for
    int       tiles;                           // since they were fresh
    double    c[KVL__MAX_STORED_DIM / 2], s[KVL__MAX_STORED_DIM / 2];            // of next
    double    step_c[KVL__MAX_STORED_DIM / 2], step_s[KVL__MAX_STORED_DIM / 2];  // of a tile
    float     cosines[KVL__TURN_ROWS][KVL__MAX_STORED_DIM / 2];
    float     sines[KVL__TURN_ROWS][KVL__MAX_STORED_DIM / 2];
    float     turned[KVL__MAX_HEADS][KVL__MAX_STORED_DIM];      // queries, pairs as halves
    float     rows[KVL__TURN_ROWS][KVL__MAX_STORED_DIM];
} kvl__turn_scores;

KVL__FN void kvl__turn_scores_start(const kvl__attend_args* args, const double* turns, int dim,
                                    int64_t first, kvl__turn_scores* w)
{
    w->args = args;
    w->codec = args->k_codec;
    w->turns = turns;
    w->q = args->q;
    w->dim = dim;
    w->dims = kvl__turning_dims(turns, dim);
    w->pairs = w->dims / 2;
    w->first = first;
    w->next = -1;
    w->tiles = 0;
    for (int i = 0; i < w->pairs; ++i)
        kvl__turn_table(turns[1 + i], KVL__TURN_ROWS, KVL__MAX_STORED_DIM / 2, &w->cosines[0][i],
                        &w->sines[0][i], &w->step_c[i], &w->step_s[i]);
}

// A row with the first channels of its pairs in front, then the second ones, then the others.
KVL__FN void kvl__turn_halves(const kvl__turn_scores* w, float* x)
{
    float seconds[KVL__MAX_STORED_DIM / 2];
    if (w->turns[0] != 0.0) return;
    for (int i = 0; i < w->pairs; ++i) {
        seconds[i] = x[2 * i + 1];
        x[i] = x[2 * i];
    }
    memcpy(x + w->pairs, seconds, (size_t)w->pairs * sizeof *x);
}

// Queries turned back by a position; angles go on by a tile from there.
KVL__FN void kvl__turn_queries(kvl__turn_scores* w, int64_t position)
{
    const int fresh = position != w->next || ++w->tiles >= KVL__TURN_FRESH;
    for (int i = 0; fresh && i < w->pairs; ++i) {
        w->c[i] = cos((double)position * w->turns[1 + i]);
        w->s[i] = sin((double)position * w->turns[1 + i]);
    }
    if (fresh) w->tiles = 0;
    for (int h = 0; h < w->args->num_heads; ++h) {
        float* x = w->turned[h];
        memcpy(x, w->q + h * w->dim, (size_t)w->dim * sizeof *x);
        kvl__turn_halves(w, x);
        for (int i = 0; i < w->pairs; ++i) {
            const float c = (float)w->c[i], s = (float)w->s[i], first = x[i];
            x[i] = first * c + x[w->pairs + i] * s;
            x[w->pairs + i] = x[w->pairs + i] * c - first * s;
        }
    }
    for (int i = 0; i < w->pairs; ++i)
        kvl__turn_on(&w->c[i], &w->s[i], w->step_c[i], w->step_s[i]);
    w->next = position + KVL__TURN_ROWS;
}

// Rows x [num, dim] get back what they have by their positions, the first at `position`.
KVL__FN void kvl__turn_shift_back(const kvl__turn_scores* w, int64_t position, int num, float* x)
{
    const kvl__codec* c = (const kvl__codec*)w->codec;
    float shift[KVL__MAX_STORED_DIM];
    for (int r = 0; kvl__shifts_by_position(c) && r < num; ++r, x += w->dim) {
        kvl__shift_at(c, w->tables, position + r, shift);
        for (int i = 0; i < w->dim; ++i) x[i] += shift[i];
    }
}

// Rows x [num, dim] of a tile, turned, to w->rows; x is used up.
KVL__FN void kvl__turn_rows_on(kvl__turn_scores* w, int num, float* x)
{
    for (int r = 0; r < num; ++r) {
        float *from = x + r * w->dim, *to = w->rows[r];
        kvl__turn_halves(w, from);
        const float *c = w->cosines[r], *s = w->sines[r], *second = from + w->pairs;
        for (int i = 0; i < w->pairs; ++i) to[i] = from[i] * c[i] - second[i] * s[i];
        for (int i = 0; i < w->pairs; ++i)
            to[w->pairs + i] = second[i] * c[i] + from[i] * s[i];
        for (int i = w->dims; i < w->dim; ++i) to[i] = from[i];
    }
}

// Rows [row, row + num) of a page, restored and turned as rows of a tile, to w->rows.
KVL__FN void kvl__turn_tile(kvl__turn_scores* w, int64_t row, int num)
{
    const int64_t page_size = w->args->page_size;
    float x[KVL__TURN_ROWS * KVL__MAX_STORED_DIM];
    kvl__decode_args a;
    memset(&a, 0, sizeof a);
    a.codec = w->codec;
    a.tables = w->tables;
    a.page = w->args->pages[row / page_size] + w->args->k_offset;
    a.page_size = w->args->page_size;
    a.first_row = (int32_t)(row % page_size);
    a.num_rows = num;
    a.rows = x;
    if (w->across.num_heads)
        kvl__across_decode(&w->across, w->args->pages[row / page_size], a.page_size, w->head,
                           a.first_row, num, x);
    else w->decode(&a);
    if (kvl__sketches((const kvl__codec*)w->codec)) kvl__sketch_restore(&a);
    kvl__turn_shift_back(w, w->first + row, num, x);
    kvl__turn_rows_on(w, num, x);
}

// a . b, dim a multiple of 16.
KVL__FN float kvl__turn_dot(const float* a, const float* b, int dim)
{
    float sums[16] = { 0 }, sum = 0;
    for (int i = 0; i < dim; i += 16)
        for (int j = 0; j < 16; ++j) sums[j] += a[i + j] * b[i + j];
    for (int j = 0; j < 16; ++j) sum += sums[j];
    return sum;
}

// kvl__attend_args.add_shifts: rows [row, row + num) lie in one page.
KVL__FN void kvl__turn_scores_add(void* state, int64_t row, int32_t num, float* scores,
                                  int64_t stride)
{
    kvl__turn_scores* w = (kvl__turn_scores*)state;
    for (int32_t done = 0; done < num; done += KVL__TURN_ROWS) {
        const int n = num - done < KVL__TURN_ROWS ? num - done : KVL__TURN_ROWS;
        kvl__turn_queries(w, w->first + row + done);
        kvl__turn_tile(w, row + done, n);
        for (int h = 0; h < w->args->num_heads; ++h)
            for (int r = 0; r < n; ++r)
                scores[h * stride + done + r] += kvl__turn_dot(w->turned[h], w->rows[r], w->dim);
    }
}

#endif
