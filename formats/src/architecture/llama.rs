//! Llama 1 to 3, Mistral, and other models converted under this name.

use super::Architecture;
use super::model_type::{ModelType, Window};
use super::rules::Traits;
use super::shared::{
    ATTENTION, FFN, FFN_NORM, LLAMA_TYPE, OPTIONAL_OUTPUT_AND_FFN_BIASES, OPTIONAL_QKV_BIASES,
    PLAIN, ROPE_FACTORS, SEPARATE_ATTENTION, SEPARATE_FFN,
};
use crate::model::RopePairs;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "llama",
    model_types: &[
        ModelType {
            name: "llama",
            class: "LlamaForCausalLM",
            biases: &[(ATTENTION, Some("attention_bias")), (FFN, Some("mlp_bias"))],
            ..LLAMA_TYPE
        },
        ModelType {
            name: "mistral",
            class: "MistralForCausalLM",
            intermediate_size: 14336,
            num_key_value_heads: Some(8),
            max_position_embeddings: 131_072,
            window: Window::Every {
                default: Some(4096),
            },
            biases: &[(ATTENTION, None), (FFN, None)],
            ..LLAMA_TYPE
        },
    ],
    groups: &[
        &ROPE_FACTORS,
        &SEPARATE_ATTENTION,
        &OPTIONAL_QKV_BIASES,
        &FFN_NORM,
        &SEPARATE_FFN,
        &OPTIONAL_OUTPUT_AND_FFN_BIASES,
    ],
    traits: Traits {
        gguf_rope_pairs: RopePairs::Adjacent,
        ..PLAIN
    },
};
