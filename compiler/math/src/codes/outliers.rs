//! Rows far larger than the others of their tile.
//!
//! The rows of a tile share the paths of a trellis and the scales of its columns, and leave their
//! errors to the rows below. The squared error of a row a thousand times as large as the others is
//! all of the cost, so that minimising the cost spends every code on it. Such a row is coded by its
//! own scale and counts as one within the limit; its error stays its own.

use crate::Weight;

/// Largest root mean square of a row relative to the upper quartile of the rows coded with it.
///
/// A row at the limit counts a thousand times; sums over 256 rows in float32 still resolve the
/// errors of five-bit codes of the others.
pub const MAX_ROW_RATIO: f32 = 32.0;

/// Returns the factor by which each row's size counts where it competes with the others: 1 except
/// for rows beyond [`MAX_ROW_RATIO`], which count as one at the limit.
pub fn outlier_factors(rows: Weight<'_>) -> Vec<f32> {
    let rows = rows.values.chunks_exact(rows.cols.max(1));
    outlier_factors_of_sizes(&rows.map(row_size).collect::<Vec<f64>>())
}

/// Returns the root mean square of a row.
pub fn row_size(row: &[f32]) -> f64 {
    let sum: f64 = row.iter().map(|&w| f64::from(w).powi(2)).sum();
    (sum / row.len().max(1) as f64).sqrt()
}

/// Returns the factors of [`outlier_factors`] for rows of these sizes.
pub fn outlier_factors_of_sizes(sizes: &[f64]) -> Vec<f32> {
    let mut ranked: Vec<f64> = sizes.iter().copied().filter(|&size| size > 0.0).collect();
    ranked.sort_by(f64::total_cmp);
    let quartile = ranked.get(3 * ranked.len() / 4).copied();
    let limit = f64::from(MAX_ROW_RATIO) * quartile.unwrap_or(0.0);
    let factor = |&size: &f64| {
        if size > limit {
            (limit / size) as f32
        } else {
            1.0
        }
    };
    sizes.iter().map(factor).collect()
}

/// Zeroes the rows of `values` whose factor is below 1.
pub fn clear_outliers(factors: &[f32], cols: usize, values: &mut [f32]) {
    let rows = values.chunks_exact_mut(cols.max(1)).zip(factors);
    let beyond = rows.filter(|&(_, &factor)| factor < 1.0);
    beyond.for_each(|(row, _)| row.fill(0.0));
}

#[cfg(test)]
mod tests;
