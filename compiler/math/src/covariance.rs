//! Covariance of a projection's inputs: the optimal norm for factors with a bias correction.
//!
//! With `C = E[x xᵀ]`, `μ = E[x]` and `Σ = C − μ μᵀ`,
//!
//! `E‖W x − (Ŵ x + b)‖² = tr((W − Ŵ) Σ (W − Ŵ)ᵀ) + ‖(W − Ŵ) μ − b‖²`.
//!
//! The second term is zero for `b = (W − Ŵ) μ` ([`bias_correction`](super::bias_correction)), so
//! the best factors minimise the first. If `Ŵ ŝ = W ŝ` for a sink direction, the output there is
//! off by `b`.

use super::{FactoriseError, SecondMoment, Weight, check_length, dot};

/// Resolution of a second moment stored in float32; keeps the variance of a nearly constant channel
/// positive.
const VARIANCE_FLOOR: f64 = 1.0 / (1 << 22) as f64;

/// Returns `Σ = C − μ μᵀ [n, n]`, row-major, zero above the diagonal, clamped to the Cauchy-Schwarz
/// bound.
///
/// # Errors
/// An invalid second moment or mean, or one whose square exceeds the second moment beyond rounding.
pub fn covariance(moment: SecondMoment<'_>, mean: &[f64]) -> Result<Vec<f64>, FactoriseError> {
    moment.check()?;
    let n = moment.order;
    check_mean(mean, n)?;
    let mut variances = Vec::with_capacity(n);
    for (index, &mean) in mean.iter().enumerate() {
        let second = moment.values[index * n + index];
        let (variance, rounding) = (second - mean * mean, VARIANCE_FLOOR * second);
        if variance < -rounding {
            return Err(FactoriseError::MeanBeyondMoment {
                index,
                mean,
                second,
            });
        }
        variances.push(variance.max(rounding));
    }
    let mut covariance = vec![0.0; n * n];
    for (i, row) in covariance.chunks_exact_mut(n).enumerate() {
        let second = &moment.values[i * n..=i * n + i];
        for (j, (to, &second)) in row.iter_mut().zip(second).enumerate() {
            let bound = (variances[i] * variances[j]).sqrt();
            *to = if i == j {
                variances[i]
            } else {
                (second - mean[i] * mean[j]).clamp(-bound, bound)
            };
        }
    }
    Ok(covariance)
}

/// Returns `‖W μ‖²`; NaN when a length does not fit.
pub fn mean_energy(weight: Weight<'_>, mean: &[f64]) -> f64 {
    if weight.check(0).is_err() || mean.len() != weight.cols {
        return f64::NAN;
    }
    let rows = weight.values.chunks_exact(weight.cols);
    rows.map(|row| dot(row, mean).powi(2)).sum()
}

pub(super) fn check_mean(mean: &[f64], inputs: usize) -> Result<(), FactoriseError> {
    check_length(inputs, mean.len())?;
    check_finite(mean)
}

pub(super) fn check_finite(vector: &[f64]) -> Result<(), FactoriseError> {
    match vector.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(index) => Err(FactoriseError::VectorEntry {
            index,
            value: vector[index],
        }),
    }
}
