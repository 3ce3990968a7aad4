//! Loss curves of matrices, from sampled rows coded in each form.

use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::block::BlockFit;
use htc_formats::model::{MatrixId, Role};
use htc_formats::source::ModelTensor;

use super::bands;
use super::bound::LowRankSummary;
use super::rank;
use super::sample::{ErrorCost, RowSample, costs};
use crate::calibrate::CalibratedInput;
use crate::event::{Progress, Task};
use crate::math::codes::MAX_ROW_RATIO;
use crate::math::{FactoriseError, SecondMoment};
use crate::options::{CodeKinds, EffortSettings};
use crate::order::PermutedSource;
use crate::plan::{self, LossCurve, LossPoint, MatrixForm, SharedLossCurve, UnitMatrix};
use crate::unit::{InputStatistics, MakeError, ModelTreatment, classes};

/// Inputs of the curves.
#[derive(Clone, Copy)]
pub struct CurveInputs<'a> {
    /// Model.
    pub source: &'a PermutedSource<'a>,
    /// Matrices to measure.
    pub members: &'a [UnitMatrix],
    /// Statistics of the inputs, and costs of output errors; without these losses are relative
    /// errors.
    pub treatment: &'a ModelTreatment<'a>,
    /// Allowed kinds of codes.
    pub codes: CodeKinds,
    /// True if projections may be stored as factors.
    pub low_rank: bool,
    /// True if matrices are rotated before coding in column groups.
    pub rotated: bool,
}

/// Measured curves of a model.
#[derive(Clone, Debug, Default)]
pub struct MeasuredCurves {
    /// Curves of matrices.
    pub curves: Vec<LossCurve>,
    /// Curves of shared bases.
    pub shared: Vec<SharedLossCurve>,
    /// Summary of low-rank candidates.
    pub factor_summary: Option<String>,
    /// Notes on matrices with outliers.
    pub outliers: Vec<String>,
}

/// Curve of a matrix.
struct MatrixCurve {
    curve: LossCurve,
    /// Ratio of the low-rank bound to the codes' loss.
    bound: Option<f64>,
    /// Notes on outliers.
    notes: Vec<String>,
}

/// Largest expected loss with rotation relative to that without, for which a matrix is rotated.
///
/// Rotation spreads the error of a column with large weights over columns with large inputs. The
/// ratio is about 1 unless a few columns have both far larger weights and far smaller inputs than
/// others, or the reverse.
const MAX_LOSS_OF_ROTATION: f64 = 32.0;

/// Measures the curves of matrices, those of shared bases, and a summary of low-rank candidates.
pub fn measure(
    inputs: CurveInputs<'_>,
    threads: usize,
    watch: Progress,
) -> Result<MeasuredCurves, MakeError> {
    let members = inputs.members;
    let of_source = || MakeError::with_source_path(inputs.source.file());
    let groups = if inputs.considers_factors() {
        rank::groups(members)
    } else {
        Vec::new()
    };
    watch.begin(Task::Curves, members.len() + groups.len());
    let mut closest = LowRankSummary::default();
    let measured = watch.run_steps(
        threads,
        members.len(),
        |index| plan::label(&members[index..=index]),
        |index| {
            let matrix = members[index].matrix;
            if plan::is_router(matrix) {
                Ok(unchanged_curve(matrix))
            } else {
                matrix_curve(inputs, &members[index]).map_err(of_source())
            }
        },
    )?;
    let mut curves = Vec::with_capacity(members.len());
    let mut outliers = Vec::new();
    for (member, measured) in members.iter().zip(measured) {
        closest.add(std::slice::from_ref(member), measured.bound);
        curves.push(measured.curve);
        outliers.extend(measured.notes);
    }
    let measured = watch.run_steps(
        threads,
        groups.len(),
        |index| plan::label(&groups[index]),
        |index| group_curve(inputs, &groups[index], &curves).map_err(of_source()),
    )?;
    let mut shared = Vec::new();
    for (group, (curve, ratio)) in groups.iter().zip(measured) {
        closest.add(group, ratio);
        shared.extend(curve);
    }
    Ok(MeasuredCurves {
        curves,
        shared,
        factor_summary: inputs.considers_factors().then(|| closest.to_string()),
        outliers,
    })
}

impl CurveInputs<'_> {
    /// The difference to a base has no dominant directions.
    fn considers_factors(&self) -> bool {
        self.low_rank && self.codes.includes_gguf() && !self.source.is_difference()
    }
}

pub(super) struct MatrixCosts<'a> {
    pub member: &'a UnitMatrix,
    pub tensor: &'a ModelTensor,
    pub place: Option<CalibratedInput>,
    statistics: Option<InputStatistics>,
    pub costs: Vec<ErrorCost>,
}

impl<'a> MatrixCosts<'a> {
    fn new(inputs: CurveInputs<'a>, member: &'a UnitMatrix) -> Result<MatrixCosts<'a>, MakeError> {
        let source = inputs.source;
        let matrix = member.matrix;
        let role = matrix.weight();
        let tensor = source.tensor(role).ok_or(MakeError::Missing(role))?;
        let place = plan::activation_point(matrix, source.tensor(Role::Output).is_none());
        let statistics = place.map(|place| inputs.treatment.inputs(place));
        let failed = |source| MakeError::of_tensor(&tensor.name, source);
        let statistics = statistics.transpose().map_err(failed)?.flatten();
        let moment = statistics.as_ref().map(InputStatistics::second_moment);
        let costs = match inputs.treatment.gradients {
            Some(gradients) => costs(gradients, source.order(), matrix, place, moment)?,
            None => Vec::new(),
        };
        Ok(MatrixCosts {
            member,
            tensor,
            place,
            statistics,
            costs,
        })
    }

    /// Returns the second moment of the inputs.
    pub fn moment(&self) -> Option<SecondMoment<'_>> {
        self.statistics.as_ref().map(InputStatistics::second_moment)
    }

    /// Returns the loss of all rows for given stored values of the sample.
    pub fn loss(&self, sample: &RowSample, stored: &[f32]) -> f64 {
        match &self.costs[..] {
            [] => sample.relative_error(stored, self.moment()),
            costs => costs.iter().map(|cost| sample.cost(stored, cost)).sum(),
        }
    }

    pub fn sample(
        &self,
        inputs: CurveInputs<'_>,
        effort: EffortSettings,
    ) -> Result<RowSample, MakeError> {
        let all: Vec<u32> = (0..self.tensor.rows as u32).collect();
        RowSample::draw(inputs.source, self.tensor, &all, &self.costs, effort)
    }
}

fn group_curve(
    inputs: CurveInputs<'_>,
    members: &[UnitMatrix],
    curves: &[LossCurve],
) -> Result<(Option<SharedLossCurve>, Option<f64>), MakeError> {
    let each: Result<Vec<MatrixCosts<'_>>, MakeError> = members
        .iter()
        .map(|member| MatrixCosts::new(inputs, member))
        .collect();
    rank::shared_basis_curve(inputs, &each?, curves)
}

/// The others lose more than column groups of the same size.
const BLOCK_TYPES_WITH_GROUPS: [DType; 4] = [DType::Q4K, DType::Q5K, DType::Q6K, DType::Q8_0];

/// Returns the candidate types: whole blocks, smaller than the source.
pub(crate) fn types(member: &UnitMatrix, codes: CodeKinds) -> impl Iterator<Item = DType> {
    let (cols, before) = (member.cols, member.source_type.row_bytes(member.cols));
    let all = match codes {
        _ if !codes.includes_gguf() => &[],
        CodeKinds::All => &BLOCK_TYPES_WITH_GROUPS[..],
        _ => BlockFit::TYPES,
    };
    let fits =
        move |dtype: &DType| dtype.row_bytes(cols).is_some() && dtype.row_bytes(cols) < before;
    all.iter().copied().filter(fits)
}

/// Returns the curve of a matrix that stays as in the source.
fn unchanged_curve(matrix: MatrixId) -> MatrixCurve {
    let curve = LossCurve {
        matrix,
        points: Vec::new(),
        intermediate: Vec::new(),
    };
    MatrixCurve {
        curve,
        bound: None,
        notes: Vec::new(),
    }
}

/// Returns the notes on a matrix with outlying rows, or columns that make rotation harmful.
fn outlier_notes(
    source: &PermutedSource<'_>,
    tensor: &ModelTensor,
    sample: &RowSample,
    unrotated: bool,
) -> Vec<String> {
    let name = &tensor.name;
    let rows = sample.outliers.first().map(|largest| {
        let (row, _) = source.source_position(tensor, largest.row, 0);
        let count = sample.outliers.len();
        format!(
            "{name}: {count} of {} rows more than {MAX_ROW_RATIO} times as large as most others, the \
             largest row {row}; they do not decide the codes of other rows",
            tensor.rows
        )
    });
    let columns = unrotated.then(|| {
        format!(
            "{name}: columns are not rotated, since a few have far larger weights with far smaller \
             inputs than others, or the reverse"
        )
    });
    rows.into_iter().chain(columns).collect()
}

/// Returns the loss curve of a matrix.
fn matrix_curve(inputs: CurveInputs<'_>, member: &UnitMatrix) -> Result<MatrixCurve, MakeError> {
    let (source, treatment, codes) = (inputs.source, inputs.treatment, inputs.codes);
    let matrix = member.matrix;
    let read = MatrixCosts::new(inputs, member)?;
    let (tensor, place) = (read.tensor, read.place);
    let damping = crate::codes::damping(Some(matrix));
    let feedback = place.map(|place| treatment.feedback(place, damping));
    let feedback = feedback.transpose();
    let feedback = feedback.map_err(|error| MakeError::of_tensor(&tensor.name, error))?;
    let feedback = feedback.flatten();
    let effort = treatment.effort.settings();
    let sample = read.sample(inputs, effort)?;
    let mut points = Vec::new();
    let loss = |stored: &[f32]| read.loss(&sample, stored);
    for dtype in types(member, codes) {
        let stored = match sample.stored(tensor, dtype, feedback.as_deref()) {
            Ok(stored) => stored,
            Err(MakeError::Tensor {
                source:
                    FactoriseError::Codec(CodecError::NoCode { .. })
                    | FactoriseError::ValuesOutOfRange { .. },
                ..
            }) => continue,
            Err(error) => return Err(error),
        };
        points.push(LossPoint {
            form: MatrixForm::Dense { weight: dtype },
            loss: loss(&stored),
        });
    }
    if source.is_difference() {
        points.push(LossPoint {
            form: MatrixForm::Unchanged,
            loss: loss(&vec![0.0; sample.values.len()]),
        });
    }
    let classes = if codes.column_group_codes().is_empty() || source.is_difference() {
        Vec::new()
    } else {
        row_classes(source, tensor, matrix, place, treatment)?
    };
    let samples = classes
        .iter()
        .map(|rows| RowSample::draw(source, tensor, rows, &read.costs, effort));
    let samples: Result<Vec<RowSample>, MakeError> = samples.collect();
    let samples = samples?;
    let of_classes = classes.iter().zip(&samples);
    let of_classes = of_classes.map(|(rows, sample)| bands::RowClassSample {
        rows: rows.len(),
        sample,
    });
    let of_classes: Vec<bands::RowClassSample<'_>> = of_classes.collect();
    let all = bands::RowClassSample {
        rows: member.rows,
        sample: &sample,
    };
    let rotated =
        inputs.rotated && sample.relative_loss_of_rotation(&read.costs) <= MAX_LOSS_OF_ROTATION;
    let matrix_of = bands::MatrixInputs {
        read: &read,
        feedback: feedback.as_deref(),
        codes: codes.column_group_codes(),
        rotated,
    };
    let in_bands = bands::points(&matrix_of, &all, &of_classes)?;
    points.extend(in_bands.all);
    let mut curve = LossCurve {
        matrix,
        points,
        intermediate: in_bands.intermediate,
    };
    let bound = if inputs.considers_factors() && matrix.projection().is_some() {
        rank::add_factors(inputs, &read, &sample, &mut curve)?
    } else {
        None
    };
    let unrotated = inputs.rotated && !rotated;
    Ok(MatrixCurve {
        curve,
        bound,
        notes: outlier_notes(source, tensor, &sample, unrotated),
    })
}

fn row_classes(
    source: &PermutedSource<'_>,
    tensor: &ModelTensor,
    matrix: MatrixId,
    place: Option<CalibratedInput>,
    treatment: &ModelTreatment,
) -> Result<Vec<Vec<u32>>, MakeError> {
    let costs = classes::row_costs(source, tensor, matrix, place, treatment)?;
    let counts = costs.as_ref().and_then(|costs| classes::class_sizes(costs));
    Ok(match costs.zip(counts) {
        Some((costs, counts)) => classes::split_into_classes(&costs, &counts),
        None => Vec::new(),
    })
}
