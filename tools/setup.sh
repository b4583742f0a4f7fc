#!/bin/sh
# setup.sh -- install what building kvloom needs and this machine lacks, on Debian or Ubuntu.
#
#     sh tools/setup.sh [--tests] [--model]
#
# Without options: compiler, CMake, Lua, BLAS, PCRE2, xxHash, cJSON.  --tests adds Criterion, Open
# MPI, on x86-64 a compiler for arm64 with its emulator, and, where they are not there, NVRTC as the
# wheel nvidia-cuda-nvrtc in build-test/nvrtc (90 MB), which KVLOOM_NVRTC then names for test.sh,
# and nvdisasm likewise.  --model adds what fetches a model.  Calls apt-get only if something is
# missing; that needs root or a sudo that asks for nothing, and without them the command is printed
# and the status is 1.
set -eu

tests=0
model=0
for word in "$@"; do
    case $word in
    --tests) tests=1 ;;
    --model) model=1 ;;
    --help | -h) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup.sh: unknown option $word" >&2; exit 2 ;;
    esac
done

missing=

# want PACKAGE PROBE...: the package is missing if the probe fails.
want() {
    package=$1
    shift
    "$@" || missing="$missing $package"
}

command_of() {
    for name in "$@"; do
        if command -v "$name" >/dev/null 2>&1; then return 0; fi
    done
    return 1
}

# A header, by any of its usual places.
header() {
    for name in "$@"; do
        for folder in /usr/include /usr/include/*-linux-gnu* /usr/local/include; do
            if [ -e "$folder/$name" ]; then return 0; fi
        done
    done
    return 1
}

# A library that a linker finds by its name.  A header may be another library's: <cblas.h> comes
# with the reference BLAS too, which multiplies a hundred times as slowly as OpenBLAS.
library() {
    for folder in /usr/lib /usr/lib64 /usr/lib/*-linux-gnu /usr/local/lib /usr/local/lib64; do
        for file in "$folder/lib$1".so "$folder/lib$1".a; do
            if [ -e "$file" ]; then return 0; fi
        done
    done
    return 1
}

pip_works() { python3 -m pip --version >/dev/null 2>&1 || command_of pip3 pip; }

# NVRTC where kvloom looks for it by itself, or where KVLOOM_NVRTC says.
nvrtc_there() {
    for folder in "${KVLOOM_NVRTC:-}" "${CUDA_PATH:-}/lib64" "${CUDA_HOME:-}/lib64" \
        /usr/local/cuda/lib64 /usr/lib/*-linux-gnu /usr/lib64 \
        "${VIRTUAL_ENV:-}"/lib/python3*/site-packages/nvidia/*/lib \
        "${HOME:-}"/.local/lib/python3*/site-packages/nvidia/*/lib \
        /usr/local/lib/python3*/*-packages/nvidia/*/lib build-test/nvrtc/nvidia/*/lib; do
        for file in "$folder"/libnvrtc.so.1[23]; do
            if [ -e "$file" ]; then return 0; fi
        done
    done
    [ -f "${KVLOOM_NVRTC:-}" ]
}

# The disassembler of device code.
nvdisasm_there() {
    [ -x "${KVLOOM_NVDISASM:-}" ] || command_of nvdisasm || [ -d build-test/nvdisasm ]
}

want gcc command_of cc gcc clang
want libc6-dev header stdio.h
want make command_of make ninja
want cmake command_of cmake
want lua5.4 command_of lua5.4
want liblua5.4-dev header lua5.4/lua.h
want libxxhash-dev header xxhash.h
want libopenblas-dev library openblas
want libpcre2-dev header pcre2.h
want libcjson-dev header cjson/cJSON.h
want pkg-config command_of pkg-config pkgconf
if [ "$tests" -eq 1 ]; then
    want libcriterion-dev header criterion/criterion.h
    want openmpi-bin command_of mpirun
    if [ "$(uname -m)" = x86_64 ]; then
        want gcc-aarch64-linux-gnu command_of aarch64-linux-gnu-gcc
        want libc6-dev-arm64-cross test -e /usr/aarch64-linux-gnu/include/stdio.h
        want qemu-user command_of qemu-aarch64 qemu-aarch64-static
    fi
    want libopenmpi-dev command_of mpicc
    { nvrtc_there && nvdisasm_there; } || want python3-pip pip_works
fi
if [ "$model" -eq 1 ]; then
    want python3-pip pip_works
    want unzip command_of unzip
fi

# install_wheel NAME WHAT: the wheel nvidia-cuda-NAME into build-test/NAME.  A machine without
# network does without it.
install_wheel() {
    echo "Installing the wheel nvidia-cuda-$1 into build-test/$1" >&2
    mkdir -p build-test
    python3 -m pip install -q --disable-pip-version-check --no-deps --target "build-test/$1.new" \
        "nvidia-cuda-$1" >&2 && mv "build-test/$1.new" "build-test/$1" ||
        echo "setup.sh: no $1: $2 skipped" >&2
}

install_wheels() {
    if [ "$tests" -eq 0 ]; then return 0; fi
    nvrtc_there || install_wheel nvrtc "tests that compile kernels for devices are"
    nvdisasm_there || install_wheel nvdisasm "the count of instructions on devices is"
}

if [ -z "$missing" ]; then install_wheels; exit 0; fi

if ! command_of apt-get; then
    echo "setup.sh: missing, and there is no apt-get to install it (Debian's names):$missing" >&2
    exit 1
fi
options="-y --no-install-recommends -o DPkg::Lock::Timeout=300"
if [ "$(id -u)" -eq 0 ]; then
    as_root=
elif command_of sudo && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    echo "setup.sh: this needs root. Run, then start again:" >&2
    echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends$missing" >&2
    exit 1
fi

echo "Installing:$missing" >&2
DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND
# Word splitting is meant: lists of options and packages.
$as_root apt-get update -q >&2
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install $options $missing >&2
install_wheels
