// test_ptxsim.c -- the simulator of tests/ptxsim: instructions, detectors, warps, driver, kernels.
//
// Expected values are written by hand from the PTX ISA and IEEE 754, or computed in doubles here.
// The library is $KVLOOM_PTXSIM, or PTXSIM_LIBRARY of the build, or is built by ptxsim/build.sh.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "ptxsim/ptxsim.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef KVLOOM_TEST_SCRATCH
#define KVLOOM_TEST_SCRATCH "/tmp"
#endif
#ifndef KVLOOM_TEST_ROOT
#define KVLOOM_TEST_ROOT "."
#endif
#ifndef PTXSIM_LIBRARY
#define PTXSIM_LIBRARY ""
#endif

typedef uint64_t address;
typedef struct handle* handle;

enum { ILLEGAL_ADDRESS = 700, ASSERTED = 710, MISALIGNED = 716, FAILED = 719 };

// THE LIBRARY

static struct {
    void* library;
    int (*init)(unsigned);
    int (*retain)(handle*, int);
    int (*set_current)(handle);
    int (*load)(handle*, const void*, unsigned, int*, void**);
    int (*unload)(handle);
    int (*function)(handle*, handle, const char*);
    int (*set_attribute)(handle, int, int);
    int (*launch)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  handle, void**, void**);
    int (*alloc)(address*, size_t);
    int (*release)(address);
    int (*to_device)(address, const void*, size_t);
    int (*to_host)(void*, address, size_t);
    int (*fill)(address, unsigned char, size_t);
    int (*synchronize)(void);
    void (*counters)(ptxsim_stats*);
    size_t (*last_fault)(char*, size_t);
    void (*reset)(void);
} sim;

static void* symbol(const char* name)
{
    void* found = dlsym(sim.library, name);
    cr_assert(found, "%s is missing", name);
    return found;
}

static const char* library_path(char* path, size_t size)
{
    const char* given = getenv("KVLOOM_PTXSIM");
    if (given) return given;
    if (*PTXSIM_LIBRARY) return PTXSIM_LIBRARY;
    const char* folder = KVLOOM_TEST_SCRATCH "/ptxsim";
    snprintf(path, size, "%s/libcuda.so.1", folder);
    char command[2048];
    snprintf(command, sizeof command, "sh '%s/tests/ptxsim/build.sh' '%s'", KVLOOM_TEST_ROOT,
             folder);
    cr_assert_eq(system(command), 0, "%s", command);
    return path;
}

// Opens the library with a device of this architecture, and makes its context current.
static void open_sim(const char* arch)
{
    char path[1024];
    setenv("PTXSIM_ARCH", arch, 1);
    const char* where = library_path(path, sizeof path);
    sim.library = dlopen(where, RTLD_NOW | RTLD_LOCAL);
    cr_assert(sim.library, "%s", dlerror());
    *(void**)&sim.init = symbol("cuInit");
    *(void**)&sim.retain = symbol("cuDevicePrimaryCtxRetain");
    *(void**)&sim.set_current = symbol("cuCtxSetCurrent");
    *(void**)&sim.load = symbol("cuModuleLoadDataEx");
    *(void**)&sim.unload = symbol("cuModuleUnload");
    *(void**)&sim.function = symbol("cuModuleGetFunction");
    *(void**)&sim.set_attribute = symbol("cuFuncSetAttribute");
    *(void**)&sim.launch = symbol("cuLaunchKernel");
    *(void**)&sim.alloc = symbol("cuMemAlloc_v2");
    *(void**)&sim.release = symbol("cuMemFree_v2");
    *(void**)&sim.to_device = symbol("cuMemcpyHtoD_v2");
    *(void**)&sim.to_host = symbol("cuMemcpyDtoH_v2");
    *(void**)&sim.fill = symbol("cuMemsetD8_v2");
    *(void**)&sim.synchronize = symbol("cuCtxSynchronize");
    *(void**)&sim.counters = symbol("ptxsim_counters");
    *(void**)&sim.last_fault = symbol("ptxsim_last_fault");
    *(void**)&sim.reset = symbol("ptxsim_reset");
    handle ctx;
    cr_assert_eq(sim.init(0), 0);
    cr_assert_eq(sim.retain(&ctx, 0), 0);
    cr_assert_eq(sim.set_current(ctx), 0);
}

static void open_90(void) { open_sim("sm_90"); }

// With KVLOOM_PTX_DUMP each text is kept there, for ptxas to judge.
static void dump(const char* ptx)
{
    static int count;
    const char* folder = getenv("KVLOOM_PTX_DUMP");
    char path[1024];
    if (!folder) return;
    snprintf(path, sizeof path, "%s/%d-%d.ptx", folder, (int)getpid(), count++);
    FILE* file = fopen(path, "w");
    if (!file) return;
    fputs(ptx, file);
    fclose(file);
}

static handle load_kernel(const char* ptx, const char* name, handle* module)
{
    char log[1024] = "";
    int options[2] = { 5, 6 };
    void* values[2] = { log, (void*)sizeof log };
    handle kernel = NULL;
    dump(ptx);
    const int status = sim.load(module, ptx, 2, options, values);
    cr_assert_eq(status, 0, "load: %d: %s", status, log);
    cr_assert_eq(sim.function(&kernel, *module, name), 0);
    return kernel;
}

static const char* last_fault(void)
{
    static char text[2048];
    sim.last_fault(text, sizeof text);
    return text;
}

static address device_copy(const void* data, size_t bytes)
{
    address at = 0;
    cr_assert_eq(sim.alloc(&at, bytes), 0);
    if (data) cr_assert_eq(sim.to_device(at, data, bytes), 0);
    return at;
}

// INSTRUCTIONS, ONE AT A TIME

typedef struct vector {
    const char* text;           // a b c in %r1 %r2 %r3 (32 bits), %d1 .., %h1 ..
    uint64_t a, b, c;
    uint64_t expected;          // of %r9, %d9, %h9 or %p9 by the kind
    char kind;
} vector;

static int vector_target = 90;
static const char* const vector_head =
    "\n.address_size 64\n"
    ".visible .entry k(.param .u64 out, .param .u64 a, .param .u64 b, .param .u64 c)\n{\n"
    ".reg .pred %p<16>;\n.reg .b16 %h<16>;\n.reg .b32 %r<24>;\n.reg .b64 %d<24>;\n"
    "ld.param.u64 %d0, [out];\ncvta.to.global.u64 %d0, %d0;\n"
    "ld.param.u64 %d1, [a];\nld.param.u64 %d2, [b];\nld.param.u64 %d3, [c];\n"
    "cvt.u32.u64 %r1, %d1;\ncvt.u32.u64 %r2, %d2;\ncvt.u32.u64 %r3, %d3;\n"
    "cvt.u16.u64 %h1, %d1;\ncvt.u16.u64 %h2, %d2;\ncvt.u16.u64 %h3, %d3;\n"
    "setp.ne.u32 %p1, %r1, 0;\nsetp.ne.u32 %p2, %r2, 0;\nsetp.ne.u32 %p3, %r3, 0;\n"
    "mov.u64 %d9, 0;\nmov.u32 %r9, 0;\nmov.u16 %h9, 0;\nsetp.ne.u32 %p9, %r9, 0;\n";
static const char* const vector_tail =
    "\nselp.u32 %r10, 1, 0, %p9;\ncvt.u64.u32 %d10, %r10;\ncvt.u64.u32 %d11, %r9;\n"
    "cvt.u64.u16 %d12, %h9;\nst.global.u64 [%d0], %d9;\nst.global.u64 [%d0+8], %d11;\n"
    "st.global.u64 [%d0+16], %d12;\nst.global.u64 [%d0+24], %d10;\nret;\n}\n";

static void run_vector(const vector* v)
{
    char ptx[4096];
    uint64_t out[4];
    handle module;
    snprintf(ptx, sizeof ptx, ".version 9.0\n.target sm_%d%s%s%s", vector_target, vector_head,
             v->text, vector_tail);
    handle kernel = load_kernel(ptx, "k", &module);
    address at = device_copy(NULL, sizeof out);
    uint64_t a = v->a, b = v->b, c = v->c;
    void* params[] = { &at, &a, &b, &c };
    const int status = sim.launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
    cr_assert_eq(status, 0, "%s: %s", v->text, last_fault());
    cr_assert_eq(sim.to_host(out, at, sizeof out), 0);
    const int index = v->kind == 'd' ? 0 : v->kind == 'r' ? 1 : v->kind == 'h' ? 2 : 3;
    cr_expect_eq(out[index], v->expected, "%s of %llx %llx %llx: %llx, expected %llx", v->text,
                 (unsigned long long)a, (unsigned long long)b, (unsigned long long)c,
                 (unsigned long long)out[index], (unsigned long long)v->expected);
    cr_assert_eq(sim.release(at), 0);
    cr_assert_eq(sim.unload(module), 0);
}

#define RUN(vectors)                                                                               \
    for (size_t k = 0; k < sizeof(vectors) / sizeof((vectors)[0]); ++k) run_vector(&(vectors)[k])

#define MIN32 0x80000000u
#define ALL32 0xffffffffu
#define MIN64 0x8000000000000000u
#define ALL64 0xffffffffffffffffu

// A wrong width, sign or clamp breaks this.
Test(ptxsim, integer_arithmetic, .init = open_90)
{
    static const vector vectors[] = {
        { "add.s32 %r9, %r1, %r2;", 0x7fffffff, 1, 0, MIN32, 'r' },
        { "add.u16 %h9, %h1, %h2;", 0xffff, 2, 0, 1, 'h' },
        { "add.s64 %d9, %d1, %d2;", 0x7fffffffffffffff, 1, 0, MIN64, 'd' },
        { "add.sat.s32 %r9, %r1, %r2;", 0x7fffffff, 1, 0, 0x7fffffff, 'r' },
        { "add.sat.s32 %r9, %r1, %r2;", MIN32, ALL32, 0, MIN32, 'r' },
        { "sub.sat.s32 %r9, %r1, %r2;", MIN32, 1, 0, MIN32, 'r' },
        { "sub.u32 %r9, %r1, %r2;", 0, 1, 0, ALL32, 'r' },
        { "mul.lo.s32 %r9, %r1, %r2;", MIN32, ALL32, 0, MIN32, 'r' },
        { "mul.hi.s32 %r9, %r1, %r2;", MIN32, MIN32, 0, 0x40000000, 'r' },
        { "mul.hi.u32 %r9, %r1, %r2;", ALL32, ALL32, 0, 0xfffffffe, 'r' },
        { "mul.hi.s64 %d9, %d1, %d2;", ALL64, 2, 0, ALL64, 'd' },
        { "mul.hi.u64 %d9, %d1, %d2;", ALL64, 2, 0, 1, 'd' },
        { "mul.hi.u16 %h9, %h1, %h2;", 0xffff, 0xffff, 0, 0xfffe, 'h' },
        { "mul.hi.s16 %h9, %h1, %h2;", 0x8000, 0x8000, 0, 0x4000, 'h' },
        { "mul.wide.s32 %d9, %r1, %r2;", ALL32, 3, 0, (uint64_t)-3, 'd' },
        { "mul.wide.u32 %d9, %r1, %r2;", ALL32, 3, 0, 0x2fffffffd, 'd' },
        { "mul.wide.s16 %r9, %h1, %h2;", 0xffff, 3, 0, (uint32_t)-3, 'r' },
        { "mul.wide.u16 %r9, %h1, 7;", 0xffff, 0, 0, 0x6fff9, 'r' },
        { "mad.lo.s32 %r9, %r1, %r2, %r3;", 7, ALL32, 9, 2, 'r' },
        { "mad.hi.u32 %r9, %r1, %r2, %r3;", ALL32, ALL32, 3, 1, 'r' },
        { "mad.hi.sat.s32 %r9, %r1, %r2, %r3;", 0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff,
          'r' },
        { "mad.wide.s32 %d9, %r1, %r2, %d3;", ALL32, 5, 7, 2, 'd' },
        { "mad.wide.u16 %r9, %h1, %h2, %r3;", 0xffff, 0xffff, 1, 0xfffe0002, 'r' },
        { "div.s32 %r9, %r1, %r2;", (uint32_t)-7, 2, 0, (uint32_t)-3, 'r' },
        { "div.s32 %r9, %r1, %r2;", MIN32, ALL32, 0, MIN32, 'r' },
        { "div.u32 %r9, %r1, %r2;", 7, 0, 0, ALL32, 'r' },
        { "div.u64 %d9, %d1, %d2;", ALL64, 10, 0, 1844674407370955161u, 'd' },
        { "rem.s32 %r9, %r1, %r2;", (uint32_t)-7, 2, 0, ALL32, 'r' },
        { "rem.s32 %r9, %r1, %r2;", MIN32, ALL32, 0, 0, 'r' },
        { "rem.u16 %h9, %h1, %h2;", 0xffff, 0x100, 0, 0xff, 'h' },
        { "min.s32 %r9, %r1, %r2;", MIN32, 1, 0, MIN32, 'r' },
        { "min.u32 %r9, %r1, %r2;", MIN32, 1, 0, 1, 'r' },
        { "max.s16 %h9, %h1, %h2;", 0x8000, 1, 0, 1, 'h' },
        { "max.u64 %d9, %d1, %d2;", MIN64, 1, 0, MIN64, 'd' },
        { "abs.s32 %r9, %r1;", MIN32, 0, 0, MIN32, 'r' },
        { "abs.s32 %r9, %r1;", (uint32_t)-5, 0, 0, 5, 'r' },
        { "neg.s64 %d9, %d1;", 5, 0, 0, (uint64_t)-5, 'd' },
        { "mul24.lo.s32 %r9, %r1, %r2;", 0xffffff, 5, 0, (uint32_t)-5, 'r' },
        { "sad.s32 %r9, %r1, %r2, %r3;", (uint32_t)-3, 4, 10, 17, 'r' },
        { "dp4a.s32.s32 %r9, %r1, %r2, %r3;", 0x80ff7f01, 0x02030405, 1, 255, 'r' },
        { "dp4a.u32.s32 %r9, %r1, %r2, %r3;", 0x000000ff, 0x000000ff, 0, (uint32_t)-255, 'r' },
        { "dp2a.lo.s32.s32 %r9, %r1, %r2, %r3;", 0x0002ffff, 0x00000305, 1, 2, 'r' },
        { "dp2a.hi.s32.u32 %r9, %r1, %r2, %r3;", 0x0002ffff, 0xff050000, 0, 505, 'r' },
    };
    RUN(vectors);
}

// A carry that is lost between words, or read where it must not be.
Test(ptxsim, carries, .init = open_90)
{
    static const vector vectors[] = {
        { "add.cc.u32 %r8, %r1, %r2;\naddc.u32 %r9, %r3, 0;", ALL32, 1, 5, 6, 'r' },
        { "add.cc.u32 %r8, %r1, %r2;\naddc.u32 %r9, %r3, 0;", 1, 1, 5, 5, 'r' },
        { "sub.cc.u32 %r8, %r1, %r2;\nsubc.u32 %r9, %r3, 0;", 1, 2, 5, 4, 'r' },
        { "mad.lo.cc.u32 %r8, %r1, %r2, %r3;\nmadc.hi.u32 %r9, %r1, %r2, 0;", 0x10000, 0xffff,
          0x10000, 1, 'r' },
        { "add.cc.u64 %d8, %d1, %d2;\naddc.u64 %d9, %d3, 0;", ALL64, 1, 5, 6, 'd' },
    };
    RUN(vectors);
}

// Shifts at and beyond the width, fields that leave the word, sign fills.
Test(ptxsim, bits, .init = open_90)
{
    static const vector vectors[] = {
        { "shl.b32 %r9, %r1, %r2;", 1, 31, 0, MIN32, 'r' },
        { "shl.b32 %r9, %r1, %r2;", 1, 32, 0, 0, 'r' },
        { "shl.b32 %r9, %r1, %r2;", 1, ALL32, 0, 0, 'r' },
        { "shl.b16 %h9, %h1, %r2;", 3, 15, 0, 0x8000, 'h' },
        { "shl.b64 %d9, %d1, %r2;", 1, 63, 0, MIN64, 'd' },
        { "shl.b64 %d9, %d1, %r2;", 1, 64, 0, 0, 'd' },
        { "shr.s32 %r9, %r1, %r2;", MIN32, 40, 0, ALL32, 'r' },
        { "shr.u32 %r9, %r1, %r2;", MIN32, 32, 0, 0, 'r' },
        { "shr.s16 %h9, %h1, %r2;", 0x8000, 4, 0, 0xf800, 'h' },
        { "shr.u64 %d9, %d1, 60;", ALL64, 0, 0, 15, 'd' },
        { "shr.s64 %d9, %d1, %r2;", MIN64, 70, 0, ALL64, 'd' },
        { "and.b32 %r9, %r1, %r2;", 0xf0f0, 0xff00, 0, 0xf000, 'r' },
        { "or.b64 %d9, %d1, %d2;", MIN64, 1, 0, MIN64 | 1, 'd' },
        { "xor.b16 %h9, %h1, 0xffff;", 0x1234, 0, 0, 0xedcb, 'h' },
        { "not.b32 %r9, %r1;", 0, 0, 0, ALL32, 'r' },
        { "cnot.b32 %r9, %r1;", 0, 0, 0, 1, 'r' },
        { "cnot.b32 %r9, %r1;", 7, 0, 0, 0, 'r' },
        { "brev.b32 %r9, %r1;", 1, 0, 0, MIN32, 'r' },
        { "brev.b64 %d9, %d1;", 2, 0, 0, (uint64_t)1 << 62, 'd' },
        { "clz.b32 %r9, %r1;", 0, 0, 0, 32, 'r' },
        { "clz.b64 %r9, %d1;", 1, 0, 0, 63, 'r' },
        { "popc.b32 %r9, %r1;", ALL32, 0, 0, 32, 'r' },
        { "popc.b64 %r9, %d1;", ALL64, 0, 0, 64, 'r' },
        { "bfind.u32 %r9, %r1;", 0, 0, 0, ALL32, 'r' },
        { "bfind.u32 %r9, %r1;", 0x100, 0, 0, 8, 'r' },
        { "bfind.s32 %r9, %r1;", 0xfffffffe, 0, 0, 0, 'r' },
        { "bfind.shiftamt.u32 %r9, %r1;", 0x100, 0, 0, 23, 'r' },
        { "bfind.u64 %r9, %d1;", MIN64, 0, 0, 63, 'r' },
        { "bfe.u32 %r9, %r1, %r2, %r3;", 0xabcd1234, 8, 8, 0x12, 'r' },
        { "bfe.s32 %r9, %r1, 28, 8;", 0x80000000, 0, 0, 0xfffffff8, 'r' },
        { "bfe.s32 %r9, %r1, 0, 0;", ALL32, 0, 0, 0, 'r' },
        { "bfe.u32 %r9, %r1, 40, 4;", ALL32, 0, 0, 0, 'r' },
        { "bfe.s32 %r9, %r1, 40, 4;", MIN32, 0, 0, ALL32, 'r' },
        { "bfe.u64 %d9, %d1, 32, 16;", 0x1234567800000000, 0, 0, 0x5678, 'd' },
        { "bfi.b32 %r9, %r1, %r2, 8, 4;", 0xff, 0, 0, 0xf00, 'r' },
        { "bfi.b32 %r9, %r1, %r2, 28, 8;", 0xff, 0, 0, 0xf0000000, 'r' },
        { "bfi.b32 %r9, %r1, %r2, 0, 0;", 0xff, 0x77, 0, 0x77, 'r' },
        { "bfi.b64 %d9, %d1, %d2, 32, 32;", 5, 1, 0, 0x500000001, 'd' },
        { "lop3.b32 %r9, %r1, %r2, %r3, 0xe8;", 0xf0, 0xcc, 0xaa, 0xe8, 'r' },
        { "lop3.b32 %r9, %r1, %r2, %r3, 0x96;", 0xf0, 0xcc, 0xaa, 0x96, 'r' },
        { "lop3.b32 %r9, %r1, %r2, %r3, 0xca;", 0xf0, 0xcc, 0xaa, 0xca, 'r' },
        { "prmt.b32 %r9, %r1, %r2, 0x5410;", 0x44332211, 0x88776655, 0, 0x66552211, 'r' },
        { "prmt.b32 %r9, %r1, %r2, 0xc8f4;", 0x80332211, 0x88776655, 0, 0x0000ff55, 'r' },
        { "prmt.b32.f4e %r9, %r1, %r2, %r3;", 0x44332211, 0x88776655, 1, 0x55443322, 'r' },
        { "prmt.b32.b4e %r9, %r1, %r2, %r3;", 0x44332211, 0x88776655, 1, 0x77881122, 'r' },
        { "prmt.b32.rc8 %r9, %r1, %r2, %r3;", 0x44332211, 0, 2, 0x33333333, 'r' },
        { "prmt.b32.ecl %r9, %r1, %r2, %r3;", 0x44332211, 0, 2, 0x44333333, 'r' },
        { "prmt.b32.ecr %r9, %r1, %r2, %r3;", 0x44332211, 0, 2, 0x33332211, 'r' },
        { "prmt.b32.rc16 %r9, %r1, %r2, %r3;", 0x44332211, 0, 1, 0x44334433, 'r' },
        { "shf.l.wrap.b32 %r9, %r1, %r2, 8;", 0x44332211, 0x88776655, 0, 0x77665544, 'r' },
        { "shf.r.wrap.b32 %r9, %r1, %r2, 40;", 0x44332211, 0x88776655, 0, 0x55443322, 'r' },
        { "shf.r.clamp.b32 %r9, %r1, %r2, 40;", 0x44332211, 0x88776655, 0, 0x88776655, 'r' },
        { "shf.l.clamp.b32 %r9, %r1, %r2, 40;", 0x44332211, 0x88776655, 0, 0x44332211, 'r' },
    };
    RUN(vectors);
}

#define ONE 0x3f800000u
#define INF 0x7f800000u
#define NAN32 0x7fffffffu
#define LEAST32 0x00000001u         // 2^-149

// A second rounding, a lost sign of zero, a NaN that keeps its payload, a flush too many.
Test(ptxsim, floats, .init = open_90)
{
    static const vector vectors[] = {
        { "add.f32 %r9, %r1, %r2;", ONE, 0x33800000, 0, ONE, 'r' },          // 1 + 2^-24: tie, even
        { "add.f32 %r9, %r1, %r2;", ONE, 0x33800001, 0, 0x3f800001, 'r' },
        { "add.rz.f32 %r9, %r1, %r2;", ONE, 0x33ffffff, 0, ONE, 'r' },
        { "add.rp.f32 %r9, %r1, %r2;", ONE, LEAST32, 0, 0x3f800001, 'r' },
        { "add.rm.f32 %r9, %r1, %r2;", ONE, 0x80000001, 0, 0x3f7fffff, 'r' },
        { "add.rm.f32 %r9, %r1, %r2;", ONE, 0xbf800000, 0, 0x80000000, 'r' },
        { "add.rn.f32 %r9, %r1, %r2;", ONE, 0xbf800000, 0, 0, 'r' },
        { "add.f32 %r9, %r1, %r2;", INF, 0xff800000, 0, NAN32, 'r' },
        { "add.f32 %r9, %r1, %r2;", 0xffc12345, ONE, 0, NAN32, 'r' },
        { "add.rz.f32 %r9, %r1, %r2;", 0x7f7fffff, 0x7f7fffff, 0, 0x7f7fffff, 'r' },
        { "add.f32 %r9, %r1, %r2;", LEAST32, LEAST32, 0, 2, 'r' },
        { "add.ftz.f32 %r9, %r1, %r2;", LEAST32, 0x80000001, 0, 0, 'r' },
        { "add.ftz.f32 %r9, %r1, %r2;", 0x00800000, 0x807fffff, 0, 0x00800000, 'r' },
        { "sub.ftz.f32 %r9, %r1, %r2;", 0x00800001, 0x00800000, 0, 0, 'r' },
        { "mul.sat.f32 %r9, %r1, %r2;", 0x40000000, ONE, 0, ONE, 'r' },
        { "mul.sat.f32 %r9, %r1, %r2;", 0xffc00000, ONE, 0, 0, 'r' },
        { "mul.rz.f32 %r9, %r1, %r2;", 0x3f800001, 0x3f800001, 0, 0x3f800002, 'r' },
        { "mul.rp.f32 %r9, %r1, %r2;", 0x3f800001, 0x3f800001, 0, 0x3f800003, 'r' },
        { "mul.f32 %r9, %r1, %r2;", INF, 0, 0, NAN32, 'r' },
        { "mul.f32 %r9, %r1, %r2;", LEAST32, 0x3f000000, 0, 0, 'r' },        // tie to even
        { "fma.rn.f32 %r9, %r1, %r2, %r3;", 0x3f800001, 0x3f800001, 0xbf800002, 0x28800000, 'r' },
        { "fma.rz.f32 %r9, %r1, %r2, %r3;", ONE, LEAST32, ONE, ONE, 'r' },
        { "fma.rp.f32 %r9, %r1, %r2, %r3;", LEAST32, LEAST32, ONE, 0x3f800001, 'r' },
        { "fma.rm.f32 %r9, %r1, %r2, %r3;", LEAST32, 0x80000001, ONE, 0x3f7fffff, 'r' },
        { "div.rn.f32 %r9, %r1, %r2;", ONE, 0x40400000, 0, 0x3eaaaaab, 'r' },
        { "div.rz.f32 %r9, %r1, %r2;", ONE, 0x40400000, 0, 0x3eaaaaaa, 'r' },
        { "div.rm.f32 %r9, %r1, %r2;", ONE, 0xc0400000, 0, 0xbeaaaaab, 'r' },
        { "div.rn.f32 %r9, %r1, %r2;", ONE, 0, 0, INF, 'r' },
        { "div.approx.f32 %r9, %r1, %r2;", ONE, 0x7f000001, 0, 0, 'r' },
        { "div.full.f32 %r9, %r1, %r2;", 0x40c00000, 0x40000000, 0, 0x40400000, 'r' },
        { "rcp.rn.f32 %r9, %r1;", 0x40400000, 0, 0, 0x3eaaaaab, 'r' },
        { "rcp.approx.ftz.f32 %r9, %r1;", LEAST32, 0, 0, INF, 'r' },
        { "rcp.rp.f32 %r9, %r1;", 0x40400000, 0, 0, 0x3eaaaaab, 'r' },
        { "rcp.rz.f32 %r9, %r1;", 0x40400000, 0, 0, 0x3eaaaaaa, 'r' },
        { "sqrt.rn.f32 %r9, %r1;", 0x40000000, 0, 0, 0x3fb504f3, 'r' },
        { "sqrt.rp.f32 %r9, %r1;", 0x40000000, 0, 0, 0x3fb504f4, 'r' },
        { "sqrt.rn.f32 %r9, %r1;", 0xbf800000, 0, 0, NAN32, 'r' },
        { "sqrt.rn.f32 %r9, %r1;", 0x80000000, 0, 0, 0x80000000, 'r' },
    };
    RUN(vectors);
}

// Functions that lose an exact value, a pole or a flush; choices by sign or NaN; f64.
Test(ptxsim, float_functions, .init = open_90)
{
    static const vector vectors[] = {
        { "rsqrt.approx.f32 %r9, %r1;", 0x40800000, 0, 0, 0x3f000000, 'r' },
        { "ex2.approx.f32 %r9, %r1;", 0x40400000, 0, 0, 0x41000000, 'r' },
        { "ex2.approx.ftz.f32 %r9, %r1;", 0xff800000, 0, 0, 0, 'r' },
        { "ex2.approx.ftz.f32 %r9, %r1;", 0xc2fe0000, 0, 0, 0, 'r' },        // 2^-127 flushed
        { "ex2.approx.f32 %r9, %r1;", 0xc2fe0000, 0, 0, 0x00400000, 'r' },
        { "lg2.approx.f32 %r9, %r1;", 0x41000000, 0, 0, 0x40400000, 'r' },
        { "lg2.approx.f32 %r9, %r1;", 0, 0, 0, 0xff800000, 'r' },
        { "sin.approx.f32 %r9, %r1;", 0, 0, 0, 0, 'r' },
        { "cos.approx.f32 %r9, %r1;", 0, 0, 0, ONE, 'r' },
        { "tanh.approx.f32 %r9, %r1;", INF, 0, 0, ONE, 'r' },
        { "abs.f32 %r9, %r1;", 0x80000000, 0, 0, 0, 'r' },
        { "neg.ftz.f32 %r9, %r1;", LEAST32, 0, 0, 0x80000000, 'r' },
        { "min.f32 %r9, %r1, %r2;", 0xffc00000, ONE, 0, ONE, 'r' },
        { "min.f32 %r9, %r1, %r2;", 0, 0x80000000, 0, 0x80000000, 'r' },
        { "max.f32 %r9, %r1, %r2;", 0x80000000, 0, 0, 0, 'r' },
        { "max.NaN.f32 %r9, %r1, %r2;", 0xffc00000, ONE, 0, NAN32, 'r' },
        { "max.f32 %r9, %r1, %r2;", 0xffc00000, 0x7fc00001, 0, NAN32, 'r' },
        { "min.xorsign.abs.f32 %r9, %r1, %r2;", 0xc0000000, ONE, 0, 0xbf800000, 'r' },
        { "copysign.f32 %r9, %r1, %r2;", 0x80000000, ONE, 0, 0xbf800000, 'r' },
        { "testp.subnormal.f32 %p9, %r1;", LEAST32, 0, 0, 1, 'p' },
        { "testp.normal.f32 %p9, %r1;", LEAST32, 0, 0, 0, 'p' },
        { "testp.notanumber.f32 %p9, %r1;", 0x7fc00000, 0, 0, 1, 'p' },
        { "add.f64 %d9, %d1, %d2;", 0x3ff0000000000000, 0x3ca0000000000000, 0,
          0x3ff0000000000000, 'd' },
        { "fma.rn.f64 %d9, %d1, %d2, %d3;", 0x3ff0000000000001, 0x3ff0000000000001,
          0xbff0000000000002, 0x3970000000000000, 'd' },
        { "div.rn.f64 %d9, %d1, %d2;", 0x3ff0000000000000, 0x4008000000000000, 0,
          0x3fd5555555555555, 'd' },
        { "sqrt.rn.f64 %d9, %d1;", 0x4000000000000000, 0, 0, 0x3ff6a09e667f3bcd, 'd' },
        { "min.f64 %d9, %d1, %d2;", 0x7ff8000000000000, 0x3ff0000000000000, 0,
          0x3ff0000000000000, 'd' },
        { "neg.f64 %d9, %d1;", 0, 0, 0, MIN64, 'd' },
    };
    RUN(vectors);
}

// A sum rounded to f32 before it is rounded to f16 gives another last bit.
Test(ptxsim, halves, .init = open_90)
{
    static const vector vectors[] = {
        { "add.f16 %h9, %h1, %h2;", 0x3c00, 0x1000, 0, 0x3c00, 'h' },       // 1 + 2^-11: tie
        { "add.f16 %h9, %h1, %h2;", 0x3c00, 0x1001, 0, 0x3c01, 'h' },
        { "add.f16 %h9, %h1, %h2;", 0x7bff, 0x4c00, 0, 0x7c00, 'h' },       // 65504 + 16
        { "add.f16 %h9, %h1, %h2;", 0x7bff, 0x4bff, 0, 0x7bff, 'h' },
        { "add.sat.f16 %h9, %h1, %h2;", 0x3c00, 0x3c00, 0, 0x3c00, 'h' },
        { "add.f16 %h9, %h1, %h2;", 0x7c00, 0xfc00, 0, 0x7fff, 'h' },
        { "sub.f16 %h9, %h1, %h2;", 0x0001, 0x0002, 0, 0x8001, 'h' },
        { "add.ftz.f16 %h9, %h1, %h2;", 0x0001, 0x0002, 0, 0, 'h' },
        { "mul.f16 %h9, %h1, %h2;", 0x0001, 0x3800, 0, 0, 'h' },            // half of the least
        { "mul.f16 %h9, %h1, %h2;", 0x0003, 0x3800, 0, 2, 'h' },            // 1.5: even
        { "mul.f16x2 %r9, %r1, %r2;", 0x40003c00, 0x42004400, 0, 0x46004400, 'r' },
        { "fma.rn.f16 %h9, %h1, %h2, %h3;", 0x3c01, 0x3c01, 0xbc02, 0x0010, 'h' },
        { "fma.rn.f16 %h9, %h1, %h2, %h3;", 0x3c00, 0x0001, 0x7bff, 0x7bff, 'h' },
        // 1 + 2^-10 + 2^-11 - 2^-31: below the tie by less than an f32 can say.
        { "fma.rn.f16 %h9, %h1, %h2, %h3;", 0x2401, 0x27fe, 0x3c01, 0x3c01, 'h' },
        { "fma.rn.relu.f16 %h9, %h1, %h2, %h3;", 0x3c00, 0xbc00, 0, 0, 'h' },
        { "fma.rn.f16x2 %r9, %r1, %r2, %r3;", 0x3c003c00, 0x40004200, 0x3c003c00, 0x42004400, 'r' },
        { "min.f16 %h9, %h1, %h2;", 0x7e00, 0x3c00, 0, 0x3c00, 'h' },
        { "max.f16x2 %r9, %r1, %r2;", 0x8000bc00, 0x00003c00, 0, 0x00003c00, 'r' },
        { "max.NaN.f16 %h9, %h1, %h2;", 0x7e00, 0x3c00, 0, 0x7fff, 'h' },
        { "neg.f16 %h9, %h1;", 0x3c00, 0, 0, 0xbc00, 'h' },
        { "abs.f16x2 %r9, %r1;", 0xbc008000, 0, 0, 0x3c000000, 'r' },
        { "ex2.approx.f16 %h9, %h1;", 0x4200, 0, 0, 0x4800, 'h' },
        { "ex2.approx.f16x2 %r9, %r1;", 0x42003c00, 0, 0, 0x48004000, 'r' },
        { "tanh.approx.f16 %h9, %h1;", 0x7c00, 0, 0, 0x3c00, 'h' },
        { "add.rn.bf16 %h9, %h1, %h2;", 0x3f80, 0x3b80, 0, 0x3f80, 'h' },   // 1 + 2^-8: tie
        { "add.rn.bf16 %h9, %h1, %h2;", 0x3f80, 0x3b81, 0, 0x3f81, 'h' },
        { "fma.rn.bf16 %h9, %h1, %h2, %h3;", 0x3f81, 0x3f81, 0xbf82, 0x3880, 'h' },
        // 1 + 2^-7 + 2^-8 - 2^-22: below the tie.
        { "fma.rn.bf16 %h9, %h1, %h2, %h3;", 0x3d81, 0x3d7e, 0x3f81, 0x3f81, 'h' },
        { "fma.rn.bf16 %h9, %h1, %h2, %h3;", 0x3b80, 0x3f80, 0x3f80, 0x3f80, 'h' },
        { "fma.rn.bf16x2 %r9, %r1, %r2, %r3;", 0x3f803f80, 0x40004040, 0x3f803f80, 0x40404080,
          'r' },
        { "mul.rn.bf16x2 %r9, %r1, %r2;", 0x7f7f3f80, 0x40003f80, 0, 0x7f803f80, 'r' },
        { "max.bf16 %h9, %h1, %h2;", 0x7fc0, 0xbf80, 0, 0xbf80, 'h' },
        { "neg.bf16x2 %r9, %r1;", 0x3f80bf80, 0, 0, 0xbf803f80, 'r' },
        { "ex2.approx.ftz.bf16 %h9, %h1;", 0x4040, 0, 0, 0x4100, 'h' },
    };
    RUN(vectors);
}

// Each rounding and clamp of cvt, NaN included.
Test(ptxsim, conversions, .init = open_90)
{
    static const vector vectors[] = {
        { "cvt.s32.s8 %r9, %r1;", 0x180, 0, 0, 0xffffff80, 'r' },
        { "cvt.u32.u16 %r9, %h1;", 0xffff, 0, 0, 0xffff, 'r' },
        { "cvt.s64.s32 %d9, %r1;", MIN32, 0, 0, 0xffffffff80000000, 'd' },
        { "cvt.u64.u32 %d9, %r1;", MIN32, 0, 0, MIN32, 'd' },
        { "cvt.sat.s8.s32 %r9, %r1;", 300, 0, 0, 127, 'r' },
        { "cvt.sat.u8.s32 %r9, %r1;", (uint32_t)-3, 0, 0, 0, 'r' },
        { "cvt.sat.u16.u32 %h9, %r1;", 0x12345, 0, 0, 0xffff, 'h' },
        { "cvt.u16.u32 %h9, %r1;", 0x12345, 0, 0, 0x2345, 'h' },
        { "cvt.rn.f32.s32 %r9, %r1;", 16777217, 0, 0, 0x4b800000, 'r' },
        { "cvt.rp.f32.s32 %r9, %r1;", 16777217, 0, 0, 0x4b800001, 'r' },
        { "cvt.rn.f32.u32 %r9, %r1;", ALL32, 0, 0, 0x4f800000, 'r' },
        { "cvt.rz.f32.u64 %r9, %d1;", ALL64, 0, 0, 0x5f7fffff, 'r' },
        { "cvt.rn.f64.s64 %d9, %d1;", 0x7fffffffffffffff, 0, 0, 0x43e0000000000000, 'd' },
        { "cvt.rn.f16.s32 %h9, %r1;", 2049, 0, 0, 0x6800, 'h' },
        { "cvt.rzi.s32.f32 %r9, %r1;", 0xbfc00000, 0, 0, ALL32, 'r' },
        { "cvt.rmi.s32.f32 %r9, %r1;", 0xbfc00000, 0, 0, 0xfffffffe, 'r' },
        { "cvt.rni.s32.f32 %r9, %r1;", 0x40200000, 0, 0, 2, 'r' },           // 2.5
        { "cvt.rpi.u32.f32 %r9, %r1;", 0x40200000, 0, 0, 3, 'r' },
        { "cvt.rzi.s32.f32 %r9, %r1;", INF, 0, 0, 0x7fffffff, 'r' },
        { "cvt.rzi.u32.f32 %r9, %r1;", 0xbf800000, 0, 0, 0, 'r' },
        { "cvt.rzi.s32.f32 %r9, %r1;", 0x7fc00000, 0, 0, 0, 'r' },
        { "cvt.rzi.s64.f32 %d9, %r1;", 0x7fc00000, 0, 0, MIN64, 'd' },
        { "cvt.rzi.u8.f32 %r9, %r1;", 0x43c80000, 0, 0, 255, 'r' },          // 400
        { "cvt.rzi.s16.f16 %h9, %h1;", 0xc080, 0, 0, 0xfffe, 'h' },
        { "cvt.rni.f32.f32 %r9, %r1;", 0x40200000, 0, 0, 0x40000000, 'r' },
        { "cvt.rmi.f32.f32 %r9, %r1;", 0xbf000000, 0, 0, 0xbf800000, 'r' },
        { "cvt.sat.f32.f32 %r9, %r1;", 0x40000000, 0, 0, ONE, 'r' },
        { "cvt.f32.f16 %r9, %h1;", 0x0001, 0, 0, 0x33800000, 'r' },
        { "cvt.f32.f16 %r9, %h1;", 0xfc00, 0, 0, 0xff800000, 'r' },
        { "cvt.f64.f32 %d9, %r1;", LEAST32, 0, 0, 0x36a0000000000000, 'd' },
        { "cvt.rn.f32.f64 %r9, %d1;", 0x3ff0000010000000, 0, 0, ONE, 'r' },
        { "cvt.rp.f32.f64 %r9, %d1;", 0x3ff0000000000001, 0, 0, 0x3f800001, 'r' },
        { "cvt.rn.f16.f32 %h9, %r1;", 0x477fefff, 0, 0, 0x7bff, 'h' },
        { "cvt.rn.f16.f32 %h9, %r1;", 0x477ff000, 0, 0, 0x7c00, 'h' },
        { "cvt.rz.f16.f32 %h9, %r1;", 0x477ff000, 0, 0, 0x7bff, 'h' },
        { "cvt.rn.f16.f32 %h9, %r1;", 0x33000000, 0, 0, 0, 'h' },            // 2^-25: tie
        { "cvt.rn.f16.f32 %h9, %r1;", 0x33000001, 0, 0, 1, 'h' },
        { "cvt.rn.f16.f32 %h9, %r1;", 0x7fc00000, 0, 0, 0x7fff, 'h' },
        { "cvt.rn.bf16.f32 %h9, %r1;", 0x3f808000, 0, 0, 0x3f80, 'h' },
        { "cvt.rn.bf16.f32 %h9, %r1;", 0x3f818000, 0, 0, 0x3f82, 'h' },
        { "cvt.rz.bf16.f32 %h9, %r1;", 0x3f81ffff, 0, 0, 0x3f81, 'h' },
        { "cvt.f32.bf16 %r9, %h1;", 0x3f81, 0, 0, 0x3f810000, 'r' },
        { "cvt.rn.f16x2.f32 %r9, %r1, %r2;", ONE, 0x40000000, 0, 0x3c004000, 'r' },
        { "cvt.rn.relu.f16x2.f32 %r9, %r1, %r2;", 0xbf800000, 0x40000000, 0, 0x00004000, 'r' },
        { "cvt.rn.bf16x2.f32 %r9, %r1, %r2;", ONE, 0x40000000, 0, 0x3f804000, 'r' },
        { "cvt.rn.satfinite.e4m3x2.f32 %h9, %r1, %r2;", ONE, 0x43e00000, 0, 0x387e, 'h' },
        { "cvt.rn.satfinite.e4m3x2.f32 %h9, %r1, %r2;", 0x7fc00000, 0x49000000, 0, 0x7f7e, 'h' },
        { "cvt.rn.satfinite.e5m2x2.f32 %h9, %r1, %r2;", ONE, 0x49000000, 0, 0x3c7b, 'h' },
        { "cvt.rn.f16x2.e4m3x2 %r9, %h1;", 0x387e, 0, 0, 0x3c005f00, 'r' },
        { "cvt.rn.f16x2.e5m2x2 %r9, %h1;", 0x3c7c, 0, 0, 0x3c007c00, 'r' },
        { "cvt.rn.satfinite.e4m3x2.f16x2 %h9, %r1;", 0x3c00bc00, 0, 0, 0x38b8, 'h' },
        { "cvt.pack.sat.s8.s32.b32 %r9, %r1, %r2, %r3;", 300, (uint32_t)-300, 0x1234, 0x12347f80,
          'r' },
        { "cvt.pack.sat.u16.s32 %r9, %r1, %r2;", 70000, 5, 0, 0xffff0005, 'r' },
    };
    RUN(vectors);
}

// Ordered and unordered, signed and unsigned, both outputs, booleans with a negated predicate.
Test(ptxsim, comparisons, .init = open_90)
{
    static const vector vectors[] = {
        { "setp.lt.s32 %p9, %r1, %r2;", MIN32, 0, 0, 1, 'p' },
        { "setp.lt.u32 %p9, %r1, %r2;", MIN32, 0, 0, 0, 'p' },
        { "setp.hs.u64 %p9, %d1, %d2;", MIN64, 1, 0, 1, 'p' },
        { "setp.gt.s16 %p9, %h1, %h2;", 0x8000, 1, 0, 0, 'p' },
        { "setp.eq.b16 %p9, %h1, 5;", 5, 0, 0, 1, 'p' },
        { "setp.ne.f32 %p9, %r1, %r1;", 0x7fc00000, 0, 0, 0, 'p' },
        { "setp.neu.f32 %p9, %r1, %r1;", 0x7fc00000, 0, 0, 1, 'p' },
        { "setp.leu.f32 %p9, %r1, %r2;", ONE, 0x7fc00000, 0, 1, 'p' },
        { "setp.eq.f32 %p9, %r1, %r2;", 0, 0x80000000, 0, 1, 'p' },
        { "setp.eq.ftz.f32 %p9, %r1, %r2;", LEAST32, 0, 0, 1, 'p' },
        { "setp.num.f32 %p9, %r1, %r2;", ONE, 0, 0, 1, 'p' },
        { "setp.nan.f64 %p9, %d1, %d2;", 0x7ff8000000000000, 0, 0, 1, 'p' },
        { "setp.lt.f16 %p9, %h1, %h2;", 0xbc00, 0x0001, 0, 1, 'p' },
        { "setp.lt.s32 %p8|%p9, %r1, %r2;", 1, 2, 0, 0, 'p' },
        { "setp.lt.and.s32 %p9, %r1, %r2, %p3;", 1, 2, 0, 0, 'p' },
        { "setp.lt.and.s32 %p9, %r1, %r2, !%p3;", 1, 2, 0, 1, 'p' },
        { "setp.gt.or.s32 %p9, %r1, %r2, %p3;", 1, 2, 7, 1, 'p' },
        { "setp.lt.xor.s32 %p9, %r1, %r2, %p3;", 1, 2, 7, 0, 'p' },
        { "setp.gt.f16x2 %p8|%p9, %r1, %r2;", 0x40003c00, 0x3c004000, 0, 1, 'p' },
        { "setp.gt.f16x2 %p9|%p8, %r1, %r2;", 0x40003c00, 0x3c004000, 0, 0, 'p' },
        { "set.lt.u32.s32 %r9, %r1, %r2;", 1, 2, 0, ALL32, 'r' },
        { "set.lt.f32.s32 %r9, %r1, %r2;", 1, 2, 0, ONE, 'r' },
        { "set.gt.f16x2.f16x2 %r9, %r1, %r2;", 0x40003c00, 0x3c004000, 0, 0x3c000000, 'r' },
        { "set.eq.u32.bf16 %r9, %h1, %h2;", 0x3f80, 0x3f80, 0, ALL32, 'r' },
        { "selp.b32 %r9, %r1, %r2, %p3;", 5, 6, 0, 6, 'r' },
        { "selp.b64 %d9, %d1, %d2, %p3;", 5, 6, 1, 5, 'd' },
        { "slct.s32.s32 %r9, %r1, %r2, %r3;", 5, 6, ALL32, 6, 'r' },
        { "slct.u32.f32 %r9, %r1, %r2, %r3;", 5, 6, 0x80000000, 5, 'r' },
        { "and.pred %p9, %p1, %p2;", 1, 1, 0, 1, 'p' },
        { "xor.pred %p9, %p1, %p2;", 1, 1, 0, 0, 'p' },
        { "or.pred %p9, %p1, %p2;", 0, 1, 0, 1, 'p' },
        { "not.pred %p9, %p1;", 1, 0, 0, 0, 'p' },
        { "@%p1 mov.u32 %r9, 7;", 1, 0, 0, 7, 'r' },
        { "@!%p1 mov.u32 %r9, 7;", 1, 0, 0, 0, 'r' },
    };
    RUN(vectors);
}

// Packing, immediates of every spelling, scopes of inline assembly.
Test(ptxsim, moves, .init = open_90)
{
    static const vector vectors[] = {
        { "mov.b32 %r9, {%h1, %h2};", 0x1111, 0x2222, 0, 0x22221111, 'r' },
        { "mov.b32 {%h8, %h9}, %r1;", 0x22221111, 0, 0, 0x2222, 'h' },
        { "mov.b32 {%h9, _}, %r1;", 0x22221111, 0, 0, 0x1111, 'h' },
        { "mov.b64 %d9, {%r1, %r2};", 1, 2, 0, 0x200000001, 'd' },
        { "mov.b64 {%r8, %r9}, %d1;", 0x200000001, 0, 0, 2, 'r' },
        { "mov.b64 %d9, {%h1, %h2, %h3, %h1};", 1, 2, 3, 0x0001000300020001, 'd' },
        { "mov.f32 %r9, 0f3F800000;", 0, 0, 0, ONE, 'r' },
        { "mov.f32 %r9, 1.5;", 0, 0, 0, 0x3fc00000, 'r' },
        { "mov.f64 %d9, 0d3FF0000000000000;", 0, 0, 0, 0x3ff0000000000000, 'd' },
        { "mov.u32 %r9, -1;", 0, 0, 0, ALL32, 'r' },
        { "mov.s64 %d9, -1;", 0, 0, 0, ALL64, 'd' },
        { "mov.u32 %r9, 0b101;", 0, 0, 0, 5, 'r' },
        { "mov.u32 %r9, 0xffU;", 0, 0, 0, 255, 'r' },
        { "mov.u32 %r9, WARP_SZ;", 0, 0, 0, 32, 'r' },
        { "{ .reg .b32 t; mov.b32 t, %r1; { .reg .b32 t; mov.b32 t, 9; } mov.b32 %r9, t; }", 5, 0,
          0, 5, 'r' },
        { "bra $end;\nmov.u32 %r9, 3;\n$end:", 0, 0, 0, 0, 'r' },
        { "mov.u32 %r9, %lanemask_le;", 0, 0, 0, 1, 'r' },
        { "mov.u32 %r9, %lanemask_gt;", 0, 0, 0, 0xfffffffe, 'r' },
        { "mov.u32 %r9, %nctaid.x;", 0, 0, 0, 1, 'r' },
    };
    RUN(vectors);
}

// What later architectures have.
Test(ptxsim, later)
{
    static const vector vectors[] = {
        { "fma.rn.f32x2 %d9, %d1, %d2, %d3;", 0x400000003f800000, 0x3f80000040000000,
          0x3f8000003f800000, 0x4040000040400000, 'd' },
        { "add.f32x2 %d9, %d1, %d2;", 0x400000003f800000, 0x3f80000040000000, 0,
          0x4040000040400000, 'd' },
        { "mul.ftz.f32x2 %d9, %d1, %d2;", 0x0000000140000000, 0x3f80000040000000, 0,
          0x0000000040800000, 'd' },
        { "max.s16x2 %r9, %r1, %r2;", 0x8000ffff, 0x00010002, 0, 0x00010002, 'r' },
        { "min.u16x2 %r9, %r1, %r2;", 0x8000ffff, 0x00010002, 0, 0x00010002, 'r' },
        { "add.u16x2 %r9, %r1, %r2;", 0x8000ffff, 0x80000002, 0, 0x00000001, 'r' },
        { "max.relu.s16x2 %r9, %r1, %r2;", 0x8000ffff, 0xffff0003, 0, 0x00000003, 'r' },
    };
    vector_target = 100;
    open_sim("sm_100");
    RUN(vectors);
}

// KERNELS OF SOME LINES

static int run_target = 90;
static const char* const kernel_head =
    ".version 9.0\n.target sm_%d\n.address_size 64\n%s"
    ".visible .entry k(.param .u64 out, .param .u64 in, .param .u32 n)\n{\n"
    ".reg .pred %%p<16>;\n.reg .b16 %%h<16>;\n.reg .b32 %%r<32>;\n.reg .b64 %%d<24>;\n"
    ".shared .align 16 .b8 sh[4096];\n"
    "ld.param.u64 %%d0, [out];\nld.param.u64 %%d1, [in];\nld.param.u32 %%r0, [n];\n"
    "mov.u32 %%r1, %%tid.x;\nmul.wide.u32 %%d2, %%r1, 4;\nadd.s64 %%d3, %%d0, %%d2;\n"
    "add.s64 %%d4, %%d1, %%d2;\nmov.u32 %%r2, sh;\nshl.b32 %%r3, %%r1, 2;\n"
    "add.u32 %%r4, %%r2, %%r3;\n%s\nret;\n}\n";

typedef struct run {
    const char* globals;        // text before the kernel
    // %r1 is the thread, %d3 out + 4 thread, %d4 in + 4 thread, %r4 sh + 4 thread.
    const char* body;
    unsigned    ctas, threads;
    const void* in;
    size_t      in_bytes;
    uint32_t*   out;
    size_t      out_bytes;
    uint32_t    n;
} run;

static int run_kernel(const run* r)
{
    static char ptx[16384];
    handle module;
    snprintf(ptx, sizeof ptx, kernel_head, run_target, r->globals ? r->globals : "",
             r->body);
    handle kernel = load_kernel(ptx, "k", &module);
    address out = device_copy(NULL, r->out_bytes ? r->out_bytes : 128);
    address in = device_copy(r->in, r->in_bytes ? r->in_bytes : 128);
    uint32_t n = r->n;
    void* params[] = { &out, &in, &n };
    const int status = sim.launch(kernel, r->ctas ? r->ctas : 1, 1, 1, r->threads, 1, 1, 0, NULL,
                                  params, NULL);
    if (!status && r->out) cr_assert_eq(sim.to_host(r->out, out, r->out_bytes), 0);
    return status;
}

// Runs 32 threads (or as many as there are outputs) and compares.
static void expect_lanes(const char* body, const uint32_t* expected, unsigned threads)
{
    uint32_t out[256];
    const run r = { .body = body, .threads = threads, .out = out, .out_bytes = 4 * threads };
    cr_assert_eq(run_kernel(&r), 0, "%s: %s", body, last_fault());
    for (unsigned t = 0; t < threads; ++t) {
        cr_expect_eq(out[t], expected[t], "%s: thread %u: %x, expected %x", body, t, out[t],
                     expected[t]);
    }
}

#define STORE "st.global.u32 [%%d3], %%r9;"

static void fill_lanes(uint32_t* x, unsigned n, uint32_t (*f)(unsigned))
{
    for (unsigned t = 0; t < n; ++t) x[t] = f(t);
}

static uint32_t lane_minus_7(unsigned t) { return t - 7; }

// A conversion that takes the lanes of a wide register for those of a narrow one.
Test(ptxsim, conversions_of_wider_registers, .init = open_90)
{
    uint32_t x[32];
    const char* const bodies[] = {
        "cvt.s64.s32 %d6, %d5;\nshr.u64 %d7, %d6, 32;\ncvt.u32.u64 %r6, %d7;\n"
        "shr.s32 %r7, %r5, 31;\nsub.u32 %r6, %r6, %r7;\ncvt.u32.u64 %r9, %d6;\n"
        "add.u32 %r9, %r9, %r6;\nst.global.u32 [%d3], %r9;",
        "cvt.u64.u32 %d6, %d5;\ncvt.u32.u64 %r9, %d6;\nst.global.u32 [%d3], %r9;",
    };
    fill_lanes(x, 32, lane_minus_7);
    for (size_t k = 0; k < sizeof bodies / sizeof bodies[0]; ++k) {
        char body[1024];
        snprintf(body, sizeof body, "sub.u32 %%r5, %%r1, 7;\ncvt.u64.u32 %%d5, %%r5;\n"
                 "or.b64 %%d5, %%d5, 0x7700000000;\n%s", bodies[k]);
        expect_lanes(body, x, 32);
    }
}

static uint32_t if_odd(unsigned t) { return t & 1 ? 100 + t : 200 + t; }
static uint32_t sum_below(unsigned t) { return t * (t + 1) / 2; }
static uint32_t twice_called(unsigned t) { return t < 10 ? 4 * t : t; }
static uint32_t from_table(unsigned t) { return t & 3 ? (t & 3) * 10 : 7; }

// Lanes that part and meet again, loops of other lengths, a table of targets, early exit.
Test(ptxsim, divergence, .init = open_90)
{
    uint32_t x[32];
    fill_lanes(x, 32, if_odd);
    expect_lanes("and.b32 %r5, %r1, 1;\nsetp.eq.u32 %p1, %r5, 0;\n@%p1 bra $even;\n"
                 "add.u32 %r9, %r1, 100;\nbra.uni $join;\n$even: add.u32 %r9, %r1, 200;\n"
                 "$join: activemask.b32 %r6;\nsetp.ne.u32 %p2, %r6, 0xffffffff;\n@%p2 trap;\n"
                 "st.global.u32 [%d3], %r9;", x, 32);
    fill_lanes(x, 32, sum_below);
    expect_lanes("mov.u32 %r9, 0;\nmov.u32 %r5, 0;\n$loop: add.u32 %r9, %r9, %r5;\n"
                 "setp.eq.u32 %p1, %r5, %r1;\nadd.u32 %r5, %r5, 1;\n@!%p1 bra $loop;\n"
                 "st.global.u32 [%d3], %r9;", x, 32);
    fill_lanes(x, 32, from_table);
    expect_lanes("and.b32 %r5, %r1, 3;\n$table: .branchtargets $a, $b, $c, $e;\n"
                 "brx.idx %r5, $table;\n$a: mov.u32 %r9, 7; bra $join;\n"
                 "$b: mov.u32 %r9, 10; bra $join;\n$c: mov.u32 %r9, 20; bra $join;\n"
                 "$e: mov.u32 %r9, 30;\n$join: st.global.u32 [%d3], %r9;", x, 32);
    expect_lanes("st.global.u32 [%d3], 5;\nsetp.gt.u32 %p1, %r1, 3;\n@%p1 exit;\n"
                 "st.global.u32 [%d3], 6;", (const uint32_t[]){ 6, 6, 6, 6, 5, 5, 5, 5 }, 8);
}

// Lanes that spin for one that waits at the join; a long loop whose end is a barrier.
Test(ptxsim, progress, .init = open_90)
{
    static const uint32_t zero[32];
    uint32_t x[32], out[32];
    const run lock = { .threads = 32, .in = zero, .in_bytes = sizeof zero, .out = out,
                       .out_bytes = sizeof out, .body =
        "mov.u32 %r9, %r1;\n$spin: atom.global.cas.b32 %r5, [%d1], 0, 1;\n"
        "setp.ne.u32 %p1, %r5, 0;\n@%p1 bra $spin;\nld.volatile.global.u32 %r6, [%d1+4];\n"
        "add.u32 %r6, %r6, 1;\nst.volatile.global.u32 [%d1+4], %r6;\nmembar.gl;\n"
        "atom.global.exch.b32 %r5, [%d1], 0;\nbar.warp.sync -1;\n"
        "ld.volatile.global.u32 %r9, [%d1+4];\nst.global.u32 [%d3], %r9;" };
    cr_assert_eq(run_kernel(&lock), 0, "%s", last_fault());
    for (int t = 0; t < 32; ++t) cr_expect_eq(out[t], 32);
    for (int t = 0; t < 32; ++t) x[t] = t ? 0 : 300000;
    expect_lanes("mov.u32 %r9, 0;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra $join;\n"
                 "$loop: add.u32 %r9, %r9, 1;\nsetp.lt.u32 %p2, %r9, 300000;\n@%p2 bra $loop;\n"
                 "$join: bar.sync 0;\nst.global.u32 [%d3], %r9;", x, 32);
}

// Calls from diverged lanes, arguments and results through .param, assertion.
Test(ptxsim, calls, .init = open_90)
{
    uint32_t x[32], out[32];
    const char* twice = ".func (.param .b32 result) twice(.param .b32 x)\n{\n.reg .b32 %r<3>;\n"
        "ld.param.u32 %r1, [x];\nadd.u32 %r2, %r1, %r1;\nst.param.b32 [result], %r2;\nret;\n}\n";
    const char* body = "mov.u32 %r9, %r1;\nsetp.ge.u32 %p1, %r1, 10;\n@%p1 bra $join;\n"
        "{ .param .b32 p0; .param .b32 r0; st.param.b32 [p0], %r9;\n"
        "call.uni (r0), twice, (p0);\nld.param.b32 %r9, [r0]; }\n"
        "{ .param .b32 p0; .param .b32 r0; st.param.b32 [p0], %r9;\n"
        "call (r0), twice, (p0);\nld.param.b32 %r9, [r0]; }\n"
        "$join: st.global.u32 [%d3], %r9;";
    fill_lanes(x, 32, twice_called);
    const run r = { .globals = twice, .body = body, .threads = 32, .out = out,
                    .out_bytes = sizeof out };
    cr_assert_eq(run_kernel(&r), 0, "%s", last_fault());
    cr_expect_arr_eq(out, x, sizeof x);
}

static uint32_t plus_one(unsigned t) { return t < 31 ? t + 1 : t; }
static uint32_t minus_two(unsigned t) { return t > 1 ? t - 2 : t; }
static uint32_t across(unsigned t) { return t ^ 5; }
static uint32_t eighth(unsigned t) { return (t & 24) + 3; }
static uint32_t valid_down(unsigned t) { return t % 8 < 6; }
static uint32_t odd_ballot(unsigned t) { return t & 1 ? 0x00aaaaaa : 0x55555555; }
static uint32_t same_quarter(unsigned t) { return 0xffu << (t / 8 * 8); }
static uint32_t sum_of_half(unsigned t) { return t < 16 ? 120 : 376; }

// The lane that a shuffle reads, segments, the second output, masks of half a warp.
Test(ptxsim, warp, .init = open_90)
{
    static const struct { const char* body; uint32_t (*f)(unsigned); } cases[] = {
        { "shfl.sync.down.b32 %r9, %r1, 1, 31, -1;\nst.global.u32 [%d3], %r9;", plus_one },
        { "shfl.sync.up.b32 %r9, %r1, 2, 0, -1;\nst.global.u32 [%d3], %r9;", minus_two },
        { "shfl.sync.bfly.b32 %r9, %r1, 5, 31, -1;\nst.global.u32 [%d3], %r9;", across },
        { "shfl.sync.idx.b32 %r9, %r1, 3, 0x181f, -1;\nst.global.u32 [%d3], %r9;", eighth },
        { "shfl.sync.down.b32 %r9|%p1, %r1, 2, 0x181f, -1;\nselp.u32 %r9, 1, 0, %p1;\n"
          "st.global.u32 [%d3], %r9;", valid_down },
        // Two halves of the warp come one after the other, each with its own mask.
        { "and.b32 %r5, %r1, 1;\nsetp.eq.u32 %p1, %r5, 0;\nsetp.lt.u32 %p2, %r1, 24;\n"
          "@%p1 bra $even;\nvote.sync.ballot.b32 %r9, %p2, 0xaaaaaaaa;\nbra $join;\n"
          "$even: setp.lt.u32 %p2, %r1, 99;\nvote.sync.ballot.b32 %r9, %p2, 0x55555555;\n"
          "$join: st.global.u32 [%d3], %r9;", odd_ballot },
        { "shr.u32 %r5, %r1, 3;\nmatch.any.sync.b32 %r9, %r5, -1;\nst.global.u32 [%d3], %r9;",
          same_quarter },
        // Different masks in one instruction.
        { "setp.lt.u32 %p1, %r1, 16;\nselp.b32 %r5, 0xffff, 0xffff0000, %p1;\n"
          "redux.sync.add.s32 %r9, %r1, %r5;\nst.global.u32 [%d3], %r9;", sum_of_half },
    };
    uint32_t x[32];
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; ++k) {
        fill_lanes(x, 32, cases[k].f);
        expect_lanes(cases[k].body, x, 32);
    }
    for (int t = 0; t < 32; ++t) x[t] = 31;
    expect_lanes("redux.sync.max.u32 %r9, %r1, -1;\nst.global.u32 [%d3], %r9;", x, 32);
    for (int t = 0; t < 32; ++t) x[t] = 1;
    expect_lanes("setp.lt.u32 %p1, %r1, 40;\nvote.sync.all.pred %p2, %p1, -1;\n"
                 "selp.u32 %r9, 1, 0, %p2;\nst.global.u32 [%d3], %r9;", x, 32);
    for (int t = 0; t < 32; ++t) x[t] = 0;
    expect_lanes("setp.lt.u32 %p1, %r1, 4;\nvote.sync.uni.pred %p2, %p1, -1;\n"
                 "selp.u32 %r9, 1, 0, %p2;\nst.global.u32 [%d3], %r9;", x, 32);
}

static uint32_t reversed(unsigned t) { return 255 - t; }
static uint32_t below_hundred(unsigned t) { (void)t; return 100; }

// Warps that wait for others: values cross a barrier, named barriers count, reductions count.
Test(ptxsim, barriers, .init = open_90)
{
    uint32_t x[256];
    fill_lanes(x, 256, reversed);
    expect_lanes("st.shared.u32 [%r4], %r1;\nbar.sync 0;\nsub.u32 %r5, 255, %r1;\n"
                 "shl.b32 %r5, %r5, 2;\nadd.u32 %r5, %r5, %r2;\nld.shared.u32 %r9, [%r5];\n"
                 "st.global.u32 [%d3], %r9;", x, 256);
    // Each half of the CTA has its own barrier.
    for (unsigned t = 0; t < 256; ++t) x[t] = t ^ 64;
    expect_lanes("st.shared.u32 [%r4], %r1;\nshr.u32 %r5, %r1, 7;\nadd.u32 %r5, %r5, 1;\n"
                 "bar.sync %r5, 128;\nxor.b32 %r6, %r4, 256;\nxor.b32 %r5, %r1, 64;\n"
                 "shl.b32 %r5, %r5, 2;\nadd.u32 %r5, %r5, %r2;\nld.shared.u32 %r9, [%r5];\n"
                 "st.global.u32 [%d3], %r9;", x, 256);
    fill_lanes(x, 256, below_hundred);
    expect_lanes("setp.lt.u32 %p1, %r1, 100;\nbar.red.popc.u32 %r9, 0, %p1;\n"
                 "st.global.u32 [%d3], %r9;", x, 256);
    // Producers arrive and go on; the consumer waits.
    expect_lanes("setp.ge.u32 %p1, %r1, 32;\n@%p1 bra $produce;\nbar.sync 1, 64;\n"
                 "ld.shared.u32 %r9, [sh+128];\nst.global.u32 [%d3], %r9;\nbra $end;\n"
                 "$produce: mov.u32 %r9, 9;\nsetp.eq.u32 %p2, %r1, 32;\n"
                 "@%p2 st.shared.u32 [sh+128], 41;\nbar.arrive 1, 64;\nst.global.u32 [%d3], 42;\n"
                 "$end:", (const uint32_t[64]){ 41, 41, 41, 41, 41, 41, 41, 41, 41, 41, 41, 41, 41,
                 41, 41, 41, 41, 41, 41, 41, 41, 41, 41, 41, 41, 41, 41, 41, 41, 41, 41, 41, 42, 42,
                 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42, 42,
                 42, 42, 42, 42, 42, 42, 42, 42, 42 }, 64);
}

// Vector accesses, extension, generic addresses of each window, local memory.
Test(ptxsim, memory, .init = open_90)
{
    static const uint32_t in[8] = { 0x80ff7f01, 2, 3, 4, 5, 6, 7, 8 };
    static const struct { const char* body; uint32_t expected; } cases[] = {
        { "ld.global.s8 %r9, [%d1+3];", 0xffffff80 }, { "ld.global.u8 %r9, [%d1+3];", 0x80 },
        { "ld.global.s16 %r9, [%d1+2];", 0xffff80ff }, { "ld.global.nc.u32 %r9, [%d1+4];", 2 },
        { "ld.global.v4.u32 {%r5, %r6, %r7, %r9}, [%d1+16];", 8 },
        { "ld.global.v2.u64 {%d5, %d6}, [%d1];\ncvt.u32.u64 %r9, %d6;", 3 },
        { "ld.global.nc.L1::no_allocate.v4.u32 {%r9, _, _, _}, [%d1+16];", 5 },
        { "ld.global.b16 %h1, [%d1];\ncvt.u32.u16 %r9, %h1;", 0x7f01 },
        { "ld.u32 %r9, [%d1+12];", 4 },
        { "st.shared.v2.u32 [sh+8], {7, 9};\nld.shared.u32 %r9, [sh+12];", 9 },
        { "st.shared.u32 [%r2+20], 11;\ncvt.u64.u32 %d5, %r2;\ncvta.shared.u64 %d5, %d5;\n"
          "ld.u32 %r9, [%d5+20];", 11 },
        { "{ .local .align 8 .b8 space[16]; mov.u64 %d5, space; cvta.local.u64 %d6, %d5;\n"
          "st.local.u32 [%d5+4], 21; ld.u32 %r9, [%d6+4]; }", 21 },
        { "mov.b64 %d5, n;\nld.param.u32 %r9, [%d5];", 17 },
        { "cvta.to.global.u64 %d5, %d1;\nisspacep.global %p1, %d1;\nselp.u32 %r9, 1, 0, %p1;", 1 },
        { "mov.u64 %d5, table;\nld.const.u32 %r9, [%d5+4];", 31 },
        { "ld.const.u32 %r9, [table+8];", 32 },
        { "ld.global.u64 %d5, [pointer];\nld.u32 %r9, [%d5];", 31 },
        { "prefetch.global.L2 [%d1];\nmov.u32 %r9, 1;", 1 },
        { "st.global.u32 [%d0], 3;\natom.global.add.u32 %r9, [%d0], 5;\nld.global.u32 %r9, [%d0];",
          8 },
        { "st.shared.u32 [sh], 3;\natom.shared.exch.b32 %r9, [sh], 5;", 3 },
        { "st.shared.u32 [sh], 3;\natom.shared.cas.b32 %r8, [sh], 3, 6;\nld.shared.u32 %r9, [sh];",
          6 },
        { "st.shared.u32 [sh], 3;\natom.shared.inc.u32 %r8, [sh], 3;\nld.shared.u32 %r9, [sh];",
          0 },
        { "st.shared.u32 [sh], 0;\natom.shared.dec.u32 %r8, [sh], 3;\nld.shared.u32 %r9, [sh];",
          3 },
        { "st.shared.u32 [sh], -1;\nred.shared.min.s32 [sh], -5;\nld.shared.u32 %r9, [sh];",
          0xfffffffb },
        { "st.shared.u32 [sh], -1;\nred.shared.max.u32 [sh], 5;\nld.shared.u32 %r9, [sh];", ALL32 },
        { "st.shared.f32 [sh], 0f3F800000;\nred.shared.add.f32 [sh], 0f40000000;\n"
          "ld.shared.u32 %r9, [sh];", 0x40400000 },
        { "st.global.u32 [%d0], 0x3c003c00;\nmov.u32 %r8, 0x40003c00;\n"
          "red.global.add.noftz.f16x2 [%d0], %r8;\nld.global.u32 %r9, [%d0];", 0x42004000 },
        { "st.shared.u64 [sh], 7;\natom.shared.or.b64 %d5, [sh], 8;\ncvt.u32.u64 %r9, %d5;", 7 },
        // Done at the wait: the copy, and zeros behind a short source.
        { "cp.async.ca.shared.global [sh], [%d1], 8, 4;\ncp.async.commit_group;\n"
          "cp.async.wait_group 0;\nld.shared.u32 %r8, [sh+4];\nld.shared.u32 %r9, [sh];\n"
          "add.u32 %r9, %r9, %r8;", 0x80ff7f01 },
        { "cp.async.cg.shared.global [sh], [%d1], 16;\ncp.async.wait_all;\n"
          "ld.shared.u32 %r9, [sh+12];", 4 },
    };
    const char* globals = ".const .align 4 .u32 table[3] = {30, 31, 32};\n"
                          ".global .align 8 .u64 pointer = generic(table)+4;\n";
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; ++k) {
        char body[1024];
        uint32_t out = 0;
        snprintf(body, sizeof body, "%s\nst.global.u32 [%%d3], %%r9;", cases[k].body);
        const run r = { .globals = globals, .body = body, .threads = 1, .in = in,
                        .in_bytes = sizeof in, .out = &out, .out_bytes = 4, .n = 17 };
        cr_assert_eq(run_kernel(&r), 0, "%s: %s", body, last_fault());
        cr_expect_eq(out, cases[k].expected, "%s: %x", body, out);
    }
}

// Atomics of many CTAs on host threads lose nothing.
Test(ptxsim, atomics_across_ctas, .init = open_90)
{
    const char* body = "red.global.add.u32 [%d1], 1;\n"
                       "atom.global.add.f32 %r8, [%d1+4], 0f3F800000;";
    const uint32_t zeros[2] = { 0, 0 };
    static char ptx[4096];
    handle module;
    snprintf(ptx, sizeof ptx, kernel_head, run_target, "", body);
    handle kernel = load_kernel(ptx, "k", &module);
    address out = device_copy(NULL, 512), in = device_copy(zeros, 8);
    uint32_t n = 0, result[2];
    void* params[] = { &out, &in, &n };
    cr_assert_eq(sim.launch(kernel, 100, 1, 1, 128, 1, 1, 0, NULL, params, NULL), 0, "%s",
                 last_fault());
    cr_assert_eq(sim.to_host(result, in, 8), 0);
    cr_expect_eq(result[0], 12800);
    cr_expect_eq(result[1], 0x46480000);    // 12800.0
    ptxsim_stats stats;
    sim.counters(&stats);
    cr_expect_eq(stats.ctas, 100);
    cr_expect_eq(stats.atomics, 25600);
}

// DETECTORS

typedef struct fault_case {
    const char* faulty;
    const char* sound;
    int         status;
    const char* text;           // in the message
    unsigned    threads;
} fault_case;

static void check_fault(const fault_case* c)
{
    static const uint32_t in[64] = { 1, 2, 3, 4 };
    run r = { .body = c->sound, .threads = c->threads, .in = in, .in_bytes = sizeof in,
              .out_bytes = 4 * c->threads };
    cr_assert_eq(run_kernel(&r), 0, "sound: %s: %s", c->sound, last_fault());
    r.body = c->faulty;
    const int status = run_kernel(&r);
    cr_expect_eq(status, c->status, "%s: %d", c->faulty, status);
    cr_expect(strstr(last_fault(), c->text), "%s: '%s' is not in: %s", c->faulty, c->text,
              last_fault());
    cr_expect(strstr(last_fault(), "kernel k, PTX line "), "%s", last_fault());
    cr_expect_eq(sim.synchronize(), c->status, "the error stays");
    sim.reset();
}

#define CHECK(cases)                                                                               \
    for (size_t k = 0; k < sizeof(cases) / sizeof((cases)[0]); ++k) check_fault(&(cases)[k])

// An access that goes through silently.
Test(ptxsim, faults_of_memory, .init = open_90)
{
    static const fault_case cases[] = {
        { "ld.global.u32 %r9, [%d1+256];", "ld.global.u32 %r9, [%d1+252];", ILLEGAL_ADDRESS,
          "outside the allocation, byte 256 of the 256", 1 },
        { "ld.global.v2.u32 {%r8, %r9}, [%d1+256];", "ld.global.v2.u32 {%r8, %r9}, [%d1+248];",
          ILLEGAL_ADDRESS, "read of 8 bytes", 1 },
        { "st.global.u32 [%d1+-4], %r1;", "st.global.u32 [%d1], %r1;", ILLEGAL_ADDRESS,
          "write of 4 bytes", 1 },
        { "mov.u64 %d5, 16;\nld.u32 %r9, [%d5];", "ld.u32 %r9, [%d1];", ILLEGAL_ADDRESS,
          "outside any allocation", 1 },
        { "ld.global.u32 %r9, [%d1+2];", "ld.global.u16 %r9, [%d1+2];", MISALIGNED, "misaligned",
          1 },
        { "ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d1+8];",
          "ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d1+16];", MISALIGNED, "16 bytes", 1 },
        { "ld.global.u32 %r9, [%d0];", "st.global.u32 [%d0], 1;\nld.global.u32 %r9, [%d0];", FAILED,
          "memory never written", 1 },
        { "st.shared.u32 [sh+4096], 1;", "st.shared.u32 [sh+4092], 1;", ILLEGAL_ADDRESS,
          "shared memory", 1 },
        { "mov.u32 %r5, 0;\nst.shared.u32 [%r5], 1;", "st.shared.u32 [%r2], 1;", ILLEGAL_ADDRESS,
          "shared memory", 1 },
        { "ld.shared.u32 %r9, [sh+8];", "st.shared.u32 [sh+8], 1;\nld.shared.u32 %r9, [sh+8];",
          FAILED, "shared memory never written", 1 },
        { "{ .local .align 8 .b8 space[16]; st.local.u32 [space+16], 1; }",
          "{ .local .align 8 .b8 space[16]; st.local.u32 [space+12], 1; }", ILLEGAL_ADDRESS,
          "local memory", 1 },
        { "{ .local .align 8 .b8 space[16]; ld.local.u32 %r9, [space]; add.u32 %r9, %r9, 1; }",
          "{ .local .align 8 .b8 space[16]; st.local.u32 [space], 1; ld.local.u32 %r9, [space];\n"
          "add.u32 %r9, %r9, 1; }", FAILED, "register %r9, never written", 1 },
        { "add.u32 %r9, %r8, 1;", "mov.u32 %r8, 1;\nadd.u32 %r9, %r8, 1;", FAILED,
          "register %r8, never written", 1 },
        { "setp.lt.u32 %p1, %r1, 5;\n@%p1 mov.u32 %r8, 1;\nadd.u32 %r9, %r8, 1;",
          "setp.lt.u32 %p1, %r1, 32;\n@%p1 mov.u32 %r8, 1;\nadd.u32 %r9, %r8, 1;", FAILED,
          "thread (5,0,0)", 32 },
        { "@%p7 bra $end;\n$end:", "setp.eq.u32 %p7, %r1, 0;\n@%p7 bra $end;\n$end:", FAILED,
          "register %p7", 1 },
        { "mov.b64 %d5, n;\nld.param.u64 %d6, [%d5+8];", "ld.param.u64 %d6, [in];",
          ILLEGAL_ADDRESS, "parameters", 1 },
        { "trap;", "", ASSERTED, "trap", 1 },
    };
    CHECK(cases);
}

// A race, a barrier or a wait that is missing.
Test(ptxsim, faults_of_threads, .init = open_90)
{
    static const fault_case cases[] = {
        { "st.shared.u32 [%r4], %r1;\nxor.b32 %r5, %r4, 128;\nld.shared.u32 %r9, [sh+128];",
          "st.shared.u32 [%r4], %r1;\nbar.sync 0;\nld.shared.u32 %r9, [sh+128];", FAILED,
          "never written", 64 },
        { "st.shared.u32 [%r4], %r1;\nbar.sync 0;\nld.shared.u32 %r9, [sh];\n"
          "st.shared.u32 [%r4], %r1;",
          "st.shared.u32 [%r4], %r1;\nbar.sync 0;\nld.shared.u32 %r9, [sh];\nbar.sync 0;\n"
          "st.shared.u32 [%r4], %r1;", FAILED, "race in shared memory: write of byte", 64 },
        // Lanes of one warp.
        { "st.shared.u32 [%r4], %r1;\nsub.u32 %r5, 31, %r1;\nshl.b32 %r5, %r5, 2;\n"
          "add.u32 %r5, %r5, %r2;\nld.shared.u32 %r9, [%r5];",
          "st.shared.u32 [%r4], %r1;\nbar.warp.sync -1;\nsub.u32 %r5, 31, %r1;\n"
          "shl.b32 %r5, %r5, 2;\nadd.u32 %r5, %r5, %r2;\nld.shared.u32 %r9, [%r5];", FAILED,
          "race in shared memory: read of byte", 32 },
        { "st.shared.u32 [sh], %r1;", "st.shared.u32 [sh], 7;", FAILED, "same instruction", 32 },
        // A barrier of two warps orders nothing for a third.
        { "setp.lt.u32 %p1, %r1, 32;\n@%p1 st.shared.u32 [%r4], 1;\nsetp.ge.u32 %p2, %r1, 64;\n"
          "@%p2 bra $third;\nbar.sync 1, 64;\nbra $end;\n$third: ld.shared.u32 %r9, [sh];\n$end:",
          "setp.lt.u32 %p1, %r1, 32;\n@%p1 st.shared.u32 [%r4], 1;\nbar.sync 0;\n"
          "ld.shared.u32 %r9, [sh];", FAILED, "race in shared memory: read", 96 },
        { "st.shared.u32 [sh], 0;\nbar.sync 0;\natom.shared.add.u32 %r9, [sh], 1;\n"
          "ld.shared.u32 %r9, [sh];",
          "st.shared.u32 [sh], 0;\nbar.sync 0;\natom.shared.add.u32 %r9, [sh], 1;\nbar.sync 0;\n"
          "ld.shared.u32 %r9, [sh];", FAILED, "race in shared memory", 32 },
        { "setp.ge.u32 %p1, %r1, 40;\n@%p1 exit;\nbar.sync 0;", "bar.sync 0;\n", FAILED,
          "barrier divergence", 64 },
        { "setp.ge.u32 %p1, %r1, 32;\n@%p1 exit;\nbar.sync 0;", "bar.sync 0;\n", FAILED,
          "barrier divergence: 1 of 2 warps wait", 64 },
        { "setp.ge.u32 %p1, %r1, 32;\n@%p1 bra $b;\nbar.sync 1;\nbra $end;\n$b: bar.sync 2;\n$end:",
          "setp.ge.u32 %p1, %r1, 32;\n@%p1 bra $b;\nbar.sync 1;\nbra $end;\n$b: bar.sync 1;\n$end:",
          FAILED, "barrier divergence: 2 of 2", 64 },
        { "setp.lt.u32 %p1, %r1, 16;\n@%p1 bra $b;\nbar.sync 0;\nbra $end;\n$b: bar.sync 0;\n$end:",
          "bar.sync 0;", FAILED, "barrier divergence: lanes 0x", 32 },
        { "setp.lt.u32 %p1, %r1, 16;\n@%p1 bra $end;\nshfl.sync.idx.b32 %r9, %r1, 0, 31, -1;\n$w:\n"
          "bra $w2;\n$w2:\nexit;\n$end: bar.warp.sync -1;",
          "shfl.sync.idx.b32 %r9, %r1, 0, 31, -1;", FAILED, "wait at a .sync instruction", 32 },
        { "setp.lt.u32 %p1, %r1, 16;\n@%p1 shfl.sync.idx.b32 %r9, %r1, 0, 31, 0xff;",
          "setp.lt.u32 %p1, %r1, 16;\n@%p1 shfl.sync.idx.b32 %r9, %r1, 0, 31, 0xffff;", FAILED,
          "outside its member mask", 32 },
        { "setp.lt.u32 %p1, %r1, 16;\n@%p1 shfl.sync.idx.b32 %r9, %r1, 20, 31, 0xffff;\n"
          "@%p1 add.u32 %r9, %r9, 1;",
          "setp.lt.u32 %p1, %r1, 16;\n@%p1 shfl.sync.idx.b32 %r9, %r1, 4, 31, 0xffff;\n"
          "@%p1 add.u32 %r9, %r9, 1;", FAILED, "register %r9, never written", 32 },
        { "cp.async.ca.shared.global [sh], [%d1], 4;\ncp.async.commit_group;\n"
          "ld.shared.u32 %r9, [sh];",
          "cp.async.ca.shared.global [sh], [%d1], 4;\ncp.async.commit_group;\n"
          "cp.async.wait_group 0;\nld.shared.u32 %r9, [sh];", FAILED, "before cp.async's wait", 1 },
        { "cp.async.ca.shared.global [sh], [%d1], 4;\ncp.async.commit_group;\n"
          "cp.async.ca.shared.global [sh+4], [%d1], 4;\ncp.async.commit_group;\n"
          "cp.async.wait_group 1;\nld.shared.u32 %r9, [sh+4];",
          "cp.async.ca.shared.global [sh], [%d1], 4;\ncp.async.commit_group;\n"
          "cp.async.ca.shared.global [sh+4], [%d1], 4;\ncp.async.commit_group;\n"
          "cp.async.wait_group 1;\nld.shared.u32 %r9, [sh];", FAILED, "before cp.async's wait", 1 },
        // Waited for by the thread that copied, not ordered for the others.
        { "setp.eq.u32 %p1, %r1, 0;\n@%p1 cp.async.ca.shared.global [sh], [%d1], 4;\n"
          "cp.async.wait_all;\nld.shared.u32 %r9, [sh];",
          "setp.eq.u32 %p1, %r1, 0;\n@%p1 cp.async.ca.shared.global [sh], [%d1], 4;\n"
          "cp.async.wait_all;\nbar.sync 0;\nld.shared.u32 %r9, [sh];", FAILED,
          "race in shared memory", 32 },
    };
    CHECK(cases);
}

// Thread 0 reads a byte, then warp 1, then another lane of warp 0: a write must know of all three.
Test(ptxsim, faults_of_three_readers, .init = open_90)
{
    static const fault_case cases[] = {
        { "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.shared.u32 [sh], 7;\nbar.sync 0;\n"
          "@%p1 ld.shared.u32 %r9, [sh];\nsetp.ge.u32 %p2, %r1, 32;\n@%p2 bra $other;\n"
          "mov.u32 %r5, 20000;\n$loop: sub.u32 %r5, %r5, 1;\nsetp.ne.u32 %p3, %r5, 0;\n"
          "@%p3 bra $loop;\nsetp.eq.u32 %p4, %r1, 1;\n@%p4 ld.shared.u32 %r9, [sh];\n"
          "bar.warp.sync -1;\n@%p1 st.shared.u32 [sh], 8;\nbra $end;\n"
          "$other: mov.u32 %r5, 2000;\n$wait: sub.u32 %r5, %r5, 1;\nsetp.ne.u32 %p3, %r5, 0;\n"
          "@%p3 bra $wait;\nld.shared.u32 %r9, [sh];\n$end:",
          "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.shared.u32 [sh], 7;\nbar.sync 0;\n"
          "@%p1 ld.shared.u32 %r9, [sh];\nsetp.ge.u32 %p2, %r1, 32;\n@%p2 bra $other;\n"
          "setp.eq.u32 %p4, %r1, 1;\n@%p4 ld.shared.u32 %r9, [sh];\n"
          "bar.sync 0;\n@%p1 st.shared.u32 [sh], 8;\nbra $end;\n"
          "$other: ld.shared.u32 %r9, [sh];\nbar.sync 0;\n$end:", FAILED,
          "thread 63 read", 64 },
    };
    CHECK(cases);
}

// MATRICES

typedef enum kind { F16, BF16, S8, U8, E4M3 } kind;

typedef struct shape {
    const char* text;           // of a in %r8.., b in %r12.., c and d in %r16..
    int  m, k;
    kind a, b;
    char c;                     // f: f32, h: f16, i: s32
} shape;

static uint32_t encode(kind k, int x)
{
    // |x| <= 15: exact in every type.
    int exponent = 0;
    const int size = abs(x);
    if (k == S8 || k == U8) return (uint32_t)x & 0xffu;
    if (k == E4M3) {
        while (size >> (exponent + 1)) ++exponent;
        return !x ? 0 : (x < 0 ? 0x80u : 0) | (uint32_t)((exponent + 7) << 3) |
               (uint32_t)((size << 3 >> exponent) - 8);
    }
    if (!x) return 0;
    while (size >> (exponent + 1)) ++exponent;
    const int bits = k == F16 ? 10 : 7, bias = k == F16 ? 15 : 127;
    const int fraction = (size << bits >> exponent) - (1 << bits);
    return (x < 0 ? 0x8000u : 0) | (uint32_t)((exponent + bias) << bits) | (uint32_t)fraction;
}

static void put_element(uint32_t* word, kind k, int at, int x)
{
    const int width = k >= S8 ? 8 : 16;
    *word |= encode(k, x) << (width * at);
}

static float float_from(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static uint32_t bits_from(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

// The places of the ISA's figures: row, column of element e of register r in lane l.
static void check_shape(const shape* s)
{
    int a[16][32], b[32][8], c[16][8];
    uint32_t in[32][16] = { { 0 } }, out[32][4];
    const int per = s->a >= S8 ? 4 : 2;
    for (int i = 0; i < s->m; ++i) {
        for (int k = 0; k < s->k; ++k) a[i][k] = (i * 7 + k * 3) % 9 - (s->a == U8 ? 0 : 4);
    }
    for (int k = 0; k < s->k; ++k) {
        for (int n = 0; n < 8; ++n) b[k][n] = (k * 5 + n * 2) % 7 - (s->b == U8 ? 0 : 3);
    }
    for (int i = 0; i < s->m; ++i) {
        for (int n = 0; n < 8; ++n) c[i][n] = i - n;
    }
    for (int l = 0; l < 32; ++l) {
        const int g = l / 4, t = l % 4, rows = s->m / 8;
        for (int r = 0; r < s->k / per / 4 * rows; ++r) {
            for (int e = 0; e < per; ++e) {
                put_element(&in[l][r], s->a, e,
                            a[g + 8 * (r % rows)][r / rows * per * 4 + t * per + e]);
            }
        }
        for (int r = 0; r < s->k / per / 4; ++r) {
            for (int e = 0; e < per; ++e) {
                put_element(&in[l][4 + r], s->b, e, b[r * per * 4 + t * per + e][g]);
            }
        }
        for (int r = 0; r < 2 * rows; ++r) {
            const int x = c[g + 8 * (r / 2)][2 * t + r % 2];
            if (s->c == 'h') put_element(&in[l][8 + r / 2], F16, r % 2, x);
            if (s->c == 'f') in[l][8 + r] = bits_from((float)x);
            if (s->c == 'i') in[l][8 + r] = (uint32_t)x;
        }
    }
    char body[2048];
    snprintf(body, sizeof body,
             "shl.b32 %%r5, %%r1, 6;\ncvt.u64.u32 %%d5, %%r5;\nadd.s64 %%d5, %%d5, %%d1;\n"
             "ld.global.v4.u32 {%%r8, %%r9, %%r10, %%r11}, [%%d5];\n"
             "ld.global.v4.u32 {%%r12, %%r13, %%r14, %%r15}, [%%d5+16];\n"
             "ld.global.v4.u32 {%%r16, %%r17, %%r18, %%r19}, [%%d5+32];\n%s\n"
             "shl.b32 %%r5, %%r1, 4;\ncvt.u64.u32 %%d5, %%r5;\nadd.s64 %%d5, %%d5, %%d0;\n"
             "st.global.v4.u32 [%%d5], {%%r16, %%r17, %%r18, %%r19};", s->text);
    const run r = { .body = body, .threads = 32, .in = in, .in_bytes = sizeof in, .out = out[0],
                    .out_bytes = sizeof out };
    cr_assert_eq(run_kernel(&r), 0, "%s: %s", s->text, last_fault());
    for (int l = 0; l < 32; ++l) {
        for (int x = 0; x < s->m / 4; ++x) {
            const int i = l / 4 + 8 * (x / 2), n = l % 4 * 2 + x % 2;
            double sum = c[i][n];
            for (int k = 0; k < s->k; ++k) sum += (double)a[i][k] * b[k][n];
            if (s->c == 'h') {
                const uint32_t got = out[l][x / 2] >> 16 * (x % 2) & 0xffffu;
                // Sums are small: at most 11 bits.
                const int exponent = (int)(got >> 10 & 31), mantissa = (int)(got & 1023);
                const double value = exponent ? ldexp(1024 + mantissa, exponent - 25) : 0;
                cr_expect_eq(got & 0x8000u ? -value : value, sum, "%s: %d %d", s->text, i, n);
            } else {
                const double got = s->c == 'f' ? (double)float_from(out[l][x]) : (int32_t)out[l][x];
                cr_expect_eq(got, sum, "%s: %d %d: %g, expected %g", s->text, i, n, got, sum);
            }
        }
    }
}

// A fragment's element in a wrong lane, row or half.
Test(ptxsim, mma, .init = open_90)
{
    static const shape shapes[] = {
        { "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r16,%r17,%r18,%r19}, "
          "{%r8,%r9,%r10,%r11}, {%r12,%r13}, {%r16,%r17,%r18,%r19};", 16, 16, F16, F16, 'f' },
        { "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r16,%r17,%r18,%r19}, "
          "{%r8,%r9,%r10,%r11}, {%r12,%r13}, {%r16,%r17,%r18,%r19};", 16, 16, BF16, BF16, 'f' },
        { "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r16,%r17}, "
          "{%r8,%r9,%r10,%r11}, {%r12,%r13}, {%r16,%r17};", 16, 16, F16, F16, 'h' },
        { "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%r16,%r17,%r18,%r19}, "
          "{%r8,%r9}, {%r12}, {%r16,%r17,%r18,%r19};", 16, 8, F16, F16, 'f' },
        { "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r16,%r17,%r18,%r19}, "
          "{%r8,%r9,%r10,%r11}, {%r12,%r13}, {%r16,%r17,%r18,%r19};", 16, 32, S8, S8, 'i' },
        { "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%r16,%r17,%r18,%r19}, "
          "{%r8,%r9,%r10,%r11}, {%r12,%r13}, {%r16,%r17,%r18,%r19};", 16, 32, U8, S8, 'i' },
        { "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32 {%r16,%r17,%r18,%r19}, "
          "{%r8,%r9,%r10,%r11}, {%r12,%r13}, {%r16,%r17,%r18,%r19};", 16, 32, S8, U8, 'i' },
        { "mma.sync.aligned.m16n8k16.row.col.s32.u8.u8.s32 {%r16,%r17,%r18,%r19}, "
          "{%r8,%r9}, {%r12}, {%r16,%r17,%r18,%r19};", 16, 16, U8, U8, 'i' },
        { "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%r16,%r17,%r18,%r19}, "
          "{%r8,%r9,%r10,%r11}, {%r12,%r13}, {%r16,%r17,%r18,%r19};", 16, 32, E4M3, E4M3, 'f' },
        { "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r16,%r17}, {%r8}, {%r12}, "
          "{%r16,%r17};", 8, 16, S8, S8, 'i' },
    };
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; ++k) check_shape(&shapes[k]);
    // f16 subnormals count: 2^-24 times 2^10, sixteen times, is 2^-10.
    uint32_t x[32];
    for (int t = 0; t < 32; ++t) x[t] = 0x3a800000;
    expect_lanes("mov.b32 %r8, 0x00010001;\nmov.b32 %r12, 0x64006400;\nmov.b32 %r16, 0;\n"
                 "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r9,%r17,%r18,%r19}, "
                 "{%r8,%r8,%r8,%r8}, {%r12,%r12}, {%r16,%r16,%r16,%r16};\n"
                 "st.global.u32 [%d3], %r9;", x, 32);
}

static void open_75(void) { open_sim("sm_75"); }

static void open_80(void) { open_sim("sm_80"); }

// Every element of d: of products whose factors are a pair, even and odd columns, in either half of
// K, and c.
typedef struct products {
    uint32_t a[2], b[2], c, d;
} products;

static void expect_products(int k, const products* p)
{
    char body[512];
    uint32_t x[32];
    for (int t = 0; t < 32; ++t) x[t] = p->d;
    snprintf(body, sizeof body, "mov.b32 %%r8, 0x%08x;\nmov.b32 %%r10, 0x%08x;\n"
             "mov.b32 %%r12, 0x%08x;\nmov.b32 %%r13, 0x%08x;\nmov.b32 %%r16, 0x%08x;\n"
             "mma.sync.aligned.m16n8k%d.row.col.f32.f16.f16.f32 {%%r9,%%r17,%%r18,%%r19}, "
             "{%%r8,%%r8%s}, {%%r12%s}, {%%r16,%%r16,%%r16,%%r16};\nst.global.u32 [%%d3], %%r9;",
             p->a[0], p->a[1], p->b[0], p->b[1], p->c, k, k == 16 ? ",%r10,%r10" : "",
             k == 16 ? ",%r13" : "");
    expect_lanes(body, x, 32);
}

// Of eight columns: c = -2^-22 and four times 2^-24 1, the first a subnormal, whose exponent is
// that of 2^-14; beside them four times 2^-20 6 2^-20 = 3 2^-39, of subnormals too.
static const uint32_t subnormal_a = 0x00100001, subnormal_b = 0x00603c00, subnormal_c = 0xb4800000;

Test(ptxsim, mma_sums_of_sm_75, .init = open_75)
{
    // Broken by more or fewer bits below the greatest exponent than 24: 3 2^-39 becomes 2^-38.
    run_target = 75;
    expect_products(8, &(products){ { subnormal_a, 0 }, { subnormal_b, 0 }, subnormal_c,
                                    0x2d800000 });
}

Test(ptxsim, mma_sums_of_sm_80, .init = open_80)
{
    run_target = 80;
    expect_products(8, &(products){ { subnormal_a, 0 }, { subnormal_b, 0 }, subnormal_c,
                                    0x2d800000 });
    // Broken by sixteen products at a time: of eight, beside -1, 5 2^-26 is 2^-24; of the next,
    // beside the sum of nearly -4, it is nothing.
    expect_products(16, &(products){ { 0x14003c00, 0x14003c00 }, { 0x0500bc00, 0x05003c00 }, 0,
                                     0x34800000 });
}

Test(ptxsim, mma_sums_of_sm_90, .init = open_90)
{
    // Broken by more or fewer bits than 25: 3 2^-39 stays.
    expect_products(8, &(products){ { subnormal_a, 0 }, { subnormal_b, 0 }, subnormal_c,
                                    0x2dc00000 });
    // Broken by eight products at a time: 5 2^-27, beside 1 and -1, becomes 2^-25, eight times.
    expect_products(16, &(products){ { 0x10003c00, 0x10003c00 }, { 0x05003c00, 0x0500bc00 }, 0,
                                     0x34800000 });
    // Broken by a sum that is rounded, not cut: 1 - 2^-24 and four times 2^-24, of either sign.
    expect_products(8, &(products){ { 0x0c00, 0 }, { 0x0c00, 0 }, 0x3f7fffff, 0x3f800001 });
    expect_products(8, &(products){ { 0x8c00, 0 }, { 0x0c00, 0 }, 0xbf7fffff, 0xbf800001 });
    // Infinite, and no number: inf - inf, inf 0.
    expect_products(8, &(products){ { 0x7c00, 0 }, { 0x3c00, 0 }, 0x3f800000, 0x7f800000 });
    expect_products(8, &(products){ { 0x7c00, 0 }, { 0x3c00, 0 }, 0xff800000, 0x7fffffff });
    expect_products(8, &(products){ { 0x7c00, 0 }, { 0x0000, 0 }, 0x3f800000, 0x7fffffff });
}

// Rows of one lane's address in the wrong lane; 64 halves, element e at row e/8.
Test(ptxsim, matrix_moves, .init = open_90)
{
    const char* prepare =
        "shl.b32 %%r5, %%r1, 1;\nadd.u32 %%r6, %%r5, 1;\nshl.b32 %%r6, %%r6, 16;\n"
        "or.b32 %%r5, %%r5, %%r6;\nst.shared.u32 [%%r4], %%r5;\nbar.warp.sync -1;\n"
        "and.b32 %%r7, %%r1, 7;\nshl.b32 %%r7, %%r7, 4;\nadd.u32 %%r7, %%r7, %%r2;\n%s\n"
        "st.global.u32 [%%d3], %%r9;";
    static const char* const moves[] = {
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r7];",
        "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r9}, [%r7];",
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r8, %r10, %r11, %r9}, [%r7];",
        "movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r5;",
        "add.u32 %r8, %r7, 256;\nstmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r8], {%r5};\n"
        "bar.warp.sync -1;\nld.shared.u32 %r9, [%r4+256];",
        "add.u32 %r8, %r7, 256;\nstmatrix.sync.aligned.m8n8.x1.shared.b16 [%r8], {%r5};\n"
        "bar.warp.sync -1;\nld.shared.u32 %r9, [%r4+256];",
    };
    for (size_t k = 0; k < sizeof moves / sizeof moves[0]; ++k) {
        char body[1024];
        uint32_t x[32];
        const int transposed = k != 0 && k != 5;
        snprintf(body, sizeof body, prepare, moves[k]);
        for (uint32_t t = 0; t < 32; ++t) {
            const uint32_t row = t / 4, column = t % 4 * 2;
            const uint32_t low = transposed ? 8 * column + row : 8 * row + column;
            x[t] = low | (transposed ? low + 8 : low + 1) << 16;
        }
        expect_lanes(body, x, 32);
    }
}

// LOADING

static void expect_refused(const char* text, int status, const char* why)
{
    char log[1024] = "";
    int options[2] = { 5, 6 };
    void* values[2] = { log, (void*)sizeof log };
    handle module;
    cr_expect_eq(sim.load(&module, text, 2, options, values), status, "%s", text);
    cr_expect(strstr(log, why), "'%s' is not in '%s'", why, log);
}

// An unknown instruction that loads, or a message that does not name it.
Test(ptxsim, refusals, .init = open_90)
{
    expect_refused(".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\n"
                   ".reg .b32 %r<3>;\nwgmma.fence.sync.aligned;\nret;\n}\n", 218,
                   "PTX line 7: wgmma.fence.sync.aligned: no such instruction here");
    expect_refused(".version 9.0\n.target sm_90\n.visible .entry k()\n{\n.reg .b32 %r<3>;\n"
                   "add.s32.wrong %r1, %r1, 1;\nret;\n}\n", 218, "PTX line 6: add.s32.wrong");
    expect_refused(".version 9.0\n.target sm_90\n.visible .entry k()\n{\n.reg .b32 %r<3>;\n"
                   "add.s32 %r1, %r7, 1;\nret;\n}\n", 218, "'%r7' is not declared");
    expect_refused(".version 9.0\n.target sm_90\n.visible .entry k()\n{\nbra $nowhere;\n}\n", 218,
                   "no label '$nowhere'");
    expect_refused(".version 9.0\n.target sm_75\n.visible .entry k()\n{\ncp.async.wait_all;\n}\n",
                   218, "needs sm_80");
    expect_refused(".version 9.0\n.target sm_75\n.visible .entry k()\n{\n.reg .b32 %r<3>;\n"
                   "cvt.rn.f16x2.f32 %r0, %r1, %r2;\n}\n", 218, "needs sm_80");
    expect_refused(".version 9.0\n.target sm_100\n.visible .entry k()\n{\nret;\n}\n", 209,
                   "the device is sm_90");
    expect_refused(".version 9.0\n.target sm_90\n.visible .entry k()\n{\n", 218, "the text ends");
    expect_refused("hello, this is no PTX", 200, "");
    expect_refused("\177ELF and the rest of a cubin", 209, "");
    expect_refused(".version 9.0\n.target sm_90\n.func f()\n{\ncall f;\nret;\n}\n", 218,
                   "recursion");
}

// CUDA C THROUGH NVRTC

static struct {
    int (*create)(handle*, const char*, const char*, int, const char**, const char**);
    int (*compile)(handle, int, const char**);
    int (*ptx_size)(handle, size_t*);
    int (*ptx)(handle, char*);
    int (*log_size)(handle, size_t*);
    int (*log)(handle, char*);
} nvrtc;

static bool open_nvrtc(void)
{
    static const char* const names[] = { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                         "/usr/local/cuda/lib64/libnvrtc.so" };
    void* library = NULL;
    for (size_t k = 0; !library && k < sizeof names / sizeof names[0]; ++k) {
        library = dlopen(names[k], RTLD_NOW | RTLD_LOCAL);
    }
    if (!library) return false;
    *(void**)&nvrtc.create = dlsym(library, "nvrtcCreateProgram");
    *(void**)&nvrtc.compile = dlsym(library, "nvrtcCompileProgram");
    *(void**)&nvrtc.ptx_size = dlsym(library, "nvrtcGetPTXSize");
    *(void**)&nvrtc.ptx = dlsym(library, "nvrtcGetPTX");
    *(void**)&nvrtc.log_size = dlsym(library, "nvrtcGetProgramLogSize");
    *(void**)&nvrtc.log = dlsym(library, "nvrtcGetProgramLog");
    return nvrtc.create && nvrtc.compile && nvrtc.ptx_size && nvrtc.ptx;
}

static char* compile(const char* source, const char* arch)
{
    handle program;
    char option[64];
    size_t size;
    snprintf(option, sizeof option, "-arch=compute_%s", arch);
    const char* options[] = { option, "-lineinfo", "--std=c++17" };
    cr_assert_eq(nvrtc.create(&program, source, "kernels.cu", 0, NULL, NULL), 0);
    if (nvrtc.compile(program, 3, options)) {
        nvrtc.log_size(program, &size);
        char* log = malloc(size);
        nvrtc.log(program, log);
        cr_assert(0, "%s", log);
    }
    cr_assert_eq(nvrtc.ptx_size(program, &size), 0);
    char* ptx = malloc(size);
    cr_assert_eq(nvrtc.ptx(program, ptx), 0);
    return ptx;
}

static const char* const cuda_source =
    "typedef unsigned short half_bits;\n"
    "__device__ float to_float(half_bits h) { float f;\n"
    "  asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(f) : \"h\"(h)); return f; }\n"
    "extern \"C\" __global__ void reduce(const float* x, float* sum, int n) {\n"
    "  __shared__ float part[8];\n"
    "  float s = 0;\n"
    "  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)\n"
    "    s += x[i];\n"
    "  for (int d = 16; d; d >>= 1) s += __shfl_down_sync(~0u, s, d);\n"
    "  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;\n"
    "  __syncthreads();\n"
    "  if (threadIdx.x < 32) {\n"
    "    s = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;\n"
    "    for (int d = 4; d; d >>= 1) s += __shfl_down_sync(~0u, s, d);\n"
    "    if (threadIdx.x == 0) atomicAdd(sum, s);\n"
    "  }\n"
    "}\n"
    "template <int pad> __device__ void transpose(const float* x, float* y, int w, int h) {\n"
    "  __shared__ float tile[32][32 + pad];\n"
    "  int i = blockIdx.x * 32 + threadIdx.x, j = blockIdx.y * 32 + threadIdx.y;\n"
    "  for (int k = 0; k < 32; k += 8)\n"
    "    if (i < w && j + k < h) tile[threadIdx.y + k][threadIdx.x] = x[(j + k) * w + i];\n"
    "  __syncthreads();\n"
    "  i = blockIdx.y * 32 + threadIdx.x, j = blockIdx.x * 32 + threadIdx.y;\n"
    "  for (int k = 0; k < 32; k += 8)\n"
    "    if (i < h && j + k < w) y[(j + k) * h + i] = tile[threadIdx.x][threadIdx.y + k];\n"
    "}\n"
    "extern \"C\" __global__ void transpose_even(const float* x, float* y, int w, int h)\n"
    "{ transpose<0>(x, y, w, h); }\n"
    "extern \"C\" __global__ void transpose_odd(const float* x, float* y, int w, int h)\n"
    "{ transpose<1>(x, y, w, h); }\n"
    "extern \"C\" __global__ void softmax(const float* x, float* y, int n) {\n"
    "  extern __shared__ float scratch[];\n"
    "  const float* row = x + (long long)blockIdx.x * n;\n"
    "  float m = -1.0f / 0.0f, s = 0;\n"
    "  for (int i = threadIdx.x; i < n; i += blockDim.x) m = fmaxf(m, row[i]);\n"
    "  scratch[threadIdx.x] = m;\n"
    "  for (int d = blockDim.x / 2; d; d >>= 1) {\n"
    "    __syncthreads();\n"
    "    if (threadIdx.x < d)\n"
    "      scratch[threadIdx.x] = fmaxf(scratch[threadIdx.x], scratch[threadIdx.x + d]);\n"
    "  }\n"
    "  __syncthreads();\n"
    "  m = scratch[0];\n"
    "  __syncthreads();\n"
    "  for (int i = threadIdx.x; i < n; i += blockDim.x) s += __expf(row[i] - m);\n"
    "  scratch[threadIdx.x] = s;\n"
    "  for (int d = blockDim.x / 2; d; d >>= 1) {\n"
    "    __syncthreads();\n"
    "    if (threadIdx.x < d) scratch[threadIdx.x] += scratch[threadIdx.x + d];\n"
    "  }\n"
    "  __syncthreads();\n"
    "  for (int i = threadIdx.x; i < n; i += blockDim.x)\n"
    "    y[(long long)blockIdx.x * n + i] = __expf(row[i] - m) / scratch[0];\n"
    "}\n"
    "extern \"C\" __global__ void gemv(const half_bits* w, const float* x, float* y, int n) {\n"
    "  const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;\n"
    "  const uint4* from = (const uint4*)(w + (size_t)row * n);\n"
    "  float s = 0;\n"
    "  for (int i = lane; i < n / 8; i += 32) {\n"
    "    const uint4 q = from[i];\n"
    "    const unsigned word[4] = { q.x, q.y, q.z, q.w };\n"
    "    for (int k = 0; k < 4; ++k) {\n"
    "      s += to_float(word[k] & 0xffff) * x[8 * i + 2 * k];\n"
    "      s += to_float(word[k] >> 16) * x[8 * i + 2 * k + 1];\n"
    "    }\n"
    "  }\n"
    "  for (int d = 16; d; d >>= 1) s += __shfl_xor_sync(~0u, s, d);\n"
    "  if (lane == 0) y[row] = s;\n"
    "}\n"
    "__device__ __noinline__ int collatz(int n) {\n"
    "  int steps = 0;\n"
    "  while (n != 1) n = n & 1 ? 3 * n + 1 : n / 2, ++steps;\n"
    "  return steps;\n"
    "}\n"
    "extern \"C\" __global__ void diverge(int* y, int n) {\n"
    "  const int i = threadIdx.x + 1;\n"
    "  int r;\n"
    "  switch (i % 6) {\n"
    "  case 0: r = collatz(i); break;\n"
    "  case 1: r = i * 17 % 13; break;\n"
    "  case 2: r = collatz(i + n) + 1; break;\n"
    "  case 3: r = __popc(i) * 3; break;\n"
    "  case 4: r = i / 7; break;\n"
    "  default: r = -i; break;\n"
    "  }\n"
    "  y[threadIdx.x] = r + __popc(__ballot_sync(~0u, r > 5));\n"
    "}\n"
    "extern \"C\" __global__ void beyond(float* y, int n) {\n"
    "  y[threadIdx.x + n] = 1;   // the line that the message names\n"
    "}\n";

static uint32_t seed = 1;

static float next_float(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / 8388608.0f - 1.0f;
}

static float* random_floats(size_t count)
{
    float* x = malloc(count * sizeof *x);
    for (size_t k = 0; k < count; ++k) x[k] = next_float();
    return x;
}

static void launch_ok(handle module, const char* name, unsigned gx, unsigned gy, unsigned tx,
                      unsigned ty, unsigned shared_bytes, void** params)
{
    handle kernel;
    cr_assert_eq(sim.function(&kernel, module, name), 0, "%s", name);
    const int status = sim.launch(kernel, gx, gy, 1, tx, ty, 1, shared_bytes, NULL, params, NULL);
    cr_assert_eq(status, 0, "%s: %s", name, last_fault());
}

static void check_reduce(handle module)
{
    int n = 5000;
    double sum = 0;
    float result = 0, *x = random_floats((size_t)n);
    for (int k = 0; k < n; ++k) sum += (double)x[k];
    address from = device_copy(x, (size_t)n * 4), to = device_copy(&result, 4);
    launch_ok(module, "reduce", 6, 1, 256, 1, 0, (void*[]){ &from, &to, &n });
    cr_assert_eq(sim.to_host(&result, to, 4), 0);
    cr_expect(fabs((double)result - sum) < 1e-3, "%g, expected %g", (double)result, sum);
    free(x);
}

static uint64_t check_transpose(handle module, const char* name)
{
    int w = 70, h = 45;
    ptxsim_stats stats;
    float *x = random_floats(70 * 45), *y = malloc(70 * 45 * 4);
    address from = device_copy(x, 70 * 45 * 4), to = device_copy(NULL, 70 * 45 * 4);
    launch_ok(module, name, 3, 2, 32, 8, 0, (void*[]){ &from, &to, &w, &h });
    sim.counters(&stats);
    cr_assert_eq(sim.to_host(y, to, 70 * 45 * 4), 0);
    for (int i = 0; i < w; ++i) {
        for (int j = 0; j < h; ++j) cr_assert_eq(y[i * h + j], x[j * w + i], "%d %d", i, j);
    }
    cr_expect_eq(stats.global_load_bytes, 70 * 45 * 4);
    cr_expect_eq(stats.global_store_bytes, 70 * 45 * 4);
    free(x);
    free(y);
    return stats.shared_conflicts;
}

static void check_softmax(handle module)
{
    int n = 300;
    float *x = random_floats(4 * 300), y[4 * 300];
    address from = device_copy(x, 4 * 300 * 4), to = device_copy(NULL, 4 * 300 * 4);
    launch_ok(module, "softmax", 4, 1, 128, 1, 512, (void*[]){ &from, &to, &n });
    cr_assert_eq(sim.to_host(y, to, sizeof y), 0);
    for (int row = 0; row < 4; ++row) {
        double sum = 0;
        for (int k = 0; k < n; ++k) sum += exp((double)x[row * n + k]);
        for (int k = 0; k < n; ++k) {
            const double expected = exp((double)x[row * n + k]) / sum;
            cr_assert(fabs((double)y[row * n + k] - expected) < 1e-6 * (1 + expected));
        }
    }
    free(x);
}

static void check_gemv(handle module)
{
    enum { ROWS = 16, COLUMNS = 512 };
    int n = COLUMNS;
    float *x = random_floats(COLUMNS), y[ROWS];
    uint16_t* w = malloc(ROWS * COLUMNS * 2);
    int* value = malloc(ROWS * COLUMNS * sizeof *value);
    for (int k = 0; k < ROWS * COLUMNS; ++k) {
        value[k] = k * 7 % 31 - 15;
        w[k] = (uint16_t)encode(F16, value[k]);
    }
    address a = device_copy(w, ROWS * COLUMNS * 2), b = device_copy(x, COLUMNS * 4);
    address to = device_copy(NULL, sizeof y);
    launch_ok(module, "gemv", ROWS / 4, 1, 128, 1, 0, (void*[]){ &a, &b, &to, &n });
    cr_assert_eq(sim.to_host(y, to, sizeof y), 0);
    for (int r = 0; r < ROWS; ++r) {
        double sum = 0;
        for (int k = 0; k < COLUMNS; ++k) sum += value[r * COLUMNS + k] * (double)x[k];
        cr_expect(fabs((double)y[r] - sum) < 1e-3, "%d: %g, expected %g", r, (double)y[r], sum);
    }
    ptxsim_stats stats;
    sim.counters(&stats);
    // Weights fill their sectors; of x each lane reads one float of a sector of its own.
    cr_expect_eq(stats.global_load_sectors, ROWS * COLUMNS * 2 / 32 + ROWS * COLUMNS);
    cr_expect_eq(stats.global_load_bytes, ROWS * COLUMNS * 2 + ROWS * COLUMNS * 4);
    cr_expect_eq(stats.global_store_sectors, ROWS);
    free(x);
    free(w);
    free(value);
}

static int collatz(int n)
{
    int steps = 0;
    for (; n != 1; ++steps) n = n & 1 ? 3 * n + 1 : n / 2;
    return steps;
}

static void check_diverge(handle module)
{
    int y[32], r[32], n = 3, above = 0;
    address to = device_copy(NULL, sizeof y);
    launch_ok(module, "diverge", 1, 1, 32, 1, 0, (void*[]){ &to, &n });
    cr_assert_eq(sim.to_host(y, to, sizeof y), 0);
    for (int i = 1; i <= 32; ++i) {
        const int results[] = { collatz(i), i * 17 % 13, collatz(i + n) + 1,
                                __builtin_popcount((unsigned)i) * 3, i / 7, -i };
        r[i - 1] = results[i % 6];
        above += r[i - 1] > 5;
    }
    for (int i = 0; i < 32; ++i) cr_expect_eq(y[i], r[i] + above, "%d", i);
}

static void check_cuda(const char* arch)
{
    char device[16];
    if (!open_nvrtc()) cr_skip_test("no NVRTC");
    snprintf(device, sizeof device, "sm_%s", arch);
    open_sim(device);
    handle module, kernel;
    char* ptx = compile(cuda_source, arch);
    load_kernel(ptx, "reduce", &module);
    check_reduce(module);
    cr_expect_gt(check_transpose(module, "transpose_even"), 1000);
    cr_expect_eq(check_transpose(module, "transpose_odd"), 0);
    check_softmax(module);
    check_gemv(module);
    check_diverge(module);
    int n = 100;
    address to = device_copy(NULL, 128 * 4);
    cr_assert_eq(sim.function(&kernel, module, "beyond"), 0);
    cr_expect_eq(sim.launch(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, (void*[]){ &to, &n }, NULL),
                 ILLEGAL_ADDRESS);
    int line = 1;
    for (const char* at = cuda_source; at < strstr(cuda_source, "// the line"); ++at) {
        line += *at == '\n';
    }
    char where[64];
    snprintf(where, sizeof where, "kernels.cu:%d, ", line);
    cr_expect(strstr(last_fault(), where), "%s", last_fault());
    cr_expect(strstr(last_fault(), "thread (28,0,0)"), "%s", last_fault());
    free(ptx);
}

// Functions of the CUDA library, many of which branch, loop and use local memory.
static const char* const function_source =
    "struct data { const float* x; float* y; double* z; int* k; char n; };\n"
    "extern \"C\" __global__ void functions(const data p) {\n"
    "  const int i = threadIdx.x;\n"
    "  const float a = p.x[2 * i], b = p.x[2 * i + 1];\n"
    "  float* y = p.y + 16 * i;\n"
    "  y[0] = expf(a); y[1] = logf(fabsf(a)); y[2] = sinf(a * 1e6f); y[3] = powf(fabsf(a), b);\n"
    "  y[4] = erff(a); y[5] = a / b; y[6] = tanf(b); y[7] = cbrtf(a); y[8] = atan2f(a, b);\n"
    "  y[9] = fmodf(a, b); y[10] = log1pf(a * a); y[11] = sqrtf(fabsf(b)); y[12] = tanhf(a);\n"
    "  y[13] = rintf(a); y[14] = ldexpf(a, -140); y[15] = 1.0f / sqrtf(fabsf(a));\n"
    "  p.z[i] = exp((double)a) / (double)b + sin((double)b);\n"
    "  const int k = (int)(a * 1000), n = p.n;\n"
    "  p.k[i] = k / n + k % n * 10000 + (int)((long long)k * 123456789 / n);\n"
    "}\n";

static void check_float(const char* name, int lane, float got, double expected, double ulps)
{
    int exponent;
    frexp(expected, &exponent);
    const double ulp = ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
    cr_expect(fabs((double)got - expected) <= ulps * ulp, "%s, lane %d: %.9g, expected %.9g", name,
              lane, (double)got, expected);
}

static void check_functions(const float* x, const float* y)
{
    for (int i = 0; i < 32; ++i) {
        const double a = (double)x[2 * i], b = (double)x[2 * i + 1], c = fabs(a);
        const float* got = y + 16 * i;
        check_float("exp", i, got[0], exp(a), 3);
        check_float("log", i, got[1], log(c), 3);
        check_float("sin", i, got[2], sin((double)(x[2 * i] * 1e6f)), 3);
        check_float("pow", i, got[3], pow(c, b), 6);
        check_float("erf", i, got[4], erf(a), 3);
        check_float("div", i, got[5], a / b, 0.5);
        check_float("tan", i, got[6], tan(b), 5);
        check_float("cbrt", i, got[7], cbrt(a), 3);
        check_float("atan2", i, got[8], atan2(a, b), 4);
        check_float("fmod", i, got[9], fmod(a, b), 0);
        check_float("log1p", i, got[10], log1p((double)(x[2 * i] * x[2 * i])), 3);
        check_float("sqrt", i, got[11], sqrt(fabs(b)), 0.5);
        check_float("tanh", i, got[12], tanh(a), 3);
        check_float("rint", i, got[13], rint(a), 0);
        check_float("ldexp", i, got[14], ldexp(a, -140), 1);
        check_float("rsqrt", i, got[15], 1 / sqrt(c), 3);
    }
}

// A branch, a carry or a local array that goes wrong inside a long function.
Test(ptxsim, cuda_functions)
{
    if (!open_nvrtc()) cr_skip_test("no NVRTC");
    open_90();
    struct { address x, y, z, k; char n; } p;
    handle module;
    char* ptx = compile(function_source, "90");
    float *x = random_floats(64), y[512];
    double z[32];
    int k[32];
    for (int i = 0; i < 64; ++i) x[i] *= 4;
    memset(&p, 0, sizeof p);
    p.x = device_copy(x, 64 * sizeof *x), p.y = device_copy(NULL, sizeof y);
    p.z = device_copy(NULL, sizeof z), p.k = device_copy(NULL, sizeof k), p.n = 7;
    load_kernel(ptx, "functions", &module);
    launch_ok(module, "functions", 1, 1, 32, 1, 0, (void*[]){ &p });
    cr_assert_eq(sim.to_host(y, p.y, sizeof y), 0);
    cr_assert_eq(sim.to_host(z, p.z, sizeof z), 0);
    cr_assert_eq(sim.to_host(k, p.k, sizeof k), 0);
    check_functions(x, y);
    for (int i = 0; i < 32; ++i) {
        const double a = (double)x[2 * i], b = (double)x[2 * i + 1];
        const double expected = exp(a) / b + sin(b);
        cr_expect(fabs(z[i] - expected) <= 1e-14 * (1 + fabs(expected)), "%d", i);
        const int n = (int)(x[2 * i] * 1000);
        cr_expect_eq(k[i], n / 7 + n % 7 * 10000 + (int)((long long)n * 123456789 / 7), "%d", i);
    }
    free(x);
    free(ptx);
}

// Wavefronts and sectors of strides that can be counted by hand.
Test(ptxsim, counters, .init = open_90)
{
    static const struct { const char* body; uint64_t sectors, conflicts; } cases[] = {
        { "ld.global.u32 %r9, [%d4];", 4, 0 },
        { "mul.wide.u32 %d5, %r1, 32;\nadd.s64 %d5, %d5, %d1;\nld.global.u32 %r9, [%d5];", 32, 0 },
        { "ld.global.u32 %r9, [%d1];", 1, 0 },
        { "mul.wide.u32 %d5, %r1, 16;\nadd.s64 %d5, %d5, %d1;\n"
          "ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d5];", 16, 0 },
        { "st.shared.u32 [%r4], 0;", 0, 0 },
        { "shl.b32 %r5, %r1, 3;\nadd.u32 %r5, %r5, %r2;\nst.shared.u32 [%r5], 0;", 0, 1 },
        { "shl.b32 %r5, %r1, 7;\nadd.u32 %r5, %r5, %r2;\nst.shared.u32 [%r5], 0;", 0, 31 },
        { "shl.b32 %r5, %r1, 3;\nadd.u32 %r5, %r5, %r2;\nst.shared.u64 [%r5], 0;", 0, 0 },
        { "shl.b32 %r5, %r1, 4;\nadd.u32 %r5, %r5, %r2;\nst.shared.v4.u32 [%r5], {0, 0, 0, 0};", 0,
          0 },
        // Rows of 16 bytes at a stride of 128: eight rows, one bank group.
        { "and.b32 %r5, %r1, 7;\nshl.b32 %r5, %r5, 7;\nadd.u32 %r5, %r5, %r2;\n"
          "st.shared.v4.u32 [%r5], {0, 0, 0, 0};\nbar.warp.sync -1;\n"
          "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r5];", 0, 4 * 7 + 7 },
    };
    static const uint32_t in[256];
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; ++k) {
        const run r = { .body = cases[k].body, .threads = 32, .in = in, .in_bytes = sizeof in };
        ptxsim_stats stats;
        cr_assert_eq(run_kernel(&r), 0, "%s: %s", r.body, last_fault());
        sim.counters(&stats);
        cr_expect_eq(stats.global_load_sectors, cases[k].sectors, "%s: %d", r.body,
                     (int)stats.global_load_sectors);
        cr_expect_eq(stats.shared_conflicts, cases[k].conflicts, "%s: %d", r.body,
                     (int)stats.shared_conflicts);
    }
}

Test(ptxsim, cuda_75) { check_cuda("75"); }
Test(ptxsim, cuda_90) { check_cuda("90"); }
Test(ptxsim, cuda_120) { check_cuda("120"); }

// THE DRIVER

static void (*function_named(const char* name))(void)
{
    void (*found)(void);
    *(void**)&found = symbol(name);
    return found;
}

#define CALL(name, ...) ((int (*)(__VA_ARGS__))function_named(name))

// Handles that are gone, sizes that do not fit, memory that runs out.
Test(ptxsim, driver_memory)
{
    setenv("PTXSIM_MEMORY", "1m", 1);
    open_90();
    address at, other;
    size_t free_bytes, total;
    unsigned char bytes[64] = { 1, 2, 3 };
    cr_expect_eq(sim.alloc(&at, 2 << 20), 2);
    cr_assert_eq(sim.alloc(&at, 1 << 19), 0);
    cr_expect_eq(sim.alloc(&other, (1 << 19) + 1), 2);
    cr_assert_eq(CALL("cuMemGetInfo_v2", size_t*, size_t*)(&free_bytes, &total), 0);
    cr_expect_eq(free_bytes, 1 << 19);
    cr_expect_eq(total, 1 << 20);
    cr_expect_eq(sim.to_device(at + (1 << 19) - 32, bytes, 64), 1);
    cr_expect_eq(sim.to_device(at + (1 << 19) - 64, bytes, 64), 0);
    cr_expect_eq(sim.to_host(bytes, at + (1 << 19), 1), 1);
    cr_expect_eq(sim.fill(at, 7, (1 << 19) + 1), 1);
    cr_expect_eq(CALL("cuMemsetD32_v2", address, unsigned, size_t)(at, 0x01020304, 4), 0);
    cr_expect_eq(CALL("cuMemcpyDtoD_v2", address, address, size_t)(at + 64, at, 16), 0);
    cr_expect_eq(sim.to_host(bytes, at + 64, 8), 0);
    cr_expect_eq(bytes[4], 4);
    cr_expect_eq(CALL("ptxsim_live_allocations", void)(), 1);
    cr_expect_eq(sim.release(at + 4), 1);
    cr_expect_eq(sim.release(at), 0);
    cr_expect_eq(sim.release(at), 1, "freed twice");
    cr_expect_eq(sim.to_host(bytes, at, 8), 1, "used after free");
    cr_expect_eq(CALL("ptxsim_live_bytes", void)(), 0);
}

// A kernel reads memory that was freed.
Test(ptxsim, use_after_free, .init = open_90)
{
    static char ptx[4096];
    handle module;
    snprintf(ptx, sizeof ptx, kernel_head, run_target, "", "ld.global.u32 %r9, [%d1];");
    handle kernel = load_kernel(ptx, "k", &module);
    uint32_t one = 1, n = 0;
    address out = device_copy(NULL, 128), in = device_copy(&one, 4);
    void* params[] = { &out, &in, &n };
    cr_expect_eq(sim.launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), 0);
    cr_assert_eq(sim.release(in), 0);
    cr_expect_eq(sim.launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), ILLEGAL_ADDRESS);
    cr_expect(strstr(last_fault(), "use after free"), "%s", last_fault());
}

// Shapes and sizes that a device refuses.
Test(ptxsim, driver_launch, .init = open_90)
{
    static char ptx[4096];
    handle module, kernel;
    snprintf(ptx, sizeof ptx, kernel_head, run_target, "", "");
    kernel = load_kernel(ptx, "k", &module);
    address a = device_copy(NULL, 16);
    uint32_t n = 0;
    int value;
    void* params[] = { &a, &a, &n };
    cr_expect_eq(sim.launch(kernel, 1, 1, 1, 1025, 1, 1, 0, NULL, params, NULL), 1);
    cr_expect_eq(sim.launch(kernel, 0, 1, 1, 32, 1, 1, 0, NULL, params, NULL), 1);
    cr_expect_eq(sim.launch(kernel, 1, 65536, 1, 32, 1, 1, 0, NULL, params, NULL), 1);
    cr_expect_eq(sim.launch(kernel, 1, 1, 1, 32, 1, 1, 45 << 10, NULL, params, NULL), 1);
    cr_expect_eq(sim.set_attribute(kernel, 8, 227 << 10), 1, "static memory counts");
    cr_expect_eq(sim.set_attribute(kernel, 8, 100 << 10), 0);
    cr_expect_eq(sim.launch(kernel, 1, 1, 1, 32, 1, 1, 45 << 10, NULL, params, NULL), 0);
    cr_expect_eq(CALL("cuFuncGetAttribute", int*, int, handle)(&value, 1, kernel), 0);
    cr_expect_eq(value, 4096);
    cr_expect_eq(sim.function(&kernel, module, "nothing"), 500);
    cr_expect_eq(sim.unload(module), 0);
    cr_expect_eq(sim.unload(module), 400);
    cr_expect_eq(sim.function(&kernel, module, "k"), 400);
}

static const char* const add_one =
    ".version 9.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n"
    ".reg .b32 %r<4>;\n.reg .b64 %d<4>;\nld.param.u64 %d1, [p];\nld.global.u32 %r1, [%d1];\n"
    "add.u32 %r1, %r1, 1;\nst.global.u32 [%d1], %r1;\nret;\n}\n";

// What a capture takes and what it refuses; a graph runs as often as it is launched.
Test(ptxsim, capture, .init = open_90)
{
    handle module, on, graph, exec;
    handle kernel = load_kernel(add_one, "k", &module);
    uint32_t x = 5;
    address at = device_copy(&x, 4), other;
    void* params[] = { &at };
    int (*begin)(handle, int) = CALL("cuStreamBeginCapture_v2", handle, int);
    int (*end)(handle, handle*) = CALL("cuStreamEndCapture", handle, handle*);
    cr_assert_eq(CALL("cuStreamCreate", handle*, unsigned)(&on, 1), 0);
    cr_expect_eq(begin(NULL, 0), 900);
    cr_assert_eq(begin(on, 0), 0);
    for (int k = 0; k < 3; ++k) {
        cr_expect_eq(sim.launch(kernel, 1, 1, 1, 1, 1, 1, 0, on, params, NULL), 0);
    }
    cr_assert_eq(end(on, &graph), 0);
    cr_assert_eq(sim.to_host(&x, at, 4), 0);
    cr_expect_eq(x, 5, "nothing ran while it was captured");
    cr_assert_eq(CALL("cuGraphInstantiateWithFlags", handle*, handle, uint64_t)(&exec, graph, 0),
                 0);
    for (int k = 0; k < 2; ++k) {
        cr_expect_eq(CALL("cuGraphLaunch", handle, handle)(exec, on), 0);
    }
    cr_expect_eq(CALL("cuStreamSynchronize", handle)(on), 0);
    cr_assert_eq(sim.to_host(&x, at, 4), 0);
    cr_expect_eq(x, 11);
    cr_expect_eq(CALL("cuGraphExecDestroy", handle)(exec), 0);
    cr_expect_eq(CALL("cuGraphDestroy", handle)(graph), 0);
    // Each of these spoils a capture.
    for (int k = 0; k < 4; ++k) {
        cr_assert_eq(begin(on, 0), 0);
        const int status = k == 0 ? sim.alloc(&other, 64) : k == 1 ? sim.synchronize() : k == 2 ?
            CALL("cuStreamSynchronize", handle)(on) :
            sim.load(&module, add_one, 0, NULL, NULL);
        cr_expect_eq(status, 900, "%d", k);
        cr_expect_eq(end(on, &graph), 901, "%d", k);
    }
    cr_expect_eq(sim.alloc(&other, 64), 0);
    cr_expect_eq(CALL("cuStreamDestroy_v2", handle)(on), 0);
    cr_expect_eq(sim.launch(kernel, 1, 1, 1, 1, 1, 1, 0, on, params, NULL), 400);
}

// In late mode nothing runs before somebody waits for it.
Test(ptxsim, late)
{
    setenv("PTXSIM_LATE", "1", 1);
    open_90();
    handle module, on, second, done;
    uint32_t *x, zero = 0;
    handle kernel = load_kernel(add_one, "k", &module);
    address at = device_copy(&zero, 4);
    void* params[] = { &at };
    cr_assert_eq(CALL("cuMemHostAlloc", void**, size_t, unsigned)((void**)&x, 4, 0), 0);
    cr_assert_eq(CALL("cuStreamCreate", handle*, unsigned)(&on, 1), 0);
    cr_assert_eq(CALL("cuStreamCreate", handle*, unsigned)(&second, 1), 0);
    cr_assert_eq(CALL("cuEventCreate", handle*, unsigned)(&done, 2), 0);
    int (*copy)(void*, address, size_t, handle) =
        CALL("cuMemcpyDtoHAsync_v2", void*, address, size_t, handle);
    *x = 77;
    cr_assert_eq(sim.launch(kernel, 1, 1, 1, 1, 1, 1, 0, on, params, NULL), 0);
    cr_assert_eq(copy(x, at, 4, on), 0);
    cr_expect_eq(*x, 77);
    cr_assert_eq(CALL("cuEventRecord", handle, handle)(done, on), 0);
    cr_expect_eq(CALL("cuEventQuery", handle)(done), 600);
    cr_assert_eq(sim.launch(kernel, 1, 1, 1, 1, 1, 1, 0, on, params, NULL), 0);
    cr_assert_eq(CALL("cuStreamWaitEvent", handle, handle, unsigned)(second, done, 0), 0);
    cr_assert_eq(CALL("cuStreamSynchronize", handle)(second), 0);
    cr_expect_eq(*x, 1);
    cr_expect_eq(CALL("cuEventQuery", handle)(done), 0);
    cr_expect_eq(CALL("cuStreamQuery", handle)(on), 600);
    cr_assert_eq(sim.synchronize(), 0);
    cr_assert_eq(sim.to_host(x, at, 4), 0);
    cr_expect_eq(*x, 2);
    // A wait is for the record that was there, wherever the event records later.
    cr_assert_eq(sim.launch(kernel, 1, 1, 1, 1, 1, 1, 0, on, params, NULL), 0);
    cr_assert_eq(CALL("cuEventRecord", handle, handle)(done, on), 0);
    cr_assert_eq(CALL("cuStreamWaitEvent", handle, handle, unsigned)(second, done, 0), 0);
    cr_assert_eq(CALL("cuEventRecord", handle, handle)(done, second), 0);
    cr_assert_eq(copy(x, at, 4, second), 0);
    cr_assert_eq(CALL("cuStreamSynchronize", handle)(second), 0);
    cr_expect_eq(*x, 3);
}

// In lazy mode arithmetic passes on what was never written; a store does not.
Test(ptxsim, lazy)
{
    setenv("PTXSIM_LAZY", "1", 1);
    open_90();
    static const fault_case cases[] = {
        { "add.u32 %r9, %r8, 1;\nmul.lo.u32 %r9, %r9, 2;\nst.global.u32 [%d3], %r9;",
          "add.u32 %r9, %r8, 1;\nmul.lo.u32 %r9, %r9, 2;\nmov.u32 %r9, 5;\n"
          "st.global.u32 [%d3], %r9;", FAILED, "register %r9, never written", 1 },
        { "setp.eq.u32 %p1, %r8, 1;\n@%p1 bra $end;\n$end:", "setp.eq.u32 %p1, %r8, 1;", FAILED,
          "register %p1", 1 },
    };
    CHECK(cases);
}

// The log on disk, a constant that is written, sums over launches.
Test(ptxsim, log)
{
    char path[512], text[4096] = "";
    snprintf(path, sizeof path, "%s/ptxsim-%d.log", KVLOOM_TEST_SCRATCH, (int)getpid());
    setenv("PTXSIM_LOG", path, 1);
    open_90();
    const run r = { .globals = ".const .align 4 .u32 table[2] = {1, 2};\n", .threads = 1,
                    .body = "mov.u64 %d5, table;\nst.u32 [%d5], 3;" };
    const run s = { .threads = 64, .body = "bar.sync 0;" };
    cr_expect_eq(run_kernel(&s), 0);
    cr_expect_eq(run_kernel(&s), 0);
    ptxsim_stats all;
    ((void (*)(ptxsim_stats*))function_named("ptxsim_totals"))(&all);
    cr_expect_eq(all.launches, 2);
    cr_expect_eq(all.barriers, 4);
    cr_expect_eq(run_kernel(&r), ILLEGAL_ADDRESS);
    FILE* file = fopen(path, "r");
    cr_assert(file);
    cr_expect(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    unlink(path);
    cr_expect(strstr(text, "write to the constant table"), "%s", text);
}

typedef struct worker { handle ctx, kernel; address at; int status; } worker;

static void* launch_often(void* argument)
{
    worker* w = argument;
    void* params[] = { &w->at };
    w->status = sim.set_current(w->ctx);
    for (int k = 0; k < 50 && !w->status; ++k) {
        w->status = sim.launch(w->kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
    }
    return NULL;
}

// Host threads that launch at the same time.
Test(ptxsim, host_threads, .init = open_90)
{
    handle module, ctx;
    uint32_t x = 0;
    worker workers[4];
    pthread_t threads[4];
    handle kernel = load_kernel(add_one, "k", &module);
    address at = device_copy(&x, 4);
    cr_assert_eq(sim.retain(&ctx, 0), 0);
    for (int k = 0; k < 4; ++k) {
        workers[k] = (worker){ ctx, kernel, at, 0 };
        cr_assert_eq(pthread_create(&threads[k], NULL, launch_often, &workers[k]), 0);
    }
    for (int k = 0; k < 4; ++k) {
        pthread_join(threads[k], NULL);
        cr_expect_eq(workers[k].status, 0);
    }
    cr_assert_eq(sim.to_host(&x, at, 4), 0);
    cr_expect_eq(x, 200);
}

// A child has no driver: it must say so and not hang.
Test(ptxsim, fork, .init = open_90)
{
    const pid_t child = fork();
    if (!child) _exit(sim.init(0) == 3 && sim.synchronize() == 3 ? 0 : 1);
    int status = 1;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect_eq(status, 0);
}

// Names with and without versions, errors by name, contexts on a stack, images by registration.
Test(ptxsim, driver_rest)
{
    setenv("PTXSIM_DRIVER", "12040", 1);
    setenv("PTXSIM_DEVICES", "2", 1);
    open_sim("sm_86");
    void* found;
    int value, status;
    const char* text;
    handle ctx, popped, module;
    int (*get)(const char*, void**, int, uint64_t, int*) =
        CALL("cuGetProcAddress_v2", const char*, void**, int, uint64_t, int*);
    cr_expect_eq(get("cuMemAlloc", &found, 12000, 0, &status), 0);
    cr_expect_eq(found, symbol("cuMemAlloc_v2"));
    cr_expect_eq(get("cuInit", &found, 12000, 0, &status), 0);
    cr_expect_eq(get("cuNothing", &found, 12000, 0, &status), 500);
    cr_expect_eq(CALL("cuGetErrorName", int, const char**)(719, &text), 0);
    cr_expect_str_eq(text, "CUDA_ERROR_LAUNCH_FAILED");
    cr_expect_eq(CALL("cuDriverGetVersion", int*)(&value), 0);
    cr_expect_eq(value, 12040);
    cr_expect_eq(CALL("cuDeviceGetAttribute", int*, int, int)(&value, 75, 0), 0);
    cr_expect_eq(value, 8);
    cr_expect_eq(CALL("cuDeviceGetCount", int*)(&value), 0);
    cr_expect_eq(value, 2);
    cr_expect_eq(CALL("cuCtxCreate_v2", handle*, unsigned, int)(&ctx, 0, 1), 0);
    cr_expect_eq(CALL("cuCtxGetDevice", int*)(&value), 0);
    cr_expect_eq(value, 1);
    char older[512];
    snprintf(older, sizeof older, ".version 8.0%s", strstr(add_one, "\n.target"));
    cr_expect_eq(sim.load(&module, older, 0, NULL, NULL), 0);
    cr_expect_eq(CALL("cuCtxPopCurrent_v2", handle*)(&popped), 0);
    cr_expect_eq(popped, ctx);
    cr_expect_eq(CALL("cuCtxGetDevice", int*)(&value), 0);
    cr_expect_eq(value, 0);
    cr_expect_eq(CALL("cuCtxDestroy_v2", handle)(ctx), 0);
    cr_expect_eq(sim.set_current(ctx), 709);
    cr_expect_eq(sim.unload(module), 400);      // gone with its context
    // The driver is older than the PTX.
    cr_expect_eq(sim.load(&module, add_one, 0, NULL, NULL), 222);
    const char image[] = "\177ELF something";
    cr_expect_eq(sim.load(&module, image, 0, NULL, NULL), 209);
    CALL("ptxsim_register", const void*, size_t, const char*)(image, sizeof image, older);
    cr_expect_eq(sim.load(&module, image, 0, NULL, NULL), 0);
    sim.set_current(NULL);
    cr_expect_eq(sim.load(&module, older, 0, NULL, NULL), 201);
}

// Decoding that is slow by a factor: lanes of plain arithmetic a second, on one host thread.
Test(ptxsim, speed)
{
    static char ptx[4096];
    setenv("PTXSIM_THREADS", "1", 1);
    open_sim("sm_90");
    const char* body = "mov.u32 %r5, 0;\nmov.f32 %r6, 0f3F800000;\nmov.u32 %r7, 0;\n"
        "st.shared.u32 [%r4], 1;\n"
        "$loop: add.u32 %r7, %r7, 3;\nfma.rn.f32 %r6, %r6, 0f3F000000, %r6;\n"
        "ld.shared.u32 %r8, [%r4];\nld.global.u32 %r10, [%d4];\nxor.b32 %r7, %r7, %r8;\n"
        "shr.u32 %r8, %r7, 3;\nand.b32 %r9, %r8, %r10;\nadd.u32 %r5, %r5, 1;\n"
        "setp.lt.u32 %p1, %r5, 10000;\n@%p1 bra $loop;\nst.global.u32 [%d3], %r9;";
    handle module;
    snprintf(ptx, sizeof ptx, kernel_head, run_target, "", body);
    handle kernel = load_kernel(ptx, "k", &module);
    uint32_t in[128] = { 0 };
    address out = device_copy(NULL, 512), from = device_copy(in, 512);
    uint32_t n = 0;
    struct timespec t0, t1;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t0);
    cr_assert_eq(sim.launch(kernel, 1, 1, 1, 128, 1, 1, 0, NULL, (void*[]){ &out, &from, &n },
                            NULL), 0);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t1);
    ptxsim_stats stats;
    sim.counters(&stats);
    double lanes = 0;
    for (int k = 0; k < PTXSIM_CLASSES; ++k) lanes += (double)stats.lane_instructions[k];
    const double seconds = (double)(t1.tv_sec - t0.tv_sec) +
                           (double)(t1.tv_nsec - t0.tv_nsec) * 1e-9;
    cr_log_info("%.0f M lane instructions a second", lanes / seconds * 1e-6);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    cr_expect_gt(lanes / seconds, 2e7, "%g", lanes / seconds);
#endif
}
