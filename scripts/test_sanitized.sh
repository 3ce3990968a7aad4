#!/usr/bin/env bash
# Runs the kernels for GPUs, emulated by the processor, under AddressSanitizer and UndefinedBehaviorSanitizer: every read or write
# outside of an allocation or a shared array, every misaligned vector load and every overflow of a signed integer ends the test.
# First their own tests, among which are some that have to be ended so, then whole models of every architecture and one in codes.
set -euo pipefail
cd "$(dirname "$0")/.."
library=$("${CXX:-c++}" -print-file-name=libasan.so 2>/dev/null || true)
if [ ! -e "$library" ]; then
  echo "sanitized kernels: skipped, the C++ compiler has no AddressSanitizer"
  exit 0
fi
# What compiles the model in codes, with the features that continuous integration builds it with for the demo.
cargo build --release --locked --quiet -p htc --features htc/emulated
HTC_BIN=$(realpath "${CARGO_TARGET_DIR:-target}/release/htc")
export HTC_BIN
export HTC_EMULATE_SANITIZE=address,undefined
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/sanitized"

# The path of a program of tests.
program() {
  cargo test --release --locked --features emulated --no-run --message-format=json "$@" |
    python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        print(message["executable"])'
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Runs some tests from the folder of their package, of which so many pass. What Rust allocates is not of interest here; neither is what a test that is to
# fail leaves behind.
run() {
  local folder=$1 passed=$2 test=$3
  shift 3
  env -C "$folder" LD_PRELOAD="$library" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 "$test" "$@" 2>&1 | tee "$log"
  grep -Eq "^test result: ok. $passed passed" "$log" || { echo "expected $passed tests that pass" >&2; exit 1; }
}

kernels=$(program -p htc-kernels --lib)
run kernels '[1-9][0-9]*' "$(realpath "$kernels")" cuda:: "$@"
models=$(program -p htc-tests --test backends)
of_models=(architectures coded forward_from_a_layer_equals_the_whole_pass requested_logits_suffice_for_sampling)
run tests "${#of_models[@]}" "$(realpath "$models")" --exact "${of_models[@]/#/on::emulated::}"
