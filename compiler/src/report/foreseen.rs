//! Estimated losses of the codes, before coding.

use htc_formats::model::MatrixId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::options::DenseType;

/// Estimated losses in nats of KL divergence per token.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct EstimatedLosses {
    /// Matrices of the artifact in execution order.
    pub matrices: Vec<EstimatedMatrixLoss>,
    /// Files that store every matrix in one type.
    pub plain: Vec<UniformFile>,
}

/// Estimated loss of a stored matrix.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct EstimatedMatrixLoss {
    /// The matrix.
    pub matrix: MatrixId,
    /// Type, or name of its form.
    pub form: String,
    /// Added KL divergence.
    pub kl: f64,
}

/// File with one type for all matrices.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct UniformFile {
    /// Type or code.
    #[serde(rename = "type")]
    pub dtype: DenseType,
    /// File size in bytes.
    pub bytes: u64,
    /// Total added KL divergence.
    pub kl: f64,
}

impl EstimatedLosses {
    /// Returns the estimate of a matrix.
    pub fn matrix(&self, matrix: MatrixId) -> Option<&EstimatedMatrixLoss> {
        self.matrices.iter().find(|of| of.matrix == matrix)
    }

    /// Returns the total of all matrices of the artifact.
    pub fn kl(&self) -> f64 {
        self.matrices.iter().map(|of| of.kl).sum()
    }
}
