//! Losses and distances of single positions.

use htc_math::{CHAINS, exp_f64, largest, sum_of, vectorised};

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
        sum_of(x, x, |x, _| exp_f64(x - largest))
    }
}

vectorised! {
    /// Returns `Σ exp(x)`, `Σ exp(y)` and `Σ exp(x) (x − y)` of numbers minus their `largest`.
    fn sums(x: &[f32], y: &[f32], largest: [f64; 2]) -> [f64; 3] {
        let [largest_x, largest_y] = largest;
        let terms = |x: f32, y: f32| {
            let (x, y) = (f64::from(x) - largest_x, f64::from(y) - largest_y);
            let weight = exp_f64(x);
            [weight, exp_f64(y), weight * (x - y)]
        };
        let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<CHAINS>(), y.as_chunks::<CHAINS>());
        // One pass, since the exponentials of `x` are in two sums.
        let mut chains = [[0.0; CHAINS]; 3];
        for (x, y) in x.iter().zip(y) {
            for chain in 0..CHAINS {
                let [one, other, apart] = terms(x[chain], y[chain]);
                chains[0][chain] += one;
                chains[1][chain] += other;
                chains[2][chain] += apart;
            }
        }
        let mut sums = chains.map(|chains| chains.iter().sum::<f64>());
        for (&x, &y) in x_rest.iter().zip(y_rest) {
            sums.iter_mut().zip(terms(x, y)).for_each(|(sum, term)| *sum += term);
        }
        sums
    }
}

#[cfg(test)]
mod tests;
