// dots.h -- sums of the $(codec.title)' codes times 16-bit weights, as integers.
//% local copies = codec.flagged and codec.copies or 1
//% local filled = codec.is_key and codec.head_dim or plan.strip_rows
//% local words = codec.is_key and plan.k_words or plan.strip_words
//% local per_lane = codec.fold == "words"
//% local crosses = codec.flagged and codec.choice_piece % (2 * isa.lanes) ~= 0
//% local slots = crosses and copies + 1 or copies
//% local plain, queries = "to->plain[head] + i / 2", "to->queries[head] + i"
//% local inverse, lift = "to->inverse + at", "to->lift + at"
//% if codec.flagged then
//% local from = "to->from[i / (2 * lanes)] + "
//% plain = "to->plain[head][0] + (" .. from .. "i) / 2"
//% queries = "to->queries[head][0] + " .. from .. "i"
//% inverse, lift = "to->inverse[0] + " .. from .. "at", "to->lift[0] + " .. from .. "at"
//% end
//% local centered = per_lane or codec.zero_point > 0
//% local middle = f32(centered and 1.0 * (1 << codec.level_bits - 1) or codec.code_max / 2)
//% local coarse = f32(plan.score_error * 7 / (sqrt(1.0 * codec.head_dim) * 2.0 ^ codec.level_bits))
//
// A weight w, a query's or a softmax's, times the scale of its word where lanes share one, becomes
// a 16-bit number W in units of the greatest: w scale = unit W, |W| <= 32767.  Then
//
//     sum w (scale code + offset) = unit (sum W code) + rest,
//     rest = sum w (offset + middle scale) - middle unit (sum W),
//
// where sum W code is exact: 256 words of 255 times 32767 stay below 2^31.  In effect W
// multiplies code - middle, $(middle), so that its rounding meets small numbers; the rest is
// exact but for rounding of floats.
//
// Bound: a W is off by at most 3/2, since plain weight, ratio and product are rounded, a sum over
// n words by unit 3/2 n 2^(bits - 1), and by about unit sqrt(n) 2^bits / 7 where errors are
// independent.
//% if codec.is_key then
// That is to be at most $(f32(plan.score_error)) of a score.  Where the unit is greater,
// because queries and scales are, what W leave of the weights becomes a second list of 16 bits:
// then a score is as exact as in floats.
//% else
// Each unit is at most 1/4096 of the greatest weight times scale of the strip.
//% end
//
// A cell of 256 codes: $(#codec.words) loads, 8 times 1 to $(3 * #codec.planes) instructions
// that unpack, and 8 multiply-adds for each head.

enum { $(s "words") = $(words) };                  // room for them, a multiple of a vector of W

// What cells are multiplied with: W, their unit, and what joins the sums.
typedef struct $(s "list") {
    LINE int32_t pairs[num_heads][$(s "words") / 2];    // W of words 2 i and 2 i + 1
    LINE float   unit[num_heads];
    //% if per_lane then
    int32_t zero[num_heads][$(s "words") / 16];         // -middle times the sum of a cell's W
    float   rest[num_heads][$(s "words") / 16];         // the sum of its weights
    //% elseif codec.is_key then
    float   rest[num_heads];
    //% end
} $(s "list");

typedef struct $(s "dots") {
    //% if codec.by_lane then
    $(s "list") main[$(copies)];                               // of each copy of the queries
    $(s "list") fine[$(copies)];                               // what `main` leaves of the weights
    int needs_fine;
    //% else
    $(s "list") main;
    //% if codec.is_key then
    $(s "list") fine;                                   // what `main` leaves of the weights
    int needs_fine;
    //% end
    //% end
    //% if not per_lane then
    float plain_unit[num_heads];
    //% if codec.flagged then
    // Of each copy of the queries, and where vectors cross pieces of what the choice takes of them.
    // `from` is where the choice's vectors are, in words: times the copy.
    uint32_t choice;
    int known;
    int32_t from[$(words // (2 * isa.lanes))];
    LINE int32_t plain[num_heads][$(slots)][$(s "words") / 2];
    LINE float queries[num_heads][$(slots)][$(s "words")];
    LINE float inverse[$(slots)][$(s "words")];
    LINE float lift[$(slots)][$(s "words")];
    LINE float scales[$(copies)][$(s "words")];         // that are in `plain`
    //% else
    LINE int32_t plain[num_heads][$(s "words") / 2];    // W without this group's scales
    //% if codec.is_key then
    LINE float queries[num_heads][$(s "words")];
    LINE float inverse[$(s "words")];                   // of the scales in `plain`, times 1/2
    LINE float lift[$(s "words")];                      // 1/2 where they are zero
    //% end
    //% end
    //% if not codec.is_key then
    LINE float rest[num_heads][$(codec.head_dim // codec.group_size)][lanes];
    //% end
    //% end
} $(s "dots");

//% if per_lane then
// A head's zeros from its W.
INLINE void $(s "sum_cells")($(s "list")* to, int head)
{
    for (int at = 0; at < $(filled // 16); ++at) {
        const s16_at* w = (const s16_at*)to->pairs[head] + at * 16;
        int sum = 0;
        for (int i = 0; i < 16; ++i) sum += w[i];
        to->zero[head][at] = sum * -(1 << $(codec.level_bits - 1));
    }
}

// Weights [num_heads, stride] of all words: lanes have scales of their own, one for each group of
// words, so zero and rest are kept for each cell.
//% local main, fine = "to->main", "to->fine"
//% if codec.by_lane then
//% main, fine = "to->main[copy]", "to->fine[copy]"
static NOINLINE void $(s "round_copy")(const float* weights, int stride, $(s "dots")* to, int copy)
//% else
static NOINLINE void $(s "round_dots")(const float* weights, int stride, $(s "dots")* to)
//% end
{
    for (int head = 0; head < num_heads; ++head, weights += stride) {
        LINE float list[$(s "words")] = { 0 };
        for (int i = 0; i < $(filled); i += lanes) store(list + i, load(weights + i));
        $(main .. ".unit")[head] = round_list(list, $(s "words"), $(main .. ".pairs")[head]);
        $(s "sum_cells")(&$(main), head);
        for (int at = 0; at < $(filled // 16); ++at) {
            vf rest = repeat(0.0f);
            for (int i = 0; i < 16; i += lanes) rest += load(list + at * 16 + i);
            $(main .. ".rest")[head][at] = sum_lanes(rest);
        }
        //% if codec.is_key then
        take_remainder(list, $(s "words"), $(main .. ".unit")[head], $(main .. ".pairs")[head]);
        $(fine .. ".unit")[head] = round_list(list, $(s "words"), $(fine .. ".pairs")[head]);
        $(s "sum_cells")(&$(fine), head);
        for (int at = 0; at < $(filled // 16); ++at) $(fine .. ".rest")[head][at] = 0.0f;
        //% end
    }
}
//% if codec.by_lane then

INLINE void $(s "round_dots")(const float* weights, int stride, $(s "dots")* to)
{
    for (int copy = 0; copy < $(copies); ++copy)
        $(s "round_copy")(weights + copy * (num_heads * $(s "dim")), stride, to, copy);
}
//% end

//% if codec.is_key then
// Whether a unit times a scale of the tile's lanes [first, end) would leave scores too far off.
static NOINLINE int $(s "is_coarse")(const unsigned char* page, int lane16, int first, int end,
                            const $(s "dots")* of)
{
    const vi number = { $(codec.lane_numbers) };
    float most = 0.0f;
    vf top = repeat(0.0f);
    //% if codec.by_lane then
    for (int copy = 0; copy < $(copies); ++copy)
        for (int head = 0; head < num_heads; ++head)
            most = of->main[copy].unit[head] > most ? of->main[copy].unit[head] : most;
    //% else
    for (int head = 0; head < num_heads; ++head)
        most = of->main.unit[head] > most ? of->main.unit[head] : most;
    //% end
    for (int word = 0; word < $(filled); word += $(codec.group_size)) {
        for (int lane = 0; lane < 16; lane += lanes) {
            const vf scale = $(s "load_scale")(page, $(s "group")(word, lane16 * 16 + lane));
            const vi visible = (number + lane >= first) & (number + lane < end);
            top = greater(select(visible, absolute_of(scale), repeat(0.0f)), top);
        }
    }
    return !(most * greatest_lane(top) <= $(coarse));
}
//% end
//% else
// Loads scale and offset + middle scale of the words first_word ... in the group of lane16.
INLINE void $(s "load_grids")(const unsigned char* page, int lane16, int first_word, float* scale,
                         float* offset)
{
    for (int i = 0; i < $(filled); i += lanes) {
        const int group = $(s "group")(first_word + i, lane16 * 16);
        const vf one = $(s "load_scale")(page, group);
        store(scale + i, one);
        store(offset + i, mul_add(one, repeat($(middle)), $(s "load_offset")(page, group, one)));
    }
    for (int i = $(filled); i < $(s "words"); ++i) scale[i] = offset[i] = 0.0f;
}

//% if codec.is_key then
// Before the first group: queries [num_heads, dim], and no ratio that fits.
static NOINLINE void $(s "start_dots")(const float* queries, $(s "dots")* to)
{
    //% if codec.flagged then
    to->choice = 0x7fffffffu;                           // none that occurs
    to->known = 0;
    for (int i = 0; i < (int)(sizeof to->inverse / sizeof(float)); i += lanes) {
        store(to->inverse[0] + i, repeat(0.0f));
        store(to->lift[0] + i, repeat(0.0f));
    }
    //% if crosses then
    for (int i = 0; i < (int)(sizeof to->queries / sizeof(float)); ++i) to->queries[0][0][i] = 0.0f;
    for (int i = 0; i < (int)(sizeof to->plain / sizeof(int32_t)); ++i) to->plain[0][0][i] = 0;
    //% end
    for (int copy = 0; copy < $(copies); ++copy)
        for (int head = 0; head < num_heads; ++head, queries += $(filled))
            __builtin_memcpy(to->queries[head][copy], queries, $(4 * filled));
    //% else
    for (int i = 0; i < $(s "words"); ++i) to->inverse[i] = to->lift[i] = 0.0f;
    for (int head = 0; head < num_heads; ++head)
        for (int i = 0; i < $(s "words"); ++i)
            to->queries[head][i] = i < $(filled) ? queries[head * $(filled) + i] : 0.0f;
    //% end
}

//% if codec.flagged then
// Makes the vectors of a choice those that are read.
static NOINLINE void $(s "take_copies")($(s "dots")* to)
{
    //% if crosses then
    for (int i = 0; i < $(filled); i += 16) {
        const int copy = $(s "basis_of")(to->choice, i);
        for (int head = 0; head < num_heads; ++head) {
            __builtin_memcpy(to->queries[head][$(copies)] + i, to->queries[head][copy] + i, 64);
            __builtin_memcpy(to->plain[head][$(copies)] + i / 2, to->plain[head][copy] + i / 2, 32);
        }
        __builtin_memcpy(to->inverse[$(copies)] + i, to->inverse[copy] + i, 64);
        __builtin_memcpy(to->lift[$(copies)] + i, to->lift[copy] + i, 64);
    }
    for (int i = $(filled); i < $(s "words"); ++i) to->lift[$(copies)][i] = 0.5f;
    for (int i = 0; i < $(words // (2 * isa.lanes)); ++i) to->from[i] = $(copies * words);
    //% else
    for (int i = 0; i < $(words // (2 * isa.lanes)); ++i)
        to->from[i] = $(s "basis_of")(to->choice, i * 2 * lanes) * $(words);
    //% end
}

// Inverse and lift of the scales of words [first, end) of all copies.
INLINE void $(s "invert_scales")($(s "dots")* to, int first, int end)
{
    for (int i = first; i < end; i += lanes) {
        const vf one = load(to->scales[0] + i);
        store(to->inverse[0] + i, select(one == 0.0f, repeat($(f32(3.0e38))), 0.5f / one));
        store(to->lift[0] + i, select(one == 0.0f, repeat(0.5f), repeat(0.0f)));
    }
}

// Puts scales in the place of those that the choice's copies have.  Returns 0 where queries times
// them do not fit the units that there are.
static NOINLINE int $(s "renew_plain")(const float* scale, $(s "dots")* to)
{
    //% if crosses then
    for (int i = 0; i < $(filled); i += 16)
        __builtin_memcpy(to->scales[$(s "basis_of")(to->choice, i)] + i, scale + i, 64);
    return 0;
    //% else
    int fits = to->known;
    for (int i = 0; i < $(filled); i += 2 * lanes) {
        const int at = to->from[i / (2 * lanes)] + i;
        __builtin_memcpy(to->scales[0] + at, scale + i, 8 * lanes);
        $(s "invert_scales")(to, at, at + 2 * lanes);
        for (int head = 0; fits && head < num_heads; ++head) {
            const float* q = to->queries[head][0] + at;
            const float unit = to->plain_unit[head];
            const vf a = load(q) * load(scale + i), b = load(q + lanes) * load(scale + i + lanes);
            const float most = greatest_lane(greater(absolute_of(a), absolute_of(b)));
            fits = most <= 32766.0f * unit && unit > 0.0f;
            if (fits)
                store_pairs(to->plain[head][0] + at / 2, round_pair(a, b, repeat(1.0f / unit)));
        }
    }
    return fits;
    //% end
}

// Makes these scales the ones that others are compared with, in the bases of the choice; the first
// ones in all, as a guess.
static NOINLINE void $(s "set_plain")(const float* scale, $(s "dots")* to)
{
    enum { all = $(copies) * $(s "words") };
    LINE float list[all];
    if ($(s "renew_plain")(scale, to)) return;
    for (int copy = 0; !to->known && copy < $(copies); ++copy)
        __builtin_memcpy(to->scales[copy], scale, sizeof to->scales[copy]);
    to->known = 1;
    $(s "invert_scales")(to, 0, all);
    for (int head = 0; head < num_heads; ++head) {
        for (int i = 0; i < all; i += lanes)
            store(list + i, load(to->queries[head][0] + i) * load(to->scales[0] + i));
        to->plain_unit[head] = round_list(list, all, to->plain[head][0]);
    }
    $(s "take_copies")(to);
}
//% else
// Makes these scales the ones that others are compared with: queries times them are rounded.
static NOINLINE void $(s "set_plain")(const float* scale, $(s "dots")* to)
{
    LINE float list[$(s "words")];
    for (int i = 0; i < $(s "words"); i += lanes) {
        const vf one = load(scale + i);
        store(to->inverse + i, select(one == 0.0f, repeat($(f32(3.0e38))), 0.5f / one));
        store(to->lift + i, select(one == 0.0f, repeat(0.5f), repeat(0.0f)));
    }
    for (int head = 0; head < num_heads; ++head) {
        for (int i = 0; i < $(s "words"); i += lanes)
            store(list + i, load(to->queries[head] + i) * load(scale + i));
        to->plain_unit[head] = round_list(list, $(s "words"), to->plain[head]);
    }
}
//% end

// Ratios of the scales to those of set_plain, times 1/2.  Returns 0 where one is not from 1/4 to 2:
// then the greatest product could lose three bits or more.  Zero for zero, whose products are zero,
// counts as 1.
INLINE int $(s "take_ratios")(const float* scale, const $(s "dots")* to, vi* ratio)
{
    vf pair[2], low = repeat(0.5f), high = low;
    for (int i = 0; i < $(s "words"); i += 2 * lanes) {
        for (int j = 0; j < 2; ++j) {
            const int at = i + j * lanes;
            pair[j] = mul_add(load(scale + at), load($(inverse)), load($(lift)));
            const vf size = $(codec.parts.fit.signed and "absolute_of(pair[j])" or "pair[j]");
            low = smaller(size, low);
            high = greater(size, high);
        }
        ratio[i / (2 * lanes)] = round_pair(pair[0], pair[1], repeat(32768.0f));
    }
    return !any_bit((low < 0.125f) | (high >= 0.9999f));
}

// What the W of a group leave of the queries times its scales.
static OPAQUE void $(s "fold_fine")(const float* scale, $(s "dots")* to)
{
    for (int head = 0; head < num_heads; ++head) {
        LINE float list[$(s "words")];
        vi sum = { 0 };
        for (int i = 0; i < $(s "words"); i += lanes)
            store(list + i, load($(queries)) * load(scale + i));
        take_remainder(list, $(s "words"), to->main.unit[head], to->main.pairs[head]);
        to->fine.unit[head] = round_list(list, $(s "words"), to->fine.pairs[head]);
        for (int i = 0; i < $(s "words"); i += 2 * lanes)
            sum = add_pairs(load_pairs(to->fine.pairs[head] + i / 2), sum);
        to->fine.rest[head] = sum_lanes(__builtin_convertvector(sum, vf))
                              * (to->fine.unit[head] * -$(middle));
    }
}

// Queries times the scales of lane16's group.
static NOINLINE void $(s "fold_dots")(const unsigned char* page, int lane16, $(s "dots")* to)
{
    LINE float scale[$(s "words")], offset[$(s "words")];
    vi ratio[$(s "words") / (2 * lanes)];
    $(s "load_grids")(page, lane16, 0, scale, offset);
    //% if codec.flagged then
    const uint32_t choice = $(s "read_choice")(page, lane16 * 16);
    if (choice != to->choice) {
        to->choice = choice;
        $(s "take_copies")(to);
    }
    //% end
    if (!$(s "take_ratios")(scale, to, ratio)) {
        $(s "set_plain")(scale, to);
        (void)$(s "take_ratios")(scale, to, ratio);
    }
    float most = 0.0f;
    for (int head = 0; head < num_heads; ++head) {
        const float unit = to->plain_unit[head] * 2.0f;
        vi sum = { 0 };
        vf rest = repeat(0.0f), more = rest;
        for (int i = 0; i < $(s "words"); i += 2 * lanes) {
            const float* q = $(queries);
            const vi w = times_ratio(load_pairs($(plain)), ratio[i / (2 * lanes)]);
            store_pairs(to->main.pairs[head] + i / 2, w);
            sum = add_pairs(w, sum);
            rest = mul_add(load(offset + i), load(q), rest);
            more = mul_add(load(offset + i + lanes), load(q + lanes), more);
        }
        const vf wholes = __builtin_convertvector(sum, vf);
        to->main.rest[head] = sum_lanes(mul_add(wholes, repeat(unit * -$(middle)), rest + more));
        to->main.unit[head] = unit;
        most = most < unit ? unit : most;
    }
    to->needs_fine = !(most <= $(coarse));
    if (to->needs_fine) $(s "fold_fine")(scale, to);
}
//% else
// Before the first strip.
INLINE void $(s "start_dots")($(s "dots")* to)
{
    for (int i = 0; i < (int)(sizeof to->rest / sizeof(float)); i += lanes)
        store(&to->rest[0][0][0] + i, repeat(0.0f));
}

INLINE void $(s "shrink_rest")($(s "dots")* to, int head, float factor)
{
    for (int i = 0; i < $(codec.head_dim // codec.group_size); ++i)
        store(to->rest[head][i], load(to->rest[head][i]) * factor);
}

// The rests join o [num_heads, dim] and begin again.  They are as large as what codes add to o and
// have the other sign: before either is so large that floats lose the difference.
static NOINLINE void $(s "add_rest")($(s "dots")* from, float* o)
{
    for (int head = 0; head < num_heads; ++head) {
        for (int group = 0; group < $(codec.head_dim // codec.group_size); ++group) {
            const vf rest = repeat(sum_lanes(load(from->rest[head][group])));
            store(from->rest[head][group], repeat(0.0f));
            for (int i = 0; i < $(codec.group_size); i += lanes, o += lanes)
                store(o, load(o) + rest);
        }
    }
}

// Weights [num_heads, words] of the rows of a strip, without scales.
static NOINLINE void $(s "set_plain")(const float* weights, $(s "dots")* to)
{
    for (int head = 0; head < num_heads; ++head)
        to->plain_unit[head] = round_list(weights + head * $(s "words"), $(s "words"),
                                          to->plain[head]);
}

// A head's weights [words] times scales, rounded afterwards: nothing is lost.
static NOINLINE void $(s "round_scaled")(const float* weights, const float* scale, $(s "dots")* to,
                                    int head)
{
    LINE float list[$(s "words")];
    for (int i = 0; i < $(s "words"); i += lanes)
        store(list + i, load(weights + i) * load(scale + i));
    to->main.unit[head] = round_list(list, $(s "words"), to->main.pairs[head]);
}

// What is stored for rows outside [first, end), which are not visible, may be no number.
static NOINLINE void $(s "hide_grids")(int first, int end, float* scale, float* offset)
{
    for (int i = 0; i < $(filled); ++i)
        if (i < first || i >= end) scale[i] = offset[i] = 0.0f;
}

// Weights [num_heads, words] of the rows first_word ... of which [first, end) are visible, times
// their scales in lane16's group.  Where the greatest product has lost three bits or more, it is
// rounded again.
static NOINLINE void $(s "fold_dots")(const unsigned char* page, int lane16, int first_word,
                                 int first, int end, const float* weights, $(s "dots")* to)
{
    enum { num_vectors = $(s "words") / (2 * lanes) };
    LINE float scale[$(s "words")], offset[$(s "words")];
    vi ratio[num_vectors];
    vf top = repeat(0.0f);
    $(s "load_grids")(page, lane16, first_word, scale, offset);
    if (end - first < $(filled)) $(s "hide_grids")(first, end, scale, offset);
    for (int i = 0; i < $(s "words"); i += lanes) top = greater(absolute_of(load(scale + i)), top);
    const float max = greatest_lane(top), unit = max * (32768.0f / 32767.0f);
    const vf inverse = repeat(max > 0.0f ? 32767.0f / max : 0.0f);
    for (int i = 0; i < num_vectors; ++i)
        ratio[i] = round_pair(load(scale + i * 2 * lanes), load(scale + (i * 2 + 1) * lanes),
                              inverse);
    for (int head = 0; head < num_heads; ++head, weights += $(s "words")) {
        float* rest_at = to->rest[head][lane16 * 16 / $(codec.group_size)];
        vf rest = load(rest_at), more = repeat(0.0f);
        vi bits = { 0 }, sum = { 0 };
        for (int i = 0; i < num_vectors; ++i) {
            const vi w = times_ratio(load_pairs(to->plain[head] + i * lanes), ratio[i]);
            store_pairs(to->main.pairs[head] + i * lanes, w);
            bits |= $(codec.parts.fit.signed and "absolute_pairs(w)" or "w");
            sum = add_pairs(w, sum);
            const float* at = weights + i * 2 * lanes;
            rest = mul_add(load(offset + i * 2 * lanes), load(at), rest);
            more = mul_add(load(offset + (i * 2 + 1) * lanes), load(at + lanes), more);
        }
        to->main.unit[head] = to->plain_unit[head] * unit;
        if (!any_bit(bits & 0x70007000)) {
            $(s "round_scaled")(weights, scale, to, head);
            sum = (vi){ 0 };
            for (int i = 0; i < num_vectors; ++i)
                sum = add_pairs(load_pairs(to->main.pairs[head] + i * lanes), sum);
        }
        const vf wholes = __builtin_convertvector(sum, vf);
        store(rest_at, mul_add(wholes, repeat(to->main.unit[head] * -$(middle)), rest + more));
    }
}
//% end
//% end

//% if per_lane then
//% local cells = codec.group_size // 16
// The cell after the group of cell `at`, at most end16.
INLINE int $(s "group_end")(int at, int end16)
{
    const int end = at / $(cells) * $(cells) + $(cells);
    return end < end16 ? end : end16;
}

// Lanes' sum over cells [first, end) of a list, times their scale, joins total.
INLINE vf $(s "join")(const $(s "list")* w, int head, int first, int end, vi sum, vf scale,
                 vf offset, vf total)
{
    int32_t zero = 0;
    float rest = 0.0f;
    for (int i = first; i < end; ++i) {
        zero += w->zero[head][i];
        rest += w->rest[head][i];
    }
    const vf whole = __builtin_convertvector(sum + zero, vf);
    total = mul_add(whole * w->unit[head], scale, total);
    //% if codec.zero_point == 0 then
    return mul_add(repeat(rest), offset, total);
    //% else
    (void)offset;                                       // of centered codes it is zero
    return total;
    //% end
}
//% end

// The cells [word16, end16) of lane16, times W that begin with cell first_cell: their sums
//% if codec.is_key then
// become sums [num_heads, stride].
//% else
// join sums [num_heads, stride].
//% end
//% local list, scale, offset = "w", "held", "raised"
//% if codec.by_lane then
// The queries have copies: a lane's sum is of the one whose basis it is in.
//% list, scale, offset = "copies", "(vf)((vi)held & mine)", "(vf)((vi)raised & mine)"
//% end
static NOINLINE void $(s "dot_cells")(const unsigned char* page, int lane16, int word16, int end16,
                                 int first_cell, const $(s "list")* $(list), float* sums,
                                 int stride)
{
    for (int lane = 0; lane < 16; lane += lanes) {
        //% for _, tile in ipairs(plan.dot_tiles) do
        {
            int at = word16;
            //% for _, h in ipairs(tile.heads) do
            //% local old = ("load(sums + %d * stride + lane)"):format(h)
            vf $("total_" .. h) = $(codec.is_key and "repeat(0.0f)" or old);
            //% end
            do {
                //% if codec.by_lane then
                const int from = at, after = $(s "group_end")(at, end16);
                for (int copy = 0; copy < $(copies); ++copy) {
                const $(s "list")* w = copies + copy;
                const vi mine = $(s "lanes_in")(page, from * 16, lane16 * 16 + lane, copy);
                at = any_bit(mine) ? from : after;
                if (at == after) continue;
                //% end
                //% if per_lane then
                const int begun = at - first_cell, stop = $(s "group_end")(at, end16);
                const int group = $(s "group")(at * 16, lane16 * 16 + lane);
                const vf held = $(s "load_scale")(page, group);
                const vf raised = mul_add(held, repeat($(middle)),
                                          $(s "load_offset")(page, group, held));
                //% else
                const int stop = end16;
                //% end
                //% for _, sum in ipairs(tile.sums) do
                vi $(sum) = { 0 };
                //% end
                for (; at < stop; ++at) {
                    const unsigned char* cell = $(s "cell")(page, lane16, at);
                    const int32_t* pairs = w->pairs[0] + (at - first_cell) * 8;
                    //% for _, read in ipairs(codec.reads "at") do
                    const $(read.type) $(read.name) = $(read.expr);
                    //% end
                    vp x;
                    //% for k = 0, 7 do
                    x = $(codec.pair[k + 1]);
                    //% for _, h in ipairs(tile.heads) do
                    //% local sum = tile.chain(h, k)
                    $(sum) = dot_at(pairs + $(h * words // 2 + k), x, $(sum));
                    //% end
                    //% end
                }
                //% for _, h in ipairs(tile.heads) do
                //% if per_lane then
                $("total_" .. h) = $(s "join")(w, $(h), begun, at - first_cell, $(tile.sum(h)),
                                        $(scale), $(offset), $("total_" .. h));
                //% else
                //% local more = codec.is_key and ("repeat(w->rest[%d])"):format(h) or "total_" .. h
                $("total_" .. h) = mul_add(__builtin_convertvector($(tile.sum(h)), vf),
                                    repeat(w->unit[$(h)]), $(more));
                //% end
                //% end
                //% if codec.by_lane then
                }
                //% end
            } while (at < end16);
            //% for _, h in ipairs(tile.heads) do
            store(sums + $(h) * stride + lane, $("total_" .. h));
            //% end
        }
        //% end
    }
}
