//! Why a backward pass fails.

use std::io;
use std::path::PathBuf;

use htc_formats::bands::ColumnGroupError;
use htc_formats::block::BlockError;
use htc_formats::model::{MatrixId, Role};
use htc_kernels::PoolError;
use thiserror::Error;

use crate::calibrate::CalibrateError;
use crate::event::Cancelled;

/// The model has no such matrix.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{matrix}: the model has {layers} layers")]
pub struct NoMatrix {
    /// What was asked for.
    pub matrix: MatrixId,
    /// Layers of the model.
    pub layers: usize,
}

/// Why a backward pass fails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GradientError {
    /// There is no text, or no place for the cache, as in a calibration.
    #[error(transparent)]
    Calibrate(#[from] CalibrateError),
    /// A matrix is not there as it was trained.
    #[error("{0} is missing; gradients are those of a model with all of its matrices dense")]
    Missing(Role),
    /// The model has no such matrix.
    #[error(transparent)]
    NoMatrix(#[from] NoMatrix),
    /// A tensor does not decode.
    #[error("{tensor}: {source}")]
    Block {
        /// Its name in the source.
        tensor: String,
        /// Why.
        source: BlockError,
    },
    /// A matrix in bands does not decode.
    #[error("{tensor}: {source}")]
    Bands {
        /// Its name.
        tensor: String,
        /// What the decoder says.
        source: ColumnGroupError,
    },
    /// A number is infinite or not a number.
    #[error(
        "{}: {place}: a gradient is not finite on this text; the model is damaged, or computes beyond float32",
        path.display()
    )]
    NotFinite {
        /// The model.
        path: PathBuf,
        /// Where the first one is.
        place: String,
    },
    /// There is no room for the residual streams.
    #[error("{}: no space: the backward pass needs {needed} bytes, most of them for the residual stream in front of every layer, {free} are free there; free some, give another `cache` DIR, or ask for fewer tokens", path.display())]
    NoSpace {
        /// The folder.
        path: PathBuf,
        /// Bytes of all streams, of two of gradients and of what is kept.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// The machine has not as much memory.
    #[error("{}: no memory: the backward pass takes about {needed} bytes for a layer, {available} are available; end other programs", path.display())]
    NoMemory {
        /// The model.
        path: PathBuf,
        /// Bytes of a layer's weights, activations and sums.
        needed: u64,
        /// What is available.
        available: u64,
    },
    /// A file changed while it was used.
    #[error("{}: not what was written there; does another program use this folder? Start again", .0.display())]
    Changed(PathBuf),
    /// A file of the cache cannot be written or read.
    #[error("{}: {error}; give another folder with `cache` DIR", path.display())]
    Cache {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// What is being written cannot be; [`CacheSize`](GradientError::CacheSize) says where.
    #[error(transparent)]
    Write(#[from] io::Error),
    /// The system gives no threads.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Somebody asked for an end.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}
