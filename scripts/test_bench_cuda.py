#!/usr/bin/env python3
"""Tests of what bench_cuda.py computes: python3 scripts/test_bench_cuda.py"""

import unittest

import bench_cuda as b

NCU = """\
==PROF== Connected to process 7
{"what": "measure"}
"ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"
"0","project","(8, 1, 1)","dram__bytes_read.sum","byte","1,000"
"0","project","(8, 1, 1)","lts__t_sectors_op_read.sum","sector","200"
"0","project","(8, 1, 1)","lts__t_sectors_op_read_lookup_hit.sum","sector","50"
"1","project","(8, 1, 1)","lts__t_sectors_op_read.sum","sector","100"
"1","project","(8, 1, 1)","lts__t_sectors_op_read_lookup_hit.sum","sector","100"
"2","project","(2, 1, 1)","lts__t_sectors_op_read.sum","sector","100"
"2","project","(2, 1, 1)","lts__t_sectors_op_read_lookup_hit.sum","sector","10"
"2","project","(2, 1, 1)","dram__bytes_read.sum","Kbyte","3"
"""


class Arithmetic(unittest.TestCase):
    def test_hits_are_summed_by_kernel_and_grid(self):
        found = b.hit_rates(NCU)
        self.assertEqual(found["project (8, 1, 1)"], (300, 150, 1000))
        self.assertEqual(found["project (2, 1, 1)"], (100, 10, 3000))
        self.assertEqual(b.rate(found.values()), 0.4)
        self.assertIsNone(b.rate([]))
        self.assertEqual(b.hit_rates("==ERROR== ERR_NVGPUCTRPERM"), {})

    def test_speed_ups_are_those_of_a_session_beside_the_same_copies(self):
        def result(session, form, *speeds):
            of = [{"copied_bytes": copied, "speed": {"tokens_per_second": {"median": speed}}} for copied, speed in speeds]
            return {"session": session, "form": form, "beside": of}

        found = b.speedups([
            result(0, "dense:q8_0", (0, 10), (8, 5)), result(0, "grc:64:q8_0", (0, 12), (8, 5)),
            result(1, "dense:q8_0", (0, 20)), result(1, "grc:64:q8_0", (0, 20), (8, 9)),
        ])
        self.assertEqual(found, {("grc:64:q8_0", 0): (1.1, 2), ("grc:64:q8_0", 8): (1.0, 1)})

    def test_a_whole_run_fits_into_eight_minutes(self):
        self.assertLessEqual(sum(b.BUDGETS.values()), 460)
        self.assertEqual(set(b.QUICK), set(b.BUDGETS))

    def test_the_command_is_told_without_the_folder_of_programs(self):
        self.assertEqual(b.command_line(["--bin", "x", "--quick", "--bin=y", "-o", "z"]), ["--quick", "-o", "z"])


if __name__ == "__main__":
    unittest.main()
