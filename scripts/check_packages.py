#!/usr/bin/env python3
"""Checks the packages of the published crates: licences and README, size, and that every file which
the code includes is in the package. `cargo package --no-verify` does not see the last."""

import posixpath
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATES = {
    "htc-formats": "formats",
    "htc-kernels": "kernels",
    "htc-loader": "loader",
    "htc-math": "compiler/math",
    "htc": "compiler",
}
REQUIRED = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE", "src/lib.rs"]
MAX_BYTES = 4_000_000
# The path, or the start of one that `concat!` builds.
INCLUDE = re.compile(r'\binclude(?:_str|_bytes)?!\(\s*(concat!\(\s*)?"([^"]+)"')


def is_test(path):
    return path.endswith("tests.rs") or "/tests/" in path


def faults(crate, folder):
    listed = subprocess.run(
        ["cargo", "package", "--locked", "--list", "--allow-dirty", "--package", crate],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\n")
    files = {name for name in listed if (folder / name).is_file()}
    for name in REQUIRED:
        if name not in files:
            yield f"{name} is not in the package"
    size = sum((folder / name).stat().st_size for name in files)
    if size > MAX_BYTES:
        yield f"{size} bytes, expected at most {MAX_BYTES}"
    for name in sorted(files):
        if not name.endswith(".rs") or is_test(name):
            continue
        for built, target in INCLUDE.findall((folder / name).read_text()):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
            included = any(f.startswith(path) for f in files) if built else path in files
            if not included:
                yield f"{name} includes {target}, which is not in the package"


def main():
    found = [
        f"{crate}: {fault}" for crate, folder in CRATES.items() for fault in faults(crate, ROOT / folder)
    ]
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    sys.exit(1 if found else 0)


main()
