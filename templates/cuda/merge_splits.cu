// merge_splits.cu -- joins the parts of a query: windows, and pages out of their basis.
//
//   grid  num_q_heads, num_queries
//
//   o = sum exp(lse_i - most) o_i / sum exp(lse_i - most);  lse = most + log of that sum
//
// A sink logit is a part without an output.

#include "visible.cuh"

KERNEL merge_splits(const __grid_constant__ kvl__device_attend a)
{
    __shared__ float acc[head_dim_v];
    const int head = blockIdx.x, query = blockIdx.y;
    const int num_splits = see(a, query).num_splits;
    const int64_t first = (query * (int64_t)gridDim.x + head) * a.parts;
    const float* o = (const float*)a.o_part + first * head_dim_v;
    const float* lse = (const float*)a.lse_part + first;
    const float hidden = -__int_as_float(0x7f800000);
    const float sink = a.sink_logits ? ((const float*)a.sink_logits)[head] : hidden;
    float top = most(sink, lse[a.parts - 1]), sum = 0.0f;
    for (int part = 0; part < num_splits; ++part) top = most(top, lse[part]);
    const float base = top > hidden ? top : 0.0f;
    for (int i = threadIdx.x; i < head_dim_v; i += cta_threads) acc[i] = 0.0f;
    for (int part = 0; part < num_splits; ++part) {
        const float weight = expf(lse[part] - base);
        sum += weight;
        for (int i = threadIdx.x; i < head_dim_v; i += cta_threads)
            acc[i] += weight * o[part * (int64_t)head_dim_v + i];
    }
    //% if sides[2].turns then
    const float* record = record_of(a.tables, a.table_floats, 1, head / num_heads);
    //% if sides[2].base then
    v_scale_up(acc, record);
    //% end
    v_from_basis(acc, record);
    //% end
    //% if sides[2].shift then
    const float* shift = record_of(a.tables, a.table_floats, 1, head / num_heads)
                         + $(sides[2].table_at(sides[2].shift.subtract));
    for (int i = threadIdx.x; i < head_dim_v; i += cta_threads)
        acc[i] = mul_add(sum, shift[i], acc[i]);
    //% end
    const float weight = expf(lse[a.parts - 1] - base);
    sum += weight + expf(sink - base);
    const float share = sum > 0.0f ? __fdividef(1.0f, sum) : 0.0f;
    const uint64_t to = row_at(a.o, a.queries[query].row, head);
    for (int i = threadIdx.x; i < a.value_dim; i += cta_threads)
        store_value(to, a.o.type, i,
                    (acc[i] + weight * o[(a.parts - 1) * (int64_t)head_dim_v + i]) * share);
    if (a.lse && threadIdx.x == 0)
        ((float*)a.lse)[a.queries[query].row * (int64_t)gridDim.x + head] =
            sum > 0.0f ? top + logf(sum) : hidden;
}
