// feedback.c -- rows of the window become codes with feedback: gen/parts/feedback.lua defines it.
//
//   y, e   [dim, room]  f32, channels in order, tokens side by side: values and errors
//   codes  [dim, room]  u16
//
// Sums run over channels, tokens are lanes: dim^2 / 2 multiply-adds a token, and dim^2 a sweep.
//% local fit = codec.parts.fit
//% local along = codec.axis == "per_channel"
//% local room = along and (codec.group_size + isa.lanes - 1) // isa.lanes * isa.lanes or 32
//% local wide = room % (2 * isa.lanes) == 0 and 2 or 1
//% local zeros = codec.zero_bytes > 0

enum { $(s "room") = $(room) };

typedef struct $(s "feedback") {
    LINE float    y[$(s "dim")][$(s "room")], e[$(s "dim")][$(s "room")];
    LINE uint16_t codes[$(s "dim")][$(s "room")];
    int           order[$(s "dim")];
    //% if not along then
    LINE float scale[$(s "dim") / $(s "group_size")][$(s "room")];
    LINE float offset[$(s "dim") / $(s "group_size")][$(s "room")];
    LINE float inverse[$(s "dim") / $(s "group_size")][$(s "room")];
    //% end
} $(s "feedback");

// sum [room] of row[i] times error i, i < end, which is a multiple of 4.
static NOINLINE void $(s "add_errors")(const float* row, const $(s "feedback")* f, int end,
                                  float* sum)
{
    for (int at = 0; at < $(s "room"); at += $(wide) * lanes) {
        //% for k = 0, 3 do
        //% for v = 0, wide - 1 do
        vf $("s_" .. k .. "_" .. v) = repeat(0.0f);
        //% end
        //% end
        for (int i = 0; i < end; i += 4) {
            const float* e = &f->e[i][at];
            //% for k = 0, 3 do
            const vf $("c_" .. k) = repeat(row[i + $(k)]);
            //% for v = 0, wide - 1 do
            //% local name = "s_" .. k .. "_" .. v
            $(name) = mul_add($("c_" .. k), load(e + $(k) * $(s "room") + $(v) * lanes), $(name));
            //% end
            //% end
        }
        //% for v = 0, wide - 1 do
        store(sum + at + $(v) * lanes, ($("s_0_" .. v) + $("s_1_" .. v))
                                       + ($("s_2_" .. v) + $("s_3_" .. v)));
        //% end
    }
}

//% if not codec.path then
// Codes of t [room], and what they decode to.
INLINE void $(s "round_lanes")(const float* t, vf scale, vf offset, vf inverse, uint16_t* q,
                          float* back)
{
    const float zero_point = 0.0f;
    const vf code_max = repeat($(codec.code_max).0f), zero = repeat(0.0f);
    vf y = (load(t) - offset) * inverse;
    y = select(y > zero, y, zero);
    y = select(y < code_max, y, code_max);
    const vf code = $(codec.parts.round.code);
    *(vh_at*)q = __builtin_convertvector(__builtin_convertvector(code, vi), vh);
    store(back, scale * code + offset);
}

//% end
#include "fit_group.h"

// Rows [count] of the window, transformed, as columns in order.
static void $(s "load_columns")(const kvl__encode_args* a, int first, int count, $(s "feedback")* f)
{
    //% if not codec.path then
    const float* order = a->tables + $(codec.table_at("feedback_order"));
    //% end
    float x[8 * $(s "dim")];
    __builtin_memset(f->y, 0, sizeof f->y);
    __builtin_memset(f->e, 0, sizeof f->e);
    //% if codec.path then
    for (int j = 0; j < $(s "dim"); ++j) f->order[j] = j;
    //% else
    for (int j = 0; j < $(s "dim"); ++j) f->order[j] = (int)order[j];
    //% end
    for (int r = 0; r < count; r += 8) {
        const int num = count - r < 8 ? count - r : 8;
        const uint16_t* rows = a->rows + (first + r) * a->row_stride;
        //% if codec.dense then
        $(s "load_rows")(rows, a->row_stride, num, a->tables, x);
        //% else
        for (int i = 0; i < num; ++i)
            $(s "load_row")(rows + i * a->row_stride, a->tables, x + i * $(s "dim"));
        //% end
        for (int j = 0; j < $(s "dim"); ++j)
            for (int i = 0; i < num; ++i) f->y[j][r + i] = x[i * $(s "dim") + f->order[j]];
    }
}

static void $(s "put_columns")(const kvl__encode_args* a, int first, int count,
                          const $(s "feedback")* f)
{
    for (int t = 0; t < count; ++t) {
        uint16_t q[$(s "dim")];
        for (int j = 0; j < $(s "dim"); ++j) q[f->order[j]] = f->codes[j][t];
        $(s "put_row")(a->page, a->first_row + first + t, q);
    }
}

//% if along then
INLINE float $(s "sum_of_squares")(const float* x)
{
    float s[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    for (int t = 0; t < $(s "group_size"); ++t) s[t % 4] += x[t] * x[t];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

// One channel's tokens: t = y + g is fitted and rounded; where that is better than the errors that
// are there, or nothing is there yet, it takes their place.
static void $(s "round_channel")(unsigned char* page, int group, int j, int is_first,
                            const float* g, $(s "feedback")* f)
{
    LINE float t[$(s "room")], back[$(s "room")], was[$(s "room")], now[$(s "room")];
    LINE uint16_t q[$(s "room")];
    unsigned char* scale_at = page + $(s "scales_at") + group * (int64_t)$(codec.scale_bytes);
    unsigned char* zero_at = page + $(s "zeros_at") + group * (int64_t)$(codec.zero_bytes);
    unsigned char old[4];
    __builtin_memcpy(old, scale_at, $(codec.scale_bytes));
    __builtin_memcpy(old + 2, zero_at, $(codec.zero_bytes));
    for (int at = 0; at < $(s "room"); at += lanes)
        store(t + at, load(&f->y[j][at]) + load(g + at));
    //% if codec.path then
    LINE uint16_t levels[$(s "room")] = { 0 };
    const $(s "grid") grid = $(s "fit_group")(page, group, t, q, levels);
    const vf scale = repeat($(s "read_scale")(page, group));
    for (int at = 0; at < $(s "room"); at += lanes) {
        const vi level = __builtin_convertvector(*(const vh_at*)(levels + at), vi);
        store(back + at, scale * __builtin_convertvector(level, vf) + grid.offset);
    //% else
    const $(s "grid") grid = $(s "fit_group")(page, group, t);
    const vf scale = repeat($(s "read_scale")(page, group));
    for (int at = 0; at < $(s "room"); at += lanes) {
        $(s "round_lanes")(t + at, scale, repeat(grid.offset), repeat(grid.inverse), q + at,
                      back + at);
    //% end
        store(was + at, load(&f->e[j][at]) + load(g + at));
        store(now + at, load(t + at) - load(back + at));
    }
    if (!is_first && !($(s "sum_of_squares")(now) < $(s "sum_of_squares")(was))) {
        __builtin_memcpy(scale_at, old, $(codec.scale_bytes));
        __builtin_memcpy(zero_at, old + 2, $(codec.zero_bytes));
        return;
    }
    for (int at = 0; at < $(s "room"); at += lanes) {
        store(&f->e[j][at], load(&f->y[j][at]) - load(back + at));
        *(vh_at*)&f->codes[j][at] = *(const vh_at*)(q + at);
    }
}

static void $(s "encode_rows")(const kvl__encode_args* a)
{
    enum { group_size = $(codec.group_size) };
    const float* factor = a->tables + $(codec.table_at("feedback_factor"));
    const float* price = a->tables + $(codec.table_at("feedback_price"));
    $(s "feedback") f;
    LINE float g[$(s "room")];
    for (int r = 0; r < a->num_rows; r += group_size) {
        const int row = a->first_row + r;
        $(s "load_columns")(a, r, group_size, &f);
        for (int pass = 0; pass <= $(codec.sweeps); ++pass) {
            for (int j = 0; j < $(s "dim"); ++j) {
                const int end = pass ? $(s "dim") : (j + 3) / 4 * 4;
                const int group = $(s "group")($(codec.word_lane("row", "f.order[j]")));
                $(s "add_errors")((pass ? price : factor) + j * $(s "dim"), &f, end, g);
                $(s "round_channel")(a->page, group, j, pass == 0, g, &f);
            }
        }
        $(s "put_columns")(a, r, group_size, &f);
    }
}
//% else
// Fits the groups of each row to its values before any is rounded.
static void $(s "fit_rows")(const kvl__encode_args* a, int first, int count, $(s "feedback")* f)
{
    float x[$(s "dim")];
    __builtin_memset(f->scale, 0, sizeof f->scale);
    __builtin_memset(f->offset, 0, sizeof f->offset);
    __builtin_memset(f->inverse, 0, sizeof f->inverse);
    for (int t = 0; t < count; ++t) {
        const int row = a->first_row + first + t;
        for (int j = 0; j < $(s "dim"); ++j) x[f->order[j]] = f->y[j][t];
        for (int i = 0; i < $(s "dim"); i += $(s "group_size")) {
            const int group = $(s "group")($(codec.word_lane("row", "i")));
            //% if codec.path then
            uint16_t codes[$(s "group_size")], levels[$(s "group_size")];
            //% end
            //% local more = codec.path and ", codes, levels" or ""
            const $(s "grid") grid = $(s "fit_group")(a->page, group, x + $("i" .. more));
            f->scale[i / $(s "group_size")][t] = $(s "read_scale")(a->page, group);
            f->offset[i / $(s "group_size")][t] = grid.offset;
            f->inverse[i / $(s "group_size")][t] = grid.inverse;
        }
    }
}

//% if codec.path then
#include "guided.c"
static void $(s "encode_rows")(const kvl__encode_args* a)
{
    $(s "feedback") f;
    for (int r = 0; r < a->num_rows; r += $(s "room")) {
        const int count = a->num_rows - r < $(s "room") ? a->num_rows - r : $(s "room");
        $(s "load_columns")(a, r, count, &f);
        $(s "fit_rows")(a, r, count, &f);
        for (int first = 0; first < $(s "dim"); first += $(s "group_size"))
            $(s "guide_rows")(&f, first, count, a->tables);
        $(s "put_columns")(a, r, count, &f);
    }
}
//% else
static void $(s "encode_rows")(const kvl__encode_args* a)
{
    const float* factor = a->tables + $(codec.table_at("feedback_factor"));
    const float* price = a->tables + $(codec.table_at("feedback_price"));
    $(s "feedback") f;
    LINE float g[$(s "room")], back[$(s "room")];
    for (int r = 0; r < a->num_rows; r += $(s "room")) {
        const int count = a->num_rows - r < $(s "room") ? a->num_rows - r : $(s "room");
        $(s "load_columns")(a, r, count, &f);
        $(s "fit_rows")(a, r, count, &f);
        for (int pass = 0; pass <= $(codec.sweeps); ++pass) {
            for (int j = 0; j < $(s "dim"); ++j) {
                const int end = pass ? $(s "dim") : (j + 3) / 4 * 4;
                const int group = f.order[j] / $(s "group_size");
                $(s "add_errors")((pass ? price : factor) + j * $(s "dim"), &f, end, g);
                for (int at = 0; at < $(s "room"); at += lanes) {
                    store(g + at, load(&f.y[j][at]) + load(g + at));
                    $(s "round_lanes")(g + at, load(&f.scale[group][at]),
                                  load(&f.offset[group][at]), load(&f.inverse[group][at]),
                                  &f.codes[j][at], back + at);
                    store(&f.e[j][at], load(&f.y[j][at]) - load(back + at));
                }
            }
        }
        $(s "put_columns")(a, r, count, &f);
    }
}
//% end
//% end
