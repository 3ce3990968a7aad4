//! One unit of the plan from the source's bytes to the stored factors and their measured error.

mod encode;
mod error;
pub mod spectrum;
mod weighting;

use std::fmt;
use std::sync::Arc;

use htc_formats::DType;
use htc_formats::block::{self, BlockError};
use htc_formats::model::{MatrixId, Part, Role, Slot, StoredTensor};
use htc_formats::source::ModelFile;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::math::{
    BasisOptions, DEFAULT_COVERAGE, Diagonal, FactoriseError, Gauge, LowRankOptions, Path,
    SecondMoment, Side, Sink, SinkOutcome, Weight,
};
use crate::math::{
    bias_correction, low_rank_error, low_rank_with, shared_basis_with, shared_error, tail,
    weighted_error,
};
use crate::plan::{Form, Member, UnitPlan};

pub use error::UnitsError;
pub use weighting::Weighting;
pub(crate) use weighting::truncated;

/// What became of a unit.
#[derive(Clone, Debug)]
pub struct Factors {
    /// Bytes of the tensors that [`stored_tensors`] lists, in that order.
    pub tensors: Vec<Vec<u8>>,
    /// What was found on the way.
    pub found: Found,
}

/// What is known of a unit when it is factorised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// `‖W − Ŵ‖_F / ‖W‖_F` of every member, after storing.
    pub errors: Vec<f64>,
    /// `(E‖(W − Ŵ) x‖² / E‖W x‖²)^½` of every member on the calibration's activations, of the factors
    /// without a bias; empty where there are none.
    pub output_errors: Vec<f64>,
    /// The relative error of every member that Eckart and Young allow at its rank, in the norm of
    /// [`norm`](Self::norm), before storing; for members of a shared basis that of all of them together.
    /// `None` where channels are exempt: the decomposition knows the others alone; and of forms that are
    /// no truncation of the weight.
    pub predicted: Option<Vec<f64>>,
    /// What [`predicted`](Self::predicted) is measured in.
    pub norm: Norm,
    /// What became of the direction that each decomposition must not miss, where there is one: one for
    /// each member, or one for a shared basis.
    pub sinks: Vec<SinkOutcome>,
    /// Input channels that are exact.
    pub exempt: Vec<usize>,
    /// The tail energies of the search for the layer's axiom gauge, where there was one.
    pub axiom: Option<Vec<f64>>,
}

/// The norm that a factorisation minimises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// Every error of the weight counts the same.
    Frobenius,
    /// The error of the outputs.
    Output,
    /// By the root mean square of each input channel.
    Activation,
    /// By the axiom gauge of the layer.
    Axiom,
}

impl Norm {
    /// All of them.
    pub const ALL: [Norm; 4] = [Norm::Frobenius, Norm::Output, Norm::Activation, Norm::Axiom];
}

/// As reports call it.
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

/// Why a unit cannot be factorised.
#[derive(Clone, Debug, Error)]
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
        "tensor {tensor}: its factors exceed the range of {dtype}; use `factor_type` f32 or bf16, or leave the slot out of `slots`"
    )]
    Overflow {
        /// Name in the source.
        tensor: String,
        /// The type.
        dtype: DType,
    },
    /// A dense matrix does not fit the type it is to be stored in.
    #[error(
        "tensor {tensor}: its numbers exceed the range of {dtype}; choose f32, bf16 or a type of blocks for it, or \
         keep it as it is"
    )]
    DenseOverflow {
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

/// What a unit stores: what its form says, then the biases that correct its factors, where they are wanted.
pub fn stored_tensors(unit: &UnitPlan, biases: bool) -> Vec<StoredTensor> {
    let mut tensors = unit.tensors();
    if biases && unit.rank().is_some() {
        tensors.extend(unit.members.iter().filter_map(|member| {
            Some(StoredTensor {
                role: member.matrix.role(Part::Bias)?,
                dtype: DType::F32,
                rows: 1,
                cols: member.rows,
            })
        }));
    }
    tensors
}

/// Makes what a unit stores, on the calling thread.
///
/// # Errors
/// [`UnitError`], which names the tensor.
pub fn factorise(
    source: &ModelFile,
    unit: &UnitPlan,
    weighting: &Weighting,
) -> Result<Factors, UnitError> {
    if let Form::Dense { weight } = unit.form {
        return encode::dense(source, unit, weight, weighting);
    }
    let dense: Vec<Vec<f32>> = unit
        .members
        .iter()
        .map(|m| dense_weight(source, m))
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
    let name = |index: usize| weight_name(source, unit.members[index].matrix);
    let failed = |index: usize| {
        move |source: FactoriseError| UnitError::Factorise {
            tensor: name(weight_of(&source).unwrap_or(index)),
            source,
        }
    };
    // Members of a unit read the same.
    let site = unit.site();
    let (gauge, output, norm) = gauges(unit, weighting, failed(0))?;
    let direction = site.and_then(|(layer, site)| weighting.sink(layer, site));
    let sink = direction.as_deref().map(|direction| Sink {
        direction,
        threshold: DEFAULT_COVERAGE,
    });
    let exempt = site.map(|(layer, site)| weighting.exempt(layer, site, &weights));
    let exempt = exempt.transpose().map_err(failed(0))?.unwrap_or_default();
    let axiom = match unit.layer() {
        Some(layer) => weighting.axiom(layer)?,
        None => None,
    };
    let mean = site.and_then(|(layer, site)| weighting.mean_to_correct(layer, site));
    let moment = site.and_then(|(layer, site)| weighting.second_moment(layer, site));
    let mut tensors = Vec::new();
    let (mut errors, mut output_errors) = (Vec::new(), Vec::new());
    let (mut predicted, mut sinks, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    // What part of the outputs' error a base leaves to its residual; one without a base.
    let mut left = Vec::new();
    let mut correct = |weight: Weight<'_>, a: &[f32], b: &[f32], rank: usize, index: usize| {
        let Some(mean) = &mean else {
            return Ok(());
        };
        let lost = bias_correction(weight, a, b, rank, mean).map_err(failed(index))?;
        biases.push(with_own_bias(source, unit.members[index].matrix, lost)?);
        Ok(())
    };
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
        Form::Kept | Form::Dense { .. } => {}
        Form::LowRank { rank, a, b } | Form::Residual { rank, a, b, .. } => {
            for (index, (weight, member)) in weights.iter().zip(&unit.members).enumerate() {
                // A residual is what its base lacks, and its errors are parts of that.
                let lacking;
                let (target, part) = match unit.form {
                    Form::Residual { base, .. } => {
                        let stored = store(base, weight.values, index)?;
                        let part = encode::energies(*weight, &stored, moment.as_ref());
                        let pairs = weight.values.iter().zip(&stored);
                        lacking = pairs.map(|(w, base)| w - base).collect::<Vec<f32>>();
                        left.push(part[1].error());
                        let values = &lacking;
                        (Weight { values, ..*weight }, part[0].error())
                    }
                    _ => (*weight, 1.0),
                };
                // Down takes the decomposition of W itself by design; for the others the cheaper
                // path gives the same factors to rounding.
                // Under a gauge of the whole input its root would be formed for that, which is
                // as wide as the hidden layer; `W C Wᵀ` is narrower.
                let path = match (member.slot(), &*gauge) {
                    (Some(Slot::Down), Gauge::None) => Path::Svd,
                    _ => Path::Auto,
                };
                let options = LowRankOptions {
                    path,
                    input: &gauge,
                    output: output.as_ref(),
                    exempt: &exempt,
                    sink,
                };
                let factors = low_rank_with(target, rank, &options).map_err(failed(index))?;
                let a = store(a, &factors.a, index)?;
                let b = store(b, &factors.b, index)?;
                errors.push(part * low_rank_error(target, &a, &b, rank));
                predicted.push(tail(&factors.singular_values, rank));
                sinks.extend(factors.sink);
                correct(target, &a, &b, rank, index)?;
                measure_output(target, &a, &b, rank);
            }
        }
        Form::SharedBasis {
            rank,
            basis,
            projected,
        } => {
            let options = BasisOptions {
                gauge: &gauge,
                exempt: &exempt,
                sink,
                ..BasisOptions::default()
            };
            let shared = shared_basis_with(&weights, rank, &options).map_err(failed(0))?;
            let stored = store(basis, &shared.basis, 0)?;
            let values: Vec<f64> = shared
                .eigenvalues
                .iter()
                .map(|v| v.max(0.0).sqrt())
                .collect();
            predicted = vec![tail(&values, rank); weights.len()];
            sinks.extend(shared.sink);
            for (index, (weight, values)) in weights.iter().zip(&shared.projected).enumerate() {
                let values = store(projected, values, index)?;
                errors.push(shared_error(*weight, &stored, &values, rank));
                correct(*weight, &stored, &values, rank, index)?;
                measure_output(*weight, &stored, &values, rank);
            }
        }
    }
    for (error, left) in output_errors.iter_mut().zip(&left) {
        *error *= left;
    }
    for (bias, member) in biases.into_iter().zip(&unit.members) {
        let mut bytes = vec![0; 4 * bias.len()];
        block::encode(DType::F32, &bias, &mut bytes).map_err(|source_error| UnitError::Block {
            tensor: weight_name(source, member.matrix),
            source: source_error,
        })?;
        tensors.push(bytes);
    }
    Ok(Factors {
        tensors,
        found: Found {
            errors,
            output_errors,
            predicted: (exempt.is_empty() && left.is_empty()).then_some(predicted),
            norm,
            sinks,
            exempt,
            axiom: axiom.map(|axiom| axiom.trace.clone()),
        },
    })
}

/// The gauges of a unit's inputs and outputs, and the norm that they stand for.
fn gauges(
    unit: &UnitPlan,
    weighting: &Weighting,
    failed: impl Fn(FactoriseError) -> UnitError,
) -> Result<(Arc<Gauge>, Option<Diagonal>, Norm), UnitError> {
    let Some((layer, site)) = unit.site() else {
        return Ok((Arc::default(), None, Norm::Frobenius));
    };
    let slot = unit.members.first().and_then(Member::slot);
    if let (Some(axiom), Some(slot)) = (weighting.axiom(layer)?, slot) {
        let (input, output) = match Side::of(slot) {
            Side::Read => (axiom.reads().map_err(failed)?, None),
            Side::Write => (Gauge::None, Some(axiom.writes().map_err(failed)?)),
        };
        return Ok((Arc::new(input), output, Norm::Axiom));
    }
    let gauge = weighting.gauge(layer, site).map_err(failed)?;
    let norm = match &*gauge {
        Gauge::None => Norm::Frobenius,
        Gauge::Diagonal(_) => Norm::Activation,
        Gauge::Full(_) => Norm::Output,
    };
    Ok((gauge, None, norm))
}

/// What a factorisation lost on the mean input, with the slot's own bias where it has one.
fn with_own_bias(
    source: &ModelFile,
    matrix: MatrixId,
    mut lost: Vec<f32>,
) -> Result<Vec<f32>, UnitError> {
    let own = matrix.role(Part::Bias).and_then(|role| source.tensor(role));
    let Some(tensor) = own else {
        return Ok(lost);
    };
    check_finite(source, tensor)?;
    let mut own = vec![0.0; lost.len()];
    block::decode(tensor.dtype, source.bytes(tensor), &mut own).map_err(|source| {
        UnitError::Block {
            tensor: tensor.name.clone(),
            source,
        }
    })?;
    lost.iter_mut()
        .zip(own)
        .for_each(|(lost, own)| *lost += own);
    if lost.iter().any(|v| !v.is_finite()) {
        return Err(UnitError::Overflow {
            tensor: tensor.name.clone(),
            dtype: DType::F32,
        });
    }
    Ok(lost)
}

/// Which of the weights given an error is about.
pub(crate) fn weight_of(error: &FactoriseError) -> Option<usize> {
    match *error {
        FactoriseError::Empty { index, .. }
        | FactoriseError::Length { index, .. }
        | FactoriseError::NonFinite { index, .. }
        | FactoriseError::Inputs { index, .. }
        | FactoriseError::Overflow { index } => Some(index),
        _ => None,
    }
}

/// The name of a matrix in the source.
pub(crate) fn weight_name(source: &ModelFile, matrix: MatrixId) -> String {
    let role = matrix.weight();
    source
        .tensor(role)
        .map_or_else(|| role.to_string(), |t| t.name.clone())
}

/// The numbers of a matrix.
pub(crate) fn dense_weight(source: &ModelFile, member: &Member) -> Result<Vec<f32>, UnitError> {
    let role = member.matrix.weight();
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
