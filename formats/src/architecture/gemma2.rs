//! Gemma 2: norms before and after, soft caps, a window in every second layer.

use super::Architecture;
use super::model_type::ModelType;
use super::rules::{EmbeddingScale, Sliding, Traits};
use super::shared::{GEMMA_TYPE, PLAIN, SANDWICH_NORMS, SEPARATE_ATTENTION, SEPARATE_FFN};
use crate::model::Activation;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "gemma2",
    model_types: &[ModelType {
        name: "gemma2",
        class: "Gemma2ForCausalLM",
        vocab_size: 256_000,
        max_position_embeddings: 8192,
        attn_logit_softcapping: Some(Some(50.0)),
        final_logit_softcapping: Some(Some(30.0)),
        ..GEMMA_TYPE
    }],
    groups: &[&SEPARATE_ATTENTION, &SANDWICH_NORMS, &SEPARATE_FFN],
    traits: Traits {
        activation: Activation::GeluTanh,
        embedding_scale: EmbeddingScale::RootOfWidth,
        norms_less_one: true,
        caps_logits: true,
        sliding: Sliding::AllBut {
            every: 2,
            positions: Some(4096),
        },
        attention_softcap: Some(50.0),
        logit_softcap: Some(30.0),
        // The 27B model.
        layers_scaled_by_width: Some(46),
        ..PLAIN
    },
};
