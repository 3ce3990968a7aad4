#!/usr/bin/env bash
# Measures execution on a GPU in under 8 minutes, and writes JSON and a Markdown table: see bench_cuda.py --help.
#
#     scripts/bench_cuda.sh [--device cuda:0|emulated|cpu] [--quick] [-o OUT] [--bin BIN]
#
# Needs bash, python3 (its standard library alone) and two programs, which are built with cargo unless --bin names the
# folder that has them:
#     htc       cargo build --release -p htc
#     device    cargo build --release -p htc-loader --example device   (--features emulated for that device)
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

if has --bin "$@" || has --help "$@" || has -h "$@" || has --dry-run "$@"; then
  exec python3 "$here/bench_cuda.py" "$@"
fi
cd "$here/.."
features=()
case " $* " in *" emulated "* | *"=emulated "*) features=(--features emulated) ;; esac
cargo build --release --locked --quiet -p htc
cargo build --release --locked --quiet -p htc-loader --example device "${features[@]}"
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
ln -s "$target/release/htc" "$target/release/examples/device" "$bin"
if folder=$(scripts/nvrtc.sh 2>/dev/null) && [ -n "$folder" ]; then
  export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
cd "$OLDPWD"
python3 "$here/bench_cuda.py" --bin "$bin" "$@"
