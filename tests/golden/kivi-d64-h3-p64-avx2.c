#line 1 "templates/host/program.c"
// program.c -- every kernel of one layer configuration, and the descriptor that the runtime reads.

#include <stdint.h>

#line 1 "runtime/kvl_args.h"
// kvl_args.h -- the interface between the runtime and its kernels, generated or not.
//
// This file is part of every generated program as well: an edit here changes the text of all of
// them, and with it their keys on disk.  C99 that is also C++17.
//
// A kernel works on one KV head of one layer.  num_heads is the number of query heads that share
// it. 16-bit rows are f16 or bf16, as the program was made for; `page` points at one side (keys or
// values) of one KV head's part of a page.

#ifndef KVL_ARGS_H
#define KVL_ARGS_H

#include <stdint.h>

enum {
    KVL__ABI = 1,
    KVL__SCRATCH_BYTES = 65536     // the most that a program may ask for a thread
};

// Rows [num_rows, head_dim] in the window, 16 bits, become the page's rows first_row ...
// first_row and num_rows are multiples of the groups that run along tokens.
typedef struct kvl__encode_args {
    const void*     codec;        // of the reference; generated kernels know theirs
    const uint16_t* rows;         // [num_rows, row_stride]
    int64_t         row_stride;   // elements
    unsigned char*  page;         // bits of rows that are not written yet are zero
    int32_t         page_size, first_row, num_rows;
} kvl__encode_args;

// The inverse, for rows [first_row, first_row + num_rows) of a page.
typedef struct kvl__decode_args {
    const void*          codec;
    const unsigned char* page;
    int32_t              page_size, first_row, num_rows;
    float*               rows;      // [num_rows, head_dim] in the original basis; NULL: not asked
    uint16_t*            codes;     // [num_rows, head_dim]; NULL: not asked
    float*               scales;    // per token [num_rows, groups of a row], per channel
    float*               offsets;   // [num_rows / group_size, head_dim]
} kvl__decode_args;

// A stretch of 16-bit rows of one KV head: sink or tail.
typedef struct kvl__window {
    const uint16_t* k;            // [num_rows, head_dim_k], contiguous
    const uint16_t* v;            // [num_rows, head_dim_v]
    int64_t         num_rows;     // visible ones
} kvl__window;

// One part of the rows that num_heads queries attend to: two windows, or rows of pages.
typedef struct kvl__attend_args {
    const void*                 k_codec;
    const void*                 v_codec;
    int32_t                     num_heads, page_size;
    const float*                q;            // [num_heads, head_dim_k], times softmax_scale
    float                       soft_cap;     // 0: none
    kvl__window                 windows[2];   // used if pages is NULL
    const unsigned char* const* pages;        // page contents, all heads
    int64_t                     k_offset;     // of this KV head's keys and values in a page, bytes
    int64_t                     v_offset;
    int64_t                     first_row;    // visible rows [first_row, end_row), counted from the
    int64_t                     end_row;      // first row of pages[0]
    float*                      o;            // [num_heads, head_dim_v] of the part, normalised; of
                                              // pages in the value codec's basis
    float*                      lse;          // [num_heads]; nothing visible: -inf and o = 0
    void*                       scratch;      // scratch_bytes of the program, one thread's
} kvl__attend_args;

// In place: queries [num_heads, head_dim_k] into the key codec's basis, outputs
// [num_heads, head_dim_v] out of the value codec's.
typedef struct kvl__basis_args {
    const void* codec;
    float*      x;
    int32_t     num_heads;
} kvl__basis_args;

// What a program exports, as `kvl__program`.
typedef struct kvl__program {
    int32_t abi, lanes;
    int64_t k_page_bytes, v_page_bytes;       // of one KV head and one page
    int64_t scratch_bytes;
    void (*encode_keys)(const kvl__encode_args*);
    void (*encode_values)(const kvl__encode_args*);
    void (*decode_keys)(const kvl__decode_args*);
    void (*decode_values)(const kvl__decode_args*);
    void (*attend_windows)(const kvl__attend_args*);
    void (*attend_pages)(const kvl__attend_args*);
    void (*prepare_query)(const kvl__basis_args*);
    void (*finish_output)(const kvl__basis_args*);
} kvl__program;

#endif

#line 6 "templates/host/program.c"
#line 1 "templates/host/prelude.h"
// prelude.h -- vectors and number formats of one instruction set.
//
// A vector vf holds `lanes` floats.  Loads are of any alignment.  Arithmetic that decides codes is
// in the scalar functions and never fused; only the functions named mul_add are.

typedef float    vf __attribute__((vector_size(4 * 8)));
typedef int32_t  vi __attribute__((vector_size(4 * 8)));
typedef uint32_t vu __attribute__((vector_size(4 * 8)));
typedef uint16_t vh __attribute__((vector_size(2 * 8)));
typedef uint8_t  vb __attribute__((vector_size(8)));
typedef int8_t   vs __attribute__((vector_size(8)));
typedef vf vf_at __attribute__((aligned(1), may_alias));
typedef vh vh_at __attribute__((aligned(1), may_alias));
typedef vb vb_at __attribute__((aligned(1), may_alias));
typedef vs vs_at __attribute__((aligned(1), may_alias));
typedef uint16_t u16_at __attribute__((aligned(1), may_alias));

enum { lanes = 8 };

// Which of these a program uses depends on its codecs.
#define INLINE static inline __attribute__((always_inline, unused))

static const float float_max __attribute__((unused)) = 3.402823466e38f;

INLINE float absolute(float x) { return __builtin_fabsf(x); }
INLINE float least(float a, float b) { return a < b ? a : b; }
INLINE float most(float a, float b) { return a > b ? a : b; }
INLINE float clamp(float x, float lo, float hi) { return x < lo ? lo : x > hi ? hi : x; }

INLINE uint32_t bits_of(float x)
{
    uint32_t u;
    __builtin_memcpy(&u, &x, 4);
    return u;
}

INLINE float float_of(uint32_t u)
{
    float x;
    __builtin_memcpy(&x, &u, 4);
    return x;
}

// To the nearest integer, ties to even, of |x| < 2^22: x + 1.5 * 2^23 has no bits below 1.
INLINE float nearest_even(float x) { return (x + 12582912.0f) - 12582912.0f; }

// NUMBER FORMATS, one value

INLINE uint32_t read_u16(const unsigned char* at) { return *(const u16_at*)at; }
INLINE void write_u16(unsigned char* at, uint32_t x) { *(u16_at*)at = (uint16_t)x; }

INLINE float f32_of_f16(uint32_t h)
{
    const uint32_t sign = (h & 0x8000u) << 16, m = h & 0x7fffu;
    float x = float_of((m << 13) + (112u << 23));
    if (m >= 0x7c00u) x = float_of((m << 13) + (224u << 23));
    if (m < 0x400u) x = (float)(int32_t)m * 5.9604644775390625e-8f;      // 2^-24
    return float_of(bits_of(x) | sign);
}

// Nearest, ties to even; beyond the range the greatest finite one.
INLINE uint32_t f16_of_f32(float x)
{
    const float a = least(absolute(x), 65504.0f);
    const uint32_t sign = bits_of(x) >> 16 & 0x8000u, u = bits_of(a) - (112u << 23);
    const uint32_t normal = (u + 0xfffu + (u >> 13 & 1u)) >> 13;
    const float small = nearest_even(least(a, 1.0f) * 16777216.0f);
    return sign | (a < 6.103515625e-5f ? (uint32_t)(int32_t)small : normal);
}

INLINE float f32_of_bf16(uint32_t h) { return float_of(h << 16); }

INLINE uint32_t bf16_of_f32(float x)
{
    const uint32_t u = bits_of(x), h = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    return (h & 0x7fffu) >= 0x7f80u ? (h & 0x8000u) | 0x7f7fu : h;
}

// e5m3: (8 + m) 2^(e - 18), or m 2^-17 at e = 0.
INLINE float f32_of_e5m3(uint32_t c)
{
    return c < 8u ? (float)(int32_t)c * 7.62939453125e-6f : float_of((c << 20) + (112u << 23));
}

// x >= 0; nearest, ties to even; the greatest is 255.
INLINE uint32_t e5m3_of_f32(float x)
{
    if (x < 6.103515625e-5f) return (uint32_t)(int32_t)nearest_even(x * 131072.0f);
    const uint32_t u = bits_of(x) - (112u << 23), c = (u + 0x7ffffu + (u >> 20 & 1u)) >> 20;
    return c > 255u ? 255u : c;
}

INLINE float read_f16(const unsigned char* at) { return f32_of_f16(read_u16(at)); }
INLINE float read_bf16(const unsigned char* at) { return f32_of_bf16(read_u16(at)); }
INLINE float read_e5m3(const unsigned char* at) { return f32_of_e5m3(*at); }
INLINE float read_i8(const unsigned char* at) { return (float)(int8_t)*at; }

// VECTORS

INLINE vf repeat(float x) { return (vf){ x, x, x, x, x, x, x, x }; }
INLINE vf load(const float* at) { return *(const vf_at*)at; }
INLINE void store(float* at, vf x) { *(vf_at*)at = x; }
INLINE vf to_float(vu x) { return __builtin_convertvector((vi)x, vf); }
INLINE vf select(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

// To an integer, of |x| < 2^22.  The arithmetic is that of one value.
INLINE vf round_even(vf x) { return (x + 12582912.0f) - 12582912.0f; }

INLINE vf truncated(vf x)
{
    return __builtin_convertvector(__builtin_convertvector(x, vi), vf);
}

INLINE vf round_down(vf x)
{
    const vf t = truncated(x);
    return select(t > x, t - 1.0f, t);
}

INLINE vf round_away(vf x)
{
    const vf t = truncated(x), rest = x - t;
    const vf up = select(rest >= 0.5f, repeat(1.0f), repeat(0.0f));
    return t + select(rest <= -0.5f, repeat(-1.0f), up);
}

INLINE vu load_u16(const unsigned char* at)
{
    return __builtin_convertvector(*(const vh_at*)at, vu);
}

#line 133 "templates/host/prelude.h"
INLINE vf greater(vf a, vf b)
{
    vf x;
    __asm__("vmaxps %2, %1, %0" : "=v"(x) : "v"(a), "v"(b));
    return x;
}

// Returns a * b + c.
INLINE vf mul_add(vf a, vf b, vf c)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
}

INLINE vf load_f16(const unsigned char* at)
{
    vf x;
    __asm__("vcvtph2ps %1, %0" : "=v"(x) : "m"(*(const vh_at*)at));
    return x;
}
#line 184 "templates/host/prelude.h"

// Returns *a * b + c.
#line 193 "templates/host/prelude.h"
INLINE vf mul_add_at(const float* a, vf b, vf c) { return mul_add(repeat(*a), b, c); }
#line 195 "templates/host/prelude.h"

INLINE vf load_bf16(const unsigned char* at) { return (vf)(load_u16(at) << 16); }

INLINE vf load_e5m3(const unsigned char* at)
{
    const vu c = __builtin_convertvector(*(const vb_at*)at, vu);
    return select((vi)c < 8, to_float(c) * 7.62939453125e-6f, (vf)((c << 20) + (112u << 23)));
}

INLINE vf load_i8(const unsigned char* at)
{
    return __builtin_convertvector(__builtin_convertvector(*(const vs_at*)at, vi), vf);
}

// The sum of all lanes, by halves.
INLINE float sum_lanes(vf x)
{
#line 217 "templates/host/prelude.h"
    typedef float half __attribute__((vector_size(32)));
    const half x8 = x;
#line 220 "templates/host/prelude.h"
    typedef float quarter __attribute__((vector_size(16)));
#line 222 "templates/host/prelude.h"
    const union { half whole; quarter parts[2]; } v8 = { x8 };
    const quarter x4 = v8.parts[0] + v8.parts[1];
#line 227 "templates/host/prelude.h"
    return (x4[0] + x4[2]) + (x4[1] + x4[3]);
}

INLINE float greatest_lane(vf x)
{
    float all = x[0];
    for (int i = 1; i < lanes; ++i) all = x[i] > all ? x[i] : all;
    return all;
}

#line 7 "templates/host/program.c"
#line 1 "templates/host/config.h"
// config.h -- the shape that this program is for.  C99 has no constexpr: these are its constants.

enum { head_dim_k = 64, head_dim_v = 64 };
enum { num_heads = 3, page_size = 64 };
enum { window_rows = 64, strip_rows = 64 };

#line 8 "templates/host/program.c"
#line 1 "templates/host/softmax.h"
// softmax.h -- online softmax of num_heads heads.  The empty set is max = -inf, sum = 0, o = 0.

typedef struct softmax {
    float max[num_heads], sum[num_heads];
} softmax;

// e^x for x <= 0, relative error below 3e-7; 0 below -87.
//     x = n ln 2 + r, |r| <= ln 2 / 2:   e^x = 2^n (1 + r + r^2/2 + ... + r^6/720)
// ln 2 is split so that n times its first part is exact.
INLINE vf exp_negative(vf x)
{
    const vi visible = x > -87.0f;
    const vf n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    const vf r = mul_add(n, repeat(2.12194440e-4f), mul_add(n, repeat(-0.693359375f), x));
    vf y = repeat(1.0f / 720.0f);
    y = mul_add(y, r, repeat(1.0f / 120.0f));
    y = mul_add(y, r, repeat(1.0f / 24.0f));
    y = mul_add(y, r, repeat(1.0f / 6.0f));
    y = mul_add(y, r, repeat(0.5f));
    y = mul_add(y, r, repeat(1.0f));
    y = mul_add(y, r, repeat(1.0f));
    const vi exponent = (vi)(n + 12582912.0f) << 23;        // n is in the low bits of the sum
    return (vf)(((vi)y + exponent) & visible);
}

// cap * tanh(s / cap), absolute error of tanh below 2e-7.
//     |y| < 0.3: y - y^3/3 + 2y^5/15 - 17y^7/315 + 62y^9/2835;   else (1 - e^-2|y|) / (1 + e^-2|y|)
INLINE vf soft_cap(vf s, float cap)
{
    const vf y = s / cap, a = (vf)((vi)y & 0x7fffffff), yy = y * y;
    const vf e = exp_negative(a * -2.0f), far = (1.0f - e) / (1.0f + e);
    const vf near = a * (1.0f + yy * (-0.333333333f + yy * (0.133333333f
                     + yy * (-0.053968254f + yy * 0.021869489f))));
    const vf t = select(a < 0.3f, near, far);
    return cap * (vf)((vi)t | ((vi)y & (vi)repeat(-0.0f)));
}

// ln x of a normal x > 0:  x = 2^n m, sqrt(1/2) <= m < sqrt(2),  ln m = 2 artanh(s),
// s = (m - 1) / (m + 1).
static float natural_log(float x)
{
    const uint32_t u = bits_of(x) - 0x3f3504f3u;            // sqrt(1/2)
    const float n = (float)((int32_t)u >> 23);
    const float m = float_of((u & 0x7fffffu) + 0x3f3504f3u);
    const float s = (m - 1.0f) / (m + 1.0f), ss = s * s;
    const float tail = ss * (0.333333333f + ss * (0.2f + ss * (0.142857143f + ss * 0.111111111f)));
    return n * 0.693147181f + 2.0f * (s + s * tail);
}

INLINE void softmax_start(softmax* s, float* o)
{
    for (int head = 0; head < num_heads; ++head) {
        s->max[head] = -__builtin_inff();
        s->sum[head] = 0.0f;
    }
    for (int i = 0; i < num_heads * head_dim_v; ++i) o[i] = 0.0f;
}

// A head's scores [count], of which [first, end) are visible, become weights, 0 where they are not.
// count is a multiple of the vector's width; o [head_dim_v] is brought to the greatest score so
// far.
static void softmax_add(softmax* s, int head, float* scores, int count, int first, int end,
                        float cap, float* o)
{
    const float hidden = -__builtin_inff();
    if (cap > 0.0f)
        for (int i = 0; i < count; i += lanes) store(scores + i, soft_cap(load(scores + i), cap));
    for (int i = 0; i < first; ++i) scores[i] = hidden;
    for (int i = end; i < count; ++i) scores[i] = hidden;

    vf top = repeat(s->max[head]);
    for (int i = 0; i < count; i += lanes) top = greater(load(scores + i), top);
    const float max = greatest_lane(top);
    if (max > s->max[head]) {
        const float shrink = exp_negative(repeat(s->max[head] - max))[0];
        s->max[head] = max;
        s->sum[head] *= shrink;
        for (int i = 0; i < head_dim_v; i += lanes) store(o + i, load(o + i) * shrink);
    }
    vf sum = repeat(0.0f);
    for (int i = 0; i < count; i += lanes) {
        const vf weight = exp_negative(load(scores + i) - max);
        store(scores + i, weight);
        sum += weight;
    }
    s->sum[head] += sum_lanes(sum);
}

INLINE void softmax_finish(const softmax* s, float* o, float* lse)
{
    for (int head = 0; head < num_heads; ++head, o += head_dim_v) {
        lse[head] = -__builtin_inff();
        if (!(s->sum[head] > 0.0f)) continue;
        lse[head] = s->max[head] + natural_log(s->sum[head]);
        const float share = 1.0f / s->sum[head];
        for (int i = 0; i < head_dim_v; i += lanes) store(o + i, load(o + i) * share);
    }
}

#line 11 "templates/host/program.c"
#line 1 "templates/host/codec.h"
// codec.h -- keys at 2 bits:  | codes: 4096 x u2 | scales: 128 x 1 bytes | zeros: 128 x 1 bytes |
//
// The order of codes and metadata in a page is told in gen/layout.lua.  A cell has 16 lanes and 16
// words: channels are lanes, tokens are words.
// lane16 and word16 count cells in each direction.

#line 8 "templates/host/codec.h"
enum { k_dim = 64, k_lane_extent = 64 };
enum { k_word_extent = 64, k_cell_bytes = 64 };
enum { k_scales_at = 1024, k_zeros_at = 1152 };
enum { k_page_bytes = 1280, k_group_size = 32 };
enum { k_slots = 4 };

// Weights of the words as a cell multiplies them.  Keys have a slot of 16 words for each group of
// 16 channels, values one that is filled again for each tile.
typedef struct k_folded {
    float weights[num_heads][16 * k_slots];
    float rest[num_heads][k_slots];
} k_folded;

INLINE const unsigned char* k_cell(const unsigned char* page, int lane16, int word16)
{
#line 24 "templates/host/codec.h"
    return page + (lane16 * (k_dim / 16) + word16) * (int64_t)k_cell_bytes;
#line 28 "templates/host/codec.h"
}

#line 33 "templates/host/codec.h"
// METADATA

// Index of the scale of a word and a lane.
INLINE int k_group(int word, int lane)
{
#line 39 "templates/host/codec.h"
    return lane / k_group_size * k_word_extent + word;
#line 43 "templates/host/codec.h"
}

#line 46 "templates/host/codec.h"
INLINE vf k_load_scale(const unsigned char* page, int group)
{
    page += k_scales_at + group * (int64_t)1;
    return load_e5m3(page);
}

INLINE vf k_load_offset(const unsigned char* page, int group, vf scale)
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
#line 56 "templates/host/codec.h"
    page += k_zeros_at + group * (int64_t)1;
    const vf zero = load_i8(page);
#line 65 "templates/host/codec.h"
    return scale * (zero * ((float)(1 << bits) / 32.0f) - 0.5f * (float)code_max);
}

#line 46 "templates/host/codec.h"
INLINE float k_read_scale(const unsigned char* page, int group)
{
    page += k_scales_at + group * (int64_t)1;
    return read_e5m3(page);
}

INLINE float k_read_offset(const unsigned char* page, int group, float scale)
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
#line 56 "templates/host/codec.h"
    page += k_zeros_at + group * (int64_t)1;
    const float zero = read_i8(page);
#line 65 "templates/host/codec.h"
    return scale * (zero * ((float)(1 << bits) / 32.0f) - 0.5f * (float)code_max);
}

#line 69 "templates/host/codec.h"
// The numbers that turn a value into its code: round((x - offset) * inverse).
typedef struct k_grid {
    float offset, inverse;
} k_grid;

// Fits a group and stores its scale and zero.
#line 76 "templates/host/codec.h"
static k_grid k_store_grid(unsigned char* page, int group, float lo, float hi)
#line 80 "templates/host/codec.h"
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
    k_grid grid = { 0.0f, 0.0f };
    uint32_t scale_code;
    float scale;
#line 86 "templates/host/codec.h"
    uint32_t zero_code;
    lo += 0.0f;                      // -0 becomes 0: one spelling of a stored zero
    hi += 0.0f;
    const float unit = (float)(1 << bits) / 32.0f;
    const float range = least(hi - lo, float_max), mid = 0.5f * lo + 0.5f * hi;
    const float wanted = most(range / (float)code_max, absolute(mid) / (127.0f * unit));
    float zero;
    scale_code = e5m3_of_f32(wanted);
    if (wanted > 0.0f && scale_code == 0) scale_code = 1;
    for (;; ++scale_code) {
        scale = f32_of_e5m3(scale_code);
        const float step = scale * unit;
        zero = scale > 0.0f ? nearest_even(clamp(mid / step, -127.0f, 127.0f)) : 0.0f;
        if (scale_code == 255) break;
        if (0.5f * range + absolute(mid - zero * step) <= scale * (float)half_codes) break;
    }
    zero_code = (uint32_t)(int32_t)zero & 255u;
    grid.offset = scale * (zero * unit - 0.5f * (float)code_max);
    grid.inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
#line 96 "templates/host/codec.h"
    page[k_scales_at + group] = (unsigned char)scale_code;
#line 96 "templates/host/codec.h"
    page[k_zeros_at + group] = (unsigned char)zero_code;
#line 101 "templates/host/codec.h"
    return grid;
}

// Codes q [dim] of a row: round((x - offset) * inverse) within the range of codes.  What is not a
// number, 0 times an infinite inverse, gets the lowest code.
static void k_round_row(const float* x, const float* offset, const float* inverse, uint16_t* q)
{
    const float zero_point = 0.0f;
    const vf code_max = repeat(3.0f), lo = repeat(-zero_point);
    const vf hi = code_max - zero_point;
    for (int i = 0; i < k_dim; i += lanes) {
        vf y = (load(x + i) - load(offset + i)) * load(inverse + i);
        y = select(y > lo, y, lo);
        y = select(y < hi, y, hi);
        vf code = round_even(y) + zero_point;
        code = select(code < code_max, code, code_max);
        *(vh_at*)(q + i) = __builtin_convertvector(__builtin_convertvector(code, vi), vh);
    }
}
#line 121 "templates/host/codec.h"

// CODES

// Codes of one row, q [dim], join the page; its bits are zero before.
static void k_put_row(unsigned char* page, int row, const uint16_t* q)
{
    for (int at = 0; at < k_dim / 16; ++at, q += 16) {
#line 129 "templates/host/codec.h"
        u16_at* words = (u16_at*)k_cell(page, row / 16, at) + row % 16;
#line 131 "templates/host/codec.h"
        words[0] = (uint16_t)(words[0] | ((q[0] & 3) | (q[1] & 3) << 2 | (q[2] & 3) << 4 | (q[3] & 3) << 6 | (q[4] & 3) << 8 | (q[5] & 3) << 10 | (q[6] & 3) << 12 | (q[7] & 3) << 14));
#line 131 "templates/host/codec.h"
        words[16] = (uint16_t)(words[16] | ((q[8] & 3) | (q[9] & 3) << 2 | (q[10] & 3) << 4 | (q[11] & 3) << 6 | (q[12] & 3) << 8 | (q[13] & 3) << 10 | (q[14] & 3) << 12 | (q[15] & 3) << 14));
#line 145 "templates/host/codec.h"
    }
}

INLINE uint32_t k_get_code(const unsigned char* page, int row, int channel)
{
#line 151 "templates/host/codec.h"
    const int lane = row, word = channel;
#line 155 "templates/host/codec.h"
    const unsigned char* cell = k_cell(page, lane / 16, word / 16) + lane % 16 * 2;
    const int i = word % 16;
    uint32_t code = 0;
#line 160 "templates/host/codec.h"
    code |= (read_u16(cell + 0 + i / 8 * 32) >> i % 8 * 2
             & 3u) << 0;
#line 163 "templates/host/codec.h"
    return code;
}

// One value in the codec's basis.
INLINE float k_read_value(const unsigned char* page, int row, int channel)
{
    const uint32_t code = k_get_code(page, row, channel);
#line 171 "templates/host/codec.h"
    const int group = k_group(channel, row);
    const float scale = k_read_scale(page, group);
    return scale * (float)(int32_t)code + k_read_offset(page, group, scale);
#line 177 "templates/host/codec.h"
}

// SUMS OF CELLS

// Whether the weights have to be folded again before the cells of lane16.
INLINE int k_fold_is_due(int lane16)
{
#line 185 "templates/host/codec.h"
    return lane16 * 16 % k_group_size == 0;
#line 190 "templates/host/codec.h"
}

// Prepares a slot for the cells of word16.  weights [num_heads, stride] of its 16 words:
#line 194 "templates/host/codec.h"
//     sum w (scale code + offset) = sum (w scale) code + rest,   rest = sum w offset.
#line 200 "templates/host/codec.h"
static void k_fold(const unsigned char* page, int lane16, int word16, const float* weights,
                   int stride, k_folded* to, int slot)
{
#line 204 "templates/host/codec.h"
    vf scale[16 / lanes], offset[16 / lanes];
    for (int i = 0; i < 16 / lanes; ++i) {
        const int group = k_group(word16 * 16 + i * lanes, lane16 * 16);
        scale[i] = k_load_scale(page, group);
        offset[i] = k_load_offset(page, group, scale[i]);
    }
#line 215 "templates/host/codec.h"
    for (int head = 0; head < num_heads; ++head) {
        vf rest = repeat(0.0f);
        for (int i = 0; i < 16 / lanes; ++i) {
            const vf w = load(weights + head * stride + i * lanes);
#line 220 "templates/host/codec.h"
            store(to->weights[head] + slot * 16 + i * lanes, w * scale[i]);
            rest = mul_add(w, offset[i], rest);
#line 226 "templates/host/codec.h"
        }
#line 228 "templates/host/codec.h"
        to->rest[head][slot] = sum_lanes(rest);
#line 232 "templates/host/codec.h"
    }
}

#line 266 "templates/host/codec.h"
// sums [num_heads, stride] of the cell's 16 lanes grow by the sum over its words of weight * value.
static void k_add_cell(const unsigned char* page, int lane16, int word16,
                       const k_folded* folded, int slot, float* sums, int stride)
{
    const unsigned char* cell = k_cell(page, lane16, word16);
    for (int lane = 0; lane < 16; lane += lanes, cell += 2 * lanes) {
#line 274 "templates/host/codec.h"
        const vu word_0_0 = load_u16(cell + 0);
#line 274 "templates/host/codec.h"
        const vu word_0_1 = load_u16(cell + 32);
#line 286 "templates/host/codec.h"
        {
            vf x;
            const float* at;
#line 291 "templates/host/codec.h"
            vf sum_0 = repeat(folded->rest[0][slot]);
#line 291 "templates/host/codec.h"
            vf sum_1 = repeat(folded->rest[1][slot]);
#line 291 "templates/host/codec.h"
            vf sum_2 = repeat(folded->rest[2][slot]);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_0 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 0];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 0];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 0];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_0 >> 2 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 1];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 1];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 1];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_0 >> 4 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 2];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 2];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 2];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_0 >> 6 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 3];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 3];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 3];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_0 >> 8 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 4];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 4];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 4];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_0 >> 10 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 5];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 5];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 5];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_0 >> 12 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 6];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 6];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 6];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float(word_0_0 >> 14);
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 7];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 7];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 7];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_1 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 8];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 8];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 8];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_1 >> 2 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 9];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 9];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 9];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_1 >> 4 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 10];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 10];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 10];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_1 >> 6 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 11];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 11];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 11];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_1 >> 8 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 12];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 12];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 12];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_1 >> 10 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 13];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 13];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 13];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_1 >> 12 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 14];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 14];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 14];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float(word_0_1 >> 14);
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 15];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 15];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 15];
            sum_2 = mul_add_at(at, x, sum_2);
#line 321 "templates/host/codec.h"
            {
                float* sum = sums + 0 * stride + lane;
#line 327 "templates/host/codec.h"
                store(sum, load(sum) + sum_0);
#line 329 "templates/host/codec.h"
            }
#line 321 "templates/host/codec.h"
            {
                float* sum = sums + 1 * stride + lane;
#line 327 "templates/host/codec.h"
                store(sum, load(sum) + sum_1);
#line 329 "templates/host/codec.h"
            }
#line 321 "templates/host/codec.h"
            {
                float* sum = sums + 2 * stride + lane;
#line 327 "templates/host/codec.h"
                store(sum, load(sum) + sum_2);
#line 329 "templates/host/codec.h"
            }
#line 331 "templates/host/codec.h"
        }
#line 333 "templates/host/codec.h"
    }
}

#line 12 "templates/host/program.c"
#line 1 "templates/host/transform_rows.c"
// transform_rows.c -- rows into the basis of the keys' codec, or out of it.
//
//   x  [num_heads, dim]  f32, in place

#line 23 "templates/host/transform_rows.c"
INLINE void k_transform(float* x) { (void)x; }
#line 25 "templates/host/transform_rows.c"

static void k_transform_rows(const kvl__basis_args* a)
{
    for (int32_t head = 0; head < a->num_heads; ++head) k_transform(a->x + head * k_dim);
}

#line 13 "templates/host/program.c"
#line 1 "templates/host/encode_rows.c"
// encode_rows.c -- rows of the window become codes of a page: transform, fit, round, pack.
//
// Nothing in here may be fused or reordered where it decides a code: every target gets the same
// bits.

INLINE void k_load_row(const uint16_t* row, float* x)
{
    for (int i = 0; i < k_dim; i += lanes)
        store(x + i, load_f16((const unsigned char*)(row + i)));
#line 13 "templates/host/encode_rows.c"
    k_transform(x);
}

#line 84 "templates/host/encode_rows.c"
// Groups along tokens: group_size rows at once, each channel with its own statistics.
static void k_encode_rows(const kvl__encode_args* a)
{
    enum { group_size = 32 };
    for (int32_t r = 0; r < a->num_rows; r += group_size) {
        float rows[group_size][k_dim];
#line 91 "templates/host/encode_rows.c"
        float los[k_dim];
#line 91 "templates/host/encode_rows.c"
        float his[k_dim];
#line 93 "templates/host/encode_rows.c"
        for (int t = 0; t < group_size; ++t)
            k_load_row(a->rows + (r + t) * a->row_stride, rows[t]);
        for (int i = 0; i < k_dim; ++i) {
            const float x = rows[0][i];
#line 98 "templates/host/encode_rows.c"
            los[i] = x;
#line 98 "templates/host/encode_rows.c"
            his[i] = x;
#line 100 "templates/host/encode_rows.c"
        }
        for (int t = 1; t < group_size; ++t) {
            for (int i = 0; i < k_dim; ++i) {
                const float x = rows[t][i];
#line 105 "templates/host/encode_rows.c"
                const float lo = los[i];
                los[i] = x < lo ? x : lo;
#line 105 "templates/host/encode_rows.c"
                const float hi = his[i];
                his[i] = x > hi ? x : hi;
#line 108 "templates/host/encode_rows.c"
            }
        }
        float offset[k_dim], inverse[k_dim];
        for (int i = 0; i < k_dim; ++i) {
            const int row = a->first_row + r;
            const int group = k_group(i, row);
            const k_grid grid = k_store_grid(a->page, group, los[i], his[i]);
            offset[i] = grid.offset;
            inverse[i] = grid.inverse;
        }
        for (int t = 0; t < group_size; ++t) {
            uint16_t q[k_dim];
            k_round_row(rows[t], offset, inverse, q);
            k_put_row(a->page, a->first_row + r + t, q);
        }
    }
}

#line 14 "templates/host/program.c"
#line 1 "templates/host/decode_rows.c"
// decode_rows.c -- rows of a page as floats in the original basis, as codes, and their scales.

static void k_decode_rows(const kvl__decode_args* a)
{
    for (int32_t r = 0; r < a->num_rows; ++r) {
        const int row = a->first_row + r;
        if (a->rows) {
            float* x = a->rows + r * (int64_t)k_dim;
            for (int i = 0; i < k_dim; ++i) x[i] = k_read_value(a->page, row, i);
            k_transform(x);
        }
        if (a->codes) {
            uint16_t* q = a->codes + r * (int64_t)k_dim;
            for (int i = 0; i < k_dim; ++i) q[i] = (uint16_t)k_get_code(a->page, row, i);
        }
    }
#line 18 "templates/host/decode_rows.c"
    if (!a->scales || !a->offsets) return;
    int64_t at = 0;
#line 24 "templates/host/decode_rows.c"
    for (int32_t row = a->first_row; row < a->first_row + a->num_rows; row += k_group_size) {
        for (int i = 0; i < k_dim; ++i, ++at) {
#line 27 "templates/host/decode_rows.c"
            const int group = k_group(i, row);
            a->scales[at] = k_read_scale(a->page, group);
            a->offsets[at] = k_read_offset(a->page, group, a->scales[at]);
        }
    }
#line 33 "templates/host/decode_rows.c"
}

#line 11 "templates/host/program.c"
#line 1 "templates/host/codec.h"
// codec.h -- values at 2 bits:  | codes: 4096 x u2 | scales: 128 x 1 bytes | zeros: 128 x 1 bytes |
//
// The order of codes and metadata in a page is told in gen/layout.lua.  A cell has 16 lanes and 16
// words: tokens are words, channels are lanes.
// lane16 and word16 count cells in each direction.

#line 8 "templates/host/codec.h"
enum { v_dim = 64, v_lane_extent = 64 };
enum { v_word_extent = 64, v_cell_bytes = 64 };
enum { v_scales_at = 1024, v_zeros_at = 1152 };
enum { v_page_bytes = 1280, v_group_size = 32 };
enum { v_slots = 1 };

// Weights of the words as a cell multiplies them.  Keys have a slot of 16 words for each group of
// 16 channels, values one that is filled again for each tile.
typedef struct v_folded {
    float weights[num_heads][16 * v_slots];
    float rest[num_heads][v_slots];
} v_folded;

INLINE const unsigned char* v_cell(const unsigned char* page, int lane16, int word16)
{
#line 26 "templates/host/codec.h"
    return page + (word16 * (v_dim / 16) + lane16) * (int64_t)v_cell_bytes;
#line 28 "templates/host/codec.h"
}

#line 33 "templates/host/codec.h"
// METADATA

// Index of the scale of a word and a lane.
INLINE int v_group(int word, int lane)
{
#line 39 "templates/host/codec.h"
    return lane / v_group_size * v_word_extent + word;
#line 43 "templates/host/codec.h"
}

#line 46 "templates/host/codec.h"
INLINE vf v_load_scale(const unsigned char* page, int group)
{
    page += v_scales_at + group * (int64_t)1;
    return load_e5m3(page);
}

INLINE vf v_load_offset(const unsigned char* page, int group, vf scale)
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
#line 56 "templates/host/codec.h"
    page += v_zeros_at + group * (int64_t)1;
    const vf zero = load_i8(page);
#line 65 "templates/host/codec.h"
    return scale * (zero * ((float)(1 << bits) / 32.0f) - 0.5f * (float)code_max);
}

#line 46 "templates/host/codec.h"
INLINE float v_read_scale(const unsigned char* page, int group)
{
    page += v_scales_at + group * (int64_t)1;
    return read_e5m3(page);
}

INLINE float v_read_offset(const unsigned char* page, int group, float scale)
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
#line 56 "templates/host/codec.h"
    page += v_zeros_at + group * (int64_t)1;
    const float zero = read_i8(page);
#line 65 "templates/host/codec.h"
    return scale * (zero * ((float)(1 << bits) / 32.0f) - 0.5f * (float)code_max);
}

#line 69 "templates/host/codec.h"
// The numbers that turn a value into its code: round((x - offset) * inverse).
typedef struct v_grid {
    float offset, inverse;
} v_grid;

// Fits a group and stores its scale and zero.
#line 76 "templates/host/codec.h"
static v_grid v_store_grid(unsigned char* page, int group, float lo, float hi)
#line 80 "templates/host/codec.h"
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
    v_grid grid = { 0.0f, 0.0f };
    uint32_t scale_code;
    float scale;
#line 86 "templates/host/codec.h"
    uint32_t zero_code;
    lo += 0.0f;                      // -0 becomes 0: one spelling of a stored zero
    hi += 0.0f;
    const float unit = (float)(1 << bits) / 32.0f;
    const float range = least(hi - lo, float_max), mid = 0.5f * lo + 0.5f * hi;
    const float wanted = most(range / (float)code_max, absolute(mid) / (127.0f * unit));
    float zero;
    scale_code = e5m3_of_f32(wanted);
    if (wanted > 0.0f && scale_code == 0) scale_code = 1;
    for (;; ++scale_code) {
        scale = f32_of_e5m3(scale_code);
        const float step = scale * unit;
        zero = scale > 0.0f ? nearest_even(clamp(mid / step, -127.0f, 127.0f)) : 0.0f;
        if (scale_code == 255) break;
        if (0.5f * range + absolute(mid - zero * step) <= scale * (float)half_codes) break;
    }
    zero_code = (uint32_t)(int32_t)zero & 255u;
    grid.offset = scale * (zero * unit - 0.5f * (float)code_max);
    grid.inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
#line 96 "templates/host/codec.h"
    page[v_scales_at + group] = (unsigned char)scale_code;
#line 96 "templates/host/codec.h"
    page[v_zeros_at + group] = (unsigned char)zero_code;
#line 101 "templates/host/codec.h"
    return grid;
}

// Codes q [dim] of a row: round((x - offset) * inverse) within the range of codes.  What is not a
// number, 0 times an infinite inverse, gets the lowest code.
static void v_round_row(const float* x, const float* offset, const float* inverse, uint16_t* q)
{
    const float zero_point = 0.0f;
    const vf code_max = repeat(3.0f), lo = repeat(-zero_point);
    const vf hi = code_max - zero_point;
    for (int i = 0; i < v_dim; i += lanes) {
        vf y = (load(x + i) - load(offset + i)) * load(inverse + i);
        y = select(y > lo, y, lo);
        y = select(y < hi, y, hi);
        vf code = round_even(y) + zero_point;
        code = select(code < code_max, code, code_max);
        *(vh_at*)(q + i) = __builtin_convertvector(__builtin_convertvector(code, vi), vh);
    }
}
#line 121 "templates/host/codec.h"

// CODES

// Codes of one row, q [dim], join the page; its bits are zero before.
static void v_put_row(unsigned char* page, int row, const uint16_t* q)
{
    for (int at = 0; at < v_dim / 16; ++at, q += 16) {
#line 134 "templates/host/codec.h"
        u16_at* words = (u16_at*)v_cell(page, at, row / 16);
#line 136 "templates/host/codec.h"
        {
            enum { each = 8, mask = 3 };
            u16_at* to = words + 0 + row % 16 / each * 16;
            const int left = row % each * 2;
            for (int i = 0; i < 16; ++i)
                to[i] = (uint16_t)(to[i] | (q[i] >> 0 & mask) << left);
        }
#line 145 "templates/host/codec.h"
    }
}

INLINE uint32_t v_get_code(const unsigned char* page, int row, int channel)
{
#line 153 "templates/host/codec.h"
    const int lane = channel, word = row;
#line 155 "templates/host/codec.h"
    const unsigned char* cell = v_cell(page, lane / 16, word / 16) + lane % 16 * 2;
    const int i = word % 16;
    uint32_t code = 0;
#line 160 "templates/host/codec.h"
    code |= (read_u16(cell + 0 + i / 8 * 32) >> i % 8 * 2
             & 3u) << 0;
#line 163 "templates/host/codec.h"
    return code;
}

// One value in the codec's basis.
INLINE float v_read_value(const unsigned char* page, int row, int channel)
{
    const uint32_t code = v_get_code(page, row, channel);
#line 171 "templates/host/codec.h"
    const int group = v_group(row, channel);
    const float scale = v_read_scale(page, group);
    return scale * (float)(int32_t)code + v_read_offset(page, group, scale);
#line 177 "templates/host/codec.h"
}

// SUMS OF CELLS

// Whether the weights have to be folded again before the cells of lane16.
INLINE int v_fold_is_due(int lane16)
{
#line 185 "templates/host/codec.h"
    return lane16 * 16 % v_group_size == 0;
#line 190 "templates/host/codec.h"
}

// Prepares a slot for the cells of word16.  weights [num_heads, stride] of its 16 words:
#line 194 "templates/host/codec.h"
//     sum w (scale code + offset) = sum (w scale) code + rest,   rest = sum w offset.
#line 200 "templates/host/codec.h"
static void v_fold(const unsigned char* page, int lane16, int word16, const float* weights,
                   int stride, v_folded* to, int slot)
{
#line 204 "templates/host/codec.h"
    vf scale[16 / lanes], offset[16 / lanes];
    for (int i = 0; i < 16 / lanes; ++i) {
        const int group = v_group(word16 * 16 + i * lanes, lane16 * 16);
        scale[i] = v_load_scale(page, group);
        offset[i] = v_load_offset(page, group, scale[i]);
    }
#line 215 "templates/host/codec.h"
    for (int head = 0; head < num_heads; ++head) {
        vf rest = repeat(0.0f);
        for (int i = 0; i < 16 / lanes; ++i) {
            const vf w = load(weights + head * stride + i * lanes);
#line 220 "templates/host/codec.h"
            store(to->weights[head] + slot * 16 + i * lanes, w * scale[i]);
            rest = mul_add(w, offset[i], rest);
#line 226 "templates/host/codec.h"
        }
#line 228 "templates/host/codec.h"
        to->rest[head][slot] = sum_lanes(rest);
#line 232 "templates/host/codec.h"
    }
}

#line 266 "templates/host/codec.h"
// sums [num_heads, stride] of the cell's 16 lanes grow by the sum over its words of weight * value.
static void v_add_cell(const unsigned char* page, int lane16, int word16,
                       const v_folded* folded, int slot, float* sums, int stride)
{
    const unsigned char* cell = v_cell(page, lane16, word16);
    for (int lane = 0; lane < 16; lane += lanes, cell += 2 * lanes) {
#line 274 "templates/host/codec.h"
        const vu word_0_0 = load_u16(cell + 0);
#line 274 "templates/host/codec.h"
        const vu word_0_1 = load_u16(cell + 32);
#line 286 "templates/host/codec.h"
        {
            vf x;
            const float* at;
#line 291 "templates/host/codec.h"
            vf sum_0 = repeat(folded->rest[0][slot]);
#line 291 "templates/host/codec.h"
            vf sum_1 = repeat(folded->rest[1][slot]);
#line 291 "templates/host/codec.h"
            vf sum_2 = repeat(folded->rest[2][slot]);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_0 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 0];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 0];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 0];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_0 >> 2 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 1];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 1];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 1];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_0 >> 4 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 2];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 2];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 2];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_0 >> 6 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 3];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 3];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 3];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_0 >> 8 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 4];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 4];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 4];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_0 >> 10 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 5];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 5];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 5];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_0 >> 12 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 6];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 6];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 6];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float(word_0_0 >> 14);
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 7];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 7];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 7];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_1 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 8];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 8];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 8];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_1 >> 2 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 9];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 9];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 9];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_1 >> 4 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 10];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 10];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 10];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_1 >> 6 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 11];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 11];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 11];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_1 >> 8 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 12];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 12];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 12];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_1 >> 10 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 13];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 13];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 13];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float((word_0_1 >> 12 & 3));
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 14];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 14];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 14];
            sum_2 = mul_add_at(at, x, sum_2);
#line 300 "templates/host/codec.h"
            x = to_float(word_0_1 >> 14);
#line 316 "templates/host/codec.h"
            at = &folded->weights[0][slot * 16 + 15];
            sum_0 = mul_add_at(at, x, sum_0);
#line 316 "templates/host/codec.h"
            at = &folded->weights[1][slot * 16 + 15];
            sum_1 = mul_add_at(at, x, sum_1);
#line 316 "templates/host/codec.h"
            at = &folded->weights[2][slot * 16 + 15];
            sum_2 = mul_add_at(at, x, sum_2);
#line 321 "templates/host/codec.h"
            {
                float* sum = sums + 0 * stride + lane;
#line 327 "templates/host/codec.h"
                store(sum, load(sum) + sum_0);
#line 329 "templates/host/codec.h"
            }
#line 321 "templates/host/codec.h"
            {
                float* sum = sums + 1 * stride + lane;
#line 327 "templates/host/codec.h"
                store(sum, load(sum) + sum_1);
#line 329 "templates/host/codec.h"
            }
#line 321 "templates/host/codec.h"
            {
                float* sum = sums + 2 * stride + lane;
#line 327 "templates/host/codec.h"
                store(sum, load(sum) + sum_2);
#line 329 "templates/host/codec.h"
            }
#line 331 "templates/host/codec.h"
        }
#line 333 "templates/host/codec.h"
    }
}

#line 12 "templates/host/program.c"
#line 1 "templates/host/transform_rows.c"
// transform_rows.c -- rows into the basis of the values' codec, or out of it.
//
//   x  [num_heads, dim]  f32, in place

#line 23 "templates/host/transform_rows.c"
INLINE void v_transform(float* x) { (void)x; }
#line 25 "templates/host/transform_rows.c"

static void v_transform_rows(const kvl__basis_args* a)
{
    for (int32_t head = 0; head < a->num_heads; ++head) v_transform(a->x + head * v_dim);
}

#line 13 "templates/host/program.c"
#line 1 "templates/host/encode_rows.c"
// encode_rows.c -- rows of the window become codes of a page: transform, fit, round, pack.
//
// Nothing in here may be fused or reordered where it decides a code: every target gets the same
// bits.

INLINE void v_load_row(const uint16_t* row, float* x)
{
    for (int i = 0; i < v_dim; i += lanes)
        store(x + i, load_f16((const unsigned char*)(row + i)));
#line 13 "templates/host/encode_rows.c"
    v_transform(x);
}

#line 34 "templates/host/encode_rows.c"
// Groups along the channels of a row.
static void v_encode_rows(const kvl__encode_args* a)
{
#line 38 "templates/host/encode_rows.c"
    enum { group_size = 32, step = 16 };
    for (int32_t r = 0; r < a->num_rows; ++r) {
        const int row = a->first_row + r;
        float x[v_dim], offset[v_dim], inverse[v_dim];
        uint16_t q[v_dim];
        v_load_row(a->rows + r * a->row_stride, x);
        for (int first = 0; first < v_dim; first += group_size) {
            const float* of = x + first;
#line 47 "templates/host/encode_rows.c"
            float los[step];
#line 47 "templates/host/encode_rows.c"
            float his[step];
#line 49 "templates/host/encode_rows.c"
            // Every step-th value has its own statistics; what they come to is order-free.
            for (int j = 0; j < step; ++j) {
                const float x = of[j];
#line 53 "templates/host/encode_rows.c"
                los[j] = x;
#line 53 "templates/host/encode_rows.c"
                his[j] = x;
#line 55 "templates/host/encode_rows.c"
            }
            for (int i = step; i < group_size; i += step) {
                for (int j = 0; j < step; ++j) {
                    const float x = of[i + j];
#line 60 "templates/host/encode_rows.c"
                    const float lo = los[j];
                    los[j] = x < lo ? x : lo;
#line 60 "templates/host/encode_rows.c"
                    const float hi = his[j];
                    his[j] = x > hi ? x : hi;
#line 63 "templates/host/encode_rows.c"
                }
            }
#line 66 "templates/host/encode_rows.c"
            float lo = los[0];
            for (int j = 1; j < step; ++j) {
                const float x = los[j];
                lo = x < lo ? x : lo;
            }
#line 66 "templates/host/encode_rows.c"
            float hi = his[0];
            for (int j = 1; j < step; ++j) {
                const float x = his[j];
                hi = x > hi ? x : hi;
            }
#line 72 "templates/host/encode_rows.c"
            const int group = v_group(row, first);
            const v_grid grid = v_store_grid(a->page, group, lo, hi);
            for (int i = first; i < first + group_size; ++i) {
                offset[i] = grid.offset;
                inverse[i] = grid.inverse;
            }
        }
        v_round_row(x, offset, inverse, q);
        v_put_row(a->page, row, q);
    }
}

#line 14 "templates/host/program.c"
#line 1 "templates/host/decode_rows.c"
// decode_rows.c -- rows of a page as floats in the original basis, as codes, and their scales.

static void v_decode_rows(const kvl__decode_args* a)
{
    for (int32_t r = 0; r < a->num_rows; ++r) {
        const int row = a->first_row + r;
        if (a->rows) {
            float* x = a->rows + r * (int64_t)v_dim;
            for (int i = 0; i < v_dim; ++i) x[i] = v_read_value(a->page, row, i);
            v_transform(x);
        }
        if (a->codes) {
            uint16_t* q = a->codes + r * (int64_t)v_dim;
            for (int i = 0; i < v_dim; ++i) q[i] = (uint16_t)v_get_code(a->page, row, i);
        }
    }
#line 18 "templates/host/decode_rows.c"
    if (!a->scales || !a->offsets) return;
    int64_t at = 0;
#line 21 "templates/host/decode_rows.c"
    for (int32_t row = a->first_row; row < a->first_row + a->num_rows; ++row) {
        for (int i = 0; i < v_dim; i += v_group_size, ++at) {
#line 27 "templates/host/decode_rows.c"
            const int group = v_group(row, i);
            a->scales[at] = v_read_scale(a->page, group);
            a->offsets[at] = v_read_offset(a->page, group, a->scales[at]);
        }
    }
#line 33 "templates/host/decode_rows.c"
}

#line 17 "templates/host/program.c"
#line 1 "templates/host/attend_windows.c"
// attend_windows.c -- attention of num_heads queries over two stretches of 16-bit rows.
//
// A row is read once for all heads: 2 (head_dim_k + head_dim_v) bytes, num_heads (head_dim_k +
// head_dim_v) multiply-adds.  Rows are in the original basis, and so is the output.

// scores [num_heads, window_rows] of rows k [num_rows, head_dim_k].
static void score_rows(const float* q, const uint16_t* k, int num_rows, float* scores)
{
    for (int row = 0; row < num_rows; ++row, k += head_dim_k) {
#line 11 "templates/host/attend_windows.c"
        {
#line 13 "templates/host/attend_windows.c"
            vf sum_0 = repeat(0.0f);
#line 13 "templates/host/attend_windows.c"
            vf sum_1 = repeat(0.0f);
#line 13 "templates/host/attend_windows.c"
            vf sum_2 = repeat(0.0f);
#line 15 "templates/host/attend_windows.c"
            for (int i = 0; i < head_dim_k; i += lanes) {
                const vf x = load_f16((const unsigned char*)(k + i));
#line 18 "templates/host/attend_windows.c"
                sum_0 = mul_add(load(q + 0 * head_dim_k + i), x, sum_0);
#line 18 "templates/host/attend_windows.c"
                sum_1 = mul_add(load(q + 1 * head_dim_k + i), x, sum_1);
#line 18 "templates/host/attend_windows.c"
                sum_2 = mul_add(load(q + 2 * head_dim_k + i), x, sum_2);
#line 20 "templates/host/attend_windows.c"
            }
#line 22 "templates/host/attend_windows.c"
            scores[0 * window_rows + row] = sum_lanes(sum_0);
#line 22 "templates/host/attend_windows.c"
            scores[1 * window_rows + row] = sum_lanes(sum_1);
#line 22 "templates/host/attend_windows.c"
            scores[2 * window_rows + row] = sum_lanes(sum_2);
#line 24 "templates/host/attend_windows.c"
        }
#line 26 "templates/host/attend_windows.c"
    }
}

// o [num_heads, head_dim_v] grows by rows v [num_rows, head_dim_v] times weights [., window_rows].
static void add_rows(const float* weights, const uint16_t* v, int num_rows, float* o)
{
    for (int i = 0; i < head_dim_v; i += lanes, o += lanes) {
#line 34 "templates/host/attend_windows.c"
        {
#line 36 "templates/host/attend_windows.c"
            vf sum_0 = load(o + 0 * head_dim_v);
#line 36 "templates/host/attend_windows.c"
            vf sum_1 = load(o + 1 * head_dim_v);
#line 36 "templates/host/attend_windows.c"
            vf sum_2 = load(o + 2 * head_dim_v);
#line 38 "templates/host/attend_windows.c"
            for (int row = 0; row < num_rows; ++row) {
                const uint16_t* from = v + row * head_dim_v + i;
                const vf x = load_f16((const unsigned char*)from);
#line 42 "templates/host/attend_windows.c"
                sum_0 = mul_add_at(weights + 0 * window_rows + row, x, sum_0);
#line 42 "templates/host/attend_windows.c"
                sum_1 = mul_add_at(weights + 1 * window_rows + row, x, sum_1);
#line 42 "templates/host/attend_windows.c"
                sum_2 = mul_add_at(weights + 2 * window_rows + row, x, sum_2);
#line 44 "templates/host/attend_windows.c"
            }
#line 46 "templates/host/attend_windows.c"
            store(o + 0 * head_dim_v, sum_0);
#line 46 "templates/host/attend_windows.c"
            store(o + 1 * head_dim_v, sum_1);
#line 46 "templates/host/attend_windows.c"
            store(o + 2 * head_dim_v, sum_2);
#line 48 "templates/host/attend_windows.c"
        }
#line 50 "templates/host/attend_windows.c"
    }
}

static void attend_windows(const kvl__attend_args* a)
{
    float scores[num_heads * window_rows];
    softmax state;
    softmax_start(&state, a->o);
    for (int w = 0; w < 2; ++w) {
        const kvl__window* window = &a->windows[w];
        for (int64_t first = 0; first < window->num_rows; first += window_rows) {
            const int64_t left = window->num_rows - first;
            const int num_rows = left < window_rows ? (int)left : window_rows;
            const int end = (num_rows + 15) / 16 * 16;
            for (int i = num_rows; i < end; ++i)
                for (int head = 0; head < num_heads; ++head) scores[head * window_rows + i] = 0.0f;
            score_rows(a->q, window->k + first * head_dim_k, num_rows, scores);
            for (int head = 0; head < num_heads; ++head)
                softmax_add(&state, head, scores + head * window_rows, end, 0, num_rows,
                            a->soft_cap, a->o + head * head_dim_v);
            add_rows(scores, window->v + first * head_dim_v, num_rows, a->o);
        }
    }
    softmax_finish(&state, a->o, a->lse);
}

#line 18 "templates/host/program.c"
#line 1 "templates/host/attend_pages.c"
// attend_pages.c -- attention of num_heads queries over rows of pages, on the codes.
//
// A strip of a page at a time: its keys are scored tile by tile, the scores become weights, and its
// values are added.  Each cell is read and unpacked once for all heads; o is in the value codec's
// basis.

// One thread's memory of a call.
typedef struct workspace {
    float    scores[num_heads][strip_rows];
    k_folded k;
    v_folded v;
} workspace;

// Scores of tiles [first, end) of a page's keys; tile `first` begins the strip.
static void score_tiles(const float* q, const unsigned char* keys, int first, int end, workspace* w)
{
    for (int tile = first; tile < end; ++tile) {
        if (tile == first || k_fold_is_due(tile))
            for (int at = 0; at < k_slots; ++at)
                k_fold(keys, tile, at, q + at * 16, head_dim_k, &w->k, at);
        float* scores = &w->scores[0][(tile - first) * 16];
        for (int head = 0; head < num_heads; ++head)
            for (int i = 0; i < 16; i += lanes) store(scores + head * strip_rows + i, repeat(0.0f));
        for (int at = 0; at < head_dim_k / 16; ++at)
            k_add_cell(keys, tile, at, &w->k, at, scores, strip_rows);
    }
}

// A whole tile's values, times weights [num_heads, strip_rows], join o [num_heads, head_dim_v].
static void add_tile(const unsigned char* values, int tile, const float* weights, v_folded* folded,
                     float* o)
{
    for (int at = 0; at < head_dim_v / 16; ++at) {
        if (at == 0 || v_fold_is_due(at)) v_fold(values, at, tile, weights, strip_rows, folded, 0);
        v_add_cell(values, at, tile, folded, 0, o + at * 16, head_dim_v);
    }
}

// One row's values join o.  Rows of a tile that are not visible are not read: whatever their memory
// holds, it may decode to no number.
static void add_row(const unsigned char* values, int row, const float* weights, float* o)
{
    for (int i = 0; i < head_dim_v; ++i) {
        const float x = v_read_value(values, row, i);
        for (int head = 0; head < num_heads; ++head)
            o[head * head_dim_v + i] += weights[head * strip_rows] * x;
    }
}

// Rows [first, end) of one page, at most strip_rows from the tile of the first.
static void attend_strip(const kvl__attend_args* a, const unsigned char* page, int first, int end,
                         softmax* state, workspace* w)
{
    const unsigned char* values = page + a->v_offset;
    const int first_tile = first / 16, end_tile = (end + 15) / 16, base = first_tile * 16;
    score_tiles(a->q, page + a->k_offset, first_tile, end_tile, w);
    for (int head = 0; head < num_heads; ++head)
        softmax_add(state, head, w->scores[head], end_tile * 16 - base, first - base, end - base,
                    a->soft_cap, a->o + head * head_dim_v);
    for (int tile = first_tile; tile < end_tile; ++tile) {
        const int row = tile * 16;
        if (row >= first && row + 16 <= end) {
            add_tile(values, tile, &w->scores[0][row - base], &w->v, a->o);
            continue;
        }
        for (int i = row; i < row + 16; ++i)
            if (i >= first && i < end) add_row(values, i, &w->scores[0][i - base], a->o);
    }
}

static void attend_pages(const kvl__attend_args* a)
{
    workspace* w = (workspace*)(((uintptr_t)a->scratch + 63) & ~(uintptr_t)63);
    softmax state;
    softmax_start(&state, a->o);
    for (int64_t row = a->first_row; row < a->end_row;) {
        const int64_t at = row / page_size, left = a->end_row - at * page_size;
        const int first = (int)(row - at * page_size), base = first / 16 * 16;
        int end = base + strip_rows < page_size ? base + strip_rows : page_size;
        if (left < end) end = (int)left;
        attend_strip(a, a->pages[at], first, end, &state, w);
        row = at * page_size + end;
    }
    softmax_finish(&state, a->o, a->lse);
}

#line 19 "templates/host/program.c"

// C has one name space for types and objects, so the object gets its exported name as a label.
#define LABEL_TEXT(text) #text
#define LABEL(prefix, name) LABEL_TEXT(prefix) name
extern const kvl__program program __asm__(LABEL(__USER_LABEL_PREFIX__, "kvl__program"));

const kvl__program program = {
    .abi            = KVL__ABI,
    .lanes          = 16,
    .k_page_bytes   = k_page_bytes,
    .v_page_bytes   = v_page_bytes,
    .scratch_bytes  = sizeof(workspace) + 64,        // room to begin at a cache line
    .encode_keys    = k_encode_rows,
    .encode_values  = v_encode_rows,
    .decode_keys    = k_decode_rows,
    .decode_values  = v_decode_rows,
    .attend_windows = attend_windows,
    .attend_pages   = attend_pages,
    .prepare_query  = k_transform_rows,
    .finish_output  = v_transform_rows,
};
