//! Mixtral: Mistral with a mixture of experts, in GGUF a Llama with stacks of experts.

use super::Architecture;
use super::model_type::{ExpertDefaults, ModelType, Window};
use super::rules::{Dim, ExpertRule, Group, TensorRule, Traits};
use super::shared::{
    ATTENTION, FFN_NORM, LLAMA_TYPE, PLAIN, REQUIRED, ROPE_FACTORS, SEPARATE_ATTENTION, dense,
};
use crate::model::{ProjectionKind, RopePairs};

pub(super) static ARCHITECTURE: Architecture = Architecture {
    name: "llama",
    model_types: &[ModelType {
        name: "mixtral",
        class: "MixtralForCausalLM",
        intermediate_size: 14336,
        num_key_value_heads: Some(8),
        max_position_embeddings: 131_072,
        rms_norm_eps: 1e-5,
        rope_theta: Some(1e6),
        window: Window::Every { default: None },
        biases: &[(ATTENTION, None)],
        experts: Some(ExpertDefaults {
            count_keys: &["num_local_experts", "num_experts"],
            count: 8,
            num_experts_per_tok: 2,
            moe_intermediate_size: None,
            norm_topk_prob: None,
        }),
        ..LLAMA_TYPE
    }],
    groups: &[
        &ROPE_FACTORS,
        &SEPARATE_ATTENTION,
        &FFN_NORM,
        &ROUTER,
        &EXPERTS,
    ],
    traits: Traits {
        gguf_rope_pairs: RopePairs::Adjacent,
        normalises_experts: true,
        ..PLAIN
    },
};

#[rustfmt::skip]
static ROUTER: Group = Group::Block(&[
    TensorRule { gguf: "blk.{}.ffn_gate_inp.weight", hugging_face: "model.layers.{}.block_sparse_moe.gate.weight", holds: &[(|layer| dense(layer, ProjectionKind::Router), Dim::Experts)], cols: Dim::Width, required: REQUIRED },
]);

#[rustfmt::skip]
static EXPERTS: Group = Group::Experts(&[
    ExpertRule { gguf: "blk.{}.ffn_gate_exps.weight", hugging_face: "model.layers.{}.block_sparse_moe.experts.{e}.w1.weight", projection: ProjectionKind::ExpertGate, rows: Dim::ExpertFfn, cols: Dim::Width },
    ExpertRule { gguf: "blk.{}.ffn_up_exps.weight", hugging_face: "model.layers.{}.block_sparse_moe.experts.{e}.w3.weight", projection: ProjectionKind::ExpertUp, rows: Dim::ExpertFfn, cols: Dim::Width },
    ExpertRule { gguf: "blk.{}.ffn_down_exps.weight", hugging_face: "model.layers.{}.block_sparse_moe.experts.{e}.w2.weight", projection: ProjectionKind::ExpertDown, rows: Dim::Width, cols: Dim::ExpertFfn },
]);
