#!/bin/sh
# test.sh -- install what is missing, build, and run every test.
#
#     sh tools/test.sh [--quick | --long] [--jobs N]
#
# Builds with gcc, with clang, under the address and undefined-behaviour sanitizers and under the
# thread sanitizer (tests of threads), all with warnings as errors, in build-test/.  The single
# header, whose text is the tree's, is tested with the first compiler and compiled by each.
# --quick: one build with the first compiler.  --long: afterwards 100000 random operations on
# sequences under the address sanitizer, and 10 minutes of fuzzers (tools/fuzz.sh).  Tests that need
# a model are skipped unless KVLOOM_TEST_MODEL_SMOLLM2 and KVLOOM_TEST_MODEL_GEMMA3 name one.  The
# user's kernel cache is not touched.  The last line is "N passed, N failed, N skipped"; status 1
# if a test or a build failed.
set -eu

cd "$(dirname "$0")/.."
quick=0
long=0
jobs=$(nproc 2>/dev/null || echo 2)
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1 ;;
    --long) long=1 ;;
    --jobs) shift; jobs=${1:?--jobs needs a number} ;;
    --help | -h) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "test.sh: unknown option $1" >&2; exit 2 ;;
    esac
    shift
done
if [ "$quick" -eq 1 ] && [ "$long" -eq 1 ]; then
    echo "test.sh: --quick, --long: one of them at a time" >&2
    exit 2
fi

sh tools/setup.sh --tests

mkdir -p build-test
if [ -z "${KVLOOM_NVRTC:-}" ] && [ -d build-test/nvrtc ]; then
    KVLOOM_NVRTC=$PWD/build-test/nvrtc
    export KVLOOM_NVRTC
fi
scratch=$(mktemp -d "${TMPDIR:-/tmp}/kvloom-test.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# Kernels are made once for all builds: about 1 GB with their texts.
KVLOOM_CACHE_DIR=$scratch/kernels
KVLOOM_CACHE_MAX_MB=4096
export KVLOOM_CACHE_DIR KVLOOM_CACHE_MAX_MB

passed=0
failed=0
skipped=0

# Adds the tests of one ctest log: TAP lines where a test prints them, else the test as one.
count() {
    totals=$(awk '
        /^[0-9]+\/[0-9]+ Testing: /       { p = f = s = 0 }
        /^ok .*# SKIP/                    { s++; next }
        /^ok /                            { p++ }
        /^not ok /                        { f++ }
        /^Test (Pass|Fail|Skip)ed\.|^Test timeout|^Unable to find executable/ {
            good = /Passed|Skipped/
            if (good && p + f + s == 0) { if (/Skipped/) s = 1; else p = 1 }
            if (!good && f == 0) f = 1
            P += p; F += f; S += s; p = f = s = 0
        }
        END { print P + 0, F + 0, S + 0 }' "$1")
    set -- $totals
    passed=$((passed + $1))
    failed=$((failed + $2))
    skipped=$((skipped + $3))
}

# run_build NAME CTEST_OPTIONS -- CMAKE_OPTIONS: configures, builds and tests build-test/NAME.
run_build() {
    name=$1 build=build-test/$1
    shift
    filter=
    while [ "$1" != -- ]; do filter="$filter $1"; shift; done
    shift
    echo "== $name: building"
    if ! cmake -S . -B "$build" -DKVLOOM_WERROR=ON "$@" >"$scratch/$name.log" 2>&1 ||
        ! cmake --build "$build" --parallel "$jobs" >>"$scratch/$name.log" 2>&1; then
        grep -E -A 8 '(error|Error|failed)' "$scratch/$name.log" | head -n 60 ||
            tail -n 40 "$scratch/$name.log"
        echo "== $name: the build failed"
        failed=$((failed + 1))
        return 0
    fi
    grep -E 'Warning' -A 3 "$scratch/$name.log" || true
    echo "== $name: testing"
    rm -f "$build/Testing/Temporary/LastTest.log"
    ctest --test-dir "$build" --parallel "$jobs" --output-on-failure $filter || true
    if [ -f "$build/Testing/Temporary/LastTest.log" ]; then
        count "$build/Testing/Temporary/LastTest.log"
    else
        echo "== $name: no test ran"
        failed=$((failed + 1))
    fi
}

release=-DCMAKE_BUILD_TYPE=Release
if command -v gcc >/dev/null 2>&1; then first=gcc; else first=clang; fi

run_build "$first" -- -DCMAKE_C_COMPILER=$first $release
if [ "$quick" -eq 0 ]; then
    if [ "$first" = gcc ] && command -v clang >/dev/null 2>&1; then
        run_build clang -LE 'compilers|lint|device' -- -DCMAKE_C_COMPILER=clang $release \
            -DKVLOOM_TEST_SINGLE=OFF
    else
        echo "== clang: there is none, skipped"
        skipped=$((skipped + 1))
    fi
    ASAN_OPTIONS=detect_leaks=1:abort_on_error=1:allocator_may_return_null=1
    UBSAN_OPTIONS=print_stacktrace=1
    TSAN_OPTIONS=halt_on_error=1
    export ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS
    run_build asan -LE 'compilers|lint' -- -DCMAKE_C_COMPILER=$first \
        -DKVLOOM_TEST_SINGLE=OFF -DKVLOOM_SANITIZE=address,undefined \
        -DCMAKE_BUILD_TYPE=Debug '-DCMAKE_C_FLAGS_DEBUG=-O1 -g'
    run_build tsan -- -DCMAKE_C_COMPILER=$first -DKVLOOM_PROGRAMS=OFF \
        -DKVLOOM_SANITIZE=thread -DCMAKE_BUILD_TYPE=Debug '-DCMAKE_C_FLAGS_DEBUG=-O1 -g'
fi

# run_long NAME COMMAND...: counts as one test.
run_long() {
    echo "== long: $1"
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

if [ "$long" -eq 1 ]; then
    KVLOOM_TEST_STEPS=100000
    export KVLOOM_TEST_STEPS
    run_long "random operations" build-test/asan/tests/test_sequence --short-filename -j1
    if command -v clang >/dev/null 2>&1; then run_long fuzzers sh tools/fuzz.sh; fi
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
