// kvl_nvrtc.h -- NVRTC: find it, know it, compile with it, load what it wrote.
//
// The library is 100 MB and takes longer to open than a warm start may: it is found as a file, what
// it says of itself is remembered on disk by that file's stamp, and it is opened when something has
// to be compiled.  It is looked for in this order, in each place the latest major version that the
// driver serves:
//
//     context_desc.nvrtc, else KVLOOM_NVRTC         a file or a folder; nothing else then
//     LD_LIBRARY_PATH
//     CUDA_PATH, CUDA_HOME                          toolkits: lib64 and lib
//     the system's library folders, /usr/local/cuda
//     VIRTUAL_ENV, CONDA_PREFIX, HOME/.local, /usr/local, /usr
//                                                   wheels: site-packages/nvidia/*/lib
//     wherever else the loader finds it
//
// Programs are compiled to a cubin for the device's own architecture, so that the driver compiles
// nothing.  PTX is made where NVRTC does not know the architecture, for the latest one that it does
// know, and where the driver refuses the cubin.

#ifndef KVL_NVRTC_H
#define KVL_NVRTC_H

#include "kvl_compile.h"
#include "kvl_driver.h"

#include <glob.h>
#include <link.h>

enum { KVL__NVRTC_OLDEST = 12, KVL__NVRTC_LATEST = 13, KVL__NVRTC_ARCHS = 48 };

// Where to look; each may be NULL.
typedef struct kvl__nvrtc_places {
    const char *asked, *origin;                        // and who asked
    const char *library_path, *cuda_path, *cuda_home;
    const char *virtual_env, *conda_prefix, *home;
} kvl__nvrtc_places;

struct kvl__nvrtc {
    pthread_mutex_t  lock;           // guards what follows
    char*            asked;          // by desc or environment; NULL: nobody
    const char*      origin;
    char*            path;           // of the library; NULL: not found among files
    int              most;           // major version that the driver serves
    int              is_open;
    kvl__nvrtc_table table;
};

// FINDING

KVL__FN int kvl__is_file(const char* path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

// A library in a folder; the latest that is served.
KVL__FN int kvl__nvrtc_in_folder(const char* folder, size_t length, int most, char* path)
{
    if (length == 0 || folder[0] != '/') return 0;
    for (int major = most; major >= KVL__NVRTC_OLDEST; --major) {
        const int n = snprintf(path, KVL__PATH_BYTES, "%.*s/libnvrtc.so.%d", (int)length, folder,
                               major);
        if (n > 0 && n < KVL__PATH_BYTES && kvl__is_file(path)) return 1;
    }
    return 0;
}

KVL__FN int kvl__nvrtc_in_list(const char* list, int most, char* path)
{
    while (list && *list) {
        const size_t n = strcspn(list, ":");
        if (kvl__nvrtc_in_folder(list, n, most, path)) return 1;
        list += n + (list[n] == ':');
    }
    return 0;
}

KVL__FN int kvl__nvrtc_in_toolkit(const char* root, int most, char* path)
{
    static const char* const parts[] = { "lib64", "lib", "targets/x86_64-linux/lib",
                                         "targets/sbsa-linux/lib" };
    char folder[KVL__PATH_BYTES];
    for (size_t i = 0; root && i < sizeof parts / sizeof parts[0]; ++i)
        if (kvl__join_path(folder, root, parts[i])
            && kvl__nvrtc_in_folder(folder, strlen(folder), most, path)) return 1;
    return 0;
}

// In folders of a pattern.
KVL__FN int kvl__nvrtc_in_pattern(const char* pattern, int most, char* path)
{
    glob_t list;
    int found = 0;
    if (glob(pattern, GLOB_NOSORT, NULL, &list) != 0) return 0;
    for (size_t k = 0; k < list.gl_pathc && !found; ++k)
        found = kvl__nvrtc_in_folder(list.gl_pathv[k], strlen(list.gl_pathv[k]), most, path);
    globfree(&list);
    return found;
}

// In the wheels of every Python under a prefix.
KVL__FN int kvl__nvrtc_in_wheels(const char* prefix, int most, char* path)
{
    static const char* const folders[] = { "site-packages", "dist-packages" };
    char pattern[KVL__PATH_BYTES];
    int found = 0;
    for (size_t i = 0; prefix && prefix[0] == '/' && i < 2 && !found; ++i) {
        const int n = snprintf(pattern, sizeof pattern, "%s/lib/python3*/%s/nvidia/*/lib", prefix,
                               folders[i]);
        found = n > 0 && n < (int)sizeof pattern && kvl__nvrtc_in_pattern(pattern, most, path);
    }
    return found;
}

// What was asked for: a file of any name, or a folder: the library's, a toolkit's, or one that
// wheels were unpacked into (pip install --target).
KVL__FN int kvl__nvrtc_asked(const char* asked, int most, char* path)
{
    char full[KVL__PATH_BYTES], here[KVL__PATH_BYTES];
    if (asked[0] == '/') {
        if (snprintf(full, sizeof full, "%s", asked) >= (int)sizeof full) return 0;
    } else if (!getcwd(here, sizeof here) || !kvl__join_path(full, here, asked)) {
        return 0;
    }
    if (kvl__is_file(full)) {
        strcpy(path, full);
        return 1;
    }
    return kvl__nvrtc_in_folder(full, strlen(full), most, path)
        || kvl__nvrtc_in_toolkit(full, most, path)
        || (kvl__join_path(here, full, "nvidia/*/lib")
            && kvl__nvrtc_in_pattern(here, most, path));
}

KVL__FN int kvl__nvrtc_find(const kvl__nvrtc_places* p, int most, char* path)
{
    static const char* const system[] = {
        "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
        "/usr/local/lib" };
    char local[KVL__PATH_BYTES];
    if (p->asked) return kvl__nvrtc_asked(p->asked, most, path);
    if (kvl__nvrtc_in_list(p->library_path, most, path)) return 1;
    if (kvl__nvrtc_in_toolkit(p->cuda_path, most, path)) return 1;
    if (kvl__nvrtc_in_toolkit(p->cuda_home, most, path)) return 1;
    for (size_t i = 0; i < sizeof system / sizeof system[0]; ++i)
        if (kvl__nvrtc_in_folder(system[i], strlen(system[i]), most, path)) return 1;
    if (kvl__nvrtc_in_toolkit("/usr/local/cuda", most, path)) return 1;
    if (kvl__nvrtc_in_wheels(p->virtual_env, most, path)) return 1;
    if (kvl__nvrtc_in_wheels(p->conda_prefix, most, path)) return 1;
    if (p->home && kvl__join_path(local, p->home, ".local")
        && kvl__nvrtc_in_wheels(local, most, path)) return 1;
    return kvl__nvrtc_in_wheels("/usr/local", most, path)
        || kvl__nvrtc_in_wheels("/usr", most, path);
}

KVL__FN void kvl__nvrtc_destroy(kvl_context* ctx)
{
    kvl__nvrtc* n = ctx->nvrtc;
    if (!n) return;
    kvl__free_text(ctx, n->asked);
    kvl__free_text(ctx, n->path);
    pthread_mutex_destroy(&n->lock);
    kvl__free(ctx, n, sizeof *n);
    ctx->nvrtc = NULL;
}

// Looks among files.  That there is none is said when something has to be compiled.
KVL__FN kvl_status kvl__nvrtc_create(kvl_context* ctx, const kvl__nvrtc_places* places)
{
    char path[KVL__PATH_BYTES];
    kvl__nvrtc* n = (kvl__nvrtc*)kvl__alloc_zeroed(ctx, sizeof *n);
    KVL__REQUIRE(ctx, n, KVL_NO_MEMORY, "no memory for NVRTC");
    if (pthread_mutex_init(&n->lock, NULL) != 0) {
        kvl__free(ctx, n, sizeof *n);
        return kvl__fail(ctx, KVL_NO_MEMORY, "no mutex for NVRTC");
    }
    ctx->nvrtc = n;
    n->most = ctx->gpu ? ctx->gpu->driver.version / 1000 : KVL__NVRTC_LATEST;
    n->origin = places->origin;
    if (places->asked) n->asked = kvl__copy_text(ctx, places->asked);
    KVL__REQUIRE(ctx, !places->asked || n->asked, KVL_NO_MEMORY, "no memory for nvrtc");
    if (!kvl__nvrtc_find(places, n->most, path)) return KVL_OK;
    n->path = kvl__copy_text(ctx, path);
    KVL__REQUIRE(ctx, n->path, KVL_NO_MEMORY, "no memory for NVRTC's path");
    return KVL_OK;
}

// OPENING

// Asks the loader by name, for installations that only it knows.  Call with the lock held.
KVL__FN void kvl__nvrtc_ask_loader(kvl_context* ctx)
{
    kvl__nvrtc* n = ctx->nvrtc;
    struct link_map* map = NULL;
    char name[32];
    void* library = NULL;
    for (int major = n->most; major >= KVL__NVRTC_OLDEST && !library; --major) {
        snprintf(name, sizeof name, "libnvrtc.so.%d", major);
        library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (!library) return;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name[0] == '/')
        n->path = kvl__copy_text(ctx, map->l_name);
}

// The library's file, as text that belongs to the context.
KVL__FN kvl_status kvl__nvrtc_path(kvl_context* ctx, const char** path)
{
    kvl__nvrtc* n = ctx->nvrtc;
    pthread_mutex_lock(&n->lock);
    if (!n->path && !n->asked) kvl__nvrtc_ask_loader(ctx);
    *path = n->path;
    pthread_mutex_unlock(&n->lock);
    KVL__REQUIRE(ctx, *path || !n->asked, KVL_COMPILE, "%s = %s: no libnvrtc.so of CUDA %d to %d "
                 "there", n->origin, n->asked, KVL__NVRTC_OLDEST, n->most);
    KVL__REQUIRE(ctx, *path, KVL_COMPILE, "no NVRTC of CUDA %d to %d: looked for libnvrtc.so in "
                 "LD_LIBRARY_PATH, CUDA_PATH, /usr/local/cuda and Python's wheels; install a CUDA "
                 "toolkit or the wheel nvidia-cuda-nvrtc, or set context_desc.nvrtc or "
                 "KVLOOM_NVRTC", KVL__NVRTC_OLDEST, n->most);
    return KVL_OK;
}

// The table, opened at its first use.
KVL__FN kvl_status kvl__nvrtc_get(kvl_context* ctx, const kvl__nvrtc_table** table)
{
    kvl__nvrtc* n = ctx->nvrtc;
    const char* path;
    kvl_status status = KVL_OK;
    KVL__TRY(kvl__nvrtc_path(ctx, &path));
    pthread_mutex_lock(&n->lock);
    if (!n->is_open) {
        status = kvl__nvrtc_open(ctx, path, &n->table);
        n->is_open = status == KVL_OK;
    }
    pthread_mutex_unlock(&n->lock);
    *table = &n->table;
    return status;
}

// IDENTITY: "NVRTC 13.0, 109083552 bytes; sm 75 80 ... 121"

KVL__FN kvl_status kvl__nvrtc_ask(kvl_context* ctx, const char* path, char* text, size_t size)
{
    const kvl__nvrtc_table* t = NULL;
    int major = 0, minor = 0, count = 0, archs[KVL__NVRTC_ARCHS];
    struct stat st;
    KVL__TRY(kvl__nvrtc_get(ctx, &t));
    KVL__REQUIRE(ctx, t->version(&major, &minor) == 0 && t->num_archs(&count) == 0
                 && count >= 1 && count <= KVL__NVRTC_ARCHS && t->archs(archs) == 0
                 && stat(path, &st) == 0, KVL_COMPILE, "%s: it does not say what it is", path);
    snprintf(text, size, "NVRTC %d.%d, %lld bytes; sm", major, minor, (long long)st.st_size);
    for (int i = 0; i < count; ++i) {
        const size_t at = strlen(text);
        snprintf(text + at, size - at, " %d", archs[i]);
    }
    return KVL_OK;
}

// The identity, from the disk where the same file was asked before.
KVL__FN kvl_status kvl__nvrtc_recall(kvl_context* ctx, const char* path, char* text, size_t size)
{
    kvl__entry entry;
    kvl__hash stamp;
    KVL__REQUIRE(ctx, kvl__compiler_stamp(path, &stamp), KVL_COMPILE, "NVRTC %s: it is gone", path);
    const int kept = kvl__entry_at(ctx, kvl__base_name(path), stamp, "id", &entry);
    if (kept && kvl__disk_read_text(ctx, &entry, text, size)) return KVL_OK;
    KVL__TRY(kvl__nvrtc_ask(ctx, path, text, size));
    if (kept) kvl__disk_write(ctx, &entry, text, strlen(text), NULL, 0);
    return KVL_OK;
}

KVL__FN kvl_status kvl__nvrtc_identity(kvl_context* ctx, char* text, size_t size)
{
    const char* path;
    int major = 0;
    KVL__TRY(kvl__nvrtc_path(ctx, &path));
    KVL__TRY(kvl__nvrtc_recall(ctx, path, text, size));
    KVL__REQUIRE(ctx, sscanf(text, "NVRTC %d", &major) == 1 && major >= KVL__NVRTC_OLDEST
                 && major <= ctx->nvrtc->most, KVL_COMPILE,
                 "%s is of CUDA %d: must be %d to %d%s", path, major, KVL__NVRTC_OLDEST,
                 ctx->nvrtc->most, ctx->gpu ? ", which the driver serves" : "");
    return KVL_OK;
}

// ARCHITECTURE

// Writes "sm_90", or "compute_90" for PTX.  identity NULL: NVRTC is missing, and only what it made
// before can be found.  sm_101 is what CUDA 12 calls Jetson Thor, which is sm_110 from CUDA 13 on:
// no other device is a later one of it.
KVL__FN kvl_status kvl__cuda_arch(kvl_context* ctx, const char* identity, char* arch, size_t size)
{
    const char* at = identity ? strstr(identity, "; sm") : NULL;
    int known = at == NULL, best = 0, oldest = 0, value, length;
    for (at = at ? at + 4 : ""; sscanf(at, " %d%n", &value, &length) == 1; at += length) {
        const int thor = value == 101 && ctx->sm != 101 && ctx->sm != 110;
        known |= value == ctx->sm;
        if (value <= ctx->sm && value > best && !thor) best = value;
        if (oldest == 0 || value < oldest) oldest = value;
    }
    KVL__REQUIRE(ctx, known || best, KVL_UNSUPPORTED, "sm_%d: this NVRTC knows sm_%d and later",
                 ctx->sm, oldest);
    const int ptx = !known || ctx->makes_ptx
        || (ctx->gpu && __atomic_load_n(&ctx->gpu->takes_ptx, __ATOMIC_ACQUIRE));
    snprintf(arch, size, "%s_%d", ptx ? "compute" : "sm", known ? ctx->sm : best);
    return KVL_OK;
}

KVL__FN int kvl__arch_is_ptx(const char* arch) { return strncmp(arch, "compute", 7) == 0; }

// COMPILING

// Options that shape the code, in order; -arch= follows, and for PTX that it names the templates'
// lines, which make a cubin three times as long.  No contraction: what is to be a multiply-add is
// written as one.  Functions are the device's without being marked, since parts of codecs are the
// same text on the host.
static __attribute__((unused)) const char* const kvl__nvrtc_options[] = {
    "--std=c++17", "--fmad=false", "--device-as-default-execution-space", NULL };

// What the compiler said, from the context's allocator, as kvl_context_log will give it.
KVL__FN void kvl__nvrtc_keep_log(kvl_context* ctx, const kvl__nvrtc_table* t,
                                 kvl__nvrtc_program program)
{
    size_t bytes = 0;
    kvl__set_compile_log(ctx, "");
    if (t->log_bytes(program, &bytes) != 0 || bytes <= 1) return;
    char* log = (char*)kvl__alloc(ctx, bytes + 1);
    if (!log) return;
    log[bytes] = '\0';
    if (t->log(program, log) == 0) kvl__set_compile_log(ctx, log);
    kvl__free(ctx, log, bytes + 1);
}

KVL__FN kvl_status kvl__nvrtc_failed(kvl_context* ctx, const kvl__compile_job* job, int result)
{
    int length;
    pthread_mutex_lock(&ctx->lock);
    const char* line = kvl__first_error(ctx->compile_log ? ctx->compile_log : "", &length);
    char first[701];
    snprintf(first, sizeof first, "%.*s", length, line);
    pthread_mutex_unlock(&ctx->lock);
    if (length == 0)
        return kvl__fail(ctx, KVL_COMPILE, "%s: NVRTC failed without a word (result %d)", job->name,
                         result);
    return kvl__fail(ctx, KVL_COMPILE, "%s: %s (NVRTC, result %d)", job->name, first, result);
}

// Takes the binary out of a compiled program.  PTX keeps its terminator: the driver reads text.
KVL__FN kvl_status kvl__nvrtc_take(kvl_context* ctx, const kvl__nvrtc_table* t,
                                   kvl__nvrtc_program program, const kvl__compile_job* job,
                                   unsigned char** binary, size_t* binary_bytes)
{
    const int ptx = kvl__arch_is_ptx(job->arch);
    size_t bytes = 0;
    int result = (ptx ? t->ptx_bytes : t->cubin_bytes)(program, &bytes);
    KVL__REQUIRE(ctx, result == 0 && bytes > 0, KVL_COMPILE, "%s: NVRTC made nothing (result %d)",
                 job->name, result);
    unsigned char* taken = (unsigned char*)kvl__alloc(ctx, bytes);
    KVL__REQUIRE(ctx, taken, KVL_NO_MEMORY, "%s: %zu bytes for the binary", job->name, bytes);
    result = (ptx ? t->ptx : t->cubin)(program, (char*)taken);
    if (result != 0) {
        kvl__free(ctx, taken, bytes);
        return kvl__fail(ctx, KVL_COMPILE, "%s: NVRTC does not hand it out (result %d)", job->name,
                         result);
    }
    *binary = taken;
    *binary_bytes = bytes;
    return KVL_OK;
}

// Compiles a program to a cubin or to PTX, from the context's allocator; NULL after a failure.
KVL__FN kvl_status kvl__nvrtc_compile(kvl_context* ctx, const kvl__compile_job* job,
                                      unsigned char** binary, size_t* binary_bytes)
{
    const kvl__nvrtc_table* t;
    kvl__nvrtc_program program = NULL;
    char name[160];
    *binary = NULL;
    *binary_bytes = 0;
    KVL__TRY(kvl__nvrtc_get(ctx, &t));
    snprintf(name, sizeof name, "%.140s.cu", job->name);
    int result = t->create(&program, job->text, name, 0, NULL, NULL);
    KVL__REQUIRE(ctx, result == 0, KVL_COMPILE, "%s: NVRTC does not take it (result %d)", job->name,
                 result);
    result = t->compile(program, job->num_options, job->options);
    if (result != 0) kvl__nvrtc_keep_log(ctx, t, program);
    const kvl_status status = result != 0
        ? kvl__nvrtc_failed(ctx, job, result)
        : kvl__nvrtc_take(ctx, t, program, job, binary, binary_bytes);
    t->destroy(&program);
    return status;
}

// LOADING

KVL__FN int kvl__cu_is_refusal(int result)
{
    switch (result) {
    case KVL__CU_INVALID_IMAGE: case KVL__CU_NO_BINARY: case KVL__CU_INVALID_PTX:
    case KVL__CU_UNSUPPORTED_PTX: case KVL__CU_INVALID_SOURCE:
    case KVL__CU_NO_PTX_COMPILER:          // the driver's libnvidia-ptxjitcompiler is not there
    case KVL__CU_PTX_COMPILER_OFF:         // CUDA_DISABLE_PTX_JIT
        return 1;
    default: return 0;
    }
}

// KVL_COMPILE: the driver refuses this image, and `fault` [256] says why; other failures have
// nothing to do with the image, and the context's message says what they are.
KVL__FN kvl_status kvl__cuda_load(kvl_context* ctx, const unsigned char* bytes, size_t num_bytes,
                                  kvl__cu_module* module, char* fault)
{
    char log[512] = "";
    int options[2] = { KVL__JIT_ERROR_LOG, KVL__JIT_ERROR_LOG_BYTES };
    void* values[2];
    const char* name = NULL;
    const int elf = num_bytes >= 4 && memcmp(bytes, "\177ELF", 4) == 0;
    *module = NULL;
    if (num_bytes < 64 || (!elf && bytes[num_bytes - 1] != '\0')) {
        snprintf(fault, 256, "it is neither a cubin nor PTX");
        return KVL_COMPILE;
    }
    if (!ctx->gpu) return KVL_OK;          // made for a device that is elsewhere
    KVL__TRY(kvl__gpu_enter(ctx));
    values[0] = log;
    values[1] = (void*)(uintptr_t)sizeof log;
    const int result = ctx->gpu->driver.module_load(module, bytes, 2, options, values);
    kvl__gpu_leave(ctx);
    if (!kvl__cu_is_refusal(result)) return kvl__cu_check(ctx, result, "loading a kernel");
    ctx->gpu->driver.get_error_name(result, &name);
    log[strcspn(log, "\n")] = '\0';
    snprintf(fault, 256, "the driver (CUDA %d.%d) refuses it: %s (%d)%s%.120s",
             ctx->gpu->driver.version / 1000, ctx->gpu->driver.version % 1000 / 10,
             name ? name : "error", result, log[0] ? ": " : "", log);
    return KVL_COMPILE;
}

KVL__FN void kvl__cuda_unload(kvl_context* ctx, kvl__cu_module module)
{
    if (!module || kvl__gpu_enter(ctx) != KVL_OK) return;
    ctx->gpu->driver.module_unload(module);
    kvl__gpu_leave(ctx);
}

#endif
