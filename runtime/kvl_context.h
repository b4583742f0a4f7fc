// kvl_context.h -- a context: desc and environment become checked settings, once.
//
// The only file that reads the environment, in one function.  A field of the desc beats a variable.

#ifndef KVL_CONTEXT_H
#define KVL_CONTEXT_H

#include "kvl_driver.h"
#include "kvl_kernels.h"
#include "kvl_threads.h"

enum { KVL__FOLDER_BYTES = 256 << 20 };      // default bound of the kernel cache folder

typedef struct kvl__environment {
    const char *cache_dir, *cache_max_mb, *compiler, *isa, *nvrtc;       // kvloom's own
    const char *xdg_cache, *home, *path;                 // the system's
    const char *library_path, *cuda_path, *cuda_home, *virtual_env, *conda_prefix;
} kvl__environment;

// An empty variable is one that is not set.
KVL__FN const char* kvl__variable(const char* name)
{
    const char* value = getenv(name);
    return value && value[0] ? value : NULL;
}

KVL__FN kvl__environment kvl__read_environment(void)
{
    kvl__environment e;
    e.cache_dir = kvl__variable("KVLOOM_CACHE_DIR");
    e.cache_max_mb = kvl__variable("KVLOOM_CACHE_MAX_MB");
    e.compiler = kvl__variable("KVLOOM_CC");
    e.isa = kvl__variable("KVLOOM_ISA");
    e.nvrtc = kvl__variable("KVLOOM_NVRTC");
    e.xdg_cache = kvl__variable("XDG_CACHE_HOME");
    e.home = kvl__variable("HOME");
    e.path = kvl__variable("PATH");
    e.library_path = kvl__variable("LD_LIBRARY_PATH");
    e.cuda_path = kvl__variable("CUDA_PATH");
    e.cuda_home = kvl__variable("CUDA_HOME");
    e.virtual_env = kvl__variable("VIRTUAL_ENV");
    e.conda_prefix = kvl__variable("CONDA_PREFIX");
    return e;
}

KVL__PUBLIC const char* kvl_status_text(kvl_status status)
{
    switch (status) {
#define KVL__STATUS_TEXT(name, value, text) case KVL_##name: return text;
    KVL_STATUS_LIST(KVL__STATUS_TEXT)
#undef KVL__STATUS_TEXT
    case KVL__STATUS_END: break;
    }
    return "unknown status";
}

KVL__PUBLIC const char* kvl_context_message(const kvl_context* ctx)
{
    return ctx ? ctx->message : "";
}

KVL__PUBLIC const char* kvl_context_log(const kvl_context* ctx)
{
    return ctx && ctx->compile_log ? ctx->compile_log : "";
}

// The processors that this process may run on, which taskset and containers narrow.
KVL__FN int kvl__num_processors(void)
{
    int64_t num = 0;
#ifdef SYS_sched_getaffinity
    unsigned char mask[1024];
    const long bytes = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
    for (long i = 0; i < bytes; ++i) num += __builtin_popcount(mask[i]);
#endif
    if (num < 1) num = sysconf(_SC_NPROCESSORS_ONLN);
    return (int)kvl__max_i64(1, kvl__min_i64(num, KVL__MAX_THREADS));
}

// Sets ctx->folder.  Variables follow the XDG Base Directory Specification: a relative path is
// invalid and passed over.  A desc's relative path is the caller's choice, made absolute here.
KVL__FN kvl_status kvl__context_folder(kvl_context* ctx, const char* asked,
                                       const kvl__environment* env)
{
    char path[KVL__PATH_BYTES] = "";
    int fits = 1;
    if (asked) {
        if (asked[0] == '\0') return KVL_OK;
        char here[KVL__PATH_BYTES];
        if (asked[0] == '/') fits = snprintf(path, sizeof path, "%s", asked) < (int)sizeof path;
        else fits = getcwd(here, sizeof here) && kvl__join_path(path, here, asked);
    } else if (env->cache_dir && env->cache_dir[0] == '/') {
        fits = snprintf(path, sizeof path, "%s", env->cache_dir) < (int)sizeof path;
    } else if (env->xdg_cache && env->xdg_cache[0] == '/') {
        fits = kvl__join_path(path, env->xdg_cache, "kvloom");
    } else if (env->home && env->home[0] == '/') {
        fits = kvl__join_path(path, env->home, ".cache/kvloom");
    }
    if (!asked && env->cache_dir && env->cache_dir[0] != '/')
        kvl__say(ctx, KVL_LOG_WARNING, "KVLOOM_CACHE_DIR = %s: not an absolute path, passed over",
                 env->cache_dir);
    if (!fits || !path[0]) {
        if (!fits) kvl__say_folder(ctx, "the path is too long");
        return KVL_OK;
    }
    ctx->folder = kvl__copy_text(ctx, path);
    KVL__REQUIRE(ctx, ctx->folder, KVL_NO_MEMORY, "no memory for cache_dir");
    const char* fault = kvl__folder_fault(path);
    if (fault) {
        kvl__say_folder(ctx, fault);
        kvl__free_text(ctx, ctx->folder);
        ctx->folder = NULL;
    }
    return KVL_OK;
}

// Sets ctx->compiler to a path, or leaves it NULL: what needs it says so.
KVL__FN kvl_status kvl__context_compiler(kvl_context* ctx, const char* asked,
                                         const kvl__environment* env)
{
    static const char* const usual[] = { "cc", "gcc", "clang", NULL };
    const char* search = env->path ? env->path : "/usr/local/bin:/usr/bin:/bin";
    char path[KVL__PATH_BYTES];
    int found = 0;
    if (asked && !asked[0]) asked = NULL;
    if (!asked) asked = env->compiler;
    if (asked) {
        ctx->compiler_asked = kvl__copy_text(ctx, asked);
        KVL__REQUIRE(ctx, ctx->compiler_asked, KVL_NO_MEMORY, "no memory for compiler");
        found = kvl__find_program(asked, search, path);
    } else {
        for (int i = 0; usual[i] && !found; ++i) found = kvl__find_program(usual[i], search, path);
    }
    if (!found) return KVL_OK;
    ctx->compiler = kvl__copy_text(ctx, path);
    KVL__REQUIRE(ctx, ctx->compiler, KVL_NO_MEMORY, "no memory for compiler");
    return KVL_OK;
}

// Opens the device, or notes for which architecture kernels are made without one; finds NVRTC.
KVL__FN kvl_status kvl__context_device(kvl_context* ctx, const kvl_context_desc* desc,
                                       const kvl__environment* env)
{
    kvl__nvrtc_places places;
    const int own = desc->nvrtc && desc->nvrtc[0];
    int length = 0;
    if (ctx->target != KVL_TARGET_CUDA) return KVL_OK;
    if (desc->arch && desc->arch[0]) {
        ctx->makes_ptx = strncmp(desc->arch, "compute_", 8) == 0;
        const int read = sscanf(desc->arch, ctx->makes_ptx ? "compute_%d%n" : "sm_%d%n", &ctx->sm,
                                &length);
        KVL__REQUIRE(ctx, read == 1 && desc->arch[length] == '\0' && ctx->sm >= KVL__SM_OLDEST
                     && ctx->sm < 1000, KVL_BAD_ARGUMENT,
                     "arch = %s: must be sm_%d or later, as sm_90, or compute_90", desc->arch,
                     KVL__SM_OLDEST);
    } else {
        KVL__TRY(kvl__gpu_create(ctx, desc->device, NULL));
        ctx->sm = ctx->gpu->sm;
    }
    memset(&places, 0, sizeof places);
    places.asked = own ? desc->nvrtc : env->nvrtc;
    places.origin = own ? "nvrtc" : "KVLOOM_NVRTC";
    places.library_path = env->library_path;
    places.cuda_path = env->cuda_path;
    places.cuda_home = env->cuda_home;
    places.virtual_env = env->virtual_env;
    places.conda_prefix = env->conda_prefix;
    places.home = env->home;
    return kvl__nvrtc_create(ctx, &places);
}

KVL__FN kvl_status kvl__context_check(kvl_context* ctx, const kvl_context_desc* desc)
{
    KVL__REQUIRE(ctx, desc, KVL_BAD_ARGUMENT, "desc is NULL");
    KVL__REQUIRE(ctx, desc->end == 0, KVL_BAD_ARGUMENT,
                 "desc.end = %u: must be 0; was the desc zeroed before it was filled?",
                 (unsigned)desc->end);
    KVL__REQUIRE(ctx, !desc->allocator.alloc == !desc->allocator.free, KVL_BAD_ARGUMENT,
                 "allocator: alloc and free must be both set or both NULL");
    KVL__REQUIRE(ctx, !desc->device_allocator.alloc == !desc->device_allocator.free,
                 KVL_BAD_ARGUMENT, "device_allocator: alloc and free must be both set or NULL");
    KVL__REQUIRE(ctx, desc->target >= KVL_TARGET_AUTO && desc->target <= KVL_TARGET_CUDA,
                 KVL_BAD_ARGUMENT, "target = %d: must be a kvl_target", (int)desc->target);
    KVL__REQUIRE(ctx, desc->num_threads >= 0 && desc->num_threads <= KVL__MAX_THREADS,
                 KVL_BAD_ARGUMENT, "num_threads = %d: must be 0 to %d", desc->num_threads,
                 KVL__MAX_THREADS);
    KVL__REQUIRE(ctx, !desc->parallel.run || desc->num_threads > 0, KVL_BAD_ARGUMENT,
                 "num_threads = 0: must say how many threads parallel.run has");
    KVL__REQUIRE(ctx, desc->parallel.run || !desc->parallel.user, KVL_BAD_ARGUMENT,
                 "parallel: has a user and no run");
    KVL__REQUIRE(ctx, desc->compile_seconds >= 0 && desc->compile_seconds <= 86400,
                 KVL_BAD_ARGUMENT, "compile_seconds = %d: must be 0 to 86400",
                 desc->compile_seconds);
    KVL__REQUIRE(ctx, desc->device >= 0, KVL_BAD_ARGUMENT, "device = %d: must not be negative",
                 desc->device);
    return KVL_OK;
}

// Sets the bound of ctx->folder.
KVL__FN kvl_status kvl__context_bound(kvl_context* ctx, uint64_t asked,
                                      const kvl__environment* env)
{
    const char* text = env->cache_max_mb;
    uint64_t mb = 0;
    ctx->folder_max_bytes = asked ? asked : (uint64_t)KVL__FOLDER_BYTES;
    if (asked || !text) return KVL_OK;
    for (const char* at = text; *at; ++at) {
        const int digit = *at - '0';
        mb = digit >= 0 && digit <= 9 && mb <= 1u << 30 ? 10 * mb + (uint64_t)digit : 0;
        if (mb == 0) break;
    }
    KVL__REQUIRE(ctx, mb > 0 && mb <= 1u << 30, KVL_BAD_ARGUMENT, "KVLOOM_CACHE_MAX_MB = %s: must "
                 "be a whole number from 1 to 1073741824", text);
    ctx->folder_max_bytes = mb << 20;
    return KVL_OK;
}

KVL__FN kvl_status kvl__context_fill(kvl_context* ctx, const kvl_context_desc* desc)
{
    KVL__TRY(kvl__context_check(ctx, desc));
    const kvl__environment env = kvl__read_environment();
    const int own_isa = desc->isa && desc->isa[0];
    ctx->target = desc->target;
    ctx->device_allocator = desc->device_allocator;
    ctx->exact = desc->exact;
    ctx->log = desc->log;
    ctx->compile_seconds = desc->compile_seconds ? desc->compile_seconds : KVL__COMPILE_SECONDS;
    KVL__TRY(kvl__isa_choose(ctx, own_isa ? desc->isa : env.isa, own_isa ? "isa" : "KVLOOM_ISA"));
    KVL__TRY(kvl__programs_create(ctx));
    KVL__TRY(kvl__packs_create(ctx, desc->packs, desc->num_packs));
    KVL__TRY(kvl__context_folder(ctx, desc->cache_dir, &env));
    KVL__TRY(kvl__context_bound(ctx, desc->cache_max_bytes, &env));
    KVL__TRY(kvl__context_compiler(ctx, desc->compiler, &env));
    KVL__TRY(kvl__context_device(ctx, desc, &env));
    return kvl__pool_create(ctx, desc->num_threads ? desc->num_threads : kvl__num_processors(),
                            &desc->parallel);
}

KVL__FN void kvl__context_release(kvl_context* ctx)
{
    if (ctx->pool) kvl__pool_destroy(ctx);
    kvl__programs_destroy(ctx);
    kvl__packs_destroy(ctx);
    kvl__nvrtc_destroy(ctx);
    kvl__gpu_destroy(ctx);
    kvl__free_text(ctx, ctx->folder);
    kvl__free_text(ctx, ctx->compiler);
    kvl__free_text(ctx, ctx->compiler_asked);
    kvl__free(ctx, ctx->compile_log, ctx->compile_log_bytes);
    ctx->folder = ctx->compiler = ctx->compiler_asked = ctx->compile_log = NULL;
}

KVL__FN void kvl__context_free(kvl_context* ctx)
{
    const kvl_allocator allocator = ctx->allocator;
    kvl__context_release(ctx);
    pthread_mutex_destroy(&ctx->lock);
    allocator.free(ctx, sizeof *ctx, allocator.user);
}

KVL__PUBLIC kvl_status kvl_context_create(const kvl_context_desc* desc, kvl_context** out)
{
    kvl_allocator allocator;
    if (!out) return KVL_BAD_ARGUMENT;
    *out = NULL;
    allocator.alloc = kvl__default_alloc;
    allocator.free = kvl__default_free;
    allocator.user = NULL;
    if (desc && desc->allocator.alloc && desc->allocator.free) allocator = desc->allocator;
    kvl_context* ctx = (kvl_context*)allocator.alloc(sizeof *ctx, allocator.user);
    if (!ctx) return KVL_NO_MEMORY;
    memset(ctx, 0, sizeof *ctx);
    ctx->allocator = allocator;
    ctx->pid = getpid();
    if (pthread_mutex_init(&ctx->lock, NULL) != 0) {
        allocator.free(ctx, sizeof *ctx, allocator.user);
        return KVL_NO_MEMORY;
    }
    const kvl_status status = kvl__context_fill(ctx, desc);
    if (status == KVL_NO_MEMORY) {
        kvl__context_free(ctx);
        return status;
    }
    if (status != KVL_OK) {
        kvl__context_release(ctx);
        ctx->broken = 1;
    }
    *out = ctx;
    return status;
}

// In a forked child the pool's threads do not exist and its locks may be held: what the parent made
// is left alone there.
KVL__PUBLIC void kvl_context_destroy(kvl_context* ctx)
{
    if (ctx && ctx->pid == getpid()) kvl__context_free(ctx);
}

#endif
