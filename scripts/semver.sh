#!/usr/bin/env bash
# What of the libraries' public API changed against a baseline, and whether the version says so.
#
# usage: scripts/semver.sh [REVISION]
#
# The baseline is REVISION, else the last tag that is called v*, else the revision in scripts/semver.baseline.
# cargo-semver-checks builds the documentation of both states as JSON and compares them; it must be
# installed (cargo install cargo-semver-checks --locked), which takes minutes, as the comparison does, so
# neither is part of `make check`. Run it before a version is given.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo semver-checks --version >/dev/null 2>&1; then
  echo "cargo-semver-checks is not installed: cargo install cargo-semver-checks --locked" >&2
  exit 1
fi
baseline=${1:-$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || cat scripts/semver.baseline)}
if ! commit=$(git rev-parse --quiet --verify "$baseline^{commit}"); then
  echo "$baseline: no revision of this repository; give one, or fetch its history" >&2
  exit 1
fi
echo "== public API against $baseline"
# The crates are published nowhere, so each is named. The library is what remains without the command line.
for crate in htc-formats htc-kernels htc-loader htc-math; do
  cargo semver-checks --baseline-rev "$commit" --package "$crate"
done
cargo semver-checks --baseline-rev "$commit" --package htc --only-explicit-features
