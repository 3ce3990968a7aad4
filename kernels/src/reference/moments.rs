//! Reference products of columns summed over rows.

use crate::error::{ShapeError, check_numbers};

/// Computes `sums += aᵀ b` for `a [n, rows]`, `b [n, cols]` and `sums [rows, cols]`.
///
/// # Errors
/// When a length does not fit.
pub fn add_cross_products(
    n: usize,
    a: &[f32],
    b: &[f32],
    [rows, cols]: [usize; 2],
    sums: &mut [f64],
) -> Result<(), ShapeError> {
    check_numbers("a (numbers)", &[n, rows], a.len())?;
    check_numbers("b (numbers)", &[n, cols], b.len())?;
    check_numbers("sums (numbers)", &[rows, cols], sums.len())?;
    for k in 0..n {
        for i in 0..rows {
            for j in 0..cols {
                sums[i * cols + j] += f64::from(a[k * rows + i]) * f64::from(b[k * cols + j]);
            }
        }
    }
    Ok(())
}
