// test_api.c -- refusals, specs, handles, budgets, failing memory, accounting, honest descriptions.

#include "test_support.h"

#include <sys/wait.h>
#include <unistd.h>

static const test_target reference = { "reference", KVL_TARGET_REFERENCE, NULL };

#define SMALL_SPEC "kivi:k2,v2,kg16,vg16,sink=4,recent=24,chunk=16"

static void refused(const kvl_context* ctx, kvl_status status, const char* name, const char* value,
                    const char* what)
{
    const char* message = kvl_context_message(ctx);
    cr_assert(status == KVL_BAD_ARGUMENT, "%s: %s", what, kvl_status_text(status));
    cr_assert(strstr(message, name) != NULL, "%s: '%s' does not name '%s'", what, message, name);
    cr_assert(strstr(message, value) != NULL, "%s: '%s' does not say '%s'", what, message, value);
}

// CONTEXTS

static void check_context(const kvl_context_desc* desc, kvl_status expected, const char* name,
                          const char* value)
{
    kvl_context* ctx = NULL;
    kvl_cache* cache = NULL;
    kvl_cache_desc kd = { 0 };
    const kvl_status status = kvl_context_create(desc, &ctx);
    cr_assert(status == expected, "%s = %s: %s", name, value, kvl_status_text(status));
    cr_assert(ctx != NULL, "%s: a failed creation yields a context to ask", name);
    cr_assert(strstr(kvl_context_message(ctx), name) && strstr(kvl_context_message(ctx), value),
              "'%s' names neither %s nor %s", kvl_context_message(ctx), name, value);
    cr_assert(kvl_cache_create(ctx, &kd, &cache) != KVL_OK && cache == NULL,
              "a broken context makes no cache");
    kvl_context_destroy(ctx);
}

Test(api, contexts_refuse_what_is_out_of_range)
{
    // Broken by a field of kvl_context_desc that is not checked.
    kvl_context_desc d = { 0 };
    d.end = 7;
    check_context(&d, KVL_BAD_ARGUMENT, "end", "7");
    d = (kvl_context_desc){ 0 };
    d.target = (kvl_target)99;
    check_context(&d, KVL_BAD_ARGUMENT, "target", "99");
    d = (kvl_context_desc){ 0 };
    d.num_threads = -1;
    check_context(&d, KVL_BAD_ARGUMENT, "num_threads", "-1");
    d.num_threads = 257;
    check_context(&d, KVL_BAD_ARGUMENT, "num_threads", "257");
    d = (kvl_context_desc){ 0 };
    d.compile_seconds = -5;
    check_context(&d, KVL_BAD_ARGUMENT, "compile_seconds", "-5");
    d = (kvl_context_desc){ 0 };
    d.isa = "sse9";
    check_context(&d, KVL_BAD_ARGUMENT, "isa", "sse9");
    d = (kvl_context_desc){ 0 };
    test_memory memory;
    test_memory_init(&memory);
    d.allocator.alloc = test_memory_allocator(&memory).alloc;
    check_context(&d, KVL_BAD_ARGUMENT, "allocator", "free");
    check_context(NULL, KVL_BAD_ARGUMENT, "desc", "NULL");
    d = (kvl_context_desc){ 0 };
    cr_assert(kvl_context_create(&d, NULL) == KVL_BAD_ARGUMENT, "out = NULL");
    kvl_context_destroy(NULL);
    kvl_cache_free(NULL);
}

Test(api, statuses_and_null)
{
    // Broken by a status without a text, or a NULL that is followed.
    for (int i = 0; i <= 8; ++i)
        cr_assert(strcmp(kvl_status_text((kvl_status)i), "unknown status") != 0, "status %d", i);
    cr_assert_str_eq(kvl_status_text((kvl_status)77), "unknown status");
    cr_assert_str_eq(kvl_status_text(KVL_OK), "no error");
    kvl_cache* cache = NULL;
    kvl_seq seq = 0;
    kvl_stats stats;
    kvl_seq_rows rows;
    uint64_t bytes;
    cr_assert(kvl_cache_create(NULL, NULL, &cache) == KVL_BAD_ARGUMENT, "create");
    cr_assert(kvl_seq_create(NULL, &seq) == KVL_BAD_ARGUMENT, "seq_create");
    cr_assert(kvl_seq_free(NULL, seq) == KVL_BAD_ARGUMENT, "seq_free");
    cr_assert(kvl_append(NULL, NULL) == KVL_BAD_ARGUMENT, "append");
    cr_assert(kvl_attend(NULL, NULL) == KVL_BAD_ARGUMENT, "attend");
    cr_assert(kvl_restore(NULL, 0, seq, 0, 0, NULL, NULL) == KVL_BAD_ARGUMENT, "restore");
    cr_assert(kvl_read_codes(NULL, 0, seq, 0, 0, 0, 0, NULL) == KVL_BAD_ARGUMENT, "read_codes");
    cr_assert(kvl_cache_stats(NULL, &stats) == KVL_BAD_ARGUMENT, "stats");
    cr_assert(kvl_seq_get_rows(NULL, 0, seq, &rows) == KVL_BAD_ARGUMENT, "get_rows");
    cr_assert(kvl_estimate(NULL, NULL, 1, 1, &bytes) == KVL_BAD_ARGUMENT, "estimate");
    cr_assert(kvl_describe(NULL, NULL, 0, NULL) == KVL_BAD_ARGUMENT, "describe");
    cr_assert(kvl_spec_check(NULL, NULL, NULL) == KVL_BAD_ARGUMENT, "spec_check");
    cr_assert(kvl_cache_layer_info(NULL, 0, NULL) == KVL_BAD_ARGUMENT, "layer_info");
    cr_assert(strlen(kvl_context_message(NULL)) == 0, "message of NULL");
}

static void count_item(void* arg, int64_t i)
{
    __atomic_add_fetch((int*)arg + i, 1, __ATOMIC_RELAXED);
}

typedef struct nested { kvl_context* ctx; int* counts; } nested;

static void nested_item(void* arg, int64_t i)
{
    const nested* n = (const nested*)arg;
    kvl_parallel_for(n->ctx, 10, count_item, n->counts + 10 * i);
}

Test(api, parallel_for_visits_each_index_once)
{
    // Broken by an index that is lost or done twice, or by a body that waits for its own pool.
    kvl_context* ctx = test_context(&reference, 5);
    static int counts[1000];
    nested n = { ctx, counts };
    cr_assert(kvl_context_threads(ctx) == 5, "%d threads", kvl_context_threads(ctx));
    for (int round = 1; round <= 50; ++round) {
        if (round % 2) kvl_parallel_for(ctx, 1000, count_item, counts);
        else kvl_parallel_for(ctx, 100, nested_item, &n);
        for (int i = 0; i < 1000; ++i)
            cr_assert(counts[i] == round, "index %d: %d visits, expected %d", i, counts[i], round);
    }
    kvl_parallel_for(ctx, 0, count_item, counts);
    kvl_context_destroy(ctx);
}

// CACHES

typedef struct bad_layer {
    const char* name;
    const char* value;
    kvl_layer_desc layer;
} bad_layer;

Test(api, layers_refuse_what_is_out_of_range)
{
    // Broken by a field of kvl_layer_desc that is not checked, or a message without name or value.
    const bad_layer bad[] = {
        { "num_q_heads", "0", { .num_q_heads = 0, .num_kv_heads = 2, .head_dim = 64 } },
        { "num_q_heads", "7", { .num_q_heads = 7, .num_kv_heads = 2, .head_dim = 64 } },
        { "num_q_heads", "34", { .num_q_heads = 34, .num_kv_heads = 2, .head_dim = 64 } },
        { "num_q_heads", "-2", { .num_q_heads = -2, .num_kv_heads = 2, .head_dim = 64 } },
        { "num_kv_heads", "-1", { .num_q_heads = 4, .num_kv_heads = -1, .head_dim = 64 } },
        { "head_dim", "0", { .num_q_heads = 4, .num_kv_heads = 2 } },
        { "head_dim", "16", { .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 16 } },
        { "head_dim", "33", { .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 33 } },
        { "head_dim", "72", { .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 72 } },
        { "head_dim", "272", { .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 272 } },
        { "head_dim", "-64", { .num_q_heads = 4, .num_kv_heads = 2, .head_dim = -64 } },
        { "head_dim_v", "16",
          { .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64, .head_dim_v = 16 } },
        { "head_dim_v", "260",
          { .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64, .head_dim_v = 260 } },
        { "head_dim_v", "-16",
          { .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64, .head_dim_v = -16 } },
        { "softmax_scale", "-1",
          { .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64, .softmax_scale = -1 } },
        { "softmax_scale", "nan",
          { .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64, .softmax_scale = NAN } },
        { "softmax_scale", "inf",
          { .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64, .softmax_scale = INFINITY } },
        { "soft_cap", "-30",
          { .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64, .soft_cap = -30 } },
        { "soft_cap", "nan",
          { .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64, .soft_cap = NAN } },
        { "window_len", "-1",
          { .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 64, .window_len = -1 } },
    };
    kvl_context* ctx = test_context(&reference, 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        kvl_layer_desc layers[3];
        kvl_cache_desc desc = { 0 };
        kvl_cache* cache = (kvl_cache*)ctx;
        uint64_t bytes = 12345;
        layers[0] = layers[1] = layers[2] = test_layer("f16", 4, 2, 64, 0);
        layers[1] = bad[i].layer;
        desc.num_layers = 3;
        desc.layers = layers;
        refused(ctx, kvl_cache_create(ctx, &desc, &cache), bad[i].name, bad[i].value, bad[i].name);
        cr_assert(cache == NULL, "*out is not NULL");
        cr_assert(strstr(kvl_context_message(ctx), "layer 1") != NULL, "'%s' does not name layer 1",
                  kvl_context_message(ctx));
        cr_assert(strstr(kvl_context_message(ctx), "must") != NULL, "'%s' states no rule",
                  kvl_context_message(ctx));
        refused(ctx, kvl_estimate(ctx, &desc, 1, 1, &bytes), bad[i].name, bad[i].value, "estimate");
        cr_assert(bytes == 12345, "a refused estimate wrote its output");
        refused(ctx, kvl_spec_check(ctx, &bad[i].layer, NULL), bad[i].name, bad[i].value, "check");
    }
    kvl_context_destroy(ctx);
}

Test(api, cache_descs_refuse_what_is_out_of_range)
{
    // Broken by a field of kvl_cache_desc that is not checked.
    kvl_context* ctx = test_context(&reference, 1);
    const kvl_layer_desc layer = test_layer("f16", 4, 2, 64, 0);
    kvl_cache* cache;
    kvl_cache_desc good = { 0 }, d;
    uint64_t bytes;
    good.num_layers = 1;
    good.layers = &layer;
    d = good;
    d.num_layers = 0;
    refused(ctx, kvl_cache_create(ctx, &d, &cache), "num_layers", "0", "no layers");
    d.num_layers = -3;
    refused(ctx, kvl_cache_create(ctx, &d, &cache), "num_layers", "-3", "fewer than no layers");
    d = good;
    d.layers = NULL;
    refused(ctx, kvl_cache_create(ctx, &d, &cache), "layers", "NULL", "layers");
    d = good;
    d.max_seqs = -2;
    refused(ctx, kvl_cache_create(ctx, &d, &cache), "max_seqs", "-2", "max_seqs");
    d = good;
    d.end = 3;
    refused(ctx, kvl_cache_create(ctx, &d, &cache), "end", "3", "end");
    refused(ctx, kvl_cache_create(ctx, &good, NULL), "out", "NULL", "out");
    refused(ctx, kvl_cache_create(ctx, NULL, &cache), "desc", "NULL", "desc");
    refused(ctx, kvl_estimate(ctx, &good, -1, 1, &bytes), "num_seqs", "-1", "estimate");
    refused(ctx, kvl_estimate(ctx, &good, 1, -1, &bytes), "num_rows", "-1", "estimate");
    refused(ctx, kvl_estimate(ctx, &good, 1, 1, NULL), "bytes", "NULL", "estimate");
    refused(ctx, kvl_estimate(ctx, &good, 1 << 20, (1LL << 40) - 1, &bytes), "num_seqs = 1048576",
            "64 bits", "estimate");
    kvl_context_destroy(ctx);
}

// SPECS

typedef struct bad_spec {
    const char* spec;
    const char* word;           // what the message names
    const char* allowed;        // and one of what it allows
} bad_spec;

static const bad_spec bad_specs[] = {        // for head_dim 64
    { "kivii:k2", "kivii", "kivi" }, { "", "''", "rtn" }, { ":", "''", "kivi" },
    { "/", "''", "q8_0" },
    { "KIVI", "KIVI", "kivi" }, { "kivi/nope", "nope", "bf16" }, { "kivi/", "''", "f16" },
    { " kivi", " kivi", "kivi" }, { "f16/f16/f16", "f16/f16", "f16" }, { "kivi:", "''", "BITS" },
    { "kivi:,", "''", "BITS" }, { "kivi:k2,,v2", "''", "BITS" }, { "kivi:k2,", "''", "BITS" },
    { "kivi:k7", "k7", "8" }, { "kivi:v0", "v0", "1, 2" }, { "kivi:b16", "16", "6, 8" },
    { "kivi:k", "'k'", "kBITS" }, { "kivi:k-2", "k-2", "kBITS" }, { "kivi:k2v2", "k2v2", "kBITS" },
    { "kivi:k2 ", "k2 ", "kBITS" }, { "kivi:x3", "x3", "kBITS" }, { "kivi:2", "'2'", "no sizes" },
    { "kivi:k99999999999", "k99999999999", "kBITS" }, { "kivi:kb2", "kb2", "kBITS" },
    { "q8_0:k1", "k1", "2" }, { "f16:k8", "k8", "16" }, { "rtn:g0", "g0", "2" },
    { "rtn:g1", "g1", "2" }, { "rtn:vg24", "vg24", "64" }, { "rtn:g128", "g128", "64" },
    { "rtn:kg5000", "kg5000", "4096" }, { "kivi:chunk=33", "33", "32" },
    { "kivi:kg48,chunk=32", "32", "48" }, { "kivi:page=17", "17", "32" },
    { "rtn:page=8", "8", "16" }, { "rtn:chunk=0", "chunk", "1" }, { "rtn:page=0", "page", "1" },
    { "rtn:sink=-1", "-1", "0" }, { "rtn:sink=", "sink", "0" }, { "rtn:recent=1e3", "1e3", "0" },
    { "rtn:sink=99999999", "99999999", "0" }, { "rtn:rows=f32", "f32", "bf16" },
    { "rtn:window=3", "window", "sink" }, { "rtn:k.sink=3", "k.sink", "transform" },
    { "rtn:fit=best", "best", "minmax" }, { "rtn:k.fit=", "fit", "absmax" },
    { "rtn:x.fit=minmax", "x.fit", "fit" }, { "rtn:fit=none", "fit", "affine" },
    { "rtn:fit=absmax", "absmax", "symmetric" }, { "rtn:levels=symmetric", "minmax", "affine" },
    { "rtn:levels=f16", "4", "16" }, { "q8_0:meta=none", "meta", "scale" },
    { "q4_0:meta=8bit", "8bit", "signed_absmax" }, { "rtn:meta=f32", "f32", "8bit" },
    { "rtn:transform=hadamard48", "48", "power of two" },
    { "rtn:transform=hadamard128", "128", "64" },
    { "rtn:transform=hadamard1", "1", "power of two" },
    { "rtn:transform=hadamard0", "hadamard0", "hadamard" },
    { "rtn:transform=hadamardx", "hadamardx", "hadamard" },
    { "rtn:transform=fwht", "fwht", "none" },
    { "rtn:round=up", "up", "nearest_up" }, { "rtn:axis=rows", "rows", "per_channel" },
    { "rtn:place=pre_rope", "v.place = pre_rope", "keys alone" },
    { "rtn:k.place=pre", "'pre'", "pre_rope" },
    { "rtn:k.place=pre_rope,k.shift=rotating-mean", "rotating-mean", "k.shift = mean" },
    { "rtn:shift=average", "mean", "none" },
    { "rtn:choose=flags", "flags", "none" }, { "rtn:extra=outlier_rows", "outliers", "none" },
    { "kivi:v.choose=unit", "v.choose = unit", "keys alone" },
    { "kivi:k.meta=e4m3,k.choose=unit", "k.choose = unit", "k.score" },
    { "kivi:k.score=attention30,k.choose=fixed", "attention30", "16 to 512 in steps of 16" },
    { "flagrot-kivi:k.score=attention8", "attention8", "16 to 512" },
    { "flagrot-kivi:k.choose=unit8", "unit8", "16 to 256" },
    { "flagrot-kivi:k.choose=fixed512", "fixed512", "16 to 256" },
    { "flagrot-kivi:k.meta=8bit", "8bit", "e4m3 and f16" },
    { "flagrot-kivi:k.transform=hadamard", "hadamard", "k.transform = none" },
    { "flagrot-kivi:k.fit=absmax,k.levels=symmetric", "symmetric", "affine" },
    { "flagrot-kivi:kg8", "kg8", "multiple of 16" },
    { "flagrot-kivi:kg512", "kg512", "16384" },
    { "flagrot-auto:kg64", "kg64", "piece, 32" },
    { "flagrot-auto/f16:k.levels=f16,k16", "f16", "affine" },
    { "flagrot_kivi", "flagrot_kivi", "flagrot-kivi" },
    { "kivi:bits=2", "'2'", "auto:BITS" }, { "kivi:bits=auto", "auto", "auto:BITS" },
    { "kivi:bits=auto:", "auto:", "BITS" }, { "kivi:bits=auto:2.", "auto:2.", "BITS" },
    { "kivi:bits=auto:.5", "auto:.5", "BITS" }, { "kivi:bits=auto:2.1234", "2.1234", "3 digits" },
    { "kivi:bits=auto:100", "auto:100", "BITS" }, { "kivi:bits=auto:2x", "auto:2x", "BITS" },
    { "kivi:bits=auto:0", "auto:0", "BITS" },
    { "kivi:bits=auto:1.4", "auto:1.4", "1.5 to 8.5" },
    { "kivi:bits=auto:8.6", "auto:8.6", "1.5 to 8.5" },
    { "kivi:k2,bits=auto:2.5", "'k'", "auto" }, { "kivi:bits=auto:2.5,b3", "'b'", "auto" },
    { "f16:bits=auto:16", "k.levels = f16", "one width" },
    { "kivi:bits=auto:2.5,bits=auto:2.5", "'bits'", "twice" },
    { "loom:2.3", "'2.3'", "2.125, 2.25, 2.5" }, { "loom/kivi:2.25", "'2.25'", "one preset" },
    { "loom:2.25,k3", "'k'", "auto" }, { "loom:2.5,sink=1,2.125", "size", "twice" },
    { "f16:chunk=999", "chunk = 999", "15984" }, { "kivi:chunk=2016,kg32,page=32", "32", "2016" },
    { "kivi:kg999", "chunk = 999", "at most 4096" },
};

Test(api, a_wrong_word_names_itself_and_the_allowed_ones)
{
    // Broken by a rule of the grammar that is not checked, or by a message that says too little.
    kvl_context* ctx = test_context(&reference, 1);
    for (size_t i = 0; i < sizeof bad_specs / sizeof bad_specs[0]; ++i) {
        const kvl_layer_desc layer = test_layer(bad_specs[i].spec, 4, 2, 64, 0);
        kvl_cache_desc desc = { 0 };
        kvl_cache* cache;
        refused(ctx, kvl_spec_check(ctx, &layer, NULL), bad_specs[i].word, bad_specs[i].allowed,
                bad_specs[i].spec);
        desc.num_layers = 1;
        desc.layers = &layer;
        refused(ctx, kvl_cache_create(ctx, &desc, &cache), bad_specs[i].word, "layer 0",
                bad_specs[i].spec);
    }
    char* huge = (char*)test_alloc(100001, 1);
    memset(huge, 'k', 100000);
    const kvl_layer_desc layer = test_layer(huge, 4, 2, 64, 0);
    cr_assert(kvl_spec_check(ctx, &layer, NULL) == KVL_BAD_ARGUMENT, "a spec of 100000 letters");
    free(huge);
    kvl_context_destroy(ctx);
}

static void check_canonical(kvl_context* ctx, const char* spec, int dk, int dv)
{
    kvl_layer_desc layer = test_layer(spec, 4, 2, dk, dv);
    kvl_layer_info first, second;
    memset(&first, 0, sizeof first);
    memset(&second, 0, sizeof second);
    test_ok(ctx, kvl_spec_check(ctx, &layer, &first), spec);
    cr_assert(memchr(first.spec, 0, sizeof first.spec) != NULL, "%s: no end", spec);
    layer.spec = first.spec;
    test_ok(ctx, kvl_spec_check(ctx, &layer, &second), first.spec);
    cr_assert_str_eq(first.spec, second.spec, "%s: canonical %s parses to %s", spec, first.spec,
                     second.spec);
    cr_assert(first.k_bits == second.k_bits && first.v_bits == second.v_bits, "%s: bits", spec);
    cr_assert(first.sink_len == second.sink_len && first.recent_len == second.recent_len &&
              first.chunk_len == second.chunk_len && first.page_size == second.page_size,
              "%s: windows", spec);
}

Test(api, the_canonical_spec_parses_to_itself)
{
    // Broken by a stage, a number or a window that the canonical text leaves out or cuts off.
    static const char* const specs[] = { "f16", "bf16", "q8_0", "q4_0", "rtn", "kivi", "q8_0/q4_0",
        "kivi/f16", "kivi:k2,v2,g32", "kivi:b1,vg16,kg48", "rtn:b4,meta=f16,transform=hadamard",
        "kivi:k2,v4,v.transform=hadamard32,sink=64,recent=256", "q8_0:meta=8bit,round=nearest",
        "rtn:rows=bf16,sink=0,recent=0,chunk=7,page=112",
        "kivi:k.axis=per_token,v.axis=per_channel",
        "q4_0/kivi:k.round=nearest_away,v8", "f16:transform=hadamard16",
        "rtn:levels=f16,b16", "f16/q4_0:k.levels=bf16,v.fit=absmax,v.round=nearest" };
    kvl_context* ctx = test_context(&reference, 1);
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; ++i) {
        check_canonical(ctx, specs[i], 128, 128);
        check_canonical(ctx, specs[i], 96, 192);
    }
    // Every stage of both sides differs from the preset's: the longest texts.
    check_canonical(ctx, "q8_0/q4_0:b6,g16,transform=hadamard32,axis=per_channel,fit=minmax,"
                    "levels=affine,k.round=nearest_up,v.round=nearest_away,meta=8bit,sink=1000000,"
                    "recent=1000000,chunk=4096,page=4096,rows=bf16", 64, 256);
    check_canonical(ctx, "flagrot-auto/turboquant-k8v4:k1,kg256,k.place=pre_rope,k.shift=middle,"
                    "k.choose=fixed32,k.score=reconstruction,k.axis=per_channel,k.fit=clip96,"
                    "k.round=nearest_away,k.extra=sketch_apart2,k.meta=log4,v4,vg64,v.shift=mean,"
                    "v.transform=signed_hadamard256,v.axis=per_channel,v.fit=shrink80,"
                    "v.round=feedback_trellis8,v.meta=f16_point,sink=1000000,recent=1000000,"
                    "chunk=1024,page=1024,rows=bf16", 256, 256);
    kvl_context_destroy(ctx);
}

// The names of the presets, from what kvl_spec_help prints: they alone stand 2 letters in.
static int next_preset(const char** at, char name[32])
{
    for (*at = strchr(*at, '\n'); *at && **at; *at = strchr(*at + 1, '\n')) {
        const char* line = *at + 1;
        if (strncmp(line, "  ", 2) != 0 || line[2] == ' ') continue;
        snprintf(name, 32, "%.*s", (int)strcspn(line + 2, " \n"), line + 2);
        ++*at;
        return 1;
    }
    return 0;
}

Test(api, sizes_of_any_preset_are_refused_or_parse_again)
{
    // Broken by a page or a chunk that follows from what was given, and that no spec could name.
    static const char* const items[] = { "chunk=999", "chunk=4095", "chunk=4096", "chunk=7",
        "chunk=48", "chunk=272", "chunk=255,page=4080", "page=4096", "kg48", "kg999", "kg4096",
        "kg4095,chunk=4095", "vg16", "kg18,chunk=36", "kg32,vg32,chunk=1056", "chunk=288",
        "kg80,chunk=240,page=480", "g2", "chunk=4080", "recent=1048576,chunk=4064,page=4064" };
    static const int dims[] = { 32, 64, 128, 208, 256 };
    enum { NUM = (int)(sizeof items / sizeof *items) };
    kvl_context* ctx = test_context(&reference, 1);
    const char* at = strstr(kvl_spec_help(), "\npresets ");
    char name[32], spec[128];
    int presets = 0, good = 0, bad = 0;
    cr_assert(at);
    for (++at; next_preset(&at, name); ++presets) {
        for (int i = 0; i < NUM * 5; ++i) {
            snprintf(spec, sizeof spec, "%s:%s", name, items[i / 5]);
            const kvl_layer_desc layer = test_layer(spec, 4, 2, dims[i % 5], 0);
            const kvl_status status = kvl_spec_check(ctx, &layer, NULL);
            cr_assert(status == KVL_OK || (status == KVL_BAD_ARGUMENT && *kvl_context_message(ctx)),
                      "'%s': %s", spec, kvl_status_text(status));
            if (status == KVL_OK) check_canonical(ctx, spec, dims[i % 5], 0);
            *(status == KVL_OK ? &good : &bad) += 1;
        }
    }
    cr_assert(presets > 20 && good > 500 && bad > 500, "%d presets: %d specs are good, %d bad",
              presets, good, bad);
    kvl_context_destroy(ctx);
}

Test(api, a_size_stands_anywhere)
{
    // Broken by a size that is refused, or means something else, behind other items.
    static const char* const specs[] = { "loom:2.5,sink=4,recent=64", "loom:sink=4,2.5,recent=64",
                                         "loom:sink=4,recent=64,2.5" };
    kvl_context* ctx = test_context(&reference, 1);
    kvl_layer_info first, info;
    for (int i = 0; i < 3; ++i) {
        const kvl_layer_desc layer = test_layer(specs[i], 4, 2, 64, 0);
        test_ok(ctx, kvl_spec_check(ctx, &layer, i ? &info : &first), specs[i]);
        if (i) cr_assert_str_eq(info.spec, first.spec, "%s", specs[i]);
    }
    kvl_context_destroy(ctx);
}

Test(api, specs_mean_what_the_manual_says)
{
    // Broken by an item that is parsed and then ignored, or by another bit count.
    typedef struct expected {
        const char* spec;
        double      k_bits, v_bits;
        int         sink, recent, chunk;
    } expected;
    static const expected table[] = {
        { "f16", 16, 16, 0, 0, 1 }, { "q8_0", 8.5, 8.5, 0, 0, 1 }, { "q4_0", 4.5, 4.5, 0, 0, 1 },
        { "kivi:k2,v2,g32", 2.5, 2.5, 4, 128, 32 }, { "kivi:meta=f16", 3, 3, 4, 128, 32 },
        { "kivi:k2,v4,g64", 2.25, 4.25, 4, 128, 64 }, { "rtn", 4.5, 4.5, 4, 128, 1 },
        { "rtn:b3,g64,meta=f16", 3.5, 3.5, 4, 128, 1 }, { "q8_0:meta=8bit", 8.25, 8.25, 0, 0, 1 },
        { "q8_0/kivi", 8.5, 2.5, 4, 128, 1 }, { "kivi/f16", 2.5, 16, 4, 128, 32 },
        { "kivi:sink=0,recent=7,chunk=96", 2.5, 2.5, 0, 7, 96 }, { "f16:sink=5", 16, 16, 5, 0, 1 },
    };
    kvl_context* ctx = test_context(&reference, 1);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; ++i) {
        const expected* e = &table[i];
        const kvl_layer_desc layer = test_layer(e->spec, 4, 2, 64, 0);
        kvl_layer_info info;
        test_ok(ctx, kvl_spec_check(ctx, &layer, &info), e->spec);
        cr_assert(info.k_bits == e->k_bits && info.v_bits == e->v_bits,
                  "%s: %g and %g bits, expected %g and %g", e->spec, info.k_bits, info.v_bits,
                  e->k_bits, e->v_bits);
        cr_assert(info.sink_len == e->sink && info.recent_len == e->recent &&
                  info.chunk_len == e->chunk, "%s: sink %d recent %d chunk %d", e->spec,
                  info.sink_len, info.recent_len, info.chunk_len);
    }
    static const char* const words[] = { "kivi", "rtn", "q8_0", "q4_0", "f16", "bf16", "transform",
        "hadamard", "per_channel", "meta", "8bit", "sink=", "recent=", "chunk=", "page=", "rows=" };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i)
        cr_assert(strstr(kvl_spec_help(), words[i]), "kvl_spec_help says nothing of %s", words[i]);
    kvl_context_destroy(ctx);
}

Test(api, random_specs_are_parsed_or_refused)
{
    // Broken by text that runs over a buffer: 200000 random specs of the grammar's own letters.
    static const char* const pieces[] = { "kivi", "rtn", "q8_0", "f16", "/", ":", ",", "=", "k",
        "v", "g", "b", ".", "2", "4", "8", "16", "32", "transform", "hadamard", "meta", "sink",
        "chunk", "page", "rows", "axis", "per_channel", "fit", "\xff", " ", "999999999999", "-",
        "levels" };
    enum { NUM = (int)(sizeof pieces / sizeof pieces[0]) };
    kvl_context* ctx = test_context(&reference, 1);
    test_lcg lcg = { 2024 };
    int good = 0;
    for (int i = 0; i < 200000; ++i) {
        char spec[512] = "";
        const int n = 1 + test_uniform(&lcg, 14);
        if (i % 2) strcat(spec, i % 4 == 1 ? "kivi:" : "rtn:");
        for (int j = 0; j < n; ++j) strcat(spec, pieces[test_uniform(&lcg, NUM)]);
        const kvl_layer_desc layer = test_layer(spec, 4, 2, 64, 0);
        kvl_layer_info info;
        const kvl_status status = kvl_spec_check(ctx, &layer, &info);
        cr_assert(status == KVL_OK || (status == KVL_BAD_ARGUMENT && *kvl_context_message(ctx)),
                  "'%s': %s", spec, kvl_status_text(status));
        if (status == KVL_OK) {
            ++good;
            check_canonical(ctx, spec, 64, 0);
        }
    }
    cr_assert(good > 100, "only %d of the specs were good: the test tests little", good);
    kvl_context_destroy(ctx);
}

// APPEND AND ATTEND

enum { HQ = 4, HKV = 2, D = 64, ROWS = 150 };

typedef struct scene {
    test_cache c;
    kvl_seq    seqs[2];
    float     *k, *v, *q;
} scene;

static scene scene_open(void)
{
    scene s;
    const kvl_layer_desc layer = test_layer(SMALL_SPEC, HQ, HKV, D, D);
    s.c = test_open(&reference, &layer);
    s.k = test_floats(ROWS * HKV * D);
    s.v = test_floats(ROWS * HKV * D);
    s.q = test_floats(HQ * D);
    test_rows(1, ROWS, HKV, D, s.k);
    test_rows(2, ROWS, HKV, D, s.v);
    test_queries(3, 1, HQ, D, s.q);
    for (int i = 0; i < 2; ++i) {
        s.seqs[i] = test_seq(&s.c);
        test_append(&s.c, s.seqs[i], s.k, s.v, 0, 60 + 10 * i);
    }
    return s;
}

static void scene_close(scene* s)
{
    test_close(&s->c);
    free(s->k);
    free(s->v);
    free(s->q);
}

// The call is refused by name and value, and neither sequence has changed.
static void bad_append(scene* s, const kvl_append_desc* a, const char* name, const char* value)
{
    test_state before[2], after[2];
    kvl_stats stats[2];
    for (int i = 0; i < 2; ++i) before[i] = test_snapshot(&s->c, s->seqs[i]);
    test_ok(s->c.ctx, kvl_cache_stats(s->c.cache, &stats[0]), "stats");
    refused(s->c.ctx, kvl_append(s->c.cache, a), name, value, "kvl_append");
    test_ok(s->c.ctx, kvl_cache_stats(s->c.cache, &stats[1]), "stats");
    for (int i = 0; i < 2; ++i) {
        after[i] = test_snapshot(&s->c, s->seqs[i]);
        test_same_state(&before[i], &after[i], name);
    }
    cr_assert(stats[0].bytes == stats[1].bytes, "%s: a refused call changed the bytes", name);
}

Test(api, appends_refuse_what_is_out_of_range)
{
    // Broken by a check that is missing or that comes after the first write.
    scene s = scene_open();
    const int32_t num_rows[2] = { 20, 40 }, negative[2] = { 20, -4 };
    const kvl_seq twice[2] = { s.seqs[1], s.seqs[1] }, none[2] = { s.seqs[0], 0 };
    kvl_append_desc good = { 0 }, a;
    good.num_seqs = 2;
    good.seqs = s.seqs;
    good.num_rows = num_rows;
    good.k.data = s.k;
    good.v.data = s.v;
    a = good;
    a.layer = 1;
    bad_append(&s, &a, "layer", "1");
    a.layer = -1;
    bad_append(&s, &a, "layer", "-1");
    a = good;
    a.num_seqs = -1;
    bad_append(&s, &a, "num_seqs", "-1");
    a = good;
    a.seqs = NULL;
    bad_append(&s, &a, "seqs", "NULL");
    a.seqs = twice;
    bad_append(&s, &a, "seqs[1]", "seqs[0]");
    a.seqs = none;
    bad_append(&s, &a, "seq", "0");
    a = good;
    a.num_rows = negative;
    bad_append(&s, &a, "num_rows[1]", "-4");
    a = good;
    a.k.data = NULL;
    bad_append(&s, &a, "k.data", "NULL");
    a = good;
    a.v.data = NULL;
    bad_append(&s, &a, "v.data", "NULL");
    a = good;
    a.v.type = (kvl_type)5;
    bad_append(&s, &a, "v.type", "5");
    a = good;
    a.k.head_stride = D - 1;
    bad_append(&s, &a, "k.head_stride", "63");
    a = good;
    a.k.row_stride = -1;
    bad_append(&s, &a, "k.row_stride", "-1");
    a = good;
    a.end = 1;
    bad_append(&s, &a, "end", "1");
    bad_append(&s, NULL, "desc", "NULL");
    a = good;
    a.num_seqs = 0;
    test_ok(s.c.ctx, kvl_append(s.c.cache, &a), "a batch of none");
    test_ok(s.c.ctx, kvl_append(s.c.cache, &good), "the good append");
    scene_close(&s);
}

Test(api, rows_that_are_not_finite_are_refused)
{
    // Broken by a NaN that enters a group, or by a batch of which one half is appended.
    scene s = scene_open();
    const int32_t num_rows[2] = { 20, 40 };
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    static const uint16_t bad_f16[] = { 0x7e00, 0x7c00, 0xfc00 };
    static const uint16_t bad_bf16[] = { 0x7fc0, 0x7f80, 0xff80 };
    const int at = (20 + 13) * HKV * D + D + 17;      // sequence 1, row 13, head 1, channel 17
    uint16_t* bits = (uint16_t*)test_alloc(60 * HKV * D, 2);
    for (int i = 0; i < 3; ++i)
        for (int side = 0; side < 2; ++side) {
            kvl_append_desc a = { 0 };
            float* x = side ? s.v : s.k;
            const float had = x[at];
            a.num_seqs = 2;
            a.seqs = s.seqs;
            a.num_rows = num_rows;
            a.k.data = s.k;
            a.v.data = s.v;
            x[at] = bad[i];
            bad_append(&s, &a, side ? "v = " : "k = ", "sequence 1");
            bad_append(&s, &a, "row 13", "head 1");
            bad_append(&s, &a, "channel 17", "finite");
            x[at] = had;
            kvl_const_rows* view = side ? &a.v : &a.k;
            view->data = bits;
            view->type = KVL_F16;
            bits[at] = bad_f16[i];
            bad_append(&s, &a, "row 13", "channel 17");
            view->type = KVL_BF16;
            bits[at] = bad_bf16[i];
            bad_append(&s, &a, "row 13", "channel 17");
            bits[at] = 0;
        }
    free(bits);
    scene_close(&s);
}

static void bad_attend(scene* s, const kvl_attend_desc* t, const char* name, const char* value)
{
    float* o = (float*)(t && t->o.data ? t->o.data : s->q);
    const float o_before = o[0], lse_before = t && t->lse ? t->lse[0] : 0;
    refused(s->c.ctx, kvl_attend(s->c.cache, t), name, value, "kvl_attend");
    cr_assert(o[0] == o_before, "%s: a refused call wrote o", name);
    if (t && t->lse) cr_assert(t->lse[0] == lse_before, "%s: a refused call wrote lse", name);
}

Test(api, attends_refuse_what_is_out_of_range)
{
    // Broken by a check that is missing or that comes after the first write.
    scene s = scene_open();
    float o[3 * HQ * D] = { 5 }, q[3 * HQ * D] = { 0 }, lse[3 * HQ] = { 6 };
    const int32_t q_lens[2] = { 1, 2 }, negative[2] = { 1, -2 }, many[2] = { 1, 71 };
    const int64_t positions[2] = { 3, -1 };
    const kvl_seq none[2] = { s.seqs[0], 99 };
    kvl_attend_desc good = { 0 }, t;
    good.num_seqs = 2;
    good.seqs = s.seqs;
    good.q_lens = q_lens;
    good.q.data = q;
    good.o.data = o;
    good.lse = lse;
    t = good;
    t.layer = 2;
    bad_attend(&s, &t, "layer", "2");
    t = good;
    t.num_seqs = -7;
    bad_attend(&s, &t, "num_seqs", "-7");
    t = good;
    t.seqs = NULL;
    bad_attend(&s, &t, "seqs", "NULL");
    t.seqs = none;
    bad_attend(&s, &t, "seq", "0x63");
    t = good;
    t.q_lens = negative;
    bad_attend(&s, &t, "q_lens[1]", "-2");
    t.q_lens = many;
    bad_attend(&s, &t, "q_lens[1]", "71");
    t = good;
    t.q_positions = positions;
    bad_attend(&s, &t, "q_positions[1]", "-1");
    t = good;
    t.q.data = NULL;
    bad_attend(&s, &t, "q.data", "NULL");
    t = good;
    t.o.data = NULL;
    bad_attend(&s, &t, "o.data", "NULL");
    t = good;
    t.o.type = (kvl_type)-1;
    bad_attend(&s, &t, "o.type", "-1");
    t = good;
    t.q.head_stride = 10;
    bad_attend(&s, &t, "q.head_stride", "10");
    t = good;
    t.o.row_stride = D - 1;
    bad_attend(&s, &t, "o.row_stride", "63");
    t = good;
    t.end = 9;
    bad_attend(&s, &t, "end", "9");
    t = good;
    t.o.data = q;
    bad_attend(&s, &t, "o.data", "q.data");
    bad_attend(&s, NULL, "desc", "NULL");
    // A query that is no number must not pass for one that sees no rows.
    q[(2 * HQ + 3) * D + 5] = NAN;
    bad_attend(&s, &good, "q = ", "query row 2");
    q[(2 * HQ + 3) * D + 5] = -INFINITY;
    bad_attend(&s, &good, "head 3", "channel 5");
    q[(2 * HQ + 3) * D + 5] = 0;
    test_ok(s.c.ctx, kvl_attend(s.c.cache, &good), "the good attend");
    scene_close(&s);
}

Test(api, reads_refuse_what_is_out_of_range)
{
    // Broken by a range that ends beyond the rows, or a group that is cut.
    scene s = scene_open();
    const kvl_seq seq = s.seqs[0];
    float out[HKV * D];
    kvl_rows rows = { out, KVL_F32, 0, 0 };
    kvl_codes codes = { 0 };
    kvl_seq_rows where;
    kvl_layer_info info;
    kvl_cache* c = s.c.cache;
    kvl_context* ctx = s.c.ctx;
    refused(ctx, kvl_restore(c, 0, seq, -1, 1, &rows, NULL), "rows", "-1", "restore");
    refused(ctx, kvl_restore(c, 0, seq, 60, 1, &rows, NULL), "60", "1", "restore");
    refused(ctx, kvl_restore(c, 0, seq, 0, INT64_MAX, &rows, NULL), "rows", "60", "restore");
    refused(ctx, kvl_restore(c, 0, seq, 5, INT64_MAX - 1, &rows, NULL), "rows", "60", "restore");
    refused(ctx, kvl_restore(c, 1, seq, 0, 1, &rows, NULL), "layer", "1", "restore");
    test_ok(ctx, kvl_restore(c, 0, seq, 60, 0, &rows, NULL), "no rows");
    test_ok(ctx, kvl_restore(c, 0, seq, 0, 1, NULL, &rows), "values alone");
    refused(ctx, kvl_read_codes(c, 0, seq, 2, 0, 0, 16, &codes), "kv_head", "2", "codes");
    refused(ctx, kvl_read_codes(c, 0, seq, -1, 0, 0, 16, &codes), "kv_head", "-1", "codes");
    refused(ctx, kvl_read_codes(c, 0, seq, 0, 0, 8, 16, &codes), "8", "16", "codes");
    refused(ctx, kvl_read_codes(c, 0, seq, 0, 0, 0, 8, &codes), "8", "16", "codes");
    refused(ctx, kvl_read_codes(c, 0, seq, 0, 0, 0, 48, &codes), "48", "32", "codes");
    refused(ctx, kvl_read_codes(c, 0, seq, 0, 0, 0, 16, NULL), "out", "NULL", "codes");
    test_ok(ctx, kvl_read_codes(c, 0, seq, 0, 1, 3, 5, &codes), "values by single rows");
    refused(ctx, kvl_seq_get_rows(c, 3, seq, &where), "layer", "3", "rows");
    refused(ctx, kvl_seq_get_rows(c, 0, seq, NULL), "out", "NULL", "rows");
    refused(ctx, kvl_cache_layer_info(c, 9, &info), "layer", "9", "info");
    refused(ctx, kvl_cache_stats(c, NULL), "out", "NULL", "stats");
    refused(ctx, kvl_seq_create(c, NULL), "out", "NULL", "seq_create");
    scene_close(&s);
}

Test(api, handles_that_are_freed_or_foreign_are_refused)
{
    // Broken by a handle that is an index: the next sequence would answer to the old one's name.
    scene s = scene_open(), other = scene_open();
    float o[HQ * D];
    const kvl_seq old = s.seqs[0];
    kvl_attend_desc t = { 0 };
    kvl_append_desc a = { 0 };
    t.num_seqs = a.num_seqs = 1;
    t.seqs = a.seqs = &old;
    t.q.data = s.q;
    t.o.data = o;
    a.k.data = s.k;
    a.v.data = s.v;
    test_ok(s.c.ctx, kvl_seq_free(s.c.cache, old), "kvl_seq_free");
    refused(s.c.ctx, kvl_seq_free(s.c.cache, old), "seq", "freed", "freed twice");
    refused(s.c.ctx, kvl_attend(s.c.cache, &t), "seq", "freed", "attend");
    for (int i = 0; i < 20; ++i) {
        const kvl_seq next = test_seq(&s.c);
        cr_assert(next != old, "a handle is given out twice");
        refused(s.c.ctx, kvl_append(s.c.cache, &a), "seq", "freed", "append");
        test_ok(s.c.ctx, kvl_seq_free(s.c.cache, next), "kvl_seq_free");
    }
    a.seqs = &other.seqs[1];
    refused(s.c.ctx, kvl_append(s.c.cache, &a), "seq", "cache", "another cache's sequence");
    refused(s.c.ctx, kvl_seq_free(s.c.cache, 0), "seq", "0", "no sequence");
    refused(s.c.ctx, kvl_seq_free(s.c.cache, UINT64_MAX), "seq", "cache", "no sequence");
    scene_close(&s);
    scene_close(&other);
}

Test(api, layers_of_different_shapes_and_layers_without_a_cache)
{
    // Broken by a size that is taken from layer 0, or by a layer that is filled by another's rows.
    kvl_layer_desc layers[4];
    kvl_cache_desc desc = { 0 };
    layers[0] = test_layer(SMALL_SPEC, 4, 2, 64, 32);
    layers[1] = test_layer("f16", 0, 0, 1, 2);
    layers[2] = test_layer(NULL, 16, 1, 256, 96);
    layers[3] = test_layer("q8_0", 3, 3, 32, 64);
    desc.num_layers = 4;
    desc.layers = layers;
    desc.spec = "rtn:b4,sink=1,recent=3,page=16";
    test_cache c;
    memset(&c, 0, sizeof c);
    c.ctx = test_context(&reference, 0);
    test_ok(c.ctx, kvl_cache_create(c.ctx, &desc, &c.cache), "kvl_cache_create");
    const kvl_seq seq = test_seq(&c);
    float* x = test_floats(80 * 256);
    test_rows(6, 80, 1, 256, x);
    for (int i = 0; i < 4; ++i) {
        kvl_append_desc a = { 0 };
        kvl_seq_rows rows;
        const int32_t num_rows = 40 + i;
        a.layer = i;
        a.num_seqs = 1;
        a.seqs = &seq;
        a.num_rows = &num_rows;
        a.k.data = a.v.data = x;
        if (i == 1) {
            refused(c.ctx, kvl_append(c.cache, &a), "layer", "1", "a layer without a cache");
            refused(c.ctx, kvl_seq_get_rows(c.cache, 1, seq, &rows), "layer", "1", "no cache");
            continue;
        }
        test_ok(c.ctx, kvl_append(c.cache, &a), "kvl_append");
        test_ok(c.ctx, kvl_seq_get_rows(c.cache, i, seq, &rows), "rows");
        cr_assert(rows.rows == num_rows, "layer %d has %lld rows", i, (long long)rows.rows);
    }
    kvl_stats stats;
    test_ok(c.ctx, kvl_cache_stats(c.cache, &stats), "stats");
    cr_assert(stats.num_rows == 40 + 42 + 43, "%lld rows in all layers", (long long)stats.num_rows);
    cr_assert(stats.f16_bytes == 2u * (40 * 2 * 96 + 42 * 352 + 43 * 3 * 96), "%llu as f16",
              (unsigned long long)stats.f16_bytes);
    free(x);
    test_close(&c);
}

// BUDGETS AND FAILING MEMORY

Test(api, max_seqs_is_a_bound)
{
    // Broken by a bound that counts handles instead of live sequences.
    const kvl_layer_desc layer = test_layer("f16", 2, 1, 32, 32);
    kvl_cache_desc desc = { 0 };
    kvl_seq seqs[4] = { 0, 0, 0, 77 };
    test_cache c;
    memset(&c, 0, sizeof c);
    desc.num_layers = 1;
    desc.layers = &layer;
    desc.max_seqs = 3;
    c.ctx = test_context(&reference, 1);
    test_ok(c.ctx, kvl_cache_create(c.ctx, &desc, &c.cache), "kvl_cache_create");
    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < 3; ++i) seqs[i] = test_seq(&c);
        cr_assert(kvl_seq_create(c.cache, &seqs[3]) == KVL_NO_MEMORY, "a fourth of three");
        cr_assert(strstr(kvl_context_message(c.ctx), "max_seqs = 3") != NULL, "'%s'",
                  kvl_context_message(c.ctx));
        for (int i = 0; i < 3; ++i) test_ok(c.ctx, kvl_seq_free(c.cache, seqs[i]), "free");
    }
    test_close(&c);
}

Test(api, max_bytes_is_a_bound)
{
    // Broken by an allocation that the budget does not see, or by rows of a call that failed.
    scene s = scene_open();
    kvl_cache_desc desc = { 0 };
    kvl_stats stats;
    test_cache c = s.c;
    desc.num_layers = 1;
    desc.layers = &s.c.layer;
    test_ok(c.ctx, kvl_estimate(c.ctx, &desc, 1, 400, &desc.max_bytes), "kvl_estimate");
    test_ok(c.ctx, kvl_cache_create(c.ctx, &desc, &c.cache), "kvl_cache_create");
    const kvl_seq seq = test_seq(&c);
    int64_t done = 0;
    for (;; ++done) {
        kvl_append_desc a = { 0 };
        a.num_seqs = 1;
        a.seqs = &seq;
        a.k.data = s.k + done % ROWS * HKV * D;
        a.v.data = s.v + done % ROWS * HKV * D;
        const test_state before = test_snapshot(&c, seq);
        const kvl_status status = kvl_append(c.cache, &a);
        test_ok(c.ctx, kvl_cache_stats(c.cache, &stats), "stats");
        cr_assert(stats.bytes <= desc.max_bytes && stats.peak_bytes <= desc.max_bytes,
                  "%llu bytes, at most %llu", (unsigned long long)stats.peak_bytes,
                  (unsigned long long)desc.max_bytes);
        if (status == KVL_OK) continue;
        const test_state after = test_snapshot(&c, seq);
        cr_assert(status == KVL_NO_MEMORY, "%s", kvl_status_text(status));
        cr_assert(strstr(kvl_context_message(c.ctx), "max_bytes") != NULL, "'%s'",
                  kvl_context_message(c.ctx));
        test_same_state(&before, &after, "an append over the budget");
        break;
    }
    cr_assert(done >= 400, "%lld rows fit into the estimate of 400", (long long)done);
    desc.max_bytes = 1000;
    kvl_cache* none;
    cr_assert(kvl_cache_create(c.ctx, &desc, &none) == KVL_NO_MEMORY && !none, "1000 bytes");
    kvl_cache_free(c.cache);
    scene_close(&s);
}

// Creates a context and a cache while the fail_at-th allocation fails; returns whether it worked.
static int create_with_failure(test_memory* memory, const test_target* target, int64_t fail_at)
{
    kvl_context_desc cd = { 0 };
    kvl_cache_desc kd = { 0 };
    kvl_layer_desc layers[2];
    kvl_context* ctx = NULL;
    kvl_cache* cache = NULL;
    layers[0] = layers[1] = test_layer(SMALL_SPEC, HQ, HKV, D, D);
    cd.target = target->target;
    cd.isa = target->isa;
    cd.num_threads = 2;
    cd.allocator = test_memory_allocator(memory);
    kd.num_layers = 2;
    kd.layers = layers;
    memory->calls = 0;
    memory->fail_at = fail_at;
    kvl_status status = kvl_context_create(&cd, &ctx);
    cr_assert(status == KVL_OK || (status == KVL_NO_MEMORY && ctx == NULL),
              "allocation %lld: context: %s", (long long)fail_at, kvl_status_text(status));
    if (status == KVL_OK) {
        status = kvl_cache_create(ctx, &kd, &cache);
        cr_assert(status == KVL_OK || (status == KVL_NO_MEMORY && cache == NULL &&
                                       kvl_context_message(ctx)[0]),
                  "allocation %lld on %s: cache: %s: %s", (long long)fail_at, target->name,
                  kvl_status_text(status), kvl_context_message(ctx));
    }
    memory->fail_at = 0;
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
    cr_assert(memory->live == 0 && memory->wrong_sizes == 0,
              "allocation %lld on %s: %llu bytes are left, %d frees with another size",
              (long long)fail_at, target->name, (unsigned long long)memory->live,
              memory->wrong_sizes);
    return status == KVL_OK;
}

Test(api, creation_survives_each_failing_allocation)
{
    // Broken by an allocation whose NULL is followed, or whose failure leaks what came before.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    test_memory memory;
    test_memory_init(&memory);
    for (int i = 0; i < (n > 1 ? 2 : 1); ++i) {
        // The generator makes thousands of allocations: beyond 60 every ninth in proportion.
        cr_assert(create_with_failure(&memory, &targets[i], 0), "%s", targets[i].name);
        const int64_t calls = memory.calls;
        for (int64_t at = 1; at <= calls; at += at < 60 ? 1 : at / 9)
            create_with_failure(&memory, &targets[i], at);
    }
}

enum { MANY = 12 };              // more sequences than an append keeps on its stack

// Fails every allocation of an append in turn; each failure leaves all sequences as they were.
static void append_with_failures(test_cache* c, test_memory* memory, const kvl_append_desc* a)
{
    test_state before[MANY];
    int failures = 0;
    for (int i = 0; i < MANY; ++i) before[i] = test_snapshot(c, a->seqs[i]);
    for (int64_t at = 1;; ++at, ++failures) {
        const uint64_t live = memory->live;
        memory->fail_at = memory->calls + at;
        const kvl_status status = kvl_append(c->cache, a);
        memory->fail_at = 0;
        if (status == KVL_OK) break;
        cr_assert(status == KVL_NO_MEMORY, "%s", kvl_status_text(status));
        cr_assert(memory->live == live, "a failed append keeps %lld bytes",
                  (long long)(memory->live - live));
        for (int i = 0; i < MANY; ++i) {
            const test_state after = test_snapshot(c, a->seqs[i]);
            test_same_state(&before[i], &after, "an append without memory");
        }
    }
    cr_assert(failures > 0, "an append allocated nothing: the test tests nothing");
}

Test(api, appends_and_attends_survive_each_failing_allocation)
{
    // Broken by a page that is linked before the batch has all of its pages.
    test_memory memory;
    kvl_context_desc cd = { 0 };
    kvl_cache_desc kd = { 0 };
    const kvl_layer_desc layer = test_layer(SMALL_SPEC, HQ, HKV, D, D);
    static const int32_t num_rows[MANY] = { 70, 1, 0, 100, 16, 17, 40, 41, 90, 5, 60, 61 };
    int32_t total = 0;
    for (int i = 0; i < MANY; ++i) total += num_rows[i];
    float* x = test_floats((int64_t)total * HKV * D);
    test_rows(8, total, HKV, D, x);
    test_memory_init(&memory);
    cd.target = KVL_TARGET_REFERENCE;
    cd.allocator = test_memory_allocator(&memory);
    kd.num_layers = 1;
    kd.layers = &layer;
    test_cache c;
    memset(&c, 0, sizeof c);
    c.layer = layer;
    c.dv = D;
    test_ok(c.ctx, kvl_context_create(&cd, &c.ctx), "context");
    test_ok(c.ctx, kvl_cache_create(c.ctx, &kd, &c.cache), "cache");
    kvl_seq seqs[MANY];
    for (int i = 0; i < MANY; ++i) seqs[i] = test_seq(&c);
    kvl_append_desc a = { 0 };
    a.num_seqs = MANY;
    a.seqs = seqs;
    a.num_rows = num_rows;
    a.k.data = a.v.data = x;
    for (int round = 0; round < 3; ++round) append_with_failures(&c, &memory, &a);
    kvl_attend_desc t = { 0 };
    float* o = test_floats(MANY * HQ * D);
    kvl_status status = KVL_NO_MEMORY;
    t.num_seqs = MANY;
    t.seqs = seqs;
    t.q.data = x;
    t.o.data = o;
    for (int64_t at = 1; status != KVL_OK; ++at) {
        memory.fail_at = memory.calls + at;
        status = kvl_attend(c.cache, &t);
        memory.fail_at = 0;
        cr_assert(status == KVL_OK || (status == KVL_NO_MEMORY && o[0] == 0), "%s",
                  kvl_status_text(status));
    }
    free(o);
    free(x);
    test_close(&c);
    cr_assert(memory.live == 0 && memory.wrong_sizes == 0, "%llu bytes are left",
              (unsigned long long)memory.live);
}

// ACCOUNTING

static void check_accounting(const char* spec, int layers_num)
{
    test_memory memory;
    kvl_context_desc cd = { 0 };
    kvl_cache_desc kd = { 0 };
    kvl_layer_desc layers[3];
    enum { SEQS = 3, STEPS = 350 };
    kvl_seq seqs[SEQS];
    kvl_stats stats;
    uint64_t estimate;
    float* x = test_floats(SEQS * HKV * D);
    test_rows(12, SEQS, HKV, D, x);
    for (int i = 0; i < 3; ++i) layers[i] = test_layer(spec, HQ, HKV, D, D);
    test_memory_init(&memory);
    cd.target = KVL_TARGET_REFERENCE;
    cd.allocator = test_memory_allocator(&memory);
    test_cache c;
    memset(&c, 0, sizeof c);
    test_ok(c.ctx, kvl_context_create(&cd, &c.ctx), "context");
    const uint64_t base = memory.live;
    kd.num_layers = layers_num;
    kd.layers = layers;
    test_ok(c.ctx, kvl_cache_create(c.ctx, &kd, &c.cache), "cache");
    for (int i = 0; i < SEQS; ++i) seqs[i] = test_seq(&c);
    for (int64_t step = 0; step <= STEPS; ++step) {
        test_ok(c.ctx, kvl_cache_stats(c.cache, &stats), "stats");
        cr_assert(stats.bytes == memory.live - base, "%s, step %lld: %llu bytes, allocated %llu",
                  spec, (long long)step, (unsigned long long)stats.bytes,
                  (unsigned long long)(memory.live - base));
        cr_assert(stats.bytes == stats.page_bytes + stats.window_bytes + stats.other_bytes,
                  "%s: parts do not add up", spec);
        cr_assert(stats.num_seqs == SEQS && stats.num_rows == step * SEQS * layers_num,
                  "%s: %lld rows", spec, (long long)stats.num_rows);
        test_ok(c.ctx, kvl_estimate(c.ctx, &kd, SEQS, step, &estimate), "kvl_estimate");
        cr_assert(estimate == stats.bytes, "%s, step %lld: estimated %llu, held %llu", spec,
                  (long long)step, (unsigned long long)estimate, (unsigned long long)stats.bytes);
        for (int layer = 0; layer < layers_num && step < STEPS; ++layer) {
            kvl_append_desc a = { 0 };
            a.layer = layer;
            a.num_seqs = SEQS;
            a.seqs = seqs;
            a.k.data = a.v.data = x;
            test_ok(c.ctx, kvl_append(c.cache, &a), "append");
        }
    }
    cr_assert(stats.peak_bytes >= stats.bytes, "peak below the present");
    for (int i = 0; i < SEQS; ++i) test_ok(c.ctx, kvl_seq_free(c.cache, seqs[i]), "free");
    test_ok(c.ctx, kvl_cache_stats(c.cache, &stats), "stats");
    cr_assert(stats.bytes == memory.live - base && stats.page_bytes == 0 && stats.window_bytes == 0,
              "%s: freed sequences hold %llu bytes", spec, (unsigned long long)stats.page_bytes);
    kvl_cache_free(c.cache);
    cr_assert(memory.live == base, "%s: a freed cache holds memory", spec);
    kvl_context_destroy(c.ctx);
    cr_assert(memory.live == 0 && memory.wrong_sizes == 0, "%s: a freed context holds memory",
              spec);
    free(x);
}

Test(api, bytes_equal_the_allocators_and_the_estimate)
{
    // Broken by memory that is not counted, counted twice, or not foreseen by kvl_estimate.
    check_accounting(SMALL_SPEC, 1);
    check_accounting("f16", 3);
    check_accounting("rtn:b3,sink=0,recent=0,chunk=48", 2);
    check_accounting("q8_0/q4_0:page=16", 1);
}

Test(api, a_prefill_in_one_call_peaks_at_the_estimate)
{
    // Broken by a temporary copy of the rows, or by rows that are kept twice.
    static const char* const specs[] = { "kivi:k2,v2,g32,sink=0,recent=0", "kivi:meta=f16", "f16",
                                         "q8_0", "q4_0" };
    static const double bits[] = { 2.5, 3, 16, 8.5, 4.5 };
    enum { N = 4096 };
    float* x = test_floats(N * HKV * D);
    uint64_t f16_bytes = 0;
    test_rows(13, N, HKV, D, x);
    for (int i = 0; i < 5; ++i) {
        test_memory memory;
        kvl_context_desc cd = { 0 };
        kvl_cache_desc kd = { 0 };
        kvl_stats stats;
        const kvl_layer_desc layer = test_layer(specs[i], HQ, HKV, D, D);
        test_cache c;
        uint64_t estimate;
        memset(&c, 0, sizeof c);
        test_memory_init(&memory);
        cd.target = KVL_TARGET_REFERENCE;
        cd.allocator = test_memory_allocator(&memory);
        kd.num_layers = 1;
        kd.layers = &layer;
        c.layer = layer;
        c.dv = D;
        test_ok(c.ctx, kvl_context_create(&cd, &c.ctx), "context");
        const uint64_t base = memory.live;
        test_ok(c.ctx, kvl_cache_create(c.ctx, &kd, &c.cache), "cache");
        test_ok(c.ctx, kvl_cache_layer_info(c.cache, 0, &c.info), "info");
        const kvl_seq seq = test_seq(&c);
        test_append(&c, seq, x, x, 0, N);
        const uint64_t peak = memory.peak - base;
        test_ok(c.ctx, kvl_estimate(c.ctx, &kd, 1, N, &estimate), "estimate");
        test_ok(c.ctx, kvl_cache_stats(c.cache, &stats), "stats");
        cr_assert(peak <= estimate, "%s: a peak of %llu bytes, estimated %llu", specs[i],
                  (unsigned long long)peak, (unsigned long long)estimate);
        cr_assert(stats.peak_bytes <= estimate, "%s: peak_bytes", specs[i]);
        // Pages hold whole pages of rows: bits a value times the values that fit into them.
        const int64_t pages = (stats.num_quantized + c.info.page_size - 1) / c.info.page_size;
        const double expected = (double)(pages * c.info.page_size * HKV * 2 * D) * bits[i] / 8;
        cr_assert((double)stats.page_bytes == expected, "%s: %llu bytes of pages, %g bits a value "
                  "make %g", specs[i], (unsigned long long)stats.page_bytes, bits[i], expected);
        cr_assert(c.info.k_bits == bits[i] && c.info.v_bits == bits[i], "%s: %g bits", specs[i],
                  c.info.k_bits);
        if (i == 2) f16_bytes = stats.page_bytes;
        cr_assert(stats.f16_bytes == 2u * N * HKV * 2 * D, "%s: as f16", specs[i]);
        if (i == 3) cr_assert(stats.page_bytes * 16 <= f16_bytes * 9, "q8_0 saves nothing");
        test_close(&c);
    }
    free(x);
}

// HONESTY

Test(api, describe_says_what_runs)
{
    // Broken by a target, a fallback, a spec or a window that cannot be seen from outside.
    test_target targets[TEST_MAX_TARGETS];
    const int n = test_targets(targets);
    for (int i = 0; i < n; ++i) {
        kvl_layer_desc layer = test_layer(SMALL_SPEC, HQ, HKV, D, D);
        layer.window_len = 77;
        layer.soft_cap = 31;
        test_cache c = test_open(&targets[i], &layer);
        size_t needed = 0, again = 0;
        char tiny[20];
        test_ok(c.ctx, kvl_describe(c.cache, NULL, 0, &needed), "the length");
        char* text = (char*)test_alloc(needed + 8, 1);
        memset(text, '#', needed + 8);
        test_ok(c.ctx, kvl_describe(c.cache, text, needed, &again), "kvl_describe");
        cr_assert(again == needed && strlen(text) + 1 == needed && text[needed] == '#',
                  "%zu bytes were needed, then %zu; %zu were written", needed, again,
                  strlen(text) + 1);
        // 2 bits and 16 bits of metadata for 16 values are 3 bits a value.
        const char* const words[] = { targets[i].target == KVL_TARGET_HOST ? "host" : "reference",
            targets[i].isa ? targets[i].isa : "reference", "kivi", "3 bits", "per_channel", "sink",
            "24", "16", "77", "31", c.info.spec };
        for (int w = 0; w < 11; ++w)
            cr_assert(strstr(text, words[w]) != NULL, "%s: no '%s' in\n%s",
                      targets[i].name, words[w], text);
        memset(tiny, '#', sizeof tiny);
        test_ok(c.ctx, kvl_describe(c.cache, tiny, 10, &again), "a short buffer");
        cr_assert(strlen(tiny) == 9 && strncmp(tiny, text, 9) == 0 && tiny[10] == '#',
                  "a short buffer holds '%s'", tiny);
        free(text);
        test_close(&c);
    }
}

Test(api, without_a_compiler_the_reference_runs_and_says_so_once)
{
    // Broken by a silent fallback, a repeated warning, or an error where the reference would do.
    kvl_context_desc cd = { 0 };
    kvl_cache_desc kd = { 0 };
    const kvl_layer_desc layer = test_layer(SMALL_SPEC, HQ, HKV, D, D);
    test_log log;
    kvl_context* ctx = NULL;
    kvl_cache* caches[3];
    char text[4096];
    cd.compiler = "/nonexistent/compiler";
    cd.cache_dir = "";
    cd.log = test_log_hook(&log);
    kd.num_layers = 1;
    kd.layers = &layer;
    test_ok(ctx, kvl_context_create(&cd, &ctx), "kvl_context_create");
    for (int i = 0; i < 3; ++i) {
        kvl_layer_info info;
        test_ok(ctx, kvl_cache_create(ctx, &kd, &caches[i]), "kvl_cache_create");
        test_ok(ctx, kvl_cache_layer_info(caches[i], 0, &info), "info");
        cr_assert(info.uses_generated == 0, "generated kernels without a compiler");
        test_ok(ctx, kvl_describe(caches[i], text, sizeof text, NULL), "describe");
        cr_assert(strstr(text, "reference") && strstr(text, "/nonexistent/compiler"),
                  "the description does not say why:\n%s", text);
    }
    cr_assert(test_count(log.text, "reference") == 1, "said %d times:\n%s",
              test_count(log.text, "reference"), log.text);
    for (int i = 0; i < 3; ++i) kvl_cache_free(caches[i]);
    kvl_context_destroy(ctx);
    cd.target = KVL_TARGET_HOST;
    test_ok(ctx, kvl_context_create(&cd, &ctx), "kvl_context_create");
    const kvl_status status = kvl_cache_create(ctx, &kd, &caches[0]);
    cr_assert((status == KVL_NO_KERNEL || status == KVL_COMPILE) && caches[0] == NULL, "%s",
              kvl_status_text(status));
    cr_assert(strstr(kvl_context_message(ctx), "/nonexistent/compiler") != NULL, "'%s'",
              kvl_context_message(ctx));
    kvl_context_destroy(ctx);
}

Test(api, values_beyond_f16_are_said_once)
{
    // Broken by a silent saturation, or by a warning for every row.
    kvl_context_desc cd = { 0 };
    float rows[32];
    for (int pass = 0; pass < 2; ++pass) {
        kvl_cache_desc kd = { 0 };
        const kvl_layer_desc layer = test_layer(pass ? "f16:rows=bf16" : "f16", 1, 1, 32, 32);
        test_log log;
        test_cache c;
        memset(&c, 0, sizeof c);
        c.layer = layer;
        c.dv = 32;
        cd.target = KVL_TARGET_REFERENCE;
        cd.log = test_log_hook(&log);
        kd.num_layers = 1;
        kd.layers = &layer;
        test_ok(c.ctx, kvl_context_create(&cd, &c.ctx), "context");
        test_ok(c.ctx, kvl_cache_create(c.ctx, &kd, &c.cache), "cache");
        const kvl_seq seq = test_seq(&c);
        for (int i = 0; i < 32; ++i) rows[i] = i == 5 ? 65519 : 1;
        test_append(&c, seq, rows, rows, 0, 1);
        cr_assert(log.count == 0, "65519 rounds to 65504, yet:\n%s", log.text);
        rows[5] = -65520;
        for (int i = 0; i < 3; ++i) test_append(&c, seq, rows, rows, 0, 1);
        cr_assert(log.warnings == !pass && log.count == !pass, "%s: %d messages:\n%s", layer.spec,
                  log.count, log.text);
        test_restore(&c, seq, 1, 1, rows, NULL);
        cr_assert(rows[5] == -65504 && rows[4] == 1, "kept as %g", (double)rows[5]);
        test_close(&c);
    }
}

Test(api, a_forked_child_is_told)
{
    // Broken by a child that waits for threads which only its parent has.
    scene s = scene_open();
    const pid_t child = fork();
    if (child == 0) {
        kvl_seq seq;
        const kvl_status status = kvl_seq_create(s.c.cache, &seq);
        _exit(status == KVL_BAD_ARGUMENT && strstr(kvl_context_message(s.c.ctx), "fork") ? 0 : 1);
    }
    int result = -1;
    cr_assert(waitpid(child, &result, 0) == child && WIFEXITED(result) && WEXITSTATUS(result) == 0,
              "the child was not refused");
    scene_close(&s);
}

// Each cell of the option product either makes a cache that passes a short check, or is refused
// with a message that says which spec and which layer.
static void check_cell(kvl_context* ctx, const char* spec, int* created, const float* x)
{
    enum { N = 70, DIM = 64 };
    const kvl_layer_desc layer = test_layer(spec, 2, 1, DIM, DIM);
    kvl_cache_desc kd = { 0 };
    test_cache c;
    memset(&c, 0, sizeof c);
    kd.num_layers = 1;
    kd.layers = &layer;
    c.ctx = ctx;
    c.layer = layer;
    c.dv = DIM;
    const kvl_status status = kvl_cache_create(ctx, &kd, &c.cache);
    if (status != KVL_OK) {
        const char* message = kvl_context_message(ctx);
        cr_assert(status == KVL_BAD_ARGUMENT || status == KVL_UNSUPPORTED, "%s: %s", spec,
                  kvl_status_text(status));
        cr_assert(strstr(message, spec) != NULL && strstr(message, "layer 0") != NULL,
                  "%s: '%s'", spec, message);
        return;
    }
    ++*created;
    test_ok(ctx, kvl_cache_layer_info(c.cache, 0, &c.info), spec);
    const kvl_seq seq = test_seq(&c);
    test_append(&c, seq, x, x + DIM, 0, N);
    test_attend_check(&c, seq, x + 5 * DIM, 1, NULL, spec);
    kvl_cache_free(c.cache);
}

Test(api, every_cell_of_the_option_product_works_or_is_refused, .timeout = 100)
{
    // Broken by a combination that is accepted and then computes something else.
    static const char* const presets[] = { "f16", "bf16", "q8_0", "q4_0", "rtn", "kivi", "kivi/f16",
                                           "q8_0/kivi" };
    static const char* const bits[] = { "", "b1,", "b2,", "b3,", "b4,", "b5,", "b6,", "b8," };
    static const char* const groups[] = { "", "g16,", "g64," };
    static const char* const transforms[] = { "", "transform=hadamard,",
                                              "k.transform=hadamard32," };
    static const char* const metas[] = { "", "meta=f16,", "meta=8bit," };
    static const char* const axes[] = { "", "axis=per_channel," };
    kvl_context* ctx = test_context(&reference, 1);
    float* x = test_floats(80 * 64);
    int created = 0, cells = 0;
    test_rows(14, 80, 1, 64, x);
    for (int i = 0; i < 8 * 8 * 3 * 3 * 3 * 2; ++i, ++cells) {
        char spec[256];
        snprintf(spec, sizeof spec, "%s:%s%s%s%s%ssink=2,recent=3", presets[i % 8], bits[i / 8 % 8],
                 groups[i / 64 % 3], transforms[i / 192 % 3], metas[i / 576 % 3],
                 axes[i / 1728 % 2]);
        check_cell(ctx, spec, &created, x);
    }
    cr_assert(created > cells / 3, "%d of %d cells were created", created, cells);
    free(x);
    kvl_context_destroy(ctx);
}

// A second thread that comes into the cache while a call on it allocates.
typedef struct intruder {
    kvl_cache* cache;           // NULL: none comes
    kvl_status status;
} intruder;

static void* intrude(void* arg)
{
    intruder* in = (intruder*)arg;
    kvl_stats stats;
    in->status = kvl_cache_stats(in->cache, &stats);
    return NULL;
}

static void* alloc_and_intrude(size_t bytes, void* user)
{
    intruder* in = (intruder*)user;
    if (in->cache) {
        pthread_t thread;
        cr_assert(pthread_create(&thread, NULL, intrude, in) == 0);
        cr_assert(pthread_join(thread, NULL) == 0);
        in->cache = NULL;
    }
    return malloc(bytes);
}

static void free_plain(void* ptr, size_t bytes, void* user)
{
    (void)bytes, (void)user;
    free(ptr);
}

// Broken if a debug build lets two threads into one cache, or keeps one out afterwards.
Test(api, two_threads_in_a_cache_are_seen)
{
    intruder in = { NULL, KVL_OK };
    kvl_context_desc cd = { .target = KVL_TARGET_REFERENCE, .num_threads = 1,
                            .allocator = { alloc_and_intrude, free_plain, &in } };
    kvl_layer_desc layer = test_layer("f16", 2, 1, 32, 32);
    kvl_cache_desc desc = { .num_layers = 1, .layers = &layer };
    kvl_context* ctx;
    kvl_cache* cache;
    kvl_seq seq;
    cr_assert(kvl_context_create(&cd, &ctx) == KVL_OK);
    test_ok(ctx, kvl_cache_create(ctx, &desc, &cache), "kvl_cache_create");
    in.cache = cache;
    test_ok(ctx, kvl_seq_create(cache, &seq), "the first thread goes on");
    cr_assert(in.cache == NULL, "nobody came");
#ifdef KVLOOM_DEBUG
    cr_assert(in.status == KVL_BAD_ARGUMENT, "%s", kvl_status_text(in.status));
    cr_assert(strstr(kvl_context_message(ctx), "two threads"), "%s", kvl_context_message(ctx));
#else
    cr_assert(in.status == KVL_OK, "%s", kvl_status_text(in.status));
#endif
    in.cache = cache;
    intrude(&in);
    cr_assert(in.status == KVL_OK, "afterwards: %s", kvl_context_message(ctx));
    in.cache = NULL;
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
}
