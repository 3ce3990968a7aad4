//! Search for the smallest artifact within a limit.

use super::TrialError;
use super::bench::{Candidate, CandidateEvaluator};
use crate::calibrate::windows::Windows;
use crate::measure::{Distance, Interval};
use crate::options::QualityLimit;
use crate::plan::Method;
use crate::planner::Planner;

impl QualityLimit {
    /// Returns true if a candidate is within the limit at the upper end of its 95 % interval, since
    /// the minimum over a dozen candidates is biased by chance.
    ///
    /// The perplexity uses all positions. It must also hold on text sampled from the source, where
    /// its increase is the exponential of the divergence; that is known about four times as
    /// precisely, so the search does not exploit chance.
    pub(crate) fn holds(self, found: &Distance) -> bool {
        let within = |limit: Option<f64>, interval: Option<Interval>| {
            let held = |limit| interval.is_some_and(|(_, upper)| upper <= limit);
            limit.is_none_or(held)
        };
        let ratio = self.perplexity_increase.map(|increase| 1.0 + increase);
        let of_source = ratio.map(f64::ln);
        within(ratio, found.perplexity_ratio_all_interval)
            && within(of_source, found.kl_interval)
            && within(self.kl, found.kl_interval)
    }
}

impl CandidateEvaluator<'_> {
    /// Returns the smallest artifact within the limit, by [`smallest`] over ratios in steps of a
    /// hundredth, finer for file sizes. `ratio` is the start.
    pub(super) fn find_smallest_artifact(
        &self,
        planner: &Planner,
        start: Candidate,
        ratio: f64,
        windows: &Windows,
    ) -> Result<Candidate, TrialError> {
        let (limit, treatment) = (self.selection.request.limit, start.treatment);
        let steps = match start.plan.request().method {
            Method::Quantise => STEPS_OF_FILES,
            Method::PerProjection | Method::SharedBasis => STEPS_OF_FACTORS,
        };
        let at = |ratio: f64| -> Result<Option<Candidate>, TrialError> {
            match planner.plan_at(ratio) {
                Ok(plan) => Ok(Some(self.measure(&plan, treatment, windows)?)),
                Err(error) if error.is_too_small() => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        let search = SizeSearch {
            holds: &|found: &Candidate| limit.holds(&found.distance),
            bytes: &|found: &Candidate| found.bytes,
            discard: &|found: &Candidate| self.discard(found),
        };
        search
            .find_smallest(steps, ratio, start, at)?
            .map_err(|closest| TrialError::Limit {
                limit,
                ratio: closest.plan.ratio(),
                found: Box::new(closest.distance),
            })
    }
}

/// Callbacks of the search for a size.
pub struct SizeSearch<'a, C> {
    /// Returns true if a candidate is within the limit.
    pub holds: &'a dyn Fn(&C) -> bool,
    /// Returns the bytes of a candidate.
    pub bytes: &'a dyn Fn(&C) -> u64,
    /// Deletes a candidate.
    pub discard: &'a dyn Fn(&C),
}

impl<C> SizeSearch<'_, C> {
    /// Finds the smallest candidate within the limit by bisection over ratios, assuming
    /// monotonicity and starting near `start`. `at` makes the candidate of a ratio, if there is
    /// one. The inner error is the whole model if even that exceeds the limit.
    ///
    /// # Errors
    /// Those of `at`.
    pub fn find_smallest<E>(
        &self,
        SearchSteps { whole, mut stride }: SearchSteps,
        ratio: f64,
        start: C,
        mut at: impl FnMut(f64) -> Result<Option<C>, E>,
    ) -> Result<Result<C, C>, E> {
        let mut at = |steps: u32| at(f64::from(steps) / f64::from(whole));
        let started = (f64::from(whole) * ratio).round() as u32;
        let (mut fails, mut holds) = (0, started);
        let mut best = start;
        while !(self.holds)(&best) {
            if holds >= whole {
                return Ok(Err(best));
            }
            (fails, holds) = (holds, (holds + stride).min(whole));
            stride *= 2;
            if let Some(larger) = at(holds)? {
                (self.discard)(&best);
                best = larger;
            }
        }
        while holds - fails > 1 {
            let next = match fails {
                0 if holds > stride => holds - stride,
                _ => (fails + holds) / 2,
            };
            stride *= 2;
            match at(next)? {
                Some(found) if (self.holds)(&found) => {
                    holds = next;
                    let (smaller, larger) = if (self.bytes)(&found) <= (self.bytes)(&best) {
                        (found, best)
                    } else {
                        (best, found)
                    };
                    (self.discard)(&larger);
                    best = smaller;
                }
                Some(found) => {
                    fails = next;
                    (self.discard)(&found);
                }
                None => fails = next,
            }
        }
        Ok(Ok(best))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct SearchSteps {
    /// Number of steps in a ratio of 1.
    whole: u32,
    stride: u32,
}

const STEPS_OF_FACTORS: SearchSteps = SearchSteps {
    whole: 100,
    stride: 100,
};

/// Steps for file sizes.
pub const STEPS_OF_FILES: SearchSteps = SearchSteps {
    whole: 512,
    stride: 12,
};

#[cfg(test)]
mod tests;
