// sim_library.h -- the stand-in libcuda of tests/ptxsim, loaded where the runtime will look for it.
//
// The loader knows a library that is loaded by its soname: dlopen("libcuda.so.1") then finds this
// one.  KVLOOM_TEST_GPU=1 leaves the machine's own driver in its place.

#ifndef SIM_LIBRARY_H
#define SIM_LIBRARY_H

#include "ptxsim/ptxsim.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef KVLOOM_TEST_SCRATCH
#define KVLOOM_TEST_SCRATCH "/tmp"
#endif
#ifndef KVLOOM_TEST_ROOT
#define KVLOOM_TEST_ROOT "."
#endif

// Loads it with a device of this architecture ("sm_90"); variables PTXSIM_* are set before.
// Returns its handle, for the functions of ptxsim.h.
static __attribute__((unused)) void* sim_load(const char* arch)
{
    const char* given = getenv("KVLOOM_PTXSIM");
    char path[1024], command[2600];
    setenv("PTXSIM_ARCH", arch, 1);
    if (given) {
        snprintf(path, sizeof path, "%s", given);
    } else {
        const char* folder = KVLOOM_TEST_SCRATCH "/ptxsim";
        snprintf(path, sizeof path, "%s/libcuda.so.1", folder);
        snprintf(command, sizeof command, "sh '%s/tests/ptxsim/build.sh' '%s'", KVLOOM_TEST_ROOT,
                 folder);
        cr_assert_eq(system(command), 0, "%s", command);
    }
    void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    cr_assert(library, "%s", dlerror());
    return library;
}

static __attribute__((unused)) int sim_is_wanted(void)
{
    const char* gpu = getenv("KVLOOM_TEST_GPU");
    return !gpu || strcmp(gpu, "1") != 0;
}

#endif
