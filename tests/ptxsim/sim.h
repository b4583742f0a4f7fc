// sim.h -- the simulator's inside: program text, instructions, warps, CTAs, memory.
//
// From text to lanes:
//     parse.c      text -> functions of statements, symbols with scopes
//     decode.c     statements -> insn: one handler, operands as places in a register file
//     exec_*.c     handlers: each runs one instruction for the lanes of a mask
//     launch.c     warps of a CTA in turn, CTAs over host threads
//     memory.c     allocations of global memory;  shared.c  shadow of a CTA's shared memory
//     driver*.c    the cu* functions
//
// A register of up to 32 bits is 32 words of the warp's file, lane after lane; a 64-bit one is 64
// words.  A predicate is one mask.  Immediates and special registers are registers written once.

#ifndef SIM_H
#define SIM_H

#include "ptxsim.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_WARPS = 32, MAX_BARRIERS = 16, MAX_CALLS = 24, MAX_OPERANDS = 6 };

// Generic addresses: the top byte says which window; 0 is global or host memory.
#define WINDOW_SHARED ((uint64_t)1 << 56)
#define WINDOW_LOCAL ((uint64_t)2 << 56)
#define WINDOW_PARAM ((uint64_t)3 << 56)
#define WINDOW_OFFSET(address) ((address) & (((uint64_t)1 << 56) - 1))
// Shared memory begins after what the system keeps for itself: a null offset is outside.
enum { SHARED_FIRST = 1024, SHARED_MAX = 227 * 1024 };

typedef enum type {
    T_NONE, T_PRED,
    T_B8, T_B16, T_B32, T_B64, T_B128,
    T_U8, T_U16, T_U32, T_U64,
    T_S8, T_S16, T_S32, T_S64,
    T_F16, T_F16X2, T_BF16, T_BF16X2, T_F32, T_F64,
    T_E4M3, T_E5M2, T_E4M3X2, T_E5M2X2, T_U16X2, T_S16X2, T_F32X2
} type;

typedef enum space { SPACE_GENERIC, SPACE_GLOBAL, SPACE_SHARED, SPACE_LOCAL, SPACE_PARAM } space;

// Rounding; the four integer modes of cvt are the same with to_integer.
typedef enum rounding { ROUND_NEAREST, ROUND_ZERO, ROUND_DOWN, ROUND_UP, ROUND_AWAY } rounding;

// 32 lanes of a register seen as another type.
typedef uint32_t __attribute__((may_alias)) lane32;
typedef uint64_t __attribute__((may_alias)) lane64;
typedef float __attribute__((may_alias)) lane_f32;
typedef double __attribute__((may_alias)) lane_f64;

#define EACH_LANE for (int l = 0; l < 32; ++l)
#define LANE_IN(mask) if (((mask) >> l) & 1u)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

// TEXT

typedef enum symbol_kind {
    SYM_REG, SYM_LABEL, SYM_TARGETS, SYM_KERNEL_PARAM, SYM_LOCAL, SYM_SHARED, SYM_GLOBAL
} symbol_kind;

typedef struct symbol {
    char*       name;           // of registers %r<9>: the prefix
    symbol_kind kind;
    type        type;
    int         scope;
    uint32_t    count;          // of %r<count>; 0: the name is whole
    uint32_t    at;             // label: statement; register: place; memory: offset
    uint32_t    id;             // register: number of the first
    uint64_t    address;        // SYM_GLOBAL, after loading
    uint64_t    bytes;
    uint32_t    align;
    uint8_t*    init;           // SYM_GLOBAL; NULL: zero
    char*       list;           // SYM_TARGETS: labels, comma-separated
    bool        is_const;       // SYM_GLOBAL
    struct relocation* relocations;
} symbol;

// An address inside an initial value.
typedef struct relocation {
    struct relocation* next;
    uint64_t offset;
    int64_t  addend;
    char*    name;
} relocation;

typedef struct statement {
    char* guard;                // "%p1", "!%p1" or NULL
    char* opcode;
    char* operand[MAX_OPERANDS];
    int   num_operands;
    int   scope;
    int   line;                 // of the PTX text
    int   file, file_line;      // of the source, by .loc; 0: unknown
} statement;

typedef struct function {
    char*      name;
    bool       is_entry, has_body;
    symbol*    symbols;
    int        num_symbols, max_symbols;
    statement* statements;
    int        num_statements, max_statements;
    int*       parent_scope;
    int        num_scopes, max_scopes;
    int        params[64], num_params;      // symbols
    int        result;                      // symbol, -1: none
    uint32_t   param_bytes;                 // of an entry
    uint32_t   local_bytes;
    uint32_t   max_threads, required_threads;
    // After decoding
    uint32_t         shared_bytes;          // static, from SHARED_FIRST
    struct insn*     code;
    uint32_t         first_word, num_words; // of the register file
    uint32_t         first_id, num_ids;
    uint32_t         first_pred, num_preds;
    uint32_t         local_first;
    struct constant* constants;
    int              num_constants, max_constants;
    struct special*  specials;
    int              num_specials, max_specials;
    struct module*   module;
    uint32_t         code_first;            // program counter of its first instruction
    uint32_t         dynamic_shared_max;    // cuFuncSetAttribute
    int              visit;                 // search for recursion
} function;

typedef struct module {
    char*      text;
    int        target;                      // sm
    symbol*    symbols;
    int        num_symbols, max_symbols;
    function** functions;
    int        num_functions, max_functions;
    char**     files;                       // by .file number
    int        num_files;
    uint32_t   shared_bytes;                // of variables outside entries
    uint32_t   dynamic_at;                  // first byte of extern shared; 0: there is none
    struct insn* code;                      // of all functions
    uint32_t   num_code;
    uint32_t   num_words, num_ids, num_preds, local_bytes;
    char       log[1024];                   // why loading failed
} module;

module* module_parse(const char* text, char* log, size_t log_size);
bool    module_decode(module* mod);
void    module_free(module* mod);
symbol* find_symbol(const module* mod, const function* fn, const char* name, int scope);
function* find_function(const module* mod, const char* name);
type    type_of_name(const char* name);
uint32_t type_bytes(type t);
bool    type_is_signed(type t);
bool    parse_number(const char* text, type as, uint64_t* value);

// INSTRUCTIONS

typedef enum operand_kind {
    OPERAND_NONE, OPERAND_REG, OPERAND_PRED, OPERAND_VECTOR, OPERAND_ADDRESS
} operand_kind;

typedef struct operand {
    operand_kind kind;
    uint8_t  width;             // bytes of a register's lane: 4 or 8
    bool     negate;            // predicate
    bool     sink;              // written as _
    uint8_t  bits;              // declared bits of the register
    uint32_t at;                // word in the file; predicate: number
    uint32_t id;                // for `defined`; of a predicate too
    int64_t  offset;            // address: added to the base register
    space    space;             // address of a symbol: where it is
    int      count;             // vector
    struct operand* list;
} operand;

typedef struct warp warp;
typedef struct insn insn;
typedef void (*handler)(warp* w, const insn* i, uint32_t mask);

struct insn {
    handler  run;
    int32_t  guard;             // predicate, -1: none
    uint32_t guard_id;
    bool     guard_not;
    uint8_t  stat_class;
    bool     ftz, sat, relu;
    uint8_t  sub, sub2;         // meaning belongs to the handler
    type     type, type2;
    rounding round;
    space    space;
    operand  o[MAX_OPERANDS];
    uint32_t* uses;             // ids read in every lane of the mask
    uint16_t num_uses;
    uint16_t num_defs;
    uint32_t* defs;
    uint32_t target;            // branch, call
    function* callee;
    uint32_t* targets;          // brx.idx
    uint32_t num_targets;
    function* fn;
    const statement* from;
};

typedef struct constant { uint32_t at, id; uint64_t value; uint8_t width; } constant;
typedef struct special { uint32_t at, id; int which; } special;

enum {
    SPECIAL_TID, SPECIAL_NTID = 3, SPECIAL_CTAID = 6, SPECIAL_NCTAID = 9, SPECIAL_LANEID = 12,
    SPECIAL_WARPID, SPECIAL_NWARPID, SPECIAL_LANEMASK_EQ, SPECIAL_LANEMASK_LT, SPECIAL_LANEMASK_LE,
    SPECIAL_LANEMASK_GT, SPECIAL_LANEMASK_GE, SPECIAL_SMID, SPECIAL_NSMID, SPECIAL_GRIDID,
    SPECIAL_DYNAMIC_SMEM, SPECIAL_TOTAL_SMEM, SPECIAL_CLOCK, SPECIAL_CLOCK64, SPECIAL_CLOCK_HI,
    SPECIAL_GLOBALTIMER
};

// What an opcode's words say.
typedef struct words {
    char        text[128];
    const char* base;
    const char* word[16];       // all but types
    int         num_words;
    type        types[6];
    int         num_types;
} words;

bool has(const words* m, const char* word);

// Returns the handler of an opcode, or NULL if this form does not exist here; fills i.
typedef struct op_entry {
    const char* base;
    const char* allowed;        // words that may follow
    handler (*choose)(const words* m, insn* i);
    uint8_t     stat_class;
    uint8_t     num_dst;        // operands written
} op_entry;

extern const op_entry int_ops[], float_ops[], convert_ops[], compare_ops[];
extern const op_entry memory_ops[], atomic_ops[], async_ops[], warp_ops[], control_ops[], mma_ops[];
bool type_is_half(type t);
handler choose_half(const words* m, insn* i);

// RUNNING

typedef struct copy { uint32_t lane, group, to, bytes, source_bytes; uint64_t from; } copy;

// What is known of one byte of shared memory.  Times are those of cta.time; threads count from 1.
typedef struct shared_byte {
    uint32_t write_time;
    uint16_t writer;
    uint8_t  written, strong, pending;
} shared_byte;

// The last read of a byte by a warp, and the last by another lane of it.
typedef struct last_read {
    uint32_t time, other_time;
    uint8_t  lane, other_lane;
} last_read;

typedef struct launch launch;
typedef struct cta cta;

struct warp {
    lane32*   file;
    uint32_t* pred;
    uint32_t* defined;
    cta*      cta;
    int       index;
    uint32_t  initial, live, active;    // lanes: that exist, not exited, of the running group
    uint32_t  parked;                   // wait for lanes at a .sync
    uint32_t  waiting;                  // at a barrier of the CTA
    uint32_t  arrived;                  // live lanes at the barrier number `barrier`
    int       barrier;
    uint32_t  carry;
    uint32_t  slices;           // turns of the warp
    bool      ahead;            // lanes run that would wait at a join: see run_warp
    uint32_t  pc, merge_pc;
    uint32_t  lane_pc[32];
    uint8_t   depth[32];
    uint32_t  calls[32][MAX_CALLS];     // pc of the call
    bool      has_depth;
    uint8_t*  local;                    // lane after lane
    uint8_t*  local_written;
    copy*     copies;
    int       num_copies, max_copies;
    uint32_t  group[32];                // cp.async groups committed
    const insn* at_barrier[32];
    const insn* running;
};

typedef struct barrier {
    uint32_t expected;          // threads, whole warps; 0: nobody has come
    uint32_t lanes[MAX_WARPS];  // waiting here
    uint32_t whole[MAX_WARPS];  // arrived without waiting: lanes
    uint32_t predicate[MAX_WARPS];
} barrier;

struct cta {
    launch*   launch;
    uint32_t  id[3];
    int       num_warps, num_threads;
    warp      warps[MAX_WARPS];
    uint8_t*  shared;
    shared_byte* shadow;
    last_read* reads;           // of a byte, of its warps: plain, then those of atomics
    uint32_t  shared_bytes;
    uint32_t  time;             // of all CTAs that were run here
    uint32_t  sync_time[MAX_WARPS][MAX_WARPS];
    barrier   barriers[MAX_BARRIERS];
    uint64_t  steps;
    ptxsim_stats stats;
    jmp_buf   stop;
    struct allocation* last[4]; // lately used
    unsigned  next_last;
    lane32*   files;
    uint32_t* masks;
    uint8_t*  locals;
};

struct launch {
    function* fn;
    module*   mod;
    uint32_t  grid[3], threads[3];
    uint32_t  dynamic_bytes;
    const uint8_t* params;
    uint64_t  next_cta, num_ctas, limit;
    int       sm;               // of the device
    bool      lazy;             // arithmetic may read registers never written
    pthread_mutex_t lock;
    ptxsim_stats stats;
    int       status;           // CUDA error; 0: none
    char      fault[1024];
};

enum {
    FAULT_ILLEGAL_ADDRESS = 700, FAULT_TIMEOUT = 702, FAULT_TRAP = 710, FAULT_MISALIGNED = 716,
    FAULT_FAILED = 719
};

int  launch_run(launch* run, int num_threads);
void fault(warp* w, int code, int lane, const char* format, ...)
    __attribute__((noreturn, format(printf, 4, 5)));
int  first_lane(uint32_t mask);
void warp_save(warp* w);
void warp_pick(warp* w);
bool warp_steps_back(warp* w, uint32_t mask);
bool warp_gather(warp* w, const insn* i, uint32_t* mask, uint32_t members);
uint32_t thread_of(const warp* w, int lane);

// MEMORY

typedef struct allocation {
    uint64_t address;
    uint64_t bytes;
    uint8_t* data;
    uint8_t* written;           // a byte a byte; NULL: all
    bool     freed, host, read_only;
    int      device;
    const char* name;           // of a module's variable
} allocation;

uint64_t    memory_allocate(uint64_t bytes, int device, const char* name);
uint64_t    memory_adopt(void* data, uint64_t bytes);
allocation* memory_find(uint64_t address);      // the last that begins at or before it
int         memory_free(uint64_t address);      // 0, 1: not an allocation, 2: freed before
uint64_t    memory_used(int device);
size_t      memory_live(size_t* count);

typedef enum access_kind {
    ACCESS_READ, ACCESS_WRITE, ACCESS_STRONG_READ, ACCESS_ATOMIC
} access_kind;

// The bytes behind an address, after all checks.  `value` is what a write is going to store.
uint8_t* reach(warp* w, int lane, space where, uint64_t address, uint32_t bytes, access_kind how,
               const void* value);
uint8_t* reach_global(warp* w, int lane, uint64_t address, uint32_t bytes, access_kind how);
void shared_check(warp* w, int lane, uint32_t offset, uint32_t bytes, access_kind how,
                  const void* value);
void shared_join(cta* c, const uint32_t participants[MAX_WARPS]);
void count_global(warp* w, const uint64_t* address, uint32_t bytes, uint32_t mask, bool store);
void count_shared(warp* w, const uint64_t* address, uint32_t bytes, uint32_t mask);
void finish_copies(warp* w, uint32_t mask, int groups_left);

// NUMBERS

// An IEEE-like format: exponent and fraction bits, and what it does with large values.
typedef struct format { int exponent_bits, fraction_bits; bool no_infinity; } format;

extern const format format_f16, format_bf16, format_f32, format_f64, format_e4m3, format_e5m2;

// (-1)^negative * fraction * 2^exponent, `inexact` for a remainder below, rounded into a format.
uint64_t pack_number(const format* to, bool negative, uint64_t fraction, int exponent, bool inexact,
                     rounding round, bool to_finite);
uint64_t pack_double(const format* to, double x, rounding round, bool to_finite);
double   unpack_double(const format* from, uint64_t bits);
uint32_t float_to_f16(double x);        // nearest even; NaN is 0x7fff
uint32_t float_to_bf16(double x);
double   add_to_odd(double x, double y);

static inline uint32_t bits_of_float(float x)
{
    union { float f; uint32_t u; } both = { x };
    return both.u;
}

static inline float float_of_bits(uint32_t x)
{
    union { uint32_t u; float f; } both = { x };
    return both.f;
}

static inline uint64_t bits_of_double(double x)
{
    union { double f; uint64_t u; } both = { x };
    return both.u;
}

static inline double double_of_bits(uint64_t x)
{
    union { uint64_t u; double f; } both = { x };
    return both.f;
}

static inline float f16_to_float(uint32_t bits)
{
    const uint32_t sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    if (rest >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x400u) return float_of_bits(sign | ((rest << 13) + 0x38000000u));
    const float x = (float)rest * 5.9604644775390625e-8f;      // 2^-24
    return float_of_bits(sign | bits_of_float(x));
}

static inline float bf16_to_float(uint32_t bits) { return float_of_bits(bits << 16); }

// REGISTERS

static inline lane32* reg32(const warp* w, const operand* o) { return w->file + o->at; }

static inline lane64* reg64(const warp* w, const operand* o)
{
    return (lane64*)(void*)(w->file + o->at);
}

static inline uint32_t pred_read(const warp* w, const operand* o)
{
    return o->negate ? ~w->pred[o->at] : w->pred[o->at];
}

static inline void pred_write(warp* w, const operand* o, uint32_t value, uint32_t mask)
{
    if (o->kind == OPERAND_PRED) w->pred[o->at] = (w->pred[o->at] & ~mask) | (value & mask);
}

static inline void put32(warp* w, const operand* o, const uint32_t* r, uint32_t mask)
{
    lane32* d = reg32(w, o);
    if (mask == 0xffffffffu) {
        EACH_LANE d[l] = r[l];
    } else {
        EACH_LANE LANE_IN(mask) d[l] = r[l];
    }
}

static inline void put64(warp* w, const operand* o, const uint64_t* r, uint32_t mask)
{
    lane64* d = reg64(w, o);
    if (mask == 0xffffffffu) {
        EACH_LANE d[l] = r[l];
    } else {
        EACH_LANE LANE_IN(mask) d[l] = r[l];
    }
}

static inline uint64_t get_lane(const warp* w, const operand* o, int l)
{
    return o->width == 8 ? reg64(w, o)[l] : reg32(w, o)[l];
}

static inline void set_lane(warp* w, const operand* o, int l, uint64_t value)
{
    if (o->width == 8) {
        reg64(w, o)[l] = value;
    } else {
        reg32(w, o)[l] = (uint32_t)value;
    }
}

#endif
