use super::super::*;
use super::*;

fn symmetric(values: &[f64]) -> (Mat<f64>, Mat<f64>) {
    let n = values.len();
    let q = orthonormal(n, n, 3);
    let scaled = Mat::from_fn(n, n, |i, j| q[(i, j)] * values[j]);
    let full = &scaled * q.transpose();
    (
        Mat::from_fn(n, n, |i, j| if i >= j { full[(i, j)] } else { f64::NAN }),
        q,
    )
}

#[test]
fn eigenvalues_and_vectors_are_those_that_were_planted() {
    for scale in [1e-24, 1.0, 1e12] {
        let values = [9.0, 4.0, 2.0, 0.5, 0.0, -3.0].map(|v| v * scale);
        let (matrix, q) = symmetric(&values);
        let mut expected = values;
        expected.sort_by(|a, b| b.total_cmp(a));
        let found = symmetric_eigen(matrix.clone(), 2, &Host).unwrap();
        let alone = symmetric_eigenvalues(matrix, &Host).unwrap();
        for ((found, alone), expected) in found.values.iter().zip(&alone).zip(expected) {
            assert!(
                (found - expected).abs() < 1e-13 * 9.0 * scale,
                "{found} {expected}"
            );
            assert!(
                (alone - expected).abs() < 1e-13 * 9.0 * scale,
                "{alone} {expected}"
            );
        }
        assert_eq!(found.vectors.shape(), (6, 2));
        for (column, planted) in found.vectors.col_iter().zip(q.col_iter()) {
            let cosine: f64 = column.iter().zip(planted.iter()).map(|(x, y)| x * y).sum();
            assert!((cosine.abs() - 1.0).abs() < 1e-12);
        }
    }
}

#[test]
fn invalid_matrices_are_refused() {
    let refused = |matrix: Mat<f64>| symmetric_eigenvalues(matrix, &Host).unwrap_err();
    assert!(matches!(
        refused(Mat::zeros(0, 0)),
        FactoriseError::Empty { .. }
    ));
    assert!(matches!(
        refused(Mat::zeros(2, 3)),
        FactoriseError::Empty { .. }
    ));
    let mut bad = Mat::zeros(3, 3);
    bad[(2, 1)] = f64::INFINITY;
    let error = symmetric_eigen(bad, 1, &Host).unwrap_err();
    assert!(matches!(
        error,
        FactoriseError::MomentEntry { row: 2, col: 1, .. }
    ));
    let error = symmetric_eigen(Mat::zeros(2, 2), 3, &Host).unwrap_err();
    assert!(matches!(
        error,
        FactoriseError::Rank {
            requested: 3,
            largest: 2
        }
    ));
    assert_eq!(
        symmetric_eigenvalues(Mat::zeros(4, 4), &Host).unwrap(),
        [0.0; 4]
    );
}

#[test]
fn component_energies_give_the_loss_of_every_rank() {
    let first = Dense::with_spectrum(20, 12, &[5.0, 3.0, 1.0, 0.2], 1);
    let second = Dense::normal(9, 12, 2);
    let weights = [first.weight(), second.weight()];
    let found = shared_components(&weights, BasisWeighting::Normalised, &Host).unwrap();
    assert_eq!((found.basis.len(), found.energies.len()), (144, 2));
    for k in [1, 4, 7, 11] {
        let basis = shared_basis(&weights, k, BasisWeighting::Normalised).unwrap();
        let projections = weights.iter().zip(&basis.projected).zip(&found.energies);
        for ((weight, projected), energies) in projections {
            let stored = shared_error(*weight, &basis.basis, projected, k);
            let total: f64 = energies.iter().sum();
            let lost = (energies[k..].iter().sum::<f64>() / total).sqrt();
            assert!((stored - lost).abs() < 1e-6, "{k}: {stored} {lost}");
            assert!((total / weight.norm_squared() - 1.0).abs() < 1e-12);
        }
    }
}

#[test]
fn few_outputs_have_few_components() {
    let mut first = Dense::normal(5, 40, 4);
    for col in 0..40 {
        first.values[4 * 40 + col] = 2.0 * first.values[col];
    }
    let second = Dense::normal(3, 40, 5);
    let zero = Dense::from_fn(2, 40, |_, _| 0.0);
    let weights = [first.weight(), second.weight(), zero.weight()];
    for weighting in [BasisWeighting::Normalised, BasisWeighting::Equal] {
        let found = shared_components(&weights, weighting, &Host).unwrap();
        assert_eq!(found.basis.len(), 10 * 40);
        for (weight, energies) in weights.iter().zip(&found.energies) {
            let total: f64 = energies.iter().sum();
            assert!((total - weight.norm_squared()).abs() < 1e-9, "{total}");
        }
        let basis = shared_basis(&weights, 4, weighting).unwrap();
        for ((weight, projected), energies) in weights[..2]
            .iter()
            .zip(&basis.projected)
            .zip(&found.energies)
        {
            let stored = shared_error(*weight, &basis.basis, projected, 4);
            let total: f64 = energies.iter().sum();
            let lost = (energies[4..].iter().sum::<f64>() / total).sqrt();
            assert!((stored - lost).abs() < 1e-6, "{stored} {lost}");
        }
        for (i, row) in found.basis.chunks_exact(40).enumerate() {
            for (j, other) in found.basis.chunks_exact(40).enumerate() {
                let product: f64 = row.iter().zip(other).map(|(x, y)| x * y).sum();
                let expected = f64::from(u8::from(i == j && i < 7));
                assert!((product - expected).abs() < 1e-9, "{i} {j}: {product}");
            }
        }
    }
}
