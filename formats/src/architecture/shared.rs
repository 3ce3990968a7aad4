//! Tensors, traits and defaults that several architectures share.

use super::model_type::{ModelType, RopeKinds, Window};
use super::rules::{Dim, EmbeddingScale, Group, Sliding, TensorRule, Traits};
use crate::model::{Activation, Part, ProjectionKind, Role, RopePairs};

pub const REQUIRED: bool = true;
pub const OPTIONAL: bool = false;

/// Projections of attention.
pub const ATTENTION: &[ProjectionKind] = &[
    ProjectionKind::Q,
    ProjectionKind::K,
    ProjectionKind::V,
    ProjectionKind::O,
];
/// Projections of a dense feed-forward network.
pub const FFN: &[ProjectionKind] = &[
    ProjectionKind::Gate,
    ProjectionKind::Up,
    ProjectionKind::Down,
];

/// Defaults of Llama, and of other types where they agree.
pub const LLAMA_TYPE: ModelType = ModelType {
    name: "",
    class: "",
    vocab_size: 32_000,
    hidden_size: 4096,
    intermediate_size: 11_008,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: None,
    head_dim: None,
    max_position_embeddings: 2048,
    rms_norm_eps: 1e-6,
    rope_theta: None,
    tie_word_embeddings: false,
    activation: "hidden_act",
    window: Window::Never,
    rope: RopeKinds::Any,
    rotates_partly: false,
    original_max_position_embeddings: None,
    query_pre_attn_scalar: None,
    attn_logit_softcapping: None,
    final_logit_softcapping: None,
    biases: &[],
    experts: None,
    false_keys: &[],
};

/// Defaults of Qwen 2 and 3.
pub const QWEN_TYPE: ModelType = ModelType {
    vocab_size: 151_936,
    intermediate_size: 22_016,
    num_key_value_heads: Some(32),
    max_position_embeddings: 32_768,
    window: Window::Upper {
        default: 4096,
        max_window_layers: 28,
    },
    ..LLAMA_TYPE
};

/// Defaults of Gemma 2 and 3.
pub const GEMMA_TYPE: ModelType = ModelType {
    hidden_size: 2304,
    intermediate_size: 9216,
    num_hidden_layers: 26,
    num_attention_heads: 8,
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    tie_word_embeddings: true,
    activation: "hidden_activation",
    window: Window::Pattern {
        default: 4096,
        keys: &[],
    },
    query_pre_attn_scalar: Some(256.0),
    attn_logit_softcapping: Some(None),
    final_logit_softcapping: Some(None),
    false_keys: &["attention_bias", "use_bidirectional_attention"],
    ..LLAMA_TYPE
};

/// Traits of Llama with rotary pairs in halves.
pub const PLAIN: Traits = Traits {
    gguf_rope_pairs: RopePairs::Halves,
    activation: Activation::Silu,
    embedding_scale: EmbeddingScale::One,
    norms_less_one: false,
    sliding: Sliding::Every,
    sliding_rope_theta: None,
    rope_theta: 10_000.0,
    attention_softcap: None,
    logit_softcap: None,
    caps_logits: false,
    normalises_experts: false,
    layers_scaled_by_width: None,
};

// One rule per line: names in GGUF and Hugging Face folders, roles with their rows, row length, and
// whether the tensor is required.
#[rustfmt::skip]
pub static EMBEDDING: Group = Group::Model(&[
    TensorRule { gguf: "token_embd.weight", hugging_face: "model.embed_tokens.weight", holds: &[(|_| Role::TokenEmbedding, Dim::Vocabulary)], cols: Dim::Width, required: REQUIRED },
]);

#[rustfmt::skip]
pub static ROPE_FACTORS: Group = Group::Model(&[
    TensorRule { gguf: "rope_freqs.weight", hugging_face: "", holds: &[(|_| Role::RopeFactors, Dim::One)], cols: Dim::RotaryPairs, required: OPTIONAL },
]);

#[rustfmt::skip]
pub static ATTENTION_NORM: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.attn_norm.weight", hugging_face: "model.layers.{}.input_layernorm.weight", holds: &[(|layer| Role::AttentionNorm { layer }, Dim::One)], cols: Dim::Width, required: REQUIRED },
]);

#[rustfmt::skip]
pub const ATTENTION_OUTPUT: TensorRule = TensorRule { gguf: "blk.{}.attn_output.weight", hugging_face: "model.layers.{}.self_attn.o_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::O), Dim::Width)], cols: Dim::Queries, required: REQUIRED };

#[rustfmt::skip]
pub const FFN_DOWN: TensorRule = TensorRule { gguf: "blk.{}.ffn_down.weight", hugging_face: "model.layers.{}.mlp.down_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::Down), Dim::Width)], cols: Dim::Ffn, required: REQUIRED };

#[rustfmt::skip]
pub static SEPARATE_ATTENTION: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.attn_q.weight", hugging_face: "model.layers.{}.self_attn.q_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::Q), Dim::Queries)], cols: Dim::Width, required: REQUIRED },
    TensorRule { gguf: "blk.{}.attn_k.weight", hugging_face: "model.layers.{}.self_attn.k_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::K), Dim::KeysValues)], cols: Dim::Width, required: REQUIRED },
    TensorRule { gguf: "blk.{}.attn_v.weight", hugging_face: "model.layers.{}.self_attn.v_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::V), Dim::KeysValues)], cols: Dim::Width, required: REQUIRED },
    ATTENTION_OUTPUT,
]);

#[rustfmt::skip]
pub static OPTIONAL_QKV_BIASES: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.attn_q.bias", hugging_face: "model.layers.{}.self_attn.q_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::Q), Dim::One)], cols: Dim::Queries, required: OPTIONAL },
    TensorRule { gguf: "blk.{}.attn_k.bias", hugging_face: "model.layers.{}.self_attn.k_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::K), Dim::One)], cols: Dim::KeysValues, required: OPTIONAL },
    TensorRule { gguf: "blk.{}.attn_v.bias", hugging_face: "model.layers.{}.self_attn.v_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::V), Dim::One)], cols: Dim::KeysValues, required: OPTIONAL },
]);

#[rustfmt::skip]
pub static OPTIONAL_OUTPUT_AND_FFN_BIASES: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.attn_output.bias", hugging_face: "model.layers.{}.self_attn.o_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::O), Dim::One)], cols: Dim::Width, required: OPTIONAL },
    TensorRule { gguf: "blk.{}.ffn_gate.bias", hugging_face: "model.layers.{}.mlp.gate_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::Gate), Dim::One)], cols: Dim::Ffn, required: OPTIONAL },
    TensorRule { gguf: "blk.{}.ffn_up.bias", hugging_face: "model.layers.{}.mlp.up_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::Up), Dim::One)], cols: Dim::Ffn, required: OPTIONAL },
    TensorRule { gguf: "blk.{}.ffn_down.bias", hugging_face: "model.layers.{}.mlp.down_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::Down), Dim::One)], cols: Dim::Width, required: OPTIONAL },
]);

#[rustfmt::skip]
pub static HEAD_NORMS: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.attn_q_norm.weight", hugging_face: "model.layers.{}.self_attn.q_norm.weight", holds: &[(|layer| Role::QueryNorm { layer }, Dim::One)], cols: Dim::Head, required: REQUIRED },
    TensorRule { gguf: "blk.{}.attn_k_norm.weight", hugging_face: "model.layers.{}.self_attn.k_norm.weight", holds: &[(|layer| Role::KeyNorm { layer }, Dim::One)], cols: Dim::Head, required: REQUIRED },
]);

#[rustfmt::skip]
pub static FFN_NORM: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.ffn_norm.weight", hugging_face: "model.layers.{}.post_attention_layernorm.weight", holds: &[(|layer| Role::FfnNorm { layer }, Dim::One)], cols: Dim::Width, required: REQUIRED },
]);

#[rustfmt::skip]
pub static SANDWICH_NORMS: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.post_attention_norm.weight", hugging_face: "model.layers.{}.post_attention_layernorm.weight", holds: &[(|layer| Role::PostAttentionNorm { layer }, Dim::One)], cols: Dim::Width, required: REQUIRED },
    TensorRule { gguf: "blk.{}.ffn_norm.weight", hugging_face: "model.layers.{}.pre_feedforward_layernorm.weight", holds: &[(|layer| Role::FfnNorm { layer }, Dim::One)], cols: Dim::Width, required: REQUIRED },
    TensorRule { gguf: "blk.{}.post_ffw_norm.weight", hugging_face: "model.layers.{}.post_feedforward_layernorm.weight", holds: &[(|layer| Role::PostFfnNorm { layer }, Dim::One)], cols: Dim::Width, required: REQUIRED },
]);

#[rustfmt::skip]
pub static SEPARATE_FFN: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.ffn_gate.weight", hugging_face: "model.layers.{}.mlp.gate_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::Gate), Dim::Ffn)], cols: Dim::Width, required: REQUIRED },
    TensorRule { gguf: "blk.{}.ffn_up.weight", hugging_face: "model.layers.{}.mlp.up_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::Up), Dim::Ffn)], cols: Dim::Width, required: REQUIRED },
    FFN_DOWN,
]);

#[rustfmt::skip]
pub static OUTPUT: Group = Group::Model(&[
    TensorRule { gguf: "output_norm.weight", hugging_face: "model.norm.weight", holds: &[(|_| Role::OutputNorm, Dim::One)], cols: Dim::Width, required: REQUIRED },
    // Absent if tied to the embedding.
    TensorRule { gguf: "output.weight", hugging_face: "lm_head.weight", holds: &[(|_| Role::Output, Dim::Vocabulary)], cols: Dim::Width, required: OPTIONAL },
]);

pub const fn dense(layer: usize, projection: ProjectionKind) -> Role {
    Role::Linear {
        layer,
        projection,
        part: Part::Weight,
    }
}

pub const fn bias(layer: usize, projection: ProjectionKind) -> Role {
    Role::Linear {
        layer,
        projection,
        part: Part::Bias,
    }
}
