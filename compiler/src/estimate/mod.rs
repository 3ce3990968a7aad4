//! What a compilation will take, before any of its work.

pub mod duration;
pub(crate) mod matrices;
pub(crate) mod stages;

use htc_formats::model::{HyperParameters, MatrixId};
use htc_formats::source::ModelFile;
use serde::{Deserialize, Serialize};

use crate::calibrate::Calibration;
use crate::choose;
use crate::estimate::duration::{Speed, forward_seconds};
use crate::estimate::stages::Workload;
pub use crate::estimate::stages::{StageSeconds, coding};
use crate::gradient;
use crate::layout::{self, Job};
use crate::plan::{Form, Method, Plan, UnitPlan};
use crate::request::{CompileOptions, GaugeKind, Planning, Request, Treatment};
use crate::unit::{kv_bases, place, truncated};
use crate::{make, profile, tune};

/// What a compilation is expected to take and to give.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Bytes of the artifact.
    pub bytes: u64,
    /// Bytes of memory beside the mapped source, at most.
    pub peak_memory: u64,
    /// Seconds that it takes, of its stages those that are estimated.
    pub seconds: f64,
    /// Seconds of the stages, what the cache has counted as if it had not.
    #[serde(default)]
    pub stages: StageSeconds,
}

/// What is estimated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected<'a> {
    /// The model.
    pub source: &'a ModelFile,
    /// Its plan.
    pub plan: &'a Plan,
    /// How its weights are treated.
    pub treatment: Treatment,
    /// Its activations.
    pub calibration: Option<&'a Calibration>,
    /// Candidates that are made.
    pub candidates: usize,
    /// Steps in which norms and rows are tuned.
    pub tune: usize,
    /// Bytes of an artifact.
    pub bytes: u64,
    /// Bytes of the stored vocabulary.
    pub vocabulary: u64,
    /// What this machine does in a second.
    pub speed: Speed,
    /// Whether models are executed in other memory than the host's.
    pub elsewhere: bool,
    /// Whether matrices are multiplied and decomposed on a device, which copies of them are brought to.
    pub algebra_elsewhere: bool,
}

/// Estimates what a compilation takes, from shapes and ranks and the speed of this machine.
pub(crate) fn estimate(options: &CompileOptions, expected: Expected) -> Estimate {
    let Expected {
        source,
        plan,
        treatment,
        calibration,
        candidates,
        tune,
        bytes,
        vocabulary,
        speed,
        elsewhere,
        algebra_elsewhere,
    } = expected;
    let threads = options.threads;
    let jobs = layout::jobs(source, plan, treatment.bias);
    let window = make::window(&jobs, source.hyper.layers, threads);
    let measures = match &options.planning {
        Planning::Make { request, target } => {
            profile::reads_weights(request, target, calibration.is_some())
        }
        Planning::File(_) => false,
    };
    let measured = if measures { plan.units() } else { &[] };
    let spectra = measured.iter().map(|u| spectrum(u, plan.request()));
    let spectra = threads as u64 * spectra.max().unwrap_or(0);
    // Codes look at them, whoever made the plan.
    let goes_back = made_with_gradients(options) || plan.reads_gradients();
    let back = match (goes_back, calibration) {
        (true, Some(found)) => {
            gradient::needed_memory(&source.hyper, &source.spec(), found.context)
        }
        _ => 0,
    };
    let spectra = spectra.max(back);
    let stages_before = match treatment.gauge {
        GaugeKind::Axiom => spectra.max(axiom(&source.hyper, plan, threads)),
        _ => spectra,
    };
    let memory = peak_memory(
        (&jobs, &source.hyper),
        stages_before,
        window,
        threads,
        vocabulary,
    );
    let copies = match algebra_elsewhere {
        true => threads as u64 * matrices::copies(source.hyper.width),
        false => 0,
    };
    let memory = memory.saturating_add(copies);
    let calibrated = calibration.map_or(0, |found| {
        let context = found.context;
        let gauged = treatment.gauge != GaugeKind::None;
        let sessions = match elsewhere {
            true => 0,
            false => sessions(&source.hyper, context),
        };
        sites(&source.hyper, context, threads, gauged) + sessions
    });
    let held_out = calibration.and_then(|found| found.held_out.as_ref());
    // What bases lack is looked at and coded once more, and measured at every point of the dial.
    let refined = options.planes > 1;
    // With every candidate, where a limit decides on the size of all of it.
    let refinements = match (refined, options.goal.limit.is_none()) {
        (false, _) => 0.0,
        (true, true) => 1.0,
        (true, false) => candidates as f64,
    };
    let points = if refined { choose::DIAL_POINTS } else { 0 };
    // Half of them decide, with every candidate; half report on the one that is taken.
    let times = match candidates {
        1 => 1.0,
        many => 0.5 * (many + 1) as f64,
    };
    let compared = match &options.planning {
        Planning::Make { request, .. } => options.goal.compared(request.method, request.effort),
        Planning::File(_) => 0,
    };
    let times = times + 0.5 * (points + compared) as f64;
    let units = plan.units().iter().map(|unit| {
        let reads = place(source, unit).is_some();
        (unit, reads && calibration.is_some())
    });
    let quantises = made_with_gradients(options);
    let effort = plan.request().effort.work();
    let work = Workload {
        source,
        tokens: calibration.map_or(0, Calibration::tokens),
        back: match goes_back {
            true => effort
                .gradient_tokens
                .min(calibration.map_or(0, Calibration::tokens)),
            false => 0,
        },
        threads,
    };
    let stages = StageSeconds {
        calibrate: stages::calibration(work, speed),
        plan: match quantises {
            true => {
                let request = plan.request();
                let of = (effort, request.codes, stages::rotates(request));
                (1.0 + refinements) * stages::curves(source, of, speed, threads)
            }
            false => 0.0,
        },
        factorise: ((candidates + compared) as f64 + refinements) * speed.seconds(units, threads)
            + (candidates + compared) as f64
                * stages::bases(source, plan.request(), speed, threads),
        measure: held_out.map_or(0.0, |windows| {
            // The source and the candidate.
            let tokens = windows.count() * calibration.map_or(0, |found| found.context);
            2.0 * times * forward_seconds(source, tokens, threads, true).unwrap_or(0.0)
        }),
        tune: stages::tunings(options) * stages::tuning(source, tune, speed, threads),
    };
    let tuning = match (tune, calibration) {
        (0, _) | (_, None) => 0,
        (_, Some(found)) => {
            let (hyper, context) = (&source.hyper, found.context);
            // What both ends of an elastic artifact are executed with stays while the other is.
            let ends = u64::from(options.planes);
            ends * gradient::needed_memory(hyper, &source.spec(), context)
                + tune::memory(hyper, context)
        }
    };
    let peak_memory = calibrated + memory.max(tuning);
    // Each of the C library's arenas keeps what its threads gave back, where stages with several threads
    // follow one another: a third more than the above has been seen.
    let kept = match quantises && threads > 1 {
        true => peak_memory / 2,
        false => 0,
    };
    Estimate {
        bytes,
        peak_memory: peak_memory + kept,
        seconds: stages.total(),
        stages,
    }
}

/// Whether a plan is made from gradients.
fn made_with_gradients(options: &CompileOptions) -> bool {
    match &options.planning {
        Planning::Make { request, .. } => request.method == Method::Quantise,
        Planning::File(_) => false,
    }
}

/// What the program takes before it has work: code's data, stacks, the model's tables.
const BASE: u64 = 8 << 20;
/// What a thread takes: its stack, and the packed panels of its matrix products.
const PER_THREAD: u64 = 4 << 20;
/// Times the stored vocabulary that the vocabulary takes in memory: its texts, its merges, the
/// form it is stored in.
const VOCABULARY: u64 = 4;

/// What calibrated statistics take at most: second moments in f64 of the four sites of two layers,
/// with their roots and the inverses of these; one more and a product for every thread. The hidden layer's moment is
/// used without a root, and where no gauge keeps it once: what feedback makes of it belongs to its unit. While text
/// flows there are the sums of one layer alone, and the activations of a batch.
fn sites(hyper: &HyperParameters, context: usize, threads: usize, gauged: bool) -> u64 {
    let square = |n: usize| 8 * (n as u64).pow(2);
    let (width, heads) = (square(hyper.width), square(hyper.heads * hyper.head_size));
    let hidden = square(hyper.ffn);
    let batch = 512 * 4 * (8 * hyper.width + 4 * hyper.ffn + 4 * hyper.heads * hyper.head_size);
    // What is summed of a batch is copied first, with queries, keys and values head by head.
    let summed = 4 * hyper.width + hyper.ffn + (hyper.heads + 3 * hyper.kv_heads) * hyper.head_size;
    let of_hidden = if gauged { 4 * hidden } else { hidden };
    2 * (2 * 3 * width + 3 * heads)
        + of_hidden
        + threads as u64 * 2 * width.max(heads).max(hidden)
        + (batch + 512 * 4 * summed) as u64
        // Keys and values of all layers have room, though one layer at a time is executed.
        + 2 * 4 * (hyper.layers * hyper.kv_heads * hyper.head_size) as u64
            * context.max(512) as u64
}

/// What two models take that are executed side by side, with the logits of both: they are measured
/// when no unit is factorised, but what was used then may be kept.
fn sessions(hyper: &HyperParameters, context: usize) -> u64 {
    let width = 8 * hyper.width + 4 * hyper.ffn + 4 * hyper.heads * hyper.head_size;
    let kv = 2 * 4 * hyper.layers * hyper.kv_heads * hyper.head_size * context.max(512);
    let logits = 4 * (1 << 22).max(hyper.vocabulary);
    2 * (512 * 4 * width + kv + logits) as u64
}

/// What searches for axiom gauges take at most, one for each thread, each of another layer: the layer's
/// slots that are truncated in f32; for each the Gram matrix of its smaller side in f64, of which four
/// more are at work at a time, or with the residual stream as its larger side a vector; two panels.
fn axiom(hyper: &HyperParameters, plan: &Plan, threads: usize) -> u64 {
    let of_layer = |layer: usize| {
        let slots = truncated(plan, layer).map(|(_, member, _)| {
            let (rows, cols) = (member.rows as u64, member.cols as u64);
            let order = rows.min(cols);
            (4 * rows * cols + 8 * order * order, order, rows.max(cols))
        });
        let sums = slots.fold((0, 0, 0), |(sum, order, longest), slot| {
            (sum + slot.0, slot.1.max(order), slot.2.max(longest))
        });
        let (sum, order, longest) = sums;
        sum + 8 * 5 * order * order + panels(longest, order)
    };
    let largest = (0..hyper.layers).map(of_layer).max().unwrap_or(0);
    largest * threads.min(hyper.layers) as u64
}

/// An upper estimate of the memory that a compilation takes beside the mapped source:
///
/// ```text
/// BASE + threads · PER_THREAD + VOCABULARY · vocabulary
///   + max( threads · largest spectrum,  threads · largest search of a gauge,  threads · largest unit + largest results in flight )
/// ```
///
/// where, with `q` and `l` the shorter and the longer side of a unit's weight and `r` its rank,
///
/// * a spectrum takes the weights in f32, and three matrices `q × q` of f64: the Gram matrix and what
///   its reduction needs;
/// * a unit takes the weights in f32; six matrices `q × q` of f64 for the eigenvectors, or with a
///   singular value decomposition (the slot down) eight and the weights twice in f64; the factors
///   four times, in f64 and f32 and encoded and decoded; two panels of 512 rows;
/// * bases for the KV cache of a layer take eight matrices of f64 of the order of a head, and three times what is stored;
/// * as many results of units as lie within the window of steps may wait to be written.
///
/// Stages do not overlap, and memory that one gave back serves the next.
fn peak_memory(
    (jobs, hyper): (&[Job], &HyperParameters),
    stages_before: u64,
    window: usize,
    threads: usize,
    vocabulary: u64,
) -> u64 {
    let threads_used = threads.min(jobs.len()) as u64;
    let of = |job: &Job, what: &dyn Fn(&UnitPlan) -> u64, bases: u64| match job {
        Job::Make(unit) => what(unit),
        Job::PassThrough(_) => 0,
        Job::KvBases(_) => bases,
    };
    let bases = kv_bases::working(hyper);
    let largest = jobs.iter().map(|job| of(job, &working, bases)).max();
    let largest = largest.unwrap_or(0);
    let bases = kv_bases::bytes(hyper);
    let waiting = jobs
        .windows(window.clamp(1, jobs.len().max(1)))
        .map(|jobs| jobs.iter().map(|job| of(job, &results, bases)).sum())
        .max()
        .unwrap_or(0);
    let stages = (threads_used * largest + waiting).max(stages_before);
    BASE + threads_used * PER_THREAD + VOCABULARY * vocabulary + stages
}

/// Rows of all members, and their columns.
fn shape(unit: &UnitPlan) -> (u64, u64) {
    let rows = unit.members.iter().map(|m| m.rows as u64).sum();
    (rows, unit.members.first().map_or(0, |m| m.cols as u64))
}

fn spectrum(unit: &UnitPlan, request: &Request) -> u64 {
    let (rows, cols) = shape(unit);
    let order = match request.method {
        Method::PerSlot | Method::Quantise => rows.min(cols),
        Method::SharedBasis => cols,
    };
    // Feedback of rotated inputs, that of others, and what the former is made of.
    let rotated = match stages::rotates(request) {
        true => 4 * 6 * cols * cols,
        false => 0,
    };
    4 * rows * cols + (8 * 3 * order * order).max(rotated) + panels(rows, cols)
}

fn working(unit: &UnitPlan) -> u64 {
    let (rows, cols) = shape(unit);
    let rank = unit.rank().unwrap_or(0) as u64;
    let svd = unit
        .members
        .iter()
        .any(|m| m.slot() == Some(htc_formats::model::Slot::Down));
    let decomposition = match unit.form {
        Form::Kept => return 0,
        // Some rows at a time; the result is counted where it waits.
        Form::Dense { .. } => return together(unit, CARRIED) + ENCODED + results(unit),
        Form::Bands { .. } => return banded(unit) + ENCODED + results(unit),
        Form::LowRank { .. } | Form::Residual { .. } if svd => {
            8 * (2 * rows * cols + 8 * rows.min(cols).pow(2))
        }
        Form::LowRank { .. } | Form::Residual { .. } => 8 * 6 * rows.min(cols).pow(2),
        Form::SharedBasis { .. } => 8 * 6 * cols * cols,
    };
    let factors = rank * (rows + cols) * 4 * 8;
    // The base as it will be read, its bytes, and what it lacks.
    let base = match unit.form {
        Form::Residual { .. } => 3 * 4 * rows * cols,
        _ => 0,
    };
    4 * rows * cols + base + decomposition + factors + panels(rows, cols)
}

/// All rows of a matrix, as they are and as they will be read some at a time; where rows make up for each other the
/// second moment of the gradients at them twice in f32 and once in f64, and what they lose, carry, and are as
/// stored; and two products of columns, with those of rotated ones and what these are made of.
fn banded(unit: &UnitPlan) -> u64 {
    let (rows, cols) = shape(unit);
    let squares = match &unit.form {
        Form::Bands { codes } if codes.is_rotated() => 6,
        _ => 4,
    };
    4 * rows * cols + together(unit, CARRIED + 4) + 4 * squares * cols * cols
}

/// Numbers for each weight of rows that make up for each other: what they carry.
const CARRIED: u64 = 1;

/// What makes rows make up for each other: the second moment of the gradients at them, and so many numbers for each of
/// their weights.
fn together(unit: &UnitPlan, numbers: u64) -> u64 {
    let (_, cols) = shape(unit);
    let members = unit.members.iter();
    let largest = members.map(|member| match member.matrix {
        MatrixId::Slot { .. } => {
            let together = gradient::outputs_together(member.rows) as u64;
            16 * together * together + 4 * numbers * together * cols
        }
        MatrixId::Embedding | MatrixId::Head => 0,
    });
    largest.max().unwrap_or(0)
}

fn panels(rows: u64, cols: u64) -> u64 {
    2 * 8 * 512 * rows.max(cols).min(rows.min(cols).max(512))
}

/// What the numbers of some rows take while they are encoded anew, as they are and as they will be read.
const ENCODED: u64 = 16 << 20;

/// Bytes of the tensors that a unit stores.
fn results(unit: &UnitPlan) -> u64 {
    unit.bytes_after()
}
