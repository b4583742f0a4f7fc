// encode_row.h -- groups along the channels of a row of the $(codec.title): fit, round, pack.

#include "fit_group.h"

INLINE void $(s "encode_row")(const float* x, const float* tables, unsigned char* page, int row)
{
    enum { group_size = $(codec.group_size) };
    float offset[$(s "dim")], inverse[$(s "dim")];
    uint16_t q[$(s "dim")];
    (void)tables;
    for (int first = 0; first < $(s "dim"); first += group_size) {
        const int group = $(s "group")($(codec.word_lane("row", "first")));
        const $(s "grid") grid = $(s "fit_group")(page, group, x + first);
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
