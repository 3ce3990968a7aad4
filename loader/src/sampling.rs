//! Sampling of the next token from logits.
//!
//! As in llama.cpp: the `top_k` best logits, of those the nucleus of probability `top_p` (Holtzman
//! et al. 2020), then the temperature. Ties go to the lower token id.

use std::cmp::Ordering;

use crate::error::{ExecError, Result};
pub use htc_kernels::cuda::ops::SamplingParameters;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

mod distribution;

pub use distribution::{Distribution, DraftVerdict};

/// Sampling options. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SamplingOptions {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Number of tokens kept; 0 keeps all.
    pub top_k: usize,
    /// Smallest probability of the kept set; 1 keeps all.
    pub top_p: f32,
    /// Seed of the generator.
    pub seed: u64,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        SamplingOptions {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            seed: 0,
        }
    }
}

/// Part of the logits that a sampler needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LogitsRequest {
    /// All logits.
    All,
    /// The k largest.
    TopK(usize),
    /// A token drawn on the device.
    Drawn(SamplingParameters),
}

/// Logits, or a part of them, to sample from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SamplerInput<'a> {
    /// One logit per token of the vocabulary.
    All(&'a [f32]),
    /// The largest ones, as many as the sampler [wants](Sampler::logits_for_distribution), in
    /// descending order, of equal ones the lower id first. All logits are finite, including the
    /// others.
    TopK(&'a [(u32, f32)]),
    /// Token [drawn](SamplingParameters) on the device from finite logits.
    Drawn(u32),
}

/// Token sampler, deterministic for a seed and device; a [device draw](SamplingParameters) rounds
/// weights differently.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplingOptions,
    generator: Pcg64Mcg,
    candidates: Vec<Candidate>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    logit: f32,
    token: u32,
}

fn by_descending_logit(a: &Candidate, b: &Candidate) -> Ordering {
    // `partial_cmp` rather than `total_cmp`: the two zeros tie, and there is no NaN.
    b.logit
        .partial_cmp(&a.logit)
        .unwrap_or(Ordering::Equal)
        .then(a.token.cmp(&b.token))
}

impl Sampler {
    /// Creates a sampler.
    ///
    /// # Errors
    /// An option is out of range.
    pub fn new(options: SamplingOptions) -> Result<Self> {
        if !(options.temperature.is_finite() && options.temperature >= 0.0) {
            return Err(ExecError::Temperature {
                found: options.temperature,
            });
        }
        if !(options.top_p > 0.0 && options.top_p <= 1.0) {
            return Err(ExecError::TopP {
                found: options.top_p,
            });
        }
        Ok(Self::from_valid_options(options))
    }

    /// Creates a greedy sampler.
    pub fn greedy() -> Self {
        Self::from_valid_options(SamplingOptions::default())
    }

    /// Creates a sampler with the same options and another random stream.
    pub fn with_other_stream(&self) -> Self {
        let mut options = self.options;
        options.seed ^= 0x9e37_79b9_7f4a_7c15;
        Self::from_valid_options(options)
    }

    fn from_valid_options(options: SamplingOptions) -> Self {
        Self {
            options,
            generator: Pcg64Mcg::seed_from_u64(options.seed),
            candidates: Vec::new(),
        }
    }

    /// Returns the next token, given one logit per token of the vocabulary.
    ///
    /// # Errors
    /// `logits` is empty or has a number that is not finite.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        self.sample_from(SamplerInput::All(logits))
    }

    /// Returns the part of the logits needed for a [distribution](Sampler::distribution_from).
    pub fn logits_for_distribution(&self) -> LogitsRequest {
        match (self.options.temperature, self.options.top_k) {
            (0.0, _) => LogitsRequest::TopK(1),
            (_, 0) => LogitsRequest::All,
            (_, k) => LogitsRequest::TopK(k),
        }
    }

    /// Returns the part of the logits needed for one [sample](Sampler::sample_from).
    pub fn logits_for_sample(&self) -> LogitsRequest {
        let SamplingOptions {
            temperature,
            top_k,
            top_p,
            ..
        } = self.options;
        if temperature == 0.0 {
            return LogitsRequest::TopK(1);
        }
        LogitsRequest::Drawn(SamplingParameters {
            temperature,
            top_k,
            top_p,
            uniform: uniform(&mut self.generator.clone()),
        })
    }

    /// Samples from the part of the logits that it [wants](Sampler::logits_for_sample), or more.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn sample_from(&mut self, logits: SamplerInput) -> Result<u32> {
        if let SamplerInput::Drawn(token) = logits {
            uniform(&mut self.generator);
            return Ok(token);
        }
        let best = self.select_candidates_from(logits)?;
        match self.options.temperature {
            0.0 => Ok(best.token),
            _ => Ok(self.draw(best)),
        }
    }

    fn select_candidates_from(&mut self, logits: SamplerInput) -> Result<Candidate> {
        let largest = match logits {
            SamplerInput::All(logits) => return self.select_candidates(logits),
            SamplerInput::TopK(largest) => largest,
            SamplerInput::Drawn(_) => return Err(ExecError::Drawn),
        };
        let all = largest.iter();
        let mut all = all.map(|&(token, logit)| Candidate { logit, token });
        let best = all.clone().next().ok_or(ExecError::NoLogits)?;
        self.candidates.clear();
        if self.options.temperature != 0.0 {
            self.candidates.extend(&mut all);
            self.keep_top_p(best.logit);
        }
        Ok(best)
    }

    /// Selects the candidates, none at temperature 0; returns the best.
    fn select_candidates(&mut self, logits: &[f32]) -> Result<Candidate> {
        if let Some(token) = logits.iter().position(|logit| !logit.is_finite()) {
            return Err(ExecError::LogitNotFinite {
                token,
                found: logits[token],
            });
        }
        let all = (0..)
            .zip(logits)
            .map(|(token, &logit)| Candidate { logit, token });
        let best = all
            .clone()
            .min_by(by_descending_logit)
            .ok_or(ExecError::NoLogits)?;
        self.candidates.clear();
        if self.options.temperature == 0.0 {
            return Ok(best);
        }
        self.candidates.extend(all);
        self.keep_top_k();
        self.keep_top_p(best.logit);
        Ok(best)
    }

    fn keep_top_k(&mut self) {
        let k = self.options.top_k;
        if (1..self.candidates.len()).contains(&k) {
            self.candidates
                .select_nth_unstable_by(k - 1, by_descending_logit);
            self.candidates.truncate(k);
        }
    }

    /// Sorts only as many candidates as needed to reach `top_p`.
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
                rest.select_nth_unstable_by(step_len - 1, by_descending_logit);
            }
            rest[..step_len].sort_unstable_by(by_descending_logit);
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

    fn draw(&mut self, best: Candidate) -> u32 {
        // Selection leaves an unspecified order.
        self.candidates
            .sort_unstable_by_key(|candidate| candidate.token);
        let temperature = f64::from(self.options.temperature);
        let weight = |candidate: &Candidate| {
            ((f64::from(candidate.logit) - f64::from(best.logit)) / temperature).exp()
        };
        let total: f64 = self.candidates.iter().map(weight).sum();
        let mut remaining = uniform(&mut self.generator) * total;
        for candidate in &self.candidates {
            let weight = weight(candidate);
            if remaining < weight {
                return candidate.token;
            }
            remaining -= weight;
        }
        // Rounding can leave a remainder.
        best.token
    }
}

fn uniform(generator: &mut Pcg64Mcg) -> f64 {
    (generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;
