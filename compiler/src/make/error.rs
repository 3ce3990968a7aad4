//! Why an artifact cannot be made.

use htc_formats::bands::BandsError;
use htc_formats::block::BlockError;
use htc_formats::htz::HtzError;
use thiserror::Error;

use crate::event::Cancelled;
use crate::geometry::probe::ProbeError;
use crate::unit::UnitsError;

/// Why an artifact cannot be made.
#[derive(Debug, Error)]
pub enum MakeError {
    /// A unit cannot be made.
    #[error(transparent)]
    Units(#[from] UnitsError),
    /// The spectra of what is stored cannot be computed.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The rows of a matrix in bands cannot be multiplied.
    #[error("{tensor}: {source}")]
    Bands {
        /// The matrix.
        tensor: String,
        /// Why.
        source: BandsError,
    },
    /// The rows of a matrix in blocks cannot be multiplied.
    #[error("{tensor}: {source}")]
    Block {
        /// The matrix.
        tensor: String,
        /// Why.
        source: BlockError,
    },
    /// Bases for a KV cache are found in what calibration saw.
    #[error(
        "`kv_bases` on: the bases are found on text; calibrate with `calibration`, or leave `kv_bases` out"
    )]
    KvBasesWithoutText,
    /// The artifact cannot be written.
    #[error(transparent)]
    Seal(#[from] HtzError),
}

impl MakeError {
    /// Whether numbers have no code in the type of their matrix, which others may have.
    pub fn has_no_code(&self) -> bool {
        match self {
            MakeError::Bands { source, .. } => matches!(source, BandsError::Scale { .. }),
            MakeError::Block { source, .. } => matches!(source, BlockError::NoCode { .. }),
            _ => false,
        }
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
