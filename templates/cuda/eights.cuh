// eights.cuh -- one of the candidates that parts write as vectors of eight on the host.

typedef float   v8;
typedef int32_t i8;

INLINE float repeat8(float x) { return x; }
INLINE float nearest8(float x) { return nearest_even(x); }
INLINE float absolute8(float x) { return absolute(x); }
INLINE float least8(float a, float b) { return a < b ? a : b; }
INLINE float most8(float a, float b) { return a > b ? a : b; }
INLINE int32_t integer8(float x) { return (int32_t)x; }
INLINE float value8_of_f16(int32_t h) { return f32_of_f16((uint32_t)h); }
INLINE int32_t f16_of_value8(float x) { return (int32_t)f16_of_f32(x); }
INLINE float value8_of_e5m3(int32_t c) { return f32_of_e5m3((uint32_t)c); }
INLINE int32_t e5m3_of_value8(float x) { return (int32_t)e5m3_of_f32(x); }

INLINE float value8_of_log4(int32_t c) { return f32_of_log4((uint32_t)c); }
INLINE int32_t log4_of_value8(float x) { return (int32_t)log4_of_f32(x); }

// Of a scale that is not negative.
INLINE float value8_of_e4m3(int32_t c)
{
    const uint32_t size = (uint32_t)c & 127u;
    return size < 8u ? (float)(int32_t)size * 0.0009765625f
                     : float_of((size << 20) + (119u << 23));
}

INLINE int32_t e4m3_of_value8(float x)
{
    const float a = least8(x, 240.0f);
    if (a < 0.0078125f) return (int32_t)nearest_even(least8(a, 1.0f) * 1024.0f);
    const uint32_t u = bits_of(a) - (119u << 23);
    return (int32_t)((u + 0x7ffffu + (u >> 20 & 1u)) >> 20);
}
