// put_cells.cuh -- codes of the $(codec.title) take their place in a page.

// Codes of `channels` channels from `channel` on take their place in the page: of the rows [first,
// end) of a tile, bits of x [16, stride], whose first is that of the first channel.
INLINE void $(s "put_cells")(unsigned char* page, int tile, int first, int end, const float* x,
                        int stride, int channel, int channels)
{
    const bool whole = first <= tile * 16 && end >= tile * 16 + 16;
    for (int from = 0; from < channels; from += cta_threads) {
        const int item = from + threadIdx.x, at = (channel + item) / 16, lane = item % 16;
        const bool write = item < channels;
        uint32_t q[16];
        for (int i = 0; i < 16; ++i) q[i] = 0;
        //% if codec.is_key then
        unsigned char* cell = page + $(s "cell_at")(tile, write ? at : 0);
        //% else
        unsigned char* cell = page + $(s "cell_at")(write ? at : 0, tile);
        //% end
        if (write && !whole) $(s "get_codes")(cell, lane, q);
        for (int i = 0; i < 16; ++i) {
            //% if codec.is_key then
            const int row = lane, place = item / 16 * 16 + i;
            //% else
            const int row = i, place = item;
            //% end
            if (write && tile * 16 + row >= first && tile * 16 + row < end)
                q[i] = bits_of(x[row * stride + place]);
        }
        $(s "put_codes")(cell, lane, q, write);
    }
}
