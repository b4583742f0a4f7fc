// test_plan.c -- arithmetic of lengths: how many parts a query has.
//
// Breaks when a launch has less room than a length that it serves takes.

#include "kvl_plan.h"

#include <criterion/criterion.h>

enum { PAGES = 4096 };

static const int page_sizes[] = { 16, 32, 48, 64, 96, 128, 256, 512 };

// By hand: of 64 rows a page at least 4 pages a split; 252 / 4 = 63, and 256 pages are more than
// 63 x 4, so 5 a split, which are 52.
Test(plan, fewer_pages_may_have_more_splits)
{
    kvl__config c;
    memset(&c, 0, sizeof c);
    c.page_size = 64;
    cr_assert_eq(kvl__device_splits(&c, 252, KVL__MAX_SPLITS), 63);
    cr_assert_eq(kvl__device_splits(&c, 256, KVL__MAX_SPLITS), 52);
    cr_assert_eq(kvl__device_splits(&c, 0, KVL__MAX_SPLITS), 0);
    cr_assert_eq(kvl__device_most_splits(&c, 252), 63);
    cr_assert_eq(kvl__device_most_splits(&c, 256), 63);
    cr_assert_eq(kvl__device_most_splits(&c, 9), 3);
}

// What a captured attend has room for, every shorter length fits into: as it is divided alone.
Test(plan, a_captured_attend_has_room_for_every_shorter_length)
{
    kvl__config c;
    memset(&c, 0, sizeof c);
    for (size_t i = 0; i < sizeof page_sizes / sizeof page_sizes[0]; ++i) {
        int64_t longest = 0;
        c.page_size = page_sizes[i];
        for (int64_t pages = 1; pages <= PAGES; ++pages) {
            const int64_t own = kvl__device_splits(&c, pages, KVL__MAX_SPLITS);
            const int64_t most = kvl__device_most_splits(&c, pages);
            longest = own > longest ? own : longest;
            cr_assert(most >= longest && most <= KVL__MAX_SPLITS,
                      "page %d: %lld pages: room for %lld splits, a shorter one has %lld",
                      c.page_size, (long long)pages, (long long)most, (long long)longest);
            cr_assert_eq(kvl__device_splits(&c, pages, kvl__device_splits_in(most + 1)), own);
        }
    }
}

// A launch with room for any number of parts is never asked for more; with enough of them each
// query is divided as it is alone, whatever others the launch has.
Test(plan, no_launch_has_more_parts_than_room)
{
    kvl__config c;
    memset(&c, 0, sizeof c);
    for (size_t i = 0; i < sizeof page_sizes / sizeof page_sizes[0]; ++i) {
        c.page_size = page_sizes[i];
        for (int64_t parts = 2; parts <= KVL__MAX_SPLITS + 1; ++parts) {
            for (int64_t pages = 1; pages <= PAGES; ++pages) {
                const int64_t alone = kvl__device_splits(&c, pages, KVL__MAX_SPLITS);
                const int64_t splits =
                    kvl__device_splits(&c, pages, kvl__device_splits_in(parts));
                cr_assert(splits >= 1 && splits < parts && (splits == alone || alone >= parts),
                          "page %d: %lld pages in %lld parts: %lld splits, alone %lld",
                          c.page_size, (long long)pages, (long long)parts, (long long)splits,
                          (long long)alone);
            }
        }
    }
}
