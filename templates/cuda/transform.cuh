// transform.cuh -- rows into the basis of the $(codec.title)' codec, and out of it.
//
//   x       [num_rows, row_stride]  f32 in shared memory, in place; all threads take part
//   record  of the head, of calibrated numbers
//
// to_basis is for rows that are encoded, turn_query for queries, from_basis for outputs and rows
// that are read back.

//% if codec.dense then
//% local each = (codec.head_dim + 127) // 128
// x [num_rows, dim] = x matrix [dim, dim].  A thread has a channel of all rows.  Sums run in the
// order of channels, each product and addition rounded once together, on every target.
template <int num_rows>
INLINE void $(s "multiply")(float* x, int row_stride, const float* matrix)
{
    enum { dim = $(codec.head_dim), each = $(each) };
    float sums[each][num_rows];
    __syncthreads();
    for (int k = 0; k < each; ++k) {
        const int channel = k * cta_threads + threadIdx.x;
        for (int row = 0; row < num_rows; ++row) sums[k][row] = 0.0f;
#pragma unroll 1
        for (int i = 0; i < dim && channel < dim; ++i) {
            const float m = matrix[i * dim + channel];
            for (int row = 0; row < num_rows; ++row)
                sums[k][row] = mul_add(x[row * row_stride + i], m, sums[k][row]);
        }
    }
    __syncthreads();
    for (int k = 0; k < each; ++k) {
        const int channel = k * cta_threads + threadIdx.x;
        for (int row = 0; row < num_rows && channel < dim; ++row)
            x[row * row_stride + channel] = sums[k][row];
    }
    __syncthreads();
}

template <int num_rows>
INLINE void $(s "to_basis")(float* x, int row_stride, const float* record)
{
    $(s "multiply")<num_rows>(x, row_stride, record + $(codec.table_at(codec.dense.forward)));
}

INLINE void $(s "turn_query")(float* x, const float* record)
{
    $(s "multiply")<1>(x, 0, record + $(codec.table_at(codec.dense.query)));
}

// x [dim] = query matrix [dim, dim] times x: a warp has a row of the matrix.
INLINE void $(s "from_basis")(float* x, const float* record)
{
    enum { dim = $(codec.head_dim) };
    const float* matrix = record + $(codec.table_at(codec.dense.query));
    const int lane = threadIdx.x % 32;
    __shared__ float y[dim];
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < dim; i += cta_warps) {
        float sum = 0.0f;
        for (int j = lane; j < dim; j += 32) sum = mul_add(matrix[i * dim + j], x[j], sum);
        sum = warp_sum(sum);
        if (lane == 0) y[i] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < dim; i += cta_threads) x[i] = y[i];
    __syncthreads();
}
//% else
//% if codec.piece > 0 then
// Hadamard in pieces: butterflies of stride 1, 2, 4, ..., then times 1 / sqrt(piece).  It is its
// own inverse.  The order of operations on a value is part of the codec's definition.
INLINE void $(s "hadamard")(float* x, int num_rows, int row_stride)
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
INLINE void $(s "hadamard")(float* x, int num_rows, int row_stride)
{
    (void)x;
    (void)num_rows;
    (void)row_stride;
    __syncthreads();
}
//% end

template <int num_rows>
INLINE void $(s "to_basis")(float* x, int row_stride, const float* record)
{
    (void)record;
    $(s "hadamard")(x, num_rows, row_stride);
}

INLINE void $(s "turn_query")(float* x, const float* record)
{
    (void)record;
    $(s "hadamard")(x, 1, 0);
}

INLINE void $(s "from_basis")(float* x, const float* record) { $(s "turn_query")(x, record); }
//% end
