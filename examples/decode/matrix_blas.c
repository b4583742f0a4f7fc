// matrix_blas.c -- the matrix-matrix products of prefill, through CBLAS.
//
// Each thread of the pool turns tiles of rows of W into floats, small enough to stay in its caches,
// and multiplies each by pieces of x with a single-threaded sgemm. So there is one pool of threads
// and not two, and no thread waits between unpacking and multiplying. What one sgemm gets does not
// depend on the number of threads: at the edges of its blocks it may add in another order.
#include "matrix_units.h"

#include <cblas.h>

// OpenBLAS has threads of its own; another CBLAS does not have these functions, and a weak symbol
// is NULL there.
#if defined(__ELF__)
int openblas_get_num_threads(void) __attribute__((weak));
void openblas_set_num_threads(int num_threads) __attribute__((weak));
#define MATRIX_HAVE_WEAK 1
#endif

int matrix_blas_threads(int num_threads)
{
#if defined(MATRIX_HAVE_WEAK)
    if (num_threads > 0 && openblas_get_num_threads != NULL && openblas_set_num_threads != NULL) {
        const int before = openblas_get_num_threads();
        if (before != num_threads) { openblas_set_num_threads(num_threads); }
        return before;
    }
#endif
    (void)num_threads;
    return 0;
}

// BLAS repacks both factors of each product, which costs about as much as 10 more rows of either.
// Two pieces of x at least, where it is long enough, share a matrix of one tile among threads.
enum { TILE_ROWS = 256, PIECE_ROWS = 512, FEW_ROWS = 64, ROWS_MULTIPLE = 16 };

typedef struct multiply_job {
    const matrix* w;
    const matrix_batch* batch;
    const matrix_kernels* kernels;
    int64_t num_slots;
    int64_t tile_rows, num_tiles;
    int64_t piece_rows, num_pieces;
} multiply_job;

static int64_t count_threads(const matrix_pool* pool)
{
    return pool != NULL && pool->parallel_for != NULL && pool->num_threads > 1 ? pool->num_threads
                                                                               : 1;
}

// Rows of the fewest parts of at most `most`, a multiple of 16: all alike but the last.
static int64_t rows_of_part(int64_t rows, int64_t most)
{
    const int64_t num_parts = (rows + most - 1) / most;
    const int64_t share = (rows + num_parts - 1) / num_parts;
    return (share + ROWS_MULTIPLE - 1) / ROWS_MULTIPLE * ROWS_MULTIPLE;
}

size_t matrix_multiply_scratch(const matrix_pool* pool, const matrix* w)
{
    if (w->type == MATRIX_F32) { return 0; }
    const int64_t tile_rows = w->rows < TILE_ROWS ? w->rows : TILE_ROWS;
    return (size_t)(count_threads(pool) * tile_rows * w->cols) * sizeof(float);
}

static int64_t at_most(int64_t count, int64_t most) { return count < most ? count : most; }

// Returns the floats of rows [first, first + num_rows), in `tile` or where they lie.
static const float* unpack_tile(const multiply_job* job, int64_t first, int64_t num_rows,
                                float* tile)
{
    const matrix* w = job->w;
    const uint8_t* row = (const uint8_t*)w->data + first * w->row_bytes;
    if (w->type == MATRIX_F32) { return (const float*)(const void*)row; }
    for (int64_t r = 0; r < num_rows; r++) {
        job->kernels->dequantize(w->type, row + r * w->row_bytes, w->cols, tile + r * w->cols);
    }
    return tile;
}

// Slot i has its share of the pairs of a tile and a piece, and its own part of the scratch; pairs
// of one tile are neighbours.
static void multiply_slot(void* arg, int64_t slot)
{
    const multiply_job* job = (const multiply_job*)arg;
    const matrix* w = job->w;
    const matrix_batch* batch = job->batch;
    const int64_t num_pairs = job->num_tiles * job->num_pieces;
    const int64_t last = num_pairs * (slot + 1) / job->num_slots;
    const int64_t stride =
        w->type == MATRIX_F32 ? w->row_bytes / (int64_t)sizeof(float) : w->cols;
    float* scratch = (float*)batch->scratch + slot * job->tile_rows * w->cols;
    const float* tile = NULL;
    int64_t held = -1;
    for (int64_t i = num_pairs * slot / job->num_slots; i < last; i++) {
        const int64_t m = i / job->num_pieces * job->tile_rows;
        const int64_t n = i % job->num_pieces * job->piece_rows;
        const int64_t num_rows = at_most(w->rows - m, job->tile_rows);
        const int64_t count = at_most(batch->batch - n, job->piece_rows);
        if (held != m) { tile = unpack_tile(job, m, num_rows, scratch); }
        held = m;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)count, (int)num_rows,
                    (int)w->cols, 1.0f, batch->x + n * w->cols, (int)w->cols, tile, (int)stride,
                    0.0f, batch->y + n * w->rows + m, (int)w->rows);
    }
}

void matrix_multiply(const matrix_pool* pool, const matrix* w, const matrix_batch* batch)
{
    if (batch->batch < 1 || w->rows < 1) { return; }
    const int64_t num_slots = count_threads(pool);
    const int64_t most = batch->batch < 2 * FEW_ROWS ? FEW_ROWS : TILE_ROWS;
    const int64_t half = (batch->batch + 1) / 2;
    const int64_t piece_rows = rows_of_part(half > FEW_ROWS ? half : FEW_ROWS, PIECE_ROWS);
    int64_t tile_rows = at_most(rows_of_part(w->rows, most), w->rows);
    if (w->type != MATRIX_F32) {
        const int64_t room = (int64_t)(batch->scratch_bytes / sizeof(float)) / num_slots / w->cols;
        tile_rows = at_most(tile_rows, room);
    }
    if (tile_rows < 1) { return; }
    multiply_job job = {
        .w = w,
        .batch = batch,
        .kernels = matrix_find_kernels(pool != NULL ? pool->level : MATRIX_BEST),
        .num_slots = num_slots,
        .tile_rows = tile_rows,
        .num_tiles = (w->rows + tile_rows - 1) / tile_rows,
        .piece_rows = piece_rows,
        .num_pieces = (batch->batch + piece_rows - 1) / piece_rows,
    };
    const int before = matrix_blas_threads(1);
    matrix_parallel(pool, job.num_slots, multiply_slot, &job);
    matrix_blas_threads(before);
}
