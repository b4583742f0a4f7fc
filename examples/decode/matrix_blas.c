// matrix_blas.c -- the matrix-matrix products of prefill, through CBLAS.
//
// Each thread of the pool turns a tile of rows of W into floats, small enough to stay in its
// caches, and multiplies it by all of x with a single-threaded sgemm. So there is one pool of
// threads and not two, and no thread waits between unpacking and multiplying.
#include "matrix_units.h"

#include <cblas.h>

// OpenBLAS has threads of its own; another CBLAS does not have these functions, and a weak symbol
// is NULL there.
#if defined(__ELF__)
int openblas_get_num_threads(void) __attribute__((weak));
void openblas_set_num_threads(int num_threads) __attribute__((weak));
#define MATRIX_HAVE_WEAK 1
#endif

// Returns the thread count to restore, 0 for none.
static int take_blas_threads(void)
{
#if defined(MATRIX_HAVE_WEAK)
    if (openblas_get_num_threads != NULL && openblas_set_num_threads != NULL) {
        const int before = openblas_get_num_threads();
        if (before > 1) {
            openblas_set_num_threads(1);
            return before;
        }
    }
#endif
    return 0;
}

static void restore_blas_threads(int num_threads)
{
#if defined(MATRIX_HAVE_WEAK)
    if (num_threads > 0) { openblas_set_num_threads(num_threads); }
#endif
    (void)num_threads;
}

typedef struct multiply_job {
    const matrix* w;
    const matrix_batch* batch;
    const matrix_kernels* kernels;
    int64_t num_slots;
    int64_t tile_rows;
} multiply_job;

static int64_t count_threads(const matrix_pool* pool)
{
    return pool != NULL && pool->parallel_for != NULL && pool->num_threads > 1 ? pool->num_threads
                                                                               : 1;
}

// 256 rows: BLAS repacks x for each tile, which costs about as much as multiplying by 10 rows.
size_t matrix_multiply_scratch(const matrix_pool* pool, const matrix* w)
{
    if (w->type == MATRIX_F32) { return 0; }
    const int64_t num_threads = count_threads(pool);
    const int64_t share = (w->rows + num_threads - 1) / num_threads;
    const int64_t tile_rows = share < 256 ? share : 256;
    return (size_t)(num_threads * tile_rows * w->cols) * sizeof(float);
}

// y[0 .. batch, first ..] = x tile^T, with tile [num_rows, tile_stride].
static void multiply_tile(const multiply_job* job, const float* tile, int64_t tile_stride,
                          int64_t first, int64_t num_rows)
{
    const matrix* w = job->w;
    const matrix_batch* batch = job->batch;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)batch->batch, (int)num_rows,
                (int)w->cols, 1.0f, batch->x, (int)w->cols, tile, (int)tile_stride, 0.0f,
                batch->y + first, (int)w->rows);
}

// Slot i has the rows from i rows / num_slots on, and its own part of the scratch.
static void multiply_slot(void* arg, int64_t slot)
{
    const multiply_job* job = (const multiply_job*)arg;
    const matrix* w = job->w;
    const int64_t last = w->rows * (slot + 1) / job->num_slots;
    float* tile = (float*)job->batch->scratch + slot * job->tile_rows * w->cols;
    for (int64_t m = w->rows * slot / job->num_slots; m < last; m += job->tile_rows) {
        const int64_t num_rows = last - m < job->tile_rows ? last - m : job->tile_rows;
        const uint8_t* row = (const uint8_t*)w->data + m * w->row_bytes;
        if (w->type == MATRIX_F32) {
            multiply_tile(job, (const float*)(const void*)row,
                          w->row_bytes / (int64_t)sizeof(float), m, num_rows);
            continue;
        }
        for (int64_t r = 0; r < num_rows; r++) {
            job->kernels->dequantize(w->type, row + r * w->row_bytes, w->cols, tile + r * w->cols);
        }
        multiply_tile(job, tile, w->cols, m, num_rows);
    }
}

void matrix_multiply(const matrix_pool* pool, const matrix* w, const matrix_batch* batch)
{
    if (batch->batch < 1 || w->rows < 1) { return; }
    multiply_job job = {
        .w = w,
        .batch = batch,
        .kernels = matrix_find_kernels(pool != NULL ? pool->level : MATRIX_BEST),
        .num_slots = count_threads(pool),
    };
    const int64_t slot_floats = (int64_t)(batch->scratch_bytes / sizeof(float)) / job.num_slots;
    job.tile_rows = w->type == MATRIX_F32 ? w->rows : slot_floats / w->cols;
    if (job.tile_rows < 1) { return; }
    const int before = take_blas_threads();
    matrix_parallel(pool, job.num_slots, multiply_slot, &job);
    restore_blas_threads(before);
}
