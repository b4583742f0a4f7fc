// attend_pages.c -- attention of num_heads queries over rows of pages, on the codes.
//
// A strip of a page at a time: its keys are scored tile by tile, the scores become weights, and its
// values are added.  Each cell is read and unpacked once for all heads; o is in the value codec's
// basis.  While a tile is worked on, the same part of the next page comes into the caches.

//% local k, v = sides[1], sides[2]
// One thread's memory of a call.
typedef struct workspace {
    LINE float scores[num_heads][strip_words];
    //% for _, side in ipairs(sides) do
    $(side.side .. "_" .. side.work) $(side.side);
    //% end
} workspace;

// Part `i` of `parts` of `bytes` bytes of the next page.  For codes alone: rows of 16 bits come as
// one long stream, which the processor fetches by itself, and asking for it costs a fifth of the
// time.
INLINE void fetch_part(const unsigned char* next, int64_t bytes, int i, int parts)
{
    const int64_t end = bytes * (i + 1) / parts;
    for (int64_t at = bytes * i / parts; at < end; at += 64) __builtin_prefetch(next + at);
}

//% if k.restored then
// Scores of restored keys are the runtime's: they begin at 0.
static void score_tiles(const unsigned char* next, int tiles, workspace* w)
{
    for (int i = 0; i < tiles; ++i) fetch_part(next, k_page_bytes, i, tiles);
    for (int head = 0; head < num_heads; ++head)
        for (int i = 0; i < strip_words; i += lanes) store(&w->scores[head][i], repeat(0.0f));
}
//% elseif k.math == "int" then
// What the 16-bit queries left joins a tile's scores.
static NOINLINE void add_fine(const float* q, const unsigned char* keys, int tile, workspace* w,
                              float* scores)
{
    LINE float fine[num_heads][16];
    //% if k.fold == "words" then
    k_round_fine(q, head_dim_k, &w->k);
    //% else
    (void)q;
    //% end
    k_dot_cells(keys, tile, 0, head_dim_k / 16, 0, &w->k.fine, fine[0], 16);
    for (int head = 0; head < num_heads; ++head)
        for (int i = 0; i < 16; ++i) scores[head * strip_words + i] += fine[head][i];
}

//% end
//% if not k.restored then
// Scores of the tiles of rows [first, end) of a page's keys; the strip begins at row `base`.
static void score_tiles(const float* q, const unsigned char* keys, const unsigned char* next,
                        int base, int first, int end, workspace* w)
{
    for (int tile = first / 16; tile * 16 < end; ++tile) {
        float* scores = &w->scores[0][tile * 16 - base];
        //% if k.raw == "none" then
        fetch_part(next, k_page_bytes, tile, page_size / 16);
        //% else
        (void)next;
        //% end
        //% if k.math == "int" then
        //% if k.fold == "lanes" then
        if (tile == first / 16 || k_fold_is_due(tile)) k_fold_dots(keys, tile, &w->k);
        //% else
        w->k.needs_fine = k_is_coarse(keys, tile, first - tile * 16, end - tile * 16, &w->k);
        //% end
        k_dot_cells(keys, tile, 0, head_dim_k / 16, 0, &w->k.main, scores, strip_words);
        if (w->k.needs_fine) add_fine(q, keys, tile, w, scores);
        //% else
        if (tile == first / 16 || k_fold_is_due(tile)) {
            //% if k.flagged and k.along_lanes then
            const uint32_t choice = k_read_choice(keys, tile * 16);
            //% end
            for (int slot = 0; slot < k_slots; ++slot) {
                //% if k.flagged then
                //% local of = k.along_lanes and "k_basis_of(choice, slot * 16)"
                //% of = of or "slot / (head_dim_k / 16)"
                const int at = slot % (head_dim_k / 16);
                const float* copy = q + $(of) * (num_heads * head_dim_k);
                k_fold(keys, tile, at, copy + at * 16, head_dim_k, &w->k, slot);
                //% else
                k_fold(keys, tile, slot, q + slot * 16, head_dim_k, &w->k, slot);
                //% end
            }
        }
        for (int head = 0; head < num_heads; ++head)
            for (int i = 0; i < 16; i += lanes)
                store(scores + head * strip_words + i, repeat(0.0f));
        for (int slot = 0; slot < k_slots; ++slot)
            k_add_cell(keys, tile, slot % (head_dim_k / 16), &w->k, slot, scores, strip_words);
        //% end
    }
}
//% end

//% if v.math == "int" then
// Values of rows [first, end) join o, times the weights of a strip that begins at row `base`.  Rows
// that are not visible have weight zero, and codes are numbers whatever their memory holds.
static void add_values(const unsigned char* values, const unsigned char* next, int base, int first,
                       int end, workspace* w, float* o)
{
    //% if v.fold == "lanes" then
    v_set_plain(w->scores[0], &w->v);
    //% else
    v_round_dots(w->scores[0], strip_words, &w->v);
    //% end
    for (int at = 0; at < head_dim_v / 16; ++at) {
        //% if v.raw == "none" then
        fetch_part(next, v_page_bytes, at, head_dim_v / 16);
        //% else
        (void)next;
        //% end
        //% if v.fold == "lanes" then
        if (at == 0 || v_fold_is_due(at))
            v_fold_dots(values, at, base, first - base, end - base, w->scores[0], &w->v);
        //% end
        v_dot_cells(values, at, first / 16, (end + 15) / 16, base / 16, &w->v.main, o + at * 16,
                    head_dim_v);
    }
}
//% elseif v.math == "tile" then
// Values of rows [first, end) join o, times the weights of a strip that begins at row `base`.  Rows
// that are not visible are zeros, whatever their memory holds.
static void add_values(const unsigned char* values, const unsigned char* next, int base, int first,
                       int end, workspace* w, float* o)
{
    (void)next;
    for (int row = first / 16 * 16; row < end; row += 16) {
        const int from = first > row ? first - row : 0, to = end < row + 16 ? end - row : 16;
        for (int at = 0; at < head_dim_v / 16; ++at) {
            v_read_tile(values, row / 16, at, from, to, &w->v);
            v_add_tile(&w->v, from, to, &w->scores[0][row - base], o + at * 16);
        }
    }
}
//% else
// A whole tile's values, times weights [num_heads, strip_words], join o [num_heads, head_dim_v].
static void add_tile(const unsigned char* values, int tile, const float* weights, v_folded* folded,
                     float* o)
{
    for (int at = 0; at < head_dim_v / 16; ++at) {
        if (at == 0 || v_fold_is_due(at)) v_fold(values, at, tile, weights, strip_words, folded, 0);
        v_add_cell(values, at, tile, folded, 0, o + at * 16, head_dim_v);
    }
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

// Values of rows [first, end) join o, times the weights of a strip that begins at row `base`.
static void add_values(const unsigned char* values, const unsigned char* next, int base, int first,
                       int end, workspace* w, float* o)
{
    for (int row = first / 16 * 16; row < end; row += 16) {
        //% if v.raw == "none" then
        fetch_part(next, v_page_bytes, row / 16, page_size / 16);
        //% else
        (void)next;
        //% end
        if (row >= first && row + 16 <= end) {
            add_tile(values, row / 16, &w->scores[0][row - base], &w->v, o);
            continue;
        }
        for (int i = row; i < row + 16; ++i)
            if (i >= first && i < end) add_row(values, i, &w->scores[0][i - base], o);
    }
}
//% end

// Rows [first, end) of one page, inside the strip that begins at row `base`.  position: of the
// page's first row, counted from the query's.
static void attend_strip(const kvl__attend_args* a, const unsigned char* page,
                         const unsigned char* next, int64_t position, int base, int first, int end,
                         softmax* state, workspace* w)
{
    //% if k.restored then
    score_tiles(next + a->k_offset, (end - base + 15) / 16, w);
    //% else
    score_tiles(a->q, page + a->k_offset, next + a->k_offset, base, first, end, w);
    //% end
    //% if k.by_position or k.restored then
    a->add_shifts(a->shifts, position - a->position + base, end - base, w->scores[0], strip_words);
    //% end
    for (int head = 0; head < num_heads; ++head) {
        //% if k.shift and not k.restored then
        for (int i = 0; i < strip_words; i += lanes)
            store(&w->scores[head][i], load(&w->scores[head][i]) + a->bias[head]);
        //% end
        const float shrink = softmax_add(state, a, head, w->scores[head], strip_words,
                                         first - base, end - base, position + base);
        //% if v.math == "int" and v.fold == "lanes" then
        if (shrink < 1.0f) v_shrink_rest(&w->v, head, shrink);
        //% else
        (void)shrink;
        //% end
    }
    add_values(page + a->v_offset, next + a->v_offset, base, first, end, w, a->o);
    //% if v.slots > 0 and not v.is_key then
    v_add_slots(page + a->v_offset, w->scores[0], base, first, end, a->o);
    //% end
}

static void attend_pages(const kvl__attend_args* a)
{
    workspace* w = (workspace*)(((uintptr_t)a->scratch + 63) & ~(uintptr_t)63);
    const int64_t num_pages = (a->end_row + page_size - 1) / page_size;
    softmax state;
    softmax_start(&state, a->o);
    //% if k.math == "int" and k.fold == "lanes" then
    k_start_dots(a->q, &w->k);
    //% elseif k.math == "int" then
    k_round_dots(a->q, head_dim_k, &w->k);
    //% end
    //% if v.math == "int" and v.fold == "lanes" then
    int num_strips = 0;
    v_start_dots(&w->v);
    //% end
    for (int64_t row = a->first_row; row < a->end_row;) {
        const int64_t at = row / page_size, left = a->end_row - at * page_size;
        const int64_t after = at + 1 < num_pages ? at + 1 : at;
        const int first = (int)(row - at * page_size), base = first / strip_rows * strip_rows;
        const int end = left < base + strip_rows ? (int)left : base + strip_rows;
        attend_strip(a, a->pages[at], a->pages[after], a->position + at * page_size, base, first,
                     end, &state, w);
        //% if v.math == "int" and v.fold == "lanes" then
        if (++num_strips % 16 == 0) v_add_rest(&w->v, a->o);
        //% end
        row = at * page_size + end;
    }
    //% if v.math == "int" and v.fold == "lanes" then
    v_add_rest(&w->v, a->o);
    //% end
    softmax_finish(&state, a->o, a->lse);
}
