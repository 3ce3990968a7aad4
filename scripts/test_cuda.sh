#!/usr/bin/env bash
# Runs what must hold of a GPU on one: operations, and the suite of the backends. Says "skipped: no device" where there is
# none. Further arguments are those of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(scripts/nvrtc.sh) || echo "no NVRTC: only kernels that were kept before will do"
[ -z "${folder:-}" ] || export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

cargo build --release --locked --quiet -p htc-kernels --features cuda --example find_cuda
if ! found=$("${CARGO_TARGET_DIR:-target}/release/examples/find_cuda"); then
  echo "skipped: no device ($found)"
  exit 0
fi
echo "$found"
# One test at a time: they share the device's memory.
cargo test --release --locked -p htc-kernels --features cuda --test device -- --test-threads=1 "$@"
cargo test --release --locked -p htc-tests --test backends -- --test-threads=1 on::cuda "$@"
