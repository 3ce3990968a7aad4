//! Estimates of the duration of compilation stages from shapes alone.
//!
//! Stages are counted in multiply-adds and divided by the speed of a short benchmark ([`Speed`]).
//! The constants are ratios of times measured with one thread on an AMD EPYC (AVX2), by
//! `examples/coding.rs` and by compilations of the demo model.

use htc_formats::DType;
use htc_formats::bands::{Code, CodeKind};
use htc_formats::block::BlockFit;
use htc_formats::model::{HyperParameters, MatrixId, ProjectionKind};
use htc_formats::source::ModelFile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::{Speed, forward_seconds};
use crate::math::codes::MAX_FIT_COLUMNS;
use crate::options::{CodeKinds, CompileOptions, DenseType, EffortSettings, PlanRequest};
use crate::plan::{self, MatrixForm, Method, ModelFileTypes, UnitMatrix, UnitPlan};
use crate::profile::{bound, curves};
use crate::unit::kv_bases;
use crate::{gradient, measure, tune};

/// Seconds of the stages of a compilation.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct StageSeconds {
    /// Forward passes for calibration, and backward passes.
    pub calibrate: f64,
    /// Measuring the loss of each matrix in each type.
    pub plan: f64,
    /// Factorising or coding, and writing, of all candidates.
    pub factorise: f64,
    /// Evaluating candidates on held-out text.
    pub measure: f64,
    /// Tuning norms and rows.
    #[serde(default)]
    pub tune: f64,
}

impl StageSeconds {
    /// Returns the sum of all stages.
    pub fn total(self) -> f64 {
        self.calibrate + self.plan + self.factorise + self.measure + self.tune
    }
}

/// Properties of a compilation that are known in advance.
#[derive(Clone, Copy, Debug)]
pub struct Workload<'a> {
    pub source: &'a ModelFile,
    /// 0 without calibration.
    pub tokens: usize,
    /// 0 without gradients.
    pub gradient_tokens: usize,
    pub threads: usize,
}

/// Speed of passes through the model and of second moments relative to the products of a small
/// benchmark; 2.1 was measured with AVX-512 (Zen 5), the rest is a margin for other processors.
const PASS_SPEED: f64 = 1.8;

/// Forward, recomputation, backward.
const GRADIENT_PASSES: f64 = 3.0;

/// Returns the seconds of the forward passes and of the sums of a calibration.
pub fn calibration_seconds(work: Workload, speed: Speed) -> f64 {
    let (source, tokens, threads) = (work.source, work.tokens, work.threads);
    let hyper = &source.hyper;
    let heads = hyper.heads * hyper.head_size;
    let square = |n: usize| (n as f64).powi(2);
    // Lower triangles of the inputs; each position is a row of the experts that it uses.
    let networks = match hyper.forward.experts {
        None => square(hyper.ffn),
        Some(experts) => experts.used as f64 * (square(hyper.width) + square(experts.ffn)),
    };
    let sites = 2.0 * square(hyper.width) + square(heads) + networks;
    let moments = 0.5 * hyper.layers as f64 * sites * tokens as f64;
    let forward = forward_seconds(source, tokens, threads, false).unwrap_or(0.0);
    forward + speed.product_seconds(moments / PASS_SPEED) / threads.max(1) as f64
}

/// Returns the seconds of the backward pass.
pub fn gradient_seconds(work: Workload, speed: Speed) -> f64 {
    let source = work.source;
    let hyper = &source.hyper;
    let members = plan::matrices(hyper, &ModelFileTypes(source));
    let weights: f64 = members.iter().map(|m| projection_weights(hyper, m)).sum();
    let outputs: f64 = members.iter().map(|m| gradient_sums(hyper, m)).sum();
    let logits = (hyper.vocabulary * hyper.width) as f64;
    let gradients =
        work.gradient_tokens as f64 * (GRADIENT_PASSES * weights + 2.0 * logits + 0.5 * outputs);
    speed.product_seconds(gradients / PASS_SPEED) / work.threads.max(1) as f64
}

/// Returns the share of the positions that a matrix reads.
fn position_share(hyper: &HyperParameters, member: &UnitMatrix) -> f64 {
    let projection = member.projection();
    match (hyper.forward.experts, projection.and_then(|p| p.expert())) {
        (Some(experts), Some(_)) => experts.used as f64 / experts.count.max(1) as f64,
        _ => 1.0,
    }
}

/// Returns the weights that a position uses; 0 for embedding and head.
fn projection_weights(hyper: &HyperParameters, member: &UnitMatrix) -> f64 {
    match member.matrix {
        MatrixId::Projection { .. } => {
            position_share(hyper, member) * (member.rows * member.cols) as f64
        }
        _ => 0.0,
    }
}

fn gradient_sums(hyper: &HyperParameters, member: &UnitMatrix) -> f64 {
    match member.matrix {
        MatrixId::Projection { .. } => {
            let together = gradient::outputs_together(member.rows);
            position_share(hyper, member) * (member.rows * together) as f64
        }
        _ => 0.0,
    }
}

/// Assumed classes of rows of a matrix, which has four at most.
const USUAL_CLASSES: usize = 3;

pub fn evaluates_rotation(request: &PlanRequest) -> bool {
    request.method == Method::Quantise
        && request.codes.rotates()
        && !request.codes.kinds().column_group_codes().is_empty()
}

/// Returns the seconds for the curves of all matrices.
pub fn curve_seconds(
    source: &ModelFile,
    effort: EffortSettings,
    codes: CodeKinds,
    rotates: bool,
    speed: Speed,
    threads: usize,
) -> f64 {
    let of_member = |member: UnitMatrix| {
        let rows = member.rows.min(effort.sampled_rows) as f64;
        let types = curves::types(&member, codes).count() as f64;
        let cols = member.cols as f64;
        let bands = codes
            .column_group_codes()
            .into_iter()
            .filter(|code| code.bits() % 2 == 0);
        let searched: f64 = bands.clone().map(|code| search_cost(code.kind())).sum();
        // Codes of column groups are measured on all rows and on each class of rows.
        let most = USUAL_CLASSES * effort.sampled_rows;
        let of_classes = 1.0 + member.rows.min(most) as f64 / rows;
        let errors = 2.0 * rows * cols * cols;
        let measured = types + of_classes * bands.count() as f64;
        let codings = types * coding_cost(member.cols) + of_classes * searched;
        let bounds = if codes.includes_gguf() && member.projection().is_some() {
            2.0 * bound::rows_for_bound(member.rows, member.cols) as f64 * cols * cols
        } else {
            0.0
        };
        rows * cols * codings + measured * errors + bounds + moment_factor_cost(&member, rotates)
    };
    let members = plan::matrices(&source.hyper, &ModelFileTypes(source));
    let products: f64 = members.into_iter().map(of_member).sum();
    speed.product_seconds(products) / threads.max(1) as f64
}

/// Multiply-adds per element, with feedback, trial codes and writing: mean over all types.
const SCALE_SEARCH_COST: f64 = 4500.0;

fn search_cost(kind: CodeKind) -> f64 {
    match kind {
        CodeKind::Codebook => 600.0,
        CodeKind::Trellis => 3500.0,
    }
}

/// Returns the type among these kinds that takes longest to encode.
pub fn slowest_type(codes: CodeKinds) -> DenseType {
    let codes = codes.column_group_codes().into_iter();
    let slowest = codes.max_by(|a, b| {
        let cost = |code: &Code| search_cost(code.kind());
        cost(a).total_cmp(&cost(b)).then(a.bits().cmp(&b.bits()))
    });
    slowest.map_or(DenseType::Blocks(DType::Q6K), DenseType::ColumnGroups)
}

/// Multiply-adds per element and column, with sweeps.
const FEEDBACK_COST: f64 = 3.6;

/// Column groups have no sweeps except codebooks.
const COLUMN_GROUP_FEEDBACK_COST: f64 = 1.6;

fn feedback_cost(is_banded: bool) -> f64 {
    if is_banded {
        COLUMN_GROUP_FEEDBACK_COST
    } else {
        FEEDBACK_COST
    }
}

/// Returns the multiply-adds for coding one element with feedback in a GGUF type.
pub fn coding_cost(cols: usize) -> f64 {
    SCALE_SEARCH_COST + FEEDBACK_COST * cols as f64
}

/// Returns the multiply-adds for the factor of the second moment, and of rotated inputs; only the
/// first matrix with an input counts.
fn moment_factor_cost(member: &UnitMatrix, rotated: bool) -> f64 {
    let first = match member.matrix {
        MatrixId::Projection { projection, .. } => {
            matches!(
                projection,
                ProjectionKind::Q
                    | ProjectionKind::O
                    | ProjectionKind::Gate
                    | ProjectionKind::Down
                    | ProjectionKind::ExpertGate(_)
                    | ProjectionKind::ExpertDown(_)
            )
        }
        MatrixId::Embedding | MatrixId::Head => true,
    };
    if first {
        let factors = if rotated { 2.0 } else { 1.0 };
        factors * (member.cols as f64).powi(3)
    } else {
        0.0
    }
}

/// Returns the multiply-adds for a unit coded with feedback.
pub fn coded_unit_cost(unit: &UnitPlan) -> Option<f64> {
    let (of_number, is_banded) = match &unit.form {
        MatrixForm::Dense { weight } if BlockFit::TYPES.contains(weight) => {
            (SCALE_SEARCH_COST, false)
        }
        MatrixForm::ColumnGroups { codes } => {
            (codes.weighted_mean(|code| search_cost(code.kind())), true)
        }
        _ => return None,
    };
    let fit = |member: &UnitMatrix| {
        if is_banded {
            column_fit_cost(member)
        } else {
            0.0
        }
    };
    let rotated = matches!(&unit.form, MatrixForm::ColumnGroups { codes } if codes.is_rotated());
    let members = unit.members.iter();
    let feedback = feedback_cost(is_banded);
    let all = members.map(|m| {
        coded_matrix_cost(m, of_number, feedback, rotated) + row_feedback_cost(m) + fit(m)
    });
    Some(all.sum())
}

fn joint_rows(member: &UnitMatrix) -> f64 {
    match member.matrix {
        MatrixId::Projection { .. } => gradient::outputs_together(member.rows) as f64,
        MatrixId::Embedding | MatrixId::Head => 0.0,
    }
}

/// Returns the multiply-adds of feedback across rows: the factor of the gradients' second moment,
/// and the carried errors.
fn row_feedback_cost(member: &UnitMatrix) -> f64 {
    let (rows, cols) = (member.rows as f64, member.cols as f64);
    let together = joint_rows(member);
    rows * together * (together + 0.5 * cols)
}

fn column_fit_cost(member: &UnitMatrix) -> f64 {
    let (rows, cols) = (member.rows as f64, member.cols as f64);
    if member.cols > MAX_FIT_COLUMNS {
        0.0
    } else {
        2.0 * rows * cols * (cols + joint_rows(member)) + cols.powi(3)
    }
}

fn coded_matrix_cost(member: &UnitMatrix, of_number: f64, feedback: f64, rotated: bool) -> f64 {
    let (numbers, cols) = ((member.rows * member.cols) as f64, member.cols as f64);
    numbers * (of_number + (feedback + 2.0) * cols) + moment_factor_cost(member, rotated)
}

pub fn tuning_seconds(source: &ModelFile, steps: usize, speed: Speed, threads: usize) -> f64 {
    let hyper = &source.hyper;
    let members = plan::matrices(hyper, &ModelFileTypes(source));
    let weights: f64 = members.iter().map(|m| projection_weights(hyper, m)).sum();
    let logits = (hyper.vocabulary * hyper.width) as f64;
    let (stepped, measured) = tune::positions(steps);
    // With a forward pass of the source. Half of the tokens are measured with logits.
    let passes = 1.0 + GRADIENT_PASSES - tune::kept_share(&source.spec());
    let step = passes * weights + 3.0 * logits;
    let products = stepped as f64 * step + measured as f64 * (weights + logits);
    speed.product_seconds(products / PASS_SPEED) / threads.max(1) as f64
}

pub(super) fn kv_bases_seconds(
    source: &ModelFile,
    request: &PlanRequest,
    speed: Speed,
    threads: usize,
) -> f64 {
    if request.layout.kv_bases.is_on() {
        speed.decomposition_seconds(kv_bases::decomposition_cost(&source.hyper))
            / threads.max(1) as f64
    } else {
        0.0
    }
}

/// Candidates of a search for the size of a file: two to four were seen.
pub const SEARCH_CANDIDATES: usize = 4;

/// Returns the passes over the held-out text for `times` measurements of candidates on it, including
/// passes of the source: of the windows whose logits are kept one for each split, of others one for
/// each measurement.
pub(super) fn passes_of_measurements(
    hyper: &HyperParameters,
    held_out: usize,
    context: usize,
    times: f64,
) -> f64 {
    let windows = (held_out / context.max(1)).div_ceil(2).max(1);
    let kept = measure::kept_windows(context, hyper.vocabulary).min(windows);
    let kept = kept as f64 / windows as f64;
    times + times.min(1.0) * kept + times * (1.0 - kept)
}

/// Bases are tuned alone, then both ends together.
pub(super) fn tuning_factor(options: &CompileOptions) -> f64 {
    match options.artifact.planes {
        2 => 3.0,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests;
