// encode_rows.c -- rows of the window become codes of a page: transform, fit, round, pack.
//
// Nothing in here may be fused or reordered where it decides a code: every target gets the same
// bits.

//% if codec.clips_row then
// Brings x [dim] to the bound +-b, b the magnitude that $(codec.clips_row) of them are not beyond:
// the greatest b, bit by bit, that at most as many are below.
static void $(s "clip_row")(float* x)
{
    enum { rank = $(codec.clips_row) };
    int32_t bound = 0;
    for (int bit = 30; bit >= 0; --bit) {
        const int32_t trial = bound | (int32_t)(1u << bit);
        vi below = { 0 };
        for (int i = 0; i < $(s "dim"); i += lanes)
            below -= ((vi)load(x + i) & 0x7fffffff) < trial;
        if (sum_lanes(__builtin_convertvector(below, vf)) <= (float)rank) bound = trial;
    }
    const vf hi = repeat(float_of((uint32_t)bound)), lo = -hi;
    for (int i = 0; i < $(s "dim"); i += lanes) {
        const vf y = select(load(x + i) < lo, lo, load(x + i));
        store(x + i, select(y > hi, hi, y));
    }
}

//% end
// A row without its shift.
INLINE void $(s "take_row")(const uint16_t* row, const float* tables, float* x)
{
    for (int i = 0; i < $(s "dim"); i += lanes)
        store(x + i, $("load_" .. config.rows)((const unsigned char*)(row + i)));
    //% if codec.shift then
    const float* shift = tables + $(codec.table_at(codec.shift.subtract));
    for (int i = 0; i < $(s "dim"); i += lanes) store(x + i, load(x + i) - load(shift + i));
    //% else
    (void)tables;
    //% end
}

//% if codec.norms then
// The norm of a row as it is stored: gen/parts/token_norm.lua.
INLINE uint32_t $(s "norm_code")(const float* x)
{
    float sum = 0.0f;
    for (int i = 0; i < $(s "dim"); ++i) sum += squared(clamp(x[i], -0x1p57f, 0x1p57f));
    const float norm = square_root(sum / (float)$(s "dim"));
    const uint32_t code = e5m3_of_f32(norm);
    return norm > 0.0f && code == 0 ? 1 : code;
}

static void $(s "store_norms")(const kvl__encode_args* a)
{
    for (int32_t r = 0; r < a->num_rows; ++r) {
        float x[$(s "dim")];
        $(s "take_row")(a->rows + r * a->row_stride, a->tables, x);
        a->page[$(codec.layout.slots_at) + a->first_row + r] =
            (unsigned char)$(s "norm_code")(x);
    }
}

//% end
INLINE void $(s "load_row")(const uint16_t* row, const float* tables, float* x)
{
    $(s "take_row")(row, tables, x);
    //% if codec.norms then
    const float norm = f32_of_e5m3($(s "norm_code")(x));
    for (int i = 0; norm > 0.0f && i < $(s "dim"); ++i) x[i] /= norm;
    //% end
    //% if codec.clamps then
    const float bound = $(codec.clamp_bound);
    for (int i = 0; i < $(s "dim"); ++i) x[i] = clamp(x[i], -bound, bound);
    //% end
    //% if not codec.dense then
    $(s "transform")(x, tables);
    //% if codec.base then
    $(s "divide")(x, tables);
    //% end
    //% if codec.clips_row then
    $(s "clip_row")(x);
    //% end
    //% end
}

//% if codec.dense then
// Rows [count, dim] in their basis, $(dense_rows) at a time.
static void $(s "load_rows")(const uint16_t* rows, int64_t row_stride, int count,
                        const float* tables, float* x)
{
    enum { tile = $(dense_rows) };
    const float* forward = tables + $(codec.table_at(codec.dense.forward));
    float plain[tile * $(s "dim")];
    for (int first = 0; first < count; first += tile) {
        const int num = count - first < tile ? count - first : tile;
        for (int i = 0; i < num; ++i)
            $(s "load_row")(rows + (first + i) * row_stride, tables, plain + i * $(s "dim"));
        $(s "multiply")(plain, num, forward, x + first * $(s "dim"));
        //% if codec.base then
        for (int i = 0; i < num; ++i) $(s "divide")(x + (first + i) * $(s "dim"), tables);
        //% end
        //% if codec.clips_row then
        for (int i = 0; i < num; ++i) $(s "clip_row")(x + (first + i) * $(s "dim"));
        //% end
    }
}
//% end

//% if codec.calibrated_book then
// Codes q [dim] of a row: as many bounds between levels as its values are not below.
static void $(s "round_to_book")(const float* x, const float* tables, uint16_t* q)
{
    const float* book = tables + $(codec.table_at(codec.calibrated_book));
    for (int i = 0; i < $(s "dim"); ++i) {
        q[i] = 0;
        for (int k = 0; k < $(codec.code_max); ++k)
            q[i] = (uint16_t)(q[i] + (x[i] >= 0.5f * (book[k] + book[k + 1])));
    }
}

//% end
//% local fit = codec.parts.fit
//% if codec.flagged then
#include "choose_rows.c"
//% elseif codec.raw ~= "none" then
static void $(s "encode_rows")(const kvl__encode_args* a)
{
    for (int32_t r = 0; r < a->num_rows; ++r) {
        float x[$(s "dim")];
        uint16_t q[$(s "dim")];
        //% if codec.raw == config.rows and codec.is_plain then
        (void)x;
        for (int i = 0; i < $(s "dim"); ++i) q[i] = a->rows[r * a->row_stride + i];
        //% else
        //% if codec.dense then
        $(s "load_rows")(a->rows + r * a->row_stride, a->row_stride, 1, a->tables, x);
        //% else
        $(s "load_row")(a->rows + r * a->row_stride, a->tables, x);
        //% end
        for (int i = 0; i < $(s "dim"); ++i) q[i] = (uint16_t)$(codec.raw .. "_of_f32")(x[i]);
        //% end
        $(s "put_row")(a->page, a->first_row + r, q);
    }
}
//% elseif codec.feedback then
#include "feedback.c"
//% elseif codec.path then
#include "encode_paths.c"
//% elseif codec.axis == "per_token" then
//% if not codec.is_split then
#include "encode_row.h"

//% end
static void $(s "encode_rows")(const kvl__encode_args* a)
{
    //% if codec.dense then
    float tile[$(dense_rows) * $(s "dim")];
    //% end
    for (int32_t r = 0; r < a->num_rows; ++r) {
        //% if codec.dense then
        const int left = a->num_rows - r, ahead = left < $(dense_rows) ? left : $(dense_rows);
        if (r % $(dense_rows) == 0)
            $(s "load_rows")(a->rows + r * a->row_stride, a->row_stride, ahead, a->tables, tile);
        const float* x = tile + r % $(dense_rows) * $(s "dim");
        //% else
        float x[$(s "dim")];
        $(s "load_row")(a->rows + r * a->row_stride, a->tables, x);
        //% end
        //% if codec.slots > 0 then
        $(s "fill_slots")(a->rows + r * a->row_stride, x, a->page, a->first_row + r);
        //% end
        $(s "encode_row")(x, a->tables, a->page, a->first_row + r);
    }
}
//% else
// Groups along tokens: group_size rows at once, each channel with its own statistics.
static void $(s "encode_rows")(const kvl__encode_args* a)
{
    enum { group_size = $(codec.group_size) };
    for (int32_t r = 0; r < a->num_rows; r += group_size) {
        float rows[group_size][$(s "dim")];
        //% for _, stat in ipairs(fit.stats) do
        float $(stat.name .. "s")[$(s "dim")];
        //% end
        //% if codec.dense then
        $(s "load_rows")(a->rows + r * a->row_stride, a->row_stride, group_size, a->tables,
                    rows[0]);
        //% else
        for (int t = 0; t < group_size; ++t)
            $(s "load_row")(a->rows + (r + t) * a->row_stride, a->tables, rows[t]);
        //% end
        for (int i = 0; i < $(s "dim"); ++i) {
            const float x = rows[0][i];
            //% for _, stat in ipairs(fit.stats) do
            $(stat.name .. "s")[i] = $(stat.first);
            //% end
        }
        for (int t = 1; t < group_size; ++t) {
            for (int i = 0; i < $(s "dim"); ++i) {
                const float x = rows[t][i];
                //% for _, stat in ipairs(fit.stats) do
                const float $(stat.name) = $(stat.name .. "s")[i];
                $(stat.name .. "s")[i] = $(stat.next);
                //% end
            }
        }
        float offset[$(s "dim")], inverse[$(s "dim")];
        //% if codec.promoted > 0 then
        unsigned char* beside = $(s "beside")(a->page, a->first_row + r);
        __builtin_memset(beside, 0, $(codec.layout.extra_bytes));
        $(s "find_strong")(rows[0], beside);
        for (int n = 0; n < $(s "promoted"); ++n)
            his[beside[n]] = $(s "strong_end")(los[beside[n]], his[beside[n]]);
        //% end
        for (int i = 0; i < $(s "dim"); ++i) {
            const int row = a->first_row + r;
            const int group = $(s "group")($(codec.word_lane("row", "i")));
            //% local stride = s "dim"
            const $(s "grid") grid =
                $(codec.fit_call("a->page", "group", "rows[0] + i", stride, codec.stat_items));
            offset[i] = grid.offset;
            inverse[i] = grid.inverse;
        }
        for (int t = 0; t < group_size; ++t) {
            uint16_t q[$(s "dim")];
            $(s "round_row")(rows[t], offset, inverse, q);
            //% if codec.promoted > 0 then
            $(s "promote_row")(rows[t], offset, inverse, t, beside, q);
            //% end
            $(s "put_row")(a->page, a->first_row + r + t, q);
        }
    }
}
//% end
//% if codec.norms then

static void $(s "encode_normed")(const kvl__encode_args* a)
{
    $(s "store_norms")(a);
    $(s "encode_rows")(a);
}
//% end
