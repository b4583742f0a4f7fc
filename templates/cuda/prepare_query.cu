// prepare_query.cu -- queries times softmax_scale: plain ones, and in the basis of the keys' codec.
//
//   grid  num_q_heads, num_queries
//   a.prepared  [num_queries, num_q_heads, query_floats]: plain [dim], then in the keys' basis
//               [dim], or, where keys choose, with all pieces rotated and with the head rotated
//               Where keys are shifted by their positions also what turn.cuh says, where they
//               have sketches also in each rotation (sketch.cuh)
//   a.bias      [num_queries, num_q_heads]: what the shift of keys took from their scores

KERNEL prepare_query(const __grid_constant__ kvl__device_attend a)
{
    __shared__ float x[head_dim_k];
    const int head = blockIdx.x, query = blockIdx.y;
    const uint64_t from = row_at(a.q, a.queries[query].row, head);
    float* to = (float*)a.prepared + (query * (int64_t)gridDim.x + head) * a.query_floats;
    for (int i = threadIdx.x; i < head_dim_k; i += cta_threads) {
        x[i] = load_value(from, a.q.type, i) * a.softmax_scale;
        to[i] = x[i];
    }
    //% if sides[1].bias then
    __shared__ float sums[cta_warps];
    const float* shift = record_of(a.tables, a.table_floats, 0, head / num_heads)
                         + $(sides[1].table_at(sides[1].shift.subtract));
    float sum = 0.0f;
    for (int i = threadIdx.x; i < head_dim_k; i += cta_threads) sum = mul_add(x[i], shift[i], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < cta_warps; ++i) sum += sums[i];
        ((float*)a.bias)[query * (int64_t)gridDim.x + head] = sum;
    }
    //% end
    //% if sides[1].by_position then
    __syncthreads();
    k_turn_scores(x, record_of(a.tables, a.table_floats, 0, head / num_heads), to + 2 * head_dim_k);
    __syncthreads();
    //% end
    //% if sides[1].sketched_at then
    __syncthreads();
    k_turn_sketches(x, to + $(sides[1].sketched_at));
    __syncthreads();
    //% end
    //% if sides[1].turns then
    const float* record = record_of(a.tables, a.table_floats, 0, head / num_heads);
    k_turn_query(x, record);
    //% if sides[1].base then
    k_scale_up(x, record);
    //% end
    for (int i = threadIdx.x; i < head_dim_k; i += cta_threads) to[head_dim_k + i] = x[i];
    //% elseif sides[1].copies > 1 then
#pragma unroll 1
    for (int basis = 1; basis < 3; ++basis) {
        const uint32_t choice = basis == 2 ? 0x80000000u : 0x7fffffffu;
        __syncthreads();
        for (int i = threadIdx.x; i < head_dim_k; i += cta_threads) x[i] = to[i];
        k_rotate(x, 1, 0, &choice, 0, 1u << basis);
        for (int i = threadIdx.x; i < head_dim_k; i += cta_threads)
            to[basis * head_dim_k + i] = x[i];
    }
    //% end
}
