// codec.h -- $(codec.title) at $(codec.bits) bits:  $(codec.diagram)
//
// The order of codes and metadata in a page is told in gen/layout.lua.  A cell has 16 lanes and 16
// words: $(codec.word_lane("tokens are words", "channels are lanes")).
// lane16 and word16 count cells in each direction.

//% local L = codec.layout
enum { $(s "dim") = $(codec.head_dim), $(s "lane_extent") = $(codec.lane_extent) };
enum { $(s "word_extent") = $(codec.word_extent), $(s "cell_bytes") = $(L.cell_bytes) };
enum { $(s "scales_at") = $(L.scales_at), $(s "zeros_at") = $(L.zeros_at) };
enum { $(s "page_bytes") = $(L.page_bytes), $(s "group_size") = $(codec.group_size) };
enum { $(s "slots") = $(codec.is_key and codec.head_dim // 16 or 1) };

// Weights of the words as a cell multiplies them.  Keys have a slot of 16 words for each group of
// 16 channels, values one that is filled again for each tile.
typedef struct $(s "folded") {
    float weights[num_heads][16 * $(s "slots")];
    float rest[num_heads][$(s "slots")];
} $(s "folded");

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
    page += $(s "scales_at") + group * (int64_t)$(codec.scale_bytes);
    return $(one[2] .. meta.scale_type)(page);
}

INLINE $(one[1]) $(s(one[2] .. "offset"))(const unsigned char* page, int group, $(one[1]) scale)
{
    enum { bits = $(codec.bits), code_max = $(codec.code_max), half_codes = 1 << (bits - 1) };
    //% if codec.zero_bytes > 0 then
    page += $(s "zeros_at") + group * (int64_t)$(codec.zero_bytes);
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
// The numbers that turn a value into its code: round((x - offset) * inverse).
typedef struct $(s "grid") {
    float offset, inverse;
} $(s "grid");

// Fits a group and stores its scale$(codec.zero_bytes > 0 and " and zero" or "").
//% if codec.zero_bytes > 0 then
static $(s "grid") $(s "store_grid")(unsigned char* page, int group, float lo, float hi)
//% else
static $(s "grid") $(s "store_grid")(unsigned char* page, int group, float extreme)
//% end
{
    enum { bits = $(codec.bits), code_max = $(codec.code_max), half_codes = 1 << (bits - 1) };
    $(s "grid") grid = { 0.0f, 0.0f };
    uint32_t scale_code;
    float scale;
    //% if codec.zero_bytes > 0 then
    uint32_t zero_code;
    lo += 0.0f;                      // -0 becomes 0: one spelling of a stored zero
    hi += 0.0f;
    $(meta.store_affine)
    //% else
    const float wanted = $(codec.parts.fit.wanted);
    $(meta.store_symmetric)
    //% end
    //% for _, one in ipairs { { "scale", codec.scale_bytes }, { "zero", codec.zero_bytes } } do
    //% if one[2] == 1 then
    page[$(s(one[1] .. "s_at")) + group] = (unsigned char)$(one[1] .. "_code");
    //% elseif one[2] == 2 then
    write_u16(page + $(s(one[1] .. "s_at")) + group * (int64_t)2, $(one[1] .. "_code"));
    //% end
    //% end
    return grid;
}

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

// CODES

// Codes of one row, q [dim], join the page; its bits are zero before.
static void $(s "put_row")(unsigned char* page, int row, const uint16_t* q)
{
    for (int at = 0; at < $(s "dim") / 16; ++at, q += 16) {
        //% if codec.is_key then
        u16_at* words = (u16_at*)$(s "cell")(page, row / 16, at) + row % 16;
        //% for _, w in ipairs(codec.words) do
        words[$(w.at // 2)] = (uint16_t)(words[$(w.at // 2)] | ($(w.pack)));
        //% end
        //% else
        u16_at* words = (u16_at*)$(s "cell")(page, at, row / 16);
        //% for _, plane in ipairs(codec.planes) do
        {
            enum { each = $(16 // plane.width), mask = $((1 << plane.width) - 1) };
            u16_at* to = words + $(plane.at // 2) + row % 16 / each * 16;
            const int left = row % each * $(plane.width);
            for (int i = 0; i < 16; ++i)
                to[i] = (uint16_t)(to[i] | (q[i] >> $(plane.low) & mask) << left);
        }
        //% end
        //% end
    }
}

INLINE uint32_t $(s "get_code")(const unsigned char* page, int row, int channel)
{
    //% if codec.is_key then
    const int lane = row, word = channel;
    //% else
    const int lane = channel, word = row;
    //% end
    const unsigned char* cell = $(s "cell")(page, lane / 16, word / 16) + lane % 16 * 2;
    const int i = word % 16;
    uint32_t code = 0;
    //% for _, plane in ipairs(codec.planes) do
    //% local each = 16 // plane.width
    code |= (read_u16(cell + $(plane.at) + i / $(each) * 32) >> i % $(each) * $(plane.width)
             & $(((1 << plane.width) - 1) .. "u")) << $(plane.low);
    //% end
    return code;
}

// One value in the codec's basis.
INLINE float $(s "read_value")(const unsigned char* page, int row, int channel)
{
    const uint32_t code = $(s "get_code")(page, row, channel);
    //% if codec.raw == "none" then
    const int group = $(s "group")($(codec.word_lane("row", "channel")));
    const float scale = $(s "read_scale")(page, group);
    return scale * (float)(int32_t)code + $(s "read_offset")(page, group, scale);
    //% else
    return $("f32_of_" .. codec.raw)(code);
    //% end
}

// SUMS OF CELLS

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

// Prepares a slot for the cells of word16.  weights [num_heads, stride] of its 16 words:
//% if codec.fold == "lanes" then
//     sum w (scale code + offset) = sum (w scale) code + rest,   rest = sum w offset.
//% elseif codec.fold == "words" then
//     sum w (scale code + offset) = scale (sum w code) + offset rest,   rest = sum w.
//% else
// they are used as they are.
//% end
static void $(s "fold")(const unsigned char* page, int lane16, int word16, const float* weights,
                   int stride, $(s "folded")* to, int slot)
{
    //% if codec.fold == "lanes" then
    vf scale[16 / lanes], offset[16 / lanes];
    for (int i = 0; i < 16 / lanes; ++i) {
        const int group = $(s "group")(word16 * 16 + i * lanes, lane16 * 16);
        scale[i] = $(s "load_scale")(page, group);
        offset[i] = $(s "load_offset")(page, group, scale[i]);
    }
    //% else
    (void)page;
    (void)lane16;
    (void)word16;
    //% end
    for (int head = 0; head < num_heads; ++head) {
        vf rest = repeat(0.0f);
        for (int i = 0; i < 16 / lanes; ++i) {
            const vf w = load(weights + head * stride + i * lanes);
            //% if codec.fold == "lanes" then
            store(to->weights[head] + slot * 16 + i * lanes, w * scale[i]);
            rest = mul_add(w, offset[i], rest);
            //% else
            store(to->weights[head] + slot * 16 + i * lanes, w);
            rest += w;
            //% end
        }
        //% if codec.fold == "lanes" or codec.fold == "words" then
        to->rest[head][slot] = sum_lanes(rest);
        //% else
        (void)rest;
        //% end
    }
}

//% if codec.fold == "values" and codec.along_lanes then
// Scales and offsets of a cell's words in the groups that its lanes meet, and where each begins.
typedef struct $(s "blend") {
    float scale[$(codec.groups_met)][16], offset[$(codec.groups_met)][16];
    vi    begun[$(codec.groups_met)];
} $(s "blend");

INLINE void $(s "load_blend")(const unsigned char* page, int lane, int word16, $(s "blend")* to)
{
    enum { last = $(s "lane_extent") / $(s "group_size") - 1 };
    const vi at = { $(codec.lane_numbers) };
    for (int n = 0; n < $(codec.groups_met); ++n) {
        const int wanted = lane / $(s "group_size") + n, met = wanted < last ? wanted : last;
        to->begun[n] = at + lane >= met * $(s "group_size");
        for (int i = 0; i < 16; i += lanes) {
            const int group = met * $(s "word_extent") + word16 * 16 + i;
            const vf scale = $(s "load_scale")(page, group);
            store(to->scale[n] + i, scale);
            store(to->offset[n] + i, $(s "load_offset")(page, group, scale));
        }
    }
}

INLINE vf $(s "pick")(const float (*of)[16], const $(s "blend")* b, int i)
{
    vf x = repeat(of[0][i]);
    for (int n = 1; n < $(codec.groups_met); ++n) x = select(b->begun[n], repeat(of[n][i]), x);
    return x;
}

//% end
// sums [num_heads, stride] of the cell's 16 lanes grow by the sum over its words of weight * value.
static void $(s "add_cell")(const unsigned char* page, int lane16, int word16,
                       const $(s "folded")* folded, int slot, float* sums, int stride)
{
    const unsigned char* cell = $(s "cell")(page, lane16, word16);
    for (int lane = 0; lane < 16; lane += lanes, cell += 2 * lanes) {
        //% if codec.raw == "none" then
        //% for _, w in ipairs(codec.words) do
        const vu $(w.name) = load_u16(cell + $(w.at));
        //% end
        //% end
        //% if codec.fold == "words" then
        const int group = $(s "group")(word16 * 16, lane16 * 16 + lane);
        const vf scale = $(s "load_scale")(page, group);
        const vf offset = $(s "load_offset")(page, group, scale);
        //% elseif codec.fold == "values" and codec.along_lanes then
        $(s "blend") blend;
        $(s "load_blend")(page, lane16 * 16 + lane, word16, &blend);
        //% end
        //% for _, heads in ipairs(plan.head_tiles) do
        {
            vf x;
            const float* at;
            //% for _, h in ipairs(heads) do
            //% if codec.fold == "lanes" then
            vf $("sum_" .. h) = repeat(folded->rest[$(h)][slot]);
            //% else
            vf $("sum_" .. h) = repeat(0.0f);
            //% end
            //% end
            //% for i = 0, 15 do
            //% if codec.raw ~= "none" then
            x = $("load_" .. codec.raw)(cell + $(32 * i));
            //% else
            x = to_float($(codec.code[i + 1]));
            //% end
            //% if codec.fold == "values" then
            {
                //% if codec.along_lanes then
                const vf scale = $(s "pick")(blend.scale, &blend, $(i));
                const vf offset = $(s "pick")(blend.offset, &blend, $(i));
                //% else
                const int group = $(s "group")(word16 * 16 + $(i), lane16 * 16 + lane);
                const vf scale = $(s "load_scale")(page, group);
                const vf offset = $(s "load_offset")(page, group, scale);
                //% end
                x = mul_add(scale, x, offset);
            }
            //% end
            //% for _, h in ipairs(heads) do
            at = &folded->weights[$(h)][slot * 16 + $(i)];
            $("sum_" .. h) = mul_add_at(at, x, $("sum_" .. h));
            //% end
            //% end
            //% for _, h in ipairs(heads) do
            {
                float* sum = sums + $(h) * stride + lane;
                //% if codec.fold == "words" then
                const vf part = mul_add(scale, $("sum_" .. h), offset * folded->rest[$(h)][slot]);
                store(sum, load(sum) + part);
                //% else
                store(sum, load(sum) + $("sum_" .. h));
                //% end
            }
            //% end
        }
        //% end
    }
}
