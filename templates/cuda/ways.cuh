// ways.cuh -- ways through the trellis that carry their errors: gen/parts/feedback_trellis.lua.
//
// A team has a token's group.  Where a way has been is told by the state in which it began and the
// x of its steps: errors are not copied.  A sum of errors is in the order of channels, so a way is
// followed from its beginning.
//% local S, held, words = codec.path.states, codec.states_held, (codec.group_size + 63) // 64

// Of a way: the state it began in, x of each step (bit i % 64 of word i / 64), what it cost.
typedef struct $(s "way") {
    uint32_t begin[$(held)];
    uint64_t x[$(words)][$(held)];
    float    sum[$(held)];
} $(s "way");

// row[i] times the errors of a way of a lane before step `at`.
INLINE float $(s "sum_of_way")(float (*e)[$(S)], const float* row, int at, const $(s "way")& w,
                          int h)
{
    uint32_t state = w.begin[h];
    float sum = 0.0f;
#pragma unroll
    for (int word = 0; word < $(words); ++word) {
        uint64_t x = w.x[word][h];
#pragma unroll 1
        for (int i = word * 64; i < least_of(at, word * 64 + 64); ++i, x >>= 1) {
            state = (state << 1 | ((uint32_t)x & 1u)) & ($(s "states") - 1u);
            sum = mul_add(row[i], e[i][state], sum);
        }
    }
    return sum;
}

// The ways go on to channel first + at.
INLINE void $(s "step_ways")($(s "columns")* c, int team, int t, int first, int at,
                        const float* record, $(s "grid") grid, float scale, $(s "way")* w)
{
    const float* factor = record + $(codec.table_at("feedback_factor"));
    const float* row = factor + (first + at) * $(s "dim") + first;
    const float cost = record[$(codec.table_at("feedback_cost")) + first + at];
    const int lane = threadIdx.x % $(s "team");
    const float y = c->y[$(s "column_at")(first + at, t)], base = c->ways.of.base[at][t];
    float target[$(held)];
    $(s "way") next;
    for (int h = 0; h < $(held); ++h) {
        const float sum = $(s "sum_of_way")(c->ways.of.e[team], row, at, *w, h);
        target[h] = $(s "path_target")((base + sum - grid.offset) * grid.inverse);
    }
    for (int h = 0; h < $(held); ++h) {
        const uint32_t state = (uint32_t)(lane + 32 * h), bit = state & 1u;
        float level[2], sum[2];
        for (int way = 0; way < 2; ++way) {
            const float y_of = $(s "from_state")(target, h, way);
            level[way] = $(s "near_level")(
                y_of, (float)$(s "sub_grid")(state + (uint32_t)(way * $(S))));
            const float e = (y_of - level[way]) * scale;
            sum[way] = $(s "from_state")(w->sum, h, way) + cost * (e * e);
        }
        const bool by_b = sum[1] < sum[0];
        const uint32_t begin_a = $(s "from_state")(w->begin, h, 0);
        const uint32_t begin_b = $(s "from_state")(w->begin, h, 1);
        const float taken = by_b ? level[1] : level[0];
        next.sum[h] = by_b ? sum[1] : sum[0];
        next.begin[h] = by_b ? begin_b : begin_a;
#pragma unroll
        for (int word = 0; word < $(words); ++word) {
            const uint64_t x_a = $(s "from_state")(w->x[word], h, 0);
            const uint64_t x_b = $(s "from_state")(w->x[word], h, 1);
            next.x[word][h] = (by_b ? x_b : x_a)
                              | (word == at / 64 ? (uint64_t)bit << at % 64 : 0);
        }
        c->ways.of.e[team][at][state] = y - (scale * taken + grid.offset);
        c->ways.of.step[team][at][state] = (unsigned char)((uint32_t)taken | bit << 7);
    }
    *w = next;
    __syncwarp();
}

// Codes and errors of the group of token t that begins at a channel.  All lanes take part.
INLINE void $(s "guide_group")(const $(s "unit")& u, $(s "columns")* c, int team, int t, int first)
{
    const int lane = threadIdx.x % $(s "team"), at_grid = $(s "grid_at")(*c, first, t);
    const float scale = c->scale[at_grid];
    const $(s "grid") grid = { c->offset[at_grid], c->inverse[at_grid] };
    $(s "way") w;
    int end = -1;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
        for (int h = 0; h < $(held); ++h) {
            w.begin[h] = (uint32_t)(lane + 32 * h);
            for (int word = 0; word < $(words); ++word) w.x[word][h] = 0;
            w.sum[h] = end < 0 || lane + 32 * h == end ? 0.0f : 1e30f;
        }
#pragma unroll 1
        for (int i = 0; i < $(s "path_len"); ++i)
            $(s "step_ways")(c, team, t, first, i, u.record, grid, scale, &w);
        float least_sum;
        const int least = $(s "least_state")(w.sum, &least_sum);
        if (pass == 0) end = least;
    }
    uint32_t state = __shfl_sync(0xffffffffu, w.begin[0], end % 32, $(s "team"));
    //% if held == 2 then
    const uint32_t high_begin = __shfl_sync(0xffffffffu, w.begin[1], end % 32);
    state = end < 32 ? state : high_begin;
    //% end
#pragma unroll
    for (int word = 0; word < $(words); ++word) {
        uint64_t x = __shfl_sync(0xffffffffu, w.x[word][0], end % 32, $(s "team"));
        //% if held == 2 then
        const uint64_t high_x = __shfl_sync(0xffffffffu, w.x[word][1], end % 32);
        x = end < 32 ? x : high_x;
        //% end
#pragma unroll 1
        for (int i = word * 64; i < least_of($(s "path_len"), word * 64 + 64); ++i, x >>= 1) {
            state = (state << 1 | ((uint32_t)x & 1u)) & ($(s "states") - 1u);
            if (i % $(s "team") != lane) continue;
            $(s "set_code")(c, first + i, t, c->ways.of.step[team][i][state], scale, grid.offset);
        }
    }
    __syncwarp();
}

INLINE void $(s "guide_columns")(const $(s "unit")& u, $(s "columns")* c)
{
    const int team = threadIdx.x / $(s "team");
#pragma unroll 1
    for (int first = 0; first < $(s "dim"); first += $(s "path_len")) {
#pragma unroll 1
        for (int item = threadIdx.x / 4; item < $(s "path_len") * $(s "room"); item += 32) {
            const int i = item / $(s "room"), t = item % $(s "room");
            const float sum = $(s "sum_errors")(c, $(s "prices_of")(u, 0, first + i), first, t);
            if (threadIdx.x % 4 == 0)
                c->ways.of.base[i][t] = c->y[$(s "column_at")(first + i, t)] + sum;
        }
        __syncthreads();
#pragma unroll 1
        for (int t = team; t < $(s "room") && team < $(s "way_teams"); t += $(s "way_teams"))
            $(s "guide_group")(u, c, team, t, first);
        __syncthreads();
    }
}
