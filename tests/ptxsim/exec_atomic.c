// exec_atomic.c -- atom and red: lane after lane, atomic between host threads.

#include "sim.h"

#include <math.h>
#include <string.h>

enum { OP_ADD, OP_MIN, OP_MAX, OP_AND, OP_OR, OP_XOR, OP_EXCH, OP_CAS, OP_INC, OP_DEC };

static const char* const names[] = { "add", "min", "max", "and", "or", "xor", "exch", "cas", "inc",
                                     "dec" };

static uint32_t add_half(type t, uint32_t a, uint32_t b)
{
    if (t == T_F16) {
        return float_to_f16((double)f16_to_float(a) + (double)f16_to_float(b));
    }
    return float_to_bf16(add_to_odd((double)bf16_to_float(a), (double)bf16_to_float(b)));
}

static uint64_t add_typed(type t, uint64_t a, uint64_t b)
{
    const uint32_t x = (uint32_t)a, y = (uint32_t)b;
    switch (t) {
    case T_F32: {
        const float r = float_of_bits(x) + float_of_bits(y);
        return r != r ? 0x7fffffffu : bits_of_float(r);
    }
    case T_F64: return bits_of_double(double_of_bits(a) + double_of_bits(b));
    case T_F16: case T_BF16: return add_half(t, x & 0xffffu, y & 0xffffu);
    case T_F16X2: case T_BF16X2: {
        const type one = t == T_F16X2 ? T_F16 : T_BF16;
        return add_half(one, x & 0xffffu, y & 0xffffu) | add_half(one, x >> 16, y >> 16) << 16;
    }
    default: return a + b;
    }
}

static bool less(type t, uint64_t a, uint64_t b)
{
    return t == T_S32 ? (int32_t)a < (int32_t)b : t == T_S64 ? (int64_t)a < (int64_t)b : a < b;
}

static uint64_t combined(const insn* i, uint64_t old, uint64_t b, uint64_t c)
{
    switch (i->sub) {
    case OP_ADD: return add_typed(i->type, old, b);
    case OP_MIN: return less(i->type, b, old) ? b : old;
    case OP_MAX: return less(i->type, old, b) ? b : old;
    case OP_AND: return old & b;
    case OP_OR: return old | b;
    case OP_XOR: return old ^ b;
    case OP_EXCH: return b;
    case OP_CAS: return old == b ? c : old;
    case OP_INC: return old >= b ? 0 : old + 1;
    default: return old == 0 || old > b ? b : old - 1;
    }
}

#define EXCHANGE(BITS)                                                                             \
    static uint64_t exchange_##BITS(const insn* i, uint8_t* at, uint64_t b, uint64_t c)            \
    {                                                                                              \
        uint##BITS##_t __attribute__((may_alias))* p = (void*)at;                                  \
        uint##BITS##_t old = __atomic_load_n(p, __ATOMIC_SEQ_CST), next;                           \
        do {                                                                                       \
            next = (uint##BITS##_t)combined(i, old, b, c);                                         \
        } while (!__atomic_compare_exchange_n(p, &old, next, 0, __ATOMIC_SEQ_CST,                  \
                                              __ATOMIC_SEQ_CST));                                  \
        return old;                                                                                \
    }

EXCHANGE(16)
EXCHANGE(32)
EXCHANGE(64)

// sub2: red, which has no destination
static void run_atomic(warp* w, const insn* i, uint32_t mask)
{
    const int first = i->sub2 ? 0 : 1;
    const operand* a = &i->o[first];
    const uint32_t bytes = type_bytes(i->type);
    const space where = i->space == SPACE_GENERIC ? a->space : i->space;
    ++w->cta->time;
    EACH_LANE LANE_IN(mask) {
        const uint64_t address = get_lane(w, a, l) + (uint64_t)a->offset;
        const uint64_t b = get_lane(w, &i->o[first + 1], l);
        const uint64_t c = i->sub == OP_CAS ? get_lane(w, &i->o[first + 2], l) : 0;
        uint8_t* at = reach(w, l, where, address, bytes, ACCESS_ATOMIC, NULL);
        const uint64_t old = bytes == 8 ? exchange_64(i, at, b, c) : bytes == 4 ?
            exchange_32(i, at, b, c) : exchange_16(i, at, b, c);
        if (!i->sub2 && !i->o[0].sink) set_lane(w, &i->o[0], l, old);
        ++w->cta->stats.atomics;
    }
}

static bool exists(type t, int op)
{
    switch (t) {
    case T_U32: case T_S32: case T_U64: case T_S64: return op != OP_EXCH && op != OP_CAS;
    case T_B32: case T_B64: return op >= OP_AND && op <= OP_CAS;
    case T_B16: return op == OP_CAS;
    case T_F32: case T_F64: case T_F16: case T_F16X2: case T_BF16: case T_BF16X2:
        return op == OP_ADD;
    default: return false;
    }
}

static handler choose(const words* m, insn* i)
{
    if (m->num_types != 1) return NULL;
    i->sub2 = m->base[0] == 'r';
    for (size_t k = 0; k < COUNT(names); ++k) {
        if (!has(m, names[k])) continue;
        i->sub = (uint8_t)k;
        return exists(m->types[0], (int)k) ? run_atomic : NULL;
    }
    return NULL;
}

#define WORDS                                                                                      \
    "relaxed acquire release acq_rel cta cluster gpu sys global shared shared::cta noftz"          \
    " add min max and or xor exch cas inc dec"

const op_entry atomic_ops[] = {
    { "atom", WORDS, choose, PTXSIM_MEMORY, 1 },
    { "red", WORDS, choose, PTXSIM_MEMORY, 0 },
    { NULL, NULL, NULL, 0, 0 },
};
