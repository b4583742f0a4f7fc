// sketch.cuh -- norms and signs of random rotations of what the codes of the $(codec.title) leave.
//
// gen/parts/sketch.lua and sketch_apart.lua have the definition.  A warp has a row: value k of a
// lane is channel lane + 32 k.
//% local dim, number, apart = codec.head_dim, codec.sketches, codec.kept_apart
//% local each = (dim + 31) // 32
//% local piece = dim & -dim
//% local pieces = dim // piece
//% local L = codec.layout
//% local head_bytes = apart and apart.channels or 0
//% local parts = apart and 2 or 1

enum { $(s "sign_bytes") = $(dim // 8) };                // of a rotation

// What the unit of a row of a page stores, and the row: norms, then signs.
INLINE unsigned char* $(s "sketch_unit")(const unsigned char* page, int row)
{
    return (unsigned char*)page + $(L.slots_at) + row / $(L.extra_rows) * (int64_t)$(L.extra_bytes);
}

INLINE unsigned char* $(s "sketch_row")(const unsigned char* page, int row)
{
    return $(s "sketch_unit")(page, row) + $(head_bytes)
           + row % $(L.extra_rows) * $((L.extra_bytes - head_bytes) // L.extra_rows);
}

// The channels of a lane that a unit keeps apart: bit k for value k.
INLINE uint32_t $(s "apart_of")(const unsigned char* unit)
{
    uint32_t apart = 0;
    for (int n = 0; n < $(head_bytes); ++n)
        if (unit[n] % 32 == threadIdx.x % 32) apart |= 1u << unit[n] / 32;
    return apart;
}

INLINE void $(s "load_sketched")(const float* x, float* v)
{
#pragma unroll
    for (int k = 0; k < $(each); ++k) {
        const int channel = k * 32 + threadIdx.x % 32;
        v[k] = channel < $(dim) ? x[channel] : 0.0f;
    }
}

// ROTATIONS

// Times the signs of a round.
INLINE void $(s "flip_round")(int round, float* v)
{
    static __device__ const uint32_t flips[$(#codec.flips)] = {
        //% for i = 1, #codec.flips, 6 do
        $(table_concat(codec.flips, ", ", i, i + 5 < #codec.flips and i + 5 or #codec.flips)),
        //% end
    };
#pragma unroll
    for (int k = 0; k < $(each); ++k)
        v[k] = float_of(bits_of(v[k]) ^ flips[round * $(each) + k] >> threadIdx.x % 32 << 31);
}

// Hadamard in pieces of $(piece), of the operations that transform.cuh has: across lanes, then
// among their values.
INLINE void $(s "rotate_pieces")(float* v)
{
#pragma unroll
    for (int stride = 1; stride < $(piece < 32 and piece or 32); stride *= 2) {
#pragma unroll
        for (int k = 0; k < $(each); ++k) {
            const float other = __shfl_xor_sync(0xffffffffu, v[k], stride);
            v[k] = threadIdx.x & stride ? other - v[k] : v[k] + other;
        }
    }
    //% if piece > 32 then
#pragma unroll
    for (int stride = 1; stride < $(piece // 32); stride *= 2) {
#pragma unroll
        for (int k = 0; k < $(each); ++k) {
            if (k & stride) continue;
            const float a = v[k], b = v[k + stride];
            v[k] = a + b;
            v[k + stride] = a - b;
        }
    }
    //% end
#pragma unroll
    for (int k = 0; k < $(each); ++k) v[k] *= $(f32(1 / sqrt(piece)));
}

//% if pieces > 1 then
// Values [dim / columns, columns] become [columns, dim / columns], by way of room [dim], the warp's
// own.
template <int columns>
INLINE void $(s "transpose")(float* v, float* room)
{
    __syncwarp();
#pragma unroll
    for (int k = 0; k < $(each); ++k) {
        const int channel = k * 32 + threadIdx.x % 32;
        if (channel < $(dim))
            room[channel % columns * ($(dim) / columns) + channel / columns] = v[k];
    }
    __syncwarp();
    $(s "load_sketched")(room, v);
    __syncwarp();
}

//% end
//% if kernel.writes or kernel.name == "prepare_query" then
// The values of a row become those of rotation `which` of it.
INLINE void $(s "turn_sketch")(int which, float* v, float* room)
{
    (void)room;
#pragma unroll 1
    for (int round = 3 * which; round < 3 * which + 3; ++round) {
        $(s "flip_round")(round, v);
        $(s "rotate_pieces")(v);
        //% if pieces > 1 then
        $(s "transpose")<$(piece)>(v, room);
        //% end
    }
}

//% end
//% if kernel.writes then
#include "restored_rows.cuh"
//% if apart then
#include "strongest.cuh"
//% end

// STORED

// x [cta_warps, row_stride]: what codes leave of the rows from `row` on, those before `end`.
INLINE void $(s "load_residuals")(const $(s "unit")& u, int row, int end, float* x)
{
    __shared__ uint32_t choices[cta_warps];
    uint32_t code;
    __syncthreads();
    //% if codec.widths then
    __shared__ int begins[$(s "dim") + 1];
    $(s "find_begins")(u.record, begins);
    //% end
    //% local read = codec.widths and s "read_level" .. "(u.page, of, channel, begins, &code)"
    //%              or s "read_value" .. "(u.page, of, channel, &code)"
#pragma unroll 1
    for (int i = threadIdx.x; i < cta_warps * $(dim); i += cta_threads) {
        const int of = row + i / $(dim), channel = i % $(dim);
        x[i / $(dim) * $(s "row_stride") + channel] = of < end ? $(read) : 0.0f;
    }
    //% if codec.flagged then
    if (threadIdx.x < cta_warps)
        choices[threadIdx.x] =
            row + (int)threadIdx.x < end ? $(s "read_choice")(u.page, row + threadIdx.x) : 0;
    //% end
    __syncthreads();
    $(s "out_of_basis")<cta_warps>(u.record, choices, $(s "row_stride"), x);
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < cta_warps * $(dim); i += cta_threads) {
        const int of = row + i / $(dim), channel = i % $(dim);
        float* at = x + i / $(dim) * $(s "row_stride") + channel;
        if (of < end) *at = clamp($(s "stored_value")(u, of, channel) - *at, -0x1p56f, 0x1p56f);
    }
    __syncthreads();
}

//% if apart then
// The channels that the unit of rows [first, end) keeps apart, to is_apart [dim] and the page.
INLINE void $(s "choose_apart")(const $(s "unit")& u, int first, int end, float* x, int* is_apart)
{
    __shared__ float sums[$(dim)];
    unsigned char* to = $(s "sketch_unit")(u.page, first);
    for (int i = threadIdx.x; i < $(dim); i += cta_threads) sums[i] = 0.0f;
#pragma unroll 1
    for (int row = first; row < end; row += cta_warps) {
        $(s "load_residuals")(u, row, end, x);
        for (int i = threadIdx.x; i < $(dim); i += cta_threads)
            for (int t = 0; t < cta_warps && row + t < end; ++t)
                sums[i] += squared(x[t * $(s "row_stride") + i]);
    }
    $(s "find_strongest")<$(apart.channels)>(sums, is_apart);
    for (int i = threadIdx.x; i < $(dim); i += cta_threads)
        if (is_apart[i]) to[$(s "place_of")(is_apart, i)] = (unsigned char)i;
    __syncthreads();
}

//% end
// Norms and signs of a warp's row x, which becomes room for its rotations.
INLINE void $(s "put_sketches")(const unsigned char* page, int row, const int* is_apart, float* x)
{
    const int lane = threadIdx.x % 32;
    unsigned char* to = $(s "sketch_row")(page, row);
    float r[$(each)], v[$(each)], sums[$(parts)] = { 0.0f };
    $(s "load_sketched")(x, r);
#pragma unroll 4
    for (int i = 0; i < $(dim); ++i) {
        //% if apart then
        const float square = squared(x[i]);
        sums[0] += is_apart[i] ? 0.0f : square;
        sums[1] += is_apart[i] ? square : 0.0f;
        //% else
        sums[0] += squared(x[i]);
        //% end
    }
    for (int p = 0; p < $(parts) && lane == 0; ++p)
        write_u16(to + 2 * p, f16_of_f32(square_root(sums[p])));
    //% if apart then
    const uint32_t apart = $(s "apart_of")($(s "sketch_unit")(page, row));
    //% else
    (void)is_apart;
    //% end
#pragma unroll 1
    for (int which = 0; which < $(number + parts - 1); ++which) {
#pragma unroll
        for (int k = 0; k < $(each); ++k) {
            v[k] = r[k];
            //% if apart then
            if ((apart >> k & 1u) != (which == $(number))) v[k] = 0.0f;
            //% end
        }
        $(s "turn_sketch")(which % $(number), v, x);         // channels apart have the first
        unsigned char* signs = to + $(2 * parts) + which * $(s "sign_bytes");
#pragma unroll
        for (int k = 0; k < $(each); ++k) {
            const uint32_t word = __ballot_sync(0xffffffffu, !(v[k] < 0.0f));
            if (lane / 2 == k && 16 * lane < $(dim))
                write_u16(signs + 2 * lane, word >> lane % 2 * 16);
        }
    }
}

// Beside the codes of rows [first, end) of the page, which are stored.
INLINE void $(s "encode_sketches")(const $(s "unit")& u, int first, int end)
{
    __shared__ float x[cta_warps * $(s "row_stride")];
    float* own = x + threadIdx.x / 32 * $(s "row_stride");
    //% if apart then
    __shared__ int is_apart[$(dim)];
    //% else
    const int* is_apart = 0;
    //% end
#pragma unroll 1
    for (int row = first; row < end; row += cta_warps) {
        const int of = row + threadIdx.x / 32;
        //% if apart then
        if (row % $(L.extra_rows) == 0)
            $(s "choose_apart")(u, row, least_of(row + $(L.extra_rows), end), x, is_apart);
        //% end
        $(s "load_residuals")(u, row, end, x);
        if (of < end) $(s "put_sketches")(u.page, of, is_apart, own);
    }
}
//% elseif kernel.name == "prepare_query" then
// A query x [dim] in each rotation, to [rotations, dim]: a warp has one.
INLINE void $(s "turn_sketches")(const float* x, float* to)
{
#pragma unroll 1
    for (int which = threadIdx.x / 32; which < $(number); which += cta_warps) {
        float v[$(each)], *own = to + which * $(dim);
        $(s "load_sketched")(x, v);
        $(s "turn_sketch")(which, v, own);
#pragma unroll
        for (int k = 0; k < $(each); ++k)
            if (k * 32 + threadIdx.x % 32 < $(dim)) own[k * 32 + threadIdx.x % 32] = v[k];
    }
}
//% elseif kernel.scores and codec.sketched_at then
// Adds to this thread's scores, of a row of pages, what its key's sketch has: products of queries
// in each rotation with signs.
INLINE void $(s "add_sketched")(const kvl__device_attend& a, const kvl__device_seq* s, int head,
                           int row, bool is_visible, float (*scores)[cta_threads])
{
    enum { heads = $(plan.turn_heads) };         // that a pass serves
    const int64_t first = (blockIdx.z * (int64_t)gridDim.y + head) * num_heads;
    if (!is_visible) return;
    const unsigned char* at = $(s "sketch_row")(page_at(s, row / page_size, head, 0),
                                           row % page_size);
    const float scale = $(f32(codec.gain)) * f32_of_f16(read_u16(at)) / $(number).0f;
#pragma unroll 1
    for (int h = 0; h < num_heads; h += heads) {
        const float* q = (const float*)a.prepared + (first + h) * a.query_floats
                         + $(codec.sketched_at);
        float sums[heads] = { 0.0f };
#pragma unroll 1
        for (int i = 0; i < $(number * dim); i += 16) {
            const uint32_t minus = ~read_u16(at + 2 + i / 8);
#pragma unroll
            for (int k = 0; k < heads; ++k) {
#pragma unroll
                for (int j = 0; j < 16; j += 4) {
                    const float4 of = *(const float4*)(q + k * (int64_t)a.query_floats + i + j);
                    sums[k] += float_of(bits_of(of.x) ^ (minus << 31 - j & 0x80000000u));
                    sums[k] += float_of(bits_of(of.y) ^ (minus << 30 - j & 0x80000000u));
                    sums[k] += float_of(bits_of(of.z) ^ (minus << 29 - j & 0x80000000u));
                    sums[k] += float_of(bits_of(of.w) ^ (minus << 28 - j & 0x80000000u));
                }
            }
        }
#pragma unroll
        for (int k = 0; k < heads; ++k) scores[h + k][threadIdx.x] += scale * sums[k];
    }
}
//% else
// The values of a row become those of the inverse of rotation `which`.
INLINE void $(s "turn_sketch_back")(int which, float* v, float* room)
{
    (void)room;
#pragma unroll 1
    for (int round = 3 * which + 2; round >= 3 * which; --round) {
        //% if pieces > 1 then
        $(s "transpose")<$(pieces)>(v, room);
        //% end
        $(s "rotate_pieces")(v);
        $(s "flip_round")(round, v);
    }
}

// READ

// What part p of a row adds, its channels alone, joins the values `own`.
INLINE void $(s "add_part")(const unsigned char* row, int p, uint32_t apart, float* own,
                       float* room)
{
    enum { number = $(number) };
    const int rotations = p ? 1 : number, lane = threadIdx.x % 32;
    const unsigned char* signs = row + $(2 * parts) + p * number * $(s "sign_bytes");
    const float norm = f32_of_f16(read_u16(row + 2 * p));
    const float scale = $(f32(codec.gain)) * norm / (float)rotations;
    float sums[$(each)], v[$(each)];
#pragma unroll
    for (int k = 0; k < $(each); ++k) sums[k] = 0.0f;
#pragma unroll 1
    for (int which = 0; which < rotations; ++which, signs += $(s "sign_bytes")) {
#pragma unroll
        for (int k = 0; k < $(each); ++k) {
            const int channel = k * 32 + lane;
            v[k] = channel < $(dim) && signs[channel / 8] >> channel % 8 & 1 ? 1.0f : -1.0f;
        }
        $(s "turn_sketch_back")(which, v, room);
#pragma unroll
        for (int k = 0; k < $(each); ++k) sums[k] += v[k];
    }
#pragma unroll
    for (int k = 0; k < $(each); ++k)
        if ((apart >> k & 1u) == p) own[k] += scale * sums[k];
}

// What sketches have joins x [num_rows, row_stride], rows in the original basis: of a page from row
// `row` on, of them [begin, end).
INLINE void $(s "add_sketches")(const unsigned char* page, int row, int num_rows, int begin,
                           int end, int row_stride, float* x)
{
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < num_rows; i += cta_warps) {
        float *of = x + i * row_stride, own[$(each)];
        if (i < begin || i >= end) continue;
        const unsigned char* at = $(s "sketch_row")(page, row + i);
        const uint32_t apart = $(s "apart_of")($(s "sketch_unit")(page, row + i));
        $(s "load_sketched")(of, own);
#pragma unroll 1
        for (int p = 0; p < $(parts); ++p) $(s "add_part")(at, p, apart, own, of);
        __syncwarp();
#pragma unroll
        for (int k = 0; k < $(each); ++k)
            if (k * 32 + threadIdx.x % 32 < $(dim)) of[k * 32 + threadIdx.x % 32] = own[k];
    }
    __syncthreads();
}
//% end
