//! What each matrix would lose in each form: some of its rows are coded as they will be, and what that adds to
//! the divergence is scaled up to all of them.

use htc_formats::DType;
use htc_formats::block::{BlockError, BlockFit};
use htc_formats::model::{MatrixId, Role};
use htc_formats::source::ModelTensor;

use super::bands;
use super::sample::{Sample, costs};
use crate::calibrate::Place;
use crate::event::{Event, Measurement, Watch};
use crate::gradient::Gradients;
use crate::math::FactoriseError;
use crate::order::Ordered;
use crate::plan::{self, Curve, Form, Member, Point};
use crate::request::CodeKinds;
use crate::system::ordered;
use crate::unit::{ModelTreatment, SiteInputs, UnitError, UnitsError, classes};

/// The curves of matrices, in their order. They do not depend on the number of threads; a matrix for each
/// is in work at a time. Without gradients each loses the part that it loses of its own outputs' energy.
///
/// # Errors
/// [`UnitsError::Unit`] where a weight does not decode or is not finite, or a second moment is none.
pub fn measure(
    source: &Ordered<'_>,
    members: &[Member],
    treatment: &ModelTreatment,
    gradients: Option<&Gradients>,
    codes: CodeKinds,
    threads: usize,
    watch: Watch,
) -> Result<Vec<Curve>, UnitsError> {
    watch.tell(Event::Measuring(Measurement::Curves, members.len()));
    let mut curves = Vec::with_capacity(members.len());
    ordered::for_each(
        threads,
        members.len(),
        members.len(),
        |index| {
            let curve = of_matrix(source, &members[index], treatment, gradients, codes);
            curve.map_err(UnitsError::of(source.file()))
        },
        |index, curve| {
            watch.done(members[index].matrix.name())?;
            curves.push(curve);
            Ok(())
        },
    )?;
    Ok(curves)
}

/// Types that are looked at beside bands, which lose less than the others in as many bytes.
const BESIDE_BANDS: [DType; 4] = [DType::Q4K, DType::Q5K, DType::Q6K, DType::Q8_0];

/// Types that a matrix may have: those whose blocks fit, and which take less than the source.
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

/// What a matrix loses in every type.
fn of_matrix(
    source: &Ordered<'_>,
    member: &Member,
    treatment: &ModelTreatment,
    gradients: Option<&Gradients>,
    codes: CodeKinds,
) -> Result<Curve, UnitError> {
    let matrix = member.matrix;
    let role = matrix.weight();
    let tensor = source.tensor(role).ok_or(UnitError::Missing(role))?;
    let failed = |source| UnitError::Factorise {
        tensor: tensor.name.clone(),
        source,
    };
    let place = plan::place(matrix, source.tensor(Role::Output).is_none());
    let inputs = place.map(|place| treatment.inputs(place));
    let inputs = inputs.transpose().map_err(failed)?.flatten();
    let moment = inputs.as_ref().map(SiteInputs::second_moment);
    let feedback = match place {
        Some(place) => treatment
            .feedback(place, crate::codes::damping(Some(matrix)))
            .map_err(failed)?,
        None => None,
    };
    let costs = match gradients {
        Some(gradients) => costs(gradients, source.order(), matrix, place, moment)?,
        None => Vec::new(),
    };
    let effort = treatment.effort().work();
    let all: Vec<u32> = (0..tensor.rows as u32).collect();
    let sample = Sample::of(source, tensor, &all, &costs, effort)?;
    let mut points = Vec::new();
    let loss_of = |sample: &Sample, stored: &[f32]| match &costs[..] {
        [] => sample.part(stored, moment),
        costs => costs.iter().map(|cost| sample.cost(stored, cost)).sum(),
    };
    let loss = |stored: &[f32]| loss_of(&sample, stored);
    for dtype in types(member, codes) {
        let stored = match sample.stored(tensor, dtype, feedback.as_deref()) {
            Ok(stored) => stored,
            // Numbers beyond the type: it is none for this matrix.
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
    let classes = match codes.bands().is_empty() || source.is_less() {
        true => Vec::new(),
        false => row_classes(source, tensor, (matrix, place), treatment)?,
    };
    let samples = classes
        .iter()
        .map(|rows| Sample::of(source, tensor, rows, &costs, effort));
    let samples: Result<Vec<Sample>, UnitError> = samples.collect();
    let samples = samples?;
    let losses = samples
        .iter()
        .map(|sample| move |stored: &[f32]| loss_of(sample, stored));
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
        costs: &costs,
        feedback: feedback.as_deref(),
        codes: codes.bands(),
    };
    let in_bands = bands::points(&matrix_of, &all, &of_classes)?;
    points.extend(in_bands.all);
    Ok(Curve {
        matrix,
        points,
        between: in_bands.between,
    })
}

/// The rows of each class that a vocabulary's matrix should have; none where all should be one.
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
