//! Distribution of a sampler, and the acceptance rule of speculative sampling.

use super::{Candidate, Sampler, SamplerInput, uniform};
use crate::error::Result;

/// Tokens with their probabilities, ordered by id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    tokens: Vec<(u32, f64)>,
}

/// Verdict on a drafted token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftVerdict {
    /// The token is kept.
    Accepted,
    /// Another token replaces it.
    Replaced(u32),
}

impl Distribution {
    /// Returns the probability of a token; 0 if it is never drawn.
    pub fn probability(&self, token: u32) -> f64 {
        let found = self.tokens.binary_search_by_key(&token, |&(id, _)| id);
        found.map_or(0.0, |at| self.tokens[at].1)
    }

    /// Returns the possible tokens with their probabilities.
    pub fn tokens(&self) -> &[(u32, f64)] {
        &self.tokens
    }
}

impl Sampler {
    /// Computes the distribution of [`Sampler::sample`].
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn distribution(&mut self, logits: &[f32], out: &mut Distribution) -> Result<()> {
        self.distribution_from(SamplerInput::All(logits), out)
    }

    /// Computes the distribution of [`Sampler::sample_from`].
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn distribution_from(
        &mut self,
        logits: SamplerInput,
        out: &mut Distribution,
    ) -> Result<()> {
        let best = self.select_candidates_from(logits)?;
        out.tokens.clear();
        if self.candidates.is_empty() {
            out.tokens.push((best.token, 1.0));
            return Ok(());
        }
        let temperature = f64::from(self.options.temperature);
        let weight = |candidate: &Candidate| {
            ((f64::from(candidate.logit) - f64::from(best.logit)) / temperature).exp()
        };
        let total: f64 = self.candidates.iter().map(weight).sum();
        let all = self.candidates.iter();
        let all = all.map(|candidate| (candidate.token, weight(candidate) / total));
        out.tokens.extend(all);
        out.tokens.sort_unstable_by_key(|&(token, _)| token);
        Ok(())
    }

    /// Draws one token of a distribution.
    pub fn draw_from(&mut self, from: &Distribution) -> u32 {
        let total = from.tokens.iter().map(|&(_, p)| p).sum();
        self.draw_weighted(from.tokens.iter().copied(), total)
    }

    /// Accepts `token`, drawn from `draft`, with probability `own / draft` of it; otherwise draws
    /// from the excess of `own` over `draft`. The outcome is distributed as `own` (Leviathan,
    /// Kalman and Matias 2023, algorithm 1; Chen et al. 2023).
    pub fn verify_token(
        &mut self,
        own: &Distribution,
        draft: &Distribution,
        token: u32,
    ) -> DraftVerdict {
        let (p, q) = (own.probability(token), draft.probability(token));
        // Certain acceptance uses no random number.
        if p >= q || uniform(&mut self.generator) * q < p {
            return DraftVerdict::Accepted;
        }
        let more = |&(token, p): &(u32, f64)| (token, (p - draft.probability(token)).max(0.0));
        let rest = own.tokens.iter().map(more);
        let total: f64 = rest.clone().map(|(_, p)| p).sum();
        DraftVerdict::Replaced(if total > 0.0 {
            self.draw_weighted(rest, total)
        } else {
            self.draw_from(own)
        })
    }

    fn draw_weighted(&mut self, from: impl Iterator<Item = (u32, f64)>, total: f64) -> u32 {
        let mut remaining = uniform(&mut self.generator) * total;
        let mut last = 0;
        for (token, weight) in from {
            if remaining < weight {
                return token;
            }
            remaining -= weight;
            if weight > 0.0 {
                last = token;
            }
        }
        last
    }
}

#[cfg(test)]
mod tests;
