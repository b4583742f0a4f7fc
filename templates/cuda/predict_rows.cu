// predict_rows.cu -- rows restored in a layer: from what is restored of them in the layer below, or
// for the lowest layer from nothing.
//
//   grid  tiles of 16 rows, num_kv_heads, items
//
// Keys come before values, whose kernel notes that the rows are in the layer.

#include "restored_rows.cuh"
#include "predicted.cuh"

// Whether what is restored of a row, in layer `has`, becomes this layer's.
INLINE bool $(s "goes_on")(const kvl__device_predict& a, int has)
{
    if (a.appends == 2) return true;
    if (has == a.target) return false;
    return a.windows.is_lowest ? has < a.layer || has > a.target : has == a.below;
}

// Of the rows [begin, end) those of a tile, [first, first + 16), all in one page.
INLINE void $(s "restore_tile")(const kvl__device_predict& a, const kvl__device_predict_item& item,
                           int head, int first, int begin, int end, float* x)
{
    enum { row_stride = $(s "dim") + 1 };                // + 1: rows begin in different banks
    const kvl__device_seq* s = (const kvl__device_seq*)item.seq;
    int32_t* layers = (int32_t*)s->restored + head * s->restored_rows + first;
    uint32_t wanted = 0;
    for (int r = 0; r < 16; ++r) {
        const bool is_due = first + r >= begin && first + r < end;
        if (is_due && $(s "goes_on")(a, layers[r])) wanted |= 1u << r;
    }
    if (wanted == 0) return;
    //% local side = codec.is_key and 0 or 1
    const unsigned char* page =
        page_at((const kvl__device_seq*)item.pages, first / page_size, head, $(side));
    const float* record = record_of(a.tables, a.table_floats, $(side), head);
    //% local read = s "read_value" .. "(page, first % page_size + r, channel, &code)"
    //% if codec.widths then
    __shared__ int begins[$(s "dim") + 1];
    $(s "find_begins")(record, begins);
    //% read = s "read_level" .. "(page, first % page_size + r, channel, begins, &code)"
    //% end
    for (int i = threadIdx.x; i < 16 * $(s "dim"); i += cta_threads) {
        const int r = i % 16, channel = i / 16;
        uint32_t code;
        x[r * row_stride + channel] = wanted >> r & 1 ? $(read) : 0.0f;
    }
    $(s "out_of_basis")<16>(record, nullptr, row_stride, x);
    const $(s "predictor") p = $(s "predictor_of")(s, a.windows, head);
    $(s "add_predicted")<16>(p, first, wanted, 1.0f, row_stride, x);
    const $(s "restored") to = $(s "restored_of")(s, a.windows, head);
    for (int i = threadIdx.x; i < 16 * $(s "dim"); i += cta_threads) {
        const int r = i / $(s "dim"), channel = i % $(s "dim");
        if (wanted >> r & 1)
            to.rows[(first + r) * (int64_t)to.row_dims + channel] =
                (uint16_t)row_of_f32(x[r * row_stride + channel]);
    }
    //% if not codec.is_key then
    for (int r = threadIdx.x; r < 16; r += cta_threads)
        if (wanted >> r & 1) layers[r] = a.layer;
    //% end
    __syncthreads();
}

// A graph may have fewer CTAs than a sequence has tiles by now.
KERNEL $(s "predict_rows")(const __grid_constant__ kvl__device_predict a)
{
    __shared__ float x[16 * ($(s "dim") + 1)];
    const kvl__device_predict_item& item = a.items[blockIdx.z];
    const kvl__device_seq* s = (const kvl__device_seq*)item.seq;
    const int64_t gone = ((const kvl__device_seq*)item.pages)->first_page * page_size;
    int begin = most_of(item.first_row, (int)s->dropped), end = (int)s->quantized;
    if (a.appends) {
        begin = end;
        end = quantized_rows(s, a.windows, (int)s->rows + item.num_rows);
    }
    if (begin < gone) begin = gone < end ? (int)gone : end;
#pragma unroll 1
    for (int first = (begin / 16 + blockIdx.x) * 16; first < end; first += gridDim.x * 16)
        $(s "restore_tile")(a, item, blockIdx.y, first, begin, end, x);
}
