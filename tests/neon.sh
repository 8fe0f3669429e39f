#!/usr/bin/env bash
# neon.sh NUMERICS_ID: the kernels on 64-bit Arm. Builds them with the cross compiler, runs their
# contract tests and the digest under qemu's user-mode emulation, and compares the digest with
# that of the native program NUMERICS_ID. Needs g++-aarch64-linux-gnu, qemu-user, libgtest-dev.
set -euo pipefail
native=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Highway is used by its headers alone: with one target it detects nothing at run time. They are
# the native package's, so they need a folder without the native C library's headers.
mkdir "$folder/include"
ln -s /usr/include/hwy "$folder/include/hwy"
gtest=/usr/src/googletest/googletest
flags=(-std=c++20 -O2 -DNDEBUG -ffp-contract=off -fno-math-errno -fno-tree-vectorize
       -I "$root/src" -isystem "$folder/include" -isystem "$gtest/include" -I "$gtest")

cd "$root"
# Kernels need nothing of the files that need hwloc or liburing, of which there is no library for Arm
# here.
mapfile -t sources < <(find src/base src/tensor src/sys src/kernels -name '*.cc' \
  ! -name '*_test.cc' ! -name topology.cc ! -name thread_plan.cc ! -name read_queue.cc)
tests=("$gtest/src/gtest-all.cc" "$gtest/src/gtest_main.cc" src/kernels/*_test.cc)
printf '%s\n' "${sources[@]}" "${tests[@]}" tests/numerics_id.cc |
  xargs -P "$(nproc)" -I{} bash -c \
    'aarch64-linux-gnu-g++ "${@:2}" -c "$1" -o "$0/$(tr / _ <<<"$1").o"' "$folder" {} "${flags[@]}"

objects() { for f in "$@"; do echo "$folder/$(tr / _ <<<"$f").o"; done; }
link() { aarch64-linux-gnu-g++ -static "${@:2}" -pthread -o "$1"; }
mapfile -t library < <(objects "${sources[@]}")
link "$folder/numerics_id" "$(objects tests/numerics_id.cc)" "${library[@]}"
mapfile -t test_objects < <(objects "${tests[@]}")
link "$folder/kernels_test" "${test_objects[@]}" "${library[@]}"

# Emulated fused multiply-adds are slow: the model's own sizes are left to the native run.
qemu-aarch64 "$folder/kernels_test" --gtest_brief=1 --gtest_filter='-*AtTheModelsSize*'
neon=$(qemu-aarch64 "$folder/numerics_id")
grep -q NEON <<<"$neon"
printf '%s\n' "native:" "$("$native")" "emulated:" "$neon"
[[ $("$native" | cut -d' ' -f1 | sort -u) == "$(cut -d' ' -f1 <<<"$neon" | sort -u)" ]]
