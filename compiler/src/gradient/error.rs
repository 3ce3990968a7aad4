//! Why a backward pass fails.

use htc_formats::block::BlockError;
use htc_formats::model::Role;
use thiserror::Error;

/// Why a backward pass fails.
#[derive(Debug, Error)]
pub enum GradientError {
    /// A matrix is not there as it was trained.
    #[error("{0} is missing; gradients are those of a model with all of its matrices dense")]
    Missing(Role),
    /// A tensor does not decode.
    #[error("{tensor}: {source}")]
    Block {
        /// Its name in the source.
        tensor: String,
        /// Why.
        source: BlockError,
    },
}
