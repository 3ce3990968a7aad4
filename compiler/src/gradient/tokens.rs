//! Costs of errors in vocabulary rows: at logits and at lookups.
//!
//! A text covers a small part of a large vocabulary. Good-Turing ([Good
//! 1953](https://doi.org/10.1093/biomet/40.3-4.237)): the share of new tokens in the next text is
//! that of tokens that occur once in this one, about a fifth of some ten thousand tokens in 262144
//! rows. Unseen rows receive that share: half of it evenly, half by the model's predictions.

use htc_formats::model::MatrixId;

use super::Gradients;

/// Minimum share of lookups for unseen tokens.
const LEAST_NEW: f64 = 0.01;

/// Costs of errors in vocabulary rows.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenCosts {
    /// Second moment of the gradient at every logit.
    pub logits: Vec<f32>,
    /// Lookup frequency of every row; sums to 1.
    pub lookups: Vec<f32>,
}

impl Gradients {
    /// Returns the costs, smoothed for unseen tokens.
    pub fn token_costs(&self) -> TokenCosts {
        let logits = self.for_matrix(MatrixId::Head);
        let logits = logits.map_or_else(Vec::new, |head| head.diagonal);
        expected(logits, self.shares())
    }
}

/// Smooths the statistics of one text to those expected of another.
fn expected(mut logits: Vec<f32>, mut shares: Vec<f32>) -> TokenCosts {
    let lacks = |share: &f32| *share <= 0.0;
    let rows = shares.iter().filter(|share| lacks(share)).count() as f64;
    let found = shares.iter().copied().filter(|share| !lacks(share));
    let once = 1.5 * found.clone().fold(f32::INFINITY, f32::min);
    let new: f64 = found.filter(|&share| share < once).map(f64::from).sum();
    let new = new.clamp(LEAST_NEW, 0.5);
    if rows == 0.0 {
        let lookups = shares;
        return TokenCosts { logits, lookups };
    }
    let of_new = |(logit, share): (&f32, &f32)| lacks(share).then_some(f64::from(logit.max(0.0)));
    let sum: f64 = logits.iter().zip(&shares).filter_map(of_new).sum();
    for (logit, share) in logits.iter_mut().zip(&mut shares) {
        if !lacks(share) {
            *share *= (1.0 - new) as f32;
            continue;
        }
        let by_model = if sum > 0.0 {
            f64::from(logit.max(0.0)) / sum
        } else {
            1.0 / rows
        };
        let part = 0.5 * (by_model + 1.0 / rows);
        *share = (new * part) as f32;
        *logit = (sum * part) as f32;
    }
    TokenCosts {
        logits,
        lookups: shares,
    }
}

#[cfg(test)]
mod tests;
