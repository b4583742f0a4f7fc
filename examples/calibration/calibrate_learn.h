// calibrate_learn.h -- a stand-in for matrices that are learned elsewhere.
//
// The tables of `file` are the user's. With --learn they are searched for instead: see
// transform_learn.h. Keys are the sampled ones, priced by the second moment of queries; of values
// no sample is kept, so rows are drawn with their second moment, priced by the output matrix.
// fit=minmax, clip and rms are rounded as they are, any other fit as minmax.

#ifndef KVLOOM_CALIBRATE_LEARN_H
#define KVLOOM_CALIBRATE_LEARN_H

#include "kvloom.h"

// What is searched for.
enum { CALIBRATE_LEARN_NOTHING, CALIBRATE_LEARN_ROTATION, CALIBRATE_LEARN_AFFINE };

enum { CALIBRATE_NOTES = 16, CALIBRATE_NOTE_BYTES = 320 };

typedef struct calibrate_learn {
    kvl_context* ctx;          // whose threads do the work
    int what;                  // CALIBRATE_LEARN_...: a rotation of the Hadamard, or any matrix,
                               // from `balance` on
    int steps;                 // a head; 0: 8 head_dim
    double before, after;      // sums of the costs of all heads: what it was worth
    int num_notes;             // what was repaired in moments; the first ones are kept
    char notes[CALIBRATE_NOTES][CALIBRATE_NOTE_BYTES];
} calibrate_learn;

// kvl_derivation.derive of file_forward and file_query; user: a calibrate_learn. NULL, and one that
// learns nothing, fail with what to do.
kvl_status calibrate_learned(const kvl_derive_args* args, float* out);

#endif
