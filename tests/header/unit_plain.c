// unit_plain.c -- takes the place of unit_cpp.cpp where there is no C++ compiler.
#include "units.h"

int unit_ask(const unit_objects* objects)
{
    kvl_stats stats;
    if (kvl_cache_stats(objects->cache, &stats)) return unit_fail(objects, "stats");
    return stats.num_rows == UNIT_ROWS ? 0 : unit_fail(objects, "rows");
}
