// bench_ops.h -- kvloom-bench --ops: what an engine does with sequences besides attending.

#ifndef BENCH_OPS_H
#define BENCH_OPS_H

#include "kvloom.h"

#include <stdint.h>

// One cache spec: a layer with one sequence of num_rows rows, and one of a sixteenth as many.
typedef struct bench_ops {
    kvl_context*           ctx;
    const kvl_layer_desc*  layer;
    const kvl_calibration* calibration;   // NULL: the spec needs none
    int64_t                num_rows;      // of the long sequence; a multiple of 16
    int64_t                step_rows;     // of the sequence that append is compared at
    const float *          k, *v, *q;     // [num_sources, heads, head_dim], [1, q_heads, head_dim]
    int                    num_sources;
    double                 seconds;
    const char*            folder;        // where files are written
} bench_ops;

// A figure's median over rounds, and the best round.
typedef struct bench_ops_time { double median, best; } bench_ops_time;

// Times in microseconds.
typedef struct bench_ops_result {
    bench_ops_time fork[2], truncate[2], drop[2];       // at num_rows / 16 and num_rows rows
    bench_ops_time fork_truncate[2], fork_drop[2];      // of a fork that shares its page table
    double step_us, attend_us, step_part;               // append with encode, attend, their ratio
    double long_us, batch_us, batch_ratio;              // attend; above 1: the batch is faster
    double copy_mbps, save_mbps, load_mbps;             // of the file, synced; load is from memory
    double read_mbps, save_ratio, load_ratio;           // against copy, and against read
    double file_mb;
} bench_ops_result;

// Checks that forks, batches and loaded sequences attend to the bit as they should, then measures.
// Returns 0, or 1 with one line in message.
int bench_ops_run(const bench_ops* ops, bench_ops_result* out, char* message, int message_bytes);

#endif
