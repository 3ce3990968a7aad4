//! Search for the treatment of weights with the best measurement.

use super::TrialError;
use super::bench::{Candidate, CandidateEvaluator};
use crate::calibrate::windows::Windows;
use crate::options::{GaugeKind, Shrinkage, Treatment};
use crate::plan::Plan;

#[derive(Debug)]
pub(super) struct ValidationWindows {
    pub all: Windows,
    /// Windows of the texts after the first, if any.
    pub other_texts: Option<Windows>,
}

impl CandidateEvaluator<'_> {
    pub(super) fn best_treatment(
        &self,
        plan: &Plan,
        validation: &ValidationWindows,
    ) -> Result<Candidate, TrialError> {
        let (request, windows) = (self.selection.request, &validation.all);
        let mut treatments = request.candidate_treatments()?.into_iter();
        let nothing = || TrialError::TooFewHeldOutWindows {
            decision: "`gauge`".into(),
            found: 0,
            needed: 1,
        };
        let first = treatments.next().ok_or_else(nothing)?;
        let mut best = if request.tries_shrinkages() {
            self.best_shrinkage(plan, first, validation)?
        } else {
            self.measure(plan, first, windows)?
        };
        for treatment in treatments {
            let found = self.measure(plan, treatment, windows)?;
            best = self.keep_better(best, found);
        }
        // A smaller tail in its coordinates does not imply a better model.
        if best.treatment.gauge.needs_measurement() {
            let plain = Treatment {
                gauge: GaugeKind::None,
                ..best.treatment
            };
            let none = self.measure(plan, plain, windows)?;
            self.discard(&none);
            if none.distance.kl < best.distance.kl && !request.treatment.keep_gauge {
                return Err(TrialError::Worse {
                    gauge: best.treatment.gauge,
                    tail: self.tail_energy(&best),
                    found: best.distance.kl,
                    none: none.distance.kl,
                    found_ratio: best.distance.perplexity_ratio,
                    none_ratio: none.distance.perplexity_ratio,
                });
            }
        }
        if request.tries_biases() {
            let corrected = Treatment {
                bias: true,
                ..best.treatment
            };
            let found = self.measure(plan, corrected, windows)?;
            best = self.keep_better(best, found);
        }
        Ok(best)
    }

    /// Shrinkage matters for text unlike the calibration, so the texts after the first are used if
    /// present.
    fn best_shrinkage(
        &self,
        plan: &Plan,
        treatment: Treatment,
        validation: &ValidationWindows,
    ) -> Result<Candidate, TrialError> {
        let windows = validation.other_texts.as_ref().unwrap_or(&validation.all);
        let shrunk = |shrinkage| {
            let treatment = Treatment {
                shrinkage,
                ..treatment
            };
            let found = self.measure(plan, treatment, windows)?;
            if validation.other_texts.is_some() {
                self.mark_other_texts(&found);
            }
            Ok::<_, TrialError>(found)
        };
        let [first, others @ ..] = Shrinkage::CANDIDATES;
        let mut best = shrunk(first)?;
        for shrinkage in others {
            best = self.keep_better(best, shrunk(shrinkage)?);
        }
        self.measure(plan, best.treatment, &validation.all)
    }
}
