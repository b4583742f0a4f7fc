#!/bin/sh
# demo.sh -- a real model decodes on an f16 cache and on a 2.5-bit cache; both texts and a table.
#
#     sh tools/demo.sh [SPEC]
#
# Installs what is missing, builds build/bin/decode, fetches SmolLM2-135M once, decodes greedily
# twice.  SPEC is the second run's cache, kivi:k2,v2,g32,sink=4,recent=128 if none is given.  Then
# the second cache follows the first text, to count the tokens at which both choose the same.
set -eu

cd "$(dirname "$0")/.."
case ${1:-} in
--help | -h) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
spec=${1:-kivi:k2,v2,g32,sink=4,recent=128}
jobs=$(nproc 2>/dev/null || echo 2)

sh tools/setup.sh --model

echo "Building ..." >&2
mkdir -p build
if ! cmake -S . -B build -DCMAKE_BUILD_TYPE=Release >build/demo.log 2>&1 ||
    ! cmake --build build --parallel "$jobs" --target decode >>build/demo.log 2>&1; then
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

# A spec that cannot be parsed is refused before anything is decoded.
if ! build/bin/decode -m "$model" -p x -n 1 --cache "$spec" >/dev/null 2>"$work/messages"; then
    cat "$work/messages" >&2
    exit 1
fi

# decode_with SPEC FILE OPTIONS: the text goes to stdout, the figures to the file.
decode_with() {
    decode_spec=$1 decode_json=$2
    shift 2
    if ! build/bin/decode -m "$model" -p "$prompt" --chat -n 300 -c 1024 -t "$jobs" --temp 0 \
        --cache "$decode_spec" --json "$decode_json" "$@" 2>"$work/messages"; then
        cat "$work/messages" >&2
        echo "demo.sh: decode failed" >&2
        exit 1
    fi
}

printf '\n---- f16\n\n'
decode_with f16 "$work/plain.json"
printf '\n\n---- %s\n\n' "$spec"
decode_with "$spec" "$work/packed.json"
printf '\n\n'
decode_with "$spec" "$work/followed.json" --follow "$work/plain.json" >/dev/null
lua5.4 tools/demo_table.lua "$work/plain.json" "$work/packed.json" "$work/followed.json"
