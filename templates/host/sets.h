// sets.h -- $(codec.title) whose channels are in sets, each with a codec of its own.
//
// gen/parts/outliers.lua says what a row becomes; the sets follow each other in a page.

enum { $(s "dim") = $(codec.head_dim), $(s "page_bytes") = $(codec.layout.page_bytes) };

// A row's channels in the order of the sets, each set in its basis.
static void $(s "transform")(float* x, const float* tables)
{
    const float* order = tables + $(codec.table_at(codec.parts.extra.tables[1].name));
    float y[$(s "dim")];
    for (int i = 0; i < $(s "dim"); ++i) y[i] = x[(int)order[i]];
    for (int i = 0; i < $(s "dim"); ++i) x[i] = y[i];
    //% for _, set in ipairs(codec.sets) do
    $(set.side .. "_transform")(x + $(set.first), tables);
    //% end
}

// Out of it.
static void $(s "turn_back")(float* x, const float* tables)
{
    const float* order = tables + $(codec.table_at(codec.parts.extra.tables[1].name));
    float y[$(s "dim")];
    //% for _, set in ipairs(codec.sets) do
    $(set.side .. "_" .. set.back)(x + $(set.first), tables);
    //% end
    for (int i = 0; i < $(s "dim"); ++i) y[i] = x[i];
    for (int i = 0; i < $(s "dim"); ++i) x[(int)order[i]] = y[i];
}

INLINE void $(s "encode_row")(const float* x, const float* tables, unsigned char* page, int row)
{
    //% for _, set in ipairs(codec.sets) do
    $(set.side .. "_encode_row")(x + $(set.first), tables, page + $(set.at), row);
    //% end
}

INLINE void $(s "read_row")(const unsigned char* page, int row, float* x)
{
    //% for _, set in ipairs(codec.sets) do
    $(set.side .. "_read_row")(page + $(set.at), row, x + $(set.first));
    //% end
}

// Of one channel, in the order of the sets.
//% for _, one in ipairs { { "uint32_t", "get_code" }, { "float", "read_value" } } do
INLINE $(one[1]) $(s(one[2]))(const unsigned char* page, int row, int channel)
{
    //% for i = #codec.sets, 2, -1 do
    //% local set = codec.sets[i]
    if (channel >= $(set.first))
        return $(set.side .. "_" .. one[2])(page + $(set.at), row, channel - $(set.first));
    //% end
    return $(codec.sets[1].side .. "_" .. one[2])(page, row, channel);
}

//% end
