#!/usr/bin/env python3
"""Tests of what bench_cuda.py computes, and of how it ends: python3 scripts/test_bench_cuda.py"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import types
import unittest
from unittest import mock

import bench_cuda as b
import bench_cuda_tables as tables

# What a dense model launches for a token, of one layer; with a basis of Q, K and V there is one product more.
DENSE = "rotate_to embed norm_quantise q8_0_1 heads_ready attend_split join_quantise q8_0_1 norm_quantise q8_0_1 largest"
BASIS = DENSE.replace("q8_0_1 heads_ready", "q8_0_1 q8_0_1 heads_ready")


def ncu(names, *, passes=1, metrics=b.METRICS, hits=lambda index: 50, memory="1,000"):
    """What ncu prints of some launches: 200 sectors that each reads, and how many of them the cache has."""
    lines = ["==PROF== Connected to process 7"]
    times = f"{passes} pass{'es' * (passes > 1)}"
    lines += [f'==PROF== Profiling "{name}" - {i}: 0%....100% - {times}' for i, name in enumerate(names)]
    lines += ['{"what": "measure"}', '"ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"']
    for i, name in enumerate(names):
        values = {b.METRICS[0]: "200", b.METRICS[1]: hits(i), b.METRICS[2]: memory}
        lines += [f'"{i}","{name}(int, Some)","(8, 1, 1)","{metric}","byte","{values[metric]}"' for metric in metrics]
    return "\n".join([*lines, "==PROF== Disconnected from process 7"])


class Hits(unittest.TestCase):
    def test_launches_come_in_their_order_with_their_figures(self):
        text = ncu(["one", "two"], hits=lambda i: 10 * i)
        self.assertEqual(b.launches(text), [("one", "(8, 1, 1)", [200, 0, 1000]), ("two", "(8, 1, 1)", [200, 10, 1000])])
        scaled = text.replace('"byte","1,000"', '"Kbyte","3"')
        self.assertEqual(b.launches(scaled)[0][2], [200, 0, 3000])
        self.assertEqual(b.launches("==ERROR== ERR_NVGPUCTRPERM"), [])

    def test_whole_tokens_alone_count(self):
        dense = DENSE.split()
        # Behind the middle of a token there are two whole ones and the beginning of a fourth, which hit more.
        names = [*dense[5:], *dense, *dense, *dense[:4]]
        inside = range(len(dense) - 5, 3 * len(dense) - 5)
        found = b.hits_of(ncu(names, hits=lambda i: 50 if i in inside else 200))
        self.assertEqual((found["tokens"], found["launches"], found["hit_rate"]), (2, len(dense), 0.25))
        self.assertEqual(found["dram_bytes_per_token"], 1000 * len(dense))
        self.assertEqual(found["kernels"]["heads_ready (8, 1, 1)"], [400, 100, 2000])

    def test_products_of_attention_go_by_their_place_and_not_by_their_name(self):
        for text, count in ((DENSE, 1), (BASIS, 2)):
            names = text.split()
            own = [i for i, name in enumerate(names) if "heads_ready" in names[i + 1 : i + 1 + count] and name == "q8_0_1"]
            self.assertEqual(len(own), count)
            found = b.hits_of(ncu([*names, "rotate_to"], hits=lambda i, own=own: 150 if i in own else 50))
            self.assertEqual((found["launches_of_qkv"], found["hit_rate_of_qkv"]), (count, 0.75))
            self.assertNotIn("hit_rate_of_qkv_missing", found)

    def test_what_is_missing_is_said(self):
        names = [*DENSE.split(), "rotate_to"]
        found = b.hits_of(ncu([name for name in names if name != "heads_ready"]))
        self.assertIsNone(found["hit_rate_of_qkv"])
        self.assertIn("heads_ready", found["hit_rate_of_qkv_missing"])
        self.assertIn("no whole token", b.hits_of(ncu(names[:-1]))["missing"])
        self.assertIn("differ", b.hits_of(ncu([*DENSE.split(), *BASIS.split(), "rotate_to"]))["missing"])
        self.assertEqual(b.hits_of("==ERROR== no permission")["missing"], "no permission")
        found = b.hits_of(ncu(names, metrics=b.HITS))
        self.assertEqual((found["hit_rate"], found["dram_bytes_per_token"]), (0.25, None))
        self.assertIsNone(b.hits_of(ncu(names, memory="n/a"))["dram_bytes_per_token"])
        table = tables.show_l2([{"form": "dense:q8_0", **found, "hit_rate_of_qkv": None}])
        self.assertIn("| dense:q8_0 | 25.0 % |  |  | 1 |", table)

    def test_what_is_replayed_is_no_figure(self):
        found = b.hits_of(ncu([*DENSE.split(), "rotate_to"], passes=3))
        self.assertEqual(found["passes"], 3)
        self.assertIn("3 passes", found["missing"])
        self.assertNotIn("hit_rate", found)

    def profile(self, passes_of):
        """The part with an ncu that takes so many passes for so many metrics, and what it was asked."""
        asked = []

        def run(_, name, command):
            metrics = command[command.index("--metrics") + 1].split(",")
            asked.append((name, len(metrics)))
            text = ncu([*DENSE.split(), "rotate_to"], passes=passes_of(len(metrics)), metrics=metrics)
            return types.SimpleNamespace(stdout=text, stderr="")

        options = types.SimpleNamespace(device="cuda:0", dry_run=False, shapes=["tiny"], bin=pathlib.Path("/bin"))
        budget = b.Budget("l2", 60, [])
        with mock.patch.object(b.shutil, "which", return_value="ncu"):
            return b.l2(types.SimpleNamespace(run=run), budget, options), asked, budget.skipped

    def test_fewer_metrics_are_asked_for_where_all_take_more_than_a_pass(self):
        found, asked, skipped = self.profile(lambda metrics: 1)
        self.assertEqual(len(found), 3 * b.SESSIONS)
        self.assertEqual({count for _, count in asked}, {3})
        self.assertEqual({each["shape"] for each in found}, {"tiny"})
        self.assertEqual(skipped, [])
        found, asked, skipped = self.profile(lambda metrics: metrics - 1)
        self.assertEqual(len(found), 3 * b.SESSIONS)
        self.assertEqual([count for _, count in asked], [3, *[2] * 3 * b.SESSIONS])
        self.assertEqual(len(skipped), 1)
        found, asked, skipped = self.profile(lambda metrics: 2)
        self.assertEqual((found, len(asked), len(skipped)), ([], 2, 2))


class Arithmetic(unittest.TestCase):
    def test_speed_ups_are_those_of_a_session_beside_the_same_copies(self):
        def result(session, form, *speeds):
            of = [{"copied_bytes": copied, "speed": {"tokens_per_second": {"median": speed}}} for copied, speed in speeds]
            return {"session": session, "form": form, "beside": of}

        found = tables.speedups([
            result(0, "dense:q8_0", (0, 10), (8, 5)), result(0, "grc:64:q8_0", (0, 12), (8, 5)),
            result(1, "dense:q8_0", (0, 20)), result(1, "grc:64:q8_0", (0, 20), (8, 9)),
        ])
        self.assertEqual(found, {("grc:64:q8_0", 0): (1.1, 2), ("grc:64:q8_0", 8): (1.0, 1)})

    def test_a_whole_run_fits_into_eight_minutes(self):
        # What is asked of the device and of the driver's program in front of the parts takes seconds of its own.
        self.assertLessEqual(sum(b.BUDGETS.values()), 460)
        self.assertEqual(set(b.QUICK), set(b.BUDGETS))

    def test_a_minute_of_heat_is_a_minute_where_there_is_room(self):
        self.assertEqual(b.thermal_seconds(b.BUDGETS["thermal"] - 0.5), 60)
        self.assertEqual(b.thermal_seconds(400), 60)
        self.assertEqual(b.thermal_seconds(30), 18)
        self.assertEqual(b.thermal_seconds(1), 2)

    def test_budgets_are_those_of_parts(self):
        self.assertEqual(b.budget_of("compile=480"), ("compile", 480))
        for wrong in ("compile", "compile=", "compile=x", "compile=0", "other=3", "compile=-1"):
            with self.assertRaises(argparse.ArgumentTypeError, msg=wrong):
                b.budget_of(wrong)

    def test_the_command_is_told_without_the_folder_of_programs(self):
        self.assertEqual(b.command_line(["--bin", "x", "--quick", "--bin=y", "-o", "z"]), ["--quick", "-o", "z"])


DEVICE = """\
#!/bin/sh
case "$1" in
  info) echo '{"device": {"name": "none"}}' ;;
  first) [ -n "$FIRST_FAILS" ] && { echo "error: no room" >&2; exit 1; }
    echo '{"bytes": 1000000, "seconds": {"device": 1, "open": 1, "load": 1, "token": 1, "all": 4}}' ;;
  make) echo '{}' ;;
  measure) [ -n "$MEASURED" ] || exit 1
    echo "{\\"options\\": {\\"shape\\": \\"$5\\", \\"form\\": \\"$7\\"}, $MEASURED}" ;;
  *) exec sleep 60 ;;
esac
"""
MEASURED = """\
"token_bytes": {"weights": 900, "kv": 100}, "copy_bytes_per_second": 1000, "per_token": null,
"prefill": null, "energy": null, "decode": {
"tokens_per_second": {"median": 2, "low": 1, "high": 3}, "bytes_per_second": 800, "of_copy": 0.8},
"decode_beside": [{"copied_bytes": 0, "speed": {"tokens_per_second": {"median": 2}}}]
"""
HTC = """\
#!/bin/sh
echo "$@" >>"$(dirname "$0")/asked"
echo "note: weights decomposed by a library" >&2
"""


class Ends(unittest.TestCase):
    """The whole script, with programs that stand in for those that measure."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name, text in (("device", DEVICE), ("htc", HTC)):
            (self.folder / name).write_text(text, encoding="utf-8")
            (self.folder / name).chmod(0o755)

    def bench(self, *arguments, **environment):
        """The code that it ends with, what it wrote and what it printed."""
        script = pathlib.Path(b.__file__)
        command = [sys.executable, "-B", script, "--bin", self.folder, "-o", self.folder / "out", *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
        written = self.folder / "out.json"
        return ended.returncode, json.loads(written.read_text(encoding="utf-8")) if written.exists() else {}, ended.stdout

    def test_what_is_measured_is_told_with_what_was_skipped(self):
        code, found, text = self.bench("--device", "cpu", "--parts", "first,thermal", "--budget", "thermal=2", "--quick")
        self.assertEqual(code, 0, text)
        self.assertEqual(found["first"][0]["seconds"]["all"], 4)
        self.assertEqual(len(found["skipped"]), 1)
        self.assertIn("did not end in time", found["skipped"][0])
        self.assertEqual(found["about"]["device_asked"], "cpu")
        self.assertTrue(found["about"]["commands"])
        self.assertEqual({each["verdict"] for each in found["verdicts"]}, {"undecided"})
        self.assertLess(text.index("## What was to be shown"), text.index("## Skipped"))

    def test_verdicts_are_written_with_what_was_measured(self):
        given = ["--device", "cuda:0", "--parts", "decode,beside", "--shapes", "Llama-3.1-8B", "--quick"]
        code, found, text = self.bench(*given, MEASURED=MEASURED)
        self.assertEqual(code, 0, text)
        said = {each["what"]: (each["measured"], each["verdict"]) for each in found["verdicts"]}
        what = "75 % of the copy bandwidth, Llama-3.1-8B, dense:q8_0"
        self.assertEqual(said[what], ("80.0 %", "met"))
        head = "\n## What was to be shown\n\n| what | measured | verdict |\n| --- | --: | --: |\n"
        self.assertIn(f"{head}| {what} | 80.0 % | met |\n", text)
        self.assertIn(" | undecided: not measured |\n", text)
        self.assertEqual({each["shape"] for each in found["beside"]}, {"Llama-3.1-8B"})
        self.assertEqual((self.folder / "out.md").read_text(encoding="utf-8"), text)

    def test_nothing_measured_is_a_failure(self):
        code, found, _ = self.bench("--device", "cpu", "--parts", "first", "--quick", FIRST_FAILS="1")
        self.assertEqual(code, 1)
        self.assertIn("no room", found["skipped"][0])

    def test_what_was_skipped_is_written_with_every_part(self):
        states = []

        def keep(out, ending, text):
            if ending == "json":
                states.append(json.loads(text))

        given = ["bench", "--bin", str(self.folder), "--device", "cpu", "--parts", "l2,first", "--quick"]
        with mock.patch.object(b, "write", keep), mock.patch.object(sys, "argv", given), \
                contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), \
                mock.patch.object(b.signal, "signal"):
            b.main()
        # Of each part without verdicts first, then with them.
        self.assertEqual(["verdicts" in state for state in states], [False, True] * 2)
        self.assertEqual(states[0]["skipped"], ["l2: ncu: the device is no GPU"])
        self.assertEqual(states[0]["about"]["device"], {"name": "none"})
        self.assertIsNone(states[1]["first"])
        self.assertTrue(states[2]["first"])

    def test_a_shape_is_compiled_where_it_was_asked_for(self):
        code, found, text = self.bench("--device", "cuda:1", "--parts", "compile", "--compile-shape", "Llama-3.1-8B")
        self.assertEqual(code, 0, text)
        self.assertEqual(found["compile"]["shape"], "Llama-3.1-8B")
        self.assertEqual(found["compile"]["where"], "cuda:1")
        self.assertEqual(found["compile"]["said"], ["note: weights decomposed by a library"])
        self.assertEqual(found["skipped"], [])
        self.assertIn("--device cuda:1", (self.folder / "asked").read_text(encoding="utf-8"))
        self.assertIn("s on cuda:1", text)
        code, found, _ = self.bench("--device", "cuda:1", "--parts", "compile")
        self.assertEqual(found["compile"]["shape"], "SmolLM2-135M")
        self.assertIn("Llama-3.1-8B", found["skipped"][0])

    def test_what_a_program_started_ends_with_it(self):
        kept = self.folder / "child"
        with self.assertRaises(subprocess.TimeoutExpired):
            b.finished(["sh", "-c", 'sleep 60 & echo $! >"$0"; wait', str(kept)], 1)
        child = int(kept.read_text(encoding="utf-8"))
        for _ in range(100):
            if not running(child):
                break
            time.sleep(0.05)
        self.assertFalse(running(child))


def running(process):
    """Whether a process is there, and is more than what is left of one that ended."""
    try:
        state = pathlib.Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


if __name__ == "__main__":
    unittest.main()
