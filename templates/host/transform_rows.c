// transform_rows.c -- rows into the basis of the $(codec.title)' codec, or out of it.
//
//   x     [num_heads, dim]  f32, in place
//% if codec.shift and codec.is_key then
//   bias  [num_heads]       gets the product of each query and what was subtracted from keys
//% elseif codec.shift then
//   mass  [num_heads]       what was subtracted from values joins the outputs so often
//% end

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
    for (int32_t head = 0; head < a->num_heads; ++head) {
        float* x = a->x + head * $(s "dim");
        //% if codec.shift then
        const float* shift = a->tables + $(codec.table_at(codec.shift.subtract));
        //% end
        //% if codec.shift and codec.is_key then
        vf sum = repeat(0.0f);
        for (int i = 0; i < $(s "dim"); i += lanes)
            sum = mul_add(load(x + i), load(shift + i), sum);
        a->bias[head] = sum_lanes(sum);
        //% end
        $(s "transform")(x);
        //% if codec.shift and not codec.is_key then
        const vf mass = repeat(a->mass[head]);
        for (int i = 0; i < $(s "dim"); i += lanes)
            store(x + i, mul_add(mass, load(shift + i), load(x + i)));
        //% end
    }
}
