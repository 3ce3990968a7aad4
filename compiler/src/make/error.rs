//! Errors of making an artifact.

use htc_formats::CodecError;
use htc_formats::htz::HtzError;
use thiserror::Error;

use crate::event::Cancelled;
use crate::geometry::probe::ProbeError;
use crate::unit::UnitsError;

/// Errors of making an artifact.
#[derive(Debug, Error)]
pub enum MakeError {
    /// A unit failed.
    #[error(transparent)]
    Units(#[from] UnitsError),
    /// The spectra of the stored weights cannot be computed.
    #[error(transparent)]
    Probe(#[from] ProbeError),
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
}

impl MakeError {
    /// Returns true if values have no code in the type of their matrix; other values may have one.
    pub fn has_no_code(&self) -> bool {
        let MakeError::ScaleRows { source, .. } = self else {
            return false;
        };
        matches!(source, CodecError::Scale { .. } | CodecError::NoCode { .. })
    }
}

impl From<std::io::Error> for MakeError {
    fn from(error: std::io::Error) -> Self {
        MakeError::Units(error.into())
    }
}

impl From<Cancelled> for MakeError {
    fn from(error: Cancelled) -> Self {
        MakeError::Units(error.into())
    }
}
