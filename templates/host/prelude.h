// prelude.h -- vectors and number formats of one instruction set.
//
// A vector vf holds `lanes` floats.  Loads are of any alignment.  Arithmetic that decides codes is
// in the scalar functions and never fused; only the functions named mul_add are.

typedef float    vf __attribute__((vector_size(4 * $(isa.lanes))));
typedef int32_t  vi __attribute__((vector_size(4 * $(isa.lanes))));
typedef uint32_t vu __attribute__((vector_size(4 * $(isa.lanes))));
typedef uint16_t vh __attribute__((vector_size(2 * $(isa.lanes))));
typedef uint8_t  vb __attribute__((vector_size($(isa.lanes))));
typedef int8_t   vs __attribute__((vector_size($(isa.lanes))));
typedef uint16_t vp __attribute__((vector_size(4 * $(isa.lanes))));      // a pair in each lane
typedef int16_t  vt __attribute__((vector_size(2 * $(isa.lanes))));
typedef int8_t   vw __attribute__((vector_size(2 * $(isa.lanes))));      // of a pair in each lane
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

enum { lanes = $(isa.lanes) };

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
#include "formats.h"

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

INLINE vf repeat(float x) { return (vf){ $(repeated("x", isa.lanes)) }; }
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
//% if isa.lanes == 16 then
INLINE vu load_narrow(const unsigned char* at, int lane)
{
    typedef uint32_t half __attribute__((vector_size(32), aligned(1), may_alias));
    const half x = *(const half*)at;
    const union { half parts[2]; vu whole; } both = { { x, x >> 8 } };
    (void)lane;
    return both.whole;
}
//% else
INLINE vu load_narrow(const unsigned char* at, int lane)
{
    return load_u32(at + lane % 8 * 4) >> lane / 8 * 8;
}
//% end

//% if isa.vector == "x86" then
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
//% if isa.lanes == 8 then
#if defined(__has_builtin)
#if __has_builtin(__builtin_ia32_vfmaddps256)
#define MUL_ADD_BUILTIN
#endif
#endif
//% end
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
//% elseif isa.vector == "arm" then
INLINE vf greater(vf a, vf b) { return select(a > b, a, b); }
INLINE vf smaller(vf a, vf b) { return select(a < b, a, b); }

// Returns a * b + c.
INLINE vf mul_add(vf a, vf b, vf c)
{
    __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
    return c;
}

INLINE vf times_plus(vf a, vf b, vf c) { return mul_add(a, b, c); }

INLINE vf load_f16(const unsigned char* at)
{
    vf x;
    __asm__("fcvtl %0.4s, %1.4h" : "=w"(x) : "w"(*(const vh_at*)at));
    return x;
}
//% else
INLINE vf greater(vf a, vf b) { return select(a > b, a, b); }
INLINE vf smaller(vf a, vf b) { return select(a < b, a, b); }

// Returns a * b + c.
INLINE vf mul_add(vf a, vf b, vf c) { return a * b + c; }
INLINE vf times_plus(vf a, vf b, vf c) { return a * b + c; }

INLINE vf load_f16(const unsigned char* at)
{
    const vu h = load_u16(at), m = h & 0x7fffu;
    const vi small = (vi)m < 0x400, special = (vi)m >= 0x7c00;
    vf x = (vf)((m << 13) + (112u << 23) + ((vu)special & (112u << 23)));
    x = select(small, to_float(m) * 5.9604644775390625e-8f, x);          // 2^-24
    return (vf)((vu)x | (h & 0x8000u) << 16);
}
//% end

// Returns *a * b + c.
//% if isa.broadcast == 1 then
INLINE vf mul_add_at(const float* a, vf b, vf c)
{
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(b), "m"(*a));
    return c;
}
//% else
INLINE vf mul_add_at(const float* a, vf b, vf c) { return mul_add(repeat(*a), b, c); }
//% end

INLINE vf load_bf16(const unsigned char* at) { return (vf)(load_u16(at) << 16); }

// Bytes as 32 bits.  In two steps, each of which compilers know: four times wider is one by one.
//% if isa.vector == "x86" then
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
//% else
INLINE vu load_u8(const unsigned char* at)
{
    return __builtin_convertvector(__builtin_convertvector(*(const vb_at*)at, vh), vu);
}

INLINE vi load_s8(const unsigned char* at)
{
    return __builtin_convertvector(__builtin_convertvector(*(const vs_at*)at, vt), vi);
}
//% end

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
//% local stride = 1
//% while stride < isa.lanes do
//% local partners, signs = butterfly(isa.lanes, stride)
INLINE vf $("butterfly_" .. stride)(vf x)
{
    const vi signs = { $(signs) };
#if defined(__clang__)
    const vf other = __builtin_shufflevector(x, x, $(partners));
#else
    const vf other = __builtin_shuffle(x, (vi){ $(partners) });
#endif
    return other + (vf)((vi)x ^ signs);
}

//% stride = 2 * stride
//% end
// The sum of all lanes, by halves.
INLINE float sum_lanes(vf x)
{
    //% if isa.lanes == 16 then
    typedef float half __attribute__((vector_size(32)));
    const union { vf whole; half parts[2]; } v16 = { x };
    const half x8 = v16.parts[0] + v16.parts[1];
    //% elseif isa.lanes == 8 then
    typedef float half __attribute__((vector_size(32)));
    const half x8 = x;
    //% end
    typedef float quarter __attribute__((vector_size(16)));
    //% if isa.lanes > 4 then
    const union { half whole; quarter parts[2]; } v8 = { x8 };
    const quarter x4 = v8.parts[0] + v8.parts[1];
    //% else
    const quarter x4 = x;
    //% end
    return (x4[0] + x4[2]) + (x4[1] + x4[3]);
}

// The sums of the lanes of four vectors, to [4].
INLINE void store_sums(float* to, vf a, vf b, vf c, vf d)
{
    //% if isa.lanes > 4 and isa.vector ~= "none" then
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
    typedef float quarter __attribute__((vector_size(16)));
    typedef quarter quarter_at __attribute__((aligned(1), may_alias));
    const union { vf whole; quarter parts[lanes / 4]; } v[4] = { { a }, { b }, { c }, { d } };
    quarter x[4];
    for (int i = 0; i < 4; ++i) {
        x[i] = v[i].parts[0] + v[i].parts[1];
        //% if isa.lanes == 16 then
        x[i] += v[i].parts[2] + v[i].parts[3];
        //% end
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
    //% end
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
//% if isa.dot ~= "none" then
//% if isa.dot == "bytes" then

typedef uint8_t vb_whole __attribute__((vector_size(16)));
//% end

// 16-BIT WEIGHTS, in pairs: two in each lane

INLINE vi load_pairs(const int32_t* pairs) { return *(const vi_at*)pairs; }
INLINE void store_pairs(int32_t* pairs, vi x) { *(vi_at*)pairs = x; }

//% if isa.dot == "bytes" then
// Returns sum + x[2 l] w[2 l] + x[2 l + 1] w[2 l + 1] in lane l.
INLINE vi dot_pairs(vi w, vi x, vi sum)
{
    vi low, high;
    __asm__("smull %0.4s, %2.4h, %3.4h\n\tsmull2 %1.4s, %2.8h, %3.8h\n\taddp %0.4s, %0.4s, %1.4s"
            : "=&w"(low), "=&w"(high) : "w"(w), "w"(x));
    return sum + low;
}

// Codes of two pairs, bytes in each lane: the first of a and b, the second of a and b.
INLINE vp fours_of(vp a, vp b)
{
    __asm__("sli %0.8h, %1.8h, #8" : "+w"(a) : "w"(b));
    return a;
}

// The bytes of eight weights at `at`: four low, four high, of the first four; then of the others.
INLINE vi load_fours(const int32_t* at)
{
    const vb_whole order = { 0, 4, 2, 6, 1, 5, 3, 7, 8, 12, 10, 14, 9, 13, 11, 15 };
    vi w = load_pairs(at);
    __asm__("tbl %0.16b, {%0.16b}, %1.16b" : "+w"(w) : "w"(order));
    return w;
}

// The products of two vectors of fours with such weights: of their low bytes join *low, of their
// high ones *high.
INLINE void dot_fours(vi w, vp x, vp y, vi* low, vi* high)
{
    __asm__("udot %0.4s, %1.16b, %2.4b[0]" : "+w"(*low) : "w"(x), "w"(w));
    __asm__("sdot %0.4s, %1.16b, %2.4b[1]" : "+w"(*high) : "w"(x), "w"(w));
    __asm__("udot %0.4s, %1.16b, %2.4b[2]" : "+w"(*low) : "w"(y), "w"(w));
    __asm__("sdot %0.4s, %1.16b, %2.4b[3]" : "+w"(*high) : "w"(y), "w"(w));
}
//% else
// Returns sum + x[2 l] w[2 l] + x[2 l + 1] w[2 l + 1] in lane l.
//% if isa.dot == "vnni" then
//% local encoding = isa.broadcast == 0 and "%{vex%} " or ""      -- the one of AVX-VNNI
INLINE vi dot_pairs(vi w, vi x, vi sum)
{
    __asm__("$(encoding)vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
}

//% if isa.broadcast == 1 then
// The same with the pair of weights at `at` in each lane.
INLINE vi dot_at(const int32_t* at, vp x, vi sum)
{
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(x), "m"(*at));
    return sum;
}
//% end
//% else
INLINE vi dot_pairs(vi w, vi x, vi sum)
{
    vi part;
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"  // together: compilers keep products apart
            : "+v"(sum), "=&v"(part) : "v"(x), "v"(w));
    return sum;
}
//% end

//% if isa.dot ~= "vnni" or isa.broadcast == 0 then
INLINE vi repeat_pair(const int32_t* at) { return (vi){ $(repeated("*at", isa.lanes)) }; }

//% end
// Lane l of the result is lane at[l] of a vector.
INLINE vi take_lanes(vi of, vi at)
{
    vi x;
    __asm__("vpermd %2, %1, %0" : "=v"(x) : "v"(at), "v"(of));
    return x;
}
//% end

INLINE vi add_pairs(vi x, vi sum)
{
    //% if isa.vector == "arm" then
    __asm__("sadalp %0.4s, %1.8h" : "+w"(sum) : "w"(x));
    return sum;
    //% else
    return dot_pairs((vi){ $(repeated("0x10001", isa.lanes)) }, x, sum);
    //% end
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
    //% if isa.vector == "arm" then
    __asm__("sqrdmulh %0.8h, %1.8h, %2.8h" : "=w"(x) : "w"(b), "w"(a));
    //% else
    __asm__("vpmulhrsw %2, %1, %0" : "=v"(x) : "v"(b), ANY(a));
    //% end
    return x;
}

INLINE vi absolute_pairs(vi x)
{
    vi size;
    //% if isa.vector == "arm" then
    __asm__("abs %0.8h, %1.8h" : "=w"(size) : "w"(x));
    //% else
    __asm__("vpabsw %1, %0" : "=v"(size) : "v"(x));
    //% end
    return size;
}

INLINE int any_bit(vi x)
{
    int any;
    //% if isa.vector == "arm" then
    vi most;
    __asm__("umaxv %s1, %2.4s\n\tfmov %w0, %s1" : "=r"(any), "=&w"(most) : "w"(x));
    //% elseif isa.lanes == 16 then
    __asm__("vptestmd %1, %1, %%k1\n\tkmovw %%k1, %0" : "=r"(any) : "v"(x) : "k1");
    //% else
    __asm__("vmovmskps %1, %0" : "=r"(any) : "x"((vi)(x != 0)));
    //% end
    return any;
}

// The low 16 bits of the lanes of a, then of b.
INLINE vi low_halves(vi a, vi b)
{
    //% if isa.vector == "arm" then
    vi x;
    __asm__("uzp1 %0.8h, %1.8h, %2.8h" : "=w"(x) : "w"(a), "w"(b));
    return x;
    //% elseif isa.lanes == 16 then
    const vp even = { $(even_numbers) };
    __asm__("vpermt2w %2, %1, %0" : "+v"(a) : "v"(even), "v"(b));
    return a;
    //% else
    vi x;
    __asm__("vpackusdw %2, %1, %0\n\tvpermq $0xd8, %0, %0"
            : "=v"(x) : "v"(a & 0xffff), "v"(b & 0xffff));
    return x;
    //% end
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
//% end
