// append_rows.cu -- rows of the caller into sinks and rings, as 16 bits.
//
//   grid  rows, num_kv_heads, num_seqs: one row of one head, keys and values
//
// A value that is not finite, or is beyond the range of a window, is kept as the nearest finite
// one, and sets a bit of a.faults.

INLINE uint32_t append_row(const kvl__device_rows& from, int64_t row, int head, int dim,
                           uint16_t* to)
{
    const uint64_t at = row_at(from, row, head);
    uint32_t faults = 0;
    for (int i = threadIdx.x; i < dim; i += cta_threads) {
        const float x = load_value(at, from.type, i);
        if ((bits_of(x) & 0x7f800000u) == 0x7f800000u) faults |= KVL__FAULT_NOT_FINITE;
        //% if config.rows == "f16" then
        else if (absolute(x) >= 65520.0f) faults |= KVL__FAULT_SATURATED;
        //% end
        to[i] = (uint16_t)row_of_f32(x);
    }
    return faults;
}

KERNEL append_rows(const __grid_constant__ kvl__device_append a)
{
    const int row = blockIdx.x, head = blockIdx.y;
    const kvl__device_item& item = a.items[blockIdx.z];
    if (row >= item.num_rows) return;
    const kvl__device_seq* s = (const kvl__device_seq*)item.seq;
    const head_windows w = windows_of(s, a.windows, head);
    const int at = (int)s->rows + row, behind = at - a.windows.sink_len;
    const int slot = behind < 0 ? at : behind % a.windows.ring_rows;
    uint16_t* k = (behind < 0 ? w.sink[0] : w.ring[0]) + slot * (int64_t)head_dim_k;
    uint32_t faults = append_row(a.side[0], item.first_row + row, head, head_dim_k, k);
    //% if config.num_stored ~= 1 then
    uint16_t* v = (behind < 0 ? w.sink[1] : w.ring[1]) + slot * (int64_t)head_dim_v;
    faults |= append_row(a.side[1], item.first_row + row, head, head_dim_v, v);
    //% end
    if (faults) atomicOr((uint32_t*)a.faults, faults);
}
