//! Why the units of a model cannot be worked through.

use std::path::PathBuf;

use htc_formats::source::ModelFile;
use thiserror::Error;

use super::UnitError;
use crate::event::Cancelled;

/// Why the units of a model cannot be worked through.
#[derive(Debug, Error)]
pub enum UnitsError {
    /// A slot cannot be factorised.
    #[error("{}: {error}", path.display())]
    Unit {
        /// The source.
        path: PathBuf,
        /// What is wrong with the slot.
        error: UnitError,
    },
    /// The system gives no thread to work with.
    #[error("no thread can be started: {0}; end other programs or raise the limit of processes")]
    Thread(#[from] std::io::Error),
    /// Somebody asked for an end.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl UnitsError {
    /// Names the source of a unit.
    pub fn of(source: &ModelFile) -> impl Fn(UnitError) -> UnitsError + '_ {
        |error| UnitsError::Unit {
            path: source.path.clone(),
            error,
        }
    }
}
