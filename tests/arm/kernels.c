// kernels.c -- kernels for arm64 beside the reference, as TAP.
//
//     arm_kernels CONFIGS
//
// Built by a compiler for arm64 and run by its processor or by qemu-aarch64; the kernels are in a
// pack (kvloom-pack with the same compiler), since nothing can be compiled here.  Each line of
// CONFIGS is run by each instruction set: rows that are restored must be the reference's bit for
// bit, attention must agree.

#define KVLOOM_NO_LUA
#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

#include "arm_pack.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { num_rows = 400, num_queries = 2, max_floats = num_rows * 8 * 256 };

typedef struct shape {
    char spec[256];
    int  q_heads, kv_heads, dim;
} shape;

typedef struct rows {
    float k[max_floats], v[max_floats], q[max_floats];
} rows;

typedef struct result {
    float k[max_floats], v[max_floats], o[max_floats];
    char  message[1024];
} result;

static rows   input;
static result reference, kernels;

// Sums of uniform numbers, of channels that differ in size: the generator of Numerical Recipes.
static void fill(float* to, int num, int dim, uint32_t seed)
{
    for (int i = 0; i < num; ++i) {
        float sum = 0.0f;
        for (int j = 0; j < 4; ++j) {
            seed = seed * 1664525u + 1013904223u;
            sum += (float)(seed >> 8) / 8388608.0f - 1.0f;
        }
        to[i] = sum * (i % dim % 13 == 5 ? 4.0f : 1.0f);
    }
}

// Returns 0, or 1 with a message in r.
static int run(const kvl_context_desc* cd, const shape* s, result* r)
{
    const int32_t appended = num_rows, asked = num_queries;
    kvl_context* ctx;
    kvl_cache* cache = NULL;
    kvl_seq seq;
    kvl_layer_desc layer = { 0 };
    kvl_cache_desc desc = { 0 };
    kvl_append_desc append = { 0 };
    kvl_attend_desc attend = { 0 };
    const kvl_rows k = { .data = r->k }, v = { .data = r->v };
    layer.num_q_heads = s->q_heads;
    layer.num_kv_heads = s->kv_heads;
    layer.head_dim = s->dim;
    layer.spec = s->spec;
    desc.num_layers = 1;
    desc.layers = &layer;
    append.num_seqs = attend.num_seqs = 1;
    append.num_rows = &appended;
    append.k.data = input.k;
    append.v.data = input.v;
    attend.q_lens = &asked;
    attend.q.data = input.q;
    attend.o.data = r->o;
    append.seqs = attend.seqs = &seq;
    const int bad = kvl_context_create(cd, &ctx) || kvl_cache_create(ctx, &desc, &cache)
        || kvl_seq_create(cache, &seq) || kvl_append(cache, &append) || kvl_attend(cache, &attend)
        || kvl_restore(cache, 0, seq, 0, num_rows, &k, &v);
    if (bad) snprintf(r->message, sizeof r->message, "%s", kvl_context_message(ctx));
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
    return bad;
}

// |a - b| / |b|
static double difference(const float* a, const float* b, int num)
{
    double error = 0.0, size = 0.0;
    for (int i = 0; i < num; ++i) {
        error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(error / size);
}

static int check(const shape* s, const char* isa, int number)
{
    const kvl_pack* packs[] = { &arm_pack };
    const int num = num_rows * s->kv_heads * s->dim;
    kvl_context_desc desc = { 0 };
    desc.target = KVL_TARGET_HOST;
    desc.num_threads = 2;
    desc.isa = isa;
    desc.packs = packs;
    desc.num_packs = 1;
    desc.cache_dir = "";
    desc.compiler = "/there/is/none";
    if (run(&desc, s, &kernels)) {
        printf("not ok %d - %s %s: %s\n", number, isa, s->spec, kernels.message);
        return 1;
    }
    const double error = difference(kernels.o, reference.o, num_queries * s->q_heads * s->dim);
    const int same = memcmp(kernels.k, reference.k, sizeof(float) * (size_t)num) == 0
        && memcmp(kernels.v, reference.v, sizeof(float) * (size_t)num) == 0;
    const int bad = !same || !(error <= 1e-3);
    printf("%s %d - %s %s %d %d %d: rows %s, attention %.2g\n", bad ? "not ok" : "ok", number, isa,
           s->spec, s->q_heads, s->kv_heads, s->dim, same ? "equal" : "differ", error);
    return bad;
}

int main(int argc, char** argv)
{
    static const char* const isas[] = { "neondot", "neon" };
    char line[512];
    int number = 0, bad = 0;
    FILE* in = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (!in) {
        fprintf(stderr, "arm_kernels: %s: cannot be read\n", argc == 2 ? argv[1] : "CONFIGS");
        return 2;
    }
    while (fgets(line, sizeof line, in)) {
        shape s;
        kvl_context_desc desc = { 0 };
        if (line[0] == '#') continue;
        if (sscanf(line, "%255s %d %d %d", s.spec, &s.q_heads, &s.kv_heads, &s.dim) != 4) {
            fprintf(stderr, "arm_kernels: %s: not a configuration\n", line);
            return 2;
        }
        fill(input.k, num_rows * s.kv_heads * s.dim, s.dim, 1);
        fill(input.v, num_rows * s.kv_heads * s.dim, s.dim, 2);
        fill(input.q, num_queries * s.q_heads * s.dim, s.dim, 3);
        desc.target = KVL_TARGET_REFERENCE;
        desc.num_threads = 2;
        if (run(&desc, &s, &reference)) {
            printf("not ok %d - reference %s: %s\n", ++number, s.spec, reference.message);
            bad = 1;
            continue;
        }
        for (size_t i = 0; i < sizeof isas / sizeof isas[0]; ++i)
            bad |= check(&s, isas[i], ++number);
    }
    fclose(in);
    printf("1..%d\n", number);
    return bad;
}
