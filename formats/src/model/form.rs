//! Storage forms of a matrix: dense, low rank, shared basis or residual, and their tensors.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::projection::parse_index;
use super::{HyperParameters, InputGroup, Part, ProjectionKind, Role};
use crate::DType;
use crate::bands::CodeLayout;
use crate::limits::MAX_LAYERS;

/// Prefix of the text of everything in a block, before its index.
pub(super) const BLOCK: &str = "blk.";

const EMBEDDING: &str = "token_embd";

const HEAD: &str = "output";

/// A matrix that a plan treats and a manifest records, ordered as in the forward pass.
///
/// Its text form is the name of its tensor in a GGUF without `.weight`:
/// `blk.3.attn_q`, `token_embd`, `output`. An expert's projections have its index at the end:
/// `blk.3.ffn_down.17`.
///
/// If the head is tied to the embedding, both are [`MatrixId::Embedding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MatrixId {
    /// Token embedding, `[vocabulary, width]`.
    Embedding,
    /// A projection of a block.
    Projection {
        /// Index of the block.
        layer: usize,
        /// Projection within the block.
        projection: ProjectionKind,
    },
    /// Output head, `[vocabulary, width]`.
    Head,
}

impl MatrixId {
    /// Returns the block index; `None` outside of blocks.
    pub const fn layer(self) -> Option<usize> {
        match self {
            MatrixId::Projection { layer, .. } => Some(layer),
            MatrixId::Embedding | MatrixId::Head => None,
        }
    }

    /// Returns the projection; `None` outside of blocks.
    pub const fn projection(self) -> Option<ProjectionKind> {
        match self {
            MatrixId::Projection { projection, .. } => Some(projection),
            MatrixId::Embedding | MatrixId::Head => None,
        }
    }

    /// Returns the name in plans, without block and expert: `q`, `embedding`, `head`.
    pub const fn name(self) -> &'static str {
        match self {
            MatrixId::Embedding => "embedding",
            MatrixId::Projection { projection, .. } => projection.name(),
            MatrixId::Head => "head",
        }
    }

    /// Returns the rows (outputs) and columns (inputs) of the dense matrix.
    pub fn shape(self, hyper: &HyperParameters) -> (usize, usize) {
        match self {
            MatrixId::Embedding | MatrixId::Head => (hyper.vocabulary, hyper.width),
            MatrixId::Projection { projection, .. } => hyper.projection_shape(projection),
        }
    }

    /// Returns the role of a part; `None` if the matrix has no such part. An embedding has only its
    /// weight.
    pub const fn role(self, part: Part) -> Option<Role> {
        match (self, part) {
            (MatrixId::Projection { layer, projection }, part) => Some(Role::Linear {
                layer,
                projection,
                part,
            }),
            (MatrixId::Embedding, Part::Weight) => Some(Role::TokenEmbedding),
            (MatrixId::Head, Part::Weight) => Some(Role::Output),
            (MatrixId::Head, Part::A | Part::B | Part::ResidualA | Part::ResidualB) => {
                Some(Role::OutputFactor { part })
            }
            (MatrixId::Embedding | MatrixId::Head, _) => None,
        }
    }

    /// Returns the role of the dense matrix.
    pub const fn weight(self) -> Role {
        match self {
            MatrixId::Embedding => Role::TokenEmbedding,
            MatrixId::Head => Role::Output,
            MatrixId::Projection { layer, projection } => Role::Linear {
                layer,
                projection,
                part: Part::Weight,
            },
        }
    }

    /// Returns the matrix and the part that a role denotes; `None` for bases and for vectors other
    /// than biases.
    pub const fn from_role(role: Role) -> Option<(MatrixId, Part)> {
        match role {
            Role::TokenEmbedding => Some((MatrixId::Embedding, Part::Weight)),
            Role::Output => Some((MatrixId::Head, Part::Weight)),
            Role::OutputFactor { part } => Some((MatrixId::Head, part)),
            Role::Linear {
                layer,
                projection,
                part,
            } => Some((MatrixId::Projection { layer, projection }, part)),
            _ => None,
        }
    }
}

impl fmt::Display for MatrixId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            MatrixId::Embedding => f.write_str(EMBEDDING),
            MatrixId::Projection { layer, projection } => {
                write!(f, "{BLOCK}{layer}.{}", projection.tensor_name())?;
                match projection.expert() {
                    Some(expert) => write!(f, ".{expert}"),
                    None => Ok(()),
                }
            }
            MatrixId::Head => f.write_str(HEAD),
        }
    }
}

impl FromStr for MatrixId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let projection = || {
            let (layer, name) = split_block(text, BLOCK)?;
            let projection = ProjectionKind::parse_named(name, ProjectionKind::tensor_name)?;
            Some(MatrixId::Projection { layer, projection })
        };
        match text {
            EMBEDDING => Ok(MatrixId::Embedding),
            HEAD => Ok(MatrixId::Head),
            _ => projection().ok_or_else(|| format!("unknown matrix {text:?}")),
        }
    }
}

/// Splits the text of something in a block, after `prefix`, into the index of the block, which is
/// below [`MAX_LAYERS`], and its name there.
pub(crate) fn split_block<'a>(text: &'a str, prefix: &str) -> Option<(usize, &'a str)> {
    let (layer, name) = text.strip_prefix(prefix)?.split_once('.')?;
    let layer = parse_index(layer).filter(|layer| *layer < MAX_LAYERS)?;
    Some((layer, name))
}

crate::serde_as_text!(MatrixId);

/// Storage form of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// `W`.
    Dense,
    /// `W ≈ B A`.
    LowRank,
    /// `W ≈ W̃ Pᵀ` with the basis `P` of the projection's group.
    SharedBasis,
    /// `W ≈ W₀ + B A`: a dense base and a low-rank residual.
    Residual,
}

crate::names!(Form { Dense "dense", LowRank "low_rank", SharedBasis "shared_basis", Residual "residual" });

impl Form {
    /// Returns the parts that the form stores for each matrix, in the order of execution.
    pub const fn parts(self) -> &'static [Part] {
        match self {
            Form::Dense => &[Part::Weight],
            Form::LowRank => &[Part::A, Part::B],
            Form::SharedBasis => &[Part::Projected],
            Form::Residual => &[Part::Weight, Part::ResidualA, Part::ResidualB],
        }
    }

    /// Detects the form from the parts that exist. Its last part may be missing, which the reader
    /// of the parts then reports.
    pub fn from_parts(has: impl Fn(Part) -> bool) -> Option<Form> {
        match (has(Part::Weight), has(Part::ResidualA)) {
            (true, true) => Some(Form::Residual),
            (true, false) => Some(Form::Dense),
            (false, _) if has(Part::Projected) => Some(Form::SharedBasis),
            (false, _) if has(Part::A) => Some(Form::LowRank),
            (false, _) => None,
        }
    }
}

/// A storage form with its rank and tensor types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredForm {
    /// `W [out, in]`.
    Dense {
        /// Type of `W`.
        weight: DType,
    },
    /// `W [out, in]` in groups of 32 columns; also a dense form.
    Bands {
        /// Codes of the column groups.
        codes: CodeLayout,
    },
    /// `A [rank, in]` and `B [out, rank]`.
    LowRank {
        /// Rank.
        rank: usize,
        /// Type of `A`.
        a: DType,
        /// Type of `B`.
        b: DType,
    },
    /// `W̃ [out, rank]`, and `Pᵀ [rank, in]` once for the group.
    SharedBasis {
        /// Rank.
        rank: usize,
        /// Type of the basis.
        basis: DType,
        /// Type of `W̃`.
        projected: DType,
    },
    /// `W₀ [out, in]`, `A [rank, in]` and `B [out, rank]`.
    Residual {
        /// Type of the base `W₀`.
        base: DType,
        /// Rank of the residual.
        rank: usize,
        /// Type of `A`.
        a: DType,
        /// Type of `B`.
        b: DType,
    },
}

impl StoredForm {
    /// Returns the form without its parameters.
    pub const fn form(&self) -> Form {
        match self {
            StoredForm::Dense { .. } | StoredForm::Bands { .. } => Form::Dense,
            StoredForm::LowRank { .. } => Form::LowRank,
            StoredForm::SharedBasis { .. } => Form::SharedBasis,
            StoredForm::Residual { .. } => Form::Residual,
        }
    }

    /// Returns the rank; `None` for dense forms.
    pub const fn rank(&self) -> Option<usize> {
        match self {
            StoredForm::Dense { .. } | StoredForm::Bands { .. } => None,
            StoredForm::LowRank { rank, .. }
            | StoredForm::SharedBasis { rank, .. }
            | StoredForm::Residual { rank, .. } => Some(*rank),
        }
    }

    /// Returns the tensors of a matrix `[rows, cols]` in the order of execution, without the
    /// group's basis. Parts without a [`MatrixId::role`] are left out.
    pub fn tensors(&self, matrix: MatrixId, (rows, cols): (usize, usize)) -> Vec<StoredTensor> {
        let shape = |part: Part| match (self.clone(), part) {
            (StoredForm::Dense { weight }, _) => (weight, rows, cols),
            (StoredForm::Bands { .. }, _) => (DType::Bands, rows, cols),
            (StoredForm::LowRank { rank, a, .. }, Part::A) => (a, rank, cols),
            (StoredForm::LowRank { rank, b, .. }, _) => (b, rows, rank),
            (
                StoredForm::SharedBasis {
                    rank, projected, ..
                },
                _,
            ) => (projected, rows, rank),
            (StoredForm::Residual { rank, a, .. }, Part::ResidualA) => (a, rank, cols),
            (StoredForm::Residual { rank, b, .. }, Part::ResidualB) => (b, rows, rank),
            (StoredForm::Residual { base, .. }, _) => (base, rows, cols),
        };
        let parts = self.form().parts().iter();
        parts
            .filter_map(|&part| {
                let (dtype, rows, cols) = shape(part);
                let role = matrix.role(part)?;
                Some(StoredTensor {
                    role,
                    dtype,
                    rows,
                    cols,
                    codes: self.codes().cloned(),
                })
            })
            .collect()
    }

    /// Returns the codes of the column groups; `None` for other forms.
    pub const fn codes(&self) -> Option<&CodeLayout> {
        match self {
            StoredForm::Bands { codes } => Some(codes),
            _ => None,
        }
    }

    /// Returns the basis `[rank, cols]` shared by a group's projections; `None` for other forms.
    pub fn basis(&self, layer: usize, group: InputGroup, cols: usize) -> Option<StoredTensor> {
        let &StoredForm::SharedBasis { rank, basis, .. } = self else {
            return None;
        };
        Some(StoredTensor {
            role: Role::Basis { layer, group },
            dtype: basis,
            rows: rank,
            cols,
            codes: None,
        })
    }
}

/// Role, type and shape of a stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// Role in the model.
    pub role: Role,
    /// Element type.
    pub dtype: DType,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Codes of the column groups, for [`DType::Bands`].
    pub codes: Option<CodeLayout>,
}

impl StoredTensor {
    /// Returns the number of elements.
    pub fn parameters(&self) -> u64 {
        self.rows as u64 * self.cols as u64
    }

    /// Returns the size in bytes; every row consists of whole blocks.
    pub fn bytes(&self) -> u64 {
        if let Some(codes) = &self.codes {
            return codes.bytes(self.rows);
        }
        let blocks = (self.cols / self.dtype.block_len()) as u64;
        let row = blocks.saturating_mul(self.dtype.block_bytes() as u64);
        row.saturating_mul(self.rows as u64)
    }
}

#[cfg(test)]
mod tests;
