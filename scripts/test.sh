#!/usr/bin/env bash
# Builds everything once and runs every test: with cargo-nextest where it is installed, else with
# cargo's own runner. The suites drive the binary that is built here.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ ! -d "${HTC_SHARED:-../shared}" ]; then
  echo "HTC_SHARED names no folder: comparisons with other programs' models and texts are skipped, and named at the end"
fi
# With a C++ compiler the kernels for GPUs are executed, too, by a GPU that the processor emulates.
features=()
if "${CXX:-c++}" --version >/dev/null 2>&1; then
  features=(--features htc/emulated,htc-tests/emulated,htc-tests/cuda,htc-loader/emulated,htc-kernels/emulated)
else
  echo "kernels for GPUs are not executed: there is no C++ compiler"
fi
cargo build --release --locked --workspace "${features[@]}"
if cargo nextest --version >/dev/null 2>&1; then
  failed=0
  cargo nextest run --release --locked --workspace "${features[@]}" --no-fail-fast || failed=$?
  python3 scripts/skipped_tests.py "${CARGO_TARGET_DIR:-target}/nextest/default/junit.xml"
  [ "$failed" -eq 0 ] || exit "$failed"
  cargo test --release --locked --workspace "${features[@]}" --doc --quiet
else
  echo "cargo-nextest is not installed: running the same tests with cargo test"
  cargo test --release --locked --workspace "${features[@]}" --no-fail-fast
fi
