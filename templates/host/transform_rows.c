// transform_rows.c -- rows into the basis of the $(codec.title)' codec, or out of it.
//
//   x  [num_heads, dim]  f32, in place

//% if codec.piece > 0 then
// Hadamard in pieces: butterflies of stride 1, 2, 4, ..., then times 1 / sqrt(piece).  It is its
// own inverse.  The order of operations is part of the codec's definition.
static void $(s "transform")(float* x)
{
    enum { piece = $(codec.piece) };
    for (int stride = 1; stride < piece; stride *= 2) {
        for (int first = 0; first < $(s "dim"); first += 2 * stride) {
            for (int i = first; i < first + stride; ++i) {
                const float a = x[i], b = x[i + stride];
                x[i] = a + b;
                x[i + stride] = a - b;
            }
        }
    }
    for (int i = 0; i < $(s "dim"); ++i) x[i] *= $(f32(1 / sqrt(codec.piece)));
}
//% else
INLINE void $(s "transform")(float* x) { (void)x; }
//% end

static void $(s "transform_rows")(const kvl__basis_args* a)
{
    for (int32_t head = 0; head < a->num_heads; ++head) $(s "transform")(a->x + head * $(s "dim"));
}
