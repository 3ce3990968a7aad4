//! The smallest artifact that holds a limit.

use super::Planner;
use super::TrialError;
use super::bench::{Bench, Candidate};
use crate::calibrate::windows::Windows;
use crate::measure::{Distance, Interval};
use crate::plan::Method;
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

impl Bench<'_> {
    /// The smallest artifact that holds the limit, by [`smallest`] over ratios in steps of a hundredth, of sizes of
    /// files in finer ones. `ratio` is that of the start.
    pub(super) fn smallest(
        &self,
        planner: Planner,
        start: Candidate,
        ratio: f64,
        limit: Limit,
        windows: &Windows,
    ) -> Result<Candidate, TrialError> {
        let treatment = start.treatment;
        let steps = match start.plan.request().method {
            Method::Quantise => STEPS_OF_FILES,
            Method::PerSlot | Method::SharedBasis => STEPS_OF_FACTORS,
        };
        let at = |ratio: f64| -> Result<Option<Candidate>, TrialError> {
            match planner(Some(ratio)) {
                Ok(plan) => Ok(Some(self.measure(&plan, treatment, windows)?)),
                Err(error) if error.is_too_small() => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        let search = Search {
            holds: &|found: &Candidate| limit.holds(&found.distance),
            bytes: &|found: &Candidate| found.bytes,
            discard: &|found: &Candidate| self.discard(found),
        };
        search
            .smallest(steps, (ratio, start), at)?
            .map_err(|closest| TrialError::Limit {
                limit,
                ratio: closest.plan.ratio(),
                found: Box::new(closest.distance),
            })
    }
}

/// What a search for a size asks of what it finds.
pub struct Search<'a, C> {
    /// Whether it holds the limit.
    pub holds: &'a dyn Fn(&C) -> bool,
    /// Its bytes.
    pub bytes: &'a dyn Fn(&C) -> u64,
    /// Leaves no trace of it.
    pub discard: &'a dyn Fn(&C),
}

impl<C> Search<'_, C> {
    /// The smallest that holds, by bisection over ratios: what holds at a ratio is taken to hold at larger ones, and
    /// sizes are sought near that of `start`, which is there. `at` makes what has a ratio; `None` where nothing is that small.
    /// An error is what came of the whole, which does not hold either.
    ///
    /// # Errors
    /// Those of `at`.
    pub fn smallest<E>(
        &self,
        Steps { whole, mut stride }: Steps,
        (ratio, start): (f64, C),
        mut at: impl FnMut(f64) -> Result<Option<C>, E>,
    ) -> Result<Result<C, C>, E> {
        let mut at = |steps: u32| at(f64::from(steps) / f64::from(whole));
        let started = (f64::from(whole) * ratio).round() as u32;
        let (mut fails, mut holds) = (0, started);
        let mut best = start;
        // Larger ones until one holds it.
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
            // Smaller ones until one does not, then between the two.
            let next = match fails {
                0 if holds > stride => holds - stride,
                _ => (fails + holds) / 2,
            };
            stride *= 2;
            match at(next)? {
                Some(found) if (self.holds)(&found) => {
                    holds = next;
                    // Of two that hold it, the one of fewer bytes.
                    let (smaller, larger) = match (self.bytes)(&found) <= (self.bytes)(&best) {
                        true => (found, best),
                        false => (best, found),
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

/// Steps between which a search decides.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// Of the whole.
    whole: u32,
    /// Of the first guess to the next.
    stride: u32,
}

const STEPS_OF_FACTORS: Steps = Steps {
    whole: 100,
    stride: 100,
};

/// Those of sizes of files.
pub const STEPS_OF_FILES: Steps = Steps {
    whole: 512,
    stride: 12,
};

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;

    use super::*;

    /// What is found where ratios of at least `least` can be made and those of at least `enough` hold, and the ratios
    /// that were tried.
    fn found(start: f64, least: f64, enough: f64) -> (Result<f64, f64>, usize) {
        let there = RefCell::new(vec![start]);
        let search = Search {
            holds: &|found: &f64| *found >= enough,
            bytes: &|found: &f64| (1e6 * found) as u64,
            discard: &|found: &f64| there.borrow_mut().retain(|one| one != found),
        };
        let mut tried = 0;
        let found = search.smallest(STEPS_OF_FILES, (start, start), |ratio| {
            tried += 1;
            let made = (ratio >= least).then_some(ratio);
            there.borrow_mut().extend(made);
            Ok::<_, Infallible>(made)
        });
        let Ok(found) = found;
        let (Ok(kept) | Err(kept)) = found;
        assert_eq!(*there.borrow(), [kept], "nothing else is left");
        (found, tried)
    }

    #[test]
    fn the_smallest_that_holds_is_found_from_either_side() {
        let step = 1.0 / 512.0;
        for (start, least, enough) in [
            (0.25, 0.1, 0.3),
            (0.25, 0.1, 0.2),
            (0.25, 0.24, 0.1),
            (0.25, 0.1, 1.0),
            (1.0, 0.1, 0.15),
        ] {
            let (found, tried) = found(start, least, enough);
            let found = found.unwrap();
            let wanted = f64::max(least, enough);
            assert!(found >= wanted && found < wanted + step, "{found} {wanted}");
            assert!(tried <= 16, "{tried}");
        }
        assert_eq!(super::tests::found(0.25, 0.1, 1.5).0, Err(1.0));
    }
}
