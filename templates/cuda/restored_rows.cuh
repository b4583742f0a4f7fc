// restored_rows.cuh -- rows of the $(codec.title) out of their bases.
//
//   x        [rows, row_stride]  f32 in shared memory, in place; all threads take part
//   choices  [rows]  their bases, where they have several, or their norms' codes
//% local dim = codec.head_dim
//% local each = (dim + 127) // 128

//% if codec.dense then
// x = query matrix [dim, dim] times x.  A thread has a channel of all rows.
template <int rows>
INLINE void $(s "rows_from_dense")(const float* matrix, int row_stride, float* x)
{
    float sums[$(each)][rows];
    for (int k = 0; k < $(each); ++k) {
        const int channel = k * cta_threads + threadIdx.x;
        for (int row = 0; row < rows; ++row) sums[k][row] = 0.0f;
#pragma unroll 1
        for (int i = 0; i < $(dim) && channel < $(dim); ++i) {
            const float m = matrix[channel * $(dim) + i];
            for (int row = 0; row < rows; ++row)
                sums[k][row] = mul_add(m, x[row * row_stride + i], sums[k][row]);
        }
    }
    __syncthreads();
    for (int k = 0; k < $(each); ++k) {
        const int channel = k * cta_threads + threadIdx.x;
        for (int row = 0; row < rows && channel < $(dim); ++row)
            x[row * row_stride + channel] = sums[k][row];
    }
    __syncthreads();
}

//% end
template <int rows>
INLINE void $(s "out_of_basis")(const float* record, const uint32_t* choices, int row_stride,
                           float* x)
{
    //% if codec.calibrated_book then
    $(s "put_levels")(record, rows, row_stride, x);
    //% end
    //% if codec.base then
    for (int i = threadIdx.x; i < rows * $(dim); i += cta_threads)
        x[i / $(dim) * row_stride + i % $(dim)] *=
            record[$(codec.table_at(codec.base)) + i % $(dim)];
    __syncthreads();
    //% end
    //% if codec.dense then
    $(s "rows_from_dense")<rows>(record + $(codec.table_at(codec.dense.query)), row_stride, x);
    //% elseif codec.flagged then
    $(s "rotate")(x, rows, row_stride, choices, 1, 6u);
    //% else
    $(s "turn_back")<rows>(x, row_stride, record);
    //% end
    //% if codec.norms then
    for (int i = threadIdx.x; i < rows * $(dim); i += cta_threads)
        x[i / $(dim) * row_stride + i % $(dim)] *= f32_of_e5m3(choices[i / $(dim)]);
    __syncthreads();
    //% end
    //% if codec.shift then
    for (int i = threadIdx.x; i < rows * $(dim); i += cta_threads)
        x[i / $(dim) * row_stride + i % $(dim)] +=
            record[$(codec.table_at(codec.shift.subtract)) + i % $(dim)];
    __syncthreads();
    //% end
}
