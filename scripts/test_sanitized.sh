#!/usr/bin/env bash
# Runs the kernels for GPUs, emulated by the processor, under AddressSanitizer and UndefinedBehaviorSanitizer: every read or write
# outside of an allocation or a shared array, every misaligned vector load and every overflow of a signed integer ends the test.
set -euo pipefail
cd "$(dirname "$0")/.."
library=$("${CXX:-c++}" -print-file-name=libasan.so 2>/dev/null || true)
if [ ! -e "$library" ]; then
  echo "sanitized kernels: skipped, the C++ compiler has no AddressSanitizer"
  exit 0
fi
export HTC_EMULATE_SANITIZE=address,undefined
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/sanitized"
test=$(cargo test --release --locked -p htc-kernels --features emulated --lib --no-run --message-format=json |
  python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        print(message["executable"])')
# What Rust allocates is not of interest here; neither is what a test that is to fail leaves behind.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
LD_PRELOAD="$library" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 "$test" cuda:: "$@" 2>&1 | tee "$log"
grep -q '^test result: ok. [1-9]' "$log" || { echo "no test was run" >&2; exit 1; }
