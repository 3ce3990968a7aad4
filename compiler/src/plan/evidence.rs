//! Evidence for allocators beyond shapes; every part is optional.

use htc_formats::model::MatrixId;

use super::form::MatrixForm;
use crate::options::{MeasuredEnergy, TargetMachine};

/// Measurements on the model and on the target machine.
///
/// Lists by unit are in the order of [`super::units`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Singular values of each unit's weight, in decreasing order. For a shared basis, the members
    /// are stacked with their basis weights. The length is the smaller side or the unit's limit.
    pub spectra: Option<Vec<Vec<f64>>>,
    /// Singular values of `W C^{1/2}`, where `C` is the second moment of the unit's input.
    pub whitened: Option<Vec<Vec<f64>>>,
    /// Contribution of each layer's branches to the residual stream.
    pub branches: Option<Vec<BranchShares>>,
    /// Share of the positions that each unit reads; 1 except for experts, never 0 for these if
    /// measured.
    pub position_shares: Option<Vec<f64>>,
    /// Variance of the residual stream in each layer, `σ²_ℓ = E‖h_ℓ − h̄_ℓ‖² / d`.
    pub variance: Option<Vec<f64>>,
    /// L2 cache size of the target in bytes; [`super::gpu::find_by_name`] knows common GPUs.
    pub l2_bytes: Option<u64>,
    /// Generated tokens per joule of the dense model, measured on the target.
    pub tokens_per_joule: Option<f64>,
    /// Energy per token as a function of the bytes read, measured on the target.
    pub energy: Option<MeasuredEnergy>,
    /// Loss of each matrix in each form, in the order of [`super::matrices`].
    pub curves: Option<Vec<LossCurve>>,
    /// Loss of projections with a shared basis; the groups are disjoint.
    pub shared: Vec<SharedLossCurve>,
    /// Summary of the evaluation of factors.
    pub factor_summary: Option<String>,
    /// Notes on matrices with outliers, for the plan.
    pub outliers: Vec<String>,
    /// Bytes of the file apart from its matrices: header, manifest, norms, vocabulary.
    pub overhead_bytes: Option<u64>,
}

/// Loss of a matrix in each candidate form.
#[derive(Clone, Debug, PartialEq)]
pub struct LossCurve {
    /// Name of the matrix.
    pub matrix: MatrixId,
    /// Candidate forms in any order.
    pub points: Vec<LossPoint>,
    /// Intermediate forms with a lower gain per byte.
    pub intermediate: Vec<LossPoint>,
}

/// Returns the curve of a matrix; `curves` are in the order of execution.
pub(super) fn curve_of(curves: &[LossCurve], matrix: MatrixId) -> Option<&LossCurve> {
    let found = curves.binary_search_by_key(&matrix, |curve| curve.matrix);
    found.ok().map(|index| &curves[index])
}

/// Loss of projections that share a basis.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedLossCurve {
    /// Members in the order of execution.
    pub members: Vec<MatrixId>,
    /// Candidate forms in any order.
    pub points: Vec<SharedLossPoint>,
}

/// Loss of projections with a common basis.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedLossPoint {
    /// Form of the group.
    pub form: MatrixForm,
    /// Estimated increase of the KL divergence for each member, nats per token.
    pub losses: Vec<f64>,
}

/// Loss of a matrix in one form.
#[derive(Clone, Debug, PartialEq)]
pub struct LossPoint {
    /// Dense or separately factorised form.
    pub form: MatrixForm,
    /// Estimated increase of the KL divergence, nats per token.
    pub loss: f64,
}

/// Relative contributions of a layer's two branches to the residual stream: the mean squared norm
/// of each, `E‖y‖²`, divided by that of the stream after the layer, `E‖h_ℓ‖²`, which is the divisor
/// of the next norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BranchShares {
    /// Q, K, V and O.
    pub attention: f64,
    /// Gate, up and down.
    pub feed_forward: f64,
}

impl TargetMachine {
    /// Returns the evidence that is known before reading the weights.
    pub fn evidence(&self) -> Evidence {
        Evidence {
            l2_bytes: self.l2_bytes,
            tokens_per_joule: self.tokens_per_joule,
            energy: self.energy.as_deref().cloned(),
            ..Evidence::default()
        }
    }
}
