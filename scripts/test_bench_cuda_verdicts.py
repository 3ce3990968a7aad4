#!/usr/bin/env python3
"""Tests of the verdicts on what bench_cuda.py measured: python3 scripts/test_bench_cuda_verdicts.py"""

import pathlib
import re
import unittest
from unittest import mock

import bench_cuda_tables as tables
import bench_cuda_verdicts as v

LLAMA = "Llama-3.1-8B"


def results(**parts):
    """Results of a run, in which nothing was measured but what is given."""
    empty = {"decode": None, "projections": None, "beside": None, "l2": None, "skipped": [], "about": {"device": {}}}
    return {**empty, **parts}


def decoded(form, speed=1.0, weights=90, *, shape=LLAMA, of_copy=0.8):
    """Of a model with 10 bytes of keys and values a token."""
    speed = {"median": speed, "low": speed, "high": speed}
    return {"options": {"shape": shape, "form": form},
            "decode": {"tokens_per_second": speed, "bytes_per_second": 1.0, "of_copy": of_copy}, "token_bytes": {"weights": weights, "kv": 10},
            "energy": None, "per_token": None, "prefill": None}


def projection(name, *ratio):
    time = dict(zip(("low", "median", "high"), ratio)) or None
    return {"projection": name, "time_ratio": time}


def hits(*by_rank, shape=LLAMA, cache=None, reverse=False, **parts):
    """Results with the hit rates of ranks: pairs of a rank and the rate of each session."""
    found = [{"session": 0, "shape": shape, "form": "dense:q8_0", "hit_rate_of_qkv": 0.01}]
    found += [{"session": session, "shape": shape, "form": f"grc:{rank}:q8_0", "hit_rate_of_qkv": rate}
              for rank, rates in by_rank for session, rate in enumerate(rates)]
    device = {"l2_bytes": cache} if cache else {}
    return results(l2=found[::-1] if reverse else found, about={"device": device}, **parts)


def copies(sessions, dense=10.0):
    """Results of ranks beside copies: for each session a dictionary of rank and size to the ratio over the dense model."""
    found = []
    for session, ratios in enumerate(sessions):
        sizes = {size for _, size in ratios}
        # Sessions and copies differ in their speed: what is compared is of the same of both.
        speed = {size: dense * (1 + session) / (1 + size) for size in sizes}
        forms = {"dense:q8_0": speed}
        for (rank, size), ratio in ratios.items():
            forms.setdefault(f"grc:{rank}:q8_0", {})[size] = speed[size] * ratio
        found += [{"session": session, "shape": LLAMA, "form": form, "beside": [
            {"copied_bytes": size << 20, "speed": {"tokens_per_second": {"median": of}}} for size, of in speeds.items()]}
            for form, speeds in forms.items()]
    return results(beside=found)


class Case(unittest.TestCase):
    def said(self, row, verdict, why=None, measured=None):
        self.assertEqual(row["verdict"], verdict, row)
        for expected, key in ((why, "why"), (measured, "measured")):
            if expected is not None:
                self.assertEqual(row[key], expected)


class Bandwidth(Case):
    def test_every_form_of_the_large_shape_has_a_verdict(self):
        rows = v.of_copy(results(decode=[
            decoded("dense:q8_0", of_copy=0.75), decoded("dense:q4_k", of_copy=0.7499), decoded("levels:4", of_copy=None),
            decoded("dense:q8_0", shape="tiny", of_copy=0.9)]))
        self.assertEqual([row["what"] for row in rows], [
            f"75 % of the copy bandwidth, {LLAMA}, {form}" for form in ("dense:q8_0", "dense:q4_k", "levels:4")])
        self.said(rows[0], "met", "", "75.0 %")
        self.said(rows[1], "not met", "", "75.0 %")
        self.said(rows[2], "undecided", "no copy was measured", "")

    def test_without_that_shape_it_is_undecided(self):
        for decode in (None, [], [decoded("dense:q8_0", shape="tiny")]):
            (row,) = v.of_copy(results(decode=decode))
            self.said(row, "undecided", "not measured", "")
        other = ["decode: measure tiny dense:q8_0 2: no time left", f"beside: measure {LLAMA} dense:q8_0: no time left"]
        self.said(v.of_copy(results(skipped=other))[0], "undecided", "not measured")
        own = [f"decode: measure {LLAMA} dense:q8_0 2: no time left"]
        self.said(v.of_copy(results(skipped=own))[0], "undecided", "skipped")


class Projections(Case):
    def test_every_projection_has_a_verdict_by_its_median(self):
        of = {"options": {"shape": LLAMA, "form": "lowrank:1024:q8_0"}}
        rows = v.of_projections(results(projections=[
            {**of, "projections": [projection("q", 1.01, 1.02, 1.05), projection("k", 1.05, 1.05, 1.06), projection("gate", 1.04, 1.051, 1.1)]},
            {**of, "projections": [projection("down", 1.06, 1.1, 1.2), projection("up")]}]))
        self.assertTrue(all(LLAMA in row["what"] and "lowrank:1024:q8_0" in row["what"] for row in rows))
        straddles = "the interval straddles 1.05"
        self.said(rows[0], "met", "", "1.020 (1.010 to 1.050)")
        self.said(rows[1], "met", straddles)
        self.said(rows[2], "not met", straddles)
        self.said(rows[3], "not met", "")
        self.said(rows[4], "undecided", "not measured", "")
        self.assertEqual(len(rows), 5)

    def test_without_projections_it_is_undecided(self):
        self.said(v.of_projections(results())[0], "undecided", "not measured")
        self.said(v.of_projections(results(projections=[], skipped=["projections: projections tiny: no room"]))[0], "undecided", "skipped")


class Proportion(Case):
    def test_the_least_form_decides(self):
        dense = decoded("dense:q8_0", 100)
        # Half as many bytes, 1.8 and 1.79 times as fast.
        enough, less = decoded("dense:q4_k", 180, 40), decoded("levels:4", 179, 40)
        (row,) = v.proportional(results(decode=[dense, enough]))
        self.said(row, "met", "", "0.900 in dense:q4_k")
        self.assertIn("at least 0.9", row["what"])
        self.assertIn(LLAMA, row["what"])
        self.said(v.proportional(results(decode=[enough, less, dense]))[0], "not met", "", "0.895 in levels:4")

    def test_every_shape_has_a_verdict_against_its_own_dense_model(self):
        rows = v.proportional(results(decode=[
            decoded("dense:q8_0", 100), decoded("dense:q4_k", 180, 40),
            decoded("dense:q8_0", 1000, shape="tiny"), decoded("dense:q4_k", 1100, 40, shape="tiny")]))
        self.said(rows[0], "met")
        self.said(rows[1], "not met", "", "0.550 in dense:q4_k")
        self.assertEqual(len(rows), 2)

    def test_what_is_missing_decides_nothing(self):
        self.said(v.proportional(results())[0], "undecided", "not measured", "")
        skipped = [f"decode: measure {LLAMA} {form} 2: no time left" for form in ("dense:q8_0", "levels:4")]
        self.said(v.proportional(results(skipped=skipped))[0], "undecided", "skipped", "")
        dense, other = decoded("dense:q8_0", 100), decoded("dense:q4_k", 180, 40)
        self.said(v.proportional(results(decode=[other]))[0], "undecided", "dense:q8_0 not measured")
        self.said(v.proportional(results(decode=[other], skipped=skipped))[0], "undecided", "dense:q8_0 skipped")
        self.said(v.proportional(results(decode=[dense]))[0], "undecided", "no other form: not measured")
        self.said(v.proportional(results(decode=[dense], skipped=skipped[1:]))[0], "undecided", "no other form: skipped")

    def test_every_form_is_more_than_those_that_were_measured(self):
        skipped = [f"decode: measure {LLAMA} levels:4 2: no time left"]
        dense, met, below = decoded("dense:q8_0", 100), decoded("dense:q4_k", 180, 40), decoded("dense:q4_k", 110, 40)
        found = v.proportional(results(decode=[dense, met], skipped=skipped))[0]
        self.said(found, "undecided", "skipped: levels:4", "0.900 in dense:q4_k")
        self.said(v.proportional(results(decode=[dense, below], skipped=skipped))[0], "not met")
        other = [line.replace(LLAMA, "tiny") for line in skipped]
        self.said(v.proportional(results(decode=[dense, met], skipped=other))[0], "met")

    def test_they_are_the_factors_of_the_table(self):
        measured = [decoded("dense:q8_0", 100), decoded("dense:q4_k", 180, 40), decoded("dense:q4_k", shape="tiny")]
        self.assertEqual(tables.gains(measured), [(1, 1), (1.8, 2), (None, None)])
        lines = tables.show_decode(measured).splitlines()[2:]
        self.assertEqual([line.split(" | ")[5] for line in lines], ["1.00 / 1.00", "1.80 / 2.00", " / "])


class OfTwoSessions(Case):
    """Two sessions are enough here, so that all that they say can be read."""

    def setUp(self):
        fewest = mock.patch.object(v, "FEWEST", 2)
        fewest.start()
        self.addCleanup(fewest.stop)


class Sessions(Case):
    def test_few_sessions_decide_nothing(self):
        cache = 10_880 * 1500
        rates = lambda count: [(512, [0.9] * count), (1024, [0.8] * count), (2048, [0.4] * count)]
        self.said(v.p1(hits(*rates(3), cache=cache)), "undecided", "3 sessions of k=512")
        self.said(v.p1(hits(*rates(4), cache=cache)), "not refuted")
        both = {(64, 0): 1.3, (64, 4): 1.0}
        self.said(v.p2(copies([both] * 3)), "undecided", "3 sessions")
        self.said(v.p2(copies([both] * 4)), "not refuted")


class HitRates(OfTwoSessions):
    """P1. A layer's working set of Llama-3.1-8B is 10,880 bytes for each of the rank."""

    falling = ((512, [0.9, 0.91]), (1024, [0.88, 0.89]), (2048, [0.4, 0.41]))
    between = 10_880 * 1500

    def test_a_sharp_drop_at_the_crossing_is_not_refuted(self):
        for reverse in (False, True):
            row = v.p1(hits(*self.falling, cache=self.between, reverse=reverse))
            why = "the working set outgrows the cache from k=1024 to 2048, where the drop is largest"
            self.said(row, "not refuted", why, "k=512: 90.5 %, k=1024: 88.5 %, k=2048: 40.5 %")

    def test_a_drop_elsewhere_is_refuted(self):
        row = v.p1(hits(*self.falling, cache=10_880 * 600))
        self.said(row, "refuted")
        self.assertIn("drops elsewhere, most from k=1024 to 2048", row["why"])
        self.assertIn("from k=512 to 1024", row["why"])

    def test_the_last_rank_that_fits_is_the_one_of_just_the_cache(self):
        self.said(v.p1(hits(*self.falling, cache=10_880 * 1024)), "not refuted")
        self.said(v.p1(hits(*self.falling, cache=10_880 * 1024 - 1)), "refuted")

    def test_without_a_crossing_a_fall_shows_nothing_and_that_is_said(self):
        for cache, why in ((10_880 * 2048, "the working set fits the cache up to k=2048, the largest"),
                           (10_880 * 500, "the working set is above the cache from k=512 on, the smallest"),
                           (None, "whether the working set outgrows the cache is unknown without the size of the cache")):
            self.said(v.p1(hits(*self.falling, cache=cache)), "undecided", f"falls; {why}")
        for shape in (None, "other"):
            row = v.p1(hits(*self.falling, cache=self.between, shape=shape))
            self.said(row, "undecided", "falls; whether the working set outgrows the cache is unknown without the shape")
        older = hits(*self.falling, cache=self.between)
        for each in older["l2"]:
            del each["shape"]
        self.assertIn("without the shape", v.p1(older)["why"])

    def test_a_clear_rise_is_refuted(self):
        row = v.p1(hits((512, [0.9, 0.91]), (1024, [0.92, 0.93]), (2048, [0.4, 0.41]), cache=self.between))
        self.said(row, "refuted")
        self.assertIn("not monotonic: rises from k=512 to 1024", row["why"])
        # One session that is no higher, and it is not clear.
        row = v.p1(hits((512, [0.9, 0.92]), (1024, [0.92, 0.93]), (2048, [0.4, 0.41]), cache=self.between))
        self.said(row, "not refuted")

    def test_a_curve_without_a_clear_fall_is_refuted(self):
        for last in ([0.9, 0.9], [0.9, 0.8], [0.895, 0.92]):
            row = v.p1(hits((512, [0.9, 0.91]), (1024, [0.9, 0.91]), (2048, last), cache=self.between))
            self.said(row, "refuted")
            self.assertTrue(row["why"].startswith("flat; "), row)
            for cache in (10_880 * 2048, 10_880 * 500, None):
                row = v.p1(hits((512, [0.9, 0.91]), (1024, [0.9, 0.91]), (2048, last), cache=cache))
                self.said(row, "undecided")
                self.assertTrue(row["why"].startswith("flat; "), row)
        row = v.p1(hits((512, [0.9, 0.91]), (1024, [0.9, 0.91]), (2048, [0.8, 0.89]), cache=self.between))
        self.said(row, "not refuted")

    def test_what_is_missing_decides_nothing(self):
        first, second, third = self.falling
        self.said(v.p1(results()), "undecided", "not measured", "")
        self.said(v.p1(results(l2=[], skipped=["l2: ncu: not found"])), "undecided", "skipped", "")
        self.said(v.p1(hits(cache=self.between)), "undecided", "not measured", "")
        self.said(v.p1(hits(first, third, cache=self.between)), "undecided", "fewer than three ranks")
        row = v.p1(hits(first, second, (2048, [0.4]), cache=self.between))
        self.said(row, "undecided", "one session of k=2048", "k=512: 90.5 %, k=1024: 88.5 %, k=2048: 40.0 %")
        self.said(v.p1(hits(first, (1024, [0.88, None]), third, cache=self.between)), "undecided", "one session of k=1024")
        row = v.p1(hits((512, [None, None]), second, third, cache=self.between))
        self.said(row, "undecided", "no hit rate of k=512", "k=1024: 88.5 %, k=2048: 40.5 %")
        self.said(v.p1(hits(first, (1024, [0.88, None, 0.89]), third, cache=self.between)), "not refuted")

    def test_the_shapes_are_those_of_the_measuring_program(self):
        source = pathlib.Path(__file__).resolve().parent.parent / "loader/examples/device/shape.rs"
        fields = r"\s*".join([r'name: "([^"]+)",', r"layers: \S+,", *(
            rf"{name}: (\d+)," for name in ("width", "heads", "kv_heads", "head_size"))])
        found = re.findall(fields, source.read_text(encoding="utf-8"))
        self.assertEqual({name: tuple(map(int, numbers)) for name, *numbers in found}, v.SHAPES)

    def test_a_working_set_is_a_basis_and_its_factors(self):
        self.assertEqual(v.working_set(LLAMA, 32), 34 * (4096 + 32 * 128 + 2 * 8 * 128))
        self.assertEqual(v.working_set("SmolLM2-135M", 64), 2 * 34 * (576 + 576 + 2 * 192))


class Copies(OfTwoSessions):
    """P2. The speed-up of ranks beside copies."""

    def test_a_speed_up_that_shrinks_is_not_refuted(self):
        # In the middle, where the other rank gains more, nothing is asked.
        found = copies([{(64, 0): 1.3, (64, 2): 1.1, (64, 4): 1.19, (128, 0): 1.1, (128, 2): 1.5, (128, 4): 1.5},
                        {(64, 0): 1.2, (64, 2): 1.2, (64, 4): 1.1, (128, 0): 1.2, (128, 2): 1.5, (128, 4): 1.5}])
        why = "the speed-up goes with the cache"
        measured = "grc:64:q8_0: 1.250 beside 0 MiB, 1.150 beside 2 MiB, 1.145 beside 4 MiB"
        self.said(v.p2(found), "not refuted", why, measured)

    def test_a_speed_up_that_does_not_shrink_in_all_sessions_is_refuted(self):
        why = "flat: fused launches, not the cache"
        for last in (1.2, 1.25, 1.5):
            found = copies([{(64, 0): 1.3, (64, 4): 1.0}, {(64, 0): 1.2, (64, 4): last}])
            self.said(v.p2(found), "refuted", why)
        # The size in the middle counts for nothing, however far it falls.
        found = copies([{(64, 0): 1.3, (64, 2): 1.0, (64, 4): 1.3}, {(64, 0): 1.2, (64, 2): 1.0, (64, 4): 1.3}])
        self.said(v.p2(found), "refuted", why)

    def test_without_a_speed_up_there_is_none_to_explain(self):
        found = copies([{(64, 0): 1.3, (64, 4): 0.8}, {(64, 0): 1.0, (64, 4): 0.8}])
        self.said(v.p2(found), "refuted", "no speed-up to explain")
        found = copies([{(64, 0): 1.01, (64, 4): 0.8}, {(64, 0): 1.02, (64, 4): 0.8}])
        self.said(v.p2(found), "not refuted")

    def test_what_is_missing_decides_nothing(self):
        self.said(v.p2(results()), "undecided", "not measured", "")
        skipped = ["beside: measure tiny dense:q8_0: no time left"]
        self.said(v.p2(results(beside=[], skipped=skipped)), "undecided", "skipped", "")
        both = {(64, 0): 1.3, (64, 4): 1.0}
        self.said(v.p2(copies([both])), "undecided", "one session", "grc:64:q8_0: 1.300 beside 0 MiB, 1.000 beside 4 MiB")
        for half in ({(64, 0): 1.3}, {(64, 4): 1.0}):
            self.said(v.p2(copies([both, half])), "undecided", "one session")
        self.said(v.p2(copies([{(64, 0): 1.3}, {(64, 0): 1.3}])), "undecided", "one size of copies")
        self.said(v.p2(copies([{(64, 4): 1.3}] * 2)), "undecided", "no speed-up with 0 bytes copied")
        alone = copies([both, both])
        alone["beside"] = [each for each in alone["beside"] if each["form"] != "dense:q8_0" or each["session"] == 1]
        self.said(v.p2(alone), "undecided", "one session")


class All(Case):
    def test_without_figures_every_verdict_is_undecided_with_a_reason(self):
        rows = v.verdicts(results())
        self.assertEqual([(row["verdict"], row["why"]) for row in rows], [("undecided", "not measured")] * 5)

    def test_they_are_a_table_between_figures_and_what_was_skipped(self):
        other = dict.fromkeys(("first", "compile", "thermal"))
        found = results(**other, decode=[decoded("dense:q8_0")], skipped=["l2: ncu: not found"])
        found["decode"][0]["copy_bytes_per_second"] = 1e9
        found["about"] = {"device": {}, "device_asked": "cuda:0"}
        self.assertNotIn("What was to be shown", tables.show(found))
        found["verdicts"] = v.verdicts(found)
        parts = re.split("^## ", tables.show(found), flags=re.MULTILINE)
        self.assertEqual([part.splitlines()[0] for part in parts[1:]], [
            "Decoding and prefill", "What was to be shown", "Skipped"])
        lines = parts[2].splitlines()[2:-1]
        self.assertEqual(lines[0], "| what | measured | verdict |")
        self.assertEqual(lines[2], f"| 75 % of the copy bandwidth, {LLAMA}, dense:q8_0 | 80.0 % | met |")
        self.assertIn(" |  | undecided: skipped |", lines[-2])
        self.assertEqual(len(lines), 2 + len(found["verdicts"]))


if __name__ == "__main__":
    unittest.main()
