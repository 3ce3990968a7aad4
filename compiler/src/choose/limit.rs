//! The smallest artifact that holds a limit.

use super::Planner;
use super::TrialError;
use super::bench::{Bench, Candidate};
use crate::calibrate::windows::Windows;
use crate::measure::{Distance, Interval};
use crate::plan::{Method, PlanError};
use crate::request::Limit;

impl Limit {
    /// Whether a candidate holds it: with the upper end of its 95 % interval, since a search over a
    /// dozen candidates would else find the one that chance favours. Without an interval nothing is
    /// known to hold.
    ///
    /// A perplexity counts over all positions, which say as much about it as twice as many windows by their second
    /// halves. It is to hold on text that the source itself would write, too, where its increase is the exponential of
    /// the divergence: `E log p/q` over `p`. What a text's own tokens add to that is chance for the most part, and differs
    /// from one kind of text to another; a divergence is known four times as well, and a search does not find the size at
    /// which chance is kind.
    pub(super) fn holds(self, found: &Distance) -> bool {
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

impl Bench<'_> {
    /// The smallest artifact that holds the limit, by bisection over ratios in steps of a hundredth, of sizes of
    /// files in finer ones: what holds at a ratio is taken to hold at larger ones. Sizes are sought near the one
    /// that was expected to hold it. `ratio` is that of the start.
    pub(super) fn smallest(
        &self,
        planner: Planner,
        start: Candidate,
        ratio: f64,
        limit: Limit,
        windows: &Windows,
    ) -> Result<Candidate, TrialError> {
        let treatment = start.treatment;
        let Steps { whole, mut stride } = match start.plan.request().method {
            Method::Quantise => STEPS_OF_FILES,
            Method::PerSlot | Method::SharedBasis => STEPS_OF_FACTORS,
        };
        let at = |steps: u32| -> Result<Option<Candidate>, TrialError> {
            match planner(Some(f64::from(steps) / f64::from(whole))) {
                Ok(plan) => Ok(Some(self.measure(&plan, treatment, windows)?)),
                // Smaller than floors and granularity allow.
                Err(
                    PlanError::RatioTooSmall { .. }
                    | PlanError::BudgetTooSmall { .. }
                    | PlanError::FileTooSmall { .. },
                ) => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        let started = (f64::from(whole) * ratio).round() as u32;
        let (mut fails, mut holds) = (0, started);
        let mut best = start;
        // Larger ones until one holds it.
        while !limit.holds(&best.distance) {
            if holds >= whole {
                return Err(TrialError::Limit {
                    limit,
                    ratio: best.plan.ratio(),
                    found: Box::new(best.distance),
                });
            }
            (fails, holds) = (holds, (holds + stride).min(whole));
            stride *= 2;
            if let Some(larger) = at(holds)? {
                self.discard(&best);
                best = larger;
            }
        }
        while holds - fails > 1 {
            // Smaller ones until one does not, then between the two.
            let next = match fails {
                0 if holds > stride => holds - stride,
                _ => (fails + holds) / 2,
            };
            stride *= 2;
            match at(next)? {
                Some(found) if limit.holds(&found.distance) => {
                    holds = next;
                    // Of two that hold it, the one of fewer bytes.
                    let (smaller, larger) = match found.bytes <= best.bytes {
                        true => (found, best),
                        false => (best, found),
                    };
                    self.discard(&larger);
                    best = smaller;
                }
                Some(found) => {
                    fails = next;
                    self.discard(&found);
                }
                None => fails = next,
            }
        }
        Ok(best)
    }
}

/// Steps between which a search decides.
struct Steps {
    /// Of the whole.
    whole: u32,
    /// Of the first guess to the next.
    stride: u32,
}

const STEPS_OF_FACTORS: Steps = Steps {
    whole: 100,
    stride: 100,
};

const STEPS_OF_FILES: Steps = Steps {
    whole: 512,
    stride: 12,
};
