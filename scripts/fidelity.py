#!/usr/bin/env python3
"""What files of several sizes lose: compiles a model to each size and measures every file on texts.

Prints a table in Markdown: bytes, what was foreseen, and on every text the KL divergence from the source with its
standard error and the ratio of perplexities. The texts decide nothing: what is calibrated on, and what chooses
among candidates, comes from --calibration (the text that ships with the program unless another is given).
--peer names a folder with llama.cpp's llama-imatrix and llama-quantize: its types are made with an importance
matrix of the same text, and measured by the same program on the same tokens. --json keeps the figures for
scripts/plot_fidelity.py.

usage: fidelity.py MODEL --sizes 3.2MB,4.4MB TEXT... [--calibration TEXT] [--chunks 24] [--htc target/release/htc]
                   [--peer BIN [--types Q4_K_S,Q6_K]] [--json OUT] [--options "--codes gguf"]
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SHIPPED = Path(__file__).parent.parent / "assets/calibration"
TYPES = "Q8_0,Q6_K,Q5_K_S,Q4_K_M,Q4_K_S,IQ4_XS,Q3_K_L,IQ3_S,IQ3_XXS,IQ2_M,IQ2_S,IQ2_XXS"


def run(command: list[str]) -> str:
    """What a command writes to its standard output."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def foreseen(report: dict) -> float | None:
    """The sum of what the matrices were expected to lose, of the plan's notes."""
    notes = report["plan"].get("allocation", {}).get("notes", [])
    found = (re.search(r"cost ([0-9.e-]+) nats", note) for note in notes)
    return next((float(match.group(1)) for match in found if match), None)


def measured(asked: argparse.Namespace, name: str, file: str, expected: float | None) -> dict:
    """The row of a file: what it loses on every text."""
    row = {"name": name, "bytes": Path(file).stat().st_size, "foreseen": expected, "texts": {}}
    for text in asked.texts:
        found = json.loads(
            run(
                [asked.htc, "eval", file, "--text", str(text), "--reference", str(asked.model)]
                + ["--chunks", asked.chunks, "--json"]
            )
        )
        keys = ["kl", "kl_stderr", "kl_interval", "perplexity_ratio", "perplexity_ratio_interval", "top1"]
        row["texts"][text.name] = {key: found[key] for key in keys}
    return row


def show(row: dict) -> None:
    """A line of the table."""
    of = row["texts"].values()
    cells = [f"{t['kl']:.5f} ± {t['kl_stderr']:.5f}, {t['perplexity_ratio']:.4f}" for t in of]
    expected = "" if row["foreseen"] is None else f"{row['foreseen']:.5f}"
    print(f"| {row['name']} | {row['bytes']:,} | {expected} | " + " | ".join(cells) + " |", flush=True)


def peers(asked: argparse.Namespace, folder: str, left_out: list[str]):
    """The rows of llama.cpp's types, with an importance matrix of the calibration's text."""
    text = asked.calibration
    if text == "shipped":
        text = f"{folder}/shipped.txt"
        parts = sorted(part for part in SHIPPED.glob("*.txt") if part.stem not in left_out)
        Path(text).write_text("\n\n".join(part.read_text() for part in parts))
    matrix, file = f"{folder}/imatrix.gguf", f"{folder}/peer.gguf"
    run([f"{asked.peer}/llama-imatrix", "-m", str(asked.model), "-f", text, "-o", matrix, "-c", "512", "-t", "2"])
    for kind in asked.types.split(","):
        run([f"{asked.peer}/llama-quantize", "--imatrix", matrix, str(asked.model), file, kind])
        yield measured(asked, f"llama.cpp {kind}", file, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--sizes", required=True, help="separated by commas, such as 3.2MB,4.4MB")
    parser.add_argument("--calibration", default="shipped")
    parser.add_argument("--chunks", default="24")
    parser.add_argument("--htc", default="target/release/htc")
    parser.add_argument("--options", default="", help="more options of htc compile")
    parser.add_argument("--peer", help="the folder of llama.cpp's programs")
    parser.add_argument("--types", default=TYPES, help="llama.cpp's types, separated by commas")
    parser.add_argument("--json", type=Path, help="where to keep the figures")
    asked = parser.parse_args()
    names = [text.name for text in asked.texts]
    print("| file | bytes | foreseen | " + " | ".join(names) + " |")
    print("| -- | --: | --: |" + " --: |" * len(names))
    rows, left_out = [], []
    with tempfile.TemporaryDirectory() as folder:
        artifact = f"{folder}/sized.htz"
        for size in asked.sizes.split(","):
            report = json.loads(
                run(
                    [asked.htc, "compile", str(asked.model), "-o", artifact, "--method", "quantise", "--file-size", size]
                    + ["--calibration", asked.calibration, "--cache", f"{folder}/cache", "--force", "--report", "json"]
                    + asked.options.split()
                )
            )
            left_out = report["calibration"]["texts"][0].get("left_out", [])
            rows.append(measured(asked, "htc", artifact, foreseen(report)))
            show(rows[-1])
        if asked.peer:
            for row in peers(asked, folder, left_out):
                rows.append(row)
                show(row)
    if asked.json:
        asked.json.write_text(json.dumps({"model": asked.model.name, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
