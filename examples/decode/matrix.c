// matrix.c -- sizes, the choice of kernels, and the matrix-vector products of decoding.
#include "matrix_units.h"

static const char* const type_names[MATRIX_TYPE_END] = {
    [MATRIX_F32] = "F32",   [MATRIX_F16] = "F16",   [MATRIX_Q4_0] = "Q4_0", [MATRIX_Q4_1] = "Q4_1",
    [MATRIX_Q5_0] = "Q5_0", [MATRIX_Q5_1] = "Q5_1", [MATRIX_Q8_0] = "Q8_0", [MATRIX_Q4_K] = "Q4_K",
    [MATRIX_Q5_K] = "Q5_K", [MATRIX_Q6_K] = "Q6_K", [MATRIX_BF16] = "BF16",
};

static const char* const level_names[MATRIX_LEVEL_END] = {
    [MATRIX_BEST] = "best", [MATRIX_PORTABLE] = "portable", [MATRIX_NEON] = "neon",
    [MATRIX_AVX2] = "avx2", [MATRIX_AVX512] = "avx512",
};

const char* matrix_type_name(int type)
{
    return type >= 0 && type < MATRIX_TYPE_END ? type_names[type] : NULL;
}

const char* matrix_level_name(int level)
{
    return level >= 0 && level < MATRIX_LEVEL_END ? level_names[level] : NULL;
}

int64_t matrix_row_bytes(int type, int64_t cols)
{
    if (matrix_type_name(type) == NULL || cols < 0 || cols % matrix_group_size(type) != 0) {
        return 0;
    }
    return cols / matrix_group_size(type) * matrix_group_bytes(type);
}

int matrix_has_level(int level)
{
    switch (level) {
    case MATRIX_BEST:
    case MATRIX_PORTABLE: return 1;
#if defined(MATRIX_HAVE_NEON)
    case MATRIX_NEON: return 1;
#endif
#if defined(__x86_64__)
    case MATRIX_AVX2: // F16C is older than AVX2, and some compilers cannot ask for it
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case MATRIX_AVX512:
        return matrix_has_level(MATRIX_AVX2) && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni");
#endif
    default: return 0;
    }
}

const matrix_kernels* matrix_find_kernels(int level)
{
    const int limit = level <= MATRIX_BEST || level >= MATRIX_LEVEL_END ? MATRIX_AVX512 : level;
#if defined(MATRIX_HAVE_NEON)
    if (limit >= MATRIX_NEON) { return &matrix_kernels_neon; }
#endif
#if defined(__x86_64__)
    if (limit >= MATRIX_AVX512 && matrix_has_level(MATRIX_AVX512)) {
        return &matrix_kernels_avx512;
    }
    if (limit >= MATRIX_AVX2 && matrix_has_level(MATRIX_AVX2)) { return &matrix_kernels_avx2; }
#endif
    (void)limit;
    return &matrix_kernels_portable;
}

void matrix_parallel(const matrix_pool* pool, int64_t n, void (*body)(void* arg, int64_t i),
                     void* arg)
{
    if (pool != NULL && pool->parallel_for != NULL && n > 1) {
        pool->parallel_for(pool->user, n, body, arg);
        return;
    }
    for (int64_t i = 0; i < n; i++) { body(arg, i); }
}

void matrix_dequantize_row(int type, const void* row, int64_t n, float* out)
{
    matrix_find_kernels(MATRIX_BEST)->dequantize(type, (const uint8_t*)row, n, out);
}

// ---- matrix-vector products -------------------------------------------------------------------

// Scratch of one vector: codes padded to a multiple of 4 bytes, scales, sums.
static int64_t codes_bytes(int64_t cols) { return (cols + 3) / 4 * 4; }

static size_t activation_bytes(int64_t cols)
{
    return (size_t)codes_bytes(cols) + 2 * sizeof(float) * (size_t)(cols / MATRIX_UNIT);
}

size_t matrix_vector_scratch(int64_t cols, int64_t batch)
{
    return activation_bytes(cols) * (size_t)batch;
}

typedef struct vector_job {
    const matrix_product* products;
    int count;
    const matrix_kernels* kernels;
    matrix_activation x[MATRIX_MAX_BATCH];
    int64_t batch;
    int64_t first_part[MATRIX_MAX_SHARED + 1]; // of each product; then the total
    int64_t part_rows;
} vector_job;

// Rows first .. last of one product. With several vectors the rows go in tiles, so that the weights
// come from memory once and from the first cache for each further vector.
static void multiply_rows(const vector_job* job, const matrix_product* product, int64_t first,
                          int64_t last)
{
    const matrix* w = product->w;
    matrix_dot* dot = job->kernels->dot[w->type];
    matrix_dot* gang = job->kernels->gang[w->type];
    const int64_t step = job->batch == 1 ? last - first : MATRIX_TILE;
    for (int64_t m = first; m < last; m += step) {
        matrix_rows rows = {
            .data = (const uint8_t*)w->data + m * w->row_bytes,
            .row_bytes = w->row_bytes,
            .num_rows = last - m < step ? last - m : step,
            .cols = w->cols,
            .y_stride = w->rows,
        };
        int64_t b = 0;
        for (; gang != NULL && b + MATRIX_GANG <= job->batch; b += MATRIX_GANG) {
            rows.y = product->y + b * w->rows + m;
            gang(&rows, &job->x[b]);
        }
        for (; b < job->batch; b++) {
            rows.y = product->y + b * w->rows + m;
            dot(&rows, &job->x[b]);
        }
    }
}

static void multiply_part(void* arg, int64_t part)
{
    const vector_job* job = (const vector_job*)arg;
    int p = 0;
    while (part >= job->first_part[p + 1]) { p++; }
    const int64_t rows = job->products[p].w->rows;
    const int64_t first = (part - job->first_part[p]) * job->part_rows;
    const int64_t last = first + job->part_rows < rows ? first + job->part_rows : rows;
    multiply_rows(job, &job->products[p], first, last);
}

// Points each vector's activation into the scratch, and rounds it if any matrix has codes.
static void prepare_activations(vector_job* job, const matrix_input* input, int64_t cols)
{
    int has_codes = 0;
    for (int p = 0; p < job->count; p++) {
        has_codes |= !matrix_is_float(job->products[p].w->type);
    }
    const int64_t num_units = cols / MATRIX_UNIT;
    for (int64_t b = 0; b < input->batch; b++) {
        const float* x = input->x + b * cols;
        job->x[b] = (matrix_activation){ .values = x };
        if (has_codes) {
            uint8_t* scratch = (uint8_t*)input->scratch + (size_t)b * activation_bytes(cols);
            int8_t* codes = (int8_t*)scratch;
            float* scales = (float*)(void*)(scratch + codes_bytes(cols));
            job->kernels->quantize(x, cols, codes, scales, scales + num_units);
            job->x[b].codes = codes;
            job->x[b].scales = scales;
            job->x[b].sums = scales + num_units;
        }
    }
}

// Splits the rows of all products into parts, about four a thread so that a late thread costs
// little, but of 16 kB at least, which outweighs the hand-over of a part.
static void plan_parts(vector_job* job, const matrix_pool* pool)
{
    const int64_t num_threads = pool != NULL && pool->num_threads > 1 ? pool->num_threads : 1;
    int64_t rows = 0, bytes = 0;
    for (int p = 0; p < job->count; p++) {
        rows += job->products[p].w->rows;
        bytes += job->products[p].w->rows * job->products[p].w->row_bytes;
    }
    const int64_t num_wanted = num_threads == 1 ? 1 : 4 * num_threads;
    const int64_t row_bytes = rows > 0 ? bytes / rows + 1 : 1;
    int64_t part_rows = rows / num_wanted + 1;
    if (part_rows * row_bytes < 16384) { part_rows = 16384 / row_bytes + 1; }
    job->part_rows = (part_rows + MATRIX_TILE - 1) / MATRIX_TILE * MATRIX_TILE;
    job->first_part[0] = 0;
    for (int p = 0; p < job->count; p++) {
        const int64_t num_parts = (job->products[p].w->rows + job->part_rows - 1) / job->part_rows;
        job->first_part[p + 1] = job->first_part[p] + num_parts;
    }
}

void matrix_vectors(const matrix_pool* pool, const matrix_product* products, int count,
                    const matrix_input* input)
{
    vector_job job = {
        .products = products,
        .count = count,
        .kernels = matrix_find_kernels(pool != NULL ? pool->level : MATRIX_BEST),
        .batch = input->batch,
    };
    if (count < 1) { return; }
    prepare_activations(&job, input, products[0].w->cols);
    plan_parts(&job, pool);
    matrix_parallel(pool, job.first_part[count], multiply_part, &job);
}

void matrix_vector(const matrix_pool* pool, const matrix* w, const float* x, float* y,
                   void* scratch)
{
    const matrix_product product = { .w = w, .y = y };
    const matrix_input input = { .x = x, .batch = 1, .scratch = scratch };
    matrix_vectors(pool, &product, 1, &input);
}
