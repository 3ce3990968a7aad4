//! Which treatment of the weights measures best.

use super::TrialError;
use super::bench::{Bench, Candidate};
use super::wanted::Wanted;
use crate::calibrate::windows::Windows;
use crate::plan::Plan;
use crate::request::{GaugeKind, Treatment};

impl Bench<'_> {
    /// The best gauge, then with biases or without.
    pub(super) fn best_treatment(
        &self,
        plan: &Plan,
        wanted: Wanted,
        windows: &Windows,
    ) -> Result<Candidate, TrialError> {
        let mut best: Option<Candidate> = None;
        for treatment in wanted.gauges()? {
            let found = self.measure(plan, treatment, windows)?;
            best = Some(match best {
                Some(best) => self.better(best, found),
                None => found,
            });
        }
        let Some(mut best) = best else {
            return Err(TrialError::FewHeldOut {
                what: "`gauge`".into(),
                found: 0,
                needed: 1,
            });
        };
        // A gauge that follows from the weights alone is taken only where it gains: a smaller tail in its
        // own coordinates is not a better model.
        if best.treatment.gauge.is_unproven() {
            let plain = Treatment {
                gauge: GaugeKind::None,
                ..best.treatment
            };
            let none = self.measure(plan, plain, windows)?;
            self.discard(&none);
            if none.distance.kl < best.distance.kl && !wanted.goal.keep_gauge {
                return Err(TrialError::Worse {
                    gauge: best.treatment.gauge,
                    tail: self.tail(&best),
                    found: best.distance.kl,
                    none: none.distance.kl,
                    found_ratio: best.distance.perplexity_ratio,
                    none_ratio: none.distance.perplexity_ratio,
                });
            }
        }
        if wanted.tries_biases() {
            let corrected = Treatment {
                bias: true,
                ..best.treatment
            };
            let found = self.measure(plan, corrected, windows)?;
            best = self.better(best, found);
        }
        Ok(best)
    }
}
