#!/usr/bin/env python3
"""Measures the speed of dense models in htc against llama.cpp on the same GGUF.

    pip install numpy gguf==0.19
    python3 scripts/make_random_model.py random-1b.gguf --shape 1b --type q8_0
    python3 scripts/bench_decode.py assets/demo/reference-7m-f16.gguf random-1b.gguf --llama-cpp DIR

With --peer-model llama.cpp runs another file, with --own-model htc itself does: an artifact in codes against
types of the same size. With --ik-llama-cpp DIR that fork takes part in every round, its weights repacked
when it loads them; it decodes from the first position on, whatever --depth says, and gets no --peer-options.

Decode: tokens/s of --tokens forward passes of one token each behind a prompt of --depth tokens;
both programs compute the same positions. Prefill: tokens/s of a prompt of --prompt tokens.

The programs run in turn, one round after the other, alternating which comes first; the first
round is a warm-up and dropped. The ratio is the median over the pairs of htc's speed over
llama.cpp's, its interval a 95 % percentile bootstrap over pairs with 10,000 samples. In every
pair the bandwidth of reading memory is measured too (numpy, an array of --read-test MiB).
Every file is dropped from the system's memory and read once before, so that no program's speed is
that of a file as its writer left it there.

What is unequal, all of it to llama.cpp's advantage: llama-bench computes once before it starts
its clock (htc's prefill includes the first touch of every page of weights) and does nothing
with the logits, where htc chooses a token and writes its text.
"""

import pathlib
import statistics

import measuring as m


def arguments():
    parser = m.parser(__doc__, models="*", text=True, peer="required")
    parser.add_argument("--threads", type=m.numbers(int, 1), default=[1, 2], metavar="LIST", help="[default: 1,2]")
    parser.add_argument("--pairs", type=m.count, default=8, metavar="N", help="[default: 8]")
    parser.add_argument("--depth", type=m.count, default=8, metavar="N", help="tokens before decoding [default: 8]")
    parser.add_argument("--tokens", type=m.count, default=128, metavar="N", help="tokens decoded [default: 128]")
    parser.add_argument("--prompt", type=m.count, default=512, metavar="N", help="tokens of prefill [default: 512]")
    parser.add_argument(
        "--read-test", type=m.count, default=2048, metavar="MIB", help="well above the cache [default: 2048]"
    )
    parser.add_argument(
        "--peer-options",
        default="",
        metavar="TEXT",
        help='more options for llama-bench, such as "--repack 0"',
    )
    parser.add_argument(
        "--ik-llama-cpp",
        type=pathlib.Path,
        metavar="DIR",
        help="a build of ik_llama.cpp, measured in the same rounds",
    )
    parser.add_argument(
        "--peer-model",
        type=pathlib.Path,
        metavar="GGUF",
        help="what llama.cpp runs instead, such as a file of the same size",
    )
    parser.add_argument(
        "--own-model",
        type=pathlib.Path,
        metavar="MODEL",
        help="what htc itself runs in llama.cpp's place",
    )
    return m.parse(parser)


def tasks(options, model, prompts):
    """What is measured: name, htc's speed at some threads, and by name those of what it is compared with."""
    own = options.own_model
    peer_model = options.peer_model or model
    decode = (options.depth, options.tokens)
    prefill = (options.prompt,)
    for task, f, lengths, asked in (
        ("decode", m.decode_speed, decode, ("-p", 0, "-n", options.tokens)),
        ("prefill", m.prefill_speed, prefill, ("-p", options.prompt, "-n", 0)),
    ):

        def run(t, of, f=f, lengths=lengths):
            return f(options, of, prompts[lengths[0]], *lengths, t)

        def llama(t, asked=asked, deep=task == "decode"):
            depth = ("-d", options.depth) if deep else ()
            return options.peer.bench(peer_model, t, *asked, *depth, *options.peer_options.split())[0]

        def ik_llama(t, asked=asked):
            return options.ik_peer.bench(peer_model, t, *asked, "-rtr", 1)[0]

        peers = {"htc": lambda t, run=run: run(t, own)} if own else {"llama.cpp": llama}
        if options.ik_llama_cpp:
            peers["ik_llama.cpp"] = ik_llama
        yield f"{task} {lengths[-1]}", (lambda t, run=run: run(t, model)), peers


def main():
    options = arguments()
    if options.ik_llama_cpp:
        options.ik_peer = m.Peer(options.ik_llama_cpp, "--ik-llama-cpp")
    read_test = m.ReadTest(options.read_test)
    watch = m.Watch()
    rows, results = [], []
    with m.work_folder(None) as folder:
        for model in options.models:
            for file in filter(None, (model, options.peer_model, options.own_model)):
                m.read_anew(file)
            size = m.weight_bytes(options, model)
            sizes = {
                "htc": m.weight_bytes(options, options.own_model or model),
                "llama.cpp": m.weight_bytes(options, options.peer_model or model),
            }
            sizes["ik_llama.cpp"] = sizes["llama.cpp"]
            prompts = {n: m.prompt_file(options, model, n, folder) for n in (options.depth, options.prompt)}
            for threads in options.threads:
                for name, ours, peers in tasks(options, model, prompts):
                    rounds, bandwidth = [], []
                    for turn in range(-1, options.pairs):
                        m.say(f"{model.name}, {threads} threads, {name}: round {turn + 1} of {options.pairs}")
                        speeds = {}
                        for who, program in m.rotated([("", ours), *peers.items()], turn):
                            speeds[who] = program(threads)
                        bandwidth.append(read_test.gigabytes_per_second(threads))
                        if turn >= 0:
                            rounds.append(speeds)
                    for who in peers:
                        pairs = [(speeds[""], speeds[who]) for speeds in rounds]
                        ratio = m.interval(pairs)
                        htc, peer = (statistics.median(column) for column in zip(*pairs))
                        read = statistics.median(bandwidth)
                        decode = name.startswith("decode")
                        rows.append(
                            [
                                f"{model.stem}, {threads} thread{'s' * (threads > 1)}, {name}, {who}",
                                f"{htc:.1f}",
                                f"{peer:.1f}",
                                m.show_interval(ratio),
                                f"{htc * size / 1e9:.1f}" if decode else "",
                                f"{peer * sizes[who] / 1e9:.1f}" if decode else "",
                                f"{read:.1f}",
                            ]
                        )
                        results.append(
                            {
                                "model": model.name,
                                "peer": who,
                                "weight_bytes": size,
                                "threads": threads,
                                "task": name,
                                "pairs": pairs,
                                "ratio": ratio,
                                "read_test_gb_per_s": bandwidth,
                            }
                        )
    heads = [
        "model, threads, task, peer",
        "htc, tokens/s",
        "peer, tokens/s",
        "ratio (95 % interval)",
        "htc, GB/s",
        "peer, GB/s",
        "read test, GB/s",
    ]
    notes = [
        f"Medians of {options.pairs} interleaved rounds; GB/s are bytes of weights times tokens/s.",
        f"Peer: htc with {options.own_model.name}."
        if options.own_model
        else f"Peer: {options.peer.describe(options.peer_model or options.models[0])} {options.peer_options}".rstrip()
        + (f", {options.peer_model.name}." if options.peer_model else "."),
    ]
    if options.ik_llama_cpp:
        notes.append(f"Peer: ik_{options.ik_peer.describe(options.peer_model or options.models[0])} -rtr 1.")
    m.finish(options, watch, rows, heads, notes, {"results": results})


if __name__ == "__main__":
    main()
