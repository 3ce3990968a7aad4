//! Choosing by measuring: artifacts are made in the work folder, executed on text that nothing was
//! decided on, and compared with the source there.
//!
//! What has no closed form is decided so: which gauge, and which ratio holds a limit. A
//! candidate counts by its KL divergence from the source, which is paired token by token and so
//! needs far less text than a difference of perplexities to tell two candidates apart.

mod show;

use std::cell::RefCell;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use htc_formats::htz::{Digest, HtzError};
use htc_formats::source::ModelFile;
use htc_kernels::{Pool, PoolError};
use htc_loader::kv::KvType;
use htc_loader::{LoadError, Model};
use serde::{Deserialize, Serialize};

use crate::calibrate::windows::Windows;
use crate::event::{Cancelled, Event, Watch};
use crate::make::work::Work;
use crate::make::{Artifact, AxiomSearch, Built, Inputs, MakeError};
use crate::measure::{self, Distance, EvaluateError, Evaluation};
use crate::plan::{Budget, Plan, PlanError};
use crate::profile::reads_activations;
use crate::request::{Asked, BiasArg, GaugeKind, Goal, Limit, Treatment, TreatmentError};
use crate::system::clock::{Stage, StageClock};
pub(crate) use show::show_trials;

/// Gauges that are tried where none is asked for; of equal ones the first counts.
const GAUGES: [GaugeKind; 3] = [GaugeKind::Whiten, GaugeKind::Activation, GaugeKind::None];

/// The ratio at which treatments are compared before a limit is searched.
const RATIO_OF_TREATMENTS: f64 = 0.8;

impl Limit {
    /// Whether a candidate holds it: with the upper end of its 95 % interval, since a search over a
    /// dozen candidates would else find the one that chance favours.
    fn holds(self, found: &Distance) -> bool {
        let within = |limit: Option<f64>, value: f64| limit.is_none_or(|limit| value <= limit);
        let increase = found.perplexity_ratio - 1.0 + found.perplexity_ratio_ci95;
        within(self.perplexity_increase, increase)
            && within(self.kl, found.kl + 1.96 * found.kl_stderr)
    }
}

/// What is asked for, and what there is to decide it by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wanted {
    /// How weights are to be treated; where it is silent, the best is found.
    pub weighting: Asked,
    /// What is to be reached.
    pub goal: Goal,
    /// Whether there are activations.
    pub calibrated: bool,
    /// Whether there is text to measure on.
    pub held_out: bool,
}

impl Wanted {
    /// Treatments with the gauges that are compared; of equal ones the first counts.
    fn gauges(&self) -> Result<Vec<Treatment>, TreatmentError> {
        let first = self.weighting.resolve(self.calibrated)?;
        let open = self.weighting.gauge.is_none() && self.calibrated && self.held_out;
        let gauges = if open { &GAUGES[..] } else { &[first.gauge] };
        let with = |&gauge: &GaugeKind| Treatment { gauge, ..first };
        Ok(gauges.iter().map(with).collect())
    }

    /// Whether biases are tried.
    fn tries_biases(&self) -> bool {
        let open = matches!(self.weighting.bias, None | Some(BiasArg::Auto));
        open && self.calibrated && self.held_out
    }

    /// Candidates that are made; of a search at most.
    pub fn candidates(&self) -> usize {
        if !self.held_out {
            return 1;
        }
        let gauges = match self.weighting.gauge {
            None if self.calibrated => GAUGES.len(),
            Some(gauge) if gauge.is_unproven() => 2,
            _ => 1,
        };
        // The largest ratio, and seven halvings of a hundred.
        let ratios = if self.goal.limit.is_none() { 0 } else { 8 };
        gauges + usize::from(self.tries_biases()) + ratios
    }
}

/// A candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Its gauge.
    pub gauge: String,
    /// What its factors must not lose.
    pub sink: String,
    /// Whether biases correct it.
    pub bias: bool,
    /// Parameters after over before, on the selected slots.
    pub ratio: f64,
    /// Its bytes.
    pub bytes: u64,
    /// With an axiom gauge, the tail energy of all layers without it and with it, in its coordinates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<(f64, f64)>,
    /// Whether it is the artifact.
    pub chosen: bool,
    /// What was measured on it.
    pub evaluation: Evaluation,
}

/// The artifact that was chosen, complete in the work folder.
#[derive(Debug)]
pub struct Chosen {
    /// Its plan.
    pub plan: Plan,
    /// How its weights were treated.
    pub treatment: Treatment,
    /// The artifact.
    pub built: Built,
    /// What was measured on it; `None` without text that was held out.
    pub quality: Option<Evaluation>,
    /// All candidates, in the order in which they were measured; empty where there was no choice.
    pub trials: Vec<Trial>,
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

/// Why no candidate is chosen.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// A gauge makes the model worse.
    #[error(
        "`gauge` {gauge}: it changes the tail energy from {:.4} to {:.4}, but on held-out text it is worse than none (KL divergence {found:.5} against {none:.5} nats, perplexity {found_ratio:.4} against {none_ratio:.4} of the source's); leave it out, or take it all the same with `keep_gauge`", tail.0, tail.1
    )]
    Worse {
        /// The gauge.
        gauge: GaugeKind,
        /// The tail energy without it and with it, in its coordinates.
        tail: (f64, f64),
        /// Its KL divergence.
        found: f64,
        /// That of none.
        none: f64,
        /// Its perplexity over the source's.
        found_ratio: f64,
        /// That of none.
        none_ratio: f64,
    },
    /// No ratio holds the limit.
    #[error(
        "{}: the upper end of the 95 % interval is not within it at any ratio; the closest is {ratio:.2}, with {:.2} ± {:.2} % more perplexity and a KL divergence of {kl:.5} ± {kl_interval:.5} nats; allow more, measure on more text (`held_out`, `calibration_tokens`), or try `factor_type` f16 or fewer `slots`",
        limit.asked(), 100.0 * (perplexity_ratio - 1.0), 100.0 * ratio_interval
    )]
    Limit {
        /// The limit.
        limit: Limit,
        /// The closest ratio.
        ratio: f64,
        /// Its perplexity over the source's.
        perplexity_ratio: f64,
        /// Half the width of that one's interval.
        ratio_interval: f64,
        /// Its KL divergence.
        kl: f64,
        /// Half the width of that one's interval.
        kl_interval: f64,
    },
    /// There is nothing to measure on.
    #[error(
        "{}: nothing to measure on: the calibration text holds a single window; give a longer text, or another one with `held_out`", .0
    )]
    NothingHeldOut(String),
    /// A model does not execute.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// A model does not open.
    #[error("{}: {error}", path.display())]
    Load {
        /// The model.
        path: PathBuf,
        /// Why.
        error: LoadError,
    },
    /// The system gives no threads.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A candidate has no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Weights cannot be treated so.
    #[error(transparent)]
    Treatment(#[from] TreatmentError),
    /// A candidate cannot be made.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// What was measured cannot be noted down.
    #[error(transparent)]
    Note(#[from] HtzError),
    /// Somebody asked for an end.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// A candidate that was measured.
#[derive(Clone, Debug)]
struct Candidate {
    plan: Plan,
    treatment: Treatment,
    /// Index of its trial.
    trial: usize,
    distance: Distance,
    bytes: u64,
}

/// Makes the plan of a ratio, or the plan that was asked for.
type Planner<'a> = &'a dyn Fn(Option<f64>) -> Result<Plan, PlanError>;

/// Makes the artifact that is wanted: of the treatments the one that measures best, of the ratios the
/// smallest that holds the limit.
///
/// # Errors
/// [`TrialError`].
pub fn choose(
    inputs: &Inputs,
    planner: Planner,
    wanted: Wanted,
    work: &Work,
    clock: &StageClock,
    watch: Watch,
) -> Result<Chosen, TrialError> {
    let limit = wanted.goal.limit;
    let held_out = inputs.calibration.and_then(|found| found.held_out.as_ref());
    let Some(windows) = held_out else {
        if !limit.is_none() {
            return Err(TrialError::NothingHeldOut(limit.asked()).into());
        }
        return unmeasured(inputs, planner, wanted, work, watch);
    };
    let model = Model::bind(inputs.source.clone()).map_err(|error| TrialError::Load {
        path: inputs.source.path.clone(),
        error,
    })?;
    let bench = Bench {
        inputs,
        work,
        windows,
        digest: windows.digest(),
        model: Arc::new(model),
        pool: Arc::new(Pool::new(inputs.threads)?),
        watch,
        trials: RefCell::default(),
        clock,
    };
    let plan = match limit.is_none() {
        true => planner(None)?,
        false => planner(Some(RATIO_OF_TREATMENTS)).or_else(|_| planner(Some(1.0)))?,
    };
    let mut best = bench.best_treatment(&plan, wanted)?;
    if !limit.is_none() {
        best = bench.smallest(planner, best, limit)?;
    }
    let built = inputs.build(&best.plan, best.treatment, work, watch)?;
    let mut trials = bench.trials.into_inner();
    let quality = trials.get_mut(best.trial).map(|trial| {
        trial.chosen = true;
        trial.evaluation.clone()
    });
    if trials.len() == 1 {
        trials.clear();
    }
    Ok(Chosen {
        plan: best.plan,
        treatment: best.treatment,
        built,
        quality,
        trials,
        limit: (!limit.is_none()).then(|| limit.to_string()),
        notes: Vec::new(),
    })
}

/// The artifact where there is nothing to measure on.
fn unmeasured(
    inputs: &Inputs,
    planner: Planner,
    wanted: Wanted,
    work: &Work,
    watch: Watch,
) -> Result<Chosen, TrialError> {
    let treatment = wanted.weighting.resolve(wanted.calibrated)?;
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
        trials: Vec::new(),
        limit: None,
        notes,
    })
}

/// A place to measure candidates.
struct Bench<'a> {
    inputs: &'a Inputs<'a>,
    work: &'a Work,
    windows: &'a Windows,
    digest: Digest,
    model: Arc<Model>,
    pool: Arc<Pool>,
    watch: Watch<'a>,
    trials: RefCell<Vec<Trial>>,
    clock: &'a StageClock,
}

impl Bench<'_> {
    /// Measures a candidate, or finds that it was.
    fn measure(&self, plan: &Plan, treatment: Treatment) -> Result<Candidate, TrialError> {
        let artifact = self.work.artifact(self.inputs.key(plan, treatment));
        let (trial, distance): (Trial, Distance) = match artifact.measured(self.digest) {
            Some(found) => found,
            None => {
                let ratio = plan.ratio();
                self.watch.tell(Event::Trial { treatment, ratio });
                let built = self.inputs.build(plan, treatment, self.work, self.watch)?;
                let evaluated = || self.evaluate(&artifact);
                let (evaluation, distance) = self.clock.during(Stage::Measure, evaluated)?;
                let searches = &built.treated.axiom;
                let sum = |of: fn(&AxiomSearch) -> f64| searches.iter().map(of).sum::<f64>();
                let tail = (sum(|s| s.before), sum(|s| s.after));
                let trial = Trial {
                    tail: (!searches.is_empty()).then_some(tail),
                    gauge: treatment.gauge.to_string(),
                    sink: treatment.sink.to_string(),
                    bias: treatment.bias,
                    ratio,
                    bytes: built.bytes,
                    chosen: false,
                    evaluation,
                };
                let found = (trial, distance);
                artifact.note(self.digest, &found)?;
                found
            }
        };
        let bytes = trial.bytes;
        let mut trials = self.trials.borrow_mut();
        trials.push(trial);
        Ok(Candidate {
            plan: plan.clone(),
            treatment,
            trial: trials.len() - 1,
            distance,
            bytes,
        })
    }

    fn evaluate(&self, artifact: &Artifact) -> Result<(Evaluation, Distance), TrialError> {
        let file = ModelFile::from_htz(&artifact.open()?)?;
        let path = file.path.clone();
        let model = Model::bind(file).map_err(|error| TrialError::Load { path, error })?;
        let model = Arc::new(model);
        let found = measure::on_windows(
            &self.pool,
            &model,
            Some(&self.model),
            self.windows,
            KvType::F16,
            |done, all| {
                self.watch.tell(Event::Evaluate { done, all });
                self.watch.check()
            },
        );
        let found = found?;
        match found.reference.clone() {
            Some(distance) => Ok((found, distance)),
            None => Err(TrialError::NothingHeldOut("quality".into()).into()),
        }
    }

    /// The tail energy of all layers before a search for a gauge and behind it.
    fn tail(&self, candidate: &Candidate) -> (f64, f64) {
        let trials = self.trials.borrow();
        let found = trials.get(candidate.trial).and_then(|trial| trial.tail);
        found.unwrap_or_default()
    }

    fn discard(&self, candidate: &Candidate) {
        let key = self.inputs.key(&candidate.plan, candidate.treatment);
        self.work.artifact(key).discard();
    }

    /// Of two candidates the one with the smaller KL divergence; the other's artifact goes.
    fn better(&self, one: Candidate, other: Candidate) -> Candidate {
        let (best, beaten) = match other.distance.kl < one.distance.kl {
            true => (other, one),
            false => (one, other),
        };
        self.discard(&beaten);
        best
    }

    /// The best gauge, then with biases or without.
    fn best_treatment(&self, plan: &Plan, wanted: Wanted) -> Result<Candidate, TrialError> {
        let mut best: Option<Candidate> = None;
        for treatment in wanted.gauges()? {
            let found = self.measure(plan, treatment)?;
            best = Some(match best {
                Some(best) => self.better(best, found),
                None => found,
            });
        }
        let Some(mut best) = best else {
            return Err(TrialError::NothingHeldOut("`gauge`".into()).into());
        };
        // A gauge that follows from the weights alone is taken only where it gains: a smaller tail in its
        // own coordinates is not a better model.
        if best.treatment.gauge.is_unproven() {
            let plain = Treatment {
                gauge: GaugeKind::None,
                ..best.treatment
            };
            let none = self.measure(plan, plain)?;
            self.discard(&none);
            if none.distance.kl < best.distance.kl && !wanted.goal.keep_gauge {
                return Err(TrialError::Worse {
                    gauge: best.treatment.gauge,
                    tail: self.tail(&best),
                    found: best.distance.kl,
                    none: none.distance.kl,
                    found_ratio: best.distance.perplexity_ratio,
                    none_ratio: none.distance.perplexity_ratio,
                }
                .into());
            }
        }
        if wanted.tries_biases() {
            let corrected = Treatment {
                bias: true,
                ..best.treatment
            };
            let found = self.measure(plan, corrected)?;
            best = self.better(best, found);
        }
        Ok(best)
    }

    /// The smallest artifact that holds the limit, by bisection over ratios in steps of a hundredth:
    /// what holds at a ratio is taken to hold at larger ones.
    fn smallest(
        &self,
        planner: Planner,
        start: Candidate,
        limit: Limit,
    ) -> Result<Candidate, TrialError> {
        let treatment = start.treatment;
        let at = |hundredths: u32| -> Result<Option<Candidate>, TrialError> {
            match planner(Some(f64::from(hundredths) / 100.0)) {
                Ok(plan) => Ok(Some(self.measure(&plan, treatment)?)),
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
            let found = &best.distance;
            return Err(TrialError::Limit {
                limit,
                ratio: best.plan.ratio(),
                perplexity_ratio: found.perplexity_ratio,
                ratio_interval: found.perplexity_ratio_ci95,
                kl: found.kl,
                kl_interval: 1.96 * found.kl_stderr,
            }
            .into());
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
