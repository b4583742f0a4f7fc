// bench_ops.c -- times of fork, truncate, drop, append, batches and files.
//
// Rounds go through all figures, so that noise hits all alike; each figure is the median over
// rounds, and a ratio the median of the rounds' own ratios.  Times of microseconds are those of one
// call.  Pages are read by other work between two calls, as they are in an engine: an attend over
// the long sequence stands between them.
//
// Files: copy reads a file of the same bytes and writes another, read reads it; both through a
// buffer of 1 MiB, and what is written is synced, as kvl_save does.

#include "bench_ops.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { most_rounds = 400, least_rounds = 5, batch_seqs = 16, fill_rows = 512, cut_rows = 5 };

enum figure {
    figure_fork, figure_truncate, figure_drop, figure_fork_truncate, figure_fork_drop,
    figure_fork_long, figure_truncate_long, figure_drop_long, figure_fork_truncate_long,
    figure_fork_drop_long, figure_step, figure_attend, figure_step_part, figure_long, figure_batch,
    figure_batch_ratio, figure_copy, figure_read, figure_save, figure_load, figure_save_ratio,
    figure_load_ratio, num_figures
};

typedef struct run {
    const bench_ops* ops;
    kvl_cache*       cache;
    kvl_seq          seqs[batch_seqs];    // of num_rows / 16 rows
    kvl_seq          long_seq, step_seq;
    float*           o;                   // [batch_seqs, q_heads, head_dim_v]
    float*           q;                   // [batch_seqs, q_heads, head_dim]
    int              next_source, chunk_len, page_size;
    char             file[512], copy[512];
    unsigned char*   buffer;
    int64_t          file_bytes;
    double           at[num_figures][most_rounds];
    int              num[num_figures];
    const char*      failed;              // what did, if the cache's context has no message
} run;

enum { buffer_bytes = 1 << 20 };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static void add(run* r, int figure, double value)
{
    if (r->num[figure] < most_rounds) r->at[figure][r->num[figure]++] = value;
}

static int compare(const void* a, const void* b)
{
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static double median(run* r, int figure)
{
    const int num = r->num[figure];
    if (num == 0) return 0.0;
    qsort(r->at[figure], (size_t)num, sizeof(double), compare);
    return 0.5 * (r->at[figure][num / 2] + r->at[figure][(num - 1) / 2]);
}

static bench_ops_time time_of(run* r, int figure)
{
    bench_ops_time t;
    t.median = median(r, figure);
    t.best = r->num[figure] ? r->at[figure][0] : 0.0;     // sorted
    return t;
}

static int value_dim(const kvl_layer_desc* l)
{
    return l->head_dim_v ? l->head_dim_v : l->head_dim;
}

static size_t o_floats(const kvl_layer_desc* l)
{
    return (size_t)l->num_q_heads * (size_t)value_dim(l);
}

static kvl_status append(run* r, kvl_seq seq, int32_t num)
{
    const kvl_layer_desc* l = r->ops->layer;
    if (r->next_source + num > r->ops->num_sources) r->next_source = 0;
    const int64_t at = (int64_t)r->next_source * l->num_kv_heads;
    kvl_append_desc a = { .num_seqs = 1, .seqs = &seq, .num_rows = &num };
    a.k.data = r->ops->k + at * l->head_dim;
    a.v.data = l->values_in_keys ? NULL : r->ops->v + at * value_dim(l);
    r->next_source += num;
    return kvl_append(r->cache, &a);
}

static kvl_status fill(run* r, kvl_seq* seq, int64_t num_rows)
{
    kvl_status status = kvl_seq_create(r->cache, seq);
    for (int64_t row = 0; row < num_rows && !status; row += fill_rows)
        status = append(r, *seq, num_rows - row < fill_rows ? (int32_t)(num_rows - row)
                                                            : fill_rows);
    return status;
}

static kvl_status attend(run* r, const kvl_seq* seqs, int num_seqs)
{
    kvl_attend_desc t = { .num_seqs = num_seqs, .seqs = seqs };
    t.q.data = r->q;
    t.o.data = r->o;
    return kvl_attend(r->cache, &t);
}

// SEQUENCES

// Appends some rows and takes them back, drops a page's rows, forks, and does both to a fork.  What
// the sequence has lost it gets back, so that its length stays.
static kvl_status measure_changes(run* r, kvl_seq seq, int figure)
{
    kvl_seq fork = 0;
    kvl_status status = append(r, seq, cut_rows);
    kvl_seq_rows rows;
    if (!status) status = kvl_seq_get_rows(r->cache, 0, seq, &rows);
    if (!status) status = attend(r, &r->long_seq, 1);
    double start = now_us();
    if (!status) status = kvl_truncate(r->cache, seq, rows.rows - cut_rows);
    add(r, figure + figure_truncate, now_us() - start);
    if (!status) status = attend(r, &r->long_seq, 1);
    start = now_us();
    if (!status) status = kvl_seq_fork(r->cache, seq, &fork);
    add(r, figure + figure_fork, now_us() - start);
    if (!status) status = attend(r, &r->long_seq, 1);
    start = now_us();
    if (!status) status = kvl_truncate(r->cache, fork, rows.rows - 3 * r->page_size);
    add(r, figure + figure_fork_truncate, now_us() - start);
    if (!status) status = kvl_seq_free(r->cache, fork);
    if (!status) status = kvl_seq_fork(r->cache, seq, &fork);
    if (!status) status = attend(r, &r->long_seq, 1);
    start = now_us();
    if (!status) status = kvl_drop_oldest(r->cache, fork, r->page_size);
    add(r, figure + figure_fork_drop, now_us() - start);
    if (!status) status = attend(r, &r->long_seq, 1);
    start = now_us();
    if (!status) status = kvl_drop_oldest(r->cache, fork, r->page_size);
    add(r, figure + figure_drop, now_us() - start);
    if (!status) status = kvl_seq_free(r->cache, fork);
    return status;
}

// Rows of a chunk, one by one: the time of one, encoding included, against an attend.
static kvl_status measure_step(run* r)
{
    kvl_status status = KVL_OK;
    double start = now_us();
    for (int i = 0; i < r->chunk_len && !status; ++i) status = append(r, r->step_seq, 1);
    const double step = (now_us() - start) / r->chunk_len;
    if (!status) status = kvl_truncate(r->cache, r->step_seq, r->ops->step_rows);
    start = now_us();
    if (!status) status = attend(r, &r->step_seq, 1);
    const double once = now_us() - start;
    add(r, figure_step, step);
    add(r, figure_attend, once);
    add(r, figure_step_part, step / once);
    return status;
}

static kvl_status measure_batch(run* r)
{
    double start = now_us();
    kvl_status status = attend(r, &r->long_seq, 1);
    const double one = now_us() - start;
    start = now_us();
    if (!status) status = attend(r, r->seqs, batch_seqs);
    const double many = now_us() - start;
    add(r, figure_long, one);
    add(r, figure_batch, many);
    add(r, figure_batch_ratio, one / many);
    return status;
}

// FILES

// Reads the saved file; writes another if it is given.  Returns whether that could be done.
static int move_file(run* r, const char* to)
{
    const int in = open(r->file, O_RDONLY | O_CLOEXEC);
    const int out = to ? open(to, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600) : -1;
    int good = in >= 0 && (!to || out >= 0);
    int64_t moved = 0;
    while (good) {
        const ssize_t num = read(in, r->buffer, buffer_bytes);
        if (num <= 0) break;
        good = !to || write(out, r->buffer, (size_t)num) == num;
        moved += num;
    }
    good = good && moved > 0 && (!to || fsync(out) == 0);
    if (in >= 0) close(in);
    if (out >= 0) close(out);
    r->file_bytes = moved;
    return good;
}

static kvl_status save(run* r)
{
    const kvl_save_seq one = { .seq = r->long_seq };
    const kvl_save_desc d = { .num_seqs = 1, .seqs = &one, .path = r->file };
    return kvl_save(r->cache, &d);
}

static kvl_status load(run* r, kvl_seq* seq)
{
    const kvl_load_desc d = { .path = r->file };
    kvl_loaded_seq* loaded;
    int num;
    const kvl_status status = kvl_load(r->cache, &d, &loaded, &num);
    if (status) return status;
    *seq = loaded->seq;
    kvl_loaded_free(r->ops->ctx, loaded, num);
    return KVL_OK;
}

static kvl_status measure_files(run* r)
{
    kvl_seq seq = 0;
    double times[4], start = now_us();
    kvl_status status = save(r);
    times[0] = now_us() - start;
    start = now_us();
    if (!status) status = load(r, &seq);
    times[1] = now_us() - start;
    if (!status) status = kvl_seq_free(r->cache, seq);
    start = now_us();
    if (!status && !move_file(r, r->copy)) r->failed = "the file cannot be copied";
    times[2] = now_us() - start;
    start = now_us();
    if (!status && !move_file(r, NULL)) r->failed = "the file cannot be read";
    times[3] = now_us() - start;
    const double bytes = (double)r->file_bytes;
    add(r, figure_save, bytes / times[0]);
    add(r, figure_load, bytes / times[1]);
    add(r, figure_copy, bytes / times[2]);
    add(r, figure_read, bytes / times[3]);
    add(r, figure_save_ratio, times[2] / times[0]);
    add(r, figure_load_ratio, times[2] / times[1]);
    return status;
}

// CHECKS

// Outputs of the long sequence, of its fork and of the loaded one; of a sequence alone and in a
// batch: the same bits.
static kvl_status check(run* r)
{
    const size_t num = o_floats(r->ops->layer), bytes = num * sizeof(float);
    kvl_seq fork = 0, loaded = 0;
    float* kept = (float*)malloc(bytes);
    if (!kept) return KVL_NO_MEMORY;
    kvl_status status = attend(r, &r->long_seq, 1);
    memcpy(kept, r->o, bytes);
    if (!status) status = kvl_seq_fork(r->cache, r->long_seq, &fork);
    if (!status) status = attend(r, &fork, 1);
    if (!status && memcmp(kept, r->o, bytes)) r->failed = "a fork attends to other values";
    if (!status) status = save(r);
    if (!status) status = load(r, &loaded);
    if (!status) status = attend(r, &loaded, 1);
    if (!status && memcmp(kept, r->o, bytes)) r->failed = "a loaded sequence has other values";
    if (!status) status = attend(r, &r->seqs[batch_seqs - 1], 1);
    memcpy(kept, r->o, bytes);
    if (!status) status = attend(r, r->seqs, batch_seqs);
    if (!status && memcmp(kept, r->o + (batch_seqs - 1) * num, bytes))
        r->failed = "a sequence in a batch has other values than alone";
    if (!status) status = kvl_seq_free(r->cache, fork);
    if (!status) status = kvl_seq_free(r->cache, loaded);
    free(kept);
    return status;
}

// RUN

static kvl_status open_run(run* r)
{
    const bench_ops* ops = r->ops;
    const kvl_layer_desc* l = ops->layer;
    const kvl_cache_desc desc = { .num_layers = 1, .layers = l, .calibration = ops->calibration };
    const size_t q_floats = (size_t)l->num_q_heads * (size_t)l->head_dim;
    kvl_layer_info info;
    r->o = (float*)calloc(batch_seqs * o_floats(l), sizeof(float));
    r->q = (float*)calloc(batch_seqs * q_floats, sizeof(float));
    r->buffer = (unsigned char*)malloc(buffer_bytes);
    if (!r->o || !r->q || !r->buffer) return KVL_NO_MEMORY;
    for (int i = 0; i < batch_seqs; ++i)
        memcpy(r->q + (size_t)i * q_floats, ops->q, q_floats * sizeof(float));
    snprintf(r->file, sizeof r->file, "%s/kvloom-bench-%ld", ops->folder, (long)getpid());
    snprintf(r->copy, sizeof r->copy, "%s/kvloom-bench-%ld-copy", ops->folder, (long)getpid());
    kvl_status status = kvl_cache_create(ops->ctx, &desc, &r->cache);
    if (!status) status = kvl_cache_layer_info(r->cache, 0, &info);
    if (status) return status;
    r->chunk_len = info.chunk_len < 16 ? 16 : info.chunk_len;
    r->page_size = info.page_size;
    for (int i = 0; i < batch_seqs && !status; ++i)
        status = fill(r, &r->seqs[i], ops->num_rows / batch_seqs);
    if (!status) status = fill(r, &r->long_seq, ops->num_rows);
    if (!status) status = fill(r, &r->step_seq, ops->step_rows);
    return status;
}

static kvl_status measure(run* r)
{
    kvl_status status = KVL_OK;
    const double end = now_us() + 1e6 * r->ops->seconds;
    // The first round warms up.
    for (int round = 0; round <= most_rounds && !status && !r->failed &&
         (round <= least_rounds || now_us() < end); ++round) {
        status = measure_changes(r, r->seqs[0], 0);
        if (!status) status = measure_changes(r, r->long_seq, figure_fork_long);
        if (!status) status = measure_step(r);
        if (!status) status = measure_batch(r);
        if (!status && round % 4 == 0) status = measure_files(r);
        if (round == 0) memset(r->num, 0, sizeof r->num);
    }
    return status;
}

static void report(run* r, bench_ops_result* out)
{
    for (int i = 0; i < 2; ++i) {
        const int first = i ? figure_fork_long : 0;
        out->fork[i] = time_of(r, first + figure_fork);
        out->truncate[i] = time_of(r, first + figure_truncate);
        out->drop[i] = time_of(r, first + figure_drop);
        out->fork_truncate[i] = time_of(r, first + figure_fork_truncate);
        out->fork_drop[i] = time_of(r, first + figure_fork_drop);
    }
    out->step_us = median(r, figure_step);
    out->attend_us = median(r, figure_attend);
    out->step_part = median(r, figure_step_part);
    out->long_us = median(r, figure_long);
    out->batch_us = median(r, figure_batch);
    out->batch_ratio = median(r, figure_batch_ratio);
    out->copy_mbps = median(r, figure_copy);
    out->read_mbps = median(r, figure_read);
    out->save_mbps = median(r, figure_save);
    out->load_mbps = median(r, figure_load);
    out->save_ratio = median(r, figure_save_ratio);
    out->load_ratio = median(r, figure_load_ratio);
    out->file_mb = 1e-6 * (double)r->file_bytes;
}

int bench_ops_run(const bench_ops* ops, bench_ops_result* out, char* message, int message_bytes)
{
    run* r = (run*)calloc(1, sizeof *r);
    memset(out, 0, sizeof *out);
    if (!r) {
        snprintf(message, (size_t)message_bytes, "out of memory");
        return 1;
    }
    r->ops = ops;
    kvl_status status = open_run(r);
    if (!status) status = check(r);
    if (!status && !r->failed) status = measure(r);
    if (status || r->failed)
        snprintf(message, (size_t)message_bytes, "%s",
                 r->failed ? r->failed : kvl_context_message(ops->ctx));
    else
        report(r, out);
    const int failed = status || r->failed;
    if (r->file[0]) unlink(r->file);
    if (r->copy[0]) unlink(r->copy);
    kvl_cache_free(r->cache);
    free(r->buffer);
    free(r->o);
    free(r->q);
    free(r);
    return failed;
}
