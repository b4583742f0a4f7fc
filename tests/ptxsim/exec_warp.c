// exec_warp.c -- what lanes do together: shuffles, votes, matches, reductions, barriers, fences.
//
// A .sync instruction runs when all live lanes of its member mask are at it; those who come first
// are parked.  Lanes that name different masks make groups of their own.

#include "sim.h"

#include <string.h>

static uint32_t equal_lanes(const warp* w, const operand* o, uint32_t mask, uint64_t value)
{
    uint32_t same = 0;
    EACH_LANE LANE_IN(mask) {
        if (get_lane(w, o, l) == value) same |= 1u << l;
    }
    return same;
}

// Takes from *rest the lanes that name one member mask.  False: they wait for others.
static bool next_group(warp* w, const insn* i, const operand* members, uint32_t* rest,
                       uint32_t* group)
{
    const int lane = first_lane(*rest);
    const uint32_t named = (uint32_t)get_lane(w, members, lane);
    *group = equal_lanes(w, members, *rest, named);
    *rest &= ~*group;
    if (*group & ~named) {
        fault(w, FAULT_FAILED, first_lane(*group & ~named),
              "a .sync instruction by a lane outside its member mask 0x%08x", named);
    }
    return warp_gather(w, i, group, named);
}

// SHUFFLE

enum { SHFL_UP, SHFL_DOWN, SHFL_BFLY, SHFL_IDX };

// sub: mode.  The third operand holds the segment mask and the clamp lane.
static void shuffle(warp* w, const insn* i, uint32_t mask)
{
    const lane32 *a = reg32(w, &i->o[1]), *b = reg32(w, &i->o[2]), *c = reg32(w, &i->o[3]);
    uint32_t r[32], valid = 0, undefined = 0;
    EACH_LANE LANE_IN(mask) {
        const uint32_t n = b[l] & 31, clamp = c[l] & 31, segment = c[l] >> 8 & 31;
        const uint32_t lane = (uint32_t)l;
        const uint32_t last = (lane & segment) | (clamp & ~segment), first = lane & segment;
        uint32_t from;
        bool inside;
        switch (i->sub) {
        case SHFL_UP: from = lane - n, inside = (int32_t)from >= (int32_t)last; break;
        case SHFL_DOWN: from = lane + n, inside = from <= last; break;
        case SHFL_BFLY: from = lane ^ n, inside = from <= last; break;
        default: from = first | (n & ~segment), inside = from <= last; break;
        }
        if (!inside) from = lane;
        if (inside) valid |= 1u << l;
        r[l] = a[from & 31];
        if (!(mask >> (from & 31) & 1)) undefined |= 1u << l;
    }
    put32(w, &i->o[0], r, mask);
    if (!i->o[0].sink) {
        w->defined[i->o[0].id] = (w->defined[i->o[0].id] | mask) & ~undefined;
    }
    pred_write(w, &i->o[MAX_OPERANDS - 1], valid, mask);
}

static void run_shfl(warp* w, const insn* i, uint32_t mask)
{
    while (mask) {
        uint32_t group;
        if (next_group(w, i, &i->o[4], &mask, &group)) shuffle(w, i, group);
    }
}

static handler choose_shfl(const words* m, insn* i)
{
    i->sub = has(m, "up") ? SHFL_UP : has(m, "down") ? SHFL_DOWN : has(m, "bfly") ? SHFL_BFLY :
        SHFL_IDX;
    return m->num_types == 1 && m->types[0] == T_B32 && has(m, "sync") && m->num_words == 2 ?
        run_shfl : NULL;
}

// VOTE, MATCH, REDUX

enum { VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };

static void run_vote(warp* w, const insn* i, uint32_t mask)
{
    while (mask) {
        uint32_t group;
        if (!next_group(w, i, &i->o[2], &mask, &group)) continue;
        const operand* a = &i->o[1];
        const uint32_t value = a->kind == OPERAND_PRED ? pred_read(w, a) : reg32(w, a)[0] ? ~0u : 0;
        const uint32_t yes = value & group;
        const bool all = yes == group, none = !yes;
        if (i->sub == VOTE_BALLOT) {
            uint32_t r[32];
            EACH_LANE r[l] = yes;
            put32(w, &i->o[0], r, group);
        } else {
            const bool answer = i->sub == VOTE_ALL ? all : i->sub == VOTE_ANY ? !none : all || none;
            pred_write(w, &i->o[0], answer ? ~0u : 0, group);
        }
    }
}

static handler choose_vote(const words* m, insn* i)
{
    i->sub = has(m, "all") ? VOTE_ALL : has(m, "any") ? VOTE_ANY : has(m, "uni") ? VOTE_UNI :
        VOTE_BALLOT;
    const type t = i->sub == VOTE_BALLOT ? T_B32 : T_PRED;
    return m->num_types == 1 && m->types[0] == t && has(m, "sync") ? run_vote : NULL;
}

// sub: all
static void run_match(warp* w, const insn* i, uint32_t mask)
{
    while (mask) {
        uint32_t group, r[32], all = 0;
        if (!next_group(w, i, &i->o[2], &mask, &group)) continue;
        EACH_LANE LANE_IN(group) {
            r[l] = equal_lanes(w, &i->o[1], group, get_lane(w, &i->o[1], l));
            if (r[l] == group) all |= 1u << l;
            else if (i->sub) r[l] = 0;
        }
        put32(w, &i->o[0], r, group);
        pred_write(w, &i->o[MAX_OPERANDS - 1], all, group);
    }
}

static handler choose_match(const words* m, insn* i)
{
    i->sub = has(m, "all");
    return m->num_types == 1 && has(m, "sync") && has(m, "any") != has(m, "all") ? run_match : NULL;
}

enum { REDUX_ADD, REDUX_MIN, REDUX_MAX, REDUX_AND, REDUX_OR, REDUX_XOR };

static uint32_t reduced(const insn* i, uint32_t a, uint32_t b)
{
    const bool less = i->type == T_S32 ? (int32_t)a < (int32_t)b : a < b;
    switch (i->sub) {
    case REDUX_ADD: return a + b;
    case REDUX_MIN: return less ? a : b;
    case REDUX_MAX: return less ? b : a;
    case REDUX_AND: return a & b;
    case REDUX_OR: return a | b;
    default: return a ^ b;
    }
}

static void run_redux(warp* w, const insn* i, uint32_t mask)
{
    while (mask) {
        uint32_t group, r[32];
        if (!next_group(w, i, &i->o[2], &mask, &group)) continue;
        const lane32* a = reg32(w, &i->o[1]);
        const int first = first_lane(group);
        uint32_t sum = a[first];
        for (int l = first + 1; l < 32; ++l) LANE_IN(group) sum = reduced(i, sum, a[l]);
        EACH_LANE r[l] = sum;
        put32(w, &i->o[0], r, group);
    }
}

static handler choose_redux(const words* m, insn* i)
{
    static const char* const names[] = { "add", "min", "max", "and", "or", "xor" };
    for (size_t k = 0; k < COUNT(names); ++k) {
        if (!has(m, names[k])) continue;
        i->sub = (uint8_t)k;
        const bool bits = k >= REDUX_AND;
        const type t = m->num_types == 1 ? m->types[0] : T_NONE;
        return has(m, "sync") && (bits ? t == T_B32 : t == T_U32 || t == T_S32) ? run_redux : NULL;
    }
    return NULL;
}

static void run_activemask(warp* w, const insn* i, uint32_t mask)
{
    uint32_t r[32];
    EACH_LANE r[l] = mask;
    put32(w, &i->o[0], r, mask);
}

// The lowest lane of the group is elected; d is its number.
static void run_elect(warp* w, const insn* i, uint32_t mask)
{
    while (mask) {
        uint32_t group, r[32];
        if (!next_group(w, i, &i->o[1], &mask, &group)) continue;
        const int first = first_lane(group);
        EACH_LANE r[l] = (uint32_t)first;
        put32(w, &i->o[0], r, group);
        pred_write(w, &i->o[MAX_OPERANDS - 1], 1u << first, group);
    }
}

static handler choose_simple(const words* m, insn* i)
{
    (void)i;
    if (m->base[0] == 'e') return has(m, "sync") ? run_elect : NULL;
    return m->num_types == 1 && m->types[0] == T_B32 ? run_activemask : NULL;
}

// BARRIERS

enum { BAR_SYNC, BAR_ARRIVE, BAR_POPC, BAR_AND, BAR_OR };

static uint32_t count_bits(uint32_t x) { return (uint32_t)__builtin_popcount(x); }

static void give_result(warp* w, const insn* i, uint32_t lanes, uint32_t yes, uint32_t all)
{
    if (i->sub == BAR_POPC) {
        uint32_t r[32];
        EACH_LANE r[l] = yes;
        put32(w, &i->o[0], r, lanes);
    } else if (i->sub >= BAR_AND) {
        const bool answer = i->sub == BAR_AND ? yes == all : yes != 0;
        pred_write(w, &i->o[0], answer ? ~0u : 0, lanes);
    }
}

static void release(cta* c, barrier* b)
{
    uint32_t participants[MAX_WARPS] = { 0 }, yes = 0, all = 0;
    for (int k = 0; k < c->num_warps; ++k) {
        participants[k] = b->lanes[k] | b->whole[k];
        yes += count_bits(b->predicate[k] & participants[k]);
        all += count_bits(participants[k]);
    }
    shared_join(c, participants);
    for (int k = 0; k < c->num_warps; ++k) {
        warp* w = &c->warps[k];
        const uint32_t lanes = b->lanes[k];
        EACH_LANE LANE_IN(lanes) give_result(w, w->at_barrier[l], 1u << l, yes, all);
        w->waiting &= ~lanes;
    }
    memset(b, 0, sizeof *b);
}

static void check_arrival(warp* w, const insn* i, uint32_t mask, uint32_t expected)
{
    const int lane = first_lane(mask);
    // sub2: aligned
    if (i->sub2 && mask != w->initial) {
        const uint32_t gone = w->initial & ~w->live;
        fault(w, FAULT_FAILED, lane,
              "barrier divergence: lanes 0x%08x of the warp are not here%s", w->initial & ~mask,
              gone ? "; some have exited" : "");
    }
    if (expected % 32) {
        fault(w, FAULT_FAILED, lane, "a barrier for %u threads: not whole warps", expected);
    }
}

static void arrive(warp* w, const insn* i, uint32_t mask, uint32_t number, uint32_t expected)
{
    cta* c = w->cta;
    barrier* b = &c->barriers[number];
    if (!expected) expected = (uint32_t)c->num_warps * 32;
    if (i->sub2 && warp_steps_back(w, mask)) return;
    check_arrival(w, i, mask, expected);
    if (b->expected && b->expected != expected) {
        fault(w, FAULT_FAILED, first_lane(mask),
              "barrier %u: for %u threads here, for %u elsewhere", number, expected, b->expected);
    }
    b->expected = expected;
    ++c->stats.barriers;
    const int pred_at = i->sub >= BAR_POPC ? (i->o[3].kind == OPERAND_PRED ? 3 : 2) : 0;
    if (pred_at) b->predicate[w->index] |= pred_read(w, &i->o[pred_at]) & mask;
    if (i->sub == BAR_ARRIVE) {
        b->whole[w->index] |= mask;
    } else {
        b->lanes[w->index] |= mask;
        EACH_LANE LANE_IN(mask) w->at_barrier[l] = i, w->lane_pc[l] = w->pc;
        w->waiting |= mask;
        w->active &= ~mask;
    }
    uint32_t threads = 0;
    for (int k = 0; k < c->num_warps; ++k) {
        const uint32_t here = b->lanes[k] | b->whole[k];
        threads += here == c->warps[k].initial ? 32 : count_bits(here);
    }
    if (threads >= expected) release(c, b);
}

// bar.sync a, b;  bar.arrive a, b;  bar.red d, a, b, p
static void run_bar(warp* w, const insn* i, uint32_t mask)
{
    const int at = i->sub >= BAR_POPC ? 1 : 0, lane = first_lane(mask);
    const uint32_t number = (uint32_t)get_lane(w, &i->o[at], lane);
    const bool counted = i->o[at + 1].kind == OPERAND_REG;
    const uint32_t expected = counted ? (uint32_t)get_lane(w, &i->o[at + 1], lane) : 0;
    if (number >= MAX_BARRIERS) fault(w, FAULT_FAILED, lane, "barrier %u", number);
    arrive(w, i, mask, number, expected);
}

// Orders what the lanes of the group did before with what they do after.
static void run_bar_warp(warp* w, const insn* i, uint32_t mask)
{
    while (mask) {
        uint32_t group;
        if (!next_group(w, i, &i->o[0], &mask, &group)) continue;
        w->cta->sync_time[w->index][w->index] = ++w->cta->time;
    }
}

static handler choose_bar(const words* m, insn* i)
{
    if (has(m, "warp")) return has(m, "sync") ? run_bar_warp : NULL;
    // barrier is aligned only if it says so.
    i->sub2 = strcmp(m->base, "bar") == 0 || has(m, "aligned");
    if (has(m, "sync")) {
        i->sub = BAR_SYNC;
    } else if (has(m, "arrive")) {
        i->sub = BAR_ARRIVE;
    } else if (has(m, "red")) {
        i->sub = has(m, "popc") ? BAR_POPC : has(m, "and") ? BAR_AND : BAR_OR;
    } else {
        return NULL;
    }
    return run_bar;
}

// Acquires and releases, in a form that the thread sanitizer follows.
static void run_fence(warp* w, const insn* i, uint32_t mask)
{
    static uint32_t fences;
    (void)w, (void)i, (void)mask;
    __atomic_fetch_add(&fences, 1, __ATOMIC_SEQ_CST);
}

static handler choose_fence(const words* m, insn* i)
{
    (void)m, (void)i;
    return run_fence;
}

// bar.red writes its first operand, the others nothing.
static handler choose_bar_red(const words* m, insn* i)
{
    return has(m, "red") ? choose_bar(m, i) : NULL;
}

const op_entry warp_ops[] = {
    { "shfl", "sync up down bfly idx", choose_shfl, PTXSIM_CONTROL, 1 },
    { "vote", "sync all any uni ballot", choose_vote, PTXSIM_CONTROL, 1 },
    { "match", "sync any all", choose_match, PTXSIM_CONTROL, 1 },
    { "redux", "sync add min max and or xor", choose_redux, PTXSIM_CONTROL, 1 },
    { "activemask", "", choose_simple, PTXSIM_CONTROL, 1 },
    { "elect", "sync", choose_simple, PTXSIM_CONTROL, 1 },
    { "bar", "red cta popc and or", choose_bar_red, PTXSIM_CONTROL, 1 },
    { "barrier", "red cta popc and or aligned", choose_bar_red, PTXSIM_CONTROL, 1 },
    { "bar", "sync arrive warp cta", choose_bar, PTXSIM_CONTROL, 0 },
    { "barrier", "sync arrive cta aligned", choose_bar, PTXSIM_CONTROL, 0 },
    { "membar", "cta gl sys", choose_fence, PTXSIM_CONTROL, 0 },
    { "fence", "sc acq_rel acquire release cta cluster gpu sys proxy async alias", choose_fence,
      PTXSIM_CONTROL, 0 },
    { "griddepcontrol", "launch_dependents wait", choose_fence, PTXSIM_CONTROL, 0 },
    { "nanosleep", "", choose_fence, PTXSIM_CONTROL, 0 },
    { NULL, NULL, NULL, 0, 0 },
};
