//! Column scales by least squares, after all codes of a matrix are known.
//!
//! If column `j` of the stored `V` grows by the factor `1 + δ_j`, `tr(H E C Eᵀ)` is minimal for `A
//! δ = g` with `A = C ∘ Vᵀ H V` and `g_j = Σ_i V_ij (H E C)_ij`.

use faer::linalg::matmul::matmul;
use faer::linalg::solvers::Solve;
use faer::{Accum, Mat, MatMut, MatRef, Par, Side};

use super::RowFeedback;
use crate::{ErrorFeedback, product_of_rows};

#[derive(Clone, Debug)]
pub(super) struct ColumnFit {
    cols: usize,
    /// `Vᵀ H V [cols, cols]`.
    gram: Vec<f32>,
    /// `g [cols]`.
    slope: Vec<f64>,
    /// `V` and `E` of an incomplete block of rows.
    values: Vec<f32>,
    errors: Vec<f32>,
}

impl ColumnFit {
    pub fn new(cols: usize) -> ColumnFit {
        ColumnFit {
            cols,
            gram: vec![0.0; cols * cols],
            slope: vec![0.0; cols],
            values: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Adds the next rows, from index `first`.
    pub fn add(
        &mut self,
        first: usize,
        values: &[f32],
        errors: &[f32],
        rows: Option<&RowFeedback>,
        feedback: &ErrorFeedback,
    ) {
        let n = self.cols;
        let end = first + values.len() / n;
        let block = rows.and_then(|rows| rows.block_of_row(first));
        let Some((start, order, moment)) = block else {
            let counts = |r: usize| rows.map_or(1.0, |rows| rows.weights()[r]);
            let weighed = |x: &[f32]| -> Vec<f32> {
                let rows = x.chunks_exact(n).zip(first..);
                rows.flat_map(|(x, r)| x.iter().map(move |x| x * counts(r)))
                    .collect()
            };
            self.accumulate(values, &weighed(values), &weighed(errors), feedback);
            return;
        };
        self.values.extend_from_slice(values);
        self.errors.extend_from_slice(errors);
        if end < start + order {
            return;
        }
        let (values, errors) = (
            std::mem::take(&mut self.values),
            std::mem::take(&mut self.errors),
        );
        let weighed = |x: &[f32]| product_of_rows(moment, x, order);
        self.accumulate(&values, &weighed(&values), &weighed(&errors), feedback);
    }

    fn accumulate(&mut self, values: &[f32], hv: &[f32], he: &[f32], feedback: &ErrorFeedback) {
        let (n, rows) = (self.cols, values.len() / self.cols);
        matmul(
            MatMut::from_row_major_slice_mut(&mut self.gram, n, n),
            Accum::Add,
            MatRef::from_row_major_slice(values, rows, n).transpose(),
            MatRef::from_row_major_slice(hv, rows, n),
            1.0,
            Par::Seq,
        );
        let slopes = product_of_rows(he, &feedback.moment, n);
        for (values, slopes) in values.chunks_exact(n).zip(slopes.chunks_exact(n)) {
            for (sum, (v, s)) in self.slope.iter_mut().zip(values.iter().zip(slopes)) {
                *sum += f64::from(*v) * f64::from(*s);
            }
        }
    }

    /// Returns the growth `δ` of the columns; zero unless `fits`. `None` if the system has no
    /// solution.
    pub fn solve(&self, feedback: &ErrorFeedback, fits: &[bool]) -> Option<Vec<f64>> {
        let n = self.cols;
        let free: Vec<usize> = (0..n)
            .filter(|&j| fits[j] && self.gram[j * n + j] > 0.0)
            .collect();
        let entry = |i: usize, j: usize| {
            let at = |i: usize, j: usize| f64::from(self.gram[i * n + j]);
            0.5 * (at(i, j) + at(j, i)) * f64::from(feedback.moment[i * n + j])
        };
        let mut system = Mat::from_fn(free.len(), free.len(), |a, b| entry(free[a], free[b]));
        for a in 0..free.len() {
            system[(a, a)] *= 1.0 + 1e-3;
        }
        let llt = system.llt(Side::Lower).ok()?;
        let right = Mat::from_fn(free.len(), 1, |a, _| self.slope[free[a]]);
        let solved = llt.solve(&right);
        let mut found = vec![0.0; n];
        for (a, &j) in free.iter().enumerate() {
            found[j] = solved[(a, 0)];
        }
        Some(found)
    }
}
