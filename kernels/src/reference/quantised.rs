//! Reference products with quantised vectors.

use super::embed;
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

/// Computes [`matmul`](super::matmul) with every row of `x` quantised.
///
/// # Errors
/// As [`matmul`](super::matmul).
pub fn quantised_matmul(
    w: Matrix<'_>,
    n: usize,
    x: &[f32],
    y: &mut [f32],
) -> Result<(), ShapeError> {
    let (rows, cols) = (w.rows(), w.cols());
    check_numbers("x (numbers)", &[n, cols], x.len())?;
    check_numbers("y (numbers)", &[n, rows], y.len())?;
    let mut row = vec![0.0; cols];
    let x: Vec<_> = (0..n)
        .map(|t| quantised_vector(&x[t * cols..][..cols]))
        .collect();
    for i in 0..rows {
        embed(w, i, &mut row)?;
        for (t, x) in x.iter().enumerate() {
            let products = row.iter().zip(x).map(|(&w, x)| f64::from(w) * x);
            y[t * rows + i] = products.sum::<f64>() as f32;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
