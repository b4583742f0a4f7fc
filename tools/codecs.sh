#!/bin/sh
# codecs.sh -- measures every codec and writes docs/codecs.md.
#
#     sh tools/codecs.sh MODEL.gguf TEXT [CALIBRATION_TEXT]
#
# Each codec of gen/codecs/ is measured twice, with the first 4 and the newest 128 rows in 16 bits
# and with the windows of its own, and timed.  Without the second text, which must not be the first,
# those that need a calibration have no figures.  KVLOOM_CODECS_WINDOWS (16), KVLOOM_CODECS_CONTEXT
# (2048) and KVLOOM_CODECS_SKIP (256) set the size, KVLOOM_CODECS_BIN (build/bin) the programs,
# KVLOOM_CODECS_OUT (docs/codecs.md) the page.  build/codecs/ keeps what is finished: a run that was
# interrupted goes on there.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
case ${1:-} in
--help | -h) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
if [ $# -lt 2 ] || [ $# -gt 3 ]; then
    echo "usage: codecs.sh MODEL.gguf TEXT [CALIBRATION_TEXT]" >&2
    exit 2
fi
model=$1 text=$2 calibration_text=${3:-}
bin=${KVLOOM_CODECS_BIN:-$root/build/bin}
out=${KVLOOM_CODECS_OUT:-$root/docs/codecs.md}
work=${KVLOOM_CODECS_WORK:-$root/build/codecs}
windows=${KVLOOM_CODECS_WINDOWS:-16}
context=${KVLOOM_CODECS_CONTEXT:-2048}
skip=${KVLOOM_CODECS_SKIP:-256}
mkdir -p "$work"
cd "$root"

# codecs NEED: the codecs of a need: nothing, calibration, matrices, or all.
codecs() { lua5.4 tools/codec_page.lua --list "$1"; }

# measure NAME WINDOWS_OF_CACHES CACHES [OPTION ...]
measure() {
    name=$1 added=$2 caches=$3
    shift 3
    for cache in $caches; do set -- "$@" --cache "$cache$added"; done
    "$bin/kvloom-eval" -m "$model" -f "$text" -c "$context" --windows "$windows" --skip "$skip" \
        --resume "$work/$name.jsonl" --json "$work/$name.json" "$@"
}

# both NAME CACHES [OPTION ...]
both() {
    name=$1 caches=$2
    shift 2
    measure "$name" "" "$caches" "$@"
    measure "$name-common" ":sink=4,recent=128" "$caches" "$@"
}

# calibrate NAME CACHES [OPTION ...]
calibrate() {
    name=$1 caches=$2
    shift 2
    for cache in $caches; do set -- "$@" --for "$cache"; done
    "$bin/kvloom-calibrate" -m "$model" -f "$calibration_text" -o "$work/$name.safetensors" \
        -c "$context" --resume "$@"
}

both plain "$(codecs nothing)"
if [ -n "$calibration_text" ]; then
    calibrate calibrated "$(codecs calibration)" --queries 256
    both calibrated "$(codecs calibration)" --calibration "$work/calibrated.safetensors"
    for kind in rotation affine; do
        case $kind in rotation) cache=spinquant ;; affine) cache=flatquant ;; esac
        calibrate "$kind" "$cache" --learn "$kind"
        both "$kind" "$cache" --calibration "$work/$kind.safetensors"
    done
fi
set --
for cache in $(codecs nothing); do set -- "$@" --cache "$cache"; done
"$bin/kvloom-bench" --rows 4096 --json "$work/bench.json" "$@"
lua5.4 tools/codec_page.lua "$work"/*.json >"$work/page.md"
mv "$work/page.md" "$out"
