use super::*;

#[test]
fn losses_and_divergence_equal_the_closed_form() {
    let ln = |x: f32| x.ln();
    let p = [ln(0.5) + 3.0, ln(0.25) + 3.0, ln(0.25) + 3.0];
    let q = [ln(0.25) - 50.0, ln(0.5) - 50.0, ln(0.25) - 50.0];
    let score = score_with_reference(&q, &p, 1);
    let expected = 0.5 * 2.0_f64.ln() + 0.25 * 0.5_f64.ln();
    let (divergence, agrees) = score.distance.unwrap();
    assert!(
        (divergence - expected).abs() < 1e-5,
        "{divergence} {expected}"
    );
    assert!(!agrees);
    assert!((score.loss - 2.0_f64.ln()).abs() < 1e-5);
    assert!((score.reference_loss - 4.0_f64.ln()).abs() < 1e-5);
    assert_eq!(score_with_reference(&p, &p, 0).distance, Some((0.0, true)));
}

#[test]
fn divergence_of_nearly_equal_logits_is_small_and_not_negative() {
    let p: Vec<f32> = (0..5000).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
    for shift in [1, 2, 5] {
        let next = |(i, &x): (usize, &f32)| match i % 3 {
            0 => f32::from_bits(x.to_bits() + shift),
            _ => x,
        };
        let q: Vec<f32> = p.iter().enumerate().map(next).collect();
        let (found, _) = score_with_reference(&q, &p, 0).distance.unwrap();
        let largest = f64::from(p.iter().copied().fold(f32::MIN, f32::max));
        let weights = p.iter().map(|&x| (f64::from(x) - largest).exp());
        let weights: Vec<f64> = weights.collect();
        let all: f64 = weights.iter().sum();
        let mean = |of: &dyn Fn(f64) -> f64| -> f64 {
            let apart = p
                .iter()
                .zip(&q)
                .map(|(&x, &y)| of(f64::from(y) - f64::from(x)));
            apart.zip(&weights).map(|(d, w)| d * w / all).sum()
        };
        let half = 0.5 * (mean(&|d| d * d) - mean(&|d| d).powi(2));
        assert!((found - half).abs() < 1e-14 + 1e-3 * half, "{found} {half}");
    }
}

#[test]
fn non_finite_logits_give_a_non_finite_loss() {
    assert!(!score(&[f32::NAN, 1.0], 1).loss.is_finite());
    assert!(!score(&[f32::INFINITY, 1.0], 1).loss.is_finite());
    let distance = |reference: &[f32]| score_with_reference(&[1.0, 2.0], reference, 1).distance;
    assert!(!distance(&[f32::NEG_INFINITY, 1.0]).unwrap().0.is_finite());
    assert!(
        !score(&[f32::NEG_INFINITY, f32::NEG_INFINITY], 1)
            .loss
            .is_finite()
    );
}

#[test]
fn first_of_equal_logits_is_the_likeliest_token() {
    let mut logits = vec![-1.0_f32; 37];
    for at in [36, 20, 9] {
        logits[at] = 2.5;
        assert_eq!(top(&logits), (2.5, at));
    }
    assert!(top(&[f32::NAN, 3.0]).0.is_nan());
    assert_eq!(top(&[f32::NEG_INFINITY]), (f64::NEG_INFINITY, 0));
}
