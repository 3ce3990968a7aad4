//! Phi 3 and 4: fused q/k/v and gate/up tensors, LongRoPE.

use super::Architecture;
use super::model_type::{ModelType, RopeKinds, Window};
use super::shared::{
    ATTENTION_NORM, ATTENTION_OUTPUT, EMBEDDING, FFN_DOWN, FFN_NORM, FUSED_GATE_UP, FUSED_QKV,
    LLAMA_TYPE, LONG_ROPE_FACTORS, OUTPUT, PLAIN,
};

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
