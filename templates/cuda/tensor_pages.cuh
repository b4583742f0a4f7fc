// tensor_pages.cuh -- attention over the rows of pages by tensor cores.
//
// A warp has every fourth part of a split, 32 tokens a step: copies of them arrive in its ring in
// shared memory while it works on earlier ones.  Where a lane's numbers are, and in which bits, is
// in gen/tensor.lua and docs/cuda.md.  Scores are float32 sums of products of codes with
//     query * scale      in two pairs of f16 whose sum has 17 bits or more
// and outputs are float32 sums of products of codes with
//     weight * scale     rounded to f16 twice
// The zero of a group is in units of its scale, and joins as a row of its own with the same second
// factors.  Weights are 2^lift times what they are, so that few are below the least normal f16, and
// scales of values 2^(3 - bit) times, bit that of the codes that they are for.  A result that is
// not finite is made again with a lift that nothing exceeds, then in floats.

#include "tensor.cuh"

//% local n = plan.tensor
//% local k, v = n.k, n.v
//% local function pair(x) return ("0x%08xu"):format(f16(x) * 0x10001) end
//% local function step_of(side) return pair(side.step) end
//% local function bias_of(side)
//%     return pair(-side.half - (side.two_steps and 0 or side.bias * side.step))
//% end
enum { step_rows = $(n.rows), columns = $(n.columns), spans = $(n.spans), outs = $(n.outs) };
enum { value_groups = $(n.value_groups), num_stages = $(n.stages), stage_bytes = $(n.stage_bytes) };
enum { k_codes = $(k.codes_bytes), v_codes = $(v.codes_bytes), meta_pieces = $(n.meta_pieces) };
enum { meta_rounds = (meta_pieces + 31) / 32, k_numbers = $(n.k_numbers) };
enum { v_numbers = $(n.v_numbers), numbers_bytes = $(n.numbers_bytes) };
enum { k_cell = $(32 * k.bits), v_cell = $(32 * v.bits), k_cells = $(k.cells) };
enum { v_cells = $(v.cells), tensor_bytes = $(n.room) };

// Where lane 4 g + t is in a fragment; g = 4 a + 2 b + e, t = 2 va + vb.
typedef struct place {
    int lane, g, t, a, b, e, va, vb;
    int key[2][2];                     // bytes of its words of keys, fragments i and halves h
    uint32_t value_mask[2][2];         // bits of its values
    // Of the metadata that it reads, for two pairs: which bytes; what makes numbers of them.
    uint32_t k_step[2], k_bias[2], v_high[2], v_low[2], v_weight[2], v_step[2], v_bias[2];
} place;

// What a shuffle gives back is kept in registers, and not made again at each use.
INLINE int kept(int x) { return __shfl_sync(0xffffffffu, x, threadIdx.x % 32); }

// Of the lane's pair j = 2 i + (h ^ a): the token of the step that its key is, without a and e; the
// bit at which its code is.
INLINE int pair_token(const place& p, int i, int h)
{
    return 16 * p.a + 8 * p.b + p.e + 2 * (2 * i + (h ^ p.a));
}

INLINE int value_bit(int a, int i, int h) { return $(v.bits) * (2 * i + (h ^ a)) & 7; }

// The h whose zeros a lane writes first: pairs of groups in turn, to be in different banks.
INLINE int other_first(int lane) { return lane % (v_numbers / 4) / 16 % 2; }

INLINE place place_of()
{
    const int lane = kept(threadIdx.x % 32);
    place p = { lane, lane / 4, lane % 4, lane / 16, lane / 8 % 2, lane / 4 % 2, lane / 2 % 2,
                lane % 2 };
    //% local swap = k.bits == 2 and "p.t / 2" or "((p.t % 2) << 2 | p.t / 2)"
#pragma unroll
    for (int i = 0; i < 2; ++i)
        for (int h = 0; h < 2; ++h) {
            p.key[i][h] = kept((p.a * k_cells + p.t) * k_cell + p.e * 4 + (h ^ p.a) * 8
                               + ((2 * p.b + i) ^ $(swap)) * 16);
            p.value_mask[i][h] = kept($(v.mask) << value_bit(p.va, i, h));
        }
    //% local k_up = k.bits .. " * (2 * (lane % 2) + h)"
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int a = lane / 4 % 2, i = lane % 2, first = h ^ other_first(lane);
        const uint32_t k_up = ($(k_up) & 7) * 0x04000400u;
        const uint32_t v_up = value_bit(a, i, first) * 0x04000400u;
        p.k_step[h] = kept($(step_of(k)) + k_up);
        p.k_bias[h] = kept($(bias_of(k)) + k_up);
        p.v_step[h] = kept($(step_of(v)) + v_up);
        p.v_bias[h] = kept($(bias_of(v)) + v_up);
        p.v_high[h] = kept(h ^ a);
        p.v_low[h] = kept(first ^ a);
        p.v_weight[h] = kept((15 + 3 - value_bit(a, i, h)) * 0x04000400);
    }
    return p;
}

// COPIES

// What is asked for next: rows of a page, counted as they are there.
typedef struct feed {
    const unsigned char* codes;            // of keys, in this head's part of the page
    const unsigned char* meta[meta_rounds];
    const uint64_t*      table;            // at the page that comes after, if one does
    const unsigned char* next;
    int left;                              // steps of this page
    int row, end;                          // the first row; after the last
    int meta_at[meta_rounds], meta_step[meta_rounds];
} feed;

//% local k_at, v_at = sides[1].layout, sides[2].layout
// The lane's place in page f->next, from row `in_page` on.
INLINE void enter_page(feed* f, int lane, int in_page)
{
    f->codes = f->next + in_page * (k_codes / step_rows) + lane * 16;
    for (int r = 0; r < meta_rounds; ++r) {
        const bool of_k = lane + 32 * r < $(n.pieces[1] + n.pieces[2]);
        f->meta[r] = f->next + f->meta_at[r]
                     + (of_k ? in_page / k_group_size * head_dim_k : in_page);
    }
    f->left = (page_size - in_page) / step_rows;
}

INLINE void start_feed(feed* f, const kvl__device_seq* s, int head, int row, int end, int lane)
{
    f->row = row;
    f->end = end;
    for (int r = 0; r < meta_rounds; ++r) {
        enum { ks = $(n.pieces[1]), kz = $(n.pieces[2]), vs = $(n.pieces[3]) };
        const int piece = lane + 32 * r, of_k = piece < ks + kz;
        const int is_zero = of_k ? piece >= ks : piece >= ks + kz + vs;
        const int at = piece - (of_k ? is_zero * ks : ks + kz + is_zero * vs);
        if (of_k) f->meta_at[r] = (is_zero ? k_zeros_at : k_scales_at) + at * 16;
        else f->meta_at[r] = keys_bytes + (is_zero ? v_zeros_at : v_scales_at)
                             + at / 2 * page_size + at % 2 * 16;
        f->meta_step[r] = of_k ? head_dim_k : step_rows;
    }
    f->left = 0;
    if (row >= end) return;
    f->table = (const uint64_t*)s->table + (row / page_size - (int)s->first_page);
    f->next = (const unsigned char*)*f->table + head * (int64_t)(keys_bytes + values_bytes);
    enter_page(f, lane, row % page_size);
    f->table += (end - 1) / page_size > row / page_size;
    f->next = (const unsigned char*)*f->table + head * (int64_t)(keys_bytes + values_bytes);
}

// Whether the group of keys that a row is in has not been read by this warp.
INLINE bool is_fresh(int row, int first) { return row == first || row % k_group_size == 0; }

// Where 16 bytes of codes go, so that the lanes of a load meet all banks.
INLINE int k_piece(int piece)
{
    const int cell = piece / $(2 * k.bits);
    return (piece $(k.bits == 2 and "" or "^ (cell & 1) << 2")) ^ (cell >> 1 & 1);
}

INLINE int v_piece(int piece) { return piece ^ piece / (v_cells * $(2 * v.bits)) << 1; }

// Asks for the bytes of the step at `row`, into the stage at shared address `to`.
INLINE void ask(feed* f, int head, int lane, int row, uint32_t to)
{
    if (row >= f->end) return;
    const uint32_t k_to = to + k_piece(lane) * 16;
    //% local rows_apart = k.codes_bytes ~= v.codes_bytes
    //% if rows_apart then
    const unsigned char* values = f->codes + keys_bytes + (page_size / step_rows - f->left)
                                                          * (v_codes - k_codes);
    //% end
    //% local from = rows_apart and "values" or "f->codes"
    //% local first = rows_apart and 0 or sides[1].layout.page_bytes
    //% for at = 0, k.codes_bytes - 1, 512 do
    copy_16<$(at), $(at)>(k_to, f->codes);
    //% end
    //% for at = 0, v.codes_bytes - 1, 512 do
    copy_16<$(k.codes_bytes), $(first + at)>(to + v_piece(lane + $(at // 16)) * 16, $(from));
    //% end
#pragma unroll
    for (int r = 0; r < meta_rounds; ++r) {
        const int piece = lane + 32 * r;
        bool wanted = meta_pieces % 32 == 0 || piece < meta_pieces;
        //% if sides[1].group_size > n.rows then
        const bool of_k = piece < $(n.pieces[1] + n.pieces[2]);
        if (of_k && !is_fresh(row, f->row)) wanted = false;
        //% end
        if (wanted) copy_16<k_codes + v_codes, 0>(to + piece * 16, f->meta[r]);
        //% if sides[1].group_size > n.rows then
        if (of_k && (row + step_rows) % k_group_size != 0) continue;
        //% end
        f->meta[r] += f->meta_step[r];
    }
    f->codes += k_codes;
    if (--f->left > 0) return;
    enter_page(f, lane, 0);
    f->table += row + step_rows + page_size < f->end;
    f->next = (const unsigned char*)*f->table + head * (int64_t)(keys_bytes + values_bytes);
}

// NUMBERS: scales, and zeros in units of the scale, times 2^bit of the code that they are for: `up`
// has the bit in the exponents of a pair.
// A load of 16 bytes of zeros is a fragment, of which rows g are right for the first of two second
// factors, and rows g + 8 for the other: each has sums of its own.

//% for _, one in ipairs { { "k", k }, { "v", v } } do
//% local side = one[2]
INLINE uint32_t $(one[1] .. "_scales")(uint32_t word, int pair)
{
    return $("pair_of_" .. side.scale_type)(word, pair);
}

//% if side.zero_type ~= "none" then
INLINE uint32_t $(one[1] .. "_zeros")(uint32_t word, int pair, uint32_t step, uint32_t bias)
{
    const uint32_t x = $("pair_of_" .. side.zero_type)(word, pair);
    //% if side.two_steps then
    return pair_mul_add(pair_add(x, $(pair(-side.bias))), step, bias);
    //% else
    return pair_mul_add(x, step, bias);
    //% end
}

//% end
//% end
// Of a group of keys [channel]; zeros of pairs 0, 1, 4, 5, then 2, 3, 6, 7 of 16 channels.
INLINE void read_key_numbers(const unsigned char* meta, const place& p, unsigned char* numbers)
{
#pragma unroll
    for (int r = 0; r < (k_numbers + 127) / 128; ++r) {
        const int word = (p.lane + 32 * r) % (k_numbers / 4);
        const uint32_t scales = load_u32(meta + word * 4);
        const uint2 both = { k_scales(scales, 0), k_scales(scales, 1) };
        *(uint2*)(numbers + word * 8) = both;
        //% if k.zero_type ~= "none" then
        const uint32_t zeros = $(k.packed and "scales" or "load_u32(meta + k_numbers + word * 4)");
        const uint2 two = { k_zeros(zeros, 0, p.k_step[0], p.k_bias[0]),
                            k_zeros(zeros, 1, p.k_step[1], p.k_bias[1]) };
        const int at = word / 4 * 32 + word % 2 * 16 + word / 2 % 2 * 8;
        *(uint2*)(numbers + 2 * k_numbers + at) = two;
        //% end
    }
}

// A mask of two tokens of a step: which of them are in [begin, end).
INLINE uint32_t seen_pair(int token, int begin, int end)
{
    return (token >= begin && token < end ? 0xffffu : 0u)
           | (token + 1 >= begin && token + 1 < end ? 0xffff0000u : 0u);
}

// Of the values of a step [group][token], those of tokens 8 b ... of a 16 as pairs in the order of
// 2 i + h, j = 2 i + (h ^ a); zeros [pair of groups][i][t][h][group].  Of rows that are not visible
// scales are 0.
INLINE void read_value_numbers(const unsigned char* meta, const place& p, bool inside, int begin,
                               int end, unsigned char* numbers)
{
    numbers += 4 * k_numbers;
#pragma unroll
    for (int r = 0; r < (v_numbers + 127) / 128; ++r) {
        const int word = (p.lane + 32 * r) % (v_numbers / 4), a = p.lane / 4 % 2;
        const uint32_t scales = load_u32(meta + word * 4);
        uint2 both = { pair_mul(v_scales(scales, p.v_high[0]), p.v_weight[0]),
                       pair_mul(v_scales(scales, p.v_high[1]), p.v_weight[1]) };
        if (!inside) {
            both.x &= seen_pair(p.lane % 8 * 4 + 2 * a, begin, end);
            both.y &= seen_pair(p.lane % 8 * 4 + 2 * (1 ^ a), begin, end);
        }
        *(uint2*)(numbers + word * 8) = both;
        //% if v.zero_type ~= "none" then
        const uint32_t zeros = $(v.packed and "scales" or "load_u32(meta + v_numbers + word * 4)");
        const int group = word / 8, h = other_first(p.lane), t = p.lane % 8 / 2, i = p.lane % 2;
        unsigned char* to = numbers + 2 * v_numbers + ((group / 2 * 2 + i) * 4 + t) * 16;
        const uint32_t first = v_zeros(zeros, p.v_low[0], p.v_step[0], p.v_bias[0]);
        const uint32_t second = v_zeros(zeros, p.v_low[1], p.v_step[1], p.v_bias[1]);
        *(uint32_t*)(to + h * 8 + group % 2 * 4) = first;
        *(uint32_t*)(to + (1 ^ h) * 8 + group % 2 * 4) = second;
        //% if n.value_groups == 1 then
        *(uint32_t*)(to + h * 8 + 4) = first;      // the group beside it is not there
        *(uint32_t*)(to + (1 ^ h) * 8 + 4) = second;
        //% end
        //% end
    }
}

// Four registers of a lane.
typedef struct pair4 {
    uint32_t of[4];
} pair4;

INLINE pair4 pairs_of(uint4 x)
{
    const pair4 p = { { x.x, x.y, x.z, x.w } };
    return p;
}

INLINE pair4 load_pairs(const unsigned char* at) { return pairs_of(*(const uint4*)at); }

// QUERIES

// Of each head at most 1 in magnitude, times 2^-bit of the codes that they meet, in two parts of
// which the first has 7 bits.
typedef struct queries {
    //% if n.keeps_queries then
    uint4 part[columns][2][spans][2];          // of pairs m = 0 .. 3; of pairs 4 .. 7
    //% end
    const unsigned char* shared;
    float up[columns];                         // what a head's were divided by
} queries;

INLINE uint4* query_at(unsigned char* shared, int copy, int column, int part, int span, int half,
                       int lane)
{
    const int of_part = (copy * columns + column) * 2 + part;
    return (uint4*)shared + ((of_part * spans + span) * 2 + half) * 32 + lane;
}

// Rounds 8 channels times `down` to two parts.
INLINE void split_queries(const float* from, float down, uint4* parts)
{
    const float4 four = *(const float4*)from, more = *(const float4*)(from + 4);
    const float x[8] = { four.x, four.y, four.z, four.w, more.x, more.y, more.z, more.w };
    uint32_t high[4], low[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
        const float by = down * float_of((uint32_t)(127 - ($(k.bits) * m & 7)) << 23);
        const float y = x[2 * m] * by, z = x[2 * m + 1] * by;
        high[m] = pair_of(float_of(bits_of(y) & 0xfffe0000u), float_of(bits_of(z) & 0xfffe0000u));
        low[m] = pair_of(y - f32_of_f16(high[m] & 0xffffu), z - f32_of_f16(high[m] >> 16));
    }
    const uint4 first = { high[0], high[1], high[2], high[3] };
    const uint4 second = { low[0], low[1], low[2], low[3] };
    parts[0] = first;
    parts[1] = second;
}

INLINE void load_fragments(const kvl__device_attend& a, int query, int head, const place& p,
                           unsigned char* shared, queries* q)
{
    enum { copies = $(sides[1].copies), plain = $(sides[1].turns and 1 or 0) };
    q->shared = shared;
#pragma unroll
    for (int column = 0; column < columns; ++column) {
        const int h = column * 8 + p.g, of = least_of(h, num_heads - 1);
        const int64_t row = (query * (int64_t)gridDim.y + head) * num_heads + of;
        const float* from = (const float*)a.prepared + row * a.query_floats + plain * head_dim_k;
        float top = 0.0f;
#pragma unroll 1
        for (int i = p.t * 4; i < copies * head_dim_k; i += 16) {
            const float4 x = *(const float4*)(from + i);
            top = most(top, most(most(absolute(x.x), absolute(x.y)),
                                 most(absolute(x.z), absolute(x.w))));
        }
        top = most(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = most(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const uint32_t exponent = bits_of(top) >> 23;
        // Beyond 2^125 no power of two does: the result is not finite, and is made in floats.
        const float down = h >= num_heads ? 0.0f : exponent < 2u ? 1.0f
                           : float_of(exponent < 252u ? (253u - exponent) << 23 : 0x7fc00000u);
        q->up[column] = exponent < 2u ? 1.0f : float_of((exponent + 1u) << 23);
#pragma unroll
        for (int copy = 0; copy < copies; ++copy)
#pragma unroll
            for (int i = 0; i < 2 * spans; ++i) {
                uint4 parts[2];
                const int channel = i / 2 * 64 + p.t * 16 + i % 2 * 8;
                split_queries(from + copy * head_dim_k + channel, down, parts);
                //% if n.keeps_queries then
                q->part[column][0][i / 2][i % 2] = parts[0];
                q->part[column][1][i / 2][i % 2] = parts[1];
                //% else
                if (threadIdx.x / 32 != (column + copy) % cta_warps) continue;
                *query_at(shared, copy, column, 0, i / 2, i % 2, p.lane) = parts[0];
                *query_at(shared, copy, column, 1, i / 2, i % 2, p.lane) = parts[1];
                //% end
            }
    }
}

INLINE pair4 query_pairs(const queries& q, int copy, int column, int part, int span, int half,
                         int lane)
{
    //% if n.keeps_queries then
    return pairs_of(q.part[column][part][span][half]);
    //% else
    return pairs_of(*query_at((unsigned char*)q.shared, copy, column, part, span, half, lane));
    //% end
}

// STEPS

// The pairs of channels m, half 0, or m + 4 of a lane's words, in the low bits of halves.
INLINE uint32_t k_pick(const uint32_t* word, int m, int half)
{
    //% if k.bits == 2 then
    return word[0] >> half * 8 & $(k.mask) << m * 2;
    //% else
    return word[half] >> m / 2 * 8 & $(k.mask) << m % 2 * 4;
    //% end
}

// The pairs j = 2 i + (h ^ va) of tokens of a lane's word.
INLINE uint32_t v_pick(uint32_t word, const place& p, int i, int h)
{
    //% if v.bits == 2 then
    return word >> p.vb * 8 & p.value_mask[i][h];
    //% else
    return word >> i * 8 & p.value_mask[i][h];
    //% end
}

// The scores of a step, without softmax's factors: 2^24 s + zero, s the fragments i of
// [columns][i][4].
INLINE void score_step(const unsigned char* keys, const unsigned char* numbers, const place& p,
                       const queries& q, const int* basis, float (*s)[2][4], float (*zero)[2])
{
    float sums[columns][2][4];                       // of zeros: rows g of one, g + 8 of the other
    for (int c = 0; c < columns; ++c)
        for (int r = 0; r < 4; ++r)
            s[c][0][r] = s[c][1][r] = sums[c][0][r] = sums[c][1][r] = 0.0f;
    numbers += p.t * 32;
#pragma unroll
    for (int y = 0; y < spans; ++y) {
        const unsigned char* at = numbers + y * 128;
        const pair4 scales[2] = { load_pairs(at), load_pairs(at + 16) };
        //% if k.zero_type ~= "none" then
        at += 2 * k_numbers;
        const pair4 zeros[2] = { load_pairs(at), load_pairs(at + 16) };
        //% end
        uint32_t word[2][2][$(k.words)];
#pragma unroll
        for (int i = 0; i < 2; ++i)
            for (int h = 0; h < 2; ++h)
                for (int w = 0; w < $(k.words); ++w)
                    word[i][h][w] = load_u32(keys + y * 4 * k_cell + (p.key[i][h] ^ w * 64));
#pragma unroll
        for (int c = 0; c < columns; ++c) {
            pair4 high[2], low[2];
            for (int half = 0; half < 2; ++half) {
                high[half] = query_pairs(q, basis[y], c, 0, y, half, p.lane);
                low[half] = query_pairs(q, basis[y], c, 1, y, half, p.lane);
            }
#pragma unroll
            for (int m = 0; m < 4; ++m) {
                uint32_t b[2], rest[2];
                for (int half = 0; half < 2; ++half) {
                    const uint32_t scale = scales[half].of[m];
                    b[half] = pair_mul(high[half].of[m], scale);
                    //% if n.exact_scales then
                    rest[half] = pair_mul(low[half].of[m], scale);
                    //% else
                    rest[half] = pair_mul_add(low[half].of[m], scale,
                                              pair_mul_sub(high[half].of[m], scale, b[half]));
                    //% end
                }
                //% if k.zero_type ~= "none" then
                const pair4 z = zeros[m / 2];
                //% else
                const uint32_t z0 = $(pair(-k.half)) + 0x04000400u * ($(k.bits) * m & 7);
                const pair4 z = { { z0, z0, z0, z0 } };
                //% end
                multiply(sums[c][m % 2], z.of[0], z.of[1], z.of[2], z.of[3], b[0], b[1]);
                multiply(sums[c][m % 2], z.of[0], z.of[1], z.of[2], z.of[3], rest[0], rest[1]);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const uint32_t a0 = k_pick(word[i][0], m, 0), a1 = k_pick(word[i][1], m, 0);
                    const uint32_t a2 = k_pick(word[i][0], m, 1), a3 = k_pick(word[i][1], m, 1);
                    multiply(s[c][i], a0, a1, a2, a3, b[0], b[1]);
                    multiply(s[c][i], a0, a1, a2, a3, rest[0], rest[1]);
                }
            }
        }
    }
#pragma unroll
    for (int c = 0; c < columns; ++c)
        for (int r = 0; r < 2; ++r) zero[c][r] = sums[c][0][r] + sums[c][1][r + 2];
}

// What a warp has of the query heads of its lanes, 8 c + 2 t + (r & 1).
typedef struct partial {
    float top[columns][2];             // log2; of the lane's own keys and all others of the warp
    float base[columns][2];            // lift - top
    float limit[columns][2];           // of scores before `factor`, beyond which top is raised
    float sum[columns][2];             // of the lane's own keys, times 2^lift
    float out[columns][2 * outs][4];   // times 2^(lift + 3 - 24)
    float zero[columns][value_groups][4];            // times 2^(lift + 3); half of them count
    float lift;
} partial;

// The soft cap and ALiBi.
INLINE void bend_scores(const kvl__device_attend& a, const place& p, int query, int head, int row,
                        int64_t position, const float (*factor)[2], float (*s)[2][4],
                       float (*zero)[2])
{
    const float log2_e = 1.44269504f;
    //% if sides[1].shift then
    const int64_t first = (query * (int64_t)gridDim.y + head) * num_heads;
    //% end
#pragma unroll
    for (int c = 0; c < columns; ++c)
        for (int i = 0; i < 2; ++i)
            for (int r = 0; r < 4; ++r) {
                const int h = least_of(c * 8 + p.t * 2 + r % 2, num_heads - 1);
                const float by = factor[c][r % 2];
                float x = mul_add(s[c][i][r], 0x1p24f, zero[c][r % 2]) * by * (1.0f / log2_e);
                if (a.soft_cap > 0.0f) {
                    //% if sides[1].shift then
                    x += ((const float*)a.bias)[first + h];
                    //% end
                    // tanh y = 1 - 2 / (e^(2 y) + 1)
                    const float e = power_of_two(x * (2.0f * log2_e / a.soft_cap));
                    x = a.soft_cap - __fdividef(2.0f * a.soft_cap, e + 1.0f);
                }
                const int at = row + pair_token(p, i, r / 2) + a.windows.sink_len;
                if (a.slopes)
                    x = mul_add(((const float*)a.slopes)[head * num_heads + h],
                                (float)(int)(at - position), x);
                s[c][i][r] = __fdividef(x * log2_e, by * 0x1p24f);
            }
    for (int c = 0; c < columns; ++c) zero[c][0] = zero[c][1] = 0.0f;
}

// Rows outside of [begin, end) of the step are not seen.
INLINE void hide_scores(const place& p, int begin, int end, float (*s)[2][4])
{
#pragma unroll
    for (int c = 0; c < columns; ++c)
        for (int i = 0; i < 2; ++i)
            for (int r = 0; r < 4; ++r) {
                const int at = pair_token(p, i, r / 2);
                s[c][i][r] = at >= begin && at < end ? s[c][i][r] : hidden_score();
            }
}

// A key's score is further beyond the top so far than weights allow: a greater top.
INLINE void raise_top(const float (*tops)[2], const float (*factor)[2], partial* o)
{
    enum { slack = 4 };                // log2 of what a weight may be beyond 1
#pragma unroll
    for (int c = 0; c < columns; ++c)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float top = fmaxf(o->top[c][r], tops[c][r] * factor[c][r]);
            for (int d = 4; d < 32; d *= 2)
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
            const float shrink = power_of_two(o->top[c][r] - top);
            o->top[c][r] = top;
            o->base[c][r] = o->lift - top;
            o->limit[c][r] = __fdividef(top + (float)slack, factor[c][r]);
            o->sum[c][r] *= shrink;
            for (int i = 0; i < 2 * outs; ++i) {
                o->out[c][i][r] *= shrink;
                o->out[c][i][r + 2] *= shrink;
            }
            for (int i = 0; i < value_groups; ++i) {
                o->zero[c][i][r] *= shrink;
                o->zero[c][i][r + 2] *= shrink;
            }
        }
}

// Weights of a step in place of its scores: second factors.
INLINE void weigh_step(const float (*factor)[2], const float (*s)[2][4], const float (*zero)[2],
                       partial* o, uint32_t (*weights)[2][2])
{
    float tops[columns][2];
    bool beyond = false;
#pragma unroll
    for (int c = 0; c < columns; ++c)
        for (int r = 0; r < 2; ++r) {
            const float top = fmaxf(fmaxf(s[c][0][r], s[c][0][r + 2]),
                                    fmaxf(s[c][1][r], s[c][1][r + 2]));
            tops[c][r] = mul_add(top, 0x1p24f, zero[c][r]);
            beyond |= tops[c][r] > o->limit[c][r];
        }
    if (__any_sync(0xffffffffu, beyond)) raise_top(tops, factor, o);
#pragma unroll
    for (int c = 0; c < columns; ++c) {
        float e[2][2][2];
        for (int r = 0; r < 2; ++r) {
            const float by = factor[c][r] * 0x1p24f;
            const float from = mul_add(zero[c][r], factor[c][r], o->base[c][r]);
            for (int i = 0; i < 2; ++i)
                for (int h = 0; h < 2; ++h) {
                    e[i][h][r] = power_of_two(mul_add(s[c][i][h * 2 + r], by, from));
                    o->sum[c][r] += e[i][h][r];
                }
        }
        for (int i = 0; i < 2; ++i)
            for (int h = 0; h < 2; ++h)
                weights[c][i][h] = transposed(pair_of(e[i][h][0], e[i][h][1]));
    }
}

// Values of a step join the outputs.
INLINE void add_step(const unsigned char* values, const unsigned char* numbers, const place& p,
                     const uint32_t (*weights)[2][2], partial* o)
{
    enum { tile = v_cells * $(2 * v.bits) };         // in pieces of 16 bytes
    //% local half_at = v.bits == 2 and "0" or "p.vb * 4"
    values += (p.va * tile + ((p.g / 4 * $(2 * v.bits) + $(half_at) + p.g % 4) ^ p.va << 1)) * 16;
    numbers += 4 * k_numbers + p.t * 16;
    //% if v.zero_type ~= "none" then
    const unsigned char* zeros = numbers + 2 * v_numbers;
    //% end
    uint32_t b[columns][2][2];
#pragma unroll
    for (int x = 0; x < outs; ++x) {
        enum { wide = outs / value_groups };
        if (x % wide == 0) {
            const int group = x / wide;
            const pair4 scales = load_pairs(numbers + group * 64);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                //% if v.zero_type ~= "none" then
                const pair4 z = load_pairs(zeros + (group / 2 * 2 + i) * 64);
                //% else
                const uint32_t z0 = $(pair(-v.half)) + 0x04000400u * value_bit(p.va, i, 0);
                const uint32_t z1 = $(pair(-v.half)) + 0x04000400u * value_bit(p.va, i, 1);
                const pair4 z = { { z0, z0, z1, z1 } };
                //% end
                for (int c = 0; c < columns; ++c) {
                    for (int h = 0; h < 2; ++h)
                        b[c][i][h] = pair_mul(weights[c][i][h], scales.of[2 * i + h]);
                    multiply(o->zero[c][group], z.of[0], z.of[1], z.of[2], z.of[3], b[c][i][0],
                             b[c][i][1]);
                }
            }
        }
        const pair4 word = load_pairs(values + x * 2 * v_cell);
#pragma unroll
        for (int u = 0; u < 2; ++u)
            for (int i = 0; i < 2; ++i) {
                const uint32_t a0 = v_pick(word.of[2 * u], p, i, 0);
                const uint32_t a1 = v_pick(word.of[2 * u + 1], p, i, 0);
                const uint32_t a2 = v_pick(word.of[2 * u], p, i, 1);
                const uint32_t a3 = v_pick(word.of[2 * u + 1], p, i, 1);
                for (int c = 0; c < columns; ++c)
                    multiply(o->out[c][2 * x + u], a0, a1, a2, a3, b[c][i][0], b[c][i][1]);
            }
    }
}

// RESULTS

// Whether all that a lane has is finite.
INLINE bool is_finite(const partial& o)
{
    float size = 0.0f;                 // infinite or no number if one of them is: 0 x + size
#pragma unroll
    for (int c = 0; c < columns; ++c) {
        for (int r = 0; r < 2; ++r) size = mul_add(0.0f, o.sum[c][r] + o.top[c][r], size);
        for (int r = 0; r < 4; ++r) {
            for (int i = 0; i < 2 * outs; ++i) size = mul_add(0.0f, o.out[c][i][r], size);
            for (int i = 0; i < value_groups; ++i)
                if (r / 2 == i % 2) size = mul_add(0.0f, o.zero[c][i][r], size);
        }
    }
    return size == 0.0f;
}

// Of each warp and column.  Rows begin four banks apart.
typedef struct results {
    float top[cta_warps][8 * columns], sum[cta_warps][8 * columns];
    alignas(16) float out[cta_warps][8 * columns][head_dim_v + 4];
} results;

INLINE void store_partial(const partial& o, const place& p, results* w)
{
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int c = 0; c < columns; ++c)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int column = c * 8 + p.t * 2 + r;
            float sum = o.sum[c][r];
            for (int d = 4; d < 32; d *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
            if (p.g == 0) {
                w->top[warp][column] = o.top[c][r];
                w->sum[warp][column] = sum;
            }
#pragma unroll
            for (int x = 0; x < outs; ++x) {
                const int group = x / (outs / value_groups);
                const float z = o.zero[c][group][r + group % 2 * 2];
                const float4 four = { mul_add(o.out[c][2 * x][r], 0x1p24f, z),
                                      mul_add(o.out[c][2 * x][r + 2], 0x1p24f, z),
                                      mul_add(o.out[c][2 * x + 1][r], 0x1p24f, z),
                                      mul_add(o.out[c][2 * x + 1][r + 2], 0x1p24f, z) };
                *(float4*)&w->out[warp][column][x * 32 + p.g * 4] = four;
            }
        }
}

// The part's result, of all warps.
INLINE void store_results(const kvl__device_attend& a, int query, int head, int part, float lift,
                          const results& w)
{
    const int64_t first = (query * (int64_t)gridDim.y + head) * num_heads;
    float* to = (float*)a.o_part + (first * a.parts + part) * head_dim_v;
#pragma unroll 1
    for (int i = threadIdx.x; i < num_heads * head_dim_v; i += cta_threads) {
        const int h = i / head_dim_v, channel = i % head_dim_v;
        float top = w.top[0][h], sum = 0.0f, out = 0.0f;
        for (int warp = 1; warp < cta_warps; ++warp) top = most(top, w.top[warp][h]);
        for (int warp = 0; warp < cta_warps; ++warp) {
            const float share = power_of_two(w.top[warp][h] - top);
            sum = mul_add(share, w.sum[warp][h], sum);
            out = mul_add(share, w.out[warp][h][channel], out);
        }
        to[h * (int64_t)a.parts * head_dim_v + channel] = __fdividef(out, sum * 8.0f);
        if (channel > 0) continue;
        float lse = (top - lift) * 0.693147181f + logf(sum);
        //% if sides[1].shift then
        if (!(a.soft_cap > 0.0f)) lse += ((const float*)a.bias)[first + h];
        //% end
        ((float*)a.lse_part)[(first + h) * a.parts + part] = lse;
    }
}

// IN FLOATS, a query head after the other: whatever 16 bits cannot hold.

INLINE float score_by_floats(const kvl__device_attend& a, const unsigned char* keys, int lane,
                             const float* q, float bias, float slope, int distance)
{
    enum { words = $(sides[1].read_words) };         // that are read at once
    float x[words], sum = 0.0f;
    //% if sides[1].copies > 1 then
    const uint32_t choice = k_read_choice(keys, lane);
    //% end
#pragma unroll 1
    for (int at = 0; at < head_dim_k; at += words) {
        k_read_words(keys, lane, at, x);
        //% local basis = sides[1].copies > 1 and "k_basis_of(choice, at) * head_dim_k" or "0"
        sum = dot<words>(q + $(basis) + at, x, sum);
    }
    sum += bias;
    if (a.soft_cap > 0.0f) sum = a.soft_cap * tanhf(__fdividef(sum, a.soft_cap));
    return mul_add(slope, (float)distance, sum);
}

INLINE void add_by_floats(const kvl__device_seq* s, int head, int strip, int begin, int end,
                          const float* scores, float top, float* out)
{
    enum { tokens = $(sides[2].read_words) };
#pragma unroll 1
    for (int row = strip; row < strip + cta_threads && row < end; row += tokens)
#pragma unroll
        for (int i = 0; i < each; ++i) {
            float x[tokens];
            const int channel = i * cta_threads + threadIdx.x;
            if (row + tokens <= begin || channel >= head_dim_v) continue;
            v_read_words(page_at(s, row / page_size, head, 1), channel, row % page_size, x);
#pragma unroll
            for (int t = 0; t < tokens; ++t)
                if (row + t >= begin && row + t < end)
                    out[i] = mul_add(expf(scores[row + t - strip] - top), x[t], out[i]);
        }
}

INLINE void attend_by_floats(const kvl__device_attend& a, const kvl__device_seq* s, int query,
                             int head, int part, int begin, int end, int64_t position,
                             float* scores)
{
    const int64_t first = (query * (int64_t)gridDim.y + head) * num_heads;
#pragma unroll 1
    for (int h = 0; h < num_heads; ++h) {
        const float* q = (const float*)a.prepared + (first + h) * a.query_floats
                         + $(sides[1].turns and 1 or 0) * head_dim_k;
        const float bias = $(sides[1].shift and "((const float*)a.bias)[first + h]" or "0.0f");
        const float slope = a.slopes ? ((const float*)a.slopes)[head * num_heads + h] : 0.0f;
        float top = hidden_score(), sum = 0.0f, out[each] = { 0.0f };
#pragma unroll 1
        for (int strip = begin / 16 * 16; strip < end; strip += cta_threads) {
            const int row = strip + threadIdx.x;
            scores[threadIdx.x] = row < begin || row >= end ? hidden_score()
                : score_by_floats(a, page_at(s, row / page_size, head, 0), row % page_size, q, bias,
                                  slope, (int)(row + a.windows.sink_len - position));
            __syncthreads();
            float higher = top, more = 0.0f;
            for (int i = 0; i < cta_threads; ++i) higher = most(higher, scores[i]);
            for (int i = 0; i < cta_threads; ++i) more += expf(scores[i] - higher);
            const float shrink = expf(top - higher);
            sum = mul_add(sum, shrink, more);
            top = higher;
            for (int i = 0; i < each; ++i) out[i] *= shrink;
            add_by_floats(s, head, strip, begin, end, scores, top, out);
            __syncthreads();
        }
        const int64_t at = (first + h) * a.parts + part;
        for (int i = 0; i < each; ++i)
            if (i * cta_threads + threadIdx.x < head_dim_v)
                ((float*)a.o_part)[at * head_dim_v + i * cta_threads + threadIdx.x] = out[i] / sum;
        if (threadIdx.x == 0) ((float*)a.lse_part)[at] = top + logf(sum);
    }
}

// A SPLIT

INLINE void start_partial(float lift, partial* o)
{
    o->lift = lift;
    for (int c = 0; c < columns; ++c) {
        for (int r = 0; r < 2; ++r) {
            o->top[c][r] = o->limit[c][r] = hidden_score();
            o->base[c][r] = o->sum[c][r] = 0.0f;
        }
        for (int r = 0; r < 4; ++r) {
            for (int i = 0; i < 2 * outs; ++i) o->out[c][i][r] = 0.0f;
            for (int i = 0; i < value_groups; ++i) o->zero[c][i][r] = 0.0f;
        }
    }
}

// The bases that a lane's channels 64 y + 16 t ... of a group are in.
INLINE void read_basis(const unsigned char* meta, const place& p, int* basis)
{
    for (int y = 0; y < spans; ++y) basis[y] = 0;
    //% if sides[1].copies > 1 then
    const bool whole = meta[k_numbers] & 1;
#pragma unroll
    for (int y = 0; y < spans; ++y) {
        enum { piece = $(sides[1].choice_piece) };
        const int channel = (y * 64 + p.t * 16) / piece * piece;
        basis[y] = whole ? 2 : meta[channel] >> 7;
    }
    //% end
}

// What the steps of a warp have in common.
typedef struct warp_task {
    const kvl__device_attend* a;
    int query, head, begin, end;       // rows that are seen
    int first, plain;                  // the warp's first row; whether scores are products alone
    int64_t position;
    float factor[columns][2];
} warp_task;

// The numbers of a step in a stage, as pairs.
INLINE void read_numbers(const warp_task& w, const unsigned char* stage, const place& p, int row,
                         bool inside, unsigned char* numbers, int* basis)
{
    const unsigned char* meta = stage + k_codes + v_codes;
    if ($(sides[1].group_size == n.rows and "true" or "is_fresh(row, w.first)")) {
        read_key_numbers(meta, p, numbers);
        read_basis(meta, p, basis);
    }
    read_value_numbers(meta + $(16 * (n.pieces[1] + n.pieces[2])), p, inside, w.begin - row,
                       w.end - row, numbers);
}

// One step of 32 rows, whose numbers are read.
INLINE void take_step(const warp_task& w, const unsigned char* stage, const unsigned char* numbers,
                      const place& p, const queries& q, const int* basis, int row, bool inside,
                      partial* o)
{
    float scores[columns][2][4], zero[columns][2];
    uint32_t weights[columns][2][2];
    score_step(stage, numbers, p, q, basis, scores, zero);
    if (!inside) {
        if (!w.plain)
            bend_scores(*w.a, p, w.query, w.head, row, w.position, w.factor, scores, zero);
        hide_scores(p, w.begin - row, w.end - row, scores);
    }
    weigh_step(w.factor, scores, zero, o, weights);
    add_step(stage + k_codes, numbers, p, weights, o);
}

// This warp's share of the steps of a split.
INLINE void attend_steps(warp_task* w, const kvl__device_seq* s, const place& p, const queries& q,
                         unsigned char* ring, partial* o)
{
    const int before = w->begin / step_rows;
    const int steps = (w->end + step_rows - 1) / step_rows - before;
    const int share = (steps + cta_warps - 1) / cta_warps, warp = threadIdx.x / 32;
    const int after = (before + least_of(steps, (warp + 1) * share)) * step_rows;
    unsigned char* numbers = ring + num_stages * stage_bytes;
    const uint32_t ring_at = shared_address(ring);
    int basis[spans], stage = 0;
    feed f;
    w->first = (before + least_of(steps, warp * share)) * step_rows;
    // Rows of steps that are seen whole, as products alone: none where scores are bent.
    const bool some = w->plain && w->end - w->begin >= step_rows;
    const int whole = kept(some ? w->begin : 0x40000000);
    const int last = kept(some ? w->end - step_rows - w->begin : 0);
    start_feed(&f, s, w->head, w->first, after, p.lane);
    for (int i = 0; i < num_stages - 1; ++i) {
        ask(&f, w->head, p.lane, w->first + i * step_rows, ring_at + i * stage_bytes);
        copies_end();
    }
#pragma unroll 1
    for (int row = w->first; row < after; row += step_rows) {
        const bool inside = (uint32_t)(row - whole) <= (uint32_t)last;
        copies_wait<num_stages - 2>();
        __syncwarp();
        read_numbers(*w, ring + stage, p, row, inside, numbers, basis);
        ask(&f, w->head, p.lane, row + (num_stages - 1) * step_rows,
            ring_at + (stage ? stage : num_stages * stage_bytes) - stage_bytes);
        copies_end();
        __syncwarp();
        take_step(*w, ring + stage, numbers, p, q, basis, row, inside, o);
        stage = stage == (num_stages - 1) * stage_bytes ? 0 : stage + stage_bytes;
    }
    copies_wait<0>();
}

INLINE void attend_split(const kvl__device_attend& a, const kvl__device_seq* s, int query, int head,
                         int part, int begin, int end, int64_t position, unsigned char* room)
{
    enum { of_warp = num_stages * stage_bytes + numbers_bytes };
    __shared__ int is_odd[cta_warps];
    const place p = place_of();
    queries q;
#pragma unroll 1
    for (int attempt = 0; attempt < 2; ++attempt) {
        partial o;
        start_partial(attempt ? -7.0f : 6.0f, &o);
        load_fragments(a, query, head, p, room + cta_warps * of_warp, &q);
        __syncthreads();
        warp_task w;
        w.a = &a;
        w.query = query;
        w.head = head;
        w.begin = begin;
        w.end = end;
        w.plain = !(a.soft_cap > 0.0f || a.slopes);
        w.position = position;
#pragma unroll
        for (int i = 0; i < 2 * columns; ++i)
            w.factor[i / 2][i % 2] = 1.44269504f
                * __shfl_sync(0xffffffffu, q.up[i / 2], (p.t * 2 + i % 2) * 4);
        attend_steps(&w, s, p, q, room + kept(threadIdx.x / 32 * of_warp), &o);
        // A warp without steps has no top.
        const bool odd = __any_sync(0xffffffffu, o.top[0][0] > hidden_score() && !is_finite(o));
        if (p.lane == 0) is_odd[threadIdx.x / 32] = odd;
        __syncthreads();
        if (!(is_odd[0] | is_odd[1] | is_odd[2] | is_odd[3])) {
            store_partial(o, p, (results*)room);
            __syncthreads();
            store_results(a, query, head, part, o.lift, *(const results*)room);
            return;
        }
    }
    attend_by_floats(a, s, query, head, part, begin, end, position, (float*)room);
}
