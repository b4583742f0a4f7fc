// search.cuh -- the best of eight pairs of scale and offset for a group of $(codec.title).
//
// gen/parts/search.lua defines it.  A thread goes through all candidates of a group; its values
// come one at a time, in the group's order, three times: to refit, to refit, to be compared.

//% local meta = codec.parts.meta
enum { $(s "candidates") = 8 };

// s, m: the pair of a candidate in units of half about mid, before it is stored; then, as it is
// decoded, scale, offset and the factor of codes.
typedef struct $(s "search") {
    float   mid, half, unit;
    float   s[$(s "candidates")], m[$(s "candidates")];
    float   scale[$(s "candidates")], offset[$(s "candidates")], inverse[$(s "candidates")];
    int32_t scale_code[$(s "candidates")], zero_code[$(s "candidates")];
    float   error[$(s "candidates")];
    bool    found;                     // false: candidate 0, whatever the others
} $(s "search");

typedef struct $(s "refit") {
    float c[$(s "candidates")], cc[$(s "candidates")], cy[$(s "candidates")], y;
} $(s "refit");

INLINE void $(s "search_start")($(s "search")* w, float lo, float hi)
{
    //% local fit = codec.parts.fit
    //% local shrink = codec.bits == 1 and fit.shrink_of_1_bit or fit.shrink
    const float shrink[$(s "candidates")] = { $(shrink) };
    w->mid = 0.5f * lo + 0.5f * hi;
    w->half = 0.5f * hi - 0.5f * lo;
    w->found = w->half > 0x1p-100f;
    w->unit = w->found ? 1.0f / w->half : 0.0f;
#pragma unroll
    for (int i = 0; i < $(s "candidates"); ++i) {
        w->s[i] = 2.0f * shrink[i] / $(codec.code_max).0f;
        w->m[i] = w->error[i] = 0.0f;
    }
}

INLINE void $(s "refit_start")($(s "refit")* t)
{
#pragma unroll
    for (int i = 0; i < $(s "candidates"); ++i) t->c[i] = t->cc[i] = t->cy[i] = 0.0f;
    t->y = 0.0f;
}

INLINE void $(s "refit_add")(const $(s "search")& w, $(s "refit")* t, float x)
{
    const float middle = 0.5f * $(codec.code_max).0f, y = (x - w.mid) * w.unit;
#pragma unroll
    for (int i = 0; i < $(s "candidates"); ++i) {
        const float r = 1.0f / w.s[i];
        float c = (y - w.m[i]) * r + middle;
        c = c > 0.0f ? c : 0.0f;
        c = c < 2.0f * middle ? c : 2.0f * middle;
        c = nearest_even(c) - middle;
        t->c[i] += c;
        t->cc[i] += c * c;
        t->cy[i] += c * y;
    }
    t->y += y;
}

INLINE void $(s "refit_end")($(s "search")* w, const $(s "refit")& t)
{
    const float n = $(codec.group_size).0f;
#pragma unroll
    for (int i = 0; i < $(s "candidates"); ++i) {
        const float det = n * t.cc[i] - t.c[i] * t.c[i];
        const float better = (n * t.cy[i] - t.c[i] * t.y) / det;
        if (!(det > 1e-6f * n * t.cc[i] && better > 0.0f)) continue;
        w->s[i] = better;
        w->m[i] = (t.y - better * t.c[i]) / n;
    }
}

// One candidate as it is stored.  Parts spell eight at once, of the types v8 and i8.
INLINE void $(s "store_candidate")($(s "search")* w, int i)
{
    enum { bits = $(codec.bits), code_max = $(codec.code_max) };
    float wanted = w->s[i] * w->half;
    const float middle = w->mid + w->m[i] * w->half;
    float scale, offset;
    int32_t scale_code, zero_code;
    $(meta.near_affine)
    w->scale[i] = scale;
    w->offset[i] = offset;
    w->inverse[i] = scale > 0.0f ? 1.0f / scale : 0.0f;
    w->scale_code[i] = scale_code;
    w->zero_code[i] = zero_code;
}

// Candidate 0 is the grid that is stored already.
INLINE void $(s "search_store")($(s "search")* w, const unsigned char* page, int group,
                           $(s "grid") grid)
{
#pragma unroll
    for (int i = 1; i < $(s "candidates"); ++i) $(s "store_candidate")(w, i);
    w->scale[0] = $(s "read_scale")(page, group);
    w->offset[0] = grid.offset;
    w->inverse[0] = grid.inverse;
    w->scale_code[0] = w->zero_code[0] = 0;
}

INLINE void $(s "search_compare")($(s "search")* w, float x)
{
#pragma unroll
    for (int i = 0; i < $(s "candidates"); ++i) {
        float y = (x - w->offset[i]) * w->inverse[i];
        y = y > 0.0f ? y : 0.0f;
        y = y < $(codec.code_max).0f ? y : $(codec.code_max).0f;
        const float e = (x - (w->scale[i] * nearest_even(y) + w->offset[i])) * w->unit;
        w->error[i] += e * e;
    }
}

// Stores the best pair, if it is another.
INLINE $(s "grid") $(s "search_end")(const $(s "search")& w, unsigned char* page, int group,
                                $(s "grid") grid)
{
    float least_error = w.error[0];
    int32_t scale_code = -1, zero_code = 0;
#pragma unroll
    for (int i = 1; i < $(s "candidates"); ++i) {
        if (!(w.error[i] < least_error)) continue;
        least_error = w.error[i];
        grid.offset = w.offset[i];
        grid.inverse = w.inverse[i];
        scale_code = w.scale_code[i];
        zero_code = w.zero_code[i];
    }
    if (scale_code >= 0) $(s "put_pair")(page, group, (uint32_t)scale_code, (uint32_t)zero_code);
    return grid;
}

// The same for values that lie side by side.
INLINE $(s "grid") $(s "search_row")(unsigned char* page, int group, const float* x, float lo,
                                float hi, $(s "grid") grid)
{
    enum { count = $(codec.group_size) };
    $(s "search") w;
    $(s "search_start")(&w, lo, hi);
    if (!w.found) return grid;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
        $(s "refit") t;
        $(s "refit_start")(&t);
#pragma unroll 1
        for (int i = 0; i < count; ++i) $(s "refit_add")(w, &t, x[i]);
        $(s "refit_end")(&w, t);
    }
    $(s "search_store")(&w, page, group, grid);
#pragma unroll 1
    for (int i = 0; i < count; ++i) $(s "search_compare")(&w, x[i]);
    return $(s "search_end")(w, page, group, grid);
}
