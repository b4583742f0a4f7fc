// kvl_threads.h -- one pool of threads a context: parallel_for with the caller as thread 0.
//
// A job is open while it has items.  Workers join an open job, leave it when nothing is left, and
// the caller waits for those who joined, never for those who slept through it: waking a thread
// costs more than many jobs.  Idle workers spin for a moment, since the next job of a decode step
// is near, then sleep.  A caller that finds the pool in use, from inside a body or from another
// thread, does its items itself.  Where the engine runs items on threads of its own, the pool has
// none, and sees to it that one run is asked for at a time.

#ifndef KVL_THREADS_H
#define KVL_THREADS_H

#include "kvl_base.h"

typedef void (*kvl__body)(void* arg, int64_t i, int thread);

enum {
    KVL__POOL_OPEN  = 1 << 20,     // in `state`: the job may be joined; below it: who has joined
    KVL__POOL_SPINS = 4000         // some tens of microseconds
};

struct kvl__pool {
    int             num_threads, num_started;
    kvl_parallel    engine;        // run = NULL: the threads below
    pthread_t       threads[KVL__MAX_THREADS];
    pthread_mutex_t busy;          // held by the caller of a job
    pthread_mutex_t lock;          // guards sleepers, wake and stop
    pthread_cond_t  wake;
    int             sleepers, stop;
    int             state;         // atomic
    kvl__body       body;          // written while no one has joined
    void*           arg;
    int64_t         n;
    int64_t         next;          // atomic: the next item
    int             next_thread;   // atomic: hands out thread numbers at start
};

KVL__FN void kvl__pool_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

KVL__FN void kvl__pool_run(kvl__pool* pool, int thread)
{
    for (;;) {
        const int64_t i = __atomic_fetch_add(&pool->next, 1, __ATOMIC_RELAXED);
        if (i >= pool->n) return;
        pool->body(pool->arg, i, thread);
    }
}

// Joins the open job if there is one; returns whether it did.
KVL__FN int kvl__pool_join(kvl__pool* pool, int thread)
{
    int state = __atomic_load_n(&pool->state, __ATOMIC_ACQUIRE);
    while (state & KVL__POOL_OPEN) {
        if (__atomic_compare_exchange_n(&pool->state, &state, state + 1, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {
            kvl__pool_run(pool, thread);
            __atomic_fetch_sub(&pool->state, 1, __ATOMIC_ACQ_REL);
            return 1;
        }
    }
    return 0;
}

// Sleeps until a job is open; returns 0 when the pool ends.
KVL__FN int kvl__pool_sleep(kvl__pool* pool)
{
    pthread_mutex_lock(&pool->lock);
    ++pool->sleepers;
    while (!pool->stop && !(__atomic_load_n(&pool->state, __ATOMIC_ACQUIRE) & KVL__POOL_OPEN))
        pthread_cond_wait(&pool->wake, &pool->lock);
    --pool->sleepers;
    const int go_on = !pool->stop;
    pthread_mutex_unlock(&pool->lock);
    return go_on;
}

KVL__FN void* kvl__pool_thread(void* user)
{
    kvl__pool* pool = (kvl__pool*)user;
    const int thread = __atomic_fetch_add(&pool->next_thread, 1, __ATOMIC_RELAXED);
    for (;;) {
        int spins = 0;
        while (spins < KVL__POOL_SPINS) {
            if (kvl__pool_join(pool, thread)) spins = 0;
            else ++spins;
            kvl__pool_relax();
        }
        if (!kvl__pool_sleep(pool)) return NULL;
    }
}

KVL__FN void kvl__parallel(kvl_context* ctx, int64_t n, kvl__body body, void* arg)
{
    kvl__pool* pool = ctx->pool;
    if (n <= 1 || !pool || (pool->num_started == 0 && !pool->engine.run)
        || pthread_mutex_trylock(&pool->busy) != 0) {
        for (int64_t i = 0; i < n; ++i) body(arg, i, 0);
        return;
    }
    if (pool->engine.run) {
        pool->engine.run(pool->engine.user, n, body, arg);
        pthread_mutex_unlock(&pool->busy);
        return;
    }
    pool->body = body;
    pool->arg = arg;
    pool->n = n;
    __atomic_store_n(&pool->next, 0, __ATOMIC_RELAXED);
    __atomic_fetch_or(&pool->state, KVL__POOL_OPEN, __ATOMIC_ACQ_REL);
    pthread_mutex_lock(&pool->lock);
    if (pool->sleepers > 0) pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    kvl__pool_run(pool, 0);
    __atomic_fetch_and(&pool->state, ~KVL__POOL_OPEN, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&pool->state, __ATOMIC_ACQUIRE) != 0) kvl__pool_relax();
    pthread_mutex_unlock(&pool->busy);
}

KVL__FN void kvl__pool_destroy(kvl_context* ctx)
{
    kvl__pool* pool = ctx->pool;
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = 1;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->num_started; ++i) pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->busy);
    kvl__free(ctx, pool, sizeof *pool);
    ctx->pool = NULL;
}

// Starts num_threads - 1 workers, or none where the engine has its own.  A thread that cannot be
// started is an error.
KVL__FN kvl_status kvl__pool_create(kvl_context* ctx, int num_threads, const kvl_parallel* engine)
{
    kvl__pool* pool = (kvl__pool*)kvl__alloc_zeroed(ctx, sizeof *pool);
    KVL__REQUIRE(ctx, pool, KVL_NO_MEMORY, "%zu bytes for the thread pool", sizeof *pool);
    pool->num_threads = num_threads;
    pool->next_thread = 1;
    pthread_mutex_init(&pool->busy, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->engine = *engine;
    ctx->pool = pool;
    for (int i = 1; i < num_threads && !engine->run; ++i) {
        if (pthread_create(&pool->threads[pool->num_started], NULL, kvl__pool_thread, pool) != 0) {
            kvl__pool_destroy(ctx);
            return kvl__fail(ctx, KVL_NO_MEMORY, "num_threads = %d: thread %d could not be started",
                             num_threads, i);
        }
        ++pool->num_started;
    }
    return KVL_OK;
}

typedef struct kvl__plain_body {
    void (*body)(void* arg, int64_t i);
    void*  arg;
} kvl__plain_body;

KVL__FN void kvl__call_plain_body(void* arg, int64_t i, int thread)
{
    const kvl__plain_body* plain = (const kvl__plain_body*)arg;
    (void)thread;
    plain->body(plain->arg, i);
}

KVL__PUBLIC void kvl_parallel_for(kvl_context* ctx, int64_t n, void (*body)(void* arg, int64_t i),
                                  void* arg)
{
    kvl__plain_body plain;
    plain.body = body;
    plain.arg = arg;
    if (ctx) kvl__parallel(ctx, n, kvl__call_plain_body, &plain);
    else for (int64_t i = 0; i < n; ++i) body(arg, i);
}

KVL__PUBLIC int kvl_context_threads(const kvl_context* ctx)
{
    return ctx && ctx->pool ? ctx->pool->num_threads : 1;
}

#endif
