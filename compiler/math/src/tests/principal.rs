use super::super::*;
use super::*;

fn exact(number: f64) -> f32 {
    number as f32
}

fn moment(vectors: &Mat<f64>) -> Vec<f64> {
    let n = vectors.ncols();
    let full = vectors.transpose() * vectors;
    let mut lower = vec![f64::NAN; n * n];
    for i in 0..n {
        for j in 0..=i {
            lower[i * n + j] = full[(i, j)] / vectors.nrows() as f64;
        }
    }
    lower
}

fn found(order: usize, values: &[f64]) -> PrincipalBasis {
    principal_basis(SecondMoment { order, values }, exact, &Host).unwrap()
}

fn jacobi(lower: &[f64], n: usize) -> Vec<f64> {
    let mut a = Mat::from_fn(n, n, |i, j| lower[i.max(j) * n + i.min(j)]);
    for _ in 0..60 {
        for p in 0..n {
            for q in p + 1..n {
                if a[(p, q)] == 0.0 {
                    continue;
                }
                let theta = (a[(q, q)] - a[(p, p)]) / (2.0 * a[(p, q)]);
                let sign = if theta < 0.0 { -1.0 } else { 1.0 };
                let t = sign / (theta.abs() + (theta * theta + 1.0).sqrt());
                let c = 1.0 / (t * t + 1.0).sqrt();
                let s = t * c;
                for k in 0..n {
                    let (x, y) = (a[(k, p)], a[(k, q)]);
                    a[(k, p)] = c * x - s * y;
                    a[(k, q)] = s * x + c * y;
                }
                for k in 0..n {
                    let (x, y) = (a[(p, k)], a[(q, k)]);
                    a[(p, k)] = c * x - s * y;
                    a[(q, k)] = s * x + c * y;
                }
            }
        }
    }
    let mut values: Vec<f64> = (0..n).map(|i| a[(i, i)]).collect();
    values.sort_by(|x, y| y.total_cmp(x));
    values
}

#[test]
fn a_basis_diagonalises_the_moment() {
    for (n, count) in [(1, 3), (3, 40), (16, 200), (20, 7), (48, 500)] {
        let mut rng = Rng(n as u64);
        let vectors = Mat::from_fn(count, n, |_, j| rng.normal() / (1 + j) as f64 + 0.1);
        let lower = moment(&vectors);
        let basis = found(n, &lower);
        assert_eq!((basis.components.len(), basis.energies.len()), (n * n, n));
        let u = Mat::from_fn(n, n, |i, j| basis.components[i * n + j]);
        assert!(orthonormality(&u.transpose().to_owned()) < 1e-12);
        let full = Mat::from_fn(n, n, |i, j| lower[i.max(j) * n + i.min(j)]);
        let turned = &u * &full * u.transpose();
        let trace: f64 = (0..n).map(|i| full[(i, i)]).sum();
        let expected = jacobi(&lower, n);
        for i in 0..n {
            for j in 0..n {
                let value = if i == j { expected[i].max(0.0) } else { 0.0 };
                close(turned[(i, j)], value, 1e-12 * trace);
            }
            close(basis.energies[i], expected[i].max(0.0) / trace, 1e-12);
        }
        assert!(decreasing(&basis.energies));
        close(basis.energies.iter().sum(), 1.0, 1e-12);
        let stored: Vec<f32> = basis.components.iter().map(|&x| exact(x)).collect();
        assert!(signs_are_fixed(&stored, n));
    }
}

#[test]
fn a_planted_subspace_is_found() {
    const N: usize = 24;
    let planted = orthonormal(N, 5, 11);
    let scales = [3.0, 2.0, 1.5, 1.0, 0.8];
    let mut rng = Rng(4);
    let weights = Mat::from_fn(4000, 5, |_, j| scales[j] * rng.normal());
    let noise = Mat::from_fn(4000, N, |_, _| 1e-3 * rng.normal());
    let vectors = &weights * planted.transpose() + noise;
    let basis = found(N, &moment(&vectors));
    let leading: f64 = basis.energies[..5].iter().sum();
    assert!(leading > 1.0 - 1e-5, "{leading}");
    let u = Mat::from_fn(5, N, |i, j| basis.components[i * N + j]);
    let overlap = norm(&(&u * &planted)).powi(2) / 5.0;
    assert!(overlap > 1.0 - 1e-6, "{overlap}");
}

#[test]
fn signs_are_fixed_on_the_stored_entries() {
    let n = 2;
    let lower = [1.0, f64::NAN, -0.25, 1.0];
    let coarse = |x: f64| (x * 1024.0).round() as f32 / 1024.0;
    let moment = SecondMoment {
        order: n,
        values: &lower,
    };
    let basis = principal_basis(moment, coarse, &Host).unwrap();
    assert!(basis.components[0] > 0.0 && basis.components[1] < 0.0);
    assert!(basis.components[2] > 0.0 && basis.components[3] > 0.0);
    close(basis.energies[0], 0.625, 1e-12);
}

#[test]
fn zero_moment_has_a_basis_without_energy() {
    let basis = found(6, &[0.0; 36]);
    assert_eq!(basis.energies, [0.0; 6]);
    let u = Mat::from_fn(6, 6, |i, j| basis.components[6 * i + j]);
    assert!(orthonormality(&u) < 1e-12);
}

#[test]
fn invalid_moments_are_refused() {
    let refused = |order, values: &[f64]| {
        principal_basis(SecondMoment { order, values }, exact, &Host).unwrap_err()
    };
    let short = refused(3, &[0.0; 4]);
    assert!(matches!(short, FactoriseError::MomentLength { .. }));
    let infinite = refused(1, &[f64::INFINITY]);
    assert!(matches!(infinite, FactoriseError::MomentEntry { .. }));
    let three = [1.0, 0.0, 0.0, -0.9, 1.0, 0.0, -0.9, -0.9, 1.0];
    let indefinite = refused(3, &three);
    assert!(matches!(indefinite, FactoriseError::Indefinite { .. }));
}
