//! What codes were expected to lose, before any of them was made.

use htc_formats::model::MatrixId;
use serde::{Deserialize, Serialize};

use crate::request::DenseType;

/// What codes were expected to lose, nats of KL divergence per token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Foreseen {
    /// The matrices of the artifact, in the order of execution.
    pub matrices: Vec<ForeseenMatrix>,
    /// Files that store every matrix in one type, as far as that fits and pays.
    pub plain: Vec<PlainFile>,
}

/// A matrix as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForeseenMatrix {
    /// Which.
    pub matrix: MatrixId,
    /// The type, or another word for its form.
    pub form: String,
    /// What it adds to the divergence.
    pub kl: f64,
}

/// A file with one type for all matrices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlainFile {
    /// The type or code.
    #[serde(rename = "type")]
    pub dtype: DenseType,
    /// Bytes of the file.
    pub bytes: u64,
    /// What its matrices add to the divergence together.
    pub kl: f64,
}

impl Foreseen {
    /// What is expected of a matrix.
    pub fn of(&self, matrix: MatrixId) -> Option<&ForeseenMatrix> {
        self.matrices.iter().find(|of| of.matrix == matrix)
    }

    /// What all matrices of the artifact add to the divergence.
    pub fn kl(&self) -> f64 {
        self.matrices.iter().map(|of| of.kl).sum()
    }
}
