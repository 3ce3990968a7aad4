//! Losses and distances of single positions.

use htc_math::vectorised;

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
    let (largest, _) = largest(logits);
    let [sum, ..] = sums(logits, logits, [largest; 2]);
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
    let [sum_x, sum_y, apart] = sums(reference, logits, [largest_x, largest_y]);
    let divergence = apart / sum_x - sum_x.ln() + sum_y.ln();
    // Rounding, about 1e-15.
    let divergence = if divergence < 0.0 { 0.0 } else { divergence };
    Score {
        loss: largest_y + sum_y.ln() - f64::from(logits[target]),
        reference_loss: largest_x + sum_x.ln() - f64::from(reference[target]),
        distance: Some((divergence, top == other_top)),
    }
}

/// Independent partial sums.
const CHAINS: usize = 8;

/// Returns the largest logit and its first index.
fn largest(logits: &[f32]) -> (f64, usize) {
    let largest = largest_number(logits);
    let top = logits.iter().position(|x| *x == largest);
    (f64::from(largest), top.unwrap_or(0))
}

vectorised! {
    /// Returns the largest of numbers, or NaN if that is the first.
    fn largest_number(x: &[f32]) -> f32 {
        let larger = |max: f32, x: f32| if x > max { x } else { max };
        let (chunks, rest) = x.as_chunks::<CHAINS>();
        let mut chains = [x[0]; CHAINS];
        for chunk in chunks {
            for chain in 0..CHAINS {
                chains[chain] = larger(chains[chain], chunk[chain]);
            }
        }
        rest.iter().copied().chain(chains).fold(x[0], larger)
    }
}

vectorised! {
    /// Returns `Σ exp(x)`, `Σ exp(y)` and `Σ exp(x) (x − y)` of numbers minus their `largest`.
    fn sums(x: &[f32], y: &[f32], largest: [f64; 2]) -> [f64; 3] {
        let [largest_x, largest_y] = largest;
        let terms = |x: f32, y: f32| {
            let (x, y) = (f64::from(x) - largest_x, f64::from(y) - largest_y);
            let weight = exp(x);
            [weight, exp(y), weight * (x - y)]
        };
        let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<CHAINS>(), y.as_chunks::<CHAINS>());
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

/// Returns `eˣ` for `x ≤ 0` to two ulps, and at least the smallest normal number. Unlike the system's
/// function, loops over it vectorise.
#[inline(always)]
fn exp(x: f64) -> f64 {
    /// Adding it leaves an integer in the last bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    /// `ln 2` in two parts; multiples of the first are exact.
    const LN_2: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];
    /// Of the degrees 12 to 2 of the series, which ends below an ulp.
    const INVERSE_FACTORIALS: [f64; 11] = {
        let (mut inverses, mut degree, mut factorial) = ([0.0; 11], 2, 2.0);
        while degree <= 12 {
            inverses[12 - degree] = 1.0 / factorial;
            degree += 1;
            factorial *= degree as f64;
        }
        inverses
    };
    let x = x.clamp(-708.0, 0.0);
    let rounded = x * std::f64::consts::LOG2_E + ROUND;
    let exponent = rounded - ROUND;
    let r = x - exponent * LN_2[0] - exponent * LN_2[1];
    let mut p = 0.0;
    for coefficient in INVERSE_FACTORIALS {
        p = p * r + coefficient;
    }
    let scale = f64::from_bits(rounded.to_bits().wrapping_add(1023) << 52);
    (p * r * r + r + 1.0) * scale
}

#[cfg(test)]
mod tests;
