// test_header.c -- what the header says of itself: version, statuses, objects that are NULL.
//
// The header is included before and after its implementation, as a large program would.  What needs
// other compilers, standards and link forms is in tests/header/run.sh.
#include "kvloom.h"

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

#include "kvloom.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

// Fails when one of the four version macros is changed without the others.
Test(header, version_macros_agree)
{
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", KVLOOM_VERSION_MAJOR, KVLOOM_VERSION_MINOR,
             KVLOOM_VERSION_PATCH);
    cr_assert_str_eq(text, KVLOOM_VERSION);
}

// Fails when a status value moves: callers may have stored it.
Test(header, status_values_are_pinned)
{
    cr_assert_eq((int)KVL_OK, 0);
    cr_assert_eq((int)KVL_BAD_ARGUMENT, 1);
    cr_assert_eq((int)KVL_UNSUPPORTED, 2);
    cr_assert_eq((int)KVL_NO_MEMORY, 3);
    cr_assert_eq((int)KVL_NO_DRIVER, 4);
    cr_assert_eq((int)KVL_NO_KERNEL, 5);
    cr_assert_eq((int)KVL_GENERATE, 6);
    cr_assert_eq((int)KVL_COMPILE, 7);
    cr_assert_eq((int)KVL_DEVICE, 8);
}

// Fails when a status has no text, or two share one.
Test(header, each_status_has_its_text)
{
    int a, b;
    for (a = KVL_OK; a <= KVL_DEVICE; ++a) {
        const char* text = kvl_status_text((kvl_status)a);
        cr_assert_not_null(text);
        cr_assert_neq(strcmp(text, "unknown status"), 0, "status %d", a);
        for (b = KVL_OK; b < a; ++b)
            cr_assert_neq(strcmp(text, kvl_status_text((kvl_status)b)), 0, "%d and %d", a, b);
    }
    cr_assert_str_eq(kvl_status_text((kvl_status)99), "unknown status");
    cr_assert_str_eq(kvl_status_text((kvl_status)-1), "unknown status");
}

// Fails when destroying nothing is an error, or NULL is not refused.
Test(header, null_is_allowed_or_refused)
{
    kvl_cache* cache = NULL;
    kvl_context* ctx = NULL;
    kvl_seq seq;
    kvl_context_destroy(NULL);
    kvl_cache_free(NULL);
    cr_assert_eq(kvl_context_create(NULL, NULL), KVL_BAD_ARGUMENT);
    cr_assert_eq(kvl_cache_create(NULL, NULL, &cache), KVL_BAD_ARGUMENT);
    cr_assert_eq(kvl_seq_create(NULL, &seq), KVL_BAD_ARGUMENT);
    cr_assert_eq(kvl_append(NULL, NULL), KVL_BAD_ARGUMENT);
    cr_assert_eq(kvl_attend(NULL, NULL), KVL_BAD_ARGUMENT);
    (void)ctx;
}

// Fails when a desc that was not zeroed passes, or its refusal does not say so.
Test(header, a_desc_that_was_not_zeroed_is_caught)
{
    kvl_context_desc desc;
    kvl_context* ctx = NULL;
    memset(&desc, 0, sizeof desc);
    desc.end = 0xcdcdcdcdu;
    cr_assert_eq(kvl_context_create(&desc, &ctx), KVL_BAD_ARGUMENT);
    if (ctx) cr_assert(strlen(kvl_context_message(ctx)) > 0);
    kvl_context_destroy(ctx);
}
