// search.h -- the best of eight pairs of scale and offset for a group of $(codec.title).
//
// gen/parts/search.lua defines it.  A candidate is a lane, of eight on every instruction set: sums
// run in the group's order in each.  About 40 instructions of eight lanes a value.
//% local meta = codec.parts.meta

// What one value's code decodes to.
INLINE v8 $(s "decoded8")(v8 x, v8 scale, v8 offset, v8 inverse)
{
    v8 y = (x - offset) * inverse;
    y = below8(above8(y, repeat8(0.0f)), repeat8($(codec.code_max).0f));
    return scale * nearest8(y) + offset;
}

// One least-squares refit of s and m to values y in units, whose sum is sum_y.
INLINE void $(s "refit8")(const float* y, float sum_y, v8* s, v8* m)
{
    enum { count = $(codec.group_size) };
    const float middle = 0.5f * $(codec.code_max).0f;
    const v8 r = 1.0f / *s;
    v8 sum_c = { 0 }, sum_cc = { 0 }, sum_cy = { 0 };
    for (int i = 0; i < count; ++i) {
        const v8 one = repeat8(y[i]);
        v8 c = (one - *m) * r + middle;
        c = below8(above8(c, repeat8(0.0f)), repeat8(2.0f * middle));
        c = nearest8(c) - middle;
        sum_c = join8(c, repeat8(1.0f), sum_c);
        sum_cc = join8(c, c, sum_cc);
        sum_cy += c * one;
    }
    const float n = (float)count;
    const v8 det = n * sum_cc - sum_c * sum_c;
    const v8 better = (n * sum_cy - sum_c * sum_y) / det;
    const i8 take = (i8)(det > 1e-6f * n * sum_cc) & (i8)(better > 0.0f);
    *s = pick8(take, better, *s);
    *m = pick8(take, (sum_y - *s * sum_c) / n, *m);
}

INLINE v8 $(s "errors8")(const float* x, int stride, float unit, v8 scale, v8 offset, v8 inverse)
{
    v8 sum = { 0 };
    for (int i = 0; i < $(codec.group_size); ++i) {
        const v8 value = repeat8(x[i * stride]);
        const v8 e = (value - $(s "decoded8")(value, scale, offset, inverse)) * unit;
        sum += e * e;
    }
    return sum;
}

static NOINLINE $(s "grid") $(s "search_grid")(unsigned char* page, int group, const float* x,
                                       int stride, float lo, float hi)
{
    enum { bits = $(codec.bits), code_max = $(codec.code_max) };
    //% local fit = codec.parts.fit
    const v8 shrink = { $(codec.bits == 1 and fit.shrink_of_1_bit or fit.shrink) };
    $(s "grid") grid = $(s "store_grid")(page, group, lo, hi);
    const float mid = 0.5f * lo + 0.5f * hi, half = 0.5f * hi - 0.5f * lo;
    if (!(half > 0x1p-100f)) return grid;
    const float unit = 1.0f / half;
    v8 s = 2.0f * shrink / (float)code_max, m = { 0 }, scale, offset;
    i8 scale_code, zero_code;
    LINE float y[$(codec.group_size)];
    float sum_y = 0.0f;
    for (int i = 0; i < $(codec.group_size); ++i) y[i] = (x[i * stride] - mid) * unit;
    for (int i = 0; i < $(codec.group_size); ++i) sum_y += y[i];
    $(s "refit8")(y, sum_y, &s, &m);
    $(s "refit8")(y, sum_y, &s, &m);
    {
        v8 wanted = s * half;
        const v8 middle = mid + m * half;
        $(meta.near_affine)
    }
    scale[0] = $(s "read_scale")(page, group);
    offset[0] = grid.offset;
    v8 inverse = pick8(scale > 0.0f, 1.0f / scale, repeat8(0.0f));
    inverse[0] = grid.inverse;
    const v8 error = $(s "errors8")(x, stride, unit, scale, offset, inverse);
    const int best = first_least8(error);
    if (best == 0) return grid;
    $(s "put_pair")(page, group, (uint32_t)scale_code[best], (uint32_t)zero_code[best]);
    grid.offset = offset[best];
    grid.inverse = inverse[best];
    return grid;
}
