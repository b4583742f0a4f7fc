// decode_rows.c -- rows of a page as floats in the original basis, as codes, and their scales.

//% local whole = codec.raw == "none" and not codec.path and codec.fold ~= "values"
//% if codec.widths then whole = false end
//% if whole then
// The codes of 16 channels, from channel16 * 16 on, of a row.
INLINE void $(s "get_codes")(const unsigned char* page, int row, int channel16, uint32_t* q)
{
    //% if codec.is_key then
    const unsigned char* cell = $(s "cell")(page, row / 16, channel16);
    const int lane = row % 16;
    //% else
    const unsigned char* cell = $(s "cell")(page, channel16, row / 16);
    const int i = row % 16;
    //% end
    for (int n = 0; n < 16; ++n) q[n] = 0;
    //% for _, plane in ipairs(codec.planes) do
    {
        enum { width = $(plane.width), each = 16 / width, mask = (1 << width) - 1 };
        //% local to = "(words[n] >> bit[n] & mask) << " .. plane.low
        uint32_t words[16], bit[16];
        //% if plane.width == 1 and codec.is_key then
        const u32_at* from = (const u32_at*)(cell + $(plane.at)) + lane % 8;
        for (int n = 0; n < 16; ++n) words[n] = *from;
        for (int n = 0; n < 16; ++n) bit[n] = (uint32_t)(n % 2 * 16 + n / 2 + lane / 8 * 8);
        //% elseif plane.width == 1 then
        const u32_at* from = (const u32_at*)(cell + $(plane.at));
        for (int n = 0; n < 16; ++n) words[n] = from[n % 8];
        for (int n = 0; n < 16; ++n) bit[n] = (uint32_t)(i % 2 * 16 + i / 2 + n / 8 * 8);
        //% elseif codec.is_key then
        const u32_at* from = (const u32_at*)(cell + $(plane.at)) + lane;
        for (int n = 0; n < 16; ++n) words[n] = from[n / 2 / each * 16];
        for (int n = 0; n < 16; ++n) bit[n] = (uint32_t)(n % 2 * 16 + n / 2 % each * width);
        //% else
        const u32_at* from = (const u32_at*)(cell + $(plane.at)) + i / 2 / each * 16;
        for (int n = 0; n < 16; ++n) words[n] = from[n];
        for (int n = 0; n < 16; ++n) bit[n] = (uint32_t)(i % 2 * 16 + i / 2 % each * width);
        //% end
        for (int n = 0; n < 16; ++n) q[n] |= $(to);
    }
    //% end
}

// A row in the codec's basis: to the bit what read_value gives.
static void $(s "read_row")(const unsigned char* page, int row, float* x)
{
    for (int at = 0; at < $(s "dim"); at += 16, x += 16) {
        uint32_t q[16];
        $(s "get_codes")(page, row, at / 16, q);
        const int group = $(s "group")($(codec.word_lane("row", "at")));
        //% if codec.axis == "per_token" then
        const float one = $(s "read_scale")(page, group);
        const vf scale = repeat(one), offset = repeat($(s "read_offset")(page, group, one));
        //% end
        for (int n = 0; n < 16; n += lanes) {
            //% if codec.axis ~= "per_token" then
            const vf scale = $(s "load_scale")(page, group + n);
            const vf offset = $(s "load_offset")(page, group + n, scale);
            //% end
            const vu code = load_u32((const unsigned char*)(q + n));
            store(x + n, scale * $(codec.book and s "level(code)" or "to_float(code)") + offset);
        }
    }
}

//% end
// A row of a page in the original basis, x [dim].
static void $(s "decode_row")(const kvl__decode_args* a, int row, float* x)
{
    //% if whole then
    $(s "read_row")(a->page, row, x);
    //% elseif codec.widths then
    $(s "read_levels")(a->page, row, a->tables, x);
    //% else
    for (int i = 0; i < $(s "dim"); ++i) x[i] = $(s "read_value")(a->page, row, i);
    //% end
    //% if codec.promoted > 0 then
    $(s "add_planes")(a->page, row, x);
    //% end
    //% if codec.calibrated_book then
    const float* book = a->tables + $(codec.table_at(codec.calibrated_book));
    for (int i = 0; i < $(s "dim"); ++i) x[i] = book[$(s "get_code")(a->page, row, i)];
    //% end
    //% if codec.base then
    $(s "scale_up")(x, a->tables);
    //% end
    //% if codec.dense then
    $(s "restore")(x, a->tables);
    //% elseif codec.flagged then
    $(s "rotate")(x, $(s "read_choice")(a->page, row));
    //% else
    $(s(codec.signs and "turn_back" or "transform"))(x, a->tables);
    //% end
    //% if codec.norms then
    const float norm = f32_of_e5m3(a->page[$(codec.layout.slots_at) + row]);
    for (int i = 0; i < $(s "dim"); ++i) x[i] *= norm;
    //% end
    //% if codec.shift then
    const float* shift = a->tables + $(codec.table_at(codec.shift.subtract));
    for (int i = 0; i < $(s "dim"); ++i) x[i] += shift[i];
    //% end
    //% if codec.slots > 0 then
    for (int slot = 0; slot < $(s "row_slots"); ++slot) {
        const unsigned char* at = $(s "slot")(a->page, row, slot);
        //% if codec.head_dim < 256 then
        if (at[2] >= $(s "dim")) continue;               // a file can say any channel
        //% end
        x[at[2]] = $(s "slot_value")(at);
    }
    //% end
}

static void $(s "decode_rows")(const kvl__decode_args* a)
{
    for (int32_t r = 0; r < a->num_rows; ++r) {
        const int row = a->first_row + r;
        if (a->rows) $(s "decode_row")(a, row, a->rows + r * (int64_t)$(s "dim"));
        if (a->codes) {
            uint16_t* q = a->codes + r * (int64_t)$(s "dim");
            //% if codec.widths then
            $(s "read_widths")(a->page, row, a->tables, q);
            //% else
            for (int i = 0; i < $(s "dim"); ++i) q[i] = (uint16_t)$(s "get_code")(a->page, row, i);
            //% end
        }
    }
    //% if codec.chooses ~= "none" then
    for (int32_t r = 0, n = 0; a->choices && r < a->num_rows; ++n) {
        //% if codec.flagged then
        a->choices[n] = $(s "read_choice")(a->page, a->first_row + r);
        //% else
        a->choices[n] = $(s "fixed_choice")(a->tables);
        //% end
        r += $(codec.axis == "per_token" and 1 or codec.group_size);
    }
    //% end
    //% if codec.raw == "none" then
    if (!a->scales || !a->offsets) return;
    int64_t at = 0;
    //% if codec.axis == "per_token" then
    for (int32_t row = a->first_row; row < a->first_row + a->num_rows; ++row) {
        for (int i = 0; i < $(s "dim"); i += $(s "group_size"), ++at) {
    //% else
    for (int32_t row = a->first_row; row < a->first_row + a->num_rows; row += $(s "group_size")) {
        for (int i = 0; i < $(s "dim"); ++i, ++at) {
    //% end
            const int group = $(s "group")($(codec.word_lane("row", "i")));
            a->scales[at] = $(s "read_scale")(a->page, group);
            a->offsets[at] = $(s "read_offset")(a->page, group, a->scales[at]);
        }
    }
    //% end
}
