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
//% elseif codec.dense then
//% local columns = codec.head_dim // isa.lanes
//% local width = columns % 4 == 0 and 4 or columns % 3 == 0 and 3 or columns % 2 == 0 and 2 or 1
//% if isa.head_tile < 16 and width > 2 then width = columns % 2 == 0 and 2 or 1 end
// y [count, dim] = x [count, dim] matrix: four rows by $(width) vectors of channels at a time,
// whose strip of the matrix stays in the first cache.  Sums run in the order of channels.
static NOINLINE void $(s "multiply")(const float* x, int count, const float* matrix, float* y)
{
    for (int at = 0; at < $(s "dim"); at += $(width) * lanes) {
        for (int row = 0; row < count; row += 4) {
            //% for r = 0, 3 do
            const float* $("x_" .. r) = x + (row + $(r) < count ? row + $(r) : row) * $(s "dim");
            //% for v = 0, width - 1 do
            vf $("sum_" .. r .. "_" .. v) = repeat(0.0f);
            //% end
            //% end
            for (int i = 0; i < $(s "dim"); ++i) {
                const float* from = matrix + i * $(s "dim") + at;
                //% for v = 0, width - 1 do
                const vf $("m_" .. v) = load(from + $(v) * lanes);
                //% end
                //% for r = 0, 3 do
                //% for v = 0, width - 1 do
                //% local sum = "sum_" .. r .. "_" .. v
                $(sum) = mul_add_at($("x_" .. r) + i, $("m_" .. v), $(sum));
                //% end
                //% end
            }
            //% for r = 0, 3 do
            if (row + $(r) < count) {
                //% for v = 0, width - 1 do
                store(y + (row + $(r)) * $(s "dim") + at + $(v) * lanes,
                      $("sum_" .. r .. "_" .. v));
                //% end
            }
            //% end
        }
    }
}

// Queries [count, dim] into the basis, in place.
static void $(s "turn_queries")(float* x, int count, const float* tables)
{
    float y[$(s "dim") * num_heads];
    $(s "multiply")(x, count, tables + $(codec.table_at(codec.dense.query)), y);
    for (int i = 0; i < count * $(s "dim"); ++i) x[i] = y[i];
}

// A row [dim] out of the basis, in place.
static void $(s "restore")(float* x, const float* tables)
{
    const float* query = tables + $(codec.table_at(codec.dense.query));
    float y[$(s "dim")];
    for (int i = 0; i < $(s "dim"); ++i) {
        vf sum = repeat(0.0f);
        for (int j = 0; j < $(s "dim"); j += lanes)
            sum = mul_add(load(query + i * $(s "dim") + j), load(x + j), sum);
        y[i] = sum_lanes(sum);
    }
    for (int i = 0; i < $(s "dim"); ++i) x[i] = y[i];
}
//% else
INLINE void $(s "transform")(float* x) { (void)x; }
//% end

static void $(s "transform_rows")(const kvl__basis_args* a)
{
    for (int32_t head = 0; head < a->num_heads; ++head) {
        float* x = a->x + head * $(s "dim");
        (void)x;
        //% if codec.shift then
        const float* shift = a->tables + $(codec.table_at(codec.shift.subtract));
        //% end
        //% if codec.shift and codec.is_key then
        vf sum = repeat(0.0f);
        for (int i = 0; i < $(s "dim"); i += lanes)
            sum = mul_add(load(x + i), load(shift + i), sum);
        a->bias[head] = sum_lanes(sum);
        //% end
        //% if not codec.dense then
        $(s "transform")(x);
        //% elseif not codec.is_key then
        $(s "restore")(x, a->tables);
        //% end
        //% if codec.shift and not codec.is_key then
        const vf mass = repeat(a->mass[head]);
        for (int i = 0; i < $(s "dim"); i += lanes)
            store(x + i, mul_add(mass, load(shift + i), load(x + i)));
        //% end
    }
    //% if codec.dense and codec.is_key then
    $(s "turn_queries")(a->x, a->num_heads, a->tables);
    //% end
}
