// test_calibrated.c -- codecs with calibrated tables: what they are given, and what is refused.

#include "test_support.h"

static const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };

// The message of a cache that cannot be created.
static void refuse(const char* spec, int head_dim, const kvl_calibration* calibration,
                   const char* words)
{
    const kvl_layer_desc layer = test_layer(spec, 4, 2, head_dim, head_dim);
    kvl_context* ctx = test_context(&reference, 1);
    kvl_cache* cache = NULL;
    kvl_cache_desc desc = { 0 };
    desc.num_layers = 1;
    desc.layers = &layer;
    desc.calibration = calibration;
    const kvl_status status = kvl_cache_create(ctx, &desc, &cache);
    cr_assert(status == KVL_BAD_ARGUMENT && !cache && strstr(kvl_context_message(ctx), words),
              "%s: status %d, '%s', expected '%s'", spec, (int)status, kvl_context_message(ctx),
              words);
    kvl_context_destroy(ctx);
}

Test(calibrated, what_is_missing_is_named_with_the_command_that_makes_it)
{
    // Broken by a cache that takes zeros for a table it was not given, or whose message helps not.
    refuse("rtn:k.shift=mean", 64, NULL, "layer 0: k.shift = mean: needs a calibration with "
           "layer.0.k.mean; make it with kvloom-calibrate -m MODEL -f TEXT -o FILE --for 'rtn:");
    refuse("rtn:v.shift=mean", 64, test_calibration(TEST_TABLES_EMPTY),
           "layer 0: v.shift = mean: the calibration has no layer.0.v.mean; make it with "
           "kvloom-calibrate -m MODEL -f TEXT -o FILE --resume --for 'rtn:");
    refuse("rtn:shift=mean", 64, test_calibration(TEST_TABLES_SPOILT),
           "calibration: layer.0.k.mean = inf in head 0, number 0: must be finite");
    refuse("rtn:shift=median", 64, NULL, "shift = 'median': must be one of none, mean");
}

Test(calibrated, the_description_says_that_a_calibration_is_needed)
{
    // Broken by a spec whose need shows only when the cache is created.
    kvl_layer_desc layer = test_layer("rtn:k.shift=mean", 4, 2, 64, 64);
    kvl_context* ctx = test_context(&reference, 1);
    kvl_layer_info info;
    test_ok(ctx, kvl_spec_check(ctx, &layer, &info), layer.spec);
    cr_assert(info.needs_calibration == 1);
    layer.spec = "rtn";
    test_ok(ctx, kvl_spec_check(ctx, &layer, &info), layer.spec);
    cr_assert(info.needs_calibration == 0);
    kvl_context_destroy(ctx);
}

Test(calibrated, tables_are_counted)
{
    // Broken by records that statistics or estimate leave out: keys and values of 2 heads, 80 and
    // 96 numbers each, and up to 63 bytes of alignment.
    uint64_t bytes[2], estimate;
    for (int i = 0; i < 2; ++i) {
        const kvl_layer_desc layer = test_layer(i ? "rtn:g16,shift=mean" : "rtn:g16", 4, 2, 80, 96);
        kvl_cache_desc desc = { 0 };
        kvl_stats stats;
        desc.num_layers = 1;
        desc.layers = &layer;
        test_cache c = test_open_threads(&reference, &layer, 1);
        test_ok(c.ctx, kvl_cache_stats(c.cache, &stats), "stats");
        test_ok(c.ctx, kvl_estimate(c.ctx, &desc, 0, 0, &estimate), "estimate");
        cr_assert(estimate == stats.bytes, "estimate %llu, held %llu",
                  (unsigned long long)estimate, (unsigned long long)stats.bytes);
        bytes[i] = stats.bytes;
        test_close(&c);
    }
    cr_assert(bytes[1] - bytes[0] == 2 * (80 + 96) * 4 + 63, "%llu bytes of tables",
              (unsigned long long)(bytes[1] - bytes[0]));
}

// An order of channels that names one twice, or one that is not there.
static kvl_status wrong_order(const kvl_derive_args* a, float* out)
{
    if (strcmp(a->table, "feedback_order") != 0) return KVL_OK;
    for (int i = 0; i < a->num_kv_heads * a->head_dim; ++i) out[i] = (float)(i % a->head_dim);
    out[a->head_dim + 5] = *(const float*)a->user;
    return KVL_OK;
}

Test(calibrated, an_order_of_channels_that_is_none_is_refused)
{
    // Broken by a channel that is looked for beside the row.
    static const char* const spec = "rtn:k.round=feedback";
    static const struct { float number; const char* text; } bad[] = {
        { 64, "64" }, { -1, "-1" }, { 4, "4" }, { 4.5f, "4.5" }, { 1e9f, "1e+09" } };
    const kvl_layer_desc layer = test_layer(spec, 4, 2, 64, 64);
    kvl_context* ctx = test_context(&reference, 1);
    kvl_statistics_desc sd = { 0 };
    kvl_cache_desc desc = { 0 };
    kvl_statistics* stats = NULL;
    sd.num_layers = desc.num_layers = 1;
    sd.layers = desc.layers = &layer;
    test_ok(ctx, kvl_statistics_create(ctx, &sd, &stats), "statistics");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        float number = bad[i].number;
        kvl_derivation own[3] = { { "round", NULL, "feedback_order", wrong_order, NULL },
                                  { "round", NULL, "feedback_factor", wrong_order, NULL },
                                  { "round", NULL, "feedback_price", wrong_order, NULL } };
        kvl_derive_desc derive = { 0 };
        kvl_calibration* calibration = NULL;
        kvl_cache* cache = NULL;
        char words[128];
        snprintf(words, sizeof words, " = %s in head 1, number 5: must name each of the head's 64 "
                 "channels once", bad[i].text);
        own[0].user = &number;
        derive.stats = stats;
        derive.cache = &desc;
        derive.derivations = own;
        derive.num_derivations = 3;
        desc.calibration = NULL;
        test_ok(ctx, kvl_calibration_create(stats, NULL, &calibration), spec);
        test_ok(ctx, kvl_calibration_derive(calibration, &derive), spec);
        desc.calibration = calibration;
        cr_expect(kvl_cache_create(ctx, &desc, &cache) == KVL_BAD_ARGUMENT && !cache &&
                  strstr(kvl_context_message(ctx), "feedback_order") &&
                  strstr(kvl_context_message(ctx), words), "%s: '%s'", words,
                  kvl_context_message(ctx));
        kvl_cache_free(cache);
        kvl_calibration_free(calibration);
    }
    kvl_statistics_free(stats);
    kvl_context_destroy(ctx);
}
