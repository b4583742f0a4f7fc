// tensor_channel_keys.cuh -- numbers and scores of keys whose groups are tokens of a channel.
//
// Scales multiply the query's fragment: the product of its first part with a scale of 4 significant
// bits is exact.  Offsets are first factors of products of their own, with queries as they are.

//% local n = plan.tensor
//% local k = n.k

// Of a group of keys: scales as pairs [channel], offsets, and what offsets lack for being f16.
INLINE void read_key_numbers(const place& p, uint32_t stage)
{
#pragma unroll
    for (int r = 0; r < k_rounds; ++r) {
        //% if n.k_left then
        // The other lanes' words are those of an earlier round.
        if (r == k_rounds - 1 && p.lane >= $(n.k_left)) continue;
        //% end
        const uint32_t at = p.k_meta[r] + stage;
        //% if k.bytes == 2 then
        const uint2 both = shared_8(at);
        //% else
        const uint32_t word = shared_4(at);
        //% local of = "pair_of_" .. k.scale_type
        const uint2 both = { $(of)(word, high_selector(0)), $(of)(word, high_selector(1)) };
        //% end
        store_shared_8(p.k_to[r], both);
        //% local offset_of = "both"
        //% if k.zero_type == "none" then
        const uint2 z = { p.k_bias[0], p.k_bias[1] };
        //% elseif k.is_point then
        const uint2 stored = shared_8(at + 2 * k_numbers);
        const uint2 z = { pair_mul(stored.x, p.k_step[0]), pair_mul(stored.y, p.k_step[1]) };
        //% elseif k.bytes == 2 then
        //% offset_of = "stored"
        const uint2 stored = shared_8(at + 2 * k_numbers), z = { p.k_step[0], p.k_step[1] };
        //% else
        const uint32_t zeros = $(k.packed and "word" or "shared_4(at + k_numbers)");
        const uint2 z = { k_zeros(zeros, low_selector(0), p.k_step[0], p.k_bias[0]),
                          k_zeros(zeros, low_selector(1), p.k_step[1], p.k_bias[1]) };
        //% end
        const uint2 offsets = { pair_mul($(offset_of).x, z.x), pair_mul($(offset_of).y, z.y) };
        const uint2 low = { pair_mul_sub($(offset_of).x, z.x, offsets.x),
                            pair_mul_sub($(offset_of).y, z.y, offsets.y) };
        store_shared_8(p.k_to[r] + 2 * k_numbers, offsets);
        store_shared_8(p.k_to[r] + k_low_at, low);
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

// The products of 16 channels of a group, 64 y + 16 t ..., with codes and with offsets.
//% if n.tall then
INLINE void multiply_keys(const uint32_t (*word)[$(k.words)], int m, pair4 q, const pair4* scales,
                          const pair4* offsets, float (*s)[4], float (*zero)[4])
{
    uint32_t b[4];                     // two parts of one pair, then of the next
    for (int i = 0; i < 2; ++i) {
        const uint32_t scale = scales[m / 2].of[m % 2 * 2 + i];
        b[2 * i] = pair_mul(q.of[2 * i], scale);
        //% if n.exact_scales then
        b[2 * i + 1] = pair_mul(q.of[2 * i + 1], scale);
        //% else
        b[2 * i + 1] = pair_mul_add(q.of[2 * i + 1], scale,
                                    pair_mul_sub(q.of[2 * i], scale, b[2 * i]));
        //% end
    }
    multiply(zero[0], q.of[0], q.of[1], q.of[2], q.of[3], offsets[m / 2].of[m % 2 * 2],
             offsets[m / 2].of[m % 2 * 2 + 1]);
#pragma unroll
    for (int f = 0; f < 4; ++f)
        multiply(s[f], b[0], b[1], b[2], b[3], k_pick(word[f], 2 * m), k_pick(word[f], 2 * m + 1));
}
//% else
// Offsets are right in rows g for pairs 0 and 2 of four, in rows g + 8 for pairs 1 and 3; in even
// rows, and what they lack in odd ones.
INLINE void multiply_keys(const uint32_t (*word)[$(k.words)], int m, pair4 q, const pair4* scales,
                          const pair4* offsets, float (*s)[4], float (*zero)[4])
{
    const pair4 z = offsets[m];
#pragma unroll
    for (int v = 0; v < 2; ++v) {
        const int first = 4 * m + v, second = first + 2;
        const uint32_t b0 = pair_mul(q.of[2 * v], scales[m].of[v]);
        const uint32_t b1 = pair_mul(q.of[2 * v + 1], scales[m].of[v + 2]);
        multiply(zero[v], z.of[0], z.of[1], z.of[2], z.of[3], q.of[2 * v], q.of[2 * v + 1]);
#pragma unroll
        for (int i = 0; i < 2; ++i)
            multiply(s[i], k_pick(word[2 * i], first), k_pick(word[2 * i + 1], first),
                     k_pick(word[2 * i], second), k_pick(word[2 * i + 1], second), b0, b1);
    }
}
//% end

// The scores of a step, without softmax's factors: 2^21 s + zero.
INLINE void score_step(const place& p, uint32_t stage, const queries& q, const int* basis,
                       float (*s)[scores], float* zero)
{
    float sums[columns][scores / 2][4], zeros[columns][2][4];
    for (int c = 0; c < columns; ++c)
        for (int r = 0; r < 4; ++r) {
            zeros[c][0][r] = zeros[c][1][r] = 0.0f;
            for (int f = 0; f < scores / 2; ++f) sums[c][f][r] = 0.0f;
        }
#pragma unroll
    for (int y = 0; y < spans; ++y) {
        const uint32_t at = p.k_scales + y * 128, offset = p.k_offsets + y * 128;
        const pair4 scales[2] = { load_pairs(at), load_pairs(at + 16) };
        const pair4 offsets[2] = { load_pairs(offset), load_pairs(offset + 16) };
        uint32_t word[4][$(k.words)];
#pragma unroll
        for (int f = 0; f < 4; ++f)
            for (int w = 0; w < $(k.words); ++w)
                word[f][w] = shared_4(p.key[f][w] + stage + y * 4 * k_cell);
#pragma unroll
        for (int c = 0; c < columns; ++c)
#pragma unroll
            for (int m = 0; m < quads; ++m)
                multiply_keys(word, m, query_pairs(q, basis[y], c, y, m), scales, offsets, sums[c],
                              zeros[c]);
    }
    // Parts are in rows g and g + 8, or in columns 2 t and 2 t + 1.
    //% local apart = n.tall and "x / 2][x % 2" or "x / 2][x % 2 * 2"
    //% local other = n.tall and "x / 2][x % 2 + 2" or "x / 2][x % 2 * 2 + 1"
#pragma unroll
    for (int c = 0; c < columns; ++c) {
        for (int x = 0; x < scores; ++x) s[c][x] = sums[c][$(apart)] + sums[c][$(other)];
        //% if n.tall then
        zero[c] = zeros[c][0][0] + zeros[c][0][2] + (zeros[c][0][1] + zeros[c][0][3]);
        //% else
        zero[c] = zeros[c][0][0] + zeros[c][0][1] + (zeros[c][1][2] + zeros[c][1][3]);
        zero[c] += __shfl_xor_sync(0xffffffffu, zero[c], 4);
        //% end
    }
}
