#!/usr/bin/env python3
"""Measures the time to the first token of a large artifact that is not in memory.

    python3 scripts/make_random_model.py random-1b.gguf --shape 1b --type q8_0
    htc compile random-1b.gguf random-1b.htz --method low-rank --projections k --ratio 0.9
    sudo python3 scripts/bench_cold_start.py random-1b.htz

In every round, in alternating order:
- reading: `cat FILE` to nowhere, cold: the time the disk needs, which no program can beat;
- opening: `htc inspect FILE`, cold: the header and the manifest are read and checked;
- first token, cold: from the start of `htc run` to the first byte of its text; every weight is
  used for the first token, so all of them are read from the disk on the way;
- first token, warm: the same with the file in memory: the arithmetic, and mapping its pages.

A program that reads the file into memory and then computes needs about the sum of reading and
first token, warm; one that maps it needs less than that.

Cold means that the system's page cache was dropped (/proc/sys/vm/drop_caches, as root) or,
without the right to do so, that the file's own pages were (posix_fadvise); which one is said. In
the first case the programs themselves are read anew too, some ten MB. The bytes that each
program caused to be read from the disk are counted (ru_inblock) and show whether it worked. What
a hypervisor or a disk keeps in memory of its own is beyond reach.
"""

import os
import statistics
import subprocess
import time

import measuring as m

PROMPT = "Once upon a time"


def arguments():
    parser = m.parser(__doc__)
    parser.add_argument("model", metavar="FILE.htz", type=m.pathlib.Path)
    parser.add_argument("--threads", type=m.count, default=2, metavar="N", help="[default: 2]")
    parser.add_argument("--rounds", type=m.count, default=5, metavar="N", help="[default: 5]")
    options = m.parse(parser)
    if not options.model.is_file():
        parser.error(f"{options.model} is missing; --help tells how to make one")
    options.model = options.model.resolve()
    return options


def drop(path):
    """Takes the file out of the page cache; returns how."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as control:
            control.write("3\n")
        return "the page cache of the system dropped"
    except OSError:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return "the file's pages dropped by posix_fadvise"


def first_token(options):
    """Seconds to the first byte of text, and bytes read from the disk until the end."""
    command = [options.htc, "run", options.model, "-p", PROMPT, "-n", "1", "--temp", "0", "--ignore-eos"]
    started = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--threads", str(options.threads)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    text = os.read(process.stdout.fileno(), 1)
    seconds = time.perf_counter() - started
    process.stdout.read()
    err = process.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or not text:
        raise SystemExit(f"htc run failed: {err.strip()}")
    return seconds, usage.ru_inblock * 512


def whole(command):
    ended = m.run(command)
    return ended.seconds, ended.read


def main():
    options = arguments()
    size = options.model.stat().st_size
    how = drop(options.model)

    def cold(measure):
        drop(options.model)
        return measure()

    def warm(measure):
        measure()
        return measure()

    tasks = {
        "reading (cat), cold": lambda: cold(lambda: whole(["cat", options.model])),
        "opening (htc inspect), cold": lambda: cold(lambda: whole([options.htc, "inspect", options.model])),
        "first token, cold": lambda: cold(lambda: first_token(options)),
        "first token, warm": lambda: warm(lambda: first_token(options)),
    }
    watch = m.Watch()
    found = {name: [] for name in tasks}
    for turn in range(options.rounds):
        m.say(f"round {turn + 1} of {options.rounds}")
        for name in m.rotated(tasks, turn):
            found[name].append(tasks[name]())
    rows = []
    for name, measured in found.items():
        seconds, read = zip(*measured)
        rows.append(
            [
                name,
                f"{statistics.median(seconds):.3f}",
                f"{min(seconds):.3f} to {max(seconds):.3f}",
                f"{statistics.median(read) / 1e6:.1f}",
            ]
        )
    if statistics.median(read for _, read in found["reading (cat), cold"]) < 0.9 * size:
        m.say("warning: less than the file was read from the disk; it was not cold")
    reading, token, computing = (
        statistics.median(s for s, _ in found[name])
        for name in ("reading (cat), cold", "first token, cold", "first token, warm")
    )
    notes = [
        f"{options.model.name}, {size / 1e6:.0f} MB, {options.threads} threads; medians of {options.rounds} "
        f"rounds; cold: {how}.",
        f"Reading, then computing, would take {reading + computing:.3f} s; mapping took "
        f"{token:.3f} s, {token / (reading + computing):.2f} of it.",
    ]
    heads = ["task", "s", "range, s", "MB from the disk"]
    results = {name: [{"seconds": s, "bytes_read": r} for s, r in v] for name, v in found.items()}
    m.finish(options, watch, rows, heads, notes, {"file_bytes": size, "cold": how, "results": results})


if __name__ == "__main__":
    main()
