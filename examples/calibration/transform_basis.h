// transform_basis.h -- closed-form changes of basis of one KV head, from second moments.
//
//     moment  M  [dim, dim]  second moment or covariance of the rows that are stored
//     price   A  [dim, dim]  an error e of a row costs e^T A e
//     T                      the stored row is y = T x; queries (or outputs) take T^-T (or T^-1)
//
//     kind      T, up to its scale
//     balance   H Lambda^-p U^T L^T     A = L L^T, L^T M L = U Lambda U^T; p = 1/4
//               (WUSH, arXiv:2512.00956: both moments become c^2 H Lambda^1/2 H)
//     eigen     B H V^T                 A = V diag V^T, descending; B bit reversal
//               (OSCAR, arXiv:2605.17757: orthogonal, the moment only measures it)
//     whiten    H M^-p                  p = 1/2
//     flat      P^T M^-p                p = 2/5; P orthogonal so that P^T A0 P = U D U^T,
//               A0 = M^p A M^p, has one number D on its diagonal (U unit upper triangular):
//               the geometric-mean decomposition.  Every channel is as large as the others and,
//               after feedback rounding, as expensive
//
// H is square_hadamard.  T is scaled so that tr(T M T^T) = tr M; eigen is orthogonal as it is.
//
// Damping.  Moments are brought to tr = dim, made symmetric, and get damping on the diagonal: that
// of an average channel times `moment_damping` or `price_damping`.  flat adds `flat_damping` to A0
// in the same way: where M and A are singular together, the geometric mean is pulled down by
// directions that nothing asks for, and factors grow.  Where Cholesky fails all the same, the
// damping of A is doubled, at most 40 times, and said.  A moment of zeros says nothing about any
// direction: it counts as the identity, and that is said.  NaN and infinity are refused.

#ifndef KVLOOM_TRANSFORM_BASIS_H
#define KVLOOM_TRANSFORM_BASIS_H

#include <stddef.h>

typedef enum transform_kind {
    TRANSFORM_BALANCE, TRANSFORM_EIGEN, TRANSFORM_WHITEN, TRANSFORM_FLAT, TRANSFORM_NUM_KINDS
} transform_kind;

typedef struct transform_desc {
    transform_kind kind;
    int            dim;                // 16 to 256 in steps of 16
    const double*  moment;             // [dim, dim]
    const double*  price;              // [dim, dim]; whiten: may be NULL, then nothing is predicted
    double         power;              // p; 0: as above
    double         moment_damping;     // 0: 0.01; less than 0: none
    double         price_damping;      // 0: 0.01, flat 0.05; less than 0: none
    double         flat_damping;       // 0: 0.03; less than 0: none
} transform_desc;

typedef struct transform_basis {
    int     dim;
    double* forward;                   // [dim, dim] T
    double* inverse_transpose;         // [dim, dim] T^-T
    double* price;                     // [dim, dim] T^-T A T^-1, A as damped; NULL without one
    double  condition;                 // largest singular value of T over the smallest
    double  moment_damping;            // used, of an average channel
    double  price_damping;
    double  flat_ratio;                // flat: geometric mean over minimum of A0's spectrum^1/2;
                                       // beyond 6 feedback has channels that cost nothing
    // Squared priced error at one step a channel, over that of a rotation that makes all channels
    // alike, tr M tr A / dim: nearest rounding with one scale for the row, with a scale a channel,
    // and feedback with a scale a channel.
    double  error_token, error_channel, error_feedback;
    char    note[256];                 // what was repaired; "" if nothing
} transform_basis;

// Returns 1, or 0 with a message that names the matrix and the rule.  transform_basis_free ends
// what was made, and zeros.
int  transform_make(const transform_desc* desc, transform_basis* out, char* message, size_t size);
void transform_basis_free(transform_basis* basis);

// A given T, as from a file: checked for finite entries and a condition of at most 1e6.
int transform_adopt(int dim, const double* forward, transform_basis* out, char* message,
                    size_t size);

const char* transform_kind_name(transform_kind kind);

// FEEDBACK: A = U D U^T with U unit upper triangular, for channels in `order`.

typedef struct transform_feedback {
    int     dim;
    int*    order;                     // [dim] channel that is rounded j-th
    double* factor;                    // [dim, dim] U, of channels in order
    double* spread;                    // [dim] D
    double  damping;                   // used, of an average channel
    char    note[256];
} transform_feedback;

// `price` is in the stored basis and gets `damping` (0: none) of an average channel.  `sorted`: the
// channels in descending price, else as they come.
int  transform_feedback_make(int dim, const double* price, double damping, int sorted,
                             transform_feedback* out, char* message, size_t size);
void transform_feedback_free(transform_feedback* feedback);

#endif
