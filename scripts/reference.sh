#!/usr/bin/env bash
# usage: reference.sh HTC [--check]
# Writes docs/reference/ from the program: the options of every command, and the schemas of its JSON.
# With --check nothing is written, and what is out of date is an error.
set -euo pipefail
htc=$(realpath "$1")
cd "$(dirname "$0")/.."
made=docs/reference
if [ "${2:-}" = --check ]; then
  made=$(mktemp -d)
  trap 'rm -rf "$made"' EXIT
fi
mkdir -p "$made/schemas"
commands=$("$htc" --help | sed -n '/^Commands:/,/^Options:/p' | awk '/^  [a-z]/ { print $1 }' | grep -v '^help$')
{
  echo "# Command line"
  echo
  echo "Generated from the program by \`scripts/reference.sh\`: every command with all of its options, as"
  echo "\`htc COMMAND --help\` prints them; \`-h\` prints the important ones."
  for command in "" $commands; do
    echo
    echo "## htc${command:+ $command}"
    echo
    echo '```text'
    COLUMNS=100 "$htc" $command --help | sed 's/[[:space:]]*$//'
    echo '```'
  done
} > "$made/cli.md"
for document in $("$htc" schema --help | sed -n '/Possible values/,/^Options/p' | awk '/^ *- / { sub(":", "", $2); print $2 }'); do
  "$htc" schema "$document" > "$made/schemas/$document.json"
done
[ "$made" = docs/reference ] || diff -r docs/reference "$made" || {
  echo "docs/reference/ is out of date: run scripts/reference.sh target/release/htc"
  exit 1
}
