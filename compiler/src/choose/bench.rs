//! Where candidates are made and measured, each once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use htc_formats::htz::{DialPoint, Digest, HtzError, QualityRecord, TuningRecord};
use htc_formats::model::Role;
use htc_formats::source::ModelFile;
use htc_loader::Model;
use htc_loader::dial::Setting;
use htc_loader::kv::{KvOptions, KvType};
use serde::{Deserialize, Serialize};

use super::TrialError;
use super::dial::DIAL_POINTS;
use crate::calibrate::Calibration;
use crate::calibrate::windows::Windows;
use crate::event::{Event, Watch};
use crate::make::work::Work;
use crate::make::{Artifact, AxiomSearch, Built, Change, Inputs};
use crate::measure::{self, Distance, Evaluation, Execution};
use crate::plan::{Method, Plan};
use crate::request::{DenseType, Shrinkage, Treatment};
use crate::system::clock::{Stage, StageClock};

/// A candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Its gauge.
    pub gauge: String,
    /// What its factors must not lose.
    pub sink: String,
    /// Whether biases correct it.
    pub bias: bool,
    /// How far the second moment of `whiten` is shrunk; absent with other gauges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shrinkage: Option<f64>,
    /// Whether it was measured on the texts behind the first alone, to choose the shrinkage.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// Whether its matrices are in codes, and not in factors.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub codes: bool,
    /// The type or code of all matrices, where they have one; absent where it is another from matrix to matrix, and
    /// with factors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uniform: Option<DenseType>,
    /// Parameters after over before, on the selected slots.
    pub ratio: f64,
    /// Its bytes.
    pub bytes: u64,
    /// What it was expected to add to the KL divergence; absent where that was not foreseen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
    /// With an axiom gauge, the tail energy of all layers without it and with it, in its coordinates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<(f64, f64)>,
    /// Steps in which its norms and rows were tuned; absent where they are the source's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tuned: usize,
    /// Whether it is the artifact.
    pub chosen: bool,
    /// What was measured on it.
    pub evaluation: Evaluation,
}

fn is_zero(steps: &usize) -> bool {
    *steps == 0
}

/// A candidate that was measured.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub plan: Plan,
    pub treatment: Treatment,
    /// Index of its trial.
    pub trial: usize,
    pub distance: Distance,
    pub bytes: u64,
}

/// A place to measure candidates.
pub(super) struct Bench<'a> {
    inputs: &'a Inputs<'a>,
    work: &'a Work,
    model: Arc<Model>,
    watch: Watch<'a>,
    trials: RefCell<Vec<Trial>>,
    clock: &'a StageClock,
}

impl<'a> Bench<'a> {
    /// A bench without candidates.
    pub(super) fn new(
        inputs: &'a Inputs<'a>,
        work: &'a Work,
        clock: &'a StageClock,
        watch: Watch<'a>,
    ) -> Result<Self, TrialError> {
        let model = Model::bind(inputs.source.clone()).map_err(|error| TrialError::Load {
            path: inputs.source.path.clone(),
            error,
        })?;
        Ok(Bench {
            inputs,
            work,
            model: Arc::new(model),
            watch,
            trials: RefCell::default(),
            clock,
        })
    }

    /// The candidates in the order in which they were measured.
    pub(super) fn into_trials(self) -> Vec<Trial> {
        self.trials.into_inner()
    }

    /// Makes the artifact of a plan, or finds it.
    pub(super) fn build(&self, plan: &Plan, treatment: Treatment) -> Result<Built, TrialError> {
        Ok(self.inputs.build(plan, treatment, self.work, self.watch)?)
    }

    /// Measures a candidate on windows, or finds that it was.
    pub(super) fn measure(
        &self,
        plan: &Plan,
        treatment: Treatment,
        windows: &Windows,
    ) -> Result<Candidate, TrialError> {
        let artifact = self.work.artifact(self.inputs.key(plan, treatment));
        let digest = windows.digest();
        let (trial, distance): (Trial, Distance) = match artifact.measured(digest) {
            Some(found) => found,
            None => {
                let ratio = plan.ratio();
                self.watch.tell(Event::Trial { treatment, ratio });
                let built = self.build(plan, treatment)?;
                let (evaluation, distance) = self.evaluate(built.key, windows)?;
                let searches = &built.treated.axiom;
                let sum = |of: fn(&AxiomSearch) -> f64| searches.iter().map(of).sum::<f64>();
                let tail = (sum(|s| s.before), sum(|s| s.after));
                let trial = Trial {
                    tail: (!searches.is_empty()).then_some(tail),
                    gauge: plan
                        .treated(treatment, self.inputs.calibration.is_some())
                        .gauge
                        .to_string(),
                    sink: treatment.sink.to_string(),
                    bias: treatment.bias,
                    shrinkage: treatment.shrinks().map(Shrinkage::part),
                    elsewhere: false,
                    codes: plan.request().method == Method::Quantise,
                    uniform: plan.uniform_type(),
                    ratio,
                    bytes: built.bytes,
                    expected: plan.expected_loss(),
                    tuned: 0,
                    chosen: false,
                    evaluation,
                };
                let found = (trial, distance);
                artifact.note(digest, &found)?;
                found
            }
        };
        let bytes = trial.bytes;
        Ok(Candidate {
            plan: plan.clone(),
            treatment,
            trial: self.noted(trial),
            distance,
            bytes,
        })
    }

    /// What was calibrated on.
    pub(super) fn calibration(&self) -> Option<&'a Calibration> {
        self.inputs.calibration
    }

    /// The source.
    pub(super) fn source(&self) -> &Model {
        &self.model
    }

    /// Threads that work.
    pub(super) fn threads(&self) -> usize {
        self.inputs.threads()
    }

    /// Who is told.
    pub(super) fn watch(&self) -> Watch<'a> {
        self.watch
    }

    /// The artifact of a key.
    pub(super) fn artifact(&self, key: Digest) -> Artifact<'a> {
        self.work.artifact(key)
    }

    /// Charges what `work` takes to a stage.
    pub(super) fn during<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        self.clock.during(stage, work)
    }

    /// Makes the artifact that is as another, with tuned scales.
    pub(super) fn with_tuned(
        &self,
        built: &Built,
        changes: &BTreeMap<Role, Change>,
        record: TuningRecord,
    ) -> Result<Built, TrialError> {
        let (work, watch) = (self.work, self.watch);
        Ok(self
            .inputs
            .with_tuned(built, changes, (record, DIAL_POINTS), work, watch)?)
    }

    /// The index of a trial that comes of another.
    pub(super) fn tried(&self, from: usize, of: impl FnOnce(Trial) -> Trial) -> usize {
        let found = self.trials.borrow().get(from).cloned();
        found.map_or(from, |trial| self.noted(of(trial)))
    }

    /// Digest of the text that is measured on.
    pub(super) fn held_out_text(&self) -> Digest {
        let calibration = self.inputs.calibration;
        calibration.map_or_else(Digest::default, Calibration::held_out_digest)
    }

    /// Writes what an artifact is at parts of its bytes into it.
    pub(super) fn put_dial(&self, key: Digest, dial: Vec<DialPoint>) -> Result<(), HtzError> {
        self.inputs.put_dial(key, dial, self.work, self.watch)
    }

    /// Writes a quality into an artifact, or takes out what stands there.
    pub(super) fn put(&self, key: Digest, quality: Option<QualityRecord>) -> Result<(), HtzError> {
        self.inputs.put_quality(key, quality, self.work, self.watch)
    }

    /// The index of a trial, which is new or was there before.
    fn noted(&self, trial: Trial) -> usize {
        let mut trials = self.trials.borrow_mut();
        let known = trials.iter().position(|known| *known == trial);
        known.unwrap_or_else(|| {
            trials.push(trial);
            trials.len() - 1
        })
    }

    /// Says of a candidate that it was measured on the texts behind the first.
    pub(super) fn is_elsewhere(&self, candidate: &Candidate) {
        if let Some(trial) = self.trials.borrow_mut().get_mut(candidate.trial) {
            trial.elsewhere = true;
        }
    }

    /// Measures an artifact that is made.
    pub(super) fn evaluate(
        &self,
        key: Digest,
        windows: &Windows,
    ) -> Result<(Evaluation, Distance), TrialError> {
        let model = self.clock.during(Stage::Measure, || self.made(key))?;
        self.evaluate_at(&model, Setting::FULL, windows)
    }

    /// The model in an artifact that is made.
    pub(super) fn made(&self, key: Digest) -> Result<Arc<Model>, TrialError> {
        let file = ModelFile::from_htz(&self.work.artifact(key).open()?)?;
        let path = file.path.clone();
        let model = Model::bind(file).map_err(|error| TrialError::Load { path, error })?;
        Ok(Arc::new(model))
    }

    /// Measures as much of a model as a setting says.
    pub(super) fn evaluate_at(
        &self,
        model: &Arc<Model>,
        setting: Setting,
        windows: &Windows,
    ) -> Result<(Evaluation, Distance), TrialError> {
        let found = self.clock.during(Stage::Measure, || {
            let progress = |done, all| {
                self.watch.tell(Event::Evaluate { done, all });
                self.watch.check()
            };
            let source = Some(&self.model);
            let execution = Execution {
                kv: KvOptions::new(KvType::F16),
                setting,
            };
            let device = self.inputs.device;
            let found = measure::on_windows(device, model, source, windows, execution, progress);
            Ok::<_, TrialError>(found?)
        })?;
        match found.reference.clone() {
            Some(distance) => Ok((found, distance)),
            None => Err(TrialError::FewHeldOut {
                what: "quality".into(),
                found: windows.count(),
                needed: 1,
            }),
        }
    }

    /// The tail energy of all layers before a search for a gauge and behind it.
    pub(super) fn tail(&self, candidate: &Candidate) -> (f64, f64) {
        let trials = self.trials.borrow();
        let found = trials.get(candidate.trial).and_then(|trial| trial.tail);
        found.unwrap_or_default()
    }

    pub(super) fn discard(&self, candidate: &Candidate) {
        let key = self.inputs.key(&candidate.plan, candidate.treatment);
        self.work.artifact(key).discard();
    }

    /// Of two candidates the one with the smaller KL divergence; the other's artifact goes.
    pub(super) fn better(&self, one: Candidate, other: Candidate) -> Candidate {
        let (best, beaten) = match other.distance.kl < one.distance.kl {
            true => (other, one),
            false => (one, other),
        };
        self.discard(&beaten);
        best
    }
}
