// ptxsim.h -- what a test may ask the stand-in libcuda beyond the driver's own functions.
//
// Environment, read at the first cuInit (NVRTC calls it too, where it finds this library loaded):
//     PTXSIM_ARCH      compute capability to report, as sm_90 or 9.0        (sm_90)
//     PTXSIM_MEMORY    bytes of device memory, with k, m or g               (8g)
//     PTXSIM_DEVICES   number of devices                                    (1)
//     PTXSIM_THREADS   host threads that run CTAs                           (processors)
//     PTXSIM_DRIVER    version to report; PTX of a later toolkit is refused (13000)
//     PTXSIM_ACCEPT    images accepted, of: ptx, cubin (those registered)   (ptx,cubin)
//     PTXSIM_LOG       file that faults are appended to; - is stderr        (none)
//     PTXSIM_SMS       multiprocessors to report                            (4)
//     PTXSIM_LIMIT     warp instructions one CTA may run                    (500000000)
//     PTXSIM_LAZY      1: a register never written is a fault where it reaches memory, a branch or
//                      another lane, not in arithmetic                      (0)
//     PTXSIM_LATE      1: stream work runs at the latest moment that is legal       (0)

#ifndef PTXSIM_H
#define PTXSIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PTXSIM_INTEGER, PTXSIM_FLOAT, PTXSIM_TENSOR, PTXSIM_MEMORY, PTXSIM_CONTROL, PTXSIM_CLASSES
};

// Of the last launch, or of all launches since ptxsim_reset.
typedef struct ptxsim_stats {
    uint64_t launches, ctas;
    uint64_t warp_instructions[PTXSIM_CLASSES];
    uint64_t lane_instructions[PTXSIM_CLASSES];
    uint64_t global_load_sectors, global_load_bytes;    // 32-byte sectors; bytes asked for
    uint64_t global_store_sectors, global_store_bytes;
    uint64_t shared_accesses;       // warp instructions
    uint64_t shared_conflicts;      // wavefronts beyond those that the bytes need
    uint64_t barriers;              // arrivals of warps
    uint64_t atomics;               // lanes
} ptxsim_stats;

void ptxsim_counters(ptxsim_stats* last);
void ptxsim_totals(ptxsim_stats* all);

// Copies the text of the last fault, "" if there was none.  Returns its length.
size_t ptxsim_last_fault(char* text, size_t size);

// Bytes and allocations of device memory that are not freed.
size_t ptxsim_live_bytes(void);
size_t ptxsim_live_allocations(void);

// From here on a binary image that begins with these bytes is loaded as this PTX; both are copied.
void ptxsim_register(const void* image, size_t bytes, const char* ptx);

// Forgets faults, contexts' errors and totals.  Memory, modules and streams stay.
void ptxsim_reset(void);

// Of the launches, copies and fills that are asked for from now on, `skip` are done, and the next
// `num` are not: they give this result, which no context remembers.  num 0: all are done.
void ptxsim_refuse(int skip, int num, int result);

// Launches, copies and fills that were asked for since then.
int ptxsim_asked(void);

#ifdef __cplusplus
}
#endif

#endif
