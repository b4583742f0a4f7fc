// trellis.cuh -- the best paths of groups of $(codec.title): gen/parts/trellis.lua defines them.
//
// A team of $(codec.team) lanes has a group; a lane has the states s, s + 32, ... for its number s.
// A value takes about $(30 * codec.states_held) instructions in each pass; three or so are made.
//% local path = codec.path
//% local S, held, team = path.states, codec.states_held, codec.team
//% local step = codec.step_type
//% local function xor(list, of)
//%     local terms = {}
//%     for n, d in ipairs(list) do terms[n] = ("%s >> %d"):format(of, d) end
//%     return table_concat(terms, " ^ ")
//% end

enum { $(s "states") = $(S), $(s "held") = $(held), $(s "team") = $(team) };
enum { $(s "path_len") = $(codec.group_size) };

// Of a group: values x, `stride` apart, in units of levels
//     y = ((x - mid) unit - offset) inverse + raise
// Steps: first which way led into each state, a bit a state; of the path that is found the levels,
// and in bit 7 the lowest bits of codes.  Of two paths that are compared each has its own.
typedef struct $(s "walk") {
    const float* x;
    int          stride;
    float        mid, unit, offset, inverse, raise;
    $(step)*     steps;              // [2][path_len] of the team, in shared memory
} $(s "walk");

INLINE uint32_t $(s "level_in")(uint32_t step) { return step & 127u; }
INLINE uint32_t $(s "code_in")(uint32_t step) { return (step & 127u) >> 2 << 1 | step >> 7 & 1u; }

// The sub-grid of the level that follows a state: bit 0 of history is x, the others are the state.
INLINE int $(s "sub_grid")(uint32_t history)
{
    const uint32_t s1 = $(xor(path.s1, "history")), s0 = $(xor(path.s0, "history"));
    return (int)((s1 & 1u) << 1 | (s0 & 1u));
}

// What is no number becomes the lowest.
INLINE float $(s "path_target")(float y)
{
    y = y > -8.0f ? y : -8.0f;
    return y < $(codec.code_max + 8).0f ? y : $(codec.code_max + 8).0f;
}

// The level of a sub-grid that is nearest to y.
INLINE float $(s "near_level")(float y, float sub)
{
    float k = nearest_even((y - sub) * 0.25f);
    k = k > 0.0f ? k : 0.0f;
    k = k < $(path.most).0f ? k : $(path.most).0f;
    return 4.0f * k + sub;
}

INLINE float $(s "walk_target")(const $(s "walk")& w, int i)
{
    const float y = (w.x[i * w.stride] - w.mid) * w.unit;
    return $(s "path_target")((y - w.offset) * w.inverse + w.raise);
}

// What the state has that leads, by way 0 or 1, into the state h of a lane.
template <typename type>
INLINE type $(s "from_state")(const type* of, int h, int way)
{
    const int lane = threadIdx.x % $(s "team");
    return __shfl_sync(0xffffffffu, of[$(held == 2 and "way" or "0")],
                       lane / 2 + $(held == 2 and "h * 16" or (S // 2) .. " * way"), $(s "team"));
}

// Of the states of a team the one with the least number, of equals the first.
INLINE int $(s "least_state")(const float* of, float* number)
{
    int state = threadIdx.x % $(s "team");
    float least = of[0];
    //% if held == 2 then
    if (of[1] < least) {
        least = of[1];
        state += 32;
    }
    //% end
#pragma unroll
    for (int d = 1; d < $(s "team"); d *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, least, d);
        const int from = __shfl_xor_sync(0xffffffffu, state, d);
        const bool takes = other < least || (other == least && from < state);
        least = takes ? other : least;
        state = takes ? from : state;
    }
    *number = least;
    return state;
}

// sums of the states before the first value become those after the last.
INLINE void $(s "walk_forward")(const $(s "walk")& w, $(step)* steps, float* sums)
{
    const int lane = threadIdx.x % $(s "team"), first = (int)threadIdx.x % 32 - lane;
    float sub[$(held)][2];
    for (int h = 0; h < $(held); ++h)
        for (int way = 0; way < 2; ++way)
            sub[h][way] = (float)$(s "sub_grid")((uint32_t)(lane + 32 * h + way * $(S)));
#pragma unroll 1
    for (int i = 0; i < $(s "path_len"); ++i) {
        const float y = $(s "walk_target")(w, i);
        float next[$(held)];
        $(step) bits = 0;
        for (int h = 0; h < $(held); ++h) {
            const float e_a = y - $(s "near_level")(y, sub[h][0]);
            const float e_b = y - $(s "near_level")(y, sub[h][1]);
            const float by_a = $(s "from_state")(sums, h, 0) + e_a * e_a;
            const float by_b = $(s "from_state")(sums, h, 1) + e_b * e_b;
            const uint32_t ways = __ballot_sync(0xffffffffu, by_b < by_a);
            const uint32_t own = ways >> first & $(("0x%xu"):format((1 << team) - 1));
            bits |= ($(step))own << 32 * h;
            next[h] = by_b < by_a ? by_b : by_a;
        }
        for (int h = 0; h < $(held); ++h) sums[h] = next[h];
        if (lane == 0) steps[i] = bits;
    }
}

// Steps of the way that ends in a state, and began there.  By one lane.
INLINE void $(s "walk_back")(const $(s "walk")& w, $(step)* steps, int end)
{
    uint32_t state = (uint32_t)end;
#pragma unroll 1
    for (int i = $(s "path_len") - 1; i >= 0; --i) {
        const uint32_t by_b = (uint32_t)(steps[i] >> state) & 1u, x = state & 1u;
        const uint32_t before = state >> 1 | by_b << $(path.memory - 1);
        const float sub = (float)$(s "sub_grid")(before << 1 | x);
        steps[i] = ($(step))((uint32_t)$(s "near_level")($(s "walk_target")(w, i), sub) | x << 7);
        state = before;
    }
}

// The steps of the path of least cost.  A state's sum without a condition on the beginning is a
// bound for all paths that end in it: states are tried from the least bound on, while one may be
// better.  All lanes of a warp take part.
INLINE $(step)* $(s "best_path")(const $(s "walk")& w)
{
    const int lane = threadIdx.x % $(s "team");
    float bounds[$(held)] = { 0.0f }, best = float_max;
    int best_state = $(S), found = 0;
    __syncwarp();
#pragma unroll 1
    for (int turn = 0; ; ++turn) {
        float sums[$(held)], bound = 0.0f;
        int state = 0;
        bool alive = turn == 0;
        if (turn > 0) {
            state = $(s "least_state")(bounds, &bound);
            alive = bound <= best && bound < float_max;
        }
        if (!__any_sync(0xffffffffu, alive)) break;
        for (int h = 0; h < $(held); ++h) {
            const bool mine = lane + 32 * h == state;
            if (turn > 0 && mine) bounds[h] = float_max;
            sums[h] = turn == 0 || mine ? 0.0f : 1e30f;
        }
        const int to = 1 - found;
        $(s "walk_forward")(w, w.steps + to * $(s "path_len"), sums);
        if (turn == 0) {
            for (int h = 0; h < $(held); ++h) bounds[h] = sums[h];
            continue;
        }
        float total = __shfl_sync(0xffffffffu, sums[0], state % 32, $(s "team"));
        //% if held == 2 then
        const float high = __shfl_sync(0xffffffffu, sums[1], state % 32, $(s "team"));
        total = state < 32 ? total : high;
        //% end
        if (!alive || !(total < best || (total == best && state < best_state))) continue;
        best = total;
        best_state = state;
        found = to;
    }
    __syncwarp();
    $(step)* steps = w.steps + found * $(s "path_len");
    if (lane == 0) $(s "walk_back")(w, steps, best_state);
    __syncwarp();
    return steps;
}

INLINE $(s "walk") $(s "walk_of")(const float* x, int stride, $(step)* steps)
{
    $(s "walk") w;
    w.x = x;
    w.stride = stride;
    w.mid = w.raise = w.offset = 0.0f;
    w.unit = w.inverse = 1.0f;
    w.steps = steps;
    return w;
}

//% if codec.searches then
// The best of eight stored pairs, gen/parts/search.lua, one after the other; at last the path of
// the best.
INLINE $(step)* $(s "search_paths")($(s "walk")* w, $(s "pair")* pair, $(s "grid")* grid, float lo,
                               float hi)
{
    const $(s "range") g = $(s "range_of")(lo, hi);
    const float middle = 0.5f * $(codec.code_max).0f;
    $(s "candidate") of = { 0.0f }, best = { 0.0f };
    $(s "search_keep")(&best, *pair, *grid);
#pragma unroll 1
    for (int turn = 0; ; ++turn) {
        // Three walks of each candidate: two to be refitted, one to be compared.
        const int i = turn / 3;
        const bool refits = i < $(s "candidates") && turn % 3 < 2;
        if (i == 0 && refits) continue;
        if (turn % 3 == 0) $(s "search_start")(&of, i);
        if (i == 0 || i == $(s "candidates")) of = best;
        else if (!refits) $(s "search_store")(&of, g);
        of.error = 0.0f;
        if (refits) $(s "refit_start")(&of);
        w->mid = refits ? g.mid : 0.0f;
        w->unit = refits ? g.unit : 1.0f;
        w->offset = refits ? of.m : of.offset;
        w->inverse = refits ? of.r : of.inverse;
        w->raise = refits ? middle : 0.0f;
        $(step)* steps = $(s "best_path")(*w);
        if (i == $(s "candidates")) {
            $(s "search_take")(pair, best);
            grid->offset = best.offset;
            grid->inverse = best.inverse;
            return steps;
        }
#pragma unroll 1
        for (int k = 0; k < $(s "path_len"); ++k) {
            const float x = w->x[k * w->stride];
            const float level = to_float($(s "level_in")((uint32_t)steps[k]));
            const float y = (x - g.mid) * g.unit, c = level - middle;
            const float e = (x - (of.scale * level + of.offset)) * g.unit;
            of.c += c;
            of.cc += c * c;
            of.cy += c * y;
            of.y += y;
            of.error += e * e;
        }
        if (refits) $(s "refit_end")(&of);
        else if (i == 0 || (g.found && of.error < best.error)) best = of;
    }
}

//% end
// Fits a group; all lanes of its team get the result.  Returns the steps of its path.
INLINE $(step)* $(s "fit_path")($(s "walk")* w, $(s "pair")* pair, $(s "grid")* grid)
{
    const int lane = threadIdx.x % $(s "team");
    float lo = w->x[0], hi = w->x[0];
    for (int i = lane; i < $(s "path_len"); i += $(s "team")) {
        lo = least(w->x[i * w->stride], lo);
        hi = most(w->x[i * w->stride], hi);
    }
#pragma unroll
    for (int d = 1; d < $(s "team"); d *= 2) {
        lo = least(lo, __shfl_xor_sync(0xffffffffu, lo, d));
        hi = most(hi, __shfl_xor_sync(0xffffffffu, hi, d));
    }
    lo += 0.0f;                      // as in fit_grid
    hi += 0.0f;
    *grid = $(s "fit_grid")(pair, -1, lo, hi);
    //% if codec.searches then
    return $(s "search_paths")(w, pair, grid, lo, hi);
    //% else
    w->offset = grid->offset;
    w->inverse = grid->inverse;
    return $(s "best_path")(*w);
    //% end
}
