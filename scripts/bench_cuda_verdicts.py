"""Verdicts on what bench_cuda.py measured: pure functions of its results.

P1 and P2 are the papers' own falsification protocol for shared bases of Q, K and V: what their model of the cache
predicts, and what refutes it. One figure is above another where all sessions of it lie above all sessions of the other.

What was not measured has no verdict: it is undecided, with the reason.
"""

import collections
import re
import statistics

from bench_cuda_tables import gains, number, session_speedups, spread

COPY, DENSE, PROPORTION = 0.75, 1.05, 0.9
# Of five that the protocol has: among fewer, one figure is too often above another by chance.
FEWEST = 4
JUDGED = "Llama-3.1-8B"
# Width, heads, heads of keys and values, and size of a head, as in loader/examples/device/shape.rs.
SHAPES = {
    "Llama-3.1-8B": (4096, 32, 8, 128),
    "Llama-3.2-1B": (2048, 32, 8, 64),
    "SmolLM2-135M": (576, 9, 3, 64),
    "tiny": (256, 4, 2, 64),
}


def verdicts(results):
    """All of them, as rows of what was to be shown, what was measured, the verdict and why."""
    return [*of_copy(results), *of_projections(results), *proportional(results), p1(results), p2(results)]


def row(what, measured, verdict, why=""):
    return {"what": what, "measured": measured, "verdict": verdict, "why": why}


def undecided(what, why, measured=""):
    return row(what, measured, "undecided", why)


def met(whether):
    return "met" if whether else "not met"


def absent(results, part, name=""):
    """Why there is no figure of a part, or of what has a name in it."""
    lines = [line for line in results["skipped"] if line.startswith(f"{part}: ") and name in line]
    return "skipped" if lines else "not measured"


def of_copy(results):
    what = f"75 % of the copy bandwidth, {JUDGED}"
    rows = []
    for result in results["decode"] or []:
        if result["options"]["shape"] != JUDGED:
            continue
        name, part = f"{what}, {result['options']['form']}", result["decode"]["of_copy"]
        if part is None:
            rows.append(undecided(name, "no copy was measured"))
        else:
            rows.append(row(name, number(part, "{:.1f} %", 100), met(part >= COPY)))
    return rows or [undecided(what, absent(results, "decode", JUDGED))]


def of_projections(results):
    what = "low rank within 5 % of a dense matrix of the same bytes"
    rows = []
    for result in results["projections"] or []:
        for projection in result["projections"]:
            name = f"{what}, {result['options']['shape']} {projection['projection']}, {result['options']['form']}"
            ratio = projection["time_ratio"]
            if ratio is None:
                rows.append(undecided(name, "not measured"))
                continue
            why = f"the interval straddles {DENSE}" if ratio["low"] <= DENSE < ratio["high"] else ""
            rows.append(row(name, spread(ratio), met(ratio["median"] <= DENSE), why))
    return rows or [undecided(what, absent(results, "projections"))]


def proportional(results):
    what = f"speed-up proportional to bytes saved, at least {PROPORTION} of it in every form"
    by_shape = collections.defaultdict(dict)
    measured = results["decode"] or []
    for result, gain in zip(measured, gains(measured)):
        by_shape[result["options"]["shape"]][result["options"]["form"]] = gain
    rows = [of_bytes(f"{what}, {shape}", forms, missing(results, shape)) for shape, forms in by_shape.items()]
    return rows or [undecided(what, absent(results, "decode"))]


def missing(results, shape):
    """Forms of a shape that were skipped."""
    begins = f"decode: measure {shape} "
    return [line.removeprefix(begins).split()[0] for line in results["skipped"] if line.startswith(begins)]


def of_bytes(what, forms, skipped):
    """Whether every form is as much faster than dense:q8_0 as it touches fewer bytes."""
    if "dense:q8_0" not in forms:
        return undecided(what, f"dense:q8_0 {'skipped' if 'dense:q8_0' in skipped else 'not measured'}")
    parts = {form: gain / saved for form, (gain, saved) in forms.items() if form != "dense:q8_0"}
    if not parts:
        return undecided(what, f"no other form: {'skipped' if skipped else 'not measured'}")
    least = min(parts, key=parts.get)
    measured = f"{parts[least]:.3f} in {least}"
    if skipped and parts[least] >= PROPORTION:
        # What is said of every form is not shown by some of them; one is enough against it.
        return undecided(what, f"skipped: {', '.join(skipped)}", measured)
    return row(what, measured, met(parts[least] >= PROPORTION))


def above(some, others):
    """Whether all of some lie above all of others."""
    return min(some) > max(others)


def p1(results):
    """The hit rate does not rise with the rank while a layer's basis and factors fit into the cache, and falls sharply
    where they no longer do. A curve that is flat or rises refutes that."""
    what = "P1: the hit rate of Q, K and V falls with the rank of their basis where that outgrows the L2 cache"
    rates = hit_rates(results["l2"] or [])
    if not rates:
        return undecided(what, absent(results, "l2"))
    middle = {rank: statistics.median(of) for rank, of in rates.items() if of}
    measured = ", ".join(f"k={rank}: {number(rate, '{:.1f} %', 100)}" for rank, rate in middle.items())
    few = [rank for rank, of in rates.items() if len(of) < FEWEST]
    if len(rates) < 3:
        return undecided(what, "fewer than three ranks", measured)
    if few:
        count = len(rates[few[0]])
        return undecided(what, f"{sessions(count) if count else 'no hit rate'} of k={few[0]}", measured)
    return row(what, measured, *of_curve(rates, middle, *crossing(results, list(rates))))


def sessions(count):
    return "one session" if count == 1 else f"{count} sessions"


def rank_of(form):
    """K of grc:K:q8_0."""
    found = re.fullmatch(r"grc:(\d+):q8_0", form)
    return int(found.group(1)) if found else None


def hit_rates(found):
    """Hit rates of each rank, ranks in order; none of those sessions that lack it."""
    rates = collections.defaultdict(list)
    for result in found:
        rank, rate = rank_of(result["form"]), result["hit_rate_of_qkv"]
        if rank is not None:
            rates[rank] += [] if rate is None else [rate]
    return dict(sorted(rates.items()))


def working_set(shape, rank):
    """Bytes of a layer's basis of Q, K and V and of its factors, in q8_0."""
    width, heads, kv_heads, head_size = SHAPES[shape]
    return rank * (width + (heads + 2 * kv_heads) * head_size) * 34 / 32


def crossing(results, ranks):
    """The neighbouring ranks between which the cache is outgrown, and that in words; None where there are none."""
    shape = results["l2"][0].get("shape")
    cache = results["about"]["device"].get("l2_bytes")
    if shape not in SHAPES or not cache:
        unknown = "the size of the cache" if shape in SHAPES else "the shape"
        return None, f"whether the working set outgrows the cache is unknown without {unknown}"
    fits = [working_set(shape, rank) <= cache for rank in ranks]
    if all(fits):
        return None, f"the working set fits the cache up to k={ranks[-1]}, the largest"
    if not any(fits):
        return None, f"the working set is above the cache from k={ranks[0]} on, the smallest"
    at = (ranks[fits.index(False) - 1], ranks[fits.index(False)])
    return at, f"the working set outgrows the cache from k={at[0]} to {at[1]}"


def of_curve(rates, middle, at, where):
    """Verdict on hit rates by rank, and why."""
    ranks = list(rates)
    steps = list(zip(ranks, ranks[1:]))
    rising = [step for step in steps if above(rates[step[1]], rates[step[0]])]
    if rising:
        return "refuted", f"not monotonic: rises from k={rising[0][0]} to {rising[0][1]}; {where}"
    if not above(rates[ranks[0]], rates[ranks[-1]]):
        # What is foretold is a drop where the cache is outgrown.
        return "refuted" if at else "undecided", f"flat; {where}"
    if at:
        drops = {step: middle[step[0]] - middle[step[1]] for step in steps}
        most = max(drops, key=drops.get)
        if drops[at] < drops[most]:
            return "refuted", f"drops elsewhere, most from k={most[0]} to {most[1]}; {where}"
        return "not refuted", f"{where}, where the drop is largest"
    return "undecided", f"falls; {where}"


def p2(results):
    """The speed-up over a dense model shrinks as copies beside take more of the cache. Where it does not, it comes from
    launches that are fused."""
    what = "P2: the speed-up of a shared basis of Q, K and V shrinks as copies take the L2 cache"
    found = session_speedups(results["beside"] or [])
    middle = {key: statistics.median(of.values()) for key, of in found.items()}
    plain = {form: ratio for (form, copied), ratio in middle.items() if copied == 0 and rank_of(form) is not None}
    if not plain:
        return undecided(what, "no speed-up with 0 bytes copied" if found else absent(results, "beside"))
    form = max(plain, key=plain.get)
    sizes = sorted(copied for other, copied in found if other == form)
    measured = ", ".join(f"{middle[form, size]:.3f} beside {size >> 20} MiB" for size in sizes)
    measured = f"{form}: {measured}"
    if len(sizes) < 2:
        return undecided(what, "one size of copies", measured)
    first, last = found[form, 0].values(), found[form, sizes[-1]].values()
    if min(len(first), len(last)) < FEWEST:
        return undecided(what, sessions(min(len(first), len(last))), measured)
    if min(first) <= 1:
        return row(what, measured, "refuted", "no speed-up to explain")
    if above(first, last):
        return row(what, measured, "not refuted", "the speed-up goes with the cache")
    return row(what, measured, "refuted", "flat: fused launches, not the cache")
