// attend_splits.cu -- attention of a query row over one part of the rows that it sees.
//
//   grid  parts, num_kv_heads, num_queries: pages of a split; the last part is the windows
//   a.o_part    [num_queries, num_q_heads, parts, head_dim_v]  f32, normalised; of pages in the
//               basis of the values' codec
//   a.lse_part  [num_queries, num_q_heads, parts]  natural log; nothing visible: -inf and o = 0

#include "visible.cuh"
#include "softmax.cuh"
#include "windows.cuh"
//% if plan.tensor then
#include "tensor_pages.cuh"
//% else
#include "float_pages.cuh"
//% end

KERNEL attend_splits(const __grid_constant__ kvl__device_attend a)
{
    //% if plan.tensor then
    enum { bytes = (int)sizeof(workspace) > tensor_bytes ? (int)sizeof(workspace) : tensor_bytes };
    __shared__ alignas(16) unsigned char room[bytes];
    workspace* w = (workspace*)room;
    //% else
    __shared__ workspace room;
    workspace* w = &room;
    //% end
    const int part = blockIdx.x, head = blockIdx.y, query = blockIdx.z;
    const kvl__device_seq* s = (const kvl__device_seq*)a.queries[query].seq;
    const visible v = see(a, query);
    const bool in_windows = part == a.parts - 1;
    const int first = (v.first_page + part * v.pages_per_split) * page_size;
    const int begin = most_of(v.page_begin, first);
    const int end = least_of(v.page_end, first + v.pages_per_split * page_size);
    if (!in_windows && part >= v.num_splits) return;       // merge_splits does not read it
    //% if plan.tensor then
    if (!in_windows) {
        attend_split(a, s, query, head, part, begin, end, v.position, room);
        return;
    }
    //% end
    //% local copy = not plan.tensor and sides[1].turns and "in_windows ? 0 : 1" or "0"
    outputs o;
    start_outputs(&o);
    const float* q = load_queries(a, query, head, $(copy), w);
    //% if plan.tensor then
    attend_windows(a, windows_of(s, a.windows, head), v, q, w, &o);
    //% else
    if (in_windows) attend_windows(a, windows_of(s, a.windows, head), v, q, w, &o);
    else attend_pages(a, s, head, begin, end, v.position, q, w, &o);
    //% end
    store_part(a, query, head, part, w, o);
}
