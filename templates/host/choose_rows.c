// choose_rows.c -- rows become codes of a page, each unit in the bases that cost it least.
//
// gen/parts/choose_unit.lua defines the choice, the part of stage score what an error costs.  Up
// to $(codec.trial_rows) rows at a time are fitted, rounded and scored in each basis; the codes of
// the chosen ones are packed.  A score is a product of matrices: rows of errors times columns of
// queries, a vector of queries and four rows at once.
//% local R, score, per_token = codec.trial_rows, codec.parts.score, codec.axis == "per_token"
//% local groups = codec.head_dim * R // codec.group_size

enum { $(s "trial_rows") = $(R), $(s "trial_groups") = $(groups) };
enum { $(s "num_pieces") = $(codec.head_dim // codec.choice_piece) };

// Rows in trial.  Bases: 0 as they are, 1 pieces rotated, 2 the head rotated.
typedef struct $(s "trial") {
    LINE float x[$(R)][$(s "dim")];                // as they are
    LINE float y[$(R)][$(s "dim")];                // in one basis
    LINE float e[3][$(R)][$(s "dim")];             // what codes of each leave, rotated back
    uint16_t codes[3][$(R)][$(s "dim")];
    $(s "pair") pairs[3][$(groups)];
    //% if score.weighs then
    LINE float weights[$(R)][$(codec.score_number)];
    //% end
    float cost[2][$(s "num_pieces")][$(R)], whole[2][$(R)];
} $(s "trial");

//% if score.product then
//% local num = codec.score_rows
//% local vectors = num % (2 * isa.lanes) == 0 and 2 or 1
// Products of rows of e, channels [first, end), with the columns of `of` [dim, $(num)], four or one
// at a time; what they come to is $(score.total).
//% for _, rows in ipairs { 4, 1 } do
INLINE void $(s("cost_" .. rows))(const float* of, const float* e, const float* weights, int first,
                                  int end, float* out)
{
    //% for r = 0, rows - 1 do
    vf $("total_" .. r) = repeat(0.0f);
    //% end
    //% if score.weighs then
    for (int n = 0; n < $(num); n += $(vectors) * lanes) {
    //% else
    for (int n = first; n < end; n += $(vectors) * lanes) {
    (void)weights;
    //% end
        //% for r = 0, rows - 1 do
        //% for v = 0, vectors - 1 do
        vf $("sum_" .. r .. "_" .. v) = repeat(0.0f);
        //% end
        //% end
        for (int i = first; i < end; ++i) {
            //% for v = 0, vectors - 1 do
            const vf $("q_" .. v) = load(of + i * $(num) + n + $(v) * lanes);
            //% end
            //% for r = 0, rows - 1 do
            //% for v = 0, vectors - 1 do
            //% local sum = "sum_" .. r .. "_" .. v
            $(sum) = mul_add_at(e + $(r) * $(s "dim") + i, $("q_" .. v), $(sum));
            //% end
            //% end
        }
        //% for r = 0, rows - 1 do
        //% for v = 0, vectors - 1 do
        //% local sum, total = "sum_" .. r .. "_" .. v, "total_" .. r
        {
            const vf sum = $(sum);
            //% if score.weighs then
            const vf weight = load(weights + $(r) * $(num) + n + $(v) * lanes);
            //% else
            const vf error = load(e + $(r) * $(s "dim") + n + $(v) * lanes);
            //% end
            $(total) = $((score.product:gsub("TOTAL", total)));
        }
        //% end
        //% end
    }
    //% for r = 0, rows - 1 do
    out[$(r)] = sum_lanes($("total_" .. r));
    //% end
}
//% end

// What the errors of rows [0, num_rows) cost in channels [first, end), to out [num_rows].
static NOINLINE void $(s "cost_rows")(const float* tables, const $(s "trial")* u, const float* e,
                                 int num_rows, int first, int end, float* out)
{
    const float* of = tables + $(codec.table_at(score.columns));
    //% local weights = score.weighs and "u->weights[r]" or "0"
    int r = 0;
    (void)u;
    for (; r + 4 <= num_rows; r += 4)
        $(s "cost_4")(of, e + r * $(s "dim"), $(weights), first, end, out + r);
    for (; r < num_rows; ++r)
        $(s "cost_1")(of, e + r * $(s "dim"), $(weights), first, end, out + r);
}
//% if score.weighs then

// The weight of each calibration query on the plain keys: p = min(1, exp(q . k - L)).
static NOINLINE void $(s "weigh_rows")(const kvl__encode_args* a, int first_row, int num_rows,
                                  $(s "trial")* u)
{
    const float* of = a->tables + $(codec.table_at(score.columns));
    const float* lse = a->tables + $(codec.table_at(score.normalisers));
    for (int r = 0; r < num_rows; ++r) {
        LINE float k[$(s "dim")];
        const uint16_t* row = a->rows + (first_row + r) * a->row_stride;
        for (int i = 0; i < $(s "dim"); i += lanes)
            store(k + i, $("load_" .. config.rows)((const unsigned char*)(row + i)));
        for (int n = 0; n < $(num); n += $(vectors) * lanes) {
            //% for v = 0, vectors - 1 do
            vf $("sum_" .. v) = -load(lse + n + $(v) * lanes), $("more_" .. v) = repeat(0.0f);
            //% end
            for (int i = 0; i < $(s "dim"); i += 2) {
                //% for v = 0, vectors - 1 do
                //% local q = ("load(of + i * %d + n + %d * lanes)"):format(num, v)
                //% local next = ("load(of + (i + 1) * %d + n + %d * lanes)"):format(num, v)
                $("sum_" .. v) = mul_add_at(k + i, $(q), $("sum_" .. v));
                $("more_" .. v) = mul_add_at(k + i + 1, $(next), $("more_" .. v));
                //% end
            }
            //% for v = 0, vectors - 1 do
            {
                vf logit = $("sum_" .. v) + $("more_" .. v);
                logit = select(logit < 0.0f, logit, repeat(0.0f));
                store(u->weights[r] + n + $(v) * lanes, exp_negative(logit));
            }
            //% end
        }
    }
}
//% end
//% else
// The squared error of rows [0, num_rows) in channels [first, end), to out [num_rows].
static void $(s "cost_rows")(const float* tables, const $(s "trial")* u, const float* e,
                        int num_rows, int first, int end, float* out)
{
    (void)tables;
    (void)u;
    for (int r = 0; r < num_rows; ++r, e += $(s "dim")) {
        vf sum = repeat(0.0f);
        for (int i = first; i < end; i += lanes) sum = mul_add(load(e + i), load(e + i), sum);
        out[r] = sum_lanes(sum);
    }
}
//% end

// Fits rows y [num_rows, dim] in a basis.  scale, offset, inverse: of row r from r times `stride`.
static void $(s "fit_trial")($(s "trial")* u, int basis, int num_rows, float* scale, float* offset,
                        float* inverse)
{
    //% if per_token then
    for (int r = 0; r < num_rows; ++r) {
        for (int first = 0, at = r * $(codec.head_dim // codec.group_size); first < $(s "dim");
             first += $(codec.group_size), ++at) {
            vf low = load(u->y[r] + first), high = low;
            for (int i = first + lanes; i < first + $(codec.group_size); i += lanes) {
                low = smaller(load(u->y[r] + i), low);
                high = greater(load(u->y[r] + i), high);
            }
            $(s "pair")* pair = &u->pairs[basis][at];
            const $(s "grid") grid = $(s "fit_grid")(pair, first == 0 ? basis == 2 : -1,
                                           -greatest_lane(-low), greatest_lane(high));
            const int to = r * $(s "dim") + first;
            for (int i = to; i < to + $(codec.group_size); i += lanes) {
                store(scale + i, repeat(pair->scale));
                store(offset + i, repeat(grid.offset));
                store(inverse + i, repeat(grid.inverse));
            }
        }
    }
    //% else
    LINE float lo[$(s "dim")], hi[$(s "dim")];
    for (int i = 0; i < $(s "dim"); i += lanes) {
        vf low = load(u->y[0] + i), high = low;
        for (int r = 1; r < num_rows; ++r) {
            low = smaller(load(u->y[r] + i), low);
            high = greater(load(u->y[r] + i), high);
        }
        store(lo + i, low);
        store(hi + i, high);
    }
    for (int i = 0; i < $(s "dim"); ++i) {
        $(s "pair")* pair = &u->pairs[basis][i];
        const $(s "grid") grid = $(s "fit_grid")(pair, i == 0 ? basis == 2 : -1, lo[i], hi[i]);
        scale[i] = pair->scale;
        offset[i] = grid.offset;
        inverse[i] = grid.inverse;
    }
    //% end
}

// Codes and errors of the rows in a basis.
static void $(s "try_basis")($(s "trial")* u, int basis, int num_rows)
{
    //% local stride = per_token and codec.head_dim or 0
    //% local extent = per_token and R * codec.head_dim or codec.head_dim
    LINE float scale[$(extent)], offset[$(extent)], inverse[$(extent)];
    for (int r = 0; r < num_rows; ++r) {
        for (int i = 0; i < $(s "dim"); i += lanes) store(u->y[r] + i, load(u->x[r] + i));
        if (basis == 1) $(s("hadamard_" .. codec.choice_piece))(u->y[r], $(s "dim"));
        if (basis == 2) $(s("hadamard_" .. codec.head_piece))(u->y[r], $(s "dim"));
    }
    $(s "fit_trial")(u, basis, num_rows, scale, offset, inverse);
    for (int r = 0; r < num_rows; ++r) {
        const int at = r * $(stride);
        uint16_t* q = u->codes[basis][r];
        float* e = u->e[basis][r];
        $(s "round_row")(u->y[r], offset + at, inverse + at, q);
        for (int i = 0; i < $(s "dim"); i += lanes) {
            const vf code = to_float(load_u16((const unsigned char*)(q + i)));
            const vf product = load(scale + at + i) * code;
            store(e + i, load(u->y[r] + i) - (product + load(offset + at + i)));
        }
        if (basis == 1) $(s("hadamard_" .. codec.choice_piece))(e, $(s "dim"));
        if (basis == 2) $(s("hadamard_" .. codec.head_piece))(e, $(s "dim"));
    }
}

INLINE float $(s "sum_costs")(const float* cost, int first, int count)
{
    float sum = 0.0f;
    for (int r = first; r < first + count; ++r) sum += cost[r];
    return sum;
}

// The pieces of the unit of rows [first, first + count) that are rotated; their errors join those
// of the rows as they are.
static uint32_t $(s "choose_pieces")($(s "trial")* u, int first, int count)
{
    uint32_t choice = 0;
    for (int p = 0; p < $(s "num_pieces"); ++p) {
        if (!($(s "sum_costs")(u->cost[1][p], first, count)
              < $(s "sum_costs")(u->cost[0][p], first, count))) continue;
        choice |= 1u << p;
        for (int r = first; r < first + count; ++r)
            for (int i = p * $(codec.choice_piece); i < (p + 1) * $(codec.choice_piece); i += lanes)
                store(u->e[0][r] + i, load(u->e[1][r] + i));
    }
    return choice;
}

// Metadata and codes of the unit of rows [first, first + count), which begins at `row` of the page.
static void $(s "put_unit")(unsigned char* page, const $(s "trial")* u, uint32_t choice, int first,
                       int count, int row)
{
    //% local step = per_token and codec.group_size or 1
    for (int i = 0; i < $(s "dim"); i += $(step)) {
        const int basis = $(s "basis_of")(choice, i);
        //% local at = per_token and ("first * %d + i / %d"):format(codec.head_dim // step, step)
        //% at = at or "i"
        const $(s "pair")* pair = &u->pairs[basis][$(at)];
        const uint32_t flag = basis == 1 && i % $(codec.choice_piece) == 0;
        $(s "put_pair")(page, $(s "group")(i, row),
                   pair->scale_code | flag << $(codec.parts.meta.free_sign), pair->zero_code);
    }
    for (int r = 0; r < count; ++r) {
        uint16_t q[$(s "dim")];
        for (int i = 0; i < $(s "dim"); i += 16)
            __builtin_memcpy(q + i, u->codes[$(s "basis_of")(choice, i)][first + r] + i, 32);
        $(s "put_row")(page, row + r, q);
    }
}

static void $(s "encode_rows")(const kvl__encode_args* a)
{
    //% local unit = per_token and 1 or codec.group_size
    enum { piece = $(codec.choice_piece) };
    $(s "trial") u;
    for (int32_t done = 0; done < a->num_rows; done += $(R)) {
        const int left = a->num_rows - done, num_rows = left < $(R) ? left : $(R);
        for (int r = 0; r < num_rows; ++r)
            $(s "load_row")(a->rows + (done + r) * a->row_stride, a->tables, u.x[r]);
        for (int basis = 0; basis < 3; ++basis) $(s "try_basis")(&u, basis, num_rows);
        //% if score.weighs then
        $(s "weigh_rows")(a, done, num_rows, &u);
        //% end
        for (int basis = 0; basis < 2; ++basis)
            for (int p = 0; p < $(s "num_pieces"); ++p)
                $(s "cost_rows")(a->tables, &u, u.e[basis][0], num_rows, p * piece, (p + 1) * piece,
                            u.cost[basis][p]);
        uint32_t choices[$(R // unit)];
        for (int r = 0; r < num_rows; r += $(unit))
            choices[r / $(unit)] = $(s "choose_pieces")(&u, r, $(unit));
        for (int i = 0; i < 2; ++i)
            $(s "cost_rows")(a->tables, &u, u.e[2 * i][0], num_rows, 0, $(s "dim"), u.whole[i]);
        for (int r = 0; r < num_rows; r += $(unit)) {
            const int head = $(s "sum_costs")(u.whole[1], r, $(unit))
                             < $(s "sum_costs")(u.whole[0], r, $(unit));
            $(s "put_unit")(a->page, &u, head ? 0x80000000u : choices[r / $(unit)], r, $(unit),
                       a->first_row + done + r);
        }
    }
}
