//! Qwen 3 with a mixture of experts (30B-A3B, 235B-A22B, Coder).

use super::Architecture;
use super::model_type::{ExpertDefaults, ModelType, Window};
use super::rules::{Dim, ExpertRule, Group, TensorRule, Traits};
use super::shared::{
    FFN_NORM, HEAD_NORMS, OPTIONAL_QKV_BIASES, PLAIN, QWEN_TYPE, REQUIRED, SEPARATE_ATTENTION,
    dense,
};
use crate::model::ProjectionKind;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "qwen3moe",
    model_types: &[ModelType {
        name: "qwen3_moe",
        class: "Qwen3MoeForCausalLM",
        hidden_size: 2048,
        intermediate_size: 6144,
        num_hidden_layers: 24,
        num_key_value_heads: Some(4),
        window: Window::EveryIfUsed { default: 4096 },
        biases: &[(
            &[ProjectionKind::Q, ProjectionKind::K, ProjectionKind::V],
            Some("attention_bias"),
        )],
        experts: Some(ExpertDefaults {
            count_keys: &["num_experts", "num_local_experts"],
            count: 128,
            num_experts_per_tok: 8,
            moe_intermediate_size: Some(768),
            norm_topk_prob: Some(false),
        }),
        ..QWEN_TYPE
    }],
    groups: &[
        &SEPARATE_ATTENTION,
        &OPTIONAL_QKV_BIASES,
        &HEAD_NORMS,
        &FFN_NORM,
        &ROUTER,
        &SEPARATE_EXPERTS,
    ],
    traits: Traits {
        normalises_experts: true,
        ..PLAIN
    },
};

#[rustfmt::skip]
static ROUTER: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.ffn_gate_inp.weight", hugging_face: "model.layers.{}.mlp.gate.weight", holds: &[(|layer| dense(layer, ProjectionKind::Router), Dim::Experts)], cols: Dim::Width, required: REQUIRED },
]);

#[rustfmt::skip]
static SEPARATE_EXPERTS: Group = Group::Experts(&[
    ExpertRule { gguf: "blk.{}.ffn_gate_exps.weight", hugging_face: "model.layers.{}.mlp.experts.{e}.gate_proj.weight", projection: ProjectionKind::ExpertGate, rows: Dim::ExpertFfn, cols: Dim::Width },
    ExpertRule { gguf: "blk.{}.ffn_up_exps.weight", hugging_face: "model.layers.{}.mlp.experts.{e}.up_proj.weight", projection: ProjectionKind::ExpertUp, rows: Dim::ExpertFfn, cols: Dim::Width },
    ExpertRule { gguf: "blk.{}.ffn_down_exps.weight", hugging_face: "model.layers.{}.mlp.experts.{e}.down_proj.weight", projection: ProjectionKind::ExpertDown, rows: Dim::Width, cols: Dim::ExpertFfn },
]);
