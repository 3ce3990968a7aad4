//! Shapes of known models and storage forms of their matrices.

use std::fmt;
use std::str::FromStr;

use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::bands::{Code, CodeLayout, Codes};
use htc_formats::model::{Forward, HyperParameters, InputGroup, ProjectionKind, StoredForm};

/// Dimensions of a model of the `llama` architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub name: &'static str,
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_size: usize,
    pub ffn: usize,
    pub vocabulary: usize,
    pub tied: bool,
}

pub const SHAPES: [Shape; 4] = [
    // For tests: each width is a multiple of every block length.
    Shape {
        name: "tiny",
        layers: 2,
        width: 256,
        heads: 4,
        kv_heads: 2,
        head_size: 64,
        ffn: 512,
        vocabulary: 512,
        tied: true,
    },
    Shape {
        name: "SmolLM2-135M",
        layers: 30,
        width: 576,
        heads: 9,
        kv_heads: 3,
        head_size: 64,
        ffn: 1536,
        vocabulary: 49152,
        tied: true,
    },
    Shape {
        name: "Llama-3.2-1B",
        layers: 16,
        width: 2048,
        heads: 32,
        kv_heads: 8,
        head_size: 64,
        ffn: 8192,
        vocabulary: 128_256,
        tied: true,
    },
    Shape {
        name: "Llama-3.1-8B",
        layers: 32,
        width: 4096,
        heads: 32,
        kv_heads: 8,
        head_size: 128,
        ffn: 14336,
        vocabulary: 128_256,
        tied: false,
    },
];

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = SHAPES.iter().find(|shape| shape.name == text);
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
            format!("no shape {text}; there are {}", names.join(", "))
        })
    }
}

impl Shape {
    pub fn hyper(&self, context: usize) -> HyperParameters {
        HyperParameters {
            architecture: "llama".to_owned(),
            name: Some(format!("random {}", self.name)),
            vocabulary: self.vocabulary,
            context,
            width: self.width,
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_size: self.head_size,
            ffn: self.ffn,
            norm_epsilon: 1e-5,
            rope_theta: 500_000.0,
            rope_dimensions: self.head_size,
            rope_linear_scale: 1.0,
            forward: Forward::default(),
        }
    }
}

/// Storage form of the projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageForm {
    /// `dense:TYPE`.
    Dense(DType),
    /// `lowrank:RANK:TYPE`: separate factors for every projection.
    LowRank(usize, DType),
    /// `basis:RANK:TYPE`: a shared basis for Q, K and V, and one for gate and up; separate factors
    /// for the rest.
    Basis(usize, DType),
    /// `grc:RANK:TYPE`: a shared basis for Q, K and V; the rest is dense.
    Grc(usize, DType),
    /// `levels:BITS` or `trellis:BITS`.
    ColumnGroups(Code),
    /// `planes:BITS`: a trellis base and a trellis residual.
    BaseAndResidual(Code),
}

const FORMS: &str = "dense:TYPE, lowrank:RANK:TYPE, basis:RANK:TYPE, grc:RANK:TYPE, levels:BITS, trellis:BITS or planes:BITS";

impl FromStr for StorageForm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &dyn fmt::Display| format!("form {text}: {why}; expected {FORMS}");
        let dtype = |name: &str| name.parse::<DType>().map_err(|_| wrong(&"no such type"));
        let number = |digits: &str| digits.parse::<usize>().map_err(|error| wrong(&error));
        let bits = |digits: &str| digits.parse::<u8>().map_err(|error| wrong(&error));
        let coded = |code: Result<Code, CodecError>| code.map_err(|error| wrong(&error));
        match *text.split(':').collect::<Vec<_>>() {
            ["dense", name] => Ok(StorageForm::Dense(dtype(name)?)),
            [kind @ ("lowrank" | "basis" | "grc"), rank, name] => {
                let (rank, dtype) = (number(rank)?, dtype(name)?);
                if rank == 0 || !rank.is_multiple_of(dtype.block_len()) {
                    return Err(wrong(&"the rank is to be whole blocks of its type"));
                }
                Ok(match kind {
                    "lowrank" => StorageForm::LowRank(rank, dtype),
                    "grc" => StorageForm::Grc(rank, dtype),
                    _ => StorageForm::Basis(rank, dtype),
                })
            }
            ["levels", digits] => {
                coded(Code::codebook(bits(digits)?)).map(StorageForm::ColumnGroups)
            }
            ["trellis", digits] => {
                coded(Code::trellis(bits(digits)?)).map(StorageForm::ColumnGroups)
            }
            ["planes", digits] => {
                coded(Code::trellis(bits(digits)?)).map(StorageForm::BaseAndResidual)
            }
            _ => Err(wrong(&"unknown")),
        }
    }
}

impl StorageForm {
    /// Type of the embedding and the output head.
    pub fn embedding_type(&self) -> DType {
        match self {
            StorageForm::Dense(dtype)
            | StorageForm::LowRank(_, dtype)
            | StorageForm::Basis(_, dtype)
            | StorageForm::Grc(_, dtype) => *dtype,
            StorageForm::ColumnGroups(_) | StorageForm::BaseAndResidual(_) => DType::Q8_0,
        }
    }

    /// Returns the stored tensors of a projection. Ranks are limited to the full rank.
    pub fn projection_tensors(
        &self,
        projection: ProjectionKind,
        rows: usize,
        cols: usize,
    ) -> Result<StoredForm, CodecError> {
        let low = |rank: usize, dtype| StoredForm::LowRank {
            rank: rank.min(rows).min(cols),
            a: dtype,
            b: dtype,
        };
        let shared = |rank: usize, dtype| StoredForm::SharedBasis {
            rank: rank.min(cols),
            basis: dtype,
            projected: dtype,
        };
        Ok(match *self {
            StorageForm::Dense(weight) => StoredForm::Dense { weight },
            StorageForm::LowRank(rank, dtype) => low(rank, dtype),
            StorageForm::Basis(rank, dtype) if projection.group().is_some() => shared(rank, dtype),
            StorageForm::Grc(rank, dtype) if projection.group() == Some(InputGroup::Qkv) => {
                shared(rank, dtype)
            }
            StorageForm::Grc(_, weight) => StoredForm::Dense { weight },
            StorageForm::Basis(rank, dtype) => low(rank, dtype),
            StorageForm::ColumnGroups(code) | StorageForm::BaseAndResidual(code) => {
                StoredForm::Bands {
                    codes: CodeLayout::Uniform(Codes::uniform(code, cols)?),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests;
