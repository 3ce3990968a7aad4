#!/usr/bin/env python3
"""Measures how the speed of decoding grows as the rank falls: artifacts against their source.

    python3 scripts/bench_ranks.py random-1b-4-layers.gguf --folder ranks/ --threads 2

The source is compiled once per ratio (method gp, all projections, q8_0 factors unless told otherwise)
and decoded dense and from each artifact: tokens/s of --tokens forward passes behind a prompt of
--depth tokens. Every round runs all of them, alternating the direction; the first round is a
warm-up and dropped. The speed-up is the median over the rounds of artifact over dense, its
interval a 95 % percentile bootstrap over rounds. Quality is not measured here; random weights
have none.

Weights of a Q8_0 source and q8_0 factors take the same bytes per parameter, so that a ratio of
bytes is a ratio of parameters; from an f16 source half of the gain is the change of type.

Artifacts are kept in --folder, and one that is there already is taken as it is.
"""

import statistics

import measuring as m


def arguments():
    parser = m.parser(__doc__, models="?", text=True)
    parser.add_argument(
        "--ratios",
        type=m.numbers(float, 0.0),
        default=[0.9, 0.75, 0.5, 0.25],
        metavar="LIST",
        help="[default: 0.9,0.75,0.5,0.25]",
    )
    parser.add_argument("--method", choices=["gp", "grc"], default="gp", help="[default: gp]")
    parser.add_argument("--projections", metavar="LIST", help="[default: the method's]")
    parser.add_argument("--factor-type", default="q8_0", metavar="T", help="[default: q8_0]")
    parser.add_argument("--threads", type=m.count, default=2, metavar="N", help="[default: 2]")
    parser.add_argument("--rounds", type=m.count, default=8, metavar="N", help="[default: 8]")
    parser.add_argument("--depth", type=m.count, default=8, metavar="N", help="tokens before decoding [default: 8]")
    parser.add_argument("--tokens", type=m.count, default=128, metavar="N", help="tokens decoded [default: 128]")
    parser.add_argument("--folder", type=m.pathlib.Path, help="where artifacts are kept [default: nowhere]")
    options = m.parse(parser)
    # argparse gives one model, or the list that is the default.
    options.model = options.models[0] if isinstance(options.models, list) else options.models
    return options


def compiled(options, ratio, folder):
    """The artifact of a ratio, made if need be."""
    kind = f"{options.method}-{options.projections or 'all'}-{options.factor_type}".replace(",", "")
    path = folder / f"{options.model.stem}-{kind}-{ratio}.htz"
    if not path.exists():
        m.say(f"compiling {path.name}")
        projections = ("--projections", options.projections) if options.projections else ()
        m.htc(
            options,
            *("compile", options.model, "-o", path, "--method", options.method, "--ratio", ratio),
            *("--factor-type", options.factor_type, "--threads", options.threads, *projections),
        )
    return path


def main():
    options = arguments()
    rows, results = [], []
    with m.work_folder(options.folder) as folder:
        models = {"dense": options.model}
        models.update((str(r), compiled(options, r, folder)) for r in options.ratios)
        prompt = m.prompt_file(options, options.model, options.depth, folder)
        watch = m.Watch()
        speeds = {name: [] for name in models}
        for turn in range(-1, options.rounds):
            m.say(f"round {turn + 1} of {options.rounds}")
            for name in m.rotated(models, turn):
                speed = m.decode_speed(
                    options, models[name], prompt, options.depth, options.tokens, options.threads
                )
                if turn >= 0:
                    speeds[name].append(speed)
        dense = m.weight_bytes(options, options.model)
        for name, path in models.items():
            size, weights = path.stat().st_size, m.weight_bytes(options, path)
            speed = statistics.median(speeds[name])
            gain = m.interval(list(zip(speeds[name], speeds["dense"])))
            rows.append(
                [
                    name,
                    f"{size / 1e6:.1f}",
                    f"{weights / dense:.3f}",
                    f"{speed:.1f}",
                    "1" if name == "dense" else m.show_interval(gain),
                    f"{speed * weights / 1e9:.1f}",
                ]
            )
            results.append(
                {
                    "ratio": name,
                    "file_bytes": size,
                    "weight_bytes": weights,
                    "tokens_per_s": speeds[name],
                    "gain": gain,
                }
            )
        heads = ["ratio", "file, MB", "weights, of dense", "tokens/s", "speed-up (95 % interval)", "GB/s"]
        notes = [
            f"{options.model.name}, --method {options.method} --projections {options.projections or 'default'} "
            f"--factor-type {options.factor_type}, {options.threads} threads, decode of {options.tokens} "
            f"tokens; medians of {options.rounds} interleaved rounds."
        ]
        m.finish(options, watch, rows, heads, notes, {"model": options.model.name, "results": results})


if __name__ == "__main__":
    main()
