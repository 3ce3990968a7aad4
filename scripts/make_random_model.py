#!/usr/bin/env python3
"""Makes a Llama GGUF with random weights, for measurements of speed and memory.

    pip install numpy gguf==0.19
    python3 scripts/make_random_model.py random-1b.gguf --shape 1b --type q8_0

The shape and the types are a real model's, the weights are independent normal numbers with a
standard deviation of 1/sqrt(inputs), so that activations stay finite through all layers. Such
a model costs what a trained one of the same shape costs; it says nothing about quality, and
its spectra are flat: no rank below the full one approximates it well.

The vocabulary is another model's. With --vocabulary-size it is filled up with tokens of the
type "unused", whose names no token has; no text is ever split into them.

The same options give the same bytes (with the same numpy). One tensor is in memory at a time.
Embeddings are tied, as in Llama 3.2 1B: there is no output.weight.
"""

import argparse
import os
import pathlib
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import quantize

DEMO = pathlib.Path(__file__).resolve().parent.parent / "assets/demo/reference-7m-f16.gguf"

# width, layers, heads, key-value heads, head size, ffn
SHAPES = {
    "tiny": (256, 4, 8, 4, 32, 768),
    "0.1b": (768, 12, 12, 4, 64, 3072),
    "1b": (2048, 16, 32, 8, 64, 8192),
    "8b": (4096, 32, 32, 8, 128, 14336),
}
TYPES = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
UNUSED = 5


def tensors_of(shape, layers, vocabulary):
    """Name and shape of every tensor, [out, in], in the order of the file."""
    width, _, heads, kv_heads, head, ffn = shape
    yield "token_embd.weight", (vocabulary, width)
    for layer in range(layers):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", (width,)
        yield block + "attn_q.weight", (heads * head, width)
        yield block + "attn_k.weight", (kv_heads * head, width)
        yield block + "attn_v.weight", (kv_heads * head, width)
        yield block + "attn_output.weight", (width, heads * head)
        yield block + "ffn_norm.weight", (width,)
        yield block + "ffn_gate.weight", (ffn, width)
        yield block + "ffn_up.weight", (ffn, width)
        yield block + "ffn_down.weight", (width, ffn)
    yield "output_norm.weight", (width,)


def stored_type(shape, kind):
    """Vectors stay float32, as in every GGUF."""
    return GGMLQuantizationType.F32 if len(shape) == 1 else kind


def stored_bytes(shape, kind):
    block, size = GGML_QUANT_SIZES[stored_type(shape, kind)]
    return int(np.prod(shape)) // block * size


def values(shape, seed, index):
    """The numbers of one tensor; each has a generator of its own."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    numbers = np.random.default_rng([seed, index]).standard_normal(shape, np.float32)
    numbers *= np.float32(shape[1] ** -0.5)
    return numbers


def copy_vocabulary(source, writer, size):
    """Copies all tokenizer metadata; returns the number of tokens written."""
    fields = {k: f for k, f in source.fields.items() if k.startswith("tokenizer.")}
    if "tokenizer.ggml.tokens" not in fields:
        raise SystemExit("the model given by --vocabulary-from has no vocabulary")
    entries = {key: field.contents() for key, field in fields.items()}
    tokens = entries["tokenizer.ggml.tokens"]
    size = size or len(tokens)
    if size < len(tokens):
        raise SystemExit(f"--vocabulary-size {size}: the vocabulary has {len(tokens)} tokens already")
    padding = [f"<unused:{i}>" for i in range(len(tokens), size)]
    if not set(padding).isdisjoint(tokens):
        raise SystemExit("the vocabulary has tokens of the names that padding has; take another model's")
    lowest = min(entries.get("tokenizer.ggml.scores", [0.0]))
    fill = {
        "tokenizer.ggml.tokens": padding,
        "tokenizer.ggml.scores": [lowest - 1.0 - i for i in range(len(padding))],
        "tokenizer.ggml.token_type": [UNUSED] * len(padding),
    }
    for key, value in entries.items():
        kind = fields[key].types[0]
        if kind == GGUFValueType.ARRAY:
            extended = list(value) + fill.get(key, [])
            writer.add_key_value(key, extended, kind, fields[key].types[-1])
        else:
            writer.add_key_value(key, value, kind)
    return size


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", metavar="OUT.gguf", type=pathlib.Path)
    parser.add_argument(
        "--shape",
        choices=SHAPES,
        default="1b",
        help="1b is Llama 3.2 1B's: width 2048, 16 layers, 32 heads, 8 for keys and values, ffn 8192 [default: 1b]",
    )
    parser.add_argument("--type", choices=TYPES, default="q8_0", help="of all matrices [default: q8_0]")
    parser.add_argument("--layers", type=int, metavar="N", help="another number of layers than the shape's")
    parser.add_argument(
        "--vocabulary-from", type=pathlib.Path, default=DEMO, metavar="MODEL.gguf", help="[default: the demo model]"
    )
    parser.add_argument(
        "--vocabulary-size", type=int, metavar="N", help="fill up with unused tokens, such as 32000"
    )
    parser.add_argument("--context", type=int, default=2048, metavar="N", help="positions [default: 2048]")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="[default: 0]")
    parser.add_argument("--force", action="store_true", help="replace OUT.gguf if it exists")
    options = parser.parse_args()
    if options.out.exists() and not options.force:
        parser.error(f"{options.out} exists; give --force to replace it")
    if options.layers is not None and options.layers < 1:
        parser.error("--layers: at least 1")
    return options


def main():
    options = arguments()
    shape = SHAPES[options.shape]
    width, layers, heads, kv_heads, head, ffn = shape
    layers = options.layers or layers
    kind, file_type = TYPES[options.type]
    part = options.out.with_name(options.out.name + ".part")
    writer = GGUFWriter(part, "llama")
    source = GGUFReader(options.vocabulary_from)
    vocabulary = copy_vocabulary(source, writer, options.vocabulary_size)
    tensors = list(tensors_of(shape, layers, vocabulary))
    parameters = sum(int(np.prod(s)) for _, s in tensors)

    cut = f"-{layers}-layers" if options.layers else ""
    writer.add_type("model")
    writer.add_name(f"random-{options.shape}{cut}")
    writer.add_size_label(f"{parameters / 1e6:.0f}M")
    writer.add_block_count(layers)
    writer.add_context_length(options.context)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_file_type(file_type)
    writer.add_vocab_size(vocabulary)
    writer.add_rope_dimension_count(head)
    writer.add_quantization_version(2)

    for name, dims in tensors:
        writer.add_tensor_info(
            name, dims, np.dtype(np.float32), stored_bytes(dims, kind), stored_type(dims, kind)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for index, (name, dims) in enumerate(tensors):
        if sys.stderr.isatty():
            print(f"\r{index + 1}/{len(tensors)} {name:<30}", end="", file=sys.stderr)
        writer.write_tensor_data(quantize(values(dims, options.seed, index), stored_type(dims, kind)))
    writer.close()
    os.replace(part, options.out)
    print(
        f"{'' if not sys.stderr.isatty() else chr(13)}{options.out}: {parameters / 1e6:.1f} M parameters, "
        f"{options.out.stat().st_size / 1e6:.1f} MB, vocabulary {vocabulary}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
