// kvl_launch.h -- kernels of the caller's own: compiled, kept and launched as the library's are.

#ifndef KVL_LAUNCH_H
#define KVL_LAUNCH_H

#include "kvl_device.h"

// The loaded program of a text, from memory, from disk or compiled.
KVL__FN kvl_status kvl__slot_of_text(kvl_context* ctx, const kvl_kernel_desc* d, kvl__slot** slot)
{
    char identity[KVL__IDENTITY_BYTES];
    const char* where;
    kvl__compile_job job;
    kvl__aim aim;
    KVL__TRY(kvl__programs_identity(ctx, identity));
    memset(&aim, 0, sizeof aim);
    KVL__TRY(ctx->programs->aim(ctx, identity, &aim));
    memset(&job, 0, sizeof job);
    job.name = d->name;
    job.text = d->text;
    job.text_bytes = strlen(d->text);
    job.options = aim.options;
    job.num_options = aim.num_options;
    job.arch = aim.arch;
    job.suffix = aim.suffix;
    return kvl__slot_get(ctx, &job, kvl__program_key(&job, job.arch, identity), slot, &where);
}

KVL__FN kvl_status kvl__check_kernel_desc(kvl_context* ctx, const kvl_kernel_desc* d)
{
    KVL__REQUIRE(ctx, d, KVL_BAD_ARGUMENT, "kvl_kernel_desc = NULL: must be given");
    KVL__REQUIRE(ctx, d->end == 0, KVL_BAD_ARGUMENT,
                 "kvl_kernel_desc.end = %u: must be 0: zero the whole desc first", d->end);
    KVL__REQUIRE(ctx, d->name && d->text && d->entry, KVL_BAD_ARGUMENT,
                 "name, text, entry: must be given");
    const size_t letters = strspn(d->name, "abcdefghijklmnopqrstuvwxyz0123456789_-");
    KVL__REQUIRE(ctx, letters > 0 && letters <= 100 && !d->name[letters], KVL_BAD_ARGUMENT,
                 "name = '%.120s': must be 1 to 100 of a to z, 0 to 9, - and _", d->name);
    return KVL_OK;
}

KVL__PUBLIC kvl_status kvl_device_kernel(kvl_context* ctx, const kvl_kernel_desc* d, void** kernel)
{
    kvl__cu_function function = NULL;
    kvl__slot* slot = NULL;
    if (kernel) *kernel = NULL;
    KVL__TRY(kvl__check_device(ctx));
    KVL__REQUIRE(ctx, kernel, KVL_BAD_ARGUMENT, "kernel = NULL: must be given");
    KVL__TRY(kvl__check_kernel_desc(ctx, d));
    const int before = kvl__takes_ptx(ctx);
    kvl_status status = kvl__slot_of_text(ctx, d, &slot);
    if (status == KVL_COMPILE && !before && kvl__takes_ptx(ctx))     // it refuses cubins: PTX
        status = kvl__slot_of_text(ctx, d, &slot);
    KVL__TRY(status);
    KVL__TRY(kvl__gpu_enter(ctx));
    const int result =
        ctx->gpu->driver.module_get_function(&function, slot->loaded.module, d->entry);
    kvl__gpu_leave(ctx);
    KVL__REQUIRE(ctx, result != KVL__CU_NOT_FOUND, KVL_BAD_ARGUMENT,
                 "entry = %s: %s has no kernel of this name", d->entry, d->name);
    KVL__TRY(kvl__cu_check(ctx, result, "%s: asking for %s", d->name, d->entry));
    memcpy(kernel, &function, sizeof function);
    return KVL_OK;
}

KVL__PUBLIC kvl_status kvl_device_launch(kvl_context* ctx, const kvl_launch_desc* d)
{
    KVL__TRY(kvl__check_device(ctx));
    KVL__REQUIRE(ctx, d, KVL_BAD_ARGUMENT, "kvl_launch_desc = NULL: must be given");
    KVL__REQUIRE(ctx, d->end == 0, KVL_BAD_ARGUMENT,
                 "kvl_launch_desc.end = %u: must be 0: zero the whole desc first", d->end);
    KVL__REQUIRE(ctx, d->kernel && d->args, KVL_BAD_ARGUMENT, "kernel, args: must be given");
    KVL__REQUIRE(ctx, d->threads <= 1024, KVL_BAD_ARGUMENT, "threads = %u: must be 0 to 1024",
                 d->threads);
    const unsigned threads = d->threads ? d->threads : (unsigned)KVL__CTA_THREADS;
    unsigned grid[3];
    void* params[1];
    kvl__cu_function function;
    for (int i = 0; i < 3; ++i) grid[i] = d->grid[i] ? d->grid[i] : 1;
    params[0] = (void*)(uintptr_t)d->args;
    memcpy(&function, &d->kernel, sizeof function);
    KVL__TRY(kvl__gpu_enter(ctx));
    const int result = ctx->gpu->driver.launch(function, grid[0], grid[1], grid[2], threads, 1, 1,
                                               0, (kvl__cu_stream)d->stream, params, NULL);
    kvl__gpu_leave(ctx);
    return kvl__cu_check(ctx, result, "launching a kernel");
}

#endif
