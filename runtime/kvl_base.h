// kvl_base.h -- status, message, memory, log, 16-bit floats: what every other runtime file stands
// on.
//
// Holds the context's struct, so that each later file can reach its part of it.  Written in the
// part of C99 that is also C++17.

#ifndef KVL_BASE_H
#define KVL_BASE_H

#include "kvloom.h"

#if defined(__FAST_MATH__)
#error "kvloom: compile the file that defines KVLOOM_IMPLEMENTATION without -ffast-math"
#endif

#include <float.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif
#include <sys/types.h>
#include <unistd.h>

#ifdef KVLOOM_STATIC
#define KVL__PUBLIC __attribute__((unused)) static
#else
#define KVL__PUBLIC
#endif

// A private function that a build may leave unused.
#define KVL__FN static __attribute__((unused))

#ifdef KVLOOM_DEBUG
#define KVL_ASSERT(cond) ((cond) ? (void)0 : kvl__assert_failed(#cond, __FILE__, __LINE__))
KVL__FN void kvl__assert_failed(const char* cond, const char* file, int line)
{
    fprintf(stderr, "kvloom: %s:%d: %s does not hold\n", file, line, cond);
    __builtin_trap();
}
#else
#define KVL_ASSERT(cond) ((void)0)
#endif

enum { KVL__MESSAGE_BYTES = 1024, KVL__MAX_THREADS = 256 };

typedef struct kvl__pool    kvl__pool;      // kvl_threads.h
typedef struct kvl__programs kvl__programs; // kvl_kernels.h
typedef struct kvl__gpu      kvl__gpu;      // kvl_driver.h
typedef struct kvl__nvrtc    kvl__nvrtc;    // kvl_nvrtc.h

struct kvl_context {
    kvl_target      target;
    kvl_allocator   allocator;
    kvl_device_allocator device_allocator;
    kvl_log         log;
    int             broken;              // creation failed: only message and destroy are allowed
    pid_t           pid;                 // of the process that made it
    pthread_mutex_t lock;                // guards message, compile_log and said_*
    char            message[KVL__MESSAGE_BYTES];
    char*           compile_log;         // malloc'ed by kvl__set_compile_log; NULL: none
    size_t          compile_log_bytes;
    kvl__pool*      pool;
    kvl__programs*  programs;
    kvl__gpu*       gpu;                 // NULL: not of KVL_TARGET_CUDA, or desc.arch was given
    const kvl_pack** packs;              // [packs_room], of which num_packs can be used
    int             num_packs, packs_room;
    kvl__nvrtc*     nvrtc;               // NULL: not of KVL_TARGET_CUDA
    int             sm;                  // architecture of kernels for a device: 90
    int             makes_ptx;           // for elsewhere, as desc.arch asks
    char*           folder;              // of the kernel cache; NULL: memory only
    uint64_t        folder_max_bytes;
    char*           compiler;            // resolved path; NULL: none was found
    char*           compiler_asked;      // what desc or environment named; NULL: nothing
    int             compile_seconds;
    char            isa[16];             // name of the instruction set in use
    int             exact;               // attention in float32 throughout
    int             said_saturated, said_folder, said_reference, said_context;
};

// Memory: sizes are passed back on free, so that a counting allocator needs no headers of its own.
KVL__FN void* kvl__alloc(kvl_context* ctx, size_t bytes)
{
    if (bytes == 0) bytes = 1;
    return ctx->allocator.alloc(bytes, ctx->allocator.user);
}

KVL__FN void kvl__free(kvl_context* ctx, void* ptr, size_t bytes)
{
    if (ptr) ctx->allocator.free(ptr, bytes == 0 ? 1 : bytes, ctx->allocator.user);
}

KVL__FN void* kvl__alloc_zeroed(kvl_context* ctx, size_t bytes)
{
    void* ptr = kvl__alloc(ctx, bytes);
    if (ptr) memset(ptr, 0, bytes);
    return ptr;
}

KVL__FN char* kvl__copy_text(kvl_context* ctx, const char* text)
{
    const size_t bytes = strlen(text) + 1;
    char* copy = (char*)kvl__alloc(ctx, bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

KVL__FN void kvl__free_text(kvl_context* ctx, char* text)
{
    if (text) kvl__free(ctx, text, strlen(text) + 1);
}

// Asks for large pages of the system in a stretch of memory that is not touched yet, the parts of
// 2 MB that lie wholly in it.  A system that gives none is no failure.
KVL__FN void kvl__advise_huge(void* memory, uint64_t bytes)
{
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t huge = (uintptr_t)1 << 21, end = (uintptr_t)memory + (uintptr_t)bytes;
    const uintptr_t first = ((uintptr_t)memory + huge - 1) & ~(huge - 1);
    if (first < (end & ~(huge - 1)))
        (void)madvise((void*)first, (size_t)((end & ~(huge - 1)) - first), MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

KVL__FN void* kvl__default_alloc(size_t bytes, void* user) { (void)user; return malloc(bytes); }

KVL__FN void kvl__default_free(void* ptr, size_t bytes, void* user)
{
    (void)bytes;
    (void)user;
    free(ptr);
}

// Writes the context's message and returns status: `return kvl__fail(ctx, KVL_X, "...", ...);`
__attribute__((format(printf, 3, 4)))
KVL__FN kvl_status kvl__fail(kvl_context* ctx, kvl_status status, const char* format, ...)
{
    va_list args;
    pthread_mutex_lock(&ctx->lock);
    va_start(args, format);
    vsnprintf(ctx->message, sizeof ctx->message, format, args);
    va_end(args);
    pthread_mutex_unlock(&ctx->lock);
    return status;
}

__attribute__((format(printf, 3, 4)))
KVL__FN void kvl__say(kvl_context* ctx, kvl_log_level level, const char* format, ...)
{
    char text[KVL__MESSAGE_BYTES];
    va_list args;
    if (!ctx->log.call) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ctx->log.call(level, text, ctx->log.user);
}

// Refuses a forked child.  Takes no lock: a thread that the child does not have may hold it.
KVL__FN kvl_status kvl__check_process(kvl_context* ctx)
{
    if (ctx->pid == getpid()) return KVL_OK;
    snprintf(ctx->message, sizeof ctx->message,
             "the context belongs to process %ld: a child must make its own after fork()",
             (long)ctx->pid);
    return KVL_BAD_ARGUMENT;
}

// True for the first caller of a flag: a thing that is said once a context.
KVL__FN int kvl__first_time(kvl_context* ctx, int* said)
{
    pthread_mutex_lock(&ctx->lock);
    const int first = !*said;
    *said = 1;
    pthread_mutex_unlock(&ctx->lock);
    return first;
}

#define KVL__REQUIRE(ctx, cond, status, ...) \
    do { if (!(cond)) return kvl__fail((ctx), (status), __VA_ARGS__); } while (0)

#define KVL__TRY(expr) \
    do { const kvl_status kvl__s = (expr); if (kvl__s != KVL_OK) return kvl__s; } while (0)

// 16-bit floats, in bit arithmetic: the same on every compiler and under every flag.

KVL__FN uint32_t kvl__bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
KVL__FN float kvl__float_of(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
KVL__FN int kvl__is_finite(float x) { return (kvl__bits_of(x) & 0x7f800000u) != 0x7f800000u; }

KVL__FN float kvl__f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 1023u;
    if (e == 31) return kvl__float_of(sign | 0x7f800000u | m << 13);
    if (e != 0) return kvl__float_of(sign | (e + 112) << 23 | m << 13);
    const float tiny = (float)m * 5.9604644775390625e-8f;   // m 2^-24
    return kvl__float_of(sign | kvl__bits_of(tiny));
}

// Nearest, ties to even; beyond the range infinity, as IEEE 754 says.
KVL__FN uint16_t kvl__f32_to_f16(float x)
{
    const uint32_t u = kvl__bits_of(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);            // NaN
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);           // 65520 and more
    if (a >= 0x38800000u) {                                            // normal in f16
        const uint32_t r = a + 0xfffu + (a >> 13 & 1u) - 0x38000000u;
        return (uint16_t)(sign | r >> 13);
    }
    if (a < 0x33000000u) return (uint16_t)sign;                        // below half of 2^-24
    const uint32_t e = a >> 23, m = (a & 0x7fffffu) | 0x800000u, shift = 126u - e;   // 14 to 24
    const uint32_t half = 1u << (shift - 1), rest = m & ((1u << shift) - 1), q = m >> shift;
    return (uint16_t)(sign | (q + (rest > half || (rest == half && (q & 1u)))));
}

KVL__FN float kvl__bf16_to_f32(uint16_t h) { return kvl__float_of((uint32_t)h << 16); }

KVL__FN uint16_t kvl__f32_to_bf16(float x)
{
    const uint32_t u = kvl__bits_of(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 64u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

// Finite in, finite out: the nearest finite value of the type.  Without branches, and with signs in
// comparisons, as the oldest vectors have them: a loop over a row becomes vectors.
KVL__FN uint16_t kvl__f32_to_f16_finite(float x)
{
    const uint32_t u = kvl__bits_of(x);
    const int32_t a = (int32_t)(u & 0x7fffffffu);
    const int32_t top = a < 0x477fe000 ? a : 0x477fe000;               // 65504
    const int32_t normal = (top + 0xfff + (top >> 13 & 1) - 0x38000000) >> 13;
    const int32_t tiny =
        (int32_t)kvl__bits_of(kvl__float_of((uint32_t)top) + 0.5f) - 0x3f000000;   // of 2^-24
    const int32_t is_tiny = -(int32_t)(top < 0x38800000);
    return (uint16_t)((u >> 16 & 0x8000u) | (uint32_t)(normal ^ ((normal ^ tiny) & is_tiny)));
}

KVL__FN uint16_t kvl__f32_to_bf16_finite(float x)
{
    const uint32_t u = kvl__bits_of(x);
    const int32_t a = (int32_t)(u & 0x7fffffffu);
    const int32_t top = a < 0x7f7f0000 ? a : 0x7f7f0000;
    return (uint16_t)((u >> 16 & 0x8000u) | (uint32_t)((top + 0x7fff + (top >> 16 & 1)) >> 16));
}

// num floats, a multiple of 16, as 16 bits.  By sixteens: loops of a known length become vectors
// without being asked to.
KVL__FN void kvl__f32_to_rows(const unsigned char* from, int64_t num, int bf16, uint16_t* to)
{
    for (int64_t at = 0; at < num; at += 16) {
        float x[16];
        memcpy(x, from + 4 * at, sizeof x);
        if (bf16) for (int i = 0; i < 16; ++i) to[at + i] = kvl__f32_to_bf16_finite(x[i]);
        else for (int i = 0; i < 16; ++i) to[at + i] = kvl__f32_to_f16_finite(x[i]);
    }
}

KVL__FN int64_t kvl__min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
KVL__FN int64_t kvl__max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
KVL__FN int64_t kvl__round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

#endif
