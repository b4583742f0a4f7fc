#!/bin/sh
# build.sh -- compiles the stand-in libcuda.so.1 into a folder: build.sh FOLDER [CC]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:?a folder}
cc=${2:-${CC:-cc}}
flags="-std=c99 -O3 -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno
       -Wall -Wextra -Wconversion -pedantic -Werror ${PTXSIM_CFLAGS:-}"
mkdir -p "$folder/ptxsim.o"
for source in "$here"/*.c; do
    $cc $flags -D_GNU_SOURCE -c "$source" -o "$folder/ptxsim.o/$(basename "$source" .c).o"
done
$cc -shared -Wl,-soname,libcuda.so.1 ${PTXSIM_CFLAGS:-} "$folder"/ptxsim.o/*.o \
    -o "$folder/libcuda.so.1" -lm -ldl -lpthread
