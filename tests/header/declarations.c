// declarations.c -- the header without its implementation, included twice, uses nothing of it.
#include "kvloom.h"
#include "kvloom.h"

const char* declarations_version(void);
const char* declarations_version(void) { return KVLOOM_VERSION; }
