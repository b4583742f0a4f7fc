// prepare_query.cu -- queries times softmax_scale: plain ones, and in the basis of the keys' codec.
//
//   grid  num_q_heads, num_queries
//   a.prepared  [num_queries, num_q_heads, query_floats]: plain [dim], basis [dim] if it differs

KERNEL prepare_query(const __grid_constant__ kvl__device_attend a)
{
    __shared__ float x[head_dim_k];
    const int head = blockIdx.x, query = blockIdx.y;
    const uint64_t from = row_at(a.q, a.first_row + query, head);
    float* to = (float*)a.prepared + (query * (int64_t)gridDim.x + head) * a.query_floats;
    for (int i = threadIdx.x; i < head_dim_k; i += cta_threads) {
        x[i] = load_value(from, a.q.type, i) * a.softmax_scale;
        to[i] = x[i];
    }
    //% if sides[1].piece > 0 then
    k_transform(x, 1, head_dim_k);
    for (int i = threadIdx.x; i < head_dim_k; i += cta_threads) to[head_dim_k + i] = x[i];
    //% end
}
