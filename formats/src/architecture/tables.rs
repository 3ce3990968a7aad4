//! Tables of the supported architectures.

use super::{Architecture, Dim, EmbeddingScale, Group, Sliding, TensorRule, Traits};
use crate::model::{Activation, Part, ProjectionKind, Role, RopePairs};

/// All supported architectures.
pub static SUPPORTED: &[&Architecture] = &[&LLAMA, &QWEN2, &QWEN3, &GEMMA2, &GEMMA3, &PHI3];

const REQUIRED: bool = true;
const OPTIONAL: bool = false;

/// Llama 1 to 3, Mistral, and other models converted under this name.
static LLAMA: Architecture = Architecture {
    name: "llama",
    model_types: &["llama", "mistral"],
    groups: &[
        &EMBEDDING,
        &ROPE_FACTORS,
        &ATTENTION_NORM,
        &SEPARATE_QKV,
        &OPTIONAL_QKV_BIASES,
        &ATTENTION_OUTPUT,
        &FFN_NORM,
        &SEPARATE_GATE_UP,
        &FFN_DOWN,
        &OPTIONAL_OUTPUT_AND_FFN_BIASES,
        &OUTPUT,
    ],
    traits: Traits {
        gguf_rope_pairs: RopePairs::Adjacent,
        ..PLAIN
    },
};

/// Qwen 2 and 2.5: biases on queries, keys and values.
static QWEN2: Architecture = Architecture {
    name: "qwen2",
    model_types: &["qwen2"],
    groups: &[
        &EMBEDDING,
        &ATTENTION_NORM,
        &SEPARATE_QKV,
        &QKV_BIASES,
        &ATTENTION_OUTPUT,
        &FFN_NORM,
        &SEPARATE_GATE_UP,
        &FFN_DOWN,
        &OUTPUT,
    ],
    traits: PLAIN,
};

/// Qwen 3: norms of the query and key heads.
static QWEN3: Architecture = Architecture {
    name: "qwen3",
    model_types: &["qwen3"],
    groups: &[
        &EMBEDDING,
        &ATTENTION_NORM,
        &SEPARATE_QKV,
        &OPTIONAL_QKV_BIASES,
        &HEAD_NORMS,
        &ATTENTION_OUTPUT,
        &FFN_NORM,
        &SEPARATE_GATE_UP,
        &FFN_DOWN,
        &OPTIONAL_OUTPUT_AND_FFN_BIASES,
        &OUTPUT,
    ],
    traits: PLAIN,
};

/// Gemma 2: norms before and after, soft caps, a window in every second layer.
static GEMMA2: Architecture = Architecture {
    name: "gemma2",
    model_types: &["gemma2"],
    groups: &[
        &EMBEDDING,
        &ATTENTION_NORM,
        &SEPARATE_QKV,
        &ATTENTION_OUTPUT,
        &SANDWICH_NORMS,
        &SEPARATE_GATE_UP,
        &FFN_DOWN,
        &OUTPUT,
    ],
    traits: Traits {
        activation: Activation::GeluTanh,
        embedding_scale: EmbeddingScale::RootOfWidth,
        norms_less_one: true,
        sliding: Sliding::AllBut {
            every: 2,
            positions: Some(4096),
        },
        attention_softcap: Some(50.0),
        logit_softcap: Some(30.0),
        // 27B.
        layers_scaled_by_width: Some(46),
        ..PLAIN
    },
};

/// Gemma 3 (text): head norms, a window in five of six layers.
static GEMMA3: Architecture = Architecture {
    name: "gemma3",
    model_types: &["gemma3_text"],
    groups: &[
        &EMBEDDING,
        &ATTENTION_NORM,
        &SEPARATE_QKV,
        &HEAD_NORMS,
        &ATTENTION_OUTPUT,
        &SANDWICH_NORMS,
        &SEPARATE_GATE_UP,
        &FFN_DOWN,
        &OUTPUT,
    ],
    traits: Traits {
        activation: Activation::GeluTanh,
        embedding_scale: EmbeddingScale::RootOfWidth,
        norms_less_one: true,
        sliding: Sliding::AllBut {
            every: 6,
            positions: None,
        },
        sliding_rope_theta: Some(10_000.0),
        rope_theta: 1_000_000.0,
        // 27B.
        layers_scaled_by_width: Some(62),
        ..PLAIN
    },
};

/// Phi 3 and 4: fused q/k/v and gate/up tensors, LongRoPE.
static PHI3: Architecture = Architecture {
    name: "phi3",
    model_types: &["phi3"],
    groups: &[
        &EMBEDDING,
        &LONG_ROPE_FACTORS,
        &ATTENTION_NORM,
        &FUSED_QKV,
        &ATTENTION_OUTPUT,
        &FFN_NORM,
        &FUSED_GATE_UP,
        &FFN_DOWN,
        &OUTPUT,
    ],
    traits: PLAIN,
};

const PLAIN: Traits = Traits {
    gguf_rope_pairs: RopePairs::Halves,
    activation: Activation::Silu,
    embedding_scale: EmbeddingScale::One,
    norms_less_one: false,
    sliding: Sliding::Every,
    sliding_rope_theta: None,
    rope_theta: 10_000.0,
    attention_softcap: None,
    logit_softcap: None,
    layers_scaled_by_width: None,
};

// One rule per line: names in GGUF and Hugging Face folders, roles with their rows, row length, and
// whether the tensor is required.
#[rustfmt::skip]
static EMBEDDING: Group = Group::Model(&[
    TensorRule { gguf: "token_embd.weight", hugging_face: "model.embed_tokens.weight", holds: &[(|_| Role::TokenEmbedding, Dim::Vocabulary)], cols: Dim::Width, required: REQUIRED },
]);

#[rustfmt::skip]
static ROPE_FACTORS: Group = Group::Model(&[
    TensorRule { gguf: "rope_freqs.weight", hugging_face: "", holds: &[(|_| Role::RopeFactors, Dim::One)], cols: Dim::RotaryPairs, required: OPTIONAL },
]);

#[rustfmt::skip]
static LONG_ROPE_FACTORS: Group = Group::Model(&[
    TensorRule { gguf: "rope_factors_short.weight", hugging_face: "", holds: &[(|_| Role::RopeFactors, Dim::One)], cols: Dim::RotaryPairs, required: OPTIONAL },
    TensorRule { gguf: "rope_factors_long.weight", hugging_face: "", holds: &[(|_| Role::LongRopeFactors, Dim::One)], cols: Dim::RotaryPairs, required: OPTIONAL },
]);

#[rustfmt::skip]
static ATTENTION_NORM: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.attn_norm.weight", hugging_face: "model.layers.{}.input_layernorm.weight", holds: &[(|layer| Role::AttentionNorm { layer }, Dim::One)], cols: Dim::Width, required: REQUIRED },
]);

#[rustfmt::skip]
static SEPARATE_QKV: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.attn_q.weight", hugging_face: "model.layers.{}.self_attn.q_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::Q), Dim::Queries)], cols: Dim::Width, required: REQUIRED },
    TensorRule { gguf: "blk.{}.attn_k.weight", hugging_face: "model.layers.{}.self_attn.k_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::K), Dim::KeysValues)], cols: Dim::Width, required: REQUIRED },
    TensorRule { gguf: "blk.{}.attn_v.weight", hugging_face: "model.layers.{}.self_attn.v_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::V), Dim::KeysValues)], cols: Dim::Width, required: REQUIRED },
]);

#[rustfmt::skip]
static FUSED_QKV: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.attn_qkv.weight", hugging_face: "model.layers.{}.self_attn.qkv_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::Q), Dim::Queries), (|layer| dense(layer, ProjectionKind::K), Dim::KeysValues), (|layer| dense(layer, ProjectionKind::V), Dim::KeysValues)], cols: Dim::Width, required: REQUIRED },
]);

#[rustfmt::skip]
static ATTENTION_OUTPUT: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.attn_output.weight", hugging_face: "model.layers.{}.self_attn.o_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::O), Dim::Width)], cols: Dim::Queries, required: REQUIRED },
]);

#[rustfmt::skip]
static QKV_BIASES: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.attn_q.bias", hugging_face: "model.layers.{}.self_attn.q_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::Q), Dim::One)], cols: Dim::Queries, required: REQUIRED },
    TensorRule { gguf: "blk.{}.attn_k.bias", hugging_face: "model.layers.{}.self_attn.k_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::K), Dim::One)], cols: Dim::KeysValues, required: REQUIRED },
    TensorRule { gguf: "blk.{}.attn_v.bias", hugging_face: "model.layers.{}.self_attn.v_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::V), Dim::One)], cols: Dim::KeysValues, required: REQUIRED },
]);

#[rustfmt::skip]
static OPTIONAL_QKV_BIASES: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.attn_q.bias", hugging_face: "model.layers.{}.self_attn.q_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::Q), Dim::One)], cols: Dim::Queries, required: OPTIONAL },
    TensorRule { gguf: "blk.{}.attn_k.bias", hugging_face: "model.layers.{}.self_attn.k_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::K), Dim::One)], cols: Dim::KeysValues, required: OPTIONAL },
    TensorRule { gguf: "blk.{}.attn_v.bias", hugging_face: "model.layers.{}.self_attn.v_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::V), Dim::One)], cols: Dim::KeysValues, required: OPTIONAL },
]);

#[rustfmt::skip]
static OPTIONAL_OUTPUT_AND_FFN_BIASES: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.attn_output.bias", hugging_face: "model.layers.{}.self_attn.o_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::O), Dim::One)], cols: Dim::Width, required: OPTIONAL },
    TensorRule { gguf: "blk.{}.ffn_gate.bias", hugging_face: "model.layers.{}.mlp.gate_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::Gate), Dim::One)], cols: Dim::Ffn, required: OPTIONAL },
    TensorRule { gguf: "blk.{}.ffn_up.bias", hugging_face: "model.layers.{}.mlp.up_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::Up), Dim::One)], cols: Dim::Ffn, required: OPTIONAL },
    TensorRule { gguf: "blk.{}.ffn_down.bias", hugging_face: "model.layers.{}.mlp.down_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::Down), Dim::One)], cols: Dim::Width, required: OPTIONAL },
]);

#[rustfmt::skip]
static HEAD_NORMS: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.attn_q_norm.weight", hugging_face: "model.layers.{}.self_attn.q_norm.weight", holds: &[(|layer| Role::QueryNorm { layer }, Dim::One)], cols: Dim::Head, required: REQUIRED },
    TensorRule { gguf: "blk.{}.attn_k_norm.weight", hugging_face: "model.layers.{}.self_attn.k_norm.weight", holds: &[(|layer| Role::KeyNorm { layer }, Dim::One)], cols: Dim::Head, required: REQUIRED },
]);

#[rustfmt::skip]
static FFN_NORM: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.ffn_norm.weight", hugging_face: "model.layers.{}.post_attention_layernorm.weight", holds: &[(|layer| Role::FfnNorm { layer }, Dim::One)], cols: Dim::Width, required: REQUIRED },
]);

#[rustfmt::skip]
static SANDWICH_NORMS: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.post_attention_norm.weight", hugging_face: "model.layers.{}.post_attention_layernorm.weight", holds: &[(|layer| Role::PostAttentionNorm { layer }, Dim::One)], cols: Dim::Width, required: REQUIRED },
    TensorRule { gguf: "blk.{}.ffn_norm.weight", hugging_face: "model.layers.{}.pre_feedforward_layernorm.weight", holds: &[(|layer| Role::FfnNorm { layer }, Dim::One)], cols: Dim::Width, required: REQUIRED },
    TensorRule { gguf: "blk.{}.post_ffw_norm.weight", hugging_face: "model.layers.{}.post_feedforward_layernorm.weight", holds: &[(|layer| Role::PostFfnNorm { layer }, Dim::One)], cols: Dim::Width, required: REQUIRED },
]);

#[rustfmt::skip]
static SEPARATE_GATE_UP: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.ffn_gate.weight", hugging_face: "model.layers.{}.mlp.gate_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::Gate), Dim::Ffn)], cols: Dim::Width, required: REQUIRED },
    TensorRule { gguf: "blk.{}.ffn_up.weight", hugging_face: "model.layers.{}.mlp.up_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::Up), Dim::Ffn)], cols: Dim::Width, required: REQUIRED },
]);

#[rustfmt::skip]
static FUSED_GATE_UP: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.ffn_up.weight", hugging_face: "model.layers.{}.mlp.gate_up_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::Gate), Dim::Ffn), (|layer| dense(layer, ProjectionKind::Up), Dim::Ffn)], cols: Dim::Width, required: REQUIRED },
]);

#[rustfmt::skip]
static FFN_DOWN: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.ffn_down.weight", hugging_face: "model.layers.{}.mlp.down_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::Down), Dim::Width)], cols: Dim::Ffn, required: REQUIRED },
]);

#[rustfmt::skip]
static OUTPUT: Group = Group::Model(&[
    TensorRule { gguf: "output_norm.weight", hugging_face: "model.norm.weight", holds: &[(|_| Role::OutputNorm, Dim::One)], cols: Dim::Width, required: REQUIRED },
// Absent if tied to the embedding.
TensorRule { gguf: "output.weight", hugging_face: "lm_head.weight", holds: &[(|_| Role::Output, Dim::Vocabulary)], cols: Dim::Width, required: OPTIONAL },
]);

const fn dense(layer: usize, slot: ProjectionKind) -> Role {
    Role::Linear {
        layer,
        slot,
        part: Part::Weight,
    }
}

const fn bias(layer: usize, slot: ProjectionKind) -> Role {
    Role::Linear {
        layer,
        slot,
        part: Part::Bias,
    }
}
