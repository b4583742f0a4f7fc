// kvl_kept.h -- rows that the engine names at their append, to stay in 16 bits beside their codes.
//
// A kept row is in the tail and in the pages as any other: pages, groups and row numbers do not
// depend on it.  Its copy lies in the window buffer, in the order of positions.  Readers of pages
// leave its codes out and read the copy instead; while it is in the tail, they read it there.
//
//     pages    | codes . . . . x . . . . . . x . . |      what kernels read of pages: the stretches
//     kept                     r             r            between the x, and the rows r
//
// What a sequence keeps is the first now.kept positions.  A cut lowers that number and writes
// nothing, so that forks go on sharing the buffer.  Rows that were dropped or released lose their
// place when another row is named.

#ifndef KVL_KEPT_H
#define KVL_KEPT_H

#include "kvl_store.h"

// How many of the rows that are kept stand before a position.
KVL__FN int64_t kvl__kept_before(const kvl__layer* l, const kvl__seq_layer* s, int64_t position)
{
    int64_t num = 0;
    if (s->now.kept == 0) return 0;
    const int64_t* positions = kvl__kept_positions(l, s);
    while (num < s->now.kept && positions[num] < position) ++num;
    return num;
}

// The number among kept rows of the one at a position; < 0: it is not kept.
KVL__FN int64_t kvl__kept_at(const kvl__layer* l, const kvl__seq_layer* s, int64_t position)
{
    const int64_t i = kvl__kept_before(l, s, position);
    return i < s->now.kept && kvl__kept_positions(l, s)[i] == position ? i : -1;
}

// Kept rows that no query sees any more.
KVL__FN int64_t kvl__kept_gone(const kvl__layer* l, const kvl__seq_layer* s)
{
    return kvl__kept_before(l, s, l->config.sink_len + kvl__gone_rows(&s->now));
}

// Takes their places back.  The window buffer is the sequence's own.
KVL__FN void kvl__kept_forget(const kvl__layer* l, kvl__seq_layer* s)
{
    const int64_t gone = kvl__kept_gone(l, s), left = s->now.kept - gone;
    if (gone == 0) return;
    for (int head = 0; head < l->config.num_kv_heads; ++head) {
        const kvl__windows w = kvl__windows_of(l, s, head);
        for (int side = 0; side < l->config.num_stored; ++side) {
            const int64_t dim = l->config.side[side].head_dim;
            memmove(w.kept[side], w.kept[side] + gone * dim, (size_t)(left * dim) * 2u);
        }
    }
    int64_t* positions = kvl__kept_positions(l, s);
    memmove(positions, positions + gone, (size_t)left * sizeof *positions);
    s->now.kept = left;
}

// Rows [row, row + num) after the sink, which were read back from their codes to the head of the
// tail, are as they were where they are kept.
KVL__FN void kvl__kept_return(const kvl__layer* l, const kvl__seq_layer* s, int head, int64_t row,
                              int64_t num)
{
    const kvl__windows w = kvl__windows_of(l, s, head);
    const int64_t first = l->config.sink_len + row;
    const int64_t end = kvl__kept_before(l, s, first + num);
    for (int64_t i = kvl__kept_before(l, s, first); i < end; ++i) {
        const int64_t at = kvl__kept_positions(l, s)[i] - first;
        for (int side = 0; side < l->config.num_stored; ++side) {
            const int64_t dim = l->config.side[side].head_dim;
            memcpy(w.tail[side] + at * dim, w.kept[side] + i * dim, (size_t)dim * 2u);
        }
    }
}

// The rows that an append names of one of its sequences.
typedef struct kvl__kept_names {
    const kvl__layer*     l;
    const kvl__seq_layer* s;
    int                   seq;         // of the batch
    int64_t               num_rows;    // that come
    const int32_t*        rows;        // [num] of these, rising
    int32_t               num;
} kvl__kept_names;

KVL__FN kvl_status kvl__check_kept(kvl_context* ctx, const kvl__kept_names* n)
{
    const kvl__config* c = &n->l->config;
    const int64_t there = n->s->now.kept > 0 ? n->s->now.kept - kvl__kept_gone(n->l, n->s) : 0;
    KVL__REQUIRE(ctx, n->num >= 0 && n->num <= c->kept_len - there, KVL_BAD_ARGUMENT,
                 "layer %d: num_kept[%d] = %d: kept = %d in the spec, and the sequence has %lld "
                 "such rows", n->l->number, n->seq, (int)n->num, c->kept_len, (long long)there);
    for (int32_t i = 0; i < n->num; ++i) {
        const int64_t row = n->rows[i], position = n->s->now.rows + row;
        KVL__REQUIRE(ctx, row >= 0 && row < n->num_rows, KVL_BAD_ARGUMENT,
                     "layer %d: kept: row %lld of sequence %d of the batch: %lld rows come",
                     n->l->number, (long long)row, n->seq, (long long)n->num_rows);
        KVL__REQUIRE(ctx, i == 0 || row > n->rows[i - 1], KVL_BAD_ARGUMENT,
                     "layer %d: kept: row %lld of sequence %d of the batch comes after row %d: "
                     "they must rise, each once", n->l->number, (long long)row, n->seq,
                     (int)n->rows[i - 1]);
        KVL__REQUIRE(ctx, position >= c->sink_len, KVL_BAD_ARGUMENT,
                     "layer %d: kept: row %lld of sequence %d of the batch is in the sink of %d "
                     "rows, which are in 16 bits", n->l->number, (long long)row, n->seq,
                     c->sink_len);
    }
    return KVL_OK;
}

#endif
