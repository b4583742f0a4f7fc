// across.cuh -- $(codec.title) of all heads of a layer: mixed, in the layer's order, and back.
//
// gen/parts/grouped.lua has the definition.  A stored head has channels of any head: a row of one
// head is made of what is stored of all, or becomes a part of it.

//% local dim, most = codec.head_dim, codec.across_most
//% local piece = dim & -dim

// Neighbouring heads that are mixed.
INLINE int $(s "mixed_heads")(int num_kv_heads)
{
    int mixed = 1;
    while (2 * mixed <= $(most) && num_kv_heads % (2 * mixed) == 0) mixed *= 2;
    return mixed;
}

// 1 / sqrt(mixed * $(kernel.writes and piece or 1)).
INLINE float $(s "mix_factor")(int mixed)
{
    //% local count = 1
    //% while count < most do
    if (mixed == $(count)) return $(f32(1 / sqrt(count * (kernel.writes and piece or 1))));
    //% count = 2 * count
    //% end
    (void)mixed;
    return $(f32(1 / sqrt(most * (kernel.writes and piece or 1))));
}

//% if kernel.writes then
// x [mixed, dim] in shared memory, in place.
INLINE void $(s "mix")(float* x, int mixed)
{
    const int channels = mixed * $(dim);
#pragma unroll 1
    for (int stride = 1; stride < channels; stride = stride * 2 == $(piece) ? $(dim) : stride * 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < channels / 2; i += cta_threads) {
            float* at = x + i / stride * 2 * stride + i % stride;
            const float a = at[0], b = at[stride];
            at[0] = a + b;
            at[stride] = a - b;
        }
    }
    __syncthreads();
    const float factor = $(s "mix_factor")(mixed);
    for (int i = threadIdx.x; i < channels; i += cta_threads) x[i] *= factor;
    __syncthreads();
}

// A row of the page as its heads [head, head + mixed) are mixed, to x: turned back by `sines` and
// `cosines` of its pairs.
INLINE void $(s "mix_row")(const $(s "unit")& u, int row, int head, int mixed, const double* sines,
                      const double* cosines, float* x)
{
    const uint16_t* ring = u.ring + (u.row + row) % u.ring_rows * (int64_t)$(dim);
    __syncthreads();
    for (int i = threadIdx.x; i < mixed * $(dim); i += cta_threads) {
        const uint16_t* of = ring + (head + i / $(dim)) * u.head_stride;
        const int channel = i % $(dim);
        x[i] = f32_of_row(of[channel]);
        if (!$(s "does_turn")(u.turns, channel)) continue;
        int other;
        const int pair = $(s "pair_of")(u.turns, channel, &other);
        x[i] = $(s "turned_by")(-sines[pair], cosines[pair], channel < other, x[i],
                           f32_of_row(of[other]));
    }
    $(s "mix")(x, mixed);
}

// Rows [from, from + rows) of the page as this head stores them; of them [first, end) are read.
INLINE void $(s "load_across")(const $(s "unit")& u, int from, int rows, int first, int end,
                          float* x)
{
    __shared__ float mixture[$(most * dim)];
    __shared__ double sines[$(dim // 2)], cosines[$(dim // 2)];
    const float* order = u.record + $(codec.table_at(codec.parts.across.tables[1].name));
    const int mixed = $(s "mixed_heads")(u.num_kv_heads);
    for (int i = threadIdx.x; i < rows * $(dim); i += cta_threads)
        x[i / $(dim) * $(s "row_stride") + i % $(dim)] = 0.0f;
#pragma unroll 1
    for (int row = most_of(first, from); row < from + rows && row < end; ++row) {
        const double position = (double)((int64_t)u.sink_len + u.row + row);
        __syncthreads();
        for (int i = threadIdx.x; i < $(dim // 2); i += cta_threads)
            $(s "sine_cosine")(position * u.turns[1 + i], sines + i, cosines + i);
#pragma unroll 1
        for (int head = 0; head < u.num_kv_heads; head += mixed) {
            $(s "mix_row")(u, row, head, mixed, sines, cosines, mixture);
            for (int i = threadIdx.x; i < $(dim); i += cta_threads) {
                const int at = (int)order[i] - head * $(dim);
                if (at >= 0 && at < mixed * $(dim))
                    x[(row - from) * $(s "row_stride") + i] = f32_of_row(row_of_f32(mixture[at]));
            }
        }
    }
}
//% else
// Where the keys of a head are in a page.
typedef struct $(s "mixture") {
    const int32_t* places;         // of the layer's channels: head dim + channel
    int            head, mixed;
} $(s "mixture");

INLINE $(s "mixture") $(s "mixture_of")(const kvl__device_windows& w, int head)
{
    $(s "mixture") m;
    m.places = (const int32_t*)w.places;
    m.mixed = $(s "mixed_heads")(w.num_kv_heads);
    m.head = head;
    return m;
}

// One value of the head, before pieces are turned.  page: of head 0.
INLINE float $(s "read_mixed")(const $(s "mixture")& m, const unsigned char* page, int row,
                          int channel)
{
    const int first = m.head / m.mixed * m.mixed;
    float sum = 0.0f;
#pragma unroll 1
    for (int h = 0; h < m.mixed; ++h) {
        const int place = m.places[(first + h) * $(dim) + channel];
        const unsigned char* of = page + place / $(dim) * (int64_t)(keys_bytes + values_bytes);
        uint32_t code;
        const float x = $(s "read_value")(of, row, place % $(dim), &code);
        sum += __popc(h & (m.head - first)) & 1 ? -x : x;
    }
    return sum;
}

// x [rows, row_stride] of read_mixed become rows before RoPE.
INLINE void $(s "turn_pieces")(const $(s "mixture")& m, int rows, int row_stride, float* x)
{
    const float factor = $(s "mix_factor")(m.mixed);
    $(s("hadamard_" .. piece))(x, rows, row_stride);
    for (int i = threadIdx.x; i < rows * $(dim); i += cta_threads)
        x[i / $(dim) * row_stride + i % $(dim)] *= factor;
    __syncthreads();
}
//% end
