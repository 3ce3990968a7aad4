#!/bin/sh
# Fuzzes the readers of formats/, and the tokenizers of loader/ on what they read.
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]
#
# SECONDS is per target (default 60); without targets all are run, one after another. Inputs
# that were worth keeping stay in formats/fuzz/corpus/, crashes in formats/fuzz/artifacts/: a
# crash becomes a test in formats/tests/ when it is mended.
set -eu

cd "$(dirname "$0")/../formats"

if ! cargo fuzz --version >/dev/null 2>&1; then
    cargo install cargo-fuzz --locked --debug
fi

seconds=${1:-60}
case $seconds in
'' | *[!0-9]*)
    echo "usage: scripts/fuzz.sh [SECONDS] [TARGET...]" >&2
    exit 2
    ;;
esac
[ $# -eq 0 ] || shift
[ $# -ne 0 ] || set -- bands gguf block htz learnt safetensors tokenizer

# The sanitizers are behind unstable flags, which the stable compiler takes with this.
export RUSTC_BOOTSTRAP=1

for target; do
    mkdir -p "fuzz/corpus/$target"
    # The second folder is read only: files of the tests are seeds.
    cargo fuzz run "$target" "fuzz/corpus/$target" tests/fixtures -- \
        -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=1024 -malloc_limit_mb=64 -timeout=5
done
