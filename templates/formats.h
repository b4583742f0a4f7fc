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
