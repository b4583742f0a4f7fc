// driver.c -- cuInit, devices, contexts, errors, cuGetProcAddress; and the questions of ptxsim.h.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STACK = 32 };

settings sim_settings;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t started_by;
static context primary[MAX_DEVICES];
static context* made[256];
static int num_made;
static __thread context* stack[STACK];
static __thread int depth;
static ptxsim_stats last_stats, total_stats;
static char last_fault[1024];

// SETTINGS

static uint64_t read_bytes(const char* text, uint64_t otherwise)
{
    if (!text || !*text) return otherwise;
    char* end;
    const uint64_t n = strtoull(text, &end, 10);
    switch (*end) {
    case 'k': case 'K': return n << 10;
    case 'm': case 'M': return n << 20;
    case 'g': case 'G': return n << 30;
    default: return n;
    }
}

static int read_arch(const char* text)
{
    if (!text || !*text) return 90;
    if (strncmp(text, "sm_", 3) == 0) return atoi(text + 3);
    const char* dot = strchr(text, '.');
    return dot ? 10 * atoi(text) + atoi(dot + 1) : atoi(text);
}

static void read_settings(void)
{
    settings* s = &sim_settings;
    const char* accept = getenv("PTXSIM_ACCEPT");
    const char* late = getenv("PTXSIM_LATE");
    const char* lazy = getenv("PTXSIM_LAZY");
    const char* log = getenv("PTXSIM_LOG");
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    s->sm = read_arch(getenv("PTXSIM_ARCH"));
    s->memory_bytes = read_bytes(getenv("PTXSIM_MEMORY"), (uint64_t)8 << 30);
    s->num_devices = (int)read_bytes(getenv("PTXSIM_DEVICES"), 1);
    if (s->num_devices > MAX_DEVICES) s->num_devices = MAX_DEVICES;
    s->num_threads = (int)read_bytes(getenv("PTXSIM_THREADS"),
                                     processors > 0 ? (uint64_t)processors : 1);
    s->driver_version = (int)read_bytes(getenv("PTXSIM_DRIVER"), 13000);
    s->accept_ptx = !accept || strstr(accept, "ptx");
    s->accept_cubin = !accept || strstr(accept, "cubin");
    s->late = late && *late == '1';
    s->lazy = lazy && *lazy == '1';
    s->limit = read_bytes(getenv("PTXSIM_LIMIT"), 500000000u);
    s->num_sms = (int)read_bytes(getenv("PTXSIM_SMS"), 4);
    snprintf(s->log, sizeof s->log, "%s", log ? log : "");
}

// THE LOCK AND THE CURRENT CONTEXT

void enter(void) { pthread_mutex_lock(&lock); }

CUresult leave(CUresult result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

// A child of the process that called cuInit has no driver.
static bool is_started(void) { return started_by && started_by == getpid(); }

CUresult current(context** ctx)
{
    if (!is_started()) return NOT_INITIALIZED;
    *ctx = depth ? stack[depth - 1] : NULL;
    if (!*ctx) return INVALID_CONTEXT;
    if (!(*ctx)->alive) return CONTEXT_DESTROYED;
    return (*ctx)->error;
}

API CUresult cuInit(unsigned flags);
API CUresult cuInit(unsigned flags)
{
    enter();
    if (flags) return leave(INVALID_VALUE);
    if (started_by && started_by != getpid()) return leave(NOT_INITIALIZED);
    if (!started_by) read_settings();
    if (!sim_settings.num_devices) return leave(NO_DEVICE);
    started_by = getpid();
    return leave(CUDA_SUCCESS);
}

API CUresult cuDriverGetVersion(int* version);
API CUresult cuDriverGetVersion(int* version)
{
    if (!version) return INVALID_VALUE;
    enter();
    if (!started_by) read_settings();
    *version = sim_settings.driver_version;
    return leave(CUDA_SUCCESS);
}

// DEVICES

API CUresult cuDeviceGetCount(int* count);
API CUresult cuDeviceGetCount(int* count)
{
    if (!is_started()) return NOT_INITIALIZED;
    if (!count) return INVALID_VALUE;
    *count = sim_settings.num_devices;
    return CUDA_SUCCESS;
}

static bool is_device(CUdevice device) { return device >= 0 && device < sim_settings.num_devices; }

API CUresult cuDeviceGet(CUdevice* device, int ordinal);
API CUresult cuDeviceGet(CUdevice* device, int ordinal)
{
    if (!is_started()) return NOT_INITIALIZED;
    if (!device) return INVALID_VALUE;
    if (!is_device(ordinal)) return INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char* name, int size, CUdevice device);
API CUresult cuDeviceGetName(char* name, int size, CUdevice device)
{
    if (!is_started()) return NOT_INITIALIZED;
    if (!name || size < 1) return INVALID_VALUE;
    if (!is_device(device)) return INVALID_DEVICE;
    snprintf(name, (size_t)size, "ptxsim sm_%d", sim_settings.sm);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid_v2(unsigned char* uuid, CUdevice device);
API CUresult cuDeviceGetUuid_v2(unsigned char* uuid, CUdevice device)
{
    if (!is_started()) return NOT_INITIALIZED;
    if (!uuid) return INVALID_VALUE;
    if (!is_device(device)) return INVALID_DEVICE;
    for (int k = 0; k < 16; ++k) uuid[k] = (unsigned char)(k + device);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device);
API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device)
{
    if (!is_started()) return NOT_INITIALIZED;
    if (!bytes) return INVALID_VALUE;
    if (!is_device(device)) return INVALID_DEVICE;
    *bytes = sim_settings.memory_bytes;
    return CUDA_SUCCESS;
}

static int shared_most(void)
{
    switch (sim_settings.sm) {
    case 75: return 64 * 1024;
    case 80: case 87: return 163 * 1024;
    case 86: case 89: case 120: case 121: return 99 * 1024;
    default: return 227 * 1024;
    }
}

static int attribute(int which)
{
    const int sm = sim_settings.sm;
    switch (which) {
    case 1: case 2: case 3: return 1024;        // threads of a CTA; x; y
    case 4: return 64;                          // z
    case 5: return 0x7fffffff;                  // grid x
    case 6: case 7: return 65535;               // grid y, z
    case 8: return 48 * 1024;                   // shared memory without asking
    case 9: return 64 * 1024;                   // constants
    case 10: return 32;                         // warp
    case 12: case 82: return 65536;             // registers of a CTA, of a multiprocessor
    case 13: case 36: return 1500000;           // kHz
    case 16: return sim_settings.num_sms;       // multiprocessors
    case 37: return 512;                        // bits of the memory bus
    case 38: return 4 << 20;                    // L2
    case 39: return sm == 75 ? 1024 : sm == 86 || sm == 89 || sm >= 120 ? 1536 : 2048;
    case 40: case 41: case 78: case 79: case 115: return 1;
    case 75: return sm / 10;
    case 76: return sm % 10;
    case 81: return shared_most() + 1024;       // of a multiprocessor
    case 97: return shared_most();              // when asked
    case 106: return 32;                        // CTAs of a multiprocessor
    case 111: return 1024;                      // kept by the system
    default: return 0;
    }
}

API CUresult cuDeviceGetAttribute(int* value, int which, CUdevice device);
API CUresult cuDeviceGetAttribute(int* value, int which, CUdevice device)
{
    if (!is_started()) return NOT_INITIALIZED;
    if (!value || which < 1 || which > 160) return INVALID_VALUE;
    if (!is_device(device)) return INVALID_DEVICE;
    *value = attribute(which);
    return CUDA_SUCCESS;
}

// CONTEXTS

API CUresult cuDevicePrimaryCtxRetain(CUcontext* ctx, CUdevice device);
API CUresult cuDevicePrimaryCtxRetain(CUcontext* ctx, CUdevice device)
{
    enter();
    if (!is_started()) return leave(NOT_INITIALIZED);
    if (!ctx) return leave(INVALID_VALUE);
    if (!is_device(device)) return leave(INVALID_DEVICE);
    context* p = &primary[device];
    p->device = device, p->primary = p->alive = true;
    ++p->references;
    *ctx = p;
    return leave(CUDA_SUCCESS);
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    enter();
    if (!is_started()) return leave(NOT_INITIALIZED);
    if (!is_device(device)) return leave(INVALID_DEVICE);
    context* p = &primary[device];
    if (!p->references) return leave(INVALID_CONTEXT);
    if (--p->references) return leave(CUDA_SUCCESS);
    flush_all();
    forget_images(p);
    forget_streams(p);
    p->alive = false, p->error = 0;
    return leave(CUDA_SUCCESS);
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active);
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active)
{
    if (!is_started()) return NOT_INITIALIZED;
    if (!is_device(device)) return INVALID_DEVICE;
    if (flags) *flags = 0;
    if (active) *active = primary[device].alive;
    return CUDA_SUCCESS;
}

API CUresult cuCtxCreate_v2(CUcontext* ctx, unsigned flags, CUdevice device);
API CUresult cuCtxCreate_v2(CUcontext* ctx, unsigned flags, CUdevice device)
{
    (void)flags;
    enter();
    if (!is_started()) return leave(NOT_INITIALIZED);
    if (!ctx) return leave(INVALID_VALUE);
    if (!is_device(device)) return leave(INVALID_DEVICE);
    context* one = num_made < (int)COUNT(made) ? calloc(1, sizeof *one) : NULL;
    if (!one || depth == STACK) {
        free(one);
        return leave(OUT_OF_MEMORY);
    }
    made[num_made++] = one;
    one->device = device, one->alive = true;
    stack[depth++] = one;
    *ctx = one;
    return leave(CUDA_SUCCESS);
}

API CUresult cuCtxCreate_v4(CUcontext* ctx, void* params, unsigned flags, CUdevice device);
API CUresult cuCtxCreate_v4(CUcontext* ctx, void* params, unsigned flags, CUdevice device)
{
    (void)params;
    return cuCtxCreate_v2(ctx, flags, device);
}

API CUresult cuCtxDestroy_v2(CUcontext ctx);
API CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    enter();
    if (!is_started()) return leave(NOT_INITIALIZED);
    if (!ctx || ctx->primary || !ctx->alive) return leave(INVALID_CONTEXT);
    flush_all();
    forget_images(ctx);
    forget_streams(ctx);
    ctx->alive = false;
    if (depth && stack[depth - 1] == ctx) --depth;
    return leave(CUDA_SUCCESS);
}

API CUresult cuCtxSetCurrent(CUcontext ctx);
API CUresult cuCtxSetCurrent(CUcontext ctx)
{
    if (!is_started()) return NOT_INITIALIZED;
    if (ctx && !ctx->alive) return CONTEXT_DESTROYED;
    if (!depth) ++depth;
    stack[depth - 1] = ctx;
    if (!ctx) --depth;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext* ctx);
API CUresult cuCtxGetCurrent(CUcontext* ctx)
{
    if (!is_started()) return NOT_INITIALIZED;
    if (!ctx) return INVALID_VALUE;
    *ctx = depth ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(CUcontext ctx);
API CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    if (!is_started()) return NOT_INITIALIZED;
    if (!ctx) return INVALID_CONTEXT;
    if (!ctx->alive) return CONTEXT_DESTROYED;
    if (depth == STACK) return OUT_OF_MEMORY;
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

API CUresult cuCtxPopCurrent_v2(CUcontext* ctx);
API CUresult cuCtxPopCurrent_v2(CUcontext* ctx)
{
    if (!is_started()) return NOT_INITIALIZED;
    if (!depth) return INVALID_CONTEXT;
    --depth;
    if (ctx) *ctx = stack[depth];
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice* device);
API CUresult cuCtxGetDevice(CUdevice* device)
{
    context* ctx;
    const CUresult r = current(&ctx);
    if (r == NOT_INITIALIZED || r == INVALID_CONTEXT || r == CONTEXT_DESTROYED) return r;
    if (!device) return INVALID_VALUE;
    *device = ctx->device;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize(void);
API CUresult cuCtxSynchronize(void)
{
    context* ctx;
    enter();
    CUresult r = current(&ctx);
    if (!r) r = refuse_in_capture();
    if (!r) r = flush_all();
    return leave(r ? r : ctx->error);
}

API CUresult cuCtxGetLimit(size_t* value, int limit);
API CUresult cuCtxGetLimit(size_t* value, int limit)
{
    if (!value || limit < 0 || limit > 8) return INVALID_VALUE;
    *value = 1024;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetLimit(int limit, size_t value);
API CUresult cuCtxSetLimit(int limit, size_t value)
{
    (void)value;
    return limit < 0 || limit > 8 ? INVALID_VALUE : CUDA_SUCCESS;
}

// ERRORS

static const struct { int code; const char *name, *text; } errors[] = {
    { 0, "CUDA_SUCCESS", "no error" },
    { 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
    { 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
    { 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
    { 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
    { 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
    { 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid" },
    { 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
    { 209, "CUDA_ERROR_NO_BINARY_FOR_GPU",
      "no kernel image is available for execution on the device" },
    { 218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed" },
    { 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
      "the provided PTX was compiled with an unsupported toolchain." },
    { 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
    { 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
    { 600, "CUDA_ERROR_NOT_READY", "device not ready" },
    { 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered" },
    { 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated" },
    { 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed" },
    { 710, "CUDA_ERROR_ASSERT", "device-side assert triggered" },
    { 716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address" },
    { 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure" },
    { 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
    { 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
      "operation not permitted when stream is capturing" },
    { 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
      "operation failed due to a previous error during capture" },
    { 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
      "capture was not ended in the same stream as it began" },
    { 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
      "operation would make the legacy stream depend on a capturing blocking stream" },
};

API CUresult cuGetErrorName(CUresult error, const char** text);
API CUresult cuGetErrorName(CUresult error, const char** text)
{
    for (size_t k = 0; text && k < COUNT(errors); ++k) {
        if (errors[k].code == error) return *text = errors[k].name, CUDA_SUCCESS;
    }
    if (text) *text = NULL;
    return INVALID_VALUE;
}

API CUresult cuGetErrorString(CUresult error, const char** text);
API CUresult cuGetErrorString(CUresult error, const char** text)
{
    for (size_t k = 0; text && k < COUNT(errors); ++k) {
        if (errors[k].code == error) return *text = errors[k].text, CUDA_SUCCESS;
    }
    if (text) *text = NULL;
    return INVALID_VALUE;
}

// FUNCTIONS BY NAME

// The latest form of a function: the highest suffix that exists.
API CUresult cuGetProcAddress_v2(const char* name, void** found, int version, uint64_t flags,
                                 int* status);
API CUresult cuGetProcAddress_v2(const char* name, void** found, int version, uint64_t flags,
                                 int* status)
{
    static const char* const suffixes[] = { "_v4", "_v3", "_v2", "" };
    (void)version, (void)flags;
    Dl_info info;
    if (!name || !found) return INVALID_VALUE;
    *found = NULL;
    void* library = dladdr((const void*)errors, &info) ? dlopen(info.dli_fname,
                                                                RTLD_NOW | RTLD_NOLOAD) : NULL;
    for (size_t k = 0; library && !*found && k < COUNT(suffixes); ++k) {
        char full[128];
        snprintf(full, sizeof full, "%s%s", name, suffixes[k]);
        *found = dlsym(library, full);
    }
    if (library) dlclose(library);
    if (status) *status = *found ? 0 : 1;
    return *found ? CUDA_SUCCESS : NOT_FOUND;
}

API CUresult cuGetProcAddress(const char* name, void** found, int version, uint64_t flags);
API CUresult cuGetProcAddress(const char* name, void** found, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, found, version, flags, NULL);
}

// NVRTC looks for its cache of compilations here, and goes on without; a missing symbol it does not
// survive.
API CUresult cuGetExportTable(const void** table, const void* id);
API CUresult cuGetExportTable(const void** table, const void* id)
{
    (void)id;
    if (table) *table = NULL;
    return NOT_FOUND;
}

// WHAT TESTS ASK

void keep_fault(int status, const char* text, const ptxsim_stats* stats)
{
    uint64_t sums[sizeof *stats / 8], more[sizeof *stats / 8];
    last_stats = *stats;
    memcpy(sums, &total_stats, sizeof sums);
    memcpy(more, stats, sizeof more);
    for (size_t k = 0; k < COUNT(sums); ++k) sums[k] += more[k];
    memcpy(&total_stats, sums, sizeof sums);
    if (!status) return;
    snprintf(last_fault, sizeof last_fault, "%s", text);
    if (!sim_settings.log[0]) return;
    FILE* to = strcmp(sim_settings.log, "-") == 0 ? stderr : fopen(sim_settings.log, "a");
    if (!to) return;
    fprintf(to, "ptxsim: %s\n", text);
    if (to != stderr) fclose(to);
}

API void ptxsim_counters(ptxsim_stats* last)
{
    enter();
    *last = last_stats;
    leave(0);
}

API void ptxsim_totals(ptxsim_stats* all)
{
    enter();
    *all = total_stats;
    leave(0);
}

API size_t ptxsim_last_fault(char* text, size_t size)
{
    enter();
    const size_t length = strlen(last_fault);
    if (text && size) snprintf(text, size, "%s", last_fault);
    leave(0);
    return length;
}

API size_t ptxsim_live_bytes(void) { return memory_live(NULL); }

API size_t ptxsim_live_allocations(void)
{
    size_t count;
    memory_live(&count);
    return count;
}

API void ptxsim_reset(void)
{
    enter();
    last_fault[0] = 0;
    memset(&last_stats, 0, sizeof last_stats);
    memset(&total_stats, 0, sizeof total_stats);
    for (int k = 0; k < MAX_DEVICES; ++k) primary[k].error = 0;
    for (int k = 0; k < num_made; ++k) made[k]->error = 0;
    leave(0);
}
