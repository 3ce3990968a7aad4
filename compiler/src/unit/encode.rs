//! Encodes dense matrices in another type and measures the error.

use std::sync::Arc;

use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::bands::{
    CodeLayout, Codes, ColumnGroupWriter, ColumnGroups, RowClasses, TILE_ROWS, rotate,
};
use htc_formats::block;
use htc_formats::source::ModelTensor;

use super::treatment::InputStatistics;
use super::{
    Factors, MakeError, ModelTreatment, Norm, UnitMeasurements, classes, factorise_error,
    input_of_unit, outputs,
};
use crate::calibrate::CalibratedInput;
use crate::codes::{self, BlockCoder};
use crate::math::codes::{ColumnEnergies, QuantisationGuide, RowFeedback, TileCoder};
use crate::math::{
    ErrorEnergies, ErrorFeedback, FactoriseError, SecondMoment, Weight, dense_energies,
    weighted_dense_energies,
};
use crate::order::PermutedSource;
use crate::plan::{UnitMatrix, UnitPlan};

/// A vocabulary matrix need not be in memory as a whole. Errors are summed portion by portion,
/// independent of the number of threads.
const PORTION: usize = 1 << 20;

pub(super) fn dense(
    source: &PermutedSource<'_>,
    unit: &UnitPlan,
    dtype: DType,
    treatment: &ModelTreatment,
) -> Result<Factors, MakeError> {
    let place = input_of_unit(source, unit);
    let with_feedback = place.filter(|_| codes::has_feedback(dtype));
    let code = DenseEncoding {
        dtype,
        feedback: column_feedback(source, unit, with_feedback, treatment)?,
        sweeps: treatment.effort.settings().sweeps,
    };
    encode_members(source, unit, treatment, |member, moment| {
        let rows = match code.feedback {
            Some(_) => outputs::row_feedback(source, member.matrix, place, treatment)?,
            None => None,
        };
        encode(source, member, &code, rows.as_ref(), moment)
    })
}

pub(super) fn column_groups(
    source: &PermutedSource<'_>,
    unit: &UnitPlan,
    layout: &CodeLayout,
    treatment: &ModelTreatment,
) -> Result<Factors, MakeError> {
    let place = input_of_unit(source, unit);
    let feedback = column_feedback(source, unit, place, treatment)?;
    encode_members(source, unit, treatment, |member, moment| {
        let rows = outputs::row_feedback(source, member.matrix, place, treatment)?;
        let guide = QuantisationGuide {
            columns: feedback.as_deref(),
            rows: rows.as_ref(),
            sweeps: treatment.effort.settings().sweeps,
        };
        let role = member.matrix.weight();
        let tensor = source.tensor(role).ok_or(MakeError::Missing(role))?;
        match layout {
            CodeLayout::Uniform(codes) => {
                let rows = MatrixRows::all(source, tensor);
                encode_column_groups(&rows, codes, guide, moment)
            }
            CodeLayout::Classes(of) => {
                let matrix = member.matrix;
                let costs = classes::row_costs(source, tensor, matrix, place, treatment)?;
                let costs = costs.ok_or_else(|| MakeError::NoCosts {
                    tensor: tensor.name.clone(),
                })?;
                encode_classes(source, tensor, of, &costs, guide, moment)
            }
        }
    })
}

/// Returns the error feedback of a unit's columns, which read the input `place`.
fn column_feedback(
    source: &PermutedSource<'_>,
    unit: &UnitPlan,
    place: Option<CalibratedInput>,
    treatment: &ModelTreatment,
) -> Result<Option<Arc<ErrorFeedback>>, MakeError> {
    let matrix = unit.members.first().map(|member| member.matrix);
    let feedback = place.map(|place| treatment.feedback(place, treatment.damping(matrix)));
    let feedback = feedback.transpose();
    let feedback = feedback.map_err(|error| factorise_error(source, &unit.members, 0, error))?;
    Ok(feedback.flatten())
}

fn add_energies(sums: &mut [ErrorEnergies; 2], lost: [ErrorEnergies; 2]) {
    let pairs = sums.iter_mut().zip(lost);
    pairs.for_each(|(sum, lost)| *sum += lost);
}

fn encode_members(
    source: &PermutedSource<'_>,
    unit: &UnitPlan,
    treatment: &ModelTreatment,
    encode: impl Fn(
        &UnitMatrix,
        Option<SecondMoment<'_>>,
    ) -> Result<(Vec<u8>, [ErrorEnergies; 2]), MakeError>,
) -> Result<Factors, MakeError> {
    let inputs = input_of_unit(source, unit).map(|place| treatment.inputs(place));
    let inputs = inputs
        .transpose()
        .map_err(|error| factorise_error(source, &unit.members, 0, error))?;
    // Biases of dense matrices are not corrected.
    let inputs = inputs.flatten();
    let moment = inputs.as_ref().map(InputStatistics::second_moment);
    let mut tensors = Vec::with_capacity(unit.members.len());
    let (mut errors, mut output_errors) = (Vec::new(), Vec::new());
    for member in &unit.members {
        let (bytes, [plain, output]) = encode(member, moment)?;
        tensors.push(bytes);
        errors.push(plain.relative_error());
        if moment.is_some() {
            output_errors.push(output.relative_error());
        }
    }
    Ok(Factors {
        tensors,
        measurements: UnitMeasurements {
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

/// Returns the error energies of `stored` in place of a weight: plain, and weighted by the second
/// moment of the inputs, if any.
pub(super) fn error_energies(
    weight: Weight<'_>,
    stored: &[f32],
    moment: Option<SecondMoment<'_>>,
) -> [ErrorEnergies; 2] {
    let weighted = moment.map(|moment| weighted_dense_energies(weight, stored, moment));
    [dense_energies(weight, stored), weighted.unwrap_or_default()]
}

struct DenseEncoding {
    dtype: DType,
    feedback: Option<Arc<ErrorFeedback>>,
    sweeps: usize,
}

fn encode(
    source: &PermutedSource<'_>,
    member: &UnitMatrix,
    code: &DenseEncoding,
    outputs: Option<&RowFeedback>,
    moment: Option<SecondMoment<'_>>,
) -> Result<(Vec<u8>, [ErrorEnergies; 2]), MakeError> {
    let role = member.matrix.weight();
    let tensor = source.tensor(role).ok_or(MakeError::Missing(role))?;
    let codec = |source: CodecError| MakeError::of_tensor(&tensor.name, source);
    let (rows, cols, dtype) = (member.rows, member.cols, code.dtype);
    let to_bytes = dtype.row_bytes(cols).unwrap_or(0).max(1);
    let step = (PORTION / cols.max(1)).max(1);
    let step = step.next_multiple_of(codes::ROWS_PER_TILE);
    let mut bytes = vec![0; rows * to_bytes];
    let mut sums = [ErrorEnergies::default(); 2];
    let (mut values, mut stored) = (Vec::new(), Vec::new());
    let coder = code.feedback.as_deref();
    let mut coder = coder.map(|columns| BlockCoder::new(dtype, columns, outputs, code.sweeps));
    for (portion, to) in bytes.chunks_mut(step * to_bytes).enumerate() {
        let (first, here) = (portion * step, to.len() / to_bytes);
        values.resize(here * cols, 0.0);
        stored.resize(here * cols, 0.0);
        let decoded = source.decode(tensor, first..first + here, &mut values);
        decoded.map_err(|error| MakeError::of_tensor(&tensor.name, error))?;
        check_finite(source, tensor, &values, first)?;
        let weight = Weight {
            rows: here,
            cols,
            values: &values,
        };
        match &mut coder {
            Some(coder) => {
                let coded = coder.code(weight, to, &mut stored);
                coded.map_err(|error| MakeError::of_tensor(&tensor.name, error))?;
            }
            None => {
                block::encode(dtype, &values, to).map_err(codec)?;
                block::decode(dtype, to, &mut stored).map_err(codec)?;
            }
        }
        if stored.iter().any(|value| !value.is_finite()) {
            return Err(MakeError::DenseOverflow {
                tensor: tensor.name.clone(),
                dtype,
            });
        }
        let lost = error_energies(weight, &stored, moment);
        add_energies(&mut sums, lost);
    }
    Ok((bytes, sums))
}

pub(super) struct MatrixRows<'a> {
    source: &'a PermutedSource<'a>,
    tensor: &'a ModelTensor,
    of_class: Option<&'a [u32]>,
}

impl<'a> MatrixRows<'a> {
    pub(super) fn all(source: &'a PermutedSource<'a>, tensor: &'a ModelTensor) -> Self {
        MatrixRows {
            source,
            tensor,
            of_class: None,
        }
    }

    fn len(&self) -> usize {
        self.of_class.map_or(self.tensor.rows, <[u32]>::len)
    }

    pub(super) fn decode(
        &self,
        range: std::ops::Range<usize>,
        values: &mut Vec<f32>,
    ) -> Result<(), MakeError> {
        let (source, tensor) = (self.source, self.tensor);
        values.resize(range.len() * tensor.cols, 0.0);
        let of_decode = |error| MakeError::of_tensor(&tensor.name, error);
        let Some(rows) = self.of_class else {
            let decoded = source.decode(tensor, range.clone(), values);
            decoded.map_err(of_decode)?;
            return check_finite(source, tensor, values, range.start);
        };
        let values = values.chunks_exact_mut(tensor.cols.max(1));
        for (&row, values) in rows[range].iter().zip(values) {
            let row = row as usize;
            source
                .decode(tensor, row..row + 1, values)
                .map_err(of_decode)?;
            check_finite(source, tensor, values, row)?;
        }
        Ok(())
    }
}

/// Encodes a matrix whose rows have classes and returns the bytes and error energies. The rows of a
/// class are coded as a separate matrix.
fn encode_classes(
    source: &PermutedSource<'_>,
    tensor: &ModelTensor,
    of: &RowClasses,
    costs: &[f64],
    guide: QuantisationGuide<'_>,
    moment: Option<SecondMoment<'_>>,
) -> Result<(Vec<u8>, [ErrorEnergies; 2]), MakeError> {
    let counts: Vec<usize> = of.iter().map(|class| class.rows).collect();
    let members = classes::split_into_classes(costs, &counts);
    let mut of_rows = vec![0_u8; tensor.rows];
    let mut parts = Vec::with_capacity(members.len());
    let mut sums = [ErrorEnergies::default(); 2];
    for (index, (rows, class)) in members.iter().zip(of.iter()).enumerate() {
        for &row in rows {
            of_rows[row as usize] = index as u8;
        }
        let weights = guide.rows.map(|all| {
            let own = rows.iter().map(|&row| all.weights()[row as usize]);
            RowFeedback::from_weights(own.collect())
        });
        let guide = QuantisationGuide {
            rows: weights.as_ref(),
            ..guide
        };
        let rows = MatrixRows {
            source,
            tensor,
            of_class: Some(rows),
        };
        let (bytes, lost) = encode_column_groups(&rows, &class.codes, guide, moment)?;
        parts.push(bytes);
        add_energies(&mut sums, lost);
    }
    Ok((of.pack(&of_rows, &parts), sums))
}

/// Encodes rows in column groups and returns the bytes and error energies. The rows are read twice,
/// several tiles at a time: the scales of columns depend on all rows.
fn encode_column_groups(
    matrix: &MatrixRows<'_>,
    bands: &Codes,
    guide: QuantisationGuide<'_>,
    moment: Option<SecondMoment<'_>>,
) -> Result<(Vec<u8>, [ErrorEnergies; 2]), MakeError> {
    let tensor = matrix.tensor;
    let refused = |source: FactoriseError| MakeError::of_tensor(&tensor.name, source);
    let (rows, cols) = (matrix.len(), tensor.cols);
    let step = (PORTION / cols.max(1)).max(1).next_multiple_of(TILE_ROWS);
    let portions = || (0..rows).step_by(step);
    let decode =
        |first: usize, values: &mut Vec<f32>| matrix.decode(first..rows.min(first + step), values);
    // Errors are measured on the unrotated weights.
    let decode_for_codes = |first: usize, values: &mut Vec<f32>| {
        decode(first, values)?;
        if bands.is_rotated() {
            values.chunks_exact_mut(cols).for_each(rotate);
        }
        Ok::<_, MakeError>(())
    };
    let guide = guide.for_codes(bands).map_err(refused)?;
    let mut values = Vec::new();
    let mut energies = ColumnEnergies::new(cols);
    for first in portions() {
        decode_for_codes(first, &mut values)?;
        for row in values.chunks_exact(cols) {
            energies.add_row(row).map_err(refused)?;
        }
    }
    let columns = energies.scales(bands, guide.columns).map_err(refused)?;
    let mut packer = ColumnGroupWriter::new(bands, rows);
    columns.pack(&mut packer).map_err(|e| refused(e.into()))?;
    let mut coder = TileCoder::new(bands, &columns, guide);
    for first in portions() {
        decode_for_codes(first, &mut values)?;
        for (strip, values) in values.chunks(TILE_ROWS * cols).enumerate() {
            let strip = first / TILE_ROWS + strip;
            let weight = as_weight(values, cols);
            let coded = coder.quantise(strip, weight).map_err(refused)?;
            let packed = coded.pack(strip, &mut packer);
            packed.map_err(|error| refused(error.into()))?;
        }
    }
    let columns = coder.refitted_column_scales();
    columns.pack(&mut packer).map_err(|e| refused(e.into()))?;
    let bytes = packer.finish();
    let stored_bands = ColumnGroups::new(bands, rows, &bytes).map_err(|e| refused(e.into()))?;
    let mut sums = [ErrorEnergies::default(); 2];
    let mut stored = Vec::new();
    for first in portions() {
        decode(first, &mut values)?;
        stored.resize(values.len(), 0.0);
        for (row, stored) in stored.chunks_exact_mut(cols).enumerate() {
            let read = stored_bands.decode_row(first + row, stored);
            read.map_err(|error| refused(error.into()))?;
        }
        let lost = self::error_energies(as_weight(&values, cols), &stored, moment);
        add_energies(&mut sums, lost);
    }
    Ok((bytes, sums))
}

fn as_weight(values: &[f32], cols: usize) -> Weight<'_> {
    Weight {
        rows: values.len() / cols.max(1),
        cols,
        values,
    }
}

/// Checks that values of a tensor from a row on are finite.
pub(crate) fn check_finite(
    source: &PermutedSource<'_>,
    tensor: &ModelTensor,
    values: &[f32],
    first_row: usize,
) -> Result<(), MakeError> {
    let Some(at) = values.iter().position(|value| !value.is_finite()) else {
        return Ok(());
    };
    let (row, col) = (first_row + at / tensor.cols, at % tensor.cols);
    let (row, col) = source.source_position(tensor, row, col);
    Err(MakeError::NotFinite {
        tensor: tensor.name.clone(),
        row,
        col,
        value: values[at],
    })
}
