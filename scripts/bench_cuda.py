#!/usr/bin/env python3
"""Measures execution on a GPU on models of random weights, within a budget of seconds.

    scripts/bench_cuda.sh --device cuda:0 -o results/h100

Parts, in this order; each has seconds of its own, and what does not fit is named as skipped:

    decode    tokens/s at batch 1, bytes that a token touches over the bandwidth of a copy, prefill of 512 positions,
              launches, joules for each token: shapes times forms
    slots     slots in low rank beside dense ones of the same bytes
    beside    rank of a shared basis of Q, K and V, and copies beside that take the L2 cache away: five sessions
    l2        hit rate of the L2 cache by rank, from ncu, as many of five sessions as there is time for
    first     from a file that is not in memory to the first token
    compile   htc compile of a shape
    thermal   60 s of decoding at what the temperature allows

Writes OUT.json and OUT.md. Python's standard library alone.
"""

import argparse
import collections
import csv
import datetime
import io
import json
import os
import pathlib
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

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
BUDGETS = {"decode": 150, "slots": 30, "beside": 70, "l2": 70, "first": 40, "compile": 35, "thermal": 65}
QUICK = {"decode": 60, "slots": 15, "beside": 15, "l2": 20, "first": 10, "compile": 20, "thermal": 8}


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
        text = self.run(budget, " ".join([what, *map(str, named.values())]), [*command, *arguments])
        return json.loads(text) if text else None

    def run(self, budget, name, command):
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
            ended = subprocess.run(command, capture_output=True, text=True, timeout=budget.left())
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
        return ended.stdout


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


def slots(runner, budget, options):
    shape = options.shapes[0]
    forms = ["lowrank:64:q8_0"] if shape in ("tiny", "SmolLM2-135M") else ["lowrank:1024:q8_0", "lowrank:512:f16"]
    mib = 1 if options.device == "emulated" else 64 if options.quick else 512
    runs = 3 if options.quick else 15
    found = [runner.device(budget, "slots", shape=shape, form=form, bytes_mib=mib, runs=runs) for form in forms]
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
                found.append({"session": session, "form": form, "beside": result["decode_beside"]})
    return found


METRICS = "lts__t_sectors_op_read.sum,lts__t_sectors_op_read_lookup_hit.sum,dram__bytes_read.sum"


def hit_rates(text):
    """Sectors read, hits and bytes from memory by kernel and grid, of a CSV that ncu writes."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return {}
    found = collections.defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        name = row.get("Metric Name", "")
        places = [i for i, metric in enumerate(METRICS.split(",")) if metric == name]
        if not places:
            continue
        scale = {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}.get(row.get("Metric Unit", ""), 1)
        try:
            value = float(row["Metric Value"].replace(",", "")) * scale
        except ValueError:
            # `n/a`, where a device counts no such thing.
            continue
        found[f"{row['Kernel Name']} {row.get('Grid Size', '')}"][places[0]] += value
    return {kernel: tuple(sums) for kernel, sums in found.items()}


def rate(kernels):
    """The hit rate of some kernels together; None where they read nothing."""
    sectors = sum(kernel[0] for kernel in kernels)
    return sum(kernel[1] for kernel in kernels) / sectors if sectors else None


def l2(runner, budget, options):
    ncu = shutil.which("ncu") or next(
        (path for path in ("/usr/local/cuda/bin/ncu",) if os.access(path, os.X_OK)), None
    )
    if not options.device.startswith("cuda"):
        budget.skip("ncu", "the device is no GPU")
        return []
    if options.dry_run:
        ncu = ncu or "ncu"
    if not ncu:
        budget.skip("ncu", "not found in PATH or /usr/local/cuda/bin")
        return []
    shape, ranks = basis_shape(options)
    shape = {**shape, "layers": 4}
    # Caches are not emptied between kernels: what the one before left there is what is asked about.
    program = [ncu, "--clock-control", "none", "--cache-control", "none", "--csv", "--print-units", "base"]
    program += ["--metrics", METRICS, "--launch-skip", "120", "--launch-count", "60"]
    named = {"context": 4, "tokens": 4, "runs": 3, "seconds": 0, "prefill": 0, "copy_mib": 0, "energy_seconds": 0}
    found, dense = [], {}
    for session in range(SESSIONS):
        for form in ["dense:q8_0", *(f"grc:{rank}:q8_0" for rank in ranks)]:
            if budget.left() < 3 and not options.dry_run:
                budget.skip(f"session {session + 1} from {form} on", "no time left")
                return found
            arguments = [part for name, value in {**shape, **named, "form": form}.items()
                         for part in (f"--{name.replace('_', '-')}", value)]
            command = [*program, options.bin / "device", "measure", "--device", options.device, *arguments]
            kernels = hit_rates(runner.run(budget, f"ncu {form}, session {session + 1}", command) or "")
            if form.startswith("dense"):
                dense = kernels
            if not dense and not options.dry_run:
                budget.skip(f"session {session + 1}", "nothing is known of the dense model's kernels")
                break
            # Kernels and grids that the dense model has not are those of the basis.
            own = [sums for kernel, sums in kernels.items() if kernel not in dense]
            if kernels:
                found.append({
                    "session": session, "form": form, "hit_rate": rate(kernels.values()),
                    "hit_rate_of_basis": rate(own), "dram_bytes": sum(sums[2] for sums in kernels.values()),
                    "kernels": kernels,
                })
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
    shape = "SmolLM2-135M" if "SmolLM2-135M" in options.shapes and not options.quick else options.shapes[-1]
    source, out = folder / "compile.gguf", folder / "compile.htz"
    runner.device(budget, "make", shape=shape, form="dense:q8_0", out=source)
    started = time.monotonic()
    command = [options.bin / "htc", "compile", source, "-o", out, "--method", "grc", "--ratio", "0.5"]
    ended = runner.run(budget, f"htc compile of {shape}", command)
    seconds = time.monotonic() - started
    budget.skip("htc compile of Llama-3.1-8B", "takes longer than all of this; measure it alone")
    return {"shape": shape, "seconds": seconds, "where": "the processor"} if ended is not None else None


def thermal(runner, budget, options):
    shape = options.shapes[0]
    form = {"tiny": "lowrank:128:q8_0", "SmolLM2-135M": "lowrank:256:q8_0"}.get(shape, "lowrank:1024:q8_0")
    named = {} if options.device.startswith("cuda") else {"sensor": "sim:start=60,speed=5"}
    seconds = 2 if options.quick else 55 if budget.left() < 66 else 60
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


def table(heads, rows):
    lines = [heads, ["---"] + ["--:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def number(value, pattern="{:.1f}", scale=1.0):
    return "" if value is None else pattern.format(value * scale)


def show_decode(results):
    rows, base = [], {}
    for result in results:
        options, speed = result["options"], result["decode"]["tokens_per_second"]
        token, energy = result["token_bytes"], result["energy"] or {}
        bytes_of = token["weights"] + token["kv"]
        shape = options["shape"]
        if options["form"] == "dense:q8_0":
            base[shape] = (speed["median"], bytes_of)
        gain = saved = None
        if shape in base:
            gain, saved = speed["median"] / base[shape][0], base[shape][1] / bytes_of
        per_token, prefill = result["per_token"] or {}, result["prefill"] or {}
        rows.append([
            f"{shape} {options['form']}",
            f"{speed['median']:.1f} ({speed['low']:.1f} to {speed['high']:.1f})",
            number(bytes_of, "{:.1f}", 1e-6),
            number(result["decode"]["bytes_per_second"], "{:.3g}", 1e-9),
            number(result["decode"]["of_copy"], "{:.0f} %", 100),
            f"{number(gain, '{:.2f}')} / {number(saved, '{:.2f}')}",
            number(per_token.get("launches"), "{:.0f}"),
            number((prefill.get("tokens_per_second") or {}).get("median"), "{:.0f}"),
            number(prefill.get("tflops"), "{:.3g}"),
            number(energy.get("joules_per_token"), "{:.3g}"),
        ])
    heads = ["model", "tokens/s", "MB a token", "GB/s", "of a copy", "faster / fewer bytes", "launches",
             "prefill, tokens/s", "TFLOP/s", "J a token"]
    return table(heads, rows)


def show_slots(results):
    rows = []
    for result in results:
        for slot in result["slots"]:
            ratio = slot["time_ratio"]
            rows.append([
                f"{result['options']['shape']} {slot['slot']}, {result['options']['form']}",
                number(slot["bytes"], "{:.2f}", 1e-6),
                number(slot["low_rank_bytes_per_second"]["median"], "{:.3g}", 1e-9),
                number(slot["dense_bytes_per_second"]["median"], "{:.3g}", 1e-9),
                spread(ratio),
                spread(slot["one_launch_time_ratio"]),
            ])
    heads = ["slot", "MB", "low rank, GB/s", "dense, GB/s", "time, low rank over dense", "time, one launch over two"]
    return table(heads, rows)


def spread(ratio):
    """A median between its ends; nothing where it was not measured."""
    return "" if ratio is None else f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"


def speedups(results):
    """For every form and size of copies beside: tokens/s over those of the dense model in the same session, beside the
    same copies; the median over sessions and how many there are."""
    speeds = {}
    for result in results:
        for beside_of in result["beside"]:
            speed = beside_of["speed"]["tokens_per_second"]["median"]
            speeds[result["session"], result["form"], beside_of["copied_bytes"]] = speed
    ratios = collections.defaultdict(list)
    for (session, form, copied), speed in speeds.items():
        dense = speeds.get((session, "dense:q8_0", copied))
        if dense and not form.startswith("dense"):
            ratios[form, copied].append(speed / dense)
    return {key: (statistics.median(all_of), len(all_of)) for key, all_of in ratios.items()}


def show_beside(results):
    found = speedups(results)
    sizes = sorted({copied for _, copied in found})
    forms = list(dict.fromkeys(form for form, _ in found))
    cell = lambda form, size: "{:.3f} (n={})".format(*found[form, size]) if (form, size) in found else ""
    heads = ["form"] + [f"{size >> 20} MiB beside" for size in sizes]
    return table(heads, [[form, *(cell(form, size) for size in sizes)] for form in forms])


def show_l2(results):
    by_form = collections.defaultdict(list)
    for result in results:
        by_form[result["form"]].append(result)
    rows = []
    for form, all_of in by_form.items():
        middle = lambda name: statistics.median([r[name] for r in all_of if r[name] is not None] or [float("nan")])
        rows.append([form, f"{100 * middle('hit_rate'):.1f} %", f"{100 * middle('hit_rate_of_basis'):.1f} %",
                     f"{middle('dram_bytes') / 1e6:.1f}", len(all_of)])
    return table(["form", "L2 hits", "of the basis' kernels", "MB from memory", "sessions"], rows)


def show(results):
    about, device = results["about"], results["about"]["device"]
    said = [device.get(key) for key in ("name", "architecture", "code")]
    said += [f"{device[key]} {key}" for key in ("multiprocessors", "threads") if key in device]
    said += [f"{device['l2_bytes'] / 2**20:.0f} MiB of L2 cache"] if "l2_bytes" in device else []
    about = {**about, "device": ", ".join(part for part in said if part)}
    parts = [f"# Figures of {device.get('name', about['device_asked'])}", ""]
    parts += [f"* {name}: {about[key]}" for name, key in (
        ("Date", "date"), ("Device", "device"), ("Driver", "driver"), ("Host", "host"), ("Program", "program"),
        ("Command", "command"), ("Seconds", "seconds")) if about.get(key)]
    if results["decode"]:
        copies = [r["copy_bytes_per_second"] for r in results["decode"] if r["copy_bytes_per_second"]]
        copy = statistics.median(copies) if copies else None
        text = (f"A copy on the device reads and writes {number(copy, '{:.1f}', 1e-9)} GB/s together, in the median; each "
                "model's part is of a copy just before.")
        parts += ["", "## Decoding and prefill", "", text, "", show_decode(results["decode"])]
    if results["slots"]:
        parts += ["", "## Slots in low rank beside dense ones of the same bytes", "", show_slots(results["slots"])]
    if results["beside"]:
        text = "Tokens/s over those of the dense model, beside copies of the same size."
        parts += ["", "## Q, K and V on a shared basis", "", text, "", show_beside(results["beside"])]
    if results["l2"]:
        parts += ["", "## Hit rates of the L2 cache", "", show_l2(results["l2"])]
    if results["first"]:
        rows = [[f"{r['shape']}, {r['bytes'] / 1e6:.0f} MB"] + [f"{r['seconds'][k]:.3f}" for k in
                ("device", "open", "load", "token", "all")] for r in results["first"]]
        heads = ["file", "device, s", "open, s", "load, s", "first token, s", "together, s"]
        parts += ["", "## From a file that is not in memory to the first token", "", table(heads, rows)]
    if results["compile"]:
        parts += ["", "## Compiling", "", "{shape}: {seconds:.1f} s on {where}".format(**results["compile"])]
    heat = results["thermal"] or {}
    if "missing" in heat:
        parts += ["", "## Following the temperature", "", f"Not measured: {heat['missing']}"]
    elif heat:
        low, high = heat["fractions"]
        parts += ["", "## Following the temperature", "", (
            f"{heat['seconds']:.0f} s: fractions from {low:.3f} to {high:.3f} between {heat['range'][0]:.0f} and "
            f"{heat['range'][1]:.0f} °C, {heat['first']:.0f} °C at first and {heat['warmest']:.0f} °C at most, "
            f"{heat['tokens_per_second']:.1f} tokens/s")]
    if results["skipped"]:
        parts += ["", "## Skipped", "", *(f"* {line}" for line in results["skipped"])]
    return "\n".join(parts) + "\n"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cuda:N, emulated or cpu [default: cuda:0]")
    parser.add_argument("--quick", action="store_true", help="few short runs, to see that everything works")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and run none")
    parser.add_argument("--shapes", type=lambda text: text.split(","), help=f"of {', '.join(SHAPES)} [default: by device]")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(BUDGETS), help="[default: all]")
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
    options.bin = options.bin.resolve()
    for name in ("htc", "device"):
        if not options.dry_run and not os.access(options.bin / name, os.X_OK):
            parser.error(f"{options.bin / name} is missing: --bin names the folder of htc and device")
    return options


def main():
    options, started = arguments(), time.monotonic()
    runner, skipped = Runner(options), []
    info = runner.device(Budget("info", 60, skipped), "info")
    if not info and not options.dry_run:
        # Without a device there is nothing to measure; that is no figure, and no success either.
        sys.exit(f"skipped: no device ({skipped[0] if skipped else 'unknown'})")
    device = (info or {}).get("device", {})
    results = dict.fromkeys(BUDGETS)
    with tempfile.TemporaryDirectory(prefix="htc-bench-", dir=options.folder) as folder:
        folder = pathlib.Path(folder)
        parts = {
            "decode": lambda budget: decode(runner, budget, options),
            "slots": lambda budget: slots(runner, budget, options),
            "beside": lambda budget: beside(runner, budget, options, device.get("l2_bytes")),
            "l2": lambda budget: l2(runner, budget, options),
            "first": lambda budget: first(runner, budget, options, folder),
            "compile": lambda budget: compile_time(runner, budget, options, folder),
            "thermal": lambda budget: thermal(runner, budget, options),
        }
        for part in parts:
            if part in options.parts:
                seconds = (QUICK if options.quick else BUDGETS)[part]
                results[part] = parts[part](Budget(part, seconds, skipped))
                if not options.dry_run:
                    # What was measured is there whatever becomes of the rest.
                    write(options.out, "json", json.dumps(results, indent=1) + "\n")
    if options.dry_run:
        return
    version = subprocess.run([options.bin / "htc", "--version"], capture_output=True, text=True, check=False)
    results["skipped"] = skipped
    results["about"] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": device,
        "device_asked": options.device,
        "driver": driver(),
        "host": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "program": version.stdout.strip(),
        "command": shlex.join(["scripts/bench_cuda.sh", *command_line(sys.argv[1:])]),
        "seconds": round(time.monotonic() - started),
        "commands": runner.commands,
    }
    write(options.out, "json", json.dumps(results, indent=1) + "\n")
    text = show(results)
    write(options.out, "md", text)
    print(text, end="")


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
