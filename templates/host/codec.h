// codec.h -- $(codec.title) at $(codec.bits) bits:  $(codec.diagram)
//% if codec.path then
//
// A group is a path, of $(codec.path.states) states: its levels have $(codec.level_bits) bits.
//% end
//
// The order of codes and metadata in a page is told in gen/layout.lua.  A cell has 16 lanes and 16
// words: $(codec.word_lane("tokens are words", "channels are lanes")).
// lane16 and word16 count cells in each direction.

//% local L = codec.layout
enum { $(s "dim") = $(codec.head_dim), $(s "lane_extent") = $(codec.lane_extent) };
enum { $(s "word_extent") = $(codec.word_extent), $(s "cell_bytes") = $(L.cell_bytes) };
enum { $(s "scales_at") = $(L.scales_at), $(s "zeros_at") = $(L.zeros_at) };
enum { $(s "page_bytes") = $(L.page_bytes), $(s "group_size") = $(codec.group_size) };

INLINE const unsigned char* $(s "cell")(const unsigned char* page, int lane16, int word16)
{
    //% if codec.is_key then
    return page + (lane16 * ($(s "dim") / 16) + word16) * (int64_t)$(s "cell_bytes");
    //% else
    return page + (word16 * ($(s "dim") / 16) + lane16) * (int64_t)$(s "cell_bytes");
    //% end
}

//% if codec.raw == "none" then
//% local meta, levels = codec.parts.meta, codec.parts.levels
//% local offset = levels.offset or meta.offset
// METADATA

// Index of the scale of a word and a lane.
INLINE int $(s "group")(int word, int lane)
{
    //% if codec.along_lanes then
    return lane / $(s "group_size") * $(s "word_extent") + word;
    //% else
    return word / $(s "group_size") * $(s "lane_extent") + lane;
    //% end
}

//% for _, one in ipairs { { "vf", "load_" }, { "float", "read_" } } do
INLINE $(one[1]) $(s(one[2] .. "scale"))(const unsigned char* page, int group)
{
    //% if meta.constant then
    enum { code_max = $(codec.code_max) };
    (void)page;
    (void)group;
    return $(one[1] == "vf" and "repeat" or "")($(codec.calibrated_book and "1.0f" or meta.scale));
    //% else
    page += $(s "scales_at") + group * (int64_t)$(codec.scale_bytes);
    //% if codec.flagged and meta.signed then
    return $(one[1] == "vf" and "absolute_of" or "absolute")($(one[2] .. meta.scale_type)(page));
    //% else
    return $(one[2] .. meta.scale_type)(page);
    //% end
    //% end
}

INLINE $(one[1]) $(s(one[2] .. "offset"))(const unsigned char* page, int group, $(one[1]) scale)
{
    enum { bits = $(codec.level_bits), code_max = $(codec.code_max), half_codes = 1 << (bits - 1) };
    //% if codec.has_zero then
    //% local at = meta.packed and "scales_at" or "zeros_at"
    page += $(s(at)) + group * (int64_t)$(meta.packed and codec.scale_bytes or codec.zero_bytes);
    const $(one[1]) zero = $(one[2] .. meta.zero_type)(page);
    //% if meta.offset == "zero" then
    (void)scale;
    //% end
    //% else
    (void)page;
    (void)group;
    //% end
    return $(offset);
}

//% end
//% if codec.raised == "steps" then
// Zeros of the groups from `group` on: offset + scale code_max / 2 = scale zero
// $(f32(codec.zero_step)).
INLINE vf $(s "load_zero")(const unsigned char* page, int group)
{
    page += $(s "zeros_at") + group * (int64_t)$(codec.zero_bytes);
    return $("load_" .. meta.zero_type)(page);
}

//% end
// The numbers that turn a value into its code: round((x - offset) * inverse).
typedef struct $(s "grid") {
    float offset, inverse;
} $(s "grid");

INLINE void $(s "put_pair")(unsigned char* page, int group, uint32_t scale_code, uint32_t zero_code)
{
    (void)zero_code;
    //% if codec.scale_bytes == 0 then
    (void)page;
    (void)group;
    (void)scale_code;
    //% end
    //% if meta.packed then
    scale_code = scale_code << 4 | zero_code;
    //% end
    //% for _, one in ipairs { { "scale", codec.scale_bytes }, { "zero", codec.zero_bytes } } do
    //% if one[2] == 1 then
    page[$(s(one[1] .. "s_at")) + group] = (unsigned char)$(one[1] .. "_code");
    //% elseif one[2] == 2 then
    write_u16(page + $(s(one[1] .. "s_at")) + group * (int64_t)2, $(one[1] .. "_code"));
    //% end
    //% end
}

// What is stored for a group, and the scale that it decodes to.
typedef struct $(s "pair") {
    uint32_t scale_code, zero_code;
    float    scale;
} $(s "pair");

//% if codec.book then
#include "books.h"

// The levels of codes.
INLINE vf $(s "level")(vu code)
{
    //% if codec.permutes and isa.lanes >= codec.num_levels then
    return (vf)take_lanes((vi)load($(s "values")), (vi)code);
    //% elseif codec.permutes then
    const vi low = take_lanes((vi)load($(s "values")), (vi)code);
    const vi high = take_lanes((vi)load($(s "values") + lanes), (vi)code);
    return select(code >= (uint32_t)lanes, (vf)high, (vf)low);
    //% elseif codec.looks_up then
    vf x = repeat(0.0f);
    for (int i = 0; i < lanes; ++i) x[i] = $(s "values")[code[i]];
    return x;
    //% else
    //% local float = codec.book.float
    const vu size = code & $((1 << codec.bits - 1) - 1), sign = code >> $(codec.bits - 1) << 31;
    const vf a = (vf)((size << $(23 - float.mantissa)) + $(127 - float.bias << 23));
    const vf x = smaller(mul_add(a, repeat(2.0f), repeat($(f32(-2.0 ^ (1 - float.bias))))), a);
    return (vf)((vu)x | sign);
    //% end
}

//% if codec.plane then
// The levels of channels that are lanes, from their codes.
INLINE vu $(s "numbers")(vu code)
{
    typedef uint64_t vd __attribute__((vector_size(4 * lanes)));
    //% local num = #codec.book.bounds
    const vd both = (vd)code, number = (both | both >> $(32 - codec.bits)) & $(num - 1);
    return (vu)(number | (number + $(num)) << 32);
}
//% else
// The codes of the levels that are nearest to y.
INLINE vi $(s "codes_of")(vf y)
{
    //% if codec.counts_bounds then
    const vf at = $(codec.book.signed and "absolute_of(y)" or "y");
    vi rank = { 0 };
    //% for _, bound in ipairs(codec.book.bounds) do
    rank -= (vi)(at >= $(f32(bound)));
    //% end
    //% else
    //% local float = codec.book.float
    const vf at = smaller(absolute_of(y), repeat($(f32(codec.book.top))));
    const vu u = (vu)at - $(127 - float.bias << 23);
    const vu normal = (u + $((1 << 22 - float.mantissa) - 1) + (u >> $(23 - float.mantissa) & 1u))
                      >> $(23 - float.mantissa);
    const vf small = round_even(smaller(at, repeat(1.0f))
                                * $(f32(2.0 ^ (float.bias + float.mantissa - 1))));
    vi rank = (vi)select(at < $(f32(2.0 ^ (1 - float.bias))),
                         (vf)__builtin_convertvector(small, vi), (vf)normal);
    //% end
    //% if codec.book.signed then
    rank |= (vi)((vu)y >> 31 << $(codec.bits - 1));
    //% end
    return rank;
}
//% end
//% else
// Fits a group.  flag: the lowest bit of its zero; < 0: any.
INLINE $(s "grid") $(s "fit_grid")($(s "pair")* pair, int flag, $(codec.stat_parameters))
{
    enum { bits = $(codec.level_bits), code_max = $(codec.code_max), half_codes = 1 << (bits - 1) };
    enum { group_size = $(codec.group_size) };
    $(s "grid") grid = { 0.0f, 0.0f };
    uint32_t scale_code;
    float scale;
    (void)flag;
    //% if codec.has_zero then
    uint32_t zero_code;
    lo += 0.0f;                      // -0 becomes 0: one spelling of a stored zero
    hi += 0.0f;
    //% if codec.shrink then
    const float shrink = $(f32(codec.shrink));
    $(codec.parts.fit.before)
    //% end
    $(meta[codec.store])
    pair->zero_code = zero_code;
    //% else
    pair->zero_code = 0;
    //% if codec.factor then
    const float factor = $(f32(codec.factor));
    //% end
    const float wanted = $(codec.parts.fit.wanted);
    $(meta[codec.store])
    //% if not levels.is_centered then
    grid.offset = $(offset);
    //% end
    //% end
    pair->scale_code = scale_code;
    pair->scale = scale;
    return grid;
}
//% end

// Fits a group and stores its scale$(codec.has_zero and " and zero" or "").
//% local unused = codec.flagged or codec.refit
static $(unused and "__attribute__((unused)) " or "")$(s "grid") $(s "store_grid")(
    unsigned char* page, int group, $(codec.stat_parameters))
{
    $(s "pair") pair;
    const $(s "grid") grid = $(s "fit_grid")(&pair, -1, $(codec.stat_names));
    $(s "put_pair")(page, group, pair.scale_code, pair.zero_code);
    return grid;
}

//% if codec.refit then
// Fits a group x, values `stride` apart, and stores the scale that its codes then ask for.
static NOINLINE $(s "grid") $(s "refit_grid")(unsigned char* page, int group, const float* x,
                                      int stride, $(codec.stat_parameters))
{
    $(s "pair") pair;
    const $(s "grid") grid = $(s "fit_grid")(&pair, -1, $(codec.stat_names));
    $(s "refit")(&pair, grid, x, stride, $(codec.stat_names));
    $(s "put_pair")(page, group, pair.scale_code, pair.zero_code);
    return grid;
}

//% end
//% if codec.plane then
// Codes q [dim] of a row: of each two channels the nearest point, in vectors of pairs.
static void $(s "round_row")(const float* x, const float* offset, const float* inverse, uint16_t* q)
{
    enum { num_pairs = $(s "dim") / 2, room = (num_pairs + lanes - 1) / lanes * lanes };
    enum { num_points = $(#codec.book.bounds) };
    float first[room] = { 0.0f }, second[room] = { 0.0f };
    (void)offset;
    for (int i = 0; i < num_pairs; ++i) {
        first[i] = x[2 * i] * inverse[2 * i];
        second[i] = x[2 * i + 1] * inverse[2 * i + 1];
    }
    for (int i = 0; i < num_pairs; i += lanes) {
        const vf a = load(first + i), b = load(second + i);
        vf best = repeat(-__builtin_inff());
        vi number = { 0 };
        for (int p = 0; p < num_points; ++p) {
            const float *at = $(s "values") + p;
            const vf score = (a * at[0] + b * at[num_points]) - $(s "halves")[p];
            const vi better = score > best;
            best = select(better, score, best);
            number = (number & ~better) | (better & p);
        }
        for (int j = 0; j < lanes && i + j < num_pairs; ++j) {
            q[2 * (i + j)] = (uint16_t)(number[j] & $((1 << codec.bits) - 1));
            q[2 * (i + j) + 1] = (uint16_t)(number[j] >> $(codec.bits));
        }
    }
}
//% elseif codec.book then
// Codes q [dim] of a row.
static void $(s "round_row")(const float* x, const float* offset, const float* inverse, uint16_t* q)
{
    (void)offset;
    for (int i = 0; i < $(s "dim"); i += lanes)
        *(vh_at*)(q + i) = __builtin_convertvector(
            $(s "codes_of")(load(x + i) * load(inverse + i)), vh);
}
//% elseif not codec.feedback and not codec.path then
// Codes q [dim] of a row: round((x - offset) * inverse) within the range of codes.  What is not a
// number, 0 times an infinite inverse, gets the lowest code.
static void $(s "round_row")(const float* x, const float* offset, const float* inverse, uint16_t* q)
{
    const float zero_point = $(codec.zero_point).0f;
    const vf code_max = repeat($(codec.code_max).0f), lo = repeat(-zero_point);
    const vf hi = code_max - zero_point;
    for (int i = 0; i < $(s "dim"); i += lanes) {
        vf y = (load(x + i) - load(offset + i)) * load(inverse + i);
        y = select(y > lo, y, lo);
        y = select(y < hi, y, hi);
        vf code = $(codec.parts.round.code);
        code = select(code < code_max, code, code_max);
        *(vh_at*)(q + i) = __builtin_convertvector(__builtin_convertvector(code, vi), vh);
    }
}
//% end
//% end

// CODES

// Codes of one row, q [dim], take their place in the page, whatever bits were there.
static void $(s "put_row")(unsigned char* page, int row, const uint16_t* q)
{
    const int i = row % 16;
    for (int at = 0; at < $(s "dim") / 16; ++at, q += 16) {
        //% if codec.raw ~= "none" and codec.is_key then
        u16_at* to = (u16_at*)$(s "cell")(page, row / 16, at) + i;
        for (int word = 0; word < 16; ++word) to[word * 16] = q[word];
        //% elseif codec.raw ~= "none" then
        u16_at* to = (u16_at*)$(s "cell")(page, at, row / 16) + i * 16;
        for (int lane = 0; lane < 16; ++lane) to[lane] = q[lane];
        //% elseif codec.is_key then
        u32_at* to = (u32_at*)$(s "cell")(page, row / 16, at);
        //% for _, w in ipairs(codec.words) do
        //% if w.narrow then
        to[$(w.at // 4) + i % 8] = (to[$(w.at // 4) + i % 8] & ~(0x00ff00ffu << i / 8 * 8))
                                   | ($(w.pack)) << i / 8 * 8;
        //% else
        to[$(w.at // 4) + i] = $(w.pack);
        //% end
        //% end
        //% else
        u32_at* to = (u32_at*)$(s "cell")(page, at, row / 16);
        //% for _, plane in ipairs(codec.planes) do
        {
            enum { each = $(16 // plane.width), mask = $((1 << plane.width) - 1) };
            u32_at* words = to + $(plane.at // 4) + i / 2 / each * 16;
            const int left = i % 2 * 16 + i / 2 % each * $(plane.width);
            //% if plane.width == 1 then
            for (int lane = 0; lane < 8; ++lane)
                words[lane] = (words[lane] & ~(0x0101u << left))
                              | (((uint32_t)q[lane] >> $(plane.low) & mask)
                                 | ((uint32_t)q[lane + 8] >> $(plane.low) & mask) << 8) << left;
            //% else
            for (int lane = 0; lane < 16; ++lane)
                words[lane] = (words[lane] & ~((uint32_t)mask << left))
                              | ((uint32_t)q[lane] >> $(plane.low) & mask) << left;
            //% end
        }
        //% end
        //% end
    }
}

//% if codec.path then
// The cell before a cell on the path, of those that a group has.
INLINE const unsigned char* $(s "before")(const unsigned char* page, int lane16, int word16)
{
    enum { cells = $(codec.group_size // 16) };
    //% local at = codec.path.along_lanes and "lane16" or "word16"
    const int before = $(at) / cells * cells + ($(at) + cells - 1) % cells;
    return $(s "cell")(page, $(codec.path.along_lanes and "before, word16" or "lane16, before"));
}

//% end
INLINE uint32_t $(s(codec.apart and "get_stored" or "get_code"))(const unsigned char* page, int row,
                                                          int channel)
{
    //% if codec.is_key then
    const int lane = row, word = channel;
    //% else
    const int lane = channel, word = row;
    //% end
    const unsigned char* cell = $(s "cell")(page, lane / 16, word / 16);
    const int i = word % 16;
    //% if codec.raw ~= "none" then
    return read_u16(cell + i * 32 + lane % 16 * 2);
    //% else
    uint32_t code = 0;
    //% for _, plane in ipairs(codec.planes) do
    {
        enum { each = $(16 // plane.width), mask = $((1 << plane.width) - 1) };
        int bit = i % 2 * 16 + i / 2 % each * $(plane.width);
        //% if plane.width == 1 then
        bit += lane % 16 / 8 * 8;
        const unsigned char* at = cell + $(plane.at) + lane % 8 * 4;
        //% else
        const unsigned char* at = cell + $(plane.at) + i / 2 / each * 64 + lane % 16 * 4;
        //% end
        code |= (*(const u32_at*)at >> bit & mask) << $(plane.low);
    }
    //% end
    return code;
    //% end
}

//% if codec.path then
// The level of a value.
INLINE uint32_t $(s "get_code")(const unsigned char* page, int row, int channel)
{
    enum { n = $(codec.group_size), memory = $(codec.path.memory) };
    //% local along = codec.axis == "per_channel"
    const int place = $(along and "row" or "channel"), first = place / n * n;
    //% local other = along and "from, channel" or "row, from"
    uint32_t history = 0;
    for (int delay = 0; delay <= memory; ++delay) {
        const int from = first + (place - first + n - delay) % n;
        history |= ($(s "get_stored")(page, $(other)) & 1u) << delay;
    }
    //% local terms = { s0 = {}, s1 = {} }
    //% for n, i in ipairs(codec.path.s0) do terms.s0[n] = "history >> " .. i end
    //% for n, i in ipairs(codec.path.s1) do terms.s1[n] = "history >> " .. i end
    const uint32_t s1 = ($(table_concat(terms.s1, " ^ "))) & 1u;
    const uint32_t s0 = ($(table_concat(terms.s0, " ^ "))) & 1u;
    return ($(s "get_stored")(page, row, channel) >> 1 << 2) | s1 << 1 | s0;
}

//% end
//% if codec.plane then
// The level of a value.
INLINE uint32_t $(s "get_code")(const unsigned char* page, int row, int channel)
{
    const uint32_t low = $(s "get_stored")(page, row, channel & ~1);
    const uint32_t high = $(s "get_stored")(page, row, channel | 1);
    return (low | high << $(codec.bits)) + ((uint32_t)channel % 2u << $(2 * codec.bits));
}

//% end
// One value in the codec's basis.
INLINE float $(s "read_value")(const unsigned char* page, int row, int channel)
{
    const uint32_t code = $(s "get_code")(page, row, channel);
    //% if codec.raw == "none" then
    const int group = $(s "group")($(codec.word_lane("row", "channel")));
    const float scale = $(s "read_scale")(page, group);
    //% local level = codec.book and s "level_of(code)" or "(float)(int32_t)code"
    return scale * $(level) + $(s "read_offset")(page, group, scale);
    //% else
    return $("f32_of_" .. codec.raw)(code);
    //% end
}

//% if codec.flagged then
// CHOICES: bit p where piece p is rotated, or bit 31 where the head is.

// Whether the unit of a row has the head rotated: 0 or 1; and the sign that is a piece's flag.
INLINE uint32_t $(s "read_head")(const unsigned char* page, int row)
{
    return page[$(s "zeros_at") + $(s "group")(0, row) * $(codec.zero_bytes)] & 1u;
}

INLINE uint32_t $(s "read_flag")(const unsigned char* page, int channel, int row)
{
    const int of = $(s "group")(channel / $(codec.choice_piece) * $(codec.choice_piece), row);
    return page[$(s "scales_at") + of * $(codec.scale_bytes) + $(codec.scale_bytes - 1)] >> 7;
}

// Of the unit of a row.
INLINE uint32_t $(s "read_choice")(const unsigned char* page, int row)
{
    const uint32_t head = $(s "read_head")(page, row);
    uint32_t choice = 0;
    for (int p = 0; p < $(codec.head_dim // codec.choice_piece); ++p)
        choice |= $(s "read_flag")(page, p * $(codec.choice_piece), row) << p;
    return (choice & (head - 1u)) | head << 31;           // without a branch: no one foresees it
}

// Of a channel: 0 as it is, 1 its piece rotated, 2 the head.
INLINE int $(s "basis_of")(uint32_t choice, int channel)
{
    return (int)((choice >> 31 << 1) | (choice >> (channel / $(codec.choice_piece)) & 1u));
}
//% if not codec.along_lanes then

// The bases of the rows lane ... at a channel.
INLINE vi $(s "bases_in")(const unsigned char* page, int channel, int lane)
{
    const int first = $(s "group")(0, lane);
    const int of = $(s "group")(channel / $(codec.choice_piece) * $(codec.choice_piece), lane);
    //% local load = codec.scale_bytes == 1 and "load_u8" or "load_u16"
    const vu zero = $(codec.zero_bytes == 1 and "load_u8" or "load_u16")(
        page + $(s "zeros_at") + first * $(codec.zero_bytes)) & 1u;
    const vu sign = $(load)(page + $(s "scales_at") + of * $(codec.scale_bytes))
                    >> $(codec.parts.meta.free_sign);
    return (vi)(zero * 2u + sign);                    // a row in the head's basis has no signs
}
//% end

//% end
// Whether the weights have to be folded again before the cells of lane16.
INLINE int $(s "fold_is_due")(int lane16)
{
    //% if codec.fold == "lanes" then
    return lane16 * 16 % $(s "group_size") == 0;
    //% else
    (void)lane16;
    return 0;
    //% end
}
