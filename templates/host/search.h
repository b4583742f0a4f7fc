// search.h -- the best of eight pairs of scale and offset for a group of $(codec.title).
//
// gen/parts/search.lua defines it.  A candidate is a lane, of eight on every instruction set: sums
// run in the group's order in each.  About 24 instructions of eight lanes a value.
//% local meta = codec.parts.meta

// What one value's code decodes to.
INLINE v8 $(s "decoded8")(v8 x, v8 scale, v8 offset, v8 inverse)
{
    v8 y = (x - offset) * inverse;
    y = pick8(y > 0.0f, y, repeat8(0.0f));
    y = pick8(y < $(codec.code_max).0f, y, repeat8($(codec.code_max).0f));
    return scale * nearest8(y) + offset;
}

// One least-squares refit of s and m, of values in units of half about mid.
INLINE void $(s "refit8")(const float* x, int stride, float mid, float unit, v8* s, v8* m)
{
    enum { count = $(codec.group_size) };
    const float middle = 0.5f * $(codec.code_max).0f;
    const v8 r = 1.0f / *s;
    v8 sum_c = { 0 }, sum_cc = { 0 }, sum_cy = { 0 };
    float sum_y = 0.0f;
    for (int i = 0; i < count; ++i) {
        const float y = (x[i * stride] - mid) * unit;
        v8 c = (y - *m) * r + middle;
        c = pick8(c > 0.0f, c, repeat8(0.0f));
        c = pick8(c < 2.0f * middle, c, repeat8(2.0f * middle));
        c = nearest8(c) - middle;
        sum_c += c;
        sum_cc += c * c;
        sum_cy += c * y;
        sum_y += y;
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
    for (int pass = 0; pass < 2; ++pass) $(s "refit8")(x, stride, mid, unit, &s, &m);
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
    int best = 0;
    for (int i = 1; i < 8; ++i)
        if (error[i] < error[best]) best = i;
    if (best == 0) return grid;
    $(s "put_pair")(page, group, (uint32_t)scale_code[best], (uint32_t)zero_code[best]);
    grid.offset = offset[best];
    grid.inverse = inverse[best];
    return grid;
}
