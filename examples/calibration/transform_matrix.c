// transform_matrix.c -- LAPACK behind row-major matrices, and Hadamard matrices of any head.

#include "transform_matrix.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// LAPACK's own interface: matrices by columns, every argument an address, lengths of texts last.
void dpotrf_(const char* uplo, const int* n, double* a, const int* lda, int* info, size_t);
void dpstrf_(const char* uplo, const int* n, double* a, const int* lda, int* pivots, int* rank,
             const double* least, double* work, int* info, size_t);
void dsyevd_(const char* job, const char* uplo, const int* n, double* a, const int* lda, double* w,
             double* work, const int* lwork, int* iwork, const int* liwork, int* info, size_t,
             size_t);
void dgetrf_(const int* m, const int* n, double* a, const int* lda, int* pivots, int* info);
void dgetri_(const int* n, double* a, const int* lda, const int* pivots, double* work,
             const int* lwork, int* info);
void dgesvd_(const char* job_u, const char* job_v, const int* m, const int* n, double* a,
             const int* lda, double* s, double* u, const int* ldu, double* v, const int* ldv,
             double* work, const int* lwork, int* info, size_t, size_t);

static size_t bytes_of(int dim) { return (size_t)dim * (size_t)dim * sizeof(double); }

double* square_new(int dim) { return (double*)calloc(1, bytes_of(dim)); }

void square_copy(int dim, const double* a, double* out) { memmove(out, a, bytes_of(dim)); }

void square_transpose(int dim, const double* a, double* out)
{
    for (int i = 0; i < dim; ++i)
        for (int j = 0; j < dim; ++j) out[j * dim + i] = a[i * dim + j];
}

static void multiply(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int n, const double* a,
                     const double* b, double* out)
{
    cblas_dgemm(CblasRowMajor, ta, tb, n, n, n, 1.0, a, n, b, n, 0.0, out, n);
}

void square_multiply(int dim, const double* a, const double* b, double* out)
{
    multiply(CblasNoTrans, CblasNoTrans, dim, a, b, out);
}

void square_multiply_nt(int dim, const double* a, const double* b, double* out)
{
    multiply(CblasNoTrans, CblasTrans, dim, a, b, out);
}

void square_multiply_tn(int dim, const double* a, const double* b, double* out)
{
    multiply(CblasTrans, CblasNoTrans, dim, a, b, out);
}

void square_sandwich(int dim, const double* t, const double* a, double* out)
{
    double* half = square_new(dim);
    if (!half) {
        for (int i = 0; i < dim * dim; ++i) out[i] = NAN;      // found by every caller's checks
        return;
    }
    square_multiply(dim, t, a, half);
    square_multiply_nt(dim, half, t, out);
    free(half);
}

double square_trace(int dim, const double* a)
{
    double sum = 0;
    for (int i = 0; i < dim; ++i) sum += a[i * dim + i];
    return sum;
}

int square_cholesky(int dim, const double* a, double* lower)
{
    int info = 0;
    square_copy(dim, a, lower);
    // The upper triangle by columns is the lower one by rows.
    dpotrf_("U", &dim, lower, &dim, &info, 1);
    for (int i = 0; i < dim; ++i)
        for (int j = i + 1; j < dim; ++j) lower[i * dim + j] = 0;
    return info;
}

int square_rank(int dim, const double* a, double least)
{
    int pivots[MATRIX_DIM_MAX], rank = 0, info = 0;
    double work[2 * MATRIX_DIM_MAX];
    double* lower = square_new(dim);
    if (!lower) return -1;
    square_copy(dim, a, lower);
    dpstrf_("U", &dim, lower, &dim, pivots, &rank, &least, work, &info, 1);
    free(lower);
    return rank;
}

// The vectors are the rows of `rows`, ascending; columns of `vectors`, descending, with a sign.
static void order_vectors(int dim, const double* rows, double* vectors)
{
    for (int k = 0; k < dim; ++k) {
        const double* v = rows + (dim - 1 - k) * dim;
        int top = 0;
        for (int i = 1; i < dim; ++i)
            if (fabs(v[i]) > fabs(v[top]) * (1 + 1e-9)) top = i;
        for (int i = 0; i < dim; ++i) vectors[i * dim + k] = v[top] < 0 ? -v[i] : v[i];
    }
}

int square_eigen(int dim, const double* a, double* values, double* vectors)
{
    const int lwork = 1 + 6 * dim + 2 * dim * dim, liwork = 3 + 5 * dim;
    double* rows = square_new(dim);
    double* work = (double*)calloc((size_t)lwork, sizeof *work);
    int* iwork = (int*)calloc((size_t)liwork, sizeof *iwork);
    int info = -1;
    if (rows && work && iwork) {
        square_copy(dim, a, rows);
        dsyevd_("V", "U", &dim, rows, &dim, values, work, &lwork, iwork, &liwork, &info, 1, 1);
    }
    if (info == 0) {
        order_vectors(dim, rows, vectors);
        for (int i = 0; i < dim / 2; ++i) {
            const double x = values[i];
            values[i] = values[dim - 1 - i];
            values[dim - 1 - i] = x;
        }
    }
    free(rows);
    free(work);
    free(iwork);
    return info;
}

int square_inverse(int dim, const double* a, double* out)
{
    const int lwork = 64 * dim;
    double* work = (double*)calloc((size_t)lwork, sizeof *work);
    int pivots[MATRIX_DIM_MAX], info = -1;
    if (!work || dim > MATRIX_DIM_MAX) {
        free(work);
        return -1;
    }
    square_copy(dim, a, out);            // of the transpose, which is what the columns say, as well
    dgetrf_(&dim, &dim, out, &dim, pivots, &info);
    if (info == 0) dgetri_(&dim, out, &dim, pivots, work, &lwork, &info);
    free(work);
    return info;
}

int square_singular_values(int dim, const double* a, double* values)
{
    const int lwork = 64 * dim, one = 1;
    double* copy = square_new(dim);
    double* work = (double*)calloc((size_t)lwork, sizeof *work);
    double none[1] = { 0 };
    int info = -1;
    if (copy && work) {
        square_copy(dim, a, copy);
        dgesvd_("N", "N", &dim, &dim, copy, &dim, values, none, &one, none, &one, work, &lwork,
                &info, 1, 1);
    }
    free(copy);
    free(work);
    return info;
}

int square_power(int dim, const double* a, double exponent, double floor, double* out)
{
    double values[MATRIX_DIM_MAX];
    double* vectors = square_new(dim);
    double* scaled = square_new(dim);
    int info = vectors && scaled && dim <= MATRIX_DIM_MAX ? square_eigen(dim, a, values, vectors)
                                                          : -1;
    if (info == 0 && !(values[0] > 0)) info = 1;
    if (info == 0) {
        for (int k = 0; k < dim; ++k) {
            const double x = values[k] > floor * values[0] ? values[k] : floor * values[0];
            const double factor = pow(x, exponent);
            for (int i = 0; i < dim; ++i) scaled[i * dim + k] = vectors[i * dim + k] * factor;
        }
        square_multiply_nt(dim, scaled, vectors, out);
    }
    free(vectors);
    free(scaled);
    return info;
}

// HADAMARD MATRICES of entries +-1

// 1 for a nonzero square modulo the odd prime q, -1 for a non-square, 0 for 0.
static int quadratic_character(int x, int q)
{
    const int y = (x % q + q) % q;
    for (int i = 1; i < q; ++i)
        if (i * i % q == y && y) return 1;
    return y ? -1 : 0;
}

static int is_prime(int q)
{
    for (int i = 2; i * i <= q; ++i)
        if (q % i == 0) return 0;
    return q > 2;
}

// Paley's first construction, order q + 1, q = 3 modulo 4: I + S, S the bordered Jacobsthal matrix.
static void paley_first(int order, double* h)
{
    const int q = order - 1;
    for (int i = 0; i < order; ++i) {
        for (int j = 0; j < order; ++j) {
            int x = i == 0 ? 1 : -1;
            if (i && j) x = quadratic_character(i - j, q);
            if (i == j) x = 1;
            h[i * order + j] = x;
        }
    }
}

// Paley's second construction, order 2 (q + 1), q = 1 modulo 4: of the bordered symmetric matrix C
// every 0 becomes [[1, -1], [-1, -1]], every x = +-1 becomes x [[1, 1], [1, -1]].
static void paley_second(int order, double* h)
{
    const int n = order / 2, q = n - 1;
    for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) {
            const int x = i && j ? quadratic_character(i - j, q) : i != j;
            double* at = h + 2 * i * order + 2 * j;
            at[0] = x ? x : 1;
            at[1] = at[order] = x ? x : -1;
            at[order + 1] = x ? -x : -1;
        }
    }
}

// The order of Paley's matrix for a head whose odd part is `odd`, and which construction; or 0.
static int paley_order(int dim, int odd, int* second)
{
    for (int order = 4 * odd; order <= dim; order *= 2) {
        if (dim % order) break;
        *second = 0;
        if ((order - 1) % 4 == 3 && is_prime(order - 1)) return order;
        *second = 1;
        if (order / 2 % 4 == 2 && is_prime(order / 2 - 1)) return order;
    }
    return 0;
}

int square_hadamard(int dim, double* out)
{
    int odd = dim, second = 0;
    while (odd && odd % 2 == 0) odd /= 2;
    const int order = odd == 1 ? 1 : odd ? paley_order(dim, odd, &second) : 0;
    double* small = order ? square_new(order) : NULL;
    if (!small) return 0;
    small[0] = 1;
    if (order > 1) {
        if (second) paley_second(order, small);
        else paley_first(order, small);
    }
    // Sylvester's of dim / order times `small`: the sign of (i, j) is the parity of i & j.
    const double unit = 1 / sqrt((double)dim);
    for (int i = 0; i < dim; ++i) {
        for (int j = 0; j < dim; ++j) {
            const unsigned both = (unsigned)(i / order) & (unsigned)(j / order);
            const double sign = __builtin_parity(both) ? -unit : unit;
            out[i * dim + j] = sign * small[i % order * order + j % order];
        }
    }
    free(small);
    return 1;
}
