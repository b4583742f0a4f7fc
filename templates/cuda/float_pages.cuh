// float_pages.cuh -- attention over the rows of pages, in floats.
//
// A strip of rows at a time, for the num_heads query heads of a KV head: a thread scores a token,
// then adds up a channel.  Rows that are not visible are not read: whatever their memory holds.

//% local copies = sides[1].copies

//% if not sides[1].restored then
// Scores of this thread's row of a strip.
INLINE void score_token(const kvl__device_seq* s, int head, int row, bool is_visible, int distance,
                        const float* q, workspace* w)
{
    enum { heads = $(plan.score_heads) };        // that a pass over the row serves
    w->state.distance[threadIdx.x] = distance;
#pragma unroll 1
    for (int first = 0; first < num_heads; first += heads) {
        float sums[heads];
#pragma unroll
        for (int h = 0; h < heads; ++h) sums[h] = 0.0f;
        if (is_visible) {
            const unsigned char* keys = page_at(s, row / page_size, head, 0);
            const int lane = row % page_size;
            //% if copies > 1 then
            const uint32_t choice = k_read_choice(keys, lane);
            //% end
#pragma unroll 1
            for (int at = 0; at < head_dim_k; at += $(sides[1].read_words)) {
                float x[$(sides[1].read_words)];
                k_read_words(keys, lane, at, x);
                //% local basis = copies > 1 and "k_basis_of(choice, at) * head_dim_k" or "0"
                const float* of = q + first * q_floats + $(basis) + at;
#pragma unroll
                for (int h = 0; h < heads; ++h)
                    sums[h] = dot<$(sides[1].read_words)>(of + h * q_floats, x, sums[h]);
            }
            //% if sides[1].norms then
            const float norm = f32_of_e5m3(keys[$(sides[1].layout.slots_at) + lane]);
            for (int h = 0; h < heads; ++h) sums[h] *= norm;
            //% end
        }
#pragma unroll
        for (int h = 0; h < heads; ++h) {
            //% if sides[1].bias then
            sums[h] += w->bias[first + h];
            //% end
            w->state.scores[first + h][threadIdx.x] = is_visible ? sums[h] : hidden_score();
        }
    }
}

//% end
// Values of the strip's rows [begin, end) join the outputs; rows are counted from its first.
INLINE void add_values(const kvl__device_seq* s, const kvl__device_windows& windows, int head,
                       int strip, int begin, int end, const workspace* w, outputs* o)
{
    enum { tokens = $(sides[2].read_words) };        // that are read at once
    //% if sides[2].predicted then
    const v_restored of = v_restored_of(s, windows, head);
    //% end
#pragma unroll 1
    for (int first = slice_of() * tokens; first < end; first += slices * tokens) {
        const int row = strip + first;
        if (slice_of() >= slices || first + tokens <= begin) continue;
        //% if not sides[2].predicted then
        unsigned char* values = page_at(s, row / page_size, head, 1);
        //% end
#pragma unroll
        for (int i = 0; i < each; ++i) {
            float x[tokens];
            if (channel_of(i) >= head_dim_v) continue;
            //% if sides[2].predicted then
            for (int t = 0; t < tokens; ++t)
                x[t] = first + t >= begin && first + t < end
                    ? v_restored_value(of, row + t, channel_of(i)) : 0.0f;
            //% else
            $(sides[2].in_keys and "v_read_column" or "v_read_words")(values, channel_of(i),
                                                                 row % page_size, x);
            //% end
            //% if sides[2].slots > 0 then
            v_put_column_slots(values, channel_of(i), row % page_size, begin - first, end - first,
                               x);
            //% end
#pragma unroll
            for (int t = 0; t < tokens; ++t)
                if (first + t < begin || first + t >= end) x[t] = 0.0f;
#pragma unroll
            for (int h = 0; h < num_heads; ++h)
                o->of[i][h] = dot<tokens>(w->state.scores[h] + first, x, o->of[i][h]);
        }
    }
}

INLINE void attend_pages(const kvl__device_attend& a, const kvl__device_seq* s, int head,
                         int begin, int end, int64_t position, const float* q, workspace* w,
                         outputs* o)
{
#pragma unroll 1
    for (int strip = begin / 16 * 16; strip < end; strip += strip_rows) {
        const int row = strip + threadIdx.x;
        //% if sides[1].restored then
        w->state.distance[threadIdx.x] = (int)(row + a.windows.sink_len - position);
        k_score_strip(a, s, head, strip, begin, end, q, w->state.scores);
        //% else
        score_token(s, head, row, row >= begin && row < end,
                    (int)(row + a.windows.sink_len - position), q, w);
        //% end
        //% if sides[1].by_position then
        k_add_turned(a, head, row, row >= begin && row < end, w->state.scores);
        //% end
        //% if sides[1].sketched_at then
        k_add_sketched(a, s, head, row, row >= begin && row < end, w->state.scores);
        //% end
        softmax_add(&w->state, strip_rows, a.soft_cap);
        shrink_outputs(w->state, o);
        add_values(s, a.windows, head, strip, most_of(0, begin - strip),
                   least_of(strip_rows, end - strip), w, o);
        __syncthreads();
    }
}
