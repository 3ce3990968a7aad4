#!/usr/bin/env bash
# Runs the tests of the kernels for aarch64, on any machine: elsewhere than on aarch64 itself they
# are cross-compiled and executed by the emulator qemu. That takes three things, on Debian:
#
#   rustup target add aarch64-unknown-linux-gnu
#   apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
#
# RUSTC may name another compiler that has that target's standard library, such as Debian's rustc-web
# with libstd-rust-web-dev:arm64. Where one is missing the script says "skipped: ..." and succeeds. The tests run twice, on a
# processor with every extension that qemu knows and on one with none. Arguments go to the test
# program, such as the name of a test. Speed under qemu says nothing about that of a processor.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu

skip() {
  echo "skipped: $1"
  exit 0
}

if [ "$(uname -m)" = aarch64 ]; then
  exec cargo test --release --locked -p htc-kernels --lib -- "$@"
fi
command -v qemu-aarch64 >/dev/null || skip "no qemu-aarch64 here"
command -v aarch64-linux-gnu-gcc >/dev/null || skip "no aarch64-linux-gnu-gcc here"
libraries=$("${RUSTC:-rustc}" --print target-libdir --target $target 2>/dev/null) || skip "rustc does not know $target"
[ -d "$libraries" ] || skip "no standard library for $target here"

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
for cpu in max cortex-a53; do
  echo "== $cpu"
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu $cpu"
  cargo test --release --locked -p htc-kernels --lib --target $target -- "$@"
done
