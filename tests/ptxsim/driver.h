// driver.h -- what the driver*.c files share: handles, contexts, work on streams.
//
// One lock is held by every cu* function while it runs, launches included.

#ifndef PTXSIM_DRIVER_H
#define PTXSIM_DRIVER_H

#include "sim.h"

#define API __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct context* CUcontext;
typedef struct image* CUmodule;
typedef struct image* CUlibrary;
typedef struct kernel* CUfunction;
typedef struct kernel* CUkernel;
typedef struct stream* CUstream;
typedef struct event* CUevent;
typedef struct graph* CUgraph;
typedef struct graph* CUgraphExec;

enum {
    CUDA_SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100,
    INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY = 209,
    INVALID_PTX = 218, UNSUPPORTED_PTX = 222, INVALID_HANDLE = 400, NOT_FOUND = 500,
    NOT_READY = 600, CONTEXT_DESTROYED = 709, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901, CAPTURE_UNMATCHED = 903, CAPTURE_IMPLICIT = 906
};

enum { MAX_DEVICES = 8, NON_BLOCKING = 1 };

typedef struct settings {
    int      sm;                // 90
    uint64_t memory_bytes;
    int      num_devices, num_threads, num_sms, driver_version;
    bool     accept_ptx, accept_cubin, late, lazy;
    uint64_t limit;
    char     log[512];
} settings;

extern settings sim_settings;

typedef struct context {
    int  device;
    bool primary, alive;
    int  references;
    CUresult error;             // sticky
} context;

// Of a cuModuleLoad or a cuLibraryLoad.
typedef struct image {
    module*  mod;
    context* ctx;               // NULL: a library
    bool     alive;
    int      device;
    struct kernel* kernels;     // one a function
    struct image*  next;        // of all that were loaded
} image;

typedef struct kernel {
    function* fn;
    image*    from;
} kernel;

typedef enum work_kind { WORK_COPY, WORK_SET, WORK_LAUNCH, WORK_RECORD, WORK_WAIT, WORK_HOST,
                         WORK_FREE } work_kind;

// One thing a stream does.
typedef struct task {
    struct task* next;
    work_kind kind;
    context*  ctx;
    uint64_t  to, from, bytes;
    uint8_t*  staged;           // of pageable memory: its bytes when the copy was asked for
    uint32_t  value, width;
    kernel*   fn;
    uint32_t  grid[3], threads[3], dynamic_bytes;
    uint8_t*  params;
    struct event* event;
    uint64_t  number;
    struct stream* where;       // of a wait: where the record is, whatever the event records later
    void (*call)(void*);
    void*     argument;
} task;

typedef struct graph {
    task *first, *last;
    bool alive, invalid;
    context* ctx;
} graph;

typedef struct stream {
    struct stream* next;
    context* ctx;
    bool     alive;
    unsigned flags;
    task *first, *last;         // late mode
    graph*   capture;
    int      mode;
    bool     origin;            // where the capture began
} stream;

typedef struct event {
    struct event* next;
    context* ctx;
    bool     alive;
    unsigned flags;
    uint64_t asked, done;       // numbers of records
    stream*  where;
    graph*   capture;
    double   time_ms;
} event;

void enter(void);
CUresult leave(CUresult result);
CUresult current(context** ctx);        // the current context, if it is in order
CUresult refuse_in_capture(void);       // for what a capture must not contain
bool     is_captured(const context* ctx);

stream*  stream_of(context* ctx, CUstream handle);      // NULL: not a stream
CUresult submit(stream* on, const task* what);
CUresult flush_all(void);
CUresult flush_stream(stream* on);
void     forget_streams(const context* ctx);
void     forget_images(const context* ctx);
CUresult perform_launch(const task* t);
CUresult check_range(uint64_t address, uint64_t bytes, allocation** found);
void     keep_fault(int status, const char* text, const ptxsim_stats* stats);

#endif
