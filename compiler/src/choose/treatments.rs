//! Which treatment of the weights measures best.

use super::TrialError;
use super::bench::{Bench, Candidate};
use super::request::ChoiceRequest;
use crate::calibrate::windows::Windows;
use crate::plan::Plan;
use crate::request::{GaugeKind, Shrinkage, Treatment};

/// The windows that decide.
#[derive(Debug)]
pub(super) struct Deciding {
    /// Of all texts.
    pub all: Windows,
    /// Of the texts behind the first; `None` where there are none.
    pub elsewhere: Option<Windows>,
}

impl Bench<'_> {
    /// The best shrinkage where that is wanted, the best gauge, then with biases or without.
    pub(super) fn best_treatment(
        &self,
        plan: &Plan,
        wanted: ChoiceRequest,
        deciding: &Deciding,
    ) -> Result<Candidate, TrialError> {
        let windows = &deciding.all;
        let mut treatments = wanted.gauges()?.into_iter();
        let nothing = || TrialError::FewHeldOut {
            what: "`gauge`".into(),
            found: 0,
            needed: 1,
        };
        let first = treatments.next().ok_or_else(nothing)?;
        let mut best = match wanted.tries_shrinkages() {
            true => self.best_shrinkage(plan, first, deciding)?,
            false => self.measure(plan, first, windows)?,
        };
        for treatment in treatments {
            let found = self.measure(plan, treatment, windows)?;
            best = self.better(best, found);
        }
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

    /// The best of [`Shrinkage::TRIED`]. A shrinkage is for text that calibration did not see: where there are
    /// texts behind the first, they decide on it.
    fn best_shrinkage(
        &self,
        plan: &Plan,
        treatment: Treatment,
        deciding: &Deciding,
    ) -> Result<Candidate, TrialError> {
        let windows = deciding.elsewhere.as_ref().unwrap_or(&deciding.all);
        let shrunk = |shrinkage| {
            let treatment = Treatment {
                shrinkage,
                ..treatment
            };
            let found = self.measure(plan, treatment, windows)?;
            if deciding.elsewhere.is_some() {
                self.is_elsewhere(&found);
            }
            Ok::<_, TrialError>(found)
        };
        let [first, others @ ..] = Shrinkage::TRIED;
        let mut best = shrunk(first)?;
        for shrinkage in others {
            best = self.better(best, shrunk(shrinkage)?);
        }
        self.measure(plan, best.treatment, &deciding.all)
    }
}
