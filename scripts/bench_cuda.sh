#!/usr/bin/env bash
# Measures execution on a GPU in under 8 minutes, and writes JSON and a Markdown table: see bench_cuda.py --help.
#
#     scripts/bench_cuda.sh [--device cuda:0|emulated|cpu] [--quick] [-o OUT] [--bin BIN] [--parts PART,...]
#                           [--budget PART=SECONDS]... [--compile-shape SHAPE]
#
# Needs bash, python3 (its standard library alone) and two programs, which are built with cargo unless --bin names the
# folder that has them:
#     htc       cargo build --release -p htc
#     device    cargo build --release -p htc-loader --example device
# `scripts/test_cuda.sh --collect BIN` makes such a folder, which serves both scripts.
# Where they are found it also takes nvidia-smi (the driver's version) and ncu (hit rates of the L2 cache).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

# Whether an option was given.
has() {
  local wanted=$1 given
  shift
  for given in "$@"; do
    case "$given" in "$wanted" | "$wanted"=*) return 0 ;; esac
  done
  return 1
}

# Has the programs find NVRTC, cuBLAS and cuSOLVER where the system does not; other devices have no need of them.
find_libraries() {
  case " $* " in *" emulated "* | *"=emulated "* | *" cpu "* | *"=cpu "*) return ;; esac
  local folder
  folder=$("$here/cuda_libraries.sh" 2>/dev/null) || echo "no NVRTC was found: kernels cannot be compiled" >&2
  [ -z "$folder" ] || export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

if has --help "$@" || has -h "$@" || has --dry-run "$@"; then
  exec python3 "$here/bench_cuda.py" "$@"
fi
find_libraries "$@"
if has --bin "$@"; then
  exec python3 "$here/bench_cuda.py" "$@"
fi
cd "$here/.."
. scripts/workspace.sh
workspace build --quiet --bin htc --example device
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
ln -s "$target/release/htc" "$target/release/examples/device" "$bin"
cd "$OLDPWD"
python3 "$here/bench_cuda.py" --bin "$bin" "$@"
