// attend_pages.c -- attention of num_heads queries over rows of pages, on the codes.
//
// A strip of some pages, or of a part of one, at a time: its keys are scored tile by tile, the
// scores become weights, and its values are added.  Each cell is read and unpacked once for all
// heads; o is in the value codec's basis.  While a part is worked on, the same part of the next
// strip comes into the caches: a whole strip ahead, and a few lines at a time, since the processor
// has few buffers for misses and a burst of them waits.

//% local k, v = sides[1], sides[2]
// One thread's memory of a call.
typedef struct workspace {
    LINE float scores[num_heads][strip_words];
    //% for _, side in ipairs(sides) do
    //% for _, set in ipairs(side.sets) do
    $(set.side .. "_" .. set.work) $(set.side);
    //% end
    //% end
} workspace;

// Rows [first, end) of a strip, counted from its first row, which is row `skip` of its first page.
typedef struct strip {
    const kvl__attend_args*     a;
    const unsigned char* const* pages;       // [num_pages]
    int                         num_pages, skip, first, end;
    int                         num_next;    // pages strip_pages after these that there are
} strip;

//% local fetches_k, fetches_v = k.raw == "none", v.raw == "none" and v.math ~= "tile"
//% if fetches_k or fetches_v then
// Part `i` of `parts` of the `bytes` bytes at `offset` of the page that is strip_pages after page
// `page` of a strip.  For codes alone: rows of 16 bits come as one long stream, which the processor
// fetches by itself, and asking for it costs a fifth of the time.
INLINE void fetch_part(const strip* s, int page, int64_t offset, int bytes, int i, int parts)
{
    const int lines = (bytes + 64 * parts - 1) / (64 * parts);
    if (page >= s->num_next) return;
    const unsigned char* at = s->pages[page + strip_pages] + offset + i * 64 * lines;
    for (int n = 0; n < lines; ++n) __builtin_prefetch(at + 64 * n);
}

//% end
// While a tile of a page's keys is worked on.
INLINE void fetch_keys(const strip* s, int page, int tile)
{
    //% if fetches_k then
    fetch_part(s, page, s->a->k_offset, k_page_bytes, tile, page_size / 16);
    //% else
    (void)s, (void)page, (void)tile;
    //% end
}

// While part `i` of `parts` of a page's values is.
INLINE void fetch_values(const strip* s, int page, int i, int parts)
{
    //% if fetches_v then
    enum { share = page_size / part_rows };
    fetch_part(s, page, s->a->v_offset, v_page_bytes, s->skip / part_rows * parts + i,
               parts * share);
    //% else
    (void)s, (void)page, (void)i, (void)parts;
    //% end
}

//% local fold_tiles = k.fold == "lanes" and k.group_size // 16 or 1
//% if k.restored then
// Scores of restored keys are the runtime's: they begin at 0.
INLINE void score_tiles(const strip* s, int page, int first, int end, workspace* w, float* scores)
{
    (void)w;
    for (int tile = first / 16; tile * 16 < end; ++tile) fetch_keys(s, page, tile);
    for (int head = 0; head < num_heads; ++head)
        for (int i = 0; i < part_rows; i += lanes)
            store(scores + head * strip_words + i, repeat(0.0f));
}
//% elseif k.math == "int" then
// What the 16-bit queries left joins a tile's scores.
static NOINLINE void add_fine(const float* q, const unsigned char* keys, int tile, workspace* w,
                              float* scores)
{
    LINE float fine[num_heads][16];
    //% if k.fold == "words" then
    k_round_fine(q, head_dim_k, &w->k);
    k_dot_cells(keys, tile, 0, head_dim_k / 16, 0, &w->k.fine, fine[0], 16);
    //% else
    (void)q;
    k_dot_cells(keys, tile, tile + 1, &w->k.fine, fine[0], 16);
    //% end
    for (int head = 0; head < num_heads; ++head)
        for (int i = 0; i < 16; ++i) scores[head * strip_words + i] += fine[head][i];
}

//% end
//% if k.restored then
//% elseif k.math == "int" and k.fold == "lanes" then
// Scores of the tiles of rows [first, end) of the keys of a strip's page, those of row 0 at
// `scores`.
static void score_tiles(const strip* s, int page, int first, int end, workspace* w, float* scores)
{
    const unsigned char* keys = s->pages[page] + s->a->k_offset;
    const float* q = s->a->q;
    const int end_tile = (end + 15) / 16;
    for (int tile = first / 16, stop; tile < end_tile; tile = stop) {
        stop = tile / $(fold_tiles) * $(fold_tiles) + $(fold_tiles);
        if (stop > end_tile) stop = end_tile;
        for (int i = tile; i < stop; ++i) fetch_keys(s, page, i);
        k_fold_dots(keys, tile, &w->k);
        k_dot_cells(keys, tile, stop, &w->k.main, scores + tile * 16, strip_words);
        for (int i = tile; w->k.needs_fine && i < stop; ++i)
            add_fine(q, keys, i, w, scores + i * 16);
    }
}
//% elseif k.math == "int" then
// Scores of the tiles of rows [first, end) of the keys of a strip's page, those of row 0 at
// `scores`.
static void score_tiles(const strip* s, int page, int first, int end, workspace* w, float* scores)
{
    const unsigned char* keys = s->pages[page] + s->a->k_offset;
    const float* q = s->a->q;
    for (int tile = first / 16; tile * 16 < end; ++tile) {
        fetch_keys(s, page, tile);
        w->k.needs_fine = k_is_coarse(keys, tile, first - tile * 16, end - tile * 16, &w->k);
        k_dot_cells(keys, tile, 0, head_dim_k / 16, 0, &w->k.main, scores + tile * 16, strip_words);
        if (w->k.needs_fine) add_fine(q, keys, tile, w, scores + tile * 16);
    }
}
//% else
// Scores of the tiles of rows [first, end) of the keys of a strip's page, those of row 0 at `to`.
static void score_tiles(const strip* s, int page, int first, int end, workspace* w, float* to)
{
    const unsigned char* keys = s->pages[page] + s->a->k_offset;
    const float* q = s->a->q;
    for (int tile = first / 16; tile * 16 < end; ++tile) {
        float* scores = to + tile * 16;
        fetch_keys(s, page, tile);
        //% for _, set in ipairs(k.sets) do
        //% local from = (set.first > 0 and set.first .. " + " or "") .. "slot * 16"
        //% local at = set.at > 0 and "keys + " .. set.at or "keys"
        if (tile == first / 16 || $(set.side .. "_fold_is_due")(tile)) {
            //% if k.flagged and k.along_lanes then
            const uint32_t choice = k_read_choice(keys, tile * 16);
            //% end
            for (int slot = 0; slot < $(set.side .. "_slots"); ++slot) {
                //% if k.flagged then
                //% local of = k.along_lanes and "k_basis_of(choice, slot * 16)"
                //% of = of or "slot / (head_dim_k / 16)"
                const int at = slot % (head_dim_k / 16);
                const float* copy = q + $(of) * (num_heads * head_dim_k);
                k_fold(keys, tile, at, copy + at * 16, head_dim_k, &w->k, slot);
                //% else
                $(set.side .. "_fold")($(at), tile, slot, q + $(from), head_dim_k,
                                       &w->$(set.side), slot);
                //% end
            }
        }
        //% end
        for (int head = 0; head < num_heads; ++head)
            for (int i = 0; i < 16; i += lanes)
                store(scores + head * strip_words + i, repeat(0.0f));
        //% for _, set in ipairs(k.sets) do
        //% local at = set.at > 0 and "keys + " .. set.at or "keys"
        for (int slot = 0; slot < $(set.side .. "_slots"); ++slot)
            $(set.side .. "_add_cell")($(at), tile, slot % ($(set.side .. "_dim") / 16),
                                       &w->$(set.side), slot, scores, strip_words);
        //% end
    }
}
//% end

//% if k.norms and not k.restored then
// Scores of rows [first, end) of a page's keys, those of row 0 at `scores`, times their norms.
static void scale_scores(const unsigned char* keys, int first, int end, float* scores)
{
    for (int row = first; row < end; ++row) {
        const float norm = f32_of_e5m3(keys[$(k.layout.slots_at) + row]);
        for (int head = 0; head < num_heads; ++head) scores[head * strip_words + row] *= norm;
    }
}

//% end
// The rows of page i of a strip: [*first, *end), counted from the page's first row.
INLINE void rows_of(const strip* s, int i, int* first, int* end)
{
    const int before = i * part_rows;
    *first = (s->first > before ? s->first - before : 0) + s->skip;
    *end = (s->end - before < part_rows ? s->end - before : part_rows) + s->skip;
}

static void score_strip(const strip* s, workspace* w)
{
    for (int i = 0, first, end; i < s->num_pages; ++i) {
        rows_of(s, i, &first, &end);
        if (first >= end) continue;
        //% local skipped = k.restored and "" or " - s->skip"
        score_tiles(s, i, first, end, w, &w->scores[0][i * part_rows]$(skipped));
        //% if k.norms and not k.restored then
        scale_scores(s->pages[i] + s->a->k_offset, first, end,
                     &w->scores[0][i * part_rows] - s->skip);
        //% end
        //% if k.adds then
        const int64_t page = s->pages - s->a->pages + i;
        s->a->add_shifts(s->a->shifts, page * page_size + s->skip, end - s->skip,
                         &w->scores[0][i * part_rows], strip_words);
        //% end
    }
}

//% if v.math == "int" and v.fold == "lanes" then
// Values join o, times the weights of the strip.
static void add_values(const strip* s, workspace* w, float* o)
{
    v_strip values;
    enum { room = sizeof values.pages / sizeof values.pages[0] };
    values.skip = s->skip;
    for (int i = 0; i < room; ++i)
        values.pages[i] = s->pages[i < s->num_pages ? i : 0] + s->a->v_offset;
    v_set_plain(w->scores[0], &w->v);
    for (int at = 0; at < head_dim_v / 16; ++at) {
        for (int i = 0; i < s->num_pages; ++i) fetch_values(s, i, at, head_dim_v / 16);
        if (v_fold_is_due(at)) v_fold_dots(&values, at, s->first, s->end, w->scores[0], &w->v);
        v_dot_cells(&values, at, s->first / 16, (s->end + 15) / 16, &w->v.main, o + at * 16,
                    head_dim_v);
    }
}
//% else
//% if v.math == "int" then
// Values of rows [first, end) of a strip's page join o, times the strip's W.  Rows that are not
// visible have weight zero, and codes are numbers whatever their memory holds.
static void add_part(const strip* s, int page, int first, int end, workspace* w, float* o)
{
    const unsigned char* values = s->pages[page] + s->a->v_offset;
    const int first_cell = (s->skip - page * part_rows) / 16;
    for (int at = 0; at < head_dim_v / 16; ++at) {
        fetch_values(s, page, at, head_dim_v / 16);
        v_dot_cells(values, at, first / 16, (end + 15) / 16, first_cell, &w->v.main, o + at * 16,
                    head_dim_v);
    }
}
//% elseif v.math == "tile" then
// Values of rows [first, end) of a strip's page join o, times weights.  Rows that are not visible
// are zeros, whatever their memory holds.
static void add_part(const strip* s, int page, int first, int end, workspace* w, float* o)
{
    const unsigned char* values = s->pages[page] + s->a->v_offset;
    const float* weights = w->scores[0] + page * part_rows - s->skip;
    for (int row = first / 16 * 16; row < end; row += 16) {
        const int from = first > row ? first - row : 0, to = end < row + 16 ? end - row : 16;
        for (int at = 0; at < head_dim_v / 16; ++at) {
            v_read_tile(values, row / 16, at, from, to, &w->v);
            v_add_tile(&w->v, from, to, weights + row, o + at * 16);
        }
    }
}
//% else
// A whole tile's values, times weights [num_heads, strip_words], join o [num_heads, head_dim_v].
static void add_tile(const unsigned char* values, int tile, const float* weights, workspace* w,
                     float* o)
{
    //% for _, set in ipairs(v.sets) do
    //% local of = set.at > 0 and "values + " .. set.at or "values"
    //% local to = (set.first > 0 and set.first .. " + " or "") .. "at * 16"
    for (int at = 0; at < $(set.side .. "_dim") / 16; ++at) {
        if (at == 0 || $(set.side .. "_fold_is_due")(at))
            $(set.side .. "_fold")($(of), at, tile, weights, strip_words, &w->$(set.side), 0);
        $(set.side .. "_add_cell")($(of), at, tile, &w->$(set.side), 0, o + $(to), head_dim_v);
    }
    //% end
}

// One row's values join o.  Rows of a tile that are not visible are not read: whatever their memory
// holds, it may decode to no number.
static void add_row(const unsigned char* values, int row, const float* weights, float* o)
{
    for (int i = 0; i < head_dim_v; ++i) {
        const float x = v_read_value(values, row, i);
        for (int head = 0; head < num_heads; ++head)
            o[head * head_dim_v + i] += weights[head * strip_words] * x;
    }
}

// Values of rows [first, end) of a strip's page join o, times weights.
static void add_part(const strip* s, int page, int first, int end, workspace* w, float* o)
{
    const unsigned char* values = s->pages[page] + s->a->v_offset;
    const float* weights = w->scores[0] + page * part_rows - s->skip;
    for (int row = first / 16 * 16; row < end; row += 16) {
        fetch_values(s, page, (row - s->skip) / 16, part_rows / 16);
        if (row >= first && row + 16 <= end) {
            add_tile(values, row / 16, weights + row, w, o);
            continue;
        }
        for (int i = row; i < row + 16; ++i)
            if (i >= first && i < end) add_row(values, i, weights + i, o);
    }
}
//% end

// Values join o, times the weights of the strip.
static void add_values(const strip* s, workspace* w, float* o)
{
    //% if v.math == "int" then
    v_round_dots(w->scores[0], strip_words, &w->v);
    //% end
    for (int i = 0, first, end; i < s->num_pages; ++i) {
        rows_of(s, i, &first, &end);
        if (first >= end) continue;
        add_part(s, i, first, end, w, o);
    }
}
//% end

static void attend_strip(const strip* s, softmax* state, workspace* w)
{
    const kvl__attend_args* a = s->a;
    const int64_t page = s->pages - a->pages, position = a->position + page * page_size + s->skip;
    score_strip(s, w);
    for (int head = 0; head < num_heads; ++head) {
        //% if k.shift and not k.restored then
        for (int i = 0; i < strip_words; i += lanes)
            store(&w->scores[head][i], load(&w->scores[head][i]) + a->bias[head]);
        //% end
        softmax_add(state, a, head, w->scores[head], strip_words, s->first, s->end, position);
    }
    add_values(s, w, a->o);
    //% if v.slots > 0 and not v.is_key then
    for (int i = 0, first, end; i < s->num_pages; ++i) {
        rows_of(s, i, &first, &end);
        v_add_slots(s->pages[i] + a->v_offset, w->scores[0] + i * part_rows, s->skip, first, end,
                    a->o);
    }
    //% end
}

// The pages of a strip that begins at a row, up to end_row.
INLINE int count_pages(int64_t row, int64_t end_row)
{
    const int64_t end = row + strip_rows < end_row ? row + strip_rows : end_row;
    return end > row ? (int)((end - 1) / page_size - row / page_size + 1) : 0;
}

static void attend_pages(const kvl__attend_args* a)
{
    workspace* w = (workspace*)(((uintptr_t)a->scratch + 63) & ~(uintptr_t)63);
    softmax state;
    softmax_start(&state, a->o);
    //% if k.math == "int" and k.fold == "lanes" then
    k_start_dots(a->q, &w->k);
    //% elseif k.math == "int" then
    k_round_dots(a->q, head_dim_k, &w->k);
    //% end
    int64_t row = a->first_row / strip_rows * strip_rows;
    for (; row < a->end_row; row += strip_rows) {
        const int64_t left = a->end_row - row;
        strip s;
        s.a = a;
        s.pages = a->pages + row / page_size;
        s.num_pages = count_pages(row, a->end_row);
        s.skip = (int)(row % page_size);
        s.first = row < a->first_row ? (int)(a->first_row - row) : 0;
        s.end = left < strip_rows ? (int)left : strip_rows;
        s.num_next = count_pages(row + strip_pages * page_size, a->end_row);
        attend_strip(&s, &state, w);
    }
    softmax_finish(&state, a->o, a->lse);
}
