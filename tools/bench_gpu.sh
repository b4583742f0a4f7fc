#!/bin/sh
# bench_gpu.sh -- everything that is to be known of a machine's CUDA device, in one go, as one JSON.
#
#     sh tools/bench_gpu.sh [--quick] [BUILD [FILE]]
#
# Needs a built tree (BUILD, else build) and nothing else.  Runs the tests of caches, files, models
# and attention on the device, attention of each codec against an f16 cache and a copy of device
# memory, the same of PyTorch where it is installed, and first use and warm start; writes FILE
# (bench_gpu.json).  Each step has a time limit, together less than 10 minutes.  Status 1 if a step
# failed; the others are still done.  --quick leaves the tests out and measures one small shape: it
# shows that everything works.
set -u

cd "$(dirname "$0")/.." || exit 1
quick=
case ${1:-} in
--help | -h) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
--quick) quick=1; shift ;;
-*) echo "bench_gpu.sh: $1: an unknown option; --help tells more" >&2; exit 2 ;;
esac
if [ $# -gt 2 ]; then
    echo "bench_gpu.sh: $3: a word too many; --help tells more" >&2
    exit 2
fi
build=${1:-build}
out=${2:-bench_gpu.json}
for program in kvloom-bench-gpu kvloom-bench; do
    if [ ! -x "$build/bin/$program" ]; then
        echo "bench_gpu.sh: $build/bin/$program is not there: build the tree first" >&2
        exit 1
    fi
done
if ! : >>"$out"; then
    echo "bench_gpu.sh: $out cannot be written" >&2
    exit 1
fi
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
    if [ -n "$quick" ]; then
        result=skipped
    elif [ -x "$build/tests/$1" ]; then
        echo "== $1 on the device"
        result=passed
        KVLOOM_TEST_GPU=1 KVLOOM_TEST_TARGET=cuda timeout "$2" "$build/tests/$1" --tap=- \
            --short-filename -j1 >"$work/log" 2>&1 || result=failed
        grep '^not ok' "$work/log"
        if [ "$result" = failed ]; then status=1; fi
    fi
    echo "    \"$1\": \"$result\"," >>"$work/tests"
}

# measure NAME SECONDS COMMAND: runs a command that writes $work/NAME.json.
measure() {
    name=$1 seconds=$2
    shift 2
    echo "== $name"
    if ! timeout "$seconds" "$@" --json "$work/$name.json"; then
        echo "bench_gpu.sh: $name failed" >&2
        echo null >"$work/$name.json"
        status=1
    fi
}

rows="4096 32768 131072" shape=
startup="--cache f16 --cache kivi:k2,v2,g32"
if [ -n "$quick" ]; then
    rows=300 startup="--cache f16 --head-dim 32 --q-heads 1 --kv-heads 1"
    shape="--q-heads 2 --kv-heads 1 --head-dim 64 --repeats 1 --copy-bytes 65536"
fi
rows_of() { for n in $rows; do printf -- ' --rows %s' "$n"; done; }

: >"$work/tests"
test_on_device test_cuda 110
test_on_device test_cuda_model 50
test_on_device test_file 40
test_on_device test_tensor 90
test_on_device test_attend 30
measure attention 160 "$build/bin/kvloom-bench-gpu" $(rows_of) $shape
if command -v python3 >/dev/null 2>&1; then
    measure library 40 python3 tools/bench_library.py $rows
else
    echo null >"$work/library.json"
fi
measure startup 70 "$build/bin/kvloom-bench" --startup --target cuda $startup
{
    echo "{"
    echo "  \"tests\": {"
    cat "$work/tests"
    echo "    \"device\": \"$(nvidia-smi -L 2>/dev/null | head -n 1 | tr -d '"\\')\""
    echo "  },"
    echo "  \"attention\":"
    cat "$work/attention.json"
    echo "  , \"library\":"
    cat "$work/library.json"
    echo "  , \"startup\":"
    cat "$work/startup.json"
    echo "}"
} >"$out" || exit 1
echo "== written: $out"
exit "$status"
