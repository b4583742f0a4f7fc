// trellis.h -- the best paths of eight groups of $(codec.title) at once, or of one on eight grids.
//
// gen/parts/trellis.lua defines them.  A lane is a group, of eight on every instruction set.  About
// $(6 * codec.path.states) instructions of eight lanes for a value and a pass; four or so are made.
//% local path = codec.path
//% local S, words = path.states, (path.states + 31) // 32
//% local function bit(s) return ("(int32_t)0x%xu"):format(1 << s % 32) end

enum { $(s "states") = $(S), $(s "path_len") = $(codec.group_size) };

typedef struct $(s "paths") {
    v8 y[$(s "path_len")];                  // targets, in units of levels
    v8 cost[$(s "path_len")][4];            // of the nearest level of each sub-grid
    i8 from[$(s "path_len")][$(words)];            // bit s: into state s from the greater of two
    i8 codes[$(s "path_len")], levels[$(s "path_len")];
} $(s "paths");

// What is above the two low bits in the level that is nearest to y in a sub-grid.
INLINE v8 $(s "high8")(v8 y, v8 sub)
{
    v8 k = nearest8((y - sub) * 0.25f);
    k = pick8(k > 0.0f, k, repeat8(0.0f));
    return pick8(k < $(path.most).0f, k, repeat8($(path.most).0f));
}

static NOINLINE void $(s "path_costs")($(s "paths")* p)
{
    const v8 lo = repeat8(-8.0f), hi = repeat8($(codec.code_max + 8).0f);
    for (int i = 0; i < $(s "path_len"); ++i) {
        v8 y = pick8(p->y[i] > lo, p->y[i], lo);
        y = pick8(y < hi, y, hi);
        p->y[i] = y;
        for (int d = 0; d < 4; ++d) {
            const v8 sub = repeat8((float)d), e = y - (4.0f * $(s "high8")(y, sub) + sub);
            p->cost[i][d] = e * e;
        }
    }
}

// sums of the states before the first value become those after the last.
static NOINLINE void $(s "path_forward")($(s "paths")* p, v8* sums)
{
    //% for s = 0, S - 1 do
    v8 $("sum_" .. s) = sums[$(s)];
    //% end
    for (int i = 0; i < $(s "path_len"); ++i) {
        //% for d = 0, 3 do
        const v8 $("cost_" .. d) = p->cost[i][$(d)];
        //% end
        //% for w = 0, words - 1 do
        i8 $("from_" .. w) = { 0 };
        //% end
        //% for to = 0, S - 1 do
        //% local a, b = to // 2, to // 2 + S // 2
        const v8 $("a_" .. to) = $("sum_" .. a) + $("cost_" .. path.sub[a][to % 2]);
        const v8 $("b_" .. to) = $("sum_" .. b) + $("cost_" .. path.sub[b][to % 2]);
        $("from_" .. to // 32) |= (i8)($("b_" .. to) < $("a_" .. to)) & $(bit(to));
        const v8 $("next_" .. to) = smaller8($("b_" .. to), $("a_" .. to));
        //% end
        //% for s = 0, S - 1 do
        $("sum_" .. s) = $("next_" .. s);
        //% end
        //% for w = 0, words - 1 do
        p->from[i][$(w)] = $("from_" .. w);
        //% end
    }
    //% for s = 0, S - 1 do
    sums[$(s)] = $("sum_" .. s);
    //% end
}

// Codes and levels of the lanes in `take`, of the way that ends in a state.
static NOINLINE void $(s "path_back")($(s "paths")* p, i8 state, i8 take)
{
    for (int i = $(s "path_len") - 1; i >= 0; --i) {
        //% if words == 2 then
        const i8 from = pick8i(state > 31, p->from[i][1], p->from[i][0]) >> (state & 31);
        //% else
        const i8 from = p->from[i][0] >> state;
        //% end
        const i8 before = state >> 1 | (from & 1) << $(path.memory - 1);
        const i8 history = before << 1 | (state & 1);
        //% local function xor(list)
        //%     local terms = {}
        //%     for n, d in ipairs(list) do terms[n] = ("history >> %d"):format(d) end
        //%     return table_concat(terms, " ^ ")
        //% end
        const i8 s1 = ($(xor(path.s1))) & 1, s0 = ($(xor(path.s0))) & 1;
        const i8 sub = 2 * s1 + s0, high = integer8($(s "high8")(p->y[i], float8(sub)));
        p->codes[i] = pick8i(take, high << 1 | (state & 1), p->codes[i]);
        p->levels[i] = pick8i(take, high << 2 | sub, p->levels[i]);
        state = before;
    }
}

// Codes and levels of the path of least cost for y.  A state's sum without a condition on the
// beginning is a bound for all paths that end in it: states are tried from the least bound on,
// while one may be better.
static NOINLINE void $(s "walk8")($(s "paths")* p)
{
    v8 bounds[$(s "states")], sums[$(s "states")], best = repeat8(3.0e38f);
    i8 best_state = { 0 };
    $(s "path_costs")(p);
    for (int s = 0; s < $(s "states"); ++s) bounds[s] = repeat8(0.0f);
    $(s "path_forward")(p, bounds);
    for (;;) {
        v8 least = bounds[0], total;
        i8 state = { 0 };
        for (int s = 1; s < $(s "states"); ++s) {
            const i8 less = (i8)(bounds[s] < least);
            least = pick8(less, bounds[s], least);
            state = pick8i(less, (i8){ 0 } + s, state);
        }
        const i8 alive = (i8)(least <= best) & (i8)(least < 1e30f);
        if (!any8(alive)) return;
        for (int s = 0; s < $(s "states"); ++s) {
            const i8 mine = state == s;
            bounds[s] = pick8(mine, repeat8(3.0e38f), bounds[s]);
            sums[s] = pick8(mine, repeat8(0.0f), repeat8(1e30f));
        }
        $(s "path_forward")(p, sums);
        total = sums[0];
        for (int s = 1; s < $(s "states"); ++s) total = pick8(state == s, sums[s], total);
        const i8 ties = (i8)(total == best) & (state < best_state);
        const i8 better = alive & ((i8)(total < best) | ties);
        if (any8(better)) $(s "path_back")(p, state, better);
        best = pick8(better, total, best);
        best_state = pick8i(better, state, best_state);
    }
}

//% if codec.searches then
//% local meta = codec.parts.meta
// One least-squares refit of s and m, of values in units of half about mid.
static NOINLINE void $(s "refit_paths")($(s "paths")* p, const float* x, int stride, float mid,
                                   float unit, v8* s, v8* m)
{
    const float middle = 0.5f * $(codec.code_max).0f;
    const v8 r = 1.0f / *s;
    v8 sum_c = { 0 }, sum_cc = { 0 }, sum_cy = { 0 };
    float sum_y = 0.0f;
    for (int i = 0; i < $(s "path_len"); ++i)
        p->y[i] = ((x[i * stride] - mid) * unit - *m) * r + middle;
    $(s "walk8")(p);
    for (int i = 0; i < $(s "path_len"); ++i) {
        const float y = (x[i * stride] - mid) * unit;
        const v8 c = float8(p->levels[i]) - middle;
        sum_c += c;
        sum_cc += c * c;
        sum_cy += c * y;
        sum_y += y;
    }
    const float n = (float)$(s "path_len");
    const v8 det = n * sum_cc - sum_c * sum_c;
    const v8 better = (n * sum_cy - sum_c * sum_y) / det;
    const i8 take = (i8)(det > 1e-6f * n * sum_cc) & (i8)(better > 0.0f);
    *s = pick8(take, better, *s);
    *m = pick8(take, (sum_y - *s * sum_c) / n, *m);
}

// Which of eight stored pairs is best, and its path; gen/parts/search.lua defines it.
static NOINLINE int $(s "search_paths")($(s "paths")* p, unsigned char* page, int group,
                                   const float* x, int stride, float lo, float hi,
                                   $(s "grid")* grid)
{
    enum { bits = $(codec.level_bits), code_max = $(codec.code_max) };
    //% local fit = codec.parts.fit
    const v8 shrink = { $(codec.bits == 1 and fit.shrink_of_1_bit or fit.shrink) };
    const float mid = 0.5f * lo + 0.5f * hi, half = 0.5f * hi - 0.5f * lo, unit = 1.0f / half;
    v8 s = 2.0f * shrink / (float)code_max, m = { 0 }, scale, offset, error = { 0 };
    i8 scale_code, zero_code;
    for (int pass = 0; pass < 2; ++pass) $(s "refit_paths")(p, x, stride, mid, unit, &s, &m);
    {
        v8 wanted = s * half;
        const v8 middle = mid + m * half;
        $(meta.near_affine)
    }
    scale[0] = $(s "read_scale")(page, group);
    offset[0] = grid->offset;
    v8 inverse = pick8(scale > 0.0f, 1.0f / scale, repeat8(0.0f));
    inverse[0] = grid->inverse;
    for (int i = 0; i < $(s "path_len"); ++i) p->y[i] = (x[i * stride] - offset) * inverse;
    $(s "walk8")(p);
    for (int i = 0; i < $(s "path_len"); ++i) {
        const v8 e = (x[i * stride] - (scale * float8(p->levels[i]) + offset)) * unit;
        error += e * e;
    }
    int best = 0;
    for (int i = 1; i < 8; ++i)
        if (error[i] < error[best]) best = i;
    if (best == 0) return 0;
    $(s "put_pair")(page, group, (uint32_t)scale_code[best], (uint32_t)zero_code[best]);
    grid->offset = offset[best];
    grid->inverse = inverse[best];
    return best;
}

//% end
// Fits a group of x, `stride` apart, stores its scale and zero, and finds its path.
static NOINLINE $(s "grid") $(s "fit_path")(unsigned char* page, int group, const float* x,
                                    int stride, $(codec.stat_parameters), uint16_t* codes,
                                    uint16_t* levels)
{
    $(s "paths") p;
    $(s "grid") grid = $(s "store_grid")(page, group, $(codec.stat_names));
    int lane = 0;
    //% if codec.searches then
    if (0.5f * hi - 0.5f * lo > 0x1p-100f) {
        lane = $(s "search_paths")(&p, page, group, x, stride, lo, hi, &grid);
    } else
    //% end
    {
        for (int i = 0; i < $(s "path_len"); ++i)
            p.y[i] = repeat8((x[i * stride] - grid.offset) * grid.inverse);
        $(s "walk8")(&p);
    }
    for (int i = 0; i < $(s "path_len"); ++i) {
        codes[i] = (uint16_t)p.codes[i][lane];
        levels[i] = (uint16_t)p.levels[i][lane];
    }
    return grid;
}
