#!/usr/bin/env python3
"""The straightforward way to factorise a model: numpy, one tensor after the other.

    pip install numpy gguf==0.19
    OPENBLAS_NUM_THREADS=2 python3 scripts/baseline_numpy.py model.gguf --method gp --ratio 0.9 --out factors.bin

What `htc compile` does, as anybody would write it: gp is numpy.linalg.svd of every projection, grc
numpy.linalg.eigh of the summed Gram matrix of Q, K and V (each over its squared norm), factors
are quantised by gguf-py and written, other tensors are copied. A ratio is met from below in
multiples of 32, or of 8 where that is too coarse; a projection whose factors would not be smaller is
copied. The decompositions run on all threads of the BLAS library.

It exists to be compared with (bench_compile.py). Unlike htc it does not measure the error of
what it stored, nor does it seal, digest or check anything; the errors in --report are the
discarded share of the spectrum, before quantisation.
"""

import argparse
import json
import pathlib
import time

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFReader
from gguf.quants import dequantize, quantize

PROJECTIONS = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


def bytes_of(kind, rows, cols):
    """Bytes of a matrix stored as Q8_0, or as f16 where its rows are not whole blocks."""
    return rows * cols // 32 * 34 if kind == T.Q8_0 else rows * cols * 2


def type_for(cols):
    return T.Q8_0 if cols % 32 == 0 else T.F16


def rank_for(options, name, outs, cols, limit):
    """The rank of a projection; 0 where it is to be copied."""
    if options.ranks is not None:
        return options.ranks.get(name, 0)
    if options.rank:
        return min(options.rank, limit)
    most = int(options.ratio * outs * cols / (outs + cols))
    granule = next(g for g in (32, 8, 1) if most >= g)
    return min(most // granule * granule, limit)


class Out:
    """The file of factors, and how many bytes of it are factors."""

    def __init__(self, path):
        self.file = open(path, "wb")
        self.factors = 0

    def write_factor(self, matrix):
        stored = quantize(np.ascontiguousarray(matrix, np.float32), type_for(matrix.shape[1]))
        self.file.write(stored.tobytes())
        self.factors += stored.nbytes


def per_projection(options, tensors, out, report):
    for name, tensor in tensors.items():
        weight = dequantize(tensor.data, tensor.tensor_type).astype(options.float)
        outs, cols = weight.shape
        rank = rank_for(options, name, outs, cols, min(outs, cols))
        after = bytes_of(type_for(cols), rank, cols) + bytes_of(type_for(rank), outs, rank)
        if rank == 0 or after >= tensor.n_bytes:
            out.file.write(tensor.data.tobytes())
            continue
        u, s, vt = np.linalg.svd(weight, full_matrices=False)
        out.write_factor(vt[:rank])
        out.write_factor(u[:, :rank] * s[:rank])
        lost = float(np.sqrt(np.square(s[rank:]).sum() / np.square(s).sum()))
        report.append({"id": name, "rank": rank, "error": lost})


def shared_basis(options, tensors, out, report):
    weights = {
        name: dequantize(tensor.data, tensor.tensor_type).astype(options.float)
        for name, tensor in tensors.items()
    }
    cols = next(iter(weights.values())).shape[1]
    outs = sum(w.shape[0] for w in weights.values())
    rank = rank_for(options, next(iter(weights)), outs, cols, cols)
    after = bytes_of(type_for(cols), rank, cols) + bytes_of(type_for(rank), outs, rank)
    if rank == 0 or after >= sum(t.n_bytes for t in tensors.values()):
        for tensor in tensors.values():
            out.file.write(tensor.data.tobytes())
        return
    gram = sum(w.T @ w / np.square(w).sum() for w in weights.values())
    _, vectors = np.linalg.eigh(gram)
    basis = vectors[:, ::-1][:, :rank]
    out.write_factor(basis.T)
    for name, weight in weights.items():
        projected = weight @ basis
        out.write_factor(projected)
        kept = float(np.square(projected).sum() / np.square(weight).sum())
        report.append({"id": name, "rank": rank, "error": max(0.0, 1 - kept) ** 0.5})


def read_ranks(path):
    projections = json.loads(pathlib.Path(path).read_text())["plan"]["projections"]
    return {p["id"]: p["rank"] for p in projections if p.get("rank") is not None}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL.gguf", type=pathlib.Path)
    parser.add_argument("--method", choices=["gp", "grc"], default="gp", help="[default: gp]")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--ratio", type=float, default=0.9, metavar="R", help="[default: 0.9]")
    budget.add_argument("--rank", type=int, metavar="N")
    budget.add_argument(
        "--ranks", type=read_ranks, metavar="FILE", help="projection by projection as in a report of `htc compile --report FILE`"
    )
    parser.add_argument("--projections", metavar="LIST", help="[default: all for gp, q,k,v for grc]")
    parser.add_argument(
        "--float", choices=["float32", "float64"], default="float32", help="of the arithmetic [default: float32]"
    )
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FILE", help="where factors go")
    parser.add_argument("--report", type=pathlib.Path, metavar="FILE", help="ranks, errors and seconds as JSON")
    options = parser.parse_args()
    projections = options.projections.split(",") if options.projections else list(PROJECTIONS if options.method == "gp" else "qkv")
    if not set(projections) <= set(PROJECTIONS) or (options.method == "grc" and not set(projections) <= set("qkv")):
        parser.error("--projections: of q,k,v,o,gate,up,down; of q,k,v for grc")
    if not 0 < options.ratio <= 1 or (options.rank is not None and options.rank < 1):
        parser.error("--ratio: above 0 and at most 1; --rank: at least 1")

    started = time.perf_counter()
    tensors = {t.name: t for t in GGUFReader(options.model).tensors}
    chosen = []
    layer = 0
    while f"blk.{layer}.attn_q.weight" in tensors:
        names = [f"blk.{layer}.{PROJECTIONS[p]}" for p in projections]
        chosen.append({name: tensors.pop(f"{name}.weight") for name in names})
        layer += 1
    out, report = Out(options.out), []
    for members in chosen:
        (per_projection if options.method == "gp" else shared_basis)(options, members, out, report)
    for tensor in tensors.values():
        out.file.write(tensor.data.tobytes())
    out.file.close()
    seconds = time.perf_counter() - started
    print(f"{len(report)} projections factorised, {out.factors / 1e6:.1f} MB of factors, {seconds:.2f} s")
    if options.report:
        whole = {"seconds": seconds, "factor_bytes": out.factors, "projections": report}
        options.report.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
