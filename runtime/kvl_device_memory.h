// kvl_device_memory.h -- memory of a context's device: taken, copied and filled in stream order.
//
// Every function makes the device's context current for itself and leaves the caller's as it was.

#ifndef KVL_DEVICE_MEMORY_H
#define KVL_DEVICE_MEMORY_H

#include "kvl_driver.h"

// Whether memory of the driver comes in the order of streams.
KVL__FN int kvl__device_has_pools(const kvl_context* ctx)
{
    int has = 0;
    const kvl__driver* d = &ctx->gpu->driver;
    return d->device_get_attribute(&has, KVL__DEVICE_HAS_POOLS, ctx->gpu->device) == 0 && has;
}

// *address is 0 after a failure.
KVL__FN kvl_status kvl__device_take(kvl_context* ctx, kvl__cu_stream stream, uint64_t bytes,
                                    uint64_t* address)
{
    const kvl_device_allocator* own = &ctx->device_allocator;
    const kvl__driver* d = &ctx->gpu->driver;
    *address = 0;
    KVL__TRY(kvl__gpu_enter(ctx));
    int result = KVL__CU_OK;
    if (own->alloc) {
        *address = own->alloc((size_t)bytes, stream, own->user);
        if (!*address) result = KVL__CU_OUT_OF_MEMORY;
    } else {
        result = kvl__device_has_pools(ctx) ? d->mem_alloc_async(address, (size_t)bytes, stream)
                                            : d->mem_alloc(address, (size_t)bytes);
    }
    kvl__gpu_leave(ctx);
    if (result != KVL__CU_OK) *address = 0;
    return kvl__cu_check(ctx, result, "%llu bytes", (unsigned long long)bytes);
}

KVL__FN void kvl__device_give(kvl_context* ctx, kvl__cu_stream stream, uint64_t address,
                              uint64_t bytes)
{
    const kvl_device_allocator* own = &ctx->device_allocator;
    const kvl__driver* d = &ctx->gpu->driver;
    if (!address || kvl__gpu_enter(ctx) != KVL_OK) return;
    if (own->free) {
        own->free(address, (size_t)bytes, stream, own->user);
    } else if (!kvl__device_has_pools(ctx)) {
        d->mem_free(address);
    } else if (d->mem_free_async(address, stream) != KVL__CU_OK) {
        d->ctx_synchronize();          // the stream is gone, and may have left work behind
        d->mem_free(address);
    }
    kvl__gpu_leave(ctx);
}

KVL__FN kvl_status kvl__device_zero(kvl_context* ctx, kvl__cu_stream stream, uint64_t to,
                                    uint64_t bytes)
{
    KVL__TRY(kvl__gpu_enter(ctx));
    const int result = ctx->gpu->driver.fill_bytes_async(to, 0, (size_t)bytes, stream);
    kvl__gpu_leave(ctx);
    return kvl__cu_check(ctx, result, "filling %llu bytes", (unsigned long long)bytes);
}

KVL__FN kvl_status kvl__device_copy(kvl_context* ctx, kvl__cu_stream stream, uint64_t to,
                                    uint64_t from, uint64_t bytes)
{
    KVL__TRY(kvl__gpu_enter(ctx));
    const int result = ctx->gpu->driver.copy_async(to, from, (size_t)bytes, stream);
    kvl__gpu_leave(ctx);
    return kvl__cu_check(ctx, result, "copying %llu bytes", (unsigned long long)bytes);
}

// Does not wait: from memory that is not page-locked, as the library's own stack, of which the
// driver has a copy when this returns.
KVL__FN kvl_status kvl__device_send(kvl_context* ctx, kvl__cu_stream stream, uint64_t to,
                                    const void* from, uint64_t bytes)
{
    KVL__TRY(kvl__gpu_enter(ctx));
    const int result = ctx->gpu->driver.copy_to_device_async(to, from, (size_t)bytes, stream);
    kvl__gpu_leave(ctx);
    return kvl__cu_check(ctx, result, "copying %llu bytes to the device",
                         (unsigned long long)bytes);
}

// From any memory of the host, which may be changed when this returns: waits for the stream, since
// page-locked memory, which an allocator of the caller's may give, is read as late as the copy is
// due.
KVL__FN kvl_status kvl__device_upload(kvl_context* ctx, kvl__cu_stream stream, uint64_t to,
                                      const void* from, uint64_t bytes)
{
    KVL__TRY(kvl__gpu_enter(ctx));
    int result = ctx->gpu->driver.copy_to_device_async(to, from, (size_t)bytes, stream);
    if (result == KVL__CU_OK) result = ctx->gpu->driver.stream_synchronize(stream);
    kvl__gpu_leave(ctx);
    return kvl__cu_check(ctx, result, "copying %llu bytes to the device",
                         (unsigned long long)bytes);
}

// Waits for the stream.
KVL__FN kvl_status kvl__device_download(kvl_context* ctx, kvl__cu_stream stream, void* to,
                                        uint64_t from, uint64_t bytes)
{
    KVL__TRY(kvl__gpu_enter(ctx));
    int result = ctx->gpu->driver.copy_to_host_async(to, from, (size_t)bytes, stream);
    if (result == KVL__CU_OK) result = ctx->gpu->driver.stream_synchronize(stream);
    kvl__gpu_leave(ctx);
    return kvl__cu_check(ctx, result, "copying %llu bytes from the device",
                         (unsigned long long)bytes);
}

#endif
