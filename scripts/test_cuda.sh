#!/usr/bin/env bash
# Runs what must hold of a GPU on one: operations, the suite of the backends, kinds of KV cache; the same with kernels that
# exchange numbers in place of tensor cores (HTC_PLAIN_MMA=1); and operations with a few tests of the backends under
# compute-sanitizer, where that is found. Says "skipped: no device" where there is none, goes on behind a part that fails, and
# names at the end what failed.
#
#     scripts/test_cuda.sh [OPTIONS] [OPTIONS OF THE TESTS, such as a filter]
#
#     --only PART          operations, backends or kinds; may be given several times [default: all of them]
#     --no-plain           not without tensor cores
#     --plain-only         only without tensor cores
#     --no-sanitizer       not under compute-sanitizer
#     --sanitizer-only     only under compute-sanitizer
#     --timeout SECONDS    of each program of tests, which then has failed [default: none]
#     --collect DIR        build the programs, put them into DIR, and run none: with scripts/bench_cuda.sh's beside them
#     --bin DIR            run the programs that lie in DIR: neither cargo nor Rust is needed there
set -euo pipefail
calling=$PWD
cd "$(dirname "$0")/.."
. scripts/workspace.sh

all=(operations backends kinds)
only=()
usual=1 plain=1 sanitize=1
limit=()
seconds="" collect="" bin=""
wrong() {
  echo "$1" >&2
  exit 2
}
# A folder as it was meant by who called.
folder_of() {
  case "$1" in /*) echo "$1" ;; *) echo "$calling/$1" ;; esac
}
while [ $# -gt 0 ]; do
  case "$1" in
    --only | --timeout | --collect | --bin) [ $# -gt 1 ] || wrong "$1: expected a value behind it" ;;
  esac
  case "$1" in
    --only)
      [[ " ${all[*]} " == *" $2 "* ]] || wrong "--only $2: expected one of ${all[*]}"
      only+=("$2")
      shift
      ;;
    --no-plain) plain=0 ;;
    --plain-only) usual=0 sanitize=0 ;;
    --no-sanitizer) sanitize=0 ;;
    --sanitizer-only) usual=0 plain=0 ;;
    --timeout)
      [[ $2 =~ ^[1-9][0-9]*$ ]] || wrong "--timeout $2: expected seconds"
      seconds=$2
      limit=(timeout -k 10 "$2")
      shift
      ;;
    --collect) collect=$(folder_of "$2") && shift ;;
    --bin) bin=$(folder_of "$2") && shift ;;
    *) break ;;
  esac
  shift
done
arguments=("$@")
[ ${#only[@]} -gt 0 ] || only=("${all[@]}")
((usual + plain + sanitize)) || wrong "these options leave nothing to run"
[ -z "$bin" ] || [ -z "$collect" ] || wrong "--bin and --collect: one of them"

# Whether a part was asked for.
asked() {
  [[ " ${only[*]} " == *" $1 "* ]]
}

# The path of a program: where cargo puts it, by its own words.
program() {
  "$1" "$2" --quiet --message-format=json "${@:3}" | python3 -c '
import json, sys
tests = sys.argv[1] == "test"
found = [json.loads(line) for line in sys.stdin if line.startswith("{")]
found = [m["executable"] for m in found if m.get("executable") and m.get("profile", {}).get("test") == tests]
sys.exit(f"expected one program, found {found}") if len(found) != 1 else print(found[0])' "$2"
}

# The path of a program by the name that it has in a folder of programs.
built() {
  case "$1" in
    find_cuda | device) program workspace build --example "$1" ;;
    operations) program workspace test --no-run --test device ;;
    backends) program workspace test --no-run --test backends ;;
    # Of one package: the libraries of the others have tests, too.
    kinds) program cargo test --release --locked --no-run -p htc-loader --features cuda --lib ;;
    htc) program workspace build --bin htc ;;
  esac
}

if [ -n "$collect" ]; then
  mkdir -p "$collect"
  for name in find_cuda "${all[@]}" htc device; do
    path=$(built "$name")
    # Beside its place first: one that is running cannot be written to.
    cp "$path" "$collect/$name.unfinished"
    ! command -v strip >/dev/null || strip "$collect/$name.unfinished"
    mv "$collect/$name.unfinished" "$collect/$name"
  done
  # Tests find what they read from where they were built.
  pwd -P >"$collect/built_in"
  du -ch "$collect"/*
  exit 0
fi

if [ -n "$bin" ]; then
  needed=(find_cuda "${only[@]}")
  [[ " ${only[*]} " != *" backends "* ]] || needed+=(htc)
  for name in "${needed[@]}"; do
    [ -x "$bin/$name" ] || wrong "failed: $bin/$name is missing: --bin names a folder that --collect made"
  done
  tree=$(cat "$bin/built_in" 2>/dev/null || pwd -P)
  if [ ! -d "$tree/tests/fixtures/architectures" ] || [ ! -d "$tree/assets/demo" ]; then
    remedy="mkdir -p '$(dirname "$tree")' && ln -s '$(pwd -P)' '$tree'"
    [ ! -e "$tree" ] && [ ! -L "$tree" ] || remedy="mv '$tree' '$tree.away' && $remedy"
    wrong "failed: the tests read files below $tree, where they were built, and they are not there: $remedy"
  fi
fi

# Where a program is.
find_program() {
  if [ -n "$bin" ]; then echo "$bin/$1"; else built "$1"; fi
}

folder=$(scripts/cuda_libraries.sh) || echo "no NVRTC was found: kernels cannot be compiled, and every test that executes one fails"
[ -z "${folder:-}" ] || export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

finder=$(find_program find_cuda)
if ! found=$("$finder"); then
  echo "skipped: no device ($found)"
  exit 0
fi
echo "$found"
# Tests that look for a device themselves fail from here on where they find none.
export HTC_NEED_CUDA=1
log=$(mktemp)
trap 'rm -f "$log"' EXIT

declare -A programs
for part in "${only[@]}"; do
  programs[$part]=$(find_program "$part")
done
# Some tests of the backends have the program compile what they execute.
if asked backends; then
  HTC_BIN=$(find_program htc)
  export HTC_BIN
fi

failed=()
ran=0
# Runs a program of tests, and keeps whether it failed. One that ran no test has failed, too, unless a filter was given: such a
# filter may name tests of another part.
run() {
  local what=$1 code=0 began=$SECONDS passed
  shift
  echo "== $what"
  "${limit[@]}" "$@" 2>&1 | tee "$log" || code=${PIPESTATUS[0]}
  # A program that was stopped tells no sum.
  passed=$(awk '/^test .* ok$/ { each++ } /^test result: / { sum += $4; told = 1 } END { print told ? sum : each + 0 }' "$log")
  echo "== $what: $passed passed, $((SECONDS - began)) s"
  ran=$((ran + passed))
  if [ -n "$seconds" ] && { [ "$code" = 124 ] || [ "$code" = 137 ]; }; then
    failed+=("$what did not end in $seconds s")
  elif [ "$code" != 0 ]; then
    failed+=("$what ended with $code")
  elif [ "$passed" = 0 ] && [ ${#arguments[@]} = 0 ]; then
    failed+=("$what ran no test")
  fi
}

# A program of tests from the folder of its package, from which tests find what they read. One test at a time: they share the
# device's memory.
tests() {
  local what=$1 folder=$2 part=$3
  shift 3
  ! asked "$part" || run "$what" env -C "$folder" "${under[@]}" "${programs[$part]}" --test-threads=1 "$@"
}

# Filters add up, so that one beside these would take nothing away; what is ignored is the device's in any case.
of_backends=(on::cuda) of_kinds=(cuda)
[ ${#arguments[@]} = 0 ] || of_backends=() of_kinds=()
each() {
  under=()
  tests "${name}operations" kernels operations "${arguments[@]}"
  tests "${name}backends" tests backends --ignored "${of_backends[@]}" "${arguments[@]}"
  tests "${name}kinds of KV cache" loader kinds --ignored "${of_kinds[@]}" "${arguments[@]}"
}

name=""
[ "$usual" = 0 ] || each
name="without tensor cores: "
[ "$plain" = 0 ] || HTC_PLAIN_MMA=1 each

# What is slow by itself takes hours under a sanitizer: these launch each kind of kernel on little, with bands and refinements
# (coded), products that count who has arrived (projections) and keys in low rank (kinds).
few=(
  activations attention biases_and_sums layers_track_their_own_positions coded embedding logits norms
  buffers_round_trip projections rotations requested_logits_suffice_for_sampling
)
few_kinds=(--exact kv::tests::gpu::cuda_and_the_oracle_agree_on_every_kind)
[ ${#arguments[@]} = 0 ] || few_kinds=()
sanitizer=$(command -v compute-sanitizer || compgen -G "/usr/local/cuda*/bin/compute-sanitizer" | head -1 || true)
if [ "$sanitize" = 1 ] && [ -z "$sanitizer" ]; then
  echo "skipped: compute-sanitizer (memcheck, racecheck, synccheck): not found in PATH or /usr/local/cuda*/bin"
elif [ "$sanitize" = 1 ]; then
  few=(--exact "${few[@]/#/on::cuda::}")
  [ ${#arguments[@]} = 0 ] || few=()
  for tool in memcheck racecheck synccheck; do
    # A kernel is asked of each module until one has it: that those before have not is no fault of a call.
    under=("$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 9)
    # The libraries' own kernels, on large matrices, are not ours to look at.
    tests "$tool: operations" kernels operations --skip matrices_are_decomposed "${arguments[@]}"
    tests "$tool: backends" tests backends --ignored "${few[@]}" "${arguments[@]}"
    tests "$tool: kinds of KV cache" loader kinds --ignored "${few_kinds[@]}" "${arguments[@]}"
  done
fi

[ "$ran" -gt 0 ] || [ ${#failed[@]} -gt 0 ] || failed+=("no test ran")
if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}"
  exit 1
fi
