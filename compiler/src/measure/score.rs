//! Losses and distances of single positions.

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Score {
    /// Negative log-likelihood of the next token, in nats.
    pub loss: f64,
    /// Loss of the reference; 0 without one.
    pub reference_loss: f64,
    /// Divergence from the reference, and agreement on the most likely token.
    pub distance: Option<(f64, bool)>,
}

fn largest(logits: &[f32]) -> (f64, usize) {
    let mut top = 0;
    for (i, &x) in logits.iter().enumerate() {
        if x > logits[top] {
            top = i;
        }
    }
    (f64::from(logits[top]), top)
}

pub(super) fn score(logits: &[f32], target: usize) -> Score {
    let (largest, _) = largest(logits);
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - largest).exp()).sum();
    Score {
        loss: largest + sum.ln() - f64::from(logits[target]),
        ..Score::default()
    }
}

/// With logits `x` of the reference and `y` of the model, minus their maxima, the divergence is `Σ
/// exp(x) (x − y) / Σ exp(x) − ln Σ exp(x) + ln Σ exp(y)`. Lossless artifacts need float64.
pub(super) fn score_with_reference(logits: &[f32], reference: &[f32], target: usize) -> Score {
    let (largest_y, top) = largest(logits);
    let (largest_x, other_top) = largest(reference);
    let (mut sum_x, mut sum_y, mut apart) = (0.0, 0.0, 0.0);
    for (&x, &y) in reference.iter().zip(logits) {
        let (x, y) = (f64::from(x) - largest_x, f64::from(y) - largest_y);
        let weight = x.exp();
        sum_x += weight;
        sum_y += y.exp();
        apart += weight * (x - y);
    }
    let divergence = apart / sum_x - sum_x.ln() + sum_y.ln();
    // Rounding, about 1e-15.
    let divergence = if divergence < 0.0 { 0.0 } else { divergence };
    Score {
        loss: largest_y + sum_y.ln() - f64::from(logits[target]),
        reference_loss: largest_x + sum_x.ln() - f64::from(reference[target]),
        distance: Some((divergence, top == other_top)),
    }
}

#[cfg(test)]
mod tests {
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
        assert!(
            !score(&[f32::NEG_INFINITY, f32::NEG_INFINITY], 1)
                .loss
                .is_finite()
        );
    }
}
