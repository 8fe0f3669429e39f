#!/usr/bin/env bash
# mutation.sh KERNELS_TEST NAME: shows that the contract tests of an operation notice the mistake
# NAME (src/kernels/mutation.h) and pass without it.
set -euo pipefail
program=$1 name=$2
operation=${name%%/*}
tests="*$(sed -E 's/(^|_)([a-z])/\U\2/g' <<<"$operation")*"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

run() { "$program" "$@" --gtest_filter="$tests" >"$log" 2>&1; }

if ! run; then
  cat "$log"
  echo "$tests fails without a mistake"
  exit 1
fi
if ! grep -q '^\[  PASSED  \] [1-9]' "$log"; then
  echo "no test is called $tests"
  exit 1
fi
status=0
run "$name" --gtest_fail_fast || status=$?
# Status 1 and a failed case: noticed. Anything else is a crash, or nothing.
if ((status != 1)) || ! grep -q '^\[  FAILED  \] [1-9]' "$log"; then
  echo "$name: not noticed by $tests (status $status)"
  exit 1
fi
echo "$name: noticed by $(grep -m1 -o '^\[  FAILED  \] [A-Z][A-Za-z0-9/._]*' "$log" | cut -c14-)"
