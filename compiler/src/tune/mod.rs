//! Tuning of an artifact: gradient descent on its norm weights and row scales, minimising the
//! divergence of its logits from the source's on the calibration text.
//!
//! Codes do not change, so tuning costs no bytes. The state with the smallest divergence on
//! held-out text is kept.
//!
//! A step runs a few windows through both models and back, with one layer in memory at a time and
//! those that are kept for the backward pass. An interrupted tuning resumes after its last step, with
//! the same bytes for any number of threads.

mod state;

use std::collections::BTreeMap;

use htc_formats::DType;
use htc_formats::block;
use htc_formats::htz::Digest;
use htc_formats::model::{HyperParameters, ModelSpec, Role};
use htc_formats::source::ModelFile;
use htc_kernels::cpu::Cpu;
use htc_loader::Model;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calibrate::windows::{WeightedWindows, Windows};
use crate::calibrate::{Calibration, PassError};
use crate::event::{Event, Progress, Task};
use crate::gradient;
use crate::gradient::distil::{Distillation, Expected};
use crate::gradient::scales::{Scale, Scales, rows_of};
use crate::make::{Artifact, TensorChange};
use crate::options::DEFAULT_CONTEXT;
use crate::system::random::Rng;
pub use state::TuningPoint;
use state::TuningState;

/// States of other versions are ignored.
const VERSION: u32 = 5;

const SEED: u64 = 0x7475_6e69_6e67;

const POSITIONS_PER_STEP: usize = 2048;

const MAX_WINDOWS: usize = 8;

const MEASUREMENTS: usize = 4;

const PATIENCE: usize = 2;

/// Inputs of a tuning.
#[derive(Clone, Copy)]
pub struct TuningInputs<'a> {
    /// The source model (teacher).
    pub source: &'a Model,
    /// The compiled model.
    pub compiled: &'a Model,
    /// The compiled model without its refinements, if any.
    pub bases: Option<&'a Model>,
    /// Text for the steps.
    pub calibration: &'a Calibration,
    /// Held-out text for early stopping.
    pub held_out: &'a Windows,
    /// Maximum number of steps.
    pub steps: usize,
    /// Number of threads; it does not change the result.
    pub threads: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct TuningResult {
    /// Empty without an improvement.
    pub changes: BTreeMap<Role, TensorChange>,
    pub course: Tuning,
}

/// Course of a tuning, for the record.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Tuning {
    /// Requested steps.
    pub asked: usize,
    /// Executed steps.
    pub taken: usize,
    /// Step of the kept state; 0 if unchanged.
    pub kept: usize,
    /// Number of tuned parameters.
    pub numbers: usize,
    /// Divergences on validation windows, of the models in float32.
    pub trace: Vec<TuningPoint>,
    /// Divergence before tuning on all validation windows, in nats.
    pub kl_before: f64,
    /// Divergence after tuning; absent if no step improved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl_after: Option<f64>,
    /// Reason if the result cannot be stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_code: Option<String>,
}

impl Tuning {
    pub(crate) fn discard(&mut self, why: &dyn std::error::Error) {
        self.kept = 0;
        self.without_code = Some(why.to_string());
    }
}

impl TuningInputs<'_> {
    fn context(&self) -> usize {
        self.calibration.context
    }

    /// Windows are drawn by the tokens and weights of their texts.
    fn batch(&self, step: usize) -> Vec<u32> {
        let context = self.context().max(1);
        let mut random = Rng(SEED.wrapping_add(step as u64));
        let texts = self.calibration.texts.iter();
        let texts: Vec<(usize, f64)> = texts.map(|t| (t.tokens / context, t.weight)).collect();
        let all: f64 = texts
            .iter()
            .map(|(count, weight)| *count as f64 * weight)
            .sum();
        let mut tokens = Vec::new();
        for _ in 0..(POSITIONS_PER_STEP / context).max(1) {
            let (mut drawn, mut first) = (random.unit() * all, 0);
            let mut window = self.calibration.windows.count().saturating_sub(1);
            for &(count, weight) in &texts {
                if drawn < count as f64 * weight {
                    window = first + (drawn / weight) as usize;
                    break;
                }
                drawn -= count as f64 * weight;
                first += count;
            }
            let at = window * context..(window + 1) * context;
            tokens.extend_from_slice(self.calibration.windows.tokens_at(at));
        }
        tokens
    }

    fn validation_windows(&self) -> Windows {
        let all = WeightedWindows::new(vec![(self.held_out.clone(), 1.0)]);
        let some = all.map(|all| all.thinned(MAX_WINDOWS).windows().clone());
        some.unwrap_or_else(|| self.held_out.clone())
    }

    fn name(&self, held_out: &Windows) -> String {
        let calibration = self.calibration;
        let weights: Vec<f64> = calibration.texts.iter().map(|text| text.weight).collect();
        let named = format!(
            "htc {} tuning {VERSION} {}\nsteps {}\ntext {} {weights:?} {}\nheld out {}\n",
            env!("CARGO_PKG_VERSION"),
            htc_kernels::cpu::instruction_set(),
            self.steps,
            calibration.windows.digest(),
            self.context(),
            held_out.digest(),
        );
        Digest::of_bytes(named.as_bytes()).to_string()
    }

    /// Resumes an interrupted run; `artifact` stores the state.
    pub(crate) fn tune(
        &self,
        artifact: Artifact,
        watch: Progress,
    ) -> Result<TuningResult, PassError> {
        let base = Scales::from_models(self.compiled.file(), self.source.file())?;
        check_types(self.compiled.file(), &base)?;
        let (held_out, count) = (self.validation_windows(), base.count());
        let name = self.name(&held_out);
        let kept = artifact.state(&name, TuningState::max_bytes(count, self.steps));
        let kept = kept.and_then(|bytes| TuningState::from_bytes(&bytes, count));
        let mut state = kept.unwrap_or_else(|| TuningState::new(count));
        watch.report(Event::Begin {
            task: Task::Tuning,
            steps: self.steps,
            done: state.step.min(self.steps),
        });
        if !self.is_over(&state) {
            let cpu = Cpu::with_threads(self.threads)?;
            let distillation =
                |made| Distillation::new([self.source, made], cpu.clone(), self.context(), watch);
            let mut ends = DistillationPair {
                whole: distillation(self.compiled),
                bases: self.bases.map(distillation),
            };
            let tokens = held_out.tokens_at(0..held_out.tokens());
            let expected = ends.whole.expected(tokens)?;
            let every = self.steps.div_ceil(MEASUREMENTS).max(1);
            while !self.is_over(&state) {
                if state.trace.is_empty() {
                    ends.measure(&mut state, &held_out, &expected, &base)?;
                }
                let scales = apply_changes(&base, &state.change);
                let gradients = ends.gradients(&self.batch(state.step), &scales)?;
                // With respect to relative changes.
                let numbers = base.values.iter().flatten();
                let pairs = gradients.into_iter().zip(numbers);
                state.descend(pairs.map(|(g, w)| g * f64::from(*w)), self.steps);
                if state.step.is_multiple_of(every) || state.step == self.steps {
                    let scales = apply_changes(&base, &state.change);
                    ends.measure(&mut state, &held_out, &expected, &scales)?;
                }
                artifact.keep_state(&name, &state.to_bytes())?;
                watch.step_done("")?;
            }
        }
        let kept = state.best_point().map_or(0, |point| point.step);
        let mut course = Tuning {
            asked: self.steps,
            taken: state.step,
            kept,
            numbers: count,
            trace: state.trace,
            kl_before: 0.0,
            kl_after: None,
            without_code: None,
        };
        let changes = match kept {
            0 => BTreeMap::new(),
            _ => match tensor_changes(self.compiled.file(), &apply_changes(&base, &state.best)) {
                Err(error @ PassError::Codec { .. }) => {
                    course.discard(&error);
                    BTreeMap::new()
                }
                changes => changes?,
            },
        };
        Ok(TuningResult { changes, course })
    }

    fn is_over(&self, state: &TuningState) -> bool {
        state.step >= self.steps || state.measurements_since_best() >= PATIENCE
    }
}

struct DistillationPair<'a> {
    whole: Distillation<'a>,
    bases: Option<Distillation<'a>>,
}

impl DistillationPair<'_> {
    fn measure(
        &mut self,
        state: &mut TuningState,
        windows: &Windows,
        expected: &Expected,
        scales: &Scales,
    ) -> Result<(), PassError> {
        let whole = self.whole.divergence(windows, expected, scales)?;
        let bases = self.bases.as_mut();
        let bases = bases.map(|bases| bases.divergence(windows, expected, scales));
        state.record(whole, bases.transpose()?);
        Ok(())
    }

    /// With refinements the gradient of the sum of both logarithms, so that neither is tuned at the
    /// expense of the other.
    fn gradients(&mut self, tokens: &[u32], scales: &Scales) -> Result<Vec<f64>, PassError> {
        let (kl, gradients) = self.whole.gradients(tokens, scales)?;
        let mut sums: Vec<f64> = gradients.into_iter().flatten().collect();
        if let Some(bases) = &mut self.bases {
            let (of_bases, gradients) = bases.gradients(tokens, scales)?;
            let [whole, bases] = [kl, of_bases].map(|kl| 1.0 / kl.max(f64::MIN_POSITIVE));
            let pairs = sums.iter_mut().zip(gradients.into_iter().flatten());
            pairs.for_each(|(sum, g)| *sum = whole * *sum + bases * g);
        }
        Ok(sums)
    }
}

fn apply_changes(base: &Scales, change: &[f32]) -> Scales {
    let mut scales = base.clone();
    let numbers = scales.values.iter_mut().flatten();
    numbers
        .zip(change)
        .for_each(|(number, change)| *number *= 1.0 + change);
    scales
}

fn check_types(file: &ModelFile, scales: &Scales) -> Result<(), PassError> {
    let known = [DType::F32, DType::F16, DType::BF16];
    for scale in &scales.of {
        if let Scale::Norm(role) = *scale
            && let Some(tensor) = file.tensor(role)
            && !known.contains(&tensor.dtype)
        {
            let dtype = tensor.dtype;
            return Err(PassError::NormType { role, dtype });
        }
    }
    Ok(())
}

fn tensor_changes(
    file: &ModelFile,
    scales: &Scales,
) -> Result<BTreeMap<Role, TensorChange>, PassError> {
    let mut changes = BTreeMap::new();
    for (&scale, values) in scales.of.iter().zip(&scales.values) {
        match scale {
            Scale::Norm(role) => {
                if let Some(tensor) = file.tensor(role) {
                    let mut bytes = vec![0; file.bytes(tensor).len()];
                    block::encode_finite(tensor.dtype, values, &mut bytes).map_err(|source| {
                        PassError::Codec {
                            tensor: role.to_string(),
                            source,
                        }
                    })?;
                    changes.insert(role, TensorChange::Bytes(bytes));
                }
            }
            Scale::Rows { layer, projection } => {
                for role in rows_of(file, layer, projection) {
                    changes.insert(role, TensorChange::ScaleRows(values.clone()));
                }
            }
        }
    }
    Ok(changes)
}

/// Returns the memory of the residual streams of a tuning.
pub(crate) fn memory_bytes(hyper: &HyperParameters, context: usize) -> u64 {
    let windows = (POSITIONS_PER_STEP / context.max(1)).max(1);
    let streams = (hyper.layers + 3) * windows + 3 * MAX_WINDOWS;
    let position = 4 * hyper.width as u64;
    (streams as u64)
        .saturating_mul(context as u64)
        .saturating_mul(position)
}

/// Returns the share of the layers that are kept for the backward pass.
pub(crate) fn kept_share(spec: &ModelSpec) -> f64 {
    let kept = gradient::kept_layers(spec, DEFAULT_CONTEXT);
    kept as f64 / spec.blocks.len().max(1) as f64
}

/// Returns the approximate positions of `steps` steps and of their measurements.
pub(crate) fn positions(steps: usize) -> (usize, usize) {
    let measured = match steps {
        0 => 0,
        _ => (MEASUREMENTS.min(steps) + 2) * MAX_WINDOWS * DEFAULT_CONTEXT,
    };
    (steps.saturating_mul(POSITIONS_PER_STEP), measured)
}
