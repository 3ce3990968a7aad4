//! Errors of a backward pass.

use std::path::PathBuf;
use std::{fmt, io};

use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::htz::HtzError;
use htc_formats::model::{MatrixId, Role};
use htc_kernels::PoolError;
use htc_loader::Model;
use thiserror::Error;

use crate::calibrate::CalibrateError;
use crate::event::Cancelled;

/// Error returned for a matrix that the model does not have.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{matrix}: the model has {layers} layers")]
pub struct NoMatrix {
    /// Requested matrix.
    pub matrix: MatrixId,
    /// Number of layers.
    pub layers: usize,
}

/// Error returned when a backward pass or a tuning fails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GradientError {
    /// Missing text or cache folder, as in a calibration.
    #[error(transparent)]
    Calibrate(#[from] CalibrateError),
    /// A matrix is missing or not dense.
    #[error("{0} is missing; gradients are those of a model with all of its matrices dense")]
    Missing(Role),
    /// Unknown matrix.
    #[error(transparent)]
    NoMatrix(#[from] NoMatrix),
    /// A tensor does not decode.
    #[error("{tensor}: {source}")]
    Block {
        /// Tensor name.
        tensor: String,
        /// Cause.
        source: CodecError,
    },
    /// A gradient is infinite or NaN.
    #[error(
        "{}: {place}: a gradient is not finite on this text; the model is damaged, or computes beyond float32",
        path.display()
    )]
    NotFinite {
        /// Path of the model.
        path: PathBuf,
        /// Location of the first such number.
        place: String,
    },
    /// Insufficient disk space for the residual streams.
    #[error("{}: no space: the backward pass needs {needed} bytes, most of them for the residual stream before every layer, {free} are free there; free some, give another `cache` DIR, or ask for fewer tokens", path.display())]
    NoSpace {
        /// Cache folder.
        path: PathBuf,
        /// Bytes of all streams, two gradient files and the results.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// Insufficient memory.
    #[error("{}: no memory: the backward pass takes about {needed} bytes for a layer, {available} are available; end other programs", path.display())]
    NoMemory {
        /// Path of the model.
        path: PathBuf,
        /// Bytes of a layer's weights, activations and sums.
        needed: u64,
        /// Available bytes.
        available: u64,
    },
    /// A file changed while in use.
    #[error("{}: not what was written there; does another program use this folder? Start again", .0.display())]
    Changed(PathBuf),
    /// A cache file cannot be written or read.
    #[error("{}: {error}; give another folder with `cache` DIR", path.display())]
    Cache {
        /// Cache folder.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// A write failed; [`Cache`](GradientError::Cache) adds the path.
    #[error(transparent)]
    Write(#[from] io::Error),
    /// Threads cannot be started.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Cancelled by the caller.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// A norm has a type that cannot be tuned.
    #[error(
        "{role} is stored as {dtype}, expected f32, f16 or bf16 to tune it; `tune` 0 leaves it"
    )]
    NormType {
        /// Norm.
        role: Role,
        /// Its type.
        dtype: DType,
    },
    /// Tuned numbers are out of the range of the norm's type.
    #[error("{role}: {source}")]
    NormRange {
        /// Norm.
        role: Role,
        /// Cause.
        source: CodecError,
    },
    /// The state cannot be saved.
    #[error(transparent)]
    SaveState(#[from] HtzError),
}

/// Checks that numbers in a pass of a model are finite. `place` names where they are.
pub(super) fn check_finite(
    model: &Model,
    numbers: &[f32],
    place: impl fmt::Display,
) -> Result<(), GradientError> {
    // No early exit, so that it vectorises.
    let are_finite = numbers.iter().fold(true, |all, x| all & x.is_finite());
    require_finite(model, are_finite, place)
}

/// Returns the error of numbers that are not finite unless they are.
pub(super) fn require_finite(
    model: &Model,
    are_finite: bool,
    place: impl fmt::Display,
) -> Result<(), GradientError> {
    if are_finite {
        Ok(())
    } else {
        Err(GradientError::NotFinite {
            path: model.file().path.clone(),
            place: place.to_string(),
        })
    }
}
