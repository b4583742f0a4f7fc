// tensor_pages.cuh -- attention over the rows of pages by tensor cores.
//
// A warp has every fourth part of a split, 32 tokens a step: copies of them arrive in its ring in
// shared memory while it works on earlier ones.  Where a lane's numbers are, and in which bits, is
// in gen/tensor.lua and docs/cuda.md.  Scores are sums of products of codes with
//     query * scale      in two parts of f16 whose sum has 17 bits or more, of keys per channel
//     query              the same, of keys per token, whose scales meet sums of a group in float32
// and outputs are sums of products of codes with
//     weight * scale     rounded to f16 twice
// in float32, but that each product is cut at 2^-14 of the greatest of these numbers beside it or
// finer (multiply).
// Offsets of groups are f16 too: scale times zero, of which 11 bits or fewer are seldom cut.  They
// are multiplied by queries and weights without scales.  Weights are 2^lift times what they are, so
// that few are below the least normal f16, scales of values 2^(3 - bit) times, bit that of the
// codes that they are for, and offsets of values 2^3 times.  Scores are counted in eights, before
// their factor.  A result that is not finite is made again with a lift that nothing exceeds, then
// in floats.

#include "tensor.cuh"

//% local n = plan.tensor
//% local k, v = n.k, n.v
//% local pair, bias_of = n.pair, n.bias_of
enum { step_rows = $(n.rows), columns = $(n.columns), spans = $(n.spans), outs = $(n.outs) };
enum { value_groups = $(n.value_groups), num_stages = $(n.stages), stage_bytes = $(n.stage_bytes) };
enum { k_codes = $(k.codes_bytes), v_codes = $(v.codes_bytes), meta_pieces = $(n.meta_pieces) };
enum { meta_rounds = (meta_pieces + 31) / 32 };
enum { v_numbers = $(n.v_numbers), numbers_bytes = $(n.numbers_bytes) };
enum { k_rounds = $(n.k_rounds), v_rounds = (v_numbers + 127) / 128 };
enum { zero_tiles = value_groups / 8 + 1, scores = $(n.scores) };
// Numbers of a warp: of keys; scales and offsets of values; ones.
enum { v_at = $(n.k_numbers_bytes), ones_at = v_at + 4 * v_numbers };
//% if n.by_token then
// Of keys, for each pair of groups: scales of either; then offsets, and what those lack.
enum { key_groups = $(n.key_groups), key_pairs = $(n.key_pairs), group_spans = spans / key_groups };
enum { k_offsets_at = key_pairs * 256 };
//% else
// Of keys: scales, offsets, what those lack.
enum { k_numbers = $(n.k_numbers), k_low_at = 4 * k_numbers + 16 };
//% end
enum { quads = $(n.quads) };
enum { k_cell = $(32 * k.bits), v_cell = $(32 * v.bits), k_cells = $(k.cells) };
enum { v_cells = $(v.cells), tensor_bytes = $(n.room), v_tile = v_cells * $(2 * v.bits) };
//% local into = n.v_copies                        -- addresses of a lane that copies go to
enum { v_pad = 32, codes_bytes = k_codes + v_codes + v_pad };      // of a stage, then metadata

// Where lane 4 g + t is in a fragment; g = 4 a + 2 b + e, t = 2 va + vb.  Addresses are of shared
// memory: with the ring's offset of a stage, or of the numbers of the warp.
typedef struct place {
    int lane, g, t, a, b, e, va, vb;
    uint32_t key[4][$(k.words)];            // of its words of keys, fragments 2 i + h
    uint32_t value, value_mask[2][2];  // of its words of values; bits of them
    uint32_t k_meta[k_rounds], v_meta[v_rounds];     // metadata that it reads, four numbers,
    uint32_t k_to[k_rounds], v_to[v_rounds];         // and where they go as pairs
    uint32_t k_scales, k_offsets, v_scales, v_offsets[zero_tiles];   // that its products take
    uint32_t k_into, v_into[$(into)], meta_into;     // copies
    // For two pairs of its numbers: which bytes; what makes numbers of them.
    uint32_t v_scale[2], v_zero[2], v_weight[2], v_shift;
    //% if n.by_token then
    uint32_t k_select, k_shift, k_offsets_to[k_rounds];
    //% else
    uint32_t k_step[2], k_bias[2];
    //% end
} place;

// What a shuffle gives back is kept in registers, and not made again at each use.
INLINE int kept(int x) { return __shfl_sync(0xffffffffu, x, threadIdx.x % 32); }

// The same where registers are left: beside two tiles of heads, or more than four groups of a key,
// sm_75, whose products take more of them, would spill.
INLINE int kept_if_room(int x)
{
    //% if n.columns > 1 or n.sums == 2 then
#if __CUDA_ARCH__ < 800
    return x;
#else
    return kept(x);
#endif
    //% else
    return kept(x);
    //% end
}

// Of a query head of a lane: the token of the step that its score x is of.
INLINE int token_of(const place& p, int x)
{
    //% if n.tall then
    return 16 * p.va + 8 * p.vb + 2 * (x / 2 ^ p.va) + x % 2;
    //% else
    return 16 * p.a + 8 * p.b + p.e + 2 * (x ^ p.a);
    //% end
}

// The query head of a lane's scores, of those of a pass: of the fragment's rows g, or of its pairs
// of columns t.
INLINE int head_of(const place& p, int column) { return $(n.tall and "column * 8 + p.g" or "p.t"); }

// The bit at which the code of a lane's pair j = 2 i + (h ^ a) of values is.
INLINE int value_bit(int a, int i, int h) { return $(v.bits) * (2 * i + (h ^ a)) & 7; }

// Where 16 bytes of codes go, so that the lanes of a load meet all banks.
INLINE int k_piece(int piece)
{
    const int cell = piece / $(2 * k.bits);
    //% if n.is_half then
    return piece ^ (cell & 1);
    //% else
    return (piece $(k.bits == 2 and "" or "^ (cell & 1) << 2")) ^ (cell >> 1 & 1);
    //% end
}

INLINE int v_byte(int piece) { return piece * 16 + piece / v_tile * v_pad; }

//% if n.by_token then
// Where offsets of a pair of groups begin: four pairs in different banks.
INLINE int offsets_of(int two) { return k_offsets_at + two * 256 + two % 2 * 16 + two / 2 * 64; }

//% end
// The addresses of a lane, of a warp whose ring and numbers are at `ring` and `numbers`: of the
// numbers of keys, of which a lane makes four at a time.
INLINE void place_keys(uint32_t ring, uint32_t numbers, place* p)
{
#pragma unroll
    for (int r = 0; r < k_rounds; ++r) {
        //% if n.by_token then
        // Of a pair of groups, of the tokens of a g two: words of four tokens.
        const int two = (p->lane + 32 * r) / 16 % key_pairs, at = p->lane % 16;
        const int word = two * 16 + at / 4 * 2 + at % 2;
        p->k_meta[r] = kept(ring + codes_bytes + word * $(4 * k.bytes));
        p->k_to[r] = kept(numbers + two * 256 + at * 8);
        p->k_offsets_to[r] = kept(numbers + offsets_of(two) + at * 16);
        //% else
        const int word = (p->lane + 32 * r) % (k_numbers / 4);
        p->k_meta[r] = kept(ring + codes_bytes + word * $(4 * k.bytes));
        p->k_to[r] = kept(numbers + word * 8);
        //% end
    }
    //% if n.by_token then
    const int two = least_of($(n.sums == 2 and "p->t" or "p->t % 2"), key_pairs - 1);
    p->k_scales = kept_if_room(numbers + $(n.tall and "p->t * 32" or "p->g * 16"));
    p->k_offsets = kept_if_room(numbers + offsets_of(two) + p->g * 32);
    //% else
    p->k_scales = kept_if_room(numbers + p->t * 32);
    p->k_offsets = kept_if_room(numbers + p->t * 32 + (p->g % 2 ? k_low_at : 2 * k_numbers));
    //% end
}

// Of copies and of the numbers of values.
INLINE void place_copies(uint32_t ring, uint32_t numbers, place* p)
{
    enum { k_meta_bytes = $(16 * (n.pieces[1] + n.pieces[2])) };
    p->k_into = kept(ring + k_piece(p->lane) * 16);
    for (int i = 0; i < $(into); ++i)
        p->v_into[i] = kept(ring + k_codes + v_byte(p->lane + i * 32));
    //% if n.v_apart then
    p->meta_into = kept(ring + codes_bytes + p->lane * 16);
    //% else
    p->meta_into = p->v_into[0] + (codes_bytes - k_codes);
    //% end
    place_keys(ring, numbers, p);
#pragma unroll
    for (int r = 0; r < v_rounds; ++r) {
        //% if not n.by_token and n.k_numbers == n.v_numbers and k.bytes == v.bytes then
        p->v_meta[r] = p->k_meta[r] + k_meta_bytes;
        p->v_to[r] = p->k_to[r] + v_at;
        //% else
        const int word = (p->lane + 32 * r) % (v_numbers / 4);
        p->v_meta[r] = kept(ring + codes_bytes + k_meta_bytes + word * $(4 * v.bytes));
        p->v_to[r] = kept(numbers + v_at + word * 8);
        //% end
    }
    p->v_scales = kept_if_room(numbers + v_at + p->t * 16);
#pragma unroll
    for (int i = 0; i < zero_tiles; ++i)
        p->v_offsets[i] = kept_if_room(numbers + v_at + 2 * v_numbers + p->t * 16
                                      + least_of(8 * i + p->g, value_groups) * 64);
    const uint4 ones = { 0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u };
    if (p->lane < 4) store_shared_16(numbers + ones_at + p->lane * 16, ones);
}

INLINE place place_of(uint32_t ring, uint32_t numbers)
{
    const int lane = kept(threadIdx.x % 32);
    place p = { lane, lane / 4, lane % 4, lane / 16, lane / 8 % 2, lane / 4 % 2, lane / 2 % 2,
                lane % 2 };
    place_copies(ring, numbers, &p);
    //% local swap = (k.bits == 2 or n.is_half) and "p.t / 2" or "((p.t % 2) << 2 | p.t / 2)"
    //% local cell = n.is_half and "p.t / 2" or "p.t"
    //% local half = n.is_half and k.bits == 4 and "p.t % 2 * 64" or "0"
#pragma unroll
    for (int i = 0; i < 2; ++i)
        for (int h = 0; h < 2; ++h) {
            const int key = (p.a * k_cells + $(cell)) * k_cell + p.e * 4 + (h ^ p.a) * 8
                            + ((2 * p.b + i) ^ $(swap)) * 16 + $(half);
            for (int w = 0; w < $(k.words); ++w) p.key[2 * i + h][w] = kept(ring + (key ^ w * 64));
            p.value_mask[i][h] = kept($(v.mask) << value_bit(p.va, i, h));
        }
    //% local half_at = v.bits == 2 and "0" or "p.vb * 4"
    const int value = p.g / 4 * $(2 * v.bits) + $(half_at) + p.g % 4;
    p.value = kept(ring + k_codes + v_byte(p.va * v_tile + value));
    p.v_shift = kept(p.vb * 8);
    //% if n.by_token then
    // Tokens e and e + 2 of four, the later one first for a = 1.
    const int e = lane / 2 % 2, a = lane / 8 % 2;
    //% local bytes = "((e + 2 * a) * 0x11 + (e + 2 - 2 * a) * 0x1100 + 0x4040)"
    p.k_select = kept($(k.bytes == 1 and bytes or "e ? 0x7632 : 0x5410"));
    p.k_shift = $(n.is_half and k.bits == 2 and "kept(p.t % 2 * 8)" or "0");
    //% end
    //% local k_up = k.bits .. " * (2 * (lane % 2) + h)"
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        //% if not n.by_token then
        const uint32_t k_up = ($(k_up) & 7) * 0x04000400u;
        p.k_step[h] = kept($(pair(k.step / 8)) + k_up);
        p.k_bias[h] = kept($(bias_of(k, 1 / 8)) + k_up);
        //% end
        const int a = lane / 4 % 2, i = lane % 2;
        p.v_scale[h] = kept(high_selector(h ^ a));
        p.v_zero[h] = kept(low_selector(h ^ a));
        p.v_weight[h] = kept((15 + 3 - value_bit(a, i, h)) * 0x04000400);
    }
    return p;
}

// COPIES

// What was asked for last: rows of a page, counted as they are there.
typedef struct feed {
    const unsigned char* codes;            // of keys, middle_at after the lane's piece
    const unsigned char* meta[meta_rounds];
    const uint64_t*      table;            // at the page that comes after, if one does
    uint64_t next;
    int left;                              // steps of this page, or that are left at all
    int row, end;                          // the first row; after the last
    int codes_at, meta_at[meta_rounds], meta_step[meta_rounds];      // in a page; a step on
} feed;

//% local k_at, v_at = sides[1].layout, sides[2].layout
//% local rows_apart = k.codes_bytes ~= v.codes_bytes
// So that offsets of all copies are small.
enum { middle_at = $(rows_apart and 0 or (k_at.page_bytes + v.codes_bytes) // 2 // 16 * 16) };

// The lane's place before row `row` of the page f->next, `in_page` of it.
INLINE void enter_page(feed* f, int lane, int row, int in_page)
{
    f->codes = (const unsigned char*)f->next + (f->codes_at + in_page / step_rows * k_codes);
    for (int r = 0; r < meta_rounds; ++r) {
        //% if n.key_rows == n.rows then
        const int at = in_page / step_rows * f->meta_step[r];
        //% else
        const bool of_k = lane + 32 * r < $(n.pieces[1] + n.pieces[2]);
        const int at = of_k ? in_page / k_group_size * $(sides[1].head_dim * k.bytes)
                            : in_page * $(v.bytes);
        //% end
        f->meta[r] = (const unsigned char*)f->next + (f->meta_at[r] + at);
    }
    const int rows = f->end - row;
    f->left = least_of(page_size - in_page, rows) / step_rows;
    f->table += rows > page_size - in_page;
    f->next = *f->table;
}

INLINE void start_feed(feed* f, const kvl__device_seq* s, int head, int row, int end, int lane)
{
    const int at = head * (keys_bytes + values_bytes);
    f->row = row;
    f->end = end;
    f->codes_at = kept(at + middle_at + lane * 16 - k_codes);
    for (int r = 0; r < meta_rounds; ++r) {
        enum { ks = $(n.pieces[1]), kz = $(n.pieces[2]), vs = $(n.pieces[3]) };
        const int piece = lane + 32 * r, of_k = piece < ks + kz;
        const int is_zero = of_k ? piece >= ks : piece >= ks + kz + vs;
        const int i = piece - (of_k ? is_zero * ks : ks + kz + is_zero * vs);
        //% if n.by_token then
        enum { of_key_group = $(2 * k.bytes), k_step_bytes = $(n.rows * k.bytes) };
        const int k_meta = (is_zero ? k_zeros_at : k_scales_at)
                           + i / of_key_group * (page_size * $(k.bytes)) + i % of_key_group * 16;
        //% else
        enum { k_step_bytes = $(sides[1].head_dim * k.bytes) };
        const int k_meta = (is_zero ? k_zeros_at : k_scales_at) + i * 16;
        //% end
        enum { of_group = $(2 * v.bytes) };          // of values, a step
        const int v_meta = (is_zero ? v_zeros_at : v_scales_at)
                           + i / of_group * (page_size * $(v.bytes)) + i % of_group * 16;
        f->meta_step[r] = kept(of_k ? k_step_bytes : $(n.rows * v.bytes));
        const int before = $(n.key_rows == n.rows and "f->meta_step[r]" or "0");
        f->meta_at[r] = kept(at + (of_k ? k_meta : keys_bytes + v_meta) - before);
    }
    f->left = 0;
    if (row >= end) return;
    f->table = (const uint64_t*)s->table + (row / page_size - (int)s->first_page);
    f->next = *f->table;
    enter_page(f, lane, row, row % page_size);
}

// Whether the group of keys that a row is in has not been read by this warp.
INLINE bool is_fresh(int row, int first) { return row == first || row % $(n.key_rows) == 0; }

// Asks for the bytes of the step at `row`, into the stage at offset `to`.
INLINE void ask(feed* f, const place& p, int head, int row, uint32_t to)
{
    if (f->left == 0) {
        if (row >= f->end) return;
        enter_page(f, p.lane, row, 0);
    }
    --f->left;
    f->codes += k_codes;
    //% if rows_apart then
    const unsigned char* values = f->codes + keys_bytes + row % page_size / step_rows
                                                          * (v_codes - k_codes);
    //% end
    //% local from = rows_apart and "values" or "f->codes"
    //% local middle = rows_apart and 0 or (k_at.page_bytes + v.codes_bytes) // 2 // 16 * 16
    //% local first = rows_apart and 0 or sides[1].layout.page_bytes - middle
    //% for at = 0, k.codes_bytes - 1, 512 do
    copy_16<$(at), $(at - middle)>(p.k_into + to, f->codes);
    //% end
    //% for at = 0, v.codes_bytes - 1, 512 do
    //% local i = n.v_apart and at // 512 or 0
    //% local offset = n.v_apart and 0 or at + at // 16 // n.v_tile * 32
    copy_16<$(offset), $(first + at)>(p.v_into[$(i)] + to, $(from));
    //% end
#pragma unroll
    for (int r = 0; r < meta_rounds; ++r) {
        const int piece = p.lane + 32 * r;
        bool wanted = meta_pieces % 32 == 0 || piece < meta_pieces;
        //% if n.key_rows > n.rows then
        const bool of_k = piece < $(n.pieces[1] + n.pieces[2]);
        if (of_k && !is_fresh(row, f->row)) wanted = false;
        //% else
        f->meta[r] += f->meta_step[r];
        //% end
        if (wanted) copy_16<0, 0>(p.meta_into + 512 * r + to, f->meta[r]);
        //% if n.key_rows > n.rows then
        if (of_k && (row + step_rows) % k_group_size != 0) continue;
        f->meta[r] += f->meta_step[r];
        //% end
    }
}

// NUMBERS: scales, and offsets: scales times zeros, which are in units of the scale.  Those of keys
// are 2^(bit - 3) times, bit that of the code that they are for, in the exponents of step and bias.

//% for _, one in ipairs { { "k", k }, { "v", v } } do
//% local side = one[2]
//% if side.zero_type ~= "none" and side.bytes == 1 then
INLINE uint32_t $(one[1] .. "_zeros")(uint32_t word, uint32_t selector, uint32_t step,
                                      uint32_t bias)
{
    const uint32_t x = $("pair_of_" .. side.zero_type)(word, selector);
    //% if side.two_steps then
    return pair_mul_add(pair_add(x, $(pair(-side.bias))), step, bias);
    //% else
    return pair_mul_add(x, step, bias);
    //% end
}

//% end
//% end
// A mask of two tokens of a step: which of them are in [begin, end).
INLINE uint32_t seen_pair(int token, int begin, int end)
{
    return (token >= begin && token < end ? 0xffffu : 0u)
           | (token + 1 >= begin && token + 1 < end ? 0xffff0000u : 0u);
}

// Of the values of a step [group][token], those of tokens 8 b ... of a 16 as pairs in the order of
// 2 i + h, j = 2 i + (h ^ a): scales, then offsets.  Of rows that are not visible they are 0.
INLINE void read_value_numbers(const place& p, uint32_t stage, bool inside, int begin, int end)
{
#pragma unroll
    for (int r = 0; r < v_rounds; ++r) {
        //% if n.v_left then
        // The other lanes' words are those of an earlier round.
        if (r == v_rounds - 1 && p.lane >= $(n.v_left)) continue;
        //% end
        const uint32_t at = p.v_meta[r] + stage;
        const int a = p.lane / 4 % 2, token = p.lane % 8 * 4;
        //% local has_zero = v.zero_type ~= "none"
        //% if v.bytes == 2 then
        uint2 both = shared_8(at);
        //% if has_zero then
        uint2 stored = shared_8(at + 2 * v_numbers);
        if (a) stored = make_uint2(stored.y, stored.x);
        //% end
        if (a) both = make_uint2(both.y, both.x);
        //% else
        const uint32_t word = shared_4(at);
        //% if has_zero then
        const uint32_t zeros = $(v.packed and "word" or "shared_4(at + v_numbers)");
        //% end
        //% local of = "pair_of_" .. v.scale_type
        uint2 both = { $(of)(word, p.v_scale[0]), $(of)(word, p.v_scale[1]) };
        //% end
        if (!inside) {
            const uint32_t first = seen_pair(token + 2 * a, begin, end);
            const uint32_t second = seen_pair(token + 2 * (1 ^ a), begin, end);
            both.x &= first;
            both.y &= second;
            //% if v.bytes == 2 and has_zero then
            stored.x &= first;
            stored.y &= second;
            //% end
        }
        const uint2 scales = { pair_mul(both.x, p.v_weight[0]), pair_mul(both.y, p.v_weight[1]) };
        store_shared_8(p.v_to[r], scales);
        //% local offset_of = v.bytes == 2 and has_zero and not v.is_point and "stored" or "both"
        //% if not has_zero then
        const uint2 z = { $(pair(-8 * v.half)), $(pair(-8 * v.half)) };
        //% elseif v.is_point then
        const uint2 z = { pair_mul(stored.x, $(pair(-8))), pair_mul(stored.y, $(pair(-8))) };
        //% elseif v.bytes == 2 then
        const uint2 z = { $(pair(8)), $(pair(8)) };
        //% else
        const uint32_t step = $(pair(8 * v.step)), bias = $(bias_of(v, 8));
        const uint2 z = { v_zeros(zeros, p.v_zero[0], step, bias),
                          v_zeros(zeros, p.v_zero[1], step, bias) };
        //% end
        const uint2 offsets = { pair_mul($(offset_of).x, z.x), pair_mul($(offset_of).y, z.y) };
        store_shared_8(p.v_to[r] + 2 * v_numbers, offsets);
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

INLINE pair4 load_pairs(uint32_t at) { return pairs_of(shared_16(at)); }

// QUERIES

// Of each head at most 1 in magnitude, times 2^-bit of the codes that they meet, in two parts of
// which the first has 7 bits.  Where heads are rows a lane has both parts of head 8 c + g, in rows
// g and g + 8: of pairs 2 m and 2 m + 1 four registers, first factors.  Else part g % 2 of head
// g / 2, in column g: of pairs 4 m, 4 m + 2, then 4 m + 1, 4 m + 3 two registers, second factors.
//% if n.by_token then
// Sums over groups, for their offsets: lane t has a pair of groups; both parts of pair t, or of up
// to two pairs part t / 2 of pair t % 2.
//% end
typedef struct queries {
    //% if n.keeps_queries then
    uint4 of[columns][spans][quads];
    //% end
    uint32_t shared[columns];                  // of the lane, else
    //% if n.by_token then
    uint32_t sums[columns][$(n.sums)];
    //% end
    float up[columns];                         // what a head's were divided by
} queries;

// The 16 bytes of a lane, behind those that it has of other copies and spans.
INLINE int query_at(int copy, int span, int quad)
{
    return ((copy * spans + span) * quads + quad) * $(n.query_rows * 64);
}

// Rounds a lane's channels of a span times `down` to two parts, in the order of fragments.  Returns
// the sum of what is rounded.
INLINE float split_queries(const float* from, float down, const place& p, uint4* to)
{
    uint32_t high[$(n.span // 8)], low[$(n.span // 8)];
    float sum = 0.0f;
#pragma unroll
    for (int m = 0; m < $(n.span // 8); ++m) {
        const float by = down * float_of((uint32_t)(127 - ($(k.bits) * m & 7)) << 23);
        const float2 two = *(const float2*)(from + 2 * m);
        const float y = two.x * by, z = two.y * by;
        sum += two.x * down + two.y * down;
        high[m] = pair_of(float_of(bits_of(y) & 0xfffe0000u), float_of(bits_of(z) & 0xfffe0000u));
        low[m] = pair_of(y - f32_of_f16(high[m] & 0xffffu), z - f32_of_f16(high[m] >> 16));
        //% if not n.tall then
        if (p.g % 2) high[m] = low[m];
        //% end
    }
#pragma unroll
    for (int m = 0; m < quads; ++m) {
        //% if n.tall then
        const uint4 quad = { high[2 * m], low[2 * m], high[2 * m + 1], low[2 * m + 1] };
        //% else
        const uint4 quad = { high[4 * m], high[4 * m + 2], high[4 * m + 1], high[4 * m + 3] };
        //% end
        to[m] = quad;
    }
    return sum;
}

//% if n.by_token then
// sums: of a query head's groups, of each lane t its own share.
INLINE void place_sums(const place& p, const float* sums, uint32_t* to)
{
    float first = 0.0f, second = 0.0f;
#pragma unroll
    for (int group = 0; group < key_groups; ++group) {
        float sum = sums[group] + __shfl_xor_sync(0xffffffffu, sums[group], 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (group / 2 != $(n.sums == 2 and "p.t" or "p.t % 2")) continue;
        if (group % 2) second = sum;
        else first = sum;
    }
    const uint32_t high = pair_of(first, second);
    const uint32_t low = pair_of(first - f32_of_f16(high & 0xffffu),
                                 second - f32_of_f16(high >> 16));
    //% if n.sums == 2 then
    to[0] = high;
    to[1] = low;
    //% else
    to[0] = p.t < 2 ? high : low;
    //% end
}

//% end

INLINE void load_fragments(const kvl__device_attend& a, int query, int head, int first_head,
                           const place& p, unsigned char* shared, queries* q)
{
    enum { copies = $(sides[1].copies), plain = $(sides[1].turns and 1 or 0) };
#pragma unroll
    for (int column = 0; column < columns; ++column) {
        const int h = first_head + $(n.tall and "column * 8 + p.g" or "p.g / 2");
        const int of = least_of(h, num_heads - 1);
        const int64_t row = (query * (int64_t)gridDim.y + head) * num_heads + of;
        const float* from = (const float*)a.prepared + row * a.query_floats + plain * head_dim_k;
        //% local of_row = n.tall and (n.passes > 1 and "p.g" or "of") or "p.g"
        q->shared[column] = shared_address(shared) + $(of_row) * 64 + p.t * 16;
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
        //% local of_lane = ("y * %d + p.t * %d"):format(n.span, n.span // 4)
        //% if n.by_token then
        float sums[key_groups] = { 0.0f };
        //% end
#pragma unroll
        for (int copy = 0; copy < copies; ++copy)
#pragma unroll
            for (int y = 0; y < spans; ++y) {
                uint4 to[quads];
                const float sum = split_queries(from + copy * head_dim_k + $(of_lane), down, p, to);
                //% if n.by_token then
                sums[y / group_spans] += sum;
                //% else
                (void)sum;
                //% end
                //% if n.keeps_queries then
                // Through shared memory they come to registers that lie side by side.
                for (int m = 0; m < quads; ++m) {
                    const uint32_t at = p.k_into - k_piece(p.lane) * 16 + p.lane * 16;
                    store_shared_16(at, to[m]);
                    q->of[column][y][m] = shared_16(at);
                }
                //% else
                if (threadIdx.x / 32 != (column + copy) % cta_warps) continue;
                if (h - first_head >= $(n.query_rows)) continue;
                for (int m = 0; m < quads; ++m)
                    store_shared_16(q->shared[column] + query_at(copy, y, m), to[m]);
                //% end
            }
        //% if n.by_token then
        place_sums(p, sums, q->sums[column]);
        //% end
    }
}

INLINE pair4 query_pairs(const queries& q, int copy, int column, int span, int quad)
{
    //% if n.keeps_queries then
    return pairs_of(q.of[column][span][quad]);
    //% else
    return load_pairs(q.shared[column] + query_at(copy, span, quad));
    //% end
}

// STEPS

// The pair m of 8 of the channels of a lane's words, in the low bits of halves.
INLINE uint32_t k_pick(const uint32_t* word, int m)
{
    //% if k.bits == 2 then
    return word[0] >> m / 4 * 8 & $(k.mask) << m % 4 * 2;
    //% else
    return word[m / 4] >> m % 4 / 2 * 8 & $(k.mask) << m % 2 * 4;
    //% end
}

// The pairs j = 2 i + (h ^ va) of tokens of a lane's word.
INLINE uint32_t v_pick(uint32_t word, const place& p, int i, int h)
{
    //% if v.bits == 2 then
    return word >> p.v_shift & p.value_mask[i][h];
    //% else
    return word >> i * 8 & p.value_mask[i][h];
    //% end
}

//% if n.by_token then
#include "tensor_token_keys.cuh"
//% else
#include "tensor_channel_keys.cuh"
//% end

// What a warp has: of the lane's query heads head_of(p, c), and outputs of heads 8 c + 2 t + r, or
// of head t, r = 0.
typedef struct partial {
    float top[columns];                // log2; of all keys of the warp
    float base[columns];               // lift - top
    uint32_t reach;                    // added to a pair of weights: signs if top is to be raised
    float out[columns][2 * outs][4];   // [r], [2 + r]: times 2^(lift + 3 - 24)
    // Of group 8 i + g, times 2^(lift + 3): [0][r] and [1][2 + r]; the sums of weights, times
    // 2^lift, in the place of group 8 i + 7 of the last i.
    float zero[columns][zero_tiles][2][4];
    float lift;
} partial;

// A score in eighths, before its factor.
INLINE float eighths_of(float s, float zero)
{
    return $(n.by_token and "s" or "mul_add(s, 0x1p21f, zero)");
}

// Rows outside of [begin, end) of the step are not seen.
INLINE void hide_scores(const place& p, int begin, int end, float (*s)[scores])
{
#pragma unroll
    for (int c = 0; c < columns; ++c)
        for (int i = 0; i < scores; ++i) {
            const int at = token_of(p, i);
            s[c][i] = at >= begin && at < end ? s[c][i] : hidden_score();
        }
}

// A key's score is further beyond the top so far than weights allow: a greater top.
INLINE void raise_top(const place& p, const float (*s)[scores], const float* zero,
                      const float* factor, partial* o)
{
    enum { least_apart = $(n.tall and 1 or 4), most_apart = $(n.tall and 2 or 16) };
#pragma unroll
    for (int c = 0; c < columns; ++c) {
        float top = s[c][0];
        for (int i = 1; i < scores; ++i) top = fmaxf(top, s[c][i]);
        top = fmaxf(o->top[c], eighths_of(top, zero[c]) * factor[c]);
        for (int d = least_apart; d <= most_apart; d *= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
        const float shrink = power_of_two(o->top[c] - top);
        o->top[c] = top;
        o->base[c] = o->lift - top;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            //% local from = n.tall and "(2 * p.t + r % 2) * 4" or "p.t"
            const float by = __shfl_sync(0xffffffffu, shrink, $(from));
            for (int i = 0; i < 2 * outs; ++i) o->out[c][i][r] *= by;
            for (int i = 0; i < 2 * zero_tiles; ++i) o->zero[c][i / 2][i % 2][r] *= by;
        }
    }
}

// Weights of a step's scores as pairs.  Returns whether the sign bits of a pair say that one of the
// lane is too great.
INLINE bool weigh_scores(const float* factor, const float (*s)[scores], const float* zero,
                         const partial& o, uint32_t (*weights)[4])
{
    uint32_t beyond = 0;
#pragma unroll
    for (int c = 0; c < columns; ++c) {
        //% local from = n.by_token and "o.base[c]" or "mul_add(zero[c], factor[c], o.base[c])"
        const float by = factor[c] * $(n.unit), from = $(from);
        float e[scores];
        for (int i = 0; i < scores; ++i) e[i] = power_of_two(mul_add(s[c][i], by, from));
        for (int f = 0; f < 4; ++f) {
            //% local pair_at = n.tall and "e[2 * f], e[2 * f + 1]" or "e[f], 0.0f"
            weights[c][f] = pair_of($(pair_at));
            beyond |= weights[c][f] + o.reach;
        }
    }
    return (beyond & 0x80008000u) != 0;
}

// Second factors: of columns 8 c + g, or g / 2 for even g.
INLINE void weigh_step(const place& p, const float* factor, const float (*s)[scores],
                       const float* zero, partial* o, uint32_t (*weights)[4])
{
    if (__any_sync(0xffffffffu, weigh_scores(factor, s, zero, *o, weights))) {
        raise_top(p, s, zero, factor, o);
        weigh_scores(factor, s, zero, *o, weights);
    }
    //% if not n.tall then
#pragma unroll
    for (int f = 0; f < 4; ++f) weights[0][f] = transposed(weights[0][f]);
    //% end
}

// Values of a step join the outputs.
INLINE void add_step(const place& p, uint32_t stage, const uint32_t (*weights)[4], partial* o)
{
    enum { wide = outs / value_groups };
#pragma unroll
    for (int tile = 0; tile < zero_tiles; ++tile) {
        const pair4 z = load_pairs(p.v_offsets[tile]);
        for (int c = 0; c < columns; ++c)
            for (int h = 0; h < 2; ++h)
                multiply(o->zero[c][tile][h], z.of[0], z.of[1], z.of[2], z.of[3], weights[c][h],
                         weights[c][2 + h]);
    }
    uint32_t b[columns][4];
#pragma unroll
    for (int x = 0; x < outs; ++x) {
        if (x % wide == 0) {
            const pair4 scales = load_pairs(p.v_scales + x / wide * 64);
            for (int c = 0; c < columns; ++c)
                for (int f = 0; f < 4; ++f) b[c][f] = pair_mul(weights[c][f], scales.of[f]);
        }
        const pair4 word = load_pairs(p.value + stage + x * 2 * v_cell);
#pragma unroll
        for (int u = 0; u < 2; ++u)
            for (int h = 0; h < 2; ++h) {
                const uint32_t a0 = v_pick(word.of[2 * u], p, 0, h);
                const uint32_t a1 = v_pick(word.of[2 * u + 1], p, 0, h);
                const uint32_t a2 = v_pick(word.of[2 * u], p, 1, h);
                const uint32_t a3 = v_pick(word.of[2 * u + 1], p, 1, h);
                for (int c = 0; c < columns; ++c)
                    multiply(o->out[c][2 * x + u], a0, a1, a2, a3, b[c][h], b[c][2 + h]);
            }
    }
}

// RESULTS

// Whether all that a lane has is finite, a top too.  That alone may tell: of scores beyond float32
// the top is +inf, and each weight is 0.
INLINE bool is_finite(const partial& o)
{
    float size = 0.0f;                 // infinite or no number if one of them is: 0 x + size
#pragma unroll
    for (int c = 0; c < columns; ++c) {
        size = mul_add(0.0f, o.top[c], size);
        for (int r = 0; r < 4; ++r) {
            for (int i = 0; i < 2 * outs; ++i) size = mul_add(0.0f, o.out[c][i][r], size);
            for (int i = 0; i < zero_tiles; ++i)
                size = mul_add(0.0f, o.zero[c][i][r / 2][r], size);
        }
    }
    return size == 0.0f;
}

// The sum of a head's weights, times 2^lift, in the lanes of g = 7.
INLINE float sum_of_weights(const partial& o, int c, int r)
{
    return o.zero[c][zero_tiles - 1][0][r] + o.zero[c][zero_tiles - 1][1][r + 2];
}

// Whether each head of a lane has the weight of its top.  A top beyond 2^23 is rounded by more than
// a weight can be off, and all of them may be 0.
INLINE bool has_top(const partial& o, const place& p)
{
    float least = 1e30f;
#pragma unroll
    for (int c = 0; c < columns; ++c)
        for (int r = 0; r < $(n.tall and 2 or 1); ++r)
            least = fminf(least, sum_of_weights(o, c, r));
    return p.g != 7 || least >= power_of_two(o.lift - 1.0f);
}

// Of each warp and head.  Rows begin four banks apart.
typedef struct results {
    float top[cta_warps][8 * columns], sum[cta_warps][8 * columns];
    alignas(16) float out[cta_warps][8 * columns][head_dim_v + 4];
} results;

INLINE void store_partial(const partial& o, const place& p, results* w)
{
    const int warp = threadIdx.x / 32;
    //% local first, heads = n.tall and "p.t" or "p.g", n.tall and 2 or 1
#pragma unroll
    for (int c = 0; c < columns; ++c) {
        if ($(first) == 0) w->top[warp][head_of(p, c)] = o.top[c];
#pragma unroll
        for (int r = 0; r < $(heads); ++r) {
            const int h = $(n.tall and "c * 8 + p.t * 2 + r" or "p.t");
            if (p.g == 7) w->sum[warp][h] = sum_of_weights(o, c, r);
#pragma unroll
            for (int x = 0; x < outs; ++x) {
                const int group = x / (outs / value_groups);
                const float (*zero)[4] = o.zero[c][group / 8];
                const float z = __shfl_sync(0xffffffffu, zero[0][r] + zero[1][r + 2],
                                            group % 8 * 4 + p.t);
                const float4 four = { mul_add(o.out[c][2 * x][r], 0x1p24f, z),
                                      mul_add(o.out[c][2 * x][r + 2], 0x1p24f, z),
                                      mul_add(o.out[c][2 * x + 1][r], 0x1p24f, z),
                                      mul_add(o.out[c][2 * x + 1][r + 2], 0x1p24f, z) };
                *(float4*)&w->out[warp][h][x * 32 + p.g * 4] = four;
            }
        }
    }
}

// The part's result, of all warps: of query heads from first_head on.
INLINE void store_results(const kvl__device_attend& a, int query, int head, int first_head,
                          int part, float lift, const results& w)
{
    const int64_t first = (query * (int64_t)gridDim.y + head) * num_heads + first_head;
    const int heads = least_of(num_heads - first_head, $(n.pass_heads));
    float* to = (float*)a.o_part + (first * a.parts + part) * head_dim_v;
#pragma unroll 1
    for (int i = threadIdx.x; i < heads * head_dim_v; i += cta_threads) {
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

// IN FLOATS, a query head and a value after the other: whatever 16 bits cannot hold.  It is seldom
// wanted, so that little code matters more than time.

INLINE float score_by_floats(const kvl__device_attend& a, const unsigned char* keys, int lane,
                             const float* q, float bias, float slope, int distance)
{
    float sum = 0.0f;
    //% if sides[1].copies > 1 then
    const uint32_t choice = k_read_choice(keys, lane);
    //% end
#pragma unroll 1
    for (int at = 0; at < head_dim_k; ++at) {
        uint32_t code;
        //% local basis = sides[1].copies > 1 and "k_basis_of(choice, at) * head_dim_k" or "0"
        sum = mul_add(q[$(basis) + at], k_read_value(keys, lane, at, &code), sum);
    }
    sum += bias;
    if (a.soft_cap > 0.0f) sum = a.soft_cap * tanhf(__fdividef(sum, a.soft_cap));
    return mul_add(slope, (float)distance, sum);
}

INLINE void add_by_floats(const kvl__device_seq* s, int head, int strip, int begin, int end,
                          const float* weights, float* out)
{
#pragma unroll 1
    for (int row = most_of(strip, begin); row < strip + cta_threads && row < end; ++row)
#pragma unroll
        for (int i = 0; i < each; ++i) {
            uint32_t code;
            const int channel = i * cta_threads + threadIdx.x;
            if (channel >= head_dim_v) continue;
            const float x = v_read_value(page_at(s, row / page_size, head, 1), row % page_size,
                                         channel, &code);
            out[i] = mul_add(weights[row - strip], x, out[i]);
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
            const float score = row < begin || row >= end ? hidden_score()
                : score_by_floats(a, page_at(s, row / page_size, head, 0), row % page_size, q, bias,
                                  slope, (int)(row + a.windows.sink_len - position));
            float higher = top, more = 0.0f;
            scores[threadIdx.x] = score;
            __syncthreads();
#pragma unroll 1
            for (int i = 0; i < cta_threads; ++i) higher = most(higher, scores[i]);
            __syncthreads();
            scores[threadIdx.x] = expf(score - higher);
            __syncthreads();
#pragma unroll 1
            for (int i = 0; i < cta_threads; ++i) more += scores[i];
            const float shrink = expf(top - higher);
            sum = mul_add(sum, shrink, more);
            top = higher;
            for (int i = 0; i < each; ++i) out[i] *= shrink;
            add_by_floats(s, head, strip, begin, end, scores, out);
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
    // 2^(lift + 4), above which a weight is not let, is 2^15 less this as f16.
    o->lift = lift;
    o->reach = (0x8000u - ((uint32_t)(int)(lift + 4 + 15) << 10)) * 0x10001u;
    for (int c = 0; c < columns; ++c) {
        o->top[c] = hidden_score();
        o->base[c] = 1e30f;            // so that the first score that is seen raises it
        for (int r = 0; r < 4; ++r) {
            for (int i = 0; i < 2 * outs; ++i) o->out[c][i][r] = 0.0f;
            for (int i = 0; i < 2 * zero_tiles; ++i) o->zero[c][i / 2][i % 2][r] = 0.0f;
        }
    }
}

// What the steps of a warp have in common.
typedef struct warp_task {
    const kvl__device_attend* a;
    int query, head, first_head, begin, end;         // rows that are seen
    int first, plain;                  // the warp's first row; whether scores are products alone
    int64_t position;
    float factor[columns];
} warp_task;

// The soft cap and ALiBi.
INLINE void bend_scores(const warp_task& w, const place& p, int row, float (*s)[scores],
                        float* zero)
{
    const kvl__device_attend& a = *w.a;
    const float log2_e = 1.44269504f;
    //% if sides[1].shift then
    const int64_t first = (w.query * (int64_t)gridDim.y + w.head) * num_heads;
    //% end
#pragma unroll
    for (int c = 0; c < columns; ++c)
        for (int i = 0; i < scores; ++i) {
            const int h = least_of(w.first_head + head_of(p, c), num_heads - 1);
            const float by = w.factor[c];
            float x = eighths_of(s[c][i], zero[c]) * by * (1.0f / log2_e);
            if (a.soft_cap > 0.0f) {
                //% if sides[1].shift then
                x += ((const float*)a.bias)[first + h];
                //% end
                // tanh y = 1 - 2 / (e^(2 y) + 1)
                const float e = power_of_two(x * (2.0f * log2_e / a.soft_cap));
                x = a.soft_cap - __fdividef(2.0f * a.soft_cap, e + 1.0f);
            }
            const int at = row + token_of(p, i) + a.windows.sink_len;
            if (a.slopes)
                x = mul_add(((const float*)a.slopes)[w.head * num_heads + h],
                            (float)(int)(at - w.position), x);
            s[c][i] = __fdividef(x * log2_e, by * $(n.unit));
        }
    for (int c = 0; c < columns; ++c) zero[c] = 0.0f;
}

// The numbers of a step in a stage, as pairs.
INLINE void read_numbers(const warp_task& w, const unsigned char* ring, const place& p,
                         uint32_t stage, int row, bool inside, int* basis)
{
    if ($(n.key_rows == n.rows and "true" or "is_fresh(row, w.first)")) {
        read_key_numbers(p, stage);
        //% if not n.by_token then
        read_basis(ring + stage + codes_bytes, p, basis);
        //% end
    }
    read_value_numbers(p, stage, inside, w.begin - row, w.end - row);
}

// One step of 32 rows, whose numbers are read.
INLINE void take_step(const warp_task& w, const place& p, uint32_t stage, const queries& q,
                      const int* basis, int row, bool inside, partial* o)
{
    float s[columns][scores], zero[columns];
    uint32_t weights[columns][4];
    score_step(p, stage, q, basis, s, zero);
    if (!inside) {
        if (!w.plain) bend_scores(w, p, row, s, zero);
        hide_scores(p, w.begin - row, w.end - row, s);
    }
    weigh_step(p, w.factor, s, zero, o, weights);
    add_step(p, stage, weights, o);
}

// This warp's share of the steps of a split.  Returns whether it has any.
INLINE bool attend_steps(warp_task* w, const kvl__device_seq* s, const place& p, const queries& q,
                         const unsigned char* ring, partial* o)
{
    const int before = w->begin / step_rows;
    const int steps = (w->end + step_rows - 1) / step_rows - before;
    const int share = (steps + cta_warps - 1) / cta_warps, warp = threadIdx.x / 32;
    const int after = uniform((before + least_of(steps, (warp + 1) * share)) * step_rows);
    uint32_t stage = 0, stage_before = (num_stages - 1) * stage_bytes;
    int basis[spans] = { 0 };
    feed f;
    w->first = uniform((before + least_of(steps, warp * share)) * step_rows);
    // Rows of steps that are seen whole, as products alone: none where scores are bent.
    const bool some = w->plain && w->end - w->begin >= step_rows;
    const int whole = uniform(some ? w->begin : 0x40000000);
    const int last = uniform(some ? w->end - step_rows - w->begin : 0);
    start_feed(&f, s, w->head, w->first, after, p.lane);
    for (int i = 0; i < num_stages - 1; ++i) {
        ask(&f, p, w->head, w->first + i * step_rows, i * stage_bytes);
        copies_end();
    }
#pragma unroll 1
    for (int row = w->first; row < after; row += step_rows) {
        const bool inside = (uint32_t)(row - whole) <= (uint32_t)last;
        copies_wait<num_stages - 2>();
        __syncwarp();
        read_numbers(*w, ring, p, stage, row, inside, basis);
        ask(&f, p, w->head, row + (num_stages - 1) * step_rows, stage_before);
        copies_end();
        __syncwarp();
        take_step(*w, p, stage, q, basis, row, inside, o);
        stage_before = stage;
        stage = stage == (num_stages - 1) * stage_bytes ? 0 : stage + stage_bytes;
    }
    copies_wait<0>();
    return w->first < after;
}

// The query heads of a pass, those from first_head on.  Returns whether 16 bits hold them: if not,
// nothing is stored.
INLINE bool attend_heads(const kvl__device_attend& a, const kvl__device_seq* s, int query, int head,
                         int first_head, int part, int begin, int end, int64_t position,
                         const place& p, unsigned char* room)
{
    enum { of_warp = num_stages * stage_bytes + numbers_bytes };
    __shared__ int is_odd[cta_warps];
    const unsigned char* ring = room + threadIdx.x / 32 * of_warp;
    queries q;
#pragma unroll 1
    for (int attempt = 0; attempt < 2; ++attempt) {
        partial o;
        start_partial(attempt ? -7.0f : 6.0f, &o);
        load_fragments(a, query, head, first_head, p, room + cta_warps * of_warp, &q);
        __syncthreads();
        warp_task w;
        w.a = &a;
        w.query = query;
        w.head = head;
        w.first_head = first_head;
        w.begin = begin;
        w.end = end;
        w.plain = !(a.soft_cap > 0.0f || a.slopes);
        w.position = position;
#pragma unroll
        for (int c = 0; c < columns; ++c)
            w.factor[c] = 8 * 1.44269504f
                * __shfl_sync(0xffffffffu, q.up[c], $(n.tall and "p.g * 4" or "p.t * 8"));
        // A warp without steps has no top.  One with steps and no top has no number but NaN, or
        // scores below what a first top is raised from.
        const bool some = attend_steps(&w, s, p, q, ring, &o);
        const bool odd = __any_sync(0xffffffffu, some && !(is_finite(o) && has_top(o, p)));
        if (p.lane == 0) is_odd[threadIdx.x / 32] = odd;
        __syncthreads();
        if (!(is_odd[0] | is_odd[1] | is_odd[2] | is_odd[3])) {
            store_partial(o, p, (results*)room);
            __syncthreads();
            store_results(a, query, head, first_head, part, o.lift, *(const results*)room);
            return true;
        }
    }
    return false;
}

INLINE void attend_split(const kvl__device_attend& a, const kvl__device_seq* s, int query, int head,
                         int part, int begin, int end, int64_t position, unsigned char* room)
{
    enum { of_warp = num_stages * stage_bytes + numbers_bytes };
    const uint32_t ring_at = shared_address(room + threadIdx.x / 32 * of_warp);
    //% if n.passes > 1 then
#pragma unroll 1
    for (int first_head = 0; first_head < num_heads; first_head += $(n.pass_heads)) {
        const place p = place_of(ring_at, ring_at + num_stages * stage_bytes);
        if (!attend_heads(a, s, query, head, first_head, part, begin, end, position, p, room)) {
            attend_by_floats(a, s, query, head, part, begin, end, position, (float*)room);
            return;
        }
        __syncthreads();
    }
    //% else
    const place p = place_of(ring_at, ring_at + num_stages * stage_bytes);
    if (!attend_heads(a, s, query, head, 0, part, begin, end, position, p, room))
        attend_by_floats(a, s, query, head, part, begin, end, position, (float*)room);
    //% end
}
