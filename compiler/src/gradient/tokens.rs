//! Costs of errors in vocabulary rows: at logits and at lookups.
//!
//! A text covers a small part of a large vocabulary. Good-Turing ([Good
//! 1953](https://doi.org/10.1093/biomet/40.3-4.237)): the share of new tokens in the next text is
//! that of tokens that occur once in this one, about a fifth of some ten thousand tokens in 262144
//! rows. Unseen rows receive that share: half of it evenly, half by the model's predictions.

use htc_formats::model::MatrixId;

use super::{Gradients, NoMatrix};

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
    ///
    /// # Errors
    /// [`NoMatrix`] for gradients of another model.
    pub fn token_costs(&self) -> Result<TokenCosts, NoMatrix> {
        let logits = self.for_matrix(MatrixId::Head)?.diagonal;
        Ok(expected(logits, self.shares()?))
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
mod tests {
    use super::*;

    #[test]
    fn unseen_rows_get_the_share_of_singletons() {
        // Ten tokens: one occurs six times, four once; three are unseen, of which the model
        // predicts one.
        let shares = vec![0.6, 0.1, 0.0, 0.1, 0.1, 0.0, 0.1, 0.0];
        let logits = vec![0.2, 0.1, 0.0, 0.1, 0.1, 0.04, 0.1, 0.0];
        let found = expected(logits.clone(), shares.clone());
        let close = |a: f32, b: f64| (f64::from(a) - b).abs() < 1e-6;
        assert!(close(found.lookups[0], 0.36) && close(found.lookups[1], 0.06));
        assert!(close(found.lookups[2], 0.4 / 6.0), "{:?}", found.lookups);
        assert!(close(found.lookups[5], 0.2 + 0.4 / 6.0));
        assert!(close(found.lookups.iter().sum(), 1.0));
        // Smoothing preserves the sum of the logit costs.
        let sum = |all: &[f32]| all.iter().sum::<f32>();
        assert!(close(sum(&found.logits), f64::from(sum(&logits))));
        assert!(close(found.logits[2], 0.02 / 3.0) && close(found.logits[0], 0.2));
    }

    #[test]
    fn complete_coverage_is_not_smoothed() {
        let (logits, shares) = (vec![0.1, 0.3], vec![0.5, 0.5]);
        let found = expected(logits.clone(), shares.clone());
        assert_eq!((found.logits, found.lookups), (logits, shares));
    }
}
