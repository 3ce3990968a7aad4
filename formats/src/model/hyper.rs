//! Hyper-parameters of the forward pass.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ProjectionKind;
use crate::bounded_json;
use crate::limits::{self, MAX_LAYERS};

/// Hyper-parameters that define the forward pass of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct HyperParameters {
    /// Name of the architecture, for example `llama`.
    pub architecture: String,
    /// Name of the model, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tokens in the vocabulary (rows of the embedding).
    pub vocabulary: usize,
    /// Positions the model was trained for.
    pub context: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_size: usize,
    /// Width of the feed-forward hidden layer.
    pub ffn: usize,
    /// Epsilon of the RMS norms.
    pub norm_epsilon: f32,
    /// Base of the rotary embedding.
    pub rope_theta: f32,
    /// Leading dimensions of a head that are rotated; even.
    pub rope_dimensions: usize,
    /// Positions are divided by this before rotation (1 = no scaling).
    pub rope_linear_scale: f32,
    /// Deviations from the plain forward pass.
    #[serde(default, skip_serializing_if = "Forward::is_plain")]
    pub forward: Forward,
}

/// Deviations from the plain (Llama) forward pass: adjacent rotary pairs, SiLU, full causal
/// attention, no scaling, no caps. Biases and norms follow from the tensors that a model has.
///
/// Unknown fields are refused, since a reader must implement all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Forward {
    /// Dimensions of a head that are rotated together.
    pub rope_pairs: RopePairs,
    /// Activation of the feed-forward gate.
    pub activation: Activation,
    /// Factor of the embeddings (default 1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_scale: Option<f32>,
    /// Factor of the attention scores (default `1 / sqrt(head_size)`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_scale: Option<f32>,
    /// Soft cap of the scaled scores: `s` becomes `c tanh(s / c)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_softcap: Option<f32>,
    /// Soft cap of the logits: `l` becomes `c tanh(l / c)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logit_softcap: Option<f32>,
    /// Layers with sliding-window attention.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<SlidingWindow>,
    /// Rotary frequencies that depend on the context length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long_rope: Option<LongRope>,
    /// Experts in place of the dense feed-forward networks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
}

impl Forward {
    /// Returns true if the forward pass is the plain one.
    pub fn is_plain(&self) -> bool {
        *self == Forward::default()
    }
}

/// Dimensions that the rotary embedding rotates together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RopePairs {
    /// `2i` and `2i + 1`.
    #[default]
    Adjacent,
    /// `i` and `i + rope_dimensions / 2`.
    Halves,
}

/// Activation of the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    #[default]
    Silu,
    /// GELU, tanh approximation.
    GeluTanh,
}

/// Sliding-window attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SlidingWindow {
    /// Window length, including the position itself.
    pub positions: usize,
    /// Layers with full attention, ascending.
    #[serde(deserialize_with = "bounded_json::list::<_, _, MAX_LAYERS>")]
    pub full_layers: Vec<usize>,
    /// Rotary base of the layers with a window, which then use no scaling and no factors; if
    /// absent, they rotate like the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f32>,
}

/// Rotary frequencies that depend on the context length (LongRoPE).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LongRope {
    /// Longest context for [`RopeFactors`](super::Role::RopeFactors); longer ones use
    /// [`LongRopeFactors`](super::Role::LongRopeFactors).
    pub original_context: usize,
    /// Factor of rotated queries and keys, also in short contexts.
    pub attention_factor: f32,
}

/// A mixture of experts: in every block, a router chooses feed-forward networks for each position.
///
/// The scores of a position are the softmax of the router's outputs; the experts of the largest
/// scores are applied, and their outputs added with the scores as weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Experts of a block.
    pub count: usize,
    /// Experts applied to each position.
    pub used: usize,
    /// Width of an expert's hidden layer.
    pub ffn: usize,
    /// Whether the weights of the used experts are divided by their sum.
    pub normalised: bool,
}

/// Error returned for invalid hyper-parameters or values beyond [`limits`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("hyper-parameter {name} is {found}, expected {expected}")]
pub struct HyperError {
    /// Name of the field in [`HyperParameters`].
    pub name: &'static str,
    /// Expected values.
    pub expected: String,
    /// Actual value.
    pub found: String,
}

impl HyperParameters {
    /// Validates the hyper-parameters against each other and [`limits`], so that all tensor shapes
    /// fit a `usize`.
    ///
    /// # Errors
    /// [`HyperError`] for the first invalid value.
    pub fn check(&self) -> Result<(), HyperError> {
        let wrong = |name, found: &dyn fmt::Display, expected: String| {
            Err(HyperError {
                name,
                expected,
                found: found.to_string(),
            })
        };
        for (name, found, limit) in [
            ("vocabulary", self.vocabulary, limits::MAX_VOCABULARY),
            ("context", self.context, limits::MAX_CONTEXT),
            ("width", self.width, limits::MAX_WIDTH),
            ("layers", self.layers, MAX_LAYERS),
            ("heads", self.heads, limits::MAX_WIDTH),
            ("kv_heads", self.kv_heads, limits::MAX_WIDTH),
            ("head_size", self.head_size, limits::MAX_HEAD_SIZE),
            ("ffn", self.ffn, limits::MAX_WIDTH),
        ] {
            if !(1..=limit).contains(&found) {
                return wrong(name, &found, format!("1 to {limit}"));
            }
        }
        let limit = limits::MAX_WIDTH / self.heads;
        if self.head_size > limit {
            let expected = format!("at most {limit} with {} heads", self.heads);
            return wrong("head_size", &self.head_size, expected);
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of heads, {}", self.heads);
            return wrong("kv_heads", &self.kv_heads, expected);
        }
        if !(1..=self.head_size).contains(&self.rope_dimensions)
            || !self.rope_dimensions.is_multiple_of(2)
        {
            let expected = format!("an even number from 2 to head_size, {}", self.head_size);
            return wrong("rope_dimensions", &self.rope_dimensions, expected);
        }
        for (name, found) in [
            ("norm_epsilon", self.norm_epsilon),
            ("rope_theta", self.rope_theta),
            ("rope_linear_scale", self.rope_linear_scale),
        ] {
            if !(found.is_finite() && found > 0.0) {
                return wrong(name, &found, "a finite positive number".to_owned());
            }
        }
        self.check_forward()
    }

    fn check_forward(&self) -> Result<(), HyperError> {
        let wrong = |name, found: &dyn fmt::Display, expected: String| {
            Err(HyperError {
                name,
                expected,
                found: found.to_string(),
            })
        };
        let forward = &self.forward;
        let window = forward.sliding_window.as_ref();
        for (name, found) in [
            ("embedding_scale", forward.embedding_scale),
            ("attention_scale", forward.attention_scale),
            ("attention_softcap", forward.attention_softcap),
            ("logit_softcap", forward.logit_softcap),
            (
                "sliding_window.rope_theta",
                window.and_then(|w| w.rope_theta),
            ),
            (
                "long_rope.attention_factor",
                forward.long_rope.map(|long| long.attention_factor),
            ),
        ] {
            if let Some(found) = found.filter(|x| !(x.is_finite() && *x > 0.0)) {
                return wrong(name, &found, "a finite positive number".to_owned());
            }
        }
        for (name, found) in [
            ("sliding_window.positions", window.map(|w| w.positions)),
            (
                "long_rope.original_context",
                forward.long_rope.map(|long| long.original_context),
            ),
        ] {
            let limit = limits::MAX_CONTEXT;
            if let Some(found) = found.filter(|x| !(1..=limit).contains(x)) {
                return wrong(name, &found, format!("1 to {limit}"));
            }
        }
        if let Some(experts) = forward.experts {
            let limit = limits::MAX_EXPERTS_OF_MODEL / self.layers;
            if experts.count > limit {
                let expected = format!("at most {limit} with {} layers", self.layers);
                return wrong("experts.count", &experts.count, expected);
            }
            for (name, found, limit) in [
                ("experts.count", experts.count, limits::MAX_EXPERTS),
                ("experts.used", experts.used, experts.count),
                ("experts.ffn", experts.ffn, limits::MAX_WIDTH),
            ] {
                if !(1..=limit).contains(&found) {
                    return wrong(name, &found, format!("1 to {limit}"));
                }
            }
        }
        if let Some(window) = window {
            let full = &window.full_layers;
            let name = "sliding_window.full_layers";
            if let Some(pair) = full.windows(2).find(|pair| pair[0] >= pair[1]) {
                let expected = format!("a layer above {}", pair[0]);
                return wrong(name, &pair[1], expected);
            }
            if let Some(last) = full.last().filter(|&&last| last >= self.layers) {
                return wrong(name, last, format!("layers below {}", self.layers));
            }
        }
        Ok(())
    }

    /// Returns the largest width of a feed-forward network, of the model or of an expert.
    pub fn widest_ffn(&self) -> usize {
        let experts = self.forward.experts.map_or(0, |experts| experts.ffn);
        self.ffn.max(experts)
    }

    /// Returns the number of experts of a block; 0 for dense models.
    pub fn experts(&self) -> usize {
        self.forward.experts.map_or(0, |experts| experts.count)
    }

    /// Returns the sliding window of a layer; `None` for full attention.
    pub fn window(&self, layer: usize) -> Option<&SlidingWindow> {
        let window = self.forward.sliding_window.as_ref()?;
        match window.full_layers.binary_search(&layer) {
            Ok(_) => None,
            Err(_) => Some(window),
        }
    }

    /// Returns the shape `[out, in]` of a projection; empty for experts that the model does not
    /// have.
    pub fn projection_shape(&self, projection: ProjectionKind) -> (usize, usize) {
        let (q, kv) = (self.heads * self.head_size, self.kv_heads * self.head_size);
        let (experts, expert_ffn) = match self.forward.experts {
            Some(experts) => (experts.count, experts.ffn),
            None => (0, 0),
        };
        match projection {
            ProjectionKind::Q => (q, self.width),
            ProjectionKind::K | ProjectionKind::V => (kv, self.width),
            ProjectionKind::O => (self.width, q),
            ProjectionKind::Gate | ProjectionKind::Up => (self.ffn, self.width),
            ProjectionKind::Down => (self.width, self.ffn),
            ProjectionKind::Router => (experts, self.width),
            ProjectionKind::ExpertGate(_) | ProjectionKind::ExpertUp(_) => (expert_ffn, self.width),
            ProjectionKind::ExpertDown(_) => (self.width, expert_ffn),
        }
    }
}

#[cfg(test)]
mod tests;
