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
mod tests {
    use htc_formats::DType;

    use super::*;

    #[test]
    fn numbers_are_multiples_of_the_block_maximum_over_127() {
        let mut x = [0.0f32; 34];
        x[..6].copy_from_slice(&[254.0, 1.0, -1.0, 0.999, 3.1, -253.1]);
        x[32..].copy_from_slice(&[127.0, 0.6]);
        let out = quantised_vector(&x);
        assert_eq!(out[..6], [254.0, 2.0, -2.0, 0.0, 4.0, -254.0]);
        assert_eq!(out[32..], [127.0, 1.0]);
        x[33] = f32::INFINITY;
        let out = quantised_vector(&x);
        assert!(out[32..].iter().all(|x| x.is_nan()) && out[31] == 0.0);
        assert_eq!(quantised_vector(&[1e-38]), [0.0]);
    }

    #[test]
    fn product_with_ones_is_the_sum_of_the_quantised_numbers() {
        let ones: Vec<u8> = [1.0f32; 64].iter().flat_map(|v| v.to_le_bytes()).collect();
        let w = Matrix::new(DType::F32, 2, 32, &ones).unwrap();
        let mut x = [0.0; 64];
        (x[0], x[1], x[40]) = (127.0, 5.4, -2.0);
        let mut y = [0.0; 4];
        quantised_matmul(w, 2, &x, &mut y).unwrap();
        assert_eq!(y, [132.0, 132.0, -2.0, -2.0]);
    }
}
