//! Model types of Hugging Face and the defaults of their configurations.

use super::config::Object;
use crate::architecture::BindError;
use crate::architecture::{Architecture, SUPPORTED};
use crate::escape::escape_truncated;
use crate::model::ProjectionKind;

/// A value of `model_type` with the defaults of transformers 5 for absent keys.
#[derive(Debug)]
pub(super) struct ModelType {
    pub name: &'static str,
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
    /// Keys of unsupported features, which must be false.
    pub false_keys: &'static [&'static str],
}

/// Source of the sliding window if `layer_types` is absent.
#[derive(Debug)]
pub(super) enum Window {
    /// No window.
    Never,
    /// All layers, if there is a window.
    Every { default: Option<usize> },
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
pub(super) enum RopeKinds {
    /// One for all layers, any kind.
    Any,
    /// One for all layers, plain or LongRoPE, including older names.
    PlainOrLong,
    /// A plain one for layers with a window, another for the rest.
    PerLayer,
}

const ATTENTION: &[ProjectionKind] = &[
    ProjectionKind::Q,
    ProjectionKind::K,
    ProjectionKind::V,
    ProjectionKind::O,
];
const FFN: &[ProjectionKind] = &[
    ProjectionKind::Gate,
    ProjectionKind::Up,
    ProjectionKind::Down,
];

static MODEL_TYPES: &[ModelType] = &[
    ModelType {
        name: "llama",
        biases: &[(ATTENTION, Some("attention_bias")), (FFN, Some("mlp_bias"))],
        ..LLAMA
    },
    ModelType {
        name: "mistral",
        intermediate_size: 14336,
        num_key_value_heads: Some(8),
        max_position_embeddings: 131_072,
        window: Window::Every {
            default: Some(4096),
        },
        biases: &[(ATTENTION, None), (FFN, None)],
        ..LLAMA
    },
    ModelType {
        name: "qwen2",
        ..QWEN
    },
    ModelType {
        name: "qwen3",
        head_dim: Some(128),
        biases: &[(ATTENTION, Some("attention_bias")), (FFN, None)],
        ..QWEN
    },
    ModelType {
        name: "gemma2",
        vocab_size: 256_000,
        max_position_embeddings: 8192,
        attn_logit_softcapping: Some(Some(50.0)),
        final_logit_softcapping: Some(Some(30.0)),
        ..GEMMA
    },
    ModelType {
        name: "gemma3_text",
        vocab_size: 262_208,
        max_position_embeddings: 131_072,
        window: Window::Pattern {
            default: 4096,
            keys: &["sliding_window_pattern", "_sliding_window_pattern"],
        },
        rope: RopeKinds::PerLayer,
        ..GEMMA
    },
    ModelType {
        name: "phi3",
        vocab_size: 32_064,
        hidden_size: 3072,
        intermediate_size: 8192,
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-5,
        window: Window::Every { default: None },
        rope: RopeKinds::PlainOrLong,
        rotates_partly: true,
        original_max_position_embeddings: Some(4096),
        ..LLAMA
    },
];

const LLAMA: ModelType = ModelType {
    name: "",
    vocab_size: 32_000,
    hidden_size: 4096,
    intermediate_size: 11_008,
    num_hidden_layers: 32,
    num_attention_heads: 32,
    num_key_value_heads: None,
    head_dim: None,
    max_position_embeddings: 2048,
    rms_norm_eps: 1e-6,
    tie_word_embeddings: false,
    activation: "hidden_act",
    window: Window::Never,
    rope: RopeKinds::Any,
    rotates_partly: false,
    original_max_position_embeddings: None,
    query_pre_attn_scalar: None,
    attn_logit_softcapping: None,
    final_logit_softcapping: None,
    biases: &[],
    false_keys: &[],
};

const QWEN: ModelType = ModelType {
    vocab_size: 151_936,
    intermediate_size: 22_016,
    num_key_value_heads: Some(32),
    max_position_embeddings: 32_768,
    window: Window::Upper {
        default: 4096,
        max_window_layers: 28,
    },
    ..LLAMA
};

const GEMMA: ModelType = ModelType {
    hidden_size: 2304,
    intermediate_size: 9216,
    num_hidden_layers: 26,
    num_attention_heads: 8,
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    tie_word_embeddings: true,
    activation: "hidden_activation",
    window: Window::Pattern {
        default: 4096,
        keys: &[],
    },
    query_pre_attn_scalar: Some(256.0),
    attn_logit_softcapping: Some(None),
    final_logit_softcapping: Some(None),
    false_keys: &["attention_bias", "use_bidirectional_attention"],
    ..LLAMA
};

/// Keys that identify a mixture of experts.
const EXPERT_KEYS: [&str; 4] = [
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
];

pub(super) fn named(name: &str) -> Option<&'static ModelType> {
    MODEL_TYPES.iter().find(|model| model.name == name)
}

pub(super) fn of(
    config: &Object<'_>,
) -> Result<(&'static ModelType, &'static Architecture), BindError> {
    let found: &str = config.required("model_type")?;
    let model = named(found);
    let architecture = SUPPORTED.iter().find(|a| a.model_types.contains(&found));
    if let (Some(model), Some(architecture)) = (model, architecture) {
        return Ok((model, architecture));
    }
    let has_experts = EXPERT_KEYS.iter().any(|key| config.has(key));
    let name = escape_truncated(found);
    Err(if config.has("vision_config") {
        BindError::Vision { found: name }
    } else if has_experts || found == "mixtral" || found.contains("moe") {
        BindError::ExpertModel { found: name }
    } else {
        BindError::ModelType { found: name }
    })
}

pub(in crate::architecture) fn names() -> String {
    let names: Vec<&str> = MODEL_TYPES.iter().map(|model| model.name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_an_architecture() {
        let mut named: Vec<&str> = SUPPORTED
            .iter()
            .flat_map(|a| a.model_types)
            .copied()
            .collect();
        let mut described: Vec<&str> = MODEL_TYPES.iter().map(|model| model.name).collect();
        named.sort_unstable();
        described.sort_unstable();
        assert_eq!(named, described);
    }
}
