//! Estimated losses of the codes, before coding.

use htc_formats::DType;
use htc_formats::bands::CodeLayout;
use htc_formats::model::MatrixId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::options::DenseType;
use crate::plan::MatrixForm;

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

/// Returns the name of the form of a matrix that had `source_type`.
pub(super) fn describe_form(form: &MatrixForm, source_type: DType) -> String {
    match form {
        MatrixForm::Unchanged => source_type.to_string(),
        MatrixForm::Dense { weight } => weight.to_string(),
        MatrixForm::ColumnGroups { codes } => match codes.uniform_code() {
            Some(code) => code.to_string(),
            None => describe_column_groups(codes),
        },
        form => describe_factors(form),
    }
}

fn describe_column_groups(codes: &CodeLayout) -> String {
    let CodeLayout::Classes(of) = codes else {
        return format!("bands of {:.2} bits", codes.mean_bits());
    };
    let classes = of
        .iter()
        .map(|class| format!("{:.1} in {} rows", class.codes.mean_bits(), class.rows));
    let classes: Vec<String> = classes.collect();
    format!(
        "bands of {:.2} bits: {}",
        codes.mean_bits(),
        classes.join(", ")
    )
}

fn describe_factors(form: &MatrixForm) -> String {
    let types = match form {
        MatrixForm::LowRank { a, b, .. } => (a, b),
        MatrixForm::SharedBasis {
            basis, projected, ..
        } => (basis, projected),
        _ => return "other codes".to_owned(),
    };
    let rank = form.rank().unwrap_or(0);
    let shared = match form {
        MatrixForm::SharedBasis { .. } => "shared basis of ",
        _ => "",
    };
    match types {
        (a, b) if a == b => format!("{shared}rank {rank} in {a}"),
        (a, b) => format!("{shared}rank {rank} in {a} and {b}"),
    }
}
