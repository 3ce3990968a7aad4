#!/usr/bin/env python3
"""What the allocators and the gauges do to a model: perplexity and KL divergence on held-out text.

    python3 scripts/weighting_table.py model.gguf --calibration train.txt --text test.txt

Every method, gauge, allocator and ratio of parameters is compiled with factors in f16 and
measured against the source. An entry is the perplexity over the source's, and the KL divergence in
nats. No speed is measured, so the machine may be busy.
"""

import json

import measuring as m


def arguments():
    parser = m.parser(__doc__, models="?", text=True)
    parser.add_argument("--calibration", type=m.pathlib.Path, required=True, metavar="FILE")
    parser.add_argument("--ratios", type=m.numbers(float, 0.0), default=[0.9, 0.8, 0.6], metavar="LIST")
    parser.add_argument("--methods", default="gp,grc", metavar="LIST")
    parser.add_argument("--gauges", default="none,activation,whiten", metavar="LIST")
    parser.add_argument(
        "--allocators", default="uniform,phase,curvature,waterfill,whitened", metavar="LIST"
    )
    parser.add_argument("--chunks", type=m.count, default=20, metavar="N", help="windows measured [default: 20]")
    options = m.parse(parser)
    options.model = options.models[0] if isinstance(options.models, list) else options.models
    return options


def measured(options, folder, method, gauge, allocator, ratio):
    """The evaluation of one artifact."""
    artifact = folder / "artifact.htz"
    m.htc(
        options,
        *("compile", options.model, "-o", artifact, "--force", "--factor-type", "f16"),
        *("--method", method, "--gauge", gauge, "--allocator", allocator, "--ratio", ratio),
        *("--calibration", options.calibration, "--cache", folder / "cache"),
    )
    ended = m.htc(
        options,
        *("eval", artifact, "--text", options.text, "--reference", options.model),
        *("--chunks", options.chunks, "--json"),
    )
    return json.loads(ended.out)


def main():
    options = arguments()
    rows, results = [], []
    watch = m.Watch()
    with m.work_folder(None) as folder:
        for method in options.methods.split(","):
            for gauge in options.gauges.split(","):
                for allocator in options.allocators.split(","):
                    row = [method, gauge, allocator]
                    for ratio in options.ratios:
                        found = measured(options, folder, method, gauge, allocator, ratio)
                        results.append([method, gauge, allocator, ratio, found])
                        row.append(f"{found['perplexity_ratio']:.3f} ({found['kl']:.4f})")
                    m.say(" ".join(row))
                    rows.append(row)
    heads = ["method", "gauge", "allocator", *(f"ratio {r}" for r in options.ratios)]
    notes = [
        f"{options.model.name} on {options.text.name}, {options.chunks} windows, calibrated on "
        f"{options.calibration.name}; perplexity over the source's (KL divergence, nats)."
    ]
    m.finish(options, watch, rows, heads, notes, {"rows": results})


if __name__ == "__main__":
    main()
