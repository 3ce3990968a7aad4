//! Choosing by measuring: artifacts are made in the work folder, executed on text that nothing was
//! decided on, and compared with the source there.
//!
//! What has no closed form is decided so: which gauge, and which ratio holds a limit. A
//! candidate counts by its KL divergence from the source, which is paired token by token and so
//! needs far less text than a difference of perplexities to tell two candidates apart.

use std::cell::RefCell;
use std::path::Path;

use htc_formats::htz::Digest;
use htc_kernels::Pool;
use htc_loader::Model;
use htc_loader::kv::KvType;
use serde::{Deserialize, Serialize};

use crate::build::{Built, Inputs};
use crate::calibrate::CalibrateError;
use crate::evaluate::{self, Distance, EvaluateError, Evaluation};
use crate::factorise::GaugeKind;
use crate::pipeline::{CompileError, Event};
use crate::plan::{Plan, PlanError};
use crate::windows::Windows;
use crate::work::Work;

/// Gauges that are tried where none is asked for; of equal ones the first counts.
const GAUGES: [GaugeKind; 3] = [GaugeKind::Whiten, GaugeKind::Activation, GaugeKind::None];

/// The ratio at which gauges are compared before a limit is searched.
const RATIO_OF_GAUGES: f64 = 0.8;

/// What the artifact may lose.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limit {
    /// Perplexity over the source's, less 1, at most.
    pub perplexity_increase: Option<f64>,
    /// KL divergence from the source at most, nats.
    pub kl: Option<f64>,
}

impl Limit {
    /// Whether there is none.
    pub fn is_none(self) -> bool {
        self == Limit::default()
    }

    fn holds(self, found: &Distance) -> bool {
        let within = |limit: Option<f64>, value: f64| limit.is_none_or(|limit| value <= limit);
        within(self.perplexity_increase, found.perplexity_ratio - 1.0) && within(self.kl, found.kl)
    }
}

/// As it is typed.
impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut space = "";
        if let Some(increase) = self.perplexity_increase {
            write!(f, "--max-perplexity-increase {}", 100.0 * increase)?;
            space = " ";
        }
        match self.kl {
            Some(kl) => write!(f, "{space}--max-kl {kl}"),
            None => Ok(()),
        }
    }
}

/// What is to be decided by measuring.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Asked {
    /// The gauge; `None` for the best one.
    pub gauge: Option<GaugeKind>,
    /// What the smallest artifact may lose, where that is what is asked for.
    pub limit: Limit,
    /// Takes a gauge that was asked for even where it measures worse than none.
    pub keep_gauge: bool,
}

/// A candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Its gauge.
    pub gauge: String,
    /// Parameters after over before, on the selected slots.
    pub ratio: f64,
    /// Its bytes.
    pub bytes: u64,
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
    /// Its gauge.
    pub gauge: GaugeKind,
    /// The artifact.
    pub built: Built,
    /// What was measured on it; `None` without text that was held out.
    pub quality: Option<Evaluation>,
    /// All candidates, in the order in which they were measured; empty where there was no choice.
    pub trials: Vec<Trial>,
    /// What is to be said of the choice.
    pub notes: Vec<String>,
}

/// Why no candidate is chosen.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// A gauge makes the model worse.
    #[error(
        "--gauge {gauge}: on held-out text it is worse than none (KL divergence {found:.5} against {none:.5} nats, perplexity {found_ratio:.4} against {none_ratio:.4} of the source's); leave it out, or take it all the same with --keep-gauge"
    )]
    Worse {
        /// The gauge.
        gauge: GaugeKind,
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
        "{limit}: not held at any ratio; the closest is {ratio:.2}, with {:.2} % more perplexity and a KL divergence of {kl:.5} nats; allow more, or try --factor-type f16 or fewer --slots",
        100.0 * (perplexity_ratio - 1.0)
    )]
    Limit {
        /// The limit.
        limit: Limit,
        /// The closest ratio.
        ratio: f64,
        /// Its perplexity over the source's.
        perplexity_ratio: f64,
        /// Its KL divergence.
        kl: f64,
    },
    /// There is nothing to measure on.
    #[error(
        "{}: nothing to measure on: the calibration text holds a single window; give a longer text, or another one with --held-out", .0
    )]
    NothingHeldOut(String),
    /// The source does not execute.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
}

/// A candidate that was measured.
#[derive(Clone, Debug)]
struct Candidate {
    plan: Plan,
    gauge: GaugeKind,
    /// Index of its trial.
    trial: usize,
    distance: Distance,
    bytes: u64,
}

/// The gauge that is asked for, or the first that is tried.
pub fn first_gauge(asked: Asked, calibrated: bool) -> GaugeKind {
    asked.gauge.unwrap_or(match calibrated {
        true => GAUGES[0],
        false => GaugeKind::None,
    })
}

/// How many candidates are made; of a search how many at most.
pub fn count(asked: Asked, held_out: bool) -> usize {
    let gauges = match asked.gauge {
        _ if !held_out => return 1,
        None => GAUGES.len(),
        Some(gauge) if gauge.is_unproven() => 2,
        Some(_) => 1,
    };
    // The largest ratio, and seven halvings of a hundred.
    gauges + if asked.limit.is_none() { 0 } else { 8 }
}

/// Makes the plan of a ratio, or the plan that was asked for.
type Planner<'a> = &'a dyn Fn(Option<f64>) -> Result<Plan, CompileError>;

/// Makes the artifact that was asked for: of the gauges the one that measures best, of the ratios the
/// smallest that holds the limit. `windows` were held out.
///
/// # Errors
/// [`CompileError`]; what is finished stays in the work folder.
pub fn choose(
    inputs: &Inputs,
    planner: Planner,
    asked: Asked,
    windows: Option<&Windows>,
    work: &Work,
    progress: impl Fn(Event) + Sync,
) -> Result<Chosen, CompileError> {
    let Some(windows) = windows else {
        return unmeasured(inputs, planner, asked, work, progress);
    };
    let model = Model::bind(inputs.source.clone()).map_err(|error| CalibrateError::Load {
        path: inputs.source.path.clone(),
        error,
    })?;
    let bench = Bench {
        inputs,
        work,
        windows,
        digest: windows.digest(),
        model,
        pool: Pool::new(inputs.threads).map_err(CalibrateError::from)?,
        progress: &progress,
        trials: RefCell::default(),
    };
    let mut best = match (asked.gauge, asked.limit.is_none()) {
        (Some(gauge), true) => bench.compare(&planner(None)?, gauge, asked.keep_gauge)?,
        (None, true) => bench.best(&planner(None)?, &GAUGES)?,
        (gauge, false) => {
            let plan = planner(Some(RATIO_OF_GAUGES)).or_else(|_| planner(Some(1.0)))?;
            let start = match gauge {
                Some(gauge) => bench.compare(&plan, gauge, asked.keep_gauge)?,
                None => bench.best(&plan, &GAUGES)?,
            };
            bench.smallest(planner, start, asked.limit)?
        }
    };
    let built = inputs.build(&best.plan, best.gauge, work, &progress)?;
    let mut trials = bench.trials.into_inner();
    best.trial = best.trial.min(trials.len().saturating_sub(1));
    let quality = trials.get_mut(best.trial).map(|trial| {
        trial.chosen = true;
        trial.evaluation.clone()
    });
    if trials.len() < 2 {
        trials.clear();
    }
    Ok(Chosen {
        plan: best.plan,
        gauge: best.gauge,
        built,
        quality,
        trials,
        notes: Vec::new(),
    })
}

/// The artifact where there is nothing to measure on.
fn unmeasured(
    inputs: &Inputs,
    planner: Planner,
    asked: Asked,
    work: &Work,
    progress: impl Fn(Event) + Sync,
) -> Result<Chosen, CompileError> {
    if !asked.limit.is_none() {
        return Err(TrialError::NothingHeldOut(asked.limit.to_string()).into());
    }
    let mut notes = Vec::new();
    if inputs.calibration.is_some() {
        notes.push(
            "the quality was not measured: the calibration text holds a single window; a longer \
             text, or --held-out, gives something to measure on"
                .to_owned(),
        );
    }
    let gauge = first_gauge(asked, inputs.calibration.is_some());
    let plan = planner(None)?;
    let built = inputs.build(&plan, gauge, work, progress)?;
    Ok(Chosen {
        plan,
        gauge,
        built,
        quality: None,
        trials: Vec::new(),
        notes,
    })
}

/// A place to measure candidates.
struct Bench<'a, P> {
    inputs: &'a Inputs<'a>,
    work: &'a Work,
    windows: &'a Windows,
    digest: Digest,
    model: Model,
    pool: Pool,
    progress: P,
    trials: RefCell<Vec<Trial>>,
}

impl<P: Fn(Event) + Sync> Bench<'_, P> {
    /// Measures a candidate, or finds that it was.
    fn measure(&self, plan: &Plan, gauge: GaugeKind) -> Result<Candidate, CompileError> {
        let key = self.inputs.key(plan, gauge);
        let artifact = self.work.artifact(key);
        let (trial, distance): (Trial, Distance) = match artifact.measured(self.digest) {
            Some(found) => found,
            None => {
                let ratio = plan.ratio();
                (self.progress)(Event::Trial { gauge, ratio });
                let built = self.inputs.build(plan, gauge, self.work, &self.progress)?;
                let (evaluation, distance) = self.evaluate(&artifact.complete())?;
                let trial = Trial {
                    gauge: gauge.to_string(),
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
            gauge,
            trial: trials.len() - 1,
            distance,
            bytes,
        })
    }

    fn evaluate(&self, artifact: &Path) -> Result<(Evaluation, Distance), CompileError> {
        let model = Model::open(artifact).map_err(|error| CalibrateError::Load {
            path: artifact.to_owned(),
            error,
        })?;
        let found = evaluate::on_windows(
            &self.pool,
            &model,
            Some(&self.model),
            self.windows,
            KvType::F16,
            |done, all| (self.progress)(Event::Evaluate { done, all }),
        );
        let found = found.map_err(TrialError::from)?;
        match found.reference.clone() {
            Some(distance) => Ok((found, distance)),
            None => Err(TrialError::NothingHeldOut("quality".into()).into()),
        }
    }

    /// Of two candidates the one that counts; the other's artifact goes.
    fn better(&self, one: Candidate, other: Candidate) -> Candidate {
        let (best, beaten) = match other.distance.kl < one.distance.kl {
            true => (other, one),
            false => (one, other),
        };
        self.discard(&beaten);
        best
    }

    fn discard(&self, candidate: &Candidate) {
        let key = self.inputs.key(&candidate.plan, candidate.gauge);
        self.work.artifact(key).discard();
    }

    /// The gauge with the smallest KL divergence.
    fn best(&self, plan: &Plan, gauges: &[GaugeKind]) -> Result<Candidate, CompileError> {
        let mut best = self.measure(plan, gauges[0])?;
        for &gauge in &gauges[1..] {
            best = self.better(best, self.measure(plan, gauge)?);
        }
        Ok(best)
    }

    /// A gauge that was asked for. One that follows from the weights alone is taken only where it
    /// gains: a smaller tail in its own coordinates is not a better model.
    fn compare(
        &self,
        plan: &Plan,
        gauge: GaugeKind,
        keep: bool,
    ) -> Result<Candidate, CompileError> {
        let asked = self.measure(plan, gauge)?;
        if !gauge.is_unproven() {
            return Ok(asked);
        }
        let none = self.measure(plan, GaugeKind::None)?;
        self.discard(&none);
        if none.distance.kl < asked.distance.kl && !keep {
            return Err(TrialError::Worse {
                gauge,
                found: asked.distance.kl,
                none: none.distance.kl,
                found_ratio: asked.distance.perplexity_ratio,
                none_ratio: none.distance.perplexity_ratio,
            }
            .into());
        }
        Ok(asked)
    }

    /// The smallest artifact that holds the limit, by bisection over ratios in steps of a hundredth:
    /// what holds at a ratio is taken to hold at larger ones.
    fn smallest(
        &self,
        planner: Planner,
        start: Candidate,
        limit: Limit,
    ) -> Result<Candidate, CompileError> {
        let gauge = start.gauge;
        let at = |hundredths: u32| -> Result<Option<Candidate>, CompileError> {
            match planner(Some(f64::from(hundredths) / 100.0)) {
                Ok(plan) => Ok(Some(self.measure(&plan, gauge)?)),
                // Smaller than floors and granularity allow.
                Err(CompileError::Plan(
                    PlanError::RatioTooSmall { .. } | PlanError::BudgetTooSmall { .. },
                )) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let largest = at(100)?.unwrap_or(start);
        if !limit.holds(&largest.distance) {
            let Distance {
                kl,
                perplexity_ratio,
                ..
            } = largest.distance;
            return Err(TrialError::Limit {
                limit,
                ratio: largest.plan.ratio(),
                perplexity_ratio,
                kl,
            }
            .into());
        }
        let (mut fails, mut holds) = (0, 100);
        let mut best = largest;
        while holds - fails > 1 {
            let middle = (fails + holds) / 2;
            match at(middle)? {
                Some(found) if limit.holds(&found.distance) => {
                    holds = middle;
                    // Of two that hold it, the one of fewer bytes.
                    if found.bytes <= best.bytes {
                        self.discard(&best);
                        best = found;
                    } else {
                        self.discard(&found);
                    }
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
