// kvl_pairs.h -- bits and sizes of RoPE pairs, from second moments of keys and queries.
//
// gen/parts/pairs.lua says what they are for.  What a pair has is the same before RoPE and after
// it: both moments turn with it.

#ifndef KVL_PAIRS_H
#define KVL_PAIRS_H

#include "kvl_record.h"
#include "kvl_statistics.h"

// What keeps the statistics from being used; NULL: nothing.
KVL__FN const char* kvl__pairs_lack(const kvl__layer_statistics* l)
{
    if (!l->turns) return "needs to know how keys turn: kvl_layer_desc.rope";
    if (!(l->counts[KVL__COUNT_ROWS] > 0.0)) return "the statistics have no rows";
    if (!(l->counts[KVL__COUNT_QUERIES] > 0.0)) return "the statistics have no queries";
    return NULL;
}

// The mean that a side's keys are stored without, as a sum over rows; NULL: none.  unrotated: the
// statistics are of keys before RoPE.
KVL__FN const double* kvl__pairs_sum(const kvl__layer_statistics* l, int head, const kvl__codec* c,
                                     int unrotated)
{
    const int before = kvl__is_unrotated(c) || kvl__shifts_by_position(c);
    if (c->words[KVL__STAGE_SHIFT] == KVL__SHIFT_NONE) return NULL;
    return l->heads[head].sums[before && !unrotated ? KVL__SUM_KEY_UNROTATED : KVL__SUM_KEY];
}

// E|k|^2 of the channels a and b of a head, without what keys are shifted by.
KVL__FN double kvl__pairs_keys(const kvl__layer_statistics* l, int head, const double* sum, int a,
                               int b)
{
    const double* moment = l->heads[head].moments[KVL__MOMENT_KEY];
    const double rows = l->counts[KVL__COUNT_ROWS];
    double energy = (moment[a * l->dk + a] + moment[b * l->dk + b]) / rows;
    if (sum) energy -= (sum[a] * sum[a] + sum[b] * sum[b]) / (rows * rows);
    return energy > 0.0 ? energy : 0.0;
}

// Gives `budget` bits to pairs of energies s: to the one whose next bit takes most off the sum of
// s 4^-n, one after the other.
KVL__FN void kvl__pairs_share(const double* s, int num, int budget, int* n)
{
    double left[KVL__MAX_STORED_DIM / 2];
    for (int i = 0; i < num; ++i) {
        left[i] = s[i];
        n[i] = 0;
    }
    for (; budget > 0; --budget) {
        int best = -1;
        for (int i = 0; i < num; ++i)
            if (n[i] < KVL__WIDTH_MOST && (best < 0 || left[i] > left[best])) best = i;
        left[best] *= 0.25;
        ++n[best];
    }
}

// bits and size [num_kv_heads, dk] of a layer; NULL: not asked.
KVL__FN void kvl__pairs_derive(const kvl__layer_statistics* l, const kvl__codec* c, int unrotated,
                               float* bits, float* size)
{
    const int d = l->dk, num = d / 2, dims = kvl__turning_dims(l->turns, d);
    const double queries =
        l->counts[KVL__COUNT_QUERIES] * (double)(l->num_q_heads / l->num_kv_heads);
    for (int h = 0; h < l->num_kv_heads; ++h) {
        const double* moment = l->heads[h].moments[KVL__MOMENT_QUERY];
        const double* sum = kvl__pairs_sum(l, h, c, unrotated);
        double s[KVL__MAX_STORED_DIM / 2];
        int n[KVL__MAX_STORED_DIM / 2], a, b;
        for (int i = 0; i < num; ++i) {
            kvl__pair_of(l->turns, dims, i, &a, &b);
            const double energy = kvl__pairs_keys(l, h, sum, a, b), root = sqrt(0.5 * energy);
            s[i] = 0.5 * ((moment[a * d + a] + moment[b * d + b]) / queries + energy);
            if (size) size[h * d + a] = size[h * d + b] = (float)root > 0.0f ? (float)root : 1.0f;
        }
        if (!bits) continue;
        kvl__pairs_share(s, num, num * c->bits, n);
        for (int i = 0; i < num; ++i) {
            kvl__pair_of(l->turns, dims, i, &a, &b);
            bits[h * d + a] = bits[h * d + b] = (float)n[i];
        }
    }
}

#endif
