#!/usr/bin/env python3
"""Makes formats/tests/fixtures/: blocks with the values that gguf-py gives them.

    pip install gguf==0.19 numpy
    python3 scripts/make_block_fixtures.py

`decode_TYPE.bin` are blocks and `decode_TYPE.f32` their numbers by gguf-py's numpy decoders;
`encode_TYPE.f32` are numbers and `encode_TYPE.bin` their blocks by its encoders. Everything is
little-endian. The random numbers are seeded: running the script again changes nothing.
"""

import pathlib

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

OUT = pathlib.Path(__file__).resolve().parent.parent / "formats" / "tests" / "fixtures"
RNG = np.random.default_rng(20240229)

# Scales that a random draw would miss: zeros, subnormals, the largest, negative ones.
SCALES = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x2E66, 0xAE66],
    dtype=np.uint16,
)


def blocks(kind, count, scales_at):
    """Random blocks, the scales of the first ones taken from SCALES, all codes of one all ones
    and of one all zeros."""
    _, size = GGML_QUANT_SIZES[kind]
    made = RNG.integers(0, 256, (count, size), dtype=np.uint8)
    made[-2, :] = 0xFF
    made[-1, :] = 0x00
    for place, at in enumerate(scales_at):
        # f16 of ordinary magnitude and either sign: exponents 1 to 29.
        scales = RNG.integers(0, 2, count) << 15 | RNG.integers(1, 30, count) << 10
        scales = (scales | RNG.integers(0, 1024, count)).astype(np.uint16)
        special = np.roll(SCALES, 3 * place)
        n = min(count - 2, len(special))
        scales[:n] = special[:n]
        made[:, at : at + 2] = scales.astype("<u2").view(np.uint8).reshape(count, 2)
    return made


def write(name, array):
    (OUT / name).write_bytes(np.ascontiguousarray(array).tobytes())


def decoded(kind, made):
    name = kind.name.lower()
    values = dequantize(made, kind)
    assert np.isfinite(values).all() or made.shape[1] < 16
    write(f"decode_{name}.bin", made)
    write(f"decode_{name}.f32", values.astype("<f4"))


def encoded(kind, values):
    name = kind.name.lower()
    write(f"encode_{name}.f32", values.astype("<f4"))
    with np.errstate(over="ignore"):
        write(f"encode_{name}.bin", quantize(values, kind))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    decoded(T.Q8_0, blocks(T.Q8_0, 24, [0]))
    decoded(T.Q4_0, blocks(T.Q4_0, 24, [0]))
    decoded(T.Q4_K, blocks(T.Q4_K, 14, [0, 2]))
    decoded(T.Q5_K, blocks(T.Q5_K, 14, [0, 2]))
    decoded(T.Q6_K, blocks(T.Q6_K, 14, [208]))

    # Every exponent of either sign for the float formats; infinities, no NaN of f16, whose
    # payload numpy leaves to the processor.
    exponents = np.arange(64, dtype=np.uint16).repeat(6) << 10
    halves = exponents | RNG.integers(0, 1024, exponents.size).astype(np.uint16)
    halves[(halves & 0x7C00) == 0x7C00] &= 0xFC00
    decoded(T.F16, halves.astype("<u2").view(np.uint8).reshape(-1, 2))
    exponents = np.arange(512, dtype=np.uint16) << 7
    halves = exponents | RNG.integers(0, 128, exponents.size).astype(np.uint16)
    decoded(T.BF16, halves.astype("<u2").view(np.uint8).reshape(-1, 2))

    # Ties of either format and their neighbours, overflow, subnormals, random numbers.
    ties = [1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 3 * 2**-25, 65519.996, 65520.0, 65504.0]
    ties += [1 + 2**-8, 1 + 3 * 2**-8, 1 + 5 * 2**-9, 3.3895e38, 3.4e38, 1e-40, 1.5e-45]
    ties += [0.0, 2**-14, 2**-14 - 2**-25, np.inf]
    ties = np.array(ties, dtype=np.float32)
    near = np.concatenate([ties, np.nextafter(ties, 0), np.nextafter(ties, 3e38)])
    random = RNG.standard_normal(256) * 10.0 ** RNG.integers(-9, 6, 256)
    floats = np.concatenate([near, -near, random]).astype(np.float32)
    encoded(T.F16, floats)
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFBFFFFF, 0x7FFFFFFF], dtype=np.uint32)
    encoded(T.BF16, np.concatenate([floats, nans.view(np.float32)]))

    # Rows of q8_0: random, exact codes, exact halves, a zero block, a block of tiny numbers.
    rows = RNG.standard_normal((32, 32)) * 10.0 ** RNG.integers(-6, 6, (32, 1))
    rows[-1] = 0
    rows[-2] = np.arange(32) * 1e-37
    rows[-3] = np.arange(-16, 16) * 127 / 16
    rows[-4] = np.arange(32) + 0.5
    rows[-4, 0] = 127
    rows[-5] = -rows[-4]
    rows[-6, 7] = 65519 * 127.0
    encoded(T.Q8_0, rows.astype(np.float32))


if __name__ == "__main__":
    main()
