// units_main.c -- create in one unit, use in another, ask in a third: units_main CACHE_DIR.
#include "units.h"

#include <stdio.h>

int main(int argc, char** argv)
{
    unit_objects objects = { 0 };
    int failed;
    if (argc != 2) return 2;
    failed = unit_create(&objects, argv[1]) || unit_use(&objects) || unit_ask(&objects);
    kvl_cache_free(objects.cache);
    kvl_context_destroy(objects.ctx);
    if (!failed) puts("units: ok");
    return failed;
}
