use faer::Mat;

use super::super::decompose::eigen;
use super::super::{
    BasisOptions, BasisWeighting, Diagonal, FactoriseError, Gauge, SharedBasis, Sink, SvdMethod,
    random_coverage, relative_tail, shared_basis, shared_basis_with, shared_error,
};
use super::gauge::{Moment, gauged, gauges};
use super::{
    Dense, close, decreasing, matrix, norm, orthonormal, signs_are_fixed, weighted_relative_error,
};

fn attention(d: usize, seed: u64) -> [Dense; 3] {
    let projection = |m: usize, scale: f64, seed: u64| {
        let spectrum: Vec<f64> = (0..m)
            .map(|i| scale * (-3.0 * i as f64 / m as f64).exp())
            .collect();
        Dense::with_spectrum(m, d, &spectrum, seed)
    };
    [
        projection(d, 5.0, seed),
        projection(d / 4, 3.0, seed + 1),
        projection(d / 4, 0.2, seed + 2),
    ]
}

fn product(found: &SharedBasis, w: &Dense, i: usize, k: usize, shorter: usize) -> Mat<f64> {
    let basis = matrix(&found.basis, k, w.cols);
    matrix(&found.projected[i], w.rows, k).subcols(0, shorter) * basis.subrows(0, shorter)
}

fn find(projections: &[Dense], k: usize, options: &BasisOptions<'_>) -> SharedBasis {
    let weights: Vec<_> = projections.iter().map(Dense::weight).collect();
    shared_basis_with(&weights, k, options).unwrap()
}

fn with_gauge(gauge: &Gauge) -> BasisOptions<'_> {
    BasisOptions {
        gauge,
        ..BasisOptions::default()
    }
}

#[test]
fn one_projection_reaches_the_tail_of_the_gauged_weight() {
    for (m, n) in [(60, 40), (30, 40)] {
        let w = Dense::normal(m, n, 1);
        for (name, gauge, g) in gauges(n) {
            let k = 12;
            let found = find(std::slice::from_ref(&w), k, &with_gauge(&gauge));
            let expected = gauged(&w, k, SvdMethod::Svd, &gauge, None)
                .unwrap()
                .singular_values;
            let lost = norm(&((w.f64() - product(&found, &w, 0, k, k)) * &g));
            close(
                lost / norm(&(w.f64() * &g)),
                relative_tail(&expected, k),
                1e-6,
            );
            let total: f64 = expected.iter().map(|s| s * s).sum();
            for (value, s) in found.eigenvalues.iter().zip(&expected) {
                assert!((value - s * s / total).abs() < 1e-12, "{name}");
            }
            let options = BasisOptions {
                weighting: BasisWeighting::Equal,
                ..with_gauge(&gauge)
            };
            let equal = find(std::slice::from_ref(&w), k, &options);
            for (value, s) in equal.eigenvalues.iter().zip(&expected) {
                assert!((value - s * s).abs() < 1e-12 * total, "{name}");
            }
        }
    }
}

#[test]
fn projections_lose_the_eigenvalues_left_out() {
    let d = 48;
    let projections = attention(d, 11);
    for (name, gauge, g) in gauges(d) {
        let inverse = {
            let mut left = g.clone();
            let mut right = Mat::<f64>::identity(d, d);
            for p in 0..d {
                let pivot = left[(p, p)];
                for j in 0..d {
                    left[(p, j)] /= pivot;
                    right[(p, j)] /= pivot;
                }
                for i in (0..d).filter(|&i| i != p) {
                    let factor = left[(i, p)];
                    for j in 0..d {
                        left[(i, j)] -= factor * left[(p, j)];
                        right[(i, j)] -= factor * right[(p, j)];
                    }
                }
            }
            right
        };
        let lost = |approximation: &dyn Fn(usize) -> Mat<f64>| -> f64 {
            projections
                .iter()
                .enumerate()
                .map(|(i, w)| {
                    let missing = (w.f64() - approximation(i)) * &g;
                    (norm(&missing) / norm(&(w.f64() * &g))).powi(2)
                })
                .sum()
        };
        let k = 20;
        let found = find(&projections, k, &with_gauge(&gauge));
        assert!(decreasing(&found.eigenvalues), "{name}");
        assert!(signs_are_fixed(&found.basis, d), "{name}");
        close(found.eigenvalues.iter().sum(), 3.0, 1e-12);
        for row in found.basis.chunks_exact(d) {
            let length: f64 = row.iter().map(|v| f64::from(v * v)).sum();
            close(length, 1.0, 1e-6);
        }
        for shorter in [1, 7, k] {
            let left: f64 = found.eigenvalues[shorter..].iter().sum();
            let found = lost(&|i| product(&found, &projections[i], i, k, shorter));
            assert!((found - left).abs() < 2e-6, "{name}: {found:e} {left:e}");
        }
        let best: f64 = found.eigenvalues[k..].iter().sum();
        for seed in 0..10 {
            let q = orthonormal(d, k, 900 + seed);
            let other = lost(&|i| projections[i].f64() * &g * &q * q.transpose() * &inverse);
            assert!(other > best, "{name}");
        }
        let all = find(&projections, d, &with_gauge(&gauge));
        for (w, projected) in projections.iter().zip(&all.projected) {
            let lost = shared_error(w.weight(), &all.basis, projected, d);
            assert!(lost < 1e-5, "{name}: {lost:e}");
        }
    }
}

#[test]
fn no_gauge_and_a_gauge_of_ones() {
    let d = 40;
    let projections = attention(d, 21);
    let weights: Vec<_> = projections.iter().map(Dense::weight).collect();
    let plain = shared_basis(&weights, 9, BasisWeighting::Normalised).unwrap();
    assert_eq!(find(&projections, 9, &BasisOptions::default()), plain);
    let ones = Gauge::Diagonal(Diagonal::new(vec![1.0; d]).unwrap());
    let found = find(&projections, 9, &with_gauge(&ones));
    for (found, plain) in found.basis.iter().zip(&plain.basis) {
        close(f64::from(*found), f64::from(*plain), 1e-6);
    }
}

#[test]
fn exempt_columns_are_exact() {
    let d = 32;
    let projections = attention(d, 31);
    let exempt = [0, 5, 31];
    let others: Vec<usize> = (0..d).filter(|c| !exempt.contains(c)).collect();
    let reduced: Vec<Dense> = projections
        .iter()
        .map(|w| {
            Dense::from_fn(w.rows, others.len(), |i, j| {
                f64::from(w.values[i * d + others[j]])
            })
        })
        .collect();
    for (name, gauge, _) in gauges(d) {
        for k in [3, 4, 12, d] {
            let options = BasisOptions {
                exempt: &exempt,
                ..with_gauge(&gauge)
            };
            let found = find(&projections, k, &options);
            assert_eq!(found.basis.len(), k * d);
            for (row, values) in found.basis.chunks_exact(d).enumerate() {
                for (&channel, t) in exempt.iter().zip(0..) {
                    assert_eq!(values[channel], if row == t { 1.0 } else { 0.0 });
                }
                if row < exempt.len() {
                    assert_eq!(values.iter().filter(|v| **v != 0.0).count(), 1);
                }
            }
            let expected = (k > 3).then(|| {
                let restricted = gauge.restrict_to(&others);
                find(&reduced, k - 3, &with_gauge(&restricted))
            });
            for (i, w) in projections.iter().enumerate() {
                for (row, values) in found.projected[i].chunks_exact(k).enumerate() {
                    for (t, &channel) in exempt.iter().enumerate() {
                        assert_eq!(values[t], w.values[row * d + channel]);
                    }
                }
                let approximation = product(&found, w, i, k, k);
                for row in 0..w.rows {
                    for &channel in &exempt {
                        let exact = f64::from(w.values[row * d + channel]);
                        assert_eq!(approximation[(row, channel)], exact);
                    }
                }
                let Some(expected) = &expected else { continue };
                let rest = product(expected, &reduced[i], i, k - 3, k - 3);
                for row in 0..w.rows {
                    for (j, &channel) in others.iter().enumerate() {
                        close(approximation[(row, channel)], rest[(row, j)], 1e-12);
                    }
                }
                if k == d {
                    let lost = shared_error(w.weight(), &found.basis, &found.projected[i], k);
                    assert!(lost < 1e-5, "{name}: {lost:e}");
                }
            }
        }
    }
}

#[test]
fn loss_with_exempt_columns_is_the_tail_of_the_others() {
    let (m, n, k) = (20, 30, 9);
    let w = Dense::normal(m, n, 61);
    let moment = Moment::new(n, 63);
    let c = moment.power(1.0, 0.0);
    let gauge = Gauge::whiten(moment.as_second_moment(), 0.0).unwrap();
    let exempt = [4, 11];
    let part = Mat::from_fn(n, n, |i, j| f64::from(i == j && !exempt.contains(&i)));
    let rest = w.f64() * &part;
    let energies = eigen(&rest * &c * rest.transpose(), 1).unwrap().values;
    let left: f64 = energies[k - exempt.len()..].iter().sum();
    let whole = w.f64() * &c * w.f64().transpose();
    let whole: f64 = (0..m).map(|i| whole[(i, i)]).sum();
    let options = BasisOptions {
        exempt: &exempt,
        ..with_gauge(&gauge)
    };
    let found = find(std::slice::from_ref(&w), k, &options);
    let lost = weighted_relative_error(
        w.weight(),
        &found.basis,
        &found.projected[0],
        k,
        moment.as_second_moment(),
    );
    close(lost, (left / whole).sqrt(), 1e-6);
}

#[test]
fn the_sink_direction_is_exact() {
    let d = 40;
    let projections = attention(d, 41).map(|w| {
        Dense::from_fn(w.rows, d, |i, j| {
            let value = f64::from(w.values[i * d + j]);
            if j < 30 { value } else { 1e-3 * value }
        })
    });
    let direction: Vec<f64> = (0..d).map(|j| if j < 30 { 0.01 } else { 3.0 }).collect();
    let sink = Sink {
        direction: &direction,
        threshold: random_coverage(10, d),
    };
    let at_direction = |w: &Mat<f64>| -> Vec<f64> {
        (0..w.nrows())
            .map(|i| (0..d).map(|j| w[(i, j)] * direction[j]).sum())
            .collect()
    };
    for (name, gauge, g) in gauges(d) {
        for exempt in [&[][..], &[2, 35][..]] {
            let k = 10;
            let options = |sink| BasisOptions {
                sink,
                exempt,
                ..with_gauge(&gauge)
            };
            let plain = find(&projections, k, &options(None));
            let missed_at = |found: &SharedBasis, shorter: usize| {
                let (mut missed, mut whole) = (0.0f64, 0.0f64);
                for (i, w) in projections.iter().enumerate() {
                    let exact = at_direction(&w.f64());
                    let stored = at_direction(&product(found, w, i, k, shorter));
                    for (x, y) in exact.iter().zip(&stored) {
                        missed += (x - y) * (x - y);
                        whole += x * x;
                    }
                }
                (missed / whole).sqrt()
            };
            let missed = |found: &SharedBasis| missed_at(found, k);
            let always = Sink {
                threshold: f64::INFINITY,
                ..sink
            };
            let found = find(&projections, k, &options(Some(always)));
            let outcome = found.sink.unwrap();
            assert!(outcome.appended);
            assert!(missed(&found) < 1e-5, "{name}: {:e}", missed(&found));
            assert!(missed(&plain) > 1e-3, "{name}: {:e}", missed(&plain));
            for shorter in exempt.len() + 1..k {
                let missed = missed_at(&found, shorter);
                assert!(missed < 1e-4, "{name}, {shorter}: {missed:e}");
            }
            let fewer = find(&projections, k - 1, &options(None));
            let lost = |found: &SharedBasis, k: usize| -> f64 {
                let parts = projections.iter().enumerate().map(|(i, w)| {
                    let missing = (w.f64() - product(found, w, i, k, k)) * &g;
                    (norm(&missing) / norm(&(w.f64() * &g))).powi(2)
                });
                parts.sum()
            };
            let (with, without) = (lost(&found, k), lost(&fewer, k - 1));
            assert!(
                !exempt.is_empty() || with < without * (1.0 + 1e-5),
                "{name}"
            );

            let usual = find(&projections, k, &options(Some(sink)));
            let outcome = usual.sink.unwrap();
            assert_eq!(outcome.appended, outcome.coverage.norm < sink.threshold);
            if outcome.appended {
                assert_eq!(usual, found);
            } else {
                assert_eq!(usual.basis, plain.basis);
                assert_eq!(usual.projected, plain.projected);
            }
            if name == "none" {
                assert!(outcome.appended && outcome.coverage.norm < 0.05);
            }
        }
    }
    let mut along = vec![0.0; d];
    along[35] = 2.0;
    let options = BasisOptions {
        exempt: &[35],
        sink: Some(Sink {
            direction: &along,
            threshold: 1.0,
        }),
        ..BasisOptions::default()
    };
    assert_eq!(find(&projections, 10, &options).sink, None);
}

#[test]
fn refusals() {
    let w = Dense::normal(4, 6, 51);
    let find =
        |k, options: BasisOptions<'_>| shared_basis_with(&[w.weight()], k, &options).unwrap_err();
    for exempt in [&[1, 1][..], &[3, 2], &[6]] {
        let options = BasisOptions {
            exempt,
            ..BasisOptions::default()
        };
        let refused = find(4, options);
        assert!(matches!(
            refused,
            FactoriseError::ExemptChannel { inputs: 6, .. }
        ));
    }
    let options = BasisOptions {
        exempt: &[1, 2, 3],
        ..BasisOptions::default()
    };
    assert_eq!(
        find(2, options),
        FactoriseError::Rank {
            requested: 3,
            largest: 2
        }
    );
    for (direction, expected) in [
        (
            &[1.0; 5][..],
            FactoriseError::VectorLength {
                expected: 6,
                found: 5,
            },
        ),
        (&[0.0; 6][..], FactoriseError::NoDirection),
    ] {
        let options = BasisOptions {
            sink: Some(Sink {
                direction,
                threshold: 0.1,
            }),
            ..BasisOptions::default()
        };
        assert_eq!(find(2, options), expected);
    }
    let gauge = Gauge::activation(&[1.0; 5], 1.0).unwrap();
    assert_eq!(
        find(2, with_gauge(&gauge)),
        FactoriseError::GaugeOrder {
            expected: 6,
            found: 5
        }
    );
}
