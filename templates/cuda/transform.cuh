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
//% local chooses = codec.chooses ~= "none"
//% if chooses then
#include "choices.cuh"

//% end
//% for _, piece in ipairs(codec.rotations) do
// Hadamard in pieces of $(piece): butterflies of stride 1, 2, 4, ..., then times
// 1 / sqrt($(piece)).  It is its own inverse.  The order of operations on a value is part of the
// codec's definition.
//% if chooses then
// What is not in the basis by its row's choice, choices[row * step], stays as it is.
template <int basis>
INLINE void $(s("hadamard_" .. piece))(float* x, int num_rows, int row_stride,
                                  const uint32_t* choices, int step)
//% else
INLINE void $(s("hadamard_" .. piece))(float* x, int num_rows, int row_stride)
//% end
{
    enum { pairs = $(codec.head_dim // 2) };
    //% local at_once = chooses and 1 or 4          -- the code of a choice is several times as long
#pragma unroll 1
    for (int stride = 1; stride < $(piece); stride *= 2) {
        __syncthreads();
#pragma unroll $(at_once)
        for (int i = threadIdx.x; i < num_rows * pairs; i += cta_threads) {
            const int pair = i % pairs, low = pair & (stride - 1), row = i / pairs;
            float* at = x + row * row_stride + 2 * (pair - low) + low;
            //% if chooses then
            if ($(s "basis_of")(choices[row * step], 2 * (pair - low)) != basis) continue;
            //% end
            const float a = at[0], b = at[stride];
            at[0] = a + b;
            at[stride] = a - b;
        }
    }
    __syncthreads();
#pragma unroll $(at_once)
    for (int i = threadIdx.x; i < num_rows * 2 * pairs; i += cta_threads) {
        const int row = i / (2 * pairs), channel = i % (2 * pairs);
        //% if chooses then
        if ($(s "basis_of")(choices[row * step], channel) != basis) continue;
        //% end
        x[row * row_stride + channel] *= $(f32(1 / sqrt(piece)));
    }
    __syncthreads();
}

//% end
//% if chooses then
// Into the bases of each row's choice, or out of them.  bases: bit b for a basis b that is among
// them.
INLINE void $(s "rotate")(float* x, int num_rows, int row_stride, const uint32_t* choices, int step,
                     uint32_t bases)
{
    //% local pieces = s("hadamard_" .. codec.choice_piece)
    //% local head = s("hadamard_" .. codec.head_piece)
    if (bases & 2u) $(pieces)<1>(x, num_rows, row_stride, choices, step);
    if (bases & 4u) $(head)<2>(x, num_rows, row_stride, choices, step);
    __syncthreads();
}

// The bases that a choice has.
INLINE uint32_t $(s "bases_of")(uint32_t choice) { return choice >> 31 ? 4u : choice ? 2u : 0u; }

//% end
//% if codec.chooses == "fixed" then
//% local num_pieces = codec.head_dim // codec.choice_piece
// The choice of a calibration: 1 for a rotated piece, or behind the pieces for the head.
INLINE uint32_t $(s "fixed_choice")(const float* record)
{
    const float* choice = record + $(codec.table_at("choice"));
    uint32_t bits = 0;
    if (choice[$(num_pieces)] != 0.0f) return 0x80000000u;
    for (int p = 0; p < $(num_pieces); ++p) bits |= (uint32_t)(choice[p] != 0.0f) << p;
    return bits;
}

//% end
//% if codec.signs then
// Times the signs of the channels.
INLINE void $(s "flip")(float* x, int num_rows, int row_stride)
{
    enum { dim = $(codec.head_dim) };
    static __device__ const float signs[dim] = { $(codec.signs) };
    __syncthreads();
    for (int i = threadIdx.x; i < num_rows * dim; i += cta_threads)
        x[i / dim * row_stride + i % dim] *= signs[i % dim];
    __syncthreads();
}

//% end
// Into the basis that all rows are in.
template <int num_rows>
INLINE void $(s "to_basis")(float* x, int row_stride, const float* record)
{
    (void)record;
    //% if codec.signs then
    $(s "flip")(x, num_rows, row_stride);
    //% end
    //% if codec.piece > 0 then
    $(s("hadamard_" .. codec.piece))(x, num_rows, row_stride);
    //% elseif codec.chooses == "fixed" then
    const uint32_t choice = $(s "fixed_choice")(record);
    $(s "rotate")(x, num_rows, row_stride, &choice, 0, $(s "bases_of")(choice));
    //% else
    (void)x;
    (void)row_stride;
    __syncthreads();
    //% end
}

INLINE void $(s "turn_query")(float* x, const float* record) { $(s "to_basis")<1>(x, 0, record); }

// Out of it.
template <int num_rows>
INLINE void $(s "turn_back")(float* x, int row_stride, const float* record)
{
    //% if codec.signs then
    (void)record;
    $(s("hadamard_" .. codec.piece))(x, num_rows, row_stride);
    $(s "flip")(x, num_rows, row_stride);
    //% else
    $(s "to_basis")<num_rows>(x, row_stride, record);
    //% end
}

INLINE void $(s "from_basis")(float* x, const float* record) { $(s "turn_back")<1>(x, 0, record); }
//% end
//% if codec.base then

// Channels are stored in units of the base.
INLINE void $(s "scale_up")(float* x, const float* record)
{
    const float* base = record + $(codec.table_at(codec.base));
    __syncthreads();
    for (int i = threadIdx.x; i < $(codec.head_dim); i += cta_threads) x[i] *= base[i];
    __syncthreads();
}
//% end
