use faer::Mat;

use super::super::decompose::right_singular;
use super::super::{
    DEFAULT_SHRINKAGE, Diagonal, FactoriseError, Gauge, Host, LowRank, LowRankOptions,
    SecondMoment, SvdMethod, low_rank, low_rank_error, low_rank_with, relative_tail,
};
use super::{
    Dense, Rng, close, decreasing, matrix, norm, orthonormal, signs_are_fixed,
    weighted_relative_error,
};

const PATHS: [SvdMethod; 2] = [SvdMethod::Svd, SvdMethod::Gram];

const SHAPES: [(usize, usize); 6] = [(24, 24), (40, 30), (30, 40), (90, 70), (70, 90), (20, 600)];

/// NaN in the upper triangle, which must not be read.
pub(super) struct Moment {
    turn: Mat<f64>,
    eigenvalues: Vec<f64>,
    pub values: Vec<f64>,
}

impl Moment {
    pub fn with_eigenvalues(eigenvalues: Vec<f64>, seed: u64) -> Self {
        let n = eigenvalues.len();
        let turn = orthonormal(n, n, seed);
        let mut moment = Moment {
            turn,
            eigenvalues,
            values: vec![f64::NAN; n * n],
        };
        let c = moment.power(1.0, 0.0);
        for i in 0..n {
            for j in 0..=i {
                moment.values[i * n + j] = c[(i, j)];
            }
        }
        moment
    }

    pub fn new(n: usize, seed: u64) -> Self {
        let mut eigenvalues: Vec<f64> = (0..n)
            .map(|i| 10f64.powf(-3.0 * i as f64 / n as f64))
            .collect();
        eigenvalues[0] = 50.0;
        Moment::with_eigenvalues(eigenvalues, seed)
    }

    pub fn as_second_moment(&self) -> SecondMoment<'_> {
        SecondMoment {
            order: self.eigenvalues.len(),
            values: &self.values,
        }
    }

    pub fn diagonal(&self) -> Vec<f64> {
        let n = self.eigenvalues.len();
        (0..n).map(|i| self.values[i * n + i]).collect()
    }

    /// `((1 − s) C + s tr(C)/n I)^exponent`.
    pub fn power(&self, exponent: f64, s: f64) -> Mat<f64> {
        let n = self.eigenvalues.len();
        let mean = self.eigenvalues.iter().sum::<f64>() / n as f64;
        let scaled = Mat::from_fn(n, n, |i, j| {
            let value = (1.0 - s) * self.eigenvalues[j] + s * mean;
            self.turn[(i, j)] * value.powf(exponent)
        });
        scaled * self.turn.transpose()
    }
}

pub(super) fn diagonal(entries: &[f64]) -> Mat<f64> {
    let n = entries.len();
    Mat::from_fn(n, n, |i, j| if i == j { entries[i] } else { 0.0 })
}

pub(super) fn spread(n: usize, seed: u64) -> Vec<f64> {
    let mut rng = Rng(seed);
    (0..n).map(|_| (1.2 * rng.normal()).exp()).collect()
}

pub(super) fn gauges(n: usize) -> Vec<(&'static str, Gauge, Mat<f64>)> {
    let moment = Moment::new(n, 77);
    let shrunk = moment.power(0.5, DEFAULT_SHRINKAGE);
    let root = |exponent: f64| {
        let entries: Vec<f64> = moment
            .diagonal()
            .iter()
            .map(|c| c.powf(exponent / 2.0))
            .collect();
        diagonal(&entries)
    };
    let entries = spread(n, 5);
    vec![
        ("none", Gauge::None, Mat::identity(n, n)),
        (
            "diagonal",
            Gauge::Diagonal(Diagonal::new(entries.clone()).unwrap()),
            diagonal(&entries),
        ),
        (
            "activation",
            Gauge::activation(&moment.diagonal(), 1.0).unwrap(),
            root(1.0),
        ),
        (
            "half activation",
            Gauge::activation(&moment.diagonal(), 0.5).unwrap(),
            root(0.5),
        ),
        (
            "whiten",
            Gauge::whiten(moment.as_second_moment(), DEFAULT_SHRINKAGE).unwrap(),
            shrunk,
        ),
        (
            "whiten without shrinkage",
            Gauge::whiten(moment.as_second_moment(), 0.0).unwrap(),
            moment.power(0.5, 0.0),
        ),
    ]
}

pub(super) fn singular_values(matrix: &Mat<f64>) -> Vec<f64> {
    let tall = if matrix.nrows() < matrix.ncols() {
        matrix.transpose().to_owned()
    } else {
        matrix.clone()
    };
    right_singular(tall, 1).unwrap().values
}

fn decaying(m: usize, n: usize, seed: u64) -> Dense {
    let q = m.min(n);
    let spectrum: Vec<f64> = (0..q).map(|i| (-4.0 * i as f64 / q as f64).exp()).collect();
    Dense::with_spectrum(m, n, &spectrum, seed)
}

pub(super) fn gauged(
    w: &Dense,
    r: usize,
    path: SvdMethod,
    input: &Gauge,
    output: Option<&Diagonal>,
) -> Result<LowRank, FactoriseError> {
    let options = LowRankOptions {
        method: path,
        input,
        output,
        exempt: &[],
        sink: None,
        algebra: &Host,
    };
    low_rank_with(w.weight(), r, &options)
}

fn product(found: &LowRank, w: &Dense, r: usize, shorter: usize) -> Mat<f64> {
    let (b, a) = (matrix(&found.b, w.rows, r), matrix(&found.a, r, w.cols));
    b.subcols(0, shorter) * a.subrows(0, shorter)
}

#[test]
fn gauged_truncation_reaches_the_tail_of_the_gauged_weight() {
    for (m, n) in SHAPES {
        let w = decaying(m, n, 3);
        let q = m.min(n);
        let h = spread(m, 9);
        let output = Diagonal::new(h.clone()).unwrap();
        for (name, gauge, g) in gauges(n) {
            for (output, h) in [(None, Mat::identity(m, m)), (Some(&output), diagonal(&h))] {
                let dense = &h * w.f64() * &g;
                let expected = singular_values(&dense);
                let total = norm(&dense);
                for path in PATHS {
                    let label = format!("{name}, {m} x {n}, {path:?}, H {}", output.is_some());
                    let r = 3 * q / 4;
                    let found = gauged(&w, r, path, &gauge, output).unwrap();
                    assert!(decreasing(&found.singular_values), "{label}");
                    assert!(signs_are_fixed(&found.a, n), "{label}");
                    for (s, e) in found.singular_values.iter().zip(&expected) {
                        assert!((s - e).abs() < 1e-7 * expected[0], "{label}: {s} {e}");
                    }
                    for shorter in [1, q / 3, r] {
                        let missing = w.f64() - product(&found, &w, r, shorter);
                        let lost = norm(&(&h * missing * &g)) / total;
                        let bound = relative_tail(&expected, shorter);
                        assert!(
                            (lost - bound).abs() < 1e-6,
                            "{label}, rank {shorter}: {lost:e} {bound:e}"
                        );
                    }
                    let all = gauged(&w, q, path, &gauge, output).unwrap();
                    let lost = low_rank_error(w.weight(), &all.a, &all.b, q);
                    assert!(lost < 2e-6, "{label}: {lost:e}");
                }
            }
        }
    }
}

#[test]
fn whitened_truncation_is_the_best_for_the_outputs() {
    for (m, n) in [(30, 20), (20, 30), (80, 70), (70, 80)] {
        let w = decaying(m, n, 13);
        let moment = Moment::new(n, 17);
        let gauge = Gauge::whiten(moment.as_second_moment(), 0.0).unwrap();
        let r = m.min(n) / 3;
        let expected = singular_values(&(w.f64() * moment.power(0.5, 0.0)));
        let loss = |b: &Mat<f64>, a: &Mat<f64>| {
            let e = w.f64() - b * a;
            let trace = |x: &Mat<f64>| {
                let y = x * moment.power(1.0, 0.0) * x.transpose();
                (0..m).map(|i| y[(i, i)]).sum::<f64>()
            };
            (trace(&e) / trace(&w.f64())).sqrt()
        };
        for path in PATHS {
            let found = gauged(&w, r, path, &gauge, None).unwrap();
            let (b, a) = (matrix(&found.b, m, r), matrix(&found.a, r, n));
            let best = loss(&b, &a);
            close(best, relative_tail(&expected, r), 1e-7);
            close(
                weighted_relative_error(
                    w.weight(),
                    &found.a,
                    &found.b,
                    r,
                    moment.as_second_moment(),
                ),
                best,
                1e-12,
            );
            let best = best - 1e-7;
            for seed in 0..20 {
                let noise = |rows: usize, cols: usize, like: &Mat<f64>, part: f64| {
                    let x = Dense::normal(rows, cols, 100 + seed).f64();
                    let scale = part * norm(like) / norm(&x);
                    Mat::from_fn(rows, cols, |i, j| like[(i, j)] + scale * x[(i, j)])
                };
                for part in [1e-3, 1e-1, 1.0] {
                    assert!(loss(&noise(m, r, &b, part), &a) > best);
                    assert!(loss(&b, &noise(r, n, &a, part)) > best);
                }
                let right = orthonormal(n, r, 300 + seed);
                assert!(loss(&(w.f64() * &right), &right.transpose().to_owned()) > best);
                let left = orthonormal(m, r, 400 + seed);
                assert!(loss(&left, &(left.transpose() * w.f64())) > best);
            }
            let others = [
                Gauge::None,
                Gauge::activation(&moment.diagonal(), 1.0).unwrap(),
            ];
            for other in &others {
                let other = gauged(&w, r, path, other, None).unwrap();
                let other = weighted_relative_error(
                    w.weight(),
                    &other.a,
                    &other.b,
                    r,
                    moment.as_second_moment(),
                );
                assert!(other > 1.01 * best, "{other} {best}");
            }
        }
    }
}

#[test]
fn a_diagonal_before_whitening_changes_nothing() {
    for (m, n) in [(40, 30), (30, 40), (70, 70)] {
        let w = decaying(m, n, 23);
        let moment = Moment::new(n, 29);
        let mut rng = Rng(31);
        let d: Vec<f64> = (0..n)
            .map(|_| 2f64.powi((rng.next() % 9) as i32 - 4))
            .collect();
        let other = Dense::from_fn(m, n, |i, j| f64::from(w.values[i * n + j]) / d[j]);
        let values: Vec<f64> = (0..n * n)
            .map(|i| moment.values[i] * d[i / n] * d[i % n])
            .collect();
        let turned = SecondMoment {
            order: n,
            values: &values,
        };
        let r = m.min(n) / 2;
        for path in PATHS {
            let find = |w: &Dense, moment| {
                let gauge = Gauge::whiten(moment, 0.0).unwrap();
                gauged(w, r, path, &gauge, None).unwrap()
            };
            let (plain, found) = (find(&w, moment.as_second_moment()), find(&other, turned));
            for (s, p) in found.singular_values.iter().zip(&plain.singular_values) {
                close(*s, *p, 1e-7 * plain.singular_values[0]);
            }
            let back = product(&found, &other, r, r) * diagonal(&d);
            let difference = norm(&(back - product(&plain, &w, r, r))) / norm(&w.f64());
            assert!(difference < 2e-6, "{m} x {n} {path:?}: {difference:e}");
        }
    }
}

#[test]
fn a_gauge_of_ones_gives_the_bytes_of_no_gauge() {
    for (m, n) in SHAPES {
        let w = Dense::normal(m, n, 37);
        let ones = |n: usize| Diagonal::new(vec![1.0; n]).unwrap();
        for path in PATHS {
            let plain = low_rank(w.weight(), 7, path).unwrap();
            let gauge = Gauge::Diagonal(ones(n));
            let found = gauged(&w, 7, path, &gauge, Some(&ones(m))).unwrap();
            assert_eq!(found, plain);
        }
    }
}

#[test]
fn a_common_factor_of_the_gauge_leaves_the_factors() {
    let (m, n) = (40, 30);
    for w in [decaying(m, n, 41), decaying(m, n, 41).transpose()] {
        let moment = Moment::new(w.cols, 43);
        for power in [-200, 90] {
            let factor = 2f64.powi(power);
            let scaled: Vec<f64> = moment.values.iter().map(|v| v * factor * factor).collect();
            let scaled = SecondMoment {
                order: w.cols,
                values: &scaled,
            };
            let diagonal: Vec<f64> = (0..w.cols).map(|i| scaled.values[i * w.cols + i]).collect();
            for (plain, scaled) in [
                (
                    Gauge::whiten(moment.as_second_moment(), 0.01).unwrap(),
                    Gauge::whiten(scaled, 0.01).unwrap(),
                ),
                (
                    Gauge::activation(&moment.diagonal(), 1.0).unwrap(),
                    Gauge::activation(&diagonal, 1.0).unwrap(),
                ),
            ] {
                for path in PATHS {
                    let find = |g: &Gauge| gauged(&w, 9, path, g, None).unwrap();
                    let (plain, scaled) = (find(&plain), find(&scaled));
                    for (s, p) in scaled.singular_values.iter().zip(&plain.singular_values) {
                        close(*s / factor, *p, 1e-12 * plain.singular_values[0]);
                    }
                    assert_eq!(scaled.a, plain.a);
                    assert_eq!(scaled.b, plain.b);
                }
            }
        }
    }
}

#[test]
fn singular_second_moment() {
    for (m, n) in [(50, 40), (40, 50), (64, 64)] {
        let w = decaying(m, n, 47);
        let half = n / 2;
        let eigenvalues = (0..n).map(|i| f64::from(i < half)).collect();
        let moment = Moment::with_eigenvalues(eigenvalues, 53);
        let q = m.min(n);
        for s in [0.0, DEFAULT_SHRINKAGE] {
            let gauge = Gauge::whiten(moment.as_second_moment(), s).unwrap();
            for path in PATHS {
                let find = |r| gauged(&w, r, path, &gauge, None).unwrap();
                let all = find(q);
                let lost = low_rank_error(w.weight(), &all.a, &all.b, q);
                assert!(lost < 1e-5, "{m} x {n}, s = {s}, {path:?}: {lost:e}");
                if s == 0.0 && half < q {
                    let found = find(half);
                    let lost = weighted_relative_error(
                        w.weight(),
                        &found.a,
                        &found.b,
                        half,
                        moment.as_second_moment(),
                    );
                    assert!(lost < 1e-5, "{m} x {n}, {path:?}: {lost:e}");
                    assert!(low_rank_error(w.weight(), &found.a, &found.b, half) < 1.0);
                }
            }
        }
    }
}

#[test]
fn inputs_that_never_occur() {
    let zeros = vec![0.0; 9];
    let moment = SecondMoment {
        order: 3,
        values: &zeros,
    };
    assert!(matches!(Gauge::whiten(moment, 0.01), Ok(Gauge::None)));
    assert!(matches!(Gauge::activation(&[0.0; 3], 1.0), Ok(Gauge::None)));

    let w = Dense::normal(5, 4, 59);
    let gauge = Gauge::activation(&[4.0, 0.0, 4.0, 4.0], 1.0).unwrap();
    let g = [2.0, 3f64.sqrt() * 1e-3, 2.0, 2.0];
    let expected = singular_values(&(w.f64() * diagonal(&g)));
    let found = gauged(&w, 4, SvdMethod::Svd, &gauge, None).unwrap();
    for (s, e) in found.singular_values.iter().zip(&expected) {
        close(*s, *e, 1e-12 * expected[0]);
    }
    assert!(low_rank_error(w.weight(), &found.a, &found.b, 4) < 1e-6);
}

#[test]
fn paths_agree_under_a_gauge() {
    for (m, n) in [(96, 64), (64, 96), (80, 80)] {
        let w = decaying(m, n, 61);
        let r = m.min(n) / 2;
        for (name, gauge, _) in gauges(n) {
            let [svd, gram] = PATHS.map(|path| gauged(&w, r, path, &gauge, None).unwrap());
            let difference = norm(&(product(&svd, &w, r, r) - product(&gram, &w, r, r)));
            assert!(
                difference < 1e-6 * norm(&w.f64()),
                "{name} {m} x {n}: {difference:e}"
            );
        }
    }
}

#[test]
fn two_threads_give_the_same_bytes() {
    let w = decaying(150, 130, 67);
    let moment = Moment::new(130, 71);
    let shared = Gauge::whiten(moment.as_second_moment(), 0.01).unwrap();
    let run = || gauged(&w, 40, SvdMethod::Auto, &shared, None).unwrap();
    let own = Gauge::whiten(moment.as_second_moment(), 0.01).unwrap();
    let first = gauged(&w, 40, SvdMethod::Auto, &own, None).unwrap();
    std::thread::scope(|scope| {
        for thread in [scope.spawn(run), scope.spawn(run)] {
            assert_eq!(first, thread.join().unwrap());
        }
    });
}

#[test]
fn refusals() {
    let one = |values: &[f64]| {
        Gauge::whiten(SecondMoment { order: 2, values }, 0.01)
            .map(|_| ())
            .unwrap_err()
    };
    assert_eq!(
        one(&[1.0; 3]),
        FactoriseError::MomentLength { order: 2, found: 3 }
    );
    assert!(matches!(
        one(&[1.0, 0.0, f64::INFINITY, 1.0]),
        FactoriseError::MomentEntry { row: 1, col: 0, .. }
    ));
    assert!(matches!(
        one(&[1.0, 0.0, 0.0, -1.0]),
        FactoriseError::MomentEntry { row: 1, col: 1, .. }
    ));
    assert!(matches!(
        one(&[1.0, 0.0, 1.1, 1.0]),
        FactoriseError::MomentEntry { row: 1, col: 0, .. }
    ));
    let fine = [1.0, 0.0, 0.0, 1.0];
    let moment = SecondMoment {
        order: 2,
        values: &fine,
    };
    for bad in [-0.1, 1.1, f64::NAN] {
        assert!(matches!(
            Gauge::whiten(moment, bad),
            Err(FactoriseError::Shrinkage { .. })
        ));
        assert!(matches!(
            Gauge::activation(&[1.0], 3.0 * bad),
            Err(FactoriseError::Exponent { .. })
        ));
    }
    assert!(matches!(
        Gauge::activation(&[1.0, f64::NAN], 1.0),
        Err(FactoriseError::MomentEntry { row: 1, .. })
    ));
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-13] {
        assert!(matches!(
            Diagonal::new(vec![1.0, bad]),
            Err(FactoriseError::GaugeEntry { .. })
        ));
    }

    let w = Dense::normal(5, 3, 73);
    // Eigenvalues 1.9, 1.9, -0.8.
    let indefinite = [1.0, 0.0, 0.0, -0.9, 1.0, 0.0, -0.9, -0.9, 1.0];
    let indefinite = SecondMoment {
        order: 3,
        values: &indefinite,
    };
    let gauge = Gauge::whiten(indefinite, 0.0).unwrap();
    let refused = gauged(&w, 2, SvdMethod::Svd, &gauge, None).unwrap_err();
    assert!(
        matches!(refused, FactoriseError::Indefinite { .. }),
        "{refused}"
    );
    assert!(!refused.to_string().contains('\n'));

    let gauge = Gauge::whiten(moment, 0.01).unwrap();
    assert_eq!(
        gauged(&w, 2, SvdMethod::Svd, &gauge, None),
        Err(FactoriseError::GaugeOrder {
            expected: 3,
            found: 2
        })
    );
    let output = Diagonal::new(vec![1.0; 4]).unwrap();
    assert_eq!(
        gauged(&w, 2, SvdMethod::Svd, &Gauge::None, Some(&output)),
        Err(FactoriseError::GaugeOrder {
            expected: 5,
            found: 4
        })
    );
}
