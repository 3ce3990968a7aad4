//! Singular values of a weight without its vectors.

use super::gauge::Gauge;
use super::low_rank::{Gauges, gauged_gram};
use super::{Algebra, FactoriseError, Weight};

/// Returns all `min(out, in)` singular values of a weight, decreasing, as on
/// [`SvdMethod::Gram`](super::SvdMethod::Gram).
pub fn singular_values(
    weight: Weight<'_>,
    algebra: &dyn Algebra,
) -> Result<Vec<f64>, FactoriseError> {
    gauged_singular_values(weight, &Gauge::None, algebra)
}

/// Returns the singular values of `W G`. With an unshrunk [`Gauge::whiten`], the sum of squares
/// after the `k`-th is a lower bound of `E‖(W − Ŵ) x‖²` for rank `k` (Eckart and Young 1936).
pub fn gauged_singular_values(
    weight: Weight<'_>,
    input: &Gauge,
    algebra: &dyn Algebra,
) -> Result<Vec<f64>, FactoriseError> {
    weight.check(0)?;
    input.check(weight.cols)?;
    let gauges = Gauges {
        input,
        output: None,
    };
    let gram = gauged_gram(weight, gauges, algebra)?;
    let mut values = algebra.eigenvalues(gram)?;
    let scale = input.scale();
    values
        .iter_mut()
        .for_each(|v| *v = v.max(0.0).sqrt() * scale);
    Ok(values)
}
