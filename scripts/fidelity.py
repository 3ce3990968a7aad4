#!/usr/bin/env python3
"""What files of several sizes lose: compiles a model to each size and measures every file on texts.

Prints a table in Markdown: bytes, what was foreseen, and on every text the KL divergence from the source with its
standard error and the ratio of perplexities. The texts decide nothing: what is calibrated on, and what chooses
among candidates, comes from --calibration (the text that ships with the program unless another is given).

usage: fidelity.py MODEL --sizes 3.2MB,4.4MB TEXT... [--calibration TEXT] [--chunks 24] [--htc target/release/htc]
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def run(command: list[str]) -> dict:
    """The JSON that a command writes to its standard output."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def foreseen(report: dict) -> str:
    """The sum of what the matrices were expected to lose, of the plan's notes."""
    notes = report["plan"].get("allocation", {}).get("notes", [])
    found = (re.search(r"cost ([0-9.e-]+) nats", note) for note in notes)
    return next((f"{float(match.group(1)):.5f}" for match in found if match), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--sizes", required=True, help="separated by commas, such as 3.2MB,4.4MB")
    parser.add_argument("--calibration", default="shipped")
    parser.add_argument("--chunks", default="24")
    parser.add_argument("--htc", default="target/release/htc")
    asked = parser.parse_args()
    names = [text.name for text in asked.texts]
    print("| bytes | foreseen | " + " | ".join(names) + " |")
    print("| --: | --: |" + " --: |" * len(names))
    with tempfile.TemporaryDirectory() as folder:
        for size in asked.sizes.split(","):
            artifact = f"{folder}/sized.htz"
            report = run(
                [asked.htc, "compile", str(asked.model), "-o", artifact, "--method", "quantise", "--file-size", size]
                + ["--calibration", asked.calibration, "--cache", f"{folder}/cache", "--force", "--report", "json"]
            )
            cells = []
            for text in asked.texts:
                found = run(
                    [asked.htc, "eval", artifact, "--text", str(text), "--reference", str(asked.model)]
                    + ["--chunks", asked.chunks, "--json"]
                )
                cells.append(f"{found['kl']:.5f} ± {found['kl_stderr']:.5f}, {found['perplexity_ratio']:.4f}")
            print(f"| {report['bytes']['after']:,} | {foreseen(report)} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
