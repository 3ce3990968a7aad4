#!/usr/bin/env python3
"""What the allocators and the gauges do to a model: perplexity and KL divergence on held-out text.

    python3 scripts/treatment_table.py model.gguf --calibration train.txt --text test.txt

Every method, gauge, shrinkage (of whiten), sink, bias, allocator and ratio of parameters is compiled with factors in f16 and
measured against the source on the first bytes of the text. An entry is the perplexity over the source's,
and the KL divergence in nats. No speed is measured, so the machine may be busy.
"""

import itertools
import json

import measuring as m

# What an allocator cannot do without: tokens per joule as published for an RTX 4070 Laptop.
NEEDS = {"diffplan": ["--tokens-per-joule", "0.415"], "cachefit": ["--gpu", "l4"]}


def arguments():
    parser = m.parser(__doc__, models="?", text=True)
    parser.add_argument("--calibration", type=m.pathlib.Path, required=True, metavar="FILE")
    parser.add_argument("--ratios", type=m.numbers(float, 0.0), default=[0.9, 0.8, 0.6], metavar="LIST")
    parser.add_argument("--methods", default="gp,grc", metavar="LIST")
    parser.add_argument("--gauges", default="none,axiom,activation,whiten", metavar="LIST")
    parser.add_argument("--shrinkages", default="0.01", metavar="LIST", help="of whiten [default: 0.01]")
    parser.add_argument("--sinks", default="append", metavar="LIST")
    parser.add_argument("--biases", default="off", metavar="LIST")
    parser.add_argument(
        "--allocators",
        default="uniform,phase,curvature,waterfill,whitened,diffplan,cachefit",
        metavar="LIST",
    )
    parser.add_argument("--context", type=m.count, default=512, metavar="N", help="tokens of a window [default: 512]")
    parser.add_argument(
        "--bytes", type=m.count, default=32_000, metavar="N", help="bytes of the text measured on [default: 32000]"
    )
    options = m.parse(parser)
    options.model = options.models[0] if isinstance(options.models, list) else options.models
    return options


def measured(options, folder, method, gauge, shrinkage, sink, bias, allocator, ratio):
    """The evaluation of one artifact; what htc says where it is impossible."""
    held_out = folder / "held-out.txt"
    if not held_out.exists():
        text = options.text.read_bytes()[: options.bytes].decode(errors="ignore")
        held_out.write_text(text)
    try:
        ended = m.htc(
            options,
            *("compile", options.model, "-o", folder / "artifact.htz", "--force", "--factor-type", "f16"),
            *("--method", method, "--gauge", gauge, "--allocator", allocator, "--ratio", ratio),
            *("--sink", sink, "--bias", bias),
            *("--keep-gauge", "--calibration", options.calibration, "--cache", folder / "cache"),
            *("--context", options.context, "--held-out", held_out, "--report", "json"),
            *NEEDS.get(allocator, []),
            *(("--shrinkage", shrinkage) if gauge == "whiten" else ()),
        )
    except m.Failed as failed:
        return str(failed).splitlines()[-1]
    return json.loads(ended.out)["quality"]["evaluation"]


def main():
    options = arguments()
    rows, results, refused = [], [], []
    watch = m.Watch()
    with m.work_folder(None) as folder:
        lists = (options.methods, options.gauges, options.shrinkages)
        lists += (options.sinks, options.biases, options.allocators)
        wanted = itertools.product(*(of.split(",") for of in lists))
        # Other gauges than whiten have nothing to shrink: once is enough.
        wanted = dict.fromkeys(row if row[1] == "whiten" else (*row[:2], "", *row[3:]) for row in wanted)
        for row in wanted:
            entries = []
            for ratio in options.ratios:
                found = measured(options, folder, *row, ratio)
                results.append([*row, ratio, found])
                if isinstance(found, str):
                    refused.append(f"{' '.join(row)} {ratio}: {found}")
                    entries.append("refused")
                else:
                    entries.append(f"{found['perplexity_ratio']:.3f} ({found['kl']:.4f})")
            rows.append([*row, *entries])
            m.say(" ".join(rows[-1]))
    heads = ["method", "gauge", "shrinkage", "sink", "bias", "allocator", *(f"ratio {r}" for r in options.ratios)]
    notes = [
        f"{options.model.name} on the first {options.bytes} bytes of {options.text.name}, calibrated on "
        f"{options.calibration.name}; perplexity over the source's (KL divergence, nats).",
        *refused,
    ]
    m.finish(options, watch, rows, heads, notes, {"rows": results})


if __name__ == "__main__":
    main()
