// lane_dots.h -- dots.h for $(codec.title) whose groups run along words: lanes have scales of their
// own.
//% local copies = codec.flagged and codec.copies or 1
//% local filled = codec.is_key and codec.head_dim or plan.strip_rows
//% local words = codec.is_key and plan.k_words or plan.strip_words
//% local each = codec.by_lane and isa.lanes // 4 or 1        -- heads of a table
//% local part = codec.is_key and codec.group_size or 16      -- words with one sum
//% local taken = codec.by_lane and each or nil
//% local weights = codec.by_lane and "const int32_t (*pairs)[lanes]" or "const int32_t* pairs"
//% local cells, middle = codec.group_size // 16, f32(1.0 * (1 << codec.level_bits - 1))
//% local coarse = f32(plan.score_error * 7 / (sqrt(1.0 * codec.head_dim) * 2.0 ^ codec.level_bits))
//% local load_stored = codec.scale_bytes == 1 and "load_u8" or "load_u16"

// -middle times the sum of a part's W.
INLINE int32_t $(s "zero_of")(const int32_t* pairs)
{
    vi sum = { 0 };
    int32_t all = 0;
    //% if part % (2 * isa.lanes) == 0 then
    for (int i = 0; i < $(part // 2); i += lanes) sum = add_pairs(load_pairs(pairs + i), sum);
    for (int i = 0; i < lanes; ++i) all += sum[i];
    //% else
    (void)sum;
    for (int i = 0; i < $(part); ++i) all += ((const s16_at*)pairs)[i];
    //% end
    return all * -(1 << $(codec.level_bits - 1));
}

// The sum of a part's weights, in units.
INLINE float $(s "rest_of")(const float* weights, float unit)
{
    vf rest = repeat(0.0f);
    for (int i = 0; i < $(part); i += lanes) rest += load(weights + i);
    return unit > 0.0f ? sum_lanes(rest) / unit : 0.0f;
}

//% if codec.is_key then
// Whether a unit times the scale of a stored size leaves scores too far off.
INLINE int $(s "size_is_coarse")(const $(s "dots")* of, uint32_t size)
{
    unsigned char stored[2];
    float most = 0.0f;
    write_u16(stored, size);
    for (int head = 0; head < num_heads; ++head)
        most = of->main.unit[head] > most ? of->main.unit[head] : most;
    return !(most * absolute($("read_" .. codec.parts.meta.scale_type)(stored)) <= $(coarse));
}

// The least stored size that is coarse; beyond all of them where none is.
static NOINLINE uint32_t $(s "find_coarse")(const $(s "dots")* of)
{
    //% local bits = codec.parts.meta.size_bits
    enum { size_bits = $(bits), lowest = $(bits & -bits) };
    uint32_t fine = 0;
    if ($(s "size_is_coarse")(of, 0)) return 0;
    for (uint32_t bit = 1u << 15; bit > 0; bit >>= 1)
        if ((size_bits & bit) && !$(s "size_is_coarse")(of, fine | bit)) fine |= bit;
    return fine + lowest;
}

//% end
//% if codec.by_lane then
// Makes a head's lanes of a list's tables, of weights [copies, words], and their W one after the
// other.
static NOINLINE void $(s "round_head")(const float* weights, $(s "list")* to, int head,
                                  int32_t* pairs)
{
    enum { all = $(copies) * $(s "words") };
    const int table = head / $(each), first = head % $(each) * 4;
    to->unit[head] = round_list(weights, all, pairs);
    for (int copy = 0; copy < $(copies); ++copy) {
        const int32_t* of = pairs + copy * ($(s "words") / 2);
        const float* rest = weights + copy * $(s "words");
        for (int i = 0; i < $(filled // 2); ++i) to->pairs[table][i][first + copy] = of[i];
        for (int i = 0; i < $(filled // part); ++i) {
            to->zero[table][i][first + copy] = $(s "zero_of")(of + i * $(part // 2));
            to->rest[table][i][first + copy] = $(s "rest_of")(rest + i * $(part), to->unit[head]);
        }
    }
}

// A head's weights [copies, words] of [copies, num_heads, stride].
INLINE void $(s "load_copies")(const float* weights, float* list)
{
    for (int i = 0; i < $(copies) * $(s "words"); ++i) list[i] = 0.0f;
    for (int copy = 0; copy < $(copies); ++copy)
        __builtin_memcpy(list + copy * $(s "words"), weights + copy * (num_heads * $(s "dim")),
                         $(4 * filled));
}

// Weights [copies, num_heads, stride] of all words: lanes have scales of their own, one for each
// group of words, so zero and rest are kept for each.
static NOINLINE void $(s "round_dots")(const float* weights, int stride, $(s "dots")* to)
{
    enum { all = $(copies) * $(s "words") };
    LINE float list[all];
    LINE int32_t pairs[all / 2];
    to->has_fine = 0;
    for (int head = 0; head < num_heads; ++head, weights += stride) {
        $(s "load_copies")(weights, list);
        $(s "round_head")(list, &to->main, head, pairs);
    }
    to->coarse = $(s "find_coarse")(to);
}

// What the W of round_dots leave of these weights, if it is not there yet.
static NOINLINE void $(s "round_fine")(const float* weights, int stride, $(s "dots")* to)
{
    enum { all = $(copies) * $(s "words") };
    LINE float list[all];
    LINE int32_t pairs[all / 2];
    if (to->has_fine) return;
    to->has_fine = 1;
    for (int head = 0; head < num_heads; ++head, weights += stride) {
        $(s "load_copies")(weights, list);
        $(s "round_head")(list, &to->main, head, pairs);
        take_remainder(list, all, to->main.unit[head], pairs);
        $(s "round_head")(list, &to->fine, head, pairs);
    }
    __builtin_memset(to->fine.rest, 0, sizeof to->fine.rest);
}
//% else
// Weights [num_heads, stride] of all words: lanes have scales of their own, one for each group of
// words, so zero and rest are kept for each $(codec.is_key and "group" or "cell").
static NOINLINE void $(s "round_dots")(const float* weights, int stride, $(s "dots")* to)
{
    //% if codec.is_key then
    to->has_fine = 0;
    //% end
    for (int head = 0; head < num_heads; ++head, weights += stride) {
        LINE float list[$(s "words")] = { 0 };
        for (int i = 0; i < $(filled); i += lanes) store(list + i, load(weights + i));
        to->main.unit[head] = round_list(list, $(s "words"), to->main.pairs[head]);
        for (int i = 0; i < $(filled // part); ++i) {
            to->main.zero[head][i] = $(s "zero_of")(to->main.pairs[head] + i * $(part // 2));
            to->main.rest[head][i] = $(s "rest_of")(list + i * $(part), to->main.unit[head]);
        }
    }
    //% if codec.is_key then
    to->coarse = $(s "find_coarse")(to);
    //% end
}

//% if codec.is_key then
// What the W of round_dots leave of these weights, if it is not there yet.
static NOINLINE void $(s "round_fine")(const float* weights, int stride, $(s "dots")* to)
{
    if (to->has_fine) return;
    to->has_fine = 1;
    for (int head = 0; head < num_heads; ++head, weights += stride) {
        LINE float list[$(s "words")] = { 0 };
        for (int i = 0; i < $(filled); i += lanes) store(list + i, load(weights + i));
        take_remainder(list, $(s "words"), to->main.unit[head], to->main.pairs[head]);
        to->fine.unit[head] = round_list(list, $(s "words"), to->fine.pairs[head]);
        for (int i = 0; i < $(filled // part); ++i) {
            to->fine.zero[head][i] = $(s "zero_of")(to->fine.pairs[head] + i * $(part // 2));
            to->fine.rest[head][i] = 0.0f;
        }
    }
}
//% end
//% end

//% if codec.is_key then
// Whether a unit times a scale of the tile's lanes [first, end) would leave scores too far off.
// Stored sizes are in the order of the scales: `coarse` is the least that is too large.
INLINE int $(s "is_coarse")(const unsigned char* page, int lane16, int first, int end,
                       const $(s "dots")* of)
{
    const vi number = { $(codec.lane_numbers) };
    vi found = { 0 };
    for (int lane = 0; lane < 16; lane += lanes) {
        const vi visible = (number + lane >= first) & (number + lane < end);
        for (int word = 0; word < $(filled); word += $(codec.group_size)) {
            const int group = $(s "group")(word, lane16 * 16 + lane);
            const vu size = (uint32_t)$(codec.parts.meta.size_bits) & $(load_stored)(
                page + $(s "scales_at") + group * (int64_t)$(codec.scale_bytes));
            found |= visible & ((vi)size >= (int32_t)of->coarse);
        }
    }
    return any_bit(found);
}
//% end

// The cell after the group of cell `at`, at most end16.
INLINE int $(s "group_end")(int at, int end16)
{
    const int end = at / $(cells) * $(cells) + $(cells);
    return end < end16 ? end : end16;
}

// Of cells [first, end) of a list, for each lane: what the sum of W times codes starts with, and
// the sum of the weights in units.
INLINE vi $(s "first_sum")(const $(s "list")* w, int head, int first, int end, vi take)
{
    (void)end;
    (void)take;
    //% if codec.by_lane then
    return take_lanes(load_pairs(w->zero[head / $(each)][first / $(cells)]), take);
    //% elseif codec.is_key then
    return (vi){ 0 } + w->zero[head][first / $(cells)];
    //% else
    int32_t zero = 0;
    for (int i = first; i < end; ++i) zero += w->zero[head][i];
    return (vi){ 0 } + zero;
    //% end
}

INLINE vf $(s "rest_sum")(const $(s "list")* w, int head, int first, int end, vi take)
{
    (void)end;
    (void)take;
    //% if codec.by_lane then
    return (vf)take_lanes((vi)load(w->rest[head / $(each)][first / $(cells)]), take);
    //% elseif codec.is_key then
    return repeat(w->rest[head][first / $(cells)]);
    //% else
    float rest = 0.0f;
    for (int i = first; i < end; ++i) rest += w->rest[head][i];
    return repeat(rest);
    //% end
}

INLINE void $(s "put_sum")(float* to, vf total, float unit)
{
    //% if codec.is_key then
    store(to, total * unit);
    //% else
    store(to, mul_add(total, repeat(unit), load(to)));
    //% end
}

// The cells [word16, end16) of lane16, times W that begin with cell first_cell: their sums
//% if codec.is_key then
// become sums [num_heads, stride].
//% else
// join sums [num_heads, stride].
//% end
static NOINLINE void $(s "dot_cells")(const unsigned char* page, int lane16, int word16, int end16,
                                 int first_cell, const $(s "list")* w, float* sums,
                                 int stride)
{
    //% local tiles = plan.dot_tiles(codec)
    for (int lane = 0; lane < 16; lane += $(tiles[1].vectors) * lanes) {
        //% for _, tile in ipairs(tiles) do
        {
            int at = word16;
            //% for n = 0, tile.vectors - 1 do
            //% for _, h in ipairs(tile.heads) do
            vf $("total_" .. h .. "_" .. n) = repeat(0.0f);
            //% end
            //% end
            do {
                const int begun = at - first_cell, stop = $(s "group_end")(at, end16);
                //% for n = 0, tile.vectors - 1 do
                //% local group, held = "group_" .. n, "held_" .. n
                const int $(group) = $(s "group")(at * 16, lane16 * 16 + lane + $(n) * lanes);
                const vf $(held) = $(s "load_scale")(page, $(group));
                //% if codec.zero_point == 0 then
                const vf $("raised_" .. n) = mul_add($(held), repeat($(middle)),
                                            $(s "load_offset")(page, $(group), $(held)));
                //% end
                //% end
                //% local bases = codec.by_lane and s "bases_in(page, at * 16, lane16 * 16 + lane)"
                const vi take_0 = $(bases or "{ 0 }");
                //% for h = 1, each - 1 do
                const vi $("take_" .. h) = take_0 + $(4 * h);
                //% end
                //% for _, sum in ipairs(tile.sums) do
                vi $(sum) = { 0 };
                //% end
                //% for _, h in ipairs(tile.heads) do
                const vi $("zero_" .. h) = $(s "first_sum")(w, $(h), begun, stop - first_cell,
                                                   $("take_" .. h % each));
                //% for n = 0, tile.vectors - 1 do
                $(tile.chain(h, 0, n)) = $("zero_" .. h);
                //% end
                //% end
                for (; at < stop; ++at) {
                    const unsigned char* cell = $(s "cell")(page, lane16, at);
                    $(weights) = w->pairs[0] + (at - first_cell) * 8;
                    //% for _, line in ipairs(products(isa, tile, codec, "at", words, taken)) do
                    $(line)
                    //% end
                }
                //% for _, h in ipairs(tile.heads) do
                //% if codec.zero_point == 0 then
                const vf $("rest_" .. h) = $(s "rest_sum")(w, $(h), begun, at - first_cell,
                                                  $("take_" .. h % each));
                //% end
                //% for n = 0, tile.vectors - 1 do
                //% local total = "total_" .. h .. "_" .. n
                $(total) = mul_add(__builtin_convertvector($(tile.sum(h, n)), vf),
                                   $("held_" .. n), $(total));
                //% if codec.zero_point == 0 then
                $(total) = mul_add($("rest_" .. h), $("raised_" .. n), $(total));
                //% end
                //% end
                //% end
            } while (at < end16);
            //% for n = 0, tile.vectors - 1 do
            //% for _, h in ipairs(tile.heads) do
            $(s "put_sum")(sums + $(h) * stride + lane + $(n) * lanes, $("total_" .. h .. "_" .. n),
                       w->unit[$(h)]);
            //% end
            //% end
        }
        //% end
    }
}
