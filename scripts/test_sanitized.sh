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
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}"
# The programs are those of the tests; only the emulation is built anew.
. scripts/workspace.sh
workspace build --quiet --bin htc
HTC_BIN=$(realpath "$CARGO_TARGET_DIR/release/htc")
export HTC_BIN
mkdir -p "$CARGO_TARGET_DIR/sanitized"
HTC_EMULATED_LIBRARY=$(realpath "$CARGO_TARGET_DIR/sanitized")/libhtc_emulated.so
(cd kernels && "${CXX:-c++}" -shared -fPIC -g1 -O1 @src/emulate/flags -fsanitize=address,undefined -fno-sanitize-recover=undefined \
  src/emulate/unit.cpp -o "$HTC_EMULATED_LIBRARY")
export HTC_EMULATED_LIBRARY

# The path of a program of tests: those of a library or of a suite with this name.
program() {
  workspace test "${@:2}" --no-run --message-format=json |
    python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == sys.argv[1]:
        print(message["executable"])' "$1"
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

kernels=$(program htc_kernels --lib)
run kernels '[1-9][0-9]*' "$(realpath "$kernels")" cuda:: "$@"
models=$(program backends --test backends)
of_models=(architectures coded forward_from_a_layer_equals_the_whole_pass requested_logits_suffice_for_sampling)
run tests "${#of_models[@]}" "$(realpath "$models")" --exact "${of_models[@]/#/on::emulated::}"
