// memory.c -- allocations of device memory, and the checks of every access.
//
// Device addresses come from a range that is reserved and never mapped: the host cannot follow one
// by accident.  An address is given once only, so a freed one is known for ever.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { RED_ZONE = 512, ALIGNMENT = 512 };

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static uint64_t first_address, next_address;
static allocation** device_table;       // by address
static size_t num_device, max_device;
static allocation** host_table;
static size_t num_host, max_host;

static void reserve_range(void)
{
    const size_t bytes = (size_t)1 << 40;
    void* range = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    first_address = range == MAP_FAILED ? (uint64_t)1 << 46 : (uint64_t)(uintptr_t)range;
    next_address = first_address = (first_address + 0xfffff) & ~(uint64_t)0xfffff;
    next_address += RED_ZONE;
}

static bool add(allocation*** table, size_t* count, size_t* max, allocation* one)
{
    if (*count == *max) {
        const size_t more = *max ? 2 * *max : 64;
        allocation** grown = realloc(*table, more * sizeof *grown);
        if (!grown) return false;
        *table = grown, *max = more;
    }
    (*table)[(*count)++] = one;
    return true;
}

// 0: no memory.
uint64_t memory_allocate(uint64_t bytes, int device, const char* name)
{
    allocation* one = calloc(1, sizeof *one);
    if (!one) return 0;
    one->bytes = bytes, one->device = device;
    if (name) one->name = strdup(name);
    one->data = calloc(bytes + 1, 1);
    one->written = calloc(bytes + 1, 1);
    pthread_rwlock_wrlock(&lock);
    if (!first_address) reserve_range();
    one->address = next_address;
    const bool added = one->data && one->written &&
                       add(&device_table, &num_device, &max_device, one);
    if (added) {
        next_address = (next_address + bytes + RED_ZONE + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    pthread_rwlock_unlock(&lock);
    if (added) return one->address;
    free(one->data);
    free(one->written);
    free(one);
    return 0;
}

// Host memory that kernels may use under its own address.
uint64_t memory_adopt(void* data, uint64_t bytes)
{
    allocation* one = calloc(1, sizeof *one);
    if (!one) return 0;
    one->address = (uint64_t)(uintptr_t)data;
    one->bytes = bytes, one->data = data, one->host = true;
    pthread_rwlock_wrlock(&lock);
    const bool added = add(&host_table, &num_host, &max_host, one);
    pthread_rwlock_unlock(&lock);
    return added ? one->address : 0;
}

static allocation* find_host(uint64_t address)
{
    allocation* best = NULL;
    for (size_t k = 0; k < num_host; ++k) {
        allocation* one = host_table[k];
        if (one->address > address || address >= one->address + one->bytes) continue;
        if (!best || best->freed || !one->freed) best = one;
    }
    return best;
}

allocation* memory_find(uint64_t address)
{
    pthread_rwlock_rdlock(&lock);
    allocation* found = NULL;
    size_t low = 0, high = num_device;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (device_table[middle]->address <= address) {
            found = device_table[middle];
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (!first_address || address - first_address >= (uint64_t)1 << 40) {
        found = find_host(address);
    }
    pthread_rwlock_unlock(&lock);
    return found;
}

int memory_free(uint64_t address)
{
    allocation* one = memory_find(address);
    if (!one || one->address != address) return 1;
    if (one->freed) return 2;
    pthread_rwlock_wrlock(&lock);
    one->freed = true;
    if (!one->host) {
        free(one->data);
        free(one->written);
        one->data = one->written = NULL;
    }
    pthread_rwlock_unlock(&lock);
    return 0;
}

uint64_t memory_used(int device)
{
    uint64_t bytes = 0;
    pthread_rwlock_rdlock(&lock);
    for (size_t k = 0; k < num_device; ++k) {
        if (!device_table[k]->freed && device_table[k]->device == device) {
            bytes += device_table[k]->bytes;
        }
    }
    pthread_rwlock_unlock(&lock);
    return bytes;
}

// Without the variables of modules.
size_t memory_live(size_t* count)
{
    size_t bytes = 0, n = 0;
    pthread_rwlock_rdlock(&lock);
    for (size_t k = 0; k < num_device; ++k) {
        if (!device_table[k]->freed && !device_table[k]->name) bytes += device_table[k]->bytes, ++n;
    }
    pthread_rwlock_unlock(&lock);
    if (count) *count = n;
    return bytes;
}

// ACCESS

static const char* name_of(access_kind how)
{
    return how == ACCESS_WRITE ? "write" : how == ACCESS_ATOMIC ? "atomic" : "read";
}

static void fault_global(warp* w, int lane, uint64_t address, uint32_t bytes, access_kind how)
    __attribute__((noreturn));

static void fault_global(warp* w, int lane, uint64_t address, uint32_t bytes, access_kind how)
{
    const allocation* near = memory_find(address);
    const char* verb = name_of(how);
    if (!near) {
        fault(w, FAULT_ILLEGAL_ADDRESS, lane, "%s of %u bytes at 0x%llx: outside any allocation",
              verb, bytes, (unsigned long long)address);
    }
    const char* name = near->name ? near->name : "";
    if (near->freed && address < near->address + near->bytes) {
        fault(w, FAULT_ILLEGAL_ADDRESS, lane,
              "%s of %u bytes at 0x%llx: use after free, byte %llu of the %llu at 0x%llx", verb,
              bytes, (unsigned long long)address, (unsigned long long)(address - near->address),
              (unsigned long long)near->bytes, (unsigned long long)near->address);
    }
    fault(w, FAULT_ILLEGAL_ADDRESS, lane,
          "%s of %u bytes at 0x%llx: outside the allocation, byte %llu of the %llu at 0x%llx %s",
          verb, bytes, (unsigned long long)address, (unsigned long long)(address - near->address),
          (unsigned long long)near->bytes, (unsigned long long)near->address, name);
}

static allocation* lookup(cta* c, uint64_t address, uint32_t bytes)
{
    for (int k = 0; k < 4; ++k) {
        allocation* one = c->last[k];
        if (one && address - one->address < one->bytes) {
            return address - one->address + bytes <= one->bytes ? one : NULL;
        }
    }
    allocation* one = memory_find(address);
    if (!one || one->freed || address - one->address + bytes > one->bytes) return NULL;
    c->last[c->next_last++ & 3] = one;
    return one;
}

uint8_t* reach_global(warp* w, int lane, uint64_t address, uint32_t bytes, access_kind how)
{
    allocation* one = lookup(w->cta, address, bytes);
    if (!one) fault_global(w, lane, address, bytes, how);
    const uint64_t at = address - one->address;
    if (how == ACCESS_WRITE) {
        if (one->read_only) {
            fault(w, FAULT_ILLEGAL_ADDRESS, lane, "write to the constant %s", one->name);
        }
        if (one->written) memset(one->written + at, 1, bytes);
    } else if (one->written && memchr(one->written + at, 0, bytes)) {
        fault(w, FAULT_FAILED, lane,
              "%s of %u bytes at 0x%llx: memory never written, byte %llu of the %llu at 0x%llx %s",
              name_of(how), bytes, (unsigned long long)address, (unsigned long long)at,
              (unsigned long long)one->bytes, (unsigned long long)one->address,
              one->name ? one->name : "");
    }
    return one->data + at;
}

static uint8_t* reach_shared(warp* w, int lane, uint64_t address, uint32_t bytes, access_kind how,
                             const void* value)
{
    cta* c = w->cta;
    if (address < SHARED_FIRST || address - SHARED_FIRST + bytes > c->shared_bytes) {
        fault(w, FAULT_ILLEGAL_ADDRESS, lane,
              "%s of %u bytes of shared memory at 0x%llx: outside the CTA's %u bytes at 0x%x",
              name_of(how), bytes, (unsigned long long)address, c->shared_bytes,
              (unsigned)SHARED_FIRST);
    }
    shared_check(w, lane, (uint32_t)address - SHARED_FIRST, bytes, how, value);
    return c->shared + (address - SHARED_FIRST);
}

static uint8_t* reach_local(warp* w, int lane, uint64_t address, uint32_t bytes, access_kind how)
{
    const uint32_t size = w->cta->launch->mod->local_bytes;
    if (address > size || address + bytes > size) {
        fault(w, FAULT_ILLEGAL_ADDRESS, lane,
              "%s of %u bytes of local memory at 0x%llx: outside the thread's %u bytes",
              name_of(how), bytes, (unsigned long long)address, size);
    }
    const uint64_t at = (uint64_t)lane * size + address;
    if (how == ACCESS_WRITE) memset(w->local_written + at, 1, bytes);
    return w->local + at;
}

static uint8_t* reach_param(warp* w, int lane, uint64_t address, uint32_t bytes, access_kind how)
{
    const uint32_t size = w->cta->launch->fn->param_bytes;
    if (how != ACCESS_READ || address > size || address + bytes > size) {
        fault(w, FAULT_ILLEGAL_ADDRESS, lane,
              "%s of %u bytes of the parameters at %llu: outside their %u bytes", name_of(how),
              bytes, (unsigned long long)address, size);
    }
    // Never written: the access was checked to be a read.
    return (uint8_t*)(uintptr_t)(w->cta->launch->params + address);
}

uint8_t* reach(warp* w, int lane, space where, uint64_t address, uint32_t bytes, access_kind how,
               const void* value)
{
    if (where == SPACE_GENERIC) {
        switch (address >> 56) {
        case 0: where = SPACE_GLOBAL; break;
        case WINDOW_SHARED >> 56: where = SPACE_SHARED; break;
        case WINDOW_LOCAL >> 56: where = SPACE_LOCAL; break;
        case WINDOW_PARAM >> 56: where = SPACE_PARAM; break;
        default: where = SPACE_GLOBAL; break;
        }
        if (where != SPACE_GLOBAL) address = WINDOW_OFFSET(address);
    }
    if (address & (bytes - 1)) {
        fault(w, FAULT_MISALIGNED, lane, "%s of %u bytes at 0x%llx: misaligned", name_of(how),
              bytes, (unsigned long long)address);
    }
    switch (where) {
    case SPACE_SHARED: return reach_shared(w, lane, address, bytes, how, value);
    case SPACE_LOCAL: return reach_local(w, lane, address, bytes, how);
    case SPACE_PARAM: return reach_param(w, lane, address, bytes, how);
    default: return reach_global(w, lane, address, bytes, how);
    }
}
