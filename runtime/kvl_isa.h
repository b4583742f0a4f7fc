// kvl_isa.h -- the instruction sets of host kernels, and which one this processor has.
//
// A row's name is what KVLOOM_ISA, configurations and gen/isa.lua say; best first, so that the rows
// after it are what serves where it is missing.  The flags are part of every kernel's key, so none
// may mean something else on another machine (no -march=native).

#ifndef KVL_ISA_H
#define KVL_ISA_H

#include "kvl_base.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

typedef struct kvl__isa {
    const char* name;
    int       (*detect)(void);
    const char* flags[10];      // of the compiler; NULL-terminated
} kvl__isa;

#if defined(__x86_64__) || defined(__i386__)

// __builtin_cpu_supports asks the operating system about registers too; it knows f16c only in
// recent compilers, and whoever has AVX2 registers can use it.
KVL__FN int kvl__has_avx2(void)
{
    unsigned a, b, c = 0, d;
    __builtin_cpu_init();
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 29 & 1u)) return 0;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

KVL__FN int kvl__has_avx512bw(void)
{
    return kvl__has_avx2() && __builtin_cpu_supports("avx512f")
        && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl");
}

KVL__FN int kvl__has_avx512(void)
{
    return kvl__has_avx512bw() && __builtin_cpu_supports("avx512vnni");
}

KVL__FN int kvl__has_avxvnni(void)
{
    unsigned a = 0, b, c, d;
    return kvl__has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1u);
}

#else
KVL__FN int kvl__has_avx2(void) { return 0; }
KVL__FN int kvl__has_avxvnni(void) { return 0; }
KVL__FN int kvl__has_avx512bw(void) { return 0; }
KVL__FN int kvl__has_avx512(void) { return 0; }
#endif

KVL__FN int kvl__has_neon(void)
{
#if defined(__aarch64__)
    return 1;                   // part of the architecture
#else
    return 0;
#endif
}

KVL__FN int kvl__has_neondot(void)
{
#if defined(__aarch64__) && defined(__APPLE__)
    return 1;
#elif defined(__aarch64__) && defined(__linux__)
    return (int)(getauxval(AT_HWCAP) >> 20 & 1u);        // HWCAP_ASIMDDP
#else
    return 0;
#endif
}

KVL__FN int kvl__has_portable(void) { return 1; }

static __attribute__((unused)) const kvl__isa kvl__isas[] = {
    { "avx512", kvl__has_avx512,
      { "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx2", "-mfma",
        "-mf16c", NULL, NULL } },
    { "avx512bw", kvl__has_avx512bw,
      { "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c", NULL,
        NULL, NULL } },
    { "avxvnni", kvl__has_avxvnni,
      { "-mavxvnni", "-mavx2", "-mfma", "-mf16c", NULL, NULL, NULL, NULL, NULL, NULL } },
    { "avx2", kvl__has_avx2,
      { "-mavx2", "-mfma", "-mf16c", NULL, NULL, NULL, NULL, NULL, NULL, NULL } },
    { "neondot", kvl__has_neondot,
      { "-march=armv8.2-a+dotprod", NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL } },
    { "neon", kvl__has_neon, { NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL } },
    { "portable", kvl__has_portable,
      { NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL } },
};

enum { KVL__NUM_ISAS = (int)(sizeof kvl__isas / sizeof kvl__isas[0]) };

// The row of a name; NULL if there is none.
KVL__FN const kvl__isa* kvl__isa_find(const char* name)
{
    for (int i = 0; i < KVL__NUM_ISAS; ++i)
        if (strcmp(kvl__isas[i].name, name) == 0) return &kvl__isas[i];
    return NULL;
}

KVL__FN const kvl__isa* kvl__isa_best(void)
{
    for (int i = 0; i < KVL__NUM_ISAS; ++i)
        if (kvl__isas[i].detect()) return &kvl__isas[i];
    return &kvl__isas[KVL__NUM_ISAS - 1];
}

// Writes the names, of those that this processor has where `detected`.
KVL__FN void kvl__isa_list(char* text, size_t size, int detected)
{
    text[0] = '\0';
    for (int i = 0; i < KVL__NUM_ISAS; ++i) {
        if (detected && !kvl__isas[i].detect()) continue;
        if (text[0]) strncat(text, ", ", size - strlen(text) - 1);
        strncat(text, kvl__isas[i].name, size - strlen(text) - 1);
    }
}

// Whether code of one instruction set can be taken where another is meant: it is the same, or a
// later row that this processor has.  0 where it cannot; the more the better.
KVL__FN int kvl__isa_rank(const char* name, const char* meant)
{
    const kvl__isa *isa = kvl__isa_find(name), *wanted = kvl__isa_find(meant);
    if (!isa || !wanted || isa < wanted) return 0;
    return isa == wanted || isa->detect() ? KVL__NUM_ISAS - (int)(isa - kvl__isas) : 0;
}

// Sets ctx->isa to `forced`, or to the best one where it is NULL.  origin says who asked.
KVL__FN kvl_status kvl__isa_choose(kvl_context* ctx, const char* forced, const char* origin)
{
    char allowed[96];
    const kvl__isa* isa = forced ? kvl__isa_find(forced) : kvl__isa_best();
    kvl__isa_list(allowed, sizeof allowed, 1);
    KVL__REQUIRE(ctx, isa, KVL_BAD_ARGUMENT, "%s = %s: unknown; must be one of %s", origin, forced,
                 allowed);
    KVL__REQUIRE(ctx, isa->detect(), KVL_UNSUPPORTED,
                 "%s = %s: this processor lacks it; must be one of %s", origin, isa->name, allowed);
    snprintf(ctx->isa, sizeof ctx->isa, "%s", isa->name);
    return KVL_OK;
}

#endif
