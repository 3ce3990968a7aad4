//! Why an export fails.

use std::path::PathBuf;

use htc_formats::DType;
use htc_formats::architecture::StateError;
use htc_formats::block::BlockError;
use htc_formats::gguf::WriteError;
use htc_formats::htz::HtzError;
use htc_formats::model::Role;
use thiserror::Error;

use crate::event::Cancelled;

/// Why an export fails. Each message is one line with the file concerned; an option is called as the
/// library calls it, in backticks.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The artifact is unreadable, or the place of the output cannot be written to.
    #[error(transparent)]
    Htz(#[from] HtzError),
    /// What was written does not open again.
    #[error("what was written does not open again: {0}")]
    Reopened(String),
    /// What was written says something else than the artifact.
    #[error("what was written would be read otherwise: {what} is {found}, expected {expected}")]
    Differs {
        /// What is read otherwise.
        what: String,
        /// What the artifact has.
        expected: String,
        /// What the output has.
        found: String,
    },
    /// The output is the artifact itself.
    #[error("{}: this is the artifact that is read; give another name", .0.display())]
    SameFile(PathBuf),
    /// There is a folder already that holds something.
    #[error("{}: exists already and is not empty; give another name, or replace it with `overwrite`", .0.display())]
    FolderExists(PathBuf),
    /// A folder that would be replaced holds what no export writes.
    #[error("{}: holds {other:?}, which is no file of a model; it is not replaced, give another name", path.display())]
    FolderForeign {
        /// The folder.
        path: PathBuf,
        /// What is in it.
        other: String,
    },
    /// The place of a folder is taken by a file.
    #[error("{}: is no folder; give another name", .0.display())]
    NotAFolder(PathBuf),
    /// The container has no words for the model.
    #[error("the artifact cannot be stated so: {0}")]
    State(#[from] StateError),
    /// The container has no place for a tensor.
    #[error(
        "{role} has no place in {container} of an architecture {architecture:?}{}",
        if role.to_string().ends_with(".bias") { "; compile it again with `bias` off" } else { "" }
    )]
    NoPlace {
        /// The tensor.
        role: Role,
        /// The container.
        container: &'static str,
        /// The model's architecture.
        architecture: String,
    },
    /// The artifact lacks a tensor.
    #[error("{0} is missing; the artifact is damaged, compile it again")]
    Missing(Role),
    /// Rows do not decode, or have no code in the type asked for.
    #[error("{tensor}: {error}")]
    Block {
        /// The tensor of the output.
        tensor: String,
        /// What the codec says.
        error: BlockError,
    },
    /// A number is beyond a type.
    #[error("{tensor}: a number of magnitude {value:e} is beyond {dtype}; give `as` bf16 or f32")]
    Overflow {
        /// The tensor of the output.
        tensor: String,
        /// The number.
        value: f32,
        /// The type.
        dtype: DType,
    },
    /// A type that folders cannot have.
    #[error("`as` {0}: weights in a folder are f32, f16 or bf16; give one of these")]
    NotAFloat(DType),
    /// There is nothing for an adapter.
    #[error(
        "`lora`: no matrix of the artifact has factors that an adapter could hold; leave it out"
    )]
    NoFactors,
    /// The file system has not as much room.
    #[error("{}: no space: {needed} bytes are needed, {free} are free there; free some, or give another name", path.display())]
    NoSpace {
        /// The output.
        path: PathBuf,
        /// Bytes of the output.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// The output is no file that can be written.
    #[error(transparent)]
    Gguf(#[from] WriteError),
    /// Weights of a folder cannot be written.
    #[error("{}: cannot be written: {problem}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What the library says.
        problem: String,
    },
    /// The system refuses to write.
    #[error("{}: cannot be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The system gives no thread to work with.
    #[error("no thread can be started: {0}; end other programs or raise the limit of processes")]
    Thread(#[from] std::io::Error),
    /// Somebody asked for an end; nothing is left.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl ExportError {
    /// A codec's complaint about a tensor.
    pub(super) fn of_block(tensor: &str) -> impl FnOnce(BlockError) -> ExportError {
        let tensor = tensor.to_owned();
        |error| ExportError::Block { tensor, error }
    }
}
