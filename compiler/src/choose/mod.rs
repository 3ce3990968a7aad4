//! Selection by measurement: candidates are made in the work folder and compared with the source on
//! held-out text.
//!
//! Candidates are ranked by their KL divergence from the source: it is paired token by token and
//! needs far less text than a difference of perplexities.
//!
//! The best of many candidates looks too good on the text that selected it. Every other held-out
//! window therefore belongs to the validation split, which selects, and the others to the test
//! split, which measures the result. Without a choice all windows measure quality.

mod bench;
mod dial;
mod error;
mod limit;
mod plain;
mod quality;
mod request;
mod shipped;
mod show;
mod treatments;
mod tuning;

use std::cell::RefCell;
use std::fmt;

use htc_formats::htz::{ActiveFractionPoint, Digest};

use crate::calibrate::windows::{HeldOut, Windows};
use crate::event::Task;
use crate::make::{ArtifactBuilder, BuiltArtifact};
use crate::measure::{Evaluation, ReferenceLogits};
use crate::options::{QualityLimit, Treatment};
use crate::plan::Plan;
use crate::planner::Planner;
use crate::profile::reads_activations;
use crate::system::clock::StageClock;
use crate::system::show::format_count;
use crate::tune::Tuning;
pub use bench::Trial;
use bench::{Candidate, CandidateEvaluator};
pub use dial::ACTIVE_FRACTION_POINTS;
pub use error::TrialError;
pub use limit::{STEPS_OF_FILES, SizeSearch};
pub use request::ChoiceRequest;
pub use shipped::SHIPPED_WINDOWS;
pub(crate) use show::show_trials;
use treatments::ValidationWindows;

const TREATMENT_COMPARISON_RATIO: f64 = 0.8;

/// Chosen artifact, complete in the work folder.
#[derive(Debug)]
pub struct SelectedArtifact {
    /// Plan of the artifact.
    pub plan: Plan,
    /// Treatment of weights.
    pub treatment: Treatment,
    /// Files of the artifact.
    pub built: BuiltArtifact,
    /// Quality on the test split, if any.
    pub quality: Option<Evaluation>,
    /// Number of validation windows.
    pub validation_windows: usize,
    /// All candidates in the order of measurement; empty without a choice.
    pub trials: Vec<Trial>,
    /// Tuning of norms and rows, if requested.
    pub tuning: Option<Tuning>,
    /// Earlier tuning of the bases of an elastic artifact.
    pub tuning_of_bases: Option<Tuning>,
    /// Quality at active fractions of the bytes; empty without refinements.
    pub active_fractions: Vec<ActiveFractionPoint>,
    /// Requested limit, if any.
    pub limit: Option<QualityLimit>,
    /// Notes on the choice.
    pub notes: Vec<String>,
}

impl SelectedArtifact {
    fn unmeasured(plan: Plan, treatment: Treatment, built: BuiltArtifact) -> Self {
        SelectedArtifact {
            plan,
            treatment,
            built,
            quality: None,
            validation_windows: 0,
            trials: Vec::new(),
            tuning: None,
            tuning_of_bases: None,
            active_fractions: Vec::new(),
            limit: None,
            notes: Vec::new(),
        }
    }
}

impl fmt::Display for SelectedArtifact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_trials(f, &self.trials, self.limit)
    }
}

/// Request of a selection, and the means to make and measure its candidates.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    /// Makes the candidates.
    pub builder: ArtifactBuilder<'a>,
    /// The request.
    pub request: ChoiceRequest,
    /// Durations of the stages.
    pub clock: &'a StageClock,
    /// Logits of the source on the windows measured last.
    pub reference: &'a RefCell<ReferenceLogits>,
}

impl<'a> Selection<'a> {
    fn held_out(&self) -> Option<&'a HeldOut> {
        self.builder.calibration?.held_out.as_ref()
    }

    fn test_windows(&self) -> Option<Windows> {
        self.request.test_windows(self.held_out()?)
    }

    /// Selects the treatment with the best measurement and the smallest ratio within the limit.
    pub fn choose(&self, planner: &Planner) -> Result<SelectedArtifact, TrialError> {
        let request = self.request;
        let Some(held_out) = self.held_out() else {
            if !request.limit.is_none() {
                return Err(self.too_few_windows());
            }
            let alone = request.tries_shrinkages().then_some("`shrinkage` auto");
            let tune = request.tune_is_explicit.then_some("`tune`");
            if let Some(what) = alone.or(tune) {
                return Err(TrialError::TooFewHeldOutWindows {
                    decision: what.into(),
                    found: 0,
                    needed: 2,
                });
            }
            return self.build_unmeasured(planner.plan());
        };
        let bench = CandidateEvaluator::new(*self)?;
        let elsewhere = held_out.validation_of_other_texts();
        let validation = held_out.validation().filter(|_| request.needs_selection());
        let validation = validation.map(|all| ValidationWindows {
            all,
            other_texts: elsewhere,
        });
        let mut best = match &validation {
            Some(validation) => Some(self.select_candidate(&bench, planner, validation)?),
            None => None,
        };
        let (plan, treatment) = match &best {
            Some(best) => (best.plan.clone(), best.treatment),
            None => (
                planner.plan().clone(),
                request.treatment.resolve(request.calibrated)?,
            ),
        };
        let built = self.builder.build(&plan, treatment)?;
        let (built, tuning) = match (&mut best, &validation) {
            (Some(best), Some(validation)) if request.tune > 0 => {
                bench.tune_candidate(best, built, &validation.all)?
            }
            _ => (built, None),
        };
        let validation_windows = validation.map_or(0, |validation| validation.all.count());
        let mut notes = Vec::new();
        let quality = self.measure_result(&bench, built.key, validation_windows, &mut notes)?;
        let mut trials = bench.into_trials();
        if let Some(trial) = best.and_then(|best| trials.get_mut(best.trial)) {
            trial.chosen = true;
        }
        if trials.len() == 1 {
            trials.clear();
        }
        Ok(SelectedArtifact {
            quality,
            validation_windows,
            trials,
            tuning,
            limit: (!request.limit.is_none()).then_some(request.limit),
            notes,
            ..SelectedArtifact::unmeasured(plan, treatment, built)
        })
    }

    /// Measures the chosen artifact on the test split.
    fn measure_result(
        &self,
        bench: &CandidateEvaluator,
        key: Digest,
        validation_windows: usize,
        notes: &mut Vec<String>,
    ) -> Result<Option<Evaluation>, TrialError> {
        let limit = self.request.limit;
        let Some(windows) = self.test_windows() else {
            notes.push(
                "the quality was not measured: the only held-out window decided what was chosen; a longer \
                 text, or --held-out, gives others"
                    .to_owned(),
            );
            return Ok(None);
        };
        let (evaluation, distance) = bench.evaluate(Task::Quality, key, &windows)?;
        notes.extend(bench.put_quality(
            key,
            &windows,
            validation_windows,
            &evaluation,
            &distance,
        )?);
        if !limit.is_none() && !limit.holds(&distance) {
            notes.push(limit_exceeded_note(limit, Some(&evaluation)));
        }
        Ok(Some(evaluation))
    }

    fn build_unmeasured(&self, plan: &Plan) -> Result<SelectedArtifact, TrialError> {
        let request = self.request;
        let treatment = request.treatment.resolve(request.calibrated)?;
        let mut notes = Vec::new();
        if request.calibrated {
            notes.push(
                "the quality was not measured: the calibration text holds a single window; a longer \
                 text, or --held-out, gives something to measure on"
                    .to_owned(),
            );
        } else if treatment.gauge.needs_measurement() {
            notes.push(format!(
                "what gauge {} does to the model was not measured; --calibration gives text to measure on",
                treatment.gauge
            ));
        }
        let allocator = plan.request().allocation.allocator;
        if !request.calibrated && reads_activations(allocator) {
            notes.push(format!(
                "the plan shares rank out by activations (allocator {allocator}), and the factors do not \
                 regard them: --calibration gives them"
            ));
        }
        let built = self.builder.build(plan, treatment)?;
        Ok(SelectedArtifact {
            notes,
            ..SelectedArtifact::unmeasured(plan.clone(), treatment, built)
        })
    }

    fn too_few_windows(&self) -> TrialError {
        TrialError::TooFewHeldOutWindows {
            decision: self.request.limit.as_builder_call(),
            found: self.held_out().map_or(0, HeldOut::count),
            needed: 3,
        }
    }

    fn select_candidate(
        &self,
        bench: &CandidateEvaluator,
        planner: &Planner,
        validation: &ValidationWindows,
    ) -> Result<Candidate, TrialError> {
        let limit = self.request.limit;
        if limit.is_none() {
            let mut best = bench.best_treatment(planner.plan(), validation)?;
            for other in planner.alternatives(&best.plan)? {
                let found = bench.measure(&other, best.treatment, &validation.all)?;
                best = bench.keep_better(best, found);
            }
            return Ok(best);
        }
        // A single window has no interval for the limit.
        if validation.all.count() < 2 {
            return Err(self.too_few_windows());
        }
        let start = planner.start_ratio();
        let start = start.unwrap_or(TREATMENT_COMPARISON_RATIO);
        let (ratio, plan) = match planner.plan_at(start) {
            Ok(plan) => (start, plan),
            Err(_) => (1.0, planner.plan_at(1.0)?),
        };
        let best = bench.best_treatment(&plan, validation)?;
        let mut best = bench.find_smallest_artifact(planner, best, ratio, &validation.all)?;
        for other in planner.alternatives(&best.plan)? {
            let found = bench.measure(&other, best.treatment, &validation.all)?;
            let smaller = (found.bytes, found.distance.kl) < (best.bytes, best.distance.kl);
            let (taken, left) = if smaller && limit.holds(&found.distance) {
                (found, best)
            } else {
                (best, found)
            };
            bench.discard(&left);
            best = taken;
        }
        Ok(best)
    }
}

/// Returns the note on a limit that is exceeded on the test split.
pub fn limit_exceeded_note(limit: QualityLimit, quality: Option<&Evaluation>) -> String {
    let windows = quality.map_or(0, |quality| quality.chunks);
    format!(
        "{limit} holds where it was searched, and not with the upper end of the 95 % interval on \
         {} that decided nothing; on more held-out text both are surer",
        format_count(windows, "window")
    )
}
