// context_parallel.c -- a long sequence over several processes: each holds a slice of its rows,
// attends to it, and the parts are merged by their log-sum-exp.  The first process holds all rows
// as well, to compare.
//
//     mpicc -std=c99 context_parallel.c $(pkg-config --cflags --libs kvloom)
//     mpirun -n 4 ./a.out
//
// Slices begin where groups do, and the spec has no 16-bit windows: the codes are those that one
// process would have.  What comes during decoding belongs to the last process.

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"

#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { slice_len = 1024, num_steps = 40, num_q_heads = 8, num_kv_heads = 2, head_dim = 64 };
enum { kv_row = num_kv_heads * head_dim, q_row = num_q_heads * head_dim };

static kvl_context* ctx;

static void must(kvl_status status)
{
    if (status == KVL_OK) return;
    fprintf(stderr, "context_parallel: %s\n",
            ctx ? kvl_context_message(ctx) : kvl_status_text(status));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

// Stands for the model: every process can make any row.
static void make_row(int position, int kind, int num, float* x)
{
    uint32_t state = (uint32_t)(position * 31 + kind) * 2654435761u + 1u;
    for (int i = 0; i < num; ++i) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
}

static void append(kvl_cache* cache, kvl_seq seq, int first, int end)
{
    float k[kv_row], v[kv_row];
    for (int row = first; row < end; ++row) {
        make_row(row, 0, kv_row, k);
        make_row(row, 1, kv_row, v);
        must(kvl_append(cache, &(kvl_append_desc){ .num_seqs = 1, .seqs = &seq, .k = { .data = k },
                                                   .v = { .data = v } }));
    }
}

// partial = 1: the learned logits take their share once, in the last merge.
static void attend(kvl_cache* cache, kvl_seq seq, const float* q, int partial, float* o, float* lse)
{
    must(kvl_attend(cache, &(kvl_attend_desc){ .num_seqs = 1, .seqs = &seq, .q = { .data = q },
                                               .o = { .data = o }, .lse = lse,
                                               .partial = partial }));
}

// The parts of all processes, in order, so that every process comes to the same bits.
static void merge_all(int num, const float* sinks, float* o, float* lse)
{
    float* os = (float*)malloc((size_t)num * q_row * sizeof(float));
    float* lses = (float*)malloc((size_t)num * num_q_heads * sizeof(float));
    if (!os || !lses) must(KVL_NO_MEMORY);
    MPI_Allgather(o, q_row, MPI_FLOAT, os, q_row, MPI_FLOAT, MPI_COMM_WORLD);
    MPI_Allgather(lse, num_q_heads, MPI_FLOAT, lses, num_q_heads, MPI_FLOAT, MPI_COMM_WORLD);
    for (int i = 0; i < q_row; ++i) o[i] = 0.0f;
    for (int i = 0; i < num_q_heads; ++i) lse[i] = -INFINITY;
    for (int i = 0; i < num; ++i)
        must(kvl_merge(ctx, &(kvl_merge_desc){ .num_rows = num_q_heads, .head_dim = head_dim,
                                               .o_a = o, .lse_a = lse, .o_b = os + i * q_row,
                                               .lse_b = lses + i * num_q_heads, .o = o, .lse = lse,
                                               .sink_logits = i == num - 1 ? sinks : NULL,
                                               .num_heads = num_q_heads }));
    free(os);
    free(lses);
}

int main(int argc, char** argv)
{
    int rank, num;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num);
    must(kvl_context_create(&(kvl_context_desc){ .num_threads = 1 }, &ctx));
    float sinks[num_q_heads];
    for (int i = 0; i < num_q_heads; ++i) sinks[i] = 0.5f * (float)i;
    const kvl_layer_desc layer = { .num_q_heads = num_q_heads, .num_kv_heads = num_kv_heads,
                                   .head_dim = head_dim, .sink_logits = sinks,
                                   .spec = "kivi:k2,v2,g32,sink=0,recent=0,chunk=32" };
    kvl_cache *cache, *whole = NULL;
    kvl_seq seq, all = 0;
    must(kvl_cache_create(ctx, &(kvl_cache_desc){ .num_layers = 1, .layers = &layer }, &cache));
    must(kvl_seq_create(cache, &seq));
    append(cache, seq, rank * slice_len, (rank + 1) * slice_len);
    if (rank == 0) {
        must(kvl_cache_create(ctx, &(kvl_cache_desc){ .num_layers = 1, .layers = &layer }, &whole));
        must(kvl_seq_create(whole, &all));
        append(whole, all, 0, num * slice_len);
    }
    float most = 0.0f;
    for (int row = num * slice_len; row < num * slice_len + num_steps; ++row) {
        float q[q_row], o[q_row], lse[num_q_heads], o_all[q_row], lse_all[num_q_heads];
        make_row(row, 2, q_row, q);
        if (rank == num - 1) append(cache, seq, row, row + 1);
        attend(cache, seq, q, 1, o, lse);
        merge_all(num, sinks, o, lse);
        if (rank != 0) continue;
        append(whole, all, row, row + 1);
        attend(whole, all, q, 0, o_all, lse_all);
        for (int i = 0; i < q_row; ++i) most = fmaxf(most, fabsf(o[i] - o_all[i]));
        for (int i = 0; i < num_q_heads; ++i) most = fmaxf(most, fabsf(lse[i] - lse_all[i]));
    }
    if (rank == 0)
        printf("%d processes of %d rows each: outputs differ from one process's by at most %.1e\n",
               num, slice_len, (double)most);
    kvl_cache_free(whole);
    kvl_cache_free(cache);
    kvl_context_destroy(ctx);
    MPI_Finalize();
    return !(most < 1e-5f);
}
