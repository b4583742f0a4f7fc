#!/bin/sh
# bench_gpu.sh -- everything that is to be known of a machine's CUDA device, in one go, as one JSON.
#
#     sh tools/bench_gpu.sh [BUILD [FILE]]
#
# Needs a built tree (BUILD, else build) and nothing else.  Runs the tests of caches and models on
# the device, attention of each codec against an f16 cache and a copy of device memory, and first
# use and warm start; writes FILE (bench_gpu.json).  Each step has a time limit, together less than
# 8 minutes.  Status 1 if a step failed; the others are still done.
set -u

cd "$(dirname "$0")/.." || exit 1
case ${1:-} in --help | -h) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
build=${1:-build}
out=${2:-bench_gpu.json}
for program in kvloom-bench-gpu kvloom-bench; do
    if [ ! -x "$build/bin/$program" ]; then
        echo "bench_gpu.sh: $build/bin/$program is not there: build the tree first" >&2
        exit 1
    fi
done
work=$(mktemp -d "${TMPDIR:-/tmp}/kvloom-bench-gpu.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
KVLOOM_CACHE_DIR=$work/kernels
export KVLOOM_CACHE_DIR
status=0

# test_on_device NAME SECONDS: runs a test program on the device; adds its result to $work/tests.
test_on_device() {
    result=missing
    if [ -x "$build/tests/$1" ]; then
        echo "== $1 on the device"
        result=passed
        KVLOOM_TEST_GPU=1 timeout "$2" "$build/tests/$1" --tap=- --short-filename -j1 \
            >"$work/log" 2>&1 || result=failed
        grep '^not ok' "$work/log"
        if [ "$result" = failed ]; then status=1; fi
    fi
    echo "    \"$1\": \"$result\"," >>"$work/tests"
}

# measure NAME SECONDS PROGRAM ARGS: runs a program that writes $work/NAME.json.
measure() {
    name=$1 seconds=$2
    shift 2
    echo "== $name"
    if ! timeout "$seconds" "$build/bin/$@" --json "$work/$name.json"; then
        echo "bench_gpu.sh: $name failed" >&2
        echo null >"$work/$name.json"
        status=1
    fi
}

: >"$work/tests"
test_on_device test_cuda 120
test_on_device test_cuda_model 60
measure attention 200 kvloom-bench-gpu
measure startup 90 kvloom-bench --startup --target cuda --cache f16 --cache kivi:k2,v2,g32
{
    echo "{"
    echo "  \"tests\": {"
    cat "$work/tests"
    echo "    \"device\": \"$(nvidia-smi -L 2>/dev/null | head -n 1 | tr -d '"\\')\""
    echo "  },"
    echo "  \"attention\":"
    cat "$work/attention.json"
    echo "  , \"startup\":"
    cat "$work/startup.json"
    echo "}"
} >"$out" || exit 1
echo "== written: $out"
exit "$status"
