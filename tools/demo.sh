#!/bin/sh
# demo.sh -- a real model decodes on an f16 cache and on smaller ones; the texts and a table.
#
#     sh tools/demo.sh [SPEC ...]
#
# Installs what is missing, builds build/bin/decode and build/bin/kvloom-calibrate, fetches
# SmolLM2-135M once, decodes greedily with f16 and with each SPEC (q4_0, KIVI and loom, both with
# 2 bits, if none is given).  Then each cache follows the text of f16, to count the tokens at which
# both choose the same.  What loom needs to know of the model comes from the project's own pages.
set -eu

cd "$(dirname "$0")/.."
case ${1:-} in
--help | -h) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
[ $# -gt 0 ] || set -- q4_0 kivi:k2,v2,g32,sink=4,recent=128 loom
jobs=$(nproc 2>/dev/null || echo 2)

sh tools/setup.sh --model

echo "Building ..." >&2
mkdir -p build
if ! cmake -S . -B build -DCMAKE_BUILD_TYPE=Release >build/demo.log 2>&1 ||
    ! cmake --build build --parallel "$jobs" --target decode kvloom-calibrate \
        >>build/demo.log 2>&1; then
    tail -n 40 build/demo.log >&2
    echo "demo.sh: the build failed; all of its output is in build/demo.log" >&2
    exit 1
fi

model=$(sh tools/fetch_model.sh smollm2)
work=$(mktemp -d "${TMPDIR:-/tmp}/kvloom-demo.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

prompt="Write a short story about an old lighthouse keeper, his cat, and the night of the great"
prompt="$prompt storm."

# fail WHAT: with what the program has said.
fail() {
    cat "$work/messages" >&2
    echo "demo.sh: $1" >&2
    exit 1
}

# A spec that cannot be parsed is refused before anything is decoded.
calibration= calibrated=
for spec; do
    if build/bin/decode -m "$model" -p x -n 1 --cache "$spec" >/dev/null 2>"$work/messages"; then
        continue
    fi
    grep -q "kvloom-calibrate" "$work/messages" || fail "$spec: cannot be had"
    calibrated="$calibrated --for $spec"
done
if [ -n "$calibrated" ]; then
    calibration=build/demo.safetensors
    cat README.md docs/*.md >"$work/pages"
    echo "Calibrating ..." >&2
    build/bin/kvloom-calibrate -m "$model" -f "$work/pages" -o "$calibration" -c 1024 \
        --windows 4 $calibrated 2>"$work/messages" || fail "the calibration failed"
fi

# decode_with SPEC FILE OPTIONS: the text goes to stdout, the figures to the file.
decode_with() {
    decode_spec=$1 decode_json=$2
    shift 2
    build/bin/decode -m "$model" -p "$prompt" --chat -n 300 -c 1024 -t "$jobs" --temp 0 \
        --cache "$decode_spec" --json "$decode_json" ${calibration:+--calibration "$calibration"} \
        "$@" 2>"$work/messages" || fail "decode failed"
}

printf '\n---- f16\n\n'
decode_with f16 "$work/plain.json"
number=0 files=
for spec; do
    number=$((number + 1))
    printf '\n\n---- %s\n\n' "$spec"
    decode_with "$spec" "$work/$number.json"
    decode_with "$spec" "$work/$number-followed.json" --follow "$work/plain.json" >/dev/null
    files="$files $work/$number.json $work/$number-followed.json"
done
printf '\n\n'
lua5.4 tools/demo_table.lua "$work/plain.json" $files
