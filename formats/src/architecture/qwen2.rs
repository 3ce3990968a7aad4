//! Qwen 2 and 2.5: biases on queries, keys and values.

use super::Architecture;
use super::model_type::ModelType;
use super::shared::{
    ATTENTION_NORM, ATTENTION_OUTPUT, EMBEDDING, FFN_DOWN, FFN_NORM, OUTPUT, PLAIN, QKV_BIASES,
    QWEN_TYPE, SEPARATE_GATE_UP, SEPARATE_QKV,
};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "qwen2",
    model_types: &[ModelType {
        name: "qwen2",
        class: "Qwen2ForCausalLM",
        ..QWEN_TYPE
    }],
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
