// cells.h -- sums of the $(codec.title)' cells times weights, in floats.

//% local by_lane = codec.flagged and not codec.along_lanes
//% local copies = by_lane and codec.copies or 1
enum { $(s "slots") = $(codec.is_key and copies * codec.head_dim // 16 or 1) };

// Weights of the words as a cell multiplies them.  Keys have a slot of 16 words for each group of
// 16 channels, values one that is filled again for each tile.
//% if by_lane then
// The slots of each copy of the queries follow those of the one before.
//% end
typedef struct $(s "folded") {
    float weights[num_heads][16 * $(s "slots")];
    float rest[num_heads][$(s "slots")];
} $(s "folded");

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
    for (int lane = 0; lane < 16; lane += lanes) {
        //% for _, read in ipairs(codec.reads "word16") do
        const $(read.type) $(read.name) = $(read.expr);
        //% end
        //% if codec.fold == "words" then
        const int group = $(s "group")(word16 * 16, lane16 * 16 + lane);
        //% if by_lane then
        const int copy = slot / $(codec.head_dim // 16);
        const vi mine = $(s "bases_in")(page, word16 * 16, lane16 * 16 + lane) == copy;
        if (sum_lanes(__builtin_convertvector(mine, vf)) == 0.0f) continue;
        //% end
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
            x = $("load_" .. codec.raw)(cell + $(32 * i) + lane * 2);
            //% else
            x = $(codec.level(codec.code[i + 1]));
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
                //% local joins = by_lane and "(vf)((vi)part & mine)" or "part"
                store(sum, load(sum) + $(joins));
                //% else
                store(sum, load(sum) + $("sum_" .. h));
                //% end
            }
            //% end
        }
        //% end
    }
}
