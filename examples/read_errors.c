// read_errors.c -- what kvloom says when it is asked for what cannot be: a status to act on, and a
// message with the name, the value and the rule to show.
//
//     cc -std=c99 read_errors.c $(pkg-config --cflags --libs kvloom)

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

#include <math.h>
#include <stdio.h>

static kvl_context* ctx;
static int surprises;

// Prints a failure; counts it if it is not the expected one.
static void show(const char* what, kvl_status status, kvl_status expected)
{
    printf("%s\n  %s: %s\n", what, kvl_status_text(status), kvl_context_message(ctx));
    surprises += status != expected;
}

// The library's own remarks, for instance that there is no compiler, go to a callback.
static void log_call(kvl_log_level level, const char* message, void* user)
{
    (void)user;
    printf("log %d: %s\n", (int)level, message);
}

static kvl_status try_spec(const char* spec, int head_dim)
{
    const kvl_layer_desc layer = { .num_q_heads = 8, .num_kv_heads = 2, .head_dim = head_dim,
                                   .spec = spec };
    return kvl_spec_check(ctx, &layer, NULL);
}

int main(void)
{
    // A failed creation, too, gives a context that can be asked for its message.
    kvl_status status = kvl_context_create(&(kvl_context_desc){ .num_threads = -1 }, &ctx);
    show("a negative number of threads", status, KVL_BAD_ARGUMENT);
    kvl_context_destroy(ctx);
    status = kvl_context_create(&(kvl_context_desc){ .log = { .call = log_call } }, &ctx);
    if (status != KVL_OK) return 1;

    // Specs can be asked about before anything is made.
    show("a preset that does not exist", try_spec("kiwi:k2", 64), KVL_BAD_ARGUMENT);
    show("a stage that does not exist", try_spec("kivi:k2,v.transfrom=none", 64), KVL_BAD_ARGUMENT);
    show("a head that is not a multiple of 16", try_spec("kivi", 100), KVL_BAD_ARGUMENT);

    const kvl_layer_desc layer = { .num_q_heads = 2, .num_kv_heads = 1, .head_dim = 64,
                                   .spec = "kivi:k2,v2,g32,sink=4,recent=32" };
    kvl_cache* cache;
    kvl_seq seq;
    static float rows[500 * 64];
    if (kvl_cache_create(ctx, &(kvl_cache_desc){ .num_layers = 1, .layers = &layer,
                                                 .max_bytes = 600000 }, &cache) != KVL_OK ||
        kvl_seq_create(cache, &seq) != KVL_OK) {
        fprintf(stderr, "read_errors: %s\n", kvl_context_message(ctx));
        return 1;
    }
    kvl_append_desc append = { .num_seqs = 1, .seqs = &seq, .num_rows = (int32_t[]){ 500 },
                               .k = { .data = rows }, .v = { .data = rows } };
    rows[70] = NAN;
    show("a row that is not finite", kvl_append(cache, &append), KVL_BAD_ARGUMENT);
    rows[70] = 0.0f;
    append.end = 7;
    show("a desc that was not zeroed", kvl_append(cache, &append), KVL_BAD_ARGUMENT);
    append.end = 0;

    // Calls are all or nothing: the rows of those that succeeded are there, and no others.
    int calls = 0;
    while ((status = kvl_append(cache, &append)) == KVL_OK) ++calls;
    show("more than the budget", status, KVL_NO_MEMORY);
    kvl_seq_rows held = { 0 };
    surprises += kvl_seq_get_rows(cache, 0, seq, &held) != KVL_OK || held.rows != 500 * calls;

    // What cannot be undone is refused, with what can be.
    surprises += kvl_drop_oldest(cache, seq, 100) != KVL_OK;
    show("back to a row that was dropped", kvl_truncate(cache, seq, 50), KVL_UNSUPPORTED);
    surprises += kvl_seq_free(cache, seq) != KVL_OK;
    show("a sequence that was freed", kvl_seq_free(cache, seq), KVL_BAD_ARGUMENT);
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
    return surprises;
}
