# kvloom-lua.cmake -- find liblua 5.4 and say how to link it.  Used by the build and the package.
#
# Sets KVLOOM_LUA_LIBRARY, KVLOOM_LUA_INCLUDE_DIR and the function kvloom_link_lua(TARGET).  A
# program takes the static library with its symbols hidden, which does not meet another Lua in the
# same process.  Shared objects take the shared one: distributions do not build liblua.a for them.

find_path(KVLOOM_LUA_INCLUDE_DIR lua.h PATH_SUFFIXES lua5.4 lua-5.4 lua54 lua/5.4 lua)
find_library(KVLOOM_LUA_LIBRARY NAMES liblua5.4.a lua5.4 lua-5.4 lua54 liblua.a lua)
find_library(KVLOOM_LUA_SHARED_LIBRARY NAMES lua5.4 lua-5.4 lua54 lua)
mark_as_advanced(KVLOOM_LUA_INCLUDE_DIR KVLOOM_LUA_LIBRARY KVLOOM_LUA_SHARED_LIBRARY)

function(kvloom_link_lua target)
    set(type "$<TARGET_PROPERTY:TYPE>")
    set(is_shared "$<OR:$<STREQUAL:${type},SHARED_LIBRARY>,$<STREQUAL:${type},MODULE_LIBRARY>>")
    target_include_directories(${target} SYSTEM INTERFACE "${KVLOOM_LUA_INCLUDE_DIR}")
    if(KVLOOM_LUA_LIBRARY MATCHES "/([^/]+\\.a)$" AND KVLOOM_LUA_SHARED_LIBRARY AND NOT APPLE)
        target_link_libraries(${target} INTERFACE
            "$<IF:${is_shared},${KVLOOM_LUA_SHARED_LIBRARY},${KVLOOM_LUA_LIBRARY}>")
        target_link_options(${target} INTERFACE
            "$<$<NOT:${is_shared}>:-Wl,--exclude-libs,${CMAKE_MATCH_1}>")
    else()
        target_link_libraries(${target} INTERFACE "${KVLOOM_LUA_LIBRARY}")
    endif()
endfunction()
