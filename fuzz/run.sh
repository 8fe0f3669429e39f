#!/usr/bin/env bash
# fuzz/run.sh FUZZER SECONDS [LIBFUZZER OPTION...]: one fuzzer, as built, from its seeds.
# Beside it are left: what it learnt (.corpus), its output (.log), inputs that failed, and, if none
# did, the file .passed.
set -euo pipefail
fuzzer=$1 seconds=$2
shift 2
source=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=$(basename "$fuzzer")
# Inputs are a few kilobytes; a large allocation would follow a number that one of them names.
options=(-max_total_time="$seconds" -timeout=25 -rss_limit_mb=2048 -malloc_limit_mb=128
  -artifact_prefix="$fuzzer.")
[[ -f $source/$name.dict ]] && options+=(-dict="$source/$name.dict")
mkdir -p "$fuzzer.corpus"
rm -f "$fuzzer.passed"
"$fuzzer" "${options[@]}" "$@" "$fuzzer.corpus" "$source/corpus/$name" >"$fuzzer.log" 2>&1
touch "$fuzzer.passed"
