// visible.cuh -- which rows a query sees, and in which parts they are read.

// Ranges [begin, end) of rows: of the sink; in pages and in the ring, counted after the sink.
typedef struct visible {
    int sink_begin, sink_end, page_begin, page_end, tail_begin, tail_end;
    int first_page, pages_per_split, num_splits;
    int64_t position;              // of the query
} visible;

// The rows before query row `query`, itself included, of these the newest window_len, and of these
// the ones that the caller asks for.
INLINE visible see(const kvl__device_attend& a, int query)
{
    const kvl__device_seq* s = (const kvl__device_seq*)a.queries[query].seq;
    const int64_t asked = a.queries[query].position;
    const int64_t position = asked < 0 ? s->rows + asked : asked;
    const int rows = (int)s->rows, quantized = (int)s->quantized;
    const int64_t after = position + 1 < a.queries[query].end ? position + 1 : a.queries[query].end;
    const int end = after < rows ? (int)after : rows;
    const int64_t newest = a.window_len > 0 ? position + 1 - a.window_len : 0;
    const int64_t oldest = newest > a.queries[query].begin ? newest : a.queries[query].begin;
    const int begin = oldest < end ? (int)oldest : end;
    const int sink = least_of(rows, a.windows.sink_len);
    visible v = { 0, 0, 0, 0, 0, 0, 0, 1, 0, position };
    if (begin >= end) return v;
    v.sink_begin = least_of(begin, sink);
    v.sink_end = least_of(end, sink);
    const int last = most_of(0, end - sink);
    const int first = least_of(last, most_of(begin - sink, (int)s->dropped));
    v.page_begin = least_of(first, quantized);
    v.page_end = least_of(last, quantized);
    v.tail_begin = most_of(first, quantized);
    v.tail_end = most_of(last, quantized);
    if (v.page_begin >= v.page_end) return v;
    v.first_page = v.page_begin / page_size;
    const int pages = (v.page_end - 1) / page_size - v.first_page + 1;
    const int fewest = (a.split_rows + page_size - 1) / page_size;
    v.pages_per_split = most_of(fewest, (pages + a.max_splits - 1) / a.max_splits);
    v.num_splits = (pages + v.pages_per_split - 1) / v.pages_per_split;
    return v;
}
