//! The vocabulary shared by every room of the house: slots, roles and hyper-parameters.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::limits;

/// One of the seven linear maps of a transformer block, `y = W x` with `W` of shape `[out, in]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slot {
    /// Query projection, reads the residual stream.
    Q,
    /// Key projection, reads the residual stream.
    K,
    /// Value projection, reads the residual stream.
    V,
    /// Attention output projection, writes to the residual stream.
    O,
    /// Gate of the feed-forward network, reads the residual stream.
    Gate,
    /// Up projection of the feed-forward network, reads the residual stream.
    Up,
    /// Down projection of the feed-forward network, writes to the residual stream.
    Down,
}

impl Slot {
    /// Every slot in the order of execution.
    pub const ALL: [Slot; 7] = [
        Slot::Q,
        Slot::K,
        Slot::V,
        Slot::O,
        Slot::Gate,
        Slot::Up,
        Slot::Down,
    ];

    /// The name used on the command line and in the manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Slot::Q => "q",
            Slot::K => "k",
            Slot::V => "v",
            Slot::O => "o",
            Slot::Gate => "gate",
            Slot::Up => "up",
            Slot::Down => "down",
        }
    }

    /// The group of slots that read the same input as this one; `None` where it stands alone.
    pub const fn group(self) -> Option<InputGroup> {
        match self {
            Slot::Q | Slot::K | Slot::V => Some(InputGroup::Qkv),
            Slot::Gate | Slot::Up => Some(InputGroup::GateUp),
            Slot::O | Slot::Down => None,
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Slot {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Slot::ALL
            .into_iter()
            .find(|s| s.name() == text)
            .ok_or_else(|| format!("unknown slot {text:?}; slots are q, k, v, o, gate, up, down"))
    }
}

/// Slots that share their input and may therefore share a basis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputGroup {
    /// Q, K and V.
    Qkv,
    /// Gate and up.
    GateUp,
}

impl InputGroup {
    /// Both groups in the order of execution.
    pub const ALL: [InputGroup; 2] = [InputGroup::Qkv, InputGroup::GateUp];

    /// The name used in roles.
    pub const fn name(self) -> &'static str {
        match self {
            InputGroup::Qkv => "qkv",
            InputGroup::GateUp => "gate_up",
        }
    }

    /// The slots of the group in the order of execution.
    pub const fn slots(self) -> &'static [Slot] {
        match self {
            InputGroup::Qkv => &[Slot::Q, Slot::K, Slot::V],
            InputGroup::GateUp => &[Slot::Gate, Slot::Up],
        }
    }
}

/// What part of a linear slot a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The dense matrix `W`, `[out, in]`.
    Weight,
    /// The first factor of `W ≈ B A`, `[rank, in]`.
    A,
    /// The second factor of `W ≈ B A`, `[out, rank]`.
    B,
    /// `W̃ = W P`, `[out, rank]`, to be used with the [`Role::Basis`] of the slot's group.
    Projected,
}

impl Part {
    const ALL: [Part; 4] = [Part::Weight, Part::A, Part::B, Part::Projected];

    const fn name(self) -> &'static str {
        match self {
            Part::Weight => "weight",
            Part::A => "a",
            Part::B => "b",
            Part::Projected => "projected",
        }
    }
}

/// What a tensor does in the model. Written as text in the manifest, for example
/// `layers.3.q.weight`, `layers.3.qkv.basis` or `token_embedding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// `[vocabulary, width]`.
    TokenEmbedding,
    /// `[1, rope_dimensions / 2]`: divisors of the rotary frequencies.
    RopeFactors,
    /// `[1, width]`.
    AttentionNorm {
        /// Index of the block.
        layer: usize,
    },
    /// Shared basis `Pᵀ` of a group of slots, `[rank, in]`.
    Basis {
        /// Index of the block.
        layer: usize,
        /// The slots that share it.
        group: InputGroup,
    },
    /// A part of a linear slot.
    Linear {
        /// Index of the block.
        layer: usize,
        /// Which of the seven.
        slot: Slot,
        /// Dense weight or factor.
        part: Part,
    },
    /// `[1, width]`.
    FfnNorm {
        /// Index of the block.
        layer: usize,
    },
    /// `[1, width]`.
    OutputNorm,
    /// `[vocabulary, width]`; absent where the model ties it to the embedding.
    Output,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::TokenEmbedding => f.write_str("token_embedding"),
            Role::RopeFactors => f.write_str("rope_factors"),
            Role::OutputNorm => f.write_str("output_norm"),
            Role::Output => f.write_str("output"),
            Role::AttentionNorm { layer } => write!(f, "layers.{layer}.attention_norm"),
            Role::FfnNorm { layer } => write!(f, "layers.{layer}.ffn_norm"),
            Role::Basis { layer, group } => write!(f, "layers.{layer}.{}.basis", group.name()),
            Role::Linear { layer, slot, part } => {
                write!(f, "layers.{layer}.{}.{}", slot.name(), part.name())
            }
        }
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || format!("unknown role {text:?}");
        let role = match text {
            "token_embedding" => Role::TokenEmbedding,
            "rope_factors" => Role::RopeFactors,
            "output_norm" => Role::OutputNorm,
            "output" => Role::Output,
            _ => {
                let rest = text.strip_prefix("layers.").ok_or_else(unknown)?;
                let (layer, rest) = rest.split_once('.').ok_or_else(unknown)?;
                let layer: usize = layer.parse().map_err(|_| unknown())?;
                match rest.split_once('.') {
                    None if rest == "attention_norm" => Role::AttentionNorm { layer },
                    None if rest == "ffn_norm" => Role::FfnNorm { layer },
                    None => return Err(unknown()),
                    Some((group, "basis")) => Role::Basis {
                        layer,
                        group: InputGroup::ALL
                            .into_iter()
                            .find(|g| g.name() == group)
                            .ok_or_else(unknown)?,
                    },
                    Some((slot, part)) => Role::Linear {
                        layer,
                        slot: slot.parse().map_err(|_| unknown())?,
                        part: Part::ALL
                            .into_iter()
                            .find(|p| p.name() == part)
                            .ok_or_else(unknown)?,
                    },
                }
            }
        };
        // One spelling only: "layers.03.q.weight" is not "layers.3.q.weight".
        if role.to_string() == text {
            Ok(role)
        } else {
            Err(unknown())
        }
    }
}

impl Serialize for Role {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

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
            ("head_size", self.head_size, limits::MAX_WIDTH),
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
        Ok(())
    }

    /// Shape `[out, in]` of a slot's dense matrix.
    pub fn slot_shape(&self, slot: Slot) -> (usize, usize) {
        let (q, kv) = (self.heads * self.head_size, self.kv_heads * self.head_size);
        match slot {
            Slot::Q => (q, self.width),
            Slot::K | Slot::V => (kv, self.width),
            Slot::O => (self.width, q),
            Slot::Gate | Slot::Up => (self.ffn, self.width),
            Slot::Down => (self.width, self.ffn),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_survive_their_text() {
        let mut roles = vec![
            Role::TokenEmbedding,
            Role::RopeFactors,
            Role::OutputNorm,
            Role::Output,
            Role::AttentionNorm { layer: 0 },
            Role::FfnNorm { layer: 31 },
        ];
        for slot in Slot::ALL {
            for part in Part::ALL {
                let layer = 12;
                roles.push(Role::Linear { layer, slot, part });
            }
        }
        for group in InputGroup::ALL {
            roles.push(Role::Basis { layer: 7, group });
        }
        for role in roles {
            assert_eq!(role.to_string().parse::<Role>().unwrap(), role);
        }
    }

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
        };
        assert_eq!(good.check(), Ok(()));
        let bad = HyperParameters {
            heads: limits::MAX_WIDTH,
            kv_heads: 1,
            head_size: limits::MAX_WIDTH,
            ..good
        };
        let error = bad.check().unwrap_err();
        assert_eq!(error.name, "head_size");
        assert!(!error.to_string().contains('\n'));
    }

    #[test]
    fn other_spellings_of_a_role_are_refused() {
        for text in [
            "",
            "layers",
            "layers.",
            "layers.3",
            "layers.03.q.weight",
            "layers.+3.q.weight",
            "layers.3.q.basis",
            "layers.3.x.weight",
            "layers.3.q.weight.a",
            "layers.99999999999999999999.q.weight",
        ] {
            assert!(text.parse::<Role>().is_err(), "{text}");
        }
    }
}
