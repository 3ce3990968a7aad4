//! Factors with a bias, scored on explicit inputs.

use faer::Mat;

use super::super::decompose::eigen;
use super::super::{
    FactoriseError, Gauge, LowRank, LowRankOptions, SecondMoment, SvdMethod, bias_correction,
    covariance, low_rank_with, mean_energy,
};
use super::{Dense, Rng, close, matrix, orthonormal};

/// `μ ± (n λ_i)^½ q_i` with equal frequency: their mean is `μ`, their covariance `Σ λ_i q_i q_iᵀ`.
struct Population {
    points: Vec<Vec<f64>>,
    mean: Vec<f64>,
    covariance: Mat<f64>,
}

impl Population {
    fn new(n: usize, offset: f64) -> Self {
        let q = orthonormal(n, n, 91);
        let lambda = |i: usize| 10f64.powf(-2.0 * i as f64 / n as f64);
        let mut rng = Rng(92);
        let mean: Vec<f64> = (0..n).map(|_| offset * rng.normal()).collect();
        let point = |i: usize, sign: f64| -> Vec<f64> {
            let length = sign * (n as f64 * lambda(i)).sqrt();
            (0..n).map(|j| mean[j] + length * q[(j, i)]).collect()
        };
        let points = (0..n).flat_map(|i| [point(i, 1.0), point(i, -1.0)]);
        let scaled = Mat::from_fn(n, n, |i, j| q[(i, j)] * lambda(j));
        Population {
            points: points.collect(),
            covariance: &scaled * q.transpose(),
            mean,
        }
    }

    fn second_moment(&self) -> Vec<f64> {
        let n = self.mean.len();
        let mut second = vec![f64::NAN; n * n];
        for i in 0..n {
            for j in 0..=i {
                let sum: f64 = self.points.iter().map(|x| x[i] * x[j]).sum();
                second[i * n + j] = sum / self.points.len() as f64;
            }
        }
        second
    }

    fn lost(&self, w: &Dense, found: &LowRank, r: usize, bias: &[f32]) -> f64 {
        let missing = w.f64() - matrix(&found.b, w.rows, r) * matrix(&found.a, r, w.cols);
        let at = |x: &[f64], o: usize| -> f64 {
            let sum: f64 = (0..w.cols).map(|i| missing[(o, i)] * x[i]).sum();
            (sum - f64::from(bias[o])).powi(2)
        };
        let of = |x: &Vec<f64>| (0..w.rows).map(|o| at(x, o)).sum::<f64>();
        self.points.iter().map(of).sum::<f64>() / self.points.len() as f64
    }
}

fn whitened(w: &Dense, r: usize, order: usize, values: &[f64]) -> LowRank {
    let gauge = Gauge::whiten(SecondMoment { order, values }, 0.0).unwrap();
    let options = LowRankOptions {
        method: SvdMethod::Gram,
        input: &gauge,
        ..LowRankOptions::default()
    };
    low_rank_with(w.weight(), r, &options).unwrap()
}

/// Closed form under the covariance: `Σ_{i>r} λ_i(W Σ Wᵀ)`.
#[test]
fn covariance_is_the_best_norm_with_a_bias() {
    let (m, n, r) = (20, 30, 6);
    let w = Dense::normal(m, n, 93);
    let inputs = Population::new(n, 3.0);
    let second = inputs.second_moment();
    let moment = SecondMoment {
        order: n,
        values: &second,
    };
    let centred = covariance(moment, &inputs.mean).unwrap();
    for i in 0..n {
        for j in 0..=i {
            close(centred[i * n + j], inputs.covariance[(i, j)], 1e-10);
        }
    }
    let best = |c: &Mat<f64>| -> f64 {
        let energies = eigen(w.f64() * c * w.f64().transpose(), 1).unwrap().values;
        energies[r..].iter().sum()
    };
    let [by_covariance, by_moment] = [&centred, &second].map(|values| whitened(&w, r, n, values));
    let corrected = |found: &LowRank| {
        let bias = bias_correction(w.weight(), &found.a, &found.b, r, &inputs.mean).unwrap();
        inputs.lost(&w, found, r, &bias)
    };
    let expected = best(&inputs.covariance);
    let (right, wrong) = (corrected(&by_covariance), corrected(&by_moment));
    assert!(
        (right / expected - 1.0).abs() < 1e-5,
        "{right} for {expected}"
    );
    assert!(wrong > 1.02 * right, "{wrong} for {right}");
    let none = vec![0.0; m];
    let without = |found: &LowRank| inputs.lost(&w, found, r, &none);
    assert!(without(&by_covariance) > 1.02 * without(&by_moment));

    let whole: f64 = w.f64().squared_norm_l2();
    assert!(mean_energy(w.weight(), &inputs.mean) > 0.1 * whole);
    let energy = |c: &Mat<f64>| -> f64 {
        let product = w.f64() * c * w.f64().transpose();
        (0..m).map(|i| product[(i, i)]).sum()
    };
    let c = Mat::from_fn(n, n, |i, j| second[i.max(j) * n + i.min(j)]);
    let sum = energy(&inputs.covariance) + mean_energy(w.weight(), &inputs.mean);
    assert!((sum / energy(&c) - 1.0).abs() < 1e-12);
    assert!(mean_energy(w.weight(), &[0.0]).is_nan());
}

#[test]
fn float32_moments_have_a_covariance_at_any_mean() {
    let n = 24;
    for offset in [0.0, 1e2, 1e4] {
        let inputs = Population::new(n, offset);
        let second = inputs.second_moment();
        let rounded: Vec<f64> = second.iter().map(|&v| f64::from(v as f32)).collect();
        let moment = SecondMoment {
            order: n,
            values: &rounded,
        };
        let found = covariance(moment, &inputs.mean).unwrap();
        let values = &found[..];
        let w = Dense::normal(10, n, 94);
        let gauge = Gauge::whiten(SecondMoment { order: n, values }, 0.01).unwrap();
        let options = LowRankOptions {
            method: SvdMethod::Svd,
            input: &gauge,
            ..LowRankOptions::default()
        };
        assert!(low_rank_with(w.weight(), 4, &options).is_ok(), "{offset}");
    }
    let moment = SecondMoment {
        order: 2,
        values: &[1.0, 0.0, 0.5, 4.0],
    };
    let found = covariance(moment, &[1.0, 1.0]).unwrap();
    assert!(found[0] > 0.0 && found[0] < 1e-6);
    assert!(found[2].abs() <= (found[0] * found[3]).sqrt());
    assert_eq!(found[3], 3.0);
    assert_eq!(
        covariance(moment, &[1.0, 2.5]),
        Err(FactoriseError::MeanBeyondMoment {
            index: 1,
            mean: 2.5,
            second: 4.0
        })
    );
    assert!(matches!(
        covariance(moment, &[1.0]),
        Err(FactoriseError::VectorLength { .. })
    ));
    assert!(matches!(
        covariance(moment, &[1.0, f64::NAN]),
        Err(FactoriseError::VectorEntry { index: 1, .. })
    ));
}

#[test]
fn gauges_generalise_to_unseen_inputs() {
    let (m, n, r) = (24, 32, 8);
    let w = Dense::normal(m, n, 95);
    let turn = orthonormal(n, n, 96);
    let root = Mat::from_fn(n, n, |i, j| {
        (1.0 + 4.0 * (i % 3) as f64) * turn[(i, j)] * 10f64.powf(-1.5 * j as f64 / n as f64)
    });
    let sample = |seed: u64, count: usize| -> Vec<Vec<f64>> {
        let mut rng = Rng(seed);
        let one = |rng: &mut Rng| {
            let z: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
            let of = |i: usize| (0..n).map(|j| root[(i, j)] * z[j]).sum();
            (0..n).map(of).collect()
        };
        (0..count).map(|_| one(&mut rng)).collect()
    };
    let (known, other) = (sample(97, 600), sample(98, 600));
    let mut second = vec![0.0; n * n];
    for x in &known {
        for i in 0..n {
            for j in 0..=i {
                second[i * n + j] += x[i] * x[j] / known.len() as f64;
            }
        }
    }
    let moment = SecondMoment {
        order: n,
        values: &second,
    };
    let lost = |gauge: &Gauge| -> f64 {
        let options = LowRankOptions {
            input: gauge,
            ..LowRankOptions::default()
        };
        let found = low_rank_with(w.weight(), r, &options).unwrap();
        let missing = w.f64() - matrix(&found.b, m, r) * matrix(&found.a, r, n);
        let at = |x: &Vec<f64>| -> f64 {
            let of = |o: usize| (0..n).map(|i| missing[(o, i)] * x[i]).sum::<f64>();
            (0..m).map(|o| of(o).powi(2)).sum()
        };
        other.iter().map(at).sum()
    };
    let none = lost(&Gauge::None);
    let activation = lost(&Gauge::activation(&moment.diagonal(), 1.0).unwrap());
    let whiten = lost(&Gauge::whiten(moment, 0.01).unwrap());
    assert!(
        whiten < 0.9 * activation && activation < 0.95 * none,
        "{whiten} {activation} {none}"
    );
}
