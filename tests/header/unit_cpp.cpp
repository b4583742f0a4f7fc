// unit_cpp.cpp -- asks a cache that C units made, from C++.
#include "units.h"

#include <string>
#include <vector>

int unit_ask(const unit_objects* objects)
{
    kvl_stats stats;
    if (kvl_cache_stats(objects->cache, &stats)) return unit_fail(objects, "stats");
    if (stats.num_rows != UNIT_ROWS) return unit_fail(objects, "rows");
    std::size_t needed = 0;
    if (kvl_describe(objects->cache, nullptr, 0, &needed)) return unit_fail(objects, "describe");
    std::vector<char> text(needed);
    if (kvl_describe(objects->cache, text.data(), text.size(), &needed))
        return unit_fail(objects, "describe");
    const std::string whole(text.data());
    if (whole.size() + 1 != needed) return unit_fail(objects, "length of the description");
    return whole.find("kivi") == std::string::npos ? unit_fail(objects, "kivi is not named") : 0;
}
