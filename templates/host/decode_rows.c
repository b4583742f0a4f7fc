// decode_rows.c -- rows of a page as floats in the original basis, as codes, and their scales.

//% local whole = codec.raw == "none" and not codec.path and codec.fold ~= "values"
//% if codec.widths or codec.calibrated_book then whole = false end
//% if whole and not codec.is_split then
#include "read_row.h"

//% elseif codec.calibrated_book then
#include "row_codes.h"

//% end
// A row of a page in the original basis, x [dim].
static void $(s "decode_row")(const kvl__decode_args* a, int row, float* x)
{
    //% if whole then
    $(s "read_row")(a->page, row, x);
    //% elseif codec.widths then
    $(s "read_levels")(a->page, row, a->tables, x);
    //% elseif codec.calibrated_book then
    const float* book = a->tables + $(codec.table_at(codec.calibrated_book));
    for (int at = 0; at < $(s "dim"); at += 16) {
        uint32_t q[16];
        $(s "get_codes")(a->page, row, at / 16, q);
        for (int n = 0; n < 16; ++n) x[at + n] = book[q[n]];
    }
    //% else
    for (int i = 0; i < $(s "dim"); ++i) x[i] = $(s "read_value")(a->page, row, i);
    //% end
    //% if codec.promoted > 0 then
    $(s "add_planes")(a->page, row, x);
    //% end
    //% if codec.base then
    $(s "scale_up")(x, a->tables);
    //% end
    //% if codec.dense then
    $(s "restore")(x, a->tables);
    //% elseif codec.flagged then
    $(s "rotate")(x, $(s "read_choice")(a->page, row));
    //% else
    $(s(codec.back))(x, a->tables);
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
    //% if codec.is_split then
    for (int32_t row = a->first_row; row < a->first_row + a->num_rows; ++row) {
        //% for _, set in ipairs(codec.sets) do
        {
            const unsigned char* page = a->page + $(set.at);
            const int group = $(set.side .. "_group")($(codec.word_lane("row", "0")));
            a->scales[at] = $(set.side .. "_read_scale")(page, group);
            a->offsets[at] = $(set.side .. "_read_offset")(page, group, a->scales[at]);
            ++at;
        }
        //% end
    }
    //% else
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
    //% end
}
