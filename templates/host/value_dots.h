// value_dots.h -- dots.h for $(codec.title) whose groups run along lanes: a row's scale joins its
// weight, once for each group of channels.
//
// W is made in two steps, weights and then ratios of scales to the greatest of the strip, so that
// what is rounded in floats serves all groups of a row.
//% local words, raised, step = plan.strip_words, codec.raised, codec.zero_step
//% local wide = plan.part_rows % (2 * isa.lanes) == 0        -- vectors of words are in one page
//% local middle = f32(codec.zero_point > 0 and 1.0 * codec.zero_point or codec.code_max / 2)
//% local parts = plan.strip_rows // plan.part_rows
//% local least = codec.level_bits < 4 and 4 - codec.level_bits or 0
//% local share = f32(codec.level_bits < 4 and step or 0.5)
//% local up = codec.level_bits > 4 and codec.level_bits - 4 or 0

// A strip has rows of pages [num_parts]; `skip` rows of the first page are before it.
typedef struct $(s "strip") {
    const unsigned char* pages[$(parts)];       // beyond the last: any other
    int skip;
} $(s "strip");

// Scales of the strip's rows [first, end) in the group of lane16.  What is stored for rows that are
// not visible may be no number.
INLINE void $(s "load_scales")(const $(s "strip")* strip, int lane16, int first, int end,
                          float* scale)
{
    for (int i = 0; i < strip_rows; i += lanes) {
        const int row = strip->skip + i % part_rows;
        const unsigned char* page = strip->pages[i / part_rows];
        store(scale + i, $(s "load_scale")(page, $(s "group")(row, lane16 * 16)));
    }
    for (int i = strip_rows; i < $(words); ++i) scale[i] = 0.0f;
    if (end - first < strip_rows)
        for (int i = 0; i < strip_rows; ++i)
            if (i < first || i >= end) scale[i] = 0.0f;
}

//% if raised == "steps" then
// Offsets of words in units of scale times $(share), whole numbers in pairs.
INLINE void $(s "load_zeros")(const $(s "strip")* strip, int lane16, vi* zero)
{
    enum { lower = $(codec.code_max << least), num_vectors = $(words) / (2 * lanes) };
    //% if wide then
    for (int i = 0; i < num_vectors; ++i) {
        const int row = strip->skip + i * 2 * lanes % part_rows;
        const unsigned char* page = strip->pages[i * 2 * lanes / part_rows];
        const int group = $(s "group")(row, lane16 * 16);
        zero[i] = load_wide_s8(page + $(s "zeros_at") + group, $(up), lower);
    }
    //% else
    LINE int16_t list[$(words)] = { 0 };
    for (int i = 0; i < strip_rows; ++i) {
        const int row = strip->skip + i % part_rows, group = $(s "group")(row, lane16 * 16);
        const int8_t stored = (int8_t)strip->pages[i / part_rows][$(s "zeros_at") + group];
        list[i] = (int16_t)(stored * (1 << $(up)) - lower);
    }
    for (int i = 0; i < num_vectors; ++i) zero[i] = load_pairs((const int32_t*)list + i * lanes);
    //% end
}
//% elseif raised == "float" then
// Offsets of the visible rows, raised by $(middle) scales.
INLINE void $(s "load_raised")(const $(s "strip")* strip, int lane16, int first, int end,
                          const float* scale, float* raised)
{
    for (int i = 0; i < strip_rows; i += lanes) {
        const int row = strip->skip + i % part_rows, group = $(s "group")(row, lane16 * 16);
        const vf one = load(scale + i);
        store(raised + i, mul_add(one, repeat($(middle)),
                                  $(s "load_offset")(strip->pages[i / part_rows], group, one)));
    }
    for (int i = strip_rows; i < $(words); ++i) raised[i] = 0.0f;
    if (end - first < strip_rows)
        for (int i = 0; i < strip_rows; ++i)
            if (i < first || i >= end) raised[i] = 0.0f;
}
//% end

// Weights [num_heads, words] of the rows of a strip, without scales.
static NOINLINE void $(s "set_plain")(const float* weights, $(s "dots")* to)
{
    for (int head = 0; head < num_heads; ++head)
        to->plain_unit[head] = round_list(weights + head * $(words), $(words), to->plain[head]);
}

// A head's weights [words] times scales, rounded afterwards: nothing is lost.
static NOINLINE void $(s "round_scaled")(const float* weights, const float* scale, $(s "dots")* to,
                                    int head)
{
    LINE float list[$(words)];
    for (int i = 0; i < $(words); i += lanes)
        store(list + i, load(weights + i) * load(scale + i));
    to->main.unit[head] = round_list(list, $(words), to->main.pairs[head]);
}

//% local ones = ("(vi){ %s }"):format(repeated("0x10001", isa.lanes))
//% local factor = raised == "steps" and "zero[i]" or ones
// Weights [num_heads, words] of the strip's rows, of which [first, end) are visible, times their
// scales in lane16's group.  Where the greatest product has lost three bits or more, it is rounded
// again.
static NOINLINE void $(s "fold_dots")(const $(s "strip")* strip, int lane16, int first, int end,
                                 const float* weights, $(s "dots")* to)
{
    enum { num_vectors = $(words) / (2 * lanes) };
    LINE float scale[$(words)];
    vi ratio[num_vectors];
    vf top = repeat(0.0f);
    $(s "load_scales")(strip, lane16, first, end, scale);
    //% if raised == "steps" then
    vi zero[num_vectors];
    $(s "load_zeros")(strip, lane16, zero);
    //% elseif raised == "float" then
    LINE float offset[$(words)];
    $(s "load_raised")(strip, lane16, first, end, scale, offset);
    //% end
    //% local size = codec.parts.fit.signed and "absolute_of(load(scale + i))" or "load(scale + i)"
    for (int i = 0; i < $(words); i += lanes) top = greater($(size), top);
    const float max = greatest_lane(top), unit = max * (32768.0f / 32767.0f);
    const vf inverse = repeat(max > 0.0f ? 32767.0f / max : 0.0f);
    for (int i = 0; i < num_vectors; ++i)
        ratio[i] = round_pair(load(scale + i * 2 * lanes), load(scale + (i * 2 + 1) * lanes),
                              inverse);
    for (int head = 0; head < num_heads; ++head, weights += $(words)) {
        vi bits = { 0 }, sum = { 0 };
        for (int i = 0; i < num_vectors; ++i) {
            const vi w = times_ratio(load_pairs(to->plain[head] + i * lanes), ratio[i]);
            store_pairs(to->main.pairs[head] + i * lanes, w);
            bits |= $(codec.parts.fit.signed and "absolute_pairs(w)" or "w");
            sum = dot_pairs($(factor), w, sum);
        }
        to->main.unit[head] = to->plain_unit[head] * unit;
        if (!any_bit(bits & 0x70007000)) {
            $(s "round_scaled")(weights, scale, to, head);
            sum = (vi){ 0 };
            for (int i = 0; i < num_vectors; ++i)
                sum = dot_pairs($(factor), load_pairs(to->main.pairs[head] + i * lanes), sum);
        }
        const float whole = sum_lanes(__builtin_convertvector(sum, vf)) * to->main.unit[head];
        //% if raised == "steps" then
        to->main.rest[head] = whole * $(share);
        //% elseif raised == "float" then
        vf rest = repeat(0.0f);
        for (int i = 0; i < $(words); i += lanes)
            rest = mul_add(load(offset + i), load(weights + i), rest);
        to->main.rest[head] = sum_lanes(rest) - whole * $(middle);
        //% else
        to->main.rest[head] = whole * -$(middle);
        //% end
    }
}

// Cells [from, end) of the strip's channels of lane16, times W: they join sums [num_heads, stride].
static NOINLINE void $(s "dot_cells")(const $(s "strip")* strip, int lane16, int from, int end,
                                 const $(s "list")* w, float* sums, int stride)
{
    //% local tiles = plan.dot_tiles(codec)
    enum { part = part_rows / 16, step = $(tiles[1].vectors) * lanes };
    for (int lane = 0; lane < 16; lane += step) {
        //% for _, tile in ipairs(tiles) do
        {
            //% for _, sum in ipairs(tile.sums) do
            vi $(sum) = { 0 };
            //% end
            for (int at = from; at < end;) {
                const int begin = at / part * part, stop = begin + part < end ? begin + part : end;
                const unsigned char* page = strip->pages[at / part];
                for (; at < stop; ++at) {
                    const int word16 = strip->skip / 16 + at - begin;
                    const unsigned char* cell = $(s "cell")(page, lane16, word16);
                    const int32_t* pairs = w->pairs[0] + at * 8;
                    __asm__("" : "+r"(pairs));           // addresses stay offsets from it
                    //% for _, line in ipairs(products(isa, tile, codec, "word16", words)) do
                    $(line)
                    //% end
                }
            }
            //% for n = 0, tile.vectors - 1 do
            //% for _, h in ipairs(tile.heads) do
            {
                float* to = sums + $(h) * stride + lane + $(n) * lanes;
                const vf whole = __builtin_convertvector($(tile.sum(h, n)), vf);
                store(to, load(to) + mul_add(whole, repeat(w->unit[$(h)]), repeat(w->rest[$(h)])));
            }
            //% end
            //% end
        }
        //% end
    }
}
