//! The numbers of a forward pass.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ProjectionKind;
use crate::limits;

/// The numbers that define the forward pass of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HyperParameters {
    /// Name of the architecture, for example `llama`.
    pub architecture: String,
    /// Name of the model, where its author gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tokens in the vocabulary (rows of the embedding).
    pub vocabulary: usize,
    /// Positions the model was trained for.
    pub context: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
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
    /// How the forward pass differs from the plain one.
    #[serde(default, skip_serializing_if = "Forward::is_plain")]
    pub forward: Forward,
}

/// How a forward pass differs from the plain one, which is Llama's: rotated pairs side by side,
/// SiLU, attention over every earlier position, nothing scaled or capped. What else differs
/// between architectures, biases and norms, is seen from the tensors that a model has.
///
/// Whoever reads one must understand all of it, so that unknown fields are refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Forward {
    /// Which dimensions of a head are rotated together.
    pub rope_pairs: RopePairs,
    /// The activation of the feed-forward network's gate.
    pub activation: Activation,
    /// Factor of the embeddings; absent is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_scale: Option<f32>,
    /// Factor of the products of queries and keys; absent is `1 / sqrt(head_size)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_scale: Option<f32>,
    /// Scaled products `s` of queries and keys become `c tanh(s / c)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_softcap: Option<f32>,
    /// Logits `l` become `c tanh(l / c)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logit_softcap: Option<f32>,
    /// Layers that see only the latest positions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<SlidingWindow>,
    /// Rotary frequencies that depend on the length of the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long_rope: Option<LongRope>,
}

impl Forward {
    /// Whether there is no difference.
    pub fn is_plain(&self) -> bool {
        *self == Forward::default()
    }
}

/// Which dimensions of a head the rotary embedding rotates together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopePairs {
    /// `2i` and `2i + 1`.
    #[default]
    Adjacent,
    /// `i` and `i + rope_dimensions / 2`.
    Halves,
}

/// The activation of the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    #[default]
    Silu,
    /// GELU in its approximation by tanh.
    GeluTanh,
}

/// Attention over the latest positions only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlidingWindow {
    /// Positions that a position sees, itself among them.
    pub positions: usize,
    /// The layers that see every position all the same, ascending.
    pub full_layers: Vec<usize>,
    /// Base of the rotary embedding in the layers with a window, which then know neither
    /// scaling nor factors; absent where they rotate as the others do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f32>,
}

/// Rotary frequencies that depend on the length of the context (LongRoPE).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongRope {
    /// Positions up to which a context counts as short:
    /// [`RopeFactors`](super::Role::RopeFactors) then divide the frequencies, else
    /// [`LongRopeFactors`](super::Role::LongRopeFactors).
    pub original_context: usize,
    /// Factor of the rotated queries and keys, in short contexts too.
    pub attention_factor: f32,
}

/// Hyper-parameters that no model can have, or that are beyond [`limits`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("hyper-parameter {name} is {found}, expected {expected}")]
pub struct HyperError {
    /// Which one, as [`HyperParameters`] names it.
    pub name: &'static str,
    /// What it may be.
    pub expected: String,
    /// What it is.
    pub found: String,
}

impl HyperParameters {
    /// Validates the numbers against each other and against [`limits`], so that the
    /// shapes of all tensors fit a `usize`.
    ///
    /// # Errors
    ///
    /// [`HyperError`] names the first that is wrong.
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
            ("layers", self.layers, limits::MAX_LAYERS),
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

    /// The window of a layer's attention; `None` where it sees every position.
    pub fn window(&self, layer: usize) -> Option<&SlidingWindow> {
        let window = self.forward.sliding_window.as_ref()?;
        match window.full_layers.binary_search(&layer) {
            Ok(_) => None,
            Err(_) => Some(window),
        }
    }

    /// Shape `[out, in]` of a slot's dense matrix.
    pub fn projection_shape(&self, slot: ProjectionKind) -> (usize, usize) {
        let (q, kv) = (self.heads * self.head_size, self.kv_heads * self.head_size);
        match slot {
            ProjectionKind::Q => (q, self.width),
            ProjectionKind::K | ProjectionKind::V => (kv, self.width),
            ProjectionKind::O => (self.width, q),
            ProjectionKind::Gate | ProjectionKind::Up => (self.ffn, self.width),
            ProjectionKind::Down => (self.width, self.ffn),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_side_by_side_are_bounded() {
        let good = HyperParameters {
            architecture: "llama".to_owned(),
            name: None,
            vocabulary: 32,
            context: 32,
            width: 64,
            layers: 1,
            heads: 4,
            kv_heads: 2,
            head_size: 16,
            ffn: 128,
            norm_epsilon: 1e-5,
            rope_theta: 1e4,
            rope_dimensions: 16,
            rope_linear_scale: 1.0,
            forward: Forward::default(),
        };
        assert_eq!(good.check(), Ok(()));
        let bad = HyperParameters {
            heads: limits::MAX_WIDTH,
            kv_heads: 1,
            head_size: limits::MAX_HEAD_SIZE,
            ..good.clone()
        };
        let error = bad.check().unwrap_err();
        assert_eq!(error.name, "head_size");
        assert!(!error.to_string().contains('\n'));
        // As wide as all heads together may be, but no head is.
        let bad = HyperParameters {
            heads: 1,
            kv_heads: 1,
            head_size: limits::MAX_WIDTH,
            ..good
        };
        let error = bad.check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "hyper-parameter head_size is 1048576, expected 1 to 4096"
        );
    }
}
