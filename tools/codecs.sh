#!/bin/sh
# codecs.sh -- times every codec and writes docs/codecs.md.
#
#     sh tools/codecs.sh [ACCURACY.md]
#
# ACCURACY.md: what tools/accuracy.sh wrote, docs/accuracy.md if none is given; its tables have the
# figures of accuracy.  Codecs are timed by kvloom-bench, those that need a calibration with one of
# random rows, at the shape of KVLOOM_CODECS_SHAPE ("--head-dim 64 --kv-heads 3 --q-heads 9 --rows
# 4096").  KVLOOM_CODECS_BIN (build/bin) has the program, KVLOOM_CODECS_OUT (docs/codecs.md) is the
# page.  Matrices that are searched for cannot be made of random rows: such codecs are not timed.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
case ${1:-} in
--help | -h) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
if [ $# -gt 1 ]; then
    echo "usage: codecs.sh [ACCURACY.md]" >&2
    exit 2
fi
accuracy=${1:-$root/docs/accuracy.md}
bin=${KVLOOM_CODECS_BIN:-$root/build/bin}
out=${KVLOOM_CODECS_OUT:-$root/docs/codecs.md}
shape=${KVLOOM_CODECS_SHAPE:---head-dim 64 --kv-heads 3 --q-heads 9 --rows 4096}
work=$(mktemp -d "${TMPDIR:-/tmp}/kvloom-codecs.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
cd "$root"

set --
for cache in $(lua5.4 tools/codec_page.lua --list nothing) \
    $(lua5.4 tools/codec_page.lua --list calibration); do
    set -- "$@" --cache "$cache"
done
"$bin/kvloom-bench" $shape --json "$work/bench.json" "$@"
lua5.4 tools/codec_page.lua "$accuracy" "$work/bench.json" >"$work/page.md"
cp "$work/page.md" "$out"
echo "codecs.sh: wrote $out" >&2
