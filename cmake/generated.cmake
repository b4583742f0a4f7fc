# generated.cmake -- what Lua writes at build time: kvl_text.h, kvl_table.h and the single header.

find_program(KVLOOM_LUA NAMES lua5.4 lua-5.4 lua54 lua)
if(NOT KVLOOM_LUA)
    message(FATAL_ERROR "the Lua 5.4 interpreter was not found (lua5.4)")
endif()
execute_process(COMMAND "${KVLOOM_LUA}" -e "io.write(_VERSION)" OUTPUT_VARIABLE kvloom_lua_is)
if(NOT kvloom_lua_is STREQUAL "Lua 5.4")
    message(FATAL_ERROR "${KVLOOM_LUA} is '${kvloom_lua_is}', Lua 5.4 is needed: "
                        "set KVLOOM_LUA to its path")
endif()

set(KVLOOM_GENERATED_DIR "${PROJECT_BINARY_DIR}/generated")
set(KVLOOM_DIST_DIR "${PROJECT_BINARY_DIR}/dist")
file(MAKE_DIRECTORY "${KVLOOM_GENERATED_DIR}" "${KVLOOM_DIST_DIR}")

# Paths in the embedded text are relative to the tree.
file(GLOB_RECURSE kvloom_text CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}"
     gen/*.lua templates/*.c templates/*.h templates/*.cu templates/*.cuh)
list(APPEND kvloom_text runtime/kvl_args.h runtime/kvl_device_args.h)
file(GLOB kvloom_parts CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" gen/parts/*.lua)
file(GLOB kvloom_codecs CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" gen/codecs/*.lua)
file(GLOB kvloom_runtime CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/runtime/*.h")
list(TRANSFORM kvloom_text PREPEND "${PROJECT_SOURCE_DIR}/" OUTPUT_VARIABLE kvloom_text_files)

# Runs a Lua tool in the root of the tree; what it prints becomes `output` when it has ended well.
function(kvloom_generate output tool)
    cmake_parse_arguments(arg "" "" "ARGS;DEPENDS" ${ARGN})
    add_custom_command(
        OUTPUT "${output}"
        COMMAND sh cmake/run_tool.sh "${output}" "${KVLOOM_LUA}" tools/${tool} ${arg_ARGS}
        DEPENDS "${PROJECT_SOURCE_DIR}/tools/${tool}"
                "${PROJECT_SOURCE_DIR}/cmake/run_tool.sh" ${arg_DEPENDS}
        WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
        COMMENT "Generating ${output}"
        VERBATIM)
endfunction()

kvloom_generate("${KVLOOM_GENERATED_DIR}/kvl_text.h" embed.lua
                ARGS ${kvloom_text} DEPENDS ${kvloom_text_files})
kvloom_generate("${KVLOOM_GENERATED_DIR}/kvl_table.h" table.lua
                ARGS ${kvloom_parts} -- ${kvloom_codecs} DEPENDS ${kvloom_text_files})
set(kvloom_generated "${KVLOOM_GENERATED_DIR}/kvl_text.h" "${KVLOOM_GENERATED_DIR}/kvl_table.h")
add_custom_target(kvloom_generated DEPENDS ${kvloom_generated})

# The single header names the git id and the local changes, so it is made anew in each build; the
# file is touched only if it changes.
add_custom_target(kvloom_dist ALL
    COMMAND "${KVLOOM_LUA}" tools/amalgamate.lua "${KVLOOM_DIST_DIR}/kvloom.h" include/kvloom.h
            ${kvloom_runtime} ${kvloom_generated}
    BYPRODUCTS "${KVLOOM_DIST_DIR}/kvloom.h"
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    VERBATIM)
add_dependencies(kvloom_dist kvloom_generated)
