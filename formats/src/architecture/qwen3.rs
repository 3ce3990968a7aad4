//! Qwen 3: norms of the query and key heads.

use super::Architecture;
use super::model_type::ModelType;
use super::shared::{
    ATTENTION, FFN, FFN_NORM, HEAD_NORMS, OPTIONAL_OUTPUT_AND_FFN_BIASES, OPTIONAL_QKV_BIASES,
    PLAIN, QWEN_TYPE, SEPARATE_ATTENTION, SEPARATE_FFN,
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
        &SEPARATE_ATTENTION,
        &OPTIONAL_QKV_BIASES,
        &HEAD_NORMS,
        &FFN_NORM,
        &SEPARATE_FFN,
        &OPTIONAL_OUTPUT_AND_FFN_BIASES,
    ],
    traits: PLAIN,
};
