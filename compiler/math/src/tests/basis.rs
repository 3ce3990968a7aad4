use faer::Mat;

use super::super::basis::{check, leading_eigenvectors, shared_gram};
use super::super::{
    BasisWeighting, FactoriseError, Gauge, Host, SharedBasis, Weight, relative_tail, shared_basis,
    shared_error, shared_singular_values, sign_of_largest,
};
use super::{
    Dense, Rng, close, decreasing, matrix, norm, orthonormal, orthonormality, signs_are_fixed,
};

use BasisWeighting::{Equal, Normalised};

fn basis_f64(
    weights: &[Weight<'_>],
    k: usize,
    weighting: BasisWeighting,
) -> Result<(Mat<f64>, Vec<f64>), FactoriseError> {
    check(weights, k)?;
    let gram = shared_gram(weights, weighting, &Gauge::None, &Host)?;
    let (mut p, eigenvalues) = leading_eigenvectors(gram, k, weighting, &Gauge::None, &Host)?;
    for column in p.col_iter_mut() {
        if sign_of_largest(column.as_ref().iter().map(|&v| v as f32)) < 0.0 {
            column.iter_mut().for_each(|v| *v = -*v);
        }
    }
    Ok((p, eigenvalues))
}

fn attention(d: usize, seed: u64) -> [Dense; 3] {
    let kv = d / 4;
    let spectrum = |n: usize, scale: f64| -> Vec<f64> {
        (0..n)
            .map(|i| scale * (-3.0 * i as f64 / n as f64).exp())
            .collect()
    };
    [
        Dense::with_spectrum(d, d, &spectrum(d, 5.0), seed),
        Dense::with_spectrum(kv, d, &spectrum(kv, 3.0), seed + 1),
        Dense::with_spectrum(kv, d, &spectrum(kv, 0.2), seed + 2),
    ]
}

fn weights<const N: usize>(dense: &[Dense; N]) -> [Weight<'_>; N] {
    std::array::from_fn(|i| dense[i].weight())
}

/// `‖W − W P Pᵀ‖_F / ‖W‖_F`.
fn projection_error(w: &Dense, p: &Mat<f64>) -> f64 {
    let w = w.f64();
    let kept = &w * p;
    norm(&(&w - &kept * p.transpose())) / norm(&w)
}

fn objective(projections: &[Dense], p: &Mat<f64>) -> f64 {
    projections
        .iter()
        .map(|w| projection_error(w, p).powi(2))
        .sum()
}

#[test]
fn diagonal_weight_gives_unit_vectors_in_order() {
    let w = Dense::from_fn(4, 4, |i, j| {
        if i == j {
            [1.0, -3.0, 0.0, 2.0][i]
        } else {
            0.0
        }
    });
    let found = shared_basis(&[w.weight()], 4, Normalised).unwrap();
    for (value, expected) in found.eigenvalues.iter().zip([9.0, 4.0, 1.0, 0.0]) {
        close(*value, expected / 14.0, 1e-15);
    }
    let expected = [
        [0.0, 1.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 1.0],
        [1.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 1.0, 0.0],
    ];
    assert_eq!(found.basis, expected.concat());
    let projected = [
        [0.0, 0.0, 1.0, 0.0],
        [-3.0, 0.0, 0.0, 0.0],
        [0.0; 4],
        [0.0, 2.0, 0.0, 0.0],
    ];
    assert_eq!(found.projected, [projected.concat()]);
}

#[test]
fn of_equal_magnitudes_the_lowest_index_is_positive() {
    for c in [-0.3, 0.3, 0.7] {
        let w = Dense::from_fn(2, 2, |i, j| if i == j { 1.0 } else { c });
        let found = shared_basis(&[w.weight()], 2, Equal).unwrap();
        let half = 0.5f32.sqrt();
        let second = if c > 0.0 { half } else { -half };
        for (found, expected) in found.basis.iter().zip([half, second, half, -second]) {
            close(f64::from(*found), f64::from(expected), 1e-7);
        }
    }
}

#[test]
fn normalisation_saves_the_small_projection() {
    let large = Dense::from_fn(2, 3, |i, j| if i == j { 10.0 } else { 0.0 });
    let small = Dense::from_fn(1, 3, |_, j| if j == 2 { 0.1 } else { 0.0 });
    let projections = [large.weight(), small.weight()];

    let equal = shared_basis(&projections, 2, Equal).unwrap();
    for (found, expected) in equal.eigenvalues.iter().zip([100.0, 100.0, 0.01]) {
        close(*found, expected, 1e-9);
    }
    close(
        shared_error(projections[1], &equal.basis, &equal.projected[1], 2),
        1.0,
        1e-12,
    );

    let normalised = shared_basis(&projections, 2, Normalised).unwrap();
    for (found, expected) in normalised.eigenvalues.iter().zip([1.0, 0.5, 0.5]) {
        close(*found, expected, 1e-9);
    }
    close(
        shared_error(
            projections[1],
            &normalised.basis,
            &normalised.projected[1],
            2,
        ),
        0.0,
        1e-12,
    );
    close(
        shared_error(
            projections[0],
            &normalised.basis,
            &normalised.projected[0],
            2,
        ),
        0.5f64.sqrt(),
        1e-7,
    );
}

#[test]
fn full_basis_is_the_identity() {
    for d in [4, 64, 130, 300] {
        let projections = attention(d, 11);
        let (p, eigenvalues) = basis_f64(&weights(&projections), d, Normalised).unwrap();
        assert!(orthonormality(&p) < 1e-13);
        assert!(decreasing(&eigenvalues));
        close(eigenvalues.iter().sum(), 3.0, 1e-12);
        for w in &projections {
            assert!(projection_error(w, &p) < 1e-12);
        }
        let found = shared_basis(&weights(&projections), d, Normalised).unwrap();
        for (w, projected) in projections.iter().zip(&found.projected) {
            assert!(shared_error(w.weight(), &found.basis, projected, d) < 1e-6);
        }
    }
}

#[test]
fn stored_error_is_that_of_the_projection() {
    let d = 160;
    let projections = attention(d, 21);
    for weighting in [Normalised, Equal] {
        for k in [1, 37, 80, 159] {
            let (p, eigenvalues) = basis_f64(&weights(&projections), k, weighting).unwrap();
            let found = shared_basis(&weights(&projections), k, weighting).unwrap();
            assert_eq!(found.eigenvalues, eigenvalues);
            assert!(signs_are_fixed(&found.basis, d));
            assert_eq!(
                found.basis,
                (0..k * d)
                    .map(|i| p[(i % d, i / d)] as f32)
                    .collect::<Vec<_>>()
            );
            let mut lost = 0.0;
            for (w, projected) in projections.iter().zip(&found.projected) {
                let expected = projection_error(w, &p);
                close(
                    shared_error(w.weight(), &found.basis, projected, k),
                    expected,
                    3e-7,
                );
                let scale = match weighting {
                    Normalised => 1.0,
                    Equal => norm(&w.f64()).powi(2),
                };
                lost += scale * expected.powi(2);
            }
            let left: f64 = eigenvalues[k..].iter().sum();
            close(lost, left, 1e-12 * eigenvalues.iter().sum::<f64>());
        }
    }
}

#[test]
fn one_projection_reaches_the_tail_of_its_singular_values() {
    let spectrum: Vec<f64> = (0..60).map(|i| 1.0 / (1.0 + f64::from(i))).collect();
    let w = Dense::with_spectrum(90, 60, &spectrum, 5);
    for k in [1, 10, 30, 59] {
        let found = shared_basis(&[w.weight()], k, Equal).unwrap();
        for (found, expected) in found.eigenvalues.iter().zip(&spectrum) {
            close(found.sqrt(), *expected, 1e-6);
        }
        close(
            shared_error(w.weight(), &found.basis, &found.projected[0], k),
            relative_tail(&spectrum, k),
            1e-6,
        );
    }
}

#[test]
fn no_other_subspace_does_better() {
    let (d, k) = (48, 12);
    let projections = attention(d, 31);
    let (p, _) = basis_f64(&weights(&projections), d, Normalised).unwrap();
    let kept = p.subcols(0, k).to_owned();
    let best = objective(&projections, &kept);
    let mut rng = Rng(77);
    for seed in 0..20 {
        assert!(objective(&projections, &orthonormal(d, k, 1000 + seed)) > best);
        let (i, j) = (rng.next() as usize % k, k + rng.next() as usize % (d - k));
        let (sin, cos) = 1e-2f64.sin_cos();
        let mut turned = kept.clone();
        for row in 0..d {
            turned[(row, i)] = cos * p[(row, i)] + sin * p[(row, j)];
        }
        assert!(objective(&projections, &turned) > best, "rotation {i} {j}");
    }
    let inside = &kept * orthonormal(k, k, 3);
    close(objective(&projections, &inside), best, 1e-13);
}

#[test]
fn a_zero_projection_counts_nothing() {
    let projections = attention(32, 41);
    let zero = Dense::from_fn(8, 32, |_, _| 0.0);
    let with = shared_basis(
        &[
            projections[0].weight(),
            zero.weight(),
            projections[1].weight(),
        ],
        9,
        Normalised,
    )
    .unwrap();
    let without = shared_basis(
        &[projections[0].weight(), projections[1].weight()],
        9,
        Normalised,
    )
    .unwrap();
    assert_eq!(with.basis, without.basis);
    assert_eq!(with.projected[1], vec![0.0; 8 * 9]);
    assert_eq!(with.projected[2], without.projected[1]);

    for d in [1, 2, 32, 200] {
        let zero = Dense::from_fn(3, d, |_, _| 0.0);
        let (p, eigenvalues) = basis_f64(&[zero.weight()], d, Normalised).unwrap();
        assert!(orthonormality(&p) < 1e-14);
        assert_eq!(eigenvalues, vec![0.0; d]);
    }
}

#[test]
fn equal_eigenvalues_give_some_orthonormal_basis() {
    for d in [3, 40, 150] {
        let turn = orthonormal(d, d, 9);
        let w = Dense::from_fn(d, d, |i, j| turn[(i, j)]);
        let k = d / 3;
        let found = shared_basis(&[w.weight()], k, Normalised).unwrap();
        for value in &found.eigenvalues {
            close(*value, 1.0 / d as f64, 1e-8);
        }
        assert!(orthonormality(&matrix(&found.basis, k, d).transpose().to_owned()) < 1e-6);
        close(
            shared_error(w.weight(), &found.basis, &found.projected[0], k),
            (1.0 - k as f64 / d as f64).sqrt(),
            1e-6,
        );
    }
}

#[test]
fn extreme_shapes_and_scales() {
    let one = Dense::from_fn(1, 1, |_, _| -2.0);
    assert_eq!(
        shared_basis(&[one.weight()], 1, Equal).unwrap(),
        SharedBasis {
            basis: vec![1.0],
            projected: vec![vec![-2.0]],
            eigenvalues: vec![4.0],
            sink: None,
        }
    );
    let row = Dense::from_fn(1, 5, |_, j| [0.0, 3.0, 0.0, -4.0, 0.0][j]);
    let found = shared_basis(&[row.weight()], 1, Normalised).unwrap();
    assert_eq!(found.basis, [0.0, -0.6, 0.0, 0.8, 0.0]);
    close(f64::from(found.projected[0][0]), -5.0, 1e-6);

    for scale in [1e-30, 1e30] {
        let projections = attention(70, 51).map(|w| w.scaled(scale));
        for weighting in [Normalised, Equal] {
            let found = shared_basis(&weights(&projections), 35, weighting).unwrap();
            let (p, _) = basis_f64(&weights(&projections), 35, weighting).unwrap();
            assert!(orthonormality(&p) < 1e-13);
            for (w, projected) in projections.iter().zip(&found.projected) {
                let expected = projection_error(&w.scaled(1.0 / scale), &p);
                close(
                    shared_error(w.weight(), &found.basis, projected, 35),
                    expected,
                    1e-6,
                );
            }
        }
    }
    let huge = Dense::from_fn(2, 2, |_, _| 3e38);
    assert_eq!(
        shared_basis(
            &[
                row.transpose().weight(),
                Dense::from_fn(2, 1, |_, _| 1.0).weight()
            ],
            1,
            Equal
        )
        .map(|found| found.projected.len()),
        Ok(2)
    );
    assert_eq!(
        shared_basis(&[huge.weight()], 1, Equal),
        Err(FactoriseError::Overflow { index: 0 })
    );
}

#[test]
fn errors_name_the_problem_and_the_weight() {
    let (w, narrow) = (Dense::normal(4, 6, 1), Dense::normal(4, 5, 2));
    let refused =
        |projections: &[Weight<'_>], k| shared_basis(projections, k, Normalised).unwrap_err();
    for k in [0, 7] {
        assert_eq!(
            refused(&[w.weight()], k),
            FactoriseError::Rank {
                requested: k,
                largest: 6
            }
        );
    }
    assert!(refused(&[w.weight()], 7).to_string().contains("1 to 6"));
    assert_eq!(refused(&[], 1), FactoriseError::NoWeights);
    assert_eq!(
        refused(&[w.weight(), narrow.weight()], 1),
        FactoriseError::InputMismatch {
            index: 1,
            expected: 6,
            found: 5
        }
    );
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut broken = Dense::normal(4, 6, 3);
        broken.values[2 * 6 + 5] = bad;
        let error = refused(&[w.weight(), broken.weight()], 1);
        assert!(
            matches!(
                error,
                FactoriseError::NonFinite {
                    index: 1,
                    row: 2,
                    col: 5,
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("row 2, column 5"));
        assert!(!error.to_string().contains('\n'));
    }
    let short = Weight {
        rows: 4,
        cols: 6,
        values: &w.values[1..],
    };
    assert_eq!(
        refused(&[short], 1),
        FactoriseError::WeightLength {
            index: 0,
            rows: 4,
            cols: 6,
            found: 23
        }
    );
    let wrapping = Weight {
        rows: usize::MAX,
        cols: 2,
        values: &w.values,
    };
    assert!(matches!(
        refused(&[wrapping], 1),
        FactoriseError::WeightLength { .. }
    ));
    let empty = Weight {
        rows: 0,
        cols: 6,
        values: &[],
    };
    assert_eq!(
        refused(&[empty], 1),
        FactoriseError::Empty {
            index: 0,
            rows: 0,
            cols: 6
        }
    );
}

#[test]
fn two_calls_and_two_threads_give_the_same_bytes() {
    let projections = attention(200, 61);
    let projections = weights(&projections);
    let run = || shared_basis(&projections, 90, Normalised).unwrap();
    let first = run();
    assert_eq!(first, run());
    std::thread::scope(|scope| {
        let threads = [scope.spawn(run), scope.spawn(run)];
        for thread in threads {
            assert_eq!(first, thread.join().unwrap());
        }
    });
}

#[test]
fn shared_singular_values_are_the_roots_of_the_eigenvalues() {
    let projections = attention(80, 67);
    let weights = weights(&projections);
    for weighting in [Normalised, Equal] {
        let expected = shared_basis(&weights, 1, weighting).unwrap().eigenvalues;
        let found = shared_singular_values(&weights, weighting, &Host).unwrap();
        assert_eq!(found.len(), expected.len());
        for (found, expected_squared) in found.iter().zip(&expected) {
            close(found * found, *expected_squared, 1e-12 * expected[0]);
        }
    }
    assert_eq!(
        shared_singular_values(&[], Normalised, &Host),
        Err(FactoriseError::NoWeights)
    );
}
