#!/usr/bin/env bash
# Compiles every kernel for GPUs, prints what each takes of a multiprocessor, and fails where registers spill. No GPU is
# needed, but NVRTC: that of the system, else PyPI's, which is kept in the user's cache.
set -euo pipefail
cd "$(dirname "$0")/.."
architectures=("$@")
[ ${#architectures[@]} -gt 0 ] || architectures=(sm_80 sm_89 sm_90 sm_120)

folder=$(scripts/cuda_libraries.sh) || { echo "skipped: no NVRTC: neither the system nor pip has one"; exit 0; }
[ -z "$folder" ] || export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
. scripts/workspace.sh
workspace build --quiet --example check_cuda
exec "${CARGO_TARGET_DIR:-target}/release/examples/check_cuda" "${architectures[@]}"
