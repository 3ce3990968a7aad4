//! One unit of the plan from the source's bytes to the stored factors and their measured error.

use htc_formats::DType;
use htc_formats::block::{self, BlockError};
use htc_formats::model::{InputGroup, Part, Role, Slot};
use htc_formats::source::ModelFile;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    BasisOptions, FactoriseError, Gauge, LowRankOptions, Path, SecondMoment, Weight, Weighting,
};
use super::{low_rank_error, low_rank_with, shared_basis_with, shared_error, weighted_error};
use crate::plan::{Form, Member, UnitPlan};

/// A tensor that a unit stores.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredShape {
    /// What it does in the model.
    pub role: Role,
    /// How its numbers are stored.
    pub dtype: DType,
    /// Rows.
    pub rows: usize,
    /// Numbers in a row.
    pub cols: usize,
}

/// What became of a unit.
#[derive(Clone, Debug)]
pub struct Factors {
    /// Bytes of the tensors that [`stored_shapes`] lists, in that order.
    pub tensors: Vec<Vec<u8>>,
    /// What was found on the way.
    pub found: Found,
}

/// What is known of a unit when it is factorised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// `‖W − Ŵ‖_F / ‖W‖_F` of every member, after storing.
    pub errors: Vec<f64>,
    /// `(E‖(W − Ŵ) x‖² / E‖W x‖²)^½` of every member on the calibration's activations; empty
    /// where there are none.
    pub output_errors: Vec<f64>,
}

/// Why a unit cannot be factorised.
#[derive(Debug, Error)]
pub enum UnitError {
    /// The source lacks the tensor.
    #[error("tensor {0} is missing from the source")]
    Missing(Role),
    /// The bytes of a tensor do not decode, or a factor does not encode.
    #[error("tensor {tensor}: {source}")]
    Block {
        /// Name in the source.
        tensor: String,
        /// What the codec says.
        source: BlockError,
    },
    /// The mathematics refuses.
    #[error("tensor {tensor}: {source}")]
    Factorise {
        /// Name in the source.
        tensor: String,
        /// Why.
        source: FactoriseError,
    },
    /// A factor does not fit the type it is to be stored in.
    #[error(
        "tensor {tensor}: its factors exceed the range of {dtype}; use --factor-type f32 or bf16, or leave the slot out of --slots"
    )]
    Overflow {
        /// Name in the source.
        tensor: String,
        /// The type.
        dtype: DType,
    },
    /// A number that is passed through is infinite or not a number.
    #[error(
        "tensor {tensor} holds {value} at row {row}, column {col}, expected finite numbers; repair or re-export \
         the source model"
    )]
    NotFinite {
        /// Name in the source.
        tensor: String,
        /// Row of the first such number.
        row: usize,
        /// Column of the first such number.
        col: usize,
        /// The number.
        value: f32,
    },
}

/// What a unit that is not dense stores, in the order of execution.
pub fn stored_shapes(unit: &UnitPlan) -> Vec<StoredShape> {
    let layer = unit.layer;
    let linear = |slot: Slot, part: Part| Role::Linear { layer, slot, part };
    let mut shapes = Vec::new();
    let mut push = |role, dtype, rows, cols| {
        shapes.push(StoredShape {
            role,
            dtype,
            rows,
            cols,
        });
    };
    match unit.form {
        Form::Dense => {}
        Form::LowRank { rank, a, b } => {
            for m in &unit.members {
                push(linear(m.slot, Part::A), a, rank, m.cols);
                push(linear(m.slot, Part::B), b, m.rows, rank);
            }
        }
        Form::SharedBasis {
            rank,
            basis,
            projected,
        } => {
            if let Some((group, m)) = group_of(unit) {
                push(Role::Basis { layer, group }, basis, rank, m.cols);
            }
            for m in &unit.members {
                push(linear(m.slot, Part::Projected), projected, m.rows, rank);
            }
        }
    }
    shapes
}

fn group_of(unit: &UnitPlan) -> Option<(InputGroup, &Member)> {
    let member = unit.members.first()?;
    Some((member.slot.group()?, member))
}

/// Factorises one unit on the calling thread.
///
/// # Errors
/// [`UnitError`], which names the tensor.
pub fn factorise(
    source: &ModelFile,
    unit: &UnitPlan,
    weighting: &Weighting,
) -> Result<Factors, UnitError> {
    let dense: Vec<Vec<f32>> = unit
        .members
        .iter()
        .map(|m| dense_weight(source, unit.layer, m))
        .collect::<Result<_, _>>()?;
    let weights: Vec<Weight> = unit
        .members
        .iter()
        .zip(&dense)
        .map(|(m, values)| Weight {
            rows: m.rows,
            cols: m.cols,
            values,
        })
        .collect();
    let name = |index: usize| weight_name(source, unit.layer, unit.members[index].slot);
    let failed = |index: usize| {
        move |source: FactoriseError| UnitError::Factorise {
            tensor: name(weight_of(&source).unwrap_or(index)),
            source,
        }
    };
    // Members of a unit read the same.
    let site = unit.members.first().map(|member| member.slot.site());
    let gauge = site.map(|site| weighting.gauge(unit.layer, site));
    let gauge = gauge.transpose().map_err(failed(0))?.unwrap_or_default();
    let moment = site.and_then(|site| weighting.second_moment(unit.layer, site));
    let mut tensors = Vec::new();
    let (mut errors, mut output_errors) = (Vec::new(), Vec::new());
    let mut measure_output = |weight: Weight<'_>, a: &[f32], b: &[f32], rank: usize| {
        if let Some((order, values)) = &moment {
            let (order, values) = (*order, &values[..]);
            let moment = SecondMoment { order, values };
            output_errors.push(weighted_error(weight, a, b, rank, moment));
        }
    };
    // Encodes a factor for good and returns what a reader will decode.
    let mut store = |dtype: DType, values: &[f32], index: usize| -> Result<Vec<f32>, UnitError> {
        let codec = |source| UnitError::Block {
            tensor: name(index),
            source,
        };
        let length = dtype.matrix_bytes(1, values.len()).unwrap_or(0);
        let mut bytes = vec![0; length];
        block::encode(dtype, values, &mut bytes).map_err(codec)?;
        let mut decoded = vec![0.0; values.len()];
        block::decode(dtype, &bytes, &mut decoded).map_err(codec)?;
        if decoded.iter().any(|v| !v.is_finite()) {
            return Err(UnitError::Overflow {
                tensor: name(index),
                dtype,
            });
        }
        tensors.push(bytes);
        Ok(decoded)
    };
    match unit.form {
        Form::Dense => {}
        Form::LowRank { rank, a, b } => {
            for (index, (weight, member)) in weights.iter().zip(&unit.members).enumerate() {
                // Down takes the decomposition of W itself by design; for the others the cheaper
                // path gives the same factors to rounding.
                // Under a gauge of the whole input its root would be formed for that, which is
                // as wide as the hidden layer; `W C Wᵀ` is narrower.
                let path = match (member.slot, &*gauge) {
                    (Slot::Down, Gauge::None) => Path::Svd,
                    _ => Path::Auto,
                };
                let options = LowRankOptions {
                    path,
                    input: &gauge,
                    ..LowRankOptions::default()
                };
                let factors = low_rank_with(*weight, rank, &options).map_err(failed(index))?;
                let a = store(a, &factors.a, index)?;
                let b = store(b, &factors.b, index)?;
                errors.push(low_rank_error(*weight, &a, &b, rank));
                measure_output(*weight, &a, &b, rank);
            }
        }
        Form::SharedBasis {
            rank,
            basis,
            projected,
        } => {
            let options = BasisOptions {
                gauge: &gauge,
                ..BasisOptions::default()
            };
            let shared = shared_basis_with(&weights, rank, &options).map_err(failed(0))?;
            let stored = store(basis, &shared.basis, 0)?;
            for (index, (weight, values)) in weights.iter().zip(&shared.projected).enumerate() {
                let values = store(projected, values, index)?;
                errors.push(shared_error(*weight, &stored, &values, rank));
                measure_output(*weight, &stored, &values, rank);
            }
        }
    }
    Ok(Factors {
        tensors,
        found: Found {
            errors,
            output_errors,
        },
    })
}

/// Which of the weights given an error is about.
fn weight_of(error: &FactoriseError) -> Option<usize> {
    match *error {
        FactoriseError::Empty { index, .. }
        | FactoriseError::Length { index, .. }
        | FactoriseError::NonFinite { index, .. }
        | FactoriseError::Inputs { index, .. }
        | FactoriseError::Overflow { index } => Some(index),
        _ => None,
    }
}

/// The name of a slot's weight in the source.
pub(super) fn weight_name(source: &ModelFile, layer: usize, slot: Slot) -> String {
    let part = Part::Weight;
    let role = Role::Linear { layer, slot, part };
    source
        .tensor(role)
        .map_or_else(|| role.to_string(), |t| t.name.clone())
}

/// The numbers of a slot's weight.
pub(super) fn dense_weight(
    source: &ModelFile,
    layer: usize,
    member: &Member,
) -> Result<Vec<f32>, UnitError> {
    let role = Role::Linear {
        layer,
        slot: member.slot,
        part: Part::Weight,
    };
    let tensor = source.tensor(role).ok_or(UnitError::Missing(role))?;
    let mut values = vec![0.0; member.rows * member.cols];
    block::decode(tensor.dtype, source.bytes(tensor), &mut values).map_err(|source| {
        UnitError::Block {
            tensor: tensor.name.clone(),
            source,
        }
    })?;
    Ok(values)
}

/// Makes sure that a tensor which is passed through holds only finite numbers.
///
/// # Errors
/// [`UnitError::NotFinite`] for the first that is not.
pub fn check_finite(
    source: &ModelFile,
    tensor: &htc_formats::source::ModelTensor,
) -> Result<(), UnitError> {
    let bytes = source.bytes(tensor);
    let Some(row_bytes) = tensor.dtype.row_bytes(tensor.cols).filter(|&n| n > 0) else {
        return Ok(());
    };
    let mut values = vec![0.0; tensor.cols];
    for (row, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
        block::decode(tensor.dtype, bytes, &mut values).map_err(|source| UnitError::Block {
            tensor: tensor.name.clone(),
            source,
        })?;
        if let Some(col) = values.iter().position(|v| !v.is_finite()) {
            return Err(UnitError::NotFinite {
                tensor: tensor.name.clone(),
                row,
                col,
                value: values[col],
            });
        }
    }
    Ok(())
}
