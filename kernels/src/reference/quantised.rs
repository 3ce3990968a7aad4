//! Reference products with quantised vectors.

use super::matmul;
use crate::error::{ShapeError, check_numbers};
use crate::matrix::Matrix;

/// Returns `x` as quantised by the integer products of [`cpu`](crate::cpu): per block of 32 and the
/// rest at the end, multiples of `max|x| / 127`, rounded half away from zero.
///
/// A block with a non-finite number is NaN, one with all numbers below 2⁻¹⁰⁰ is zero.
pub fn quantised_vector(x: &[f32]) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for block in x.chunks(32) {
        let largest = block.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
        if !block.iter().all(|x| x.is_finite()) {
            out.extend(block.iter().map(|_| f64::NAN));
        } else if f64::from(largest) < 2f64.powi(-100) {
            out.extend(block.iter().map(|_| 0.0));
        } else {
            let (scale, inverse) = (largest / 127.0, 127.0 / largest);
            let number = |x: &f32| f64::from((x * inverse).round()) * f64::from(scale);
            out.extend(block.iter().map(number));
        }
    }
    out
}

/// Computes [`matmul`] with every row of `x` quantised.
///
/// # Errors
/// As [`matmul`].
pub fn quantised_matmul(
    w: Matrix<'_>,
    n: usize,
    x: &[f32],
    y: &mut [f32],
) -> Result<(), ShapeError> {
    check_numbers("x (numbers)", &[n, w.cols()], x.len())?;
    let rows = x.chunks_exact(w.cols().max(1));
    let x: Vec<f64> = rows.flat_map(quantised_vector).collect();
    let mut products = vec![0.0; y.len()];
    matmul(w, n, &x, &mut products)?;
    for (y, product) in y.iter_mut().zip(products) {
        *y = product as f32;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
