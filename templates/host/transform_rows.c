// transform_rows.c -- rows into the bases of the $(codec.title)' codec, or out of them.
//
//   x     [num_heads, dim]  f32, in place
//% if codec.copies > 1 then
//         then a copy with pieces rotated, and one with the head rotated
//% end
//% if codec.shift and codec.is_key then
//   bias  [num_heads]       gets the product of each query and what was subtracted from keys
//% elseif codec.shift then
//   mass  [num_heads]       what was subtracted from values joins the outputs so often
//% end

//% for _, piece in ipairs(codec.rotations) do
// Hadamard of x [count] in pieces of $(piece): butterflies of stride 1, 2, 4, ..., then times
// 1 / sqrt($(piece)).  It is its own inverse.  The order of operations is part of the codec's
// definition.
static NOINLINE void $(s("hadamard_" .. piece))(float* x, int count)
{
    for (int i = 0; i < count; i += lanes) {
        vf v = load(x + i);
        //% local stride = 1
        //% while stride < piece and stride < isa.lanes do
        v = $("butterfly_" .. stride)(v);
        //% stride = 2 * stride
        //% end
        store(x + i, v);
    }
    for (int stride = lanes; stride < $(piece); stride *= 2) {
        for (int first = 0; first < count; first += 2 * stride) {
            for (int i = first; i < first + stride; i += lanes) {
                const vf a = load(x + i), b = load(x + i + stride);
                store(x + i, a + b);
                store(x + i + stride, a - b);
            }
        }
    }
    for (int i = 0; i < count; i += lanes) store(x + i, load(x + i) * $(f32(1 / sqrt(piece))));
}

//% end
//% if codec.dense then
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

//% end
//% if codec.chooses ~= "none" then
// Into the bases of a choice, or out of them: bit p for piece p rotated, bit 31 for the head.
static void $(s "rotate")(float* x, uint32_t choice)
{
    if (choice >> 31) {
        $(s("hadamard_" .. codec.head_piece))(x, $(s "dim"));
        return;
    }
    for (int p = 0; p < $(codec.head_dim // codec.choice_piece); ++p)
        if (choice >> p & 1u)
            $(s("hadamard_" .. codec.choice_piece))(x + p * $(codec.choice_piece),
                                                    $(codec.choice_piece));
}

//% end
//% if codec.chooses == "fixed" then
//% local num_pieces = codec.head_dim // codec.choice_piece
// The choice of a calibration: 1 for a rotated piece, or behind the pieces for the head.
INLINE uint32_t $(s "fixed_choice")(const float* tables)
{
    const float* choice = tables + $(codec.table_at("choice"));
    uint32_t bits = 0;
    if (choice[$(num_pieces)] != 0.0f) return 0x80000000u;
    for (int p = 0; p < $(num_pieces); ++p) bits |= (uint32_t)(choice[p] != 0.0f) << p;
    return bits;
}

//% end
//% if codec.signs then
// Times the signs of the channels.
INLINE void $(s "flip")(float* x)
{
    static const float signs[$(codec.head_dim)] = { $(codec.signs) };
    for (int i = 0; i < $(s "dim"); i += lanes) store(x + i, load(x + i) * load(signs + i));
}

// Out of the basis that all rows are in.
INLINE void $(s "turn_back")(float* x, const float* tables)
{
    (void)tables;
    $(s("hadamard_" .. codec.piece))(x, $(s "dim"));
    $(s "flip")(x);
}

//% end
//% if not codec.dense and not codec.is_split then
// Into the basis that all rows are in.
INLINE void $(s "transform")(float* x, const float* tables)
{
    (void)tables;
    //% if codec.signs then
    $(s "flip")(x);
    //% end
    //% if codec.piece > 0 then
    $(s("hadamard_" .. codec.piece))(x, $(s "dim"));
    //% elseif codec.chooses == "fixed" then
    $(s "rotate")(x, $(s "fixed_choice")(tables));
    //% else
    (void)x;
    //% end
}

//% end
//% if codec.base then
//% local base = codec.table_at(codec.base)
// Channels are stored in units of the base.
INLINE void $(s "divide")(float* x, const float* tables)
{
    for (int i = 0; i < $(s "dim"); i += lanes)
        store(x + i, load(x + i) / load(tables + $(base) + i));
}

INLINE void $(s "scale_up")(float* x, const float* tables)
{
    for (int i = 0; i < $(s "dim"); i += lanes)
        store(x + i, load(x + i) * load(tables + $(base) + i));
}

//% end
//% if not codec.in_set then
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
        //% if codec.base and not codec.is_key then
        $(s "scale_up")(x, a->tables);
        //% end
        //% if not codec.dense then
        $(s(codec.is_key and "transform" or codec.back))(x, a->tables);
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
    //% if codec.copies > 1 then
    const int size = a->num_heads * $(s "dim");
    for (int i = 0; i < size; i += lanes) {
        store(a->x + size + i, load(a->x + i));
        store(a->x + 2 * size + i, load(a->x + i));
    }
    $(s("hadamard_" .. codec.choice_piece))(a->x + size, size);
    $(s("hadamard_" .. codec.head_piece))(a->x + 2 * size, size);
    //% end
    //% if codec.base and codec.is_key then
    for (int32_t head = 0; head < a->num_heads; ++head)
        $(s "scale_up")(a->x + head * $(s "dim"), a->tables);
    //% end
}
//% end
