// feedback.cuh -- rows become codes with feedback: gen/parts/feedback.lua defines it.
//
// $(codec.room) rows at a time are in shared memory as columns, in the order of channels.  Four
// threads have a token, each one part of its sums: dim^2 / 2 multiply-adds a token, and dim^2 a
// sweep.
//% local along = codec.axis == "per_channel"
//% local groups = along and codec.head_dim or codec.head_dim // codec.group_size * codec.room
//% local path = codec.path
//% local step = codec.step_type

enum { $(s "room") = $(codec.room) };

//% if path and not along then
#include "guided.cuh"

//% end
//% if not path then
// What is kept of a value is its code.
INLINE uint32_t $(s "level_in")(uint32_t step) { return step; }
INLINE uint32_t $(s "code_in")(uint32_t step) { return step; }

//% end

typedef struct $(s "columns") {
    float    y[$(codec.column_floats)];            // four channels side by side; at last, rows
    //% if codec.keeps_errors then
    float    e[$(codec.column_floats)];
    //% end
    float    tile[$(codec.tile_floats)];           // rows; then codes u8 [dim, room]
    float    scale[$(groups)], offset[$(groups)];
    //% if along then
    float    t[$(codec.room)], was[$(codec.room)], now[$(codec.room)];
    //% else
    float    inverse[$(groups)];
    //% end
    uint16_t order[$(codec.head_dim)];
    //% if path and along then
    $(step)  steps[$(32 // codec.team)][$(2 * codec.room)];
    //% elseif path then
    $(s "room_of_ways") ways;
    //% end
} $(s "columns");

// Channel j, in order, of token t: the four parts of a sum are in neighbouring words.
INLINE int $(s "column_at")(int j, int t) { return (j / 4 * ($(s "room") + 1) + t) * 4 + j % 4; }

INLINE unsigned char* $(s "code_at")($(s "columns")* c, int j, int t)
{
    return (unsigned char*)c->tile + j * $(s "room") + t;
}

// Of channel j and token t among the scales and offsets.
INLINE int $(s "grid_at")(const $(s "columns")& c, int j, int t)
{
    //% if along then
    return j;
    //% else
    return c.order[j] / $(s "group_size") * $(s "room") + t;
    //% end
}

INLINE float $(s "error_at")($(s "columns")* c, int j, int t)
{
    //% if codec.keeps_errors then
    return c->e[$(s "column_at")(j, t)];
    //% else
    const int grid = $(s "grid_at")(*c, j, t);
    return c->y[$(s "column_at")(j, t)]
           - (c->scale[grid] * to_float($(s "level_in")(*$(s "code_at")(c, j, t)))
              + c->offset[grid]);
    //% end
}

// A code, or the step of a path, takes its place.
INLINE void $(s "set_code")($(s "columns")* c, int j, int t, uint32_t code, float scale,
                       float offset)
{
    *$(s "code_at")(c, j, t) = (unsigned char)code;
    //% if codec.keeps_errors then
    const int at = $(s "column_at")(j, t);
    c->e[at] = c->y[at] - (scale * to_float($(s "level_in")(code)) + offset);
    //% else
    (void)scale;
    (void)offset;
    //% end
}

//% if not along and not (path and codec.searches) then
#include "fit_lanes.cuh"

// Fits the groups of rows [from, from + 8) before any value is rounded.
INLINE void $(s "fit_rows")(const $(s "unit")& u, int from, int at, int first, int end,
                       $(s "columns")* c)
{
    enum { groups = $(s "dim") / $(s "group_size") };
#pragma unroll 1
    for (int item = threadIdx.x / 8; item < 8 * groups; item += cta_threads / 8) {
        const int row = item % 8, channel = item / 8 * $(s "group_size");
        $(s "pair") pair;
        const float* x = c->tile + row * $(s "row_stride") + channel;
        const $(s "grid") grid = $(s "fit_lanes")(&pair, x);
        if (threadIdx.x % 8 != 0) continue;
        const int to = item / 8 * $(s "room") + at + row, of = from + row;
        c->scale[to] = pair.scale;
        c->offset[to] = grid.offset;
        c->inverse[to] = grid.inverse;
        const int group = $(s "group")($(codec.word_lane("of", "channel")));
        if (of >= first && of < end)
            $(s "put_pair")(u.page, group, pair.scale_code, pair.zero_code);
    }
}

//% elseif not along then
// The same, by teams.
INLINE void $(s "fit_rows")(const $(s "unit")& u, int from, int at, int first, int end,
                       $(s "columns")* c)
{
    enum { groups = $(s "dim") / $(s "group_size"), teams = $(32 // codec.team) };
    const int team = threadIdx.x / $(s "team");
#pragma unroll 1
    for (int item = team; item < 8 * groups && team < teams; item += teams) {
        const int row = item % 8, channel = item / 8 * $(s "group_size");
        $(s "walk") w = $(s "walk_of")(c->tile + row * $(s "row_stride") + channel, 1,
                                  c->ways.steps[team]);
        $(s "pair") pair;
        $(s "grid") grid;
        $(s "fit_path")(&w, &pair, &grid);
        if (threadIdx.x % $(s "team") != 0) continue;
        const int to = item / 8 * $(s "room") + at + row, of = from + row;
        c->scale[to] = pair.scale;
        c->offset[to] = grid.offset;
        c->inverse[to] = grid.inverse;
        const int group = $(s "group")($(codec.word_lane("of", "channel")));
        if (of >= first && of < end)
            $(s "put_pair")(u.page, group, pair.scale_code, pair.zero_code);
    }
    __syncthreads();
}

//% end
// Rows from `row` on, of which [first, end) are read, as columns in order.
INLINE void $(s "load_columns")(const $(s "unit")& u, int row, int first, int end,
                           $(s "columns")* c)
{
    //% local order = path and "j" or ("u.record[%d + j]"):format(codec.table_at("feedback_order"))
    __syncthreads();
    for (int j = threadIdx.x; j < $(s "dim"); j += cta_threads)
        c->order[j] = (uint16_t)$(order);
#pragma unroll 1
    for (int at = 0; at < $(s "room"); at += 8) {
        $(s "load_rows")<8>(u, row + at, first, end, c->tile);
        //% if not along then
        $(s "fit_rows")(u, row + at, at, first, end, c);
        //% end
#pragma unroll 1
        for (int i = threadIdx.x; i < 8 * $(s "dim"); i += cta_threads) {
            const int j = i % $(s "dim"), of = i / $(s "dim");
            if (at + of < $(s "room"))
                c->y[$(s "column_at")(j, at + of)] = c->tile[of * $(s "row_stride") + c->order[j]];
        }
    }
    __syncthreads();
}

// The sum of row[i] times error i of a token, i < end, to the four threads that have it.
INLINE float $(s "sum_errors")($(s "columns")* c, const float* row, int end, int t)
{
    float s = 0.0f;
#pragma unroll 4
    for (int i = threadIdx.x % 4; i < end; i += 4) s = mul_add(row[i], $(s "error_at")(c, i, t), s);
    s += __shfl_xor_sync(0xffffffffu, s, 1);
    s += __shfl_xor_sync(0xffffffffu, s, 2);
    return s;
}

// The row of channel j in the table of a pass.
INLINE const float* $(s "prices_of")(const $(s "unit")& u, int pass, int j)
{
    return u.record + j * $(s "dim") + (pass ? $(codec.table_at("feedback_price"))
                                        : $(codec.table_at("feedback_factor")));
}

//% if along then
// Whether the squares of `now` sum up to less than those of `was`, each in four parts.  By a warp.
INLINE bool $(s "is_better")(const $(s "columns")& c)
{
    const float* x = threadIdx.x % 8 < 4 ? c.now : c.was;
    float s = 0.0f;
    for (int t = threadIdx.x % 4; t < $(s "room"); t += 4) s += x[t] * x[t];
    s += __shfl_xor_sync(0xffffffffu, s, 1);
    s += __shfl_xor_sync(0xffffffffu, s, 2);
    return __shfl_sync(0xffffffffu, s, 0) < __shfl_sync(0xffffffffu, s, 4);
}

// One channel's tokens, t of the columns, are fitted and rounded; where that is better than the
// errors that are there, or nothing is there yet, it takes their place.  By one warp.
INLINE void $(s "round_channel")(const $(s "unit")& u, int group, int j, bool is_first,
                            $(s "columns")* c)
{
    $(s "pair") pair;
    //% if path then
    // Each team finds the same path.
    $(s "grid") grid;
    $(s "walk") w = $(s "walk_of")(c->t, 1, c->steps[threadIdx.x / $(s "team")]);
    const $(step)* steps = $(s "fit_path")(&w, &pair, &grid);
    //% else
    float lo = c->t[0], hi = c->t[0];
    for (int t = threadIdx.x; t < $(s "room"); t += 32) {
        lo = least(c->t[t], lo);
        hi = most(c->t[t], hi);
    }
    lo = -warp_most(-lo) + 0.0f;
    hi = warp_most(hi) + 0.0f;
    $(s "grid") grid = $(s "fit_grid")(&pair, -1, lo, hi);
    //% if codec.searches then
    grid = $(s "search_lanes")(&pair, c->t, lo, hi, grid);
    //% end
    //% end
    //% local code = path and "(uint32_t)steps[t]" or s("code_of") .. "(c->t[t], grid)"
    if (!is_first) {
        for (int t = threadIdx.x; t < $(s "room"); t += 32) {
            const uint32_t level = $(s "level_in")($(code));
            c->now[t] = c->t[t] - (pair.scale * to_float(level) + grid.offset);
        }
        __syncwarp();
        if (!$(s "is_better")(*c)) return;
    }
    for (int t = threadIdx.x; t < $(s "room"); t += 32)
        $(s "set_code")(c, j, t, $(code), pair.scale, grid.offset);
    if (threadIdx.x == 0) {
        c->scale[j] = pair.scale;
        c->offset[j] = grid.offset;
        $(s "put_pair")(u.page, group, pair.scale_code, pair.zero_code);
    }
}

INLINE void $(s "round_columns")(const $(s "unit")& u, int row, $(s "columns")* c)
{
#pragma unroll 1
    for (int pass = 0; pass <= $(codec.sweeps); ++pass) {
#pragma unroll 1
        for (int j = 0; j < $(s "dim"); ++j) {
            const float* prices = $(s "prices_of")(u, pass, j);
#pragma unroll 1
            for (int t = threadIdx.x / 4; t < $((codec.room + 31) // 32 * 32); t += 32) {
                const int of = least_of(t, $(s "room") - 1);
                const float sum = $(s "sum_errors")(c, prices, pass ? $(s "dim") : j, of);
                if (threadIdx.x % 4 != 0 || t >= $(s "room")) continue;
                c->t[of] = c->y[$(s "column_at")(j, of)] + sum;
                if (pass) c->was[of] = $(s "error_at")(c, j, of) + sum;
            }
            __syncthreads();
            const int group = $(s "group")($(codec.word_lane("row", "c->order[j]")));
            if (threadIdx.x < 32) $(s "round_channel")(u, group, j, pass == 0, c);
            __syncthreads();
        }
    }
}
//% elseif path then
#include "ways.cuh"
//% else
// A token's threads have all of it: none waits for another's.
INLINE void $(s "round_columns")(const $(s "unit")& u, $(s "columns")* c)
{
    const int t = threadIdx.x / 4;
#pragma unroll 1
    for (int pass = 0; pass <= $(codec.sweeps) && t < $(s "room"); ++pass) {
#pragma unroll 1
        for (int j = 0; j < $(s "dim"); ++j) {
            const float* prices = $(s "prices_of")(u, pass, j);
            const float sum = $(s "sum_errors")(c, prices, pass ? $(s "dim") : j, t);
            const int at = $(s "grid_at")(*c, j, t);
            $(s "grid") grid;
            grid.offset = c->offset[at];
            grid.inverse = c->inverse[at];
            const uint32_t code = $(s "code_of")(c->y[$(s "column_at")(j, t)] + sum, grid);
            if ((int)threadIdx.x % 4 == j % 4)
                $(s "set_code")(c, j, t, code, c->scale[at], grid.offset);
        }
    }
    __syncthreads();
}
//% end

// Codes of rows [first, end) of the columns, which begin at `row`.
INLINE void $(s "put_columns")(const $(s "unit")& u, int row, int first, int end, $(s "columns")* c)
{
    float* x = c->y;
#pragma unroll 1
    for (int tile = first / 16; tile * 16 < end; ++tile) {
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < 16 * $(s "dim"); i += cta_threads) {
            const int j = i / 16, of = tile * 16 + i % 16;
            if (of < first || of >= end) continue;
            const uint32_t code = $(s "code_in")(*$(s "code_at")(c, j, of - row));
            x[i % 16 * $(s "row_stride") + c->order[j]] = float_of(code);
        }
        __syncthreads();
        $(s "put_tile")(u, tile, first, end, x);
    }
}

INLINE void $(s "encode_unit")(const $(s "unit")& u, int first, int end)
{
    __shared__ $(s "columns") c;
    //% if along then
#pragma unroll 1
    for (int row = first; row < end; row += $(s "room")) {
        $(s "load_columns")(u, row, row, row + $(s "room"), &c);
        $(s "round_columns")(u, row, &c);
        $(s "put_columns")(u, row, row, row + $(s "room"), &c);
    }
    //% else
    const int row = first / 16 * 16;
    $(s "load_columns")(u, row, first, end, &c);
    $(path and s "guide_columns" or s "round_columns")(u, &c);
    $(s "put_columns")(u, row, first, end, &c);
    //% end
}
