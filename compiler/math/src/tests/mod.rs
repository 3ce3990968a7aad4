//! Matrices with known answers, and plain float64 arithmetic to compare with.

mod algebra;
mod axiom;
mod basis;
mod basis_gauged;
mod bias;
mod codes;
mod covariance;
mod decompose;
mod exempt;
mod feedback;
mod gauge;
mod low_rank;
mod measure;
mod principal;
mod sink;
mod spectrum;
mod symmetric;
mod widths;

use faer::Mat;

use super::{SecondMoment, Weight, weighted_energies};
use crate::random::Rng;

fn weighted_relative_error(
    weight: Weight<'_>,
    a: &[f32],
    b: &[f32],
    r: usize,
    moment: SecondMoment<'_>,
) -> f64 {
    weighted_energies(weight, a, b, r, moment).relative_error()
}

struct Dense {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
}

impl Dense {
    fn from_fn(rows: usize, cols: usize, mut entry: impl FnMut(usize, usize) -> f64) -> Self {
        let mut values = Vec::with_capacity(rows * cols);
        for i in 0..rows {
            for j in 0..cols {
                values.push(entry(i, j) as f32);
            }
        }
        Dense { rows, cols, values }
    }

    fn normal(rows: usize, cols: usize, seed: u64) -> Self {
        let mut rng = Rng(seed);
        Dense::from_fn(rows, cols, |_, _| rng.normal())
    }

    /// `Q₁ diag(spectrum) Q₂ᵀ` with random orthonormal `Q₁`, `Q₂`, rounded to float32.
    fn with_spectrum(rows: usize, cols: usize, spectrum: &[f64], seed: u64) -> Self {
        let q = spectrum.len();
        let (left, right) = (
            orthonormal(rows, q, seed),
            orthonormal(cols, q, seed ^ 0xABCD),
        );
        let scaled = Mat::from_fn(rows, q, |i, j| left[(i, j)] * spectrum[j]);
        let product = &scaled * right.transpose();
        Dense::from_fn(rows, cols, |i, j| product[(i, j)])
    }

    fn weight(&self) -> Weight<'_> {
        Weight {
            rows: self.rows,
            cols: self.cols,
            values: &self.values,
        }
    }

    fn f64(&self) -> Mat<f64> {
        matrix(&self.values, self.rows, self.cols)
    }

    fn transpose(&self) -> Self {
        Dense::from_fn(self.cols, self.rows, |i, j| {
            f64::from(self.values[j * self.cols + i])
        })
    }

    fn scaled(&self, factor: f64) -> Self {
        Dense::from_fn(self.rows, self.cols, |i, j| {
            f64::from(self.values[i * self.cols + j]) * factor
        })
    }
}

fn matrix(values: &[f32], rows: usize, cols: usize) -> Mat<f64> {
    assert_eq!(values.len(), rows * cols);
    Mat::from_fn(rows, cols, |i, j| f64::from(values[i * cols + j]))
}

fn orthonormal(rows: usize, cols: usize, seed: u64) -> Mat<f64> {
    assert!(cols <= rows);
    let mut rng = Rng(seed);
    let mut q = Mat::from_fn(rows, cols, |_, _| rng.normal());
    for j in 0..cols {
        for _ in 0..2 {
            for p in 0..j {
                let dot: f64 = (0..rows).map(|i| q[(i, p)] * q[(i, j)]).sum();
                for i in 0..rows {
                    q[(i, j)] -= dot * q[(i, p)];
                }
            }
            let norm = (0..rows).map(|i| q[(i, j)] * q[(i, j)]).sum::<f64>().sqrt();
            for i in 0..rows {
                q[(i, j)] /= norm;
            }
        }
    }
    q
}

fn norm(m: &Mat<f64>) -> f64 {
    m.col_iter()
        .flat_map(|c| c.iter().map(|v| v * v).collect::<Vec<_>>())
        .sum::<f64>()
        .sqrt()
}

fn orthonormality(q: &Mat<f64>) -> f64 {
    let gram = q.transpose() * q;
    let mut worst = 0.0f64;
    for i in 0..gram.nrows() {
        for j in 0..gram.ncols() {
            worst = worst.max((gram[(i, j)] - f64::from(i == j)).abs());
        }
    }
    worst
}

fn signs_are_fixed(rows: &[f32], width: usize) -> bool {
    rows.chunks_exact(width).all(|row| {
        let mut largest = 0.0f32;
        for &v in row {
            if v.abs() > largest.abs() {
                largest = v;
            }
        }
        largest >= 0.0
    })
}

fn decreasing(values: &[f64]) -> bool {
    values.windows(2).all(|w| w[0] >= w[1]) && values.iter().all(|v| *v >= 0.0)
}

#[track_caller]
fn close(found: f64, expected: f64, tolerance: f64) {
    assert!(
        (found - expected).abs() <= tolerance,
        "found {found:e}, expected {expected:e} within {tolerance:e}"
    );
}
