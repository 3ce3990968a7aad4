use faer::Mat;

use super::super::decompose::eigen;
use super::super::{
    Diagonal, FactoriseError, Gauge, Host, LowRank, LowRankOptions, Sink, SvdMethod, low_rank_with,
};
use super::gauge::{Moment, diagonal, gauges, spread};
use super::{Dense, close, matrix};

fn product(found: &LowRank, w: &Dense, r: usize) -> Mat<f64> {
    matrix(&found.b, w.rows, r) * matrix(&found.a, r, w.cols)
}

#[test]
fn exempt_columns_are_exact_and_the_others_as_without_them() {
    let exempt = [0, 5, 19];
    for (rows, cols) in [(12, 20), (30, 20)] {
        let w = Dense::normal(rows, cols, 81);
        let others: Vec<usize> = (0..cols).filter(|c| !exempt.contains(c)).collect();
        let rest = Dense::from_fn(rows, others.len(), |i, j| {
            f64::from(w.values[i * cols + others[j]])
        });
        let output = Diagonal::new(spread(rows, 6)).unwrap();
        for (name, gauge, _) in gauges(cols) {
            for (path, output) in [(SvdMethod::Svd, None), (SvdMethod::Gram, Some(&output))] {
                for r in [3, 4, 9, 12] {
                    let options = LowRankOptions {
                        method: path,
                        input: &gauge,
                        output,
                        exempt: &exempt,
                        sink: None,
                        algebra: &Host,
                    };
                    let found = low_rank_with(w.weight(), r, &options).unwrap();
                    assert_eq!((found.a.len(), found.b.len()), (r * cols, rows * r));
                    let approximation = product(&found, &w, r);
                    for i in 0..rows {
                        for &channel in &exempt {
                            let exact = f64::from(w.values[i * cols + channel]);
                            assert_eq!(approximation[(i, channel)], exact, "{name}");
                        }
                    }
                    if r == 3 {
                        assert!(found.singular_values.is_empty());
                        continue;
                    }
                    let restricted = gauge.restrict_to(&others);
                    let options = LowRankOptions {
                        input: &restricted,
                        exempt: &[],
                        ..options
                    };
                    let expected = low_rank_with(rest.weight(), r - 3, &options).unwrap();
                    assert_eq!(found.singular_values, expected.singular_values);
                    let expected = product(&expected, &rest, r - 3);
                    for i in 0..rows {
                        for (j, &channel) in others.iter().enumerate() {
                            close(approximation[(i, channel)], expected[(i, j)], 1e-12);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn loss_with_exempt_columns_reaches_the_lower_bound() {
    let (m, n, r) = (20, 30, 9);
    let w = Dense::normal(m, n, 61);
    let moment = Moment::new(n, 63);
    let c = moment.power(1.0, 0.0);
    let gauge = Gauge::whiten(moment.as_second_moment(), 0.0).unwrap();
    let entries = spread(m, 8);
    let (output, h) = (Diagonal::new(entries.clone()).unwrap(), diagonal(&entries));
    let exempt = [4, 11];
    let part = Mat::from_fn(n, n, |i, j| f64::from(i == j && !exempt.contains(&i)));
    let rest = &h * w.f64() * &part;
    let energies = eigen(&rest * &c * rest.transpose(), 1).unwrap().values;
    let left: f64 = energies[r - exempt.len()..].iter().sum();
    let options = LowRankOptions {
        method: SvdMethod::Gram,
        input: &gauge,
        output: Some(&output),
        exempt: &exempt,
        sink: None,
        algebra: &Host,
    };
    let found = low_rank_with(w.weight(), r, &options).unwrap();
    let missing = &h * (w.f64() - product(&found, &w, r));
    let lost = &missing * &c * missing.transpose();
    let lost: f64 = (0..m).map(|i| lost[(i, i)]).sum();
    assert!((lost / left - 1.0).abs() < 1e-5, "{lost} for {left}");
}

#[test]
fn sink_direction_and_exempt_columns_are_both_exact() {
    let (m, n, r) = (10, 16, 5);
    let w = Dense::from_fn(m, n, |i, j| {
        let x = ((i * 7 + j * 3) % 11) as f64 - 5.0;
        if j >= 12 { 1e-3 * x } else { x }
    });
    let mut direction = vec![0.0; n];
    direction[13] = 1.0;
    direction[2] = 0.5;
    let options = LowRankOptions {
        exempt: &[2],
        sink: Some(Sink {
            direction: &direction,
            threshold: 0.9,
        }),
        ..LowRankOptions::default()
    };
    let found = low_rank_with(w.weight(), r, &options).unwrap();
    assert!(found.sink.unwrap().appended);
    let missing = w.f64() - product(&found, &w, r);
    for i in 0..m {
        assert_eq!(missing[(i, 2)], 0.0);
        let lost: f64 = (0..n).map(|j| missing[(i, j)] * direction[j]).sum();
        assert!(lost.abs() < 1e-6, "{lost:e}");
    }
}

#[test]
fn invalid_exempt_columns_are_refused() {
    let w = Dense::normal(6, 8, 1);
    let refused = |exempt: &[usize], r| {
        let options = LowRankOptions {
            exempt,
            ..LowRankOptions::default()
        };
        low_rank_with(w.weight(), r, &options).unwrap_err()
    };
    for exempt in [&[1, 1][..], &[3, 2], &[8]] {
        let error = refused(exempt, 4);
        assert!(
            matches!(error, FactoriseError::ExemptChannel { .. }),
            "{error}"
        );
    }
    let error = refused(&[0, 1, 2], 2);
    assert!(matches!(error, FactoriseError::Rank { .. }), "{error}");
}
