#!/bin/sh
# fuzz.sh -- run the fuzzers for a while, from their corpus on.
#
#     sh tools/fuzz.sh [--seconds N] [--keep]
#
# Builds with clang, libFuzzer and the address and undefined-behaviour sanitizers in
# build-test/fuzz, and runs each of the two for half of N seconds (600).  What harms is left in
# build-test/fuzz as crash-*; status 1 then.  --keep: inputs that reach something new are added to
# tests/fuzz/corpus, as few as reach all of it.
set -eu

cd "$(dirname "$0")/.."
seconds=600
keep=0
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) shift; seconds=${1:?--seconds needs a number} ;;
    --keep) keep=1 ;;
    --help | -h) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "fuzz.sh: unknown option $1" >&2; exit 2 ;;
    esac
    shift
done

build=build-test/fuzz
cmake -S . -B "$build" -DCMAKE_C_COMPILER=clang -DKVLOOM_WERROR=ON -DKVLOOM_FUZZ=ON \
    -DKVLOOM_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=Debug '-DCMAKE_C_FLAGS_DEBUG=-O1 -g' \
    >/dev/null
cmake --build "$build" --parallel 2 --target fuzz_load fuzz_operations >/dev/null

ASAN_OPTIONS=detect_leaks=1:abort_on_error=1:allocator_may_return_null=1
UBSAN_OPTIONS=print_stacktrace=1
export ASAN_OPTIONS UBSAN_OPTIONS
failed=0
for name in load operations; do
    corpus=tests/fuzz/corpus/$name
    length=8192
    if [ "$name" = operations ]; then length=400; fi
    mkdir -p "$build/found-$name"
    echo "== fuzz_$name: $((seconds / 2)) seconds"
    if ! "$build/bin/fuzz_$name" -max_total_time=$((seconds / 2)) -max_len=$length \
        -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 "-artifact_prefix=$build/" \
        "$build/found-$name" "$corpus"; then
        failed=1
    elif [ "$keep" -eq 1 ]; then
        mkdir -p "$build/merged-$name"
        "$build/bin/fuzz_$name" -merge=1 -max_len=$length -verbosity=0 "$build/merged-$name" \
            "$corpus" "$build/found-$name"
        rm -f "$corpus"/*
        cp "$build/merged-$name"/* "$corpus"
        rm -rf "$build/merged-$name"
    fi
done
exit $failed
