#!/usr/bin/env python3
"""Checks that the compiler's modules import one way.

The order is the list in the documentation of compiler/src/lib.rs: a layer may use those that
stand before it.

usage: check_layers.py [compiler/src]
"""

import re
import sys
from pathlib import Path

LISTED = re.compile(r"^//! \d+\. `(\w+)`", re.MULTILINE)
# Comments and string literals name modules without using them.
SILENT = re.compile(r'//[^\n]*|"(?:\\.|[^"\\])*"', re.DOTALL)
USED = re.compile(r"\bcrate::(?:(\w+)|\{)")


def names_in_braces(text: str, start: int) -> list[str]:
    """The first names in `{a::b, c::{d, e}, f}`, whose brace is at `start`."""
    names, depth, begins = [], 0, False
    for token in re.finditer(r"[{},]|\w+|::|\*", text[start:]):
        match token.group():
            case "{":
                depth += 1
                begins = depth == 1
            case "}":
                depth -= 1
                if depth == 0:
                    return names
            case ",":
                begins = depth == 1
            case name:
                if begins:
                    names.append(name)
                begins = False
    return names


def uses(source: Path) -> list[tuple[int, str]]:
    """Line and layer of every use of another module of the crate."""
    text = SILENT.sub(lambda m: "\n" * m.group().count("\n"), source.read_text())
    found = []
    for use in USED.finditer(text):
        names = [use.group(1)] if use.group(1) else names_in_braces(text, use.end() - 1)
        line = text.count("\n", 0, use.start()) + 1
        found += [(line, name) for name in names]
    return found


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "compiler/src")
    order = LISTED.findall((root / "lib.rs").read_text())
    modules = {p.stem for p in root.iterdir() if p.is_dir() or p.suffix == ".rs"} - {"lib", "main"}
    wrong = [f"{root}/lib.rs: {name} has no layer" for name in sorted(modules - set(order))]
    wrong += [f"{root}/lib.rs: layer {name} is no module" for name in order if name not in modules]
    checked = 0
    for source in sorted(root.rglob("*.rs")):
        layer = source.relative_to(root).parts[0].removesuffix(".rs")
        if layer not in order:
            continue
        for line, name in uses(source):
            if name in order:
                checked += 1
                if order.index(name) > order.index(layer):
                    wrong.append(f"{source}:{line}: {layer} uses {name}, which comes after it")
    for fault in wrong:
        print(fault, file=sys.stderr)
    if not wrong:
        print(f"{checked} uses among {len(order)} layers, all downwards")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
