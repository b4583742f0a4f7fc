// read_row.h -- rows of a page of the $(codec.title) in the basis of their codec.

#include "row_codes.h"

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
            //% local codes = "load_u32((const unsigned char*)(q + n))"
            const vu code = $(codec.plane and s "numbers(" .. codes .. ")" or codes);
            store(x + n, scale * $(codec.book and s "level(code)" or "to_float(code)") + offset);
        }
    }
}
