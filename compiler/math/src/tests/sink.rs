use faer::Mat;

use super::super::decompose::right_singular;
use super::super::{
    Diagonal, FactoriseError, Host, LowRank, LowRankOptions, Sink, SvdMethod, append_direction,
    coverage, largest_columns, largest_moments, low_rank_with, random_coverage,
};
use super::gauge::{diagonal, gauges, spread};
use super::{Dense, Rng, close, matrix, norm, orthonormal, orthonormality, signs_are_fixed};

fn rows(p: &Mat<f64>) -> Vec<f64> {
    p.col_iter()
        .flat_map(|c| c.iter().copied().collect::<Vec<_>>())
        .collect()
}

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
fn random_bases_reach_the_random_coverage() {
    let d = 24;
    let direction: Vec<f64> = (0..d).map(|i| 1.0 + (i as f64).cos()).collect();
    for k in [1, 6, 20] {
        let bases = 400;
        let squares = (0..bases).map(|seed| {
            let p = orthonormal(d, k, 1000 + seed);
            coverage(&rows(&p), &direction).unwrap().norm.powi(2)
        });
        let mean = squares.sum::<f64>() / bases as f64;
        close(mean.sqrt(), random_coverage(k, d), 0.03);
    }
    assert_eq!(
        [0, 9, 36, 40].map(|k| random_coverage(k, 36)),
        [0.0, 0.5, 1.0, 1.0]
    );
}

fn blind(m: usize, n: usize) -> (Dense, Vec<f64>) {
    let mut rng = Rng(11);
    let last = |j: usize| 4 * j >= 3 * n;
    let w = Dense::from_fn(m, n, |_, j| rng.normal() * if last(j) { 1e-3 } else { 1.0 });
    let direction = (0..n)
        .map(|j| if last(j) { 30.0 + rng.normal() } else { 0.1 })
        .collect();
    (w, direction)
}

#[test]
fn low_rank_factors_keep_the_direction() {
    for (m, n) in [(40, 30), (30, 40), (70, 70)] {
        let (w, direction) = blind(m, n);
        let column = Mat::from_fn(n, 1, |i, _| direction[i]);
        let h = spread(m, 13);
        let output = Diagonal::new(h.clone()).unwrap();
        for (name, gauge, g) in gauges(n) {
            for (output, h) in [(None, Mat::identity(m, m)), (Some(&output), diagonal(&h))] {
                let gauged = &h * w.f64() * &g;
                let inverse = gauge.apply_inverse(column.clone(), &Host).unwrap();
                for (path, r) in [
                    (SvdMethod::Svd, 9),
                    (SvdMethod::Gram, 9),
                    (SvdMethod::Svd, 1),
                ] {
                    let label = format!("{name}, {m} x {n}, {path:?}, r = {r}");
                    let find = |threshold: Option<f64>| {
                        let options = LowRankOptions {
                            method: path,
                            input: &gauge,
                            output,
                            exempt: &[],
                            sink: threshold.map(|threshold| Sink {
                                direction: &direction,
                                threshold,
                            }),
                            algebra: &Host,
                        };
                        low_rank_with(w.weight(), r, &options).unwrap()
                    };
                    let missed = |f: &LowRank| {
                        let exact = w.f64() * &column;
                        let found = matrix(&f.b, m, r) * (matrix(&f.a, r, n) * &column);
                        norm(&(&exact - found)) / norm(&exact)
                    };
                    let plain = find(None);
                    let kept = find(Some(2.0));
                    let outcome = kept.sink.unwrap();
                    assert!(outcome.appended, "{label}");
                    assert!(missed(&kept) < 1e-5, "{label}: {:e}", missed(&kept));
                    assert!(missed(&plain) > 1e-2, "{label}: {:e}", missed(&plain));
                    assert!(signs_are_fixed(&kept.a, n), "{label}");
                    assert_eq!(kept.singular_values, plain.singular_values);
                    let along = &h * w.f64() * &column;
                    best_with_the_direction(&kept, &gauged, &h, &g, &column, &along, r);

                    let v = right_vectors(&gauged, r);
                    let expected = norm(&(v.transpose() * &inverse)) / norm(&inverse);
                    close(outcome.coverage.norm, expected, 1e-5);

                    let threshold = random_coverage(r, n);
                    let usual = find(Some(threshold));
                    let outcome = usual.sink.unwrap();
                    assert_eq!(outcome.appended, expected < threshold, "{label}");
                    assert_eq!(usual.a, if outcome.appended { kept.a } else { plain.a });
                    assert!(name != "none" || output.is_some() || outcome.appended);
                }
            }
        }
    }
}

fn right_vectors(matrix: &Mat<f64>, r: usize) -> Mat<f64> {
    if matrix.nrows() >= matrix.ncols() {
        return right_singular(matrix.clone(), r).unwrap().vectors;
    }
    let left = right_singular(matrix.transpose().to_owned(), r).unwrap();
    let product = matrix.transpose() * left.vectors;
    Mat::from_fn(matrix.ncols(), r, |i, j| product[(i, j)] / left.values[j])
}

fn best_with_the_direction(
    kept: &LowRank,
    gauged: &Mat<f64>,
    h: &Mat<f64>,
    g: &Mat<f64>,
    column: &Mat<f64>,
    along: &Mat<f64>,
    r: usize,
) {
    let (m, n) = gauged.shape();
    let (b, a) = (matrix(&kept.b, m, r), matrix(&kept.a, r, n));
    let u = along * (1.0 / norm(along));
    let deflated = gauged - &u * (u.transpose() * gauged);
    let tall = if m < n {
        deflated.transpose().to_owned()
    } else {
        deflated
    };
    let values = right_singular(tall, 1).unwrap().values;
    for shorter in [1, r.div_ceil(2), r] {
        let first = b.subcols(0, shorter) * a.subrows(0, shorter);
        let missed = along - h * &first * column;
        assert!(norm(&missed) < 1e-4 * norm(along), "{:e}", norm(&missed));
        let lost = norm(&(gauged - h * first * g));
        let left: f64 = values[shorter - 1..].iter().map(|s| s * s).sum();
        close(lost, left.sqrt(), 1e-5 * norm(gauged));
    }
}

#[test]
fn a_direction_that_is_not_missed_costs_nothing() {
    let w = Dense::normal(6, 4, 17);
    let options = LowRankOptions {
        sink: Some(Sink {
            direction: &[1.0; 4],
            threshold: 2.0,
        }),
        ..LowRankOptions::default()
    };
    let found = low_rank_with(w.weight(), 4, &options).unwrap();
    close(found.sink.unwrap().coverage.norm, 1.0, 1e-6);
    let zero = Dense::from_fn(6, 4, |_, _| 0.0);
    let found = low_rank_with(zero.weight(), 2, &options).unwrap();
    assert!(!found.sink.unwrap().appended);
    assert!(found.a.iter().chain(&found.b).all(|v| *v == 0.0));
}

#[test]
fn channels_of_largest_norm() {
    let one = Dense::from_fn(2, 5, |_, j| [1.0, -4.0, 0.0, 1.0, 3.0][j]);
    let other = Dense::from_fn(3, 5, |_, j| [1.0, 0.0, 5.0, 1.0, 0.0][j]);
    let weights = [one.weight(), other.weight()];
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
