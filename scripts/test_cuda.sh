#!/usr/bin/env bash
# Runs what must hold of a GPU on one: operations, the suite of the backends, kinds of KV cache; the same with kernels that
# exchange numbers in place of tensor cores (HTC_PLAIN_MMA=1); and the first under compute-sanitizer, where that is found. Says
# "skipped: no device" where there is none.
#
#     scripts/test_cuda.sh [--no-sanitizer] [OPTIONS OF THE TESTS]
set -euo pipefail
cd "$(dirname "$0")/.."
sanitize=1
[ "${1:-}" != --no-sanitizer ] || { sanitize=0; shift; }

folder=$(scripts/nvrtc.sh) || echo "no NVRTC: only kernels that were kept before will do"
[ -z "${folder:-}" ] || export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

cargo build --release --locked --quiet -p htc-kernels --features cuda --example find_cuda
if ! found=$("${CARGO_TARGET_DIR:-target}/release/examples/find_cuda"); then
  echo "skipped: no device ($found)"
  exit 0
fi
echo "$found"
# Tests that look for a device themselves fail from here on where they find none.
export HTC_NEED_CUDA=1
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Runs a program of tests, and fails where it ran none: a filter that names nothing would pass in silence.
run() {
  local what=$1
  shift
  echo "== $what"
  "$@" 2>&1 | tee "$log"
  local passed
  passed=$(sed -n 's/^test result: ok\. \([0-9]*\) passed.*/\1/p' "$log" | awk '{ sum += $1 } END { print sum + 0 }')
  [ "$passed" -gt 0 ] || { echo "failed: $what ran no test"; exit 1; }
}

# The path of a program of tests: where cargo puts it, by its own words.
program() {
  cargo test --release --locked --quiet --no-run --message-format=json "$@" | python3 -c '
import json, sys
found = [json.loads(line) for line in sys.stdin if line.startswith("{")]
found = [m["executable"] for m in found if m.get("profile", {}).get("test") and m.get("executable")]
sys.exit(f"expected one program of tests, found {found}") if len(found) != 1 else print(found[0])'
}

operations=$(program -p htc-kernels --features cuda --test device)
backends=$(program -p htc-tests --features cuda --test backends)
kinds=$(program -p htc-loader --features cuda --lib)

# One test at a time: they share the device's memory. Tests find what they read from the folder of their package.
each() {
  local under=("$@")
  run "${name}operations" env -C kernels "${under[@]}" "$operations" --test-threads=1 "${arguments[@]}"
  run "${name}backends" env -C tests "${under[@]}" "$backends" --test-threads=1 --ignored on::cuda "${arguments[@]}"
  run "${name}kinds of KV cache" env -C loader "${under[@]}" "$kinds" --test-threads=1 --ignored cuda "${arguments[@]}"
}

arguments=("$@")
name=""
each
name="without tensor cores: "
HTC_PLAIN_MMA=1 each

[ "$sanitize" = 1 ] || exit 0
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
if [ -z "$sanitizer" ]; then
  echo "skipped: compute-sanitizer (memcheck, racecheck, synccheck): not found in PATH or /usr/local/cuda/bin"
  exit 0
fi
for tool in memcheck racecheck synccheck; do
  name="$tool: "
  each "$sanitizer" --tool "$tool" --error-exitcode 9
done
