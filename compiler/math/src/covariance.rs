//! The covariance of a slot's inputs: the norm under which factors are the best where a bias takes
//! what they lose on the mean.
//!
//! With a bias `b` beside the factors `Ŵ`, and `C = E[x xᵀ]`, `μ = E[x]`, `Σ = C − μ μᵀ`,
//!
//! ```text
//! E‖W x − (Ŵ x + b)‖² = tr((W − Ŵ) Σ (W − Ŵ)ᵀ) + ‖(W − Ŵ) μ − b‖²
//! ```
//!
//! since `x − μ` has no mean and the mixed term vanishes. The second term is zero for `b = (W − Ŵ) μ`
//! ([`bias_correction`](super::bias_correction)) whatever `Ŵ` is; so the best factors are those that
//! minimise the first, and `Σ` takes the place of `C` in every gauge. Factors that minimise the norm of
//! `C` spend rank on the mean, which the bias gives for nothing: with a bias they lose more, or the same.
//! Without a bias, `b = 0` and the two terms together are the error under `C`, which then is right.
//!
//! The bias takes no part of a sink direction: where the first position of a sequence lies along `ŝ` and
//! `Ŵ ŝ = W ŝ`, the output there is off by `b`.

use super::{FactoriseError, SecondMoment, Weight};

/// The part of a second moment that float32, in which it is kept, does not resolve: `C_ii − μ_i²` below
/// that part of `C_ii` is rounding and counts as that much, so that a channel which hardly varies keeps a
/// variance above zero.
const UNRESOLVED: f64 = 1.0 / (1 << 22) as f64;

/// `Σ = C − μ μᵀ [n, n]`, row-major, below and on the diagonal; zero above it. Entries that rounding put
/// beyond what Cauchy and Schwarz allow are on that bound.
///
/// # Errors
/// A second moment that is none, a mean of another length or not finite, or one whose square exceeds the
/// second moment by more than rounding.
pub fn covariance(moment: SecondMoment<'_>, mean: &[f64]) -> Result<Vec<f64>, FactoriseError> {
    moment.check()?;
    let n = moment.order;
    check_mean(mean, n)?;
    let mut variances = Vec::with_capacity(n);
    for (index, &mean) in mean.iter().enumerate() {
        let second = moment.values[index * n + index];
        let (variance, rounding) = (second - mean * mean, UNRESOLVED * second);
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
            *to = match i == j {
                true => variances[i],
                false => (second - mean[i] * mean[j]).clamp(-bound, bound),
            };
        }
    }
    Ok(covariance)
}

/// `‖W μ‖²`, by which `E‖W x‖²` exceeds `tr(W Σ Wᵀ)`; not a number when a length does not fit.
pub fn mean_energy(weight: Weight<'_>, mean: &[f64]) -> f64 {
    if weight.check(0).is_err() || mean.len() != weight.cols {
        return f64::NAN;
    }
    let output =
        |row: &[f32]| -> f64 { row.iter().zip(mean).map(|(&w, x)| f64::from(w) * x).sum() };
    let rows = weight.values.chunks_exact(weight.cols);
    rows.map(|row| output(row).powi(2)).sum()
}

/// Makes sure that a mean is that of `inputs` finite numbers.
pub(super) fn check_mean(mean: &[f64], inputs: usize) -> Result<(), FactoriseError> {
    if mean.len() != inputs {
        return Err(FactoriseError::VectorLength {
            expected: inputs,
            found: mean.len(),
        });
    }
    match mean.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(index) => Err(FactoriseError::VectorEntry {
            index,
            value: mean[index],
        }),
    }
}
