use super::super::{FactoriseError, SvdMethod, bias_correction, low_rank};
use super::{Dense, Rng, close, matrix};

#[test]
fn the_mean_output_is_that_of_the_weight() {
    let (m, n, r, samples) = (12, 17, 4, 50);
    let w = Dense::normal(m, n, 1);
    let found = low_rank(w.weight(), r, SvdMethod::Svd).unwrap();
    let mut rng = Rng(2);
    let x: Vec<Vec<f64>> = (0..samples)
        .map(|_| (0..n).map(|i| i as f64 / 5.0 + rng.normal()).collect())
        .collect();
    let mean: Vec<f64> = (0..n)
        .map(|i| x.iter().map(|x| x[i]).sum::<f64>() / samples as f64)
        .collect();
    let bias = bias_correction(w.weight(), &found.a, &found.b, r, &mean).unwrap();
    assert_eq!(bias.len(), m);
    let approximation = matrix(&found.b, m, r) * matrix(&found.a, r, n);
    let exact = w.f64();
    let mut uncorrected = 0.0f64;
    for o in 0..m {
        let output = |w: &faer::Mat<f64>| {
            let sum: f64 = x
                .iter()
                .map(|x| (0..n).map(|i| w[(o, i)] * x[i]).sum::<f64>())
                .sum();
            sum / samples as f64
        };
        let (expected, plain) = (output(&exact), output(&approximation));
        close(plain + f64::from(bias[o]), expected, 1e-6);
        uncorrected = uncorrected.max((plain - expected).abs());
    }
    assert!(uncorrected > 0.1);
}

#[test]
fn bias_of_small_integers_is_exact() {
    let w = Dense::from_fn(2, 3, |i, j| (3 * i + j) as f64);
    let bias = bias_correction(
        w.weight(),
        &[1.0, 0.0, -1.0],
        &[2.0, 3.0],
        1,
        &[1.0, 2.0, 4.0],
    );
    // W x = [10, 31], A x = -3, B A x = [-6, -9].
    assert_eq!(bias, Ok(vec![16.0, 40.0]));
}

#[test]
fn refusals() {
    let w = Dense::normal(2, 3, 3);
    let find = |a: &[f32], b: &[f32], r, mean: &[f64]| bias_correction(w.weight(), a, b, r, mean);
    for (a, b, r) in [(2, 2, 1), (3, 3, 1), (3, 2, 2), (0, 0, 0)] {
        assert!(matches!(
            find(&vec![0.0; a], &vec![0.0; b], r, &[0.0; 3]),
            Err(FactoriseError::Factors { .. })
        ));
    }
    assert_eq!(
        find(&[0.0; 3], &[0.0; 2], 1, &[0.0; 4]),
        Err(FactoriseError::VectorLength {
            expected: 3,
            found: 4
        })
    );
    assert!(matches!(
        find(&[0.0; 3], &[0.0; 2], 1, &[0.0, f64::NAN, 0.0]),
        Err(FactoriseError::VectorEntry { index: 1, .. })
    ));
    assert_eq!(
        find(&[0.0; 3], &[0.0; 2], 1, &[1e300; 3]),
        Err(FactoriseError::Overflow { index: 0 })
    );
}
