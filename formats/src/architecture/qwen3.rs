//! Qwen 3: norms of the query and key heads.

use super::Architecture;
use super::model_type::ModelType;
use super::shared::{
    ATTENTION, ATTENTION_NORM, ATTENTION_OUTPUT, EMBEDDING, FFN, FFN_DOWN, FFN_NORM, HEAD_NORMS,
    OPTIONAL_OUTPUT_AND_FFN_BIASES, OPTIONAL_QKV_BIASES, OUTPUT, PLAIN, QWEN_TYPE,
    SEPARATE_GATE_UP, SEPARATE_QKV,
};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "qwen3",
    model_types: &[ModelType {
        name: "qwen3",
        class: "Qwen3ForCausalLM",
        head_dim: Some(128),
        biases: &[(ATTENTION, Some("attention_bias")), (FFN, None)],
        ..QWEN_TYPE
    }],
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
