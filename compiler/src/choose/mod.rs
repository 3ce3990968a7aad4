//! Choosing by measuring: artifacts are made in the work folder, executed on text that was held out,
//! and compared with the source there.
//!
//! What has no closed form is decided so: which gauge, and which ratio holds a limit. A
//! candidate counts by its KL divergence from the source, which is paired token by token and so
//! needs far less text than a difference of perplexities to tell two candidates apart.
//!
//! Of many candidates the best on some text is too good there: it was taken because of what that text
//! happens to say. So every other window that is held out decides, and the quality of what was chosen is
//! measured on those between them, which decided nothing. Where nothing is to be decided, all of them tell the
//! quality.

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

use htc_formats::htz::DialPoint;

use crate::calibrate::windows::HeldOut;
use crate::event::Watch;
use crate::make::work::Work;
use crate::make::{Built, Inputs};
use crate::measure::Evaluation;
use crate::plan::{Plan, PlanError};
use crate::profile::reads_activations;
use crate::request::{Limit, Treatment};
use crate::system::clock::StageClock;
use crate::tune::Tuning;
pub use bench::Trial;
use bench::{Bench, Candidate};
pub use dial::{DIAL_POINTS, measure_dial, measure_whole, tune_whole};
pub use error::TrialError;
pub use limit::{STEPS_OF_FILES, Search};
pub use plain::measure_plain;
pub use request::ChoiceRequest;
pub(crate) use show::show_trials;
use treatments::Deciding;

/// The ratio at which treatments are compared before a limit is searched.
const RATIO_OF_TREATMENTS: f64 = 0.8;

/// The artifact that was chosen, complete in the work folder.
#[derive(Debug)]
pub struct Chosen {
    /// Its plan.
    pub plan: Plan,
    /// How its weights were treated.
    pub treatment: Treatment,
    /// The artifact.
    pub built: Built,
    /// What was measured on it, on windows that decided nothing; `None` where there are none.
    pub quality: Option<Evaluation>,
    /// Held-out windows that decided.
    pub choosing: usize,
    /// All candidates, in the order in which they were measured; empty where there was no choice.
    pub trials: Vec<Trial>,
    /// How its norms and rows were tuned; `None` where that was not asked for.
    pub tuning: Option<Tuning>,
    /// The same of the bases of an elastic artifact, before that.
    pub tuning_of_bases: Option<Tuning>,
    /// What it is at parts of its bytes, from its bases alone on; empty where nothing is refined.
    pub dial: Vec<DialPoint>,
    /// What was to be reached, as it is typed; `None` where there was no limit.
    pub limit: Option<String>,
    /// What is to be said of the choice.
    pub notes: Vec<String>,
}

/// The candidates, a line each; nothing where there was no choice.
impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_trials(f, &self.trials, self.limit.as_deref())
    }
}

/// Makes the plan of a ratio, or the plan that was asked for.
type Planner<'a> = &'a dyn Fn(Option<f64>) -> Result<Plan, PlanError>;

/// The plans that artifacts are made of.
#[derive(Clone, Copy)]
pub struct Plans<'a> {
    /// Of a ratio, or the plan that was asked for.
    pub at: &'a dyn Fn(Option<f64>) -> Result<Plan, PlanError>,
    /// The ratio that is expected to hold the limit, where one is.
    pub start: Option<f64>,
    /// Plans of the size of one, that are tried beside it.
    pub others: &'a dyn Fn(&Plan) -> Result<Vec<Plan>, PlanError>,
}

/// Makes the artifact that is wanted: of the treatments the one that measures best, of the ratios the
/// smallest that holds the limit. Its quality is measured on what is left of the held-out text.
///
/// # Errors
/// [`TrialError`].
pub fn choose(
    inputs: &Inputs,
    plans: Plans,
    wanted: ChoiceRequest,
    work: &Work,
    clock: &StageClock,
    watch: Watch,
) -> Result<Chosen, TrialError> {
    let planner = plans.at;
    let held_out = inputs.calibration.and_then(|found| found.held_out.as_ref());
    let Some(held_out) = held_out else {
        if !wanted.goal.limit.is_none() {
            return Err(too_few(wanted, 0));
        }
        let alone = wanted.tries_shrinkages().then_some("`shrinkage` auto");
        let asked = wanted.goal.tune.filter(|steps| *steps > 0);
        if let Some(what) = alone.or(asked.map(|_| "`tune`")) {
            return Err(TrialError::FewHeldOut {
                what: what.into(),
                found: 0,
                needed: 2,
            });
        }
        return unmeasured(inputs, planner, wanted, work, watch);
    };
    let bench = Bench::new(inputs, work, clock, watch)?;
    let elsewhere = held_out.choosing_elsewhere();
    let deciding = held_out.choosing().filter(|_| wanted.decides());
    let deciding = deciding.map(|all| Deciding { all, elsewhere });
    let mut best = match &deciding {
        Some(deciding) => Some(decide(&bench, plans, wanted, deciding, held_out)?),
        None => None,
    };
    let (plan, treatment) = match &best {
        Some(best) => (best.plan.clone(), best.treatment),
        None => (planner(None)?, wanted.treatment.resolve(wanted.calibrated)?),
    };
    let built = bench.build(&plan, treatment)?;
    let (built, tuning) = match (&mut best, &deciding) {
        (Some(best), Some(deciding)) if wanted.tune > 0 => {
            bench.tuned(best, built, wanted, &deciding.all)?
        }
        _ => (built, None),
    };
    let choosing = deciding.map_or(0, |deciding| deciding.all.count());
    let limit = wanted.goal.limit;
    let mut notes = Vec::new();
    let quality = match wanted.reporting(held_out) {
        Some(windows) => {
            let found = bench.evaluate(built.key, &windows)?;
            notes.extend(bench.put_quality(built.key, &windows, choosing, &found)?);
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
            notes.push(not_on_others(limit, Some(quality)));
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
    Ok(Chosen {
        plan,
        treatment,
        built,
        quality: quality.map(|(quality, _)| quality),
        choosing,
        trials,
        tuning,
        tuning_of_bases: None,
        dial: Vec::new(),
        limit: (!limit.is_none()).then(|| limit.to_string()),
        notes,
    })
}

/// The candidate that measures best on the windows that decide, or the smallest that holds the limit
/// there.
fn decide(
    bench: &Bench,
    plans: Plans,
    wanted: ChoiceRequest,
    deciding: &Deciding,
    held_out: &HeldOut,
) -> Result<Candidate, TrialError> {
    let (planner, limit) = (plans.at, wanted.goal.limit);
    if limit.is_none() {
        let mut best = bench.best_treatment(&planner(None)?, wanted, deciding)?;
        for other in (plans.others)(&best.plan)? {
            let found = bench.measure(&other, best.treatment, &deciding.all)?;
            best = bench.better(best, found);
        }
        return Ok(best);
    }
    // One window has no interval, which a limit is held by.
    if deciding.all.count() < 2 {
        return Err(too_few(wanted, held_out.count()));
    }
    let start = plans.start.unwrap_or(RATIO_OF_TREATMENTS);
    let (ratio, plan) = match planner(Some(start)) {
        Ok(plan) => (start, plan),
        Err(_) => (1.0, planner(Some(1.0))?),
    };
    let best = bench.best_treatment(&plan, wanted, deciding)?;
    let mut best = bench.smallest(planner, best, ratio, limit, &deciding.all)?;
    for other in (plans.others)(&best.plan)? {
        let found = bench.measure(&other, best.treatment, &deciding.all)?;
        let smaller = (found.bytes, found.distance.kl) < (best.bytes, best.distance.kl);
        let (taken, left) = match smaller && limit.holds(&found.distance) {
            true => (found, best),
            false => (best, found),
        };
        bench.discard(&left);
        best = taken;
    }
    Ok(best)
}

/// What is said of a limit that does not hold where nothing was decided.
pub fn not_on_others(limit: Limit, quality: Option<&Evaluation>) -> String {
    let windows = quality.map_or(0, |quality| quality.chunks);
    format!(
        "{limit} holds where it was searched, and not with the upper end of the 95 % interval on \
         the {windows} windows that decided nothing; on more held-out text both are surer"
    )
}

/// Two windows decide on a limit, since one has no interval, and one reports.
pub(super) fn too_few(wanted: ChoiceRequest, found: usize) -> TrialError {
    TrialError::FewHeldOut {
        what: wanted.goal.limit.asked(),
        found,
        needed: 3,
    }
}

/// The artifact where there is nothing to measure on.
fn unmeasured(
    inputs: &Inputs,
    planner: Planner,
    wanted: ChoiceRequest,
    work: &Work,
    watch: Watch,
) -> Result<Chosen, TrialError> {
    let treatment = wanted.treatment.resolve(wanted.calibrated)?;
    let mut notes = Vec::new();
    if wanted.calibrated {
        notes.push(
            "the quality was not measured: the calibration text holds a single window; a longer \
             text, or --held-out, gives something to measure on"
                .to_owned(),
        );
    } else if treatment.gauge.is_unproven() {
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
    Ok(Chosen {
        plan,
        treatment,
        built,
        quality: None,
        choosing: 0,
        trials: Vec::new(),
        tuning: None,
        tuning_of_bases: None,
        dial: Vec::new(),
        limit: None,
        notes,
    })
}
