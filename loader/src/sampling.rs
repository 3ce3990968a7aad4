//! Choosing the next token from the logits of a forward pass.
//!
//! The order is llama.cpp's: the `top_k` best logits, of those the nucleus of probability `top_p`
//! (Holtzman et al. 2020), and only then the temperature, which therefore does not change what is
//! kept. Ties go to the lower token id throughout, so that a seed fixes the text.

use std::cmp::Ordering;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use thiserror::Error;

/// How to sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingOptions {
    /// Divides the logits; 0 takes the most probable token.
    pub temperature: f32,
    /// Number of tokens kept; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Seed of the generator.
    pub seed: u64,
}

/// Why there is no sample.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum SamplingError {
    /// A temperature that makes no distribution.
    #[error("temperature is {found}, expected a finite number of at least 0; 0 is greedy")]
    Temperature {
        /// The value given.
        found: f32,
    },
    /// A probability outside its range.
    #[error("top-p is {found}, expected more than 0 and at most 1; 1 keeps every token")]
    TopP {
        /// The value given.
        found: f32,
    },
    /// No logits at all.
    #[error("there are no logits to sample from, expected one for each token of the vocabulary")]
    Empty,
    /// A logit that is not a finite number.
    #[error("logit of token {token} is {found}, expected a finite number; verify the model file")]
    NotFinite {
        /// Id of the first such token.
        token: usize,
        /// Its logit.
        found: f32,
    },
}

/// Draws tokens; the same seed and the same logits give the same tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplingOptions,
    generator: Pcg64Mcg,
    /// Candidates of the call in progress, kept for their memory.
    candidates: Vec<Candidate>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    logit: f32,
    token: u32,
}

/// The more probable first.
fn rank(a: &Candidate, b: &Candidate) -> Ordering {
    // `partial_cmp` rather than `total_cmp`: the two zeros tie, and there is no NaN.
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

impl Sampler {
    /// # Errors
    /// An option is outside its range.
    pub fn new(options: SamplingOptions) -> Result<Self, SamplingError> {
        if !(options.temperature.is_finite() && options.temperature >= 0.0) {
            return Err(SamplingError::Temperature { found: options.temperature });
        }
        if !(options.top_p > 0.0 && options.top_p <= 1.0) {
            return Err(SamplingError::TopP { found: options.top_p });
        }
        let generator = Pcg64Mcg::seed_from_u64(options.seed);
        Ok(Self { options, generator, candidates: Vec::new() })
    }

    /// The next token, given one logit per token of the vocabulary.
    ///
    /// # Errors
    /// `logits` is empty or holds a number that is not finite.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        if let Some(token) = logits.iter().position(|logit| !logit.is_finite()) {
            return Err(SamplingError::NotFinite { token, found: logits[token] });
        }
        let all = (0..).zip(logits).map(|(token, &logit)| Candidate { logit, token });
        let best = all.clone().min_by(rank).ok_or(SamplingError::Empty)?;
        if self.options.temperature == 0.0 {
            return Ok(best.token);
        }
        self.candidates.clear();
        self.candidates.extend(all);
        self.keep_top_k();
        self.keep_top_p(best.logit);
        Ok(self.draw(best))
    }

    fn keep_top_k(&mut self) {
        let k = self.options.top_k;
        if (1..self.candidates.len()).contains(&k) {
            self.candidates.select_nth_unstable_by(k - 1, rank);
            self.candidates.truncate(k);
        }
    }

    /// Sorts only as many candidates as it takes to reach `top_p`.
    fn keep_top_p(&mut self, best: f32) {
        if self.options.top_p == 1.0 {
            return;
        }
        let weight = |candidate: &Candidate| (f64::from(candidate.logit) - f64::from(best)).exp();
        let wanted =
            f64::from(self.options.top_p) * self.candidates.iter().map(weight).sum::<f64>();
        let (mut sorted, mut step, mut reached) = (0, 64, 0.0);
        while sorted < self.candidates.len() {
            let rest = &mut self.candidates[sorted..];
            let step_len = step.min(rest.len());
            if step_len < rest.len() {
                rest.select_nth_unstable_by(step_len - 1, rank);
            }
            rest[..step_len].sort_unstable_by(rank);
            for candidate in &rest[..step_len] {
                sorted += 1;
                reached += weight(candidate);
                if reached >= wanted {
                    self.candidates.truncate(sorted);
                    return;
                }
            }
            step *= 4;
        }
    }

    /// One of the candidates, with probability proportional to exp(logit / temperature).
    fn draw(&mut self, best: Candidate) -> u32 {
        // Selecting leaves an order that the standard library does not promise to keep.
        self.candidates.sort_unstable_by_key(|candidate| candidate.token);
        let temperature = f64::from(self.options.temperature);
        let weight = |candidate: &Candidate| {
            ((f64::from(candidate.logit) - f64::from(best.logit)) / temperature).exp()
        };
        let total: f64 = self.candidates.iter().map(weight).sum();
        // The 53 bits of a double's significand: uniform in [0, 1).
        let uniform = (self.generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut remaining = uniform * total;
        for candidate in &self.candidates {
            let weight = weight(candidate);
            if remaining < weight {
                return candidate.token;
            }
            remaining -= weight;
        }
        // Rounding can leave a remainder at the end; the best token cannot be wrong.
        best.token
    }
}
