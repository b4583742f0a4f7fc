// choose_rows.cuh -- rows become codes, each unit in the bases that cost it least.
//
// gen/parts/choose_unit.lua defines the choice, the part of stage score what an error costs.  The
// rows of a unit pass eight times, 16 at a time, rotated by a choice: in each of the three bases to
// be fitted; in each to be scored, as what their codes leave of them, rotated back; as the pieces
// are chosen to be scored; and as all is chosen to become codes.
//% local score, per_token = codec.parts.score, codec.axis == "per_token"
//% local fit, columns = codec.parts.fit, codec.score_rows
//% local weights = score.weighs and (columns < 64 and columns or 64) or 0
//% local num_pieces = codec.head_dim // codec.choice_piece
//% local row_groups = per_token and codec.head_dim // codec.group_size or codec.head_dim
//% local groups = per_token and 16 * row_groups or row_groups

enum { $(s "num_pieces") = $(num_pieces), $(s "row_groups") = $(row_groups) };

// Of a group in one basis: codes, scale | zero << 16.
typedef struct $(s "trial") {
    float    scale, offset, inverse;
    uint32_t codes;
} $(s "trial");

typedef struct $(s "trials") {
    float    x[16 * $(s "row_stride")];
    //% if weights > 0 then
    float    weights[16][$(weights)];              // of calibration queries on the rows
    //% end
    $(s "trial") of[3][$(groups)];
    float    cost[2][$(num_pieces)][16], whole[2][16];
    uint32_t choices[16];                          // of rows, or one
} $(s "trials");

// The group of a row of a tile and a channel among the trials.
INLINE int $(s "trial_at")(int row, int channel)
{
    //% if per_token then
    return row * $(s "row_groups") + channel / $(s "group_size");
    //% else
    (void)row;
    return channel;
    //% end
}

INLINE void $(s "keep_trial")($(s "trial")* t, bool is_first, int basis, float lo, float hi)
{
    $(s "pair") pair;
    const $(s "grid") grid = $(s "fit_grid")(&pair, is_first ? basis == 2 : -1, lo, hi);
    t->scale = pair.scale;
    t->offset = grid.offset;
    t->inverse = grid.inverse;
    t->codes = pair.scale_code | pair.zero_code << 16;
}

//% if per_token then
// Fits the rows of a tile in a basis.  A thread has a group of a row.
INLINE void $(s "fit_basis")(int basis, $(s "trials")* t)
{
#pragma unroll 1
    for (int item = threadIdx.x; item < $(groups); item += cta_threads) {
        const int row = item % 16, channel = item / 16 * $(s "group_size");
        const float* of = t->x + row * $(s "row_stride") + channel;
        float lo = of[0], hi = of[0];
#pragma unroll 4
        for (int i = 1; i < $(s "group_size"); ++i) {
            lo = least(of[i], lo);
            hi = most(of[i], hi);
        }
        const int at = $(s "trial_at")(row, channel);
        $(s "keep_trial")(&t->of[basis][at], channel == 0, basis, lo, hi);
    }
}
//% else
// Fits the rows of a unit in a basis, tile by tile.  A thread has channels; until the last tile is
// there, scale and offset of a trial are the least and the greatest value.
INLINE void $(s "fit_basis")(bool is_first, bool is_last, int basis, $(s "trials")* t)
{
#pragma unroll 1
    for (int channel = threadIdx.x; channel < $(s "dim"); channel += cta_threads) {
        $(s "trial")* of = &t->of[basis][channel];
        float lo = is_first ? t->x[channel] : of->scale, hi = is_first ? lo : of->offset;
#pragma unroll 4
        for (int row = 0; row < 16; ++row) {
            lo = least(t->x[row * $(s "row_stride") + channel], lo);
            hi = most(t->x[row * $(s "row_stride") + channel], hi);
        }
        of->scale = lo;
        of->offset = hi;
        if (is_last) $(s "keep_trial")(of, channel == 0, basis, lo, hi);
    }
}
//% end

INLINE $(s "trial")* $(s "trial_of")($(s "trials")* t, int row, int channel)
{
    const int basis = $(s "basis_of")(t->choices[$(per_token and "row" or "0")], channel);
    return &t->of[basis][$(s "trial_at")(row, channel)];
}

// Codes of the rows of a tile take their place, as bits; or what they leave.
INLINE void $(s "round_tile")(bool to_errors, $(s "trials")* t)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < 16 * $(s "dim"); i += cta_threads) {
        const int row = i / $(s "dim"), channel = i % $(s "dim");
        float* x = t->x + row * $(s "row_stride") + channel;
        const $(s "trial") of = *$(s "trial_of")(t, row, channel);
        $(s "grid") grid;
        grid.offset = of.offset;
        grid.inverse = of.inverse;
        const uint32_t code = $(s "code_of")(*x, grid);
        *x = to_errors ? *x - (of.scale * to_float(code) + of.offset) : float_of(code);
    }
    __syncthreads();
}

// Rows of a tile rotated by the choices, bases as in rotate; or what codes leave of them, rotated
// back.
INLINE void $(s "load_trial")(const $(s "unit")& u, int tile, int first, int end, uint32_t bases,
                         bool to_errors, $(s "trials")* t)
{
#pragma unroll 1
    for (int back = 0; back < (to_errors ? 2 : 1); ++back) {
        if (back) $(s "round_tile")(true, t);
        else $(s "load_tile")(u, tile, first, end, t->x);
        $(s "rotate")(t->x, 16, $(s "row_stride"), t->choices, $(per_token and 1 or 0), bases);
    }
}

//% if weights > 0 then
// The weight of calibration queries [begin, begin + $(weights)) on the plain keys of a tile:
// p = min(1, exp(q . k - L)).  A warp has four rows, a lane a query.
INLINE void $(s "weigh_rows")(const $(s "unit")& u, int tile, int first, int end, int begin,
                         $(s "trials")* t)
{
    const float* of = u.record + $(codec.table_at(score.columns));
    const float* lse = u.record + $(codec.table_at(score.normalisers));
    const int row0 = threadIdx.x / 32 * 4;
    const uint16_t* keys[4];
    for (int r = 0; r < 4; ++r) {
        const int row = least_of(most_of(tile * 16 + row0 + r, first), end - 1);
        keys[r] = u.ring + (u.row + row) % u.ring_rows * (int64_t)$(s "dim");
    }
    __syncthreads();
#pragma unroll 1
    for (int n = threadIdx.x % 32; n < $(weights) && begin + n < $(columns); n += 32) {
        float sum[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
#pragma unroll 2
        for (int i = 0; i < $(s "dim"); ++i) {
            const float q = of[i * $(columns) + begin + n];
            for (int r = 0; r < 4; ++r) sum[r] = mul_add(f32_of_row(keys[r][i]), q, sum[r]);
        }
        for (int r = 0; r < 4; ++r)
            t->weights[row0 + r][n] = expf(least(sum[r] - lse[begin + n], 0.0f));
    }
    __syncthreads();
}

//% end
// What the errors in x cost in channels [first, end) joins out [16].  A warp has four rows, a lane
// a column, of queries from `begin` on.
INLINE void $(s "add_cost")(const float* record, const $(s "trials")* t, int begin, int first,
                       int end, float* out)
{
    const int row0 = threadIdx.x / 32 * 4, lane = threadIdx.x % 32;
    const float* e = t->x + row0 * $(s "row_stride");
    float total[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    //% if score.product then
    const float* of = record + $(codec.table_at(score.columns));
    //% if weights > 0 then
    of += begin;
#pragma unroll 1
    for (int n = lane; n < $(weights) && begin + n < $(columns); n += 32) {
    //% else
    (void)begin;
#pragma unroll 1
    for (int n = first + lane; n < end; n += 32) {
    //% end
        float sums[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
#pragma unroll 2
        for (int i = first; i < end; ++i) {
            const float column = of[i * $(columns) + n];
            for (int r = 0; r < 4; ++r)
                sums[r] = mul_add(e[r * $(s "row_stride") + i], column, sums[r]);
        }
        for (int r = 0; r < 4; ++r) {
            const float sum = sums[r];
            //% if weights > 0 then
            const float weight = t->weights[row0 + r][n];
            //% else
            const float error = e[r * $(s "row_stride") + n];
            //% end
            total[r] = $((score.product:gsub("TOTAL", "total[r]")));
        }
    }
    //% else
    (void)record;
    (void)begin;
    for (int i = first + lane; i < end; i += 32)
        for (int r = 0; r < 4; ++r) {
            const float x = e[r * $(s "row_stride") + i];
            total[r] = mul_add(x, x, total[r]);
        }
    //% end
    for (int r = 0; r < 4; ++r) {
        const float sum = warp_sum(total[r]);
        if (lane == 0) out[row0 + r] += sum;
    }
}

// The errors of a tile's rows join the costs: of each piece, or of the whole head.
INLINE void $(s "score_tile")(const $(s "unit")& u, int tile, int first, int end, int step,
                         float* costs, $(s "trials")* t)
{
    //% if weights > 0 then
#pragma unroll 1
    for (int begin = 0; begin < $(columns); begin += $(weights)) {
        $(s "weigh_rows")(u, tile, first, end, begin, t);
    //% else
    {
        const int begin = 0;
    //% end
#pragma unroll 1
        for (int p = 0; p * step < $(s "dim"); ++p)
            $(s "add_cost")(u.record, t, begin, p * step, (p + 1) * step, costs + p * 16);
    }
}

// The cost of the unit of a row.
INLINE float $(s "unit_cost")(const float* cost, int row)
{
    //% if per_token then
    return cost[row];
    //% else
    float sum = 0.0f;
    (void)row;
#pragma unroll 4
    for (int r = 0; r < 16; ++r) sum += cost[r];
    return sum;
    //% end
}

// Puts the pieces that are better rotated, or with is_last the head, where it is better, in the
// rows' choices.
INLINE void $(s "take_choices")(bool is_last, $(s "trials")* t)
{
    const int row = threadIdx.x;
    __syncthreads();
    if (row < 16) {
        uint32_t choice = is_last ? t->choices[row] : 0;
#pragma unroll 1
        for (int p = 0; p < $(num_pieces) && !is_last; ++p)
            choice |= (uint32_t)($(s "unit_cost")(t->cost[1][p], row)
                                 < $(s "unit_cost")(t->cost[0][p], row)) << p;
        if (is_last && $(s "unit_cost")(t->whole[1], row) < $(s "unit_cost")(t->whole[0], row))
            choice = 0x80000000u;
        t->choices[row] = choice;
    }
    __syncthreads();
}

// The metadata of rows [first, end) of a tile, with their flags.
INLINE void $(s "put_pairs")(const $(s "unit")& u, int tile, int first, int end, $(s "trials")* t)
{
#pragma unroll 1
    for (int item = threadIdx.x; item < $(groups); item += cta_threads) {
        //% if per_token then
        const int row = item / $(s "row_groups");
        const int channel = item % $(s "row_groups") * $(s "group_size");
        //% else
        const int row = 0, channel = item;
        //% end
        const int of = tile * 16 + row;
        if (of < first || of >= end) continue;
        const uint32_t codes = $(s "trial_of")(t, row, channel)->codes;
        const uint32_t flag = $(s "basis_of")(t->choices[row], channel) == 1
                              && channel % $(codec.choice_piece) == 0;
        const uint32_t scale_code = (codes & 0xffffu) | flag << $(codec.parts.meta.free_sign);
        $(s "put_pair")(u.page, $(s "group")(channel, of), scale_code, codes >> 16);
    }
}

// The choices of a pass: one of the bases for all rows, or what came of the scores.
INLINE void $(s "set_choices")(int pass, $(s "trials")* t)
{
    if (pass >= 6) {
        $(s "take_choices")(pass == 7, t);
        return;
    }
    __syncthreads();
    if (threadIdx.x < 16)
        t->choices[threadIdx.x] = pass % 3 == 2 ? 0x80000000u : pass % 3 == 1 ? 0x7fffffffu : 0u;
    __syncthreads();
}

// Rows [first, end): a unit, or rows of one tile that are units of their own.
INLINE void $(s "encode_units")(const $(s "unit")& u, int first, int end, $(s "trials")* t)
{
    __syncthreads();
    for (int i = threadIdx.x; i < $(2 * num_pieces * 16 + 32); i += cta_threads)
        t->cost[0][0][i] = 0.0f;
#pragma unroll 1
    for (int pass = 0; pass < 8; ++pass) {
        const int basis = pass % 3;
        const bool fits = pass < 3, scores = pass >= 3 && pass < 7, by_piece = pass < 5;
        const uint32_t bases = pass == 7 ? 6u : pass == 6 ? 2u : 1u << basis;
        float* costs = by_piece ? t->cost[basis][0] : t->whole[pass == 5];
        $(s "set_choices")(pass, t);
        if (pass == 7) $(s "put_pairs")(u, first / 16, first, end, t);
#pragma unroll 1
        for (int tile = first / 16; tile * 16 < end; ++tile) {
            $(s "load_trial")(u, tile, first, end, bases, scores, t);
            if (fits) {
                //% if per_token then
                $(s "fit_basis")(basis, t);
                //% else
                $(s "fit_basis")(tile * 16 == first, tile * 16 + 16 == end, basis, t);
                //% end
            } else if (scores) {
                $(s "score_tile")(u, tile, first, end,
                             by_piece ? $(codec.choice_piece) : $(codec.head_dim), costs, t);
            } else {
                $(s "round_tile")(false, t);
                $(s "put_tile")(u, tile, first, end, t->x);
            }
        }
    }
}

INLINE void $(s "encode_unit")(const $(s "unit")& u, int first, int end)
{
    __shared__ $(s "trials") t;
    //% local rows = per_token and 16 or codec.group_size
#pragma unroll 1
    for (int row = first; row < end; row = row / $(rows) * $(rows) + $(rows))
        $(s "encode_units")(u, row, least_of(end, row / $(rows) * $(rows) + $(rows)), &t);
}
