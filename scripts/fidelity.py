#!/usr/bin/env python3
"""What files of several sizes lose: compiles a model to each size and measures every file on texts.

    python3 scripts/fidelity.py MODEL TEXT... --sizes 3.2MB,4.4MB,balanced --json htc.json
    python3 scripts/fidelity.py MODEL TEXT... --llama-cpp DIR --types Q4_K_S,Q4_K_S/iq4_nl --json llama.cpp.json
    python3 scripts/fidelity.py --show htc.json llama.cpp.json

Prints a table in Markdown: bytes, what was foreseen, and on every text the KL divergence from the model in nats per
token with its standard error over windows, the ratio of perplexities, how often the same token is likeliest, and behind rows of llama.cpp in brackets what part
of their divergence that is at equal bytes. The texts decide nothing: what is calibrated on, and
what chooses among candidates, comes from --calibration (the text that ships with the program unless another is given).

Sizes are of the whole file, or presets. With --llama-cpp its types are made with an importance matrix of the same
calibration text, and measured by the same program on the same tokens; behind a slash stands what is given as
--token-embedding-type. A type that llama-quantize refuses is named, and left out. --own measures every file that
llama.cpp reads by its own llama-perplexity as well (on its own positions: the second half of every window).

--json keeps the figures after every file, for scripts/plot_fidelity.py and --show, and a run that finds some of its rows
there goes on behind them; --keep names a folder for statistics that the next run with the same model and text finds again.
"""

import argparse
import json
import math
import re
from pathlib import Path

import measuring as m

SHIPPED = m.ROOT / "compiler/assets/calibration"
TYPES = (
    "Q8_0,Q6_K,Q5_K_M,Q5_K_S,Q4_K_M,Q4_K_S,IQ4_NL,IQ4_XS,Q4_0,Q3_K_L,Q3_K_M,Q3_K_S,IQ3_M,IQ3_S,IQ3_XS,IQ3_XXS,"
    "Q2_K,Q2_K_S,IQ2_M,IQ2_S,IQ2_XS,IQ2_XXS,IQ1_M,IQ1_S"
)
KEPT = ["kl", "kl_stderr", "kl_interval", "perplexity_ratio", "perplexity_ratio_interval", "top1", "chunks", "context"]


def arguments():
    parser = m.parser(__doc__, models=None, peer="optional")
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("texts", type=Path, nargs="*")
    parser.add_argument("--sizes", default="", metavar="LIST", help="such as 3.2MB,4.4MB,balanced")
    parser.add_argument("--options", default="", help="more options of htc compile")
    parser.add_argument("--types", default=TYPES, metavar="LIST", help="llama-quantize's types [default: 24 of them]")
    parser.add_argument("--calibration", default="shipped", metavar="TEXT", help="[default: shipped]")
    parser.add_argument("--context", default="512", metavar="N", help="tokens of a window [default: 512]")
    parser.add_argument("--chunks", default="24", metavar="N", help="windows of each text [default: 24]")
    parser.add_argument("--threads", default="2", metavar="N", help="[default: 2]")
    parser.add_argument("--own", action="store_true", help="measure by llama-perplexity as well")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder for statistics [default: nowhere]")
    parser.add_argument("--show", type=Path, nargs="+", metavar="JSON", help="print the table of figures that are there")
    asked = m.parse(parser)
    if not asked.show and (not asked.texts or not (asked.sizes or asked.llama_cpp)):
        parser.error("a model, texts, and --sizes or --llama-cpp (or --show)")
    return asked


def foreseen(report):
    """The sum of what the matrices were expected to lose, of the plan's notes."""
    notes = report["plan"].get("allocation", {}).get("notes", [])
    found = (re.search(r"cost ([0-9.e-]+) nats", note) for note in notes)
    return next((float(match.group(1)) for match in found if match), None)


def measured(asked, name, file, made, expected=None):
    """The row of a file: what it loses on every text, and what it took to make."""
    row = {"name": name, "bytes": file.stat().st_size, "foreseen": expected}
    row |= {"processor_seconds": round(made.processor, 1), "seconds": round(made.seconds, 1), "peak": made.peak}
    row["texts"] = {}
    for text in asked.texts:
        ended = m.htc(
            asked,
            *("eval", file, "--text", text, "--reference", asked.model, "--threads", asked.threads),
            *("--context", asked.context, "--chunks", asked.chunks, "--json"),
        )
        found = json.loads(ended.out)
        row["texts"][text.name] = {key: found[key] for key in KEPT if key in found}
    return row


def own(asked, file, folder):
    """What llama-perplexity says of a file: KL divergence, its error, ratio of perplexities, on the first text."""
    base = folder / "logits"
    common = ["-f", asked.texts[0], "-c", asked.context, "-b", asked.context, "--chunks", asked.chunks, "-t", asked.threads]
    program = asked.peer.program("llama-perplexity")
    if not base.exists():
        m.run([program, "-m", asked.model, *common, "--save-all-logits", base])
    # Now and then it ends without its last lines.
    for _ in range(5):
        ended = m.run([program, "-m", file, *common, "--kl-divergence-base", base, "--kl-divergence"])
        kl = re.search(r"Mean\s+KLD:\s*([-\d.]+)\s*±\s*([\d.]+)", ended.out)
        ratio = re.search(r"Mean PPL\(Q\)/PPL\(base\)\s*:\s*([\d.]+)", ended.out)
        if kl and ratio:
            return {"kl": float(kl[1]), "kl_stderr": float(kl[2]), "perplexity_ratio": float(ratio[1])}
    m.say(f"llama-perplexity: no line is about KLD: {ended.out.strip()[-200:]!r}")
    return None


def calibration_file(asked, folder):
    """The text that an importance matrix is made of: for the shipped one the parts that htc takes, too."""
    if asked.calibration != "shipped":
        return Path(asked.calibration)
    kept = []
    for part in sorted(SHIPPED.glob("*.txt")):
        text = part.read_text(encoding="utf-8").rstrip().replace("\n%%\n", "\n\n")
        (folder / "part.txt").write_text(text, encoding="utf-8")
        tokens = json.loads(m.htc(asked, "tokenize", asked.model, "--text", folder / "part.txt", "--json").out)["tokens"]
        # As htc does: the vocabulary has no tokens for this script.
        if 2 * len(tokens) <= 3 * len(text):
            kept.append(text)
        else:
            m.say(f"left out of the text: {part.stem}")
    (folder / "shipped.txt").write_text("\n\n".join(kept), encoding="utf-8")
    return folder / "shipped.txt"


def importance(asked, folder):
    """llama.cpp's importance matrix of the calibration text."""
    matrix = folder / "imatrix.gguf"
    if not matrix.exists():
        program = asked.peer.program("llama-imatrix")
        text = calibration_file(asked, folder)
        m.run([program, "-m", asked.model, "-f", text, "-o", matrix, "-c", asked.context, "-t", asked.threads])
    return matrix


def peers(asked, folder, there):
    """The rows of llama.cpp's types but for those that are there."""
    matrix, file = importance(asked, folder), folder / "peer.gguf"
    program = asked.peer.program("llama-quantize")
    for name in asked.types.split(","):
        if any(row["name"] == f"llama.cpp {name}" for row in there):
            continue
        kind, _, embedding = name.partition("/")
        more = ["--token-embedding-type", embedding] if embedding else []
        file.unlink(missing_ok=True)
        try:
            made = m.run(
                [program, "--allow-requantize", "--imatrix", matrix, *more, asked.model, file, kind, asked.threads]
            )
        except m.Failed as failure:
            m.say(f"llama-quantize refuses {name}: {failure}")
            continue
        row = measured(asked, f"llama.cpp {name}", file, made)
        if asked.own:
            row["llama-perplexity"] = own(asked, file, folder)
        yield row


def sized(asked, folder, there):
    """The rows of htc's artifacts but for those that are there."""
    artifact, name = folder / "sized.htz", " ".join(["htc", *asked.options.split()])
    for size in asked.sizes.split(","):
        if any((row["name"], row["asked"]) == (name, size) for row in there):
            continue
        m.say(f"htc, {size}")
        asks = ["--target-size", size] if size[0].isdigit() else ["--preset", size]
        made = m.htc(
            asked,
            *("compile", asked.model, "-o", artifact, "--method", "quantise", *asks, "--threads", asked.threads),
            *("--calibration", asked.calibration, "--cache", folder / "cache", "--context", asked.context),
            *("--compare", "off", "--force", "--report", "json", *asked.options.split()),
        )
        report = json.loads(made.out)
        row = measured(asked, name, artifact, made, foreseen(report))
        row["asked"] = size
        if asked.own:
            exported = folder / "exported.gguf"
            m.htc(asked, "export", artifact, "-o", exported, "--force")
            row["llama-perplexity"] = own(asked, exported, folder)
        yield row


def beside(rows, name, size):
    """The divergence of llama.cpp's files on a text at so many bytes: between the two sizes around, of those that no smaller
    one beats, along a line in the logarithm. None beyond them."""
    peers = [row for row in rows if row["name"].startswith("llama.cpp") and name in row["texts"]]
    best = []
    for row in sorted(peers, key=lambda row: row["bytes"]):
        kl = row["texts"][name]["kl"]
        if not best or kl < best[-1][1]:
            best.append((row["bytes"], kl))
    for (small, lossy), (large, close) in zip(best, best[1:]):
        if small <= size <= large:
            part = (size - small) / (large - small)
            return math.exp((1 - part) * math.log(lossy) + part * math.log(close))
    return None


def cell(rows, row, name):
    """What a file loses on a text, and how often both think the same token likeliest; in brackets the part of what llama.cpp's files lose in as many bytes."""
    if name not in row["texts"]:
        return ""
    found = row["texts"][name]
    said = f"{found['kl']:.5f} ± {found['kl_stderr']:.5f}, {found['perplexity_ratio']:.4f}, {100 * found['top1']:.1f} %"
    if not row["name"].startswith("llama.cpp") and (peer := beside(rows, name, row["bytes"])):
        said += f" ({found['kl'] / peer:.2f})"
    return said


def show(rows):
    """The table."""
    names = list(rows[0]["texts"])
    heads = ["file", "bytes", "foreseen", *names]
    with_own = any(row.get("llama-perplexity") for row in rows)
    lines = []
    for row in sorted(rows, key=lambda row: (row["name"].startswith("llama.cpp"), row["bytes"])):
        cells = [cell(rows, row, name) for name in names]
        expected = "" if row.get("foreseen") is None else f"{row['foreseen']:.5f}"
        line = [row["name"], f"{row['bytes']:,}", expected, *cells]
        if with_own:
            said = row.get("llama-perplexity")
            line.append(f"{said['kl']:.5f} ± {said['kl_stderr']:.5f}, {said['perplexity_ratio']:.4f}" if said else "")
        lines.append(line)
    if with_own:
        heads.append(f"llama-perplexity, {names[0]}")
    print(m.table(heads, lines))


def measure(asked, folder):
    """Every row, each kept as soon as it is there."""
    whole = {"program": m.htc(asked, "--version").out.strip(), "machine": m.machine()}
    whole |= {"model": asked.model.name, "model_bytes": asked.model.stat().st_size}
    whole |= {"calibration": Path(asked.calibration).name, "options": asked.options, "rows": []}
    if asked.json and asked.json.exists():
        found = json.loads(asked.json.read_text())
        if any(found[key] != whole[key] for key in ("model", "model_bytes", "calibration")):
            raise SystemExit(f"{asked.json} is of another model or text; give another file")
        whole["rows"] = found["rows"]
    # With sizes llama.cpp's programs are there for --own alone.
    make = sized if asked.sizes else peers
    for row in make(asked, folder, list(whole["rows"])):
        whole["rows"].append(row)
        kls = ", ".join(f"{text['kl']:.5f}" for text in row["texts"].values())
        m.say(f"{row['name']}: {row['bytes']:,} bytes, KL {kls}; {row['seconds']} s")
        if asked.json:
            asked.json.write_text(json.dumps(whole, indent=1) + "\n")
    return whole["rows"]


def main():
    asked = arguments()
    if asked.show:
        rows = [row for file in asked.show for row in json.loads(file.read_text())["rows"]]
    else:
        with m.work_folder(asked.keep) as folder:
            rows = measure(asked, folder)
    if rows:
        show(rows)


if __name__ == "__main__":
    main()
