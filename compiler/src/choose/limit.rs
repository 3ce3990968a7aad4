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
        self.relative_loss(found) <= 1.0
    }

    /// Returns the loss at the upper end of its interval relative to the limit: the largest of all
    /// conditions of [`holds`](Self::holds), infinite without an interval.
    pub(crate) fn relative_loss(self, found: &Distance) -> f64 {
        let relative = |limit: Option<f64>, interval: Option<Interval>| {
            let upper = interval.map_or(f64::INFINITY, |(_, upper)| upper);
            let loss_over_limit = |limit: f64| match upper / limit {
                _ if upper == 0.0 => 0.0,
                ratio if ratio.is_nan() => f64::INFINITY,
                ratio => ratio,
            };
            limit.map_or(0.0, loss_over_limit)
        };
        let log = |(low, high): Interval| (low.ln(), high.ln());
        let nats = self.perplexity_increase.map(f64::ln_1p);
        let ratio = found.perplexity_ratio_all_interval.map(log);
        let kl = found.kl_interval;
        relative(nats, ratio)
            .max(relative(nats, kl))
            .max(relative(self.kl, kl))
    }
}

impl CandidateEvaluator<'_> {
    /// Returns the smallest artifact within the limit, by [`SizeSearch`] over ratios in steps of a
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
            loss: &|found: &Candidate| limit.relative_loss(&found.distance),
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
    /// Returns the loss of a candidate relative to the limit: at most 1 within it.
    pub loss: &'a dyn Fn(&C) -> f64,
    /// Returns the bytes of a candidate.
    pub bytes: &'a dyn Fn(&C) -> u64,
    /// Deletes a candidate.
    pub discard: &'a dyn Fn(&C),
}

/// Candidates placed by interpolation, before bisection.
const INTERPOLATIONS: usize = 4;

/// Expected distance of the limit from the smallest candidate, in steps, for which the next step is
/// not tried.
const CLOSE_STEPS: f64 = 0.5;

/// Steps between which the smallest candidate lies, with logarithms of relative losses.
struct Bracket {
    fails: u32,
    /// `None` if there is no candidate.
    log_of_fails: Option<f64>,
    holds: u32,
    log_of_holds: f64,
    placed: usize,
}

impl<C> SizeSearch<'_, C> {
    /// Finds the smallest candidate within the limit over ratios, assuming monotonicity and
    /// starting near `start`: with file sizes by interpolation of the logarithm of the loss, which
    /// is about linear in the bytes, else by bisection. `at` makes the candidate of a ratio, if
    /// there is one. The inner error is the whole model if even that exceeds the limit.
    ///
    /// # Errors
    /// Those of `at`.
    pub fn find_smallest<E>(
        &self,
        steps: SearchSteps,
        ratio: f64,
        start: C,
        mut at: impl FnMut(f64) -> Result<Option<C>, E>,
    ) -> Result<Result<C, C>, E> {
        let SearchSteps { whole, stride, .. } = steps;
        let mut at = |steps: u32| at(f64::from(steps) / f64::from(whole));
        let log = |of: &C| (self.loss)(of).ln();
        let mut best = start;
        let mut bracket = Bracket {
            fails: 0,
            log_of_fails: None,
            holds: (f64::from(whole) * ratio).round() as u32,
            log_of_holds: log(&best),
            placed: 0,
        };
        // Steps grow even where the loss does not fall as expected.
        let (mut stride, mut least) = (stride, 1_u32);
        while (self.loss)(&best) > 1.0 || (self.loss)(&best).is_nan() {
            if bracket.holds >= whole {
                return Ok(Err(best));
            }
            let expected = steps.upwards(log(&best)).unwrap_or(stride);
            let step = expected.min(stride).max(least);
            least = step.saturating_mul(2);
            bracket.fails = bracket.holds;
            bracket.log_of_fails = Some(log(&best));
            bracket.holds = (bracket.holds + step).min(whole);
            stride = stride.saturating_mul(2);
            if let Some(larger) = at(bracket.holds)? {
                (self.discard)(&best);
                best = larger;
                bracket.log_of_holds = log(&best);
            }
        }
        while let Some(next) = bracket.next(steps, &mut stride) {
            match at(next)? {
                Some(found) if (self.loss)(&found) <= 1.0 => {
                    (bracket.holds, bracket.log_of_holds) = (next, log(&found));
                    let (smaller, larger) = if (self.bytes)(&found) <= (self.bytes)(&best) {
                        (found, best)
                    } else {
                        (best, found)
                    };
                    (self.discard)(&larger);
                    best = smaller;
                }
                Some(found) => {
                    (bracket.fails, bracket.log_of_fails) = (next, Some(log(&found)));
                    (self.discard)(&found);
                }
                None => (bracket.fails, bracket.log_of_fails) = (next, None),
            }
        }
        Ok(Ok(best))
    }
}

impl Bracket {
    /// Returns the next step to try; `None` if the smallest candidate is found.
    fn next(&mut self, steps: SearchSteps, stride: &mut u32) -> Option<u32> {
        let width = self.holds - self.fails;
        if width <= 1 {
            return None;
        }
        if let Some(slope) = self.slope(steps) {
            self.placed += 1;
            let left = -self.log_of_holds / slope;
            // A line through distant candidates may be steeper than the loss beside this one.
            if left.max(-self.log_of_holds / steps.expected_slope()?) < CLOSE_STEPS {
                return None;
            }
            // No further than to an eighth of the loss at once.
            let most = (3 * steps.doubling.unwrap_or(1)).min(width - 1);
            return Some(self.holds - (left as u32).clamp(1, most));
        }
        let next = match self.fails {
            0 if self.holds > *stride => self.holds - *stride,
            _ => (self.fails + self.holds) / 2,
        };
        *stride = stride.saturating_mul(2);
        Some(next)
    }

    /// Returns the growth of the logarithm of the loss for each step down, if it may be
    /// interpolated.
    fn slope(&self, steps: SearchSteps) -> Option<f64> {
        let expected = steps.expected_slope()?;
        let slope = match (self.fails, self.log_of_fails) {
            _ if self.placed >= INTERPOLATIONS => return None,
            (0, _) => expected,
            (fails, Some(log)) => (log - self.log_of_holds) / f64::from(self.holds - fails),
            (_, None) => return None,
        };
        (slope.is_finite() && slope > 0.0 && self.log_of_holds.is_finite()).then_some(slope)
    }
}

/// Steps of a search for a size.
#[derive(Clone, Copy, Debug)]
pub struct SearchSteps {
    /// Number of steps in a ratio of 1.
    whole: u32,
    stride: u32,
    /// Steps over which the loss about doubles; `None` if it has no such law.
    doubling: Option<u32>,
}

impl SearchSteps {
    /// Returns the expected growth of the logarithm of the loss for each step down.
    fn expected_slope(self) -> Option<f64> {
        Some(std::f64::consts::LN_2 / f64::from(self.doubling?))
    }

    /// Returns the expected number of steps up to the limit from a candidate beyond it.
    fn upwards(self, log_of_loss: f64) -> Option<u32> {
        let expected = (log_of_loss / self.expected_slope()?).ceil();
        expected.is_finite().then(|| expected.max(1.0) as u32)
    }
}

const STEPS_OF_FACTORS: SearchSteps = SearchSteps {
    whole: 100,
    stride: 100,
    doubling: None,
};

/// Steps for file sizes.
pub const STEPS_OF_FILES: SearchSteps = SearchSteps {
    whole: 512,
    stride: 12,
    doubling: Some(12),
};

#[cfg(test)]
mod tests;
