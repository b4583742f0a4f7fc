// exec_convert.c -- cvt in all its forms, cvta, isspacep, mov with packing.
//
// A value on its way is an integer of sign and magnitude, or a double (exact for every float type).

#include "sim.h"

#include <math.h>
#include <string.h>

typedef struct value { bool is_float, negative; uint64_t magnitude; double x; } value;

static const format* format_of(type t)
{
    switch (t) {
    case T_F16: case T_F16X2: return &format_f16;
    case T_BF16: case T_BF16X2: return &format_bf16;
    case T_F32: return &format_f32;
    case T_F64: return &format_f64;
    case T_E4M3X2: return &format_e4m3;
    case T_E5M2X2: return &format_e5m2;
    default: return NULL;
    }
}

static uint64_t flush_f32(uint64_t bits) { return bits & 0x7f800000u ? bits : bits & 0x80000000u; }

static value read_value(type t, uint64_t bits, bool ftz)
{
    value v = { false, false, 0, 0 };
    const format* from = format_of(t);
    if (from) {
        v.is_float = true;
        if (t == T_F32 && ftz) bits = flush_f32(bits);
        v.x = t == T_F32 ? (double)float_of_bits((uint32_t)bits) : t == T_F64 ?
            double_of_bits(bits) : unpack_double(from, bits);
        return v;
    }
    const uint32_t width = type_bytes(t) * 8;
    if (width < 64) bits &= ((uint64_t)1 << width) - 1;
    v.negative = type_is_signed(t) && bits >> (width - 1) & 1;
    if (v.negative && width < 64) bits |= ~(((uint64_t)1 << width) - 1);
    v.magnitude = v.negative ? 0 - bits : bits;
    return v;
}

static double to_integral(double x, rounding round)
{
    switch (round) {
    case ROUND_ZERO: return trunc(x);
    case ROUND_DOWN: return floor(x);
    case ROUND_UP: return ceil(x);
    default: return nearbyint(x);
    }
}

// Clamped to the type's range.
static uint64_t clamp_integer(value v, type to)
{
    const uint32_t width = type_bytes(to) * 8;
    const bool is_signed = type_is_signed(to);
    const uint64_t high = (UINT64_MAX >> (64 - width)) >> is_signed;
    if (v.negative) {
        const uint64_t low = is_signed ? high + 1 : 0;
        return 0 - (v.magnitude > low ? low : v.magnitude);
    }
    return v.magnitude > high ? high : v.magnitude;
}

static uint64_t float_to_integer(const insn* i, double x)
{
    const type to = i->type;
    if (x != x) {
        return i->type2 != T_F64 && type_bytes(to) < 8 ? 0 :
            (uint64_t)1 << (type_bytes(to) * 8 - 1);
    }
    x = to_integral(x, i->round);
    value v = { false, x < 0, 0, 0 };
    const double size = fabs(x);
    v.magnitude = size >= 0x1p64 ? UINT64_MAX : (uint64_t)size;
    return clamp_integer(v, to);
}

static uint64_t to_format(const insn* i, type to, value v, bool to_finite)
{
    const format* f = format_of(to);
    if (!v.is_float) {
        return pack_number(f, v.negative, v.magnitude, 0, false, i->round, to_finite);
    }
    double x = v.x;
    if (i->sub) x = to_integral(x, i->round);
    if (i->sat) x = x > 0 ? (x < 1 ? x : 1) : 0;
    if (i->relu && x <= 0) x = 0;
    const rounding round = i->sub ? ROUND_NEAREST : i->round;
    if (round == ROUND_NEAREST && !to_finite) {
        if (f == &format_f16) return float_to_f16(x);
        if (f == &format_bf16) return float_to_bf16(x);
    }
    uint64_t bits = pack_double(f, x, round, to_finite);
    if (to == T_F32 && i->ftz) bits = flush_f32(bits);
    return bits;
}

// sub: to an integral float; sub2: satfinite
static void run_cvt(warp* w, const insn* i, uint32_t mask)
{
    const operand* d = &i->o[0];
    EACH_LANE LANE_IN(mask) {
        const value v = read_value(i->type2, get_lane(w, &i->o[1], l), i->ftz);
        uint64_t r;
        if (format_of(i->type)) {
            r = to_format(i, i->type, v, i->sub2);
        } else {
            const uint64_t whole = v.negative ? 0 - v.magnitude : v.magnitude;
            r = v.is_float ? float_to_integer(i, v.x) : i->sat ? clamp_integer(v, i->type) : whole;
            const uint32_t width = type_bytes(i->type) * 8;
            if (width < 64) {
                r &= ((uint64_t)1 << width) - 1;
                if (type_is_signed(i->type) && r >> (width - 1) & 1) {
                    r |= ~(((uint64_t)1 << width) - 1);
                }
            }
            if (d->bits < 32) r &= ((uint64_t)1 << d->bits) - 1;
        }
        set_lane(w, d, l, r);
    }
}

// Integer to integer without saturation: most of cvt.  A register may be wider than its type.
static bool is_wider(const insn* i, uint8_t to, uint8_t from)
{
    return i->o[0].width != to || i->o[1].width != from;
}

static void cvt_u64_u32(warp* w, const insn* i, uint32_t mask)
{
    if (is_wider(i, 8, 4)) { run_cvt(w, i, mask); return; }
    const lane32* a = reg32(w, &i->o[1]);
    uint64_t r[32];
    EACH_LANE r[l] = a[l];
    put64(w, &i->o[0], r, mask);
}

static void cvt_s64_s32(warp* w, const insn* i, uint32_t mask)
{
    if (is_wider(i, 8, 4)) { run_cvt(w, i, mask); return; }
    const lane32* a = reg32(w, &i->o[1]);
    uint64_t r[32];
    EACH_LANE r[l] = (uint64_t)(int64_t)(int32_t)a[l];
    put64(w, &i->o[0], r, mask);
}

static void cvt_u32_u64(warp* w, const insn* i, uint32_t mask)
{
    if (is_wider(i, 4, 8)) { run_cvt(w, i, mask); return; }
    const lane64* a = reg64(w, &i->o[1]);
    uint32_t r[32];
    EACH_LANE r[l] = (uint32_t)a[l];
    put32(w, &i->o[0], r, mask);
}

static void cvt_f32_f16(warp* w, const insn* i, uint32_t mask)
{
    if (is_wider(i, 4, 4)) { run_cvt(w, i, mask); return; }
    const lane32* a = reg32(w, &i->o[1]);
    uint32_t r[32];
    EACH_LANE {
        const float x = f16_to_float(a[l] & 0xffffu);
        r[l] = x != x ? 0x7fffffffu : bits_of_float(x);
    }
    put32(w, &i->o[0], r, mask);
}

// Two f32 into two 16- or 8-bit floats: the first operand goes up.
static void cvt_pair(warp* w, const insn* i, uint32_t mask)
{
    const uint32_t bits = type_bytes(i->type) * 4;
    EACH_LANE LANE_IN(mask) {
        const value a = read_value(T_F32, get_lane(w, &i->o[1], l), i->ftz);
        const value b = read_value(T_F32, get_lane(w, &i->o[2], l), i->ftz);
        const uint64_t high = to_format(i, i->type, a, i->sub2);
        const uint64_t low = to_format(i, i->type, b, i->sub2);
        set_lane(w, &i->o[0], l, high << bits | low);
    }
}

// Two floats of 8 bits to or from two of 16.
static void cvt_both(warp* w, const insn* i, uint32_t mask)
{
    const uint32_t from_bits = type_bytes(i->type2) * 4, to_bits = type_bytes(i->type) * 4;
    const uint64_t field = ((uint64_t)1 << from_bits) - 1;
    EACH_LANE LANE_IN(mask) {
        const uint64_t a = get_lane(w, &i->o[1], l);
        const value high = read_value(i->type2, a >> from_bits & field, false);
        const value low = read_value(i->type2, a & field, false);
        const uint64_t r = to_format(i, i->type, high, i->sub2) << to_bits |
                           to_format(i, i->type, low, i->sub2);
        set_lane(w, &i->o[0], l, r);
    }
}

// cvt.pack: a and b saturated, below the low half of c for 8 bits.
static void cvt_pack(warp* w, const insn* i, uint32_t mask)
{
    const uint32_t bits = type_bytes(i->type) * 8;
    const uint64_t field = ((uint64_t)1 << bits) - 1;
    EACH_LANE LANE_IN(mask) {
        const value a = read_value(i->type2, get_lane(w, &i->o[1], l), false);
        const value b = read_value(i->type2, get_lane(w, &i->o[2], l), false);
        const uint64_t c = i->o[3].kind == OPERAND_REG ? get_lane(w, &i->o[3], l) : 0;
        const uint64_t r = c << 2 * bits | (clamp_integer(a, i->type) & field) << bits |
                           (clamp_integer(b, i->type) & field);
        set_lane(w, &i->o[0], l, r & 0xffffffffu);
    }
}

static bool is_pair(type t)
{
    return t == T_F16X2 || t == T_BF16X2 || t == T_E4M3X2 || t == T_E5M2X2;
}

static handler choose_fast(const insn* i)
{
    if (i->sat || i->relu || i->ftz || i->sub) return NULL;
    const type d = i->type, s = i->type2;
    if ((d == T_U64 || d == T_S64) && s == T_U32) return cvt_u64_u32;
    if ((d == T_U64 || d == T_S64) && s == T_S32) return cvt_s64_s32;
    if ((d == T_U32 || d == T_S32) && (s == T_U64 || s == T_S64)) return cvt_u32_u64;
    return d == T_F32 && s == T_F16 ? cvt_f32_f16 : NULL;
}

static handler choose_cvt(const words* m, insn* i)
{
    const bool pack = has(m, "pack");
    if (m->num_types != (pack ? 3 : 2) && !(pack && m->num_types == 2)) return NULL;
    if (pack) return has(m, "sat") ? cvt_pack : NULL;
    const bool integral = has(m, "rni") || has(m, "rzi") || has(m, "rmi") || has(m, "rpi");
    i->sub2 = has(m, "satfinite");
    const format *to = format_of(i->type), *from = format_of(i->type2);
    if (i->type == T_PRED || i->type2 == T_PRED) return NULL;
    if (from && !to && !integral) return NULL;
    if (is_pair(i->type)) {
        const bool narrow = i->type == T_E4M3X2 || i->type == T_E5M2X2;
        if (narrow && !i->sub2) return NULL;
        if (i->type2 == T_F32) return cvt_pair;
        return is_pair(i->type2) ? cvt_both : NULL;
    }
    if (is_pair(i->type2)) return NULL;
    i->sub = from && to && integral;
    const handler fast = choose_fast(i);
    return fast ? fast : run_cvt;
}

// WINDOWS

static uint64_t window_of(space s)
{
    return s == SPACE_SHARED ? WINDOW_SHARED : s == SPACE_LOCAL ? WINDOW_LOCAL :
        s == SPACE_PARAM ? WINDOW_PARAM : 0;
}

// sub: to.  An address of another space keeps its window, and faults where it is used.
static void run_cvta(warp* w, const insn* i, uint32_t mask)
{
    const uint64_t window = window_of(i->space);
    const lane64* a = reg64(w, &i->o[1]);
    uint64_t r[32];
    EACH_LANE {
        r[l] = !i->sub ? a[l] | window : a[l] >> 56 == window >> 56 ? WINDOW_OFFSET(a[l]) : a[l];
    }
    put64(w, &i->o[0], r, mask);
}

static handler choose_cvta(const words* m, insn* i)
{
    i->sub = has(m, "to");
    return m->num_types == 1 && type_bytes(m->types[0]) == 8 && i->space != SPACE_GENERIC ? run_cvta
                                                                                         : NULL;
}

static void run_isspacep(warp* w, const insn* i, uint32_t mask)
{
    const uint64_t window = window_of(i->space);
    const lane64* a = reg64(w, &i->o[1]);
    uint32_t r = 0;
    EACH_LANE r |= (uint32_t)(a[l] >> 56 == window >> 56) << l;
    pred_write(w, &i->o[0], r, mask);
}

static handler choose_isspacep(const words* m, insn* i)
{
    return m->num_types == 0 && i->space != SPACE_GENERIC ? run_isspacep : NULL;
}

// MOV: what was never written stays unwritten, and is not a fault until it is used.

static void copy_defined(warp* w, const operand* d, const operand* s, uint32_t mask)
{
    if (d->sink) return;
    w->defined[d->id] &= ~(mask & ~w->defined[s->id]);
}

static void mov_32(warp* w, const insn* i, uint32_t mask)
{
    const lane32* a = reg32(w, &i->o[1]);
    uint32_t r[32];
    EACH_LANE r[l] = a[l];
    put32(w, &i->o[0], r, mask);
    copy_defined(w, &i->o[0], &i->o[1], mask);
}

static void mov_64(warp* w, const insn* i, uint32_t mask)
{
    const lane64* a = reg64(w, &i->o[1]);
    uint64_t r[32];
    EACH_LANE r[l] = a[l];
    put64(w, &i->o[0], r, mask);
    copy_defined(w, &i->o[0], &i->o[1], mask);
}

static void mov_pred(warp* w, const insn* i, uint32_t mask)
{
    const operand* a = &i->o[1];
    const uint32_t value = a->kind == OPERAND_PRED ? pred_read(w, a) : reg32(w, a)[0] ? ~0u : 0;
    pred_write(w, &i->o[0], value, mask);
    copy_defined(w, &i->o[0], a, mask);
}

static void mov_pack(warp* w, const insn* i, uint32_t mask)
{
    const operand* s = &i->o[1];
    const uint32_t bits = type_bytes(i->type) * 8 / (uint32_t)s->count;
    const uint64_t field = ((uint64_t)1 << bits) - 1;
    EACH_LANE LANE_IN(mask) {
        uint64_t r = 0;
        for (int k = 0; k < s->count; ++k) {
            r |= (get_lane(w, &s->list[k], l) & field) << bits * (uint32_t)k;
        }
        set_lane(w, &i->o[0], l, r);
    }
    for (int k = 0; k < s->count; ++k) copy_defined(w, &i->o[0], &s->list[k], mask);
}

static void mov_unpack(warp* w, const insn* i, uint32_t mask)
{
    const operand* d = &i->o[0];
    const uint32_t bits = type_bytes(i->type) * 8 / (uint32_t)d->count;
    const uint64_t field = ((uint64_t)1 << bits) - 1;
    EACH_LANE LANE_IN(mask) {
        const uint64_t a = get_lane(w, &i->o[1], l);
        for (int k = 0; k < d->count; ++k) {
            if (!d->list[k].sink) set_lane(w, &d->list[k], l, a >> bits * (uint32_t)k & field);
        }
    }
    for (int k = 0; k < d->count; ++k) copy_defined(w, &d->list[k], &i->o[1], mask);
}

static void run_mov(warp* w, const insn* i, uint32_t mask)
{
    if (i->o[0].kind == OPERAND_VECTOR) {
        mov_unpack(w, i, mask);
    } else if (i->o[1].kind == OPERAND_VECTOR) {
        mov_pack(w, i, mask);
    } else if (i->o[0].width == 8 && i->o[1].width == 8) {
        mov_64(w, i, mask);
    } else if (i->o[0].width == 4 && i->o[1].width == 4) {
        mov_32(w, i, mask);
    } else {
        EACH_LANE LANE_IN(mask) set_lane(w, &i->o[0], l, get_lane(w, &i->o[1], l));
        copy_defined(w, &i->o[0], &i->o[1], mask);
    }
}

static handler choose_mov(const words* m, insn* i)
{
    (void)i;
    if (m->num_types != 1) return NULL;
    return m->types[0] == T_PRED ? mov_pred : run_mov;
}

const op_entry convert_ops[] = {
    { "cvt", "rn rz rm rp rna rni rzi rmi rpi ftz sat relu satfinite pack", choose_cvt,
      PTXSIM_FLOAT, 1 },
    { "cvta", "to global shared shared::cta local const param", choose_cvta, PTXSIM_INTEGER, 1 },
    { "isspacep", "global shared shared::cta local const param", choose_isspacep, PTXSIM_INTEGER,
      1 },
    { "mov", "", choose_mov, PTXSIM_INTEGER, 1 },
    { NULL, NULL, NULL, 0, 0 },
};
