// tiles.h -- the $(codec.title), in floats: 16 tokens x 16 channels at a time.
//
// A cell's lanes are tokens, and an output needs channels as lanes: a tile is read by lanes,
// turned, and used by every head.

typedef struct $(s "tile") {
    LINE float turned[16][16];     // [channel][token], as a cell has them
    LINE float values[16][16];     // [token][channel]
} $(s "tile");

// Tokens [from, to) of tile lane16, channels of word16.
static NOINLINE void $(s "read_tile")(const unsigned char* page, int lane16, int word16, int from,
                                 int to, $(s "tile")* tile)
{
    //% if codec.fold == "values" then
    for (int t = from; t < to; ++t)
        for (int i = 0; i < 16; ++i)
            tile->values[t][i] = $(s "read_value")(page, lane16 * 16 + t, word16 * 16 + i);
    //% else
    const unsigned char* cell = $(s "cell")(page, lane16, word16);
    for (int lane = 0; lane < 16; lane += lanes) {
        //% for _, read in ipairs(codec.reads "word16") do
        const $(read.type) $(read.name) = $(read.expr);
        //% end
        //% if codec.fold == "words" then
        const int group = $(s "group")(word16 * 16, lane16 * 16 + lane);
        const vf scale = $(s "load_scale")(page, group);
        const vf offset = $(s "load_offset")(page, group, scale);
        //% end
        //% for i = 0, 15 do
        //% if codec.raw ~= "none" then
        store(tile->turned[$(i)] + lane, $("load_" .. codec.raw)(cell + $(32 * i) + lane * 2));
        //% elseif codec.fold == "words" then
        store(tile->turned[$(i)] + lane, mul_add(scale, $(codec.level(codec.code[i + 1])), offset));
        //% else
        store(tile->turned[$(i)] + lane, $(codec.level(codec.code[i + 1])));
        //% end
        //% end
    }
    //% if codec.fold == "lanes" then
    float scale[16], offset[16];
    for (int i = 0; i < 16; i += lanes) {
        const int group = $(s "group")(word16 * 16 + i, lane16 * 16);
        store(scale + i, $(s "load_scale")(page, group));
        store(offset + i, $(s "load_offset")(page, group, load(scale + i)));
    }
    //% end
    for (int t = from; t < to; ++t)
        for (int i = 0; i < 16; ++i)
            //% if codec.fold == "lanes" then
            tile->values[t][i] = scale[i] * tile->turned[i][t] + offset[i];
            //% else
            tile->values[t][i] = tile->turned[i][t];
            //% end
    //% end
}

// o [num_heads, dim] of 16 channels grows by tokens [from, to) times weights [num_heads,
// strip_words].
static NOINLINE void $(s "add_tile")(const $(s "tile")* tile, int from, int to,
                                const float* weights, float* o)
{
    for (int i = 0; i < 16; i += lanes) {
        //% for _, heads in ipairs(plan.head_tiles) do
        {
            //% for _, h in ipairs(heads) do
            vf $("sum_" .. h) = load(o + $(h) * $(s "dim") + i);
            //% end
            for (int t = from; t < to; ++t) {
                const vf x = load(tile->values[t] + i);
                const float* at = weights + t;
                //% for _, h in ipairs(heads) do
                $("sum_" .. h) = mul_add_at(at + $(h) * strip_words, x, $("sum_" .. h));
                //% end
            }
            //% for _, h in ipairs(heads) do
            store(o + $(h) * $(s "dim") + i, $("sum_" .. h));
            //% end
        }
        //% end
    }
}
