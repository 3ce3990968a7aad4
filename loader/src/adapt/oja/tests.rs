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
    let axis = |i: usize| -> Vec<f32> { (0..WIDTH).map(|j| f32::from(u8::from(i == j))).collect() };
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
