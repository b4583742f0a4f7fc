// test_plan.c -- arithmetic of lengths: how many parts a query has.
//
// Breaks when a launch has less room than a length that it serves takes, or when threads have
// no work where there are rows for it.

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

// By hand: 1024 rows each; with 3 heads two of 384 at 768 rows, so that two threads have three
// splits each; of 8 heads and 65536 rows 16 of 4096; one head has 63 at most, of equal pages.
Test(plan, splits_of_a_query_on_the_host)
{
    static const struct { int64_t rows; int32_t heads, page; int splits; int64_t pages_each; }
        cases[] = {
            { 1, 8, 64, 1, 1 },          { 767, 3, 64, 1, 12 },      { 768, 3, 64, 2, 6 },
            { 1536, 3, 64, 4, 6 },       { 1535, 3, 64, 2, 12 },      { 767, 8, 64, 1, 12 },
            { 1024, 8, 64, 1, 16 },      { 4096, 8, 64, 4, 16 },     { 8192, 8, 64, 8, 16 },
            { 16384, 8, 64, 8, 32 },     { 32768, 8, 64, 8, 64 },    { 65536, 8, 64, 16, 64 },
            { 16384, 2, 64, 16, 16 },    { 65536, 2, 64, 32, 32 },   { 3072, 1, 64, 8, 6 },
            { 65536, 1, 64, 61, 17 },    { 1 << 20, 8, 64, 63, 261 }, { 4096, 1024, 64, 1, 64 },
            { 4097, 1024, 64, 2, 33 },   { 768, 1, 512, 2, 1 },
        };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        kvl__config c;
        kvl__extent e;
        memset(&c, 0, sizeof c);
        memset(&e, 0, sizeof e);
        c.num_kv_heads = cases[i].heads;
        c.page_size = cases[i].page;
        e.rows = e.quantized = cases[i].rows;
        const kvl__visible v = kvl__see(&c, &e, 0, INT64_MAX);
        cr_assert(v.num_splits == cases[i].splits && v.pages_per_split == cases[i].pages_each,
                  "%lld rows, %d heads: %d splits of %lld pages, by hand %d of %lld",
                  (long long)cases[i].rows, cases[i].heads, v.num_splits,
                  (long long)v.pages_per_split, cases[i].splits,
                  (long long)cases[i].pages_each);
    }
}

// Every page is read, none twice, no split is empty, at any length.
Test(plan, splits_cover_all_pages)
{
    for (size_t i = 0; i < sizeof page_sizes / sizeof page_sizes[0]; ++i)
        for (int32_t heads = 1; heads <= 128; heads *= 2)
            for (int64_t rows = 1; rows <= 300000; rows += 1 + rows / 97) {
                kvl__config c;
                kvl__extent e;
                memset(&c, 0, sizeof c);
                memset(&e, 0, sizeof e);
                c.num_kv_heads = heads;
                c.page_size = page_sizes[i];
                e.rows = e.quantized = rows;
                const kvl__visible v = kvl__see(&c, &e, rows / 3, rows);
                const int64_t pages = (v.page_end - 1) / c.page_size - v.first_page + 1;
                cr_assert(v.num_splits >= 1 && v.num_splits <= KVL__MAX_SPLITS &&
                          v.num_splits * v.pages_per_split >= pages &&
                          (v.num_splits - 1) * v.pages_per_split < pages,
                          "page %d, %d heads, %lld rows: %d splits of %lld of %lld pages",
                          c.page_size, heads, (long long)rows, v.num_splits,
                          (long long)v.pages_per_split, (long long)pages);
            }
}
