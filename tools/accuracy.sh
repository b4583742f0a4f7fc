#!/bin/sh
# accuracy.sh -- the table of all presets on a model and a text; writes docs/accuracy.md.
#
#     sh tools/accuracy.sh MODEL.gguf TEXT [OUT]      OUT: docs/accuracy.md if none is given
#
# KVLOOM_ACCURACY_WINDOWS (16), KVLOOM_ACCURACY_CONTEXT (2048) and KVLOOM_ACCURACY_SKIP (256) set
# the size.  Finished windows are kept in build/accuracy.jsonl (KVLOOM_ACCURACY_RESUME): a run that
# was interrupted goes on there, and a run of another size, model or text needs another file.
# build/bin/kvloom-eval must be there; KVLOOM_EVAL names another one.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
case ${1:-} in
--help | -h) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
if [ $# -lt 2 ] || [ $# -gt 3 ]; then
    echo "usage: accuracy.sh MODEL.gguf TEXT [OUT]" >&2
    exit 2
fi
model=$1 text=$2 out=${3:-$root/docs/accuracy.md}
eval_program=${KVLOOM_EVAL:-$root/build/bin/kvloom-eval}
windows=${KVLOOM_ACCURACY_WINDOWS:-16}
context=${KVLOOM_ACCURACY_CONTEXT:-2048}
skip=${KVLOOM_ACCURACY_SKIP:-256}
size="KVLOOM_ACCURACY_WINDOWS=$windows KVLOOM_ACCURACY_CONTEXT=$context"
size="$size KVLOOM_ACCURACY_SKIP=$skip"
resume=${KVLOOM_ACCURACY_RESUME:-$root/build/accuracy.jsonl}
mkdir -p "$(dirname "$resume")"
work=$(mktemp -d "${TMPDIR:-/tmp}/kvloom-accuracy.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The presets, without windows.
presets='f16 bf16 q8_0 q4_0'
for bits in 2 3 4; do
    for preset in rtn kivi; do
        presets="$presets $preset:k$bits,v$bits $preset:k$bits,v$bits,meta=f16"
    done
    presets="$presets kivi:k$bits,v$bits,k.transform=hadamard"
done
presets="$presets q4_0:transform=hadamard"

# measure NAME WINDOWS_OF_CACHES: one run of all presets with these windows: $work/NAME.md has its
# table, without the last column (speed is the machine's), and $work/NAME.json its results.
measure() {
    name=$1 added=$2
    set --
    for preset in $presets; do
        case $preset in
        *:*) set -- "$@" --cache "$preset,$added" ;;
        *) set -- "$@" --cache "$preset:$added" ;;
        esac
    done
    "$eval_program" -m "$model" -f "$text" -c "$context" --windows "$windows" --skip "$skip" \
        --resume "$resume" --markdown --json "$work/$name.json" "$@" >"$work/table"
    sed 's/|[^|]*|$/|/' "$work/table" >"$work/$name.md"
}

measure with sink=4,recent=128
measure without sink=0,recent=0

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
| command | \`$size sh tools/accuracy.sh MODEL TEXT\` |

## The first 4 and the newest 128 tokens in 16 bits (\`sink=4,recent=128\`)

END
    cat "$work/with.md"
    cat <<'END'

## Every row in codes as soon as its group is complete (`sink=0,recent=0`)

END
    cat "$work/without.md"
    cat "$root/tools/accuracy_notes.md"
} >"$work/out.md"
cp "$work/out.md" "$out"
echo "accuracy.sh: wrote $out" >&2
