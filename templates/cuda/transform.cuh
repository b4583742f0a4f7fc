// transform.cuh -- rows into the basis of the $(codec.title)' codec, or out of it.
//
//   x  [num_rows, row_stride]  f32 in shared memory, in place; all threads of the CTA take part

//% if codec.piece > 0 then
// Hadamard in pieces: butterflies of stride 1, 2, 4, ..., then times 1 / sqrt(piece).  It is its
// own inverse.  The order of operations on a value is part of the codec's definition.
INLINE void $(s "transform")(float* x, int num_rows, int row_stride)
{
    enum { piece = $(codec.piece), pairs = $(codec.head_dim // 2) };
    for (int stride = 1; stride < piece; stride *= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < num_rows * pairs; i += cta_threads) {
            const int pair = i % pairs, low = pair & (stride - 1);
            float* at = x + i / pairs * row_stride + 2 * (pair - low) + low;
            const float a = at[0], b = at[stride];
            at[0] = a + b;
            at[stride] = a - b;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < num_rows * 2 * pairs; i += cta_threads)
        x[i / (2 * pairs) * row_stride + i % (2 * pairs)] *= $(f32(1 / sqrt(codec.piece)));
    __syncthreads();
}
//% else
INLINE void $(s "transform")(float* x, int num_rows, int row_stride)
{
    (void)x;
    (void)num_rows;
    (void)row_stride;
    __syncthreads();
}
//% end
