//! The smallest artifact that holds a limit.

use super::Planner;
use super::TrialError;
use super::bench::{Bench, Candidate};
use crate::calibrate::windows::Windows;
use crate::measure::{Distance, Interval};
use crate::plan::{Budget, PlanError};
use crate::request::Limit;

impl Limit {
    /// Whether a candidate holds it: with the upper end of its 95 % interval, since a search over a
    /// dozen candidates would else find the one that chance favours. Without an interval nothing is
    /// known to hold.
    pub(super) fn holds(self, found: &Distance) -> bool {
        let within = |limit: Option<f64>, interval: Option<Interval>| {
            let held = |limit| interval.is_some_and(|(_, upper)| upper <= limit);
            limit.is_none_or(held)
        };
        let ratio = self.perplexity_increase.map(|increase| 1.0 + increase);
        within(ratio, found.perplexity_ratio_interval) && within(self.kl, found.kl_interval)
    }
}

impl Bench<'_> {
    /// The smallest artifact that holds the limit, by bisection over ratios in steps of a hundredth:
    /// what holds at a ratio is taken to hold at larger ones.
    pub(super) fn smallest(
        &self,
        planner: Planner,
        start: Candidate,
        limit: Limit,
        windows: &Windows,
    ) -> Result<Candidate, TrialError> {
        let treatment = start.treatment;
        let at = |hundredths: u32| -> Result<Option<Candidate>, TrialError> {
            match planner(Some(f64::from(hundredths) / 100.0)) {
                Ok(plan) => Ok(Some(self.measure(&plan, treatment, windows)?)),
                // Smaller than floors and granularity allow.
                Err(PlanError::RatioTooSmall { .. } | PlanError::BudgetTooSmall { .. }) => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        let started = match start.plan.request().budget {
            Budget::Ratio(ratio) => (100.0 * ratio).round() as u32,
            _ => 100,
        };
        let (mut fails, mut holds) = (0, started);
        let mut best = start;
        if !limit.holds(&best.distance) {
            (fails, holds) = (started, 100);
            if let Some(largest) = if started < 100 { at(100)? } else { None } {
                self.discard(&best);
                best = largest;
            }
        }
        if !limit.holds(&best.distance) {
            return Err(TrialError::Limit {
                limit,
                ratio: best.plan.ratio(),
                found: Box::new(best.distance),
            });
        }
        while holds - fails > 1 {
            let middle = (fails + holds) / 2;
            let found = at(middle)?;
            match found {
                Some(found) if limit.holds(&found.distance) => {
                    holds = middle;
                    // Of two that hold it, the one of fewer bytes.
                    let (smaller, larger) = match found.bytes <= best.bytes {
                        true => (found, best),
                        false => (best, found),
                    };
                    self.discard(&larger);
                    best = smaller;
                }
                Some(found) => {
                    fails = middle;
                    self.discard(&found);
                }
                None => fails = middle,
            }
        }
        Ok(best)
    }
}
