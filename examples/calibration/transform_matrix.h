// transform_matrix.h -- dense linear algebra of one head, in double: row-major [dim, dim] matrices.
//
// Factorisations are LAPACK's.  What a factorisation leaves open is decided here, so that equal
// input gives equal output: eigenvalues descend, and of each eigenvector the component of largest
// magnitude (the first of equals) is positive.

#ifndef KVLOOM_TRANSFORM_MATRIX_H
#define KVLOOM_TRANSFORM_MATRIX_H

enum { MATRIX_DIM_MAX = 256 };

double* square_new(int dim);                   // zeros; NULL: no memory.  free() ends it
void    square_copy(int dim, const double* a, double* out);
void    square_transpose(int dim, const double* a, double* out);
void    square_multiply(int dim, const double* a, const double* b, double* out);         // a b
void    square_multiply_nt(int dim, const double* a, const double* b, double* out);      // a b^T
void    square_multiply_tn(int dim, const double* a, const double* b, double* out);      // a^T b
void    square_sandwich(int dim, const double* t, const double* a, double* out);         // t a t^T
double  square_trace(int dim, const double* a);

// Of a symmetric matrix without negative eigenvalues: directions in which it has more than `least`;
// -1: no memory.
int square_rank(int dim, const double* a, double least);

// These return 0, or a nonzero number where LAPACK cannot.
int square_cholesky(int dim, const double* a, double* lower);          // a = lower lower^T
int square_eigen(int dim, const double* a, double* values, double* vectors);   // columns
int square_inverse(int dim, const double* a, double* out);
int square_singular_values(int dim, const double* a, double* values);  // descending

// Symmetric power: eigenvalues below `floor` times the largest count as that.
int square_power(int dim, const double* a, double exponent, double floor, double* out);

// An orthogonal matrix whose entries are all +-1 / sqrt(dim): Sylvester's where dim is a power of
// two, else the product of Sylvester's and one of Paley's, whose order is the odd part of dim times
// 4 or a small power of two more.  Returns 0 where neither exists: it does for all multiples of 16
// up to 256.
int square_hadamard(int dim, double* out);

#endif
