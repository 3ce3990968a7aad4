"""The Markdown of what bench_cuda.py measured."""

import collections
import statistics


def table(heads, rows):
    lines = [heads, ["---"] + ["--:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def number(value, pattern="{:.1f}", scale=1.0):
    return "" if value is None else pattern.format(value * scale)


def three(value, scale=1.0):
    """With three digits at least, none of them a power of ten."""
    return number(value, "{:.0f}" if value is not None and value * scale >= 100 else "{:.3g}", scale)


def token_bytes(result):
    return result["token_bytes"]["weights"] + result["token_bytes"]["kv"]


def gains(results):
    """For each result, how many times faster it is than dense:q8_0 of its shape, and how many times fewer bytes a token
    touches; None for both where that was not measured."""
    figures = [(result["decode"]["tokens_per_second"]["median"], token_bytes(result)) for result in results]
    base = {result["options"]["shape"]: figure for result, figure in zip(results, figures)
            if result["options"]["form"] == "dense:q8_0"}
    found = []
    for result, (speed, bytes_of) in zip(results, figures):
        dense = base.get(result["options"]["shape"])
        found.append((speed / dense[0], dense[1] / bytes_of) if dense else (None, None))
    return found


def show_decode(results):
    rows = []
    for result, (gain, saved) in zip(results, gains(results)):
        options, speed = result["options"], result["decode"]["tokens_per_second"]
        energy = result["energy"] or {}
        per_token, prefill = result["per_token"] or {}, result["prefill"] or {}
        rows.append([
            f"{options['shape']} {options['form']}",
            f"{speed['median']:.1f} ({speed['low']:.1f} to {speed['high']:.1f})",
            number(token_bytes(result), "{:.1f}", 1e-6),
            three(result["decode"]["bytes_per_second"], 1e-9),
            number(result["decode"]["of_copy"], "{:.0f} %", 100),
            f"{number(gain, '{:.2f}')} / {number(saved, '{:.2f}')}",
            number(per_token.get("launches"), "{:.0f}"),
            number((prefill.get("tokens_per_second") or {}).get("median"), "{:.0f}"),
            three(prefill.get("tflops")),
            three(energy.get("joules_per_token")),
        ])
    heads = ["model", "tokens/s", "MB a token", "GB/s", "of a copy", "faster / fewer bytes", "launches",
             "prefill, tokens/s", "TFLOP/s", "J a token"]
    return table(heads, rows)


def show_projections(results):
    rows = []
    for result in results:
        for projection in result["projections"]:
            ratio = projection["time_ratio"]
            rows.append([
                f"{result['options']['shape']} {projection['projection']}, {result['options']['form']}",
                number(projection["bytes"], "{:.2f}", 1e-6),
                three(projection["low_rank_bytes_per_second"]["median"], 1e-9),
                three(projection["dense_bytes_per_second"]["median"], 1e-9),
                spread(ratio),
                spread(projection["one_launch_time_ratio"]),
            ])
    heads = ["projection", "MB", "low rank, GB/s", "dense, GB/s", "time, low rank over dense", "time, one launch over two"]
    return table(heads, rows)


def spread(ratio):
    """A median between its ends; nothing where it was not measured."""
    return "" if ratio is None else f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"


def session_speedups(results):
    """For every form and size of copies beside: tokens/s over those of the dense model in the same session, beside the
    same copies; by session."""
    speeds = {}
    for result in results:
        for beside_of in result["beside"]:
            speed = beside_of["speed"]["tokens_per_second"]["median"]
            speeds[result["session"], result["form"], beside_of["copied_bytes"]] = speed
    ratios = collections.defaultdict(dict)
    for (session, form, copied), speed in speeds.items():
        dense = speeds.get((session, "dense:q8_0", copied))
        if dense and not form.startswith("dense"):
            ratios[form, copied][session] = speed / dense
    return dict(ratios)


def speedups(results):
    """The median of those over sessions, and how many there are."""
    return {key: (statistics.median(of.values()), len(of)) for key, of in session_speedups(results).items()}


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
        # Without a figure the cell is empty: the record says why.
        known = {name: [r[name] for r in all_of if r[name] is not None]
                 for name in ("hit_rate", "hit_rate_of_qkv", "dram_bytes_per_token")}
        middle = {name: statistics.median(values) if values else None for name, values in known.items()}
        rows.append([form, number(middle["hit_rate"], "{:.1f} %", 100), number(middle["hit_rate_of_qkv"], "{:.1f} %", 100),
                     number(middle["dram_bytes_per_token"], "{:.1f}", 1e-6), len(all_of)])
    return table(["form", "L2 hits", "of the products of Q, K and V", "MB from memory a token", "sessions"], rows)


def show_verdicts(verdicts):
    rows = [[each["what"], each["measured"], ": ".join(filter(None, (each["verdict"], each["why"])))] for each in verdicts]
    return table(["what", "measured", "verdict"], rows)


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
    if results["projections"]:
        parts += ["", "## Projections in low rank beside dense ones of the same bytes", "", show_projections(results["projections"])]
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
        parts += ["", "## Compiling", "", "{shape}: {seconds:.1f} s on {where}".format(**results["compile"]),
                  *(f"* {line}" for line in results["compile"]["said"])]
    heat = results["thermal"] or {}
    if "missing" in heat:
        parts += ["", "## Following the temperature", "", f"Not measured: {heat['missing']}"]
    elif heat:
        low, high = heat["fractions"]
        parts += ["", "## Following the temperature", "", (
            f"{heat['seconds']:.0f} s: fractions from {low:.3f} to {high:.3f} between {heat['range'][0]:.0f} and "
            f"{heat['range'][1]:.0f} °C, {heat['first']:.0f} °C at first and {heat['warmest']:.0f} °C at most, "
            f"{heat['tokens_per_second']:.1f} tokens/s")]
    if results.get("verdicts"):
        parts += ["", "## What was to be shown", "", show_verdicts(results["verdicts"])]
    if results["skipped"]:
        parts += ["", "## Skipped", "", *(f"* {line}" for line in results["skipped"])]
    return "\n".join(parts) + "\n"
