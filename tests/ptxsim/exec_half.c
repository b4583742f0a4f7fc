// exec_half.c -- f16, f16x2, bf16 and bf16x2 arithmetic, each result rounded once.
//
// Sums of exact products are rounded to odd in a double, then to 16 bits: that is one rounding.
// A NaN result is 0x7fff.

#include "sim.h"

#include <math.h>
#include <string.h>

enum { OP_ADD, OP_SUB, OP_MUL, OP_FMA, OP_MIN, OP_MAX, OP_NEG, OP_ABS, OP_EX2, OP_TANH };

static const char* const names[] = { "add", "sub", "mul", "fma", "min", "max", "neg", "abs", "ex2",
                                     "tanh" };

bool type_is_half(type t)
{
    return t == T_F16 || t == T_F16X2 || t == T_BF16 || t == T_BF16X2;
}

static bool is_bf16(type t) { return t == T_BF16 || t == T_BF16X2; }

static double value_of(const insn* i, uint32_t bits)
{
    const double x = is_bf16(i->type) ? (double)bf16_to_float(bits) : (double)f16_to_float(bits);
    if (i->ftz && !(bits & 0x7c00u)) return signbit(x) ? -0.0 : 0.0;
    return x;
}

static uint32_t rounded(const insn* i, double x)
{
    if (i->sat) x = x > 0 ? (x < 1 ? x : 1) : 0;
    if (i->relu && x < 0) x = 0;
    uint32_t bits = is_bf16(i->type) ? float_to_bf16(x) : float_to_f16(x);
    if (i->ftz && !(bits & 0x7c00u)) bits &= 0x8000u;
    // A negative value that rounds to zero is clipped as well.
    return i->relu && bits == 0x8000u ? 0 : bits;
}

// sub2: NaN
static uint32_t pick(const insn* i, uint32_t a, uint32_t b, bool least)
{
    const double x = value_of(i, a), y = value_of(i, b);
    if (x != x || y != y) {
        if (i->sub2 || (x != x && y != y)) return 0x7fff;
        return x != x ? b : a;
    }
    if (x == y) return least == (signbit(x) != 0) ? a : b;
    return (x < y) == least ? a : b;
}

static uint32_t compute(const insn* i, uint32_t a, uint32_t b, uint32_t c)
{
    switch (i->sub) {
    case OP_ADD: return rounded(i, add_to_odd(value_of(i, a), value_of(i, b)));
    case OP_SUB: return rounded(i, add_to_odd(value_of(i, a), -value_of(i, b)));
    case OP_MUL: return rounded(i, value_of(i, a) * value_of(i, b));
    case OP_FMA: return rounded(i, add_to_odd(value_of(i, a) * value_of(i, b), value_of(i, c)));
    case OP_MIN: return pick(i, a, b, true);
    case OP_MAX: return pick(i, a, b, false);
    case OP_NEG: return a ^ 0x8000u;
    case OP_ABS: return a & 0x7fffu;
    case OP_EX2: return rounded(i, exp2(value_of(i, a)));
    default: return rounded(i, tanh(value_of(i, a)));
    }
}

static void run_half(warp* w, const insn* i, uint32_t mask)
{
    const lane32 *a = reg32(w, &i->o[1]), *b = reg32(w, &i->o[2]), *c = reg32(w, &i->o[3]);
    uint32_t r[32] = { 0 };
    EACH_LANE LANE_IN(mask) r[l] = compute(i, a[l] & 0xffffu, b[l] & 0xffffu, c[l] & 0xffffu);
    put32(w, &i->o[0], r, mask);
}

static void run_half2(warp* w, const insn* i, uint32_t mask)
{
    const lane32 *a = reg32(w, &i->o[1]), *b = reg32(w, &i->o[2]), *c = reg32(w, &i->o[3]);
    uint32_t r[32] = { 0 };
    EACH_LANE LANE_IN(mask) {
        r[l] = compute(i, a[l] & 0xffffu, b[l] & 0xffffu, c[l] & 0xffffu) |
               compute(i, a[l] >> 16, b[l] >> 16, c[l] >> 16) << 16;
    }
    put32(w, &i->o[0], r, mask);
}

// Called for the opcodes that exist for f32 too; words were checked against their list.
handler choose_half(const words* m, insn* i)
{
    const type t = m->types[0];
    if (i->round != ROUND_NEAREST || has(m, "full") || has(m, "xorsign")) return NULL;
    if (is_bf16(t) && (i->sat || (i->ftz && strcmp(m->base, "ex2") != 0))) return NULL;
    i->sub2 = has(m, "NaN");
    for (size_t k = 0; k < COUNT(names); ++k) {
        if (strcmp(names[k], m->base) != 0) continue;
        const bool approximates = k == OP_EX2 || k == OP_TANH;
        if (has(m, "approx") != approximates) return NULL;
        if (k == OP_FMA && !has(m, "rn")) return NULL;
        i->sub = (uint8_t)k;
        return t == T_F16 || t == T_BF16 ? run_half : run_half2;
    }
    return NULL;
}
