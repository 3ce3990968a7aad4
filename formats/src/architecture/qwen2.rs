//! Qwen 2 and 2.5: biases on queries, keys and values.

use super::Architecture;
use super::model_type::ModelType;
use super::rules::{Dim, Group, TensorRule};
use super::shared::{FFN_NORM, PLAIN, QWEN_TYPE, REQUIRED, SEPARATE_ATTENTION, SEPARATE_FFN, bias};
use crate::model::ProjectionKind;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "qwen2",
    model_types: &[ModelType {
        name: "qwen2",
        class: "Qwen2ForCausalLM",
        ..QWEN_TYPE
    }],
    groups: &[&SEPARATE_ATTENTION, &QKV_BIASES, &FFN_NORM, &SEPARATE_FFN],
    traits: PLAIN,
};

#[rustfmt::skip]
static QKV_BIASES: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.attn_q.bias", hugging_face: "model.layers.{}.self_attn.q_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::Q), Dim::One)], cols: Dim::Queries, required: REQUIRED },
    TensorRule { gguf: "blk.{}.attn_k.bias", hugging_face: "model.layers.{}.self_attn.k_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::K), Dim::One)], cols: Dim::KeysValues, required: REQUIRED },
    TensorRule { gguf: "blk.{}.attn_v.bias", hugging_face: "model.layers.{}.self_attn.v_proj.bias", holds: &[(|layer| bias(layer, ProjectionKind::V), Dim::One)], cols: Dim::KeysValues, required: REQUIRED },
]);
