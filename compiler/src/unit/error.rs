//! Errors of making an artifact and its units.

use std::path::PathBuf;

use htc_formats::CodecError;
use htc_formats::htz::HtzError;
use htc_formats::model::Role;
use htc_formats::source::ModelFile;
use thiserror::Error;

use super::UnitError;
use crate::event::Cancelled;

/// Errors of making an artifact and its units.
#[derive(Debug, Error)]
pub enum MakeError {
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
    /// Returns a conversion that adds the path of the source to an error.
    pub fn with_source_path(source: &ModelFile) -> impl Fn(UnitError) -> MakeError + '_ {
        |error| MakeError::Unit {
            path: source.path.clone(),
            error,
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
