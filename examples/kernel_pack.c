// kernel_pack.c -- a program that needs neither Lua nor a compiler: its kernels are in a pack.
//
// kernel_pack_data.h is written by kvloom-pack when this example is built:
//
//     kvloom-pack -o kernel_pack_data.h --config "kivi:k2,v2,g32,meta=f16 8 2 64"
//
// Fails if the kernels come from elsewhere, or if attention over equal values is not that value.

#define KVLOOM_NO_LUA
#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

#include "kernel_pack_data.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { q_heads = 8, kv_heads = 2, head_dim = 64, num_rows = 300 };

static void say(kvl_log_level level, const char* message, void* user)
{
    (void)user;
    if (level != KVL_LOG_INFO) printf("log: %s\n", message);
}

// Appends rows whose values are all `value`, and attends to them.
static int run(kvl_cache* cache, float value, float* o)
{
    static float k[num_rows * kv_heads * head_dim], v[num_rows * kv_heads * head_dim];
    static float q[q_heads * head_dim];
    const int32_t rows = num_rows;
    kvl_append_desc append = { 0 };
    kvl_attend_desc attend = { 0 };
    kvl_seq seq;
    for (int i = 0; i < num_rows * kv_heads * head_dim; ++i) k[i] = sinf((float)i), v[i] = value;
    for (int i = 0; i < q_heads * head_dim; ++i) q[i] = cosf((float)i);
    if (kvl_seq_create(cache, &seq)) return 1;
    append.num_seqs = attend.num_seqs = 1;
    append.seqs = attend.seqs = &seq;
    append.num_rows = &rows;
    append.k.data = k;
    append.v.data = v;
    attend.q.data = q;
    attend.o.data = o;
    return kvl_append(cache, &append) || kvl_attend(cache, &attend);
}

int main(void)
{
    static float o[q_heads * head_dim];
    static char text[4096];
    const kvl_pack* packs[] = { &kernel_pack };
    kvl_context_desc cd = { 0 };
    kvl_layer_desc layer = { 0 };
    kvl_cache_desc kd = { 0 };
    kvl_context* ctx;
    kvl_cache* cache = NULL;
    cd.packs = packs;
    cd.num_packs = 1;
    cd.cache_dir = "";                     // nothing on disk
    cd.compiler = "/there/is/none";
    cd.log.call = say;
    layer.num_q_heads = q_heads;
    layer.num_kv_heads = kv_heads;
    layer.head_dim = head_dim;
    layer.spec = "kivi:k2,v2,g32,meta=f16";   // keeps equal values exactly
    kd.num_layers = 1;
    kd.layers = &layer;
    int bad = kvl_context_create(&cd, &ctx) || kvl_cache_create(ctx, &kd, &cache)
        || run(cache, 0.5f, o);
    if (bad) printf("%s\n", kvl_context_message(ctx));
    if (!bad && kvl_describe(cache, text, sizeof text, NULL) == KVL_OK) printf("%s", text);
    if (!bad && !strstr(text, "generated kernels (pack)")) bad = 1;
    for (int i = 0; i < q_heads * head_dim; ++i) bad |= fabsf(o[i] - 0.5f) > 1e-3f;
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
    if (bad) printf("not as expected\n");
    return bad;
}
