//! Roles of a model's tensors.

use std::fmt;
use std::str::FromStr;

use super::form::{BLOCK, split_block};
use super::kv::BLOCK_KV;
use super::{InputGroup, KvSide, MatrixId, Part, ProjectionKind};

/// Role of a tensor in the model.
///
/// The manifest uses its text form. That of a tensor of a matrix is the [`MatrixId`] and the part:
/// `blk.3.attn_q.weight`, `token_embd.weight`. Others are named as in GGUF, without `.weight`:
/// `blk.3.attn_norm`, `output_norm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// `[vocabulary, width]`.
    TokenEmbedding,
    /// Divisors of the rotary frequencies, `[1, rope_dimensions / 2]`.
    RopeFactors,
    /// Divisors for contexts longer than
    /// [`LongRope::original_context`](super::LongRope::original_context),
    /// `[1, rope_dimensions / 2]`.
    LongRopeFactors,
    /// `[1, width]`.
    AttentionNorm {
        /// Index of the block.
        layer: usize,
    },
    /// Shared basis `Pᵀ` of a group of projections, `[rank, in]`.
    Basis {
        /// Index of the block.
        layer: usize,
        /// Projections that share it.
        group: InputGroup,
    },
    /// Norm weight of every query head, before rotation, `[1, head_size]`.
    QueryNorm {
        /// Index of the block.
        layer: usize,
    },
    /// Norm weight of every key head, before rotation, `[1, head_size]`.
    KeyNorm {
        /// Index of the block.
        layer: usize,
    },
    /// Norm of the attention output before it is added to the residual stream, `[1, width]`.
    PostAttentionNorm {
        /// Index of the block.
        layer: usize,
    },
    /// Norm of the feed-forward output before it is added to the residual stream, `[1, width]`.
    PostFfnNorm {
        /// Index of the block.
        layer: usize,
    },
    /// A part of a projection.
    Linear {
        /// Index of the block.
        layer: usize,
        /// Projection within the block.
        projection: ProjectionKind,
        /// Dense weight, factor or bias.
        part: Part,
    },
    /// `[1, width]`.
    FfnNorm {
        /// Index of the block.
        layer: usize,
    },
    /// `[1, width]`.
    OutputNorm,
    /// Output head, `[vocabulary, width]`; absent if tied to the embedding or stored as factors.
    Output,
    /// Factor of the output head: [`Part::A`], [`Part::B`], [`Part::ResidualA`] or
    /// [`Part::ResidualB`].
    OutputFactor {
        /// The factor.
        part: Part,
    },
    /// Orthonormal basis of each kv head for the KV cache, `[kv_heads · head_size, head_size]`: one
    /// row per component, in decreasing order of energy. For keys these are the eigenvectors of the
    /// second moment of keys and queries after the rotary embedding, for values those of the values
    /// (OjaKV, appendix A.2). Unused by the forward pass.
    KvBasis {
        /// Index of the block.
        layer: usize,
        /// Keys or values.
        side: KvSide,
    },
    /// Share of the head's energy in each row of [`Role::KvBasis`], `[kv_heads, head_size]`.
    KvEnergies {
        /// Index of the block.
        layer: usize,
        /// Keys or values.
        side: KvSide,
    },
    /// Refinement of a dense matrix: has its shape and is added to it if the active fraction of
    /// weight bytes allows.
    Refinement {
        /// The refined matrix.
        matrix: MatrixId,
    },
}

const REFINEMENT: &str = "refinement";

const BASIS: &str = "basis";

/// Constructor of a role from a block index.
pub(crate) type BlockRole = fn(usize) -> Role;

const BLOCK_VECTORS: [(&str, BlockRole); 6] = [
    ("attn_norm", |layer| Role::AttentionNorm { layer }),
    ("attn_q_norm", |layer| Role::QueryNorm { layer }),
    ("attn_k_norm", |layer| Role::KeyNorm { layer }),
    ("post_attention_norm", |layer| Role::PostAttentionNorm {
        layer,
    }),
    ("ffn_norm", |layer| Role::FfnNorm { layer }),
    ("post_ffw_norm", |layer| Role::PostFfnNorm { layer }),
];

const MODEL_VECTORS: [(&str, Role); 3] = [
    ("rope_freqs", Role::RopeFactors),
    ("rope_factors_long", Role::LongRopeFactors),
    ("output_norm", Role::OutputNorm),
];

impl Role {
    /// Returns the block index; `None` outside of blocks.
    pub const fn layer(self) -> Option<usize> {
        match self {
            Role::TokenEmbedding
            | Role::RopeFactors
            | Role::LongRopeFactors
            | Role::OutputNorm
            | Role::Output
            | Role::OutputFactor { .. } => None,
            Role::AttentionNorm { layer }
            | Role::QueryNorm { layer }
            | Role::KeyNorm { layer }
            | Role::PostAttentionNorm { layer }
            | Role::Basis { layer, .. }
            | Role::Linear { layer, .. }
            | Role::FfnNorm { layer }
            | Role::PostFfnNorm { layer }
            | Role::KvBasis { layer, .. }
            | Role::KvEnergies { layer, .. } => Some(layer),
            Role::Refinement { matrix } => matrix.layer(),
        }
    }

    /// Returns a sort key for the order of execution, which is the order of an artifact.
    pub fn execution_order(self) -> impl Ord {
        // Norms are between projections.
        let step = |projection: ProjectionKind| {
            let order = projection.execution_order();
            match projection {
                ProjectionKind::Q | ProjectionKind::K | ProjectionKind::V => 2 + order,
                ProjectionKind::O => 4 + order,
                _ => 7 + order,
            }
        };
        let after_experts = usize::MAX;
        let (stage, step, part) = match self {
            Role::TokenEmbedding => (0, 0, 0),
            Role::RopeFactors => (0, 1, 0),
            Role::LongRopeFactors => (0, 2, 0),
            Role::AttentionNorm { .. } => (1, 0, 0),
            Role::Basis { group, .. } => match group {
                InputGroup::Qkv => (1, 1, 0),
                InputGroup::GateUp => (1, 10, 0),
            },
            Role::Linear {
                projection, part, ..
            } => (1, step(projection), part as usize),
            Role::QueryNorm { .. } => (1, 5, 0),
            Role::KeyNorm { .. } => (1, 6, 0),
            Role::PostAttentionNorm { .. } => (1, 8, 0),
            Role::FfnNorm { .. } => (1, 9, 0),
            Role::PostFfnNorm { .. } => (1, after_experts, 0),
            Role::OutputNorm => (2, 0, 0),
            Role::Output => (2, 1, 0),
            Role::OutputFactor { part } => (2, 1, part as usize),
            Role::KvBasis { side, .. } => (3, side as usize, 0),
            Role::KvEnergies { side, .. } => (3, side as usize, 1),
            Role::Refinement { matrix } => match matrix {
                MatrixId::Embedding => (4, 0, 0),
                MatrixId::Projection { projection, .. } => (4, step(projection), 0),
                MatrixId::Head => (4, after_experts, 0),
            },
        };
        (stage, self.layer(), step, part)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((matrix, part)) = MatrixId::from_role(*self) {
            return write!(f, "{matrix}.{}", part.name());
        }
        if let Some((name, _)) = MODEL_VECTORS.iter().find(|(_, role)| role == self) {
            return f.write_str(name);
        }
        match *self {
            Role::Refinement { matrix } => write!(f, "{matrix}.{REFINEMENT}"),
            Role::Basis { layer, group } => {
                write!(f, "{BLOCK}{layer}.{}.{BASIS}", group.tensor_name())
            }
            vector => {
                let layer = vector.layer().unwrap_or_default();
                let mut names = BLOCK_VECTORS.iter().chain(&BLOCK_KV);
                match names.find(|(_, role)| role(layer) == vector) {
                    Some((name, _)) => write!(f, "{BLOCK}{layer}.{name}"),
                    None => Err(fmt::Error),
                }
            }
        }
    }
}

/// Parses the role of a tensor that is not of a matrix.
fn parse_vector_or_basis(text: &str) -> Option<Role> {
    if let Some((_, role)) = MODEL_VECTORS.iter().find(|(name, _)| *name == text) {
        return Some(*role);
    }
    let (layer, name) = split_block(text, BLOCK)?;
    if let Some((group, BASIS)) = name.rsplit_once('.') {
        let mut groups = InputGroup::ALL.into_iter();
        let group = groups.find(|of| of.tensor_name() == group)?;
        return Some(Role::Basis { layer, group });
    }
    let mut names = BLOCK_VECTORS.iter().chain(&BLOCK_KV);
    let (_, role) = names.find(|(of, _)| *of == name)?;
    Some(role(layer))
}

/// Parses the role of a tensor of a matrix: the matrix, a dot and the part or `refinement`.
fn parse_part(text: &str) -> Option<Role> {
    let (matrix, part) = text.rsplit_once('.')?;
    let matrix: MatrixId = matrix.parse().ok()?;
    match part {
        REFINEMENT => Some(Role::Refinement { matrix }),
        part => matrix.role(Part::from_name(part)?),
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let role = parse_vector_or_basis(text).or_else(|| parse_part(text));
        role.ok_or_else(|| format!("unknown role {text:?}"))
    }
}

crate::serde_as_text!(Role);

#[cfg(test)]
pub(crate) mod tests;
