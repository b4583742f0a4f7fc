// calibrate_tables.h -- how kvloom-calibrate makes tables that need more than plain arithmetic.

#ifndef KVLOOM_CALIBRATE_TABLES_H
#define KVLOOM_CALIBRATE_TABLES_H

#include "kvloom.h"

// Derivations that come before the library's own; a new one is one more entry. Static.
const kvl_derivation* calibrate_derivations(int* num);

#endif
