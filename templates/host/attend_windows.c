// attend_windows.c -- attention of num_heads queries over two stretches of 16-bit rows.
//
// A row is read once for all heads: 2 (head_dim_k + head_dim_v) bytes, num_heads (head_dim_k +
// head_dim_v) multiply-adds.  Rows are in the original basis, and so is the output.

// scores [num_heads, window_rows] of rows k [num_rows, head_dim_k].
static void score_rows(const float* q, const uint16_t* k, int num_rows, float* scores)
{
    for (int row = 0; row < num_rows; ++row, k += head_dim_k) {
        //% for _, heads in ipairs(plan.head_tiles) do
        {
            //% for _, h in ipairs(heads) do
            vf $("sum_" .. h) = repeat(0.0f);
            //% end
            for (int i = 0; i < head_dim_k; i += lanes) {
                const vf x = $("load_" .. config.rows)((const unsigned char*)(k + i));
                //% for _, h in ipairs(heads) do
                $("sum_" .. h) = mul_add(load(q + $(h) * head_dim_k + i), x, $("sum_" .. h));
                //% end
            }
            //% for _, h in ipairs(heads) do
            scores[$(h) * window_rows + row] = sum_lanes($("sum_" .. h));
            //% end
        }
        //% end
    }
}

// o [num_heads, head_dim_v] grows by rows v [num_rows, head_dim_v] times weights [., window_rows].
static void add_rows(const float* weights, const uint16_t* v, int num_rows, float* o)
{
    for (int i = 0; i < head_dim_v; i += lanes, o += lanes) {
        //% for _, heads in ipairs(plan.head_tiles) do
        {
            //% for _, h in ipairs(heads) do
            vf $("sum_" .. h) = load(o + $(h) * head_dim_v);
            //% end
            for (int row = 0; row < num_rows; ++row) {
                const uint16_t* from = v + row * head_dim_v + i;
                const vf x = $("load_" .. config.rows)((const unsigned char*)from);
                //% for _, h in ipairs(heads) do
                $("sum_" .. h) = mul_add_at(weights + $(h) * window_rows + row, x, $("sum_" .. h));
                //% end
            }
            //% for _, h in ipairs(heads) do
            store(o + $(h) * head_dim_v, $("sum_" .. h));
            //% end
        }
        //% end
    }
}

static void attend_windows(const kvl__attend_args* a)
{
    float scores[num_heads * window_rows];
    softmax state;
    softmax_start(&state, a->o);
    for (int w = 0; w < 2; ++w) {
        const kvl__window* window = &a->windows[w];
        for (int64_t first = 0; first < window->num_rows; first += window_rows) {
            const int64_t left = window->num_rows - first;
            const int num_rows = left < window_rows ? (int)left : window_rows;
            const int end = (num_rows + 15) / 16 * 16;
            for (int i = num_rows; i < end; ++i)
                for (int head = 0; head < num_heads; ++head) scores[head * window_rows + i] = 0.0f;
            score_rows(a->q, window->k + first * head_dim_k, num_rows, scores);
            for (int head = 0; head < num_heads; ++head)
                softmax_add(&state, head, scores + head * window_rows, end, 0, num_rows,
                            a->soft_cap, a->o + head * head_dim_v);
            add_rows(scores, window->v + first * head_dim_v, num_rows, a->o);
        }
    }
    softmax_finish(&state, a->o, a->lse);
}
