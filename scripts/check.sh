#!/usr/bin/env bash
# What must hold beside the tests: format, lints, documentation, direction of dependencies, licences.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/workspace.sh

echo "== format"
cargo fmt --all --check

echo "== clippy"
cargo clippy --release --locked --workspace --all-targets -- -D warnings

echo "== clippy with every device"
workspace clippy --all-targets -- -D warnings

echo "== clippy without features: the library without its command line, no GPU"
cargo clippy --release --locked --workspace --no-default-features --all-targets -- -D warnings
library=$(cargo tree --locked -p htc --no-default-features -e normal,build --prefix none --format '{p}')
if grep -E '^(clap|ctrlc|indicatif|maud|minijinja) v' <<<"$library"; then
  echo "htc without its feature cli depends on the above" >&2
  exit 1
fi

if pkg-config --exists openblas 2>/dev/null; then
  echo "== feature openblas"
  cargo clippy --release --locked -p htc -p htc-math --all-targets --features htc/openblas -- -D warnings
  cargo test --release --locked -p htc-math --features openblas --lib
else
  echo "== feature openblas: skipped, no libopenblas with pkg-config here"
fi

echo "== kernels for GPUs: every one compiles, spills nothing and leaves room for others"
scripts/check_cuda.sh

echo "== operations on a GPU, where there is one"
if scripts/cuda_libraries.sh >/dev/null; then
  HTC_WITHOUT_LINEAR=1 scripts/test_cuda.sh --only operations --no-sanitizer
else
  echo "skipped: no NVRTC"
fi

echo "== kernels for GPUs: under sanitizers"
scripts/test_sanitized.sh

echo "== aarch64"
scripts/test_aarch64.sh

echo "== documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --release --locked --workspace --no-deps --quiet

echo "== reference of the command line"
scripts/reference.sh target/release/htc --check

echo "== direction of dependencies: formats <- kernels <- loader <- compiler, formats <- math <- compiler"
must_not_depend() {
  local crate=$1 tree
  shift
  tree=$(cargo tree --locked -p "$crate" -e normal,build --prefix none --format '{p}')
  for other in "$@"; do
    if grep -qE "^$other v" <<<"$tree"; then
      echo "$crate depends on $other" >&2
      exit 1
    fi
  done
}
must_not_depend htc-formats htc-kernels htc-loader htc-math htc faer
must_not_depend htc-kernels htc-loader htc-math htc faer
must_not_depend htc-loader htc-math htc faer ndarray ndarray-linalg openblas-src clap indicatif
must_not_depend htc-math htc-kernels htc-loader htc clap indicatif

echo "== what the measurement of a GPU computes, and what it would run"
(cd scripts && python3 -B test_bench_cuda.py && python3 -B test_bench_cuda_verdicts.py)
scripts/bench_cuda.sh --dry-run >/dev/null

echo "== every source file belongs to a module"
python3 scripts/check_modules.py

echo "== direction of layers in the compiler"
python3 scripts/check_layers.py

echo "== packages for crates.io: metadata, versions, licences, files that the code includes"
cargo package --locked --workspace --exclude htc-tests --no-verify --allow-dirty --quiet
python3 scripts/check_packages.py

echo "== licences, bans, sources"
if ! cargo deny --version >/dev/null 2>&1; then
  # Unoptimised: it takes a third of the time to build, and runs for seconds.
  cargo install cargo-deny --locked --debug
fi
cargo deny --locked check licenses bans sources
