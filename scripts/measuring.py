"""What the measuring scripts share: running programs, pairs, intervals, the machine, tables.

Not a program. Python's standard library alone; numpy is loaded by `ReadTest` only, because the
peak memory that the system reports for a child is never below its parent's.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import random
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEMO = ROOT / "assets/demo/reference-7m-f16.gguf"
TEXT = ROOT / "assets/demo/time_machine.txt"
RESAMPLES = 10_000

SIMD = (
    "avx2 fma f16c avx_vnni avx512f avx512_vnni avx512_bf16 avx512_fp16 amx_int8 "
    "asimd asimddp i8mm sve"
).split()


class Finished:
    """A program that ended: wall time and processor time in seconds, peak memory and bytes read from the
    disk, and what it printed."""

    def __init__(self, seconds, usage, out, err):
        self.seconds = seconds
        self.processor = usage.ru_utime + usage.ru_stime
        self.peak = usage.ru_maxrss * 1024
        self.read = usage.ru_inblock * 512
        self.out = out
        self.err = err


class Failed(SystemExit):
    """A program that failed, with its last words."""

    def __init__(self, command, code, err):
        words = err.strip().splitlines()
        self.signal = -code if code < 0 else None
        super().__init__(f"{' '.join(command)}\nended with {code}: {words[-1] if words else ''}")


def run(command, **environment):
    """Runs a program to its end. `Failed`, which ends a script that does not catch it, where it fails."""
    command = [str(part) for part in command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **environment},
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    if process.returncode != 0:
        raise Failed(command, process.returncode, texts[1])
    return Finished(seconds, usage, *texts)


def htc(options, *arguments, **environment):
    """Runs htc."""
    return run([options.htc, *arguments], **environment)


SPEEDS = re.compile(
    r"prompt: (\d+) tokens?, ([\d.]+) tokens/s; written: (\d+) tokens?, (?:([\d.]+) tokens/s|too few)"
)


def run_speeds(options, model, prompt, tokens, threads):
    """`htc run` from a prompt file: prompt tokens, their tokens/s, tokens written, their
    tokens/s (None for a single one)."""
    ended = htc(
        options,
        *("run", model, "--file", prompt, "-n", tokens),
        *("--temp", 0, "--ignore-eos", "--threads", threads),
    )
    found = SPEEDS.search(ended.err)
    if not found:
        raise SystemExit(f"htc run: no line is about speed: {ended.err.strip()[-200:]!r}")
    read, prefill, written, decode = found.groups()
    return int(read), float(prefill), int(written), decode and float(decode)


def decode_speed(options, model, prompt, depth, tokens, threads):
    """Tokens/s of `tokens` forward passes behind a prompt of `depth` tokens. The first token
    written comes from the prompt's own pass, so one more is asked for."""
    read, _, written, speed = run_speeds(options, model, prompt, tokens + 1, threads)
    if (read, written) != (depth, tokens + 1):
        raise SystemExit(
            f"{model}: read {read} and wrote {written} tokens, expected {depth} and {tokens + 1}; "
            "its context may be too short"
        )
    return speed


def prefill_speed(options, model, prompt, length, threads):
    """Tokens/s of reading a prompt of `length` tokens."""
    read, speed, _, _ = run_speeds(options, model, prompt, 1, threads)
    if read != length:
        raise SystemExit(f"{model}: read {read} tokens, expected {length}")
    return speed


def read_anew(file):
    """Has the system drop what it holds of a file and read it from end to end: what a program has just written in small
    pieces lies in small pieces of memory, which the processor reads a third slower until then."""
    with file.open("rb", buffering=0) as opened:
        if hasattr(os, "posix_fadvise"):
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while opened.read(1 << 22):
            pass


def prompt_file(options, model, tokens, folder):
    """A file with the beginning of the text that has exactly so many tokens (BOS included)."""
    text = options.text.read_text(encoding="utf-8")
    path = pathlib.Path(folder) / f"prompt-{tokens}.txt"

    def count(length):
        path.write_text(text[:length], encoding="utf-8")
        return len(json.loads(htc(options, "tokenize", model, "--text", path, "--json").out)["tokens"])

    low, high = 1, min(len(text), 16 * tokens)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if count(middle) >= tokens else (middle + 1, high)
    # One more character may join tokens, so the count is not monotonic: look around.
    for length in sorted(range(max(1, low - 40), low + 40), key=lambda n: abs(n - low)):
        if length <= len(text) and count(length) == tokens:
            return path
    raise SystemExit(f"--text {options.text}: no beginning of it has exactly {tokens} tokens; give another text")


def weight_bytes(options, model):
    """Bytes of the weights that one decoded token reads: all tensors, but of an embedding that
    is not the output matrix too only a row."""
    found = json.loads(htc(options, "inspect", model, "--json").out)
    keys = {"gguf": ("name", "bytes"), "safetensors": ("role", "bytes")}
    name, size = keys.get(found["format"], ("role", "length"))
    sizes = {t[name]: t[size] for t in found["tensors"]}
    embedding, output = "token_embd.weight", "output.weight"
    total = sum(sizes.values())
    return total - sizes.get(embedding, 0) if output in sizes else total


class Peer:
    """llama.cpp's programs in a folder (or in its `bin`)."""

    def __init__(self, folder, option="--llama-cpp"):
        self.option = option
        self.bin = folder / "bin" if (folder / "bin").is_dir() else folder

    def program(self, name):
        path = self.bin / name
        if not path.is_file():
            raise SystemExit(f"{self.option}: {path} is missing\n{LLAMA_CPP_HELP}")
        return path

    def bench(self, model, threads, *arguments):
        """One run of llama-bench: tokens/s, and what else it says."""
        command = [self.program("llama-bench"), "-m", model, "-t", threads, "-r", 1, "-o", "json"]
        try:
            ended = run([*command, *arguments])
        except Failed as failure:
            if failure.signal in (signal.SIGILL, signal.SIGSEGV):
                raise SystemExit(f"{failure}\n{LLAMA_CPP_HELP}") from failure
            raise
        (result,) = json.loads(ended.out)
        return result["avg_ts"], result

    def describe(self, model):
        """Which build."""
        _, result = self.bench(model, 1, "-p", 1, "-n", 0)
        backends = f" ({result['backends']})" if "backends" in result else ""
        return f"llama.cpp {result['build_commit']}{backends}, K and V in {result['type_k']}"


LLAMA_CPP_HELP = """\
llama.cpp's programs are needed in one folder. Build them with
    git clone https://github.com/ggml-org/llama.cpp
    cmake -S llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_OPENSSL=OFF
    cmake --build build -j --target llama-bench llama-quantize
and give --llama-cpp build. On a processor with AMX, GCC 12.2 makes programs of it that die of an
illegal instruction (its _tile_loadconfig tells the optimiser of 8 of the 64 bytes it reads);
a newer GCC or clang does not."""


def rotated(items, turn):
    """The items in another order each turn: forward and backward, so that neither of two
    programs always comes first."""
    return list(items) if turn % 2 == 0 else list(items)[::-1]


def interval(pairs):
    """Median over the pairs of first over second, and the 95 % interval of that median from a
    percentile bootstrap over pairs."""
    ratios = [a / b for a, b in pairs]
    generator = random.Random(0)
    medians = sorted(
        statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    return (
        statistics.median(ratios),
        medians[round(0.025 * (RESAMPLES - 1))],
        medians[round(0.975 * (RESAMPLES - 1))],
    )


def show_interval(values):
    return "{:.3f} ({:.3f} to {:.3f})".format(*values)


class ReadTest:
    """Bandwidth of reading memory: one pass of bitwise or over an array larger than any cache,
    split evenly over threads. No weights can be read faster than about this."""

    def __init__(self, mebibytes):
        import numpy
        from concurrent.futures import ThreadPoolExecutor

        self.pools = ThreadPoolExecutor
        self.split = numpy.array_split
        self.read = numpy.bitwise_or.reduce
        self.array = numpy.ones(mebibytes << 17, dtype=numpy.uint64)

    def gigabytes_per_second(self, threads):
        parts = self.split(self.array, threads)
        with self.pools(threads) as pool:
            list(pool.map(lambda part: self.read(part[:1024]), parts))
            started = time.perf_counter()
            list(pool.map(self.read, parts))
            return self.array.nbytes / (time.perf_counter() - started) / 1e9


def _busy_and_stolen():
    """Processor seconds of everybody, and those the hypervisor gave to others."""
    fields = [int(f) for f in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _wait, interrupt, soft, stolen = fields[:8]
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + interrupt + soft) / tick, stolen / tick


def _own():
    return sum(
        u.ru_utime + u.ru_stime
        for u in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


class Watch:
    """How much of the processors others used while a measurement ran: it is worth as much as
    the machine was quiet."""

    def __init__(self):
        self.started, self.own, (self.busy, self.stolen) = time.perf_counter(), _own(), _busy_and_stolen()

    def others(self):
        """Shares of all processor time: other processes', the hypervisor's."""
        available = (time.perf_counter() - self.started) * (os.cpu_count() or 1)
        busy, stolen = _busy_and_stolen()
        other = max(0.0, busy - self.busy - (_own() - self.own))
        return {"others": other / available, "stolen": (stolen - self.stolen) / available}


def machine():
    """What was measured on."""
    try:
        cpu = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        cpu = ""
    name = re.search(r"^model name\s*: (.*)$", cpu, re.M)
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", cpu, re.M)
    flags = flags.group(1).split() if flags else []
    return {
        "processor": name.group(1) if name else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "simd": [f for f in SIMD if f in flags],
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
    }


def table(heads, rows):
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [heads, ["---"] + ["--:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def finish(options, watch, rows, heads, notes, results):
    """Prints the table with what it was measured on, and writes the JSON file if asked."""
    on, quiet = machine(), watch.others()
    version = htc(options, "--version").out.strip()
    print(table(heads, rows))
    print()
    for note in notes:
        print(f"{note}  ")
    print(
        f"{version} on {on['processor']}, {on['cores']} cores, {on['memory_gb']} GB, {on['system']}; "
        f"SIMD: {' '.join(on['simd'])}  "
    )
    print(
        f"Processor time used by other programs: {100 * quiet['others']:.1f} %, "
        f"by the hypervisor: {100 * quiet['stolen']:.1f} %"
    )
    if max(quiet.values()) > 0.05:
        say("warning: the machine was not quiet; repeat the measurement")
    if options.json:
        whole = {"program": version, "machine": on, "load": quiet, **results}
        options.json.write_text(json.dumps(whole, indent=1) + "\n")


def say(text):
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def parser(documentation, models=None, text=False, peer=None):
    """A parser with the arguments that scripts share. `models`: "+" for several, None for none;
    `peer`: "required" or "optional"."""
    made = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    path = pathlib.Path
    if models:
        made.add_argument("models", nargs=models, metavar="MODEL", type=path, default=[DEMO])
    made.add_argument(
        "--htc",
        type=path,
        default=ROOT / "target/release/htc",
        metavar="PROGRAM",
        help="[default: target/release/htc; `cargo build --release` makes it]",
    )
    if peer:
        made.add_argument(
            "--llama-cpp",
            type=path,
            required=peer == "required",
            metavar="DIR",
            help="folder with llama.cpp's programs, or its parent",
        )
    if text:
        made.add_argument(
            "--text", type=path, default=TEXT, metavar="FILE", help="[default: the demo's time_machine.txt]"
        )
    made.add_argument("--json", type=path, metavar="FILE", help="write every single measurement there too")
    return made


def parse(made):
    """Parses; what is missing is said before anything runs."""
    options = made.parse_args()
    if not options.htc.is_file():
        made.error(f"{options.htc} is missing; build it with `cargo build --release`, or give --htc")
    options.htc = options.htc.resolve()
    models = getattr(options, "models", [])
    for model in models if isinstance(models, list) else [models]:
        if not model.is_file():
            made.error(f"{model} is missing")
    if getattr(options, "llama_cpp", None):
        options.peer = Peer(options.llama_cpp.resolve())
        options.peer.program("llama-bench")
    return options


def count(text):
    """An argument type: a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("a whole number of at least 1")
    return int(text)


def numbers(kind, least):
    """An argument type: a list of numbers with commas between them."""

    def convert(text):
        found = [kind(part) for part in text.split(",")]
        if not found or min(found) < least:
            raise argparse.ArgumentTypeError(f"numbers of at least {least}, with commas between them")
        return found

    convert.__name__ = "list"
    return convert


@contextlib.contextmanager
def work_folder(given):
    """The folder given, made if need be and kept; or a temporary one."""
    if given:
        given.mkdir(parents=True, exist_ok=True)
        yield given
    else:
        with tempfile.TemporaryDirectory(prefix="htc-bench-") as folder:
            yield pathlib.Path(folder)
