// kvl_plan.h -- lengths -> which rows are where, and in how many splits they are read: arithmetic.
//
// Splits depend on the rows that a query sees, never on threads or on the rest of the batch: a
// sequence in a batch gives the bytes that it gives alone, for any number of threads.

#ifndef KVL_PLAN_H
#define KVL_PLAN_H

#include "kvl_config.h"

enum {
    KVL__SPLIT_ROWS = 1024,        // rows of pages that one thread takes at a time,
    KVL__SPLIT_LEAST = 384,        // down to this where all heads have fewer than so many splits,
    KVL__SPLITS_FEW = 8,
    KVL__SPLIT_MOST = 4096,        // up to this where they have more than so many
    KVL__SPLITS_MANY = 64,
    KVL__DEVICE_SPLIT_ROWS = 256,  // that one CTA takes at least
    KVL__MAX_SPLITS = 63           // of pages; one more part holds sink and tail
};

// Where the rows of a sequence are in one layer.  Counts; zero is the empty sequence.
typedef struct kvl__extent {
    int64_t rows;                  // forgotten ones included
    int64_t quantized;             // in pages, the first after the sink
    int64_t dropped;               // the first after the sink that no query sees
    int64_t released;              // the first after the sink that a sliding window let go
    int64_t history;               // of quantized rows, the newest: their 16-bit rows are there too
    int64_t altered;               // 1 + the first row that a truncation read back from its codes
    int64_t kept;                  // rows that are there in 16 bits as well: see kvl_kept.h
} kvl__extent;

// Rows in pages that age asks for when a sequence has `rows` rows; a truncation may leave more.
KVL__FN int64_t kvl__quantized_rows(const kvl__config* c, int64_t rows)
{
    const int64_t aged = rows - c->sink_len - c->recent_len;
    return aged > 0 ? aged / c->chunk_len * c->chunk_len : 0;
}

// Rows that the tail buffer holds: the recent window, and chunks that wait to be encoded together
// in a long append.
KVL__FN int64_t kvl__tail_rows(const kvl__config* c)
{
    return c->recent_len + (int64_t)c->chunk_len * ((15 + c->chunk_len) / c->chunk_len);
}

// Rows of history that let a truncation take back keep_len rows: whole chunks.
KVL__FN int64_t kvl__keep_rows(const kvl__config* c, int64_t keep_len)
{
    return (keep_len + c->chunk_len - 1) / c->chunk_len * c->chunk_len;
}

KVL__FN int64_t kvl__num_pages(const kvl__config* c, int64_t quantized)
{
    return quantized / c->page_size + (quantized % c->page_size != 0);
}

// Entries of a page table for num_pages pages: powers of two, so that growth is rare.
KVL__FN int64_t kvl__table_entries(int64_t num_pages)
{
    int64_t entries = 16;
    if (num_pages == 0) return 0;
    while (entries < num_pages) entries *= 2;
    return entries;
}

// Rows after the sink whose memory may be gone: whole pages of them are.
KVL__FN int64_t kvl__gone_rows(const kvl__extent* e)
{
    return kvl__max_i64(e->dropped, e->released);
}

// Whole pages that no query at or after the newest row sees, in rows; slack is the number of rows
// that can still be taken back, and 1.
KVL__FN int64_t kvl__released_rows(const kvl__config* c, int64_t rows, int64_t quantized,
                                   int64_t window_len, int64_t slack)
{
    const int64_t unseen = rows - window_len - slack + 1 - c->sink_len;
    if (window_len == 0 || slack == 0 || unseen <= 0) return 0;
    return kvl__min_i64(unseen, quantized) / c->page_size * c->page_size;
}

// The extent after rows were appended.
KVL__FN kvl__extent kvl__grown(const kvl__config* c, const kvl__extent* e, int64_t num_rows,
                               int64_t keep_rows)
{
    kvl__extent to = *e;
    to.rows += num_rows;
    to.quantized = kvl__max_i64(e->quantized, kvl__quantized_rows(c, to.rows));
    to.history = kvl__min_i64(keep_rows, e->history + to.quantized - e->quantized);
    return to;
}

// The rows of the groups that run along tokens: what is cut in pages is cut there.
KVL__FN int64_t kvl__group_rows(const kvl__config* c)
{
    int64_t rows = 1;
    for (int side = 0; side < 2; ++side)
        rows = kvl__lcm((int32_t)rows, kvl__unit_along(&c->side[side]));
    return rows;
}

// The extent when rows are about to follow: what is left of a group that was cut returns to the
// tail, which has no other rows then, to be encoded again with those.
KVL__FN kvl__extent kvl__settled(const kvl__config* c, const kvl__extent* e)
{
    kvl__extent to = *e;
    to.quantized -= e->quantized % kvl__group_rows(c);
    return to;
}

// A truncation to a number of rows.
typedef struct kvl__cut {
    kvl__extent to;
    int64_t     returned;          // rows that leave the pages for the tail by their 16-bit rows
    int         exact;             // `to` is what a sequence has that never had the removed rows
} kvl__cut;

// Rows that are due by age alone go back where all of their 16-bit rows are in the history.  Else
// quantized rows stay so.  Of a group along tokens that is cut, they wait for rows that follow: see
// kvl__settled.
KVL__FN kvl__cut kvl__cut_at(const kvl__config* c, const kvl__extent* e, int64_t rows)
{
    const int64_t aged = kvl__max_i64(0, rows - c->sink_len), due = kvl__quantized_rows(c, rows);
    const int64_t unit = kvl__group_rows(c);
    kvl__cut cut;
    memset(&cut, 0, sizeof cut);
    cut.to = *e;
    cut.to.rows = rows;
    if (rows < e->rows) {
        int64_t stay = e->quantized <= aged ? e->quantized : aged / unit * unit;
        if (e->quantized - due <= e->history) stay = due;
        cut.to.quantized = stay;
        cut.to.dropped = kvl__min_i64(e->dropped, aged);
        cut.to.released = kvl__min_i64(e->released, aged);
        if (e->quantized - stay <= e->history) {
            cut.returned = e->quantized - stay;
            cut.to.history -= cut.returned;
        } else {
            cut.to.quantized = aged;
            cut.to.history = 0;
        }
        if (e->altered > rows) cut.to.altered = 0;
        if (cut.to.quantized > stay &&
            (!cut.to.altered || cut.to.altered > 1 + c->sink_len + stay))
            cut.to.altered = 1 + c->sink_len + stay;
    }
    cut.exact = cut.to.altered == 0 && cut.to.quantized == due;
    return cut;
}

// A range of rows by region: [begin, end) of sink, of quantized rows, of tail, each counted from
// the region's first row.
typedef struct kvl__visible {
    int64_t sink_begin, sink_end, page_begin, page_end, tail_begin, tail_end;
    int64_t first_page, pages_per_split;
    int     num_splits;            // of pages
} kvl__visible;

// Splits of a query that sees `rows` rows in `pages` pages.  Each has a cost of its own, that of
// about 90 rows; too few leave threads without work.
KVL__FN int64_t kvl__num_splits(const kvl__config* c, int64_t rows, int64_t pages)
{
    const int64_t heads = c->num_kv_heads;
    int64_t few = 1;                                     // 2^n, so that two threads have as many
    while (few * heads < KVL__SPLITS_FEW && rows >= 2 * few * KVL__SPLIT_LEAST) few *= 2;
    const int64_t many = kvl__max_i64(KVL__SPLITS_MANY / heads,
                                      (rows + KVL__SPLIT_MOST - 1) / KVL__SPLIT_MOST);
    const int64_t usual = (rows + KVL__SPLIT_ROWS - 1) / KVL__SPLIT_ROWS;
    const int64_t most = kvl__min_i64(pages, KVL__MAX_SPLITS);
    return kvl__min_i64(most, kvl__max_i64(few, kvl__min_i64(usual, many)));
}

KVL__FN kvl__visible kvl__see(const kvl__config* c, const kvl__extent* e, int64_t begin,
                              int64_t end)
{
    const int64_t sink = kvl__min_i64(e->rows, c->sink_len);
    kvl__visible v;
    memset(&v, 0, sizeof v);
    if (end > e->rows) end = e->rows;
    if (begin >= end) return v;
    v.sink_begin = kvl__min_i64(begin, sink);
    v.sink_end = kvl__min_i64(end, sink);
    const int64_t last = kvl__max_i64(0, end - sink);               // of the rows after the sink
    const int64_t first = kvl__min_i64(last, kvl__max_i64(begin - sink, e->dropped));
    v.page_begin = kvl__min_i64(first, e->quantized);
    v.page_end = kvl__min_i64(last, e->quantized);
    v.tail_begin = kvl__max_i64(0, first - e->quantized);
    v.tail_end = kvl__max_i64(0, last - e->quantized);
    if (v.page_begin >= v.page_end) return v;
    v.first_page = v.page_begin / c->page_size;
    const int64_t pages = (v.page_end - 1) / c->page_size - v.first_page + 1;
    const int64_t splits = kvl__num_splits(c, v.page_end - v.page_begin, pages);
    v.pages_per_split = (pages + splits - 1) / splits;
    v.num_splits = (int)((pages + v.pages_per_split - 1) / v.pages_per_split);
    return v;
}

// ON A DEVICE

// Splits of a query that sees `pages` pages, of at most max_splits; templates/cuda/visible.cuh says
// the same.
KVL__FN int64_t kvl__device_splits(const kvl__config* c, int64_t pages, int64_t max_splits)
{
    const int64_t fewest = (KVL__DEVICE_SPLIT_ROWS + c->page_size - 1) / c->page_size;
    const int64_t each = kvl__max_i64(fewest, (pages + max_splits - 1) / max_splits);
    return (pages + each - 1) / each;
}

// The most splits of a query that sees at most `pages` pages; fewer pages may have more splits, as
// 252 of 64 rows have 63 and 256 have 52.
KVL__FN int64_t kvl__device_most_splits(const kvl__config* c, int64_t pages)
{
    const int64_t fewest = (KVL__DEVICE_SPLIT_ROWS + c->page_size - 1) / c->page_size;
    return kvl__min_i64(KVL__MAX_SPLITS, (pages + fewest - 1) / fewest);
}

// Splits that a launch with room for this many parts may make of a query: those of each of its
// queries as it has them alone, and never more than there is room for, however long a sequence is
// when a captured launch runs.
KVL__FN int64_t kvl__device_splits_in(int64_t parts) { return kvl__max_i64(1, parts - 1); }

#endif
