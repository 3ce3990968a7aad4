//! Reference products of columns summed over rows.

use crate::error::{ShapeError, expect, product};

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
    expect("a (numbers)", product("a (numbers)", &[n, rows])?, a.len())?;
    expect("b (numbers)", product("b (numbers)", &[n, cols])?, b.len())?;
    let numbers = product("sums (numbers)", &[rows, cols])?;
    expect("sums (numbers)", numbers, sums.len())?;
    for k in 0..n {
        for i in 0..rows {
            for j in 0..cols {
                sums[i * cols + j] += f64::from(a[k * rows + i]) * f64::from(b[k * cols + j]);
            }
        }
    }
    Ok(())
}
