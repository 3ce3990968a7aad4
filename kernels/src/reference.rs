//! Reference implementations in plain Rust with double-precision sums.
//!
//! Every function has the shapes of its namesake in [`cpu`](crate::cpu); speed is no goal.
//! Activations are `f32`, or `f64` for a forward pass in full double precision.

mod attention;
mod bands;
mod elementwise;
mod moments;
mod quantised;

pub use attention::{AttentionShape, attention, attention_with, hadamard, nearest_f16};
pub use bands::quantised_column_groups;
pub use elementwise::{gelu_mul, rope, softcap};
pub use moments::add_cross_products;
pub use quantised::{quantised_matmul, quantised_vector};

use crate::error::{ShapeError, check_numbers, check_size};
use crate::matrix::Matrix;

/// Type of activations.
pub trait ActivationType: Copy + Into<f64> {
    /// Rounds to the nearest number of this type.
    fn from_f64(x: f64) -> Self;
}

impl ActivationType for f32 {
    fn from_f64(x: f64) -> f32 {
        x as f32
    }
}

impl ActivationType for f64 {
    fn from_f64(x: f64) -> f64 {
        x
    }
}

/// Decodes one stored row into `out` of length `w.cols()`.
///
/// # Errors
/// When there is no such row or `out` has another length.
pub fn embed(w: Matrix<'_>, row: usize, out: &mut [f32]) -> Result<(), ShapeError> {
    check_size("out (numbers)", w.cols(), out.len())?;
    let w = w.row_range(row, 1)?;
    // The lengths agree, by the check above and the constructor of the matrix.
    htc_formats::block::decode(w.dtype(), w.row(0), out)
        .map_err(|_| ShapeError::new("row (numbers)", w.cols(), out.len()))
}

/// Computes `y = W x`.
///
/// # Errors
/// When `x` is not `[cols]` or `y` not `[rows]`.
pub fn matvec<T: ActivationType>(w: Matrix<'_>, x: &[T], y: &mut [T]) -> Result<(), ShapeError> {
    matmul(w, 1, x, y)
}

/// Computes `y = x Wᵀ` for `x [n, cols]`, `y [n, rows]`.
///
/// # Errors
/// When `x` or `y` has another length.
pub fn matmul<T: ActivationType>(
    w: Matrix<'_>,
    n: usize,
    x: &[T],
    y: &mut [T],
) -> Result<(), ShapeError> {
    check_numbers("x (numbers)", &[n, w.cols()], x.len())?;
    check_numbers("y (numbers)", &[n, w.rows()], y.len())?;
    let mut row = vec![0.0; w.cols()];
    for i in 0..w.rows() {
        embed(w, i, &mut row)?;
        for t in 0..n {
            let x = &x[t * w.cols()..(t + 1) * w.cols()];
            y[t * w.rows() + i] = T::from_f64(dot(&row, x));
        }
    }
    Ok(())
}

/// Computes `out = x / sqrt(mean(x²) + eps) * weight` for every row of `x [n, width]`, where
/// `width` is the length of `weight`.
///
/// # Errors
/// When `x` is not a whole number of rows or `out` is not as long as `x`.
pub fn rms_norm<T: ActivationType>(
    x: &[T],
    weight: &[f32],
    eps: f32,
    out: &mut [T],
) -> Result<(), ShapeError> {
    let width = weight.len();
    check_size("out (numbers)", x.len(), out.len())?;
    crate::error::check_rows("x (numbers, a multiple of the width)", width, x.len())?;
    if width == 0 {
        return Ok(());
    }
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let scale = 1.0 / (dot(x, x) / width as f64 + f64::from(eps)).sqrt();
        for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
            *out = T::from_f64(x.into() * scale * f64::from(weight));
        }
    }
    Ok(())
}

/// Computes `gate = gate / (1 + exp(-gate)) * up`.
///
/// # Errors
/// When the lengths differ.
pub fn silu_mul<T: ActivationType>(gate: &mut [T], up: &[T]) -> Result<(), ShapeError> {
    check_size("up (numbers)", gate.len(), up.len())?;
    for (gate, &up) in gate.iter_mut().zip(up) {
        let g: f64 = (*gate).into();
        *gate = T::from_f64(g / (1.0 + (-g).exp()) * up.into());
    }
    Ok(())
}

/// Computes `x += y`.
///
/// # Errors
/// When the lengths differ.
pub fn add_assign<T: ActivationType>(x: &mut [T], y: &[T]) -> Result<(), ShapeError> {
    check_size("y (numbers)", x.len(), y.len())?;
    for (x, &y) in x.iter_mut().zip(y) {
        *x = T::from_f64((*x).into() + y.into());
    }
    Ok(())
}

fn dot<A: ActivationType, B: ActivationType>(a: &[A], b: &[B]) -> f64 {
    let products = a.iter().zip(b).map(|(&a, &b)| a.into() * b.into());
    products.sum()
}

#[cfg(test)]
mod tests;
