// test_matrix.c -- examples/decode/matrix.h against an independent program and against doubles.
//
// Each level that the processor has is forced in turn. Weights lie in buffers of their exact size,
// so that the address sanitizer sees a read past a row.
#include <criterion/criterion.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "matrix.h"
#include "matrix_kernels.h"

#ifndef KVLOOM_TEST_ROOT
#define KVLOOM_TEST_ROOT "."
#endif

static const int all_types[] = { MATRIX_F32,  MATRIX_F16,  MATRIX_BF16, MATRIX_Q4_0,
                                 MATRIX_Q4_1, MATRIX_Q5_0, MATRIX_Q5_1, MATRIX_Q8_0,
                                 MATRIX_Q4_K, MATRIX_Q5_K, MATRIX_Q6_K };
enum { num_types = sizeof all_types / sizeof all_types[0] };

static const int all_levels[] = { MATRIX_BEST, MATRIX_PORTABLE, MATRIX_NEON, MATRIX_AVX2,
                                  MATRIX_AVX512 };
enum { num_levels = sizeof all_levels / sizeof all_levels[0] };

static int is_float(int type)
{
    return type == MATRIX_F32 || type == MATRIX_F16 || type == MATRIX_BF16;
}

static int is_large(int type)
{
    return type == MATRIX_Q4_K || type == MATRIX_Q5_K || type == MATRIX_Q6_K;
}

// ---- random values ----------------------------------------------------------------------------

// xorshift: the same numbers everywhere.
static uint32_t next_random(uint64_t* state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 32);
}

static float random_float(uint64_t* state) { return (float)(int32_t)next_random(state) * 0x1p-31f; }

// A half of magnitude 2^-7 to 2, either sign.
static void put_random_half(uint8_t* at, uint64_t* state)
{
    const uint32_t bits = next_random(state);
    const uint16_t half = (uint16_t)((bits & 0x83ffu) | (8 + (bits >> 16 & 7)) << 10);
    memcpy(at, &half, sizeof half);
}

static void put_random_group(int type, uint8_t* group, uint64_t* state)
{
    const int64_t size = is_large(type) ? 256 : (is_float(type) ? 1 : 32);
    const int64_t bytes = matrix_row_bytes(type, size);
    for (int64_t i = 0; i < bytes; i++) { group[i] = (uint8_t)next_random(state); }
    const float value = random_float(state);
    switch (type) {
    case MATRIX_F32: memcpy(group, &value, sizeof value); break;
    case MATRIX_BF16: memcpy(group, (const uint8_t*)&value + 2, 2); break;
    case MATRIX_Q6_K: put_random_half(group + 208, state); break;
    default: put_random_half(group, state); break;
    }
    if (type == MATRIX_Q4_1 || type == MATRIX_Q5_1 || type == MATRIX_Q4_K || type == MATRIX_Q5_K) {
        put_random_half(group + 2, state);
    }
}

static matrix make_matrix(int type, int64_t rows, int64_t cols, uint64_t* state)
{
    const int64_t row_bytes = matrix_row_bytes(type, cols);
    const int64_t size = is_large(type) ? 256 : (is_float(type) ? 1 : 32);
    const int64_t bytes = matrix_row_bytes(type, size);
    uint8_t* data = (uint8_t*)malloc((size_t)(rows * row_bytes));
    for (int64_t at = 0; at < rows * row_bytes; at += bytes) {
        put_random_group(type, data + at, state);
    }
    return (
        matrix){ .type = type, .rows = rows, .cols = cols, .data = data, .row_bytes = row_bytes };
}

// Integers -127 .. 127 times a power of two, with 127 in each group of 32: 8 bits hold them.
static void fill_exact(float* x, int64_t n, uint64_t* state)
{
    for (int64_t i = 0; i < n; i++) {
        const int32_t code = (int32_t)(next_random(state) % 255) - 127;
        x[i] = (float)code * (i / 32 % 2 == 0 ? 0x1p-5f : 0x1p3f);
    }
    for (int64_t i = 0; i < n; i += 32) {
        const int64_t at = i + (int64_t)(next_random(state) % 32);
        if (at < n) {
            x[at] = (i / 32 % 3 == 0 ? -127.0f : 127.0f) * (i / 32 % 2 == 0 ? 0x1p-5f : 0x1p3f);
        }
    }
}

// ---- pools ------------------------------------------------------------------------------------

// Runs the parts in reverse order: nothing may depend on the order.
static void run_reversed(void* user, int64_t n, void (*body)(void* arg, int64_t i), void* arg)
{
    *(int64_t*)user += n;
    for (int64_t i = n; i-- > 0;) { body(arg, i); }
}

// ---- the dot products that are right ----------------------------------------------------------

typedef struct expected_dot {
    double value;
    double magnitude; // sum of |w x|
    double rounding;  // sum over groups of max|x| / 254 sum|w|: what 8 bits may change
} expected_dot;

static expected_dot expect_dot(const float* w, const float* x, int64_t n)
{
    expected_dot expected = { 0 };
    for (int64_t first = 0; first < n; first += 32) {
        double sum_w = 0, max_x = 0;
        for (int64_t i = first; i < n && i < first + 32; i++) {
            expected.value += (double)w[i] * (double)x[i];
            expected.magnitude += fabs((double)w[i] * (double)x[i]);
            sum_w += fabs((double)w[i]);
            max_x = fmax(max_x, fabs((double)x[i]));
        }
        expected.rounding += max_x / 254 * sum_w;
    }
    return expected;
}

// y [batch, rows] against x [batch, cols]: within 1e-5 of the sum of |w x|, for the rounding of
// float sums, and rounding times what 8 bits may change.
static void check_products(const matrix* w, const float* x, int64_t batch, const float* y,
                           double rounding, const char* what)
{
    float* row = (float*)malloc((size_t)w->cols * sizeof *row);
    for (int64_t m = 0; m < w->rows; m++) {
        matrix_kernels_portable.dequantize(w->type, (const uint8_t*)w->data + m * w->row_bytes,
                                           w->cols, row);
        for (int64_t b = 0; b < batch; b++) {
            const expected_dot expected = expect_dot(row, x + b * w->cols, w->cols);
            const double error = fabs((double)y[b * w->rows + m] - expected.value);
            const double bound = 1e-5 * expected.magnitude + rounding * expected.rounding;
            cr_assert(error <= bound, "%s %s %dx%d row %d vector %d: %g, not %g (bound %g)", what,
                      matrix_type_name(w->type), (int)w->rows, (int)w->cols, (int)m, (int)b,
                      (double)y[b * w->rows + m], expected.value, bound);
        }
    }
    free(row);
}

// ---- formats ----------------------------------------------------------------------------------

// Breaks when a format is read wrongly: the values are those of the PyPI package gguf.
Test(matrix, dequantize_equals_gguf)
{
    FILE* file = fopen(KVLOOM_TEST_ROOT "/tests/fixtures/quants.bin", "rb");
    cr_assert(file != NULL, "run from the root of the tree");
    char magic[8];
    cr_assert_eq(fread(magic, 1, 8, file), 8);
    cr_assert(memcmp(magic, "KVLQNT01", 8) == 0);
    uint32_t header[3];
    int num_records = 0;
    while (fread(header, sizeof header, 1, file) == 1) {
        const int type = (int)header[0];
        cr_assert_eq(matrix_row_bytes(type, header[1]), header[2]);
        uint8_t* data = (uint8_t*)malloc(header[2]);
        float* values = (float*)malloc(header[1] * sizeof(float));
        float* out = (float*)malloc(header[1] * sizeof(float));
        cr_assert_eq(fread(data, 1, header[2], file), header[2]);
        cr_assert_eq(fread(values, sizeof(float), header[1], file), header[1]);
        for (int level = 0; level < num_levels; level++) {
            const matrix_kernels* kernels = matrix_find_kernels(all_levels[level]);
            kernels->dequantize(type, data, header[1], out);
            for (uint32_t i = 0; i < header[1]; i++) {
                const double error = fabs((double)out[i] - (double)values[i]);
                cr_assert(error <= 1e-6 * fabs((double)values[i]), "%s %s weight %u: %g, not %g",
                          matrix_level_name(all_levels[level]), matrix_type_name(type), i,
                          (double)out[i], (double)values[i]);
            }
        }
        matrix_find_kernels(MATRIX_BEST)->dequantize(type, data, header[1], out);
        matrix_dequantize_row(type, data, header[1], values);
        cr_assert(memcmp(values, out, header[1] * sizeof(float)) == 0);
        free(data);
        free(values);
        free(out);
        num_records++;
    }
    fclose(file);
    cr_assert_eq(num_records, num_types);
}

// Breaks when infinities and NaNs of a half become numbers.
Test(matrix, halves_that_are_not_finite)
{
    const uint16_t halves[9] = { 0x7c00, 0xfc00, 0x7e01, 0x7c00, 0, 0, 0, 0, 0x7e01 };
    for (int level = 0; level < num_levels; level++) {
        float out[9];
        matrix_find_kernels(all_levels[level])
            ->dequantize(MATRIX_F16, (const uint8_t*)halves, 9, out);
        cr_assert(isinf(out[0]) && out[0] > 0 && isinf(out[1]) && out[1] < 0);
        cr_assert(isnan(out[2]) && isnan(out[8]));
    }
}

// Breaks when a size is computed for what cannot be stored.
Test(matrix, row_bytes)
{
    cr_assert_eq(matrix_row_bytes(MATRIX_F32, 3), 12);
    cr_assert_eq(matrix_row_bytes(MATRIX_Q4_1, 576), 360);
    cr_assert_eq(matrix_row_bytes(MATRIX_Q8_0, 576), 612);
    cr_assert_eq(matrix_row_bytes(MATRIX_Q6_K, 512), 420);
    cr_assert_eq(matrix_row_bytes(MATRIX_Q4_1, 33), 0);
    cr_assert_eq(matrix_row_bytes(MATRIX_Q4_K, 576), 0);
    cr_assert_eq(matrix_row_bytes(MATRIX_Q4_0, -32), 0);
    cr_assert_eq(matrix_row_bytes(4, 32), 0);
    cr_assert_eq(matrix_row_bytes(-1, 32), 0);
    cr_assert_eq(matrix_row_bytes(31, 32), 0);
    cr_assert_null(matrix_type_name(5));
    cr_assert_str_eq(matrix_type_name(MATRIX_BF16), "BF16");
}

// ---- matrix-vector products -------------------------------------------------------------------

static void check_vectors(int type, int64_t rows, int64_t cols, int64_t batch)
{
    uint64_t state = 88172645463325252u + (uint64_t)(rows * 131 + cols * 7 + batch + type);
    const matrix w = make_matrix(type, rows, cols, &state);
    float* x = (float*)malloc((size_t)(batch * cols) * sizeof *x);
    float* y = (float*)malloc((size_t)(batch * rows) * sizeof *y);
    void* scratch = malloc(matrix_vector_scratch(cols, batch));
    for (int exact = 0; exact < 2; exact++) {
        for (int64_t b = 0; b < batch; b++) {
            if (exact) {
                fill_exact(x + b * cols, cols, &state);
            } else {
                for (int64_t i = 0; i < cols; i++) {
                    x[b * cols + i] = random_float(&state) * (float)(1 + b);
                }
            }
        }
        for (int level = 0; level < num_levels; level++) {
            if (!matrix_has_level(all_levels[level])) { continue; }
            int64_t parts = 0;
            const matrix_pool pool = { .parallel_for = run_reversed,
                                       .user = &parts,
                                       .num_threads = 3,
                                       .level = all_levels[level] };
            const matrix_product product = { .w = &w, .y = y };
            const matrix_input input = { .x = x, .batch = batch, .scratch = scratch };
            memset(y, 255, (size_t)(batch * rows) * sizeof *y);
            matrix_vectors(&pool, &product, 1, &input);
            check_products(&w, x, batch, y, exact || is_float(type) ? 0 : 1.001,
                           matrix_level_name(all_levels[level]));
        }
    }
    free((void*)w.data);
    free(x);
    free(y);
    free(scratch);
}

// Breaks when a kernel unpacks, scales or sums wrongly, or misses a row or a group. With
// activations that 8 bits hold exactly only float sums round; else each |x - rounded x| is at most
// half a step, max|x| / 254, so y is off by at most the sum of that times |w|.
Test(matrix, vectors_of_every_type_and_level)
{
    static const int64_t all_rows[] = { 1, 3, 17 };
    static const int64_t all_cols[] = { 32, 576, 1536, 256, 1024 };
    for (int t = 0; t < num_types; t++) {
        for (int r = 0; r < 3; r++) {
            for (int c = 0; c < 5; c++) {
                if (matrix_row_bytes(all_types[t], all_cols[c]) > 0) {
                    check_vectors(all_types[t], all_rows[r], all_cols[c], 1);
                }
            }
        }
    }
}

// Breaks when vectors of a batch mix.
Test(matrix, vectors_of_every_batch)
{
    for (int t = 0; t < num_types; t++) {
        for (int64_t batch = 2; batch <= MATRIX_MAX_BATCH; batch++) {
            check_vectors(all_types[t], 17, 256, batch);
            check_vectors(all_types[t], 6, 512, batch);
        }
    }
}

// Breaks when rows of floats must be a multiple of a vector.
Test(matrix, vectors_of_odd_floats)
{
    static const int64_t all_cols[] = { 1, 7, 8, 33, 71 };
    for (int c = 0; c < 5; c++) {
        for (int64_t batch = 1; batch <= 3; batch++) {
            check_vectors(MATRIX_F32, 5, all_cols[c], batch);
            check_vectors(MATRIX_F16, 5, all_cols[c], batch);
            check_vectors(MATRIX_BF16, 5, all_cols[c], batch);
        }
    }
}

// Breaks when matrices that share an input are split wrongly among parts.
Test(matrix, shared_input_and_parts)
{
    uint64_t state = 7;
    const matrix w[4] = {
        make_matrix(MATRIX_Q4_1, 301, 512, &state),
        make_matrix(MATRIX_Q6_K, 64, 512, &state),
        make_matrix(MATRIX_F16, 1, 512, &state),
        make_matrix(MATRIX_Q8_0, 200, 512, &state),
    };
    float x[2 * 512], y[4][2 * 301];
    void* scratch = malloc(matrix_vector_scratch(512, 2));
    fill_exact(x, 2 * 512, &state);
    for (int64_t batch = 1; batch <= 2; batch++) {
        int64_t parts = 0;
        const matrix_pool pool = { .parallel_for = run_reversed, .user = &parts, .num_threads = 2 };
        const matrix_product products[4] = {
            { .w = &w[0], .y = y[0] },
            { .w = &w[1], .y = y[1] },
            { .w = &w[2], .y = y[2] },
            { .w = &w[3], .y = y[3] },
        };
        const matrix_input input = { .x = x, .batch = batch, .scratch = scratch };
        matrix_vectors(&pool, products, 4, &input);
        cr_assert_gt(parts, 4);
        for (int p = 0; p < 4; p++) { check_products(&w[p], x, batch, y[p], 0, "shared"); }
    }
    matrix_vector(NULL, &w[0], x, y[0], scratch);
    check_products(&w[0], x, 1, y[0], 0, "alone");
    for (int p = 0; p < 4; p++) { free((void*)w[p].data); }
    free(scratch);
}

// Breaks when zero, tiny or huge activations give anything but finite, right numbers.
Test(matrix, activations_at_the_ends)
{
    uint64_t state = 11;
    const matrix w = make_matrix(MATRIX_Q8_0, 4, 64, &state);
    float x[64] = { 0 }, y[4];
    char scratch[256];
    cr_assert_leq(matrix_vector_scratch(64, 1), sizeof scratch);
    for (int level = 0; level < num_levels; level++) {
        const matrix_pool pool = { .level = all_levels[level] };
        const matrix_product product = { .w = &w, .y = y };
        const matrix_input input = { .x = x, .batch = 1, .scratch = scratch };
        static const float sizes[] = { 0.0f, 1e-40f, 1e-33f, 1e-30f, 1e30f };
        for (int s = 0; s < 5; s++) {
            for (int i = 0; i < 64; i++) { x[i] = sizes[s]; }
            matrix_vectors(&pool, &product, 1, &input);
            if (s >= 3) {
                check_products(&w, x, 1, y, 0, "ends");
            } else {
                cr_assert(y[0] == 0.0f && y[3] == 0.0f);
            }
        }
        x[5] = NAN;
        matrix_vectors(&pool, &product, 1, &input);
        x[5] = INFINITY;
        matrix_vectors(&pool, &product, 1, &input);
    }
    free((void*)w.data);
}

// Breaks when a level rounds activations differently: codes by hand. 127 sets the step to 1: codes
// are nearest integers, ties to even; the second unit has step 2, the third is zeros.
Test(matrix, quantized_activations)
{
    float x[96] = { 127.0f, 0.5f, 1.5f, -2.5f, 3.49f, -126.51f, [32] = -254.0f, [63] = 3.1f };
    int8_t right[96] = { 127, 0, 2, -2, 3, -127, [32] = -127, [63] = 2 };
    for (int level = 0; level < num_levels; level++) {
        int8_t codes[96];
        float scales[3], sums[3];
        matrix_find_kernels(all_levels[level])->quantize(x, 96, codes, scales, sums);
        cr_assert(memcmp(codes, right, sizeof codes) == 0, "%s",
                  matrix_level_name(all_levels[level]));
        cr_assert(scales[0] == 1.0f && scales[1] == 2.0f && scales[2] == 0.0f);
        cr_assert(sums[0] == 3.0f && sums[1] == -250.0f && sums[2] == 0.0f);
    }
}

// ---- matrix-matrix products -------------------------------------------------------------------

// Breaks when tiles, threads or strides of the prefill product are wrong; scratch of one row a
// thread must do.
Test(matrix, multiply_of_every_type)
{
    enum { rows = 37, cols = 256, batch = 5 };
    for (int t = 0; t < num_types; t++) {
        uint64_t state = 99 + (uint64_t)t;
        const matrix w = make_matrix(all_types[t], rows, cols, &state);
        float x[batch * cols], y[batch * rows];
        for (int i = 0; i < batch * cols; i++) { x[i] = random_float(&state); }
        for (int num_threads = 1; num_threads <= 3; num_threads++) {
            int64_t parts = 0;
            const matrix_pool pool = { .parallel_for = run_reversed,
                                       .user = &parts,
                                       .num_threads = num_threads };
            const size_t best = matrix_multiply_scratch(&pool, &w);
            const size_t least = (size_t)num_threads * cols * sizeof(float);
            for (int tight = 0; tight < 2; tight++) {
                const size_t bytes = tight ? least : best;
                void* scratch = malloc(bytes + 1);
                const matrix_batch input = {
                    .x = x, .batch = batch, .y = y, .scratch = scratch, .scratch_bytes = bytes
                };
                memset(y, 255, sizeof y);
                matrix_multiply(&pool, &w, &input);
                check_products(&w, x, batch, y, 0, "multiply");
                free(scratch);
            }
        }
        free((void*)w.data);
    }
}

// Breaks when the number of threads decides what one sgemm gets, which may add in another order at
// the edges of its blocks: it did with the kernels that OpenBLAS has for AVX2.
Test(matrix, multiply_with_any_number_of_threads)
{
    static const int64_t shapes[][3] = {
        { 576, 192, 1030 }, { 300, 260, 70 }, { 576, 31, 600 }, { 1000, 64, 129 }
    };
    for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; shape++) {
        const int64_t rows = shapes[shape][0], cols = shapes[shape][1], batch = shapes[shape][2];
        uint64_t state = 5 + shape;
        const matrix w = make_matrix(MATRIX_F32, rows, cols, &state);
        float* x = malloc((size_t)(batch * cols) * sizeof *x);
        float* first = malloc((size_t)(batch * rows) * sizeof *first);
        float* y = malloc((size_t)(batch * rows) * sizeof *y);
        for (int64_t i = 0; i < batch * cols; i++) { x[i] = random_float(&state); }
        for (int num_threads = 1; num_threads <= 7; num_threads++) {
            int64_t parts = 0;
            const matrix_pool pool = { .parallel_for = run_reversed,
                                       .user = &parts,
                                       .num_threads = num_threads };
            const matrix_batch input = { .x = x, .batch = batch,
                                         .y = num_threads == 1 ? first : y };
            matrix_multiply(&pool, &w, &input);
            cr_assert(num_threads == 1 ||
                          memcmp(first, y, (size_t)(batch * rows) * sizeof *y) == 0,
                      "%lld x %lld, batch %lld: %d threads give other bits than one",
                      (long long)rows, (long long)cols, (long long)batch, num_threads);
        }
        free(y);
        free(first);
        free(x);
        free((void*)w.data);
    }
}

// ---- the steps between ------------------------------------------------------------------------

static void check_near(double value, double expected, double relative, const char* what)
{
    cr_assert(fabs(value - expected) <= relative * fabs(expected) + 1e-37, "%s: %.9g, not %.9g",
              what, value, expected);
}

// Breaks when a sum misses an element or the weight is not applied.
Test(matrix, rms_norm)
{
    uint64_t state = 5;
    float x[579], weight[579], out[579];
    for (int n = 1; n <= 579; n += 17) {
        double squares = 0;
        for (int i = 0; i < n; i++) {
            x[i] = random_float(&state) * 3;
            weight[i] = random_float(&state);
            squares += (double)x[i] * (double)x[i];
        }
        const double root = sqrt(squares / n + (double)1e-5f);
        const matrix_norm norm = { .weight = weight, .eps = 1e-5f };
        matrix_rms_norm(&norm, x, n, out);
        for (int i = 0; i < n; i++) {
            check_near((double)out[i], (double)x[i] / root * (double)weight[i], 1e-6, "norm");
        }
        const matrix_norm plain = { .eps = 1e-5f };
        matrix_rms_norm(&plain, x, n, x);
        check_near((double)x[n - 1] * (double)weight[n - 1], (double)out[n - 1], 1e-6, "plain");
    }
}

// Breaks when pairs, partial dims, base, factors or scale are taken wrongly: angles by hand.
Test(matrix, rope)
{
    const float factors[2] = { 1.0f, 2.0f };
    matrix_rope rope = { .head_dim = 6, .dims = 4, .base = 100.0, .factors = factors };
    rope.linear_scale = 0.5;
    float table[4];
    // Frequencies 1 and 100^(-1/2) = 0.1; position 6 * 0.5 = 3: angles 3 and 0.3 / 2.
    matrix_rope_table(&rope, 6, table);
    check_near((double)table[0], cos(3.0), 1e-6, "cos 3");
    check_near((double)table[1], sin(3.0), 1e-6, "sin 3");
    check_near((double)table[2], cos(0.15), 1e-6, "cos 0.15");
    check_near((double)table[3], sin(0.15), 1e-6, "sin 0.15");

    float adjacent[12] = { 1, 0, 0, 1, 7, 8, 0, 2, 3, 0, 9, 10 };
    matrix_rope_apply(&rope, table, adjacent, 2);
    const double adjacent_right[12] = {
        cos(3.0),      sin(3.0),     -sin(0.15),    cos(0.15),     7, 8,
        -2 * sin(3.0), 2 * cos(3.0), 3 * cos(0.15), 3 * sin(0.15), 9, 10
    };
    float halves[6] = { 1, 0, 0, 1, 7, 8 };
    rope.split_halves = 1;
    matrix_rope_apply(&rope, table, halves, 1);
    const double halves_right[6] = { cos(3.0), -sin(0.15), sin(3.0), cos(0.15), 7, 8 };
    for (int i = 0; i < 12; i++) {
        check_near((double)adjacent[i], adjacent_right[i], 1e-6, "adjacent");
        check_near((double)halves[i % 6], halves_right[i % 6], 1e-6, "halves");
    }
    // Defaults: all of the head turns, no scale, no factors.
    const matrix_rope plain = { .head_dim = 4, .base = 10000.0 };
    matrix_rope_table(&plain, 100000, table);
    check_near((double)table[2], cos(1000.0), 1e-6, "cos 1000");
    check_near((double)table[1], sin(100000.0), 1e-6, "sin 100000");
}

// Breaks when exp loses accuracy, overflows or underflows wrongly. silu(-x) / -x = 1 / (1 + e^x).
Test(matrix, gates)
{
    enum { n = 4003 };
    static float gate[n], up[n], silu[n], gelu[n];
    for (int i = 0; i < n; i++) {
        gate[i] = (float)(i - n / 2) * 0.05f; // -100 .. 100
        up[i] = 1.0f + (float)(i % 7);
    }
    matrix_silu_mul(gate, up, n, silu);
    matrix_gelu_mul(gate, up, n, gelu);
    for (int i = 0; i < n; i++) {
        const double g = (double)gate[i];
        const double u = sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g);
        const double silu_right = g / (1 + exp(-g)) * (double)up[i];
        const double gelu_right = g / (1 + exp(-2 * u)) * (double)up[i];
        // Where exp exceeds a float the result is 0, below any normal number. The argument of
        // gelu's exp rounds to 24 bits: up to 88 * 2^-23 in the exponent.
        cr_assert(fabs((double)silu[i] - silu_right) <= 1e-6 * fabs(silu_right) + 1e-35, "silu(%g)",
                  g);
        cr_assert(fabs((double)gelu[i] - gelu_right) <= 2e-5 * fabs(gelu_right) + 1e-35, "gelu(%g)",
                  g);
    }
    const float ends[4] = { 1e30f, -1e30f, INFINITY, NAN };
    matrix_silu_mul(ends, up, 4, silu);
    cr_assert(silu[0] == 1e30f && silu[1] == 0.0f);
    cr_assert(isinf(silu[2]) && isnan(silu[3]));
}

// Breaks when a sum misses an element, or when nothing to attend to is not zeros.
Test(matrix, softmax)
{
    uint64_t state = 3;
    float x[1000];
    for (int n = 1; n <= 1000; n = n * 2 + 1) {
        double right[1000], largest = -1e30, sum = 0;
        for (int i = 0; i < n; i++) {
            x[i] = random_float(&state) * 60;
            right[i] = (double)x[i];
            largest = fmax(largest, right[i]);
        }
        for (int i = 0; i < n; i++) {
            right[i] = exp(right[i] - largest);
            sum += right[i];
        }
        matrix_softmax(x, n);
        for (int i = 0; i < n; i++) { check_near((double)x[i], right[i] / sum, 1e-5, "softmax"); }
    }
    float masked[3] = { -INFINITY, 2.0f, -INFINITY };
    matrix_softmax(masked, 3);
    cr_assert(masked[0] == 0.0f && masked[1] == 1.0f && masked[2] == 0.0f);
    float empty[2] = { -INFINITY, -INFINITY };
    matrix_softmax(empty, 2);
    cr_assert(empty[0] == 0.0f && empty[1] == 0.0f);
}

// Breaks when the plain loops miss an element.
Test(matrix, add_and_scale)
{
    float a[5] = { 1, 2, 3, 4, 5 };
    const float b[5] = { 10, 20, 30, 40, 50 };
    matrix_add(a, b, 5, a);
    matrix_scale(a, 5, -2.0f);
    for (int i = 0; i < 5; i++) { cr_assert_eq(a[i], (float)(-22 * (i + 1))); }
}
