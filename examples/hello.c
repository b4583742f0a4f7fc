// hello.c -- the smallest use of kvloom: append rows, attend to them, compare with plain attention.
//
//     cc -std=c99 hello.c $(pkg-config --cflags --libs kvloom)

#define KVLOOM_IMPLEMENTATION // in exactly one C file of a program
#include "kvloom.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { num_rows = 1000, num_q_heads = 8, num_kv_heads = 2, head_dim = 64 };

static float k[num_rows][num_kv_heads][head_dim], v[num_rows][num_kv_heads][head_dim];
static float q[num_q_heads][head_dim], o[num_q_heads * head_dim], expected[num_q_heads * head_dim];
static kvl_context* ctx;

// Every call can fail; the context then says what, with the name, the value and the rule.
static void must(kvl_status status)
{
    if (status == KVL_OK) return;
    fprintf(stderr, "hello: %s\n", ctx ? kvl_context_message(ctx) : kvl_status_text(status));
    exit(1);
}

static void fill(float* x, size_t num)
{
    for (size_t i = 0; i < num; ++i) x[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
}

// o = sum exp(s) v / sum exp(s) with s = q.k / sqrt(head_dim), over the rows as they were appended.
static void attend_plainly(int head)
{
    const int kv_head = head / (num_q_heads / num_kv_heads);
    float sum = 0.0f, *out = expected + head * head_dim;
    for (int row = 0; row < num_rows; ++row) {
        float score = 0.0f;
        for (int i = 0; i < head_dim; ++i) score += q[head][i] * k[row][kv_head][i];
        const float weight = expf(score / sqrtf((float)head_dim));
        sum += weight;
        for (int i = 0; i < head_dim; ++i) out[i] += weight * v[row][kv_head][i];
    }
    for (int i = 0; i < head_dim; ++i) out[i] /= sum;
}

int main(void)
{
    must(kvl_context_create(&(kvl_context_desc){ 0 }, &ctx)); // zero is the default, everywhere
    const kvl_layer_desc layer = { .num_q_heads = num_q_heads, .num_kv_heads = num_kv_heads,
                                   .head_dim = head_dim, .spec = "kivi:k4,v4,g32,recent=64" };
    kvl_cache* cache;
    must(kvl_cache_create(ctx, &(kvl_cache_desc){ .num_layers = 1, .layers = &layer }, &cache));
    kvl_seq seq;
    must(kvl_seq_create(cache, &seq));
    fill(&k[0][0][0], sizeof k / sizeof(float));
    fill(&v[0][0][0], sizeof v / sizeof(float));
    fill(&q[0][0], sizeof q / sizeof(float));
    must(kvl_append(cache, &(kvl_append_desc){ .num_seqs = 1, .seqs = &seq,
                                               .num_rows = (int32_t[]){ num_rows },
                                               .k = { .data = k }, .v = { .data = v } }));
    must(kvl_attend(cache, &(kvl_attend_desc){ .num_seqs = 1, .seqs = &seq,
                                               .q = { .data = q }, .o = { .data = o } }));
    kvl_layer_info info;
    must(kvl_cache_layer_info(cache, 0, &info));
    kvl_stats stats;
    must(kvl_cache_stats(cache, &stats));
    kvl_cache_free(cache); // and its sequences
    kvl_context_destroy(ctx);

    for (int head = 0; head < num_q_heads; ++head) attend_plainly(head);
    double error = 0.0, length = 0.0;
    for (int i = 0; i < num_q_heads * head_dim; ++i) {
        error += pow(o[i] - expected[i], 2.0);
        length += pow(expected[i], 2.0);
    }
    printf("%s: %.2f bits a key, %.2f a value; %d bytes; relative error %.3f\n", info.spec,
           info.k_bits, info.v_bits, (int)stats.bytes, sqrt(error / length));
    return error > 0.04 * length; // 4 bits keep the output within 20 %
}
