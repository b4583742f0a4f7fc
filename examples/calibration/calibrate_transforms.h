// calibrate_transforms.h -- changes of basis and feedback factors from statistics.

#ifndef KVLOOM_CALIBRATE_TRANSFORMS_H
#define KVLOOM_CALIBRATE_TRANSFORMS_H

#include "kvloom.h"

struct transform_basis;

// The basis of one head that a word of stage transform stands for, to be freed by
// transform_basis_free.
kvl_status calibrate_make_basis(const kvl_derive_args* args, const char* word, int head,
                                struct transform_basis* out);

// kvl_derivation.derive of <word>_forward and <word>_query, and of the tables of a rounding with
// feedback and of scales in steps of a base.
kvl_status calibrate_basis(const kvl_derive_args* args, float* out);
kvl_status calibrate_feedback(const kvl_derive_args* args, float* out);
kvl_status calibrate_base(const kvl_derive_args* args, float* out);

#endif
