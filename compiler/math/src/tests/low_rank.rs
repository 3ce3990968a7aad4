use faer::Mat;
use htc_formats::block::{decode, encode};
use htc_formats::dtype::DType;

use super::super::{
    FactoriseError, Host, LowRank, SvdMethod, Weight, low_rank, low_rank_error, relative_tail,
    singular_values,
};
use super::{Dense, close, decreasing, matrix, norm, orthonormal, orthonormality, signs_are_fixed};

const PATHS: [SvdMethod; 2] = [SvdMethod::Svd, SvdMethod::Gram];

fn product(found: &LowRank, w: &Dense, r: usize) -> Mat<f64> {
    matrix(&found.b, w.rows, r) * matrix(&found.a, r, w.cols)
}

fn error(found: &LowRank, w: &Dense, r: usize) -> f64 {
    low_rank_error(w.weight(), &found.a, &found.b, r)
}

fn geometric(q: usize, condition: f64) -> Vec<f64> {
    (0..q)
        .map(|i| condition.powf(-(i as f64) / (q - 1).max(1) as f64))
        .collect()
}

fn factor_difference(one: &LowRank, other: &LowRank, w: &Dense, r: usize) -> f64 {
    let mut worst = 0.0f64;
    for j in 0..r {
        let a = |f: &LowRank| f.a[j * w.cols..(j + 1) * w.cols].to_vec();
        let b = |f: &LowRank| f.b.iter().skip(j).step_by(r).copied().collect::<Vec<_>>();
        for (x, y) in [(a(one), a(other)), (b(one), b(other))] {
            let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            for (x, y) in x.iter().zip(&y) {
                worst = worst.max(f64::from((x - y).abs() / largest));
            }
        }
    }
    worst
}

#[test]
fn diagonal_weight() {
    for path in PATHS {
        for (rows, cols) in [(3, 3), (5, 3), (3, 5)] {
            let w = Dense::from_fn(
                rows,
                cols,
                |i, j| if i == j { [16.0, 1.0, -81.0][i] } else { 0.0 },
            );
            let found = low_rank(w.weight(), 2, path).unwrap();
            for (value, expected) in found.singular_values.iter().zip([81.0, 16.0, 1.0]) {
                close(*value, expected, 1e-12);
            }
            // A = S^¾ Vᵀ, B = U S^¼: 81 = 27 · 3, 16 = 8 · 2; the sign goes to B.
            let mut a = vec![0.0; 2 * cols];
            (a[2], a[cols]) = (27.0, 8.0);
            let mut b = vec![0.0; 2 * rows];
            (b[2 * 2], b[1]) = (-3.0, 2.0);
            for (found, expected) in [(&found.a, &a), (&found.b, &b)] {
                for (x, y) in found.iter().zip(expected) {
                    close(f64::from(*x), *y, 1e-5);
                }
            }
        }
    }
}

#[test]
fn rank_one_weight() {
    let (m, n) = (37, 53);
    let w = Dense::from_fn(m, n, |i, j| {
        f64::from((i % 5) as u8) * (f64::from((j % 7) as u8) - 2.0)
    });
    for w in [w.transpose(), w] {
        for path in PATHS {
            let found = low_rank(w.weight(), 1, path).unwrap();
            close(found.singular_values[0], norm(&w.f64()), 1e-10);
            assert!(
                found.singular_values[1..]
                    .iter()
                    .all(|s| *s < 1e-6 * found.singular_values[0])
            );
            assert!(error(&found, &w, 1) < 1e-7);
            let found = low_rank(w.weight(), 20, path).unwrap();
            assert!(error(&found, &w, 20) < 1e-7);
        }
    }
}

#[test]
fn orthogonal_weight_has_equal_singular_values() {
    for (m, n) in [(20, 20), (150, 150), (220, 150), (150, 400)] {
        let q = m.min(n);
        let w = Dense::with_spectrum(m, n, &vec![1.0; q], 3);
        for path in PATHS {
            for r in [1, q / 3, q] {
                let found = low_rank(w.weight(), r, path).unwrap();
                assert!(found.singular_values.iter().all(|s| (s - 1.0).abs() < 1e-6));
                close(
                    error(&found, &w, r),
                    (1.0 - r as f64 / q as f64).sqrt(),
                    1e-6,
                );
            }
        }
    }
}

#[test]
fn known_spectrum() {
    for (m, n) in [
        (30, 30),
        (160, 160),
        (140, 180),
        (180, 140),
        (300, 70),
        (70, 300),
        (1100, 40),
        (40, 1100),
    ] {
        let q = m.min(n);
        let spectrum = geometric(q, 1e3);
        let w = Dense::with_spectrum(m, n, &spectrum, 17);
        for path in PATHS {
            let r = 3 * q / 4;
            let found = low_rank(w.weight(), r, path).unwrap();
            assert!(decreasing(&found.singular_values));
            for (value, expected) in found.singular_values.iter().zip(&spectrum) {
                close(*value, *expected, 1e-6);
            }
            close(
                error(&found, &w, r),
                relative_tail(&found.singular_values, r),
                3e-7,
            );
            assert!(signs_are_fixed(&found.a, n));

            let (a, b) = (matrix(&found.a, r, n), matrix(&found.b, m, r));
            let unit = |s: f64, power: f64| s.powf(-power);
            let v = Mat::from_fn(n, r, |i, j| {
                a[(j, i)] * unit(found.singular_values[j], 0.75)
            });
            let u = Mat::from_fn(m, r, |i, j| {
                b[(i, j)] * unit(found.singular_values[j], 0.25)
            });
            assert!(orthonormality(&u) < 1e-6 && orthonormality(&v) < 1e-6);

            for shorter in [1, r / 3, r - 1] {
                let first = LowRank {
                    a: found.a[..shorter * n].to_vec(),
                    b: found
                        .b
                        .chunks_exact(r)
                        .flat_map(|row| row[..shorter].to_vec())
                        .collect(),
                    singular_values: Vec::new(),
                    sink: None,
                };
                close(
                    error(&first, &w, shorter),
                    relative_tail(&found.singular_values, shorter),
                    3e-7,
                );
            }
        }
    }
}

#[test]
fn no_other_subspace_does_better() {
    let w = Dense::with_spectrum(40, 30, &geometric(30, 10.0), 23);
    let found = low_rank(w.weight(), 8, SvdMethod::Auto).unwrap();
    let best = error(&found, &w, 8);
    let dense = w.f64();
    for seed in 0..20 {
        let q = orthonormal(30, 8, 500 + seed);
        assert!(norm(&(&dense - &dense * &q * q.transpose())) / norm(&dense) > best);
    }
}

#[test]
fn paths_agree_to_rounding_when_well_conditioned() {
    for (m, n) in [(96, 96), (200, 150), (150, 400), (600, 64)] {
        let q = m.min(n);
        let w = Dense::with_spectrum(m, n, &geometric(q, 100.0), 29);
        let r = q / 2;
        let [svd, gram] = PATHS.map(|path| low_rank(w.weight(), r, path).unwrap());
        for (s, g) in svd.singular_values.iter().zip(&gram.singular_values) {
            close(*g, *s, 1e-12);
        }
        let difference = factor_difference(&svd, &gram, &w, r);
        assert!(difference < 2e-7, "{m} x {n}: {difference:e}");
    }
}

#[test]
fn paths_agree_within_the_bound_when_ill_conditioned() {
    let bound = 1e-7;
    for (m, n) in [(100, 100), (240, 160), (160, 500)] {
        let q = m.min(n);
        let mut deficient = geometric(q, 10.0);
        deficient[q / 2..].fill(0.0);
        let mut clustered = vec![1.0; q];
        clustered[q / 2..].fill(1e-9);
        for spectrum in [geometric(q, 1e12), deficient, clustered] {
            let w = Dense::with_spectrum(m, n, &spectrum, 31);
            for r in [q / 2, 3 * q / 4, q] {
                let [svd, gram] = PATHS.map(|path| low_rank(w.weight(), r, path).unwrap());
                let difference =
                    norm(&(product(&svd, &w, r) - product(&gram, &w, r))) / norm(&w.f64());
                assert!(difference < bound, "{m} x {n}, r = {r}: {difference:e}");
                for found in [&svd, &gram] {
                    close(
                        error(found, &w, r),
                        relative_tail(&svd.singular_values, r),
                        bound,
                    );
                    assert!(decreasing(&found.singular_values));
                }
                for (s, g) in svd.singular_values.iter().zip(&gram.singular_values) {
                    close(*g, *s, 2e-7 * svd.singular_values[0]);
                }
            }
        }
    }
}

#[test]
fn auto_takes_the_gram_path_for_large_orders_only() {
    for (m, n, path) in [
        (40, 90, SvdMethod::Svd),
        (64, 80, SvdMethod::Gram),
        (150, 70, SvdMethod::Gram),
    ] {
        let w = Dense::normal(m, n, 37);
        assert_eq!(
            low_rank(w.weight(), 9, SvdMethod::Auto),
            low_rank(w.weight(), 9, path)
        );
    }
}

#[test]
fn extreme_shapes() {
    for path in PATHS {
        for (m, n) in [(1, 1), (1, 9), (9, 1), (1, 1000), (1000, 1), (2, 2), (3, 2)] {
            let w = Dense::normal(m, n, 41);
            let q = m.min(n);
            let found = low_rank(w.weight(), q, path).unwrap();
            assert_eq!((found.a.len(), found.b.len()), (q * n, m * q));
            assert_eq!(found.singular_values.len(), q);
            assert!(error(&found, &w, q) < 1e-6);
            if q == 1 {
                close(
                    found.singular_values[0],
                    norm(&w.f64()),
                    1e-12 * norm(&w.f64()),
                );
            }
        }
        for (m, n) in [(170, 170), (170, 60), (60, 170)] {
            let w = Dense::normal(m, n, 43);
            let q = m.min(n);
            assert!(error(&low_rank(w.weight(), q, path).unwrap(), &w, q) < 1e-6);
        }
    }
}

#[test]
fn zero_weight() {
    for path in PATHS {
        for (m, n) in [(1, 1), (4, 7), (200, 150), (150, 400)] {
            let w = Dense::from_fn(m, n, |_, _| 0.0);
            let r = m.min(n);
            let found = low_rank(w.weight(), r, path).unwrap();
            assert_eq!(found.singular_values, vec![0.0; r]);
            assert!(found.a.iter().chain(&found.b).all(|v| *v == 0.0));
            assert_eq!(error(&found, &w, r), 0.0);
        }
    }
}

#[test]
fn huge_and_small_scales() {
    for (m, n) in [(90, 70), (70, 300), (150, 140)] {
        let w = Dense::with_spectrum(m, n, &geometric(m.min(n), 100.0), 47);
        let largest = w.values.iter().fold(0.0f32, |x, v| x.max(v.abs()));
        let to_the_edge = 0.9 * f64::from(f32::MAX) / f64::from(largest);
        for scale in [1e-30, 1e30, to_the_edge] {
            let scaled = w.scaled(scale);
            for path in PATHS {
                let r = 20;
                let found = low_rank(scaled.weight(), r, path).unwrap();
                let plain = low_rank(w.weight(), r, path).unwrap();
                for (s, p) in found.singular_values.iter().zip(&plain.singular_values) {
                    close(*s / scale, *p, 1e-6);
                }
                close(error(&found, &scaled, r), error(&plain, &w, r), 1e-6);
            }
        }
    }
}

#[test]
fn singular_values_scale_with_the_weight() {
    for (m, n) in [(40, 30), (150, 140), (140, 400)] {
        let w = Dense::normal(m, n, 67);
        for path in PATHS {
            let plain = low_rank(w.weight(), 20, path).unwrap();
            for power in [-90, 90] {
                let factor = 2f64.powi(power);
                let scaled = low_rank(w.scaled(factor).weight(), 20, path).unwrap();
                for (s, p) in scaled.singular_values.iter().zip(&plain.singular_values) {
                    assert_eq!(*s, p * factor);
                }
            }
        }
    }
}

#[test]
fn split_is_the_best_of_those_measured_under_q8_0() {
    let q8_0 = |values: &[f32]| {
        let mut bytes = vec![0; DType::Q8_0.row_bytes(values.len()).unwrap()];
        encode(DType::Q8_0, values, &mut bytes).unwrap();
        let mut out = vec![0.0; values.len()];
        decode(DType::Q8_0, &bytes, &mut out).unwrap();
        out
    };
    for (m, n) in [(256, 256), (512, 128), (128, 512)] {
        let spectrum: Vec<f64> = (0..m.min(n)).map(|i| 1.0 / (1.0 + i as f64)).collect();
        let w = Dense::with_spectrum(m, n, &spectrum, 53);
        let r = 64;
        let found = low_rank(w.weight(), r, SvdMethod::Auto).unwrap();
        let total = |t: f64| {
            let power = |j: usize| found.singular_values[j].powf(t - 0.25);
            let b: Vec<f32> = (0..m * r)
                .map(|i| (f64::from(found.b[i]) * power(i % r)) as f32)
                .collect();
            let a: Vec<f32> = (0..r * n)
                .map(|i| (f64::from(found.a[i]) / power(i / n)) as f32)
                .collect();
            low_rank_error(w.weight(), &q8_0(&a), &q8_0(&b), r)
        };
        for other in [0.0, 0.5, 0.75, 1.0] {
            assert!(total(0.25) < total(other), "{m} x {n}, t = {other}");
        }
    }
}

#[test]
fn refusals_name_the_largest_rank() {
    let w = Dense::normal(4, 6, 1);
    for r in [0, 5, usize::MAX] {
        let refused = low_rank(w.weight(), r, SvdMethod::Auto).unwrap_err();
        assert_eq!(
            refused,
            FactoriseError::Rank {
                requested: r,
                largest: 4
            }
        );
        assert!(refused.to_string().contains("1 to 4"));
    }
    let mut broken = Dense::normal(4, 6, 1);
    broken.values[7] = f32::NAN;
    assert!(matches!(
        low_rank(broken.weight(), 1, SvdMethod::Svd),
        Err(FactoriseError::NonFinite {
            index: 0,
            row: 1,
            col: 1,
            ..
        })
    ));
    let short = Weight {
        rows: 4,
        cols: 7,
        values: &w.values,
    };
    assert!(matches!(
        low_rank(short, 1, SvdMethod::Gram),
        Err(FactoriseError::WeightLength { .. })
    ));
}

#[test]
fn two_calls_and_two_threads_give_the_same_bytes() {
    for (m, n) in [(200, 200), (300, 130), (130, 300)] {
        let w = Dense::normal(m, n, 59);
        for path in PATHS {
            let run = || low_rank(w.weight(), 60, path).unwrap();
            let first = run();
            assert_eq!(first, run());
            let mut moved = vec![0.0; 3];
            moved.extend(&w.values);
            let moved = Weight {
                rows: m,
                cols: n,
                values: &moved[3..],
            };
            assert_eq!(first, low_rank(moved, 60, path).unwrap());
            std::thread::scope(|scope| {
                for thread in [scope.spawn(run), scope.spawn(run)] {
                    assert_eq!(first, thread.join().unwrap());
                }
            });
        }
    }
}

#[test]
fn singular_values_equal_those_of_the_factorisation() {
    for (rows, cols) in [(1, 1), (1, 9), (40, 90), (130, 70), (80, 80)] {
        let w = Dense::normal(rows, cols, 61);
        let found = singular_values(w.weight(), &Host).unwrap();
        for path in PATHS {
            let expected = low_rank(w.weight(), 1, path).unwrap().singular_values;
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                close(
                    found * found,
                    expected * expected,
                    1e-12 * w.f64().squared_norm_l2(),
                );
            }
        }
    }
    let spoilt = Weight {
        rows: 1,
        cols: 1,
        values: &[f32::NAN],
    };
    assert!(matches!(
        singular_values(spoilt, &Host),
        Err(FactoriseError::NonFinite { .. })
    ));
}
