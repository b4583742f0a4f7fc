// fuzz_support.h -- what fuzzers share: a counting allocator with a bound, a small cache, files in
// memory.  It is the implementation unit of each of them.

#ifndef FUZZ_SUPPORT_H
#define FUZZ_SUPPORT_H

#ifndef KVLOOM_DEBUG
#define KVLOOM_DEBUG
#endif
#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FUZZ_Q_HEADS = 2, FUZZ_HEADS = 1, FUZZ_DIM = 32, FUZZ_MOST_BYTES = 32 << 20 };

#define FUZZ_HOLDS(cond)                                                     \
    do {                                                                     \
        if (cond) break;                                                     \
        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);           \
        abort();                                                             \
    } while (0)

typedef struct fuzz_memory {
    uint64_t live;
    int64_t  calls, fail_at;           // the call that fails, counted from 1; 0: none
} fuzz_memory;

static void* fuzz_alloc(size_t bytes, void* user)
{
    fuzz_memory* m = (fuzz_memory*)user;
    if (++m->calls == m->fail_at || bytes > FUZZ_MOST_BYTES - m->live) return NULL;
    void* ptr = malloc(bytes);
    if (!ptr) return NULL;
    memset(ptr, 0xff, bytes);          // NaN to whoever reads what was not written
    m->live += bytes;
    return ptr;
}

static void fuzz_free(void* ptr, size_t bytes, void* user)
{
    ((fuzz_memory*)user)->live -= bytes;
    free(ptr);
}

static kvl_context* fuzz_context(fuzz_memory* memory)
{
    kvl_context_desc d;
    kvl_context* ctx;
    memset(&d, 0, sizeof d);
    d.target = KVL_TARGET_REFERENCE;
    d.num_threads = 1;
    d.cache_dir = "";
    d.allocator.alloc = fuzz_alloc;
    d.allocator.free = fuzz_free;
    d.allocator.user = memory;
    FUZZ_HOLDS(kvl_context_create(&d, &ctx) == KVL_OK);
    return ctx;
}

static kvl_layer_desc fuzz_layer(const char* spec)
{
    kvl_layer_desc l;
    memset(&l, 0, sizeof l);
    l.num_q_heads = FUZZ_Q_HEADS;
    l.num_kv_heads = FUZZ_HEADS;
    l.head_dim = FUZZ_DIM;
    l.spec = spec;
    return l;
}

// The newest query of a sequence: every output is finite, whatever the rows are.
static kvl_status fuzz_attend(kvl_cache* cache, kvl_seq seq)
{
    static float q[FUZZ_Q_HEADS * FUZZ_DIM], o[FUZZ_Q_HEADS * FUZZ_DIM];
    kvl_attend_desc t;
    memset(&t, 0, sizeof t);
    for (int i = 0; i < FUZZ_Q_HEADS * FUZZ_DIM; ++i) q[i] = (float)(i % 7) / 8 - 0.25f;
    t.num_seqs = 1;
    t.seqs = &seq;
    t.q.data = q;
    t.o.data = o;
    return kvl_attend(cache, &t);
}

typedef struct fuzz_bytes {
    const uint8_t* from;               // is read
    uint8_t*       to;                 // is written
    size_t         size, room, at;
} fuzz_bytes;

static int fuzz_read(void* to, size_t num, void* user)
{
    fuzz_bytes* b = (fuzz_bytes*)user;
    if (num > b->size - b->at) return 1;
    memcpy(to, b->from + b->at, num);
    b->at += num;
    return 0;
}

#endif
