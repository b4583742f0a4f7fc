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
typedef vf vf_at __attribute__((aligned(1), may_alias));
typedef vh vh_at __attribute__((aligned(1), may_alias));
typedef vb vb_at __attribute__((aligned(1), may_alias));
typedef vs vs_at __attribute__((aligned(1), may_alias));
typedef uint16_t u16_at __attribute__((aligned(1), may_alias));

enum { lanes = $(isa.lanes) };

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

INLINE vu load_u16(const unsigned char* at)
{
    return __builtin_convertvector(*(const vh_at*)at, vu);
}

//% if isa.vector == "x86" then
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
//% elseif isa.vector == "arm" then
INLINE vf greater(vf a, vf b) { return select(a > b, a, b); }

// Returns a * b + c.
INLINE vf mul_add(vf a, vf b, vf c)
{
    __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
    return c;
}

INLINE vf load_f16(const unsigned char* at)
{
    vf x;
    __asm__("fcvtl %0.4s, %1.4h" : "=w"(x) : "w"(*(const vh_at*)at));
    return x;
}
//% else
INLINE vf greater(vf a, vf b) { return select(a > b, a, b); }

// Returns a * b + c.
INLINE vf mul_add(vf a, vf b, vf c) { return a * b + c; }

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

INLINE float greatest_lane(vf x)
{
    float all = x[0];
    for (int i = 1; i < lanes; ++i) all = x[i] > all ? x[i] : all;
    return all;
}
