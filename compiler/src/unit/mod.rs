//! Turns one unit of the plan into stored tensors with measured errors.

pub(crate) mod classes;
pub(crate) mod encode;
mod factor;
pub mod kv_bases;
mod outputs;
pub mod spectrum;
mod treatment;

use std::fmt;

use htc_formats::DType;
use htc_formats::model::{MatrixId, Part, Role, StoredTensor};
use htc_formats::source::{ModelFile, ModelTensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calibrate::CalibratedInput;
use crate::math::{FactoriseError, SinkOutcome};
use crate::order::PermutedSource;
use crate::plan::{MatrixForm, UnitMatrix, UnitPlan};

pub use crate::order::MakeError;
pub(crate) use factor::decomposition_path;
pub(crate) use treatment::{CACHE_CAPACITY, truncated_projections};
pub use treatment::{InputStatistics, ModelTreatment};

/// Result of [`factorise`].
#[derive(Clone, Debug)]
pub struct Factors {
    /// Bytes of the tensors that [`stored_tensors`] lists, in that order.
    pub tensors: Vec<Vec<u8>>,
    /// Measurements.
    pub measurements: UnitMeasurements,
}

/// Measurements of a factorised unit.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct UnitMeasurements {
    /// `‖W − Ŵ‖_F / ‖W‖_F` of every member, after storing.
    pub errors: Vec<f64>,
    /// `(E‖(W − Ŵ) x‖² / E‖W x‖²)^½` of every member on the calibration's activations, after
    /// storing and with the correcting bias. Empty without activations.
    pub output_errors: Vec<f64>,
    /// Eckart-Young bound on the relative error of every member at its rank, in the norm of
    /// [`norm`](Self::norm); for a shared basis that of all members together. `None` with exempt
    /// channels, and for forms that are no truncation of the weight.
    pub predicted: Option<Vec<f64>>,
    /// Norm of [`predicted`](Self::predicted).
    pub norm: Norm,
    /// Outcome of the sink protection: one per member, or one for a shared basis.
    pub sinks: Vec<SinkOutcome>,
    /// Input channels that are exact.
    pub exempt: Vec<usize>,
    /// Tail energies of the search for the layer's axiom gauge, if any.
    pub axiom: Option<Vec<f64>>,
}

/// The norm that a factorisation minimises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// Every error of the weight counts the same.
    Frobenius,
    /// The error of the outputs.
    Output,
    /// Errors weighted by the root mean square of each input channel.
    Activation,
    /// Errors weighted by the axiom gauge of the layer.
    Axiom,
}

impl Norm {
    /// All norms.
    pub const ALL: [Norm; 4] = [Norm::Frobenius, Norm::Output, Norm::Activation, Norm::Axiom];
}

impl fmt::Display for Norm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Norm::Frobenius => "frobenius",
            Norm::Output => "output",
            Norm::Activation => "activation",
            Norm::Axiom => "axiom",
        })
    }
}

/// Returns the stored tensors of a unit: those of its form, then the correcting biases.
pub fn stored_tensors(unit: &UnitPlan, biases: bool) -> Vec<StoredTensor> {
    let mut tensors = unit.tensors();
    if biases && unit.rank().is_some() {
        tensors.extend(unit.members.iter().filter_map(|member| {
            Some(StoredTensor {
                role: member.matrix.role(Part::Bias)?,
                dtype: DType::F32,
                rows: 1,
                cols: member.rows,
                codes: None,
            })
        }));
    }
    tensors
}

/// Factorises or encodes a unit, on the calling thread.
pub fn factorise(
    source: &PermutedSource<'_>,
    unit: &UnitPlan,
    treatment: &ModelTreatment,
) -> Result<Factors, MakeError> {
    match &unit.form {
        MatrixForm::Dense { weight } => encode::dense(source, unit, *weight, treatment),
        MatrixForm::ColumnGroups { codes } => encode::column_groups(source, unit, codes, treatment),
        _ => factor::factorise_unit(source, unit, treatment),
    }
}

pub(crate) fn input_of_unit(source: &ModelFile, unit: &UnitPlan) -> Option<CalibratedInput> {
    unit.activation_point(source.tensor(Role::Output).is_none())
}

/// Returns the error of a weight: of the one that the error tells by its index, else of that at
/// `index`.
fn factorise_error(
    source: &ModelFile,
    members: &[UnitMatrix],
    index: usize,
    error: FactoriseError,
) -> MakeError {
    let member = members.get(weight_index(&error).unwrap_or(index));
    let name = member.map(|member| weight_name(source, member.matrix));
    MakeError::of_tensor(&name.unwrap_or_default(), error)
}

fn weight_index(error: &FactoriseError) -> Option<usize> {
    match *error {
        FactoriseError::Empty { index, .. }
        | FactoriseError::WeightLength { index, .. }
        | FactoriseError::NonFinite { index, .. }
        | FactoriseError::InputMismatch { index, .. }
        | FactoriseError::Overflow { index } => Some(index),
        _ => None,
    }
}

pub(crate) fn weight_name(source: &ModelFile, matrix: MatrixId) -> String {
    let role = matrix.weight();
    source
        .tensor(role)
        .map_or_else(|| role.to_string(), |t| t.name.clone())
}

/// Decodes matrices in their stored channel order.
pub(crate) fn dense_weights(
    source: &PermutedSource<'_>,
    members: &[UnitMatrix],
) -> Result<Vec<Vec<f32>>, MakeError> {
    let members = members.iter();
    members.map(|member| dense_weight(source, member)).collect()
}

/// Decodes a matrix in its stored channel order.
pub(crate) fn dense_weight(
    source: &PermutedSource<'_>,
    member: &UnitMatrix,
) -> Result<Vec<f32>, MakeError> {
    let role = member.matrix.weight();
    let tensor = source.tensor(role).ok_or(MakeError::Missing(role))?;
    let mut values = vec![0.0; member.rows * member.cols];
    let decoded = source.decode(tensor, 0..member.rows, &mut values);
    decoded.map_err(|error| MakeError::of_tensor(&tensor.name, error))?;
    Ok(values)
}

/// Checks that a tensor has only finite values.
pub fn check_tensor_finite(source: &ModelFile, tensor: &ModelTensor) -> Result<(), MakeError> {
    let permuted = PermutedSource::new(source, None);
    let mut values = vec![0.0; tensor.cols];
    for row in 0..tensor.rows {
        let decoded = source.decode_rows(tensor, row..row + 1, &mut values);
        decoded.map_err(|error| MakeError::of_tensor(&tensor.name, error))?;
        encode::check_finite(&permuted, tensor, &values, row)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
