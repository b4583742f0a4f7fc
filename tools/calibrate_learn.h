// calibrate_learn.h -- a stand-in for matrices that are learned elsewhere.
//
// The tables of `file` are the user's. With --learn they are searched for instead: see
// transform_learn.h. Keys are the sampled ones, priced by the second moment of queries; of values
// no sample is kept, so rows are drawn with their second moment, priced by the output matrix.
// fit=minmax, clip and rms are rounded as they are, any other fit as minmax.

#ifndef KVLOOM_CALIBRATE_LEARN_H
#define KVLOOM_CALIBRATE_LEARN_H

#include "kvloom.h"

typedef struct calibrate_learn {
    kvl_context* ctx;          // whose threads do the work
    int affine;                // 0: a rotation of the Hadamard; 1: any matrix, from `balance` on
    int steps;                 // a head; 0: 8 head_dim
    double before, after;      // sums of the costs of all heads: what it was worth
} calibrate_learn;

// kvl_derivation.derive of file_forward and file_query; user: a calibrate_learn, or NULL, which
// fails with what to do.
kvl_status calibrate_learned(const kvl_derive_args* args, float* out);

#endif
