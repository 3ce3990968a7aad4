//! Estimates of the time, memory and size of a compilation.

pub mod duration;
pub(crate) mod matrices;
pub(crate) mod stages;

use htc_formats::model::{HyperParameters, MatrixId, ProjectionKind};
use htc_formats::source::ModelFile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calibrate::windows::HeldOut;
use crate::calibrate::{self, Calibration};
use crate::choose;
use crate::estimate::duration::{Speed, forward_seconds};
pub(crate) use crate::estimate::stages::SEARCH_CANDIDATES;
use crate::estimate::stages::Workload;
pub use crate::estimate::stages::{StageSeconds, coding_cost};
use crate::gradient;
use crate::layout::{self, WriteStep};
use crate::options::{
    CompileOptions, DEFAULT_CONTEXT, GaugeKind, PlanRequest, PlanSource, Treatment,
};
use crate::plan::{MatrixForm, Method, Plan, UnitPlan};
use crate::unit::{CACHE_CAPACITY, input_of_unit, kv_bases, truncated_projections};
use crate::{make, measure, profile, tune};

/// Estimated resources and result of a compilation.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Estimate {
    /// Bytes of the artifact.
    pub bytes: u64,
    /// Upper bound of the memory in bytes, without the mapped source.
    pub peak_memory: u64,
    /// Total seconds of the estimated stages.
    pub seconds: f64,
    /// Seconds of the stages, without cached results.
    #[serde(default)]
    pub stages: StageSeconds,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct EstimateInputs<'a> {
    pub source: &'a ModelFile,
    pub plan: &'a Plan,
    pub treatment: Treatment,
    pub calibration: Option<&'a Calibration>,
    pub candidates: usize,
    /// Tuning steps for norms and rows.
    pub tune: usize,
    /// Bytes of an artifact.
    pub bytes: u64,
    /// Bytes as stored.
    pub vocabulary: u64,
    pub speed: Speed,
    pub uses_device_memory: bool,
    /// Matrix algebra runs on a device, with copies to it.
    pub uses_device_algebra: bool,
}

pub(crate) fn estimate(options: &CompileOptions, expected: EstimateInputs) -> Estimate {
    let EstimateInputs {
        source,
        plan,
        treatment,
        calibration,
        candidates,
        speed,
        ..
    } = expected;
    let threads = options.threads;
    let jobs = layout::write_steps(source, plan, treatment.bias);
    let window = make::pending_limit(&jobs, source.hyper.layers, threads);
    let measures = match &options.planning {
        PlanSource::Compute { request, target } => {
            profile::reads_weights(request, target, calibration.is_some())
        }
        PlanSource::File(_) => false,
    };
    let measured = if measures { plan.units() } else { &[] };
    let spectra = measured.iter().map(|u| spectrum_bytes(u, plan.request()));
    let spectra = threads as u64 * spectra.max().unwrap_or(0);
    let goes_back = planning_needs_gradients(options) || plan.needs_gradients();
    let back = match (goes_back, calibration) {
        (true, Some(found)) => {
            gradient::needed_memory(&source.hyper, &source.spec(), found.context)
        }
        _ => 0,
    };
    let spectra = spectra.max(back);
    let stages_before = match treatment.gauge {
        GaugeKind::Axiom => spectra.max(axiom_gauge_bytes(&source.hyper, plan, threads)),
        _ => spectra,
    };
    let memory = peak_memory(
        &jobs,
        &source.hyper,
        stages_before,
        window,
        threads,
        expected.vocabulary,
    );
    let copies = if expected.uses_device_algebra {
        threads as u64 * matrices::host_copy_bytes(source.hyper.width)
    } else {
        0
    };
    let memory = memory.saturating_add(copies);
    // An artifact without a calibration is measured on the shipped text.
    let shipped_context = DEFAULT_CONTEXT.min(source.hyper.context);
    let context = calibration.map_or(shipped_context, |found| found.context);
    let sessions = if expected.uses_device_memory {
        0
    } else {
        session_bytes(&source.hyper, context)
    };
    let calibrated = calibration.map_or(0, |found| {
        let gauged = treatment.gauge != GaugeKind::None;
        calibration_bytes(&source.hyper, found.context, threads, gauged)
    });
    let calibrated = calibrated + sessions;
    let held_out = calibration.and_then(|found| found.held_out.as_ref());
    // Coded once more, and measured at every active fraction.
    let refined = options.artifact.planes > 1;
    // With every candidate if a limit applies to the whole.
    let refinements = match (refined, options.limit.is_none()) {
        (false, _) => 0.0,
        (true, true) => 1.0,
        (true, false) => candidates as f64,
    };
    let points = if refined {
        choose::ACTIVE_FRACTION_POINTS
    } else {
        0
    };
    let times = match candidates {
        1 => 1.0,
        many => 0.5 * (many + 1) as f64,
    };
    let compared = match &options.planning {
        PlanSource::Compute { request, .. } => options
            .artifact
            .max_comparison_files(request.method, request.effort),
        PlanSource::File(_) => 0,
    };
    let times = times + 0.5 * (points + compared) as f64;
    let units = plan.units().iter().map(|unit| {
        let reads = input_of_unit(source, unit).is_some();
        (unit, reads && calibration.is_some())
    });
    let quantises = planning_needs_gradients(options);
    let effort = plan.request().effort.settings();
    let work = Workload {
        source,
        tokens: calibration.map_or(0, Calibration::tokens),
        gradient_tokens: if goes_back {
            effort
                .gradient_tokens
                .min(calibration.map_or(0, Calibration::tokens))
        } else {
            0
        },
        threads,
    };
    let stages = StageSeconds {
        calibrate: stages::calibration_seconds(work, speed),
        plan: if quantises {
            let request = plan.request();
            let codes = request.codes.kinds();
            let rotates = stages::evaluates_rotation(request);
            let once = stages::curve_seconds(source, effort, codes, rotates, speed, threads);
            (1.0 + refinements) * once
        } else {
            0.0
        },
        factorise: ((candidates + compared) as f64 + refinements)
            * speed.unit_seconds(units, threads)
            + (candidates + compared) as f64
                * stages::kv_bases_seconds(source, plan.request(), speed, threads),
        measure: {
            let windows = match calibration {
                Some(_) => held_out.map_or(0, HeldOut::count),
                None => choose::SHIPPED_WINDOWS,
            };
            let tokens = windows * context;
            let passes = stages::passes_of_measurements(&source.hyper, tokens, context, times);
            let tokens = (passes * tokens as f64) as usize;
            forward_seconds(source, tokens, threads, true).unwrap_or(0.0)
        },
        tune: stages::tuning_factor(options)
            * stages::tuning_seconds(source, expected.tune, speed, threads),
    };
    let tuning = match (expected.tune, calibration) {
        (0, _) | (_, None) => 0,
        (_, Some(found)) => {
            let (hyper, context) = (&source.hyper, found.context);
            let ends = u64::from(options.artifact.planes);
            ends * gradient::distillation_memory(hyper, &source.spec(), context)
                + tune::memory_bytes(hyper, context)
        }
    };
    let peak_memory = calibrated + memory.max(tuning);
    // Arenas of the C library retain freed memory: a third was observed.
    let kept = if quantises && threads > 1 {
        peak_memory / 2
    } else {
        0
    };
    let logits = held_out.map_or(0, |windows| {
        let positions = windows.count() * calibration.map_or(0, |found| found.context);
        measure::kept_bytes(positions as u64, source.hyper.vocabulary)
    });
    Estimate {
        bytes: expected.bytes,
        peak_memory: peak_memory + kept + logits,
        seconds: stages.total(),
        stages,
    }
}

fn planning_needs_gradients(options: &CompileOptions) -> bool {
    match &options.planning {
        PlanSource::Compute { request, .. } => request.method == Method::Quantise,
        PlanSource::File(_) => false,
    }
}

/// Code's data, stacks, the model's tables.
const BASE_BYTES: u64 = 8 << 20;
/// Stack, and packed panels of matrix products.
const BYTES_PER_THREAD: u64 = 4 << 20;
/// Texts, merges, serialised form.
const VOCABULARY_FACTOR: u64 = 4;

/// Returns an upper bound for calibration statistics: f64 second moments of the four activation
/// points of two layers with roots and inverses; one more and a product per thread. The moment of
/// the hidden layer has no root, and without a gauge is held once. During forward passes only the
/// sums of one layer and the activations of a batch are in memory.
///
/// For mixtures it adds the sums of a layer with those of all its experts. The cache of moments then
/// holds inputs of experts, and threads work on up to `threads / 3`, rounded up, experts at a time,
/// each with a moment of its hidden units.
fn calibration_bytes(hyper: &HyperParameters, context: usize, threads: usize, gauged: bool) -> u64 {
    let square = |n: usize| 8 * (n as u64).pow(2);
    let (width, heads) = (square(hyper.width), square(hyper.heads * hyper.head_size));
    let ffn = hyper
        .forward
        .experts
        .map_or(hyper.ffn, |experts| experts.ffn);
    let hidden = square(ffn);
    let of_inputs = 2 * (2 * 3 * width + 3 * heads);
    let (of_inputs, hidden_in_use, experts) = match hyper.forward.experts {
        None => (of_inputs, 1, 0),
        Some(_) => (
            of_inputs.max(CACHE_CAPACITY as u64 * 3 * width),
            threads.div_ceil(3) as u64,
            calibrate::sums_bytes(hyper),
        ),
    };
    let batch = 512 * 4 * (8 * hyper.width + 4 * ffn + 4 * hyper.heads * hyper.head_size);
    // With queries, keys and values by head.
    let summed = 4 * hyper.width + ffn + (hyper.heads + 3 * hyper.kv_heads) * hyper.head_size;
    let of_hidden = if gauged { 4 * hidden } else { hidden };
    of_inputs
        + hidden_in_use * of_hidden
        + threads as u64 * 2 * width.max(heads).max(hidden)
        + (batch + 512 * 4 * summed) as u64
        + experts
        // Though one layer at a time is executed.
        + 2 * 4 * (hyper.layers * hyper.kv_heads * hyper.head_size) as u64
            * context.max(512) as u64
}

/// Returns the memory of two models executed together, with logits. They run when no unit is
/// factorised, but memory may be retained.
fn session_bytes(hyper: &HyperParameters, context: usize) -> u64 {
    let width = 8 * hyper.width + 4 * hyper.widest_ffn() + 4 * hyper.heads * hyper.head_size;
    let kv = 2 * 4 * hyper.layers * hyper.kv_heads * hyper.head_size * context.max(512);
    let logits = 4 * (1 << 22).max(hyper.vocabulary);
    2 * (512 * 4 * width + kv + logits) as u64
}

/// Returns an upper bound for axiom gauge searches, one layer per thread: truncated projections in
/// f32, for each the f64 Gram matrix of the smaller side (four more in use at a time), or a vector
/// if the residual stream is the larger side; two panels.
fn axiom_gauge_bytes(hyper: &HyperParameters, plan: &Plan, threads: usize) -> u64 {
    let of_layer = |layer: usize| {
        let projections = truncated_projections(plan, layer).map(|(_, member, _)| {
            let (rows, cols) = (member.rows as u64, member.cols as u64);
            let order = rows.min(cols);
            (4 * rows * cols + 8 * order * order, order, rows.max(cols))
        });
        let sums = projections.fold((0, 0, 0), |(sum, order, longest), projection| {
            (
                sum + projection.0,
                projection.1.max(order),
                projection.2.max(longest),
            )
        });
        let (sum, order, longest) = sums;
        sum + 8 * 5 * order * order + panels(longest, order)
    };
    let largest = (0..hyper.layers).map(of_layer).max().unwrap_or(0);
    largest * threads.min(hyper.layers) as u64
}

/// Returns an upper bound of the memory of a compilation without the mapped source:
///
/// ```text
/// BASE + threads · PER_THREAD + VOCABULARY · vocabulary
///   + max( threads · largest spectrum,  threads · largest search of a gauge,  threads · largest unit + largest results in flight )
/// ```
///
/// With `q` and `l` the shorter and longer side of a unit's weight and `r` its rank,
///
/// * a spectrum needs the weights in f32 and three f64 matrices `q × q`: the Gram matrix and its
///   reduction;
/// * a unit needs the weights in f32; six f64 matrices `q × q` for eigenvectors, or with a singular
///   value decomposition (`down`) eight and the weights twice in f64; the factors four times (f64,
///   f32, encoded, decoded); two panels of 512 rows;
/// * KV cache bases of a layer need eight f64 matrices of the order of a head, and three times the
///   stored size;
/// * the results within the window of steps may wait to be written.
///
/// Stages do not overlap, and later stages reuse freed memory.
fn peak_memory(
    jobs: &[WriteStep],
    hyper: &HyperParameters,
    stages_before: u64,
    window: usize,
    threads: usize,
    vocabulary: u64,
) -> u64 {
    let threads_used = threads.min(jobs.len()) as u64;
    let of = |job: &WriteStep, what: &dyn Fn(&UnitPlan) -> u64, bases: u64| match job {
        WriteStep::Compute(unit) => what(unit),
        WriteStep::PassThrough(_) => 0,
        WriteStep::KvBases(_) => bases,
    };
    let bases = kv_bases::working_bytes(hyper);
    let largest = jobs.iter().map(|job| of(job, &unit_bytes, bases)).max();
    let largest = largest.unwrap_or(0);
    let bases = kv_bases::layer_bytes(hyper);
    let waiting = jobs
        .windows(window.clamp(1, jobs.len().max(1)))
        .map(|jobs| jobs.iter().map(|job| of(job, &result_bytes, bases)).sum())
        .max()
        .unwrap_or(0);
    let stages = (threads_used * largest + waiting).max(stages_before);
    BASE_BYTES + threads_used * BYTES_PER_THREAD + VOCABULARY_FACTOR * vocabulary + stages
}

fn shape(unit: &UnitPlan) -> (u64, u64) {
    let rows = unit.members.iter().map(|m| m.rows as u64).sum();
    (rows, unit.members.first().map_or(0, |m| m.cols as u64))
}

fn spectrum_bytes(unit: &UnitPlan, request: &PlanRequest) -> u64 {
    let (rows, cols) = shape(unit);
    let order = match request.method {
        Method::PerProjection | Method::Quantise => rows.min(cols),
        Method::SharedBasis => cols,
    };
    let rotated = if stages::evaluates_rotation(request) {
        4 * 6 * cols * cols
    } else {
        0
    };
    4 * rows * cols + (8 * 3 * order * order).max(rotated) + panels(rows, cols)
}

fn unit_bytes(unit: &UnitPlan) -> u64 {
    let (rows, cols) = shape(unit);
    let rank = unit.rank().unwrap_or(0) as u64;
    let svd = unit
        .members
        .iter()
        .any(|m| m.projection().map(ProjectionKind::dense) == Some(ProjectionKind::Down));
    let decomposition = match unit.form {
        MatrixForm::Unchanged => return 0,
        // Results are counted while waiting.
        MatrixForm::Dense { .. } => {
            return joint_row_bytes(unit, CARRIED_ELEMENTS) + ENCODING_BYTES + result_bytes(unit);
        }
        MatrixForm::ColumnGroups { .. } => {
            return column_group_bytes(unit) + ENCODING_BYTES + result_bytes(unit);
        }
        MatrixForm::LowRank { .. } | MatrixForm::Residual { .. } if svd => {
            8 * (2 * rows * cols + 8 * rows.min(cols).pow(2))
        }
        MatrixForm::LowRank { .. } | MatrixForm::Residual { .. } => 8 * 6 * rows.min(cols).pow(2),
        MatrixForm::SharedBasis { .. } => 8 * 6 * cols * cols,
    };
    let factors = rank * (rows + cols) * 4 * 8;
    let base = match unit.form {
        MatrixForm::Residual { .. } => 3 * 4 * rows * cols,
        _ => 0,
    };
    4 * rows * cols + base + decomposition + factors + panels(rows, cols)
}

/// Returns the memory of all rows, original and decoded in chunks; with joint rows the second
/// moment of their gradients twice in f32 and once in f64, with losses, carried errors and stored
/// values; two column products, with those of rotated inputs and their sources.
fn column_group_bytes(unit: &UnitPlan) -> u64 {
    let (rows, cols) = shape(unit);
    let squares = match &unit.form {
        MatrixForm::ColumnGroups { codes } if codes.is_rotated() => 6,
        _ => 4,
    };
    4 * rows * cols + joint_row_bytes(unit, CARRIED_ELEMENTS + 4) + 4 * squares * cols * cols
}

/// Numbers of carried errors per weight of joint rows.
const CARRIED_ELEMENTS: u64 = 1;

/// Returns the memory of joint rows: the second moment of their gradients, and `numbers` elements
/// per weight.
fn joint_row_bytes(unit: &UnitPlan, numbers: u64) -> u64 {
    let (_, cols) = shape(unit);
    let members = unit.members.iter();
    let largest = members.map(|member| match member.matrix {
        MatrixId::Projection { .. } => {
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

/// A chunk of rows, original and decoded.
const ENCODING_BYTES: u64 = 16 << 20;

fn result_bytes(unit: &UnitPlan) -> u64 {
    unit.bytes_after()
}

#[cfg(test)]
mod tests;
