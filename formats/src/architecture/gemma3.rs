//! Gemma 3 (text): head norms, a window in five of six layers.

use super::Architecture;
use super::model_type::{ModelType, RopeKinds, Window};
use super::rules::{EmbeddingScale, Sliding, Traits};
use super::shared::{
    ATTENTION_NORM, ATTENTION_OUTPUT, EMBEDDING, FFN_DOWN, GEMMA_TYPE, HEAD_NORMS, OUTPUT, PLAIN,
    SANDWICH_NORMS, SEPARATE_GATE_UP, SEPARATE_QKV,
};
use crate::model::Activation;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "gemma3",
    model_types: &[ModelType {
        name: "gemma3_text",
        class: "Gemma3ForCausalLM",
        vocab_size: 262_208,
        max_position_embeddings: 131_072,
        window: Window::Pattern {
            default: 4096,
            keys: &["sliding_window_pattern", "_sliding_window_pattern"],
        },
        rope: RopeKinds::PerLayer,
        ..GEMMA_TYPE
    }],
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
        caps_logits: true,
        sliding: Sliding::AllBut {
            every: 6,
            positions: None,
        },
        sliding_rope_theta: Some(10_000.0),
        rope_theta: 1_000_000.0,
        // The 27B model.
        layers_scaled_by_width: Some(62),
        ..PLAIN
    },
};
