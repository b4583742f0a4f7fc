#!/bin/sh
# build.sh -- compiles the stand-in libcuda.so.1 into a folder: build.sh FOLDER [CC]
#
# Does nothing if the library is newer than its sources.  Several may run at once.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:?a folder}
cc=${2:-${CC:-cc}}
library="$folder/libcuda.so.1"
if [ -e "$library" ] && [ -z "$(find "$here" -newer "$library" -type f)" ]; then
    exit 0
fi
flags="-std=c99 -O3 -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno
       -Wall -Wextra -Wconversion -pedantic -Werror ${PTXSIM_CFLAGS:-}"
objects="$folder/ptxsim.$$"
mkdir -p "$objects"
trap 'rm -rf "$objects"' EXIT
for source in "$here"/*.c; do
    $cc $flags -D_GNU_SOURCE -c "$source" -o "$objects/$(basename "$source" .c).o"
done
$cc -shared -Wl,-soname,libcuda.so.1 ${PTXSIM_CFLAGS:-} "$objects"/*.o \
    -o "$objects/libcuda.so.1" -lm -ldl -lpthread
mv "$objects/libcuda.so.1" "$library"
