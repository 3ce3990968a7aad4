//! Errors of reading the tensors of a source, and of making an artifact of them.

use std::path::PathBuf;

use htc_formats::htz::HtzError;
use htc_formats::model::{MatrixId, Role};
use htc_formats::source::ModelFile;
use htc_formats::{CodecError, DType};
use thiserror::Error;

use crate::event::Cancelled;
use crate::math::FactoriseError;
use crate::system::ordered::ThreadError;

/// Errors of reading the tensors of a source, and of making an artifact of them.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MakeError {
    /// A tensor of the source cannot be read, factorised or stored.
    #[error("{}: {error}", path.display())]
    Unit {
        /// The source.
        path: PathBuf,
        /// The fault of the tensor.
        error: Box<MakeError>,
    },
    /// The tensor is missing from the source.
    #[error("tensor {0} is missing from the source")]
    Missing(Role),
    /// A tensor does not decode, or cannot be decomposed or encoded.
    #[error("tensor {tensor}: {source}")]
    Tensor {
        /// Name in the source.
        tensor: String,
        /// The cause.
        source: FactoriseError,
    },
    /// A factor exceeds the range of its type.
    #[error(
        "tensor {tensor}: its factors exceed the range of {dtype}; use `factor_type` f32 or bf16, or leave the projection out of `projections`"
    )]
    Overflow {
        /// Name in the source.
        tensor: String,
        /// The type.
        dtype: DType,
    },
    /// A dense matrix exceeds the range of its type.
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
    /// The columns of a kept tensor cannot be permuted, which would split its blocks.
    #[error(
        "tensor {tensor}: its columns cannot be put in another order as they are: {dtype} stores blocks of {}; encode \
         it anew, or compile with `order` off",
        dtype.block_len()
    )]
    Permutation {
        /// Name in the source.
        tensor: String,
        /// Its type.
        dtype: DType,
    },
    /// The gradients are of a model without this matrix.
    #[error("{0}: the gradients are of a model without it")]
    NoGradients(MatrixId),
    /// Row classes need the costs of errors, which are unknown.
    #[error(
        "tensor {tensor}: its rows have classes by what their errors cost, which is not known; give a calibration"
    )]
    NoCosts {
        /// Name in the source.
        tensor: String,
    },
    /// A value of a tensor is infinite or not a number.
    #[error(
        "tensor {tensor} holds {value} at row {row}, column {col}, expected finite numbers; repair or re-export \
         the source model"
    )]
    NotFinite {
        /// Name in the source.
        tensor: String,
        /// Row of the first such value.
        row: usize,
        /// Column of the first such value.
        col: usize,
        /// The value.
        value: f32,
    },
    /// The calibration's statistics of a layer are invalid.
    #[error("{}: statistics of layer {layer}: {error}; calibrate again with another `cache`", path.display())]
    Statistics {
        /// The source.
        path: PathBuf,
        /// Layer index.
        layer: usize,
        /// Numerical error.
        error: FactoriseError,
    },
    /// The variance of the residual stream after a layer is negative or not finite.
    #[error(
        "variance of layer {layer}: expected a finite number of at least 0, found {found}; calibrate again"
    )]
    Variance {
        /// First such layer.
        layer: usize,
        /// Value of the variance.
        found: f64,
    },
    /// A thread cannot be started.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// The work was cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// The rows of a matrix cannot be scaled.
    #[error("{tensor}: {source}")]
    ScaleRows {
        /// The matrix.
        tensor: String,
        /// The reason.
        source: CodecError,
    },
    /// Bases for a KV cache require a calibration.
    #[error(
        "`kv_bases` on: the bases are found on text; calibrate with `calibration`, or leave `kv_bases` out"
    )]
    KvBasesWithoutText,
    /// The artifact cannot be written.
    #[error(transparent)]
    Seal(#[from] HtzError),
    /// A tensor does not decode.
    #[error("tensor {tensor}: {source}; copy the file again or compile it anew")]
    Stored {
        /// Tensor role.
        tensor: Role,
        /// Codec error.
        source: CodecError,
    },
}

impl MakeError {
    /// Returns the error of decoding, decomposing or encoding a tensor.
    pub(crate) fn of_tensor(tensor: &str, source: impl Into<FactoriseError>) -> MakeError {
        MakeError::Tensor {
            tensor: tensor.to_owned(),
            source: source.into(),
        }
    }

    /// Returns a conversion that adds the path of the source to an error.
    pub fn with_source_path(source: &ModelFile) -> impl Fn(MakeError) -> MakeError + '_ {
        |error| MakeError::Unit {
            path: source.path.clone(),
            error: Box::new(error),
        }
    }

    /// Returns true if values have no code in the type of their matrix; other values may have one.
    pub fn has_no_code(&self) -> bool {
        let MakeError::ScaleRows { source, .. } = self else {
            return false;
        };
        matches!(source, CodecError::Scale { .. } | CodecError::NoCode { .. })
    }
}
