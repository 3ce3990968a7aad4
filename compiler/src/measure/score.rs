//! Losses and distances of single positions.

use htc_math::{exp_f64, largest, sums_of, vectorised};

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Score {
    /// Negative log-likelihood of the next token, in nats.
    pub loss: f64,
    /// Loss of the reference; 0 without one.
    pub reference_loss: f64,
    /// Divergence from the reference, and agreement on the most likely token.
    pub distance: Option<(f64, bool)>,
}

pub(super) fn score(logits: &[f32], target: usize) -> Score {
    let (largest, _) = top(logits);
    let sum = sum_of_exponentials(logits, largest);
    Score {
        loss: largest + sum.ln() - f64::from(logits[target]),
        ..Score::default()
    }
}

/// With logits `x` of the reference and `y` of the model, minus their maxima, the divergence is `Σ
/// exp(x) (x − y) / Σ exp(x) − ln Σ exp(x) + ln Σ exp(y)`. Lossless artifacts need float64.
pub(super) fn score_with_reference(logits: &[f32], reference: &[f32], target: usize) -> Score {
    let (largest_y, top_y) = top(logits);
    let (largest_x, top_x) = top(reference);
    let [sum_x, sum_y, apart] = sums(reference, logits, [largest_x, largest_y]);
    let divergence = apart / sum_x - sum_x.ln() + sum_y.ln();
    // Rounding, about 1e-15. What is not finite stays so.
    let divergence = if divergence.is_finite() {
        divergence.max(0.0)
    } else {
        divergence
    };
    Score {
        loss: largest_y + sum_y.ln() - f64::from(logits[target]),
        reference_loss: largest_x + sum_x.ln() - f64::from(reference[target]),
        distance: Some((divergence, top_y == top_x)),
    }
}

/// Returns the largest logit and its first index.
fn top(logits: &[f32]) -> (f64, usize) {
    let max = largest_number(logits);
    let index = logits.iter().position(|x| *x == max);
    (f64::from(max), index.unwrap_or(0))
}

vectorised! {
    fn largest_number(x: &[f32]) -> f32 {
        largest(x)
    }
}

vectorised! {
    /// Returns `Σ exp(x)` of numbers minus their `largest`.
    fn sum_of_exponentials(x: &[f32], largest: f64) -> f64 {
        let [sum] = sums_of(x, x, |x, _| [exp_f64(x - largest)]);
        sum
    }
}

vectorised! {
    /// Returns `Σ exp(x)`, `Σ exp(y)` and `Σ exp(x) (x − y)` of numbers minus their `largest`.
    fn sums(x: &[f32], y: &[f32], largest: [f64; 2]) -> [f64; 3] {
        sums_of(x, y, |x, y| {
            let (x, y) = (x - largest[0], y - largest[1]);
            let weight = exp_f64(x);
            [weight, exp_f64(y), weight * (x - y)]
        })
    }
}

#[cfg(test)]
mod tests;
