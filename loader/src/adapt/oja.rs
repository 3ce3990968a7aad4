//! Online subspace update by Oja's rule (Oja 1982).
//!
//! A sample `x` moves every row, `w_i ← w_i + η x (xᵀ w_i)`, and the rows are re-orthonormalised.
//! With `c = W x` the Gram matrix of the rows becomes `I + γ c cᵀ`, `γ = 2η + η² |x|²`, with the
//! inverse square root `I + β ĉ ĉᵀ`, `β = (1 + γ |c|²)^(−1/2) − 1`: the nearest orthonormal rows
//! take two matrix-vector products.

use crate::kv::oja::{dot, residual_energy};

/// Samples between full orthonormalisations.
const ORTHONORMALISE_EVERY: u64 = 64;

const MIN_SQUARED_NORM: f64 = 1e-12;

/// Orthonormal rows `[rank, width]` with their initial state.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OnlineBasis {
    width: usize,
    rows: Vec<f32>,
    first: Vec<f32>,
    samples: u64,
}

impl OnlineBasis {
    /// Orthonormalises rows; also returns their largest deviation from orthonormality.
    pub fn orthonormalise(width: usize, rows: Vec<f32>) -> (OnlineBasis, f64) {
        let off = orthonormality_error(&rows, width);
        let rows = orthonormal(&rows, width);
        let first = rows.clone();
        let basis = OnlineBasis {
            width,
            rows,
            first,
            samples: 0,
        };
        (basis, off)
    }

    /// Returns the basis with restored rows and sample count.
    pub fn restored(&self, rows: &[f32], samples: u64) -> OnlineBasis {
        OnlineBasis {
            rows: orthonormal(rows, self.width),
            samples,
            ..self.clone()
        }
    }

    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    pub fn rank(&self) -> usize {
        self.rows.len() / self.width.max(1)
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Updates with sample number `t` at the rate `η₀ / t^exponent`.
    pub fn update(&mut self, x: &[f32], first_rate: f64, exponent: f64) {
        self.samples += 1;
        let rate = first_rate / (self.samples as f64).powf(exponent);
        let of_rows = |row: &[f32]| dot(row, x);
        let products: Vec<f64> = self.rows.chunks_exact(self.width).map(of_rows).collect();
        let squares: f64 = products.iter().map(|c| c * c).sum();
        if squares < MIN_SQUARED_NORM {
            return;
        }
        let gamma = 2.0 * rate + rate * rate * dot(x, x);
        let beta = (1.0 + gamma * squares).powf(-0.5) - 1.0;
        // cᵀ (W + η c xᵀ) = cᵀ W + η |c|² xᵀ.
        let mut along: Vec<f64> = x.iter().map(|&x| rate * squares * f64::from(x)).collect();
        for (row, c) in self.rows.chunks_exact(self.width).zip(&products) {
            for (along, &number) in along.iter_mut().zip(row) {
                *along += c * f64::from(number);
            }
        }
        for (row, c) in self.rows.chunks_exact_mut(self.width).zip(&products) {
            let numbers = row.iter_mut().zip(x).zip(&along);
            for ((number, &x), along) in numbers {
                let moved = rate * c * f64::from(x) + beta * c / squares * along;
                *number = (f64::from(*number) + moved) as f32;
            }
        }
        if self.samples.is_multiple_of(ORTHONORMALISE_EVERY) {
            self.rows = orthonormal(&self.rows, self.width);
        }
    }

    /// Returns `‖P_t − P_0‖_F` of the projectors.
    pub fn distance(&self) -> f64 {
        (2.0 * self.energy_outside_initial()).sqrt()
    }

    /// Returns `tr(P_t P_0) / r`: 1 for the initial subspace, 0 for an orthogonal one.
    pub fn overlap(&self) -> f64 {
        1.0 - self.energy_outside_initial() / self.rank().max(1) as f64
    }

    fn energy_outside_initial(&self) -> f64 {
        let rows = self.rows.chunks_exact(self.width);
        rows.map(|row| residual_energy(&self.first, row)).sum()
    }

    /// Returns the fractions of a vector's energy outside of the current and the initial span.
    pub fn residual(&self, x: &[f32]) -> [f64; 2] {
        let all = dot(x, x).max(MIN_SQUARED_NORM);
        [&self.rows, &self.first].map(|rows| residual_energy(rows, x) / all)
    }
}

/// Orthonormalises rows by Gram-Schmidt, twice; drops dependent rows.
fn orthonormal(rows: &[f32], width: usize) -> Vec<f32> {
    let mut done: Vec<Vec<f64>> = Vec::new();
    for row in rows.chunks_exact(width.max(1)) {
        let mut row: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
        let before = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        for _ in 0..2 {
            for other in &done {
                let along: f64 = row.iter().zip(other).map(|(a, b)| a * b).sum();
                for (number, other) in row.iter_mut().zip(other) {
                    *number -= along * other;
                }
            }
        }
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        if norm > 1e-6 * before && norm > 0.0 {
            done.push(row.iter().map(|x| x / norm).collect());
        }
    }
    done.concat().into_iter().map(|x| x as f32).collect()
}

fn orthonormality_error(rows: &[f32], width: usize) -> f64 {
    let mut largest = 0.0_f64;
    let all = || rows.chunks_exact(width.max(1)).enumerate();
    for (i, one) in all() {
        for (j, other) in all().take(i + 1) {
            let expected = f64::from(u8::from(i == j));
            largest = largest.max((dot(one, other) - expected).abs());
        }
    }
    largest
}

#[cfg(test)]
mod tests;
