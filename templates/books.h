// books.h -- levels of the $(codec.title) that are not equally spaced, one value at a time.
//
// gen/codebooks.lua says how they are made, and how the nearest is found.

//% local book, fit, meta = codec.book, codec.parts.fit, codec.parts.meta
//% local float = book.float
//% if codec.looks_up then
CONSTANT float $(s "values")[$(codec.book_room)] = {
$(codec.book_values)
};

//% if codec.plane then
// Half the square of each point.
CONSTANT float $(s "halves")[$(#book.bounds)] = {
$(codec.book_halves)
};

//% end
//% end
INLINE float $(s "level_of")(uint32_t code)
{
    //% if codec.looks_up then
    return $(s "values")[code];
    //% else
    const uint32_t size = code & $((1 << book.bits - 1) - 1);
    const uint32_t sign = code >> $(book.bits - 1) << 31;
    float x = float_of((size << $(23 - float.mantissa)) + $(127 - float.bias << 23));
    if (size < $(1 << float.mantissa))
        x = (float)(int32_t)size * $(f32(2.0 ^ (1 - float.bias - float.mantissa)));
    return float_of(bits_of(x) | sign);
    //% end
}

//% if kernel == "none" or kernel.writes then
//% if not codec.plane then
// The code of the level that is nearest to y.
INLINE uint32_t $(s "code_of_level")(float y)
{
    //% if codec.counts_bounds then
    const float at = $(book.signed and "absolute(y)" or "y");
    uint32_t rank = 0;
    //% for _, bound in ipairs(book.bounds) do
    rank += at >= $(f32(bound));
    //% end
    //% else
    const float at = least(absolute(y), $(f32(book.top)));
    const uint32_t u = bits_of(at) - $(127 - float.bias << 23);
    uint32_t rank = (u + $((1 << 22 - float.mantissa) - 1) + (u >> $(23 - float.mantissa) & 1u))
                    >> $(23 - float.mantissa);
    if (at < $(f32(2.0 ^ (1 - float.bias))))
        rank = (uint32_t)(int32_t)nearest_even(
            at * $(f32(2.0 ^ (float.bias + float.mantissa - 1))));
    //% end
    //% if book.signed then
    rank |= bits_of(y) >> 31 << $(book.bits - 1);
    //% end
    return rank;
}

//% end
// The scale that the fit finds.
INLINE float $(s "wanted_scale")($(codec.stat_parameters))
{
    enum { group_size = $(codec.group_size) };
    const float top = $(f32(book.top)), octave = $(f32(book.octave));
    const float first_level = $(f32(book.values[1]));
    (void)top;
    (void)octave;
    (void)first_level;
    return $(fit.wanted);
}

// Returns the inverse of the scale as it is stored.
INLINE float $(s "store_scale")($(s "pair")* pair, float wanted)
{
    $(s "grid") grid = { 0.0f, 0.0f };
    uint32_t scale_code;
    float scale;
    $(meta.store_clipped)
    pair->scale_code = scale_code;
    pair->zero_code = 0;
    pair->scale = scale;
    return grid.inverse;
}

// Fits a group.
INLINE $(s "grid") $(s "fit_grid")($(s "pair")* pair, int flag, $(codec.stat_parameters))
{
    $(s "grid") grid = { 0.0f, 0.0f };
    const float wanted = $(s "wanted_scale")($(codec.stat_names));
    (void)flag;
    grid.inverse = $(s "store_scale")(pair, wanted);
    //% if fit.unrounded then
    grid.inverse = absolute(wanted) > 0x1p-126f ? 1.0f / wanted : 0.0f;
    //% end
    return grid;
}
//% if codec.refit then

// Sums over the levels of a group's codes.
typedef struct $(s "level_sums") {
    //% for _, one in ipairs(codec.refit) do
    float $(one.name);
    //% end
} $(s "level_sums");

INLINE $(s "level_sums") $(s "no_level_sums")(void)
{
    const $(s "level_sums") none = { 0.0f };
    return none;
}

// A value of the group joins them.
INLINE void $(s "add_level")($(s "level_sums")* to, $(s "grid") grid, float x)
{
    const float near = clamp(x, -0x1p36f, 0x1p36f);
    const float level = $(s "level_of")($(s "code_of_level")(x * grid.inverse));
    (void)near;
    //% for _, one in ipairs(codec.refit) do
    to->$(one.name) += $(one.term);
    //% end
}

// The scale that is stored once they are known.
INLINE void $(s "end_refit")($(s "pair")* pair, $(s "level_sums") of, $(codec.stat_parameters))
{
    const float scale = pair->scale, wanted = $(s "wanted_scale")($(codec.stat_names));
    //% for _, one in ipairs(codec.refit) do
    const float $(one.name) = of.$(one.name);
    //% end
    (void)scale;
    (void)wanted;
    (void)$(s "store_scale")(pair, $(fit.again));
}

// All of it for a group x.
INLINE void $(s "refit")($(s "pair")* pair, $(s "grid") grid, const float* x, int stride,
                    $(codec.stat_parameters))
{
    $(s "level_sums") sums = $(s "no_level_sums")();
    for (int i = 0; i < $(codec.group_size); ++i)
        $(s "add_level")(&sums, grid, x[i * stride]);
    $(s "end_refit")(pair, sums, $(codec.stat_names));
}
//% end
//% end
