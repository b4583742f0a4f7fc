// units.h -- what the units of the header test show one another.

#ifndef UNITS_H
#define UNITS_H

#include "kvloom.h"

enum { UNIT_HEAD_DIM = 64, UNIT_Q_HEADS = 2, UNIT_ROWS = 70 };

// Groups of equal values are exact with meta=f16, so values that are all 1 come back as 1.
#define UNIT_SPEC "kivi:k2,v2,g32,meta=f16,sink=0,recent=0"

typedef struct unit_objects {
    kvl_context* ctx;
    kvl_cache*   cache;
    kvl_seq      seq;
} unit_objects;

#ifdef __cplusplus
extern "C" {
#endif

// unit_create.c: makes the objects; 0 if all went well.
int unit_create(unit_objects* objects, const char* cache_dir);

// unit_use.c: appends to and attends over objects that another unit made; 0 if all is as expected.
int unit_use(unit_objects* objects);

// unit_cpp.cpp, or unit_plain.c where there is no C++ compiler: asks the objects; 0 as above.
int unit_ask(const unit_objects* objects);

// Prints what failed and returns 1.
int unit_fail(const unit_objects* objects, const char* what);

#ifdef __cplusplus
}
#endif

#endif
