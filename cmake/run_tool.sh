#!/bin/sh
# run_tool.sh -- run a command and keep what it prints as a file, if it ends well.
#
#     run_tool.sh OUTPUT COMMAND...
set -eu

output=$1
shift
trap 'rm -f "$output.tmp"' EXIT
"$@" >"$output.tmp"
mv "$output.tmp" "$output"
