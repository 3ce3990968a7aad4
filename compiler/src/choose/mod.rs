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
mod show;
mod treatments;
mod tuning;

use std::fmt;

use htc_formats::htz::ActiveFractionPoint;

use crate::calibrate::windows::HeldOut;
use crate::event::Progress;
use crate::make::work::WorkFolder;
use crate::make::{BuiltArtifact, MakeInputs};
use crate::measure::Evaluation;
use crate::options::{QualityLimit, Treatment};
use crate::plan::{Plan, PlanError};
use crate::profile::reads_activations;
use crate::system::clock::StageClock;
use crate::tune::Tuning;
pub use bench::Trial;
use bench::{Candidate, CandidateEvaluator};
pub use dial::{ACTIVE_FRACTION_POINTS, measure_active_fractions, measure_whole, tune_elastic};
pub use error::TrialError;
pub use limit::{STEPS_OF_FILES, SizeSearch};
pub use plain::measure_single_type_files;
pub use request::ChoiceRequest;
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
    pub limit: Option<String>,
    /// Notes on the choice.
    pub notes: Vec<String>,
}

impl fmt::Display for SelectedArtifact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_trials(f, &self.trials, self.limit.as_deref())
    }
}

type Planner<'a> = &'a dyn Fn(Option<f64>) -> Result<Plan, PlanError>;

/// Callbacks that supply plans.
#[derive(Clone, Copy)]
pub struct PlanProvider<'a> {
    /// Returns the plan of a ratio, or the requested plan.
    pub at_ratio: &'a dyn Fn(Option<f64>) -> Result<Plan, PlanError>,
    /// Estimated ratio for the limit, if any.
    pub start_ratio: Option<f64>,
    /// Returns alternative plans of the same size.
    pub alternatives: &'a dyn Fn(&Plan) -> Result<Vec<Plan>, PlanError>,
}

/// Selects the treatment with the best measurement and the smallest ratio within the limit.
pub fn choose(
    inputs: &MakeInputs,
    plans: PlanProvider,
    wanted: ChoiceRequest,
    work: &WorkFolder,
    clock: &StageClock,
    watch: Progress,
) -> Result<SelectedArtifact, TrialError> {
    let planner = plans.at_ratio;
    let held_out = inputs.calibration.and_then(|found| found.held_out.as_ref());
    let Some(held_out) = held_out else {
        if !wanted.limit.is_none() {
            return Err(too_few_windows(wanted, 0));
        }
        let alone = wanted.tries_shrinkages().then_some("`shrinkage` auto");
        let tune = wanted.tune_is_explicit.then_some("`tune`");
        if let Some(what) = alone.or(tune) {
            return Err(TrialError::TooFewHeldOutWindows {
                decision: what.into(),
                found: 0,
                needed: 2,
            });
        }
        return build_unmeasured(inputs, planner, wanted, work, watch);
    };
    let bench = CandidateEvaluator::new(inputs, work, clock, watch)?;
    let elsewhere = held_out.validation_of_other_texts();
    let deciding = held_out.validation().filter(|_| wanted.needs_selection());
    let deciding = deciding.map(|all| ValidationWindows {
        all,
        other_texts: elsewhere,
    });
    let mut best = match &deciding {
        Some(deciding) => Some(select_candidate(&bench, plans, wanted, deciding, held_out)?),
        None => None,
    };
    let (plan, treatment) = match &best {
        Some(best) => (best.plan.clone(), best.treatment),
        None => (planner(None)?, wanted.treatment.resolve(wanted.calibrated)?),
    };
    let built = bench.build(&plan, treatment)?;
    let (built, tuning) = match (&mut best, &deciding) {
        (Some(best), Some(deciding)) if wanted.tune > 0 => {
            bench.tune_candidate(best, built, wanted, &deciding.all)?
        }
        _ => (built, None),
    };
    let choosing = deciding.map_or(0, |deciding| deciding.all.count());
    let limit = wanted.limit;
    let mut notes = Vec::new();
    let quality = match wanted.test_windows(held_out) {
        Some(windows) => {
            let found = bench.evaluate(built.key, &windows)?;
            let (evaluation, distance) = &found;
            let note = bench.put_quality(built.key, &windows, choosing, evaluation, distance)?;
            notes.extend(note);
            Some(found)
        }
        None => None,
    };
    match &quality {
        None => notes.push(
            "the quality was not measured: the only held-out window decided what was chosen; a longer \
             text, or --held-out, gives others"
                .to_owned(),
        ),
        Some((quality, distance)) if !limit.is_none() && !limit.holds(distance) => {
            notes.push(limit_exceeded_note(limit, Some(quality)));
        }
        Some(_) => {}
    }
    let mut trials = bench.into_trials();
    if let Some(trial) = best.and_then(|best| trials.get_mut(best.trial)) {
        trial.chosen = true;
    }
    if trials.len() == 1 {
        trials.clear();
    }
    Ok(SelectedArtifact {
        plan,
        treatment,
        built,
        quality: quality.map(|(quality, _)| quality),
        validation_windows: choosing,
        trials,
        tuning,
        tuning_of_bases: None,
        active_fractions: Vec::new(),
        limit: (!limit.is_none()).then(|| limit.to_string()),
        notes,
    })
}

fn select_candidate(
    bench: &CandidateEvaluator,
    plans: PlanProvider,
    wanted: ChoiceRequest,
    deciding: &ValidationWindows,
    held_out: &HeldOut,
) -> Result<Candidate, TrialError> {
    let (planner, limit) = (plans.at_ratio, wanted.limit);
    if limit.is_none() {
        let mut best = bench.best_treatment(&planner(None)?, wanted, deciding)?;
        for other in (plans.alternatives)(&best.plan)? {
            let found = bench.measure(&other, best.treatment, &deciding.all)?;
            best = bench.keep_better(best, found);
        }
        return Ok(best);
    }
    // A single window has no interval for the limit.
    if deciding.all.count() < 2 {
        return Err(too_few_windows(wanted, held_out.count()));
    }
    let start = plans.start_ratio.unwrap_or(TREATMENT_COMPARISON_RATIO);
    let (ratio, plan) = match planner(Some(start)) {
        Ok(plan) => (start, plan),
        Err(_) => (1.0, planner(Some(1.0))?),
    };
    let best = bench.best_treatment(&plan, wanted, deciding)?;
    let mut best = bench.find_smallest_artifact(planner, best, ratio, limit, &deciding.all)?;
    for other in (plans.alternatives)(&best.plan)? {
        let found = bench.measure(&other, best.treatment, &deciding.all)?;
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

/// Returns the note on a limit that is exceeded on the test split.
pub fn limit_exceeded_note(limit: QualityLimit, quality: Option<&Evaluation>) -> String {
    let windows = quality.map_or(0, |quality| quality.chunks);
    format!(
        "{limit} holds where it was searched, and not with the upper end of the 95 % interval on \
         the {windows} windows that decided nothing; on more held-out text both are surer"
    )
}

pub(super) fn too_few_windows(wanted: ChoiceRequest, found: usize) -> TrialError {
    TrialError::TooFewHeldOutWindows {
        decision: wanted.limit.as_builder_call(),
        found,
        needed: 3,
    }
}

fn build_unmeasured(
    inputs: &MakeInputs,
    planner: Planner,
    wanted: ChoiceRequest,
    work: &WorkFolder,
    watch: Progress,
) -> Result<SelectedArtifact, TrialError> {
    let treatment = wanted.treatment.resolve(wanted.calibrated)?;
    let mut notes = Vec::new();
    if wanted.calibrated {
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
    let plan = planner(None)?;
    let allocator = plan.request().allocation.allocator;
    if !wanted.calibrated && reads_activations(allocator) {
        notes.push(format!(
            "the plan shares rank out by activations (allocator {allocator}), and the factors do not \
             regard them: --calibration gives them"
        ));
    }
    let built = inputs.build(&plan, treatment, work, watch)?;
    Ok(SelectedArtifact {
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
        notes,
    })
}
