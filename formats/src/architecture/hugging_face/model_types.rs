//! The types of models, by what their configurations leave unsaid.

use super::config::{ConfigError, Object};
use crate::architecture::{Architecture, SUPPORTED};
use crate::escape::escape_truncated;
use crate::model::ProjectionKind;

/// A value of `model_type`, and the values that transformers 5 gives to absent keys.
#[derive(Debug)]
pub(super) struct ModelType {
    pub name: &'static str,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    /// `None`: as many as query heads.
    pub num_key_value_heads: Option<usize>,
    /// `None`: the width divided by the heads.
    pub head_dim: Option<usize>,
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f32,
    pub tie_word_embeddings: bool,
    /// The key of the activation.
    pub activation: &'static str,
    pub window: Window,
    pub rope: RopeKinds,
    /// The part of a head that is rotated may be stated.
    pub rotates_partly: bool,
    /// `None`: the context.
    pub original_max_position_embeddings: Option<usize>,
    /// The divisor's square in the scale of attention; `None`: the size of a head, always.
    pub query_pre_attn_scalar: Option<f64>,
    /// `None`: the key is not read.
    pub attn_logit_softcapping: Option<Option<f32>>,
    /// `None`: the key is not read.
    pub final_logit_softcapping: Option<Option<f32>>,
    /// Biases that a model has where a key says so, or never.
    pub biases: &'static [(&'static [ProjectionKind], Option<&'static str>)],
    /// What is not executed where it is true.
    pub false_keys: &'static [&'static str],
}

/// How layers with a sliding window are stated, where `layer_types` does not.
#[derive(Debug)]
pub(super) enum Window {
    /// There are none.
    Never,
    /// All layers, if there is a window at all.
    Every { default: Option<usize> },
    /// The layers from `max_window_layers`, if `use_sliding_window`.
    Upper {
        default: usize,
        max_window_layers: usize,
    },
    /// As the architecture says, with another period under one of these keys.
    Pattern {
        default: usize,
        keys: &'static [&'static str],
    },
}

/// Which kinds of rotary embeddings there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RopeKinds {
    /// One for all layers, any that is supported.
    Any,
    /// One for all layers, plain or LongRoPE, by its older names too.
    PlainOrLong,
    /// One for the layers with a window, which is plain, and one for the others.
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

/// Keys that tell a mixture of experts, whatever it is called.
const EXPERT_KEYS: [&str; 4] = [
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
];

/// The type of a name.
pub(super) fn named(name: &str) -> Option<&'static ModelType> {
    MODEL_TYPES.iter().find(|model| model.name == name)
}

/// The type of a model and its architecture.
pub(super) fn of(
    config: &Object<'_>,
) -> Result<(&'static ModelType, &'static Architecture), ConfigError> {
    let found: &str = config.required("model_type")?;
    let model = named(found);
    let architecture = SUPPORTED.iter().find(|a| a.model_types.contains(&found));
    if let (Some(model), Some(architecture)) = (model, architecture) {
        return Ok((model, architecture));
    }
    let has_experts = EXPERT_KEYS.iter().any(|key| config.has(key));
    let name = escape_truncated(found);
    Err(if config.has("vision_config") {
        ConfigError::Vision { found: name }
    } else if has_experts || found == "mixtral" || found.contains("moe") {
        ConfigError::Experts { found: name }
    } else {
        ConfigError::ModelType { found: name }
    })
}

/// The names of the types, for messages.
pub(super) fn names() -> String {
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
