// kvl_ref.h -- every kernel in plain C from the codec's description: any shape, no generator.
//
// The path that always works, and what generated kernels are compared with.  One function a part;
// the arithmetic of each is defined in its file under gen/parts/.  Where encode is concerned, float
// operations and their order are part of the definition: every target must get the same bits.

#ifndef KVL_REF_H
#define KVL_REF_H

#include "kvl_args.h"
#include "kvl_layout.h"
#include "kvl_record.h"
#include "kvl_trellis.h"

// a * b + c must not be fused where codes are decided.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#endif

enum { KVL__MAX_HEADS = 16, KVL__GROUP_MOST = 4096 };

// Scale and offset as decoding uses them, and the factor that encoding multiplies with.
typedef struct kvl__grid {
    float scale, offset, inverse;
} kvl__grid;

// The greatest level: codes are levels, but where groups are paths.
KVL__FN int32_t kvl__code_max(const kvl__codec* c) { return (1 << kvl__level_bits(c)) - 1; }
KVL__FN float kvl__zero_code(const kvl__codec* c) { return (float)(1 << (kvl__level_bits(c) - 1)); }

// What is no number, as 0 times the infinite inverse of a tiny scale, becomes lo.
KVL__FN float kvl__clamp(float x, float lo, float hi) { return x > lo ? (x < hi ? x : hi) : lo; }

KVL__FN float kvl__row_to_f32(uint16_t x, int rows)
{
    return rows ? kvl__bf16_to_f32(x) : kvl__f16_to_f32(x);
}

// `num` values of rows that are finite, in loops that vectors run.  Those of f16 pass no subnormal
// float, which a process may flush.
KVL__FN void kvl__finite_to_f32(const uint16_t* from, int64_t num, int rows, float* x)
{
    if (rows)
        for (int64_t i = 0; i < num; ++i) x[i] = kvl__float_of((uint32_t)from[i] << 16);
    else
        for (int64_t i = 0; i < num; ++i) {
            const uint32_t size = from[i] & 0x7fffu, sign = from[i] & 0x8000u;
            const uint32_t normal = (size << 13) + 0x38000000u;         // 112: the biases differ so
            const float tiny = (float)(int32_t)size * 5.9604644775390625e-8f;      // 2^-24
            const uint32_t is_tiny = 0u - (uint32_t)(size < 0x400u);
            x[i] = kvl__float_of((kvl__bits_of(tiny) & is_tiny) | (normal & ~is_tiny) | sign << 16);
        }
}

// TRANSFORMS

// The bases that a side's rows may be in: as they are, pieces rotated, the head rotated.
enum { KVL__PLAIN, KVL__PIECES, KVL__HEAD, KVL__NUM_BASES };

// A choice: bit p for a rotated piece p, or this bit, for the head, alone.
#define KVL__HEAD_BIT 0x80000000u

// x [dim] in place: butterflies of stride 1, 2, 4, ... in each piece, then times 1 / sqrt(piece).
// Strides 1 and 2 together, so that vectors can run the other loops.
KVL__FN void kvl__hadamard(float* x, int32_t dim, int32_t piece)
{
    const float factor = (float)(1.0 / sqrt((double)piece));
    int32_t stride = 1;
    if (piece >= 4) {
        for (float* p = x; p < x + dim; p += 4) {
            const float a = p[0] + p[1], b = p[0] - p[1], c = p[2] + p[3], d = p[2] - p[3];
            p[0] = a + c;
            p[1] = b + d;
            p[2] = a - c;
            p[3] = b - d;
        }
        stride = 4;
    }
    for (; stride < piece; stride *= 2)
        for (int32_t first = 0; first < dim; first += 2 * stride) {
            float *low = x + first, *high = low + stride;
            for (int32_t i = 0; i < stride; ++i) {
                const float a = low[i], b = high[i];
                low[i] = a + b;
                high[i] = a - b;
            }
        }
    for (int32_t i = 0; i < dim; ++i) x[i] *= factor;
}

KVL__FN int32_t kvl__choice_piece(const kvl__codec* c) { return c->numbers[KVL__STAGE_CHOOSE]; }

KVL__FN int kvl__is_flagged(const kvl__codec* c)
{
    return c->words[KVL__STAGE_CHOOSE] == KVL__CHOOSE_UNIT;
}

// The basis of a channel under a choice.
KVL__FN int kvl__basis_of(const kvl__codec* c, uint32_t choice, int32_t channel)
{
    if (choice & KVL__HEAD_BIT) return KVL__HEAD;
    return choice >> (channel / kvl__choice_piece(c)) & 1u ? KVL__PIECES : KVL__PLAIN;
}

// x [dim] in place, into a choice's bases or out of them.
KVL__FN void kvl__rotate(const kvl__codec* c, uint32_t choice, float* x)
{
    const int32_t dim = c->head_dim, piece = kvl__choice_piece(c);
    if (choice & KVL__HEAD_BIT) {
        kvl__hadamard(x, dim, dim & -dim);
        return;
    }
    for (int32_t i = 0; choice && i < dim; i += piece)
        if (kvl__basis_of(c, choice, i) == KVL__PIECES) kvl__hadamard(x + i, piece, piece);
}

// Every piece of a choice.
KVL__FN uint32_t kvl__all_pieces(const kvl__codec* c)
{
    return (uint32_t)(((uint64_t)1 << (c->head_dim / kvl__choice_piece(c))) - 1u);
}

// The choice of a calibration: table choice has 1 where a piece, or behind them the head, is.
KVL__FN uint32_t kvl__fixed_choice(const kvl__codec* c, const float* tables)
{
    const float* choice = tables + kvl__table_at(c, "choice");
    const int32_t num_pieces = c->head_dim / kvl__choice_piece(c);
    uint32_t bits = 0;
    if (choice[num_pieces] != 0.0f) return KVL__HEAD_BIT;
    for (int32_t p = 0; p < num_pieces; ++p)
        if (choice[p] != 0.0f) bits |= 1u << p;
    return bits;
}

// A word with two tables is a dense transform: F, which rows are multiplied with, and Q of queries.
KVL__FN const float* kvl__dense_table(const kvl__codec* c, const float* tables, int which)
{
    const kvl__word* word = &kvl__stages[KVL__STAGE_TRANSFORM].words[kvl__transform_of(c)];
    return word->num_tables == 2 ? tables + kvl__table_at(c, word->tables[which].name) : NULL;
}

// x [dim] in place becomes x matrix; sums run in the order of channels.
KVL__FN void kvl__multiply(float* x, int32_t dim, const float* matrix)
{
    float y[KVL__MAX_HEAD_DIM] = { 0 };
    for (int32_t i = 0; i < dim; ++i)
        for (int32_t j = 0; j < dim; ++j) y[j] = fmaf(x[i], matrix[i * dim + j], y[j]);
    memcpy(x, y, (size_t)dim * sizeof *x);
}

// Times the signs of gen/parts/signed_hadamard.lua.
KVL__FN void kvl__flip(float* x, int32_t dim)
{
    for (int32_t i = 0; i < dim; ++i) {
        uint32_t h = (uint32_t)(i + 1) * 2654435761u;
        h = (h ^ h >> 15) * 2246822519u;
        h ^= h >> 13;
        if (h & 1u) x[i] = -x[i];
    }
}

// A row's channels in the order of the sets, or back as they were.
KVL__FN void kvl__order_sets(const kvl__codec* c, const float* tables, int back, float* x)
{
    const float* order = tables + kvl__table_at(c, "outlier_order");
    float y[KVL__MAX_STORED_DIM];
    for (int32_t i = 0; i < c->head_dim; ++i) {
        if (back) y[(int)order[i]] = x[i];
        else y[i] = x[(int)order[i]];
    }
    memcpy(x, y, (size_t)c->head_dim * sizeof *x);
}

KVL__FN void kvl__to_basis(const kvl__codec* c, const float* tables, float* x)
{
    if (kvl__is_split(c)) {
        kvl__order_sets(c, tables, 0, x);
        for (int set = 0; set < kvl__num_sets(c); ++set) {
            const kvl__codec s = kvl__set_of(c, set);
            kvl__to_basis(&s, tables, x);
            x += s.head_dim;
        }
        return;
    }
    const float* forward = kvl__dense_table(c, tables, 0);
    if (forward) kvl__multiply(x, c->head_dim, forward);
    if (kvl__transform_of(c) == KVL__TRANSFORM_HADAMARD)
        kvl__hadamard(x, c->head_dim, c->numbers[KVL__STAGE_TRANSFORM]);
    if (kvl__transform_of(c) == KVL__TRANSFORM_SIGNED_HADAMARD) {
        kvl__flip(x, c->head_dim);
        kvl__hadamard(x, c->head_dim, c->numbers[KVL__STAGE_TRANSFORM]);
    }
    if (c->words[KVL__STAGE_CHOOSE] == KVL__CHOOSE_FIXED)
        kvl__rotate(c, kvl__fixed_choice(c, tables), x);
}

// What channels are stored in units of; NULL: as they are.
KVL__FN const float* kvl__base_of(const kvl__codec* c, const float* tables)
{
    const char* base = kvl__base_table(c);
    return base ? tables + kvl__table_at(c, base) : NULL;
}

// Queries, whose products with rows of the basis are those with rows outside.
KVL__FN void kvl__query_to_basis(const kvl__codec* c, const float* tables, float* x)
{
    const float* query = kvl__dense_table(c, tables, 1);
    const float* base = kvl__base_of(c, tables);
    if (query) kvl__multiply(x, c->head_dim, query);
    else kvl__to_basis(c, tables, x);
    for (int32_t i = 0; base && i < c->head_dim; ++i) x[i] *= base[i];
}

// The Hadamard is its own inverse, and so are signs.
KVL__FN void kvl__from_basis(const kvl__codec* c, const float* tables, float* x)
{
    if (kvl__is_split(c)) {
        float* of = x;
        for (int set = 0; set < kvl__num_sets(c); ++set) {
            const kvl__codec s = kvl__set_of(c, set);
            kvl__from_basis(&s, tables, of);
            of += s.head_dim;
        }
        kvl__order_sets(c, tables, 1, x);
        return;
    }
    const float* query = kvl__dense_table(c, tables, 1);
    const float* base = kvl__base_of(c, tables);
    float y[KVL__MAX_HEAD_DIM] = { 0 };
    for (int32_t i = 0; base && i < c->head_dim; ++i) x[i] *= base[i];
    if (kvl__transform_of(c) == KVL__TRANSFORM_SIGNED_HADAMARD) {
        kvl__hadamard(x, c->head_dim, c->numbers[KVL__STAGE_TRANSFORM]);
        kvl__flip(x, c->head_dim);
        return;
    }
    if (!query) {
        kvl__to_basis(c, tables, x);
        return;
    }
    for (int32_t i = 0; i < c->head_dim; ++i)
        for (int32_t j = 0; j < c->head_dim; ++j) y[i] += query[i * c->head_dim + j] * x[j];
    memcpy(x, y, (size_t)c->head_dim * sizeof *x);
}

// SHIFT

// What is subtracted from rows [dim]; NULL: nothing.
KVL__FN const float* kvl__shift_of(const kvl__codec* c, const float* tables)
{
    if (c->words[KVL__STAGE_SHIFT] == KVL__SHIFT_MIDDLE)
        return tables + kvl__table_at(c, "static_middle");
    if (c->words[KVL__STAGE_SHIFT] != KVL__SHIFT_MEAN) return NULL;
    return tables + kvl__table_at(c, "mean");
}

// METADATA

KVL__FN float kvl__e5m3_to_f32(unsigned char code)
{
    return kvl__float_of((uint32_t)code << 20) * 5192296858534827628530496329220096.0f;   // 2^112
}

// x >= 0; nearest, ties to even; the greatest is 255.
KVL__FN int kvl__f32_to_e5m3(float x)
{
    const uint32_t u = kvl__bits_of(x);
    if (u < 0x38800000u) return (int)rintf(x * 131072.0f);          // below 2^-14: m 2^-17
    const uint32_t r = (u + 0x7ffffu + (u >> 20 & 1u)) >> 20;
    const int code = (int)r - (112 << 3);
    return code > 255 ? 255 : code;
}

// Without its sign: bias 8.
KVL__FN float kvl__e4m3_to_f32(unsigned char code)
{
    return ldexpf((float)(code & 7) + (code & 0x78 ? 8.0f : 0.0f),
                  (code & 0x78 ? code >> 3 & 15 : 1) - 11);
}

// x >= 0; nearest, ties to even; the greatest is 127.
KVL__FN int kvl__f32_to_e4m3(float x)
{
    const uint32_t u = kvl__bits_of(x);
    if (u < 0x3c000000u) return (int)rintf(x * 1024.0f);            // below 2^-7: m 2^-10
    const uint32_t r = (u + 0x7ffffu + (u >> 20 & 1u)) >> 20;
    const int code = (int)r - (119 << 3);
    return code > 127 ? 127 : code;
}

// The same with bias 7, up to 448.
KVL__FN float kvl__e4m3fn_to_f32(unsigned char code) { return 2.0f * kvl__e4m3_to_f32(code); }

KVL__FN int kvl__f32_to_e4m3fn(float x)
{
    const int code = kvl__f32_to_e4m3(0.5f * x);
    return code > 126 ? 126 : code;
}

// A power of two; the nearer one, the greater in the middle.
KVL__FN float kvl__e8m0_to_f32(unsigned char code) { return ldexpf(1.0f, (int)code - 127); }

KVL__FN int kvl__f32_to_e8m0(float x)
{
    const int code = (int)((kvl__bits_of(x) + 0x400000u) >> 23);
    return code > 254 ? 254 : code;
}

// Scales of 8 bits, or of none.
KVL__FN float kvl__scale_to_f32(const kvl__codec* c, unsigned char code)
{
    switch (c->words[KVL__STAGE_META]) {
    case KVL__META_E4M3: return kvl__e4m3_to_f32(code);
    case KVL__META_E4M3FN:
    case KVL__META_E4M3FN_TENSOR: return kvl__e4m3fn_to_f32(code);
    case KVL__META_E8M0: return kvl__e8m0_to_f32(code);
    case KVL__META_ONE:
    case KVL__META_TENSOR:
    case KVL__META_HEAD: return 1.0f;
    default: return kvl__e5m3_to_f32(code);
    }
}

KVL__FN int kvl__f32_to_scale(const kvl__codec* c, float x)
{
    switch (c->words[KVL__STAGE_META]) {
    case KVL__META_E4M3: return kvl__f32_to_e4m3(x);
    case KVL__META_E4M3FN:
    case KVL__META_E4M3FN_TENSOR: return kvl__f32_to_e4m3fn(x);
    case KVL__META_E8M0: return kvl__f32_to_e8m0(x);
    case KVL__META_ONE:
    case KVL__META_TENSOR:
    case KVL__META_HEAD: return 0;
    default: return kvl__f32_to_e5m3(x);
    }
}

// Whether scales are f16.
KVL__FN int kvl__is_f16_meta(const kvl__codec* c)
{
    return c->words[KVL__STAGE_META] == KVL__META_F16 ||
           c->words[KVL__STAGE_META] == KVL__META_F16_POINT;
}

KVL__FN int kvl__last_scale(const kvl__codec* c)
{
    return c->words[KVL__STAGE_META] == KVL__META_E4M3 ? 127 : 255;
}

// The smallest finite f16 that is not less than x >= 0; 65504 beyond.
KVL__FN uint16_t kvl__f16_up(float x)
{
    const uint16_t h = kvl__f32_to_f16_finite(x);
    return h < 0x7bffu && kvl__f16_to_f32(h) < x ? (uint16_t)(h + 1) : h;
}

KVL__FN void kvl__put_u16(unsigned char* to, uint16_t x)
{
    to[0] = (unsigned char)(x & 255u);
    to[1] = (unsigned char)(x >> 8);
}

KVL__FN uint16_t kvl__get_u16(const unsigned char* from)
{
    return (uint16_t)(from[0] | from[1] << 8);
}

// What is stored for a zero of f16 whose lowest bit is a flag; flag < 0: it is none.
KVL__FN uint16_t kvl__flagged_f16(uint16_t h, int flag)
{
    if (flag < 0 || (h & 1) == flag) return h;
    if (h == 0) return 0x8001u;                      // the f16 below, or above the least
    return (uint16_t)(h > 0x8000u && h < 0xfbffu ? h + 1 : h - 1);
}

// Likewise of a middle, |y| <= 127: the nearest integer that has the bit.
KVL__FN float kvl__flagged_middle(float y, int flag)
{
    if (flag < 0) return rintf(y);
    const float bit = (float)flag;
    return 2.0f * kvl__clamp(rintf((y - bit) * 0.5f), -63.0f - bit, 63.0f) + bit;
}

KVL__FN kvl__grid kvl__fit_affine_f16(const kvl__codec* c, float lo, float hi, int flag,
                                      unsigned char* scale_at, unsigned char* zero_at)
{
    const float code_max = (float)kvl__code_max(c), range = fminf(hi - lo, FLT_MAX);
    uint16_t scale = kvl__f32_to_f16_finite(range / code_max);
    if (hi > lo && scale == 0) scale = 1;
    const uint16_t offset = kvl__flagged_f16(kvl__f32_to_f16_finite(lo), flag);
    kvl__grid g;
    g.offset = kvl__f16_to_f32(offset);
    if (flag >= 0 && hi == lo) scale = kvl__f32_to_f16_finite(fmaxf(lo - g.offset, 0.0f));
    const float need = fmaxf((hi - g.offset) / (code_max + 0.5f), 2.0f * (g.offset - lo));
    if (kvl__f16_to_f32(scale) < need) scale = kvl__f16_up(need);
    g.scale = kvl__f16_to_f32(scale);
    g.inverse = g.scale > 0.0f ? 1.0f / g.scale : 0.0f;
    kvl__put_u16(scale_at, scale);
    kvl__put_u16(zero_at, offset);
    return g;
}

KVL__FN float kvl__offset_8bit(const kvl__codec* c, float scale, float zero)
{
    return scale * (zero * ldexpf(1.0f, kvl__level_bits(c) - 5) - 0.5f * (float)kvl__code_max(c));
}

KVL__FN float kvl__midpoint_offset(const kvl__codec* c, float scale)
{
    return -scale * (0.5f * (float)kvl__code_max(c));
}

// 2^((code - 8) / 4), the root exact to the last bit of float32.
KVL__FN float kvl__log4_to_f32(int code)
{
    static const float roots[4] = { 1.0f, 1.18920708f, 1.41421354f, 1.68179286f };
    return ldexpf(roots[code & 3], (code >> 2) - 2);
}

// As many as there are bounds 2^((i + 1/2) / 4) that are not greater.
KVL__FN int kvl__f32_to_log4(float x)
{
    int code = 0;
    while (code < 15 && x >= (float)pow(2.0, (code - 7.5) / 4.0)) ++code;
    return code;
}

// A scale and a middle in 4 bits each; zero is in units of 2^(bits - 3) scales.
KVL__FN kvl__grid kvl__store_log4(const kvl__codec* c, float wanted, float middle,
                                  unsigned char* scale_at)
{
    const float unit = ldexpf(1.0f, kvl__level_bits(c) - 3);
    const int code = kvl__f32_to_log4(wanted);
    kvl__grid g;
    g.scale = kvl__log4_to_f32(code);
    const float zero = rintf(kvl__clamp(middle / (unit * g.scale), -8.0f, 7.0f));
    g.offset = g.scale * (zero * unit - 0.5f * (float)kvl__code_max(c));
    g.inverse = 1.0f / g.scale;
    *scale_at = (unsigned char)(code << 4 | ((int)zero + 8));
    return g;
}

KVL__FN kvl__grid kvl__fit_affine_8bit(const kvl__codec* c, float lo, float hi, int flag,
                                       unsigned char* scale_at, unsigned char* zero_at)
{
    const float code_max = (float)kvl__code_max(c), range = fminf(hi - lo, FLT_MAX);
    const float mid = 0.5f * lo + 0.5f * hi, unit = ldexpf(1.0f, kvl__level_bits(c) - 5);
    const float wanted = fmaxf(range / code_max, fabsf(mid) / (127.0f * unit));
    const int last = kvl__last_scale(c);
    int code = kvl__f32_to_scale(c, wanted);
    float zero;
    kvl__grid g;
    if (wanted > 0.0f && code == 0) code = 1;
    for (;; ++code) {
        g.scale = kvl__scale_to_f32(c, (unsigned char)code);
        const float step = g.scale * unit;
        zero = kvl__flagged_middle(g.scale > 0.0f ? kvl__clamp(mid / step, -127.0f, 127.0f)
                                                  : 0.0f, flag);
        if (code == last) break;
        if (0.5f * range + fabsf(mid - zero * step) <= g.scale * kvl__zero_code(c)) break;
    }
    g.offset = kvl__offset_8bit(c, g.scale, zero);
    g.inverse = g.scale > 0.0f ? 1.0f / g.scale : 0.0f;
    *scale_at = (unsigned char)code;
    *zero_at = (unsigned char)(int)zero;
    return g;
}

// d: the wanted scale; most: the largest magnitude of the group.
KVL__FN kvl__grid kvl__fit_symmetric(const kvl__codec* c, float d, float most,
                                     unsigned char* scale_at)
{
    kvl__grid g;
    if (c->words[KVL__STAGE_META] == KVL__META_F16) {
        d = kvl__clamp(d, -65504.0f, 65504.0f);
        const uint16_t scale = kvl__f32_to_f16(d);
        kvl__put_u16(scale_at, scale);
        g.scale = kvl__f16_to_f32(scale);
        g.inverse = fabsf(d) > ldexpf(1.0f, -128) ? 1.0f / d : 0.0f;     // else infinite
    } else {
        const int last = kvl__last_scale(c);
        int code = kvl__f32_to_scale(c, d);
        if (d > 0.0f && code == 0) code = 1;
        while (code < last && most > kvl__scale_to_f32(c, (unsigned char)code) *
                                     (kvl__zero_code(c) - 0.5f)) ++code;
        *scale_at = (unsigned char)code;
        g.scale = kvl__scale_to_f32(c, (unsigned char)code);
        g.inverse = g.scale > 0.0f ? 1.0f / g.scale : 0.0f;
    }
    g.offset = -g.scale * kvl__zero_code(c);
    return g;
}

// Of a fit that clips: the nearest scale, and codes from it.
KVL__FN kvl__grid kvl__store_scale(const kvl__codec* c, float d, unsigned char* scale_at)
{
    const int least = c->words[KVL__STAGE_META] == KVL__META_E8M0 ? 0 : 1;
    kvl__grid g;
    if (c->words[KVL__STAGE_META] == KVL__META_F16) {
        uint16_t scale = kvl__f32_to_f16_finite(d);
        if (d > 0.0f && scale == 0) scale = 1;
        kvl__put_u16(scale_at, scale);
        g.scale = kvl__f16_to_f32(scale);
    } else {
        int code = kvl__f32_to_scale(c, d);
        if (d > 0.0f && code < least) code = least;
        if (kvl__word_of(c, KVL__STAGE_META)->scale_bytes) *scale_at = (unsigned char)code;
        g.scale = kvl__scale_to_f32(c, (unsigned char)code);
    }
    g.inverse = g.scale > 0.0f ? 1.0f / g.scale : 0.0f;
    g.offset = 0.0f;
    return g;
}

// Levels on both sides of 0.
KVL__FN kvl__grid kvl__fit_midpoint(const kvl__codec* c, float d, unsigned char* scale_at)
{
    kvl__grid g = kvl__store_scale(c, d, scale_at);
    g.offset = kvl__midpoint_offset(c, g.scale);
    return g;
}

// gen/parts/meta_static.lua: the same grid everywhere.
KVL__FN kvl__grid kvl__static_grid(const kvl__codec* c)
{
    const float code_max = (float)kvl__code_max(c);
    kvl__grid g;
    g.scale = kvl__has_book(c) ? 1.0f : 2.0f / code_max;
    g.offset = kvl__has_book(c) ? 0.0f : g.scale * (-0.5f * code_max);
    g.inverse = 0.5f * code_max;
    return g;
}

// Codes come from a pair before it is stored: gen/parts/span.lua, meta_f16_point.lua.
KVL__FN kvl__grid kvl__fit_plain(const kvl__codec* c, float lo, float hi, unsigned char* scale_at,
                                 unsigned char* zero_at)
{
    const int is_point = c->words[KVL__STAGE_META] == KVL__META_F16_POINT;
    float step = fminf(hi - lo, FLT_MAX) / (float)kvl__code_max(c), zero = lo;
    kvl__grid g;
    if (is_point) {
        if (!(hi > lo)) step = fabsf(lo);
        if (step > 0.0f) step = fmaxf(step, ldexpf(1.0f, -24));
        zero = step > 0.0f ? -lo / step : 0.0f;
    }
    kvl__put_u16(scale_at, kvl__f32_to_f16_finite(step));
    kvl__put_u16(zero_at, kvl__f32_to_f16_finite(zero));
    g.scale = kvl__f16_to_f32(kvl__get_u16(scale_at));
    g.inverse = step > (is_point ? 0.0f : ldexpf(1.0f, -126)) ? 1.0f / step : 0.0f;
    g.offset = lo;
    return g;
}

// gen/parts/shrink.lua: a share of a range, with a whole zero point.
KVL__FN void kvl__shrink(const kvl__codec* c, float* lo, float* hi)
{
    const float shrink = (float)((double)c->numbers[KVL__STAGE_FIT] / 100.0);
    const float low = *lo * shrink, high = *hi * shrink, code_max = (float)kvl__code_max(c);
    const float step = fminf(high - low, FLT_MAX) / code_max;
    if (!(*lo < *hi)) return;
    const float point = step > 0.0f ? kvl__clamp(-low / step, -65504.0f, 65504.0f) : 0.0f;
    *lo = -(rintf(point) * step) + 0.0f;
    *hi = *lo + step * code_max;
}

KVL__FN kvl__grid kvl__load_grid(const kvl__codec* c, const unsigned char* scale_at,
                                 const unsigned char* zero_at)
{
    const int f16 = kvl__is_f16_meta(c);
    kvl__grid g;
    if (c->words[KVL__STAGE_META] == KVL__META_STATIC) return kvl__static_grid(c);
    g.inverse = 0.0f;
    if (c->words[KVL__STAGE_META] == KVL__META_LOG4) {
        const float zero = (float)((*scale_at & 15) - 8);
        const float unit = ldexpf(1.0f, kvl__level_bits(c) - 3);
        g.scale = kvl__log4_to_f32(*scale_at >> 4);
        g.offset = g.scale * (zero * unit - 0.5f * (float)kvl__code_max(c));
        return g;
    }
    const int stored = kvl__word_of(c, KVL__STAGE_META)->scale_bytes > 0;
    g.scale = f16 ? kvl__f16_to_f32(kvl__get_u16(scale_at))
                  : kvl__scale_to_f32(c, stored ? *scale_at : 0);
    if (kvl__is_flagged(c)) g.scale = fabsf(g.scale);
    if (kvl__book_of(c))
        g.offset = 0.0f;
    else if (c->words[KVL__STAGE_LEVELS] == KVL__LEVELS_SYMMETRIC)
        g.offset = -g.scale * kvl__zero_code(c);
    else if (c->words[KVL__STAGE_LEVELS] == KVL__LEVELS_MIDPOINT)
        g.offset = kvl__midpoint_offset(c, g.scale);
    else if (c->words[KVL__STAGE_META] == KVL__META_F16_POINT)
        g.offset = -g.scale * kvl__f16_to_f32(kvl__get_u16(zero_at));
    else if (f16)
        g.offset = kvl__f16_to_f32(kvl__get_u16(zero_at));
    else
        g.offset = kvl__offset_8bit(c, g.scale, (float)(signed char)*zero_at);
    return g;
}

// FIT AND ROUND

// Step of the uniform grid of 1 to 8 bits, of values of variance 1.
KVL__FN float kvl__rms_step(int bits)
{
    static const float steps[9] = { 0.0f, 1.59576912f, 0.995689747f, 0.586019529f, 0.335190744f,
                                    0.188135090f, 0.104018961f, 0.0f, 0.0304701084f };
    return steps[bits];
}

KVL__FN float kvl__squares(const float* x, int32_t count, int32_t stride)
{
    const float most = ldexpf(1.0f, 57);
    float sum = 0.0f;
    for (int32_t i = 0; i < count; ++i) {
        const float v = kvl__clamp(x[(int64_t)i * stride], -most, most);
        sum += v * v;
    }
    return sum;
}

KVL__FN float kvl__rms(const float* x, int32_t count, int32_t stride)
{
    return sqrtf(kvl__squares(x, count, stride) / (float)count);
}

// Brings x [dim] to the magnitude at place `rank` of theirs in ascending order, from 0.
KVL__FN void kvl__clip_row(float* x, int32_t dim, int32_t rank)
{
    float sorted[KVL__MAX_HEAD_DIM];
    for (int32_t i = 0; i < dim; ++i) {
        const float v = fabsf(x[i]);
        int32_t at = i;
        for (; at > 0 && sorted[at - 1] > v; --at) sorted[at] = sorted[at - 1];
        sorted[at] = v;
    }
    for (int32_t i = 0; i < dim; ++i) x[i] = kvl__clamp(x[i], -sorted[rank], sorted[rank]);
}

// SEARCH: gen/parts/search.lua defines it.

// The stored pair nearest to a scale and a middle of the range of codes.
KVL__FN kvl__grid kvl__near_affine(const kvl__codec* c, float wanted, float middle,
                                   unsigned char* scale_at, unsigned char* zero_at)
{
    const float code_max = (float)kvl__code_max(c), unit = ldexpf(1.0f, kvl__level_bits(c) - 5);
    kvl__grid g;
    if (c->words[KVL__STAGE_META] == KVL__META_LOG4)
        return kvl__store_log4(c, wanted, middle, scale_at);
    if (c->words[KVL__STAGE_META] == KVL__META_F16) {
        uint16_t scale = kvl__f32_to_f16_finite(wanted);
        if (scale == 0) scale = 1;
        g.scale = kvl__f16_to_f32(scale);
        const uint16_t offset = kvl__f32_to_f16_finite(middle - g.scale * (0.5f * code_max));
        g.offset = kvl__f16_to_f32(offset);
        kvl__put_u16(scale_at, scale);
        kvl__put_u16(zero_at, offset);
    } else {
        int code = kvl__f32_to_scale(c, fmaxf(wanted, fabsf(middle) / (127.0f * unit)));
        if (code == 0) code = 1;
        g.scale = kvl__scale_to_f32(c, (unsigned char)code);
        const float zero = rintf(kvl__clamp(middle / (g.scale * unit), -127.0f, 127.0f));
        g.offset = kvl__offset_8bit(c, g.scale, zero);
        *scale_at = (unsigned char)code;
        *zero_at = (unsigned char)(int)zero;
    }
    g.inverse = 1.0f / g.scale;
    return g;
}

KVL__FN kvl__trellis kvl__trellis_for(const kvl__codec* c)
{
    return kvl__trellis_of(c->numbers[KVL__STAGE_ROUND], c->bits);
}

// Levels of the path of a group: y = (x - offset) inverse + raise.
KVL__FN void kvl__path_levels(const kvl__codec* c, const float* x, int32_t count, int32_t stride,
                              kvl__grid g, float raise, uint16_t* codes, uint16_t* levels)
{
    const kvl__trellis trellis = kvl__trellis_for(c);
    float y[KVL__PATH_MOST] = { 0 };
    for (int32_t i = 0; i < count; ++i)
        y[i] = (x[(int64_t)i * stride] - g.offset) * g.inverse + raise;
    kvl__trellis_walk(&trellis, y, count, codes, levels);
}

// One refit of s and m by least squares, of values y in units of half about mid.
KVL__FN void kvl__refit(const kvl__codec* c, const float* x, int32_t count, int32_t stride,
                        float mid, float unit, float* s, float* m)
{
    const float middle = 0.5f * (float)kvl__code_max(c), r = 1.0f / *s, n = (float)count;
    float sum_c = 0.0f, sum_cc = 0.0f, sum_cy = 0.0f, sum_y = 0.0f;
    uint16_t codes[KVL__PATH_MOST], levels[KVL__PATH_MOST];
    if (kvl__has_path(c)) {
        const kvl__grid g = { *s, *m, r };
        float y[KVL__PATH_MOST] = { 0 };
        for (int32_t i = 0; i < count; ++i) y[i] = (x[(int64_t)i * stride] - mid) * unit;
        kvl__path_levels(c, y, count, 1, g, middle, codes, levels);
    }
    for (int32_t i = 0; i < count; ++i) {
        const float y = (x[(int64_t)i * stride] - mid) * unit;
        const float nearest = rintf(kvl__clamp((y - *m) * r + middle, 0.0f, 2.0f * middle));
        const float code = (kvl__has_path(c) ? (float)levels[i] : nearest) - middle;
        sum_c += code;
        sum_cc += code * code;
        sum_cy += code * y;
        sum_y += y;
    }
    const float det = n * sum_cc - sum_c * sum_c;
    const float better = (n * sum_cy - sum_c * sum_y) / det;
    if (!(det > 1e-6f * n * sum_cc) || !(better > 0.0f)) return;
    *s = better;
    *m = (sum_y - better * sum_c) / n;
}

KVL__FN float kvl__grid_error(const kvl__codec* c, const float* x, int32_t count, int32_t stride,
                              float unit, kvl__grid g)
{
    float sum = 0.0f;
    uint16_t codes[KVL__PATH_MOST], levels[KVL__PATH_MOST];
    if (kvl__has_path(c)) kvl__path_levels(c, x, count, stride, g, 0.0f, codes, levels);
    for (int32_t i = 0; i < count; ++i) {
        const float v = x[(int64_t)i * stride];
        const float y = kvl__clamp((v - g.offset) * g.inverse, 0.0f, (float)kvl__code_max(c));
        const float level = kvl__has_path(c) ? (float)levels[i] : rintf(y);
        const float e = (v - (g.scale * level + g.offset)) * unit;
        sum += e * e;
    }
    return sum;
}

// Puts a better pair than the stored one, g, in its place, where there is one.
KVL__FN kvl__grid kvl__search(const kvl__codec* c, const float* x, int32_t count, int32_t stride,
                              float lo, float hi, kvl__grid g, unsigned char* scale_at,
                              unsigned char* zero_at)
{
    static const float shrinks[2][7] = {
        { 1.0f, 0.915f, 0.83f, 0.745f, 0.66f, 0.575f, 0.49f },
        { 1.0f, 0.89f, 0.78f, 0.67f, 0.56f, 0.45f, 0.34f },
    };
    const float mid = 0.5f * lo + 0.5f * hi, half = 0.5f * hi - 0.5f * lo, unit = 1.0f / half;
    if (!(half > ldexpf(1.0f, -100))) return g;
    float best = kvl__grid_error(c, x, count, stride, unit, g);
    for (int i = 0; i < 7; ++i) {
        unsigned char scale[2], zero[2];
        float s = 2.0f * shrinks[c->bits == 1][i] / (float)kvl__code_max(c), m = 0.0f;
        for (int pass = 0; pass < 2; ++pass) kvl__refit(c, x, count, stride, mid, unit, &s, &m);
        const kvl__grid near = kvl__near_affine(c, s * half, mid + m * half, scale, zero);
        const float error = kvl__grid_error(c, x, count, stride, unit, near);
        if (!(error < best)) continue;
        best = error;
        g = near;
        memcpy(scale_at, scale, (size_t)kvl__word_of(c, KVL__STAGE_META)->scale_bytes);
        memcpy(zero_at, zero, (size_t)kvl__word_of(c, KVL__STAGE_META)->zero_bytes);
    }
    return g;
}

// BOOKS: gen/codebooks.lua says how levels are found.

KVL__FN int kvl__book_code(const kvl__book* book, float y)
{
    const int minus = book->is_signed && kvl__bits_of(y) >> 31;
    const float at = book->is_signed ? fabsf(y) : y;
    int rank = 0, end = book->num_bounds;
    while (rank < end) {
        const int middle = (rank + end) / 2;
        if (at >= book->bounds[middle]) rank = middle + 1;
        else end = middle;
    }
    return rank | minus << (book->bits - 1);
}

// The number of the point that is nearest to the pair a, b: gen/parts/plane.lua.
KVL__FN int kvl__plane_number(const kvl__book* book, float a, float b)
{
    float best = -INFINITY;
    int number = 0;
    for (int p = 0; p < book->num_bounds; ++p) {
        const float score =
            (a * book->values[p] + b * book->values[book->num_bounds + p]) - book->bounds[p];
        if (!(score > best)) continue;
        best = score;
        number = p;
    }
    return number;
}

// The scale that fit=matched and fit=squares store after the codes of a group are known.
KVL__FN float kvl__book_again(const kvl__codec* c, const float* x, int32_t count, int32_t stride,
                              float wanted, kvl__grid g)
{
    const kvl__book* book = kvl__book_of(c);
    const int squares = c->words[KVL__STAGE_FIT] == KVL__FIT_SQUARES;
    const float most = ldexpf(1.0f, 36);
    float sum = 0.0f, levels = 0.0f;
    for (int32_t i = 0; i < count; ++i) {
        const float v = x[(int64_t)i * stride], near = kvl__clamp(v, -most, most);
        const float level = book->values[kvl__book_code(book, v * g.inverse)];
        if (squares) {
            sum += near * near * level * near;
            levels += near * near * level * level;
        } else {
            levels += level * level;
        }
    }
    if (squares) return g.scale == 0.0f ? 0.0f : levels > 0.0f ? sum / levels : wanted;
    return levels > 0.0f ? sqrtf(kvl__squares(x, count, stride) / levels) : 0.0f;
}

// extreme: the value of largest magnitude, the first of equals.
KVL__FN kvl__grid kvl__fit_book(const kvl__codec* c, const float* x, int32_t count, int32_t stride,
                                float extreme, unsigned char* scale_at)
{
    const kvl__book* book = kvl__book_of(c);
    const int fit = c->words[KVL__STAGE_FIT];
    float wanted;
    switch (fit) {
    case KVL__FIT_AMAX: wanted = fabsf(extreme) / book->top; break;
    case KVL__FIT_SHARED:
        wanted = kvl__float_of(kvl__bits_of(extreme) & 0x7f800000u) * book->octave;
        break;
    case KVL__FIT_SQUARES:
        wanted = fabsf(extreme) < 1e-15f ? 0.0f : extreme / book->values[0];
        break;
    default: wanted = sqrtf(kvl__squares(x, count, stride) / (float)count);
    }
    kvl__grid g = kvl__store_scale(c, wanted, scale_at);
    if (fit != KVL__FIT_SQUARES && fit != KVL__FIT_MATCHED) return g;
    g.inverse = fabsf(wanted) > ldexpf(1.0f, -126) ? 1.0f / wanted : 0.0f;
    (void)kvl__store_scale(c, kvl__book_again(c, x, count, stride, wanted, g), scale_at);
    return g;
}

// x: `count` values, `stride` apart.  flag: the lowest bit of the zero; < 0: any.
KVL__FN kvl__grid kvl__fit(const kvl__codec* c, const float* x, int32_t count, int32_t stride,
                           int flag, unsigned char* scale_at, unsigned char* zero_at)
{
    float lo = x[0], hi = x[0], most = x[0];
    for (int32_t i = 1; i < count; ++i) {
        const float v = x[(int64_t)i * stride];
        if (v < lo) lo = v;
        if (v > hi) hi = v;
        if (fabsf(v) > fabsf(most)) most = v;
    }
    lo += 0.0f;                                      // -0 becomes 0: one spelling of a stored zero
    hi += 0.0f;
    if (c->words[KVL__STAGE_FIT] == KVL__FIT_SHRINK) kvl__shrink(c, &lo, &hi);
    kvl__grid g;
    if (kvl__book_of(c)) return kvl__fit_book(c, x, count, stride, most, scale_at);
    switch (c->words[KVL__STAGE_FIT]) {
    case KVL__FIT_SHRINK:
    case KVL__FIT_SPAN: return kvl__fit_plain(c, lo, hi, scale_at, zero_at);
    case KVL__FIT_ABSMAX:
        return kvl__fit_symmetric(c, fabsf(most) / (kvl__zero_code(c) - 1.0f), fabsf(most),
                                  scale_at);
    case KVL__FIT_SIGNED_ABSMAX:
        return kvl__fit_symmetric(c, most / -kvl__zero_code(c), fabsf(most), scale_at);
    case KVL__FIT_STATIC:
        return kvl__static_grid(c);
    case KVL__FIT_RMS:
        return kvl__fit_midpoint(c, kvl__rms_step(c->bits) * kvl__rms(x, count, stride), scale_at);
    default:
        if (c->words[KVL__STAGE_META] == KVL__META_LOG4)
            g = kvl__store_log4(c, fminf(hi - lo, FLT_MAX) / (float)kvl__code_max(c),
                                0.5f * lo + 0.5f * hi, scale_at);
        else g = c->words[KVL__STAGE_META] == KVL__META_F16
            ? kvl__fit_affine_f16(c, lo, hi, flag, scale_at, zero_at)
            : kvl__fit_affine_8bit(c, lo, hi, flag, scale_at, zero_at);
        return c->words[KVL__STAGE_FIT] == KVL__FIT_SEARCH
            ? kvl__search(c, x, count, stride, lo, hi, g, scale_at, zero_at) : g;
    }
}

KVL__FN int kvl__round(const kvl__codec* c, float x, kvl__grid g)
{
    if (kvl__book_of(c)) return kvl__book_code(kvl__book_of(c), x * g.inverse);
    const int symmetric = c->words[KVL__STAGE_LEVELS] == KVL__LEVELS_SYMMETRIC;
    const float zero = symmetric ? kvl__zero_code(c) : 0.0f, code_max = (float)kvl__code_max(c);
    const float raw = symmetric ? x * g.inverse : (x - g.offset) * g.inverse;
    const float y = kvl__clamp(raw, -zero, code_max - zero);
    float code;
    if (c->words[KVL__STAGE_ROUND] == KVL__ROUND_NEAREST_UP) {
        code = floorf(y + (zero + 0.5f));
    } else if (c->words[KVL__STAGE_ROUND] == KVL__ROUND_NEAREST_AWAY) {
        const float t = truncf(y);
        code = t + (fabsf(y - t) >= 0.5f ? (y < 0.0f ? -1.0f : 1.0f) : 0.0f) + zero;
    } else {
        code = rintf(y) + zero;
    }
    return (int)kvl__clamp(code, 0.0f, code_max);
}

// ENCODE AND DECODE

KVL__FN int kvl__raw_code(const kvl__codec* c, float x)
{
    return c->words[KVL__STAGE_LEVELS] == KVL__LEVELS_F16 ? kvl__f32_to_f16_finite(x)
                                                          : kvl__f32_to_bf16_finite(x);
}

// The norm of a row as it is stored: gen/parts/token_norm.lua.
KVL__FN int kvl__norm_code(const float* x, int32_t dim)
{
    const float norm = kvl__rms(x, dim, 1);
    const int code = kvl__f32_to_e5m3(norm);
    return norm > 0.0f && code == 0 ? 1 : code;
}

KVL__FN void kvl__store_norms(const kvl__codec* c, const kvl__encode_args* a)
{
    const kvl__side_layout l = kvl__layout_of(c, a->page_size);
    const float* shift = kvl__shift_of(c, a->tables);
    float x[KVL__MAX_HEAD_DIM];
    for (int32_t r = 0; r < a->num_rows; ++r) {
        const uint16_t* row = a->rows + r * a->row_stride;
        for (int32_t i = 0; i < c->head_dim; ++i)
            x[i] = kvl__row_to_f32(row[i], c->rows) - (shift ? shift[i] : 0.0f);
        a->page[l.extra_at + a->first_row + r] = (unsigned char)kvl__norm_code(x, c->head_dim);
    }
}

// One window row in the codec's basis; where that is chosen, as it is.
KVL__FN void kvl__load_row(const kvl__codec* c, const float* tables, const uint16_t* row, float* x)
{
    const float* shift = kvl__shift_of(c, tables);
    const int sums = kvl__transform_of(c) != KVL__TRANSFORM_NONE || shift ||
                     c->words[KVL__STAGE_CHOOSE] != KVL__CHOOSE_NONE;
    const int dense = kvl__dense_table(c, tables, 0) != NULL;
    const float most = dense ? ldexpf(1.0f, 18) : sums ? ldexpf(1.0f, 119) : FLT_MAX;
    for (int32_t i = 0; i < c->head_dim; ++i) {
        const float plain = kvl__row_to_f32(row[i], c->rows);
        x[i] = shift ? plain - shift[i] : plain;
    }
    if (kvl__has_norms(c)) {
        const float norm = kvl__e5m3_to_f32((unsigned char)kvl__norm_code(x, c->head_dim));
        for (int32_t i = 0; norm > 0.0f && i < c->head_dim; ++i) x[i] /= norm;
    }
    for (int32_t i = 0; i < c->head_dim; ++i) x[i] = kvl__clamp(x[i], -most, most);
    kvl__to_basis(c, tables, x);
    const float* base = kvl__base_of(c, tables);
    for (int32_t i = 0; base && i < c->head_dim; ++i) x[i] /= base[i];
    if (c->words[KVL__STAGE_FIT] == KVL__FIT_CLIP) {
        const int32_t rank = c->head_dim * c->numbers[KVL__STAGE_FIT] / 100;
        kvl__clip_row(x, c->head_dim, rank < c->head_dim ? rank : c->head_dim - 1);
    }
}

// Codes of a group whose grid is known, and what they stand for.
KVL__FN void kvl__round_group(const kvl__codec* c, const float* x, int32_t count, int32_t stride,
                              kvl__grid g, uint16_t* codes, uint16_t* levels)
{
    if (kvl__has_path(c)) {
        kvl__path_levels(c, x, count, stride, g, 0.0f, codes, levels);
        return;
    }
    for (int32_t i = 0; kvl__has_plane(c) && i < count; i += 2) {
        const kvl__book* book = kvl__book_of(c);
        const int number = kvl__plane_number(book, x[(int64_t)i * stride] * g.inverse,
                                             x[(int64_t)(i + 1) * stride] * g.inverse);
        codes[i] = (uint16_t)(number & ((1 << c->bits) - 1));
        codes[i + 1] = (uint16_t)(number >> c->bits);
        levels[i] = (uint16_t)number;
        levels[i + 1] = (uint16_t)(book->num_bounds + number);
    }
    for (int32_t i = 0; !kvl__has_plane(c) && i < count; ++i)
        codes[i] = levels[i] = (uint16_t)kvl__round(c, x[(int64_t)i * stride], g);
}

KVL__FN void kvl__encode_group(const kvl__codec* c, const kvl__encode_args* a, const float* x,
                               int32_t count, int32_t stride, int64_t row, int32_t channel)
{
    const kvl__side_layout l = kvl__layout_of(c, a->page_size);
    const int along = c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL;
    const int64_t group = kvl__group_of(c, row, channel);
    const kvl__grid g = kvl__fit(c, x, count, stride, -1,
                                 a->page + l.scales_at + group * l.scale_bytes,
                                 a->page + l.zeros_at + group * l.zero_bytes);
    uint16_t codes[KVL__GROUP_MOST], levels[KVL__GROUP_MOST];
    kvl__round_group(c, x, count, stride, g, codes, levels);
    for (int32_t i = 0; i < count; ++i) {
        const int64_t at = along ? (row + i) * c->head_dim + channel
                                 : row * c->head_dim + channel + i;
        kvl__put_code(a->page, at * c->bits, c->bits, codes[i]);
    }
}

KVL__FN void kvl__encode_raw_row(const kvl__codec* c, const kvl__encode_args* a, const float* x,
                                 int64_t row)
{
    for (int32_t i = 0; i < c->head_dim; ++i)
        kvl__put_u16(a->page + 2 * (row * c->head_dim + i), (uint16_t)kvl__raw_code(c, x[i]));
}

// SLOTS: gen/parts/sparse.lua defines them.

KVL__FN unsigned char* kvl__slot_at(const kvl__side_layout* l, const unsigned char* page,
                                    int64_t row, int slot)
{
    return (unsigned char*)(uintptr_t)page + l->extra_at +
           (row * l->row_slots + slot) * KVL__SLOT_BYTES;
}

// Fills the slots of a row, as `from` has its values; others take the place of theirs in x.
KVL__FN void kvl__fill_slots(const kvl__codec* c, const uint16_t* from, float* x,
                             unsigned char* page, int64_t row, const kvl__side_layout* l)
{
    unsigned char taken[KVL__MAX_STORED_DIM] = { 0 };
    if (!l->row_slots) return;             // rows can be longer where there are none
    for (int slot = 0; slot < l->row_slots; ++slot) {
        int32_t best = -1;
        for (int32_t i = 0; i < c->head_dim; ++i)
            if (!taken[i] && (best < 0 || fabsf(x[i]) > fabsf(x[best]))) best = i;
        unsigned char* at = kvl__slot_at(l, page, row, slot);
        kvl__put_u16(at, from[best]);
        at[2] = (unsigned char)best;
        taken[best] = 1;
    }
    for (int32_t first = 0; first < c->head_dim; first += c->group_size) {
        int32_t last = first;
        while (taken[last]) ++last;
        for (int32_t i = first; i < first + c->group_size; ++i) {
            if (taken[i]) x[i] = x[last];
            else last = i;
        }
    }
}

// The values of a row that have slots, where they belong.
KVL__FN void kvl__read_slots(const kvl__codec* c, const kvl__side_layout* l,
                             const unsigned char* page, int64_t row, float* x)
{
    for (int slot = 0; slot < l->row_slots; ++slot) {
        const unsigned char* at = kvl__slot_at(l, page, row, slot);
        if (at[2] < c->head_dim) x[at[2]] = kvl__row_to_f32(kvl__get_u16(at), c->rows);
    }
}

// A row's codes, those of a calibrated book.
KVL__FN void kvl__encode_book_row(const kvl__codec* c, const kvl__encode_args* a, const float* x,
                                  int64_t row)
{
    const float* book = a->tables + kvl__table_at(c, "kmeans_book");
    for (int32_t i = 0; i < c->head_dim; ++i) {
        int code = 0;
        for (int k = 0; k < (int)kvl__code_max(c); ++k)
            code += x[i] >= 0.5f * (book[k] + book[k + 1]);
        kvl__put_code(a->page, (row * c->head_dim + i) * c->bits, c->bits, code);
    }
}

// WIDTHS: gen/parts/pairs.lua defines them.

KVL__FN const float* kvl__widths_of(const kvl__codec* c, const float* tables)
{
    return tables + kvl__table_at(c, "pair_bits");
}

// The code of the level of n bits that is nearest to y; n = 0: the one there is.
KVL__FN int kvl__width_code(const kvl__codec* c, int n, float y)
{
    return n > 0 ? kvl__book_code(kvl__book_at(c, n), y) : 0;
}

// A row in units of the sizes, group by group, as a string of codes.
KVL__FN void kvl__encode_widths_row(const kvl__codec* c, const kvl__encode_args* a, const float* x,
                                    int64_t row)
{
    const kvl__side_layout l = kvl__layout_of(c, a->page_size);
    const float* widths = kvl__widths_of(c, a->tables);
    int64_t bit = row * c->head_dim * c->bits;
    kvl__grid g = { 0.0f, 0.0f, 0.0f };
    for (int32_t i = 0; i < c->head_dim; ++i) {
        const int64_t group = kvl__group_of(c, row, i);
        const int n = (int)widths[i];
        if (i % c->group_size == 0)
            g = kvl__fit(c, x + i, c->group_size, 1, -1,
                         a->page + l.scales_at + group * l.scale_bytes,
                         a->page + l.zeros_at + group * l.zero_bytes);
        if (n > 0) kvl__put_code(a->page, bit, n, kvl__width_code(c, n, x[i] * g.inverse));
        bit += n;
    }
}

// The codes of row `row` of a page, [head_dim].
KVL__FN void kvl__read_widths(const kvl__codec* c, const float* tables, const unsigned char* page,
                              int64_t row, uint16_t* codes)
{
    const float* widths = kvl__widths_of(c, tables);
    int64_t bit = row * c->head_dim * c->bits;
    for (int32_t i = 0; i < c->head_dim; ++i) {
        const int n = (int)widths[i];
        codes[i] = n > 0 ? (uint16_t)kvl__get_code(page, bit, n) : 0;
        bit += n;
    }
}

// What they stand for, in units of the sizes.
KVL__FN void kvl__decode_widths_row(const kvl__codec* c, const kvl__side_layout* l,
                                    const float* tables, const unsigned char* page, int64_t row,
                                    float* x)
{
    const float* widths = kvl__widths_of(c, tables);
    uint16_t codes[KVL__MAX_HEAD_DIM];
    kvl__read_widths(c, tables, page, row, codes);
    for (int32_t i = 0; i < c->head_dim; ++i) {
        const int64_t group = kvl__group_of(c, row, i);
        const kvl__grid g = kvl__load_grid(c, page + l->scales_at + group * l->scale_bytes,
                                           page + l->zeros_at + group * l->zero_bytes);
        const int n = (int)widths[i];
        x[i] = n > 0 ? g.scale * kvl__book_at(c, n)->values[codes[i]] : 0.0f;
    }
}

// A row in the order of the sets, each of which is a group.
KVL__FN void kvl__encode_sets_row(const kvl__codec* c, const kvl__encode_args* a, const float* x,
                                  int64_t row)
{
    kvl__encode_args of = *a;
    for (int set = 0; set < kvl__num_sets(c); ++set) {
        const kvl__codec s = kvl__set_of(c, set);
        of.page = a->page + kvl__set_at(c, set, a->page_size);
        kvl__encode_group(&s, &of, x, s.head_dim, 1, row, 0);
        x += s.head_dim;
    }
}

// Keys or values whose groups run along channels: row by row.
KVL__FN void kvl__encode_per_token(const kvl__codec* c, const kvl__encode_args* a)
{
    const kvl__side_layout l = kvl__layout_of(c, a->page_size);
    float x[KVL__MAX_HEAD_DIM];
    for (int32_t r = 0; r < a->num_rows; ++r) {
        const int64_t row = a->first_row + r;
        kvl__load_row(c, a->tables, a->rows + r * a->row_stride, x);
        if (c->group_size == 0) {
            kvl__encode_raw_row(c, a, x, row);
            continue;
        }
        kvl__fill_slots(c, a->rows + r * a->row_stride, x, a->page, row, &l);
        if (kvl__has_book(c)) {
            kvl__encode_book_row(c, a, x, row);
            continue;
        }
        if (kvl__has_widths(c)) {
            kvl__encode_widths_row(c, a, x, row);
            continue;
        }
        if (kvl__is_split(c)) {
            kvl__encode_sets_row(c, a, x, row);
            continue;
        }
        for (int32_t i = 0; i < c->head_dim; i += c->group_size)
            kvl__encode_group(c, a, x + i, c->group_size, 1, row, i);
    }
}

// PROMOTED CHANNELS: gen/parts/promote.lua defines them.

// What a group of tokens has beside its codes: channels, then planes.
KVL__FN unsigned char* kvl__planes_at(const kvl__codec* c, const kvl__side_layout* l,
                                   const unsigned char* page, int64_t row)
{
    return (unsigned char*)(uintptr_t)page + l->extra_at + row / c->group_size * l->extra_bytes;
}

// The channels of a group whose magnitudes have the greatest sums, rising.
KVL__FN void kvl__find_strong(const kvl__codec* c, const kvl__encode_args* a, int32_t first,
                              unsigned char* strong)
{
    float sums[KVL__MAX_HEAD_DIM] = { 0 }, x[KVL__MAX_HEAD_DIM];
    unsigned char taken[KVL__MAX_HEAD_DIM] = { 0 };
    for (int32_t t = 0; t < c->group_size; ++t) {
        kvl__load_row(c, a->tables, a->rows + (first + t) * a->row_stride, x);
        for (int32_t i = 0; i < c->head_dim; ++i) sums[i] += fabsf(x[i]);
    }
    for (int32_t n = 0; n < kvl__promoted(c); ++n) {
        int32_t best = -1;
        for (int32_t i = 0; i < c->head_dim; ++i)
            if (!taken[i] && (best < 0 || sums[i] > sums[best])) best = i;
        taken[best] = 1;
    }
    for (int32_t i = 0, n = 0; i < c->head_dim; ++i)
        if (taken[i]) strong[n++] = (unsigned char)i;
}

// Channel n of the promoted ones, x [group_size], of a group that begins at row `row`.
KVL__FN void kvl__encode_strong(const kvl__codec* c, const kvl__encode_args* a, const float* x,
                                int64_t row, int32_t n)
{
    const kvl__side_layout l = kvl__layout_of(c, a->page_size);
    const float m = (float)kvl__code_max(c);
    unsigned char* beside = kvl__planes_at(c, &l, a->page, row);
    unsigned char* plane = beside + kvl__promoted(c) + n * ((c->group_size + 3) / 4);
    const int64_t group = kvl__group_of(c, row, beside[n]);
    float ends[2] = { x[0], x[0] };
    for (int32_t t = 1; t < c->group_size; ++t) {
        if (x[t] < ends[0]) ends[0] = x[t];
        if (x[t] > ends[1]) ends[1] = x[t];
    }
    if (ends[0] < ends[1])
        ends[1] = ends[0] * (float)(0.75 / ((double)m + 0.75)) +
                  ends[1] * (float)((double)m / ((double)m + 0.75));
    const kvl__grid g = kvl__fit(c, ends, 2, 1, -1, a->page + l.scales_at + group * l.scale_bytes,
                                 a->page + l.zeros_at + group * l.zero_bytes);
    for (int32_t t = 0; t < c->group_size; ++t) {
        const float y = (x[t] - g.offset) * g.inverse * 4.0f;
        const unsigned level = (unsigned)(int)rintf(kvl__clamp(y, 0.0f, 4.0f * m + 3.0f));
        kvl__put_code(a->page, ((row + t) * c->head_dim + beside[n]) * c->bits, c->bits,
                      (int)(level >> 2));
        plane[t / 4] = (unsigned char)((plane[t / 4] & ~(3u << t % 4 * 2)) |
                                       (level & 3u) << t % 4 * 2);
    }
}

// What a row of a page, x, has in the planes beside its codes joins it.
KVL__FN void kvl__add_planes(const kvl__codec* c, const kvl__side_layout* l,
                             const unsigned char* page, int64_t row, float* x)
{
    if (!kvl__promoted(c)) return;
    const unsigned char* beside = kvl__planes_at(c, l, page, row);
    const int64_t t = row % c->group_size;
    for (int32_t n = 0; n < kvl__promoted(c); ++n) {
        const int low = beside[kvl__promoted(c) + n * ((c->group_size + 3) / 4) + t / 4] >>
                        t % 4 * 2 & 3;
        if (beside[n] >= c->head_dim) continue;
        const int64_t group = kvl__group_of(c, row, beside[n]);
        const kvl__grid g = kvl__load_grid(c, page + l->scales_at + group * l->scale_bytes,
                                           page + l->zeros_at + group * l->zero_bytes);
        x[beside[n]] += g.scale * (0.25f * (float)low);
    }
}

// Groups along tokens: as many channels at a time as fit the stack with all rows of a group.
KVL__FN void kvl__encode_per_channel(const kvl__codec* c, const kvl__encode_args* a)
{
    enum { VALUES = 16384 };                 // at least 4 channels of the longest group
    float row[KVL__MAX_HEAD_DIM], x[VALUES];
    const int32_t fit = VALUES / c->group_size, most = fit < c->head_dim ? fit : c->head_dim;
    for (int32_t r = 0; r < a->num_rows; r += c->group_size) {
        for (int32_t i = 0, width; i < c->head_dim; i += width) {
            width = c->head_dim - i < most ? c->head_dim - i : most;
            for (int32_t t = 0; t < c->group_size; ++t) {
                kvl__load_row(c, a->tables, a->rows + (r + t) * a->row_stride, row);
                memcpy(x + t * width, row + i, (size_t)width * sizeof(float));
            }
            for (int32_t j = 0; j < width; ++j)
                kvl__encode_group(c, a, x + j, c->group_size, width, a->first_row + r, i + j);
        }
    }
}

// CHOICES

// The rows of a unit in each basis, and how each is fitted.  Groups are numbered as in the page,
// from the unit's first.
typedef struct kvl__unit {
    int32_t         num_rows;
    const uint16_t* rows;                          // as the window has them
    int64_t         row_stride;
    float           x[KVL__NUM_BASES][KVL__UNIT_VALUES];       // [num_rows, head_dim]
    kvl__grid       grids[KVL__NUM_BASES][KVL__MAX_HEAD_DIM];
    unsigned char   scales[KVL__NUM_BASES][KVL__MAX_HEAD_DIM][2];
    unsigned char   zeros[KVL__NUM_BASES][KVL__MAX_HEAD_DIM][2];
} kvl__unit;

// What the candidates of a unit, or of many, cost.
typedef struct kvl__choose_sums {
    double piece[2][KVL__MAX_HEAD_DIM / 16];       // each piece by itself: as it is, rotated
    double whole[2];                               // the pieces as chosen, the head rotated
} kvl__choose_sums;

KVL__FN int32_t kvl__unit_rows(const kvl__codec* c)
{
    return c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL ? c->group_size : 1;
}

// Group of a channel among the unit's.
KVL__FN int32_t kvl__unit_group(const kvl__codec* c, int32_t channel)
{
    return c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL ? channel : channel / c->group_size;
}

KVL__FN void kvl__unit_fit(const kvl__codec* c, kvl__unit* u, int basis)
{
    const int along = c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL;
    const int32_t num_groups = along ? c->head_dim : c->head_dim / c->group_size;
    for (int32_t g = 0; g < num_groups; ++g) {
        const int flag = g == 0 && kvl__is_flagged(c) ? basis == KVL__HEAD : -1;
        u->grids[basis][g] = kvl__fit(c, u->x[basis] + g * (along ? 1 : c->group_size),
                                      c->group_size, along ? c->head_dim : 1, flag,
                                      u->scales[basis][g], u->zeros[basis][g]);
    }
}

// rows: [unit_rows, row_stride] of the window.
KVL__FN void kvl__unit_load(const kvl__codec* c, const float* tables, const uint16_t* rows,
                            int64_t row_stride, kvl__unit* u)
{
    const int32_t dim = c->head_dim;
    u->num_rows = kvl__unit_rows(c);
    u->rows = rows;
    u->row_stride = row_stride;
    for (int32_t t = 0; t < u->num_rows; ++t) {
        float* const x[] = { u->x[0] + t * dim, u->x[1] + t * dim, u->x[2] + t * dim };
        kvl__load_row(c, tables, rows + t * row_stride, x[KVL__PLAIN]);
        memcpy(x[KVL__PIECES], x[KVL__PLAIN], (size_t)dim * sizeof(float));
        memcpy(x[KVL__HEAD], x[KVL__PLAIN], (size_t)dim * sizeof(float));
        kvl__rotate(c, kvl__all_pieces(c), x[KVL__PIECES]);
        kvl__rotate(c, KVL__HEAD_BIT, x[KVL__HEAD]);
    }
    for (int basis = 0; basis < KVL__NUM_BASES; ++basis) kvl__unit_fit(c, u, basis);
}

// The error of row t in a basis, rotated back: e [dim].
KVL__FN void kvl__unit_error(const kvl__codec* c, const kvl__unit* u, int basis, int32_t t,
                             float* e)
{
    const uint32_t all[] = { 0u, kvl__all_pieces(c), KVL__HEAD_BIT };
    for (int32_t i = 0; i < c->head_dim; ++i) {
        const kvl__grid g = u->grids[basis][kvl__unit_group(c, i)];
        const float x = u->x[basis][t * c->head_dim + i];
        e[i] = x - (g.scale * (float)kvl__round(c, x, g) + g.offset);
    }
    kvl__rotate(c, all[basis], e);
}

// What calibration queries make of row t: p [number of them].
KVL__FN void kvl__score_weights(const kvl__codec* c, const float* tables, const kvl__unit* u,
                                int32_t t, double* p)
{
    if (c->words[KVL__STAGE_SCORE] != KVL__SCORE_ATTENTION) return;
    const int32_t num = c->numbers[KVL__STAGE_SCORE];
    const float* queries = tables + kvl__table_at(c, "queries");     // [dim, num]
    const float* lse = tables + kvl__table_at(c, "query_lse");
    for (int32_t n = 0; n < num; ++n) {
        double dot = 0.0;
        for (int32_t i = 0; i < c->head_dim; ++i)
            dot += (double)queries[i * num + n] *
                   (double)kvl__row_to_f32(u->rows[t * u->row_stride + i], c->rows);
        p[n] = exp(fmin(dot - (double)lse[n], 0.0));
    }
}

// What the error e [dim] costs in channels [first, first + count), with p of its row.
KVL__FN double kvl__score(const kvl__codec* c, const float* tables, const double* p, const float* e,
                          int32_t first, int32_t count)
{
    const int32_t num = c->numbers[KVL__STAGE_SCORE], dim = c->head_dim;
    double sum = 0.0;
    switch (c->words[KVL__STAGE_SCORE]) {
    case KVL__SCORE_ATTENTION: {
        const float* queries = tables + kvl__table_at(c, "queries");
        for (int32_t n = 0; n < num; ++n) {
            double dot = 0.0;
            for (int32_t i = first; i < first + count; ++i)
                dot += (double)queries[i * num + n] * (double)e[i];
            sum += p[n] * dot * dot;
        }
        break;
    }
    case KVL__SCORE_CHANNEL: {
        const float* moment = tables + kvl__table_at(c, "query_moment");
        for (int32_t i = first; i < first + count; ++i) {
            double row = 0.0;
            for (int32_t j = first; j < first + count; ++j)
                row += (double)moment[i * dim + j] * (double)e[j];
            sum += (double)e[i] * row;
        }
        break;
    }
    default:
        for (int32_t i = first; i < first + count; ++i) sum += (double)e[i] * (double)e[i];
    }
    return sum;
}

// Adds a unit's scores to the sums: of pieces by themselves and of the head; with `choice` not NULL
// of the pieces that it chooses instead.
KVL__FN void kvl__choose_add_unit(const kvl__codec* c, const float* tables, const kvl__unit* u,
                                  const uint32_t* choice, kvl__choose_sums* sums)
{
    const int32_t dim = c->head_dim, piece = kvl__choice_piece(c);
    float e[KVL__NUM_BASES][KVL__MAX_HEAD_DIM];
    double p[512];
    for (int32_t t = 0; t < u->num_rows; ++t) {
        kvl__score_weights(c, tables, u, t, p);
        for (int basis = 0; basis < KVL__NUM_BASES; ++basis)
            kvl__unit_error(c, u, basis, t, e[basis]);
        if (choice) {
            for (int32_t i = 0; i < dim; ++i)
                if (kvl__basis_of(c, *choice, i) == KVL__PIECES)
                    e[KVL__PLAIN][i] = e[KVL__PIECES][i];
            sums->whole[0] += kvl__score(c, tables, p, e[KVL__PLAIN], 0, dim);
            continue;
        }
        for (int32_t i = 0; i < dim; i += piece)
            for (int basis = 0; basis < 2; ++basis)
                sums->piece[basis][i / piece] += kvl__score(c, tables, p, e[basis], i, piece);
        sums->whole[1] += kvl__score(c, tables, p, e[KVL__HEAD], 0, dim);
    }
}

// The pieces that are better rotated.
KVL__FN uint32_t kvl__choose_pieces(const kvl__codec* c, const kvl__choose_sums* sums)
{
    uint32_t choice = 0;
    for (int32_t p = 0; p < c->head_dim / kvl__choice_piece(c); ++p)
        if (sums->piece[1][p] < sums->piece[0][p]) choice |= 1u << p;
    return choice;
}

KVL__FN uint32_t kvl__choose_unit(const kvl__codec* c, const float* tables, const kvl__unit* u,
                                  kvl__choose_sums* sums)
{
    memset(sums, 0, sizeof *sums);
    kvl__choose_add_unit(c, tables, u, NULL, sums);
    const uint32_t choice = kvl__choose_pieces(c, sums);
    kvl__choose_add_unit(c, tables, u, &choice, sums);
    return sums->whole[1] < sums->whole[0] ? KVL__HEAD_BIT : choice;
}

// For the calibration of choose=fixed: the side whose record has the tables that scores read.
KVL__FN kvl__codec kvl__choose_codec(const kvl__codec* fixed)
{
    kvl__codec c = *fixed;
    c.words[KVL__STAGE_CHOOSE] = KVL__CHOOSE_UNIT;
    return c;
}

// Adds the scores of rows [num_rows, row_stride] of a window, whole units, to sums that begin as
// zeros.  Twice over the same rows: with choice NULL, then with the kvl__choose_pieces that came of
// it; kvl__choose_fix gives the table.  tables: a record of kvl__choose_codec(fixed).
KVL__FN kvl_status kvl__choose_add(kvl_context* ctx, const kvl__codec* fixed, const float* tables,
                                   const uint16_t* rows, int64_t row_stride, int32_t num_rows,
                                   const uint32_t* choice, kvl__choose_sums* sums)
{
    const kvl__codec c = kvl__choose_codec(fixed);
    const int32_t step = kvl__unit_rows(&c);
    kvl__unit* u = (kvl__unit*)kvl__alloc(ctx, sizeof *u);
    KVL__REQUIRE(ctx, u, KVL_NO_MEMORY, "the allocator has no %zu bytes", sizeof *u);
    for (int32_t r = 0; r + step <= num_rows; r += step) {
        kvl__unit_load(&c, tables, rows + r * row_stride, row_stride, u);
        for (int basis = 0; basis < KVL__NUM_BASES; ++basis) kvl__unit_fit(fixed, u, basis);
        kvl__choose_add_unit(&c, tables, u, choice, sums);
    }
    kvl__free(ctx, u, sizeof *u);
    return KVL_OK;
}

// choice: table choice, [pieces + 1].
KVL__FN void kvl__choose_fix(const kvl__codec* c, const kvl__choose_sums* sums, float* choice)
{
    const uint32_t bits = kvl__choose_pieces(c, sums);
    const int32_t num_pieces = c->head_dim / kvl__choice_piece(c);
    for (int32_t p = 0; p < num_pieces; ++p) choice[p] = (float)(bits >> p & 1u);
    choice[num_pieces] = sums->whole[1] < sums->whole[0] ? 1.0f : 0.0f;
}

// Metadata and codes of a unit that begins at `row` of a page.
KVL__FN void kvl__unit_write(const kvl__codec* c, const kvl__encode_args* a, const kvl__unit* u,
                             uint32_t choice, int64_t row)
{
    const kvl__side_layout l = kvl__layout_of(c, a->page_size);
    const int32_t piece = kvl__choice_piece(c);
    for (int32_t i = 0; i < c->head_dim; ++i) {
        const int32_t g = kvl__unit_group(c, i);
        const int basis = kvl__basis_of(c, choice, i);
        if (i == 0 || g != kvl__unit_group(c, i - 1)) {
            const int64_t group = kvl__group_of(c, row, i);
            unsigned char* scale_at = a->page + l.scales_at + group * l.scale_bytes;
            memcpy(scale_at, u->scales[basis][g], (size_t)l.scale_bytes);
            if (i % piece == 0 && basis == KVL__PIECES) scale_at[l.scale_bytes - 1] |= 0x80u;
            memcpy(a->page + l.zeros_at + group * l.zero_bytes, u->zeros[basis][g],
                   (size_t)l.zero_bytes);
        }
        for (int32_t t = 0; t < u->num_rows; ++t)
            kvl__put_code(a->page, ((row + t) * c->head_dim + i) * c->bits, c->bits,
                          kvl__round(c, u->x[basis][t * c->head_dim + i], u->grids[basis][g]));
    }
}

KVL__FN void kvl__encode_units(const kvl__codec* c, const kvl__encode_args* a)
{
    kvl__unit u;
    kvl__choose_sums sums;
    for (int32_t r = 0; r < a->num_rows; r += u.num_rows) {
        kvl__unit_load(c, a->tables, a->rows + r * a->row_stride, a->row_stride, &u);
        kvl__unit_write(c, a, &u, kvl__choose_unit(c, a->tables, &u, &sums), a->first_row + r);
    }
}

// The choice of a row of a page.
KVL__FN uint32_t kvl__choice_of(const kvl__codec* c, const float* tables,
                                const kvl__side_layout* l, const unsigned char* page, int64_t row)
{
    uint32_t choice = 0;
    if (c->words[KVL__STAGE_CHOOSE] == KVL__CHOOSE_FIXED) return kvl__fixed_choice(c, tables);
    if (!kvl__is_flagged(c)) return 0;
    if (page[l->zeros_at + kvl__group_of(c, row, 0) * l->zero_bytes] & 1u) return KVL__HEAD_BIT;
    for (int32_t i = 0, p = 0; i < c->head_dim; i += kvl__choice_piece(c), ++p) {
        const int64_t at = l->scales_at + kvl__group_of(c, row, i) * l->scale_bytes;
        if (page[at + l->scale_bytes - 1] & 0x80u) choice |= 1u << p;
    }
    return choice;
}

// FEEDBACK: gen/parts/feedback.lua defines it.

KVL__FN int kvl__sweeps(const kvl__codec* c)
{
    return kvl__has_path(c) ? 1 : c->numbers[KVL__STAGE_ROUND];
}

enum { KVL__FEEDBACK_ROWS = 64 };

// Rows of one call: channels in the table's order, tokens side by side.
typedef struct kvl__feedback {
    int32_t num_rows, order[KVL__MAX_HEAD_DIM];
    float   y[KVL__MAX_HEAD_DIM][KVL__FEEDBACK_ROWS], e[KVL__MAX_HEAD_DIM][KVL__FEEDBACK_ROWS];
    uint16_t codes[KVL__MAX_HEAD_DIM][KVL__FEEDBACK_ROWS];
} kvl__feedback;

KVL__FN void kvl__feedback_load(const kvl__codec* c, const kvl__encode_args* a, int32_t first,
                                kvl__feedback* f)
{
    const float* order = kvl__has_path(c) ? NULL : a->tables + kvl__table_at(c, "feedback_order");
    float x[KVL__MAX_HEAD_DIM];
    memset(f->e, 0, sizeof f->e);
    for (int32_t j = 0; j < c->head_dim; ++j) f->order[j] = order ? (int32_t)order[j] : j;
    for (int32_t t = 0; t < f->num_rows; ++t) {
        kvl__load_row(c, a->tables, a->rows + (first + t) * a->row_stride, x);
        for (int32_t j = 0; j < c->head_dim; ++j) f->y[j][t] = x[f->order[j]];
    }
}

// The sum of row[i] times error i of a token, in four parts.
KVL__FN float kvl__feedback_sum(const kvl__feedback* f, const float* row, int32_t end, int32_t t)
{
    float s[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    for (int32_t i = 0; i < end; ++i) s[i % 4] = fmaf(row[i], f->e[i][t], s[i % 4]);
    return (s[0] + s[1]) + (s[2] + s[3]);
}

KVL__FN float kvl__sum_of_squares(const float* x, int32_t count)
{
    float s[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    for (int32_t t = 0; t < count; ++t) s[t % 4] += x[t] * x[t];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

// Channel j of a group along tokens; of a sweep only where it is better.
KVL__FN void kvl__feedback_channel(const kvl__codec* c, kvl__feedback* f, int32_t j, int is_first,
                                   const float* g, unsigned char* scale_at, unsigned char* zero_at)
{
    float t[KVL__FEEDBACK_ROWS], was[KVL__FEEDBACK_ROWS], now[KVL__FEEDBACK_ROWS];
    unsigned char scale[2], zero[2];
    uint16_t codes[KVL__FEEDBACK_ROWS], levels[KVL__FEEDBACK_ROWS];
    const int32_t count = f->num_rows;
    for (int32_t i = 0; i < count; ++i) t[i] = f->y[j][i] + g[i];
    const kvl__grid grid = kvl__fit(c, t, count, 1, -1, scale, zero);
    kvl__round_group(c, t, count, 1, grid, codes, levels);
    for (int32_t i = 0; i < count; ++i) {
        was[i] = f->e[j][i] + g[i];
        now[i] = t[i] - (grid.scale * (float)levels[i] + grid.offset);
    }
    if (!is_first && !(kvl__sum_of_squares(now, count) < kvl__sum_of_squares(was, count))) return;
    for (int32_t i = 0; i < count; ++i) {
        f->e[j][i] = f->y[j][i] - (grid.scale * (float)levels[i] + grid.offset);
        f->codes[j][i] = codes[i];
    }
    const kvl__word* meta = kvl__word_of(c, KVL__STAGE_META);
    memcpy(scale_at, scale, (size_t)meta->scale_bytes);
    memcpy(zero_at, zero, (size_t)meta->zero_bytes);
}

// Groups along channels: the grids of all rows, fitted before any value is rounded.
KVL__FN void kvl__feedback_grids(const kvl__codec* c, const kvl__encode_args* a, int32_t first,
                                 const kvl__feedback* f, kvl__grid* grids)
{
    const kvl__side_layout l = kvl__layout_of(c, a->page_size);
    const int32_t num = c->head_dim / c->group_size;
    float x[KVL__MAX_HEAD_DIM];
    for (int32_t t = 0; t < f->num_rows; ++t) {
        for (int32_t j = 0; j < c->head_dim; ++j) x[f->order[j]] = f->y[j][t];
        for (int32_t i = 0; i < num; ++i) {
            const int64_t group = kvl__group_of(c, a->first_row + first + t, i * c->group_size);
            grids[t * num + i] = kvl__fit(c, x + i * c->group_size, c->group_size, 1, -1,
                                          a->page + l.scales_at + group * l.scale_bytes,
                                          a->page + l.zeros_at + group * l.zero_bytes);
        }
    }
}

KVL__FN void kvl__feedback_pass(const kvl__codec* c, const kvl__encode_args* a, int32_t first,
                                int pass, const kvl__grid* grids, kvl__feedback* f)
{
    const int along = c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL;
    const float* table = a->tables + kvl__table_at(c, pass ? "feedback_price" : "feedback_factor");
    const kvl__side_layout l = kvl__layout_of(c, a->page_size);
    const int32_t num = c->head_dim / c->group_size;
    float g[KVL__FEEDBACK_ROWS];
    for (int32_t j = 0; j < c->head_dim; ++j) {
        const int64_t group = kvl__group_of(c, a->first_row + first, f->order[j]);
        for (int32_t t = 0; t < f->num_rows; ++t)
            g[t] = kvl__feedback_sum(f, table + j * c->head_dim, pass ? c->head_dim : j, t);
        if (along)
            kvl__feedback_channel(c, f, j, pass == 0, g,
                                  a->page + l.scales_at + group * l.scale_bytes,
                                  a->page + l.zeros_at + group * l.zero_bytes);
        for (int32_t t = 0; !along && t < f->num_rows; ++t) {
            const kvl__grid grid = grids[t * num + f->order[j] / c->group_size];
            f->codes[j][t] = (uint16_t)kvl__round(c, f->y[j][t] + g[t], grid);
            f->e[j][t] = f->y[j][t] - (grid.scale * (float)f->codes[j][t] + grid.offset);
        }
    }
}

// WAYS THAT CARRY THEIR ERRORS: gen/parts/feedback_trellis.lua defines them.

// The ways into each state, of the channels of one group.
typedef struct kvl__ways {
    float    sums[KVL__MAX_STATES], e[KVL__MAX_STATES][KVL__PATH_MOST];
    uint16_t codes[KVL__MAX_STATES][KVL__PATH_MOST];
} kvl__ways;

typedef struct kvl__guided {
    const kvl__codec*    codec;
    const kvl__feedback* f;
    const float*         factor;       // [dim, dim]
    const float*         cost;         // [dim]
    int32_t              token, first; // first: channel of the group
    kvl__grid            grid;
    kvl__ways            ways[2];      // to a channel, and beyond it
} kvl__guided;

// The way into state `to` by `before` is continued with channel j, the target t and what it cost.
KVL__FN void kvl__guided_join(kvl__guided* u, int32_t j, int32_t before, int32_t to, float w,
                              float sum)
{
    const kvl__trellis trellis = kvl__trellis_for(u->codec);
    const int sub = kvl__trellis_sub(&trellis, (uint32_t)before << 1 | (uint32_t)(to & 1));
    const int high = kvl__path_high(&trellis, w, sub);
    const size_t known = (size_t)(j - u->first);
    const float back = u->grid.scale * (float)(4 * high + sub) + u->grid.offset;
    memcpy(u->ways[1].e[to], u->ways[0].e[before], known * sizeof(float));
    memcpy(u->ways[1].codes[to], u->ways[0].codes[before], known * sizeof(uint16_t));
    u->ways[1].e[to][known] = u->f->y[j][u->token] - back;
    u->ways[1].codes[to][known] = (uint16_t)(high << 1 | (to & 1));
    u->ways[1].sums[to] = sum;
}

KVL__FN void kvl__guided_step(kvl__guided* u, int32_t j)
{
    const kvl__trellis trellis = kvl__trellis_for(u->codec);
    const float* row = u->factor + j * u->codec->head_dim;
    const float base = u->f->y[j][u->token] + kvl__feedback_sum(u->f, row, u->first, u->token);
    const int32_t half = trellis.states / 2;
    float w[KVL__MAX_STATES];
    for (int32_t s = 0; s < trellis.states; ++s) {
        float sum = 0.0f;
        for (int32_t i = u->first; i < j; ++i)
            sum = fmaf(row[i], u->ways[0].e[s][i - u->first], sum);
        w[s] = kvl__path_target(&trellis, (base + sum - u->grid.offset) * u->grid.inverse);
    }
    for (int32_t to = 0; to < trellis.states; ++to) {
        float sums[2];
        for (int k = 0; k < 2; ++k) {
            const int32_t s = (to >> 1) + k * half;
            const int sub = kvl__trellis_sub(&trellis, (uint32_t)s << 1 | (uint32_t)(to & 1));
            const int level = 4 * kvl__path_high(&trellis, w[s], sub) + sub;
            const float e = (w[s] - (float)level) * u->grid.scale;
            sums[k] = u->ways[0].sums[s] + u->cost[j] * (e * e);
        }
        const int k = sums[1] < sums[0];
        kvl__guided_join(u, j, (to >> 1) + k * half, to, w[(to >> 1) + k * half], sums[k]);
    }
    memcpy(&u->ways[0], &u->ways[1], sizeof u->ways[0]);
}

// Errors and codes of one token's group.
KVL__FN void kvl__guided_group(kvl__guided* u, kvl__feedback* f)
{
    const int32_t states = u->codec->numbers[KVL__STAGE_ROUND], n = u->codec->group_size;
    int32_t end = 0;
    for (int pass = 0; pass < 2; ++pass) {
        for (int32_t s = 0; s < states; ++s)
            u->ways[0].sums[s] = pass && s != end ? 1e30f : 0.0f;
        for (int32_t j = u->first; j < u->first + n; ++j) kvl__guided_step(u, j);
        for (int32_t s = 0; pass == 0 && s < states; ++s)
            if (u->ways[0].sums[s] < u->ways[0].sums[end]) end = s;
    }
    for (int32_t i = 0; i < n; ++i) {
        f->e[u->first + i][u->token] = u->ways[0].e[end][i];
        f->codes[u->first + i][u->token] = u->ways[0].codes[end][i];
    }
}

KVL__FN void kvl__encode_guided(const kvl__codec* c, const kvl__encode_args* a,
                                const kvl__grid* grids, kvl__feedback* f)
{
    const int32_t num = c->head_dim / c->group_size;
    kvl__guided u;
    memset(&u, 0, sizeof u);
    u.codec = c;
    u.f = f;
    u.factor = a->tables + kvl__table_at(c, "feedback_factor");
    u.cost = a->tables + kvl__table_at(c, "feedback_cost");
    for (u.token = 0; u.token < f->num_rows; ++u.token)
        for (int32_t i = 0; i < num; ++i) {
            u.grid = grids[u.token * num + i];
            u.first = i * c->group_size;
            kvl__guided_group(&u, f);
        }
}

KVL__FN void kvl__encode_feedback(const kvl__codec* c, const kvl__encode_args* a)
{
    const int along = c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL;
    const int32_t most = along ? c->group_size : 16;
    kvl__grid grids[16 * KVL__MAX_HEAD_DIM / 2];
    kvl__feedback f;
    for (int32_t r = 0; r < a->num_rows; r += most) {
        f.num_rows = a->num_rows - r < most ? a->num_rows - r : most;
        kvl__feedback_load(c, a, r, &f);
        if (!along) kvl__feedback_grids(c, a, r, &f, grids);
        if (kvl__has_path(c) && !along) kvl__encode_guided(c, a, grids, &f);
        else for (int pass = 0; pass <= kvl__sweeps(c); ++pass)
            kvl__feedback_pass(c, a, r, pass, grids, &f);
        for (int32_t j = 0; j < c->head_dim; ++j)
            for (int32_t t = 0; t < f.num_rows; ++t)
                kvl__put_code(a->page, ((int64_t)(a->first_row + r + t) * c->head_dim + f.order[j])
                              * c->bits, c->bits, f.codes[j][t]);
    }
}

// As groups along tokens are, then the promoted channels again.
KVL__FN void kvl__encode_promoted(const kvl__codec* c, const kvl__encode_args* a)
{
    const kvl__side_layout l = kvl__layout_of(c, a->page_size);
    float x[KVL__GROUP_MOST], row[KVL__MAX_HEAD_DIM];
    kvl__encode_per_channel(c, a);
    for (int32_t r = 0; r < a->num_rows; r += c->group_size) {
        unsigned char* beside = kvl__planes_at(c, &l, a->page, a->first_row + r);
        memset(beside, 0, (size_t)l.extra_bytes);
        kvl__find_strong(c, a, r, beside);
        for (int32_t n = 0; n < kvl__promoted(c); ++n) {
            for (int32_t t = 0; t < c->group_size; ++t) {
                kvl__load_row(c, a->tables, a->rows + (r + t) * a->row_stride, row);
                x[t] = row[beside[n]];
            }
            kvl__encode_strong(c, a, x, a->first_row + r, n);
        }
    }
}

KVL__FN void kvl__ref_encode(const kvl__encode_args* a)
{
    const kvl__codec* c = (const kvl__codec*)a->codec;
    if (kvl__has_no_codes(c)) return;
    if (kvl__has_norms(c)) kvl__store_norms(c, a);
    if (kvl__has_feedback(c)) {
        kvl__encode_feedback(c, a);
        return;
    }
    if (kvl__promoted(c)) kvl__encode_promoted(c, a);
    else if (kvl__is_flagged(c)) kvl__encode_units(c, a);
    else if (c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL) kvl__encode_per_channel(c, a);
    else kvl__encode_per_token(c, a);
}

// Row `row` of a page in the codec's basis is y: its norm, which that was divided by; 1: none.
KVL__FN float kvl__norm_of(const kvl__codec* c, const kvl__side_layout* l,
                           const unsigned char* page, int64_t row)
{
    return kvl__has_norms(c) ? kvl__e5m3_to_f32(page[l->extra_at + row]) : 1.0f;
}

// What scales are multiplied with, of a value of a page.
KVL__FN int kvl__level_of(const kvl__codec* c, const unsigned char* page, int64_t row,
                          int32_t channel)
{
    const int along = c->words[KVL__STAGE_AXIS] == KVL__AXIS_PER_CHANNEL;
    const int64_t here = row * c->head_dim + channel, n = c->group_size;
    if (kvl__has_plane(c))
        return kvl__get_code(page, (here & ~(int64_t)1) * c->bits, 2 * c->bits) +
               (int)(here & 1) * kvl__book_of(c)->num_bounds;
    if (!kvl__has_path(c)) return kvl__get_code(page, here * c->bits, c->bits);
    const kvl__trellis trellis = kvl__trellis_for(c);
    const int64_t step = along ? c->head_dim : 1, at = along ? row % n : channel % n;
    uint32_t history = 0;
    for (int64_t delay = 0; 1 << delay < 2 * trellis.states; ++delay) {
        const int64_t from = here + (((at - delay) % n + n) % n - at) * step;
        history |= (uint32_t)(kvl__get_code(page, from * c->bits, c->bits) & 1) << delay;
    }
    return 4 * (kvl__get_code(page, here * c->bits, c->bits) >> 1) +
           kvl__trellis_sub(&trellis, history);
}

// What a level of kvl__level_of stands for, in units of the scale.
KVL__FN float kvl__level_value(const kvl__book* book, int level)
{
    return book ? book->values[level] : (float)level;
}

// Row `row` of a page in the codec's basis.
KVL__FN void kvl__decode_row(const kvl__codec* c, const kvl__side_layout* l,
                             const unsigned char* page, int64_t row, float* x)
{
    if (kvl__has_no_codes(c)) {
        memset(x, 0, (size_t)c->head_dim * sizeof *x);
        return;
    }
    for (int set = 0; kvl__is_split(c) && set < kvl__num_sets(c); ++set) {
        const kvl__codec s = kvl__set_of(c, set);
        const kvl__side_layout of = kvl__layout_of(&s, l->page_size);
        kvl__decode_row(&s, &of, page + kvl__set_at(c, set, l->page_size), row, x);
        x += s.head_dim;
    }
    if (kvl__is_split(c)) return;
    if (c->group_size == 0) {
        const unsigned char* from = page + 2 * row * c->head_dim;
        const int bf16 = c->words[KVL__STAGE_LEVELS] == KVL__LEVELS_BF16;
        for (int32_t i = 0; i < c->head_dim; ++i)
            x[i] = kvl__row_to_f32(kvl__get_u16(from + 2 * i), bf16);
        return;
    }
    const kvl__book* book = kvl__book_of(c);
    int64_t last = -1;
    kvl__grid g = { 0.0f, 0.0f, 0.0f };
    for (int32_t i = 0; i < c->head_dim; ++i) {
        const int64_t group = kvl__group_of(c, row, i);
        if (group != last) {
            g = kvl__load_grid(c, page + l->scales_at + group * l->scale_bytes,
                               page + l->zeros_at + group * l->zero_bytes);
            last = group;
        }
        x[i] = g.scale * kvl__level_value(book, kvl__level_of(c, page, row, i)) + g.offset;
    }
}

KVL__FN void kvl__ref_decode_grids(const kvl__codec* c, const kvl__decode_args* a)
{
    const int num_sets = kvl__num_sets(c);
    if (c->group_size == 0 || !a->scales || !a->offsets) return;
    for (int set = 0; set < num_sets; ++set) {
        const kvl__codec s = kvl__set_of(c, set);
        const kvl__side_layout l = kvl__layout_of(&s, a->page_size);
        const unsigned char* page = a->page + kvl__set_at(c, set, a->page_size);
        const int64_t first = kvl__group_of(&s, a->first_row, 0);
        const int64_t num = kvl__num_groups(&s, a->num_rows);
        for (int64_t i = 0; i < num; ++i) {
            const kvl__grid g = kvl__load_grid(&s, page + l.scales_at + (first + i) * l.scale_bytes,
                                               page + l.zeros_at + (first + i) * l.zero_bytes);
            a->scales[i * num_sets + set] = g.scale;
            a->offsets[i * num_sets + set] = g.offset;
        }
    }
}

// The codes of row `row` of a page, [head_dim], in the order of the sets.
KVL__FN void kvl__read_sets(const kvl__codec* c, const kvl__decode_args* a, int64_t row,
                            uint16_t* codes)
{
    for (int set = 0; set < kvl__num_sets(c); ++set) {
        const kvl__codec s = kvl__set_of(c, set);
        const unsigned char* page = a->page + kvl__set_at(c, set, a->page_size);
        for (int32_t i = 0; i < s.head_dim; ++i)
            *codes++ = (uint16_t)kvl__level_of(&s, page, row, i);
    }
}

KVL__FN void kvl__ref_decode(const kvl__decode_args* a)
{
    const kvl__codec* c = (const kvl__codec*)a->codec;
    const kvl__side_layout l = kvl__layout_of(c, a->page_size);
    for (int32_t r = 0; r < a->num_rows; ++r) {
        const int64_t row = a->first_row + r;
        if (a->rows) {
            const float* shift = kvl__shift_of(c, a->tables);
            float* x = a->rows + (int64_t)r * c->head_dim;
            if (kvl__has_widths(c)) kvl__decode_widths_row(c, &l, a->tables, a->page, row, x);
            else kvl__decode_row(c, &l, a->page, row, x);
            kvl__add_planes(c, &l, a->page, row, x);
            for (int32_t i = 0; kvl__has_book(c) && i < c->head_dim; ++i)
                x[i] = a->tables[kvl__table_at(c, "kmeans_book") + (int64_t)x[i]];
            if (kvl__is_flagged(c))
                kvl__rotate(c, kvl__choice_of(c, a->tables, &l, a->page, row), x);
            else
                kvl__from_basis(c, a->tables, x);
            const float norm = kvl__norm_of(c, &l, a->page, row);
            for (int32_t i = 0; i < c->head_dim; ++i) x[i] *= norm;
            for (int32_t i = 0; shift && i < c->head_dim; ++i) x[i] += shift[i];
            kvl__read_slots(c, &l, a->page, row, x);
        }
        if (a->codes && kvl__has_widths(c)) {
            kvl__read_widths(c, a->tables, a->page, row, a->codes + (int64_t)r * c->head_dim);
            continue;
        }
        if (a->codes && kvl__is_split(c)) {
            kvl__read_sets(c, a, row, a->codes + (int64_t)r * c->head_dim);
            continue;
        }
        for (int32_t i = 0; a->codes && i < c->head_dim; ++i) {
            const int64_t at = row * c->head_dim + i;
            if (kvl__has_no_codes(c)) {
                a->codes[(int64_t)r * c->head_dim + i] = 0;
                continue;
            }
            a->codes[(int64_t)r * c->head_dim + i] = c->group_size
                ? (uint16_t)kvl__level_of(c, a->page, row, i)
                : kvl__get_u16(a->page + 2 * at);
        }
    }
    kvl__ref_decode_grids(c, a);
    for (int32_t r = 0, n = 0; a->choices && r < a->num_rows; r += kvl__unit_rows(c))
        a->choices[n++] = kvl__choice_of(c, a->tables, &l, a->page, a->first_row + r);
}

// A page of the reference is linear: rows and groups are copied.
KVL__FN void kvl__ref_linear(const kvl__linear_args* a)
{
    const kvl__codec* c = (const kvl__codec*)a->codec;
    const kvl__side_layout l = kvl__layout_of(c, a->page_size);
    unsigned char* to = a->into_page ? a->page : a->linear;
    const unsigned char* from = a->into_page ? a->linear : a->page;
    for (int set = 0; kvl__is_split(c) && set < kvl__num_sets(c); ++set) {
        const kvl__codec s = kvl__set_of(c, set);
        const kvl__linear_args of = kvl__linear_of_set(a, &s, set);
        kvl__ref_linear(&of);
    }
    if (kvl__is_split(c)) return;
    const int64_t values = (int64_t)a->num_rows * c->head_dim;
    const int64_t groups = c->group_size ? values / c->group_size : 0;
    memcpy(to, from, (size_t)(values * c->bits / 8));
    memcpy(to + l.scales_at, from + l.scales_at, (size_t)(groups * l.scale_bytes));
    memcpy(to + l.zeros_at, from + l.zeros_at, (size_t)(groups * l.zero_bytes));
    kvl__copy_extra(a, &l);
}

// ATTEND

// Online softmax of up to KVL__MAX_HEADS heads.  The empty set is max = -inf, sum = 0, o = 0.
typedef struct kvl__softmax {
    float max[KVL__MAX_HEADS], sum[KVL__MAX_HEADS];
} kvl__softmax;

KVL__FN void kvl__softmax_start(kvl__softmax* s, const kvl__attend_args* a, int32_t dim)
{
    for (int32_t h = 0; h < a->num_heads; ++h) {
        s->max[h] = -INFINITY;
        s->sum[h] = 0.0f;
    }
    memset(a->o, 0, (size_t)a->num_heads * (size_t)dim * sizeof(float));
}

// Soft cap, then ALiBi, of scores [num_heads].
KVL__FN void kvl__scores_finish(const kvl__attend_args* a, int64_t position, float* scores)
{
    for (int32_t h = 0; h < a->num_heads; ++h) {
        if (a->soft_cap > 0.0f) scores[h] = a->soft_cap * tanhf(scores[h] / a->soft_cap);
        if (a->slopes) scores[h] += a->slopes[h] * (float)position;
    }
}

// Scale is in q [num_heads, dim] already; bias [num_heads] (NULL: none), of quantized rows what
// their own shift took, in scores; the mask is the range of rows that is visited.
KVL__FN void kvl__scores_of_row(const kvl__attend_args* a, const float* queries, const float* k,
                                int32_t dim, const float* bias, int64_t position, float* scores)
{
    for (int32_t h = 0; h < a->num_heads; ++h) {
        const float* q = queries + (int64_t)h * dim;
        float s = 0.0f;
        for (int32_t i = 0; i < dim; ++i) s += q[i] * k[i];
        if (bias) s += bias[h];
        if (bias && a->add_shifts) s += scores[h];
        scores[h] = s;
    }
    kvl__scores_finish(a, position, scores);
}

// One row's scores [num_heads] and value join the sums.
KVL__FN void kvl__softmax_add(kvl__softmax* s, const kvl__attend_args* a, const float* scores,
                              const float* v, int32_t dim)
{
    for (int32_t h = 0; h < a->num_heads; ++h) {
        float* o = a->o + (int64_t)h * dim;
        if (scores[h] > s->max[h]) {
            const float shrink = expf(s->max[h] - scores[h]);
            s->max[h] = scores[h];
            s->sum[h] *= shrink;
            for (int32_t i = 0; i < dim; ++i) o[i] *= shrink;
        }
        const float p = expf(scores[h] - s->max[h]);
        s->sum[h] += p;
        for (int32_t i = 0; i < dim; ++i) o[i] += p * v[i];
    }
}

KVL__FN void kvl__softmax_finish(const kvl__softmax* s, const kvl__attend_args* a, int32_t dim)
{
    for (int32_t h = 0; h < a->num_heads; ++h) {
        float* o = a->o + (int64_t)h * dim;
        a->lse[h] = s->sum[h] > 0.0f ? s->max[h] + logf(s->sum[h]) : -INFINITY;
        if (s->sum[h] > 0.0f)
            for (int32_t i = 0; i < dim; ++i) o[i] /= s->sum[h];
    }
}

KVL__FN void kvl__ref_attend_windows(const kvl__attend_args* a)
{
    const kvl__codec* kc = (const kvl__codec*)a->k_codec;
    const kvl__codec* vc = (const kvl__codec*)a->v_codec;
    float k[KVL__MAX_HEAD_DIM], v[KVL__MAX_HEAD_DIM], scores[KVL__MAX_HEADS];
    kvl__softmax s;
    kvl__softmax_start(&s, a, vc->head_dim);
    for (int w = 0; w < 2; ++w) {
        const kvl__window* window = &a->windows[w];
        for (int64_t r = 0; r < window->num_rows; ++r) {
            const uint16_t* k_row = window->k + r * kc->head_dim;
            const uint16_t* v_row = window->v + r * vc->head_dim;
            for (int32_t i = 0; i < kc->head_dim; ++i) k[i] = kvl__row_to_f32(k_row[i], kc->rows);
            for (int32_t i = 0; i < vc->head_dim; ++i) v[i] = kvl__row_to_f32(v_row[i], vc->rows);
            kvl__scores_of_row(a, a->q, k, kc->head_dim, NULL, window->position + r, scores);
            kvl__softmax_add(&s, a, scores, v, vc->head_dim);
        }
    }
    kvl__softmax_finish(&s, a, vc->head_dim);
}

// The queries as a row's bases have them: a->q, or to [num_heads, head_dim] from its copies.
KVL__FN const float* kvl__queries_of_row(const kvl__attend_args* a, const kvl__codec* c,
                                         uint32_t choice, float* to)
{
    const int64_t size = (int64_t)a->num_heads * c->head_dim;
    if (!kvl__is_flagged(c)) return a->q;
    for (int64_t i = 0; i < size; ++i)
        to[i] = a->q[kvl__basis_of(c, choice, (int32_t)(i % c->head_dim)) * size + i];
    return to;
}

KVL__FN void kvl__ref_attend_pages(const kvl__attend_args* a)
{
    const kvl__codec* kc = (const kvl__codec*)a->k_codec;
    const kvl__codec* vc = (const kvl__codec*)a->v_codec;
    const kvl__side_layout kl = kvl__layout_of(kc, a->page_size);
    const kvl__side_layout vl = kvl__layout_of(vc, a->page_size);
    float k[KVL__MAX_HEAD_DIM], v[KVL__MAX_HEAD_DIM], scores[KVL__MAX_HEADS];
    float chosen[KVL__MAX_HEADS * KVL__MAX_HEAD_DIM];
    kvl__softmax s;
    kvl__softmax_start(&s, a, vc->head_dim);
    for (int64_t r = a->first_row; r < a->end_row; ++r) {
        const unsigned char* page = a->pages[r / a->page_size];
        const int64_t row = r % a->page_size;
        if (kvl__is_restored(kc)) memset(k, 0, sizeof k);      // add_shifts scores it
        else kvl__decode_row(kc, &kl, page + a->k_offset, row, k);
        const float norm = kvl__norm_of(kc, &kl, page + a->k_offset, row);
        for (int32_t i = 0; i < kc->head_dim; ++i) k[i] *= norm;
        kvl__decode_row(vc, &vl, page + a->v_offset, row, v);
        kvl__read_slots(vc, &vl, page + a->v_offset, row, v);
        const uint32_t choice = kvl__is_flagged(kc) && !kvl__is_restored(kc)
            ? kvl__choice_of(kc, NULL, &kl, page + a->k_offset, row) : 0;
        const float* q = kvl__queries_of_row(a, kc, choice, chosen);
        memset(scores, 0, sizeof scores);
        if (a->add_shifts) a->add_shifts(a->shifts, r, 1, scores, 1);
        kvl__scores_of_row(a, q, k, kc->head_dim, a->bias, a->position + r, scores);
        kvl__softmax_add(&s, a, scores, v, vc->head_dim);
    }
    kvl__softmax_finish(&s, a, vc->head_dim);
}

KVL__FN void kvl__ref_prepare_query(const kvl__basis_args* a)
{
    const kvl__codec* c = (const kvl__codec*)a->codec;
    const float* shift = kvl__shift_of(c, a->tables);
    for (int32_t h = 0; h < a->num_heads; ++h) {
        float* x = a->x + (int64_t)h * c->head_dim;
        for (int32_t i = 0; shift && i < c->head_dim; ++i) a->bias[h] += x[i] * shift[i];
        if (!kvl__is_flagged(c)) kvl__query_to_basis(c, a->tables, x);
        for (int basis = KVL__PIECES; kvl__is_flagged(c) && basis < KVL__NUM_BASES; ++basis) {
            float* copy = x + (int64_t)basis * a->num_heads * c->head_dim;
            memcpy(copy, x, (size_t)c->head_dim * sizeof(float));
            kvl__rotate(c, basis == KVL__HEAD ? KVL__HEAD_BIT : kvl__all_pieces(c), copy);
        }
    }
}

KVL__FN void kvl__ref_finish_output(const kvl__basis_args* a)
{
    const kvl__codec* c = (const kvl__codec*)a->codec;
    const float* shift = kvl__shift_of(c, a->tables);
    for (int32_t h = 0; h < a->num_heads; ++h) {
        float* x = a->x + (int64_t)h * c->head_dim;
        kvl__from_basis(c, a->tables, x);
        for (int32_t i = 0; shift && i < c->head_dim; ++i) x[i] += a->mass[h] * shift[i];
    }
}

// The reference as a program: one for every configuration.
KVL__FN kvl__program kvl__ref_program(const kvl__config* config)
{
    kvl__program p;
    memset(&p, 0, sizeof p);
    p.abi = KVL__ABI;
    p.lanes = 1;
    p.k_page_bytes = kvl__layout_of(&config->side[0], config->page_size).bytes;
    p.v_page_bytes = kvl__layout_of(&config->side[1], config->page_size).bytes;
    p.encode_keys = p.encode_values = kvl__ref_encode;
    p.decode_keys = p.decode_values = kvl__ref_decode;
    p.linear_keys = p.linear_values = kvl__ref_linear;
    p.attend_windows = kvl__ref_attend_windows;
    p.attend_pages = kvl__ref_attend_pages;
    p.prepare_query = kvl__ref_prepare_query;
    p.finish_output = kvl__ref_finish_output;
    return p;
}

#if !defined(__clang__) && defined(__GNUC__)
#pragma GCC pop_options
#endif

#endif
