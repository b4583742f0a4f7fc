// search.cuh -- the best of eight pairs of scale and offset for a group of $(codec.title).
//
// gen/parts/search.lua defines it.  Values of a group come one at a time, in its order, three
// times: to refit, to refit, to be compared.  Candidate 0 is the pair of the fit before.

//% local meta = codec.parts.meta
enum { $(s "candidates") = 8 };

// Of a group: values are taken in units of half about mid.
typedef struct $(s "range") {
    float mid, half, unit;
    bool  found;                       // false: candidate 0, whatever the others
} $(s "range");

// s, m, r: scale, offset and 1 / s in these units, before they are stored; then, as they are
// decoded, scale, offset and the factor of codes.
typedef struct $(s "candidate") {
    float    s, m, r, c, cc, cy, y;    // sums of a refit
    float    scale, offset, inverse, error;
    uint32_t scale_code, zero_code;
} $(s "candidate");

INLINE $(s "range") $(s "range_of")(float lo, float hi)
{
    $(s "range") g;
    g.mid = 0.5f * lo + 0.5f * hi;
    g.half = 0.5f * hi - 0.5f * lo;
    g.found = g.half > 0x1p-100f;
    g.unit = g.found ? 1.0f / g.half : 0.0f;
    return g;
}

INLINE void $(s "search_start")($(s "candidate")* w, int i)
{
    //% local fit = codec.parts.fit
    const float shrink[] = { $(codec.bits == 1 and fit.shrink_of_1_bit or fit.shrink) };
    float of = shrink[0];
#pragma unroll
    for (int k = 1; k < $(s "candidates"); ++k) of = i == k ? shrink[k] : of;
    w->s = 2.0f * of / $(codec.code_max).0f;
    w->m = w->error = 0.0f;
}

INLINE void $(s "refit_start")($(s "candidate")* w)
{
    w->r = 1.0f / w->s;
    w->c = w->cc = w->cy = w->y = 0.0f;
}

INLINE void $(s "refit_add")($(s "candidate")* w, const $(s "range")& g, float x)
{
    const float middle = 0.5f * $(codec.code_max).0f, y = (x - g.mid) * g.unit;
    float c = (y - w->m) * w->r + middle;
    c = c > 0.0f ? c : 0.0f;
    c = c < 2.0f * middle ? c : 2.0f * middle;
    c = nearest_even(c) - middle;
    w->c += c;
    w->cc += c * c;
    w->cy += c * y;
    w->y += y;
}

INLINE void $(s "refit_end")($(s "candidate")* w)
{
    const float n = $(codec.group_size).0f;
    const float det = n * w->cc - w->c * w->c;
    const float better = (n * w->cy - w->c * w->y) / det;
    if (!(det > 1e-6f * n * w->cc && better > 0.0f)) return;
    w->s = better;
    w->m = (w->y - better * w->c) / n;
}

// A candidate as it is stored.  Parts spell eight at once, of the types v8 and i8.
INLINE void $(s "search_store")($(s "candidate")* w, const $(s "range")& g)
{
    enum { bits = $(codec.level_bits), code_max = $(codec.code_max) };
    float wanted = w->s * g.half;
    const float middle = g.mid + w->m * g.half;
    float scale, offset;
    int32_t scale_code, zero_code;
    $(meta.near_affine)
    w->scale = scale;
    w->offset = offset;
    w->inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    w->scale_code = (uint32_t)scale_code;
    w->zero_code = (uint32_t)zero_code;
}

INLINE void $(s "search_keep")($(s "candidate")* w, const $(s "pair")& pair, $(s "grid") grid)
{
    w->scale = pair.scale;
    w->offset = grid.offset;
    w->inverse = grid.inverse;
    w->scale_code = pair.scale_code;
    w->zero_code = pair.zero_code;
}

INLINE void $(s "search_compare")($(s "candidate")* w, const $(s "range")& g, float x)
{
    float y = (x - w->offset) * w->inverse;
    y = y > 0.0f ? y : 0.0f;
    y = y < $(codec.code_max).0f ? y : $(codec.code_max).0f;
    const float e = (x - (w->scale * nearest_even(y) + w->offset)) * g.unit;
    w->error += e * e;
}

INLINE $(s "grid") $(s "search_take")($(s "pair")* pair, const $(s "candidate")& w)
{
    $(s "grid") grid;
    grid.offset = w.offset;
    grid.inverse = w.inverse;
    pair->scale = w.scale;
    pair->scale_code = w.scale_code;
    pair->zero_code = w.zero_code;
    return grid;
}

// Values that lie side by side in shared memory: each of eight neighbouring lanes has a candidate,
// and all of them get the best.  All lanes of a warp take part.
INLINE $(s "grid") $(s "search_lanes")($(s "pair")* pair, const float* x, float lo, float hi,
                                  $(s "grid") grid)
{
    enum { count = $(codec.group_size) };
    const $(s "range") g = $(s "range_of")(lo, hi);
    const int own = threadIdx.x % $(s "candidates");
    $(s "candidate") w;
    $(s "search_start")(&w, own);
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
        $(s "refit_start")(&w);
#pragma unroll 4
        for (int i = 0; i < count; ++i) $(s "refit_add")(&w, g, x[i]);
        $(s "refit_end")(&w);
    }
    $(s "search_store")(&w, g);
    if (own == 0) $(s "search_keep")(&w, *pair, grid);
#pragma unroll 4
    for (int i = 0; i < count; ++i) $(s "search_compare")(&w, g, x[i]);
    // The least error, and of equals the first.
    float least_error = least(w.error, float_max);
    int best = own;
#pragma unroll
    for (int d = 1; d < $(s "candidates"); d *= 2) {
        const float error = __shfl_xor_sync(0xffffffffu, least_error, d);
        const int other = __shfl_xor_sync(0xffffffffu, best, d);
        const bool lower = other < best;
        const bool wins = lower ? !(least_error < error) : error < least_error;
        least_error = wins ? error : least_error;
        best = wins ? other : best;
    }
    if (!g.found) best = 0;
    const int from = (int)threadIdx.x % 32 / $(s "candidates") * $(s "candidates") + best;
    w.scale = __shfl_sync(0xffffffffu, w.scale, from);
    w.offset = __shfl_sync(0xffffffffu, w.offset, from);
    w.inverse = __shfl_sync(0xffffffffu, w.inverse, from);
    w.scale_code = __shfl_sync(0xffffffffu, w.scale_code, from);
    w.zero_code = __shfl_sync(0xffffffffu, w.zero_code, from);
    return $(s "search_take")(pair, w);
}
