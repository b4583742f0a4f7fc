// exec_control.c -- branches, calls, exit, traps; which lanes of a warp run next.
//
// Lanes at the same place run together.  Of several places the deepest call goes first, then the
// lowest program counter: lanes that run ahead of a join wait there for the others.

#include "sim.h"

#include <string.h>
#include <time.h>

int first_lane(uint32_t mask) { return mask ? __builtin_ctz(mask) : 0; }

// Keeps where the running group is.
void warp_save(warp* w)
{
    EACH_LANE LANE_IN(w->active) w->lane_pc[l] = w->pc;
}

// Chooses the group that runs: none if no lane can.
void warp_pick(warp* w)
{
    const uint32_t ready = w->live & ~w->parked & ~w->waiting;
    uint32_t depth = 0, pc = UINT32_MAX;
    w->active = 0, w->merge_pc = UINT32_MAX;
    EACH_LANE LANE_IN(ready) {
        const uint32_t own = w->depth[l];
        if (pc == UINT32_MAX || own > depth || (own == depth && w->lane_pc[l] < pc)) {
            depth = own, pc = w->lane_pc[l];
        }
    }
    if (pc == UINT32_MAX) return;
    EACH_LANE LANE_IN(ready) {
        if (w->depth[l] != depth) continue;
        if (w->lane_pc[l] == pc) {
            w->active |= 1u << l;
        } else if (w->lane_pc[l] < w->merge_pc) {
            w->merge_pc = w->lane_pc[l];
        }
    }
    w->pc = pc;
}

// For an instruction that needs the whole warp, reached by lanes that ran ahead: they wait after
// all.
bool warp_steps_back(warp* w, uint32_t mask)
{
    if (!w->ahead || mask == w->initial) return false;
    --w->pc;
    warp_save(w);
    w->active = 0, w->ahead = false;
    return true;
}

static void pick_again(warp* w)
{
    warp_save(w);
    warp_pick(w);
}

// Whether all live lanes of `members` are at this instruction; *mask grows by the parked ones.
// If not, the lanes of *mask are parked here.
bool warp_gather(warp* w, const insn* i, uint32_t* mask, uint32_t members)
{
    const uint32_t here = (uint32_t)(i - w->cta->launch->mod->code);
    uint32_t total = *mask;
    EACH_LANE LANE_IN(w->parked & members) {
        if (w->lane_pc[l] == here) total |= 1u << l;
    }
    if ((members & w->live & ~total) == 0) {
        w->active |= total & w->parked;
        w->parked &= ~total;
        *mask = total;
        return true;
    }
    EACH_LANE LANE_IN(*mask) w->lane_pc[l] = here;
    w->parked |= *mask;
    w->active &= ~*mask;
    return false;
}

static void run_bra(warp* w, const insn* i, uint32_t mask)
{
    if (mask == w->active) {
        w->pc = i->target;
        if (w->merge_pc != UINT32_MAX) pick_again(w);
        return;
    }
    warp_save(w);
    EACH_LANE LANE_IN(mask) w->lane_pc[l] = i->target;
    warp_pick(w);
}

static void run_brx(warp* w, const insn* i, uint32_t mask)
{
    warp_save(w);
    EACH_LANE LANE_IN(mask) {
        const uint32_t n = (uint32_t)get_lane(w, &i->o[0], l);
        if (n >= i->num_targets) {
            fault(w, FAULT_FAILED, l, "brx.idx %u of %u targets", n, i->num_targets);
        }
        w->lane_pc[l] = i->targets[n];
    }
    warp_pick(w);
}

// CALLS

static void copy_arguments(warp* w, const insn* i, uint32_t lane, uint32_t from, uint32_t to)
{
    const size_t base = (size_t)lane * w->cta->launch->mod->local_bytes;
    for (uint32_t k = from; k < to; ++k) {
        const uint32_t* one = i->targets + (size_t)3 * k;
        memcpy(w->local + base + one[0], w->local + base + one[1], one[2]);
        memcpy(w->local_written + base + one[0], w->local_written + base + one[1], one[2]);
    }
}

static void text_of_argument(warp* w, const insn* i, int lane, int number, char* text, size_t size)
{
    text[0] = 0;
    if (number >= i->sub) return;
    uint64_t address;
    memcpy(&address, w->local + (size_t)lane * w->cta->launch->mod->local_bytes +
                         i->targets[3 * number + 1], 8);
    size_t n = 0;
    while (n + 1 < size) {
        const char c = (char)*reach(w, lane, SPACE_GENERIC, address + n, 1, ACCESS_READ, NULL);
        if (!c) break;
        text[n++] = c;
    }
    text[n] = 0;
}

// vprintf prints nothing and returns 0; __assertfail stops.
static void call_system(warp* w, const insn* i, uint32_t mask)
{
    const int lane = first_lane(mask);
    if (strcmp(i->callee->name, "__assertfail") == 0) {
        char condition[200], file[200];
        text_of_argument(w, i, lane, 0, condition, sizeof condition);
        text_of_argument(w, i, lane, 1, file, sizeof file);
        fault(w, FAULT_TRAP, lane, "assertion failed: %s in %s", condition, file);
    }
    const uint32_t size = w->cta->launch->mod->local_bytes;
    EACH_LANE LANE_IN(mask) {
        for (uint32_t k = i->sub; k < i->num_targets; ++k) {
            const size_t at = (size_t)l * size + i->targets[3 * k];
            memset(w->local + at, 0, i->targets[3 * k + 2]);
            memset(w->local_written + at, 1, i->targets[3 * k + 2]);
        }
    }
}

static void run_call(warp* w, const insn* i, uint32_t mask)
{
    if (!i->callee->has_body) {
        call_system(w, i, mask);
        return;
    }
    const uint32_t here = (uint32_t)(i - w->cta->launch->mod->code);
    warp_save(w);
    EACH_LANE LANE_IN(mask) {
        if (w->depth[l] == MAX_CALLS) fault(w, FAULT_FAILED, l, "more than %d calls", MAX_CALLS);
        copy_arguments(w, i, (uint32_t)l, 0, i->sub);
        w->calls[l][w->depth[l]++] = here;
        w->lane_pc[l] = i->target;
    }
    warp_pick(w);
}

static void leave(warp* w, uint32_t mask)
{
    w->live &= ~mask;
    w->active &= ~mask;
    // Nobody waits for lanes that have exited: the parked ones look again.
    w->parked = 0;
    if (!w->active) warp_pick(w);
}

static void run_exit(warp* w, const insn* i, uint32_t mask)
{
    (void)i;
    leave(w, mask);
}

static void run_ret(warp* w, const insn* i, uint32_t mask)
{
    (void)i;
    if (!w->depth[first_lane(mask)]) {
        leave(w, mask);
        return;
    }
    warp_save(w);
    EACH_LANE LANE_IN(mask) {
        const uint32_t from = w->calls[l][--w->depth[l]];
        const insn* call = &w->cta->launch->mod->code[from];
        copy_arguments(w, call, (uint32_t)l, call->sub, call->num_targets);
        w->lane_pc[l] = from + 1;
    }
    warp_pick(w);
}

static void run_trap(warp* w, const insn* i, uint32_t mask)
{
    fault(w, FAULT_TRAP, first_lane(mask), "%s", i->sub ? "brkpt" : "trap");
}

static void run_nothing(warp* w, const insn* i, uint32_t mask) { (void)w, (void)i, (void)mask; }

// %clock counts the CTA's instructions.
static void run_clock(warp* w, const insn* i, uint32_t mask)
{
    uint64_t now = w->cta->steps;
    if (i->sub2 == SPECIAL_GLOBALTIMER) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    if (i->sub2 == SPECIAL_CLOCK_HI) now >>= 32;
    EACH_LANE LANE_IN(mask) set_lane(w, &i->o[0], l, now);
}

handler run_clock_of(void);
handler run_clock_of(void) { return run_clock; }

static handler choose(const words* m, insn* i)
{
    static const struct { const char* base; handler run; } table[] = {
        { "bra", run_bra }, { "brx", run_brx }, { "call", run_call }, { "ret", run_ret },
        { "exit", run_exit }, { "trap", run_trap }, { "brkpt", run_trap },
        { "pmevent", run_nothing },
    };
    i->sub = m->base[1] == 'r' && m->base[2] == 'k';
    for (size_t k = 0; k < COUNT(table); ++k) {
        if (strcmp(table[k].base, m->base) == 0) return table[k].run;
    }
    return NULL;
}

const op_entry control_ops[] = {
    { "bra", "uni", choose, PTXSIM_CONTROL, 0 },
    { "brx", "idx uni", choose, PTXSIM_CONTROL, 0 },
    { "call", "uni", choose, PTXSIM_CONTROL, 0 },
    { "ret", "uni", choose, PTXSIM_CONTROL, 0 },
    { "exit", "", choose, PTXSIM_CONTROL, 0 },
    { "trap", "", choose, PTXSIM_CONTROL, 0 },
    { "brkpt", "", choose, PTXSIM_CONTROL, 0 },
    { "pmevent", "", choose, PTXSIM_CONTROL, 0 },
    { NULL, NULL, NULL, 0, 0 },
};
