#!/usr/bin/env python3
"""Measures execution on a GPU on models of random weights, within a budget of seconds.

    scripts/bench_cuda.sh --device cuda:0 -o results/h100

Parts, in this order; each has seconds of its own, and what does not fit is named as skipped:

    decode    tokens/s at batch 1, bytes that a token touches over the bandwidth of a copy, prefill of 512 positions,
              launches, joules for each token: shapes times forms
    projections  low-rank projections against dense ones of the same bytes
    beside    rank of a shared basis of Q, K and V, and copies beside that take the L2 cache away: five sessions
    l2        hit rate of the L2 cache by rank, from ncu, as many of five sessions as there is time for
    first     from a file that is not in memory to the first token
    compile   htc compile of a shape on the device; of a larger one alone:
              --parts compile --compile-shape Llama-3.1-8B --budget compile=480
    thermal   60 s of decoding at what the temperature allows

Whether P1 and P2 hold takes four sessions of every rank, for which a whole run has hardly the time. Alone:
--parts beside --budget beside=450, and --parts l2 --budget l2=450

Writes OUT.json and OUT.md after each part, with verdicts on what was to be shown, undecided where figures are missing.
Ends with 1 where nothing was measured. Python's standard library alone.
"""

import argparse
import collections
import contextlib
import csv
import datetime
import io
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import bench_cuda_tables as tables
from bench_cuda_verdicts import verdicts

SHAPES = ("Llama-3.1-8B", "Llama-3.2-1B", "SmolLM2-135M", "tiny")
RANKS = (384, 512, 768, 1024, 1280, 1536, 2048)
SESSIONS = 5
# Rows of SmolLM2 are no whole blocks of q4_k.
FORMS = {
    "Llama-3.1-8B": (
        "dense:q8_0 dense:q4_k lowrank:1024:q8_0 lowrank:2048:q8_0 basis:1024:q8_0 grc:1024:q8_0 levels:4 trellis:3 planes:2"
    ).split(),
    "Llama-3.2-1B": "dense:q8_0 dense:q4_k dense:f16 lowrank:512:q8_0 lowrank:1024:q8_0 trellis:3".split(),
    "SmolLM2-135M": "dense:q8_0 dense:q4_0 dense:f16 lowrank:128:q8_0 lowrank:256:q8_0 trellis:3".split(),
    "tiny": "dense:q8_0 dense:q4_k lowrank:64:q8_0 basis:64:q8_0 trellis:3".split(),
}
# Seconds of each part of a whole run: 460 together.
BUDGETS = {"decode": 150, "projections": 25, "beside": 70, "l2": 70, "first": 35, "compile": 35, "thermal": 75}
QUICK = {"decode": 60, "projections": 15, "beside": 15, "l2": 20, "first": 10, "compile": 20, "thermal": 8}


class Budget:
    """Seconds that a part has, and what did not fit."""

    def __init__(self, part, seconds, skipped):
        self.part, self.end, self.skipped = part, time.monotonic() + seconds, skipped

    def left(self):
        return self.end - time.monotonic()

    def skip(self, what, why):
        self.skipped.append(f"{self.part}: {what}: {why}")


class Runner:
    """Runs the measuring program, or says what it would run."""

    def __init__(self, options):
        self.options, self.commands = options, []

    def device(self, budget, what, *arguments, program=(), **named):
        """The program's JSON; None, with the reason among what was skipped, where it fails or does not end in time."""
        command = [*program, self.options.bin / "device", what, "--device", self.options.device]
        for name, value in named.items():
            command += [f"--{name.replace('_', '-')}", value]
        ended = self.run(budget, " ".join([what, *map(str, named.values())]), [*command, *arguments])
        return json.loads(ended.stdout) if ended else None

    def run(self, budget, name, command):
        """What a program printed; None, with the reason among what was skipped, where it fails or does not end in time."""
        command = [str(part) for part in command]
        self.commands.append(shlex.join(command))
        if self.options.dry_run:
            print(shlex.join(command))
            return None
        if budget.left() < 1:
            budget.skip(name, "no time left")
            return None
        print(f"{budget.part}: {name}", file=sys.stderr, flush=True)
        try:
            ended = finished(command, budget.left())
        except subprocess.TimeoutExpired:
            budget.skip(name, "did not end in time")
            return None
        except OSError as error:
            budget.skip(name, str(error))
            return None
        if ended.returncode != 0:
            words = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
            budget.skip(name, f"ended with {ended.returncode}: {words[-1] if words else ''}")
            return None
        return ended


def finished(command, seconds):
    """A program that ended. One that does not in time is killed with all that it started: a profiler's program would go on,
    and what is measured next would be measured beside it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as child:
        try:
            out, err = child.communicate(timeout=seconds)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def small(options):
    """Options of the measuring program where a run is to be short."""
    if options.device == "emulated":
        return {"context": 4, "tokens": 2, "runs": 3, "seconds": 0.1, "prefill": 16, "copy_mib": 16, "energy_seconds": 0}
    if options.quick:
        return {"context": 16, "tokens": 8, "runs": 5, "seconds": 0.5, "prefill": 64, "copy_mib": 256, "energy_seconds": 0.5}
    return {}


def decode(runner, budget, options):
    found = []
    for shape in options.shapes:
        for form in FORMS[shape]:
            result = runner.device(budget, "measure", shape=shape, form=form, **{"seconds": 2, **small(options)})
            if result:
                found.append(result)
    return found


def projections(runner, budget, options):
    shape = options.shapes[0]
    forms = ["lowrank:64:q8_0"] if shape in ("tiny", "SmolLM2-135M") else ["lowrank:1024:q8_0", "lowrank:512:f16"]
    mib = 1 if options.device == "emulated" else 64 if options.quick else 512
    runs = 3 if options.quick else 15
    found = [runner.device(budget, "projections", shape=shape, form=form, bytes_mib=mib, runs=runs) for form in forms]
    return [result for result in found if result]


def basis_shape(options):
    """The model of the sweep: layers of the widest shape without its vocabulary, so that Q, K and V weigh as much as
    they can."""
    if "Llama-3.1-8B" in options.shapes:
        return {"shape": "Llama-3.1-8B", "layers": 8, "vocabulary": 4096}, RANKS
    if options.shapes[0] == "tiny":
        return {"shape": "tiny"}, (32, 64)
    return {"shape": options.shapes[0], "layers": 4, "vocabulary": 4096}, (64, 128, 256)


def beside(runner, budget, options, l2_bytes):
    """Every session is a process of its own, which measures the dense model and all ranks in turn."""
    shape, ranks = basis_shape(options)
    mib = max(4, (l2_bytes or 32 << 20) >> 20)
    copied = ",".join(str(mib * part // 4) for part in ((0, 2) if options.quick else (0, 1, 2, 3, 4)))
    plan = {"context": 16, "tokens": 16, "runs": 5, "seconds": 0.05, **small(options)}
    plan |= {"prefill": 0, "copy_mib": 0, "energy_seconds": 0}
    found = []
    for session in range(1 if options.quick else SESSIONS):
        for form in ["dense:q8_0", *(f"grc:{rank}:q8_0" for rank in ranks)]:
            result = runner.device(budget, "measure", **shape, form=form, beside_mib=copied, **plan)
            if result:
                found.append({"session": session, "shape": shape["shape"], "form": form, "beside": result["decode_beside"]})
    return found


HITS = "lts__t_sectors_op_read.sum lts__t_sectors_op_read_lookup_hit.sum".split()
METRICS = [*HITS, "dram__bytes_read.sum"]
# Launches of a profiled run that are left out, which are those of a prompt and of two tokens, and those behind that are
# read: one token's of four layers at least, wherever they begin in it.
SKIPPED, READ = 150, 100
# What a token begins with, once.
BEGINS = "rotate_to"


def launches(text):
    """Kernel, grid and what METRICS say of each launch, in order, of a CSV that ncu writes; None for what was not read."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    found = {}
    for row in csv.DictReader(io.StringIO("\n".join(line for line in lines[start:] if line.startswith('"')))):
        if row.get("Metric Name") not in METRICS:
            continue
        scale = {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}.get(row.get("Metric Unit", ""), 1)
        kernel = re.split("[(<]", row["Kernel Name"])[0]
        launch = found.setdefault(int(row["ID"]), (kernel, row.get("Grid Size", ""), [None] * len(METRICS)))
        try:
            launch[2][METRICS.index(row["Metric Name"])] = float(row["Metric Value"].replace(",", "")) * scale
        except ValueError:
            # `n/a`, where a device counts no such thing.
            continue
    return [found[each] for each in sorted(found)]


def passes(text):
    """The most passes that ncu took for a launch; None where it says nothing."""
    return max(map(int, re.findall(r"\b(\d+) pass(?:es)?\b", text)), default=None)


def whole_tokens(all_of):
    """Launches of each token that was read from its beginning to its end."""
    begins = [i for i, launch in enumerate(all_of) if launch[0] == BEGINS]
    return [all_of[begin:end] for begin, end in zip(begins, begins[1:])]


def of_attention(token):
    """The products that make Q, K and V: launches between a norm and what makes heads ready. One for each layer where the
    model is dense, two where there is a basis. Their names and grids are also those of others."""
    found, since = [], []
    for launch in token:
        if launch[0] == "heads_ready":
            found += since
        since = [] if launch[0].startswith(("norm", "heads_ready")) else [*since, launch]
    return found


def added(all_of, metric):
    """The sum of a metric over launches; None where one of them lacks it, or there are none."""
    values = [launch[2][metric] for launch in all_of]
    return sum(values) if values and None not in values else None


def rate(all_of):
    """The hit rate of some launches together; None where they read nothing."""
    sectors, hits = added(all_of, 0), added(all_of, 1)
    return hits / sectors if sectors and hits is not None else None


def hits_of(text):
    """Figures of a profiled run, of whole tokens; the reason alone where there are none."""
    taken = passes(text)
    if taken and taken > 1:
        # What is replayed finds the cache as the pass before left it.
        why = f"ncu took {taken} passes for a launch: the cache is not as the launch before left it"
        return {"missing": why, "passes": taken}
    all_of = launches(text)
    tokens = whole_tokens(all_of)
    if not tokens:
        refused = re.search("^==ERROR== (.*)$", text, re.MULTILINE)
        if refused:
            return {"missing": refused.group(1)}
        return {"missing": f"no whole token among {len(all_of)} launches: none from one {BEGINS} to the next"}
    if len({tuple(launch[0] for launch in token) for token in tokens}) > 1:
        return {"missing": "tokens differ in what they launch"}
    read = [launch for token in tokens for launch in token]
    attention = [launch for token in tokens for launch in of_attention(token)]
    kernels, memory = collections.defaultdict(list), added(read, 2)
    for launch in read:
        kernels[f"{launch[0]} {launch[1]}"].append(launch)
    return {
        "tokens": len(tokens),
        "launches": len(tokens[0]),
        "hit_rate": rate(read),
        "launches_of_qkv": len(attention) // len(tokens),
        "hit_rate_of_qkv": rate(attention),
        "dram_bytes_per_token": None if memory is None else memory / len(tokens),
        "kernels": {name: [added(of, i) for i in range(len(METRICS))] for name, of in kernels.items()},
        **({} if attention else {"hit_rate_of_qkv_missing": "no launch stands between a norm and heads_ready"}),
    }


def l2(runner, budget, options):
    usual = "/usr/local/cuda/bin/ncu"
    ncu = shutil.which("ncu") or (usual if os.access(usual, os.X_OK) else None)
    if not options.device.startswith("cuda"):
        budget.skip("ncu", "the device is no GPU")
        return []
    if options.dry_run:
        ncu = ncu or "ncu"
    if not ncu:
        budget.skip("ncu", "not found in PATH or /usr/local/cuda/bin")
        return []
    shape, ranks = basis_shape(options)
    shape = {**shape, "layers": 2 if shape["shape"] == "tiny" else 4}
    # Caches are not emptied between kernels: what the one before left there is what is asked about.
    program = [ncu, "--clock-control", "none", "--cache-control", "none", "--csv", "--print-units", "base"]
    program += ["--graph-profiling", "node", "--launch-skip", SKIPPED, "--launch-count", READ]
    named = {"context": 4, "tokens": 4, "runs": 3, "seconds": 0, "prefill": 0, "copy_mib": 0, "energy_seconds": 0}
    found, metrics = [], METRICS
    for session in range(SESSIONS):
        for form in ["dense:q8_0", *(f"grc:{rank}:q8_0" for rank in ranks)]:
            if budget.left() < 3 and not options.dry_run:
                budget.skip(f"session {session + 1} from {form} on", "no time left")
                return found
            arguments = [part for name, value in {**shape, **named, "form": form}.items()
                         for part in (f"--{name.replace('_', '-')}", value)]
            measured = [options.bin / "device", "measure", "--device", options.device, *arguments]
            name = f"ncu {form}, session {session + 1}"
            while True:
                ended = runner.run(budget, name, [*program, "--metrics", ",".join(metrics), *measured])
                # With --csv, what ncu says of its passes is on either stream.
                figures = hits_of(f"{ended.stderr}\n{ended.stdout}") if ended else None
                if not figures or "passes" not in figures or metrics == HITS:
                    break
                # Fewer counters may be read in one pass.
                budget.skip(f"{name}, bytes from memory", figures["missing"])
                metrics = HITS
            if figures and "missing" in figures:
                budget.skip(name, figures["missing"])
            elif figures:
                found.append({"session": session, "shape": shape["shape"], "form": form, **figures})
            if not found and not options.dry_run:
                # What the first run does not give, no other does.
                return found
    return found


def forget(path):
    """Has the system drop what it holds of a file, so that it is read from the disk."""
    with open(path, "rb") as opened:
        os.fsync(opened.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def first(runner, budget, options, folder):
    shape = "Llama-3.2-1B" if "Llama-3.2-1B" in options.shapes and not options.quick else options.shapes[-1]
    path = folder / "first.gguf"
    made = runner.device(budget, "make", shape=shape, form="dense:q8_0", out=path)
    found = []
    for _ in range(1 if options.quick else 3):
        if made:
            forget(path)
        result = runner.device(budget, "first", model=path)
        if result:
            found.append({"shape": shape, **result})
    path.unlink(missing_ok=True)
    return found


def compile_time(runner, budget, options, folder):
    usual = "SmolLM2-135M" if "SmolLM2-135M" in options.shapes and not options.quick else options.shapes[-1]
    shape = options.compile_shape or usual
    source, out = folder / "compile.gguf", folder / "compile.htz"
    runner.device(budget, "make", shape=shape, form="dense:q8_0", out=source)
    started = time.monotonic()
    command = [options.bin / "htc", "compile", source, "-o", out, "--method", "grc", "--ratio", "0.5"]
    ended = runner.run(budget, f"htc compile of {shape}", [*command, "--device", options.device])
    seconds = time.monotonic() - started
    for path in (source, out):
        path.unlink(missing_ok=True)
    if not options.compile_shape and "Llama-3.1-8B" in options.shapes:
        budget.skip("htc compile of Llama-3.1-8B", "takes longer than all of this: see --help for how it is measured alone")
    if not ended:
        return None
    # The program says so where a library of the device decomposes, and where the processor does in its place.
    said = [line.strip() for line in ended.stderr.splitlines() if "decompose" in line]
    return {"shape": shape, "seconds": seconds, "where": options.device, "said": said}


def thermal_seconds(left):
    """A minute, or what a budget leaves beside making the model and taking it to the device."""
    return max(2, min(60, round(left - 12)))


def thermal(runner, budget, options):
    shape = options.shapes[0]
    form = {"tiny": "lowrank:128:q8_0", "SmolLM2-135M": "lowrank:256:q8_0"}.get(shape, "lowrank:1024:q8_0")
    named = {} if options.device.startswith("cuda") else {"sensor": "sim:start=60,speed=5"}
    seconds = 2 if options.quick else thermal_seconds(budget.left())
    return runner.device(budget, "thermal", shape=shape, form=form, seconds=seconds, **named)


def driver():
    """What nvidia-smi says of driver and clocks."""
    smi = shutil.which("nvidia-smi")
    if not smi:
        return None
    query = "--query-gpu=name,driver_version,clocks.max.mem,clocks.max.sm,power.limit,temperature.gpu"
    try:
        ended = subprocess.run([smi, query, "--format=csv,noheader"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.strip() or None


def budget_of(text):
    """Part and seconds of PART=SECONDS."""
    part, _, seconds = text.partition("=")
    if part not in BUDGETS or not seconds.isdecimal() or not int(seconds):
        raise argparse.ArgumentTypeError(f"{text}: expected PART=SECONDS with a part of {', '.join(BUDGETS)}")
    return part, int(seconds)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cuda:N, emulated or cpu [default: cuda:0]")
    parser.add_argument("--quick", action="store_true", help="few short runs, to see that everything works")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and run none")
    parser.add_argument("--shapes", type=lambda text: text.split(","), help=f"of {', '.join(SHAPES)} [default: by device]")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(BUDGETS), help="[default: all]")
    parser.add_argument("--budget", type=budget_of, action="append", default=[], metavar="PART=SECONDS",
                        help="other seconds of a part; may be given several times")
    parser.add_argument("--compile-shape", choices=SHAPES,
                        help="what is compiled [default: SmolLM2-135M where it is among the shapes, else their last]")
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("."), help="folder of htc and device")
    parser.add_argument("--folder", type=pathlib.Path, help="for models, gigabytes [default: a temporary folder]")
    parser.add_argument("-o", "--out", type=pathlib.Path, default=pathlib.Path("bench-cuda"), help="[default: bench-cuda]")
    options = parser.parse_args()
    usual = {"emulated": ["tiny"], "cpu": ["SmolLM2-135M"]}.get(options.device, list(SHAPES[:3]))
    options.shapes = options.shapes or usual
    for given, known in ((options.shapes, SHAPES), (options.parts, BUDGETS)):
        for name in given:
            if name not in known:
                parser.error(f"{name}: expected some of {', '.join(known)}")
    options.budgets = {**(QUICK if options.quick else BUDGETS), **dict(options.budget)}
    options.bin = options.bin.resolve()
    for name in ("htc", "device"):
        if not options.dry_run and not os.access(options.bin / name, os.X_OK):
            parser.error(f"{options.bin / name} is missing: --bin names the folder of htc and device")
    return options


def main():
    # Who ends this ends what it started, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options, started = arguments(), time.monotonic()
    runner, skipped = Runner(options), []
    info = runner.device(Budget("info", 60, skipped), "info")
    if not info and not options.dry_run:
        # Without a device there is nothing to measure; that is no figure, and no success either.
        sys.exit(f"skipped: no device ({skipped[0] if skipped else 'unknown'})")
    device = (info or {}).get("device", {})
    results = {**dict.fromkeys(BUDGETS), "skipped": skipped, "about": {} if options.dry_run else about(options, device)}

    def save():
        """What was measured is there whatever becomes of the rest, and so is what it was measured on."""
        results["about"] |= {"seconds": round(time.monotonic() - started), "commands": runner.commands}
        results.pop("verdicts", None)
        write(options.out, "json", json.dumps(results, indent=1) + "\n")
        results["verdicts"] = verdicts(results)
        write(options.out, "json", json.dumps(results, indent=1) + "\n")
        write(options.out, "md", tables.show(results))

    with tempfile.TemporaryDirectory(prefix="htc-bench-", dir=options.folder) as folder:
        folder = pathlib.Path(folder)
        parts = {
            "decode": lambda budget: decode(runner, budget, options),
            "projections": lambda budget: projections(runner, budget, options),
            "beside": lambda budget: beside(runner, budget, options, device.get("l2_bytes")),
            "l2": lambda budget: l2(runner, budget, options),
            "first": lambda budget: first(runner, budget, options, folder),
            "compile": lambda budget: compile_time(runner, budget, options, folder),
            "thermal": lambda budget: thermal(runner, budget, options),
        }
        for part in parts:
            if part in options.parts:
                results[part] = parts[part](Budget(part, options.budgets[part], skipped))
                if not options.dry_run:
                    save()
    if options.dry_run:
        return
    print(tables.show(results), end="")
    if not any(measured(results[part]) for part in options.parts):
        sys.exit("failed: nothing was measured")


def measured(result):
    """Whether a part has a figure."""
    return bool(result) and "missing" not in result


def about(options, device):
    """What is measured, where and by which command."""
    version = subprocess.run([options.bin / "htc", "--version"], capture_output=True, text=True, check=False)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": device,
        "device_asked": options.device,
        "driver": driver(),
        "host": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "program": version.stdout.strip(),
        "command": shlex.join(["scripts/bench_cuda.sh", *command_line(sys.argv[1:])]),
    }


def write(out, ending, text):
    out.parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(f"{out}.{ending}").write_text(text, encoding="utf-8")


def command_line(given):
    """What was given but for the folder of the programs, which is another one each time."""
    kept, rest = [], iter(given)
    for argument in rest:
        if argument == "--bin":
            next(rest, None)
        elif not argument.startswith("--bin="):
            kept.append(argument)
    return kept


if __name__ == "__main__":
    main()
