#!/bin/sh
# test_programs.sh -- decode and the tools as users meet them: bad input above all.
#
#     KVLOOM_TEST_BIN=build/bin sh tests/test_programs.sh
#
# Bad input must end with a status of 1 or 2 and one line on stderr that names the program and the
# thing that is wrong; stdout stays empty.  Tests that decode need KVLOOM_TEST_MODEL_SMOLLM2 and are
# skipped without it.  Prints TAP.  Needs lua5.4 for the shape of JSON.
set -u

bin=${KVLOOM_TEST_BIN:-build/bin}
model=${KVLOOM_TEST_MODEL_SMOLLM2:-}
lua=${KVLOOM_LUA:-lua5.4}
work=$(mktemp -d "${TMPDIR:-/tmp}/kvloom-programs.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
kernels=${KVLOOM_CACHE_DIR:-$work/kernels}
KVLOOM_CACHE_DIR=$kernels
export KVLOOM_CACHE_DIR

cases=0
failures=0

ok() { cases=$((cases + 1)); echo "ok $cases - $1"; }

not_ok() {
    cases=$((cases + 1))
    failures=$((failures + 1))
    echo "not ok $cases - $1"
    echo "  # $2"
    head -n 5 "$work/err" | sed 's/^/  # stderr: /'
    head -n 5 "$work/out" | sed 's/^/  # stdout: /'
}

skip() { cases=$((cases + 1)); echo "ok $cases - $1 # SKIP $2"; }

# refuses NAME WORD PROGRAM ARGS: status 1 or 2, no stdout, one line "PROGRAM: ... WORD ...".
refuses() {
    name=$1 word=$2 program=$3
    shift 3
    status=0
    timeout 60 "$bin/$program" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    lines=$(wc -l <"$work/err")
    if [ "$status" -ne 1 ] && [ "$status" -ne 2 ]; then
        not_ok "$name" "status $status"
    elif [ -s "$work/out" ]; then
        not_ok "$name" "something on stdout"
    elif [ "$lines" -ne 1 ]; then
        not_ok "$name" "$lines lines on stderr"
    elif ! grep -q "^$program: " "$work/err"; then
        not_ok "$name" "the line does not begin with $program:"
    elif ! grep -qi -e "$word" "$work/err"; then
        not_ok "$name" "the line does not say '$word'"
    else
        ok "$name"
    fi
}

# accepts NAME WORD PROGRAM ARGS: status 0 and WORD on stdout; "": whatever is there.
accepts() {
    name=$1 word=$2 program=$3
    shift 3
    status=0
    timeout 300 "$bin/$program" "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
    if [ "$status" -ne 0 ]; then
        not_ok "$name" "status $status"
    elif [ -n "$word" ] && ! grep -q -e "$word" "$work/out"; then
        not_ok "$name" "stdout does not say '$word'"
    else
        ok "$name"
    fi
}

# json_holds FILE PATTERN...: each Lua pattern occurs, and brackets and quotes are balanced.
json_holds() {
    "$lua" - "$@" <<'LUA'
local file = assert(io.open(arg[1]))
local text = file:read("a")
local bare = text:gsub('\\.', ""):gsub('"[^"]*"', '""')
local function balanced(pair) return bare:match("^%s*%b" .. pair .. "%s*$") end
local ok = balanced("{}") and not bare:find("[^%s%w%[%]{}:,.\"+-]") and not bare:find("nan")
for i = 2, #arg do ok = ok and text:find(arg[i]) end
for open, close in bare:gmatch("([%[{])%s*,()") do ok = false end
os.exit(ok and true or false)
LUA
}

# KVLOOM-BENCH

small="--head-dim 64 --kv-heads 2 --q-heads 4 --rows 300 --seconds 0 --threads 1"
refuses "bench: unknown option" "--no-such" kvloom-bench --no-such
refuses "bench: word too many" "surplus" kvloom-bench surplus
refuses "bench: option without value" "--rows" kvloom-bench --rows
refuses "bench: rows no number" "12x" kvloom-bench --rows 12x
refuses "bench: no rows" "--rows" kvloom-bench --rows ""
refuses "bench: negative rows" "-5" kvloom-bench --rows -5
refuses "bench: unknown target" "gpu" kvloom-bench --target gpu
refuses "bench: seconds no number" "soon" kvloom-bench --seconds soon
refuses "bench: unknown preset" "nosuch" kvloom-bench $small --cache nosuch
refuses "bench: bits out of range" "k9" kvloom-bench $small --cache kivi:k9,v2
refuses "bench: head dim out of range" "head_dim" kvloom-bench $small --head-dim 40
refuses "bench: heads do not divide" "num_q_heads" kvloom-bench $small --q-heads 5
refuses "bench: unwritable json" "no/such/folder" kvloom-bench $small --json no/such/folder/x.json
refuses "bench: unwritable json beside startup" "no/such/folder" \
    kvloom-bench --startup --json no/such/folder/x.json
refuses "bench: only the start of kernels for a device" "startup" kvloom-bench --target cuda
refuses "bench: an architecture of the host" "arch" kvloom-bench --arch sm_90
refuses "bench: no architecture" "sm_9x" kvloom-bench --startup --target cuda --arch sm_9x
accepts "bench: help" "--cache SPEC" kvloom-bench --help
accepts "bench: a table on the reference path" "q8_0" \
    kvloom-bench $small --target reference --cache q8_0 --json "$work/bench.json"
if json_holds "$work/bench.json" '"results"' '"cache":%s*"q8_0"' '"rows":%s*300' \
    '"attend_ns":%s*%d' '"encode_ns":%s*%d' '"append_ns":%s*%d' '"gbps":%s*%d' \
    '"ratio_f16":%s*%d' '"copy_gbps":%s*%d'; then
    ok "bench: its JSON has every field"
else
    not_ok "bench: its JSON has every field" "$(head -c 300 "$work/bench.json" | tr '\n' ' ')"
fi

# KVLOOM-BENCH-GPU

refuses "bench-gpu: unknown option" "no-such" kvloom-bench-gpu --no-such
refuses "bench-gpu: rows no number" "12x" kvloom-bench-gpu --rows 12x
refuses "bench-gpu: word too many" "surplus" kvloom-bench-gpu surplus
accepts "bench-gpu: help" "--cache SPEC" kvloom-bench-gpu --help
refuses "resources: unknown option" "no-such" kvloom-resources --no-such
refuses "resources: unknown architecture" "77" kvloom-resources --arch 77

# BENCH_GPU

# The whole of it on the stand-in for a driver, where NVRTC is found.
sim=${bin%/bin}/tests/scratch/ptxsim
name="bench_gpu: one JSON of every step"
if [ "${KVLOOM_TEST_BIN:-}" ] && sh tests/ptxsim/build.sh "$sim" >"$work/out" 2>"$work/err" &&
    "$bin/kvloom-cache" warm f16 --target cuda --arch sm_90 >"$work/out" 2>"$work/err"; then
    status=0
    LD_LIBRARY_PATH=$sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PTXSIM_ARCH=sm_99 \
        timeout 240 sh tools/bench_gpu.sh --quick "${bin%/bin}" "$work/gpu.json" \
        >"$work/out" 2>"$work/err" || status=$?
    if [ "$status" -eq 0 ] && json_holds "$work/gpu.json" '"test_cuda":%s*"skipped"' \
        '"copy_gbps":%s*%d' '"times_f16":%s*%d' '"library":' '"warm_start_ms":%s*%d'; then
        ok "$name"
    else
        not_ok "$name" "status $status: $(head -c 300 "$work/gpu.json" | tr '\n' ' ')"
    fi
else
    skip "$name" "no NVRTC"
fi

# KVLOOM-PACK

pack="kvloom-pack -o $work/pack.h"
refuses "pack: unknown option" "no-such" $pack --no-such
refuses "pack: an option without its value" "--config" $pack --config
refuses "pack: no file" "-o FILE" kvloom-pack --config "f16 1 1 32"
refuses "pack: no configuration" "nothing to pack" $pack
refuses "pack: half a configuration" "must be SPEC" $pack --config "f16 1"
refuses "pack: more than a configuration" "must be SPEC" $pack --config "f16 1 1 32 32 32"
refuses "pack: bad spec" "nosuch" $pack --config "nosuch 1 1 32"
refuses "pack: bad shape" "head_dim" $pack --config "f16 1 1 33"
refuses "pack: bad target" "gpu" $pack --target gpu --config "f16 1 1 32"
refuses "pack: bad architecture" "sse2" $pack --arch sse2 --config "f16 1 1 32"
refuses "pack: bad architecture of a device" "sm_1" $pack --target cuda --arch sm_1 \
    --config "f16 1 1 32"
refuses "pack: bad name" "C name" $pack --name 1x --config "f16 1 1 32"
refuses "pack: an empty name" "--name" $pack --name "" --config "f16 1 1 32"
refuses "pack: no list" "/nowhere" $pack --list /nowhere
refuses "pack: no folder" "/nowhere/x.h: cannot be written" \
    kvloom-pack -o /nowhere/x.h --config "f16 1 1 32"
refuses "pack: bits that a calibration chooses" "name them" $pack --config "loom:bits=auto:3 8 2 64"
refuses "cache: bits that a calibration chooses" "name them" kvloom-cache warm loom:bits=auto:3
accepts "pack: version" "^kvloom-pack [0-9]" kvloom-pack --version
name="pack: a calibrated cache, without its calibration"
if "$bin/kvloom-pack" -o "$work/calibrated.h" --arch portable --config "wush:k2,v2 2 1 32" \
    2>"$work/err" && grep -q "kernel_pack_entries" "$work/calibrated.h"
then ok "$name"; else not_ok "$name" ""; fi
status_of() { timeout 60 "$bin/$1" "$2" "$3" "$4" >/dev/null 2>&1; echo $?; }
if [ "$(status_of kvloom-pack --no-such x y)" = 2 ] &&
    [ "$(status_of kvloom-pack --list /nowhere -ox)" = 1 ]
then ok "pack: its statuses tell a wrong command line from a failure"
else not_ok "pack: its statuses tell a wrong command line from a failure" ""; fi
printf '# two\n\nf16 2 1 32\nf16 1 1 32 # one\n' >"$work/list"
for i in 1 2; do
    "$bin/kvloom-pack" -o "$work/pack.h" --arch portable --list "$work/list" 2>"$work/err"
    cp "$work/pack.h" "$work/pack$i.h"
done
if cmp -s "$work/pack1.h" "$work/pack2.h" && grep -q "^    4, kernel_pack_entries" "$work/pack.h"
then ok "pack: equal lists give equal headers"
else not_ok "pack: equal lists give equal headers" "they differ, or lack an entry"; fi

# KVLOOM-CACHE

calibrate="kvloom-calibrate -m nosuch.gguf -f nosuch.txt -o $work/x.safetensors"
refuses "calibrate: unknown option" "no-such" kvloom-calibrate --no-such
refuses "calibrate: no model" "a model file" kvloom-calibrate -o "$work/x" -f "$work/x"
refuses "calibrate: no text" "a text file" kvloom-calibrate -m x.gguf -o "$work/x"
refuses "calibrate: no output" "an output file" kvloom-calibrate -m x.gguf -f x
refuses "calibrate: word too many" "surplus" $calibrate surplus
refuses "calibrate: windows no number" "--windows" $calibrate --windows many
refuses "calibrate: no windows" "--windows" $calibrate --windows 0
refuses "calibrate: a window too short" "-c 8" $calibrate -c 8
refuses "calibrate: empty spec" "must name a cache" $calibrate --for " "
refuses "calibrate: nothing to write" "--no-statistics" $calibrate --no-statistics
refuses "calibrate: no such model" "nosuch.gguf" $calibrate
refuses "calibrate: no such folder" "/nowhere/x" \
    kvloom-calibrate -m nosuch.gguf -f nosuch.txt -o /nowhere/x
refuses "calibrate: merge of one" "two files" kvloom-calibrate --merge -o "$work/x" "$work/a"
refuses "calibrate: merge of what is none" "not a safetensors file" \
    kvloom-calibrate --merge -o "$work/x" "$0" "$work/list"
refuses "calibrate: merge of a file with itself" "named twice" \
    kvloom-calibrate --merge -o "$work/x" "$work/list" "$0" "$work/../${work##*/}/list"
refuses "calibrate: merge with a text" "-f" kvloom-calibrate --merge -o "$work/x" -f x a b
refuses "calibrate: merge for a cache" "-m" kvloom-calibrate --merge -o "$work/x" --for f16 a b
accepts "calibrate: help" "--for SPEC" kvloom-calibrate --help

eval="kvloom-eval -m nosuch.gguf -f nosuch.txt"
refuses "eval: unknown option" "no-such" kvloom-eval --no-such
refuses "eval: no cache" "--cache" $eval
refuses "eval: no model" "a model file" kvloom-eval -f nosuch.txt --cache f16
refuses "eval: no such model" "nosuch.gguf" $eval --cache f16
refuses "eval: calibration without a value" "--calibration" $eval --cache f16 --calibration
accepts "eval: help" "--calibration FILE" kvloom-eval --help

refuses "cache: unknown option" "no-such" kvloom-cache --no-such
refuses "cache: no command" "command" kvloom-cache
refuses "cache: unknown command" "polish" kvloom-cache polish
refuses "cache: bad spec" "nosuch" kvloom-cache warm nosuch
refuses "cache: show of no file" "/nowhere/x: cannot be read" kvloom-cache show /nowhere/x
refuses "cache: show of a folder" "it is a folder" kvloom-cache show "$work"
KVLOOM_CACHE_DIR=$work/own
accepts "cache: list of an empty folder" "" kvloom-cache list
accepts "cache: verify an empty folder" "" kvloom-cache verify
if command -v "${KVLOOM_CC:-cc}" >/dev/null 2>&1; then
    accepts "cache: warm" "" kvloom-cache warm kivi:k2,v2,g32
    accepts "cache: list names what is warm" "ok" kvloom-cache list
    accepts "cache: verify after warm" "" kvloom-cache verify
    # What is compiled is found where there is no compiler; what is not, is not.
    KVLOOM_CC=/no/such/cc
    export KVLOOM_CC
    accepts "cache: a warm kernel needs no compiler" "" kvloom-cache warm kivi:k2,v2,g32
    refuses "cache: a cold one does" "/no/such/cc" kvloom-cache warm kivi:k3,v3,g32
    unset KVLOOM_CC
    # Damage: some bytes of a kernel are overwritten.
    entry=$(find "$KVLOOM_CACHE_DIR" -type f -name '*.so' | head -n 1)
    if [ -n "$entry" ]; then
        printf 'damaged' | dd of="$entry" bs=1 seek=4096 conv=notrunc 2>/dev/null
        status=0
        "$bin/kvloom-cache" verify >"$work/out" 2>"$work/err" || status=$?
        if [ "$status" -eq 1 ]; then ok "cache: verify finds damage"
        else not_ok "cache: verify finds damage" "status $status"; fi
        accepts "cache: prune removes damage" "" kvloom-cache prune
        accepts "cache: verify after prune" "" kvloom-cache verify
    else
        not_ok "cache: verify finds damage" "no file in the folder"
    fi
    accepts "cache: clear" "" kvloom-cache clear
fi
KVLOOM_CACHE_DIR=$kernels

# DECODE

if [ ! -x "$bin/decode" ]; then
    skip "decode" "it is not built"
else
    printf 'GGUF' >"$work/short.gguf"
    printf 'no model at all, only text\n' >"$work/text.gguf"
    refuses "decode: unknown option" "no-such" decode --no-such
    refuses "decode: no model" "-m" decode -p hello
    refuses "decode: missing model" "no/such.gguf" decode -m no/such.gguf -p hello
    refuses "decode: a folder as model" "$work" decode -m "$work" -p hello
    refuses "decode: four bytes" "short.gguf" decode -m "$work/short.gguf" -p hello
    refuses "decode: no GGUF" "text.gguf" decode -m "$work/text.gguf" -p hello
    accepts "decode: list of caches" "kivi" decode --list-caches
    accepts "decode: help" "--cache" decode --help
fi

if [ -x "$bin/decode" ] && [ -n "$model" ]; then
    head -c 5000000 "$model" >"$work/truncated.gguf"
    refuses "decode: --prompt-cache without a prompt" "prompt-cache" \
        decode -m "$model" -i --prompt-cache "$work/none"
    refuses "decode: --prompt-cache beside --load" "only one" \
        decode -m "$model" -p x --prompt-cache "$work/none" --load "$work/none"
    refuses "decode: --recode alone" "recode" decode -m "$model" -p x --recode
    refuses "decode: --save where no folder is" "no/such: No such file" \
        decode -m "$model" -p x -n 1 --save no/such/session
    refuses "decode: --save to a folder" "it is a folder" \
        decode -m "$model" -p x -n 1 --save "$work"
    refuses "decode: --save in the place of another file" "not replaced" \
        decode -m "$model" -p x -n 1 --save "$work/text.gguf"
    refuses "decode: --prompt-cache in the place of another file" "not replaced" \
        decode -m "$model" -p x -n 1 --prompt-cache "$work/text.gguf"
    refuses "decode: layers in the wrong order" "must not be after the last" \
        decode -m "$model" -p x -n 1 --cache 3-1:q8_0
    refuses "decode: a layer that is not there" "layer 99: the model has" \
        decode -m "$model" -p x -n 1 --cache 1-99:q8_0
    refuses "decode: --load of a folder" "it is a folder" decode -m "$model" -n 1 --load "$work"
    mkdir -p "$work/data/kvloom"
    : > "$work/data/kvloom/$(basename "$model" .gguf).kvloom.safetensors"
    XDG_DATA_HOME="$work/data" \
        refuses "decode: the usual calibration is damaged" "--cache f16 does without" \
        decode -m "$model" -p x -n 1
    rm -r "$work/data"
    refuses "decode: --load of no file" "no/such: cannot be read" \
        decode -m "$model" -n 1 --load no/such
    refuses "decode: --load of another kind of file" "saved sequences" \
        decode -m "$model" -n 1 --load "$work/text.gguf"
    refuses "decode: truncated model" "truncated.gguf" decode -m "$work/truncated.gguf" -p hello
    refuses "decode: bad spec" "nosuch" decode -m "$model" -p hello -n 1 --cache nosuch
    refuses "decode: spec that does not fit" "g48" decode -m "$model" -p hello -n 1 --cache kivi:g48
    refuses "decode: context too small" "context" \
        decode -m "$model" -p "one two three four five six seven eight" -n 1 -c 4
    refuses "decode: prompt file missing" "no/such" decode -m "$model" -f no/such.txt -n 1
    refuses "decode: unwritable json" "no/such" \
        decode -m "$model" -p hello -n 1 --json no/such/folder/x.json
    refuses "decode: temperature no number" "warm" decode -m "$model" -p hello --temp warm
    refuses "decode: no thread" "-t" decode -m "$model" -p hello -n 1 -t -3
    # The text alone on stdout: two runs give the same bytes, whatever stderr says.
    if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
        refuses "decode: no driver" "no CUDA driver" decode -m "$model" -p x -n 1 --target cuda
        "$bin/decode" -m "$model" -p x -n 1 --target auto >"$work/out" 2>"$work/err"
        if [ "$(grep -c "the host is used: no CUDA driver" "$work/err")" = 1 ]; then
            ok "decode: target auto falls back to the host, and says so once"
        else
            not_ok "decode: target auto falls back to the host, and says so once" ""
        fi
        refuses "bench-gpu: no driver" "no CUDA driver" kvloom-bench-gpu
    fi
    run="-m $model -n 12 -c 256 --temp 0"
    "$bin/decode" $run -p "The capital of France is" >"$work/plain" 2>"$work/err"
    "$bin/decode" $run -p "The capital of France is" --verbose --json "$work/decode.json" \
        >"$work/out" 2>"$work/err"
    if [ -s "$work/out" ] && cmp -s "$work/plain" "$work/out" && grep -q Paris "$work/out"; then
        ok "decode: stdout has the text alone"
    else
        not_ok "decode: stdout has the text alone" "verbose or --json changes it"
    fi
    # A session cut in two writes what it writes in one; so does one that begins in a prompt cache.
    run="-m $model -c 256 --temp 0 --repeat-penalty 1.1 --cache kivi:k4,v4,g32,recent=32"
    text="The history of the city of Paris begins, as far as anyone can tell, with"
    "$bin/decode" $run -n 100 -p "$text" >"$work/plain" 2>"$work/err"
    "$bin/decode" $run -n 60 -p "$text" --save "$work/session" >"$work/out" 2>"$work/err"
    status=0
    "$bin/decode" $run -n 40 --load "$work/session" >>"$work/out" 2>>"$work/err" || status=$?
    if [ "$status" -eq 0 ] && [ -s "$work/plain" ] && cmp -s "$work/plain" "$work/out"; then
        ok "decode: --load goes on where --save ended"
    else
        not_ok "decode: --load goes on where --save ended" "the text differs"
    fi
    "$bin/decode" $run -n 40 -p "$text" >"$work/plain" 2>"$work/err"
    "$bin/decode" $run -n 1 -p "$text" --prompt-cache "$work/cache" >"$work/out" 2>"$work/err"
    "$bin/decode" $run -n 40 -p "$text" --prompt-cache "$work/cache" --json "$work/decode.json" \
        >"$work/out" 2>"$work/err"
    if cmp -s "$work/plain" "$work/out" && json_holds "$work/decode.json" \
        '"prompt_tokens":%s*0,' '"loaded_tokens":%s*1[0-9],'; then
        ok "decode: a prompt of the prompt cache is not run again"
    else
        not_ok "decode: a prompt of the prompt cache is not run again" "$(cat "$work/out")"
    fi
    cp "$work/cache" "$work/before"
    "$bin/decode" $run -n 1 -p "The history of the city of Nice" --prompt-cache "$work/cache" \
        --json "$work/decode.json" >"$work/out" 2>"$work/err"
    if json_holds "$work/decode.json" '"prompt_tokens":%s*[12],' '"loaded_tokens":%s*[5-9],' &&
        cmp -s "$work/cache" "$work/before" && grep -q "stays as it is: it has" "$work/err"; then
        ok "decode: of another prompt only what differs is run; a longer one's file stays"
    else
        not_ok "decode: of another prompt only what differs is run; a longer one's file stays" \
            "$(cat "$work/err")"
    fi
    "$bin/decode" $run -n 1 -p "$text the first stone of Nice, and of Lyon as well" \
        --prompt-cache "$work/cache" >"$work/out" 2>"$work/err"
    if ! cmp -s "$work/cache" "$work/before"; then ok "decode: a longer prompt's rows are kept"
    else not_ok "decode: a longer prompt's rows are kept" "the file is the same"; fi
    accepts "cache: show of a session" "^  layers 0-29 *3 KV heads, keys of 64.*kivi:k4" \
        kvloom-cache show "$work/session"
    refuses "decode: --load of another cache" "q8_0.*recode" \
        decode -m "$model" -n 1 --load "$work/session" --cache q8_0
    accepts "decode: --recode takes it" "" \
        decode -m "$model" -n 1 --load "$work/session" --cache q8_0 --recode
    refuses "decode: --chat of a session without" "without --chat" \
        decode $run -n 1 --load "$work/session" --chat -p x
    refuses "decode: a context smaller than the session" "context" \
        decode $run -c 32 -n 1 --load "$work/session"
    head -c 100000 "$work/session" >"$work/cut"
    refuses "decode: half a session" "cut: " decode $run -n 1 --load "$work/cut"
    if [ -n "${KVLOOM_TEST_MODEL_GEMMA3:-}" ]; then
        refuses "decode: a session of another model" "saved with the model llama/" \
            decode -m "$KVLOOM_TEST_MODEL_GEMMA3" -n 1 --load "$work/session"
    else
        skip "decode: a session of another model" "KVLOOM_TEST_MODEL_GEMMA3 is not set"
    fi
    printf 'My name is Ada.\nWhat is my name?\n' >"$work/turns"
    "$bin/decode" $run -n 12 --chat -i <"$work/turns" >"$work/plain" 2>"$work/err"
    head -n 1 "$work/turns" | "$bin/decode" $run -n 12 --chat -i --save "$work/session" \
        >"$work/out" 2>"$work/err"
    tail -n 1 "$work/turns" | "$bin/decode" $run -n 12 -i --load "$work/session" \
        >>"$work/out" 2>>"$work/err"
    if [ -s "$work/plain" ] && cmp -s "$work/plain" "$work/out"; then
        ok "decode: a chat goes on as a chat"
    else
        not_ok "decode: a chat goes on as a chat" "the text differs"
    fi
    centred="rtn:k4,v4,k.shift=mean"
    refuses "decode: a cache without its calibration" "kvloom-calibrate -m MODEL" \
        decode -m "$model" -p x --cache "$centred"
    refuses "decode: two calibrations" "only one of them" \
        decode -m "$model" -p x --calibration x --calibrate-on-prompt
    refuses "decode: no such calibration" "/nowhere/c" \
        decode -m "$model" -p x --cache "$centred" --calibration /nowhere/c
    refuses "decode: --save of a calibration that no file has" "no file has" \
        decode -m "$model" -p x --calibrate-on-prompt --save "$work/nothing"
    accepts "decode: calibrated on the prompt" "" \
        decode $run -n 1 -p "$text" --cache "$centred" --calibrate-on-prompt=64
    seq 1 400 >"$work/text"
    accepts "decode: a long prompt without --cache" "" \
        decode -m "$model" -n 1 -f "$work/text"
    if grep -q "loom, calibrated on the prompt" "$work/err" && grep -q "cache .*loom:k2" "$work/err"
    then ok "decode: a long prompt calibrates its cache"
    else not_ok "decode: a long prompt calibrates its cache" "$(tail -n 3 "$work/err")"; fi
    head -n 100 "$work/text" >"$work/short"
    accepts "decode: a short prompt without --cache" "" decode -m "$model" -n 1 -f "$work/short"
    if grep -q "cache .*f16:" "$work/err"; then ok "decode: a short prompt has an f16 cache"
    else not_ok "decode: a short prompt has an f16 cache" "$(tail -n 3 "$work/err")"; fi
    refuses "decode: fewer tokens than a group" "no groups of keys" \
        decode -m "$model" -n 1 -p Hello --cache loom --calibrate-on-prompt
    if "$bin/kvloom-calibrate" -m "$model" -f "$work/text" -o "$work/c" -c 128 --windows 1 \
        --for "$centred" 2>"$work/err"; then
        accepts "decode: with a calibration file" "" \
            decode $run -n 1 -p "$text" --cache "$centred" --calibration "$work/c"
        accepts "cache: show of a calibration" "in  30 tensors  k.mean \[3, 64\]" \
            kvloom-cache show "$work/c"
        refuses "eval: a spec that needs more than the file has" "has no layer.0.k.queries" \
            kvloom-eval -m "$model" -f "$work/text" -c 128 --windows 1 --calibration "$work/c" \
            --cache "rtn:k4,v4,k.meta=e4m3,k.choose=unit,k.score=attention"
        if "$bin/kvloom-calibrate" -m "$model" -f "$work/text" -o "$work/c" -c 128 --windows 1 \
            --resume --for flagrot-kivi 2>"$work/err"; then
            accepts "eval: --choices" "as they are [0-9.]* % .*rotated .*whole head" \
                kvloom-eval -m "$model" -f "$work/text" -c 128 --windows 1 --choices \
                --calibration "$work/c" --cache "flagrot-kivi:sink=0,recent=32"
        else
            not_ok "calibrate: another cache of the same statistics" "a status that is not 0"
        fi
        name="calibrate: a table that nothing makes"
        if "$bin/kvloom-calibrate" -m "$model" -f "$work/text" -o "$work/d" -c 128 --windows 1 \
            --for "kivi:transform=file" 2>"$work/err"; then
            not_ok "$name" "status 0"
        elif grep -q "; $work/d has the statistics, and --resume" "$work/err"; then
            ok "$name"
        else
            not_ok "$name" "the file is not told"
        fi
        accepts "calibrate: goes on after it" "" \
            kvloom-calibrate -m "$model" -f "$work/text" -o "$work/d" -c 128 --windows 1 --resume \
            --for "$centred"
        head -c 100000 "$work/c" >"$work/cut"
        refuses "decode: half a calibration" "cut" \
            decode $run -n 1 -p x --cache "$centred" --calibration "$work/cut"
        if [ -n "${KVLOOM_TEST_MODEL_GEMMA3:-}" ]; then
            refuses "decode: a calibration of another model" "another model: 'llama/" \
                decode -m "$KVLOOM_TEST_MODEL_GEMMA3" -n 1 -p x --cache "$centred" \
                --calibration "$work/c"
        fi
    else
        not_ok "calibrate: a real model" "a status that is not 0"
    fi
    if json_holds "$work/decode.json"; then ok "decode: JSON is whole"
    else not_ok "decode: JSON is whole" "$(head -c 300 "$work/decode.json" | tr '\n' ' ')"; fi
else
    skip "decode: a real model" "KVLOOM_TEST_MODEL_SMOLLM2 is not set, or decode is not built"
fi

echo "1..$cases"
[ "$failures" -eq 0 ]
