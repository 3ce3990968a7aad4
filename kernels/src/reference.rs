//! Plain Rust with double-precision sums: the oracle of every other implementation.
//!
//! Nothing here is fast. Every function has the shapes of its namesake in [`cpu`](crate::cpu).

mod attention;
mod elementwise;
mod moments;
mod quantised;

pub use attention::attention;
pub use elementwise::{gelu_mul, rope, softcap};
pub use moments::add_cross_products;
pub use quantised::{quantised_matmul, quantised_vector};

use crate::error::{ShapeError, expect, product};
use crate::matrix::Matrix;

/// One stored row as numbers, `out` of length `w.cols()`.
///
/// # Errors
/// When there is no such row or `out` has another length.
pub fn embed(w: Matrix<'_>, row: usize, out: &mut [f32]) -> Result<(), ShapeError> {
    expect("out (numbers)", w.cols(), out.len())?;
    let w = w.row_range(row, 1)?;
    // The lengths agree, by the check above and the making of the matrix.
    htc_formats::block::decode(w.dtype(), w.row(0), out).map_err(|_| ShapeError {
        what: "row (numbers)",
        expected: w.cols(),
        found: out.len(),
    })
}

/// `y = W x`.
///
/// # Errors
/// When `x` is not `[cols]` or `y` not `[rows]`.
pub fn matvec(w: Matrix<'_>, x: &[f32], y: &mut [f32]) -> Result<(), ShapeError> {
    matmul(w, 1, x, y)
}

/// `y = x Wᵀ` for `x [n, cols]`, `y [n, rows]`.
///
/// # Errors
/// When `x` or `y` has another length.
pub fn matmul(w: Matrix<'_>, n: usize, x: &[f32], y: &mut [f32]) -> Result<(), ShapeError> {
    expect(
        "x (numbers)",
        product("x (numbers)", &[n, w.cols()])?,
        x.len(),
    )?;
    expect(
        "y (numbers)",
        product("y (numbers)", &[n, w.rows()])?,
        y.len(),
    )?;
    let mut row = vec![0.0; w.cols()];
    for i in 0..w.rows() {
        embed(w, i, &mut row)?;
        for t in 0..n {
            let x = &x[t * w.cols()..(t + 1) * w.cols()];
            y[t * w.rows() + i] = dot(&row, x) as f32;
        }
    }
    Ok(())
}

/// `out = x / sqrt(mean(x²) + eps) * weight`, for every row of `x [n, width]`, where `width` is
/// the length of `weight`.
///
/// # Errors
/// When `x` is not a whole number of rows or `out` is not as long as `x`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) -> Result<(), ShapeError> {
    let width = weight.len();
    expect("out (numbers)", x.len(), out.len())?;
    crate::error::expect_rows("x (numbers, a multiple of the width)", width, x.len())?;
    if width == 0 {
        return Ok(());
    }
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let scale = 1.0 / (dot(x, x) / width as f64 + f64::from(eps)).sqrt();
        for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
            *out = (f64::from(x) * scale * f64::from(weight)) as f32;
        }
    }
    Ok(())
}

/// `gate = gate / (1 + exp(-gate)) * up`.
///
/// # Errors
/// When the lengths differ.
pub fn silu_mul(gate: &mut [f32], up: &[f32]) -> Result<(), ShapeError> {
    expect("up (numbers)", gate.len(), up.len())?;
    for (gate, &up) in gate.iter_mut().zip(up) {
        let g = f64::from(*gate);
        *gate = (g / (1.0 + (-g).exp()) * f64::from(up)) as f32;
    }
    Ok(())
}

/// `x += y`.
///
/// # Errors
/// When the lengths differ.
pub fn add_assign(x: &mut [f32], y: &[f32]) -> Result<(), ShapeError> {
    expect("y (numbers)", x.len(), y.len())?;
    x.iter_mut().zip(y).for_each(|(x, &y)| *x += y);
    Ok(())
}

/// `x = exp(x) / Σ exp(x)`, with the maximum taken out first. An empty slice stays empty.
pub fn softmax_in_place(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = x
        .iter()
        .map(|&v| (f64::from(v) - f64::from(max)).exp())
        .collect();
    let sum: f64 = weights.iter().sum();
    for (x, w) in x.iter_mut().zip(weights) {
        *x = (w / sum) as f32;
    }
}

/// The scalar product in double precision.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(&a, &b)| f64::from(a) * f64::from(b))
        .sum()
}

#[cfg(test)]
mod tests {
    use htc_formats::model::RopePairs;

    use super::*;

    #[test]
    fn softmax_of_equal_numbers_is_uniform() {
        let mut x = [1e30f32; 4];
        softmax_in_place(&mut x);
        assert_eq!(x, [0.25; 4]);
        softmax_in_place(&mut []);
    }

    #[test]
    fn rms_norm_of_a_constant_row_is_the_weight() {
        let mut out = [0.0; 4];
        rms_norm(&[3.0, 3.0, -5.0, 5.0], &[2.0, 4.0], 0.0, &mut out).unwrap();
        assert_eq!(out, [2.0, 4.0, -2.0, 4.0]);
    }

    #[test]
    fn rope_by_a_right_angle_swaps_the_pair() {
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        rope(RopePairs::Adjacent, &mut x, 4, &[0.0], &[1.0]).unwrap();
        assert_eq!(x, [-2.0, 1.0, 3.0, 4.0, -6.0, 5.0, 7.0, 8.0]);
    }

    #[test]
    fn silu_has_its_closed_form() {
        let mut gate = [0.0, 3.0f32.ln(), -100.0];
        silu_mul(&mut gate, &[5.0, 2.0, 1.0]).unwrap();
        assert_eq!(gate[0], 0.0);
        assert!((gate[1] - 1.5 * 3.0f32.ln()).abs() < 1e-6);
        assert!(gate[2].abs() < 1e-30);
    }
}
