// exec_mma.c -- matrix instructions of a whole warp: mma.sync, ldmatrix, stmatrix, movmatrix.
//
// Lane l is row l/4 of a fragment and its column pair or quad l%4:
//     A  16 x K: register 0 row l/4, 1 row l/4 + 8, then the same for the second half of K
//     B  K x 8:  register r holds K/2 * r + the same columns of K, of column l/4
//     C  16 x 8: registers 0 1 row l/4, columns 2(l%4) and the next; 2 3 row l/4 + 8
// Sums of integers are exact.  Those of floats are a device's, as far as tests of devices tell
// (MMA-Sim, arXiv:2511.10909): a few products and c are cut at some bits below the greatest
// exponent among them, and added; then the next few, with that sum for c.  The exponent of a
// product is that of its factors together, and a factor below the least normal number has the
// exponent of that one.

#include "sim.h"

#include <math.h>
#include <string.h>

enum { MOST_K = 32 };

// False: not yet.
static bool is_whole(warp* w, uint32_t mask)
{
    if (mask == 0xffffffffu) return true;
    if (warp_steps_back(w, mask)) return false;
    fault(w, FAULT_FAILED, first_lane(mask), "a matrix instruction of lanes 0x%08x alone", mask);
}

static double element(type t, uint32_t bits, int at)
{
    const uint32_t half = bits >> 16 * (at & 1) & 0xffffu;
    switch (t) {
    case T_BF16: return (double)bf16_to_float(half);
    case T_F16: return (double)f16_to_float(half);
    case T_E4M3: return unpack_double(&format_e4m3, bits >> 8 * (at & 3) & 0xff);
    case T_E5M2: return unpack_double(&format_e5m2, bits >> 8 * (at & 3) & 0xff);
    case T_S8: return (int8_t)(bits >> 8 * (at & 3));
    default: return (uint8_t)(bits >> 8 * (at & 3));
    }
}

static const operand* part(const operand* o, int k)
{
    return o->kind == OPERAND_VECTOR ? &o->list[k] : o;
}

static int parts(const operand* o) { return o->kind == OPERAND_VECTOR ? o->count : 1; }

// The registers of A by rows: rows 8 or 16.
static void read_a(const warp* w, const insn* i, int rows, double a[16][MOST_K])
{
    const operand* o = &i->o[1];
    const int per = type_bytes(i->type) == 2 ? 2 : 4, halves = rows / 8;
    for (int r = 0; r < parts(o); ++r) {
        const lane32* bits = reg32(w, part(o, r));
        EACH_LANE for (int e = 0; e < per; ++e) {
            a[l / 4 + 8 * (r % halves)][4 * per * (r / halves) + per * (l % 4) + e] =
                element(i->type, bits[l], e);
        }
    }
}

static void read_b(const warp* w, const insn* i, double b[MOST_K][8])
{
    const operand* o = &i->o[2];
    const int per = type_bytes(i->type2) == 2 ? 2 : 4;
    for (int r = 0; r < parts(o); ++r) {
        const lane32* bits = reg32(w, part(o, r));
        EACH_LANE for (int e = 0; e < per; ++e) {
            b[4 * per * r + per * (l % 4) + e][l / 4] = element(i->type2, bits[l], e);
        }
    }
}

// sub: K; sub2: bit 0 satfinite, bit 1 an f16 accumulator, bit 2 an s32 one
static void read_c(const warp* w, const insn* i, double c[16][8])
{
    const operand* o = &i->o[3];
    for (int r = 0; r < parts(o); ++r) {
        const lane32* bits = reg32(w, part(o, r));
        EACH_LANE {
            if (i->sub2 & 2) {
                c[l / 4 + 8 * r][l % 4 * 2] = (double)f16_to_float(bits[l] & 0xffffu);
                c[l / 4 + 8 * r][l % 4 * 2 + 1] = (double)f16_to_float(bits[l] >> 16);
            } else {
                c[l / 4 + 8 * (r / 2)][l % 4 * 2 + r % 2] = i->sub2 & 4 ?
                    (double)(int32_t)bits[l] : (double)float_of_bits(bits[l]);
            }
        }
    }
}

static uint32_t integer_result(const insn* i, double x)
{
    // At most 2^31 + 32 * 255 * 255: exact in a double.
    if (i->sub2 & 1) {
        if (x > 2147483647.0) x = 2147483647.0;
        if (x < -2147483648.0) x = -2147483648.0;
    }
    return (uint32_t)(int64_t)x;
}

static uint32_t float_result(double x)
{
    const float f = (float)x;
    return f != f ? 0x7fffffffu : bits_of_float(f);
}

static void write_d(warp* w, const insn* i, double d[16][8])
{
    const operand* o = &i->o[0];
    for (int r = 0; r < parts(o); ++r) {
        uint32_t bits[32];
        EACH_LANE {
            if (i->sub2 & 2) {
                const double* pair = &d[l / 4 + 8 * r][l % 4 * 2];
                bits[l] = float_to_f16(pair[0]) | float_to_f16(pair[1]) << 16;
            } else {
                const double x = d[l / 4 + 8 * (r / 2)][l % 4 * 2 + r % 2];
                bits[l] = i->sub2 & 4 ? integer_result(i, x) : float_result(x);
            }
        }
        put32(w, part(o, r), bits, 0xffffffffu);
    }
}

// How floats are added: products at a time, bits below the greatest exponent, bits of a result's
// fraction; the least exponents of factors and of c.
typedef struct adder {
    int products, bits, fraction_bits, least[2], least_c;
} adder;

static int least_exponent(type t)
{
    return t == T_BF16 ? -126 : t == T_E4M3 ? -6 : -14;
}

static adder adder_of(const insn* i, int sm)
{
    const bool bytes = type_bytes(i->type) == 1;
    adder how = { 8, 24, 23, { least_exponent(i->type), least_exponent(i->type2) }, -126 };
    if (sm >= 90) how.products = bytes ? 32 : 16, how.bits = 25;
    else if (bytes) how.products = 16, how.bits = how.fraction_bits = 13;
    if (how.products > i->sub) how.products = i->sub;
    if (i->sub2 & 2) how.fraction_bits = 10, how.least_c = -14;
    return how;
}

// 2^exponent.  Of zero next to nothing, but by infinity it is infinite.
static double unit_of(double x, int least)
{
    if (x == 0) return 0x1p-600;
    const int exponent = (int)(bits_of_double(x) >> 52 & 0x7ff) - 1023;
    return double_of_bits((uint64_t)((exponent < least ? least : exponent) + 1023) << 52);
}

// An f16 is the nearest, a float is cut.
static double rounded_sum(const adder* how, double x)
{
    if (how->fraction_bits == 10) return (double)f16_to_float(float_to_f16(x));
    if (fabs(x) < 0x1p-126) {
        const uint64_t bits = pack_double(&format_f32, x, ROUND_ZERO, false);
        return (double)float_of_bits((uint32_t)bits);
    }
    const double cut = double_of_bits(bits_of_double(x) >> (52 - how->fraction_bits)
                                                            << (52 - how->fraction_bits));
    return (double)(float)cut;
}

// Sums of one row: products a [products], b [products][8] of these units join c [8].
static void add_products(const adder* how, const double* a, const double* a_unit,
                         double (*b)[8], double (*b_unit)[8], double* c)
{
    double top[8], scale[8], sum[8];
    bool is_finite = true;
    for (int n = 0; n < 8; ++n) top[n] = unit_of(c[n], how->least_c);
    for (int k = 0; k < how->products; ++k) {
        for (int n = 0; n < 8; ++n) {
            const double unit = a_unit[k] * b_unit[k][n];
            top[n] = unit > top[n] ? unit : top[n];
        }
    }
    for (int n = 0; n < 8; ++n) {
        is_finite = is_finite && top[n] < (double)INFINITY;
        scale[n] = (double)(1 << how->bits) / top[n];
        sum[n] = c[n];
    }
    for (int k = 0; k < how->products && !is_finite; ++k) {
        for (int n = 0; n < 8; ++n) sum[n] += a[k] * b[k][n];
    }
    for (int n = 0; n < 8 && is_finite; ++n) sum[n] = (int32_t)(sum[n] * scale[n]);
    for (int k = 0; k < how->products && is_finite; ++k) {
        for (int n = 0; n < 8; ++n) sum[n] += (int32_t)(a[k] * b[k][n] * scale[n]);
    }
    for (int n = 0; n < 8; ++n) {
        c[n] = rounded_sum(how, is_finite ? sum[n] / scale[n] : sum[n]);
    }
}

static void add_floats(const adder* how, int rows, int all, double (*a)[MOST_K], double (*b)[8],
                       double (*c)[8])
{
    double b_unit[MOST_K][8];
    for (int k = 0; k < all; ++k) {
        for (int n = 0; n < 8; ++n) b_unit[k][n] = unit_of(b[k][n], how->least[1]);
    }
    for (int m = 0; m < rows; ++m) {
        double a_unit[MOST_K];
        for (int k = 0; k < all; ++k) a_unit[k] = unit_of(a[m][k], how->least[0]);
        for (int k = 0; k < all; k += how->products) {
            add_products(how, a[m] + k, a_unit + k, b + k, b_unit + k, c[m]);
        }
    }
}

static void add_integers(int rows, int all, double (*a)[MOST_K], double (*b)[8], double (*c)[8])
{
    for (int m = 0; m < rows; ++m) {
        for (int k = 0; k < all; ++k) {
            for (int n = 0; n < 8; ++n) c[m][n] += a[m][k] * b[k][n];
        }
    }
}

// round: 8 rows (ROUND_ZERO) or 16
static void run_mma(warp* w, const insn* i, uint32_t mask)
{
    if (!is_whole(w, mask)) return;
    double a[16][MOST_K], b[MOST_K][8], c[16][8];
    const int rows = i->round == ROUND_ZERO ? 8 : 16;
    read_a(w, i, rows, a);
    read_b(w, i, b);
    read_c(w, i, c);
    if (i->sub2 & 4) {
        add_integers(rows, i->sub, a, b, c);
    } else {
        const adder how = adder_of(i, w->cta->launch->sm);
        add_floats(&how, rows, i->sub, a, b, c);
    }
    write_d(w, i, c);
}

static bool is_byte(type t) { return t == T_S8 || t == T_U8; }

static bool is_fp8(type t) { return t == T_E4M3 || t == T_E5M2; }

// Types are in the order of D, A, B, C.
static handler choose_mma(const words* m, insn* i)
{
    static const struct { const char* shape; int rows, k; bool bytes; } shapes[] = {
        { "m16n8k16", 16, 16, false }, { "m16n8k8", 16, 8, false }, { "m16n8k32", 16, 32, true },
        { "m16n8k16", 16, 16, true }, { "m8n8k16", 8, 16, true },
    };
    if (m->num_types != 4 || !has(m, "sync") || !has(m, "row") || !has(m, "col")) return NULL;
    const type d = m->types[0], a = m->types[1], b = m->types[2];
    const bool integers = is_byte(a) && is_byte(b), bytes = integers || (is_fp8(a) && is_fp8(b));
    if (d != m->types[3] || (!bytes && (a != b || (a != T_F16 && a != T_BF16)))) return NULL;
    if (integers ? d != T_S32 : d != T_F32 && !(d == T_F16 && a != T_BF16)) return NULL;
    if (has(m, "satfinite") && !integers) return NULL;
    for (size_t k = 0; k < COUNT(shapes); ++k) {
        if (!has(m, shapes[k].shape) || shapes[k].bytes != bytes) continue;
        i->type = a, i->type2 = b;
        i->sub = (uint8_t)shapes[k].k;
        i->sub2 = (uint8_t)((has(m, "satfinite") ? 1 : 0) | (d == T_F16 ? 2 : 0) |
                            (d == T_S32 ? 4 : 0));
        i->round = shapes[k].rows == 8 ? ROUND_ZERO : ROUND_NEAREST;
        return run_mma;
    }
    return NULL;
}

// 8 x 8 MATRICES OF 16 BITS: lane l holds row l/4, columns 2(l%4) and the next

static void row_addresses(warp* w, const insn* i, const operand* o, int count, uint64_t* address)
{
    uint32_t mask = count == 4 ? 0xffffffffu : (1u << 8 * count) - 1;
    EACH_LANE address[l] = get_lane(w, o, l) + (uint64_t)o->offset;
    ++w->cta->time;
    for (int k = 0; k < count; ++k) {
        count_shared(w, address, 16, mask & 0xffu << 8 * k);
    }
    (void)i;
}

// sub: matrices; sub2: transposed
static void run_ldmatrix(warp* w, const insn* i, uint32_t mask)
{
    if (!is_whole(w, mask)) return;
    const operand* o = &i->o[1];
    uint64_t address[32];
    row_addresses(w, i, o, i->sub, address);
    const space where = i->space == SPACE_GENERIC ? o->space : i->space;
    for (int k = 0; k < i->sub; ++k) {
        uint16_t rows[8][8];
        for (int r = 0; r < 8; ++r) {
            const int lane = 8 * k + r;
            memcpy(rows[r], reach(w, lane, where, address[lane], 16, ACCESS_READ, NULL), 16);
        }
        uint32_t bits[32];
        EACH_LANE {
            const int row = l / 4, column = l % 4 * 2;
            bits[l] = i->sub2 ? rows[column][row] | (uint32_t)rows[column + 1][row] << 16 :
                rows[row][column] | (uint32_t)rows[row][column + 1] << 16;
        }
        put32(w, part(&i->o[0], k), bits, 0xffffffffu);
    }
}

static void run_stmatrix(warp* w, const insn* i, uint32_t mask)
{
    if (!is_whole(w, mask)) return;
    const operand* o = &i->o[0];
    uint64_t address[32];
    row_addresses(w, i, o, i->sub, address);
    const space where = i->space == SPACE_GENERIC ? o->space : i->space;
    for (int k = 0; k < i->sub; ++k) {
        uint16_t rows[8][8];
        const lane32* bits = reg32(w, part(&i->o[1], k));
        EACH_LANE for (int e = 0; e < 2; ++e) {
            const int row = l / 4, column = l % 4 * 2 + e;
            const uint16_t x = (uint16_t)(bits[l] >> 16 * e);
            if (i->sub2) {
                rows[column][row] = x;
            } else {
                rows[row][column] = x;
            }
        }
        for (int r = 0; r < 8; ++r) {
            const int lane = 8 * k + r;
            memcpy(reach(w, lane, where, address[lane], 16, ACCESS_WRITE, rows[r]), rows[r], 16);
        }
    }
}

static void run_movmatrix(warp* w, const insn* i, uint32_t mask)
{
    if (!is_whole(w, mask)) return;
    const lane32* a = reg32(w, &i->o[1]);
    uint32_t bits[32];
    EACH_LANE {
        const int row = l / 4, column = l % 4 * 2, shift = 16 * (row & 1);
        const uint32_t low = a[4 * column + row / 2] >> shift & 0xffffu;
        bits[l] = low | (a[4 * (column + 1) + row / 2] >> shift & 0xffffu) << 16;
    }
    put32(w, &i->o[0], bits, 0xffffffffu);
}

static handler choose_matrix(const words* m, insn* i)
{
    if (m->num_types != 1 || m->types[0] != T_B16) return NULL;
    if (!has(m, "sync") || !has(m, "m8n8")) return NULL;
    i->sub = has(m, "x4") ? 4 : has(m, "x2") ? 2 : 1;
    i->sub2 = has(m, "trans");
    switch (m->base[0]) {
    case 'l': return run_ldmatrix;
    case 's': return run_stmatrix;
    default: return i->sub2 ? run_movmatrix : NULL;
    }
}

const op_entry mma_ops[] = {
    { "mma", "sync aligned m16n8k16 m16n8k8 m16n8k32 m8n8k16 row col satfinite", choose_mma,
      PTXSIM_TENSOR, 1 },
    { "ldmatrix", "sync aligned m8n8 x1 x2 x4 trans shared shared::cta", choose_matrix,
      PTXSIM_MEMORY, 1 },
    { "stmatrix", "sync aligned m8n8 x1 x2 x4 trans shared shared::cta", choose_matrix,
      PTXSIM_MEMORY, 0 },
    { "movmatrix", "sync aligned m8n8 trans", choose_matrix, PTXSIM_TENSOR, 1 },
    { NULL, NULL, NULL, 0, 0 },
};
