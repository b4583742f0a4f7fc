#line 1 "templates/host/program.c"
// program.c -- every kernel of one layer configuration, and the descriptor that the runtime reads.
//
// Scores are int sums, outputs int sums, for avx2.

#include <stdint.h>

#line 1 "runtime/kvl_args.h"
// kvl_args.h -- the interface between the runtime and its kernels, generated or not.
//
// This file is part of every generated program as well: an edit here changes the text of all of
// them, and with it their keys on disk.  C99 that is also C++17.
//
// A kernel works on one KV head of one layer.  num_heads is the number of query heads that share
// it. 16-bit rows are f16 or bf16, as the program was made for; `page` points at one side (keys or
// values) of one KV head's part of a page.  `tables` is that head's record of calibrated numbers
// for the side: the tables of its parts, in stage order and as a part declares them, each from a
// multiple of 16 floats on; NULL where no part has tables.

#ifndef KVL_ARGS_H
#define KVL_ARGS_H

#include <stdint.h>

enum {
    KVL__ABI = 5,
    KVL__SCRATCH_BYTES = 131072    // the most that a program may ask for a thread
};

// Rows [num_rows, head_dim] in the window, 16 bits, become the page's rows first_row ...
// first_row and num_rows are multiples of the groups that run along tokens.
typedef struct kvl__encode_args {
    const void*     codec;        // of the reference; generated kernels know theirs
    const float*    tables;
    const uint16_t* rows;         // [num_rows, row_stride]
    int64_t         row_stride;   // elements
    unsigned char*  page;         // other rows keep their bits; these take theirs over
    int32_t         page_size, first_row, num_rows;
} kvl__encode_args;

// The inverse, for rows [first_row, first_row + num_rows) of a page.
typedef struct kvl__decode_args {
    const void*          codec;
    const float*         tables;
    const unsigned char* page;
    int32_t              page_size, first_row, num_rows;
    float*               rows;      // [num_rows, head_dim] in the original basis; NULL: not asked
    uint16_t*            codes;     // [num_rows, head_dim]; NULL: not asked
    uint32_t*            choices;   // [units of the rows]: of kvl_codes; NULL: not asked
    float*               scales;    // per token [num_rows, groups of a row], per channel
    float*               offsets;   // [num_rows / group_size, head_dim]
} kvl__decode_args;

// The first num_rows rows of a page in the linear order of files (kvl_layout.h), or from it: codes
// and metadata, bit for bit.
typedef struct kvl__linear_args {
    const void*    codec;
    unsigned char* page;
    unsigned char* linear;        // as many bytes as page
    int32_t        page_size, num_rows;
    int32_t        into_page;     // 1: page is written, its other rows keep their bits; 0: linear
} kvl__linear_args;

// A stretch of 16-bit rows of one KV head: sink or tail.
typedef struct kvl__window {
    const uint16_t* k;            // [num_rows, head_dim_k], contiguous
    const uint16_t* v;            // [num_rows, head_dim_v]
    int64_t         num_rows;     // visible ones
    int64_t         position;     // of the first row, counted from the query's
} kvl__window;

// One part of the rows that num_heads queries attend to: two windows, or rows of pages.
typedef struct kvl__attend_args {
    const void*                 k_codec;
    const void*                 v_codec;
    int32_t                     num_heads, page_size;
    const float*                q;            // [num_heads, head_dim_k], times softmax_scale; of
                                              // pages as prepare_query leaves it
    const float*                bias;         // [num_heads], joins scores of pages before the cap
    // Adds to scores [num_heads, stride], before the cap, what the shift of keys took from those of
    // num rows of a page, `row` counted as first_row.  Where keys are shifted by their positions;
    // the whole score where they are turned by them; else NULL.
    void                      (*add_shifts)(void* shifts, int64_t row, int32_t num, float* scores,
                                            int64_t stride);
    void*                       shifts;
    float                       soft_cap;     // 0: none
    const float*                slopes;       // [num_heads] ALiBi's, NULL: none; times the position
                                              // of a row, counted from the query's, they are added
    int64_t                     position;     // of the first row of pages[0], counted so
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

// In place: queries [num_heads, head_dim_k] into the key codec's basis, or, where keys are in one
// of several, followed by a copy of them all for each further one; outputs
// [num_heads, head_dim_v] out of the value codec's.
typedef struct kvl__basis_args {
    const void*  codec;
    const float* tables;
    float*       x;
    float*       bias;        // of queries [num_heads], zeros: gets what the shift of keys took
                              // from their scores
    const float* mass;        // of outputs [num_heads]: the sum of the weights in x
    int32_t      num_heads;
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
    void (*linear_keys)(const kvl__linear_args*);
    void (*linear_values)(const kvl__linear_args*);
    void (*attend_windows)(const kvl__attend_args*);
    void (*attend_pages)(const kvl__attend_args*);
    void (*prepare_query)(const kvl__basis_args*);
    void (*finish_output)(const kvl__basis_args*);
} kvl__program;

#endif

#line 8 "templates/host/program.c"
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
typedef uint16_t vp __attribute__((vector_size(4 * 8)));      // a pair in each lane
typedef int16_t  vt __attribute__((vector_size(2 * 8)));
typedef int8_t   vw __attribute__((vector_size(2 * 8)));      // of a pair in each lane
typedef vf vf_at __attribute__((aligned(1), may_alias));
typedef vh vh_at __attribute__((aligned(1), may_alias));
typedef vi vi_at __attribute__((aligned(1), may_alias));
typedef vp vp_at __attribute__((aligned(1), may_alias));
typedef vt vt_at __attribute__((aligned(1), may_alias));
typedef vb vb_at __attribute__((aligned(1), may_alias));
typedef vs vs_at __attribute__((aligned(1), may_alias));
typedef vw vw_at __attribute__((aligned(1), may_alias));
typedef vu vu_at __attribute__((aligned(1), may_alias));
typedef uint16_t u16_at __attribute__((aligned(1), may_alias));
typedef int16_t s16_at __attribute__((aligned(1), may_alias));
typedef uint32_t u32_at __attribute__((aligned(1), may_alias));

enum { lanes = 8 };

// Which of these a program uses depends on its codecs.
#define INLINE static inline __attribute__((always_inline, unused))

// Keeps the registers of one loop out of the next one's way.  noipa, and not noinline, for gcc: gcc
// 12 takes functions that write through pointers of vectors for pure, and drops calls of them.
#if defined(__clang__)
#define NOINLINE __attribute__((noinline, unused))
#else
#define NOINLINE __attribute__((noipa, unused))
#endif

// An operand of an instruction that may lie in memory.  clang puts it there even if it is in a
// register.
#if defined(__clang__)
#define ANY "v"
#else
#define ANY "vm"
#endif

// Begins at a line of the caches.
#define LINE __attribute__((aligned(64)))

static const float float_max __attribute__((unused)) = 3.402823466e38f;

INLINE float absolute(float x) { return __builtin_fabsf(x); }
INLINE float least(float a, float b) { return a < b ? a : b; }
INLINE float most(float a, float b) { return a > b ? a : b; }
INLINE float squared(float x) { return x * x; }
INLINE float square_root(float x) { return __builtin_sqrtf(x); }
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

#define CONSTANT static const __attribute__((unused))
#line 1 "templates/formats.h"
// formats.h -- number formats that every target computes alike: integer arithmetic, one value.

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

// e4m3: (8 + m) 2^(e - 11), or m 2^-10 at e = 0; the sign is left out.
INLINE float f32_of_e4m3(uint32_t c)
{
    c &= 127u;
    return c < 8u ? (float)(int32_t)c * 9.765625e-4f : float_of((c << 20) + (119u << 23));
}

// x >= 0; nearest, ties to even; the greatest is 127.
INLINE uint32_t e4m3_of_f32(float x)
{
    if (x < 7.8125e-3f) return (uint32_t)(int32_t)nearest_even(x * 1024.0f);
    const uint32_t u = bits_of(x) - (119u << 23), c = (u + 0x7ffffu + (u >> 20 & 1u)) >> 20;
    return c > 127u ? 127u : c;
}

// The same with bias 7, up to 448, as OCP has it: (8 + m) 2^(e - 10), or m 2^-9 at e = 0.
INLINE float f32_of_e4m3fn(uint32_t c)
{
    c &= 127u;
    return c < 8u ? (float)(int32_t)c * 1.953125e-3f : float_of((c << 20) + (120u << 23));
}

INLINE uint32_t e4m3fn_of_f32(float x)
{
    if (x < 1.5625e-2f) return (uint32_t)(int32_t)nearest_even(x * 512.0f);
    const uint32_t u = bits_of(x) - (120u << 23), c = (u + 0x7ffffu + (u >> 20 & 1u)) >> 20;
    return c > 126u ? 126u : c;
}

// e8m0: 2^(c - 127).
INLINE float f32_of_e8m0(uint32_t c) { return float_of(c > 0u ? c << 23 : 0x400000u); }

// x >= 0; the nearer power of two, the greater one in the middle.
INLINE uint32_t e8m0_of_f32(float x)
{
    const uint32_t c = (bits_of(x) + 0x400000u) >> 23;
    return c > 254u ? 254u : c;
}

// log4: 2^((c - 8) / 4) of c = 0 .. 15, whose nearest exponent these bounds part.
CONSTANT float log4_bounds[15] = {
    0.272626936f, 0.324209899f, 0.385552704f, 0.458502024f, 0.545253873f,
    0.648419797f, 0.771105409f, 0.917004049f, 1.09050775f, 1.29683959f,
    1.54221082f, 1.8340081f, 2.18101549f, 2.59367919f, 3.08442163f
};

INLINE float f32_of_log4(uint32_t c)
{
    const float root = c & 2u ? (c & 1u ? 1.68179286f : 1.41421354f)
                              : (c & 1u ? 1.18920708f : 1.0f);
    return root * float_of((125u + (c >> 2)) << 23);
}

INLINE uint32_t log4_of_f32(float x)
{
    uint32_t c = 0;
    for (int i = 0; i < 15; ++i) c += x >= log4_bounds[i];
    return c;
}

// The nearest integer to y, |y| <= 127; with a flag of 0 or 1 the nearest whose lowest bit it is.
INLINE float nearest_flagged(float y, int flag)
{
    if (flag < 0) return nearest_even(y);
    const float bit = (float)flag;
    return 2.0f * clamp(nearest_even((y - bit) * 0.5f), -63.0f - bit, 63.0f) + bit;
}

// h, or with a flag of 0 or 1, where h has the other lowest bit, the f16 below it; above the least.
INLINE uint32_t flagged_f16(uint32_t h, int flag)
{
    if (flag < 0 || (h & 1u) == (uint32_t)flag) return h;
    return h == 0u ? 0x8001u : h > 0x8000u && h < 0xfbffu ? h + 1u : h - 1u;
}

#line 104 "templates/host/prelude.h"

INLINE float read_log4(const unsigned char* at) { return f32_of_log4(*at >> 4); }
INLINE float read_low4(const unsigned char* at) { return (float)(*at & 15) - 8.0f; }
INLINE float read_f16(const unsigned char* at) { return f32_of_f16(read_u16(at)); }
INLINE float read_bf16(const unsigned char* at) { return f32_of_bf16(read_u16(at)); }
INLINE float read_e5m3(const unsigned char* at) { return f32_of_e5m3(*at); }
INLINE float read_e4m3(const unsigned char* at) { return f32_of_e4m3(*at); }
INLINE float read_e4m3fn(const unsigned char* at) { return f32_of_e4m3fn(*at); }
INLINE float read_e8m0(const unsigned char* at) { return f32_of_e8m0(*at); }
INLINE float read_one(const unsigned char* at) { return (void)at, 1.0f; }
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

INLINE vf absolute_of(vf x) { return (vf)((vi)x & 0x7fffffff); }

INLINE vu load_u16(const unsigned char* at)
{
    return __builtin_convertvector(*(const vh_at*)at, vu);
}

INLINE vu load_u32(const unsigned char* at) { return *(const vu_at*)at; }

// Words that lanes l and l + 8 share, of lanes lane ...: bits 8 and up of a half are lane l + 8's.
#line 165 "templates/host/prelude.h"
INLINE vu load_narrow(const unsigned char* at, int lane)
{
    return load_u32(at + lane % 8 * 4) >> lane / 8 * 8;
}
#line 170 "templates/host/prelude.h"

#line 172 "templates/host/prelude.h"
INLINE vf greater(vf a, vf b)
{
    vf x;
    __asm__("vmaxps %2, %1, %0" : "=v"(x) : "v"(a), ANY(b));
    return x;
}

INLINE vf smaller(vf a, vf b)
{
    vf x;
    __asm__("vminps %2, %1, %0" : "=v"(x) : "v"(a), ANY(b));
    return x;
}

// Returns a * b + c, rounded once.
INLINE vf mul_add(vf a, vf b, vf c)
{
#line 190 "templates/host/prelude.h"
#if defined(__has_builtin)
#if __has_builtin(__builtin_ia32_vfmaddps256)
#define MUL_ADD_BUILTIN
#endif
#endif
#line 196 "templates/host/prelude.h"
#if defined(MUL_ADD_BUILTIN)
    // The compiler chooses which operand the sum replaces: with 16 registers a fixed one costs
    // copies.
    return __builtin_ia32_vfmaddps256(a, b, c);
#else
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), ANY(b));
    return c;
#endif
}

// The same where a constant is added, and a is of no use afterwards.
INLINE vf times_plus(vf a, vf b, vf c)
{
    __asm__("vfmadd213ps %2, %1, %0" : "+v"(a) : "v"(b), ANY(c));
    return a;
}

INLINE vf load_f16(const unsigned char* at)
{
    vf x;
    __asm__("vcvtph2ps %1, %0" : "=v"(x) : "m"(*(const vh_at*)at));
    return x;
}
#line 255 "templates/host/prelude.h"

// Returns *a * b + c.
#line 264 "templates/host/prelude.h"
INLINE vf mul_add_at(const float* a, vf b, vf c) { return mul_add(repeat(*a), b, c); }
#line 266 "templates/host/prelude.h"

INLINE vf load_bf16(const unsigned char* at) { return (vf)(load_u16(at) << 16); }

// Bytes as 32 bits.  In two steps, each of which compilers know: four times wider is one by one.
#line 271 "templates/host/prelude.h"
INLINE vu load_u8(const unsigned char* at)
{
    vu x;
    __asm__("vpmovzxbd %1, %0" : "=v"(x) : "m"(*(const vb_at*)at));
    return x;
}

INLINE vi load_s8(const unsigned char* at)
{
    vi x;
    __asm__("vpmovsxbd %1, %0" : "=v"(x) : "m"(*(const vb_at*)at));
    return x;
}
#line 295 "templates/host/prelude.h"

// a = 2^-15 (1 + c / 8) of c < 8 is too great: c 2^-17 = 2 a - 2^-14 < a, which is not less where
// c >= 8.
INLINE vf load_e5m3(const unsigned char* at)
{
    const vf a = (vf)((load_u8(at) << 20) + (112u << 23));
    return smaller(mul_add(a, repeat(2.0f), repeat(-6.103515625e-5f)), a);
}

// Likewise a = 2^-8 (1 + c / 8) of c < 8: c 2^-10 = 2 a - 2^-7.
INLINE vf load_e4m3(const unsigned char* at)
{
    const vf a = (vf)(((load_u8(at) & 127u) << 20) + (119u << 23));
    return smaller(mul_add(a, repeat(2.0f), repeat(-7.8125e-3f)), a);
}

// Of bias 7: a = 2^-7 (1 + c / 8).
INLINE vf load_e4m3fn(const unsigned char* at)
{
    const vf a = (vf)(((load_u8(at) & 127u) << 20) + (120u << 23));
    return smaller(mul_add(a, repeat(2.0f), repeat(-1.5625e-2f)), a);
}

INLINE vf load_e8m0(const unsigned char* at)
{
    const vu c = load_u8(at);
    return (vf)(c << 23 | ((vu)(c == 0u) & 0x400000u));
}

INLINE vf load_one(const unsigned char* at) { return (void)at, repeat(1.0f); }

INLINE vf load_log4(const unsigned char* at)
{
    const vi c = (vi)load_u8(at) >> 4, odd = (c & 1) != 0, half = (c & 2) != 0;
    const vf low = select(odd, repeat(1.18920708f), repeat(1.0f));
    const vf high = select(odd, repeat(1.68179286f), repeat(1.41421354f));
    return select(half, high, low) * (vf)((125 + (c >> 2)) << 23);
}

INLINE vf load_low4(const unsigned char* at)
{
    return __builtin_convertvector((vi)(load_u8(at) & 15), vf) - 8.0f;
}

INLINE vf load_i8(const unsigned char* at) { return __builtin_convertvector(load_s8(at), vf); }

// BUTTERFLIES: of two lanes a and b, `stride` apart, a + b in the first and a - b in the second.
#line 345 "templates/host/prelude.h"
INLINE vf butterfly_1(vf x)
{
    const vi signs = { 0, -0x7fffffff - 1, 0, -0x7fffffff - 1, 0, -0x7fffffff - 1, 0, -0x7fffffff - 1 };
#if defined(__clang__)
    const vf other = __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6);
#else
    const vf other = __builtin_shuffle(x, (vi){ 1, 0, 3, 2, 5, 4, 7, 6 });
#endif
    return other + (vf)((vi)x ^ signs);
}

#line 345 "templates/host/prelude.h"
INLINE vf butterfly_2(vf x)
{
    const vi signs = { 0, 0, -0x7fffffff - 1, -0x7fffffff - 1, 0, 0, -0x7fffffff - 1, -0x7fffffff - 1 };
#if defined(__clang__)
    const vf other = __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5);
#else
    const vf other = __builtin_shuffle(x, (vi){ 2, 3, 0, 1, 6, 7, 4, 5 });
#endif
    return other + (vf)((vi)x ^ signs);
}

#line 345 "templates/host/prelude.h"
INLINE vf butterfly_4(vf x)
{
    const vi signs = { 0, 0, 0, 0, -0x7fffffff - 1, -0x7fffffff - 1, -0x7fffffff - 1, -0x7fffffff - 1 };
#if defined(__clang__)
    const vf other = __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
#else
    const vf other = __builtin_shuffle(x, (vi){ 4, 5, 6, 7, 0, 1, 2, 3 });
#endif
    return other + (vf)((vi)x ^ signs);
}

#line 358 "templates/host/prelude.h"
// The sum of all lanes, by halves.
INLINE float sum_lanes(vf x)
{
#line 366 "templates/host/prelude.h"
    typedef float half __attribute__((vector_size(32)));
    const half x8 = x;
#line 369 "templates/host/prelude.h"
    typedef float quarter __attribute__((vector_size(16)));
#line 371 "templates/host/prelude.h"
    const union { half whole; quarter parts[2]; } v8 = { x8 };
    const quarter x4 = v8.parts[0] + v8.parts[1];
#line 376 "templates/host/prelude.h"
    return (x4[0] + x4[2]) + (x4[1] + x4[3]);
}

// The sums of the lanes of four vectors, to [4].
INLINE void store_sums(float* to, vf a, vf b, vf c, vf d)
{
#line 383 "templates/host/prelude.h"
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
    typedef float quarter __attribute__((vector_size(16)));
    typedef quarter quarter_at __attribute__((aligned(1), may_alias));
    const union { vf whole; quarter parts[lanes / 4]; } v[4] = { { a }, { b }, { c }, { d } };
    quarter x[4];
    for (int i = 0; i < 4; ++i) {
        x[i] = v[i].parts[0] + v[i].parts[1];
#line 394 "templates/host/prelude.h"
    }
    // Lanes (0 + 2) and (1 + 3) of two vectors at a time, then their sums.
    const quarter ab = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5)
                       + __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
    const quarter cd = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5)
                       + __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
    *(quarter_at*)to = __builtin_shufflevector(ab, cd, 0, 1, 4, 5)
                       + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    return;
#endif
#endif
#line 406 "templates/host/prelude.h"
    to[0] = sum_lanes(a);
    to[1] = sum_lanes(b);
    to[2] = sum_lanes(c);
    to[3] = sum_lanes(d);
}

// The greatest of all lanes.
INLINE float greatest_lane(vf x)
{
    typedef int32_t vq __attribute__((vector_size(16)));
    typedef float quarter __attribute__((vector_size(16)));
    union { vf whole; quarter parts[lanes / 4]; } v = { x };
    quarter all = v.parts[0];
    for (int i = 1; i < lanes / 4; ++i) {
        const vq more = v.parts[i] > all;
        all = (quarter)(((vq)v.parts[i] & more) | ((vq)all & ~more));
    }
    const float a = all[1] > all[0] ? all[1] : all[0], b = all[3] > all[2] ? all[3] : all[2];
    return b > a ? b : a;
}
#line 431 "templates/host/prelude.h"

// 16-BIT WEIGHTS, in pairs: two in each lane

INLINE vi load_pairs(const int32_t* pairs) { return *(const vi_at*)pairs; }
INLINE void store_pairs(int32_t* pairs, vi x) { *(vi_at*)pairs = x; }

#line 473 "templates/host/prelude.h"
// Returns sum + x[2 l] w[2 l] + x[2 l + 1] w[2 l + 1] in lane l.
#line 491 "templates/host/prelude.h"
INLINE vi dot_pairs(vi w, vi x, vi sum)
{
    vi part;
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"  // together: compilers keep products apart
            : "+v"(sum), "=&v"(part) : "v"(x), "v"(w));
    return sum;
}
#line 499 "templates/host/prelude.h"

#line 501 "templates/host/prelude.h"
INLINE vi repeat_pair(const int32_t* at) { return (vi){ *at, *at, *at, *at, *at, *at, *at, *at }; }

#line 504 "templates/host/prelude.h"
// Lane l of the result is lane at[l] of a vector.
INLINE vi take_lanes(vi of, vi at)
{
    vi x;
    __asm__("vpermd %2, %1, %0" : "=v"(x) : "v"(at), "v"(of));
    return x;
}
#line 512 "templates/host/prelude.h"

INLINE vi add_pairs(vi x, vi sum)
{
#line 519 "templates/host/prelude.h"
    return dot_pairs((vi){ 0x10001, 0x10001, 0x10001, 0x10001, 0x10001, 0x10001, 0x10001, 0x10001 }, x, sum);
#line 521 "templates/host/prelude.h"
}

// Bytes x as x 2^up - lower, two in each lane.
INLINE vi load_wide_s8(const unsigned char* at, int up, int lower)
{
    typedef int16_t pair_in_each __attribute__((vector_size(4 * lanes)));
    const pair_in_each x = __builtin_convertvector(*(const vw_at*)at, pair_in_each);
    return (vi)((x << up) - (int16_t)lower);
}

// Rounded products of signed 16-bit numbers, times 2^-15.
INLINE vi times_ratio(vi a, vi b)
{
    vi x;
#line 538 "templates/host/prelude.h"
    __asm__("vpmulhrsw %2, %1, %0" : "=v"(x) : "v"(b), ANY(a));
#line 540 "templates/host/prelude.h"
    return x;
}

INLINE vi absolute_pairs(vi x)
{
    vi size;
#line 549 "templates/host/prelude.h"
    __asm__("vpabsw %1, %0" : "=v"(size) : "v"(x));
#line 551 "templates/host/prelude.h"
    return size;
}

INLINE int any_bit(vi x)
{
    int any;
#line 563 "templates/host/prelude.h"
    __asm__("vmovmskps %1, %0" : "=r"(any) : "x"((vi)(x != 0)));
#line 565 "templates/host/prelude.h"
    return any;
}

// The low 16 bits of the lanes of a, then of b.
INLINE vi low_halves(vi a, vi b)
{
#line 580 "templates/host/prelude.h"
    vi x;
    __asm__("vpackusdw %2, %1, %0\n\tvpermq $0xd8, %0, %0"
            : "=v"(x) : "v"(a & 0xffff), "v"(b & 0xffff));
    return x;
#line 585 "templates/host/prelude.h"
}

// Rounds a times `factor`, then b times it, to 16-bit numbers; products are at most 32767.
// y + 1.5 * 2^23 has y, rounded, in its low bits.
INLINE vi round_pair(vf a, vf b, vf factor)
{
    const vf high = repeat(12582912.0f);
    return low_halves((vi)mul_add(a, factor, high), (vi)mul_add(b, factor, high));
}

// Rounds w [count] to the nearest multiples of the unit that is returned, max|w| / 32767.  Weights
// below 1e-30 are zero.
static NOINLINE float round_list(const float* w, int count, int32_t* pairs)
{
    vf top = repeat(0.0f);
    for (int i = 0; i < count; i += lanes) top = greater(absolute_of(load(w + i)), top);
    const float max = greatest_lane(top);
    const vf factor = repeat(max > 1e-30f ? 32767.0f / max : 0.0f);
    for (int i = 0; i < count; i += 2 * lanes)
        store_pairs(pairs + i / 2, round_pair(load(w + i), load(w + i + lanes), factor));
    return max > 1e-30f ? max * (1.0f / 32767.0f) : 0.0f;
}

// What the W of `pairs` leave of the weights w [count].
static NOINLINE void take_remainder(float* w, int count, float unit, const int32_t* pairs)
{
    for (int i = 0; i < count; i += lanes) {
        const vi whole = __builtin_convertvector(*(const vt_at*)((const s16_at*)pairs + i), vi);
        const vf x = __builtin_convertvector(whole, vf);
        store(w + i, mul_add(x, repeat(-unit), load(w + i)));
    }
}

#line 9 "templates/host/program.c"
#line 1 "templates/host/config.h"
// config.h -- the shape that this program is for.  C99 has no constexpr: these are its constants.

enum { head_dim_k = 64, head_dim_v = 64 };
enum { num_heads = 3, page_size = 64 };
enum { window_rows = 64, strip_rows = 128 };
enum { part_rows = 64 };              // rows of a strip that are in one page
enum { strip_pages = strip_rows / part_rows };
enum { strip_words = 128 };          // strip_rows, filled up to two vectors

#line 10 "templates/host/program.c"
#line 1 "templates/host/softmax.h"
// softmax.h -- online softmax of num_heads heads.  The empty set is max = -inf, sum = 0, o = 0.

// Sums are kept lane by lane until the end.
typedef struct softmax {
    float max[num_heads], sum[num_heads][lanes];
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
    y = times_plus(y, r, repeat(1.0f / 120.0f));
    y = times_plus(y, r, repeat(1.0f / 24.0f));
    y = times_plus(y, r, repeat(1.0f / 6.0f));
    y = times_plus(y, r, repeat(0.5f));
    y = times_plus(y, r, repeat(1.0f));
    y = times_plus(y, r, repeat(1.0f));
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
        store(s->sum[head], repeat(0.0f));
    }
    for (int i = 0; i < num_heads * head_dim_v; ++i) o[i] = 0.0f;
}

// A head's scores [count], of which [first, end) are visible, become weights, 0 where they are not.
// count is a multiple of the vector's width; the first score is of the row at `position`, counted
// from the query's.  o [head_dim_v] is brought to the greatest score so far.
INLINE void softmax_add(softmax* s, const kvl__attend_args* a, int head, float* scores, int count,
                         int first, int end, int64_t position)
{
    const float hidden = -__builtin_inff();
    float* o = a->o + head * head_dim_v;
    if (a->soft_cap > 0.0f)
        for (int i = 0; i < count; i += lanes)
            store(scores + i, soft_cap(load(scores + i), a->soft_cap));
    if (a->slopes)
        for (int i = 0; i < count; ++i) scores[i] += a->slopes[head] * (float)(position + i);
    for (int i = 0; i < first; ++i) scores[i] = hidden;
    for (int i = end; i < count; ++i) scores[i] = hidden;

    vf top = repeat(s->max[head]);
    for (int i = 0; i < count; i += lanes) top = greater(load(scores + i), top);
    const float max = greatest_lane(top);
    if (max > s->max[head]) {
        const float shrink = exp_negative(repeat(s->max[head] - max))[0];
        s->max[head] = max;
        store(s->sum[head], load(s->sum[head]) * shrink);
        for (int i = 0; i < head_dim_v; i += lanes) store(o + i, load(o + i) * shrink);
    }
    vf sum = load(s->sum[head]);
    for (int i = 0; i < count; i += lanes) {
        const vf weight = exp_negative(load(scores + i) - max);
        store(scores + i, weight);
        sum += weight;
    }
    store(s->sum[head], sum);
}

INLINE void softmax_finish(const softmax* s, float* o, float* lse)
{
    for (int head = 0; head < num_heads; ++head, o += head_dim_v) {
        lse[head] = -__builtin_inff();
        const float sum = sum_lanes(load(s->sum[head]));
        if (!(sum > 0.0f)) continue;
        lse[head] = s->max[head] + natural_log(sum);
        const float share = 1.0f / sum;
        for (int i = 0; i < head_dim_v; i += lanes) store(o + i, load(o + i) * share);
    }
}

#line 29 "templates/host/program.c"
#line 1 "templates/host/codec.h"
// codec.h -- keys at 2 bits:  | codes: 4096 x u2 | scales: 128 x 1 bytes | zeros: 128 x 1 bytes |
#line 6 "templates/host/codec.h"
//
// The order of codes and metadata in a page is told in gen/layout.lua.  A cell has 16 lanes and 16
// words: channels are lanes, tokens are words.
// lane16 and word16 count cells in each direction.

#line 12 "templates/host/codec.h"
enum { k_dim = 64, k_lane_extent = 64 };
enum { k_word_extent = 64, k_cell_bytes = 64 };
enum { k_scales_at = 1024, k_zeros_at = 1152 };
enum { k_page_bytes = 1280, k_group_size = 32 };

INLINE const unsigned char* k_cell(const unsigned char* page, int lane16, int word16)
{
#line 20 "templates/host/codec.h"
    return page + (lane16 * (k_dim / 16) + word16) * (int64_t)k_cell_bytes;
#line 24 "templates/host/codec.h"
}

#line 29 "templates/host/codec.h"
// METADATA

// Index of the scale of a word and a lane.
INLINE int k_group(int word, int lane)
{
#line 35 "templates/host/codec.h"
    return lane / k_group_size * k_word_extent + word;
#line 39 "templates/host/codec.h"
}

#line 42 "templates/host/codec.h"
INLINE vf k_load_scale(const unsigned char* page, int group)
{
#line 50 "templates/host/codec.h"
    page += k_scales_at + group * (int64_t)1;
#line 54 "templates/host/codec.h"
    return load_e5m3(page);
#line 57 "templates/host/codec.h"
}

INLINE vf k_load_offset(const unsigned char* page, int group, vf scale)
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
#line 64 "templates/host/codec.h"
    page += k_zeros_at + group * (int64_t)1;
    const vf zero = load_i8(page);
#line 73 "templates/host/codec.h"
    return scale * (zero * ((float)(1 << bits) / 32.0f) - 0.5f * (float)code_max);
}

#line 42 "templates/host/codec.h"
INLINE float k_read_scale(const unsigned char* page, int group)
{
#line 50 "templates/host/codec.h"
    page += k_scales_at + group * (int64_t)1;
#line 54 "templates/host/codec.h"
    return read_e5m3(page);
#line 57 "templates/host/codec.h"
}

INLINE float k_read_offset(const unsigned char* page, int group, float scale)
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
#line 64 "templates/host/codec.h"
    page += k_zeros_at + group * (int64_t)1;
    const float zero = read_i8(page);
#line 73 "templates/host/codec.h"
    return scale * (zero * ((float)(1 << bits) / 32.0f) - 0.5f * (float)code_max);
}

#line 78 "templates/host/codec.h"
// Zeros of the groups from `group` on: offset + scale code_max / 2 = scale zero
// 0.125f.
INLINE vf k_load_zero(const unsigned char* page, int group)
{
    page += k_zeros_at + group * (int64_t)1;
    return load_i8(page);
}

#line 87 "templates/host/codec.h"
// The numbers that turn a value into its code: round((x - offset) * inverse).
typedef struct k_grid {
    float offset, inverse;
} k_grid;

INLINE void k_put_pair(unsigned char* page, int group, uint32_t scale_code, uint32_t zero_code)
{
    (void)zero_code;
#line 105 "templates/host/codec.h"
    page[k_scales_at + group] = (unsigned char)scale_code;
#line 105 "templates/host/codec.h"
    page[k_zeros_at + group] = (unsigned char)zero_code;
#line 110 "templates/host/codec.h"
}

// What is stored for a group, and the scale that it decodes to.
typedef struct k_pair {
    uint32_t scale_code, zero_code;
    float    scale;
} k_pair;

#line 180 "templates/host/codec.h"
// Fits a group.  flag: the lowest bit of its zero; < 0: any.
INLINE k_grid k_fit_grid(k_pair* pair, int flag, float lo, float hi)
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
    enum { group_size = 32 };
    k_grid grid = { 0.0f, 0.0f };
    uint32_t scale_code;
    float scale;
    (void)flag;
#line 190 "templates/host/codec.h"
    uint32_t zero_code;
    lo += 0.0f;                      // -0 becomes 0: one spelling of a stored zero
    hi += 0.0f;
#line 197 "templates/host/codec.h"
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
#line 198 "templates/host/codec.h"
    pair->zero_code = zero_code;
#line 210 "templates/host/codec.h"
    pair->scale_code = scale_code;
    pair->scale = scale;
    return grid;
}
#line 215 "templates/host/codec.h"

// Fits a group and stores its scale and zero.
#line 218 "templates/host/codec.h"
static k_grid k_store_grid(
    unsigned char* page, int group, float lo, float hi)
{
    k_pair pair;
    const k_grid grid = k_fit_grid(&pair, -1, lo, hi);
    k_put_pair(page, group, pair.scale_code, pair.zero_code);
    return grid;
}

#line 279 "templates/host/codec.h"
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
#line 297 "templates/host/codec.h"

// CODES

// Codes of one row, q [dim], take their place in the page, whatever bits were there.
static void k_put_row(unsigned char* page, int row, const uint16_t* q)
{
    const int i = row % 16;
    for (int at = 0; at < k_dim / 16; ++at, q += 16) {
#line 312 "templates/host/codec.h"
        u32_at* to = (u32_at*)k_cell(page, row / 16, at);
#line 318 "templates/host/codec.h"
        to[0 + i] = ((uint32_t)q[0] & 3u) | ((uint32_t)q[1] & 3u) << 16 | ((uint32_t)q[2] & 3u) << 2 | ((uint32_t)q[3] & 3u) << 18 | ((uint32_t)q[4] & 3u) << 4 | ((uint32_t)q[5] & 3u) << 20 | ((uint32_t)q[6] & 3u) << 6 | ((uint32_t)q[7] & 3u) << 22 | ((uint32_t)q[8] & 3u) << 8 | ((uint32_t)q[9] & 3u) << 24 | ((uint32_t)q[10] & 3u) << 10 | ((uint32_t)q[11] & 3u) << 26 | ((uint32_t)q[12] & 3u) << 12 | ((uint32_t)q[13] & 3u) << 28 | ((uint32_t)q[14] & 3u) << 14 | ((uint32_t)q[15] & 3u) << 30;
#line 341 "templates/host/codec.h"
    }
}

#line 355 "templates/host/codec.h"
INLINE uint32_t k_get_code(const unsigned char* page, int row,
                                                          int channel)
{
#line 359 "templates/host/codec.h"
    const int lane = row, word = channel;
#line 363 "templates/host/codec.h"
    const unsigned char* cell = k_cell(page, lane / 16, word / 16);
    const int i = word % 16;
#line 368 "templates/host/codec.h"
    uint32_t code = 0;
#line 370 "templates/host/codec.h"
    {
        enum { each = 8, mask = 3 };
        int bit = i % 2 * 16 + i / 2 % each * 2;
#line 377 "templates/host/codec.h"
        const unsigned char* at = cell + 0 + i / 2 / each * 64 + lane % 16 * 4;
#line 379 "templates/host/codec.h"
        code |= (*(const u32_at*)at >> bit & mask) << 0;
    }
#line 382 "templates/host/codec.h"
    return code;
#line 384 "templates/host/codec.h"
}

#line 418 "templates/host/codec.h"
// One value in the codec's basis.
INLINE float k_read_value(const unsigned char* page, int row, int channel)
{
    const uint32_t code = k_get_code(page, row, channel);
#line 423 "templates/host/codec.h"
    const int group = k_group(channel, row);
    const float scale = k_read_scale(page, group);
#line 426 "templates/host/codec.h"
    return scale * (float)(int32_t)code + k_read_offset(page, group, scale);
#line 430 "templates/host/codec.h"
}

#line 479 "templates/host/codec.h"
// Whether the weights have to be folded again before the cells of lane16.
INLINE int k_fold_is_due(int lane16)
{
#line 483 "templates/host/codec.h"
    return lane16 * 16 % k_group_size == 0;
#line 488 "templates/host/codec.h"
}

#line 31 "templates/host/program.c"
#line 1 "templates/host/dots.h"
// dots.h -- sums of the keys' codes times 16-bit weights, as integers.
#line 26 "templates/host/dots.h"
//
// A weight w, a query's or a softmax's, times the scale of its word where lanes share one, becomes
// a 16-bit number W in units of the greatest: w scale = unit W, |W| <= 32767.  Then
//
//     sum w (scale code + offset) = unit (sum W code) + rest,
//     rest = sum w (offset + middle scale) - middle unit (sum W),
//
// where sum W code is exact: 256 words of 255 times 32767 stay below 2^31.  In effect W
// multiplies code - middle, 1.5f, so that its rounding meets small numbers; the rest is
// exact but for rounding of floats.
//
// Bound: a W is off by at most 3/2, since plain weight, ratio and product are rounded, a sum over
// n words by unit 3/2 n 2^(bits - 1), and by about unit sqrt(n) 2^bits / 7 where errors are
// independent.
#line 41 "templates/host/dots.h"
// That is to be at most 0.0005f of a score.  Where the unit is greater,
// because queries and scales are, what W leave of the weights becomes a second list of 16 bits:
// then a score is as exact as in floats.
#line 47 "templates/host/dots.h"
//
// A cell of 256 codes: 1 loads, 8 times 1 to 3 instructions
// that unpack, and 8 multiply-adds for each head.

enum { k_words = 64 };                  // room for them, a multiple of a vector of W

// What cells are multiplied with: W, their unit, and what joins the sums.
#line 58 "templates/host/dots.h"
typedef struct k_list {
#line 65 "templates/host/dots.h"
    LINE int32_t pairs[num_heads][k_words / 2];    // W of words 2 i and 2 i + 1
    LINE float   unit[num_heads];
#line 74 "templates/host/dots.h"
    float   rest[num_heads];
#line 76 "templates/host/dots.h"
} k_list;

typedef struct k_dots {
    k_list main;
#line 81 "templates/host/dots.h"
    k_list fine;                                   // what `main` leaves of the weights
    int needs_fine;
#line 89 "templates/host/dots.h"
    float plain_unit[num_heads];
#line 104 "templates/host/dots.h"
    LINE int32_t plain[num_heads][k_words / 2];    // W without this group's scales
#line 106 "templates/host/dots.h"
    LINE float queries[num_heads][k_words];
    LINE float inverse[k_words];                   // of the scales in `plain`, times 1/2
    LINE float lift[k_words];                      // 1/2 where they are zero
#line 112 "templates/host/dots.h"
} k_dots;

#line 119 "templates/host/dots.h"
// Loads scales of the words in the group of lane16, and what offsets + 1.5f scales are, over
// 0.125f.
INLINE void k_load_grids(const unsigned char* page, int lane16, float* scale, float* raised)
{
    for (int i = 0; i < 64; i += lanes) {
        const int group = k_group(i, lane16 * 16);
        const vf one = k_load_scale(page, group);
        store(scale + i, one);
#line 128 "templates/host/dots.h"
        store(raised + i, one * k_load_zero(page, group));
#line 132 "templates/host/dots.h"
    }
    for (int i = 64; i < k_words; ++i) scale[i] = raised[i] = 0.0f;
    (void)raised;
}

// Before the first group: queries [num_heads, dim], and no ratio that fits.
static NOINLINE void k_start_dots(const float* queries, k_dots* to)
{
#line 153 "templates/host/dots.h"
    for (int i = 0; i < k_words; ++i) to->inverse[i] = to->lift[i] = 0.0f;
    for (int head = 0; head < num_heads; ++head)
        for (int i = 0; i < k_words; ++i)
            to->queries[head][i] = i < 64 ? queries[head * 64 + i] : 0.0f;
#line 158 "templates/host/dots.h"
}

#line 263 "templates/host/dots.h"
// Makes these scales the ones that others are compared with: queries times them are rounded.
static NOINLINE void k_set_plain(const float* scale, k_dots* to)
{
    LINE float list[k_words];
    for (int i = 0; i < k_words; i += lanes) {
        const vf one = load(scale + i) * 1.41421356f;
        store(to->inverse + i, select(one == 0.0f, repeat(3e+38f), 0.5f / one));
        store(to->lift + i, select(one == 0.0f, repeat(0.5f), repeat(0.0f)));
    }
    for (int head = 0; head < num_heads; ++head) {
        for (int i = 0; i < k_words; i += lanes)
            store(list + i, load(to->queries[head] + i) * (load(scale + i) * 1.41421356f));
        to->plain_unit[head] = round_list(list, k_words, to->plain[head]);
    }
}
#line 279 "templates/host/dots.h"

// Ratios of the scales to those of set_plain, times 1/2.  Returns 0 where one is not from 1/4 to 2:
// then the greatest product could lose three bits or more.  Zero for zero, whose products are zero,
// counts as 1.  set_plain takes 2^(1/2) times the scales that it is given, so that those of most
// groups are in that range.
INLINE int k_take_ratios(const float* scale, const k_dots* to, vi* ratio)
{
    vf pair[2], low = repeat(0.5f), high = low;
    for (int i = 0; i < k_words; i += 2 * lanes) {
        for (int j = 0; j < 2; ++j) {
            const int at = i + j * lanes;
            pair[j] = mul_add(load(scale + at), load(to->inverse + at), load(to->lift + at));
            const vf size = pair[j];
            low = smaller(size, low);
            high = greater(size, high);
        }
        ratio[i / (2 * lanes)] = round_pair(pair[0], pair[1], repeat(32768.0f));
    }
    return !any_bit((low < 0.125f) | (high >= 0.9999f));
}

// What the W of a group leave of the queries times its scales.
static NOINLINE void k_fold_fine(const float* scale, k_dots* to)
{
    for (int head = 0; head < num_heads; ++head) {
        LINE float list[k_words];
        vi sum = { 0 };
        for (int i = 0; i < k_words; i += lanes)
            store(list + i, load(to->queries[head] + i) * load(scale + i));
        take_remainder(list, k_words, to->main.unit[head], to->main.pairs[head]);
        to->fine.unit[head] = round_list(list, k_words, to->fine.pairs[head]);
        for (int i = 0; i < k_words; i += 2 * lanes)
            sum = add_pairs(load_pairs(to->fine.pairs[head] + i / 2), sum);
        to->fine.rest[head] = sum_lanes(__builtin_convertvector(sum, vf))
                              * (to->fine.unit[head] * -1.5f);
    }
}

// Loads what lane16's group has, and makes plain W that its ratios fit.
INLINE void k_load_group(const unsigned char* page, int lane16, float* scale, float* raised,
                         vi* ratio, k_dots* to)
{
    k_load_grids(page, lane16, scale, raised);
#line 334 "templates/host/dots.h"
    if (!(k_take_ratios(scale, to, ratio))) {
        k_set_plain(scale, to);
        (void)k_take_ratios(scale, to, ratio);
    }
}

// Queries times the scales of lane16's group.
static NOINLINE void k_fold_dots(const unsigned char* page, int lane16, k_dots* to)
{
    LINE float scale[k_words], raised[k_words];
    vi ratio[k_words / (2 * lanes)];
    k_load_group(page, lane16, scale, raised, ratio, to);
    float most = 0.0f;
#line 348 "templates/host/dots.h"
    {
#line 350 "templates/host/dots.h"
        vi sum_0 = { 0 };
        vf rest_0 = repeat(0.0f);
#line 350 "templates/host/dots.h"
        vi sum_1 = { 0 };
        vf rest_1 = repeat(0.0f);
#line 350 "templates/host/dots.h"
        vi sum_2 = { 0 };
        vf rest_2 = repeat(0.0f);
#line 359 "templates/host/dots.h"
        {
            enum { i = 0 };
#line 363 "templates/host/dots.h"
            const vf low = load(raised + i), high = load(raised + i + lanes);
#line 365 "templates/host/dots.h"
            const vi by = ratio[i / (2 * lanes)];
#line 369 "templates/host/dots.h"
            const int64_t at = i / 2;
#line 371 "templates/host/dots.h"
            vi w;
#line 374 "templates/host/dots.h"
            w = times_ratio(load_pairs(to->plain[0] + 0 + at), by);
            store_pairs(to->main.pairs[0] + 0 + i / 2, w);
            sum_0 = add_pairs(w, sum_0);
#line 379 "templates/host/dots.h"
            rest_0 = mul_add(low, load(to->queries[0] + 0 + 2 * at), rest_0);
            rest_0 = mul_add(high, load(to->queries[0] + 0 + lanes + 2 * at), rest_0);
#line 374 "templates/host/dots.h"
            w = times_ratio(load_pairs(to->plain[0] + 32 + at), by);
            store_pairs(to->main.pairs[0] + 32 + i / 2, w);
            sum_1 = add_pairs(w, sum_1);
#line 379 "templates/host/dots.h"
            rest_1 = mul_add(low, load(to->queries[0] + 64 + 2 * at), rest_1);
            rest_1 = mul_add(high, load(to->queries[0] + 64 + lanes + 2 * at), rest_1);
#line 374 "templates/host/dots.h"
            w = times_ratio(load_pairs(to->plain[0] + 64 + at), by);
            store_pairs(to->main.pairs[0] + 64 + i / 2, w);
            sum_2 = add_pairs(w, sum_2);
#line 379 "templates/host/dots.h"
            rest_2 = mul_add(low, load(to->queries[0] + 128 + 2 * at), rest_2);
            rest_2 = mul_add(high, load(to->queries[0] + 128 + lanes + 2 * at), rest_2);
#line 383 "templates/host/dots.h"
        }
#line 359 "templates/host/dots.h"
        {
            enum { i = 16 };
#line 363 "templates/host/dots.h"
            const vf low = load(raised + i), high = load(raised + i + lanes);
#line 365 "templates/host/dots.h"
            const vi by = ratio[i / (2 * lanes)];
#line 369 "templates/host/dots.h"
            const int64_t at = i / 2;
#line 371 "templates/host/dots.h"
            vi w;
#line 374 "templates/host/dots.h"
            w = times_ratio(load_pairs(to->plain[0] + 0 + at), by);
            store_pairs(to->main.pairs[0] + 0 + i / 2, w);
            sum_0 = add_pairs(w, sum_0);
#line 379 "templates/host/dots.h"
            rest_0 = mul_add(low, load(to->queries[0] + 0 + 2 * at), rest_0);
            rest_0 = mul_add(high, load(to->queries[0] + 0 + lanes + 2 * at), rest_0);
#line 374 "templates/host/dots.h"
            w = times_ratio(load_pairs(to->plain[0] + 32 + at), by);
            store_pairs(to->main.pairs[0] + 32 + i / 2, w);
            sum_1 = add_pairs(w, sum_1);
#line 379 "templates/host/dots.h"
            rest_1 = mul_add(low, load(to->queries[0] + 64 + 2 * at), rest_1);
            rest_1 = mul_add(high, load(to->queries[0] + 64 + lanes + 2 * at), rest_1);
#line 374 "templates/host/dots.h"
            w = times_ratio(load_pairs(to->plain[0] + 64 + at), by);
            store_pairs(to->main.pairs[0] + 64 + i / 2, w);
            sum_2 = add_pairs(w, sum_2);
#line 379 "templates/host/dots.h"
            rest_2 = mul_add(low, load(to->queries[0] + 128 + 2 * at), rest_2);
            rest_2 = mul_add(high, load(to->queries[0] + 128 + lanes + 2 * at), rest_2);
#line 383 "templates/host/dots.h"
        }
#line 359 "templates/host/dots.h"
        {
            enum { i = 32 };
#line 363 "templates/host/dots.h"
            const vf low = load(raised + i), high = load(raised + i + lanes);
#line 365 "templates/host/dots.h"
            const vi by = ratio[i / (2 * lanes)];
#line 369 "templates/host/dots.h"
            const int64_t at = i / 2;
#line 371 "templates/host/dots.h"
            vi w;
#line 374 "templates/host/dots.h"
            w = times_ratio(load_pairs(to->plain[0] + 0 + at), by);
            store_pairs(to->main.pairs[0] + 0 + i / 2, w);
            sum_0 = add_pairs(w, sum_0);
#line 379 "templates/host/dots.h"
            rest_0 = mul_add(low, load(to->queries[0] + 0 + 2 * at), rest_0);
            rest_0 = mul_add(high, load(to->queries[0] + 0 + lanes + 2 * at), rest_0);
#line 374 "templates/host/dots.h"
            w = times_ratio(load_pairs(to->plain[0] + 32 + at), by);
            store_pairs(to->main.pairs[0] + 32 + i / 2, w);
            sum_1 = add_pairs(w, sum_1);
#line 379 "templates/host/dots.h"
            rest_1 = mul_add(low, load(to->queries[0] + 64 + 2 * at), rest_1);
            rest_1 = mul_add(high, load(to->queries[0] + 64 + lanes + 2 * at), rest_1);
#line 374 "templates/host/dots.h"
            w = times_ratio(load_pairs(to->plain[0] + 64 + at), by);
            store_pairs(to->main.pairs[0] + 64 + i / 2, w);
            sum_2 = add_pairs(w, sum_2);
#line 379 "templates/host/dots.h"
            rest_2 = mul_add(low, load(to->queries[0] + 128 + 2 * at), rest_2);
            rest_2 = mul_add(high, load(to->queries[0] + 128 + lanes + 2 * at), rest_2);
#line 383 "templates/host/dots.h"
        }
#line 359 "templates/host/dots.h"
        {
            enum { i = 48 };
#line 363 "templates/host/dots.h"
            const vf low = load(raised + i), high = load(raised + i + lanes);
#line 365 "templates/host/dots.h"
            const vi by = ratio[i / (2 * lanes)];
#line 369 "templates/host/dots.h"
            const int64_t at = i / 2;
#line 371 "templates/host/dots.h"
            vi w;
#line 374 "templates/host/dots.h"
            w = times_ratio(load_pairs(to->plain[0] + 0 + at), by);
            store_pairs(to->main.pairs[0] + 0 + i / 2, w);
            sum_0 = add_pairs(w, sum_0);
#line 379 "templates/host/dots.h"
            rest_0 = mul_add(low, load(to->queries[0] + 0 + 2 * at), rest_0);
            rest_0 = mul_add(high, load(to->queries[0] + 0 + lanes + 2 * at), rest_0);
#line 374 "templates/host/dots.h"
            w = times_ratio(load_pairs(to->plain[0] + 32 + at), by);
            store_pairs(to->main.pairs[0] + 32 + i / 2, w);
            sum_1 = add_pairs(w, sum_1);
#line 379 "templates/host/dots.h"
            rest_1 = mul_add(low, load(to->queries[0] + 64 + 2 * at), rest_1);
            rest_1 = mul_add(high, load(to->queries[0] + 64 + lanes + 2 * at), rest_1);
#line 374 "templates/host/dots.h"
            w = times_ratio(load_pairs(to->plain[0] + 64 + at), by);
            store_pairs(to->main.pairs[0] + 64 + i / 2, w);
            sum_2 = add_pairs(w, sum_2);
#line 379 "templates/host/dots.h"
            rest_2 = mul_add(low, load(to->queries[0] + 128 + 2 * at), rest_2);
            rest_2 = mul_add(high, load(to->queries[0] + 128 + lanes + 2 * at), rest_2);
#line 383 "templates/host/dots.h"
        }
#line 386 "templates/host/dots.h"
        const float unit_0 = to->plain_unit[0] * 2.0f;
#line 388 "templates/host/dots.h"
        rest_0 = mul_add(__builtin_convertvector(sum_0, vf),
                            repeat(unit_0 * -1.5f), rest_0 * 0.125f);
        to->main.unit[0] = unit_0;
        most = most < unit_0 ? unit_0 : most;
#line 386 "templates/host/dots.h"
        const float unit_1 = to->plain_unit[1] * 2.0f;
#line 388 "templates/host/dots.h"
        rest_1 = mul_add(__builtin_convertvector(sum_1, vf),
                            repeat(unit_1 * -1.5f), rest_1 * 0.125f);
        to->main.unit[1] = unit_1;
        most = most < unit_1 ? unit_1 : most;
#line 386 "templates/host/dots.h"
        const float unit_2 = to->plain_unit[2] * 2.0f;
#line 388 "templates/host/dots.h"
        rest_2 = mul_add(__builtin_convertvector(sum_2, vf),
                            repeat(unit_2 * -1.5f), rest_2 * 0.125f);
        to->main.unit[2] = unit_2;
        most = most < unit_2 ? unit_2 : most;
#line 399 "templates/host/dots.h"
        to->main.rest[0] = sum_lanes(rest_0);
#line 399 "templates/host/dots.h"
        to->main.rest[1] = sum_lanes(rest_1);
#line 399 "templates/host/dots.h"
        to->main.rest[2] = sum_lanes(rest_2);
#line 403 "templates/host/dots.h"
    }
#line 405 "templates/host/dots.h"
    to->needs_fine = !(most <= 0.000109375f);
    if (to->needs_fine) k_fold_fine(scale, to);
}

// Scores of tiles [lane16, end16), times W: 16 of a tile after those of the one before it, in
// sums [num_heads, stride].
static NOINLINE void k_dot_cells(const unsigned char* page, int lane16, int end16,
                                 const k_list* w, float* sums, int stride)
{
#line 415 "templates/host/dots.h"
    enum { step = 2 * lanes };
    for (int lane = 0; lane16 < end16; lane = (lane + step) % 16, lane16 += lane == 0) {
#line 418 "templates/host/dots.h"
        {
#line 420 "templates/host/dots.h"
            vi sum_0_0_0 = { 0 };
#line 420 "templates/host/dots.h"
            vi sum_1_0_0 = { 0 };
#line 420 "templates/host/dots.h"
            vi sum_2_0_0 = { 0 };
#line 420 "templates/host/dots.h"
            vi sum_0_0_1 = { 0 };
#line 420 "templates/host/dots.h"
            vi sum_1_0_1 = { 0 };
#line 420 "templates/host/dots.h"
            vi sum_2_0_1 = { 0 };
#line 422 "templates/host/dots.h"
            for (int word16 = 0; word16 < 4; ++word16) {
                const unsigned char* cell = k_cell(page, lane16, word16);
                const int32_t* pairs = w->pairs[0] + word16 * 8;
                __asm__("" : "+r"(pairs));           // addresses stay offsets from it
#line 427 "templates/host/dots.h"
                const vu word_0_0 = load_u32(cell + 0 + lane * 4);
#line 427 "templates/host/dots.h"
                const vu word_0_0_1 = load_u32(cell + 0 + (lane + 1 * lanes) * 4);
#line 427 "templates/host/dots.h"
                vi w;
#line 427 "templates/host/dots.h"
                vp x_0;
#line 427 "templates/host/dots.h"
                vp x_1;
#line 427 "templates/host/dots.h"
                x_0 = ((vp)word_0_0 & 3);
#line 427 "templates/host/dots.h"
                x_1 = ((vp)word_0_0_1 & 3);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 0);
#line 427 "templates/host/dots.h"
                sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 427 "templates/host/dots.h"
                sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 32);
#line 427 "templates/host/dots.h"
                sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 427 "templates/host/dots.h"
                sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 64);
#line 427 "templates/host/dots.h"
                sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 427 "templates/host/dots.h"
                sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 427 "templates/host/dots.h"
                x_0 = ((vp)word_0_0 >> 2 & 3);
#line 427 "templates/host/dots.h"
                x_1 = ((vp)word_0_0_1 >> 2 & 3);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 1);
#line 427 "templates/host/dots.h"
                sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 427 "templates/host/dots.h"
                sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 33);
#line 427 "templates/host/dots.h"
                sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 427 "templates/host/dots.h"
                sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 65);
#line 427 "templates/host/dots.h"
                sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 427 "templates/host/dots.h"
                sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 427 "templates/host/dots.h"
                x_0 = ((vp)word_0_0 >> 4 & 3);
#line 427 "templates/host/dots.h"
                x_1 = ((vp)word_0_0_1 >> 4 & 3);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 2);
#line 427 "templates/host/dots.h"
                sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 427 "templates/host/dots.h"
                sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 34);
#line 427 "templates/host/dots.h"
                sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 427 "templates/host/dots.h"
                sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 66);
#line 427 "templates/host/dots.h"
                sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 427 "templates/host/dots.h"
                sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 427 "templates/host/dots.h"
                x_0 = ((vp)word_0_0 >> 6 & 3);
#line 427 "templates/host/dots.h"
                x_1 = ((vp)word_0_0_1 >> 6 & 3);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 3);
#line 427 "templates/host/dots.h"
                sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 427 "templates/host/dots.h"
                sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 35);
#line 427 "templates/host/dots.h"
                sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 427 "templates/host/dots.h"
                sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 67);
#line 427 "templates/host/dots.h"
                sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 427 "templates/host/dots.h"
                sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 427 "templates/host/dots.h"
                x_0 = ((vp)word_0_0 >> 8 & 3);
#line 427 "templates/host/dots.h"
                x_1 = ((vp)word_0_0_1 >> 8 & 3);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 4);
#line 427 "templates/host/dots.h"
                sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 427 "templates/host/dots.h"
                sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 36);
#line 427 "templates/host/dots.h"
                sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 427 "templates/host/dots.h"
                sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 68);
#line 427 "templates/host/dots.h"
                sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 427 "templates/host/dots.h"
                sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 427 "templates/host/dots.h"
                x_0 = ((vp)word_0_0 >> 10 & 3);
#line 427 "templates/host/dots.h"
                x_1 = ((vp)word_0_0_1 >> 10 & 3);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 5);
#line 427 "templates/host/dots.h"
                sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 427 "templates/host/dots.h"
                sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 37);
#line 427 "templates/host/dots.h"
                sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 427 "templates/host/dots.h"
                sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 69);
#line 427 "templates/host/dots.h"
                sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 427 "templates/host/dots.h"
                sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 427 "templates/host/dots.h"
                x_0 = ((vp)word_0_0 >> 12 & 3);
#line 427 "templates/host/dots.h"
                x_1 = ((vp)word_0_0_1 >> 12 & 3);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 6);
#line 427 "templates/host/dots.h"
                sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 427 "templates/host/dots.h"
                sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 38);
#line 427 "templates/host/dots.h"
                sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 427 "templates/host/dots.h"
                sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 70);
#line 427 "templates/host/dots.h"
                sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 427 "templates/host/dots.h"
                sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 427 "templates/host/dots.h"
                x_0 = (vp)word_0_0 >> 14;
#line 427 "templates/host/dots.h"
                x_1 = (vp)word_0_0_1 >> 14;
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 7);
#line 427 "templates/host/dots.h"
                sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 427 "templates/host/dots.h"
                sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 39);
#line 427 "templates/host/dots.h"
                sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 427 "templates/host/dots.h"
                sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 427 "templates/host/dots.h"
                w = repeat_pair(pairs + 71);
#line 427 "templates/host/dots.h"
                sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 427 "templates/host/dots.h"
                sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 429 "templates/host/dots.h"
            }
#line 432 "templates/host/dots.h"
            store(sums + 0 * stride + 0 * lanes,
                  mul_add(__builtin_convertvector(sum_0_0_0, vf),
                          repeat(w->unit[0]), repeat(w->rest[0])));
#line 432 "templates/host/dots.h"
            store(sums + 1 * stride + 0 * lanes,
                  mul_add(__builtin_convertvector(sum_1_0_0, vf),
                          repeat(w->unit[1]), repeat(w->rest[1])));
#line 432 "templates/host/dots.h"
            store(sums + 2 * stride + 0 * lanes,
                  mul_add(__builtin_convertvector(sum_2_0_0, vf),
                          repeat(w->unit[2]), repeat(w->rest[2])));
#line 432 "templates/host/dots.h"
            store(sums + 0 * stride + 1 * lanes,
                  mul_add(__builtin_convertvector(sum_0_0_1, vf),
                          repeat(w->unit[0]), repeat(w->rest[0])));
#line 432 "templates/host/dots.h"
            store(sums + 1 * stride + 1 * lanes,
                  mul_add(__builtin_convertvector(sum_1_0_1, vf),
                          repeat(w->unit[1]), repeat(w->rest[1])));
#line 432 "templates/host/dots.h"
            store(sums + 2 * stride + 1 * lanes,
                  mul_add(__builtin_convertvector(sum_2_0_1, vf),
                          repeat(w->unit[2]), repeat(w->rest[2])));
#line 437 "templates/host/dots.h"
        }
#line 439 "templates/host/dots.h"
        sums += step;
    }
}

#line 38 "templates/host/program.c"
#line 1 "templates/host/transform_rows.c"
// transform_rows.c -- rows into the bases of the keys' codec, or out of them.
//
//   x     [num_heads, dim]  f32, in place
#line 12 "templates/host/transform_rows.c"

#line 150 "templates/host/transform_rows.c"
// Into the basis that all rows are in.
INLINE void k_transform(float* x, const float* tables)
{
    (void)tables;
#line 162 "templates/host/transform_rows.c"
    (void)x;
#line 164 "templates/host/transform_rows.c"
}

#line 184 "templates/host/transform_rows.c"
static void k_transform_rows(const kvl__basis_args* a)
{
    for (int32_t head = 0; head < a->num_heads; ++head) {
        float* x = a->x + head * k_dim;
        (void)x;
#line 202 "templates/host/transform_rows.c"
        k_transform(x, a->tables);
#line 211 "templates/host/transform_rows.c"
    }
#line 228 "templates/host/transform_rows.c"
}

#line 54 "templates/host/program.c"
#line 1 "templates/host/encode_rows.c"
// encode_rows.c -- rows of the window become codes of a page: transform, fit, round, pack.
//
// Nothing in here may be fused or reordered where it decides a code: every target gets the same
// bits.

#line 28 "templates/host/encode_rows.c"
// A row without its shift.
INLINE void k_take_row(const uint16_t* row, const float* tables, float* x)
{
    for (int i = 0; i < k_dim; i += lanes)
        store(x + i, load_f16((const unsigned char*)(row + i)));
#line 37 "templates/host/encode_rows.c"
    (void)tables;
#line 39 "templates/host/encode_rows.c"
}

#line 63 "templates/host/encode_rows.c"
INLINE void k_load_row(const uint16_t* row, const float* tables, float* x)
{
    k_take_row(row, tables, x);
#line 75 "templates/host/encode_rows.c"
    k_transform(x, tables);
#line 83 "templates/host/encode_rows.c"
}

#line 107 "templates/host/encode_rows.c"

#line 175 "templates/host/encode_rows.c"
// Groups along tokens: group_size rows at once, each channel with its own statistics.
static void k_encode_rows(const kvl__encode_args* a)
{
    enum { group_size = 32 };
    for (int32_t r = 0; r < a->num_rows; r += group_size) {
        float rows[group_size][k_dim];
#line 182 "templates/host/encode_rows.c"
        float los[k_dim];
#line 182 "templates/host/encode_rows.c"
        float his[k_dim];
#line 188 "templates/host/encode_rows.c"
        for (int t = 0; t < group_size; ++t)
            k_load_row(a->rows + (r + t) * a->row_stride, a->tables, rows[t]);
#line 191 "templates/host/encode_rows.c"
        for (int i = 0; i < k_dim; ++i) {
            const float x = rows[0][i];
#line 194 "templates/host/encode_rows.c"
            los[i] = x;
#line 194 "templates/host/encode_rows.c"
            his[i] = x;
#line 196 "templates/host/encode_rows.c"
        }
        for (int t = 1; t < group_size; ++t) {
            for (int i = 0; i < k_dim; ++i) {
                const float x = rows[t][i];
#line 201 "templates/host/encode_rows.c"
                const float lo = los[i];
                los[i] = x < lo ? x : lo;
#line 201 "templates/host/encode_rows.c"
                const float hi = his[i];
                his[i] = x > hi ? x : hi;
#line 204 "templates/host/encode_rows.c"
            }
        }
        float offset[k_dim], inverse[k_dim];
#line 214 "templates/host/encode_rows.c"
        for (int i = 0; i < k_dim; ++i) {
            const int row = a->first_row + r;
            const int group = k_group(i, row);
#line 218 "templates/host/encode_rows.c"
            const k_grid grid =
                k_store_grid(a->page, group, los[i], his[i]);
            offset[i] = grid.offset;
            inverse[i] = grid.inverse;
        }
        for (int t = 0; t < group_size; ++t) {
            uint16_t q[k_dim];
            k_round_row(rows[t], offset, inverse, q);
#line 229 "templates/host/encode_rows.c"
            k_put_row(a->page, a->first_row + r + t, q);
        }
    }
}

#line 55 "templates/host/program.c"
#line 1 "templates/host/decode_rows.c"
// decode_rows.c -- rows of a page as floats in the original basis, as codes, and their scales.

#line 6 "templates/host/decode_rows.c"
#line 1 "templates/host/read_row.h"
// read_row.h -- rows of a page of the keys in the basis of their codec.

#line 1 "templates/host/row_codes.h"
// row_codes.h -- the stored numbers of a row of a page of the keys.

// Those of 16 channels, from channel16 * 16 on.
INLINE void k_get_codes(const unsigned char* page, int row, int channel16, uint32_t* q)
{
#line 7 "templates/host/row_codes.h"
    const unsigned char* cell = k_cell(page, row / 16, channel16);
    const int lane = row % 16;
#line 13 "templates/host/row_codes.h"
    for (int n = 0; n < 16; ++n) q[n] = 0;
#line 15 "templates/host/row_codes.h"
    {
        enum { width = 2, each = 16 / width, mask = (1 << width) - 1 };
#line 18 "templates/host/row_codes.h"
        uint32_t words[16], bit[16];
#line 28 "templates/host/row_codes.h"
        const u32_at* from = (const u32_at*)(cell + 0) + lane;
        for (int n = 0; n < 16; ++n) words[n] = from[n / 2 / each * 16];
        for (int n = 0; n < 16; ++n) bit[n] = (uint32_t)(n % 2 * 16 + n / 2 % each * width);
#line 36 "templates/host/row_codes.h"
        for (int n = 0; n < 16; ++n) q[n] |= (words[n] >> bit[n] & mask) << 0;
    }
#line 39 "templates/host/row_codes.h"
}

#line 4 "templates/host/read_row.h"

// A row in the codec's basis: to the bit what read_value gives.
static void k_read_row(const unsigned char* page, int row, float* x)
{
    for (int at = 0; at < k_dim; at += 16, x += 16) {
        uint32_t q[16];
        k_get_codes(page, row, at / 16, q);
        const int group = k_group(at, row);
#line 16 "templates/host/read_row.h"
        for (int n = 0; n < 16; n += lanes) {
#line 18 "templates/host/read_row.h"
            const vf scale = k_load_scale(page, group + n);
            const vf offset = k_load_offset(page, group + n, scale);
#line 22 "templates/host/read_row.h"
            const vu code = load_u32((const unsigned char*)(q + n));
            store(x + n, scale * to_float(code) + offset);
        }
    }
}

#line 7 "templates/host/decode_rows.c"

#line 12 "templates/host/decode_rows.c"
// A row of a page in the original basis, x [dim].
static void k_decode_row(const kvl__decode_args* a, int row, float* x)
{
#line 16 "templates/host/decode_rows.c"
    k_read_row(a->page, row, x);
#line 40 "templates/host/decode_rows.c"
    k_transform(x, a->tables);
#line 59 "templates/host/decode_rows.c"
}

static void k_decode_rows(const kvl__decode_args* a)
{
    for (int32_t r = 0; r < a->num_rows; ++r) {
        const int row = a->first_row + r;
        if (a->rows) k_decode_row(a, row, a->rows + r * (int64_t)k_dim);
        if (a->codes) {
            uint16_t* q = a->codes + r * (int64_t)k_dim;
#line 71 "templates/host/decode_rows.c"
            for (int i = 0; i < k_dim; ++i) q[i] = (uint16_t)k_get_code(a->page, row, i);
#line 73 "templates/host/decode_rows.c"
        }
    }
#line 86 "templates/host/decode_rows.c"
    if (!a->scales || !a->offsets) return;
    int64_t at = 0;
#line 105 "templates/host/decode_rows.c"
    for (int32_t row = a->first_row; row < a->first_row + a->num_rows; row += k_group_size) {
        for (int i = 0; i < k_dim; ++i, ++at) {
#line 108 "templates/host/decode_rows.c"
            const int group = k_group(i, row);
            a->scales[at] = k_read_scale(a->page, group);
            a->offsets[at] = k_read_offset(a->page, group, a->scales[at]);
        }
    }
#line 115 "templates/host/decode_rows.c"
}

#line 56 "templates/host/program.c"
#line 1 "templates/host/linear_rows.c"
// linear_rows.c -- the first rows of a page in the linear order of files (runtime/kvl_layout.h), or
// from it.

#line 39 "templates/host/linear_rows.c"
// The codes of a cell, [word][lane].
INLINE void k_get_cell(const unsigned char* cell, uint8_t q[16][16])
{
    __builtin_memset(q, 0, 256);
#line 44 "templates/host/linear_rows.c"
    for (int i = 0; i < 16; ++i) {
        enum { each = 8, mask = 3 };
        const u32_at* from = (const u32_at*)(cell + 0) + i / 2 / each * 16;
        const int left = i % 2 * 16 + i / 2 % each * 2;
#line 55 "templates/host/linear_rows.c"
        for (int lane = 0; lane < 16; ++lane)
            q[i][lane] = (uint8_t)(q[i][lane] | (from[lane] >> left & mask) << 0);
#line 58 "templates/host/linear_rows.c"
    }
#line 60 "templates/host/linear_rows.c"
}

INLINE void k_put_cell(unsigned char* cell, uint8_t q[16][16])
{
    __builtin_memset(cell, 0, 64);
#line 66 "templates/host/linear_rows.c"
    for (int i = 0; i < 16; ++i) {
        enum { each = 8, mask = 3 };
        u32_at* to = (u32_at*)(cell + 0) + i / 2 / each * 16;
        const int left = i % 2 * 16 + i / 2 % each * 2;
#line 75 "templates/host/linear_rows.c"
        for (int lane = 0; lane < 16; ++lane)
            to[lane] |= ((uint32_t)q[i][lane] >> 0 & mask) << left;
#line 78 "templates/host/linear_rows.c"
    }
#line 80 "templates/host/linear_rows.c"
}

// The codes of 16 channels of a row are 2 numbers of 16 bits, low bits first: those of
// 16 rows, [number][row], from codes [channel][row], and back.
INLINE void k_pack_codes(uint8_t q[16][16], uint16_t packed[2][16])
{
    __builtin_memset(packed, 0, 64);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[0][row] << 0);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[1][row] << 2);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[2][row] << 4);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[3][row] << 6);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[4][row] << 8);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[5][row] << 10);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[6][row] << 12);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[7][row] << 14);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[8][row] << 0);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[9][row] << 2);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[10][row] << 4);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[11][row] << 6);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[12][row] << 8);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[13][row] << 10);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[14][row] << 12);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[15][row] << 14);
#line 96 "templates/host/linear_rows.c"
}

INLINE void k_unpack_codes(uint16_t packed[2][16], uint8_t q[16][16])
{
    enum { mask = 3 };
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[0][row] = (uint8_t)(packed[0][row] >> 0 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[1][row] = (uint8_t)(packed[0][row] >> 2 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[2][row] = (uint8_t)(packed[0][row] >> 4 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[3][row] = (uint8_t)(packed[0][row] >> 6 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[4][row] = (uint8_t)(packed[0][row] >> 8 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[5][row] = (uint8_t)(packed[0][row] >> 10 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[6][row] = (uint8_t)(packed[0][row] >> 12 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[7][row] = (uint8_t)(packed[0][row] >> 14 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[8][row] = (uint8_t)(packed[1][row] >> 0 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[9][row] = (uint8_t)(packed[1][row] >> 2 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[10][row] = (uint8_t)(packed[1][row] >> 4 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[11][row] = (uint8_t)(packed[1][row] >> 6 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[12][row] = (uint8_t)(packed[1][row] >> 8 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[13][row] = (uint8_t)(packed[1][row] >> 10 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[14][row] = (uint8_t)(packed[1][row] >> 12 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[15][row] = (uint8_t)(packed[1][row] >> 14 & mask);
#line 111 "templates/host/linear_rows.c"
}
#line 120 "templates/host/linear_rows.c"

// Rows [row, row + num) of the 16 channels from 16 * at on; row is a multiple of 16.
static void k_linear_cell(const kvl__linear_args* a, int row, int num, int at)
{
    enum { bits = 2, row_bytes = 16 };
#line 126 "templates/host/linear_rows.c"
    unsigned char* cell = (unsigned char*)(uintptr_t)k_cell(a->page, row / 16, at);
#line 131 "templates/host/linear_rows.c"
    LINE uint8_t q[16][16];
    LINE uint16_t packed[bits][16];
    unsigned char* linear = a->linear + row * (int64_t)row_bytes + at * 2 * bits;
#line 135 "templates/host/linear_rows.c"
    k_get_cell(cell, q);
    if (!a->into_page || num < 16) {
#line 140 "templates/host/linear_rows.c"
        k_pack_codes(q, packed);
    }
    for (int t = 0; t < num; ++t)
        for (int i = 0; i < bits; ++i) {
            unsigned char* file = linear + t * (int64_t)row_bytes + 2 * i;
            if (a->into_page) packed[i][t] = (uint16_t)read_u16(file);
            else write_u16(file, packed[i][t]);
        }
    if (!a->into_page) return;
    k_unpack_codes(packed, q);
#line 153 "templates/host/linear_rows.c"
    k_put_cell(cell, q);
}

INLINE void k_linear_codes(const kvl__linear_args* a)
{
    for (int32_t row = 0; row < a->num_rows; row += 16)
        for (int at = 0; at < k_dim / 16; ++at)
            k_linear_cell(a, row, a->num_rows - row < 16 ? a->num_rows - row : 16, at);
}
#line 163 "templates/host/linear_rows.c"

#line 165 "templates/host/linear_rows.c"
INLINE void k_copy_meta(const kvl__linear_args* a, int group, int linear)
{
#line 169 "templates/host/linear_rows.c"
    for (int j = 0; j < 1; ++j) {
        unsigned char* page = a->page + k_scales_at + group * (int64_t)1 + j;
        unsigned char* file = a->linear + k_scales_at + linear * (int64_t)1 + j;
        if (a->into_page) *page = *file; else *file = *page;
    }
#line 169 "templates/host/linear_rows.c"
    for (int j = 0; j < 1; ++j) {
        unsigned char* page = a->page + k_zeros_at + group * (int64_t)1 + j;
        unsigned char* file = a->linear + k_zeros_at + linear * (int64_t)1 + j;
        if (a->into_page) *page = *file; else *file = *page;
    }
#line 175 "templates/host/linear_rows.c"
}
#line 177 "templates/host/linear_rows.c"

#line 182 "templates/host/linear_rows.c"
static void k_linear_rows(const kvl__linear_args* a)
{
    k_linear_codes(a);
#line 186 "templates/host/linear_rows.c"
    int at = 0;
#line 191 "templates/host/linear_rows.c"
    for (int32_t row = 0; row < a->num_rows; row += k_group_size) {
        for (int i = 0; i < k_dim; ++i, ++at)
#line 194 "templates/host/linear_rows.c"
            k_copy_meta(a, k_group(i, row), at);
    }
#line 200 "templates/host/linear_rows.c"
}

#line 29 "templates/host/program.c"
#line 1 "templates/host/codec.h"
// codec.h -- values at 2 bits:  | codes: 4096 x u2 | scales: 128 x 1 bytes | zeros: 128 x 1 bytes |
#line 6 "templates/host/codec.h"
//
// The order of codes and metadata in a page is told in gen/layout.lua.  A cell has 16 lanes and 16
// words: tokens are words, channels are lanes.
// lane16 and word16 count cells in each direction.

#line 12 "templates/host/codec.h"
enum { v_dim = 64, v_lane_extent = 64 };
enum { v_word_extent = 64, v_cell_bytes = 64 };
enum { v_scales_at = 1024, v_zeros_at = 1152 };
enum { v_page_bytes = 1280, v_group_size = 32 };

INLINE const unsigned char* v_cell(const unsigned char* page, int lane16, int word16)
{
#line 22 "templates/host/codec.h"
    return page + (word16 * (v_dim / 16) + lane16) * (int64_t)v_cell_bytes;
#line 24 "templates/host/codec.h"
}

#line 29 "templates/host/codec.h"
// METADATA

// Index of the scale of a word and a lane.
INLINE int v_group(int word, int lane)
{
#line 35 "templates/host/codec.h"
    return lane / v_group_size * v_word_extent + word;
#line 39 "templates/host/codec.h"
}

#line 42 "templates/host/codec.h"
INLINE vf v_load_scale(const unsigned char* page, int group)
{
#line 50 "templates/host/codec.h"
    page += v_scales_at + group * (int64_t)1;
#line 54 "templates/host/codec.h"
    return load_e5m3(page);
#line 57 "templates/host/codec.h"
}

INLINE vf v_load_offset(const unsigned char* page, int group, vf scale)
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
#line 64 "templates/host/codec.h"
    page += v_zeros_at + group * (int64_t)1;
    const vf zero = load_i8(page);
#line 73 "templates/host/codec.h"
    return scale * (zero * ((float)(1 << bits) / 32.0f) - 0.5f * (float)code_max);
}

#line 42 "templates/host/codec.h"
INLINE float v_read_scale(const unsigned char* page, int group)
{
#line 50 "templates/host/codec.h"
    page += v_scales_at + group * (int64_t)1;
#line 54 "templates/host/codec.h"
    return read_e5m3(page);
#line 57 "templates/host/codec.h"
}

INLINE float v_read_offset(const unsigned char* page, int group, float scale)
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
#line 64 "templates/host/codec.h"
    page += v_zeros_at + group * (int64_t)1;
    const float zero = read_i8(page);
#line 73 "templates/host/codec.h"
    return scale * (zero * ((float)(1 << bits) / 32.0f) - 0.5f * (float)code_max);
}

#line 78 "templates/host/codec.h"
// Zeros of the groups from `group` on: offset + scale code_max / 2 = scale zero
// 0.125f.
INLINE vf v_load_zero(const unsigned char* page, int group)
{
    page += v_zeros_at + group * (int64_t)1;
    return load_i8(page);
}

#line 87 "templates/host/codec.h"
// The numbers that turn a value into its code: round((x - offset) * inverse).
typedef struct v_grid {
    float offset, inverse;
} v_grid;

INLINE void v_put_pair(unsigned char* page, int group, uint32_t scale_code, uint32_t zero_code)
{
    (void)zero_code;
#line 105 "templates/host/codec.h"
    page[v_scales_at + group] = (unsigned char)scale_code;
#line 105 "templates/host/codec.h"
    page[v_zeros_at + group] = (unsigned char)zero_code;
#line 110 "templates/host/codec.h"
}

// What is stored for a group, and the scale that it decodes to.
typedef struct v_pair {
    uint32_t scale_code, zero_code;
    float    scale;
} v_pair;

#line 180 "templates/host/codec.h"
// Fits a group.  flag: the lowest bit of its zero; < 0: any.
INLINE v_grid v_fit_grid(v_pair* pair, int flag, float lo, float hi)
{
    enum { bits = 2, code_max = 3, half_codes = 1 << (bits - 1) };
    enum { group_size = 32 };
    v_grid grid = { 0.0f, 0.0f };
    uint32_t scale_code;
    float scale;
    (void)flag;
#line 190 "templates/host/codec.h"
    uint32_t zero_code;
    lo += 0.0f;                      // -0 becomes 0: one spelling of a stored zero
    hi += 0.0f;
#line 197 "templates/host/codec.h"
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
#line 198 "templates/host/codec.h"
    pair->zero_code = zero_code;
#line 210 "templates/host/codec.h"
    pair->scale_code = scale_code;
    pair->scale = scale;
    return grid;
}
#line 215 "templates/host/codec.h"

// Fits a group and stores its scale and zero.
#line 218 "templates/host/codec.h"
static v_grid v_store_grid(
    unsigned char* page, int group, float lo, float hi)
{
    v_pair pair;
    const v_grid grid = v_fit_grid(&pair, -1, lo, hi);
    v_put_pair(page, group, pair.scale_code, pair.zero_code);
    return grid;
}

#line 279 "templates/host/codec.h"
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
#line 297 "templates/host/codec.h"

// CODES

// Codes of one row, q [dim], take their place in the page, whatever bits were there.
static void v_put_row(unsigned char* page, int row, const uint16_t* q)
{
    const int i = row % 16;
    for (int at = 0; at < v_dim / 16; ++at, q += 16) {
#line 322 "templates/host/codec.h"
        u32_at* to = (u32_at*)v_cell(page, at, row / 16);
#line 324 "templates/host/codec.h"
        {
            enum { each = 8, mask = 3 };
            u32_at* words = to + 0 + i / 2 / each * 16;
            const int left = i % 2 * 16 + i / 2 % each * 2;
#line 334 "templates/host/codec.h"
            for (int lane = 0; lane < 16; ++lane)
                words[lane] = (words[lane] & ~((uint32_t)mask << left))
                              | ((uint32_t)q[lane] >> 0 & mask) << left;
#line 338 "templates/host/codec.h"
        }
#line 341 "templates/host/codec.h"
    }
}

#line 355 "templates/host/codec.h"
INLINE uint32_t v_get_code(const unsigned char* page, int row,
                                                          int channel)
{
#line 361 "templates/host/codec.h"
    const int lane = channel, word = row;
#line 363 "templates/host/codec.h"
    const unsigned char* cell = v_cell(page, lane / 16, word / 16);
    const int i = word % 16;
#line 368 "templates/host/codec.h"
    uint32_t code = 0;
#line 370 "templates/host/codec.h"
    {
        enum { each = 8, mask = 3 };
        int bit = i % 2 * 16 + i / 2 % each * 2;
#line 377 "templates/host/codec.h"
        const unsigned char* at = cell + 0 + i / 2 / each * 64 + lane % 16 * 4;
#line 379 "templates/host/codec.h"
        code |= (*(const u32_at*)at >> bit & mask) << 0;
    }
#line 382 "templates/host/codec.h"
    return code;
#line 384 "templates/host/codec.h"
}

#line 418 "templates/host/codec.h"
// One value in the codec's basis.
INLINE float v_read_value(const unsigned char* page, int row, int channel)
{
    const uint32_t code = v_get_code(page, row, channel);
#line 423 "templates/host/codec.h"
    const int group = v_group(row, channel);
    const float scale = v_read_scale(page, group);
#line 426 "templates/host/codec.h"
    return scale * (float)(int32_t)code + v_read_offset(page, group, scale);
#line 430 "templates/host/codec.h"
}

#line 479 "templates/host/codec.h"
// Whether the weights have to be folded again before the cells of lane16.
INLINE int v_fold_is_due(int lane16)
{
#line 483 "templates/host/codec.h"
    return lane16 * 16 % v_group_size == 0;
#line 488 "templates/host/codec.h"
}

#line 31 "templates/host/program.c"
#line 1 "templates/host/dots.h"
// dots.h -- sums of the values' codes times 16-bit weights, as integers.
#line 26 "templates/host/dots.h"
//
// A weight w, a query's or a softmax's, times the scale of its word where lanes share one, becomes
// a 16-bit number W in units of the greatest: w scale = unit W, |W| <= 32767.  Then
//
//     sum w (scale code + offset) = unit (sum W code) + rest,
//     rest = sum w (offset + middle scale) - middle unit (sum W),
//
// where sum W code is exact: 256 words of 255 times 32767 stay below 2^31.  In effect W
// multiplies code - middle, 1.5f, so that its rounding meets small numbers; the rest is
// exact but for rounding of floats.
//
// Bound: a W is off by at most 3/2, since plain weight, ratio and product are rounded, a sum over
// n words by unit 3/2 n 2^(bits - 1), and by about unit sqrt(n) 2^bits / 7 where errors are
// independent.
#line 45 "templates/host/dots.h"
// Each unit is at most 1/4096 of the greatest weight times scale of the strip.
#line 47 "templates/host/dots.h"
//
// A cell of 256 codes: 1 loads, 8 times 1 to 3 instructions
// that unpack, and 8 multiply-adds for each head.

enum { v_words = 128 };                  // room for them, a multiple of a vector of W

// What cells are multiplied with: W, their unit, and what joins the sums.
#line 58 "templates/host/dots.h"
typedef struct v_list {
#line 65 "templates/host/dots.h"
    LINE int32_t pairs[num_heads][v_words / 2];    // W of words 2 i and 2 i + 1
    LINE float   unit[num_heads];
#line 74 "templates/host/dots.h"
    float   rest[num_heads];
#line 76 "templates/host/dots.h"
} v_list;

typedef struct v_dots {
    v_list main;
#line 89 "templates/host/dots.h"
    float plain_unit[num_heads];
#line 104 "templates/host/dots.h"
    LINE int32_t plain[num_heads][v_words / 2];    // W without this group's scales
#line 112 "templates/host/dots.h"
} v_dots;

#line 117 "templates/host/dots.h"
#line 1 "templates/host/value_dots.h"
// value_dots.h -- dots.h for values whose groups run along lanes: a row's scale joins its
// weight, once for each group of channels.
//
// W is made in two steps, weights and then ratios of scales to the greatest of the strip, so that
// what is rounded in floats serves all groups of a row.
#line 13 "templates/host/value_dots.h"

// A strip has rows of pages [num_parts]; `skip` rows of the first page are before it.
typedef struct v_strip {
    const unsigned char* pages[2];       // beyond the last: any other
    int skip;
} v_strip;

// Scales of the strip's rows [first, end) in the group of lane16.  What is stored for rows that are
// not visible may be no number.
INLINE void v_load_scales(const v_strip* strip, int lane16, int first, int end,
                          float* scale)
{
    for (int i = 0; i < strip_rows; i += lanes) {
        const int row = strip->skip + i % part_rows;
        const unsigned char* page = strip->pages[i / part_rows];
        store(scale + i, v_load_scale(page, v_group(row, lane16 * 16)));
    }
    for (int i = strip_rows; i < 128; ++i) scale[i] = 0.0f;
    if (end - first < strip_rows)
        for (int i = 0; i < strip_rows; ++i)
            if (i < first || i >= end) scale[i] = 0.0f;
}

#line 37 "templates/host/value_dots.h"
// Offsets of words in units of scale times 0.125f, whole numbers in pairs.
INLINE void v_load_zeros(const v_strip* strip, int lane16, vi* zero)
{
    enum { lower = 12, num_vectors = 128 / (2 * lanes) };
#line 42 "templates/host/value_dots.h"
    for (int i = 0; i < num_vectors; ++i) {
        const int row = strip->skip + i * 2 * lanes % part_rows;
        const unsigned char* page = strip->pages[i * 2 * lanes / part_rows];
        const int group = v_group(row, lane16 * 16);
        zero[i] = load_wide_s8(page + v_zeros_at + group, 0, lower);
    }
#line 57 "templates/host/value_dots.h"
}
#line 75 "templates/host/value_dots.h"

// Weights [num_heads, words] of the rows of a strip, without scales.
static NOINLINE void v_set_plain(const float* weights, v_dots* to)
{
    for (int head = 0; head < num_heads; ++head)
        to->plain_unit[head] = round_list(weights + head * 128, 128, to->plain[head]);
}

// A head's weights [words] times scales, rounded afterwards: nothing is lost.
static NOINLINE void v_round_scaled(const float* weights, const float* scale, v_dots* to,
                                    int head)
{
    LINE float list[128];
    for (int i = 0; i < 128; i += lanes)
        store(list + i, load(weights + i) * load(scale + i));
    to->main.unit[head] = round_list(list, 128, to->main.pairs[head]);
}

#line 95 "templates/host/value_dots.h"
// Weights [num_heads, words] of the strip's rows, of which [first, end) are visible, times their
// scales in lane16's group.  Where the greatest product has lost three bits or more, it is rounded
// again.
static NOINLINE void v_fold_dots(const v_strip* strip, int lane16, int first, int end,
                                 const float* weights, v_dots* to)
{
    enum { num_vectors = 128 / (2 * lanes) };
    LINE float scale[128];
    vi ratio[num_vectors];
    vf top = repeat(0.0f);
    v_load_scales(strip, lane16, first, end, scale);
#line 107 "templates/host/value_dots.h"
    vi zero[num_vectors];
    v_load_zeros(strip, lane16, zero);
#line 114 "templates/host/value_dots.h"
    for (int i = 0; i < 128; i += lanes) top = greater(load(scale + i), top);
    const float max = greatest_lane(top), unit = max * (32768.0f / 32767.0f);
    const vf inverse = repeat(max > 0.0f ? 32767.0f / max : 0.0f);
    for (int i = 0; i < num_vectors; ++i)
        ratio[i] = round_pair(load(scale + i * 2 * lanes), load(scale + (i * 2 + 1) * lanes),
                              inverse);
    for (int head = 0; head < num_heads; ++head, weights += 128) {
        vi bits = { 0 }, sum = { 0 };
        for (int i = 0; i < num_vectors; ++i) {
            const vi w = times_ratio(load_pairs(to->plain[head] + i * lanes), ratio[i]);
            store_pairs(to->main.pairs[head] + i * lanes, w);
            bits |= w;
            sum = dot_pairs(zero[i], w, sum);
        }
        to->main.unit[head] = to->plain_unit[head] * unit;
        if (!any_bit(bits & 0x70007000)) {
            v_round_scaled(weights, scale, to, head);
            sum = (vi){ 0 };
            for (int i = 0; i < num_vectors; ++i)
                sum = dot_pairs(zero[i], load_pairs(to->main.pairs[head] + i * lanes), sum);
        }
        const float whole = sum_lanes(__builtin_convertvector(sum, vf)) * to->main.unit[head];
#line 137 "templates/host/value_dots.h"
        to->main.rest[head] = whole * 0.125f;
#line 146 "templates/host/value_dots.h"
    }
}

// Cells [from, end) of the strip's channels of lane16, times W: they join sums [num_heads, stride].
static NOINLINE void v_dot_cells(const v_strip* strip, int lane16, int from, int end,
                                 const v_list* w, float* sums, int stride)
{
#line 154 "templates/host/value_dots.h"
    enum { part = part_rows / 16, step = 2 * lanes };
    for (int lane = 0; lane < 16; lane += step) {
#line 157 "templates/host/value_dots.h"
        {
#line 159 "templates/host/value_dots.h"
            vi sum_0_0_0 = { 0 };
#line 159 "templates/host/value_dots.h"
            vi sum_1_0_0 = { 0 };
#line 159 "templates/host/value_dots.h"
            vi sum_2_0_0 = { 0 };
#line 159 "templates/host/value_dots.h"
            vi sum_0_0_1 = { 0 };
#line 159 "templates/host/value_dots.h"
            vi sum_1_0_1 = { 0 };
#line 159 "templates/host/value_dots.h"
            vi sum_2_0_1 = { 0 };
#line 161 "templates/host/value_dots.h"
            for (int at = from; at < end;) {
                const int begin = at / part * part, stop = begin + part < end ? begin + part : end;
                const unsigned char* page = strip->pages[at / part];
                for (; at < stop; ++at) {
                    const int word16 = strip->skip / 16 + at - begin;
                    const unsigned char* cell = v_cell(page, lane16, word16);
                    const int32_t* pairs = w->pairs[0] + at * 8;
                    __asm__("" : "+r"(pairs));           // addresses stay offsets from it
#line 170 "templates/host/value_dots.h"
                    const vu word_0_0 = load_u32(cell + 0 + lane * 4);
#line 170 "templates/host/value_dots.h"
                    const vu word_0_0_1 = load_u32(cell + 0 + (lane + 1 * lanes) * 4);
#line 170 "templates/host/value_dots.h"
                    vi w;
#line 170 "templates/host/value_dots.h"
                    vp x_0;
#line 170 "templates/host/value_dots.h"
                    vp x_1;
#line 170 "templates/host/value_dots.h"
                    x_0 = ((vp)word_0_0 & 3);
#line 170 "templates/host/value_dots.h"
                    x_1 = ((vp)word_0_0_1 & 3);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 0);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 64);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 128);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 170 "templates/host/value_dots.h"
                    x_0 = ((vp)word_0_0 >> 2 & 3);
#line 170 "templates/host/value_dots.h"
                    x_1 = ((vp)word_0_0_1 >> 2 & 3);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 1);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 65);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 129);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 170 "templates/host/value_dots.h"
                    x_0 = ((vp)word_0_0 >> 4 & 3);
#line 170 "templates/host/value_dots.h"
                    x_1 = ((vp)word_0_0_1 >> 4 & 3);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 2);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 66);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 130);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 170 "templates/host/value_dots.h"
                    x_0 = ((vp)word_0_0 >> 6 & 3);
#line 170 "templates/host/value_dots.h"
                    x_1 = ((vp)word_0_0_1 >> 6 & 3);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 3);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 67);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 131);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 170 "templates/host/value_dots.h"
                    x_0 = ((vp)word_0_0 >> 8 & 3);
#line 170 "templates/host/value_dots.h"
                    x_1 = ((vp)word_0_0_1 >> 8 & 3);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 4);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 68);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 132);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 170 "templates/host/value_dots.h"
                    x_0 = ((vp)word_0_0 >> 10 & 3);
#line 170 "templates/host/value_dots.h"
                    x_1 = ((vp)word_0_0_1 >> 10 & 3);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 5);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 69);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 133);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 170 "templates/host/value_dots.h"
                    x_0 = ((vp)word_0_0 >> 12 & 3);
#line 170 "templates/host/value_dots.h"
                    x_1 = ((vp)word_0_0_1 >> 12 & 3);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 6);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 70);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 134);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 170 "templates/host/value_dots.h"
                    x_0 = (vp)word_0_0 >> 14;
#line 170 "templates/host/value_dots.h"
                    x_1 = (vp)word_0_0_1 >> 14;
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 7);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_0 = dot_pairs(w, (vi)x_0, sum_0_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_0_0_1 = dot_pairs(w, (vi)x_1, sum_0_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 71);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_0 = dot_pairs(w, (vi)x_0, sum_1_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_1_0_1 = dot_pairs(w, (vi)x_1, sum_1_0_1);
#line 170 "templates/host/value_dots.h"
                    w = repeat_pair(pairs + 135);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_0 = dot_pairs(w, (vi)x_0, sum_2_0_0);
#line 170 "templates/host/value_dots.h"
                    sum_2_0_1 = dot_pairs(w, (vi)x_1, sum_2_0_1);
#line 172 "templates/host/value_dots.h"
                }
            }
#line 176 "templates/host/value_dots.h"
            {
                float* to = sums + 0 * stride + lane + 0 * lanes;
                const vf whole = __builtin_convertvector(sum_0_0_0, vf);
                store(to, load(to) + mul_add(whole, repeat(w->unit[0]), repeat(w->rest[0])));
            }
#line 176 "templates/host/value_dots.h"
            {
                float* to = sums + 1 * stride + lane + 0 * lanes;
                const vf whole = __builtin_convertvector(sum_1_0_0, vf);
                store(to, load(to) + mul_add(whole, repeat(w->unit[1]), repeat(w->rest[1])));
            }
#line 176 "templates/host/value_dots.h"
            {
                float* to = sums + 2 * stride + lane + 0 * lanes;
                const vf whole = __builtin_convertvector(sum_2_0_0, vf);
                store(to, load(to) + mul_add(whole, repeat(w->unit[2]), repeat(w->rest[2])));
            }
#line 176 "templates/host/value_dots.h"
            {
                float* to = sums + 0 * stride + lane + 1 * lanes;
                const vf whole = __builtin_convertvector(sum_0_0_1, vf);
                store(to, load(to) + mul_add(whole, repeat(w->unit[0]), repeat(w->rest[0])));
            }
#line 176 "templates/host/value_dots.h"
            {
                float* to = sums + 1 * stride + lane + 1 * lanes;
                const vf whole = __builtin_convertvector(sum_1_0_1, vf);
                store(to, load(to) + mul_add(whole, repeat(w->unit[1]), repeat(w->rest[1])));
            }
#line 176 "templates/host/value_dots.h"
            {
                float* to = sums + 2 * stride + lane + 1 * lanes;
                const vf whole = __builtin_convertvector(sum_2_0_1, vf);
                store(to, load(to) + mul_add(whole, repeat(w->unit[2]), repeat(w->rest[2])));
            }
#line 183 "templates/host/value_dots.h"
        }
#line 185 "templates/host/value_dots.h"
    }
}


#line 38 "templates/host/program.c"
#line 1 "templates/host/transform_rows.c"
// transform_rows.c -- rows into the bases of the values' codec, or out of them.
//
//   x     [num_heads, dim]  f32, in place
#line 12 "templates/host/transform_rows.c"

#line 150 "templates/host/transform_rows.c"
// Into the basis that all rows are in.
INLINE void v_transform(float* x, const float* tables)
{
    (void)tables;
#line 162 "templates/host/transform_rows.c"
    (void)x;
#line 164 "templates/host/transform_rows.c"
}

#line 184 "templates/host/transform_rows.c"
static void v_transform_rows(const kvl__basis_args* a)
{
    for (int32_t head = 0; head < a->num_heads; ++head) {
        float* x = a->x + head * v_dim;
        (void)x;
#line 202 "templates/host/transform_rows.c"
        v_transform(x, a->tables);
#line 211 "templates/host/transform_rows.c"
    }
#line 228 "templates/host/transform_rows.c"
}

#line 54 "templates/host/program.c"
#line 1 "templates/host/encode_rows.c"
// encode_rows.c -- rows of the window become codes of a page: transform, fit, round, pack.
//
// Nothing in here may be fused or reordered where it decides a code: every target gets the same
// bits.

#line 28 "templates/host/encode_rows.c"
// A row without its shift.
INLINE void v_take_row(const uint16_t* row, const float* tables, float* x)
{
    for (int i = 0; i < v_dim; i += lanes)
        store(x + i, load_f16((const unsigned char*)(row + i)));
#line 37 "templates/host/encode_rows.c"
    (void)tables;
#line 39 "templates/host/encode_rows.c"
}

#line 63 "templates/host/encode_rows.c"
INLINE void v_load_row(const uint16_t* row, const float* tables, float* x)
{
    v_take_row(row, tables, x);
#line 75 "templates/host/encode_rows.c"
    v_transform(x, tables);
#line 83 "templates/host/encode_rows.c"
}

#line 107 "templates/host/encode_rows.c"

#line 150 "templates/host/encode_rows.c"
#line 1 "templates/host/encode_row.h"
// encode_row.h -- groups along the channels of a row of the values: fit, round, pack.

#line 1 "templates/host/fit_group.h"
// fit_group.h -- the grid of a group of the values side by side; of a path also codes and
// levels.

#line 7 "templates/host/fit_group.h"
INLINE v_grid v_fit_group(unsigned char* page, int group, const float* of)
{
    enum { group_size = 32, step = 16 };
#line 11 "templates/host/fit_group.h"
    float los[step];
#line 11 "templates/host/fit_group.h"
    float his[step];
#line 13 "templates/host/fit_group.h"
    // Every step-th value has its own statistics; what they come to is order-free.
    for (int j = 0; j < step; ++j) {
        const float x = of[j];
#line 17 "templates/host/fit_group.h"
        los[j] = x;
#line 17 "templates/host/fit_group.h"
        his[j] = x;
#line 19 "templates/host/fit_group.h"
    }
    for (int i = step; i < group_size; i += step) {
        for (int j = 0; j < step; ++j) {
            const float x = of[i + j];
#line 24 "templates/host/fit_group.h"
            const float lo = los[j];
            los[j] = x < lo ? x : lo;
#line 24 "templates/host/fit_group.h"
            const float hi = his[j];
            his[j] = x > hi ? x : hi;
#line 27 "templates/host/fit_group.h"
        }
    }
#line 30 "templates/host/fit_group.h"
    float lo = los[0];
    for (int j = 1; j < step; ++j) {
        const float x = los[j];
        lo = x < lo ? x : lo;
    }
#line 30 "templates/host/fit_group.h"
    float hi = his[0];
    for (int j = 1; j < step; ++j) {
        const float x = his[j];
        hi = x > hi ? x : hi;
    }
#line 36 "templates/host/fit_group.h"
    return v_store_grid(page, group, lo, hi);
}

#line 4 "templates/host/encode_row.h"

INLINE void v_encode_row(const float* x, const float* tables, unsigned char* page, int row)
{
    enum { group_size = 32 };
    float offset[v_dim], inverse[v_dim];
    uint16_t q[v_dim];
    (void)tables;
    for (int first = 0; first < v_dim; first += group_size) {
        const int group = v_group(row, first);
        const v_grid grid = v_fit_group(page, group, x + first);
        for (int i = first; i < first + group_size; ++i) {
            offset[i] = grid.offset;
            inverse[i] = grid.inverse;
        }
    }
#line 25 "templates/host/encode_row.h"
    v_round_row(x, offset, inverse, q);
#line 27 "templates/host/encode_row.h"
    v_put_row(page, row, q);
}

#line 151 "templates/host/encode_rows.c"

#line 153 "templates/host/encode_rows.c"
static void v_encode_rows(const kvl__encode_args* a)
{
#line 158 "templates/host/encode_rows.c"
    for (int32_t r = 0; r < a->num_rows; ++r) {
#line 165 "templates/host/encode_rows.c"
        float x[v_dim];
        v_load_row(a->rows + r * a->row_stride, a->tables, x);
#line 171 "templates/host/encode_rows.c"
        v_encode_row(x, a->tables, a->page, a->first_row + r);
    }
}

#line 55 "templates/host/program.c"
#line 1 "templates/host/decode_rows.c"
// decode_rows.c -- rows of a page as floats in the original basis, as codes, and their scales.

#line 6 "templates/host/decode_rows.c"
#line 1 "templates/host/read_row.h"
// read_row.h -- rows of a page of the values in the basis of their codec.

#line 1 "templates/host/row_codes.h"
// row_codes.h -- the stored numbers of a row of a page of the values.

// Those of 16 channels, from channel16 * 16 on.
INLINE void v_get_codes(const unsigned char* page, int row, int channel16, uint32_t* q)
{
#line 10 "templates/host/row_codes.h"
    const unsigned char* cell = v_cell(page, channel16, row / 16);
    const int i = row % 16;
#line 13 "templates/host/row_codes.h"
    for (int n = 0; n < 16; ++n) q[n] = 0;
#line 15 "templates/host/row_codes.h"
    {
        enum { width = 2, each = 16 / width, mask = (1 << width) - 1 };
#line 18 "templates/host/row_codes.h"
        uint32_t words[16], bit[16];
#line 32 "templates/host/row_codes.h"
        const u32_at* from = (const u32_at*)(cell + 0) + i / 2 / each * 16;
        for (int n = 0; n < 16; ++n) words[n] = from[n];
        for (int n = 0; n < 16; ++n) bit[n] = (uint32_t)(i % 2 * 16 + i / 2 % each * width);
#line 36 "templates/host/row_codes.h"
        for (int n = 0; n < 16; ++n) q[n] |= (words[n] >> bit[n] & mask) << 0;
    }
#line 39 "templates/host/row_codes.h"
}

#line 4 "templates/host/read_row.h"

// A row in the codec's basis: to the bit what read_value gives.
static void v_read_row(const unsigned char* page, int row, float* x)
{
    for (int at = 0; at < v_dim; at += 16, x += 16) {
        uint32_t q[16];
        v_get_codes(page, row, at / 16, q);
        const int group = v_group(row, at);
#line 13 "templates/host/read_row.h"
        const float one = v_read_scale(page, group);
        const vf scale = repeat(one), offset = repeat(v_read_offset(page, group, one));
#line 16 "templates/host/read_row.h"
        for (int n = 0; n < 16; n += lanes) {
#line 22 "templates/host/read_row.h"
            const vu code = load_u32((const unsigned char*)(q + n));
            store(x + n, scale * to_float(code) + offset);
        }
    }
}

#line 7 "templates/host/decode_rows.c"

#line 12 "templates/host/decode_rows.c"
// A row of a page in the original basis, x [dim].
static void v_decode_row(const kvl__decode_args* a, int row, float* x)
{
#line 16 "templates/host/decode_rows.c"
    v_read_row(a->page, row, x);
#line 40 "templates/host/decode_rows.c"
    v_transform(x, a->tables);
#line 59 "templates/host/decode_rows.c"
}

static void v_decode_rows(const kvl__decode_args* a)
{
    for (int32_t r = 0; r < a->num_rows; ++r) {
        const int row = a->first_row + r;
        if (a->rows) v_decode_row(a, row, a->rows + r * (int64_t)v_dim);
        if (a->codes) {
            uint16_t* q = a->codes + r * (int64_t)v_dim;
#line 71 "templates/host/decode_rows.c"
            for (int i = 0; i < v_dim; ++i) q[i] = (uint16_t)v_get_code(a->page, row, i);
#line 73 "templates/host/decode_rows.c"
        }
    }
#line 86 "templates/host/decode_rows.c"
    if (!a->scales || !a->offsets) return;
    int64_t at = 0;
#line 102 "templates/host/decode_rows.c"
    for (int32_t row = a->first_row; row < a->first_row + a->num_rows; ++row) {
        for (int i = 0; i < v_dim; i += v_group_size, ++at) {
#line 108 "templates/host/decode_rows.c"
            const int group = v_group(row, i);
            a->scales[at] = v_read_scale(a->page, group);
            a->offsets[at] = v_read_offset(a->page, group, a->scales[at]);
        }
    }
#line 115 "templates/host/decode_rows.c"
}

#line 56 "templates/host/program.c"
#line 1 "templates/host/linear_rows.c"
// linear_rows.c -- the first rows of a page in the linear order of files (runtime/kvl_layout.h), or
// from it.

#line 39 "templates/host/linear_rows.c"
// The codes of a cell, [word][lane].
INLINE void v_get_cell(const unsigned char* cell, uint8_t q[16][16])
{
    __builtin_memset(q, 0, 256);
#line 44 "templates/host/linear_rows.c"
    for (int i = 0; i < 16; ++i) {
        enum { each = 8, mask = 3 };
        const u32_at* from = (const u32_at*)(cell + 0) + i / 2 / each * 16;
        const int left = i % 2 * 16 + i / 2 % each * 2;
#line 55 "templates/host/linear_rows.c"
        for (int lane = 0; lane < 16; ++lane)
            q[i][lane] = (uint8_t)(q[i][lane] | (from[lane] >> left & mask) << 0);
#line 58 "templates/host/linear_rows.c"
    }
#line 60 "templates/host/linear_rows.c"
}

INLINE void v_put_cell(unsigned char* cell, uint8_t q[16][16])
{
    __builtin_memset(cell, 0, 64);
#line 66 "templates/host/linear_rows.c"
    for (int i = 0; i < 16; ++i) {
        enum { each = 8, mask = 3 };
        u32_at* to = (u32_at*)(cell + 0) + i / 2 / each * 16;
        const int left = i % 2 * 16 + i / 2 % each * 2;
#line 75 "templates/host/linear_rows.c"
        for (int lane = 0; lane < 16; ++lane)
            to[lane] |= ((uint32_t)q[i][lane] >> 0 & mask) << left;
#line 78 "templates/host/linear_rows.c"
    }
#line 80 "templates/host/linear_rows.c"
}

// The codes of 16 channels of a row are 2 numbers of 16 bits, low bits first: those of
// 16 rows, [number][row], from codes [channel][row], and back.
INLINE void v_pack_codes(uint8_t q[16][16], uint16_t packed[2][16])
{
    __builtin_memset(packed, 0, 64);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[0][row] << 0);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[1][row] << 2);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[2][row] << 4);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[3][row] << 6);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[4][row] << 8);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[5][row] << 10);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[6][row] << 12);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[0][row] = (uint16_t)(packed[0][row] | q[7][row] << 14);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[8][row] << 0);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[9][row] << 2);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[10][row] << 4);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[11][row] << 6);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[12][row] << 8);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[13][row] << 10);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[14][row] << 12);
#line 89 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
        packed[1][row] = (uint16_t)(packed[1][row] | q[15][row] << 14);
#line 96 "templates/host/linear_rows.c"
}

INLINE void v_unpack_codes(uint16_t packed[2][16], uint8_t q[16][16])
{
    enum { mask = 3 };
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[0][row] = (uint8_t)(packed[0][row] >> 0 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[1][row] = (uint8_t)(packed[0][row] >> 2 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[2][row] = (uint8_t)(packed[0][row] >> 4 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[3][row] = (uint8_t)(packed[0][row] >> 6 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[4][row] = (uint8_t)(packed[0][row] >> 8 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[5][row] = (uint8_t)(packed[0][row] >> 10 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[6][row] = (uint8_t)(packed[0][row] >> 12 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[7][row] = (uint8_t)(packed[0][row] >> 14 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[8][row] = (uint8_t)(packed[1][row] >> 0 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[9][row] = (uint8_t)(packed[1][row] >> 2 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[10][row] = (uint8_t)(packed[1][row] >> 4 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[11][row] = (uint8_t)(packed[1][row] >> 6 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[12][row] = (uint8_t)(packed[1][row] >> 8 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[13][row] = (uint8_t)(packed[1][row] >> 10 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[14][row] = (uint8_t)(packed[1][row] >> 12 & mask);
#line 103 "templates/host/linear_rows.c"
    for (int row = 0; row < 16; ++row)
#line 108 "templates/host/linear_rows.c"
        q[15][row] = (uint8_t)(packed[1][row] >> 14 & mask);
#line 111 "templates/host/linear_rows.c"
}
#line 113 "templates/host/linear_rows.c"

INLINE void v_turn_codes(uint8_t from[16][16], uint8_t to[16][16])
{
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) to[i][j] = from[j][i];
}
#line 120 "templates/host/linear_rows.c"

// Rows [row, row + num) of the 16 channels from 16 * at on; row is a multiple of 16.
static void v_linear_cell(const kvl__linear_args* a, int row, int num, int at)
{
    enum { bits = 2, row_bytes = 16 };
#line 128 "templates/host/linear_rows.c"
    unsigned char* cell = (unsigned char*)(uintptr_t)v_cell(a->page, at, row / 16);
    LINE uint8_t turned[16][16];
#line 131 "templates/host/linear_rows.c"
    LINE uint8_t q[16][16];
    LINE uint16_t packed[bits][16];
    unsigned char* linear = a->linear + row * (int64_t)row_bytes + at * 2 * bits;
#line 135 "templates/host/linear_rows.c"
    v_get_cell(cell, q);
    if (!a->into_page || num < 16) {
#line 138 "templates/host/linear_rows.c"
        v_turn_codes(q, turned);
#line 140 "templates/host/linear_rows.c"
        v_pack_codes(turned, packed);
    }
    for (int t = 0; t < num; ++t)
        for (int i = 0; i < bits; ++i) {
            unsigned char* file = linear + t * (int64_t)row_bytes + 2 * i;
            if (a->into_page) packed[i][t] = (uint16_t)read_u16(file);
            else write_u16(file, packed[i][t]);
        }
    if (!a->into_page) return;
    v_unpack_codes(packed, turned);
#line 151 "templates/host/linear_rows.c"
    v_turn_codes(turned, q);
#line 153 "templates/host/linear_rows.c"
    v_put_cell(cell, q);
}

INLINE void v_linear_codes(const kvl__linear_args* a)
{
    for (int32_t row = 0; row < a->num_rows; row += 16)
        for (int at = 0; at < v_dim / 16; ++at)
            v_linear_cell(a, row, a->num_rows - row < 16 ? a->num_rows - row : 16, at);
}
#line 163 "templates/host/linear_rows.c"

#line 165 "templates/host/linear_rows.c"
INLINE void v_copy_meta(const kvl__linear_args* a, int group, int linear)
{
#line 169 "templates/host/linear_rows.c"
    for (int j = 0; j < 1; ++j) {
        unsigned char* page = a->page + v_scales_at + group * (int64_t)1 + j;
        unsigned char* file = a->linear + v_scales_at + linear * (int64_t)1 + j;
        if (a->into_page) *page = *file; else *file = *page;
    }
#line 169 "templates/host/linear_rows.c"
    for (int j = 0; j < 1; ++j) {
        unsigned char* page = a->page + v_zeros_at + group * (int64_t)1 + j;
        unsigned char* file = a->linear + v_zeros_at + linear * (int64_t)1 + j;
        if (a->into_page) *page = *file; else *file = *page;
    }
#line 175 "templates/host/linear_rows.c"
}
#line 177 "templates/host/linear_rows.c"

#line 182 "templates/host/linear_rows.c"
static void v_linear_rows(const kvl__linear_args* a)
{
    v_linear_codes(a);
#line 186 "templates/host/linear_rows.c"
    int at = 0;
#line 188 "templates/host/linear_rows.c"
    for (int32_t row = 0; row < a->num_rows; ++row) {
        for (int i = 0; i < v_dim; i += v_group_size, ++at)
#line 194 "templates/host/linear_rows.c"
            v_copy_meta(a, v_group(row, i), at);
    }
#line 200 "templates/host/linear_rows.c"
}

#line 62 "templates/host/program.c"
#line 1 "templates/host/attend_windows.c"
// attend_windows.c -- attention of num_heads queries over two stretches of 16-bit rows.
//
// Rows are in the original basis, and so is the output.  A row is read once for the heads of a
// tile: 2 (head_dim_k + head_dim_v) bytes, and as many multiply-adds a head as it has channels.
// Scores are made of four rows at a time, whose products are summed across lanes together; outputs
// of as many vectors of channels as stay in registers.

#line 9 "templates/host/attend_windows.c"
// scores [num_heads, window_rows] of rows k [num_rows, head_dim_k].  The last row is repeated where
// four are not left.
static NOINLINE void score_rows(const float* q, const uint16_t* k, int num_rows, float* scores)
{
    for (int row = 0; row < num_rows; row += 4) {
        const unsigned char* rows[4];
        for (int i = 0; i < 4; ++i) {
            const int from = row + i < num_rows ? row + i : num_rows - 1;
            rows[i] = (const unsigned char*)(k + from * head_dim_k);
        }
#line 20 "templates/host/attend_windows.c"
        {
#line 23 "templates/host/attend_windows.c"
            vf sum_0_0 = repeat(0.0f);
#line 23 "templates/host/attend_windows.c"
            vf sum_0_1 = repeat(0.0f);
#line 23 "templates/host/attend_windows.c"
            vf sum_0_2 = repeat(0.0f);
#line 23 "templates/host/attend_windows.c"
            vf sum_0_3 = repeat(0.0f);
#line 26 "templates/host/attend_windows.c"
            for (int i = 0; i < head_dim_k; i += lanes) {
#line 28 "templates/host/attend_windows.c"
                const vf x_0 = load_f16(rows[0] + 2 * i);
#line 28 "templates/host/attend_windows.c"
                const vf x_1 = load_f16(rows[1] + 2 * i);
#line 28 "templates/host/attend_windows.c"
                const vf x_2 = load_f16(rows[2] + 2 * i);
#line 28 "templates/host/attend_windows.c"
                const vf x_3 = load_f16(rows[3] + 2 * i);
#line 31 "templates/host/attend_windows.c"
                const vf q_0 = load(q + 0 * head_dim_k + i);
#line 34 "templates/host/attend_windows.c"
                sum_0_0 = mul_add(q_0, x_0, sum_0_0);
#line 34 "templates/host/attend_windows.c"
                sum_0_1 = mul_add(q_0, x_1, sum_0_1);
#line 34 "templates/host/attend_windows.c"
                sum_0_2 = mul_add(q_0, x_2, sum_0_2);
#line 34 "templates/host/attend_windows.c"
                sum_0_3 = mul_add(q_0, x_3, sum_0_3);
#line 37 "templates/host/attend_windows.c"
            }
#line 40 "templates/host/attend_windows.c"
            store_sums(scores + 0 * window_rows + row, sum_0_0, sum_0_1,
                       sum_0_2, sum_0_3);
#line 43 "templates/host/attend_windows.c"
        }
#line 20 "templates/host/attend_windows.c"
        {
#line 23 "templates/host/attend_windows.c"
            vf sum_1_0 = repeat(0.0f);
#line 23 "templates/host/attend_windows.c"
            vf sum_1_1 = repeat(0.0f);
#line 23 "templates/host/attend_windows.c"
            vf sum_1_2 = repeat(0.0f);
#line 23 "templates/host/attend_windows.c"
            vf sum_1_3 = repeat(0.0f);
#line 23 "templates/host/attend_windows.c"
            vf sum_2_0 = repeat(0.0f);
#line 23 "templates/host/attend_windows.c"
            vf sum_2_1 = repeat(0.0f);
#line 23 "templates/host/attend_windows.c"
            vf sum_2_2 = repeat(0.0f);
#line 23 "templates/host/attend_windows.c"
            vf sum_2_3 = repeat(0.0f);
#line 26 "templates/host/attend_windows.c"
            for (int i = 0; i < head_dim_k; i += lanes) {
#line 28 "templates/host/attend_windows.c"
                const vf x_0 = load_f16(rows[0] + 2 * i);
#line 28 "templates/host/attend_windows.c"
                const vf x_1 = load_f16(rows[1] + 2 * i);
#line 28 "templates/host/attend_windows.c"
                const vf x_2 = load_f16(rows[2] + 2 * i);
#line 28 "templates/host/attend_windows.c"
                const vf x_3 = load_f16(rows[3] + 2 * i);
#line 31 "templates/host/attend_windows.c"
                const vf q_1 = load(q + 1 * head_dim_k + i);
#line 34 "templates/host/attend_windows.c"
                sum_1_0 = mul_add(q_1, x_0, sum_1_0);
#line 34 "templates/host/attend_windows.c"
                sum_1_1 = mul_add(q_1, x_1, sum_1_1);
#line 34 "templates/host/attend_windows.c"
                sum_1_2 = mul_add(q_1, x_2, sum_1_2);
#line 34 "templates/host/attend_windows.c"
                sum_1_3 = mul_add(q_1, x_3, sum_1_3);
#line 31 "templates/host/attend_windows.c"
                const vf q_2 = load(q + 2 * head_dim_k + i);
#line 34 "templates/host/attend_windows.c"
                sum_2_0 = mul_add(q_2, x_0, sum_2_0);
#line 34 "templates/host/attend_windows.c"
                sum_2_1 = mul_add(q_2, x_1, sum_2_1);
#line 34 "templates/host/attend_windows.c"
                sum_2_2 = mul_add(q_2, x_2, sum_2_2);
#line 34 "templates/host/attend_windows.c"
                sum_2_3 = mul_add(q_2, x_3, sum_2_3);
#line 37 "templates/host/attend_windows.c"
            }
#line 40 "templates/host/attend_windows.c"
            store_sums(scores + 1 * window_rows + row, sum_1_0, sum_1_1,
                       sum_1_2, sum_1_3);
#line 40 "templates/host/attend_windows.c"
            store_sums(scores + 2 * window_rows + row, sum_2_0, sum_2_1,
                       sum_2_2, sum_2_3);
#line 43 "templates/host/attend_windows.c"
        }
#line 45 "templates/host/attend_windows.c"
    }
}

// o [num_heads, head_dim_v] grows by rows v [num_rows, head_dim_v] times weights [., window_rows].
static NOINLINE void add_rows(const float* weights, const uint16_t* v, int num_rows, float* o)
{
    enum { step = 4 * lanes };
    for (int i = 0; i < head_dim_v; i += step, o += step) {
#line 54 "templates/host/attend_windows.c"
        {
#line 57 "templates/host/attend_windows.c"
            vf sum_0_0 = load(o + 0 * head_dim_v + 0 * lanes);
#line 57 "templates/host/attend_windows.c"
            vf sum_0_1 = load(o + 0 * head_dim_v + 1 * lanes);
#line 57 "templates/host/attend_windows.c"
            vf sum_0_2 = load(o + 0 * head_dim_v + 2 * lanes);
#line 57 "templates/host/attend_windows.c"
            vf sum_0_3 = load(o + 0 * head_dim_v + 3 * lanes);
#line 60 "templates/host/attend_windows.c"
            const unsigned char* from = (const unsigned char*)(v + i);
            for (int row = 0; row < num_rows; ++row, from += 2 * head_dim_v) {
#line 63 "templates/host/attend_windows.c"
                const vf x_0 = load_f16(from + 0 * lanes);
#line 63 "templates/host/attend_windows.c"
                const vf x_1 = load_f16(from + 2 * lanes);
#line 63 "templates/host/attend_windows.c"
                const vf x_2 = load_f16(from + 4 * lanes);
#line 63 "templates/host/attend_windows.c"
                const vf x_3 = load_f16(from + 6 * lanes);
#line 66 "templates/host/attend_windows.c"
                const float* w_0 = weights + 0 * window_rows + row;
#line 69 "templates/host/attend_windows.c"
                sum_0_0 = mul_add_at(w_0, x_0, sum_0_0);
#line 69 "templates/host/attend_windows.c"
                sum_0_1 = mul_add_at(w_0, x_1, sum_0_1);
#line 69 "templates/host/attend_windows.c"
                sum_0_2 = mul_add_at(w_0, x_2, sum_0_2);
#line 69 "templates/host/attend_windows.c"
                sum_0_3 = mul_add_at(w_0, x_3, sum_0_3);
#line 72 "templates/host/attend_windows.c"
            }
#line 75 "templates/host/attend_windows.c"
            store(o + 0 * head_dim_v + 0 * lanes, sum_0_0);
#line 75 "templates/host/attend_windows.c"
            store(o + 0 * head_dim_v + 1 * lanes, sum_0_1);
#line 75 "templates/host/attend_windows.c"
            store(o + 0 * head_dim_v + 2 * lanes, sum_0_2);
#line 75 "templates/host/attend_windows.c"
            store(o + 0 * head_dim_v + 3 * lanes, sum_0_3);
#line 78 "templates/host/attend_windows.c"
        }
#line 54 "templates/host/attend_windows.c"
        {
#line 57 "templates/host/attend_windows.c"
            vf sum_1_0 = load(o + 1 * head_dim_v + 0 * lanes);
#line 57 "templates/host/attend_windows.c"
            vf sum_1_1 = load(o + 1 * head_dim_v + 1 * lanes);
#line 57 "templates/host/attend_windows.c"
            vf sum_1_2 = load(o + 1 * head_dim_v + 2 * lanes);
#line 57 "templates/host/attend_windows.c"
            vf sum_1_3 = load(o + 1 * head_dim_v + 3 * lanes);
#line 57 "templates/host/attend_windows.c"
            vf sum_2_0 = load(o + 2 * head_dim_v + 0 * lanes);
#line 57 "templates/host/attend_windows.c"
            vf sum_2_1 = load(o + 2 * head_dim_v + 1 * lanes);
#line 57 "templates/host/attend_windows.c"
            vf sum_2_2 = load(o + 2 * head_dim_v + 2 * lanes);
#line 57 "templates/host/attend_windows.c"
            vf sum_2_3 = load(o + 2 * head_dim_v + 3 * lanes);
#line 60 "templates/host/attend_windows.c"
            const unsigned char* from = (const unsigned char*)(v + i);
            for (int row = 0; row < num_rows; ++row, from += 2 * head_dim_v) {
#line 63 "templates/host/attend_windows.c"
                const vf x_0 = load_f16(from + 0 * lanes);
#line 63 "templates/host/attend_windows.c"
                const vf x_1 = load_f16(from + 2 * lanes);
#line 63 "templates/host/attend_windows.c"
                const vf x_2 = load_f16(from + 4 * lanes);
#line 63 "templates/host/attend_windows.c"
                const vf x_3 = load_f16(from + 6 * lanes);
#line 66 "templates/host/attend_windows.c"
                const float* w_1 = weights + 1 * window_rows + row;
#line 69 "templates/host/attend_windows.c"
                sum_1_0 = mul_add_at(w_1, x_0, sum_1_0);
#line 69 "templates/host/attend_windows.c"
                sum_1_1 = mul_add_at(w_1, x_1, sum_1_1);
#line 69 "templates/host/attend_windows.c"
                sum_1_2 = mul_add_at(w_1, x_2, sum_1_2);
#line 69 "templates/host/attend_windows.c"
                sum_1_3 = mul_add_at(w_1, x_3, sum_1_3);
#line 66 "templates/host/attend_windows.c"
                const float* w_2 = weights + 2 * window_rows + row;
#line 69 "templates/host/attend_windows.c"
                sum_2_0 = mul_add_at(w_2, x_0, sum_2_0);
#line 69 "templates/host/attend_windows.c"
                sum_2_1 = mul_add_at(w_2, x_1, sum_2_1);
#line 69 "templates/host/attend_windows.c"
                sum_2_2 = mul_add_at(w_2, x_2, sum_2_2);
#line 69 "templates/host/attend_windows.c"
                sum_2_3 = mul_add_at(w_2, x_3, sum_2_3);
#line 72 "templates/host/attend_windows.c"
            }
#line 75 "templates/host/attend_windows.c"
            store(o + 1 * head_dim_v + 0 * lanes, sum_1_0);
#line 75 "templates/host/attend_windows.c"
            store(o + 1 * head_dim_v + 1 * lanes, sum_1_1);
#line 75 "templates/host/attend_windows.c"
            store(o + 1 * head_dim_v + 2 * lanes, sum_1_2);
#line 75 "templates/host/attend_windows.c"
            store(o + 1 * head_dim_v + 3 * lanes, sum_1_3);
#line 75 "templates/host/attend_windows.c"
            store(o + 2 * head_dim_v + 0 * lanes, sum_2_0);
#line 75 "templates/host/attend_windows.c"
            store(o + 2 * head_dim_v + 1 * lanes, sum_2_1);
#line 75 "templates/host/attend_windows.c"
            store(o + 2 * head_dim_v + 2 * lanes, sum_2_2);
#line 75 "templates/host/attend_windows.c"
            store(o + 2 * head_dim_v + 3 * lanes, sum_2_3);
#line 78 "templates/host/attend_windows.c"
        }
#line 80 "templates/host/attend_windows.c"
    }
}

static void attend_windows(const kvl__attend_args* a)
{
    LINE float scores[num_heads * window_rows] = { 0 };
    softmax state;
    softmax_start(&state, a->o);
    for (int w = 0; w < 2; ++w) {
        const kvl__window* window = &a->windows[w];
        for (int64_t first = 0; first < window->num_rows; first += window_rows) {
            const int64_t left = window->num_rows - first;
            const int num_rows = left < window_rows ? (int)left : window_rows;
            const int count = (num_rows + 15) / 16 * 16;
            score_rows(a->q, window->k + first * head_dim_k, num_rows, scores);
            for (int head = 0; head < num_heads; ++head)
                softmax_add(&state, a, head, scores + head * window_rows, count, 0, num_rows,
                            window->position + first);
            add_rows(scores, window->v + first * head_dim_v, num_rows, a->o);
        }
    }
    softmax_finish(&state, a->o, a->lse);
}

#line 63 "templates/host/program.c"
#line 1 "templates/host/attend_pages.c"
// attend_pages.c -- attention of num_heads queries over rows of pages, on the codes.
//
// A strip of some pages, or of a part of one, at a time: its keys are scored tile by tile, the
// scores become weights, and its values are added.  Each cell is read and unpacked once for all
// heads; o is in the value codec's basis.  While a part is worked on, the same part of the next
// strip comes into the caches: a whole strip ahead, and a few lines at a time, since the processor
// has few buffers for misses and a burst of them waits.

#line 10 "templates/host/attend_pages.c"
// One thread's memory of a call.
typedef struct workspace {
    LINE float scores[num_heads][strip_words];
#line 15 "templates/host/attend_pages.c"
    k_dots k;
#line 15 "templates/host/attend_pages.c"
    v_dots v;
#line 18 "templates/host/attend_pages.c"
} workspace;

// Rows [first, end) of a strip, counted from its first row, which is row `skip` of its first page.
typedef struct strip {
    const kvl__attend_args*     a;
    const unsigned char* const* pages;       // [num_pages]
    int                         num_pages, skip, first, end;
    int                         num_next;    // pages strip_pages after these that there are
} strip;

#line 30 "templates/host/attend_pages.c"
// Part `i` of `parts` of the `bytes` bytes at `offset` of the page that is strip_pages after page
// `page` of a strip.  For codes alone: rows of 16 bits come as one long stream, which the processor
// fetches by itself, and asking for it costs a fifth of the time.
INLINE void fetch_part(const strip* s, int page, int64_t offset, int bytes, int i, int parts)
{
    const int lines = (bytes + 64 * parts - 1) / (64 * parts);
    if (page >= s->num_next) return;
    const unsigned char* at = s->pages[page + strip_pages] + offset + i * 64 * lines;
    for (int n = 0; n < lines; ++n) __builtin_prefetch(at + 64 * n);
}

#line 42 "templates/host/attend_pages.c"
// While a tile of a page's keys is worked on.
INLINE void fetch_keys(const strip* s, int page, int tile)
{
#line 46 "templates/host/attend_pages.c"
    fetch_part(s, page, s->a->k_offset, k_page_bytes, tile, page_size / 16);
#line 50 "templates/host/attend_pages.c"
}

// While part `i` of `parts` of a page's values is.
INLINE void fetch_values(const strip* s, int page, int i, int parts)
{
#line 56 "templates/host/attend_pages.c"
    enum { share = page_size / part_rows };
    fetch_part(s, page, s->a->v_offset, v_page_bytes, s->skip / part_rows * parts + i,
               parts * share);
#line 62 "templates/host/attend_pages.c"
}

#line 76 "templates/host/attend_pages.c"
// What the 16-bit queries left joins a tile's scores.
static NOINLINE void add_fine(const float* q, const unsigned char* keys, int tile, workspace* w,
                              float* scores)
{
    LINE float fine[num_heads][16];
#line 85 "templates/host/attend_pages.c"
    (void)q;
    k_dot_cells(keys, tile, tile + 1, &w->k.fine, fine[0], 16);
#line 88 "templates/host/attend_pages.c"
    for (int head = 0; head < num_heads; ++head)
        for (int i = 0; i < 16; ++i) scores[head * strip_words + i] += fine[head][i];
}

#line 95 "templates/host/attend_pages.c"
// Scores of the tiles of rows [first, end) of the keys of a strip's page, those of row 0 at
// `scores`.
static void score_tiles(const strip* s, int page, int first, int end, workspace* w, float* scores)
{
    const unsigned char* keys = s->pages[page] + s->a->k_offset;
    const float* q = s->a->q;
    const int end_tile = (end + 15) / 16;
    for (int tile = first / 16, stop; tile < end_tile; tile = stop) {
        stop = tile / 2 * 2 + 2;
        if (stop > end_tile) stop = end_tile;
        for (int i = tile; i < stop; ++i) fetch_keys(s, page, i);
        k_fold_dots(keys, tile, &w->k);
        k_dot_cells(keys, tile, stop, &w->k.main, scores + tile * 16, strip_words);
        for (int i = tile; w->k.needs_fine && i < stop; ++i)
            add_fine(q, keys, i, w, scores + i * 16);
    }
}
#line 168 "templates/host/attend_pages.c"

#line 180 "templates/host/attend_pages.c"
// The rows of page i of a strip: [*first, *end), counted from the page's first row.
INLINE void rows_of(const strip* s, int i, int* first, int* end)
{
    const int before = i * part_rows;
    *first = (s->first > before ? s->first - before : 0) + s->skip;
    *end = (s->end - before < part_rows ? s->end - before : part_rows) + s->skip;
}

static void score_strip(const strip* s, workspace* w)
{
    for (int i = 0, first, end; i < s->num_pages; ++i) {
        rows_of(s, i, &first, &end);
        if (first >= end) continue;
#line 194 "templates/host/attend_pages.c"
        score_tiles(s, i, first, end, w, &w->scores[0][i * part_rows] - s->skip);
#line 204 "templates/host/attend_pages.c"
    }
}

#line 208 "templates/host/attend_pages.c"
// Values join o, times the weights of the strip.
static void add_values(const strip* s, workspace* w, float* o)
{
    v_strip values;
    enum { room = sizeof values.pages / sizeof values.pages[0] };
    values.skip = s->skip;
    for (int i = 0; i < room; ++i)
        values.pages[i] = s->pages[i < s->num_pages ? i : 0] + s->a->v_offset;
    v_set_plain(w->scores[0], &w->v);
    for (int at = 0; at < head_dim_v / 16; ++at) {
        for (int i = 0; i < s->num_pages; ++i) fetch_values(s, i, at, head_dim_v / 16);
        if (v_fold_is_due(at)) v_fold_dots(&values, at, s->first, s->end, w->scores[0], &w->v);
        v_dot_cells(&values, at, s->first / 16, (s->end + 15) / 16, &w->v.main, o + at * 16,
                    head_dim_v);
    }
}
#line 310 "templates/host/attend_pages.c"

static void attend_strip(const strip* s, softmax* state, workspace* w)
{
    const kvl__attend_args* a = s->a;
    const int64_t page = s->pages - a->pages, position = a->position + page * page_size + s->skip;
    score_strip(s, w);
    for (int head = 0; head < num_heads; ++head) {
#line 321 "templates/host/attend_pages.c"
        softmax_add(state, a, head, w->scores[head], strip_words, s->first, s->end, position);
    }
    add_values(s, w, a->o);
#line 331 "templates/host/attend_pages.c"
}

// The pages of a strip that begins at a row, up to end_row.
INLINE int count_pages(int64_t row, int64_t end_row)
{
    const int64_t end = row + strip_rows < end_row ? row + strip_rows : end_row;
    return end > row ? (int)((end - 1) / page_size - row / page_size + 1) : 0;
}

static void attend_pages(const kvl__attend_args* a)
{
    workspace* w = (workspace*)(((uintptr_t)a->scratch + 63) & ~(uintptr_t)63);
    softmax state;
    softmax_start(&state, a->o);
#line 346 "templates/host/attend_pages.c"
    k_start_dots(a->q, &w->k);
#line 350 "templates/host/attend_pages.c"
    int64_t row = a->first_row / strip_rows * strip_rows;
    for (; row < a->end_row; row += strip_rows) {
        const int64_t left = a->end_row - row;
        strip s;
        s.a = a;
        s.pages = a->pages + row / page_size;
        s.num_pages = count_pages(row, a->end_row);
        s.skip = (int)(row % page_size);
        s.first = row < a->first_row ? (int)(a->first_row - row) : 0;
        s.end = left < strip_rows ? (int)left : strip_rows;
        s.num_next = count_pages(row + strip_pages * page_size, a->end_row);
        attend_strip(&s, &state, w);
    }
    softmax_finish(&state, a->o, a->lse);
}

#line 64 "templates/host/program.c"

// C has one name space for types and objects, so the object gets its exported name as a label.
#define LABEL_TEXT(text) #text
#define LABEL(prefix, name) LABEL_TEXT(prefix) name
extern const kvl__program program __asm__(LABEL(__USER_LABEL_PREFIX__, "kvl__program"));

const kvl__program program = {
    .abi            = KVL__ABI,
    .lanes          = 16,
    .k_page_bytes   = k_page_bytes,
#line 77 "templates/host/program.c"
    .v_page_bytes   = v_page_bytes,
#line 79 "templates/host/program.c"
    .scratch_bytes  = sizeof(workspace) + 64,        // room to begin at a cache line
    .encode_keys    = k_encode_rows,
    .encode_values  = v_encode_rows,
    .decode_keys    = k_decode_rows,
    .decode_values  = v_decode_rows,
    .linear_keys    = k_linear_rows,
    .linear_values  = v_linear_rows,
    .attend_windows = attend_windows,
    .attend_pages   = attend_pages,
    .prepare_query  = k_transform_rows,
    .finish_output  = v_transform_rows,
};
