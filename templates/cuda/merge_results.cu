// merge_results.cu -- joins two results of the same queries over different rows.
//
//   grid  num_rows: a query row of a query head
//
//   o = (exp(lse_a) o_a + exp(lse_b) o_b) / (exp(lse_a) + exp(lse_b)).  An empty part, lse = -inf,
//   is not read, and leaves the other one's bits as they are.  A sink logit is a part without o.

KERNEL merge_results(const __grid_constant__ kvl__device_merge m)
{
    const float hidden = -__int_as_float(0x7f800000);
    const int64_t row = blockIdx.x;
    const float a = ((const float*)m.lse_a)[row], b = ((const float*)m.lse_b)[row];
    const float sink = m.sink_logits ? ((const float*)m.sink_logits)[row % m.num_heads] : hidden;
    const float top = most(sink, most(a, b)), base = top > hidden ? top : 0.0f;
    const float weight_a = expf(a - base), weight_b = expf(b - base);
    const float sum = weight_a + weight_b + expf(sink - base);
    const bool whole = sink == hidden;
    __syncthreads();
    for (int i = threadIdx.x; i < m.head_dim; i += cta_threads) {
        const int64_t at = row * m.head_dim + i;
        float x = 0.0f;
        if (whole && b == hidden && a > hidden) x = ((const float*)m.o_a)[at];
        else if (whole && a == hidden && b > hidden) x = ((const float*)m.o_b)[at];
        else {
            if (a > hidden) x = weight_a * ((const float*)m.o_a)[at];
            if (b > hidden) x += weight_b * ((const float*)m.o_b)[at];
            if (sum > 0.0f) x = x / sum;
        }
        ((float*)m.o)[at] = x;
    }
    if (threadIdx.x == 0)
        ((float*)m.lse)[row] = whole && b == hidden ? a : whole && a == hidden ? b
                               : top > hidden ? top + logf(sum) : hidden;
}
