//! Phi 3 and 4: fused q/k/v and gate/up tensors, LongRoPE.

use super::Architecture;
use super::model_type::{ModelType, RopeKinds, Window};
use super::rules::{Dim, Group, TensorRule};
use super::shared::{
    ATTENTION_OUTPUT, FFN_DOWN, FFN_NORM, LLAMA_TYPE, OPTIONAL, PLAIN, REQUIRED, dense,
};
use crate::model::{ProjectionKind, Role};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "phi3",
    model_types: &[ModelType {
        name: "phi3",
        class: "Phi3ForCausalLM",
        vocab_size: 32_064,
        hidden_size: 3072,
        intermediate_size: 8192,
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-5,
        window: Window::Every { default: None },
        rope: RopeKinds::PlainOrLong,
        rotates_partly: true,
        original_max_position_embeddings: Some(4096),
        ..LLAMA_TYPE
    }],
    groups: &[&LONG_ROPE_FACTORS, &FUSED_ATTENTION, &FFN_NORM, &FUSED_FFN],
    traits: PLAIN,
};

#[rustfmt::skip]
static FUSED_ATTENTION: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.attn_qkv.weight", hugging_face: "model.layers.{}.self_attn.qkv_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::Q), Dim::Queries), (|layer| dense(layer, ProjectionKind::K), Dim::KeysValues), (|layer| dense(layer, ProjectionKind::V), Dim::KeysValues)], cols: Dim::Width, required: REQUIRED },
    ATTENTION_OUTPUT,
]);

#[rustfmt::skip]
static FUSED_FFN: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.ffn_up.weight", hugging_face: "model.layers.{}.mlp.gate_up_proj.weight", holds: &[(|layer| dense(layer, ProjectionKind::Gate), Dim::Ffn), (|layer| dense(layer, ProjectionKind::Up), Dim::Ffn)], cols: Dim::Width, required: REQUIRED },
    FFN_DOWN,
]);

#[rustfmt::skip]
static LONG_ROPE_FACTORS: Group = Group::Model(&[
    TensorRule { gguf: "rope_factors_short.weight", hugging_face: "", holds: &[(|_| Role::RopeFactors, Dim::One)], cols: Dim::RotaryPairs, required: OPTIONAL },
    TensorRule { gguf: "rope_factors_long.weight", hugging_face: "", holds: &[(|_| Role::LongRopeFactors, Dim::One)], cols: Dim::RotaryPairs, required: OPTIONAL },
]);
