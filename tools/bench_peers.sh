#!/bin/sh
# bench_peers.sh -- decode attention of ggml, and tokens/s of llama.cpp, beside kvloom's.
#
#     sh tools/bench_peers.sh [--quick] [--model FILE] [--llama VENV] [BUILD]
#
# Needs a built tree (BUILD, else build), Python 3 with venv, a C++ compiler and a network: builds
# the PyPI source package llama-cpp-python in a scratch folder, which is removed at the end.
# --llama takes a Python environment that has it already.  Measures kvloom's attention beside
# its own f16 cache and memory; ggml's flash attention over f16 and q4_0, one query row, all
# heads; and with --model (a GGUF file of SmolLM2-135M) tokens/s of both after the same number
# of tokens.  Prints tables of times and ratios, as docs/benchmarks.md has them.  --quick
# measures short lengths: it shows that everything works.
set -u

cd "$(dirname "$0")/.." || exit 1
quick= model= llama= build=
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --quick) quick=--quick; shift ;;
    --model | --llama)
        if [ $# -lt 2 ]; then echo "bench_peers.sh: $1 lacks its value" >&2; exit 2; fi
        if [ "$1" = --model ]; then model=$2; else llama=$2; fi
        shift 2 ;;
    -*) echo "bench_peers.sh: $1: an unknown option; --help tells more" >&2; exit 2 ;;
    *)
        if [ -n "$build" ]; then
            echo "bench_peers.sh: $1: a word too many; --help tells more" >&2
            exit 2
        fi
        build=$1; shift ;;
    esac
done
build=${build:-build}
for program in kvloom-bench decode; do
    if [ ! -x "$build/bin/$program" ]; then
        echo "bench_peers.sh: $build/bin/$program is not there: build the tree first" >&2
        exit 1
    fi
done
if [ -n "$model" ] && [ ! -r "$model" ]; then
    echo "bench_peers.sh: --model $model: cannot be read" >&2
    exit 1
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/kvloom-bench-peers.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
KVLOOM_CACHE_DIR=$work/kernels
export KVLOOM_CACHE_DIR

if [ -z "$llama" ]; then
    llama=$work/venv
    echo "building llama-cpp-python from its source package: some minutes" >&2
    python3 -m venv "$llama" &&
        "$llama/bin/pip" -q install --no-cache-dir --no-binary llama-cpp-python llama-cpp-python \
            >"$work/log" 2>&1
    if [ $? -ne 0 ]; then
        tail -n 20 "$work/log" >&2
        echo "bench_peers.sh: llama-cpp-python could not be built" >&2
        exit 1
    fi
fi
if [ ! -x "$llama/bin/python" ]; then
    echo "bench_peers.sh: --llama $llama: no Python environment" >&2
    exit 1
fi
"$llama/bin/python" tools/bench_peers.py --bin "$build/bin" --work "$work" $quick \
    ${model:+--model "$model"}
