#!/usr/bin/env python3
"""Measures what drafts gain: acceptance, and speed over writing without one.

    python3 scripts/bench_drafts.py elastic.htz --fractions .6,.8,1
    python3 scripts/bench_drafts.py small.htz large.htz --verifier model.gguf

Without --verifier a model drafts for itself, with a part of its weights; with it artifacts draft for the model that they were made from.
Of each of --prompts texts a part is the prompt, and --tokens tokens are written, without temperature. A run with a draft stands between two without;
the speed-up is the median over prompts and rounds of its tokens/s over their mean, its interval a 95 % percentile bootstrap. Texts that
differ end the script: a draft changes nothing of a greedy text.
"""

import json
import statistics

import measuring as m


def arguments():
    parser = m.parser(__doc__, models="+")
    parser.add_argument("--fractions", type=m.numbers(float, 0.0), metavar="LIST", help="parts that draft [default: 1]")
    parser.add_argument("--verifier", type=m.pathlib.Path, metavar="MODEL", help="what the models were made from")
    parser.add_argument("--lengths", default="2,4,8,auto", metavar="LIST", help="tokens of a draft [default: 2,4,8,auto]")
    parser.add_argument("--prompts", nargs="+", type=m.pathlib.Path, default=[m.TEXT], metavar="TEXT")
    parser.add_argument("--skip", type=int, default=3000, metavar="N", help="characters before a prompt [default: 3000]")
    parser.add_argument("--tokens", type=m.count, default=160, metavar="N", help="tokens written [default: 160]")
    parser.add_argument("--rounds", type=m.count, default=2, metavar="N", help="[default: 2]")
    parser.add_argument("--threads", type=m.count, default=1, metavar="N", help="[default: 1]")
    return m.parse(parser)


def write(options, prompt, model, *draft):
    """What `htc run --json` says."""
    run = ("run", model, *draft, "-p", prompt, "-n", options.tokens, "--temp", 0)
    return json.loads(m.htc(options, *run, "--ignore-eos", "--threads", options.threads, "--json").out)


def measured(options, prompts, plain, drafted):
    """A row: acceptance, tokens drafted and the speed-up."""
    pairs, found = [], []
    for _ in range(options.rounds):
        for prompt in prompts:
            before = write(options, prompt, plain)
            draft = write(options, prompt, *drafted)
            after = write(options, prompt, plain)
            if draft["text"] != before["text"]:
                raise SystemExit(f"{drafted}: another text than {plain} writes")
            mean = statistics.mean(run["tokens_per_second"] for run in (before, after))
            pairs.append((draft["tokens_per_second"], mean))
            found.append(draft)
    tried = sum(run["drafted"] for run in found)
    kept = sum(run["accepted"] for run in found)
    return [
        f"{kept / tried:.3f}" if tried else "–",
        f"{tried / len(found):.0f}",
        m.show_interval(m.interval(pairs)),
    ]


def main():
    options = arguments()
    texts = [path.read_text(encoding="utf-8") for path in options.prompts]
    prompts = [text[options.skip :][:400] for text in texts]
    watch, rows = m.Watch(), []
    for model in options.models:
        for fraction in options.fractions or [1.0]:
            drafts = ("--draft", fraction, *(("--verifier", options.verifier) if options.verifier else ()))
            for length in options.lengths.split(","):
                m.say(f"{model.name}, {fraction} of it, {length}")
                plain = options.verifier or model
                drafted = (model, *drafts, "--draft-length", length)
                row = measured(options, prompts, plain, drafted)
                rows.append([f"{model.name}, {fraction}", length, *row])
    heads = ["draft", "tokens of a draft", "kept", "drafted", "speed over none"]
    notes = [f"{options.tokens} tokens behind {len(prompts)} prompts of 400 characters, {options.threads} thread(s)"]
    m.finish(options, watch, rows, heads, notes, {"drafts": rows})


if __name__ == "__main__":
    main()
