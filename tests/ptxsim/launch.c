// launch.c -- runs a grid: warps of a CTA in turn, CTAs over host threads; faults stop all.

#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Instructions of one warp before the next has its turn; turns after which lanes that wait at a
// join may go on: what they hold may be what the others spin for.
enum { SLICE = 4096, PATIENCE = 16 };

uint32_t thread_of(const warp* w, int lane) { return (uint32_t)(w->index * 32 + lane); }

// FAULTS

static void describe_place(const warp* w, int lane, char* text, size_t size)
{
    const cta* c = w->cta;
    const launch* run = c->launch;
    const statement* s = w->running->from;
    const char* file = NULL;
    if (s->file > 0 && s->file < run->mod->num_files) file = run->mod->files[s->file];
    const uint32_t t = thread_of(w, lane), x = run->threads[0], y = run->threads[1];
    int n = snprintf(text, size, "kernel %s, ", run->fn->name);
    if (file) n += snprintf(text + n, size - (size_t)n, "%s:%d, ", file, s->file_line);
    n += snprintf(text + n, size - (size_t)n, "PTX line %d: %s%s%s %s", s->line,
                  s->guard ? "@" : "", s->guard ? s->guard : "", s->guard ? " " : "", s->opcode);
    n = n < 0 ? 0 : n;
    for (int k = 0; k < s->num_operands && n < (int)size; ++k) {
        n += snprintf(text + n, size - (size_t)n, "%s%s", k ? ", " : " ", s->operand[k]);
    }
    if (n >= (int)size) return;
    snprintf(text + n, size - (size_t)n, "; CTA (%u,%u,%u), thread (%u,%u,%u)", c->id[0], c->id[1],
             c->id[2], t % x, t / x % y, t / x / y);
}

void fault(warp* w, int code, int lane, const char* format, ...)
{
    cta* c = w->cta;
    launch* run = c->launch;
    char what[400], where[600];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    describe_place(w, lane, where, sizeof where);
    pthread_mutex_lock(&run->lock);
    if (!run->status) {
        __atomic_store_n(&run->status, code, __ATOMIC_RELAXED);
        snprintf(run->fault, sizeof run->fault, "%s; %s", what, where);
    }
    pthread_mutex_unlock(&run->lock);
    longjmp(c->stop, 1);
}

static const char* register_name(const function* fn, uint32_t id, char* text, size_t size)
{
    snprintf(text, size, "?");
    for (int k = 0; k < fn->num_symbols; ++k) {
        const symbol* s = &fn->symbols[k];
        const uint32_t n = s->count ? s->count : 1;
        if (s->kind != SYM_REG || id < s->id || id >= s->id + n) continue;
        if (s->count) snprintf(text, size, "%s%u", s->name, id - s->id);
        else snprintf(text, size, "%s", s->name);
    }
    return text;
}

static void fault_register(warp* w, const insn* i, uint32_t id, uint32_t lanes)
    __attribute__((noreturn));

static void fault_register(warp* w, const insn* i, uint32_t id, uint32_t lanes)
{
    char name[64];
    fault(w, FAULT_FAILED, first_lane(lanes), "read of register %s, never written",
          register_name(i->fn, id, name, sizeof name));
}

// WARPS

static void step(warp* w, const insn* i)
{
    uint32_t mask = w->active;
    w->running = i;
    ++w->pc;
    if (i->guard >= 0) {
        const uint32_t unknown = mask & ~w->defined[i->guard_id];
        if (unknown) fault_register(w, i, i->guard_id, unknown);
        const uint32_t p = w->pred[i->guard];
        mask &= i->guard_not ? ~p : p;
    }
    ptxsim_stats* stats = &w->cta->stats;
    ++stats->warp_instructions[i->stat_class];
    if (!mask) return;
    stats->lane_instructions[i->stat_class] += (uint64_t)__builtin_popcount(mask);
    const bool passes = w->cta->launch->lazy && i->stat_class <= PTXSIM_FLOAT;
    uint32_t unknown = 0;
    for (uint32_t k = 0; k < i->num_uses; ++k) {
        const uint32_t lanes = mask & ~w->defined[i->uses[k]];
        if (lanes && !passes) fault_register(w, i, i->uses[k], lanes);
        unknown |= lanes;
    }
    for (uint32_t k = 0; k < i->num_defs; ++k) w->defined[i->defs[k]] |= mask;
    i->run(w, i, mask);
    for (uint32_t k = 0; unknown && k < i->num_defs; ++k) w->defined[i->defs[k]] &= ~unknown;
}

// The group with the highest program counter, alone.
static void pick_ahead(warp* w)
{
    uint32_t pc = 0, lanes = 0;
    warp_save(w);
    EACH_LANE LANE_IN(w->live & ~w->parked & ~w->waiting) {
        if (w->depth[l] || w->lane_pc[l] < pc) continue;
        lanes = (w->lane_pc[l] > pc ? 0 : lanes) | 1u << l;
        pc = w->lane_pc[l];
    }
    if (!lanes) return;
    w->active = lanes, w->pc = pc, w->merge_pc = UINT32_MAX;
    w->ahead = true;
}

// Until the warp cannot go on or its slice ends.  False: it did nothing.
static bool run_warp(warp* w)
{
    const insn* code = w->cta->launch->mod->code;
    if (!w->active) warp_pick(w);
    if (!w->active) return false;
    if (++w->slices % PATIENCE == 0 && w->merge_pc != UINT32_MAX) pick_ahead(w);
    for (int n = 0; n < SLICE; ++n) {
        ++w->cta->steps;
        step(w, &code[w->pc]);
        if (!w->active) warp_pick(w);
        if (!w->active) break;
        if (w->pc >= w->merge_pc) {
            warp_save(w);
            warp_pick(w);
        }
    }
    if (w->ahead && w->active) {
        warp_save(w);
        warp_pick(w);
    }
    w->ahead = false;
    return true;
}

static void fault_stuck(cta* c) __attribute__((noreturn));

// Nobody can go on: says who waits where.
static void fault_stuck(cta* c)
{
    warp* stuck = NULL;
    int at_barrier = 0, exited = 0;
    for (int k = 0; k < c->num_warps; ++k) {
        warp* w = &c->warps[k];
        if (!w->live) ++exited;
        if (w->waiting) ++at_barrier;
        if (w->parked && (!stuck || !stuck->parked)) stuck = w;
        if (w->waiting && !stuck) stuck = w;
    }
    if (stuck->parked) {
        const int lane = first_lane(stuck->parked);
        stuck->running = &c->launch->mod->code[stuck->lane_pc[lane]];
        fault(stuck, FAULT_FAILED, lane,
              "divergence: lanes 0x%08x wait at a .sync instruction for lanes that do not come",
              stuck->parked);
    }
    const int lane = first_lane(stuck->waiting);
    stuck->running = stuck->at_barrier[lane];
    fault(stuck, FAULT_FAILED, lane,
          "barrier divergence: %d of %d warps wait at barriers that nobody completes, %d have "
          "exited", at_barrier, c->num_warps, exited);
}

static void run_warps(cta* c)
{
    for (;;) {
        bool progress = false, alive = false;
        for (int k = 0; k < c->num_warps; ++k) {
            if (!c->warps[k].live) continue;
            if (run_warp(&c->warps[k])) progress = true;
            if (c->warps[k].live) alive = true;
        }
        if (!alive) return;
        if (!progress) fault_stuck(c);
        if (c->steps > c->launch->limit) {
            fault(&c->warps[0], FAULT_TIMEOUT, 0, "the CTA does not end");
        }
        if (__atomic_load_n(&c->launch->status, __ATOMIC_RELAXED)) longjmp(c->stop, 1);
    }
}

// CTAS

static uint32_t special_value(const cta* c, const warp* w, int lane, int which)
{
    const launch* run = c->launch;
    const uint32_t t = thread_of(w, lane), bit = 1u << lane, x = run->threads[0];
    switch (which) {
    case SPECIAL_TID: return t % x;
    case SPECIAL_TID + 1: return t / x % run->threads[1];
    case SPECIAL_TID + 2: return t / x / run->threads[1];
    case SPECIAL_LANEID: return (uint32_t)lane;
    case SPECIAL_WARPID: return (uint32_t)w->index;
    case SPECIAL_NWARPID: return (uint32_t)c->num_warps;
    case SPECIAL_LANEMASK_EQ: return bit;
    case SPECIAL_LANEMASK_LT: return bit - 1;
    case SPECIAL_LANEMASK_LE: return bit | (bit - 1);
    case SPECIAL_LANEMASK_GT: return ~(bit | (bit - 1));
    case SPECIAL_LANEMASK_GE: return ~(bit - 1);
    case SPECIAL_NSMID: return 1;
    case SPECIAL_DYNAMIC_SMEM: return run->dynamic_bytes;
    case SPECIAL_TOTAL_SMEM: return c->shared_bytes;
    default: break;
    }
    if (which >= SPECIAL_NTID && which < SPECIAL_NTID + 3) {
        return run->threads[which - SPECIAL_NTID];
    }
    if (which >= SPECIAL_CTAID && which < SPECIAL_CTAID + 3) return c->id[which - SPECIAL_CTAID];
    if (which >= SPECIAL_NCTAID && which < SPECIAL_NCTAID + 3) {
        return run->grid[which - SPECIAL_NCTAID];
    }
    return 0;
}

static bool is_used(const launch* run, const function* fn)
{
    return fn == run->fn || (!fn->is_entry && fn->has_body);
}

static void write_specials(cta* c, warp* w)
{
    const module* mod = c->launch->mod;
    for (int f = 0; f < mod->num_functions; ++f) {
        const function* fn = mod->functions[f];
        if (!is_used(c->launch, fn)) continue;
        for (int k = 0; k < fn->num_specials; ++k) {
            if (fn->specials[k].which >= SPECIAL_CLOCK) continue;
            EACH_LANE {
                w->file[fn->specials[k].at + (uint32_t)l] =
                    special_value(c, w, l, fn->specials[k].which);
            }
        }
    }
}

static void write_constants(const launch* run, warp* w)
{
    for (int f = 0; f < run->mod->num_functions; ++f) {
        const function* fn = run->mod->functions[f];
        if (!is_used(run, fn)) continue;
        for (int k = 0; k < fn->num_constants; ++k) {
            const constant* one = &fn->constants[k];
            operand o = { OPERAND_REG, one->width, false, false, 0, one->at, 0, 0, SPACE_GENERIC, 0,
                          NULL };
            EACH_LANE set_lane(w, &o, l, one->value);
        }
    }
}

static void start_warp(cta* c, int index)
{
    warp* w = &c->warps[index];
    const launch* run = c->launch;
    const int lanes = c->num_threads - 32 * index;
    w->initial = w->live = w->active = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
    w->parked = w->waiting = w->slices = 0;
    w->ahead = false;
    w->pc = run->fn->code_first, w->merge_pc = UINT32_MAX;
    w->num_copies = 0;
    memset(w->depth, 0, sizeof w->depth);
    memset(w->group, 0, sizeof w->group);
    memset(w->defined, 0, run->mod->num_ids * sizeof *w->defined);
    w->defined[0] = 0xffffffffu;
    if (run->mod->local_bytes) memset(w->local_written, 0, (size_t)32 * run->mod->local_bytes);
    write_specials(c, w);
}

static void run_cta(cta* c, uint64_t number)
{
    const launch* run = c->launch;
    c->id[0] = (uint32_t)(number % run->grid[0]);
    c->id[1] = (uint32_t)(number / run->grid[0] % run->grid[1]);
    c->id[2] = (uint32_t)(number / run->grid[0] / run->grid[1]);
    // What an earlier CTA did comes before all.
    if (c->time > UINT32_MAX / 2) {
        c->time = 0;
        memset(c->reads, 0, (size_t)c->shared_bytes * (size_t)c->num_warps * 2 * sizeof *c->reads);
    }
    ++c->time, c->steps = 0;
    for (int k = 0; k < MAX_WARPS * MAX_WARPS; ++k) {
        c->sync_time[k / MAX_WARPS][k % MAX_WARPS] = c->time;
    }
    memset(c->barriers, 0, sizeof c->barriers);
    memset(c->shadow, 0, c->shared_bytes * sizeof *c->shadow);
    for (int k = 0; k < c->num_warps; ++k) start_warp(c, k);
    ++c->stats.ctas;
    run_warps(c);
}

// One host thread's room for a CTA.  NULL: no memory.
static cta* make_cta(launch* run)
{
    cta* c = calloc(1, sizeof *c);
    if (!c) return NULL;
    const module* mod = run->mod;
    c->launch = run;
    c->num_threads = (int)(run->threads[0] * run->threads[1] * run->threads[2]);
    c->num_warps = (c->num_threads + 31) / 32;
    c->shared_bytes = run->fn->shared_bytes;
    if (run->dynamic_bytes) c->shared_bytes = mod->dynamic_at + run->dynamic_bytes;
    c->shared = calloc(c->shared_bytes + 1u, 1);
    c->shadow = calloc(c->shared_bytes + 1u, sizeof *c->shadow);
    c->reads = calloc((size_t)c->shared_bytes * (size_t)c->num_warps * 2 + 1, sizeof *c->reads);
    const size_t warps = (size_t)c->num_warps, words = (mod->num_words + 15u) & ~(size_t)15;
    const size_t masks = mod->num_ids + mod->num_preds + 1u, local = (size_t)64 * mod->local_bytes;
    void* files = NULL;
    if (posix_memalign(&files, 64, warps * words * 4)) files = NULL;
    c->files = files;
    c->masks = calloc(warps * masks, sizeof *c->masks);
    c->locals = calloc(warps * local + 1, 1);
    if (!c->shared || !c->shadow || !c->reads || !files || !c->masks || !c->locals) return c;
    memset(files, 0, warps * words * 4);
    for (size_t k = 0; k < warps; ++k) {
        warp* w = &c->warps[k];
        w->cta = c, w->index = (int)k;
        w->file = c->files + k * words;
        w->defined = c->masks + k * masks;
        w->pred = w->defined + mod->num_ids;
        w->local = c->locals + k * local;
        w->local_written = w->local + local / 2;
        write_constants(run, w);
    }
    return c;
}

static void add_stats(ptxsim_stats* to, const ptxsim_stats* from)
{
    // Both are arrays of counters.
    uint64_t sums[sizeof *to / 8], more[sizeof *to / 8];
    memcpy(sums, to, sizeof sums);
    memcpy(more, from, sizeof more);
    for (size_t k = 0; k < COUNT(sums); ++k) sums[k] += more[k];
    memcpy(to, sums, sizeof sums);
}

static void free_cta(cta* c)
{
    for (int k = 0; k < c->num_warps; ++k) free(c->warps[k].copies);
    free(c->shared);
    free(c->shadow);
    free(c->reads);
    free(c->files);
    free(c->masks);
    free(c->locals);
    free(c);
}

static void* work(void* argument)
{
    launch* run = argument;
    cta* volatile c = make_cta(run);
    if (!c || !c->locals || !c->masks || !c->files || !c->shadow || !c->reads || !c->shared) {
        pthread_mutex_lock(&run->lock);
        if (!run->status) __atomic_store_n(&run->status, FAULT_FAILED, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&run->lock);
        if (c) free_cta(c);
        return NULL;
    }
    while (!setjmp(c->stop)) {
        pthread_mutex_lock(&run->lock);
        const uint64_t number = run->status ? run->num_ctas : run->next_cta;
        if (number < run->num_ctas) ++run->next_cta;
        pthread_mutex_unlock(&run->lock);
        if (number >= run->num_ctas) break;
        run_cta(c, number);
    }
    pthread_mutex_lock(&run->lock);
    add_stats(&run->stats, &c->stats);
    pthread_mutex_unlock(&run->lock);
    free_cta(c);
    return NULL;
}

int launch_run(launch* run, int num_threads)
{
    pthread_t threads[64];
    int started = 0;
    pthread_mutex_init(&run->lock, NULL);
    run->num_ctas = (uint64_t)run->grid[0] * run->grid[1] * run->grid[2];
    if (num_threads > 64) num_threads = 64;
    while (started + 1 < num_threads && (uint64_t)started + 1 < run->num_ctas) {
        if (pthread_create(&threads[started], NULL, work, run)) break;
        ++started;
    }
    work(run);
    while (started) pthread_join(threads[--started], NULL);
    pthread_mutex_destroy(&run->lock);
    run->stats.launches = 1;
    return run->status;
}
