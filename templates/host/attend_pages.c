// attend_pages.c -- attention of num_heads queries over rows of pages, on the codes.
//
// A strip of a page at a time: its keys are scored tile by tile, the scores become weights, and its
// values are added.  Each cell is read and unpacked once for all heads; o is in the value codec's
// basis.

// One thread's memory of a call.
typedef struct workspace {
    float    scores[num_heads][strip_rows];
    k_folded k;
    v_folded v;
} workspace;

// Scores of tiles [first, end) of a page's keys; tile `first` begins the strip.
static void score_tiles(const float* q, const unsigned char* keys, int first, int end, workspace* w)
{
    for (int tile = first; tile < end; ++tile) {
        if (tile == first || k_fold_is_due(tile))
            for (int at = 0; at < k_slots; ++at)
                k_fold(keys, tile, at, q + at * 16, head_dim_k, &w->k, at);
        float* scores = &w->scores[0][(tile - first) * 16];
        for (int head = 0; head < num_heads; ++head)
            for (int i = 0; i < 16; i += lanes) store(scores + head * strip_rows + i, repeat(0.0f));
        for (int at = 0; at < head_dim_k / 16; ++at)
            k_add_cell(keys, tile, at, &w->k, at, scores, strip_rows);
    }
}

// A whole tile's values, times weights [num_heads, strip_rows], join o [num_heads, head_dim_v].
static void add_tile(const unsigned char* values, int tile, const float* weights, v_folded* folded,
                     float* o)
{
    for (int at = 0; at < head_dim_v / 16; ++at) {
        if (at == 0 || v_fold_is_due(at)) v_fold(values, at, tile, weights, strip_rows, folded, 0);
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
            o[head * head_dim_v + i] += weights[head * strip_rows] * x;
    }
}

// Rows [first, end) of one page, at most strip_rows from the tile of the first.
static void attend_strip(const kvl__attend_args* a, const unsigned char* page, int first, int end,
                         softmax* state, workspace* w)
{
    const unsigned char* values = page + a->v_offset;
    const int first_tile = first / 16, end_tile = (end + 15) / 16, base = first_tile * 16;
    score_tiles(a->q, page + a->k_offset, first_tile, end_tile, w);
    for (int head = 0; head < num_heads; ++head)
        softmax_add(state, head, w->scores[head], end_tile * 16 - base, first - base, end - base,
                    a->soft_cap, a->o + head * head_dim_v);
    for (int tile = first_tile; tile < end_tile; ++tile) {
        const int row = tile * 16;
        if (row >= first && row + 16 <= end) {
            add_tile(values, tile, &w->scores[0][row - base], &w->v, a->o);
            continue;
        }
        for (int i = row; i < row + 16; ++i)
            if (i >= first && i < end) add_row(values, i, &w->scores[0][i - base], a->o);
    }
}

static void attend_pages(const kvl__attend_args* a)
{
    workspace* w = (workspace*)(((uintptr_t)a->scratch + 63) & ~(uintptr_t)63);
    softmax state;
    softmax_start(&state, a->o);
    for (int64_t row = a->first_row; row < a->end_row;) {
        const int64_t at = row / page_size, left = a->end_row - at * page_size;
        const int first = (int)(row - at * page_size), base = first / 16 * 16;
        int end = base + strip_rows < page_size ? base + strip_rows : page_size;
        if (left < end) end = (int)left;
        attend_strip(a, a->pages[at], first, end, &state, w);
        row = at * page_size + end;
    }
    softmax_finish(&state, a->o, a->lse);
}
