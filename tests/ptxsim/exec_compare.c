// exec_compare.c -- setp, set, selp, slct.
//
// A comparison gives a mask of lanes; what is done with the mask is the instruction's matter.

#include "sim.h"

#include <string.h>

enum { EQ, NE, LT, LE, GT, GE, EQU, NEU, LTU, LEU, GTU, GEU, IS_NUM, IS_NAN };

static const char* const names[] = { "eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu",
                                     "gtu", "geu", "num", "nan", "lo", "ls", "hi", "hs" };
static const char* const booleans[] = { "", "and", "or", "xor" };

#define COMPARED(a, b, OPERATOR)                                                                   \
    do {                                                                                           \
        EACH_LANE r |= (uint32_t)((a)[l] OPERATOR (b)[l]) << l;                                    \
    } while (0)

#define INTEGERS(NAME, LANE)                                                                       \
    static uint32_t NAME(const LANE* a, const LANE* b, int how)                                    \
    {                                                                                              \
        uint32_t r = 0;                                                                            \
        switch (how) {                                                                             \
        case EQ: COMPARED(a, b, ==); break;                                                        \
        case NE: COMPARED(a, b, !=); break;                                                        \
        case LT: COMPARED(a, b, <); break;                                                         \
        case LE: COMPARED(a, b, <=); break;                                                        \
        case GT: COMPARED(a, b, >); break;                                                         \
        default: COMPARED(a, b, >=); break;                                                        \
        }                                                                                          \
        return r;                                                                                  \
    }

typedef int32_t __attribute__((may_alias)) lane_s32;
typedef int64_t __attribute__((may_alias)) lane_s64;

INTEGERS(compare_u32, lane32)
INTEGERS(compare_s32, lane_s32)
INTEGERS(compare_u64, lane64)
INTEGERS(compare_s64, lane_s64)

static bool compare_double(double a, double b, int how)
{
    const bool nan = a != a || b != b;
    switch (how) {
    case EQ: return a == b;
    case NE: return !nan && a != b;
    case LT: return a < b;
    case LE: return a <= b;
    case GT: return a > b;
    case GE: return a >= b;
    case EQU: return nan || a == b;
    case NEU: return nan || a != b;
    case LTU: return nan || a < b;
    case LEU: return nan || a <= b;
    case GTU: return nan || a > b;
    case GEU: return nan || a >= b;
    case IS_NUM: return !nan;
    default: return nan;
    }
}

static double as_double(const insn* i, type t, uint64_t bits)
{
    switch (t) {
    case T_F64: return double_of_bits(bits);
    case T_F16: case T_F16X2: return (double)f16_to_float((uint32_t)bits & 0xffffu);
    case T_BF16: case T_BF16X2: return (double)bf16_to_float((uint32_t)bits & 0xffffu);
    default: break;
    }
    const uint32_t x = (uint32_t)bits;
    return i->ftz && !(x & 0x7f800000u) ? 0.0 : (double)float_of_bits(x);
}

static int64_t as_integer(type t, uint64_t bits)
{
    return t == T_S16 ? (int16_t)bits : (int64_t)(bits & 0xffffu);
}

// Of lanes in the mask; `shift` chooses the half of a pair.
static uint32_t compare(const warp* w, const insn* i, type t, uint32_t mask, int shift)
{
    const operand *a = &i->o[1], *b = &i->o[2];
    uint32_t r = 0;
    switch (t) {
    case T_B32: case T_U32: return compare_u32(reg32(w, a), reg32(w, b), i->sub);
    case T_S32:
        return compare_s32((const lane_s32*)reg32(w, a), (const lane_s32*)reg32(w, b), i->sub);
    case T_B64: case T_U64: return compare_u64(reg64(w, a), reg64(w, b), i->sub);
    case T_S64:
        return compare_s64((const lane_s64*)reg64(w, a), (const lane_s64*)reg64(w, b), i->sub);
    case T_B16: case T_U16: case T_S16:
        EACH_LANE LANE_IN(mask) {
            const double x = (double)as_integer(t, get_lane(w, a, l));
            const double y = (double)as_integer(t, get_lane(w, b, l));
            r |= (uint32_t)compare_double(x, y, i->sub) << l;
        }
        return r;
    default:
        EACH_LANE LANE_IN(mask) {
            const double x = as_double(i, t, get_lane(w, a, l) >> shift);
            const double y = as_double(i, t, get_lane(w, b, l) >> shift);
            r |= (uint32_t)compare_double(x, y, i->sub) << l;
        }
        return r;
    }
}

static uint32_t combine(const insn* i, uint32_t r, uint32_t c)
{
    return i->sub2 == 1 ? r & c : i->sub2 == 2 ? r | c : i->sub2 == 3 ? r ^ c : r;
}

static uint32_t third(const warp* w, const insn* i)
{
    return i->sub2 ? pred_read(w, &i->o[3]) : 0;
}

static void run_setp(warp* w, const insn* i, uint32_t mask)
{
    const uint32_t r = compare(w, i, i->type, mask, 0), c = third(w, i);
    pred_write(w, &i->o[0], combine(i, r, c), mask);
    pred_write(w, &i->o[MAX_OPERANDS - 1], combine(i, ~r, c), mask);
}

// p of the low halves, q of the high ones.
static void run_setp_pair(warp* w, const insn* i, uint32_t mask)
{
    const uint32_t low = compare(w, i, i->type, mask, 0), high = compare(w, i, i->type, mask, 16);
    const uint32_t c = third(w, i);
    pred_write(w, &i->o[0], combine(i, low, c), mask);
    pred_write(w, &i->o[MAX_OPERANDS - 1], combine(i, high, c), mask);
}

static uint32_t one_of(type t)
{
    switch (t) {
    case T_F32: return 0x3f800000u;
    case T_F16: return 0x3c00u;
    case T_BF16: return 0x3f80u;
    case T_F16X2: return 0x3c003c00u;
    case T_BF16X2: return 0x3f803f80u;
    case T_U16: case T_S16: return 0xffffu;
    default: return 0xffffffffu;
    }
}

static void run_set(warp* w, const insn* i, uint32_t mask)
{
    const uint32_t one = one_of(i->type), c = third(w, i);
    const bool pair = i->type2 == T_F16X2 || i->type2 == T_BF16X2;
    const uint32_t low = combine(i, compare(w, i, i->type2, mask, 0), c);
    const uint32_t high = pair ? combine(i, compare(w, i, i->type2, mask, 16), c) : low;
    uint32_t r[32];
    EACH_LANE {
        r[l] = (low >> l & 1 ? one & 0xffffu : 0) | (high >> l & 1 ? one & 0xffff0000u : 0);
    }
    put32(w, &i->o[0], r, mask);
}

static void run_selp(warp* w, const insn* i, uint32_t mask)
{
    const uint32_t p = pred_read(w, &i->o[3]);
    if (i->o[0].width == 8) {
        const lane64 *a = reg64(w, &i->o[1]), *b = reg64(w, &i->o[2]);
        uint64_t r[32];
        EACH_LANE r[l] = p >> l & 1 ? a[l] : b[l];
        put64(w, &i->o[0], r, mask);
        return;
    }
    const lane32 *a = reg32(w, &i->o[1]), *b = reg32(w, &i->o[2]);
    uint32_t r[32];
    EACH_LANE r[l] = p >> l & 1 ? a[l] : b[l];
    put32(w, &i->o[0], r, mask);
}

static void run_slct(warp* w, const insn* i, uint32_t mask)
{
    const lane32* c = reg32(w, &i->o[3]);
    EACH_LANE LANE_IN(mask) {
        const bool first = i->type2 == T_F32 ? as_double(i, T_F32, c[l]) >= 0 : (int32_t)c[l] >= 0;
        set_lane(w, &i->o[0], l, get_lane(w, &i->o[first ? 1 : 2], l));
    }
}

// CHOICE

static bool read_comparison(const words* m, insn* i)
{
    bool found = false;
    for (int k = 0; k < m->num_words; ++k) {
        for (size_t n = 0; n < COUNT(names); ++n) {
            if (strcmp(m->word[k], names[n]) != 0) continue;
            // lo ls hi hs are the unsigned lt le gt ge.
            i->sub = (uint8_t)(n < 14 ? n : (size_t[]){ LT, LE, GT, GE }[n - 14]);
            found = true;
        }
        for (size_t n = 1; n < COUNT(booleans); ++n) {
            if (strcmp(m->word[k], booleans[n]) == 0) i->sub2 = (uint8_t)n;
        }
    }
    return found;
}

static bool fits(type t, int how)
{
    const bool is_float = t == T_F32 || t == T_F64 || type_is_half(t);
    return t != T_NONE && t != T_PRED && type_bytes(t) > 1 && (is_float || how <= GE);
}

static handler choose_setp(const words* m, insn* i)
{
    if (m->num_types != 1 || !read_comparison(m, i) || !fits(m->types[0], i->sub)) return NULL;
    return m->types[0] == T_F16X2 || m->types[0] == T_BF16X2 ? run_setp_pair : run_setp;
}

static handler choose_set(const words* m, insn* i)
{
    if (m->num_types != 2 || !read_comparison(m, i) || !fits(m->types[1], i->sub)) return NULL;
    return run_set;
}

static handler choose_selp(const words* m, insn* i)
{
    (void)i;
    return m->num_types == 1 ? run_selp : NULL;
}

static handler choose_slct(const words* m, insn* i)
{
    (void)i;
    return m->num_types == 2 && (m->types[1] == T_S32 || m->types[1] == T_F32) ? run_slct : NULL;
}

#define COMPARISONS "eq ne lt le gt ge equ neu ltu leu gtu geu num nan lo ls hi hs and or xor ftz"

const op_entry compare_ops[] = {
    { "setp", COMPARISONS, choose_setp, PTXSIM_INTEGER, 1 },
    { "set", COMPARISONS, choose_set, PTXSIM_INTEGER, 1 },
    { "selp", "", choose_selp, PTXSIM_INTEGER, 1 },
    { "slct", "ftz", choose_slct, PTXSIM_INTEGER, 1 },
    { NULL, NULL, NULL, 0, 0 },
};
