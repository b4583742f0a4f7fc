// exec_int.c -- integer and bit instructions.
//
// A macro makes one handler a width (and sign).  a, b, c are the operands as the instruction's
// type; the value is cut to the width.  16-bit registers are stored zero-extended.

#include "sim.h"

#include <string.h>

__extension__ typedef __int128 wide_s64;
__extension__ typedef unsigned __int128 wide_u64;

#define OPERATION(NAME, LANE, GET, PUT, UNSIGNED, TYPE, EXPRESSION)                                \
    static void NAME(warp* w, const insn* i, uint32_t mask)                                        \
    {                                                                                              \
        const LANE *pa = GET(w, &i->o[1]), *pb = GET(w, &i->o[2]), *pc = GET(w, &i->o[3]);         \
        UNSIGNED r[32];                                                                            \
        EACH_LANE {                                                                                \
            const TYPE a = (TYPE)pa[l], b = (TYPE)pb[l], c = (TYPE)pc[l];                          \
            (void)a, (void)b, (void)c;                                                             \
            r[l] = (UNSIGNED)(EXPRESSION);                                                         \
        }                                                                                          \
        PUT(w, &i->o[0], r, mask);                                                                 \
    }

static inline void put16(warp* w, const operand* o, uint32_t* r, uint32_t mask)
{
    EACH_LANE r[l] &= 0xffffu;
    put32(w, o, r, mask);
}

// The result does not depend on the sign: computed in unsigned words.
#define FAMILY_BITS(NAME, EXPRESSION)                                                              \
    OPERATION(NAME##_16, lane32, reg32, put16, uint32_t, uint32_t, EXPRESSION)                     \
    OPERATION(NAME##_32, lane32, reg32, put32, uint32_t, uint32_t, EXPRESSION)                     \
    OPERATION(NAME##_64, lane64, reg64, put64, uint64_t, uint64_t, EXPRESSION)

#define FAMILY_SIGNED(NAME, EXPRESSION)                                                            \
    OPERATION(NAME##_u16, lane32, reg32, put16, uint32_t, uint16_t, EXPRESSION)                    \
    OPERATION(NAME##_u32, lane32, reg32, put32, uint32_t, uint32_t, EXPRESSION)                    \
    OPERATION(NAME##_u64, lane64, reg64, put64, uint64_t, uint64_t, EXPRESSION)                    \
    OPERATION(NAME##_s16, lane32, reg32, put16, uint32_t, int16_t, EXPRESSION)                     \
    OPERATION(NAME##_s32, lane32, reg32, put32, uint32_t, int32_t, EXPRESSION)                     \
    OPERATION(NAME##_s64, lane64, reg64, put64, uint64_t, int64_t, EXPRESSION)

FAMILY_BITS(add, a + b)
FAMILY_BITS(sub, a - b)
FAMILY_BITS(mul_lo, a * b)
FAMILY_BITS(mad_lo, a * b + c)
FAMILY_BITS(and, a & b)
FAMILY_BITS(or, a | b)
FAMILY_BITS(xor, a ^ b)
FAMILY_BITS(not, ~a)
FAMILY_BITS(neg, 0 - a)
FAMILY_BITS(cnot, a == 0)
FAMILY_SIGNED(min, a < b ? a : b)
FAMILY_SIGNED(max, a > b ? a : b)
// The quotient by zero is all ones, the remainder the dividend; the one overflow wraps.
#define IS_MINUS_ONE(b) ((b) < 1 && (b) == (__typeof__(b))-1)
FAMILY_SIGNED(div, b == 0 ? (__typeof__(a))-1 : IS_MINUS_ONE(b) ? (__typeof__(a))(0 - (uint64_t)a)
                                                                 : (__typeof__(a))(a / b))
FAMILY_SIGNED(rem, b == 0 ? a : IS_MINUS_ONE(b) ? 0 : (__typeof__(a))(a % b))

OPERATION(abs_s16, lane32, reg32, put16, uint32_t, int16_t, a < 0 ? 0 - (uint32_t)a : (uint32_t)a)
OPERATION(abs_s32, lane32, reg32, put32, uint32_t, int32_t, a < 0 ? 0 - (uint32_t)a : (uint32_t)a)
OPERATION(abs_s64, lane64, reg64, put64, uint64_t, int64_t, a < 0 ? 0 - (uint64_t)a : (uint64_t)a)

OPERATION(mul_hi_u16, lane32, reg32, put16, uint32_t, uint32_t, (a * b) >> 16)
OPERATION(mul_hi_s16, lane32, reg32, put16, uint32_t, int16_t, (a * b) >> 16)
OPERATION(mul_hi_u32, lane32, reg32, put32, uint32_t, uint32_t, ((uint64_t)a * b) >> 32)
OPERATION(mul_hi_s32, lane32, reg32, put32, uint32_t, int32_t, ((int64_t)a * b) >> 32)
OPERATION(mul_hi_u64, lane64, reg64, put64, uint64_t, uint64_t, ((wide_u64)a * b) >> 64)
OPERATION(mul_hi_s64, lane64, reg64, put64, uint64_t, int64_t, ((wide_s64)a * b) >> 64)
OPERATION(mad_hi_u32, lane32, reg32, put32, uint32_t, uint32_t, (((uint64_t)a * b) >> 32) + c)
OPERATION(mad_hi_s32, lane32, reg32, put32, uint32_t, int32_t, (((int64_t)a * b) >> 32) + c)
OPERATION(mad_hi_u64, lane64, reg64, put64, uint64_t, uint64_t, (((wide_u64)a * b) >> 64) + c)
OPERATION(mad_hi_s64, lane64, reg64, put64, uint64_t, int64_t,
          (uint64_t)(((wide_s64)a * b) >> 64) + (uint64_t)c)
OPERATION(wide_u16, lane32, reg32, put32, uint32_t, uint32_t, a * b)
OPERATION(wide_s16, lane32, reg32, put32, uint32_t, int16_t, a * b)
OPERATION(mad_sat_s32, lane32, reg32, put32, uint32_t, int32_t,
          (((int64_t)a * b) >> 32) + c > INT32_MAX ? INT32_MAX :
          (((int64_t)a * b) >> 32) + c < INT32_MIN ? INT32_MIN : (((int64_t)a * b) >> 32) + c)
OPERATION(add_sat_s32, lane32, reg32, put32, uint32_t, int32_t,
          (int64_t)a + b > INT32_MAX ? INT32_MAX : (int64_t)a + b < INT32_MIN ? INT32_MIN :
          (int64_t)a + b)
OPERATION(sub_sat_s32, lane32, reg32, put32, uint32_t, int32_t,
          (int64_t)a - b > INT32_MAX ? INT32_MAX : (int64_t)a - b < INT32_MIN ? INT32_MIN :
          (int64_t)a - b)

static inline int32_t low_24(int32_t x) { return (int32_t)((uint32_t)x << 8) >> 8; }

// 24-bit products.
OPERATION(mul24_u32, lane32, reg32, put32, uint32_t, uint32_t, (a & 0xffffffu) * (b & 0xffffffu))
OPERATION(mul24_s32, lane32, reg32, put32, uint32_t, int32_t,
          (uint32_t)low_24(a) * (uint32_t)low_24(b))

static inline uint32_t sum_of_differences(uint32_t a, uint32_t b) { return a > b ? a - b : b - a; }

OPERATION(sad_u32, lane32, reg32, put32, uint32_t, uint32_t, c + sum_of_differences(a, b))
OPERATION(sad_s32, lane32, reg32, put32, uint32_t, int32_t,
          (uint32_t)c + (a > b ? (uint32_t)a - (uint32_t)b : (uint32_t)b - (uint32_t)a))

// The 64-bit product of 32-bit operands; the sum takes a 64-bit third.
#define WIDE(NAME, TYPE, WIDER)                                                                    \
    static void NAME(warp* w, const insn* i, uint32_t mask)                                        \
    {                                                                                              \
        const lane32 *pa = reg32(w, &i->o[1]), *pb = reg32(w, &i->o[2]);                           \
        const lane64* pc = reg64(w, &i->o[3]);                                                     \
        const bool add = i->sub;                                                                   \
        uint64_t r[32];                                                                            \
        EACH_LANE r[l] = (uint64_t)((WIDER)(TYPE)pa[l] * (WIDER)(TYPE)pb[l]) + (add ? pc[l] : 0);  \
        put64(w, &i->o[0], r, mask);                                                               \
    }
WIDE(wide_u32, uint32_t, uint64_t)
WIDE(wide_s32, int32_t, int64_t)

#define WIDE_ADD_16(NAME, TYPE)                                                                    \
    static void NAME(warp* w, const insn* i, uint32_t mask)                                        \
    {                                                                                              \
        const lane32 *a = reg32(w, &i->o[1]), *b = reg32(w, &i->o[2]), *c = reg32(w, &i->o[3]);    \
        uint32_t r[32];                                                                            \
        EACH_LANE r[l] = (uint32_t)((int64_t)(TYPE)a[l] * (TYPE)b[l]) + c[l];                      \
        put32(w, &i->o[0], r, mask);                                                               \
    }
WIDE_ADD_16(mad_wide_u16, uint16_t)
WIDE_ADD_16(mad_wide_s16, int16_t)

// Shifts: the amount is a 32-bit register whatever the type, clamped at the width.
#define SHIFT(NAME, LANE, GET, PUT, UNSIGNED, TYPE, BITS, EXPRESSION)                              \
    static void NAME(warp* w, const insn* i, uint32_t mask)                                        \
    {                                                                                              \
        const LANE* pa = GET(w, &i->o[1]);                                                         \
        const lane32* pb = reg32(w, &i->o[2]);                                                     \
        UNSIGNED r[32];                                                                            \
        EACH_LANE {                                                                                \
            const TYPE a = (TYPE)pa[l];                                                            \
            const uint32_t n = pb[l] > BITS ? BITS : pb[l], last = n > BITS - 1 ? BITS - 1 : n;    \
            (void)n, (void)last;                                                                   \
            r[l] = (UNSIGNED)(EXPRESSION);                                                         \
        }                                                                                          \
        PUT(w, &i->o[0], r, mask);                                                                 \
    }
SHIFT(shl_16, lane32, reg32, put16, uint32_t, uint32_t, 16, a << n)
SHIFT(shl_32, lane32, reg32, put32, uint32_t, uint32_t, 32, n > 31 ? 0 : a << last)
SHIFT(shl_64, lane64, reg64, put64, uint64_t, uint64_t, 64, n > 63 ? 0 : a << last)
SHIFT(shr_u16, lane32, reg32, put16, uint32_t, uint32_t, 16, a >> n)
SHIFT(shr_u32, lane32, reg32, put32, uint32_t, uint32_t, 32, n > 31 ? 0 : a >> last)
SHIFT(shr_u64, lane64, reg64, put64, uint64_t, uint64_t, 64, n > 63 ? 0 : a >> last)
SHIFT(shr_s16, lane32, reg32, put16, uint32_t, int16_t, 16, a >> last)
SHIFT(shr_s32, lane32, reg32, put32, uint32_t, int32_t, 32, a >> last)
SHIFT(shr_s64, lane64, reg64, put64, uint64_t, int64_t, 64, a >> last)

// BITS

static inline uint32_t reverse32(uint32_t x)
{
    uint32_t r = 0;
    for (int k = 0; k < 32; ++k) r |= (x >> k & 1u) << (31 - k);
    return r;
}

static inline uint64_t reverse64(uint64_t x)
{
    return (uint64_t)reverse32((uint32_t)x) << 32 | reverse32((uint32_t)(x >> 32));
}

static inline int leading64(uint64_t x) { return x ? __builtin_clzll(x) : 64; }

OPERATION(brev_32, lane32, reg32, put32, uint32_t, uint32_t, reverse32(a))
OPERATION(brev_64, lane64, reg64, put64, uint64_t, uint64_t, reverse64(a))
OPERATION(clz_32, lane32, reg32, put32, uint32_t, uint32_t, a ? __builtin_clz(a) : 32)
OPERATION(popc_32, lane32, reg32, put32, uint32_t, uint32_t, __builtin_popcount(a))

#define NARROWED(NAME, EXPRESSION)                                                                 \
    static void NAME(warp* w, const insn* i, uint32_t mask)                                        \
    {                                                                                              \
        const lane64* pa = reg64(w, &i->o[1]);                                                     \
        uint32_t r[32];                                                                            \
        EACH_LANE { const uint64_t a = pa[l]; r[l] = (uint32_t)(EXPRESSION); }                     \
        put32(w, &i->o[0], r, mask);                                                               \
    }
NARROWED(clz_64, leading64(a))
NARROWED(popc_64, __builtin_popcountll(a))

// Position of the highest bit that differs from the sign, all ones if there is none.
static uint32_t find_bit(uint64_t a, uint32_t bits, bool is_signed, bool amount)
{
    if (is_signed && a >> (bits - 1) & 1) a = ~a & (bits == 64 ? UINT64_MAX : 0xffffffffu);
    if (!a) return 0xffffffffu;
    const uint32_t at = 63u - (uint32_t)leading64(a);
    return amount ? bits - 1 - at : at;
}

// sub: shiftamt
static void run_bfind(warp* w, const insn* i, uint32_t mask)
{
    const uint32_t bits = type_bytes(i->type) * 8;
    uint32_t r[32];
    EACH_LANE {
        const uint64_t a = bits == 64 ? reg64(w, &i->o[1])[l] : reg32(w, &i->o[1])[l];
        r[l] = find_bit(a, bits, type_is_signed(i->type), i->sub);
    }
    put32(w, &i->o[0], r, mask);
}

static uint64_t extract(uint64_t a, uint32_t from, uint32_t length, uint32_t bits, bool is_signed)
{
    from &= 0xff, length &= 0xff;
    if (!length) return 0;
    const uint32_t last = from + length - 1 < bits - 1 ? from + length - 1 : bits - 1;
    const uint64_t sign = is_signed ? a >> last & 1 : 0;
    uint64_t r = sign ? UINT64_MAX : 0;
    for (uint32_t k = 0; k < length && from + k < bits && k < 64; ++k) {
        r = (r & ~((uint64_t)1 << k)) | (a >> (from + k) & 1) << k;
    }
    return r;
}

static void run_bfe(warp* w, const insn* i, uint32_t mask)
{
    const uint32_t bits = type_bytes(i->type) * 8;
    const lane32 *from = reg32(w, &i->o[2]), *length = reg32(w, &i->o[3]);
    EACH_LANE LANE_IN(mask) {
        const uint64_t r = extract(get_lane(w, &i->o[1], l), from[l], length[l], bits,
                                   type_is_signed(i->type));
        set_lane(w, &i->o[0], l, r);
    }
}

// a goes into b.
static void run_bfi(warp* w, const insn* i, uint32_t mask)
{
    const uint32_t bits = type_bytes(i->type) * 8;
    const lane32 *at = reg32(w, &i->o[3]), *count = reg32(w, &i->o[4]);
    EACH_LANE LANE_IN(mask) {
        const uint32_t from = at[l] & 0xff, length = count[l] & 0xff;
        const uint64_t a = get_lane(w, &i->o[1], l);
        uint64_t field = length > 63 ? UINT64_MAX : ((uint64_t)1 << length) - 1;
        field = from > bits - 1 ? 0 : field << from;
        const uint64_t b = get_lane(w, &i->o[2], l);
        set_lane(w, &i->o[0], l, (b & ~field) | (from > 63 ? 0 : a << from & field));
    }
}

static void run_lop3(warp* w, const insn* i, uint32_t mask)
{
    const lane32 *a = reg32(w, &i->o[1]), *b = reg32(w, &i->o[2]), *c = reg32(w, &i->o[3]);
    const uint32_t table = reg32(w, &i->o[4])[0];
    uint32_t r[32];
    EACH_LANE r[l] = 0;
    for (uint32_t k = 0; k < 8; ++k) {
        if (!(table >> k & 1)) continue;
        const uint32_t na = k & 4 ? 0 : ~0u, nb = k & 2 ? 0 : ~0u, nc = k & 1 ? 0 : ~0u;
        EACH_LANE r[l] |= (a[l] ^ na) & (b[l] ^ nb) & (c[l] ^ nc);
    }
    put32(w, &i->o[0], r, mask);
}

// sub: 0 the plain mode, 1 f4e, 2 b4e, 3 rc8, 4 ecl, 5 ecr, 6 rc16
static uint32_t permuted(uint32_t a, uint32_t b, uint32_t c, int mode)
{
    static const uint16_t selector[7][4] = {
        { 0, 0, 0, 0 }, { 0x3210, 0x4321, 0x5432, 0x6543 }, { 0x5670, 0x6701, 0x7012, 0x0123 },
        { 0x0000, 0x1111, 0x2222, 0x3333 }, { 0x3210, 0x3211, 0x3222, 0x3333 },
        { 0x0000, 0x1110, 0x2210, 0x3210 }, { 0x1010, 0x3232, 0x1010, 0x3232 },
    };
    const uint64_t bytes = (uint64_t)b << 32 | a;
    const uint32_t choice = mode ? selector[mode][c & 3] : c;
    uint32_t r = 0;
    for (int k = 0; k < 4; ++k) {
        const uint32_t nibble = choice >> (4 * k) & 15;
        uint32_t byte = (uint32_t)(bytes >> (8 * (nibble & 7))) & 0xff;
        if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
        r |= byte << (8 * k);
    }
    return r;
}

static void run_prmt(warp* w, const insn* i, uint32_t mask)
{
    const lane32 *a = reg32(w, &i->o[1]), *b = reg32(w, &i->o[2]), *c = reg32(w, &i->o[3]);
    uint32_t r[32];
    EACH_LANE r[l] = permuted(a[l], b[l], c[l], i->sub);
    put32(w, &i->o[0], r, mask);
}

// sub: 1 right; sub2: 1 wrap.  The value is b:a.
static void run_shf(warp* w, const insn* i, uint32_t mask)
{
    const lane32 *a = reg32(w, &i->o[1]), *b = reg32(w, &i->o[2]), *c = reg32(w, &i->o[3]);
    uint32_t r[32];
    EACH_LANE {
        const uint64_t both = (uint64_t)b[l] << 32 | a[l];
        const uint32_t n = i->sub2 ? c[l] & 31 : c[l] > 32 ? 32 : c[l];
        r[l] = i->sub ? (uint32_t)(both >> n) : (uint32_t)(both << n >> 32);
        if (!i->sub && n == 32) r[l] = a[l];
    }
    put32(w, &i->o[0], r, mask);
}

// DOT PRODUCTS

// sub: a signed, sub2: b signed
static void run_dp4a(warp* w, const insn* i, uint32_t mask)
{
    const lane32 *a = reg32(w, &i->o[1]), *b = reg32(w, &i->o[2]), *c = reg32(w, &i->o[3]);
    uint32_t r[32];
    EACH_LANE {
        uint32_t sum = c[l];
        for (int k = 0; k < 32; k += 8) {
            const int x = i->sub ? (int8_t)(a[l] >> k) : (uint8_t)(a[l] >> k);
            const int y = i->sub2 ? (int8_t)(b[l] >> k) : (uint8_t)(b[l] >> k);
            sum += (uint32_t)(x * y);
        }
        r[l] = sum;
    }
    put32(w, &i->o[0], r, mask);
}

// round: which half of b's bytes
static void run_dp2a(warp* w, const insn* i, uint32_t mask)
{
    const lane32 *a = reg32(w, &i->o[1]), *b = reg32(w, &i->o[2]), *c = reg32(w, &i->o[3]);
    const int half = i->round == ROUND_UP ? 16 : 0;
    uint32_t r[32];
    EACH_LANE {
        uint32_t sum = c[l];
        for (int k = 0; k < 2; ++k) {
            const int64_t x = i->sub ? (int16_t)(a[l] >> 16 * k) : (uint16_t)(a[l] >> 16 * k);
            const uint32_t byte = b[l] >> (half + 8 * k) & 0xff;
            sum += (uint32_t)(x * (i->sub2 ? (int8_t)byte : (int64_t)byte));
        }
        r[l] = sum;
    }
    put32(w, &i->o[0], r, mask);
}

// PAIRS OF 16 BITS

// sub: 0 add, 1 min, 2 max
static uint32_t pair_half(const insn* i, uint32_t a, uint32_t b)
{
    const bool is_signed = i->type == T_S16X2;
    const int x = is_signed ? (int16_t)a : (uint16_t)a, y = is_signed ? (int16_t)b : (uint16_t)b;
    const int r = i->sub == 0 ? x + y : (x < y) == (i->sub == 1) ? x : y;
    return i->relu && r < 0 ? 0 : (uint32_t)r & 0xffffu;
}

static void run_pair(warp* w, const insn* i, uint32_t mask)
{
    const lane32 *a = reg32(w, &i->o[1]), *b = reg32(w, &i->o[2]);
    uint32_t r[32];
    EACH_LANE r[l] = pair_half(i, a[l], b[l]) | pair_half(i, a[l] >> 16, b[l] >> 16) << 16;
    put32(w, &i->o[0], r, mask);
}

static handler choose_pair(const words* m, insn* i)
{
    if (m->num_types != 1 || (m->types[0] != T_U16X2 && m->types[0] != T_S16X2)) return NULL;
    i->sub = m->base[0] == 'a' ? 0 : m->base[1] == 'i' ? 1 : 2;
    return i->relu && i->sub == 0 ? NULL : run_pair;
}

// CARRIES

// sub: 1 subtract, 2 multiply low, 3 multiply high; sub2: bit 0 reads the carry, bit 1 writes it
static void run_carry(warp* w, const insn* i, uint32_t mask)
{
    const bool wide = type_bytes(i->type) == 8;
    EACH_LANE LANE_IN(mask) {
        uint64_t a = get_lane(w, &i->o[1], l), b = get_lane(w, &i->o[2], l);
        const wide_u64 carry = i->sub2 & 1 ? w->carry >> l & 1 : 0;
        if (i->sub > 1) {
            const bool is_signed = type_is_signed(i->type);
            const wide_u64 product = wide ? (is_signed ?
                (wide_u64)((wide_s64)(int64_t)a * (int64_t)b) : (wide_u64)a * b) :
                is_signed ? (wide_u64)((int64_t)(int32_t)a * (int32_t)b) : (wide_u64)(a * b);
            const int shift = i->sub == 3 ? (wide ? 64 : 32) : 0;
            a = (uint64_t)(product >> shift);
            if (!wide) a &= 0xffffffffu;
            b = get_lane(w, &i->o[3], l);
        }
        const wide_u64 sum = i->sub == 1 ? (wide_u64)a - b - carry : (wide_u64)a + b + carry;
        const uint32_t out = (uint32_t)(sum >> (wide ? 64 : 32)) & 1;
        if (i->sub2 & 2) w->carry = (w->carry & ~(1u << l)) | out << l;
        set_lane(w, &i->o[0], l, (uint64_t)sum);
    }
}

// PREDICATES

static void and_pred(warp* w, const insn* i, uint32_t mask)
{
    pred_write(w, &i->o[0], pred_read(w, &i->o[1]) & pred_read(w, &i->o[2]), mask);
}

static void or_pred(warp* w, const insn* i, uint32_t mask)
{
    pred_write(w, &i->o[0], pred_read(w, &i->o[1]) | pred_read(w, &i->o[2]), mask);
}

static void xor_pred(warp* w, const insn* i, uint32_t mask)
{
    pred_write(w, &i->o[0], pred_read(w, &i->o[1]) ^ pred_read(w, &i->o[2]), mask);
}

static void not_pred(warp* w, const insn* i, uint32_t mask)
{
    pred_write(w, &i->o[0], ~pred_read(w, &i->o[1]), mask);
}

// CHOICE

// Handlers by type: u16 u32 u64 s16 s32 s64.
typedef struct by_type { const char* base; const char* word; handler run[6]; } by_type;

#define BITS(NAME) { NAME##_16, NAME##_32, NAME##_64, NAME##_16, NAME##_32, NAME##_64 }
#define SIGNED(NAME) { NAME##_u16, NAME##_u32, NAME##_u64, NAME##_s16, NAME##_s32, NAME##_s64 }

static const by_type table[] = {
    { "add", "", BITS(add) }, { "sub", "", BITS(sub) }, { "mul", "lo", BITS(mul_lo) },
    { "mad", "lo", BITS(mad_lo) }, { "and", "", BITS(and) }, { "or", "", BITS(or) },
    { "xor", "", BITS(xor) }, { "not", "", BITS(not) }, { "neg", "", BITS(neg) },
    { "cnot", "", BITS(cnot) }, { "min", "", SIGNED(min) }, { "max", "", SIGNED(max) },
    { "div", "", SIGNED(div) }, { "rem", "", SIGNED(rem) }, { "mul", "hi", SIGNED(mul_hi) },
    { "mad", "hi", { NULL, mad_hi_u32, mad_hi_u64, NULL, mad_hi_s32, mad_hi_s64 } },
    { "mul", "wide", { wide_u16, wide_u32, NULL, wide_s16, wide_s32, NULL } },
    { "mad", "wide", { mad_wide_u16, wide_u32, NULL, mad_wide_s16, wide_s32, NULL } },
    { "abs", "", { NULL, NULL, NULL, abs_s16, abs_s32, abs_s64 } },
    { "shl", "", BITS(shl) }, { "shr", "", SIGNED(shr) },
    { "add", "sat", { NULL, NULL, NULL, NULL, add_sat_s32, NULL } },
    { "sub", "sat", { NULL, NULL, NULL, NULL, sub_sat_s32, NULL } },
    { "mul24", "lo", { NULL, mul24_u32, NULL, NULL, mul24_s32, NULL } },
    { "sad", "", { NULL, sad_u32, NULL, NULL, sad_s32, NULL } },
    { "brev", "", { NULL, brev_32, brev_64, NULL, NULL, NULL } },
    { "clz", "", { NULL, clz_32, clz_64, NULL, NULL, NULL } },
    { "popc", "", { NULL, popc_32, popc_64, NULL, NULL, NULL } },
};

static int type_column(type t)
{
    switch (t) {
    case T_B16: case T_U16: return 0;
    case T_B32: case T_U32: return 1;
    case T_B64: case T_U64: return 2;
    case T_S16: return 3;
    case T_S32: return 4;
    case T_S64: return 5;
    default: return -1;
    }
}

static handler choose_typed(const words* m, insn* i)
{
    const int column = m->num_types == 1 ? type_column(m->types[0]) : -1;
    if (column < 0 || m->num_words > 1) return NULL;
    for (size_t k = 0; k < COUNT(table); ++k) {
        if (strcmp(table[k].base, m->base) != 0) continue;
        if (strcmp(table[k].word, m->num_words ? m->word[0] : "") != 0) continue;
        i->sub = strcmp(m->base, "mad") == 0;
        return table[k].run[column];
    }
    return NULL;
}

static handler choose_mad_sat(const words* m, insn* i)
{
    (void)i;
    return has(m, "hi") && has(m, "sat") && m->types[0] == T_S32 ? mad_sat_s32 : NULL;
}

static handler choose_logic(const words* m, insn* i)
{
    if (m->num_types != 1 || m->types[0] != T_PRED) return choose_typed(m, i);
    switch (m->base[0]) {
    case 'a': return and_pred;
    case 'o': return or_pred;
    case 'x': return xor_pred;
    default: return not_pred;
    }
}

static handler choose_carry(const words* m, insn* i)
{
    const int column = m->num_types == 1 ? type_column(m->types[0]) : -1;
    if (column < 0 || column == 0 || column == 3) return NULL;
    const size_t length = strlen(m->base);
    i->sub = m->base[0] == 's' ? 1 : m->base[0] == 'm' ? (has(m, "hi") ? 3 : 2) : 0;
    i->sub2 = (uint8_t)((m->base[length - 1] == 'c' ? 1 : 0) | (has(m, "cc") ? 2 : 0));
    return i->sub2 ? run_carry : NULL;
}

static handler choose_bits(const words* m, insn* i)
{
    if (m->num_types != 1) return NULL;
    if (strcmp(m->base, "bfe") == 0) return run_bfe;
    if (strcmp(m->base, "bfi") == 0) return run_bfi;
    if (strcmp(m->base, "lop3") == 0) return m->types[0] == T_B32 ? run_lop3 : NULL;
    i->sub = has(m, "shiftamt");
    return run_bfind;
}

static handler choose_prmt(const words* m, insn* i)
{
    static const char* const modes[] = { "f4e", "b4e", "rc8", "ecl", "ecr", "rc16" };
    for (size_t k = 0; k < COUNT(modes); ++k) {
        if (has(m, modes[k])) i->sub = (uint8_t)(k + 1);
    }
    return m->num_types == 1 && m->types[0] == T_B32 ? run_prmt : NULL;
}

static handler choose_shf(const words* m, insn* i)
{
    i->sub = has(m, "r");
    i->sub2 = has(m, "wrap");
    return m->num_types == 1 && m->types[0] == T_B32 && has(m, "clamp") != has(m, "wrap") ? run_shf
                                                                                         : NULL;
}

static handler choose_dot(const words* m, insn* i)
{
    if (m->num_types != 2) return NULL;
    i->sub = type_is_signed(m->types[0]);
    i->sub2 = type_is_signed(m->types[1]);
    if (m->base[2] == '4') return m->num_words ? NULL : run_dp4a;
    i->round = has(m, "hi") ? ROUND_UP : ROUND_NEAREST;
    return run_dp2a;
}

const op_entry int_ops[] = {
    { "add", "sat", choose_typed, PTXSIM_INTEGER, 1 },
    { "sub", "sat", choose_typed, PTXSIM_INTEGER, 1 },
    { "add", "", choose_pair, PTXSIM_INTEGER, 1 },
    { "min", "relu", choose_pair, PTXSIM_INTEGER, 1 },
    { "max", "relu", choose_pair, PTXSIM_INTEGER, 1 },
    { "add", "cc", choose_carry, PTXSIM_INTEGER, 1 },
    { "addc", "cc", choose_carry, PTXSIM_INTEGER, 1 },
    { "sub", "cc", choose_carry, PTXSIM_INTEGER, 1 },
    { "subc", "cc", choose_carry, PTXSIM_INTEGER, 1 },
    { "mad", "cc lo hi", choose_carry, PTXSIM_INTEGER, 1 },
    { "madc", "cc lo hi", choose_carry, PTXSIM_INTEGER, 1 },
    { "mul", "lo hi wide", choose_typed, PTXSIM_INTEGER, 1 },
    { "mad", "lo hi wide", choose_typed, PTXSIM_INTEGER, 1 },
    { "mad", "hi sat", choose_mad_sat, PTXSIM_INTEGER, 1 },
    { "mul24", "lo", choose_typed, PTXSIM_INTEGER, 1 },
    { "sad", "", choose_typed, PTXSIM_INTEGER, 1 },
    { "div", "", choose_typed, PTXSIM_INTEGER, 1 },
    { "rem", "", choose_typed, PTXSIM_INTEGER, 1 },
    { "min", "", choose_typed, PTXSIM_INTEGER, 1 },
    { "max", "", choose_typed, PTXSIM_INTEGER, 1 },
    { "abs", "", choose_typed, PTXSIM_INTEGER, 1 },
    { "neg", "", choose_typed, PTXSIM_INTEGER, 1 },
    { "cnot", "", choose_typed, PTXSIM_INTEGER, 1 },
    { "shl", "", choose_typed, PTXSIM_INTEGER, 1 },
    { "shr", "", choose_typed, PTXSIM_INTEGER, 1 },
    { "brev", "", choose_typed, PTXSIM_INTEGER, 1 },
    { "clz", "", choose_typed, PTXSIM_INTEGER, 1 },
    { "popc", "", choose_typed, PTXSIM_INTEGER, 1 },
    { "and", "", choose_logic, PTXSIM_INTEGER, 1 },
    { "or", "", choose_logic, PTXSIM_INTEGER, 1 },
    { "xor", "", choose_logic, PTXSIM_INTEGER, 1 },
    { "not", "", choose_logic, PTXSIM_INTEGER, 1 },
    { "bfe", "", choose_bits, PTXSIM_INTEGER, 1 },
    { "bfi", "", choose_bits, PTXSIM_INTEGER, 1 },
    { "bfind", "shiftamt", choose_bits, PTXSIM_INTEGER, 1 },
    { "lop3", "", choose_bits, PTXSIM_INTEGER, 1 },
    { "prmt", "f4e b4e rc8 ecl ecr rc16", choose_prmt, PTXSIM_INTEGER, 1 },
    { "shf", "l r clamp wrap", choose_shf, PTXSIM_INTEGER, 1 },
    { "dp4a", "", choose_dot, PTXSIM_INTEGER, 1 },
    { "dp2a", "lo hi", choose_dot, PTXSIM_INTEGER, 1 },
    { NULL, NULL, NULL, 0, 0 },
};
