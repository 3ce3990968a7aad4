//! Workspace that makes and measures each candidate once.

use std::cell::RefCell;
use std::sync::Arc;

use htc_formats::htz::Digest;
use htc_formats::source::ModelFile;
use htc_loader::Model;
use htc_loader::dial::ActiveSetting;
use htc_loader::kv::{KvOptions, KvType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Selection, TrialError};
use crate::calibrate;
use crate::calibrate::windows::Windows;
use crate::event::{Event, Progress, Task};
use crate::make::{Artifact, AxiomSearch};
use crate::measure::{self, Distance, Evaluation, Execution};
use crate::options::{DenseType, Shrinkage, Treatment};
use crate::plan::{Method, Plan};
use crate::system::clock::Stage;

/// Record of a candidate.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Trial {
    /// Name of the gauge.
    pub gauge: String,
    /// Sink protection.
    pub sink: String,
    /// True with bias correction.
    pub bias: bool,
    /// Shrinkage of the second moment, with the gauge `whiten`; absent with other gauges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shrinkage: Option<f64>,
    /// True if measured only on the texts after the first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// True for codes, false for factors.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub codes: bool,
    /// Type or code of all matrices; absent for mixed types and for factors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uniform: Option<DenseType>,
    /// Parameters after over parameters before, of the selected projections.
    pub ratio: f64,
    /// Bytes of the artifact.
    pub bytes: u64,
    /// Estimated increase of the KL divergence, if available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
    /// Tail energy of all layers without and with an axiom gauge, in its coordinates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<(f64, f64)>,
    /// Tuning steps of norms and rows; absent if untuned.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tuned: usize,
    /// True for the chosen artifact.
    pub chosen: bool,
    /// Measured quality.
    pub evaluation: Evaluation,
}

fn is_zero(steps: &usize) -> bool {
    *steps == 0
}

#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub plan: Plan,
    pub treatment: Treatment,
    pub trial: usize,
    pub distance: Distance,
    pub bytes: u64,
}

pub(super) struct CandidateEvaluator<'a> {
    pub selection: Selection<'a>,
    /// The source.
    pub model: Arc<Model>,
    trials: RefCell<Vec<Trial>>,
}

impl<'a> CandidateEvaluator<'a> {
    pub(super) fn new(selection: Selection<'a>) -> Result<Self, TrialError> {
        let source = selection.builder.source;
        let model = calibrate::bind(source)?;
        Ok(CandidateEvaluator {
            selection,
            model: Arc::new(model),
            trials: RefCell::default(),
        })
    }

    pub(super) fn into_trials(self) -> Vec<Trial> {
        self.trials.into_inner()
    }

    pub(super) fn measure(
        &self,
        plan: &Plan,
        treatment: Treatment,
        windows: &Windows,
    ) -> Result<Candidate, TrialError> {
        let artifact = self.artifact(self.selection.builder.key(plan, treatment));
        let digest = windows.digest();
        let ratio = plan.ratio();
        self.progress().report(Event::Trial { treatment, ratio });
        let (trial, distance): (Trial, Distance) = match artifact.measurements(digest) {
            Some(found) => found,
            None => {
                let built = self.selection.builder.build(plan, treatment)?;
                let (evaluation, distance) = self.evaluate(Task::Measuring, built.key, windows)?;
                let searches = &built.treatment_report.axiom;
                let sum = |of: fn(&AxiomSearch) -> f64| searches.iter().map(of).sum::<f64>();
                let tail = (sum(|s| s.before), sum(|s| s.after));
                let trial = Trial {
                    tail: (!searches.is_empty()).then_some(tail),
                    gauge: plan
                        .treatment_of_factors(
                            treatment,
                            self.selection.builder.calibration.is_some(),
                        )
                        .gauge
                        .to_string(),
                    sink: treatment.sink.to_string(),
                    bias: treatment.bias,
                    shrinkage: treatment.applied_shrinkage().map(Shrinkage::value),
                    elsewhere: false,
                    codes: plan.request().method == Method::Quantise,
                    uniform: plan.uniform_type(),
                    ratio,
                    bytes: built.bytes,
                    expected: plan.estimated_loss(),
                    tuned: 0,
                    chosen: false,
                    evaluation,
                };
                let found = (trial, distance);
                artifact.store_measurements(digest, &found)?;
                found
            }
        };
        let bytes = trial.bytes;
        Ok(Candidate {
            plan: plan.clone(),
            treatment,
            trial: self.add_trial(trial),
            distance,
            bytes,
        })
    }

    pub(super) fn progress(&self) -> Progress<'a> {
        self.selection.builder.progress
    }

    pub(super) fn artifact(&self, key: Digest) -> Artifact<'a> {
        self.selection.builder.work.artifact(key)
    }

    pub(super) fn time_stage<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        self.selection.clock.time(stage, work)
    }

    pub(super) fn derive_trial(&self, from: usize, of: impl FnOnce(Trial) -> Trial) -> usize {
        let found = self.trials.borrow().get(from).cloned();
        found.map_or(from, |trial| self.add_trial(of(trial)))
    }

    fn add_trial(&self, trial: Trial) -> usize {
        let mut trials = self.trials.borrow_mut();
        let known = trials.iter().position(|known| *known == trial);
        known.unwrap_or_else(|| {
            trials.push(trial);
            trials.len() - 1
        })
    }

    pub(super) fn mark_other_texts(&self, candidate: &Candidate) {
        if let Some(trial) = self.trials.borrow_mut().get_mut(candidate.trial) {
            trial.elsewhere = true;
        }
    }

    pub(super) fn evaluate(
        &self,
        task: Task,
        key: Digest,
        windows: &Windows,
    ) -> Result<(Evaluation, Distance), TrialError> {
        let model = self.time_stage(Stage::Measure, || self.load_artifact(key))?;
        self.evaluate_at(task, &model, ActiveSetting::FULL, windows)
    }

    pub(super) fn load_artifact(&self, key: Digest) -> Result<Arc<Model>, TrialError> {
        let file = ModelFile::from_htz(&self.artifact(key).open()?)?;
        Ok(Arc::new(calibrate::bind(&file)?))
    }

    pub(super) fn evaluate_at(
        &self,
        task: Task,
        model: &Arc<Model>,
        setting: ActiveSetting,
        windows: &Windows,
    ) -> Result<(Evaluation, Distance), TrialError> {
        let found = self.time_stage(Stage::Measure, || {
            self.progress().begin(task, windows.count());
            let progress = |_, _| self.progress().step_done("");
            let mut kept = self.selection.reference.borrow_mut();
            let source = Some((&self.model, &mut *kept));
            let execution = Execution {
                kv: KvOptions::new(KvType::F16),
                setting,
            };
            let device = self.selection.builder.device;
            let found =
                measure::evaluate_windows(device, model, source, windows, execution, progress);
            Ok::<_, TrialError>(found?)
        })?;
        match found.reference.clone() {
            Some(distance) => Ok((found, distance)),
            None => Err(TrialError::TooFewHeldOutWindows {
                decision: "quality".into(),
                found: windows.count(),
                needed: 1,
            }),
        }
    }

    pub(super) fn tail_energy(&self, candidate: &Candidate) -> (f64, f64) {
        let trials = self.trials.borrow();
        let found = trials.get(candidate.trial).and_then(|trial| trial.tail);
        found.unwrap_or_default()
    }

    pub(super) fn discard(&self, candidate: &Candidate) {
        let builder = &self.selection.builder;
        let key = builder.key(&candidate.plan, candidate.treatment);
        builder.work.artifact(key).discard();
    }

    pub(super) fn keep_better(&self, one: Candidate, other: Candidate) -> Candidate {
        let (best, beaten) = if other.distance.kl < one.distance.kl {
            (other, one)
        } else {
            (one, other)
        };
        self.discard(&beaten);
        best
    }
}
