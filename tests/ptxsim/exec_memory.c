// exec_memory.c -- ld, st, prefetch; what an access costs in sectors and wavefronts.

#include "sim.h"

#include <string.h>

// COSTS

void count_global(warp* w, const uint64_t* address, uint32_t bytes, uint32_t mask, bool store)
{
    uint64_t seen[64];
    uint32_t num_seen = 0, lanes = 0;
    EACH_LANE LANE_IN(mask) {
        ++lanes;
        for (uint64_t s = address[l] >> 5; s <= (address[l] + bytes - 1) >> 5; ++s) {
            uint32_t k = num_seen;
            while (k && seen[k - 1] != s) --k;
            if (!k && num_seen < COUNT(seen)) seen[num_seen++] = s;
        }
    }
    ptxsim_stats* stats = &w->cta->stats;
    if (store) {
        stats->global_store_sectors += num_seen;
        stats->global_store_bytes += (uint64_t)lanes * bytes;
    } else {
        stats->global_load_sectors += num_seen;
        stats->global_load_bytes += (uint64_t)lanes * bytes;
    }
}

// Of the lanes from..to: how many wavefronts their words take, each bank one word at a time.
static uint32_t wavefronts(const uint64_t* address, uint32_t bytes, uint32_t mask, int from, int to)
{
    uint64_t word[64];
    uint8_t bank_count[32] = { 0 };
    uint32_t num_words = 0, most = 0;
    for (int l = from; l < to; ++l) {
        if (!(mask >> l & 1)) continue;
        for (uint64_t a = address[l] >> 2; a <= (address[l] + bytes - 1) >> 2; ++a) {
            uint32_t k = num_words;
            while (k && word[k - 1] != a) --k;
            if (k || num_words == COUNT(word)) continue;
            word[num_words++] = a;
            if (++bank_count[a & 31] > most) most = bank_count[a & 31];
        }
    }
    return most;
}

// 8 bytes a lane go by half warps, 16 by quarters.
void count_shared(warp* w, const uint64_t* address, uint32_t bytes, uint32_t mask)
{
    const int step = bytes > 8 ? 8 : bytes > 4 ? 16 : 32;
    ++w->cta->stats.shared_accesses;
    for (int from = 0; from < 32; from += step) {
        const uint32_t n = wavefronts(address, bytes, mask, from, from + step);
        if (n > 1) w->cta->stats.shared_conflicts += n - 1;
    }
}

static void count_access(warp* w, const insn* i, const uint64_t* address, uint32_t bytes,
                         uint32_t mask, bool store)
{
    if (i->space == SPACE_GLOBAL) {
        count_global(w, address, bytes, mask, store);
    } else if (i->space == SPACE_SHARED) {
        count_shared(w, address, bytes, mask);
    } else if (i->space == SPACE_GENERIC) {
        uint32_t global = 0, shared = 0;
        EACH_LANE LANE_IN(mask) {
            if (!(address[l] >> 56)) global |= 1u << l;
            if (address[l] >> 56 == WINDOW_SHARED >> 56) shared |= 1u << l;
        }
        if (global) count_global(w, address, bytes, global, store);
        if (shared) count_shared(w, address, bytes, shared);
    }
}

// LOADS AND STORES

static void addresses(const warp* w, const operand* o, uint32_t mask, uint64_t* address)
{
    if (o->width == 8) {
        const lane64* base = reg64(w, o);
        EACH_LANE address[l] = base[l] + (uint64_t)o->offset;
    } else {
        const lane32* base = reg32(w, o);
        EACH_LANE address[l] = (uint32_t)(base[l] + (uint32_t)o->offset);
    }
    EACH_LANE if (!(mask >> l & 1)) address[l] = 0;
}

static space where_is(const insn* i, const operand* o)
{
    // A symbol in brackets says its own space.
    return i->space == SPACE_GENERIC ? o->space : i->space;
}

static uint64_t extended(type t, uint64_t x)
{
    switch (t) {
    case T_S8: return (uint64_t)(int64_t)(int8_t)x;
    case T_S16: return (uint64_t)(int64_t)(int16_t)x;
    case T_S32: return (uint64_t)(int64_t)(int32_t)x;
    default: return x;
    }
}

static void load_element(warp* w, const insn* i, const operand* d, int l, const uint8_t* from)
{
    uint64_t x = 0;
    memcpy(&x, from, type_bytes(i->type));
    x = extended(i->type, x);
    if (d->bits < 32) x &= ((uint64_t)1 << d->bits) - 1;
    if (!d->sink) set_lane(w, d, l, x);
}

// Bytes of local memory that nobody wrote make a register that nobody wrote.
static void load_local(warp* w, const operand* d, int l, const uint8_t* from, uint32_t bytes)
{
    if (!d->sink && memchr(w->local_written + (from - w->local), 0, bytes)) {
        w->defined[d->id] &= ~(1u << l);
    }
}

// sub: elements; sub2: volatile or stronger.  relu: element bytes are in round
static void run_ld(warp* w, const insn* i, uint32_t mask)
{
    const operand *d = &i->o[0], *a = &i->o[1];
    const uint32_t size = type_bytes(i->type), bytes = size * i->sub;
    const space where = where_is(i, a);
    uint64_t address[32];
    addresses(w, a, mask, address);
    ++w->cta->time;
    count_access(w, i, address, bytes, mask, false);
    const access_kind how = i->sub2 ? ACCESS_STRONG_READ : ACCESS_READ;
    EACH_LANE LANE_IN(mask) {
        const uint8_t* from = reach(w, l, where, address[l], bytes,
                                    where == SPACE_PARAM ? ACCESS_READ : how, NULL);
        const bool local = from >= w->local && w->local &&
                           from < w->local + (size_t)32 * w->cta->launch->mod->local_bytes;
        for (int k = 0; k < i->sub; ++k) {
            const operand* one = d->kind == OPERAND_VECTOR ? &d->list[k] : d;
            load_element(w, i, one, l, from + (uint32_t)k * size);
            if (local) load_local(w, one, l, from + (uint32_t)k * size, size);
        }
    }
}

static void run_st(warp* w, const insn* i, uint32_t mask)
{
    const operand *a = &i->o[0], *s = &i->o[1];
    const uint32_t size = type_bytes(i->type), bytes = size * i->sub;
    const space where = where_is(i, a);
    uint64_t address[32];
    addresses(w, a, mask, address);
    ++w->cta->time;
    count_access(w, i, address, bytes, mask, true);
    EACH_LANE LANE_IN(mask) {
        uint8_t value[32];
        for (int k = 0; k < i->sub; ++k) {
            const operand* one = s->kind == OPERAND_VECTOR ? &s->list[k] : s;
            const uint64_t x = get_lane(w, one, l);
            memcpy(value + (uint32_t)k * size, &x, size);
        }
        uint8_t* to = reach(w, l, where, address[l], bytes, ACCESS_WRITE, value);
        memcpy(to, value, bytes);
    }
}

static void run_nothing(warp* w, const insn* i, uint32_t mask) { (void)w, (void)i, (void)mask; }

static bool read_shape(const words* m, insn* i)
{
    i->sub = has(m, "v2") ? 2 : has(m, "v4") ? 4 : has(m, "v8") ? 8 : 1;
    if (m->num_types != 1 || m->types[0] == T_PRED || m->types[0] == T_B128) return false;
    return type_bytes(m->types[0]) * i->sub <= 32;
}

static handler choose_ld(const words* m, insn* i)
{
    i->sub2 = has(m, "volatile") || has(m, "relaxed") || has(m, "acquire");
    return read_shape(m, i) ? run_ld : NULL;
}

static handler choose_st(const words* m, insn* i) { return read_shape(m, i) ? run_st : NULL; }

// A policy changes nothing here: it is 0.
static void run_policy(warp* w, const insn* i, uint32_t mask)
{
    EACH_LANE LANE_IN(mask) set_lane(w, &i->o[0], l, 0);
}

static handler choose_policy(const words* m, insn* i)
{
    (void)i;
    return m->num_types == 1 && m->types[0] == T_B64 ? run_policy : NULL;
}

static handler choose_prefetch(const words* m, insn* i)
{
    (void)m, (void)i;
    return run_nothing;
}

#define CACHE_WORDS                                                                                \
    " ca cg cs lu cv wb wt v2 v4 v8 global shared shared::cta local param param::entry"            \
    " param::func const volatile relaxed cta cluster gpu sys"                                      \
    " L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate"         \
    " L2::64B L2::128B L2::256B L2::evict_normal L2::evict_first L2::evict_last L2::cache_hint weak"

const op_entry memory_ops[] = {
    { "ld", "nc acquire" CACHE_WORDS, choose_ld, PTXSIM_MEMORY, 1 },
    { "ldu", "global v2 v4", choose_ld, PTXSIM_MEMORY, 1 },
    { "st", "release" CACHE_WORDS, choose_st, PTXSIM_MEMORY, 0 },
    { "prefetch", "global local L1 L2 L2::evict_last L2::evict_normal", choose_prefetch,
      PTXSIM_MEMORY, 0 },
    { "prefetchu", "L1", choose_prefetch, PTXSIM_MEMORY, 0 },
    { "createpolicy", "fractional L2::evict_first L2::evict_last L2::evict_normal "
      "L2::evict_unchanged", choose_policy, PTXSIM_MEMORY, 1 },
    { "discard", "global L2", choose_prefetch, PTXSIM_MEMORY, 0 },
    { NULL, NULL, NULL, 0, 0 },
};
