// test_rows.c -- rows of 16 bits as floats: every finite number.

#include "kvl_ref.h"

#include <criterion/criterion.h>

enum { NUM = 65536 };

// What 16 bits with `fraction` bits behind the exponent stand for; infinite and NaN: 0.
static double meaning(uint32_t h, int fraction)
{
    const int exponents = 15 - fraction, bias = (1 << (exponents - 1)) - 1;
    const int e = (int)(h >> fraction & ((1u << exponents) - 1u));
    const int m = (int)(h & ((1u << fraction) - 1u));
    if (e == (1 << exponents) - 1) return 0;
    const double size = e ? ldexp(m + (1 << fraction), e - bias - fraction)
                          : ldexp(m, 1 - bias - fraction);
    return h >> 15 ? -size : size;
}

// Breaks where a subnormal number, the greatest one or a sign is lost, or the types are exchanged.
Test(rows, every_finite_number)
{
    static uint16_t h[NUM];
    static float x[NUM];
    for (int bf16 = 0; bf16 < 2; ++bf16) {
        const uint32_t infinite = bf16 ? 0x7f80 : 0x7c00;
        for (uint32_t i = 0; i < NUM; ++i) h[i] = (uint16_t)((i & infinite) == infinite ? 0 : i);
        kvl__finite_to_f32(h, NUM, bf16, x);
        for (int i = 0; i < NUM; ++i) {
            const double want = meaning(h[i], bf16 ? 7 : 10);
            cr_assert((double)x[i] == want && !!signbit(x[i]) == h[i] >> 15,
                      "%s 0x%04x is %g, not %g", bf16 ? "bf16" : "f16", h[i], (double)x[i], want);
            cr_assert(kvl__row_to_f32(h[i], bf16) == x[i]);
        }
    }
}
