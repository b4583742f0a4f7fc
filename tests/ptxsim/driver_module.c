// driver_module.c -- modules, libraries, kernels and their attributes, launches.

#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct registered {
    struct registered* next;
    uint8_t* bytes;
    size_t   count;
    char*    ptx;
} registered;

static image* images;
static registered* known;

static void* copy_of(const void* bytes, size_t count)
{
    void* copy = malloc(count ? count : 1);
    if (copy && count) memcpy(copy, bytes, count);
    return copy;
}

API void ptxsim_register(const void* bytes, size_t count, const char* ptx)
{
    enter();
    registered* one = calloc(1, sizeof *one);
    if (one) {
        one->bytes = copy_of(bytes, count), one->count = count;
        one->ptx = copy_of(ptx, strlen(ptx) + 1);
        one->next = known;
        known = one;
    }
    leave(0);
}

// LOADING

typedef struct load_log { char* error; size_t error_bytes; } load_log;

// CU_JIT_ERROR_LOG_BUFFER is 5, its size 6.
static load_log find_log(unsigned count, const int* options, void* const* values)
{
    load_log log = { NULL, 0 };
    for (unsigned k = 0; options && values && k < count; ++k) {
        if (options[k] == 5) log.error = values[k];
        if (options[k] == 6) log.error_bytes = (size_t)(uintptr_t)values[k];
    }
    return log;
}

static bool relocate(const module* mod, const symbol* s)
{
    allocation* one = memory_find(s->address);
    for (const relocation* r = s->relocations; r; r = r->next) {
        const symbol* to = find_symbol(mod, NULL, r->name, -1);
        if (!to || to->kind != SYM_GLOBAL) return false;
        const uint64_t address = to->address + (uint64_t)r->addend;
        memcpy(one->data + r->offset, &address, 8);
    }
    return true;
}

// Gives the variables addresses and their first values.
static CUresult place_globals(module* mod, int device)
{
    for (int k = 0; k < mod->num_symbols; ++k) {
        symbol* s = &mod->symbols[k];
        if (s->kind != SYM_GLOBAL) continue;
        s->address = memory_allocate(s->bytes, device, s->name);
        if (!s->address) return OUT_OF_MEMORY;
        allocation* one = memory_find(s->address);
        if (s->init) memcpy(one->data, s->init, s->bytes);
        memset(one->written, 1, s->bytes);
        one->read_only = s->is_const;
    }
    for (int k = 0; k < mod->num_symbols; ++k) {
        const symbol* s = &mod->symbols[k];
        if (s->kind == SYM_GLOBAL && !relocate(mod, s)) {
            snprintf(mod->log, sizeof mod->log, "the value of %s names what is not here", s->name);
            return INVALID_PTX;
        }
    }
    return CUDA_SUCCESS;
}

static void free_globals(const module* mod)
{
    for (int k = 0; k < mod->num_symbols; ++k) {
        if (mod->symbols[k].kind == SYM_GLOBAL && mod->symbols[k].address) {
            memory_free(mod->symbols[k].address);
        }
    }
}

// PTX 9 came with driver 13, 8 with 12, 7 with 11.
static bool is_too_late(const char* text)
{
    const char* at = strstr(text, ".version");
    const int major = at ? atoi(at + 8) : 0;
    return major >= 7 && (major + 4) * 1000 > sim_settings.driver_version;
}

// The PTX of an image, or why there is none.
static CUresult find_text(const void* bytes, const char** text)
{
    const unsigned char* head = bytes;
    const bool elf = memcmp(head, "\177ELF", 4) == 0;
    const bool fat = memcmp(head, "\x50\xed\x55\xba", 4) == 0;
    if (elf || fat) {
        for (const registered* r = known; r && sim_settings.accept_cubin; r = r->next) {
            if (memcmp(r->bytes, bytes, r->count) == 0) return *text = r->ptx, CUDA_SUCCESS;
        }
        return NO_BINARY;
    }
    *text = bytes;
    if (!strstr(*text, ".version")) return INVALID_IMAGE;
    if (!sim_settings.accept_ptx || is_too_late(*text)) return UNSUPPORTED_PTX;
    return CUDA_SUCCESS;
}

static CUresult finish_image(image* one, char* why, size_t size)
{
    module* mod = one->mod;
    const char* suffix = mod->num_functions ? "" : " (no functions)";
    if (mod->target > sim_settings.sm) {
        snprintf(why, size, "for sm_%d, the device is sm_%d%s", mod->target, sim_settings.sm,
                 suffix);
        return NO_BINARY;
    }
    CUresult r = place_globals(mod, one->device);
    if (!r && !module_decode(mod)) r = INVALID_PTX;
    if (r) {
        snprintf(why, size, "%s", mod->log);
        return r;
    }
    one->kernels = calloc((size_t)mod->num_functions + 1, sizeof *one->kernels);
    if (!one->kernels) return OUT_OF_MEMORY;
    for (int k = 0; k < mod->num_functions; ++k) {
        one->kernels[k] = (kernel){ mod->functions[k], one };
    }
    return CUDA_SUCCESS;
}

static CUresult load(image** out, const void* bytes, load_log log, bool library)
{
    context* ctx = NULL;
    const char* text;
    char why[1024] = "";
    CUresult r = current(&ctx);
    if (library && r == INVALID_CONTEXT) r = CUDA_SUCCESS;
    if (!r && (!out || !bytes)) r = INVALID_VALUE;
    if (!r) r = refuse_in_capture();
    if (!r) r = find_text(bytes, &text);
    if (r) return r;
    image* one = calloc(1, sizeof *one);
    if (!one) return OUT_OF_MEMORY;
    one->ctx = library ? NULL : ctx;
    one->device = ctx ? ctx->device : 0;
    one->alive = true;
    one->mod = module_parse(text, why, sizeof why);
    r = one->mod ? finish_image(one, why, sizeof why) : INVALID_PTX;
    if (r) {
        if (log.error && log.error_bytes) snprintf(log.error, log.error_bytes, "%s", why);
        const ptxsim_stats none = { 0 };
        keep_fault(r, why, &none);
        if (one->mod) free_globals(one->mod);
        module_free(one->mod);
        free(one);
        return r;
    }
    one->next = images;
    *out = images = one;
    return CUDA_SUCCESS;
}

API CUresult cuModuleLoadDataEx(CUmodule* out, const void* bytes, unsigned count, int* options,
                                void** values);
API CUresult cuModuleLoadDataEx(CUmodule* out, const void* bytes, unsigned count, int* options,
                                void** values)
{
    enter();
    return leave(load(out, bytes, find_log(count, options, values), false));
}

API CUresult cuModuleLoadData(CUmodule* out, const void* bytes);
API CUresult cuModuleLoadData(CUmodule* out, const void* bytes)
{
    return cuModuleLoadDataEx(out, bytes, 0, NULL, NULL);
}

API CUresult cuLibraryLoadData(CUlibrary* out, const void* bytes, int* options, void** values,
                               unsigned count, int* more, void** more_values, unsigned more_count);
API CUresult cuLibraryLoadData(CUlibrary* out, const void* bytes, int* options, void** values,
                               unsigned count, int* more, void** more_values, unsigned more_count)
{
    (void)more, (void)more_values, (void)more_count;
    enter();
    return leave(load(out, bytes, find_log(count, options, values), true));
}

// The handle stays, so that using it afterwards is an error and not a crash.
static CUresult unload(image* one)
{
    if (!one || !one->alive) return INVALID_HANDLE;
    CUresult r = flush_all();
    one->alive = false;
    free_globals(one->mod);
    module_free(one->mod);
    one->mod = NULL;
    return r;
}

// A context takes its modules along; libraries belong to none.
void forget_images(const context* ctx)
{
    for (image* one = images; one; one = one->next) {
        if (one->alive && one->ctx == ctx) unload(one);
    }
}

API CUresult cuModuleUnload(CUmodule mod);
API CUresult cuModuleUnload(CUmodule mod)
{
    enter();
    return leave(unload(mod));
}

API CUresult cuLibraryUnload(CUlibrary library);
API CUresult cuLibraryUnload(CUlibrary library)
{
    enter();
    return leave(unload(library));
}

static CUresult find_kernel(kernel** out, image* one, const char* name)
{
    if (!out || !name) return INVALID_VALUE;
    if (!one || !one->alive) return INVALID_HANDLE;
    for (int k = 0; k < one->mod->num_functions; ++k) {
        const function* fn = one->mod->functions[k];
        if (fn->is_entry && strcmp(fn->name, name) == 0) {
            *out = &one->kernels[k];
            return CUDA_SUCCESS;
        }
    }
    return NOT_FOUND;
}

API CUresult cuModuleGetFunction(CUfunction* fn, CUmodule mod, const char* name);
API CUresult cuModuleGetFunction(CUfunction* fn, CUmodule mod, const char* name)
{
    enter();
    return leave(find_kernel(fn, mod, name));
}

API CUresult cuLibraryGetKernel(CUkernel* fn, CUlibrary library, const char* name);
API CUresult cuLibraryGetKernel(CUkernel* fn, CUlibrary library, const char* name)
{
    enter();
    return leave(find_kernel(fn, library, name));
}

API CUresult cuLibraryGetModule(CUmodule* mod, CUlibrary library);
API CUresult cuLibraryGetModule(CUmodule* mod, CUlibrary library)
{
    if (!mod) return INVALID_VALUE;
    *mod = library;
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetFunction(CUfunction* fn, CUkernel from);
API CUresult cuKernelGetFunction(CUfunction* fn, CUkernel from)
{
    if (!fn) return INVALID_VALUE;
    if (!from || !from->from->alive) return INVALID_HANDLE;
    *fn = from;
    return CUDA_SUCCESS;
}

static CUresult find_global(CUdeviceptr* address, size_t* bytes, image* one, const char* name)
{
    if (!name) return INVALID_VALUE;
    if (!one || !one->alive) return INVALID_HANDLE;
    const symbol* s = find_symbol(one->mod, NULL, name, -1);
    if (!s || s->kind != SYM_GLOBAL) return NOT_FOUND;
    if (address) *address = s->address;
    if (bytes) *bytes = s->bytes;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule mod,
                                  const char* name);
API CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule mod,
                                  const char* name)
{
    enter();
    return leave(find_global(address, bytes, mod, name));
}

API CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                                const char* name);
API CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                                const char* name)
{
    enter();
    return leave(find_global(address, bytes, library, name));
}

// ATTRIBUTES

enum { ATTRIBUTE_DYNAMIC = 8, PLAIN_SHARED = 48 * 1024 };

API CUresult cuDeviceGetAttribute(int* value, int which, CUdevice device);

static int most_shared(void)
{
    int bytes = 0;
    cuDeviceGetAttribute(&bytes, 97, 0);
    return bytes;
}

static int plain_dynamic(const function* fn)
{
    return fn->shared_bytes > PLAIN_SHARED ? 0 : PLAIN_SHARED - (int)fn->shared_bytes;
}

API CUresult cuFuncGetAttribute(int* value, int which, CUfunction of);
API CUresult cuFuncGetAttribute(int* value, int which, CUfunction of)
{
    if (!value) return INVALID_VALUE;
    if (!of || !of->from->alive) return INVALID_HANDLE;
    const function* fn = of->fn;
    switch (which) {
    case 0: *value = fn->max_threads ? (int)fn->max_threads : 1024; break;
    case 1: *value = (int)fn->shared_bytes; break;
    case 2: *value = 0; break;
    case 3: *value = (int)fn->local_bytes; break;
    case 4: *value = 64; break;
    case 5: case 6: *value = of->from->mod->target; break;
    case 7: case 9: *value = 0; break;
    case ATTRIBUTE_DYNAMIC:
        *value = fn->dynamic_shared_max ? (int)fn->dynamic_shared_max : plain_dynamic(fn);
        break;
    default: return INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API CUresult cuFuncSetAttribute(CUfunction of, int which, int value);
API CUresult cuFuncSetAttribute(CUfunction of, int which, int value)
{
    if (!of || !of->from->alive) return INVALID_HANDLE;
    if (which == 9) return CUDA_SUCCESS;
    if (which != ATTRIBUTE_DYNAMIC || value < 0) return INVALID_VALUE;
    if ((int)of->fn->shared_bytes + value > most_shared()) return INVALID_VALUE;
    of->fn->dynamic_shared_max = (uint32_t)value;
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetAttribute(int* value, int which, CUkernel of, CUdevice device);
API CUresult cuKernelGetAttribute(int* value, int which, CUkernel of, CUdevice device)
{
    (void)device;
    return cuFuncGetAttribute(value, which, of);
}

API CUresult cuKernelSetAttribute(int which, int value, CUkernel of, CUdevice device);
API CUresult cuKernelSetAttribute(int which, int value, CUkernel of, CUdevice device)
{
    (void)device;
    return cuFuncSetAttribute(of, which, value);
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, CUfunction of, int threads,
                                                         size_t dynamic_bytes);
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, CUfunction of, int threads,
                                                         size_t dynamic_bytes)
{
    if (!count || threads < 1 || threads > 1024) return INVALID_VALUE;
    if (!of || !of->from->alive) return INVALID_HANDLE;
    const size_t bytes = of->fn->shared_bytes + dynamic_bytes + 1024;
    const int by_threads = 1536 / threads;
    const int by_shared = (int)((size_t)(most_shared() + 1024) / bytes);
    *count = by_shared < by_threads ? by_shared : by_threads;
    return CUDA_SUCCESS;
}

// LAUNCH

static CUresult check_launch(const task* t)
{
    const function* fn = t->fn->fn;
    const uint64_t threads = (uint64_t)t->threads[0] * t->threads[1] * t->threads[2];
    for (int k = 0; k < 3; ++k) {
        if (!t->grid[k] || !t->threads[k]) return INVALID_VALUE;
    }
    if (t->grid[0] > 0x7fffffffu || t->grid[1] > 65535 || t->grid[2] > 65535) return INVALID_VALUE;
    if (threads > 1024 || t->threads[2] > 64) return INVALID_VALUE;
    if (fn->max_threads && threads > fn->max_threads) return INVALID_VALUE;
    if (fn->required_threads && threads != fn->required_threads) return INVALID_VALUE;
    const uint32_t allowed = fn->dynamic_shared_max ? fn->dynamic_shared_max :
        (uint32_t)plain_dynamic(fn);
    return t->dynamic_bytes > allowed ? INVALID_VALUE : CUDA_SUCCESS;
}

// From pointers to each parameter, or from one buffer (extra: 1 buffer, 2 its size, 0 end).
static CUresult copy_params(task* t, void* const* params, void* const* extra)
{
    const function* fn = t->fn->fn;
    t->params = calloc(fn->param_bytes + 1u, 1);
    if (!t->params) return OUT_OF_MEMORY;
    if (extra) {
        for (; *extra; extra += 2) {
            if ((uintptr_t)*extra == 1 && extra[1]) memcpy(t->params, extra[1], fn->param_bytes);
        }
        return CUDA_SUCCESS;
    }
    for (int k = 0; k < fn->num_params; ++k) {
        const symbol* s = &fn->symbols[fn->params[k]];
        if (!params || !params[k]) return INVALID_VALUE;
        memcpy(t->params + s->at, params[k], s->bytes);
    }
    return CUDA_SUCCESS;
}

typedef struct shape { uint32_t grid[3], threads[3], dynamic_bytes; } shape;

static CUresult ask_launch(CUfunction fn, const shape* as, CUstream on, void* const* params,
                           void* const* extra)
{
    context* ctx;
    CUresult r = current(&ctx);
    if (r) return r;
    if (!fn || !fn->from->alive || !fn->fn->has_body) return INVALID_HANDLE;
    if (fn->from->ctx && fn->from->ctx != ctx) return INVALID_HANDLE;
    stream* s = stream_of(ctx, on);
    if (!s) return INVALID_HANDLE;
    task t = { 0 };
    t.kind = WORK_LAUNCH, t.ctx = ctx, t.fn = fn, t.dynamic_bytes = as->dynamic_bytes;
    memcpy(t.grid, as->grid, sizeof t.grid);
    memcpy(t.threads, as->threads, sizeof t.threads);
    r = check_launch(&t);
    if (!r) r = copy_params(&t, params, extra);
    return r ? (free(t.params), r) : submit(s, &t);
}

CUresult perform_launch(const task* t)
{
    launch run;
    memset(&run, 0, sizeof run);
    if (!t->fn->from->alive) return INVALID_HANDLE;
    run.fn = t->fn->fn, run.mod = t->fn->from->mod;
    memcpy(run.grid, t->grid, sizeof run.grid);
    memcpy(run.threads, t->threads, sizeof run.threads);
    run.lazy = sim_settings.lazy, run.sm = sim_settings.sm;
    run.dynamic_bytes = t->dynamic_bytes, run.params = t->params, run.limit = sim_settings.limit;
    const CUresult r = launch_run(&run, sim_settings.num_threads);
    keep_fault(r, run.fault, &run.stats);
    return r;
}

API CUresult cuLaunchKernel(CUfunction fn, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned threads_x, unsigned threads_y, unsigned threads_z,
                            unsigned dynamic_bytes, CUstream on, void** params, void** extra);
API CUresult cuLaunchKernel(CUfunction fn, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned threads_x, unsigned threads_y, unsigned threads_z,
                            unsigned dynamic_bytes, CUstream on, void** params, void** extra)
{
    const shape as = { { grid_x, grid_y, grid_z }, { threads_x, threads_y, threads_z },
                       dynamic_bytes };
    enter();
    return leave(ask_launch(fn, &as, on, params, extra));
}

typedef struct launch_attribute { int id; char gap[4]; uint32_t value[16]; } launch_attribute;

typedef struct launch_config {
    unsigned grid[3], threads[3], dynamic_bytes;
    CUstream on;
    const launch_attribute* attributes;
    unsigned num_attributes;
} launch_config;

// Clusters of more than one CTA do not exist here; other attributes change nothing.
API CUresult cuLaunchKernelEx(const launch_config* config, CUfunction fn, void** params,
                              void** extra);
API CUresult cuLaunchKernelEx(const launch_config* config, CUfunction fn, void** params,
                              void** extra)
{
    if (!config) return INVALID_VALUE;
    for (unsigned k = 0; k < config->num_attributes; ++k) {
        const launch_attribute* a = &config->attributes[k];
        if (a->id == 4 && a->value[0] * a->value[1] * a->value[2] != 1) return NOT_SUPPORTED;
    }
    shape as;
    memcpy(as.grid, config->grid, sizeof as.grid);
    memcpy(as.threads, config->threads, sizeof as.threads);
    as.dynamic_bytes = config->dynamic_bytes;
    enter();
    return leave(ask_launch(fn, &as, config->on, params, extra));
}
