// kvl_rope.h -- how keys were turned by their positions, as angles.

#ifndef KVL_ROPE_H
#define KVL_ROPE_H

#include "kvl_base.h"

// The angle by which pair i of dims / 2 turns at each position.
KVL__FN double kvl__rope_turn(const kvl_rope* rope, int dims, int i)
{
    const double base = rope->base > 0.0 ? rope->base : 10000.0;
    const double scale = rope->scale > 0.0 ? rope->scale : 1.0;
    const double factor = rope->factors ? (double)rope->factors[i] : 1.0;
    return scale * pow(base, -2.0 * i / dims) / factor;
}

// turns[0] is 1 for pairs (i, i + dims / 2), 0 for (2i, 2i + 1); turns[1 + i] is the angle by which
// pair i turns at each position, 0 for channels that do not turn.
KVL__FN void kvl__rope_turns(const kvl_rope* rope, int head_dim, double* turns)
{
    const int dims = rope->dims ? rope->dims : head_dim;
    memset(turns, 0, (size_t)(1 + head_dim / 2) * sizeof *turns);
    turns[0] = rope->split_halves ? 1.0 : 0.0;
    for (int i = 0; i < dims / 2; ++i) turns[1 + i] = kvl__rope_turn(rope, dims, i);
}

// The channels of pair i, as turns counts them, of `dims` channels that turn.
KVL__FN void kvl__pair_of(const double* turns, int dims, int i, int* a, int* b)
{
    const int halves = turns[0] != 0.0 && 2 * i < dims;
    *a = halves ? i : 2 * i;
    *b = halves ? i + dims / 2 : 2 * i + 1;
}

// Channels that turn, whole pairs.
KVL__FN int kvl__turning_dims(const double* turns, int head_dim)
{
    int dims = 0;
    for (int i = 0; i < head_dim / 2; ++i) dims = turns[1 + i] != 0.0 ? 2 * (i + 1) : dims;
    return dims;
}

// Cosine and sine of an angle that goes on by another.
KVL__FN void kvl__turn_on(double* c, double* s, double step_c, double step_s)
{
    const double old = *c;
    *c = old * step_c - *s * step_s;
    *s = *s * step_c + old * step_s;
}

// Cosines and sines of r times an angle, r < num, one every `stride` numbers; those of num times it
// go to *end_c and *end_s.
KVL__FN void kvl__turn_table(double angle, int num, int stride, float* cosines, float* sines,
                             double* end_c, double* end_s)
{
    const double step_c = cos(angle), step_s = sin(angle);
    double c = 1, s = 0;
    for (int r = 0; r < num; ++r) {
        cosines[r * stride] = (float)c;
        sines[r * stride] = (float)s;
        kvl__turn_on(&c, &s, step_c, step_s);
    }
    *end_c = c;
    *end_s = s;
}

KVL__FN kvl_status kvl__check_rope(kvl_context* ctx, int layer, const kvl_rope* rope, int head_dim)
{
    KVL__REQUIRE(ctx, rope->dims >= 0 && rope->dims <= head_dim && rope->dims % 2 == 0,
                 KVL_BAD_ARGUMENT, "layer %d: rope.dims = %d: must be even, from 0 to head_dim "
                 "= %d", layer, rope->dims, head_dim);
    KVL__REQUIRE(ctx, rope->base >= 0.0 && rope->base <= 1e300 && rope->scale >= 0.0 &&
                 rope->scale <= 1e300, KVL_BAD_ARGUMENT, "layer %d: rope.base = %g, rope.scale = "
                 "%g: must be finite and not negative", layer, rope->base, rope->scale);
    const int dims = rope->dims ? rope->dims : head_dim;
    for (int i = 0; rope->factors && i < dims / 2; ++i)
        KVL__REQUIRE(ctx, kvl__is_finite(rope->factors[i]) && rope->factors[i] > 0.0f,
                     KVL_BAD_ARGUMENT, "layer %d: rope.factors[%d] = %g: must be finite and above "
                     "0", layer, i, (double)rope->factors[i]);
    for (int i = 0; i < dims / 2; ++i) {
        const double turn = kvl__rope_turn(rope, dims, i);
        KVL__REQUIRE(ctx, turn <= DBL_MAX, KVL_BAD_ARGUMENT, "layer %d: rope.base = %g, rope.scale "
                     "= %g: pair %d turns by %g a position: must be finite", layer, rope->base,
                     rope->scale, i, turn);
    }
    return KVL_OK;
}

#endif
