// fit_group.h -- the grid of a group of the $(codec.title) side by side; of a path also codes and
// levels.

//% local fit = codec.parts.fit
//% local step = (not fit.ordered and codec.group_size % 16 == 0) and 16 or 1
//% local lists = codec.path and ", uint16_t* codes, uint16_t* levels" or ""
INLINE $(s "grid") $(s "fit_group")(unsigned char* page, int group, const float* $("of" .. lists))
{
    enum { group_size = $(codec.group_size), step = $(step) };
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
    return $(codec.fit_call("page", "group", "of", "1", codec.stat_names));
}
