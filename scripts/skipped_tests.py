#!/usr/bin/env python3
"""Names the tests that passed without comparing anything: those that printed a line `skipped: WHY`.

    python3 scripts/skipped_tests.py target/nextest/default/junit.xml
"""

import re
import sys
import xml.etree.ElementTree as xml


def skipped(path):
    """Pairs of a test's name and why it, or a part of it, was skipped; each once."""
    found = {}
    for case in xml.parse(path).getroot().iter("testcase"):
        output = "".join(part.text or "" for part in case if part.tag in ("system-out", "system-err"))
        for why in re.findall(r"^skipped: (.*)$", output, re.MULTILINE):
            found[f"{case.get('classname')}::{case.get('name')}", why.strip()] = None
    return list(found)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    found = skipped(sys.argv[1])
    for name, why in found:
        print(f"skipped {name}: {why}")
    print(f"{len({name for name, _ in found})} tests skipped something")


if __name__ == "__main__":
    main()
