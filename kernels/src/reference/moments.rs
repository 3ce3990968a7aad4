//! Reference products of columns summed over rows.

use crate::error::{ShapeError, check_size, checked_product};

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
    check_size(
        "a (numbers)",
        checked_product("a (numbers)", &[n, rows])?,
        a.len(),
    )?;
    check_size(
        "b (numbers)",
        checked_product("b (numbers)", &[n, cols])?,
        b.len(),
    )?;
    let numbers = checked_product("sums (numbers)", &[rows, cols])?;
    check_size("sums (numbers)", numbers, sums.len())?;
    for k in 0..n {
        for i in 0..rows {
            for j in 0..cols {
                sums[i * cols + j] += f64::from(a[k * rows + i]) * f64::from(b[k * cols + j]);
            }
        }
    }
    Ok(())
}
