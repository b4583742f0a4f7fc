#!/bin/sh
# accuracy.sh -- the table of all presets on a model and a text; writes docs/accuracy.md.
#
#     sh tools/accuracy.sh MODEL.gguf TEXT [OUT [CALIBRATION_TEXT]]
#
# OUT: docs/accuracy.md if none is given.  With a second text, which must not be the first, the
# calibrated caches are measured as well, calibrated on KVLOOM_ACCURACY_CALIBRATION_WINDOWS (4)
# windows of it; build/accuracy.safetensors (KVLOOM_ACCURACY_CALIBRATION) keeps what that gives.
# KVLOOM_ACCURACY_PARTS names what is measured, by default all: presets; bare (the same without
# windows); own (codecs with windows of their own); bits (2, 3 and 4, with metadata of 8 and 16
# bits); and with a calibration rounding (fits and rounding), rotation and affine (learned
# matrices), choices (of rotations, beside none), scores (of a choice), queries (how many) and
# transforms (changes of basis at 2, 3 and 4 bits, two groups and two windows:
# KVLOOM_ACCURACY_TRANSFORM_WINDOWS (4) of KVLOOM_ACCURACY_TRANSFORM_CONTEXT (1024) tokens,
# KVLOOM_ACCURACY_TRANSFORM_BITS ("2 3 4"); and errors of attention modules, which take longer:
# KVLOOM_ACCURACY_MODULE_WINDOWS (1), 0 for none).
# KVLOOM_ACCURACY_PRESETS names the caches of the first three, by default every codec that there is.
# KVLOOM_ACCURACY_WINDOWS (16), KVLOOM_ACCURACY_CONTEXT (2048) and KVLOOM_ACCURACY_SKIP (256) set
# the size.  Finished windows are kept in build/accuracy.jsonl (KVLOOM_ACCURACY_RESUME): a run that
# was interrupted goes on there, and a run of another size, model or text needs another file.
# KVLOOM_ACCURACY_JOBS windows are measured side by side: each takes some hundred MB (processors, at
# most 4).
# build/bin/kvloom-eval must be there, for the second text kvloom-calibrate too; KVLOOM_EVAL and
# KVLOOM_CALIBRATE name others.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
case ${1:-} in
--help | -h) sed -n '2,26s/^# \{0,1\}//p' "$0"; exit 0 ;;
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
jobs=$(nproc 2>/dev/null || echo 1)
if [ "$jobs" -gt 4 ]; then jobs=4; fi
jobs=${KVLOOM_ACCURACY_JOBS:-$jobs}
all_parts='presets bare own bits rounding rotation affine choices scores queries'
all_parts="$all_parts transforms"
parts=${KVLOOM_ACCURACY_PARTS:-$all_parts}
for part in $parts; do
    case " $all_parts " in
    *" $part "*) ;;
    *) echo "accuracy.sh: KVLOOM_ACCURACY_PARTS: $part is none of $all_parts" >&2; exit 2 ;;
    esac
done
size="KVLOOM_ACCURACY_WINDOWS=$windows KVLOOM_ACCURACY_CONTEXT=$context"
size="$size KVLOOM_ACCURACY_SKIP=$skip"
transform_windows=${KVLOOM_ACCURACY_TRANSFORM_WINDOWS:-4}
transform_context=${KVLOOM_ACCURACY_TRANSFORM_CONTEXT:-1024}
transform_skip=384                        # 64 + 256 rows are in 16 bits
if [ "$transform_skip" -ge "$transform_context" ]; then
    transform_skip=$((transform_context / 4))
fi
module_windows=${KVLOOM_ACCURACY_MODULE_WINDOWS:-1}
transform_bits=${KVLOOM_ACCURACY_TRANSFORM_BITS:-2 3 4}
resume=${KVLOOM_ACCURACY_RESUME:-$root/build/accuracy.jsonl}
mkdir -p "$(dirname "$resume")"
work=$(mktemp -d "${TMPDIR:-/tmp}/kvloom-accuracy.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Bits of layers are chosen for one sink and one recent window, in minutes: for these alone.
sizes='loom:1.5 loom:2.125 loom:2.25 loom:2.5 loom:3.25 loom:4.25'
if [ -n "${KVLOOM_ACCURACY_PRESETS:-}" ]; then sizes=; fi

# codecs NEED: the codecs that need a calibration, or nothing.
codecs() (cd "$root" && lua5.4 tools/codec_page.lua --list $1)

# spec CACHE ADDED: both in one spec.
spec() {
    case $1,$2 in
    *,) echo "$1" ;;
    *:*) echo "$1,$2" ;;
    *) echo "$1:$2" ;;
    esac
}

# presets: those that are measured.
presets() {
    if [ -n "${KVLOOM_ACCURACY_PRESETS:-}" ]; then
        echo "$KVLOOM_ACCURACY_PRESETS"
        return
    fi
    codecs nothing
    echo q4_0:transform=hadamard
    [ -z "$calibration_text" ] || codecs calibration
}

# own: the presets that have windows of their own.
own() {
    for cache in $(codecs "own nothing"; [ -z "$calibration_text" ] || codecs "own calibration"); do
        case " $(echo $(presets)) " in *" ${cache%%:*} "*) echo "$cache" ;; esac
    done
}

# caches_of PART: its caches.
caches_of() {
    case $1 in
    presets | bare) presets ;;
    own) own ;;
    bits)
        for bits in 2 3 4; do
            echo "rtn:k$bits,v$bits,meta=f16 kivi:k$bits,v$bits,meta=f16"
            echo "kivi:k$bits,v$bits rtn:k$bits,v$bits kivi:k$bits,v$bits,k.transform=hadamard"
        done
        ;;
    rounding)
        echo kivi:k2,v2,fit=search kivi:k2,v2,round=trellis
        echo kivi:k2,v2,meta=e4m3,fit=search,round=feedback2
        echo loom:meta=e4m3 loom:b3,meta=e4m3 loom:b4,meta=e4m3 loom:g64
        echo loom:meta=e4m3,round=feedback_trellis loom:g64,round=feedback_trellis
        ;;
    rotation) echo spinquant ;;
    affine) echo flatquant ;;
    choices)
        for bits in 2 3 4; do
            echo "kivi:k$bits,v$bits kivi:k$bits,v$bits,k.transform=hadamard"
            echo "flagrot-kivi:k$bits,v$bits flagrot-kivi:k$bits,v$bits,k.choose=fixed"
            echo "rtn:k$bits,v$bits rtn:k$bits,v$bits,k.shift=mean"
            echo "flagrot-auto:k$bits,v$bits flagrot-auto:k$bits,v$bits,k.choose=fixed"
        done
        ;;
    scores)
        echo kivi:k2,v2,meta=f16
        for score in reconstruction channel attention; do
            echo "flagrot-kivi:k2,v2,meta=f16,k.score=$score"
        done
        ;;
    queries) for count in 16 32 64 128 256; do
        echo "flagrot-kivi:k2,v2,k.score=attention$count"
    done ;;
    transforms)
        for bits in $transform_bits; do
            for codec in kivi:g64 kivi:g32 flagrot-kivi quarot quarot:g32 quest quest:g32 \
                oscar oscar:g32 oscar_v1 wush wush:g32 wush:fit=minmax wush_a wush_a:g32; do
                spec "$codec" "k$bits,v$bits"
            done
        done
        ;;
    transforms-rotation-*) spec spinquant "k${1##*-},v${1##*-}"
        spec spinquant:g32 "k${1##*-},v${1##*-}" ;;
    transforms-affine-*) spec flatquant "k${1##*-},v${1##*-}"
        spec flatquant:g32 "k${1##*-},v${1##*-}" ;;
    esac
}

# options_of PART: what its run of kvloom-eval prints besides the table.
options_of() {
    case $1 in choices | scores | queries) echo --choices ;; esac
}

# measure NAME WINDOWS_OF_CACHES CACHES [OPTION ...]: one run of these caches with these windows:
# $work/NAME.md has its table, without the last column (speed is the machine's), and what was
# chosen; $work/NAME.json its results.
measure() {
    name=$1 added=$2 caches=$3
    shift 3
    for cache in $caches; do set -- "$@" --cache "$(spec "$cache" "$added")"; done
    "$eval_program" -m "$model" -f "$text" -c "$context" --windows "$windows" --skip "$skip" \
        -j "$jobs" --markdown --json "$work/$name.json" "$@" >"$work/table"
    sed '1,/^$/s/|[^|]*|$/|/' "$work/table" >"$work/$name.md"
}

# calibrate FILE PARTS [OPTION ...]: a calibration of the caches of these parts.
calibrate() {
    file=$1 calibrated_parts=$2
    shift 2
    for part in $calibrated_parts; do
        added=sink=4,recent=128
        if [ "$part" = own ]; then added=; fi
        for cache in $(caches_of "$part"); do set -- "$@" --for "$(spec "$cache" "$added")"; done
        if [ "$part" = presets ]; then for cache in $sizes; do set -- "$@" --for "$cache"; done; fi
    done
    "$calibrate_program" -m "$model" -f "$calibration_text" -o "$file" -c "$context" \
        --windows "$calibration_windows" --queries 256 --resume "$@"
}

# measure_modules NAME WINDOWS_OF_CACHES CACHES FILE: errors of attention modules, as $work/NAME.md.
measure_modules() {
    name=$1 added=$2 caches=$3 file=$4
    set --
    for cache in $caches; do set -- "$@" --cache "$(spec "$cache" "$added")"; done
    "$eval_program" -m "$model" -f "$text" -c "$context" --windows "$module_windows" \
        --skip "$skip" --markdown --module --json "$work/$name.json" --calibration "$file" \
        "$@" >"$work/$name.md"
}

# join NAME MORE LINES: adds the rows of a table, behind so many lines, to another one.
join() {
    if [ -e "$work/$1.md" ]; then
        grep '^|' "$work/$2.md" | sed "1,$3d" >>"$work/$1.md"
    else
        cp "$work/$2.md" "$work/$1.md"
    fi
}

# measure_transforms: both tables for both windows.  Matrices that are searched for have one name in
# a file: a file for each family and number of bits, whose statistics are those of the first one.
measure_transforms() (
    windows=$transform_windows context=$transform_context skip=$transform_skip
    base=${calibration%.safetensors}-transforms
    calibrate "$base.safetensors" transforms
    for part in transforms $(for bits in $transform_bits; do
        echo transforms-rotation-$bits transforms-affine-$bits
    done); do
        file=$base.safetensors
        case $part in
        transforms-rotation-*) learned=rotation ;;
        transforms-affine-*) learned=affine ;;
        *) learned= ;;
        esac
        if [ -n "$learned" ]; then
            file=$base${part#transforms}.safetensors
            [ -e "$file" ] || cp "$base.safetensors" "$file"
            calibrate "$file" "$part" --learn "$learned"
        fi
        for added in sink=64,recent=256 sink=4,recent=128; do
            measure "$part-$added" "$added" "$(caches_of "$part")" \
                --resume "${resume%.jsonl}-$part.jsonl" --calibration "$file"
            join "windows-$added" "$part-$added" 3           # and the full-precision cache
            [ "$module_windows" -gt 0 ] || continue
            measure_modules "$part-modules" "$added" "$(caches_of "$part")" "$file"
            join "modules-$added" "$part-modules" 2
        done
    done
)

# The learned matrices have one name: a file of their own for each of the two families.
main_parts=$(echo "$parts" | sed 's/rotation//; s/affine//; s/transforms//')
set -- --resume "$resume"
if [ -n "$calibration_text" ] && [ -n "$(echo $main_parts)" ]; then
    calibrate "$calibration" "$main_parts"
    set -- --resume "${resume%.jsonl}-calibrated.jsonl" --calibration "$calibration"
fi
for part in $main_parts; do
    case $part in
    presets)
        measure presets sink=4,recent=128 \
            "$(caches_of presets) ${calibration_text:+$sizes}" "$@"
        ;;
    bare) measure bare sink=0,recent=0 "$(caches_of presets)" "$@" ;;
    own) measure own "" "$(caches_of own)" "$@" ;;
    bits) measure bits sink=4,recent=128 "$(caches_of bits)" "$@" ;;
    *)
        if [ -n "$calibration_text" ]; then
            measure "$part" sink=4,recent=128 "$(caches_of "$part")" "$@" $(options_of "$part")
        fi
        ;;
    esac
done
if [ -n "$calibration_text" ]; then
    for part in rotation affine; do
        case " $parts " in
        *" $part "*)
            learned=${calibration%.safetensors}-$part.safetensors
            calibrate "$learned" "$part" --learn "$part"
            measure "$part" sink=4,recent=128 "$(caches_of "$part")" \
                --resume "${resume%.jsonl}-$part.jsonl" --calibration "$learned"
            ;;
        esac
    done
    case " $parts " in
    *" transforms "*) measure_transforms ;;
    esac
    size="$size KVLOOM_ACCURACY_CALIBRATION_WINDOWS=$calibration_windows"
fi
size="$size KVLOOM_ACCURACY_PARTS='$parts'"
if [ -n "${KVLOOM_ACCURACY_PRESETS:-}" ]; then
    size="$size KVLOOM_ACCURACY_PRESETS='$KVLOOM_ACCURACY_PRESETS'"
fi

# section PART TITLE: the table of a part that was measured.
section() {
    if [ -e "$work/$1.md" ]; then
        printf '\n## %s\n\n' "$2"
        cat "$work/$1.md"
    fi
}

# field NAME: a string or a number at the top level of the results.
field() {
    sed -n "s/^[[:space:]]*\"$1\":[[:space:]]*\"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" \
        "$work"/*.json | head -n 1
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

The first 4 and the newest 128 tokens are in 16 bits (\`sink=4,recent=128\`), but where it says
otherwise.
END
    if [ -n "$calibration_text" ]; then
        echo "What needs a calibration has one of $calibration_windows windows of $context tokens" \
            "of $(basename "$calibration_text")."
    fi
    section presets 'Presets'
    section bare \
        'Every row in codes as soon as its group is complete (`sink=0,recent=0`)'
    section own 'Windows of the codec'
    section bits 'By bits and metadata'
    section rounding 'Fits and rounding'
    section rotation 'Values by a learned rotation'
    section affine 'Learned invertible matrices'
    section choices 'Choices of rotations, and which they were'
    section scores 'By the score of the choice, with 16-bit scales (3.0 bits)'
    section queries 'By the number of calibration queries'
    of="windows of $transform_context tokens, positions from $transform_skip on"
    for added in sink=64,recent=256 sink=4,recent=128; do
        section "windows-$added" "Changes of basis, \`$added\`: $transform_windows $of"
        section "modules-$added" "Errors of attention modules, \`$added\`: $module_windows $of"
    done
    cat "$root/tools/accuracy_notes.md"
} >"$work/out.md"
cp "$work/out.md" "$out"
echo "accuracy.sh: wrote $out" >&2
