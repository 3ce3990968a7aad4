//! Tuning of an artifact whose matrices are stored: the weights of its norms and the scales of the rows of its slots, by
//! gradient descent on the divergence of its logits from the source's on the text that the model was calibrated on.
//!
//! Codes stay as they are. A norm multiplies the columns of every matrix behind it, so that this is a scale for each
//! column of those that read the residual stream; scales of rows are there in every code. So nothing of it costs bytes.
//! Slots that are stored as they are in the source stay so, and so does the vocabulary's matrix, most rows of which no text of
//! this length has. Whether it goes on to gain is measured on text that was held out: what measured least there is kept,
//! which may be the start.
//!
//! A step executes a few windows of the text through both models and back, a layer in memory at a time. Its windows
//! are drawn by its number, and what it depends on else is kept in the work folder, so that a tuning that was
//! interrupted goes on behind its last step, with the same bytes on any number of threads.

mod error;
mod state;

use std::collections::BTreeMap;

use htc_formats::DType;
use htc_formats::block;
use htc_formats::htz::Digest;
use htc_formats::model::{HyperParameters, Role};
use htc_formats::source::ModelFile;
use htc_kernels::cpu::Cpu;
use htc_loader::Model;
use serde::{Deserialize, Serialize};

use crate::calibrate::Calibration;
use crate::calibrate::windows::{Mixture, Windows};
use crate::event::{Event, Watch};
use crate::gradient::distil::{Distillation, Expected};
use crate::gradient::scales::{Scale, Scales, rows_of};
use crate::make::{Artifact, Change};
use crate::request::DEFAULT_CONTEXT;
use crate::system::random::Rng;
pub use error::TuneError;
pub use state::Point;
use state::State;

/// Changes with what a step does: what another version kept is not gone on with.
const VERSION: u32 = 4;

/// What windows are drawn by.
const SEED: u64 = 0x7475_6e69_6e67;

/// Positions of a step, about.
const POSITIONS: usize = 2048;

/// Windows of the held-out text that are measured on at most.
const MOST_WINDOWS: usize = 16;

/// Measurements of a tuning, beside that of its start.
const MEASUREMENTS: usize = 8;

/// Measurements without a gain behind which a tuning ends.
const PATIENCE: usize = 3;

/// What is tuned, on what, and how long.
#[derive(Clone, Copy)]
pub struct Course<'a> {
    /// What its logits are to be.
    pub source: &'a Model,
    /// What was made of it.
    pub made: &'a Model,
    /// The same without its refinements, where it has some.
    pub bases: Option<&'a Model>,
    /// The text that steps are taken on.
    pub calibration: &'a Calibration,
    /// The text that says whether they gain.
    pub held_out: &'a Windows,
    /// Steps at most.
    pub steps: usize,
    /// Threads that work; they do not change a bit.
    pub threads: usize,
}

/// What a tuning came to.
#[derive(Clone, Debug)]
pub(crate) struct Tuned {
    /// What is else in the artifact; none where nothing was gained.
    pub changes: BTreeMap<Role, Change>,
    /// How it went.
    pub course: Tuning,
}

/// How a tuning went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// Steps that were asked for.
    pub asked: usize,
    /// Steps that were taken.
    pub taken: usize,
    /// Steps that led to what is kept; 0 where nothing is, and the artifact is as it was before.
    pub kept: usize,
    /// Numbers that were tuned.
    pub numbers: usize,
    /// Divergences on some of the held-out windows that decide, of the models as numbers in float32.
    pub trace: Vec<Point>,
    /// The divergence before, executed on all held-out windows that decide, nats.
    pub kl_before: f64,
    /// The same of what was tuned; absent where no step gained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl_after: Option<f64>,
    /// What was found that has no code in the type that it is stored in, where nothing is kept for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_code: Option<String>,
}

impl Tuning {
    /// Keeps nothing of what was found, since not all of it has a code.
    pub(crate) fn refuse(&mut self, why: &dyn std::error::Error) {
        self.kept = 0;
        self.without_code = Some(why.to_string());
    }
}

impl Course<'_> {
    fn context(&self) -> usize {
        self.calibration.context
    }

    /// The tokens of a step: windows of the calibration, each text by its tokens and their weight.
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
        for _ in 0..(POSITIONS / context).max(1) {
            let (mut drawn, mut first) = (random.unit() * all, 0);
            // The last one where rounding leaves something over.
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

    /// Some of the held-out windows, spread evenly.
    fn measured_on(&self) -> Windows {
        let all = Mixture::new(vec![(self.held_out.clone(), 1.0)]);
        let some = all.map(|all| all.thinned(MOST_WINDOWS).windows().clone());
        some.unwrap_or_else(|| self.held_out.clone())
    }

    /// What the state of a tuning is kept under beside the key of its artifact.
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
        Digest::of(named.as_bytes()).to_string()
    }

    /// Tunes, from where an earlier run was interrupted; `artifact` is what was made, where that is kept.
    ///
    /// # Errors
    /// [`TuneError`].
    pub(crate) fn tune(&self, artifact: Artifact, watch: Watch) -> Result<Tuned, TuneError> {
        let base = Scales::of(self.made.file(), self.source.file())?;
        check_types(self.made.file(), &base)?;
        let (held_out, count) = (self.measured_on(), base.count());
        let name = self.name(&held_out);
        let kept = artifact.state(&name, State::most_bytes(count, self.steps));
        let kept = kept.and_then(|bytes| State::of_bytes(&bytes, count));
        let mut state = kept.unwrap_or_else(|| State::new(count));
        watch.tell(Event::Tuning(self.steps.saturating_sub(state.step)));
        if !self.is_over(&state) {
            let cpu = Cpu::with_threads(self.threads)?;
            let beside =
                |made| Distillation::new([self.source, made], cpu.clone(), self.context(), watch);
            let mut ends = Ends {
                whole: beside(self.made),
                bases: self.bases.map(beside),
            };
            let tokens = held_out.tokens_at(0..held_out.tokens());
            let expected = ends.whole.expected(tokens)?;
            let every = self.steps.div_ceil(MEASUREMENTS).max(1);
            while !self.is_over(&state) {
                if state.trace.is_empty() {
                    ends.measure(&mut state, (&held_out, &expected), &base)?;
                }
                let scales = changed(&base, &state.change);
                let gradients = ends.gradients(&self.batch(state.step), &scales)?;
                // With respect to the relative changes.
                let numbers = base.values.iter().flatten();
                let pairs = gradients.into_iter().zip(numbers);
                state.descend(pairs.map(|(g, w)| g * f64::from(*w)), self.steps);
                if state.step.is_multiple_of(every) || state.step == self.steps {
                    let scales = changed(&base, &state.change);
                    ends.measure(&mut state, (&held_out, &expected), &scales)?;
                }
                artifact.keep_state(&name, &state.to_bytes())?;
                watch.done(&format!("tuning, step {}", state.step))?;
            }
        }
        let kept = state.least().map_or(0, |point| point.step);
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
            _ => match changes(self.made.file(), &changed(&base, &state.best)) {
                Err(error @ TuneError::Block { .. }) => {
                    course.refuse(&error);
                    BTreeMap::new()
                }
                changes => changes?,
            },
        };
        Ok(Tuned { changes, course })
    }

    fn is_over(&self, state: &State) -> bool {
        state.step >= self.steps || state.waiting() >= PATIENCE
    }
}

/// An artifact, and the same without refinements where it has some, each beside the source.
struct Ends<'a> {
    whole: Distillation<'a>,
    bases: Option<Distillation<'a>>,
}

impl Ends<'_> {
    /// Measures them with these scales.
    fn measure(
        &mut self,
        state: &mut State,
        (windows, expected): (&Windows, &Expected),
        scales: &Scales,
    ) -> Result<(), TuneError> {
        let whole = self.whole.divergence(windows, expected, scales)?;
        let bases = self.bases.as_mut();
        let bases = bases.map(|bases| bases.divergence(windows, expected, scales));
        state.measured(whole, bases.transpose()?);
        Ok(())
    }

    /// The gradients of the divergence with respect to each number; of both ends the sum of those of their logarithms,
    /// so that neither is tuned at the cost of the other.
    fn gradients(&mut self, tokens: &[u32], scales: &Scales) -> Result<Vec<f64>, TuneError> {
        let (kl, gradients) = self.whole.gradients(tokens, scales)?;
        let mut sums: Vec<f64> = gradients.into_iter().flatten().collect();
        if let Some(bases) = &mut self.bases {
            let (of_bases, gradients) = bases.gradients(tokens, scales)?;
            // A divergence of nothing has gradients of nothing.
            let [whole, bases] = [kl, of_bases].map(|kl| 1.0 / kl.max(f64::MIN_POSITIVE));
            let pairs = sums.iter_mut().zip(gradients.into_iter().flatten());
            pairs.for_each(|(sum, g)| *sum = whole * *sum + bases * g);
        }
        Ok(sums)
    }
}

/// Scales with a relative change of each number.
fn changed(base: &Scales, change: &[f32]) -> Scales {
    let mut scales = base.clone();
    let numbers = scales.values.iter_mut().flatten();
    numbers
        .zip(change)
        .for_each(|(number, change)| *number *= 1.0 + change);
    scales
}

/// Refuses norms that numbers cannot be put into.
fn check_types(file: &ModelFile, scales: &Scales) -> Result<(), TuneError> {
    let known = [DType::F32, DType::F16, DType::BF16];
    for scale in &scales.of {
        if let Scale::Norm(role) = *scale
            && let Some(tensor) = file.tensor(role)
            && !known.contains(&tensor.dtype)
        {
            let dtype = tensor.dtype;
            return Err(TuneError::Type { role, dtype });
        }
    }
    Ok(())
}

/// What of the tensors differs with these scales: norms in the types that they have, matrices by their rows.
fn changes(file: &ModelFile, scales: &Scales) -> Result<BTreeMap<Role, Change>, TuneError> {
    let mut changes = BTreeMap::new();
    for (&scale, values) in scales.of.iter().zip(&scales.values) {
        match scale {
            Scale::Norm(role) => {
                if let Some(tensor) = file.tensor(role) {
                    let mut bytes = vec![0; file.bytes(tensor).len()];
                    block::encode_finite(tensor.dtype, values, &mut bytes)
                        .map_err(|source| TuneError::Block { role, source })?;
                    changes.insert(role, Change::Bytes(bytes));
                }
            }
            Scale::Rows { layer, slot } => {
                for role in rows_of(file, layer, slot) {
                    changes.insert(role, Change::Rows(values.clone()));
                }
            }
        }
    }
    Ok(changes)
}

/// Bytes that a tuning takes beside the weights and activations of a layer: the residual streams of a step in front
/// of every layer, and those of the text that is measured on.
pub(crate) fn memory(hyper: &HyperParameters, context: usize) -> u64 {
    let windows = (POSITIONS / context.max(1)).max(1);
    let streams = (hyper.layers + 3) * windows + 3 * MOST_WINDOWS;
    let position = 4 * hyper.width as u64;
    (streams as u64)
        .saturating_mul(context as u64)
        .saturating_mul(position)
}

/// Positions of so many steps, and of the measurements beside them, about.
pub(crate) fn positions(steps: usize) -> (usize, usize) {
    let measured = match steps {
        0 => 0,
        _ => (MEASUREMENTS.min(steps) + 2) * MOST_WINDOWS * DEFAULT_CONTEXT,
    };
    (steps.saturating_mul(POSITIONS), measured)
}
