#!/usr/bin/env python3
"""Makes tests/fixtures/architectures: tiny random models of every architecture, as a Hugging Face
folder and as GGUF, with the logits that transformers computes.

usage: make_architecture_fixtures.py [FOLDER]

needs: pip install torch transformers==5.23.0 safetensors sentencepiece gguf==0.19.0

The weights are rounded to float16, in which both files hold them; the logits are float32, at the
positions that logits.npy's rows stand for: 0, 1, 15, 31 and 47 of 48 tokens. Windows of 16
positions and an original context of 32 make every kind of attention and of rope count. The GGUF
is written by this script after the conventions of llama.cpp's converter (queries and keys of Llama
reordered, Gemma's norms plus one, rope factors as tensors), not by the program under test.
"""
import io
import json
import math
import sys
from pathlib import Path

import gguf
import numpy as np
import sentencepiece
import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
POSITIONS = [0, 1, 15, 31, 47]
TOKENS = 48
COMMON = dict(
    vocab_size=64,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
)


def rope(**parameters):
    return {"rope_type": "default", "rope_theta": 10000.0, **parameters}


def models():
    """Name, GGUF architecture, configuration."""
    t = transformers
    yield "llama", "llama", t.LlamaConfig(**COMMON, tie_word_embeddings=True, attention_bias=True, mlp_bias=True)
    yield "llama-linear-rope", "llama", t.LlamaConfig(**COMMON, rope_parameters=rope(rope_type="linear", factor=4.0))
    llama3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
    yield "llama3-rope", "llama", t.LlamaConfig(**COMMON, rope_parameters=rope(rope_type="llama3", **llama3))
    yield "mistral", "llama", t.MistralConfig(**COMMON, head_dim=12, sliding_window=16)
    yield "qwen2", "qwen2", t.Qwen2Config(**COMMON, tie_word_embeddings=True)
    yield "qwen3", "qwen3", t.Qwen3Config(**COMMON, head_dim=12, tie_word_embeddings=False)
    gemma = dict(head_dim=12, query_pre_attn_scalar=12, sliding_window=16)
    yield "gemma2", "gemma2", t.Gemma2Config(**COMMON, **gemma, attn_logit_softcapping=2.0, final_logit_softcapping=3.0)
    kinds = ["sliding_attention", "full_attention"]
    local = {"full_attention": rope(rope_type="linear", factor=2.0, rope_theta=1e6), "sliding_attention": rope()}
    yield "gemma3", "gemma3", t.Gemma3TextConfig(**COMMON, **gemma, layer_types=kinds, rope_parameters=local)
    factors = dict(short_factor=[1.0, 1.1, 1.2], long_factor=[1.5, 2.0, 4.0])
    longrope = rope(rope_type="longrope", partial_rotary_factor=0.75, original_max_position_embeddings=32, **factors)
    yield "phi3", "phi3", t.Phi3Config(**COMMON, original_max_position_embeddings=32, rope_parameters=longrope)


def vocabulary():
    """A SentencePiece model of 64 pieces, of a text of small letters."""
    text = (ROOT / "assets/demo/alice.txt").read_text(encoding="utf-8").lower()
    lines = ["".join(c if c in "abcdefghijklmnopqrstuvwxyz" else " " for c in line) for line in text.split("\n")]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(" ".join(line.split()) for line in lines if line.split()),
        model_writer=model,
        vocab_size=64,
        model_type="bpe",
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def randomise(model, generator):
    """Weights large enough that a wrong sign, order or position shows in the logits."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 2 and "embed" in name:
                parameter.copy_(noise)
            elif parameter.dim() == 2:
                parameter.copy_(noise * 1.5 / math.sqrt(parameter.shape[1]))
            elif name.endswith("bias"):
                parameter.copy_(noise * 0.5)
            else:
                less = "gemma" in model.config.model_type
                parameter.copy_(noise * 0.2 + (0.0 if less else 1.0))
            parameter.copy_(parameter.half().float())


def permuted(weight, heads):
    """The order in which GGUF has the rows of Llama's queries and keys: pairs side by side."""
    size = weight.shape[0] // heads
    return weight.reshape(heads, 2, size // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


NAMES = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name, arch):
    name = name.removeprefix("model.")
    names = {**NAMES, **(SANDWICH if arch.startswith("gemma") else {})}
    if name in names:
        return names[name]
    _, layer, middle = name.split(".", 2)
    middle, kind = middle.rsplit(".", 1)
    return f"blk.{layer}.{names[middle]}.{kind}"


def write_gguf(path, arch, config, tensors, pieces):
    w = gguf.GGUFWriter(path, arch)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    parameters = config.rope_parameters
    full = parameters.get("full_attention", parameters)
    rotated = int(head_dim * full.get("partial_rotary_factor", 1.0))
    w.add_name(path.parent.name)
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_block_count(config.num_hidden_layers)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    w.add_rope_freq_base(full["rope_theta"])
    w.add_rope_dimension_count(rotated)
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        w.add_sliding_window(config.sliding_window)
    if "sliding_attention" in parameters:
        w.add_key_value(f"{arch}.rope.freq_base_swa", parameters["sliding_attention"]["rope_theta"], gguf.GGUFValueType.FLOAT32)
        w.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if getattr(config, "attn_logit_softcapping", None):
        w.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if getattr(config, "final_logit_softcapping", None):
        w.add_final_logit_softcapping(config.final_logit_softcapping)
    if full["rope_type"] == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(full["factor"])
    extra = {}
    if full["rope_type"] == "llama3":
        extra["rope_freqs.weight"] = llama3_factors(rotated, full)
    if full["rope_type"] == "longrope":
        original = full["original_max_position_embeddings"]
        scale = config.max_position_embeddings / original
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
        extra["rope_factors_short.weight"] = np.array(full["short_factor"], np.float32)
        extra["rope_factors_long.weight"] = np.array(full["long_factor"], np.float32)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list([pieces.id_to_piece(i).encode() for i in range(len(pieces))])
    w.add_token_scores([pieces.get_score(i) for i in range(len(pieces))])
    w.add_token_types([2 if pieces.is_unknown(i) else 3 if pieces.is_control(i) else 1 for i in range(len(pieces))])
    if arch.startswith("gemma"):
        w.add_add_space_prefix(False)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    for name, tensor in tensors.items():
        data = tensor.numpy()
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            data = permuted(data, heads)
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            data = data.astype(np.float32) + 1
        w.add_tensor(gguf_name(name, arch), data.astype(np.float32) if data.ndim == 1 else data)
    for name, data in extra.items():
        w.add_tensor(name, data)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama3_factors(dimensions, p):
    base = p["rope_theta"] ** (np.arange(0, dimensions, 2, dtype=np.float64) / dimensions)
    original = p["original_max_position_embeddings"]
    wavelength = 2 * math.pi * base
    smooth = (original / wavelength - p["low_freq_factor"]) / (p["high_freq_factor"] - p["low_freq_factor"])
    smooth = np.clip(smooth, 0, 1)
    return (1 / ((1 - smooth) / p["factor"] + smooth)).astype(np.float32)


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests/fixtures/architectures"
    transformers.logging.disable_progress_bar()
    spm = vocabulary()
    pieces = sentencepiece.SentencePieceProcessor(model_proto=spm)
    for index, (name, arch, config) in enumerate(models()):
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        generator = torch.Generator().manual_seed(index)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        randomise(model, generator)
        tokens = torch.randint(3, 64, (1, TOKENS), generator=generator)
        tokens[0, 0] = 1
        with torch.no_grad():
            logits = model(tokens).logits[0, POSITIONS]
        np.save(folder / "tokens.npy", tokens[0].numpy().astype(np.int32))
        np.save(folder / "logits.npy", logits.numpy().astype(np.float32))
        (folder / "tokenizer.model").write_bytes(spm)
        model.half().save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "model.safetensors").chmod(0o644)
        tied = config.tie_word_embeddings
        tensors = {n: t for n, t in model.state_dict().items() if not (tied and n == "lm_head.weight")}
        write_gguf(folder / "model.gguf", arch, config, tensors, pieces)
        print(f"{name}: logits {logits.std():.3f} standard deviation")


main()
