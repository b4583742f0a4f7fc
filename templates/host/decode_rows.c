// decode_rows.c -- rows of a page as floats in the original basis, as codes, and their scales.

static void $(s "decode_rows")(const kvl__decode_args* a)
{
    for (int32_t r = 0; r < a->num_rows; ++r) {
        const int row = a->first_row + r;
        if (a->rows) {
            float* x = a->rows + r * (int64_t)$(s "dim");
            for (int i = 0; i < $(s "dim"); ++i) x[i] = $(s "read_value")(a->page, row, i);
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
            //% if codec.shift then
            const float* shift = a->tables + $(codec.table_at(codec.shift.subtract));
            for (int i = 0; i < $(s "dim"); ++i) x[i] += shift[i];
            //% end
            //% if codec.slots > 0 then
            for (int slot = 0; slot < $(s "row_slots"); ++slot) {
                const unsigned char* at = $(s "slot")(a->page, row, slot);
                x[at[2]] = $(s "slot_value")(at);
            }
            //% end
        }
        if (a->codes) {
            uint16_t* q = a->codes + r * (int64_t)$(s "dim");
            for (int i = 0; i < $(s "dim"); ++i) q[i] = (uint16_t)$(s "get_code")(a->page, row, i);
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
