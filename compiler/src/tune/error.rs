//! Why scales cannot be tuned.

use htc_formats::DType;
use htc_formats::block::BlockError;
use htc_formats::htz::HtzError;
use htc_formats::model::Role;
use htc_kernels::PoolError;
use thiserror::Error;

use crate::event::Cancelled;
use crate::gradient::GradientError;

/// Why scales cannot be tuned.
#[derive(Debug, Error)]
pub enum TuneError {
    /// A forward or backward pass failed.
    #[error(transparent)]
    Gradient(#[from] GradientError),
    /// A norm is stored in a type that tuned numbers cannot have.
    #[error(
        "{role} is stored as {dtype}, expected f32, f16 or bf16 to tune it; `tune` 0 leaves it"
    )]
    Type {
        /// The norm.
        role: Role,
        /// Its type.
        dtype: DType,
    },
    /// Tuned numbers do not fit the type of their norm.
    #[error("{role}: {source}")]
    Block {
        /// The norm.
        role: Role,
        /// Why.
        source: BlockError,
    },
    /// What is reached cannot be kept.
    #[error(transparent)]
    Keep(#[from] HtzError),
    /// The system gives no threads.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Somebody asked for an end.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}
