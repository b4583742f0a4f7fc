// eights.h -- vectors of eight floats on every instruction set: eight candidates of a search.

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));

INLINE v8 pick8(i8 mask, v8 a, v8 b) { return (v8)((mask & (i8)a) | (~mask & (i8)b)); }
INLINE i8 pick8i(i8 mask, i8 a, i8 b) { return (mask & a) | (~mask & b); }
INLINE v8 repeat8(float x) { return (v8){ x, x, x, x, x, x, x, x }; }
// a where it is above low, else low, also where it is no number; a where it is below high, else
// high.  join8 is a b + sum, of an exact a b: the same whether it is rounded between or not.
//% if isa.vector == "x86" then
INLINE v8 join8(v8 a, v8 b, v8 sum)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

INLINE v8 above8(v8 a, v8 low)
{
    v8 x;
    __asm__("vmaxps %2, %1, %0" : "=v"(x) : "v"(a), "v"(low));
    return x;
}

INLINE v8 below8(v8 a, v8 high)
{
    v8 x;
    __asm__("vminps %2, %1, %0" : "=v"(x) : "v"(a), "v"(high));
    return x;
}
//% else
INLINE v8 join8(v8 a, v8 b, v8 sum) { return a * b + sum; }
INLINE v8 above8(v8 a, v8 low) { return pick8(a > low, a, low); }
INLINE v8 below8(v8 a, v8 high) { return pick8(a < high, a, high); }
//% end

INLINE v8 nearest8(v8 x) { return (x + 12582912.0f) - 12582912.0f; }
INLINE v8 absolute8(v8 x) { return (v8)((i8)x & 0x7fffffff); }
INLINE v8 least8(v8 a, v8 b) { return pick8(a < b, a, b); }
INLINE v8 most8(v8 a, v8 b) { return pick8(a > b, a, b); }
INLINE v8 smaller8(v8 a, v8 b)
{
    //% if isa.vector == "x86" then
    v8 x;
    __asm__("vminps %2, %1, %0" : "=x"(x) : "x"(a), "x"(b));
    return x;
    //% else
    return pick8(a < b, a, b);
    //% end
}
INLINE int any8(i8 x)
{
    int32_t any = 0;
    for (int i = 0; i < 8; ++i) any |= x[i];
    return any != 0;
}
INLINE i8 integer8(v8 x) { return __builtin_convertvector(x, i8); }
INLINE v8 float8(i8 x) { return __builtin_convertvector(x, v8); }

// The first of the least of eight numbers that are not negative: their bits are in their order.
INLINE int first_least8(v8 x)
{
    uint64_t keys[8];
    for (int i = 0; i < 8; ++i) keys[i] = (uint64_t)(uint32_t)((i8)x)[i] << 3 | (uint64_t)i;
    for (int n = 4; n > 0; n /= 2)
        for (int i = 0; i < n; ++i) keys[i] = keys[i + n] < keys[i] ? keys[i + n] : keys[i];
    return (int)(keys[0] & 7u);
}

INLINE v8 value8_of_f16(i8 h)
{
    const i8 sign = (h & 0x8000) << 16, m = h & 0x7fff;
    const v8 normal = (v8)((m << 13) + (112 << 23));
    return (v8)((i8)pick8(m < 0x400, float8(m) * 5.9604644775390625e-8f, normal) | sign);
}

INLINE i8 f16_of_value8(v8 x)
{
    const v8 a = least8(absolute8(x), repeat8(65504.0f));
    const i8 sign = (i8)x >> 16 & 0x8000, u = (i8)a - (112 << 23);
    const i8 normal = (u + 0xfff + (u >> 13 & 1)) >> 13;
    const i8 small = integer8(nearest8(least8(a, repeat8(1.0f)) * 16777216.0f));
    return sign | pick8i(a < 6.103515625e-5f, small, normal);
}

INLINE v8 value8_of_e5m3(i8 c)
{
    return pick8(c < 8, float8(c) * 7.62939453125e-6f, (v8)((c << 20) + (112 << 23)));
}

INLINE i8 e5m3_of_value8(v8 x)
{
    const v8 a = least8(x, repeat8(122880.0f));
    const i8 u = (i8)a - (112 << 23), c = (u + 0x7ffff + (u >> 20 & 1)) >> 20;
    const i8 small = integer8(nearest8(least8(a, repeat8(1.0f)) * 131072.0f));
    return pick8i(a < 6.103515625e-5f, small, c);
}

INLINE v8 value8_of_e4m3(i8 c)
{
    const i8 size = c & 127;
    return pick8(size < 8, float8(size) * 0.0009765625f, (v8)((size << 20) + (119 << 23)));
}

INLINE i8 e4m3_of_value8(v8 x)
{
    const v8 a = least8(x, repeat8(240.0f));
    const i8 u = (i8)a - (119 << 23), c = (u + 0x7ffff + (u >> 20 & 1)) >> 20;
    const i8 small = integer8(nearest8(least8(a, repeat8(1.0f)) * 1024.0f));
    return pick8i(a < 0.0078125f, small, c);
}

INLINE v8 value8_of_log4(i8 c)
{
    const i8 odd = (c & 1) != 0, half = (c & 2) != 0;
    const v8 low = pick8(odd, repeat8(1.18920708f), repeat8(1.0f));
    const v8 high = pick8(odd, repeat8(1.68179286f), repeat8(1.41421354f));
    return pick8(half, high, low) * (v8)((125 + (c >> 2)) << 23);
}

INLINE i8 log4_of_value8(v8 x)
{
    i8 c = { 0 };
    for (int i = 0; i < 15; ++i) c -= x >= log4_bounds[i];
    return c;
}
