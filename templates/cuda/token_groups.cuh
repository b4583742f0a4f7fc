// token_groups.cuh -- groups along the channels of a row: $(codec.title) are fitted and rounded.

//% local fit = codec.parts.fit
//% if codec.searches then
#include "fit_lanes.cuh"

//% end
//% if not codec.searches and not codec.calibrated_book then
// The grid of a group whose values lie side by side.
INLINE $(s "grid") $(s "fit_values")($(s "pair")* pair, const float* of)
{
    enum { group_size = $(codec.group_size) };
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
        const float x = of[i];
        //% for _, stat in ipairs(fit.stats) do
        $(stat.name) = $(stat.next);
        //% end
    }
    const $(s "grid") grid = $(s "fit_grid")(pair, -1, $(codec.stat_names));
    //% if codec.refit then
    $(s "refit")(pair, grid, of, 1, $(codec.stat_names));
    //% end
    return grid;
}

//% end
//% if codec.plane then
// Rows x [16, row_stride] in units of their scales become the halves of numbers of points.  A
// thread has two channels of one row.
INLINE void $(s "put_numbers")(int row_stride, float* x)
{
    __syncthreads();
    for (int item = threadIdx.x; item < 8 * $(s "dim"); item += cta_threads) {
        float* of = x + item % 16 * row_stride + item / 16 * 2;
        const uint32_t number = $(s "number_of")(of[0], of[1]);
        of[0] = float_of(number & $((1 << codec.bits) - 1));
        of[1] = float_of(number >> $(codec.bits));
    }
}

//% end
// Of the rows [first, end) of a tile, x [16, row_stride], metadata takes its place in the page, and
// values become bits of what is stored as codes.
INLINE void $(s "encode_groups")(unsigned char* page, const float* record, int tile, int first,
                            int end, int row_stride, float* x)
{
    enum { group_size = $(codec.group_size), groups = $(s "dim") / group_size };
    (void)record;
    //% if codec.searches then
    // Eight threads have one group of one row.
#pragma unroll 1
    for (int item = threadIdx.x / 8; item < 16 * groups; item += cta_threads / 8) {
        const int row = tile * 16 + item % 16, channel = item / 16 * group_size;
        float* of = x + item % 16 * row_stride + channel;
        $(s "pair") pair;
        const $(s "grid") grid = $(s "fit_lanes")(&pair, of);
        const int group = $(s "group")($(codec.word_lane("row", "channel")));
        if (row >= first && row < end && threadIdx.x % 8 == 0)
            $(s "put_pair")(page, group, pair.scale_code, pair.zero_code);
        for (int i = threadIdx.x % 8; i < group_size; i += 8)
            of[i] = float_of($(s "code_of")(of[i], grid));
    }
    //% else
    //% if codec.widths then
    __shared__ unsigned char codes[16 * $(s "dim")];
    __shared__ int begins[$(s "dim") + 1];
    $(s "find_begins")(record, begins);
    //% end
    // A thread has one group of one row.
    for (int item = threadIdx.x; item < 16 * groups; item += cta_threads) {
        const int row = tile * 16 + item % 16, channel = item / 16 * group_size;
        if (row < first || row >= end) continue;
        float* of = x + item % 16 * row_stride + channel;
        //% if codec.calibrated_book then
        for (int i = 0; i < group_size; ++i) of[i] = float_of($(s "code_of")(of[i], record));
        //% else
        const int group = $(s "group")($(codec.word_lane("row", "channel")));
        $(s "pair") pair;
        const $(s "grid") grid = $(s "fit_values")(&pair, of);
        $(s "put_pair")(page, group, pair.scale_code, pair.zero_code);
        //% if codec.widths then
        for (int i = 0; i < group_size; ++i)
            codes[item % 16 * $(s "dim") + channel + i] = (unsigned char)$(s "code_of_width")(
                of[i] * grid.inverse, begins[channel + i + 1] - begins[channel + i]);
        //% elseif codec.plane then
        for (int i = 0; i < group_size; ++i) of[i] *= grid.inverse;
        //% else
        for (int i = 0; i < group_size; ++i) of[i] = float_of($(s "code_of")(of[i], grid));
        //% end
        //% end
    }
    //% if codec.plane then
    $(s "put_numbers")(row_stride, x);
    //% end
    //% if codec.widths then
    __syncthreads();
    $(s "join_codes")(codes, begins, most_of(first - tile * 16, 0), least_of(end - tile * 16, 16),
                 row_stride, x);
    //% end
    //% end
}
