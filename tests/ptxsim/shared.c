// shared.c -- what is known of each byte of a CTA's shared memory: written, by whom, read by whom.
//
// Two accesses of different threads to a byte, one of them a write, must have a barrier between.
// Each warp's instruction on shared memory has a time; sync_time[a][b] is the latest moment up to
// which what warp b did is ordered before what warp a does.  A barrier joins those who took part.

#include "sim.h"

#include <string.h>

static bool ordered(const cta* c, const warp* w, uint32_t thread, uint32_t time)
{
    return c->sync_time[w->index][(thread - 1) / 32] > time;
}

static void fault_race(warp* w, int lane, uint32_t offset, const char* mine, const char* theirs,
                       uint32_t thread) __attribute__((noreturn));

static void fault_race(warp* w, int lane, uint32_t offset, const char* mine, const char* theirs,
                       uint32_t thread)
{
    fault(w, FAULT_FAILED, lane,
          "race in shared memory: %s of byte 0x%x, which thread %u %s with no barrier between",
          mine, offset + SHARED_FIRST, thread - 1, theirs);
}

static last_read* reads_of(cta* c, uint32_t offset, bool strong)
{
    return c->reads + ((size_t)offset * 2 + strong) * (size_t)c->num_warps;
}

static void note_read(last_read* r, uint8_t lane, uint32_t time)
{
    if (r->lane != lane) r->other_time = r->time, r->other_lane = r->lane, r->lane = lane;
    r->time = time;
}

// Of reads of all warps but the lane itself.
static void check_reads(warp* w, int lane, uint32_t offset, const last_read* reads)
{
    const cta* c = w->cta;
    for (int k = 0; k < c->num_warps; ++k) {
        const last_read* r = &reads[k];
        const bool own = k == w->index && r->lane == lane;
        if ((own ? r->other_time : r->time) < c->sync_time[w->index][k]) continue;
        const uint32_t reader = (uint32_t)k * 32 + (own ? r->other_lane : r->lane);
        fault_race(w, lane, offset, "write", "read", reader + 1);
    }
}

static void check_write(warp* w, int lane, uint32_t offset, bool strong, const uint8_t* value)
{
    cta* c = w->cta;
    shared_byte* s = &c->shadow[offset];
    const uint32_t thread = thread_of(w, lane) + 1;
    if (s->writer && s->writer != thread && !(strong && s->strong)) {
        if (s->write_time == c->time && value) {
            if (c->shared[offset] != *value) {
                fault_race(w, lane, offset, "write", "writes in the same instruction", s->writer);
            }
        } else if (!ordered(c, w, s->writer, s->write_time)) {
            fault_race(w, lane, offset, "write", "wrote", s->writer);
        }
    }
    check_reads(w, lane, offset, reads_of(c, offset, false));
    if (!strong) check_reads(w, lane, offset, reads_of(c, offset, true));
    s->writer = (uint16_t)thread, s->write_time = c->time;
    s->written = 1, s->strong = strong;
}

static void check_read(warp* w, int lane, uint32_t offset, bool strong)
{
    cta* c = w->cta;
    shared_byte* s = &c->shadow[offset];
    const uint32_t thread = thread_of(w, lane) + 1;
    if (!s->written) {
        fault(w, FAULT_FAILED, lane, "read of shared memory never written, byte 0x%x",
              offset + SHARED_FIRST);
    }
    if (s->writer && s->writer != thread && !(strong && s->strong) &&
        !ordered(c, w, s->writer, s->write_time)) {
        fault_race(w, lane, offset, "read", "wrote", s->writer);
    }
    note_read(reads_of(c, offset, strong) + w->index, (uint8_t)lane, c->time);
}

void shared_check(warp* w, int lane, uint32_t offset, uint32_t bytes, access_kind how,
                  const void* value)
{
    const uint8_t* stored = value;
    for (uint32_t k = 0; k < bytes; ++k) {
        if (w->cta->shadow[offset + k].pending) {
            fault(w, FAULT_FAILED, lane, "%s of byte 0x%x of shared memory before cp.async's wait",
                  how == ACCESS_WRITE ? "write" : "read", offset + k + SHARED_FIRST);
        }
        switch (how) {
        case ACCESS_WRITE:
            check_write(w, lane, offset + k, false, stored ? stored + k : NULL);
            break;
        case ACCESS_READ: check_read(w, lane, offset + k, false); break;
        case ACCESS_STRONG_READ: check_read(w, lane, offset + k, true); break;
        case ACCESS_ATOMIC:
            check_read(w, lane, offset + k, true);
            check_write(w, lane, offset + k, true, NULL);
            break;
        }
    }
}

void shared_join(cta* c, const uint32_t participants[MAX_WARPS])
{
    uint32_t latest[MAX_WARPS] = { 0 };
    const uint32_t time = ++c->time;
    for (int p = 0; p < c->num_warps; ++p) {
        if (!participants[p]) continue;
        for (int x = 0; x < c->num_warps; ++x) {
            if (c->sync_time[p][x] > latest[x]) latest[x] = c->sync_time[p][x];
        }
    }
    for (int p = 0; p < c->num_warps; ++p) {
        if (participants[p]) latest[p] = time;
    }
    for (int p = 0; p < c->num_warps; ++p) {
        if (participants[p]) memcpy(c->sync_time[p], latest, sizeof latest);
    }
}
