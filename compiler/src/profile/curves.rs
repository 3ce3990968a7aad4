//! Loss curves of matrices, from sampled rows coded in each form.

use htc_formats::DType;
use htc_formats::block::{BlockError, BlockFit};
use htc_formats::model::{MatrixId, Role};
use htc_formats::source::ModelTensor;

use super::bands;
use super::bound::Closest;
use super::rank;
use super::sample::{Cost, Sample, costs};
use crate::calibrate::Place;
use crate::event::{Event, Measurement, Watch};
use crate::gradient::Gradients;
use crate::math::{FactoriseError, SecondMoment};
use crate::order::Ordered;
use crate::plan::{self, Curve, Form, Member, Point, SharedCurve};
use crate::request::{CodeKinds, Work};
use crate::system::ordered;
use crate::unit::{ModelTreatment, SiteInputs, UnitError, UnitsError, classes};

/// Inputs of the curves.
#[derive(Clone, Copy)]
pub struct Looked<'a> {
    /// Model.
    pub source: &'a Ordered<'a>,
    /// Matrices to measure.
    pub members: &'a [Member],
    /// Statistics of the inputs.
    pub treatment: &'a ModelTreatment<'a>,
    /// Costs of output errors; without them losses are relative errors.
    pub gradients: Option<&'a Gradients>,
    /// Allowed kinds of codes.
    pub codes: CodeKinds,
    /// True if projections may be stored as factors.
    pub low_rank: bool,
    /// True if matrices are rotated before coding in column groups.
    pub rotated: bool,
}

/// Curves of matrices, curves of shared bases, and a note on factors.
pub type CurvesFound = (Vec<Curve>, Vec<SharedCurve>, Option<String>);

/// Measures the curves of matrices, those of shared bases, and a summary of low-rank candidates.
/// The result does not depend on the number of threads.
///
/// # Errors
/// [`UnitsError::Unit`] if a weight does not decode or is not finite, or a second moment is
/// invalid.
pub fn measure(
    looked: Looked<'_>,
    threads: usize,
    watch: Watch,
) -> Result<CurvesFound, UnitsError> {
    let members = looked.members;
    let of_source = || UnitsError::of(looked.source.file());
    let groups = if looked.factors() {
        rank::groups(members)
    } else {
        Vec::new()
    };
    watch.tell(Event::Measuring(
        Measurement::Curves,
        members.len() + groups.len(),
    ));
    let mut curves = Vec::with_capacity(members.len());
    let mut closest = Closest::default();
    ordered::for_each(
        threads,
        members.len(),
        members.len(),
        |index| of_matrix(looked, &members[index]).map_err(of_source()),
        |index, (curve, looked)| {
            watch.done(members[index].matrix.name())?;
            closest.add(&members[index..=index], looked);
            curves.push(curve);
            Ok::<(), UnitsError>(())
        },
    )?;
    let mut shared = Vec::new();
    ordered::for_each(
        threads,
        groups.len(),
        groups.len(),
        |index| of_group(looked, &groups[index], &curves).map_err(of_source()),
        |index, (curve, looked)| {
            watch.done(&plan::label(&groups[index]))?;
            closest.add(&groups[index], looked);
            shared.extend(curve);
            Ok::<(), UnitsError>(())
        },
    )?;
    let told = looked.factors().then(|| closest.to_string());
    Ok((curves, shared, told))
}

impl Looked<'_> {
    /// The difference to a base has no dominant directions.
    fn factors(&self) -> bool {
        self.low_rank && self.codes.has_blocks() && !self.source.is_less()
    }
}

/// Matrix with the costs of its errors.
pub(super) struct Read<'a> {
    pub member: &'a Member,
    pub tensor: &'a ModelTensor,
    pub place: Option<Place>,
    inputs: Option<SiteInputs>,
    pub costs: Vec<Cost>,
}

impl<'a> Read<'a> {
    fn new(looked: Looked<'a>, member: &'a Member) -> Result<Read<'a>, UnitError> {
        let source = looked.source;
        let matrix = member.matrix;
        let role = matrix.weight();
        let tensor = source.tensor(role).ok_or(UnitError::Missing(role))?;
        let place = plan::place(matrix, source.tensor(Role::Output).is_none());
        let inputs = place.map(|place| looked.treatment.inputs(place));
        let failed = |source| failed(tensor, source);
        let inputs = inputs.transpose().map_err(failed)?.flatten();
        let moment = inputs.as_ref().map(SiteInputs::second_moment);
        let costs = match looked.gradients {
            Some(gradients) => costs(gradients, source.order(), matrix, place, moment)?,
            None => Vec::new(),
        };
        Ok(Read {
            member,
            tensor,
            place,
            inputs,
            costs,
        })
    }

    /// Returns the second moment of the inputs.
    pub fn moment(&self) -> Option<SecondMoment<'_>> {
        self.inputs.as_ref().map(SiteInputs::second_moment)
    }

    /// Returns the loss of all rows for given stored values of the sample.
    pub fn loss(&self, sample: &Sample, stored: &[f32]) -> f64 {
        match &self.costs[..] {
            [] => sample.part(stored, self.moment()),
            costs => costs.iter().map(|cost| sample.cost(stored, cost)).sum(),
        }
    }

    /// Samples rows of the matrix.
    pub fn sample(&self, looked: Looked<'_>, effort: Work) -> Result<Sample, UnitError> {
        let all: Vec<u32> = (0..self.tensor.rows as u32).collect();
        Sample::of(looked.source, self.tensor, &all, &self.costs, effort)
    }
}

/// Adds the tensor to a numerical error.
pub(super) fn failed(tensor: &ModelTensor, source: FactoriseError) -> UnitError {
    UnitError::Factorise {
        tensor: tensor.name.clone(),
        source,
    }
}

fn of_group(
    looked: Looked<'_>,
    members: &[Member],
    curves: &[Curve],
) -> Result<(Option<SharedCurve>, Option<f64>), UnitError> {
    let each: Result<Vec<Read<'_>>, UnitError> = members
        .iter()
        .map(|member| Read::new(looked, member))
        .collect();
    rank::of_group(looked, &each?, curves)
}

/// The other types lose more than column groups of the same size.
const BESIDE_BANDS: [DType; 4] = [DType::Q4K, DType::Q5K, DType::Q6K, DType::Q8_0];

/// Returns the candidate types: whole blocks, smaller than the source.
pub(crate) fn types(member: &Member, codes: CodeKinds) -> impl Iterator<Item = DType> {
    let (cols, before) = (member.cols, member.source_type.row_bytes(member.cols));
    let all = match codes {
        _ if !codes.has_blocks() => &[],
        CodeKinds::All => &BESIDE_BANDS[..],
        _ => BlockFit::TYPES,
    };
    let fits =
        move |dtype: &DType| dtype.row_bytes(cols).is_some() && dtype.row_bytes(cols) < before;
    all.iter().copied().filter(fits)
}

/// Also returns the ratio of the low-rank bound to the codes' loss.
fn of_matrix(looked: Looked<'_>, member: &Member) -> Result<(Curve, Option<f64>), UnitError> {
    let Looked {
        source,
        treatment,
        codes,
        ..
    } = looked;
    let matrix = member.matrix;
    let read = Read::new(looked, member)?;
    let (tensor, place) = (read.tensor, read.place);
    let feedback = match place {
        Some(place) => treatment
            .feedback(place, crate::codes::damping(Some(matrix)))
            .map_err(|error| failed(tensor, error))?,
        None => None,
    };
    let effort = treatment.effort().work();
    let sample = read.sample(looked, effort)?;
    let mut points = Vec::new();
    let loss = |stored: &[f32]| read.loss(&sample, stored);
    for dtype in types(member, codes) {
        let stored = match sample.stored(tensor, dtype, feedback.as_deref()) {
            Ok(stored) => stored,
            // Out of range of the type.
            Err(UnitError::Block {
                source: BlockError::NoCode { .. },
                ..
            })
            | Err(UnitError::Factorise {
                source: FactoriseError::NoScales { .. },
                ..
            }) => continue,
            Err(error) => return Err(error),
        };
        points.push(Point {
            form: Form::Dense { weight: dtype },
            loss: loss(&stored),
        });
    }
    if source.is_less() {
        // The base alone.
        points.push(Point {
            form: Form::Kept,
            loss: loss(&vec![0.0; sample.values.len()]),
        });
    }
    let classes = if codes.bands().is_empty() || source.is_less() {
        Vec::new()
    } else {
        row_classes(source, tensor, (matrix, place), treatment)?
    };
    let samples = classes
        .iter()
        .map(|rows| Sample::of(source, tensor, rows, &read.costs, effort));
    let samples: Result<Vec<Sample>, UnitError> = samples.collect();
    let samples = samples?;
    let read = &read;
    let losses = samples
        .iter()
        .map(|sample| move |stored: &[f32]| read.loss(sample, stored));
    let losses: Vec<_> = losses.collect();
    let of_classes = classes.iter().zip(&samples).zip(&losses);
    let of_classes = of_classes.map(|((rows, sample), loss)| bands::Class {
        rows: rows.len(),
        sample,
        loss,
    });
    let of_classes: Vec<bands::Class<'_>> = of_classes.collect();
    let all = bands::Class {
        rows: member.rows,
        sample: &sample,
        loss: &loss,
    };
    let matrix_of = bands::Matrix {
        member,
        tensor: &tensor.name,
        costs: &read.costs,
        feedback: feedback.as_deref(),
        codes: codes.bands(),
        rotated: looked.rotated,
    };
    let in_bands = bands::points(&matrix_of, &all, &of_classes)?;
    points.extend(in_bands.all);
    let mut curve = Curve {
        matrix,
        points,
        between: in_bands.between,
    };
    let closest = if looked.factors() && matrix.slot().is_some() {
        rank::of_slot(looked, read, &sample, &mut curve)?
    } else {
        None
    };
    Ok((curve, closest))
}

fn row_classes(
    source: &Ordered<'_>,
    tensor: &ModelTensor,
    (matrix, place): (MatrixId, Option<Place>),
    treatment: &ModelTreatment,
) -> Result<Vec<Vec<u32>>, UnitError> {
    let costs = classes::costs_of_rows(source, tensor, matrix, place, treatment)?;
    let counts = costs.as_ref().and_then(|costs| classes::counts(costs));
    Ok(match costs.zip(counts) {
        Some((costs, counts)) => classes::members(&costs, &counts),
        None => Vec::new(),
    })
}
