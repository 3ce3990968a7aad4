#!/usr/bin/env python3
"""Makes formats/tests/fixtures/: blocks with the values that gguf-py gives them, and GGUF files.

    pip install gguf==0.19 numpy
    python3 scripts/make_block_fixtures.py

`decode_TYPE.bin` are blocks, `decode_TYPE.f32` the first of their numbers by gguf-py's numpy decoders, and
`decode.sha256` has the digest of all numbers of every type. gguf-py decodes no Q8_1, Q8_K, F64 and integers:
their definitions are written out here. `encode_TYPE.f32` are numbers and `encode_TYPE.bin` their blocks by
its encoders. `every_type.gguf` has metadata of every type and tensors of several, `tiny_llama.gguf` is a
whole model, both by gguf-py's writer. Everything is little-endian. The random numbers are seeded: running the script again changes nothing.
"""

import hashlib
import pathlib

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGUFValueType as V
from gguf.constants import GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

OUT = pathlib.Path(__file__).resolve().parent.parent / "formats" / "tests" / "fixtures"
RNG = np.random.default_rng(20240229)

# Scales that a random draw would miss: zeros, subnormals, the largest, negative ones.
SCALES = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x2E66, 0xAE66],
    dtype=np.uint16,
)


# Numbers of a type that are stored; the rest are in its digest.
STORED = 1024

# The structure in ggml-common.h has f16 scale and sum; gguf-py counts two f32.
SIZES = {**GGML_QUANT_SIZES, T.Q8_1: (32, 36)}


def random_of(kind):
    """A generator for one type: what one type draws does not depend on the others."""
    return np.random.default_rng([20240229, kind])


def blocks(kind, count, scales_at, rng=RNG):
    """Random blocks, the scales of the first ones taken from SCALES, all codes of one all ones
    and of one all zeros."""
    _, size = SIZES[kind]
    made = rng.integers(0, 256, (count, size), dtype=np.uint8)
    made[-2, :] = 0xFF
    made[-1, :] = 0x00
    for place, at in enumerate(scales_at):
        # f16 of ordinary magnitude and either sign: exponents 1 to 29.
        scales = rng.integers(0, 2, count) << 15 | rng.integers(1, 30, count) << 10
        scales = (scales | rng.integers(0, 1024, count)).astype(np.uint16)
        special = np.roll(SCALES, 3 * place)
        n = min(count - 2, len(special))
        scales[:n] = special[:n]
        made[:, at : at + 2] = scales.astype("<u2").view(np.uint8).reshape(count, 2)
    return made


def write(name, array):
    (OUT / name).write_bytes(np.ascontiguousarray(array).tobytes())


DIGESTS = []


def decoded(kind, made, values=None):
    """Fixtures of the blocks `made`; `values` where gguf-py has no decoder."""
    name = kind.name.lower()
    if values is None:
        with np.errstate(over="ignore"):
            values = dequantize(made, kind)
    values = np.ascontiguousarray(values.astype("<f4")).reshape(-1)
    # Only numbers with no scale can be infinite, and those of the largest scales of MXFP4.
    assert np.isfinite(values).all() or made.shape[1] < 16 or kind == T.MXFP4
    write(f"decode_{name}.bin", made)
    write(f"decode_{name}.f32", values[:STORED])
    DIGESTS.append(f"{hashlib.sha256(values.tobytes()).hexdigest()}  {name}\n")


def closed(kind, made):
    """What gguf-py has no decoder for."""
    rows = made.shape[0]
    if kind == T.Q8_1:
        d = np.ascontiguousarray(made[:, :2]).view("<f2").astype(np.float32)
        return d * made[:, 4:].view(np.int8).astype(np.float32)
    if kind == T.Q8_K:
        d = np.ascontiguousarray(made[:, :4]).view("<f4")
        return d * made[:, 4:260].view(np.int8).astype(np.float32)
    stored = {T.I8: "<i1", T.I16: "<i2", T.I32: "<i4", T.I64: "<i8", T.F64: "<f8"}[kind]
    with np.errstate(over="ignore"):
        return made.view(stored).astype(np.float32).reshape(rows, -1)


# Types with tables of groups, and the blocks that take every index of the table at least once
# beside those with special scales.
INDICES = {
    T.IQ1_S: 64 + 2,
    T.IQ1_M: 64 + 2,
    T.IQ2_XXS: 16,
    T.IQ2_XS: 16 + 2,
    T.IQ2_S: 32 + 2,
    T.IQ3_XXS: 16,
    T.IQ3_S: 16,
}


def grouped(kind, count):
    rng = random_of(kind)
    made = blocks(kind, count, [] if kind == T.IQ1_M else [0], rng)
    if kind == T.IQ1_M:
        # Four bits of the scale in the upper half of every other byte from 49 on.
        scales = rng.integers(0, 2, count) << 15 | rng.integers(0, 30 << 10, count)
        scales[: len(SCALES)] = SCALES
        for i in range(4):
            made[:, 49 + 2 * i] &= 0x0F
            made[:, 49 + 2 * i] |= ((scales >> (4 * i) & 15) << 4).astype(np.uint8)

    # Groups of a block, bits of their indices, and every index in random order.
    groups, bits = {
        T.IQ1_S: (32, 11),
        T.IQ1_M: (32, 11),
        T.IQ2_XXS: (32, 8),
        T.IQ2_XS: (32, 9),
        T.IQ2_S: (32, 10),
        T.IQ3_XXS: (64, 8),
        T.IQ3_S: (64, 9),
    }[kind]
    rows = (1 << bits) // groups
    assert rows <= count - 2
    index = rng.permutation(1 << bits).reshape(rows, groups)
    part, high = made[:rows], index >> 8
    if kind == T.IQ2_XXS:
        part[:, 2:].reshape(rows, 8, 8)[:, :, :4] = index.reshape(rows, 8, 4)
    elif kind == T.IQ2_XS:
        packed = rng.integers(0, 128, (rows, groups)) << 9 | index
        part[:, 2:66] = packed.astype("<u2").view(np.uint8)
    else:
        low_at = 0 if kind == T.IQ1_M else 2
        part[:, low_at : low_at + groups] = index & 255
    if kind == T.IQ1_S:
        packed = rng.integers(0, 16, (rows, 8)) << 12
        packed |= (high.reshape(rows, 8, 4) << [0, 3, 6, 9]).sum(axis=-1)
        part[:, 34:50] = packed.astype("<u2").view(np.uint8)
    elif kind == T.IQ1_M:
        high = high | rng.integers(0, 2, high.shape) << 3
        part[:, 32:48] = (high.reshape(rows, 16, 2) << [0, 4]).sum(axis=-1)
    elif kind == T.IQ2_S:
        part[:, 66:74] = (high.reshape(rows, 8, 4) << [0, 2, 4, 6]).sum(axis=-1)
    elif kind == T.IQ3_S:
        part[:, 66:74] = (high.reshape(rows, 8, 8) << np.arange(8)).sum(axis=-1)
    decoded(kind, made)


def every_decoder():
    """The types that are not in `main`."""
    for kind, count, scales_at in [
        (T.Q4_1, 48, [0, 2]),
        (T.Q5_0, 48, [0]),
        (T.Q5_1, 48, [0, 2]),
        (T.Q8_1, 40, [0, 2]),
        (T.Q2_K, 24, [80, 82]),
        (T.Q3_K, 24, [108]),
        (T.IQ4_NL, 48, [0]),
        (T.IQ4_XS, 24, [0]),
        (T.TQ1_0, 24, [52]),
        (T.TQ2_0, 24, [64]),
    ]:
        made = blocks(kind, count, scales_at, random_of(kind))
        decoded(kind, made, closed(kind, made) if kind == T.Q8_1 else None)

    for kind, count in INDICES.items():
        grouped(kind, count)

    # Every exponent.
    made = blocks(T.MXFP4, 256, [], random_of(T.MXFP4))
    made[:, 0] = np.arange(256)
    decoded(T.MXFP4, made)

    rng = random_of(T.Q8_K)
    made = blocks(T.Q8_K, 12, [], rng)
    scales = rng.standard_normal(12) * 10.0 ** rng.integers(-42, 30, 12)
    scales[:4] = [0.0, -1e-42, 3e38 / 128, 1.0]
    made[:, :4] = scales.astype("<f4").view(np.uint8).reshape(-1, 4)
    decoded(T.Q8_K, made, closed(T.Q8_K, made))

    # Integers of every magnitude, and ties between two numbers of f32.
    for kind, bits in [(T.I8, 8), (T.I16, 16), (T.I32, 32), (T.I64, 64)]:
        rng = random_of(kind)
        values = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), 256, dtype=np.int64)
        values >>= rng.integers(0, bits, 256)
        ties = [2**24 + 1, 2**24 + 3, 2**25 + 2, 2**25 + 6, 2**40 + 2**16, 2**40 + 3 * 2**16]
        ties = [tie for tie in [*ties, 2 ** (bits - 1) - 1] if tie < 2 ** (bits - 1)]
        values[: len(ties)] = ties
        values[len(ties) : 2 * len(ties)] = [-tie for tie in ties]
        values[-1] = -(2 ** (bits - 1))
        made = values.astype(f"<i{bits // 8}").view(np.uint8).reshape(-1, bits // 8)
        decoded(kind, made, closed(kind, made))

    # Ties of f32 and their neighbours, overflow, subnormals, random numbers.
    rng = random_of(T.F64)
    ties = [1 + 2**-24, 1 + 3 * 2**-24, 2.0**-150, 3 * 2.0**-150, 2.0**128 - 2.0**103]
    ties = np.array([*ties, 0.0, 1e300, 5e-324, 2.0**-126 - 2.0**-151, np.inf])
    near = np.concatenate([ties, np.nextafter(ties, 0), np.nextafter(ties, 1e308)])
    random = rng.standard_normal(256) * 10.0 ** rng.integers(-50, 42, 256)
    values = np.concatenate([near, -near, random]).astype("<f8")
    made = values.view(np.uint8).reshape(-1, 8)
    decoded(T.F64, made, closed(T.F64, made))


def encoded(kind, values):
    name = kind.name.lower()
    write(f"encode_{name}.f32", values.astype("<f4"))
    with np.errstate(over="ignore"):
        write(f"encode_{name}.bin", quantize(values, kind))


def every_type():
    writer = GGUFWriter(OUT / "every_type.gguf", "llama")
    writer.add_custom_alignment(64)
    for kind, value in [
        (V.UINT8, 200),
        (V.INT8, -100),
        (V.UINT16, 60000),
        (V.INT16, -30000),
        (V.UINT32, 4000000000),
        (V.INT32, -2000000000),
        (V.FLOAT32, 0.5),
        (V.BOOL, True),
        (V.STRING, "gr\u00fc\u00dfe"),
        (V.UINT64, 2**63),
        (V.INT64, -(2**62)),
        (V.FLOAT64, 1e300),
    ]:
        writer.add_key_value(f"one.{kind.name.lower()}", value, kind)
    writer.add_array("list.int32", [1, -2, 3])
    writer.add_array("list.float32", [0.5, -0.25])
    writer.add_array("list.bool", [True, False, True])
    writer.add_array("list.string", ["a", "", "\u2581b"])
    writer.add_array("list.list", [[1, 2], [3]])
    floats = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    writer.add_tensor("f32", floats)
    writer.add_tensor("f16", floats.astype(np.float16))
    writer.add_tensor("i32", np.arange(5, dtype=np.int32))
    for kind in [T.Q8_0, T.Q4_0, T.Q5_1]:
        rows = np.arange(128, dtype=np.float32).reshape(2, 64)
        writer.add_tensor(kind.name.lower(), quantize(rows, kind), raw_dtype=kind)
    finish(writer)


def tiny_llama():
    width, heads, kv_heads, ffn, tokens = 32, 4, 2, 64, 6
    writer = GGUFWriter(OUT / "tiny_llama.gguf", "llama")
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(width // heads)
    writer.add_value_length(width // heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(5e5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", "<0x41>", "\u2581a", "b"])
    writer.add_token_scores([0.0, 0.0, 0.0, 0.0, -1.0, -2.0])
    writer.add_token_types([2, 3, 3, 6, 1, 1])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(False)

    def matrix(name, rows, cols):
        values = RNG.standard_normal((rows, cols)).astype(np.float32)
        writer.add_tensor(name, quantize(values, T.Q8_0), raw_dtype=T.Q8_0)

    matrix("token_embd.weight", tokens, width)
    matrix("output.weight", tokens, width)
    writer.add_tensor("output_norm.weight", np.ones(width, dtype=np.float32))
    writer.add_tensor("rope_freqs.weight", np.ones(width // heads // 2, dtype=np.float32))
    for name in ["attn_norm", "ffn_norm"]:
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(width, dtype=np.float32))
    kv = width // heads * kv_heads
    for name, rows, cols in [
        ("attn_q", width, width),
        ("attn_k", kv, width),
        ("attn_v", kv, width),
        ("attn_output", width, width),
        ("ffn_gate", ffn, width),
        ("ffn_up", ffn, width),
        ("ffn_down", width, ffn),
    ]:
        matrix(f"blk.0.{name}.weight", rows, cols)
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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

    every_decoder()
    (OUT / "decode.sha256").write_text("".join(DIGESTS))

    every_type()
    tiny_llama()


if __name__ == "__main__":
    main()
