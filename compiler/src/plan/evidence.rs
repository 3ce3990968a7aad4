//! What an allocator may look at beside shapes. All of it is optional; an allocator that lacks what
//! it needs says so.

use htc_formats::model::MatrixId;

use super::form::Form;
use crate::request::{MeasuredEnergy, Target};

/// What was measured on the model and on the machine it is compiled for.
///
/// Lists by unit are in the order of [`super::units`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Per unit the singular values of its weight, decreasing. For a shared basis those of the
    /// members one above the other, with the weights that the basis is made with (the square roots
    /// of the eigenvalues of `Σ w_i W_iᵀ W_i`). As many as the smaller side has, or as the unit's
    /// limit says.
    pub spectra: Option<Vec<Vec<f64>>>,
    /// The same of `W C^{1/2}`, `C` the second moment of the unit's input: the squares sum to
    /// `E‖W x‖²`, and what a truncation loses of that sum is `E‖(W − Ŵ) x‖²`. Any common factor of a
    /// unit is without effect, since each is divided by its sum.
    pub whitened: Option<Vec<Vec<f64>>>,
    /// Per layer what its branches add to the residual stream.
    pub branches: Option<Vec<Branches>>,
    /// Per layer the variance of the residual stream, `σ²_ℓ = E‖h_ℓ − h̄_ℓ‖² / d`.
    pub variance: Option<Vec<f64>>,
    /// Bytes of the target's second-level cache; [`super::gpu::find`] knows common ones.
    pub cache: Option<u64>,
    /// Tokens that the dense model writes per joule, measured on the target.
    pub tokens_per_joule: Option<f64>,
    /// Or what a token costs there by the bytes that it touches.
    pub energy: Option<MeasuredEnergy>,
    /// What each matrix loses in each form.
    pub curves: Option<Vec<Curve>>,
    /// What slots lose that share a basis, where that may pay; no slot is in two of them.
    pub shared: Vec<SharedCurve>,
    /// How close factors came to paying, for people, where they were looked at.
    pub factors: Option<String>,
    /// Bytes of the file beside the numbers of its matrices: header, manifest, norms, vocabulary.
    pub beside: Option<u64>,
}

/// What a matrix loses in forms that it may be stored in.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Which one.
    pub matrix: MatrixId,
    /// In any order.
    pub points: Vec<Point>,
    /// Forms between these, of which a byte gains less: for what the others leave over of a budget.
    pub between: Vec<Point>,
}

/// What slots that read the same lose where they share a basis.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedCurve {
    /// Which, in the order of execution.
    pub members: Vec<MatrixId>,
    /// In any order.
    pub points: Vec<SharedPoint>,
}

/// What slots lose with a basis in common.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedPoint {
    /// The form of all of them together.
    pub form: Form,
    /// What each of them is expected to add to the KL divergence from the source, nats per token.
    pub losses: Vec<f64>,
}

/// What a matrix loses in a form.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The form, dense or in factors of its own.
    pub form: Form,
    /// What is expected to be added to the KL divergence from the source, nats per token.
    pub loss: f64,
}

/// What the two branches of a layer add to the residual stream: the mean squared norm of what each
/// adds, `E‖y‖²`, over that of the stream behind the layer, `E‖h_ℓ‖²`, which the next norm divides by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Branches {
    /// Q, K, V and O.
    pub attention: f64,
    /// Gate, up and down.
    pub feed_forward: f64,
}

impl Target {
    /// What is known without a look at the weights.
    pub fn evidence(&self) -> Evidence {
        Evidence {
            cache: self.cache,
            tokens_per_joule: self.tokens_per_joule,
            energy: self.energy.as_deref().cloned(),
            ..Evidence::default()
        }
    }
}
