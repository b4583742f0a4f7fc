// kvl_plan.h -- lengths -> which rows are where, and in how many splits they are read: arithmetic.
//
// Splits depend on the rows that a query sees, never on threads or on the rest of the batch: a
// sequence in a batch gives the bytes that it gives alone, for any number of threads.

#ifndef KVL_PLAN_H
#define KVL_PLAN_H

#include "kvl_config.h"

enum {
    KVL__SPLIT_ROWS = 1024,        // rows of pages that one thread takes at least
    KVL__MAX_SPLITS = 63           // of pages; one more part holds sink and tail
};

// Rows in pages when a sequence has `rows` rows.
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

KVL__FN int64_t kvl__num_pages(const kvl__config* c, int64_t rows)
{
    return (kvl__quantized_rows(c, rows) + c->page_size - 1) / c->page_size;
}

// Entries of a page table for num_pages pages: powers of two, so that growth is rare.
KVL__FN int64_t kvl__table_entries(int64_t num_pages)
{
    int64_t entries = 16;
    if (num_pages == 0) return 0;
    while (entries < num_pages) entries *= 2;
    return entries;
}

// A range of rows by region: [begin, end) of sink, of quantized rows, of tail, each counted from
// the region's first row.
typedef struct kvl__visible {
    int64_t sink_begin, sink_end, page_begin, page_end, tail_begin, tail_end;
    int64_t first_page, pages_per_split;
    int     num_splits;            // of pages
} kvl__visible;

KVL__FN kvl__visible kvl__see(const kvl__config* c, int64_t rows, int64_t begin, int64_t end)
{
    const int64_t sink = kvl__min_i64(rows, c->sink_len);
    const int64_t quantized = kvl__quantized_rows(c, rows), tail_at = sink + quantized;
    kvl__visible v;
    memset(&v, 0, sizeof v);
    if (end > rows) end = rows;
    if (begin >= end) return v;
    v.sink_begin = kvl__min_i64(begin, sink);
    v.sink_end = kvl__min_i64(end, sink);
    v.page_begin = kvl__max_i64(0, kvl__min_i64(begin, tail_at) - sink);
    v.page_end = kvl__max_i64(0, kvl__min_i64(end, tail_at) - sink);
    v.tail_begin = kvl__max_i64(0, begin - tail_at);
    v.tail_end = kvl__max_i64(0, end - tail_at);
    if (v.page_begin >= v.page_end) return v;
    v.first_page = v.page_begin / c->page_size;
    const int64_t pages = (v.page_end - 1) / c->page_size - v.first_page + 1;
    const int64_t least = (KVL__SPLIT_ROWS + c->page_size - 1) / c->page_size;
    v.pages_per_split = kvl__max_i64(least, (pages + KVL__MAX_SPLITS - 1) / KVL__MAX_SPLITS);
    v.num_splits = (int)((pages + v.pages_per_split - 1) / v.pages_per_split);
    return v;
}

#endif
