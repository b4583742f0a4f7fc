// attend_windows.c -- attention of num_heads queries over two stretches of 16-bit rows.
//
// Rows are in the original basis, and so is the output.  A row is read once for the heads of a
// tile: 2 (head_dim_k + head_dim_v) bytes, and as many multiply-adds a head as it has channels.
// Scores are made of four rows at a time, whose products are summed across lanes together; outputs
// of as many vectors of channels as stay in registers.

//% local score, output = plan.window_scores, plan.window_outputs
// scores [num_heads, window_rows] of rows k [num_rows, head_dim_k].  The last row is repeated where
// four are not left.
static NOINLINE void score_rows(const float* q, const uint16_t* k, int num_rows, float* scores)
{
    for (int row = 0; row < num_rows; row += 4) {
        const unsigned char* rows[4];
        for (int i = 0; i < 4; ++i) {
            const int from = row + i < num_rows ? row + i : num_rows - 1;
            rows[i] = (const unsigned char*)(k + from * head_dim_k);
        }
        //% for _, heads in ipairs(score.tiles) do
        {
            //% for _, h in ipairs(heads) do
            //% for r = 0, 3 do
            vf $("sum_" .. h .. "_" .. r) = repeat(0.0f);
            //% end
            //% end
            for (int i = 0; i < head_dim_k; i += lanes) {
                //% for r = 0, 3 do
                const vf $("x_" .. r) = $("load_" .. config.rows)(rows[$(r)] + 2 * i);
                //% end
                //% for _, h in ipairs(heads) do
                const vf $("q_" .. h) = load(q + $(h) * head_dim_k + i);
                //% for r = 0, 3 do
                //% local sum = "sum_" .. h .. "_" .. r
                $(sum) = mul_add($("q_" .. h), $("x_" .. r), $(sum));
                //% end
                //% end
            }
            //% for _, h in ipairs(heads) do
            //% local sum = "sum_" .. h
            store_sums(scores + $(h) * window_rows + row, $(sum .. "_0"), $(sum .. "_1"),
                       $(sum .. "_2"), $(sum .. "_3"));
            //% end
        }
        //% end
    }
}

// o [num_heads, head_dim_v] grows by rows v [num_rows, head_dim_v] times weights [., window_rows].
static NOINLINE void add_rows(const float* weights, const uint16_t* v, int num_rows, float* o)
{
    enum { step = $(output.vectors) * lanes };
    for (int i = 0; i < head_dim_v; i += step, o += step) {
        //% for _, heads in ipairs(output.tiles) do
        {
            //% for _, h in ipairs(heads) do
            //% for c = 0, output.vectors - 1 do
            vf $("sum_" .. h .. "_" .. c) = load(o + $(h) * head_dim_v + $(c) * lanes);
            //% end
            //% end
            const unsigned char* from = (const unsigned char*)(v + i);
            for (int row = 0; row < num_rows; ++row, from += 2 * head_dim_v) {
                //% for c = 0, output.vectors - 1 do
                const vf $("x_" .. c) = $("load_" .. config.rows)(from + $(2 * c) * lanes);
                //% end
                //% for _, h in ipairs(heads) do
                const float* $("w_" .. h) = weights + $(h) * window_rows + row;
                //% for c = 0, output.vectors - 1 do
                //% local sum = "sum_" .. h .. "_" .. c
                $(sum) = mul_add_at($("w_" .. h), $("x_" .. c), $(sum));
                //% end
                //% end
            }
            //% for _, h in ipairs(heads) do
            //% for c = 0, output.vectors - 1 do
            store(o + $(h) * head_dim_v + $(c) * lanes, $("sum_" .. h .. "_" .. c));
            //% end
            //% end
        }
        //% end
    }
}

static void attend_windows(const kvl__attend_args* a)
{
    LINE float scores[num_heads * window_rows] = { 0 };
    softmax state;
    softmax_start(&state, a->o);
    for (int w = 0; w < 2; ++w) {
        const kvl__window* window = &a->windows[w];
        for (int64_t first = 0; first < window->num_rows; first += window_rows) {
            const int64_t left = window->num_rows - first;
            const int num_rows = left < window_rows ? (int)left : window_rows;
            const int count = (num_rows + 15) / 16 * 16;
            score_rows(a->q, window->k + first * head_dim_k, num_rows, scores);
            for (int head = 0; head < num_heads; ++head)
                softmax_add(&state, a, head, scores + head * window_rows, count, 0, num_rows,
                            window->position + first);
            add_rows(scores, window->v + first * head_dim_v, num_rows, a->o);
        }
    }
    softmax_finish(&state, a->o, a->lse);
}
