// kvloom_impl.c -- the one file of the model library that holds the implementation of kvloom.h.

#define KVLOOM_IMPLEMENTATION
#include "kvloom.h"
