// dots.h -- sums of the $(codec.title)' codes times 16-bit weights, as integers.
//% local copies = codec.flagged and codec.copies or 1
//% local filled = codec.is_key and codec.head_dim or plan.strip_rows
//% local words = codec.is_key and plan.k_words or plan.strip_words
//% local per_lane = codec.fold == "words"
//% local each = codec.by_lane and isa.lanes // 4             -- heads of a table
//% local part = per_lane and (codec.is_key and codec.group_size or 16)   -- words with one sum
//% local tables = each and (config.num_heads + each - 1) // each
//% local crosses = codec.flagged and codec.choice_piece % (2 * isa.lanes) ~= 0
//% local slots = crosses and copies + 1 or copies
//% local plain_list = codec.flagged and "to->plain[0][0]" or "to->plain[0]"
//% local query_list = codec.flagged and "to->queries[0][0]" or "to->queries[0]"
//% local headroom = f32(2.0 ^ 0.5)
//% local queries = "to->queries[head] + i"
//% local inverse, lift = "to->inverse + at", "to->lift + at"
//% if codec.flagged then
//% local from = "2 * to->from[i / (2 * lanes)] + "
//% queries = "to->queries[head][0] + " .. from .. "i % (2 * lanes)"
//% inverse, lift = "to->inverse[0] + " .. from .. "at - i", "to->lift[0] + " .. from .. "at - i"
//% end
//% local centered = per_lane or codec.zero_point > 0
//% local middle = f32(centered and 1.0 * (1 << codec.level_bits - 1) or codec.code_max / 2)
//% local raised = codec.raised
//% local raised_unit = f32(raised == "steps" and codec.zero_step or 1.0)
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
//% if codec.by_lane then
// Queries have $(copies) copies, and a lane takes those of the one whose basis it is in: a table is
// a vector, lane 4 h + c for copy c of its head h.
//% end
typedef struct $(s "list") {
    //% if codec.by_lane then
    LINE int32_t pairs[$(tables)][$(s "words") / 2][lanes];    // W of words 2 i and 2 i + 1
    LINE int32_t zero[$(tables)][$(filled // part)][lanes];    // -middle times a group's sum of W
    LINE float   rest[$(tables)][$(filled // part)][lanes];    // the sum of its weights, in units
    LINE float   unit[num_heads];                              // of all copies
    //% else
    LINE int32_t pairs[num_heads][$(s "words") / 2];    // W of words 2 i and 2 i + 1
    LINE float   unit[num_heads];
    //% end
    //% if codec.by_lane then
    //% elseif per_lane then
    //% local of = codec.is_key and "group" or "cell"
    int32_t zero[num_heads][$(filled // part)];         // -middle times the sum of W of a $(of)
    float   rest[num_heads][$(filled // part)];         // the sum of its weights, in units
    //% else
    float   rest[num_heads];
    //% end
} $(s "list");

typedef struct $(s "dots") {
    $(s "list") main;
    //% if codec.is_key then
    $(s "list") fine;                                   // what `main` leaves of the weights
    int needs_fine;
    //% if per_lane then
    int has_fine;
    uint32_t coarse;                                    // see is_coarse
    //% end
    //% end
    //% if not per_lane then
    float plain_unit[num_heads];
    //% if codec.flagged then
    // Of each copy of the queries, and where vectors cross pieces of what the choice takes of them.
    // `from` is where the choice's vectors are, in pairs.
    //% if crosses then
    uint32_t choice;
    //% end
    int known;
    int64_t from[$(words // (2 * isa.lanes))];
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
    //% end
} $(s "dots");

//% if per_lane then
#include "lane_dots.h"
//% elseif not codec.is_key then
#include "value_dots.h"
//% else
// Loads scales of the words in the group of lane16, and what offsets + $(middle) scales are, over
// $(raised_unit).
INLINE void $(s "load_grids")(const unsigned char* page, int lane16, float* scale, float* raised)
{
    for (int i = 0; i < $(filled); i += lanes) {
        const int group = $(s "group")(i, lane16 * 16);
        const vf one = $(s "load_scale")(page, group);
        store(scale + i, one);
        //% if raised == "steps" then
        store(raised + i, one * $(s "load_zero")(page, group));
        //% elseif raised == "float" then
        store(raised + i, mul_add(one, repeat($(middle)), $(s "load_offset")(page, group, one)));
        //% end
    }
    for (int i = $(filled); i < $(s "words"); ++i) scale[i] = raised[i] = 0.0f;
    (void)raised;
}

// Before the first group: queries [num_heads, dim], and no ratio that fits.
static NOINLINE void $(s "start_dots")(const float* queries, $(s "dots")* to)
{
    //% if codec.flagged then
    //% if crosses then
    to->choice = 0x7fffffffu;                           // none that occurs
    //% end
    to->known = 0;
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
//% if crosses then
static NOINLINE void $(s "take_copies")($(s "dots")* to)
{
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
    for (int i = 0; i < $(words // (2 * isa.lanes)); ++i)
        to->from[i] = $(copies * words // 2) + i * lanes;
}
//% else
INLINE void $(s "take_copies")(const unsigned char* page, int lane16, $(s "dots")* to)
{
    const uint32_t head = $(s "read_head")(page, lane16 * 16), mask = head - 1u;
    for (int i = 0; i < $(words // (2 * isa.lanes)); ++i) {
        const uint32_t flag = $(s "read_flag")(page, i * 2 * lanes, lane16 * 16);
        int64_t at = (int64_t)((flag & mask) | head << 1) * $(words // 2) + i * lanes;
        __asm__("" : "+r"(at));                         // one by one: they are addresses
        to->from[i] = at;
    }
}
//% end

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
    for (int i = 0; to->known && i < $(filled); i += lanes)
        store(to->scales[$(s "basis_of")(to->choice, i)] + i, load(scale + i) * $(headroom));
    return 0;
    //% else
    int fits = 1;
    if (!to->known) return 0;
    for (int i = 0; i < $(filled); i += 2 * lanes) {
        const int at = (int)(2 * to->from[i / (2 * lanes)]);
        const vf low = load(scale + i) * $(headroom), high = load(scale + i + lanes) * $(headroom);
        store(to->scales[0] + at, low);
        store(to->scales[0] + at + lanes, high);
        $(s "invert_scales")(to, at, at + 2 * lanes);
        for (int head = 0; fits && head < num_heads; ++head) {
            const float* q = to->queries[head][0] + at;
            const float unit = to->plain_unit[head];
            const vf a = load(q) * low, b = load(q + lanes) * high;
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
    if (!to->known) {
        for (int i = 0; i < $(s "words"); i += lanes)
            store(to->scales[0] + i, load(scale + i) * $(headroom));
        $(s "invert_scales")(to, 0, $(s "words"));
        for (int copy = 1; copy < $(copies); ++copy) {
            __builtin_memcpy(to->scales[copy], to->scales[0], sizeof to->scales[0]);
            __builtin_memcpy(to->inverse[copy], to->inverse[0], sizeof to->inverse[0]);
            __builtin_memcpy(to->lift[copy], to->lift[0], sizeof to->lift[0]);
        }
    }
    //% if crosses then
    if (to->known) $(s "invert_scales")(to, 0, all);
    //% end
    to->known = 1;
    for (int head = 0; head < num_heads; ++head) {
        for (int i = 0; i < all; i += lanes)
            store(list + i, load(to->queries[head][0] + i) * load(to->scales[0] + i));
        to->plain_unit[head] = round_list(list, all, to->plain[head][0]);
    }
    //% if crosses then
    $(s "take_copies")(to);
    //% end
}
//% else
// Makes these scales the ones that others are compared with: queries times them are rounded.
static NOINLINE void $(s "set_plain")(const float* scale, $(s "dots")* to)
{
    LINE float list[$(s "words")];
    for (int i = 0; i < $(s "words"); i += lanes) {
        const vf one = load(scale + i) * $(headroom);
        store(to->inverse + i, select(one == 0.0f, repeat($(f32(3.0e38))), 0.5f / one));
        store(to->lift + i, select(one == 0.0f, repeat(0.5f), repeat(0.0f)));
    }
    for (int head = 0; head < num_heads; ++head) {
        for (int i = 0; i < $(s "words"); i += lanes)
            store(list + i, load(to->queries[head] + i) * (load(scale + i) * $(headroom)));
        to->plain_unit[head] = round_list(list, $(s "words"), to->plain[head]);
    }
}
//% end

// Ratios of the scales to those of set_plain, times 1/2.  Returns 0 where one is not from 1/4 to 2:
// then the greatest product could lose three bits or more.  Zero for zero, whose products are zero,
// counts as 1.  set_plain takes 2^(1/2) times the scales that it is given, so that those of most
// groups are in that range.
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
static NOINLINE void $(s "fold_fine")(const float* scale, $(s "dots")* to)
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

// Loads what lane16's group has, and makes plain W that its ratios fit.
INLINE void $(s "load_group")(const unsigned char* page, int lane16, float* scale, float* raised,
                         vi* ratio, $(s "dots")* to)
{
    $(s "load_grids")(page, lane16, scale, raised);
    //% if codec.flagged then
    //% if crosses then
    const uint32_t choice = $(s "read_choice")(page, lane16 * 16);
    if (choice != to->choice) {
        to->choice = choice;
        $(s "take_copies")(to);
    }
    //% else
    $(s "take_copies")(page, lane16, to);
    //% end
    //% end
    //% local known = codec.flagged and "to->known && " or ""
    if (!($(known)$(s "take_ratios")(scale, to, ratio))) {
        $(s "set_plain")(scale, to);
        (void)$(s "take_ratios")(scale, to, ratio);
    }
}

// Queries times the scales of lane16's group.
static NOINLINE void $(s "fold_dots")(const unsigned char* page, int lane16, $(s "dots")* to)
{
    LINE float scale[$(s "words")], raised[$(s "words")];
    vi ratio[$(s "words") / (2 * lanes)];
    $(s "load_group")(page, lane16, scale, raised, ratio, to);
    float most = 0.0f;
    //% for _, heads in ipairs(plan.fold_tiles) do
    {
        //% for _, h in ipairs(heads) do
        vi $("sum_" .. h) = { 0 };
        vf $("rest_" .. h) = repeat(0.0f);
        //% end
        //% local last = words // (2 * isa.lanes) > 8 and 0 or words - 1
        //% if last == 0 then
        for (int i = 0; i < $(s "words"); i += 2 * lanes) {
        //% end
        //% for i = 0, last, 2 * isa.lanes do
        //% if last > 0 then
        {
            enum { i = $(i) };
        //% end
            //% if raised ~= "none" then
            const vf low = load(raised + i), high = load(raised + i + lanes);
            //% end
            const vi by = ratio[i / (2 * lanes)];
            //% if codec.flagged then
            const int64_t at = to->from[i / (2 * lanes)];
            //% else
            const int64_t at = i / 2;
            //% end
            vi w;
            //% for _, h in ipairs(heads) do
            //% local first = h * slots * words
            w = times_ratio(load_pairs($(plain_list) + $(first // 2) + at), by);
            store_pairs(to->main.pairs[0] + $(h * words // 2) + i / 2, w);
            $("sum_" .. h) = add_pairs(w, $("sum_" .. h));
            //% local rest = "rest_" .. h
            //% if raised ~= "none" then
            $(rest) = mul_add(low, load($(query_list) + $(first) + 2 * at), $(rest));
            $(rest) = mul_add(high, load($(query_list) + $(first) + lanes + 2 * at), $(rest));
            //% end
            //% end
        }
        //% end
        //% for _, h in ipairs(heads) do
        const float $("unit_" .. h) = to->plain_unit[$(h)] * 2.0f;
        //% local rest = "rest_" .. h
        $(rest) = mul_add(__builtin_convertvector($("sum_" .. h), vf),
                            repeat($("unit_" .. h) * -$(middle)), $(rest) * $(raised_unit));
        to->main.unit[$(h)] = $("unit_" .. h);
        most = most < $("unit_" .. h) ? $("unit_" .. h) : most;
        //% end
        //% for n = 1, #heads, 4 do
        //% if heads[n + 3] then
        store_sums(to->main.rest + $(heads[n]), $("rest_" .. heads[n]), $("rest_" .. heads[n + 1]),
                   $("rest_" .. heads[n + 2]), $("rest_" .. heads[n + 3]));
        //% else
        //% for m = n, #heads do
        to->main.rest[$(heads[m])] = sum_lanes($("rest_" .. heads[m]));
        //% end
        //% end
        //% end
    }
    //% end
    to->needs_fine = !(most <= $(coarse));
    if (to->needs_fine) $(s "fold_fine")(scale, to);
}

// Scores of tiles [lane16, end16), times W: 16 of a tile after those of the one before it, in
// sums [num_heads, stride].
static NOINLINE void $(s "dot_cells")(const unsigned char* page, int lane16, int end16,
                                 const $(s "list")* w, float* sums, int stride)
{
    //% local tiles = plan.dot_tiles(codec)
    enum { step = $(tiles[1].vectors) * lanes };
    for (int lane = 0; lane16 < end16; lane = (lane + step) % 16, lane16 += lane == 0) {
        //% for _, tile in ipairs(tiles) do
        {
            //% for _, sum in ipairs(tile.sums) do
            vi $(sum) = { 0 };
            //% end
            for (int word16 = 0; word16 < $(codec.head_dim // 16); ++word16) {
                const unsigned char* cell = $(s "cell")(page, lane16, word16);
                const int32_t* pairs = w->pairs[0] + word16 * 8;
                __asm__("" : "+r"(pairs));           // addresses stay offsets from it
                //% for _, line in ipairs(products(isa, tile, codec, "word16", words)) do
                $(line)
                //% end
            }
            //% for n = 0, tile.vectors - 1 do
            //% for _, h in ipairs(tile.heads) do
            store(sums + $(h) * stride + $(n) * lanes,
                  mul_add(__builtin_convertvector($(tile.sum(h, n)), vf),
                          repeat(w->unit[$(h)]), repeat(w->rest[$(h)])));
            //% end
            //% end
        }
        //% end
        sums += step;
    }
}
//% end
