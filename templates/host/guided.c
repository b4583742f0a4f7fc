// guided.c -- ways through the trellis that carry their errors: gen/parts/feedback_trellis.lua.
//
// Lanes are tokens.  States times half a group are multiply-adds for each value, twice, and as many
// copies: those of a way go with it.
//% local path = codec.path
//% local S = path.states
//% local sums = S < 8 and S or 8                    -- states whose sums are in registers

typedef struct $(s "ways") {
    // Errors of the way into a state, to a channel and beyond.
    LINE vf e[2][$(s "path_len")][$(s "states")];
    // Into a state from the greater of two, and its code: a byte for each of 4 states.
    vi from[$(s "path_len")][$(S // 4)];
    vf sum[$(s "states")];                   // what a way cost
} $(s "ways");

// Level of state and x for a target w, in units of levels.
INLINE vf $(s "level_of")(vf w, float sub)
{
    const vf zero = repeat(0.0f), most = repeat($(path.most).0f);
    vf k = round_even((w - sub) * 0.25f);
    k = select(k > zero, k, zero);
    k = select(k < most, k, most);
    return 4.0f * k + sub;
}

// The ways go on to channel j, `at` in its group.  base: y and the errors of groups before.
static NOINLINE void $(s "step_ways")($(s "ways")* w, int at, const float* row, vf y, vf base,
                                 vf scale, vf offset, vf inverse, float cost)
{
    const vf (*old)[$(s "states")] = w->e[at % 2];
    vf (*new)[$(s "states")] = w->e[(at + 1) % 2];
    vf target[$(s "states")], next[$(s "states")];
    const vf lo = repeat(-8.0f), hi = repeat($(codec.code_max + 8).0f);
    for (int s = 0; s < $(s "states"); s += $(sums)) {
        //% for k = 0, sums - 1 do
        vf $("sum_" .. k) = repeat(0.0f);
        //% end
        for (int i = 0; i < at; ++i) {
            const vf u = repeat(row[i]);
            //% for k = 0, sums - 1 do
            $("sum_" .. k) = mul_add(u, old[i][s + $(k)], $("sum_" .. k));
            //% end
        }
        //% for k = 0, sums - 1 do
        {
            vf t = (base + $("sum_" .. k) - offset) * inverse;
            t = select(t > lo, t, lo);
            target[s + $(k)] = select(t < hi, t, hi);
        }
        //% end
    }
    for (int i = 0; i < $(S // 4); ++i) w->from[at][i] = (vi){ 0 };
    //% for to = 0, S - 1 do
    //% local a, b, x = to // 2, to // 2 + S // 2, to % 2
    {
        const vf level_a = $(s "level_of")(target[$(a)], $(path.sub[a][x]).0f);
        const vf level_b = $(s "level_of")(target[$(b)], $(path.sub[b][x]).0f);
        const vf e_a = (target[$(a)] - level_a) * scale, e_b = (target[$(b)] - level_b) * scale;
        const vf by_a = w->sum[$(a)] + cost * (e_a * e_a), by_b = w->sum[$(b)] + cost * (e_b * e_b);
        const vi less = by_b < by_a;
        const vf level = select(less, level_b, level_a);
        next[$(to)] = select(less, by_b, by_a);
        const vi code = __builtin_convertvector(level, vi) >> 2 << 1 | $(x);
        w->from[at][$(to // 4)] |= (code | (less & 128)) << $(to % 4 * 8);
        for (int i = 0; i < at; ++i) new[i][$(to)] = select(less, old[i][$(b)], old[i][$(a)]);
        new[at][$(to)] = y - (scale * level + offset);
    }
    //% end
    for (int s = 0; s < $(s "states"); ++s) w->sum[s] = next[s];
}

// Codes of the lanes at `at` of channels [first, first + path_len), and their errors, in f.
static NOINLINE void $(s "guide_group")($(s "feedback")* f, int first, int at, const float* factor,
                                   const float* cost, const vf* before)
{
    $(s "ways") w;
    vi end = { 0 };
    const int group = first / $(s "group_size");
    const vf scale = load(&f->scale[group][at]), offset = load(&f->offset[group][at]);
    const vf inverse = load(&f->inverse[group][at]);
    for (int pass = 0; pass < 2; ++pass) {
        for (int s = 0; s < $(s "states"); ++s)
            w.sum[s] = pass ? select(end == s, repeat(0.0f), repeat(1e30f)) : repeat(0.0f);
        for (int i = 0; i < $(s "path_len"); ++i) {
            const vf y = load(&f->y[first + i][at]);
            const float* row = factor + (first + i) * $(s "dim") + first;
            $(s "step_ways")(&w, i, row, y, y + before[i], scale, offset, inverse, cost[first + i]);
        }
        vf least = w.sum[0];
        for (int s = 1; pass == 0 && s < $(s "states"); ++s) {
            const vi less = w.sum[s] < least;
            least = select(less, w.sum[s], least);
            end = (less & s) | (~less & end);
        }
    }
    const vf (*e)[$(s "states")] = w.e[$(s "path_len") % 2];
    for (int i = 0; i < $(s "path_len"); ++i) {
        vf mine = e[i][0];
        for (int s = 1; s < $(s "states"); ++s) mine = select(end == s, e[i][s], mine);
        store(&f->e[first + i][at], mine);
    }
    vi state = end;
    for (int i = $(s "path_len") - 1; i >= 0; --i) {
        vi held = w.from[i][0];
        for (int n = 1; n < $(S // 4); ++n) {
            const vi here = state / 4 == n;
            held = (here & w.from[i][n]) | (~here & held);
        }
        held = held >> (state % 4 * 8);
        *(vh_at*)&f->codes[first + i][at] = __builtin_convertvector(held & 127, vh);
        state = state >> 1 | (held >> 7 & 1) << $(path.memory - 1);
    }
}

// The group that begins at a channel, of all tokens that there are.
static void $(s "guide_rows")($(s "feedback")* f, int first, int count, const float* tables)
{
    const float* factor = tables + $(codec.table_at("feedback_factor"));
    const float* cost = tables + $(codec.table_at("feedback_cost"));
    LINE float g[$(s "path_len")][$(s "room")];
    for (int i = 0; i < $(s "path_len"); ++i)
        $(s "add_errors")(factor + (first + i) * $(s "dim"), f, first, g[i]);
    for (int at = 0; at < count; at += lanes) {
        vf before[$(s "path_len")];
        for (int i = 0; i < $(s "path_len"); ++i) before[i] = load(&g[i][at]);
        $(s "guide_group")(f, first, at, factor, cost, before);
    }
}
