//! Errors of tuning.

use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::htz::HtzError;
use htc_formats::model::Role;
use htc_kernels::PoolError;
use thiserror::Error;

use crate::event::Cancelled;
use crate::gradient::GradientError;

/// Errors of tuning.
#[derive(Debug, Error)]
pub enum TuneError {
    /// A forward or backward pass failed.
    #[error(transparent)]
    Gradient(#[from] GradientError),
    /// A norm has a type that cannot be tuned.
    #[error(
        "{role} is stored as {dtype}, expected f32, f16 or bf16 to tune it; `tune` 0 leaves it"
    )]
    Type {
        /// Norm.
        role: Role,
        /// Its type.
        dtype: DType,
    },
    /// Tuned numbers are out of the range of the norm's type.
    #[error("{role}: {source}")]
    Block {
        /// Norm.
        role: Role,
        /// Cause.
        source: CodecError,
    },
    /// The state cannot be saved.
    #[error(transparent)]
    SaveState(#[from] HtzError),
    /// The thread pool cannot be started.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}
