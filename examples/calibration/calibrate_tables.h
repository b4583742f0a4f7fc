// calibrate_tables.h -- how kvloom-calibrate makes tables that need more than plain arithmetic.

#ifndef KVLOOM_CALIBRATE_TABLES_H
#define KVLOOM_CALIBRATE_TABLES_H

#include "calibrate_learn.h"

// Derivations that come before the library's own; a new one is one more entry. Static.
const kvl_derivation* calibrate_derivations(int* num);

// The same with matrices of `file` that are searched for. Returns their number.
enum { CALIBRATE_MOST_DERIVATIONS = 32 };
int calibrate_learning_derivations(calibrate_learn* learn,
                                   kvl_derivation out[CALIBRATE_MOST_DERIVATIONS]);

#endif
