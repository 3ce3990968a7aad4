//! Errors of the units of a model.

use std::path::PathBuf;

use htc_formats::source::ModelFile;
use thiserror::Error;

use super::UnitError;
use crate::event::Cancelled;

/// Errors of the units of a model.
#[derive(Debug, Error)]
pub enum UnitsError {
    /// A projection cannot be factorised.
    #[error("{}: {error}", path.display())]
    Unit {
        /// The source.
        path: PathBuf,
        /// The fault of the projection.
        error: UnitError,
    },
    /// A thread cannot be started.
    #[error("no thread can be started: {0}; end other programs or raise the limit of processes")]
    Thread(#[from] std::io::Error),
    /// The work was cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl UnitsError {
    /// Returns a conversion that adds the path of the source to an error.
    pub fn with_source_path(source: &ModelFile) -> impl Fn(UnitError) -> UnitsError + '_ {
        |error| UnitsError::Unit {
            path: source.path.clone(),
            error,
        }
    }
}
