// restore_rows.cu -- rows of a sequence in the original basis, their codes and their grids.
//
//   grid  rows, num_kv_heads (1 where only_head >= 0)
//   a.codes    [rows, head_dim]  u16, of rows in pages
//   a.scales, a.offsets  per token [rows, groups of a row]; per channel [rows / group_size,
//                        head_dim], the first row beginning a group
//   a.choices  [units of the rows], where each has one

INLINE void $(s "restore_quantized")(const kvl__device_restore& a, const unsigned char* page,
                                     const float* record, int row, int64_t at, float* x)
{
    (void)record;
    //% local read = s "read_value" .. "(page, row, i, &code)"
    //% if codec.widths then
    __shared__ int begins[$(s "dim") + 1];
    $(s "find_begins")(record, begins);
    //% read = s "read_level" .. "(page, row, i, begins, &code)"
    //% end
    for (int i = threadIdx.x; i < $(s "dim"); i += cta_threads) {
        uint32_t code;
        x[i] = $(read);
        if (a.codes) ((uint16_t*)a.codes)[at * $(s "dim") + i] = (uint16_t)code;
    }
    //% if codec.is_split then
    enum { count = $(#codec.sets) };
    if (!a.scales || threadIdx.x > 0) return;
    //% for i, set in ipairs(codec.sets) do
    {
        const int group = $(set.side .. "_group")($(codec.word_lane("row", "0")));
        const float scale = $(set.side .. "_read_scale")(page + $(set.at), group);
        ((float*)a.scales)[at * count + $(i - 1)] = scale;
        ((float*)a.offsets)[at * count + $(i - 1)] =
            $(set.side .. "_read_offset")(page + $(set.at), group, scale);
    }
    //% end
    //% elseif codec.raw == "none" then
    //% local per_token = codec.axis == "per_token"
    enum { step = $(per_token and codec.group_size or 1), count = $(s "dim") / step };
    //% if not per_token then
    if (at % $(s "group_size") != 0) return;
    at /= $(s "group_size");
    //% end
    for (int i = threadIdx.x; a.scales && i < count; i += cta_threads) {
        const int channel = i * step, group = $(s "group")($(codec.word_lane("row", "channel")));
        const float scale = $(s "read_scale")(page, group);
        ((float*)a.scales)[at * count + i] = scale;
        ((float*)a.offsets)[at * count + i] = $(s "read_offset")(page, group, scale);
    }
    //% end
}

//% local side = codec.is_key and 0 or 1
//% if codec.predicted or codec.across then
// The row `behind` the sink, whose values are not made of its own codes alone, before RoPE.
INLINE void $(s "restore_others")(const kvl__device_restore& a, const kvl__device_seq* s, int head,
                                  int behind, float* x)
{
    //% if codec.predicted then
    const $(s "restored") of = $(s "restored_of")(s, a.windows, head);
    for (int i = threadIdx.x; i < $(s "dim"); i += cta_threads)
        x[i] = $(s "restored_value")(of, behind, i);
    //% else
    const $(s "mixture") m = $(s "mixture_of")(a.windows, head);
    const unsigned char* page = page_at(s, behind / page_size, 0, $(side));
    for (int i = threadIdx.x; i < $(s "dim"); i += cta_threads)
        x[i] = $(s "read_mixed")(m, page, behind % page_size, i);
    $(s "turn_pieces")(m, 1, 0, x);
    //% end
}

//% end
KERNEL $(s "restore_rows")(const __grid_constant__ kvl__device_restore a)
{
    __shared__ float x[$(s "dim")];
    const int head = a.only_head < 0 ? (int)blockIdx.y : a.only_head;
    const kvl__device_seq* s = (const kvl__device_seq*)a.seq;
    const int row = (int)a.first + blockIdx.x, behind = row - a.windows.sink_len;
    if (behind >= 0 && behind < s->quantized) {
        unsigned char* at = page_at(s, behind / page_size, head, $(side));
        const float* record = record_of(a.tables, a.table_floats, $(side), head);
        $(s "restore_quantized")(a, at, record, behind % page_size, blockIdx.x, x);
        //% if codec.predicted or codec.across then
        if (a.rows.data) $(s "restore_others")(a, s, head, behind, x);
        //% else
        //% if codec.promoted > 0 then
        $(s "add_planes")(at, behind % page_size, 1, 0, 1, 0, x);
        //% end
        //% if codec.calibrated_book then
        $(s "put_levels")(record, 1, 0, x);
        //% end
        //% if codec.base then
        $(s "scale_up")(x, record);
        //% end
        //% if codec.chooses ~= "none" then
        //% local read = codec.flagged and "read_choice" or "fixed_choice"
        //% local from = codec.flagged and "at, behind % page_size" or "record"
        enum { unit = $(codec.axis == "per_token" and 1 or codec.group_size) };
        const uint32_t choice = $(s(read))($(from));
        if (a.choices && threadIdx.x == 0 && blockIdx.x % unit == 0)
            ((uint32_t*)a.choices)[blockIdx.x / unit] = choice;
        if (a.rows.data) $(s "rotate")(x, 1, 0, &choice, 0, $(s "bases_of")(choice));
        //% else
        if (a.rows.data) $(s "from_basis")(x, record);
        //% end
        //% if codec.norms then
        const float norm = f32_of_e5m3(at[$(codec.layout.slots_at) + behind % page_size]);
        for (int i = threadIdx.x; i < $(s "dim"); i += cta_threads) x[i] *= norm;
        //% end
        //% if codec.shift then
        const float* shift = record + $(codec.table_at(codec.shift.subtract));
        for (int i = threadIdx.x; i < $(s "dim"); i += cta_threads) x[i] += shift[i];
        //% end
        //% if codec.slots > 0 then
        $(s "put_slots")(at, behind % page_size, 1, 0, 1, 0, x);
        //% end
        //% if codec.sketches > 0 then
        $(s "add_sketches")(at, behind % page_size, 1, 0, 1, 0, x);
        //% end
        //% if codec.by_position then
        for (int i = threadIdx.x; a.rows.data && i < $(s "dim"); i += cta_threads)
            x[i] += $(s "turned_mean")(record, row, i);
        //% end
        //% end
        //% if codec.unrotated then
        if (a.rows.data) $(s "turn_row")((const double*)a.windows.turns, row, x);
        //% end
    } else {
        const head_windows w = windows_of(s, a.windows, head);
        const uint16_t* from = behind < 0
            ? w.sink[$(side)] + row * (int64_t)$(s "dim")
            : w.ring[$(side)] + behind % a.windows.ring_rows * (int64_t)$(s "dim");
        for (int i = threadIdx.x; i < $(s "dim"); i += cta_threads) x[i] = f32_of_row(from[i]);
    }
    if (!a.rows.data) return;
    const uint64_t to = row_at(a.rows, blockIdx.x, a.only_head < 0 ? head : 0);
    for (int i = threadIdx.x; i < a.row_dim; i += cta_threads)
        store_value(to, a.rows.type, i, x[i]);
}
