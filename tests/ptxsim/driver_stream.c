// driver_stream.c -- streams, events, capture and graphs.
//
// Work runs when it is asked for; in late mode, when something has to wait for it.  A graph is the
// list of what was asked for during a capture, in that order.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static stream* streams;
static event* events;
static stream legacy[MAX_DEVICES];
static __thread int mode_of_thread;     // of captures by this thread: global or thread-local ones
static int global_captures;

// STREAMS

stream* stream_of(context* ctx, CUstream handle)
{
    // 1 is the legacy stream, 2 the thread's own, which is the legacy one here.
    if ((uintptr_t)handle <= 2) {
        stream* s = &legacy[ctx->device];
        s->ctx = ctx, s->alive = true;
        return s;
    }
    for (stream* s = streams; s; s = s->next) {
        if (s == handle) return s->alive && s->ctx == ctx ? s : NULL;
    }
    return NULL;
}

static bool is_legacy(const stream* s) { return s >= legacy && s < legacy + MAX_DEVICES; }

static void free_task(task* t)
{
    free(t->staged);
    free(t->params);
    free(t);
}

static void append(task** first, task** last, task* t)
{
    t->next = NULL;
    if (*last) {
        (*last)->next = t;
    } else {
        *first = t;
    }
    *last = t;
}

// DOING IT

static uint8_t* bytes_at(uint64_t address, const allocation* one)
{
    return one ? one->data + (address - one->address) : (uint8_t*)(uintptr_t)address;
}

static CUresult perform_copy(const task* t)
{
    allocation *to, *from;
    if (check_range(t->to, t->bytes, &to) || check_range(t->from, t->bytes, &from)) {
        return FAULT_ILLEGAL_ADDRESS;
    }
    const uint8_t* source = t->staged ? t->staged : bytes_at(t->from, from);
    memmove(bytes_at(t->to, to), source, t->bytes);
    if (to && from) {
        memmove(to->written + (t->to - to->address), from->written + (t->from - from->address),
                t->bytes);
    } else if (to) {
        memset(to->written + (t->to - to->address), 1, t->bytes);
    }
    return CUDA_SUCCESS;
}

static CUresult perform_set(const task* t)
{
    allocation* to;
    if (check_range(t->to, t->bytes, &to)) return FAULT_ILLEGAL_ADDRESS;
    uint8_t* at = bytes_at(t->to, to);
    if (t->width == 1) {
        memset(at, (int)t->value, t->bytes);
    } else {
        for (uint64_t k = 0; k < t->bytes; k += t->width) memcpy(at + k, &t->value, t->width);
    }
    if (to) memset(to->written + (t->to - to->address), 1, t->bytes);
    return CUDA_SUCCESS;
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static CUresult wait_for(event* e, uint64_t number, stream* where);

static CUresult perform(const task* t)
{
    CUresult r = CUDA_SUCCESS;
    if (t->ctx->error) return t->ctx->error;
    switch (t->kind) {
    case WORK_COPY: r = perform_copy(t); break;
    case WORK_SET: r = perform_set(t); break;
    case WORK_LAUNCH: r = perform_launch(t); break;
    case WORK_RECORD: t->event->done = t->number, t->event->time_ms = now_ms(); break;
    case WORK_WAIT: r = wait_for(t->event, t->number, t->where); break;
    case WORK_HOST: t->call(t->argument); break;
    case WORK_FREE: r = memory_free(t->to) ? FAULT_ILLEGAL_ADDRESS : CUDA_SUCCESS; break;
    }
    if (r >= FAULT_ILLEGAL_ADDRESS && r <= FAULT_FAILED) t->ctx->error = r;
    return r;
}

static CUresult perform_first(stream* s)
{
    task* t = s->first;
    s->first = t->next;
    if (!s->first) s->last = NULL;
    const CUresult r = perform(t);
    free_task(t);
    return r;
}

CUresult flush_stream(stream* s)
{
    CUresult r = CUDA_SUCCESS;
    // What the legacy stream does comes after all that was asked of blocking streams.
    if (is_legacy(s)) {
        for (stream* other = streams; other; other = other->next) {
            if (other->flags & NON_BLOCKING || other->ctx != s->ctx) continue;
            while (other->first) {
                const CUresult one = perform_first(other);
                if (!r) r = one;
            }
        }
    }
    while (s->first) {
        const CUresult one = perform_first(s);
        if (!r) r = one;
    }
    return r;
}

CUresult flush_all(void)
{
    CUresult r = CUDA_SUCCESS;
    for (stream* s = streams; s; s = s->next) {
        const CUresult one = flush_stream(s);
        if (!r) r = one;
    }
    for (int k = 0; k < MAX_DEVICES; ++k) {
        const CUresult one = flush_stream(&legacy[k]);
        if (!r) r = one;
    }
    return r;
}

static CUresult wait_for(event* e, uint64_t number, stream* where)
{
    CUresult r = CUDA_SUCCESS;
    while (e->done < number && where && where->first) {
        const CUresult one = perform_first(where);
        if (!r) r = one;
    }
    return r;
}

static task* copy_task(const task* t)
{
    task* own = malloc(sizeof *own);
    if (!own) return NULL;
    *own = *t;
    own->staged = NULL;
    if (t->kind != WORK_LAUNCH) return own;
    const size_t bytes = t->fn->fn->param_bytes + 1u;
    own->params = malloc(bytes);
    if (!own->params) {
        free(own);
        return NULL;
    }
    memcpy(own->params, t->params, bytes);
    return own;
}

static bool blocks_legacy_capture(const stream* s)
{
    for (const stream* other = streams; other; other = other->next) {
        if (other->capture && !(other->flags & NON_BLOCKING) && other->ctx == s->ctx) return true;
    }
    return false;
}

static struct { int skip, num, result, asked; } refusal;

API void ptxsim_refuse(int skip, int num, int result)
{
    enter();
    refusal.skip = skip, refusal.num = num, refusal.result = result, refusal.asked = 0;
    leave(0);
}

API int ptxsim_asked(void)
{
    enter();
    const int asked = refusal.asked;
    leave(0);
    return asked;
}

static CUresult refused(const task* t)
{
    if (t->kind != WORK_COPY && t->kind != WORK_SET && t->kind != WORK_LAUNCH) return 0;
    const int number = refusal.asked++ - refusal.skip;
    return number >= 0 && number < refusal.num ? refusal.result : CUDA_SUCCESS;
}

// Takes what hangs on the task.
CUresult submit(stream* s, const task* what)
{
    CUresult r = refused(what);
    task* t = copy_task(what);
    if (!t && !r) r = OUT_OF_MEMORY;
    if (t) t->staged = what->staged;
    free(what->params);
    if (!r && is_legacy(s) && blocks_legacy_capture(s)) r = CAPTURE_IMPLICIT;
    if (r) {
        if (t) free_task(t);
        return r;
    }
    if (s->capture) {
        append(&s->capture->first, &s->capture->last, t);
        return CUDA_SUCCESS;
    }
    if (!(s->flags & NON_BLOCKING) && !is_legacy(s)) r = flush_stream(&legacy[s->ctx->device]);
    append(&s->first, &s->last, t);
    if (sim_settings.late) return r;
    const CUresult own = flush_stream(s);
    return r ? r : own;
}

API CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority);
API CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority)
{
    (void)priority;
    context* ctx;
    enter();
    const CUresult r = current(&ctx);
    if (r) return leave(r);
    if (!out || flags > NON_BLOCKING) return leave(INVALID_VALUE);
    stream* s = calloc(1, sizeof *s);
    if (!s) return leave(OUT_OF_MEMORY);
    s->ctx = ctx, s->alive = true, s->flags = flags;
    s->next = streams;
    streams = s;
    *out = s;
    return leave(CUDA_SUCCESS);
}

API CUresult cuStreamCreate(CUstream* out, unsigned flags);
API CUresult cuStreamCreate(CUstream* out, unsigned flags)
{
    return cuStreamCreateWithPriority(out, flags, 0);
}

// A stream of any context.
static stream* live_stream(CUstream handle)
{
    context* ctx;
    const CUresult r = current(&ctx);
    if (r == NOT_INITIALIZED || r == INVALID_CONTEXT || r == CONTEXT_DESTROYED) return NULL;
    if ((uintptr_t)handle <= 2) return stream_of(ctx, handle);
    for (stream* s = streams; s; s = s->next) {
        if (s == handle && s->alive) return s;
    }
    return NULL;
}

API CUresult cuStreamDestroy_v2(CUstream handle);
API CUresult cuStreamDestroy_v2(CUstream handle)
{
    enter();
    stream* s = live_stream(handle);
    if (!s || is_legacy(s)) return leave(INVALID_HANDLE);
    flush_stream(s);
    s->alive = false;
    return leave(CUDA_SUCCESS);
}

void forget_streams(const context* ctx)
{
    for (stream* s = streams; s; s = s->next) {
        if (s->ctx == ctx) s->alive = false;
    }
    for (event* e = events; e; e = e->next) {
        if (e->ctx == ctx) e->alive = false;
    }
}

static void invalidate(void)
{
    for (stream* s = streams; s; s = s->next) {
        if (s->capture) s->capture->invalid = true;
    }
}

bool is_captured(const context* ctx)
{
    for (const stream* s = streams; s; s = s->next) {
        if (s->capture && s->ctx == ctx) return true;
    }
    return false;
}

CUresult refuse_in_capture(void)
{
    if (!global_captures && !mode_of_thread) return CUDA_SUCCESS;
    invalidate();
    return CAPTURE_UNSUPPORTED;
}

API CUresult cuStreamSynchronize(CUstream handle);
API CUresult cuStreamSynchronize(CUstream handle)
{
    enter();
    stream* s = live_stream(handle);
    if (!s) return leave(INVALID_HANDLE);
    if (s->capture) {
        s->capture->invalid = true;
        return leave(CAPTURE_UNSUPPORTED);
    }
    if (is_legacy(s) && blocks_legacy_capture(s)) return leave(CAPTURE_IMPLICIT);
    const CUresult r = flush_stream(s);
    return leave(r ? r : s->ctx->error);
}

API CUresult cuStreamQuery(CUstream handle);
API CUresult cuStreamQuery(CUstream handle)
{
    enter();
    stream* s = live_stream(handle);
    if (!s) return leave(INVALID_HANDLE);
    if (s->capture) return leave(CAPTURE_UNSUPPORTED);
    return leave(s->ctx->error ? s->ctx->error : s->first ? NOT_READY : CUDA_SUCCESS);
}

API CUresult cuStreamGetCtx(CUstream handle, CUcontext* ctx);
API CUresult cuStreamGetCtx(CUstream handle, CUcontext* ctx)
{
    enter();
    stream* s = live_stream(handle);
    if (!s || !ctx) return leave(INVALID_HANDLE);
    *ctx = s->ctx;
    return leave(CUDA_SUCCESS);
}

API CUresult cuLaunchHostFunc(CUstream handle, void (*call)(void*), void* argument);
API CUresult cuLaunchHostFunc(CUstream handle, void (*call)(void*), void* argument)
{
    enter();
    stream* s = live_stream(handle);
    if (!s || !call) return leave(s ? INVALID_VALUE : INVALID_HANDLE);
    task t = { 0 };
    t.kind = WORK_HOST, t.ctx = s->ctx, t.call = call, t.argument = argument;
    return leave(submit(s, &t));
}

// EVENTS

API CUresult cuEventCreate(CUevent* out, unsigned flags);
API CUresult cuEventCreate(CUevent* out, unsigned flags)
{
    context* ctx;
    enter();
    const CUresult r = current(&ctx);
    if (r) return leave(r);
    if (!out || flags > 7) return leave(INVALID_VALUE);
    event* e = calloc(1, sizeof *e);
    if (!e) return leave(OUT_OF_MEMORY);
    e->ctx = ctx, e->alive = true, e->flags = flags;
    e->next = events;
    events = e;
    *out = e;
    return leave(CUDA_SUCCESS);
}

static event* live_event(CUevent handle)
{
    for (event* e = events; e; e = e->next) {
        if (e == handle) return e->alive ? e : NULL;
    }
    return NULL;
}

API CUresult cuEventDestroy_v2(CUevent handle);
API CUresult cuEventDestroy_v2(CUevent handle)
{
    enter();
    event* e = live_event(handle);
    if (!e) return leave(INVALID_HANDLE);
    e->alive = false;
    return leave(CUDA_SUCCESS);
}

API CUresult cuEventRecord(CUevent handle, CUstream on);
API CUresult cuEventRecord(CUevent handle, CUstream on)
{
    enter();
    event* e = live_event(handle);
    stream* s = live_stream(on);
    if (!e || !s || e->ctx != s->ctx) return leave(INVALID_HANDLE);
    e->capture = s->capture;
    if (s->capture) return leave(CUDA_SUCCESS);
    task t = { 0 };
    t.kind = WORK_RECORD, t.ctx = s->ctx, t.event = e, t.number = ++e->asked;
    e->where = s;
    return leave(submit(s, &t));
}

API CUresult cuEventQuery(CUevent handle);
API CUresult cuEventQuery(CUevent handle)
{
    enter();
    const event* e = live_event(handle);
    if (!e) return leave(INVALID_HANDLE);
    if (e->capture) return leave(CAPTURE_UNSUPPORTED);
    return leave(e->ctx->error ? e->ctx->error : e->done < e->asked ? NOT_READY : CUDA_SUCCESS);
}

API CUresult cuEventSynchronize(CUevent handle);
API CUresult cuEventSynchronize(CUevent handle)
{
    enter();
    event* e = live_event(handle);
    if (!e) return leave(INVALID_HANDLE);
    if (e->capture) {
        e->capture->invalid = true;
        return leave(CAPTURE_UNSUPPORTED);
    }
    const CUresult r = wait_for(e, e->asked, e->where);
    return leave(r ? r : e->ctx->error);
}

API CUresult cuEventElapsedTime(float* ms, CUevent from, CUevent to);
API CUresult cuEventElapsedTime(float* ms, CUevent from, CUevent to)
{
    enter();
    const event *a = live_event(from), *b = live_event(to);
    // 2: without times
    if (!a || !b || a->flags & 2 || b->flags & 2 || !a->asked || !b->asked) {
        return leave(INVALID_HANDLE);
    }
    if (!ms) return leave(INVALID_VALUE);
    if (a->done < a->asked || b->done < b->asked) return leave(NOT_READY);
    *ms = (float)(b->time_ms - a->time_ms);
    return leave(CUDA_SUCCESS);
}

API CUresult cuEventElapsedTime_v2(float* ms, CUevent from, CUevent to);
API CUresult cuEventElapsedTime_v2(float* ms, CUevent from, CUevent to)
{
    return cuEventElapsedTime(ms, from, to);
}

// A stream that waits for a captured event joins its capture.
API CUresult cuStreamWaitEvent(CUstream handle, CUevent of, unsigned flags);
API CUresult cuStreamWaitEvent(CUstream handle, CUevent of, unsigned flags)
{
    (void)flags;
    enter();
    stream* s = live_stream(handle);
    event* e = live_event(of);
    if (!s || !e) return leave(INVALID_HANDLE);
    if (e->capture || s->capture) {
        if (s->capture && e->capture != s->capture) {
            s->capture->invalid = true;
            return leave(CAPTURE_UNSUPPORTED);
        }
        if (!s->capture) s->capture = e->capture, s->origin = false;
        return leave(CUDA_SUCCESS);
    }
    task t = { 0 };
    t.kind = WORK_WAIT, t.ctx = s->ctx, t.event = e, t.number = e->asked, t.where = e->where;
    return leave(submit(s, &t));
}

// CAPTURE

enum { MODE_GLOBAL, MODE_THREAD, MODE_RELAXED };

API CUresult cuStreamBeginCapture_v2(CUstream handle, int mode);
API CUresult cuStreamBeginCapture_v2(CUstream handle, int mode)
{
    enter();
    stream* s = live_stream(handle);
    if (!s || mode < MODE_GLOBAL || mode > MODE_RELAXED) return leave(INVALID_VALUE);
    if (is_legacy(s)) return leave(CAPTURE_UNSUPPORTED);
    if (s->capture) return leave(INVALID_VALUE);
    graph* g = calloc(1, sizeof *g);
    if (!g) return leave(OUT_OF_MEMORY);
    g->alive = true, g->ctx = s->ctx;
    s->capture = g, s->mode = mode, s->origin = true;
    if (mode == MODE_GLOBAL) ++global_captures;
    if (mode == MODE_THREAD) ++mode_of_thread;
    return leave(CUDA_SUCCESS);
}

static void free_graph(graph* g)
{
    while (g->first) {
        task* next = g->first->next;
        free_task(g->first);
        g->first = next;
    }
    free(g);
}

API CUresult cuStreamEndCapture(CUstream handle, CUgraph* out);
API CUresult cuStreamEndCapture(CUstream handle, CUgraph* out)
{
    enter();
    stream* s = live_stream(handle);
    if (!s || !out) return leave(INVALID_VALUE);
    *out = NULL;
    if (!s->capture) return leave(INVALID_VALUE);
    if (!s->origin) return leave(CAPTURE_UNMATCHED);
    graph* g = s->capture;
    if (s->mode == MODE_GLOBAL) --global_captures;
    if (s->mode == MODE_THREAD) --mode_of_thread;
    for (stream* other = streams; other; other = other->next) {
        if (other->capture == g) other->capture = NULL;
    }
    for (event* e = events; e; e = e->next) {
        if (e->capture == g) e->capture = NULL;
    }
    if (g->invalid) {
        free_graph(g);
        return leave(CAPTURE_INVALIDATED);
    }
    *out = g;
    return leave(CUDA_SUCCESS);
}

// 0 none, 1 active, 2 invalidated
API CUresult cuStreamIsCapturing(CUstream handle, int* status);
API CUresult cuStreamIsCapturing(CUstream handle, int* status)
{
    enter();
    const stream* s = live_stream(handle);
    if (!s || !status) return leave(s ? INVALID_VALUE : INVALID_HANDLE);
    if (is_legacy(s) && blocks_legacy_capture(s)) return leave(CAPTURE_IMPLICIT);
    *status = s->capture ? (s->capture->invalid ? 2 : 1) : 0;
    return leave(CUDA_SUCCESS);
}

API CUresult cuThreadExchangeStreamCaptureMode(int* mode);
API CUresult cuThreadExchangeStreamCaptureMode(int* mode)
{
    if (!mode) return INVALID_VALUE;
    *mode = MODE_GLOBAL;
    return CUDA_SUCCESS;
}

// GRAPHS

API CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph from, uint64_t flags);
API CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph from, uint64_t flags)
{
    (void)flags;
    enter();
    if (!out || !from) return leave(INVALID_VALUE);
    graph* g = calloc(1, sizeof *g);
    if (!g) return leave(OUT_OF_MEMORY);
    g->alive = true, g->ctx = from->ctx;
    for (const task* t = from->first; t; t = t->next) {
        task* own = copy_task(t);
        if (own) append(&g->first, &g->last, own);
    }
    *out = g;
    return leave(CUDA_SUCCESS);
}

// The form before 11.4's flags: a node and a log.
API CUresult cuGraphInstantiate_v2(CUgraphExec* out, CUgraph from, void** node, char* log,
                                   size_t size);
API CUresult cuGraphInstantiate_v2(CUgraphExec* out, CUgraph from, void** node, char* log,
                                   size_t size)
{
    if (node) *node = NULL;
    if (log && size) *log = 0;
    return cuGraphInstantiateWithFlags(out, from, 0);
}

API CUresult cuGraphUpload(CUgraphExec g, CUstream on);
API CUresult cuGraphUpload(CUgraphExec g, CUstream on)
{
    (void)on;
    return g ? CUDA_SUCCESS : INVALID_VALUE;
}

API CUresult cuGraphLaunch(CUgraphExec g, CUstream handle);
API CUresult cuGraphLaunch(CUgraphExec g, CUstream handle)
{
    context* ctx;
    enter();
    CUresult r = current(&ctx);
    stream* s = r ? NULL : live_stream(handle);
    if (!r && (!g || !s)) r = INVALID_VALUE;
    for (const task* t = r ? NULL : g->first; t && !r; t = t->next) {
        task* own = copy_task(t);
        if (!own) {
            r = OUT_OF_MEMORY;
            break;
        }
        // submit takes the parameters and copies the rest.
        r = submit(s, own);
        free(own);
    }
    return leave(r);
}

API CUresult cuGraphGetNodes(CUgraph g, void** nodes, size_t* count);
API CUresult cuGraphGetNodes(CUgraph g, void** nodes, size_t* count)
{
    if (!g || !count) return INVALID_VALUE;
    size_t n = 0;
    for (task* t = g->first; t; t = t->next) {
        if (nodes && n < *count) nodes[n] = t;
        ++n;
    }
    *count = n;
    return CUDA_SUCCESS;
}

API CUresult cuGraphDestroy(CUgraph g);
API CUresult cuGraphDestroy(CUgraph g)
{
    enter();
    if (!g) return leave(INVALID_VALUE);
    free_graph(g);
    return leave(CUDA_SUCCESS);
}

API CUresult cuGraphExecDestroy(CUgraphExec g);
API CUresult cuGraphExecDestroy(CUgraphExec g) { return cuGraphDestroy(g); }
