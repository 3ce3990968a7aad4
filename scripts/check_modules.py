#!/usr/bin/env python3
"""Finds source files that no module names: the compiler never sees them, and tests in them never run.

usage: check_modules.py (from the project's folder)
"""

import re
import subprocess
import sys
from pathlib import Path


def parents(file: Path) -> list[Path]:
    """Where the module of a file may be declared."""
    folder = file.parent.parent if file.name == "mod.rs" else file.parent
    return [folder / "lib.rs", folder / "main.rs", folder / "mod.rs", folder.with_suffix(".rs")]


def declared(file: Path) -> bool:
    name = file.parent.name if file.name == "mod.rs" else file.stem
    module = re.compile(rf"^\s*(pub(\([a-z: ]+\))? )?mod {name};", re.MULTILINE)
    path = re.compile(rf'#\[path = "[^"]*{re.escape(file.name)}"\]')
    texts = [parent.read_text() for parent in parents(file) if parent.exists()]
    folder = file.parent.parent if file.name == "mod.rs" else file.parent
    texts += [other.read_text() for other in folder.glob("*.rs") if other != file]
    # Programs of tests name what lies in a folder beside them by its path.
    beside = [other.read_text() for other in folder.parent.glob("*.rs")]
    return any(module.search(text) for text in texts) or any(path.search(text) for text in texts + beside)


def main() -> None:
    listed = subprocess.run(["git", "ls-files", "*.rs"], stdout=subprocess.PIPE, text=True, check=True).stdout
    files = [Path(line) for line in listed.split()]
    roots = {"lib.rs", "main.rs", "build.rs"}
    # Programs of their own: files right in these folders.
    own = {"examples", "tests", "benches", "fuzz_targets", "bin"}
    lost = [
        file
        for file in files
        if file.name not in roots
        and not (file.parent.name in own and "src" not in file.parts)
        and not (file.parent.name in {"bin", "fuzz_targets"})
        and not declared(file)
    ]
    for file in lost:
        print(f"{file}: no module names this file", file=sys.stderr)
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
