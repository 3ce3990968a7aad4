//! A dense matrix encoded anew in another type, with the error that this makes.

use std::sync::Arc;

use htc_formats::DType;
use htc_formats::block;
use htc_formats::source::ModelTensor;

use super::treatment::SiteInputs;
use super::{Factors, Found, ModelTreatment, Norm, UnitError, place, weight_name};
use crate::codes;
use crate::math::{
    Energies, Feedback, SecondMoment, Weight, dense_energies, weighted_dense_energies,
};
use crate::order::Ordered;
use crate::plan::{Member, UnitPlan};

/// Numbers that are decoded at a time, about: a matrix of the vocabulary need not be in memory as a
/// whole. Errors are summed portion by portion, so that they do not depend on the number of threads.
const PORTION: usize = 1 << 20;

/// Encodes every member of a unit in `dtype`.
pub(super) fn dense(
    source: &Ordered<'_>,
    unit: &UnitPlan,
    dtype: DType,
    treatment: &ModelTreatment,
) -> Result<Factors, UnitError> {
    let matrix = unit.members.first().map(|member| member.matrix);
    let failed = |error| UnitError::Factorise {
        tensor: matrix.map_or_else(String::new, |matrix| weight_name(source, matrix)),
        source: error,
    };
    let place = place(source, unit);
    let inputs = place.map(|place| treatment.inputs(place));
    let inputs = inputs.transpose().map_err(failed)?;
    let feedback = match place.filter(|_| codes::has_feedback(dtype)) {
        Some(place) => treatment.feedback(place, codes::damping(matrix)),
        None => Ok(None),
    };
    let code = Code {
        dtype,
        feedback: feedback.map_err(failed)?,
        sweeps: treatment.effort().work().sweeps,
    };
    // Its bias is not corrected, so that the mean counts.
    let inputs = inputs.flatten();
    let moment = inputs.as_ref().map(SiteInputs::second_moment);
    let mut tensors = Vec::with_capacity(unit.members.len());
    let (mut errors, mut output_errors) = (Vec::new(), Vec::new());
    for member in &unit.members {
        let (bytes, [plain, output]) = encode(source, member, &code, moment)?;
        tensors.push(bytes);
        errors.push(plain.error());
        if moment.is_some() {
            output_errors.push(output.error());
        }
    }
    Ok(Factors {
        tensors,
        found: Found {
            errors,
            output_errors,
            predicted: None,
            norm: Norm::Frobenius,
            sinks: Vec::new(),
            exempt: Vec::new(),
            axiom: None,
        },
    })
}

/// What is lost of a weight by a dense matrix in its place: plain, and under the second moment of its
/// inputs where there is one.
pub(super) fn energies(
    weight: Weight<'_>,
    stored: &[f32],
    moment: Option<SecondMoment<'_>>,
) -> [Energies; 2] {
    let weighted = moment.map(|moment| weighted_dense_energies(weight, stored, moment));
    [dense_energies(weight, stored), weighted.unwrap_or_default()]
}

/// How a matrix is encoded.
struct Code {
    dtype: DType,
    /// How columns make up for the errors of those before them; alone without.
    feedback: Option<Arc<Feedback>>,
    /// Sweeps over its codes, behind feedback.
    sweeps: usize,
}

/// The bytes of a matrix in another type, and what that loses.
fn encode(
    source: &Ordered<'_>,
    member: &Member,
    code: &Code,
    moment: Option<SecondMoment<'_>>,
) -> Result<(Vec<u8>, [Energies; 2]), UnitError> {
    let role = member.matrix.weight();
    let tensor = source.tensor(role).ok_or(UnitError::Missing(role))?;
    let codec = |source| UnitError::Block {
        tensor: tensor.name.clone(),
        source,
    };
    let (rows, cols, dtype) = (member.rows, member.cols, code.dtype);
    let to_bytes = dtype.row_bytes(cols).unwrap_or(0).max(1);
    let step = (PORTION / cols.max(1)).max(1);
    let step = step.next_multiple_of(codes::STRIP);
    let mut bytes = vec![0; rows * to_bytes];
    let mut sums = [Energies::default(); 2];
    let (mut values, mut stored) = (Vec::new(), Vec::new());
    for (portion, to) in bytes.chunks_mut(step * to_bytes).enumerate() {
        let (first, here) = (portion * step, to.len() / to_bytes);
        values.resize(here * cols, 0.0);
        stored.resize(here * cols, 0.0);
        let decoded = source.decode(tensor, first..first + here, &mut values);
        decoded.map_err(codec)?;
        check_finite(source, tensor, &values, first)?;
        let weight = Weight {
            rows: here,
            cols,
            values: &values,
        };
        match &code.feedback {
            Some(feedback) => {
                let coded = codes::encode(dtype, weight, (feedback, code.sweeps), to, &mut stored);
                coded.map_err(|error| UnitError::of_code(&tensor.name, error))?;
            }
            None => {
                block::encode(dtype, &values, to).map_err(codec)?;
                block::decode(dtype, to, &mut stored).map_err(codec)?;
            }
        }
        if stored.iter().any(|value| !value.is_finite()) {
            return Err(UnitError::DenseOverflow {
                tensor: tensor.name.clone(),
                dtype,
            });
        }
        let lost = energies(weight, &stored, moment);
        sums.iter_mut()
            .zip(lost)
            .for_each(|(sum, lost)| *sum += lost);
    }
    Ok((bytes, sums))
}

/// Names the first number of some rows that is not finite.
fn check_finite(
    source: &Ordered<'_>,
    tensor: &ModelTensor,
    values: &[f32],
    first_row: usize,
) -> Result<(), UnitError> {
    let Some(at) = values.iter().position(|value| !value.is_finite()) else {
        return Ok(());
    };
    let (row, col) = (first_row + at / tensor.cols, at % tensor.cols);
    let (row, col) = source.place_in_source(tensor, row, col);
    Err(UnitError::NotFinite {
        tensor: tensor.name.clone(),
        row,
        col,
        value: values[at],
    })
}
