#!/bin/sh
# run.sh -- the header under one C compiler, from one place: standards, flags, units, link forms.
#
#     run.sh CC CXX tree|dist DIRS LUA_INCLUDE LUA_LIBRARY WORK
#
# DIRS are the header's folders, with colons between them; CXX may be empty or not found.  Both
# places have the same text: in the tree each of its headers is read, alone and in each language;
# what users have, the single header, is compiled, linked and run as well: each object once, since
# one takes up to 20 seconds.
# Prints TAP.  Fails when the header needs a flag, a macro or a language that its manual does not
# ask for.
set -eu

cc=$1 cxx=$2 place=$3 dirs=$4 lua_include=$5 lua_library=$6 work=$7
here=$(dirname "$0")

includes=$(printf '%s' "$dirs" | tr ':' '\n' | sed 's/^/-I/' | tr '\n' ' ')
lua="-isystem $lua_include"
warnings="-Wall -Wextra -Wconversion -pedantic -Werror"
libs="$lua_library -lm -ldl -lpthread"
case $lua_library in
*.a) libs="$libs -Wl,--exclude-libs,$(basename "$lua_library")" ;;
esac
# A static liblua is often not made for shared objects.
shared_libs="${lua_library%.a}"
case $lua_library in *.a) shared_libs=$shared_libs.so ;; esac
shared_libs="$shared_libs -lm -ldl -lpthread"
command -v "$cxx" >/dev/null 2>&1 || cxx=
# clang goes with clang++: the two halves of one compiler are tested together.
case $(basename "$cc") in
clang*) command -v clang++ >/dev/null 2>&1 && [ -n "$cxx" ] && cxx=clang++ ;;
esac

rm -rf "$work"
mkdir -p "$work"
cases=0
failures=0

# check NAME COMMAND...: one TAP line, the command's output where it fails.
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

skip() {
    cases=$((cases + 1))
    echo "ok $cases - $1 # SKIP $2"
}

# Quoting is by word splitting: no path here has a space in it.
compile() { $cc $includes -I"$here" $warnings "$@"; }
compile_cxx() { $cxx $includes -I"$here" $warnings "$@"; }

for std in c99 c11 c17; do
    check "declarations, $std" compile -std=$std -c "$here/declarations.c" -o "$work/d.o"
    check "implementation, $std" \
        compile $lua -std=$std -fsyntax-only "$here/implementation.c"
done
check "implementation, KVLOOM_DEBUG" \
    compile $lua -std=c99 -DKVLOOM_DEBUG -fsyntax-only "$here/implementation.c"
check "implementation, KVLOOM_STATIC" \
    compile $lua -std=c99 -DKVLOOM_STATIC -fsyntax-only "$here/implementation.c"
check "implementation, KVLOOM_NO_LUA needs no Lua headers" \
    compile -std=c99 -DKVLOOM_NO_LUA -fsyntax-only "$here/implementation.c"
if [ -n "$cxx" ]; then
    for std in c++11 c++17 c++20; do
        check "declarations, $std" compile_cxx -std=$std -x c++ -fsyntax-only "$here/declarations.c"
    done
    check "implementation, c++17" \
        compile_cxx $lua -std=c++17 -x c++ -fsyntax-only "$here/implementation.c"
else
    skip "C++" "no C++ compiler"
fi

refuses_fast_math() {
    if compile $lua -std=c99 -ffast-math -fsyntax-only "$here/implementation.c"; then return 1; fi
    grep -q "ffast-math" "$work/log"
}
check "-ffast-math is refused by name" refuses_fast_math

if [ "$place" = tree ]; then
    for header in $(printf '%s' "$dirs" | tr ':' '\n' | sed 's,$,/kvl_*.h,'); do
        [ -e "$header" ] || continue
        name=$(basename "$header")
        printf '#include "%s"\n#include "%s"\nextern int unit_is_not_empty;\n' \
            "$name" "$name" >"$work/alone.c"
        check "$name alone" \
            compile $lua -std=c99 -D_GNU_SOURCE -fsyntax-only "$work/alone.c"
    done

    echo "1..$cases"
    [ "$failures" -eq 0 ]
    exit
fi

check "implementation, gnu99 and -O3 -fno-strict-aliasing" \
    compile $lua -std=gnu99 -O3 -fno-strict-aliasing -c "$here/implementation.c" -o "$work/i3.o"
check "implementation, -O1, as an object" \
    compile $lua -std=c99 -O1 -fPIC -c "$here/implementation.c" -o "$work/i1.o"
check "implementation, -O0, as an object" \
    compile $lua -std=c99 -O0 -c "$here/implementation.c" -o "$work/i0.o"
check "implementation, KVLOOM_NO_LUA, as an object" \
    compile -std=c99 -DKVLOOM_NO_LUA -c "$here/implementation.c" -o "$work/no_lua.o"

# Every global symbol has the library's prefix.
only_our_symbols() {
    other=$(nm -g --defined-only "$work/i1.o" | awk 'NF == 3 && $3 !~ /^kvl_/')
    [ -z "$other" ] || { echo "$other"; return 1; }
}
check "global symbols begin with kvl_" only_our_symbols

# units LEVEL: three units and the implementation, as objects named by the level.
build_units() {
    level=$1
    shift
    for unit in unit_create unit_use units_main; do
        compile $lua -std=c99 "$level" -fPIC "$@" -c "$here/$unit.c" -o "$work/$unit.o" || return 1
    done
    if [ -n "$cxx" ]; then
        compile_cxx -std=c++17 "$level" -fPIC -c "$here/unit_cpp.cpp" -o "$work/unit_ask.o"
    else
        compile -std=c99 "$level" -fPIC -c "$here/unit_plain.c" -o "$work/unit_ask.o"
    fi
}
linker=${cxx:-$cc}

# one_program N: of -ON, with the implementation's object of that level.
one_program() {
    build_units "-O$1" &&
        $linker "$work"/unit_create.o "$work"/unit_use.o "$work"/units_main.o "$work"/unit_ask.o \
            "$work/i$1.o" $libs -o "$work/one" &&
        "$work/one" "$work/cache"
}
check "two C units and one C++ unit in one program, -O0" one_program 0
check "two C units and one C++ unit in one program, -O3" one_program 3

without_lua() {
    build_units -O1 &&
        $linker "$work"/unit_create.o "$work"/unit_use.o "$work"/units_main.o "$work"/unit_ask.o \
            "$work/no_lua.o" -lm -ldl -lpthread -o "$work/no_lua" &&
        "$work/no_lua" "$work/cache-none"
}
check "KVLOOM_NO_LUA links and runs without liblua" without_lua

shared_objects() {
    build_units -O1 &&
        $cc -shared "$work/unit_create.o" "$work/i1.o" $shared_libs -o "$work/libcreate.so" &&
        $linker -shared "$work/unit_use.o" "$work/unit_ask.o" "-L$work" -lcreate -lm \
            -o "$work/libuse.so" &&
        $cc "$work/units_main.o" "-L$work" -luse -lcreate "-Wl,-rpath,$work" -o "$work/shared" &&
        "$work/shared" "$work/cache"
}
check "create in one shared object, use in the other" shared_objects

# Each unit carries its own copy; an object of one is used by the code of the other.
static_copies() {
    build_units -O0 -DKVLOOM_STATIC -DKVLOOM_IMPLEMENTATION &&
        compile $lua -std=c99 -O0 -fPIC -DKVLOOM_STATIC -DKVLOOM_IMPLEMENTATION \
            -c "$here/unit_plain.c" -o "$work/unit_ask.o" &&
        $cc "$work"/unit_create.o "$work"/unit_use.o "$work"/units_main.o "$work"/unit_ask.o \
            $libs -o "$work/static" &&
        "$work/static" "$work/cache" &&
        $cc -shared "$work/unit_create.o" $shared_libs -o "$work/libcreate.so" &&
        $cc -shared "$work/unit_use.o" "$work/unit_ask.o" "-L$work" -lcreate $shared_libs \
            -o "$work/libuse.so" &&
        $cc "$work/units_main.o" "-L$work" -luse -lcreate $shared_libs "-Wl,-rpath,$work" \
            -o "$work/static-shared" &&
        "$work/static-shared" "$work/cache"
}
check "KVLOOM_STATIC copies in one program and in two shared objects" static_copies

hidden_lua() {
    case $lua_library in *.a) ;; *) return 0 ;; esac
    build_units -O1 &&
        $linker -rdynamic "$work"/unit_create.o "$work"/unit_use.o "$work"/units_main.o \
            "$work/unit_ask.o" "$work/i1.o" $libs -o "$work/hidden" || return 1
    shown=$(nm -D --defined-only "$work/hidden" | awk '$3 ~ /^lua/')
    [ -z "$shown" ] || { echo "$shown"; return 1; }
}
check "liblua's symbols are hidden, even where a program shows its own" hidden_lua

echo "1..$cases"
[ "$failures" -eq 0 ]
