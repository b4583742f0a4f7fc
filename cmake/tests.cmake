# tests.cmake -- each tests/test_*.c is a Criterion program; the scripts are tests of their own.
#
# A test that includes a header of examples/decode links the model library (label model).  A test
# that starts threads or calls kvl_parallel_for has the label threads; so does one that has the word
# threads in its text.  Under the thread sanitizer there are these alone, the latter with their
# cases of that name, and none of the model.  All print TAP.
#
# Options:
#     KVLOOM_TEST_SINGLE   some tests once more, as NAME_dist, against the single header   (ON)
#     KVLOOM_TEST_SECONDS  time limit of one test program                                (1500)

find_path(KVLOOM_CRITERION_INCLUDE_DIR criterion/criterion.h)
find_library(KVLOOM_CRITERION_LIBRARY NAMES criterion)
mark_as_advanced(KVLOOM_CRITERION_INCLUDE_DIR KVLOOM_CRITERION_LIBRARY)
set(kvloom_criterion_dir "${KVLOOM_CRITERION_INCLUDE_DIR}")
set(kvloom_criterion "${KVLOOM_CRITERION_LIBRARY}")
set(kvloom_launcher "")
set(kvloom_threads_only OFF)
if(KVLOOM_SANITIZE MATCHES "thread")
    # Criterion does not start under the thread sanitizer; and where addresses are very random, the
    # sanitizer of older compilers does not either.
    set(kvloom_criterion_dir "${PROJECT_SOURCE_DIR}/tests/tsan")
    set(kvloom_threads_only ON)
    set(kvloom_criterion "")
    find_program(KVLOOM_SETARCH NAMES setarch)
    if(KVLOOM_SETARCH)
        execute_process(COMMAND "${KVLOOM_SETARCH}" -R true RESULT_VARIABLE result ERROR_QUIET)
        if(result EQUAL 0)
            set(kvloom_launcher "${KVLOOM_SETARCH}" -R)
        endif()
    endif()
elseif(NOT KVLOOM_CRITERION_INCLUDE_DIR OR NOT KVLOOM_CRITERION_LIBRARY)
    message(STATUS "Criterion was not found (libcriterion-dev): no tests")
    return()
endif()

option(KVLOOM_TEST_SINGLE "Run tests against the single header as well" ON)
set(KVLOOM_TEST_SECONDS 1500 CACHE STRING "Time limit of one test program")
# What a user meets of the single header: its text is the tree's, and the kernels it makes as well.
set(kvloom_single_tests test_api test_cuda test_file test_header test_sequence)
set(kvloom_test_scratch "${PROJECT_BINARY_DIR}/tests/scratch")
file(MAKE_DIRECTORY "${kvloom_test_scratch}")

# Tests have threads of their own; those of OpenBLAS would wait for each other.
function(kvloom_test_properties name labels)
    set_tests_properties(${name} PROPERTIES
        LABELS "${labels}" TIMEOUT ${KVLOOM_TEST_SECONDS}
        ENVIRONMENT "KVLOOM_TEST_BIN=${PROJECT_BINARY_DIR}/bin;OPENBLAS_NUM_THREADS=1")
endfunction()

function(kvloom_test_flags target kvloom)
    kvloom_use_flags(${target})
    # Criterion's macros are written for GNU C11.
    set_target_properties(${target} PROPERTIES C_STANDARD 11 C_EXTENSIONS ON
        RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
    target_compile_definitions(${target} PRIVATE
        KVLOOM_TEST_ROOT="${PROJECT_SOURCE_DIR}" KVLOOM_TEST_SCRATCH="${kvloom_test_scratch}")
    target_include_directories(${target} SYSTEM PRIVATE "${kvloom_criterion_dir}")
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
    target_link_libraries(${target} PRIVATE ${kvloom} ${kvloom_criterion})
endfunction()

function(kvloom_test target source kvloom labels)
    if(kvloom_threads_only AND (NOT "threads" IN_LIST labels OR "model" IN_LIST labels))
        return()
    endif()
    add_executable(${target} "${source}")
    kvloom_test_flags(${target} "${kvloom}")
    set(options --tap=- --short-filename -j1)
    if(kvloom_threads_only AND NOT needs_threads MATCHES "pthread_create|kvl_parallel_for")
        list(APPEND options "--filter=*thread*")
    endif()
    add_test(NAME ${target} COMMAND ${kvloom_launcher} $<TARGET_FILE:${target}> ${options}
             WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    kvloom_test_properties(${target} "${labels}")
endfunction()

# test_support.c holds the implementation for the tests that share its helpers: compiled once.
foreach(form IN ITEMS tree dist)
    add_library(test_support_${form} STATIC EXCLUDE_FROM_ALL
                "${PROJECT_SOURCE_DIR}/tests/test_support.c")
endforeach()
kvloom_test_flags(test_support_tree kvloom::kvloom)
kvloom_test_flags(test_support_dist kvloom::single)

# Sets what a test's source says it needs: support, calibrate, eval, transform, model, threads.
function(kvloom_scan_test source)
    file(STRINGS "${source}" text REGEX "^#include \"")
    set(model FALSE)
    string(REGEX MATCH "\"eval_[a-z_]+\\.h\"" eval "${text}")
    string(REGEX MATCH "\"transform_[a-z_]+\\.h\"" transform "${text}")
    string(REGEX MATCH "\"calibrate_[a-z_]+\\.h\"" calibrate "${text}")
    foreach(path IN LISTS kvloom_model_headers)
        get_filename_component(header "${path}" NAME)
        if(text MATCHES "[\"/]${header}\"")
            set(model TRUE)
        endif()
    endforeach()
    string(REGEX MATCH "\"test_support.h\"" support "${text}")
    file(STRINGS "${source}" threads REGEX "pthread_create|kvl_parallel_for|[^_a-z]threads")
    foreach(name IN ITEMS calibrate eval transform model support threads)
        set(needs_${name} "${${name}}" PARENT_SCOPE)
    endforeach()
endfunction()

file(GLOB kvloom_tests CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/test_*.c")
list(FILTER kvloom_tests EXCLUDE REGEX "/test_support\\.c$")
foreach(source IN LISTS kvloom_tests)
    get_filename_component(name "${source}" NAME_WE)
    kvloom_scan_test("${source}")
    string(REGEX REPLACE "^test_" "" labels "${name}")
    set(tree kvloom::kvloom)
    set(dist kvloom::single)
    if(needs_threads)
        list(APPEND labels threads)
    endif()
    if(needs_support)
        list(PREPEND tree test_support_tree)
        list(PREPEND dist test_support_dist)
    endif()
    if(needs_transform)
        if(TARGET kvloom_transform)
            kvloom_test(${name} "${source}" "kvloom_transform;${tree}" "${labels}")
        endif()
        continue()
    endif()
    if(needs_calibrate)
        if(TARGET kvloom_calibrate)
            kvloom_test(${name} "${source}" "kvloom_calibrate;${tree}" "${labels};model")
        endif()
        continue()
    endif()
    if(needs_eval)
        if(TARGET kvloom_eval)
            kvloom_test(${name} "${source}" "kvloom_eval;${tree}" "${labels};model")
        endif()
        continue()
    endif()
    if(needs_model)
        if(TARGET kvloom_model)
            kvloom_test(${name} "${source}" "kvloom_model;${tree}" "${labels};model")
        endif()
        continue()
    endif()
    kvloom_test(${name} "${source}" "${tree}" "${labels}")
    if(KVLOOM_TEST_SINGLE AND NOT kvloom_threads_only AND name IN_LIST kvloom_single_tests)
        kvloom_test(${name}_dist "${source}" "${dist}" "${labels};dist")
        # Afterwards, since it has the same kernels: beside each other both would wait for one.
        set_tests_properties(${name}_dist PROPERTIES DEPENDS ${name})
    endif()
endforeach()

# It counts the folders that compilers leave in /tmp: no other test may compile meanwhile.
if(TEST test_jit)
    set_tests_properties(test_jit PROPERTIES RUN_SERIAL TRUE)
endif()

if(kvloom_threads_only)
    return()
endif()

# Scripts: the linter, its own test, tests/test_*.lua and test_*.sh, and the header under several
# compilers, standards and link forms.
add_test(NAME lint COMMAND "${KVLOOM_LUA}" tools/lint.lua WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
kvloom_test_properties(lint lint)
add_test(NAME lint_self COMMAND "${KVLOOM_LUA}" tests/lint_self.lua
         WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
kvloom_test_properties(lint_self lint)
file(GLOB kvloom_scripts CONFIGURE_DEPENDS
     "${PROJECT_SOURCE_DIR}/tests/test_*.lua" "${PROJECT_SOURCE_DIR}/tests/test_*.sh")
foreach(source IN LISTS kvloom_scripts)
    get_filename_component(name "${source}" NAME_WE)
    set(interpreter "${KVLOOM_LUA}")
    if(source MATCHES "\\.sh$")
        set(interpreter sh)
    endif()
    add_test(NAME ${name} COMMAND "${interpreter}" "${source}"
             WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    string(REGEX REPLACE "^test_" "" label "${name}")
    kvloom_test_properties(${name} "${label}")
endforeach()

# Fuzzers: tests/fuzz/fuzz_NAME.c on the files of tests/fuzz/corpus/NAME.  With KVLOOM_FUZZ, which
# needs clang, each is a program of libFuzzer as well, bin/fuzz_NAME: see tools/fuzz.sh.
option(KVLOOM_FUZZ "Build libFuzzer programs" OFF)
foreach(name IN ITEMS load operations)
    set(source "${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_${name}.c")
    add_executable(corpus_${name} "${source}" "${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_corpus.c")
    kvloom_use_flags(corpus_${name})
    target_link_libraries(corpus_${name} PRIVATE kvloom::kvloom)
    set_target_properties(corpus_${name} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
    add_test(NAME fuzz_${name} COMMAND corpus_${name} "tests/fuzz/corpus/${name}"
             WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    kvloom_test_properties(fuzz_${name} fuzz)
    if(KVLOOM_FUZZ)
        add_executable(fuzz_${name} "${source}")
        kvloom_use_flags(fuzz_${name})
        target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
        target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
        target_link_libraries(fuzz_${name} PRIVATE kvloom::kvloom)
    endif()
endforeach()

# Files, operations, pages, pairs, prefill and presets once more with a device for the last target:
# the stand-in of tests/ptxsim.
if(NOT KVLOOM_NO_LUA AND NOT KVLOOM_SANITIZE)
    foreach(name IN ITEMS test_file test_operations test_pages test_pairs test_prefill test_presets)
        add_test(NAME ${name}_cuda COMMAND $<TARGET_FILE:${name}> --tap=- --short-filename -j1
                 WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
        kvloom_test_properties(${name}_cuda device)
        set_property(TEST ${name}_cuda APPEND PROPERTY ENVIRONMENT "KVLOOM_TEST_TARGET=cuda")
        set_tests_properties(${name}_cuda PROPERTIES DEPENDS ${name})
    endforeach()
endif()

# Tests that can use the machine's own device do so as well: ctest -L gpu.
if(EXISTS "/dev/nvidiactl" OR EXISTS "/dev/dxg")
    foreach(name IN ITEMS test_cuda test_cuda_model test_tensor test_attend)
        if(TARGET ${name})
            add_test(NAME gpu_${name} COMMAND $<TARGET_FILE:${name}> --tap=- --short-filename -j1
                     WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
            kvloom_test_properties(gpu_${name} gpu)
            set_tests_properties(gpu_${name} PROPERTIES RUN_SERIAL TRUE ENVIRONMENT
                "KVLOOM_TEST_GPU=1;KVLOOM_TEST_TARGET=cuda"
                "KVLOOM_TEST_BIN=${PROJECT_BINARY_DIR}/bin")
        endif()
    endforeach()
endif()

# The examples check what they compute, or fail.
foreach(source IN LISTS kvloom_examples)
    get_filename_component(name "${source}" NAME_WE)
    add_test(NAME example_${name} COMMAND ${name})
    kvloom_test_properties(example_${name} examples)
endforeach()
# Open MPI starts as root and beyond the number of processors only if it is told to; leaks that
# sanitizers see are its own.
if(TARGET context_parallel)
    add_test(NAME example_context_parallel COMMAND "${MPIEXEC_EXECUTABLE}" ${MPIEXEC_NUMPROC_FLAG}
             4 $<TARGET_FILE:context_parallel>)
    kvloom_test_properties(example_context_parallel examples)
    set_property(TEST example_context_parallel APPEND PROPERTY ENVIRONMENT
        "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
        "OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_btl_vader_single_copy_mechanism=none"
        "LSAN_OPTIONS=exitcode=0:print_suppressions=0;OMPI_MCA_mpi_yield_when_idle=1")
endif()

if(KVLOOM_SANITIZE OR KVLOOM_NO_LUA)
    return()
endif()

# Registers, spills and shared memory of kernels for devices, against the committed table.
if(TARGET kvloom-resources)
    add_test(NAME resources
             COMMAND kvloom-resources --quick --compare tests/golden/resources.txt
             WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    kvloom_test_properties(resources cuda)
    set_tests_properties(resources PROPERTIES SKIP_RETURN_CODE 77)
endif()
# Kernels for arm64 beside the reference, in an emulator of its processor.
find_program(KVLOOM_ARM_COMPILER aarch64-linux-gnu-gcc)
find_program(KVLOOM_ARM_EMULATOR NAMES qemu-aarch64 qemu-aarch64-static)
if(KVLOOM_ARM_COMPILER AND KVLOOM_ARM_EMULATOR AND TARGET kvloom-pack
   AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
    set(pack "${KVLOOM_GENERATED_DIR}/arm_pack.h")
    set(program "${PROJECT_BINARY_DIR}/tests/arm_kernels")
    set(source "${PROJECT_SOURCE_DIR}/tests/arm/kernels.c")
    set(configs "${PROJECT_SOURCE_DIR}/tests/arm/configs.txt")
    add_custom_command(OUTPUT "${pack}"
        COMMAND "${CMAKE_COMMAND}" -E env "KVLOOM_CC=${KVLOOM_ARM_COMPILER}"
                $<TARGET_FILE:kvloom-pack> --arch neondot,neon --no-texts --name arm_pack
                --list "${configs}" -o "${pack}"
        DEPENDS kvloom-pack "${configs}" VERBATIM)
    add_custom_command(OUTPUT "${program}"
        COMMAND "${KVLOOM_ARM_COMPILER}" -O1 -Wall -Wextra -Werror
                -I "${PROJECT_SOURCE_DIR}/include" -I "${PROJECT_SOURCE_DIR}/runtime"
                -I "${KVLOOM_GENERATED_DIR}" "${source}" -o "${program}" -lm -lpthread -ldl
        DEPENDS "${source}" "${pack}" VERBATIM)
    add_custom_target(arm_kernels ALL DEPENDS "${program}")
    add_test(NAME arm_kernels COMMAND "${KVLOOM_ARM_EMULATOR}" -cpu max -L /usr/aarch64-linux-gnu
             "${program}" "${configs}")
    kvloom_test_properties(arm_kernels "")
else()
    message(STATUS "gcc-aarch64-linux-gnu or qemu-user was not found: no test of arm64")
endif()
# Instructions of host kernels, against the committed table: an append's own are of this build.
if(TARGET kvloom-count AND CMAKE_BUILD_TYPE STREQUAL "Release"
   AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
    add_test(NAME instructions
             COMMAND kvloom-count --quick --compare tests/golden/instructions.txt
             WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    kvloom_test_properties(instructions "")
    set_tests_properties(instructions PROPERTIES SKIP_RETURN_CODE 77)
endif()
# Instructions of attention by tensor cores, against the committed table.
find_program(KVLOOM_PYTHON NAMES python3)
if(TARGET kvloom-cache AND KVLOOM_PYTHON AND CMAKE_BUILD_TYPE STREQUAL "Release"
   AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
    add_test(NAME tensor_count
             COMMAND "${KVLOOM_PYTHON}" tools/count_tensor.py --cache $<TARGET_FILE:kvloom-cache>
                     --compare tests/golden/tensor.txt
             WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    kvloom_test_properties(tensor_count cuda)
    set_tests_properties(tensor_count PROPERTIES SKIP_RETURN_CODE 77)
endif()
find_program(KVLOOM_GCC NAMES gcc)
find_program(KVLOOM_CLANG NAMES clang)
set(kvloom_compilers "${CMAKE_C_COMPILER}")
foreach(compiler IN ITEMS "${KVLOOM_GCC}" "${KVLOOM_CLANG}")
    get_filename_component(a "${compiler}" REALPATH)
    get_filename_component(b "${CMAKE_C_COMPILER}" REALPATH)
    if(compiler AND NOT a STREQUAL b)
        list(APPEND kvloom_compilers "${compiler}")
    endif()
endforeach()
set(kvloom_tree_dirs
    "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/runtime" "${KVLOOM_GENERATED_DIR}")
list(JOIN kvloom_tree_dirs ":" kvloom_tree_dirs)
foreach(compiler IN LISTS kvloom_compilers)
    get_filename_component(short "${compiler}" NAME)
    foreach(place IN ITEMS tree dist)
        set(dirs "${kvloom_tree_dirs}")
        if(place STREQUAL "dist")
            set(dirs "${KVLOOM_DIST_DIR}")
        elseif(NOT compiler STREQUAL CMAKE_C_COMPILER)
            continue()                     # the second compiler reads what users have
        endif()
        set(name header_${place}_${short})
        add_test(NAME ${name}
                 COMMAND sh tests/header/run.sh "${compiler}" "${CMAKE_CXX_COMPILER}" ${place}
                         "${dirs}" "${KVLOOM_LUA_INCLUDE_DIR}" "${KVLOOM_LUA_LIBRARY}"
                         "${PROJECT_BINARY_DIR}/tests/${name}"
                 WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
        kvloom_test_properties(${name} "header;compilers")
    endforeach()
endforeach()
add_test(NAME header_install
         COMMAND sh tests/header/install.sh "${CMAKE_COMMAND}" "${CMAKE_C_COMPILER}"
                 "${PROJECT_BINARY_DIR}" "${PROJECT_BINARY_DIR}/tests/header_install"
         WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
kvloom_test_properties(header_install header)
