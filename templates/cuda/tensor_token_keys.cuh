// tensor_token_keys.cuh -- numbers and scores of keys whose groups are channels of a token.
//
// Sums of a group meet the token's scale in float32, one after the other.  Offsets are factors of a
// product of their own, with the sums of the query over groups: of all groups at once.
// Of a lane g the tokens of its fragments f = 0 .. 3 lie together: scales are f32 [group][g][f],
// offsets are pairs of groups as f16, beside them what they lack for being f16, of two f at a time
// as a product wants them.

//% local n = plan.tensor
//% local k = n.k
//% local next = n.key_groups == 1 and "at" or "at + next_group(p, r)"

//% if n.key_groups > 1 then
// From a group of a lane's pair to the other one, if there is one.
INLINE uint32_t next_group(const place& p, int r)
{
    //% if n.key_groups % 2 == 0 then
    (void)p;
    (void)r;
    return step_rows * $(k.bytes);
    //% else
    const int two = (p.lane + 32 * r) / 16 % key_pairs;
    return 2 * two + 1 < key_groups ? step_rows * $(k.bytes) : 0;
    //% end
}

//% end
// Of two tokens of a lane the bytes or halves of both groups.
//% if k.bytes == 1 then
INLINE uint32_t both_groups(const place& p, uint32_t at, uint32_t next)
{
    const uint32_t word = shared_4(at);
    return __byte_perm(word, $(n.key_groups == 1 and "word" or "shared_4(next)"), p.k_select);
}
//% else
INLINE uint2 both_groups(const place& p, uint32_t at, uint32_t next)
{
    const uint2 x = shared_8(at), y = $(n.key_groups == 1 and "x" or "shared_8(next)");
    const uint2 both = { __byte_perm(x.x, y.x, p.k_select), __byte_perm(x.y, y.y, p.k_select) };
    return p.lane & 8 ? make_uint2(both.y, both.x) : both;
}
//% end

INLINE uint2 both_floats(uint32_t x, uint32_t y, float by)
{
    const uint2 both = { bits_of(f32_of_f16(x) * by), bits_of(f32_of_f16(y) * by) };
    return both;
}

// Of the keys of a step.  Scales are times 2^24 / 8, since codes are times 2^-24 and scores are
// counted in eighths.
INLINE void read_key_numbers(const place& p, uint32_t stage)
{
#pragma unroll
    for (int r = 0; r < k_rounds; ++r) {
        //% if n.k_left then
        // The other lanes' words are those of an earlier round.
        if (r == k_rounds - 1 && p.lane >= $(n.k_left)) continue;
        //% end
        const uint32_t at = p.k_meta[r] + stage, next = $(next);
        //% if k.bytes == 2 then
        const uint2 both = both_groups(p, at, next);
        //% else
        const uint32_t word = both_groups(p, at, next);
        //% local of = "pair_of_" .. k.scale_type
        const uint2 both = { $(of)(word, high_selector(0)), $(of)(word, high_selector(1)) };
        //% end
        //% local offset_of, zeros_at = "both", n.key_groups .. " * step_rows * " .. k.bytes
        //% if k.zero_type == "none" then
        const uint2 z = { $(n.bias_of(k, 1 / 8)), $(n.bias_of(k, 1 / 8)) };
        //% elseif k.bytes == 2 then
        const uint2 stored = both_groups(p, at + $(zeros_at), next + $(zeros_at));
        const uint32_t step = $(n.pair(k.step / 8));
        //% if k.is_point then
        const uint2 z = { pair_mul(stored.x, step), pair_mul(stored.y, step) };
        //% else
        //% offset_of = "stored"
        const uint2 z = { step, step };
        //% end
        //% else
        //% local zeros = ("both_groups(p, at + %s, next + %s)"):format(zeros_at, zeros_at)
        const uint32_t zeros = $(k.packed and "word" or zeros);
        const uint32_t step = $(n.pair(k.step / 8)), bias = $(n.bias_of(k, 1 / 8));
        const uint2 z = { k_zeros(zeros, low_selector(0), step, bias),
                          k_zeros(zeros, low_selector(1), step, bias) };
        //% end
        const uint2 offsets = { pair_mul($(offset_of).x, z.x), pair_mul($(offset_of).y, z.y) };
        const uint2 low = { pair_mul_sub($(offset_of).x, z.x, offsets.x),
                            pair_mul_sub($(offset_of).y, z.y, offsets.y) };
        const uint32_t to = p.k_to[r];
        store_shared_8(to, both_floats(both.x & 0xffffu, both.y & 0xffffu, 0x1p21f));
        //% if n.key_groups > 1 then
        store_shared_8(to + 128, both_floats(both.x >> 16, both.y >> 16, 0x1p21f));
        //% end
        //% local four = n.tall and "offsets.x, low.x, offsets.y, low.y"
        //%              or "offsets.x, offsets.y, low.x, low.y"
        const uint4 both_offsets = { $(four) };
        store_shared_16(p.k_offsets_to[r], both_offsets);
    }
}

// The products of the offsets of all groups with the sums of a query.  z: of tokens f = 0, 1, then
// 2, 3.  Rows g + 8 of queries, or columns of their second parts, are not looked at.
INLINE void multiply_offsets(const pair4* z, const uint32_t* sums, float* s)
{
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        //% if n.tall then
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float sum[4] = { 0.0f };
            for (int part = 0; part < $(n.sums); ++part)
                multiply(sum, sums[part], sums[part], sums[part], sums[part], z[i].of[2 * h],
                         z[i].of[2 * h + 1]);
            s[4 * i + 2 * h] = sum[0];
            s[4 * i + 2 * h + 1] = sum[1];
        }
        //% else
        float sum[4] = { 0.0f };
        for (int part = 0; part < $(n.sums); ++part)
            multiply(sum, z[i].of[0], z[i].of[1], z[i].of[2], z[i].of[3], sums[part], sums[part]);
        s[2 * i] = sum[0];
        s[2 * i + 1] = sum[2];
        //% end
    }
}

// The products of a lane's channels of a span with codes.
INLINE void multiply_codes(const uint32_t (*word)[$(k.words)], int m, pair4 q, float (*s)[4])
{
    //% if n.tall then
#pragma unroll
    for (int f = 0; f < 4; ++f)
        multiply(s[f], q.of[0], q.of[1], q.of[2], q.of[3], k_pick(word[f], 2 * m),
                 k_pick(word[f], 2 * m + 1));
    //% else
#pragma unroll
    for (int v = 0; v < 2; ++v) {
        const int first = 4 * m + v, second = first + 2;
#pragma unroll
        for (int i = 0; i < 2; ++i)
            multiply(s[i], k_pick(word[2 * i], first), k_pick(word[2 * i + 1], first),
                     k_pick(word[2 * i], second), k_pick(word[2 * i + 1], second), q.of[2 * v],
                     q.of[2 * v + 1]);
    }
    //% end
}

// The sums of a group whose words are given join the scores of a fragment of heads.
INLINE void add_group(const uint32_t (*word)[4][$(k.words)], const queries& q, int group, int c,
                      const pair4* scale, float* s)
{
    float sums[scores / 2][4];
    for (int i = 0; i < 2 * scores; ++i) sums[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int y = 0; y < group_spans; ++y)
#pragma unroll
        for (int m = 0; m < quads; ++m)
            multiply_codes(word[y], m, query_pairs(q, 0, c, group * group_spans + y, m), sums);
    // Parts are in rows g and g + 8, or in columns 2 t and 2 t + 1.
    //% local apart = n.tall and "x / 2][x % 2" or "x / 2][x % 2 * 2"
    //% local other = n.tall and "x / 2][x % 2 + 2" or "x / 2][x % 2 * 2 + 1"
    for (int x = 0; x < scores; ++x) {
        const float by = float_of($(n.tall and "scale[x % 2].of[x / 2]" or "scale[0].of[x]"));
        s[x] = mul_add(sums[$(apart)], by, s[x]);
        s[x] = mul_add(sums[$(other)], by, s[x]);
    }
}

// The scores of a step in eighths, without softmax's factors.
INLINE void score_step(const place& p, uint32_t stage, const queries& q, const int* basis,
                       float (*s)[scores], float* zero)
{
    (void)basis;
    const pair4 offsets[2] = { load_pairs(p.k_offsets), load_pairs(p.k_offsets + 16) };
#pragma unroll
    for (int c = 0; c < columns; ++c) {
        zero[c] = 0.0f;
        multiply_offsets(offsets, q.sums[c], s[c]);
    }
#pragma unroll
    for (int group = 0; group < key_groups; ++group) {
        uint32_t word[group_spans][4][$(k.words)];
        for (int i = 0; i < group_spans * 4 * $(k.words); ++i) {
            const int y = i / (4 * $(k.words)), f = i / $(k.words) % 4, w = i % $(k.words);
            const uint32_t at = (group * group_spans + y) * $(n.span // 16) * k_cell;
            word[y][f][w] = shared_4(p.key[f][w] + stage + at) >> p.k_shift;
        }
        pair4 scale[$(n.parts)];
        for (int i = 0; i < $(n.parts); ++i)
            scale[i] = load_pairs(p.k_scales + group * 128 + i * 16);
#pragma unroll
        for (int c = 0; c < columns; ++c) add_group(word, q, group, c, scale, s[c]);
    }
}
