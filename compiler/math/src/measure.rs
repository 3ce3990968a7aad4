//! Error measures of stored weights.

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatRef, Par};

use super::gauge::{SecondMoment, for_each_quadratic_block};
use super::{Host, Weight};

const TILE: usize = 512;

/// Returns `‖W − B A‖_F / ‖W‖_F` in float64 for decoded `a [r, in]` and `b [out, r]`, row-major.
///
/// Zero when both norms are zero, infinite when only `W` is, NaN for wrong lengths.
pub fn low_rank_error(weight: Weight<'_>, a: &[f32], b: &[f32], r: usize) -> f64 {
    let (m, n) = (weight.rows, weight.cols);
    if !weight.is_whole() || !weight.has_factors(a, b, r) {
        return f64::NAN;
    }
    let mut a_tile = Mat::<f64>::zeros(r, TILE.min(n));
    let mut b_tile = Mat::<f64>::zeros(r, TILE.min(m));
    let mut product = Mat::<f64>::zeros(TILE.min(n), TILE.min(m));
    let (mut error, mut norm) = (0.0f64, 0.0f64);
    for col in (0..n).step_by(TILE) {
        let q = TILE.min(n - col);
        copy_to_tile(&mut a_tile, a, n, col);
        for row in (0..m).step_by(TILE) {
            let p = TILE.min(m - row);
            for i in 0..p {
                copy_to_column(&mut b_tile, i, &b[(row + i) * r..][..r]);
            }
            matmul(
                product.as_mut().submatrix_mut(0, 0, q, p),
                Accum::Replace,
                a_tile.as_ref().subcols(0, q).transpose(),
                b_tile.as_ref().subcols(0, p),
                1.0,
                Par::Seq,
            );
            for i in 0..p {
                let at = (row + i) * n + col;
                let column = product.as_ref().col(i);
                for (&w, &approximation) in weight.values[at..at + q].iter().zip(column.iter()) {
                    let w = f64::from(w);
                    let e = w - approximation;
                    error += e * e;
                    norm += w * w;
                }
            }
        }
    }
    if error == 0.0 {
        0.0
    } else {
        (error / norm).sqrt()
    }
}

/// Returns `‖W − W̃ Pᵀ‖_F / ‖W‖_F` as [`low_rank_error`], for `basis` `Pᵀ [k, in]` and `projected`
/// `W̃ [out, k]`.
pub fn shared_error(weight: Weight<'_>, basis: &[f32], projected: &[f32], k: usize) -> f64 {
    low_rank_error(weight, basis, projected, k)
}

/// Returns `E‖(W − B A) x‖² = tr((W − B A) C (W − B A)ᵀ)` and `E‖W x‖²` in float64, for inputs with
/// the second moment `C` and decoded `a [r, in]` and `b [out, r]`, row-major.
///
/// NaN for wrong lengths.
pub fn weighted_energies(
    weight: Weight<'_>,
    a: &[f32],
    b: &[f32],
    r: usize,
    moment: SecondMoment<'_>,
) -> ErrorEnergies {
    let (m, n) = (weight.rows, weight.cols);
    if !fits(weight, moment) || !weight.has_factors(a, b, r) {
        return ErrorEnergies::UNDEFINED;
    }
    let mut a_tile = Mat::<f64>::zeros(r, TILE.min(n));
    let mut b_tile = Mat::<f64>::zeros(r, TILE.min(m));
    let mut exact = Mat::<f64>::zeros(n, TILE.min(m));
    let mut missing = exact.clone();
    let mut energies = ErrorEnergies::default();
    for row in (0..m).step_by(TILE) {
        let p = TILE.min(m - row);
        for i in 0..p {
            copy_to_column(&mut exact, i, &weight.values[(row + i) * n..][..n]);
            copy_to_column(&mut b_tile, i, &b[(row + i) * r..][..r]);
        }
        missing.copy_from(&exact);
        for col in (0..n).step_by(TILE) {
            let q = TILE.min(n - col);
            copy_to_tile(&mut a_tile, a, n, col);
            matmul(
                missing.as_mut().submatrix_mut(col, 0, q, p),
                Accum::Add,
                a_tile.as_ref().subcols(0, q).transpose(),
                b_tile.as_ref().subcols(0, p),
                -1.0,
                Par::Seq,
            );
        }
        energies += ErrorEnergies {
            error: energy(missing.as_ref().subcols(0, p), moment),
            weight: energy(exact.as_ref().subcols(0, p), moment),
        };
    }
    energies
}

/// Energy of an error and of the weight; additive over rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorEnergies {
    /// Energy of the error.
    pub error: f64,
    /// Energy of the weight.
    pub weight: f64,
}

impl ErrorEnergies {
    const UNDEFINED: ErrorEnergies = ErrorEnergies {
        error: f64::NAN,
        weight: f64::NAN,
    };

    /// Returns `(missing / whole)^½`; zero without error.
    pub fn relative_error(self) -> f64 {
        if self.error <= 0.0 {
            0.0
        } else {
            (self.error / self.weight.max(0.0)).sqrt()
        }
    }
}

impl std::ops::AddAssign for ErrorEnergies {
    fn add_assign(&mut self, other: ErrorEnergies) {
        self.error += other.error;
        self.weight += other.weight;
    }
}

/// Returns `‖W − W′‖_F²` and `‖W‖_F²` in float64, for a decoded dense `W′`.
pub fn dense_energies(weight: Weight<'_>, stored: &[f32]) -> ErrorEnergies {
    let mut energies = ErrorEnergies::default();
    for (&w, &approximation) in weight.values.iter().zip(stored) {
        let (w, e) = (f64::from(w), f64::from(w) - f64::from(approximation));
        energies.error += e * e;
        energies.weight += w * w;
    }
    energies
}

/// Returns `E‖(W − W′) x‖²` and `E‖W x‖²` in float64, for inputs with the second moment `C` and a
/// decoded dense `W′`; NaN for wrong lengths.
pub fn weighted_dense_energies(
    weight: Weight<'_>,
    stored: &[f32],
    moment: SecondMoment<'_>,
) -> ErrorEnergies {
    let (m, n) = (weight.rows, weight.cols);
    if !fits(weight, moment) || stored.len() != weight.values.len() {
        return ErrorEnergies::UNDEFINED;
    }
    let mut energies = ErrorEnergies::default();
    let mut exact = Mat::<f64>::zeros(n, TILE.min(m));
    let mut missing = exact.clone();
    for row in (0..m).step_by(TILE) {
        let p = TILE.min(m - row);
        for i in 0..p {
            let at = (row + i) * n..(row + i + 1) * n;
            let pairs = weight.values[at.clone()].iter().zip(&stored[at]);
            let columns = exact.as_mut().col_mut(i).iter_mut();
            let columns = columns.zip(missing.as_mut().col_mut(i).iter_mut());
            for ((whole, lost), (&w, &approximation)) in columns.zip(pairs) {
                *whole = f64::from(w);
                *lost = f64::from(w) - f64::from(approximation);
            }
        }
        energies += ErrorEnergies {
            error: energy(missing.as_ref().subcols(0, p), moment),
            weight: energy(exact.as_ref().subcols(0, p), moment),
        };
    }
    energies
}

/// Returns `E((w − w′) x)²` of every row, as [`weighted_dense_energies`]; `None` for wrong lengths.
pub fn weighted_row_errors(
    weight: Weight<'_>,
    stored: &[f32],
    moment: SecondMoment<'_>,
) -> Option<Vec<f64>> {
    let (m, n) = (weight.rows, weight.cols);
    if !fits(weight, moment) || stored.len() != weight.values.len() {
        return None;
    }
    let missing = Mat::from_fn(n, m, |col, row| {
        let at = row * n + col;
        f64::from(weight.values[at]) - f64::from(stored[at])
    });
    let mut errors = vec![0.0; m];
    let done = for_each_quadratic_block(moment.lower(), missing.as_ref(), &Host, |start, block| {
        let rows = missing.as_ref().subrows(start, block.nrows());
        let columns = rows.col_iter().zip(block.col_iter());
        for (error, (x, y)) in errors.iter_mut().zip(columns) {
            *error += x.iter().zip(y.iter()).map(|(x, y)| x * y).sum::<f64>();
        }
        Ok(())
    });
    done.ok().map(|()| errors)
}

fn copy_to_column(to: &mut Mat<f64>, column: usize, values: &[f32]) {
    let column = to.as_mut().col_mut(column).iter_mut();
    column
        .zip(values)
        .for_each(|(to, &from)| *to = f64::from(from));
}

/// Copies columns of `a [r, n]`, from `col` on, to the left of a tile.
fn copy_to_tile(tile: &mut Mat<f64>, a: &[f32], n: usize, col: usize) {
    for (i, row) in a.chunks_exact(n).enumerate() {
        for (j, &value) in row[col..].iter().take(TILE).enumerate() {
            tile[(i, j)] = f64::from(value);
        }
    }
}

fn fits(weight: Weight<'_>, moment: SecondMoment<'_>) -> bool {
    weight.is_whole() && moment.order == weight.cols && moment.check().is_ok()
}

fn energy(t: MatRef<'_, f64>, moment: SecondMoment<'_>) -> f64 {
    let mut sum = 0.0;
    let done = for_each_quadratic_block(moment.lower(), t, &Host, |start, block| {
        let rows = t.subrows(start, block.nrows());
        for (x, y) in rows.col_iter().zip(block.col_iter()) {
            sum += x.iter().zip(y.iter()).map(|(x, y)| x * y).sum::<f64>();
        }
        Ok(())
    });
    done.map_or(f64::NAN, |()| sum)
}

/// Returns `(Σ_{i≥r} σ_i²)^½ / (Σ_i σ_i²)^½` of decreasing singular values, zero for a zero weight:
/// the least relative error of rank `r` (Eckart and Young 1936).
pub fn relative_tail(singular_values: &[f64], r: usize) -> f64 {
    let energy = |s: &[f64]| s.iter().rev().map(|v| v * v).sum::<f64>();
    let total = energy(singular_values);
    if total == 0.0 {
        return 0.0;
    }
    (energy(&singular_values[r.min(singular_values.len())..]) / total).sqrt()
}
