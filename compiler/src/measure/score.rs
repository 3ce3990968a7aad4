//! Losses and distances of single positions.

/// What one position says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Score {
    /// Negative log-likelihood of the next token, nats.
    pub loss: f64,
    /// The same by the reference; 0 without one.
    pub reference_loss: f64,
    /// Divergence from the reference and agreement on the likeliest token.
    pub distance: Option<(f64, bool)>,
}

/// Logarithm of the sum of exponentials, and the index of the largest (the first of equals).
fn log_sum_exp(logits: &[f32]) -> (f64, usize) {
    let mut top = 0;
    for (i, &x) in logits.iter().enumerate() {
        if x > logits[top] {
            top = i;
        }
    }
    let largest = logits[top];
    let sum: f64 = logits.iter().map(|&x| f64::from((x - largest).exp())).sum();
    (f64::from(largest) + sum.ln(), top)
}

pub(super) fn score(logits: &[f32], target: usize) -> Score {
    let (normaliser, _) = log_sum_exp(logits);
    Score {
        loss: normaliser - f64::from(logits[target]),
        ..Score::default()
    }
}

pub(super) fn compare(logits: &[f32], reference: &[f32], target: usize) -> Score {
    let (normaliser, top) = log_sum_exp(logits);
    let (other, other_top) = log_sum_exp(reference);
    let divergence: f64 = reference
        .iter()
        .zip(logits)
        .map(|(&p, &q)| {
            let log_p = f64::from(p) - other;
            let log_q = f64::from(q) - normaliser;
            f64::from((log_p as f32).exp()) * (log_p - log_q)
        })
        .sum();
    Score {
        loss: normaliser - f64::from(logits[target]),
        reference_loss: other - f64::from(reference[target]),
        distance: Some((divergence, top == other_top)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_and_divergence_equal_the_closed_form() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4), with arbitrary offsets.
        let ln = |x: f32| x.ln();
        let p = [ln(0.5) + 3.0, ln(0.25) + 3.0, ln(0.25) + 3.0];
        let q = [ln(0.25) - 50.0, ln(0.5) - 50.0, ln(0.25) - 50.0];
        let score = compare(&q, &p, 1);
        let expected = 0.5 * 2.0_f64.ln() + 0.25 * 0.5_f64.ln();
        let (divergence, agrees) = score.distance.unwrap();
        assert!(
            (divergence - expected).abs() < 1e-5,
            "{divergence} {expected}"
        );
        assert!(!agrees);
        assert!((score.loss - 2.0_f64.ln()).abs() < 1e-5);
        assert!((score.reference_loss - 4.0_f64.ln()).abs() < 1e-5);
        let same = compare(&p, &p, 0).distance.unwrap();
        assert!(same.0.abs() < 1e-12 && same.1);
    }

    #[test]
    fn what_is_not_finite_shows() {
        assert!(!score(&[f32::NAN, 1.0], 1).loss.is_finite());
        assert!(!score(&[f32::INFINITY, 1.0], 1).loss.is_finite());
        assert!(
            !score(&[f32::NEG_INFINITY, f32::NEG_INFINITY], 1)
                .loss
                .is_finite()
        );
    }
}
