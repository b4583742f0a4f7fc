// kvl_shift.h -- keys without the mean that they have before RoPE, turned to their positions.
//
// gen/parts/rotating-mean.lua has the definition.  Here are all three uses of R_t m: rows before
// they are encoded, rows after they are decoded, and scores, as what kernels call
// (kvl__attend_args.add_shifts).

#ifndef KVL_SHIFT_H
#define KVL_SHIFT_H

#include "kvl_args.h"
#include "kvl_ref.h"
#include "kvl_rope.h"

enum { KVL__SHIFT_ROWS = 16, KVL__SHIFT_FRESH = 64 };    // of a tile; tiles between fresh angles

// out [head_dim] = R_t m.
KVL__FN void kvl__shift_at(const kvl__codec* c, const float* tables, int64_t position, float* out)
{
    const float* mean = tables + kvl__table_at(c, "rotating_mean");
    const float *side = mean + c->head_dim, *angle = side + c->head_dim;
    for (int i = 0; i < c->head_dim; ++i) {
        const double turn = (double)position * (double)angle[i];
        out[i] = (float)((double)mean[i] * cos(turn) + (double)side[i] * sin(turn));
    }
}

// Window rows [num, head_dim], contiguous, the first at `position`, to rows without R_t m.
KVL__FN void kvl__shift_rows(const kvl__codec* c, const float* tables, int64_t position,
                             const uint16_t* rows, int64_t num, uint16_t* out)
{
    float shift[KVL__MAX_HEAD_DIM];
    for (int64_t r = 0; r < num; ++r, rows += c->head_dim, out += c->head_dim) {
        kvl__shift_at(c, tables, position + r, shift);
        for (int i = 0; i < c->head_dim; ++i) {
            const float y = kvl__row_to_f32(rows[i], c->rows) - shift[i];
            out[i] = c->rows ? kvl__f32_to_bf16_finite(y) : kvl__f32_to_f16_finite(y);
        }
    }
}

// SCORES
//
// q . R_t m = sum over angles a of A cos(t a) + B sin(t a), A and B of the one or two channels that
// turn by a.  With t = t0 + r, r < KVL__SHIFT_ROWS, A and B are turned to t0 once a tile, and
// cosines and sines of r a are a table.

typedef struct kvl__shift_scores {
    int     num_heads, num;                    // angles
    int64_t first;                             // position of the row that the caller counts as 0
    int64_t next;                              // position that c and s are for
    int     tiles;                             // since they were fresh
    double  angle[KVL__MAX_STORED_DIM];
    double  c[KVL__MAX_STORED_DIM], s[KVL__MAX_STORED_DIM];        // of next
    double  step_c[KVL__MAX_STORED_DIM], step_s[KVL__MAX_STORED_DIM];     // of a tile
    float   cosines[KVL__MAX_STORED_DIM][KVL__SHIFT_ROWS];
    float   sines[KVL__MAX_STORED_DIM][KVL__SHIFT_ROWS];
    float   a[KVL__MAX_HEADS][KVL__MAX_STORED_DIM], b[KVL__MAX_HEADS][KVL__MAX_STORED_DIM];
} kvl__shift_scores;

// The channel that turns with channel i; i where none does, or the table says nonsense.
KVL__FN int kvl__shift_partner(const float* mean, int dim, int i)
{
    const float *angle = mean + 2 * dim, *partner = angle + dim;
    const int other = partner[i] >= 0.0f && partner[i] < (float)dim ? (int)partner[i] : i;
    return partner[other] == (float)i && angle[other] == angle[i] ? other : i;
}

// q [num_heads, head_dim] times softmax_scale, in the original basis.
KVL__FN void kvl__shift_scores_start(const kvl__codec* codec, const float* tables, const float* q,
                                     int num_heads, int64_t first, kvl__shift_scores* w)
{
    const int dim = codec->head_dim;
    const float* mean = tables + kvl__table_at(codec, "rotating_mean");
    const float *side = mean + dim, *angle = side + dim;
    w->num_heads = num_heads;
    w->first = first;
    w->next = -1;
    w->num = 0;
    for (int i = 0; i < dim; ++i) {
        const int other = kvl__shift_partner(mean, dim, i), at = w->num;
        if (other < i) continue;
        w->angle[at] = (double)angle[i];
        kvl__turn_table(w->angle[at], KVL__SHIFT_ROWS, 1, w->cosines[at], w->sines[at],
                        &w->step_c[at], &w->step_s[at]);
        for (int h = 0; h < num_heads; ++h) {
            const float* x = q + h * dim;
            w->a[h][at] = x[i] * mean[i] + (other != i ? x[other] * mean[other] : 0.0f);
            w->b[h][at] = x[i] * side[i] + (other != i ? x[other] * side[other] : 0.0f);
        }
        ++w->num;
    }
}

KVL__FN void kvl__shift_turn_to(kvl__shift_scores* w, int64_t position)
{
    const int fresh = position != w->next || ++w->tiles >= KVL__SHIFT_FRESH;
    for (int i = 0; fresh && i < w->num; ++i) {
        w->c[i] = cos((double)position * w->angle[i]);
        w->s[i] = sin((double)position * w->angle[i]);
    }
    if (fresh) w->tiles = 0;
    w->next = position;
}

// kvl__attend_args.add_shifts
KVL__FN void kvl__shift_scores_add(void* state, int64_t row, int32_t num, float* scores,
                                   int64_t stride)
{
    kvl__shift_scores* w = (kvl__shift_scores*)state;
    for (int32_t done = 0; done < num; done += KVL__SHIFT_ROWS) {
        const int n = num - done < KVL__SHIFT_ROWS ? num - done : KVL__SHIFT_ROWS;
        kvl__shift_turn_to(w, w->first + row + done);
        for (int h = 0; h < w->num_heads; ++h) {
            float sum[KVL__SHIFT_ROWS] = { 0 };
            for (int i = 0; i < w->num; ++i) {
                const float c = (float)w->c[i], s = (float)w->s[i];
                const float a = w->a[h][i] * c + w->b[h][i] * s;
                const float b = w->b[h][i] * c - w->a[h][i] * s;
                for (int r = 0; r < KVL__SHIFT_ROWS; ++r)
                    sum[r] += a * w->cosines[i][r] + b * w->sines[i][r];
            }
            for (int r = 0; r < n; ++r) scores[h * stride + done + r] += sum[r];
        }
        for (int i = 0; i < w->num; ++i)
            kvl__turn_on(&w->c[i], &w->s[i], w->step_c[i], w->step_s[i]);
        w->next += KVL__SHIFT_ROWS;
    }
}

#endif
