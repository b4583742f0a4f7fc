// model_product.c -- y = W x in floats, where no result depends on how many rows are multiplied.
//
// BLAS orders its sums by the shape of the whole product. Here the sum over columns has one order:
// column n goes to partial sum n mod SUM_LANES, and those are added in turn. So a row that is run
// by itself and the same row in a batch have the same bits, with any number of threads.

#include "model_internal.h"

enum { SUM_LANES = 16 };

typedef struct by_row_job {
    model_session* s;
    const model_product_rows* rows;
    const matrix_product* product;
} by_row_job;

static float dot(const float* a, const float* b, int64_t n)
{
    float lanes[SUM_LANES] = { 0.0f };
    float sum = 0.0f;
    int64_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES) {
        for (int lane = 0; lane < SUM_LANES; lane++) { lanes[lane] += a[i + lane] * b[i + lane]; }
    }
    for (; i < n; i++) { lanes[i % SUM_LANES] += a[i] * b[i]; }
    for (int lane = 0; lane < SUM_LANES; lane++) { sum += lanes[lane]; }
    return sum;
}

// Slot i takes every num_threads-th row of W, and its own row of the scratch.
static void multiply_slot(void* arg, int64_t slot)
{
    const by_row_job* job = arg;
    const matrix* w = job->product->w;
    float* unpacked = (float*)job->s->buffers.scratch + slot * w->cols;
    for (int64_t m = slot; m < w->rows; m += job->s->num_threads) {
        const void* data = (const char*)w->data + m * w->row_bytes;
        const float* row = data;
        if (w->type != MATRIX_F32) {
            matrix_dequantize_row(w->type, data, w->cols, unpacked);
            row = unpacked;
        }
        for (int64_t r = 0; r < job->rows->num_rows; r++) {
            job->product->y[r * w->rows + m] = dot(row, job->rows->x + r * w->cols, w->cols);
        }
    }
}

void model_multiply_by_row(model_session* s, const model_product_rows* rows)
{
    for (int i = 0; i < rows->count; i++) {
        by_row_job job = { s, rows, &rows->products[i] };
        kvl_parallel_for(s->ctx, s->num_threads, multiply_slot, &job);
    }
}
