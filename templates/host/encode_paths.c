// encode_paths.c -- rows of the window become codes that are paths: gen/parts/trellis.lua.
//
// $(codec.searches and "A group at a time, on eight grids." or "Eight groups at a time.")
//% local fit = codec.parts.fit
//% local along = codec.axis == "per_channel"
//% local rows = along and codec.group_size or 8

// Rows [count] of the window in their basis.
static void $(s "load_tile")(const kvl__encode_args* a, int first, int count, float* x)
{
    const uint16_t* from = a->rows + first * a->row_stride;
    //% if codec.dense then
    $(s "load_rows")(from, a->row_stride, count, a->tables, x);
    //% else
    for (int i = 0; i < count; ++i)
        $(s "load_row")(from + i * a->row_stride, a->tables, x + i * $(s "dim"));
    //% end
}

//% if not codec.searches then
// Fits up to eight groups, values `stride` apart, and finds their paths: q takes a code from place
// [group][value], at x's own distance from the tile.
static NOINLINE void $(s "encode_eight")(unsigned char* page, const int* groups,
                                    const float* const* x, uint16_t* const* q)
{
    //% local stride = along and s "dim" or "1"
    $(s "paths") p;
    for (int lane = 0; lane < 8; ++lane) {
        const float* of = x[lane];
        //% for _, stat in ipairs(fit.stats) do
        float $(stat.name);
        //% end
        {
            const float x = of[0];
            //% for _, stat in ipairs(fit.stats) do
            $(stat.name) = $(stat.first);
            //% end
        }
        for (int i = 1; i < $(s "path_len"); ++i) {
            const float x = of[i * $(stride)];
            //% for _, stat in ipairs(fit.stats) do
            $(stat.name) = $(stat.next);
            //% end
        }
        const $(s "grid") grid = $(s "store_grid")(page, groups[lane], $(codec.stat_names));
        for (int i = 0; i < $(s "path_len"); ++i)
            p.y[i][lane] = (of[i * $(stride)] - grid.offset) * grid.inverse;
    }
    $(s "walk8")(&p);
    for (int lane = 0; lane < 8; ++lane)
        for (int i = 0; i < $(s "path_len"); ++i)
            q[lane][i * $(stride)] = (uint16_t)p.codes[i][lane];
}
//% end

static void $(s "encode_rows")(const kvl__encode_args* a)
{
    enum { tile = $(rows), group_size = $(codec.group_size) };
    enum { each = $(along and s "dim" or codec.head_dim // codec.group_size) };    // a row, or tile
    float x[tile * $(s "dim")];
    uint16_t q[tile * $(s "dim")];
    for (int r = 0; r < a->num_rows; r += tile) {
        const int count = a->num_rows - r < tile ? a->num_rows - r : tile;
        $(s "load_tile")(a, r, count, x);
        //% local at = along and "n" or s "dim" .. " * (n / each) + n % each * group_size"
        const int num_groups = $(along and "each" or "each * count");
        //% local row = along and "a->first_row + r" or "a->first_row + r + n / each"
        //% local channel = along and "n" or "n % each * group_size"
        //% if codec.searches then
        for (int n = 0; n < num_groups; ++n) {
            const int group = $(s "group")($(codec.word_lane(row, channel)));
            const float* of = x + $(at);
            //% local stride = along and s "dim" or "1"
            uint16_t codes[group_size], levels[group_size];
            //% for _, stat in ipairs(fit.stats) do
            float $(stat.name);
            //% end
            {
                const float x = of[0];
                //% for _, stat in ipairs(fit.stats) do
                $(stat.name) = $(stat.first);
                //% end
            }
            for (int i = 1; i < group_size; ++i) {
                const float x = of[i * $(stride)];
                //% for _, stat in ipairs(fit.stats) do
                $(stat.name) = $(stat.next);
                //% end
            }
            (void)$(codec.fit_call("a->page", "group", "of", stride, codec.stat_names));
            for (int i = 0; i < group_size; ++i) q[$(at) + i * $(stride)] = codes[i];
        }
        //% else
        for (int first = 0; first < num_groups; first += 8) {
            int groups[8];
            const float* from[8];
            uint16_t* to[8];
            for (int lane = 0; lane < 8; ++lane) {
                const int n = first + lane < num_groups ? first + lane : num_groups - 1;
                groups[lane] = $(s "group")($(codec.word_lane(row, channel)));
                from[lane] = x + $(at);
                to[lane] = q + $(at);
            }
            $(s "encode_eight")(a->page, groups, from, to);
        }
        //% end
        for (int i = 0; i < count; ++i)
            $(s "put_row")(a->page, a->first_row + r + i, q + i * $(s "dim"));
    }
}
