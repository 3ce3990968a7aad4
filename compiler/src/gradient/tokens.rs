//! What errors cost in the rows of a vocabulary: as logits, and where they are looked up.
//!
//! A text has a small part of a large vocabulary. Of the tokens of the next text as many are new as this one has
//! tokens that occur once ([Good 1953](https://doi.org/10.1093/biomet/40.3-4.237)): about a fifth of some ten thousand
//! tokens in 262144 rows. Rows that the text lacks are given that part; half of it alike, for which of them come is not known, and half as
//! the model expects them.

use htc_formats::model::MatrixId;

use super::{Gradients, NoMatrix};

/// The least part of lookups that goes to tokens that the text lacks.
const LEAST_NEW: f64 = 0.01;

/// What errors of the rows of a vocabulary cost.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenCosts {
    /// Second moment of the gradient at every logit.
    pub logits: Vec<f32>,
    /// How often every row is looked up; they add up to 1.
    pub lookups: Vec<f32>,
}

impl Gradients {
    /// What is known of tokens, with what tokens may cost that the text lacks.
    ///
    /// # Errors
    /// [`NoMatrix`] for the gradients of another model.
    pub fn token_costs(&self) -> Result<TokenCosts, NoMatrix> {
        let logits = self.of(MatrixId::Head)?.diagonal;
        Ok(expected(logits, self.shares()?))
    }
}

/// Of what was found in a text what is to be expected of another.
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
    fn rows_that_the_text_lacks_have_the_part_of_those_that_occur_once() {
        // Ten tokens: one six times, four once; three rows are lacking, of which the model expects one.
        let shares = vec![0.6, 0.1, 0.0, 0.1, 0.1, 0.0, 0.1, 0.0];
        let logits = vec![0.2, 0.1, 0.0, 0.1, 0.1, 0.04, 0.1, 0.0];
        let found = expected(logits.clone(), shares.clone());
        let close = |a: f32, b: f64| (f64::from(a) - b).abs() < 1e-6;
        assert!(close(found.lookups[0], 0.36) && close(found.lookups[1], 0.06));
        assert!(close(found.lookups[2], 0.4 / 6.0), "{:?}", found.lookups);
        assert!(close(found.lookups[5], 0.2 + 0.4 / 6.0));
        assert!(close(found.lookups.iter().sum(), 1.0));
        // What errors of logits cost together is as it was; only who has it is not known.
        let sum = |all: &[f32]| all.iter().sum::<f32>();
        assert!(close(sum(&found.logits), f64::from(sum(&logits))));
        assert!(close(found.logits[2], 0.02 / 3.0) && close(found.logits[0], 0.2));
    }

    #[test]
    fn nothing_changes_where_the_text_lacks_nothing() {
        let (logits, shares) = (vec![0.1, 0.3], vec![0.5, 0.5]);
        let found = expected(logits.clone(), shares.clone());
        assert_eq!((found.logits, found.lookups), (logits, shares));
    }
}
