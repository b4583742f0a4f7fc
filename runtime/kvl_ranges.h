// kvl_ranges.h -- calibrated ranges of key channels and books of levels, from sampled runs of keys.
//
// gen/parts/fit_static.lua and kmeans.lua say what they are for.  Rows of the first KVL__SKIP_SINK
// positions are left out: a cache keeps them in 16 bits.

#ifndef KVL_RANGES_H
#define KVL_RANGES_H

#include "kvl_statistics.h"
#include "kvl_turn.h"

enum { KVL__BOOK_LEVELS = 16, KVL__BOOK_ROUNDS = 50 };

typedef struct kvl__weighted {
    double x, weight;
} kvl__weighted;

KVL__FN int kvl__compare_floats(const void* a, const void* b)
{
    const float x = *(const float*)a, y = *(const float*)b;
    return x < y ? -1 : x > y;
}

KVL__FN int kvl__compare_weighted(const void* a, const void* b)
{
    const kvl__weighted *x = (const kvl__weighted*)a, *y = (const kvl__weighted*)b;
    if (x->x != y->x) return x->x < y->x ? -1 : 1;
    return x->weight < y->weight ? -1 : x->weight > y->weight;
}

// unrotated, here and below: sampled keys are to be turned back.

// What keeps sampled runs from being used; NULL: nothing.
KVL__FN const char* kvl__ranges_lack(const kvl__layer_statistics* l, int unrotated)
{
    const kvl__sample* keys = &l->heads[0].keys;
    if (keys->num == 0) return "the statistics have no run of 128 keys of one sequence";
    if (unrotated && !l->turns) return "needs to know how keys turn: kvl_layer_desc.rope";
    for (int h = 0; h < l->num_kv_heads; ++h)
        for (int i = 0; unrotated && i < keys->num; ++i)
            if (l->heads[h].keys.first[i] < 0.0)
                return "the statistics do not say at which positions sampled keys stood: they are "
                       "of an older library, and must be taken again";
    return NULL;
}

// Sampled keys of a head by channel, [dk, rows], before RoPE or as they are; returns how many rows,
// at most num * KVL__RUN_ROWS.
KVL__FN int64_t kvl__ranges_rows(const kvl__layer_statistics* l, int head, int unrotated,
                                 float* out, int64_t stride)
{
    const kvl__sample* keys = &l->heads[head].keys;
    float row[KVL__MAX_DIM];
    int64_t num = 0;
    for (int i = 0; i < keys->num; ++i)
        for (int r = 0; r < KVL__RUN_ROWS; ++r) {
            const double position = keys->first[i] + r;
            if (keys->first[i] >= 0.0 && position < (int)KVL__SKIP_SINK) continue;
            memcpy(row, keys->items + i * keys->floats + r * l->dk, (size_t)l->dk * sizeof *row);
            if (unrotated) kvl__turn_row(l->turns, l->dk, (int64_t)position, -1, row);
            for (int c = 0; c < l->dk; ++c) out[c * stride + num] = row[c];
            ++num;
        }
    return num;
}

// From the quantile 0.005 to the quantile 0.995 of x [num], which is put in order.
KVL__FN void kvl__range_of(float* x, int64_t num, float* middle, float* half)
{
    const int64_t out = num / 200;
    qsort(x, (size_t)num, sizeof *x, kvl__compare_floats);
    *middle = 0.5f * x[out] + 0.5f * x[num - 1 - out];
    *half = 0.5f * x[num - 1 - out] - 0.5f * x[out];
    if (!(*half > 0.0f)) *half = 1.0f;             // equal values: at the middle
}

// What an error of a channel costs, but for a factor: the query's second moment there; of channels
// that turn together their mean.
KVL__FN double kvl__range_weight(const kvl__layer_statistics* l, int head, int unrotated, int c)
{
    const double* moment = l->heads[head].moments[KVL__MOMENT_QUERY];
    const int d = l->dk, dims = unrotated ? kvl__turning_dims(l->turns, d) : 0;
    for (int i = 0; i < dims / 2; ++i) {
        int a, b;
        kvl__pair_of(l->turns, dims, i, &a, &b);
        if (a == c || b == c) return 0.5 * (moment[a * d + a] + moment[b * d + b]);
    }
    return moment[c * d + c];
}

// Levels [levels] of least weighted squared error, rising, of items in order: Lloyd's rounds from
// quantiles of the weight on.
KVL__FN void kvl__cluster(const kvl__weighted* items, int64_t num, int levels, double* out)
{
    double total = 0, seen = 0;
    int next = 0;
    for (int64_t i = 0; i < num; ++i) total += items[i].weight;
    for (int64_t i = 0; i < num && next < levels; ++i) {
        seen += items[i].weight;
        while (next < levels && seen >= total * (next + 0.5) / levels) out[next++] = items[i].x;
    }
    for (; next < levels; ++next) out[next] = items[num - 1].x;
    for (int round = 0; round < KVL__BOOK_ROUNDS; ++round) {
        int64_t i = 0;
        for (int k = 0; k < levels; ++k) {
            const double bound = k + 1 < levels ? 0.5 * (out[k] + out[k + 1]) : (double)INFINITY;
            double sum = 0, weight = 0;
            for (; i < num && items[i].x < bound; ++i) {
                sum += items[i].weight * items[i].x;
                weight += items[i].weight;
            }
            if (weight > 0) out[k] = sum / weight;
        }
    }
}

// middle and half [num_kv_heads, dk] of a layer; NULL: not asked.
KVL__FN kvl_status kvl__ranges_derive(kvl_context* ctx, const kvl__layer_statistics* l,
                                      int unrotated, float* middle, float* half)
{
    const int64_t most = (int64_t)l->heads[0].keys.num * KVL__RUN_ROWS;
    const size_t bytes = (size_t)(most * l->dk) * sizeof(float);
    float* rows = (float*)kvl__alloc(ctx, bytes);
    if (!rows) return kvl__statistics_no_memory(ctx);
    for (int h = 0; h < l->num_kv_heads; ++h) {
        const int64_t num = kvl__ranges_rows(l, h, unrotated, rows, most);
        for (int c = 0; c < l->dk; ++c) {
            float m, s;
            kvl__range_of(rows + c * most, num, &m, &s);
            if (middle) middle[h * l->dk + c] = m;
            if (half) half[h * l->dk + c] = s;
        }
    }
    kvl__free(ctx, rows, bytes);
    return KVL_OK;
}

// Items of a head that are in their channel's range; returns how many.
KVL__FN int64_t kvl__book_items(const kvl__layer_statistics* l, int head, int unrotated,
                                float* rows, int64_t most, kvl__weighted* out)
{
    const int64_t num = kvl__ranges_rows(l, head, unrotated, rows, most);
    int64_t count = 0;
    for (int c = 0; c < l->dk; ++c) {
        float* x = rows + c * most;
        float middle, half;
        kvl__range_of(x, num, &middle, &half);
        const double weight = kvl__range_weight(l, head, unrotated, c) * (double)half *
                              (double)half;
        for (int64_t i = 0; i < num; ++i) {
            const double y = ((double)x[i] - (double)middle) / (double)half;
            if (fabs(y) > 1.0) continue;
            out[count].x = y;
            out[count++].weight = weight;
        }
    }
    return count;
}

// book [num_kv_heads, KVL__BOOK_LEVELS]: the same of all heads, the levels of `bits`, then the last
// of them.
KVL__FN kvl_status kvl__book_derive(kvl_context* ctx, const kvl__layer_statistics* l,
                                    int unrotated, int bits, float* book)
{
    const int64_t most = (int64_t)l->heads[0].keys.num * KVL__RUN_ROWS, values = most * l->dk;
    const size_t bytes = (size_t)values * sizeof(float);
    const size_t item_bytes = (size_t)(values * l->num_kv_heads) * sizeof(kvl__weighted);
    float* rows = (float*)kvl__alloc(ctx, bytes);
    kvl__weighted* items = (kvl__weighted*)kvl__alloc(ctx, item_bytes);
    double levels[KVL__BOOK_LEVELS] = { 0 };
    int64_t num = 0;
    for (int h = 0; rows && items && h < l->num_kv_heads; ++h)
        num += kvl__book_items(l, h, unrotated, rows, most, items + num);
    if (num > 0) {
        qsort(items, (size_t)num, sizeof *items, kvl__compare_weighted);
        kvl__cluster(items, num, 1 << bits, levels);
    }
    for (int i = 0; i < l->num_kv_heads * KVL__BOOK_LEVELS; ++i) {
        const int k = i % KVL__BOOK_LEVELS;
        book[i] = (float)levels[k < 1 << bits ? k : (1 << bits) - 1];
    }
    const int failed = !rows || !items;
    if (rows) kvl__free(ctx, rows, bytes);
    if (items) kvl__free(ctx, items, item_bytes);
    return failed ? kvl__statistics_no_memory(ctx) : KVL_OK;
}

#endif
