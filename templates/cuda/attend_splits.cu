// attend_splits.cu -- attention of a query row over one part of the rows that it sees.
//
//   grid  parts, num_kv_heads, num_queries: pages of a split; the last part is the windows
//   a.o_part    [num_queries, num_q_heads, parts, head_dim_v]  f32, normalised; of pages in the
//               basis of the values' codec
//   a.lse_part  [num_queries, num_q_heads, parts]  natural log; nothing visible: -inf and o = 0

#include "visible.cuh"
#include "softmax.cuh"
#include "windows.cuh"
#include "float_pages.cuh"

KERNEL attend_splits(const __grid_constant__ kvl__device_attend a)
{
    __shared__ workspace w;
    const int part = blockIdx.x, head = blockIdx.y, query = blockIdx.z;
    const kvl__device_seq* s = (const kvl__device_seq*)a.queries[query].seq;
    const visible v = see(a, query);
    const bool is_window = part == a.parts - 1;
    outputs o;
    if (!is_window && part >= v.num_splits) return;        // merge_splits does not read it
    start_outputs(&o);
    const int copy = is_window ? 0 : $(sides[1].turns and 1 or 0);
    const float* q = load_queries(a, query, head, copy, &w);
    if (is_window) {
        attend_windows(a, windows_of(s, a.windows, head), v, q, &w, &o);
    } else {
        const int first = (v.first_page + part * v.pages_per_split) * page_size;
        attend_pages(a, s, head, most_of(v.page_begin, first),
                     least_of(v.page_end, first + v.pages_per_split * page_size), v.position, q,
                     &w, &o);
    }
    store_part(a, query, head, part, &w, o);
}
