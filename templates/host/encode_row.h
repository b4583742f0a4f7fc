// encode_row.h -- groups along the channels of a row of the $(codec.title): fit, round, pack.

//% local fit = codec.parts.fit
//% local step = (not fit.ordered and codec.group_size % 16 == 0) and 16 or 1
INLINE void $(s "encode_row")(const float* x, const float* tables, unsigned char* page, int row)
{
    enum { group_size = $(codec.group_size), step = $(step) };
    float offset[$(s "dim")], inverse[$(s "dim")];
    uint16_t q[$(s "dim")];
    (void)tables;
    for (int first = 0; first < $(s "dim"); first += group_size) {
        const float* of = x + first;
        //% for _, stat in ipairs(fit.stats) do
        float $(stat.name .. "s")[step];
        //% end
        // Every step-th value has its own statistics; what they come to is order-free.
        for (int j = 0; j < step; ++j) {
            const float x = of[j];
            //% for _, stat in ipairs(fit.stats) do
            $(stat.name .. "s")[j] = $(stat.first);
            //% end
        }
        for (int i = step; i < group_size; i += step) {
            for (int j = 0; j < step; ++j) {
                const float x = of[i + j];
                //% for _, stat in ipairs(fit.stats) do
                const float $(stat.name) = $(stat.name .. "s")[j];
                $(stat.name .. "s")[j] = $(stat.next);
                //% end
            }
        }
        //% for _, stat in ipairs(fit.stats) do
        float $(stat.name) = $(stat.name .. "s")[0];
        for (int j = 1; j < step; ++j) {
            const float x = $(stat.name .. "s")[j];
            $(stat.name) = $(stat.next);
        }
        //% end
        const int group = $(s "group")($(codec.word_lane("row", "first")));
        const $(s "grid") grid =
            $(codec.fit_call("page", "group", "of", "1", codec.stat_names));
        for (int i = first; i < first + group_size; ++i) {
            offset[i] = grid.offset;
            inverse[i] = grid.inverse;
        }
    }
    //% if codec.calibrated_book then
    $(s "round_to_book")(x, tables, q);
    //% elseif codec.widths then
    (void)offset;
    $(s "round_widths")(x, inverse, tables, q);
    //% else
    $(s "round_row")(x, offset, inverse, q);
    //% end
    $(s "put_row")(page, row, q);
}
