//! Bias correction of a factorisation.

use super::covariance::check_mean;
use super::{FactoriseError, Weight, dot};

/// Returns `b = (W − B A) E[x]`, so that `E[B A x + b] = E[W x]`.
///
/// `a [r, in]` and `b [out, r]` are row-major; a shared basis `Pᵀ` and its `W̃` fit as well.
///
/// # Errors
/// Lengths that do not fit, numbers that are not finite, a bias that exceeds float32.
pub fn bias_correction(
    weight: Weight<'_>,
    a: &[f32],
    b: &[f32],
    r: usize,
    mean: &[f64],
) -> Result<Vec<f32>, FactoriseError> {
    weight.check(0)?;
    let (m, n) = (weight.rows, weight.cols);
    if r == 0 || !weight.has_factors(a, b, r) {
        return Err(FactoriseError::Factors {
            rows: m,
            cols: n,
            rank: r,
            a: a.len(),
            b: b.len(),
        });
    }
    check_mean(mean, n)?;
    let inner: Vec<f64> = a.chunks_exact(n).map(|row| dot(row, mean)).collect();
    let bias: Vec<f32> = weight
        .values
        .chunks_exact(n)
        .zip(b.chunks_exact(r))
        .map(|(w, b)| (dot(w, mean) - dot(b, &inner)) as f32)
        .collect();
    if bias.iter().any(|v| !v.is_finite()) {
        return Err(FactoriseError::Overflow { index: 0 });
    }
    Ok(bias)
}
