#!/bin/sh
# install.sh -- install to a scratch prefix, then build and run users of it by CMake and pkg-config.
#
#     install.sh CMAKE CC BUILD WORK
#
# Prints TAP.  Fails when an installed file is missing or points back into the tree.
set -eu

cmake=$1 cc=$2 build=$3 work=$4
here=$(cd "$(dirname "$0")" && pwd)

rm -rf "$work"
mkdir -p "$work"
cases=0
failures=0

check() {
    name=$1
    shift
    cases=$((cases + 1))
    if "$@" >"$work/log" 2>&1; then
        echo "ok $cases - $name"
    else
        failures=$((failures + 1))
        echo "not ok $cases - $name"
        sed 's/^/# /' "$work/log" | head -n 40
    fi
}

check "install" "$cmake" --install "$build" --prefix "$work/prefix"

has_files() {
    [ -f "$work/prefix/include/kvloom.h" ] &&
        find "$work/prefix" -name kvloom-config.cmake | grep -q . &&
        find "$work/prefix" -name kvloom-config-version.cmake | grep -q . &&
        find "$work/prefix" -name kvloom.pc | grep -q . &&
        ! grep -rl "$build" "$work/prefix/include" "$work/prefix/lib"*
}
check "header, package and pkg-config file are there and name no build folder" has_files

by_cmake() {
    mkdir "$work/user" &&
        cp "$here/units_main.c" "$here/unit_create.c" "$here/unit_use.c" "$here/unit_plain.c" \
            "$here/implementation.c" "$here/units.h" "$here/user/CMakeLists.txt" \
            "$work/user" &&
        CC=$cc "$cmake" -S "$work/user" -B "$work/user/build" "-DCMAKE_PREFIX_PATH=$work/prefix" &&
        "$cmake" --build "$work/user/build" &&
        "$work/user/build/user" "$work/cache"
}
check "find_package(kvloom) builds and runs a user's program" by_cmake

by_pkg_config() {
    PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name kvloom.pc)")
    export PKG_CONFIG_PATH
    flags=$(pkg-config --cflags kvloom) || return 1
    libs=$(pkg-config --libs kvloom) || return 1
    "$cc" -std=c99 $flags -I"$here" "$here/units_main.c" "$here/unit_create.c" "$here/unit_use.c" \
        "$here/unit_plain.c" "$here/implementation.c" $libs -o "$work/by_pkg_config" &&
        "$work/by_pkg_config" "$work/cache"
}
if command -v pkg-config >/dev/null 2>&1; then
    check "pkg-config builds and runs a user's program" by_pkg_config
else
    cases=$((cases + 1))
    echo "ok $cases - pkg-config # SKIP there is no pkg-config"
fi

echo "1..$cases"
[ "$failures" -eq 0 ]
