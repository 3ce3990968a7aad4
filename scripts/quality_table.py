#!/usr/bin/env python3
"""Makes the table of quality: models x methods x ratios, beside the source and its quantisations.

    python3 scripts/quality_table.py
    python3 scripts/quality_table.py a.gguf b.gguf --text held-out.txt --llama-cpp DIR

Without models: the demo model on the demo's text. Each model is compiled once per method and
ratio and measured with `htc eval --reference`: perplexity in llama.cpp's protocol (windows of
--context tokens, second half scored) and its ratio to the source's, Kullback-Leibler divergence
from the source (nats per token), share of positions with the same likeliest token, each ± one
standard error over windows (the ratio: 95 % interval from paired differences). A ratio is parameters after
over before on the method's projections: all seven for gp, Q, K and V for grc; "bytes" are of the file.

Decode speed: tokens/s behind a short prompt, median of --rounds rounds over all rows of a model
in alternating order, after one that is dropped; the model is small, so it says little about
large ones.

With --llama-cpp the source is quantised too (llama-quantize), because low rank alone is beaten
by quantisation at equal bytes on most models, and a table that hides this misleads.
"""

import json
import statistics

import measuring as m


def arguments():
    parser = m.parser(__doc__, models="*", text=True, peer="optional")
    parser.add_argument("--methods", default="gp,grc", metavar="LIST", help="[default: gp,grc]")
    parser.add_argument(
        "--ratios",
        type=m.numbers(float, 0.0),
        default=[0.9, 0.75, 0.6, 0.5],
        metavar="LIST",
        help="[default: 0.9,0.75,0.6,0.5]",
    )
    parser.add_argument("--factor-type", default="q8_0", metavar="T", help="[default: q8_0]")
    parser.add_argument(
        "--quantise",
        default="Q8_0,Q6_K,Q5_K_S,Q4_K_S,Q4_0",
        metavar="LIST",
        help="llama-quantize's types [default: Q8_0,Q6_K,Q5_K_S,Q4_K_S,Q4_0]",
    )
    parser.add_argument("--context", type=m.count, default=512, metavar="N", help="[default: 512]")
    parser.add_argument("--chunks", type=m.count, metavar="N", help="windows [default: the whole text]")
    parser.add_argument("--threads", type=m.count, default=2, metavar="N", help="[default: 2]")
    parser.add_argument("--rounds", type=m.count, default=5, metavar="N", help="of the speed [default: 5]")
    parser.add_argument("--depth", type=m.count, default=8, metavar="N", help="tokens before decoding [default: 8]")
    parser.add_argument("--tokens", type=m.count, default=128, metavar="N", help="tokens decoded [default: 128]")
    parser.add_argument("--folder", type=m.pathlib.Path, help="where files are kept [default: nowhere]")
    return m.parse(parser)


def candidates(options, model, folder):
    """Everything that is measured for one model: name, file."""
    yield "source", model
    for method in options.methods.split(","):
        for ratio in options.ratios:
            path = folder / f"{model.stem}-{method}-{ratio}.htz"
            m.say(f"compiling {path.name}")
            m.htc(
                options,
                *("compile", model, "-o", path, "--method", method, "--ratio", ratio, "--force"),
                *("--factor-type", options.factor_type, "--threads", options.threads),
            )
            yield f"{method} {ratio}", path
    if options.llama_cpp:
        for kind in options.quantise.split(","):
            path = folder / f"{model.stem}-{kind.lower()}.gguf"
            m.say(f"quantising {path.name}")
            m.run([options.peer.program("llama-quantize"), model, path, kind])
            yield f"quantised {kind}", path


def evaluate(options, path, reference):
    chunks = ("--chunks", options.chunks) if options.chunks else ()
    against = ("--reference", reference) if reference else ()
    ended = m.htc(
        options,
        *("eval", path, "--text", options.text, "--context", options.context, *chunks, *against),
        *("--threads", options.threads, "--json"),
    )
    return json.loads(ended.out)


def speeds(options, files, folder):
    """Tokens/s of every file in every round."""
    prompt = m.prompt_file(options, files["source"], options.depth, folder)
    found = {name: [] for name in files}
    for turn in range(-1, options.rounds):
        for name in m.rotated(files, turn):
            speed = m.decode_speed(
                options, files[name], prompt, options.depth, options.tokens, options.threads
            )
            if turn >= 0:
                found[name].append(speed)
    return found


def off(error, digits, times=1):
    """A standard error; a single window has none."""
    return "" if error is None else f" ± {times * error:.{digits}f}"


def ends(interval):
    return "" if interval is None else f" ({interval[0]:.4f} to {interval[1]:.4f})"


def row(model, name, path, quality, speed):
    compared = "kl" in quality
    return [
        f"{model.stem}, {name}",
        f"{path.stat().st_size:,}",
        f"{100 * path.stat().st_size / model.stat().st_size:.1f} %",
        f"{quality['perplexity']:.2f}{off(quality['stderr'], 2)}",
        f"{quality['perplexity_ratio']:.4f}{ends(quality['perplexity_ratio_interval'])}" if compared else "1",
        f"{quality['kl']:.4f}{off(quality['kl_stderr'], 4)}" if compared else "0",
        f"{100 * quality['top1']:.1f}{off(quality['top1_stderr'], 1, 100)} %" if compared else "100 %",
        f"{speed:.0f}",
    ]


def main():
    options = arguments()
    rows, results = [], []
    watch = m.Watch()
    with m.work_folder(options.folder) as folder:
        for model in options.models:
            files = dict(candidates(options, model, folder))
            qualities = {}
            for name, path in files.items():
                m.say(f"measuring {path.name}")
                qualities[name] = evaluate(options, path, None if name == "source" else model)
            found = speeds(options, files, folder)
            for name, path in files.items():
                rows.append(row(model, name, path, qualities[name], statistics.median(found[name])))
                results.append(
                    {
                        "model": model.name,
                        "row": name,
                        "bytes": path.stat().st_size,
                        "quality": qualities[name],
                        "tokens_per_s": found[name],
                    }
                )
        first = results[0]["quality"]
        heads = [
            "model, method and ratio",
            "bytes",
            "of source",
            "perplexity",
            "of source's",
            "KL, nats",
            "same likeliest token",
            "decode, tokens/s",
        ]
        notes = [
            f"{options.text.name}, {first['chunks']} windows of {first['context']} tokens; factors in "
            f"{options.factor_type}; decode of {options.tokens} tokens on {options.threads} threads, "
            f"median of {options.rounds}."
        ]
        m.finish(options, watch, rows, heads, notes, {"text": options.text.name, "results": results})


if __name__ == "__main__":
    main()
