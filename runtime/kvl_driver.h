// kvl_driver.h -- libcuda, libnvrtc and libcurand, opened at run time into tables of functions.
//
// The only file that names a cu* or nvrtc* function.  No header of the toolkit is needed: the types
// are declared here, and each function is named as the library exports it, versions included
// (cuMemAlloc_v2), so that a later driver keeps what this file was written for.  Everything else
// calls through a table, which a test may fill with functions of its own.
//
// The libraries stay loaded until the process ends: the driver has threads of its own.

#ifndef KVL_DRIVER_H
#define KVL_DRIVER_H

#include "kvl_base.h"

#include <dlfcn.h>
#include <sys/stat.h>

// TYPES

typedef struct kvl__cu_context_of*    kvl__cu_context;
typedef struct kvl__cu_module_of*     kvl__cu_module;
typedef struct kvl__cu_function_of*   kvl__cu_function;
typedef struct kvl__cu_stream_of*     kvl__cu_stream;
typedef struct kvl__cu_event_of*      kvl__cu_event;
typedef struct kvl__cu_graph_of*      kvl__cu_graph;
typedef struct kvl__cu_graph_exec_of* kvl__cu_graph_exec;
typedef uint64_t                      kvl__cu_address;     // of device memory
typedef struct kvl__nvrtc_program_of* kvl__nvrtc_program;
typedef struct kvl__curand_of*        kvl__curand_generator;

// Results of the driver that the library tells apart.
enum {
    KVL__CU_OK = 0, KVL__CU_INVALID_VALUE = 1, KVL__CU_OUT_OF_MEMORY = 2,
    KVL__CU_NOT_INITIALIZED = 3, KVL__CU_DEINITIALIZED = 4, KVL__CU_NO_DEVICE = 100,
    KVL__CU_INVALID_DEVICE = 101, KVL__CU_INVALID_IMAGE = 200, KVL__CU_NO_BINARY = 209,
    KVL__CU_INVALID_PTX = 218, KVL__CU_NO_PTX_COMPILER = 221, KVL__CU_UNSUPPORTED_PTX = 222,
    KVL__CU_PTX_COMPILER_OFF = 223, KVL__CU_INVALID_SOURCE = 300,
    KVL__CU_NOT_FOUND = 500, KVL__CU_NOT_READY = 600, KVL__CU_CAPTURE_UNSUPPORTED = 900
};

// Attributes of devices (device_get_attribute) and functions (func_*_attribute).
enum {
    KVL__DEVICE_SHARED_BYTES = 8, KVL__DEVICE_NUM_SMS = 16, KVL__DEVICE_L2_BYTES = 38,
    KVL__DEVICE_THREADS_OF_SM = 39, KVL__DEVICE_CC_MAJOR = 75, KVL__DEVICE_CC_MINOR = 76,
    KVL__DEVICE_SHARED_BYTES_OF_SM = 81, KVL__DEVICE_SHARED_BYTES_MOST = 97,
    KVL__DEVICE_HAS_POOLS = 115,
    KVL__FUNC_SHARED_BYTES = 1, KVL__FUNC_LOCAL_BYTES = 3, KVL__FUNC_REGISTERS = 4,
    KVL__FUNC_DYNAMIC_SHARED_BYTES = 8
};

enum {
    KVL__STREAM_INDEPENDENT = 1,       // of the legacy default stream
    KVL__EVENT_NO_TIMING = 2,
    KVL__JIT_ERROR_LOG = 5, KVL__JIT_ERROR_LOG_BYTES = 6,
    KVL__CAPTURE_RELAXED = 2,
    KVL__POINTER_MEMORY_TYPE = 2, KVL__POINTER_DEVICE = 9, KVL__MEMORY_OF_DEVICE = 2
};

// TABLES: X(field, symbol, arguments); each returns the library's result, 0 meaning success.

#define KVL__DRIVER_LIST(X) \
    X(init, "cuInit", (unsigned flags)) \
    X(get_version, "cuDriverGetVersion", (int* version)) \
    X(get_error_name, "cuGetErrorName", (int error, const char** text)) \
    X(get_error_string, "cuGetErrorString", (int error, const char** text)) \
    X(device_get_count, "cuDeviceGetCount", (int* count)) \
    X(device_get, "cuDeviceGet", (int* device, int ordinal)) \
    X(device_get_name, "cuDeviceGetName", (char* name, int size, int device)) \
    X(device_get_attribute, "cuDeviceGetAttribute", (int* value, int attribute, int device)) \
    X(device_total_mem, "cuDeviceTotalMem_v2", (size_t* bytes, int device)) \
    X(primary_retain, "cuDevicePrimaryCtxRetain", (kvl__cu_context* context, int device)) \
    X(primary_release, "cuDevicePrimaryCtxRelease_v2", (int device)) \
    X(ctx_push, "cuCtxPushCurrent_v2", (kvl__cu_context context)) \
    X(ctx_pop, "cuCtxPopCurrent_v2", (kvl__cu_context* context)) \
    X(ctx_get_current, "cuCtxGetCurrent", (kvl__cu_context* context)) \
    X(ctx_synchronize, "cuCtxSynchronize", (void)) \
    X(mem_get_info, "cuMemGetInfo_v2", (size_t* free_bytes, size_t* total_bytes)) \
    X(mem_alloc, "cuMemAlloc_v2", (kvl__cu_address* address, size_t bytes)) \
    X(mem_free, "cuMemFree_v2", (kvl__cu_address address)) \
    X(mem_alloc_async, "cuMemAllocAsync", \
      (kvl__cu_address* address, size_t bytes, kvl__cu_stream stream)) \
    X(mem_free_async, "cuMemFreeAsync", (kvl__cu_address address, kvl__cu_stream stream)) \
    X(mem_host_alloc, "cuMemHostAlloc", (void** ptr, size_t bytes, unsigned flags)) \
    X(mem_free_host, "cuMemFreeHost", (void* ptr)) \
    X(copy_to_device, "cuMemcpyHtoD_v2", (kvl__cu_address to, const void* from, size_t bytes)) \
    X(copy_to_host, "cuMemcpyDtoH_v2", (void* to, kvl__cu_address from, size_t bytes)) \
    X(copy_to_device_async, "cuMemcpyHtoDAsync_v2", \
      (kvl__cu_address to, const void* from, size_t bytes, kvl__cu_stream stream)) \
    X(copy_to_host_async, "cuMemcpyDtoHAsync_v2", \
      (void* to, kvl__cu_address from, size_t bytes, kvl__cu_stream stream)) \
    X(copy_async, "cuMemcpyDtoDAsync_v2", \
      (kvl__cu_address to, kvl__cu_address from, size_t bytes, kvl__cu_stream stream)) \
    X(fill_bytes_async, "cuMemsetD8Async", \
      (kvl__cu_address to, unsigned char value, size_t count, kvl__cu_stream stream)) \
    X(fill_words_async, "cuMemsetD32Async", \
      (kvl__cu_address to, unsigned value, size_t count, kvl__cu_stream stream)) \
    X(pointer_get_attribute, "cuPointerGetAttribute", \
      (void* value, int attribute, kvl__cu_address address)) \
    X(module_load, "cuModuleLoadDataEx", \
      (kvl__cu_module* module, const void* image, unsigned num_options, int* options, \
       void** values)) \
    X(module_unload, "cuModuleUnload", (kvl__cu_module module)) \
    X(module_get_function, "cuModuleGetFunction", \
      (kvl__cu_function* function, kvl__cu_module module, const char* name)) \
    X(module_get_global, "cuModuleGetGlobal_v2", \
      (kvl__cu_address* address, size_t* bytes, kvl__cu_module module, const char* name)) \
    X(func_get_attribute, "cuFuncGetAttribute", \
      (int* value, int attribute, kvl__cu_function function)) \
    X(func_set_attribute, "cuFuncSetAttribute", \
      (kvl__cu_function function, int attribute, int value)) \
    X(func_occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", \
      (int* num_ctas, kvl__cu_function function, int threads, size_t shared_bytes)) \
    X(launch, "cuLaunchKernel", \
      (kvl__cu_function function, unsigned ctas_x, unsigned ctas_y, unsigned ctas_z, \
       unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared_bytes, \
       kvl__cu_stream stream, void** params, void** extra)) \
    X(launch_host, "cuLaunchHostFunc", \
      (kvl__cu_stream stream, void (*call)(void*), void* user)) \
    X(stream_create, "cuStreamCreate", (kvl__cu_stream* stream, unsigned flags)) \
    X(stream_destroy, "cuStreamDestroy_v2", (kvl__cu_stream stream)) \
    X(stream_synchronize, "cuStreamSynchronize", (kvl__cu_stream stream)) \
    X(stream_query, "cuStreamQuery", (kvl__cu_stream stream)) \
    X(stream_wait_event, "cuStreamWaitEvent", \
      (kvl__cu_stream stream, kvl__cu_event event, unsigned flags)) \
    X(stream_is_capturing, "cuStreamIsCapturing", (kvl__cu_stream stream, int* status)) \
    X(stream_begin_capture, "cuStreamBeginCapture_v2", (kvl__cu_stream stream, int mode)) \
    X(stream_end_capture, "cuStreamEndCapture", (kvl__cu_stream stream, kvl__cu_graph* graph)) \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", \
      (kvl__cu_graph_exec* exec, kvl__cu_graph graph, uint64_t flags)) \
    X(graph_launch, "cuGraphLaunch", (kvl__cu_graph_exec exec, kvl__cu_stream stream)) \
    X(graph_destroy, "cuGraphDestroy", (kvl__cu_graph graph)) \
    X(graph_exec_destroy, "cuGraphExecDestroy", (kvl__cu_graph_exec exec)) \
    X(event_create, "cuEventCreate", (kvl__cu_event* event, unsigned flags)) \
    X(event_destroy, "cuEventDestroy_v2", (kvl__cu_event event)) \
    X(event_record, "cuEventRecord", (kvl__cu_event event, kvl__cu_stream stream)) \
    X(event_synchronize, "cuEventSynchronize", (kvl__cu_event event)) \
    X(event_query, "cuEventQuery", (kvl__cu_event event)) \
    X(event_elapsed, "cuEventElapsedTime", \
      (float* ms, kvl__cu_event from, kvl__cu_event to))

#define KVL__NVRTC_LIST(X) \
    X(version, "nvrtcVersion", (int* major, int* minor)) \
    X(num_archs, "nvrtcGetNumSupportedArchs", (int* count)) \
    X(archs, "nvrtcGetSupportedArchs", (int* archs)) \
    X(create, "nvrtcCreateProgram", \
      (kvl__nvrtc_program* program, const char* text, const char* name, int num_headers, \
       const char* const* headers, const char* const* names)) \
    X(destroy, "nvrtcDestroyProgram", (kvl__nvrtc_program* program)) \
    X(compile, "nvrtcCompileProgram", \
      (kvl__nvrtc_program program, int num_options, const char* const* options)) \
    X(log_bytes, "nvrtcGetProgramLogSize", (kvl__nvrtc_program program, size_t* bytes)) \
    X(log, "nvrtcGetProgramLog", (kvl__nvrtc_program program, char* log)) \
    X(cubin_bytes, "nvrtcGetCUBINSize", (kvl__nvrtc_program program, size_t* bytes)) \
    X(cubin, "nvrtcGetCUBIN", (kvl__nvrtc_program program, char* cubin)) \
    X(ptx_bytes, "nvrtcGetPTXSize", (kvl__nvrtc_program program, size_t* bytes)) \
    X(ptx, "nvrtcGetPTX", (kvl__nvrtc_program program, char* ptx))

#define KVL__CURAND_LIST(X) \
    X(create_host, "curandCreateGeneratorHost", (kvl__curand_generator* generator, int kind)) \
    X(destroy, "curandDestroyGenerator", (kvl__curand_generator generator)) \
    X(set_seed, "curandSetPseudoRandomGeneratorSeed", \
      (kvl__curand_generator generator, unsigned long long seed)) \
    X(set_offset, "curandSetGeneratorOffset", \
      (kvl__curand_generator generator, unsigned long long offset)) \
    X(set_ordering, "curandSetGeneratorOrdering", (kvl__curand_generator generator, int order)) \
    X(bits, "curandGenerate", (kvl__curand_generator generator, unsigned* out, size_t count)) \
    X(uniform, "curandGenerateUniform", \
      (kvl__curand_generator generator, float* out, size_t count)) \
    X(normal, "curandGenerateNormal", \
      (kvl__curand_generator generator, float* out, size_t count, float mean, float deviation))

#define KVL__TABLE_FIELD(field, symbol, arguments) int (*field) arguments;

typedef struct kvl__driver {
    int version;                  // 1000 major + 10 minor of the latest CUDA that it serves
    KVL__DRIVER_LIST(KVL__TABLE_FIELD)
} kvl__driver;

typedef struct kvl__nvrtc_table { KVL__NVRTC_LIST(KVL__TABLE_FIELD) } kvl__nvrtc_table;

typedef struct kvl__curand_table { KVL__CURAND_LIST(KVL__TABLE_FIELD) } kvl__curand_table;

// One entry of a list: where its function goes in the table.
typedef struct kvl__symbol { const char* name; size_t at; } kvl__symbol;

#define KVL__DRIVER_SYMBOL(field, symbol, arguments) { symbol, offsetof(kvl__driver, field) },
#define KVL__NVRTC_SYMBOL(field, symbol, arguments) { symbol, offsetof(kvl__nvrtc_table, field) },
#define KVL__CURAND_SYMBOL(field, symbol, arguments) \
    { symbol, offsetof(kvl__curand_table, field) },

// Fills a table; returns the name of the first function that the library lacks, or NULL.
KVL__FN const char* kvl__fill_table(void* library, const kvl__symbol* symbols, size_t num,
                                    void* table)
{
    for (size_t i = 0; i < num; ++i) {
        void* found = dlsym(library, symbols[i].name);
        if (!found) return symbols[i].name;
        memcpy((char*)table + symbols[i].at, &found, sizeof found);
    }
    return NULL;
}

// What the loader said of the last failure, in one line.
KVL__FN const char* kvl__loader_fault(void)
{
    const char* why = dlerror();
    return why ? why : "dlopen failed";
}

// THE DRIVER

enum { KVL__DRIVER_OLDEST = 12000, KVL__SM_OLDEST = 75 };

KVL__FN kvl_status kvl__driver_open(kvl_context* ctx, kvl__driver* driver)
{
    static const kvl__symbol symbols[] = { KVL__DRIVER_LIST(KVL__DRIVER_SYMBOL) };
    char fault[256] = "";
    memset(driver, 0, sizeof *driver);
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) snprintf(fault, sizeof fault, "%s", kvl__loader_fault());
    if (!library) library = dlopen("/usr/lib/wsl/lib/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    KVL__REQUIRE(ctx, library, KVL_NO_DRIVER, "no CUDA driver: it comes with the NVIDIA driver of "
                 "the machine (%s)", fault);
    const char* lacking =
        kvl__fill_table(library, symbols, sizeof symbols / sizeof symbols[0], driver);
    KVL__REQUIRE(ctx, !lacking, KVL_NO_DRIVER, "the CUDA driver is too old: it lacks %s; CUDA 12.0 "
                 "or later is needed", lacking);
    return KVL_OK;
}

// THE DEVICE OF A CONTEXT

struct kvl__gpu {
    kvl__driver     driver;
    int             ordinal;           // of the caller
    int             device;            // of the driver
    int             sm;                // 10 major + minor of the compute capability
    int             num_sms, shared_bytes_most;
    char            name[128];
    kvl__cu_context primary;           // NULL: not retained
    int             takes_ptx;         // it refused a cubin that was made for it
    int             lost;              // an error came that no call on this context survives
    kvl__cu_function merge_results;    // atomic: of kvl_merge; NULL: not loaded
};

// True for results after which every further call on the context fails.
KVL__FN int kvl__cu_is_fatal(int result)
{
    switch (result) {
    case KVL__CU_DEINITIALIZED: case 214: case 220: case 226:     // ECC, NVLink
    case 700: case 702: case 709: case 710: case 714: case 715: case 716: case 717: case 718:
    case 719: case 721: return 1;
    default: return 0;
    }
}

// Turns a result of the driver into a status; the format says what was asked of it.
__attribute__((format(printf, 3, 4)))
KVL__FN kvl_status kvl__cu_check(kvl_context* ctx, int result, const char* format, ...)
{
    char what[256];
    const char *name = NULL, *text = NULL;
    va_list args;
    if (result == KVL__CU_OK) return KVL_OK;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    ctx->gpu->driver.get_error_name(result, &name);
    ctx->gpu->driver.get_error_string(result, &text);
    if (!name) name = "an error without a name";
    if (!text) text = "the driver says no more";
    if (kvl__cu_is_fatal(result)) ctx->gpu->lost = 1;
    if (result == KVL__CU_OUT_OF_MEMORY)
        return kvl__fail(ctx, KVL_NO_MEMORY, "%s: device %d is out of memory (%s)", what,
                         ctx->gpu->ordinal, name);
    if (ctx->gpu->lost)
        return kvl__fail(ctx, KVL_DEVICE, "%s: %s (%d): %s; the device's context is lost, this "
                         "process cannot use it any more", what, name, result, text);
    return kvl__fail(ctx, KVL_DEVICE, "%s: %s (%d): %s", what, name, result, text);
}

// Makes the device's primary context current; kvl__gpu_leave gives back what was.  Between the two
// nothing may return.
KVL__FN kvl_status kvl__gpu_enter(kvl_context* ctx)
{
    KVL__TRY(kvl__check_process(ctx));
    KVL__REQUIRE(ctx, ctx->gpu && ctx->gpu->primary, KVL_NO_DRIVER,
                 "the context has no device: it was not created for one");
    KVL__REQUIRE(ctx, !ctx->gpu->lost, KVL_DEVICE, "device %d: its context is lost after an earlier"
                 " error, this process cannot use it any more", ctx->gpu->ordinal);
    return kvl__cu_check(ctx, ctx->gpu->driver.ctx_push(ctx->gpu->primary), "device %d",
                         ctx->gpu->ordinal);
}

KVL__FN void kvl__gpu_leave(kvl_context* ctx)
{
    kvl__cu_context mine;
    ctx->gpu->driver.ctx_pop(&mine);
}

// What cuInit says where there is nothing to use.
KVL__FN kvl_status kvl__gpu_start(kvl_context* ctx)
{
    kvl__gpu* gpu = ctx->gpu;
    int version = 0;
    KVL__TRY(kvl__cu_check(ctx, gpu->driver.get_version(&version), "asking the driver's version"));
    gpu->driver.version = version;
    KVL__REQUIRE(ctx, version >= KVL__DRIVER_OLDEST, KVL_NO_DRIVER, "the CUDA driver is too old: it"
                 " serves CUDA %d.%d, needed is 12.0 or later", version / 1000,
                 version % 1000 / 10);
    const int result = gpu->driver.init(0);
    KVL__REQUIRE(ctx, result != KVL__CU_NO_DEVICE, KVL_NO_DRIVER,
                 "no CUDA device: the driver (CUDA %d.%d) sees none; is one there, and does "
                 "CUDA_VISIBLE_DEVICES hide it?", version / 1000, version % 1000 / 10);
    KVL__REQUIRE(ctx, result != KVL__CU_NOT_INITIALIZED, KVL_NO_DRIVER, "the CUDA driver does not "
                 "start: in a process that was forked after its parent had started it, it never "
                 "does");
    const kvl_status status = kvl__cu_check(ctx, result, "starting the CUDA driver");
    return status == KVL_DEVICE ? KVL_NO_DRIVER : status;
}

KVL__FN kvl_status kvl__gpu_describe(kvl_context* ctx, int ordinal)
{
    kvl__gpu* gpu = ctx->gpu;
    const kvl__driver* d = &gpu->driver;
    int count = 0, major = 0, minor = 0;
    KVL__TRY(kvl__cu_check(ctx, d->device_get_count(&count), "counting devices"));
    KVL__REQUIRE(ctx, count > 0, KVL_NO_DRIVER, "no CUDA device: the driver sees none");
    KVL__REQUIRE(ctx, ordinal >= 0 && ordinal < count, KVL_BAD_ARGUMENT,
                 "device = %d: must be 0 to %d", ordinal, count - 1);
    gpu->ordinal = ordinal;
    KVL__TRY(kvl__cu_check(ctx, d->device_get(&gpu->device, ordinal), "device %d", ordinal));
    if (d->device_get_name(gpu->name, (int)sizeof gpu->name, gpu->device) != KVL__CU_OK)
        snprintf(gpu->name, sizeof gpu->name, "a device without a name");
    KVL__TRY(kvl__cu_check(ctx, d->device_get_attribute(&major, KVL__DEVICE_CC_MAJOR, gpu->device),
                           "device %d", ordinal));
    KVL__TRY(kvl__cu_check(ctx, d->device_get_attribute(&minor, KVL__DEVICE_CC_MINOR, gpu->device),
                           "device %d", ordinal));
    KVL__TRY(kvl__cu_check(ctx, d->device_get_attribute(&gpu->num_sms, KVL__DEVICE_NUM_SMS,
                                                        gpu->device), "device %d", ordinal));
    KVL__TRY(kvl__cu_check(ctx, d->device_get_attribute(&gpu->shared_bytes_most,
                                                        KVL__DEVICE_SHARED_BYTES_MOST, gpu->device),
                           "device %d", ordinal));
    gpu->sm = 10 * major + minor;
    KVL__REQUIRE(ctx, gpu->sm >= KVL__SM_OLDEST, KVL_UNSUPPORTED,
                 "device %d, %s, is sm_%d: must be sm_%d or later", ordinal, gpu->name, gpu->sm,
                 KVL__SM_OLDEST);
    return KVL_OK;
}

// Releases the primary context; modules and memory in it must be gone.
KVL__FN void kvl__gpu_destroy(kvl_context* ctx)
{
    kvl__gpu* gpu = ctx->gpu;
    if (!gpu) return;
    if (gpu->primary) gpu->driver.primary_release(gpu->device);
    kvl__free(ctx, gpu, sizeof *gpu);
    ctx->gpu = NULL;
}

// Opens device `ordinal`.  given: a table to use instead of the driver's; NULL: the driver's.
KVL__FN kvl_status kvl__gpu_create(kvl_context* ctx, int ordinal, const kvl__driver* given)
{
    kvl__gpu* gpu = (kvl__gpu*)kvl__alloc_zeroed(ctx, sizeof *gpu);
    KVL__REQUIRE(ctx, gpu, KVL_NO_MEMORY, "no memory for the device");
    ctx->gpu = gpu;
    kvl_status status = KVL_OK;
    if (given) gpu->driver = *given;
    else status = kvl__driver_open(ctx, &gpu->driver);
    if (status == KVL_OK) status = kvl__gpu_start(ctx);
    if (status == KVL_OK) status = kvl__gpu_describe(ctx, ordinal);
    if (status == KVL_OK)
        status = kvl__cu_check(ctx, gpu->driver.primary_retain(&gpu->primary, gpu->device),
                               "making a context on device %d", ordinal);
    if (status != KVL_OK) {
        gpu->primary = NULL;
        kvl__gpu_destroy(ctx);
    }
    return status;
}

// NVRTC

// Opens the file of a library of `functions`; the compiler's own part, which lies beside it under a
// name with the version, is opened first where it is: the library itself looks only where the
// loader does.
KVL__FN void kvl__nvrtc_open_builtins(const char* path, const kvl__nvrtc_table* table)
{
    char beside[4096 + 64];
    int major = 0, minor = 0;
    const char* slash = strrchr(path, '/');
    if (!slash || table->version(&major, &minor) != 0) return;
    snprintf(beside, sizeof beside, "%.*s/libnvrtc-builtins.so.%d.%d", (int)(slash - path), path,
             major, minor);
    dlopen(beside, RTLD_NOW | RTLD_GLOBAL);
}

KVL__FN kvl_status kvl__nvrtc_open(kvl_context* ctx, const char* path, kvl__nvrtc_table* table)
{
    static const kvl__symbol symbols[] = { KVL__NVRTC_LIST(KVL__NVRTC_SYMBOL) };
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    memset(table, 0, sizeof *table);
    KVL__REQUIRE(ctx, library, KVL_COMPILE, "NVRTC cannot be opened: %s", kvl__loader_fault());
    const char* lacking =
        kvl__fill_table(library, symbols, sizeof symbols / sizeof symbols[0], table);
    KVL__REQUIRE(ctx, !lacking, KVL_COMPILE, "%s is no NVRTC that can be used: it lacks %s", path,
                 lacking);
    kvl__nvrtc_open_builtins(path, table);
    return KVL_OK;
}

// CURAND

enum {
    KVL__CURAND_PHILOX = 161,          // CURAND_RNG_PSEUDO_PHILOX4_32_10
    KVL__CURAND_ORDER = 101            // CURAND_ORDERING_PSEUDO_DEFAULT
};

// Opens cuRAND where the loader, or a toolkit in its usual place, has it.  Returns whether it did.
KVL__FN int kvl__curand_open(kvl__curand_table* table)
{
    static const char* const paths[] = {
        "libcurand.so.10", "/usr/local/cuda/lib64/libcurand.so.10", NULL };
    static const kvl__symbol symbols[] = { KVL__CURAND_LIST(KVL__CURAND_SYMBOL) };
    void* library = NULL;
    for (int i = 0; paths[i] && !library; ++i) library = dlopen(paths[i], RTLD_NOW | RTLD_LOCAL);
    return library
        && !kvl__fill_table(library, symbols, sizeof symbols / sizeof symbols[0], table);
}

#endif
