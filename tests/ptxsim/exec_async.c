// exec_async.c -- cp.async, done at the latest moment that is legal: when its thread waits.
//
// From issue to wait the destination is pending: any access to it is a fault.

#include "sim.h"

#include <stdlib.h>
#include <string.h>

static void add_copy(warp* w, copy one)
{
    if (w->num_copies == w->max_copies) {
        w->max_copies = w->max_copies ? 2 * w->max_copies : 64;
        w->copies = realloc(w->copies, (size_t)w->max_copies * sizeof *w->copies);
    }
    w->copies[w->num_copies++] = one;
}

static void set_pending(cta* c, uint32_t to, uint32_t bytes, uint8_t value)
{
    for (uint32_t k = 0; k < bytes; ++k) c->shadow[to - SHARED_FIRST + k].pending = value;
}

static void run_copy(warp* w, const insn* i, uint32_t mask)
{
    const operand *d = &i->o[0], *s = &i->o[1];
    uint64_t from[32], to[32];
    ++w->cta->time;
    EACH_LANE LANE_IN(mask) {
        const uint32_t bytes = (uint32_t)get_lane(w, &i->o[2], l);
        // A 64-bit operand there is a cache policy.
        const bool partial = i->o[3].kind == OPERAND_REG && i->o[3].width == 4;
        const uint32_t useful = partial ? (uint32_t)get_lane(w, &i->o[3], l) : bytes;
        to[l] = WINDOW_OFFSET(get_lane(w, d, l) + (uint64_t)d->offset);
        from[l] = get_lane(w, s, l) + (uint64_t)s->offset;
        if ((bytes != 4 && bytes != 8 && bytes != 16) || useful > bytes) {
            fault(w, FAULT_FAILED, l, "cp.async of %u bytes from %u", bytes, useful);
        }
        if (i->sub && bytes != 16) fault(w, FAULT_FAILED, l, "cp.async.cg of %u bytes", bytes);
        if (from[l] & (bytes - 1)) {
            fault(w, FAULT_MISALIGNED, l, "cp.async of %u bytes from 0x%llx: misaligned", bytes,
                  (unsigned long long)from[l]);
        }
        if (useful) reach_global(w, l, from[l], useful, ACCESS_READ);
        reach(w, l, SPACE_SHARED, to[l], bytes, ACCESS_WRITE, NULL);
        set_pending(w->cta, (uint32_t)to[l], bytes, 1);
        add_copy(w, (copy){ (uint32_t)l, w->group[l], (uint32_t)to[l], bytes, useful, from[l] });
    }
    const uint32_t bytes = (uint32_t)get_lane(w, &i->o[2], first_lane(mask));
    count_global(w, from, bytes, mask, false);
    count_shared(w, to, bytes, mask);
}

static void finish_copy(warp* w, const copy* one)
{
    uint8_t value[16] = { 0 };
    const int lane = (int)one->lane;
    if (one->source_bytes) {
        memcpy(value, reach_global(w, lane, one->from, one->source_bytes, ACCESS_READ),
               one->source_bytes);
    }
    set_pending(w->cta, one->to, one->bytes, 0);
    memcpy(reach(w, lane, SPACE_SHARED, one->to, one->bytes, ACCESS_WRITE, value), value,
           one->bytes);
}

// groups_left < 0: everything, committed or not.
void finish_copies(warp* w, uint32_t mask, int groups_left)
{
    int kept = 0;
    ++w->cta->time;
    for (int k = 0; k < w->num_copies; ++k) {
        const copy one = w->copies[k];
        const bool ready = groups_left < 0 ||
                           one.group + (uint32_t)groups_left < w->group[one.lane];
        if ((mask >> one.lane & 1) && ready) {
            finish_copy(w, &one);
        } else {
            w->copies[kept++] = one;
        }
    }
    w->num_copies = kept;
}

static void run_commit(warp* w, const insn* i, uint32_t mask)
{
    (void)i;
    EACH_LANE LANE_IN(mask)++ w->group[l];
}

static void run_wait_group(warp* w, const insn* i, uint32_t mask)
{
    finish_copies(w, mask, (int)get_lane(w, &i->o[0], first_lane(mask)));
}

static void run_wait_all(warp* w, const insn* i, uint32_t mask)
{
    (void)i;
    finish_copies(w, mask, -1);
}

static handler choose(const words* m, insn* i)
{
    if (!has(m, "async") || m->num_types) return NULL;
    if (has(m, "commit_group")) return m->num_words == 2 ? run_commit : NULL;
    if (has(m, "wait_group")) return m->num_words == 2 ? run_wait_group : NULL;
    if (has(m, "wait_all")) return m->num_words == 2 ? run_wait_all : NULL;
    i->sub = has(m, "cg");
    return has(m, "global") && (has(m, "ca") || has(m, "cg")) ? run_copy : NULL;
}

const op_entry async_ops[] = {
    { "cp", "async ca cg shared shared::cta global L2::64B L2::128B L2::256B L2::cache_hint "
      "commit_group wait_group wait_all", choose, PTXSIM_MEMORY, 0 },
    { NULL, NULL, NULL, 0, 0 },
};
