// transform_learn.h -- a basis that is searched for on sampled rows: no gradients, no training.
//
// A stand-in for transforms that are learned elsewhere (SpinQuant's rotations, FlatQuant's
// matrices).  Rows x are stored as y = T x, rounded, and an error e of y costs e^T B e, with
// B = T^-T A T^-1 and A the price of an error of x.  From a start, one step tries a plane of two
// channels and keeps what costs less:
//
//     rotation   T <- C T, C = (1 - S)^-1 (1 + S) of a skew S with one pair of entries +-t: the
//                Cayley transform, which in its plane has cosine (1 - t^2) / (1 + t^2), sine
//                2 t / (1 + t^2)
//     affine     the same, and in every third step a factor of one channel
//
// Planes are drawn by `seed`; t and the factor shrink after a failure and grow after a success.
// Equal input gives equal output.

#ifndef KVLOOM_TRANSFORM_LEARN_H
#define KVLOOM_TRANSFORM_LEARN_H

#include <stddef.h>
#include <stdint.h>

// How rows are rounded: affine codes between the least and the greatest value of a group, after
// `clipped` of a row's largest magnitudes were brought to the next one; or, with rms_step, codes
// in the middle of steps of rms_step times the group's root mean square.
typedef struct learn_grid {
    int   bits, group_size;
    int   clipped;                     // 0: none
    float rms_step;                    // 0: affine
} learn_grid;

typedef struct learn_desc {
    int           dim;                 // 16 to 256
    int           num_rows;
    const float*  rows;                // [num_rows, dim]
    const double* price;               // [dim, dim] A
    const double* start;               // [dim, dim] T to begin with
    int           affine;              // 0: T stays start times a rotation
    int           steps;               // tried
    uint64_t      seed;
    learn_grid    grid;
} learn_desc;

typedef struct learn_result {
    double before, after;              // mean cost of a row
    int    taken;                      // steps
} learn_result;

// Writes T [dim, dim] to out.  Returns 1, or 0 when memory is out or start cannot be inverted.
int transform_learn(const learn_desc* desc, double* out, learn_result* result);

// Rows of mean 0 with the second moment `moment` [dim, dim], for a side of which no sample is kept.
// Returns 1, or 0 when memory is out or the moment has no Cholesky factor.
int transform_draw(int dim, const double* moment, uint64_t seed, int num_rows, float* rows);

#endif
