//! Model types of Hugging Face and the defaults of their configurations.

use crate::model::ProjectionKind;

/// A value of `model_type` with the defaults of transformers 5 for absent keys.
#[derive(Debug)]
pub(crate) struct ModelType {
    /// The value.
    pub name: &'static str,
    /// Class of transformers.
    pub class: &'static str,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    /// `None`: the number of query heads.
    pub num_key_value_heads: Option<usize>,
    /// `None`: the width divided by the heads.
    pub head_dim: Option<usize>,
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f32,
    /// `None`: that of the architecture.
    pub rope_theta: Option<f32>,
    pub tie_word_embeddings: bool,
    /// Key of the activation.
    pub activation: &'static str,
    pub window: Window,
    pub rope: RopeKinds,
    /// Whether a partial rotary factor may be stated.
    pub rotates_partly: bool,
    /// `None`: the context.
    pub original_max_position_embeddings: Option<usize>,
    /// Square of the divisor of attention scores; `None`: always the head size.
    pub query_pre_attn_scalar: Option<f64>,
    /// `None`: the key is not read.
    pub attn_logit_softcapping: Option<Option<f32>>,
    /// `None`: the key is not read.
    pub final_logit_softcapping: Option<Option<f32>>,
    /// Projections with a bias, if the key is true; never without a key.
    pub biases: &'static [(&'static [ProjectionKind], Option<&'static str>)],
    /// `None`: no mixture of experts.
    pub experts: Option<ExpertDefaults>,
    /// Keys of unsupported features, which must be false.
    pub false_keys: &'static [&'static str],
}

/// Keys and defaults of a mixture of experts.
#[derive(Debug)]
pub(crate) struct ExpertDefaults {
    /// Keys of the number of experts; the first that is present is read.
    pub count_keys: &'static [&'static str],
    pub count: usize,
    pub num_experts_per_tok: usize,
    /// `None`: `intermediate_size`.
    pub moe_intermediate_size: Option<usize>,
    /// `None`: always, without a key.
    pub norm_topk_prob: Option<bool>,
}

/// Source of the sliding window if `layer_types` is absent.
#[derive(Debug)]
pub(crate) enum Window {
    /// No window.
    Never,
    /// All layers, if there is a window.
    Every { default: Option<usize> },
    /// All layers, if `use_sliding_window`.
    EveryIfUsed { default: usize },
    /// Layers from `max_window_layers`, if `use_sliding_window`.
    Upper {
        default: usize,
        max_window_layers: usize,
    },
    /// The architecture's pattern, with an optional period under one of these keys.
    Pattern {
        default: usize,
        keys: &'static [&'static str],
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RopeKinds {
    /// One for all layers, any kind.
    Any,
    /// One for all layers, plain or LongRoPE, including older names.
    PlainOrLong,
    /// A plain one for layers with a window, another for the rest.
    PerLayer,
}
