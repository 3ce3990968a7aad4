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
SILENT = re.compile("|".join([r"//[^\n]*", r"b?'(?:\\.|[^'\\\n])'", r'"(?:\\.|[^"\\])*"']), re.DOTALL)
USED = re.compile(r"\b(crate|super(?:::super)*)::(?:(\w+)|\{)")
# The macro for lines to people is that of the command line.
SAID = re.compile(r"\bsay!")


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


def uses(source: Path, module: tuple[str, ...]) -> list[tuple[int, str]]:
    """Line and layer of every use of another module of the crate, in the file of a module."""
    text = SILENT.sub(lambda m: "\n" * m.group().count("\n"), source.read_text())
    found = []
    for use in USED.finditer(text):
        # `super` of a layer is the crate; of what is in it, the layer, within which everything may be used.
        if use.group(1) != "crate" and use.group(1).count("super") != len(module):
            continue
        names = [use.group(2)] if use.group(2) else names_in_braces(text, use.end() - 1)
        line = text.count("\n", 0, use.start()) + 1
        found += [(line, name) for name in names]
    found += [(text.count("\n", 0, said.start()) + 1, "app") for said in SAID.finditer(text)]
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
        module = source.relative_to(root).with_suffix("").parts
        module = module[:-1] if module[-1] == "mod" else module
        for line, name in uses(source, module):
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
