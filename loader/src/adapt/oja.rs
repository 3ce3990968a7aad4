//! Online subspace update by Oja's rule (Oja 1982).
//!
//! A sample `x` moves every row, `w_i ← w_i + η x (xᵀ w_i)`, and the rows are re-orthonormalised.
//! With `c = W x` the Gram matrix of the rows becomes `I + γ c cᵀ`, `γ = 2η + η² |x|²`, with the
//! inverse square root `I + β ĉ ĉᵀ`, `β = (1 + γ |c|²)^(−1/2) − 1`: the nearest orthonormal rows
//! take two matrix-vector products.

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

/// Returns the squared norm of `x` outside of orthonormal rows, without cancellation.
fn residual_energy(rows: &[f32], x: &[f32]) -> f64 {
    let mut rest: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    for row in rows.chunks_exact(x.len().max(1)) {
        let along = dot(row, x);
        for (rest, &number) in rest.iter_mut().zip(row) {
            *rest -= along * f64::from(number);
        }
    }
    rest.iter().map(|x| x * x).sum()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b);
    products.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
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
mod tests {
    use rand_core::{Rng, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::*;

    const WIDTH: usize = 12;

    struct Random(Pcg64Mcg);

    impl Random {
        fn number(&mut self) -> f32 {
            let uniform = |g: &mut Pcg64Mcg| (g.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            let sum: f64 = (0..12).map(|_| uniform(&mut self.0)).sum();
            (sum - 6.0) as f32
        }

        fn numbers(&mut self, count: usize) -> Vec<f32> {
            (0..count).map(|_| self.number()).collect()
        }
    }

    fn random() -> Random {
        Random(Pcg64Mcg::seed_from_u64(3))
    }

    #[test]
    fn update_is_oja_rule_with_the_nearest_orthonormal_rows() {
        let mut random = random();
        let (mut basis, _) = OnlineBasis::orthonormalise(WIDTH, random.numbers(4 * WIDTH));
        let before = basis.clone();
        let x = random.numbers(WIDTH);
        basis.update(&x, 0.05, 0.5);
        assert!(orthonormality_error(basis.rows(), WIDTH) < 1e-6);
        for row in before.rows().chunks_exact(WIDTH) {
            let along = 0.05 * dot(row, &x) as f32;
            let moved: Vec<f32> = row.iter().zip(&x).map(|(w, x)| w + along * x).collect();
            assert!(basis.residual(&moved)[0] < 1e-6, "{moved:?}");
        }
        let distance = basis.distance();
        let [outside, _] = before.residual(&x);
        let all = dot(&x, &x);
        let first_order = 0.05 * all * (2.0 * outside * (1.0 - outside)).sqrt();
        assert!(
            (distance / first_order - 1.0).abs() < 0.5,
            "{distance} {first_order}"
        );
        // ‖P_t − P_0‖² = 2 r (1 − overlap).
        let turned = 2.0 * basis.rank() as f64 * (1.0 - basis.overlap());
        assert!((turned / distance.powi(2) - 1.0).abs() < 1e-9);
        let mut little = before.clone();
        little.update(&x, 1e-4, 0.5);
        let first_order = first_order / 500.0;
        assert!((little.distance() / first_order - 1.0).abs() < 0.01);
    }

    /// The tangent of the angle to the strong directions falls as `exp(−(λ_strong − λ_weak) Σ η)`.
    #[test]
    fn the_basis_turns_to_the_strongest_directions_at_the_predicted_rate() {
        let mut random = random();
        let (strong, weak) = (4.0_f64, 0.25_f64);
        let mut sample = || -> Vec<f32> {
            let numbers = random.numbers(WIDTH);
            let scale = |i: usize| if i < 3 { strong.sqrt() } else { weak.sqrt() };
            let scaled = numbers.iter().enumerate();
            scaled.map(|(i, x)| x * scale(i) as f32).collect()
        };
        let mut rows = vec![0.0; 3 * WIDTH];
        for i in 0..3 {
            rows[i * WIDTH + 6 + i] = 1.0;
            rows[i * WIDTH + i] = 0.05;
        }
        let (mut basis, _) = OnlineBasis::orthonormalise(WIDTH, rows);
        let axis =
            |i: usize| -> Vec<f32> { (0..WIDTH).map(|j| f32::from(u8::from(i == j))).collect() };
        let tangent = |basis: &OnlineBasis| -> f64 {
            let outside: f64 = (0..3).map(|i| basis.residual(&axis(i))[0]).sum::<f64>() / 3.0;
            (outside / (1.0 - outside)).sqrt()
        };
        let start = tangent(&basis);
        let rate = 0.002;
        for steps in [200, 400] {
            for _ in 0..200 {
                basis.update(&sample(), rate, 0.0);
            }
            let predicted = start * (-(strong - weak) * rate * f64::from(steps)).exp();
            let found = tangent(&basis);
            assert!(
                (found / predicted).ln().abs() < 0.4,
                "{steps}: {found} {predicted}"
            );
        }
        for _ in 0..3000 {
            basis.update(&sample(), rate, 0.0);
        }
        assert!(tangent(&basis) < 0.1, "{}", tangent(&basis));
        assert!(orthonormality_error(basis.rows(), WIDTH) < 1e-5);
    }

    #[test]
    fn samples_orthogonal_to_the_basis_change_nothing() {
        let mut rows = vec![0.0; 2 * WIDTH];
        (rows[0], rows[WIDTH + 1]) = (1.0, 1.0);
        let (mut basis, off) = OnlineBasis::orthonormalise(WIDTH, rows);
        assert_eq!(off, 0.0);
        let before = basis.rows().to_vec();
        let mut x = vec![0.0; WIDTH];
        x[5] = 3.0;
        basis.update(&x, 0.1, 0.5);
        assert_eq!(basis.rows(), before);
        assert_eq!(basis.distance(), 0.0);
        assert_eq!(basis.residual(&x), [1.0, 1.0]);
    }

    #[test]
    fn dependent_rows_are_dropped() {
        let mut rows = vec![0.0; 3 * WIDTH];
        (rows[0], rows[WIDTH], rows[2 * WIDTH + 1]) = (2.0, -1.0, 0.5);
        let (basis, off) = OnlineBasis::orthonormalise(WIDTH, rows);
        assert_eq!(basis.rank(), 2);
        assert!(off > 1.0);
    }
}
