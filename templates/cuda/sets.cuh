// sets.cuh -- $(codec.title) whose channels are in sets, each with a codec of its own.
//
// gen/parts/outliers.lua says what a row becomes; the sets follow each other in a page.

enum { $(s "dim") = $(codec.head_dim), $(s "page_bytes") = $(codec.layout.page_bytes) };

//% if kernel.transform or kernel.scores then
// Channels of rows x [num_rows, row_stride] in the order of the sets, or back.  A warp has a row.
INLINE void $(s "reorder")(float* x, int num_rows, int row_stride, const float* record, bool back)
{
    enum { each = ($(s "dim") + 31) / 32 };
    const float* order = record + $(codec.table_at(codec.parts.extra.tables[1].name));
    const int lane = threadIdx.x % 32;
    __syncthreads();
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < num_rows; row += cta_warps) {
        float* of = x + row * row_stride;
        float values[each];
#pragma unroll
        for (int k = 0; k < each; ++k) {
            const int i = k * 32 + lane;
            values[k] = i < $(s "dim") ? of[back ? i : (int)order[i]] : 0.0f;
        }
        __syncwarp();
#pragma unroll
        for (int k = 0; k < each; ++k) {
            const int i = k * 32 + lane;
            if (i < $(s "dim")) of[back ? (int)order[i] : i] = values[k];
        }
    }
    __syncthreads();
}

// Rows in the order of the sets, each set in its basis.
template <int num_rows>
INLINE void $(s "to_basis")(float* x, int row_stride, const float* record)
{
    $(s "reorder")(x, num_rows, row_stride, record, false);
    //% for _, set in ipairs(codec.sets) do
    $(set.side .. "_to_basis")<num_rows>(x + $(set.first), row_stride, record);
    //% end
}

INLINE void $(s "turn_query")(float* x, const float* record) { $(s "to_basis")<1>(x, 0, record); }

// Out of it.
template <int num_rows>
INLINE void $(s "turn_back")(float* x, int row_stride, const float* record)
{
    //% for _, set in ipairs(codec.sets) do
    $(set.side .. "_turn_back")<num_rows>(x + $(set.first), row_stride, record);
    //% end
    $(s "reorder")(x, num_rows, row_stride, record, true);
}

INLINE void $(s "from_basis")(float* x, const float* record) { $(s "turn_back")<1>(x, 0, record); }

//% end
//% if kernel.codec and not kernel.writes then
// One value of a channel in the order of the sets.
INLINE float $(s "read_value")(const unsigned char* page, int row, int channel, uint32_t* code)
{
    //% for i = #codec.sets, 1, -1 do
    //% local set = codec.sets[i]
    if (channel >= $(set.first))
        return $(set.side .. "_read_value")(page + $(set.at), row, channel - $(set.first), code);
    //% end
    return 0.0f;
}

//% end
//% if kernel.name == "attend_splits" then
//% local channel = codec.is_key and "word" or "lane"
// Values of the $(codec.read_words) words of a lane from `word` on: they are in one set.
INLINE void $(s "read_words")(const unsigned char* page, int lane, int word, float* x)
{
    //% for i = #codec.sets, 1, -1 do
    //% local set = codec.sets[i]
    //% local at = ("%s - %d"):format(channel, set.first)
    //% local of = codec.is_key and "lane, " .. at or at .. ", word"
    if ($(channel) >= $(set.first)) {
        $(set.side .. "_read_words")(page + $(set.at), $(of), x);
        return;
    }
    //% end
}

//% end
