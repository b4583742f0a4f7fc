// exec_float.c -- f32 and f64 arithmetic.
//
// Nearest-even is the host's own arithmetic; the other roundings go through doubles rounded to odd.
// The approximate functions give the correctly rounded value, which lies within the ISA's bounds.
// A NaN result of f32 is 0x7fffffff.  Compiled without contraction.

#include "sim.h"

#include <math.h>
#include <string.h>

static inline float flushed(float x)
{
    const uint32_t bits = bits_of_float(x);
    return bits & 0x7f800000u ? x : float_of_bits(bits & 0x80000000u);
}

static void load(const warp* w, const insn* i, int k, float* x)
{
    const lane_f32* from = (const lane_f32*)(const void*)reg32(w, &i->o[k]);
    if (i->ftz) {
        EACH_LANE x[l] = flushed(from[l]);
    } else {
        EACH_LANE x[l] = from[l];
    }
}

static void finish(warp* w, const insn* i, const float* r, uint32_t mask)
{
    uint32_t bits[32];
    EACH_LANE bits[l] = r[l] != r[l] ? 0x7fffffffu : bits_of_float(r[l]);
    if (i->ftz) EACH_LANE bits[l] &= bits[l] & 0x7f800000u ? ~0u : 0x80000000u;
    if (i->sat) EACH_LANE bits[l] = r[l] > 0 ? (r[l] < 1 ? bits[l] : 0x3f800000u) : 0;
    put32(w, &i->o[0], bits, mask);
}

#define F32(NAME, EXPRESSION)                                                                      \
    static void NAME(warp* w, const insn* i, uint32_t mask)                                        \
    {                                                                                              \
        float pa[32], pb[32], pc[32], r[32];                                                       \
        load(w, i, 1, pa);                                                                         \
        load(w, i, 2, pb);                                                                         \
        load(w, i, 3, pc);                                                                         \
        EACH_LANE {                                                                                \
            const float a = pa[l], b = pb[l], c = pc[l];                                           \
            (void)a, (void)b, (void)c;                                                             \
            r[l] = (float)(EXPRESSION);                                                            \
        }                                                                                          \
        finish(w, i, r, mask);                                                                     \
    }

static float round_to_f32(double x, rounding round)
{
    return float_of_bits((uint32_t)pack_double(&format_f32, x, round, false));
}

// The exact zero of a difference is -0 when rounding down.
static float sum_rounded(double x, double y, rounding round)
{
    if (x == -y && round == ROUND_DOWN && !(x == 0 && signbit(x) == signbit(y))) return -0.0f;
    return round_to_f32(add_to_odd(x, y), round);
}

// A quotient or root rounded to odd, from the sign of the remainder.
static double to_odd(double q, double remainder)
{
    if (remainder == 0 || remainder != remainder || isinf(q) || (bits_of_double(q) & 1)) return q;
    const bool away = (remainder > 0) == (q > 0);
    return double_of_bits(bits_of_double(q) + (away ? 1 : (uint64_t)-1));
}

static float quotient(float a, float b, rounding round)
{
    if (round == ROUND_NEAREST) return a / b;
    const double q = (double)a / (double)b;
    const double left = fma(-q, b, a);
    return round_to_f32(to_odd(q, b > 0 ? left : -left), round);
}

static float root(float a, rounding round)
{
    if (round == ROUND_NEAREST) return sqrtf(a);
    const double q = sqrt((double)a);
    return round_to_f32(to_odd(q, fma(-q, q, a)), round);
}

static float product_sum(float a, float b, float c, rounding round)
{
    return sum_rounded((double)a * (double)b, c, round);
}

// Beyond 2^126 the approximate quotient is 0.
static float quotient_approx(float a, float b)
{
    const float size = fabsf(b);
    if (size > 0x1p126f && size <= 3.402823466e38f) return isinf(a) ? (float)NAN : 0 * a * b;
    return (float)((double)a / (double)b);
}

static float smaller(float a, float b, bool nan)
{
    if (a != a || b != b) return nan || (a != a && b != b) ? (float)NAN : a != a ? b : a;
    if (a == b) return signbit(a) ? a : b;
    return a < b ? a : b;
}

static float larger(float a, float b, bool nan)
{
    if (a != a || b != b) return nan || (a != a && b != b) ? (float)NAN : a != a ? b : a;
    if (a == b) return signbit(a) ? b : a;
    return a > b ? a : b;
}

static float with_xor_sign(float a, float b, float r)
{
    const uint32_t sign = (bits_of_float(a) ^ bits_of_float(b)) & 0x80000000u;
    return float_of_bits((bits_of_float(r) & 0x7fffffffu) | sign);
}

F32(add_f32, a + b)
F32(sub_f32, a - b)
F32(mul_f32, a * b)
F32(fma_f32, fmaf(a, b, c))
F32(add_f32_to, sum_rounded(a, b, i->round))
F32(sub_f32_to, sum_rounded(a, -(double)b, i->round))
F32(mul_f32_to, round_to_f32((double)a * (double)b, i->round))
F32(fma_f32_to, product_sum(a, b, c, i->round))
F32(div_f32, quotient(a, b, i->round))
F32(rcp_f32, quotient(1, a, i->round))
F32(sqrt_f32, root(a, i->round))
F32(div_approx, quotient_approx(a, b))
F32(rcp_approx, 1.0 / (double)a)
F32(sqrt_approx, sqrt((double)a))
F32(rsqrt_approx, 1.0 / sqrt((double)a))
F32(ex2_approx, exp2((double)a))
F32(lg2_approx, log2((double)a))
F32(sin_approx, sin((double)a))
F32(cos_approx, cos((double)a))
F32(tanh_approx, tanh((double)a))
F32(abs_f32, fabsf(a))
F32(neg_f32, -a)
// sub: NaN; sub2: xorsign.abs
F32(min_f32, i->sub2 ? with_xor_sign(a, b, smaller(fabsf(a), fabsf(b), i->sub)) :
    smaller(a, b, i->sub))
F32(max_f32, i->sub2 ? with_xor_sign(a, b, larger(fabsf(a), fabsf(b), i->sub)) :
    larger(a, b, i->sub))

#define F64(NAME, EXPRESSION)                                                                      \
    static void NAME(warp* w, const insn* i, uint32_t mask)                                        \
    {                                                                                              \
        const lane64 *pa = reg64(w, &i->o[1]), *pb = reg64(w, &i->o[2]), *pc = reg64(w, &i->o[3]); \
        uint64_t r[32];                                                                            \
        EACH_LANE {                                                                                \
            const double a = double_of_bits(pa[l]), b = double_of_bits(pb[l]);                     \
            const double c = double_of_bits(pc[l]);                                                \
            (void)a, (void)b, (void)c;                                                             \
            r[l] = bits_of_double(EXPRESSION);                                                     \
        }                                                                                          \
        put64(w, &i->o[0], r, mask);                                                               \
    }

static double smaller64(double a, double b)
{
    if (a == b) return signbit(a) ? a : b;
    return fmin(a, b);
}

static double larger64(double a, double b)
{
    if (a == b) return signbit(a) ? b : a;
    return fmax(a, b);
}

// The approximations of f64 keep the upper word, rounded towards zero.
static double upper_word(double x)
{
    return x != x ? x : double_of_bits(bits_of_double(x) & 0xffffffff00000000u);
}

F64(add_f64, a + b)
F64(sub_f64, a - b)
F64(mul_f64, a * b)
F64(fma_f64, fma(a, b, c))
F64(div_f64, a / b)
F64(rcp_f64, 1 / a)
F64(sqrt_f64, sqrt(a))
F64(rcp_approx_f64, upper_word(1 / a))
F64(rsqrt_approx_f64, upper_word(1 / sqrt(a)))
F64(abs_f64, fabs(a))
F64(neg_f64, -a)
F64(min_f64, smaller64(a, b))
F64(max_f64, larger64(a, b))

// The sign of a, the rest of b.
static void copysign_f32(warp* w, const insn* i, uint32_t mask)
{
    const lane32 *a = reg32(w, &i->o[1]), *b = reg32(w, &i->o[2]);
    uint32_t r[32];
    EACH_LANE r[l] = (a[l] & 0x80000000u) | (b[l] & 0x7fffffffu);
    put32(w, &i->o[0], r, mask);
}

F64(copysign_f64, copysign(b, a))

// sub: finite infinite number notanumber normal subnormal
static void run_testp(warp* w, const insn* i, uint32_t mask)
{
    uint32_t r = 0;
    EACH_LANE {
        const double x = i->type == T_F64 ? double_of_bits(reg64(w, &i->o[1])[l]) :
            (double)float_of_bits(reg32(w, &i->o[1])[l]);
        const double least = i->type == T_F64 ? 0x1p-1022 : 0x1p-126;
        bool yes = false;
        switch (i->sub) {
        case 0: yes = isfinite(x); break;
        case 1: yes = isinf(x); break;
        case 2: yes = x == x; break;
        case 3: yes = x != x; break;
        case 4: yes = isfinite(x) && fabs(x) >= least; break;
        default: yes = x != 0 && fabs(x) < least; break;
        }
        r |= (uint32_t)yes << l;
    }
    pred_write(w, &i->o[0], r, mask);
}

// PAIRS OF F32

// sub: 0 add, 1 multiply, 2 multiply and add
static uint32_t pair_part(const insn* i, uint64_t a, uint64_t b, uint64_t c)
{
    float x = float_of_bits((uint32_t)a), y = float_of_bits((uint32_t)b);
    float z = float_of_bits((uint32_t)c);
    if (i->ftz) x = flushed(x), y = flushed(y), z = flushed(z);
    float r = i->sub == 0 ? x + y : i->sub == 1 ? x * y : fmaf(x, y, z);
    if (i->ftz) r = flushed(r);
    return r != r ? 0x7fffffffu : bits_of_float(r);
}

static void run_pair(warp* w, const insn* i, uint32_t mask)
{
    const lane64 *a = reg64(w, &i->o[1]), *b = reg64(w, &i->o[2]), *c = reg64(w, &i->o[3]);
    uint64_t r[32];
    EACH_LANE {
        r[l] = (uint64_t)pair_part(i, a[l] >> 32, b[l] >> 32, c[l] >> 32) << 32 |
               pair_part(i, a[l], b[l], c[l]);
    }
    put64(w, &i->o[0], r, mask);
}

static handler choose_pair(const words* m, insn* i)
{
    if (i->round != ROUND_NEAREST || i->sat || i->relu) return NULL;
    i->sub = strcmp(m->base, "add") == 0 ? 0 : strcmp(m->base, "mul") == 0 ? 1 : 2;
    return i->sub < 2 || strcmp(m->base, "fma") == 0 ? run_pair : NULL;
}

// CHOICE

typedef struct by_kind {
    const char* base;
    handler nearest, rounded, approx, f64, approx64;
} by_kind;

static const by_kind table[] = {
    { "add", add_f32, add_f32_to, NULL, add_f64, NULL },
    { "sub", sub_f32, sub_f32_to, NULL, sub_f64, NULL },
    { "mul", mul_f32, mul_f32_to, NULL, mul_f64, NULL },
    { "fma", fma_f32, fma_f32_to, NULL, fma_f64, NULL },
    { "mad", fma_f32, fma_f32_to, NULL, fma_f64, NULL },
    { "div", div_f32, div_f32, div_approx, div_f64, NULL },
    { "rcp", rcp_f32, rcp_f32, rcp_approx, rcp_f64, rcp_approx_f64 },
    { "sqrt", sqrt_f32, sqrt_f32, sqrt_approx, sqrt_f64, NULL },
    { "rsqrt", NULL, NULL, rsqrt_approx, NULL, rsqrt_approx_f64 },
    { "ex2", NULL, NULL, ex2_approx, NULL, NULL },
    { "lg2", NULL, NULL, lg2_approx, NULL, NULL },
    { "sin", NULL, NULL, sin_approx, NULL, NULL },
    { "cos", NULL, NULL, cos_approx, NULL, NULL },
    { "tanh", NULL, NULL, tanh_approx, NULL, NULL },
    { "abs", abs_f32, NULL, NULL, abs_f64, NULL },
    { "neg", neg_f32, NULL, NULL, neg_f64, NULL },
    { "min", min_f32, NULL, NULL, min_f64, NULL },
    { "max", max_f32, NULL, NULL, max_f64, NULL },
    { "copysign", copysign_f32, NULL, NULL, copysign_f64, NULL },
};

static handler choose(const words* m, insn* i)
{
    if (m->num_types != 1) return NULL;
    const type t = m->types[0];
    if (type_is_half(t)) return choose_half(m, i);
    if (t == T_F32X2) return choose_pair(m, i);
    if (t != T_F32 && t != T_F64) return NULL;
    i->sub = has(m, "NaN");
    i->sub2 = has(m, "xorsign");
    for (size_t k = 0; k < COUNT(table); ++k) {
        if (strcmp(table[k].base, m->base) != 0) continue;
        const bool approx = has(m, "approx");
        if (t == T_F64) {
            if (i->round != ROUND_NEAREST || i->sub || i->sub2) return NULL;
            return approx ? table[k].approx64 : table[k].f64;
        }
        if (has(m, "full")) return div_f32;
        if (approx) return table[k].approx;
        return i->round == ROUND_NEAREST ? table[k].nearest : table[k].rounded;
    }
    return NULL;
}

static handler choose_testp(const words* m, insn* i)
{
    static const char* const kinds[] = { "finite", "infinite", "number", "notanumber", "normal",
                                         "subnormal" };
    for (size_t k = 0; k < COUNT(kinds); ++k) {
        if (has(m, kinds[k])) {
            i->sub = (uint8_t)k;
            return m->num_types == 1 && m->num_words == 1 ? run_testp : NULL;
        }
    }
    return NULL;
}

const op_entry float_ops[] = {
    { "add", "rn rz rm rp ftz sat", choose, PTXSIM_FLOAT, 1 },
    { "sub", "rn rz rm rp ftz sat", choose, PTXSIM_FLOAT, 1 },
    { "mul", "rn rz rm rp ftz sat", choose, PTXSIM_FLOAT, 1 },
    { "fma", "rn rz rm rp ftz sat relu", choose, PTXSIM_FLOAT, 1 },
    { "mad", "rn rz rm rp ftz sat", choose, PTXSIM_FLOAT, 1 },
    { "div", "rn rz rm rp ftz approx full", choose, PTXSIM_FLOAT, 1 },
    { "rcp", "rn rz rm rp ftz approx", choose, PTXSIM_FLOAT, 1 },
    { "sqrt", "rn rz rm rp ftz approx", choose, PTXSIM_FLOAT, 1 },
    { "rsqrt", "ftz approx", choose, PTXSIM_FLOAT, 1 },
    { "ex2", "ftz approx", choose, PTXSIM_FLOAT, 1 },
    { "lg2", "ftz approx", choose, PTXSIM_FLOAT, 1 },
    { "sin", "ftz approx", choose, PTXSIM_FLOAT, 1 },
    { "cos", "ftz approx", choose, PTXSIM_FLOAT, 1 },
    { "tanh", "approx", choose, PTXSIM_FLOAT, 1 },
    { "abs", "ftz", choose, PTXSIM_FLOAT, 1 },
    { "neg", "ftz", choose, PTXSIM_FLOAT, 1 },
    { "min", "ftz NaN xorsign abs", choose, PTXSIM_FLOAT, 1 },
    { "max", "ftz NaN xorsign abs", choose, PTXSIM_FLOAT, 1 },
    { "copysign", "", choose, PTXSIM_FLOAT, 1 },
    { "testp", "finite infinite number notanumber normal subnormal", choose_testp, PTXSIM_FLOAT,
      1 },
    { NULL, NULL, NULL, 0, 0 },
};
