// encode_rows.cu -- rows of rings become codes of pages: transform, fit, round, pack.
//
//   grid  units, num_kv_heads, num_seqs: $(codec.unit_rows) rows of a page at most
//
// Rows that are due when a.items are appended, and not encoded before.  A unit shares neither words
// nor groups with others.  Nothing in here may be fused or reordered where it decides a code: every
// target gets the same bits.

//% local fit = codec.parts.fit
//% local row_stride = codec.head_dim + 1
enum { $(s "unit_rows") = $(codec.unit_rows) };
enum { $(s "row_stride") = $(row_stride) };          // + 1: rows begin in different banks

// One unit of one sequence and head.
typedef struct $(s "unit") {
    const uint16_t* ring;
    int32_t         row;           // the first row of the page, counted after the sink
    int32_t         ring_rows, sink_len;
    unsigned char*  page;
    const float*    record;
    //% if codec.unrotated then
    const double*   turns;         // see turn.cuh
    //% end
    //% if codec.across then
    int64_t         head_stride;   // from a head's ring to the next one's; `ring` is that of head 0
    int             num_kv_heads;
    //% end
    //% if codec.predicted then
    $(s "predictor") predictor;
    //% end
} $(s "unit");

//% if codec.clips_row then
// Brings each of `rows` rows to the bound +-b, b the magnitude that $(codec.clips_row) of its
// values are not beyond: the greatest b, bit by bit, that at most as many are below.  A warp has a
// row.
INLINE void $(s "clip_rows")(float* x, int rows)
{
    enum { rank = $(codec.clips_row) };
    const int lane = threadIdx.x % 32;
    __syncthreads();
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < rows; row += cta_warps) {
        float* of = x + row * $(s "row_stride");
        uint32_t bound = 0;
#pragma unroll 1
        for (int bit = 30; bit >= 0; --bit) {
            const uint32_t trial = bound | 1u << bit;
            float below = 0.0f;
            for (int i = lane; i < $(s "dim"); i += 32)
                below += (bits_of(of[i]) & 0x7fffffffu) < trial ? 1.0f : 0.0f;
            if (warp_sum(below) <= (float)rank) bound = trial;
        }
        for (int i = lane; i < $(s "dim"); i += 32)
            of[i] = clamp(of[i], -float_of(bound), float_of(bound));
    }
    __syncthreads();
}

//% end
//% if codec.across then
#include "across.cuh"

//% else
// A value of a row of the page as the row is stored: of keys before RoPE turned back, without what
// its position gave it, as the window would hold it.
INLINE float $(s "stored_value")(const $(s "unit")& u, int row, int channel)
{
    const uint16_t* of = u.ring + (u.row + row) % u.ring_rows * (int64_t)$(s "dim");
    float value = f32_of_row(of[channel]);
    //% if codec.unrotated then
    if ($(s "does_turn")(u.turns, channel)) {
        int other;
        $(s "pair_of")(u.turns, channel, &other);
        value = $(s "turned")(u.turns, (int64_t)u.sink_len + u.row + row, -1.0, channel, value,
                         f32_of_row(of[other]));
        //% if not codec.predicted then                    -- else it is when that is subtracted
        value = f32_of_row(row_of_f32(value));
        //% end
    }
    //% end
    //% if codec.by_position then
    value -= $(s "turned_mean")(u.record, (int64_t)u.sink_len + u.row + row, channel);
    value = f32_of_row(row_of_f32(value));
    //% end
    return value;
}

//% end
//% if codec.slots > 0 then
#include "sparse.cuh"

//% end
//% if codec.promoted > 0 then
#include "promote.cuh"
#include "strongest.cuh"

//% end
//% if codec.sketches > 0 then
#include "sketch.cuh"

//% end
//% if codec.norms then
// The norm of a row as it is stored: gen/parts/token_norm.lua.
INLINE uint32_t $(s "norm_code")(const float* x)
{
    float sum = 0.0f;
#pragma unroll 4
    for (int i = 0; i < $(s "dim"); ++i) sum += squared(clamp(x[i], -0x1p57f, 0x1p57f));
    const float norm = square_root(sum / (float)$(s "dim"));
    const uint32_t code = e5m3_of_f32(norm);
    return norm > 0.0f && code == 0 ? 1 : code;
}

// Rows [from, from + rows) of the page are divided by their norms; those of [first, end) are
// stored.
template <int rows>
INLINE void $(s "divide_rows")(const $(s "unit")& u, int from, int first, int end, float* x)
{
    __shared__ float norms[rows];
    __syncthreads();
    for (int i = threadIdx.x; i < rows; i += cta_threads) {
        const uint32_t code = $(s "norm_code")(x + i * $(s "row_stride"));
        norms[i] = f32_of_e5m3(code);
        if (from + i >= first && from + i < end)
            u.page[$(codec.layout.slots_at) + from + i] = (unsigned char)code;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rows * $(s "dim"); i += cta_threads) {
        float* at = x + i / $(s "dim") * $(s "row_stride") + i % $(s "dim");
        if (norms[i / $(s "dim")] > 0.0f) *at /= norms[i / $(s "dim")];
        //% if codec.clamps then
        *at = clamp(*at, -$(codec.clamp_bound), $(codec.clamp_bound));
        //% end
    }
}

//% end
// Rows [from, from + rows) of the page in the codec's basis; of them [first, end) are read.
template <int rows>
INLINE void $(s "load_rows")(const $(s "unit")& u, int from, int first, int end, float* x)
{
    __syncthreads();
    //% if codec.across then
    $(s "load_across")(u, from, rows, first, end, x);
    //% else
    //% local by_position = codec.unrotated or codec.by_position    -- much code for each value
#pragma unroll $(by_position and 1 or 4)
    for (int i = threadIdx.x; i < rows * $(s "dim"); i += cta_threads) {
        const int row = from + i / $(s "dim"), channel = i % $(s "dim");
        float value = 0.0f;
        if (row >= first && row < end) value = $(s "stored_value")(u, row, channel);
        //% if codec.shift then
        value -= u.record[$(codec.table_at(codec.shift.subtract)) + channel];
        //% end
        //% if codec.clamps and not codec.norms then
        value = clamp(value, -$(codec.clamp_bound), $(codec.clamp_bound));
        //% end
        x[i / $(s "dim") * $(s "row_stride") + channel] = value;
    }
    //% end
    //% if codec.predicted then
    uint32_t wanted = 0;
    for (int r = 0; r < rows; ++r)
        wanted |= (uint32_t)(from + r >= first && from + r < end) << r;
    $(s "add_predicted")<rows>(u.predictor, u.row + from, wanted, -1.0f, $(s "row_stride"), x);
    //% end
    //% if codec.norms then
    $(s "divide_rows")<rows>(u, from, first, end, x);
    //% end
    $(s "to_basis")<rows>(x, $(s "row_stride"), u.record);
    //% if codec.base then
#pragma unroll 1
    for (int i = threadIdx.x; i < rows * $(s "dim"); i += cta_threads)
        x[i / $(s "dim") * $(s "row_stride") + i % $(s "dim")] /=
            u.record[$(codec.table_at(codec.base)) + i % $(s "dim")];
    __syncthreads();
    //% end
    //% if codec.clips_row then
    $(s "clip_rows")(x, rows);
    //% end
}

INLINE void $(s "load_tile")(const $(s "unit")& u, int tile, int first, int end, float* x)
{
    $(s "load_rows")<16>(u, tile * 16, first, end, x);
    //% if codec.slots > 0 then
    $(s "fill_slots")(u, tile * 16, first, end, x);
    //% end
}

//% if not codec.empty and not codec.is_split then
#include "put_cells.cuh"

INLINE void $(s "put_tile")(const $(s "unit")& u, int tile, int first, int end, const float* x)
{
    $(s "put_cells")(u.page, tile, first, end, x, $(s "row_stride"), 0, $(s "dim"));
}

//% end
//% if codec.empty then
INLINE void $(s "encode_unit")(const $(s "unit")& u, int first, int end)
{
    (void)u, (void)first, (void)end;
}
//% elseif codec.raw ~= "none" then
INLINE void $(s "encode_unit")(const $(s "unit")& u, int first, int end)
{
    __shared__ float x[16 * $(s "row_stride")];
    for (int tile = first / 16; tile * 16 < end; ++tile) {
        $(s "load_tile")(u, tile, first, end, x);
        for (int i = threadIdx.x; i < 16 * $(s "dim"); i += cta_threads) {
            float* at = x + i / $(s "dim") * $(s "row_stride") + i % $(s "dim");
            *at = float_of($(codec.raw .. "_of_f32")(*at));
        }
        __syncthreads();
        $(s "put_tile")(u, tile, first, end, x);
    }
}
//% elseif codec.flagged then
#include "choose_rows.cuh"
//% elseif codec.feedback then
#include "feedback.cuh"
//% elseif codec.path then
#include "paths.cuh"
//% elseif codec.axis == "per_token" then
//% if not codec.is_split then
#include "token_groups.cuh"

//% end
// Groups along the channels of a row, of each set of channels.
INLINE void $(s "encode_unit")(const $(s "unit")& u, int first, int end)
{
    __shared__ float x[16 * $(s "row_stride")];
#pragma unroll 1
    for (int tile = first / 16; tile * 16 < end; ++tile) {
        $(s "load_tile")(u, tile, first, end, x);
        //% for _, set in ipairs(codec.sets) do
        $(set.side .. "_encode_groups")(u.page + $(set.at), u.record, tile, first, end,
                                        $(s "row_stride"), x + $(set.first));
        //% end
        __syncthreads();
        //% for _, set in ipairs(codec.sets) do
        $(set.side .. "_put_cells")(u.page + $(set.at), tile, first, end, x + $(set.first),
                                    $(s "row_stride"), 0, $(set.head_dim));
        //% end
    }
}
//% else
// Channels of a thread: with a search, whose candidates take many registers, one at a time.
//% local all = (codec.head_dim + 127) // 128
//% local each = codec.searches and 1 or all
//% local last_pass = codec.searches and 4 or codec.refit and 2 or 1
//% local most = codec.head_dim < 128 * each and codec.head_dim or 128 * each
//% local many = most < codec.head_dim
enum { $(s "each") = $(each), $(s "last_pass") = $(last_pass) };

// What a thread knows of its channels: statistics, pair and grid, and the candidates of a search.
typedef struct $(s "channels") {
    $(s "grid") grids[$(each)];
    $(s "pair") pairs[$(each)];
    //% for _, stat in ipairs(fit.stats) do
    float $(stat.name .. "s")[$(each)];
    //% end
    //% if codec.refit then
    $(s "level_sums") level_sums[$(each)];
    //% end
    //% if codec.promoted > 0 then
    unsigned char* beside;             // the group's; see promote.cuh
    float          strengths[$(each)];
    int            places[$(each)];    // among the promoted channels; -1: it is none
    uint32_t       low[$(each)];       // of up to four tokens
    //% end
    //% if codec.searches then
    $(s "range")     range[$(each)];
    $(s "candidate") of[$(each)][$(s "candidates")];
    //% end
} $(s "channels");

//% if codec.searches then
INLINE void $(s "start_refits")($(s "channels")* w)
{
#pragma unroll
    for (int i = 0; i < $(each * 8); ++i) $(s "refit_start")(&w->of[i / 8][i % 8]);
}

INLINE void $(s "end_refits")($(s "channels")* w)
{
#pragma unroll
    for (int i = 0; i < $(each * 8); ++i) $(s "refit_end")(&w->of[i / 8][i % 8]);
}

INLINE void $(s "start_search")($(s "channels")* w)
{
#pragma unroll
    for (int i = 0; i < $(each); ++i) {
        w->range[i] = $(s "range_of")(w->los[i], w->his[i]);
#pragma unroll
        for (int k = 0; k < $(s "candidates"); ++k) $(s "search_start")(&w->of[i][k], k);
    }
}

// Candidate 0 of each channel is the pair that it has.
INLINE void $(s "store_candidates")($(s "channels")* w)
{
#pragma unroll
    for (int i = 0; i < $(each); ++i) {
        $(s "search_keep")(&w->of[i][0], w->pairs[i], w->grids[i]);
#pragma unroll
        for (int k = 1; k < $(s "candidates"); ++k)
            $(s "search_store")(&w->of[i][k], w->range[i]);
    }
}

INLINE void $(s "take_best")($(s "channels")* w)
{
#pragma unroll
    for (int i = 0; i < $(each); ++i) {
        float least_error = w->of[i][0].error;
#pragma unroll
        for (int k = 1; k < $(s "candidates"); ++k) {
            if (!w->range[i].found || !(w->of[i][k].error < least_error)) continue;
            least_error = w->of[i][k].error;
            w->grids[i] = $(s "search_take")(&w->pairs[i], w->of[i][k]);
        }
    }
}

//% end
//% if codec.promoted > 0 then
// The channels whose magnitudes have the greatest sums, rising; of equal ones the lower.  Their
// grids are fitted to less than their range.
INLINE void $(s "find_strong")($(s "channels")* w)
{
    __shared__ float strengths[$(s "dim")];
    __shared__ int is_strong[$(s "dim")];
#pragma unroll
    for (int i = 0; i < $(each); ++i) {
        const int channel = i * cta_threads + threadIdx.x;
        if (channel < $(s "dim")) strengths[channel] = w->strengths[i];
    }
    $(s "find_strongest")<$(s "promoted")>(strengths, is_strong);
#pragma unroll
    for (int i = 0; i < $(each); ++i) {
        const int channel = i * cta_threads + threadIdx.x;
        w->places[i] = -1;
        w->low[i] = 0;
        if (channel >= $(s "dim") || !is_strong[channel]) continue;
        const int place = $(s "place_of")(is_strong, channel);
        w->beside[place] = (unsigned char)channel;
        w->places[i] = place;
        w->his[i] = $(s "strong_end")(w->los[i], w->his[i]);
    }
    __syncthreads();
}

// The code of a value of channel i, of token t of the group; its lowest bits take their place.
INLINE uint32_t $(s "promoted_code")($(s "channels")* w, int i, int t, float x)
{
    const $(s "grid") grid = w->grids[i];
    if (w->places[i] < 0) return $(s "code_of")(x, grid);
    const uint32_t level = $(s "fine_level")(x, grid);
    w->low[i] |= (level & 3u) << t % 4 * 2;
    if (t % 4 == 3 || t == $(s "group_size") - 1) {
        w->beside[$(s "promoted") + w->places[i] * $(s "plane_bytes") + t / 4] =
            (unsigned char)w->low[i];
        w->low[i] = 0;
    }
    return level >> 2;
}

//% end
//% local code_of = codec.promoted > 0 and s "promoted_code" .. "(w, i, t, value)"
//%                 or s "code_of" .. "(value, w->grids[i])"
// A value of channel i, of token t of the group, passes, in the last pass to become its code.
INLINE void $(s "pass_value")($(s "channels")* w, int pass, int i, int t, float* at)
{
    const float value = *at;
    if (pass == $(s "last_pass")) {
        *at = float_of($(code_of));
    } else if (pass == 0) {
        //% if codec.promoted > 0 then
        w->strengths[i] = (t == 0 ? 0.0f : w->strengths[i]) + absolute(value);
        //% end
        //% for _, stat in ipairs(fit.stats) do
        {
            const float x = value;
            float& $(stat.name) = w->$(stat.name .. "s")[i];
            if (t == 0) $(stat.name) = $(stat.first);
            else $(stat.name) = $(stat.next);
        }
        //% end
        //% if codec.refit then
    } else {
        if (t == 0) w->level_sums[i] = $(s "no_level_sums")();
        $(s "add_level")(&w->level_sums[i], w->grids[i], value);
        //% elseif codec.searches then
    } else {
#pragma unroll
        for (int k = 0; k < $(s "candidates"); ++k) {
            if (pass == 3) $(s "search_compare")(&w->of[i][k], w->range[i], value);
            else $(s "refit_add")(&w->of[i][k], w->range[i], value);
        }
        //% end
    }
}

INLINE void $(s "end_pass")($(s "channels")* w, int pass)
{
    //% local items = codec.stat_items:gsub("%w+%[", "w->%0")
    //% if codec.promoted > 0 then
    if (pass == 0) $(s "find_strong")(w);
    //% end
    if (pass == 0) {
#pragma unroll
        for (int i = 0; i < $(each); ++i)
            w->grids[i] = $(s "fit_grid")(&w->pairs[i], -1, $(items));
    }
    //% if codec.refit then
    if (pass == 1) {
#pragma unroll
        for (int i = 0; i < $(each); ++i)
            $(s "end_refit")(&w->pairs[i], w->level_sums[i], $(items));
    }
    //% end
    //% if codec.searches then
    if (pass == 0) $(s "start_search")(w);
    if (pass == 1 || pass == 2) $(s "end_refits")(w);
    if (pass == 2) $(s "store_candidates")(w);
    if (pass == 3) $(s "take_best")(w);
    //% end
}

// Groups along tokens: group_size rows at once, each channel from `from` on with a grid of its own.
// Rows pass to be fitted and to be rounded; with a scale that codes ask for three times, also to
// have their levels added up; with a search five times, also twice to be refitted and once to be
// compared.
INLINE void $(s "encode_group")(const $(s "unit")& u, int first, int end, float* x, int from)
{
    $(s "channels") w;
    //% for _, stat in ipairs(fit.stats) do
    for (int i = 0; i < $(each); ++i) w.$(stat.name .. "s")[i] = 0.0f;    // of threads without any
    //% end
    //% if codec.refit then
    for (int i = 0; i < $(each); ++i) w.level_sums[i] = $(s "no_level_sums")();
    //% end
    //% if codec.promoted > 0 then
    w.beside = $(s "beside")(u.page, first);
    for (int i = 0; i < $(each); ++i) w.strengths[i] = 0.0f;
    //% end
#pragma unroll 1
    for (int pass = 0; pass <= $(s "last_pass"); ++pass) {
        //% if codec.searches then
        if (pass == 1 || pass == 2) $(s "start_refits")(&w);
        //% end
#pragma unroll 1
        for (int tile = first / 16; tile * 16 < end; ++tile) {
            const int begin = tile * 16 < first ? first - tile * 16 : 0;
            const int after = end < tile * 16 + 16 ? end - tile * 16 : 16;
            $(s "load_tile")(u, tile, first, end, x);
#pragma unroll
            for (int i = 0; i < $(each); ++i) {
                const int channel = from + i * cta_threads + threadIdx.x;
                if (channel >= $(s "dim")) continue;
#pragma unroll 1
                for (int row = begin; row < after; ++row)
                    $(s "pass_value")(&w, pass, i, tile * 16 + row - first,
                                 x + row * $(s "row_stride") + channel);
            }
            if (pass < $(s "last_pass")) continue;
            __syncthreads();
            //% local channels = many and ("least_of(%d, %d - from)"):format(most, codec.head_dim)
            $(s "put_cells")(u.page, tile, first, end, x + from, $(s "row_stride"), from,
                        $(channels or most));
        }
        $(s "end_pass")(&w, pass);
    }
#pragma unroll
    for (int i = 0; i < $(each); ++i) {
        const int channel = from + i * cta_threads + threadIdx.x;
        const int group = $(s "group")($(codec.word_lane("first", "channel")));
        if (channel < $(s "dim"))
            $(s "put_pair")(u.page, group, w.pairs[i].scale_code, w.pairs[i].zero_code);
    }
}

INLINE void $(s "encode_unit")(const $(s "unit")& u, int first, int end)
{
    enum { group_size = $(codec.group_size) };
    __shared__ float x[16 * $(s "row_stride")];
    for (int row = first; row < end; row += group_size) {
        //% if many then
#pragma unroll 1
        for (int from = 0; from < $(s "dim"); from += $(most))
            $(s "encode_group")(u, row, row + group_size, x, from);
        //% else
        $(s "encode_group")(u, row, row + group_size, x, 0);
        //% end
    }
}
//% end

KERNEL $(s "encode_rows")(const __grid_constant__ kvl__device_append a)
{
    const int head = blockIdx.y;
    const kvl__device_item& item = a.items[blockIdx.z];
    const kvl__device_seq* s = (const kvl__device_seq*)item.seq;
    const int due = quantized_rows(s, a.windows, (int)s->rows + item.num_rows);
    const int unit = (int)s->quantized / $(s "unit_rows") + blockIdx.x;
    const int first = most_of((int)s->quantized, unit * $(s "unit_rows"));
    const int end = least_of(due, (unit + 1) * $(s "unit_rows")), page = first / page_size;
    if (first >= end || page < s->first_page) return;
    const head_windows w = windows_of(s, a.windows, head);
    $(s "unit") u;
    u.ring = w.ring[$(codec.is_key and 0 or 1)];
    u.row = page * page_size;
    u.ring_rows = a.windows.ring_rows;
    u.sink_len = a.windows.sink_len;
    u.page = page_at(s, page, head, $(codec.is_key and 0 or 1));
    u.record = record_of(a.tables, a.table_floats, $(codec.is_key and 0 or 1), head);
    //% if codec.unrotated then
    u.turns = (const double*)a.windows.turns;
    //% end
    //% if codec.across then
    u.ring = windows_of(s, a.windows, 0).ring[0];
    u.head_stride = windows_of(s, a.windows, 1).ring[0] - u.ring;
    u.num_kv_heads = a.windows.num_kv_heads;
    //% end
    //% if codec.predicted then
    u.predictor = $(s "predictor_of")(s, a.windows, head);
    //% end
    $(s "encode_unit")(u, first - u.row, end - u.row);
    //% if codec.sketches > 0 then
    $(s "encode_sketches")(u, first - u.row, end - u.row);
    //% end
}
