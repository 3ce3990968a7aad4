//! Errors of an export.

use std::path::PathBuf;

use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::architecture::BindError;
use htc_formats::gguf::GgufError;
use htc_formats::htz::HtzError;
use htc_formats::model::Role;
use thiserror::Error;

use crate::event::Cancelled;
use crate::system::error::FileError;
use crate::system::ordered::ThreadError;

/// Errors of an export. Options are named as in the library, in backticks.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "fields that the messages name")]
pub enum ExportError {
    /// The artifact is unreadable, or the output's location is not writable.
    #[error(transparent)]
    Htz(HtzError),
    /// The output exists.
    #[error("{}: exists already; give another name, or replace it with `overwrite`", .0.display())]
    Exists(PathBuf),
    /// The output does not open again.
    #[error("what was written does not open again: {0}")]
    Reopened(String),
    /// The output reads differently from the artifact.
    #[error("what was written would be read otherwise: {what} is {found}, expected {expected}")]
    Differs {
        what: String,
        expected: String,
        found: String,
    },
    /// The output is the artifact itself.
    #[error("{}: this is the artifact that is read; give another name", .0.display())]
    SameFile(PathBuf),
    /// The output folder exists and is not empty.
    #[error("{}: exists already and is not empty; give another name, or replace it with `overwrite`", .0.display())]
    FolderExists(PathBuf),
    /// A folder to be replaced has files that no export writes.
    #[error("{}: holds {other:?}, which is no file of an earlier export; it is not replaced, give another name", path.display())]
    ForeignFile { path: PathBuf, other: String },
    /// The output folder is a file.
    #[error("{}: is no folder; give another name", .0.display())]
    NotAFolder(PathBuf),
    /// The container cannot express the model.
    #[error("the artifact cannot be stated so: {0}")]
    Unrepresentable(#[from] BindError),
    /// The container has no name for a tensor.
    #[error(
        "{role} has no place in {container} of an architecture {architecture:?}{}",
        if role.to_string().ends_with(".bias") { "; compile it again with `bias` off" } else { "" }
    )]
    UnsupportedTensor {
        role: Role,
        container: &'static str,
        architecture: String,
    },
    /// A tensor is missing from the artifact.
    #[error("{0} is missing; the artifact is damaged, compile it again")]
    Missing(Role),
    /// Rows do not decode, or have no code in the requested type.
    #[error("{tensor}: {error}")]
    Block { tensor: String, error: CodecError },
    /// A value exceeds the range of a type.
    #[error("{tensor}: a number of magnitude {value:e} is beyond {dtype}; give `as` bf16 or f32")]
    Overflow {
        tensor: String,
        value: f32,
        dtype: DType,
    },
    /// The type is not supported in folders.
    #[error("`as` {0}: weights in a folder are f32, f16 or bf16; give one of these")]
    NotAFloat(DType),
    /// The type is not supported in GGUF.
    #[error("{0} is no type of a GGUF")]
    NoType(DType),
    /// The artifact has no factors for an adapter.
    #[error(
        "`lora`: no matrix of the artifact has factors that an adapter could hold; leave it out"
    )]
    NoFactors,
    /// The disk space does not suffice.
    #[error("{}: no space: {needed} bytes are needed, {free} are free there; free some, or give another name", path.display())]
    NoSpace {
        path: PathBuf,
        needed: u64,
        free: u64,
    },
    /// The output cannot be written as GGUF.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A thread cannot be started.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// The export was cancelled; no output is left.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl From<HtzError> for ExportError {
    fn from(error: HtzError) -> Self {
        match error {
            HtzError::Exists { path } => ExportError::Exists(path),
            error => ExportError::Htz(error),
        }
    }
}
