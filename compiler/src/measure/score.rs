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
mod tests;
