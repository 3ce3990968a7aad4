use faer::Mat;

use super::super::{FactoriseError, append_direction, coverage, largest_columns, largest_moments};
use super::{Dense, Rng, close, orthonormal, orthonormality};

fn rows(p: &Mat<f64>) -> Vec<f64> {
    p.col_iter()
        .flat_map(|c| c.iter().copied().collect::<Vec<_>>())
        .collect()
}

/// What is left of the direction outside the rows of the basis, relative to its length.
fn missed(basis: &[f64], direction: &[f64]) -> f64 {
    let mut rest = direction.to_vec();
    for row in basis.chunks_exact(direction.len()) {
        let part: f64 = row.iter().zip(direction).map(|(v, s)| v * s).sum();
        rest.iter_mut().zip(row).for_each(|(x, v)| *x -= part * v);
    }
    let length = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>().sqrt();
    length(&rest) / length(direction)
}

#[test]
fn the_appended_basis_reproduces_the_direction() {
    let d = 60;
    for k in [0, 1, 20, 59] {
        let p = orthonormal(d, k, 1);
        let mut rng = Rng(2);
        let random: Vec<f64> = (0..d).map(|_| 1e5 * rng.normal()).collect();
        // Inside the span but for a small part: one orthogonalisation would not be enough.
        let nearly = |part: f64| -> Vec<f64> {
            (0..d)
                .map(|i| (0..k).map(|j| p[(i, j)]).sum::<f64>() + part * random[i] / 1e5)
                .collect()
        };
        for direction in [random.clone(), nearly(1e-4), nearly(1e-9)] {
            let mut basis = rows(&p);
            let (before, appended) = append_direction(&mut basis, &direction, 2.0).unwrap();
            assert!(appended && basis.len() == (k + 1) * d);
            assert_eq!(basis[..k * d], rows(&p));
            assert!(missed(&basis, &direction) < 1e-12);
            let columns = Mat::from_fn(d, k + 1, |i, j| basis[j * d + i]);
            assert!(orthonormality(&columns) < 1e-13);
            let outside = missed(&rows(&p), &direction);
            close(before.norm, (1.0 - outside * outside).sqrt(), 1e-12);
            close(coverage(&basis, &direction).unwrap().norm, 1.0, 1e-12);
        }
    }
}

#[test]
fn a_covered_direction_adds_nothing() {
    let (d, k) = (30, 10);
    let p = orthonormal(d, k, 3);
    let plain = rows(&p);
    let direction: Vec<f64> = (0..d).map(|i| p[(i, 2)] - 3.0 * p[(i, 7)]).collect();
    let inside = coverage(&plain, &direction).unwrap();
    close(inside.norm, 1.0, 1e-14);
    close(inside.largest, 3.0 / 10f64.sqrt(), 1e-14);
    // Covered altogether: whatever the threshold, there is nothing to add.
    for threshold in [0.15, 2.0] {
        let mut basis = plain.clone();
        let found = append_direction(&mut basis, &direction, threshold).unwrap();
        assert_eq!(found, (inside, false));
        assert_eq!(basis, plain);
    }
    let random: Vec<f64> = (0..d).map(|i| f64::from(i as u8)).collect();
    let partly = coverage(&plain, &random).unwrap();
    for (threshold, appends) in [
        (partly.norm * 0.999, false),
        (partly.norm, false),
        (partly.norm * 1.001, true),
    ] {
        let mut basis = plain.clone();
        let found = append_direction(&mut basis, &random, threshold).unwrap();
        assert_eq!(found, (partly, appends));
    }
}

/// The norm belongs to the span, the largest part to the basis.
#[test]
fn coverage_and_rotation() {
    let (d, k) = (30, 10);
    let p = orthonormal(d, k, 5);
    let turned = &p * orthonormal(k, k, 7);
    let direction: Vec<f64> = (0..d).map(|i| (i as f64).sin()).collect();
    let plain = coverage(&rows(&p), &direction).unwrap();
    let other = coverage(&rows(&turned), &direction).unwrap();
    close(other.norm, plain.norm, 1e-14);
    assert!((other.largest - plain.largest).abs() > 1e-3);
    assert!(plain.largest <= plain.norm && other.largest <= other.norm);
    let none = coverage(&[], &direction).unwrap();
    assert_eq!((none.norm, none.largest), (0.0, 0.0));
}

#[test]
fn channels_of_largest_norm() {
    let one = Dense::from_fn(2, 5, |_, j| [1.0, -4.0, 0.0, 1.0, 3.0][j]);
    let other = Dense::from_fn(3, 5, |_, j| [1.0, 0.0, 5.0, 1.0, 0.0][j]);
    let weights = [one.weight(), other.weight()];
    // Energies 5, 32, 75, 5, 18.
    for (count, expected) in [
        (0, &[][..]),
        (1, &[2]),
        (2, &[1, 2]),
        (3, &[1, 2, 4]),
        (4, &[0, 1, 2, 4]),
        (5, &[0, 1, 2, 3, 4]),
    ] {
        assert_eq!(largest_columns(&weights, count).unwrap(), expected);
    }
    assert_eq!(largest_moments(&[1.0, 9.0, 9.0, 0.0], 2), Ok(vec![1, 2]));
    assert!(largest_columns(&weights, 6).is_err());
    assert!(largest_moments(&[1.0], 2).is_err());
    assert!(largest_moments(&[1.0, f64::NAN], 1).is_err());
    assert_eq!(largest_columns(&[], 0), Err(FactoriseError::NoWeights));
}

#[test]
fn refusals() {
    assert_eq!(coverage(&[], &[]), Err(FactoriseError::NoDirection));
    assert_eq!(coverage(&[], &[0.0; 3]), Err(FactoriseError::NoDirection));
    assert!(coverage(&[1.0; 4], &[1.0; 3]).is_err());
    assert!(matches!(
        coverage(&[1.0; 3], &[1.0, f64::INFINITY, 1.0]),
        Err(FactoriseError::VectorEntry { index: 1, .. })
    ));
    let mut basis = vec![1.0, 0.0];
    assert!(append_direction(&mut basis, &[0.0, 0.0], 0.15).is_err());
    assert_eq!(basis, [1.0, 0.0]);
}
