//! Upper bounds of the memory of a compilation, from the shapes of a model and its plan.

use htc_formats::model::{HyperParameters, MatrixId, ProjectionKind};

use super::text::TextSize;
use super::{EstimateInputs, matrices, planning_needs_gradients, stages, workload};
use crate::layout::{self, WriteStep};
use crate::options::{CompileOptions, DEFAULT_CONTEXT, GaugeKind, PlanRequest, PlanSource};
use crate::plan::{MatrixForm, Method, Plan, UnitPlan};
use crate::unit::{CACHE_CAPACITY, kv_bases, truncated_projections};
use crate::{calibrate, gradient, make, measure, profile, tune};

/// Returns an upper bound of the memory of a compilation without the mapped source: that of the
/// largest stage, which reuses what the stages before it have freed.
///
/// ```text
/// BASE + threads · (PER_THREAD + FREED) + VOCABULARY · vocabulary
///   + max( calibration,  backward pass,  moments + copies + planning,
///          moments + copies + units + kept logits,
///          two models executed + kept logits,  tuning + kept logits )
/// ```
pub(super) fn peak_bytes(options: &CompileOptions, expected: &EstimateInputs) -> u64 {
    let EstimateInputs {
        source,
        plan,
        treatment,
        text,
        ..
    } = *expected;
    let (hyper, threads) = (&source.hyper, options.threads);
    let positions = text.map_or(0, TextSize::held_out_tokens);
    let logits = measure::kept_bytes(positions as u64, hyper.vocabulary);
    // An artifact without a calibration is measured on the shipped text.
    let shipped_context = DEFAULT_CONTEXT.min(hyper.context);
    let context = text.map_or(shipped_context, |text| text.context);
    let on_device = expected.uses_device_memory;
    let sessions = if on_device {
        0
    } else {
        session_bytes(hyper, context)
    };
    let gauged = treatment.gauge != GaugeKind::None;
    let moments = text.map_or(0, |_| moment_bytes(hyper, threads, gauged));
    let copies = if expected.uses_device_algebra {
        threads as u64 * matrices::host_copy_bytes(hyper.width)
    } else {
        0
    };
    // Residuals are planned when their bases were measured.
    let logits_while_planning = if options.artifact.planes > 1 {
        logits
    } else {
        0
    };
    let jobs = layout::write_steps(source, plan, treatment.bias);
    let stages = [
        text.map_or(0, |text| calibration_bytes(hyper, text.context)),
        gradient_bytes(options, expected),
        moments + copies + planning_bytes(options, expected) + logits_while_planning,
        moments + copies + bytes_of_units(&jobs, hyper, threads) + logits,
        sessions + logits,
        tuning_bytes(options, expected) + logits,
    ];
    let freed = if planning_needs_gradients(options) {
        FREED_PER_THREAD
    } else {
        0
    };
    let threads = threads as u64 * (BYTES_PER_THREAD + freed);
    let base = BASE_BYTES + threads + VOCABULARY_FACTOR * expected.vocabulary;
    base + stages.into_iter().max().unwrap_or(0)
}

/// Returns the memory of spectra or losses by type, and of the search of axiom gauges.
fn planning_bytes(options: &CompileOptions, expected: &EstimateInputs) -> u64 {
    let EstimateInputs {
        source, plan, text, ..
    } = *expected;
    let threads = options.threads;
    let measures = match &options.planning {
        PlanSource::Compute { request, target } => {
            request.method == Method::Quantise
                || profile::reads_weights(request, target, text.is_some())
        }
        PlanSource::File(_) => false,
    };
    let measured = if measures { plan.units() } else { &[] };
    let spectra = measured.iter().map(|u| spectrum_bytes(u, plan.request()));
    let spectra = sum_of_largest(spectra, threads);
    let axiom = match expected.treatment.gauge {
        GaugeKind::Axiom => axiom_gauge_bytes(&source.hyper, plan, threads),
        _ => 0,
    };
    spectra.max(axiom)
}

/// Returns the memory of the backward pass, if there is one.
fn gradient_bytes(options: &CompileOptions, expected: &EstimateInputs) -> u64 {
    let EstimateInputs { source, text, .. } = *expected;
    let goes_back = workload(options, expected).gradient_tokens > 0;
    text.filter(|_| goes_back).map_or(0, |text| {
        gradient::needed_memory(&source.hyper, &source.spec(), text.context)
    })
}

fn tuning_bytes(options: &CompileOptions, expected: &EstimateInputs) -> u64 {
    let EstimateInputs {
        source, text, tune, ..
    } = *expected;
    text.filter(|_| tune > 0).map_or(0, |text| {
        let (hyper, ends) = (&source.hyper, u64::from(options.artifact.planes));
        ends * gradient::distillation_memory(hyper, &source.spec(), text.context)
            + tune::memory_bytes(hyper, text.context)
    })
}

/// Code's data, stacks, the model's tables.
const BASE_BYTES: u64 = 8 << 20;
/// Stack, and packed panels of matrix products.
const BYTES_PER_THREAD: u64 = 4 << 20;
/// Freed memory in the heap of a thread until it is returned to the system, where losses by type are
/// measured: 22 and 41 MB were seen.
const FREED_PER_THREAD: u64 = 64 << 20;
/// Texts, merges, serialised form.
const VOCABULARY_FACTOR: u64 = 4;

/// Returns an upper bound for the forward passes of a calibration: the sums of one layer, with those
/// of all its experts, the activations of a batch, and the KV cache.
fn calibration_bytes(hyper: &HyperParameters, context: usize) -> u64 {
    let ffn = hyper
        .forward
        .experts
        .map_or(hyper.ffn, |experts| experts.ffn);
    let batch = 512 * 4 * (8 * hyper.width + 4 * ffn + 4 * hyper.heads * hyper.head_size);
    // With queries, keys and values by head.
    let summed = 4 * hyper.width + ffn + (hyper.heads + 3 * hyper.kv_heads) * hyper.head_size;
    calibrate::sums_bytes(hyper)
        + (batch + 512 * 4 * summed) as u64
        // Though one layer at a time is executed.
        + 2 * 4 * (hyper.layers * hyper.kv_heads * hyper.head_size) as u64
            * context.max(512) as u64
}

/// Returns an upper bound for the statistics that planning and units read: f64 second moments of the
/// four activation points of two layers with roots and inverses; one more and a product per thread.
/// The moment of the hidden layer has no root, and without a gauge is held once.
///
/// With experts the cache of moments holds their inputs, and threads work on up to `threads / 3`,
/// rounded up, experts at a time, each with a moment of its hidden units.
fn moment_bytes(hyper: &HyperParameters, threads: usize, gauged: bool) -> u64 {
    let square = |n: usize| 8 * (n as u64).pow(2);
    let (width, heads) = (square(hyper.width), square(hyper.heads * hyper.head_size));
    let of_inputs = 2 * (2 * 3 * width + 3 * heads);
    let (ffn, of_inputs, hidden_in_use) = match hyper.forward.experts {
        None => (hyper.ffn, of_inputs, 1),
        Some(experts) => (
            experts.ffn,
            of_inputs.max(CACHE_CAPACITY as u64 * 3 * width),
            threads.div_ceil(3) as u64,
        ),
    };
    let hidden = square(ffn);
    let of_hidden = if gauged { 4 * hidden } else { hidden };
    of_inputs + hidden_in_use * of_hidden + threads as u64 * 2 * width.max(heads).max(hidden)
}

/// Returns the memory of two models executed together, with logits.
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

/// Returns an upper bound of the memory of making the units: the largest ones, one for each thread, and
/// the results that may wait to be written.
///
/// With `q` and `l` the shorter and longer side of a unit's weight and `r` its rank,
///
/// * a spectrum needs the weights in f32 and three f64 matrices `q × q`: the Gram matrix and its
///   reduction;
/// * a unit needs the weights in f32; six f64 matrices `q × q` for eigenvectors, or with a singular
///   value decomposition (`down`) eight and the weights twice in f64; the factors four times (f64,
///   f32, encoded, decoded); two panels of 512 rows;
/// * KV cache bases of a layer need eight f64 matrices of the order of a head, and three times the
///   stored size.
fn bytes_of_units(jobs: &[WriteStep], hyper: &HyperParameters, threads: usize) -> u64 {
    let of = |job: &WriteStep, what: &dyn Fn(&UnitPlan) -> u64, bases: u64| match job {
        WriteStep::Compute(unit) => what(unit),
        WriteStep::PassThrough(_) => 0,
        WriteStep::KvBases(_) => bases,
    };
    let bases = kv_bases::working_bytes(hyper);
    let at_once = sum_of_largest(jobs.iter().map(|job| of(job, &unit_bytes, bases)), threads);
    let bases = kv_bases::layer_bytes(hyper);
    let window = make::pending_limit(jobs, hyper.layers, threads);
    let waiting = jobs
        .windows(window.clamp(1, jobs.len().max(1)))
        .map(|jobs| jobs.iter().map(|job| of(job, &result_bytes, bases)).sum())
        .max()
        .unwrap_or(0);
    at_once + waiting
}

/// Returns the bytes of the largest units together, one for each thread.
fn sum_of_largest(bytes: impl Iterator<Item = u64>, threads: usize) -> u64 {
    let mut bytes: Vec<u64> = bytes.collect();
    bytes.sort_unstable_by(|a, b| b.cmp(a));
    bytes.into_iter().take(threads).sum()
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
