#!/bin/sh
# accuracy.sh -- the table of all presets on a model and a text; writes docs/accuracy.md.
#
#     sh tools/accuracy.sh MODEL.gguf TEXT [OUT [CALIBRATION_TEXT]]
#
# OUT: docs/accuracy.md if none is given.  With a second text, which must not be the first, the
# calibrated caches are measured as well, calibrated on KVLOOM_ACCURACY_CALIBRATION_WINDOWS (4)
# windows of it; build/accuracy.safetensors (KVLOOM_ACCURACY_CALIBRATION) keeps what that gives.
# Of them, KVLOOM_ACCURACY_PARTS ("presets choices scores queries") are measured: the calibrated
# presets; choices of rotations beside none; the scores of a choice; the number of queries.
# KVLOOM_ACCURACY_WINDOWS (16), KVLOOM_ACCURACY_CONTEXT (2048) and KVLOOM_ACCURACY_SKIP (256) set
# the size.  Finished windows are kept in build/accuracy.jsonl (KVLOOM_ACCURACY_RESUME): a run that
# was interrupted goes on there, and a run of another size, model or text needs another file.
# build/bin/kvloom-eval must be there, for the second text kvloom-calibrate too; KVLOOM_EVAL and
# KVLOOM_CALIBRATE name others.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
case ${1:-} in
--help | -h) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
if [ $# -lt 2 ] || [ $# -gt 4 ]; then
    echo "usage: accuracy.sh MODEL.gguf TEXT [OUT [CALIBRATION_TEXT]]" >&2
    exit 2
fi
model=$1 text=$2 out=${3:-$root/docs/accuracy.md} calibration_text=${4:-}
if [ -n "$calibration_text" ] && cmp -s "$text" "$calibration_text"; then
    echo "accuracy.sh: $calibration_text: is the text that is measured on" >&2
    exit 2
fi
calibrate_program=${KVLOOM_CALIBRATE:-$root/build/bin/kvloom-calibrate}
calibration=${KVLOOM_ACCURACY_CALIBRATION:-$root/build/accuracy.safetensors}
calibration_windows=${KVLOOM_ACCURACY_CALIBRATION_WINDOWS:-4}
eval_program=${KVLOOM_EVAL:-$root/build/bin/kvloom-eval}
windows=${KVLOOM_ACCURACY_WINDOWS:-16}
context=${KVLOOM_ACCURACY_CONTEXT:-2048}
skip=${KVLOOM_ACCURACY_SKIP:-256}
parts=${KVLOOM_ACCURACY_PARTS:-presets choices scores queries}
for part in $parts; do
    case $part in
    presets | choices | scores | queries) ;;
    *)
        echo "accuracy.sh: KVLOOM_ACCURACY_PARTS: $part is none of presets, choices, scores," \
            "queries" >&2
        exit 2
        ;;
    esac
done
size="KVLOOM_ACCURACY_WINDOWS=$windows KVLOOM_ACCURACY_CONTEXT=$context"
size="$size KVLOOM_ACCURACY_SKIP=$skip"
resume=${KVLOOM_ACCURACY_RESUME:-$root/build/accuracy.jsonl}
mkdir -p "$(dirname "$resume")"
work=$(mktemp -d "${TMPDIR:-/tmp}/kvloom-accuracy.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The caches that need no calibration, without windows.
uncalibrated='f16 bf16 q8_0 q4_0'
for bits in 2 3 4; do
    for preset in rtn kivi; do
        uncalibrated="$uncalibrated $preset:k$bits,v$bits $preset:k$bits,v$bits,meta=f16"
    done
    uncalibrated="$uncalibrated kivi:k$bits,v$bits,k.transform=hadamard"
done
uncalibrated="$uncalibrated q4_0:transform=hadamard"

# spec CACHE ADDED: both in one spec.
spec() {
    case $1 in
    *:*) echo "$1,$2" ;;
    *) echo "$1:$2" ;;
    esac
}

# measure NAME WINDOWS_OF_CACHES CACHES [OPTION ...]: one run of these caches with these windows:
# $work/NAME.md has its table, without the last column (speed is the machine's), and
# $work/NAME.json its results.
measure() {
    name=$1 added=$2 caches=$3
    shift 3
    for cache in $caches; do set -- "$@" --cache "$(spec "$cache" "$added")"; done
    "$eval_program" -m "$model" -f "$text" -c "$context" --windows "$windows" --skip "$skip" \
        --markdown --json "$work/$name.json" "$@" >"$work/table"
    sed 's/|[^|]*|$/|/' "$work/table" >"$work/$name.md"
}

measure with sink=4,recent=128 "$uncalibrated" --resume "$resume"
measure without sink=0,recent=0 "$uncalibrated" --resume "$resume"

# The calibrated caches by parts, each beside what it is compared with.
presets='quarot quest oscar_v1 oscar wush wush_a flagrot-kivi flagrot-auto loom loom:g64'
presets="$presets kivi:k2,v2,fit=search kivi:k2,v2,round=trellis"
presets="$presets kivi:k2,v2,meta=e4m3,fit=search,round=feedback2"
presets="$presets loom:meta=e4m3 loom:b3,meta=e4m3 loom:b4,meta=e4m3"
presets="$presets loom:meta=e4m3,round=feedback_trellis loom:g64,round=feedback_trellis"
# Bits of layers are chosen for one sink and one recent window, in minutes: for these alone.
sizes='loom:2.125 loom:2.25 loom:2.5 loom:3.25 loom:4.25'
choices=''
for bits in 2 3 4; do
    choices="$choices kivi:k$bits,v$bits kivi:k$bits,v$bits,k.transform=hadamard"
    choices="$choices flagrot-kivi:k$bits,v$bits flagrot-kivi:k$bits,v$bits,k.choose=fixed"
    choices="$choices rtn:k$bits,v$bits rtn:k$bits,v$bits,k.shift=mean"
    choices="$choices flagrot-auto:k$bits,v$bits flagrot-auto:k$bits,v$bits,k.choose=fixed"
done
scores='kivi:k2,v2,meta=f16'
for score in reconstruction channel attention; do
    scores="$scores flagrot-kivi:k2,v2,meta=f16,k.score=$score"
done
queries=''
for count in 16 32 64 128 256; do
    queries="$queries flagrot-kivi:k2,v2,k.score=attention$count"
done

# caches_of PART: its caches.
caches_of() {
    case $1 in
    presets) echo "$presets $sizes" ;;
    choices) echo "$choices" ;;
    scores) echo "$scores" ;;
    queries) echo "$queries" ;;
    esac
}

if [ -n "$calibration_text" ]; then
    set --
    for part in $parts; do
        for cache in $(caches_of "$part"); do
            set -- "$@" --for "$(spec "$cache" sink=4,recent=128)"
        done
    done
    "$calibrate_program" -m "$model" -f "$calibration_text" -o "$calibration" -c "$context" \
        --windows "$calibration_windows" --queries 256 --resume "$@"
    set -- --resume "${resume%.jsonl}-calibrated.jsonl" --calibration "$calibration"
    for part in $parts; do
        case $part in
        presets)
            measure presets sink=4,recent=128 "$presets $sizes" "$@"
            measure presets-without sink=0,recent=0 "$presets" "$@"
            ;;
        *) measure "$part" sink=4,recent=128 "$(caches_of "$part")" "$@" --choices ;;
        esac
    done
    size="$size KVLOOM_ACCURACY_CALIBRATION_WINDOWS=$calibration_windows"
    size="$size KVLOOM_ACCURACY_PARTS='$parts'"
fi

# section PART TITLE: the table of a part that was measured.
section() {
    if [ -e "$work/$1.md" ]; then
        printf '\n### %s\n\n' "$2"
        cat "$work/$1.md"
    fi
}

# field NAME: a string or a number at the top level of the results.
field() {
    sed -n "s/^[[:space:]]*\"$1\":[[:space:]]*\"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" \
        "$work/with.json" | head -n 1
}

{
    cat <<END
# Accuracy of the caches

What each cache costs against a full-precision one, on the same windows of text. This file is
written by \`sh tools/accuracy.sh MODEL TEXT\`; below are the figures of one run.

| | |
| --- | --- |
| model | $(basename "$model"): $(field model_name), $(field num_layers) layers |
| text | $(basename "$text"), SHA-256 $(field text_sha256) |
| size | $(field windows) windows of $(field context) tokens, positions from $(field skip) on |
| program | kvloom $(field version), target $(field target), $(field threads) threads |
| command | \`$size sh tools/accuracy.sh MODEL TEXT${calibration_text:+ OUT OTHER_TEXT}\` |

## The first 4 and the newest 128 tokens in 16 bits (\`sink=4,recent=128\`)

END
    cat "$work/with.md"
    cat <<'END'

## Every row in codes as soon as its group is complete (`sink=0,recent=0`)

END
    cat "$work/without.md"
    if [ -n "$calibration_text" ]; then
        cat <<END

## Calibrated caches

Calibrated on $calibration_windows windows of $context tokens of $(basename "$calibration_text").
The first 4 and the newest 128 tokens are in 16 bits, but where it says otherwise.
END
        section presets 'Bases, fits and rounding'
        section presets-without 'The same with every row in codes (`sink=0,recent=0`)'
        section choices 'Choices of rotations, and which they were'
        section scores 'By the score of the choice, with 16-bit scales (3.0 bits)'
        section queries 'By the number of calibration queries'
    fi
    cat "$root/tools/accuracy_notes.md"
} >"$work/out.md"
cp "$work/out.md" "$out"
echo "accuracy.sh: wrote $out" >&2
