// implementation.c -- the one unit with the implementation; the header is included twice in it.
#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"
#include "kvloom.h"
