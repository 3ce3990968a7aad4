//! Reference products with matrices in column groups.

use htc_formats::bands::{ColumnGroups, GROUP_COLS, rotate};

use super::quantised_vector;
use crate::error::{ShapeError, check_numbers};

/// Computes `y = x Wᵀ` for a matrix in column groups and vectors quantised by [`quantised_vector`],
/// after rotation and the column scales of a trellis.
///
/// # Errors
/// When `x` or `y` has another length.
pub fn quantised_column_groups(
    w: ColumnGroups<'_>,
    n: usize,
    x: &[f32],
    y: &mut [f32],
) -> Result<(), ShapeError> {
    let (rows, cols) = (w.rows(), w.cols());
    check_numbers("x (numbers)", &[n, cols], x.len())?;
    check_numbers("y (numbers)", &[n, rows], y.len())?;
    let mut row = vec![0.0; cols];
    for (t, x) in x.chunks_exact(cols).enumerate() {
        // If scaled, the quantised number divided by the scale it was multiplied by.
        let mut seen = Vec::with_capacity(cols);
        let mut x = x.to_vec();
        if w.codes().is_rotated() {
            rotate(&mut x);
        }
        for (band, x) in x.chunks(GROUP_COLS).enumerate() {
            match w.column_scales(band) {
                None => seen.extend(quantised_vector(x)),
                Some(scales) => {
                    let scaled: Vec<f32> = x.iter().zip(scales).map(|(x, s)| x * s).collect();
                    let over = |(x, s): (f64, f32)| if s == 0.0 { 0.0 } else { x / f64::from(s) };
                    seen.extend(quantised_vector(&scaled).into_iter().zip(scales).map(over));
                }
            }
        }
        if w.codes().is_rotated() {
            rotate(&mut seen);
        }
        for i in 0..rows {
            w.decode_row(i, &mut row)
                .map_err(|_| ShapeError::new("row (numbers)", cols, row.len()))?;
            let products = row.iter().zip(&seen).map(|(&w, x)| f64::from(w) * x);
            y[t * rows + i] = products.sum::<f64>() as f32;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
