// driver_memory.c -- allocation, copies and fills.

#include "driver.h"

#include <stdlib.h>
#include <string.h>

// The allocation that holds a range; NULL and success for memory of the host.
CUresult check_range(uint64_t address, uint64_t bytes, allocation** found)
{
    allocation* one = memory_find(address);
    *found = one && !one->host ? one : NULL;
    if (!one || (one->host && one->freed)) return CUDA_SUCCESS;
    if (one->freed || address - one->address + bytes > one->bytes) return INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr* out, size_t bytes)
{
    context* ctx;
    CUresult r = current(&ctx);
    if (!r && (!out || !bytes)) r = INVALID_VALUE;
    if (!r) r = refuse_in_capture();
    if (r) return r;
    const uint64_t used = memory_used(ctx->device);
    if (bytes > sim_settings.memory_bytes || used > sim_settings.memory_bytes - bytes) {
        return OUT_OF_MEMORY;
    }
    *out = memory_allocate(bytes, ctx->device, NULL);
    return *out ? CUDA_SUCCESS : OUT_OF_MEMORY;
}

API CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes);
API CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes)
{
    enter();
    return leave(allocate(out, bytes));
}

API CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream on);
API CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream on)
{
    (void)on;
    enter();
    return leave(allocate(out, bytes));
}

static CUresult release(CUdeviceptr address)
{
    context* ctx;
    CUresult r = current(&ctx);
    if (r == NOT_INITIALIZED || r == INVALID_CONTEXT || r == CONTEXT_DESTROYED) return r;
    if (!address) return CUDA_SUCCESS;
    if (is_captured(ctx)) return CAPTURE_UNSUPPORTED;
    flush_all();
    const allocation* one = memory_find(address);
    if (one && (one->host || one->name)) return INVALID_VALUE;
    return memory_free(address) ? INVALID_VALUE : r;
}

API CUresult cuMemFree_v2(CUdeviceptr address);
API CUresult cuMemFree_v2(CUdeviceptr address)
{
    enter();
    return leave(release(address));
}

API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream on);
API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream on)
{
    context* ctx;
    enter();
    CUresult r = current(&ctx);
    if (!r) r = refuse_in_capture();
    if (r) return leave(r);
    stream* s = stream_of(ctx, on);
    task t = { 0 };
    t.kind = WORK_FREE, t.ctx = ctx, t.to = address;
    const allocation* one = memory_find(address);
    if (!s) return leave(INVALID_HANDLE);
    if (!one || one->address != address || one->freed || one->host) return leave(INVALID_VALUE);
    return leave(submit(s, &t));
}

API CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags);
API CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags)
{
    (void)flags;
    context* ctx;
    enter();
    CUresult r = current(&ctx);
    if (!r && (!out || !bytes)) r = INVALID_VALUE;
    if (!r) r = refuse_in_capture();
    if (r) return leave(r);
    void* data;
    if (posix_memalign(&data, 512, bytes)) return leave(OUT_OF_MEMORY);
    memset(data, 0, bytes);
    *out = data;
    return leave(memory_adopt(data, bytes) ? CUDA_SUCCESS : OUT_OF_MEMORY);
}

API CUresult cuMemAllocHost_v2(void** out, size_t bytes);
API CUresult cuMemAllocHost_v2(void** out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }

API CUresult cuMemFreeHost(void* data);
API CUresult cuMemFreeHost(void* data)
{
    context* ctx;
    enter();
    CUresult r = current(&ctx);
    if (r == NOT_INITIALIZED || r == INVALID_CONTEXT || r == CONTEXT_DESTROYED) return leave(r);
    const allocation* one = memory_find((uint64_t)(uintptr_t)data);
    if (!data || !one || !one->host || one->data != data || one->freed) return leave(INVALID_VALUE);
    flush_all();
    memory_free(one->address);
    free(data);
    return leave(r);
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* data, unsigned flags);
API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* data, unsigned flags)
{
    const allocation* one = memory_find((uint64_t)(uintptr_t)data);
    if (!out || flags || !one || !one->host || one->freed) return INVALID_VALUE;
    *out = (uint64_t)(uintptr_t)data;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostRegister_v2(void* data, size_t bytes, unsigned flags);
API CUresult cuMemHostRegister_v2(void* data, size_t bytes, unsigned flags)
{
    (void)flags;
    if (!data || !bytes) return INVALID_VALUE;
    return memory_adopt(data, bytes) ? CUDA_SUCCESS : OUT_OF_MEMORY;
}

API CUresult cuMemHostUnregister(void* data);
API CUresult cuMemHostUnregister(void* data)
{
    enter();
    flush_all();
    return leave(memory_free((uint64_t)(uintptr_t)data) ? INVALID_VALUE : CUDA_SUCCESS);
}

API CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total);
API CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total)
{
    context* ctx;
    enter();
    const CUresult r = current(&ctx);
    if (r) return leave(r);
    const uint64_t used = memory_used(ctx->device), all = sim_settings.memory_bytes;
    if (free_bytes) *free_bytes = used < all ? all - used : 0;
    if (total) *total = all;
    return leave(CUDA_SUCCESS);
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address);
API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address)
{
    const allocation* one = memory_find(address);
    if (!one || one->freed || address - one->address >= one->bytes) return NOT_FOUND;
    if (base) *base = one->address;
    if (bytes) *bytes = one->bytes;
    return CUDA_SUCCESS;
}

// CU_POINTER_ATTRIBUTE_CONTEXT 1, MEMORY_TYPE 2 (host 1, device 2), DEVICE_ORDINAL 9.
API CUresult cuPointerGetAttribute(void* out, int which, CUdeviceptr address);
API CUresult cuPointerGetAttribute(void* out, int which, CUdeviceptr address)
{
    const allocation* one = memory_find(address);
    if (!out || !one || one->freed || address - one->address >= one->bytes) return INVALID_VALUE;
    const int value = which == 2 ? (one->host ? 1 : 2) : one->device;
    if (which != 2 && which != 9) return NOT_SUPPORTED;
    memcpy(out, &value, sizeof value);
    return CUDA_SUCCESS;
}

// COPIES AND FILLS

// What the driver knows to be the host's is not asked for; to and from decide which is which.
static CUresult ask_copy(uint64_t to, uint64_t from, uint64_t bytes, CUstream on, bool wait)
{
    context* ctx;
    CUresult r = current(&ctx);
    if (r) return r;
    stream* s = stream_of(ctx, on);
    if (!s) return INVALID_HANDLE;
    allocation *a, *b;
    if (!bytes) return CUDA_SUCCESS;
    if (!to || !from || check_range(to, bytes, &a) || check_range(from, bytes, &b)) {
        return INVALID_VALUE;
    }
    if (wait) r = refuse_in_capture();
    if (r) return r;
    task t = { 0 };
    t.kind = WORK_COPY, t.ctx = ctx, t.to = to, t.from = from, t.bytes = bytes;
    const bool pageable_from = !memory_find(from), pageable_to = !memory_find(to);
    if (pageable_from && !s->capture && sim_settings.late) {
        t.staged = malloc(bytes);
        if (!t.staged) return OUT_OF_MEMORY;
        memcpy(t.staged, (const void*)(uintptr_t)from, bytes);
    }
    r = submit(s, &t);
    if (!r && !s->capture && (wait || pageable_to)) r = flush_stream(s);
    return r;
}

static CUresult copy_locked(uint64_t to, uint64_t from, uint64_t bytes, CUstream on, bool wait)
{
    enter();
    return leave(ask_copy(to, from, bytes, on, wait));
}

static uint64_t host(const void* data) { return (uint64_t)(uintptr_t)data; }

// A device address where the host's is asked for, or the reverse, is refused.
static CUresult to_device(CUdeviceptr to, const void* from, size_t bytes, CUstream on, bool wait)
{
    const allocation* one = memory_find(to);
    if (bytes && (!one || one->freed)) return INVALID_VALUE;
    return copy_locked(to, host(from), bytes, on, wait);
}

static CUresult to_host(void* to, CUdeviceptr from, size_t bytes, CUstream on, bool wait)
{
    const allocation* one = memory_find(from);
    if (bytes && (!one || one->freed)) return INVALID_VALUE;
    return copy_locked(host(to), from, bytes, on, wait);
}

API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes);
API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes)
{
    return to_device(to, from, bytes, NULL, true);
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream on);
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream on)
{
    return to_device(to, from, bytes, on, false);
}

API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes);
API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes)
{
    return to_host(to, from, bytes, NULL, true);
}

API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream on);
API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream on)
{
    return to_host(to, from, bytes, on, false);
}

API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes);
API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy_locked(to, from, bytes, NULL, true);
}

API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream on);
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream on)
{
    return copy_locked(to, from, bytes, on, false);
}

API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes);
API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy_locked(to, from, bytes, NULL, true);
}

API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream on);
API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream on)
{
    return copy_locked(to, from, bytes, on, false);
}

static CUresult fill(uint64_t to, uint32_t value, uint32_t width, size_t count, CUstream on)
{
    context* ctx;
    allocation* one;
    enter();
    CUresult r = current(&ctx);
    if (r) return leave(r);
    stream* s = stream_of(ctx, on);
    if (!s) return leave(INVALID_HANDLE);
    if (!count) return leave(CUDA_SUCCESS);
    if (to % width || check_range(to, (uint64_t)count * width, &one)) return leave(INVALID_VALUE);
    if (!memory_find(to)) return leave(INVALID_VALUE);
    task t = { 0 };
    t.kind = WORK_SET, t.ctx = ctx, t.to = to, t.bytes = (uint64_t)count * width;
    t.value = value, t.width = width;
    return leave(submit(s, &t));
}

API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count);
API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
{
    return fill(to, value, 1, count, NULL);
}

API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream on);
API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream on)
{
    return fill(to, value, 1, count, on);
}

API CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count);
API CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count)
{
    return fill(to, value, 2, count, NULL);
}

API CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream on);
API CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream on)
{
    return fill(to, value, 2, count, on);
}

API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count);
API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count)
{
    return fill(to, value, 4, count, NULL);
}

API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream on);
API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream on)
{
    return fill(to, value, 4, count, on);
}
