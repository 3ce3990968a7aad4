#!/usr/bin/env bash
# usage: demo.sh HTC ASSETS OUT
# Compiles the demo model, measures the artifact against its source, lets it write, and makes a page of it.
set -euo pipefail
htc=$1 assets=$2 out=$3
model=$assets/reference-7m-f16.gguf
artifact=$out/reference-7m.htz
mkdir -p "$out"

echo "== compile $model: the smallest within 1 % of perplexity on the program's own mix of texts"
"$htc" compile "$model" -o "$artifact" --force --report "$out/report.json" --cache "$out/cache"

echo
echo "== verify"
"$htc" verify "$artifact"

echo
echo "== measure the artifact against its source, on The Time Machine"
"$htc" eval "$artifact" --text "$assets/time_machine.txt" --reference "$model"

echo
echo "== let the artifact write"
prompt="It was a dark night, and the old man"
echo "$prompt ..."
"$htc" run "$artifact" -p "$prompt" -n 120 --seed 7

echo
echo "== look into the model, and make a page of all of it"
"$htc" analyse "$model" --calibration "$assets/alice.txt" --cache "$out/cache" -o "$out/analysis.json" --force
"$htc" report "$out/report.json" "$out/analysis.json" "$artifact" -o "$out/report.html" --force

echo
ls -l "$model" "$artifact"
echo "the report: $PWD/$out/report.html"
