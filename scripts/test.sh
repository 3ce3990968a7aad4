#!/usr/bin/env bash
# Builds everything once and runs every test: with cargo-nextest where it is installed, else with
# cargo's own runner. The suites drive the binary that is built here.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ ! -d "${HTC_SHARED:-../shared}" ]; then
  echo "HTC_SHARED names no folder: comparisons with other programs' models and texts are skipped, and named at the end"
fi
. scripts/workspace.sh
[[ "${workspace_features[*]}" == *emulated* ]] || echo "kernels for GPUs are not executed: there is no C++ compiler"
workspace build
if cargo nextest --version >/dev/null 2>&1; then
  failed=0
  workspace nextest run --no-fail-fast || failed=$?
  python3 scripts/skipped_tests.py "${CARGO_TARGET_DIR:-target}/nextest/default/junit.xml"
  [ "$failed" -eq 0 ] || exit "$failed"
  workspace test --doc --quiet
else
  echo "cargo-nextest is not installed: running the same tests with cargo test"
  workspace test --no-fail-fast
fi
