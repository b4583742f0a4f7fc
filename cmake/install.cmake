# install.cmake -- the single header, the CMake package, the pkg-config file and programs.

set(kvloom_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/kvloom")
install(FILES "${KVLOOM_DIST_DIR}/kvloom.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")

configure_package_config_file(cmake/kvloom-config.cmake.in
    "${PROJECT_BINARY_DIR}/kvloom-config.cmake"
    INSTALL_DESTINATION "${kvloom_package_dir}" PATH_VARS CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/kvloom-config-version.cmake"
    COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/kvloom-config.cmake"
              "${PROJECT_BINARY_DIR}/kvloom-config-version.cmake" cmake/kvloom-lua.cmake
        DESTINATION "${kvloom_package_dir}")

if(KVLOOM_NO_LUA)
    set(kvloom_pc_cflags "-DKVLOOM_NO_LUA")
    set(kvloom_pc_libs "")
else()
    set(kvloom_pc_cflags "-I${KVLOOM_LUA_INCLUDE_DIR}")
    # By name, the shared library: pkg-config does not know what is being linked.
    get_filename_component(kvloom_pc_libs "${KVLOOM_LUA_LIBRARY}" NAME_WLE)
    string(REGEX REPLACE "^lib" "-l" kvloom_pc_libs "${kvloom_pc_libs}")
endif()
# From the folder of the file up to the prefix: `cmake --install --prefix` may move it.
file(RELATIVE_PATH kvloom_pc_up "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
string(REGEX REPLACE "/$" "" kvloom_pc_up "${kvloom_pc_up}")
configure_file(cmake/kvloom.pc.in "${PROJECT_BINARY_DIR}/kvloom.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/kvloom.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

foreach(program IN ITEMS kvloom-cache kvloom-bench)
    if(TARGET ${program})
        install(TARGETS ${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
    endif()
endforeach()
