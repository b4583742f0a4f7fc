# programs.cmake -- flags of our own targets, examples and tools; programs land in bin.

add_library(kvloom_flags INTERFACE)
target_compile_options(kvloom_flags INTERFACE -Wall -Wextra -Wconversion -pedantic)
if(KVLOOM_WERROR)
    target_compile_options(kvloom_flags INTERFACE -Werror)
endif()
if(KVLOOM_SANITIZE)
    target_compile_options(kvloom_flags INTERFACE
        "-fsanitize=${KVLOOM_SANITIZE}" -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(kvloom_flags INTERFACE "-fsanitize=${KVLOOM_SANITIZE}")
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
    target_compile_definitions(kvloom_flags INTERFACE KVLOOM_DEBUG)
endif()

# ISO C99, as a user's strict compiler sees the header; our programs may use POSIX.
function(kvloom_use_flags target)
    target_link_libraries(${target} PRIVATE kvloom_flags)
    target_compile_definitions(${target} PRIVATE _GNU_SOURCE)
    set_target_properties(${target} PROPERTIES
        C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
endfunction()

function(kvloom_program name)
    add_executable(${name} ${ARGN})
    kvloom_use_flags(${name})
    target_link_libraries(${name} PRIVATE kvloom::kvloom)
endfunction()

if(NOT KVLOOM_PROGRAMS AND NOT KVLOOM_TESTS)
    return()
endif()

# PCRE2 splits text for tokenizers; CBLAS multiplies in prefill.
find_path(KVLOOM_PCRE2_INCLUDE_DIR pcre2.h)
find_library(KVLOOM_PCRE2_LIBRARY NAMES pcre2-8)
find_path(KVLOOM_CBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas openblas-pthread)
find_library(KVLOOM_CBLAS_LIBRARY NAMES openblas cblas blas)
if(KVLOOM_CBLAS_LIBRARY AND NOT KVLOOM_CBLAS_LIBRARY MATCHES "openblas")
    message(NOTICE "OpenBLAS was not found (libopenblas-dev); ${KVLOOM_CBLAS_LIBRARY} is used. If "
                   "that is the reference BLAS, prompts are read up to a hundred times as slowly")
endif()
# LAPACK factorises moments in calibration; OpenBLAS has both.
find_library(KVLOOM_LAPACK_LIBRARY NAMES openblas lapack)
find_path(KVLOOM_CJSON_INCLUDE_DIR cJSON.h PATH_SUFFIXES cjson)
find_library(KVLOOM_CJSON_LIBRARY NAMES cjson)

file(GLOB kvloom_model_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/examples/decode/*.c")
file(GLOB kvloom_model_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/examples/decode/*.h")
# The program's own files; the rest is the library of calibration and evaluation as well.
set(kvloom_decode_sources "${PROJECT_SOURCE_DIR}/examples/decode/main.c"
    "${PROJECT_SOURCE_DIR}/examples/decode/follow.c")
list(REMOVE_ITEM kvloom_model_sources ${kvloom_decode_sources})

# The parts of kvloom-eval, which its tests use as well.
file(GLOB kvloom_eval_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tools/eval_*.c")
file(GLOB kvloom_eval_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tools/eval_*.h")
# Its exponentials: gcc vectorises no comparison that might trap.
set_source_files_properties("${PROJECT_SOURCE_DIR}/tools/eval_statistics.c"
                            PROPERTIES COMPILE_OPTIONS -fno-trapping-math)

if(NOT KVLOOM_PCRE2_LIBRARY OR NOT KVLOOM_PCRE2_INCLUDE_DIR)
    message(WARNING "PCRE2 was not found (libpcre2-dev): decode is not built")
elseif(NOT KVLOOM_CBLAS_LIBRARY OR NOT KVLOOM_CBLAS_INCLUDE_DIR)
    message(WARNING "CBLAS was not found (libopenblas-dev): decode is not built")
else()
    set(text examples/decode/types.cu examples/decode/device_args.h examples/decode/steps.cu
        examples/decode/products.cu)
    list(TRANSFORM text PREPEND "${PROJECT_SOURCE_DIR}/" OUTPUT_VARIABLE files)
    kvloom_generate("${KVLOOM_GENERATED_DIR}/model_text.h" embed.lua
                    ARGS --prefix=model ${text} DEPENDS ${files})
    add_library(kvloom_model STATIC EXCLUDE_FROM_ALL
                ${kvloom_model_sources} "${KVLOOM_GENERATED_DIR}/model_text.h")
    target_include_directories(kvloom_model PRIVATE "${KVLOOM_GENERATED_DIR}")
    kvloom_use_flags(kvloom_model)
    target_include_directories(kvloom_model PUBLIC "${PROJECT_SOURCE_DIR}/examples/decode")
    target_include_directories(kvloom_model SYSTEM PUBLIC
        "${KVLOOM_PCRE2_INCLUDE_DIR}" "${KVLOOM_CBLAS_INCLUDE_DIR}")
    target_link_libraries(kvloom_model PUBLIC
        kvloom::kvloom "${KVLOOM_PCRE2_LIBRARY}" "${KVLOOM_CBLAS_LIBRARY}" m)
endif()

# Changes of basis from second moments, and the tables of a calibration that are made of them.
file(GLOB kvloom_transform_sources CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/examples/calibration/*.c")
if(NOT KVLOOM_LAPACK_LIBRARY OR NOT KVLOOM_CBLAS_LIBRARY OR NOT KVLOOM_CBLAS_INCLUDE_DIR)
    message(WARNING "LAPACK was not found (libopenblas-dev): calibration has no transforms")
else()
    add_library(kvloom_transform STATIC EXCLUDE_FROM_ALL ${kvloom_transform_sources})
    kvloom_use_flags(kvloom_transform)
    target_include_directories(kvloom_transform PUBLIC
        "${PROJECT_SOURCE_DIR}/examples/calibration")
    target_include_directories(kvloom_transform SYSTEM PRIVATE "${KVLOOM_CBLAS_INCLUDE_DIR}")
    target_link_libraries(kvloom_transform PUBLIC kvloom::kvloom
        "${KVLOOM_LAPACK_LIBRARY}" "${KVLOOM_CBLAS_LIBRARY}" m)
endif()

function(kvloom_use_json target scope)
    get_filename_component(parent "${KVLOOM_CJSON_INCLUDE_DIR}" DIRECTORY)
    target_include_directories(${target} SYSTEM ${scope} "${KVLOOM_CJSON_INCLUDE_DIR}" "${parent}")
    target_link_libraries(${target} ${scope} "${KVLOOM_CJSON_LIBRARY}")
endfunction()

if(TARGET kvloom_model AND KVLOOM_CJSON_LIBRARY AND KVLOOM_CJSON_INCLUDE_DIR)
    add_library(kvloom_eval STATIC EXCLUDE_FROM_ALL ${kvloom_eval_sources})
    kvloom_use_flags(kvloom_eval)
    kvloom_use_json(kvloom_eval PUBLIC)
    target_include_directories(kvloom_eval PUBLIC "${PROJECT_SOURCE_DIR}/tools")
    target_link_libraries(kvloom_eval PUBLIC kvloom_model)
endif()

# The parts of kvloom-calibrate, which its tests use as well.
file(GLOB kvloom_calibrate_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tools/calibrate_*.c")
if(TARGET kvloom_eval AND TARGET kvloom_transform)
    add_library(kvloom_calibrate STATIC EXCLUDE_FROM_ALL ${kvloom_calibrate_sources})
    kvloom_use_flags(kvloom_calibrate)
    target_link_libraries(kvloom_calibrate PUBLIC kvloom_eval kvloom_transform)
endif()

if(NOT KVLOOM_PROGRAMS)
    return()
endif()

# One example has its kernels made by kvloom-pack, and links no Lua; one runs as several processes
# under MPI, where that is found.
file(GLOB kvloom_examples CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/examples/*.c")
list(FILTER kvloom_examples EXCLUDE REGEX "/context_parallel\\.c$")
find_package(MPI COMPONENTS C QUIET)
if(MPI_C_FOUND)
    kvloom_program(context_parallel "${PROJECT_SOURCE_DIR}/examples/context_parallel.c")
    target_include_directories(context_parallel SYSTEM PRIVATE ${MPI_C_INCLUDE_DIRS})
    target_link_libraries(context_parallel PRIVATE ${MPI_C_LIBRARIES})
else()
    message(STATUS "MPI was not found (libopenmpi-dev): context_parallel is not built")
endif()
if(KVLOOM_NO_LUA)
    list(FILTER kvloom_examples EXCLUDE REGEX "/kernel_pack\\.c$")
endif()
foreach(source IN LISTS kvloom_examples)
    get_filename_component(name "${source}" NAME_WE)
    if(NOT name STREQUAL "kernel_pack")
        kvloom_program(${name} "${source}")
    endif()
endforeach()
if(NOT KVLOOM_NO_LUA)
    set(data "${KVLOOM_GENERATED_DIR}/kernel_pack_data.h")
    add_custom_command(OUTPUT "${data}"
        COMMAND kvloom-pack -o "${data}" --config "kivi:k2,v2,g32,meta=f16 8 2 64"
        DEPENDS kvloom-pack VERBATIM)
    add_executable(kernel_pack "${PROJECT_SOURCE_DIR}/examples/kernel_pack.c" "${data}")
    kvloom_use_flags(kernel_pack)
    target_include_directories(kernel_pack PRIVATE
        "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/runtime" "${KVLOOM_GENERATED_DIR}")
    target_link_libraries(kernel_pack PRIVATE m ${CMAKE_DL_LIBS} Threads::Threads)
endif()

# A program whose files include cJSON is built where it is found.
function(kvloom_json_program name)
    set(uses_json FALSE)
    foreach(source IN LISTS ARGN)
        file(STRINGS "${source}" includes REGEX "cJSON\\.h")
        if(includes)
            set(uses_json TRUE)
        endif()
    endforeach()
    if(uses_json AND NOT (KVLOOM_CJSON_LIBRARY AND KVLOOM_CJSON_INCLUDE_DIR))
        message(WARNING "cJSON was not found (libcjson-dev): ${name} is not built")
        return()
    endif()
    kvloom_program(${name} ${ARGN})
    if(uses_json)
        kvloom_use_json(${name} PRIVATE)
    endif()
endfunction()

if(TARGET kvloom_model)
    kvloom_json_program(decode ${kvloom_decode_sources})
    if(TARGET decode)
        target_link_libraries(decode PRIVATE kvloom_model)
        if(TARGET kvloom_transform)
            target_link_libraries(decode PRIVATE kvloom_transform)
            target_compile_definitions(decode PRIVATE DECODE_HAS_LAPACK)
        endif()
    endif()
endif()

file(GLOB kvloom_tools CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tools/kvloom-*.c")
foreach(source IN LISTS kvloom_tools)
    get_filename_component(name "${source}" NAME_WE)
    string(REPLACE "-" "_" parts "${name}")
    if(name STREQUAL "kvloom-bench")
        file(GLOB kvloom_bench_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tools/bench_*.c")
        kvloom_json_program(${name} "${source}" ${kvloom_bench_sources})
    elseif(NOT name MATCHES "^kvloom-(eval|calibrate)$")
        kvloom_json_program(${name} "${source}")
    elseif(TARGET ${parts})
        kvloom_program(${name} "${source}")
        target_link_libraries(${name} PRIVATE ${parts})
    endif()
endforeach()
