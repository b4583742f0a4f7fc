// codec.cuh -- $(codec.title) at $(codec.bits) bits:  $(codec.diagram)
//
// The order of codes and metadata in a page is the host's, gen/layout.lua.  A cell has 16 lanes and
// 16 words: $(codec.word_lane("tokens are words", "channels are lanes")).
// A thread works on one lane of a cell: its 16 words.

//% local L, meta = codec.layout, codec.parts.meta
// Where zeros are, and what metadata is made of.
//% local zeros = codec.has_zero and (meta.packed and "scales_at" or "zeros_at")
//% local zero_step = meta and meta.packed and codec.scale_bytes or codec.zero_bytes
//% local scale_bits = codec.scale_bytes == 1 and "u8" or "u16"
//% local zero_bits = codec.zero_bytes == 2 and "u16" or "u8"
enum { $(s "dim") = $(codec.head_dim), $(s "lane_extent") = $(codec.lane_extent) };
enum { $(s "word_extent") = $(codec.word_extent), $(s "cell_bytes") = $(L.cell_bytes) };
enum { $(s "scales_at") = $(L.scales_at), $(s "zeros_at") = $(L.zeros_at) };
enum { $(s "page_bytes") = $(L.page_bytes), $(s "group_size") = $(codec.group_size) };

INLINE int64_t $(s "cell_at")(int lane16, int word16)
{
    //% if codec.is_key then
    return (lane16 * ($(s "dim") / 16) + word16) * (int64_t)$(s "cell_bytes");
    //% else
    return (word16 * ($(s "dim") / 16) + lane16) * (int64_t)$(s "cell_bytes");
    //% end
}

// Codes of the words of a lane, lane % 16 of a cell.
INLINE void $(s "get_codes")(const unsigned char* cell, int lane, uint32_t* q)
{
    //% for _, w in ipairs(codec.words) do
    const uint32_t $(w.name) = $(w.load);
    //% end
    //% for i = 0, 15 do
    //% if codec.raw ~= "none" then
    q[$(i)] = read_u16(cell + $(32 * i) + lane * 2);
    //% else
    q[$(i)] = $(codec.stored[i + 1]);
    //% end
    //% end
}

// The inverse.  All lanes of a warp take part, since lanes l and l + 8 may share words; `write`
// says whether this one has a lane.
INLINE void $(s "put_codes")(unsigned char* cell, int lane, const uint32_t* q, bool write)
{
    //% for _, w in ipairs(codec.words) do
    {
        const uint32_t word = $(w.pack);
        //% if w.narrow then
        const uint32_t other = __shfl_xor_sync(0xffffffffu, word, 8);
        if (write && lane < 8) *(uint32_t*)(cell + $(w.at) + lane * 4) = word | other << 8;
        //% else
        if (write) *(uint32_t*)(cell + $(w.at) + lane * 4) = word;
        //% end
    }
    //% end
    //% if codec.raw ~= "none" then
    if (!write) return;
    for (int i = 0; i < 16; ++i) write_u16(cell + 32 * i + lane * 2, q[i]);
    //% end
}

//% if codec.raw == "none" then
//% local levels = codec.parts.levels
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

INLINE float $(s "scale_of")(uint32_t bits)
{
    //% if meta.constant then
    enum { code_max = $(codec.code_max) };
    (void)bits;
    return $(codec.calibrated_book and "1.0f" or meta.scale);
    //% elseif codec.flagged then
    return absolute($("meta_" .. meta.scale_type)(bits));
    //% else
    return $("meta_" .. meta.scale_type)(bits);
    //% end
}

INLINE float $(s "offset_of")(float scale, uint32_t zero_bits)
{
    enum { bits = $(codec.level_bits), code_max = $(codec.code_max), half_codes = 1 << (bits - 1) };
    //% if codec.has_zero then
    const float zero = $("meta_" .. meta.zero_type)(zero_bits);
    //% end
    return $(offset);
}

INLINE float $(s "read_scale")(const unsigned char* page, int group)
{
    //% if codec.scale_bytes == 0 then
    (void)page;
    (void)group;
    return $(s "scale_of")(0);
    //% else
    const unsigned char* at = page + $(s "scales_at") + group * $(codec.scale_bytes);
    return $(s "scale_of")($("read_" .. scale_bits)(at));
    //% end
}

INLINE float $(s "read_offset")(const unsigned char* page, int group, float scale)
{
    uint32_t zero = 0;
    //% if zeros then
    zero = $("read_" .. zero_bits)(page + $(s(zeros)) + group * $(zero_step));
    //% end
    return $(s "offset_of")(scale, zero);
}

//% if kernel.writes then
// The numbers that turn a value into its code: round((x - offset) * inverse).
typedef struct $(s "grid") {
    float offset, inverse;
} $(s "grid");

INLINE void $(s "put_pair")(unsigned char* page, int group, uint32_t scale_code, uint32_t zero_code)
{
    (void)zero_code;
    //% if meta.packed then
    scale_code = scale_code << 4 | zero_code;
    //% end
    //% for _, one in ipairs { { "scale", codec.scale_bytes }, { "zero", codec.zero_bytes } } do
    //% if one[2] == 1 then
    page[$(s(one[1] .. "s_at")) + group] = (unsigned char)$(one[1] .. "_code");
    //% elseif one[2] == 2 then
    write_u16(page + $(s(one[1] .. "s_at")) + group * 2, $(one[1] .. "_code"));
    //% end
    //% end
}

// What is stored for a group, and the scale that it decodes to.
typedef struct $(s "pair") {
    uint32_t scale_code, zero_code;
    float    scale;
} $(s "pair");

//% if not codec.book then
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
//% end
//% if codec.book then
#include "books.h"

INLINE float $(s "level")(uint32_t code) { return $(s "level_of")(code); }

//% end
//% if kernel.writes then
//% if codec.calibrated_book then
// The code of a value: as many bounds between levels as it is not below.
INLINE uint32_t $(s "code_of")(float x, const float* record)
{
    const float* book = record + $(codec.table_at(codec.calibrated_book));
    uint32_t code = 0;
    for (int k = 0; k < $(codec.code_max); ++k) code += x >= 0.5f * (book[k] + book[k + 1]);
    return code;
}
//% elseif codec.plane then
// The number of the point that is nearest to two values in units of the scale.
INLINE uint32_t $(s "number_of")(float a, float b)
{
    enum { num_points = $(#codec.book.bounds) };
    float best = -__int_as_float(0x7f800000);
    uint32_t number = 0;
#pragma unroll 4
    for (int p = 0; p < num_points; ++p) {
        const float score = (a * $(s "values")[p] + b * $(s "values")[num_points + p])
                            - $(s "halves")[p];
        if (score > best) {
            best = score;
            number = p;
        }
    }
    return number;
}
//% elseif not codec.path then
// The code of a value: round((x - offset) * inverse) within the range of codes.  What is not a
// number, 0 times an infinite inverse, gets the lowest code.
INLINE uint32_t $(s "code_of")(float x, $(s "grid") grid)
{
    //% if codec.book then
    return $(s "code_of_level")(x * grid.inverse);
    //% else
    const float zero_point = $(codec.zero_point).0f, code_max = $(codec.code_max).0f;
    float y = (x - grid.offset) * grid.inverse;
    y = most(y, -zero_point);
    y = least(y, code_max - zero_point);
    return (uint32_t)(int32_t)least($(codec.parts.round.code), code_max);
    //% end
}
//% end
//% end
//% end

//% if codec.flagged then
// CHOICES

#include "choices.cuh"

// Of the unit of a row.
INLINE uint32_t $(s "read_choice")(const unsigned char* page, int row)
{
    uint32_t choice = 0;
    const unsigned char* zero = page + $(s "zeros_at");
    const unsigned char* sign = page + $(s "scales_at") + $(codec.scale_bytes - 1);
    if (zero[$(s "group")(0, row) * $(codec.zero_bytes)] & 1u) return 0x80000000u;
    for (int p = 0; p < $(codec.head_dim // codec.choice_piece); ++p) {
        const int group = $(s "group")(p * $(codec.choice_piece), row);
        choice |= (uint32_t)(sign[group * $(codec.scale_bytes)] >> 7) << p;
    }
    return choice;
}

//% end
//% if codec.path then
#include "levels.cuh"

//% end
//% if codec.slots > 0 and not kernel.writes then
#include "sparse.cuh"

//% end
//% if codec.promoted > 0 and not kernel.writes then
#include "promote.cuh"

//% end
//% if codec.calibrated_book and (not kernel.writes or codec.sketches > 0) then
// Codes of x [num_rows, row_stride] become levels.
INLINE void $(s "put_levels")(const float* record, int num_rows, int row_stride, float* x)
{
    const float* book = record + $(codec.table_at(codec.calibrated_book));
    __syncthreads();
    for (int i = threadIdx.x; i < num_rows * $(s "dim"); i += cta_threads) {
        float* at = x + i / $(s "dim") * row_stride + i % $(s "dim");
        *at = book[(int)*at];
    }
    __syncthreads();
}

//% end
//% if kernel.name == "attend_splits" and not codec.in_keys then
//% local n = codec.read_words
// What is stored of the $(n) words of a lane of the page from `word` on.
INLINE void $(s "get_words")(const unsigned char* page, int lane, int word, uint32_t* q)
{
    //% if codec.path then
    $(s "get_levels")(page, lane, word / 16, q);
    //% elseif n == 16 then
    $(s "get_codes")(page + $(s "cell_at")(lane / 16, word / 16), lane % 16, q);
    //% else
    // As get_codes, of one half of the words.
    const unsigned char* cell = page + $(s "cell_at")(lane / 16, word / 16);
    const int half = word / 8 % 2, at = lane % 16;
    //% if codec.raw ~= "none" then
    for (int i = 0; i < 8; ++i) q[i] = read_u16(cell + 32 * (8 * half + i) + at * 2);
    //% else
    for (int i = 0; i < 8; ++i) q[i] = 0;
    //% for _, plane in ipairs(codec.planes) do
    //% local w, each = plane.width, 16 // plane.width
    {
        //% for k = 0, w == 8 and 1 or 0 do
        //% local of = ({ [8] = ("128 * half + %d"):format(64 * k), [4] = "64 * half" })[w] or "0"
        //% if w == 1 then
        const uint32_t $("word_" .. k) = load_narrow(cell + $(plane.at), at) >> 4 * half;
        //% else
        const uint32_t $("word_" .. k) =
            load_u32(cell + $(plane.at) + $(of) + at * 4)$(w == 2 and " >> 8 * half" or "");
        //% end
        //% end
        //% for i = 0, 7 do
        //% local k, bit = w == 8 and i // 4 or 0, i % 2 * 16 + i // 2 % each * w
        q[$(i)] |= ($("word_" .. k) >> $(bit) & $(("%du"):format((1 << w) - 1))) << $(plane.low);
        //% end
    }
    //% end
    //% end
    //% end
}

// Values, in the codec's basis, of these words.
INLINE void $(s "read_words")(const unsigned char* page, int lane, int word, float* x)
{
    uint32_t q[$(n)];
    $(s "get_words")(page, lane, word, q);
    //% if codec.plane then
    //% local num = 1 << 2 * codec.bits
    //% if codec.is_key then
    for (int i = 0; i < $(n); i += 2) {
        q[i] |= q[i + 1] << $(codec.bits);
        q[i + 1] = q[i] + $(num);
    }
    //% else
    uint32_t other[$(n)];
    $(s "get_words")(page, lane ^ 1, word, other);
    for (int i = 0; i < $(n); ++i)
        q[i] = lane % 2 ? (other[i] | q[i] << $(codec.bits)) + $(num)
                        : q[i] | other[i] << $(codec.bits);
    //% end
    //% end
    //% if codec.raw ~= "none" then
    for (int i = 0; i < $(n); ++i) x[i] = $("f32_of_" .. codec.raw)(q[i]);
    //% elseif codec.along_lanes then
    // Words side by side have scales side by side.
    const int group = $(s "group")(word, lane);
    uint32_t scales[$(n)], zeros[$(n)] = { 0 };
    //% if codec.scale_bytes > 0 then
    $(("read_%d_%s"):format(n, scale_bits))(page + $(s "scales_at") + group * $(codec.scale_bytes),
                                        scales);
    //% else
    (void)group;
    for (int i = 0; i < $(n); ++i) scales[i] = 0;
    //% end
    //% if zeros then
    $(("read_%d_%s"):format(n, zero_bits))(page + $(s(zeros)) + group * $(zero_step), zeros);
    //% end
    for (int i = 0; i < $(n); ++i) {
        const float scale = $(s "scale_of")(scales[i]);
        x[i] = scale * $(codec.level "q[i]") + $(s "offset_of")(scale, zeros[i]);
    }
    //% elseif codec.fold == "values" then
    for (int i = 0; i < $(n); ++i) {
        const int group = $(s "group")(word + i, lane);
        const float scale = $(s "read_scale")(page, group);
        x[i] = scale * $(codec.level "q[i]") + $(s "read_offset")(page, group, scale);
    }
    //% else
    const int group = $(s "group")(word, lane);
    const float scale = $(s "read_scale")(page, group);
    const float offset = $(s "read_offset")(page, group, scale);
    for (int i = 0; i < $(n); ++i) x[i] = scale * $(codec.level "q[i]") + offset;
    //% end
}

//% end
//% if codec.plane then
// What is stored of one value.
//% else
// What scales are multiplied with, of one value.
//% end
INLINE uint32_t $(s(codec.plane and "get_stored" or "get_code"))(const unsigned char* page,
                                                         int lane, int word)
{
    const unsigned char* cell = page + $(s "cell_at")(lane / 16, word / 16);
    const int of = lane % 16, i = word % 16;
    //% if codec.raw ~= "none" then
    return read_u16(cell + 32 * i + of * 2);
    //% else
    uint32_t code = 0;
    //% for _, plane in ipairs(codec.planes) do
    {
        enum { each = $(16 // plane.width), mask = $((1 << plane.width) - 1) };
        const int bit = i % 2 * 16 + i / 2 % each * $(plane.width);
        //% if plane.width == 1 then
        const uint32_t bits = load_narrow(cell + $(plane.at), of);
        //% else
        const uint32_t bits = load_u32(cell + $(plane.at) + i / 2 / each * 64 + of * 4);
        //% end
        code |= (bits >> bit & mask) << $(plane.low);
    }
    //% end
    return $(codec.path and s "level_of" .. "(page, lane, word, code)" or "code");
    //% end
}

//% if codec.plane then
// The number of its level.
INLINE uint32_t $(s "get_code")(const unsigned char* page, int lane, int word)
{
    //% local of = codec.is_key and "lane, word %s 1" or "lane %s 1, word"
    const uint32_t low = $(s "get_stored")(page, $(of:format "& ~"));
    const uint32_t high = $(s "get_stored")(page, $(of:format "|"));
    const uint32_t second = $(codec.is_key and "word" or "lane") % 2;
    return (low | high << $(codec.bits)) + (second << $(2 * codec.bits));
}

//% end

// One value.
INLINE float $(s "read_value")(const unsigned char* page, int row, int channel, uint32_t* code)
{
    //% if codec.is_key then
    const int lane = row, word = channel;
    //% else
    const int lane = channel, word = row;
    //% end
    *code = $(s "get_code")(page, lane, word);
    //% if codec.raw ~= "none" then
    return $("f32_of_" .. codec.raw)(*code);
    //% else
    const int group = $(s "group")(word, lane);
    const float scale = $(s "read_scale")(page, group);
    return scale * $(codec.level "*code") + $(s "read_offset")(page, group, scale);
    //% end
}

//% if codec.in_keys then
// Values of one channel of four tokens, which are lanes.
INLINE void $(s "read_column")(const unsigned char* page, int channel, int first, float* x)
{
#pragma unroll
    for (int at = 0; at < 4; ++at) {
        uint32_t code;
        x[at] = $(s "read_value")(page, first + at, channel, &code);
    }
}

//% end
