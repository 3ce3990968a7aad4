#!/usr/bin/env python3
"""Measures time and peak memory of `htc compile` against a numpy script that does the same.

    pip install numpy gguf==0.19
    python3 scripts/make_random_model.py random-1b-1-layer.gguf --shape 1b --layers 1 --type f16
    python3 scripts/bench_compile.py assets/demo/reference-7m-f16.gguf random-1b-1-layer.gguf

The script is baseline_numpy.py, with as many BLAS threads as htc has threads and the ranks that
htc chose. Both programs run in turn, alternating the order, after a warm-up of each. Times are wall times of
whole processes, and, for the part that is arithmetic, of the work without start-up and imports
as each program reports it. The ratio is the median over the pairs of numpy's time over htc's, its
interval a 95 % percentile bootstrap over pairs. Peak memory is the largest resident set that the
system reports (ru_maxrss, which counts mapped pages of the model that were touched).

To show that both did the same work, the largest difference of the projections' relative errors is
given; htc's are of what it stored, numpy's of the spectrum before quantisation, which differ by
what quantisation adds.

What is unequal, to numpy's advantage: htc also measures the error of every stored projection, digests
source and artifact, and forces the artifact to the disk.
"""

import json
import statistics
import sys

import measuring as m


def arguments():
    parser = m.parser(__doc__, models="*")
    parser.add_argument(
        "--methods", default="gp,grc", metavar="LIST", help="of gp and grc [default: gp,grc]"
    )
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--ratio", type=float, default=0.9, metavar="R", help="[default: 0.9]")
    budget.add_argument("--rank", type=m.count, metavar="N")
    parser.add_argument("--projections", metavar="LIST", help="[default: all for gp, q,k,v for grc]")
    parser.add_argument(
        "--floats", default="float32", metavar="LIST", help="numpy's arithmetic: float32,float64 [default: float32]"
    )
    parser.add_argument("--threads", type=m.count, default=2, metavar="N", help="of both [default: 2]")
    parser.add_argument("--pairs", type=m.count, default=8, metavar="N", help="[default: 8]")
    parser.add_argument("--folder", type=m.pathlib.Path, help="where both write [default: a temporary folder]")
    options = m.parse(parser)
    options.budget = ("--rank", options.rank) if options.rank else ("--ratio", options.ratio)
    return options


class Run:
    """One run of either program: wall time, its own account of the work, peak memory, and by
    projection the rank and the error."""

    def __init__(self, ended, work, projections):
        self.seconds, self.peak, self.work = ended.seconds, ended.peak, work
        self.projections = {
            p["id"]: (p["rank"], p["error"]) for p in projections if p.get("rank") is not None
        }


def ours(options, model, method, folder):
    out, report = folder / "artifact.htz", folder / "htc.json"
    projections = ("--projections", options.projections) if options.projections else ()
    ended = m.htc(
        options,
        *("compile", model, "-o", out, "--method", method, *options.budget, *projections),
        *("--threads", options.threads, "--force", "--report", report),
    )
    found = json.loads(report.read_text())
    return Run(ended, found["seconds"]["total"], found["plan"]["projections"])


def numpys(options, model, method, kind, folder):
    out, report = folder / "factors.bin", folder / "numpy.json"
    projections = ("--projections", options.projections) if options.projections else ()
    script = m.ROOT / "scripts/baseline_numpy.py"
    threads = {f"{name}_NUM_THREADS": str(options.threads) for name in ("OPENBLAS", "OMP", "MKL")}
    ended = m.run(
        [sys.executable, script, model, "--method", method, "--ranks", folder / "htc.json", *projections]
        + ["--float", kind, "--out", out, "--report", report],
        **threads,
    )
    found = json.loads(report.read_text())
    return Run(ended, found["seconds"], found["projections"])


def main():
    options = arguments()
    rows, results = [], []
    watch = m.Watch()
    with m.work_folder(options.folder) as folder:
        for model in options.models:
            for method in options.methods.split(","):
                for kind in options.floats.split(","):
                    pairs = []
                    programs = {
                        "htc": lambda: ours(options, model, method, folder),
                        "numpy": lambda: numpys(options, model, method, kind, folder),
                    }
                    for turn in range(-1, options.pairs):
                        m.say(f"{model.name}, {method}, {kind}: pair {turn + 1} of {options.pairs}")
                        # In the warm-up htc comes first: numpy takes the ranks of its report.
                        order = m.rotated(programs, max(turn, 0))
                        pair = {name: programs[name]() for name in order}
                        if turn >= 0:
                            pairs.append((pair["htc"], pair["numpy"]))
                    row, result = summary(f"{model.stem}, {method}, numpy in {kind}", pairs)
                    rows.append(row)
                    results.append({"model": model.name, "method": method, "numpy": kind, **result})
        heads = [
            "model, method",
            "htc, s",
            "numpy, s",
            "numpy / htc (95 % interval)",
            "the same, without start-up",
            "htc, peak MB",
            "numpy, peak MB",
            "projections",
            "errors differ by",
        ]
        budget_words = " ".join(str(word) for word in options.budget)
        notes = [
            f"{budget_words}, q8_0 factors, {options.threads} threads each; medians of {options.pairs} "
            "interleaved pairs."
        ]
        m.finish(options, watch, rows, heads, notes, {"results": results})


def summary(name, pairs):
    htc, numpy = zip(*pairs)
    median = statistics.median
    whole = m.interval([(b.seconds, a.seconds) for a, b in pairs])
    work = m.interval([(b.work, a.work) for a, b in pairs])
    first, other = htc[0].projections, numpy[0].projections
    both = first.keys() & other.keys()
    apart = max((abs(first[s][1] - other[s][1]) for s in both), default=0.0)
    row = [
        name,
        f"{median(r.seconds for r in htc):.2f}",
        f"{median(r.seconds for r in numpy):.2f}",
        m.show_interval(whole),
        m.show_interval(work),
        f"{median(r.peak for r in htc) / 1e6:.0f}",
        f"{median(r.peak for r in numpy) / 1e6:.0f}",
        f"{len(first)} / {len(other)}",
        f"{apart:.4f}",
    ]
    result = {
        name: {
            "seconds": [r.seconds for r in runs],
            "work_seconds": [r.work for r in runs],
            "peak_bytes": [r.peak for r in runs],
        }
        for name, runs in (("htc", htc), ("numpy", numpy))
    }
    return row, {"ratio": whole, "ratio_of_work": work, "largest_error_difference": apart, **result}


if __name__ == "__main__":
    main()
