//! Factorisations and quantisation of dense weights, as pure arithmetic on buffers.
//!
//! [`shared_basis`] gives projections that read the same input one orthonormal basis `P [d, k]` and
//! `W̃ = W P` each; [`low_rank`] turns a projection into `B A` with `A [r, in]` and `B [out, r]`,
//! usable at every smaller rank. Both minimise the Frobenius norm of the error, [`low_rank_with`]
//! and [`shared_basis_with`] that of a [`Gauge`], optionally with exact directions ([`Sink`]) or
//! input columns. [`bias_correction`] restores the error on the mean input, with a gauge from the
//! [`covariance`]. [`codes`] searches the codes of [column groups](htc_formats::bands).
//!
//! Factorisations compute in float64; only stored factors are rounded to float32. Products and
//! decompositions go through an [`Algebra`]: the [`Host`] on the calling thread, or a device.
//! Results are bit-identical for the same instruction set and algebra. To use all cores, run one
//! projection per core.

mod algebra;
mod axiom;
mod basis;
mod bias;
pub mod codes;
mod covariance;
#[cfg(any(test, not(feature = "openblas")))]
mod decompose;
mod error;
mod exempt;
mod feedback;
mod gauge;
mod low_rank;
mod measure;
#[cfg(feature = "openblas")]
mod openblas;
mod panels;
mod principal;
pub mod random;
mod sink;
mod spectrum;
mod symmetric;
#[cfg(test)]
mod tests;
mod vectors;

pub use algebra::{Algebra, GramAccumulator, Host, LeadingVectors, to_column_major};
pub use axiom::{AxiomGauge, AxiomOptions, AxiomProjection, ResidualSide, axiom_gauge};
pub use basis::{
    BasisOptions, BasisWeighting, SharedBasis, SharedComponents, shared_basis, shared_basis_with,
    shared_components, shared_singular_values,
};
pub use bias::bias_correction;
pub use covariance::{covariance, mean_energy};
pub use error::FactoriseError;
pub use feedback::{BlockFormat, ErrorFeedback, QuantisedRows, rotate_moment};
pub use gauge::{DEFAULT_EXPONENT, DEFAULT_SHRINKAGE, Diagonal, Gauge, SecondMoment, Whitening};
pub use low_rank::{LowRank, LowRankOptions, SvdMethod, low_rank, low_rank_with};
pub use measure::{
    ErrorEnergies, dense_energies, low_rank_error, relative_tail, shared_error,
    weighted_dense_energies, weighted_energies, weighted_row_errors,
};
pub use principal::{PrincipalBasis, principal_basis};
pub use sink::{
    Coverage, Sink, SinkOutcome, append_direction, coverage, largest_columns, largest_moments,
    random_coverage,
};
pub use spectrum::{gauged_singular_values, singular_values};
pub use symmetric::{symmetric_eigen, symmetric_eigenvalues};
pub use vectors::{CHAINS, exp_f32, exp_f64, largest, sum_of};

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

/// Library that decomposes on the [`Host`]; the last bits of the factors depend on it.
pub const BACKEND: &str = if cfg!(feature = "openblas") {
    "openblas"
} else {
    "faer"
};

/// Dense weight, row-major.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    /// Number of outputs.
    pub rows: usize,
    /// Number of inputs.
    pub cols: usize,
    /// `rows * cols` numbers.
    pub values: &'a [f32],
}

impl Weight<'_> {
    /// Checks the length and that every number is finite.
    pub fn check(&self, index: usize) -> Result<(), FactoriseError> {
        if self.rows == 0 || self.cols == 0 {
            return Err(FactoriseError::Empty {
                index,
                rows: self.rows,
                cols: self.cols,
            });
        }
        if !self.is_whole() {
            return Err(FactoriseError::WeightLength {
                index,
                rows: self.rows,
                cols: self.cols,
                found: self.values.len(),
            });
        }
        match self.values.iter().position(|v| !v.is_finite()) {
            None => Ok(()),
            Some(at) => Err(FactoriseError::NonFinite {
                index,
                row: at / self.cols,
                col: at % self.cols,
                value: self.values[at],
            }),
        }
    }

    /// Checks weights that read the same input; returns its width.
    fn check_all(weights: &[Weight<'_>]) -> Result<usize, FactoriseError> {
        let expected = weights.first().ok_or(FactoriseError::NoWeights)?.cols;
        for (index, weight) in weights.iter().enumerate() {
            weight.check(index)?;
            if weight.cols != expected {
                return Err(FactoriseError::InputMismatch {
                    index,
                    expected,
                    found: weight.cols,
                });
            }
        }
        Ok(expected)
    }

    fn is_whole(&self) -> bool {
        self.rows.checked_mul(self.cols) == Some(self.values.len())
    }

    /// Returns true for factors `a [r, in]` and `b [out, r]` of the weight.
    fn has_factors(&self, a: &[f32], b: &[f32], r: usize) -> bool {
        r.checked_mul(self.cols) == Some(a.len()) && self.rows.checked_mul(r) == Some(b.len())
    }

    fn norm_squared(&self) -> f64 {
        self.values
            .iter()
            .map(|&v| f64::from(v) * f64::from(v))
            .sum()
    }
}

/// Returns `X Y` for row-major `x [_, n]` and `y [n, _]`.
fn product_of_rows(x: &[f32], y: &[f32], n: usize) -> Vec<f32> {
    let (rows, cols) = (x.len() / n, y.len() / n);
    let mut out = vec![0.0; rows * cols];
    matmul(
        MatMut::from_row_major_slice_mut(&mut out, rows, cols),
        Accum::Replace,
        MatRef::from_row_major_slice(x, rows, n),
        MatRef::from_row_major_slice(y, n, cols),
        1.0,
        Par::Seq,
    );
    out
}

/// Checks the length of a vector over the inputs.
fn check_length(expected: usize, found: usize) -> Result<(), FactoriseError> {
    if found == expected {
        return Ok(());
    }
    Err(FactoriseError::VectorLength { expected, found })
}

/// Checks that a rank is 1 to `largest`.
fn check_rank(requested: usize, largest: usize) -> Result<(), FactoriseError> {
    if (1..=largest).contains(&requested) {
        return Ok(());
    }
    Err(FactoriseError::Rank { requested, largest })
}

fn dot(x: &[f32], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(&x, y)| f64::from(x) * y).sum()
}

/// Returns the sign of the largest entry, 1 or -1: that of singular vectors, decided on the stored
/// float32, independently of the backend's last bits.
fn sign_of_largest(vector: impl IntoIterator<Item = f32>) -> f64 {
    let largest = vector.into_iter().fold(
        0.0f32,
        |best, v| if v.abs() > best.abs() { v } else { best },
    );
    if largest < 0.0 { -1.0 } else { 1.0 }
}

/// Returns the largest power of two not above a positive normal number, otherwise 1.
fn power_of_two_below(number: f64) -> f64 {
    const EXPONENT: u64 = 0x7FF0_0000_0000_0000;
    if number.is_normal() {
        f64::from_bits(number.to_bits() & EXPONENT)
    } else {
        1.0
    }
}

/// The example of the README compiles and holds.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
