//! Gemma 3 (text): head norms, a window in five of six layers.

use super::Architecture;
use super::model_type::{ModelType, RopeKinds, Window};
use super::rules::{EmbeddingScale, Sliding, Traits};
use super::shared::{
    GEMMA_TYPE, HEAD_NORMS, PLAIN, SANDWICH_NORMS, SEPARATE_ATTENTION, SEPARATE_FFN,
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
        &SEPARATE_ATTENTION,
        &HEAD_NORMS,
        &SANDWICH_NORMS,
        &SEPARATE_FFN,
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
